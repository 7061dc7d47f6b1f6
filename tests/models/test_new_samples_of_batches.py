"""Loadings and scores of samples from batches: those of the fit, new ones, and none."""

import internals
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import gammaln, xlogy

import nmfscale
from nmfscale import PoissonNMF, TopicModel, topic_quality
from nmfscale.experimental import jackknife_fit

N, M, K = 120, 30, 3
rng = np.random.default_rng(3)
CODES = np.repeat([0, 1, 2], N // 3)
LABELS = np.array(["lab a", "lab b", "new"])[CODES]
EFFECTS = np.exp(rng.normal(0, 0.7, (3, M)))
SHARES = rng.dirichlet(np.full(K, 0.4), N)
F = rng.gamma(0.3, size=(M, K))
X = rng.poisson(EFFECTS[CODES] * (1000 * SHARES @ (F / F.sum(axis=0)).T))
OLD, NEW = CODES < 2, CODES == 2


@pytest.fixture(scope="module")
def model():
    return TopicModel(K, random_state=0, tol=1e-5).fit(X[OLD], batch=LABELS[OLD])


def test_known_batches_have_the_efficiencies_of_the_fit(model):
    alone = model.transform(X[OLD][30:50], batch=LABELS[OLD][30:50])
    assert_allclose(alone, model.loadings_[30:50], atol=1e-4)
    # the samples of the fit are recognised; others without labels have none
    assert_allclose(model.transform(X[OLD]), model.loadings_, atol=1e-4)
    with pytest.warns(UserWarning, match="nothing says from which batches"):
        without = model.transform(X[OLD][30:50])
    assert np.abs(without - alone).max() > 0.01
    assert np.array_equal(model.transform(X[OLD][30:50], batch=[None] * 20), without)
    obs = pd.Series(LABELS[OLD], index=[f"s{i}" for i in range(80)])
    frame = pd.DataFrame(X[OLD], index=obs.index)
    model = TopicModel(K, random_state=0, tol=1e-5).fit(frame, batch=obs)
    shuffled = frame.iloc[::-1]
    assert_allclose(model.transform(shuffled, batch=obs)[::-1], model.loadings_, atol=1e-4)


def test_efficiencies_of_a_new_batch_are_estimated_with_its_loadings(model):
    found = model.transform(X[NEW], batch=LABELS[NEW])
    a, topics, counts = model.batch_shape_, model.components_, X[NEW]
    totals = counts.sum(axis=0)

    def loss(logs):
        mu = np.exp(logs).reshape(len(counts), K) @ topics
        M = mu.sum(axis=0)
        of_batch = gammaln(a + totals) - gammaln(a) + a * np.log(a) - (a + totals) * np.log(a + M)
        e = (a + totals) / (a + M)
        slope = (counts / mu - e) @ topics.T * np.exp(logs).reshape(-1, K)
        return -(xlogy(counts, mu).sum() + of_batch.sum()), -slope.ravel()

    start = np.log(np.maximum(found, 1e-3) * counts.sum(axis=1)[:, None]).ravel()
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000})
    L = np.exp(best.x).reshape(len(counts), K)
    assert_allclose(found, L / L.sum(axis=1, keepdims=True), atol=0.01)
    # nearer to the truth than without efficiencies
    match = ((model.loadings_[:, :, None] - SHARES[OLD][:, None]) ** 2).sum(axis=0).argmin(axis=0)
    without = model.transform(X[NEW], batch=[None] * NEW.sum())
    error, worse = (np.abs(T[:, match] - SHARES[NEW]).mean() for T in (found, without))
    assert error < 0.75 * worse, (error, worse)


