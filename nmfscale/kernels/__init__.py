"""Compiled arithmetic on one block of counts.

A block holds its counts in SELL-16 (`nmfscale.counts.sell`): rows are sorted by falling number of
nonzeros, and 16 neighbours form a *slice*. The position of a row in this order is its *lane*; the
vector instructions of a slice process its 16 lanes at once. Row arrays are in *lane order*: array
row i belongs to lane i. The last slice is padded with lanes that hold no row.

Every kernel in this package

- takes one block of counts as plain arrays, and writes only to its output arguments;
- has its shapes, dtypes and alignment checked by `operands`; the caller, `nmfscale.methods`, has
  checked the values;
- releases the GIL, and takes the number of threads as an argument;
- returns a result that does not depend on the number of threads. A *rows* kernel solves
  independent problems, one for each row; a *sums* kernel adds in a fixed order, in float64; a
  *values* kernel writes numbers for each row, or for each slice. `sum_slices` adds these in the
  order of the slices;
- knows only rows of counts, the factor that it updates (`start`, `end`) and the factor that is
  held (`design`). These are L and F on a block's rows, F and L on its columns.

`operands.pyi` and `rows.pyi` document the arguments: shapes, dtypes and meaning. `arithmetic.h`
has the computations on one slice.
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
    COLLAPSED,
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
    contrasts,
    correlations,
    descend,
    descend_jointly,
    digamma,
    exp,
    exp_digamma,
    extrapolate,
    extrapolate_log,
    gather_dot,
    log,
    log_gamma,
    nonzero,
    solve_rows,
    step,
    sum_slices,
    sums,
    trigamma,
    update_rows,
)

__all__ = [
    "COLLAPSED",
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
    "contrasts",
    "correlations",
    "descend",
    "descend_jointly",
    "digamma",
    "dots",
    "eliminate",
    "exp",
    "exp_digamma",
    "extrapolate",
    "extrapolate_log",
    "gather_dot",
    "gram_columns",
    "level",
    "log",
    "log_gamma",
    "nnls",
    "nonzero",
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
    "trigamma",
    "use_level",
    "update_rows",
]
