"""Everything that a model of another package imports: base classes, steps, kernels, conversions.

The page "How a fit runs" describes how the parts fit together. Import them from here: the modules
inside the package move without notice. From version 1.0 on, these names, their arguments and what
they return change only in a major release, and with a notice in the change log of the release
before. The same holds for the members of `CountModel` and `Method` that the page lists. Arguments
with a default value, and further names, may be added in any release. What is not frozen is the bits
of results, and all that is neither on this page nor in this module.
"""

from .counts.aligned import aligned_copy, aligned_empty
from .counts.base import CountMatrix
from .counts.cached import cached_property
from .counts.names import of_features, of_samples
from .counts.sell import LANES, SellBlock, lanes_of
from .engine.local import LocalExecutor
from .engine.protocol import (
    Block,
    ColumnStep,
    Executor,
    Method,
    Needs,
    OverLanes,
    Panel,
    RowArrays,
    Step,
    Sums,
    Values,
)
from .kernels import (
    SUM_GRADIENT,
    RowProblem,
    decompositions,
    dense,
    functions,
    row_stride,
    solve_rows,
    update_rows,
)
from .methods.declared import DeclaredMethod
from .methods.factors import (
    LEAST,
    MINVAL,
    from_lanes,
    per_lane,
    rows_of_sums,
    sum_lanes,
    to_lanes,
)
from .methods.poisson.objective import count_constants
from .methods.poisson.steps import Part, SumColumns
from .methods.projection.transform import LogMu, LogShares, projection, projection_needs
from .methods.rows_pass import LaneBlocks, RowsPass
from .methods.slices import sliced_counts
from .methods.topics.merging import merged_factors
from .models.arguments.fit_options import FitKeywords, FitOptions, with_options
from .models.arguments.parameters import estimator
from .models.arguments.validation import checked_array
from .models.base import CountModel
from .models.fitted import Fitted

__all__ = [
    "LANES", "LEAST", "MINVAL", "SUM_GRADIENT", "Block", "ColumnStep", "CountMatrix", "CountModel",
    "DeclaredMethod", "Executor", "FitKeywords", "FitOptions", "Fitted", "LaneBlocks",
    "LocalExecutor", "LogMu", "LogShares", "Method", "Needs", "OverLanes", "Panel", "Part",
    "RowArrays", "RowProblem", "RowsPass", "SellBlock", "Step", "SumColumns", "Sums", "Values",
    "aligned_copy", "aligned_empty", "cached_property", "checked_array", "count_constants",
    "decompositions", "dense", "estimator", "from_lanes", "functions", "lanes_of", "merged_factors",
    "of_features", "of_samples", "per_lane", "projection", "projection_needs", "row_stride",
    "rows_of_sums", "sliced_counts", "solve_rows", "sum_lanes", "to_lanes", "update_rows",
    "with_options",
]  # fmt: skip
