"""Effects of groups: means with intervals, p-values of topics, the same bits everywhere."""

import pickle
import re

import numpy as np
import oracle_permutation as oracle
import pytest
import scipy.stats
from oracle import draws_below

from nmfscale import group_effects, permutation_test
from nmfscale.inference.effects import EACH_TOPIC
from nmfscale.inference.seeds import child

few = pytest.mark.filterwarnings("ignore:.*fewer than 50")
GROUPS = np.array(["x", "y", "z"])


@pytest.fixture(scope="module")
def data():
    """Amounts of topics of three samples a unit; groups, units and strata of samples."""
    rng = np.random.default_rng(0)
    units = rng.permutation(np.repeat(np.arange(180), 3))
    loadings = rng.gamma(0.7, size=(180, 4))[units] * rng.gamma(2, size=(540, 4))
    return loadings, GROUPS[units % 3], units, units // 3 % 2


def of_units(loadings, units):
    sums = np.array([loadings[units == u].sum(axis=0) for u in np.unique(units)])
    return sums / sums.sum(axis=1, keepdims=True)


def shares(values, labels):
    roots = np.sqrt(values)
    mean = roots.mean(axis=0)
    parts = [(labels == g).sum() * (roots[labels == g].mean(axis=0) - mean) ** 2 for g in GROUPS]
    return np.sum(parts, axis=0) / ((roots - mean) ** 2).sum(axis=0)


