"""What every model promises, wherever its counts are. A new model is one line of `MODELS`."""

import inspect
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import internals
import numpy as np
import oracle
import oracle_noisy
import oracle_ssnmf
import pandas as pd
import pytest
import scipy.sparse as sp
from background_nmf import BackgroundNMF
from clusters import WALL, cluster_of, soon, tasks_known, within
from count_files import write_h5ad
from numpy.testing import assert_allclose
from oracle_gamma_poisson import elbo_of as of_gamma_poisson
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from small_fits import X

import nmfscale
from nmfscale import plots


@dataclass(frozen=True)
class Model:
    """An estimator, and the objective of its factors in plain NumPy: the same but for rounding.

    The objective is the first column of `history_` after the iteration and the seconds. Fits take
    18 iterations.
    """

    estimator: type
    objective: Callable
    n_components: int = 3
    options: dict = field(default_factory=lambda: {"max_iter": 18, "tol": 0})
    variant: dict = field(default_factory=dict)
    given: dict = field(default_factory=dict)  # to fit, besides the counts

    def make(self, **options):
        given = self.options | self.variant | {"random_state": 0, "n_threads": 1} | options
        known = inspect.signature(self.estimator).parameters
        given = {name: value for name, value in given.items() if name in known}
        return self.estimator(**{"n_components": self.n_components} | given)

    @property
    def name(self):
        return "-".join([self.estimator.__name__, *self.variant])

    def made_at_random(self, **options):
        """As `make`, with another start than the default where that is not random."""
        known = inspect.signature(self.estimator).parameters
        return self.make(**({"init": "random"} if "init" in known else {}) | options)

    def can(self, argument):
        """Whether `fit` takes an argument: client, checkpoint."""
        return argument in inspect.signature(self.estimator.fit).parameters


def of_poisson_nmf(fitted, counts):
    return oracle.loglik_poisson(counts, fitted.loadings_, fitted.components_.T).sum()


def of_topic_model(fitted, counts):
    topics = fitted.loadings_, fitted.components_.T, fitted.size_factors_, fitted.scales_
    return oracle.loglik_poisson(counts, *oracle.multinomial_to_poisson(*topics)).sum()


def of_lda(fitted, counts):
    return oracle.elbo_lda(
        counts, fitted.doc_topic_posterior_, fitted.topic_word_posterior_,
        fitted.doc_topic_prior_, fitted.topic_word_prior_,
    )  # fmt: skip


def of_noisy_topics(fitted, counts):
    pairs = fitted.theta_.T, fitted.topic_counts_.T, fitted.expected_counts_.T
    return oracle_noisy.elbo(counts, fitted.loadings_, fitted.mu_, *pairs)


def of_anchors(fitted, counts):
    return oracle.share_spanned(counts, fitted.anchors_)


LABELS = np.resize(["b", "a", "", "a"], len(X)).astype(object)
LABELS[LABELS == ""] = None


def of_ssnmf(fitted, counts):
    Y = (LABELS[None] == fitted.classes_[:, None]).astype(float)
    known = np.array([label is not None for label in LABELS]) * 1.0
    factors = fitted.components_.T, fitted.target_components_, fitted.loadings_.T
    kinds = ("kl", "kl")
    return -oracle_ssnmf.objective(counts.T, Y, *factors, kinds, fitted.supervision, L=known)


def of_background_nmf(fitted, counts):
    L = np.column_stack([fitted.loadings_, fitted.background_counts_])
    F = np.column_stack([fitted.components_.T, fitted.background_])
    return oracle.loglik_poisson(counts, L, F).sum()


