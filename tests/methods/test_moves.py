"""Moves leave a local optimum that plain fits end in, and never end lower."""

import os
import signal

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from small_fits import StopError, bits

import nmfscale
from nmfscale.methods.starts.exchange import exchanged, ranked_exchanges
from nmfscale.methods.starts.moves import (
    Move,
    _Sample,
    added,
    delete_losses,
    halved,
    merge_losses,
    moved,
    ranked_moves,
)
from nmfscale.readers.open import as_counts

N, M, K = 150, 50, 5


def simulated():
    """Counts of five topics with ten features of their own each, and their factors."""
    rng = np.random.default_rng(0)
    F = np.full((M, K), 0.1)
    for k in range(K):
        F[10 * k : 10 * (k + 1), k] += 3 * rng.uniform(0.5, 1.5, 10)
    L = rng.dirichlet(np.full(K, 0.02), N) * 6
    return rng.poisson(L @ F.T), L, F


X, L, F = simulated()
# A local optimum: a topic is two, and two are one.
LOCAL = nmfscale.PoissonNMF(K, init="random", random_state=4, n_threads=1).fit(X)
BAD = {"loadings": LOCAL.loadings_, "components": LOCAL.components_}


def fit(n_moves=3, n_components=K, counts=X, estimator=nmfscale.PoissonNMF, **options):
    given = {name: options.pop(name) for name in ("checkpoint", "resume") if name in options}
    given |= {"checkpoint_every": 0} if given else {}
    start = BAD if n_components == K and "init" not in options else {}
    options = {"random_state": 0, "n_threads": 1, "tol": 1e-3} | options
    return estimator(n_components, n_moves=n_moves, **options).fit(counts, **start, **given)


def end(fitted):
    return fitted.history_["loglik"][-1]


@pytest.mark.parametrize("solver", ["auto", "scd"])
@pytest.mark.parametrize("estimator", [nmfscale.PoissonNMF, nmfscale.TopicModel])
def test_a_known_local_optimum_is_left(estimator, solver):
    best = estimator(K, random_state=0).fit(X, loadings=L + 1e-3, components=F.T)
    plain = fit(0, estimator=estimator, solver=solver)
    assert end(plain) < end(best) - 1000 and not len(plain.moves_)
    left = fit(3, estimator=estimator, solver=solver)
    assert end(left) > end(best) - 2
    kept = left.moves_[left.moves_["kept"]]
    assert_allclose(kept["gain"].sum(), end(left) - end(plain), rtol=1e-6)
    found = left.components_.T / left.components_.sum(axis=1)
    closest = np.abs(found[:, :, None] - (F / F.sum(axis=0))[:, None]).sum(axis=0).min(axis=0)
    assert closest.max() < 0.3


@pytest.mark.parametrize("kind", ["merge-split", "merge-add", "delete-split", "delete-add"])
def test_every_kind_of_move_leaves_a_known_local_optimum(kind):
    less, more = kind.split("-")
    sample = _Sample(
        as_counts(X),
        BAD["loadings"] + 1e-9,
        BAD["components"].T + 1e-9,
        None,
        np.random.RandomState(0),
    )
    losses = merge_losses(sample) if less == "merge" else delete_losses(sample)
    removed = tuple(losses[0][1:])
    splits = [(*halved(sample.expected(k), np.random.RandomState(0)), k) for k in range(K)]
    gain, shares, split = max(
        (each for each in splits if each[2] not in removed), key=lambda x: x[0]
    )
    if more == "add":
        (_, shares), split = added(sample), None
    move = Move(removed, split, shares)
    assert move.kind == kind and gain > 0
    begin, F_begin = moved(BAD["loadings"], BAD["components"].T, move)
    start = {"loadings": begin, "components": F_begin.T}
    best = nmfscale.PoissonNMF(K, random_state=0).fit(X, loadings=L + 1e-3, components=F.T)
    assert end(nmfscale.PoissonNMF(K).fit(X, **start)) > end(best) - 2
    assert end(LOCAL) < end(best) - 1000


