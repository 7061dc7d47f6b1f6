"""Variational LDA: its bound, that it never falls, its prior, batches, others beside it."""

from itertools import product

import numpy as np
import oracle
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import gammaln, psi
from sklearn.decomposition import LatentDirichletAllocation
from small_fits import X

import nmfscale
from nmfscale.methods.variational.dirichlet import estimate_alpha
from nmfscale.methods.variational.lda import VariationalLDA

FEW = np.array([[2, 1, 0], [0, 1, 2], [1, 0, 0]])


def fit(counts=X, n_components=3, **options):
    options = {"max_iter": 30, "tol": 0, "random_state": 0, "n_threads": 1} | options
    options = {"estimate_prior": "none"} | options
    return nmfscale.LDA(n_components, **options).fit(counts)


def elbo_of(model, counts, phi=None):
    posteriors = model.doc_topic_posterior_, model.topic_word_posterior_
    priors = model.doc_topic_prior_, model.topic_word_prior_
    return oracle.elbo_lda(counts, *posteriors, *priors, phi)


ETA = np.random.default_rng(5).gamma(2.0, 0.1, (3, X.shape[1])) + 0.01
of_each_prior = pytest.mark.parametrize("eta", [ETA[0], ETA], ids=["features", "topics"])


@of_each_prior
def test_a_prior_of_each_feature_or_of_each_topic(eta, tmp_path):
    model = fit(topic_word_prior=eta)
    assert_allclose(model.topic_word_prior_, np.broadcast_to(eta, ETA.shape))
    assert_allclose(model.elbo_, elbo_of(model, X), rtol=1e-9)
    assert (np.diff(model.history_["elbo"]) >= -1e-9 * abs(model.elbo_)).all()
    model.save(tmp_path / "model.nmf")
    loaded = nmfscale.load(tmp_path / "model.nmf")
    assert loaded.transform(X).tobytes() == model.transform(X).tobytes()
    assert loaded.score(X) == model.score(X)
    turned = model.reorder_topics([2, 0, 1])
    again = turned.fit(X, components=turned.topic_word_posterior_)
    assert again.elbo_ >= model.elbo_ - 1e-6 * abs(model.elbo_)
    assert_allclose(again.components_, model.components_[[2, 0, 1]], atol=0.05)
    batches = nmfscale.LDA(3, topic_word_prior=eta, random_state=0, total_samples=len(X))
    batches.partial_fit(X[:40]).partial_fit(X[40:])
    assert (batches.topic_word_posterior_ >= np.broadcast_to(eta, ETA.shape) * 0.9).all()
    if eta.ndim == 1:
        merged = model.merge_topics([[0, 2], [1]])
        assert_allclose(merged.topic_word_prior_, ETA[[0, 0]])
        counts = model.topic_word_posterior_ - eta
        assert_allclose(
            merged.topic_word_posterior_[0] - eta, counts[[0, 2]].sum(axis=0), atol=1e-9
        )
    else:
        with pytest.raises(ValueError, match="topic_word_prior has numbers of its own"):
            model.merge_topics([[0, 2], [1]])


@of_each_prior
def test_a_prior_is_matched_with_features_by_name(eta, tmp_path):
    """In another order, with more features, in fits of both kinds, batches, and after loading."""
    pd = pytest.importorskip("pandas")
    names = [f"gene {j}" for j in range(X.shape[1])]
    counts, order = pd.DataFrame(X, columns=names), np.random.default_rng(0).permutation(len(names))
    columns = [names[j] for j in order] + ["other"]
    values = np.concatenate([eta[..., order], eta[..., :1]], axis=-1)
    table = pd.Series(values, columns) if eta.ndim == 1 else pd.DataFrame(values, columns=columns)
    for how in ({}, {"inference": "collapsed"}):
        expected = fit(counts, topic_word_prior=eta, max_iter=3, **how)
        model = fit(counts, topic_word_prior=table, max_iter=3, **how)
        assert model.components_.tobytes() == expected.components_.tobytes()
        model.save(tmp_path / "model.h5")
        loaded = nmfscale.load(tmp_path / "model.h5")
        assert loaded.topic_word_prior.equals(table)
        turned = loaded.fit(counts.iloc[:, ::-1])
        assert_allclose(turned.components_[:, ::-1], expected.components_, rtol=1e-2, atol=1e-4)
    fits = [
        nmfscale.LDA(3, topic_word_prior=prior, random_state=0, total_samples=len(X))
        .partial_fit(counts[:40]).partial_fit(counts[40:])
        for prior in (eta, table)
    ]  # fmt: skip
    assert fits[0].components_.tobytes() == fits[1].components_.tobytes()


