"""Counts in files: every layout that is read, and what is said of files that cannot be."""

import errno
import gzip
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
from count_files import write_h5ad, write_sparse, write_tenx_group, write_with_unknown_filter

import nmfscale
from nmfscale.readers.open import as_counts, read_counts

TABLE = np.array([[0, 2, 1, 0], [3, 0, 0, 0], [0, 7, 0, 5]], dtype=np.int32)
CELLS, GENES = ["cell-1", "cell-2", "cell-3"], ["ACTB", "CD4", "CD8A", "ACTB"]
IDS = ["ENSG1", "ENSG2", "ENSG3", "ENSG4"]
DISTINCT = ["ACTB_ENSG1", "CD4", "CD8A", "ACTB_ENSG4"]
TYPES = ["Gene Expression", "Gene Expression", "Antibody Capture", "Gene Expression"]


def dense(counts):
    return sp.csr_array((counts.data, counts.indices, counts.indptr), counts.shape).toarray()


# ---------------------------------------------------------------------------
# .npz and .mtx


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_npz(tmp_path, form):
    path = tmp_path / "counts.npz"
    sp.save_npz(path, sp.csr_matrix(TABLE).asformat(form))
    for given in (path, str(path)):
        np.testing.assert_array_equal(dense(read_counts(given)), TABLE)
    np.testing.assert_array_equal(dense(as_counts(path)), TABLE)
    np.testing.assert_array_equal(dense(read_counts(path, transpose=True)), TABLE.T)


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize("matrix", [sp.coo_array(TABLE), TABLE.astype(float)])
def test_matrix_market(tmp_path, suffix, matrix):
    plain, path = tmp_path / "plain.mtx", tmp_path / f"counts{suffix}"
    scipy.io.mmwrite(plain, matrix)
    path.write_bytes(
        gzip.compress(plain.read_bytes()) if suffix == ".mtx.gz" else plain.read_bytes()
    )
    counts = read_counts(path)
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.sample_names is None
    np.testing.assert_array_equal(dense(read_counts(path, transpose=True)), TABLE.T)


def test_matrix_market_integers_are_kept_small(tmp_path):
    path = tmp_path / "counts.mtx"
    scipy.io.mmwrite(path, sp.coo_array(TABLE))
    assert read_counts(path).dtype == np.int32
    scipy.io.mmwrite(path, sp.coo_array(TABLE.astype(np.int64) * 2**40))
    assert read_counts(path).largest == 7 * 2**40


@pytest.fixture(params=["", "GSM1_"])
def tenx_folder(request, tmp_path):
    """Write a folder as Cell Ranger 3 does, with or without a prefix to the names."""
    scipy.io.mmwrite(tmp_path / "matrix.mtx", sp.coo_array(TABLE.T))
    path = tmp_path / f"{request.param}matrix.mtx.gz"
    path.write_bytes(gzip.compress((tmp_path / "matrix.mtx").read_bytes()))
    (tmp_path / "matrix.mtx").unlink()
    features = "".join("\t".join(line) + "\n" for line in zip(IDS, GENES, TYPES, strict=True))
    for name, text in (("barcodes", "\n".join(CELLS)), ("features", features)):
        with gzip.open(tmp_path / f"{request.param}{name}.tsv.gz", "wt") as file:
            file.write(text)
    return path


def test_tenx_folder(tenx_folder):
    for path in (tenx_folder, tenx_folder.parent):
        counts = read_counts(path, feature_type="all")
        np.testing.assert_array_equal(dense(counts), TABLE)
        assert counts.sample_names.tolist() == CELLS
        assert counts.feature_names.tolist() == DISTINCT
    genes = read_counts(tenx_folder)
    np.testing.assert_array_equal(dense(genes), TABLE[:, [0, 1, 3]])
    assert "1 features of type 'Antibody Capture' were left out" in genes.report()
    with pytest.raises(ValueError, match="beside it name 3 barcodes and 4 features"):
        read_counts(tenx_folder, transpose=False)


