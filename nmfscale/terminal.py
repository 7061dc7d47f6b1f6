"""Text for people: control characters made visible, progress as a bar or as lines of a log.

Names come from users' files. A terminal obeys control characters in them: they could clear the
screen, rewrite lines, or set the clipboard. Everything that this package prints, warns of or
returns as a ``repr`` therefore passes through `visible`. Files keep names as they are.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

# C0 without tab and end of line, DEL, C1; and halves of surrogate pairs, which Python uses for
# bytes of file names that are not text, and which no encoding can write.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Seconds between two lines of a log: a tenth of the time so far, within these limits.
_SHARE, _LEAST, _MOST = 0.1, 5.0, 60.0


def visible(text: str) -> str:
    """Return text with control characters as escapes: ESC as a backslash and x1b."""
    return _CONTROLS.sub(_escaped, text)


def visible_name(name: Any) -> str:
    """Return a name on one line: tabs and ends of lines are escapes, too."""
    return re.sub(r"[\t\n]", _escaped, visible(str(name)))


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def table_lines(
    rows: Sequence[Sequence[Any]], *, least: int = 0, leading: bool = False
) -> list[str]:
    """Return a line for each row of a table, whose cells may be names.

    The first column is left-aligned and at least `least` wide; others are right-aligned. With
    `leading`, the last column is left-aligned, too: lists of leading features.
    """
    cells = [[visible_name(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[0] = max(least, widths[0])
    if leading:
        widths[-1] = 0
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in cells
    ]


def encodable(text: str, stream: Any) -> str:
    """Return visible text, with escapes in place of what a stream cannot encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_message(text: str) -> None:
    """Print a message to standard error, if there is one."""
    if sys.stderr is not None:
        print(encodable(visible(text), sys.stderr), file=sys.stderr, flush=True)


def open_bar(
    total: int | None, description: str, unit: str, *, initial: int = 0, delay: float = 0.0,
    unit_scale: bool = False, leave: bool = True, bar_format: str | None = None,
) -> Any:  # fmt: skip
    """Return a bar of tqdm in terminals and notebooks; elsewhere, an object that prints lines.

    Both have the methods ``update``, ``set_description_str``, ``set_postfix_str``, ``write`` and
    ``close``, and are contexts.
    """
    options: dict[str, Any] = {
        "total": total, "desc": visible(description), "unit": unit, "initial": initial,
        "unit_scale": unit_scale, "leave": leave,
    }  # fmt: skip
    in_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not in_terminal and "ipykernel" not in sys.modules:
        return _LogLines(**options)
    from tqdm.auto import tqdm

    return tqdm(file=sys.stderr, dynamic_ncols=True, delay=delay, bar_format=bar_format, **options)


@contextmanager
def progress_bar(
    total: int | None, description: str, unit: str, verbose: int, *, initial: int = 0,
    unit_scale: bool = False,
) -> Iterator[Callable[[int], Any]]:  # fmt: skip
    """Show progress in this context if `verbose`; yield the function that adds to what is done."""
    if verbose < 1:
        yield lambda n: None
        return
    with open_bar(total, description, unit, initial=initial, unit_scale=unit_scale) as bar:
        yield bar.update


class _LogLines:
    """Progress in a file: a line at a time, at most every few seconds, and one at the end.

    Work whose total is unknown has one line, at its beginning. Without `leave` there is no line at
    the end.
    """

    def __init__(
        self, *, total: int | None, desc: str, unit: str, initial: int, unit_scale: bool,
        leave: bool,
    ):  # fmt: skip
        self.total, self._initial = total, initial
        self.n: float = initial
        self._description, self._postfix, self._leave = desc, "", leave
        self._unit, self._unit_scale = unit, unit_scale
        self._started = time.perf_counter()
        self._next = self._started + _LEAST
        if total is None:
            print_message(desc)

    def __enter__(self) -> _LogLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def update(self, n: float = 1) -> None:
        """Add to what is done."""
        self.n += n
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + min(max(_SHARE * (now - self._started), _LEAST), _MOST)
            self._print()

    def set_description_str(self, description: str) -> None:
        """Replace the text before the numbers."""
        self._description = description

    def set_postfix_str(self, postfix: str, refresh: bool = True) -> None:
        """Replace the text after the numbers."""
        self._postfix = postfix

    def write(self, text: str, file: Any = None) -> None:
        """Print a line."""
        print_message(text)

    def close(self) -> None:
        """Print the last line."""
        if self._leave and self.total is not None:
            self._leave = False
            self._print()

    def _print(self) -> None:
        from tqdm import tqdm

        before = f"{self._description}: " if self._description else ""
        numbers = (
            "{percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
        )
        print_message(before + tqdm.format_meter(
            self.n, self.total, time.perf_counter() - self._started, unit=self._unit,
            unit_scale=self._unit_scale, initial=self._initial, postfix=self._postfix,
            bar_format=numbers,
        ))  # fmt: skip