@pytest.mark.parametrize(
    ("eta", "options", "message"),
    [
        (ETA[:2], {}, r"topic_word_prior has shape \(2, 60\): one number, \(60,\) for"),
        (-ETA, {}, "topic_word_prior"),
        (0 * ETA, {}, "topic_word_prior"),
    ],
)
def test_arrays_that_are_no_prior_of_topics(eta, options, message):
    with pytest.raises(ValueError, match=message):
        fit(topic_word_prior=eta, **options)


# The bound ------------------------------------------------------------------------------------


def words_of(counts):
    """Pairs (row, column), one for each word."""
    return [(i, j) for (i, j), x in np.ndenumerate(counts) for _ in range(x)]


def log_joint(z, words, alpha, eta, shape):
    """log p(words, topics of the words), proportions and topics integrated out."""
    (n, m), K = shape, len(alpha)
    of_rows, of_topics = np.zeros((n, K)), np.zeros((K, m))
    for (i, j), k in zip(words, z, strict=True):
        of_rows[i, k] += 1
        of_topics[k, j] += 1

    def log_beta(a):
        return gammaln(a).sum(axis=-1) - gammaln(a.sum(axis=-1))

    eta = np.full(m, eta)
    return (
        np.sum(log_beta(alpha + of_rows) - log_beta(alpha))
        + np.sum(log_beta(eta + of_topics) - log_beta(eta))
    )  # fmt: skip


def log_evidence(counts, alpha, eta):
    words = words_of(counts)
    every = product(range(len(alpha)), repeat=len(words))
    return np.logaddexp.reduce([log_joint(z, words, alpha, eta, counts.shape) for z in every])


def test_bound_by_enumeration():
    """For any q: E_q of log p - log q, the topics of words enumerated, the rest in closed form."""
    rng, alpha, eta = np.random.default_rng(0), np.array([0.3, 1.2]), 0.4
    counts = FEW[:2, :]
    gamma, topics = rng.gamma(2.0, size=(2, 2)), rng.gamma(2.0, size=(2, 3))
    phi = rng.dirichlet([1.0, 1.0], size=(2, 3))
    words, expected = words_of(counts), 0.0
    theta, beta = oracle.expected_log_dirichlet(gamma), oracle.expected_log_dirichlet(topics)
    for z in product(range(2), repeat=len(words)):
        q = np.prod([phi[i, j, k] for (i, j), k in zip(words, z, strict=True)])
        log_q = np.sum([np.log(phi[i, j, k]) for (i, j), k in zip(words, z, strict=True)])
        log_p = np.sum([theta[i, k] + beta[k, j] for (i, j), k in zip(words, z, strict=True)])
        expected += q * (log_p - log_q)
    for posterior, prior in ((gamma, alpha), (topics, np.full(3, eta))):
        for q in posterior:
            logs = psi(q) - psi(q.sum())
            expected += gammaln(prior.sum()) - gammaln(prior).sum() + (prior - 1) @ logs
            expected -= gammaln(q.sum()) - gammaln(q).sum() + (q - 1) @ logs
    assert_allclose(oracle.elbo_lda(counts, gamma, topics, alpha, eta, phi), expected, rtol=1e-12)
    best = oracle.elbo_lda(counts, gamma, topics, alpha, eta)
    assert expected < best < log_evidence(counts, alpha, eta)


