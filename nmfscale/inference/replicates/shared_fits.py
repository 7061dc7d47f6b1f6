"""Fits to the same counts as replicates of a job: they share the reads of counts in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...cluster.pool import memory_of_task
from ...counts.base import CountMatrix
from ...counts.shared import share_reads
from ...engine.memory import fits_within, reads_anew
from ...readers.open import as_counts
from ...storage.store import StoredCounts

T = TypeVar("T")
# Number of fits that share each read of a file: reading then takes a small part of the time.
_TOGETHER = 16


def counts_of_job(
    X: Any, memory_limit: Any, client: Any, *, integer: Any = "allow", **part: Any
) -> CountMatrix:
    """Open counts; other files than packed stores are streamed here, with a limit only."""
    in_memory = memory_limit is None or client is not None
    counts = as_counts(
        X, integer=integer, subject="X", in_memory=in_memory, memory_limit=memory_limit, **part
    )
    if client is not None and counts.from_file and not isinstance(counts, StoredCounts):
        raise ValueError(
            "X is read from its file piece by piece, and a cluster needs a packed store "
            "(nmfscale.write_store), or counts in memory (nmfscale.read_counts)."
        )
    return counts


def file_of(counts: CountMatrix) -> tuple[str, tuple[int, ...]]:
    """Return the path and identity of the packed store that workers read, if counts are in one."""
    if not isinstance(counts, StoredCounts):
        return "", ()
    file = counts.layout().file
    return str(file.path), file.mark


def objective_of(model: Any) -> NDArray[Any]:
    """Return the objective at the end of a fit, an array of one number; 0 without a history."""
    history = getattr(model, "history_", None)
    if history is None or not len(history):
        return np.zeros(())
    return np.asarray(float(history[history.dtype.names[2]][-1]))


def fits_per_read(
    counts: CountMatrix, estimator: Any, n_components: int, dtype: Any, n_threads: int,
    **needs: Any,
) -> int:  # fmt: skip
    """Return how many fits share each read on the machine that does them, as memory allows.

    Fits have starts that are given, which need no memory of their own. Reads are shared by models
    that tell the memory of a fit, `needs_of_fit`.
    """
    if not hasattr(estimator, "needs_of_fit"):
        return 1
    memory = estimator.needs_of_fit(counts, n_components, dtype, n_threads, **needs)
    limit = estimator.memory_limit or memory_of_task()
    return fits_within(counts, memory._replace(start=0), limit, _TOGETHER)


def fits_per_read_on_worker(counts: CountMatrix, estimator: Any) -> int:
    """Return how many fits share each read on a worker, at most."""
    return _TOGETHER if reads_anew(counts) and hasattr(estimator, "needs_of_fit") else 1


def fit_together(counts: CountMatrix, fits: Sequence[Callable[..., T]], n_threads: int) -> list[T]:
    """Call ``fit(n_threads, counts, **options)`` of some fits, which share each read."""
    if len(fits) == 1:
        return [fits[0](n_threads, counts)]
    # computed once: each fit would otherwise read the counts for them
    _ = counts.row_log_factorials, counts.row_x_log_x
    of_fit = max(1, n_threads // len(fits))
    functions = [partial(fit, of_fit, memory_limit=sys.maxsize) for fit in fits]
    return share_reads(counts, functions, at_once=n_threads // of_fit)
