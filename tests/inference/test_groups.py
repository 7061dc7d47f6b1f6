"""Labels of samples: any type of them, units, strata, and how many labellings there are."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmfscale.inference.design.groups import (
    blocks_of,
    checked_design,
    checked_labels,
    groups_of_samples,
)
from nmfscale.inference.design.labellings import (
    log10_labellings,
    n_labellings,
    n_symmetries,
    smallest_pvalue,
    warn_few_labellings,
)

TEXT = ["b", "a", "b", "c"]


@pytest.mark.parametrize(
    "values",
    [
        TEXT,
        tuple(TEXT),
        np.array(TEXT),
        np.array(TEXT, object),
        np.array([x.encode() for x in TEXT]),
        pd.Series(TEXT, index=[9, 8, 7, 6]),
        pd.Series(TEXT, dtype="string"),
        pd.Categorical(TEXT),
        pd.Index(TEXT),
        [2, 1, 2, 3],
        np.array([2, 1, 2, 3], np.uint8),
        [2.5, 1.5, 2.5, 3.5],
        np.array(["2001", "2000", "2001", "2002"], "datetime64[Y]"),
    ],
)
def test_labels_of_any_type(values):
    found = checked_labels(values, 4, "groups")
    assert found.codes.tolist() == [1, 0, 1, 2]
    assert found.sizes.tolist() == [1, 2, 1]
    assert list(found.names) == sorted(found.names) and len(found.names) == 3


def test_categories_keep_their_order_and_empty_ones_go():
    values = pd.Series(pd.Categorical(TEXT, ["c", "none", "b", "a"]))
    found = checked_labels(values, 4, "groups")
    assert found.names == ("c", "b", "a") and found.codes.tolist() == [1, 2, 1, 0]


def test_labels_of_mixed_types_keep_the_order_of_appearance():
    assert checked_labels([3, "a", 3], 3, "groups").names == (3, "a")


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ("abcd", "one label for each of 4 samples"),
        (pd.DataFrame({"kind": [*"abab"]}), r"a single column, such as groups\['kind'\]\."),
        (None, "groups=None"),
        (["a", "b"], "groups has 2 labels, and there are 4 samples"),
        (np.zeros((4, 1)), r"groups has shape \(4, 1\).*single column"),
        (["a", None, "b", None], "2 missing labels, the first at sample 1"),
        (["a", np.nan, "b", "c"], "1 missing labels, the first at sample 1"),
        (pd.Series(["a", pd.NA, "b", "c"], dtype="string"), "the first at sample 1"),
        (pd.Categorical(["a", None, "b", "c"]), "the first at sample 1"),
        (np.array(["a", np.nan, "b", "nan"]), "groups, the text 'nan', has 2 missing labels"),
        (pd.Series(["a", pd.NA, "b", "c"]).astype(str), "text '<NA>', has 1 missing.*sample 1"),
        (pd.Categorical(["a", "b", "NaN", "b"]), "text 'NaN', has 1 missing labels"),
        (np.array([1.0, 2.0, np.nan, 4.0]), "the first at sample 2"),
        (np.array(["2001", "NaT", "2001", "2001"], "datetime64[Y]"), "the first at sample 1"),
        ([[1], [2], [3], [4]], "single column"),
        ([{1}, {2}, {3}, {4}], "labels must be texts"),
    ],
)
def test_wrong_labels_are_named(values, match):
    with pytest.raises(ValueError, match=match):
        checked_labels(values, 4, "groups")


def test_units_have_the_labels_of_their_samples():
    groups = checked_labels(["x", "y", "x", "y", "x"], 5, "groups")
    units, strata = ["u3", "u1", "u2", "u1", "u3"], [1, 0, 0, 0, 1]
    design = checked_design(groups, units, strata)
    assert design.unit_names == ("u1", "u2", "u3")
    assert design.groups.codes.tolist() == [1, 0, 0]
    assert design.strata.codes.tolist() == [0, 0, 1]
    assert design.sizes().tolist() == [[1, 1], [1, 0]]
    rows = np.arange(10.0).reshape(5, 2)
    assert design.sum_over_units(rows).tolist() == [[8, 10], [4, 5], [8, 10]]


def test_units_in_several_groups_are_split_by_group_and_become_subjects():
    groups = checked_labels(["x", "y", "x", "x"], 4, "groups")
    design = checked_design(groups, ["u", "u", "v", "u"])
    assert design.unit_names == (("u", "x"), ("u", "y"), ("v", "x"))
    assert design.of_sample.tolist() == [0, 1, 2, 0]
    assert design.groups.codes.tolist() == [0, 1, 0]
    assert design.subjects.names == ("u", "v") and design.subjects.codes.tolist() == [0, 0, 1]
    left = design.of(np.array([True, False, True, True]))
    assert left.subjects.codes.tolist() == [0, 1] and left.groups.names == ("x",)
    assert checked_design(groups, ["u", "u", "v", "v"], nested=False).groups is None
    with pytest.raises(
        ValueError, match="unit 'v' has samples in strata 1 and 2: .* or pass finer"
    ):
        checked_design(groups, ["u", "t", "v", "v"], [1, 1, 1, 2])


def test_subjects_of_several_groups_are_blocks_and_others_share_one_in_each_stratum():
    strata = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert blocks_of(strata, None).tolist() == strata.tolist()
    subjects = np.array([0, 0, 1, 2, 3, 3, 3, 4])  # 1 and 2 in one group each, and 4
    assert blocks_of(strata, subjects).tolist() == [2, 2, 0, 0, 3, 3, 3, 1]


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=2))
def test_labellings_are_counted(sizes):
    expected = 1
    for stratum in sizes:
        labels = np.repeat(np.arange(3), stratum)
        expected *= len(set(permutations(labels.tolist())))
    assert n_labellings(sizes) == expected
    assert log10_labellings(np.array(sizes)) == pytest.approx(np.log10(expected), abs=1e-9)


def test_the_smallest_pvalue():
    # six blogs, three each: what is left of 20 labellings when the two names mean the same
    assert n_symmetries([[3, 3]]) == 2
    assert smallest_pvalue(np.array([[3, 3]])) == pytest.approx(0.1)
    assert smallest_pvalue(np.array([[3, 3]]), symmetric=False) == pytest.approx(0.05)
    assert smallest_pvalue(np.array([[2, 1], [1, 2]])) == pytest.approx(1 / 9)
    assert 0 < smallest_pvalue(np.full((1, 5), 2000)) <= 1e-290
    assert smallest_pvalue(np.ones((1, 1000), int)) == pytest.approx(1)  # 1000! labellings, all one
    with pytest.warns(UserWarning, match=r"below 0.1 \(all\), 0.3 \(b\) is possible.*More units"):
        warn_few_labellings([0.1, 0.001, 0.3], 0.05, ["all", "a", "b"], "units")


AGES = [34, 51, 29, 62, 45, 38]


@pytest.mark.parametrize("ages", [AGES, np.array(AGES, float), pd.Series(AGES)])
def test_ages_are_no_groups(ages):
    with pytest.raises(ValueError, match=r"6 different numbers, such as 29.*regress_proportions"):
        groups_of_samples(ages, 6)


@pytest.mark.parametrize(
    "values",
    [
        pd.Categorical(AGES),
        [str(age) for age in AGES],
        [0, 1, 2, 3, 4, 5],  # clusters
        [1, 2, 3, 4, 5, 6],
        [0, 3, 7, 14, 28, 28],  # a few time points
        ["a", "none", "NA", "None", "", "b"],
    ],
)
def test_labels_that_are_groups(values):
    assert len(groups_of_samples(values, 6)) == 6
