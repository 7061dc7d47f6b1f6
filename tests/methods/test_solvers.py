"""Fits: what they record, where they stop, what they hold, and that they climb."""

import re
import signal
import subprocess
import sys
import time
import warnings

import internals
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from night import at_night
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

import nmfscale
from nmfscale import kernels
from nmfscale.engine.local import LocalExecutor
from nmfscale.engine.monitor import Monitor
from nmfscale.methods.factors import Constraints, aligned_copy
from nmfscale.methods.poisson.extrapolation import ExtrapolateRows, Momentum
from nmfscale.methods.poisson.objective import FactorModel
from nmfscale.methods.poisson.scales import scale_of_before
from nmfscale.methods.poisson.schedule import LATE_BELOW
from nmfscale.methods.poisson.solvers import SOLVERS
from nmfscale.methods.poisson.state import PoissonState
from nmfscale.readers.open import as_counts

# One of each loop: momentum, alternating updates, both factors at once.
LOOPS = ["auto", "scd", "joint-em"]
FEW = settings(max_examples=8, deadline=None, derandomize=True)
FIELDS = (
    "iteration", "seconds", "loglik", "loglik_multinomial", "deviance",
    "kkt_loadings", "kkt_factors", "change_loadings", "change_factors",
    "zeros_loadings", "zeros_factors", "momentum", "bytes_read",
)  # fmt: skip


def make_counts(n=50, m=40, K=3, seed=0, size=3.0):
    rng = np.random.default_rng(seed)
    return rng.poisson(size * rng.gamma(0.4, size=(n, K)) @ rng.gamma(0.4, size=(K, m)))


def start(X, K=3, seed=0):
    rng = np.random.default_rng(seed)
    loadings = rng.uniform(0.1, 1, (X.shape[0], K))
    return {"loadings": loadings, "components": rng.uniform(0.1, 1, (X.shape[1], K)).T}


def fit(X, K=3, model=nmfscale.PoissonNMF, **options):
    names = (
        "loadings",
        "components",
        "row_weights",
        "size_factors",
        "fixed_topics",
        "fixed_features",
        "fixed_samples",
    )
    fit_options = {name: options.pop(name) for name in names if name in options}
    options = {"max_iter": 10, "tol": 0, "random_state": 0, "n_threads": 1} | options
    return model(K, **options).fit(X, **fit_options)


def assert_usable(model, X):
    """Finite, non-negative factors, and a log-likelihood that is theirs."""
    L, F = model.loadings_, model.components_.T
    assert L.shape[0] == X.shape[0] and F.shape[0] == X.shape[1]
    for factor in (L, F):
        assert np.isfinite(factor).all() and (factor >= 0).all()
    for name in model.history_.dtype.names:
        assert np.isfinite(model.history_[name]).all(), name
    single = L.dtype == np.float32
    expected = nmfscale.likelihood.loglik_poisson(X, L, F).sum()
    assert_allclose(model.loglik_, expected, rtol=1e-4 if single else 1e-9, atol=1e-5)


# History and stopping -------------------------------------------------------------------------


@pytest.mark.parametrize("solver", LOOPS)
def test_history(solver):
    X, started = make_counts(), time.perf_counter()
    model = fit(X, solver=solver, max_iter=12)
    history = model.history_
    assert history.dtype.names == FIELDS
    assert model.n_iter_ == len(history) == 12
    assert_array_equal(history["iteration"], np.arange(1, 13))
    assert np.all(np.diff(history["seconds"]) >= 0)
    assert 0 <= history["seconds"][0] and history["seconds"][-1] < time.perf_counter() - started
    for name in ("zeros_loadings", "zeros_factors"):
        assert np.all((history[name] >= 0) & (history[name] <= 1))
    for name in ("kkt_loadings", "kkt_factors", "change_loadings", "change_factors", "momentum"):
        assert np.all(history[name] >= 0)
    assert not model.converged_ and not model.interrupted_
    assert_usable(model, X)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("extrapolate", [True, False])
@pytest.mark.parametrize("solver", LOOPS)
def test_the_last_record_is_of_the_model_handed_back(solver, extrapolate, dtype):
    X = make_counts()
    model = fit(X, solver=solver, extrapolate=extrapolate, dtype=dtype)
    L, F = model.loadings_.astype(float), model.components_.T.astype(float)
    last, rtol = model.history_[-1], 1e-5 if dtype == "float32" else 1e-10
    assert_allclose(last["loglik"], oracle.loglik_poisson(X, L, F).sum(), rtol=rtol)
    assert_allclose(last["loglik_multinomial"], oracle.loglik_multinomial(X, L, F).sum(), rtol=rtol)
    assert_allclose(last["deviance"], oracle.deviance_poisson(X, L, F).sum(), rtol=10 * rtol)
    of_L, of_F = oracle.kkt_residuals(X.astype(float), L, F)
    for name, residual, n_rows in (("loadings", of_L, len(L)), ("factors", of_F, len(F))):
        relative = np.abs(residual).max() / (X.sum() / n_rows)
        assert_allclose(last[f"kkt_{name}"], relative, rtol=1e-3, atol=10 * rtol)


@pytest.mark.parametrize("solver", ["auto", "em"])
def test_residuals_on_the_way_are_relative_to_the_mean_total(solver):
    """After an EM step on L, of F as it was: sample and feature totals differ tenfold."""
    X = make_counts(60, 6)
    L, H = start(X).values()
    F = H.T
    model = fit(
        X, solver=solver, inner_iter=1, extrapolate=False, max_iter=5, loadings=L, components=F.T
    )
    moved = L * ((X / (L @ F.T)) @ F) / F.sum(axis=0)
    _, residual = oracle.kkt_residuals(X.astype(float), moved, F)
    expected = np.abs(residual).max() / X.sum(axis=0).mean()
    assert_allclose(model.history_["kkt_factors"][0], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["em", "ccd", "scd", "sn", "newton"])
