"""Effects of groups: means with intervals, p-values of topics, the same bits everywhere."""

import re
import warnings

import internals
import numpy as np
import oracle_permutation as oracle
import pytest
import scipy.stats
from oracle import brown_forsythe, cluster_jackknife, draws_below, satterthwaite

from nmfscale import TopicModel, group_effects
from nmfscale.datasets import simulate_topic_counts
from nmfscale.inference.intervals import acceleration_of
from nmfscale.inference.regression.least_squares import LeastSquares
from nmfscale.inference.regression.one_way import OneWay
from nmfscale.inference.regression.robust import HC3
from nmfscale.inference.replicates.seeds import child

few = pytest.mark.filterwarnings(
    "ignore:.*fewer than [25]0", "ignore:the proportion of topic .* varies more", "ignore:few "
)
GROUPS = np.array(["x", "y", "z"])


@pytest.fixture(scope="module")
def data():
    """Amounts of topics of three samples a unit; groups, units and strata of samples."""
    rng = np.random.default_rng(0)
    units = rng.permutation(np.repeat(np.arange(180), 3))
    loadings = rng.gamma(0.7, size=(180, 4))[units] * rng.gamma(2, size=(540, 4))
    return loadings, GROUPS[units % 3], units, units // 3 % 2


def of_units(loadings, units):
    rows = loadings / loadings.sum(axis=1, keepdims=True)
    return np.array([rows[units == u].mean(axis=0) for u in np.unique(units)])


def shares(values, labels):
    """Statistics of the topics, of values less the mean of their stratum."""
    ratios = np.array([brown_forsythe(y, labels) for y in values.T])
    return ratios / (1 + ratios)


def test_replicates_are_means_of_copied_units(data):
    loadings, groups, units, _ = data
    found = group_effects(
        loadings, groups, units=units, n_replicates=3, n_permutations=9, random_state=5,
        interval="percentile",
    )  # fmt: skip
    values, of_group = of_units(loadings, units), GROUPS[np.arange(180) % 3]
    means = np.array([values[of_group == g].mean(axis=0) for g in GROUPS]).T
    np.testing.assert_allclose(found.means, means, rtol=1e-12)
    # units stand group after group
    cell = np.arange(180) % 3
    order, sizes = np.argsort(cell, kind="stable"), np.bincount(cell)
    for r, replicate in enumerate(found.replicates):
        draws = draws_below(child(np.random.SeedSequence(5), r).generate_state(4, np.uint64), sizes)
        starts = np.cumsum([0, *sizes])
        drawn = order[np.concatenate([s + d for s, d in zip(starts[:-1], draws, strict=False)])]
        copied = [values[drawn][of_group[drawn] == g].mean(axis=0) for g in GROUPS]
        np.testing.assert_allclose(replicate, np.array(copied).T, rtol=1e-12)


@few
@pytest.mark.parametrize("with_strata", [False, True])
def test_exact_pvalues_are_those_of_all_labellings(with_strata):
    rows = np.random.default_rng(3).integers(1, 4, (8, 3)).astype(float)  # with ties
    labels = GROUPS[[0, 1, 0, 1, 1, 0, 2, 2]]
    strata = np.array([0, 0, 0, 0, 1, 1, 1, 1]) * with_strata
    options = {"strata": strata, "units": np.arange(8)} if with_strata else {}
    found = group_effects(rows, labels, **options)
    values = rows / rows.sum(axis=1, keepdims=True)
    for s in np.unique(strata):
        values[strata == s] -= values[strata == s].mean(axis=0)
    null = np.array([shares(values, each) for each in oracle.all_labellings(labels, strata)])
    assert found.exact and found.null.shape == null.shape
    np.testing.assert_allclose(found.statistics, shares(values, labels), rtol=1e-6)
    np.testing.assert_allclose(
        found.pvalue_permutation, (null >= found.statistics - 1e-6).mean(axis=0)
    )
    most = found.statistics.argmax()
    largest = null.max(axis=1) >= found.statistics[most] - 1e-6
    assert found.pvalue_maxt[most] == pytest.approx(
        max(largest.mean(), found.pvalue_permutation[most])
    )


