"""Files that are no sound counts: each is refused with an error that says where and why."""

import gzip
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from count_files import (
    write_docword,
    write_h5ad,
    write_mtx,
    write_tenx,
    write_text,
    write_with_unknown_filter,
)

from nmfscale.counts.sizes import MemoryLimitError
from nmfscale.readers.convert import write_store
from nmfscale.readers.open import as_counts, read_counts
from nmfscale.readers.streams.stream import open_stream

TABLE = np.arange(1, 41, dtype=np.int64).reshape(10, 4) % 7
COUNTS = sp.csr_array(TABLE)
HEAD = "%%MatrixMarket matrix coordinate integer general\n"


def read_all(path, **choices):
    with open_stream(path, **choices) as stream:
        for _ in stream.chunks(60):
            pass


def refused(path, message, kind=ValueError, **choices):
    """Both ways of reading refuse the file, without much memory; nothing is written anywhere."""
    before = path.read_bytes()
    tracemalloc.start()
    try:
        for read in (read_all, read_counts):
            with pytest.raises(kind, match=message) as caught:
                read(path, **choices)
            assert path.name in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
    assert path.read_bytes() == before


@pytest.fixture(params=["csr", "csc", "dense"])
def form(request):
    return request.param


@pytest.fixture
def sound(tmp_path):
    """A sound .h5ad file of compressed rows."""
    return write_h5ad(tmp_path / "a.h5ad", COUNTS)


def replace(path, name, values, **options):
    with h5py.File(path, "a") as file:
        del file[name]
        file.create_dataset(name, data=values, **options)


# ---------------------------------------------------------------------------
# Values


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (-3, "i2", "Negative"),
        (-0.5, "f4", "Negative"),
        (np.nan, "f8", "NaN"),
        (np.inf, "f4", "infinity"),
        (2**53 + 1, "i8", r"above 2\*\*53"),
        (2**64 - 1, "u8", r"above 2\*\*53"),
    ],
)
def test_value_in_the_last_row(tmp_path, form, value, dtype, message):
    table = TABLE.astype(dtype)
    table[9, 2] = value
    path = tmp_path / "a.h5ad"
    if form == "dense":
        write_h5ad(path, table)
    else:
        matrix = sp.csr_array(np.where(TABLE == 0, 0, 1)).asformat(form)
        write_h5ad(path, matrix)
        entries = matrix.tocoo()
        replace(path, "X/data", table[entries.row, entries.col])
    refused(path, f"{message}.*row 9 .'obs-9'., column 2 .'var-2'. holds {value}")


def test_types_that_are_no_numbers(tmp_path, sound):
    for values, message in (
        (COUNTS.data.astype(complex), "Complex data not supported"),
        (COUNTS.data.astype("S3"), "dtype"),
        (COUNTS.data.astype("S3").astype(object), "not numbers"),
    ):
        replace(sound, "X/data", values)
        refused(sound, message)
    write_h5ad(tmp_path / "b.h5ad", TABLE.astype(complex))
    refused(tmp_path / "b.h5ad", "Complex data not supported")


@pytest.mark.parametrize(("value", "word"), [("-2", "Negative"), ("9007199254740993", "2..53")])
def test_values_in_text(tmp_path, value, word):
    path = write_text(tmp_path / "a.mtx", f"{HEAD}3 2 2\n1 1 5\n3 2 {value}\n")
    refused(path, f"{word}.*row 2, column 1 holds {value}")
    path = write_text(tmp_path / "docword.a.txt", f"3\n2\n2\n1 1 5\n3 2 {value}\n")
    refused(path, f"{word}.*row 2, column 1 holds {value}")
    for word, value in (("NaN", "nan"), ("infinity", "1e999")):
        write_text(
            tmp_path / "a.mtx", f"{HEAD.replace('integer', 'real')}3 2 2\n1 1 5\n3 2 {value}\n"
        )
        refused(tmp_path / "a.mtx", f"{word}.*row 2, column 1 holds")


