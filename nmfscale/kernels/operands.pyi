"""Arguments of the kernels: counts in SELL-16, a row problem, an extrapolation.

Terms used below:

lane
    Position of a row in lane order: the order of the rows of a block by falling number of nonzeros
    (`nmfscale.counts.blocks`). 16 neighbouring lanes form a slice. The last slice is padded with
    lanes without a row, whose counts are 0. ``n_lanes = 16 n_slices``.
held factor, `design`
    The factor that an update does not change. Its rows are indexed by the counts: they are the
    columns of the block in lane order, if rows are updated.
K, stride
    The number of components, and K rounded up to a multiple of 4: the length of a factor's rows in
    memory. Entries beyond K are padding, and 0 in the held factor.
real
    The dtype of the held factor, float32 or float64. Rows, totals and priors have the same.

All arrays are C-contiguous. Arrays described as aligned start at a multiple of 64 bytes (see
`nmfscale.counts.aligned`). A wrong shape, dtype or alignment raises a ValueError.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FRESH: int
"""Curvature mode: compute the curvature of every row anew."""
STORE: int
"""Curvature mode: compute it anew, and store its correlations and diagonal in `curvature`."""
REUSE: int
"""Curvature mode: combine stored correlations with the current diagonal, times `margin`."""
RESCALE: int
"""Curvature mode: rescale stored curvature so that H b equals the current numerators."""

SUM_GRADIENT: int
"""Statistics of `sums`: num = sum y a / mu, K numbers a row; with SQUARES num = sum y a."""
SUM_FULL: int
"""Statistics of `sums`: H = sum y a a' / mu^2, the lower triangle, K (K + 1) / 2 numbers a row."""
SUM_DIAGONAL: int
"""Statistics of `sums`: num, then the diagonal of H, 2 K numbers a row; with COLLAPSED sum y gamma,
then sum y gamma^2."""

FACTOR: int
"""Kind of step: EM and second-order steps of Poisson NMF."""
DIRICHLET: int
"""Kind of step: mean-field steps of Dirichlet posteriors."""
GAMMA: int
"""Kind of step: mean-field steps of Gamma posteriors."""
SQUARES: int
"""Kind of step: least squares."""
COLLAPSED: int
"""Kind of step: collapsed variational Bayes of LDA."""

def row_stride(n_components: int) -> int:
    """Return the stride: `n_components` rounded up to a multiple of 4."""

def packed_size(n_components: int) -> int:
    """Return the size of the packed lower triangle of a row's curvature, K (K + 1) / 2."""

def statistics_size(n_components: int, wanted: int) -> int:
    """Return the number of statistics of one row for `wanted`: SUM_GRADIENT, _FULL or _DIAGONAL."""

class SlicedCounts:
    """Counts of a block in SELL-16, as `nmfscale.counts.sell.SellBlock` holds them.

    Parameters
    ----------
    index : uint16 or int32 array of shape (16 * n_entries,)
        Entry q of lane r of the block is ``index[16 q + r]``: a row of the held factor.
    count : uint8, uint16, float32 or float64 array of shape (16 * n_entries,)
        The counts, in the same order; 0 in the padding. They include the weights of the held
        factor's rows, if there are any. A count above the maximum of the type is several entries
        with one index, which add up to it: the kernels use only sums that are linear in the count,
        and the number of entries above 0 is not the number of nonzeros.
    offset : int64 array of shape (n_slices + 1,)
        First entry of every slice, and the end.
    n_design : int
        Number of rows of the held factor: all indices are below.
    dense : uint8 array of shape (n_slices,), optional
        Whether entry q of a slice has index q in all lanes that have a count there. Such slices are
        processed faster, with the same bits.
    """

    n_slices: int
    n_design: int
    def __init__(
        self,
        index: Array,
        count: Array,
        offset: Array,
        n_design: int,
        *,
        dense: Array | None = None,
    ) -> None: ...

