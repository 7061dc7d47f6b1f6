"""Clusters of samples: the truth is found, with neighbours in order; deterministic; refusals."""

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from nmfscale import TopicModel, cluster_samples
from nmfscale.datasets import simulate_topic_counts
from nmfscale.inference.samples.silhouettes import mean_silhouettes
from nmfscale.pl import structure_plot

RNG = np.random.default_rng(0)
# Four groups; the second and third ones share topics with their neighbours.
CENTERS = np.array([[0.9, 0.1, 0, 0], [0.4, 0.6, 0, 0], [0, 0.6, 0.4, 0], [0, 0, 0.05, 0.95]])
TRUTH = RNG.permutation(np.repeat(np.arange(4), (40, 30, 20, 10)))
PROPORTIONS = np.array([RNG.dirichlet(100 * CENTERS[group] + 0.01) for group in TRUTH])


def test_true_clusters_in_an_order_of_neighbours():
    found = cluster_samples(PROPORTIONS, random_state=0)
    assert found.n_clusters == 4 and max(found.silhouettes, key=found.silhouettes.get) == 4
    groups = [set(TRUTH[found.labels == cluster].tolist()) for cluster in range(4)]
    assert groups in ([{0}, {1}, {2}, {3}], [{3}, {2}, {1}, {0}])
    order = [group.pop() for group in groups]
    assert found.sizes.tolist() == [(40, 30, 20, 10)[group] for group in order]
    np.testing.assert_allclose(found.centers, CENTERS[order], atol=0.05)
    roots = np.sqrt(PROPORTIONS)
    centers = np.array([roots[found.labels == cluster].mean(axis=0) for cluster in range(4)])
    expected = np.linalg.norm(roots - centers[found.labels], axis=1)
    np.testing.assert_allclose(found.distances, expected, rtol=1e-6)
    assert "4 clusters have the largest mean silhouette of 2 to 8" in repr(found)
    again = cluster_samples(5 * PROPORTIONS, 4, random_state=0)
    np.testing.assert_array_equal(again.labels, found.labels)
    assert again.silhouettes == {}
    for number in (4, 7):
        found = cluster_samples(PROPORTIONS, number, random_state=0)
        theirs = KMeans(number, n_init=10, random_state=0).fit(roots)
        assert (found.distances**2).sum() <= 1.01 * theirs.inertia_


def test_silhouettes_are_those_of_scikit_learn():
    points = np.repeat(RNG.normal(size=(300, 3)), [1, 2] * 150, axis=0)
    many, alone = np.arange(450) % 7, np.arange(450) == 5
    expected = [silhouette_score(points, labels) for labels in (many, alone)]
    found = mean_silhouettes(points, [many, alone, np.zeros(450)])
    np.testing.assert_allclose(found, [*expected, -1], atol=1e-7)


def test_empty_samples_and_names():
    table = pd.DataFrame(PROPORTIONS).rename("cell {}".format)
    table.iloc[3] = 0
    with pytest.warns(UserWarning, match="1 of 100 samples are left out"):
        found = cluster_samples(table, 4, random_state=0)
    assert found.labels[3] == -1 and found.groups[3] is None and found.sizes.sum() == 99
    frame = found.to_frame().set_index("sample")
    assert frame.index[3] == "cell 3" and frame.cluster.isna().sum() == 1
    turned = table.sample(frac=1, random_state=1)
    with pytest.warns(UserWarning, match="left out"):
        other = cluster_samples(turned, 4, random_state=0).to_frame()
    other = other.set_index("sample").loc[frame.index]
    # numbers may run in the other direction
    pairs = set(zip(frame.cluster.dropna(), other.cluster.dropna(), strict=True))
    assert len(pairs) == 4
    ax = structure_plot(table.drop("cell 3"), groups=frame.cluster)
    assert [text.get_text() for text in ax.texts or ax.get_xticklabels()][:4] == list("0123")


def test_a_model():
    X, truth = simulate_topic_counts(60, 40, 3, random_state=0)
    model = TopicModel(3, random_state=0).fit(X).rename_topics(["one", "two", "three"])
    found = cluster_samples(model, 3, random_state=0)
    assert found.topic_names == ("one", "two", "three") and "two" in repr(found)
    np.testing.assert_allclose(found.centers.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": 101}, "there are 100 different samples"),
        ({"n_init": 0}, "n_init"),
        ({"model": [[1.0, 0.0]] * 5}, "there are 1 different samples: too few"),
        ({"model": [[-1.0, 0.0]] * 5}, "non-negative finite numbers are needed"),
    ],
)
def test_wrong_input(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        cluster_samples(**{"model": PROPORTIONS, **arguments})