def test_the_best_point_is_as_good_as_it_was_said_to_be(solver, dtype):
    """The log-likelihood that accepted a step holds when the end of the fit computes it anew."""
    for seed in range(4):
        X = make_counts(20, 15, seed=seed)
        for n_iter in (3, 10):
            model = fit(
                X, 5, solver=solver, dtype=dtype, init="random", max_iter=n_iter, random_state=seed
            )
            said, found = model.history_["loglik"][-2:]
            assert found >= said - 1e-3 * abs(found)


@pytest.mark.parametrize("n_iter", [1, 2, 5, 21, 45])
@pytest.mark.parametrize("solver", LOOPS)
def test_tolerance_zero_runs_every_iteration(solver, n_iter):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fit(make_counts(12, 10), solver=solver, max_iter=n_iter)
    assert model.n_iter_ == n_iter == len(model.history_)


@pytest.mark.filterwarnings("ignore:PoissonNMF has not converged")
@pytest.mark.parametrize("solver", LOOPS)
def test_a_converged_fit_says_so(solver):
    X = make_counts(20, 15, K=2)
    model = fit(X, 2, solver=solver, tol=1e-2, max_iter=2000)
    assert model.converged_ and model.n_iter_ < 2000
    assert_usable(model, X)
    if solver == "joint-em":  # every iteration is there once
        assert np.all(np.diff(model.history_["loglik"]) > 1e-6 * abs(model.loglik_))
    # also of the last iteration that is allowed, which nothing comes after to judge it
    for max_iter in (model.n_iter_ - 1, model.n_iter_):
        ended = fit(X, 2, solver=solver, tol=1e-2, max_iter=max_iter)
        assert ended.converged_ == (residual(ended) <= 1e-2)


def residual(model):
    """Return the largest KKT residual of the point that was handed back."""
    return max(model.history_[name][-1] for name in ("kkt_loadings", "kkt_factors"))


@pytest.mark.filterwarnings("ignore:PoissonNMF has not converged")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("solver", LOOPS)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 12), marks=pytest.mark.nightly)])
def test_a_fit_has_converged_where_its_residual_is_below_tol_and_nowhere_else(solver, dtype, seeds):
    for seed in seeds:
        X, tol = make_counts(60, 40, seed=seed), (1e-3, 1e-4, 1e-5)[seed % 3]
        for gain_tol in (0, 1e-6):
            options = {"tol": tol, "gain_tol": gain_tol, "max_iter": 300, "dtype": dtype}
            model = fit(X, 2 + seed % 4, solver=solver, **options, **start(X, 2 + seed % 4, seed))
            still = {"precision" if dtype == "float32" else "plateau"} if gain_tol else set()
            ends = {True: {"converged"}, False: {"max_iter"} | still}
            assert model.stop_reason_ in ends[bool(residual(model) <= tol)]
            assert model.converged_ == (model.stop_reason_ in ("converged", "plateau"))


@pytest.mark.parametrize(
    "priors",
    [
        {"prior_factors": 1.01},
        {"prior_factors": 1.1, "prior_loadings": (1.2, 0.5)},
        {"prior_loadings": 1.1},
        {"prior_factors": 1.1, "prior_loadings": 1.1, "row_weights": True},
    ],
)
def test_priors_do_not_hold_up_a_fit(priors):
    """What only priors say, the scales of L and F, is found at once: the end is that of "scd"."""
    X, K = make_counts(120, 90, K=4, seed=5), 4
    weights = np.random.default_rng(0).integers(1, 4, len(X)) * 1.0
    given = {"row_weights": weights} if priors.get("row_weights") else {}
    priors = {name: value for name, value in priors.items() if name != "row_weights"}
    options = {"max_iter": 1000, "tol": 1e-5, "n_threads": 1}
    plain = nmfscale.PoissonNMF(K, **options).fit(X, **start(X, K), **given)
    auto = nmfscale.PoissonNMF(K, **options, **priors).fit(X, **start(X, K), **given)
    scd = nmfscale.PoissonNMF(K, **options, **priors, solver="scd").fit(X, **start(X, K), **given)
    assert auto.n_iter_ <= 2 * plain.n_iter_
    assert auto.loglik_ >= scd.loglik_ - 0.05


def test_tol_decides():
    """A smaller `tol` leaves less to be gained, also where the plateau ends the fit."""
    X = make_counts(200, 120, K=6, seed=3)
    fits = [fit(X, 6, tol=tol, max_iter=3000, **start(X, 6)) for tol in (1e-2, 1e-4, 1e-6, 0)]
    left = fits[-1].loglik_ - np.array([model.loglik_ for model in fits[:-1]])
    iterations = [model.n_iter_ for model in fits]
    assert iterations == sorted(set(iterations)) and np.all(np.diff(left) < 0)
    assert residual(fits[2]) <= 1e-6 or fits[2].stop_reason_ == "plateau"


def test_a_fit_that_ran_out_of_iterations_warns():
    with pytest.warns(ConvergenceWarning, match="relative KKT residual is .*e.*max_iter") as caught:
        model = fit(make_counts(), tol=1e-9, max_iter=3)
    last = model.history_[-1]
    assert f"{max(last['kkt_loadings'], last['kkt_factors']):.2e}" in str(caught[0].message)
    assert not model.converged_


def test_a_callback_sees_every_record_and_may_stop():
    def callback(row):
        seen.append(dict(row))
        row.clear()  # which is its own
        return len(seen) == 4

    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what was asked for is no failure
        model = fit(make_counts(), max_iter=50, callback=callback)
    assert set(seen[0]) == set(FIELDS)
    assert model.n_iter_ < 10
    assert not model.converged_ and not model.interrupted_
    assert_usable(model, make_counts())


