"""Tables of a model: what is in them, and where they go."""

import gzip
import os

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shell import failure, misuse, run

import nmfscale

K, N, M = 3, 30, 20
TABLES = ["loadings", "components", "top"]


@pytest.fixture(scope="module")
def counts():
    X = np.random.default_rng(0).poisson(1.0, (N, M)) * np.arange(1, N + 1)[:, None]
    X[:, 7] = 0  # a feature without counts
    names = {
        "index": [f'cell, "{i}"' for i in range(N)],
        "columns": [f"gene {j}" for j in range(M)],
    }
    return pd.DataFrame(X, **names)


def read(path, **options):
    return pd.read_csv(path, float_precision="round_trip", **options)


def saved(model, folder):
    model.save(folder / "model.h5")
    return folder / "model.h5"


def fitted(model, counts):
    return model(K, random_state=0, max_iter=20, tol=0).fit(counts)


@pytest.mark.parametrize("model", [nmfscale.PoissonNMF, nmfscale.TopicModel, nmfscale.LDA])
def test_tables_hold_the_model(tmp_path, capsys, counts, model):
    one, folder = fitted(model, counts), tmp_path / "new" / "tables"
    assert run("export", saved(one, tmp_path), "-o", folder, "--n-top", 4) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split() for line in said] == [[t, f"{folder / t}.csv"] for t in TABLES]
    tables = {name: read(folder / f"{name}.csv", index_col=0) for name in TABLES}
    assert not any(table.isna().any(axis=None) for table in tables.values())
    topics = [f"topic_{k}" for k in range(K)]
    for name, matrix, names in (
        ("loadings", one.loadings_, counts.index),
        ("components", one.components_.T, counts.columns),
    ):
        assert list(tables[name].columns) == topics and list(tables[name].index) == list(names)
        assert_array_equal(tables[name].to_numpy(), matrix)
    top = tables["top"]
    expected_names = nmfscale.get.top_features(one.components_, counts.columns, n_top=4)
    for k, topic in enumerate(topics):
        assert list(top.loc[topic, "rank"]) == [1, 2, 3, 4]
        assert list(top.loc[topic, "feature"]) == expected_names[k]
        at = counts.columns.get_indexer(expected_names[k])
        assert_array_equal(top.loc[topic, "value"], one.components_[k, at])
        # shares of the topic over those of the fitted counts
        is_lda = model is nmfscale.LDA
        default = counts.to_numpy().sum(axis=1) if is_lda else np.ones(N)
        sizes = getattr(one, "size_factors_", default)
        whole = (sizes[:, None] * one.loadings_ @ one.components_).sum(axis=0)
        share = one.components_[k, at] / one.components_[k].sum()
        assert_allclose(top.loc[topic, "lift"], share / (whole[at] / whole.sum()), rtol=1e-12)


def test_lift_of_an_lda_that_was_fitted_in_batches(tmp_path, counts):
    counts = counts.drop(columns="gene 7")
    one = nmfscale.LDA(K, random_state=0, total_samples=N).partial_fit(counts).partial_fit(counts)
    given = ["export", saved(one, tmp_path), "-o", tmp_path / "top.csv", "--table", "top"]
    assert run(*given, "--n-top", M) == 0
    top = pd.read_csv(tmp_path / "top.csv", index_col="feature")
    expected = one.topic_word_posterior_.sum(axis=0) - K * one.topic_word_prior_
    for k in range(K):
        lift = top.loc[top["topic"] == f"topic_{k}", "lift"]
        at = counts.columns.get_indexer(lift.index)
        share = one.components_[k, at] / (expected[at] / expected.sum())
        assert_allclose(lift, share, rtol=0.02)  # the topics have a prior, the counts have none