MODELS = [
    Model(nmfscale.PoissonNMF, of_poisson_nmf),
    Model(nmfscale.TopicModel, of_topic_model),
    Model(nmfscale.LDA, of_lda),
    Model(nmfscale.GammaPoisson, of_gamma_poisson),
    Model(nmfscale.GammaPoisson, of_gamma_poisson, variant={"hierarchical": True}),
    Model(nmfscale.NoisyTopicModel, of_noisy_topics),
    Model(nmfscale.AnchorNMF, of_anchors, 18, options={}),
    Model(nmfscale.SSNMF, of_ssnmf, given={"y": LABELS}),
    Model(nmfscale.SSNMF, of_ssnmf, variant={"solver": "cd"}, given={"y": LABELS}),
    Model(BackgroundNMF, of_background_nmf),
]
load = partial(
    nmfscale.load, classes={model.estimator.__name__: model.estimator for model in MODELS}
)
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)

N, M = X.shape
rng = np.random.default_rng(2)
START = {"L": rng.uniform(0.1, 1, (N, 3)), "F": rng.uniform(0.1, 1, (M, 3))}
BATCH = np.resize(["one", "two"], N)
MEASURED = {
    "measured": np.array([X[BATCH == name].any(axis=0) for name in ("one", "two")]),
    "batch": BATCH,
}
FIXED = {"fixed_samples": np.arange(N) % 5 == 0, "fixed_features": np.arange(M) % 7 == 0}
ROW_WEIGHTS = {"row_weights": np.arange(N) % 3 * 0.7}
HELD = START | FIXED | ROW_WEIGHTS | {"size_factors": rng.uniform(0.5, 2, N)}
PRIORS = {"prior_factors": 1.1, "prior_loadings": (1.2, 0.5)}
# entries that were not observed, and entries that count less
ENTRIES = {
    "data_weights": np.where(rng.uniform(size=X.shape) < 0.2, 0, rng.integers(1, 3, X.shape))
}
TARGETS = {"y": LABELS, "label_weights": rng.uniform(0.5, 1, N)}
EM, NOT_AHEAD = {"solver": "em", "inner_iter": 1}, {"extrapolate": False}
OPTIONS = {
    nmfscale.PoissonNMF: [
        EM, EM | NOT_AHEAD | ROW_WEIGHTS, EM | HELD, EM | MEASURED | PRIORS, NOT_AHEAD,
        {"solver": "joint-em", "l1_penalty": 1.0}, {"solver": "joint-em"} | NOT_AHEAD | ROW_WEIGHTS,
        {"dtype": "float32"}, {"init": "nndsvd", "n_init": 2}, {"n_components": 20} | PRIORS,
        PRIORS | ROW_WEIGHTS, PRIORS | HELD, START | {"fixed_topics": np.arange(3) == 1},
        MEASURED, MEASURED | PRIORS | ROW_WEIGHTS,
    ],
    nmfscale.TopicModel: [
        EM, {"solver": "joint-em"}, {"init": "clusters", "dtype": "float32"}, PRIORS,
        {"prior_factors": 1.1, "n_components": 1}, MEASURED, ROW_WEIGHTS,
    ],
    nmfscale.LDA: [
        {"estimate_prior": "vector"}, {"estimate_prior": "symmetric", "init": "random"},
        {"doc_topic_prior": 0.3, "inner_iter": 3}, {"topic_word_prior": 0.0}, NOT_AHEAD,
        {"dtype": "float32", "n_init": 2},
    ],
    nmfscale.GammaPoisson: [
        {"hierarchical": True, "dtype": "float32"}, {"hierarchical": True, "inner_iter": 3},
        {"init": "random", "n_init": 2}, NOT_AHEAD,
    ],
    nmfscale.NoisyTopicModel: [
        {"init": "random", "n_init": 2}, {"L": START["L"], "mu": X.mean(axis=0) + 0.1} | FIXED,
        NOT_AHEAD, {"dtype": "float32"},
    ],
    nmfscale.AnchorNMF: [
        {"weighting": "tf-idf"}, {"weighting": "documents"}, {"projection": 20},
        {"weighting": "tf-idf", "projection": 20}, {"anchors": [5, 9], "dtype": "float32"},
    ],
    nmfscale.SSNMF: [
        *(TARGETS | {"losses": losses, "solver": solver} | entries
          for losses, entries in (("FF", ENTRIES), ("FD", {}), ("DF", {}), ("DD", ENTRIES))
          for solver in ("mu", "cd")),
        {"y": None}, TARGETS | {"dtype": "float32", "n_init": 2, "validation_fraction": 0.3},
    ],
}  # fmt: skip


