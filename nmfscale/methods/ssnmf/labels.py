"""Labels or targets of samples in a semi-supervised NMF: their loss and terms of updates.

With mu = S B^T, targets y and weights w >= 0 of them (0: unknown) the loss, and U and V, are

    "frobenius"  sum w (y - mu)^2                  U = w y        V = w mu
    "kl"         sum w (y log(y / mu) - y + mu)    U = w y / mu   V = w

A multiplicative update of B is ``B <- B (U^T S) / (V^T S)``; that of S takes ``U B`` and ``V B``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...counts.sell import LANES
from ...engine.protocol import Block, Values
from ...kernels import dense
from ...kernels.functions import xlogy
from ..factors import LEAST, Array, aligned_copy

# Rows that are processed at a time, so that temporaries are small compared with row arrays.
PIECE = 1 << 12
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


def pieces(n_rows: int) -> Iterator[slice]:
    """Split rows into ranges."""
    for first in range(0, n_rows, PIECE):
        yield slice(first, min(first + PIECE, n_rows))


def wide(values: Array, n_targets: int) -> Array:
    """Return targets (n, T); class numbers become one-hot rows."""
    if values.ndim == 2:
        return values
    out = np.zeros((len(values), n_targets))
    out[np.arange(len(values)), values.astype(np.intp)] = 1
    return out


def predicted(S: Array, B: Array) -> Array:
    """Return S B^T."""
    found: Array = dense.product(S, B.T)
    return found


def terms(targets: Array, weights: Array, mu: Array, loss: str) -> tuple[Array, Array]:
    """Return U and V: see the top of this file."""
    w = weights if weights.ndim == 2 else weights[:, None]
    if loss == "frobenius":
        return w * targets, w * mu
    return w * targets / np.maximum(mu, LEAST), np.broadcast_to(w, mu.shape)


def loss_of(targets: Array, weights: Array, mu: Array, loss: str) -> float:
    """Return the loss of some samples."""
    if loss == "frobenius":
        each = (targets - mu) ** 2
    else:
        mu = np.maximum(mu, LEAST)
        each = xlogy(targets, targets / mu) - targets + mu
    return float((each * (weights if weights.ndim == 2 else weights[:, None])).sum())


def sums(block: Block, S: Array, B: Array, loss: str, curvature: bool = False) -> Values:
    """Return ``up`` U^T S and ``down`` V^T S, the loss, and the number of correct classes.

    S (n_rows, K) in float64 are the loadings of the rows of a block. With `curvature`, also return
    the curvature for each row of B, lower triangles (T, K, K): sum_i w s_i s_i^T, or with weights w
    y / mu^2 instead of w.
    """
    T, held_out = len(B), block.get(HELD_OUT)
    up, down = np.zeros(B.shape), np.zeros(B.shape)
    H = np.zeros((T, S.shape[1], S.shape[1]))
    total, score = 0.0, 0.0
    for here in pieces(len(S)):
        targets, weights = wide(block[TARGETS][here], T), block[WEIGHTS][here]
        mu = predicted(S[here], B)
        total += loss_of(targets, weights, mu, loss)
        U, V = terms(targets, weights, mu, loss)
        up += dense.cross(U, S[here])
        down += dense.cross(V, S[here])
        if curvature and loss == "kl":
            _add_curvature(H, U / np.maximum(mu, LEAST), S[here])
        elif curvature:  # weights of rows are the same for all targets
            _add_curvature(H, weights if weights.ndim == 2 else weights[:, None], S[here])
        if held_out is not None:
            score += _score(block[TARGETS][here], mu, held_out[here])
    found = {"up": up, "down": down, "loss_labels": total, "validation": score}
    return found | ({"label_curvature": H} if curvature else {})


def _score(targets: Array, mu: Array, held_out: Array) -> float:
    """Return the number of correct classes, or minus the squared error."""
    mu, targets = mu[held_out], targets[held_out]
    if targets.ndim == 2:
        return -float(((targets - mu) ** 2).sum())
    return float((mu.argmax(axis=1) == targets).sum())


def of_rows(block: Block, S: Array, B: Array, loss: str) -> tuple[Array, Array]:
    """Return ``S (U B)`` and ``V B`` (n_rows, K) for an update of the rows of a block."""
    T, up, down = len(B), np.empty(S.shape), np.empty(S.shape)
    for here in pieces(len(S)):
        targets, weights = wide(block[TARGETS][here], T), block[WEIGHTS][here]
        U, V = terms(targets, weights, predicted(S[here], B), loss)
        up[here], down[here] = dense.product(U, B), dense.product(V, B)
    up *= S
    return up, down


def least_of(targets: Array, weights: Array, n_targets: int) -> float:
    """Return the mean of the known targets, 1 if there are none."""
    if targets.ndim == 1:
        return 1 / n_targets if n_targets else 1.0
    w = np.broadcast_to(weights if weights.ndim == 2 else weights[:, None], targets.shape)
    total = float(w.sum())
    return float((w * targets).sum()) / total if total else 1.0


def _add_curvature(out: Array, each: Array, S: Array) -> None:
    """Add the lower triangle of sum_i w_ic s_i s_i^T to that of every target c."""
    for k in range(S.shape[1]):
        out[:, k, : k + 1] += dense.cross(each * S[:, k : k + 1], S[:, : k + 1])


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