def test_names_beside_a_file_of_cells_by_genes(tmp_path):
    scipy.io.mmwrite(tmp_path / "matrix.mtx", sp.coo_array(TABLE))
    (tmp_path / "barcodes.tsv").write_text("\n".join(CELLS) + "\n")
    (tmp_path / "genes.tsv").write_text(
        "".join(f"{i}\t{g}\n" for i, g in zip(IDS, GENES, strict=True))
    )
    counts = read_counts(tmp_path)
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.feature_names.tolist() == DISTINCT
    (tmp_path / "barcodes.tsv").write_text("one\n")
    with pytest.raises(ValueError, match=r"has shape \(3, 4\), but .* 1 barcodes and 4 features"):
        read_counts(tmp_path)


def test_genome_folders(tmp_path):
    (tmp_path / "hg19").mkdir()
    scipy.io.mmwrite(tmp_path / "hg19" / "matrix.mtx", sp.coo_array(TABLE.T))
    (tmp_path / "hg19" / "genes.tsv").write_text("\n".join(GENES))
    np.testing.assert_array_equal(dense(read_counts(tmp_path, genome="hg19")), TABLE)
    with pytest.raises(ValueError, match="matrix.mtx.* found none; choose genome= from hg19"):
        read_counts(tmp_path)
    (tmp_path / "analysis").mkdir()
    for wrong in ("mm10", "analysis"):
        with pytest.raises(ValueError, match=f"no folder genome='{wrong}'.*; it has: hg19"):
            read_counts(tmp_path, genome=wrong)


def test_names_that_identifiers_do_not_tell_apart(tmp_path):
    scipy.io.mmwrite(tmp_path / "matrix.mtx", sp.coo_array(TABLE.T))
    (tmp_path / "barcodes.tsv").write_text("\n".join(CELLS) + "\n")
    (tmp_path / "genes.tsv").write_text("g0\ng0\ng1\ng2\n")
    assert read_counts(tmp_path).feature_names.tolist() == ["g0", "g0", "g1", "g2"]


def test_text_files_may_begin_with_a_byte_order_mark(tmp_path):
    scipy.io.mmwrite(tmp_path / "matrix.mtx", sp.coo_array(TABLE.T))
    (tmp_path / "barcodes.tsv").write_text("\n".join(CELLS) + "\n")
    (tmp_path / "genes.tsv").write_text("\n".join(IDS) + "\n")
    for name in ("matrix.mtx", "barcodes.tsv", "genes.tsv"):
        plain = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + plain)
    counts = read_counts(tmp_path)
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.sample_names.tolist() == CELLS and counts.feature_names.tolist() == IDS


@pytest.mark.parametrize("written", ["3.0", "3e0", "0.3e1"])
def test_whole_numbers_with_a_point_are_integers(tmp_path, written):
    lines = f"%%MatrixMarket matrix coordinate integer general\n2 2 2\n1 1 {written}\n2 2 7\n"
    (tmp_path / "a.mtx").write_text(lines)
    counts = read_counts(tmp_path / "a.mtx")
    assert counts.dtype == np.int32
    np.testing.assert_array_equal(dense(counts), [[3, 0], [0, 7]])
    (tmp_path / "a.mtx").write_text(lines.replace("7", str(2**53 + 1)))
    with pytest.raises(ValueError, match=r"above 2\*\*53 .*: row 1, column 1"):
        read_counts(tmp_path / "a.mtx")


# ---------------------------------------------------------------------------
# .h5ad


