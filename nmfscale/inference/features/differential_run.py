"""Runs the regressions of all features in panels, here or on a cluster, and resumes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.warn import warn_caller
from ...engine.checkpoint import Checkpoint, CheckpointError, digest_of
from ...engine.local import LocalExecutor
from ...engine.monitor import first_ctrl_c
from ...engine.protocol import Executor, Needs
from ...engine.session import session_of_fit
from ...engine.threads import resolve_threads
from ...methods.topics.differential import FeatureDesign, RegressFeatures
from ...terminal import print_message, progress_bar
from ..job import JobOptions

Array = NDArray[Any]
_NAME = "differential features"
_HINT = "With checkpoint= finished features are kept, and resume=True continues from them."


class _Interrupted(Exception):
    """Raised after Ctrl-C, when the panel in hand is finished."""


class _Job:
    """The lanes of the features that are finished, and their results."""

    def __init__(self, n_lanes: int, place: Checkpoint | None, seed: SeedSequence | None):
        self.done, self.arrays = np.zeros(n_lanes, bool), dict[str, Array]()
        self._numbers = {"entropy": None if seed is None else seed.entropy}
        self.interrupted, self._place = False, place
        checkpoint = None if place is None else place.load()
        if checkpoint is not None:
            arrays = checkpoint[1]
            self.done = arrays.pop("done").astype(bool)
            self.arrays = {name: array.copy() for name, array in arrays.items()}
            if any(len(kept) != n_lanes for kept in (self.done, *self.arrays.values())):
                raise CheckpointError("a checkpoint has other features: it is damaged.")

    def known(self, lanes: slice) -> dict[str, Array] | None:
        """Return the results of a panel, or None if some are missing."""
        if not self.done[lanes].all():
            return None
        return {name: array[lanes] for name, array in self.arrays.items()}

    def keep(self, lanes: slice, arrays: dict[str, Array]) -> None:
        """Store the results of a panel."""
        for name, values in arrays.items():
            if name not in self.arrays:
                self.arrays[name] = np.zeros((len(self.done), *values.shape[1:]))
            self.arrays[name][lanes] = values
        self.done[lanes] = True
        if self._place is not None and (self.interrupted or self._place.due()):
            self.save()
        if self.interrupted and not self.done.all():
            raise _Interrupted

    def save(self) -> None:
        """Save the finished features, unless they are saved already."""
        n_done = int(self.done.sum())
        if self._place is not None and n_done and self._place.saved != n_done:
            self._place.save(
                n_done, self._numbers, {"done": self.done.astype(np.uint8), **self.arrays}
            )

    def interrupt(self) -> None:
        """Stop after the current panel."""
        self.interrupted = True
        print_message(
            "interrupted: finishing the current work (press Ctrl-C again to stop at once)"
        )


def run_regressions(
    counts: CountMatrix, step: RegressFeatures, design: FeatureDesign, needs: Needs,
    seed: SeedSequence | None, options: JobOptions,
) -> tuple[dict[str, Array], Array]:  # fmt: skip
    """Return the results of the step by feature (m, ...), and a mask (m,) of finished features.

    Ctrl-C ends the work after the current panels; without a finished feature it is raised. `seed`
    is that of the split of the counts, which checkpoints hold.
    """
    threads = resolve_threads(options["n_threads"], counts.nnz * len(design.whole))
    with session_of_fit(
        options["client"], counts, needs, checkpoint=options["checkpoint"],
        resume=options["resume"], n_threads=options["n_threads"], verbose=options["verbose"],
        hint=_HINT,
    ) as (counts, session):  # fmt: skip
        executor: Executor
        if session is None:
            executor = LocalExecutor(counts.layout(threads), threads)
        else:
            executor = session.executor(counts, threads)  # type: ignore[arg-type]
        for name, array in design.rows(executor.layout).items():
            executor.put(name, array)
        place = None
        if options["checkpoint"] is not None:
            place = Checkpoint(
                options["checkpoint"], _about(counts, step, design),
                every=options["checkpoint_every"], resume=options["resume"],
            )  # fmt: skip
        order = executor.layout.column_order
        job = _Job(len(order), place, seed)
        _run(executor, step, job, counts.shape[1], options["verbose"])
    if not job.done[order >= 0].any():
        raise KeyboardInterrupt
    return _by_feature(job, order, counts.shape[1])


def _run(
    executor: Executor, step: RegressFeatures, job: _Job, n_features: int, verbose: int
) -> None:
    inside = np.concatenate([[0], np.cumsum(executor.layout.column_order >= 0)])
    n_done = int(np.count_nonzero(job.done & (executor.layout.column_order >= 0)))
    with (
        progress_bar(n_features, "features", " features", verbose, initial=n_done) as advance,
        first_ctrl_c(job.interrupt),
    ):
        note = _noting(job, inside, advance)
        try:
            executor.run_columns(step, stored=job.known, note=note)
        except _Interrupted:
            warn_caller(
                f"Ctrl-C ended the work: {int(inside[-1]) - _n_left(job, inside):,} of "
                f"{n_features:,} features are in the result."
            )
        finally:
            job.save()


def _n_left(job: _Job, inside: Array) -> int:
    return int(np.diff(inside)[~job.done].sum())


def _noting(
    job: _Job, inside: Array, advance: Callable[[int], Any]
) -> Callable[[slice, dict[str, Array]], None]:
    """Return the function that keeps the results of a panel and shows progress."""

    def note(lanes: slice, arrays: dict[str, Array]) -> None:
        advance(int(inside[lanes.stop] - inside[lanes.start]))
        job.keep(lanes, arrays)

    return note


def _about(counts: CountMatrix, step: RegressFeatures, design: FeatureDesign) -> dict[str, Any]:
    inputs = digest_of(
        counts.row_totals, counts.column_totals, counts.row_nnz, counts.column_nnz, design.values,
        step.means, step.pseudocount, step.weights, step.totals, step.efficiencies, step.unit_sums,
        design.units, design.groups, step.batch_shape, step.part,
    )  # fmt: skip
    return {"task": _NAME, "inputs": inputs}


def _by_feature(job: _Job, order: Array, n_features: int) -> tuple[dict[str, Array], Array]:
    lanes = np.flatnonzero((order >= 0) & job.done)
    done = np.zeros(n_features, bool)
    done[order[lanes]] = True
    out = {}
    for name, array in job.arrays.items():
        out[name] = np.zeros((n_features, *array.shape[1:]))
        out[name][order[lanes]] = array[lanes]
    return out, done
