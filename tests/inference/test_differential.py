"""Differences of features between topics: right tests, found truths, the same bits everywhere."""

import os
import re
import signal
import warnings
from functools import partial

import internals
import numpy as np
import pandas as pd
import pytest
from clusters import WALL, cluster_of, within
from night import at_night
from numpy.testing import assert_allclose, assert_array_equal
from oracle import equal_to_mean, equal_topics, feature_regression
from scipy.optimize import brentq
from scipy.special import chdtrc, digamma, ndtr, polygamma
from scipy.stats import false_discovery_control
from scipy.stats import t as student
from small_fits import X as SMALL
from small_fits import at_level

from nmfscale import (
    TopicModel,
    as_counts,
    differential_features,
    kernels,
    load_result,
    write_store,
)
from nmfscale.inference.features.differential_units import _SHARES_OF_UNITS
from nmfscale.inference.features.shrinkage import shrink
from nmfscale.inference.quantiles import normal_tail, t_pvalue
from nmfscale.methods.topics.differential import PSEUDOCOUNT_OF_TESTS as OF_TESTS
from nmfscale.results import StoredCounts

K = 3
NUMBERS = (
    "lfc", "std_error", "lower", "upper", "z", "pvalue", "qvalue", "lfsr", "dispersion",
    "frequencies",
)  # fmt: skip
UNITS = np.arange(len(SMALL)) % 11


@pytest.fixture(scope="module")
def loadings():
    return np.random.default_rng(1).dirichlet([0.4] * K, len(SMALL))


@pytest.fixture(scope="module")
def found(loadings):
    return differential_features(loadings, SMALL)


def design_of(loadings):
    return np.maximum(loadings, 1e-10) * SMALL.sum(axis=1, keepdims=True)


def bits(result):
    return [getattr(result, name).tobytes() for name in NUMBERS]


@pytest.mark.parametrize(("pseudocount", "family"), [(1.0, "quasi-poisson"), (0.2, "poisson")])
def test_every_number_is_that_of_the_oracle(loadings, pseudocount, family):
    found = differential_features(loadings, SMALL, pseudocount=pseudocount, family=family)
    A, n = design_of(loadings), int((SMALL.sum(axis=1) > 0).sum())
    for j in range(5, 60, 20):
        x = SMALL[:, j].astype(float)
        if not x.any():
            assert not found.lfc[:, j].any() and (found.pvalue[:, j] == 1).all()
            continue
        f, _ = feature_regression(x, A, pseudocount)
        value = feature_regression(x, A, OF_TESTS)[1]
        assert_allclose(found.frequencies[:, j], f, rtol=2e-5)
        logs, ratios = np.log2(f), np.full((K, K), np.inf)
        for k in range(K):
            for i in range(k):
                equal = feature_regression(x, A, OF_TESTS, equal_topics(K, k, i))[1]
                ratios[k, i] = ratios[i, k] = 2 * (equal - value)
        other = np.argmin(np.abs(logs[:, None] - logs) + 1e9 * np.eye(K), axis=1)
        assert_array_equal(found.least_extreme[:, j], other)
        assert_allclose(found.lfc[:, j], logs - logs[other], atol=1e-4)
        mu = A @ f
        dispersion = ((x - mu) ** 2).sum() / mu.sum() * n / (n - K)
        assert_allclose(found.dispersion[j], dispersion, rtol=1e-4)
        factor = max(dispersion, 1) if family == "quasi-poisson" else 1
        z = np.sqrt(ratios.min(axis=1) / factor)
        assert_allclose(np.abs(found.z[:, j]), z, rtol=1e-4, atol=1e-5)
        p = 2 * student.sf(z, n - K) if family == "quasi-poisson" else chdtrc(1, z * z)
        assert_allclose(found.pvalue[:, j], p, rtol=1e-3)
        curvature = (A * f).T @ (A * f * (x / mu**2)[:, None]) + pseudocount * np.eye(K)
        V = np.linalg.inv(curvature) * factor
        errors = np.sqrt(np.diag(V) + np.diag(V)[other] - 2 * V[np.arange(K), other]) / np.log(2)
        assert_allclose(found.std_error[:, j], errors, rtol=1e-4)


def with_batches():
    """Return counts, the batches of samples, and a fit of two topics that differ between them."""
    rng = np.random.default_rng(4)
    batch = np.repeat([0, 1], [50, 70])
    shares = np.stack([rng.beta(2 - batch, 1 + batch), rng.beta(1, 1, 120)]).T
    shares = np.stack([shares[:, 0], 1 - shares[:, 0]]).T
    means = 400 * shares @ rng.dirichlet(np.full(40, 0.7), 2)
    X = rng.poisson(means * np.exp(rng.normal(0, 0.5, (2, 40)))[batch])
    return X, batch, TopicModel(2, random_state=0).fit(X, batch=batch)


