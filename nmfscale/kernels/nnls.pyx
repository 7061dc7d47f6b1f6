"""Non-negative least squares of many right-hand sides with one Gram matrix, by active sets.

The method of Lawson and Hanson on the normal equations, ``min x'Gx / 2 - b'x, x >= 0``.  The first
passive set holds the variables that are positive after some sweeps of coordinate descent in single
precision; few of these are wrong.  With P the passive set, in the order in which its variables
entered, the solver maintains

    G_PP = U'U  and  y = U'^-1 b_P.

A variable that enters adds a column to U; one that leaves removes a column, and rotations make U
triangular again.  So G_PP is never factored anew.  The gradient is recomputed from x in each
iteration.
"""
from cython.parallel cimport prange, threadid
from libc.math cimport fabs, sqrt
from libc.stdlib cimport free, malloc
from libc.string cimport memmove, memset

import numpy as np

cdef enum:
    GROUP = 8                    # columns that are read together: those of one cache line
    SWEEPS = 10                  # largest number of sweeps of coordinate descent

cdef enum:                       # states of a variable
    ACTIVE = 0                   # at zero; may enter the passive set
    PASSIVE = 1                  # in the passive set
    BARRED = 2                   # at zero; may not enter until the passive set has changed

# A gradient below this share of the largest right-hand side counts as 0.
cdef double ENTRY = 1e-13
# A column depends on the passive ones if its pivot is below this share of its diagonal entry of G.
cdef double DEPENDENT = 1e-14


cdef struct active_set:
    int n, n_passive
    const double *gram
    const double *inverse        # of the diagonal of G
    double *U                    # (T, T); the upper triangle of the passive set is used
    double *b
    double *y
    double *w                    # b - G x
    double *x                    # values of the passive variables, in the order of `passive`
    double *solved               # unconstrained optimum of the passive variables
    double *column               # new column of U
    int *passive
    char *state                  # ACTIVE, PASSIVE or BARRED


def nnls(const double[:, ::1] gram, double[:, ::1] values, double[::1] gain, double[::1] kkt, *,
         int n_threads):
    """Replace every column b of `values` (T, m) by its solution x.

    `gain` (m,) receives b'x, twice the decrease of the objective from x = 0. `kkt` (m,) receives
    the largest violation of the optimality conditions: w_k <= 0, and w_k = 0 where x_k > 0, with
    w = b - G x.
    """
    cdef Py_ssize_t g, T = gram.shape[0], m = values.shape[1]
    if gram.shape[1] != T or values.shape[0] != T or gain.shape[0] != m or kkt.shape[0] != m:
        raise ValueError(
            f"gram has shape {(gram.shape[0], gram.shape[1])}, values "
            f"{(values.shape[0], values.shape[1])}"
        )
    diagonal = np.diag(gram)
    inverse = np.divide(1, diagonal, out=np.zeros(T), where=diagonal > 0)
    root = np.sqrt(inverse)
    cdef const double[::1] inverses = inverse, roots = root
    scaled = root[:, None] * gram * root
    cdef const float[:, ::1] unit = scaled.astype(np.float32)
    cdef size_t size = ((T * (T + 5 + GROUP) + 8) * sizeof(double)
                        + T * (2 * sizeof(float) + sizeof(int) + 1) + 64)
    cdef char *memory = <char *>malloc(size * n_threads)
    if memory == NULL:
        raise MemoryError(
            f"no memory for the scratch space of {n_threads} threads: {size} bytes each"
        )
    for g in prange((m + GROUP - 1) // GROUP, nogil=True, schedule="dynamic", chunksize=4,
                    num_threads=n_threads, use_threads_if=m > 4 * GROUP):
        solve_group(gram, inverses, roots, unit, values, &gain[0], &kkt[0], g * GROUP,
                    min(m, (g + 1) * GROUP), memory + size * threadid())
    free(memory)


