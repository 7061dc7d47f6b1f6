"""Features of topics over time and by source: oracles, a drifting word, coverage, study designs."""

import internals
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline

import nmfscale
from nmfscale import TopicModel, features_by_group, match_topics

K, M, N = 3, 45, 360
RISING = 3  # a word of the first topic


def simulated(seed, n=N, rise=1.0, author=0.0, n_authors=60, shape=None, crossing=False):
    """Counts of three periods; the first topic becomes more frequent, and one of its words, too.

    With `author`, words of an author have factors with this standard deviation of logarithms. An
    author writes in one period, or in all of them.
    """
    rng = np.random.default_rng(seed)
    words = np.full((K, M), 0.02)
    for k in range(K):
        words[k, k * M // K : (k + 1) * M // K] = rng.gamma(5, 1, M // K)
    period = np.arange(n) % 3
    of_author = rng.integers(0, n_authors // 3, n) * (1 if crossing else 3)
    of_author = of_author if crossing else of_author + period
    shares = rng.dirichlet(np.full(K, 0.2), n)
    shares[period == 2] = rng.dirichlet([1.5, 0.2, 0.2], (period == 2).sum())
    ratios = np.ones((3, K, M)) if shape is None else rng.gamma(shape, 1 / shape, (3, K, M))
    ratios[:, 0, RISING] *= 2.0 ** (rise * np.arange(3) / 2)
    truth = words * ratios
    truth /= truth.sum(axis=2, keepdims=True)
    styles = np.exp(author * rng.standard_normal((n_authors, K, M)))
    means = np.empty((n, M))
    for i in range(n):
        own = truth[period[i]] * styles[of_author[i]]
        means[i] = 150 * shares[i] @ (own / own.sum(axis=1, keepdims=True))
    return rng.poisson(means), 2001 + period, of_author, truth


@pytest.fixture(scope="module")
def drift():
    X, years, _, truth = simulated(0)
    X = pd.DataFrame(X, [f"text {i}" for i in range(N)], [f"word {j}" for j in range(M)])
    model = TopicModel(K, random_state=0).fit(X)
    model = model.reorder_topics(match_topics(truth[0], model.components_).order)
    return X, years, truth, model


def test_a_word_drifts_within_a_topic_that_becomes_more_frequent(drift):
    X, years, truth, model = drift
    found = features_by_group(model, X, years)
    assert found.groups == (2001, 2002, 2003) and found.reference == 2001
    assert found.leading(0)[0] == RISING
    right = np.log2(truth[2, 0, RISING] / truth[0, 0, RISING])
    assert found.lfc_lower[2, 0, RISING] < right < found.lfc_upper[2, 0, RISING]
    assert found.lfc_lower[2, 0, RISING] > 0.5
    # the share of the topic triples, which changes no other word of it
    right = np.log2(truth / truth[:1])[:, 0, :15]
    inside = (found.lfc_lower[1:, 0, :15] <= right[1:]) & (right[1:] <= found.lfc_upper[1:, 0, :15])
    assert inside.mean() >= 0.85
    assert abs((found.lfc[2, 0, :15] - right[2]).mean()) < 0.06
    assert np.abs(found.lfc[2, 0, :15] - right[2]).max() < 0.35
    there = (found.lfc_lower[1:, 0] > 0) | (found.lfc_upper[1:, 0] < 0)
    assert not there[:, 15:].any()
    # nor does the word in other topics
    assert np.abs(found.lfc[:, 1:, RISING]).max() < 0.1
    assert_allclose(found.frequencies.sum(axis=2), 1)
    table = found.to_frame(0)
    row = table[(table.group == 2003) & (table.feature == f"word {RISING}")].iloc[0]
    assert (row.frequency, row.lfc) == (found.frequencies[2, 0, RISING], found.lfc[2, 0, RISING])
    counts = np.asarray(X)[years == 2003].sum(axis=0)
    assert_allclose(found.counts[2].sum(axis=0), counts, rtol=1e-9)


@pytest.mark.parametrize("name", ["PoissonNMF", "LDA", "GammaPoisson", "pipeline"])
def test_any_model_with_loadings(name, drift):
    X, years, truth, _ = drift
    if name == "pipeline":
        model = make_pipeline("passthrough", TopicModel(K, random_state=0)).fit(X)
    else:
        model = getattr(nmfscale, name)(K, random_state=0).fit(X)
    found = features_by_group(model, X, years)
    topic = int(match_topics(truth[0], model[-1] if name == "pipeline" else model).order[0])
    assert found.leading(topic, 1).tolist() == [RISING]
    assert found.lfc_lower[2, topic, RISING] > 0.5


def penalised_modes(X, L, F, a, e=1.0):
    """Return ratios (K, m) that EM steps find, and the inverse of the curvature (m, K, K)."""
    r = np.ones_like(F)
    for _ in range(20000):
        parts = e * (L[:, :, None] * (F * r))
        z = (parts / parts.sum(axis=1, keepdims=True) * X[:, None]).sum(axis=0)
        before, r = r, (a + z) / (a + (e * (L[:, :, None] * F)).sum(axis=0))
        if np.abs(r - before).max() < 1e-12:
            break
    parts = e * (L[:, :, None] * (F * r))
    shares = parts / parts.sum(axis=1, keepdims=True)
    H = np.einsum("ij,ikj,iqj->jkq", X, shares, shares)
    return r, np.linalg.inv(H + a.T[:, :, None] * np.eye(len(F))), shares, parts


@pytest.mark.parametrize("what", ["samples", "units", "batches"])
def test_modes_and_variances_are_those_of_plain_formulas(what):
    X, years, authors, _ = simulated(1, n=90, n_authors=24)
    X, batch = X[:, :24], np.arange(90) // 2 % 2
    if what == "batches":
        X[batch == 1, ::3] *= 3
    model = TopicModel(K, random_state=0, prior_factors=1.1).fit(
        X, **({"batch": batch} if what == "batches" else {})
    )
    units = authors if what == "units" else None
    found = features_by_group(model, X, years, units=units, shape=6.0)
    F = model.components_ / model.components_.sum(axis=1, keepdims=True)
    e = np.ones((90, 1, 24))
    L = model.loadings_ * model.sample_totals_[:, None]
    if what == "batches":
        e = model.batch_efficiencies_[batch][:, None]
        # amounts with which all efficiencies are 1
        L = nmfscale.pseudobulk(model, X).sizes.sum(axis=0)
    for g, year in enumerate(found.groups):
        here = years == year
        a = 6.0 * found.dispersions * np.ones((K, 1))
        r, V, shares, parts = penalised_modes(X[here], L[here], F, a, e[here])
        right = F * r / (F * r).sum(axis=1, keepdims=True)
        assert_allclose(found.frequencies[g], right, rtol=1e-5)
        scores = X[here][:, None] * shares - parts
        labels = np.arange(here.sum()) if units is None else authors[here]
        sums = np.array([scores[labels == u].sum(axis=0) for u in np.unique(labels)])
        S = np.einsum("ukj,uqj->jkq", sums, sums) * len(sums) / (len(sums) - 1)
        P = (found.dispersions * a).T[:, :, None] * np.eye(K)
        variance = np.diagonal(V @ (S + P) @ V, axis1=1, axis2=2).T
        from scipy.stats import t

        margin = t.ppf(0.975, len(sums) - 1) * np.sqrt(variance)
        assert_allclose(np.log(found.upper[g] / found.frequencies[g]), margin, rtol=1e-5)


def test_the_same_bits_from_files_and_with_threads_in_any_order(drift, tmp_path, monkeypatch):
    X, years, _, model = drift
    found = features_by_group(model, X, years, against="others", n_threads=1)
    nmfscale.write_store(X, tmp_path / "texts.nmf")
    internals.few_features_together(monkeypatch, 500)
    internals.small_panels(monkeypatch, 600)
    again = features_by_group(
        model, tmp_path / "texts.nmf", years, against="others", n_threads=2, memory_limit="8GB"
    )
    for name in ("frequencies", "lower", "lfc", "lfc_upper", "counts", "dispersions"):
        assert_array_equal(getattr(found, name), getattr(again, name))
    order = np.random.default_rng(0).permutation(N)
    years = pd.Series(years, X.index)
    mixed = nmfscale.as_counts(X.iloc[order, ::-1])  # features in another order, too
    with pytest.warns(UserWarning, match="matched by name"):
        mixed = features_by_group(model, mixed, years[::-1], against="others")
    assert_allclose(mixed.lfc_upper, found.lfc_upper, rtol=1e-9, atol=1e-12)


def test_changes_of_units_with_samples_in_all_groups_are_those_within_them():
    """Styles of authors that write in all periods cancel, if it is known who they are."""
    X, years, authors, truth = simulated(2, author=0.6, n_authors=45, crossing=True)
    model = TopicModel(K, random_state=0).fit(X)
    model = model.reorder_topics(match_topics(truth[0], model.components_).order)
    within = features_by_group(model, X, years, units=authors)
    cells = [f"{author} {year}" for author, year in zip(authors, years, strict=True)]
    apart = features_by_group(model, X, years, units=cells)
    assert_allclose(within.lower, apart.lower, rtol=1e-12)
    width = [(of.lfc_upper - of.lfc_lower)[1:, 0, :15].mean() for of in (within, apart)]
    assert width[0] < 0.9 * width[1]
    # the same as samples, if each has a unit of its own
    numbers = np.arange(N)
    of_samples, of_units = (
        features_by_group(model, X, years, units=units, against="others")
        for units in (None, numbers)
    )
    assert_allclose(of_samples.lfc_upper, of_units.lfc_upper, rtol=1e-8, atol=1e-9)


def test_changes_against_others_and_the_strength_of_the_prior(drift):
    X, years, _, model = drift
    sources = np.array(["left", "middle", "right"])[years - 2001]
    found = features_by_group(model, X, sources)
    assert found.reference is None and found.groups == ("left", "middle", "right")
    assert features_by_group(model, X, sources, against="first").reference == "left"
    dates = np.array(["2001-03", "2001-10", "2002-01"])[years - 2001]
    assert features_by_group(model, X, dates).reference == "2001-03"
    # amounts of the topics in the sources
    sizes = np.array(
        [model.loadings_[years == y].T @ X.sum(axis=1)[years == y] for y in (2001, 2002, 2003)]
    )
    others = found.frequencies[:2] * sizes[:2, :, None]
    right = found.frequencies[2] / (others.sum(axis=0) / sizes[:2].sum(axis=0)[:, None])
    assert_allclose(found.lfc[2], np.log2(right), atol=1e-6)
    weak, strong = (features_by_group(model, X, years, shape=a) for a in (1.0, 1e5))
    assert weak.lfc[2, 0, RISING] > found.lfc[2, 0, RISING]
    assert np.abs(strong.lfc).max() < 0.02
    # a word that occurs once more than expected does not jump
    assert np.abs(features_by_group(model, X, years).lfc[:, 0, 15:]).max() < 0.5


def test_the_strength_of_the_prior_is_found():
    X, years, _, _ = simulated(3, n=600, rise=0, shape=8.0)
    model = TopicModel(K, random_state=0).fit(X)
    found = features_by_group(model, X, years, shape="auto")
    # deviations from the mean of three groups have 2/3 of the variance
    assert 6 < np.exp(np.log(found.shapes).mean()) < 24
    X, years, _, _ = simulated(3, n=600, rise=0)
    model = TopicModel(K, random_state=0).fit(X)
    assert features_by_group(model, X, years, shape="auto").shapes.min() > 100


def test_what_cannot_be_compared_is_refused(drift):
    X, years, _, model = drift
    lonely = np.where(np.arange(N) == 5, 1999, years)
    for groups, complaint in (
        (None, "groups is needed: a label for each sample"),
        (np.full(N, "a"), "groups has only 'a': two groups"),
        (lonely, "groups with fewer than two samples: 1999. Merge them"),
        (np.arange(N), "each of the 360 groups has a single one of the samples"),
        (years[:-1], "groups has 359 labels"),
    ):
        with pytest.raises(ValueError, match=complaint):
            features_by_group(model, X, groups)
    with pytest.raises(ValueError, match="groups has a single one of the units: how much"):
        features_by_group(model, X, years, units=years)
    for wrong in ({"shape": 0}, {"shape": "none"}, {"against": "last"}, {"level": 95}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            features_by_group(model, X, years, **wrong)
    with pytest.warns(UserWarning, match="groups with fewer than 5 units: 2001, 2002, 2003"):
        features_by_group(model, X, years, units=np.arange(N) % 12)
    batch = np.where(years > 2002, "b", "a")
    batched = TopicModel(K, random_state=0, tol=0.01).fit(X, batch=batch)
    with pytest.warns(UserWarning, match="fitted with batch=, and conditions"):
        features_by_group(batched, X, years)


def test_what_is_drawn(drift):
    pytest.importorskip("matplotlib")
    X, years, _, model = drift
    found = features_by_group(model, X, years)
    ax = nmfscale.pl.features_by_group_plot(found, 0, features=["word 3", "word 20"])
    first = ax.child_axes[0]
    assert [panel.get_title() for panel in ax.child_axes] == ["word 3", "word 20"]
    assert_array_equal(first.lines[0].get_xdata(), [2001, 2002, 2003])
    assert_allclose(first.lines[0].get_ydata(), 100 * found.frequencies[:, 0, 3])
    sources = features_by_group(model, X, [f"{year} paper" for year in years])
    ax = nmfscale.pl.features_by_group_plot(sources, 0, n_top=2)
    panel = ax.child_axes[0]
    assert panel.get_title() == "word 3"
    assert [text.get_text() for text in panel.get_yticklabels()] == [*sources.groups]
    assert_allclose(panel.lines[0].get_xdata(), 100 * sources.frequencies[:, 0, 3])
    for wrong, complaint in (
        ({"features": ["none"]}, "features: the result has no 'none'"),
        ({"topic": 7}, "topic"), ({"result": model}, "features_by_group is needed"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=complaint):
            nmfscale.pl.features_by_group_plot(**({"result": found, "topic": 0} | wrong))


def test_results_of_objects(drift):
    anndata = pytest.importorskip("anndata")
    X, years, _, model = drift
    adata = anndata.AnnData(X.astype(float))
    adata.obs["year"] = years
    nmfscale.tl.topics(adata, K, random_state=0)
    nmfscale.tl.features_by_group(adata, "year")
    kept = nmfscale.get.result(adata, "features_by_group")
    right = features_by_group(nmfscale.get.model(adata), X, years)
    assert_array_equal(kept.lfc, right.lfc)
    assert kept.origin.groups == "year"
    pytest.importorskip("matplotlib")
    assert nmfscale.pl.features_by_group_plot(adata, 0, n_top=2).child_axes


@pytest.mark.nightly
def test_intervals_cover_the_truth_if_units_are_known():
    """Frequencies of the leading words, in three designs of twelve sets of texts."""
    for author, crossing in ((0.0, False), (0.7, False), (0.7, True)):
        covered = {"texts": [], "authors": []}
        widths = {"texts": [], "authors": []}
        for seed in range(12):
            X, years, authors, truth = simulated(
                10 + seed, n=600, rise=0.8, author=author, shape=10, crossing=crossing
            )
            model = TopicModel(K, random_state=0).fit(X)
            model = model.reorder_topics(match_topics(truth[0], model.components_).order)
            large, right = truth.mean(axis=0) > 0.02, np.log2(truth / truth[:1])
            for name, units in (("texts", None), ("authors", authors)):
                of = features_by_group(model, X, years, units=units)
                inside = (of.lfc_lower <= right) & (right <= of.lfc_upper)
                covered[name].append(inside[1:, large].mean())
                widths[name].append((of.lfc_upper - of.lfc_lower)[1:, large].mean())
        assert 0.9 < np.mean(covered["authors"]) < 0.99, (author, crossing, covered)
        if author and not crossing:  # styles of authors with texts in all periods cancel
            assert np.mean(widths["authors"]) > 1.2 * np.mean(widths["texts"])
            assert np.mean(covered["texts"]) < 0.85
