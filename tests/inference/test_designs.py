"""Designs: donors in several groups, pairs, time points, strata that are donors; sums of topics."""

import warnings

import numpy as np
import pytest

from nmfscale import permutation_test
from nmfscale.inference.design.groups import checked_labels
from nmfscale.inference.design.loadings import topics_of_samples
from nmfscale.inference.design.units import Units, warn_of_rare_topics

MEAN = np.array([0.4, 0.3, 0.2, 0.1])


def cells_of_donors(rng, has, n_cells=4, between=6.0, response=20.0):
    """Proportions of cells of donors that respond to each condition in their own way.

    `has` (n_donors, n_groups) is where a donor has cells. Groups have equal means. Returns
    proportions, groups and donors of cells.
    """
    rows, groups, donors = [], [], []
    for donor, group in np.argwhere(has).tolist():
        if donor not in donors:
            of_donor = rng.dirichlet(between * MEAN)
        of_visit = rng.dirichlet(response * of_donor + 0.01)
        rows.append(rng.dirichlet(50 * of_visit + 0.01, n_cells))
        groups += [group] * n_cells
        donors += [donor] * n_cells
    return np.concatenate(rows), np.array(groups), np.array(donors)


DESIGNS = {
    "6 donors in both": np.ones((6, 2), bool),
    "8 in both, 4 + 4 in one": np.array([[1, 1]] * 8 + [[1, 0]] * 4 + [[0, 1]] * 4, bool),
    "10 at three time points, some missed": np.array(
        [[1, 1, 1]] * 4 + [[1, 1, 0], [0, 1, 1], [1, 0, 1]] * 2, bool
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_donors_in_several_groups_keep_the_level(design):
    n_sets, p = 60, []
    for seed in range(n_sets):
        rng = np.random.default_rng(seed)
        rows, groups, donors = cells_of_donors(rng, DESIGNS[design])
        found = permutation_test(
            rows, groups, units=donors, n_permutations=59, random_state=seed, n_threads=1
        )
        p.append(found.overall.pvalue)
    assert found.n_crossed == (DESIGNS[design].sum(axis=1) > 1).sum()
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / n_sets)
    # not by never rejecting: 6 donors have 32 labellings that differ
    assert np.mean(np.array(p) <= 0.25) >= 0.05


def test_strata_of_cells_are_warned_of_and_units_alone_are_right():
    rng = np.random.default_rng(0)
    rejected = []
    for seed in range(8):
        rows, groups, donors = cells_of_donors(rng, np.ones((10, 2), bool), n_cells=20)
        with pytest.warns(UserWarning, match="20 samples in a stratum .* pass units=donor alone"):
            found = permutation_test(
                rows, groups, strata=donors, n_permutations=19, random_state=seed, n_threads=1
            )
        rejected.append(found.overall.pvalue <= 0.05)
    assert np.mean(rejected) > 0.5
    options = {"n_permutations": 50, "random_state": 0}
    mine = permutation_test(rows, groups, units=donors, **options).overall
    by_hand = permutation_test(
        rows, groups, units=donors * 2 + groups, strata=donors, **options
    ).overall
    np.testing.assert_array_equal(mine.null, by_hand.null)
    assert mine.n_units == (10, 10)
    # the spread of a group is that of its donors, not of deviations from the donor's mean
    means = np.array(
        [[rows[(donors == d) & (groups == g)].mean(axis=0) for d in range(10)] for g in (0, 1)]
    )
    spread = np.sqrt(means.var(axis=1, ddof=1).sum(axis=1))
    np.testing.assert_allclose(mine.dispersions, spread, rtol=1e-6)


def test_a_shift_within_donors_is_found_where_donors_differ_more():
    rows, groups, donors = cells_of_donors(
        np.random.default_rng(1), DESIGNS["8 in both, 4 + 4 in one"], between=2.0, response=300.0
    )
    rows[groups == 1, 3] += 0.1
    assert permutation_test(rows, groups, units=donors, random_state=0).overall.pvalue <= 0.01
    apart = permutation_test(rows, groups, units=donors * 2 + groups, random_state=0)
    assert apart.overall.pvalue > 0.05


def test_donors_that_nothing_can_be_compared_with_are_left_out():
    rows, groups, donors = cells_of_donors(
        np.random.default_rng(1), np.array([[1, 1]] * 6 + [[1, 0]] * 3, bool)
    )
    options = {"n_permutations": 99, "random_state": 0}
    with pytest.warns(UserWarning, match="3 units have samples in group 0 only, beside 6 in sev"):
        found = permutation_test(rows, groups, units=donors, **options)
    both = donors < 6
    expected = permutation_test(rows[both], groups[both], units=donors[both], **options)
    np.testing.assert_array_equal(found.overall.null, expected.overall.null)
    assert found.overall.n_units == (6, 6) and "6 of them in several groups" in repr(found)


def test_a_pair_compares_donors_in_both_within_them_and_others_with_each_other():
    has = np.array([[1, 1, 0]] * 4 + [[0, 1, 1]] * 4 + [[1, 0, 1]] * 4, bool)
    rows, groups, donors = cells_of_donors(np.random.default_rng(1), has)
    units = Units.of(rows, groups, donors, None)
    pair = units.at(np.isin(units.groups.codes, (0, 1)))
    # donors 0 to 3 are blocks, the units of donors 4 to 11 are one
    assert np.sort(np.bincount(pair.blocks)).tolist() == [2, 2, 2, 2, 8]


def test_strata_beside_donors_hold_whole_donors():
    rows, groups, donors = cells_of_donors(np.random.default_rng(1), np.ones((8, 2), bool))
    batch = donors % 2
    options = {"units": donors, "n_permutations": 20, "random_state": 0}
    mine, alone = (
        permutation_test(rows, groups, strata=strata, **options).overall for strata in (batch, None)
    )
    assert mine.observed == alone.observed
    with pytest.raises(ValueError, match="unit 0 has samples in strata 0 and 1: .*one stratum"):
        permutation_test(rows, groups, strata=groups, **options)


def test_sums_of_topics_take_their_place():
    rows = np.random.default_rng(0).dirichlet(np.ones(4), 20)
    topics = topics_of_samples(rows, topic_names=list("abcd"), topic_sums={"lymphoid": ["b", 3]})
    assert topics.topic_names == ("lymphoid", "a", "c")
    np.testing.assert_allclose(
        topics.rows, np.column_stack([rows[:, 1] + rows[:, 3], rows[:, [0, 2]]])
    )
    groups = np.arange(20) % 2
    found = permutation_test(rows, groups, topic_sums={"x": [1, 3]}, n_permutations=9, alpha=0.5)
    of_sums = permutation_test(topics.rows, groups, n_permutations=9, alpha=0.5)
    assert found.overall.observed == of_sums.overall.observed


@pytest.mark.parametrize(
    ("sums", "match"),
    [
        ([1, 2], "a dict of names"),
        ({"x": "1"}, r"topic_sums\['x'\]='1': a list of topics"),
        ({"x": []}, "a list of topics"),
        ({"x": [7]}, r"topic_sums\['x'\]: 7 is not a topic"),
        ({"x": [1, 2], "y": [2]}, "topic 2 occurs 2 times"),
        ({0: [1, 2]}, "different names"),
        ({"x": [0, 1, 2, 3]}, "one sum of all topics"),
    ],
)
def test_wrong_sums_of_topics_are_named(sums, match):
    with pytest.raises(ValueError, match=match):
        topics_of_samples(np.ones((5, 4)), topic_sums=sums)


def test_topics_that_few_units_have_are_warned_of():
    rows, groups = np.full((40, 3), 1.0), checked_labels(np.arange(40) % 2, 40, "groups")
    rows[::2, 2] = np.arange(20) < 4
    with pytest.warns(
        UserWarning, match="topic 'rare' in 4 of 20 units of group 0. With fewer than 10"
    ):
        warn_of_rare_topics(rows, groups, ("a", "b", "rare"), "units")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_rare_topics(rows[:, :2], groups, ("a", "b"), "units")
