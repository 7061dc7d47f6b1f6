"""Attributes that are computed when they are first read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 12) or TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801
        """As in Python 3.12, without the lock that all objects of a class share in Python 3.11.

        That lock is held while a value is computed: other threads wait, even for other objects,
        and a process forked meanwhile waits forever, since nobody in it ever lets go.
        """

        def __init__(self, function: Any) -> None:
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            """Learn the name under which the value is kept."""
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute the value and keep it among the attributes, which are looked at first."""
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value


__all__ = ["cached_property"]