@few
def test_two_groups_are_compared_by_welch(data):
    loadings, groups, units, _ = data
    kept = groups != "z"
    how = {"units": units[kept], "n_permutations": 9, "moderated": False}
    found = group_effects(loadings[kept], groups[kept], **how)
    values = of_units(loadings, units)
    t = scipy.stats.ttest_ind(values[::3], values[1::3], equal_var=False).statistic
    # of 60 units each, variances of the jackknife are 60/59 times as large
    np.testing.assert_allclose(found.statistics / (1 - found.statistics), t**2 * 59 / 60, rtol=1e-6)
    least, most = (2 * scipy.stats.t.sf(np.abs(t) * np.sqrt(59 / 60), f) for f in (118, 59))
    assert np.all((least < found.pvalue) & (found.pvalue < most))


@pytest.mark.parametrize("equal_weights", ["units", "samples"])
def test_errors_are_those_of_the_jackknife(data, equal_weights):
    loadings, groups, units, _ = data
    kept = np.arange(540) % 7 > units % 4  # units of several sizes
    loadings, groups, units = loadings[kept], groups[kept], units[kept]
    found = group_effects(
        loadings, groups, units=units, equal_weights=equal_weights, n_permutations=99,
        random_state=0, moderated=False,
    )  # fmt: skip
    X = (groups[:, None] == GROUPS).astype(float)
    rows = loadings / loadings.sum(axis=1, keepdims=True)
    sizes = np.unique(units, return_counts=True)[1][np.unique(units, return_inverse=True)[1]]
    weights = 1 / sizes if equal_weights == "units" else np.ones(len(units))
    of = found.differences("x")
    V = [cluster_jackknife(X, rows[:, t], units, weights) for t in range(4)]
    f = np.array([satterthwaite(X, a, units, weights) for a in np.eye(3)])
    # degrees of freedom of Welch, with variances of groups that are pooled over topics
    pooled = np.diag(np.sum(V, axis=0))[:2]
    of_difference = pooled.sum() ** 2 / (pooled**2 / f[:2]).sum()
    for t in range(4):
        mean = np.average(rows[groups == "y", t], weights=weights[groups == "y"])
        assert found.means[t, 1] == pytest.approx(mean, rel=1e-12)
        np.testing.assert_allclose(found.std_error[t], np.sqrt(np.diag(V[t])), rtol=1e-8)
        error = np.sqrt(V[t][0, 0] + V[t][1, 1])
        assert of.std_error[t, 0] == pytest.approx(error, rel=1e-8)
        half = error * scipy.stats.t.ppf(0.975, of_difference)
        assert of.upper[t, 0] - of.differences[t, 0] == pytest.approx(half, rel=1e-7)
        far = np.sqrt(V[t][0, 0]) / mean_slope(found.means[t, 0]) * scipy.stats.t.ppf(0.975, f[0])
        angle = np.arcsin(np.sqrt(found.means[t, 0]))
        assert found.upper[t, 0] == pytest.approx(np.sin(angle + far) ** 2, rel=1e-7)
    assert f"each {equal_weights[:-1]} counts once" in repr(found)
    assert found.equal_weights == equal_weights
    # whole units move, with all of their samples
    assert (found.pvalue_permutation > 0.01).all() and found.null.shape == (99, 4)


def mean_slope(mean):
    """1 over the derivative of arcsin(sqrt(mean))."""
    return 2 * np.sqrt(mean * (1 - mean))


@few
def test_a_larger_number_of_samples_in_units_is_no_difference():
    """Units of 3 samples and of 30 have the same mean: roots of means would not."""
    rng = np.random.default_rng(0)
    units, rejected = np.repeat(np.arange(60), np.repeat([3, 30], 30)), []
    for seed in range(40):
        rows = rng.dirichlet(np.full(5, 0.3), units.size)
        found = group_effects(rows, units < 30, units=units, n_permutations=199, random_state=seed)
        rejected.append(found.pvalue_maxt.min() <= 0.05)
    assert np.mean(rejected) < 0.2


