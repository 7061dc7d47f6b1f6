"""Online EM of a Poisson NMF: factors that follow one batch of samples after the other.

As in Cappe and Moulines (2009), and Lefevre, Bach and Fevotte (2011): if the loadings of the n
samples of a batch are at their optimum, sums over them are estimates of

    a_jk = sum_i x_ij l_ik f_jk / mu_ij / n,  the expected counts of a topic in a feature, and
    b_k = sum_i l_ik / n,  its mean loading.

Moving averages A and B of these, with weights that fall from batch to batch, give F = A / B. B has
a number for each feature, because a batch may lack features that were not measured.

Each batch takes `ROUNDS` rounds, in which a, b and F are updated. In a round, factors are raised to
a share of the overall frequency of their feature, or EM could not move them from zero: what earlier
batches by chance did not show, and features that they lacked. This share is `LEAST_SHARE` times the
share of the batch in all samples so far, so that it vanishes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.sell import LANES
from ...engine.protocol import Executor, Needs
from ..factors import Array, from_lanes, rows_of_sums
from ..projection.transform import ProjectRows, projection_needs
from ..rows_pass import RowsPass
from .steps import ColumnSums, Part, SumColumns

# See above.
ROUNDS, LEAST_SHARE = 3, 0.1
# Least share of features that earlier batches had in the counts of a batch, for a start.
_LEAST_KNOWN = 0.1


def expected_counts(rows_pass: RowsPass, executor: Executor) -> tuple[Array, Array]:
    """Return sums over rows at their optimum: ``sum_i x_ij l_ik f_jk / mu_ij`` and ``sum_i l_ik``.

    Parameters
    ----------
    rows_pass : RowsPass
        What `projection` returned.
    executor : Executor
        Executor of the same counts; loadings stay in it.

    Returns
    -------
    expected : ndarray of shape (m, K)
        Expected counts of each component in each feature.
    loadings : ndarray of shape (K,)
        Column sums of the loadings.
    """
    (project,) = rows_pass.steps
    assert isinstance(project, ProjectRows)
    K, m, order = project.n_components, rows_pass.counts.shape[1], executor.layout.column_order
    for name, array in rows_pass.inputs.items():
        executor.put(name, array)
    parts = (Part(0, len(project.F) // LANES, kernels.SUM_GRADIENT),)
    add = SumColumns(project.F, K, parts, source=rows_pass.output)
    _, (of_rows, _), (_, sums) = executor.run(project, ColumnSums(K, rows_pass.output), add)
    executor.drop(*rows_pass.inputs, rows_pass.output)
    expected = rows_of_sums(sums[0], len(order)) * project.F[:, :K]
    loadings = of_rows["sums"][None, :K]
    for function in rows_pass.finish:  # which scale loadings
        loadings = function(slice(0, 1), loadings)
    return from_lanes(expected, order, m, K), loadings[0]


def needs_of_batch(counts: CountMatrix, n_components: int) -> Needs:
    """Return the memory that `expected_counts` needs."""
    stride = kernels.row_stride(n_components)
    needs, n_lanes = projection_needs(counts, n_components), -(-counts.shape[1] // LANES) * LANES
    sums = n_lanes * kernels.statistics_size(n_components, kernels.SUM_GRADIENT) * 8
    return needs._replace(row=2 * stride * 8, sums=sums, shared=needs.shared + 2 * sums)


def overall_frequency(
    A: Array, B: Array, F: Array, counts: CountMatrix, here: Any, rho: float
) -> Array:
    """Return the frequency (m,) of each feature in all counts, a batch included.

    The counts of the batch have the features `here`, and its weight is `rho`.
    """
    n, total, expected = counts.shape[0], A.sum(axis=1), (B * F.sum(axis=0)).sum(axis=1)
    total[here] = (1 - rho) * total[here] + rho * counts.column_totals / n
    expected[here] = (1 - rho) * expected[here] + rho * counts.total / n
    frequency: Array = np.divide(total, expected, out=total * 0, where=expected > 0)
    return frequency


def start_of_new(frequency: Array, F: Array) -> Array:
    """Return factors of new features with these frequencies in a batch, the same in all topics.

    Expected counts of the other features stay the same.
    """
    start: Array = frequency[:, None] / max(1 - frequency.sum(), _LEAST_KNOWN) * F.sum(axis=0)
    return start


def raised(F: Array, least: Array) -> Array:
    """Return factors of the same column sums, raised to these frequencies (m,)."""
    sums = F.sum(axis=0)
    higher = np.maximum(F, least[:, None] * sums)
    higher *= np.divide(sums, higher.sum(axis=0), out=sums * 0, where=sums > 0)
    return higher


def averages(
    A: Array, B: Array, F: Array, a: Array, b: Array, here: Any, rho: float
) -> tuple[Array, Array]:
    """Return A and B after a batch of weight `rho`, in which the features `here` were measured.

    If B is 0, the factors F are not from counts: they count as if all samples had loadings b.
    """
    if not B.any():
        A, B = F * b, np.repeat(b[None], len(F), axis=0)
    A, B = (1 - rho) * A, (1 - rho) * B
    A[here] += rho * a
    B[here] += rho * b
    return A, B
