"""Regression of proportions: least squares, tests by Freedman and Lane, the same bits."""

import pickle
import re
import warnings
from itertools import permutations

import numpy as np
import oracle_permutation as oracle
import pytest
import scipy.stats
from nmfscale.kernels.permute import permuted_orders
from oracle import (
    brown_forsythe,
    cluster_jackknife,
    draws_below,
    hc3,
    satterthwaite,
    spread_of_levels,
)

from nmfscale import group_effects, regress_proportions
from nmfscale.inference.regression.coefficient_tests import FreedmanLane, SignFlips
from nmfscale.inference.regression.least_squares import CoefficientsTask, LeastSquares
from nmfscale.inference.regression.robust import CR3, HC3
from nmfscale.inference.replicates.seeds import child, child_states

few = pytest.mark.filterwarnings("ignore:.*fewer than [25]0")


@pytest.fixture(scope="module")
def data():
    """Amounts of topics of three samples a unit, covariates of the units, and units."""
    rng = np.random.default_rng(0)
    units = rng.permutation(np.repeat(np.arange(150), 3))
    loadings = rng.gamma(0.7, size=(150, 4))[units] * rng.gamma(2, size=(450, 4))
    of_units = {
        "region": np.array(["east", "north", "west"])[np.arange(150) % 3],
        "age": rng.normal(50, 10, 150),
        "craft": rng.random(150) < 0.5,
    }
    return loadings, {name: each[units] for name, each in of_units.items()}, units


def unit_rows(loadings, covariates, units):
    """Return design and proportions of units, as the docs say."""
    rows = loadings / loadings.sum(axis=1, keepdims=True)
    Y = np.array([rows[units == u].mean(axis=0) for u in np.unique(units)])
    first = [np.flatnonzero(units == u)[0] for u in np.unique(units)]
    region = covariates["region"][first]
    X = [np.ones(len(first)), region == "north", region == "west"]
    X = np.column_stack([*X, covariates["age"][first], covariates["craft"][first]]).astype(float)
    return X, Y


def tvalue(X, y, j):
    """Return the absolute t-value of a coefficient with the standard error HC3."""
    b = np.linalg.lstsq(X, y, rcond=None)[0]
    return abs(b[j]) / np.sqrt(hc3(X, y)[j, j])


def freedman_lane(X, y, j, orders):
    """Return absolute t-values of residuals of the model without a term, permuted."""
    Z = np.delete(X, j, axis=1)
    fitted = Z @ np.linalg.lstsq(Z, y, rcond=None)[0]
    e = y - fitted
    return np.array([tvalue(X, fitted + e[list(order)], j) for order in orders])


def test_orders_are_those_of_the_oracle():
    sizes = np.array([1, 40, 7])
    states = np.random.default_rng(1).integers(2**64, size=(5, 4), dtype=np.uint64)
    orders = np.empty((5, 48), np.uint32)
    permuted_orders(sizes, states, orders, 2)
    starts = np.cumsum([0, *sizes])
    for state, found in zip(states, orders, strict=True):
        words, expected = oracle.random_words(state), []
        for first, n in zip(starts[:-1], sizes, strict=True):
            part = list(range(first, first + n))
            for i in range(n - 1):
                j = i + oracle.random_below(words, n - i)
                part[i], part[j] = part[j], part[i]
            expected += part
        assert found.tolist() == expected


def test_coefficients_are_those_of_lstsq(data):
    loadings, covariates, units = data
    found = regress_proportions(
        loadings, covariates, units=units, n_replicates=3, n_permutations=0, random_state=5,
        interval="percentile",
    )  # fmt: skip
    X, Y = unit_rows(loadings, covariates, units)
    assert found.terms == ("Intercept", "region[T.north]", "region[T.west]", "age", "craft")
    assert found.rows == found.units == "units" and found.n_units == 150 and found.pvalue is None
    expected = np.linalg.lstsq(X, Y, rcond=None)[0]
    np.testing.assert_allclose(found.coefficients, expected.T, rtol=1e-9)
    for r, replicate in enumerate(found.replicates):
        state = child(np.random.SeedSequence(5), r).generate_state(4, np.uint64)
        drawn = np.array(next(iter(draws_below(state, [150]))))
        expected = np.linalg.lstsq(X[drawn], Y[drawn], rcond=None)[0]
        np.testing.assert_allclose(replicate, expected.T, rtol=1e-8, atol=1e-12)


