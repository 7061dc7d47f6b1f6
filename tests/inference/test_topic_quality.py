"""Quality of topics: numbers of gensim, a slow oracle and known truths; same bits anywhere."""

from itertools import combinations

import internals
import numpy as np
import pandas as pd
import pytest
from scipy.special import xlogy
from shell import run

from nmfscale import (
    LDA,
    AnchorNMF,
    PoissonNMF,
    TopicModel,
    as_counts,
    coherence,
    topic_quality,
    write_store,
)
from nmfscale.datasets import simulate_topic_counts
from nmfscale.get import top_features
from nmfscale.likelihood import deviance_poisson
from nmfscale.models.topics.notebook import topics_html
from nmfscale.pl import top_features_plot
from nmfscale.report.facts import keywords

# Six documents, the last one empty, and two topics with these frequencies.
DOCUMENTS = np.array([
    [3, 1, 0, 0, 2], [1, 0, 2, 0, 0], [2, 2, 0, 1, 0], [0, 0, 4, 1, 1], [0, 1, 1, 3, 0],
    [0, 0, 0, 0, 0],
])  # fmt: skip
TOPICS = np.array([[0.5, 0.3, 0.0, 0.15, 0.05], [0.0, 0.04, 0.46, 0.3, 0.2]])
NPMI, UMASS = [0.09914154292146504, 0.08728650238435266], [-0.636514168290813, -0.8675632284764614]


@pytest.fixture(scope="module")
def X():
    X = simulate_topic_counts(80, 40, 3, random_state=1)[0].toarray()
    X = X[:, np.sort(np.argsort(-X.sum(axis=0))[:30])]
    return pd.DataFrame(X).rename("cell {}".format).rename("gene {}".format, axis=1)


@pytest.fixture(scope="module")
def model(X):
    return TopicModel(3, random_state=0, tol=1e-7, gain_tol=0).fit(X)


def with_topics(X, topics):
    every = np.ones(len(topics), bool)
    return PoissonNMF(len(topics), max_iter=200).fit(X, components=topics, fixed_topics=every)


def test_coherences_of_gensim():
    """CoherenceModel of gensim 4.4: "c_npmi" with a window of a document, and "u_mass"."""
    found = topic_quality(with_topics(DOCUMENTS, TOPICS), DOCUMENTS, n_top=3)
    assert [top.tolist() for top in found.top_features] == [[0, 1, 3], [2, 3, 4]]
    np.testing.assert_allclose(found.npmi, NPMI, rtol=1e-12)
    np.testing.assert_allclose(found.umass, UMASS, rtol=1e-12)


def test_numbers_of_an_oracle(X, model):
    counts, n_top, w = X.to_numpy(), 6, 0.7
    found = topic_quality(model, X, n_top=n_top, frex_weight=w)
    f = model.components_ / model.components_.sum(axis=1, keepdims=True)
    p = (counts > 0).mean(axis=0)
    exclusivity = f / f.sum(axis=0)
    with np.errstate(divide="ignore"):
        relevance = 0.6 * np.log(f) + 0.4 * np.log(f / f.mean(axis=0))
    for k, topic in enumerate(f):
        top = np.argsort(-relevance[k])[:n_top]
        assert found.top_features[k].tolist() == top.tolist()
        npmi, umass = [], []
        for i, j in combinations(top, 2):
            both = ((counts[:, i] > 0) & (counts[:, j] > 0)).mean() + 1e-12
            npmi.append(np.log(both / p[i] / p[j]) / -np.log(both) if both < 1 else 0)
            umass.append(np.log(both / p[i]))
        ranks = (pd.Series(each).rank().to_numpy() / len(topic) for each in (exclusivity[k], topic))
        of_exclusivity, of_frequency = ranks
        frex = 1 / (w / of_exclusivity + (1 - w) / of_frequency)
        some = topic[topic > 0]
        amounts = model.loadings_[:, k] * counts.sum(axis=1)
        parts = amounts[amounts > 0] / amounts.sum()
        expected = {
            "npmi": np.mean(npmi), "umass": np.mean(umass), "exclusivity": frex[top].mean(),
            "effective_features": np.exp(-(some * np.log(some)).sum()),
            "effective_samples": np.exp(-(parts * np.log(parts)).sum()),
            "share": amounts.sum() / counts.sum(),
        }  # fmt: skip
        for name, value in expected.items():
            assert getattr(found, name)[k] == pytest.approx(value, rel=1e-9), name
    leading = np.concatenate(found.top_features)
    assert found.diversity == len(set(leading)) / len(leading)
    assert found.uniqueness.mean() == pytest.approx(found.diversity)


