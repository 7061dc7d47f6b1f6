"""Kernels on the slices of a block. `operands.pyi` defines lane, stride, real and aligned.

Row arrays have one row for each lane, in lane order: (n_lanes, stride) or (n_lanes,), with
``n_lanes = 16 n_slices``. Rows of padding lanes must hold finite numbers; what is written there has
no meaning. No result depends on `n_threads`.

A sum over the nonzeros y_j of a row is a sum over its entries: a count above the maximum of its
type is several entries with one index (see `SlicedCounts`). All sums but that of `gather_dot` are
linear in y_j, so that this makes no difference.
"""

from typing import Any

from numpy.typing import NDArray

from .operands import Extrapolation, RowProblem, SlicedCounts

Array = NDArray[Any]

def update_rows(
    counts: SlicedCounts, problem: RowProblem, start: Array, end: Array | None, *, n_threads: int,
    extrapolation: Extrapolation | Any = None, slices: Array | None = None,
    pseudo: Array | None = None, rate: Array | None = None, curvature: Array | None = None,
    curvature_mode: Any = ..., loglik_start: Array | None = None, kkt_start: Array | None = None,
    loglik_end: Array | None = None, kkt_end: Array | None = None, theta: Array | None = None,
    log_end: Array | None = None, prior_end: Array | None = None, squares: Array | None = None,
    scale: Array | None = None,
) -> None:  # fmt: skip
    """Update every row while the held factor stays fixed.

    FACTOR: `em_steps` EM steps, then `newton_steps` second-order steps. DIRICHLET and GAMMA:
    mean-field steps. COLLAPSED: up to `inner_steps` passes that replace expected counts of topics.
    SQUARES: `em_steps` multiplicative steps, then coordinate descent on the quadratic
    ``b'Gb / 2 + total . b - b'num``, num = sum_j y_j a_j, if `newton_steps` is not 0.

    Below, mu_j = a_j . b is the mean of count y_j of a row b, and
    ``g_k = total_k + rate_k - sum_j y_j a_jk / mu_j - pseudo_k / max(b_k, floor)`` the gradient.
    1e-30 is added to every mu_j, so that the results stay finite.

    Parameters
    ----------
    counts : SlicedCounts
        The counts of the rows.
    problem : RowProblem
        The held factor and the options of the update.
    start : real array of shape (n_lanes, stride), aligned
        The rows before the update. With DIRICHLET and GAMMA: shapes of the posteriors.
    end : real array of shape (n_lanes, stride), aligned, or None
        Output: the updated rows; may be the memory of `start`. With None and no `extrapolation`,
        only reports are written.
    n_threads : int
        Number of threads.
    extrapolation : Extrapolation, optional
        Extrapolates the updated rows into its own output. `end` must be None, and `slices` None.
    slices : int64 array, optional
        The slices to update, by default all. Nothing is written for rows of other slices.
    pseudo, rate : real arrays of shape (n_lanes, stride), aligned, optional
        Gamma prior of the rows: pseudo-counts (shape - 1) and rates. FACTOR needs both or neither.
        With GAMMA, `rate` is added to the rates `total`, and `pseudo` is refused. With SQUARES they
        are added to numerators and denominators of multiplicative steps. DIRICHLET has neither.
    curvature : uint16 array of shape (n, K (K + 1) / 2, 16), optional
        Stored curvature of the first n slices; slices beyond n compute their curvature anew. Each
        row has its correlations ``H_kl / sqrt(H_kk H_ll)``, k > l, in units of 1 / 65535, then the
        square roots of the diagonal of H as bfloat16. FACTOR only.
    curvature_mode : int, optional
        FRESH (default), STORE, REUSE or RESCALE. Leave it at FRESH with a `correlation`.
    loglik_start : float64 array of shape (n_lanes,), optional
        Output: ``sum_j y_j log mu_j`` at `start`, over the nonzeros of each row. This is the
        Poisson log-likelihood without ``sum_j mu_j`` over all columns (which is total . b) and
        without ``sum_j log y_j!``. The first step computes it: it is 0 if a slice takes no step.
        With DIRICHLET and GAMMA, mu_j = a_j . theta in the first pass. With COLLAPSED, mu_j is the
        sum of the terms of gamma in the first pass: see collapsed.h. With SQUARES: ``2 (b'num -
        total . b) - b'Gb`` before and (`loglik_end`) after coordinate descent.
    kkt_start : float64 array of shape (n_lanes,), optional
        Output: ``max_k |b_k g_k|`` at `start`, over coordinates that `moves` does not hold; the KKT
        residual of the row. Not written if a slice takes no step. FACTOR only.
    loglik_end, kkt_end : float64 arrays of shape (n_lanes,), optional
        Output: the same at the end, at the price of one more pass over the counts. With DIRICHLET
        and GAMMA, `loglik_end` belongs to the row's last pass, without a further one.
    theta : real array of shape (n_lanes, stride), aligned, optional
        Output: exp(E log h) in the row's last pass. DIRICHLET and GAMMA only.
    log_end : real array of shape (n_lanes, stride), aligned, optional
        Output: E log h under the updated posteriors. DIRICHLET and GAMMA only.
    prior_end : float64 array of shape (n_lanes,), optional
        Output: ``sum_k log Gamma(gamma_k) + (alpha_k - gamma_k) log theta_k``. With `loglik_end`
        it is the row's share of the evidence lower bound, without terms that depend on alpha,
        sum gamma and rates only. DIRICHLET and GAMMA only.
    squares : real array of shape (n_lanes, stride), aligned, optional
        Output: ``sum_j y_j gamma_jk ** 2`` of the last pass. COLLAPSED only.
    scale : float64 array of shape (n_lanes,), optional
        Factors of the counts of each row in coordinate descent. SQUARES only.

    Raises
    ------
    ValueError
        If a shape, dtype or alignment is wrong, or an array does not belong to the kind of step.
    """