def test_efficiencies_of_batches_are_factors_of_expected_counts():
    """The oracle has them in its design; errors are those of frequencies and efficiencies."""
    X, batch, model = with_batches()
    sizes, n = np.random.default_rng(0).uniform(300, 500, len(X)), len(X)
    options = {"split": None, "size_factors": sizes}
    found, a = differential_features(model, X, **options), model.batch_shape_
    for j in (0, 7, 20):
        x, e = X[:, j].astype(float), model.batch_efficiencies_[batch, j]
        A = np.maximum(model.loadings_, 1e-10) * (sizes * e)[:, None]
        f, _ = feature_regression(x, A)
        assert_allclose(found.frequencies[:, j], f, rtol=2e-5)
        mu = A @ f
        dispersion = ((x - mu) ** 2).sum() / mu.sum() * n / (n - 2)
        assert_allclose(found.dispersion[j], dispersion, rtol=1e-4)
        parts = A * f / mu[:, None]  # information on log f, and on log e
        both = np.column_stack([parts, np.eye(2)[batch]])
        information = (both * x[:, None]).T @ both
        c, variances = np.array([1, -1]), []
        for pseudo in (1.0, OF_TESTS):
            prior = np.diag([pseudo, pseudo, a, a])
            V = np.linalg.inv(information + prior)[:2, :2]
            known = np.linalg.inv(information[:2, :2] + prior[:2, :2])
            variances.append((c @ V @ c, c @ known @ c))
        factor = max(dispersion, 1)
        assert_allclose(
            found.std_error[:, j], np.sqrt(variances[0][0] * factor) / np.log(2), rtol=1e-3
        )
        value = feature_regression(x, A, OF_TESTS)[1]
        equal = feature_regression(x, A, OF_TESTS, equal_topics(2, 1, 0))[1]
        share = variances[1][1] / variances[1][0]
        assert share < 0.9
        z = np.sqrt(2 * (equal - value) * share / factor)
        assert_allclose(np.abs(found.z[:, j]), z, rtol=1e-3, atol=1e-4)
    of_mean = differential_features(model, X, reference="mean", **options)
    assert_allclose(of_mean.z, found.z, rtol=1e-6)  # with two topics


def test_efficiencies_of_features_that_the_fit_did_not_have_are_estimated():
    X, batch, _ = with_batches()
    counts = pd.DataFrame(X).rename("g{}".format, axis=1)
    model = TopicModel(2, random_state=0).fit(counts.iloc[:, :30], batch=batch)
    found = differential_features(model, counts, split=None)
    a, j = model.batch_shape_, 35
    x, passed = X[:, j].astype(float), model.batch_efficiencies_ @ model.components_.T
    whole = X[:, :30].sum(axis=1) / (model.loadings_ * passed[batch]).sum(axis=1)
    A = np.maximum(model.loadings_, 1e-10) * whole[:, None]
    T, S = (np.array([V[batch == b].sum(axis=0) for b in (0, 1)]) for V in (x, A))
    f = np.full(2, x.sum() / A.sum())
    for _ in range(2000):
        e = (a + T) / (a + S @ f)
        f = f * (A.T @ (x / (A @ f))) / (e @ S)
    f, _ = feature_regression(x, A * e[batch][:, None])
    assert np.abs(np.log(e)).max() > 0.1
    assert_allclose(found.frequencies[:, j], f, rtol=0.01)


@pytest.mark.slow
def test_batches_that_differ_in_topics_and_efficiencies_keep_the_level():
    """Where efficiencies are taken as known, 15% are below 0.05; without batches, 60%."""
    rng, n, m = np.random.default_rng(0), 600, 400
    null, batch = np.arange(m) % 2 == 0, np.arange(n) % 2
    common, own = rng.gamma(1, 1, m) + 0.05, rng.gamma(0.4, 1, (m, 2))
    F = np.where(null, common / common[null].sum(), 0)[:, None] + np.where(
        null[:, None], 0, own / own[~null].sum(axis=0)
    )
    share = rng.beta(np.where(batch, 1, 3), np.where(batch, 3, 1))
    means = 200 * np.column_stack([share, 1 - share]) @ F.T
    X = rng.poisson(means * np.exp(rng.normal(0, 0.5, (2, m)))[batch])
    shares = {}
    for batches in (None, batch):
        model = TopicModel(2, random_state=0).fit(X, batch=batches)
        p = differential_features(model, X, random_state=0).pvalue[0]
        shares[batches is None] = (p[null] < 0.05).mean(), (p[~null] < 0.05).mean()
    assert shares[True][0] > 0.4 and shares[False][0] < 0.11 and shares[False][1] > 0.6, shares


