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
import scipy.sparse as sp

from ...counts.sell import LANES
from ...engine.protocol import Block, Values
from ...kernels import dense
from ...kernels.functions import log, xlogy
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
    the curvature for each row of B, lower triangles (T, K, K): sum_i w_ic s_i s_i^T, or with
    weights w y / mu^2 instead of w.
    """
    found = (_sums if block[WEIGHTS].ndim == 2 else _sums_of_rows)(block, S, B, loss)
    if curvature:
        found["label_curvature"] = _curvature(block, S, B, loss)
    held_out, score = block.get(HELD_OUT), 0.0
    if held_out is not None:
        for here in pieces(len(S), len(B)):
            which = here.start + np.flatnonzero(held_out[here])
            score += _score(block[TARGETS][which], predicted(S[which], B))
    return found | {"validation": score}


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


def _sums_of_rows(block: Block, S: Array, B: Array, loss: str) -> Values:
    """Return the sums if all targets of a row have the same weight."""
    T, K = B.shape
    up, G, total, constant = np.zeros(B.shape), np.zeros((K, K)), np.zeros(K), 0.0
    for here in pieces(len(S), T):
        s, targets, w = S[here], block[TARGETS][here], block[WEIGHTS][here]
        weighted = s * w[:, None]
        if loss == "frobenius":
            values = known = _values(targets)
            G += dense.cross(s, weighted)
            constant += _weighted_sum(known * known, w)
        else:
            known, values = _values(targets), _ratios(s, B, targets)
            total += weighted.sum(axis=0)
            logs = log(np.maximum(values, LEAST))  # times 0 where a target is 0
            logs -= 1
            logs *= known
            constant += _weighted_sum(logs, w)
        up += _cross(values, targets, weighted, T)
    if loss == "frobenius":
        down = dense.product(B, G)
        loss_here = constant + float((B * (down - 2 * up)).sum())
    else:
        down = np.tile(total, (T, 1))
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


# Entries of targets: all of a matrix, or one of each row, that of its class.


def _values(targets: Array) -> Array:
    return targets if targets.ndim == 2 else np.ones(len(targets))


def _at_targets(S: Array, B: Array, targets: Array) -> Array:
    """Return S B^T at the entries of targets."""
    if targets.ndim == 2:
        return predicted(S, B)
    found: Array = dense.dots(S, np.arange(len(S)), B, targets.astype(np.intp))
    return found


def _ratios(S: Array, B: Array, targets: Array) -> Array:
    """Return y / mu at the entries of targets."""
    mu = _at_targets(S, B, targets)
    np.maximum(mu, LEAST, out=mu)
    return np.divide(_values(targets), mu, out=mu)


def _cross(values: Array, targets: Array, S: Array, n_targets: int) -> Array:
    """Return the sums over rows of values at the entries of targets times S, (T, K)."""
    if targets.ndim == 2:
        found: Array = dense.cross(values, S)
        return found
    order = np.argsort(targets, kind="stable")
    ends = np.searchsorted(targets[order], np.arange(n_targets + 1))
    rows = sp.csr_array((values[order], order, ends), (n_targets, len(S)))
    of_classes: Array = dense.of_sparse(rows, S)
    return of_classes


def _times(values: Array, targets: Array, B: Array) -> Array:
    """Return the sums over targets of values at the entries times B, (n_rows, K)."""
    if targets.ndim == 2:
        found: Array = dense.product(values, B)
        return found
    return values[:, None] * B[targets.astype(np.intp)]


def _weighted_sum(each: Array, w: Array) -> float:
    return float(((each if each.ndim == 1 else each.sum(axis=1)) * w).sum())


def _score(targets: Array, mu: Array) -> float:
    """Return the number of correct classes, or minus the squared error."""
    if targets.ndim == 2:
        return -float(((targets - mu) ** 2).sum())
    return float((mu.argmax(axis=1) == targets).sum())


def of_rows(block: Block, S: Array, B: Array, loss: str) -> tuple[Array, Array]:
    """Return ``S (U B)`` and ``V B`` (n_rows, K) for an update of the rows of a block."""
    up, down = np.empty(S.shape), np.empty(S.shape)
    G, total = dense.cross(B), B.sum(axis=0)
    for here in pieces(len(S), len(B)):
        s, targets, w = S[here], block[TARGETS][here], block[WEIGHTS][here]
        if w.ndim == 2:
            U, V = terms(targets, w, predicted(s, B), loss)
            up[here], down[here] = dense.product(U, B), dense.product(V, B)
            continue
        values = _values(targets)
        if loss == "kl":
            values = _ratios(s, B, targets)
        up[here] = w[:, None] * _times(values, targets, B)
        down[here] = w[:, None] * (dense.product(s, G) if loss == "frobenius" else total)
    up *= S
    return up, down


def least_of(targets: Array, weights: Array, n_targets: int) -> float:
    """Return the mean of the known targets, 1 if there are none."""
    if targets.ndim == 1:
        return 1 / n_targets if n_targets else 1.0
    w = np.broadcast_to(weights if weights.ndim == 2 else weights[:, None], targets.shape)
    total = float(w.sum())
    return float((w * targets).sum()) / total if total else 1.0


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
