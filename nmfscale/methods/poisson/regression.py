"""Additive Poisson regression with non-negative coefficients, for many responses at once."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_scalar

from ...counts.base import CountMatrix
from ...counts.names import matched, warn_of_surplus
from ...counts.structure import non_negative
from ...counts.warn import warn_caller
from ...engine.local import LocalExecutor
from ...engine.threads import resolve_threads
from ...readers.open import as_counts
from ..factors import Array, from_lanes
from ..projection.projector import RowSteps
from ..projection.transform import projection

# One iteration of each solver.
_UPDATES = {
    "em": RowSteps("update_rows", {"em_steps": 1}),
    "ccd": RowSteps("descend", {"em_steps": 1, "newton_steps": 1}),
    "scd": RowSteps("descend", {"em_steps": 1, "newton_steps": 4}),
    "sn": RowSteps("descend", {"em_steps": 1, "newton_steps": 4, "guarded": True}),
}
RegressionSolver: TypeAlias = Literal["auto", "em", "ccd", "scd", "sn"]
REGRESSION_SOLVERS = get_args(RegressionSolver)


def poisson_regression(
    A: ArrayLike, y: ArrayLike, *, solver: RegressionSolver = "auto", max_iter: int = 1000,
    tol: float = 1e-8, n_threads: int | None = None,
) -> Array:  # fmt: skip
    r"""Maximum-likelihood coefficients of an additive Poisson regression, all non-negative.

    The model is :math:`y_i \sim \mathrm{Poisson}(\mu_i)` with :math:`\mu = A b` and :math:`b \ge 0`
    (equation 9 of [1]_): a Poisson regression with identity link and without an intercept, for
    which `A` may have a column of ones. The paper's FIT-POIS-REG(A, y) fits one response. Here,
    every column of `y` is a response with its own coefficients.

    Parameters
    ----------
    A : array-like of shape (n_samples, n_components)
        Non-negative design matrix.
    y : array-like or sparse matrix of shape (n_samples,) or (n_samples, n_targets)
        Non-negative responses, usually counts. A Series or DataFrame is matched with a DataFrame
        `A` by the names of the samples.
    solver : {"auto", "em", "ccd", "scd", "sn"}, default="auto"
        What an iteration does:

        - "auto": a Newton step on all coefficients at once, restricted to non-negative
          coefficients (with more than 32 components, to those that are not at zero);
        - "em": an EM step (equations 10 and 11), which is slow to approach zeros;
        - "ccd", "scd": an EM step, then one (cyclic) or four (sequential) sweeps of coordinate
          descent (equations 14 to 16);
        - "sn": the same as "scd" with the step size of scalar Newton, by which no sweep lowers the
          likelihood.
    max_iter : int, default=1000
        Maximum number of iterations.
    tol : float, default=1e-8
        A response is fitted if no :math:`|b_k g_k|`, with g the gradient of the negative
        log-likelihood, exceeds `tol` times the sum of the response.
    n_threads : int, default=None
        Threads, as in :class:`nmfscale.PoissonNMF`. They change no bit of the result.

    Returns
    -------
    ndarray of shape (n_components,) or (n_targets, n_components), float64
        The coefficients; 0 for a column of `A` that is all zero, and for a response without counts.
        If columns of `A` are linearly dependent, they are one of several optima.

    Raises
    ------
    ValueError
        If shapes do not fit, a number is negative or not finite, an option is invalid, or a row of
        `A` is all zero although `y` is not: no coefficients explain its counts.

    Warns
    -----
    UserWarning
        If `A` has samples that `y` lacks, which are left out.
    ConvergenceWarning
        If responses are not fitted after `max_iter` iterations.

    See Also
    --------
    mixture_proportions : The same with coefficients that sum to one.
    PoissonNMF.transform : The same for counts in files, with the factors of a fit as `A`.

    References
    ----------
    .. [1] Carbonetto, P., Sarkar, A., Wang, Z. and Stephens, M. (2021). Non-negative matrix
       factorization algorithms greatly improve topic model fits. arXiv:2105.13440.

    Examples
    --------
    >>> from nmfscale.likelihood import poisson_regression
    >>> A = [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]
    >>> poisson_regression(A, [2, 5, 8]).round(6)
    array([2., 3.])
    >>> poisson_regression(A, [[2, 4], [5, 4], [8, 0]], solver="scd").round(3) + 0
    array([[2.   , 3.   ],
           [2.667, 0.   ]])
    """
    if solver not in REGRESSION_SOLVERS:
        raise ValueError(f"solver={solver!r} must be one of {', '.join(REGRESSION_SOLVERS)}.")
    check_scalar(max_iter, "max_iter", Integral, min_val=1)
    check_scalar(tol, "tol", Real, min_val=0)
    counts, several = _responses(y)
    samples = counts.feature_names
    warn_of_surplus(A, samples, "A", of="samples", subject="y")
    design = matched(A, samples, "A", subject="y")
    design = non_negative(design, "A", (counts.shape[1], None)).astype(np.float64)
    _check_explained(counts, design)
    coefficients = np.zeros((counts.shape[0], design.shape[1]))
    if counts.nnz:
        n_threads = resolve_threads(n_threads, counts.nnz * design.shape[1])
        coefficients, unfinished = _fitted(counts, design, solver, max_iter, tol, n_threads)
        if unfinished:
            warn_caller(
                f"{unfinished} of {counts.shape[0]} responses are not fitted after {max_iter} "
                f"iterations of solver={solver!r}: increase max_iter or tol, or use "
                "solver='auto'.",
                ConvergenceWarning,
            )
    return coefficients if several else coefficients[0]


def _responses(y: Any) -> tuple[CountMatrix, bool]:
    """Return responses as counts with a row for each, and whether `y` has an axis for them."""
    labelled = hasattr(y, "iloc")
    y = y if sp.issparse(y) or labelled else np.asarray(y)
    if y.ndim not in (1, 2):
        raise ValueError(f"y has {y.ndim} axes; it needs one, or two for several responses.")
    # so that messages name y, and not the rows of counts that are made of it
    if not sp.issparse(y):
        non_negative(np.asarray(y), "y", (None,) * y.ndim)
    elif y.nnz:
        non_negative(y.tocoo().data, "data of sparse y", (None,))
    several = y.ndim == 2
    if labelled and not several:  # a Series
        y = y.to_frame()
    rows = y.T if y.ndim == 2 else y.reshape((1, -1))
    return as_counts(rows, integer="allow"), several


def _check_explained(counts: CountMatrix, A: Array) -> None:
    """Refuse counts of samples whose row of A is all zero."""
    lost = np.flatnonzero(~A.any(axis=1) & (counts.column_totals > 0))
    if lost.size:
        raise ValueError(
            f"Row {lost[0]} of A is all zero, but y is not: its mean would be 0 for all "
            f"coefficients. Leave out such samples ({lost.size} in all)."
        )


def _fitted(
    counts: CountMatrix, A: Array, solver: str, max_iter: int, tol: float, n_threads: int
) -> tuple[Array, int]:
    """Return the coefficients of every row, and the number of rows that are not fitted."""
    rows_pass = projection(
        counts, A, n_steps=max_iter, tol=tol, n_threads=n_threads, how=_UPDATES.get(solver)
    )
    layout = counts.layout(n_threads)
    executor = LocalExecutor(layout, n_threads)
    for name, array in rows_pass.inputs.items():
        executor.put(name, array)
    ((values, _),) = executor.run(*rows_pass.steps)
    n_rows, K = counts.shape[0], A.shape[1]
    coefficients = from_lanes(executor.get(rows_pass.output), layout.row_order, n_rows, K)
    for function in rows_pass.finish:
        coefficients = function(slice(0, n_rows), coefficients)
    return coefficients, int(values["unfinished"])