def test_deviance_of_an_oracle(X, model):
    counts = X.to_numpy()
    found = topic_quality(model, X)
    totals = counts.sum(axis=1, keepdims=True)
    shares = model.loadings_ @ model.components_
    for kind, mu in (
        ("deviance", totals * shares / shares.sum(axis=1, keepdims=True)),
        ("null_deviance", totals * counts.sum(axis=0) / counts.sum()),
    ):
        terms = 2 * (xlogy(counts, counts / np.where(counts, mu, 1)) - counts + mu)
        for axis, of in ((1, "sample"), (0, "feature")):
            expected = terms.sum(axis=axis)
            np.testing.assert_allclose(getattr(found, f"{of}_{kind}"), expected, rtol=1e-9)
    by_function = deviance_poisson(X, totals * model.loadings_, model.components_.T)
    np.testing.assert_allclose(found.sample_deviance, by_function, rtol=1e-6)
    # a sample and a feature that the topics do not explain
    odd = counts.copy()
    odd[7], odd[:, 4] = odd[7, ::-1], np.random.default_rng(0).permutation(odd[:, 4])
    found = topic_quality(TopicModel(3, random_state=0).fit(odd), odd)
    assert found.to_frame("samples").explained.idxmin() == 7
    assert found.to_frame("features").explained.idxmin() == 4


def test_topics_in_separate_blocks():
    """Features that always occur together, in topics that share nothing."""
    X = np.kron(np.eye(3, dtype=int), np.full((5, 4), 2))
    found = topic_quality(with_topics(X, np.kron(np.eye(3), np.ones(4))), X, n_top=4)
    np.testing.assert_allclose(found.npmi, 1)
    np.testing.assert_allclose(found.umass, 0, atol=1e-9)
    np.testing.assert_allclose(found.effective_features, 4)
    np.testing.assert_allclose(found.effective_samples, 5)
    np.testing.assert_allclose(found.uniqueness, 1)
    np.testing.assert_allclose(found.sample_deviance, 0, atol=1e-9)
    assert found.deviance_explained == pytest.approx(1)
    assert [top.tolist() for top in found.top_samples] == [
        list(range(first, first + 4)) for first in (0, 5, 10)
    ]


def test_same_bits_anywhere(X, model, tmp_path, monkeypatch):
    expected = topic_quality(model, X)
    assert expected.of_fit and "of the fit" in repr(expected)
    internals.small_blocks(monkeypatch, 100)
    store = write_store(X, tmp_path / "counts.nmf")
    order = np.random.default_rng(0).permutation(len(X))
    for source, exact in ((store, True), (as_counts(X), True), (X.iloc[order], False)):
        found = topic_quality(model, source)
        assert found.of_fit
        for kind in ("topics", "samples", "features", "top_features", "top_samples"):
            table, same = found.to_frame(kind), expected.to_frame(kind)
            if kind == "samples":
                table = table.set_index("sample").loc[same["sample"]].reset_index()
            pd.testing.assert_frame_equal(table, same, check_exact=exact, rtol=1e-9)


def test_ranges_of_samples(X, model, monkeypatch):
    expected = topic_quality(model, X)
    internals.small_ranges(monkeypatch, 33)
    found = topic_quality(model, X)
    for kind in ("topics", "samples", "features"):
        pd.testing.assert_frame_equal(found.to_frame(kind), expected.to_frame(kind), rtol=1e-9)


@pytest.mark.nightly
def test_workers_share_the_ranges(X, model, client, tmp_path, monkeypatch):
    internals.small_ranges(monkeypatch, 13)
    store = write_store(X.iloc[:40], tmp_path / "counts.nmf")
    with pytest.MonkeyPatch.context() as patch:
        internals.no_active_client(patch)
        expected = topic_quality(model, store)
    found = topic_quality(model, store, client=client)
    assert not found.of_fit
    for kind in ("topics", "samples", "features"):
        table = found.to_frame(kind)
        pd.testing.assert_frame_equal(table, expected.to_frame(kind), check_exact=True)


