"""Collapsed variational LDA (CVB0): its updates, its priors, topics of short samples."""

import numpy as np
import oracle
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment
from scipy.special import psi
from scipy.stats import binom
from small_fits import X

import nmfscale
from nmfscale import kernels
from nmfscale.counts.aligned import aligned_copy
from nmfscale.methods.variational.collapsed import mean_digamma


def fit(counts=X, n_components=3, **options):
    options = {"max_iter": 1, "tol": 0, "random_state": 0, "n_threads": 1} | options
    return nmfscale.LDA(n_components, inference="collapsed", **options).fit(counts)


@pytest.mark.parametrize("counts", [X, X / 4], ids=["whole", "fractions"])
def test_an_iteration_is_that_of_the_oracle(counts):
    rng = np.random.default_rng(0)
    n, m = counts.shape
    gamma, topics = rng.gamma(1.0, size=(n, 3)) + 0.2, rng.gamma(2.0, size=(3, m)) + 0.1
    found = nmfscale.LDA(
        3, inference="collapsed", doc_topic_prior=0.2, topic_word_prior=0.1, max_iter=1, tol=0,
        integer="allow",
    ).fit(counts, components=topics, loadings=gamma)  # fmt: skip
    shares, _ = oracle.share_out(counts, gamma - 0.2, topics.T - 0.1, np.full(3, 0.2), 0.1)
    shares *= counts[..., None]
    assert_allclose(found.doc_topic_posterior_, shares.sum(axis=1) + 0.2, rtol=1e-12)
    assert_allclose(found.topic_word_posterior_, shares.sum(axis=0).T + 0.1, rtol=1e-12)


def test_alpha_uses_the_expectation_over_counts_that_may_be_zero():
    # of binomial numbers the probability of 0 is exact; psi is then taken at a mean
    n, p = np.array([1.0, 2.0, 5.0]), np.array([0.9, 0.2, 0.05])
    found = mean_digamma(n * p, n * p * p, np.full(3, 0.3), 1)
    excess = [lambda x: psi(x + 0.3) - psi(0.3)] * 3
    exact = [binom(*each).expect(f) for *each, f in zip(n, p, excess, strict=True)]
    assert_allclose(found, exact, rtol=0.02)
    assert_allclose(found[0], exact[0], rtol=1e-6)  # a single count
    plug_in = psi(n * p + 0.3) - psi(0.3)
    assert np.all(plug_in[1:] > 1.2 * found[1:])


def test_probabilities_of_a_count_beside_the_others_of_its_sample():
    # two words: the score of each is that of the topics mixed by alpha and the share of the other
    topics, alpha = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]), np.array([0.4, 0.4])
    model = fit(np.array([[3, 1, 2], [1, 3, 2]]), 2, doc_topic_prior=0.4)
    model.topic_word_posterior_ = topics
    counts, N = np.array([[1, 0, 1]]), np.full(2, 1.0)
    for _ in range(500):
        shares = topics[:, [0, 2]] * (N + alpha)[:, None]
        shares /= shares.sum(axis=0)
        shares = topics[:, [0, 2]] * (np.maximum(N[:, None] - shares, 0) + alpha[:, None])
        terms, N = shares.sum(axis=0), (shares / shares.sum(axis=0)).sum(axis=1)
    model.set_params(mean_change_tol=0)
    expected = np.log(terms / (1 + alpha.sum())).mean()
    assert_allclose(model.score(counts), expected, rtol=1e-9)
    assert_allclose(model.transform(counts)[0], (N + alpha) / (2 + alpha.sum()), rtol=1e-9)


def test_topics_of_short_samples_are_found():
    rng = np.random.default_rng(1)
    topics = rng.dirichlet(np.full(60, 0.1), size=4)
    proportions = rng.dirichlet(np.full(4, 0.1), size=3000)
    counts = np.array([rng.multinomial(6, row) for row in proportions @ topics])
    distances = {}
    for inference in ("collapsed", "mean-field"):
        model = nmfscale.LDA(4, inference=inference, random_state=0, n_threads=1).fit(counts)
        apart = np.abs(model.components_[:, None] - topics).sum(axis=2) / 2
        distances[inference] = apart[linear_sum_assignment(apart)].mean()
    assert distances["collapsed"] < 0.06 and distances["collapsed"] < 0.5 * distances["mean-field"]


def test_what_collapsed_inference_refuses():
    with pytest.raises(ValueError, match="topic_word_prior=0 is for inference='mean-field'"):
        fit(topic_word_prior=0)
    with pytest.raises(AttributeError) as found:
        nmfscale.LDA(2, inference="collapsed").partial_fit(X)
    assert "collapsed inference needs all samples" in str(found.value.__cause__)
    design = aligned_copy(np.zeros((16, 4)))
    with pytest.raises(ValueError, match="a collapsed step needs alpha, total"):
        kernels.RowProblem(design, None, 3, step=kernels.COLLAPSED)


def short_samples(n=400, m=40, K=4):
    rng = np.random.default_rng(2)
    topics, proportions = rng.dirichlet(np.full(m, 0.1), K), rng.dirichlet(np.full(K, 0.1), n)
    return np.array([rng.multinomial(6, row) for row in proportions @ topics])


def test_a_fit_with_held_out_samples_returns_the_topics_that_predict_them_best(tmp_path):
    counts = short_samples()
    options = {"max_iter": 120, "tol": 1e-12, "validation_fraction": 0.25, "n_iter_no_change": 15}
    model = fit(counts, 8, **options)
    scores = model.history_["held_out"]
    best = int(scores.argmax())
    assert model.stop_reason_ == "converged" and scores[-1] == scores.max()
    assert 15 <= model.n_iter_ - best <= 20 and best % 5 == 4

    # held-out samples have the proportions of new samples, and no influence on topics
    held = np.flatnonzero(np.all(np.isclose(model.transform(counts), model.loadings_), axis=1))
    assert 100 <= len(held) < 150
    changed = counts.copy()
    changed[held] = np.roll(counts[held], 1, axis=0)
    short = [fit(each, 8, **options | {"tol": 0, "max_iter": 10}) for each in (counts, changed)]
    one, other = (each.history_[:-1] for each in short)
    assert np.array_equal(one["leave_one_out"], other["leave_one_out"])
    assert not np.array_equal(one["held_out"], other["held_out"])

    nmfscale.write_store(counts, tmp_path / "counts.nmf")
    stored = fit(tmp_path / "counts.nmf", 8, n_threads=2, **options)
    for name in ("loadings_", "components_", "doc_topic_posterior_"):
        assert np.array_equal(getattr(stored, name), getattr(model, name))


def test_which_fits_can_hold_out_samples():
    with pytest.raises(ValueError, match="validation_fraction=0.5 is for inference='collapsed'"):
        nmfscale.LDA(2, validation_fraction=0.5).fit(X)
    with pytest.raises(ValueError, match="validation_fraction=0.5 needs whole counts"):
        fit(X / 4, 2, validation_fraction=0.5, integer="allow")
    with pytest.raises(ValueError, match="without counts to score. Give a larger fraction"):
        fit(X[:20], 2, validation_fraction=0.01)
