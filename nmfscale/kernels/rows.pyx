"""Loops over the slices of a sliced count matrix; the arithmetic of one slice is in arithmetic.h.

Every function runs one kernel on every slice with `nogil` and an explicit number of threads.  A
slice is the unit of work: it writes its own rows and its own partial sums, so nothing depends on
the schedule or the number of threads.
"""
import os

from cython.parallel cimport prange, threadid
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef extern from "slices.h" nogil:
    enum: LANES, GROUP
    enum: COUNT_UINT8, COUNT_UINT16, COUNT_FLOAT32, COUNT_FLOAT64
    enum: CURVATURE_FRESH, CURVATURE_KEEP, CURVATURE_KEPT
    enum: GRADIENT, FULL, DIAGONAL
    ctypedef struct slice_counts:
        const void *index
        const void *count
        int index_bytes, count_kind
        int64_t n_steps
    ctypedef struct row_problem:
        int n_components, stride
        const void *design
        const void *total
        const void *weight
        const void *moves
        double floor
        int em_steps, newton_steps
        int64_t em_longest
        int qp_sweeps
        double qp_tolerance, margin
        const void *correlation
        int guarded
    ctypedef struct slice_rows:
        const void *start
        void *end
        const void *pseudo
        const void *rate
        float *curvature
        int curvature_mode
        double *loglik_start
        double *kkt_start
        double *loglik_end
        double *kkt_end
    ctypedef void (*move_kernel)(const row_problem *, const slice_counts *, const slice_rows *,
                                 void *) noexcept nogil
    ctypedef void (*values_kernel)(const row_problem *, const slice_counts *, const slice_rows *,
                                   double *, void *) noexcept nogil
    ctypedef struct row_kernels:
        move_kernel visit, descend
        void (*sums)(const row_problem *, const slice_counts *, const slice_rows *, int, double *,
                     void *) noexcept nogil
        void (*step)(const row_problem *, const double *, const slice_rows *, int,
                     void *) noexcept nogil
        void (*extrapolate)(const row_problem *, int, const void *, const void *, void *, double,
                            double *, double *, int64_t *) noexcept nogil
        values_kernel correlations, gather_dot
    ctypedef struct level_kernels:
        row_kernels f32, f64
    const level_kernels nmfscale_baseline, nmfscale_avx2, nmfscale_avx512
    int nmfscale_processor_level()
    size_t nmfscale_visit_bytes(int, int)
    size_t nmfscale_descend_bytes(int, int64_t, int)

cdef extern from *:
    """
    #ifndef NMFSCALE_OPENMP
    #define NMFSCALE_OPENMP 0
    #endif
    #ifndef NMFSCALE_DEBUG
    #define NMFSCALE_DEBUG 0
    #endif
    """
    int NMFSCALE_OPENMP
    int NMFSCALE_DEBUG

cdef const level_kernels *KERNELS = NULL
cdef object _level_in_use = None
FRESH, KEEP, KEPT = CURVATURE_FRESH, CURVATURE_KEEP, CURVATURE_KEPT
SUM_GRADIENT, SUM_FULL, SUM_DIAGONAL = GRADIENT, FULL, DIAGONAL
_LEVELS = {"baseline": 0, "avx2": 2, "avx512": 3}


def available_levels():
    """Names of the instruction sets that this processor has, lowest first."""
    return [name for name, level in _LEVELS.items() if level <= nmfscale_processor_level()]


def level():
    """Name of the instruction set in use."""
    return _level_in_use


def use_level(name):
    """Take the kernels of instruction set `name` from now on."""
    global KERNELS, _level_in_use
    if name not in _LEVELS:
        raise ImportError(
            f"unknown instruction set {name!r} (NMFSCALE_LEVEL): choose from {', '.join(_LEVELS)}"
        )
    if name not in available_levels():
        raise ImportError(
            f"this processor does not have {name!r} (NMFSCALE_LEVEL): "
            f"choose from {', '.join(available_levels())}"
        )
    if name == "avx512":
        KERNELS = &nmfscale_avx512
    elif name == "avx2":
        KERNELS = &nmfscale_avx2
    else:
        KERNELS = &nmfscale_baseline
    _level_in_use = name


