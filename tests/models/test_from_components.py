"""Models whose components are a table: the same loadings as the fit that the table comes from."""

import numpy as np
import pytest

import nmfscale
from nmfscale import FrobeniusNMF, PoissonNMF, TopicModel
from nmfscale.datasets import simulate_topic_counts

pd = pytest.importorskip("pandas")
anndata = pytest.importorskip("anndata")

X = simulate_topic_counts(60, 40, 3, random_state=0)[0].toarray()
GENES = [f"g{j}" for j in range(X.shape[1])]
CELLS = pd.DataFrame(X, columns=GENES)
TABLE = pd.DataFrame(
    TopicModel(3, random_state=0).fit(X).components_, index=["a", "b", "c"], columns=GENES
)
BATCH = np.repeat(["x", "y", "z"], 20)


@pytest.mark.parametrize("kind", [TopicModel, PoissonNMF, FrobeniusNMF])
def test_loadings_are_those_of_the_fit(kind):
    fit = kind(3, random_state=0, tol=1e-6, max_iter=3000).fit(CELLS)
    made = kind.from_components(fit.components_, feature_names=GENES)
    # of a fit, the precision of a Frobenius NMF follows from its loadings
    np.testing.assert_allclose(made.transform(CELLS), fit.transform(CELLS), atol=1e-8)
    assert made.score(CELLS) == pytest.approx(fit.score(CELLS))


def test_forms_of_a_table(tmp_path):
    """Either direction, any scale, text with and without a header for names, and a saved model."""
    made = TopicModel.from_components(TABLE)
    path, model_file = tmp_path / "programs.tsv.gz", tmp_path / "model.h5"
    (TABLE.T * 7).to_csv(path, sep="\t")
    from_file = TopicModel.from_components(path)
    from_file.save(model_file)
    for other in (
        TopicModel.from_components(TABLE.T),
        TopicModel.from_components(TABLE.to_numpy().T, feature_names=GENES).rename_topics(
            ["a", "b", "c"]
        ),
        from_file,
        nmfscale.load(model_file),
    ):
        np.testing.assert_allclose(other.components_, made.components_, rtol=1e-13)
        assert other.topic_names_.tolist() == ["a", "b", "c"]
        assert other.feature_names_in_.tolist() == GENES
    assert nmfscale.load(model_file).from_table_ == "programs.tsv.gz"
    assert not hasattr(from_file.fit(CELLS), "from_table_")


def test_new_batches_have_efficiencies(tmp_path):
    made = TopicModel.from_components(TABLE, batch_shape=20.0)
    fit = TopicModel(3, random_state=0, batch_shape=20.0).fit(X, batch=BATCH)
    fit.components_ = TABLE.to_numpy()
    fit.batches_ = np.array(["p", "q", "r"])  # of others: all of these are new
    expected = fit.transform(X, batch=BATCH)
    np.testing.assert_allclose(made.transform(CELLS, batch=BATCH), expected, atol=1e-12)
    np.testing.assert_array_equal(
        made.transform(CELLS), TopicModel.from_components(TABLE).transform(CELLS)
    )
    with pytest.raises(ValueError, match="batch_shape=10"):
        TopicModel.from_components(TABLE).transform(CELLS, batch=BATCH)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (TABLE - 1, "the weight of 'a', 'g0' is -.*gene_spectra_tpm"),
        (TABLE.where(TABLE > TABLE.min().min()), "is nan: fill in"),
        (TABLE.assign(**dict.fromkeys(GENES, 0)), "all weights of 'a' are 0"),
        (TABLE.iloc[:, :5], "3 rows and 5 columns, .* give features_in='rows'"),
        (TABLE.rename(columns={"g1": "g0"}), "several features of the same name, such as 'g0'"),
        (np.ones(3), r"components has shape \(3,\)"),
        ("programs.bin", "no table of text"),
    ],
)
def test_tables_that_are_refused(table, match):
    with pytest.raises(ValueError, match=match):
        TopicModel.from_components(table)


def test_annotated_data_and_the_shell(tmp_path, monkeypatch, capsys):
    """Names of the counts say which axis has the features, also where lengths do not."""
    from nmfscale.cli import main

    monkeypatch.chdir(tmp_path)
    expected = TopicModel.from_components(TABLE).transform(CELLS)
    cells = CELLS.astype(float).rename(index=str)
    adata = anndata.AnnData(cells)
    nmfscale.tl.transform(adata, TABLE.T)
    np.testing.assert_array_equal(adata.obsm["X_topics"], expected)
    assert nmfscale.get.topics_df(adata).columns.tolist() == ["a", "b", "c"]
    with pytest.warns(UserWarning, match="X has 36 features"):
        nmfscale.tl.transform(adata, TABLE.iloc[:, :4], key_added="four")
    assert adata.varm["four"][4:].sum() == 0
    with pytest.raises(ValueError, match="no names of X among its rows"):
        nmfscale.tl.transform(adata, TABLE.add_prefix("h"))
    TABLE.to_csv("programs.csv")
    adata.write_h5ad("cells.h5ad")
    assert main(["transform", "programs.csv", "cells.h5ad", "-o", "out.csv", "-q"]) == 0
    loadings = pd.read_csv("out.csv", index_col=0, float_precision="round_trip")
    np.testing.assert_array_equal(loadings.to_numpy(), expected)
    assert loadings.columns.tolist() == ["a", "b", "c"]


def test_what_needs_samples_of_a_fit_says_so():
    made = TopicModel.from_components(TABLE)
    for use in (
        made.poisson_factors,
        lambda: made.merge_topics([["a", "b"]]),
        lambda: nmfscale.pl.structure_plot(made),
        lambda: nmfscale.bootstrap_fit(made, X),
    ):
        with pytest.raises(ValueError, match="components come from a table"):
            use()