@pytest.mark.parametrize("solver", LOOPS)
def test_an_interrupted_fit_is_usable(solver, capsys):
    X = make_counts()
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(record):
        if record["iteration"] == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(ConvergenceWarning, match="was interrupted after .* iterations"):
        model = fit(X, solver=solver, max_iter=500, tol=1e-12, callback=interrupt)
    assert model.interrupted_ and not model.converged_
    assert model.n_iter_ < 10
    assert_usable(model, X)
    assert signal.getsignal(signal.SIGINT) is handler
    assert "press Ctrl-C again" in capsys.readouterr().err  # although nothing else is shown


def test_an_interrupt_ends_all_starts():
    def interrupt_once(record):
        if not pressed:
            pressed.append(record)
            signal.raise_signal(signal.SIGINT)

    pressed = []
    with pytest.warns(ConvergenceWarning, match="was interrupted"):
        model = fit(make_counts(), n_init=5, max_iter=200, callback=interrupt_once)
    assert model.interrupted_ and model.n_iter_ < 10


@pytest.mark.parametrize("start", [0, 1])
def test_an_interrupt_after_the_last_iteration_ends_all_starts(start):
    """The fit is that of the best start so far, which had ended."""

    def interrupt_once(record):
        seen.append(record["iteration"])
        if len(seen) == (start + 1) * n_records:
            signal.raise_signal(signal.SIGINT)

    seen, options = [], {"max_iter": 4, "tol": 0, "callback": interrupt_once}
    n_records = fit(make_counts(), **options | {"callback": None}).n_iter_
    model = fit(make_counts(), n_init=5, **options)
    assert len(seen) == (start + 1) * n_records
    assert model.interrupted_ and model.stop_reason_ == "max_iter" and model.n_iter_ == n_records


def test_a_second_interrupt_is_at_once():
    def interrupt_twice(record):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(make_counts(), callback=interrupt_twice)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_other_handlers_of_the_keyboard_are_left_alone(handler):
    seen, before = [], signal.signal(signal.SIGINT, handler)

    def note(record):
        seen.append(signal.getsignal(signal.SIGINT))

    try:
        model = fit(make_counts(), max_iter=4, tol=0, callback=note)
        assert not model.interrupted_ and seen == [handler] * 4
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


# A start from clusters ---------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_fit_from_clusters_leaves_them(solver):
    X, labels = make_counts(), np.arange(len(make_counts())) % 3
    options = {"solver": solver, "max_iter": 2000, "tol": 1e-5}
    ends = [fit(X, init=init, **options).loglik_ for init in (labels, "random")]
    assert ends[0] > ends[1] - 1e-3 * abs(ends[1])


def test_a_start_with_zeros_is_left():
    X = make_counts()
    L = np.eye(3)[np.arange(len(X)) % 3]
    F = np.stack([X[k::3].mean(axis=0) for k in range(3)], axis=1)
    ended = fit(X, loadings=L, components=F.T, max_iter=2000, tol=1e-5)
    free = fit(X, max_iter=2000, tol=1e-5)
    assert ended.converged_
    assert ended.loglik_ > free.loglik_ - 1e-3 * abs(free.loglik_)


# The keyboard ------------------------------------------------------------------------------------


KEYBOARD = """
import os, signal, threading, numpy as np, nmfscale
X = np.random.default_rng(0).poisson(1.0, (200, 100))
seen = []
def press(record):
    if not seen:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    seen.append(record)
model = nmfscale.PoissonNMF(3, tol=0, max_iter=10**6, n_threads=2, callback=press).fit(X)
print(model.interrupted_, model.converged_, np.isfinite(model.components_).all())
"""


