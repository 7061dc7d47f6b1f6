"""How a command ends when it is interrupted, or what it reads, writes or works on is gone."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import h5py
import internals
import numpy as np
import pytest
import scipy.sparse as sp
from night import at_night
from shell import failure

import nmfscale
from nmfscale.cli import main

LIMIT = 60  # seconds; what takes longer hangs
PROGRAM = [sys.executable, "-P", "-m", "nmfscale"]
# As by default: what is buffered fails when the interpreter ends.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
# For programs that change internals of the package.
WITH_TESTS = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.fixture
def counts(tmp_path):
    path = tmp_path / "counts.npz"
    sp.save_npz(path, sp.csr_array(np.random.default_rng(0).poisson(3, (30, 20))))
    return path


def ended(command, **options):
    options = {"stderr": subprocess.PIPE, "text": True, "timeout": LIMIT} | options
    return subprocess.run([*map(str, command)], **options)


class TestInterrupted:
    @pytest.mark.parametrize(
        "module", ["nmfscale.cli", "nmfscale.cli.messages", "nmfscale.cli.commands", "traceback"]
    )
    @pytest.mark.parametrize("start", ["module", "script"])
    def test_while_it_starts(self, module, start):
        if start == "script" and module == "nmfscale.cli":
            pytest.skip("the script imports it before any line of the package can help")
        begin = "runpy.run_module('nmfscale', run_name='__main__', alter_sys=True)"
        if start == "script":
            begin = "from nmfscale.cli import main; sys.exit(main(['--help']))"
        code = (
            "import runpy, sys\n"
            "class Finder:\n"
            "    def find_spec(name, *_):\n"
            f"        if name == {module!r}:\n"
            "            raise KeyboardInterrupt\n"
            f"sys.modules.pop({module!r}, None)\n"
            "sys.meta_path.insert(0, Finder)\n"
            f"{begin}\n"
        )
        done = ended([sys.executable, "-P", "-c", code])
        assert (done.returncode, done.stderr) in [(130, ""), (130, "nmfscale: interrupted\n")]

    @pytest.mark.parametrize(
        "module", ["nmfscale.cli.messages", "numpy", "nmfscale.readers.formats.h5ad"]
    )
    def test_sigterm_at_any_moment_is_ctrl_c(self, module, counts, tmp_path):
        """While the command starts, and while it reads counts."""
        code = (
            "import signal, sys\n"
            "class Finder:\n"
            "    def find_spec(name, *_):\n"
            f"        if name == {module!r}:\n"
            "            signal.raise_signal(signal.SIGTERM)\n"
            "from nmfscale.cli import main\n"
            "sys.meta_path.insert(0, Finder)\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        words = ["fit", counts, "-k", 2, "-o", tmp_path / "model.h5"]
        done = ended([sys.executable, "-P", "-c", code, *words])
        assert (done.returncode, done.stderr) in [(130, ""), (130, "nmfscale: interrupted\n")]
        assert list(tmp_path.iterdir()) == [counts]

    def test_where_a_compiled_module_makes_an_import_error_of_it(self, monkeypatch, capsys):
        def interrupted(_):
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as error:
                raise ImportError("initialization failed") from error

        internals.make_parser_by(monkeypatch, interrupted)
        assert main(["fit"]) == 130
        assert capsys.readouterr().err == "nmfscale: interrupted\n"

    def test_the_exit_code_is_that_of_the_program(self, tmp_path):
        """And not a signal, which CPython raises itself after a KeyboardInterrupt in an exec()."""
        (tmp_path / "program.py").write_text(
            "import sys\n"
            "import internals\n"
            "from nmfscale.cli import main\n"
            "raising = lambda _: exec('raise KeyboardInterrupt')\n"
            "internals.make_parser_by(internals.FOR_GOOD, raising)\n"
            "sys.exit(main([]))\n"
        )
        done = ended([sys.executable, "-m", "program"], cwd=tmp_path, env=WITH_TESTS)
        assert (done.returncode, done.stderr) == (130, "nmfscale: interrupted\n")

    def test_nothing_slow_is_imported_before_the_command(self):
        code = (
            "import sys; before = set(sys.modules); import nmfscale.cli\n"
            "print(*sorted(set(sys.modules) - before))"
        )
        done = ended([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE)
        assert set(done.stdout.split()) <= {"__future__", "nmfscale", "nmfscale.cli"}


class TestStandardOutput:
    @pytest.mark.parametrize(
        "words", ["--help", "info --build", *at_night("--version", "fit --help")]
    )
    def test_its_reader_has_gone(self, words):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as closed:
            done = ended([*PROGRAM, *words.split()], stdout=closed, env=BUFFERED)
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.nightly
    def test_it_is_closed(self, counts, tmp_path):
        words = ["fit", counts, "-k", 2, "-o", tmp_path / "model.h5", "--max-iter", 200, "-q"]
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, *words]
        done = ended(command, env=BUFFERED)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "model.h5").exists()

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
    def test_it_is_on_a_full_disk(self):
        with open("/dev/full", "w") as full:
            done = ended([*PROGRAM, "info", "--build"], stdout=full, env=BUFFERED)
        said = "nmfscale: error: cannot write to standard output: No space left on device.\n"
        assert (done.returncode, done.stderr) == (1, said)


ON_PIPES = """\
fit {pipe} -k 2 -o out.h5
fit {pipe} -k 2 -o out.h5 --memory-limit 1GB
store {pipe} out.nmf
info {pipe}
transform {pipe} {counts} -o out.npy
transform model.h5 {pipe} -o out.npy
plot {pipe} -o out.png
test model.h5 --groups {pipe}
"""
ONE_AFTER_THE_OTHER = """
import sys
from nmfscale.cli import main
for words in sys.argv[1].splitlines():
    print(words, file=sys.stderr, flush=True)
    assert main(words.split()) == 1
