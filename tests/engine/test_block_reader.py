"""Blocks that a task reads on a worker: in advance, again from memory, or out of turn."""

import internals
import numpy as np
import pytest
from small_fits import X

from nmfscale.engine.block_reader import BlockReader, Read
from nmfscale.engine.caches import COUNTS, block_file, forget_run
from nmfscale.engine.worker import RunConfig
from nmfscale.readers.open import as_counts
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_writer import pack


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """The layout of a small store, and the configuration of a fit."""
    internals.small_blocks(monkeypatch, 500)
    pack(as_counts(X), tmp_path / "counts.nmf")
    layout = StoredCounts(tmp_path / "counts.nmf").layout()
    store = str(layout.path), str(layout.count_dtype), layout.file.mark
    yield layout, RunConfig("fit-1", "", store, None, 1, "baseline", 0)
    forget_run("fit")


def arrays_of(slices):
    return [np.array(array) for array in (slices.index, slices.count, slices.offset)]


@pytest.mark.parametrize("n_kept", [0, 2, 99])
def test_counts_are_those_of_the_store(stored, monkeypatch, n_kept):
    layout, config = stored
    places = [Read(block, order) for order in ("rows", "columns") for block in layout.blocks]
    places[7] = places[7]._replace(slices=slice(1, 3))
    most_bytes = sum(block.nbytes(order) for block, order, _ in places[:n_kept])
    internals.keep_counts(monkeypatch, most_bytes)
    file, plan = block_file(*config.store), places[:-1]
    wanted = [*plan[:2], *plan[4:], places[-1], places[0]]  # some left out, some not planned
    for _ in range(2):
        before, reader = file.bytes_read, BlockReader(config, plan)
        for read in wanted:
            expected = layout.file.read(read.block, read.order)
            expected = arrays_of(expected if read.slices is None else expected.slices(read.slices))
            for found, array in zip(arrays_of(reader.read(read)), expected, strict=True):
                np.testing.assert_array_equal(found, array)
        reader.close()
    assert (file.bytes_read == before) == (n_kept == 99)
    assert COUNTS.n_bytes_held <= most_bytes
    forget_run("fit")
    assert COUNTS.n_bytes_held == 0