class RowProblem:
    """The held factor and the options of an update.

    The problem of row i with counts y_j is to minimise, over b >= 0,
    ``sum_k (total_k + rate_ik) b_k - sum_j y_j log(a_j . b) - sum_k pseudo_ik log b_k``, where a_j
    are rows of `design`. The row arrays `pseudo` and `rate` are arguments of the kernels.

    Parameters
    ----------
    design : real array of shape (n_cols, stride), aligned
        The held factor.
    total : real array of shape (stride,), or None
        Column sums of `design`. With GAMMA: rates of the posteriors. With COLLAPSED:
        1 / (N_k + sum of the prior) of each topic. With SQUARES: linear terms of coordinate
        descent, such as an l1 penalty. DIRICHLET does not use it.
    n_components : int
        K.
    moves : real array of shape (stride,), or None
        1 for coordinates that are updated, 0 for those that are held in every row; None updates
        all. EM steps leave a held coordinate unchanged, second-order steps and `descend` raise it
        to `floor` at least, and `solve_rows` sets it to 0. Mean-field steps, multiplicative steps
        of least squares and `descend_jointly` ignore `moves`.
    floor : float
        Smallest value of a coordinate after a step.
    em_steps : int
        Number of EM steps, or of multiplicative steps with SQUARES.
    newton_steps : int
        Number of second-order steps after them; of sweeps in `descend` and `descend_jointly`; the
        largest number of Newton steps in `solve_rows`.
    em_longest : int
        Slices with more entries take no EM steps.
    qp_sweeps : int
        Largest number of coordinate sweeps over the K x K quadratic of a second-order step.
    qp_tolerance : float
        A row's sweeps end when no coordinate lowers the quadratic by half of this; in units of the
        log-likelihood, or with SQUARES of squared counts.
    margin : float
        Factor on the diagonal of the curvature with REUSE and RESCALE.
    correlation : real array of shape (K, K), or None
        Correlation of curvature shared by all rows, whose diagonal includes a margin. With None,
        each row has its own curvature.
    guarded : bool
        Whether `descend` uses the step size of scalar Newton, which never raises the loss.
    step : int
        Kind of step: FACTOR, DIRICHLET, GAMMA, SQUARES or COLLAPSED.
    alpha : real array of shape (stride,)
        Prior shapes, for DIRICHLET and GAMMA; with COLLAPSED the prior of the rows.
    inner_steps : int
        Largest number of mean-field or collapsed steps of an update.
    tolerance : float
        Mean-field steps of a row end when its shapes change by less than this on average.
        `solve_rows` ends when max |b g| is at most this times the row's counts and pseudo-counts.
    gram : real array of shape (K, K)
        D'D of the design D, for SQUARES.
    labels : real array of shape (n_labels, stride), or None
        Held factor of the labels in `descend_jointly`.
    label_squares : bool
        Whether the labels' loss is least squares; otherwise it is a divergence.
    held_prior : real array of shape (stride,), or None
        Prior of the held factor, for COLLAPSED. With None, the held factor has probabilities, from
        which no count is removed.
    """

    dtype: np.dtype[Any]
    keep: tuple[Array | None, ...]
    def __init__(
        self, design: Array, total: Array | None, n_components: int, /, *,
        moves: Array | None = None, floor: float = 1e-10, em_steps: int = 0, newton_steps: int = 0,
        em_longest: int = 1 << 62, qp_sweeps: int = 10, qp_tolerance: float = 1e-4,
        margin: float = 1.0, correlation: Array | None = None, guarded: bool = False,
        step: int = ..., alpha: Array | None = None, inner_steps: int = 1,
        tolerance: float = 0.0, gram: Array | None = None, labels: Array | None = None,
        label_squares: bool = False, held_prior: Array | None = None,
    ) -> None: ...  # fmt: skip

class Extrapolation:
    """Extrapolation: ``ahead = max(now + momentum (now - scale before), leaves now, floor)``.

    `now` is the result of the update and `before` that of the previous one. Give `before`, or
    `start` and `lag`.

    Parameters
    ----------
    n_rows : int
        The first `n_rows` lanes hold rows; other lanes of the output are not written.
    ahead : real array of shape (n_lanes, stride)
        Output: the extrapolated rows. May be the memory of `before` or of `start`.
    momentum : float
        Factor on the last change.
    scale : real array of shape (stride,)
        Brings the columns of `before` to the scale of `now`.
    column_sums : float64 array of shape (n_slices, 2, stride)
        Output: column sums of each slice's rows, of `ahead`, then of `now`; added in row order.
    change : float64 array of shape (n_slices,)
        Output: the largest ``|now - scale before|`` of each slice.
    zeros : int64 array of shape (n_slices,)
        Output: the number of entries of `now` in each slice that are at the floor.
    before : real array of shape (n_lanes, stride), or None
        Result of the previous update.
    start : real array of shape (n_lanes, stride), or None
        Rows before the update; needed with `lag` and with `best`.
    lag : uint16 array of shape (n_lanes, stride), or None
        bfloat16 numbers: ``start - before`` on input, ``ahead - now`` on output.
    best : float32 or real array of shape (n_lanes, stride), or None
        Output: a copy of `start`.
    leaves : float
        Least share of `now` that remains in `ahead`.
    weight : float64 array of shape (n_lanes,), or None
        Weights of the rows in `column_sums`.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    def __init__(
        self, n_rows: int, ahead: Array, momentum: float, scale: Array, column_sums: Array,
        change: Array, zeros: Array, *, before: Array | None = None, start: Array | None = None,
        lag: Array | None = None, best: Array | None = None, leaves: float = 0,
        weight: Array | None = None,
    ) -> None: ...  # fmt: skip