@pytest.fixture
def adata():
    anndata = pytest.importorskip("anndata")
    pd = pytest.importorskip("pandas")
    obs = pd.DataFrame(
        {
            "kind": pd.Categorical(["t", None, "b"]),
            "depth": [1, 2, 3],
            "text": ["x", "y", "x"],
            "flag": pd.array([True, None, False], dtype="boolean"),
        },
        index=CELLS,
    )
    var = pd.DataFrame(index=["a", "b", "c", "d"])
    adata = anndata.AnnData(sp.csr_matrix(TABLE, dtype=np.float32), obs=obs, var=var)
    adata.raw = adata.copy()
    adata = adata[:, ["b", "d"]].copy()
    adata.layers["columns"] = sp.csc_matrix(adata.X)
    adata.layers["dense"] = adata.X.toarray()
    adata.layers["logs"] = np.log1p(adata.X.toarray())
    return adata


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_h5ad(adata, tmp_path, compression):
    path = tmp_path / "counts.h5ad"
    adata.write_h5ad(path, compression=compression)
    for source in (path, adata):
        for layer in (None, "columns", "dense"):
            counts = read_counts(source, layer=layer)
            np.testing.assert_array_equal(dense(counts), TABLE[:, [1, 3]])
            assert counts.sample_names.tolist() == CELLS
            assert counts.feature_names.tolist() == ["b", "d"]
        raw = read_counts(source, raw=True, groups="kind")
        np.testing.assert_array_equal(dense(raw), TABLE)
        assert raw.feature_names.tolist() == ["a", "b", "c", "d"]
        assert raw.groups.tolist() == ["t", "missing", "b"]
        assert read_counts(source, groups="depth").groups.tolist() == [1, 2, 3]
        assert read_counts(source, groups="text").groups.tolist() == ["x", "y", "x"]
        assert read_counts(source, groups="flag").groups.tolist() == [True, "missing", False]
        with pytest.raises(ValueError, match="row 0 .'cell-1'., column 0 .'b'. holds 1.098"):
            read_counts(source, layer="logs", integer="require")
        with pytest.raises(ValueError, match="raw=True exclude each other"):
            read_counts(source, layer="dense", raw=True)
        with pytest.raises(ValueError, match="o column 'sex' in obs; its columns: .*depth"):
            read_counts(source, groups="sex")
        with pytest.raises(ValueError, match="layers.*(spliced|columns)"):
            read_counts(source, layer="spliced")
    np.testing.assert_array_equal(dense(as_counts(path, layer="dense")), TABLE[:, [1, 3]])


def test_objects_name_their_other_matrices(adata, tmp_path):
    names = ("X", "raw/X", "layers/columns", "layers/dense")
    there = f"It also has {', '.join(rf'{name} .whole numbers.' for name in names)}"
    logs = "^X passed to PoissonNMF holds"
    with pytest.warns(UserWarning, match=rf"{logs} .*\. {there}\.$"):
        as_counts(adata, layer="logs", subject="PoissonNMF")
    with pytest.raises(ValueError, match=rf"Pass the raw counts .*\. {there}\.$"):
        read_counts(adata, layer="logs", integer="require")
    adata.X = -adata.X
    with pytest.raises(ValueError, match=r"data in X \(raw/X is there too; layers/columns is th"):
        as_counts(adata)


def test_h5ad_opened_in_place(adata, tmp_path):
    anndata = pytest.importorskip("anndata")
    adata.write_h5ad(tmp_path / "counts.h5ad")
    opened = anndata.read_h5ad(tmp_path / "counts.h5ad", backed="r")
    try:
        np.testing.assert_array_equal(dense(read_counts(opened)), TABLE[:, [1, 3]])
    finally:
        opened.file.close()


def test_h5ad_without_counts(tmp_path):
    anndata = pytest.importorskip("anndata")
    path = tmp_path / "counts.h5ad"
    anndata.AnnData(sp.csr_matrix((3, 4), dtype=np.float32)).write_h5ad(path)
    assert read_counts(path).nnz == 0
    anndata.AnnData(np.zeros((0, 4), dtype=np.float32)).write_h5ad(path)
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        read_counts(path)


@pytest.fixture
def old_h5ad(tmp_path):
    """Write the layout of AnnData 0.5 and 0.6: compound tables, a dot in the name of raw.X."""
    path = tmp_path / "old.h5ad"
    with h5py.File(path, "w") as file:
        file["X"] = TABLE.astype(np.float32)
        write_sparse(
            file.create_group("raw.X"),
            sp.csr_matrix(TABLE),
            h5sparse_format="csr",
            h5sparse_shape=np.array(TABLE.shape),
        )
        obs = [(name.encode(), code) for name, code in zip(CELLS, [1, 0, -1], strict=True)]
        file["obs"] = np.array(obs, dtype=[("index", "S6"), ("kind", "i1")])
        file["uns/kind_categories"] = np.array([b"b", b"t"])
        for var in ("var", "raw.var"):
            file[var] = np.array([(name.encode(),) for name in GENES], dtype=[("index", "S4")])
    return path


