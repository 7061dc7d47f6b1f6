"""Multinomial mixtures: proportions of each sample, with fixed frequencies.

A mixture is a reparametrised additive Poisson regression (Carbonetto et al., Appendix A.3.5), in
the same way as the topic model is a Poisson NMF. EM steps of one are EM steps of the other, so the
row kernels are used.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_scalar

from ...counts.base import CountMatrix
from ...counts.names import of_features, of_samples, same_topics
from ...counts.structure import non_negative
from ...engine.threads import resolve_threads
from ...readers.columns import leave_out
from ...readers.open import as_counts
from ..conversion import poisson_to_multinomial
from ..factors import MINVAL, Array
from ..rows_pass import LaneBlocks, RowsPass
from ..transform import design_of, project_rows
from .row_update import RowUpdate
from .steps import UpdateRows


def mixture_proportions(
    X: Any, frequencies: ArrayLike, start: ArrayLike | None = None, *, n_iter: int | None = None,
    n_threads: int | None = None,
) -> Array:  # fmt: skip
    r"""Mixture proportions of each sample by maximum likelihood, with fixed frequencies.

    The counts of a sample are a multinomial draw with probabilities
    :math:`\pi_j = \sum_k b_k f_{jk}`. An EM step (Appendix A.3.4 of [1]_, equations 31 and 32) is
    :math:`b_k \leftarrow \sum_j x_j p_{jk} / t` with :math:`p_{jk} = b_k f_{jk} / \pi_j` and the
    total t.

    Parameters
    ----------
    X : counts of shape (n_samples, n_features)
        Array, sparse matrix, AnnData, DataFrame, path or Counts.
    frequencies : array-like of shape (n_features, n_components)
        Feature frequencies of each component, such as ``components_.T`` of a :class:`TopicModel`.
        Columns are divided by their sums.
    start : array-like of shape (n_samples, n_components), default=None
        Proportions to start from; None means equal ones. Zeros are raised to 1e-10 counts.
    n_iter : int, default=None
        Number of EM steps. None continues with Newton steps to the maximum, as
        :meth:`TopicModel.transform` does.
    n_threads : int, default=None
        Threads, as in :class:`PoissonNMF`.

    Returns
    -------
    ndarray of shape (n_samples, n_components), float64
        Proportions; rows sum to one. An empty sample has equal proportions.

    Raises
    ------
    ValueError
        If shapes do not fit, a number is negative or not finite, or a component or the start of a
        sample is all zero.

    Warns
    -----
    UserWarning
        If there are counts of features whose frequencies are all zero: no proportions explain them,
        and they are left out.

    See Also
    --------
    poisson_to_multinomial, multinomial_to_poisson : The reparameterisation of Appendix A.3.5.
        With the totals as sizes, the proportions give the loadings of a regression with factors F:
        ``multinomial_to_poisson(proportions, frequencies, totals, F.sum(axis=0))[0]``.

    References
    ----------
    .. [1] Carbonetto, P., Sarkar, A., Wang, Z. and Stephens, M. (2021). Non-negative matrix
       factorization algorithms greatly improve topic model fits. arXiv:2105.13440.

    Examples
    --------
    >>> from nmfscale import mixture_proportions
    >>> frequencies = [[0.5, 0.0], [0.5, 0.2], [0.0, 0.8]]
    >>> mixture_proportions([[5, 5, 0], [5, 7, 8]], frequencies).round(4) + 0
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    if n_iter is not None:
        check_scalar(n_iter, "n_iter", Integral, min_val=1)
    counts = as_counts(X, integer="allow")
    frequencies = of_features(frequencies, counts, "frequencies")
    start = same_topics(frequencies, of_samples(start, counts, "start"))
    F = non_negative(frequencies, "frequencies", (counts.shape[1], None)).astype(np.float64)
    sums, shape = F.sum(axis=0), (counts.shape[0], F.shape[1])
    if not sums.all():
        raise ValueError(
            f"frequencies: component {int(sums.argmin())} has none above zero; leave it out."
        )
    F /= sums
    counts = leave_out(counts, ~F.any(axis=1), "whose frequencies are all zero")
    start = np.ones(shape) if start is None else non_negative(start, "start", shape)
    whole = start.sum(axis=1, dtype=np.float64)
    if not whole.all():
        raise ValueError(f"start[{int(whole.argmin())}] is all zero; it has no proportions.")
    L = start * (counts.row_totals / whole)[:, None]
    n_threads = resolve_threads(n_threads, counts.nnz * F.shape[1])
    if n_iter is None:
        L = project_rows(counts, F, L=L, n_threads=n_threads)
    else:
        L = _em_steps(counts, F, L, n_iter, n_threads)
    return poisson_to_multinomial(L, F).proportions


def _em_steps(counts: CountMatrix, F: Array, L: Array, n_steps: int, n_threads: int) -> Array:
    """Return loadings (n, K) after a number of EM steps from L, with F (m, K) fixed."""
    layout, K = counts.layout(n_threads), F.shape[1]
    design, total = design_of(F, layout.column_order, np.float64)
    start = LaneBlocks(layout, L, design.shape[1], np.float64, least=MINVAL)
    update = UpdateRows(design, total, K, RowUpdate(em_steps=n_steps))
    return RowsPass(counts, (update,), "next", K, {"L": start}, n_threads=n_threads).gather()
