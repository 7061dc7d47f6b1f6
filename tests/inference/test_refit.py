"""Bootstrap of whole fits: the right weights, matched topics, the same bits everywhere."""

import numpy as np
import pytest
from oracle import draws_below
from sklearn.base import clone

from nmfscale import LDA, PoissonNMF, TopicModel, bootstrap_fit, simulate_topic_counts
from nmfscale.inference.refit import match_topics
from nmfscale.inference.seeds import child


@pytest.fixture(scope="module")
def data():
    X, truth = simulate_topic_counts(90, 20, 3, random_state=0)
    return X, truth, TopicModel(3, random_state=0, n_threads=1).fit(X)


def test_a_replicate_is_a_fit_of_copied_samples(data):
    X, _, model = data
    units = np.arange(90) // 2
    found = bootstrap_fit(model, X, units=units, n_replicates=1, random_state=4, samples=[3])
    (drawn,) = draws_below(child(np.random.SeedSequence(4), 0).generate_state(4, np.uint64), [45])
    rows = np.concatenate([np.flatnonzero(units == u) for u in drawn])
    copied = TopicModel(3, tol=1e-6).fit(
        X[rows], L=model.loadings_[rows], F=model.components_.T * model.scales_
    )
    np.testing.assert_allclose(found.components.replicates[0], copied.components_, atol=2e-3)
    assert found.n_reordered == 0 and found.proportions.estimate.shape == (1, 3)


def test_threads_batches_and_resuming_do_not_change_a_bit(data, tmp_path):
    X, _, model = data
    groups = np.arange(90) % 2
    options = {"groups": groups, "random_state": 1}
    expected = bootstrap_fit(model, X, n_replicates=6, n_threads=1, **options)
    for n in 2, 6:
        found = bootstrap_fit(
            model, X, n_replicates=n, n_threads=2, checkpoint=tmp_path / "job", resume=True,
            **options,
        )  # fmt: skip
    assert (found.components.replicates == expected.components.replicates).all()
    assert (found.group_means.lower == expected.group_means.lower).all()
    np.testing.assert_allclose(expected.group_means.estimate.sum(axis=0), 1)
    assert len(found.to_frame("group_means")) == 6


def test_topics_are_matched_whatever_their_order():
    F = np.random.default_rng(0).random((9, 4))
    order = np.array([2, 0, 3, 1])
    match, cosines = match_topics(F, F[:, order] * 3)
    np.testing.assert_array_equal(order[match], np.arange(4))
    np.testing.assert_allclose(cosines, 1)


def test_an_estimator_is_fitted_first_and_not_changed(data):
    estimator = PoissonNMF(2, random_state=0)
    found = bootstrap_fit(estimator, data[0], n_replicates=2, random_state=0)
    assert not hasattr(estimator, "components_")
    np.testing.assert_allclose(found.components.estimate.sum(axis=1), 1)


@pytest.mark.filterwarnings("error")
def test_fits_that_ran_out_of_iterations_are_warned_of_and_no_others(data):
    X, _, model = data
    on_plateau = clone(model).set_params(tol=1e-9, gain_tol=1e-4).fit(X)
    found = bootstrap_fit(on_plateau, X, n_replicates=3, random_state=0)
    assert not found.converged.any() and (found.n_iter < model.max_iter).all()
    with pytest.warns(UserWarning, match="3 of 3 replicates ran out of iterations: increase max_"):
        bootstrap_fit(model.set_params(max_iter=2), X, n_replicates=3, random_state=0)
    model.set_params(max_iter=1000)


def test_what_cannot_be_done_is_refused(data):
    X, _, model = data
    with pytest.raises(ValueError, match="estimator is a LDA"):
        bootstrap_fit(LDA(2), X)
    with pytest.raises(ValueError, match="was fitted to counts of shape"):
        bootstrap_fit(model, X[:50])
    with pytest.raises(ValueError, match="features must be whole numbers from 0 to 19"):
        bootstrap_fit(model, X, features=[20])
    found = bootstrap_fit(model, X, n_replicates=2, features=[1])
    with pytest.raises(ValueError, match="need groups="):
        found.to_frame("group_means")