def test_topics_are_exchanged_between_two_fits_with_different_errors():
    rng = np.random.default_rng(2)
    F = np.full((60, 6), 0.1)
    for k in range(6):
        F[10 * k : 10 * (k + 1), k] += 3 * rng.uniform(0.5, 1.5, 10)
    L = rng.dirichlet(np.full(6, 0.02), 200) * 6
    counts = rng.poisson(L @ F.T)
    half = np.arange(60) % 2 == 0
    best = nmfscale.PoissonNMF(6).fit(counts, loadings=L + 1e-3, components=F.T)
    ends = []
    for a, b, k in ((0, 1, 2), (3, 4, 5)):  # topics a and b are one, and topic k is two
        wrong, loadings = F.copy(), L.copy()
        wrong[:, a], wrong[:, b] = F[:, a] + F[:, b], F[:, k] * (half + 0.01)
        wrong[:, k] = F[:, k] * (~half + 0.01)
        loadings[:, a], loadings[:, b] = (L[:, a] + L[:, b]) / 2, L[:, k]
        ends.append(
            nmfscale.PoissonNMF(6).fit(counts, loadings=loadings + 1e-3, components=wrong.T)
        )
    assert max(map(end, ends)) < end(best) - 1000
    ours, theirs = ((each.loadings_, each.components_.T) for each in ends)
    move, *_ = ranked_exchanges(as_counts(counts), ours, {4: theirs}, np.random.RandomState(0))
    assert move.source == 4 and len(move.here) == len(move.there) == 3
    L, F = exchanged(*ours, *theirs, move)
    start = {"loadings": L, "components": F.T}
    assert end(nmfscale.PoissonNMF(6).fit(counts, **start)) > end(best) - 2


def test_starts_and_moves_give_topics():
    options = {"n_components": 7, "init": "random", "tol": 1e-4}
    found = fit(4, **options, n_init=2).moves_
    first = found[0]
    assert first["kind"] == b"exchange" and first["source"] in (0, 1)
    assert {b"exchange", b"merge-split", b"reweight"} <= set(found["kind"].tolist())
    assert (found["split"][found["kind"] == b"exchange"] == -1).all()


def test_weights_of_samples_leave_a_local_optimum():
    options = {"n_components": 7, "init": "random", "tol": 1e-4, "random_state": 4}
    plain, moving = (fit(n_moves, **options) for n_moves in (0, 3))
    by_weights = moving.moves_[moving.moves_["kind"] == b"reweight"]
    assert by_weights["kept"].any() and by_weights["gain"].max() > 1
    assert end(moving) > end(plain) + 1


@pytest.mark.parametrize(
    "options",
    [
        {}, {"n_components": 2}, {"n_components": 6, "init": "random", "n_init": 2},
        {"prior_factors": 1.1, "prior_loadings": 1.2}, {"solver": "joint-em", "tol": 1e-2},
    ],
    ids=str,
)  # fmt: skip
def test_never_lower_than_without_moves(options):
    plain, moving = (fit(n_moves, **options) for n_moves in (0, 4))
    assert end(moving) >= end(plain)
    assert len(moving.moves_) >= 1
    if not moving.moves_["kept"].any():  # the plain fit itself
        assert bits(moving) == bits(plain)


def test_the_history_goes_from_the_start_through_the_moves_that_were_kept():
    plain, model = fit(n_moves=0), fit(n_moves=4)
    kept = model.moves_["kept"]
    assert kept.any() and not kept.all()
    n_kept = plain.n_iter_ + model.moves_["iterations"][kept].sum()
    assert n_kept <= model.n_iter_ == len(model.history_)  # the best fit may be continued
    assert_array_equal(model.history_["iteration"], 1 + np.arange(model.n_iter_))
    assert_array_equal(model.history_["loglik"][: plain.n_iter_], plain.history_["loglik"])
    assert (np.diff(model.history_["seconds"]) >= 0).all()
    assert_allclose(model.history_["loglik"][-1], model.loglik_)


@pytest.mark.filterwarnings("ignore:n_components=2 is more than:UserWarning")
def test_one_component_and_one_sample_have_no_moves():
    for counts, n_components in ((X, 1), (X[:1] + 1, 2)):
        fitted = fit(2, n_components, counts, init="random")
        assert bits(fitted) == bits(fit(0, n_components, counts, init="random"))
        assert not len(fitted.moves_)


def test_something_fixed_is_refused_before_any_work():
    model = nmfscale.PoissonNMF(K, n_moves=2)
    with pytest.raises(ValueError, match="n_moves=2 cannot be combined with fixed_topics"):
        model.fit(X, components=F.T, fixed_topics=np.arange(K) == 1)
    with pytest.raises(ValueError, match="n_moves"):
        nmfscale.PoissonNMF(K, n_moves=-1).fit(X)


def test_ctrl_c_and_the_callback_end_the_moves_and_leave_the_best_fit(capsys):
    plain = fit(0, init="auto", n_init=1)
    seen = []

    def interrupt(record):
        seen.append(record)
        if record["iteration"] == 2 and len(seen) > 2:  # of the first move
            os.kill(os.getpid(), signal.SIGINT)

    found = fit(3, init="auto", n_init=1, callback=interrupt)
    assert bits(found) == bits(plain) and found.moves_["iterations"].tolist() == [3]
    assert "interrupted" in capsys.readouterr().err
    stopped = fit(3, callback=lambda record: record["iteration"] == 1)
    assert len(stopped.history_) < 4 and not len(stopped.moves_)


