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
def donors(truth):
    """Counts of donors with shared programs and one of their own; genes differ in their order."""
    rng = np.random.default_rng(1)
    counts = {}
    for donor, own in enumerate(truth[1]):
        proportions = rng.dirichlet(np.full(N_SHARED + 1, 0.3), 200)
        means = 300 * proportions @ np.vstack([truth[0], own])
        genes = rng.permutation(150)
        X = pd.DataFrame(rng.poisson(means)[:, genes], columns=GENES[genes])
        counts[f"donor {donor}"] = X
    return counts


@pytest.fixture(scope="module")
def fits(donors):
    """Fits to panels that differ in a few genes."""
    rng = np.random.default_rng(2)
    model = nmfscale.TopicModel(N_SHARED + 1, random_state=0)
    return nmfscale.fit_each(
        model, {name: X.iloc[:, rng.integers(0, 3) :] for name, X in donors.items()}
    )


@pytest.fixture(scope="module")
def found(fits):
    with pytest.warns(UserWarning, match=r"\d+ features are not in all 5 fits; the 1\d\d in all"):
        return nmfscale.cluster_topics(fits, features="common")


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
    same = nmfscale.cluster_topics({"x": {4: one, 3: one[:3]}, "y": other})
    assert_array_equal(same.n_samples, found.n_samples)
    assert same.fit_names == ("x, 4 topics", "x, 3 topics", "y")


def test_donors_are_counted_whatever_the_numbers_of_topics(donors, truth):
    """A program of one donor is in several fits, and in one sample."""
    model = nmfscale.TopicModel(random_state=0, tol=1e-3)
    numbers = [N_SHARED + 1, N_SHARED + 2]
    several = nmfscale.fit_each(model, donors, n_components=numbers)
    assert [list(of_donor) for of_donor in several.values()] == [numbers] * N_DONORS
    found = nmfscale.cluster_topics(several)
    assert found.n_fits[:N_SHARED].tolist() == [2 * N_DONORS] * N_SHARED
    assert found.n_samples[:N_SHARED].tolist() == [N_DONORS] * N_SHARED
    private = pd.DataFrame(truth[1], columns=GENES)
    match = nmfscale.match_topics(private, found.components_df())
    assert match.similarity.min() > 0.9
    assert (found.n_fits[match.pairs[:, 1]] == 2).all()
    assert (found.n_samples[match.pairs[:, 1]] == 1).all()


def panel_fits(truth, share, rng, n_donors=10):
    """Return noisy topics of donors, each with another part of the genes in another order."""
    fits = {}
    for donor in range(n_donors):
        own = rng.dirichlet(np.full(150, 0.1))
        topics = rng.poisson(2000 * np.vstack([truth[0], own])) + 0.01
        genes = rng.permutation(150)[: int(share * 150)]
        fits[f"donor {donor}"] = pd.DataFrame(topics[:, genes], columns=GENES[genes])
    return fits


def test_panels_that_differ_are_compared_pair_by_pair(truth):
    """No gene is in all panels: clusters are right, and consensus topics have all genes."""
    fits = panel_fits(truth, 0.5, np.random.default_rng(4))
    with pytest.raises(ValueError, match="the 10 fits have no feature in common"):
        nmfscale.cluster_topics(fits, features="common")
    found = nmfscale.cluster_topics(fits)
    assert found.n_samples.tolist() == [10] * N_SHARED + [1] * 10
    shared = found.labels.reshape(10, -1)[:, :N_SHARED]
    assert_array_equal(shared, np.tile(shared[0], (10, 1)))
    programs = found.components_df(min_samples=2)[GENES].to_numpy()
    assert np.abs(programs[shared[0]] - truth[0]).sum(axis=1).max() < 0.1
    alone = found.to_frame("consensus").set_index("feature")[f"cluster {N_SHARED}"]
    of_fit = found.to_frame("topics").set_index("cluster")["fit"][N_SHARED]
    assert {*alone.dropna().index} == {*fits[of_fit].columns}
    assert found.n_common[0, 1] == len({*fits["donor 0"]} & {*fits["donor 1"]})
    one = nmfscale.cluster_topics({name: fits[name] for name in ("donor 0", "donor 1")})
    with pytest.warns(UserWarning, match="in one of the fits only"):
        match = nmfscale.match_topics(fits["donor 0"], fits["donor 1"])
    assert_allclose(one.similarities[:4, 4:], match.similarities, atol=1e-12)