def test_old_h5ad(old_h5ad):
    for raw in (False, True):
        counts = read_counts(old_h5ad, raw=raw, groups="kind")
        np.testing.assert_array_equal(dense(counts), TABLE)
        assert counts.sample_names.tolist() == CELLS
        assert counts.feature_names.tolist() == GENES
        assert counts.groups.tolist() == ["t", "b", "missing"]


def test_categories_by_reference_as_in_anndata_0_7(tmp_path):
    path = tmp_path / "counts.h5ad"
    with h5py.File(path, "w") as file:
        write_sparse(
            file.create_group("X"),
            sp.csc_matrix(TABLE),
            **{"encoding-type": "csc_matrix", "shape": np.array(TABLE.shape)},
        )
        for name, names in (("obs", CELLS), ("var", GENES)):
            file[f"{name}/names"] = names
            file[name].attrs["_index"] = "names"
        file["obs/kind"] = np.array([0, -1, 1], dtype=np.int8)
        file["obs/__categories/kind"] = ["b", "t"]
        file["obs/kind"].attrs["categories"] = file["obs/__categories/kind"].ref
    counts = read_counts(path, groups="kind")
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.groups.tolist() == ["b", "missing", "t"]


# ---------------------------------------------------------------------------
# 10x .h5


def write_tenx(file, name, matrix, version, dtype=np.int64):
    columns = {"genes": IDS, "gene_names": GENES}
    if version == 3:
        columns = {"features/id": IDS, "features/name": GENES, "features/feature_type": TYPES}
        columns["features/genome"] = ["hg", "mm", "", "hg"]
    group = file.create_group(name)
    write_tenx_group(group, sp.csr_matrix(matrix), CELLS, columns, indices=dtype, indptr=dtype)
    if version == 2:
        group.attrs["TITLE"] = h5py.Empty("S1")


def test_tenx_version_3(tmp_path):
    path = tmp_path / "filtered.h5"
    with h5py.File(path, "w") as file:
        write_tenx(file, "matrix", TABLE, 3)
    counts = read_counts(path, feature_type="all")
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.sample_names.tolist() == CELLS
    assert counts.feature_names.tolist() == DISTINCT
    assert counts.indices.dtype == np.int32
    np.testing.assert_array_equal(dense(read_counts(path)), TABLE[:, [0, 1, 3]])
    proteins = read_counts(path, feature_type="Antibody Capture")
    np.testing.assert_array_equal(dense(proteins), TABLE[:, [2]])
    np.testing.assert_array_equal(dense(read_counts(path, genome="hg")), TABLE[:, [0, 3]])
    with pytest.raises(ValueError, match="feature_type='CRISPR'; it has: 'Antibody Capture'"):
        read_counts(path, feature_type="CRISPR")
    with pytest.raises(ValueError, match="genome='rn'; it has: '', 'hg', 'mm'"):
        read_counts(path, genome="rn")


def test_genomes_are_no_types(tmp_path):
    path = tmp_path / "filtered.h5"
    with h5py.File(path, "w") as file:
        write_tenx(file, "matrix", TABLE, 3)
        del file["matrix/features/feature_type"]
        file["matrix/features/genome"][:2] = [b"Gene Expression"] * 2
    counts = read_counts(path)
    np.testing.assert_array_equal(dense(counts), TABLE)
    with pytest.raises(ValueError, match="no features with feature_type='hg'; it has: none"):
        read_counts(path, feature_type="hg")
    np.testing.assert_array_equal(dense(read_counts(path, genome="hg")), TABLE[:, [3]])


def test_tenx_without_names(tmp_path):
    path = tmp_path / "bare.h5"
    with h5py.File(path, "w") as file:
        write_tenx(file, "hg19", TABLE, 2)
        for name in ("barcodes", "genes", "gene_names"):
            del file["hg19"][name]
    counts = read_counts(path)
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.sample_names is None and counts.feature_names is None
    assert "no barcodes and no genes" in counts.report()
    with pytest.raises(ValueError, match="has no features with feature_type='CRISPR'"):
        read_counts(path, feature_type="CRISPR")


