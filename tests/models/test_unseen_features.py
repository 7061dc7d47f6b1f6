"""Counts of features that a fit never saw say nothing of topics: they are left out."""

import internals
import numpy as np
import pandas as pd
import pytest

import nmfscale

N, M, UNSEEN = 30, 12, [2, 7]
X = np.random.default_rng(0).poisson(2.0, (N, M))
X[:, UNSEEN] = 0
NEW = X[:6].copy()
NEW[1:, UNSEEN] = 50
LABELS = np.resize(["a", "b"], N)
SHORT = {"random_state": 0, "max_iter": 8, "tol": 0}
MODELS = [
    nmfscale.PoissonNMF(3, **SHORT),
    nmfscale.TopicModel(3, prior_factors=1.1, **SHORT),
    nmfscale.LDA(3, **SHORT),
    nmfscale.LDA(3, topic_word_prior=0.0, **SHORT),
    nmfscale.GammaPoisson(3, **SHORT),
    nmfscale.GammaPoisson(3, hierarchical=True, **SHORT),
    nmfscale.NoisyTopicModel(3, **SHORT),
    nmfscale.AnchorNMF(3),
    nmfscale.SSNMF(3, **SHORT),
    nmfscale.SSNMF(3, losses="FD", solver="cd", **SHORT),
]
left_out = "X has 500 counts in 2 features of which the fit had none, such as '?{}'?, .*left out"


def fitted(model, counts=X):
    given = {"y": LABELS} if isinstance(model, nmfscale.SSNMF) else {}
    return model.fit(counts, **given)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_they_change_nothing(model, tmp_path):
    fitted(model).save(tmp_path / "model.h5")
    assert np.flatnonzero(model.unseen_features_).tolist() == UNSEEN
    again = nmfscale.load(tmp_path / "model.h5")
    with pytest.warns(UserWarning, match=left_out.format(2)) as caught:
        found = again.transform(NEW)
    assert [warning.filename for warning in caught] == [__file__]
    assert found.tobytes() == model.transform(X[:6]).tobytes()
    if isinstance(model, nmfscale.SSNMF):
        with pytest.warns(UserWarning, match="left out"):
            assert (model.predict_proba(NEW) == model.predict_proba(X[:6])).all()
        return
    with pytest.warns(UserWarning, match="left out"):
        assert model.score(NEW) == model.score(X[:6])
    with pytest.warns(UserWarning, match="left out"):
        held_out = {"completion": 0.5, "random_state": 0}
        assert model.perplexity(NEW, **held_out) == model.perplexity(X[:6], **held_out)


def test_nor_in_files(tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, 20)
    names = [f"gene{j}" for j in range(M)]
    model = fitted(nmfscale.PoissonNMF(3, **SHORT), pd.DataFrame(X, columns=names))
    expected = model.transform(nmfscale.as_counts(pd.DataFrame(X[:6], columns=names)))
    counts = nmfscale.as_counts(pd.DataFrame(NEW, columns=names))
    store = nmfscale.write_store(counts, tmp_path / "new.nmf").path
    for limit in (None, "1TB"):
        with pytest.warns(UserWarning, match=left_out.format("gene2")):
            found = model.set_params(memory_limit=limit).transform(store)
        assert found.tobytes() == expected.tobytes()


def test_fractions_are_told_as_sums():
    model = fitted(nmfscale.PoissonNMF(3, integer="allow", **SHORT))
    with pytest.warns(UserWarning, match="counts that sum to 166.667 in 2 features"):
        model.transform(NEW / 3)


def test_samples_that_have_nothing_else_are_empty():
    new = np.eye(M, dtype=int)[UNSEEN]
    for kind, value in ((nmfscale.PoissonNMF, 0), (nmfscale.TopicModel, 1)):
        model = fitted(kind(3, **SHORT))
        of_samples = pytest.warns(UserWarning, match="2 of 2 samples of X have no counts in")
        with of_samples, pytest.warns(UserWarning, match="2 counts in 2 features"):
            assert (model.transform(new) == value / 3).all()
        with pytest.warns(UserWarning, match="2 counts in 2 features"):
            assert model.score(new) == 0


def test_what_is_known_of_them_otherwise_counts():
    F = np.full((M, 2), 1.0)
    F[2] = 5.0, 0.0
    held, count = np.arange(M) == 2, np.eye(M)[[2]]
    model = nmfscale.PoissonNMF(2, **SHORT).fit(X, components=F.T, fixed_features=held)
    assert np.flatnonzero(model.unseen_features_).tolist() == [7]
    assert model.transform(count).argmax() == 0
    prior = np.full((M, 2), 1.1)
    prior[2, 1] = 9
    model = nmfscale.TopicModel(2, prior_factors=prior, **SHORT).fit(X)
    assert model.transform(count).argmax() == 1


def test_batches_see_them_later():
    model = nmfscale.LDA(3, random_state=0).partial_fit(X)
    assert np.flatnonzero(model.unseen_features_).tolist() == UNSEEN
    more = np.where(np.arange(M) == 7, 0, NEW)
    model.partial_fit(more)
    assert np.flatnonzero(model.unseen_features_).tolist() == [7]
    model.transform(more)


def test_proportions_of_mixtures():
    frequencies = np.vstack([np.random.default_rng(1).random((M - 1, 3)), np.zeros(3)])
    counts, start = X[:, ::-1].copy(), np.random.default_rng(2).random((N, 3))
    expected = nmfscale.likelihood.mixture_proportions(
        np.where(np.arange(M) == M - 1, 0, counts), frequencies
    )
    counts[:, -1] = 40
    with pytest.warns(UserWarning, match="1,200 counts in 1 feature whose frequencies are all zer"):
        found = nmfscale.likelihood.mixture_proportions(counts, frequencies)
    assert (found == expected).all()
    with pytest.warns(UserWarning, match="left out"):
        one = nmfscale.likelihood.mixture_proportions(counts, frequencies, start, n_iter=1)
    p = start[:, None] * (frequencies / frequencies.sum(axis=0))[:-1]
    expected = (counts[:, :-1, None] * p / p.sum(axis=2, keepdims=True)).sum(axis=1)
    np.testing.assert_allclose(one, expected / expected.sum(axis=1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_samples_without_counts_in_features_of_the_topics_are_named(model):
    new = pd.DataFrame(100 * X[:4], ["a", "b", "c", "d"])
    new.iloc[[1, 3], :] = 0
    new.iloc[3, UNSEEN] = 1  # less than 1 %: no warning of the features themselves
    match = "2 of 4 samples of X have no counts in features of the topics, such as 'b', 'd': their "
    with pytest.warns(UserWarning, match=match) as caught:
        found = fitted(model).transform(new)
    assert [warning.filename for warning in caught] == [__file__]
    assert np.array_equal(found[1], found[3]) and np.isfinite(found).all()
    frequencies = np.random.default_rng(1).random((M, 2))
    frequencies[UNSEEN] = 0
    with pytest.warns(UserWarning, match=f"{match}proportions"):
        nmfscale.likelihood.mixture_proportions(new, frequencies)
