"""The methods of fitting a Poisson NMF: by solver name, their start, their memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from ... import kernels
from ...counts.base import CountMatrix
from ...counts.blocks import cut_blocks
from ...counts.sell import LANES
from ...engine import progress
from ...engine.loop import begin, fit
from ...engine.monitor import Monitor
from ...engine.protocol import Executor, Needs
from ..factors import MINVAL, Array, Constraints
from ..projection.penalty import Penalty
from ..projection.transform import fit_rows
from ..starts.initialize import initialize
from ..starts.seeded import in_places_of_seeds, seeded_factors
from ..weights.measured import Measured
from ..weights.poisson_weights import PoissonWeights
from .alternating import UPDATES, Alternating
from .efficiencies import FIRST_SHAPE
from .joint_em import JointEM
from .newton import Newton, shares_correlations
from .penalised_em import SparseComponents, SparseLoadings
from .row_update import SAMPLED_TOGETHER

Solver: TypeAlias = Literal["auto", "em", "joint-em", "ccd", "scd", "sn", "newton"]
SOLVERS = get_args(Solver)
# Iterations before the shape of the prior of efficiencies is estimated, unless a start is given.
HELD = 20
# Maximum number of copies of each factor in lane order, and of 8-byte numbers for every row.
_COPIES_L, _COPIES_F, _PER_ROW = 5, 4, 14
# Row arrays in a task: two points, the next, the previous; arrays of priors. And copies of F.
_COPIES_TASK, _COPIES_TASK_F = 8, 3
# In a worker that has all of L: as it was read or sent, and for the kernels.
_COPIES_WHOLE = 2
# Arrays of shared correlations: of both factors, and for their computation.
_COPIES_SHARED = 6
# Bytes of the rows that a start by singular vectors draws: sparse, a copy, and the source of the
# copy.
_START_BYTES = 4_000_000 * 8 * 3


def method_of(
    solver: str, *, max_iter: int, inner_iter: int | None = None, extrapolate: bool = True,
    penalty: Penalty | None = None,
) -> Any:  # fmt: skip
    """Return a function with the arguments of `FactorModel` that returns the method.

    "joint-em" has a `penalty`, unless that only rescales its result.
    """
    if solver == "auto":
        return partial(Newton, max_iter=max_iter, momentum=extrapolate)
    if solver == "joint-em":
        if penalty is None or penalty.only_rescales:
            return JointEM
        of = SparseLoadings if penalty.on == "loadings" else SparseComponents
        return partial(of, penalty=penalty)
    return partial(Alternating, solver=solver, inner_iter=inner_iter, extrapolate=extrapolate)


def start_of(
    counts: CountMatrix, executor: Executor, n_components: int, init: Any, *, rng: Any, dtype: Any,
    number: int = 0, L: Array | None = None, F: Array | None = None,
    measured: Measured | PoissonWeights | None = None, seeds: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return factors L (n, K) and F (m, K) of start `number`, which may be given.

    `seeds` (m, K) are pseudo-counts of features that topics start with, unless F is given. If not
    everything was measured, which most starts cannot handle, a random start is used.
    """
    if L is not None and F is not None:
        return L, F

    def few_steps(factors: Array, loadings: Array) -> Array:
        return fit_rows(
            counts, executor, factors, loadings, n_steps=4, dtype=dtype, measured=measured
        )

    if F is None:
        if measured is not None and isinstance(init, str):
            init = "random"
        initial, F = initialize(
            counts, n_components, init, number=number, random_state=rng, dtype=dtype,
            fit_rows=few_steps, n_threads=executor.n_threads,
        )  # fmt: skip
        if seeds is None or L is not None:
            return initial if L is None else L, F
        F = seeded_factors(counts, F, seeds, rng, executor.n_threads).astype(dtype)
    F = np.maximum(F, MINVAL)  # a component of zeros could not be lifted by EM
    equal = counts.row_totals[:, None] / (n_components * F.sum(axis=0))
    return np.maximum(few_steps(F, equal.astype(dtype)), MINVAL), F


