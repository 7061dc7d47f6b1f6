"""Topics of a fit in another order, merged, renamed, matched with those of another, compared."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from small_fits import X

import nmfscale
from nmfscale.methods.topics.merging import merged_factors

LABELS = np.resize(["b", "a", "c"], len(X))
NAMES = np.array([f"gene {j}" for j in range(X.shape[1])], object)
MAKERS = {
    "PoissonNMF": lambda: nmfscale.PoissonNMF(4, max_iter=15, prior_loadings=[1, 1.1, 1.2, 1.3]),
    "TopicModel": lambda: nmfscale.TopicModel(4, max_iter=15, prior_factors=([1.1] * 4, 1.0)),
    "LDA": lambda: nmfscale.LDA(4, max_iter=15, doc_topic_prior=[0.1, 0.2, 0.3, 0.4]),
    "GammaPoisson": lambda: nmfscale.GammaPoisson(4, max_iter=15, shape_loadings=[1, 2, 3, 4]),
    "hierarchical": lambda: nmfscale.GammaPoisson(4, max_iter=15, hierarchical=True),
    "NoisyTopicModel": lambda: nmfscale.NoisyTopicModel(4, max_iter=15),
    "AnchorNMF": lambda: nmfscale.AnchorNMF(4),
    "SSNMF": lambda: nmfscale.SSNMF(4, losses="DD", max_iter=15, supervision=1.0),
}
MERGING = ["PoissonNMF", "TopicModel", "LDA", "SSNMF"]


def fitted(name, **options):
    model = MAKERS[name]().set_params(random_state=0, **options)
    if "tol" in model.get_params():
        model.set_params(tol=0)
    frame = pd.DataFrame(X, columns=NAMES)
    return model.fit(frame, LABELS if name == "SSNMF" else None)


def mergeable(name):
    prior = {
        "PoissonNMF": "prior_loadings",
        "TopicModel": "prior_factors",
        "LDA": "doc_topic_prior",
    }
    return fitted(name, **({prior[name]: None} if name in prior else {}))


def state(model):
    return {name: np.copy(value) for name, value in vars(model).items() if name.endswith("_")}


@pytest.fixture(scope="module")
def pair():
    """Two fits of the same counts, of 4 and 3 topics."""
    counts = pd.DataFrame(X, columns=NAMES)
    return [nmfscale.TopicModel(K, random_state=K, max_iter=60, tol=0).fit(counts) for K in (4, 3)]


# --- Another order ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_another_order_is_the_same_model(name, tmp_path):
    model, order = fitted(name), [2, 0, 3, 1]
    before = state(model)
    counts = pd.DataFrame(X, columns=NAMES)
    turned = model.reorder_topics(order)
    for attribute, value in state(model).items():  # not in place
        assert_array_equal(value, before[attribute])
    assert_array_equal(turned.components_, model.components_[order])
    assert_array_equal(turned.loadings_, model.loadings_[:, order])
    for each in (turned, model):
        each.save(tmp_path / f"{each is turned}.h5")  # whose shapes are checked when it is read
    again = nmfscale.load(tmp_path / "True.h5")
    assert_allclose(again.transform(counts), model.transform(counts)[:, order], atol=2e-4)
    assert_allclose(again.score(counts, LABELS), model.score(counts, LABELS), rtol=1e-6)
    if name == "AnchorNMF":
        assert_array_equal(turned.anchor_names_, NAMES[turned.anchors_])
    back = turned.reorder_topics(np.argsort(order))
    for attribute, value in state(back).items():
        assert_array_equal(value, before[attribute])
    for parameter in ("prior_loadings", "doc_topic_prior", "shape_loadings"):
        if name in ("PoissonNMF", "LDA", "GammaPoisson") and hasattr(model, parameter):
            given = np.asarray(getattr(model, parameter))
            assert_array_equal(getattr(turned, parameter), given[order])


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        ([0, 1, 2], "each of the 4 topics"),
        ([0, 1, 2, 2], "each of the 4 topics"),
        ([0, 1, 2, 4], "4 is not a topic: topics are 0 to 3"),
        ([0, 1, 2, True], "True is not a topic"),
        ([0, 1, 2, "x"], "no topic is named 'x'; topics have numbers from 0 to 3, and"),
    ],
)
def test_orders_that_are_none(pair, order, complaint):
    with pytest.raises(ValueError, match=complaint):
        pair[0].reorder_topics(order)


# --- Merged -----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_merged_factors_keep_expected_totals(seed):
    rng = np.random.default_rng(seed)
    K = int(rng.integers(2, 6))
    L, F = rng.gamma(0.5, size=(7, K)), rng.gamma(0.5, size=(9, K)) * np.exp(rng.normal(size=K))
    L[:, rng.random(K) < 0.2] = 0
    F[:, rng.random(K) < 0.2] = 0
    label = rng.integers(0, K - 1, K)
    parts = [np.flatnonzero(label == g).tolist() for g in np.unique(label)]
    L_new, F_new = merged_factors(L, F, parts)
    before, after = L @ F.T, L_new @ F_new.T
    for axis in (0, 1):
        assert_allclose(after.sum(axis=axis), before.sum(axis=axis), rtol=1e-10, atol=1e-12)
    for at, part in enumerate(parts):  # each group by itself
        assert_allclose(
            L_new[:, at] * F_new[:, at].sum(), L[:, part] @ F[:, part].sum(axis=0), atol=1e-12
        )
        if len(part) == 1:
            assert_array_equal(F_new[:, at], F[:, part[0]])
            assert_array_equal(L_new[:, at], L[:, part[0]])


def test_equal_topics_merge_without_loss():
    rng = np.random.default_rng(0)
    L, F = rng.gamma(1.0, size=(6, 3)), rng.gamma(1.0, size=(8, 3))
    F[:, 2] = 5 * F[:, 0]
    L_new, F_new = merged_factors(L, F, [[0, 2], [1]])
    assert_allclose(L_new @ F_new.T, L @ F.T)


def test_merging_goes_with_conversion():
    model = mergeable("TopicModel")
    parts = [[0, 3], [1], [2]]
    L, F = nmfscale.likelihood.multinomial_to_poisson(
        model.loadings_, model.components_.T, model.size_factors_, model.scales_
    )
    merged = model.merge_topics([[3, 0]])
    found = nmfscale.likelihood.multinomial_to_poisson(
        merged.loadings_, merged.components_.T, merged.size_factors_, merged.scales_
    )
    for one, other in zip(found, merged_factors(L, F, parts), strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    assert_allclose(merged.loadings_[:, 0], model.loadings_[:, [0, 3]].sum(axis=1))
    assert_allclose(merged.components_.sum(axis=1), 1)


def test_merged_dirichlet_parameters_add():
    model = mergeable("LDA")
    merged = model.merge_topics([[1, 2]])
    eta, m = model.topic_word_prior_, X.shape[1]
    for name, axis in (("doc_topic_posterior_", 1), ("doc_topic_prior_", 0), ("loadings_", 1)):
        total = getattr(model, name)[..., [1, 2]].sum(axis=-1)
        assert_allclose(getattr(merged, name).take(1, axis), total)
    counts = (model.topic_word_posterior_ - eta)[[1, 2]].sum(axis=0)
    assert_allclose(merged.topic_word_posterior_[1] - eta, counts, atol=1e-9)
    # all counts are in all topics
    assert_allclose(merged.topic_word_posterior_.sum() - 3 * m * eta, X.sum(), rtol=1e-9)
    options = {"doc_topic_prior": 0.25, "max_iter": 15, "tol": 0, "random_state": 0}
    points = nmfscale.LDA(4, topic_word_prior=0, **options).fit(X)
    expected = (points.doc_topic_posterior_ - points.doc_topic_prior_).sum(axis=0)
    assert_allclose(
        points.merge_topics([[0, 1, 2, 3]]).components_[0], expected @ points.components_ / X.sum()
    )


@pytest.mark.parametrize("name", MERGING)
def test_merged_models_are_models(name, tmp_path):
    model = mergeable(name)
    before, counts = state(model), pd.DataFrame(X, columns=NAMES)
    merged = model.merge_topics({"both": [3, 1]})
    for attribute, value in state(model).items():
        assert_array_equal(value, before[attribute])
    assert merged.topic_names_.tolist() == ["topic 0", "both", "topic 2"]
    assert merged.n_components == merged.n_components_ == 3
    assert not hasattr(merged, "history_") and not hasattr(merged, "converged_")
    merged.save(tmp_path / "merged.h5")
    again = nmfscale.load(tmp_path / "merged.h5")
    assert_array_equal(again.transform(counts), merged.transform(counts))
    assert again.transform(counts).shape == (len(X), 3)
    assert np.isfinite(again.score(counts, LABELS))
    assert_array_equal(model.merge_topics([]).components_, model.components_)


@pytest.mark.parametrize("name", sorted(set(MAKERS) - set(MERGING)))
def test_what_has_no_merged_topics_says_why(name):
    with pytest.raises(ValueError, match="cannot be merged: .*(anchor|Gamma)"):
        fitted(name).merge_topics([[0, 1]])


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ([0, 1], "sequences of topics"),
        (["ab"], "sequences of topics"),
        ([[0, 1], [1, 2]], "one group at most"),
        ([[]], "a topic at least"),
        ([[0, 9]], "9 is not a topic"),
        ({"topic 3": [0, 1]}, "several topics would be 'topic 3'"),
    ],
)
def test_groups_that_are_none(pair, groups, complaint):
    with pytest.raises(ValueError, match=complaint):
        pair[0].merge_topics(groups)


def test_priors_of_single_topics_are_not_merged():
    with pytest.raises(ValueError, match="prior_loadings has numbers of its own for each topic"):
        fitted("PoissonNMF").merge_topics([[0, 1]])


# --- Names ------------------------------------------------------------------------------------


def test_names_stay_with_their_topics(pair, tmp_path):
    model = pair[0].rename_topics(["a", "b", "c", "d"])
    assert not hasattr(pair[0], "topic_names_")
    assert model.rename_topics({"b": "x", 3: "y"}).topic_names_.tolist() == ["a", "x", "c", "y"]
    turned = model.reorder_topics(["d", 0, "c", 1])
    assert turned.topic_names_.tolist() == ["d", "a", "c", "b"]
    assert model.merge_topics([["d", "b"]]).topic_names_.tolist() == ["a", "d + b", "c"]
    turned.save(tmp_path / "model.h5")
    again = nmfscale.load(tmp_path / "model.h5")
    assert again.topic_names_.tolist() == turned.topic_names_.tolist()
    counts = pd.DataFrame(X, columns=NAMES)
    assert list(again.set_output(transform="pandas").transform(counts)) == ["d", "a", "c", "b"]
    assert not hasattr(again.fit(counts), "topic_names_")


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["a"], "1 entries for 4 topics"),
        ("abcd", "1 entries for 4 topics"),
        (["a", "b", "c", "a"], "several topics would be 'a'"),
        (["a", "b", "c", 3], "3 is not a name"),
        ({0: "topic 1"}, "several topics would be 'topic 1'"),
        ({7: "x"}, "7 is not a topic"),
    ],
)
def test_names_that_are_none(pair, names, complaint):
    with pytest.raises(ValueError, match=complaint):
        pair[0].rename_topics(names)


# --- Two fits ---------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["lift", "cosine", "bhattacharyya"]))
def test_matches_are_the_best_of_all(seed, metric):
    rng = np.random.default_rng(seed)
    a, b = rng.gamma(0.3, size=(rng.integers(1, 5), 8)), rng.gamma(0.3, size=(4, 8))
    match = nmfscale.match_topics(a, 7 * b, metric=metric)
    a, b = (A / A.sum(axis=1, keepdims=True) for A in (a, b))
    if metric == "lift":
        mean = (a.mean(axis=0) + b.mean(axis=0)) / 2
        a, b = ((A - (mean if len(a) > 1 else 0)) / np.sqrt(mean) for A in (a, b))
    elif metric == "bhattacharyya":
        a, b = np.sqrt(a), np.sqrt(b)
    p, q = (A / np.linalg.norm(A, axis=1, keepdims=True) for A in (a, b))
    expected = np.maximum(p @ q.T, 0)
    assert_allclose(match.similarities, expected, atol=1e-12)
    best = max(
        sum(expected[k, j] for k, j in enumerate(chosen))
        for chosen in permutations(range(4), len(a))
    )
    assert_allclose(match.similarity.sum(), best)
    assert sorted(match.order) == [0, 1, 2, 3] and len(match.unmatched_b) == 4 - len(a)


def test_lift_tells_topics_apart_that_share_most_of_their_features():
    rng = np.random.default_rng(0)
    shared = rng.lognormal(0, 2, 400)
    topics = shared * np.where(rng.random((5, 400)) < 0.05, 3, 1)
    refit = topics[[2, 0, 1, 4, 3]] * rng.lognormal(0, 0.05, (5, 400))
    match = nmfscale.match_topics(topics, refit)
    assert match.order.tolist() == [1, 2, 0, 4, 3]
    others = match.similarities.copy()
    others[tuple(match.pairs.T)] = 0
    assert match.similarity.min() > 0.9 and others.max() < 0.3
    assert nmfscale.match_topics(topics, refit, metric="cosine").similarities.min() > 0.7


@pytest.mark.parametrize("K", [1, 3])
def test_topics_that_are_all_alike_are_similar(K):
    alike = np.tile([5.0, 1, 0, 2], (K, 1))
    assert_allclose(nmfscale.match_topics(alike, alike).similarities, 1)
    near = nmfscale.match_topics(alike[:1], alike[:1] + [[0.1, 0, 0.1, 0]])
    assert near.similarity[0] > 0.9
    assert_array_equal(nmfscale.match_topics(np.eye(4)[:3], np.zeros((3, 4))).similarities, 0)


def test_fits_are_matched_by_the_names_of_features(pair):
    model, columns = pair[0], np.random.default_rng(0).permutation(len(NAMES))
    turned = pd.DataFrame(model.components_[[2, 0, 1]][:, columns], columns=NAMES[columns])
    match = nmfscale.match_topics(model, turned)
    assert match.pairs.tolist() == [[0, 1], [1, 2], [2, 0]] and match.unmatched_a == ["topic 3"]
    assert_allclose(match.similarity, 1)
    assert match.n_features == len(NAMES)
    assert match.to_frame().a.tolist() == ["topic 0", "topic 1", "topic 2", "topic 3"]
    assert match.to_frame().b.isna().tolist() == [False] * 3 + [True]
    with pytest.warns(UserWarning, match="10 features are in one of the fits only; the 50 in both"):
        assert nmfscale.match_topics(model, turned.iloc[:, 10:]).n_features == 50


@pytest.mark.parametrize(
    ("b", "complaint"),
    [
        (np.ones((2, 3)), "a has 60 features and b has 3"),
        (np.ones(3), "b is ndarray of shape"),
        (-np.ones((2, 60)), "finite and non-negative"),
        (pd.DataFrame(np.ones((2, 2)), columns=["x", "y"]), "no feature in common"),
        (pd.DataFrame(np.ones((2, 2)), columns=["x", "x"]), "[Uu]nique"),
    ],
)
def test_what_cannot_be_matched(pair, b, complaint):
    with pytest.raises(ValueError, match=complaint):
        nmfscale.match_topics(pair[0], b)
    with pytest.raises(ValueError, match="metric='l2' is not one of 'lift', 'cosine'"):
        nmfscale.match_topics(pair[0], b, metric="l2")


def test_repeated_names_cannot_be_matched(pair):
    repeated = pair[1].rename_topics(["a", "b", "c"])  # a copy
    repeated.feature_names_in_ = np.resize(NAMES[:30], 60)
    with pytest.raises(ValueError, match="several features of b have one name"):
        nmfscale.match_topics(pair[0], repeated)


def test_comparison_says_how_fits_went(pair):
    model, other = pair
    merged = model.merge_topics([[0, 1]])
    found = nmfscale.compare_fits(
        {"one": model, "other": other, "merged": merged}, pd.DataFrame(X, columns=NAMES)
    )
    table = found.to_frame().set_index("name")
    assert table.index.tolist() == ["one", "other", "merged"]
    assert table.loc["one", "similarity"] == pytest.approx(1, rel=1e-14)
    assert table.loc["other", "least_similarity"] < 1 - 1e-9
    last = other.history_[-1]
    assert found.fits[1].objective == "loglik_multinomial"
    expected = other.loglik_, last["seconds"], max(last["kkt_loadings"], last["kkt_factors"])
    assert tuple(table.loc["other", ["value", "seconds", "residual"]]) == expected
    assert found.fits[1].n_iter == 60 and found.fits[2].n_iter is None
    counts = pd.DataFrame(X, columns=NAMES)
    assert_allclose(table.score, [each.score(counts) for each in (model, other, merged)])
    small = np.mean(other.components_ < 1e-8)
    assert_allclose(table.loc["other", "sparsity_components"], small)
    assert [len(line) for line in repr(found).splitlines()] == [len(repr(found).split("\n")[0])] * 4
    with pytest.raises(ValueError, match="models is list: a dict of fits by name"):
        nmfscale.compare_fits([model])


def test_comparison_of_scores_stability_and_quality(pair):
    counts = pd.DataFrame(X, columns=NAMES)
    starts = nmfscale.stability(nmfscale.TopicModel(4), counts, n_starts=3, random_state=0)
    fits = dict(zip(("one", "other"), pair, strict=True))
    found = nmfscale.compare_fits(
        fits, counts, held_out=counts.iloc[::2], stability={"one": starts, "other": 0.5},
        n_top=5, random_state=0,
    )  # fmt: skip
    table = found.to_frame().set_index("name")
    others = np.arange(3) != starts.best
    assert table.stability.tolist() == [pytest.approx(starts.similarities[others].mean()), 0.5]
    for name, fit in fits.items():
        quality = nmfscale.topic_quality(fit, counts, n_top=5)
        assert table.loc[name, "npmi"] == quality.npmi.mean()
        assert table.loc[name, "diversity"] == quality.diversity
        assert table.loc[name, "deviance_explained"] == quality.deviance_explained
        assert table.loc[name, "held_out"] < table.loc[name, "score"] < 0
    assert "held out" in repr(found) and "NPMI" in repr(found)
    assert "held out" not in repr(nmfscale.compare_fits(fits))
    for wrong, complaint in (
        ({"third": 1.0}, "names of the fits: 'one', 'other'"),
        ({"one": "high"}, r"stability\['one'\] is 'high': a finite number"),
    ):
        with pytest.raises(ValueError, match=complaint):
            nmfscale.compare_fits(fits, stability=wrong)


def test_comparison_scores_a_layer_and_no_classifier(pair):
    anndata = pytest.importorskip("anndata")
    counts = pd.DataFrame(X, columns=NAMES)
    labelled = nmfscale.SSNMF(4, random_state=0).fit(counts, LABELS)
    adata = anndata.AnnData(np.log1p(X), var=pd.DataFrame(index=NAMES))
    adata.layers["counts"] = X
    table = nmfscale.compare_fits({"one": pair[0], "labelled": labelled}, adata, layer="counts")
    of_one, of_labelled = (fit.score for fit in table.fits)
    assert of_one == pair[0].score(adata, layer="counts") and of_labelled is None


def test_names_in_a_series_belong_to_the_topics_of_its_index():
    X = np.random.default_rng(0).poisson(2.0, (12, 6))
    model = nmfscale.TopicModel(2, random_state=0, max_iter=3, tol=0).fit(X)
    named = model.rename_topics(pd.Series(["b", "a"], index=[1, 0]))
    assert named.topic_names_.tolist() == ["a", "b"]
    assert model.rename_topics(pd.Series(["b", "a"])).topic_names_.tolist() == ["b", "a"]
    again = named.rename_topics(pd.Series(["second"], index=["b"]))
    assert again.topic_names_.tolist() == ["a", "second"]


def test_priors_with_names_keep_them_when_topics_are_reordered():
    X = pd.DataFrame(np.random.default_rng(0).poisson(2.0, (12, 3)), columns=list("abc"))
    prior = pd.DataFrame([[1.1, 1.2], [1.3, 1.4], [1.5, 1.6]], index=list("cab"))
    model = nmfscale.PoissonNMF(2, prior_factors=prior, random_state=0, max_iter=3, tol=0).fit(X)
    found = model.reorder_topics([1, 0]).prior_factors
    assert found.loc["a"].tolist() == [1.4, 1.3]


def test_a_notebook_shows_the_topics_of_a_fitted_model():
    counts = np.eye(4) * 5 + 1
    model = nmfscale.TopicModel(2, random_state=0)
    assert "leading features" not in model._repr_mimebundle_()["text/html"]
    model.fit(counts)
    model.feature_names_in_ = np.array(["<b>", "two", "three", "four"], object)
    model.topic_names_ = np.array(["this & that", "other"], object)
    for html in (model._repr_mimebundle_()["text/html"], model._repr_html_()):
        assert "this &amp; that" in html and "&lt;b&gt;" in html
    with sklearn.config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_() and not hasattr(model, "_repr_html_")
