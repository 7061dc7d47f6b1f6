"""Counts in memory: what is accepted, what is refused and how; simulated counts."""

import pickle
import re
import tracemalloc
import warnings

import dask.bag as bag
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nmfscale.counts.memory import Counts
from nmfscale.datasets.simulate import (
    simulate_from_factors,
    simulate_poisson_nmf,
    simulate_topic_counts,
)
from nmfscale.readers.open import as_counts, read_counts
from nmfscale.storage.store_writer import pack

TABLE = np.array([[0, 2, 1, 0], [3, 0, 0, 0], [0, 0, 0, 0], [0, 7, 0, 5]])
TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32 float64".split()
STORED = {
    "bool": "uint8",
    "int8": "uint8",
    "int16": "uint16",
    "uint64": "int64",
    "float16": "float32",
    "longdouble": "float64",
}


def dense(counts):
    """Write counts out, so that duplicates would show."""
    table = np.zeros(counts.shape)
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    np.add.at(table, (rows, counts.indices), counts.data)
    return table


def assert_canonical(counts):
    assert counts.indptr[0] == 0
    assert counts.indptr[-1] == counts.indices.size == counts.data.size == counts.nnz
    assert (counts.data > 0).all()
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    assert len(set(zip(rows.tolist(), counts.indices.tolist(), strict=True))) == counts.nnz
    for array in (counts.indptr, counts.indices):
        assert array.dtype in (np.int32, np.int64)
    assert str(counts.dtype) in {
        "uint8",
        "uint16",
        "uint32",
        "int32",
        "int64",
        "float32",
        "float64",
    }
    for array in (counts.indptr, counts.indices, counts.data):
        assert array.flags.c_contiguous and array.dtype.isnative and not array.flags.writeable
        assert type(array) is np.ndarray


# ---------------------------------------------------------------------------
# What is accepted


@pytest.mark.parametrize("dtype", [*TYPES, "float16", "longdouble"])
def test_dense_arrays_of_any_type(dtype):
    X = TABLE.astype(dtype)
    counts = as_counts(X)
    assert_canonical(counts)
    np.testing.assert_array_equal(dense(counts), X)
    assert counts.dtype == STORED.get(dtype, dtype)
    assert counts.is_integer and counts.has_sorted_indices


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["matrix", "array"])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
def test_sparse_containers_of_any_type(dtype, kind, layout):
    X = getattr(sp, f"{layout}_{kind}")(TABLE.astype(dtype))
    counts = as_counts(X)
    assert_canonical(counts)
    np.testing.assert_array_equal(dense(counts), TABLE.astype(dtype))
    assert counts.dtype == STORED.get(dtype, dtype)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("of_indptr", [np.int32, np.int64])
@pytest.mark.parametrize("of_indices", [np.int32, np.int64])
def test_compressed_rows_are_used_as_they_are(dtype, of_indptr, of_indices):
    X = sp.csr_matrix(TABLE.astype(dtype))
    X.indptr, X.indices = X.indptr.astype(of_indptr), X.indices.astype(of_indices)
    for array in (X.indptr, X.indices, X.data):
        array.flags.writeable = False
    counts = as_counts(X)
    assert_canonical(counts)
    for name in ("indptr", "indices", "data"):
        assert np.shares_memory(getattr(counts, name), getattr(X, name))


def test_lists_fortran_order_and_slices():
    for X in (TABLE.tolist(), np.asfortranarray(TABLE), TABLE[::-1][::-1]):
        np.testing.assert_array_equal(dense(as_counts(X)), TABLE)


def test_foreign_byte_order_and_strided_parts():
    X = sp.csr_array(TABLE)
    X.data = np.repeat(X.data, 2)[::2].astype(">i4")
    X.indices = X.indices.astype(">i8")
    counts = as_counts(X)
    assert_canonical(counts)
    np.testing.assert_array_equal(dense(counts), TABLE)


