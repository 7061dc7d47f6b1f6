"""What is done about counts that are not whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from .warn import warn_caller

IntegerPolicy = Literal["warn", "allow", "require"]


def check_integer(integer: Any) -> None:
    """Check the option that says what to do about counts that are not integers."""
    if integer not in get_args(IntegerPolicy):
        choices = ", ".join(map(repr, get_args(IntegerPolicy)))
        raise ValueError(f"integer={integer!r} is not one of {choices}.")


def warn_fraction(
    first_fraction: str | None, integer: IntegerPolicy, holder: str, others: Sequence[str] = ()
) -> None:
    """Warn about, or refuse, counts that are not integers; `holder` is the object or file.

    `others` names further matrices in the same object or file.
    """
    if first_fraction is None or integer == "allow":
        return
    message = (
        f"{holder} holds counts that are not whole numbers: {first_fraction}. "
        "Pass the raw counts (for AnnData: perhaps in a layer or raw)"
    )
    also = f" It also has {', '.join(others)}." if others else ""
    if integer == "require":
        raise ValueError(f"{message}.{also}")
    warn_caller(f"{message}, or integer='allow' to fit these values as they are.{also}")
