"""Permutation tests: the kernel, exact p-values, size under the null, the same bits everywhere."""

import pickle
import re
import warnings
from types import SimpleNamespace

import internals
import numpy as np
import oracle_permutation as oracle
import pytest
from clusters import WALL, within
from night import at_night
from numpy.random import SeedSequence
from small_fits import at_level

from nmfscale import balance, kernels
from nmfscale.counts.sizes import MemoryLimitError
from nmfscale.engine.checkpoint import CheckpointError
from nmfscale.inference.design.groups import checked_labels
from nmfscale.inference.groups.labelling import (
    Labelled,
    Permutations,
    Permuted,
    check_pairs,
    labellings,
)
from nmfscale.inference.groups.pvalues import independent_max_t, joint_max_t, standardized
from nmfscale.inference.groups.statistics import STATISTICS
from nmfscale.inference.regression.permutation import permutation_test
from nmfscale.inference.replicates.seeds import child_states


def spread(tables):
    """A statistic of the user's: how far apart proportions of the first topic are."""
    return np.ptp(tables[:, :, 0] / tables.sum(axis=2), axis=1)


@pytest.fixture(scope="module")
def many():
    rng = np.random.default_rng(0)
    return rng.gamma(0.5, 1, (60, 40)), np.repeat(["a", "b", "c"], [10, 20, 30]), np.arange(60) % 3


@pytest.mark.parametrize("level", kernels.available_levels())
@pytest.mark.parametrize("n_threads", [1, 2])
def test_sums_of_permuted_labels_are_those_of_the_oracle(many, level, n_threads):
    rows, labels, strata = many
    codes = np.unique(labels, return_inverse=True)[1]
    mine = Labelled.of(STATISTICS["hellinger"], rows, codes, strata, [(0, 1, 2)])
    seed = SeedSequence(5)
    expected = []
    for state in child_states(seed, range(3, 22)):
        of = oracle.permuted_labels(state, mine.sizes)
        expected.append(oracle.hellinger(rows[np.argsort(strata, kind="stable")], of))
    with at_level(level):
        statistic, welch = STATISTICS["hellinger"], STATISTICS["welch"]
        permuted = Permuted(((statistic, mine),))
        found = permuted.random_values(seed, range(3, 22), n_threads)
        # as on a worker that is sent what has been in use here
        sent = pickle.loads(pickle.dumps(permuted))
        again = sent.random_values(seed, range(3, 22), n_threads)
        other = welch, Labelled.of(welch, rows, codes, strata, [(0, 1), (0, 1, 2)])
        alone = Permuted((other,)).random_values(seed, range(3, 22), n_threads)
        both = Permuted((other, *sent.parts))
        beside = both.random_values(seed, range(3, 22), n_threads)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)
    np.testing.assert_array_equal(again, found)
    np.testing.assert_array_equal(beside, np.hstack([alone, found]))


def test_every_labelling_comes_once():
    sizes = np.array([[2, 1, 0], [1, 1, 2]])
    found = labellings(sizes, np.arange(36))
    assert len(np.unique(found, axis=0)) == 36
    for part, n_each in (found[:, :3], sizes[0]), (found[:, 3:], sizes[1]):
        assert all(np.bincount(row, minlength=3).tolist() == n_each.tolist() for row in part)