def test_memory_mapped_arrays(tmp_path):
    X = sp.csr_array(TABLE.astype(np.float32))
    parts = {}
    for name in ("data", "indices", "indptr"):
        np.save(tmp_path / f"{name}.npy", getattr(X, name))
        parts[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    X.data, X.indices, X.indptr = parts["data"], parts["indices"], parts["indptr"]
    counts = as_counts(X)
    assert_canonical(counts)
    assert np.shares_memory(counts.data, parts["data"])
    np.save(tmp_path / "dense.npy", TABLE)
    np.testing.assert_array_equal(
        dense(as_counts(np.load(tmp_path / "dense.npy", mmap_mode="r"))), TABLE
    )


def test_unsorted_rows_stay_as_they_are():
    X = sp.csr_array(
        (np.array([1, 2, 3, 4]), np.array([3, 0, 2, 1]), np.array([0, 3, 3, 4])), shape=(3, 4)
    )
    counts = as_counts(X)
    assert not counts.has_sorted_indices
    assert np.shares_memory(counts.indices, X.indices)
    np.testing.assert_array_equal(dense(counts), X.toarray())


def test_descending_from_one_row_to_the_next_is_sorted():
    X = sp.csr_array(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]]))
    assert as_counts(X).has_sorted_indices


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("float32", [2**24, 1], "float64"),
        ("float32", [2**24, 2], "float32"),
        ("float32", [0.5, 2**24], "float64"),
        ("int64", [2**53 - 1, 1], "int64"),
        ("float64", [2**53 - 1, 1], "float64"),
        ("int64", [2**53, 1], None),
        ("uint64", [2**53, 1], None),
        ("float64", [2**53, 1], None),
        ("int64", [2**53] * 1024, None),
    ],
)
def test_sums_of_duplicates_are_exact_or_refused(dtype, values, expected):
    zeros = np.zeros(len(values), int)
    X = sp.coo_array((np.array(values, dtype), (zeros, zeros)), shape=(1, 2))
    if expected is None:
        with pytest.raises(ValueError, match=r"above 2\*\*53 .*row 0, column 0 holds"):
            as_counts(X)
    else:
        counts = as_counts(X, integer="allow")
        assert (counts.data.tolist(), counts.dtype) == ([sum(values)], expected)
        assert counts.take_rows().dtype == expected


@pytest.mark.parametrize("container", [sp.csr_matrix, sp.csr_array, sp.coo_array, sp.csc_matrix])
@pytest.mark.parametrize("dtype", TYPES)
def test_duplicates_are_added_up_beyond_the_range_of_their_type(container, dtype):
    high = (
        1
        if dtype == "bool"
        else min(int(np.finfo(dtype).max if dtype[0] == "f" else np.iinfo(dtype).max), 200)
    )
    rows, columns = np.array([0, 0, 0, 1, 0]), np.array([2, 1, 2, 0, 2])
    values = np.array([high, 1, high, 1, high]).astype(dtype)
    if container is sp.coo_array:
        X = sp.coo_array((values, (rows, columns)), shape=(2, 3))
    elif container is sp.csc_matrix:
        X = sp.csc_matrix((2, 3), dtype=dtype)
        X.indptr, X.indices, X.data = (
            np.array([0, 1, 2, 5]),
            rows[[3, 1, 0, 2, 4]],
            values[[3, 1, 0, 2, 4]],
        )
    else:
        X = container(
            (values[[0, 1, 2, 4, 3]], columns[[0, 1, 2, 4, 3]], np.array([0, 4, 5])), shape=(2, 3)
        )
    before = X.data.copy()
    counts = as_counts(X)
    assert_canonical(counts)
    np.testing.assert_array_equal(dense(counts), [[0, 1, 3 * high], [1, 0, 0]])
    np.testing.assert_array_equal(X.data, before)
    assert counts.notes == ("2 duplicate entries were added up",)


@pytest.mark.parametrize("container", [sp.coo_array, sp.csr_array])
def test_every_duplicate_has_to_be_a_count(container):
    triplets = sp.coo_array(([5, -3], ([1, 1], [2, 2])), shape=(2, 3))
    indptr, indices = [0, 0, 2], [2, 2]
    X = triplets if container is sp.coo_array else container(([5, -3], indices, indptr), (2, 3))
    with pytest.raises(ValueError, match="Negative values.*row 1, column 2 holds -3"):
        as_counts(X)


@pytest.mark.nightly
def test_many_duplicates_are_added_up_without_rounding():
    n = 2**24 + 1000  # float32 counts to 2**24
    zeros = np.zeros(n, np.int32)
    X = sp.coo_array((np.ones(n, np.float32), (zeros, zeros)), shape=(1, 1))
    assert as_counts(X).total == n


def test_duplicates_may_add_up_to_whole_numbers():
    X = sp.csr_array((np.array([0.5, 0.5]), np.array([1, 1]), np.array([0, 2])), shape=(1, 2))
    assert as_counts(X).is_integer