@few
def test_units_count_once_or_by_their_samples():
    units = np.array([0, 0, 0, 0, 1, 2, 2, 3] * 6) + np.repeat(np.arange(6) * 4, 8)
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 48)
    once, all_samples = (
        group_effects(rows, units % 2, units=units, equal_weights=w, n_permutations=9)
        for w in ("units", "samples")
    )
    of = np.array([rows[units == u].mean(axis=0) for u in range(24)])
    np.testing.assert_allclose(once.means[:, 0], of[::2].mean(axis=0))
    np.testing.assert_allclose(all_samples.means[:, 0], rows[units % 2 == 0].mean(axis=0))


@few
def test_amounts_weigh_samples_by_their_counts():
    X, *_ = simulate_topic_counts(80, 30, 3, random_state=0)
    model, groups = TopicModel(3, random_state=0).fit(X), np.arange(80) % 2
    units = np.arange(80) // 4 * 2 + groups
    found = group_effects(model, groups, scale="amounts", units=units, n_permutations=9)
    amounts = model.loadings_ * X.sum(axis=1)[:, None]
    sums = np.array([amounts[units == u].sum(axis=0) for u in np.unique(units)])
    sums /= sums.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.means[:, 1], sums[1::2].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("interval", ["percentile", "bca"])
def test_intervals_are_those_of_scipy(data, interval):
    loadings, groups, units, _ = data
    found = group_effects(
        loadings, groups, units=units, interval=interval, level=0.9, n_replicates=500,
        n_permutations=9, random_state=1,
    )  # fmt: skip
    values, t = of_units(loadings, units), 2

    def ends(samples, statistic, replicates):
        given = scipy.stats.bootstrap(
            samples, statistic, n_resamples=0, confidence_level=0.9, vectorized=True,
            method="BCa" if interval == "bca" else "percentile",
            bootstrap_result=scipy.stats._resampling.BootstrapResult(None, replicates, None),
        )  # fmt: skip
        return tuple(given.confidence_interval)

    y, z = values[1::3, t], values[2::3, t]
    expected = ends((y,), np.mean, found.replicates[:, t, 1])
    np.testing.assert_allclose((found.lower[t, 1], found.upper[t, 1]), expected, rtol=1e-6)
    differences = found.differences()
    assert differences.pairs == (("x", "y"), ("x", "z"), ("y", "z"))
    replicates = found.replicates[:, t, 1] - found.replicates[:, t, 2]
    expected = ends((y, z), lambda a, b, axis: a.mean(axis) - b.mean(axis), replicates)
    mine = differences.lower[t, 2], differences.upper[t, 2]
    np.testing.assert_allclose(mine, expected, rtol=1e-6)
    np.testing.assert_allclose(differences.differences[t, 2], y.mean() - z.mean())
    np.testing.assert_allclose(differences.std_error[t, 2], replicates.std(ddof=1))
    back = found.differences("y")
    assert back.pairs == (("x", "y"), ("z", "y"))
    np.testing.assert_allclose(back.differences[:, 1], -differences.differences[:, 2])


