"""Which fits can start at another fit, and with which arguments."""

from __future__ import annotations

from inspect import signature
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class StartsMixin:
    """What functions that fit a model again ask of it: the bootstrap of fits, and splits of counts.

    The default is right for models whose `fit` takes arguments `loadings` and `components` in the
    meaning of the attributes. Others name the attributes in `start_arguments`.
    """

    # Arguments of `fit` that start it at another fit, and the attributes that they take.
    start_arguments: ClassVar[dict[str, str]] = {
        "loadings": "loadings_", "components": "components_"
    }  # fmt: skip

    @classmethod
    def _takes(cls, *arguments: str) -> bool:
        """Whether `fit` takes these arguments."""
        return signature(cls.fit).parameters.keys() >= set(arguments)  # type: ignore[attr-defined]

    @classmethod
    def _starts_at_fits(cls) -> bool:
        """Whether a fit can start at the topics and loadings of another one, for other samples.

        Models with labels cannot: the labels of the samples are not kept.
        """
        return cls._takes(*cls.start_arguments) and not hasattr(cls, "predict")

    def _start_of_samples(self) -> tuple[str, ...]:
        """Return those of the start arguments that have a row for each sample."""
        axes: dict[str, str] = self._all_axes()  # type: ignore[attr-defined]
        return tuple(name for name, kept in self.start_arguments.items() if axes[kept][0] == "n")

    def _arguments_of_start(self, rows: Array) -> dict[str, Array]:
        """Return arguments of `fit` that start it at this fit, for counts of its samples `rows`."""
        start = {name: getattr(self, kept) for name, kept in self.start_arguments.items()}
        for name in self._start_of_samples():
            start[name] = np.ascontiguousarray(start[name][rows])
        return start

    def parameters_of_refits(self) -> dict[str, Any]:
        """Return parameters of a fit that starts at this one, if they are not those of this fit.

        What this fit has estimated, such as a prior, may be the start of an estimate or be fixed.
        """
        return {}