use_level(os.environ.get("NMFSCALE_LEVEL") or max(available_levels(), key=_LEVELS.get))


def build_flags():
    """How the kernels were compiled."""
    return {"openmp": bool(NMFSCALE_OPENMP), "bounds_checks": bool(NMFSCALE_DEBUG)}


def row_stride(int n_components):
    """Numbers from one row of a factor to the next in memory."""
    return (n_components + GROUP - 1) // GROUP * GROUP


def kept_size(int n_components):
    """Numbers of the packed curvature of one row."""
    return n_components * (n_components + 1) // 2


def statistics_size(int n_components, int wanted):
    """Numbers that `sums` adds up and `step` needs for one row."""
    if wanted == FULL:
        return kept_size(n_components)
    return 2 * n_components if wanted == DIAGONAL else n_components


cdef const void *address(array, dtype, tuple shape, str name) except? NULL:
    """Where the numbers of a C-contiguous array are; NULL for None."""
    if array is None:
        return NULL
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(
            f"{name}: expected C-contiguous {dtype} {shape}, got {array.dtype} {array.shape}"
        )
    return <const void *><uintptr_t>array.ctypes.data


cdef const void *aligned_address(array, dtype, tuple shape, str name) except? NULL:
    """The same for arrays that are read and written in whole vectors."""
    cdef const void *first = address(array, dtype, shape, name)
    if <uintptr_t>first % 64:
        raise ValueError(f"{name}: does not start at a multiple of 64 bytes")
    return first


cdef class SlicedCounts:
    """Where the counts of a sliced matrix are: steps of 16 interleaved (index, count) pairs."""
    cdef readonly Py_ssize_t n_slices
    cdef readonly int64_t longest
    cdef readonly int64_t n_design
    cdef object keep
    cdef const int64_t[::1] offset
    cdef const char *index
    cdef const char *count
    cdef int index_bytes, count_bytes, count_kind

    def __cinit__(self, index, count, offset, int64_t n_design):
        kinds = {"uint8": COUNT_UINT8, "uint16": COUNT_UINT16,
                 "float32": COUNT_FLOAT32, "float64": COUNT_FLOAT64}
        self.offset = offset
        self.n_slices = self.offset.shape[0] - 1
        steps = int(self.offset[self.n_slices]) * LANES
        if index.dtype.name not in ("uint16", "int32") or count.dtype.name not in kinds:
            raise ValueError(
                f"index {index.dtype} or count {count.dtype} is not a type of the slices"
            )
        self.index = <const char *>address(index, index.dtype, (steps,), "index")
        self.count = <const char *>address(count, count.dtype, (steps,), "count")
        self.index_bytes, self.count_bytes = index.itemsize, count.itemsize
        self.count_kind = kinds[count.dtype.name]
        self.keep = (index, count, offset)
        self.n_design = n_design
        cdef Py_ssize_t s
        self.longest = 0
        for s in range(self.n_slices):
            self.longest = max(self.longest, self.offset[s + 1] - self.offset[s])

    cdef void slice(self, Py_ssize_t s, slice_counts *out) noexcept nogil:
        out.index = self.index + self.offset[s] * LANES * self.index_bytes
        out.count = self.count + self.offset[s] * LANES * self.count_bytes
        out.index_bytes = self.index_bytes
        out.count_kind = self.count_kind
        out.n_steps = self.offset[s + 1] - self.offset[s]