def test_divergence_by_quadrature():
    a, b, prior = 1.7, 2.6, np.array([0.8, 1.4])

    def density(x, p, q):
        return np.exp(gammaln(p + q) - gammaln(p) - gammaln(q)) * x ** (p - 1) * (1 - x) ** (q - 1)

    def integrand(x):
        q = density(x, a, b)
        return q * np.log(density(x, *prior) / q)

    found = oracle.minus_divergence_dirichlet(np.array([[a, b]]), prior)
    assert_allclose(found, quad(integrand, 0, 1)[0], rtol=1e-8)


@pytest.mark.parametrize("eta", [0.4, 0.01])
def test_bound_of_a_fit_is_below_the_evidence(eta):
    model = fit(FEW, 2, topic_word_prior=eta, doc_topic_prior=[0.3, 1.2], max_iter=200)
    evidence = log_evidence(FEW, model.doc_topic_prior_, eta)
    assert_allclose(model.elbo_, elbo_of(model, FEW), rtol=1e-12)
    assert evidence - 4 < model.elbo_ < evidence


# Updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.2, 0.001, 0.0])
def test_plain_iterations_are_those_of_the_oracle(eta, small_blocks):
    rng = np.random.default_rng(1)
    gamma, topics = (
        rng.gamma(1.0, size=(len(X), 3)) + 0.1,
        rng.gamma(1.0, size=(3, X.shape[1])) + 0.1,
    )
    if eta == 0:
        topics /= topics.sum(axis=1, keepdims=True)
    start = {"loadings": gamma, "components": topics}
    model = nmfscale.LDA(
        3, doc_topic_prior=[0.1, 0.5, 1.0], topic_word_prior=eta, max_iter=4, tol=0, n_threads=1,
        extrapolate=False,
    ).fit(X, **start)  # fmt: skip
    for _ in range(4):
        gamma, topics = oracle.step_lda(X, gamma, topics, np.array([0.1, 0.5, 1.0]), eta)
    assert_allclose(model.doc_topic_posterior_, gamma, rtol=1e-9)
    assert_allclose(model.topic_word_posterior_, topics, rtol=1e-9, atol=1e-28)
    assert_allclose(model.components_.sum(axis=1), 1)
    assert_allclose(model.loadings_.sum(axis=1), 1)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000), n_components=st.integers(1, 5),
    prior=st.sampled_from([0.01, 0.1, 1.0, 3.0]), eta=st.sampled_from([0.0, 0.01, 0.3, 2.0]),
    estimate=st.sampled_from(["none", "symmetric", "vector"]), extrapolate=st.booleans(),
    inner_iter=st.integers(1, 3), init=st.sampled_from(["random", "topic-model"]),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_never_falls(seed, n_components, prior, eta, estimate, extrapolate, inner_iter, init):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.3, size=(12, 9)) * 3)
    model = fit(
        counts, n_components, doc_topic_prior=prior, topic_word_prior=eta, estimate_prior=estimate,
        extrapolate=extrapolate, inner_iter=inner_iter, init=init, random_state=seed,
    )  # fmt: skip
    assert np.all(np.diff(model.history_["elbo"]) >= -1e-12 * abs(model.elbo_) - 1e-9)
    assert_allclose(model.elbo_, elbo_of(model, counts), rtol=1e-9, atol=1e-9)
    assert model.elbo_ == model.history_["elbo"][-1]
    assert (model.topic_word_posterior_ >= eta).all()  # no momentum goes below a prior
    if eta == 0:
        assert_allclose(model.topic_word_posterior_.sum(axis=1), 1)


def test_momentum_gets_further():
    plain, ahead = fit(extrapolate=False), fit()
    assert ahead.elbo_ > plain.elbo_
    assert ahead.history_["momentum"].max() > 0.5 and not plain.history_["momentum"].any()


class RunsAway(VariationalLDA):
    """With far too much momentum."""

    def momentum_of(self, count):
        return 30.0 if count > 1 else 0.0


class RunawayLDA(nmfscale.LDA):
    _mean_field = RunsAway


