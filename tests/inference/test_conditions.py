"""Conditions within topics: the tests of the definition, their level, designs of donors."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chi2, false_discovery_control
from scipy.stats import t as student

import nmfscale
from nmfscale import condition_features, pseudobulk
from nmfscale.inference.features.conditions_tests import median_ratios
from nmfscale.inference.features.quasi_likelihood import (
    common_alpha,
    fit_features,
    variances,
    with_pseudocounts,
)
from nmfscale.inference.features.unmixing import Unmixing
from nmfscale.inference.moderation import VariancePrior, VarianceTrend
from nmfscale.inference.quantiles import t_pvalue

M, CELLS = 200, 15


def cells(n_donors, *, crossed=False, spread=0.3, fold=2.0, seed=0, mixture=0.05):
    """Return counts of cells of two types, their donors and conditions; a tenth of genes differ.

    Cells have nearly one type each, or more with a larger `mixture`. Genes vary between donors, and
    between samples of a donor.
    """
    rng = np.random.default_rng(seed)
    n = 2 * n_donors
    donors = np.arange(n) % n_donors if crossed else np.arange(n)
    treated = np.repeat([False, True], n_donors)
    F = rng.gamma(1, 2, (2, M)) + 0.2
    F[0, : M // 4] *= 8
    F[1, M // 4 : M // 2] *= 8
    of_donor = rng.normal(0, spread, (n, M))[donors] + rng.normal(0, spread / 3, (n, M))
    rates = F * np.exp(of_donor)[:, None]  # unit, type, gene
    rates[treated, 1, M - M // 10 :] *= fold
    sample = np.repeat(np.arange(n), CELLS)
    shares = rng.dirichlet([mixture, mixture], n * CELLS)
    X = rng.poisson((shares[:, :, None] * rates[sample]).sum(axis=1))
    return X, donors[sample], treated[sample]


@pytest.fixture(scope="module")
def study():
    X, donors, treated = cells(6)
    return nmfscale.TopicModel(2, random_state=0).fit(X), X, donors, treated


def unmixed(model, X, donors, k, measured=True):
    """Return counts (U, m) of topic k in donors, and their inflation, by the definition."""
    samples = pseudobulk(model, X)
    A, f = samples.sizes.sum(axis=0), np.maximum(samples.frequencies, 1e-14)
    there = np.broadcast_to(measured, X.shape)
    parts = A[:, :, None] * f * there[:, None]
    means = parts.sum(axis=1)
    confusion = np.einsum("nkm,nlm->mkl", parts, parts / np.maximum(means, 1e-300)[:, None])
    inverses = np.linalg.inv(confusion / confusion.sum(axis=1)[:, None])
    residuals = np.einsum("mkl,nlm->nkm", inverses, samples.counts - parts)
    of_samples = parts[:, k] + residuals[:, k]
    sums = [of_samples[donors == donor].sum(axis=0) for donor in np.unique(donors)]
    return np.array(sums), np.maximum(inverses[:, k, k], 1)


def test_tests_are_those_of_the_definition(study):
    """A negative binomial deviance with moderated phi, by statsmodels and SciPy."""
    sm = pytest.importorskip("statsmodels.api")
    model, X, donors, treated = study
    changes = condition_features(model, X, treated, units=donors, normalize="total")
    bulk = pseudobulk(model, X, units=donors)
    sizes, design = bulk.sizes[0, :, 0], np.column_stack([np.ones(12), np.arange(12) >= 6])
    of_topic, inflation = unmixed(model, X, donors, 0)
    base_mean = np.maximum(of_topic.mean(axis=0), 0)
    assert_allclose(changes.base_mean[0], base_mean, rtol=1e-4, atol=1e-4)
    effective = np.maximum(of_topic, 0).T / inflation[:, None]
    tested = np.flatnonzero(effective.sum(axis=1) >= 10)
    assert_array_equal(np.flatnonzero(changes.tested[0, 0]), tested)
    added, alpha = 0.125 * sizes / sizes.mean(), changes.alpha[0]
    counts = effective[tested] + added
    family = sm.families.NegativeBinomial(alpha=alpha)
    rows = []
    for y in counts:
        full, null = (
            sm.GLM(y, part, family=family, offset=np.log(sizes)).fit(tol=1e-12)
            for part in (design.astype(float), np.ones(12))
        )
        weights = (full.mu - added) * (1 + alpha * full.mu)
        left = 1 - full.get_influence().hat_matrix_diag
        expected = (weights * left).sum()
        phi, freedom = ((y - full.mu) ** 2).sum() / expected, expected**2 / (weights**2 @ left)
        rows.append([full.params[1], null.deviance - full.deviance, phi, freedom])
    betas, ratios, variances, freedom = np.array(rows).T
    prior = VarianceTrend.of(variances, freedom, counts.mean(axis=1))
    phi, freedom = prior.moderated(variances, freedom)
    at = 0, 0, tested
    assert_allclose(changes.lfc[at], betas / np.log(2), rtol=1e-4, atol=1e-4)
    assert_allclose(changes.t[at] ** 2, ratios / phi, rtol=1e-2, atol=1e-4)
    assert_allclose(changes.freedom[at], freedom, rtol=1e-2)
    assert_allclose(
        changes.pvalue[at], 2 * student.sf(np.abs(changes.t[at]), changes.freedom[at]), rtol=1e-9
    )
    assert_allclose(changes.qvalue[at], false_discovery_control(changes.pvalue[at]))


def test_counts_of_mixed_samples_have_the_changes_of_their_own_topic():
    """Without noise, and with the same mixtures in all units, they are exact."""
    rng = np.random.default_rng(0)
    shares, f = rng.dirichlet([1, 1, 1], 40), rng.dirichlet(np.ones(50), 3)
    changes = np.ones((4, 3, 50))
    changes[2:, 1, :10] = 3
    sizes = 1e5 * np.concatenate([shares] * 4)
    X = np.rint(np.concatenate([1e5 * shares @ (f * change) for change in changes]))
    model = nmfscale.PoissonNMF(3, random_state=0).fit(X)
    model.loadings_, model.components_ = sizes, f
    bulk = pseudobulk(model, X, units=np.repeat(np.arange(4), 40))
    unmixing = Unmixing.of(bulk)
    for k in range(3):
        expected = 1e5 * shares[:, k].sum() * f[k] * changes[:, k]
        assert_allclose(unmixing.counts(bulk, k), expected, rtol=0.01, atol=30)
        assert not np.allclose(bulk.counts[:, k], expected, rtol=0.1)
    assert (unmixing.inflation > 1.1).all()


@pytest.mark.nightly
def test_intervals_cover_the_changes_of_mixed_samples():
    covered, elsewhere = [], []
    for seed in range(6):
        X, donors, treated = cells(8, seed=seed, mixture=0.7)
        model = nmfscale.TopicModel(2, random_state=0).fit(X)
        changes = condition_features(model, X, treated, units=donors)
        own = int(model.components_[:, M // 4 : M // 2].sum(axis=1).argmax())
        differs = np.arange(M) >= M - M // 10
        inside = (changes.lower[0] <= 1) & (1 <= changes.upper[0])
        covered.append(inside[own, differs & changes.tested[0, own]].mean())
        other = differs & changes.tested[0, 1 - own]
        elsewhere.append((changes.pvalue[0, 1 - own, other] < 0.05).mean())
    assert np.mean(covered) > 0.87 and np.mean(elsewhere) < 0.15


def test_features_with_counts_in_few_units_are_not_tested(study):
    """Counts of one cell say nothing of a condition; those of all treated donors do."""
    model, X, donors, treated = study
    X = X.copy()
    X[:, :2] = 0
    X[np.flatnonzero(treated)[3], 0] = 60
    X[treated, 1] = 2
    changes = condition_features(
        nmfscale.TopicModel(2, random_state=0).fit(X), X, treated, units=donors
    )
    assert not changes.tested[0, :, 0].any() and changes.qvalue[0, :, 1].min() < 1e-4


def test_intervals_agree_with_p_and_tables_with_both(study):
    model, X, donors, treated = study
    changes = condition_features(model, X, treated, units=donors, level=0.9)
    outside = (changes.lower > 0) | (changes.upper < 0)
    assert_array_equal(outside, changes.tested & (changes.pvalue < 0.1))
    frame = changes.to_frame()
    assert len(frame) == changes.tested.sum() and not frame.isna().any(axis=None)
    assert (frame.groupby("topic").pvalue.diff().dropna() >= 0).all()
    assert_allclose(frame.lfc, frame.t * frame.std_error, rtol=1e-9, atol=1e-2)
    for name in ("lfc", "lower", "t"):
        assert not getattr(changes, name)[~changes.tested].any()


@pytest.mark.parametrize("crossed", [False, True])
def test_a_condition_is_found_in_its_topic_only(crossed):
    X, donors, treated = cells(8, crossed=crossed, fold=3.0)
    model = nmfscale.TopicModel(2, random_state=0).fit(X)
    changes = condition_features(model, X, treated, units=donors)
    own = int(model.components_[:, M // 4 : M // 2].sum(axis=1).argmax())
    differs = np.arange(M) >= M - M // 10
    found = changes.qvalue[0] < 0.05
    assert found[own, differs].mean() > (0.9 if crossed else 0.7)
    assert changes.lfc[0, own, differs & changes.tested[0, own]].mean() > 1
    assert found[:, ~differs].mean() < 0.02 and found[1 - own].mean() < 0.05
    assert changes.paired is crossed and ("within units" in repr(changes)) is crossed
    null = changes.pvalue[0, 1 - own][changes.tested[0, 1 - own] & ~differs]
    assert 0.01 < (null < 0.05).mean() < 0.1


@pytest.mark.nightly
@pytest.mark.parametrize(("n_donors", "crossed"), [(4, False), (8, True)])
def test_the_level_is_held(n_donors, crossed):
    rejected = []
    for seed in range(12):
        X, donors, treated = cells(n_donors, crossed=crossed, fold=1.0, seed=seed)
        model = nmfscale.TopicModel(2, random_state=0).fit(X)
        changes = condition_features(model, X, treated, units=donors)
        rejected.append((changes.pvalue[changes.tested] < 0.05).mean())
    assert 0.03 < np.mean(rejected) < 0.07


def test_three_groups_strata_and_covariates(study):
    model, X, donors, treated = study
    dose = np.array(["none", "low", "high"])[donors % 3]
    batch, age = donors // 4, np.array([30.0, 40, 55, 61])[donors % 4] + 1e9
    changes = condition_features(
        model, X, dose, units=donors, reference="none", strata=batch, covariates={"age": age}
    )
    assert changes.compared == ("high", "low") and changes.n_units[0].tolist() == [4, 4, 4]
    assert changes.freedom[0, 0, 0] > 12 - 6
    plain = condition_features(model, X, dose, units=donors, reference="none")
    assert not np.allclose(plain.lfc, changes.lfc)
    with pytest.raises(ValueError, match="group is needed: the groups compared are 'high', 'low'"):
        nmfscale.pl.volcano_plot(changes, 0)
    ax = nmfscale.pl.volcano_plot(changes.contrast("low"), 0)
    labels = ax.get_xlabel(), ax.get_ylabel()
    assert labels == ("log2 fold change against none", "evidence, |t| between units")
    assert_array_equal(ax.collections[0].get_offsets()[:3, 1] >= 0, True)


def test_what_cannot_be_compared_is_left_out_and_said(study):
    """A topic that one group lacks, and features that a batch did not measure."""
    model, X, donors, treated = study
    first = int(model.components_[:, : M // 4].sum(axis=1).argmax())
    L = model.loadings_.copy()
    L[treated, first] = 0
    L[~L.any(axis=1)] = 0.5
    lacking = nmfscale.TopicModel(2, random_state=0).fit(X)
    lacking.loadings_ = L
    L[treated & (L[:, first] == 0.5)] = np.eye(2)[1 - first]
    with pytest.warns(UserWarning, match="1 of 2 comparisons are left out.*no unit of group True"):
        changes = condition_features(lacking, X, treated, units=donors)
    assert changes.left_out[0][:2] == (first, True)
    assert not changes.tested[0, first].any() and set(changes.to_frame().topic) == {1 - first}


def test_unmeasured_features_are_compared_among_the_units_that_measured_them(study):
    _, X, donors, treated = study
    measured, batch = np.ones((2, M), bool), (donors % 6 >= 4).astype(int)
    measured[1, :30] = False
    X = np.where(measured[batch], X, 0)
    model = nmfscale.TopicModel(2, random_state=0).fit(X, measured=measured, panel=batch)
    changes = condition_features(model, X, treated, units=donors, normalize="total")
    kept = np.unique(donors[batch == 0])
    sizes = pseudobulk(model, X, units=donors).sizes[0, kept, 0]
    of_topic, inflation = unmixed(model, X, donors, 0, measured[batch])
    effective = np.maximum(of_topic, 0) / inflation
    counts = effective[kept, :30].T + 0.125 * sizes / sizes.mean()
    design = np.column_stack([np.ones(8), kept >= 6]).astype(float)
    fits = fit_features(counts, sizes, design, changes.alpha[0])
    tested = changes.tested[0, 0, :30]
    assert tested.sum() > 10
    expected = fits.coefficients[tested, 1] / np.log(2)
    assert_allclose(changes.lfc[0, 0, :30][tested], expected, rtol=1e-4, atol=1e-4)


def test_sizes_of_units_have_the_efficiencies_of_their_batches():
    X, donors, treated = cells(8)
    batch = np.isin(donors, [0, 1, 8, 9, 10, 11, 12, 13]).astype(int)  # more of the treated donors
    rng = np.random.default_rng(3)
    X = rng.binomial(X, rng.choice([0.3, 0.9], (2, M))[batch])
    model = nmfscale.TopicModel(2, random_state=0).fit(X, batch=np.array(["a", "b"])[batch])
    bulk = pseudobulk(model, X, units=donors)
    assert bulk.batches == ("a", "b")
    passed = model.batch_efficiencies_ @ model.components_.T
    whole = X.sum(axis=1) / (model.loadings_ * passed[batch]).sum(axis=1)
    expected = model.loadings_[:, 0] * whole
    sizes = np.array([
        sum(expected[(donors == u) & (batch == b)].sum() * model.batch_efficiencies_[b]
            for b in (0, 1)) for u in range(16)
    ])  # fmt: skip
    assert_allclose(bulk.sizes_of_features(0), sizes, rtol=1e-6)
    efficiency = np.array(bulk.to_anndata(0).layers["efficiencies"])
    assert_allclose(efficiency * bulk.sizes.sum(axis=0)[:, [0]], sizes, rtol=1e-6)
    changes = condition_features(model, X, treated, units=donors, normalize="total")
    counts = np.maximum(Unmixing.of(bulk).counts(bulk, 0), 0).T
    counts /= Unmixing.of(bulk).inflation[0][:, None]
    design = np.column_stack([np.ones(16), np.arange(16) >= 8])
    fits = fit_features(with_pseudocounts(counts, sizes.T), sizes.T, design, changes.alpha[0])
    tested = changes.tested[0, 0]
    assert tested.sum() > 150
    assert_allclose(changes.lfc[0, 0, tested], fits.coefficients[tested, 1] / np.log(2), rtol=1e-6)
    null = changes.pvalue[0, :, : M - M // 10][changes.tested[0, :, : M - M // 10]]
    assert (null < 0.05).mean() < 0.1
    alone = replace(bulk, efficiencies=None, sizes=bulk.sizes.sum(axis=0, keepdims=True))
    without = condition_features(model, alone, np.arange(16) >= 8)
    assert (without.pvalue[without.tested] < 0.05).mean() > 0.2
    with pytest.warns(UserWarning, match="batch=, and conditions False and True have no batch in"):
        condition_features(model, bulk, batch[np.searchsorted(donors, np.arange(16))] == 1)


def test_donors_with_one_condition_do_not_contribute_beside_pairs():
    X, donors, treated = cells(6, crossed=True)
    kept = ~((donors == 5) & treated)
    model = nmfscale.TopicModel(2, random_state=0).fit(X[kept])
    with pytest.warns(UserWarning, match="1 of 6 units have samples in one group only"):
        some = condition_features(model, X[kept], treated[kept], units=donors[kept])
    assert some.freedom[some.tested].min() >= 4  # 11 units, less 6 donors and the group


def test_variances_of_pairs_with_small_counts():
    """Pairs without counts have no degrees of freedom, unlike in Pearson's statistic."""
    rng = np.random.default_rng(0)
    design = np.column_stack([np.tile(np.eye(10), (2, 1))[:, 1:], np.arange(20) >= 10])
    design = np.column_stack([np.ones(20), design]).astype(float)
    sizes = np.ones(20)
    for mean in (0.4, 5.0):
        counts = with_pseudocounts(rng.poisson(mean, (2000, 20)).astype(float), sizes)
        fit = fit_features(counts, sizes, design, 0.0)
        phi, freedom = variances(counts, fit, sizes, 0.0)
        assert_allclose(phi.mean(), 1, rtol=0.1)
        assert freedom.max() <= 9 + 1e-6 and (freedom.mean() > 8) == (mean == 5)
    pearson = ((counts - fit.means) ** 2 / fit.means).sum(axis=1) / 9
    assert_allclose(pearson.mean(), phi.mean(), rtol=0.1)  # the same where counts are large


