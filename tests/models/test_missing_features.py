"""Samples that lack features of a fit: refused, limited to what is there, or taken as zeros."""

import warnings

import internals
import numpy as np
import pandas as pd
import pytest
from night import at_night
from shell import run
from sklearn.base import clone

import nmfscale

N, M, LACKING = 60, 24, [0, 1, 2, 3, 9]
NAMES = np.array([f"gene{j}" for j in range(M)])
THERE = np.setdiff1d(np.arange(M), LACKING)
LABELS = np.resize(["a", "b"], N)
LONG = {"random_state": 0, "max_iter": 300, "tol": 1e-6}


def simulated():
    """Counts of three topics, and the same topics in samples at other depths."""
    rng = np.random.default_rng(0)
    topics, shares = rng.dirichlet(np.full(M, 0.3), 3), rng.dirichlet(np.full(3, 0.6), N)
    return rng.poisson(400 * shares @ topics), rng.poisson(4000 * shares[:8] @ topics)


X, NEW = simulated()
MODELS = [
    nmfscale.PoissonNMF(3, **LONG),
    nmfscale.LDA(3, **LONG),
    nmfscale.GammaPoisson(3, **LONG),
    nmfscale.NoisyTopicModel(3, **LONG),
    nmfscale.AnchorNMF(3, anchors=["gene4", "gene6", "gene11"]),
    nmfscale.SSNMF(3, **LONG),
    *at_night(
        nmfscale.TopicModel(3, prior_loadings=(1.0, 0.1), **LONG),
        nmfscale.LDA(3, topic_word_prior=0.0, **LONG),
        nmfscale.GammaPoisson(3, hierarchical=True, **LONG),
        nmfscale.SSNMF(3, losses="FF", solver="cd", **LONG),
    ),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=str)


def table(counts, columns=slice(None)):
    return pd.DataFrame(counts[:, columns], columns=NAMES[columns])


def fitted(model, counts=X):
    model = clone(model)
    given = {"y": LABELS} if isinstance(model, nmfscale.SSNMF) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that take longer
        return model.fit(nmfscale.as_counts(table(counts)), **given)


def quietly(function, *given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*given, **options)


@every_model
def test_loadings_are_those_of_all_features_but_for_noise(model):
    one = fitted(model)
    expected = one.transform(table(NEW))
    with pytest.warns(
        UserWarning, match=r"X lacks 5 of the 24 features .* are left out .*restrict"
    ):
        found = one.transform(table(NEW, THERE), missing="restrict")
    scale = expected.sum(axis=1, keepdims=True)
    assert abs(found - expected).max() < 0.1 * scale.max()
    zeros = quietly(one.transform, table(NEW, THERE), missing="zero")
    absent = np.where(np.isin(np.arange(M), LACKING), 0, NEW)
    assert zeros.tobytes() == one.transform(table(absent)).tobytes()
    if isinstance(model, nmfscale.AnchorNMF):  # whose loadings are the counts of the anchors
        return
    assert abs(found - expected).mean() < abs(zeros - expected).mean() / 2


@every_model
def test_scores_and_predictions_know_of_it(model):
    one, there = fitted(model), table(NEW, THERE)
    restricted, zero = {"missing": "restrict"}, {"missing": "zero"}
    if isinstance(model, nmfscale.SSNMF):
        assert quietly(one.predict, there, **restricted).shape == (8,)
        assert quietly(one.score, there, LABELS[:8], **restricted) <= 1
        weights = np.ones(there.shape)
        found = quietly(one.predict_proba, there, data_weights=weights, **restricted)
        np.testing.assert_allclose(
            found, quietly(one.predict_proba, there, **restricted), rtol=1e-6
        )
        return
    assert quietly(one.score, there, **restricted) > quietly(one.score, there, **zero)
    score = quietly(one.score, there, completion=0.5, random_state=0, **restricted)
    how = {"completion": 0.5, "random_state": 0, **restricted}
    assert quietly(one.perplexity, there, **how) == pytest.approx(np.exp(-score), rel=1e-14)


def test_a_poisson_nmf_is_that_of_the_rows_of_its_factors():
    one = fitted(MODELS[0])
    limited = nmfscale.PoissonNMF(3, max_iter=1, tol=0).fit(
        X[:, THERE], components=one.components_[:, THERE], fixed_topics=np.ones(3, bool)
    )
    assert (limited.components_ == one.components_[:, THERE]).all()
    found = quietly(one.transform, table(NEW, THERE), missing="restrict")
    np.testing.assert_allclose(found, limited.transform(NEW[:, THERE]), rtol=1e-9)
    shares = limited.score(NEW[:, THERE])
    assert quietly(one.score, table(NEW, THERE), missing="restrict") == pytest.approx(shares)


def test_proportions_of_topics_are_of_all_features():
    one = fitted(nmfscale.TopicModel(3, **LONG))
    limited = nmfscale.PoissonNMF(3, max_iter=1, tol=0).fit(
        X[:, THERE], components=one.components_[:, THERE], fixed_topics=np.ones(3, bool)
    )
    amounts = limited.transform(NEW[:, THERE])
    found = quietly(one.transform, table(NEW, THERE), missing="restrict")
    np.testing.assert_allclose(found, amounts / amounts.sum(axis=1, keepdims=True), rtol=1e-9)


