"""Regression within strata and within units: effects of these are in the model."""

import warnings
from itertools import permutations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import cluster_jackknife, satterthwaite, spread_of_levels

from nmfscale import group_effects, regress_proportions

few = pytest.mark.filterwarnings(
    "ignore:.*fewer than", "ignore:.*are so few", "ignore:.*varies more", "ignore:strata= is given"
)
STRATA = np.repeat(np.arange(4), [9, 2, 6, 5])


def shares_of(n, seed=0, n_topics=5):
    return np.random.default_rng(seed).dirichlet(np.ones(n_topics), n)


def with_dummies(X, block):
    """Add an indicator of each block."""
    return np.column_stack([X, block[:, None] == np.unique(block)]).astype(float)


def factors_of(block, cluster, weights):
    """What changes without each cluster are multiplied by.

    Spread within a block does not involve its mean, unless the block is a cluster.
    """
    share = np.array([
        weights[cluster == c].sum() / weights[block == block[cluster == c][0]].sum()
        for c in np.unique(cluster)
    ])  # fmt: skip
    squares = np.where(share > 1 - 1e-12, 1.0, 1 - share)
    G = squares.sum()
    return np.sqrt(squares * (G - 1) / G)


@few
@pytest.mark.parametrize("how", ["strata", "units"])
def test_complete_pairs_are_compared_by_the_paired_t_test(how):
    rows, treated, donors = shares_of(24), np.arange(24) % 2, np.arange(24) // 2
    found = regress_proportions(
        rows, {"treated": treated}, **{how: donors}, moderated=False, n_permutations=9
    )
    expected = scipy.stats.ttest_rel(rows[treated == 1], rows[treated == 0])
    assert found.terms == ("treated",) and found.compared_within == how
    assert f"compared within {how}" in repr(found)
    np.testing.assert_allclose(found.pvalue[:, 0], expected.pvalue, rtol=1e-9)
    ends = expected.confidence_interval()
    np.testing.assert_allclose([found.lower[:, 0], found.upper[:, 0]], ends, atol=1e-12)
    np.testing.assert_allclose(found.degrees_of_freedom, 11)


DESIGNS = ["strata", "samples of units in strata", "units as strata", "levels", "levels, one each"]


def design_of(name):
    """Rows, covariates, keyword arguments; and design, blocks, clusters, weights of rows."""
    rng = np.random.default_rng(5)
    if name == "strata":
        X = np.column_stack([rng.normal(size=22), rng.integers(0, 2, 22)])
        n = np.ones(22)
        return shares_of(22), X, {"strata": STRATA}, (X, STRATA, np.arange(22), n)
    if name == "levels" or name == "levels, one each":
        has = np.array([[1, 1, 1]] * 3 + [[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]], bool)
        if name == "levels, one each":
            has = np.concatenate([has, np.eye(3, dtype=bool)[[0, 1, 2, 2, 1]]])
        donor, level = np.argwhere(has).T
        X = (level[:, None] == [1, 2]).astype(float)
        several = has.sum(axis=1)[donor] > 1
        block = np.where(several, donor, 99)
        return shares_of(len(X)), X, {"units": donor}, (X, block, donor, np.ones(len(X)))
    unit = np.repeat(np.arange(22), rng.integers(2, 5, 22))
    X = np.column_stack([rng.normal(size=unit.size), rng.normal(size=unit.size)])
    weights = 1 / np.bincount(unit)[unit]
    block = unit if name == "units as strata" else STRATA[unit]
    if name != "units as strata":
        X[:, 1] = rng.normal(size=22)[unit]
    return shares_of(unit.size), X, {"units": unit, "strata": block}, (X, block, unit, weights)


@few
@pytest.mark.parametrize("name", DESIGNS)
def test_coefficients_and_errors_are_those_with_indicators_of_strata(name):
    rows, X, options, (Z, block, cluster, weights) = design_of(name)
    found = regress_proportions(
        rows, {"x": X[:, 0], "z": X[:, 1]}, **options, moderated=False, n_permutations=0
    )
    if "one each" in name:  # units at one level weigh less, as they differ more
        several = np.bincount(cluster)[cluster] > 1
        centred = rows - np.array([rows[block == b].mean(axis=0) for b in block])
        sums = [(centred[part] ** 2).sum() for part in (several, ~several)]
        within = sums[0] / (several.sum() - np.unique(block[several]).size)
        weights = np.where(several, 1.0, min(1, within / (sums[1] / 4)))
        assert found.rows == "levels"
    D = with_dummies(Z, block)
    root = np.sqrt(weights)[:, None]
    B = np.linalg.lstsq(D * root, rows * root, rcond=None)[0][:2]
    np.testing.assert_allclose(found.coefficients, B.T, rtol=1e-9, atol=1e-14)
    factors, eye = factors_of(block, cluster, weights), np.eye(D.shape[1])
    for t in range(5):
        V = cluster_jackknife(D, rows[:, t], cluster, weights, factors)
        np.testing.assert_allclose(found.std_error[t], np.sqrt(np.diag(V)[:2]), rtol=1e-8)
    if name == "strata":  # residuals of levels may differ in spread
        factors *= np.sqrt(spread_of_levels(D, rows, X[:, 1]))
    df = [satterthwaite(D, a, cluster, weights, factors) for a in eye[:2]]
    np.testing.assert_allclose(found.degrees_of_freedom[0], df, rtol=1e-6)