@pytest.mark.parametrize("eta", [0.3, 0.0])
def test_goes_back_to_the_best(eta):
    """Momentum that runs away costs iterations, not the bound."""
    options = {"topic_word_prior": eta, "max_iter": 60, "tol": 0, "random_state": 0}
    model = RunawayLDA(3, n_threads=1, **options).fit(X)
    assert np.all(np.diff(model.history_["elbo"]) >= 0)
    assert_allclose(model.elbo_, elbo_of(model, X), rtol=1e-12)
    assert_allclose(model.components_.sum(axis=1), 1)
    if eta == 0:
        assert_allclose(model.topic_word_posterior_, model.components_)
    assert model.history_["momentum"].max() > 1


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_points_go_on_from_points(scale):
    """Topics without a prior may have zeros, and sum to anything."""
    rng = np.random.default_rng(2)
    counts = rng.poisson(3.0, (30, 8)) * (rng.uniform(size=8) > 0.3)
    one = fit(counts, topic_word_prior=0, max_iter=5)
    assert (one.topic_word_posterior_ == 0).any()
    given = {"components": scale * one.topic_word_posterior_,
             "loadings": one.doc_topic_posterior_}  # fmt: skip
    again = nmfscale.LDA(3, doc_topic_prior=1 / 3, topic_word_prior=0, max_iter=1, tol=0)
    other = again.fit(counts, **given)
    assert 0 <= other.elbo_ - one.elbo_ < 1e-2 * abs(one.elbo_)
    assert_allclose(other.topic_word_posterior_.sum(axis=1), 1)


def test_more_topics_than_rank():
    counts = np.outer(np.arange(1, 13), [1, 2, 3, 4])
    for eta in (0.0, 0.2):
        model = fit(counts, 4, topic_word_prior=eta)
        assert_allclose(model.components_.sum(axis=1), 1)
        assert_allclose(model.elbo_, elbo_of(model, counts), rtol=1e-10)


def test_empty_rows_and_columns():
    counts = X.copy()
    counts[5], counts[:, 9] = 0, 0
    model = fit(counts)
    assert_allclose(model.doc_topic_posterior_[5], model.doc_topic_prior_, rtol=1e-9)
    assert_allclose(model.topic_word_posterior_[:, 9], model.topic_word_prior_, rtol=1e-9)
    assert_allclose(model.elbo_, elbo_of(model, counts), rtol=1e-10)


# alpha ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("begin", [0.01, 1.0, 50.0])
def test_alpha_maximises(symmetric, begin):
    truth = np.full(4, 0.2) if symmetric else np.array([0.05, 0.2, 1.0, 6.0])
    found = estimate_alpha(np.full(4, begin), psi(truth) - psi(truth.sum()), symmetric)
    assert_allclose(found, truth, rtol=1e-6)


@pytest.mark.parametrize("estimate", ["symmetric", "vector"])
def test_estimated_alpha_ends_higher(estimate):
    options = {"max_iter": 200, "doc_topic_prior": 1.0}
    given, found = fit(**options), fit(estimate_prior=estimate, **options)
    assert found.elbo_ > given.elbo_ and (given.doc_topic_prior_ == 1).all()
    assert (np.ptp(found.doc_topic_prior_) == 0) == (estimate == "symmetric")
    logs = oracle.expected_log_dirichlet(found.doc_topic_posterior_).mean(axis=0)
    best = estimate_alpha(found.doc_topic_prior_, logs, estimate == "symmetric")
    assert_allclose(found.doc_topic_prior_, best, rtol=1e-3)


def test_alpha_is_estimated_unless_it_is_given():
    options = {"max_iter": 8, "tol": 0, "random_state": 0}
    default = nmfscale.LDA(3, **options).fit(X)
    vector = fit(**options, estimate_prior="vector")
    assert default.elbo_ == vector.elbo_ and np.ptp(default.doc_topic_prior_) > 0
    given = nmfscale.LDA(3, doc_topic_prior=0.5, **options).fit(X)
    assert_allclose(given.doc_topic_prior_, 0.5)