def descend(
    counts: SlicedCounts, problem: RowProblem, start: Array, end: Array, *, n_threads: int,
    pseudo: Array | None = None, rate: Array | None = None, kkt_start: Array | None = None,
    loglik_end: Array | None = None,
) -> None:  # fmt: skip
    """Update every row by `em_steps` EM steps, then `newton_steps` sweeps of coordinate descent.

    The sweeps are those of CCD and SCD, or of scalar Newton if `guarded`. Arguments are as in
    `update_rows`, with a `problem` of step FACTOR. `kkt_start` is written only if `em_steps` is at
    least 1.
    """

def descend_jointly(
    counts: SlicedCounts, problem: RowProblem, start: Array, end: Array, *, n_threads: int,
    rate: Array | None = None, up: Array | None = None, down: Array | None = None,
    quadratic: Array | None = None,
) -> None:  # fmt: skip
    """Update rows that explain both counts and labels, by `newton_steps` coordinate sweeps.

    The loss of a row is that of its counts (FACTOR: Poisson divergence; SQUARES: least squares,
    plus ``total . b``), plus ``rate . b``, plus that of its labels: over the rows B_c of
    `problem`'s `labels`, with mu_c = B_c . b, ``down_c mu_c^2 / 2 - up_c mu_c`` if
    `label_squares`, otherwise ``down_c mu_c - up_c log mu_c``.

    Parameters
    ----------
    counts, problem, start, end, n_threads
        As in `update_rows`.
    rate : real array of shape (n_lanes, stride), aligned, optional
        Linear term of each row.
    up, down : real arrays of shape (n_slices, n_labels, 16), aligned
        Coefficients of the labels' loss; needed if there are `labels`.
    quadratic : real array of shape (n_slices, K (K + 1) / 2, 16), aligned, optional
        Packed matrix of each row in place of `gram`. SQUARES only.
    """

def solve_rows(
    counts: SlicedCounts, problem: RowProblem, start: Array, end: Array, *, n_threads: int,
    slices: Array | None = None, pseudo: Array | None = None, rate: Array | None = None,
) -> None:  # fmt: skip
    """Solve every row to its optimum, by Newton steps on its active set of components.

    Arguments are as in `update_rows`, with a `problem` of step FACTOR. Rows without counts and
    `pseudo` become 0. Coordinates may end at exactly 0: `floor` is not used.
    """

def sums(
    counts: SlicedCounts, problem: RowProblem, start: Array | None, out: Array, *, wanted: int,
    first: int, last: int, n_threads: int, loglik: Array | None = None,
) -> None:  # fmt: skip
    """Add the statistics of the rows of slices first:last, which `step` needs, to `out`.

    Parameters
    ----------
    counts, problem, start, n_threads
        As in `update_rows`; `start` may be None with SQUARES.
    out : float64 array of shape (last - first, n, 16), n at least ``statistics_size(K, wanted)``
        Input and output: sums of each slice, to which the statistics are added. Sums of several
        blocks accumulate here.
    wanted : int
        SUM_GRADIENT, SUM_FULL or SUM_DIAGONAL.
    first, last : int
        The slices first:last.
    loglik : float64 array of shape (n_lanes,), optional
        Output: ``sum_j y_j log mu_j`` of each row of these slices, not added to earlier values. Not
        with SUM_DIAGONAL.
    """

def step(
    problem: RowProblem, sums: Array, start: Array, end: Array | None, *, wanted: int, first: int,
    n_threads: int, extrapolation: Extrapolation | None = None, pseudo: Array | None = None,
    rate: Array | None = None, curvature: Array | None = None, curvature_mode: Any = ...,
    kkt_start: Array | None = None, scale: Array | None = None, loglik_start: Array | None = None,
    loglik_end: Array | None = None,
) -> None:  # fmt: skip
    """Take one step on slices first:first + len(sums), from statistics summed over all blocks.

    SUM_GRADIENT takes an EM step, or with curvature mode RESCALE a second-order step; SUM_FULL and
    SUM_DIAGONAL take a second-order step. SUM_DIAGONAL needs stored curvature or a `correlation`.
    SQUARES takes the steps of `update_rows` from SUM_GRADIENT.

    Parameters
    ----------
    problem, start, end, n_threads, extrapolation, pseudo, rate, curvature, curvature_mode
        As in `update_rows`, for all slices. SUM_FULL stores the curvature, if `curvature` is given.
    sums : float64 array of shape (n, n_statistics, 16)
        Statistics of n slices, as `sums` adds them up.
    wanted : int
        The statistics in `sums`.
    first : int
        The first of the n slices.
    kkt_start : float64 array of shape (n_lanes,), optional
        Output: ``max_k |b_k g_k|`` at `start`, for the rows of these slices.
    scale, loglik_start, loglik_end
        As in `update_rows`. SQUARES only.
    """

