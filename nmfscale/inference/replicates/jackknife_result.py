"""The result of jackknife_fit: estimates with standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...counts.foreign import imported_pandas
from ..design.equal_weights import counted_once
from ..results.files import Result
from ..results.frames import tidy_frame

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
    """

    components: JackknifeEstimates | None
    group_means: JackknifeEstimates | None
    entries: Array
    feature_names: Any
    groups: tuple[Any, ...] | None
    level: float
    kkt: float
    least_counts: float
    residuals: Array
    n_products: int
    topic_names: tuple[Any, ...]
    units: str = "samples"
    equal_weights: str = "units"

    def to_frame(self, what: str | None = None) -> Any:
        """Return one kind of estimates as a table with a row for each.

        Parameters
        ----------
        what : {"components", "group_means"}, default=None
            Which estimates to return; by default components if there are any.

        Returns
        -------
        pandas.DataFrame
            Columns ``topic``, then ``feature`` or ``group``, ``estimate``, ``lower``, ``upper``,
            ``std_error``.
        """
        pd = imported_pandas()

        if what is None:
            what = "group_means" if self.components is None else "components"
        found = {"components": self.components, "group_means": self.group_means}.get(what)
        if found is None:
            raise ValueError(
                f"what={what!r}: this result does not have it; components need entries=, "
                "group_means need groups= in jackknife_fit."
            )
        numbers = {
            name: getattr(found, name) for name in ("estimate", "lower", "upper", "std_error")
        }
        if what == "group_means":
            return tidy_frame({"topic": self.topic_names}, {"group": self.groups}, numbers)
        topic, other = self.entries.T
        names = range(other.max() + 1) if self.feature_names is None else self.feature_names
        topic = [self.topic_names[k] for k in topic]
        return pd.DataFrame({"topic": topic, "feature": [names[j] for j in other]} | numbers)

    def __repr__(self) -> str:
        """Sizes, and the accuracy of the solutions."""
        return (
            f"<JackknifeFit: {len(self.entries)} frequencies, "
            f"{0 if self.group_means is None else self.group_means.estimate.size} group means, "
            f"{self.n_products} products, KKT residual {self.kkt:.1e}"
            f"{counted_once(self.equal_weights, self.units)}>"
        )
