"""Labels or targets of samples in a semi-supervised NMF: their loss and terms of updates.

With mu = S B^T, targets y and weights w >= 0 of them (0: unknown) the loss, and U and V, are

    "frobenius"  sum w (y - mu)^2                  U = w y        V = w mu
    "kl"         sum w (y log(y / mu) - y + mu)    U = w y / mu   V = w

A multiplicative update of B is ``B <- B (U^T S) / (V^T S)``; that of S takes ``U B`` and ``V B``.

If all targets of a sample have the same weight, V needs no mu: ``V^T S = B (S^T W S)`` and ``V B =
W S B^T B`` for a norm, ``w^T S`` and ``w 1^T B`` for a divergence. U then involves mu for a
divergence only, and for labels of classes only at the class of each sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...counts.sell import LANES
from ...engine.protocol import Block, Values
from ...kernels import dense
from ...kernels.functions import log, xlogy
from ...kernels.targets import Targets
from ..factors import LEAST, Array, aligned_copy

# Rows that are processed at a time, so that temporaries are small compared with row arrays; and
# numbers in a temporary, so that it stays in the cache.
PIECE, _CACHED = 1 << 12, 1 << 15
# Row arrays: targets (lanes, T), or the class number of each lane; their weights, for each lane or
# (lanes, T); held-out labels (lanes,), if there are any.
TARGETS, WEIGHTS, HELD_OUT = "targets", "label_weights", "held_out"
ROWS = TARGETS, WEIGHTS, HELD_OUT


class Supervision(NamedTuple):
    """Labels or targets of all samples, in the order of the counts.

    `targets` are numbers (n, T), or numbers of classes (n,) of T classes; `weights` (n,) or (n, T);
    `held_out` (n,) marks samples whose labels are for validation only and have weight 0.
    """

    targets: Array
    weights: Array
    n_targets: int
    held_out: Array | None = None


def pieces(n_rows: int, width: int = 1) -> Iterator[slice]:
    """Split rows of `width` numbers into ranges."""
    size = min(PIECE, max(LANES, _CACHED // width))
    for first in range(0, n_rows, size):
        yield slice(first, min(first + size, n_rows))


def wide(values: Array, n_targets: int) -> Array:
    """Return targets (n, T); class numbers become one-hot rows."""
    if values.ndim == 2:
        return values
    out = np.zeros((len(values), n_targets))
    out[np.arange(len(values)), values.astype(np.intp)] = 1
    return out


def predicted(S: Array, B: Array) -> Array:
    """Return S B^T."""
    targets: Array = dense.product(S, B.T)
    return targets


def terms(targets: Array, weights: Array, mu: Array, loss: str) -> tuple[Array, Array]:
    """Return U and V: see the top of this file."""
    w = weights if weights.ndim == 2 else weights[:, None]
    if loss == "frobenius":
        return w * targets, w * mu
    return w * targets / np.maximum(mu, LEAST), np.broadcast_to(w, mu.shape)


def loss_of(targets: Array, weights: Array, mu: Array, loss: str) -> float:
    """Return the loss of some samples."""
    if loss == "frobenius":
        losses = (targets - mu) ** 2
    else:
        mu = np.maximum(mu, LEAST)
        losses = xlogy(targets, targets / mu) - targets + mu
    return float((losses * (weights if weights.ndim == 2 else weights[:, None])).sum())


def sums(
    block: Block, S: Array, B: Array, loss: str, n_threads: int, curvature: bool = False
) -> Values:
    """Return ``up`` U^T S and ``down`` V^T S, the loss, and the number of correct classes.

    S (n_rows, K) in float64 are the loadings of the rows of a block. With `curvature`, also return
    the curvature for each row of B, lower triangles (T, K, K): sum_i w_ic s_i s_i^T, or with
    weights w y / mu^2 instead of w.
    """
    if block[WEIGHTS].ndim == 2:
        of_block = _sums(block, S, B, loss)
    else:
        of_block = _sums_of_rows(block, S, B, loss, n_threads)
    if curvature:
        of_block["label_curvature"] = _curvature(block, S, B, loss)
    held_out, score = block.get(HELD_OUT), 0.0
    if held_out is not None:
        for here in pieces(len(S), len(B)):
            which = here.start + np.flatnonzero(held_out[here])
            score += _score(block[TARGETS][which], predicted(S[which], B))
    return of_block | {"validation": score}


def _sums(block: Block, S: Array, B: Array, loss: str) -> Values:
    up, down, total = np.zeros(B.shape), np.zeros(B.shape), 0.0
    for here in pieces(len(S), len(B)):
        targets, weights = block[TARGETS][here], block[WEIGHTS][here]
        mu = predicted(S[here], B)
        total += loss_of(targets, weights, mu, loss)
        U, V = terms(targets, weights, mu, loss)
        up += dense.cross(U, S[here])
        down += dense.cross(V, S[here])
    return {"up": up, "down": down, "loss_labels": total}


def _sums_of_rows(block: Block, S: Array, B: Array, loss: str, n_threads: int) -> Values:
    """Return the sums if all targets of a row have the same weight."""
    targets, w = block[TARGETS][: len(S)], block[WEIGHTS][: len(S)]
    weighted = S * w[:, None]
    if targets.ndim == 2:
        dense_targets = Targets(targets, S, B, w, divides=loss == "kl", n_threads=n_threads)
        up, constant = dense_targets.sums()
    elif loss == "frobenius":
        up, constant = dense.sums_of_groups(weighted, targets, len(B)), float(w.sum())
    else:
        ratios = _ratios_of_classes(S, B, targets)
        up = dense.sums_of_groups(weighted * ratios[:, None], targets, len(B))
        constant = float((w * (log(ratios) - 1)).sum())
    if loss == "frobenius":
        down = dense.product(B, dense.cross(S, weighted))
        loss_here = constant + float((B * (down - 2 * up)).sum())
    else:
        total = weighted.sum(axis=0)
        down = np.broadcast_to(total, B.shape)
        loss_here = constant + float((B.sum(axis=0) * total).sum())
    return {"up": up, "down": down, "loss_labels": max(loss_here, 0.0)}


def _curvature(block: Block, S: Array, B: Array, loss: str) -> Array:
    """Return the curvature for each row of B: see `sums`."""
    T, K = B.shape
    H = np.zeros((T, K, K))
    for here in pieces(len(S), T):
        targets, weights = wide(block[TARGETS][here], T), block[WEIGHTS][here]
        w = weights if weights.ndim == 2 else weights[:, None]
        if loss == "kl":
            mu = np.maximum(predicted(S[here], B), LEAST)
            w = w * targets / mu / mu
        for k in range(K):  # weights of rows are the same for all targets
            H[:, k, : k + 1] += dense.cross(w * S[here, k : k + 1], S[here, : k + 1])
    return H


def _ratios_of_classes(S: Array, B: Array, classes: Array) -> Array:
    """Return 1 / mu at the class of each row."""
    mu = dense.dots(S, np.arange(len(S)), B, classes)
    return 1 / np.maximum(mu, LEAST, out=mu)


def _score(targets: Array, mu: Array) -> float:
    """Return the number of correct classes, or minus the squared error."""
    if targets.ndim == 2:
        return -float(((targets - mu) ** 2).sum())
    return float((mu.argmax(axis=1) == targets).sum())


def of_rows(block: Block, S: Array, B: Array, loss: str, n_threads: int) -> tuple[Array, Array]:
    """Return ``S (U B)`` and ``V B`` (n_rows, K) for an update of the rows of a block."""
    targets, w = block[TARGETS][: len(S)], block[WEIGHTS][: len(S)]
    if w.ndim == 2:
        up, down = np.empty(S.shape), np.empty(S.shape)
        for here in pieces(len(S), len(B)):
            U, V = terms(targets[here], w[here], predicted(S[here], B), loss)
            up[here], down[here] = dense.product(U, B), dense.product(V, B)
        up *= S
        return up, down
    if targets.ndim == 2:
        up = Targets(targets, S, B, w, divides=loss == "kl", n_threads=n_threads).products()
    else:
        up = B[targets.astype(np.intp)]
        if loss == "kl":
            up *= _ratios_of_classes(S, B, targets)[:, None]
    up *= w[:, None]
    up *= S
    denominator = dense.product(S, dense.cross(B)) if loss == "frobenius" else B.sum(axis=0)
    return up, w[:, None] * denominator


def in_slices(
    block: Block, n_targets: int, n_slices: int, scale: float, dtype: Any
) -> tuple[Array, Array]:
    """Return scale w y and scale w, (slices, T, 16), for the rows of a block."""
    out = [aligned_copy(np.zeros((n_slices, n_targets, LANES)), dtype) for _ in range(2)]
    for here in pieces(n_slices * LANES):
        weights = block[WEIGHTS][here]
        w = scale * (weights if weights.ndim == 2 else weights[:, None])
        slices = slice(here.start // LANES, here.stop // LANES)
        for to, values in zip(out, (w * wide(block[TARGETS][here], n_targets), w), strict=True):
            lanes = np.broadcast_to(values, (here.stop - here.start, n_targets))
            to[slices] = lanes.reshape(-1, LANES, n_targets).transpose(0, 2, 1)
    return out[0], out[1]