def test_tenx_version_2(tmp_path):
    path = tmp_path / "filtered.h5"
    with h5py.File(path, "w") as file:
        write_tenx(file, "hg19", TABLE, 2)
        file["stray"] = 5
    counts = read_counts(path)
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.feature_names.tolist() == DISTINCT
    with h5py.File(path, "a") as file:
        write_tenx(file, "mm10", TABLE * 2, 2, dtype=np.int32)
    with pytest.raises(ValueError, match="several genomes; choose genome= from hg19, mm10"):
        read_counts(path)
    np.testing.assert_array_equal(dense(read_counts(path, genome="mm10")), TABLE * 2)
    with pytest.raises(ValueError, match="has no genome 'rn'"):
        read_counts(path, genome="rn")
    with pytest.raises(ValueError, match="no features with feature_type='Gene Expression'"):
        read_counts(path, genome="hg19", feature_type="Gene Expression")


# ---------------------------------------------------------------------------
# What cannot be read


def test_what_is_no_packed_store_is_said(tmp_path):
    (tmp_path / "empty.nmf").touch()
    with pytest.raises(ValueError, match="empty.nmf is not a packed store.*nmfscale store"):
        read_counts(tmp_path / "empty.nmf")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    (tmp_path / "counts.h5ad").touch()

    def refused(path, *_):  # as the system does to all but root
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*counts.h5ad'"):
        read_counts(tmp_path / "counts.h5ad")


def test_missing_files_and_unknown_formats(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.h5ad"):
        read_counts(tmp_path / "none.h5ad")
    (tmp_path / "a.h5ad.gz").touch()
    with pytest.raises(ValueError, match="a.h5ad.gz is compressed as a whole: unpack it first"):
        read_counts(tmp_path / "a.h5ad.gz")
    (tmp_path / "table.dat").write_text("1,2")
    with pytest.raises(ValueError, match=r"table.dat has no known suffix; expected .npz, .mtx"):
        read_counts(tmp_path / "table.dat")


@pytest.mark.parametrize(
    ("name", "choice"),
    [("a.npz", {"layer": "x"}), ("a.mtx", {"raw": True}), ("a.mtx", {"genome": "hg19"})],
)
def test_choices_that_do_not_apply(tmp_path, name, choice):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=f"{next(iter(choice))}=.* does not apply.*transpose"):
        read_counts(tmp_path / name, **choice)
    with pytest.raises(ValueError, match="does not apply to ndarray; choices: none"):
        read_counts(TABLE, **choice)


def test_objects_pass_through():
    np.testing.assert_array_equal(dense(read_counts(TABLE)), TABLE)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"text"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.npz", "holds no sparse matrix as scipy.sparse.save_npz writes it"),
        ("a.mtx", "is not a readable Matrix Market file"),
        ("a.mtx.gz", "is not a readable Matrix Market file"),
        ("a.h5ad", "is not an HDF5 file"),
        ("a.h5", "is not an HDF5 file"),
    ],
)
def test_foreign_files(tmp_path, content, name, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} {message}"):
        read_counts(tmp_path / name)


def test_npz_of_something_else(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=TABLE)
    with pytest.raises(ValueError, match="holds no sparse matrix"):
        read_counts(path)
    sp.save_npz(path, sp.csr_matrix(TABLE))
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(ValueError, match="holds no sparse matrix"):
        read_counts(path)


def test_npz_with_objects_beside_the_counts(tmp_path):
    path = tmp_path / "a.npz"
    matrix = sp.csr_matrix(TABLE)
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr", "shape")}
    labels = {"names": np.array([{"a": 1}, None], object), "meta": np.array("x" * 9, object)}
    np.savez(path, format=b"csr", **parts, **labels)
    np.testing.assert_array_equal(dense(read_counts(path)), TABLE)
    np.savez(path, format=b"csr", **{**parts, "data": matrix.data.astype(object)})
    with pytest.raises(ValueError, match="a.npz holds no sparse matrix.*"):
        read_counts(path)


def test_cut_matrix_market(tmp_path):
    path = tmp_path / "a.mtx"
    scipy.io.mmwrite(path, sp.coo_array(TABLE))
    text = path.read_text()
    path.write_text(text[: text.rindex("3 4")])
    with pytest.raises(ValueError, match="is not a readable Matrix Market file"):
        read_counts(path)
    whole = gzip.compress(text.encode() * 50)
    (tmp_path / "b.mtx.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a readable Matrix Market file"):
        read_counts(tmp_path / "b.mtx.gz")


