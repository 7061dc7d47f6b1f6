"""Every model: the same numbers in memory, from a file or a store, and on a cluster."""

import inspect
import os
import signal
import tempfile
from dataclasses import replace

import internals
import numpy as np
import pytest
import scipy.sparse as sp
from clusters import WALL, cluster_of, soon, tasks_known, within
from contract import LABELS, MODELS, every_model, one_of_each_family
from night import at_night
from sklearn.base import clone

import nmfscale
from nmfscale.experimental import SparsityPenalty
from nmfscale.testing import places
from nmfscale.testing.case import ModelCase, X, numbers

N, M = X.shape
rng = np.random.default_rng(2)
START = {"loadings": rng.uniform(0.1, 1, (N, 3)), "components": rng.uniform(0.1, 1, (3, M))}
PANEL = np.resize(["one", "two"], N)
MEASURED = {
    "measured": np.array([X[PANEL == name].any(axis=0) for name in ("one", "two")]),
    "panel": PANEL,
}
BATCH = {"batch": np.arange(N) // 2 % 3}
FIXED = {"fixed_samples": np.arange(N) % 5 == 0, "fixed_features": np.arange(M) % 7 == 0}
ROW_WEIGHTS = {"row_weights": np.arange(N) % 3 * 0.7}
HELD = START | FIXED | ROW_WEIGHTS | {"size_factors": rng.uniform(0.5, 2, N)}
PRIORS = {"prior_factors": 1.1, "prior_loadings": (1.2, 0.5)}
# entries that were not observed, and entries that count less
ENTRIES = {
    "data_weights": np.where(rng.uniform(size=X.shape) < 0.2, 0, rng.integers(1, 3, X.shape))
}
MISSING = {"data_weights": sp.csr_array(rng.uniform(size=X.shape) < 0.2)}
TARGETS = {"y": LABELS, "label_weights": rng.uniform(0.5, 1, N)}
EM, NOT_AHEAD = {"solver": "em", "inner_iter": 1}, {"extrapolate": False}
SPARSE, SPARSE_COMPONENTS = (
    {"solver": "joint-em", "penalty": SparsityPenalty(1.0, exponent=0.5, norm="l2", on=factor)}
    for factor in ("loadings", "components")
)
# Sets that make tasks of their own: other steps of workers, or other arrays sent to them.
OPTIONS = {
    nmfscale.PoissonNMF: [
        EM | HELD, EM | MEASURED | PRIORS | BATCH,
        SPARSE, SPARSE_COMPONENTS | ROW_WEIGHTS,
        {"solver": "joint-em"} | NOT_AHEAD | ROW_WEIGHTS,
        PRIORS | HELD, START | {"fixed_topics": np.arange(3) == 1},
        MEASURED | PRIORS | ROW_WEIGHTS | BATCH, ENTRIES | PRIORS | ROW_WEIGHTS | BATCH,
    ],
    nmfscale.TopicModel: [
        {"init": "clusters", "dtype": "float32"}, {"prior_factors": 1.1, "n_components": 1},
        {"init": "random", "n_init": 2, "n_moves": 2, "max_iter": 40},
    ],
    nmfscale.LDA: [
        {"estimate_prior": "vector"}, {"doc_topic_prior": 0.3, "inner_iter": 3},
        {"topic_word_prior": START["components"]},
        {"dtype": "float32", "n_init": 2}, {"inference": "collapsed", "validation_fraction": 0.3},
    ],
    nmfscale.GammaPoisson: [{"hierarchical": True, "dtype": "float32"} | MEASURED | BATCH],
    nmfscale.NoisyTopicModel: [
        {"loadings": START["loadings"], "mu": X.mean(axis=0) + 0.1} | FIXED,
        {"dtype": "float32", "noise_prior": "none"},
    ],
    nmfscale.AnchorNMF: [
        {"weighting": "documents"}, {"weighting": "tf-idf", "projection": 20},
        {"anchors": [5, 9], "dtype": "float32"},
    ],
    nmfscale.FrobeniusNMF: [
        {"weighting": "tf-idf", "init": "random", "alpha_W": 1e-4, "l1_ratio": 0.5, "n_init": 2},
        START | {"alpha_W": 0.05, "l1_ratio": 1.0},
    ],
    nmfscale.SSNMF: [
        TARGETS | {"losses": "FD", "solver": "mu"}, TARGETS | {"losses": "FD", "solver": "cd"},
        {"y": None}, TARGETS | {"dtype": "float32", "n_init": 2, "validation_fraction": 0.3},
        TARGETS | ENTRIES | {"losses": "FD", "solver": "cd"},
        TARGETS | MISSING | {"losses": "DD"},
    ],
}  # fmt: skip
FIRST = {estimator: sets[:1] for estimator, sets in OPTIONS.items()}
OTHERS = {estimator: sets[1:] for estimator, sets in OPTIONS.items()}
# Sets that differ from those and from the defaults only where the steps are chosen.
MORE_OPTIONS = {
    nmfscale.PoissonNMF: [
        EM, EM | NOT_AHEAD | ROW_WEIGHTS, NOT_AHEAD, {"dtype": "float32"},
        SPARSE | {"penalty": SparsityPenalty(1.0, exponent=0.5)} | ROW_WEIGHTS,
        {"init": "nndsvd", "n_init": 2}, {"n_components": 20} | PRIORS, PRIORS | ROW_WEIGHTS,
        MEASURED, MISSING | {"components": START["components"], "dtype": "float32"}, MISSING | EM,
    ],
    nmfscale.TopicModel: [EM, ENTRIES, {"solver": "joint-em"}, PRIORS, MEASURED, ROW_WEIGHTS],
    nmfscale.LDA: [
        {"estimate_prior": "symmetric", "init": "random"}, {"topic_word_prior": 0.0}, NOT_AHEAD,
    ],
    nmfscale.GammaPoisson: [
        {"hierarchical": True, "inner_iter": 3}, {"init": "random", "n_init": 2}, NOT_AHEAD,
        {"hierarchical": True, "dtype": "float32"}, BATCH,
    ],
    nmfscale.NoisyTopicModel: [{"init": "random", "n_init": 2}, NOT_AHEAD],
    nmfscale.AnchorNMF: [{"weighting": "tf-idf"}, {"projection": 20}],
    nmfscale.FrobeniusNMF: [
        START, {"dtype": "float32"},
    ],
    nmfscale.SSNMF: [
        TARGETS | {"losses": losses, "solver": solver} | entries
        for losses, entries in (("FF", ENTRIES), ("DF", MISSING), ("DD", ENTRIES))
        for solver in ("mu", "cd")
    ],
}  # fmt: skip


def with_options(place, sets, marks=()):
    """Models with options: parameters of the estimator, and arguments of `fit`."""
    for estimator, all_of in sets.items():
        known = inspect.signature(estimator).parameters
        for options in all_of:
            variant = {name: value for name, value in options.items() if name in known}
            given = {name: value for name, value in options.items() if name not in known}
            words = [
                f"{n}={v}" if isinstance(v, str | int | float) else n for n, v in options.items()
            ]
            named = "-".join([estimator.__name__, *words, place])
            model = ModelCase(estimator, None, variant=variant, given=given)
            yield pytest.param(place, model, id=named, marks=marks)


@pytest.fixture(scope="module")
def client():
    with cluster_of(2, active=False) as client:
        yield client


@pytest.fixture
def fits(request, tmp_path, monkeypatch):
    """Fits in any place, in small blocks; the cluster starts when it is first needed."""
    internals.small_blocks(monkeypatch, places.BLOCK)
    return places.Places(
        tmp_path, lambda: request.getfixturevalue("client"), lambda function: within(WALL, function)
    )


# Fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "n_threads"), [("store", 4), *at_night(("memory", 4), ("file", 2))]
)
@every_model
def test_same_numbers_in_every_place(fits, model, place, n_threads):
    # files, and clusters: see those that are resumed
    places.check_place(model, fits, place, n_threads)