@pytest.mark.nightly
@few
def test_size_under_the_null_with_units_and_strata():
    rng, p, units = np.random.default_rng(1), [], np.repeat(np.arange(24), 4)
    groups, strata = (np.arange(24) // 2 % 3)[units], (np.arange(24) % 2)[units]
    for _ in range(200):
        tastes = rng.dirichlet(np.ones(4), 24)[units] + 0.5 * strata[:, None] * np.eye(4)[0]
        found = group_effects(
            tastes * rng.gamma(2.0, 1.0, (96, 4)), groups, units=units, strata=strata,
            n_replicates=1, n_permutations=99, random_state=rng,
        )  # fmt: skip
        p.append([found.pvalue[0], found.pvalue[1], found.pvalue_maxt.min()])
    size, error = np.mean(np.array(p) <= 0.05, axis=0), np.sqrt(0.05 * 0.95 / 200)
    assert np.all(np.abs(size - 0.05) <= 3 * error)


@pytest.mark.nightly
@few
def test_size_with_unequal_spread():
    """A small group that is wide beside a large narrow one, and the reverse; equal means."""
    rng, groups = np.random.default_rng(0), np.repeat([0, 1], [10, 50])
    for concentrations in (4, 40), (40, 4):
        spread, p, inside = np.repeat(concentrations, [10, 50])[:, None] / 4, [], []
        for seed in range(300):
            rows = rng.gamma(np.ones(4) * spread)
            found = group_effects(rows, groups, n_permutations=199, random_state=seed)
            of = found.differences()
            p.append(found.pvalue[0] <= 0.05)
            inside.append((of.lower[0, 0] <= 0) == (0 <= of.upper[0, 0]))
        assert abs(np.mean(p) - 0.05) <= 3 * np.sqrt(0.05 * 0.95 / 300)
        assert abs(np.mean(inside) - 0.95) <= 3 * np.sqrt(0.05 * 0.95 / 300)


@few
def test_unequal_spread_of_a_topic_is_warned_of():
    rng, groups = np.random.default_rng(0), np.repeat(["wide", "narrow"], 30)
    rows = rng.dirichlet(np.full(4, 8.0), 60)
    options = {"n_permutations": 99, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group_effects(rows, groups, **options)
    away = rng.uniform(-0.15, 0.15, 60) * (groups == "wide")
    rows[:, 0] = 0.2 + 0.02 * rng.random(60) + away
    with pytest.warns(UserWarning, match="of topic 0 varies more in group 'wide' than in .* 'narr"):
        group_effects(rows, groups, **options)
    groups = np.repeat(["few", "many"], [8, 40])  # where the t-test rejects too often
    rows = rng.gamma(np.where(groups == "few", 0.5, 20.0)[:, None] * np.ones(4))
    rows /= rows.sum(axis=1, keepdims=True)
    with pytest.warns(UserWarning, match="in group 'few' .* intervals are somewhat too narrow"):
        group_effects(rows, groups, **options)


def test_topics_that_few_units_of_a_group_have_are_warned_of():
    rng, groups = np.random.default_rng(0), np.repeat(["a", "b"], 30)
    rows = rng.dirichlet(np.full(3, 8.0), 60)
    rows[:27, 1] = 0
    with pytest.warns(UserWarning, match="topic 1 in 3 of 30 samples of group 'a'"):
        group_effects(rows, groups, n_permutations=99, random_state=0)


@pytest.mark.nightly
@few
@pytest.mark.parametrize("n", [5, 10, 40])
def test_intervals_cover_the_truth(n):
    rng, covered = np.random.default_rng(0), []
    weights = rng.gamma(1.0, size=(3, 6)) + 0.2
    groups, truth = np.repeat(np.arange(3), n), (weights / weights.sum(1, keepdims=True)).T
    for seed in range(100):
        rows = rng.gamma(2 * weights[groups])
        found = group_effects(rows, groups, n_permutations=1, random_state=seed)
        covered.append(((found.lower <= truth) & (truth <= found.upper)).mean())
    error = np.std(covered) / np.sqrt(len(covered))
    assert np.mean(covered) > 0.95 - 3 * error - 0.015
    # of few units they are wide, as Student's t has few degrees of freedom
    assert np.mean(covered) < (0.95 + 3 * error + 0.015 if n > 10 else 1.0)


@few
def test_topics_that_differ_are_found(data):
    loadings, groups, units, _ = data
    loadings = loadings.copy()
    loadings[groups == "z", 3] *= 3
    loadings[:, 2] = 0
    found = group_effects(loadings, groups, units=units, n_permutations=999, random_state=0)
    assert found.pvalue_permutation[3] == 0.001 == found.smallest_pvalue and not found.exact
    assert found.pvalue[2] == found.pvalue_permutation[2] == 1.0 and found.statistics[2] == 0.0
    assert np.all(found.lower <= found.means) and np.all(found.means <= found.upper)
    assert np.all(found.pvalue <= found.qvalue)
    assert np.all(found.pvalue_permutation <= found.pvalue_maxt)
    of = found.differences("x")
    assert of.lower[3, 1] > 0 > of.lower[3, 0] and found.replicates is None
    assert found.summary().topic[0] == 3 and found.summary().columns[1:4].tolist() == list("xyz")
    frame = found.to_frame()
    np.testing.assert_array_equal(frame["mean"], found.means.ravel())
    np.testing.assert_array_equal(frame["pvalue"].iloc[::3], found.pvalue)
    assert frame.columns[-4:].tolist() == ["pvalue", "qvalue", "pvalue_permutation", "pvalue_maxt"]
    assert of.to_frame()[["group", "other"]].iloc[1].tolist() == ["z", "x"]
    assert re.fullmatch(
        r"<GroupEffects: 4 topics x 3 groups of 180 units, each unit counts once, \d topics with "
        r"q <= 0.05; 999 labellings>",
        repr(found),
    )
    assert re.fullmatch(r"<GroupDifferences: 4 topics x 2 pairs .* \d of 8 without 0>", repr(of))


def test_the_same_bits(data, tmp_path):
    loadings, groups, units, _ = data
    args = {"units": units, "random_state": 3, "interval": "percentile"}
    expected = group_effects(
        loadings, groups, **args, n_replicates=150, n_permutations=200, n_threads=1
    )
    assert expected.pvalue is None is expected.differences().pvalue
    assert expected.to_frame().columns[-2:].tolist() == ["pvalue_permutation", "pvalue_maxt"]
    kept = {"checkpoint": tmp_path, "resume": True}
    group_effects(loadings, groups, **args, n_replicates=70, n_permutations=90, **kept)
    for options in {"n_threads": 3}, kept, kept | {"random_state": None}:
        found = group_effects(
            loadings, groups, **args | {"n_replicates": 150, "n_permutations": 200} | options
        )
        assert (found.replicates == expected.replicates).all()
        assert (found.null == expected.null).all()
        assert found.random_state == 3


@few
def test_topics_and_groups_without_spread():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(4), 24)
    groups = np.array(list("a" + "b" * 11 + "c" * 12))
    rows[groups == "b", 0] = 0.0  # absent in a group, and nowhere else
    rows[:, 1] = 0.0  # absent
    rows[:, 2] = np.where(groups == "c", 0.5, 0.1) * rows.sum(axis=1)  # no spread within groups
    found = group_effects(rows, groups, n_permutations=999, random_state=0)
    of = found.differences()
    for values in (found.lower, found.upper, found.std_error, found.null, found.pvalue, of.pvalue):
        assert np.isfinite(values).all()
    assert (
        found.pvalue_permutation[0] <= 0.01 and found.pvalue[1] == 1 and (of.pvalue[1] == 1).all()
    )
    np.testing.assert_array_equal(found.means[1], found.upper[1])
    # none of 11 units has the topic: a share of 1 - 0.05^(1/11) may have it, as others do
    shares = rows / rows.sum(axis=1, keepdims=True)
    size = shares[groups != "b", 0].mean()
    assert found.lower[0, 1] == 0
    assert found.upper[0, 1] == pytest.approx((1 - 0.05 ** (1 / 11)) * size)
    # the spread of the only unit of a group is that of the others
    assert found.std_error[3, 0] > found.std_error[3, 2] > 0


def test_few_units_are_warned_of():
    rows = np.random.default_rng(0).random((60, 3))
    units = np.arange(60) // 10
    with (
        pytest.warns(UserWarning, match="2 of 2 groups have fewer than 20 units, the fewest 0"),
        pytest.warns(UserWarning, match="no p-value below 0.1 .permutations of any topic."),
    ):
        found = group_effects(rows, units % 2, units=units)
    assert found.exact and found.null.shape == (20, 3) and found.smallest_pvalue == 0.1


@few
def test_units_without_topics_are_left_out(data):
    loadings, groups, units, _ = data
    loadings = loadings.copy()
    loadings[units < 9] = 0
    with pytest.warns(UserWarning, match="27 of 540 samples are left out: .*; with them 9 units"):
        found = group_effects(loadings, groups, units=units, n_permutations=9, n_replicates=2)
    assert found.n_units.tolist() == [57, 57, 57]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_permutations": 0}, "n_permutations is 0"),
        ({"n_replicates": 2.5}, "n_replicates is 2.5"),
        ({"level": 95}, "level=95"),
        ({"interval": "basic"}, "interval='basic' is not one of 't', 'percentile', 'bca'"),
        ({"equal_weights": "beers"}, "equal_weights='beers' is not one of 'units', 'samples'"),
        ({"scale": "roots"}, "scale='roots' is not one of"),
        ({"topic_names": ["a"]}, "topic_names has 1 different names; 4 are needed"),
        ({"groups": ["a"] * 540}, "two groups at least"),
    ],
)
def test_wrong_arguments_are_named(data, options, match):
    given = {"model": data[0], "groups": data[1]} | options
    with pytest.raises(ValueError, match=match):
        group_effects(**given)