# ---------------------------------------------------------------------------
# Structure of HDF5 files


@pytest.mark.parametrize("compressed", ["csr", "csc"])
@pytest.mark.parametrize(
    ("part", "at", "value", "message"),
    [
        ("indices", 7, -1, "entry 7 of indices is -1, outside 0 to"),
        ("indices", -1, 2**32 + 1, "of indices is 4294967297, outside"),
        ("indptr", 0, 1, "starts at 1, not at 0"),
        ("indptr", -1, 99, "ends at 99, but there are"),
        ("indptr", -1, -4, "ends at -4"),
        ("indptr", 2, 3, "indptr falls after entry 1"),
        ("indptr", 2, 2**40, "indptr falls after entry 2|leaves the range"),
    ],
)
def test_corrupt_structure(tmp_path, compressed, part, at, value, message):
    path = write_h5ad(tmp_path / "a.h5ad", COUNTS.asformat(compressed), indices="i8", indptr="i8")
    with h5py.File(path, "a") as file:
        file[f"X/{part}"][at] = value
    refused(path, f"Corrupt sparse matrix.*({message})")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((11, 4), "indptr has 11 entries, not 12"),
        ((10, 3), "of indices is 3, outside 0 to 2|/var/_index has the shape"),
        ((10, 5), "/var/_index has the shape .4,., but should have .5,."),
        ((10**13, 4), "indptr has 11 entries"),
        ((0, 4), "0 sample"),
        ((-1, 4), "has the shape"),
        ((10, 4, 2), "has the shape"),
        ((10.5, 4.0), "has the shape"),
    ],
)
def test_wrong_shape(sound, shape, message):
    with h5py.File(sound, "a") as file:
        file["X"].attrs["shape"] = np.array(shape)
    for read in (read_all, read_counts):
        with pytest.raises(ValueError, match=message):
            read(sound)


def test_arrays_of_the_wrong_kind(sound):
    for name, values, message in (
        ("X/indices", COUNTS.indices.astype(float), "not a 1-d array of integers"),
        ("X/indptr", COUNTS.indptr[None], "not a 1-d array of integers"),
        ("X/data", COUNTS.data[None], "data is not a 1-d array"),
    ):
        replace(sound, name, values)
        refused(sound, message)
        write_h5ad(sound, COUNTS)
    with h5py.File(sound, "a") as file:
        del file["X/indices"]
        file.create_group("X/indices")
    refused(sound, "lacks a part that its format has: /X/indices is not a dataset")


def test_names_of_another_number(tmp_path):
    for name, size in (("barcodes", 10), ("features/id", 4), ("features/feature_type", 4)):
        path = write_tenx(tmp_path / "b.h5", COUNTS, 3)
        replace(path, f"matrix/{name}", np.array([b"one"]))
        refused(path, rf"/matrix/{name} has the shape \(1,\), but should have \({size},\)")


def test_codes_without_categories(sound):
    with h5py.File(sound, "a") as file:
        file["obs/kind/codes"] = np.arange(10, dtype=np.int8)
        file["obs/kind/categories"] = ["a", "b"]
    with pytest.raises(ValueError, match="codes 0 to 9, but 2 categories"):
        open_stream(sound, groups="kind")


READ_IN_TIME = """
import sys
from nmfscale import read_counts
from nmfscale.readers.streams.stream import open_stream
for path in sys.argv[1:]:
    for read in (read_counts, lambda path: open_stream(path).close()):
        try:
            read(path)
        except (OSError, ValueError) as error:
            print(path.rpartition("/")[-1] in str(error), flush=True)
        else:
            print("read", flush=True)
"""


