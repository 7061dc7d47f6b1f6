"""Estimators: the habits of scikit-learn, and what transform and score promise."""

import pickle
import tracemalloc
import warnings

import internals
import numpy as np
import oracle
import pandas as pd
import pytest
import scipy.sparse as sp
from night import at_night
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import nmfscale.cli
from nmfscale import LDA, NoisyTopicModel, PoissonNMF, TopicModel
from nmfscale.engine.memory import MemoryLimitError
from nmfscale.experimental import SparsityPenalty
from nmfscale.methods.poisson.solvers import SOLVERS

MODELS = [PoissonNMF, TopicModel]


def make_counts(n=40, m=30, K=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(3 * rng.gamma(0.4, size=(n, K)) @ rng.gamma(0.4, size=(K, m)))


X = make_counts()


def fitted(model=PoissonNMF, counts=X, n_components=3, **options):
    options = {"max_iter": 30, "tol": 0, "random_state": 0, "n_threads": 1} | options
    return model(n_components, **options).fit(counts)


# Habits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_pickle_is_the_same_model(model):
    one = fitted(model)
    other = pickle.loads(pickle.dumps(one))
    assert_array_equal(one.transform(X), other.transform(X))
    assert one.history_.tobytes() == other.history_.tobytes()


@pytest.mark.parametrize("model", MODELS)
def test_a_clone_has_the_parameters_and_no_fit(model):
    copy = clone(fitted(model, solver="scd", inner_iter=2))
    assert copy.get_params()["inner_iter"] == 2
    with pytest.raises(NotFittedError):
        copy.transform(X)


@pytest.mark.parametrize("model", MODELS)
def test_names_come_out(model):
    frame = pd.DataFrame(
        X, columns=[f"gene{j}" for j in range(30)], index=[f"s{i}" for i in range(40)]
    )
    one = fitted(model, frame)
    name = model.__name__.lower()
    assert_array_equal(one.get_feature_names_out(), [f"{name}{k}" for k in range(3)])
    assert_array_equal(one.feature_names_in_, frame.columns)
    assert_array_equal(one.sample_names_, frame.index)
    assert one.n_features_in_ == 30
    out = one.set_output(transform="pandas").transform(frame)
    assert list(out.columns) == list(one.get_feature_names_out())
    assert list(out.index) == list(frame.index)
    with pytest.raises(ValueError, match="feature names"):
        one.transform(frame[frame.columns[::-1]])
    with pytest.raises(ValueError, match="29 features"):
        one.transform(X[:, 1:])


def test_anndata_names():
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(sp.csr_matrix(X, dtype=np.float32))
    adata.var_names = [f"gene{j}" for j in range(30)]
    one = fitted(counts=adata)
    assert_array_equal(one.feature_names_in_, adata.var_names)
    assert_array_equal(one.sample_names_, adata.obs_names)
    assert one.transform(adata).shape == (40, 3)
    frame = one.set_output(transform="pandas").transform(adata)
    assert list(frame.index) == list(adata.obs_names)
    adata.obsm["topics"] = frame  # which refuses another index
    assert list(one.fit_transform(adata).index) == list(adata.obs_names)


def test_pipeline_and_grid_search():
    steps = make_pipeline(FunctionTransformer(sp.csr_matrix), fitted())
    assert steps.fit_transform(X).shape == (40, 3)
    search = GridSearchCV(
        TopicModel(max_iter=20, tol=0, n_threads=1, random_state=0), {"n_components": [1, 3]}, cv=2
    ).fit(make_counts(60, 30))
    assert search.best_params_ == {"n_components": 3}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("model", MODELS)
def test_dtype(model):
    for dtype, counts, of_model, of_transform in (
        (None, X, np.float64, np.float64),
        (None, X.astype(np.float32), np.float64, np.float32),
        ("float64", X.astype(np.float32), np.float64, np.float64),
        (np.float32, X, np.float32, np.float32),
    ):
        one = fitted(model, counts, dtype=dtype)
        assert one.components_.dtype == one.loadings_.dtype == of_model
        assert one.transform(counts).dtype == of_transform


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components"),
        ({"n_components": 2.5}, "n_components"),
        ({"solver": "mu"}, "solver"),
        ({"init": "pca"}, "init"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1}, "tol"),
        ({"n_init": 0}, "n_init"),
        ({"inner_iter": 0}, "inner_iter"),
        ({"extrapolate": "yes"}, "extrapolate"),
        ({"dtype": np.float16}, "dtype"),
        ({"dtype": "int64"}, "dtype"),
        ({"n_threads": 0}, "n_threads"),
        ({"n_threads": 1.5}, "n_threads"),
        ({"integer": "maybe"}, "integer"),
        ({"prior_factors": 0.5}, "prior_factors"),
        ({"prior_factors": np.full(30, 1.5)}, r"prior_factors: alpha has shape \(30,\)"),
        ({"prior_loadings": (2.0,)}, "prior_loadings is a tuple of 1"),
        (
            {"penalty": SparsityPenalty(0.5)},
            r"penalty=SparsityPenalty\(weight=0.5\) cannot be combined with solver='auto'",
        ),
        ({"penalty": 0.5}, "penalty=0.5 of .*experimental.SparsityPenalty"),
        ({"penalty": SparsityPenalty(0.5, on="topics")}, "'on' parameter of SparsityPenalty"),
        ({"penalty": SparsityPenalty(1, exponent=1.5)}, "'exponent' parameter of Sparsity.* 1.5"),
        ({"penalty": SparsityPenalty(-1)}, "'weight' parameter of SparsityPenalty"),
        ({"penalty": SparsityPenalty(True)}, "weight is True"),
        ({"callback": 3}, "callback"),
        ({"random_state": "seed"}, "random_state"),
        ({"init": np.zeros(3)}, "init"),
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_a_wrong_parameter_is_named(model, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fitted(model, **options)


@pytest.mark.parametrize(
    "method", ["transform", "score", "perplexity", "inverse_transform", "get_feature_names_out"]
)
def test_nothing_works_before_fit(method):
    with pytest.raises(NotFittedError):
        getattr(PoissonNMF(2), method)(*([X] if method != "get_feature_names_out" else []))


def test_counts_without_names_for_a_model_with_names():
    one = fitted(counts=pd.DataFrame(X, columns=[f"gene {j}" for j in range(X.shape[1])]))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        one.transform(sp.csr_array(X))
    assert not hasattr(one.fit(sp.csr_array(X)), "feature_names_in_")


def test_sparse_loadings_are_multiplied():
    one = fitted()
    expected = one.inverse_transform(one.loadings_)
    assert_allclose(one.inverse_transform(sp.csr_matrix(one.loadings_)), expected, rtol=1e-12)


def test_fractions_warn_once_or_are_refused():
    with pytest.warns(
        UserWarning, match="PoissonNMF holds counts that are not whole numbers"
    ) as caught:
        fitted(counts=X / 2)
    assert len(caught) == 1
    with pytest.raises(ValueError, match="not whole"):
        fitted(counts=X / 2, integer="require")


# Transform ------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("model", MODELS)
def test_transform_leaves_the_model_alone(model, solver):
    one = fitted(model, solver=solver, max_iter=8)
    before = {name: pickle.dumps(value) for name, value in vars(one).items()}
    for call in (one.transform, one.score, one.perplexity):
        call(make_counts(seed=5))
    one.inverse_transform(one.loadings_)
    assert {name: pickle.dumps(value) for name, value in vars(one).items()} == before


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", MODELS)
def test_transform_treats_samples_one_by_one(model, dtype):
    one = fitted(model, dtype=dtype)
    new = make_counts(45, seed=3)
    together = one.transform(new)
    order = np.random.default_rng(0).permutation(45)
    assert_array_equal(one.transform(new[order]), together[order])
    assert_array_equal(one.transform(new[7:30:3]), together[7:30:3])
    assert_array_equal(one.transform(sp.csr_array(new[:1])), together[:1])
    assert_array_equal(one.transform(np.tile(new[11], (50, 1))), np.tile(together[11], (50, 1)))


def test_transform_solves_every_sample():
    one = fitted()
    new = make_counts(20, seed=4)
    F = one.components_.T
    for y, b in zip(new.astype(float), one.transform(new), strict=True):
        best = oracle.solve_row(y, F, F.sum(axis=0))
        # Where a sample has counts that no topic explains, only the guard of the logarithm differs.
        seen = y * (F.sum(axis=1) > 0)
        losses = [oracle.row_loss(seen, F, F.sum(axis=0), x, eps=1e-30) for x in (b, best)]
        assert losses[0] <= losses[1] + 1e-6 * max(1.0, abs(losses[1]))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("model", [MODELS[0], *at_night(*MODELS[1:])])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_transform_is_transform(model, solver):
    one = model(3, solver=solver, max_iter=1000, tol=1e-6, random_state=0, n_threads=1)
    loadings = one.fit_transform(X)
    assert_array_equal(loadings, one.transform(X))
    assert_allclose(loadings, one.loadings_, atol=2e-2 * one.loadings_.max())


@pytest.mark.parametrize("model", MODELS)
def test_fit_transform_checks_and_arranges_once(model, monkeypatch):
    arranged = []

    def note_and_arrange(layout, counts, n_threads=1):
        arranged.append(counts)
        return layout(counts, n_threads)

    internals.around_layout(monkeypatch, note_and_arrange)
    half = X + 0.5
    frame = pd.DataFrame(half, index=[f"s{i}" for i in range(len(X))]).add_prefix("g")
    one = model(3, random_state=0, n_threads=1).set_output(transform="pandas")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = one.fit_transform(frame)
    assert [w.category for w in caught] == [UserWarning]
    assert len(set(map(id, arranged))) == 1
    assert list(found.index) == list(frame.index)
    assert list(one.feature_names_in_) == list(frame.columns)
    with pytest.raises(TypeError, match="row_weight"):
        one.fit_transform(frame, row_weight=1)


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        ({"n_components": True}, {}, "n_components is True; a number"),
        ({"max_iter": True}, {}, "max_iter is True; a number"),
        ({"n_threads": 10**5}, {}, "n_threads is 100000; .*at most 4,096"),
        ({}, {"row_weights": ["a"] * 40}, r"row_weights is \['a', .* numbers are needed"),
        ({}, {"row_weights": np.full(40, 1j)}, "row_weights is .*complex128"),
        ({}, {"size_factors": sp.csr_array(np.ones((40, 1)))}, "size_factors is .*csr_array"),
        ({"prior_factors": ["a", "b", "c"]}, {}, "prior_factors: alpha is .* numbers are needed"),
        ({"prior_loadings": [[1.0, 2], [1.0]]}, {}, "prior_loadings: alpha is .* numbers are"),
    ],
)
def test_what_is_no_number_is_refused_by_name(parameters, given, message):
    with pytest.raises(ValueError, match=message):
        PoissonNMF(**{"n_components": 3} | parameters).fit(X, **given)