def test_control_c_hands_back_the_model():
    done = subprocess.run(
        [sys.executable, "-P", "-c", KEYBOARD], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True", "False", "True"], done.stderr


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"tol": 1e-2, "max_iter": 500}, "converged: 100%"),
        ({"max_iter": 4}, "not converged: max_iter reached: 100%.* 4/4 "),
        ({"callback": lambda record: record["iteration"] == 3}, "stopped by the callback: 100%"),
        ({"tol": 1e-9, "gain_tol": 1e-3, "max_iter": 500}, "converged on a plateau: 100%"),
    ],
)
def test_the_progress_bar_ends_full_with_the_reason(capfd, options, end):
    fit(make_counts(), verbose=1, **options)
    assert re.search(end, capfd.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_progress_goes_to_standard_error(capfd, verbose):
    fit(make_counts(), verbose=verbose, max_iter=4)
    out, err = capfd.readouterr()
    assert out == ""
    assert (err == "") == (verbose == 0)
    if verbose:
        assert "log-likelihood" in err and "KKT" in err
    if verbose == 2:
        lines = [line for line in err.strip().splitlines() if not line.startswith("start: ")]
        assert lines[4:] == ["not converged: max_iter reached after 4 iterations"]


# Climbing -------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sampled_from(["em", "joint-em", "sn"]), st.integers(1, 4))
@FEW
def test_methods_with_a_guarantee_never_descend(seed, solver, K):
    X = make_counts(15, 12, seed=seed)
    model = fit(X, K, solver=solver, extrapolate=False, max_iter=25, **start(X, K, seed))
    loglik = model.history_["loglik"]
    loadings, components = start(X, K, seed).values()
    before = oracle.loglik_poisson(X, loadings, components.T).sum()
    assert np.all(np.diff(np.append(before, loglik)) >= -1e-9 * np.abs(loglik).max())


@pytest.mark.parametrize("seed", [0, *at_night(1, 2, 3)])
def test_auto_ends_at_least_as_high_as_em(seed):
    X = make_counts(seed=seed)
    auto = fit(X, max_iter=300, **start(X, seed=seed))
    em = fit(X, max_iter=400, solver="em", extrapolate=False, **start(X, seed=seed))
    # Other local optima lie close; being stuck short of one would be far.
    assert auto.loglik_ >= em.loglik_ - 2e-3 * abs(em.loglik_)
    assert max(auto.history_[-1]["kkt_loadings"], auto.history_[-1]["kkt_factors"]) < 1e-4


@pytest.mark.parametrize("dtype", ["float64", *at_night("float32")])
@pytest.mark.parametrize(
    "solver", ["auto", "scd", "joint-em", *at_night("em", "ccd", "sn", "newton")]
)
def test_every_solver_reaches_a_stationary_point(solver, dtype):
    X = make_counts(20, 15, K=2)
    model = fit(X, 2, solver=solver, max_iter=400, dtype=dtype, **start(X, 2))
    assert_usable(model, X)
    of_L, of_F = nmfscale.likelihood.kkt_residuals(X, model.loadings_, model.components_.T)
    assert max(np.abs(of_L).max() / X.sum(1).mean(), np.abs(of_F).max() / X.sum(0).mean()) < 2e-3


@pytest.mark.parametrize("solver", ["auto", "scd"])
def test_given_factors_are_the_start(solver):
    X = make_counts()
    best = fit(X, solver="scd", max_iter=300)
    again = fit(X, solver=solver, max_iter=1, loadings=best.loadings_, components=best.components_)
    assert again.loglik_ >= best.loglik_ - 1e-6 * abs(best.loglik_)
    one, other = (fit(X, solver=solver, init=init, **start(X)) for init in ("random", "nndsvd"))
    assert_array_equal(one.components_, other.components_)


def test_only_one_factor_given():
    X = make_counts()
    best = fit(X, solver="scd", max_iter=300)
    for given_factors in ({"loadings": best.loadings_}, {"components": best.components_}):
        assert_usable(fit(X, **given_factors), X)
    # a component of zeros is one that is yet to be found
    F = best.components_.T * [1, 0, 1]
    model = fit(X, components=F.T, max_iter=100)
    assert_usable(model, X)
    assert model.components_[1].any() and model.loglik_ > best.loglik_ - 0.01 * abs(best.loglik_)


def test_the_best_of_several_starts_is_kept():
    X = make_counts(30, 25, K=5)
    options = {"init": "random", "max_iter": 30}
    rng = np.random.RandomState(3)
    singles = [fit(X, 5, random_state=rng, **options).loglik_ for _ in range(4)]
    several = fit(X, 5, random_state=np.random.RandomState(3), n_init=4, **options)
    assert len(set(singles)) > 1
    assert several.loglik_ == max(singles)


def test_starts_are_of_different_kinds_and_the_best_goes_to_its_end():
    X, first = make_counts(60, 40, K=5), []

    def note(record):
        if record["iteration"] == 1:
            first.append(record["loglik"])

    rng = np.random.RandomState(3)
    kinds = "topic-score", "clusters", "random"
    how = {"tol": 1e-5, "max_iter": 500}
    singles = [fit(X, 5, random_state=rng, init=kind, **how) for kind in kinds]
    options = {"random_state": np.random.RandomState(3), "callback": note}
    several = fit(X, 5, n_init=3, **how, **options)
    # of the single fits, and of the best one when it is continued
    assert first[:3] == [single.history_["loglik"][0] for single in singles] and len(first) == 4
    assert several.converged_ and several.loglik_ > max(s.loglik_ for s in singles) - 0.5


# Held factors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("what", ["fixed_topics", "fixed_features", "fixed_samples"])
def test_held_factors_stay_as_they_are(what, solver, dtype):
    X = make_counts()
    given_factors = {name: factor.astype(dtype) for name, factor in start(X).items()}
    size = {"fixed_topics": 3, "fixed_features": X.shape[1], "fixed_samples": X.shape[0]}[what]
    mask = np.arange(size) % 3 == 1
    # long enough for momentum, and for many exchanges of scale between the factors
    options = {"solver": solver, "dtype": dtype, what: mask, "max_iter": 40}
    if solver == "joint-em":
        with pytest.raises(ValueError, match=f"{what} cannot be combined with solver='joint-em'"):
            fit(X, **options, **given_factors)
        return
    model = fit(X, **options, **given_factors)
    L, F = model.loadings_, model.components_.T
    before = given_factors["components"].T
    after, before = (L, given_factors["loadings"]) if what == "fixed_samples" else (F, before)
    if what == "fixed_topics":
        after, before = after.T, before.T
    held, free = after[mask], after[~mask]
    assert np.ascontiguousarray(held).tobytes() == np.ascontiguousarray(before[mask]).tobytes()
    assert np.isfinite(free).all()
    assert_usable(model, X)


@pytest.mark.parametrize("solver", ["auto", "em", "scd"])
@pytest.mark.parametrize("what", ["fixed_topics", "fixed_features"])
def test_what_is_held_may_be_tiny(what, solver):
    X, given_factors = make_counts(), start(make_counts())
    given_factors["components"][0, [2, 5, 8]] = 3e-11, 0, 1e-300
    mask = np.arange(40 if what == "fixed_features" else 3) % 3 != 1
    model = fit(X, solver=solver, **{what: mask}, **given_factors)
    F = model.components_.T
    stays = np.broadcast_to(mask[:, None] if what == "fixed_features" else mask, F.shape)
    assert_array_equal(F[stays], given_factors["components"].T[stays])
    assert_usable(model, X)


def test_everything_free_improves_around_what_is_held():
    X = make_counts()
    options = {"fixed_topics": [True, False, False], **start(X)}
    model = fit(X, max_iter=200, **options)
    of_L, of_F = nmfscale.likelihood.kkt_residuals(X, model.loadings_, model.components_.T)
    assert np.abs(of_L).max() < 1e-3 * X.sum(1).mean()
    assert np.abs(of_F[:, 1:]).max() < 1e-3 * X.sum(0).mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fixed_topics": [True, False, False]}, "pass components="),
        ({"fixed_samples": np.ones(50, bool)}, "pass loadings="),
        ({"fixed_topics": [1, 0, 0], "components": np.ones((3, 40))}, "booleans"),
        ({"fixed_features": [True], "components": np.ones((3, 40))}, "40 booleans"),
        ({"row_weights": np.ones(3)}, r"row_weights has shape \(3,\)"),
        ({"row_weights": -np.ones(50)}, r"row_weights\[0\] is -1"),
        ({"row_weights": np.zeros(50)}, "all are 0"),
        ({"size_factors": np.zeros(50)}, r"size_factors\[0\] is 0"),
        ({"size_factors": np.full(50, np.nan)}, "nan"),
        ({"loadings": np.ones((50, 2))}, "loadings has shape"),
        ({"components": -np.ones((3, 40))}, "components"),
    ],
)
def test_what_cannot_be_held_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fit(make_counts(), **options)