@pytest.mark.filterwarnings("ignore:groups differ in spread")
@pytest.mark.parametrize("statistic", ["welch", "hellinger", "cosine", "balanced"])
@pytest.mark.parametrize("strata", [None, [0, 0, 0, 0, 1, 1, 1, 1]])
def test_exact_pvalues_are_those_of_all_labellings(statistic, strata):
    rows = np.random.default_rng(3).integers(1, 4, (8, 3)).astype(float)  # with ties
    labels = np.array([0, 1, 0, 1, 1, 0, 2, 2])
    options = {"statistic": statistic, "scale": "amounts", "alpha": 0.9}
    found = permutation_test(rows, labels, strata=strata, **options)
    compute = getattr(oracle, statistic)
    for test, groups in [(found.overall, (0, 1, 2)), *((t, t.groups) for t in found.pairs)]:
        kept = np.isin(labels, groups)
        at = np.zeros(kept.sum(), int) if strata is None else np.array(strata)[kept]
        args = (at,) if statistic == "welch" else ()
        null = [
            compute(rows[kept], each, *args) for each in oracle.all_labellings(labels[kept], at)
        ]
        observed = compute(rows[kept], labels[kept], *args)
        sign = 1 if statistic == "cosine" else -1
        assert test.exact and test.null.size == len(null)
        assert test.observed == pytest.approx(observed, rel=1e-7)
        expected = np.mean(sign * np.array(null) <= sign * observed + 1e-9)
        assert test.pvalue == test.fraction == pytest.approx(expected)
        assert test.pvalue >= test.smallest_pvalue - 1e-12


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:groups differ in spread")
@pytest.mark.parametrize(
    ("statistic", "scope"),
    [("welch", "pair"), ("hellinger", "all"), ("cosine", "pair"), ("balanced", "all"),
     (spread, "pair")],
)  # fmt: skip
def test_size_under_the_null_with_units_and_strata(statistic, scope):
    rng, p = np.random.default_rng(1), []
    units = np.repeat(np.arange(24), 4)
    groups, strata = (np.arange(24) // 2 % 3)[units], (np.arange(24) % 2)[units]
    for _ in range(200):
        tastes = rng.dirichlet(np.ones(4), 24)[units] + 0.5 * strata[:, None] * np.eye(4)[0]
        rows = tastes * rng.gamma(2.0, 1.0, (96, 4))
        found = permutation_test(
            rows, groups, units=units, strata=strata, statistic=statistic, scope=scope,
            n_permutations=99, random_state=rng, n_threads=1,
        )  # fmt: skip
        p.append(
            [found.overall.pvalue, found.pairs[0].pvalue, min(x.pvalue_maxt for x in found.pairs)]
        )
    size = np.mean(np.array(p) <= 0.05, axis=0)
    most = 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert np.all(size <= most) and np.all(size[:2] >= 0.05 - 3 * np.sqrt(0.05 * 0.95 / 200))


@pytest.mark.parametrize("statistic", ["welch", "hellinger", "cosine", "balanced", spread])
@pytest.mark.parametrize("scope", ["pair", *at_night("all")])
def test_the_same_bits(many, tmp_path, statistic, scope):
    rows, labels, strata = many
    args = {"strata": strata, "statistic": statistic, "scope": scope, "random_state": 4}
    args["units"] = np.arange(60)

    def nulls(**options):
        found = permutation_test(rows, labels, **args, **options)
        return np.array([test.null for test in (found.overall, *found.pairs)])

    expected = nulls(n_permutations=300, n_threads=1)
    kept = {"checkpoint": tmp_path, "resume": True}
    nulls(n_permutations=100, **kept)
    for options in {"n_threads": 3}, {"batch_size": 7}, kept:
        np.testing.assert_array_equal(nulls(n_permutations=300, **options), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_same_bits_on_a_cluster(many, three_workers):
    rows, labels, _ = many
    args = {"n_permutations": 300, "random_state": 4, "client": three_workers}
    args |= {"statistic": "hellinger", "scale": "amounts"}
    found = within(WALL, lambda: permutation_test(rows, labels, **args))
    mine = Labelled.of(
        STATISTICS["hellinger"], rows, np.unique(labels, return_inverse=True)[1],
        np.zeros(60, int), [(0, 1, 2)],
    )  # fmt: skip
    permuted = Permuted(((STATISTICS["hellinger"], mine),))
    here = permuted.random_values(SeedSequence(4, spawn_key=(0,)), range(300), 1)
    np.testing.assert_array_equal(found.overall.null, here[:, 0])


def test_balanced_is_zero_of_groups_alike_and_ignores_scales_of_topics(many):
    rows, labels, _ = many
    same = np.outer(np.arange(1, 61), rows[0] + 1)
    args = {
        "statistic": "balanced", "scale": "amounts", "n_permutations": 20, "random_state": 1,
    }  # fmt: skip
    assert permutation_test(same, labels, **args).overall.observed < 1e-12
    found, scaled = (
        permutation_test(each, labels, **args).overall
        for each in (rows, rows * np.exp2(np.arange(40) - 20))
    )
    np.testing.assert_array_equal(scaled.null, found.null)
    table = np.stack([rows[labels == g].sum(axis=0) for g in "abc"], axis=1)
    expected = np.sum((balance(table) - 1 / np.sqrt(40)) ** 2)
    assert found.observed == scaled.observed == pytest.approx(expected, rel=1e-7)


@pytest.fixture
def rare():
    """Three topics in one of ten units each: no balance where all have the same label."""
    rows = np.random.default_rng(2).gamma(1.0, size=(10, 5))
    rows[:, :3] *= np.eye(10)[:, [0, 1, 9]]
    return rows, np.repeat([0, 1], 5)


@pytest.mark.parametrize("n_permutations", [252, 100])
def test_labellings_without_balance_are_at_least_as_extreme(rare, n_permutations):
    with pytest.warns(UserWarning, match="labellings of groups 0 - 1 have no balance"):
        found = permutation_test(
            *rare,
            scale="amounts",
            statistic="balanced",
            n_permutations=n_permutations,
            random_state=0,
        ).overall
    unbalanced = found.null == 2 * (2 - np.sqrt(2))
    assert np.isfinite(found.null).all() and unbalanced.sum() == found.n_unbalanced
    n_extreme = np.count_nonzero(found.null >= found.observed - 1e-12)
    assert found.fraction == n_extreme / found.null.size >= unbalanced.mean()
    assert found.zscore == pytest.approx(
        (found.observed - found.null[~unbalanced].mean()) / found.null[~unbalanced].std()
    )
    if found.exact:
        null = [oracle.balanced(rare[0], each) for each in oracle.all_labellings(rare[1], [0] * 10)]
        assert found.n_unbalanced == np.isinf(null).sum() == 42
        assert found.pvalue == np.mean(np.array(null) >= null[0] - 1e-9)


def test_adjusted_pvalues_of_many_pairs(monkeypatch):
    internals.set_pvalues_in_memory(monkeypatch, 100)
    rng = np.random.default_rng(0)
    nulls = list(rng.integers(0, 6, (30, 19)).astype(float))
    observed, exact = rng.integers(0, 6, 30).astype(float).tolist(), (rng.random(30) < 0.5).tolist()
    order, expected = np.argsort(observed, kind="stable")[::-1], np.empty(30)
    for i, k in enumerate(order):
        n = [np.count_nonzero(nulls[j] >= observed[k]) for j in order[i:]]
        p = [b / 19 if exact[j] else (b + 1) / 20 for b, j in zip(n, order[i:], strict=True)]
        expected[k] = max(1 - np.prod(1 - np.array(p)), expected[order[i - 1]] if i else 0)
    np.testing.assert_allclose(independent_max_t(nulls, observed, exact), expected)


def test_pairs_that_memory_cannot_hold_are_refused_before_any_work(monkeypatch):
    internals.free_memory_for_pairs(monkeypatch, 2 * 10**6)
    labels = np.repeat(np.arange(40), 8)
    shares = np.random.default_rng(0).dirichlet([1, 1], labels.size)
    for scope in "pair", "all":
        with pytest.raises(
            MemoryLimitError, match=r"780 pairs of 40 groups .* labels == 0; .*9,999"
        ):
            permutation_test(shares, labels, scope=scope)
    few = checked_labels(np.repeat(np.arange(40), 3), 120, "groups")  # 20 labellings of a pair
    check_pairs(few, 3, 9999, "pair")
    internals.free_memory_for_pairs(monkeypatch, 10**12)
    with pytest.warns(UserWarning, match=r"14,365 pairs of 170 groups by 143,635,635 labellings"):
        check_pairs(checked_labels(np.repeat(np.arange(170), 8), 1360, "groups"), 3, 9999, "pair")


def test_batches_of_labellings_are_longer_than_their_calls():
    for sizes, expected in ([20] * 30, 512), ([20_000], 512), ([300_000, 2_000_000], 29):
        sets = [SimpleNamespace(rows=np.broadcast_to(0, (n, 1))) for n in sizes]
        assert (
            Permutations([[(None, each)] for each in sets]).smallest_batch(local=True) == expected
        )


def test_labellings_without_balance_count_in_adjusted_pvalues():
    nulls, observed = [np.array([0.0, 1, 2, np.inf]), np.array([1.0, 3, 1, 1])], [2.5, 3.5]
    spread, at = zip(*map(standardized, nulls, observed, ["greater"] * 2), strict=True)
    assert joint_max_t(spread, at, True).tolist() == [0.25, 0.25]
    np.testing.assert_allclose(independent_max_t(spread, at, [True, True]), 0.25)
    assert standardized(np.full(3, np.inf), 1.0, "greater")[0].tolist() == [np.inf] * 3


def test_data_without_balance_are_refused(rare, many):
    rows, labels = rare
    with pytest.raises(ValueError, match=r"groups 0 - 1 has no balance: 3 of 5 topics \(0, 1, 2\)"):
        permutation_test(rows[[0, 1, 9, *range(2, 9)]], labels, statistic="balanced")
    rows, labels, _ = many
    rows = rows.copy()
    rows[labels != "c", 3] = 0
    with pytest.raises(ValueError, match="groups a - b has no weight in topic 3"):
        permutation_test(rows, labels, statistic="balanced")


def test_groups_that_differ_are_found_and_adjusted(many):
    rows, labels, _ = many
    rows = rows.copy()
    rows[labels == "c", :5] += 2
    for scope in "pair", "all":
        found = permutation_test(rows, labels, scope=scope, n_permutations=999, random_state=0)
        assert found.overall.pvalue == 0.001 == found.overall.smallest_pvalue
        by_pair = {test.groups: test for test in found.pairs}
        assert by_pair["b", "c"].pvalue_maxt < 0.01 < by_pair["a", "b"].pvalue_maxt
        for test in found.pairs:
            assert test.pvalue <= test.qvalue and test.pvalue <= test.pvalue_maxt + 1e-12
            assert test.interval[0] <= test.fraction <= test.interval[1]
    assert found.to_frame().groups.tolist() == ["all", "a - b", "a - c", "b - c"]
    assert re.fullmatch(
        r"<PermutationTest: \w+, 3 groups of 60 units, [\d,]+ labellings, p = .*; 3 pairs, .*>",
        repr(found),
    )
    assert "null" not in repr(found.overall)


def test_what_is_empty_is_left_out(many):
    rows, labels, _ = many
    rows = rows.copy()
    rows[labels == "a"] = 0
    with pytest.warns(
        UserWarning, match="10 of 60 samples are left out: .* all 0; with them groups a"
    ):
        found = permutation_test(rows, labels, n_permutations=9, alpha=0.5)
    assert found.overall.groups == ("b", "c") and found.pairs == ()


def test_few_units_are_warned_of():
    rows = np.random.default_rng(0).random((60, 3))
    units = np.arange(60) // 10
    with pytest.warns(UserWarning, match="units are so few that no p-value below 0.1"):
        found = permutation_test(rows, units % 2, units=units)
    assert found.overall.exact and found.overall.null.size == 20


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"statistic": "chi"}, "statistic='chi'"),
        ({"alternative": "greater", "statistic": "cosine"}, "smaller"),
        ({"scope": "one"}, "scope='one'"),
        ({"n_permutations": 0}, "n_permutations=0"),
        ({"alpha": 0}, "alpha=0"),
        ({"strata": [0] * 10 + [1] * 20 + [2] * 30}, "no label can be moved"),
        ({"groups": ["a"] * 60}, "two groups at least"),
        ({"groups": range(60)}, "a different label for each of 60 units"),
        ({"loadings": np.full((60, 2), -1.0)}, "non-negative"),
        ({"statistic": lambda tables: tables}, "one finite number for each table"),
    ],
)
def test_wrong_arguments_are_named(many, options, match):
    given = {"loadings": many[0], "groups": many[1]} | options
    with pytest.raises(ValueError, match=match):
        permutation_test(given.pop("loadings"), given.pop("groups"), **given)


