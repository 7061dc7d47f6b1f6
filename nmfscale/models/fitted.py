"""The result of one fit: its final arrays, and its course."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.monitor import CONVERGED

Array = NDArray[Any]
# Fits of other starts than the best one that are kept for moves.
OTHER_ENDS = 2


@dataclass(frozen=True)
class Fitted:
    """The final arrays of a fit, in the order of the counts, and its course.

    `interrupted` says whether Ctrl-C was pressed. The reason may be another one: the fit had ended,
    and only its last record was missing.
    """

    arrays: dict[str, Array]
    history: Array
    reason: str
    interrupted: bool = False
    moves: Array | None = None
    starts: Array | None = None

    @property
    def converged(self) -> bool:
        """Whether a stopping rule of convergence ended the fit."""
        return self.reason in CONVERGED

    @property
    def is_last(self) -> bool:
        """Whether no further fit begins, because the user has ended this one."""
        return self.interrupted or self.reason == "callback"

    @property
    def objective(self) -> float:
        """Final value of the objective: the first column of the history after the seconds."""
        names: Any = self.history.dtype.names
        return float(self.history[names[2]][-1])

    def after(self, earlier: Fitted) -> Fitted:
        """Return this fit with the history of an earlier one, from which it started, before it."""
        added = self.history.copy()
        for name in ("iteration", "seconds", "bytes_read"):
            added[name] += earlier.history[name][-1]
        return replace(self, history=np.concatenate([earlier.history, added]))
