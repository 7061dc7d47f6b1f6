"""k-means and singular vectors of starts, held to scikit-learn and LAPACK."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.cluster import KMeans

from nmfscale.methods.starts.k_means import k_means
from nmfscale.methods.starts.singular_vectors import singular_vectors
from nmfscale.readers.open import as_counts


@pytest.mark.parametrize("weighted", [False, True])
def test_k_means_is_that_of_scikit_learn(weighted):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(400, 3)) + 4 * rng.integers(0, 3, size=(400, 1))
    weights = rng.gamma(2, size=400) if weighted else None
    for n_clusters in (1, 4, 30):
        found = k_means(
            points, n_clusters, np.random.RandomState(1), weights=weights, n_init=2, n_threads=2
        )
        theirs = KMeans(n_clusters, n_init=2, max_iter=100, random_state=np.random.RandomState(1))
        theirs.fit(points, sample_weight=weights)
        np.testing.assert_allclose(found.centers, theirs.cluster_centers_, rtol=1e-9)
        np.testing.assert_array_equal(found.labels, theirs.labels_)
        assert found.inertia == pytest.approx(theirs.inertia_, rel=1e-9)


def test_k_means_of_fewer_distinct_points_than_clusters():
    points = np.repeat([[0.0, 1.0], [2.0, 3.0]], 5, axis=0)
    found = k_means(points, 4, np.random.RandomState(0))
    np.testing.assert_array_equal(found.centers[found.labels], points)
    assert found.inertia == 0


@pytest.mark.parametrize("shape", [(90, 50), (50, 90), (12, 200)])
def test_singular_vectors(shape):
    rng = np.random.default_rng(0)
    means = rng.gamma(0.3, size=(shape[0], 4)) @ rng.gamma(0.3, size=(4, shape[1])) * 20
    X = rng.poisson(means)
    U, values, V = singular_vectors(as_counts(sp.csr_array(X)), 4)
    expected = np.linalg.svd(X.astype(float), compute_uv=False)[:4]
    np.testing.assert_allclose(values, expected, rtol=1e-3)
    np.testing.assert_allclose(values[:3], expected[:3], rtol=1e-6)
    np.testing.assert_allclose(U.T @ U, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(X.T @ U, V * values, atol=1e-9 * values[0])
    assert (U[np.abs(U).argmax(axis=0), np.arange(4)] > 0).all()
    for n_threads in (1, 3):
        again = singular_vectors(as_counts(X), 4, n_threads=n_threads)
        assert all((a == b).all() for a, b in zip(again, (U, values, V), strict=True))


def test_singular_vectors_of_counts_of_a_smaller_rank():
    X = np.outer([1, 2, 3, 0], [4, 0, 5, 1, 7])
    U, values, V = singular_vectors(as_counts(X), 6)
    assert U.shape == (4, 4)
    assert V.shape == (5, 4)
    np.testing.assert_allclose(values[0], np.linalg.norm(X), rtol=1e-14)
    assert (values[1:] < 1e-6 * values[0]).all()
    np.testing.assert_allclose(values[0] * np.outer(U[:, 0], V[:, 0]), X, atol=1e-12)
    assert (V[1] == 0).all()