def test_explicit_zeros_are_left_out_of_a_copy():
    X = sp.csr_array(TABLE.astype(np.float32))
    X.data[[0, 3]] = 0
    X.data[3] = -0.0
    before = X.data.copy()
    counts = as_counts(X)
    assert_canonical(counts)
    assert counts.nnz == 3 and counts.dtype == np.float32
    np.testing.assert_array_equal(dense(counts), X.toarray())
    np.testing.assert_array_equal(X.data, before)
    assert counts.notes == ("2 explicit zeros were left out",)


def test_entries_after_the_last_pointer_are_ignored():
    X = sp.csr_array(TABLE)
    X.data, X.indices = np.append(X.data, -9), np.append(X.indices, 77)
    np.testing.assert_array_equal(dense(as_counts(X)), TABLE)


def test_flags_that_scipy_remembers_are_not_believed():
    X = sp.csr_array((np.array([1, 2]), np.array([1, 1]), np.array([0, 2])), shape=(1, 2))
    X.has_canonical_format = True
    assert as_counts(X).nnz == 1


def test_all_zero_counts_are_legal():
    for X in (np.zeros((2, 3)), sp.csr_array((2, 3), dtype=np.uint8)):
        counts = as_counts(X)
        assert (counts.nnz, counts.total, counts.largest) == (0, 0.0, 0.0)
        assert (counts.n_empty_rows, counts.n_empty_columns) == (2, 3)
        assert not counts.row_totals.any() and not counts.column_totals.any()
        assert "0.000%" in counts.report()


def test_objects_that_are_numbers():
    counts = as_counts(TABLE.astype(object))
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.dtype == np.float64


def test_counts_come_back_as_they_are():
    counts = as_counts(TABLE)
    assert as_counts(counts) is counts
    fractions = as_counts(TABLE / 2, integer="allow")
    assert as_counts(fractions) is fractions
    with pytest.raises(ValueError, match="not whole numbers"):
        as_counts(fractions, integer="require")


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.int32, np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.integers(0, 120),
    ),
    st.randoms(use_true_random=False),
)
def test_any_order_of_entries_gives_the_same_counts(X, random):
    cells = [(i, j, X[i, j]) for i, j in np.ndindex(*X.shape) for _ in range(random.randint(0, 2))]
    random.shuffle(cells)
    expected = np.zeros(X.shape)
    for i, j, value in cells:
        expected[i, j] += value
    cells.sort(key=lambda cell: cell[0])
    rows, columns, values = (
        (list(part) for part in zip(*cells, strict=True)) if cells else ([],) * 3
    )
    indptr = np.searchsorted(rows, np.arange(X.shape[0] + 1))
    compressed = sp.csr_array(
        (np.array(values, dtype=X.dtype), np.array(columns, dtype=np.int32), indptr), shape=X.shape
    )
    for given_counts in (compressed, sp.csc_array(expected), expected):
        counts = as_counts(given_counts)
        assert_canonical(counts)
        np.testing.assert_array_equal(dense(counts), expected)
        np.testing.assert_array_equal(counts.row_totals, expected.sum(axis=1))
        np.testing.assert_array_equal(counts.column_totals, expected.sum(axis=0))
        np.testing.assert_array_equal(counts.row_nnz, (expected > 0).sum(axis=1))
        np.testing.assert_array_equal(counts.column_nnz, (expected > 0).sum(axis=0))
        assert counts.total == expected.sum() and counts.largest == expected.max()
        assert counts.n_empty_rows == (~expected.any(axis=1)).sum()
        assert counts.n_empty_columns == (~expected.any(axis=0)).sum()


def test_totals_over_many_chunks():
    rng = np.random.default_rng(0)
    shape = 3000, 400
    X = sp.csr_array(rng.random(shape, np.float32) * (rng.random(shape) < 0.5))
    X.data = np.ceil(X.data * 9)
    counts = as_counts(X)
    assert counts.nnz > 2**19
    np.testing.assert_array_equal(counts.column_totals, X.sum(axis=0, dtype=np.float64))
    np.testing.assert_array_equal(counts.row_totals, X.sum(axis=1, dtype=np.float64))
    np.testing.assert_array_equal(counts.column_nnz, np.bincount(X.indices))
    X.data[-3] = np.nan
    with pytest.raises(ValueError, match=f"row 2999, column {X.indices[-3]} holds nan"):
        as_counts(X)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int32, np.int64])