"""


@pytest.mark.nightly
def test_a_pipe_is_not_waited_for(counts, tmp_path):
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    words = ON_PIPES.format(pipe=pipe, counts=counts)
    done = ended([sys.executable, "-P", "-c", ONE_AFTER_THE_OTHER, words], cwd=tmp_path)
    said = f"nmfscale: error: {pipe} is a pipe, a socket or a device: pass a file.\n"
    assert done.stderr == "".join(f"{line}\n{said}" for line in words.splitlines())
    assert done.returncode == 0


@pytest.mark.parametrize("elsewhere", ["has room", "has none"])
def test_a_model_that_cannot_be_written_is_kept(counts, tmp_path, monkeypatch, capsys, elsewhere):
    temporary, gone = tmp_path / "temporary", tmp_path / "gone"
    temporary.mkdir()
    gone.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    fit, save = nmfscale.TopicModel.fit, nmfscale.TopicModel.save
    fitted = []

    def fit_and_lose_the_folder(model, *given, **options):
        fitted.append(fit(model, *given, **options))
        shutil.rmtree(gone)
        return fitted[0]

    def save_nowhere(model, path):
        if temporary in path.parents:
            raise OSError(28, "No space left on device", str(path))
        save(model, path)

    monkeypatch.setattr(nmfscale.TopicModel, "fit", fit_and_lose_the_folder)
    if elsewhere == "has none":
        monkeypatch.setattr(nmfscale.TopicModel, "save", save_nowhere)
    words = ["fit", counts, "-k", 2, "-o", gone / "model.h5", "--max-iter", 200, "-q"]
    err = failure(capsys, *words)
    assert f"cannot write the model to {gone / 'model.h5'} (" in err
    if elsewhere == "has none":
        assert "No space left on device" in err and "TMPDIR" in err
        assert list(temporary.iterdir()) == []
    else:
        [rescued] = temporary.glob("*/model.h5")
        assert f"the result is in {rescued}." in err
        kept = nmfscale.load(rescued)
        assert kept.components_.tobytes() == fitted[0].components_.tobytes()


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.h5"
    X, *_ = nmfscale.datasets.simulate_topic_counts(60, 40, 2, random_state=0)
    nmfscale.TopicModel(2, random_state=0).fit(X).save(path)
    (tmp_path / "groups.txt").write_text("a\nb\n" * 30)
    return path


@contextmanager
def longest_file(n_bytes):
    """Let files have so many bytes at most: what is written beyond fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "words",
    [
        "export {model} -o new/tables",
        "export {model} -o loadings.csv.gz",
        "plot {model} -o plot.png --groups {groups}",
    ],
)
def test_a_full_disk_names_the_file_and_nothing_is_left(words, model, tmp_path, capsys):
    groups, folder = tmp_path / "groups.txt", tmp_path / "results"
    folder.mkdir()
    given = words.format(model=model, groups=groups).split()
    at = given.index("-o") + 1
    given[at] = str(folder / given[at])
    with longest_file(300):
        err = failure(capsys, *given)
    assert str(folder) in err and "File too large" in err and "Errno" not in err
    assert list(folder.rglob("*")) == []