def test_damaged_heaps_of_text_end_in_an_error(tmp_path):
    """HDF5 itself never comes back from most of these."""
    sound = write_h5ad(tmp_path / "a.h5ad", COUNTS).read_bytes()
    heap = sound.index(b"GCOL")
    paths = []
    for at in range(heap, heap + 4096, 64):
        zeroed = sound[:at] + bytes(64) + sound[at + 64 :]
        paths.append(tmp_path / f"{at}.h5ad")
        paths[-1].write_bytes(zeroed)
    # a size that makes the step to the next object overflow to nothing
    paths.append(tmp_path / "overflow.h5ad")
    size = heap + 16 + 8
    paths[-1].write_bytes(sound[:size] + (2**64 - 16).to_bytes(8, "little") + sound[size + 8 :])
    shared = os.environ.get("NMFSCALE_DATA")
    if shared is not None:
        paths += [*Path(shared, "hostile").glob("*.h5ad")]
    words = [sys.executable, "-P", "-c", READ_IN_TIME, *paths]
    found = subprocess.run(words, timeout=60, check=True, capture_output=True, text=True)
    found = found.stdout.split()
    assert len(found) == 2 * len(paths)
    assert "False" not in found
    overflow = 2 * [path.stem for path in paths].index("overflow")
    assert found[overflow:] == ["True"] * len(found[overflow:])
    assert found.count("True") > 10


# ---------------------------------------------------------------------------
# What reaches outside the file, or claims what is not there


@pytest.mark.parametrize("name", ["X", "X/data", "X/indptr", "obs", "obs/_index", "var"])
def test_links_to_other_files(tmp_path, sound, name):
    other = write_h5ad(tmp_path / "other.h5ad", COUNTS)
    with h5py.File(sound, "a") as file:
        del file[name]
        file[name] = h5py.ExternalLink(other, f"/{name}")
    refused(sound, "is a link to another file .*other.h5ad")


@pytest.mark.parametrize("name", ["X", "X/data", "obs/_index"])
def test_soft_links(sound, name):
    with h5py.File(sound, "a") as file:
        file.move(name, "elsewhere")
        file[name] = h5py.SoftLink("/first")
        file["first"] = h5py.SoftLink("elsewhere")
    read_all(sound)
    with h5py.File(sound, "a") as file:
        del file["first"]
        file["first"] = h5py.SoftLink(f"/{name}")
    refused(sound, "form a cycle")
    with h5py.File(sound, "a") as file:
        del file["first"]
    refused(sound, "lacks a part|has no X")


@pytest.mark.parametrize("name", ["X/data", "obs/_index"])
def test_values_in_other_files(tmp_path, sound, name):
    (tmp_path / "secret").write_bytes(bytes(1000))
    with h5py.File(sound, "a") as file:
        del file[name]
        file.create_dataset(name, (10,), "S8", external=[(str(tmp_path / "secret"), 0, 80)])
    refused(sound, "stores its values in other files")
    with h5py.File(sound, "a") as file:
        del file[name]
        layout = h5py.VirtualLayout((10,), "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "none.h5"), "data", (10,))
        file.create_virtual_dataset(name, layout)
    refused(sound, "stores its values in other files")


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (2**20,)}, {"chunks": (2**28,), "compression": "gzip"}]
)
def test_forged_size(sound, options):
    for name in ("X/data", "X/indptr", "var/_index"):
        write_h5ad(sound, COUNTS)
        with h5py.File(sound, "a") as file:
            del file[name]
            file.create_dataset(name, (10**13,), "i8", **options)
        refused(sound, "claims .10000000000000,. values, 80,000,000,000,000 bytes, but only")
    write_h5ad(sound, COUNTS)
    with h5py.File(sound, "a") as file:
        del file["X"]
        file.create_dataset("X", (10, 10**12), "f4", **({"chunks": True} if options else {}))
    refused(sound, "claims .10, 1000000000000. values")


