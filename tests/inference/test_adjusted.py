"""permutation_test beside covariates (Freedman and Lane), and trends over ordered groups."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from night import at_night

from nmfscale import load_result, permutation_test
from nmfscale.engine.checkpoint import CheckpointError

FEW = {"n_permutations": 60, "random_state": 0}


@pytest.fixture(scope="module")
def doses():
    """Proportions of 30 units, three groups and their ages; older units have higher groups."""
    rng = np.random.default_rng(1)
    age = rng.normal(size=30)
    groups = np.digitize(age + rng.normal(size=30), [-0.5, 0.5])
    parameters = np.array([4.0, 3, 2]) * np.exp(0.7 * age[:, None] * [1, 0, -1])
    return np.array([rng.dirichlet(of_unit) for of_unit in parameters]), groups, age


def hc3(X, Y):
    """Coefficients (P, T) and their HC3 variances."""
    inverse = np.linalg.inv(X.T @ X)
    residuals = Y - X @ inverse @ X.T @ Y
    leverage = np.einsum("ij,jk,ik->i", X, inverse, X)
    squares = (residuals / (1 - leverage)[:, None]) ** 2
    return inverse @ X.T @ Y, ((inverse @ X.T) ** 2) @ squares


def test_pvalues_are_those_of_permuted_residuals():
    rng = np.random.default_rng(0)
    rows, age, groups = (
        rng.dirichlet([2, 2, 2], 6),
        rng.normal(size=6),
        np.array([0, 1, 0, 1, 1, 0]),
    )
    found = permutation_test(rows, groups, covariates={"age": age}, alpha=0.9)
    reduced = np.column_stack([np.ones(6), age - age.mean()])
    full = np.column_stack([reduced, groups])
    fitted = reduced @ np.linalg.lstsq(reduced, rows, rcond=None)[0]
    null = []
    for order in permutations(range(6)):
        b, v = hc3(full, fitted + (rows - fitted)[list(order)])
        null.append((b[2] ** 2).sum() / ((b[2] ** 2).sum() + v[2].sum()))
    # leverages of the model whose means are subtracted lack the 1/6 of the mean
    assert found.overall.exact and found.overall.null.size == 720
    assert found.covariates == ("age",) and "welch beside age, 2 groups" in repr(found)
    assert found.overall.pvalue == pytest.approx(
        np.mean(np.array(null) >= null[0] - 1e-12), abs=0.02
    )


def test_the_same_bits_beside_covariates(doses, tmp_path):
    rows, groups, age = doses

    def nulls(**options):
        found = permutation_test(rows, groups, covariates={"age": age}, random_state=4, **options)
        return np.array([test.null for test in found.tests])

    expected = nulls(n_permutations=300, n_threads=1)
    kept = {"checkpoint": tmp_path, "resume": True}
    nulls(n_permutations=100, **kept)
    for options in {"n_threads": 3, "batch_size": 7}, kept:
        np.testing.assert_array_equal(nulls(n_permutations=300, **options), expected)
    with pytest.raises(CheckpointError, match="other"):
        permutation_test(rows, groups, covariates={"age": age**2}, **FEW, **kept)


def test_a_covariate_takes_its_differences_from_groups(doses):
    rows, groups, age = doses
    high = (groups == 2).astype(int)
    assert permutation_test(rows, high, **FEW).overall.pvalue <= 0.02
    assert permutation_test(rows, high, covariates=age, **FEW).overall.pvalue > 0.05
    rows = rows + 0.5 * high[:, None] * np.array([0, 1, 0])
    assert permutation_test(rows, high, covariates=age, **FEW).overall.pvalue <= 0.02


def test_covariates_that_blocks_explain_change_nothing(doses):
    rows, _, age = doses
    donors, visits = np.arange(30) // 2, np.arange(30) % 2
    found, alone = (
        permutation_test(rows, visits, units=donors, covariates=of, **FEW).overall
        for of in ({"age": age[donors], "batch": (donors % 3).astype(str)}, {"age": age[donors]})
    )
    np.testing.assert_array_equal(found.null, alone.null)
    # spread is that of donors, not of deviations from the mean of a donor
    assert found.dispersions == pytest.approx(
        [np.sqrt(rows[of::2].var(axis=0, ddof=1).sum()) for of in (0, 1)], rel=0.1
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"statistic": "cosine"}, "'cosine' cannot be adjusted for covariates"),
        ({"scope": "all"}, "scope='all' is not for covariates="),
        ({"units": np.arange(30) // 6}, "covariates: .age. differs between samples of a unit"),
        ({"covariates": {"high": np.arange(30) % 3 == 2}}, "groups 0 - 1 - 2 beside .*collinear"),
        ({"covariates": {"age": [1.0, 2.0]}}, r"shape \(2,\)"),
    ],
)
def test_what_cannot_be_adjusted_is_named(doses, options, match):
    rows, _, age = doses
    with pytest.raises(ValueError, match=match):
        permutation_test(rows, np.arange(30) % 3, **{"covariates": {"age": age}} | options)


def test_a_trend_is_that_of_scores_and_needs_an_order(doses, tmp_path):
    rows, groups, age = doses
    names = np.array(["low", "mid", "high"])[groups]
    ordered = pd.Categorical(names, ["low", "mid", "high"], ordered=True)
    found = permutation_test(rows, ordered, statistic="trend", **FEW)
    by_number = permutation_test(rows, groups * 10, statistic="trend", **FEW)
    np.testing.assert_allclose(found.overall.null, by_number.overall.null, rtol=1e-9)
    assert found.overall.groups == ("low", "mid", "high")
    # a pair has no other trend than the difference
    welch = permutation_test(rows, ordered, **FEW)
    np.testing.assert_allclose(found.pairs[1].null, welch.pairs[1].null, rtol=1e-9)
    with pytest.raises(ValueError, match="the order of 'high', 'low', 'mid' is not known"):
        permutation_test(rows, names, statistic="trend")
    beside = permutation_test(rows, ordered, statistic="trend", covariates={"age": age}, **FEW)
    assert found.overall.pvalue < 0.02 < beside.overall.pvalue
    beside.save(tmp_path / "trend.h5")
    assert load_result(tmp_path / "trend.h5").covariates == ("age",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["covariate", *at_night("trend")])
def test_the_level_holds_where_a_covariate_differs_between_groups_or_spread(kind):
    """Without the covariate the test finds what belongs to it."""
    n_sets, mean, p = 60, np.array([0.4, 0.3, 0.2, 0.1]), []
    options = {"n_permutations": 59, "n_threads": 1}
    for seed in range(n_sets):
        rng = np.random.default_rng(seed)
        if kind == "trend":
            sizes, spread = (6, 10, 20), (3, 10, 30)
            rows = [rng.dirichlet(c * mean, n) for c, n in zip(spread, sizes, strict=True)]
            groups = np.repeat([0, 1, 2], sizes)
            test = permutation_test(
                np.concatenate(rows), groups, statistic="trend", random_state=seed, **options
            )
            p.append((test.overall.pvalue, 0.0))  # no test without a covariate
            continue
        age = rng.normal(size=40)
        groups = (age + rng.normal(size=40) > 0).astype(int)
        parameters = 8 * mean * np.exp(0.6 * age[:, None] * [1, 0, 0, -1])
        rows = np.array([rng.dirichlet(of_unit) for of_unit in parameters])
        adjusted, alone = (
            permutation_test(rows, groups, covariates=of, random_state=seed, **options).overall
            for of in ({"age": age}, None)
        )
        p.append((adjusted.pvalue, alone.pvalue))
    size, naive = np.mean(np.array(p) <= 0.05, axis=0)
    assert size <= 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / n_sets) and naive > 0.3