def test_errors_are_those_of_the_textbook(data):
    loadings, covariates, units = data
    how = {"units": units, "n_permutations": 0, "moderated": False}
    found = regress_proportions(loadings, covariates, **how)
    X, Y = unit_rows(loadings, covariates, units)
    ends = found.combine({"Intercept": 1, "age": 50, "craft": 1})
    a = np.array([1.0, 0, 0, 50, 1])
    spread = spread_of_levels(X, Y, X[:, [1, 2, 4]] @ [1, 2, 4])
    how = {"clusters": np.arange(150), "factors": np.sqrt(spread)}
    for t in range(4):
        V = hc3(X, Y[:, t])
        np.testing.assert_allclose(found.std_error[t], np.sqrt(np.diag(V)), rtol=1e-8)
        half = found.upper[t] - found.coefficients[t]
        df = [satterthwaite(X, each, **how) for each in np.eye(5)]
        np.testing.assert_allclose(found.degrees_of_freedom[t], df, rtol=1e-7)
        expected = np.sqrt(np.diag(V)) * scipy.stats.t.ppf(0.975, df)
        np.testing.assert_allclose(half, expected, rtol=1e-7)
        error = np.sqrt(a @ V @ a)
        assert ends["std_error"][t] == pytest.approx(error, rel=1e-7)
        half = error * scipy.stats.t.ppf(0.975, satterthwaite(X, a, **how))
        assert ends["upper"][t] - ends["value"][t] == pytest.approx(half, rel=1e-7)


@pytest.mark.parametrize("equal_weights", ["units", "samples"])
def test_covariates_that_differ_within_units(data, equal_weights):
    loadings, covariates, units = data
    kept = np.arange(450) % 7 > units % 4  # units of several sizes
    loadings, units = loadings[kept], units[kept]
    given = {
        "abv": np.random.default_rng(2).normal(5, 1, 450)[kept],
        "age": covariates["age"][kept],
    }
    args = {"units": units, "equal_weights": equal_weights, "random_state": 5, "moderated": False}
    found = regress_proportions(loadings, given, n_permutations=40, **args)
    X = np.column_stack([np.ones(len(units)), given["abv"], given["age"]])
    Y = loadings / loadings.sum(axis=1, keepdims=True)
    sizes = np.unique(units, return_counts=True)[1][np.unique(units, return_inverse=True)[1]]
    w = 1 / sizes if equal_weights == "units" else np.ones(len(units))
    assert found.rows == "samples" and found.units == "units" and found.test == "sign flips"
    assert f"units by their samples, each {equal_weights[:-1]} counts once" in repr(found)

    def fitted(y, X=X):
        return np.linalg.lstsq(X * np.sqrt(w)[:, None], y * np.sqrt(w), rcond=None)[0]

    np.testing.assert_allclose(found.coefficients, fitted_of(Y, fitted).T, rtol=1e-8)
    V = [cluster_jackknife(X, y, units, w) for y in Y.T]
    errors = np.sqrt([np.diag(each) for each in V])
    np.testing.assert_allclose(found.std_error, errors, rtol=1e-7)
    df = [satterthwaite(X, each, units, w) for each in np.eye(3)]
    np.testing.assert_allclose(found.degrees_of_freedom[0], df, rtol=1e-7)
    # residuals of the model without the term, of whole units with one sign
    y, Z, names = Y[:, 1], np.delete(X, 1, axis=1), np.unique(units)
    expected = Z @ fitted(y, Z)
    t = np.abs(fitted(y)[1]) / np.sqrt(V[1][1, 1])
    signs, seed = np.empty(len(units)), child(np.random.SeedSequence(5), 0)
    n_extreme = 0
    for r in range(40):
        flips = 2 * np.random.default_rng(child(seed, r)).integers(2, size=names.size) - 1
        for u, sign in zip(names, flips, strict=True):
            signs[units == u] = sign
        of = expected + signs * (y - expected)
        n_extreme += np.abs(fitted(of)[1]) / np.sqrt(cluster_jackknife(X, of, units, w)[1, 1]) >= t
    assert found.pvalue_permutation[1, 1] == (n_extreme + 1) / 41
    replicates = regress_proportions(
        loadings, given, n_permutations=0, n_replicates=2, interval="percentile", **args
    ).replicates
    state = child(np.random.SeedSequence(5), 1).generate_state(4, np.uint64)
    drawn = names[np.array(next(iter(draws_below(state, [names.size]))))]
    copies = np.concatenate([np.flatnonzero(units == u) for u in drawn])
    root = np.sqrt(w)[copies]
    of = np.linalg.lstsq(X[copies] * root[:, None], Y[copies] * root[:, None], rcond=None)[0]
    np.testing.assert_allclose(replicates[1], of.T, rtol=1e-7)


def fitted_of(Y, fitted):
    return np.column_stack([fitted(y) for y in Y.T])


