"""`nmfscale cluster`, and fits on a cluster: who can reach it, how it ends, what it says."""

import gc
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager, suppress

import dask
import internals
import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from shell import failure, misuse

import nmfscale
from nmfscale.cli import main
from nmfscale.cluster.local import connected, local_cluster, make_certificates
from nmfscale.cluster.local import read_certificates as read

pytestmark = pytest.mark.slow

LIMIT = 120  # seconds; what takes longer hangs


class Cluster:
    """A running command, what it said and the processes that belong to it."""

    def __init__(self, process, said, errors):
        self.process, self.said, self._errors = process, said, errors
        first = psutil.Process(process.pid)
        self.family = [first, *first.children(recursive=True)]

    @property
    def errors(self):
        return self._errors.read_text()

    def listening(self):
        """Return (pid, address, port) of every socket that waits for connections."""
        pids = {member.pid for member in self.family}
        return [
            (found.pid, *found.laddr)
            for found in psutil.net_connections("inet")
            if found.pid in pids and found.status == psutil.CONN_LISTEN
        ]

    def ask(self, question):
        """Return what Python prints that was given the client as the command advises."""
        code = f"{self.said['python']}\nprint({question})\nclient.close()"
        return program("-c", code).stdout.strip()


def program(*words):
    """Run Python in a process group of its own."""
    return subprocess.run(
        [sys.executable, "-P", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
        start_new_session=True,
    )


@contextmanager
def cluster(folder, *words):
    """Start the command in a process group of its own, with `folder` for temporary files."""
    errors = folder / "errors.txt"
    scratch = folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-P", "-m", "nmfscale", "cluster", "--port", "0", *map(str, words)]
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"TMPDIR": str(scratch)},
            start_new_session=True,
        ) as process,
    ):
        watchdog = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        try:
            said = {}
            for line in process.stdout:
                name, text = line.split(None, 1)
                said[name] = text.strip()
                if name == "python":
                    break
            assert "python" in said, errors.read_text()
            yield Cluster(process, said, errors)
        finally:
            watchdog.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A cluster as it starts by default, but for a port of the dashboard that is taken."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        words = ["--workers", 2, "--memory-limit", "1GB"]
        words += ["--dashboard-port", other.getsockname()[1]]
        with cluster(tmp_path_factory.mktemp("plain"), *words) as running:
            running.taken = other.getsockname()[1]
            yield running


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("keys") / "new" / "folder"
    make_certificates(folder)
    return folder


@pytest.fixture
def copied(certificates, tmp_path):
    return shutil.copytree(certificates, tmp_path / "copied")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("foreign") / "keys"
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def closed(certificates, tmp_path_factory):
    """A cluster with TLS, on an address that tells its sockets from those of its web pages."""
    try:
        socket.create_server(("127.0.0.2", 0)).close()
    except OSError:
        pytest.skip("this system has one loopback address only")
    words = ["--workers", 1, "--host", "127.0.0.2", "--tls", certificates, "--dashboard-port", 0]
    with cluster(tmp_path_factory.mktemp("closed"), *words) as running:
        yield running


@pytest.mark.nightly
class TestReach:
    def test_everything_listens_on_the_loopback_address(self, plain):
        sockets = plain.listening()
        assert {address for _, address, _ in sockets} == {"127.0.0.1"}
        # Scheduler, dashboard and two nannies in one process, a worker and its pages in two more.
        pids = [pid for pid, *_ in sockets]
        assert sorted(map(pids.count, set(pids))) == [2, 2, 4]
        ours = {port for pid, _, port in sockets if pid == plain.process.pid}
        for name in ("address", "dashboard"):
            assert int(re.search(r"//127\.0\.0\.1:(\d+)", plain.said[name])[1]) in ours

    def test_web_pages_stay_on_the_loopback_address(self, closed):
        pages = [port for _, address, port in closed.listening() if address == "127.0.0.1"]
        assert len(pages) == 2
        assert closed.said["dashboard"] in [f"http://127.0.0.1:{port}/status" for port in pages]
        for port in pages:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as page:
                assert page.status == 200

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
    def test_no_other_address_without_tls(self, host, capsys):
        assert "add --tls DIR" in misuse(capsys, "cluster", "--host", host)
        with (
            pytest.raises(ValueError, match="needs certificates"),
            local_cluster(1, host=host),
        ):
            pass

    def test_a_taken_port_of_the_dashboard_is_left_alone(self, plain):
        port = int(re.search(r":(\d+)/status", plain.said["dashboard"])[1])
        assert port != plain.taken
        assert f"nmfscale: warning: Port {plain.taken} is already in use." in plain.errors
        with urllib.request.urlopen(plain.said["dashboard"], timeout=10) as page:
            assert page.status == 200