cdef class RowProblem:
    """The held factor (n_cols, stride), float32 or float64, and the options of a kernel."""
    cdef row_problem c
    cdef readonly object dtype
    cdef readonly object keep
    cdef const row_kernels *kernels

    def __cinit__(self, design, total, int n_components, *, weight=None, moves=None,
                  double floor=1e-10, int em_steps=0, int newton_steps=0,
                  int64_t em_longest=1 << 62, int qp_sweeps=10, double qp_tolerance=1e-4,
                  double margin=1.0, correlation=None, bint guarded=False):
        self.dtype = design.dtype
        self.kernels = &KERNELS.f32 if self.dtype == "float32" else &KERNELS.f64
        self.c.n_components, self.c.stride = n_components, row_stride(n_components)
        shape = (design.shape[0], self.c.stride)
        self.c.design = aligned_address(design, self.dtype, shape, "design")
        self.c.total = address(total, self.dtype, (self.c.stride,), "total")
        self.c.weight = address(weight, self.dtype, (design.shape[0],), "weight")
        self.c.moves = address(moves, self.dtype, (self.c.stride,), "moves")
        self.c.floor, self.c.guarded = floor, guarded
        self.c.em_steps, self.c.newton_steps = em_steps, newton_steps
        self.c.em_longest = em_longest
        self.c.qp_sweeps, self.c.qp_tolerance, self.c.margin = qp_sweeps, qp_tolerance, margin
        self.c.correlation = address(
            correlation, self.dtype, (n_components, n_components), "correlation"
        )
        self.keep = (design, total, weight, moves, correlation)


cdef class _Rows:
    """Addresses of everything that belongs to the rows, checked once."""
    cdef slice_rows first
    cdef Py_ssize_t row_bytes, n_kept, kept_bytes

    def __cinit__(self, RowProblem problem, Py_ssize_t n_slices, start, end, pseudo=None,
                  rate=None, curvature=None, int curvature_mode=CURVATURE_FRESH, loglik_start=None,
                  kkt_start=None, loglik_end=None, kkt_end=None):
        shape = (n_slices * LANES, problem.c.stride)
        self.first.start = aligned_address(start, problem.dtype, shape, "start")
        self.first.end = <void *>aligned_address(end, problem.dtype, shape, "end")
        self.first.pseudo = aligned_address(pseudo, problem.dtype, shape, "pseudo")
        self.first.rate = aligned_address(rate, problem.dtype, shape, "rate")
        per_row = shape[:1]
        self.first.loglik_start = <double *>address(
            loglik_start, "float64", per_row, "loglik_start"
        )
        self.first.kkt_start = <double *>address(kkt_start, "float64", per_row, "kkt_start")
        self.first.loglik_end = <double *>address(loglik_end, "float64", per_row, "loglik_end")
        self.first.kkt_end = <double *>address(kkt_end, "float64", per_row, "kkt_end")
        self.row_bytes = LANES * problem.c.stride * problem.dtype.itemsize
        self.n_kept = 0 if curvature is None else min(len(curvature), n_slices)
        if curvature is not None:
            packed = kept_size(problem.c.n_components)
            self.first.curvature = <float *>address(
                curvature, "float32", (len(curvature), packed, LANES), "curvature"
            )
            self.kept_bytes = packed * LANES * sizeof(float)
        self.first.curvature_mode = curvature_mode

    cdef void slice(self, Py_ssize_t s, slice_rows *out) noexcept nogil:
        cdef slice_rows *a = &self.first
        out.start = <const char *>a.start + s * self.row_bytes
        out.end = <char *>a.end + s * self.row_bytes if a.end else NULL
        out.pseudo = <const char *>a.pseudo + s * self.row_bytes if a.pseudo else NULL
        out.rate = <const char *>a.rate + s * self.row_bytes if a.rate else NULL
        out.curvature = NULL
        if s < self.n_kept:
            out.curvature = <float *>(<char *>a.curvature + s * self.kept_bytes)
        out.curvature_mode = a.curvature_mode
        out.loglik_start = a.loglik_start + s * LANES if a.loglik_start else NULL
        out.kkt_start = a.kkt_start + s * LANES if a.kkt_start else NULL
        out.loglik_end = a.loglik_end + s * LANES if a.loglik_end else NULL
        out.kkt_end = a.kkt_end + s * LANES if a.kkt_end else NULL