@pytest.mark.parametrize("reference", ["least-extreme", "mean", [0, 2]])
def test_errors_between_units_are_those_of_the_oracle(loadings, reference):
    """One Newton step without each unit, in plain NumPy; t tests of differences of frequencies.

    So few features are not moderated.
    """
    features = np.arange(5, 60, 5)
    options = {"units": UNITS, "reference": reference, "size_factors": SMALL.sum(axis=1)}
    found = differential_features(loadings, SMALL[:, features], **options)
    A, totals = design_of(loadings), design_of(loadings).sum(axis=0)
    for j in (0, 4):
        x = SMALL[:, features[j]].astype(float)
        f, _ = feature_regression(x, A)
        mu, J = A @ f, np.diag(1 / f**2)
        parts = [A[UNITS == u] * (x / mu)[UNITS == u, None] for u in range(11)]
        of_unit = [(part / mu[UNITS == u, None]).T @ A[UNITS == u] for u, part in enumerate(parts)]
        J += sum(of_unit)
        without = np.array([
            np.linalg.solve(J - of_unit[u], A[UNITS == u].sum(axis=0) - parts[u].sum(axis=0))
            for u in range(11)
        ])  # fmt: skip
        without -= without.mean(axis=0)
        V = without.T @ without * 10 / 11
        for k in range(K):
            weights = np.zeros(K)
            if reference == "least-extreme":
                pairs = [np.eye(K)[k] - np.eye(K)[i] for i in range(K) if i != k]
                weights[found.least_extreme[k, j]] = 1
            else:
                members = [i for i in (range(K) if reference == "mean" else reference) if i != k]
                weights[members] = totals[members] / totals[members].sum()
                pairs = [np.eye(K)[k] - weights]
            z = min(abs(c @ f) / np.sqrt(c @ V @ c) for c in pairs)
            assert_allclose(abs(found.z[k, j]), z, rtol=1e-4)
            assert_allclose(found.pvalue[k, j], 2 * student.sf(z, 10), rtol=1e-3)
            log_scale = np.eye(K)[k] / f[k] - weights / (weights @ f)
            error = np.sqrt(log_scale @ V @ log_scale) / np.log(2)
            if reference == "mean":
                error *= 1 - f[k] * totals[k] / (f @ totals)
            assert_allclose(found.std_error[k, j], error, rtol=1e-4)
    assert found.freedom == 10 and found.n_units == 11 and "errors between 11 units" in repr(found)


def test_variances_between_units_are_moderated_over_features(loadings):
    """As limma does, relative to a trend: that of Poisson counts, and that of units that differ."""
    options = {"units": UNITS, "reference": 0, "size_factors": SMALL.sum(axis=1)}
    found = differential_features(loadings, SMALL, **options)
    # so few features are not moderated
    parts = [differential_features(loadings, SMALL[:, j::4], **options) for j in range(4)]
    A = design_of(loadings)
    u = A.sum(axis=0)
    shares = np.array([A[UNITS == unit].sum(axis=0) for unit in range(11)]) / u
    f, z = found.frequencies, np.empty((K, 60))
    for j, part in enumerate(parts):
        z[:, j::4] = part.z
    variances, trends, ratios = [], [], []
    for k, i in ((0, 1), (1, 0), (2, 0)):  # a topic that is its own reference has a part, too
        V = ((f[k] - f[i]) / z[max(k, i)]) ** 2
        poisson = f[k] / u[k] + f[i] / u[i]
        of_units = (f[[k, i]] ** 2 * (shares**2).sum(axis=0)[[k, i], None]).sum(axis=0)
        kept = f[k] * u[k] + f[i] * u[i] >= 10
        equal = poisson[kept].sum() / of_units[kept].sum()
        logs = [np.log(V / (poisson + r * equal * of_units)) for r in _SHARES_OF_UNITS]
        best = np.argmin([values[kept].var() for values in logs])
        mean = logs[best][kept].mean()
        variances.append(V)
        trends.append((poisson + _SHARES_OF_UNITS[best] * equal * of_units) * np.exp(mean))
        ratios.append(np.exp(logs[best][kept] - mean))
    spread = np.log(np.concatenate(ratios)).var(ddof=1) - polygamma(1, 5)
    d0 = 2 * brentq(lambda half: polygamma(1, half) - spread, 1e-3, 1e6)
    s0 = np.exp(digamma(d0 / 2) - np.log(d0 / 2) - digamma(5) + np.log(5))
    assert 2 < d0 < 200 and found.freedom == pytest.approx(10 + d0, rel=1e-6)
    for k in (1, 2):
        moderated = (d0 * s0 * trends[k] + 10 * variances[k]) / (d0 + 10)
        assert_allclose(np.abs(found.z[k]), np.abs(f[k] - f[0]) / np.sqrt(moderated), rtol=1e-5)
        factor = np.sqrt(moderated / variances[k])
        plain = np.concatenate([part.std_error[k] for part in parts])
        order = np.concatenate([np.arange(j, 60, 4) for j in range(4)])
        assert_allclose(found.std_error[k, order], plain * factor[order], rtol=1e-5)
    assert_allclose(found.pvalue, 2 * student.sf(np.abs(found.z), found.freedom), rtol=1e-6)