def first_iterations(
    counts: CountMatrix, executor: Executor, start: Any, n_components: int, dtype: Any,
    constraints: Constraints, seeds: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return L (n, K) and F (m, K) after a few iterations with the prior of efficiencies held.

    The topics of most starts are partly batches. If the shape of the prior were estimated at once,
    it could become infinite before efficiencies take their place. Topics with `seeds` (m, K) may
    leave them in these iterations: they change places with those that then have the seeds.
    """
    if constraints.batches is not None and constraints.batch_shape is None:
        constraints = replace(constraints, batch_shape=FIRST_SHAPE)
    L, F = _fitted(counts, executor, start, n_components, dtype, constraints, HELD, 1e-4)
    return (L, F) if seeds is None else in_places_of_seeds(L, F, seeds)


def start_of_fit(
    counts: CountMatrix, executor: Executor, n_components: int, init: Any, constraints: Constraints,
    *, dtype: Any, L: Array | None, F: Array | None, seeds: Array | None, **options: Any,
) -> Any:  # fmt: skip
    """Return a function that returns L and F as `start_of`, after the first iterations if needed.

    That is, if the shape of the prior of efficiencies is estimated, or topics have seeds.
    """
    start = partial(
        start_of, counts, executor, n_components, init, dtype=dtype, L=L, F=F, seeds=seeds,
        **options,
    )  # fmt: skip
    estimated = constraints.batches is not None and constraints.batch_shape is None
    moved = seeds if L is None and F is None else None
    if (estimated and (L is None or F is None)) or moved is not None:
        return partial(
            first_iterations, counts, executor, start, n_components, dtype, constraints, moved
        )
    return start


def moved_start(start: Any, seeds: Array) -> tuple[Array, Array]:
    """Return L (n, K) and F (m, K) of a start, with topics in the places of their `seeds`."""
    L, F = start()
    return in_places_of_seeds(L, F, seeds)


def factors_of(
    counts: CountMatrix, executor: Executor, n_components: int, *, max_iter: int, tol: float,
    rng: Any, dtype: Any, constraints: Constraints | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return L (n, K) and F (m, K) of a fit by the default method, as a start of other methods.

    A prior of factors in the `constraints` is that of seeds.
    """
    constraints = constraints or Constraints()
    measured, batches = None, constraints.batches
    seeds = None if constraints.prior_factors is None else constraints.prior_factors[0]
    if constraints.measured is not None and constraints.groups is not None:
        measured = Measured(constraints.groups, constraints.measured)
    start = partial(
        start_of, counts, executor, n_components, "auto", rng=rng, dtype=dtype, measured=measured,
        seeds=seeds,
    )  # fmt: skip
    if batches is not None and constraints.batch_shape is None:
        start = partial(first_iterations, counts, executor, start, n_components, dtype, constraints)
    L, F = _fitted(counts, executor, start, n_components, dtype, constraints, max_iter, tol)
    return (L, F) if seeds is None else in_places_of_seeds(L, F, seeds)


def _fitted(
    counts: CountMatrix, executor: Executor, start: Any, n_components: int, dtype: Any,
    constraints: Constraints, max_iter: int, tol: float,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the factors of a fit by the default method, which is the start of another one."""
    model = Newton(counts, executor, start, n_components, dtype, constraints, max_iter=max_iter)
    monitor = Monitor(Newton, max_iter, tol)
    iteration = begin(model, monitor)
    progress.stage("iterations of a topic model")
    fit(model, monitor, iteration=iteration)
    factors = model.result()
    model.release()
    return factors["L"], factors["F"]


def poisson_needs(
    counts: CountMatrix, n_components: int, dtype: Any, solver: str, n_threads: int,
    weighted: bool = False, own_terms: bool = False, whole_columns: bool = False,
) -> Needs:  # fmt: skip
    """Return the memory that a fit needs.

    `weighted`: samples have weights; `own_terms`: rows have a prior, or their own totals;
    `whole_columns`: there are steps on whole columns, as alternating solvers have them anyway.
    """
    whole_columns = whole_columns or solver in UPDATES
    K, itemsize = n_components, np.dtype(dtype).itemsize
    stride, lanes = kernels.row_stride(K), -(-counts.shape[1] // LANES) * LANES
    own = not shares_correlations(K, counts.shape[1])
    wanted = kernels.SUM_GRADIENT  # other solvers add up over blocks for EM and residuals only
    if solver == "auto":
        wanted = kernels.SUM_FULL if own else kernels.SUM_DIAGONAL
    shared = lanes * _COPIES_F * stride * itemsize + counts.shape[0] * _PER_ROW * 8
    more = 3 * own_terms  # copies of pseudo-counts and rates: 3.3 measured, with priors and weights
    scratch = per_thread = 0
    if not own:  # a sample of rows at a time has its own curvature
        packed = kernels.packed_size(K)
        scratch = (n_threads * LANES * itemsize + SAMPLED_TOGETHER * 8) * packed
    if solver in UPDATES and UPDATES[solver].kernel == "descend":
        # threads gather the factors of a whole row
        longest = max(int(counts.row_nnz.max()), int(counts.column_nnz.max()))
        per_thread = longest * (K + 2) * LANES * itemsize
        scratch = max(scratch, n_threads * per_thread)
    return Needs(
        row=stride * itemsize * (_COPIES_L + more),
        shared=shared + lanes * stride * 8 * more + (0 if own else _COPIES_SHARED * K**2 * 8),
        # a single block is not added up
        sums=lanes * kernels.statistics_size(K, wanted) * 8
        if len(cut_blocks(counts.row_nnz)) > 2
        else 0,
        start=min(counts.nnz * 24, _START_BYTES),
        scratch=scratch,
        per_count=itemsize if weighted else 0,
        task_row=(_COPIES_TASK + more) * stride * 8 + own * kernels.packed_size(K) * 2,
        task_shared=_COPIES_TASK_F * lanes * stride * 8,
        saved_row=stride * 8,
        whole_row=_COPIES_WHOLE * (stride * itemsize + 8 * weighted) if whole_columns else 0,
        task_thread=per_thread,
    )