def statistics(D, y, j, cluster, weights, factors):
    """Squares of coefficients over their errors, with columns D."""
    root = np.sqrt(weights)
    b = np.linalg.lstsq(D * root[:, None], y * root, rcond=None)[0][j]
    return b**2 / cluster_jackknife(D, y, cluster, weights, factors)[j, j]


@few
def test_units_are_permuted_within_strata_beside_their_effects():
    rng = np.random.default_rng(3)
    strata, x, z = np.repeat([0, 1], 3), np.array([1.0, 2, 2, 5, 7, 2]), rng.normal(size=6)
    Y = shares_of(6, 1, 3) + strata[:, None]
    found = regress_proportions(Y, {"x": x, "z": z}, strata=strata, n_permutations=720)
    Y /= Y.sum(axis=1, keepdims=True)
    orders = [p for p in permutations(range(6)) if np.array_equal(strata[list(p)], strata)]
    D, one, rows = with_dummies(np.column_stack([x, z]), strata), np.ones(6), np.arange(6)
    how = rows, one, factors_of(strata, rows, one)
    Z = np.delete(D, 0, axis=1)
    for y, p in zip(Y.T, found.pvalue_permutation[:, 0], strict=True):
        fitted = Z @ np.linalg.lstsq(Z, y, rcond=None)[0]
        null = [statistics(D, fitted + (y - fitted)[list(o)], 0, *how) for o in orders]
        least = statistics(D, y, 0, *how) * (1 - 1e-9)
        assert p == pytest.approx(np.mean(np.array(null) >= least))
    assert found.exact and found.n_labellings == 36 and found.untested == {}


@few
def test_signs_of_units_are_flipped_beside_effects_of_strata():
    rows, X, options, arrays = design_of("samples of units in strata")
    kept = np.isin(options["units"], [0, 1, 2, 3, 11, 12, 13])
    X, block, cluster, weights = (array[kept] for array in arrays)
    found = regress_proportions(
        rows[kept], {"x": X[:, 0], "z": X[:, 1]}, units=cluster, strata=block, n_permutations=64
    )
    assert found.exact and found.test == "sign flips"
    names, D, y = np.unique(cluster), with_dummies(X, block), rows[kept][:, 1]
    Z, root = np.delete(D, 0, axis=1), np.sqrt(weights)
    fitted = Z @ np.linalg.lstsq(Z * root[:, None], y * root, rcond=None)[0]
    how = cluster, weights, factors_of(block, cluster, weights)
    signs = 1 - 2 * (np.arange(64)[:, None] >> np.arange(7) & 1)
    null = [
        statistics(D, fitted + sign[np.searchsorted(names, cluster)] * (y - fitted), 0, *how)
        for sign in signs
    ]
    least = statistics(D, y, 0, *how) * (1 - 1e-9)
    assert found.pvalue_permutation[1, 0] == pytest.approx(np.mean(np.array(null) >= least))


@few
def test_levels_of_units_are_compared_as_groups_are():
    rng = np.random.default_rng(0)
    has = np.array([[1, 1, 1]] * 5 + [[1, 1, 0], [0, 1, 1]] * 2 + [[1, 0, 0], [0, 0, 1]], bool)
    donor, visit = np.argwhere(has).T.repeat(3, axis=1)
    rows = rng.dirichlet(np.ones(5), len(has))[donor] + rng.dirichlet(np.ones(5), len(visit))
    names = np.array(["before", "during", "then"])[visit]
    found = regress_proportions(rows, {"visit": names}, units=donor, n_permutations=19)
    groups = group_effects(rows, names, units=donor, n_permutations=19)
    differences = groups.differences("before").differences
    np.testing.assert_allclose(found.coefficients, differences, rtol=1e-9)
    assert found.terms == ("visit[T.during]", "visit[T.then]") and found.rows == "levels"
    # a covariate of donors cannot be told from their effects: samples of all donors are compared
    beside = regress_proportions(
        rows, {"visit": names, "old": donor % 2}, units=donor, n_permutations=0
    )
    assert beside.rows == "samples" and beside.compared_within == ""
    assert beside.terms[0] == "Intercept" and beside.terms[-1] == "old"


@few
def test_units_at_one_level_that_no_other_unit_has_are_left_out():
    donor, treated = np.repeat(np.arange(9), 2), np.tile([0, 1], 9)
    treated[:4] = 0
    rows = shares_of(18)
    options = {"n_permutations": 9, "random_state": 0}
    with pytest.warns(UserWarning, match="2 units have samples at one level only, beside others"):
        found = regress_proportions(rows, {"treated": treated}, units=donor, **options)
    rest = regress_proportions(rows[4:], {"treated": treated[4:]}, units=donor[4:], **options)
    assert found.n_units == 7
    np.testing.assert_array_equal(found.pvalue, rest.pvalue)
    np.testing.assert_array_equal(found.pvalue_permutation, rest.pvalue_permutation)


