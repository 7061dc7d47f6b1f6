"""A section of a report: its text, table and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import markup

# Leading features of each topic as text, None if features have no names.
Words = tuple[str, ...] | None


@dataclass
class Section:
    """A part of the page with a heading.

    `kind` is its name in links, which contains nothing of a user's text. `table` maps headings of
    columns to their cells, one for each row; `charts` are drawn side by side; `legend` has colours
    and names.
    """

    kind: str
    title: str
    text: list[str] = field(default_factory=list)
    charts: list[Any] = field(default_factory=list)
    table: Mapping[str, Sequence[Any]] | None = None
    legend: list[tuple[str, str]] = field(default_factory=list)

    @property
    def markup(self) -> str:
        """Return the table as HTML."""
        return "" if self.table is None else markup.table(self.table, sortable=True)


def titled(what: str, result: Any) -> str:
    """Return the title of a result, with the names of the columns that it was made from."""
    origin = result.origin
    return f"{what}: {origin}" if origin.groups else f"{what} {origin}".rstrip()