def test_prior_of_variances_and_tails_of_t():
    rng = np.random.default_rng(0)
    means = rng.uniform(1, 100, 20_000)
    sigma = 3 * np.sqrt(means) * 8 / chi2.rvs(8, size=20_000, random_state=rng)
    values = sigma * chi2.rvs(5, size=20_000, random_state=rng) / 5
    plain = VariancePrior.of(values / np.sqrt(means), np.full(20_000, 5.0))
    assert_allclose([plain.scale, plain.freedom], [3, 8], rtol=0.1)
    prior = VarianceTrend.of(values, np.full(20_000, 5.0), means)
    assert_allclose(prior.scale, 3 * np.sqrt(means), rtol=0.15)
    assert_allclose(prior.freedom, 8, rtol=0.1)
    values = chi2.rvs(5, size=500, random_state=rng) / 5
    equal = VarianceTrend.of(values, np.full(500, 5.0), means[:500])
    values[0], values[1] = 0.0, 400.0
    values, freedom = equal.moderated(values, np.full(500, 5.0))
    assert equal.freedom > 50 and values[0] > 0.5 and freedom[2:].min() > 50
    assert (values[1], freedom[1]) == (400, 5)  # an outlier
    t = np.array([0.0, 0.3, 2.5, 40.0])
    for freedom in (1.0, 7.5, 4e4):
        assert_allclose(t_pvalue(t, freedom), 2 * student.sf(t, freedom), rtol=1e-9, atol=1e-300)


