"""What may happen to the files of a fit: full disks, damage, missing parts."""

import errno
import os
import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_docword, write_h5ad, write_mtx, write_tenx
from night import at_night
from numpy.testing import assert_array_equal
from small_fits import X, bits, model, run

import nmfscale
from nmfscale.counts.aligned import aligned_empty
from nmfscale.engine.checkpoint import CheckpointError
from nmfscale.readers.open import as_counts, read_counts
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_blocks import DamagedStoreError
from nmfscale.storage.store_writer import pack

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def store(tmp_path):
    names = [f"row {i}" for i in range(len(X))]
    counts = as_counts(X)
    arrays = counts.indptr, counts.indices, counts.data
    pack(
        nmfscale.results.Counts(*arrays, counts.shape, sample_names=names), tmp_path / "counts.nmf"
    )
    return tmp_path / "counts.nmf"


def save_checkpoint(folder, **options):
    """Leave one checkpoint; its path."""
    model(max_iter=6, **options).fit(X, checkpoint=folder, checkpoint_every=0)
    older, newest = sorted(folder.iterdir())
    older.unlink()
    return newest


def resume(folder):
    return model(max_iter=6).fit(X, checkpoint=folder, resume=True)


def datasets_of(path):
    with h5py.File(path) as file:
        found = []
        file.visititems(lambda name, node: found.append(name) if hasattr(node, "dtype") else None)
    return found


# Full disks -----------------------------------------------------------------------------------

FULL = """
import errno, os, sys, warnings
from pathlib import Path
from small_fits import LONG_X, bits, model
disk, left, relief = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
state, ballast, warned = disk / "state", disk / "ballast", []
warnings.showwarning = lambda message, *_: warned.append(str(message))
warnings.simplefilter("always")

def fill(record):
    if record["iteration"] == 5:
        with open(ballast, "wb", buffering=0) as file:
            while os.statvfs(disk).f_bavail * 4096 > left:
                file.write(bytes(4096))
    if record["iteration"] == 5 + relief:
        ballast.unlink()
    if record["iteration"] == 6:
        assert sorted(map(str, state.iterdir())) == saved
    saved[:] = sorted(map(str, state.iterdir()))

saved, fitted = [], model(max_iter=12, callback=fill)
try:
    fitted.fit(LONG_X, checkpoint=state, checkpoint_every=0)
except OSError as error:
    assert error.errno == errno.ENOSPC and str(state) in str(error)
    ballast.unlink()
    fitted = model(max_iter=12).fit(LONG_X, checkpoint=state, resume=True)
assert bits(fitted) == bits(model(max_iter=12).fit(LONG_X))
assert all(path.name.startswith("checkpoint-") for path in state.iterdir())
assert all("No space left" in text and "no checkpoint could be written" in text for text in warned)
print(len(warned))
"""
MOUNTED = 'mount -t tmpfs -o size=8m none "$0" && exec "$@"'


def on_small_disk(folder):
    """Words before a command that give it a disk of 8 MB, in its own view of the files."""
    words = ["unshare", "-m", "sh", "-c", MOUNTED, str(folder)]
    if (
        not shutil.which("unshare")
        or subprocess.run([*words, "true"], capture_output=True, timeout=60).returncode
    ):
        pytest.skip("needs unshare -m and mount, as root")
    return words


@pytest.mark.slow
@pytest.mark.parametrize("left", [4096, *at_night(0, 65_536)])
def test_disk_full_on_checkpoint_that_stays_full(tmp_path, left):
    assert run(FULL, tmp_path, left, 20, command=on_small_disk(tmp_path)) == "2\n"


@pytest.mark.slow
def test_disk_full_on_checkpoint_for_a_while(tmp_path):
    assert run(FULL, tmp_path, 4096, 1, command=on_small_disk(tmp_path)) == "1\n"