def test_many_topics_and_every_instruction_set():
    rng = np.random.default_rng(0)
    L = rng.dirichlet([0.3] * 14, len(SMALL))
    found = {}
    for level in kernels.available_levels():
        with at_level(level):
            found[level] = differential_features(L, SMALL, n_threads=2)
    best = found[kernels.level()]
    for level, result in found.items():
        assert_allclose(result.z, best.z, atol=1e-5)
        assert level == "baseline" or bits(result) == bits(best)
    f, _ = feature_regression(SMALL[:, 5].astype(float), design_of(L))
    assert_allclose(best.frequencies[:, 5], f, rtol=1e-4)
    assert np.isfinite(best.std_error).all() and (best.lfsr <= 1).all()


@pytest.mark.parametrize("reference", ["mean", 1, [0, 2]])
def test_other_references(loadings, reference):
    found = differential_features(loadings, SMALL, reference=reference)
    A, j = design_of(loadings), 5
    factor = np.maximum(found.dispersion[j], 1)
    x, totals = SMALL[:, j].astype(float), design_of(loadings).sum(axis=0)
    f, _ = feature_regression(x, A)
    value = feature_regression(x, A, OF_TESTS)[1]
    for k in range(K):
        members = range(K) if reference == "mean" else np.atleast_1d(reference)
        rest = [each for each in members if each != k]
        if not rest:
            assert (found.z[k] == 0).all() and (found.pvalue[k] == 1).all()
            assert k not in set(found.to_frame().topic)
            continue
        weights = np.zeros(K)
        weights[rest] = totals[rest] / totals[rest].sum()
        equal = feature_regression(x, A, OF_TESTS, equal_to_mean(weights, k))[1]
        of_change = weights if reference != "mean" else totals / totals.sum()
        lfc = np.log2(f[k] / (of_change @ f))
        assert_allclose(found.lfc[k, j], lfc, atol=1e-4)
        assert_allclose(
            found.z[k, j], np.sign(lfc) * np.sqrt(2 * (equal - value) / factor), rtol=1e-3
        )


def test_tables_have_what_enrichment_tools_read(found):
    frame = found.to_frame()
    assert len(frame) == K * 60 and not frame.isna().any(axis=None)
    assert (frame.groupby("topic").z.diff().dropna() <= 0).all()
    first = frame[frame.topic == 1].iloc[0]
    at = 1, int(first.feature)
    assert first.lfc == found.lfc[at] and first.pvalue == found.pvalue[at]
    known = found.std_error.any(axis=0)
    assert_array_equal(found.qvalue[1, known], false_discovery_control(found.pvalue[1, known]))
    table, ranks = found.rank_genes_groups_df(1), found.rank_genes_groups()
    assert list(table) == ["names", "scores", "logfoldchanges", "pvals", "pvals_adj"]
    assert (
        table.names.tolist()
        == ranks["names"]["1"].tolist()
        == [str(each) for each in frame[frame.topic == 1].feature]
    )
    assert_allclose(ranks["scores"]["1"], table.scores, rtol=1e-6)
    scanpy = pytest.importorskip("scanpy", reason="compares with scanpy's own table")
    import anndata

    adata = anndata.AnnData(np.zeros((1, 60)), uns={"rank_genes_groups": ranks})
    theirs = scanpy.get.rank_genes_groups_df(adata, "1")
    pd.testing.assert_frame_equal(theirs, table, check_dtype=False, rtol=1e-6)


