"""Differences between groups within donors and strata: the jackknife, and p that agree."""

import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from nmfscale import group_effects
from nmfscale.inference.design.groups import checked_labels
from nmfscale.inference.design.units import Units
from nmfscale.inference.regression.comparison import Comparison
from nmfscale.inference.regression.moderation import Moderation
from nmfscale.inference.regression.within_blocks import WithinBlocks

few = pytest.mark.filterwarnings(
    "ignore:.*fewer than", "ignore:.*are so few", "ignore:.*varies more"
)
DONORS = {
    "two conditions": np.ones((9, 2), bool),
    "three time points, some missed": np.array(
        [[1, 1, 1]] * 4 + [[1, 1, 0], [0, 1, 1], [1, 0, 1]] * 2, bool
    ),
    "six in both, others in one": np.array([[1, 1]] * 6 + [[1, 0]] * 3 + [[0, 1]] * 4, bool),
    "a condition of one donor": np.array([[1, 1, 0]] * 5 + [[1, 0, 1]], bool),
}


def of_donors(has, seed=0, n_topics=4):
    """Proportions (n, T), conditions and donors of units: donors differ, and conditions do not."""
    rng = np.random.default_rng(seed)
    donor, group = np.argwhere(has).T
    tastes = rng.dirichlet(np.ones(n_topics), len(has))
    return rng.dirichlet(np.ones(n_topics), donor.size) * 0.3 + 0.7 * tastes[donor], group, donor


def units_of(rows, groups, strata=None, subjects=None):
    """Units as `group_effects` makes them."""
    n = len(rows)
    strata = np.zeros(n, np.int64) if strata is None else strata
    labels, names = checked_labels(groups, n, "groups"), tuple(range(rows.shape[1]))
    return Units(rows, labels, strata, np.ones(n), None, names, np.arange(n), subjects)


@few
@pytest.mark.parametrize("how", ["units", "strata"])
def test_complete_pairs_are_compared_by_the_paired_t_test(how):
    rows, groups, donors = of_donors(np.ones((12, 2), bool))
    rows[groups == 1, 2] += 0.1
    rows /= rows.sum(axis=1, keepdims=True)
    found = group_effects(
        rows, groups, **{how: donors}, moderated=False, n_permutations=99, random_state=0
    )
    expected = scipy.stats.ttest_rel(rows[groups == 1], rows[groups == 0])
    of, ends = found.differences(0), expected.confidence_interval()
    np.testing.assert_allclose(found.pvalue, expected.pvalue, rtol=1e-9)
    np.testing.assert_allclose(of.pvalue[:, 0], expected.pvalue, rtol=1e-9)
    np.testing.assert_allclose(of.qvalue[:, 0], found.qvalue, rtol=1e-9)
    np.testing.assert_allclose([of.lower[:, 0], of.upper[:, 0]], ends, atol=1e-12)
    assert f"compared within {how}" in repr(found)


def left_out(y, X, block, weights, cluster, along):
    """Estimate a contrast of least squares with effects of blocks, without each cluster."""

    def estimate(kept):
        Z = np.column_stack([X, block[:, None] == np.unique(block)])[kept]
        root = np.sqrt(weights[kept])
        beta = np.linalg.lstsq(Z * root[:, None], y[kept] * root, rcond=None)[0]
        return along @ beta[: X.shape[1]]

    everything = np.ones(len(y), bool)
    return estimate(everything), np.array([estimate(cluster != u) for u in np.unique(cluster)])


def blocks_and_clusters(design):
    """Blocks with one unit in each group are clusters; in others each unit is one."""
    group, block = design.groups.codes, design.blocks
    single = np.array([
        len(set(group[block == b])) == (block == b).sum() > 1 for b in range(block.max() + 1)
    ])  # fmt: skip
    return block, np.where(single[block], block, block.max() + 1 + np.arange(len(block))), single


STRATA = np.repeat([0, 1, 2], 8), np.array([0, 1] * 6 + [0] * 3 + [1] + [0] * 2 + [1] * 6)


