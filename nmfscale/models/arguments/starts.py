"""Which models can be fitted again, from where, and with which arguments."""

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

    def _start_of_samples(self) -> tuple[str, ...]:
        """Return those of the start arguments that have a row for each sample."""
        axes: dict[str, str] = self._all_axes()  # type: ignore[attr-defined]
        return tuple(name for name, kept in self.start_arguments.items() if axes[kept][0] == "n")

    def _arguments_of_start(self, rows: Array, share: float = 1.0) -> dict[str, Array]:
        """Return arguments of `fit` that start it at this fit, for counts of its samples `rows`.

        `share` is that of the counts; loadings that are expected counts are multiplied by it.
        """
        start = {name: getattr(self, kept) for name, kept in self.start_arguments.items()}
        for name in self._start_of_samples():
            start[name] = np.ascontiguousarray(start[name][rows])
        return start

    def parameters_of_refits(self) -> dict[str, Any]:
        """Return parameters of a fit that starts at this one, if they are not those of this fit.

        What this fit has estimated, such as a prior, may be the start of an estimate or be fixed.
        """
        return {}


def fit_takes(model: Any, *arguments: str) -> bool:
    """Whether `fit` of a model takes these arguments."""
    return signature(model.fit).parameters.keys() >= set(arguments)


def starts_at_fits(model: Any) -> bool:
    """Whether a fit can start at the topics and loadings of another one, for other samples.

    Models with labels cannot: the labels of the samples are not kept.
    """
    able = isinstance(model, StartsMixin) and not hasattr(model, "predict")
    return able and fit_takes(model, *model.start_arguments)


def starts_at_anchors(model: Any) -> bool:
    """Whether a model is fitted anew from the features that are its anchors."""
    return isinstance(model, StartsMixin) and _has_parameter(model, "anchors")


def has_random_starts(model: Any) -> bool:
    """Whether the fits of a model begin at random starts, and need no labels."""
    able = isinstance(model, StartsMixin) and not hasattr(model, "predict")
    return able and _has_parameter(model, "n_init")


def _has_parameter(model: Any, name: str) -> bool:
    return name in model.get_params(deep=False)
