"""Simulated hosts, each in its own network namespace with one link, and Dask workers on them.

All processes, links and mounts end with the process that `alone` starts.
"""

import functools
import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import clusters
import pytest
from clusters import soon
from small_fits import run

HERE = Path(__file__).parent
SCHEDULER = "10.99.0.1"
PORT = 8786
NAMESPACES = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]


def in_environment(settings):
    """Return Dask's settings as environment variables."""
    return {
        f"DASK_{name.upper().replace('.', '__').replace('-', '_')}": str(value)
        for name, value in settings.items()
    }


SETTINGS = in_environment(
    clusters.SETTINGS
    | {"distributed.scheduler.worker-ttl": "15s", "logging.distributed": "critical"}
)
# Dask itself notices no fault before a test is over.
UNAWARE = in_environment(
    {"distributed.scheduler.worker-ttl": "300s", "distributed.comm.timeouts.tcp": "300s"}
)


def missing():
    """Return what is missing for a simulated network, or an empty text."""
    if not sys.platform.startswith("linux") or os.geteuid():
        return "needs Linux and root"
    for program in ("unshare", "nsenter", "ip", "mount"):
        if not shutil.which(program):
            return f"needs {program}"
    probe = "ip link add b0 type bridge && ip link add h0 type veth peer name h1"
    try:
        done = subprocess.run([*NAMESPACES, "sh", "-c", probe], capture_output=True, timeout=10)
    except subprocess.TimeoutExpired:
        return "namespaces do not answer"
    return "may not make namespaces and links" if done.returncode else ""


def alone(seconds, **settings):
    """Run a test in a separate network, with a time limit in seconds; see `SETTINGS`."""

    def wrap(test):
        @functools.wraps(test)
        def outer(tmp_path):
            reason = missing()
            if reason:
                pytest.skip(reason)
            file = Path(inspect.getfile(test))
            program = f"""
import sys
from pathlib import Path
sys.path.append({str(file.parent)!r})
import {file.stem} as here
here.{test.__name__}.__wrapped__(Path(sys.argv[1]))
"""
            command = (*NAMESPACES, "--kill-child")
            print(run(program, tmp_path, command=command, limit=seconds, **(SETTINGS | settings)))

        return outer

    return wrap


def ip(*words, host=None):
    """Run `ip` to configure links, on a host if one is given."""
    inside = [] if host is None else ["nsenter", "-t", str(host), "--net"]
    subprocess.run([*inside, "ip", *map(str, words)], check=True, timeout=10)


class Host:
    """A simulated machine with a worker that is restarted whenever it ends."""

    def __init__(self, number, folder, relayed):
        self.number, self.folder, self.relayed = number, folder / f"host{number}", relayed
        self.folder.mkdir()
        self.address = f"10.99.0.{10 + number}"
        self.started = self.folder / "started"
        words = [
            sys.executable, "-P", "-m", "distributed.cli.dask_worker", f"tcp://{SCHEDULER}:{PORT}",
            "--host", self.address, "--nthreads", "1", "--no-dashboard", "--memory-limit", "0",
            "--local-directory", self.folder, "--preload", HERE / "network_worker.py",
        ]  # fmt: skip
        script = (
            f"hostname host{number}; cd {self.folder}; touch started; "
            f"read go; while :; do {' '.join(map(str, words))} >> log 2>&1; sleep 1; done"
        )
        self.process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "sh", "-c", script],
            stdin=subprocess.PIPE,
            env=os.environ | {"NETWORK_HOST": str(self.folder)},
        )
        soon(self.started.exists)
        self.join_network()

    def join_network(self):
        pid = self.process.pid
        if not self.relayed:
            ip("link", "add", f"h{self.number}", "type", "veth", "peer", "eth0", "netns", pid)
        else:
            names = f"h{self.number}", f"far{self.number}"
            command = [sys.executable, "-P", HERE / "network_link.py", *names]
            self.relay = subprocess.Popen(command, stdin=subprocess.PIPE)
            soon(lambda: f"far{self.number}" in {name for _, name in socket.if_nameindex()})
            ip("link", "set", f"far{self.number}", "netns", pid, "name", "eth0")
        ip("link", "set", f"h{self.number}", "master", "br0", "up")
        ip("addr", "add", f"{self.address}/24", "dev", "eth0", host=pid)
        ip("link", "set", "eth0", "up", host=pid)
        ip("link", "set", "lo", "up", host=pid)

    def go(self):
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def mount(self, command):
        """Run a shell command that changes which files this host sees."""
        inside = ["nsenter", "-t", str(self.process.pid), "--mount"]
        subprocess.run([*inside, "sh", "-c", command], check=True, timeout=10)

    def lists(self, folder):
        """Return the names of the files that this host sees in a folder."""
        return sorted(os.listdir(f"/proc/{self.process.pid}/root{folder}"))

    def link(self, delay=0.0, lost_to=0.0, lost_from=0.0, rate=1e7):
        """Set the delay in seconds, shares of lost frames to and from here, and bytes/second."""
        self.relay.stdin.write(f"{delay} {lost_to} {lost_from} {rate}\n".encode())
        self.relay.stdin.flush()

    def cut(self):
        ip("link", "set", f"h{self.number}", "down")

    def heal(self):
        ip("link", "set", f"h{self.number}", "up")

    def mark(self, name):
        return self.folder / name

    @property
    def pid(self):
        """The process id of the worker, not that of its nanny."""
        return int(self.mark("pid").read_text())

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)


@contextmanager
def network(folder, n_hosts=3, relayed=False):
    """Start hosts and a scheduler; with `relayed`, links can be degraded by `Host.link`."""
    from distributed import Client

    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "type", "bridge")
    ip("addr", "add", f"{SCHEDULER}/24", "dev", "br0")
    ip("link", "set", "br0", "up")
    command = [sys.executable, "-P", "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    with (folder / "scheduler").open("w") as log:
        subprocess.Popen(
            [*map(str, command), "--host", SCHEDULER, "--port", str(PORT)],
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    hosts = [Host(number, folder, relayed) for number in range(1, n_hosts + 1)]
    for host in hosts:
        host.go()
    with Client(f"tcp://{SCHEDULER}:{PORT}", timeout=30) as client:
        client.wait_for_workers(n_hosts, timeout=60)
        yield hosts, client


class Meanwhile:
    """Callback of a fit that runs `happen` in a thread after iteration `at`.

    Iteration `until` waits for the end of the thread.

    Attributes
    ----------
    longest : float
        Duration in seconds of the longest iteration after `at`.
    """

    def __init__(self, happen, at=3, until=7):
        self.happen, self.at, self.until, self.longest = happen, at, until, 0.0
        self.thread, self.error = threading.Thread(target=self._run), None

    def _run(self):
        try:
            self.happen()
        except BaseException as error:
            self.error = error

    def __call__(self, record):
        if record["iteration"] == self.at:
            self.thread.start()
        elif record["iteration"] > self.at:
            self.longest = max(self.longest, time.monotonic() - self.since)
        if record["iteration"] == self.until:
            self.thread.join()
            if self.error is not None:
                raise self.error
        self.since = time.monotonic()
