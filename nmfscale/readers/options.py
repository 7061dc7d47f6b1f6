"""Options that say what to read: `as_counts` documents them, and every estimator takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

from numpy.typing import ArrayLike

from ..counts.argument_types import MaskLike
from .formats.text_tables import SamplesIn
from .streams.joined import Join
from .streams.modalities import ModalityWeighting


class TableOptions(TypedDict, total=False):
    """Keyword arguments of `as_counts` that say what to read from a file or object."""

    groups: str | None
    genome: str | None
    feature_type: str | Sequence[str] | None
    transpose: bool | None
    modality: str | Sequence[str] | None
    samples_in: SamplesIn | None
    names: str | None
    feature_names: ArrayLike | Mapping[int, str] | None
    sample_names: ArrayLike | None
    mask_var: MaskLike | None
    mask_obs: MaskLike | None


class SourceOptions(TableOptions, total=False):
    """The same, with the options of several files or objects, and of several modalities."""

    join: Join
    labels: Sequence[str] | None
    modality_weights: ModalityWeighting | Mapping[str, float] | Sequence[float] | None


SOURCE = (*TableOptions.__annotations__, "join", "labels", "modality_weights")


def check_source(
    source: Mapping[str, Any],
    caller: str,
    parameters: Collection[str] = (),
    arguments: Collection[str] = (),
) -> None:
    """Refuse an unknown keyword argument.

    `parameters` are those of a model, and `arguments` those of its `fit`, for the message.
    """
    for name in source:
        if name in ("layer", "raw", *SOURCE):
            continue
        if name in parameters:
            raise TypeError(
                f"{name} is a parameter of the model: use {caller}({name}=...), or "
                f"set_params({name}=...)."
            )
        own = f"arguments of fit are {', '.join(arguments)}; " if arguments else ""
        raise TypeError(
            f"{caller} got an unexpected keyword argument {name!r}; {own}options of the source are "
            f"layer, raw, {', '.join(SOURCE)}."
        )
