"""What questions about groups take of samples: proportions or amounts, without empty samples."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import nmfscale
from nmfscale.inference.design.groups import (
    MANY_SAMPLES,
    checked_design,
    checked_labels,
    warn_of_samples_as_units,
)
from nmfscale.inference.design.loadings import topics_of_samples

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(RNG.dirichlet(np.ones(3), 60) @ RNG.gamma(0.3, 9.0, (3, 30)))
COUNTS[[3, 4, 50]] = 0
MODELS = {
    "PoissonNMF": {}, "TopicModel": {}, "LDA": {}, "GammaPoisson": {}, "NoisyTopicModel": {},
    "AnchorNMF": {}, "SSNMF": {"y": np.resize([0, 1], 60)},
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return getattr(nmfscale, request.param)(3).fit(COUNTS, **MODELS[request.param])


@pytest.mark.filterwarnings("ignore:SSNMF has not converged")
def test_rows_of_every_model(model, tmp_path):
    with pytest.warns(UserWarning, match="^3 of 60 samples are left out: they have no counts.$"):
        shares = topics_of_samples(model)
    amounts = topics_of_samples(model, "amounts", warn=False).rows
    full = COUNTS.any(axis=1)
    assert_array_equal(shares.empty, ~full)
    assert_allclose(shares.rows.sum(axis=1), full)
    assert_allclose(amounts[full] / amounts[full].sum(axis=1, keepdims=True), shares.rows[full])
    if type(model).__name__ not in ("AnchorNMF", "SSNMF"):  # which fit no totals
        assert_allclose(amounts.sum(axis=1), COUNTS.sum(axis=1), rtol=1e-3)
    model.save(tmp_path / "model.h5")
    again = topics_of_samples(nmfscale.load(tmp_path / "model.h5"), warn=False)
    assert_array_equal(again.rows, shares.rows)


def test_the_scale_of_components_and_of_arrays_is_no_matter():
    model = nmfscale.PoissonNMF(3, random_state=0).fit(COUNTS)
    expected = topics_of_samples(model, "amounts", warn=False).rows
    scales = np.array([1.0, 8.0, 0.25])
    model.loadings_ = model.loadings_ * scales
    model.components_ = model.components_ / scales[:, None]
    assert_allclose(topics_of_samples(model, "amounts", warn=False).rows, expected, rtol=1e-12)
    shares = topics_of_samples(expected, warn=False).rows
    for scale in 1e-250, 1e250:
        assert_allclose(topics_of_samples(expected * scale, warn=False).rows, shares, rtol=1e-12)


def test_empty_documents_are_no_group_of_their_own():
    """As a group, documents without words "differed" from all with p = 0.0001."""
    counts = np.concatenate([COUNTS[5:50], COUNTS[5:25], np.zeros((40, 30), int)])
    groups = np.repeat(["a", "b", "empty"], [45, 20, 40])
    model = nmfscale.TopicModel(3, random_state=0).fit(counts)
    options = {"n_permutations": 99, "random_state": 0}
    with pytest.warns(UserWarning, match="40 of 105 samples .* no counts; with them groups empty"):
        found = nmfscale.permutation_test(model, groups, **options)
    assert found.overall.groups == ("a", "b") and found.overall.n_units == (45, 20)
    alone = nmfscale.permutation_test(model.loadings_[:65], groups[:65], **options)
    assert found.overall.pvalue == alone.overall.pvalue
    with pytest.raises(ValueError, match="none of 3 samples has topics: their loadings are all 0"):
        nmfscale.permutation_test(np.zeros((3, 2)), ["a", "a", "b"])


def test_amounts_weigh_deep_samples_more():
    amounts = np.array([[8.0, 2.0], [0.1, 0.9], [1, 1], [2, 2], [3, 3], [4, 4]])
    groups, units = [0, 0, 0, 1, 1, 1], [0, 0, 1, 2, 3, 4]
    options = {"units": units, "statistic": lambda tables: tables[:, 0, 0], "alpha": 0.9}
    shares = nmfscale.permutation_test(amounts, groups, **options).overall
    assert shares.observed == pytest.approx((0.8 + 0.1) / 2 + 0.5)
    assert nmfscale.permutation_test(
        amounts, groups, scale="amounts", **options
    ).overall.observed == pytest.approx(9.1)
    with pytest.raises(ValueError, match="scale='counts' is not one of 'proportions', 'amounts"):
        nmfscale.permutation_test(amounts, groups, scale="counts")


def test_thousands_of_samples_as_units_are_warned_of(recwarn):
    groups = checked_labels(
        np.repeat(["a", "b"], [MANY_SAMPLES + 1, 5]), MANY_SAMPLES + 6, "groups"
    )
    with pytest.warns(UserWarning, match="each of 1,001 samples of group 'a' .* Pass units="):
        warn_of_samples_as_units(checked_design(groups))
    warn_of_samples_as_units(checked_design(groups, np.arange(len(groups))))
    assert len(recwarn) == 0
