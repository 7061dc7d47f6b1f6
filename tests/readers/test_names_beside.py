"""Names in files beside a table, and which of its sides is the samples'."""

import gzip

import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_docword, write_mtx, write_text

from nmfscale.readers.open import read_counts

TABLE = np.array([[0, 2, 1, 0], [3, 0, 0, 4], [0, 7, 0, 5]])
CELLS, GENES = ["AAC-1", "AAG-1", "TTG-1"], ["ACTB", "CD4", "CD8A", "MS4A1"]
IDS = ["ENSG1", "ENSG2", "ENSG3", "ENSG4"]
PEAKS = ["chr1:10-20", "chr1:30-40", "chr2:5-9", "chr2:15-19"]


def dense(counts):
    return sp.csr_array((counts.data, counts.indices, counts.indptr), counts.shape).toarray()


def lines(*columns, by="\t", head=None):
    rows = [by.join(fields) for fields in zip(*columns, strict=True)]
    return "".join(f"{row}\n" for row in ([] if head is None else [head]) + rows)


TYPES = ["Gene Expression"] * 4
BARCODES, FEATURES, BOTH, ONLY_IDS = (
    lines(CELLS), lines(IDS, GENES, TYPES), lines(IDS, GENES), lines(IDS)
)  # fmt: skip
BED = lines(*zip(*(peak.replace("-", ":").split(":") for peak in PEAKS), strict=True))
QUOTED = lines([f'"{cell}"' for cell in CELLS])
R_CELLS = lines("123", CELLS, by=",", head='"","x"')
R_GENES = lines("1234", IDS, GENES, by=",", head='"id","symbol"')
PARSE_CELLS = lines(CELLS, "111", by=",", head="bc_wells,sample")
PARSE_GENES = lines(IDS, GENES, ["hg38"] * 4, by=",", head="gene_id,gene_name,genome")
OF_SAMPLES = {BARCODES, QUOTED, R_CELLS, PARSE_CELLS}
OF_FEATURES = {
    FEATURES: GENES, BOTH: GENES, ONLY_IDS: IDS, BED: PEAKS, R_GENES: GENES, PARSE_GENES: GENES,
    lines(GENES): GENES,
}  # fmt: skip


