"""Deferral of Ctrl-C during operations that must not be interrupted halfway."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class DeferredInterrupts:
    """Record each Ctrl-C inside `with`; deliver it when `deliver` is called and at the end.

    Only the main thread receives a Ctrl-C: in other threads this does nothing, nor if Python does
    not handle the signal.
    """

    def __init__(self) -> None:
        self._handler: Any = None
        self._pressed: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> DeferredInterrupts:
        """Replace the handler of Ctrl-C."""
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the handler of Ctrl-C, and deliver what was recorded."""
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        self.deliver()

    def deliver(self) -> None:
        """Call the handler of Ctrl-C once for each time that it was pressed."""
        while self._pressed:
            self._handler(*self._pressed.pop())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pressed.append((number, frame))
