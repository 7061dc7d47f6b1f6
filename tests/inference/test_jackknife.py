"""Infinitesimal jackknife: derivatives against finite differences, and against fits again."""

import warnings

import internals
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit, logit

from nmfscale import LDA, PoissonNMF, TopicModel, as_counts, bootstrap_fit, write_store
from nmfscale.datasets import simulate_topic_counts
from nmfscale.experimental import jackknife_fit
from nmfscale.methods.conversion import poisson_to_multinomial
from nmfscale.methods.poisson.profile import ProfileHessian
from nmfscale.methods.projection.transform import project_rows

N, M, K = 50, 20, 3
X = simulate_topic_counts(N, M, K, random_state=0)[0].toarray()
GROUPS = np.arange(N) % 2
EXACT = {"tol": 1e-9, "gain_tol": 0, "max_iter": 2000, "random_state": 0, "n_threads": 1}


@pytest.fixture(scope="module", params=[None, (1.2, 0.5)], ids=["no prior", "prior"])
def model(request):
    return exact(prior_factors=request.param)


def exact(weights=None, model=PoissonNMF, components=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = model(K, **EXACT | options)
        return estimator.fit(X, row_weights=weights, components=components)


def entries_of(model):
    """The most frequent feature of each topic."""
    return [(k, int(j)) for k, j in enumerate(model.components_.argmax(axis=1))]


def hessian_of(model):
    F = np.ascontiguousarray(model.components_.T)
    prior = model.prior_factors and [np.full(F.shape, model.prior_factors[0] - 1),
                                     np.full(F.shape, model.prior_factors[1])]  # fmt: skip
    L = project_rows(_counts(), F, dtype=np.float64, n_threads=1)
    return ProfileHessian(_counts(), L, F, prior), F


def _counts():
    return as_counts(X)


def profile_gradient(model, F):
    """Of sum_i min_l phi_i(l, F), less the log prior."""
    L = project_rows(_counts(), F, dtype=np.float64, n_threads=1)
    gradient = L.sum(axis=0) - (X / np.maximum(L @ F.T, 1e-30)).T @ L
    if model.prior_factors:
        gradient += model.prior_factors[1] - (model.prior_factors[0] - 1) / np.maximum(F, 1e-30)
    return gradient


def test_products_are_differences_of_the_profile_gradient(model):
    hessian, F = hessian_of(model)
    rng, eps = np.random.default_rng(0), 1e-5
    Z, other = rng.normal(size=(2, M, K)) * (hessian.scale > 0)
    step = eps * F * Z
    change = profile_gradient(model, F + step) - profile_gradient(model, F - step)
    found = hessian.product(Z)
    assert_allclose(hessian.scale * change / (2 * eps), found, atol=1e-5 * np.abs(found).max())
    assert_allclose(np.vdot(other, found), np.vdot(hessian.product(other), Z), rtol=1e-9)
    along = (hessian.scale > 0) * np.array([1.0, 0.0, 0.0])  # the scale of a topic
    size = np.abs(hessian.product(along)).max() / np.abs(found).max()
    assert (size < 1e-6) == (model.prior_factors is None)


def numbers(fitted, entries):
    shares, frequencies, *_ = poisson_to_multinomial(fitted.loadings_, fitted.components_.T)
    return [frequencies[j, k] for k, j in entries], shares


def test_influences_are_derivatives_of_fits_again(model):
    entries = entries_of(model)
    found = jackknife_fit(model, X, entries, groups=GROUPS, tol=1e-6)
    eps = 1e-3
    for sample in (0, 7, 18):
        ends = []
        for sign in (1, -1):
            weights = np.ones(N)
            weights[sample] += sign * eps
            again = exact(weights, components=model.components_, prior_factors=model.prior_factors)
            frequencies, shares = numbers(again, entries)
            means = [
                np.average(shares[GROUPS == g], axis=0, weights=weights[GROUPS == g])
                for g in (0, 1)
            ]
            ends.append((np.array(frequencies), np.transpose(means)))
        for known, one, other in zip((found.components, found.group_means), *ends, strict=True):
            derivative = (one - other) / (2 * eps)
            size = np.abs(known.influences).max(axis=0)
            assert (np.abs(known.influences[sample] - derivative) < 2e-3 * size + 1e-9).all()
    assert_allclose(found.group_means.estimate.sum(axis=0), 1)
    assert_allclose(found.group_means.influences.sum(axis=1), 0, atol=1e-6)
    if model.prior_factors is None:  # which has a gradient of its own
        assert_allclose(found.components.influences.sum(axis=0), 0, atol=1e-6)


def test_one_topic_is_known_in_closed_form(capsys):
    """Its frequencies are shares of the total: the influence is that of a ratio."""
    seen = np.flatnonzero(X.any(axis=0))
    found = jackknife_fit(TopicModel(1, tol=1e-9).fit(X), X, [(0, j) for j in seen], verbose=1)
    assert f"{seen.size}/{seen.size}" in capsys.readouterr().err
    share = X.sum(axis=0) / X.sum()
    expected = ((X - X.sum(axis=1, keepdims=True) * share) / X.sum())[:, seen]
    assert_allclose(found.components.estimate, share[seen])
    assert_allclose(found.components.influences, expected, atol=1e-12)
    assert_allclose(found.components.std_error, np.sqrt((expected**2).sum(axis=0)))


def test_topics_that_explain_nothing():
    fit = PoissonNMF(2, random_state=0).fit(X)
    fit.components_ = np.stack([X.sum(axis=0) / N, np.zeros(M)])
    with pytest.raises(ValueError, match="topic 1 explains no counts"):
        jackknife_fit(fit, X, [(1, 0)])
    means = jackknife_fit(fit, X, groups=GROUPS).group_means
    assert_allclose(means.estimate, [[1, 1], [0, 0]])
    assert_allclose(means.std_error, 0, atol=1e-12)


def test_means_of_groups_weigh_units_or_samples():
    model = exact(model=TopicModel)
    units = np.minimum(np.arange(N) // 2, 9) * 2 + GROUPS
    shares = model.loadings_ / model.loadings_.sum(axis=1, keepdims=True)
    found = {
        w: jackknife_fit(model, X, groups=GROUPS, units=units, equal_weights=w)
        for w in ("units", "samples")
    }
    here = [np.flatnonzero(units == u) for u in np.unique(units[GROUPS == 1])]
    means = np.array([shares[i].mean(axis=0) for i in here])
    assert_allclose(found["units"].group_means.estimate[:, 1], means.mean(axis=0), atol=1e-5)
    of_samples = shares[GROUPS == 1].mean(axis=0)
    assert_allclose(found["samples"].group_means.estimate[:, 1], of_samples, atol=1e-5)
    assert "each unit counts once" in repr(found["units"])
    assert found["units"].to_frame().equals(found["units"].to_frame("group_means"))


def test_errors_add_up_over_units_within_strata():
    model = exact(model=TopicModel)
    units, strata = np.arange(N) // 5, np.arange(N) // 25
    entries = entries_of(model)
    found = jackknife_fit(model, X, entries, units=units, strata=strata, level=0.9)
    samples = jackknife_fit(model, X, entries).components.influences
    of_units = samples.reshape(10, 5, 3).sum(axis=1)
    left = of_units.reshape(2, 5, 3) - of_units.reshape(2, 5, 3).mean(axis=1, keepdims=True)
    estimates = found.components
    assert_allclose(estimates.influences, of_units)
    assert_allclose(estimates.std_error, np.sqrt((left**2).sum(axis=(0, 1))))
    assert_allclose(estimates.estimate, [model.components_[entry] for entry in entries])
    p = estimates.estimate
    reach = 1.6448536 * estimates.std_error / (p * (1 - p))
    assert_allclose(estimates.lower, expit(logit(p) - reach), rtol=1e-6)
    table = found.to_frame()
    assert table.topic.tolist() == [0, 1, 2] and table.feature.tolist() == [j for _, j in entries]
    with pytest.raises(ValueError, match="group_means need groups="):
        found.to_frame("group_means")


def test_a_warning_tells_that_entries_were_held(monkeypatch):
    def fails_at_first(solve, hessian, *given):
        if hessian.least == 0:
            raise FloatingPointError("negative curvature")
        return solve(hessian, *given)

    internals.around_solve(monkeypatch, fails_at_first)
    model = exact()
    with pytest.warns(UserWarning, match=r"fewer than 0\.1 counts were held"):
        found = jackknife_fit(model, X, entries_of(model))
    assert found.least_counts == 0.1


def test_directions_in_which_a_feature_has_no_curvature_are_no_trouble():
    """Of a feature that one sample has, in three topics, two directions are left alone."""
    counts = np.column_stack([X, np.arange(N) == 3])
    fit = exact()
    rare = fit.components_[:, :1] * 0 + 1 / 3 / fit.loadings_.sum(axis=0)[:, None]
    fit.components_ = np.hstack([fit.components_, rare])
    fit.n_features_in_, fit.sample_totals_ = 21, None  # as in a file of an earlier version
    found = jackknife_fit(fit, counts, entries_of(fit))
    assert (found.residuals < 1e-3).all()
    expected = jackknife_fit(exact(), X, entries_of(fit)).components.std_error
    assert_allclose(found.components.std_error, expected, rtol=0.05)


def test_counts_may_stay_in_a_file(tmp_path):
    model = exact(model=TopicModel)
    store = write_store(X, tmp_path / "x.store.h5")
    one, other = (
        jackknife_fit(model, each, entries_of(model), groups=GROUPS) for each in (X, store)
    )
    for name in ("components", "group_means"):
        a, b = getattr(one, name), getattr(other, name)
        assert_allclose(a.influences, b.influences, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"entries": None}, "nothing to estimate"),
        ({"entries": [(3, 0)]}, "3 is not a topic"),
        ({"entries": [(0, 20)]}, "20 is not a feature"),
        ({"entries": [(0, "a")]}, "no feature is named 'a'; each entry is a topic and a feat"),
        ({"entries": [("f3", 0)]}, "no topic is named 'f3'; topics have numbers from 0 to 2"),
        ({"entries": [0]}, "not a pair of a topic and a feature"),
        ({"X": X[:, :9]}, "X has 9 features"),
        ({"model": LDA(2)}, "a model with poisson_factors\\(\\) is needed"),
        ({"model": exact(max_iter=3, tol=0, prior_loadings=1.1)}, "prior_loadings"),
        ({"model": exact(max_iter=1, tol=0, init="random")}, "not an optimum for X"),
    ],
)
def test_what_is_refused(options, complaint):
    given = {"model": exact(), "X": X, "entries": [(0, 3)]} | options
    with pytest.raises(ValueError, match=complaint):
        jackknife_fit(**given)


@pytest.mark.nightly
def test_standard_errors_are_those_of_a_bootstrap():
    counts, _ = simulate_topic_counts(400, 40, 3, random_state=1)
    fit = TopicModel(3, random_state=0, tol=1e-7, gain_tol=0).fit(counts)
    groups = np.arange(400) % 2
    top = [(k, int(j)) for k in range(3) for j in fit.components_[k].argsort()[-3:]]
    found = jackknife_fit(fit, counts, top, groups=groups)
    drawn = bootstrap_fit(fit, counts, groups=groups, n_replicates=200, random_state=0)
    known = np.array([drawn.components.std_error[entry] for entry in top])
    assert_allclose(found.components.std_error, known, rtol=0.25)
    assert_allclose(found.group_means.std_error, drawn.group_means.std_error, rtol=0.25)
