"""Covariances of regression coefficients of features, from how much they differ between units.

Samples of one unit, such as the cells of a donor, depend on each other, and units do not. The
covariance is that of the jackknife that leaves out one unit at a time, with one Newton step for
each (CR3 of MacKinnon and White 1985, with clusters): a sandwich over the score contributions of
units, which does not underestimate where a coefficient depends on few of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.sell import LANES, SellBlock
from ...kernels import decompositions, dense

Array = NDArray[Any]


def unit_covariances(
    counts: SellBlock, design: Array, units: Array, unit_totals: Array, coefficients: Array,
    pseudocount: float,
) -> Array:  # fmt: skip
    """Return the covariances of log coefficients of each lane, (lanes, K (K + 1) / 2), packed.

    Lanes without counts have 0.

    Parameters
    ----------
    counts : SellBlock
        Counts of the features, in lanes; indices are samples.
    design : array of shape (n_samples, >= K)
        Expected counts of topics with coefficients of 1, but for efficiencies of the feature in
        groups of samples: the sums over counts do not depend on them.
    units : array of shape (n_samples,)
        Number of the unit of each sample.
    unit_totals : array of shape (lanes, n_units, K)
        Sums of the design, times efficiencies, over the samples of each unit; a unit without any
        does not count.
    coefficients : array of shape (lanes, K)
        Positive coefficients, the minimum of the regression with these pseudo-counts.
    pseudocount : float
        Pseudo-counts of each coefficient.
    """
    K = coefficients.shape[1]
    out = np.zeros((len(coefficients), K * (K + 1) // 2))
    lower = np.tril_indices(K)
    for s, (first, last) in enumerate(zip(counts.offset[:-1], counts.offset[1:], strict=True)):
        index, values = (
            array[first * LANES : last * LANES].reshape(-1, LANES)
            for array in (counts.index, counts.count)
        )
        for lane in range(LANES):
            there, place = np.flatnonzero(values[:, lane]), s * LANES + lane
            if not there.size:
                continue
            inside = np.flatnonzero(unit_totals[place].any(axis=1))
            number = np.full(unit_totals.shape[1], -1)
            number[inside] = np.arange(inside.size)
            samples = index[there, lane]
            b = coefficients[place]
            moved = _without_each_unit(
                design[samples, :K] * b, values[there, lane].astype(np.float64),
                number[units[samples].astype(np.intp)], unit_totals[place, inside] * b, pseudocount,
            )  # fmt: skip
            moved -= moved.mean(axis=0)
            n = len(moved)
            out[place] = (dense.cross(moved) * ((n - 1) / n))[lower]
    return out


def _without_each_unit(
    parts: Array, counts: Array, units: Array, unit_totals: Array, pseudocount: float
) -> Array:
    """Return the changes (U, K) of log coefficients if one unit is left out, by a Newton step.

    `parts` (p, K) are the expected counts of topics in the samples that have counts (p,).
    `unit_totals` (U, K) are their sums over all samples of each unit.
    """
    K = parts.shape[1]
    order = np.argsort(units, kind="stable")
    parts, counts, units = parts[order], counts[order], units[order]
    means = parts.sum(axis=1)
    starts = np.flatnonzero(np.concatenate([[True], units[1:] != units[:-1]]))
    present = units[starts]
    scores = -unit_totals
    scores[present] += np.add.reduceat(parts * (counts / means)[:, None], starts, axis=0)
    weighted = parts * (counts / (means * means))[:, None]
    information = np.empty((present.size, K, K))
    for k in range(K):
        information[:, :, k] = np.add.reduceat(weighted * parts[:, [k]], starts, axis=0)
    whole = information.sum(axis=0)
    whole.flat[:: K + 1] += pseudocount
    moved = decompositions.solve(whole, -scores.T).T
    moved[present] = decompositions.solve(whole - information, -scores[present, :, None])[:, :, 0]
    return moved


def unpacked(packed: Array, k: int, i: int) -> Array:
    """Return the covariance (m,) of coefficients k and i from packed ones."""
    high, low = max(k, i), min(k, i)
    covariance: Array = packed[:, high * (high + 1) // 2 + low]
    return covariance