def test_a_known_truth_is_found():
    """Features of one topic lead its table; the others are seldom called different."""
    rng = np.random.default_rng(0)
    frequencies = np.full((K, 200), 5.0) * rng.gamma(2, 0.5, 200)
    for k in range(K):
        frequencies[k, 10 * k : 10 * k + 10] *= 8
    L = rng.dirichlet([0.3] * K, 300)
    sizes = rng.gamma(4, 0.25, 300)
    X = rng.poisson(L @ frequencies * sizes[:, None])
    model = TopicModel(K, random_state=0).fit(X)
    found = differential_features(model, X)
    match = model.transform(X).T @ L
    for k in range(K):
        frame = found.to_frame(int(match[:, k].argmax()))
        assert set(frame.feature[:10]) == set(range(10 * k, 10 * k + 10))
        assert (frame.lfsr[:10] < 0.01).all() and (frame.lfc[:10] > 1.5).all()
    null = found.qvalue[:, 30:] <= 0.05
    assert null.mean() < 0.02
    held = differential_features(L, X, reference=0, size_factors=sizes)  # the truth: p are valid
    assert 0.02 < (held.pvalue[1:, 30:] <= 0.05).mean() < 0.08


def test_intervals_and_tests_agree():
    """An interval includes 0 if and only if p > 0.05, also if a topic has none of a feature."""
    rng = np.random.default_rng(5)
    L = rng.dirichlet([0.2] * K, 120)
    frequencies = np.full((K, 200), 0.3) * rng.gamma(1, 1, 200)
    frequencies[0, :60], frequencies[1:, :60] = 1.5 * rng.gamma(1, 1, 60), 0
    X = rng.poisson(L @ frequencies * rng.gamma(4, 0.25, (120, 1)))
    for options in ({}, {"units": np.arange(120) % 12}, {"reference": "mean"}, {"reference": 1}):
        found = differential_features(L, X, **options)
        outside = (found.lower > 0) | (found.upper < 0)
        tested = found.std_error > 0
        assert_array_equal(outside[tested], found.pvalue[tested] <= 0.05)
        assert 40 < outside.sum() < 500
        assert (found.lower <= found.lfc).all() and (found.lfc <= found.upper).all()
        frame = found.to_frame(0)
        up = frame[frame.lfc > 0]
        assert (up.pvalue.diff().dropna() >= 0).all()  # sorted by what decides


@pytest.mark.parametrize("dispersion", [0.5, *at_night(0.1, 1.0)])
def test_counts_that_vary_more_than_poisson_counts_keep_the_level(dispersion):
    rng = np.random.default_rng(0)
    L, X = rng.dirichlet([0.3] * 2, 150), rng.poisson(5 * rng.gamma(
        1 / dispersion, dispersion, (150, 400)
    ))  # fmt: skip
    quasi, poisson = (
        differential_features(L, X, size_factors=np.ones(150), family=family)
        for family in ("quasi-poisson", "poisson")
    )
    assert 0.02 < (quasi.pvalue[0] < 0.05).mean() < 0.08
    assert (poisson.pvalue[0] < 0.05).mean() > 0.08


@pytest.mark.filterwarnings("ignore:there are .* units")
@pytest.mark.parametrize("n_units", [8, *at_night(4, 20)])
def test_donors_keep_the_level(n_units):
    """Frequencies vary between donors, which have unequal shares of the topics."""
    rng, rejected, as_samples = np.random.default_rng(1), [], []
    units = np.repeat(np.arange(n_units), 40)
    for _ in range(4):
        L = np.stack([
            rng.dirichlet(1.5 * share + 1e-3) for share in rng.dirichlet([1.0] * 3, n_units)[units]
        ])  # fmt: skip
        frequencies = 5 * np.exp(rng.normal(0, 0.3, (n_units, 3, 80)))
        X = rng.poisson(np.einsum("ik,ikj->ij", L, frequencies[units]))
        options = {"reference": 0, "size_factors": np.ones(len(X))}
        rejected.append(differential_features(L, X, units=units, **options).pvalue[1:] < 0.05)
        as_samples.append(differential_features(L, X, **options).pvalue[1:] < 0.05)
    assert 0.01 < np.mean(rejected) < 0.09
    assert np.mean(as_samples) > 0.2