def with_options(estimator, options):
    """A model with options: parameters of the estimator, and arguments of `fit`."""
    known = inspect.signature(estimator).parameters
    variant = {name: value for name, value in options.items() if name in known}
    given = {name: value for name, value in options.items() if name not in known}
    words = [f"{n}={v}" if isinstance(v, str | int | float) else n for n, v in options.items()]
    named = "-".join([estimator.__name__, *words])
    return pytest.param(Model(estimator, None, variant=variant, given=given), id=named)


every_option = pytest.mark.parametrize(
    "model", [with_options(kind, options) for kind, all_of in OPTIONS.items() for options in all_of]
)


def numbers(fitted, but=("seconds", "bytes_read")):
    """All numbers and arrays of numbers that a fit sets, as bytes."""
    arrays = {
        name: np.asarray(value)
        for name, value in vars(fitted).items()
        if name.endswith("_") and not name.startswith("_")
    }
    history = arrays.pop("history_", np.empty(0, []))
    arrays |= {name: history[name] for name in history.dtype.names if name not in but}
    return {
        name: (array.dtype.str, array.shape, array.tobytes())
        for name, array in arrays.items()
        if array.dtype.kind in "biuf"
    }


def objective(fitted):
    names = fitted.history_.dtype.names
    assert names[:2] == ("iteration", "seconds")
    return fitted.history_[names[2]]


@pytest.fixture(scope="module")
def client():
    with cluster_of(2, active=False) as client:
        yield client


@pytest.fixture
def fit(request, monkeypatch, tmp_path):
    """Fit a model to the counts in a place, read there in every iteration."""
    internals.small_blocks(monkeypatch, 300)

    def fit_in(place, model, fit_options=(), **options):
        fit_options, source = dict(fit_options), X
        with pytest.MonkeyPatch.context() as patch:
            if place == "cluster":
                fit_options["client"] = request.getfixturevalue("client")
            if place != "memory":
                source = tmp_path / ("counts.h5ad" if place == "file" else "counts.nmf")
                options = {"memory_limit": "1TB"} | options  # else files are read as a whole
                internals.read_anew(patch)
            if place == "file" and not source.exists():
                write_h5ad(source, sp.csr_matrix(X))
            elif place != "memory" and not source.exists():
                nmfscale.write_store(X, source)
            fit_options = model.given | fit_options
            return within(WALL, lambda: model.make(**options).fit(source, **fit_options))

    return fit_in


# scikit-learn ---------------------------------------------------------------------------------


CHECKED = {"n_components": 2, "max_iter": 100, "tol": 1e-3}


@parametrize_with_checks([model.make(**CHECKED) for model in MODELS if not model.variant])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        *(model.make(**CHECKED) for model in MODELS if model.variant),
        nmfscale.PoissonNMF(2, solver="scd", init="random", n_threads=1, max_iter=20),
        nmfscale.TopicModel(3, solver="em", prior_factors=1.1, n_init=2, n_threads=1, max_iter=20),
    ]
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_with_other_options(estimator, check):
    check(estimator)


# The same numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "n_threads"),
    [("memory", 4), ("file", 2), ("store", 4)],
)
@every_model
def test_same_numbers_in_every_place(fit, model, place, n_threads):
    # on a cluster: see those that are resumed
    one, other = fit("memory", model), fit(place, model, n_threads=n_threads)
    assert numbers(other) == numbers(one)
    assert (other.history_["bytes_read"][-1] > 0) == (place != "memory")


