"""Keyword arguments that methods of all models share, and those of a call of `fit`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from inspect import Parameter
from typing import Any, Self, TypedDict

from numpy.typing import ArrayLike

from ...counts.argument_types import Client, PathLike, RandomStateLike, WeightsLike
from ...counts.signatures import Function, takes_options
from ...readers.options import SOURCE, SourceOptions
from ...readers.streams.matching import Missing


class ReadingOptions(SourceOptions, total=False):
    """What to read: :meth:`nmfscale.PoissonNMF.fit` documents it."""

    layer: str | None
    raw: bool


class FitKeywords(ReadingOptions, total=False):
    """Keyword arguments of every `fit`, which :meth:`nmfscale.PoissonNMF.fit` documents."""

    checkpoint: PathLike | None
    checkpoint_every: float
    resume: bool
    client: Client | None


class SampleOptions(ReadingOptions, total=False):
    """Keyword arguments of methods for new samples: see :meth:`nmfscale.PoissonNMF.transform`."""

    missing: Missing | None
    client: Client | None


class ScoreOptions(SampleOptions, total=False):
    """Keyword arguments of scores, which :meth:`nmfscale.LDA.score` documents."""

    completion: float | None
    random_state: RandomStateLike | None


class WeightedSampleOptions(SampleOptions, total=False):
    """The same, of models with weights of the entries: see :meth:`nmfscale.SSNMF.transform`."""

    data_weights: WeightsLike | None


class GroupOptions(TypedDict, total=False):
    """Panels and batches of samples: :meth:`nmfscale.PoissonNMF.transform` documents them."""

    measured: ArrayLike | None
    panel: ArrayLike | None
    batch: ArrayLike | str | None


class GroupSampleOptions(GroupOptions, SampleOptions, total=False):
    """Keyword arguments of :meth:`nmfscale.GammaPoisson.transform`."""


class GroupScoreOptions(GroupOptions, ScoreOptions, total=False):
    """Keyword arguments of :meth:`nmfscale.GammaPoisson.score`."""


class EntryOptions(GroupOptions, total=False):
    """What was measured: :meth:`nmfscale.PoissonNMF.transform` documents it."""

    data_weights: WeightsLike | None


class EntrySampleOptions(EntryOptions, SampleOptions, total=False):
    """Keyword arguments of :meth:`nmfscale.PoissonNMF.transform`."""


class EntryScoreOptions(EntryOptions, ScoreOptions, total=False):
    """Keyword arguments of :meth:`nmfscale.PoissonNMF.score`."""


@dataclass(frozen=True)
class FitOptions:
    """Values of `FitKeywords`, which no model sees."""

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
    def of(cls, keywords: Mapping[str, Any]) -> Self:
        """Return the options of a call of `fit`; the reader refuses names that it does not know."""
        source = dict(keywords)
        return cls(**{name: source.pop(name) for name in _OF_FIT if name in source}, source=source)

    @classmethod
    def pop(cls, arguments: MutableMapping[str, Any]) -> Self:
        """Take the options out of the arguments of a call of `fit`."""
        names = [name for name in (*_OF_FIT, *SOURCE) if name in arguments]
        return cls.of({name: arguments.pop(name) for name in names})


_OF_FIT = {
    name: value.default
    for name, value in FitOptions.__dataclass_fields__.items()
    if name != "source"
}
# Default values, in the order of all signatures.
_DEFAULTS = {
    "completion": None, "random_state": None, "measured": None, "panel": None,
    "batch": None, "data_weights": None, "missing": None, **_OF_FIT,
}  # fmt: skip
_SOURCE = Parameter("source", Parameter.VAR_KEYWORD, annotation="Unpack[SourceOptions]")


def with_options(options: type) -> Callable[[Function], Function]:
    """Return a decorator of methods with ``**options: Unpack[...]``, of a TypedDict of this module.

    The method gets all options that have a default value, and those of the source that were passed.
    """
    names = options.__annotations__
    defaults = {name: value for name, value in _DEFAULTS.items() if name in names}
    return takes_options(options, defaults, rest=_SOURCE)
