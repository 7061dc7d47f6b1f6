"""Arithmetic of one block of counts, compiled.

The contract of every kernel here:

- It takes one block of counts as plain arrays, and changes nothing but its output arguments.
- Shapes, types and alignment are checked once, by `operands`; what the numbers are has been checked
  by its caller, `nmfscale.methods`.
- It releases the GIL, and takes the number of threads as an argument.
- Its result does not depend on that number. A *rows* kernel solves rows that are independent of
  each other; a *sums* kernel adds up in a fixed order, in float64; a *values* kernel writes the
  numbers of every row, or of every slice of 16. `sum_slices` adds those up, slice after slice.
- Rows of counts and rows of a factor are all it knows: the factor that moves and the factor that
  is held may be L and F or, on the transposed block, F and L.
"""

try:
    from .levels import available_levels, build_flags, level, use_level
except ModuleNotFoundError as error:
    raise ImportError(
        f"the kernels in {__path__[0]} are not compiled. If that is a folder of sources, start "
        "Python elsewhere or as `python -P`, so that the installed nmfscale is found; or compile "
        "them in place: pip install -e ."
    ) from error
from .anchors import eliminate, gram_columns, project, squares
from .nnls import nnls
from .operands import (
    DIRICHLET,
    FACTOR,
    FRESH,
    GAMMA,
    RESCALE,
    REUSE,
    SQUARES,
    STORE,
    SUM_DIAGONAL,
    SUM_FULL,
    SUM_GRADIENT,
    Extrapolation,
    RowProblem,
    SlicedCounts,
    packed_size,
    row_stride,
    statistics_size,
)
from .profile import PROFILE_PIECES, profile_product
from .rows import (
    correlations,
    descend,
    descend_jointly,
    digamma,
    exp_digamma,
    extrapolate,
    extrapolate_log,
    gather_dot,
    log_gamma,
    solve_rows,
    step,
    sum_slices,
    sums,
    update_rows,
)

__all__ = [
    "DIRICHLET",
    "FACTOR",
    "FRESH",
    "GAMMA",
    "SQUARES",
    "STORE",
    "REUSE",
    "RESCALE",
    "SUM_DIAGONAL",
    "SUM_FULL",
    "SUM_GRADIENT",
    "Extrapolation",
    "RowProblem",
    "SlicedCounts",
    "available_levels",
    "build_flags",
    "correlations",
    "descend",
    "descend_jointly",
    "digamma",
    "eliminate",
    "exp_digamma",
    "extrapolate",
    "extrapolate_log",
    "gather_dot",
    "gram_columns",
    "level",
    "log_gamma",
    "nnls",
    "PROFILE_PIECES",
    "profile_product",
    "packed_size",
    "project",
    "row_stride",
    "solve_rows",
    "squares",
    "statistics_size",
    "step",
    "sum_slices",
    "sums",
    "use_level",
    "update_rows",
]
