"""What a result of groups was made from: columns of labels, and leading features of topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Origin:
    """What a result of groups was made from, for titles and labels.

    Attributes
    ----------
    groups, units, strata : str or None
        Names of the labels: of a column of ``obs`` or of a file, or of a pandas Series. Empty if
        labels have no name, such as a list; None if there were none.
    topic_words : tuple of str or None
        Leading features of each topic, such as "file, files"; None if features have no names.
    """

    groups: str | None = None
    units: str | None = None
    strata: str | None = None
    topic_words: tuple[str, ...] | None = None

    @classmethod
    def of(cls, topic_words: tuple[str, ...] | None = None, **labels: Any) -> Origin:
        """Return the origin of a result, given the arguments `groups`, `units` and `strata`."""
        names = {which: _name_of(labels_of_kind) for which, labels_of_kind in labels.items()}
        return cls(topic_words=topic_words, **names)

    def __str__(self) -> str:
        """Return names of columns as text, such as "cell_type (units: donor, strata: batch)".

        Labels without a name are left out.
        """
        more = [
            f"{which}: {name}"
            for which, name in (("units", self.units), ("strata", self.strata))
            if name
        ]
        beside = f"({', '.join(more)})" if more else ""
        return " ".join(part for part in (self.groups, beside) if part)


def _name_of(labels: Any) -> str | None:
    if labels is None:
        return None
    name = getattr(labels, "name", None)
    return "" if name is None else str(name)
