"""FrobeniusNMF: scikit-learn's objective, TF-IDF and penalties; recovery of simulated topics."""

import warnings

import numpy as np
import oracle
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from scipy.optimize import nnls
from sklearn.decomposition import NMF
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import GridSearchCV
from small_fits import X

import nmfscale
from nmfscale import FrobeniusNMF
from nmfscale.methods.projection.completion import split_counts

LONG = {"max_iter": 3000, "tol": 1e-10, "n_threads": 1}
RNG = np.random.default_rng(0)
NEW = RNG.poisson(0.4, (25, X.shape[1]))
NEW[3] = 0


@pytest.mark.parametrize("penalties", [{}, {"alpha_W": 2e-3, "alpha_H": 1e-3, "l1_ratio": 0.5}])
def test_ends_where_scikit_learn_does(penalties):
    counts, _ = nmfscale.datasets.simulate_topic_counts(80, 60, 3, random_state=0)
    dense = counts.toarray() / 10
    W, H = RNG.uniform(0.1, 1, (80, 3)), RNG.uniform(0.1, 1, (3, 60))
    theirs = NMF(3, init="custom", solver="cd", max_iter=3000, tol=1e-8, **penalties)
    found = theirs.fit_transform(dense, W=W.copy(), H=H.copy())
    ours = FrobeniusNMF(3, **penalties, **LONG).fit(dense, loadings=W, components=H)
    expected = oracle.frobenius_loss(dense, found, theirs.components_, **penalties)
    assert_allclose(ours.loss_, expected, rtol=1e-6)
    assert_allclose(ours.reconstruction_err_, theirs.reconstruction_err_, rtol=1e-5)
    assert_allclose(ours.inverse_transform(ours.loadings_), found @ theirs.components_, atol=0.02)
    if penalties:  # without them, scales differ
        assert_allclose(ours.transform(dense / 2), theirs.transform(dense / 2), atol=1e-3)


@pytest.mark.parametrize("weighting", ["tf-idf", "documents"])
def test_weighted_counts_are_those_of_scikit_learn(weighting):
    weigh = TfidfTransformer(use_idf=weighting == "tf-idf").fit(sp.csr_array(X))
    given = {"components": RNG.uniform(size=(4, X.shape[1]))}
    one = FrobeniusNMF(4, weighting=weighting, max_iter=30, tol=0).fit(X, **given)
    other = FrobeniusNMF(4, max_iter=30, tol=0).fit(weigh.transform(X), **given)
    assert_allclose(one.loss_, other.loss_, rtol=1e-9)
    assert_allclose(one.components_, other.components_, atol=1e-6)
    assert_allclose(one.transform(NEW), other.transform(weigh.transform(NEW)), atol=1e-6)
    assert_allclose(one.score(NEW), other.score(weigh.transform(NEW)), rtol=1e-6)
    if weighting == "tf-idf":
        assert_allclose(one.idf_, weigh.idf_, rtol=1e-14)
    else:
        assert one.idf_ is None


def test_loadings_and_the_score_are_least_squares():
    model = FrobeniusNMF(4, weighting="tf-idf", tol=1e-3).fit(X)
    assert_allclose(np.linalg.norm(model.components_, axis=1), 1)
    assert_allclose(model.transform(X), model.loadings_, atol=1e-9)
    weighted = NEW * model.idf_
    weighted = weighted / np.maximum(np.linalg.norm(weighted, axis=1), 1e-300)[:, None]
    expected = [nnls(model.components_.T, x)[0] for x in weighted]
    assert_allclose(model.transform(NEW), expected, atol=1e-8)
    left = ((weighted - expected @ model.components_) ** 2).sum()
    assert_allclose(model.score(NEW), 1 - left / (weighted**2).sum(), rtol=1e-9)
    assert_allclose(
        model.score(X), 1 - model.reconstruction_err_**2 / model.loadings_.any(axis=1).sum(),
        rtol=1e-9,
    )  # fmt: skip
    assert model.score(0 * NEW) == 0 and not model.transform(0 * NEW).any()
    assert not hasattr(model, "perplexity")


@pytest.mark.parametrize(
    "options, choices, best",
    [
        ({}, {"n_components": [1, 3, 6]}, 3),
        ({"weighting": "tf-idf"}, {"n_components": [1, 3, 6]}, 3),
        ({}, {"alpha_W": [0, 0.1, 2]}, 0.1),
    ],
)
def test_held_out_counts_choose_topics_and_penalties(options, choices, best):
    def held_out(model, X, y=None):
        return model.score(X, completion=0.5, random_state=0)

    counts, _ = nmfscale.datasets.simulate_topic_counts(300, 100, 3, random_state=0)
    search = GridSearchCV(FrobeniusNMF(3, **options), choices, scoring=held_out, cv=2).fit(counts)
    assert list(search.best_params_.values()) == [best]


