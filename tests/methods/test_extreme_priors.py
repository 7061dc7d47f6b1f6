"""Mean-field models with priors and starts of extreme size: finite numbers, or an error."""

import numpy as np
import oracle
import pytest
from night import at_night
from numpy.testing import assert_allclose
from small_fits import X

from nmfscale import LDA, GammaPoisson, NoisyTopicModel

TOPICS, TINY = 6, 1e-320
DEEP = {"hierarchical": True}
BOTH_TYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def fit(kind, start=None, **options):
    options = {"max_iter": 12, "tol": 0, "random_state": 0, "n_threads": 1} | options
    return kind(TOPICS, **options).fit(X, **(start or {}))


def check_finite(model):
    for name, value in vars(model).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.isfinite(value).all(), name
    assert np.isfinite(model.transform(X[:4])).all() and np.isfinite(model.score(X[:4]))


@BOTH_TYPES
@pytest.mark.parametrize("eta", [1e-5, 1e-20])
def test_a_topic_that_is_left_without_counts(eta, dtype):
    start = np.full((TOPICS, X.shape[1]), eta)
    start[0] += 5 * X.mean(axis=0)
    model = fit(LDA, {"components": start}, topic_word_prior=eta, dtype=dtype)
    check_finite(model)
    posteriors = model.doc_topic_posterior_.astype(float), model.topic_word_posterior_
    expected = oracle.elbo_lda(X, *posteriors, model.doc_topic_prior_, eta, None)
    assert_allclose(model.elbo_, expected, rtol=1e-6 if dtype is np.float32 else 1e-9)


@BOTH_TYPES
def test_batches_with_a_small_prior(dtype):
    model = LDA(TOPICS, topic_word_prior=1e-5, random_state=0, total_samples=90, dtype=dtype)
    for rows in np.array_split(np.arange(len(X)), 3):
        model.partial_fit(X[rows])
    check_finite(model)


@pytest.mark.parametrize("dtype", ["float32", *at_night("float64")])
@pytest.mark.parametrize("size", [1e-20, 1e10])
@pytest.mark.parametrize(
    ("kind", "names", "options"),
    [
        (LDA, ["doc_topic_prior", "topic_word_prior"], {}),
        (LDA, ["doc_topic_prior"], {"estimate_prior": "vector"}),
        (GammaPoisson, ["shape_loadings", "rate_loadings"], {}),
        (GammaPoisson, ["shape_loadings", "shape_factors"], DEEP),
        (GammaPoisson, ["shape_rates", "mean_rates"], DEEP),
    ],
)
def test_priors_at_their_limits(kind, names, options, size, dtype):
    for name in names:
        given = [size, size] if name in ("shape_rates", "mean_rates") else size
        check_finite(fit(kind, **{name: given}, **options, dtype=dtype))


@pytest.mark.parametrize("size", [TINY, 1e300])
@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        (LDA, "doc_topic_prior", {}),
        (LDA, "topic_word_prior", {}),
        (GammaPoisson, "shape_loadings", {}),
        (GammaPoisson, "rate_loadings", {}),
        (GammaPoisson, "shape_factors", DEEP),
        (GammaPoisson, "shape_rates", DEEP),
        (GammaPoisson, "mean_rates", DEEP),
    ],
)
def test_priors_beyond_their_limits_are_refused(kind, name, options, size):
    given = [size, size] if name in ("shape_rates", "mean_rates") else size
    with pytest.raises(ValueError, match=rf"{name}.* is .*: numbers from 1e-20 to 1e\+10"):
        fit(kind, **{name: given}, **options)


@BOTH_TYPES
@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        (LDA, "components", {}),
        (LDA, "components", {"topic_word_prior": 0}),
        (LDA, "loadings", {}),
        (GammaPoisson, "components", {}),
        (GammaPoisson, "components", DEEP),
        (GammaPoisson, "loadings", DEEP),
        (NoisyTopicModel, "loadings", {}),
        (NoisyTopicModel, "mu", {}),
    ],
)
def test_starts(kind, name, options, dtype):
    n, m = X.shape
    shape = {"mu": (m,)}.get(name, (TOPICS, m) if name == "components" else (n, TOPICS))
    start = np.random.default_rng(0).uniform(0.5, 1, shape)
    start[0] = TINY
    check_finite(fit(kind, {name: start}, **options, dtype=dtype))
    start[0] = 1e300
    with pytest.raises(ValueError, match=rf"{name}\[0.*\] is 1e\+300: numbers from 0 to 1e\+15"):
        fit(kind, {name: start}, **options, dtype=dtype)


def test_loadings_that_are_all_tiny_are_refused():
    with pytest.raises(ValueError, match="the sum of loadings is"):
        fit(NoisyTopicModel, {"loadings": np.full((len(X), TOPICS), TINY)})