@few
def test_exact_sign_flips():
    rng = np.random.default_rng(1)
    units, x = np.repeat(np.arange(7), 4), rng.normal(size=28)
    rows = rng.dirichlet(np.ones(3), 28)
    found = regress_proportions(rows, {"x": x}, units=units, n_permutations=64, moderated=False)
    assert found.exact and found.n_labellings == 64 and found.smallest_pvalue == 1 / 64
    X, z, n_extreme = np.column_stack([np.ones(28), x]), rows[:, 2], 0
    mean = z.mean()
    t = np.abs(np.linalg.lstsq(X, z, rcond=None)[0][1])
    t /= np.sqrt(cluster_jackknife(X, z, units)[1, 1])
    for bits in range(64):
        of = mean + (z - mean) * (1 - 2.0 * (bits >> units & 1))
        b = np.abs(np.linalg.lstsq(X, of, rcond=None)[0][1])
        n_extreme += b / np.sqrt(cluster_jackknife(X, of, units)[1, 1]) >= t * (1 - 1e-9)
    assert found.pvalue_permutation[2, 1] == n_extreme / 64


@pytest.mark.parametrize("interval", ["percentile", "bca"])
def test_a_label_of_two_levels_is_the_difference_of_groups(data, interval):
    loadings, covariates, units = data
    craft = covariates["craft"]
    args = {"units": units, "n_replicates": 400, "interval": interval, "random_state": 2}
    found = regress_proportions(loadings, {"craft": craft}, n_permutations=0, **args)
    options = {"units": units, "moderated": False, "n_permutations": 999}
    robust = regress_proportions(loadings, {"craft": craft}, random_state=1, **options)
    of_groups = group_effects(loadings, craft, random_state=2, **options)
    by_groups = of_groups.differences(True)
    np.testing.assert_allclose(robust.upper[:, 1], -by_groups.lower[:, 0], atol=0.001)
    np.testing.assert_allclose(
        robust.pvalue_permutation[:, 1], of_groups.pvalue_permutation, atol=0.06
    )
    groups = group_effects(loadings, craft, n_permutations=9, **args)
    differences = groups.differences(False)
    np.testing.assert_allclose(found.coefficients[:, 1], differences.differences[:, 0], rtol=1e-9)
    np.testing.assert_allclose(found.coefficients[:, 0], groups.means[:, 0], rtol=1e-9)
    # as many units are drawn in all, but not of each level
    np.testing.assert_allclose(found.lower[:, 1], differences.lower[:, 0], atol=0.012)
    np.testing.assert_allclose(found.upper[:, 1], differences.upper[:, 0], atol=0.012)


@few
def test_exact_pvalues_of_one_covariate_are_those_of_permuted_rows():
    rng = np.random.default_rng(3)
    Y = rng.integers(1, 4, (6, 3)).astype(float)  # with ties
    x = np.array([1.0, 2, 2, 5, 7, 2])
    found = regress_proportions(Y, {"x": x}, n_permutations=720)
    Y /= Y.sum(axis=1, keepdims=True)
    X = np.column_stack([np.ones(6), x])
    for y, p in zip(Y.T, found.pvalue_permutation, strict=True):
        null = np.array([tvalue(X, y[list(order)], 1) for order in permutations(range(6))])
        assert np.isnan(p[0])
        assert p[1] == pytest.approx(np.mean(null >= tvalue(X, y, 1) * (1 - 1e-9)))
    assert found.exact and found.smallest_pvalue == pytest.approx(1 / found.n_labellings)


def test_random_pvalues_are_those_of_freedman_and_lane(data):
    loadings, covariates, units = data
    n = 60
    how = {"n_permutations": n, "random_state": 7, "moderated": False}
    found = regress_proportions(loadings, covariates, units=units, **how)
    X, Y = unit_rows(loadings, covariates, units)
    orders = np.empty((n, 150), np.uint32)
    seed = child(np.random.SeedSequence(7), 0)
    permuted_orders(np.array([150]), child_states(seed, range(n)), orders, 1)
    # residuals stay, and terms are permuted: the same as residuals by the inverse
    inverse = np.argsort(orders, axis=1)
    for t, j in (0, 1), (2, 3), (3, 4):
        null = freedman_lane(X, Y[:, t], j, inverse)
        b = (null >= tvalue(X, Y[:, t], j)).sum()
        assert found.pvalue_permutation[t, j] == (b + 1) / (n + 1)
    assert np.isnan(found.pvalue_permutation[:, 0]).all() and not found.exact
    assert found.untested == {"Intercept": "it is the constant of the model"}
    # the region as a whole, of residuals of the model without it
    assert found.covariates == ("region",)
    Z, y = np.delete(X, [1, 2], axis=1), Y[:, 1]
    fitted = Z @ np.linalg.lstsq(Z, y, rcond=None)[0]
    e = y - fitted
    t = [robust_f(X, fitted + e[order], [1, 2]) for order in [np.arange(150), *inverse]]
    b = (np.array(t[1:]) >= t[0]).sum()
    assert found.covariate_pvalue_permutation[1, 0] == (b + 1) / (n + 1)
    frame = found.to_frame("covariates")
    assert frame.columns.tolist() == [
        "topic",
        "covariate",
        "pvalue_permutation",
        "pvalue_maxt",
        "qvalue",
    ]
    # the largest of all topics
    t = np.array([[tvalue(X, y, 3), *freedman_lane(X, y, 3, inverse)] for y in Y.T])
    most = t[:, 0].argmax()
    b = (t[:, 1:].max(axis=0) >= t[most, 0]).sum()
    assert found.pvalue_maxt[most, 3] == (b + 1) / (n + 1)
    assert (found.pvalue_maxt[:, 3] >= found.pvalue_permutation[:, 3]).all()