@pytest.mark.parametrize("model", [*MODELS, LDA, NoisyTopicModel])
@pytest.mark.parametrize("n_components", [10**6, 10**9])
def test_more_components_than_fit_into_memory_are_refused(n_components, model):
    tracemalloc.start()
    try:
        with pytest.raises(MemoryLimitError, match="fit fewer components"):
            model(n_components).fit(X)
        assert tracemalloc.get_traced_memory()[1] < 10**7  # before anything grows with them
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("solver", ["scd", "auto"])
def test_the_limit_knows_what_coordinate_descent_gathers(monkeypatch, solver):
    internals.limit_is_all_memory(monkeypatch)
    ones, limit = np.ones((200_000, 3), np.uint8), 6e8
    model = PoissonNMF(3, solver=solver, n_threads=64, memory_limit=limit, max_iter=1, tol=0)
    if solver == "auto":
        model.fit(ones)
        return
    with pytest.raises(MemoryLimitError):  # 64 times 200,000 rows of 5 numbers for each of 16 lanes
        model.fit(ones)


@pytest.mark.parametrize("how", ["fit", "pipeline", "set_output", "search"])
def test_warnings_name_the_line_that_asked(how):
    half = X + 0.5
    one = PoissonNMF(2, random_state=0, max_iter=1, n_threads=1)
    if how == "pipeline":
        one = make_pipeline(one)
    elif how == "set_output":
        one.set_output(transform="pandas")
    elif how == "search":
        one = GridSearchCV(one, {"n_components": [2]}, cv=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one.fit(half)
        if how != "search":
            one.transform(half)
    assert {w.category for w in caught} == {UserWarning, ConvergenceWarning}
    assert {w.filename for w in caught} == {__file__}


def test_warnings_of_the_fit_are_kept(tmp_path):
    one = PoissonNMF(2, random_state=0, max_iter=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one.fit(X + 0.5)
        kept = [str(w.message) for w in caught]
        one.transform(X + 0.5)
    assert len(kept) == 2 and one.warnings_.tolist() == kept
    one.save(tmp_path / "model.h5")
    assert nmfscale.load(tmp_path / "model.h5").warnings_.tolist() == kept
    assert one.set_params(max_iter=200).fit(X).warnings_.tolist() == []


@pytest.mark.parametrize("model", MODELS)
def test_a_component_without_factors_has_no_loadings(model):
    F = np.array([[5.0, 0], [3, 0], [1e-3, 0], [1e-3, 0]])
    one = model(2, max_iter=50, tol=0).fit(
        [[5, 3, 0, 0], [4, 2, 0, 0]],
        loadings=np.ones((2, 2)),
        components=F.T,
        fixed_topics=[True, True],
    )
    new = [[5, 3, 1, 0], [0, 0, 0, 2]]
    L = one.transform(new)
    assert_array_equal(L[:, 1], 0)
    expected = [9 / 8.002, 2 / 8.002] if model is PoissonNMF else [1, 1]
    assert_allclose(L[:, 0], expected, rtol=1e-6)
    shares = F[:, 0] / F[:, 0].sum()
    assert one.score(new) == pytest.approx(np.sum(new * np.log(shares)) / np.sum(new))


@pytest.mark.parametrize("sizes", [np.linspace(0.2, 3, len(X)), *at_night(None)])
@pytest.mark.parametrize("prior", [None, 1.5, (3.0, 0.1)])
@pytest.mark.parametrize("model", MODELS)
def test_transform_knows_priors_and_sizes(model, prior, sizes):
    options = {"max_iter": 3000, "tol": 1e-7, "random_state": 0, "n_threads": 1}
    one = model(3, prior_loadings=prior, **options)
    loadings = one.fit_transform(X, size_factors=sizes)
    assert_array_equal(loadings, one.transform(X, size_factors=sizes))
    assert prior is None or loadings.min() > 0
    assert_allclose(loadings, one.loadings_, atol=1e-3 * one.loadings_.max())


def test_sizes_of_transform_are_checked():
    with pytest.raises(ValueError, match=r"size_factors\[2\] is 0"):
        fitted().transform(X, size_factors=[1, 2, 0] + [1] * (len(X) - 3))


@pytest.mark.parametrize(("model", "prior", "warns"), [
    (PoissonNMF, None, True), (TopicModel, None, False), (TopicModel, 1.5, True)
])  # fmt: skip
def test_transform_without_the_sizes_of_the_fit(model, prior, warns, recwarn, tmp_path, capsys):
    sizes = np.linspace(0.2, 3, len(X))
    one = model(3, prior_loadings=prior, random_state=0, max_iter=200).fit(X, size_factors=sizes)
    one.save(tmp_path / "one.h5")
    for again in (one, nmfscale.load(tmp_path / "one.h5")):
        recwarn.clear()
        again.transform(X)
        told = [str(each.message) for each in recwarn]
        assert [("Pass size_factors= to transform" in text) for text in told] == [True] * warns
        recwarn.clear()
        again.transform(X, size_factors=np.ones(len(X)))
        again.fit(X).transform(X)
        assert not recwarn.list
    sp.save_npz(tmp_path / "X.npz", sp.csr_array(X))
    words = ["transform", tmp_path / "one.h5", tmp_path / "X.npz", "-o", tmp_path / "L.npy"]
    assert nmfscale.cli.main([str(word) for word in words]) == 0
    assert ("Pass size_factors= to transform" in capsys.readouterr().err) == warns


# The topic model ------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_topic_model_is_a_poisson_nmf_rescaled(solver):
    topics, factors = (
        fitted(model, solver=solver, max_iter=10) for model in (TopicModel, PoissonNMF)
    )
    assert_allclose(topics.components_.sum(axis=1), 1, rtol=1e-12)
    assert_allclose(topics.loadings_.sum(axis=1), 1, rtol=1e-12)
    assert_allclose(
        topics.size_factors_[:, None] * topics.inverse_transform(topics.loadings_),
        factors.inverse_transform(factors.loadings_),
        rtol=1e-9, atol=1e-12,
    )  # fmt: skip
    for of_topics, of_factors in zip(
        topics.poisson_factors(), factors.poisson_factors(), strict=True
    ):
        assert_allclose(of_topics, of_factors, rtol=1e-9, atol=1e-12)
    assert_allclose(factors.poisson_factors()[1].T, factors.components_, rtol=0)
    expected = nmfscale.likelihood.loglik_multinomial(
        X, topics.loadings_, topics.components_.T
    ).sum()
    assert topics.loglik_ == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sizes", [None, np.linspace(0.2, 3, len(X))])
def test_sizes_are_totals_at_the_optimum(sizes):
    one = TopicModel(3, max_iter=300, tol=0, random_state=0, n_threads=1)
    one.fit(X, size_factors=sizes)
    assert_allclose(one.size_factors_, X.sum(axis=1), rtol=1e-3, atol=1e-3)


# Score ----------------------------------------------------------------------------------------


def test_both_models_have_one_score():
    one, other = fitted(PoissonNMF), fitted(TopicModel)
    assert one.score(X) == pytest.approx(other.score(X), rel=1e-6)
    assert other.score(X) == pytest.approx(
        np.sum(X * np.log(np.maximum(other.transform(X) @ other.components_, 1e-30))) / X.sum(),
        rel=1e-9,
    )


def test_more_components_score_higher_on_what_they_were_fitted_to():
    scores = [fitted(n_components=K, max_iter=100).score(X) for K in (1, 2, 4)]
    assert scores[0] < scores[1] < scores[2] < 0


def test_no_counts_score_zero():
    one = fitted()
    assert one.score(np.zeros((3, 30))) == 0.0
    assert one.perplexity(np.zeros((3, 30))) == 1.0


@pytest.mark.parametrize("model", MODELS)
def test_inverse_transform_is_the_product(model):
    one = fitted(model)
    expected = one.loadings_ @ one.components_
    np.testing.assert_allclose(one.inverse_transform(one.loadings_), expected, rtol=1e-13)
    found = one.inverse_transform(sp.csr_array(one.loadings_))
    np.testing.assert_array_equal(found, one.inverse_transform(one.loadings_))
    with pytest.raises(ValueError, match=r"\(n_samples, 3\)"):
        one.inverse_transform(one.loadings_[:, :2])