@pytest.mark.filterwarnings("ignore:there are 8 units")
@pytest.mark.parametrize("fold", [1, 4])
def test_topics_that_may_be_differences_between_units_are_named(fold):
    """A fit to counts that differ between donors only, and to those of two cell types."""
    rng = np.random.default_rng(0)
    units, L = np.repeat(np.arange(8), 15), rng.dirichlet([0.4, 0.4], 120)
    frequencies = np.repeat(5 * np.exp(rng.normal(0, 0.3, (8, 1, 100))), 2, axis=1)
    frequencies[:, 0, :20] *= fold
    X = rng.poisson(np.einsum("ik,ikj->ij", L, frequencies[units]))
    model = TopicModel(2, random_state=0).fit(X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        differential_features(model, X, units=units, random_state=0)
        differential_features(model.loadings_, X, units=units)
    named = [str(w.message) for w in caught if "is between units" in str(w.message)]
    assert len(named) == (1 if fold == 1 else 0)  # not of proportions from elsewhere
    assert fold > 1 or re.search(r"of topics 0 \(\d\d%\), 1 \(\d\d%\) is between units", named[0])


def test_few_units_and_topics_of_one_unit_are_named(loadings):
    with pytest.warns(UserWarning, match="there are 4 units: with fewer than about 10"):
        differential_features(loadings, SMALL, units=UNITS % 4)
    alone = loadings.copy()
    alone[UNITS != 3, 1] = 0
    alone[UNITS == 3, 1] += 1
    with pytest.warns(UserWarning, match=r"one unit has most of topics 1 \(100% in unit 3\)"):
        differential_features(alone, SMALL, units=UNITS)
    with pytest.raises(ValueError, match="there is only one unit"):
        differential_features(loadings, SMALL, units=np.zeros(len(SMALL)))
    with pytest.raises(ValueError, match="units has 3 labels, and there are 90 samples"):
        differential_features(loadings, SMALL, units=[1, 2, 3])
    many = np.tile(loadings, (12, 1))
    with pytest.warns(UserWarning, match="each of 1,080 samples of all samples is a unit"):
        differential_features(many, np.tile(SMALL, (12, 1)))


@pytest.mark.filterwarnings("ignore:topics .* of the fit to 50%")
@pytest.mark.parametrize("dispersion", [0, 0.5, *at_night(1.0)])
def test_counts_without_any_difference_are_split_by_default(dispersion, tmp_path):
    """Tests of topics that were fitted to the same counts reject ten times as often."""
    rng = np.random.default_rng(3)
    X = rng.poisson(5 * (rng.gamma(1 / dispersion, dispersion, (150, 60)) if dispersion else
                         np.ones((150, 60))))  # fmt: skip
    model = TopicModel(2, random_state=0).fit(X)
    once, twice = (differential_features(model, X, random_state=1, split=s) for s in ("auto", None))
    assert (twice.pvalue < 0.05).mean() > 0.3
    assert (once.pvalue < 0.05).mean() < 0.1
    assert once.split == 0.5 and "fitted to 50% of the counts" in repr(once)
    write_store(X, tmp_path / "counts.nmf")
    again = differential_features(model, tmp_path / "counts.nmf", random_state=1)
    assert bits(again) == bits(once)


def test_without_a_split_there_are_effects_without_p(tmp_path):
    """Where counts of the fit cannot be split, and where they are not those of the fit."""
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.poisson(4, (90, 30)), columns=[f"g{j}" for j in range(30)])
    model = TopicModel(2, random_state=0).fit(X)
    few = TopicModel(2, random_state=0).fit(X[["g0", "g1", "g2"]])
    half = TopicModel(2, random_state=0, integer="allow").fit(X / 2)
    found = differential_features(half, X / 2)
    for name, value in {
        "only counts that are whole numbers": found,
        "the other features of the fit, such as 'g3'": differential_features(model, X.iloc[:, :3]),
        "too few to split": differential_features(few, X[["g0", "g1", "g2"]]),
        "features without names cannot": differential_features(model, X.to_numpy()[:, :9]),
    }.items():  # fmt: skip
        assert name in value.no_pvalues and "no p-values" in repr(value)
    assert found.pvalue is found.qvalue is found.lfsr is found.lower is None
    assert list(found.to_frame().columns[:5]) == ["topic", "feature", "lfc", "std_error", "z"]
    assert "pvals" not in found.rank_genes_groups() and "pvals" not in found.rank_genes_groups_df()
    found.save(tmp_path / "found.h5")
    assert load_result(tmp_path / "found.h5").no_pvalues == found.no_pvalues
    others = X.rename(columns=lambda name: f"new {name}")
    assert "no feature of X has the name" in differential_features(model, others).no_pvalues
    more = X.join(others)
    of_all = differential_features(model, more, random_state=0)
    assert of_all.split == 0.5 and of_all.z.shape == (2, 60)
    assert differential_features(model, X, split=None).pvalue is not None


