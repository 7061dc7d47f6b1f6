"""Expected counts of each component in each feature, and sums of loadings, with factors fixed."""

from __future__ import annotations

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.sell import LANES
from ...engine.protocol import Executor, Needs
from ..factors import Array, from_lanes, rows_of_sums
from ..poisson.steps import ColumnSums, Part, SumColumns
from ..rows_pass import RowsPass
from .transform import ProjectRows, projection_needs


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


def needs_of_expected_counts(counts: CountMatrix, n_components: int) -> Needs:
    """Return the memory that `expected_counts` needs."""
    stride = kernels.row_stride(n_components)
    needs, n_lanes = projection_needs(counts, n_components), -(-counts.shape[1] // LANES) * LANES
    sums = n_lanes * kernels.statistics_size(n_components, kernels.SUM_GRADIENT) * 8
    return needs._replace(row=2 * stride * 8, sums=sums, shared=needs.shared + 2 * sums)
