"""Loops over the slices of a block of counts; `arithmetic.h` has the arithmetic of one slice.

Each function runs one kernel on every slice, without the GIL and on an explicit number of threads.
A slice is the unit of work: it writes its own rows and its own partial sums, so results depend
neither on the schedule nor on the number of threads. Very little work runs on one thread, because
waking others would take longer. `rows.pyi` documents all arguments.
"""
from cython.parallel cimport prange, threadid
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc

import numpy as np

from .levels cimport (
    contrasts_bytes, descend_bytes, kernels_in_use, solve_bytes, update_rows_bytes,
)
from .operands cimport Extrapolation, RowBuffers, RowProblem, SlicedCounts, address
from .slices cimport (
    CURVATURE_RESCALE, DIAGONAL, DIGAMMA, EXP, EXP_DIGAMMA, FURTHER, GRADIENT, LANES, LOG,
    LOG_GAMMA, NONZERO, TRIGAMMA, contrast_problem, level_kernels, move_kernel, row_kernels,
    slice_counts, slice_rows, values_kernel,
)

from .operands import SQUARES, packed_size, statistics_size


cdef char *workspace(size_t bytes_each, int n_threads) except NULL:
    """Allocate scratch memory for each thread, on separate cache lines; the caller frees it."""
    cdef char *memory = <char *>malloc((bytes_each + 128) * n_threads + 64)
    if memory == NULL:
        raise MemoryError(
            f"no memory for the scratch space of {n_threads} threads: {bytes_each} bytes each"
        )
    return memory