@pytest.mark.nightly
class TestTLS:
    def doors(self, running):
        """Return scheduler, nanny and worker; web pages have another address."""
        found = [port for _, address, port in running.listening() if address == "127.0.0.2"]
        assert len(found) == 3
        return found

    def greeting(self, port, folder):
        """Return what is said first to someone who trusts everyone, with a certificate or not."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if folder is not None:
            context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        with (
            socket.create_connection(("127.0.0.2", port), timeout=10) as raw,
            context.wrap_socket(raw) as wrapped,
        ):
            return wrapped.recv(1)

    def test_files_are_for_the_owner_alone(self, certificates):
        assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in certificates.iterdir()}
        assert modes == dict.fromkeys(("ca.pem", "cert.pem", "key.pem"), 0o600)

    def test_certificates_are_made_once(self, copied):
        before = {path.name: path.read_bytes() for path in copied.iterdir()}
        make_certificates(copied)
        assert {path.name: path.read_bytes() for path in copied.iterdir()} == before

    def test_who_has_the_certificates_is_let_in(self, closed, certificates):
        assert closed.said["address"].startswith("tls://127.0.0.2:")
        assert closed.ask("client.submit(sum, [20, 22]).result()") == "42"
        with connected(closed.said["address"], read(certificates), timeout=LIMIT) as client:
            assert client.submit(sum, [20, 22]).result(timeout=LIMIT) == 42

    def test_all_others_are_refused(self, closed, certificates, foreign):
        for port in self.doors(closed):
            assert self.greeting(port, certificates)
            for folder in (None, foreign):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    self.greeting(port, folder)

    def test_other_clients_are_refused(self, closed, foreign, certificates):
        address = closed.said["address"]
        open_address = address.replace("tls://", "tcp://")
        for where, security in (
            (open_address, None),
            (open_address, read(certificates)),
            (address, None),
            (address, read(foreign)),
        ):
            with (
                pytest.raises(ConnectionError, match=f"cannot use the scheduler at {where}"),
                connected(where, security, timeout=2),
            ):
                pass
        assert dask.config.get("scheduler", None) is None

    def test_without_cryptography(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "cryptography", None)
        err = failure(capsys, "cluster", "--tls", tmp_path / "keys")
        assert "pip install 'nmfscale[cluster]'" in err
        assert os.listdir(tmp_path) == []

    def test_certificates_that_are_of_no_use(self, copied, foreign, capsys):
        shutil.copy(foreign / "cert.pem", copied / "cert.pem")
        assert "KEY_VALUES_MISMATCH" in failure(capsys, "cluster", "--tls", copied)
        shutil.copy(foreign / "key.pem", copied / "key.pem")
        assert "CERTIFICATE_VERIFY_FAILED" in failure(capsys, "cluster", "--tls", copied)
        (copied / "ca.pem").write_text("nothing")
        assert "remove the folder" in failure(capsys, "cluster", "--tls", copied)
        (copied / "ca.pem").unlink()
        assert "has no ca.pem" in failure(capsys, "cluster", "--tls", copied)

    def test_a_key_that_others_may_read(self, copied, tmp_path, capsys):
        (copied / "key.pem").chmod(0o640)
        assert "chmod 600" in failure(capsys, "cluster", "--tls", copied)
        (tmp_path / "shared").mkdir(mode=0o755)
        assert "chmod 700" in failure(capsys, "cluster", "--tls", tmp_path / "shared")
        assert os.listdir(tmp_path / "shared") == []


class TestCluster:
    def test_settings(self, plain):
        result = plain.ask(
            "client.run_on_scheduler(lambda dask_scheduler: [float(getattr(dask_scheduler, name))"
            " for name in ('worker_ttl', 'no_workers_timeout', 'allowed_failures')])"
        )
        assert result == "[60.0, 120.0, 20.0]"
        result = plain.ask(
            "client.run(lambda dask_worker: (dask_worker.state.nthreads, "
            "dask_worker.memory_manager.memory_limit, dask_worker.nanny is not None, "
            "__import__('dask').config.get('distributed.comm.timeouts.tcp'))).values()"
        )
        assert result == f"dict_values({[(1, 10**9, True, '30s')] * 2})"

    def test_what_it_says(self, plain, closed, certificates):
        address = plain.said["address"]
        assert address.startswith("tcp://127.0.0.1:")
        assert plain.said["shell"].endswith(f"--scheduler {address}")
        assert closed.said["shell"].endswith(f"{closed.said['address']} --tls {certificates}")
        assert "nmfscale: workers: 2; Ctrl-C stops them" in plain.errors

    @pytest.mark.nightly
    @pytest.mark.parametrize("way", ["Ctrl-C", "SIGINT", "SIGTERM", "a client"])
    def test_end(self, way, tmp_path):
        with cluster(tmp_path, "--workers", 2, "--dashboard-port", 0) as running:
            process = running.process
            if way == "Ctrl-C":
                os.killpg(process.pid, signal.SIGINT)
            elif way == "a client":
                running.ask("client.shutdown()")
            else:
                process.send_signal(getattr(signal, way))
            assert process.wait(LIMIT) == 0
            assert psutil.wait_procs(running.family, timeout=LIMIT)[1] == []
            assert process.stdout.read() == ""
            last = running.errors.splitlines()[-1]
            if way == "a client":
                assert last == "nmfscale: a client has shut the cluster down"
            else:
                assert last == "nmfscale: workers: 2; Ctrl-C stops them"
            assert os.listdir(tmp_path / "scratch") == []

    def test_a_taken_port(self, capsys):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            err = failure(capsys, "cluster", "--port", port)
        assert f"port {port} of 127.0.0.1 is taken" in err

    @pytest.mark.nightly
    def test_refusals(self, tmp_path, capsys):
        assert "neither the name nor" in failure(capsys, "cluster", "--host", "no host")
        absent = tmp_path / "absent"
        assert f"no folder {absent}" in failure(capsys, "cluster", "--local-directory", absent)
        assert "'lots' is not a size" in misuse(capsys, "cluster", "--memory-limit", "lots")
        for words in (["--port", 65536], ["--port", -1], ["--workers", 0]):
            assert "usage: nmfscale cluster" in misuse(capsys, "cluster", *words)


class TestFit:
    @pytest.fixture
    def given(self, monkeypatch):
        """Keep the client that a fit is given, and what it computed."""
        given = []
        fit = nmfscale.TopicModel.fit

        def spying(model, counts, *, client=None, **options):
            given.append(
                client and (client.scheduler.address, client.submit(sum, [20, 22]).result())
            )
            return fit(model, counts, **options)

        monkeypatch.setattr(nmfscale.TopicModel, "fit", spying)
        return given

    @pytest.fixture
    def words(self, tmp_path):
        counts = np.random.default_rng(0).poisson(3, (30, 20))
        sp.save_npz(tmp_path / "counts.npz", sp.csr_array(counts))
        words = ["fit", tmp_path / "counts.npz", "-k", "2", "-o", tmp_path / "model.h5", "--quiet"]
        return [*map(str, words), "--max-iter", "3", "--tol", "0", "--seed", "1", "--threads", "1"]

    def test_without_a_cluster(self, given, words):
        assert main(words) == 0
        assert given == [None]

    def test_on_a_cluster(self, given, words, plain, closed, certificates, tmp_path):
        address = plain.said["address"]
        assert main([*words, "--scheduler", address]) == 0
        assert main([*words, "--force", "--scheduler", address.removeprefix("tcp://")]) == 0
        address = closed.said["address"]
        tls = ["--tls", str(certificates)]
        assert main([*words, "--force", "--scheduler", address, *tls]) == 0
        assert main([*words, "--force", "--scheduler", address.removeprefix("tls://"), *tls]) == 0
        assert [result for _, result in given] == [42] * 4
        assert [there for there, _ in given[2:]] == [address] * 2
        assert nmfscale.load(tmp_path / "model.h5").n_iter_ == 3

    def test_on_workers_of_its_own(self, given, words):
        before = set(psutil.Process().children(recursive=True))
        assert main([*words, "--workers", "1"]) == 0
        [(address, result)] = given
        assert address.startswith("tcp://127.0.0.1:")
        assert result == 42
        left = set(psutil.Process().children(recursive=True)) - before
        assert [member for member in left if "resource_tracker" not in str(member.cmdline())] == []

    @pytest.mark.nightly
    def test_transform(self, words, plain, tmp_path, monkeypatch):
        internals.small_blocks(monkeypatch, 200)
        assert main(words) == 0
        model, counts = tmp_path / "model.h5", tmp_path / "counts.npz"
        words = ["transform", *map(str, [model, counts]), "--quiet", "-o"]
        sessions = internals.note_sessions(monkeypatch)
        for name, more in (
            ("here.npy", []),
            ("there.npy", ["--scheduler", plain.said["address"]]),
            ("own.npz", ["--workers", "1", "--memory-limit", "100GB"]),
        ):
            assert main([*words, str(tmp_path / name), *more]) == 0
        assert len(sessions) == 2
        here = np.load(tmp_path / "here.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "there.npy"), here)
        np.testing.assert_array_equal(np.load(tmp_path / "own.npz")["loadings"], here)

    def test_refusals(self, words, closed, certificates, tmp_path, capsys):
        address = closed.said["address"]
        err = misuse(capsys, *words, "--scheduler", address, "--workers", "2")
        assert "not allowed with argument" in err
        assert "--tls needs" in misuse(capsys, *words, "--tls", certificates)
        open_address = address.replace("tls://", "tcp://")
        err = misuse(capsys, *words, "--scheduler", open_address, "--tls", certificates)
        assert "does not speak TLS" in err
        for where in (address, open_address):
            err = failure(capsys, *words, "--scheduler", where)
            assert f"cannot use the scheduler at {where}" in err
            assert "nmfscale cluster" in err
        absent = tmp_path / "absent"
        err = failure(capsys, *words, "--scheduler", address, "--tls", absent)
        assert "has no ca.pem" in err
        assert not absent.exists()

    @pytest.mark.nightly
    def test_nobody_there(self):
        with (
            pytest.raises(ConnectionError, match="Timed out .*`nmfscale cluster` starts one"),
            connected("tcp://127.0.0.1:1", timeout=0.5),
        ):
            pass

    @pytest.mark.nightly
    def test_workers_survive_ctrl_c(self):
        """Which a terminal sends to them too, while the fit needs them for its last iteration."""
        code = """