@pytest.mark.parametrize(
    "name", ["strata", *[n for n in DONORS if n != "a condition of one donor"]]
)
def test_variances_are_those_of_leaving_out_donors_or_units(name):
    if name == "strata":
        strata, groups = STRATA
        rows = np.random.default_rng(1).dirichlet(np.ones(3), 24) + strata[:, None] / 3
        design = units_of(rows, groups, strata)
    else:
        rows, groups, donors = of_donors(DONORS[name], n_topics=3)
        design = units_of(rows, groups, subjects=donors)
    weights = design.relative_weights * np.random.default_rng(2).choice([1.0, 2.0], len(rows))
    R = groups.max() + 1
    along = np.eye(R)[:, 1] - np.eye(R)[:, 0]
    within = WithinBlocks.of(rows, weights, groups, design.blocks)
    difference = within.differences(along[:, None])[:, 0]
    variance, freedom = (array[..., 0] for array in within.variances(along[:, None]))
    block, cluster, single = blocks_and_clusters(design)
    X = (groups[:, None] == np.arange(R)).astype(float)
    # spread within a block does not involve the mean of the block
    share = weights / np.bincount(block, weights)[block]
    factor = np.where(single[block], 1.0, np.sqrt(1 - share))
    factor = np.array([factor[cluster == c][0] for c in np.unique(cluster)])

    def influences(y):
        whole, without = left_out(y, X, block, weights, cluster, along)
        return whole, (without - whole) * factor

    G = factor.size
    for t in range(3):
        whole, v = influences(rows[:, t])
        assert difference[t] == pytest.approx(whole, rel=1e-9)
        assert variance[t] == pytest.approx((G - 1) / G * (v**2).sum(), rel=1e-9)
    squares, expected, between, of_expected = within.between()
    assert (between >= 1 - 1e-12).all() and (between <= R - 1).all()
    if R == 2:
        np.testing.assert_allclose(squares / expected, difference**2 / variance)
        assert of_expected == pytest.approx(freedom)
    if single.all():
        # of unit vectors: variances of units are 1 / weights
        A = np.array([influences(e)[1] for e in np.eye(len(rows))]).T / np.sqrt(weights)
        values = np.linalg.eigvalsh(A @ A.T)
        assert freedom == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-9)


@few
@pytest.mark.parametrize("design", DONORS)
def test_donors_do_not_add_to_the_spread_of_differences(design):
    rows, groups, donors = of_donors(DONORS[design])
    found, apart = (
        group_effects(rows, groups, units=u, n_permutations=20, random_state=0)
        for u in (donors, donors * 3 + groups)
    )
    errors = found.differences(0).std_error
    assert np.isfinite(errors).all() and (errors > 0).all()
    if design != "a condition of one donor":
        assert np.median(errors / apart.differences(0).std_error) < 0.8
    np.testing.assert_allclose(found.means, apart.means)


@few
@pytest.mark.parametrize("interval", ["t", "percentile"])
def test_a_trend_is_the_slope_over_groups_in_their_order(interval):
    pd = pytest.importorskip("pandas")
    rng, codes = np.random.default_rng(0), np.repeat([0, 1, 2], [9, 14, 7])
    rows = rng.dirichlet(np.ones(5), 30)
    doses = pd.Categorical.from_codes(codes, ["none", "low", "high"], ordered=True)
    options = {"interval": interval, "n_permutations": 9, "random_state": 0}
    found = group_effects(rows, doses, **options)
    trend = found.columns("trend")
    np.testing.assert_allclose(trend["slope"], np.polyfit(codes, rows, 1)[0], rtol=1e-9)
    away = (trend["lower"] > 0) | (trend["upper"] < 0)
    if interval == "t":
        np.testing.assert_array_equal(trend["pvalue"] <= 0.05, away)
    # numbers are scores themselves; of two groups it is their difference
    two = codes != 1
    of_two = group_effects(rows[two], 0.5 * codes[two], **options)
    differences, trend = of_two.differences(0.0), of_two.columns("trend")
    for name, values in trend.items():
        if name in ("lower", "upper", "std_error", "pvalue"):
            np.testing.assert_allclose(values, getattr(differences, name)[:, 0], rtol=1e-6)
    with pytest.raises(ValueError, match="'trend' is not one of 'means'.* ordered Categorical"):
        group_effects(rows, np.array(list("abc"))[codes], **options).columns("trend")