@st.composite
def designs(draw):
    """Proportions, covariates and keyword arguments."""
    seed, n_topics = draw(st.integers(0, 10**6)), draw(st.integers(2, 7))
    rng, kind = np.random.default_rng(seed), draw(st.sampled_from(["strata", "pairs", *DESIGNS]))
    if kind in DESIGNS:
        rows, X, options, _ = design_of(kind)
        return shares_of(len(rows), seed, n_topics), {"x": X[:, 0], "z": X[:, 1]}, options
    n = 2 * draw(st.integers(5, 12))
    strata = np.arange(n) // 2 if kind == "pairs" else rng.integers(0, 3, n)
    covariates = {"g": np.arange(n) % 2, "x": rng.normal(size=n)}
    return shares_of(n, seed, n_topics), covariates, {"strata": strata}


@settings(max_examples=30, deadline=None)
@given(designs(), st.sampled_from([0.5, 0.8, 0.95]), st.booleans())
def test_p_is_below_alpha_if_and_only_if_the_interval_excludes_0(design, level, moderated):
    rows, covariates, options = design
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = regress_proportions(
            rows, covariates, **options, level=level, moderated=moderated, n_permutations=0
        )
    excludes = (found.lower > 0) | (found.upper < 0)
    np.testing.assert_array_equal(found.pvalue <= 1 - level, excludes)
    assert ((found.pvalue > 0) & (found.pvalue <= 1)).all()
    both = found.combine(dict.fromkeys(found.terms, 1.0))
    away = (both["lower"] > 0) | (both["upper"] < 0)
    np.testing.assert_array_equal(both["pvalue"] <= 1 - level, away)


@few
@pytest.mark.parametrize(
    ("covariates", "options", "match"),
    [
        ({"x": STRATA % 2}, {}, "term 'x' is the same in all .* strata, .* Leave 'x' out, as str"),
        (
            {"x": np.arange(22), "y": np.arange(22) + 100 * STRATA},
            {},
            "collinear within strata: term 'y' is a combination of 'x'",
        ),
        ({"x": np.arange(22)}, {"strata": np.arange(22)}, "22 rows in 22 strata are too few"),
        ({"x": np.arange(22)}, {"interval": "bca"}, "within strata: .* or leave strata= out"),
        ({"x": np.ones(22)}, {"intercept": False}, "no covariate varies"),
    ],
)
def test_what_cannot_be_estimated_within_strata_is_refused(covariates, options, match):
    with pytest.raises(ValueError, match=match):
        regress_proportions(shares_of(22), covariates, **{"strata": STRATA} | options)


def test_a_constant_of_the_caller_is_an_effect_of_strata():
    X = np.column_stack([np.ones(22), np.arange(22)])
    options = {"strata": STRATA, "n_permutations": 0}
    found = regress_proportions(
        shares_of(22), X, names=["Intercept", "x"], intercept=False, **options
    )
    expected = regress_proportions(shares_of(22), {"x": np.arange(22)}, **options)
    assert found.terms == ("x",)
    np.testing.assert_array_equal(found.upper, expected.upper)


# Levels ---------------------------------------------------------------------------------------


def confounded(rng):
    strata = np.repeat([0, 1, 2], [15, 15, 16])
    groups = np.repeat([0, 1, 0, 1, 0, 1], [12, 3, 3, 12, 8, 8])
    rows = rng.dirichlet(np.ones(6), 3)[strata] + 0.5 * rng.dirichlet(np.ones(6), 46)
    return rows, {"g": groups}, {"strata": strata}


def pairs(rng):
    donors, groups = np.repeat(np.arange(8), 2), np.tile([0, 1], 8)
    rows = rng.dirichlet(np.ones(6), 8)[donors] + 0.5 * rng.dirichlet(np.ones(6), 16)
    return rows, {"g": groups}, {"units": donors}


def slopes(rng):
    sites, donors = np.arange(24) // 8, np.repeat(np.arange(24), 3)
    rows = rng.dirichlet(np.ones(6), 24)[donors] + 0.5 * rng.dirichlet(np.ones(6), 72)
    x = rng.normal(size=24)[donors] + rng.normal(size=72) + sites[donors]
    return rows, {"x": x}, {"units": donors, "strata": sites[donors]}


@pytest.mark.slow
@pytest.mark.parametrize("make", [confounded, pairs, slopes])
def test_tests_within_strata_keep_their_level(make):
    n_sets, p, flips = 200, [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(n_sets):
            rows, covariates, options = make(np.random.default_rng(seed))
            found = regress_proportions(
                rows, covariates, **options, n_permutations=39, random_state=seed
            )
            p.append(found.pvalue[:, -1])
            flips.append(found.pvalue_permutation[:, -1])
    for share in np.mean(np.array(p) <= 0.05, axis=0), np.mean(np.array(flips) <= 0.05, axis=0):
        assert 0.015 < share.mean() < 0.075
        assert share.max() < 0.05 + 4 * np.sqrt(0.05 * 0.95 / n_sets)
