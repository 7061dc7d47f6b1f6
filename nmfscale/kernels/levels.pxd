from libc.stdint cimport int64_t

from .slices cimport level_kernels

cdef const level_kernels *kernels_in_use() noexcept

# Bytes of scratch memory of one thread.
cdef size_t update_rows_bytes(int n_components, int real_bytes) noexcept
cdef size_t descend_bytes(int n_components, int64_t longest, int real_bytes) noexcept
cdef size_t solve_bytes(int n_components, int64_t longest, int real_bytes) noexcept
cdef size_t contrasts_bytes(int n_components) noexcept
