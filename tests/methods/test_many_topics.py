"""Hundreds of topics: loadings of rows, the start, what is warned of and what is shown."""

import warnings

import internals
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import nmfscale
from nmfscale.methods.projection.transform import project_rows
from nmfscale.readers.open import as_counts


def counts_and_topics(n, m, K, seed=0):
    """Counts of 40 topics, and topics (m, K) that are mixtures of theirs with noise."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(m, 0.05), size=40)
    X = rng.poisson(rng.dirichlet(np.full(40, 0.05), size=n) @ topics * 150)
    F = rng.dirichlet(np.full(40, 0.2), size=K) @ topics * rng.gamma(0.5, size=(K, m))
    return sp.csr_matrix(X), (F / F.sum(axis=1, keepdims=True)).T


def assert_optimal(X, L, F):
    """The conditions of Karush, Kuhn and Tucker of every row."""
    X, F = X.toarray(), np.maximum(F, 1e-10)
    g = F.sum(axis=0) - (X / np.maximum(L @ F.T, 1e-30)) @ F
    assert (L >= 0).all()
    assert (np.abs(L * g).max(axis=1) <= 1e-8 * X.sum(axis=1)).all()
    assert (g >= -1e-4).all()


@pytest.mark.parametrize("prior", [None, 0.2])
def test_loadings_are_those_of_steps_on_all_components(monkeypatch, prior):
    X, F = counts_and_topics(70, 400, 100)
    X = sp.vstack([X, sp.csr_matrix((1, 400), dtype=X.dtype)]).tocsr()
    F[:, 7] = 0  # a topic that is nothing
    shape = X.shape[0], 100
    options = {} if prior is None else {"prior": (np.full(shape, prior), np.full(shape, 0.5))}
    ours = project_rows(as_counts(X), F, **options)
    if prior is None:
        assert_optimal(X, ours[:, F.any(axis=0)], F[:, F.any(axis=0)])
        assert not ours[-1].any() and not ours[:, 7].any()
    internals.all_components_of_a_row(monkeypatch)
    theirs = project_rows(as_counts(X), F, tol=1e-12, **options)
    assert_allclose(ours, theirs, atol=1e-6 * X.sum(axis=1).max())


def test_the_same_bits_in_pieces_and_blocks_and_on_threads(monkeypatch):
    X, F = counts_and_topics(90, 200, 60)
    expected = project_rows(as_counts(X), F)
    internals.small_pieces_of_rows(monkeypatch)
    internals.small_blocks(monkeypatch, 800)
    for n_threads in (1, 3):
        assert_array_equal(project_rows(as_counts(X), F, n_threads=n_threads), expected)


def test_more_components_than_samples_or_features_are_warned_of(monkeypatch):
    X, _ = counts_and_topics(30, 50, 40)
    with pytest.warns(
        UserWarning, match="n_components=40 is more than the 30 samples of X"
    ) as all_:
        nmfscale.TopicModel(40, max_iter=1, tol=0).fit(X)
    assert len(all_) == 1
    with pytest.warns(UserWarning, match="n_components=31 is more than the 30 features of X"):
        nmfscale.LDA(31, max_iter=1, tol=0, init="random").fit(X.T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nmfscale.PoissonNMF(30, max_iter=1, tol=0).fit(X)


@pytest.mark.parametrize("verbose", [1, 2])
def test_progress_is_shown_outside_of_iterations(monkeypatch, capfd, verbose):
    internals.progress_at_once(monkeypatch)
    internals.small_pieces_of_rows(monkeypatch)
    X, _ = counts_and_topics(200, 150, 40)
    model = nmfscale.TopicModel(40, max_iter=1, tol=0, random_state=0, verbose=verbose).fit(X)
    shown = capfd.readouterr().err
    for stage in ("singular vectors", "clusters of features", "corners", "loadings"):
        assert f"start: {stage}" in shown
    model.transform(X)
    shown = capfd.readouterr().err
    assert "transform" in shown and "200" in shown
    model.score(X)
    model.score(X, completion=0.5)
    assert capfd.readouterr().err.count("score") >= 2
    nmfscale.PoissonNMF(3, init="clusters", max_iter=1, tol=0, verbose=verbose).fit(X)
    assert "start: clusters of samples" in capfd.readouterr().err
    nmfscale.LDA(3, max_iter=1, tol=0, verbose=verbose).fit(X).transform(X)
    assert "transform" in capfd.readouterr().err
    model.set_params(verbose=0).transform(X)
    assert capfd.readouterr().err == ""


def test_ctrl_c_ends_a_transform_between_two_pieces(monkeypatch):
    X, F = counts_and_topics(200, 150, 40)
    internals.small_pieces_of_rows(monkeypatch)
    done = []

    def press(original, n):
        done.append(n)
        if len(done) == 3:
            raise KeyboardInterrupt
        original(n)

    internals.around_advance(monkeypatch, press)
    with pytest.raises(KeyboardInterrupt):
        project_rows(as_counts(X), F)
    assert done == [16, 16, 16]


def test_clusters_of_samples_start_many_topics():
    X, _ = counts_and_topics(330, 320, 1)
    models = [
        nmfscale.PoissonNMF(105, init=init, max_iter=3, tol=0, random_state=0).fit(X)
        for init in ("auto", "clusters", "random", "topic-score")
    ]
    assert_array_equal(models[0].components_, models[1].components_)
    ends = [model.history_["loglik"][-1] for model in models]
    assert ends[1] > max(ends[2:])


def test_many_topics_have_the_same_bits_from_a_file_and_on_threads(tmp_path):
    X, _ = counts_and_topics(330, 320, 1)
    nmfscale.write_store(X, tmp_path / "counts.nmf")
    found = []
    for place, n_threads in ((X, 1), (X, 3), (tmp_path / "counts.nmf", 2)):
        model = nmfscale.TopicModel(102, max_iter=3, tol=0, random_state=0, n_threads=n_threads)
        loadings = model.fit_transform(place)
        found.append((model.components_.tobytes(), loadings.tobytes(), model.score(place)))
    assert found[0] == found[1] == found[2]


@pytest.mark.nightly
def test_hundreds_of_topics():
    X, _ = counts_and_topics(2000, 3000, 1)
    model = nmfscale.PoissonNMF(500, max_iter=10, tol=0, random_state=0).fit(X)
    assert (np.diff(model.history_["loglik"]) > 0).all()
    assert_optimal(X, model.transform(X), model.components_.T)
