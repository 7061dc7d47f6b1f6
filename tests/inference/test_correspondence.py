"""Correspondence analysis: the decomposition of NumPy, and its identities."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chi2_contingency

import nmfscale
from nmfscale import TopicModel, load_result
from nmfscale.datasets import simulate_topic_counts
from nmfscale.experimental import correspondence_analysis

RNG = np.random.default_rng(0)


def sample(T, R):
    """Return amounts of topics in samples, groups, and the table of their sums."""
    amounts = RNG.gamma(0.7, size=(40 * R, T)) * RNG.gamma(2.0, size=T)
    groups = np.arange(40 * R) % R
    amounts += 2 * RNG.random((R, T))[groups] ** 3
    return amounts, groups, np.stack([amounts[groups == r].sum(axis=0) for r in range(R)], axis=1)


def oracle(table):
    """Return principal coordinates and inertias by the singular value decomposition of NumPy."""
    P = table / table.sum()
    r, c = P.sum(axis=1), P.sum(axis=0)
    U, D, V = np.linalg.svd((P - np.outer(r, c)) / np.sqrt(np.outer(r, c)), full_matrices=False)
    n = min(table.shape) - 1
    U, D, V = U[:, :n], D[:n], V[:n].T
    return U * D / np.sqrt(r)[:, None], V * D / np.sqrt(c)[:, None], D**2


@pytest.mark.parametrize("shape", [(7, 4), (3, 6), (5, 5), (4, 2)])
def test_coordinates_are_those_of_numpy_up_to_the_sign_of_axes(shape):
    amounts, groups, table = sample(*shape)
    found = correspondence_analysis(amounts, groups, scale="amounts")
    F, G, inertias = oracle(table)
    assert_allclose(found.table, table, rtol=1e-12)
    assert_allclose(found.inertias, inertias, rtol=1e-9)
    signs = np.sign((found.topic_coordinates * F).sum(axis=0))
    assert_allclose(found.topic_coordinates * signs, F, atol=1e-10)
    assert_allclose(found.group_coordinates * signs, G, atol=1e-10)


def test_identities():
    amounts, groups, table = sample(6, 4)
    found = correspondence_analysis(amounts, groups, scale="amounts")
    chi_square = chi2_contingency(table, correction=False).statistic
    assert_allclose(found.total_inertia, chi_square / table.sum())
    assert_allclose(found.inertias.sum(), found.total_inertia)
    r, c = found.topic_masses, found.group_masses
    F, G = found.topic_coordinates, found.group_coordinates
    # all axes together restore the table, and centres and inertias are those of the masses
    assert_allclose(np.outer(r, c) * (1 + (F / np.sqrt(found.inertias)) @ G.T), table / table.sum())
    for masses, points in ((r, F), (c, G)):
        assert_allclose(masses @ points, 0, atol=1e-12)
        assert_allclose((masses[:, None] * points).T @ points, np.diag(found.inertias), atol=1e-12)
    # distances are chi-square distances of profiles, and topics are at the centres of groups
    profiles = table / table.sum(axis=1, keepdims=True)
    distances = ((profiles[:, None] - profiles) ** 2 / c).sum(axis=2)
    assert_allclose(((F[:, None] - F) ** 2).sum(axis=2), distances, atol=1e-12)
    assert_allclose(profiles @ G / np.sqrt(found.inertias), F, atol=1e-12)
    for of in "topics", "groups":
        assert_allclose(found.contributions(of).sum(axis=0), 1)
        assert_allclose(found.cosines(of).sum(axis=1), 1)
    frame = found.to_frame()
    assert_allclose(frame.groupby("kind").inertia.sum(), found.total_inertia)
    assert_array_equal(frame[["axis_1", "axis_3"]], np.vstack([F, G])[:, [0, 2]])
    assert frame.name.tolist() == [*range(6), *range(4)]


def test_equal_groups_have_no_axes():
    shares = np.tile([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]], (20, 1))
    found = correspondence_analysis(shares, np.repeat(["a", "b"], 20))
    assert found.inertias.size == 0 and found.total_inertia < 1e-25
    assert len(found.to_frame()) == 5 and "axes explain" not in repr(found)


def test_the_table_is_that_of_balanced_weights_and_is_matched_by_name(tmp_path):
    X, _ = simulate_topic_counts(120, 30, 4, random_state=0)
    names = [f"s{i}" for i in range(120)]
    model = TopicModel(4, random_state=0).fit(pd.DataFrame(X.toarray(), names))
    groups = pd.Series(np.arange(120) % 3, names)
    units = np.arange(120) // 6 * 3 + groups.to_numpy()
    found = correspondence_analysis(model, groups.sample(frac=1, random_state=0), units=units)
    with pytest.warns(UserWarning, match="fewer than 50 units"):
        weights = nmfscale.bootstrap_weights(model, groups, units=units, n_replicates=2)
    assert_allclose(nmfscale.balance(found.table), weights.weights)
    assert_allclose(found.table.sum(), len(np.unique(units)))
    found.save(tmp_path / "result.h5")
    again = load_result(tmp_path / "result.h5")
    assert_array_equal(again.topic_coordinates, found.topic_coordinates)
    assert repr(again) == repr(found)


def test_what_has_no_place_is_refused():
    shares = np.random.default_rng(0).dirichlet([1, 1, 1], size=40)
    with pytest.raises(ValueError, match="there is a single group, 'a': two are needed"):
        correspondence_analysis(shares, ["a"] * 40)
    with pytest.raises(ValueError, match="there is a single topic, 0: two are needed"):
        correspondence_analysis(shares[:, :1], np.arange(40) % 2)
    shares[:, 1] = 0
    with pytest.raises(ValueError, match="topic 1 has no weight: leave its column of the loadings"):
        correspondence_analysis(shares, np.arange(40) % 2)
    with pytest.raises(ValueError, match="equal_weights='cells' is not one of"):
        correspondence_analysis(shares, np.arange(40) % 2, equal_weights="cells")
