"""Opening HDF5 files where the system does not play along."""

import errno
import os

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad, write_tenx
from small_fits import X, bits, model

import nmfscale
from nmfscale.readers.open import as_counts

COUNTS = sp.csr_array(X)


def refusing(monkeypatch, number, also_without_locks=False):
    """Let HDF5 refuse to open files as it does when the system says `number`."""
    original = h5py.File

    def opened(name, mode="r", **options):
        if "driver" in options or not isinstance(name, str | os.PathLike):
            return original(name, mode, **options)
        if options.get("locking") is False and not also_without_locks:
            return original(name, mode, **options)
        raise OSError(number, f"Unable to open file (unable to lock file, errno = {number})")

    monkeypatch.setattr(h5py, "File", opened)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, 524, errno.EINVAL])
def test_files_are_read_where_there_are_no_locks(tmp_path, monkeypatch, number):
    paths = [write_h5ad(tmp_path / "a.h5ad", COUNTS), tmp_path / "a.nmf"]
    nmfscale.write_store(COUNTS, paths[1])
    write_tenx(tmp_path / "a.h5", COUNTS, 2)
    fitted = model(max_iter=2).fit(X)
    fitted.save(tmp_path / "model.h5")
    refusing(monkeypatch, number)
    for path in [*paths, tmp_path / "a.h5"]:
        for in_memory in (True, False):
            counts = as_counts(path, in_memory=in_memory)
            np.testing.assert_array_equal(counts.column_totals, COUNTS.sum(axis=0))
    assert bits(nmfscale.load(tmp_path / "model.h5")) == bits(fitted)
    # a store just written is opened, and may be replaced
    assert nmfscale.write_store(COUNTS, paths[1]).nnz == COUNTS.nnz


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EMFILE, errno.EPERM])
def test_what_the_system_refuses_is_no_damage(tmp_path, monkeypatch, number):
    path = write_h5ad(tmp_path / "a.h5ad", COUNTS)
    model(max_iter=2).fit(X).save(tmp_path / "model.h5")
    nmfscale.write_store(COUNTS, tmp_path / "a.nmf")
    refusing(monkeypatch, number, also_without_locks=True)
    for use in (
        lambda: as_counts(path),
        lambda: as_counts(tmp_path / "a.nmf"),
        lambda: nmfscale.load(tmp_path / "model.h5"),
    ):
        with pytest.raises(OSError) as caught:
            use()
        assert caught.value.errno == number and "damaged" not in str(caught.value)


def test_a_file_that_is_open_without_locks(tmp_path):
    path = write_h5ad(tmp_path / "a.h5ad", COUNTS)
    with h5py.File(path, locking=False):
        assert as_counts(path).nnz == COUNTS.nnz
