"""Arguments of the loops over slices: counts, a row problem, row arrays, an extrapolation.

Constructors check shapes, dtypes and alignment once. The loops then read addresses and sizes
without Python objects. `operands.pyi` documents every argument.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint16_t, uintptr_t

from .levels cimport kernels_in_use
from .slices cimport (
    COUNT_FLOAT32, COUNT_FLOAT64, COUNT_UINT8, COUNT_UINT16, CURVATURE_FRESH, CURVATURE_STORE,
    CURVATURE_REUSE, CURVATURE_RESCALE, DIAGONAL, FULL, GRADIENT, GROUP, LANES, STEP_COLLAPSED,
    STEP_DIRICHLET, STEP_FACTOR, STEP_GAMMA, STEP_SQUARES, slice_extrapolation, slice_counts,
    slice_rows,
)

FRESH, STORE, REUSE, RESCALE = CURVATURE_FRESH, CURVATURE_STORE, CURVATURE_REUSE, CURVATURE_RESCALE
SUM_GRADIENT, SUM_FULL, SUM_DIAGONAL = GRADIENT, FULL, DIAGONAL
FACTOR, DIRICHLET, GAMMA, SQUARES = STEP_FACTOR, STEP_DIRICHLET, STEP_GAMMA, STEP_SQUARES
COLLAPSED = STEP_COLLAPSED
COUNT_KINDS = {("u", 1): COUNT_UINT8, ("u", 2): COUNT_UINT16,
               ("f", 4): COUNT_FLOAT32, ("f", 8): COUNT_FLOAT64}


def row_stride(int n_components):
    """Length of a factor's row in memory: `n_components` rounded up to a multiple of 4."""
    return (n_components + GROUP - 1) // GROUP * GROUP


def packed_size(int n_components):
    """Size of the packed lower triangle of one row's curvature: K (K + 1) / 2."""
    return n_components * (n_components + 1) // 2


def statistics_size(int n_components, int wanted):
    """Size of the statistics of one row that `sums` accumulates and `step` needs."""
    if wanted == FULL:
        return packed_size(n_components)
    return 2 * n_components if wanted == DIAGONAL else n_components


cdef const void *address(array, dtype, tuple shape, str name) except? NULL:
    """Return the address of a C-contiguous array's data; NULL for None."""
    if array is None:
        return NULL
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(
            f"{name}: expected C-contiguous {dtype} {shape}, got {array.dtype} {array.shape}"
        )
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    cdef const void *first = view.buf
    PyBuffer_Release(&view)                               # the caller keeps the array alive
    return first


cdef const void *aligned_address(array, dtype, tuple shape, str name) except? NULL:
    """Like `address`, and check the alignment that loads and stores of whole vectors need."""
    cdef const void *first = address(array, dtype, shape, name)
    if <uintptr_t>first % 64:
        raise ValueError(f"{name}: not aligned to 64 bytes")
    return first


cdef class SlicedCounts:
    """Counts in SELL-16: entry q of a slice holds one (index, count) pair for each of 16 lanes."""

    def __cinit__(self, index, count, offset, int64_t n_design, *, dense=None):
        self.offset, self.dense = offset, dense
        self.n_slices = self.offset.shape[0] - 1
        if dense is not None and len(dense) != self.n_slices:
            raise ValueError(f"dense has {len(dense)} entries for {self.n_slices} slices")
        size = int(self.offset[self.n_slices]) * LANES
        index_type = index.dtype.kind, index.itemsize
        count_type = count.dtype.kind, count.itemsize
        if index_type not in (("u", 2), ("i", 4)) or count_type not in COUNT_KINDS:
            raise ValueError(
                f"index {index.dtype} or count {count.dtype} is not a dtype of SELL-16 counts"
            )
        self.index = <const char *>address(index, index.dtype, (size,), "index")
        self.count = <const char *>address(count, count.dtype, (size,), "count")
        self.index_bytes, self.count_bytes = index.itemsize, count.itemsize
        self.count_kind = COUNT_KINDS[count_type]
        self.keep = (index, count, offset, dense)
        self.n_design = n_design

    cdef int64_t longest(self) noexcept:
        """Number of entries of the longest slice."""
        cdef int64_t most = 0
        cdef Py_ssize_t s
        for s in range(self.n_slices):
            most = max(most, self.offset[s + 1] - self.offset[s])
        return most

    cdef void slice(self, Py_ssize_t s, slice_counts *out) noexcept nogil:
        out.index = self.index + self.offset[s] * LANES * self.index_bytes
        out.count = self.count + self.offset[s] * LANES * self.count_bytes
        out.index_bytes = self.index_bytes
        out.count_kind = self.count_kind
        out.n_entries = self.offset[s + 1] - self.offset[s]
        out.dense = (
            self.dense is not None and self.dense[s] and out.n_entries <= self.n_design
        )