def test_totals_larger_than_the_type_of_the_counts(dtype):
    largest = min(np.iinfo(dtype).max, 2**52)
    X = np.array([[largest, largest], [0, 0], [1, 2]], dtype)
    np.testing.assert_array_equal(as_counts(X).row_totals, [2.0 * largest, 0.0, 3.0])


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
def test_nothing_as_large_as_the_counts_is_made(dtype):
    indptr = np.arange(0, 2_000_001, 500)
    indices = np.tile(np.arange(500, dtype=np.int32), 4000)
    X = sp.csr_array((np.ones(2_000_000, dtype=dtype), indices, indptr), shape=(4000, 500))
    tracemalloc.start()
    counts = as_counts(X)
    assert counts.column_totals.sum() == counts.row_totals.sum() == 2_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000


def test_counts_can_be_pickled():
    counts = as_counts(TABLE)
    np.testing.assert_array_equal(dense(pickle.loads(pickle.dumps(counts))), TABLE)


# ---------------------------------------------------------------------------
# Names: DataFrames, AnnData, labels


def test_data_frames():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(TABLE, columns=list("abcd"), index=["w", "x", "y", "z"])
    for X in (
        frame,
        frame.astype(pd.SparseDtype("int32", 0)),
        frame.astype("Int64"),
        frame.astype({"a": bool, "b": np.uint8}),
        frame.astype(pd.SparseDtype("int32", 1)),
    ):
        counts = as_counts(X)
        assert list(counts.feature_names) == list("abcd")
        assert list(counts.sample_names) == list("wxyz")
        np.testing.assert_array_equal(dense(counts), X.to_numpy(dtype=float))
    unnamed = as_counts(pd.DataFrame(TABLE))
    assert unnamed.feature_names is None and unnamed.sample_names is None
    with pytest.raises(ValueError, match=r"Input X contains NaN.*row 1 \('x'\), column 2 \('c'\)"):
        as_counts(
            frame.astype("Int64").mask(
                lambda table: (table == 0) & (table.index == "x")[:, None] & (table.columns == "c")
            )
        )
    with pytest.raises(ValueError, match="not a number: row 0.*column 1"):
        as_counts(frame.astype(object).where(frame != 2, "two"))
    with pytest.raises(ValueError, match=r"not a number: row 0 \('w'\), column 4 \('day'\)"):
        as_counts(frame.assign(day=pd.Timestamp("2026-01-01")))
    with pytest.raises(ValueError, match="Expected 2D array"):
        as_counts(frame["a"])


@pytest.fixture
def adata():
    anndata = pytest.importorskip("anndata")
    pd = pytest.importorskip("pandas")
    return anndata.AnnData(
        X=sp.csr_matrix(np.log1p(TABLE)),
        obs=pd.DataFrame({"kind": pd.Categorical(["t", "b", None, "t"])}, index=list("wxyz")),
        var=pd.DataFrame(index=list("abcd")),
        layers={"counts": sp.csr_matrix(TABLE)},
    )


def test_annotated_data(adata):
    counts = as_counts(adata, layer="counts")
    assert counts.sample_names.tolist() == list("wxyz")
    assert counts.feature_names.tolist() == list("abcd")
    np.testing.assert_array_equal(dense(counts), TABLE)
    with pytest.warns(UserWarning, match=r"row 0 \('w'\), column 1 \('b'\) holds 1\.0986"):
        as_counts(adata)
    view = as_counts(adata[["z", "w"], ["b", "d"]], layer="counts")
    np.testing.assert_array_equal(dense(view), TABLE[[3, 0]][:, [1, 3]])
    with pytest.raises(ValueError, match="No layer 'raw'.*its layers: 'counts'"):
        as_counts(adata, layer="raw")
    adata.X = None
    with pytest.raises(ValueError, match="no X; choose one of its layers: 'counts'"):
        as_counts(adata)


def test_raw_of_annotated_data_is_no_table(adata):
    adata.raw = adata[:, :3]
    with pytest.raises(ValueError, match=r"X is a Raw.* Pass adata\.raw\.X or adata\.raw\.to_ad"):
        as_counts(adata.raw)
    for table in (adata.raw.X, adata.raw.to_adata()):
        assert as_counts(table, integer="allow").shape == (4, 3)


def test_layer_needs_annotated_data():
    with pytest.raises(ValueError, match="layer='counts' does not apply to ndarray"):
        as_counts(TABLE, layer="counts")