@pytest.mark.parametrize("told", ["outer join", *at_night("measured")])
def test_entries_that_were_not_measured_are_left_out(told):
    """Half of the samples lack ten features: changes are those of the truth, also of the others."""
    rng = np.random.default_rng(0)
    frequencies = 4 * rng.gamma(2, 0.5, (K, 60))
    L, sizes = rng.dirichlet([0.3] * K, 240), rng.gamma(8, 0.125, (240, 1))
    complete = rng.poisson(L @ frequencies * sizes)
    X, lacking, batch = complete.copy(), np.arange(60) < 10, np.repeat([0, 1], 120)
    X[:120, lacking] = 0
    measured = np.array([~lacking, np.ones(60, bool)])
    counts, options = as_counts(X), {"measured": measured, "panel": batch}
    if told == "outer join":  # what concat leaves in its result
        counts.measured, options = (measured, batch), {}
    model = TopicModel(K, random_state=0).fit(counts, **options)
    order = np.argmax(model.loadings_.T @ L, axis=0)
    found = differential_features(model, counts, random_state=0, reference=int(order[0]))
    for k in (1, 2):
        change = np.log2(frequencies[k] / frequencies[0])
        apart = np.abs(found.lfc[order[k]] - change)
        assert np.median(apart[lacking]) < 0.55 and np.median(apart[~lacking]) < 0.35
    assert_allclose(found.base_mean[:10], complete[120:, :10].mean(axis=0) / 2, rtol=0.1)
    if told == "outer join":
        with pytest.raises(
            ValueError, match=r"1,200 entries that were not measured.*size_factors="
        ):
            differential_features(model.loadings_, counts)


def test_tails_of_the_normal_distribution():
    x = np.concatenate([[0], np.linspace(1e-3, 37, 500)])
    assert_allclose(normal_tail(x), ndtr(-x), rtol=1e-11)


def test_tails_of_the_t_distribution():
    t = np.concatenate([[0], np.geomspace(1e-3, 60, 300)])
    for freedom in (1, 3, 7.5, 40, 900):
        assert_allclose(t_pvalue(t, freedom), 2 * student.sf(t, freedom), rtol=1e-9, atol=1e-300)


def test_shrinkage_finds_effects_and_their_signs():
    rng = np.random.default_rng(0)
    effects = np.where(rng.random(3000) < 0.7, 0, rng.normal(0, 2, 3000))
    errors = rng.gamma(2, 0.5, 3000) + 0.05
    seen = effects + errors * rng.normal(size=3000)
    found = shrink(seen, errors)
    raw, shrunken = ((each - effects) ** 2 for each in (seen, found.means))
    assert shrunken.mean() < 0.4 * raw.mean()
    called = found.lfsr < 0.05
    assert called.sum() > 150
    assert (np.sign(found.means[called]) != np.sign(effects[called])).mean() < 0.05


def test_the_same_bits_with_any_threads_from_files_and_resumed(
    loadings, small_blocks, monkeypatch, tmp_path
):
    ask = partial(differential_features, loadings, units=UNITS)
    found = ask(SMALL)
    internals.small_panels(monkeypatch, 600)
    write_store(SMALL, tmp_path / "counts.nmf")
    options = {"checkpoint": tmp_path / "job", "checkpoint_every": 0}
    n_panels, panels = [], []

    def press(original, step, panel, n_threads):
        panels.append(panel.lanes)
        if len(panels) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(step, panel, n_threads)

    with monkeypatch.context() as patch:
        internals.around_column_steps(patch, press)
        with pytest.warns(UserWarning, match=r"Ctrl-C ended the work: 32 of 60 features"):
            part = ask(SMALL, n_threads=2, **options)
        n_panels.append(len(panels))
        source = StoredCounts(tmp_path / "counts.nmf")
        again = ask(source, n_threads=1, resume=True, **options)
    assert n_panels == [2] and part.interrupted and "32 of 60 features" in repr(part)
    assert_array_equal(part.lfc, found.lfc[:, part.features])
    assert bits(again) == bits(found)
    with pytest.raises(ValueError, match="the inputs differ"):
        ask(SMALL, pseudocount=2, resume=True, **options)
    for X in (SMALL.astype(np.float32), tmp_path / "counts.nmf"):
        assert bits(ask(X, memory_limit="8GB")) == bits(found)


