"""Levels of covariates: how many units have them, and how far these differ.

A level is that of a label, or one of the values of a number that has two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown
from ...kernels.functions import power
from ..design.depth import Compared, warn_of_depth
from ..design.groups import Design, Labels
from ..design.loadings import SampleTopics
from ..design.units import warn_of_rare_topics
from ..groups.bootstrap import warn_of_few_units
from .comparison import warn_of_unequal_spread
from .covariates import DesignMatrix
from .effects import FEW
from .regression_rows import Rows

Array = NDArray[Any]
# Coverage of the intervals of differences between two groups in simulations.
_COVERED = {
    "t": "88% of the cases with 5 a group and 95% with 10 or more",
    "percentile": "76% of the cases with 3 a group, 90% with 10, 92% with 20 to 40, 94% with 100",
}
_COVERED["bca"] = _COVERED["percentile"]


def levels_of(matrix: DesignMatrix, X: Array, halves: bool = False) -> Iterator[Labels]:
    """Yield the levels of rows X (n, P), for each covariate that has levels.

    With `halves` numbers of more than two values are cut at their median.
    """
    for columns in matrix.columns().values():
        terms, values = [matrix.terms[j] for j in columns], X[:, columns]
        others = 1 - matrix.values[:, columns].sum(axis=1)
        reference = [name for name, has in matrix.references.items() if np.array_equal(has, others)]
        if reference:
            codes, names = (values * np.arange(1, len(columns) + 1)).sum(axis=1), reference + terms
        else:
            least, most, half = values.min(), values.max(), np.median(values)
            if ((values != least) & (values != most)).any():
                if not halves or half == most:
                    continue
                names = [f"{terms[0]} <= {half:.4g}", f"{terms[0]} > {half:.4g}"]
            else:
                names, half = [f"{terms[0]} = {value:.4g}" for value in (least, most)], least
            codes = values[:, 0] > half
        labels = Labels(codes.astype(np.int64), tuple(names)).of(np.ones(len(X), bool))
        if len(labels.names) > 1:
            yield labels


def warn_of_levels(
    topics: SampleTopics, rows: Rows, matrix: DesignMatrix, design: Design, drawn: str
) -> None:
    """Warn of topics that few units have or that differ in spread, and of unequal depth."""
    names = topics.topic_names
    if rows.what != "samples" or rows.are_units:
        levels = list(levels_of(matrix, rows.X))
        for labels in levels or [Labels(np.zeros(len(rows.Y), np.int64), (None,))]:
            warn_of_rare_topics(rows.Y, labels, names, drawn)
        for labels in levels:
            warn_of_unequal_spread(rows.Y, labels, names)
    else:
        of_units = np.zeros((rows.n_units, len(names)))
        np.add.at(of_units, rows.unit, rows.Y)
        warn_of_rare_topics(
            of_units, Labels(np.zeros(rows.n_units, np.int64), (None,)), names, drawn
        )
    kept = ~topics.empty
    for labels in levels_of(matrix, matrix.values[kept], halves=True):
        warn_of_depth(topics, Compared.of_samples(labels, kept, design))


def check_levels(matrix: DesignMatrix, design: Design, drawn: str, interval: str) -> None:
    """Warn of levels that few units have, and refuse levels that most replicates would lack.

    For a term with two values, the units of the rarer value are counted. For other terms, all units
    are.
    """
    stratum, units_of_level = design.strata.codes, {}
    size, kept = design.strata.sizes, 1.0
    for name, column in [
        *zip(matrix.terms, matrix.values.T, strict=True),
        *matrix.references.items(),
    ]:
        values = np.unique(column)
        if values.size > 2:
            units_of_level[name] = design.n_units
        for value in values[: 2 * (values.size == 2)]:
            has = np.zeros(design.n_units, bool)
            has[design.of_sample[column == value]] = True
            units_of_level[name] = min(units_of_level.get(name, design.n_units), int(has.sum()))
            n_having = np.bincount(stratum[has], minlength=size.size)
            kept *= float(1 - np.prod(power(1 - n_having / size, size)))
    names, n_units = tuple(units_of_level), np.array(list(units_of_level.values()), np.int64)
    if kept < 0.5 and interval != "t":
        least = int(n_units.argmin())
        raise ValueError(
            f"levels are in so few {drawn}, the fewest {shown(names[least])} with "
            f"{n_units[least]}, that {1 - kept:.0%} of the replicates would not determine the "
            "coefficients: pass interval='t', join levels, or leave covariates out."
        )
    warn_of_few_units(
        n_units, names, drawn, _COVERED[interval], "terms and references", FEW[interval]
    )
