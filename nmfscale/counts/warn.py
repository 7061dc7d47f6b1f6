"""Warnings that point to the user's line of code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..terminal import visible

# scikit-learn wraps the methods of estimators, and its searches call them through joblib
_INSIDE = {"nmfscale", "sklearn", "joblib"}

# Lists that collect the messages.
_lists: ContextVar[tuple[list[str], ...]] = ContextVar("lists", default=())


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the messages of `warn_caller` in this context; it warns as usual."""
    found: list[str] = []
    token = _lists.set((*_lists.get(), found))
    try:
        yield found
    finally:
        _lists.reset(token)


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost caller outside this package, scikit-learn and joblib."""
    message = visible(message)
    for messages in _lists.get():
        messages.append(message)
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