cdef class RowProblem:
    """The held factor `design` (n_cols, stride), float32 or float64, and options of the kernels.

    Weights of the rows of `design` are multiplied into the counts: see `SellBlock.weighted`.

    With `step` DIRICHLET or GAMMA, the rows are shapes of mean-field posteriors with prior shapes
    `alpha` (stride,). An update takes up to `inner_steps` steps; a row stops when its shapes change
    by less than `tolerance` on average. `total` holds the rates of GAMMA posteriors, and `rate`
    adds to them for each row. DIRICHLET needs no `total`.

    With `step` COLLAPSED, the rows are expected counts of topics with prior `alpha`, `total` are
    factors of the topics, and `held_prior` (stride,) belongs to `design`: see collapsed.h.

    With `step` SQUARES, the rows solve least-squares problems; `gram` is D'D (K, K) of the design
    D.

    In `descend_jointly` the rows also explain labels by `labels` (n_labels, stride): by least
    squares if `label_squares` is true, else by a divergence.
    """

    def __cinit__(self, design, total, int n_components, *, moves=None, double floor=1e-10,
                  int em_steps=0, int newton_steps=0, int64_t em_longest=1 << 62,
                  int qp_sweeps=10, double qp_tolerance=1e-4, double margin=1.0,
                  correlation=None, bint guarded=False, int step=STEP_FACTOR, alpha=None,
                  int inner_steps=1, double tolerance=0.0, gram=None, labels=None,
                  bint label_squares=False, held_prior=None):
        self.dtype = design.dtype
        self.kernels = (
            &kernels_in_use().f32 if self.dtype == "float32" else &kernels_in_use().f64
        )
        self.c.n_components, self.c.stride = n_components, row_stride(n_components)
        shape = (design.shape[0], self.c.stride)
        if design.shape[0] * self.c.stride >= 1 << 31:    # positions in `design` are int32
            raise ValueError(
                f"a factor of {design.shape[0]:,} rows and {n_components:,} components has more "
                "than 2**31 entries: fit fewer components, or fewer features or samples at a time"
            )
        self.c.design = aligned_address(design, self.dtype, shape, "design")
        self.c.total = address(total, self.dtype, (self.c.stride,), "total")
        self.c.moves = address(moves, self.dtype, (self.c.stride,), "moves")
        self.c.floor, self.c.guarded = floor, guarded
        self.c.em_steps, self.c.newton_steps = em_steps, newton_steps
        self.c.em_longest = em_longest
        self.c.qp_sweeps, self.c.qp_tolerance, self.c.margin = qp_sweeps, qp_tolerance, margin
        self.c.correlation = address(
            correlation, self.dtype, (n_components, n_components), "correlation"
        )
        self.c.alpha = address(alpha, self.dtype, (self.c.stride,), "alpha")
        self.c.held_prior = address(held_prior, self.dtype, (self.c.stride,), "held_prior")
        self.c.gram = address(gram, self.dtype, (n_components, n_components), "gram")
        self.c.n_labels = 0 if labels is None else len(labels)
        self.c.labels = address(labels, self.dtype, (self.c.n_labels, self.c.stride), "labels")
        self.c.label_squares = label_squares
        if (step == STEP_SQUARES) != (gram is not None):
            raise ValueError("gram is needed by step SQUARES, and by no other step")
        if step in (STEP_DIRICHLET, STEP_GAMMA) and (alpha is None or inner_steps < 1 or (
                total is None and step == STEP_GAMMA)):
            raise ValueError(
                "a mean-field step needs alpha and inner_steps >= 1; GAMMA also needs total"
            )
        if step == STEP_COLLAPSED and (alpha is None or total is None or inner_steps < 1):
            raise ValueError("a collapsed step needs alpha, total and inner_steps >= 1")
        if held_prior is not None and step != STEP_COLLAPSED:
            raise ValueError("held_prior is for step COLLAPSED only")
        self.c.step, self.c.inner_steps, self.c.tolerance = step, inner_steps, tolerance
        self.keep = (design, total, moves, correlation, alpha, gram, labels, held_prior)