def robust_f(X, y, columns):
    """Sum of squares that terms explain, over that expected of units of unequal spread."""
    Q = np.linalg.qr(X)[0]
    Z = np.linalg.qr(np.delete(X, columns, axis=1))[0]
    h, h0, e = (Q**2).sum(axis=1), (Z**2).sum(axis=1), y - Q @ (Q.T @ y)
    between = ((Q.T @ y) ** 2).sum() - ((Z.T @ y) ** 2).sum()
    return between / ((h - h0) * (e / (1 - h)) ** 2).sum()


@few
def test_levels_of_a_label_are_tested_as_groups_are():
    rng = np.random.default_rng(0)
    rows, labels = rng.dirichlet(np.ones(3), 9), np.array(list("aabbbcccc"))
    found = regress_proportions(rows, {"x": labels}, n_permutations=2000, moderated=False)
    groups = group_effects(rows, labels, n_permutations=2000)
    assert found.exact and groups.exact
    np.testing.assert_allclose(found.covariate_pvalue_permutation[:, 0], groups.pvalue_permutation)
    np.testing.assert_allclose(found.covariate_pvalue_maxt[:, 0], groups.pvalue_maxt)
    X = np.column_stack([np.ones(9), labels == "b", labels == "c"]).astype(float)
    assert robust_f(X, rows[:, 0], [1, 2]) == pytest.approx(brown_forsythe(rows[:, 0], labels))


@pytest.mark.nightly
@few
@pytest.mark.parametrize(("wide", "narrow"), [(3, 100), (100, 3)])
def test_size_of_two_groups_beside_a_large_third(wide, narrow):
    """Two equal groups of units, and a third of another spread that is in the model only."""
    rng, labels, p, covered = (
        np.random.default_rng(0),
        np.repeat(list("abc"), [12, 12, 100]),
        [],
        [],
    )
    spread = np.where(labels == "c", narrow, wide)[:, None] / 4
    for seed in range(300):
        rows = rng.gamma(np.ones(4) * spread)
        found = regress_proportions(rows, {"x": labels}, n_permutations=199, random_state=seed)
        p.append(found.pvalue_permutation[0, 1] <= 0.05)
        covered.append(found.lower[0, 1] <= 0 <= found.upper[0, 1])
    error = np.sqrt(0.05 * 0.95 / 300)
    assert abs(np.mean(p) - 0.05) <= 3 * error and abs(np.mean(covered) - 0.95) <= 3 * error


def test_tests_and_intervals_have_the_same_errors(data):
    X, Y = unit_rows(*data)
    fit, units, one = LeastSquares.of(X, Y), np.repeat(np.arange(50), 3), np.eye(5)
    terms, factors = ((1,), (3,)), np.linspace(0.8, 1, 50)
    for errors, task in [
        (HC3(fit, np.ones(150)), FreedmanLane(fit, terms, np.array([150]))),
        (CR3(fit, units, factors), SignFlips(fit, terms, units, factors)),
    ]:
        variances, _ = errors.variances(one)
        t = [fit.coefficients[j] / np.sqrt(variances[:, j]) for (j,) in terms]
        np.testing.assert_allclose(task.observed, np.array(t) ** 2, rtol=1e-8)


@few
def test_labels_of_many_levels():
    rng = np.random.default_rng(0)
    labels = np.array([f"style {i:03}" for i in np.repeat(np.arange(40), 3)] + ["style 040"])
    rows = rng.dirichlet(np.ones(3), labels.size)
    found = regress_proportions(rows, {"style": labels}, n_permutations=9, random_state=0)
    assert found.coefficients.shape == (3, 41) and np.isfinite(found.upper).all()
    assert found.covariate_pvalue_permutation.shape == (3, 1)
    with pytest.raises(ValueError, match="pass interval='t', join levels"):
        regress_proportions(rows, {"style": labels}, interval="percentile")


