"""The result of jackknife_fit: estimates with standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...models.tables import Columns, Tables, tidy_columns
from ..design.equal_weights import counted_once
from ..results.files import Result

Array = NDArray[Any]


@dataclass(frozen=True)
class JackknifeEstimates:
    """Estimates of a fit and their standard errors and intervals: arrays of one shape.

    Attributes
    ----------
    estimate, std_error : ndarray
        Estimate of the fit, and its standard error.
    lower, upper : ndarray
        Ends of the intervals.
    influences : ndarray of shape (n_units, ...)
        Derivatives of each number with respect to the weight of each unit. With weights w of units
        the number is about ``estimate + (w - 1) @ influences``, for w near 1.
    """

    estimate: Array
    std_error: Array
    lower: Array
    upper: Array
    influences: Array


@dataclass(frozen=True)
class JackknifeFit(Result):
    """Frequencies and mean proportions of a fit, with standard errors.

    Attributes
    ----------
    components : JackknifeEstimates of shape (n_entries,), or None
        The requested frequencies of features in topics.
    group_means : JackknifeEstimates of shape (K, n_groups), or None
        Mean proportions of the samples of each group, if groups were given.
    entries : ndarray of shape (n_entries, 2), int
        Topic and feature of each frequency.
    feature_names, groups : ndarray or tuple, or None
        Names.
    level : float
        Nominal coverage of the intervals.
    kkt : float
        KKT residual of the factors, relative to the mean total of a feature: 0 at an optimum.
    least_counts : float
        Entries that explain fewer counts were held fixed: 0 unless the Hessian had negative
        curvature.
    residuals : ndarray
        Relative residual of each system of equations: first frequencies, then group means.
    n_products : int
        Number of products with the Hessian; each reads the counts once.
    topic_names : tuple
        Names of the topics.
    units, equal_weights : str
        What influences are added up over, and what has weight one in a group mean: "units" or
        "samples".

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`; the first that the result has is the default:

    - "components", a row for each entry: ``topic``, ``feature``, ``estimate``, ``lower``,
      ``upper`` and ``std_error``.
    - "group_means", a row for each topic and group: the same with ``group`` for ``feature``.
    """

    components: JackknifeEstimates | None
    group_means: JackknifeEstimates | None
    entries: Array
    feature_names: NDArray[Any] | None
    groups: tuple[Any, ...] | None
    level: float
    kkt: float
    least_counts: float
    residuals: Array
    n_products: int
    topic_names: tuple[Any, ...]
    units: str = "samples"
    equal_weights: str = "units"

    _hint = "; components need entries=, group_means need groups= in jackknife_fit"

    def _tables(self) -> Tables:
        tables = {"components": self._of_components, "group_means": self._of_groups}
        return {what: make for what, make in tables.items() if getattr(self, what) is not None}

    def _of_components(self) -> Columns:
        assert self.components is not None
        topics, features = self.entries.T
        labels = (
            features if self.feature_names is None else name_array(self.feature_names)[features]
        )
        return {
            "topic": name_array(self.topic_names)[topics], "feature": labels,
            **_numbers(self.components),
        }  # fmt: skip

    def _of_groups(self) -> Columns:
        assert self.group_means is not None and self.groups is not None
        numbers = _numbers(self.group_means)
        return tidy_columns({"topic": self.topic_names}, {"group": self.groups}, numbers)

    def __repr__(self) -> str:
        """Sizes, and the accuracy of the solutions."""
        return (
            f"<JackknifeFit: {len(self.entries)} frequencies, "
            f"{0 if self.group_means is None else self.group_means.estimate.size} group means, "
            f"{self.n_products} products, KKT residual {self.kkt:.1e}"
            f"{counted_once(self.equal_weights, self.units)}>"
        )


def _numbers(estimates: JackknifeEstimates) -> Columns:
    names = ("estimate", "lower", "upper", "std_error")
    return {name: np.asarray(getattr(estimates, name)) for name in names}
