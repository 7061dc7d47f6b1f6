"""Topics that many fits have in common: clusters, and what is known of them."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import nmfscale

GENES = np.array([f"gene {j}" for j in range(150)], object)
N_DONORS, N_SHARED = 5, 3


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(0)
    shared = rng.dirichlet(np.full(150, 0.1), N_SHARED)
    private = rng.dirichlet(np.full(150, 0.1), N_DONORS)
    return shared, private


@pytest.fixture(scope="module")
def fits(truth):
    """Fits of donors with shared programs and one of their own; genes differ in order and panel."""
    rng = np.random.default_rng(1)
    models = {}
    for donor, own in enumerate(truth[1]):
        proportions = rng.dirichlet(np.full(N_SHARED + 1, 0.3), 200)
        means = 300 * proportions @ np.vstack([truth[0], own])
        genes = np.delete(rng.permutation(150), rng.integers(0, 150, 3))
        X = pd.DataFrame(rng.poisson(means)[:, genes], columns=GENES[genes])
        models[f"donor {donor}"] = nmfscale.TopicModel(N_SHARED + 1, random_state=0).fit(X)
    return models


@pytest.fixture(scope="module")
def found(fits):
    with pytest.warns(UserWarning, match=r"\d+ features are not in all 5 fits; the 1\d\d in all"):
        return nmfscale.cluster_topics(fits)


def test_shared_programs_are_found_in_all_donors_and_private_ones_in_one(found, truth):
    assert found.n_samples.tolist() == [N_DONORS] * N_SHARED + [1] * N_DONORS
    assert found.n_fits.tolist() == found.n_samples.tolist()
    assert found.within[:N_SHARED].min() > 0.9 and found.to_nearest.max() < 0.2
    assert np.isnan(found.within[N_SHARED:]).all()
    whole = pd.DataFrame(np.vstack(truth), columns=GENES)
    match = nmfscale.match_topics(found.components_df(), whole[found.feature_names])
    assert match.similarity.min() > 0.95
    assert set(match.pairs[:N_SHARED, 1]) == set(range(N_SHARED))
    assert len(found.components_df(min_samples=2)) == N_SHARED


def test_consensus_is_that_of_cnmf_where_both_find_it(found, fits):
    """cNMF: a filter by the distance to neighbours, k-means of unit vectors, and medians."""
    genes = found.feature_names
    topics = np.vstack([
        pd.DataFrame(fit.components_, columns=fit.feature_names_in_)[genes] for fit in fits.values()
    ])  # fmt: skip
    topics /= topics.sum(axis=1, keepdims=True)
    points = topics / np.linalg.norm(topics, axis=1, keepdims=True)
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    kept = np.sort(distances, axis=1)[:, 1:3].mean(axis=1) < 0.5
    assert_array_equal(kept, found.n_fits[found.labels] > 1)
    clusters = KMeans(N_SHARED, n_init=10, random_state=1).fit(points[kept]).labels_
    assert adjusted_rand_score(clusters, found.labels[kept]) == 1
    medians = np.stack([np.median(topics[kept][clusters == c], axis=0) for c in range(N_SHARED)])
    match = nmfscale.match_topics(medians, found.consensus[:N_SHARED], metric="cosine")
    assert match.similarity.min() > 0.995


def average_linkage(similarities, fits, least):
    """The same clusters by the definition: all pairs of clusters are compared in every step."""
    clusters = [[t] for t in range(len(fits))]
    while True:
        pairs = [
            (similarities[np.ix_(a, b)].mean(), a, b)
            for i, a in enumerate(clusters) for b in clusters[i + 1 :]
            if not {*fits[a]} & {*fits[b]}
        ]  # fmt: skip
        largest = max(pairs, default=(0, 0, 0), key=lambda pair: pair[0])
        if largest[0] < least:
            return {frozenset(cluster) for cluster in clusters}
        clusters = [c for c in clusters if c not in largest[1:]] + [largest[1] + largest[2]]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["lift", "cosine", "bhattacharyya"]))
def test_clusters_are_those_of_average_linkage(seed, metric):
    rng = np.random.default_rng(seed)
    models = [rng.gamma(0.3, size=(rng.integers(1, 5), 6)) for _ in range(rng.integers(2, 6))]
    found = nmfscale.cluster_topics(models, metric=metric, min_similarity=0.4)
    expected = average_linkage(found.similarities, found.fits, 0.4)
    clusters = [np.flatnonzero(found.labels == c) for c in range(found.n_clusters)]
    assert {frozenset(cluster) for cluster in clusters} == expected
    topics = np.vstack([A / A.sum(axis=1, keepdims=True) for A in models])
    for c, cluster in enumerate(clusters):
        assert_allclose(found.consensus[c], topics[cluster].mean(axis=0))
        among = found.similarities[np.ix_(cluster, cluster)]
        pairs = among[np.triu_indices(len(cluster), 1)]
        if len(pairs):
            assert_allclose(found.within[c], pairs.mean())
        others = [
            found.similarities[np.ix_(cluster, other)].mean()
            for i, other in enumerate(clusters) if i != c
        ]  # fmt: skip
        assert_allclose(found.to_nearest[c], max(others, default=np.nan))
    if len(models) == 2:
        match = nmfscale.match_topics(*models, metric=metric)
        split = np.split(found.similarities, [len(models[0])])[0][:, len(models[0]) :]
        assert_allclose(split, match.similarities, atol=1e-12)


def test_samples_with_several_fits_count_once():
    one, other = np.eye(4), np.eye(4)[[0, 1]]
    found = nmfscale.cluster_topics([one, one[:3], other], samples=["x", "x", "y"])
    assert found.n_fits.tolist() == [3, 3, 2, 1] and found.n_samples.tolist() == [2, 2, 1, 1]
    assert found.to_frame("topics")["sample"].tolist() == ["x"] * 7 + ["y"] * 2
    assert "cluster  fits  samples  similarity" in repr(found)


@pytest.mark.parametrize(
    ("models", "options", "complaint"),
    [
        ([np.eye(2)], {}, "models has 1 fits: at least two"),
        ({"a": np.eye(2), "b": -np.eye(2)}, {}, r"models\['b'\]: components must be finite"),
        ([np.eye(2), np.eye(3)], {}, r"models\['0'\] has 2 features and models\['1'\] has 3"),
        ([np.eye(2)] * 2, {"min_similarity": 0}, "min_similarity is 0: a number above 0"),
        ([np.eye(2)] * 2, {"metric": "l2"}, "metric='l2' is not one of 'lift'"),
        ([np.eye(2)] * 2, {"samples": ["a", None]}, "samples has 2 entries, or missing ones"),
    ],
)
def test_what_has_no_clusters(models, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        nmfscale.cluster_topics(models, **options)


def test_picture_has_a_frame_around_each_cluster_of_several_fits(found):
    ax = nmfscale.pl.similarity_plot(found)
    assert [patch.get_width() for patch in ax.patches] == [N_DONORS] * N_SHARED
    assert [label.get_text()[0] for label in ax.get_xticklabels()] == ["0", "1", "2"]
    assert len(ax.get_yticklabels()) == 4 * N_DONORS
