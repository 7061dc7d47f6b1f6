"""Warnings that point to the user's line of code."""

from __future__ import annotations

import sys
import warnings

# scikit-learn wraps the methods of estimators, and its searches call them through joblib
_INSIDE = {"nmfscale", "sklearn", "joblib"}


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost caller outside this package, scikit-learn and joblib."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
