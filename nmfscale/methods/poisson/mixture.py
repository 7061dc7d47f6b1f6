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

from ...counts.argument_types import CountsLike
from ...counts.base import CountMatrix
from ...counts.names import name_array, names_of, of_samples, same_kind, same_topics
from ...counts.short_samples import warn_of_empty_samples
from ...counts.structure import non_negative
from ...engine.threads import resolve_threads
from ...readers.open import as_counts
from ...readers.streams.columns import leave_out
from ...readers.streams.matching import FeatureWording, Missing, check_missing, select_features
from ..conversion import poisson_to_multinomial
from ..factors import MINVAL, Array
from ..projection.transform import design_of, project_rows
from ..rows_pass import LaneBlocks, RowsPass
from ..weights.measured import Measured
from .row_update import RowUpdate
from .steps import UpdateRows

_WORDING = FeatureWording("of frequencies", "that frequencies does not have")


def mixture_proportions(
    X: CountsLike, frequencies: ArrayLike, start: ArrayLike | None = None, *,
    n_iter: int | None = None, missing: Missing | None = None, n_threads: int | None = None,
) -> Array:  # fmt: skip
    r"""Mixture proportions of each sample by maximum likelihood, with fixed frequencies.

    The counts of a sample are a multinomial draw with probabilities
    :math:`\pi_j = \sum_k b_k f_{jk}`. An EM step (Appendix A.3.4 of [1]_, equations 31 and 32) is
    :math:`b_k \leftarrow \sum_j x_j p_{jk} / t` with :math:`p_{jk} = b_k f_{jk} / \pi_j` and the
    total t.

    Parameters
    ----------
    X : counts of shape (n_samples, n_features)
        Array, sparse matrix, AnnData, DataFrame, path or Counts. Entries that were not measured
        (``counts.measured``) are left out.
    frequencies : array-like of shape (n_features, n_components)
        Feature frequencies of each component, such as ``components_.T`` of a
        :class:`nmfscale.TopicModel`. Columns are divided by their sums. The rows of a DataFrame and
        the features of `X` are matched by name if both have names.
    start : array-like of shape (n_samples, n_components), default=None
        Proportions to start from; None means equal ones. Zeros are raised to 1e-10 counts.
    n_iter : int, default=None
        Number of EM steps. None continues with Newton steps to the maximum, as
        :meth:`nmfscale.TopicModel.transform` does.
    missing : {"error", "restrict", "zero"}, default=None
        How to treat features of `frequencies` that `X` lacks, as in
        :meth:`nmfscale.TopicModel.transform` for features of the fit: proportions are always shares
        of the counts that all features of `frequencies` would have. None means "zero" if `X` holds
        words, and "error" otherwise.
    n_threads : int, default=None
        Threads, as in :class:`nmfscale.PoissonNMF`.

    Returns
    -------
    ndarray of shape (n_samples, n_components), float64
        Proportions; rows sum to one. A sample without counts has equal proportions, or those of
        `start`.

    Raises
    ------
    ValueError
        If shapes do not fit, a number is negative or not finite, a component or the start of a
        sample is all zero, or `X` lacks features and `missing` does not say how to treat them.

    Warns
    -----
    UserWarning
        If there are counts of features whose frequencies are all zero: no proportions explain them,
        and they are left out; if `X` lacks features, or has others, which are left out; if samples
        have no other counts.

    See Also
    --------
    TopicModel.transform : The same with the topics of a fit, also for files and on a cluster.
    poisson_to_multinomial, multinomial_to_poisson : The reparameterisation of Appendix A.3.5.
        With the totals as sizes, the proportions give the loadings of a regression with factors F:
        ``multinomial_to_poisson(proportions, frequencies, totals, F.sum(axis=0))[0]``.

    References
    ----------
    .. [1] Carbonetto, P., Sarkar, A., Wang, Z. and Stephens, M. (2021). Non-negative matrix
       factorization algorithms greatly improve topic model fits. arXiv:2105.13440.

    Examples
    --------
    >>> from nmfscale.likelihood import mixture_proportions
    >>> frequencies = [[0.5, 0.0], [0.5, 0.2], [0.0, 0.8]]
    >>> mixture_proportions([[5, 5, 0], [5, 7, 8]], frequencies).round(4) + 0
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    if n_iter is not None:
        check_scalar(n_iter, "n_iter", Integral, min_val=1)
    check_missing(missing)
    counts, F, there = _matched(as_counts(X, integer="allow"), frequencies, missing)
    start = same_topics(frequencies, of_samples(start, counts, "start"))
    sums, shape = F.sum(axis=0), (counts.shape[0], F.shape[1])
    if not sums.all():
        raise ValueError(
            f"frequencies: component {int(sums.argmin())} has none above zero; leave it out."
        )
    whole = F / sums
    F = whole[there]
    counts = leave_out(counts, ~F.any(axis=1), "whose frequencies are all zero")
    warn_of_empty_samples(counts, "proportions")
    start = np.ones(shape) if start is None else non_negative(start, "start", shape)
    of_rows = start.sum(axis=1, dtype=np.float64)
    if not of_rows.all():
        raise ValueError(f"start[{int(of_rows.argmin())}] is all zero; it has no proportions.")
    L = start * (counts.row_totals / of_rows)[:, None]
    n_threads = resolve_threads(n_threads, counts.nnz * F.shape[1])
    measured = Measured.of(counts)
    if n_iter is None:
        L = project_rows(counts, F, L=L, n_threads=n_threads, measured=measured)
    else:
        if measured is not None:
            raise ValueError(
                f"X has {measured.n_missing:,} entries that were not measured, and n_iter={n_iter} "
                "EM steps would take them as 0: set n_iter=None, which leaves them out."
            )
        L = _em_steps(counts, F, L, n_iter, n_threads)
    return poisson_to_multinomial(L, whole).proportions


def _matched(
    counts: CountMatrix, frequencies: Any, missing: str | None
) -> tuple[CountMatrix, Array, Any]:
    """Return counts and frequencies of all features (m, K), in one order, and which counts have.

    The last is an index of rows of the frequencies.
    """
    names, of_rows = counts.feature_names, None
    if names is not None and hasattr(frequencies, "iloc"):
        of_rows = names_of(frequencies)
    size = counts.shape[1] if of_rows is None else None
    F = non_negative(frequencies, "frequencies", (size, None)).astype(np.float64)
    if names is None or of_rows is None:
        return counts, F, slice(None)
    names, of_rows = same_kind(name_array(names), of_rows)
    if names.tolist() == of_rows.tolist():
        return counts, F, slice(None)
    if missing is None:
        missing = "zero" if counts.of_text else "error"
    counts, there = select_features(counts, names, of_rows, _WORDING, missing)
    return counts, F, slice(None) if there is None else there


def _em_steps(counts: CountMatrix, F: Array, L: Array, n_steps: int, n_threads: int) -> Array:
    """Return loadings (n, K) after a number of EM steps from L, with F (m, K) fixed."""
    layout, K = counts.layout(n_threads), F.shape[1]
    design, total = design_of(F, layout.column_order, np.float64)
    absent = ~F.any(axis=0)  # components that explain none of these features
    total[:K][absent] = 1
    start = LaneBlocks(layout, L, design.shape[1], np.float64, least=MINVAL)
    update = UpdateRows(design, total, K, RowUpdate(em_steps=n_steps))
    L = RowsPass(counts, (update,), "next", K, {"L": start}, n_threads=n_threads).gather()
    L[:, absent] = 0
    return L