@pytest.mark.parametrize(
    ("place", "model"),
    [
        *with_options("store", OPTIONS),
        *with_options("store", MORE_OPTIONS, pytest.mark.nightly),
        *with_options("cluster", FIRST, pytest.mark.slow),
        *with_options("cluster", OTHERS, pytest.mark.nightly),
    ],
)
def test_same_numbers_with_options_in_every_place(fits, model, place, monkeypatch):
    internals.small_blocks(monkeypatch, 900)
    # from its twelfth iteration on, "auto" keeps curvature
    automatic = model.estimator in (nmfscale.PoissonNMF, nmfscale.TopicModel)
    n_iter = 14 if automatic and "solver" not in model.variant else 5
    model = replace(model, options={"max_iter": n_iter, "tol": 0})
    assert numbers(fits.fit(place, model, n_threads=2)) == numbers(fits.fit("memory", model))


@pytest.mark.parametrize(
    "order",
    [
        ("memory", "store", "file", "memory"),
        pytest.param(("memory", "cluster", "file", "cluster"), marks=pytest.mark.slow),
    ],
    ids=", ".join,
)
@every_model
def test_same_numbers_when_resumed_in_other_places(fits, model, order):
    places.check_resumed(model, fits, order)


# New samples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["store", *at_night("file")])
@one_of_each_family
def test_new_samples_have_the_same_numbers_in_every_place(fits, model, place):
    # on a cluster: see the next test
    places.check_new_samples(model, fits, place)


