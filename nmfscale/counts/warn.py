"""Warnings that point to the user's line of code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from .names import such_as

if TYPE_CHECKING:
    from .base import CountMatrix

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


def warn_of_empty_samples(counts: CountMatrix, result: str) -> None:
    """Warn that samples without counts have a `result` that says nothing about them."""
    empty = np.flatnonzero(counts.row_nnz == 0)
    if not empty.size:
        return
    names = empty if counts.sample_names is None else counts.sample_names[empty]
    of = f"{empty.size:,} of {counts.shape[0]:,} samples of X"
    warn_caller(
        f"{of} have no counts in features of the topics, such as {such_as(names.tolist())}: their "
        f"{result} are those of an empty sample, and say nothing about them."
    )