@pytest.mark.parametrize("model_class", [PoissonNMF, TopicModel])
@pytest.mark.parametrize("shape", [0.0, np.inf, "auto"])
def test_samples_of_batches_score_higher_with_them(model_class, shape):
    model = model_class(K, random_state=0, batch_shape=shape).fit(X[OLD], batch=LABELS[OLD])
    for rows in (NEW, OLD):
        there, nowhere = LABELS[rows], [None] * rows.sum()
        for completion in (None, 0.5):
            options = {"completion": completion, "random_state": 0}
            with_batches = model.score(X[rows], batch=there, **options)
            gain = with_batches - model.score(X[rows], batch=nowhere, **options)
            assert gain == 0 if shape == np.inf else gain > 0.05


def test_the_score_is_that_of_numpy(model):
    e = model.batch_efficiencies_[CODES[OLD]]
    mu = model.loadings_ @ model.components_ * e
    expected = xlogy(X[OLD], mu / mu.sum(axis=1, keepdims=True)).sum() / X[OLD].sum()
    assert model.score(X[OLD]) == pytest.approx(expected, abs=1e-6)


def test_batches_and_panels_together():
    measured, panel = np.ones((2, M), bool), np.arange(N) % 2
    measured[1, :8] = False
    counts = np.where(measured[panel], X, 0)
    options = {"random_state": 0, "tol": 1e-5}
    seen = {"measured": measured, "panel": panel[OLD], "batch": LABELS[OLD]}
    model = PoissonNMF(K, **options).fit(counts[OLD], **seen)
    assert_allclose(model.transform(counts[OLD], **seen), model.loadings_, rtol=1e-3, atol=1e-3)
    assert_allclose(model.transform(counts[OLD]), model.loadings_, rtol=1e-3, atol=1e-3)
    # all entries of a new batch at once, or the measured ones of two panels
    new = {"batch": LABELS[NEW]}
    found = model.transform(counts[NEW], measured=measured, panel=panel[NEW], **new)
    whole = model.transform(X[NEW], measured=np.ones((1, M), bool), **new)
    shares, others = (L / L.sum(axis=1, keepdims=True) for L in (found, whole))
    assert np.abs(shares - others).mean() < 0.05


def test_new_samples_have_the_same_bits_in_every_place(model, tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, 700)
    store = nmfscale.write_store(X, tmp_path / "counts.nmf")
    labels = np.array(["lab a", "other", "new"])[CODES]
    whole = model.transform(X, batch=labels)
    assert np.array_equal(model.transform(store, batch=labels), whole)
    out = tmp_path / "loadings.npy"
    assert np.array_equal(model.transform(store, out, batch=labels), whole)


@pytest.mark.parametrize("wrong, error, message", [
    ({"batch": LABELS[:7]}, ValueError, "one label for each of the 80 samples"),
    ({"batch": "donor"}, ValueError, "batch='donor' is not a column of obs"),
])  # fmt: skip
def test_wrong_batches_are_refused(model, wrong, error, message):
    with pytest.raises(error, match=message):
        model.transform(X[OLD], **wrong)
    plain = PoissonNMF(K, random_state=0).fit(X[OLD])
    with pytest.raises(ValueError, match="was fitted without batches"):
        plain.transform(X[OLD], batch=LABELS[OLD])


def test_questions_about_a_fit_know_its_batches(model):
    counts = X[OLD]
    mu = model.loadings_ @ model.components_ * model.batch_efficiencies_[CODES[OLD]]
    mu *= (counts.sum(axis=1) / mu.sum(axis=1))[:, None]
    deviance = 2 * xlogy(counts, counts / np.maximum(mu, 1e-30)).sum(axis=1)
    assert_allclose(topic_quality(model, counts).sample_deviance, deviance, rtol=1e-6)
    with pytest.raises(ValueError, match="jackknife does not support"):
        jackknife_fit(model, X[OLD], [(0, 1)])
    found = nmfscale.bootstrap_fit(
        model, counts, groups=LABELS[OLD], n_replicates=4, random_state=0
    ).group_means
    assert np.abs(found.replicates.mean(axis=0) - found.estimate).max() < 0.1
