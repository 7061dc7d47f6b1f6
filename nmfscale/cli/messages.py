"""What is said to the user, and where: results to standard output, the rest to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any


def say(text: str) -> None:
    """Print a result; a reader that stopped listening does not stop the work."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def unread_messages_dropped() -> Iterator[None]:
    """Drop messages and progress that cannot be written: the work goes on without a reader."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        stream: Any = nowhere if sys.stderr is None else _StandardError(sys.stderr, nowhere)
        with redirect_stderr(stream):
            yield


class _StandardError:
    """Standard error that leads nowhere once it cannot be written to."""

    def __init__(self, stream: Any, nowhere: Any) -> None:
        self._stream, self._nowhere = stream, nowhere

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._attempt(self._stream.write, text) or 0

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, act: Any, *given: Any) -> Any:
        try:
            return act(*given)
        except OSError:
            # What is still buffered must not fail again when the interpreter ends.
            os.dup2(self._nowhere.fileno(), self._stream.fileno())


def log(text: str) -> None:
    """Print a message that is no result."""
    print(f"nmfscale: {text}", file=sys.stderr, flush=True)


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on one line, without the place in the source."""
    log(f"warning: {' '.join(str(message).split())}")


def one_line(error: Exception) -> str:
    """Say what went wrong on one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