def test_labels_must_fit():
    counts = as_counts(TABLE)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\), but there are 4 rows"):
        Counts(counts.indptr, counts.indices, counts.data, counts.shape, groups=[1, 2, 3])


def test_report_says_what_was_found():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(TABLE, columns=["a", "b", "b", "c"])
    text = as_counts(frame).report()
    for part in (
        "4 x 4",
        "5 (31.250%)",
        "integer, int64",
        "total 18, largest 7",
        "1 rows, 0 columns",
        "4, only 3 different",
    ):
        assert part in text
    with pytest.warns(UserWarning, match="not whole"):
        text = as_counts(TABLE / 2).report()
    assert "not integer (row 0, column 2 holds 0.5)" in text
    assert repr(as_counts(TABLE)) == "<Counts 4 x 4, 5 nonzero, int64>"


# ---------------------------------------------------------------------------
# What is refused


def with_entry(value, dtype=np.float64):
    X = TABLE.astype(dtype)
    X[1, 2] = value
    return X


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "Input X contains NaN"),
        (np.inf, "Input X contains infinity"),
        (-np.inf, "Input X contains infinity"),
        (-1, "Negative values in data passed to Model"),
        (2.0**54, r"above 2\*\*53"),
    ],
)
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_what_cannot_be_a_count_is_named(value, message, container):
    with pytest.raises(
        ValueError, match=rf"{message}.*row 1, column 2 holds {re.escape(str(value))}"
    ) as error:
        as_counts(container(with_entry(value)), subject="Model")
    assert ";" in str(error.value), "no remedy"


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_whole_numbers_end_at_two_to_the_53(dtype):
    assert as_counts(with_entry(2**53, dtype)).largest == 2.0**53
    with pytest.raises(ValueError, match=f"holds {2**53 + 1}"):
        as_counts(with_entry(2**53 + 1, dtype))


def test_integer_counts_may_be_warned_of_allowed_or_refused():
    X = TABLE / 2
    with pytest.warns(UserWarning, match="row 0, column 2 holds 0.5") as caught:
        as_counts(X)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not as_counts(X, integer="allow").is_integer
        as_counts(TABLE.astype(float))
    with pytest.raises(ValueError, match="row 0, column 2 holds 0.5"):
        as_counts(X, integer="require")
    with pytest.raises(ValueError, match="integer='no'"):
        as_counts(X, integer="no")


def test_fractions_are_said_of_what_holds_them(tmp_path, adata):
    """The model holds none; and raw counts may have been meant."""
    sp.save_npz(tmp_path / "a.npz", sp.csr_array(TABLE / 2))
    pack(as_counts(TABLE / 2, integer="allow"), tmp_path / "a.nmf")
    dask = pytest.importorskip("dask.array").from_array(TABLE / 2)
    advice = r"Pass the raw counts \(for AnnData: perhaps in a layer or raw\), or integer='allow'"
    for use, holder in [
        (lambda: as_counts(TABLE / 2), "X"),
        (lambda: as_counts(dask), "X"),
        (lambda: as_counts(TABLE / 2, subject="PoissonNMF"), "X passed to PoissonNMF"),
        (lambda: as_counts(adata, subject="PoissonNMF"), "X passed to PoissonNMF"),
        (lambda: as_counts(tmp_path / "a.npz"), f"{tmp_path}/a.npz"),
        (lambda: as_counts(tmp_path / "a.nmf", in_memory=False), f"{tmp_path}/a.nmf"),
        (lambda: read_counts(tmp_path / "a.nmf"), f"{tmp_path}/a.nmf"),
        (lambda: read_counts(adata), "X"),
        (lambda: read_counts(TABLE / 2), "X"),
    ]:
        with pytest.warns(UserWarning, match=f"^{holder} holds counts that .*{advice}") as caught:
            use()
        assert len([each for each in caught if "holds" in str(each.message)]) == 1


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array, sp.csc_array, sp.coo_matrix])
def test_complex_counts(container):
    with pytest.raises(ValueError, match="Complex data not supported"):
        as_counts(container(TABLE + 1j))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (5, "Expected 2D array, got scalar"),
        (None, "Expected 2D array, got scalar array instead: X is a NoneType"),
        (np.arange(3), "Expected 2D array, got 1D array instead(.|\n)*Reshape your data"),
        (np.zeros((2, 2, 2)), "Found array with dim 3"),
        (sp.coo_array(np.arange(3)), "Expected 2D array, got 1D"),
        (np.zeros((0, 3)), r"0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is required"),
        (np.zeros((12, 0)), r"0 feature\(s\) \(shape=\(12, 0\)\) while a minimum of 1 is required"),
        (sp.csr_array((0, 3)), r"0 sample\(s\)"),
        (np.array([["a", "b"]]), r"row 0, column 0 holds .*'a'.*dtype='numeric' is not compatible"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), "has dtype datetime64"),
        (np.ma.masked_equal(TABLE, 7), "masked entries"),
    ],
)
def test_what_is_no_table_of_numbers(X, message):
    with pytest.raises(ValueError, match=message):
        as_counts(X)