@pytest.mark.parametrize("place", ["store", pytest.param("cluster", marks=pytest.mark.slow)])
@every_option
def test_same_numbers_with_options_in_every_place(fit, model, place, monkeypatch):
    internals.small_blocks(monkeypatch, 600)
    # from its twelfth iteration on, "auto" keeps curvature
    n_iter = 14 if model.estimator in (nmfscale.PoissonNMF, nmfscale.TopicModel) else 5
    model = replace(model, options={"max_iter": n_iter, "tol": 0})
    if "data_weights" in model.given:  # which are for counts in memory
        if place == "cluster":
            pytest.skip("weights of entries need counts in memory")
        place = "memory"
    assert numbers(fit(place, model, n_threads=2)) == numbers(fit("memory", model))


@every_model
def test_the_type_of_the_counts_changes_no_bit(model):
    # of counts that are not whole the type is kept as it was given
    for counts, types in ((X, ("int32", "float32", "float64")), (X / 4, ("float64", "float32"))):
        seen = []
        for dtype in types:
            given = counts.astype(dtype)
            fitted = model.make(max_iter=8, integer="allow").fit(given, **model.given)
            loadings = fitted.transform(given)
            assert loadings.dtype == (np.float32 if dtype == "float32" else np.float64)
            score = fitted.score(given, **model.given)
            seen.append((numbers(fitted), loadings.astype(np.float32).tobytes(), score))
        assert seen[1:] == seen[:1] * (len(types) - 1)


def of_new_samples(model, fitted, source, out=None, **how):
    """What a fitted model says of samples, as bytes."""
    found = [fitted.transform(source, out=out, **how), fitted.score(source, **model.given, **how)]
    if hasattr(fitted, "perplexity"):
        found.append(fitted.perplexity(source, **how))
        found.append(fitted.score(source, completion=0.4, random_state=0, **how))
    if hasattr(fitted, "predict_proba"):
        found += [fitted.predict(source, **how) == "a", fitted.predict_proba(source, **how)]
    return [np.asarray(each).tobytes() for each in found]


@pytest.mark.parametrize("place", ["file", "store"])
@every_model
def test_new_samples_have_the_same_numbers_in_every_place(fit, model, tmp_path, place):
    # on a cluster: see the next test
    fitted = fit("memory", model)
    fit(place, model, max_iter=2)  # which writes it
    (source,) = tmp_path.iterdir()
    fitted.set_params(memory_limit="1TB", n_threads=3)  # else files are read as a whole
    found = of_new_samples(model, fitted, source, tmp_path / "loadings.npy")
    fitted.set_params(memory_limit=None, n_threads=1)
    assert found == of_new_samples(model, fitted, X)


