"""Symbols of genes in place of the identifiers that a fit has: in the shell and in reports."""

import csv

import numpy as np
import pytest

import nmfscale
from nmfscale.cli import main
from nmfscale.models.topics.symbols import symbols_by_name, with_symbols

anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")

X, _ = nmfscale.datasets.simulate_topic_counts(60, 12, 2, random_state=0)
IDS = [f"ENSG{j:03}" for j in range(12)]
SYMBOLS = [f"SYM{j}" for j in range(10)] + ["SYM0", None]
SHOWN = ["SYM0_ENSG000", *SYMBOLS[1:10], "SYM0_ENSG010", "ENSG011"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("symbols")
    adata = anndata.AnnData(X.toarray(), var=pd.DataFrame({"hgnc": SYMBOLS}, index=IDS))
    adata.write_h5ad(path / "cells.h5ad")
    named = adata[:, ::-1].copy()  # named by symbols, with the identifiers in var
    named.var["gene_ids"] = named.var_names
    named.var_names = named.var["hgnc"].astype(object).fillna("").tolist()
    named.write_h5ad(path / "named.h5ad")
    table = [*zip(IDS, [each or "" for each in SYMBOLS], strict=True)]
    with (path / "genes.csv").open("w") as file:
        csv.writer(file).writerows([("gene_id", "symbol"), *table])
    lines = [f"{name}\t{symbol}\tGene Expression\n" for name, symbol in table]
    (path / "features.tsv").write_text("".join(lines))
    nmfscale.TopicModel(2, random_state=0).fit(adata).save(path / "model.h5")
    return path


def features(path):
    with path.open() as file:
        return [row[0] for row in csv.reader(file)][1:]


@pytest.mark.parametrize("given", ["cells.h5ad:hgnc", "named.h5ad", "genes.csv", "features.tsv"])
def test_symbols_of_any_file(folder, given, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    table = tmp_path / "table.csv"
    export = ["export", "model.h5", "--table", "components", "-o", str(table)]
    assert main([*export, "--gene-symbols", given]) == 0
    assert features(table) == SHOWN


def test_every_command_that_shows_features(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("bokeh")
    monkeypatch.chdir(folder)
    model = nmfscale.load("model.h5")
    assert main(["info", "model.h5", "--gene-symbols", "genes.csv"]) == 0
    assert main(["plot", "model.h5", "--kind", "top", "--gene-symbols", "genes.csv",
                 "-o", str(tmp_path / "top.svg")]) == 0  # fmt: skip
    table = tmp_path / "table.csv"
    # the name of a column is enough where the counts are at hand
    assert main(["differential", "model.h5", "cells.h5ad", "--gene-symbols", "hgnc",
                 "--split", "none",
                 "-o", str(table), "-o", str(tmp_path / "result.h5")]) == 0  # fmt: skip
    with table.open() as file:
        assert {row["feature"] for row in csv.DictReader(file)} == {*SHOWN}
    model.save(tmp_path / "other.h5")
    programs = ["cluster-topics", "model.h5", str(tmp_path / "other.h5"), "--table", "consensus"]
    consensus = tmp_path / "consensus.csv"
    assert main([*programs, "--gene-symbols", "genes.csv", "-o", str(consensus)]) == 0
    assert features(consensus) == SHOWN
    words = nmfscale.load_result(tmp_path / "result.h5").origin.topic_words
    assert "SYM" in words[0] and "ENSG" not in words[0].replace("SYM0_ENSG", "")  # labels of plots
    report = ["report", "model.h5", "cells.h5ad", "-o", str(tmp_path / "r.html")]
    assert main([*report, "--gene-symbols", "hgnc", "--results", str(tmp_path / "result.h5")]) == 0
    assert "SYM1" in capsys.readouterr().out
    page = (tmp_path / "r.html").read_text()
    assert '"SYM1"' in page and '"SYM0_ENSG010"' in page
    assert not any(f'"{name}"' in page for name in IDS[:11])
    again = nmfscale.write_report(
        model, tmp_path / "again.html", anndata.read_h5ad("cells.h5ad"), gene_symbols="hgnc"
    ).read_text()
    assert '"SYM1"' in again and '"ENSG001"' not in again
    assert '"ENSG011"' in again  # without a symbol
    missing = pd.Series(SYMBOLS, IDS, dtype="string")
    assert symbols_by_name(missing, model).keys() == {*IDS}
    assert with_symbols(model, symbols_by_name(missing, model)).feature_names_in_.tolist() == SHOWN
    assert with_symbols(model, {}).feature_names_in_.tolist() == IDS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "cells.h5ad:symbol",
            "there is no column 'symbol', as cells.h5ad:COLUMN; its columns: 'hgnc'",
        ),
        ("cells.h5ad", "add a column with symbols"),
        ("other.csv", "has none of the 12 features of the model"),
        ("nowhere.csv", "error: No such file: nowhere.csv"),
    ],
)
def test_what_is_wrong_is_named(folder, given, message, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "other.csv").write_text("gene_id,symbol\nENSMUS1,Cd3d\n")
    assert main(["info", "model.h5", "--gene-symbols", given]) == 1
    assert message in capsys.readouterr().err


def test_counts_with_other_names_are_matched_by_a_column(folder):
    model, path = nmfscale.load(folder / "model.h5"), folder / "named.h5ad"
    with pytest.raises(ValueError, match=r"has none of the 12 .*choose it by names=.*--names"):
        model.transform(path)
    with pytest.warns(UserWarning, match="matched by name"):
        found = model.transform(path, names="gene_ids")
    assert np.allclose(found, model.transform(folder / "cells.h5ad"))


def test_symbols_in_python_are_checked(folder, tmp_path):
    pytest.importorskip("bokeh")
    model, path = nmfscale.load(folder / "model.h5"), tmp_path / "report.html"
    for given, message in [
        (["a"], "gene_symbols has 1 entries, and the model 12 features"),
        (pd.Series(["a"], ["b"]), "has no symbol for any feature of the model, such as 'ENSG000'"),
        ("hgnc", "name of a column of var of an AnnData object"),
    ]:
        with pytest.raises(ValueError, match=message):
            nmfscale.write_report(model, path, gene_symbols=given)
    nameless = nmfscale.TopicModel(2, random_state=0).fit(np.asarray(X.toarray()))
    with pytest.raises(ValueError, match="no names of features"):
        nmfscale.write_report(nameless, path, gene_symbols=SYMBOLS)
    assert not path.exists()