@pytest.mark.slow
@pytest.mark.parametrize("sees", [False, *at_night(True)])
@one_of_each_family
def test_new_samples_have_the_same_numbers_on_a_cluster(
    fits, model, client, tmp_path, monkeypatch, sees
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    sessions = internals.note_sessions(monkeypatch)
    internals.workers_see(monkeypatch, sees, sees)
    places.check_new_samples_on_cluster(model, fits)
    fitted = fits.fit("memory", model)
    expected = places.of_new_samples(model, fitted, X)
    # all but document completion
    assert len(sessions) == len(expected) - hasattr(fitted, "perplexity")
    if sees:
        short, given = model.make(max_iter=2), model.given
        found = within(WALL, lambda: short.fit_transform(X, client=client, **given))
        assert found.tobytes() == model.make(max_iter=2).fit(X, **given).transform(X).tobytes()
    else:
        found = within(WALL, lambda: fitted.transform(X, client=client))
        assert found.tobytes() == expected[0]
    assert not os.listdir(tempfile.gettempdir())


@pytest.mark.slow
@pytest.mark.parametrize("place", ["cluster", *at_night("memory")])
def test_ctrl_c_in_a_transform_leaves_nothing_behind(fits, client, tmp_path, monkeypatch, place):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    fitted, out = fits.fit("memory", MODELS[0]), tmp_path / "loadings.npy"
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


@pytest.mark.slow
@pytest.mark.parametrize("sees", [False, *at_night(True)])
def test_arguments_of_a_transform_have_the_same_numbers_on_a_cluster(
    fits, client, monkeypatch, sees
):
    """What is sent along with each block: priors, sizes, panels, weights of entries."""
    internals.workers_see(monkeypatch, sees, sees)
    rng, groups = np.random.default_rng(0), np.resize([0, 1], len(X))
    there = np.ones((2, X.shape[1]), bool)
    there[1, :20] = False
    counts = X * there[groups]
    priors = {"prior_loadings": (1 + rng.random((len(X), 3)), 0.5)}
    poisson = nmfscale.PoissonNMF(3, max_iter=8, tol=0, random_state=0, n_threads=1)
    ssnmf = {
        kind: ModelCase(nmfscale.SSNMF, None, variant={"losses": kind}) for kind in ("FF", "DD")
    }
    panels = {"measured": there, "panel": groups}
    of_weights = {"data_weights": rng.integers(0, 3, X.shape) * 1.0}
    for one, calls in (
        (poisson.fit(X), [{"size_factors": 0.5 + rng.random(len(X))}, panels, of_weights]),
        (clone(poisson).set_params(**priors).fit(X), [{}, panels]),
        *((model.make(max_iter=8).fit(X, LABELS), [of_weights]) for model in ssnmf.values()),
    ):
        for given in calls:
            here = one.transform(counts, **given)
            found = within(WALL, lambda: one.transform(counts, client=client, **given))  # noqa: B023
            assert found.tobytes() == here.tobytes()
    for given in (panels, of_weights):
        there = within(WALL, lambda: poisson.score(counts, client=client, **given))  # noqa: B023
        assert there == poisson.score(counts, **given)
