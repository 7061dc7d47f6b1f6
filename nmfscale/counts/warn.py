"""Warnings that name the line of the user's that asked for the work."""

from __future__ import annotations

import sys
import warnings

# scikit-learn wraps the methods of estimators, and its searches call them by joblib
_INSIDE = {"nmfscale", "sklearn", "joblib"}


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line that is outside this package and scikit-learn."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