@pytest.mark.slow
@pytest.mark.parametrize("sees", [True, False])
@every_model
def test_new_samples_have_the_same_numbers_on_a_cluster(
    fit, model, client, tmp_path, monkeypatch, sees
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    sessions = internals.note_sessions(monkeypatch)
    fitted = fit("memory", model)
    expected = of_new_samples(model, fitted, X)
    store = tmp_path / "counts.nmf"
    nmfscale.write_store(X, store)
    internals.workers_see(monkeypatch, sees, sees)
    out = tmp_path / "loadings.npy"
    found = within(WALL, lambda: of_new_samples(model, fitted, store, out, client=client))
    assert found == expected
    # all but document completion
    assert len(sessions) == len(expected) - hasattr(fitted, "perplexity")
    if sees:
        found = within(WALL, lambda: model.make().fit_transform(X, client=client, **model.given))
    else:
        found = within(WALL, lambda: fitted.transform(X, client=client))
    assert found.tobytes() == expected[0]
    assert not os.listdir(tempfile.gettempdir())


@pytest.mark.slow
@pytest.mark.parametrize("place", ["memory", "cluster"])
def test_ctrl_c_in_a_transform_leaves_nothing_behind(fit, client, tmp_path, monkeypatch, place):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    fitted, out = fit("memory", MODELS[0]), tmp_path / "loadings.npy"
    how = {"client": client if place == "cluster" else None}
    where = internals.around_results if place == "cluster" else internals.around_row_blocks
    with pytest.MonkeyPatch.context() as patch:
        where(patch, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted.transform(X, out=out, **how)
    assert os.listdir(tmp_path) == ["temporary"] and not os.listdir(tempfile.gettempdir())
    soon(lambda: not tasks_known(client))
    assert fitted.transform(X, **how).tobytes() == fitted.transform(X).tobytes()


def interrupted(function, *args, **options):
    found = function(*args, **options)
    signal.raise_signal(signal.SIGINT)
    return found


class StopError(Exception):
    """Raised in the middle of a fit."""


def stop_at(iteration):
    def callback(record):
        if record["iteration"] == iteration:
            raise StopError

    return callback


@pytest.mark.parametrize(
    "places",
    [
        ("memory", "store", "file", "memory"),
        pytest.param(("memory", "cluster", "file", "cluster"), marks=pytest.mark.slow),
    ],
    ids=", ".join,
)
@every_model
def test_same_numbers_when_resumed_in_other_places(fit, model, tmp_path, places):
    if not model.can("checkpoint") or ("cluster" in places and not model.can("client")):
        pytest.skip("this model has no checkpoints, or does not fit on a cluster")
    state = {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    with pytest.MonkeyPatch.context() as patch:
        for n_threads, (place, iteration) in enumerate(zip(places, (5, 9, 14), strict=False), 1):
            with pytest.raises(StopError):
                fit(place, model, state, callback=stop_at(iteration), n_threads=n_threads)
            state["resume"] = True
            internals.no_start(patch)
        resumed = fit(places[-1], model, state)
    assert numbers(resumed) == numbers(fit("memory", model))
    # the clock goes on, too
    assert np.all(np.diff(resumed.history_["seconds"]) >= 0)


@every_model
def test_a_saved_model_comes_back(model, tmp_path):
    frame = pd.DataFrame(X).add_prefix("feature ")
    one = model.make().fit(frame, **model.given)
    one.save(tmp_path / "model.h5")
    other = load(tmp_path / "model.h5")
    assert type(other) is model.estimator and other.get_params() == one.get_params()
    assert numbers(other, but=()) == numbers(one, but=())
    assert list(other.feature_names_in_) == list(frame.columns)
    turned = other.reorder_topics(range(len(other.components_))[::-1])
    for each in one, other, turned:
        assert each.sample_totals_.dtype == float
        assert each.sample_totals_.tolist() == X.sum(axis=1).tolist()
    assert other.transform(frame).tobytes() == one.transform(frame).tobytes()


@every_model
def test_the_plots_take_what_a_fit_leaves_behind(model):
    pytest.importorskip("matplotlib")
    fitted = model.make().fit(X, **model.given)
    K, drawn = len(fitted.components_), plots.detached_axes(9, 4, 3)
    structure = plots.structure_plot(fitted.loadings_, ax=drawn[0])
    features = plots.top_features_plot(fitted.components_, ax=drawn[1])
    progress = plots.progress_plot({model.name: fitted.history_}, ax=drawn[2])
    structure.figure.canvas.draw()
    assert len({tuple(color) for color in structure.collections[-1].get_facecolors()}) == K
    assert len(plots.top_features(fitted.components_)) == K and features.texts
    name = fitted.history_.dtype.names[2]
    words = {"loglik": "log-likelihood", "elbo": "ELBO"}.get(name, name.replace("_", " "))
    assert progress.get_ylabel() == f"distance to best {words}"
    assert progress.lines[0].get_ydata().max() > 0.01 + progress.lines[0].get_ydata().min()


@every_model
def test_a_layer_and_raw_of_anndata_through_one_door(model, tmp_path):
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(sp.csr_matrix(X))
    adata.raw, adata.layers["counts"] = adata, adata.X
    adata.X = np.log1p(X)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    one = model.make(max_iter=3).fit(X, **model.given)
    for source, choice in product(
        (adata, tmp_path / "cells.h5ad"), ({"layer": "counts"}, {"raw": True})
    ):
        other = model.make(max_iter=3).fit(source, **model.given, **choice)
        assert numbers(other) == numbers(one)
        assert other.transform(source, **choice).tobytes() == one.transform(X).tobytes()
        assert other.score(source, **model.given, **choice) == one.score(X, **model.given)
        if hasattr(one, "perplexity"):
            assert other.perplexity(source, **choice) == one.perplexity(X)
        other = model.make(max_iter=3)
        assert (
            other.fit_transform(source, **model.given, **choice).tobytes()
            == one.transform(X).tobytes()
        )
        if hasattr(other, "partial_fit"):
            batch = model.make().partial_fit(source, **choice)
            assert numbers(batch) == numbers(model.make().partial_fit(X))
    for method in (one.fit, one.transform, partial(one.score, **model.given)):
        with pytest.raises(ValueError, match="layer='counts' does not apply to ndarray"):
            method(X, layer="counts")


# The objective --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_model
def test_the_objective_is_that_of_the_factors(model, dtype):
    fitted = model.make(dtype=dtype).fit(X, **model.given)
    rtol = 1e-5 if dtype == "float32" else 1e-10
    assert_allclose(objective(fitted)[-1], model.objective(fitted, X), rtol=rtol)


@pytest.mark.parametrize("seed", range(3))
@every_model
def test_the_objective_rises(model, seed):
    # momentum may overshoot, and goes back
    plain = {"extrapolate": False} if "extrapolate" in model.make().get_params() else {}
    found = objective(model.made_at_random(random_state=seed, **plain).fit(X, **model.given))
    assert np.all(np.diff(found) >= -1e-9 * abs(found[-1]))
    overshooting = objective(model.made_at_random(random_state=seed).fit(X, **model.given))
    assert overshooting[-1] >= found[0]


@every_model
def test_a_seed_that_was_drawn_is_kept_and_gives_the_same_fit(model, tmp_path):
    one = model.made_at_random(random_state=None).fit(X, **model.given)
    one.save(tmp_path / "model.h5")
    seed = load(tmp_path / "model.h5").seed_
    assert seed == one.seed_ and isinstance(seed, int)
    again = model.made_at_random(random_state=seed).fit(X, **model.given)
    assert numbers(again) == numbers(one) and again.seed_ == seed


@pytest.mark.slow
@pytest.mark.parametrize("sees", [True, False])
def test_arguments_of_a_transform_have_the_same_numbers_on_a_cluster(
    fit, client, monkeypatch, sees
):
    """What is sent along with each block: priors, sizes, batches, weights of entries."""
    internals.workers_see(monkeypatch, sees, sees)
    rng, groups = np.random.default_rng(0), np.resize([0, 1], len(X))
    there = np.ones((2, X.shape[1]), bool)
    there[1, :20] = False
    counts = X * there[groups]
    priors = {"prior_loadings": (1 + rng.random((len(X), 3)), 0.5)}
    poisson = nmfscale.PoissonNMF(3, max_iter=8, tol=0, random_state=0, n_threads=1)
    ssnmf = {kind: Model(nmfscale.SSNMF, None, variant={"losses": kind}) for kind in ("FF", "DD")}
    batches = {"measured": there, "batch": groups}
    of_weights = {"data_weights": rng.integers(0, 3, X.shape) * 1.0}
    for one, calls in (
        (poisson.fit(X), [{"size_factors": 0.5 + rng.random(len(X))}, batches]),
        (clone(poisson).set_params(**priors).fit(X), [{}, batches]),
        *((model.make(max_iter=8).fit(X, LABELS), [of_weights]) for model in ssnmf.values()),
    ):
        for given in calls:
            here = one.transform(counts, **given)
            found = within(WALL, lambda: one.transform(counts, client=client, **given))  # noqa: B023
            assert found.tobytes() == here.tobytes()
    there = within(WALL, lambda: poisson.score(counts, client=client, **batches))
    assert there == poisson.score(counts, **batches)
