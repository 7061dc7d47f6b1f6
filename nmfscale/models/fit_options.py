"""Arguments that all `fit` methods share: the counts, the cluster and checkpoints."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class FitOptions:
    """Arguments of `fit` that no model sees; :meth:`nmfscale.PoissonNMF.fit` documents them."""

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
