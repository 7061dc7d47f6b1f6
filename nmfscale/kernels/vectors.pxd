"""Products of short vectors of doubles, in a fixed order of additions."""


cdef inline double dot(const double *a, const double *b, Py_ssize_t n) noexcept nogil:
    """Return sum_i a_i b_i, in four interleaved sums."""
    cdef double sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0
    cdef Py_ssize_t i
    for i in range(0, n - 3, 4):
        sum0 += a[i] * b[i]
        sum1 += a[i + 1] * b[i + 1]
        sum2 += a[i + 2] * b[i + 2]
        sum3 += a[i + 3] * b[i + 3]
    for i in range(n - n % 4, n):
        sum0 += a[i] * b[i]
    return (sum0 + sum1) + (sum2 + sum3)