def extrapolate(
    problem: RowProblem, now: Array, extrapolation: Extrapolation, *, n_threads: int
) -> None:
    """Extrapolate rows `now` (n_lanes, stride) that were updated before the momentum was known."""

def sum_slices(values: Array, out: Array) -> None:
    """Add float64 `values` (n_slices, width) to `out` (width,), in the order of the slices."""

def correlations(
    counts: SlicedCounts, problem: RowProblem, start: Array, out: Array, *, first: int, every: int,
    n_threads: int,
) -> None:  # fmt: skip
    """Sum the correlations of the rows' curvature, ``H_kl / sqrt(H_kk H_ll)``, by slices.

    Row i of `out`, float64 of shape (n, K (K + 1) / 2 + 1), receives the sums over the rows of
    slice first + i every: the packed correlations weighted by the rows' total counts, then the sum
    of these weights.
    """

def contrasts(
    counts: SlicedCounts, problem: RowProblem, totals: Array, mean: Array, out: Array, *,
    pseudo: float, pseudo_of_tests: float, bounds: bool, n_threads: int,
    weights: Array | None = None,
) -> None:  # fmt: skip
    """Fit every row with the held factor as design, and test equality of its coefficients.

    The coefficients b minimise ``sum_k (total_k + pseudo / mean) b_k - sum_j y_j log(a_j . b) -
    pseudo sum_k log b_k``, the loss h. See contrasts.h.

    Parameters
    ----------
    counts, problem
        As in `update_rows`; the factor is float64, with at least two components, and the problem
        needs no totals.
    totals : float64 array of shape (n_slices, K, 16)
        The linear term of each coefficient of each row.
    mean : float64 array of shape (n_lanes,)
        Positive coefficients at which the prior of a row has its mode, and from which it starts.
    out : float64 array of shape (n_slices, 5 K + 2, 16)
        Output, for each row: K coefficients; the coefficient that each is compared with, -1 if
        there are weights; the standard error of the log of their ratio; the likelihood ratio
        ``2 (min h under equality - min h)``; the least such ratio with any other coefficient, or
        again the ratio if there are weights; the sum of y_j mu_j; the largest squared Newton
        decrement at which a minimum ended.
    pseudo : float
        Pseudo-counts of each coefficient, positive.
    pseudo_of_tests : float
        Pseudo-counts in place of `pseudo` for the likelihood ratios, positive and at most 1.
    bounds : bool
        Whether all counts are at least 1. Pairs of coefficients are then left out as
        soon as their ratio is certainly not the least.
    n_threads : int
        Number of threads.
    weights : float64 array of shape (K, K), optional
        Row k holds the weights of the mean that coefficient k is compared with; they sum to one,
        and that of k is 0. By default, each is compared with the one nearest to it in the log.
    """

def gather_dot(
    counts: SlicedCounts, problem: RowProblem, start: Array, out: Array, *, n_threads: int
) -> None:
    """Write the sum of mu_j over the entries of each row to `out` (n_lanes,), float64.

    No kernel that reads counts and factor can be faster: benchmarks compare with it.
    """

def digamma(x: Array, out: Array, *, n_threads: int) -> None:
    """Write the digamma function of every entry of `x` to `out`, of equal shape and dtype.

    `x` is a positive float32 or float64 array.
    """

def exp_digamma(x: Array, out: Array, *, n_threads: int) -> None:
    """Write exp(digamma) of every entry of `x` to `out`; arrays are as in `digamma`."""

def log_gamma(x: Array, out: Array, *, n_threads: int) -> None:
    """Write log Gamma of every entry of `x` to `out`; arrays are as in `digamma`."""

def trigamma(x: Array, out: Array, *, n_threads: int) -> None:
    """Write the derivative of digamma to `out`; arrays are as in `digamma`."""

def log(x: Array, out: Array, *, n_threads: int) -> None:
    """Write the natural logarithm to `out`: -inf of 0, NaN of negative numbers."""

def exp(x: Array, out: Array, *, n_threads: int) -> None:
    """Write the exponential to `out`: 0 or inf where it is out of range."""

def extrapolate_log(
    now: Array, before: Array, out: Array, momentum: float, *, n_threads: int
) -> None:
    """Write ``now (now / before)^momentum`` to `out`, which may be `now` or `before`."""

def nonzero(mean: Array, squares: Array, out: Array, *, n_threads: int) -> None:
    """Write P(N > 0) of binomial numbers N to `out`, given `mean`, n p, and `squares`, n p^2."""