# Priors, sizes, weights -----------------------------------------------------------------------


def log_posterior(X, L, F, factors, loadings):
    """Log-likelihood plus log densities of Gamma priors, less their constants."""
    out = oracle.loglik_poisson(X, L, F).sum()
    for b, (alpha, rate) in ((F, factors), (L, loadings)):
        out += np.sum((alpha - 1) * np.log(np.maximum(b, 1e-300)) - rate * b)
    return out


@pytest.mark.parametrize("solver", ["auto", "em", "scd", "newton", "sn"])
def test_priors_lead_to_the_maximum_of_the_posterior(solver):
    X = make_counts(12, 10, K=2)
    factors, loadings = (1.5, 2.0), (1.3, 0.7)
    model = fit(
        X, 2, solver=solver, max_iter=400, prior_factors=factors, prior_loadings=loadings,
        extrapolate=solver == "auto", **start(X, 2),
    )  # fmt: skip
    L, F = model.loadings_, model.components_.T
    assert_allclose(model.loglik_, log_posterior(X, L, F, factors, loadings), rtol=1e-9)
    # Each row is the maximum of its own concave problem.
    for Y, moved, held, (alpha, rate) in ((X, L, F, loadings), (X.T, F, L, factors)):
        for i in range(len(Y)):
            problem = oracle.with_prior(
                Y[i].astype(float), held, held.sum(axis=0), np.full(2, alpha), np.full(2, rate)
            )
            gradient, _ = oracle.row_derivatives(*problem, moved[i])
            assert np.abs(moved[i] * gradient).max() < 1e-3 * Y.sum(axis=1).mean()


def test_a_larger_alpha_pulls_harder():
    X = make_counts(30, 20)
    flat = []
    for alpha in (1.0, 2.0, 10.0):
        F = fit(X, max_iter=100, prior_factors=(alpha, 0.1), **start(X)).components_
        shares = F / F.sum(axis=1, keepdims=True)
        flat.append(-np.sum(shares * np.log(np.maximum(shares, 1e-300))))
    assert flat[0] < flat[1] < flat[2]


@pytest.mark.parametrize("alpha", [1.0, (1.0, 0.0)])
def test_alpha_one_and_no_rate_is_no_prior(alpha):
    X = make_counts()
    one, other = (fit(X, prior_factors=prior, **start(X)) for prior in (None, alpha))
    assert_allclose(one.components_, other.components_, rtol=1e-3, atol=1e-6)
    assert one.loglik_ == pytest.approx(other.loglik_, rel=1e-6)


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "joint-em"])
@pytest.mark.parametrize("prior", [(1.0, 0.3), (np.array([1.0, 1.5, 1.0]), 0.3)])
def test_residuals_with_a_prior(prior, solver):
    X = np.maximum(make_counts() - 1, 0)
    model = fit(X, solver=solver, max_iter=5, prior_loadings=prior, prior_factors=prior, **start(X))
    L, F, last = model.loadings_, model.components_.T, model.history_[-1]
    assert (L == 0).any() or (F == 0).any()
    assert last["loglik_multinomial"] == pytest.approx(oracle.loglik_multinomial(X, L, F).sum())
    for name, own, held, counts in (("loadings", L, F, X), ("factors", F, L, X.T)):
        numerators = (counts / np.maximum(own @ held.T, 1e-30)) @ held
        pull = own * (held.sum(axis=0) + prior[1] - numerators) - (np.asarray(prior[0]) - 1)
        expected = np.abs(np.where(own > 0, pull, 0)).max() / (X.sum() / len(own))
        assert last[f"kkt_{name}"] == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("prior", [0.5, (1.0, -1.0), np.nan, (np.inf, 1.0)])
def test_a_prior_without_a_maximum_is_refused(prior):
    with pytest.raises(ValueError, match="prior_factors"):
        fit(make_counts(), prior_factors=prior)


@pytest.mark.parametrize("solver", ["auto", "em"])
def test_size_factors(solver):
    X = make_counts(40, 30)
    sizes = np.random.default_rng(0).uniform(0.2, 5.0, 40)
    model = fit(X, solver=solver, max_iter=200, size_factors=sizes, **start(X))
    plain = fit(
        X,
        solver=solver,
        max_iter=200,
        components=start(X)["components"],
        loadings=start(X)["loadings"] * sizes[:, None],
    )
    assert_allclose(model.loadings_ * sizes[:, None], plain.loadings_, rtol=1e-6, atol=1e-9)
    assert model.loglik_ == plain.loglik_


@pytest.mark.parametrize("prior", [(1.5, 0.3), *at_night(None)])
@pytest.mark.parametrize("solver", [solver for solver in SOLVERS if solver != "sn"])
def test_integer_weights_are_repeated_samples(solver, prior):
    if prior and solver == "joint-em":
        pytest.skip("has no priors")
    X = make_counts(25, 20) * (np.random.default_rng(1).random((25, 20)) < 0.4)
    X[0] += 1
    weights = np.arange(25) % 4
    # the same iterates, but for rounding; "auto" is judged by its end
    steps = {"max_iter": 500} if solver == "auto" else {"max_iter": 25, "tol": 0}
    options = {"solver": solver, "prior_loadings": prior, **steps}
    weighted = fit(X, row_weights=weights, **options, **start(X))
    factors = start(X)
    repeated = fit(
        np.repeat(X, weights, axis=0), **options,
        loadings=np.repeat(factors["loadings"], weights, axis=0),
        components=factors["components"],
    )  # fmt: skip
    assert weighted.loglik_ == pytest.approx(repeated.loglik_, rel=1e-7)
    if solver != "auto":
        scale = repeated.components_.max()
        assert_allclose(weighted.components_, repeated.components_, rtol=1e-5, atol=1e-8 * scale)
    if prior is None:
        per_sample = nmfscale.likelihood.loglik_poisson(
            X, weighted.loadings_, weighted.components_.T
        )
        assert weighted.loglik_ == pytest.approx(weights @ per_sample, rel=1e-9)