@pytest.mark.nightly
def test_the_bits_are_those_in_files_too(tmp_path, monkeypatch, capsys):
    internals.small_blocks(monkeypatch, 60)
    one = fitted(nmfscale.TopicModel(3, prior_loadings=(1.0, 0.1), **LONG))
    order = np.append(THERE[::-1], [24])
    names = np.append(NAMES, "other")
    counts = np.hstack([NEW, NEW[:, :1]])[:, order]
    shuffled = nmfscale.as_counts(pd.DataFrame(counts, columns=names[order]))
    store = nmfscale.write_store(shuffled, tmp_path / "new.nmf").path
    places = (shuffled, None, "restrict"), (store, "1TB", "restrict"), (store, "1TB", "zero")
    for source, limit, missing in places:
        expected = quietly(one.transform, table(NEW, THERE), missing=missing)
        one.set_params(memory_limit=limit)
        found = quietly(one.transform, source, tmp_path / "out.npy", missing=missing)
        assert found.tobytes() == expected.tobytes()
    one.save(tmp_path / "model.h5")
    given = [tmp_path / "model.h5", store, "-o", tmp_path / "shell.npy", "--force"]
    capsys.readouterr()
    assert not run("transform", *given, "--missing", missing)
    assert "INPUT lacks 5 of the 24 features" in capsys.readouterr().err
    assert np.load(tmp_path / "shell.npy").tobytes() == expected.tobytes()
    assert run("transform", *given)
    assert "give --missing restrict if they were not measured" in capsys.readouterr().err


def test_features_without_counts_in_the_fit_stay_out():
    counts = X.copy()
    counts[:, [5, 9]] = 0
    one = fitted(MODELS[0], counts)
    left_out = "in 1 feature of which the fit had none, such as 'gene5'"
    with (
        pytest.warns(UserWarning, match="they are left out"),
        pytest.warns(UserWarning, match=left_out),
    ):
        found = one.transform(table(NEW, THERE), missing="restrict")
    without = np.where(np.arange(M) == 5, 0, NEW)
    expected = quietly(one.transform, table(without, THERE), missing="restrict")
    assert found.tobytes() == expected.tobytes()


def test_topics_of_which_nothing_is_there_have_no_loadings():
    F = np.zeros((M, 3))
    F[LACKING, 0], F[THERE[:10], 1], F[THERE[10:], 2] = 1, 1, 1
    counts = nmfscale.as_counts(table(np.maximum(X, 1)))
    for kind in (nmfscale.PoissonNMF, nmfscale.TopicModel):
        one = kind(3, max_iter=1, tol=0).fit(counts, components=F.T, fixed_topics=np.ones(3, bool))
        found = quietly(one.transform, table(NEW, THERE), missing="restrict")
        assert np.isfinite(found).all() and (found[:, 0] == 0).all()
        assert np.isfinite(quietly(one.score, table(NEW, THERE), missing="restrict"))
    for kind in (nmfscale.LDA, nmfscale.GammaPoisson):
        prior = {"topic_word_prior": 0.0} if kind is nmfscale.LDA else {}
        one = quietly(kind(3, max_iter=1, tol=0, **prior).fit, counts, components=F.T)
        found = quietly(one.transform, table(NEW, THERE), missing="restrict")
        assert np.isfinite(found).all()
        assert (found[:, 0] < 0.1 * found.sum(axis=1)).all()


def test_what_cannot_be_is_refused():
    one = fitted(MODELS[0])
    with pytest.raises(
        ValueError, match=r"missing='drop': 'error', 'restrict', 'zero' are the ways"
    ):
        one.transform("no such file", missing="drop")
    other = nmfscale.as_counts(pd.DataFrame(NEW, columns=[f"ENSG{j}" for j in range(M)]))
    for missing in ("error", "restrict", "zero"):
        with pytest.raises(ValueError, match="none of the 24 .* 'gene0'.*; those of X .* 'ENSG0'"):
            one.transform(other, missing=missing)
    with pytest.raises(ValueError, match="lacks 5 of the 24 .*missing='restrict' if .*='zero' if"):
        one.transform(nmfscale.as_counts(table(NEW, THERE)))
    anchors = fitted(nmfscale.AnchorNMF(2, anchors=["gene4", "gene9"]))
    with pytest.raises(ValueError, match="X lacks anchors, such as 'gene9' of topic 1"):
        quietly(anchors.transform, table(NEW, THERE), missing="restrict")


def test_words_that_new_texts_lack_occur_there_zero_times(tmp_path):
    """Texts have vocabularies of their own; new words are counted in the warning."""
    texts = nmfscale.as_counts(table(X))
    texts.of_text = True
    one = nmfscale.TopicModel(3, **LONG).fit(texts)
    store = nmfscale.write_store(texts, tmp_path / "texts.nmf")
    assert store.of_text and store.in_memory().of_text
    one.save(tmp_path / "one.h5")
    new = table(NEW, THERE).assign(unseen=2)
    expected = quietly(one.transform, new, missing="zero")
    counts = nmfscale.as_counts(new)
    share = 2 * len(NEW) / counts.total
    for model in (one, nmfscale.load(tmp_path / "one.h5"), fitted(nmfscale.TopicModel(3, **LONG))):
        new_counts = counts
        if not hasattr(model, "of_text_"):
            with pytest.raises(ValueError, match="lacks 5 of the 24"):
                model.transform(counts)
            new_counts = nmfscale.as_counts(new)
            new_counts.of_text = True
        said = rf"1 feature that .*'unseen': it is ignored, with {share:.1%} of its counts"
        with pytest.warns(UserWarning, match=said):
            found = model.transform(new_counts)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="lacks 5 of the 24"):
        one.transform(counts, missing="error")
    assert not hasattr(one.fit(table(X)), "of_text_")
