"""Sinkhorn-Knopp balancing of many tables, each on its own, by Newton steps.

Notation: a (R, T) the squares of a table's entries, v (R,) the potentials of its rows, and
w = exp(v - max v). Scaling the columns of a w to the sum R / T gives b, whose columns are
balanced; s (T,) are the scale factors, and c (R,) the row sums of b, which are 1 at the solution.
"""
from cython.parallel cimport prange, threadid
from libc.math cimport fabs, isfinite, sqrt
from libc.stdlib cimport free, malloc

from .vectors cimport dot

cdef extern from "elementary.h" nogil:
    double logarithm(double)
    double exponential(double)

# Entries of a table are unlike if a square is below this share of the largest.
cdef double UNLIKE = 1e-8
# Lower bound of the squares of positive entries: they must not underflow to 0, which would remove
# an entry from the table's pattern; sums do not notice the bound.
cdef double LEAST = 1e-300
# Keeps the Hessian regular if a table has parts without common rows, each with a free scale.
cdef double RIDGE = 1e-14


def newton_balance(const double[:, :, ::1] tables, double[:, :, ::1] out, int[::1] steps, *,
                   int most_steps, double tolerance, int n_threads):
    """Balance `tables` (N, T, R) into `out`; `steps` (N,) receives the number of Newton steps.

    The number is -1 if `most_steps` do not reach the `tolerance`. Every row and every column of a
    table must have an entry above zero.
    """
    cdef Py_ssize_t i, T = tables.shape[1], R = tables.shape[2]
    cdef Py_ssize_t size = 3 * R * T + T + R * R + 5 * R
    cdef double *memory = <double *>malloc(n_threads * size * sizeof(double))
    if memory == NULL:
        raise MemoryError(f"no memory for {n_threads} tables of {T} x {R}")
    for i in prange(tables.shape[0], nogil=True, schedule="dynamic", chunksize=16,
                    num_threads=n_threads, use_threads_if=tables.shape[0] > 16):
        steps[i] = balance_one(&tables[i, 0, 0], &out[i, 0, 0], T, R, most_steps, tolerance,
                               memory + threadid() * size)
    free(memory)


cdef int balance_one(const double *table, double *out, Py_ssize_t T, Py_ssize_t R, int most_steps,
                     double tolerance, double *memory) noexcept nogil:
    cdef double *x = memory           # (R, T) the table, scaled so that largest entries are 1
    cdef double *a = x + R * T
    cdef double *b = a + R * T
    cdef double *s = b + R * T
    cdef double *hessian = s + T
    cdef double *v = hessian + R * R
    cdef double *c = v + R            # row sums; the Newton step overwrites them
    cdef double *w = c + R            # (3 R) scratch space of the functions called here
    cdef Py_ssize_t r
    cdef double worst
    cdef int step
    scale(table, x, a, T, R)
    start(a, b, s, c, v, w, T, R)
    for step in range(most_steps):
        balance_columns(a, v, b, s, c, w, T, R)
        worst = 0
        for r in range(R):
            worst = max(worst, fabs(c[r] - 1)) if isfinite(c[r]) else 2
        if worst <= tolerance:
            for r in range(R):
                w[r] = exponential(v[r] / 2)
            write_balanced(x, w, s, out, T, R)
            return step
        newton(a, b, v, s, c, hessian, w, T, R)
    return -1


cdef void scale(const double *table, double *x, double *a, Py_ssize_t T,
                Py_ssize_t R) noexcept nogil:
    """x = table', scaled to largest entries of 1 in its columns, then in its rows; a = x^2."""
    cdef Py_ssize_t r, t
    cdef double most
    for t in range(T):
        most = 0
        for r in range(R):
            most = max(most, table[t * R + r])
        for r in range(R):
            x[r * T + t] = table[t * R + r] / most
    for r in range(R):
        most = 0
        for t in range(T):
            most = max(most, x[r * T + t])
        for t in range(T):
            x[r * T + t] /= most
            a[r * T + t] = max(x[r * T + t] * x[r * T + t], LEAST) if x[r * T + t] > 0 else 0


cdef void start(const double *a, double *b, double *s, double *c, double *v, double *w,
                Py_ssize_t T, Py_ssize_t R) noexcept nogil:
    """Set v to the result of one Sinkhorn sweep, or to mean logarithms of the rows if better.

    The latter is exact for 2 x 2 tables. It is tried only if some entries are unlike.
    """
    cdef Py_ssize_t r, t, n
    cdef bint unlike = False
    cdef double mean
    for r in range(R):
        v[r] = 0
    balance_columns(a, v, b, s, c, w, T, R)
    for r in range(R):
        v[r] = -logarithm(c[r])
        w[R + r] = 0
    for r in range(R * T):
        unlike = unlike or 0 < a[r] < UNLIKE
    if not unlike:
        return
    for t in range(T):
        mean, n = 0, 0
        for r in range(R):
            if a[r * T + t] > 0:
                mean += logarithm(a[r * T + t])
                n += 1
        s[t] = mean / n
    for r in range(R):
        n = 0
        for t in range(T):
            if a[r * T + t] > 0:
                w[R + r] += s[t] - logarithm(a[r * T + t])
                n += 1
        w[R + r] /= n
    if loss(a, w + R, s, w, T, R) < loss(a, v, s, w, T, R):
        for r in range(R):
            v[r] = w[R + r]


