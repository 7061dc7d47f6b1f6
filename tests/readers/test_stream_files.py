"""What a stream does to the files around it: temporary ones, changed ones."""

import errno
import os
import tempfile

import internals
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_docword, write_h5ad

from nmfscale.readers.streams.stream import fingerprint, open_stream

COUNTS = sp.csr_array(np.arange(1, 41).reshape(10, 4) % 7)


@pytest.fixture
def sound(tmp_path):
    """A sound .h5ad file of compressed rows."""
    return write_h5ad(tmp_path / "a.h5ad", COUNTS)


@pytest.fixture
def temporary_files(monkeypatch):
    """Record the temporary files that are made."""
    made = []
    make = tempfile.TemporaryFile

    def recorded(**options):
        made.append(make(**options))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", recorded)
    return made


@pytest.fixture
def shuffled(tmp_path):
    """A docword file too large for the smallest memory limit."""
    counts = sp.csr_array(np.ones((20000, 3), dtype=np.int64))
    order = np.random.default_rng(0).permutation(counts.nnz)
    return write_docword(tmp_path / "docword.a.txt", counts, order)


def test_the_temporary_folder_is_left_empty(scratch, shuffled, temporary_files):
    options = {"memory_limit": 2**20}
    read_all_of = open_stream(shuffled, **options)
    assert not temporary_files
    next(read_all_of.chunks(100))
    assert len(temporary_files) == 1 and not temporary_files[0].closed
    read_all_of.close()
    assert temporary_files.pop().closed and os.listdir(scratch) == []
    shuffled.write_text(shuffled.read_text() + "1 1 1\n")
    with open_stream(shuffled, **options) as stream:
        with pytest.raises(ValueError, match="60,001 entries"):
            stream.rows(0, 1)
        assert temporary_files.pop().closed and os.listdir(scratch) == []
    with pytest.raises(ValueError, match="memory_limit=1000 must be at least"):
        open_stream(shuffled, memory_limit=1000)


def test_interrupt_leaves_nothing(scratch, shuffled, temporary_files, monkeypatch):
    def interrupted(spill, run, file):
        spill(run, file)
        if file.tell() > 2**19:
            raise KeyboardInterrupt

    internals.around_spill(monkeypatch, interrupted)
    with open_stream(shuffled, memory_limit=2**20) as stream:
        with pytest.raises(KeyboardInterrupt):
            stream.rows(0, 10)
        assert temporary_files[0].closed
        monkeypatch.undo()
        assert stream.rows(0, 10).rows.data.sum() == 30
    assert os.listdir(scratch) == []


def test_full_disk_is_named(scratch, shuffled, temporary_files, monkeypatch):
    def full(spill, run, file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    internals.around_spill(monkeypatch, full)
    with open_stream(shuffled, memory_limit=2**20) as stream:
        said = f"temporary file in {scratch} .No space left.*set TMPDIR.*raise memory_limit"
        with pytest.raises(OSError, match=said) as caught:
            stream.rows(0, 10)
    assert caught.value.errno == errno.ENOSPC and temporary_files[0].closed


@pytest.mark.parametrize("replaced", [False, True])
def test_changed_file(tmp_path, sound, replaced):
    with open_stream(sound) as stream:
        assert stream.fingerprint == fingerprint(sound)
        if replaced:
            os.replace(write_h5ad(tmp_path / "b.h5ad", COUNTS * 2), sound)
        else:
            os.utime(sound, ns=(0, 0))
        uses = (lambda: stream.rows(0, 1), stream.whole, lambda: next(stream.chunks(1)))
        for use in uses:
            with pytest.raises(ValueError, match="a.h5ad was changed since it was opened"):
                use()


def test_fingerprint_samples_large_files(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(3 * 2**20))
    status, before = path.stat(), fingerprint(path)
    for at in (0, 3 * 2**20 - 1):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"1")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert fingerprint(path)[:2] == before[:2] and fingerprint(path) != before


def test_ranges_and_closed_streams(sound):
    stream = open_stream(sound)
    assert stream.rows(4, 4).shape == (0, 4)
    for start, stop in ((-1, 2), (3, 2), (0, 11)):
        with pytest.raises(ValueError, match="are not within 0 to 10"):
            stream.rows(start, stop)
    with pytest.raises(ValueError, match="max_bytes=0 must be positive"):
        next(stream.chunks(0))
    stream.close()
    stream.close()
    with pytest.raises(ValueError, match="a.h5ad .X. is closed"):
        stream.rows(0, 1)
