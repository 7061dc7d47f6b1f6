"""The iteration loop of all fits: resume, save, record, stop."""

from __future__ import annotations

from typing import Any

from .checkpoint import Checkpoint, CheckpointError
from .monitor import Monitor
from .protocol import Method


def begin(
    method: Method, monitor: Monitor, checkpoint: Checkpoint | None = None, rng: Any = None
) -> int:
    """Restore the last checkpoint, or move to the start; return the iteration.

    The start draws from `rng`. After a restore, its state is that at the end of the start, so that
    later starts draw the same numbers.
    """
    state = None if checkpoint is None else checkpoint.load()
    if state is None:
        method.start()
        return 0
    numbers, arrays = state
    for name, expected in method.shapes().items():
        shape = arrays[name].shape if name in arrays else None
        if shape != expected:
            raise CheckpointError(
                f"a checkpoint has {name} of shape {shape}, not {expected}: it is damaged, or of a "
                "different fit."
            )
    method.restore(numbers["model"], arrays)
    monitor.restore(numbers["monitor"])
    if rng is not None:
        rng.set_state(numbers["random"])
    return int(numbers["iteration"])


def fit(
    method: Method, monitor: Monitor, checkpoint: Checkpoint | None = None, iteration: int = 0,
    rng: Any = None,
) -> None:  # fmt: skip
    """Iterate a method that has begun until the monitor stops it.

    In each iteration the method evaluates the current point, whose record decides whether to
    continue, and then moves to the next point. The last record is that of the returned point.
    """
    while iteration < monitor.max_iter:
        if checkpoint is not None and (monitor.interrupted or checkpoint.due()):
            _save(method, monitor, checkpoint, iteration, rng)
        record = method.observe(iteration)
        there = False  # the point at which a converged fit would end
        if record is not None:
            measured = method.residuals_here() if monitor.asks(record) else None
            monitor.record(measured=measured, **record)
            there = monitor.converged and measured is not None
        # an interrupted fit is saved first, at the beginning of the next iteration
        unsaved = monitor.interrupted and checkpoint is not None and checkpoint.saved != iteration
        finished = monitor.finished and not unsaved
        if finished and monitor.records and (there or not method.ends_with_update):
            monitor.forget_last()
            break
        iteration += 1
        ending = finished or iteration == monitor.max_iter
        method.update(iteration, ending)
        if ending:
            break
    monitor.end(method.finish)


def _save(
    method: Method, monitor: Monitor, checkpoint: Checkpoint, iteration: int, rng: Any
) -> None:
    numbers, arrays = method.snapshot()
    everything = {"iteration": iteration, "model": numbers, "monitor": monitor.state()}
    if rng is not None:
        everything["random"] = _plain(rng.get_state(legacy=False))
    checkpoint.save(iteration, everything, arrays)


def _plain(state: Any) -> Any:
    """Return the state of a random generator in a form that JSON can store."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state