@pytest.mark.parametrize("block", [1 << 23, 300])
@pytest.mark.parametrize(("weights", "times"), [([1, 2, 0], 1), ([0.3, 1.2], 2)])
def test_counts_in_memory_are_weighted_once_for_each_type(monkeypatch, block, weights, times):
    X, seen = make_counts(), []

    def note(original, index, *rest):
        seen.append(index)
        original(index, *rest)

    internals.around_weigh(monkeypatch, note)
    internals.small_blocks(monkeypatch, block)
    counts = as_counts(X)
    fit(counts, row_weights=np.resize(weights, 50), max_iter=20, tol=0, **start(X))
    assert len(seen) == times * len(counts.layout().blocks)


@pytest.mark.parametrize("solver", ["em", "ccd"])
def test_weights_and_priors_have_one_objective(solver):
    X = make_counts()
    options = {"extrapolate": False, "max_iter": 60, "prior_loadings": (1.5, 1.0)}
    model = fit(X, solver=solver, row_weights=np.linspace(0.1, 10, 50), **options, **start(X))
    assert np.diff(model.history_["loglik"]).min() > -1e-9 * abs(model.loglik_)


def test_residuals_do_not_depend_on_the_scale_of_the_weights():
    X = make_counts()
    ends = [fit(X, row_weights=np.full(50, w), solver="em", **start(X)).history_ for w in (1, 1e6)]
    for name in ("kkt_loadings", "kkt_factors"):
        assert_allclose(ends[0][name], ends[1][name], rtol=1e-6)


@pytest.mark.parametrize("scale", [30, *at_night(10, 100)])
@pytest.mark.parametrize("solver", ["em", "ccd", "scd"])
def test_a_start_far_too_large_is_left(solver, scale):
    X = make_counts(40, 30)
    given = start(X) | {"loadings": scale * start(X)["loadings"]}
    model = fit(X, solver=solver, max_iter=500, tol=1e-4, **given)
    best = fit(X, solver="em", extrapolate=False, max_iter=200, **given)
    assert model.loglik_ > best.loglik_ - 0.02 * abs(best.loglik_)


@pytest.mark.parametrize("solver", ["auto", "em"])
def test_equal_weights_are_no_weights(solver):
    X = make_counts()
    one, other = (fit(X, solver=solver, row_weights=w, **start(X)) for w in (None, np.ones(50)))
    assert_allclose(one.components_, other.components_, rtol=1e-9, atol=1e-12)


# Extremes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "dtype"),
    [
        ("auto", "float32"),
        *((solver, "float64") for solver in ("auto", "em", "scd", "joint-em")),
        *at_night(*((solver, "float64") for solver in ("ccd", "sn", "newton"))),
        *at_night(*((solver, "float32") for solver in SOLVERS if solver != "auto")),
    ],
)
@pytest.mark.parametrize(
    "case", ["empty", "nothing", "one", "row", "column", "wide", "huge", "tiny", "diagonal"]
)
def test_extreme_counts(case, solver, dtype):
    X = {
        "empty": lambda: (
            np.where(np.add.outer(np.arange(30) % 4, np.arange(20) % 3) > 1, make_counts(30, 20), 0)
            * (np.arange(30) != 7)[:, None]
        ),
        "nothing": lambda: np.zeros((6, 5)),
        "one": lambda: np.eye(1) * 3,
        "row": lambda: make_counts(1, 30) + 1,
        "column": lambda: make_counts(30, 1),
        "wide": lambda: make_counts(4, 100),
        "huge": lambda: make_counts(20, 15) * 1_000_000,
        "tiny": lambda: make_counts(20, 15) * 1e-6,
        "diagonal": lambda: np.diag(np.arange(1, 8)),
    }[case]()
    model = fit(X, 5, solver=solver, dtype=dtype, max_iter=12, integer="allow", init="random")
    assert_usable(model, X)
    assert np.isfinite(model.transform(X)).all()
    assert np.isfinite([model.score(X), model.perplexity(X)]).all()
    topics = fit(
        X,
        5,
        nmfscale.TopicModel,
        solver=solver,
        dtype=dtype,
        max_iter=25,
        integer="allow",
        init="random",
    )
    rtol = 1e-5 if dtype == "float32" else 1e-12
    assert_allclose(topics.components_.sum(axis=1), 1, rtol=rtol)
    assert_allclose(topics.loadings_.sum(axis=1), 1, rtol=rtol)
    assert_allclose(topics.transform(X).sum(axis=1), 1, rtol=rtol)