def test_messages_say_what_was_passed_to_an_estimator():
    for X in (np.ma.masked_equal(TABLE, 7), np.array([["a", "b"]]), 1j * TABLE):
        with pytest.raises(ValueError, match="X passed to PoissonNMF has "):
            as_counts(X, subject="PoissonNMF")


@pytest.mark.parametrize("value", [{"foo": "bar"}, "two", [1], 1j])
def test_objects_that_are_no_numbers(value):
    X = TABLE.astype(object)
    X[1, 2] = value
    for kind in (ValueError, TypeError):
        with pytest.raises(kind, match="row 1, column 2 holds"):
            as_counts(X)


@pytest.mark.parametrize(
    "form",
    [
        lambda text: [text, text],
        lambda text: [[text], [text]],
        lambda text: np.array([[1, text]], object),
        lambda text: np.array([text], object),
        lambda text: np.array([text.encode()]),
        lambda text: pytest.importorskip("pandas").DataFrame({"text": [text], "n": [1]}),
        lambda text: pytest.importorskip("pandas").Series([text]),
    ],
)
def test_texts_are_to_be_counted_first(form):
    with pytest.raises(ValueError, match=r"count the words of texts.*CountVectorizer") as caught:
        as_counts(form("many words " * 10_000))
    assert len(str(caught.value)) < 300


def test_message_for_objects_is_what_scikit_learn_looks_for():
    with pytest.raises(TypeError, match="argument must be .* string.* number"):
        as_counts(np.array([[{"foo": "bar"}, 1]], dtype=object))


def test_a_dask_collection_that_is_no_array_is_refused():
    with pytest.raises(TypeError, match=r"\.compute\(\)"):
        as_counts(bag.from_sequence([1, 2]))


def corrupt(form, **parts):
    X = getattr(sp, f"{form}_array")(TABLE)
    for name, change in parts.items():
        setattr(X, name, change(getattr(X, name).copy()))
    return X


def replaced(at, value):
    def change(array):
        array[at] = value
        return array

    return change


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"indices": replaced(1, 4)}, "entry 1 of indices is 4, outside 0 to 3"),
        ({"indices": replaced(0, -1)}, "entry 0 of indices is -1"),
        (
            {"indices": lambda indices: indices.astype(float)},
            "indices is not a 1-d array",
        ),
        ({"indptr": replaced(1, 9)}, "indptr falls after entry 1"),
        ({"indptr": replaced(0, 1)}, "starts at 1"),
        ({"indptr": replaced(-1, 99)}, "ends at 99"),
        ({"indptr": lambda indptr: indptr[:-1]}, "indptr has 4 entries, not 5"),
        ({"data": lambda data: data[:-2]}, "3 values"),
    ],
)
def test_corrupt_compressed_matrices(form, parts, message):
    with pytest.raises(ValueError, match=f"Corrupt sparse matrix Model: .*{message}"):
        as_counts(corrupt(form, **parts), subject="Model")


def test_corrupt_triplets():
    X = sp.coo_array(TABLE)
    X.coords = (X.coords[0] + 10**6, X.coords[1])
    with pytest.raises(ValueError, match="entry 0 of row is 1000000"):
        as_counts(X)
    X = sp.coo_array(TABLE)
    X.data = X.data[:2]
    with pytest.raises(ValueError, match="differ in length"):
        as_counts(X)


# ---------------------------------------------------------------------------
# Simulated counts