@few
def test_a_trend_within_donors_is_that_of_their_slopes():
    rows, visit, donors = of_donors(np.ones((12, 3), bool))
    trend = group_effects(rows, visit, units=donors, moderated=False, n_permutations=9)
    slopes = (rows[visit == 2] - rows[visit == 0]) / 2
    found = trend.columns("trend")
    expected = scipy.stats.ttest_1samp(slopes, 0)
    np.testing.assert_allclose(found["slope"], slopes.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["std_error"], slopes.std(axis=0, ddof=1) / np.sqrt(12))
    np.testing.assert_allclose(found["pvalue"], expected.pvalue, rtol=1e-9)


@st.composite
def designs(draw):
    """Groups, strata and subjects of units, and their proportions."""
    seed = draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    n_topics, n_groups = draw(st.integers(2, 7)), draw(st.integers(2, 4))
    kind = draw(st.sampled_from(["plain", "strata", "pairs", "incomplete"]))
    if kind in ("pairs", "incomplete"):
        has = np.ones((draw(st.integers(4, 8)), n_groups), bool)
        if kind == "incomplete":
            has &= rng.random(has.shape) < 0.8
            has[:3] = True
        rows, groups, donors = of_donors(has, seed, n_topics)
        return units_of(rows, groups, subjects=donors)
    n = draw(st.integers(5, 12)) * n_groups
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, n - n_groups)])
    strata = rng.integers(0, 2, n) if kind == "strata" else None
    rows = rng.dirichlet(np.full(n_topics, draw(st.sampled_from([0.2, 2.0]))), n)
    return units_of(rows + 1e-12, groups, strata)


@settings(max_examples=30, deadline=None)
@given(designs(), st.sampled_from([0.5, 0.8, 0.95]), st.booleans())
def test_p_is_below_alpha_if_and_only_if_the_interval_excludes_0(design, level, moderated):
    rows, n = design.rows, len(design.rows)
    units = np.arange(n) if design.subjects is None else design.subjects
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = group_effects(
                rows, design.groups.codes, units=units, strata=design.strata, level=level,
                moderated=moderated, n_permutations=1, random_state=0,
            )  # fmt: skip
        except ValueError as error:  # groups that have no stratum in common
            assert "in common" in str(error) or "no label can be moved" in str(error)
            return
    of = found.differences()
    excludes = (of.lower > 0) | (of.upper < 0)
    np.testing.assert_array_equal(of.pvalue <= 1 - level, excludes)
    assert ((0 < of.pvalue) & (of.pvalue <= 1)).all() and (of.qvalue >= of.pvalue).all()
    if len(found.groups) == 2:
        np.testing.assert_allclose(found.pvalue, of.pvalue[:, 0], rtol=1e-6)


# Moderation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("prior", "low", "high"), [(4.0, 3.0, 5.5), (30.0, 15.0, 90.0)])
def test_prior_degrees_of_freedom_are_those_of_the_variances(prior, low, high):
    rng, f, shares = np.random.default_rng(0), 10.0, np.full(500, 1 / 500)
    true = shares * prior / rng.chisquare(prior, 500)
    estimated = Moderation.of(true * rng.chisquare(f, 500) / f, f, shares)
    assert low < estimated.freedom < high
    equal = Moderation.of(shares * rng.chisquare(f, 500) / f, f, shares)
    assert equal.freedom > 200


def test_few_topics_keep_their_variances():
    for n_topics in 1, 2, 3:
        variances, shares = np.arange(1.0, n_topics + 1), np.full(n_topics, 1 / n_topics)
        moderated, freedom = Moderation.of(variances, 8.0, shares)(
            variances[:, None], np.array([8.0])
        )
        np.testing.assert_allclose(moderated[:, 0], variances)
        np.testing.assert_allclose(freedom, 8)


