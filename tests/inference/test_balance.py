"""Balance of tables: the identities of Sinkhorn-Knopp, zeros, and what has no balance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle import alternate_normalisation, has_balance

from nmfscale import balance
from nmfscale.inference.groups.balance import (
    BALANCED,
    EMPTY,
    INFEASIBLE,
    LIMIT,
    balance_tables,
)
from nmfscale.inference.groups.feasible import inner_support, zeros_to_spare

shapes = st.tuples(st.integers(1, 12), st.integers(1, 6))
positive = shapes.flatmap(lambda shape: arrays(float, shape, elements=st.floats(1e-3, 1e3)))
sparse = shapes.flatmap(
    lambda shape: arrays(float, shape, elements=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
)


def norms(table, axis):
    return np.sqrt((table**2).sum(axis=axis))


@given(positive)
def test_rows_and_columns_have_the_same_norm(table):
    T, R = table.shape
    balanced = balance(table)
    np.testing.assert_allclose(norms(balanced, 0), 1, rtol=1e-12)
    np.testing.assert_allclose(norms(balanced, 1), np.sqrt(R / T), rtol=1e-12)
    # the same table up to scales of rows and columns: ratios of ratios are kept
    ratios = balanced / table
    np.testing.assert_allclose(ratios * ratios[0, 0], np.outer(ratios[:, 0], ratios[0]), rtol=1e-10)


@given(positive, st.integers(0, 1000))
def test_scales_of_rows_and_columns_do_not_matter(table, seed):
    rng = np.random.default_rng(seed)
    rows, columns = (np.exp2(rng.integers(-30, 30, n)) * rng.random(n) for n in table.shape)
    scaled = table * rows[:, None] * columns
    np.testing.assert_allclose(balance(scaled), balance(table), atol=1e-9)


@given(shapes, st.integers(0, 1000))
def test_collinear_columns_are_neutral(shape, seed):
    rng = np.random.default_rng(seed)
    table = np.outer(*(rng.random(n) + 0.01 for n in shape))
    np.testing.assert_allclose(balance(table), 1 / np.sqrt(shape[0]), rtol=1e-12)


@pytest.mark.parametrize("shape", [(100, 5), (8, 3), (2, 6), (5, 5)])
def test_is_the_limit_of_normalising_in_turn(shape):
    table = np.random.default_rng(0).gamma(0.5, size=shape) + 0.01
    np.testing.assert_allclose(balance(table), alternate_normalisation(table), rtol=1e-9)


def test_full_support_takes_ten_steps_at_most():
    rng = np.random.default_rng(1)
    tables = rng.gamma(0.5, size=(300, 100, 5)) + 1e-3
    tables[100:200][rng.random((100, 100, 5)) < 0.6] = 1e-6
    tables[200:] = np.exp(6 * rng.normal(size=(100, 100, 5)))
    found = balance_tables(tables)
    assert (found.status == BALANCED).all() and found.n_steps.max() <= 10
    np.testing.assert_allclose(norms(found.tables, 1), 1, rtol=1e-12)


@pytest.mark.parametrize("least", [1e-12, 1e-200])
def test_entries_next_to_zero_are_not_zero(least):
    balanced = balance([[1, 1], [least, 1]])
    np.testing.assert_allclose(norms(balanced, 1), 1, rtol=1e-12)
    assert 0 < balanced[1, 0] < 2 * least**0.5


def test_a_table_of_a_stack_is_what_it_is_alone():
    tables = np.random.default_rng(2).gamma(0.3, size=(2, 4, 7, 3))
    together = balance(tables)
    for place in np.ndindex(2, 4):
        assert (together[place] == balance(tables[place])).all()


@given(sparse)
def test_there_is_a_balance_where_no_set_of_groups_has_too_many_topics(table):
    (found,) = balance_tables(table[None]).status
    if not (table.any(axis=0).all() and table.any(axis=1).all()):
        assert found == EMPTY
        return
    assert (found != INFEASIBLE) == has_balance(table > 0)
    if zeros_to_spare(table[None] > 0)[0]:
        assert found == BALANCED and (inner_support(table > 0) == (table > 0)).all()


@settings(max_examples=50)
@given(sparse)
def test_limits_are_those_of_normalising_in_turn(table):
    found = balance_tables(table[None])
    if found.status[0] == LIMIT:  # reached as slowly as 1 / sweeps
        expected = alternate_normalisation(table, sweeps=3000)
        np.testing.assert_allclose(found.tables[0], expected, atol=0.05)
        assert ((found.tables[0] == 0) & (table > 0)).any()
        np.testing.assert_allclose(norms(found.tables[0], 0), 1, rtol=1e-12)


def test_what_has_no_balance_is_named():
    table = [[1, 0], [2, 0], [1, 1]]
    with pytest.raises(ValueError, match=r"2 of 3 topics \(0, 1\) .* 1 of 2 groups \(0\)"):
        balance(table)
    with pytest.raises(ValueError, match=r"table\[1, 0\] has no balance"):
        balance([[np.ones((3, 2))], [table]])


def test_a_limit_is_warned_of():
    with pytest.warns(UserWarning, match="weight from topic 0 in group 1"):
        balanced = balance([[1, 1], [0, 1]])
    np.testing.assert_allclose(balanced, np.eye(2), atol=1e-15)


def test_empty_lines_are_refused_or_dropped():
    table = np.array([[0, 0, 0], [1, 0, 2], [2, 0, 1.0]])
    with pytest.raises(ValueError, match="no weight in topic 0"):
        balance(table)
    with pytest.raises(ValueError, match="no weight in group 1"):
        balance(table[1:])
    balanced = balance(table, zeros="drop")
    expected = np.full((3, 3), np.nan)
    expected[1:, ::2] = balance(table[1:, ::2])
    np.testing.assert_array_equal(balanced, expected)


def test_frames_keep_their_names():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame([[1, 2], [3, 1]], ["a", "b"], ["x", "y"])
    pd.testing.assert_frame_equal(
        balance(table), pd.DataFrame(balance(table.to_numpy()), ["a", "b"], ["x", "y"])
    )
    table.loc["a"] = 0
    with pytest.raises(ValueError, match="no weight in topic a"):
        balance(table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1, 2], r"shape \(2,\)"),
        ([[1, -1]], r"table\[0, 1\] is -1.0"),
        ([[1, np.nan]], r"table\[0, 1\] is nan"),
        ([[1], [1, 2]], "rows of one length"),
        ([["a"]], "numbers"),
    ],
)
def test_bad_tables_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        balance(table)


def test_bad_words_are_refused():
    with pytest.raises(ValueError, match="zeros='keep'"):
        balance([[1]], zeros="keep")
