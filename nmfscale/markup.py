"""Tables as HTML, for notebooks and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def table(columns: Mapping[str, Sequence[Any]], *, sortable: bool = False) -> str:
    """Return a table with a row for each entry of the columns; numbers have four digits.

    The headings of a `sortable` table are buttons, which the page has to connect.
    """
    heading = "<button type='button'>{}</button>" if sortable else "{}"
    kind, sort = (" class='sortable static'", " aria-sort='none'") if sortable else ("", "")
    heads = "".join(
        f"<th scope='col'{sort}>{heading.format(escape(str(name)))}</th>" for name in columns
    )
    rows = zip(*columns.values(), strict=True)
    lines = "\n".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return f"<table{kind}><thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>"


def _cells(row: Iterable[Any]) -> str:
    texts = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row)
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"
