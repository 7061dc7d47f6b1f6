"""Fits from many starts: their spread, their matches, and the consensus of their topics."""

import internals
import numpy as np
import pandas as pd
import pytest

from nmfscale import (
    LDA,
    AnchorNMF,
    PoissonNMF,
    TopicModel,
    as_counts,
    match_topics,
    pl,
    select_k,
    stability,
    write_store,
)
from nmfscale.datasets import simulate_topic_counts
from nmfscale.inference.choice.consensus import consensus_of
from nmfscale.results import StoredCounts


@pytest.fixture(scope="module")
def data():
    return simulate_topic_counts(90, 40, 3, random_state=0)


@pytest.fixture(scope="module")
def found(data):
    return stability(TopicModel(5), data[0], n_starts=6, random_state=0, n_threads=1)


def assert_same(found, expected):
    assert (found.topics == expected.topics).all()
    assert (found.consensus.topics == expected.consensus.topics).all()
    assert (found.model.loadings_ == expected.model.loadings_).all()
    assert (found.objective == expected.objective).all()


def test_the_fits_are_those_of_their_seeds(data, found):
    seed = int(found.seeds[found.best])
    model = TopicModel(5, init="random", random_state=seed).fit(data[0])
    assert model.history_["loglik"][-1] == found.objective[found.best] == found.objective.max()
    np.testing.assert_allclose(model.components_, found.topics[found.best], rtol=1e-6)
    table = found.to_frame()
    assert table.gap.min() == 0 < table.gap.max() and len(set(table.seed)) == 6
    other = int(found.gaps.argmax())
    match = match_topics(found.topics[found.best], found.topics[other])
    assert (found.matches[other] == match.pairs[:, 1]).all()
    np.testing.assert_allclose(found.similarities[other], match.similarity)
    assert (found.similarities[found.best] > 1 - 1e-9).all()
    assert found.to_frame("topics").similarity.between(0, 1).all()
    with pytest.raises(ValueError, match="what='fits' is not one of"):
        found.to_frame("fits")


def test_a_fit_is_compared_with_the_starts(data, found):
    X, _ = data
    low = TopicModel(5, init="random", random_state=int(found.seeds[found.gaps.argmax()])).fit(X)
    again = stability(low, X, n_starts=6, random_state=0, n_threads=1)
    assert_same(again, found)
    assert again.fit_gap == found.gaps.max() > 1
    assert f"ends {found.gaps.max():,.1f} below the best of 6" in repr(again)
    assert f"{(found.gaps < found.gaps.max() - 1).sum()} of them end higher" in again.fit_summary
    assert again.to_frame("fit").least_similarity.max() <= 1
    assert (again.fit_similarities[found.gaps.argmax()] > 1 - 1e-6).all()
    assert found.fit_gap is None and found.fit_summary == ""
    names = np.array([f"w{j}" for j in range(40)])
    named = TopicModel(3, random_state=0).fit(as_counts(X, feature_names=names))
    with pytest.warns(UserWarning, match="matched by name"):
        turned = stability(named, as_counts(X[:, ::-1], feature_names=names[::-1]), n_starts=2)
    assert turned.fit_similarities.min() > 0.99 and turned.feature_names.tolist() == [*names]


def test_fits_that_starts_cannot_repeat_are_refused(data):
    X, truth = data
    fit = TopicModel(3, random_state=0).fit(X)
    with pytest.raises(ValueError, match="fitted to counts of shape"):
        stability(fit, X[:80], 2)
    fixed = TopicModel(3).fit(X, components=fit.components_, fixed_topics=[True, False, False])
    with pytest.raises(ValueError, match="fitted with fixed_topics, .*clone"):
        stability(fixed, X, 2)


def test_models_that_hold_no_topics_have_a_consensus_of_topics(data):
    X, truth = data
    three = stability(LDA(3), X, n_starts=3, random_state=0)
    assert match_topics(three.consensus.topics, truth.F.T).similarity.min() > 0.9
    assert three.model is None


def test_the_consensus_is_the_truth(data):
    X, truth = data
    three = stability(TopicModel(3), X, n_starts=5, random_state=0)
    match = match_topics(three.consensus.topics, truth.F.T)
    assert match.similarity.min() > 0.99 and three.n_best == 5
    assert three.consensus.n_left_out == 0 and (three.consensus.shares == 1).all()
    np.testing.assert_allclose(three.model.components_, three.consensus.topics, rtol=1e-10)
    best = TopicModel(3, random_state=int(three.seeds[three.best]), init="random").fit(X)
    np.testing.assert_allclose(three.model.loglik_, best.loglik_, atol=0.01)
    assert "5 starts within 1" in repr(three)