@pytest.mark.parametrize("stable", [False, True])
def test_a_topic_that_varies_little_keeps_its_own_variance(stable):
    """Its interval is that of Welch's test; without it, variances are drawn towards each other."""
    rng, n, ratios, drawn = np.random.default_rng(0), 6, [], []
    for _ in range(40):
        rows = rng.dirichlet(np.full(9, 2.0), 2 * n)
        if stable:
            rows[:, 0] = 0.3 + 0.01 * rng.normal(size=2 * n)
            rows[:, 1:] *= ((1 - rows[:, 0]) / rows[:, 1:].sum(axis=1))[:, None]
        comparison = Comparison.of(units_of(rows, np.arange(2 * n) % 2), rows, np.ones(2 * n), True)
        variances, freedom = comparison.errors.variances(np.array([[1.0], [-1.0]]))
        moderated, of_moderated = comparison.moderation(variances, freedom)
        t = scipy.stats.t.ppf(0.975, [of_moderated[0, 0], freedom[0]])
        ratios.append(np.sqrt(moderated / variances)[0, 0] * t[0] / t[1])
        drawn.append(np.log(moderated).std() / np.log(variances).std())
    if stable:
        assert np.quantile(ratios, 0.9) < 1.3 and np.min(ratios) > 0.6
    else:
        assert np.mean(drawn) < 0.7


# Levels ---------------------------------------------------------------------------------------


def rejected(make, n_sets):
    """Return the share of sets in which a topic has p <= 0.05, for each topic."""
    p = []
    for seed in range(n_sets):
        design = make(np.random.default_rng(seed))
        p.append(Comparison.of(design, design.rows, np.ones(len(design.rows)), True).pvalues())
    return np.mean(np.array(p) <= 0.05, axis=0)


def confounded(rng):
    """Two strata that differ, with most of each group in one of them."""
    strata = np.repeat([0, 1], 20)
    groups = np.repeat([0, 1, 0, 1], [15, 5, 5, 15])
    rows = rng.gamma(np.ones(5) + 2 * strata[:, None] * np.eye(5)[0])
    return units_of(rows / rows.sum(axis=1, keepdims=True), groups, strata)


def donors(rng):
    rows, groups, of = of_donors(DONORS["six in both, others in one"], int(rng.integers(10**9)))
    return units_of(rows, groups, subjects=of)


def three_times(rng):
    name = "three time points, some missed"
    rows, groups, of = of_donors(DONORS[name], int(rng.integers(10**9)))
    return units_of(rows, groups, subjects=of)


def wide_and_narrow(rng):
    groups = np.repeat([0, 1], [8, 40])
    rows = rng.gamma(np.where(groups == 0, 0.7, 10.0)[:, None] * np.ones(6))
    return units_of(rows / rows.sum(axis=1, keepdims=True), groups)


@pytest.mark.slow
@pytest.mark.parametrize("make", [confounded, donors, three_times, wide_and_narrow])
def test_tests_keep_their_level(make):
    n_sets = 300
    share = rejected(make, n_sets)
    assert 0.02 < share.mean() < 0.075
    assert share.max() < 0.05 + 4 * np.sqrt(0.05 * 0.95 / n_sets)


# Refusals -------------------------------------------------------------------------------------


@few
@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"strata": list("aaaabbbb"), "interval": "bca"},
            "not adjusted for these. Pass interval='t'",
        ),
        (
            {"groups": [0, 1, 0, 1, 2, 3, 2, 3], "strata": list("aaaabbbb")},
            "0, 1 have no strata in c",
        ),
        ({"groups": [0, 0, 0, 0, 0, 0, 0, 1], "strata": list("abcdefgg")}, "More units are needed"),
    ],
)
def test_comparisons_that_are_not_possible_are_refused(options, match):
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 8)
    given_ = {"groups": np.arange(8) % 2, "units": np.arange(8)} | options
    with pytest.raises(ValueError, match=match):
        group_effects(rows, **given_)


@few
def test_sums_of_topics_are_compared_as_one():
    rows, groups = np.random.default_rng(0).dirichlet(np.ones(5), 20), np.arange(20) % 2
    options = {"n_permutations": 50, "random_state": 0}
    found = group_effects(rows, groups, topic_sums={"both": [1, 3]}, **options)
    assert found.topic_names == ("both", 0, 2, 4)
    summed = np.column_stack([rows[:, 1] + rows[:, 3], rows[:, [0, 2, 4]]])
    expected = group_effects(summed, groups, **options)
    np.testing.assert_allclose(found.pvalue, expected.pvalue, rtol=1e-9)