cdef void solve_group(const double[:, ::1] gram, const double[::1] inverse,
                      const double[::1] roots, const float[:, ::1] unit,
                      double[:, ::1] values, double *gain, double *kkt,
                      Py_ssize_t first, Py_ssize_t last, char *memory) noexcept nogil:
    cdef Py_ssize_t T = gram.shape[0], j, k
    cdef active_set a
    a.n, a.gram, a.inverse = <int>T, &gram[0, 0], &inverse[0]
    a.U = <double *>memory
    a.y, a.w, a.x, a.solved = a.U + T * T, a.U + T * (T + 1), a.U + T * (T + 2), a.U + T * (T + 3)
    a.column = a.U + T * (T + 4)
    cdef double *group = a.U + T * (T + 5)
    cdef float *sides = <float *>(group + T * GROUP)
    a.passive = <int *>(sides + T * 2)
    a.state = <char *>(a.passive + T)
    for k in range(T):
        for j in range(first, last):
            group[(j - first) * T + k] = values[k, j]
    for j in range(first, last):
        a.b = group + (j - first) * T
        descend(&a, &roots[0], &unit[0, 0], sides, sides + T)
        solve(&a, &kkt[j])
        write_solution(&a, &gain[j])
    for k in range(T):
        for j in range(first, last):
            values[k, j] = group[(j - first) * T + k]


cdef void descend(active_set *a, const double *roots, const float *unit, float *w,
                  float *x) noexcept nogil:
    """Mark the variables that are positive after sweeps of coordinate descent on unit columns."""
    cdef int j, k, _sweep, n = a.n
    cdef const float *g
    cdef float now, moved
    cdef double largest = 0
    cdef bint same
    for k in range(n):
        largest = max(largest, fabs(a.b[k] * roots[k]))
    memset(a.state, ACTIVE, n)
    if largest == 0:
        return
    for k in range(n):
        w[k], x[k] = <float>(a.b[k] * roots[k] / largest), 0
    for _sweep in range(SWEEPS):
        same = True
        for k in range(n):
            now = max(x[k] + w[k], <float>0)
            moved = now - x[k]
            if moved == 0:
                continue
            same &= (now > 0) == (x[k] > 0)
            g, x[k] = unit + k * n, now
            for j in range(n):
                w[j] -= moved * g[j]
        if same:
            break
    for k in range(n):
        a.state[k] = PASSIVE if x[k] > 0 else ACTIVE


cdef void solve(active_set *a, double *kkt) noexcept nogil:
    """Add the marked variables to the passive set, then one at a time the steepest descent."""
    cdef int k, _turn, best
    cdef double largest = 0, steepest, slope
    a.n_passive = 0
    for k in range(a.n):
        largest = max(largest, fabs(a.b[k]))
        a.state[k] = PASSIVE if a.state[k] == PASSIVE and enter(a, k) else ACTIVE
    if a.n_passive:
        step(a)
        unbar(a)                 # many entered at once: the last of them is not to blame
    kkt[0] = gradient(a)
    for _turn in range(20 * a.n):
        best, steepest = -1, 0
        for k in range(a.n):
            if a.state[k] == ACTIVE and a.w[k] > ENTRY * largest:
                slope = a.w[k] * a.w[k] * a.inverse[k]
                if slope > steepest:
                    best, steepest = k, slope
        if best < 0:
            break
        if not enter(a, best):
            a.state[best] = BARRED
            continue
        step(a)
        kkt[0] = gradient(a)
    if kkt[0] > ENTRY * largest:
        refine(a)
        kkt[0] = gradient(a)


cdef bint enter(active_set *a, int k) noexcept nogil:
    """Add a variable to the passive set, unless its column depends on theirs: ``U'u = g``."""
    cdef int i, j, n = a.n, p = a.n_passive
    cdef const double *g = a.gram + k * n
    cdef const double *u
    cdef double *new = a.column
    cdef double pivot, factor
    for i in range(p):
        new[i] = g[a.passive[i]]
    for i in range(p):
        u = a.U + i * n
        factor = new[i] = new[i] / u[i]
        for j in range(i + 1, p):
            new[j] -= factor * u[j]
    pivot = g[k] - dot(new, new, p)
    if not pivot > DEPENDENT * g[k]:
        return False
    for i in range(p):
        a.U[i * n + p] = new[i]
    pivot = a.U[p * n + p] = sqrt(pivot)
    a.y[p] = (a.b[k] - dot(new, a.y, p)) / pivot
    a.passive[p], a.x[p], a.state[k] = k, 0, PASSIVE
    a.n_passive += 1
    return True