import os, signal
from nmfscale.cluster.local import local_client
seen = []
with local_client(1) as client:
    before = client.submit(os.getpid, pure=False).result()
    signal.signal(signal.SIGINT, lambda *_: seen.append("Ctrl-C"))
    os.killpg(0, signal.SIGINT)
    after = client.submit(os.getpid, pure=False).result()
    print(before == after != os.getpid(), *seen)
"""
        ended = program("-c", code)
        assert (ended.stdout, ended.stderr) == ("True Ctrl-C\n", "")

    @pytest.mark.nightly
    def test_no_traceback_of_a_heartbeat_that_is_unanswered_at_the_end(self):
        code = """
import asyncio, threading
from nmfscale.cluster.local import local_cluster
asked = threading.Event()
with local_cluster(1) as cluster:
    handlers = cluster.scheduler.handlers
    def slow(answer=handlers["heartbeat_worker"], **message):
        async def later():
            asked.set()
            await asyncio.sleep(1)
            return answer(**message)
        return later()
    handlers["heartbeat_worker"] = slow
    print(asked.wait(20))
"""
        ended = program("-c", code)
        assert (ended.stdout, ended.stderr) == ("True\n", "")

    @pytest.mark.nightly
    def test_a_client_that_failed_is_gone(self):
        from distributed import Client

        def clients():
            return {id(each) for each in gc.get_objects() if type(each) is Client}

        gc.collect()
        before = clients()
        for _ in range(3):
            with pytest.raises(ConnectionError), connected("tcp://127.0.0.1:1", timeout=0.5):
                pass
            assert clients() <= before
