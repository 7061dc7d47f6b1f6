"""Choice of the instruction set; this module alone links the arithmetic, compiled once for each."""
import os

from .slices cimport (
    level_kernels, nmfscale_contrasts_bytes, nmfscale_descend_bytes, nmfscale_kernels,
    nmfscale_solve_bytes, nmfscale_update_rows_bytes,
)

cdef extern from *:
    """
    #ifndef NMFSCALE_OPENMP
    #define NMFSCALE_OPENMP 0
    #endif
    #ifndef NMFSCALE_DEBUG
    #define NMFSCALE_DEBUG 0
    #endif
    #if defined(__aarch64__)
    #define NMFSCALE_LEVELS "neon"
    #elif defined(__x86_64__) && NMFSCALE_DEBUG
    #define NMFSCALE_LEVELS "baseline avx2"
    #elif defined(__x86_64__)
    #define NMFSCALE_LEVELS "baseline avx2 avx512"
    #else
    #define NMFSCALE_LEVELS "baseline"
    #endif
    """
    const char *NMFSCALE_LEVELS
    int NMFSCALE_OPENMP
    int NMFSCALE_DEBUG

cdef const level_kernels *_in_use = NULL
cdef object _name = None
_LEVELS = {"baseline": 0, "neon": 1, "avx2": 2, "avx512": 3}


def available_levels():
    """Return the names of the instruction sets that this processor has, lowest first."""
    return [name for name, number in _LEVELS.items() if nmfscale_kernels(number) != NULL]


def level():
    """Return the name of the instruction set in use."""
    return _name


def use_level(name):
    """Use the kernels compiled for instruction set `name` from now on."""
    global _in_use, _name
    if name not in _LEVELS:
        raise ImportError(
            f"unknown instruction set {name!r} (NMFSCALE_LEVEL): choose from {', '.join(_LEVELS)}"
        )
    if name not in available_levels():
        raise ImportError(
            f"this processor does not have {name!r} (NMFSCALE_LEVEL): "
            f"choose from {', '.join(available_levels())}"
        )
    _in_use = nmfscale_kernels(_LEVELS[name])
    _name = name


use_level(os.environ.get("NMFSCALE_LEVEL") or max(available_levels(), key=_LEVELS.get))


def build_flags():
    """Return the options with which the kernels were compiled."""
    return {
        "levels": NMFSCALE_LEVELS.decode().split(),
        "openmp": bool(NMFSCALE_OPENMP),
        "bounds_checks": bool(NMFSCALE_DEBUG),
    }


cdef const level_kernels *kernels_in_use() noexcept:
    return _in_use


cdef size_t update_rows_bytes(int n_components, int real_bytes) noexcept:
    return nmfscale_update_rows_bytes(n_components, real_bytes)


cdef size_t descend_bytes(int n_components, int64_t longest, int real_bytes) noexcept:
    return nmfscale_descend_bytes(n_components, longest, real_bytes)


cdef size_t solve_bytes(int n_components, int64_t longest, int real_bytes) noexcept:
    return nmfscale_solve_bytes(n_components, longest, real_bytes)


cdef size_t contrasts_bytes(int n_components) noexcept:
    return nmfscale_contrasts_bytes(n_components)