def test_simulated_counts_have_the_expected_means():
    rng = np.random.default_rng(1)
    L, F = rng.gamma(0.5, size=(4, 3)), rng.gamma(0.5, size=(6, 3))
    expected = L @ F.T
    times = 4000
    X = simulate_from_factors(np.tile(L, (times, 1)), F, random_state=2)
    assert (X.dtype, X.indices.dtype) == (np.int32, np.int32)
    assert X.has_canonical_format and (X.data > 0).all()
    table = X.toarray().reshape(times, 4, 6)
    error = np.sqrt(expected / times)
    assert (np.abs(table.mean(axis=0) - expected) < 5 * error).all()
    assert (
        np.abs(table.var(axis=0) - expected) < 5 * np.sqrt((expected + 2 * expected**2) / times)
    ).all()


def test_large_counts_are_drawn_as_small_ones():
    L, F = np.array([[3e6, 0.0], [1.0, 20.0]]), np.array([[0.5, 0.0], [0.5, 0.9], [0.0, 0.1]])
    X = simulate_from_factors(L, F, random_state=0).toarray()
    assert X[0, 2] == 0
    np.testing.assert_allclose(X[0, :2], 1.5e6, rtol=5e-3)


def test_simulation_in_chunks_covers_every_row():
    L, F = np.ones((101, 2)), np.ones((7, 2))
    for chunk_rows in (1, 10, 101, 500, None):
        X = simulate_from_factors(L, F, random_state=3, chunk_rows=chunk_rows)
        assert X.shape == (101, 7)
        assert abs(X.sum() - 1414) < 5 * np.sqrt(1414)
        again = simulate_from_factors(L, F, random_state=3, chunk_rows=chunk_rows)
        assert (X != again).nnz == 0


def test_nothing_expected_gives_nothing():
    X = simulate_from_factors(np.zeros((3, 2)), np.ones((4, 2)), random_state=0)
    assert X.nnz == 0 and X.shape == (3, 4)
    X = simulate_from_factors(np.ones((3, 2)), np.array([[0.0, 2], [0, 0]]), random_state=0)
    assert X[:, [1]].nnz == 0


def test_simulated_poisson_nmf():
    X, truth = simulate_poisson_nmf(300, 80, 4, size=150, random_state=5)
    assert X.shape == (300, 80)
    np.testing.assert_allclose(truth.L.mean(axis=0), np.full(4, truth.F.mean()))
    np.testing.assert_allclose((truth.L @ truth.F.T).sum() / 300, 150)
    assert abs(X.sum() - 45000) < 5 * np.sqrt(45000)
    again, _ = simulate_poisson_nmf(300, 80, 4, size=150, random_state=5)
    assert (X != again).nnz == 0
    as_counts(X, integer="require")


def test_simulated_topic_counts():
    X, truth = simulate_topic_counts(200, 60, 3, size=100, random_state=np.random.RandomState(0))
    np.testing.assert_array_equal(X.sum(axis=1), truth.sizes)
    np.testing.assert_allclose(truth.L.sum(axis=1), 1)
    np.testing.assert_allclose(truth.F.sum(axis=0), 1)
    assert (truth.L.shape, truth.F.shape) == ((200, 3), (60, 3))
    _, extreme = simulate_topic_counts(5, 4, 3, loadings_concentration=1e-6, random_state=0)
    np.testing.assert_allclose(extreme.L.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate_poisson_nmf(0, 3, 2), "n_samples=0"),
        (lambda: simulate_poisson_nmf(3, 3, 2, size=-1), "size=-1"),
        (lambda: simulate_topic_counts(3, 3, 2, factors_concentration=0), "factors_concentration"),
        (lambda: simulate_from_factors([[1, -1]], [[1, 1]]), r"L\[0, 1\] is -1"),
        (lambda: simulate_from_factors([[1, 1]], [[1, np.nan]]), r"F\[0, 1\] is nan"),
        (lambda: simulate_from_factors([[1, 1]], [[1]]), "L has 2 components, F has 1"),
        (lambda: simulate_from_factors([1], [[1]]), "L has shape"),
        (lambda: simulate_from_factors([[1]], [[1]], chunk_rows=0), "chunk_rows=0"),
        (lambda: simulate_from_factors([[1e12]], [[1]]), "1e.12 counts"),
        (
            lambda: simulate_from_factors([[0] * 3, [1e9] * 3], [[0] * 3, [1] * 3]),
            r"Row 1, column 1 gets \d,\d{3},\d{3},\d{3} counts, but int32 holds",
        ),
        (
            lambda: simulate_topic_counts(3, 3, 2, size=1e11),
            "column . gets .* counts, but int32 holds",
        ),
    ],
)
def test_simulation_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