cdef class RowBuffers:
    """Input and output arrays with one entry for each row, or for each slice of rows.

    A step of one kind refuses arrays that only other kinds read or write.
    """

    def __cinit__(self, RowProblem problem, Py_ssize_t n_slices, start, end, pseudo=None,
                  rate=None, curvature=None, int curvature_mode=CURVATURE_FRESH, loglik_start=None,
                  kkt_start=None, loglik_end=None, kkt_end=None, theta=None, log_end=None,
                  prior_end=None, up=None, down=None, quadratic=None, squares=None,
                  scale=None):
        if problem.c.step == STEP_SQUARES:
            unused = [theta, log_end, prior_end, curvature, kkt_start, kkt_end]
        elif problem.c.step == STEP_FACTOR:
            unused = [theta, log_end, prior_end]
        elif problem.c.step == STEP_COLLAPSED:
            unused = [theta, log_end, prior_end, pseudo, rate, curvature, kkt_start, kkt_end]
            unused += [loglik_end]
        else:
            unused = [pseudo, curvature, kkt_start, kkt_end]
            unused += [rate] if problem.c.step == STEP_DIRICHLET else []
        if problem.c.step != STEP_COLLAPSED:
            unused.append(squares)
        if problem.c.step != STEP_SQUARES:
            unused.append(scale)
        if any(array is not None for array in unused):
            raise ValueError("an array is given that this kind of step neither reads nor writes")
        shape = (n_slices * LANES, problem.c.stride)
        self.first.start = aligned_address(start, problem.dtype, shape, "start")
        self.first.end = <void *>aligned_address(end, problem.dtype, shape, "end")
        self.first.pseudo = aligned_address(pseudo, problem.dtype, shape, "pseudo")
        self.first.rate = aligned_address(rate, problem.dtype, shape, "rate")
        if pseudo is not None and rate is None:
            raise ValueError("pseudo needs rate")
        per_row = shape[:1]
        self.first.scale = <const double *>address(scale, "float64", per_row, "scale")
        self.first.loglik_start = <double *>address(
            loglik_start, "float64", per_row, "loglik_start"
        )
        self.first.kkt_start = <double *>address(kkt_start, "float64", per_row, "kkt_start")
        self.first.loglik_end = <double *>address(loglik_end, "float64", per_row, "loglik_end")
        self.first.kkt_end = <double *>address(kkt_end, "float64", per_row, "kkt_end")
        self.first.theta = <void *>aligned_address(theta, problem.dtype, shape, "theta")
        self.first.log_end = <void *>aligned_address(log_end, problem.dtype, shape, "log_end")
        self.first.squares = <void *>aligned_address(squares, problem.dtype, shape, "squares")
        self.first.prior_end = <double *>address(prior_end, "float64", per_row, "prior_end")
        self.row_bytes = LANES * problem.c.stride * problem.dtype.itemsize
        label_shape = (n_slices, problem.c.n_labels, LANES)
        if problem.c.n_labels and (up is None or down is None):
            raise ValueError("labels need up and down")
        self.first.up = aligned_address(up, problem.dtype, label_shape, "up")
        self.first.down = aligned_address(down, problem.dtype, label_shape, "down")
        self.label_bytes = LANES * problem.c.n_labels * problem.dtype.itemsize
        packed = packed_size(problem.c.n_components)
        self.first.quadratic = aligned_address(
            quadratic, problem.dtype, (n_slices, packed, LANES), "quadratic"
        )
        self.quadratic_bytes = LANES * packed * problem.dtype.itemsize
        self.n_curvature = 0 if curvature is None else min(len(curvature), n_slices)
        if curvature is not None:
            size = packed_size(problem.c.n_components)
            self.first.curvature = <uint16_t *>address(
                curvature, "uint16", (len(curvature), size, LANES), "curvature"
            )
            self.curvature_bytes = size * LANES * sizeof(uint16_t)
        self.first.curvature_mode = curvature_mode

    cdef void slice(self, Py_ssize_t s, slice_rows *out) noexcept nogil:
        cdef slice_rows *a = &self.first
        out.start = <const char *>a.start + s * self.row_bytes if a.start else NULL
        out.end = <char *>a.end + s * self.row_bytes if a.end else NULL
        out.pseudo = <const char *>a.pseudo + s * self.row_bytes if a.pseudo else NULL
        out.rate = <const char *>a.rate + s * self.row_bytes if a.rate else NULL
        out.up = <const char *>a.up + s * self.label_bytes if a.up else NULL
        out.down = <const char *>a.down + s * self.label_bytes if a.down else NULL
        out.quadratic = (
            <const char *>a.quadratic + s * self.quadratic_bytes if a.quadratic else NULL
        )
        out.curvature = NULL
        if s < self.n_curvature:
            out.curvature = <uint16_t *>(<char *>a.curvature + s * self.curvature_bytes)
        out.curvature_mode = a.curvature_mode
        out.scale = a.scale + s * LANES if a.scale else NULL
        out.loglik_start = a.loglik_start + s * LANES if a.loglik_start else NULL
        out.kkt_start = a.kkt_start + s * LANES if a.kkt_start else NULL
        out.loglik_end = a.loglik_end + s * LANES if a.loglik_end else NULL
        out.kkt_end = a.kkt_end + s * LANES if a.kkt_end else NULL
        out.theta = <char *>a.theta + s * self.row_bytes if a.theta else NULL
        out.log_end = <char *>a.log_end + s * self.row_bytes if a.log_end else NULL
        out.squares = <char *>a.squares + s * self.row_bytes if a.squares else NULL
        out.prior_end = a.prior_end + s * LANES if a.prior_end else NULL


