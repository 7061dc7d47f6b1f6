"""Ranked pairs of the noisy topic model: error rates, topics that chains reproduce, places."""

import internals
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import nmfscale
from nmfscale import NoisyTopicModel
from nmfscale.datasets import simulate_noisy_topics
from nmfscale.experimental import noisy_pairs

FEW = {"n_chains": 2, "n_draws": 30, "n_warmup": 30, "random_state": 0, "n_threads": 1}


@pytest.fixture(scope="module")
def data():
    return simulate_noisy_topics(150, 80, 3, noisy_share=0.2, random_state=1)


@pytest.fixture(scope="module")
def model(data):
    return NoisyTopicModel(3, random_state=0, n_threads=1).fit(data[0])


@pytest.fixture(scope="module")
def found(data, model):
    return noisy_pairs(model, data[0], **FEW)


def noisy_of(truth, model):
    """Return the true noisy pairs, with the topics of a fit."""
    K = truth.L.shape[1]
    near = np.corrcoef(model.loadings_.T, truth.L.T)[:K, K:]
    assert sorted(near.argmax(axis=1)) == list(range(K))
    return truth.noisy.T[near.argmax(axis=1)]


def assert_same(one, other):
    for name in ("error_rates", "local_error_rates", "factors", "agreement", "noise_shares"):
        assert (getattr(one, name) == getattr(other, name)).all()


def test_error_rates_are_means_along_the_ranking(found, model, data):
    table = found.to_frame()
    assert table.local_error_rate.is_monotonic_increasing and table.error_rate.between(0, 1).all()
    expected = table.local_error_rate.expanding().mean()
    np.testing.assert_allclose(table.error_rate, expected, rtol=1e-12)
    k, j = table.topic[5], table.feature[5]
    assert table.local_error_rate[5] == found.local_error_rates[k, j]
    assert table.counts[5] == model.topic_counts_[k, j]
    assert table.expected[5] == model.expected_counts_[k, j]
    one = found.to_frame(1)
    assert len(one) == 80 and one.error_rate.tolist() == table.error_rate[table.topic == 1].tolist()
    assert "80 features x 3 topics" in repr(found) and "not reproduced" not in repr(found)


def test_noisy_pairs_of_the_truth_are_found(found, model, data):
    noisy, here = noisy_of(data[1], model), found.error_rates <= 0.1
    assert here[noisy].mean() > 0.6 and (~noisy[here]).mean() < 0.2
    assert found.reproduced.all() and found.agreement.min() > 0.95
    assert abs(found.noise_shares.mean() - 0.2) < 0.08
    certain = found.error_rates < 0.01
    more = found.counts[certain] > found.expected[certain]
    assert ((found.factors[certain] > 1) == more).mean() > 0.9


@pytest.mark.nightly
def test_the_same_bits_from_files_and_with_threads(found, model, data, tmp_path):
    model.save(tmp_path / "model.h5")
    nmfscale.write_store(data[0], tmp_path / "counts.nmf")
    again, counts = nmfscale.load(tmp_path / "model.h5"), tmp_path / "counts.nmf"
    assert_same(noisy_pairs(again, counts, **FEW | {"n_threads": 2}), found)


@pytest.mark.nightly
def test_the_same_bits_resumed_and_read_anew(found, model, data, tmp_path, monkeypatch):
    job = FEW | {"checkpoint": tmp_path / "job"}
    noisy_pairs(model, data[0], **job | {"n_chains": 1})
    assert_same(noisy_pairs(model, data[0], **job, resume=True), found)
    nmfscale.write_store(data[0], tmp_path / "counts.nmf")
    internals.read_anew(monkeypatch)
    assert_same(
        noisy_pairs(model, nmfscale.results.StoredCounts(tmp_path / "counts.nmf"), **FEW), found
    )


@pytest.mark.nightly
def test_workers_share_the_chains(found, model, data, client):
    assert_same(noisy_pairs(model, data[0], client=client, **FEW), found)