def test_forged_npz(tmp_path):
    path = tmp_path / "a.npz"
    sp.save_npz(path, COUNTS, compressed=False)
    content = path.read_bytes()
    at = content.index(b"data.npy")
    start = content.index(b"'shape': (", at)
    end = content.index(b"\n", start)
    forged = b"'shape': (9999999999999,), }".ljust(end - start)
    path.write_bytes(content[:start] + forged + content[end:])
    refused(path, "holds no sparse matrix")


def test_npz_that_lost_bytes(tmp_path):
    path = tmp_path / "a.npz"
    sp.save_npz(path, COUNTS, compressed=False)
    content = path.read_bytes()
    for at in range(0, len(content), 23):
        for left in (content[:at], content[:at] + content[at + 23 :]):
            path.write_bytes(left)
            with pytest.raises(ValueError, match=r"a\.npz"):
                read_counts(path)


@pytest.mark.parametrize("form", [sp.csc_array, sp.coo_array])
def test_rows_that_do_not_fit_into_memory_are_refused(tmp_path, monkeypatch, form):
    table, path = form((5 * 10**8, 40), dtype=np.int32), tmp_path / "a.npz"
    sp.save_npz(path, table)
    free = SimpleNamespace(available=10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    message = r"\(500000000, 40\) and needs 12 GB of memory \(12,000,.* may use 1 GB: "
    tracemalloc.start()
    try:
        for use in (lambda: read_counts(path), lambda: as_counts(table), lambda: open_stream(path)):
            with pytest.raises(MemoryLimitError, match=f"{message}free memory"):
                use()
        free.available = 10**12
        for source in (path, table):
            with pytest.raises(MemoryLimitError, match=f"{message}raise memory_limit"):
                as_counts(source, in_memory=False, memory_limit="1GB")
        with pytest.raises(MemoryLimitError, match=f"{message}raise memory_limit"):
            write_store(path, tmp_path / "a.nmf", memory_limit="1GB")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_counts_that_do_not_fit_into_memory_are_refused(sound, monkeypatch):
    stored = COUNTS.nnz * (8 + 4) + 24 * (10 + 4)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=stored - 1))
    with pytest.raises(MemoryLimitError, match=rf"a\.h5ad .*\({stored} bytes\), but may use"):
        read_counts(sound)
    assert as_counts(sound, in_memory=False).nnz == COUNTS.nnz


def test_missing_filter_is_named(sound):
    with h5py.File(sound, "a") as file:
        del file["X/data"]
        write_with_unknown_filter(file["X"], "data", (COUNTS.nnz,))
    refused(sound, "pip install hdf5plugin .*number 32999", kind=OSError)