LIMITED = """
import errno, os, resource, sys
from pathlib import Path
from small_fits import SMALL_BLOCK, X
import internals
from nmfscale.readers.open import as_counts
from nmfscale.storage.store_writer import pack
internals.small_blocks(internals.FOR_GOOD, SMALL_BLOCK)
folder = Path(sys.argv[1])
pack(as_counts(X), folder / "whole.nmf")
size = os.path.getsize(folder / "whole.nmf")
for share in (0, 0.1, 0.5, 0.9, 0.999):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * size), resource.RLIM_INFINITY))
    for name in ("whole.nmf", "other.nmf"):
        try:
            pack(as_counts(X + 1), folder / name)
        except OSError as error:
            assert error.errno == errno.EFBIG and name in str(error)
            print(share)
"""


def test_disk_full_on_a_store(tmp_path):
    assert len(run(LIMITED, tmp_path).split()) == 10
    assert os.listdir(tmp_path) == ["whole.nmf"]
    assert_array_equal(read_counts(tmp_path / "whole.nmf").data, as_counts(X).data)


LOADINGS = """
import errno, os, sys
from small_fits import LONG_X, model
import internals
folder = sys.argv[1]
internals.plan(internals.FOR_GOOD, True, folder)
try:
    model(200, max_iter=2, memory_limit="1TB", init="random").fit(LONG_X)
except OSError as error:
    assert error.errno == errno.ENOSPC
    assert not os.listdir(folder)
    print(error)
"""


@pytest.mark.slow
def test_disk_full_of_loadings(tmp_path):
    said = run(LOADINGS, tmp_path, command=on_small_disk(tmp_path))
    assert re.search(rf"an array of [57],\d+,\d+ bytes in {tmp_path} .No space.*TMPDIR", said)


