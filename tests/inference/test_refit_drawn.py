"""Bootstrap of fits without weights of samples, to the samples that were drawn."""

import warnings

import internals
import numpy as np
import pytest
from clusters import WALL, within
from numpy.testing import assert_allclose, assert_array_equal
from oracle import draws_below
from sklearn.base import clone

from nmfscale import LDA, SSNMF, AnchorNMF, FrobeniusNMF, bootstrap_fit, load_result, write_store
from nmfscale.datasets import simulate_topic_counts
from nmfscale.inference.replicates.seeds import child
from nmfscale.results import StoredCounts

ESTIMATORS = {
    "mean-field": LDA(3, random_state=0),
    "given prior": LDA(3, random_state=0, doc_topic_prior=0.1),
    "points": LDA(3, random_state=0, topic_word_prior=0),
    "collapsed": LDA(3, random_state=0, inference="collapsed"),
    "anchors": AnchorNMF(3, weighting="tf-idf"),
    "squares": FrobeniusNMF(3, random_state=0),
}
COUNTS = simulate_topic_counts(90, 20, 3, random_state=0)[0]
GROUPS = np.arange(90) % 2
HOW = {"groups": GROUPS, "samples": [3, 80], "random_state": 4}


def drawn_rows(replicate=0):
    """Return the samples that are drawn in a replicate of all tests."""
    states = child(np.random.SeedSequence(4), replicate).generate_state(4, np.uint64)
    (drawn,) = draws_below(states, [90])
    return np.sort(drawn)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_replicate_is_a_fit_to_the_drawn_samples(name, tmp_path):
    model = clone(ESTIMATORS[name]).fit(COUNTS)
    found = bootstrap_fit(model, COUNTS, n_replicates=1, **HOW)
    rows, again = drawn_rows(), clone(ESTIMATORS[name])
    if name == "anchors":
        again = again.set_params(anchors=model.anchors_).fit(COUNTS[rows])
    elif name == "squares":
        again.fit(COUNTS[rows], loadings=model.loadings_[rows], components=model.components_)
    else:
        again.fit(
            COUNTS[rows], components=model.topic_word_posterior_,
            loadings=model.doc_topic_posterior_[rows],
        )  # fmt: skip
    sizes = again.components_.sum(axis=1)
    topics, shares = again.components_ / sizes[:, None], again.loadings_ * sizes
    shares /= shares.sum(axis=1, keepdims=True)
    assert_allclose(found.components.replicates[0], topics, atol=2e-3)
    means = [shares[GROUPS[rows] == g].mean(axis=0) for g in (0, 1)]
    assert_allclose(found.group_means.replicates[0].T, means, atol=2e-3)
    here = again.transform(COUNTS[[3, 80]]) * sizes
    here /= here.sum(axis=1, keepdims=True)
    assert_allclose(found.proportions.replicates[0], here, atol=2e-3)
    assert found.n_reordered == 0 and (found.cosines > 0.9).all()
    if name not in ("anchors", "squares"):  # posterior means
        assert_array_equal(found.components.estimate, model.components_)
        assert_array_equal(found.proportions.estimate, model.loadings_[[3, 80]])
    found.save(tmp_path / "result.h5")
    assert_array_equal(load_result(tmp_path / "result.h5").cosines, found.cosines)


def same(one, other):
    for name in "components", "group_means", "proportions":
        assert_array_equal(getattr(one, name).replicates, getattr(other, name).replicates)
    assert_array_equal(one.n_iter, other.n_iter)


@pytest.mark.parametrize("name", ["mean-field", "collapsed", "anchors"])
def test_bits_are_the_same_in_memory_and_in_a_file(name, small_blocks, tmp_path, monkeypatch):
    model = clone(ESTIMATORS[name]).set_params(n_threads=1).fit(COUNTS)
    expected = bootstrap_fit(model, COUNTS, n_replicates=3, n_threads=1, **HOW)
    write_store(COUNTS, tmp_path / "counts.nmf")
    job = {"checkpoint": tmp_path / "job", "resume": True, "n_threads": 2}
    counts = StoredCounts(tmp_path / "counts.nmf")
    bootstrap_fit(model, counts, n_replicates=1, **HOW, **job)
    internals.no_room_for_parts(monkeypatch)
    same(bootstrap_fit(model, counts, n_replicates=3, **HOW, **job), expected)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mean-field", "collapsed", "anchors"])
def test_bits_are_the_same_on_a_cluster(name, client, tmp_path, monkeypatch):
    model = clone(ESTIMATORS[name]).set_params(n_threads=1).fit(COUNTS)
    with monkeypatch.context() as patch:
        internals.no_active_client(patch)
        expected = bootstrap_fit(model, COUNTS, n_replicates=4, **HOW)
    write_store(COUNTS, tmp_path / "counts.nmf")
    for X in COUNTS, tmp_path / "counts.nmf":
        found = within(
            WALL, lambda X=X: bootstrap_fit(model, X, n_replicates=4, client=client, **HOW)
        )
        same(found, expected)


def test_replicates_without_an_anchor_lack_its_topic():
    X = COUNTS.toarray()
    rare = np.zeros((90, 2), int)
    rare[[0, 1], 0], rare[[0, 2], 1] = 60, 70  # equal directions where only sample 0 is drawn
    X = np.hstack([X, rare])
    model = AnchorNMF(5, anchors=[20, 21]).fit(X).rename_topics(list("pqabc"))
    with pytest.warns(UserWarning, match="2 of 5 anchors can be told: .* such as '[pq]', which"):
        found = bootstrap_fit(model, X, n_replicates=40, **HOW)
    lost = np.isnan(found.cosines)
    assert_array_equal(found.missing, lost.mean(axis=0))
    assert lost[:, :2].any(axis=0).all() and not lost[:, 2:].any()
    for r in range(40):
        drawn = drawn_rows(r)
        first = np.isin([0, 1], drawn).any()
        second = np.isin(2, drawn) or np.isin(0, drawn) and (not first or np.isin(1, drawn))
        assert_array_equal(lost[r, :2], [not first, not second])
    assert_array_equal(np.isnan(found.components.replicates).all(axis=2), lost)
    assert_array_equal(np.isnan(found.group_means.replicates[:, :, 0]), lost)
    known = found.components.replicates[~lost[:, 0], 0]
    assert_allclose(found.components.lower[0], np.quantile(known, 0.025, axis=0), rtol=1e-6)
    assert np.isfinite(found.to_frame("group_means")["std_error"]).all()
    assert "nan" not in repr(found)


def test_samples_without_anchors_are_in_no_mean():
    X = COUNTS.toarray()
    model = AnchorNMF(3).fit(X)
    X[:10, model.anchors_] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AnchorNMF(3, anchors=model.anchors_).fit(X)
        found = bootstrap_fit(model, X, n_replicates=3, **HOW)
    assert not model.loadings_[:10].any()
    assert_allclose(found.group_means.replicates.sum(axis=1), 1, rtol=1e-5)


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match="estimator is a SSNMF: a model whose fit can start"):
        bootstrap_fit(SSNMF(2), COUNTS)
    model = LDA(2, random_state=0).partial_fit(COUNTS)
    with pytest.raises(ValueError, match="this LDA has no loadings_, as it was fitted in batches"):
        bootstrap_fit(model, COUNTS)
