"""What is wrong with batches: texts of warnings, with their thresholds.

The notes of `batch_effects` say where the thresholds are from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import shown, such_as
from ..design.confounding import confounded

if TYPE_CHECKING:
    from .effects_result import BatchEffects

Array = NDArray[Any]
# Concentration of a topic in one batch; standard error of log efficiencies; mean AUC.
ONE_BATCH, UNCERTAIN, APART = 0.8, 0.15, 0.7
# Spread of efficiencies that matters, and the weight of the prior that is too much.
_SPREAD, _OF_PRIOR = 0.1, 0.5


def warnings_of(effects: BatchEffects) -> Iterator[str]:
    """Yield the warnings of a result."""
    yield from _of_conditions(effects)
    yield from _of_topics(effects)
    yield from _of_samples(effects)
    yield from _of_counts(effects)


def _of_conditions(effects: BatchEffects) -> Iterator[str]:
    if effects.condition_sizes is not None and effects.conditions is not None:
        text = confounded(effects.condition_sizes, effects.conditions)
        if text is not None:
            yield text


def _of_topics(effects: BatchEffects) -> Iterator[str]:
    in_one = effects.concentration >= ONE_BATCH
    if effects.uncertainty is not None:
        in_one &= effects.uncertainty >= UNCERTAIN
    for k in np.flatnonzero(in_one):
        topic, batch = shown(effects.topic_names[k]), shown(effects.batches[effects.homes[k]])
        there = f"topic {topic} has {effects.concentration[k]:.0%} of its weight in batch {batch}"
        if effects.uncertainty is None:
            yield f"{there}: it may be the batch. Fit with batch=."
        else:
            yield (
                f"{there}: the frequencies of its features cannot be separated from the "
                f"efficiencies of this batch, for which the prior decides (standard error of their "
                f"logarithms {effects.uncertainty[k]:.2f})."
            )


def _of_samples(effects: BatchEffects) -> Iterator[str]:
    area = effects.mean_auc
    if area is None or area < APART:
        return
    told = f"samples of a cluster tell their batch by their topics (AUC {area:.2f})"
    if effects.efficiencies is None:
        yield f"{told}: batches differ, or their samples do. Fit with batch= and compare."
    elif not (effects.concentration >= ONE_BATCH).any():  # such a topic tells its batch
        yield (
            f"{told} although the fit has efficiencies: their samples differ, or effects differ "
            "between topics, or the fit is a poor optimum. Try other starts, and more topics."
        )


def _of_counts(effects: BatchEffects) -> Iterator[str]:
    shape, weights = effects.shape, effects.of_prior
    if weights is None or shape is None or not 0 < shape <= _SPREAD**-2:
        return
    few = np.flatnonzero(weights > _OF_PRIOR)
    if few.size:
        names = such_as(shown(effects.batches[b]) for b in few)
        yield (
            f"{few.size:,} batches have so few counts that their efficiencies are mostly those of "
            f"the prior: {names}. Join small batches that were measured alike."
        )
