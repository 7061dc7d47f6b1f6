"""Counts read a range of rows at a time: every format against the matrix in memory."""

import hashlib
import os
import tracemalloc
import zlib

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import (
    write_docword,
    write_h5ad,
    write_mtx,
    write_old_h5ad,
    write_tenx,
    write_text,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from night import at_night

from nmfscale.readers.open import read_counts
from nmfscale.readers.sources.sources import slices
from nmfscale.readers.streams.stream import open_stream


def random_counts(n_rows=57, n_columns=23, density=0.2, dtype=np.int32, seed=0):
    """Counts with an empty first, last and inner row, an empty column and a full row."""
    rng = np.random.default_rng(seed)
    table = rng.integers(1, 200, (n_rows, n_columns)) * (rng.random((n_rows, n_columns)) < density)
    table[[0, n_rows // 2, -1]] = 0
    table[:, n_columns // 2] = 0
    table[3] = np.arange(1, n_columns + 1)
    return sp.csr_array(table.astype(dtype))


COUNTS = random_counts()
TABLE = COUNTS.toarray()
SHUFFLED = np.random.default_rng(1).permutation(COUNTS.nnz)
BY_COLUMNS = np.argsort(COUNTS.tocoo().col, kind="stable")


def reversed_columns(matrix):
    """The same rows, with column numbers in falling order, as Cell Ranger writes them."""
    order = np.concatenate(
        [np.arange(*ends)[::-1] for ends in zip(matrix.indptr, matrix.indptr[1:], strict=False)]
    )
    return sp.csr_array(
        (matrix.data[order], matrix.indices[order], matrix.indptr), shape=matrix.shape
    )


def dense(rows):
    return sp.csr_array((rows.data, rows.indices, rows.indptr), shape=rows.shape).toarray()


def check_piece(piece, table):
    """A piece is canonical, and equals the rows of the table."""
    rows = piece.rows
    assert piece.shape == table.shape
    assert piece.has_sorted_indices and rows.indptr[0] == 0 and (rows.data != 0).all()
    steps = np.diff(rows.indices.astype(np.int64))
    ends = rows.indptr[1:-1]
    inner = np.ones(max(0, rows.indices.size - 1), dtype=bool)
    inner[ends[(ends > 0) & (ends < rows.indices.size)] - 1] = False
    assert (steps[inner] > 0).all()
    np.testing.assert_array_equal(rows.matrix(table.shape[1]).toarray(), table)


def check_stream(path, table, max_bytes=(1, 300, 2000, 10**9), **choices):
    """Pieces of several sizes, ranges and the whole agree with the table; the file is kept."""
    before = hashlib.sha256(path.read_bytes()).digest()
    with open_stream(path, **choices) as stream:
        assert stream.shape == table.shape
        for size in max_bytes:
            next_row = 0
            for piece in stream.chunks(size):
                start, rows = next_row, piece.rows
                assert rows.first == start
                next_row += piece.shape[0]
                check_piece(piece, table[start:next_row])
                widened = rows.data.itemsize > stream.dtype.itemsize and piece.notes
                assert rows.nbytes <= size or piece.shape[0] == 1 or widened
            assert next_row == table.shape[0]
        rng = np.random.default_rng(len(table))
        for start, stop in np.sort(rng.integers(0, len(table) + 1, (20, 2)), axis=1).tolist():
            check_piece(stream.rows(start, stop), table[start:stop])
        for row in (0, len(table) // 2, len(table)):
            check_piece(stream.rows(row, row), table[row:row])
    choices.pop("memory_limit", None)
    counts = read_counts(path, **choices, integer="allow")
    np.testing.assert_array_equal(dense(counts), table)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    return stream


# ---------------------------------------------------------------------------
# HDF5


@pytest.mark.parametrize("at", ["X", "layers/counts", "raw/X"])
@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
def test_h5ad(tmp_path, form, at):
    matrix = TABLE if form == "dense" else COUNTS.asformat(form)
    path = write_h5ad(tmp_path / "a.h5ad", matrix, at=at)
    choices = {"X": {}, "layers/counts": {"layer": "counts"}, "raw/X": {"raw": True}}[at]
    stream = check_stream(path, TABLE, **choices)
    assert stream.dtype == np.int32 and at in stream.subject
    assert stream.about["sample_names"][5] == "obs-5"
    assert stream.about["feature_names"][7] == "var-7"


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_old_h5ad(tmp_path, form):
    stream = check_stream(write_old_h5ad(tmp_path / "a.h5ad", COUNTS.asformat(form)), TABLE)
    assert stream.about["sample_names"][5] == "obs-5"


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "u2", "<u4", ">i4", "i8", "u8", "f2", ">f8"])
@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
def test_types_of_values(tmp_path, form, dtype):
    path, table = tmp_path / "a.h5ad", TABLE.astype(dtype)
    if form == "dense":
        write_h5ad(path, table)
    else:
        write_h5ad(path, COUNTS.asformat(form), data=dtype)
    check_stream(path, table.astype(float), max_bytes=(700,))


@pytest.mark.parametrize(
    "types", [("i4", "i4"), ("i8", "i8"), ("i4", "i8"), ("u4", ">i8"), ("u8", "u8"), ("u2", "i4")]
)
@pytest.mark.parametrize("compression", [None, "gzip", *at_night("lzf")])
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_types_of_indices_and_compression(tmp_path, form, types, compression):
    options = {"chunks": (37,), "maxshape": (None,), "compression": compression}
    write_h5ad(
        tmp_path / "a.h5ad",
        COUNTS.asformat(form),
        indices=types[0],
        indptr=types[1],
        settings=options if compression else None,
    )
    check_stream(tmp_path / "a.h5ad", TABLE, max_bytes=(500,))


@pytest.mark.parametrize("chunks", [(1, 1), (7, 5), (57, 23), (10, 23)])
def test_dense_chunks(tmp_path, chunks):
    options = {"chunks": chunks, "compression": "gzip", "shuffle": True, "fletcher32": True}
    check_stream(write_h5ad(tmp_path / "a.h5ad", TABLE, settings=options), TABLE)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("indices", ["i4", "i8"])
def test_tenx(tmp_path, version, indices):
    # As in small files of Cell Ranger, a chunk is longer than the data.
    options = {"chunks": (80000,), "maxshape": (None,), "compression": "gzip", "shuffle": True}
    path = write_tenx(
        tmp_path / "a.h5", reversed_columns(COUNTS), version, indices=indices, settings=options
    )
    if version == 2:
        assert check_stream(path, TABLE, genome="hg19").about["feature_names"][2] == "var-2"
        return
    check_stream(path, TABLE, feature_type="all")
    kept = np.arange(23) % 3 != 1
    stream = check_stream(path, TABLE[:, kept])
    assert stream.about["feature_names"][1] == "var-2"
    assert "Antibody Capture" in stream.about["notes"][0]
    both = (np.arange(23) % 3 == 1) & (np.arange(23) % 2 == 1)
    check_stream(path, TABLE[:, both], feature_type="Antibody Capture", genome="hg")


def test_pointers_beyond_32_bits(tmp_path):
    """2**31 zeros of the first row, in chunks that are the same 16 KiB, then two short rows."""
    long, chunk = 2**31, 2**24
    packed = zlib.compress(np.zeros(chunk, dtype=np.uint8).tobytes(), 1)
    path = write_h5ad(tmp_path / "a.h5ad", sp.csr_array((4, 200), dtype=np.uint8))
    with h5py.File(path, "a") as file:
        del file["X/data"], file["X/indices"], file["X/indptr"]
        file["X/indptr"] = np.array([0, long, long, long + 2, long + 5], dtype=np.int64)
        for name, values in (("indices", [4, 199, 3, 2, 3]), ("data", [1, 2, 3, 4, 5])):
            data = file["X"].create_dataset(
                name, (long + 5,), np.uint8, chunks=(chunk,), compression="gzip"
            )
            for start in range(0, long, chunk):
                data.id.write_direct_chunk((start,), packed)
            data[long:] = values
    table = np.zeros((3, 200))
    table[1, [4, 199]], table[2, [2, 3]] = [1, 2], [4, 8]
    with open_stream(path) as stream:
        check_piece(stream.rows(1, 4), table)
        check_piece(stream.rows(2, 3), table[1:2])


def test_slices_end_where_chunks_do(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("data", (1000,), "f4", chunks=(64,))
        assert list(slices(data, 70, 400, 150)) == [(70, 128), (128, 256), (256, 384), (384, 400)]
        assert list(slices(data, 5, 5)) == []


# ---------------------------------------------------------------------------
# Text


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("order", [slice(None), SHUFFLED, BY_COLUMNS])
@pytest.mark.parametrize("memory_limit", [2**20, 2**30])
def test_text_formats(tmp_path, suffix, order, memory_limit):
    options = {"memory_limit": memory_limit}
    path = write_mtx(tmp_path / f"a.mtx{suffix}", COUNTS, order=order)
    check_stream(path, TABLE, **options)
    assert check_stream(path, TABLE.T, transpose=True, **options).subject == str(path)
    path = write_docword(tmp_path / f"docword.a.txt{suffix}", COUNTS, order=order)
    assert check_stream(path, TABLE, **options).about["feature_names"] is None
    words = [f"word-{number}" for number in range(23)]
    write_text(tmp_path / f"vocab.a.txt{suffix}", "\n".join(words) + "\n")
    assert check_stream(path, TABLE, **options).about["feature_names"].tolist() == words


@pytest.mark.parametrize("field", ["integer", "unsigned-integer", "real", "double", "pattern"])
def test_fields_of_matrix_market(tmp_path, field):
    path = write_mtx(tmp_path / "a.mtx", COUNTS, field=field, comment="%\n%\n \n")
    stream = check_stream(path, TABLE > 0 if field == "pattern" else TABLE)
    assert read_counts(path).dtype == (np.float64 if field in ("real", "double") else np.int32)
    assert stream.path == path


def test_symmetric_and_array_matrix_market(tmp_path):
    square = (TABLE[:20, :20] + TABLE[:20, :20].T).astype(int)
    lower = sp.coo_array(np.tril(square))
    path = write_mtx(tmp_path / "a.mtx", lower)
    path.write_text(path.read_text().replace("general", "Symmetric"))
    check_stream(path, square)
    head = "%%MATRIXMARKET Matrix ARRAY real {}\n20 20\n"
    by_columns = "".join(f"{value}.0\r\n" for value in square.T.ravel())
    check_stream(write_text(path, head.format("general") + by_columns), square)
    packed = "\n".join(
        str(square[row, column]) for column in range(20) for row in range(column, 20)
    )
    check_stream(write_text(path, head.format("symmetric") + packed), square)
    upright = "".join(f"{value}\n" for value in TABLE.T.ravel())
    write_text(path, "%%MatrixMarket matrix array integer general\n57 23\n" + upright)
    check_stream(path, TABLE)
    check_stream(path, TABLE.T, transpose=True)


def test_large_values_of_text(tmp_path):
    path = write_mtx(tmp_path / "a.mtx", sp.csr_array(TABLE.astype(np.int64) * 2**40))
    assert check_stream(path, TABLE.astype(np.int64) * 2**40).dtype == np.int64
    write_text(path, "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 1e3\n2 1 .5")
    check_stream(path, np.array([[0, 1000], [0.5, 0]]))
    with open_stream(path) as stream:
        assert stream.rows(1, 2).first_fraction == "row 1, column 0 holds 0.5"


def test_npz_and_folder(tmp_path):
    sp.save_npz(tmp_path / "a.npz", reversed_columns(COUNTS))
    check_stream(tmp_path / "a.npz", TABLE)
    check_stream(tmp_path / "a.npz", TABLE.T, transpose=True)
    write_mtx(tmp_path / "matrix.mtx", COUNTS.T)
    (tmp_path / "barcodes.tsv").write_text("".join(f"obs-{n}\n" for n in range(57)))
    kinds = ["Gene Expression", "Antibody Capture"]
    (tmp_path / "features.tsv").write_text(
        "".join(f"id-{n}\tvar-{n}\t{kinds[n % 2]}\n" for n in range(23))
    )
    with open_stream(tmp_path) as stream:
        assert stream.path == tmp_path / "matrix.mtx"
        assert stream.about["feature_names"][1] == "var-2"
        check_piece(stream.rows(0, 57), TABLE[:, ::2])


@pytest.mark.nightly
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_entries_in_any_order_with_duplicates_and_zeros(tmp_path_factory, data):
    n_rows, n_columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6))
    entry = st.tuples(
        st.integers(0, n_rows - 1), st.integers(0, n_columns - 1), st.integers(0, 255)
    )
    entries = np.array(data.draw(st.lists(entry, max_size=40)), dtype=int).reshape(-1, 3)
    table = np.zeros((n_rows, n_columns), dtype=np.int64)
    np.add.at(table, (entries[:, 0], entries[:, 1]), entries[:, 2])
    stored = sp.coo_array((entries[:, 2], (entries[:, 0], entries[:, 1])), shape=table.shape)
    folder = tmp_path_factory.mktemp("any")
    max_bytes = (data.draw(st.integers(1, 600)),)
    check_stream(write_mtx(folder / "a.mtx", stored), table, max_bytes)
    check_stream(write_docword(folder / "docword.a.txt", stored), table, max_bytes)
    for form, major in (("csr", 0), ("csc", 1)):
        turned = entries[np.argsort(entries[:, major], kind="stable")]
        counts = np.bincount(turned[:, major], minlength=table.shape[major])
        kind = sp.csr_array if form == "csr" else sp.csc_array
        indptr = np.concatenate(([0], np.cumsum(counts)))
        values = turned[:, 2].astype(np.uint8), turned[:, 1 - major], indptr
        path = write_h5ad(folder / f"{form}.h5ad", kind(values, shape=table.shape))
        check_stream(path, table, max_bytes)


# ---------------------------------------------------------------------------
# Memory and temporary files


@pytest.fixture(scope="module")
def long_counts():
    """About 12 MB as compressed rows, 400,000 rows."""
    rng = np.random.default_rng(5)
    n_rows, n_entries = 400_000, 1_000_000
    rows = np.sort(rng.integers(0, n_rows, n_entries))
    columns, values = rng.integers(0, 1000, n_entries), rng.integers(1, 9, n_entries)
    return sp.csr_array((values.astype(np.int32), (rows, columns)), shape=(n_rows, 1000))


def peak_of(path, max_bytes, n_names, **options):
    """Memory at its highest beyond the names, and the sums of columns over all pieces."""
    total = np.zeros(1000)
    with open_stream(path, **options) as stream:
        tracemalloc.start()
        try:
            for piece in stream.chunks(max_bytes):
                rows = piece.rows
                total += np.bincount(rows.indices, weights=rows.data, minlength=1000)
            return tracemalloc.get_traced_memory()[1] - n_names * 8, total
        finally:
            tracemalloc.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["csr", "csc", "mtx", "docword"])
def test_memory_is_bounded(tmp_path, scratch, long_counts, form):
    matrix = long_counts[:80_000] if form in ("mtx", "docword") else long_counts
    if form in ("csr", "csc"):
        options = {"chunks": (2**14,), "maxshape": (None,), "compression": "gzip"}
        path = write_h5ad(tmp_path / "a.h5ad", matrix.asformat(form), settings=options)
    elif form == "mtx":
        path = write_mtx(tmp_path / "a.mtx", matrix.T)
    else:
        order = np.random.default_rng(0).permutation(matrix.nnz)
        path = write_docword(tmp_path / "docword.a.txt", matrix, order=order)
    limit, max_bytes = 2**20, 2**17
    choices = {"transpose": True} if form == "mtx" else {}
    choices |= {"memory_limit": limit}
    peak, total = peak_of(path, max_bytes, matrix.shape[0], **choices)
    n_bytes = 8 * matrix.nnz + 8 * matrix.shape[0]
    assert peak < limit + 4 * max_bytes < n_bytes
    if form == "csr":
        assert peak < 8 * max_bytes
    np.testing.assert_array_equal(total, matrix.sum(axis=0))
    assert os.listdir(scratch) == []


def test_real_files(data_dir):
    for name, choices in (
        ("10x_v3_sample.h5", {}),
        ("10x_v2_sample.h5", {}),
        ("pbmc_5k_protein_v3_sample.h5ad", {}),
        ("anndata_v0.5_sample.h5ad", {"raw": True, "groups": "bulk_labels"}),
        ("beer_canada.npz", {}),
    ):
        counts = read_counts(data_dir / name, **choices, integer="allow")
        with open_stream(data_dir / name, **choices) as stream:
            assert (stream.about["groups"] is None) == ("groups" not in choices)
            table = dense(counts)
            for piece in stream.chunks(500_000):
                start = piece.rows.first
                check_piece(piece, table[start : start + piece.shape[0]])