def write_folder(folder, matrix, counts, files, packed=False):
    """Write a .mtx file and texts, all of them compressed or none; return the file."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        write_text(folder / (name + ".gz" * packed), text)
    return write_mtx(folder / (matrix + ".gz" * packed), sp.coo_array(counts))


# What 10x Genomics, STARsolo and GEO have are features x samples.
FEATURES_BY_SAMPLES = [
    ("matrix.mtx", {"barcodes.tsv": BARCODES, "features.tsv": FEATURES}),
    ("matrix.mtx", {"barcodes.tsv": BARCODES, "genes.tsv": BOTH}),
    ("matrix.mtx", {"barcodes.tsv": BARCODES, "peaks.bed": BED}),
    ("matrix.mtx", {"barcodes.tsv": BARCODES}),
    ("matrix.mtx", {"genes.tsv": ONLY_IDS}),
    ("matrix.mtx", {"peaks.bed": BED}),
    ("matrix.mtx", {"barcodes.tsv": QUOTED, "features_S1.tsv": FEATURES}),
    ("matrix.mtx", {"barcodes.csv": BARCODES, "features.csv": BOTH.replace("\t", ",")}),
    ("counts.mtx", {"barcodes.csv": R_CELLS, "genes.csv": R_GENES}),
    ("counts.mtx", {"barcodes.csv": R_CELLS}),
    ("cells_x_genes.mtx", {"barcodes.tsv": BARCODES, "genes.tsv": BOTH}),
    ("GSM1_A_matrix.mtx", {"GSM1_A_barcodes.tsv": BARCODES, "GSM1_A_features.tsv": FEATURES}),
    ("GSM1_A_matrix.mtx", {"GSM1_A_barcodes.tsv": BARCODES, "GSM1_A_features.csv": ONLY_IDS}),
    ("GSM1_matrix_A.mtx", {"GSM1_barcodes_A.tsv": BARCODES, "GSM1_genes_A.tsv": FEATURES}),
    ("PJ1matrix.mtx", {"PJ1barcodes.tsv": BARCODES, "PJ1genes.tsv": FEATURES}),
    ("GSM1_A.mtx", {"GSM1_A.barcodes.txt": BARCODES, "GSM1_A.features.tsv": FEATURES}),
    ("UniqueAndMult-EM.mtx", {"barcodes.tsv": BARCODES, "features.tsv": FEATURES}),
    ("a_count_matrix.mtx", {"a_count_matrix_barcodes.tsv": BARCODES, "a_genes.tsv": ONLY_IDS}),
    ("spliced.mtx", {"barcodes.tsv": BARCODES, "features.tsv": FEATURES}),
]
IN_BUSTOOLS = "cells_x_genes"
SAMPLES_BY_FEATURES = [
    ("matrix.mtx", {"features.tsv": FEATURES}),
    (
        f"{IN_BUSTOOLS}.mtx",
        {f"{IN_BUSTOOLS}.barcodes.txt": BARCODES, f"{IN_BUSTOOLS}.genes.txt": ONLY_IDS},
    ),
    (
        f"{IN_BUSTOOLS}.mtx",
        {f"{IN_BUSTOOLS}.genes.txt": ONLY_IDS, f"{IN_BUSTOOLS}.genes.names.txt": lines(GENES)},
    ),
    (f"{IN_BUSTOOLS}.nascent.mtx", {f"{IN_BUSTOOLS}.barcodes.txt": BARCODES}),
    (f"{IN_BUSTOOLS}.mtx", {}),
    ("quants_mat.mtx", {"quants_mat_rows.txt": BARCODES, "quants_mat_cols.txt": ONLY_IDS}),
    ("DGE.mtx", {"cell_metadata.csv": PARSE_CELLS, "all_genes.csv": PARSE_GENES}),
    ("count_matrix.mtx", {"all_genes.csv": PARSE_GENES}),
]


@pytest.mark.parametrize(
    ("counts", "matrix", "files"),
    [
        *((TABLE.T, *each) for each in FEATURES_BY_SAMPLES),
        *((TABLE, *each) for each in SAMPLES_BY_FEATURES),
    ],
)
def test_layouts(tmp_path, counts, matrix, files):
    features = [OF_FEATURES.get(text.replace(",", "\t"), OF_FEATURES.get(text)) for text in
                files.values() if text not in OF_SAMPLES]  # fmt: skip
    expected = CELLS if OF_SAMPLES & {*files.values()} else None, (features or [None])[-1]
    for packed in (False, True):
        folder = tmp_path / f"packed-{packed}"
        path = write_folder(folder, matrix, counts, files, packed)
        for source in (folder, path):
            found = read_counts(source)
            np.testing.assert_array_equal(dense(found), TABLE)
            for names, wanted in zip(
                (found.sample_names, found.feature_names), expected, strict=True
            ):
                assert (None if names is None else names.tolist()) == wanted


SQUARE = np.array([[1, 2, 0], [0, 3, 0], [4, 0, 5]])


@pytest.mark.parametrize(
    ("matrix", "files", "expected"),
    [
        ("matrix.mtx", {"barcodes.tsv": BARCODES}, SQUARE.T),
        ("cells_x_genes.mtx", {"cells_x_genes.barcodes.txt": BARCODES}, SQUARE),
        ("DGE.mtx", {"cell_metadata.csv": PARSE_CELLS}, SQUARE),
    ],
)
def test_square_tables_by_their_layout(tmp_path, matrix, files, expected):
    write_folder(tmp_path, matrix, SQUARE, files)
    counts = read_counts(tmp_path)
    np.testing.assert_array_equal(dense(counts), expected)
    assert counts.sample_names.tolist() == CELLS
    assert "the numbers of names fit both" in counts.report()


@pytest.mark.parametrize(
    ("matrix", "files"),
    [
        ("matrix.mtx", {}),
        ("matrix.mtx", {"barcodes.csv": BARCODES}),
        ("a.mtx", {"genes.tsv": BARCODES}),
    ],
)
@pytest.mark.parametrize("by_path", [False, True])
def test_an_orientation_that_nothing_tells_is_refused(tmp_path, matrix, files, by_path):
    path = write_folder(tmp_path, matrix, SQUARE, files)
    source = path if by_path else tmp_path
    with pytest.raises(ValueError, match="as many rows as columns.*transpose=True if its rows"):
        read_counts(source)
    for transpose, expected in ((True, SQUARE.T), (False, SQUARE)):
        counts = read_counts(source, transpose=transpose)
        np.testing.assert_array_equal(dense(counts), expected)


def test_a_bare_matrix_of_10x_is_refused_and_any_other_has_samples_as_rows(tmp_path):
    path = write_folder(tmp_path, "GSM1_matrix.mtx", TABLE.T, {})
    with pytest.raises(ValueError, match=r"has shape \(4, 3\), and no barcodes.*transpose=True"):
        read_counts(path)
    other = path.rename(tmp_path / "documents.mtx")
    counts = read_counts(other)
    assert counts.shape == (4, 3) and "assumed to be samples" in counts.report()
    with pytest.raises(ValueError, match="transpose=False if they are samples"):
        read_counts(tmp_path)


def test_each_matrix_has_its_own_names(tmp_path):
    for sample, factor in (("GSM1_A", 1), ("GSM2_B", 2)):
        names = [f"{sample}-{cell}" for cell in CELLS]
        files = {f"{sample}_barcodes.tsv": lines(names)}
        write_folder(tmp_path, f"{sample}_matrix.mtx", TABLE.T * factor, files)
    write_text(tmp_path / "GSE1_features.tsv.gz", FEATURES)
    for sample, factor in (("GSM1_A", 1), ("GSM2_B", 2)):
        counts = read_counts(tmp_path / f"{sample}_matrix.mtx")
        np.testing.assert_array_equal(dense(counts), TABLE * factor)
        assert counts.sample_names[0] == f"{sample}-AAC-1"
        assert counts.feature_names.tolist() == GENES
    with pytest.raises(ValueError, match="GSM1_A_matrix.mtx, GSM2_B_matrix.mtx; pass the path"):
        read_counts(tmp_path)


def test_folders_with_more_than_one_matrix(tmp_path):
    files = {"barcodes.tsv": BARCODES, "features.tsv": FEATURES}
    write_folder(tmp_path, "matrix.mtx", TABLE.T, files)
    write_folder(tmp_path, "matrix.mtx", TABLE.T, {}, packed=True)
    write_folder(tmp_path, "UniqueAndMult-EM.mtx", TABLE.T * 2, {})
    np.testing.assert_array_equal(dense(read_counts(tmp_path)), TABLE)
    alevin = tmp_path / "quants" / "alevin"
    alevin.mkdir(parents=True)
    write_folder(alevin, "quants_mat.mtx", TABLE, {"quants_mat_rows.txt": lines(CELLS, "123")})
    assert read_counts(alevin.parent).sample_names.tolist() == CELLS


def test_files_that_do_not_fit(tmp_path):
    path = write_folder(tmp_path, "matrix.mtx", TABLE.T, {"barcodes.tsv": BARCODES + "CCC-1\n"})
    # a fourth barcode would fit the other side
    write_text(tmp_path / "genes.tsv", lines(IDS))
    with pytest.raises(ValueError, match=r"name 4 barcodes and 4 features \(barcodes.tsv, genes"):
        read_counts(path)
    write_text(tmp_path / "barcodes.tsv", BARCODES)
    with pytest.raises(ValueError, match="3 barcodes and 4 features.*leave transpose= out"):
        read_counts(path, transpose=False)
    write_text(tmp_path / "my_genes.tsv", "ACTB\n")
    assert read_counts(path).feature_names.tolist() == IDS


def test_lists_of_a_few_genes_are_no_names(tmp_path):
    """Nor do they tell which side is the samples', though there are as many as samples."""
    few = "CD4\nCD8A\nMS4A1\n"
    path = write_folder(tmp_path / "a", "counts.mtx", TABLE, {"marker_genes.txt": few})
    np.testing.assert_array_equal(dense(read_counts(path)), TABLE)
    files = {"genes.txt": "CD4\n", "barcodes.tsv": BARCODES}
    path = write_folder(tmp_path / "b", "counts.mtx", TABLE.T, files)
    counts = read_counts(path)
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.sample_names.tolist() == CELLS and counts.feature_names is None
    assert "genes.txt has 1 lines, and was not used" in counts.report()
    files = {"marker_genes.txt": few, "barcodes.tsv": BARCODES}
    path = write_folder(tmp_path / "c", "matrix.mtx", TABLE.T, files)
    np.testing.assert_array_equal(dense(read_counts(path)), TABLE)
    (tmp_path / "c" / "marker_genes.txt").write_bytes(b"\xe9\n")
    assert "is not UTF-8" in read_counts(path).report()