def test_a_reference_that_is_no_group_is_named(data):
    found = group_effects(*data[:2], n_replicates=2, n_permutations=9)
    with pytest.raises(ValueError, match="reference='w' is not one of the groups: 'x', 'y', 'z'"):
        found.differences("w")


def test_errors_of_cell_means_are_those_of_a_regression_on_cells():
    rng = np.random.default_rng(1)
    cell = np.concatenate([rng.permutation(np.repeat(np.arange(4), [2, 3, 9, 14])), [4]])
    values, weights = rng.dirichlet(np.ones(3), 29), rng.gamma(3, size=29)
    values[:, 2] = 0.25  # does not vary
    fit = LeastSquares.of((cell[:, None] == np.arange(5)).astype(float), values, weights)
    expected, errors = HC3(fit, np.ones(29)), OneWay.of(cell, values, weights)
    along = rng.normal(size=(5, 6)) * (rng.random((5, 6)) < 0.7)
    variances, freedom = errors.variances(along)
    assert (freedom >= 1 - 1e-9).all() and (freedom <= 24 + 1e-9).all()
    # units of one cell have the same spread
    alone = expected.variances(np.eye(5))[1][:4]
    np.testing.assert_allclose(errors.variances(np.eye(5))[1][:4], alone)
    np.testing.assert_allclose(variances, expected.variances(along)[0], rtol=1e-10, atol=1e-30)
    np.testing.assert_allclose(
        errors.acceleration(along)[:2], expected.acceleration(along)[:2], rtol=1e-8
    )
    v = expected.influences(along[:, 0])
    np.testing.assert_allclose(
        errors.acceleration(along)[:2, 0],
        acceleration_of((v**2).sum(axis=0), (v**3).sum(axis=0))[:2],
    )


@few
def test_hundreds_of_groups(monkeypatch):
    rng = np.random.default_rng(0)
    groups, rows = np.arange(1200) % 240, rng.dirichlet(np.ones(8), 1200)
    with pytest.warns(UserWarning, match="fewer than 50"):
        found = group_effects(
            rows, groups, n_replicates=20, n_permutations=20, interval="bca", random_state=0
        )
    internals.set_replicates_of_pairs_in_memory(monkeypatch, 20 * 8 * 1000)
    every, of_one = found.differences(), found.differences(7)
    assert every.differences.shape == (8, 240 * 239 // 2)
    some = [every.pairs.index((min(g, 7), max(g, 7))) for g in range(240) if g != 7]
    sign = np.where(np.arange(239) < 7, 1, -1)
    np.testing.assert_array_equal(every.differences[:, some] * sign, of_one.differences)
    np.testing.assert_allclose(every.std_error[:, some], of_one.std_error)
    np.testing.assert_allclose(every.lower[:, some[:7]], of_one.lower[:, :7])
