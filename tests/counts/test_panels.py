"""Panels of columns: the slices of whole columns, wherever the blocks are."""

import internals
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from nmfscale.counts.blocks import cut_panels
from nmfscale.counts.panels import panel_slices
from nmfscale.counts.sell import LANES
from nmfscale.readers.open import as_counts
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_writer import pack


def counts_of(n, m, density, seed, scale=1.0):
    """Counts of which some take several bytes, and some rows and columns are empty."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(2, (n, m)) * (rng.random((n, m)) < density * rng.random(m)) * scale
    X[rng.random((n, m)) < 0.02] *= 300
    X[rng.integers(n), rng.integers(m)] = 5 * scale
    return X


def check_panels(layout, whole):
    """Panels of a layout are the slices of whole columns, in their order, each once."""
    at, found = 0, list(layout.visit_panels())
    for slices, columns in found:
        assert slices.start == at < slices.stop
        at = slices.stop
        expected = whole.slices(slices)
        assert columns.n_others == expected.n_others
        for name in ("index", "count", "offset"):
            ours, theirs = getattr(columns, name), getattr(expected, name)
            assert ours.dtype == theirs.dtype
            assert_array_equal(ours, theirs)
    assert at == len(whole.offset) - 1
    return len(found)


def check_places(X, path, monkeypatch, most):
    internals.small_blocks(monkeypatch, most)
    whole = as_counts(X, integer="allow").layout().whole_columns
    stream = as_counts(X, integer="allow").layout()
    for block in stream.blocks:
        block.keep = False
    pack(as_counts(X, integer="allow"), path)
    stored, kept = StoredCounts(path).layout(), StoredCounts(path).layout()
    kept.keep()
    n_panels = {check_panels(layout, whole) for layout in (stream, stored, kept)}
    assert len(n_panels) == 1
    return len(stored.blocks), n_panels.pop()


@given(
    st.integers(1, 50), st.integers(1, 90), st.floats(0, 1), st.integers(0, 99),
    st.integers(60, 900), st.sampled_from([1, 0.5]),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_panels_are_slices_of_whole_columns(tmp_path_factory, n, m, density, seed, most, scale):
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("panels") / "counts.nmf"
        check_places(counts_of(n, m, density, seed, scale), path, patch, most)


@pytest.mark.parametrize(("m", "most"), [(16, 100), (5, 40), (200, 400)])
def test_many_blocks_and_few_or_many_slices(tmp_path, monkeypatch, m, most):
    X = counts_of(120, m, 0.6, 0)
    X[:, m // 2 :: 3] = 0
    n_blocks, n_panels = check_places(X, tmp_path / "counts.nmf", monkeypatch, most)
    assert n_blocks > 3
    assert n_panels > 3 or m < LANES + 1


def test_panels_are_read_in_stretches(tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, 400)
    pack(as_counts(counts_of(120, 200, 0.6, 0)), tmp_path / "counts.nmf")
    layout = StoredCounts(tmp_path / "counts.nmf").layout()
    panels = layout.panels
    before = layout.bytes_read
    layout.panel(panels[1])
    one = layout.bytes_read - before
    assert 0 < one < sum(block.nbytes("columns") for block in layout.blocks) / 3
    for _ in layout.visit_panels():
        pass
    every = layout.bytes_read - before - one
    ends = 8 * len(panels) * len(layout.blocks)
    assert every <= sum(block.nbytes("columns") for block in layout.blocks) + ends


def test_panels_have_as_many_entries_as_they_may(monkeypatch):
    steps = np.array([9, 3, 3, 3, 1, 0, 0])
    assert panel_slices(steps, 7 * LANES) == [slice(0, 1), slice(1, 3), slice(3, 7)]
    assert panel_slices(steps, 1000) == [slice(0, 7)]
    internals.small_blocks(monkeypatch, 1)
    assert cut_panels(steps[:3]) == [slice(0, 1), slice(1, 2), slice(2, 3)]
