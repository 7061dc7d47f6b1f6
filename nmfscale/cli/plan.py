"""The option --plan of fit: what a fit would cost, on this machine and with workers."""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

from .messages import say

# Nonzero counts times components of an iteration on the sample of the counts, and of the smaller
# sample; iterations, the last of which are measured: whole periods of what the default solver does
# only in some iterations.
_WORK, _SMALLER, _ITERATIONS, _MEASURED = 1e7, 4, 13, 6
# Iterations of a typical fit.
_TYPICAL = 100
# How much slower the advised number of workers may be than the fastest.
_AS_FAST = 1.05


def check_plan(arguments: argparse.Namespace, kind: Any) -> None:
    """Refuse options that a plan does not use, and those that only a plan has."""
    if not arguments.plan:
        if arguments.plan_nonzeros is not None:
            arguments.usage("--plan-nonzeros is for --plan, which runs no fit")
        return
    for option in ("scheduler", "checkpoint", "write_h5ad"):
        if getattr(arguments, option) is not None:
            name = f"--{option.replace('_', '-')}"
            remedy = "; for N workers: --workers N" if option == "scheduler" else ""
            arguments.usage(f"--plan runs no fit and takes no {name}{remedy}")
    if "max_iter" not in kind._parameter_constraints:
        arguments.usage(f"--plan is for models that iterate, not {arguments.model}")


def say_plan(model: Any, counts: Any, arguments: argparse.Namespace, **how: Any) -> int:
    """Print what the fit of a model would cost; return the exit code."""
    from ..counts.blocks import SLICE_BYTES
    from ..counts.sizes import readable
    from ..engine.plan import RepeatedCounts, needs_of, plan_layouts, seconds_of_reading

    rates, spent = _measured_rates(model, counts, how.get("y"))
    if arguments.plan_nonzeros is not None:
        counts = RepeatedCounts(counts, arguments.plan_nonzeros)
    counts, needs = needs_of(lambda: model.fit(counts, **how))
    layouts = _layouts(arguments)
    plans = plan_layouts(counts, needs, rates, layouts)
    n_blocks, stored = plans[0].n_blocks, SLICE_BYTES * counts.nnz
    size = f"{counts.shape[0]:,} x {counts.shape[1]:,}, {counts.nnz:,} nonzero counts"
    say(f"planned         {size} in {n_blocks:,} block{'s' * (n_blocks > 1)}; nothing is fitted")
    say(f"disk            {readable(stored)} for a packed store")
    if len(plans) > 1:
        say(f"                {readable(counts.shape[0] * needs.saved_row)} for saved loadings")
    say(f"\n{'':<16}{'memory, at least':>17}{'counts in memory':>18}{'this process':>14}"
        f"{'blocks each':>13}{'s an iteration':>16}")  # fmt: skip
    for plan in plans:
        name = _name_of(plan)
        driver = readable(plan.driver_bytes) if plan.n_workers else ""
        say(f"{name:<16}{readable(plan.least_bytes):>17}{readable(plan.kept_bytes):>18}"
            f"{driver:>14}{plan.n_blocks:>13,}{plan.seconds:>16.3g}")  # fmt: skip
    chosen = _advised(plans)
    total = f"{_TYPICAL} iterations {_duration(_TYPICAL * chosen.seconds)}"
    most = _duration(model.max_iter * chosen.seconds)
    say(f"\nadvised         {_name_of(chosen)}: {total}, max_iter={model.max_iter:,} {most}")
    say(f"reading         {seconds_of_reading(counts):.3g} s an iteration at 1 GB/s, while kernels "
        "work, if counts do not stay in memory")  # fmt: skip
    say(f"seconds         a prediction, from {spent:.2g} s of fits of a sample on one processor; "
        "of each of n_init starts")  # fmt: skip
    return 0


def _layouts(arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the layouts to compare: this process, and numbers of workers with the same threads."""
    from ..engine.threads import available_processors

    workers = arguments.workers
    n_threads = arguments.threads or max(1, available_processors() // (workers or 1))
    if workers is None:
        return [(0, n_threads)]
    n_processors = workers * n_threads
    numbers = {1, 2, 4, workers, n_processors}
    whole = sorted(n for n in numbers if n_processors % n == 0)
    return [(0, n_processors), *((n, n_processors // n) for n in whole)]


def _name_of(plan: Any) -> str:
    where = f"{plan.n_workers} x" if plan.n_workers else "here,"
    return f"{where} {plan.n_threads} thread{'s' * (plan.n_threads > 1)}"


def _duration(seconds: float) -> str:
    """Return seconds as text, in the largest unit that is not above them."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s"


def _advised(plans: list[Any]) -> Any:
    """Return the plan with the fewest workers that is nearly as fast as the fastest."""
    of_workers = plans[1:] or plans
    fastest = min(plan.seconds for plan in of_workers)
    return next(plan for plan in of_workers if plan.seconds <= _AS_FAST * fastest)


def _measured_rates(model: Any, counts: Any, y: Any) -> tuple[Any, float]:
    """Return the rates of a model, from fits of two samples, and the processor seconds of these."""
    import scipy.sparse as sp

    from ..engine.plan import Rates

    begun = time.process_time()
    ends = counts.row_nnz.cumsum()
    wanted = _WORK / model.n_components
    n_large = max(1, min(len(ends), int(ends.searchsorted(wanted)) + 1))
    n_small = max(1, int(ends.searchsorted(int(ends[n_large - 1]) / _SMALLER)))
    rows = sp.vstack([part.matrix(counts.shape[1]) for part in counts.chunks(0, n_large)], "csr")
    seconds = {n: _seconds_of(model, rows[:n], y) for n in (n_small, n_large)}
    more = int(ends[n_large - 1] - ends[n_small - 1])
    per_count = max(0.0, seconds[n_large] - seconds[n_small]) / max(more, 1)
    if not per_count:  # too few counts to tell
        per_count = seconds[n_large] / max(int(ends[n_large - 1]), 1)
    fixed = max(0.0, seconds[n_large] - per_count * int(ends[n_large - 1]))
    return Rates(per_count, fixed), time.process_time() - begun


def _seconds_of(model: Any, rows: Any, y: Any) -> float:
    """Return the mean processor seconds of the last iterations of a short fit, on one thread."""
    import numpy as np
    from sklearn.base import clone

    times: list[float] = []
    wanted = {
        "max_iter": _ITERATIONS, "tol": 0, "n_init": 1, "n_moves": 0, "validation_fraction": None,
        "n_threads": 1, "memory_limit": None, "verbose": 0, "integer": "allow",
        "callback": lambda record: times.append(time.process_time()),
    }  # fmt: skip
    constraints = model._parameter_constraints
    if any("random" in getattr(choice, "options", ()) for choice in constraints.get("init", ())):
        wanted["init"] = "random"
    short = clone(model).set_params(**{n: value for n, value in wanted.items() if n in constraints})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short.fit(rows, **({} if y is None else {"y": y[: rows.shape[0]]}))
    return float(np.diff(times)[-_MEASURED:].mean())