cdef class Ahead:
    """Where rows go on to: ahead = max(now + momentum (now - before), floor), summed by slice.

    `ahead` may be the memory of `before`. `n_rows` is the number of lanes that have a row.
    """
    cdef char *before
    cdef char *ahead
    cdef double momentum
    cdef int64_t n_rows
    cdef readonly tuple shape
    cdef readonly object dtype
    cdef Py_ssize_t bytes_each
    cdef object keep
    cdef double[:, ::1] column_sums
    cdef double[::1] change
    cdef int64_t[::1] zeros

    def __cinit__(self, int64_t n_rows, before, ahead, double momentum,
                  double[:, ::1] column_sums, double[::1] change, int64_t[::1] zeros):
        cdef Py_ssize_t n_slices = column_sums.shape[0], stride = column_sums.shape[1]
        self.shape, self.dtype = (n_slices * LANES, stride), before.dtype
        self.before = <char *>address(before, self.dtype, self.shape, "before")
        self.ahead = <char *>address(ahead, self.dtype, self.shape, "ahead")
        if change.shape[0] != n_slices or zeros.shape[0] != n_slices:
            raise ValueError("column_sums, change and zeros need one entry a slice")
        self.n_rows, self.momentum, self.keep = n_rows, momentum, (before, ahead)
        self.column_sums, self.change, self.zeros = column_sums, change, zeros
        self.bytes_each = LANES * stride * before.itemsize

    cdef void go(self, RowProblem problem, Py_ssize_t s, const char *now) noexcept nogil:
        problem.kernels.extrapolate(
            &problem.c, <int>max(0, min(LANES, self.n_rows - s * LANES)), now,
            self.before + s * self.bytes_each, self.ahead + s * self.bytes_each, self.momentum,
            &self.column_sums[s, 0], &self.change[s], &self.zeros[s]
        )

    cdef void go_and_keep(self, RowProblem problem, Py_ssize_t s, const char *now) noexcept nogil:
        self.go(problem, s, now)
        memcpy(self.before + s * self.bytes_each, now, self.bytes_each)


cdef char *workspace(size_t bytes_each, int n_threads) except NULL:
    """One piece of scratch memory a thread, each on cache lines of its own; free() it."""
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
    """Every index of the counts must be a row of the held factor."""
    if len(problem.keep[0]) < counts.n_design:
        raise ValueError(
            f"the held factor has {len(problem.keep[0])} rows, the counts need {counts.n_design}"
        )


def visit(SlicedCounts counts, RowProblem problem, start, end, *, int n_threads,
          Ahead ahead=None, **rows):
    """EM steps, then second-order steps, on every row: `start` -> `end` (n_rows, stride).

    With `ahead` the rows go on to there at once, and `ahead.before` takes where they arrived;
    `end` is None.
    """
    cdef size_t size = nmfscale_visit_bytes(problem.c.n_components, problem.dtype.itemsize)
    check_ahead(ahead, problem, counts.n_slices * LANES, end)
    move(problem.kernels.visit, size, counts, problem,
         _Rows(problem, counts.n_slices, start, end, **rows), ahead, n_threads)


def descend(SlicedCounts counts, RowProblem problem, start, end, *, int n_threads, **rows):
    """EM steps, then coordinate descent, on every row: `start` -> `end` (n_rows, stride)."""
    cdef size_t size = nmfscale_descend_bytes(
        problem.c.n_components, counts.longest, problem.dtype.itemsize
    )
    move(problem.kernels.descend, size, counts, problem,
         _Rows(problem, counts.n_slices, start, end, **rows), None, n_threads)


