"""Seeds: features that topics are to have, by names, as pseudo-counts of a prior."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from ...counts.argument_types import PathLike
from ...counts.base import CountMatrix
from ...counts.names import as_text, names_of, shown, such_as
from ...counts.warn import warn_caller
from ...readers.gene_sets import read_gmt

Array = NDArray[Any]
Seeds: TypeAlias = Mapping[str, Sequence[str]] | PathLike
# Constraints on the two parameters of models with seeds.
OF_SEEDS: dict[str, list[Any]] = {
    "seeds": [Mapping, str, os.PathLike, None],
    "seed_weight": [Interval(Real, 0, 1e6, closed="right")],
}


@dataclass(frozen=True)
class SeededTopics:
    """Names (K,) of all topics, and pseudo-counts (m, K) of seeds, 0 for all other features."""

    names: Array
    pseudo: Array

    def prior(self, other: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        """Return pseudo-counts and rates of a Gamma prior of factors, added to another one.

        A rate of 0 becomes 1 in seeded topics, whose scale would otherwise grow without end.
        """
        rate = np.broadcast_to(self.pseudo.any(axis=0).astype(np.float64), self.pseudo.shape)
        if other is None:
            return self.pseudo, rate
        return other[0] + self.pseudo, np.where(other[1] > 0, other[1], rate)


def seeds_of_fit(model: Any, counts: CountMatrix) -> SeededTopics | None:
    """Return the seeds of a model for these counts; warn of seeds that the counts lack."""
    return _seeded(model, counts.feature_names, counts.column_totals, warns=True)


def seeds_of_model(model: Any) -> SeededTopics | None:
    """Return the seeds of a fitted model, in its fit."""
    totals = getattr(model, "feature_totals_", None)
    return None if totals is None else _seeded(model, names_of(model, 1), totals, warns=False)


def _seeded(model: Any, names: Any, totals: Array, *, warns: bool) -> SeededTopics | None:
    if getattr(model, "seeds", None) is None:
        return None
    seeds, K = _checked(model.seeds), model.n_components
    if len(seeds) > K:
        raise ValueError(
            f"seeds are of {len(seeds)} topics, and n_components={K}: set n_components to "
            f"{len(seeds)} or, for further topics without seeds, to more."
        )
    if names is None:
        raise ValueError(
            "seeds are names of features, and X has no names: pass a DataFrame or AnnData object, "
            "or feature_names= to fit."
        )
    place = _places(names)
    lacking = list[str]()
    for topic, words in seeds.items():
        missing = [word for word in words if word not in place]
        if words and len(missing) == len(words):
            raise ValueError(
                f"seeds[{shown(topic)}]: X has none of {such_as(words)}: seeds need the names of "
                f"features of X, such as {such_as(place)}."
            )
        lacking += missing
    if lacking and warns:
        warn_caller(
            f"X lacks {len(lacking):,} of the {sum(map(len, seeds.values())):,} seeds, such as "
            f"{such_as(lacking)}: they are left out. Check their spelling, or whether X has other "
            "names of the same features."
        )
    named = [*seeds, *(f"topic {k}" for k in range(len(seeds), K))]
    if repeated := [name for name in seeds if named.count(name) > 1]:
        raise ValueError(f"seeds: {shown(repeated[0])} is the name of a topic without seeds, too.")
    return SeededTopics(np.array(named, object), pseudo_counts(model, names, totals))


def pseudo_counts(model: Any, names: Any, totals: Array) -> Array:
    """Return the pseudo-counts (m, K) of the seeds of a model among features with these totals."""
    place, pseudo = _places(names), np.zeros((len(totals), model.n_components))
    for k, words in enumerate(_checked(model.seeds).values()):
        there = [j for word in words for j in place.get(word, ())]
        pseudo[there, k] = model.seed_weight * np.asarray(totals, np.float64)[there]
    return pseudo


def _places(names: Any) -> dict[str, list[int]]:
    """Return the features of each name, as text."""
    place: dict[str, list[int]] = {}
    for j, name in enumerate(as_text(names).tolist()):
        place.setdefault(name, []).append(j)
    return place


def seed_features(model: Any) -> list[list[int]]:
    """Return the features, by their numbers, that are seeds of each topic of a fitted model."""
    names = names_of(model, 1)
    if getattr(model, "seeds", None) is None or names is None:
        return []
    place = _places(names)
    lists = _checked(model.seeds).values()
    return [[j for word in dict.fromkeys(words) for j in place.get(word, ())] for words in lists]


def _checked(seeds: Any) -> dict[str, list[str]]:
    """Return the seeds of each topic, which may be in a GMT file."""
    if isinstance(seeds, str | os.PathLike):
        return read_gmt(seeds)
    lists = dict[str, list[str]]()
    for topic, words in seeds.items():
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"seeds: {shown(topic)} is no name of a topic: text is needed.")
        if isinstance(words, str) or not isinstance(words, Iterable):
            raise ValueError(
                f"seeds[{shown(topic)}] is {shown(words)}: a list of names of features is needed."
            )
        lists[topic] = as_text(words).tolist()
    return lists


def seeded_prior(
    eta: Any, seeded: SeededTopics | None, collapsed: bool
) -> tuple[Any, Any, Array | None]:
    """Return the prior of topics with seeds; and for collapsed inference, a number and the rest.

    `eta` is a number or (m, K).
    """
    own = eta if seeded is None else eta + seeded.pseudo
    if not collapsed or np.ndim(own) == 0:
        return own, eta, None
    base = float(own.min()) if np.ndim(eta) else eta
    return own, base, own - base