def lift_similarities(fits, one, other):
    """The same by the definition: lifts from the mean of all fits that have the common genes."""
    genes = [gene for gene in fits[one] if gene in fits[other].columns]
    having = [fit[genes].to_numpy() for fit in fits if {*genes} <= {*fit.columns}]
    having = [topics / topics.sum(axis=1, keepdims=True) for topics in having]
    p = np.mean([topics.mean(axis=0) for topics in having], axis=0)
    f, g = (fits[i][genes].to_numpy() for i in (one, other))
    f, g = ((topics / topics.sum(axis=1, keepdims=True) - p) / np.sqrt(p) for topics in (f, g))
    norms = np.outer(np.linalg.norm(f, axis=1), np.linalg.norm(g, axis=1))
    return np.maximum(f @ g.T / norms, 0)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_similarities_and_consensus_of_panels_follow_their_definitions(seed):
    rng = np.random.default_rng(seed)
    panels = [rng.permutation(GENES[:12])[: rng.integers(9, 13)] for _ in range(3)]
    panels += [panels[0][::-1], panels[1][:8]]
    fits = [
        pd.DataFrame(rng.gamma(0.5, size=(rng.integers(2, 4), len(panel))) + 1e-3, columns=panel)
        for panel in panels
    ]
    found = nmfscale.cluster_topics(fits, min_common=1, min_similarity=0.1)
    for i in range(5):
        for j in range(i):
            block = found.similarities[np.ix_(found.fits == i, found.fits == j)]
            assert_allclose(block, lift_similarities(fits, i, j), atol=1e-9)
    topics = pd.concat(fits).reindex(columns=found.feature_names).to_numpy()
    topics = topics / np.nansum(topics, axis=1, keepdims=True)
    for c, q in enumerate(found.consensus):
        of_cluster = topics[found.labels == c]
        assert_array_equal(found.measured[c], ~np.isnan(of_cluster).all(axis=0))
        shares = (~np.isnan(of_cluster) * q).sum(axis=1, keepdims=True)
        expected = np.nansum(of_cluster, axis=0) / np.maximum(
            (~np.isnan(of_cluster) / shares).sum(axis=0), 1e-12
        )
        assert_allclose(q, expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize("metric", ["lift", "cosine", "bhattacharyya"])
def test_genes_of_one_panel_do_not_matter(truth, metric):
    rng = np.random.default_rng(5)
    fits = panel_fits(truth, 1, rng, 3)
    right = nmfscale.cluster_topics(fits, metric=metric)
    more = {
        name: fit.assign(**{f"{name}, {j}": rng.gamma(0.1, 2000, len(fit)) for j in range(5)})
        for name, fit in fits.items()
    }
    found = nmfscale.cluster_topics(more, metric=metric)
    assert_array_equal(found.labels, right.labels)
    same = found.fits[:, None] != found.fits  # within a fit, its own genes count
    assert_allclose(found.similarities[same], right.similarities[same], atol=1e-12)
    shared = found.components_df(min_samples=2)
    shared = nmfscale.TopicModel.from_components(shared[right.feature_names]).components_
    assert_allclose(shared, right.components_df(min_samples=2), atol=0.003)


def test_a_gene_that_one_panel_has_leads_no_topic_by_that():
    """Topics of other panels may have it as well."""
    topics = pd.DataFrame(np.kron(np.eye(8), np.ones(10)) + 0.01, columns=GENES[:80])
    of_panel = topics[:2].assign(other=2.7)
    found = nmfscale.cluster_topics([topics, topics, of_panel])
    assert found.n_fits.tolist() == [3, 3] + [2] * 6
    assert not any("other" in leading for leading in found.leading)


def test_groups_of_samples_are_counted():
    """Donors of two conditions; then each donor in both."""
    both, only = np.eye(6)[:3], np.eye(6)[:4]
    models = {
        f"{c}{i}": both if c == "healthy" else only for c in ("ill", "healthy") for i in range(6)
    }
    groups = {name: name[:-1] for name in reversed(models)}
    found = nmfscale.cluster_topics(models, groups=groups)
    assert found.group_names == ("healthy", "ill") and found.group_sizes.tolist() == [6, 6]
    assert found.n_samples_of_groups.tolist() == [[6, 6]] * 3 + [[0, 6]]
    table = found.to_frame()
    assert table["n_samples_healthy"].tolist() == [6, 6, 6, 0]
    assert table["n_samples_ill"].tolist() == [6] * 4
    assert found.to_frame("topics")["group"].tolist() == ["ill"] * 24 + ["healthy"] * 18
    assert "fits  healthy (6)  ill (6)  similarity" in repr(found)
    paired = nmfscale.cluster_topics(
        models, groups=pd.Series(groups), samples=[name[-1] for name in models]
    )
    assert_array_equal(paired.n_samples_of_groups, found.n_samples_of_groups)
    assert paired.n_samples.tolist() == [6] * 4
    by_number = nmfscale.cluster_topics(
        {name: {6: fit, 7: fit} for name, fit in models.items()}, groups=groups
    )
    assert_array_equal(by_number.n_samples_of_groups, found.n_samples_of_groups)
    ax = nmfscale.pl.similarity_plot(found)
    assert ax.get_xticklabels()[3].get_text().endswith("healthy 0/6, ill 6/6")


@pytest.mark.parametrize(
    ("models", "options", "complaint"),
    [
        ([np.eye(2)], {}, "models has 1 fits: at least two"),
        ({"a": np.eye(2), "b": -np.eye(2)}, {}, r"models\['b'\]: components must be finite"),
        ([np.eye(2), np.eye(3)], {}, r"models\['0'\] has 2 features and models\['1'\] has 3"),
        ([np.eye(2)] * 2, {"min_similarity": 0}, "min_similarity is 0: a number above 0"),
        ([np.eye(2)] * 2, {"metric": "l2"}, "metric='l2' is not one of 'lift'"),
        ([np.eye(2)] * 2, {"samples": ["a", None]}, "samples has 2 entries, or missing ones"),
        ([np.eye(2)] * 2, {"groups": "ab"}, "groups has 1 entries, or missing ones, for 2"),
        ([np.eye(2)] * 2, {"groups": {"0": "a"}}, "groups has no entry for .*'1'"),
        ([np.eye(2)] * 2, {"features": "all"}, "features='all' is not one of 'pairwise', 'common'"),
        ([np.eye(2)] * 2, {"min_common": 0}, "min_common is 0: a positive integer"),
        ({"a": {2: -np.eye(2)}, "b": np.eye(2)}, {}, r"models\['a'\]\[2\]: components must be"),
        ({"a": {}, "b": np.eye(2)}, {}, r"models\['a'\] is an empty dict"),
        (
            {name: pd.DataFrame(np.ones((2, 9)), columns=[*"abcdefgh", name]) for name in "xyz"}
            | {"odd one": pd.DataFrame(np.ones((2, 9)), columns=[*"abcijklm", "x"])},
            {"min_common": 4},
            r"models\['y'\] and models\['odd one'\] have 3 features in common, of 9 and 9, and m",
        ),
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
