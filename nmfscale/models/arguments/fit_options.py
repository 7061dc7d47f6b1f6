"""Arguments that all `fit` methods share: the counts, the cluster and checkpoints."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ...readers.options import SOURCE


@dataclass(frozen=True)
class FitOptions:
    """Arguments of `fit` that no model sees; :meth:`nmfscale.PoissonNMF.fit` documents them."""

    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0
    resume: bool = False
    client: Any = None
    layer: str | None = None
    raw: bool = False
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def reading(self) -> dict[str, Any]:
        """The options that say what to read."""
        return {"layer": self.layer, "raw": self.raw, **self.source}

    def with_nan(self, nan: bool) -> Self:
        """Return the options, of which one says whether NaN in the counts are missing entries."""
        return replace(self, source=self.source | {"nan": nan})

    @classmethod
    def pop(cls, arguments: MutableMapping[str, Any]) -> Self:
        """Take the options out of the arguments of a call of `fit`."""
        own = [name for name in cls.__dataclass_fields__ if name != "source"]
        source = {name: arguments.pop(name) for name in SOURCE if name in arguments}
        return cls(**{name: arguments.pop(name) for name in own}, source=source)