# ---------------------------------------------------------------------------
# Text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file ends here"),
        ("1 2 3\n", "line 1: expected '%%MatrixMarket"),
        ("%%MatrixMarket vector coordinate integer general\n", "line 1: expected"),
        ("%%MatrixMarket matrix coordinate complex general\n", "Complex data not supported"),
        ("%%MatrixMarket matrix triangle integer general\n", "'triangle' of 'integer'"),
        ("%%MatrixMarket matrix coordinate integer skew-symmetric\n", "cannot be 'skew-symm"),
        ("%%MatrixMarket matrix array pattern general\n1 1\n1\n", "cannot be a 'pattern'"),
        (HEAD + "%\n%\n", "line 4: the file ends here"),
        (HEAD + "%\n2 2\n", "line 3: expected 3 sizes, found '2 2'"),
        (HEAD + "2 -2 1\n1 1 1\n", "line 2: expected 3 sizes"),
        (HEAD + "1000000000000 2 1\n1 1 1\n", "line 2: the size 1,000,000,000,000 is too large"),
        (HEAD + "2 2 2\n1 1 1\n", "line 3: 1 entries, but the header says 2"),
        (HEAD + "2 2 1\n1 1 1\n2 2 1\n", "2 entries, but the header says 1"),
        (HEAD + "2 2 2\n1 1 1\n2 2\n", "line 4: expected 3 numbers, found '2 2'"),
        (HEAD + "2 2 2\n1 1 1 1\n2 2 1\n", "line 3: expected 3 numbers, found '1 1 1 1'"),
        (HEAD + "2 2 2\n\n1 1 1\n\n2 x 1\n", "line 6: expected 3 numbers, found '2 x 1'"),
        (HEAD + "2 2 2\n1 1 1\n2 2 1.5\n", "line 4: expected 3 whole numbers, found '2 2 1.5'"),
        (HEAD + "2 2 2\n1 1 1.0\n2 2 1.5\n", "line 4: expected 3 whole numbers, found '2 2 1.5'"),
        (HEAD + "2 2 2\n1 1 1\n2 \0 1\n", "line 4: expected 3 numbers"),
        (HEAD + "2 2 2\n1 1 1\n\n3 1 1\n", "line 5: row number 3 is outside 1 to 2"),
        (HEAD + "2 2 2\n1 0 1\n2 1 1\n", "line 3: column number 0 is outside 1 to 2"),
        (HEAD.replace("integer", "real") + "2 2 1\n1.5 1 1\n", "row number 1.5 is outside"),
        (HEAD.replace("integer", "real") + "2 2 1\nnan 1 1\n", "row number nan is outside"),
        (HEAD.replace("general", "symmetric") + "2 3 1\n1 1 1\n", "must be square"),
        (HEAD.replace("general", "symmetric") + "2 2 1\n1 2 1\n", "line 3: .* above its diag"),
        (HEAD.replace("coordinate", "array") + "2 2\n1\n2\n3\n", "3 entries, .* says 4"),
        (HEAD + "1 1 1\n" + "1 " * 40000, "too long a line|expected 3 numbers"),
    ],
)
def test_faults_of_matrix_market(tmp_path, text, message):
    for suffix in ("", ".gz"):
        path = write_text(tmp_path / f"a.mtx{suffix}", text)
        refused(path, f"is not a readable Matrix Market file .*({message})")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file ends here"),
        ("2\nx\n", "line 2: expected the number of words, found 'x'"),
        ("2\n2\n-1\n", "line 3: expected the number of entries"),
        ("2\n99999999999\n1\n1 1 1\n", "the size 99,999,999,999 is too large"),
        ("2\n2\n2\n1 1 1\n", "line 4: 1 entries, but the header says 2"),
        ("2\n2\n1\n1 1 1\n1 2 1\n", "2 entries, but the header says 1"),
        ("2\n2\n1\n1 1\n", "line 4: expected 3 numbers, found '1 1'"),
        ("2\n2\n1\n3 1 1\n", "line 4: row number 3 is outside 1 to 2"),
    ],
)
def test_faults_of_docword(tmp_path, text, message):
    refused(write_text(tmp_path / "docword.a.txt", text), f"readable docword file .*{message}")


def test_vocabulary_of_another_length(tmp_path):
    path = write_docword(tmp_path / "docword.a.txt.gz", COUNTS)
    (tmp_path / "vocab.a.txt").write_text("one\ntwo\n")
    refused(path, "vocab.a.txt has 2 words, but .*docword.a.txt.gz has 4")
    with pytest.raises(ValueError, match="layer='x' does not apply to .*; choices: none"):
        open_stream(path, layer="x")


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_gzip_that_is_cut_off(tmp_path, kept):
    table = sp.csr_array(np.arange(20000).reshape(2000, 10) % 97)
    for path in (
        write_mtx(tmp_path / "a.mtx.gz", table),
        write_docword(tmp_path / "docword.a.txt.gz", table),
    ):
        content = path.read_bytes()
        path.write_bytes(content[: int(kept * len(content))])
        refused(path, "line .*gzip stream is damaged or was cut off")
        middle = len(content) // 2
        path.write_bytes(content[:middle] + b"damaged" * 5 + content[middle + 35 :])
        refused(path, "is not a readable")
    assert gzip.decompress(content)