def test_few_frequent_features_that_rise_make_no_others_fall():
    rng = np.random.default_rng(0)
    means = np.outer(rng.gamma(5, size=6), rng.gamma(1, 200, 100) + 20)
    means[3:, :5] += 4 * means.mean()
    counts = rng.poisson(means).astype(float)
    sizes = counts.sum(axis=1)
    rates = counts[:, 5:].sum(axis=1) / (sizes * median_ratios(counts, sizes[:, None]))
    assert np.ptp(counts[:, 5:].sum(axis=1) / sizes) > 0.1
    assert_allclose(rates, rates.mean(), rtol=0.03)
    assert_array_equal(median_ratios(counts[:, :10], sizes[:, None]), 1)


def test_alpha_of_negative_binomial_counts():
    rng = np.random.default_rng(0)
    mu = np.repeat(rng.uniform(20, 500, (4000, 1)), 10, axis=1)
    counts = rng.negative_binomial(5, 5 / (5 + mu)).astype(float)
    means = np.repeat(counts.mean(axis=1, keepdims=True), 10, axis=1)
    assert_allclose(common_alpha(counts, means, 9), 0.2, rtol=0.1)
    assert common_alpha(rng.poisson(mu).astype(float), mu, 10) < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": np.zeros(180)}, "groups has only 0.0: two groups"),
        ({"reference": "x"}, "reference='x' is not one of the groups: False, True"),
        ({"min_count": 0}, "min_count=0: a positive number"),
        ({"level": 2}, "level=2"),
        ({"normalize": "rpkm"}, "normalize='rpkm' is not one of"),
        ({"groups": np.arange(180) // 15}, "a different label for each of 12 units"),
    ],
)
def test_refusals(study, options, message):
    model, X, donors, treated = study
    groups = options.pop("groups", treated)
    with pytest.raises(ValueError, match=message):
        condition_features(model, X, groups, units=donors, **options)
