"""Arguments of the loops over slices, with the addresses of their arrays."""
from libc.stdint cimport int64_t, uint8_t

from .slices cimport row_kernels, row_problem, slice_extrapolation, slice_counts, slice_rows

cdef const void *address(array, dtype, tuple shape, str name) except? NULL
cdef const void *aligned_address(array, dtype, tuple shape, str name) except? NULL


cdef class SlicedCounts:
    cdef readonly Py_ssize_t n_slices
    cdef readonly int64_t n_design
    cdef object keep
    cdef const int64_t[::1] offset
    cdef const uint8_t[::1] dense
    cdef const char *index
    cdef const char *count
    cdef int index_bytes, count_bytes, count_kind

    cdef int64_t longest(self) noexcept
    cdef void slice(self, Py_ssize_t s, slice_counts *out) noexcept nogil


cdef class RowProblem:
    cdef row_problem c
    cdef readonly object dtype
    cdef readonly object keep
    cdef const row_kernels *kernels


cdef class RowBuffers:
    cdef slice_rows first
    cdef Py_ssize_t row_bytes, n_curvature, curvature_bytes, label_bytes, quadratic_bytes

    cdef void slice(self, Py_ssize_t s, slice_rows *out) noexcept nogil


cdef class Extrapolation:
    cdef slice_extrapolation first
    cdef double momentum, leaves
    cdef const void *scale
    cdef int64_t n_rows
    cdef readonly tuple shape
    cdef readonly object dtype
    cdef Py_ssize_t numbers_each, bytes_each
    cdef object keep
    cdef double[:, :, ::1] column_sums
    cdef double[::1] change
    cdef int64_t[::1] zeros

    cdef void apply(self, RowProblem problem, Py_ssize_t s, const char *now) noexcept nogil
