"""A model under test, the counts of the checks, and the numbers of a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _counts() -> Array:
    """Return counts (90, 60), most of them small, and one that exceeds a byte."""
    rng = np.random.default_rng(0)
    X = rng.poisson(rng.gamma(0.4, size=(90, 3)) @ rng.gamma(0.4, size=(3, 60)) * 3)
    X[7, 5] = 700
    return X


X = _counts()


@dataclass(frozen=True)
class ModelCase:
    """An estimator, how it is made for the checks, and its objective in plain NumPy.

    Attributes
    ----------
    estimator : type
        The class.
    objective : callable or None
        ``objective(fitted, X)``: the objective of the fitted arrays, the first column of
        ``history_`` after the iteration and the seconds, but for rounding.
    n_components : int
    options : dict
        Parameters of all fits, of which a model takes those that it has: 18 iterations.
    variant : dict
        Parameters in which this case differs from the defaults.
    given : dict
        Arguments of `fit` besides the counts, such as y.
    rises : bool
        Whether the objective rises in every iteration.
    """

    estimator: type[Any]
    objective: Callable[[Any, Array], Any] | None = None
    n_components: int = 3
    options: dict[str, Any] = field(default_factory=lambda: {"max_iter": 18, "tol": 0})
    variant: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    rises: bool = True

    def make(self, **options: Any) -> Any:
        """Return an estimator with these parameters, as far as it has them."""
        wanted = self.options | self.variant | {"random_state": 0, "n_threads": 1} | options
        parameters = signature(self.estimator).parameters
        wanted = {name: value for name, value in wanted.items() if name in parameters}
        return self.estimator(**{"n_components": self.n_components} | wanted)

    def fitted(self, **options: Any) -> Any:
        """Return such an estimator, fitted to the counts of the checks."""
        return self.make(**options).fit(X, **self.given)

    @property
    def name(self) -> str:
        """The class, and the parameters that differ from the defaults."""
        return "-".join([self.estimator.__name__, *self.variant])

    def made_at_random(self, **options: Any) -> Any:
        """As `make`, with another start than the default where that is not random."""
        parameters = signature(self.estimator).parameters
        return self.make(**({"init": "random"} if "init" in parameters else {}) | options)

    def can(self, argument: str) -> bool:
        """Whether `fit` takes an argument: client, checkpoint."""
        return argument in signature(self.estimator.fit).parameters


def numbers(fitted: Any, but: tuple[str, ...] = ("seconds", "bytes_read")) -> dict[str, Any]:
    """Return all numbers and arrays of numbers that a fit sets, as bytes.

    `but` are columns of the history to leave out.
    """
    arrays = {
        name: np.asarray(value)
        for name, value in vars(fitted).items()
        if name.endswith("_") and not name.startswith("_")
    }
    history = arrays.pop("history_", np.empty(0, []))
    arrays |= {name: history[name] for name in history.dtype.names or () if name not in but}
    return {
        name: (array.dtype.str, array.shape, array.tobytes())
        for name, array in arrays.items()
        if array.dtype.kind in "biuf"
    }