def test_foreign_hdf5(tmp_path):
    path = tmp_path / "model.h5"
    with h5py.File(path, "w") as file:
        file["L"], file["F"] = TABLE, TABLE
    with pytest.raises(ValueError, match="neither an AnnData file .* it holds: F, L"):
        read_counts(path)
    nmfscale.PoissonNMF(1).fit(TABLE).save(path)
    with pytest.raises(ValueError, match=r"model.h5 is a model file, not counts; nmfscale.load"):
        read_counts(path)


def test_damaged_hdf5(old_h5ad, tmp_path):
    path = tmp_path / "cut.h5ad"
    path.write_bytes(old_h5ad.read_bytes()[:-500])
    with pytest.raises(OSError, match="cut.h5ad cannot be read; it is damaged or was cut off"):
        read_counts(path)
    with h5py.File(old_h5ad, "a") as file:
        del file["raw.X/indices"]
    with pytest.raises(ValueError, match="old.h5ad lacks a part that its format has.*indices"):
        read_counts(old_h5ad, raw=True)


@pytest.mark.parametrize("part", ["indices", "indptr"])
def test_corrupt_sparse_group(old_h5ad, part):
    with h5py.File(old_h5ad, "a") as file:
        file[f"raw.X/{part}"][-1] = 99
    with pytest.raises(ValueError, match=r"old.h5ad.*(99|less than)"):
        read_counts(old_h5ad, raw=True)


def test_unknown_encoding_and_shape(old_h5ad):
    with h5py.File(old_h5ad, "a") as file:
        file["raw.X"].attrs["h5sparse_format"] = "awkward"
        del file["X"]
        file["X"] = np.arange(3)
    with pytest.raises(ValueError, match="encoding 'awkward'; expected a dense dataset"):
        read_counts(old_h5ad, raw=True)
    with pytest.raises(ValueError, match=r"X has the shape \(3,\), not 2-d"):
        read_counts(old_h5ad)


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_sizes_that_are_floating_point_numbers(tmp_path, form):
    path = write_h5ad(tmp_path / "a.h5ad", sp.csr_matrix(TABLE).asformat(form))
    with h5py.File(path, "a") as file:
        file["X"].attrs["shape"] = np.array(TABLE.shape, float)
    np.testing.assert_array_equal(dense(read_counts(path)), TABLE)
    for wrong in ([3.5, 4], [np.nan, 4], [np.inf, 4], [-3.0, 4], [1e300, 4], [3.0, 4.0, 1.0]):
        with h5py.File(path, "a") as file:
            file["X"].attrs["shape"] = wrong
        with pytest.raises(ValueError, match="a.h5ad: /X has the shape .*, not 2-d"):
            read_counts(path)


def test_names_in_hdf5_that_are_not_utf_8(tmp_path):
    path = write_h5ad(tmp_path / "a.h5ad", sp.csr_matrix(TABLE))
    with h5py.File(path, "a") as file:
        del file["var/_index"]
        file["var/_index"] = np.array([b"\xe9t\xe9", b"\xeat\xe9", b"a", b"b"])
    with pytest.raises(ValueError, match=r"a.h5ad .*the text b'.xe9t.xe9' is not UTF-8"):
        read_counts(path)


def test_compression_filter_that_is_not_installed(old_h5ad):
    with h5py.File(old_h5ad, "a") as file:
        del file["X"]
        write_with_unknown_filter(file, "X", TABLE.shape)
    with pytest.raises(OSError, match="old.h5ad cannot be read; .* pip install hdf5plugin"):
        read_counts(old_h5ad)


# ---------------------------------------------------------------------------
# Real files


@pytest.mark.parametrize(
    ("name", "shape", "nnz", "total"),
    [
        ("neurips.npz", (2483, 14036), 1304438, 3280697),
        ("newsgroups.npz", (18774, 55911), 2429942, 4547389),
        ("pbmc_facs.npz", (3774, 16791), 2702861, 7500459),
        ("10x_v3_sample.h5", (1107, 507), 23866, 41549),
        ("10x_v2_sample.h5", (12, 343), 12, 12),
        ("pbmc_5k_protein_v3_sample.h5ad", (200, 16581), 387353, 1351231),
    ],
)
def test_real_files(data_dir, name, shape, nnz, total):
    counts = read_counts(data_dir / name, integer="require")
    assert (counts.shape, counts.nnz, counts.total) == (shape, nnz, total)
    if not name.endswith(".npz"):
        assert len(counts.sample_names) == shape[0] and len(counts.feature_names) == shape[1]


