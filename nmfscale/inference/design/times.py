"""Whether labels of groups are points of time, or have another order."""

from __future__ import annotations

from typing import Any

import numpy as np

from .groups import Labels


def in_order(labels: Labels) -> bool:
    """Whether labels are numbers, dates such as "2001-03", or ordered categories."""
    names = labels.names
    if labels.ordered or all(_is_number(name) for name in names):
        return True
    try:
        days = np.array([str(name) for name in names], "datetime64[D]")
    except ValueError:
        return False
    return not np.isnat(days).any() and bool((np.diff(days.astype(np.int64)) >= 0).all())


def _is_number(name: Any) -> bool:
    return isinstance(name, int | float) and not isinstance(name, bool)