def test_a_line_without_its_type_is_named(tmp_path):
    types = ["Gene Expression", "Antibody Capture"] * 2
    ragged = lines(IDS, GENES, types).replace("\tCD8A\tGene Expression", "")
    write_folder(
        tmp_path, "matrix.mtx", TABLE.T, {"features.tsv": ragged, "barcodes.tsv": BARCODES}
    )
    with pytest.raises(
        ValueError, match=rf"^{tmp_path}/features.tsv, line 3: \['ENSG3'\] lacks the symbol"
    ):
        read_counts(tmp_path)
    write_text(tmp_path / "features.tsv", ragged.replace("ENSG3", "ENSG3\tCD8A"))
    with pytest.raises(ValueError, match=r"line 3: .* lacks the type, .* line 1: \['ENSG1', "):
        read_counts(tmp_path)
    # an empty symbol is another matter: the identifier takes its place
    write_text(tmp_path / "features.tsv", ragged.replace("ENSG3", "ENSG3\t\tGene Expression"))
    counts = read_counts(tmp_path)
    np.testing.assert_array_equal(dense(counts), TABLE[:, ::2])
    assert counts.feature_names.tolist() == ["ACTB", "ENSG3"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_and_ends_of_lines(tmp_path, encoding, end):
    words = ["\u00e9t\u00e9", "\u00eat\u00e9", "a\u2028b", "\x85c\x0b"]
    write_docword(tmp_path / "docword.a.txt", sp.coo_array(TABLE))
    text = end.join([*words, "", " ", ""])
    (tmp_path / "vocab.a.txt").write_bytes(text.encode(encoding))
    assert read_counts(tmp_path / "docword.a.txt").feature_names.tolist() == words
    folder = tmp_path / "folder"
    write_folder(folder, "matrix.mtx", TABLE.T, {})
    (folder / "features.tsv").write_bytes(text.encode(encoding))
    (folder / "barcodes.tsv").write_bytes(end.join([*CELLS, "", ""]).encode(encoding))
    counts = read_counts(folder)
    np.testing.assert_array_equal(dense(counts), TABLE)
    assert counts.sample_names.tolist() == CELLS and counts.feature_names.tolist() == words


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            "été\nêté\na\nb\n".encode("latin-1"),
            "is not UTF-8 .*byte 0.: save it as UTF-8.*line 1; .*iconv",
        ),
        ("a\nb\nc\nête".encode("latin-1"), "is not UTF-8 .*at byte 6.*in line 4"),
        ("a\nb\nc\nd\n".encode("utf-16-le"), "line 1: there is a byte of value 0.*UTF-16"),
        (gzip.compress(b"a\nb\nc\nd\n")[:-6], "gzip stream is damaged or was cut off"),
    ],
)
def test_names_that_cannot_be_read(tmp_path, data, said):
    write_docword(tmp_path / "docword.a.txt", sp.coo_array(TABLE))
    (tmp_path / "vocab.a.txt.gz").write_bytes(data)
    with pytest.raises(ValueError, match=f"^{tmp_path}/vocab.a.txt.gz.*{said}"):
        read_counts(tmp_path / "docword.a.txt")
    write_folder(tmp_path, "matrix.mtx", TABLE.T, {"barcodes.tsv": BARCODES})
    (tmp_path / "genes.tsv").write_bytes(data)
    with pytest.raises(ValueError, match=f"^{tmp_path}/genes.tsv.*{said}"):
        read_counts(tmp_path)


def test_the_first_bytes_tell_whether_a_file_is_compressed(tmp_path):
    files = {"barcodes.tsv": BARCODES, "features.tsv": FEATURES}
    for packed in (False, True):
        folder = tmp_path / str(packed)
        write_folder(folder, "matrix.mtx", TABLE.T, files, packed)
        for path in list(folder.iterdir()):
            name = path.name.removesuffix(".gz") + ".gz" * (not packed)
            path.rename(path.with_name(name))
        counts = read_counts(folder)
        np.testing.assert_array_equal(dense(counts), TABLE)
        assert counts.feature_names.tolist() == GENES
    docword = write_docword(tmp_path / "docword.a.txt", sp.coo_array(TABLE))
    counts = read_counts(docword.rename(tmp_path / "docword.a.txt.gz"))
    np.testing.assert_array_equal(dense(counts), TABLE)