def test_replicates_are_means_of_copied_units(data):
    loadings, groups, units, strata = data
    found = group_effects(
        loadings, groups, units=units, strata=strata, n_replicates=3, n_permutations=9,
        random_state=5,
    )  # fmt: skip
    values, of_group = of_units(loadings, units), GROUPS[np.arange(180) % 3]
    means = np.array([values[of_group == g].mean(axis=0) for g in GROUPS]).T
    np.testing.assert_allclose(found.means, means, rtol=1e-12)
    # units stand stratum after stratum, in each group after group
    cell = (np.arange(180) // 3 % 2) * 3 + np.arange(180) % 3
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
    found = group_effects(rows, labels, strata=strata, n_replicates=2)
    values = rows / rows.sum(axis=1, keepdims=True)
    null = np.array([shares(values, each) for each in oracle.all_labellings(labels, strata)])
    assert found.exact and found.null.shape == null.shape
    np.testing.assert_allclose(found.statistics, shares(values, labels), rtol=1e-7)
    np.testing.assert_allclose(found.pvalues, (null >= found.statistics - 1e-9).mean(axis=0))
    standard = (null - null.mean(axis=0)) / null.std(axis=0)
    of_observed = (found.statistics - null.mean(axis=0)) / null.std(axis=0)
    most = of_observed.argmax()
    largest = standard.max(axis=1) >= of_observed[most] - 1e-9
    assert found.pvalues_maxt[most] == pytest.approx(max(largest.mean(), found.pvalues[most]))


def test_topics_together_are_the_test_of_all(data):
    loadings, groups, units, _ = data
    found = group_effects(loadings, groups, units=units, n_replicates=2, n_permutations=9)
    roots = np.sqrt(of_units(loadings, units))
    weights = roots.var(axis=0) / roots.var(axis=0).sum()
    how = {"loadings": "amounts", "statistic": "hellinger", "n_permutations": 9}
    test = permutation_test(loadings, groups, units=units, **how)
    assert found.statistics @ weights == pytest.approx(test.overall.observed, rel=1e-7)


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
    np.testing.assert_allclose(differences.standard_errors[t, 2], replicates.std(ddof=1))
    back = found.differences("y")
    assert back.pairs == (("x", "y"), ("z", "y"))
    np.testing.assert_allclose(back.differences[:, 1], -differences.differences[:, 2])


@pytest.mark.slow
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
        p.append([found.pvalues[0], found.pvalues[1], found.pvalues_maxt.min()])
    size, error = np.mean(np.array(p) <= 0.05, axis=0), np.sqrt(0.05 * 0.95 / 200)
    assert np.all(np.abs(size - 0.05) <= 3 * error)


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """As often as the warning says: 0.94 at 100 units a group and more."""
    rng, sizes, covered = np.random.default_rng(0), (100, 150, 250), []
    weights = rng.gamma(1.0, size=(3, 10)) + 0.05
    groups, truth = np.repeat(np.arange(3), sizes), (weights / weights.sum(1, keepdims=True)).T
    for seed in range(60):
        found = group_effects(
            rng.gamma(weights[groups]), groups, n_permutations=1, random_state=seed
        )
        covered.append(((found.lower <= truth) & (truth <= found.upper)).mean())
    error = np.std(covered) / np.sqrt(len(covered))
    assert abs(np.mean(covered) - 0.94) < 3 * error + 0.01


def test_topics_that_differ_are_found(data):
    loadings, groups, units, _ = data
    loadings = loadings.copy()
    loadings[groups == "z", 3] *= 3
    loadings[:, 2] = 0
    found = group_effects(loadings, groups, units=units, n_permutations=999, random_state=0)
    assert found.pvalues[3] == 0.001 == found.smallest_pvalue and not found.exact
    assert found.pvalues[2] == 1.0 and found.statistics[2] == 0.0
    assert np.all(found.lower <= found.means) and np.all(found.means <= found.upper)
    assert np.all(found.pvalues <= found.qvalues) and np.all(found.pvalues <= found.pvalues_maxt)
    of = found.differences("x")
    assert of.lower[3, 1] > 0 > of.lower[3, 0]
    assert found.summary().index[0] == 3 and found.summary().columns[:3].tolist() == list("xyz")
    frame = found.to_frame()
    np.testing.assert_array_equal(frame["mean"], found.means.ravel())
    np.testing.assert_array_equal(frame["pvalue"].iloc[::3], found.pvalues)
    assert of.to_frame()[["group", "other"]].iloc[1].tolist() == ["z", "x"]
    assert re.fullmatch(
        r"<GroupEffects: 4 topics x 3 groups of 180 units, \d topics with q <= 0.05 of 999 "
        r"labellings>",
        repr(found),
    )
    assert re.fullmatch(r"<GroupDifferences: 4 topics x 2 pairs .* \d of 8 without 0>", repr(of))


def test_the_same_bits(data, tmp_path):
    loadings, groups, units, strata = data
    args = {"units": units, "strata": strata, "random_state": 3}
    expected = group_effects(
        loadings, groups, **args, n_replicates=150, n_permutations=200, n_threads=1
    )
    kept = {"checkpoint": tmp_path, "resume": True}
    group_effects(loadings, groups, **args, n_replicates=70, n_permutations=90, **kept)
    for options in {"n_threads": 3}, kept, kept | {"random_state": None}:
        found = group_effects(
            loadings, groups, **args | {"n_replicates": 150, "n_permutations": 200} | options
        )
        assert (found.replicates == expected.replicates).all()
        assert (found.null == expected.null).all()
        assert found.random_state == 3


def test_workers_get_the_statistic():
    assert pickle.loads(pickle.dumps(EACH_TOPIC)) == EACH_TOPIC


def test_few_units_are_warned_of():
    rows = np.random.default_rng(0).random((60, 3))
    units = np.arange(60) // 10
    with (
        pytest.warns(UserWarning, match="2 of 2 groups have fewer than 50 units, the fewest 0"),
        pytest.warns(UserWarning, match="no p-value below 0.1 .groups equal in any topic."),
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
        ({"interval": "basic"}, "interval='basic'"),
        ({"topic_names": ["a"]}, "topic_names has 1 different names; 4 are needed"),
        ({"units": np.arange(540) // 5}, "unit 0 has samples in groups"),
        ({"groups": ["a"] * 540}, "two groups at least"),
    ],
)
def test_wrong_arguments_are_named(data, options, match):
    given = {"loadings": data[0], "groups": data[1]} | options
    with pytest.raises(ValueError, match=match):
        group_effects(given.pop("loadings"), given.pop("groups"), **given)


def test_a_reference_that_is_no_group_is_named(data):
    found = group_effects(*data[:2], n_replicates=2, n_permutations=9)
    with pytest.raises(ValueError, match="reference='w' is not one of the groups: 'x', 'y', 'z'"):
        found.differences("w")