def test_a_disk_without_room_is_named_before_it_is_used(tmp_path, monkeypatch):
    def answer(number):
        def fail(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
        return aligned_empty((5, 16), np.float64, str(tmp_path))

    with pytest.raises(OSError, match=f"640 bytes in {tmp_path} .No space.*raise memory_limit"):
        answer(errno.ENOSPC)
    assert answer(errno.EOPNOTSUPP).shape == (5, 16)  # a file system that cannot
    monkeypatch.delattr(os, "posix_fallocate")
    assert aligned_empty((5, 16), np.float64, str(tmp_path)).shape == (5, 16)


# Damage ---------------------------------------------------------------------------------------


def write(kind, folder):
    """Write one file of a kind; its path and what reads it."""
    matrix = sp.csr_array(X)
    if kind == "checkpoint":
        folder.mkdir()
        return save_checkpoint(folder), lambda path: resume(path.parent)
    if kind == "model":
        model(max_iter=3).fit(X).save(folder / "model.h5")
        return folder / "model.h5", nmfscale.load
    if kind == "store":
        pack(as_counts(X), folder / "counts.nmf")
        return folder / "counts.nmf", fit_no_further
    if kind == "npz":
        sp.save_npz(folder / "counts.npz", matrix)
        return folder / "counts.npz", fit_no_further
    write_to, name = {
        "h5ad": (write_h5ad, "counts.h5ad"),
        "tenx": (lambda path, counts: write_tenx(path, counts, 3), "counts.h5"),
        "mtx": (write_mtx, "counts.mtx.gz"),
        "docword": (write_docword, "docword.counts.txt.gz"),
    }[kind]
    return write_to(folder / name, matrix), fit_no_further


def fit_no_further(path):
    """Begin a fit that must not get as far as an iteration."""
    model(callback=lambda record: pytest.fail("began")).fit(path)


KINDS = ["store", "checkpoint", "model", "h5ad", "tenx", "npz", "mtx", "docword"]


@pytest.mark.parametrize("kept", [0, 1, 0.3, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_files_that_were_cut(tmp_path, kind, kept):
    path, use = write(kind, tmp_path / "state" if kind == "checkpoint" else tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises((ValueError, OSError), match=path.name):
        use(path)


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_another_kind(tmp_path, kind):
    path, use = write(kind, tmp_path / "state" if kind == "checkpoint" else tmp_path)
    path.write_bytes(b"\x00PNG" + path.read_bytes()[4:])
    with pytest.raises((ValueError, OSError), match=path.name):
        use(path)


@pytest.mark.parametrize("part", ["L", "F", "before_L", "best_F", "total_L", "numbers"])
def test_flipped_bit_in_a_checkpoint(tmp_path, part):
    path = save_checkpoint(tmp_path)
    with h5py.File(path) as file:
        at, size = file[part].id.get_offset(), file[part].nbytes
    content = bytearray(path.read_bytes())
    content[at + size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path.name} is damaged: .*{part} differs"):
        resume(tmp_path)


@pytest.mark.nightly
def test_flipped_bits_anywhere_in_a_checkpoint(tmp_path):
    path, chance = save_checkpoint(tmp_path), np.random.default_rng(0)
    whole, expected, found = path.read_bytes(), bits(resume(tmp_path)), 0
    for at in chance.integers(0, len(whole), 150):
        content = bytearray(whole)
        content[at] ^= 1 << chance.integers(8)
        for other in tmp_path.iterdir():
            other.unlink()
        path.write_bytes(content)
        try:
            assert bits(resume(tmp_path)) == expected
        except CheckpointError:
            found += 1
    assert found > 75


@pytest.mark.parametrize(
    "name",
    ["rows/nnz", "rows/totals", "columns/totals", "values/times", "names/sample/text", "about"],
)
def test_flipped_bit_in_what_a_store_knows_of_its_counts(store, name):
    with h5py.File(store, "r+") as file:
        values = file[name][()].view(np.uint8)
        values[-3] ^= 1
        file[name][...] = values.view(file[name].dtype)
    with pytest.raises(DamagedStoreError, match=f"counts.nmf is damaged: .*{name} differs"):
        StoredCounts(store)


# A process that does not come back, or crashes, ends with another code than 0.
FLIPPED = """
import faulthandler, sys
from pathlib import Path
import numpy as np
import nmfscale
from small_fits import SMALL_BLOCK
import internals
from nmfscale.storage.store import StoredCounts
internals.small_blocks(internals.FOR_GOOD, SMALL_BLOCK)

def contents(path):
    if path.suffix == ".h5":
        model = nmfscale.load(path)
        known = {**vars(model), "header": nmfscale.models.persistence.read_header(path)}
    else:
        counts = StoredCounts(path)
        counts.verify()
        known = {"report": counts.report(), "source": counts.source, "counts": counts.take_rows()}
        known |= {name: getattr(counts, name) for name in ("row_totals", "groups", "sample_names")}
        known["counts"] = counts.in_memory().data
    return {
        name: (value.dtype, value.tolist() if value.dtype == object else value.tobytes())
        if isinstance(value, np.ndarray) else repr(value)
        for name, value in known.items()
    }

path, chance = Path(sys.argv[1]), np.random.default_rng(0)
whole, expected, found = path.read_bytes(), contents(path), 0
for at in chance.integers(0, len(whole), int(sys.argv[2])):
    content = bytearray(whole)
    content[at] ^= 1 << chance.integers(8)
    path.write_bytes(content)
    faulthandler.dump_traceback_later(20, exit=True)
    try:
        assert contents(path) == expected
    except (ValueError, OSError) as error:
        assert path.name in str(error)
        found += 1
    faulthandler.cancel_dump_traceback_later()
print(found)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["model", "store"])
def test_flipped_bits_anywhere(tmp_path, kind, store):
    path = store if kind == "store" else write("model", tmp_path)[0]
    assert int(run(FLIPPED, path, 300, limit=300)) > 100


@pytest.mark.slow
def test_datasets_that_are_missing(tmp_path, store):
    needed = [*datasets_of(store), "values", "names", "names/sample"]
    assert len(needed) > 25
    for at, name in enumerate(needed):
        path = tmp_path / f"{at}.nmf"
        shutil.copy(store, path)
        with h5py.File(path, "r+") as file:
            del file[name]
        with pytest.raises(DamagedStoreError, match=f"{path.name}.*{name.split('/')[-1]}"):
            StoredCounts(path)
    checkpoint = save_checkpoint(tmp_path / "state")
    whole = checkpoint.read_bytes()
    for name in datasets_of(checkpoint):
        checkpoint.write_bytes(whole)
        with h5py.File(checkpoint, "r+") as file:
            del file[name]
        with pytest.raises(CheckpointError, match=f"no checkpoint can be read.*{name}"):
            resume(tmp_path / "state")