@pytest.mark.filterwarnings("ignore:NoisyTopicModel has not converged")
def test_topics_that_are_not_in_the_counts_have_no_pairs():
    X, _ = simulate_noisy_topics(60, 40, 3, noisy_share=0.0, random_state=0)
    model = NoisyTopicModel(3, random_state=0, max_iter=20).fit(X)
    with pytest.warns(UserWarning, match="3 of 3 topics are not found again in chains from other"):
        found = noisy_pairs(model, X, **FEW)
    assert not found.reproduced.any() and (found.error_rates == 1).all()
    assert "3 topics not reproduced" in repr(found)


def test_counts_that_vary_more_than_the_model_says_warn(found, data):
    """Poisson counts have no dispersion; no warning was raised for them."""
    dispersion, error = found.excess_variance
    assert abs(dispersion) < 4 * error < 0.05 and found.inflation < 1.5
    _, (L, mu, u, _) = data
    rng = np.random.default_rng(0)
    rates = L @ (mu[:, None] * u).T
    X = rng.poisson(rates * rng.gamma(1 / 0.3, 0.3, rates.shape))
    with pytest.warns(ConvergenceWarning):
        model = NoisyTopicModel(3, random_state=0, n_threads=1, max_iter=60).fit(X)
    few = {"n_chains": 1, "n_draws": 2, "n_warmup": 2, "random_state": 0, "n_threads": 1}
    with pytest.warns(UserWarning, match=r"their dispersion is 0\.[23].*nmfscale\.thin\(X, frac"):
        varied = noisy_pairs(model, X, **few)
    assert 0.22 < varied.excess_variance[0] < 0.35
    # the variance of each count is mu + 0.3 mu^2
    assert 0.8 < (varied.inflation - 1) / (0.3 * (rates**2).sum() / rates.sum()) < 1.2


@pytest.mark.nightly
def test_names_and_a_model_without_a_mixture(found, data):
    names = [f"gene {j}" for j in range(80)]
    X = nmfscale.as_counts(data[0], feature_names=names)
    model = NoisyTopicModel(3, noise_prior="none", random_state=0).fit(X)
    model = model.rename_topics(["a", "b", "c"])
    other = noisy_pairs(model, X, **FEW)
    table = other.to_frame("b")
    assert set(table.topic) == {"b"} and set(table.feature) == set(names)
    # the start of a chain does not depend on the prior of the model
    np.testing.assert_allclose(
        np.sort(other.local_error_rates, axis=None), np.sort(found.local_error_rates, axis=None)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": nmfscale.TopicModel(2)}, "model is a TopicModel: a fitted NoisyTopicModel"),
        ({"X": np.ones((3, 80), int)}, "fitted to counts of shape .150, 80., and X has shape"),
        ({"n_draws": 0}, "n_draws is 0; a positive integer"),
        ({"n_chains": 1.5}, "n_chains is 1.5; a positive integer"),
    ],
)
def test_wrong_arguments(model, data, change, message):
    given = {"model": model, "X": data[0]} | change
    with pytest.raises(ValueError, match=message):
        noisy_pairs(given.pop("model"), given.pop("X"), **given)


def test_fractions_and_models_that_are_not_fitted_are_refused(data):
    X = nmfscale.as_counts(data[0] * 0.5, integer="allow")
    with pytest.warns(ConvergenceWarning):
        halves = NoisyTopicModel(3, max_iter=2, random_state=0).fit(X)
    with pytest.raises(ValueError, match="X has counts that are not whole numbers"):
        noisy_pairs(halves, X)
    with pytest.raises(ValueError, match="is not fitted yet"):
        noisy_pairs(NoisyTopicModel(3), X)


@pytest.mark.nightly
@pytest.mark.parametrize(("n", "m", "K"), [(300, 200, 4), (300, 400, 3)])
def test_the_error_rates_are_realised(n, m, K):
    X, truth = simulate_noisy_topics(n, m, K, noisy_share=0.2, random_state=5)
    model = NoisyTopicModel(K, random_state=0).fit(X)
    noisy = noisy_of(truth, model)
    found = noisy_pairs(model, X, n_chains=2, n_draws=150, n_warmup=150, random_state=0)
    for level in (0.1, 0.2):
        here = found.error_rates <= level
        wrong = float((~noisy[here]).mean())
        assert 0.6 * level < wrong < 1.3 * level and noisy[here].sum() > 0.6 * noisy.sum()
    assert (~noisy[model.local_fdr_ <= 0.05]).mean() > 0.1  # that of the fit is too small
