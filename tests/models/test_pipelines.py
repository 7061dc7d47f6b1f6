"""Pipelines of scikit-learn that end with a model, in place of the model."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import nmfscale

TEXTS = ["the cat sat", "the cat", "a gene of a cell", "gene of cells", "the cat and a gene"] * 4
GROUPS = ["cats", "cats", "genes", "genes", "both"] * 4


@pytest.fixture(scope="module")
def pipeline():
    words = CountVectorizer(token_pattern=r"\w+")
    return make_pipeline(words, nmfscale.TopicModel(2, random_state=0)).fit(TEXTS)


@pytest.fixture(scope="module")
def named(pipeline):
    """The same fit to counts with names."""
    import pandas as pd

    words = pipeline[:-1]
    table = pd.DataFrame(words.transform(TEXTS).toarray(), columns=words.get_feature_names_out())
    return nmfscale.TopicModel(2, random_state=0).fit(table), table


def test_tables_of_a_pipeline_equal_those_of_a_model_with_names(pipeline, named):
    model, table = named
    calls = [
        lambda fit, X: nmfscale.topic_quality(fit, X, n_top=3).to_frame("features"),
        lambda fit, X: nmfscale.differential_features(fit, X).to_frame(),
        lambda fit, X: nmfscale.permutation_test(
            fit, GROUPS, n_permutations=19, random_state=0
        ).to_frame(),
        lambda fit, X: nmfscale.experimental.jackknife_fit(fit, X, [(0, "gene")]).to_frame(),
        lambda fit, X: nmfscale.bootstrap_fit(
            fit, X, features=["gene"], n_replicates=2, random_state=0
        ).to_frame(),
        lambda fit, X: nmfscale.compare_fits(
            {"fit": fit}, X, held_out=X[:4], random_state=0
        ).to_frame().drop(columns="seconds"),
    ]  # fmt: skip
    for call in calls:
        of_pipeline, of_model = call(pipeline, TEXTS), call(model, table)
        assert of_pipeline.equals(of_model)
    assert nmfscale.get.top_features(pipeline) == nmfscale.get.top_features(model)
    assert nmfscale.match_topics(pipeline, model).similarity.min() > 0.999


def test_the_estimator_of_select_k_and_stability_may_be_a_pipeline(named):
    unfitted = make_pipeline(
        CountVectorizer(token_pattern=r"\w+"), nmfscale.TopicModel(2, init="random")
    )
    table = named[1]
    scores = []
    for given in ((unfitted, TEXTS), (unfitted[-1], table)):
        found = nmfscale.stability(*given, n_starts=4, random_state=0)
        names = found.model.feature_names_in_.tolist()
        assert names == table.columns.tolist()
        chosen = nmfscale.select_k(*given, [1, 2], n_splits=1, random_state=0)
        scores.append(chosen.to_frame()["score"].tolist())
    assert scores[0] == scores[1]
    assert not hasattr(unfitted[0], "vocabulary_")


def test_plots_of_a_pipeline(pipeline, named):
    pytest.importorskip("matplotlib").use("Agg")
    ax = nmfscale.pl.top_features_plot(pipeline)
    shown = {text.get_text() for text in ax.texts}
    assert {"gene", "cat"} <= shown
    bars = nmfscale.pl.structure_plot(pipeline, GROUPS).collections[-1]
    expected = nmfscale.pl.structure_plot(named[0].loadings_, GROUPS).collections[-1]
    for one, other in zip(bars.get_paths(), expected.get_paths(), strict=True):
        np.testing.assert_allclose(one.vertices, other.vertices, atol=1e-12)
    assert len(nmfscale.pl.progress_plot(pipeline).lines) == 1


def test_the_structure_plot_of_a_poisson_nmf_is_that_of_expected_counts():
    pytest.importorskip("matplotlib").use("Agg")
    X = nmfscale.datasets.simulate_topic_counts(30, 20, 3, random_state=0)[0]
    topics = nmfscale.TopicModel(3, random_state=0).fit(X)
    L, F = topics.poisson_factors()
    poisson = nmfscale.PoissonNMF(3, random_state=0).fit(X)
    poisson.loadings_, poisson.components_ = L * [1, 10, 100], F.T / [[1], [10], [100]]
    bars, expected = (nmfscale.pl.structure_plot(fit).collections[-1] for fit in (poisson, topics))
    for one, other in zip(bars.get_paths(), expected.get_paths(), strict=True):
        np.testing.assert_allclose(one.vertices, other.vertices, atol=1e-6)


def test_model_of_a_pipeline_can_be_saved_with_names(pipeline, tmp_path):
    model = nmfscale.get.model(pipeline)
    assert not hasattr(pipeline[-1], "feature_names_in_")  # the fitted pipeline is not changed
    model.save(tmp_path / "model.h5")
    again = nmfscale.load(tmp_path / "model.h5")
    assert again.feature_names_in_.tolist() == pipeline[0].get_feature_names_out().tolist()
    with pytest.raises(ValueError, match="mod='rna' is for MuData objects"):
        nmfscale.get.model(pipeline, mod="rna")


def test_steps_without_names_leave_the_model_without_names():
    steps = CountVectorizer(), FunctionTransformer(lambda X: X * 2), nmfscale.TopicModel(2)
    pipeline = make_pipeline(*steps).fit(TEXTS)
    assert nmfscale.get.top_features(pipeline)[0][0].startswith("feature ")
    weighted = make_pipeline(
        CountVectorizer(), TfidfTransformer(), nmfscale.PoissonNMF(2, integer="allow")
    ).fit(TEXTS)
    assert "gene" in nmfscale.get.top_features(weighted)[0] + nmfscale.get.top_features(weighted)[1]
    assert nmfscale.topic_quality(weighted, TEXTS).feature_names is not None


def test_samples_of_a_series_of_texts_are_named(pipeline):
    pd = pytest.importorskip("pandas")
    texts = pd.Series(TEXTS, index=[f"text {i}" for i in range(len(TEXTS))])
    found = nmfscale.topic_quality(pipeline, texts).to_frame("samples")
    assert found["sample"].tolist() == texts.index.tolist()


def test_wrong_pipelines_are_refused(pipeline):
    classifier = make_pipeline(CountVectorizer(), nmfscale.TopicModel(2), LogisticRegression()).fit(
        TEXTS, GROUPS
    )
    with pytest.raises(ValueError, match=r"'LogisticRegression'.*pipeline\[:-1\]"):
        nmfscale.get.top_features(classifier)
    with pytest.raises(NotFittedError):
        nmfscale.get.model(make_pipeline(CountVectorizer(), nmfscale.TopicModel(2)))
    with pytest.raises(ValueError, match=r"X is a matrix of shape \(20, .*which takes texts"):
        nmfscale.topic_quality(pipeline, pipeline[0].transform(TEXTS))