cdef class Extrapolation:
    """Extrapolated rows: ahead = max(now + momentum (now - scale before), leaves now, floor).

    `now` is the result of the present update and `before` that of the previous one. In place of
    `before`, `start` and `lag` may be given: the update began at `start`, which is `lag`
    (bfloat16, stored as uint16) beyond `before`; `lag` is replaced by ahead - now. `best` (float32,
    or the dtype of the rows) receives a copy of `start`. `ahead` may share the memory of `before`
    or of `start`. The first `n_rows` lanes hold rows. `column_sums` (n_slices, 2, stride) receives
    the sums of each slice's rows, of `ahead` first, then of `now`, weighted by `weight` if given.
    """

    def __cinit__(self, int64_t n_rows, ahead, double momentum, scale,
                  double[:, :, ::1] column_sums, double[::1] change, int64_t[::1] zeros, *,
                  before=None, start=None, lag=None, best=None, double leaves=0, weight=None):
        cdef Py_ssize_t n_slices = column_sums.shape[0], stride = column_sums.shape[2]
        self.shape, self.dtype = (n_slices * LANES, stride), ahead.dtype
        needs_start = lag is not None or best is not None
        if before is None and lag is None or start is None and needs_start:
            raise ValueError("give before, or start and lag; best needs start")
        self.first.ahead = <void *>address(ahead, self.dtype, self.shape, "ahead")
        self.first.before = address(before, self.dtype, self.shape, "before")
        self.first.start = address(start, self.dtype, self.shape, "start")
        self.first.lag = <uint16_t *>address(lag, "uint16", self.shape, "lag")
        self.first.best_is_float = best is not None and best.dtype == "float32"
        best_type = "float32" if self.first.best_is_float else self.dtype
        self.first.best = <void *>address(best, best_type, self.shape, "best")
        self.first.weight = <const double *>address(weight, "float64", self.shape[:1], "weight")
        self.scale = address(scale, self.dtype, (stride,), "scale")
        if (column_sums.shape[1], change.shape[0], zeros.shape[0]) != (2, n_slices, n_slices):
            raise ValueError("column_sums, change and zeros need one entry for each slice")
        self.n_rows, self.momentum, self.leaves = n_rows, momentum, leaves
        self.keep = (ahead, before, start, lag, best, scale, weight)
        self.column_sums, self.change, self.zeros = column_sums, change, zeros
        self.numbers_each = LANES * stride
        self.bytes_each = self.numbers_each * ahead.itemsize

    cdef void apply(self, RowProblem problem, Py_ssize_t s, const char *now) noexcept nogil:
        cdef const slice_extrapolation *a = &self.first
        cdef slice_extrapolation to
        cdef Py_ssize_t at = s * self.bytes_each, at_float = s * self.numbers_each * sizeof(float)
        to.ahead = <char *>a.ahead + at
        to.before = <const char *>a.before + at if a.before else NULL
        to.start = <const char *>a.start + at if a.start else NULL
        to.lag = a.lag + s * self.numbers_each if a.lag else NULL
        to.best = <char *>a.best + (at_float if a.best_is_float else at) if a.best else NULL
        to.best_is_float = a.best_is_float
        to.weight = a.weight + s * LANES if a.weight else NULL
        to.column_sums = &self.column_sums[s, 0, 0]
        to.change, to.zeros = &self.change[s], &self.zeros[s]
        problem.kernels.extrapolate(
            &problem.c, <int>max(0, min(LANES, self.n_rows - s * LANES)), now, &to, self.momentum,
            self.leaves, self.scale
        )
