"""The fit: numerics in Python over the kernels."""

from .. import kernels
from .threads import resolve_threads


def build_info() -> dict[str, object]:
    """Return how the kernels were built and what they run on.

    Returns
    -------
    dict
        Instruction sets compiled in and available, the one in use, OpenMP, bounds checks and the
        number of threads.

    Examples
    --------
    >>> from nmfscale.solve import build_info
    >>> sorted(build_info())
    ['available_levels', 'bounds_checks', 'level', 'levels', 'openmp', 'threads']
    """
    return {
        "levels": ["baseline", "avx2", "avx512"],
        "available_levels": kernels.available_levels(),
        "level": kernels.level(),
        **kernels.build_flags(),
        "threads": resolve_threads(None),
    }


__all__ = ["build_info"]