@pytest.mark.nightly
def test_the_default_keeps_its_level_where_others_answer_to_spread():
    """A small group that is wide beside a narrow one with the same mean."""
    p = {"welch": [], "hellinger": [], "cosine": []}
    mean, labels = np.array([0.4, 0.3, 0.2, 0.1]), np.repeat([0, 1], [8, 40])
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = np.concatenate([rng.dirichlet(3 * mean, 8), rng.dirichlet(60 * mean, 40)])
        for statistic, found in p.items():
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                test = permutation_test(
                    rows, labels, statistic=statistic, n_permutations=99, random_state=seed,
                    n_threads=1,
                ).overall  # fmt: skip
            found.append(test.pvalue <= 0.05)
            warned = any("groups differ in spread" in str(each.message) for each in seen)
            assert warned == (statistic != "welch" and test.dispersion_pvalue <= 0.05)
        assert test.dispersion_pvalue <= 0.05 and test.dispersions[0] > 2 * test.dispersions[1]
    sizes = {name: np.mean(found) for name, found in p.items()}
    assert sizes["welch"] < 0.12 and sizes["hellinger"] > 0.5 and sizes["cosine"] > 0.2


@pytest.mark.nightly
def test_the_default_does_not_answer_to_samples_in_a_unit():
    p, labels = {"welch": [], "hellinger": []}, np.repeat([0, 1], [30, 900])
    units = np.concatenate([np.arange(30), 30 + np.arange(900) // 30])
    for seed in range(60):
        rows = np.random.default_rng(seed).dirichlet(np.ones(4) / 2, 930)
        for statistic, found in p.items():
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                test = permutation_test(
                    rows, labels, units=units, statistic=statistic, n_permutations=99,
                    random_state=seed, n_threads=1,
                )  # fmt: skip
            found.append(test.overall.pvalue <= 0.05)
            warned = [str(each.message) for each in seen if "square roots" in str(each.message)]
            assert len(warned) == (statistic == "hellinger")
    assert "group 0 have 1 samples on average, those of group 1 have 30" in warned[0]
    assert np.mean(p["welch"]) <= 0.12 and np.mean(p["hellinger"]) > 0.5


def test_groups_of_one_unit_take_the_variance_of_the_rest():
    rows, labels = np.random.default_rng(0).random((9, 3)), [0, 1, 1, 1, 1, 2, 2, 2, 2]
    found = permutation_test(rows, labels, alpha=0.9).overall
    null = [oracle.welch(rows, each) for each in oracle.all_labellings(labels, [0] * 9)]
    assert found.observed == pytest.approx(oracle.welch(rows, np.array(labels)), rel=1e-9)
    assert found.pvalue == pytest.approx(np.mean(np.array(null) >= found.observed - 1e-9))


def test_units_that_are_all_alike():
    found = permutation_test(np.ones((12, 3)), np.arange(12) % 2, n_permutations=99)
    assert found.overall.pvalue == 1 and found.overall.dispersion_pvalue == 1


@pytest.mark.parametrize("statistic", ["welch", *at_night("hellinger", "cosine")])
def test_labellings_that_tie_in_exact_arithmetic_tie(statistic):
    """Amounts of thirds and sevenths: rounded to 2^-31, sums that are equal were not."""
    compute, labels = getattr(oracle, statistic), np.array([0, 0, 1, 1, 0, 1])
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, 3, (6, 3)) / rng.choice([3.0, 7.0, 10.0], (6, 1)) + 1 / 3
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = permutation_test(
                rows, labels, scale="amounts", statistic=statistic, alpha=0.9
            ).overall
        null = np.array([compute(rows, each) for each in oracle.all_labellings(labels, [0] * 6)])
        sign = 1 if statistic == "cosine" else -1
        slack = 1e-11 * np.abs(null).max()
        assert found.pvalue == np.mean(sign * null <= sign * compute(rows, labels) + slack)


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
@pytest.mark.parametrize("scope", ["pair", "all"])
def test_adjusted_pvalues_are_at_least_the_plain_ones(many, scope, alternative):
    rows, labels, _ = many

    def skewed(tables):
        return np.exp(3 * spread(tables))

    for seed in range(5):
        found = permutation_test(
            rows, np.random.default_rng(seed).permutation(labels), statistic=skewed, scope=scope,
            alternative=alternative, n_permutations=99, random_state=seed,
        )  # fmt: skip
        for test in found.pairs:
            assert test.pvalue <= test.pvalue_maxt and test.pvalue <= test.qvalue


@pytest.mark.parametrize("factor", [1e-200, 1e300, *at_night(1e-160, 1e154)])
@pytest.mark.parametrize("statistic", ["welch", "hellinger", "cosine", "balanced"])
@pytest.mark.parametrize("scale", ["proportions", "amounts"])
def test_huge_and_tiny_amounts_are_those_scaled(many, statistic, factor, scale):
    rows, labels, _ = many
    options = {"statistic": statistic, "scale": scale, "n_permutations": 49}
    found, expected = (
        permutation_test(each, labels, random_state=0, **options).overall
        for each in (rows * factor, rows)
    )
    assert np.isfinite(found.observed) and found.pvalue == expected.pvalue


def test_what_is_not_a_number_never_wins():
    rows = np.zeros((20, 3))
    rows[:10, 0], rows[10:, 1] = 1e-250, 1.0
    options = {"statistic": "cosine", "n_permutations": 19}
    with pytest.raises(ValueError, match="'cosine' of groups 0 - 1 is not a finite number"):
        permutation_test(rows, np.repeat([0, 1], 10), scale="amounts", **options)
    shares = permutation_test(rows, np.arange(20) % 2, scale="proportions", **options)
    assert np.isfinite(shares.overall.observed)


def test_a_checkpoint_knows_its_statistic(many, tmp_path):
    rows, labels, _ = many
    options = {"n_permutations": 20, "random_state": 0, "checkpoint": tmp_path}
    permutation_test(rows, labels, statistic=lambda tables: tables[:, 0, 0], **options)
    other = {"statistic": lambda tables: tables[:, 0, 0].round() * 0 + tables[:, 0, 0]}
    for statistic in other["statistic"], lambda tables: tables[:, 0, 1]:
        with pytest.raises(CheckpointError, match="other"):
            permutation_test(rows, labels, statistic=statistic, resume=True, **options)
    again = {"statistic": lambda tables: tables[:, 0, 0], "resume": True}
    assert len(permutation_test(rows, labels, **again, **options).overall.null) == 20


def test_spread_is_that_of_residuals():
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.dirichlet(c * np.ones(3), n) for c, n in ((1, 4), (8, 5))])
    labels = np.repeat([0, 1], [4, 5])
    found = permutation_test(rows, labels).overall
    groups = [rows[labels == g] for g in (0, 1)]
    variances = [np.var(group, axis=0, ddof=1).sum() for group in groups]
    assert found.dispersions == pytest.approx(np.sqrt(variances))
    scaled = np.concatenate([(x - x.mean(axis=0)) * np.sqrt(len(x) / (len(x) - 1)) for x in groups])

    def between(variances):
        logs, weights = np.log(variances), np.array([3, 4])
        return weights @ (logs - weights @ logs / 7) ** 2

    null = [
        between([np.var(scaled[each == g], axis=0, ddof=1).sum() for g in (0, 1)])
        for each in oracle.all_labellings(labels, [0] * 9)
    ]
    assert found.dispersion_pvalue == np.mean(np.array(null) >= between(variances) - 1e-9)


def test_the_units_of_many_groups_are_shown_as_their_sum():
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    found = permutation_test(rows, np.repeat(list("abcdef"), 10), n_permutations=9, random_state=0)
    assert found.overall.shown_units == "60" and found.pairs[0].shown_units == "10 + 10"