def test_a_unit_that_determines_a_coefficient_alone_is_named():
    rng = np.random.default_rng(0)
    units = np.repeat(list("abcdefgh"), 5)
    x = np.where(units == "c", rng.normal(size=40), 0.0)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="without unit 'c' the coeff"):
        regress_proportions(rng.dirichlet(np.ones(3), 40), {"x": x}, units=units)


def warnings_of(rows, covariates, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regress_proportions(rows, covariates, n_permutations=0, **options)
    return [str(warning.message) for warning in caught]


def test_levels_that_differ_in_spread_are_warned_of():
    rng, labels = np.random.default_rng(0), np.repeat(list("abc"), [40, 40, 60])
    tables = {"label": {"g": labels, "x": rng.normal(size=140)}, "number": {"g": labels == "c"}}
    for what, covariates in tables.items():
        level = {"label": "'g.T.c.'", "number": "'g = 1'"}[what]
        wide = np.where(labels == "c", 2, 40)[:, None]
        texts = warnings_of(rng.gamma(np.ones(4) * wide), covariates)
        (text,) = [text for text in texts if "varies more" in text]
        assert re.search(f"topic [0-3] varies more in group {level} than in group '", text)
        assert "and of 3 more topics" in text
        texts = warnings_of(rng.gamma(np.full((140, 4), 2.0)), covariates)
        assert not any("varies more" in text for text in texts)


@pytest.mark.parametrize("within", [False, True])
def test_topics_of_few_units_are_warned_of(within):
    rng, units = np.random.default_rng(0), np.repeat(np.arange(60), 2)
    x = rng.normal(size=120) if within else rng.normal(size=60)[units]
    rows = rng.dirichlet(np.ones(3), 120)
    assert not any("some topics" in text for text in warnings_of(rows, {"x": x}, units=units))
    rows[units % 15 > 0, 2] = 0
    (text,) = [text for text in warnings_of(rows, {"x": x}, units=units) if "some topics" in text]
    assert "topic 2 in 4 of 60 units. With fewer" in text
    labels = np.where(units < 30, "east", "west")
    texts = warnings_of(rows, {"x": units, "region": labels}, units=units)
    (text,) = [text for text in texts if "some topics" in text]
    assert "topic 2 in 2 of 30 units of group 'region[T.west]'" in text


def test_strata_that_may_be_units_are_warned_of():
    rng, strata = np.random.default_rng(0), np.repeat(np.arange(30), 8)
    rows, x = rng.dirichlet(np.ones(3), 240), rng.normal(size=240)
    pairs = np.arange(240) // 2
    for covariates, of, warned in [
        ({"x": x}, strata, True), ({"g": np.arange(240) % 2 == 0}, strata, True),
        ({"g": np.arange(240) % 2 == 0}, pairs, False),
    ]:  # fmt: skip
        texts = warnings_of(rows, covariates, strata=of)
        assert any("strata= is given without units=" in text for text in texts) == warned


@few
@pytest.mark.parametrize(("level", "moderated"), [(0.95, True), (0.6, False)])
@pytest.mark.parametrize("design", ["samples", "units", "strata", "clusters", "by samples"])
def test_pvalues_agree_with_intervals(design, moderated, level):
    rng, units = np.random.default_rng(8), np.repeat(np.arange(24), 3)
    x = rng.normal(size=72 if design == "clusters" else 24)
    x = x if design == "clusters" else x[units]
    options = {
        "samples": {}, "units": {"units": units}, "clusters": {"units": units},
        "strata": {"units": units, "strata": units % 3},
        "by samples": {"units": units, "equal_weights": "samples"},
    }[design]  # fmt: skip
    found, excluded = None, []
    for _ in range(2):
        rows = rng.gamma(np.exp(0.5 * np.outer(x, [1, 0, -1, 0, 0])))
        found = regress_proportions(
            rows, {"x": x, "g": np.array(list("abc"))[units % 8 // 3]}, level=level,
            moderated=moderated, n_permutations=0, **options,
        )  # fmt: skip
        excluded.append((found.lower > 0) | (found.upper < 0))
        np.testing.assert_array_equal(found.pvalue <= 1 - level, excluded[-1])
        of_sum = found.combine({"g[T.b]": 1, "g[T.c]": -1})
        away = (of_sum["lower"] > 0) | (of_sum["upper"] < 0)
        np.testing.assert_array_equal(of_sum["pvalue"] <= 1 - level, away)
        # Student's t of the coefficients over their errors
        t = np.abs(found.coefficients / found.std_error)
        expected = 2 * scipy.stats.t.sf(t, found.degrees_of_freedom)
        np.testing.assert_allclose(found.pvalue, expected, rtol=1e-9, atol=1e-300)
    slopes = np.array(excluded)[:, :, design != "strata" :]
    assert slopes.any() and not slopes.all()
    q = scipy.stats.false_discovery_control(found.pvalue, axis=0)
    np.testing.assert_allclose(found.qvalue, q)


def test_bootstrap_intervals_have_no_pvalue_but_that_of_permutations(data):
    loadings, covariates, units = data
    found = regress_proportions(
        loadings, covariates, units=units, n_permutations=19, n_replicates=19, random_state=0,
        interval="percentile",
    )  # fmt: skip
    assert found.pvalue is None and found.qvalue is None
    names = list(found.columns())
    assert names[-2:] == ["pvalue_permutation", "pvalue_maxt"] and "pvalue" not in names
    ordered = found.to_frame("age")["pvalue_permutation"]
    assert ordered.is_monotonic_increasing and "max-T p <= 0.05; 19 perm" in repr(found)
    assert "pvalue" not in found.combine({"age": 1})


def test_sums_of_coefficients_are_coefficients_of_another_reference(data):
    pd = pytest.importorskip("pandas")
    loadings, covariates, units = data
    args = {"units": units, "n_replicates": 200, "n_permutations": 0, "random_state": 0}
    found = regress_proportions(loadings, covariates, **args)
    region = pd.Categorical(covariates["region"], ["north", "east", "west"])
    other = regress_proportions(loadings, covariates | {"region": region}, **args)
    of_other = other.to_frame().query("term == 'region[T.west]'")
    difference = found.combine({"region[T.west]": 1, "region[T.north]": -1})
    for mine, name in ("value", "coefficient"), ("lower", "lower"), ("std_error", "std_error"):
        np.testing.assert_allclose(difference[mine], of_other[name], rtol=1e-8)
    at = found.combine({"Intercept": 1, "age": 50})
    assert at["value"].sum() == pytest.approx(1) and (at["lower"] < at["value"]).all()
    with pytest.raises(ValueError, match=r"weights\['age'\] is nan"):
        found.combine({"age": np.nan})
    with pytest.raises(ValueError, match="term='ages'"):
        found.combine({"ages": 1})


def test_sums_of_topics_are_sums_of_coefficients(data):
    loadings, covariates, units = data
    args = {"units": units, "n_permutations": 0, "random_state": 0}
    parts = regress_proportions(loadings, covariates, **args)
    sums = regress_proportions(loadings, covariates, topic_sums={"both": [0, 2]}, **args)
    assert sums.topic_names == ("both", 1, 3)
    both = parts.coefficients[0] + parts.coefficients[2]
    np.testing.assert_allclose(sums.coefficients[0], both, rtol=1e-9, atol=1e-12)


def test_a_known_effect_is_found(data):
    _, covariates, units = data
    rng = np.random.default_rng(4)
    base = np.full(3, 1 / 3) + np.outer(0.01 * (covariates["age"] - 50), [1, -1, 0])
    loadings = rng.dirichlet(np.ones(3) * 30, 150)[units] / 3 + base * 2 / 3
    found = regress_proportions(
        np.clip(loadings, 0, None), covariates, units=units, n_permutations=999, random_state=0
    )
    age = found.terms.index("age")
    truth = np.array([1, -1, 0]) * 0.01 * 2 / 3
    assert np.all((found.lower[:, age] < truth) & (truth < found.upper[:, age]))
    p = found.pvalue_permutation[:, age]
    assert p[0] == 0.001 == found.smallest_pvalue < p[2]
    assert np.isfinite(found.pvalue_permutation).sum() == 12
    assert np.all(found.pvalue <= found.qvalue)
    np.testing.assert_allclose(found.coefficients.sum(axis=0), [1, 0, 0, 0, 0], atol=1e-10)
    first = found.to_frame("age")
    assert first["topic"].tolist()[2] == 2 and first["pvalue"].is_monotonic_increasing
    frame = found.to_frame()
    np.testing.assert_array_equal(frame["coefficient"], found.coefficients.ravel())
    assert frame["term"].tolist()[:5] == list(found.terms)
    with pytest.raises(ValueError, match="term='ages' is not one of the terms: 'Intercept'"):
        found.to_frame("ages")
    assert re.fullmatch(
        r"<ProportionRegression: 3 topics x 5 terms, 150 units, each unit counts once, t "
        r"intervals, \d of 12 coefficients with q <= 0.05; 999 permutations>",
        repr(found),
    )


def test_topics_that_do_not_vary_are_not_found(data):
    _, covariates, units = data
    loadings = np.column_stack([np.ones(450), 1 + covariates["craft"], 2 - covariates["craft"]])
    found = regress_proportions(
        loadings.astype(float), covariates, units=units, n_replicates=9, n_permutations=99
    )
    assert np.all(found.coefficients[0, 1:] == 0) and np.all(found.pvalue[0, 1:] == 1)
    assert np.all(found.pvalue[1:, -1] < 1e-9) and np.all(found.pvalue[1, 1:-1] == 1)
    p = found.pvalue_permutation
    assert p[1, -1] == 0.01 and np.all(p[1, 1:-1] == 1)


def test_the_same_bits(data, tmp_path):
    loadings, covariates, units = data
    args = {"units": units, "random_state": 3, "interval": "percentile"}
    loadings = loadings + 1e-3

    def results(**options):
        found = regress_proportions(loadings, covariates, **args | options)
        return found.replicates, found.pvalue_permutation

    expected = results(n_replicates=150, n_permutations=400, n_threads=1)
    kept = {"checkpoint": tmp_path, "resume": True}
    results(n_replicates=70, n_permutations=90, **kept)
    for options in {"n_threads": 3}, kept, kept | {"random_state": None}:
        found = results(**{"n_replicates": 150, "n_permutations": 400} | options)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_workers_get_all_that_replicates_take(data):
    X, Y = unit_rows(*data)
    fit = LeastSquares.of(X, Y)
    for task in (
        CoefficientsTask(fit, np.arange(150), np.array([0, 150])),
        FreedmanLane(fit, ((1,), (2, 3)), np.array([150])),
        SignFlips(fit, ((1,), (2, 3)), np.arange(150), np.ones(150)),
    ):
        sent = pickle.loads(pickle.dumps(task))
        expected = task.run(range(20, 30), np.random.SeedSequence(1), 1)
        for name, values in sent.run(range(20, 30), np.random.SeedSequence(1), 1).items():
            np.testing.assert_array_equal(values, expected[name])


def test_tables_and_matrices_are_the_same_covariates(data):
    pd = pytest.importorskip("pandas")
    loadings, covariates, units = data
    options = {
        "units": units, "n_replicates": 5, "n_permutations": 19, "random_state": 0,
        "interval": "percentile",
    }  # fmt: skip
    expected = regress_proportions(loadings, covariates, **options)
    frame = pd.DataFrame(covariates)
    matrix = np.column_stack([
        np.ones(450), frame["region"] == "north", frame["region"] == "west", frame["age"],
        frame["craft"],
    ]).astype(float)  # fmt: skip
    of_formula = pd.DataFrame(matrix, columns=list(expected.terms))
    nullable = frame.convert_dtypes()
    category = frame.assign(region=pd.Categorical(frame["region"]))
    for given, more in [
        (frame, {}), (nullable, {}), (category, {}), (of_formula, {"intercept": False}),
        (matrix, {"intercept": False, "names": expected.terms}),
    ]:  # fmt: skip
        found = regress_proportions(loadings, given, **options, **more)
        assert found.terms == expected.terms
        np.testing.assert_array_equal(found.replicates, expected.replicates)
        np.testing.assert_array_equal(found.pvalue_permutation, expected.pvalue_permutation)
    frame["region"] = pd.Categorical(frame["region"], ["west", "north", "east"])
    found = regress_proportions(loadings, frame[["region"]], **options)
    assert found.terms == ("Intercept", "region[T.north]", "region[T.east]")
    found = regress_proportions(loadings, frame["age"], **options)
    assert found.terms == ("Intercept", "age")
    found = regress_proportions(loadings, matrix[:, 1:], **options)
    assert found.terms == ("Intercept", "x0", "x1", "x2", "x3")
    table = pd.DataFrame(loadings, columns=list("abcd"))
    assert regress_proportions(table, frame, **options).topic_names == tuple("abcd")
    with pytest.raises(ValueError, match="same rows in another order"):
        regress_proportions(table, frame.iloc[::-1], **options)


def test_the_trend_of_an_ordered_label_is_one_term(data):
    pd = pytest.importorskip("pandas")
    loadings, covariates, units = data
    levels = ["north", "east", "west"]
    region = pd.Categorical(covariates["region"], levels, ordered=True)
    args = {"units": units, "n_permutations": 19, "random_state": 0, "moderated": False}
    table = covariates | {"region": region}
    found = regress_proportions(loadings, table, trend=["region"], **args)
    assert found.terms == ("Intercept", "region[trend]", "age", "craft")
    as_number = covariates | {"region": np.asarray(region.codes)}
    expected = regress_proportions(loadings, as_number, **args)
    for name in "coefficients", "std_error", "pvalue_permutation":
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for trend, match in [
        (["region"], "trend='region': the order of 'east', 'north', 'west' is not known"),
        (["dose"], "trend: 'dose' is not one of the covariates, 'region', 'age', 'craft'"),
        ("region", r"trend='region': a list is needed, such as trend=\['region'\]"),
    ]:
        with pytest.raises(ValueError, match=match):
            regress_proportions(loadings, covariates, trend=trend, **args)


def test_few_units_and_rare_levels_are_warned_of(data):
    loadings, _, units = data
    with (
        pytest.warns(UserWarning, match="1 of 1 terms .* have fewer than 50 units, .*'x' with 2"),
        pytest.warns(UserWarning, match="of 200 replicates do not determine the coefficients"),
    ):
        found = regress_proportions(
            loadings, {"x": units < 2}, units=units, n_replicates=200, n_permutations=9,
            random_state=0, interval="percentile",
        )  # fmt: skip
    assert 10 < found.n_failures < 50
    assert len(found.replicates) == 200 - found.n_failures and np.isfinite(found.lower).all()
    few_rows, groups = np.random.default_rng(0).random((6, 3)), list("aabbba")
    with (
        pytest.warns(UserWarning, match=r"2 of 2 terms and ref.*, the fewest 'x\[T.b\]' with 3"),
        pytest.warns(UserWarning, match="no p-value below 0.1 .permutations of any term."),
    ):
        regress_proportions(few_rows, {"x": groups}, random_state=0)
    one = np.where(np.arange(450) < 3, np.arange(450), 3).astype(str)
    with pytest.raises(ValueError, match=r"levels are in so few samples, the fewest .* with 1, th"):
        regress_proportions(loadings, {"x": one}, interval="bca")


@pytest.mark.parametrize(
    ("covariates", "options", "match"),
    [
        ({"x": [1, 2]}, {}, r"covariate 'x' has shape \(2,\).* 450 samples"),
        ({"x": ["a", "b"]}, {}, "covariate 'x' has 2 labels, and there are 450"),
        ({"x": [np.nan] * 2 + [1.0] * 448}, {}, "'x' has 2 missing .* at sample 0"),
        ({"x": [None] + ["a"] * 449}, {}, "'x' has 1 missing labels"),
        ({"x": np.ones(450)}, {}, "term 'x' is 1 in all samples.*intercept=False"),
        ({"x": ["a"] * 450}, {}, "covariate 'x' has one level only, 'a'"),
        ({"x": np.zeros(450), "y": np.arange(450)}, {}, "term 'x' is 0 in all samples"),
        (
            {"a": np.arange(450), "b": np.arange(450) % 7, "c": np.arange(450) * 2.0 + 3},
            {}, "collinear: term 'c' is a combination of 'Intercept', 'a'. Leave",
        ),
        ({"x": [f"level {i}" for i in range(450)]}, {}, "450 samples are fewer than 451"),
        ({"x": np.array(["2020-01-01"] * 450, "datetime64[D]")}, {}, "type datetime64"),
        ({"Intercept": np.arange(450)}, {}, "two terms are named 'Intercept'.*intercept=False"),
        ({}, {}, "covariates has no columns"),
        (3.0, {}, "covariates=3.0"),
        ({"x": np.arange(450)}, {"names": ["a"]}, "names is for an array"),
        (np.arange(900).reshape(450, 2), {"names": ["a"]}, "names has 1 different names; 2"),
        ({"x": np.arange(450)}, {"intercept": False}, "no term can be tested"),
        ({"x": np.arange(450)}, {"n_permutations": -1}, "n_permutations is -1"),
        ({"x": np.arange(450)}, {"level": 95}, "level=95"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(data, covariates, options, match):
    with pytest.raises(ValueError, match=match):
        regress_proportions(data[0], covariates, **options)


@pytest.mark.parametrize("far", [1e9, -3e6])
def test_a_covariate_whose_mean_is_far_larger_than_its_spread(far):
    rng = np.random.default_rng(3)
    rows = rng.dirichlet([2, 3, 4], 40)
    group = rng.integers(0, 2, 40)
    # multiples of a power of 2, so that adding does not round
    when = rng.integers(-1024, 1024, 40) / 512
    near, moved = (
        regress_proportions(
            rows, {"when": when + mean, "group": group}, random_state=0, n_permutations=99
        )
        for mean in (0.0, far)
    )
    for term in "when", "group":
        one, other = (table.columns(term) for table in (near, moved))
        assert one.keys() == other.keys()
        for name, values in one.items():
            if np.asarray(values).dtype.kind == "f":
                np.testing.assert_allclose(other[name], values, rtol=1e-9)
    assert moved.untested == near.untested