cdef int move(move_kernel kernel, size_t size, SlicedCounts counts, RowProblem problem, _Rows rows,
              Ahead ahead, int n_threads) except -1:
    """Run a kernel that moves rows on every slice."""
    check_design(counts, problem)
    cdef char *memory = workspace(size + rows.row_bytes, n_threads)
    cdef Py_ssize_t s
    for s in prange(counts.n_slices, nogil=True, schedule="dynamic", chunksize=2,
                    num_threads=n_threads):
        move_slice(kernel, counts, problem, rows, ahead, s, size,
                   piece(memory, size + rows.row_bytes, threadid()))
    free(memory)
    return 0


cdef void move_slice(move_kernel kernel, SlicedCounts counts, RowProblem problem, _Rows rows,
                     Ahead ahead, Py_ssize_t s, size_t size, char *memory) noexcept nogil:
    cdef slice_counts x
    cdef slice_rows r
    counts.slice(s, &x)
    rows.slice(s, &r)
    if ahead is not None:
        r.end = memory + size
    kernel(&problem.c, &x, &r, memory)
    if ahead is not None:
        ahead.go_and_keep(problem, s, <const char *>r.end)


def check_ahead(Ahead ahead, RowProblem problem, Py_ssize_t n_lanes, end):
    """Rows arrive in one place, and every slice of them goes on."""
    if ahead is None:
        return
    expected = (n_lanes, problem.c.stride)
    if end is not None or ahead.shape != expected or ahead.dtype != problem.dtype:
        raise ValueError(
            f"ahead is {ahead.dtype} {ahead.shape} where {problem.dtype} {expected} is needed, "
            "or end was given as well"
        )


def sums(SlicedCounts counts, RowProblem problem, start, double[:, :, ::1] out, *, int wanted,
         Py_ssize_t first, Py_ssize_t last, int n_threads):
    """Add what `step` needs, of slices first:last, to `out`: see `sums` in arithmetic.h."""
    check_design(counts, problem)
    cdef Py_ssize_t n_numbers = statistics_size(problem.c.n_components, wanted)
    if out.shape[0] != last - first or out.shape[1] < n_numbers or out.shape[2] != LANES:
        raise ValueError(f"out has shape {(out.shape[0], out.shape[1], out.shape[2])}")
    if not 0 <= first <= last <= counts.n_slices:
        raise ValueError(f"no slices {first}:{last} among {counts.n_slices}")
    cdef _Rows all_rows = _Rows(problem, counts.n_slices, start, None)
    cdef size_t size = nmfscale_visit_bytes(problem.c.n_components, problem.dtype.itemsize)
    cdef char *memory = workspace(size, n_threads)
    cdef Py_ssize_t s
    for s in prange(first, last, nogil=True, schedule="dynamic", chunksize=2,
                    num_threads=n_threads):
        run_sums(counts, problem, all_rows, s, wanted, &out[s - first, 0, 0],
                 piece(memory, size, threadid()))
    free(memory)


cdef void run_sums(SlicedCounts counts, RowProblem problem, _Rows rows, Py_ssize_t s, int wanted,
                   double *out, char *memory) noexcept nogil:
    cdef slice_counts x
    cdef slice_rows r
    counts.slice(s, &x)
    rows.slice(s, &r)
    problem.kernels.sums(&problem.c, &x, &r, wanted, out, memory)


def step(RowProblem problem, const double[:, :, ::1] sums, start, end, *, int wanted,
         Py_ssize_t first, int n_threads, Ahead ahead=None, **rows):
    """The step of `visit` for slices first:first + len(sums), from sums over all blocks."""
    check_ahead(ahead, problem, len(start), end)
    cdef Py_ssize_t s, n = sums.shape[0]
    if sums.shape[2] != LANES or sums.shape[1] < statistics_size(problem.c.n_components, wanted):
        raise ValueError(f"sums have shape {(sums.shape[0], sums.shape[1], sums.shape[2])}")
    cdef _Rows all_rows = _Rows(problem, len(start) // LANES, start, end, **rows)
    if first + n > len(start) // LANES or (
            wanted == DIAGONAL and not problem.c.correlation and all_rows.n_kept < first + n):
        raise ValueError(f"slices {first}:{first + n} have no rows, or no kept curvature")
    cdef size_t size = nmfscale_visit_bytes(problem.c.n_components, problem.dtype.itemsize)
    cdef char *memory = workspace(size + all_rows.row_bytes, n_threads)
    for s in prange(n, nogil=True, schedule="static", num_threads=n_threads):
        run_step(problem, &sums[s, 0, 0], all_rows, ahead, first + s, wanted, size,
                 piece(memory, size + all_rows.row_bytes, threadid()))
    free(memory)


