"""A cached_property without the lock of Python 3.11: attributes computed at their first use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 12) or TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801
        """The version of Python 3.12, without the lock that Python 3.11 has for each class.

        That lock is held while a value is computed. Other threads wait for it, even for other
        objects, and a process that is forked meanwhile waits forever: nothing in it releases the
        lock.
        """

        def __init__(self, function: Any) -> None:
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            """Store the name of the attribute."""
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute the value and store it as an instance attribute, which takes precedence."""
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value


__all__ = ["cached_property"]
