"""Files that are locked, and reads that fail for a while."""

import errno
import shutil
import subprocess
import sys

import internals
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad, write_mtx
from small_fits import LONG_X, X, model, run

import nmfscale
from nmfscale.engine.checkpoint import CheckpointError
from nmfscale.readers.open import as_counts
from nmfscale.storage.store_writer import pack

pytestmark = pytest.mark.nightly

HOLD = """
import h5py, sys, time
with h5py.File(sys.argv[1], "r+"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("seconds", [0.7, 30])
def test_locked_file(tmp_path, monkeypatch, seconds):
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    internals.wait_for_locks(monkeypatch, 0.2 if seconds == 30 else 20)
    pack(as_counts(X), tmp_path / "counts.nmf")
    model(max_iter=2).fit(X, checkpoint=tmp_path / "state", checkpoint_every=0)
    model(max_iter=2).fit(X).save(tmp_path / "model.h5")
    older, checkpoint = sorted((tmp_path / "state").iterdir())
    older.unlink()
    uses = {
        tmp_path / "counts.nmf": model(max_iter=2).fit,
        write_h5ad(tmp_path / "a.h5ad", sp.csr_array(X)): model(max_iter=2).fit,
        tmp_path / "model.h5": nmfscale.load,
        checkpoint: lambda path: model(max_iter=2).fit(X, checkpoint=path.parent, resume=True),
    }
    for path, use in uses.items():
        size = path.stat().st_size
        words = [sys.executable, "-P", "-c", HOLD, path, str(seconds)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
            try:
                assert holder.stdout.readline() == b"held\n"
                if seconds == 30:
                    error = CheckpointError if path is checkpoint else BlockingIOError
                    with pytest.raises(error, match=f"{path.name} is locked, probably by"):
                        use(path)
                else:
                    use(path)
            finally:
                holder.kill()
        assert path.stat().st_size == size


# Fails the next reads of one file, as many as a file says, with the number it says.
FAILING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
static int fails(int fd) {
    char link[64], path[4096];
    int left = 0, number = 0;
    const char *of = getenv("FAILING_AT"), *plan = getenv("FAILING_PLAN");
    FILE *file;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0 || strncmp(path, of, size) || strlen(of) != (size_t)size) return 0;
    if (!(file = fopen(plan, "r"))) return 0;
    int found = fscanf(file, "%d %d", &left, &number);
    fclose(file);
    if (found != 2 || left <= 0 || !(file = fopen(plan, "w"))) return 0;
    fprintf(file, "%d %d", left - 1, number);
    fclose(file);
    errno = number;
    return 1;
}
ssize_t pread64(int fd, void *to, size_t size, off_t at) {
    ssize_t (*real)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread64");
    return fails(fd) ? -1 : real(fd, to, size, at);
}
ssize_t read(int fd, void *to, size_t size) {
    ssize_t (*real)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    return fails(fd) ? -1 : real(fd, to, size);
}
ssize_t preadv64v2(int fd, const struct iovec *to, int n, off_t at, int flags) {
    ssize_t (*real)(int, const struct iovec *, int, off_t, int) = dlsym(RTLD_NEXT, "preadv64v2");
    return fails(fd) ? -1 : real(fd, to, n, at, flags);
}
"""

READS = """
import errno, os, sys
from pathlib import Path
from small_fits import LONG_X, bits, model
import internals
internals.small_blocks(internals.FOR_GOOD, 5_000)
internals.read_anew(internals.FOR_GOOD)
path, plan = sys.argv[1], Path(os.environ["FAILING_PLAN"])
number, times = int(sys.argv[2]), sys.argv[3]
internals.retry_for(internals.FOR_GOOD, float(sys.argv[4]))
iterations, left = [int(word) for word in sys.argv[5:]], []

def fail_reads(iteration):
    left.append(plan.read_text().split()[0])
    if iteration in iterations:
        plan.write_text(f"{times} {number}")

expected = bits(model(max_iter=5).fit(LONG_X))
plan.write_text("0 0")
fail_reads(0)
again = model(max_iter=5, memory_limit="100GB", callback=lambda now: fail_reads(now["iteration"]))
try:
    assert bits(again.fit(path)) == expected
    assert set(left) == {"0"}
    print("finished")
except OSError as error:
    assert error.errno == number and path in str(error) and os.strerror(number) in str(error)
    print("refused")
"""


def preloaded(folder, source):
    """Environment in which calls of the system are those of a source in C."""
    compiler = shutil.which("cc")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("needs a C compiler and LD_PRELOAD")
    library = folder / "calls.so"
    library.with_suffix(".c").write_text(source)
    words = ["-shared", "-fPIC", "-o", str(library), str(library.with_suffix(".c")), "-ldl"]
    subprocess.run([compiler, *words], check=True, timeout=60)
    return {"LD_PRELOAD": str(library)}