def test_topics_are_counted_from_0_everywhere(tmp_path, capsys, counts):
    pytest.importorskip("matplotlib")
    one = fitted(nmfscale.TopicModel, counts)
    model = saved(one, tmp_path)
    leading = nmfscale.get.top_features(one.components_, counts.columns)
    assert list(one.get_feature_names_out()) == [f"topicmodel{k}" for k in range(K)]
    assert run("info", model) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("topic ")]
    assert [line.split(None, 2)[1:] for line in lines] == [
        [str(k), ", ".join(leading[k])] for k in range(K)
    ]
    plots = nmfscale.pl
    for axes in (plots.structure_plot(one.loadings_), plots.top_features_plot(one.components_)):
        legend = axes.get_legend()
        texts = axes.texts if legend is None else legend.get_texts()
        found = {text.get_text() for text in texts if text.get_text().startswith("topic ")}
        assert found == {f"topic {k}" for k in range(K)}
    assert run("export", model, "-o", tmp_path / "top.tsv", "--table", "top", "--n-top", 1) == 0
    lines = (tmp_path / "top.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[:3] for line in lines] == [
        [f"topic_{k}", "1", leading[k][0]] for k in range(K)
    ]


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "tsv.gz"])
def test_formats(tmp_path, counts, ending):
    model = saved(fitted(nmfscale.TopicModel, counts), tmp_path)
    assert run("export", model, "-o", tmp_path / f"all.{ending}") == 0
    assert run("export", model, "-o", tmp_path, "--table", "loadings", "--format", ending) == 0
    content = (tmp_path / f"all.{ending}").read_bytes()
    written = (tmp_path / f"loadings.{ending}").read_bytes()
    if ending.endswith(".gz"):
        content, written = map(gzip.decompress, (content, written))
    assert content == written
    mark = "," if "csv" in ending else "\t"
    assert content.decode().splitlines()[0].split(mark) == [
        "sample",
        *(f"topic_{k}" for k in range(K)),
    ]


def test_what_has_no_lift_is_left_out(tmp_path, counts):
    """A topic without samples has equal shares of all features, of which one has no counts."""
    one = fitted(nmfscale.TopicModel, counts.to_numpy())
    one.components_[2], one.loadings_[:, 2], one.components_[:2, 7] = 1 / M, 0, 0
    assert run("export", saved(one, tmp_path), "-o", tmp_path, "--n-top", M) == 0
    top = pd.read_csv(tmp_path / "top.csv")
    assert np.isfinite(top["lift"]).all() and 7 not in set(top["feature"])
    there = (one.components_[:2] > 0).any(axis=0)
    assert len(top[top["topic"] == "topic_2"]) == there.sum() < M


def test_a_model_that_was_fitted_in_batches(tmp_path, capsys, counts):
    model = saved(nmfscale.LDA(K, random_state=0).partial_fit(counts), tmp_path)
    assert run("export", model, "-o", tmp_path / "tables") == 0
    assert "there will be no table of them" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path / "tables")) == ["components.csv", "top.csv"]
    assert "has no loadings" in failure(capsys, "export", model, "-o", tmp_path / "loadings.csv")


def test_refusals_come_first(tmp_path, capsys, counts):
    model = saved(fitted(nmfscale.TopicModel, counts), tmp_path)
    said = misuse(capsys, "export", "nowhere.h5", "-o", "tables.png")
    assert "tables.png must end with one of .csv, .tsv" in said and "or be a folder" in said
    words = ["export", "nowhere.h5", "-o", tmp_path / "a.csv", "--format", "tsv"]
    assert "--format is for a folder" in misuse(capsys, *words)
    (tmp_path / "file").touch()
    assert "is a file; pass a folder" in misuse(capsys, "export", model, "-o", tmp_path / "file")
    (tmp_path / "top.csv").write_text("precious")
    assert "top.csv exists" in failure(capsys, "export", model, "-o", tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["file", "model.h5", "top.csv"]
    assert run("export", model, "-o", tmp_path, "--force") == 0
    assert (tmp_path / "top.csv").read_text().startswith("topic,rank,feature,value,lift\n")


def test_tables_have_the_names_of_topics(tmp_path, capsys, counts):
    one = fitted(nmfscale.TopicModel, counts).rename_topics(["B cells", "T cells", "others"])
    path = saved(one, tmp_path)
    assert run("export", path, "-o", tmp_path / "tables") == 0
    for name in ("loadings", "components"):
        table = read(tmp_path / "tables" / f"{name}.csv", index_col=0)
        assert list(table.columns) == list(one.topic_names_)
    assert set(read(tmp_path / "tables" / "top.csv").topic) == set(one.topic_names_)
    assert run("info", path) == 0
    assert "\nT cells         gene" in capsys.readouterr().out
    assert run("plot", path, "--kind", "structure", "-o", tmp_path / "plot.svg") == 0
    assert run("plot", path, "--kind", "top", "-o", tmp_path / "plot.svg", "--force") == 0