def test_outliers_are_left_out_of_a_consensus():
    """Two topics with noise in nine fits of ten; the tenth has other topics."""
    rng = np.random.default_rng(0)
    truth = np.stack([np.r_[np.ones(10), np.zeros(20)], np.r_[np.zeros(10), np.ones(20)]])
    topics = np.stack([truth[rng.permutation(2)] for _ in range(10)])
    topics = topics * rng.uniform(0.95, 1.05, topics.shape)
    topics[9] = np.tile([[1, 0], [0, 1]], 15)
    topics /= topics.sum(axis=2, keepdims=True)
    found = consensus_of(topics, 0.5, 3)
    assert (found.labels[9] == -1).all() and (np.sort(found.labels[:9]) == [0, 1]).all()
    assert (found.distances[9] > 0.5).all() and found.n_left_out == 2
    kept = [topics[i, np.flatnonzero(found.labels[i] == 0)[0]] for i in range(9)]
    median = np.median(kept, axis=0)
    np.testing.assert_allclose(found.topics[0], median / median.sum())
    assert found.silhouette > 0.9 and (found.shares == 0.9).all()
    with pytest.warns(UserWarning, match="0 of 20 topics have neighbours"):
        assert consensus_of(topics, 1e-9, 3) is None


def test_topics_that_are_all_the_same_have_no_consensus():
    topics = np.tile(np.eye(2, 6), (4, 2, 1))  # four topics of each fit, two of them different
    with pytest.warns(UserWarning, match="only 2 different ones, and 4 are needed"):
        assert consensus_of(topics, 0.5, 3) is None


@pytest.mark.nightly
def test_the_same_bits_resumed_and_from_a_store(data, tmp_path, monkeypatch, small_blocks):
    X, options = data[0], {"n_starts": 4, "random_state": 0, "n_threads": 2}
    job = {"checkpoint": tmp_path / "job"}
    stability(TopicModel(5), X, **options | job | {"n_starts": 2})
    expected = stability(TopicModel(5), X, **options, **job, resume=True)
    write_store(X, tmp_path / "counts.nmf")
    internals.read_anew(monkeypatch)
    internals.fits_together(monkeypatch, 2)
    counts = StoredCounts(tmp_path / "counts.nmf")
    assert_same(stability(TopicModel(5), counts, **options), expected)


def test_the_plots(data, found):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot as plt

    panels = pl.stability_plot(found).child_axes
    assert panels[0].lines[0].get_ydata().tolist() == sorted(found.gaps)
    assert [bar.get_height() for bar in panels[2].patches] == found.consensus.shares.tolist()
    numbers = select_k(TopicModel(), data[0], [2, 3], n_splits=2, random_state=0)
    panels = pl.select_k_plot(numbers).child_axes
    assert panels[0].lines[0].get_ydata().tolist() == numbers.score.tolist()
    lines = {line.get_label(): [*line.get_ydata()] for line in panels[1].lines}
    assert lines["mean"] == numbers.stability.tolist()
    assert lines["smallest"] == numbers.least_stability.tolist()
    assert [bar.get_height() for bar in panels[3].patches] == numbers.n_chosen.tolist()
    for draw in (pl.stability_plot, pl.select_k_plot):
        with pytest.raises(ValueError, match="result is a ndarray: pass the result of s"):
            draw(np.eye(2))
    plt.close("all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": TopicModel(0)}, "'n_components' parameter of TopicModel"),
        ({"n_starts": 0}, "is 0; a positive integer"),
        ({"estimator": AnchorNMF()}, "estimator is .AnchorNMF.: .* random starts"),
        ({"density_threshold": 0}, "density_threshold is 0"),
        ({"n_neighbors": 0}, "n_neighbors is 0"),
    ],
)
def test_wrong_arguments(data, arguments, message):
    with pytest.raises(ValueError, match=message):
        stability(**({"estimator": TopicModel(2), "X": data[0]} | arguments))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_workers_share_the_starts(data, client):
    options = {"n_starts": 4, "random_state": 0}
    estimator = PoissonNMF(3, init="random")
    with pytest.MonkeyPatch.context() as patch:
        internals.no_active_client(patch)
        expected = stability(estimator, data[0], **options)
    found = stability(estimator, pd.DataFrame(data[0].toarray()), client=client, **options)
    assert_same(found, expected)


def test_consensus_topics_of_fits_with_batches():
    rng = np.random.default_rng(0)
    batch, topics = np.repeat(["a", "b"], 50), rng.dirichlet(np.full(40, 0.3), 3)
    shares, effects = rng.dirichlet(np.full(3, 0.3), 100), np.exp(rng.normal(0, 0.8, 40))
    counts = rng.poisson(400 * np.where(batch[:, None] == "b", effects, 1) * (shares @ topics))
    found = stability(TopicModel(3), counts, 4, batch=batch, random_state=0)
    assert found.model.batches_.tolist() == ["a", "b"]
    e = found.model.batch_efficiencies_
    assert np.corrcoef(np.log(e[1] / e[0]), np.log(effects))[0, 1] > 0.9
    assert (
        found.objective.max() > stability(TopicModel(3), counts, 4, random_state=0).objective.max()
    )
