"""Blocks and slices: every nonzero has its place once; the matrix alone makes the cut."""

import gc
import weakref

import internals
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import gammaln, xlogy

from nmfscale.counts.blocks import Layout, cut_blocks
from nmfscale.counts.memory import MemoryRows
from nmfscale.counts.row_ranges import RowRange
from nmfscale.counts.sell import LANES, type_of_products
from nmfscale.readers.open import as_counts


def build_layout(counts, n_threads=1):
    reader = MemoryRows(RowRange(0, counts.indptr, counts.indices, counts.data), counts.shape)
    return Layout(counts, reader, n_threads, has_sorted_indices=counts.has_sorted_indices)


SEVERAL = settings(max_examples=40, deadline=None, derandomize=True)


def counts_of(n=70, m=45, density=0.2, seed=0, largest=9):
    rng = np.random.default_rng(seed)
    X = rng.integers(1, largest + 1, (n, m)) * rng.binomial(1, density, (n, m))
    if n > 4 and m > 4:
        X[3] = X[:, 4] = 0
    return X


@pytest.fixture
def small_blocks(monkeypatch):
    internals.small_blocks(monkeypatch, 100)
    internals.threads_share_small_blocks(monkeypatch)


def unplaced(slices, n_lanes):
    """Dense (lanes, others) matrix from slices; fails where a place is taken twice."""
    assert slices.offset[0] == 0 and len(slices.offset) == n_lanes // LANES + 1
    assert len(slices.index) == len(slices.count) == slices.offset[-1] * LANES
    dense = np.zeros((n_lanes, slices.n_others))
    for s in range(len(slices.offset) - 1):
        steps = slice(slices.offset[s] * LANES, slices.offset[s + 1] * LANES)
        index, count = (a[steps].reshape(-1, LANES) for a in (slices.index, slices.count))
        for lane in range(LANES):
            filled = count[:, lane] > 0
            # Counts come first, padding last.
            assert np.all(filled[:-1] >= filled[1:])
            assert np.all(index[~filled, lane] == 0)
            places, pieces = np.unique(index[filled, lane], return_counts=True)
            np.add.at(dense[s * LANES + lane], index[filled, lane], count[filled, lane])
            # A place is taken as often as its count needs pieces of the type.
            largest = np.iinfo(count.dtype).max if count.dtype.kind == "u" else np.inf
            wanted = np.ceil(dense[s * LANES + lane, places] / largest)
            assert_array_equal(pieces, np.maximum(wanted, 1))
    return dense


def check(X, layout):
    """Rows, columns and whole columns of a layout hold the counts, each once."""
    n, m = X.shape
    rows, columns = layout.row_order, layout.column_order
    assert_array_equal(np.sort(rows[rows >= 0]), np.arange(n))
    assert_array_equal(np.sort(columns[columns >= 0]), np.arange(m))
    seen = np.zeros_like(X)
    for block in layout.blocks:
        order = rows[block.first : block.last]
        here = order >= 0
        assert_array_equal(np.sort(order[here]), np.arange(block.start, block.stop))
        by_rows = unplaced(block.rows, block.last - block.first)
        assert_array_equal(by_rows[~here], 0)
        assert_array_equal(by_rows[here], X[order[here]][:, columns[:m]])
        by_columns = unplaced(block.columns, len(columns))
        assert_array_equal(by_columns[m:], 0)
        assert_array_equal(by_columns[:m].T, by_rows)
        seen[order[here]] += X[order[here]]
    assert_array_equal(seen, X)
    whole = unplaced(layout.whole_columns, len(columns))
    assert_array_equal(whole[:m][:, rows >= 0], X[rows[rows >= 0]][:, columns[:m]].T)
    assert_array_equal(whole[:, rows < 0], 0)


def same(one, other):
    """Whether two layouts agree in every bit."""
    assert_array_equal(one.row_order, other.row_order)
    assert_array_equal(one.column_order, other.column_order)
    pairs = [(one.whole_columns, other.whole_columns)]
    for a, b in zip(one.blocks, other.blocks, strict=True):
        assert (a.start, a.stop, a.first, a.last) == (b.start, b.stop, b.first, b.last)
        pairs += [(a.rows, b.rows), (a.columns, b.columns)]
    for a, b in pairs:
        for name in ("index", "count", "offset"):
            ours, theirs = getattr(a, name), getattr(b, name)
            assert ours.dtype == theirs.dtype
            assert_array_equal(ours, theirs)


