"""Groups that differ in depth alone: a warning where tests of proportions lose their level."""

import warnings

import numpy as np
import pytest

from nmfscale import (
    LDA,
    GammaPoisson,
    TopicModel,
    bootstrap_weights,
    group_effects,
    permutation_test,
    regress_proportions,
)
from nmfscale.inference.design.depth import _drawn_again
from nmfscale.inference.design.loadings import amounts_of_new_samples, topics_of_samples
from nmfscale.methods.factors import proportions

pytestmark = pytest.mark.filterwarnings("ignore")


def simulated(
    seed, overlap, depths, n=60, in_unit=1, n_topics=3, n_features=60, model=TopicModel, **options
):
    """Return a fit to two groups of one population, whose samples have different totals.

    Samples `in_unit` have the same proportions.
    """
    rng = np.random.default_rng(seed)
    common = rng.dirichlet(np.full(n_features, 0.3))
    own = rng.dirichlet(np.full(n_features, 0.1), n_topics)
    mean = 0.75 ** np.arange(n_topics)
    shares = rng.dirichlet(3 * mean / mean.sum(), 2 * n // in_unit)
    frequencies = np.repeat(shares, in_unit, axis=0) @ (overlap * common + (1 - overlap) * own)
    groups = np.repeat([0, 1], n)
    X = rng.multinomial(np.array(depths)[groups], frequencies)
    return model(n_topics, random_state=seed, n_threads=1, **options).fit(X), groups


def depth_warnings(call, *arguments, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*arguments, random_state=0, **options)
    texts = [str(w.message) for w in caught]
    return [text for text in texts if "fitted to few counts are biased" in text], result


def of_label(model, groups, **options):
    return regress_proportions(model, {"g": groups == 1}, n_permutations=0, **options)


def of_number(model, groups, **options):
    x = groups + np.linspace(0, 0.5, groups.size)
    return regress_proportions(model, {"x": x}, n_permutations=0, **options)


def of_trend(model, groups, **options):
    doses = 3 * groups + np.arange(groups.size) % 3
    return permutation_test(model, doses, statistic="trend", n_permutations=19, **options)


def of_all(model, groups, **options):
    return permutation_test(model, groups, n_permutations=19, **options)


def of_each(model, groups, **options):
    return group_effects(model, groups, n_permutations=19, **options)


def of_weights(model, groups, **options):
    return bootstrap_weights(model, groups, n_replicates=19, **options)


CALLS = [of_all, of_trend, of_each, of_label, of_number, of_weights]


@pytest.fixture(scope="module")
def fits():
    """Few counts of topics that are alike, and more counts of topics that differ."""
    return (
        simulated(1, 0.9, [8, 200], max_iter=30),
        simulated(1, 0.0, [20, 200], max_iter=30),
    )


@pytest.mark.parametrize("call", CALLS)
def test_depth_is_warned_of_where_noise_matters(call, fits):
    for (model, groups), warned in zip(fits, (True, False), strict=True):
        texts, _ = depth_warnings(call, model, groups)
        assert len(texts) == warned
        if warned:
            assert "have 8 counts on average" in texts[0]
            assert "have 200: " in texts[0]
            assert "total=8," in texts[0]
    if call is of_number:
        assert "samples of group 'x <= " in depth_warnings(call, *fits[0])[0][0]


def test_noise_of_samples_averages_in_their_units():
    model, groups = simulated(1, 0.5, [8, 200], n=120, in_unit=12, max_iter=30)
    units = np.arange(groups.size) // 12
    assert depth_warnings(of_each, model, groups)[0]
    assert not depth_warnings(of_each, model, groups, units=units)[0]


@pytest.mark.parametrize("model_class", [LDA, GammaPoisson])
def test_amounts_of_new_samples_are_those_of_the_fit(model_class):
    model, _ = simulated(0, 0.3, [30, 90], n=20, model=model_class, max_iter=20)
    amounts = amounts_of_new_samples(model, model.loadings_, model.sample_totals_)
    expected = topics_of_samples(model).rows
    np.testing.assert_allclose(proportions(amounts), expected, rtol=0, atol=1e-4)


def test_samples_drawn_again_have_the_proportions_of_the_fit():
    model, _ = simulated(0, 0.0, [300, 300], n=4)
    source = np.repeat(np.arange(8), 5)
    for sums in None, {"both": [0, 2]}:
        topics = topics_of_samples(model, topic_sums=sums)
        again = _drawn_again(topics, source, np.full(40, 5000), np.random.default_rng(0))
        np.testing.assert_allclose(again, topics.rows[source], atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overlap", "depths", "holds"), [(0.5, [20, 200], True), (0.8, [8, 200], False)]
)
def test_tests_lose_their_level_where_depth_is_warned_of(overlap, depths, holds):
    rejected, warned = [], []
    for seed in range(40):
        fit = simulated(seed, overlap, depths, n=100, n_topics=5, n_features=200)
        texts, test = depth_warnings(of_each, *fit)
        rejected.append((test.pvalue <= 0.05).mean())
        warned.append(bool(texts))
    error = np.std(rejected, ddof=1) / np.sqrt(40)
    assert (np.mean(rejected) < 0.05 + 3 * error) == holds
    assert np.mean(warned) <= 0.1 if holds else np.mean(warned) >= 0.9