cdef void weigh_rows(const double *v, double *w, Py_ssize_t R) noexcept nogil:
    cdef Py_ssize_t r
    cdef double most = v[0]
    for r in range(R):
        most = max(most, v[r])
    for r in range(R):
        w[r] = exponential(v[r] - most)


cdef void balance_columns(const double *a, const double *v, double *b, double *s, double *c,
                          double *w, Py_ssize_t T, Py_ssize_t R) noexcept nogil:
    """Compute b, whose columns are balanced, and its row sums c."""
    cdef Py_ssize_t r, t
    cdef double share = <double>R / T
    weigh_rows(v, w, R)
    for t in range(T):
        s[t] = 0
    for r in range(R):
        for t in range(T):
            b[r * T + t] = a[r * T + t] * w[r]
            s[t] += b[r * T + t]
    for t in range(T):
        s[t] = share / s[t]
    for r in range(R):
        for t in range(T):
            b[r * T + t] *= s[t]
        c[r] = total(b + r * T, T)


cdef double loss(const double *a, const double *v, double *s, double *w, Py_ssize_t T,
                 Py_ssize_t R) noexcept nogil:
    """Return R / T sum_t log(sum_r a_rt exp v_r) - sum_r v_r, which shifts of v do not change."""
    cdef Py_ssize_t r, t
    cdef double found = 0, most = v[0]
    weigh_rows(v, w, R)
    for t in range(T):
        s[t] = 0
    for r in range(R):
        most = max(most, v[r])
        for t in range(T):
            s[t] += a[r * T + t] * w[r]
    for t in range(T):
        found += logarithm(s[t])
    found *= <double>R / T
    for r in range(R):
        found += most - v[r]
    return found


cdef void newton(const double *a, const double *b, double *v, double *s, double *c, double *hessian,
                 double *w, Py_ssize_t T, Py_ssize_t R) noexcept nogil:
    """Move v by a Newton step, shortened if it would overshoot; c is overwritten."""
    cdef Py_ssize_t r, q
    cdef double slope = 0, low = 0, high = 0, length = 1, before
    for r in range(R):
        for q in range(r + 1):
            # 1 / R makes the matrix regular along shifts of v, which do not change the loss
            hessian[r * R + q] = 1.0 / R - dot(b + r * T, b + q * T, T) * T / R
        hessian[r * R + r] += c[r] + RIDGE
        w[r] = 1 - c[r]
        c[r] = w[r]
    solve(hessian, c, R)
    for r in range(R):
        slope -= w[r] * c[r]
        low = c[r] if r == 0 else min(low, c[r])
        high = c[r] if r == 0 else max(high, c[r])
    # A step of width < 1 lowers the loss; a wider one does so when multiplied by
    # log(1 + width) / width.
    if high - low > 1:
        before = loss(a, v, s, w, T, R)
        for r in range(R):
            w[R + r] = v[r] + c[r]
        if not loss(a, w + R, s, w, T, R) <= before + slope / 4:
            length = logarithm(1 + high - low) / (high - low)
    for r in range(R):
        v[r] += length * c[r]


cdef void solve(double *lower, double *x, Py_ssize_t n) noexcept nogil:
    """x = A^-1 x by a Cholesky factorisation, which overwrites the lower triangle of A."""
    cdef Py_ssize_t i, j
    cdef double *row
    for i in range(n):
        row = lower + i * n
        for j in range(i):
            row[j] = (row[j] - dot(row, lower + j * n, j)) / lower[j * n + j]
        row[i] = sqrt(max(row[i] - dot(row, row, i), RIDGE))
        x[i] = (x[i] - dot(row, x, i)) / row[i]
    for i in range(n - 1, -1, -1):
        x[i] /= lower[i * n + i]
        for j in range(i):
            x[j] -= lower[i * n + j] * x[i]


cdef void write_balanced(const double *x, const double *w, double *s, double *out, Py_ssize_t T,
                         Py_ssize_t R) noexcept nogil:
    """out (T, R) = x' w, with rows scaled to norm 1, then columns."""
    cdef Py_ssize_t r, t
    cdef double norm
    for t in range(T):
        norm = 0
        for r in range(R):
            out[t * R + r] = x[r * T + t] * w[r]
            norm += out[t * R + r] * out[t * R + r]
        s[t] = sqrt(norm)
    for r in range(R):
        norm = 0
        for t in range(T):
            out[t * R + r] /= s[t]
            norm += out[t * R + r] * out[t * R + r]
        norm = sqrt(norm)
        for t in range(T):
            out[t * R + r] /= norm


cdef double total(const double *a, Py_ssize_t n) noexcept nogil:
    cdef double s0 = 0, s1 = 0, s2 = 0, s3 = 0
    cdef Py_ssize_t i
    for i in range(0, n - 3, 4):
        s0 += a[i]
        s1 += a[i + 1]
        s2 += a[i + 2]
        s3 += a[i + 3]
    for i in range(n - n % 4, n):
        s0 += a[i]
    return (s0 + s1) + (s2 + s3)
