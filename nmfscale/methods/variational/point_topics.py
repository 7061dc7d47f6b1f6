"""Newton steps of topics that are point estimates, with the posteriors of samples fixed.

With theta = exp(E log) of the loadings, a feature j with topics W_jk adds
``sum_i x_ij log(theta_i . W_j)`` to the evidence lower bound, and the columns of W sum to one. At
the optimum, the Lagrange multipliers of these sums are the expected counts u_k of the topics. So
W_j minimises the loss of a row of a Poisson NMF (see `poisson.newton`), with u in place of the
column sums of the other factor. One Newton step of that row is taken, and columns are normalised.

If expected counts depend on features by efficiencies (`gamma_batches`), a feature has its own u_j:
its linear terms c_jk plus the multipliers.

Unlike an EM step, such a step may lower the bound, above all if the posteriors of samples are far
from their optimum given the topics.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_zeros
from ...counts.sell import LANES
from ..factors import MINVAL, Array, in_lane_order, to_lanes
from ..weights.measured import own_totals

# Maximum number of Newton steps for multipliers, and their tolerance as a share of the counts.
_MOST_STEPS, _REACHED = 100, 1e-15
# Momentum leaves at least this share of a parameter, as in `poisson.newton`.
_LEAVES = 0.2


def numerators(curvature: Array, design: Array) -> Array:
    """Return ``sum_i x_ij theta_ik / mu_ij``, (slices, K, 16), given `design` W (lanes, stride).

    It is ``H_j W_j``, of the sums over samples `curvature` (slices, K (K + 1) / 2, 16) that
    `kernels.SUM_FULL` adds up, ``H_j = sum_i x_ij theta_i theta_i' / mu_ij^2`` in packed form.
    """
    K = (math.isqrt(8 * curvature.shape[1] + 1) - 1) // 2
    W = design[:, :K].astype(np.float64).reshape(-1, LANES, K)
    out = np.zeros((len(W), K, LANES))
    for k in range(K):
        for other in range(k + 1):
            H = curvature[:, k * (k + 1) // 2 + other]
            out[:, k] += H * W[:, :, other]
            if other < k:
                out[:, other] += H * W[:, :, k]
    return out


def newton_step(
    topics: Array, curvature: Array, expected: Array, n_threads: int,
    linear: Array | None = None, pseudo: Array | None = None,
) -> Array:  # fmt: skip
    """Return topics (m, K) in lane order after a Newton step; their columns sum to one.

    `curvature` are the sums of `numerators`, and `expected` (m, K) the expected counts of topics in
    features, with `pseudo` (m, K) if these are pseudo-counts of a prior. `linear` (m, K) are the u
    of each feature, if they differ. A topic without expected counts stays unchanged, and features
    without counts become zero.
    """
    (m, K), totals = topics.shape, expected.sum(axis=0)
    stride = kernels.row_stride(K)
    # small compared with counts; compared with probabilities, MINVAL is not
    floor = MINVAL / max(float(totals.mean()), 1.0)
    order = in_lane_order(m, LANES * len(curvature))
    start = to_lanes(topics, order, stride, np.float64, floor, floor)
    of_topics = np.zeros(stride)
    own: dict[str, Any] = {}
    if pseudo is not None:
        lanes = to_lanes(pseudo, order, stride, np.float64, 0.0)
        own = {"pseudo": lanes, "rate": aligned_zeros(lanes.shape, np.float64)}
    if linear is None:
        of_topics[:K] = totals
    else:
        own = own_totals(to_lanes(linear, order, stride, np.float64, 1.0), own, np.float64)
    problem = kernels.RowProblem(start, of_topics, K, floor=floor, newton_steps=1)
    kernels.step(
        problem, curvature, start, start, wanted=kernels.SUM_FULL, first=0, n_threads=n_threads,
        **own,
    )  # fmt: skip
    moved = start[:m, :K]
    moved[expected.sum(axis=1) == 0] = 0
    sums = moved.sum(axis=0)
    used = (totals > 0) & (sums > 0)
    return np.divide(moved, sums, out=topics.copy(), where=used)


def multipliers(expected: Array, linear: Array) -> Array:
    """Return l (K,) for which the columns of ``expected / (linear + l)``, both (m, K), sum to one.

    The sum falls in l and is convex: Newton from below never passes the root. Topics without
    expected counts have 0.
    """
    there, totals = expected > 0, expected.sum(axis=0)
    used = totals > 0
    mean = np.divide((expected * linear).sum(axis=0), totals, out=np.zeros(len(totals)), where=used)
    # at both, the sum is at least one: by convexity, and by a single feature
    most = np.where(there, expected - linear, -np.inf).max(axis=0, initial=-np.inf)
    found = np.where(used, np.maximum(totals - mean, most), 0.0)
    for _ in range(_MOST_STEPS):
        below = np.where(there, linear + found, 1.0)
        shares = expected / below
        slope = (shares / below).sum(axis=0)
        step = np.divide(shares.sum(axis=0) - 1, slope, out=np.zeros(len(totals)), where=used)
        found = found + np.maximum(step, 0)
        if (step <= _REACHED * totals).all():
            break
    return found


def extrapolated(now: Array, before: Array, momentum: float) -> Array:
    """Return topics extrapolated from `now` away from `before`.

    Logarithms would be extrapolated too far after a Newton step from or to almost zero.
    """
    further: Array = np.maximum(now + momentum * (now - before), _LEAVES * now)
    return further
