"""What is said to the user, and where: results to standard output, the rest to standard error."""

from __future__ import annotations

import os
import sys
from typing import Any


def say(text: str) -> None:
    """Print a result; a reader that stopped listening does not stop the work."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