cdef inline char *piece(char *memory, size_t bytes_each, int thread) noexcept nogil:
    cdef char *first = <char *>((<uintptr_t>memory + 63) // 64 * 64)
    return first + (bytes_each + 63) // 64 * 64 * thread


def check_design(SlicedCounts counts, RowProblem problem):
    """Check that every index of the counts is a row of the held factor."""
    if len(problem.keep[0]) < counts.n_design:
        raise ValueError(
            f"the held factor has {len(problem.keep[0])} rows, the counts need {counts.n_design}"
        )


def update_rows(SlicedCounts counts, RowProblem problem, start, end, *, int n_threads,
                Extrapolation extrapolation=None, const int64_t[::1] slices=None, **rows):
    """Update every row by EM steps, then second-order steps: `start` -> `end` (n_lanes, stride).

    With `step` DIRICHLET or GAMMA (see `RowProblem`), take mean-field steps instead. `theta`,
    exp(E log h), and `loglik_end` then belong to the last pass over the counts; `log_end` is E log
    h at the end. The sum of `prior_end` and `loglik_end` is the row's share of the evidence lower
    bound, up to the terms that `put_prior` in variational.h names.

    With `step` COLLAPSED, replace expected counts of topics. `squares` are sums of y gamma^2 in the
    last pass.

    With `extrapolation`, the updated rows are extrapolated at once and `end` must be None. With
    `slices`, only the rows of these slices are updated; nothing is written for other rows.
    """
    cdef size_t size = update_rows_bytes(problem.c.n_components, problem.dtype.itemsize)
    check_extrapolation(extrapolation, problem, counts.n_slices * LANES, end)
    move(problem.kernels.update_rows, size, counts, problem,
         RowBuffers(problem, counts.n_slices, start, end, **rows), extrapolation,
         checked_slices(counts, slices), n_threads)


def descend(SlicedCounts counts, RowProblem problem, start, end, *, int n_threads, **rows):
    """Update every row by EM steps, then coordinate descent: `start` -> `end` (n_lanes, stride)."""
    cdef size_t size = descend_bytes(
        problem.c.n_components, counts.longest(), problem.dtype.itemsize
    )
    move(problem.kernels.descend, size, counts, problem,
         RowBuffers(problem, counts.n_slices, start, end, **rows), None,
         np.arange(counts.n_slices), n_threads)


def descend_jointly(SlicedCounts counts, RowProblem problem, start, end, *, int n_threads, **rows):
    """Update rows that explain both counts and labels, by coordinate descent: see joint.h.

    `up` and `down` (n_slices, n_labels, 16) are coefficients of the labels' loss. `rate` (n_lanes,
    stride) is a linear term of each row. `quadratic` (n_slices, K (K + 1) / 2, 16), allowed with
    SQUARES only, holds a matrix for each row that replaces `gram`.
    """
    cdef bint squares = problem.c.step == SQUARES
    if not squares and rows.get("quadratic") is not None:
        raise ValueError("quadratic is for step SQUARES only")
    cdef size_t size = descend_bytes(
        problem.c.n_components, 0 if squares else counts.longest(), problem.dtype.itemsize
    ) + problem.c.n_labels * LANES * problem.dtype.itemsize
    move(problem.kernels.descend_jointly, size, counts, problem,
         RowBuffers(problem, counts.n_slices, start, end, **rows), None,
         np.arange(counts.n_slices), n_threads)


def solve_rows(SlicedCounts counts, RowProblem problem, start, end, *, int n_threads,
               const int64_t[::1] slices=None, **rows):
    """Solve every row to its optimum, by Newton steps on its active set of components.

    `start` -> `end` (n_lanes, stride): see `solve_row` in active.h. This pays with many components
    of which each row uses few. With `slices`, only the rows of these slices are solved.
    """
    cdef size_t size = solve_bytes(
        problem.c.n_components, counts.longest(), problem.dtype.itemsize
    )
    if rows.keys() - {"pseudo", "rate"}:
        raise ValueError(f"solve_rows takes pseudo and rate, not {', '.join(sorted(rows))}")
    move(problem.kernels.solve, size, counts, problem,
         RowBuffers(problem, counts.n_slices, start, end, **rows), None,
         checked_slices(counts, slices), n_threads)


def checked_slices(SlicedCounts counts, slices):
    """Return the numbers of the slices, all by default, after checking their range."""
    if slices is None:
        return np.arange(counts.n_slices)
    if len(slices) and not 0 <= np.min(slices) <= np.max(slices) < counts.n_slices:
        raise ValueError(f"slices must be from 0 to {counts.n_slices - 1}")
    return slices


cdef int move(move_kernel kernel, size_t size, SlicedCounts counts, RowProblem problem,
              RowBuffers rows, Extrapolation extrapolation, const int64_t[::1] slices,
              int n_threads) except -1:
    """Run a kernel that updates rows on the given slices."""
    check_design(counts, problem)
    cdef char *memory = workspace(size + rows.row_bytes, n_threads)
    cdef Py_ssize_t i
    for i in prange(slices.shape[0], nogil=True, schedule="dynamic", chunksize=1,
                    num_threads=n_threads, use_threads_if=slices.shape[0] > 2):
        move_slice(kernel, counts, problem, rows, extrapolation, slices[i], size,
                   piece(memory, size + rows.row_bytes, threadid()))
    free(memory)
    return 0


cdef void move_slice(move_kernel kernel, SlicedCounts counts, RowProblem problem, RowBuffers rows,
                     Extrapolation extrapolation, Py_ssize_t s, size_t size,
                     char *memory) noexcept nogil:
    cdef slice_counts x
    cdef slice_rows r
    counts.slice(s, &x)
    rows.slice(s, &r)
    if extrapolation is not None:
        r.end = memory + size
    kernel(&problem.c, &x, &r, memory)
    if extrapolation is not None:
        extrapolation.apply(problem, s, <const char *>r.end)


def check_extrapolation(Extrapolation extrapolation, RowProblem problem, Py_ssize_t n_lanes, end):
    """Check that an extrapolation fits the rows of all slices, and that `end` is None beside it."""
    if extrapolation is None:
        return
    expected = (n_lanes, problem.c.stride)
    if end is not None or extrapolation.shape != expected or extrapolation.dtype != problem.dtype:
        raise ValueError(
            f"extrapolation is {extrapolation.dtype} {extrapolation.shape}, expected "
            f"{problem.dtype} {expected} and no end"
        )


def sums(SlicedCounts counts, RowProblem problem, start, double[:, :, ::1] out, *, int wanted,
         Py_ssize_t first, Py_ssize_t last, int n_threads, loglik=None):
    """Add the statistics that `step` needs, of slices first:last, to `out`: see arithmetic.h.

    `loglik` receives the sum of x log mu of each row, without the sum of mu; not with DIAGONAL.
    """
    check_design(counts, problem)
    cdef Py_ssize_t n_numbers = statistics_size(problem.c.n_components, wanted)
    if out.shape[0] != last - first or out.shape[1] < n_numbers or out.shape[2] != LANES:
        raise ValueError(f"out has shape {(out.shape[0], out.shape[1], out.shape[2])}")
    if not 0 <= first <= last <= counts.n_slices:
        raise ValueError(f"no slices {first}:{last} among {counts.n_slices}")
    if start is None and problem.c.step != SQUARES:
        raise ValueError("start is None: only sums of least squares do not use the rows")
    if loglik is not None and wanted == DIAGONAL:
        raise ValueError("loglik cannot be combined with wanted=SUM_DIAGONAL")
    cdef RowBuffers all_rows = RowBuffers(
        problem, counts.n_slices, start, None, loglik_start=loglik
    )
    cdef size_t size = update_rows_bytes(problem.c.n_components, problem.dtype.itemsize)
    cdef char *memory = workspace(size, n_threads)
    cdef Py_ssize_t s
    for s in prange(first, last, nogil=True, schedule="dynamic", chunksize=1,
                    num_threads=n_threads, use_threads_if=last - first > 2):
        run_sums(counts, problem, all_rows, s, wanted, &out[s - first, 0, 0],
                 piece(memory, size, threadid()))
    free(memory)


cdef void run_sums(SlicedCounts counts, RowProblem problem, RowBuffers rows, Py_ssize_t s,
                   int wanted, double *out, char *memory) noexcept nogil:
    cdef slice_counts x
    cdef slice_rows r
    counts.slice(s, &x)
    rows.slice(s, &r)
    problem.kernels.sums(&problem.c, &x, &r, wanted, out, memory)


def step(RowProblem problem, const double[:, :, ::1] sums, start, end, *, int wanted,
         Py_ssize_t first, int n_threads, Extrapolation extrapolation=None, **rows):
    """Take one step of `update_rows` on slices first:first + len(sums), from summed statistics."""
    check_extrapolation(extrapolation, problem, len(start), end)
    cdef Py_ssize_t s, n = sums.shape[0]
    if sums.shape[2] != LANES or sums.shape[1] < statistics_size(problem.c.n_components, wanted):
        raise ValueError(f"sums have shape {(sums.shape[0], sums.shape[1], sums.shape[2])}")
    if problem.c.step == SQUARES and wanted != GRADIENT:
        raise ValueError("least squares need SUM_GRADIENT")
    cdef RowBuffers all_rows = RowBuffers(problem, len(start) // LANES, start, end, **rows)
    cdef bint needs_stored = wanted == DIAGONAL and not problem.c.correlation or (
        wanted == GRADIENT and all_rows.first.curvature_mode == CURVATURE_RESCALE)
    if first + n > len(start) // LANES or needs_stored and all_rows.n_curvature < first + n:
        raise ValueError(
            f"slices {first}:{first + n} exceed the rows of start, or have no stored curvature"
        )
    cdef size_t size = update_rows_bytes(problem.c.n_components, problem.dtype.itemsize)
    cdef char *memory = workspace(size + all_rows.row_bytes, n_threads)
    for s in prange(n, nogil=True, schedule="static", num_threads=n_threads,
                    use_threads_if=n > 2):
        run_step(problem, &sums[s, 0, 0], all_rows, extrapolation, first + s, wanted, size,
                 piece(memory, size + all_rows.row_bytes, threadid()))
    free(memory)


cdef void run_step(RowProblem problem, const double *sums, RowBuffers rows,
                   Extrapolation extrapolation, Py_ssize_t s, int wanted, size_t size,
                   char *memory) noexcept nogil:
    cdef slice_rows r
    rows.slice(s, &r)
    if extrapolation is not None:
        r.end = memory + size
    problem.kernels.step(&problem.c, sums, &r, wanted, memory)
    if extrapolation is not None:
        extrapolation.apply(problem, s, <const char *>r.end)


def extrapolate(RowProblem problem, now, Extrapolation extrapolation, *, int n_threads):
    """Extrapolate from `now`: rows that were updated before the momentum was known."""
    cdef Py_ssize_t s, n_slices = len(now) // LANES
    cdef const char *first = <const char *>address(now, problem.dtype, extrapolation.shape, "now")
    check_extrapolation(extrapolation, problem, len(now), None)
    for s in prange(n_slices, nogil=True, schedule="static", num_threads=n_threads,
                    use_threads_if=n_slices > 2):
        extrapolation.apply(problem, s, first + s * extrapolation.bytes_each)


def sum_slices(const double[:, ::1] values, double[::1] out):
    """Add each slice's values (n_slices, width) to `out` (width,), in the order of the slices."""
    cdef Py_ssize_t s, i, first, width = out.shape[0]
    cdef double[8] total                                  # local, so that it cannot alias an array
    if values.shape[1] != width:
        raise ValueError(f"out has {width} entries, but values {values.shape[1]} for each slice")
    with nogil:
        for first in range(0, width - 7, 8):
            for i in range(8):
                total[i] = out[first + i]
            for s in range(values.shape[0]):
                for i in range(8):
                    total[i] += values[s, first + i]
            for i in range(8):
                out[first + i] = total[i]
        for i in range(width // 8 * 8, width):
            for s in range(values.shape[0]):
                out[i] += values[s, i]


def correlations(SlicedCounts counts, RowProblem problem, start, double[:, ::1] out, *,
                 Py_ssize_t first, Py_ssize_t every, int n_threads):
    """Sum the correlations of the rows' curvature over slices first, first + every, ...

    Each of these slices has one row of `out`: the packed correlations of its rows, weighted by the
    rows' total counts, then the sum of the weights.
    """
    cdef Py_ssize_t last = first + (out.shape[0] - 1) * every
    if not 0 <= first <= last < counts.n_slices or (
            out.shape[1] != packed_size(problem.c.n_components) + 1):
        raise ValueError(f"out has shape {(out.shape[0], out.shape[1])}")
    values(problem.kernels.correlations, counts, problem, start, &out[0, 0], out.shape[1],
           out.shape[0], first, every, n_threads)


def contrasts(SlicedCounts counts, RowProblem problem, const double[:, :, ::1] totals,
              const double[::1] mean, double[:, :, ::1] out, *, double pseudo,
              double pseudo_of_tests, bint bounds, int n_threads,
              const double[:, ::1] weights=None):
    """Fit every row, and compare each of its coefficients with others: see contrasts.h."""
    cdef Py_ssize_t s, K = problem.c.n_components, n_slices = counts.n_slices
    if problem.dtype != "float64" or mean.shape[0] != n_slices * LANES or K < 2:
        raise ValueError("contrasts need a float64 design of two components, and a mean per lane")
    if (totals.shape[0], totals.shape[1], totals.shape[2]) != (n_slices, K, LANES):
        raise ValueError(f"totals have shape {(totals.shape[0], totals.shape[1], totals.shape[2])}")
    if (out.shape[0], out.shape[1], out.shape[2]) != (n_slices, 5 * K + 2, LANES):
        raise ValueError(f"out has shape {(out.shape[0], out.shape[1], out.shape[2])}")
    if weights is not None and (weights.shape[0], weights.shape[1]) != (K, K):
        raise ValueError(f"weights have shape {(weights.shape[0], weights.shape[1])}")
    check_design(counts, problem)
    cdef contrast_problem to
    cdef const level_kernels *kernels = kernels_in_use()
    cdef size_t size = contrasts_bytes(K)
    to.pseudo, to.pseudo_of_tests, to.bounds = pseudo, pseudo_of_tests, bounds
    to.total, to.mean, to.weights = NULL, NULL, NULL
    if weights is not None:
        to.weights = &weights[0, 0]
    cdef char *memory = workspace(size, n_threads)
    for s in prange(n_slices, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=n_slices > 1):
        contrasts_of_slice(kernels, counts, problem, to, s, &totals[s, 0, 0], &mean[s * LANES],
                           &out[s, 0, 0], piece(memory, size, threadid()))
    free(memory)


cdef void contrasts_of_slice(const level_kernels *kernels, SlicedCounts counts, RowProblem problem,
                             contrast_problem to, Py_ssize_t s, const double *total,
                             const double *mean, double *out, char *memory) noexcept nogil:
    cdef slice_counts x
    counts.slice(s, &x)
    to.total, to.mean = total, mean
    kernels.contrasts(&problem.c, &x, &to, out, memory)


def gather_dot(SlicedCounts counts, RowProblem problem, start, double[::1] out, *, int n_threads):
    """Sum the expected counts over the nonzeros of each row: a lower bound on any kernel's time."""
    if out.shape[0] != counts.n_slices * LANES:
        raise ValueError("out needs one entry for each lane")
    values(problem.kernels.gather_dot, counts, problem, start, &out[0], LANES, counts.n_slices,
           0, 1, n_threads)


cdef int values(values_kernel kernel, SlicedCounts counts, RowProblem problem, start, double *out,
                Py_ssize_t n_each, Py_ssize_t n, Py_ssize_t first, Py_ssize_t every,
                int n_threads) except -1:
    """Run a kernel that writes `n_each` numbers for each of `n` slices, in strides of `every`."""
    check_design(counts, problem)
    cdef RowBuffers all_rows = RowBuffers(problem, counts.n_slices, start, None)
    cdef size_t size = update_rows_bytes(problem.c.n_components, problem.dtype.itemsize)
    cdef char *memory = workspace(size, n_threads)
    cdef Py_ssize_t i
    for i in prange(n, nogil=True, schedule="dynamic", num_threads=n_threads,
                    use_threads_if=n > 1):
        values_of_slice(kernel, counts, problem, all_rows, first + i * every, out + i * n_each,
                        piece(memory, size, threadid()))
    free(memory)
    return 0


cdef void values_of_slice(values_kernel kernel, SlicedCounts counts, RowProblem problem,
                          RowBuffers rows, Py_ssize_t s, double *out, char *memory) noexcept nogil:
    cdef slice_counts x
    cdef slice_rows r
    counts.slice(s, &x)
    rows.slice(s, &r)
    kernel(&problem.c, &x, &r, out, memory)


def digamma(x, out, *, int n_threads):
    """Write the digamma function of every entry of `x`, which is positive, to `out`."""
    elementwise(DIGAMMA, x, out, None, 0, n_threads)


def exp_digamma(x, out, *, int n_threads):
    """Write exp(digamma) of every entry of `x`, which is positive, to `out`."""
    elementwise(EXP_DIGAMMA, x, out, None, 0, n_threads)


def log_gamma(x, out, *, int n_threads):
    """Write log Gamma of every entry of `x`, which is positive, to `out`."""
    elementwise(LOG_GAMMA, x, out, None, 0, n_threads)


def trigamma(x, out, *, int n_threads):
    """Write the derivative of digamma at every entry of `x`, which is positive, to `out`."""
    elementwise(TRIGAMMA, x, out, None, 0, n_threads)


def log(x, out, *, int n_threads):
    """Write the logarithm of every entry of `x` to `out`: -inf of 0, NaN of negative numbers."""
    elementwise(LOG, x, out, None, 0, n_threads)


def exp(x, out, *, int n_threads):
    """Write the exponential of every entry of `x` to `out`: 0 or inf where it is out of range."""
    elementwise(EXP, x, out, None, 0, n_threads)


def extrapolate_log(now, before, out, double momentum, *, int n_threads):
    """Write now (now / before)^momentum to `out`, which may be `now` or `before`."""
    elementwise(FURTHER, now, out, before, momentum, n_threads)


def nonzero(mean, squares, out, *, int n_threads):
    """Write to `out` the probability that a binomial number is not 0: see variational.h."""
    elementwise(NONZERO, mean, out, squares, 0, n_threads)


cdef int elementwise(int function, x, out, before, double momentum, int n_threads) except -1:
    """Apply a function to every entry; the result does not depend on an entry's position."""
    cdef Py_ssize_t i, at, n = x.size, at_once = 4096, size = x.itemsize
    if x.dtype not in ("float32", "float64"):
        raise ValueError(f"x: expected float32 or float64, got {x.dtype}")
    cdef const char *numbers = <const char *>address(x, x.dtype, x.shape, "x")
    cdef const char *earlier = <const char *>address(before, x.dtype, x.shape, "before")
    cdef char *found = <char *>address(out, x.dtype, x.shape, "out")
    cdef const row_kernels *kernels = (
        &kernels_in_use().f32 if size == 4 else &kernels_in_use().f64
    )
    for i in prange((n + at_once - 1) // at_once, nogil=True, schedule="static",
                    num_threads=n_threads, use_threads_if=n > 4 * at_once):
        at = i * at_once * size
        kernels.elementwise(function, min(at_once, n - i * at_once), numbers + at,
                            earlier + at if earlier else NULL, momentum, found + at)
    return 0
