"""The loop of every fit: resume, save, record, stop."""

from __future__ import annotations

from .checkpoint import Checkpoint, CheckpointError
from .monitor import Monitor
from .protocol import Model


def fit(model: Model, monitor: Monitor, checkpoint: Checkpoint | None = None) -> None:
    """Run a model until the monitor says stop.

    In each iteration the model looks at the point reached so far, whose record decides whether to
    go on, and then goes to the next. The record of the last point is that of what is handed back.
    """
    model.start()
    iteration = _resume(model, monitor, checkpoint)
    while iteration < monitor.max_iter:
        if checkpoint is not None and (monitor.interrupted or checkpoint.due()):
            _save(model, monitor, checkpoint, iteration)
        record = model.observe(iteration)
        if record is not None:
            monitor.record(**record)
        # a fit that was interrupted is saved first, at the beginning of the next iteration
        unsaved = monitor.interrupted and checkpoint is not None and checkpoint.saved != iteration
        finished = monitor.finished and not unsaved
        if finished and not model.ends_with_update:
            monitor.forget_last()
            break
        iteration += 1
        ending = finished or iteration == monitor.max_iter
        model.update(iteration, ending)
        if ending:
            break
    converged, interrupted = monitor.converged, monitor.interrupted
    monitor.record(**model.finish(converged))
    # what the end finds may show convergence, but does not take it back
    monitor.converged, monitor.interrupted = converged or monitor.converged, interrupted


def _resume(model: Model, monitor: Monitor, checkpoint: Checkpoint | None) -> int:
    """Stand where the last checkpoint was taken, if there is one; return the iteration."""
    found = None if checkpoint is None else checkpoint.load()
    if found is None:
        return 0
    numbers, arrays = found
    for name, expected in model.snapshot()[1].items():
        if name in arrays and arrays[name].shape != expected.shape:
            raise CheckpointError(
                f"a checkpoint has {name} of shape {arrays[name].shape}, not {expected.shape}: "
                "it is damaged, or of another fit."
            )
    model.restore(numbers["model"], arrays)
    monitor.restore(numbers["monitor"])
    return int(numbers["iteration"])


def _save(model: Model, monitor: Monitor, checkpoint: Checkpoint, iteration: int) -> None:
    numbers, arrays = model.snapshot()
    everything = {"iteration": iteration, "model": numbers, "monitor": monitor.state()}
    checkpoint.save(iteration, everything, arrays)