@pytest.mark.nightly
@pytest.mark.parametrize("measure", ["c_npmi", "u_mass", "c_v"])
def test_workers_count_pairs_of_words(X, model, client, tmp_path, monkeypatch, measure):
    expected = coherence(model, X, measure=measure, n_top=5)
    internals.small_ranges(monkeypatch, 13)
    for source in (X, write_store(X, tmp_path / "counts.nmf")):
        found = coherence(model, source, measure=measure, n_top=5, client=client)
        assert found.words == expected.words and found.n_windows == len(X)
        np.testing.assert_array_equal(found.coherence, expected.coherence)


def test_other_samples_and_models(X, model):
    other = topic_quality(model, X.iloc[:40])
    assert not other.of_fit and "transform" in repr(other) and len(other.sample_totals) == 40
    np.testing.assert_allclose(
        other.sample_deviance, topic_quality(model, X).sample_deviance[:40], rtol=1e-4
    )
    for make in (LDA, AnchorNMF):
        fit = make(3, random_state=0).fit(X) if make is LDA else make(3).fit(X)
        assert 0 < topic_quality(fit, X).deviance_explained < 1
    # features that were not measured have no part in sums
    half = X.to_numpy() * np.where(np.arange(80)[:, None] < 40, np.arange(30) < 20, True)
    panel = np.repeat([0, 1], 40)
    measured = np.stack([np.arange(30) < 20, np.ones(30, bool)])
    fit = PoissonNMF(3, random_state=0).fit(half, measured=measured, panel=panel)
    found = topic_quality(fit, half)
    mu = fit.loadings_ @ fit.components_ * measured[panel]
    mu *= half.sum(axis=1, keepdims=True) / mu.sum(axis=1, keepdims=True)
    terms = xlogy(half, half / np.where(half, mu, 1)) - half + mu
    np.testing.assert_allclose(found.feature_deviance, 2 * terms.sum(axis=0), rtol=1e-9)


def test_empty_topics_and_samples_are_finite():
    X = np.vstack([DOCUMENTS, DOCUMENTS])
    X[:, 0] = 0
    found = topic_quality(with_topics(X, np.array([[1.0, 0, 0, 0, 0], [0, 1, 1, 1, 1]])), X)
    for name in ("topics", "samples", "features"):
        assert np.isfinite(found.to_frame(name).iloc[:, 1:].to_numpy(float)).all()
    assert found.npmi[0] == found.umass[0] == found.effective_samples[0] == 0
    assert [len(top) for top in found.top_features] == [1, 4]


def test_wrong_input(X, model):
    with pytest.raises(ValueError, match="model is a ndarray"):
        topic_quality(model.components_, X)
    with pytest.raises(ValueError, match="n_top"):
        topic_quality(model, X, n_top=0)
    with pytest.raises(ValueError, match="score is array.*; choices: relevance"):
        topic_quality(model, X, score=model.components_)
    with pytest.raises(ValueError, match=r"frex_weight is 2"):
        topic_quality(model, X, frex_weight=2)
    with pytest.raises(ValueError, match="Add columns of 0"):
        topic_quality(model, X.iloc[:, :20])
    with pytest.raises(ValueError, match="what='words'"):
        topic_quality(model, X).to_frame("words")


@pytest.mark.parametrize("score", [None, "probability"])
def test_the_features_that_are_measured_are_those_shown(X, model, tmp_path, capsys, score):
    """In tables, notebooks, plots, the shell and reports: one ranking, with the same option."""
    model.save(tmp_path / "model.h5")
    X.to_csv(tmp_path / "counts.csv")
    option, how = ([], {}) if score is None else (["--score", score], {"score": score})
    table = topic_quality(model, X, **how).columns("top_features")
    measured = table["feature"].reshape(3, 10).tolist()
    lines = [", ".join(words) for words in measured]
    assert top_features(model, **how) == measured
    drawn = [text.get_text() for text in top_features_plot(model, **how).texts]
    assert set(sum(measured, [])) < set(drawn)
    shown = keywords(model, 10)[score or "relevance"]
    assert [[word for word, _ in words] for words in shown] == measured
    file, out = tmp_path / "model.h5", tmp_path / "out"
    run("export", file, "-o", f"{out}1.csv", "--table", "top", *option)
    counts = tmp_path / "counts.csv", "--samples-in", "rows"
    run("topic-quality", file, *counts, "-o", f"{out}2.csv", "--table", "top_features", *option)
    for number in (1, 2):
        assert pd.read_csv(f"{out}{number}.csv").feature.tolist() == sum(measured, [])
    if score is None:  # those that have no option
        capsys.readouterr()
        run("info", tmp_path / "model.h5")
        printed = capsys.readouterr().out
        assert all(line in printed and line in topics_html(model) for line in lines)