@pytest.fixture(scope="module")
def faulty_disk(tmp_path_factory):
    """Environment in which reads of a file fail."""
    folder = tmp_path_factory.mktemp("fail_reads")
    return {**preloaded(folder, FAILING), "FAILING_PLAN": str(folder / "plan")}


def write_long(kind, folder):
    if kind == "store":
        pack(as_counts(LONG_X), folder / "counts.nmf")
        return folder / "counts.nmf"
    if kind.startswith("mtx"):
        return write_mtx(folder / f"counts.{kind}", sp.coo_array(LONG_X))
    matrix = {"csr": sp.csr_array, "csc": sp.csc_array, "dense": np.asarray}[kind](LONG_X)
    return write_h5ad(folder / "counts.h5ad", matrix)


@pytest.mark.parametrize(
    ("kind", "number", "iterations"),
    [
        ("store", errno.EIO, [0, 2, 3]),
        ("store", errno.ESTALE, [2]),
        ("store", errno.ENOENT, [2]),
        ("csr", errno.EIO, [0, 2, 3]),
        ("csc", errno.EIO, [0]),
        ("dense", errno.EIO, [0, 2, 3]),
        ("mtx", errno.EIO, [0]),
        ("mtx.gz", errno.ESTALE, [0]),
    ],
)
def test_reads_that_fail_for_a_while(tmp_path, monkeypatch, faulty_disk, kind, number, iterations):
    internals.small_blocks(monkeypatch, 5_000)
    path = write_long(kind, tmp_path)
    words = path, number, 2, 20, *iterations
    assert run(READS, *words, FAILING_AT=str(path), **faulty_disk) == "finished\n"


@pytest.mark.parametrize("kind", ["store", "csr", "mtx"])
def test_reads_that_keep_failing(tmp_path, monkeypatch, faulty_disk, kind):
    internals.small_blocks(monkeypatch, 5_000)
    path = write_long(kind, tmp_path)
    words = path, errno.EIO, 10**6, 0.3, 0 if kind == "mtx" else 2
    assert run(READS, *words, FAILING_AT=str(path), **faulty_disk) == "refused\n"


NO_LOCKS = """
#include <errno.h>
#include <stdlib.h>
int flock(int file, int operation) {
    errno = atoi(getenv("LOCK_FAILS"));
    return -1;
}
"""

WITHOUT_LOCKS = """
import sys
from pathlib import Path
import h5py, nmfscale
from small_fits import LONG_X, bits, model
folder = Path(sys.argv[1])
try:
    h5py.File(folder / "csr.h5ad")
except OSError as error:
    assert error.errno == int(sys.argv[2])
else:
    raise AssertionError("there are locks")
fitted = model(max_iter=3).fit(LONG_X)
for path in sorted(folder.iterdir()):
    if path.suffix in (".h5ad", ".nmf"):
        assert bits(model(max_iter=3).fit(path)) == bits(fitted), path
        assert bits(model(max_iter=3, memory_limit="2GB").fit(path)) == bits(fitted), path
assert bits(nmfscale.load(folder / "model.h5")) == bits(fitted)
fitted.save(folder / "model.h5")
assert bits(nmfscale.load(folder / "model.h5")) == bits(fitted)
store = nmfscale.write_store(folder / "csc.h5ad", folder / "counts.nmf")
assert bits(model(max_iter=3).fit(store)) == bits(fitted)
model(max_iter=2).fit(LONG_X, checkpoint=folder / "state")
resumed = model(max_iter=3).fit(LONG_X, checkpoint=folder / "state", resume=True)
assert bits(resumed) == bits(fitted)
print("read")
"""


def test_file_systems_without_locks(tmp_path):
    """HDF5 asks for a lock when it opens a file: ENOLCK, EOPNOTSUPP, the kernel's ENOTSUPP."""
    environment = preloaded(tmp_path, NO_LOCKS)
    folder = tmp_path / "files"
    folder.mkdir()
    for name, kind in (("csr", sp.csr_array), ("csc", sp.csc_array), ("dense", np.asarray)):
        write_h5ad(folder / f"{name}.h5ad", kind(LONG_X))
    pack(as_counts(LONG_X), folder / "counts.nmf")
    model(max_iter=3).fit(LONG_X).save(folder / "model.h5")
    for number in (errno.ENOLCK, errno.EOPNOTSUPP, 524):
        words = folder, number
        assert run(WITHOUT_LOCKS, *words, LOCK_FAILS=str(number), **environment) == "read\n"
