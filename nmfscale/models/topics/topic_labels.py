"""Labels of topics in plots and reports: their names, or their numbers and leading features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...counts.names import names_of
from ...methods.topics.feature_scores import ranked_features
from .topics import topic_names_of

# Features in a label, and letters of one of them.
_N_WORDS, _MOST_LETTERS = 2, 12


def topic_words(model: Any) -> tuple[str, ...] | None:
    """Return the leading features of each topic as text, such as "file, files".

    None if `model` is not a model, or its features have no names, or only numbers, such as the
    default index of an AnnData object.
    """
    components, names = getattr(model, "components_", None), names_of(model, 1)
    if components is None or names is None or all(str(name).isdecimal() for name in names):
        return None
    return leading_words(components, names)


def leading_words(components: Any, names: Any, among: Any = None) -> tuple[str, ...]:
    """Return the same for components (K, m) with these names of features.

    `among` is a mask of the features that may lead topics, as of `ranked_features`.
    """
    _, leading = ranked_features(components, _N_WORDS, among=among)
    return tuple(
        ", ".join(shortened(str(names[j]), _MOST_LETTERS) for j in order) for order in leading
    )


def topic_labels(names: Sequence[Any], words: Sequence[str] | None) -> list[str]:
    """Return labels of topics, given their names and leading features.

    A topic with a name of its own is labelled by it; one that has only a number, such as 0,
    "topic 0" or "topic_0", by its number and words: "0 file, files". Without words it is "topic 0".
    """
    labels = []
    for k, name in enumerate(names):
        if name != k and str(name) not in (f"topic {k}", f"topic_{k}"):
            labels.append(str(name))
        elif words is None or not words[k]:
            labels.append(f"topic {k}")
        else:
            labels.append(f"{k} {words[k]}")
    return labels


def labels_of(model: Any) -> list[str]:
    """Return the labels of the topics of a fitted model."""
    names = topic_names_of(model, len(model.components_))
    return topic_labels(names, topic_words(model))


def all_shortened(names: Sequence[Any], most: int) -> dict[Any, str]:
    """Shorten names, and those that would become the same by as much less as distinguishes them."""
    short = {name: shortened(str(name), most) for name in names}
    counted = Counter(short.values())
    alike = [name for name in short if counted[short[name]] > 1]
    if alike and most < max(len(str(name)) for name in alike):
        short |= all_shortened(alike, most + 4)
    return short


def shortened(name: str, most: int) -> str:
    """Shorten a long name in the middle: its ends distinguish it from others."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}\N{HORIZONTAL ELLIPSIS}{name[-end:]}"