@pytest.mark.parametrize("weighting", ["counts", "tf-idf"])
def test_the_score_of_held_out_counts(weighting):
    model = FrobeniusNMF(3, weighting=weighting).fit(X)
    halves = [
        split_counts(rows, NEW.shape[1], 0.25, np.random.RandomState(0))
        for rows in nmfscale.as_counts(NEW).chunks()
    ]
    ((seen, held),) = halves
    kept = np.asarray(seen.sum(axis=1)).ravel() > 0
    weighted, ratio = held.toarray()[kept].astype(float), 1 / 3
    if weighting == "tf-idf":
        weighted, ratio = weighted * model.idf_, 1
        norms = np.linalg.norm(weighted, axis=1, keepdims=True)
        weighted /= np.where(norms > 0, norms, 1)
    predicted = ratio * model.transform(seen[kept]) @ model.components_
    expected = 1 - ((weighted - predicted) ** 2).sum() / (weighted**2).sum()
    assert_allclose(model.score(NEW, completion=0.25, random_state=0), expected, rtol=1e-9)


def test_words_in_no_topic_are_part_of_the_norm_of_a_sample():
    model = FrobeniusNMF(1, weighting="tf-idf").fit([[9, 0], [9, 0], [0, 1]])
    assert not model.components_[0, 1]
    assert 0 < model.transform([[1, 1]])[0, 0] < 0.9


@pytest.mark.parametrize("init", ["nndsvd", "random"])
def test_topics_are_recovered(init):
    rng = np.random.default_rng(1)
    W, H = rng.gamma(0.3, size=(200, 4)), rng.gamma(0.3, size=(4, 80))
    H /= np.linalg.norm(H, axis=1, keepdims=True)
    model = FrobeniusNMF(4, init=init, tol=1e-9, max_iter=2000, random_state=0).fit(W @ H)
    assert model.converged_
    found = nmfscale.match_topics(H, model.components_)
    assert_allclose(model.reorder_topics(found.order).components_, H, atol=1e-3)


def test_penalties_make_topics_sparser():
    plain = FrobeniusNMF(4, weighting="tf-idf").fit(X)
    penalised = FrobeniusNMF(4, weighting="tf-idf", alpha_W=1e-3, l1_ratio=1.0).fit(X)
    assert (penalised.components_ == 0).mean() > (plain.components_ == 0).mean() + 0.05


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5, 1.0])
def test_strong_penalties(l1_ratio):
    """Topics that die lose their loadings; no topics at all are better than a worse optimum."""
    n_dead = n_none = 0
    for seed in range(3):
        counts = np.random.default_rng(seed).poisson(1.0, (12, 9))
        for alpha in (0.05, 0.2, 0.5):
            how = {"alpha_W": alpha, "l1_ratio": l1_ratio}
            model = FrobeniusNMF(4, init="random", random_state=seed, **how, **LONG)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                model.fit(counts)
            assert any("no topics" in str(one.message) for one in warned) != model.loadings_.any()
            W, H, none = model.loadings_, model.components_, (counts**2).sum() / 2
            loss = oracle.frobenius_loss(counts, W, H, alpha, alpha, l1_ratio)
            assert_allclose(model.loss_, loss)
            assert model.loss_ <= none
            assert_allclose(model.transform(counts), W, atol=1e-6)
            explained = 1 - ((counts - W @ H) ** 2).sum() / (2 * none)
            assert_allclose(model.score(counts), explained, atol=1e-6)
            assert_allclose(model.reconstruction_err_, np.sqrt(2 * none * (1 - explained)))
            dead = ~H.any(axis=1)
            assert not W[:, dead].any() and W[:, ~dead].any(axis=0).all()
            n_dead, n_none = n_dead + (0 < dead.sum() < 4), n_none + dead.all()
    assert l1_ratio < 1 or (n_dead and n_none)


def test_it_says_when_it_has_converged():
    model = FrobeniusNMF(3, tol=1e-3, random_state=0).fit(X)
    best = FrobeniusNMF(3, tol=1e-8, max_iter=2000).fit(X, components=model.components_)
    assert model.converged_ and model.history_["relative_gap"][-1] <= 1e-3
    assert model.loss_ - best.loss_ <= 3e-3 * best.loss_
    with pytest.warns(match="remaining decrease of the loss .relative. is .*, tol=1e-12"):
        FrobeniusNMF(3, tol=1e-12, max_iter=8).fit(X)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"weighting": "tfidf"}, {}, "'weighting' parameter.*tf-idf"),
        ({"l1_ratio": 2.0}, {}, "'l1_ratio' parameter"),
        ({"alpha_H": 1.0}, {}, "alpha_W=0 and alpha_H=1: a penalty of one factor"),
        ({}, {"components": -np.ones((3, X.shape[1]))}, "components"),
        ({}, {"loadings": np.ones((2, 3))}, "loadings"),
    ],
)
def test_bad_input(options, given, message):
    with pytest.raises(ValueError, match=message):
        FrobeniusNMF(3, **options).fit(X, **given)


def test_weighting_twice_gives_a_warning():
    weighted = TfidfTransformer().fit_transform(sp.csr_array(X)).astype(np.float32)
    with pytest.warns(UserWarning, match="all samples of X have norm 1, as after TF-IDF"):
        FrobeniusNMF(2, weighting="tf-idf").fit(weighted)


def test_a_fit_without_counts():
    model = FrobeniusNMF(2, weighting="tf-idf").fit(np.zeros((3, 4)))
    assert model.loss_ == 0 and not model.loadings_.any()