# Places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 40), (40, 1), (15, 17), (16, 16), (17, 15), (70, 45)]
)
def test_every_count_has_one_place(shape):
    X = counts_of(*shape, density=0.4)
    X[0, 0] = 2
    layout = build_layout(as_counts(X))
    assert len(layout.blocks) == 1
    check(X, layout)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_every_count_has_one_place_in_many_blocks(small_blocks, n_threads):
    X = counts_of()
    layout = build_layout(as_counts(X), n_threads)
    assert len(layout.blocks) > 5
    check(X, layout)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40), st.integers(1, 60))
@SEVERAL
def test_any_matrix(seed, n, m, size):
    X = counts_of(n, m, density=(seed % 7) / 6, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        internals.small_blocks(patch, size)
        check(X, build_layout(as_counts(X)))


def test_nothing_to_place(small_blocks):
    X = np.zeros((20, 5), int)
    check(X, build_layout(as_counts(X)))


def test_a_dense_row_is_a_block_of_its_own(small_blocks):
    X = np.zeros((5, 300), int)
    X[2] = 1
    X[[0, 4], 7] = 3
    layout = build_layout(as_counts(X))
    assert [(block.start, block.stop) for block in layout.blocks] == [(0, 2), (2, 3), (3, 5)]
    check(X, layout)


def test_long_rows_stand_first():
    X = counts_of()
    layout = build_layout(as_counts(X))
    for nnz, order in (
        ((X > 0).sum(axis=1), layout.row_order),
        ((X > 0).sum(axis=0), layout.column_order),
    ):
        lengths = nnz[order[order >= 0]]
        assert np.all(lengths[:-1] >= lengths[1:])
        ties = lengths[:-1] == lengths[1:]
        assert np.all(order[: len(nnz)][:-1][ties] < order[: len(nnz)][1:][ties])


# Blocks ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 60))
@SEVERAL
def test_a_block_is_as_many_rows_as_its_nonzeros_allow(row_nnz, size):
    with pytest.MonkeyPatch.context() as patch:
        internals.small_blocks(patch, size)
        cuts = cut_blocks(np.array(row_nnz))
    assert cuts[0] == 0 and cuts[-1] == len(row_nnz) and np.all(np.diff(cuts) > 0)
    for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
        assert sum(row_nnz[start:stop]) <= size or stop == start + 1
        if stop < len(row_nnz):
            assert sum(row_nnz[start : stop + 1]) > size


def test_rows_that_follow_do_not_move_a_cut(small_blocks):
    """Blocks of a matrix are blocks of every longer one, but for the last."""
    X = counts_of()
    short, long = (build_layout(as_counts(part)) for part in (X[:50], X))
    stops = [[block.stop for block in layout.blocks] for layout in (short, long)]
    assert stops[0][:-1] == stops[1][: len(stops[0]) - 1]


# The same layout -------------------------------------------------------------------------------


def unsorted(X):
    """CSR with every row's columns in falling order."""
    X = sp.csr_matrix(X)
    for start, stop in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        X.indices[start:stop] = X.indices[start:stop][::-1].copy()
        X.data[start:stop] = X.data[start:stop][::-1].copy()
    X.has_sorted_indices = False
    return X


def with_index_types(X, indptr, indices):
    X = sp.csr_matrix(X)
    X.indptr, X.indices = X.indptr.astype(indptr), X.indices.astype(indices)
    return X


@pytest.mark.parametrize(
    "form",
    [
        unsorted,
        lambda X: with_index_types(X, np.int64, np.int64),
        lambda X: with_index_types(X, np.int64, np.int32),
        lambda X: with_index_types(X, np.int32, np.int64),
        lambda X: with_index_types(unsorted(X), np.int64, np.int64),
        sp.csr_array,
        sp.csc_matrix,
        sp.coo_matrix,
        lambda X: X.astype(np.uint8),
        lambda X: X.astype(np.int32),
        lambda X: X.astype(np.float32),
        lambda X: sp.csr_matrix(X.astype(np.float64)),
        np.asfortranarray,
    ],
)
def test_the_form_of_the_input_does_not_matter(small_blocks, form):
    X = counts_of()
    same(build_layout(as_counts(sp.csr_matrix(X))), build_layout(as_counts(form(X))))


@pytest.mark.parametrize("n_threads", [2, 3, 4, 64])
@pytest.mark.parametrize(("m", "density"), [(45, 0.2), (9, 0.8)])
def test_the_number_of_threads_does_not_matter(small_blocks, n_threads, m, density):
    counts = as_counts(counts_of(m=m, density=density))
    same(build_layout(counts), build_layout(counts, n_threads))


def test_what_threads_count_of_columns_is_no_larger_than_the_counts(monkeypatch):
    shapes = []

    def note(count_columns, indptr, indices, order, cuts, found, n_threads):
        shapes.append(found.shape)
        count_columns(indptr, indices, order, cuts, found, n_threads)

    columns = np.arange(50_000) % 20_000
    X = sp.csr_matrix((np.ones(50_000, np.int8), (np.arange(50_000) // 500, columns)))
    counts = as_counts(X)
    layout = build_layout(counts, 64)
    internals.around_count_columns(monkeypatch, note)
    assert layout.blocks[0].columns.count.sum() == 50_000
    assert shapes == [(2, 20_000)]


def test_the_counts_given_are_not_written_to(small_blocks):
    X = unsorted(counts_of())
    copies = [a.copy() for a in (X.indptr, X.indices, X.data)]
    for array in (X.indptr, X.indices, X.data):
        array.flags.writeable = False
    check(X.toarray(), build_layout(as_counts(X)))
    for array, copy in zip((X.indptr, X.indices, X.data), copies, strict=True):
        assert_array_equal(array, copy)


# Types -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("largest", "dtype", "expected"),
    [
        (255, np.int64, np.uint8),
        (256, np.uint16, np.uint16),
        (65535, np.float64, np.uint16),
        (65536, np.int32, np.float32),
        (2**24, np.uint32, np.float32),
        (2**24 + 1, np.int64, np.float64),
        (2**53, np.int64, np.float64),
        (2.5, np.float32, np.float32),
        (2.5, np.float64, np.float64),
        (0.1, np.float64, np.float64),
    ],
)
def test_counts_are_kept_in_the_smallest_exact_type(largest, dtype, expected):
    X = np.array([[1, 0], [0, largest]], dtype)
    layout = build_layout(as_counts(X, integer="allow"))
    assert layout.count_dtype == expected
    assert layout.blocks[0].rows.count.dtype == layout.blocks[0].columns.count.dtype == expected
    assert layout.blocks[0].rows.count.max() == X.max()


@pytest.mark.parametrize(("m", "expected"), [(65_536, np.uint16), (65_537, np.int32)])
def test_indices_are_two_bytes_while_they_fit(m, expected):
    X = sp.csr_matrix((np.ones(m), np.arange(m), [0, m, m]), shape=(2, m))
    layout = build_layout(as_counts(X))
    rows = layout.blocks[0].rows
    assert rows.index.dtype == expected
    assert_array_equal(rows.index.reshape(-1, LANES)[:, 0], np.arange(m))
    by_columns = build_layout(as_counts(X.T.tocsr())).blocks[0].columns
    assert by_columns.index.dtype == (np.uint16 if m == 65_536 else np.int32)


def mostly_small(large, shape=(70, 45)):
    """Counts up to 9, and some larger ones."""
    X = counts_of(*shape)
    rows, columns = np.nonzero(X)
    at = np.linspace(0, len(rows) - 1, len(large)).astype(int)
    X[rows[at], columns[at]] = large
    return X


@pytest.mark.parametrize(
    ("large", "expected"),
    [
        ([256], np.uint8),
        ([255, 256, 510, 511, 765, 1000], np.uint8),
        ([255 * 60], np.uint16),
        ([65_536, 65_535 * 3, 200_000], np.uint16),
        ([2**21 + 1] * 2, np.float32),
    ],
)
def test_a_few_large_counts_are_split(small_blocks, large, expected):
    X = mostly_small(large)
    for matrix in (X, unsorted(X)):
        layout = build_layout(as_counts(matrix))
        assert layout.count_dtype == expected
        check(X, layout)


@pytest.mark.parametrize(
    ("counts", "weights", "dtype", "expected"),
    [
        (255, [0, 1, 257], np.float32, np.uint16),
        (255, [0, 1, 258], np.float64, np.float32),
        (256, [1, 1, 3], np.float64, np.float32),
        (256, [1, 1, 300], np.float64, np.float64),
        (9, [0, 0.5, 1], np.float32, np.float32),
        (9, [0, 0.1, 3], np.float64, np.float64),
        (2**20, [1, 2, 3], np.float32, np.float32),
        (2**30, [1, 2, 3], np.float64, np.float64),
    ],
)
def test_weighted_counts(small_blocks, counts, weights, dtype, expected):
    """In the smallest exact type, on any number of threads, in memory that was used before."""
    X = counts_of()
    X[X == 9] = counts
    layout = build_layout(as_counts(X))
    given, room = np.resize(np.asarray(weights, float), len(layout.row_order)), []
    for block in layout.blocks:
        columns, of_block = block.columns, given[block.first : block.last]
        found = columns.weighted(of_block, dtype, 1)
        assert found.count.dtype == type_of_products(layout.count_dtype, of_block, dtype)
        plain = columns.count.astype(dtype) * of_block.astype(dtype)[columns.index]
        assert_array_equal(found.count, plain)
        assert_array_equal(columns.weighted(of_block, dtype, 3, room).count, plain)
        assert found.index is columns.index and found.offset is columns.offset
    assert type_of_products(layout.count_dtype, given, dtype) == expected


def test_sums_of_a_function_over_rows():
    X = counts_of()
    for dtype in (np.uint8, np.uint16, np.uint32, np.int32, np.int64, np.float32, np.float64):
        counts = as_counts(unsorted(X.astype(dtype)))
        assert_allclose(counts.row_log_factorials, gammaln(X + 1.0).sum(axis=1), rtol=1e-14)
        assert_allclose(counts.row_x_log_x, xlogy(X, X).sum(axis=1), rtol=1e-14)
    half = as_counts(X / 2, integer="allow")
    assert_allclose(half.row_log_factorials, gammaln(X / 2 + 1).sum(axis=1), rtol=1e-14)


@pytest.mark.parametrize("large", [[9], [300, 300, 511], [70_000]])
def test_how_often_each_count_occurs(small_blocks, large):
    X = mostly_small(large)
    found, often = build_layout(as_counts(X)).count_values()
    values, times = np.unique(X[X > 0], return_counts=True)
    order = np.argsort(found)
    assert_array_equal(found[order], values)
    assert_array_equal(often[order], times)
    assert build_layout(as_counts(X * 1_000_000)).count_values() is None


def test_memory_is_counted():
    layout = build_layout(as_counts(counts_of()))
    block = layout.blocks[0]
    assert layout.nbytes == block.rows.nbytes + block.columns.nbytes
    assert block.rows.nbytes == sum(
        a.nbytes for a in (block.rows.index, block.rows.count, block.rows.offset)
    )


def test_a_layout_goes_with_its_last_name():
    counts = as_counts(counts_of())
    counts.layout().blocks[0].columns  # noqa: B018
    gone = weakref.ref(counts.layout())
    gc.disable()
    try:
        del counts
        assert gone() is None  # without waiting for the collector of cycles
    finally:
        gc.enable()


@pytest.mark.parametrize("largest", [9, 300])
def test_slices_without_zeros_are_dense(largest):
    X = np.random.default_rng(0).integers(1, largest + 1, (37, 35))
    for n_zeros in (0, 8):
        X[range(n_zeros), range(n_zeros)] = 0
        (block,) = build_layout(as_counts(sp.csr_matrix(X))).blocks
        for slices in (block.rows, block.columns):
            assert slices.dense.all() == (not n_zeros)
            index = slices.index.reshape(-1, LANES)
            for s in np.flatnonzero(slices.dense):
                here = slice(slices.offset[s], slices.offset[s + 1])
                q, lane = np.nonzero(slices.count.reshape(-1, LANES)[here])
                assert_array_equal(index[here][q, lane], q)