@pytest.mark.nightly
@pytest.mark.parametrize("n_words", [8, 30])
def test_short_documents_are_not_worse_explained_than_by_one_topic(n_words):
    counts = nmfscale.datasets.docstrings()
    rng, pieces = np.random.default_rng(0), []
    for i in range(counts.shape[0]):
        row = slice(*counts.indptr[i : i + 2])
        words = rng.permutation(np.repeat(counts.indices[row], counts.data[row]))
        pieces += list(words[: len(words) // n_words * n_words].reshape(-1, n_words))
    pieces = np.array(pieces)[rng.permutation(len(pieces))[: 80_000 // n_words]]
    table = np.zeros((len(pieces), counts.shape[1]), np.int32)
    np.add.at(table, (np.repeat(np.arange(len(pieces)), n_words), pieces.ravel()), 1)
    fitted, new = table[: 4 * len(table) // 5], table[4 * len(table) // 5 :]
    there = (fitted > 0).sum(axis=0) >= 5
    perplexities = [
        nmfscale.LDA(K, random_state=0).fit(fitted[:, there])
        .perplexity(new[:, there], completion=0.5, random_state=0)
        for K in (1, 10, 20)
    ]  # fmt: skip
    assert max(perplexities[1:]) < 0.95 * perplexities[0]


# Beside others --------------------------------------------------------------------------------


def test_transform_and_score_are_those_of_scikit_learn():
    ours = fit(max_iter=5, mean_change_tol=1e-9, max_doc_update_iter=3000)
    theirs = LatentDirichletAllocation(3, mean_change_tol=1e-9, max_doc_update_iter=3000)
    theirs.partial_fit(X)
    theirs.components_ = ours.topic_word_posterior_
    theirs.exp_dirichlet_component_ = np.exp(
        oracle.expected_log_dirichlet(ours.topic_word_posterior_)
    )
    assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-6)
    topics = oracle.minus_divergence_dirichlet(ours.topic_word_posterior_, 1 / 3).sum()
    assert_allclose(ours.score(X) * X.sum() + topics, theirs.score(X), rtol=1e-8)
    assert_allclose(ours.perplexity(X), np.exp(-ours.score(X)))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_ends_above_scikit_learn(seed):
    counts, _ = nmfscale.datasets.simulate_topic_counts(300, 200, n_components=4, random_state=seed)
    theirs = LatentDirichletAllocation(4, max_iter=30, random_state=seed).fit(counts)
    assert fit(counts, 4, max_iter=100, random_state=seed).elbo_ > theirs.score(counts)


def test_score_of_features_that_were_hardly_seen():
    """A small eta underflows nowhere: the bound stays one."""
    counts = X.copy()
    counts[:, 9] = np.arange(len(X)) == 0
    model = fit(counts, topic_word_prior=1e-3, mean_change_tol=1e-10)
    new = np.zeros_like(X[:1])
    new[0, 9] = 2
    topics, alpha = model.topic_word_posterior_, model.doc_topic_prior_
    gamma = model.transform(new) * (alpha.sum() + 2)
    topics_share = oracle.minus_divergence_dirichlet(topics, 1e-3).sum()
    expected = oracle.elbo_lda(new, gamma, topics, alpha, 1e-3) - topics_share
    assert_allclose(model.score(new) * 2, expected, rtol=1e-6)


def test_recovers_simulated_topics():
    counts, truth = nmfscale.datasets.simulate_topic_counts(400, 80, n_components=3, random_state=0)
    model = fit(counts, max_iter=60)
    near = model.components_ @ truth.F
    near /= np.linalg.norm(model.components_, axis=1)[:, None]
    near /= np.linalg.norm(truth.F, axis=0)
    assert near.max(axis=1).min() > 0.98 and len(set(near.argmax(axis=1))) == 3


# Batches --------------------------------------------------------------------------------------


def test_a_batch_is_a_step_of_online_inference():
    model = fit(max_iter=3, total_samples=500, learning_decay=0.6, learning_offset=4)
    before, batch = model.topic_word_posterior_.copy(), X[:20]
    model.set_params(mean_change_tol=1e-10, max_doc_update_iter=2000).partial_fit(batch)
    alpha, eta = model.doc_topic_prior_, model.topic_word_prior_
    gamma = np.ones((20, 3))
    for _ in range(2000):
        gamma, found = oracle.step_lda(batch, gamma, before, alpha, eta)
    weight = (4 + 1) ** -0.6
    expected = (1 - weight) * before + weight * (eta + 500 / 20 * (found - eta))
    assert_allclose(model.topic_word_posterior_, expected, rtol=1e-6)
    assert model.n_batch_iter_ == 1


def test_batches_are_those_of_scikit_learn():
    options = {"total_samples": 300, "learning_decay": 0.8, "learning_offset": 5,
               "doc_topic_prior": 1.0, "mean_change_tol": 1e-9,
               "max_doc_update_iter": 3000}  # fmt: skip
    ours = nmfscale.LDA(3, n_threads=1, random_state=0, **options).partial_fit(X[:30])
    theirs = LatentDirichletAllocation(3, **options).partial_fit(X[:30])
    topics = theirs.components_ = ours.topic_word_posterior_.copy()
    theirs.exp_dirichlet_component_ = np.exp(oracle.expected_log_dirichlet(topics))
    for rows in (slice(30, 60), slice(60, 90)):
        ours.partial_fit(X[rows])
        theirs.partial_fit(X[rows])
    assert_allclose(ours.topic_word_posterior_, theirs.components_, rtol=1e-6)


def test_a_batch_replaces_a_fit():
    """What a fit left of its samples is gone; a batch that is refused changes nothing."""
    model = fit(max_iter=3)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :5])
    assert model.loadings_.shape == (len(X), 3) and len(model.history_) == 3
    model.partial_fit(X[:20])
    for name in ("loadings_", "doc_topic_posterior_", "elbo_", "history_", "n_iter_"):
        assert not hasattr(model, name)
    new = nmfscale.LDA(3)
    with pytest.raises(ValueError, match="Negative"):
        new.partial_fit(-X)
    assert not hasattr(new, "n_features_in_")


def test_batches_learn(tmp_path):
    model = nmfscale.LDA(3, random_state=0, total_samples=len(X))
    rng, scores = np.random.default_rng(0), []
    for _ in range(6):
        for rows in np.array_split(rng.permutation(len(X)), 3):
            model.partial_fit(sp.csr_matrix(X[rows]))
        scores.append(model.score(X))
    assert scores[-1] > scores[0] and model.n_batch_iter_ == 18
    model.save(tmp_path / "model.h5")
    again = nmfscale.load(tmp_path / "model.h5")
    assert again.transform(X).tobytes() == model.transform(X).tobytes()
    again.partial_fit(X)


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({"doc_topic_prior": [1.0, 2.0]}, {}, "doc_topic_prior has shape"),
        ({"doc_topic_prior": [1.0, 0.0, 1.0]}, {}, r"doc_topic_prior\[1\] is 0.0; positive"),
        ({}, {"components": np.ones((3, 4))}, "components has shape"),
        ({}, {"components": 1.0}, "components has shape"),
        ({}, {"components": np.zeros((3, 60))}, r"components\[0, 0\] is 0.0; positive"),
        ({}, {"loadings": -np.ones((90, 3))}, r"loadings\[0, 0\] is -1.0; positive"),
        ({"doc_topic_prior": [1.0, 2.0, 1.0], "estimate_prior": "symmetric"}, {}, "estimates one"),
        ({"memory_limit": 1000}, {}, "raise memory_limit"),
    ],
)
def test_what_is_refused(options, arguments, words):
    with pytest.raises((ValueError, MemoryError), match=words):
        nmfscale.LDA(3, n_threads=1, **options).fit(X, **arguments)


@pytest.mark.parametrize("do", ["transform", "score", "partial_fit"])
def test_memory_is_asked_for_first(do):
    model = fit(max_iter=1).set_params(memory_limit=1000)
    with pytest.raises(MemoryError, match="raise memory_limit"):
        getattr(model, do)(X)