@pytest.mark.parametrize("weights", [None, [0.3], [0.001, 2, 0.5]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["em", "joint-em"])
def test_one_huge_count_leaves_the_others(solver, dtype, weights):
    X = make_counts().astype(float)
    X[7, 5] = 2.0**50
    weights = np.ones(50) if weights is None else np.resize(weights, 50)
    options = {"model": nmfscale.TopicModel, "solver": solver, "dtype": dtype, "init": "random"}
    one = fit(X, 1, row_weights=weights, max_iter=20, **options)
    assert_allclose(one.components_[0], weights @ X / (weights @ X).sum(), rtol=1e-5)
    several = fit(X, 3, row_weights=weights, max_iter=20, **options)
    for array in (several.components_, several.loadings_, *several.history_.tolist()):
        assert np.isfinite(array).all()
    seen = X.sum(axis=0) > 0
    assert (several.components_[:, seen].max(axis=0) > 0).all()


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_an_overflow_is_said_and_leaves_no_model():
    X = np.ones((6, 5))
    model = nmfscale.PoissonNMF(2, solver="joint-em", dtype="float32", max_iter=50, n_threads=1)
    with pytest.raises(FloatingPointError, match="overflowed in iteration .* rescale the counts"):
        model.fit(X, row_weights=np.full(6, 1e38))
    assert not hasattr(model, "components_")


def test_empty_rows_and_columns_are_zero():
    X = make_counts()
    X[[3, 20]] = 0
    X[:, [0, 11]] = 0
    model = fit(X, max_iter=60)
    assert_array_equal(model.loadings_[[3, 20]], 0)
    assert_array_equal(model.components_[:, [0, 11]], 0)
    assert_array_equal(model.transform(X)[[3, 20]], 0)


def test_empty_rows_with_a_prior_are_its_mode():
    X = make_counts()
    X[3] = 0
    model = fit(X, max_iter=60, prior_loadings=(1.5, 2.0))
    expected = 0.5 / (2.0 + model.components_.sum(axis=1))
    assert_allclose(model.transform(X)[3], expected, rtol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_component_has_a_closed_form(solver):
    X = make_counts(20, 15)
    model = fit(X, 1, solver=solver, max_iter=3)
    expected = np.outer(X.sum(axis=1), X.sum(axis=0)) / X.sum()
    assert_allclose(model.loadings_ @ model.components_, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.nightly
def test_auto_reaches_the_best_of_the_papers_method():
    X = make_counts(400, 200, K=6, size=2.0)
    factors = start(X, 6)
    found = {
        solver: fit(X, 6, solver=solver, max_iter=500, **factors).loglik_
        for solver in ("auto", "scd", "newton")
    }
    assert found["auto"] >= found["scd"] - 1e-3 * abs(found["scd"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("held", [None, "samples", "features"])
def test_momentum_carries_no_change_of_scale(dtype, held):
    rng = np.random.default_rng(5)
    L, F = rng.gamma(1.0, size=(40, 4)), rng.gamma(1.0, size=(30, 4))
    scale = np.array([0.5, 1.0, 2.0, 1.0])
    stay = {"samples": np.arange(40) < 9, "features": np.arange(30) < 9}
    constraints = Constraints(**{held: stay[held]} if held else {})
    counts = as_counts(rng.poisson(L @ F.T))
    blocks = LocalExecutor(counts.layout(), 1)
    state = PoissonState(counts, blocks, L, F, dtype, constraints)
    now_L, now_F = (aligned_copy(array) for array in (blocks.get("L"), state.F.values))
    # the same model in another scale
    before_L, before_F = aligned_copy(now_L), aligned_copy(now_F)
    before_L[:, :4] *= scale
    before_F[:, :4] /= scale
    blocks.put("L", before_L)
    state.set_factor(before_F)
    state.sum_columns()
    sums = state.total_L, state.total_F
    for name, array in (("L", now_L), ("next", now_L), ("before", before_L)):
        blocks.put(name, array)
    state.set_factor(now_F)
    state.sum_columns()
    assert_array_equal(scale_of_before(state), 1)
    state.total_L_before, state.total_F_before = sums
    found = scale_of_before(state)
    assert_array_equal(found[:4], 1 / scale)

    def extrapolated(momentum):
        ((values, _),) = blocks.run(ExtrapolateRows(4, momentum, target="ahead"))
        return state.note_rows(values)["change_loadings"]

    assert extrapolated(Momentum(0.7, found)) == 0
    assert_array_equal(blocks.get("ahead"), now_L)
    there = aligned_copy(now_F)
    change = state.extrapolate_factor(now_F, before_F, Momentum(0.7, 1 / found), there)
    assert_array_equal(there, now_F)
    assert change["change_factors"] == 0
    assert extrapolated(Momentum(0.7)) > 0


def test_iterations_from_which_a_fit_goes_back_are_no_sign_of_its_end():
    def say(monitor, *logliks):
        for loglik in logliks:
            monitor.record(loglik=loglik, kkt_loadings=1.0, kkt_factors=1.0)
        return monitor.still

    monitor = Monitor(FactorModel, 100, tol=1e-4)
    assert not say(monitor, -90.0, -80.0, -70.0, -60.0, -50.0)
    assert not say(monitor, -51.0, -53.0, -57.0, -65.0, -80.0, -110.0)
    # back at the best point, whose log-likelihood may differ in its last digits
    assert not say(monitor, -50.0 + 1e-13)
    resumed = Monitor(FactorModel, 100, tol=1e-4)
    resumed.restore(monitor.state())
    for each in (monitor, resumed):
        assert not say(each, -40.0, -40.0, -41.0, -40.0, -40.0, -40.0)
        assert say(each, -40.0)


@pytest.mark.parametrize("seed", range(8))
def test_float32_carries_a_fit_on_after_it_went_back(seed, monkeypatch):
    """The best point is held in float32: in float64 it is a little lower than it was."""
    best = []

    def note_and_change(change_type, model, dtype):
        best.append(model.schedule.best[-1])
        change_type(model, dtype)

    internals.around_change_of_type(monkeypatch, note_and_change)
    X = make_counts(120, 80, K=5, seed=seed)
    model = fit(X, 5, max_iter=400, tol=1e-6, **start(X, 5))
    assert model.converged_
    (best_in_float32,) = best
    assert best_in_float32 == pytest.approx(max(model.history_["loglik"]), rel=1e-5)


def steps_taken(monkeypatch, X, K, seed, max_iter):
    """Which curvature each iteration took, what three had gained before, and the model."""
    taken = []

    def note(choose_steps, schedule, iteration):
        rows, columns = choose_steps(schedule, iteration)
        fell = schedule.n_rising < 4
        taken.append((rows.curvature, columns.em_steps, schedule.gain(3), fell))
        return rows, columns

    with monkeypatch.context() as patch:
        internals.around_choice_of_steps(patch, note)
        return taken, fit(X, K, max_iter=max_iter, tol=0, **start(X, K, seed))


@pytest.mark.parametrize("seed", range(6))
def test_late_iterations_scale_the_curvature_that_was_kept(seed, monkeypatch):
    X = make_counts(120, 80, K=3, seed=seed)
    taken, model = steps_taken(monkeypatch, X, 3, seed, 80)
    late = [curvature == kernels.RESCALE for curvature, *_ in taken]
    assert sum(late) > 20
    for scaled, (curvature, em_steps, gain, fell) in zip(late, taken, strict=True):
        if scaled or (curvature is not None and not em_steps):
            assert gain < LATE_BELOW and not fell
    # ... and ends as high as with curvature whose diagonal is new in every iteration
    internals.no_late_iterations(monkeypatch)
    before, other = steps_taken(monkeypatch, X, 3, seed, 80)
    assert not any(curvature == kernels.RESCALE for curvature, *_ in before)
    best, other_best = max(model.history_["loglik"]), max(other.history_["loglik"])
    assert best == pytest.approx(other_best, rel=1e-6)
    assert model.history_["kkt_loadings"].min() < 1e-4


def test_rejected_steps_are_no_sign_of_the_end():
    """The paper's methods record their best point, which stays while steps are rejected."""
    monitor = Monitor(FactorModel, 100, 1e-4)
    kkt = {"kkt_loadings": 1.0, "kkt_factors": 1.0}
    for _ in range(20):
        monitor.record(reached=-110.0, loglik=-100.0, **kkt)
        assert not monitor.still
    for i in range(7):
        monitor.record(reached=-100.0, loglik=-100.0, **kkt)
        assert monitor.still == (i >= 5)


@pytest.mark.parametrize(("gain_tol", "ends"), [(None, 150), (0.1, 14), (0, 399)])
def test_a_plateau_is_what_the_last_third_gained(gain_tol, ends):
    """Of a fit that has 1000 / n^2 left to gain after n iterations."""
    monitor = Monitor(FactorModel, 400, 1e-3, gain_tol=gain_tol)
    for n in range(1, 400):
        left = 1000 / n**2
        monitor.record(loglik=-1e5 - left, kkt_loadings=1.0, kkt_factors=1.0)
        if monitor.finished:
            break
    assert n == pytest.approx(ends, rel=0.8) and (n < 399) == (gain_tol != 0)
    assert gain_tol == 0 or left < (gain_tol or 1e-6) * 1e5


def test_what_rounding_keeps_below_the_best_is_a_plateau():
    monitor = Monitor(FactorModel, 100, 1e-4)
    kkt = {"kkt_loadings": 1.0, "kkt_factors": 1.0}
    monitor.record(loglik=-100.0, **kkt)
    for i in range(30):
        assert not monitor.still
        monitor.record(loglik=-100.0 - (1e-9 if i % 2 else 1e-3), **kkt)
    assert monitor.still and not monitor.converged


def test_float32_ends_where_its_rounding_ends():
    X = nmfscale.datasets.simulate_topic_counts(60, 40, 3, random_state=8)[0]
    model = nmfscale.PoissonNMF(4, random_state=8, dtype="float32").fit(X)
    assert model.stop_reason_ in ("converged", "precision") and model.n_iter_ < 100
    # so large that its rounding hides what is left: the log-likelihood goes up and down for ever
    large = nmfscale.PoissonNMF(4, random_state=8, dtype="float32").fit(X * 10**6)
    assert large.stop_reason_ == "precision" and large.n_iter_ < 400 and not large.converged_
    exact, limit = (
        nmfscale.PoissonNMF(4, random_state=8, **how).fit((X * 10**6).astype(np.float32))
        for how in ({}, {"tol": 0, "max_iter": 300})
    )
    assert exact.converged_ and exact.loglik_ > limit.loglik_ - 1


@pytest.mark.parametrize(("K", "seed"), [(3, 0), (5, 8)])
def test_extrapolated_descent_converges_at_its_limit(K, seed):
    X = make_counts(120, 80, K=K, seed=seed)
    found, limit = (
        fit(X, K, solver="scd", max_iter=max_iter, tol=tol, **start(X, K))
        for max_iter, tol in ((400, 1e-6), (400, 0))
    )
    assert found.converged_ and found.n_iter_ < 60
    best = max(limit.history_["loglik"])
    assert max(found.history_["loglik"]) == pytest.approx(best, rel=5e-8)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_fit_ends_where_its_residual_is_first_below_tol(seed):
    """Records hold the residual of the iterate where it matters, not of points on the way to it."""
    X, options = make_counts(120, 80, K=4, seed=seed), {"solver": "scd", "init": "random"}
    found = fit(X, 4, tol=1e-4, gain_tol=0, max_iter=100, **options)
    ends = [
        residual(fit(X, 4, max_iter=n, **options)) for n in range(found.n_iter_ - 4, found.n_iter_)
    ]
    assert found.converged_ and min(ends[:2]) > 1e-4
    history = fit(X, 4, max_iter=30, **options).history_
    ended = fit(X, 4, max_iter=20, **options).history_[-1]  # measured, as at the end of a fit
    for name in ("kkt_loadings", "kkt_factors"):
        assert history[name][19] == pytest.approx(ended[name], rel=1e-5)


def test_a_steady_gain_is_no_plateau():
    """As at a saddle: more is left than the little that the last third of the iterations gained."""
    monitor = Monitor(FactorModel, 400, 1e-4)
    for n in range(100):
        monitor.record(loglik=-1e6 - 30 + 2e-3 * n, kkt_loadings=1.0, kkt_factors=1.0)
        assert n < 12 or not monitor.still
    # nor has it converged where many units are left
    for rate, converged in ((1.0, False), (1e-4, True)):
        monitor = Monitor(FactorModel, 400, 1e-4, gain_tol=0)
        for n in range(100):
            monitor.record(loglik=-1e6 + rate * n, kkt_loadings=1e-5, kkt_factors=1e-5)
        assert monitor.converged == converged