def test_a_resumed_job_has_the_split_of_its_checkpoint(small_blocks, monkeypatch, tmp_path):
    """Without a seed, the split is another one each time."""
    model = TopicModel(K, random_state=0).fit(SMALL)
    internals.small_panels(monkeypatch, 600)
    options = {"checkpoint": tmp_path / "job", "checkpoint_every": 0, "split": 0.5}

    def press(original, step, panel, n_threads):
        if panel.lanes.start == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return original(step, panel, n_threads)

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="Ctrl-C ended the work"):
        internals.around_column_steps(patch, press)
        part = differential_features(model, SMALL, **options)
    again = differential_features(model, SMALL, resume=True, **options)
    assert part.interrupted and not again.interrupted
    assert again.random_state == part.random_state
    assert_array_equal(again.z[:, part.features], part.z)
    seeded = differential_features(model, SMALL, split=0.5, random_state=part.random_state)
    assert bits(seeded) == bits(again)


@pytest.mark.nightly
def test_a_cluster_gives_the_same_bits(loadings, store):
    found = differential_features(loadings, SMALL, units=UNITS)
    with cluster_of(2) as client:
        options = {"client": client, "n_threads": 1, "units": UNITS}
        for source in (store, SMALL):
            ask = partial(differential_features, loadings, source, **options)
            assert bits(within(WALL, ask)) == bits(found)


def test_samples_are_matched_by_name(loadings, found):
    names = [f"s{i}" for i in range(len(SMALL))]
    table = pd.DataFrame(loadings, index=names).sample(frac=1, random_state=0)
    counts = pd.DataFrame(SMALL, index=names)
    assert bits(differential_features(table, counts)) == bits(found)
    model = TopicModel(K, random_state=0).fit(counts)
    ask = partial(differential_features, model, split=None)
    assert_allclose(ask(counts[::-1]).z, ask(counts).z, atol=1e-6)
    some = ask(counts.iloc[:, ::3])  # other features than the fit
    assert some.z.shape == (K, 20)
    with pytest.raises(ValueError, match="totals of .* samples differ, the first that of sample"):
        differential_features(model, SMALL[::-1])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"reference": "most"}, "reference='most' is not 'least-extreme', 'mean' or a topic"),
        ({"reference": 7}, "reference: 7 is not a topic; topics are 0, 1, 2"),
        ({"reference": [0, 1, 2]}, "at least one topic must be left"),
        ({"pseudocount": 0}, "pseudocount=0: a positive number"),
        ({"family": "gamma"}, "family='gamma' is not one of"),
        ({"split": 1.5}, "split=1.5: a share of the counts"),
        ({"split": 0.5}, "split=0.5 fits the topics again: a fitted model whose fit can"),
        ({"level": 2}, "level=2: a number between 0 and 1"),
        ({"resume": True}, "resume=True needs checkpoint="),
        ({"topic_names": ["a"]}, "topic_names has 1 different names; 3 are needed"),
        ({"memory_limit": "1MB"}, "the regressions of the features need"),
    ],
)
def test_wrong_arguments_are_named(loadings, options, match):
    with pytest.raises((ValueError, MemoryError), match=match):
        differential_features(loadings, SMALL, **options)


def test_wrong_samples_are_named(loadings):
    with pytest.raises(ValueError, match="X has 90 samples and the model 80"):
        differential_features(loadings[:80], SMALL)
    with pytest.raises(ValueError, match="there is 1 topic"):
        differential_features(loadings[:, :1], SMALL)
    empty = loadings.copy()
    empty[3] = 0
    with pytest.warns(UserWarning, match="1 samples of X have counts but no topics, the first is"):
        found = differential_features(empty, SMALL)
    assert np.isfinite(found.z).all()


@pytest.mark.nightly
def test_leading_genes_of_blood_cells(data_dir, reference_dir):
    """Known markers lead the topics of a real fit of sorted blood cells."""
    from gzip import open as gzip_open
    from json import load as json_load

    with gzip_open(data_dir / "pbmc_facs_meta.json.gz") as file:
        names = json_load(file)["col_symbol"]
    names = list(names.values()) if isinstance(names, dict) else names
    reference = np.load(reference_dir / "best_pbmc_facs_k6.npz")
    loadings = reference["L"] * reference["F"].sum(axis=0)
    found = differential_features(loadings, data_dir / "pbmc_facs.npz")
    for gene in ("CD3D", "CD79A", "NKG7", "LYZ", "S100A8"):
        j = names.index(gene)
        ranks = [(found.order(k) == j).argmax() for k in range(6)]
        assert min(ranks) < 10, gene
