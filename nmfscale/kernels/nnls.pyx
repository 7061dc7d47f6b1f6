"""Non-negative least squares of many right-hand sides with one Gram matrix, by active sets.

The method of Lawson and Hanson on normal equations, ``min x'Gx / 2 - b'x, x >= 0``. With P the
passive set, in the order in which its members came, and G_PP = L L', three things are kept:

    U = L^-1 G_P  (of all T columns),   y = L^-1 b_P,   w = b - U'y  (the negative gradient).

A member that comes in adds a row to U, T numbers for each member before; one that goes out is
rotated to the last row, which is taken off. So nothing is ever factored again.
"""
from cython.parallel cimport prange, threadid
from libc.math cimport fabs, sqrt
from libc.stdlib cimport free, malloc
from libc.string cimport memset

cdef enum:
    GROUP = 8                    # columns that are read together: those of one cache line

# Shares of the largest right-hand side below which a gradient is 0, and of a diagonal entry of G
# below which a column depends on the passive ones.
cdef double ENTRY = 1e-13, DEPENDENT = 1e-14


cdef struct active_set:
    int n, n_passive
    const double *gram
    double *inverse              # of the diagonal of G
    double *U                    # (T, T) rows of U
    double *b
    double *y
    double *w
    double *x                    # of the passive set, in its order
    double *solved
    int *passive
    char *state                  # 0 out, 1 passive, 2 kept out for now


def nnls(const double[:, ::1] gram, double[:, ::1] values, double[::1] gain, double[::1] kkt, *,
         int n_threads):
    """Solve for every column of `values` (T, m), b, in place.

    Of each, `gain` is b'x, twice what the objective fell by, and `kkt` the largest violation of the
    conditions of an optimum: of w_k <= 0, and of w_k = 0 where x_k > 0.
    """
    cdef Py_ssize_t g, T = gram.shape[0], m = values.shape[1]
    if gram.shape[1] != T or values.shape[0] != T or gain.shape[0] != m or kkt.shape[0] != m:
        raise ValueError(
            f"gram has shape {(gram.shape[0], gram.shape[1])}, values "
            f"{(values.shape[0], values.shape[1])}"
        )
    cdef size_t size = (T * (T + 5 + GROUP) + 8) * sizeof(double) + T * (sizeof(int) + 1) + 64
    cdef char *memory = <char *>malloc(size * n_threads)
    if memory == NULL:
        raise MemoryError(f"no memory for the work of {n_threads} threads: {size} bytes each")
    for g in prange((m + GROUP - 1) // GROUP, nogil=True, schedule="dynamic", chunksize=4,
                    num_threads=n_threads, use_threads_if=m > 4 * GROUP):
        solve_group(gram, values, &gain[0], &kkt[0], g * GROUP, min(m, (g + 1) * GROUP),
                    memory + size * threadid())
    free(memory)


cdef void solve_group(const double[:, ::1] gram, double[:, ::1] values, double *gain, double *kkt,
                      Py_ssize_t first, Py_ssize_t last, char *memory) noexcept nogil:
    cdef Py_ssize_t T = gram.shape[0], j, k
    cdef active_set a
    a.n, a.gram = <int>T, &gram[0, 0]
    a.U = <double *>memory
    a.y, a.w, a.x, a.solved = a.U + T * T, a.U + T * (T + 1), a.U + T * (T + 2), a.U + T * (T + 3)
    a.inverse = a.U + T * (T + 4)
    cdef double *group = a.U + T * (T + 5)
    a.passive = <int *>(group + T * GROUP)
    a.state = <char *>(a.passive + T)
    for k in range(T):
        a.inverse[k] = 1 / gram[k, k] if gram[k, k] > 0 else 0
        for j in range(first, last):
            group[(j - first) * T + k] = values[k, j]
    for j in range(first, last):
        a.b = group + (j - first) * T
        solve(&a)
        finish(&a, &gain[j], &kkt[j])
    for k in range(T):
        for j in range(first, last):
            values[k, j] = group[(j - first) * T + k]


cdef void solve(active_set *a) noexcept nogil:
    """Let the member with the steepest gradient in, until there is none."""
    cdef int k, _turn, best
    cdef double tolerance = 0, steepest, slope
    a.n_passive = 0
    memset(a.state, 0, a.n)
    for k in range(a.n):
        a.w[k] = a.b[k]
        tolerance = max(tolerance, ENTRY * fabs(a.b[k]))
    for _turn in range(20 * a.n):
        best, steepest = -1, 0
        for k in range(a.n):
            if a.state[k] == 0 and a.w[k] > tolerance:
                slope = a.w[k] * a.w[k] * a.inverse[k]
                if slope > steepest:
                    best, steepest = k, slope
        if best < 0:
            break
        if not enter(a, best):
            a.state[best] = 2
            continue
        step(a)