def test_results_that_cannot_be_written_are_kept(model, tmp_path, monkeypatch, capsys):
    """And what goes elsewhere is written."""
    temporary, gone, table = tmp_path / "temporary", tmp_path / "gone", tmp_path / "weights.csv"
    temporary.mkdir()
    gone.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def lose_the_folder(original, *given, **options):
        shutil.rmtree(gone)
        return original(*given, **options)

    internals.around_bootstrap_weights(monkeypatch, lose_the_folder)
    words = ["bootstrap", model, "--groups", tmp_path / "groups.txt", "--replicates", 20]
    assert main([*map(str, words), "-o", str(gone / "weights.h5"), "-o", str(table), "-q"]) == 1
    err = capsys.readouterr().err
    [rescued] = temporary.glob("*/weights.h5")
    assert f"cannot write the result to {gone / 'weights.h5'} (" in err
    assert f"the result is in {rescued}." in err
    with h5py.File(rescued) as file:
        assert file["weight"].shape == (2, 2)
    assert len(table.read_text().splitlines()) == 5


FIT_ON_SMALL_BLOCKS = """
import sys
import internals
from nmfscale.cli import main

if __name__ == "__main__":
    internals.small_blocks(internals.FOR_GOOD, 100)
    sys.exit(main())
"""


@pytest.mark.nightly
def test_the_scheduler_is_killed(counts, tmp_path):
    started = [*PROGRAM, "cluster", "--workers", "1", "--port", "0", "--dashboard-port", "0"]
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options["env"] = WITH_TESTS
    with subprocess.Popen(started, start_new_session=True, **options) as cluster:
        try:
            address = cluster.stdout.readline().split()[1]
            command = [sys.executable, "-P", "-c", FIT_ON_SMALL_BLOCKS, "fit", counts, "-k", 2]
            command += ["-o", tmp_path / "model.h5", "--scheduler", address, "--tol", 0, "-q"]
            command += ["--max-iter", 10**6, "--checkpoint", tmp_path / "state"]
            command += ["--checkpoint-every", 0]
            with subprocess.Popen([*map(str, command)], **options) as fit:
                while not list(tmp_path.glob("state/*.h5")):
                    assert fit.poll() is None, fit.stderr.read()
                os.killpg(cluster.pid, signal.SIGKILL)
                out, err = fit.communicate(timeout=LIMIT)
        finally:
            os.killpg(cluster.pid, signal.SIGKILL)
    assert (fit.returncode, out) == (1, "")
    assert err.startswith("nmfscale: error: the scheduler does not answer")
    assert "--resume" in err and err.count("\n") == 1