cdef void run_step(RowProblem problem, const double *sums, _Rows rows, Ahead ahead, Py_ssize_t s,
                   int wanted, size_t size, char *memory) noexcept nogil:
    cdef slice_rows r
    rows.slice(s, &r)
    if ahead is not None:
        r.end = memory + size
    problem.kernels.step(&problem.c, sums, &r, wanted, memory)
    if ahead is not None:
        ahead.go_and_keep(problem, s, <const char *>r.end)


def extrapolate(RowProblem problem, now, Ahead ahead, *, int n_threads):
    """Go on from `now`, for rows that were moved before the momentum was known."""
    cdef Py_ssize_t s, n_slices = len(now) // LANES
    cdef const char *first = <const char *>address(now, problem.dtype, ahead.shape, "now")
    check_ahead(ahead, problem, len(now), None)
    for s in prange(n_slices, nogil=True, schedule="static", num_threads=n_threads):
        ahead.go(problem, s, first + s * ahead.bytes_each)


def correlations(SlicedCounts counts, RowProblem problem, start, double[:, ::1] out, *,
                 Py_ssize_t every, int n_threads):
    """Of every so-many-th slice, its rows' correlations of curvature, and their weight, to `out`.

    One row of `out` a slice: the packed correlations, weighted by the rows' totals, and the sum of
    the weights.
    """
    cdef Py_ssize_t n_sampled = (counts.n_slices + every - 1) // every
    if out.shape[0] != n_sampled or out.shape[1] != kept_size(problem.c.n_components) + 1:
        raise ValueError(f"out has shape {(out.shape[0], out.shape[1])}")
    values(problem.kernels.correlations, counts, problem, start, &out[0, 0], out.shape[1], every,
           n_threads)


def gather_dot(SlicedCounts counts, RowProblem problem, start, double[::1] out, *, int n_threads):
    """Sum of expected counts over the nonzeros of every row: no other kernel can be faster."""
    if out.shape[0] != counts.n_slices * LANES:
        raise ValueError("out needs one entry a row")
    values(problem.kernels.gather_dot, counts, problem, start, &out[0], LANES, 1, n_threads)


cdef int values(values_kernel kernel, SlicedCounts counts, RowProblem problem, start, double *out,
                Py_ssize_t n_each, Py_ssize_t every, int n_threads) except -1:
    """Run a kernel that writes `n_each` numbers for a slice on every so-many-th slice."""
    check_design(counts, problem)
    cdef _Rows all_rows = _Rows(problem, counts.n_slices, start, None)
    cdef size_t size = nmfscale_visit_bytes(problem.c.n_components, problem.dtype.itemsize)
    cdef char *memory = workspace(size, n_threads)
    cdef Py_ssize_t i
    for i in prange((counts.n_slices + every - 1) // every, nogil=True, schedule="dynamic",
                    num_threads=n_threads):
        values_of_slice(kernel, counts, problem, all_rows, i * every, out + i * n_each,
                        piece(memory, size, threadid()))
    free(memory)
    return 0


cdef void values_of_slice(values_kernel kernel, SlicedCounts counts, RowProblem problem,
                          _Rows rows, Py_ssize_t s, double *out, char *memory) noexcept nogil:
    cdef slice_counts x
    cdef slice_rows r
    counts.slice(s, &x)
    rows.slice(s, &r)
    kernel(&problem.c, &x, &r, out, memory)