cdef bint enter(active_set *a, int k) noexcept nogil:
    """Take a member in, unless it is a combination of those that are."""
    cdef int b, i, j, q, n = a.n, row = a.n_passive
    cdef double[GROUP] some                               # which no array can be, for the compiler
    cdef double *u = a.U + row * n
    cdef const double *other
    cdef double factor
    for b in range(n // GROUP):
        j = b * GROUP
        for i in range(GROUP):
            some[i] = a.gram[k * n + j + i]
        for i in range(row):
            other, factor = a.U + i * n + j, a.U[i * n + k]
            for q in range(GROUP):
                some[q] -= factor * other[q]
        for i in range(GROUP):
            u[j + i] = some[i]
    for j in range(n - n % GROUP, n):
        u[j] = a.gram[k * n + j]
        for i in range(row):
            u[j] -= a.U[i * n + k] * a.U[i * n + j]
    if not u[k] > DEPENDENT * a.gram[k * n + k]:
        return False
    factor = 1 / sqrt(u[k])
    for j in range(n):
        u[j] *= factor
    a.y[row] = a.w[k] * factor
    for j in range(n):
        a.w[j] -= a.y[row] * u[j]
    a.passive[row], a.x[row], a.state[k] = k, 0, 1
    a.n_passive += 1
    return True


cdef void step(active_set *a) noexcept nogil:
    """Go to the optimum of the passive set; whoever would be negative on the way goes out."""
    cdef int i, k, newest = a.passive[a.n_passive - 1]
    cdef double length, most
    while True:
        back_substitute(a, a.y, a.solved)
        most, k = 2, -1
        for i in range(a.n_passive):
            if a.solved[i] <= 0:
                length = a.x[i] / (a.x[i] - a.solved[i]) if a.x[i] > 0 else 0
                if length < most:
                    most, k = length, i
        if k < 0:
            break
        for i in range(a.n_passive):
            a.x[i] += most * (a.solved[i] - a.x[i])
        a.x[k] = 0
        for i in range(a.n_passive - 1, -1, -1):
            if a.x[i] <= 0 and a.solved[i] <= 0:
                leave(a, i)
    for i in range(a.n_passive):
        a.x[i] = a.solved[i]
    if a.state[newest] == 1:
        for k in range(a.n):
            a.state[k] &= 1
    else:                        # rounding alone let it in: not again before something has changed
        a.state[newest] = 2


cdef void back_substitute(active_set *a, const double *y, double *out) noexcept nogil:
    """Solve L' out = y."""
    cdef int i, j
    cdef const double *u
    cdef double total
    for i in range(a.n_passive - 1, -1, -1):
        u, total = a.U + i * a.n, y[i]
        for j in range(i + 1, a.n_passive):
            total -= u[a.passive[j]] * out[j]
        out[i] = total / u[a.passive[i]]


cdef void leave(active_set *a, int place) noexcept nogil:
    """Let the member at a place go out: its row is rotated to the last."""
    cdef int i, j, n = a.n
    cdef double *u
    cdef double *v
    cdef double c, s, length, t
    a.state[a.passive[place]] = 0
    for i in range(place, a.n_passive - 1):
        u, v = a.U + i * n, a.U + (i + 1) * n
        a.passive[i], a.x[i], a.solved[i] = a.passive[i + 1], a.x[i + 1], a.solved[i + 1]
        c, s = u[a.passive[i]], v[a.passive[i]]
        length = sqrt(c * c + s * s)
        c, s = c / length, s / length
        for j in range(n):
            t = u[j]
            u[j] = c * t + s * v[j]
            v[j] = c * v[j] - s * t
        t = a.y[i]
        a.y[i], a.y[i + 1] = c * t + s * a.y[i + 1], c * a.y[i + 1] - s * t
    a.n_passive -= 1
    u, t = a.U + a.n_passive * n, a.y[a.n_passive]
    for j in range(n):
        a.w[j] += t * u[j]


cdef void gradient(active_set *a) noexcept nogil:
    """w = b - G x, anew."""
    cdef int i, j
    cdef const double *g
    for j in range(a.n):
        a.w[j] = a.b[j]
    for i in range(a.n_passive):
        g = a.gram + a.passive[i] * a.n
        for j in range(a.n):
            a.w[j] -= a.x[i] * g[j]


cdef void finish(active_set *a, double *gain, double *kkt) noexcept nogil:
    """Refine x once, look at the conditions of an optimum, and write x over b."""
    cdef int i, j, k
    cdef double total
    gradient(a)
    for i in range(a.n_passive):                              # L y = w_P
        total = a.w[a.passive[i]]
        for j in range(i):
            total -= a.U[j * a.n + a.passive[i]] * a.y[j]
        a.y[i] = total / a.U[i * a.n + a.passive[i]]
    back_substitute(a, a.y, a.solved)
    for i in range(a.n_passive):
        if a.x[i] + a.solved[i] > 0:
            a.x[i] += a.solved[i]
    gradient(a)
    gain[0], kkt[0] = 0, 0
    for k in range(a.n):
        kkt[0] = max(kkt[0], fabs(a.w[k]) if a.state[k] == 1 else a.w[k])
    for i in range(a.n_passive):
        gain[0] += a.b[a.passive[i]] * a.x[i]
    memset(a.b, 0, a.n * sizeof(double))
    for i in range(a.n_passive):
        a.b[a.passive[i]] = a.x[i]