cdef inline double dot(const double *u, const double *v, int n) noexcept nogil:
    """Return the inner product, accumulated in GROUP interleaved sums."""
    cdef double[GROUP] some
    cdef double total = 0
    cdef int b, i
    for i in range(GROUP):
        some[i] = 0
    for b in range(n // GROUP):
        for i in range(GROUP):
            some[i] += u[b * GROUP + i] * v[b * GROUP + i]
    for i in range(n - n % GROUP, n):
        total += u[i] * v[i]
    return total + (((some[0] + some[4]) + (some[1] + some[5]))
                    + ((some[2] + some[6]) + (some[3] + some[7])))


cdef void step(active_set *a) noexcept nogil:
    """Move to the optimum of the passive set; variables that reach zero on the way leave it."""
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
    if a.state[newest] == PASSIVE:
        unbar(a)
    else:                        # it entered because of rounding: bar it until the set changes
        a.state[newest] = BARRED


cdef void unbar(active_set *a) noexcept nogil:
    """Let barred variables enter again."""
    cdef int k
    for k in range(a.n):
        if a.state[k] == BARRED:
            a.state[k] = ACTIVE


cdef void back_substitute(active_set *a, const double *y, double *out) noexcept nogil:
    """Solve U out = y."""
    cdef int i, p = a.n_passive
    cdef const double *u
    for i in range(p - 1, -1, -1):
        u = a.U + i * a.n
        out[i] = (y[i] - dot(u + i + 1, out + i + 1, p - 1 - i)) / u[i]


cdef void leave(active_set *a, int place) noexcept nogil:
    """Remove the variable at position `place` of the passive set, and make U triangular again."""
    cdef int i, j, n = a.n, last = a.n_passive - 1
    cdef double *u
    cdef double *v
    cdef double c, s, length, t
    a.state[a.passive[place]] = ACTIVE
    for i in range(last + 1):
        j = max(i - 1, place)
        memmove(a.U + i * n + j, a.U + i * n + j + 1, (last - j) * sizeof(double))
    for i in range(place, last):
        u, v = a.U + i * n, a.U + (i + 1) * n
        a.passive[i], a.x[i], a.solved[i] = a.passive[i + 1], a.x[i + 1], a.solved[i + 1]
        length = sqrt(u[i] * u[i] + v[i] * v[i])
        c, s = u[i] / length, v[i] / length
        for j in range(i, last):
            t = u[j]
            u[j] = c * t + s * v[j]
            v[j] = c * v[j] - s * t
        t = a.y[i]
        a.y[i], a.y[i + 1] = c * t + s * a.y[i + 1], c * a.y[i + 1] - s * t
    a.n_passive = last


cdef double gradient(active_set *a) noexcept nogil:
    """Compute w = b - G x; return the largest violation of the optimality conditions."""
    cdef int b, i, j, k, q, n = a.n
    cdef double[GROUP] some                               # local, so that it cannot alias an array
    cdef const double *g
    cdef double worst = 0
    for b in range(n // GROUP):
        j = b * GROUP
        for q in range(GROUP):
            some[q] = a.b[j + q]
        for i in range(a.n_passive):
            g = a.gram + a.passive[i] * n + j
            for q in range(GROUP):
                some[q] -= a.x[i] * g[q]
        for q in range(GROUP):
            a.w[j + q] = some[q]
    for j in range(n - n % GROUP, n):
        a.w[j] = a.b[j]
        for i in range(a.n_passive):
            a.w[j] -= a.x[i] * a.gram[a.passive[i] * n + j]
    for k in range(n):
        worst = max(worst, fabs(a.w[k]) if a.state[k] == PASSIVE else a.w[k])
    return worst


cdef void refine(active_set *a) noexcept nogil:
    """Improve the passive variables by one step of iterative refinement: solve for w, add to x."""
    cdef int i, j
    cdef const double *u
    for i in range(a.n_passive):
        a.y[i] = a.w[a.passive[i]]
    for i in range(a.n_passive):                              # U'y = w_P
        u = a.U + i * a.n
        a.y[i] /= u[i]
        for j in range(i + 1, a.n_passive):
            a.y[j] -= a.y[i] * u[j]
    back_substitute(a, a.y, a.solved)
    for i in range(a.n_passive):
        if a.x[i] + a.solved[i] > 0:
            a.x[i] += a.solved[i]


cdef void write_solution(active_set *a, double *gain) noexcept nogil:
    """Overwrite b with x, and compute the gain b'x."""
    cdef int i
    gain[0] = 0
    for i in range(a.n_passive):
        gain[0] += a.b[a.passive[i]] * a.x[i]
    memset(a.b, 0, a.n * sizeof(double))
    for i in range(a.n_passive):
        a.b[a.passive[i]] = a.x[i]
