"""Tables of text, and loom files."""

import gzip

import h5py
import numpy as np
import pytest
from count_files import write_text

import nmfscale
from nmfscale import as_counts, read_counts

X = np.random.default_rng(5).poisson(0.8, (9, 6))
CELLS, GENES = [f"cell {i}" for i in range(9)], [f"gene {j}" for j in range(6)]


def table(mark, rows, columns, values, corner="", quote=""):
    """Return the text of a table; corner=None leaves the field above the names out."""
    head = [] if columns is None else [[*([] if corner is None else [corner]), *columns]]
    names = [[name] for name in rows] if rows is not None else [[] for _ in values]
    lines = head + [[*name, *map(str, each)] for name, each in zip(names, values, strict=True)]
    return "".join(mark.join(f"{quote}{each}{quote}" for each in line) + "\n" for line in lines)


@pytest.mark.parametrize("in_memory", [True, False])
def test_tables_in_both_directions(tmp_path, in_memory):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(X, CELLS, GENES).to_csv(tmp_path / "pandas.csv.gz")
    texts = {
        "cells.csv": table(",", CELLS, GENES, X), "genes.tsv": table("\t", GENES, CELLS, X.T),
        "GSE1_genes.txt.gz": table("\t", GENES, CELLS, X.T, "gene"),
        "R.tsv": table("\t", GENES, CELLS, X.T, None, '"'),
        "spaces.txt": table(" ", "ab", "cd", X[:2, :2]),
        "excel.csv": "# made by hand\n\n" + table(";", CELLS, GENES, X) + "\n\n",
        "numbered.csv": table(",", range(9), GENES, X, "id"),
    }  # fmt: skip
    for name, text in texts.items():
        write_text(tmp_path / name, text)
    for name in ("pandas.csv.gz", *texts):
        path, way = tmp_path / name, "columns" if name[0] in "gGR" else "rows"
        found = as_counts(path, samples_in=way, in_memory=in_memory)
        expected = X[:2, :2] if name == "spaces.txt" else X
        np.testing.assert_array_equal(found.take_rows().toarray(), expected)
        if name != "spaces.txt":
            assert found.feature_names.tolist() == GENES
            assert found.sample_names[2] == ("2" if name == "numbered.csv" else "cell 2")
        assert as_counts(path, samples_in=way, mask_obs=[1]).shape == (1, found.shape[1])
    for columns in (GENES, None):
        write_text(tmp_path / "bare.csv", table(",", None, columns, X, None))
        found = as_counts(tmp_path / "bare.csv", samples_in="rows", in_memory=in_memory)
        np.testing.assert_array_equal(found.take_rows().toarray(), X)
        assert found.sample_names is None and (found.feature_names is None) == (columns is None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,a,b\nx,1,2\ny,3,\n", r"line 3: field 3 \('b'\) is empty"),
        ("id,a,b\nx,1,2\ny,3\n", "line 3: 2 fields, but other lines have 3"),
        ("id,a,b\nx,1,NA\n", r"line 2: field 3 \('b'\) holds 'NA', not a number"),
        ("id,a,b\nx,1,nan\n", "NaN"),
        ("id,a,b\nx,1,-2\n", r"row 0 \('x'\), column 1 \('b'\) holds -2"),
        ('id,a,b\n"x,1,2\ny,3,4\n', "line 2: unexpected end of data"),
        ("id,a,b\n", "has a header, but no lines"),
        ("", "table.csv is empty"),
    ],
)
def test_faults_of_tables_are_named(tmp_path, text, message):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_counts(tmp_path / "table.csv", samples_in="rows")


def test_the_direction_of_a_table_must_be_said(tmp_path):
    path = write_text(tmp_path / "table.tsv", table("\t", CELLS, GENES, X))
    for given in (None, "cells"):
        with pytest.raises(ValueError, match="give samples_in='rows' if each line is a sample"):
            nmfscale.TopicModel(2).fit(path, samples_in=given)
    with pytest.raises(ValueError, match="layer='x' does not apply .*; choices: samples_in"):
        read_counts(path, layer="x")
    packed = gzip.compress(path.read_bytes())
    (tmp_path / "cut.tsv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match="its gzip stream is damaged or was cut off"):
        read_counts(tmp_path / "cut.tsv.gz", samples_in="rows")
    path.write_bytes("id\ta\né\t1\n".encode("latin1"))
    with pytest.raises(ValueError, match="table.tsv is not UTF-8"):
        read_counts(path, samples_in="rows")


@pytest.mark.parametrize("in_memory", [True, False])
def test_loom(tmp_path, in_memory):
    path = tmp_path / "cells.loom"
    with h5py.File(path, "w") as file:
        file.create_dataset("matrix", data=X.T, chunks=(4, 4), compression="gzip")
        file["layers/spliced"] = X.T * 2
        file["row_attrs/Gene"], file["col_attrs/CellID"] = np.bytes_(GENES), np.bytes_(CELLS)
        file["row_attrs/Accession"] = np.bytes_([f"ENSG{j}" for j in range(6)])
        file["col_attrs/cluster"], file["col_attrs/late"] = np.arange(9) % 3, np.arange(9) > 5
    found = as_counts(path, in_memory=in_memory, groups="cluster")
    np.testing.assert_array_equal(found.take_rows().toarray(), X)
    assert found.feature_names.tolist() == GENES and found.sample_names.tolist() == CELLS
    assert found.groups.tolist() == [*[0, 1, 2] * 3] and "late" in found.obs
    options = {"layer": "spliced", "names": "Accession", "mask_obs": "late"}
    found = as_counts(path, in_memory=in_memory, **options)
    np.testing.assert_array_equal(found.take_rows().toarray(), 2 * X[6:])
    assert found.feature_names[0] == "ENSG0"
    with pytest.raises(ValueError, match="no layer 'x'; its layers: 'spliced'"):
        as_counts(path, layer="x")
