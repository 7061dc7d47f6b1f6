"""Warnings that point to the user's line of code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from ..terminal import visible

# scikit-learn wraps the methods of estimators, and its searches call them through joblib
_INSIDE = {"nmfscale", "sklearn", "joblib"}
# Models of other packages, by module and name of the class; their methods are inside, too.
_classes: set[tuple[str, str]] = set()

# Lists that collect the messages.
_lists: ContextVar[tuple[list[str], ...]] = ContextVar("lists", default=())


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the messages of `warn_caller` in this context; it warns as usual."""
    messages: list[str] = []
    token = _lists.set((*_lists.get(), messages))
    try:
        yield messages
    finally:
        _lists.reset(token)


def warn_outside(model: type) -> None:
    """Let warnings point to the callers of the methods of a class."""
    _classes.add((model.__module__, model.__qualname__))


def _is_inside(frame: FrameType) -> bool:
    """Whether code is of this package, scikit-learn or joblib, or a method of a model."""
    module = frame.f_globals.get("__name__", "")
    owner = frame.f_code.co_qualname.rpartition(".")[0]
    return module.split(".")[0] in _INSIDE or (module, owner) in _classes


class LeftSeedsWarning(UserWarning):
    """Topics explain less than half of the counts of their seeds."""

    __module__ = "nmfscale.errors"


class ModalityDepthWarning(UserWarning):
    """The depth of a modality varies much between samples, and topics may follow it."""

    __module__ = "nmfscale.errors"


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost caller outside this package, scikit-learn, joblib and models."""
    message = visible(message)
    for messages in _lists.get():
        messages.append(message)
    level, frame = 2, sys._getframe(1)
    while frame.f_back and _is_inside(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