def test_a_fit_that_was_stopped_during_a_move_is_resumed(tmp_path):
    expected, seen = fit(3), []

    def stop(record):
        seen.append(record["iteration"])
        if seen[-5:] == [1, 2, 3, 4, 5] and len(seen) > 5:  # of the first move
            raise StopError

    with pytest.raises(StopError):
        fit(3, callback=stop, checkpoint=tmp_path)
    assert len(list((tmp_path / "restart-1").glob("checkpoint-*.h5")))
    resumed = fit(3, checkpoint=tmp_path, resume=True)
    assert bits(resumed) == bits(expected)
    assert (resumed.moves_ == expected.moves_).all()
    with pytest.raises(ValueError, match="n_moves > 0, and n_init is 1 and n_moves is 0 now"):
        fit(0, checkpoint=tmp_path, resume=True)


def test_progress_names_the_moves_and_how_they_end(capsys):
    found = fit(2, verbose=2)
    text = capsys.readouterr().err
    first = found.moves_[0]
    title = "move 1 of 2 (merge {merged_first} and {merged_second}, split {split})"
    assert title.format(**{name: first[name] for name in first.dtype.names}) in text
    assert "moves: ranking" in text


def test_a_saved_model_has_its_moves(tmp_path):
    found = fit(1)
    found.save(tmp_path / "model.h5")
    assert (nmfscale.load(tmp_path / "model.h5").moves_ == found.moves_).all()


# The ranking ----------------------------------------------------------------------------------


def loglik(L, F):
    mu = L @ F.T
    return (X * np.log(mu) - mu).sum()


def test_bounds_hold():
    counts, rng = as_counts(X), np.random.RandomState(0)
    fitted = nmfscale.PoissonNMF(K, random_state=0).fit(X)
    L, F = np.maximum(fitted.loadings_, 1e-10), np.maximum(fitted.components_.T, 1e-10)
    losses = merge_losses(_Sample(counts, L, F, None, rng))
    assert losses == sorted(losses) and len(losses) == K * (K - 1) // 2
    u = F.sum(axis=0)
    for loss, a, b in losses:
        rows, sizes = L * u, (L * u).sum(axis=0)
        merged = (F[:, [a, b]] / u[[a, b]]) @ sizes[[a, b]] / sizes[[a, b]].sum()
        keep = [k for k in range(K) if k not in (a, b)]
        after = loglik(
            np.column_stack([rows[:, keep], rows[:, a] + rows[:, b]]),
            np.column_stack([F[:, keep] / u[keep], merged]),
        )
        assert loglik(L, F) - after <= loss + 1e-6
    for loss, k in delete_losses(_Sample(counts, L, F, None, rng)):
        # a move that deletes the topic, and splits another one into equal halves
        halves = Move((k,), (k + 1) % K, np.full((M, 2), 0.5))
        L2, F2 = moved(L, F, halves)
        L2[:, [k, (k + 1) % K]] = L2[:, [(k + 1) % K]]
        assert_allclose(loglik(L, F) - loglik(L2, F2), loss, rtol=1e-6)
    gain, frequencies = added(_Sample(counts, L, F, None, rng))
    keeps = Move((0,), None, frequencies)
    size = (L * u).sum(axis=1, keepdims=True)
    assert_allclose(
        loglik(np.hstack([0.9 * L, 0.1 * size]), np.column_stack([F, frequencies])) - loglik(L, F),
        gain, rtol=1e-6,
    )  # fmt: skip
    assert keeps.kind == "delete-add"
    for k in range(K):
        gain, shares = halved(_Sample(counts, L, F, None, rng).expected(k), rng)
        assert gain >= -1e-6
        assert_allclose(shares.sum(axis=1), 1)


def test_a_move_keeps_the_total_of_every_sample():
    rng = np.random.RandomState(0)
    moves = ranked_moves(as_counts(X), L + 1e-3, F, rng)
    assert {move.kind for move in moves} >= {"merge-split", "merge-add"}
    deletes = (moves[0]._replace(removed=(1,), split=k) for k in (0, 2))
    for move in [*moves, *deletes]:
        L2, F2 = moved(L + 1e-3, F, move)
        assert_allclose(L2 @ F2.sum(axis=0), (L + 1e-3) @ F.sum(axis=0))
        others = [k for k in range(K) if k not in (*move.removed, move.split)]
        assert (F2[:, others] == F[:, others]).all()
        if move.kind == "merge-split":
            assert (L2[:, others] == L[:, others] + 1e-3).all()