def test_real_tenx_columns_are_unsorted_and_kept(data_dir):
    counts = read_counts(data_dir / "10x_v3_sample.h5")
    assert not counts.has_sorted_indices
    with h5py.File(data_dir / "10x_v3_sample.h5") as file:
        np.testing.assert_array_equal(counts.indices, file["matrix/indices"][()])
    assert counts.sample_names[0] == "AAACCCAAGGAGAGTA-1"


def test_real_old_h5ad_is_refused(data_dir):
    path = data_dir / "anndata_v0.5_sample.h5ad"
    with pytest.raises(ValueError, match="Negative values in data .*raw.X is there too.*'HES4'"):
        read_counts(path)
    with pytest.raises(ValueError, match=r"raw\.X.*looks log-normalised"):
        read_counts(path, raw=True)
    raw = read_counts(path, raw=True, integer="allow", groups="bulk_labels")
    assert raw.nnz == 174400 and len(set(raw.groups)) == 10


@pytest.mark.parametrize("size", [1e-11, 1e-30, 1e-160, 1e-310])
def test_rows_that_a_fit_would_take_for_zeros_are_refused(tmp_path, size):
    whole = np.array([[4.0, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0]])
    one = whole.copy()
    one[1] *= size
    sp.save_npz(tmp_path / "counts.npz", sp.csr_array(one))
    frame = pd.DataFrame(one, index=["a", "b", "c"])
    for source, row in (
        (one, "row 1"),
        (tmp_path / "counts.npz", "row 1"),
        (frame, r"row 1 \('b'\)"),
    ):
        for in_memory in (True, False):
            with pytest.raises(ValueError, match=f"counts of {row} add up to .* Multiply all"):
                as_counts(source, integer="allow", in_memory=in_memory)
    model = nmfscale.PoissonNMF(2, random_state=0, integer="allow").fit(whole)
    for refused in (
        nmfscale.AnchorNMF(2, projection=3, integer="allow").fit, model.transform, model.score,
        lambda X: nmfscale.likelihood.mixture_proportions(X, model.components_.T),
        lambda X: nmfscale.likelihood.loglik_poisson(X, model.loadings_, model.components_.T),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="those of 2 other rows.* tell sums below 1e-09"):
            refused(whole * size)
    # an entry as small as that beside others does no harm
    whole[1, 0] = size
    assert as_counts(whole, integer="allow").nnz == 7


def test_counts_beyond_the_largest_are_refused():
    with pytest.raises(ValueError, match=r"A count above 2\*\*53 .* holds 1e\+30; rescale"):
        as_counts([[1e30, 1.0]])


def test_modalities_of_mudata_files(tmp_path):
    one, other = TABLE, TABLE[:, ::-1] + 1
    with h5py.File(tmp_path / "cells.h5mu", "w") as file:
        for name, table in (("rna", one), ("prot", other)):
            part = write_h5ad(tmp_path / f"{name}.h5ad", sp.csr_array(table))
            with h5py.File(part) as source:
                for each in source:
                    file.copy(source[each], file.require_group(f"mod/{name}"), each)
        file.create_group("obs"), file.create_group("var")
    for name, table in (("rna", one), ("prot", other)):
        for in_memory in (True, False):
            found = as_counts(tmp_path / "cells.h5mu", modality=name, in_memory=in_memory)
            np.testing.assert_array_equal(found.take_rows().toarray(), table)
            assert found.sample_names[0] == "obs-0"
    for given, asked in ((None, "has several modalities"), ("atac", "has no modality 'atac'")):
        with pytest.raises(ValueError, match=f"{asked}; choose modality= from prot, rna"):
            read_counts(tmp_path / "cells.h5mu", modality=given)


@pytest.mark.parametrize("name", ["GSE1_RAW.tar", "filtered.tar.gz", "texts.tar.xz"])
def test_archives_are_refused_with_what_to_do(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match="is an archive: unpack it, .* pass the .h5"):
        read_counts(tmp_path / name)
