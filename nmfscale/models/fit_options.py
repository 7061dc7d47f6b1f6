"""Arguments that `fit` of every estimator has: which counts, where work is done and saved."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class FitOptions:
    """Arguments of `fit` that no model knows of; :meth:`nmfscale.PoissonNMF.fit` documents them."""

    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0
    resume: bool = False
    client: Any = None
    layer: str | None = None
    raw: bool = False

    @classmethod
    def pop(cls, arguments: MutableMapping[str, Any]) -> Self:
        """Take the options out of the arguments of a call of `fit`."""
        return cls(**{field.name: arguments.pop(field.name) for field in fields(cls)})
