"""Options that say what to read: `as_counts` documents them, and every estimator takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class SourceOptions(TypedDict, total=False):
    """Keyword arguments of `as_counts` that say what to read from a source."""

    groups: str | None
    genome: str | None
    feature_type: str | None
    transpose: bool | None
    names: str | None
    feature_names: Any
    sample_names: Any
    mask_var: Any
    mask_obs: Any


SOURCE = tuple(SourceOptions.__annotations__)


def check_source(source: Mapping[str, Any], caller: str) -> None:
    """Refuse an unknown keyword argument."""
    for name in source:
        if name not in ("layer", "raw", *SOURCE):
            raise TypeError(
                f"{caller} got an unexpected keyword argument {name!r}; options of the source are "
                f"layer, raw, {', '.join(SOURCE)}."
            )
