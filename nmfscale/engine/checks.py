"""Checks of the declarations of steps, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .protocol import Step


def check_step(step: Step, way: str = "run") -> None:
    """Refuse a step whose declarations contradict each other, or that cannot be run this way.

    `way` is the method of the executor that runs the step: "run", "apply" or "stream".
    """
    name, arrays = type(step).__name__, step.arrays
    if step.reads not in (None, "rows", "columns"):
        raise ValueError(f"{name} reads {step.reads!r}: a step reads 'rows', 'columns' or None.")
    for field in step.shared:
        value = getattr(step, field)
        if not (value is None or isinstance(value, np.ndarray)):
            raise ValueError(
                f"{name} shares {field!r}, which is a {type(value).__name__}: a cluster gets "
                "arrays once, so that fields in `shared` are arrays of NumPy, or None."
            )
    if arrays.saves and (lost := set(arrays.saves) - set(arrays.makes)):
        raise ValueError(f"{name} saves {min(lost)!r}, which it does not make.")
    for alias, source in arrays.aliases:
        if alias not in arrays.makes or source not in (*arrays.uses, *arrays.makes):
            raise ValueError(
                f"{name} has the alias {alias!r} of {source!r}: a step makes the alias, and makes "
                "or uses what it equals."
            )
    if way == "run":
        return
    if step.empty_sums():
        raise ValueError(f"{name} adds to sums, which {way} does not return: use run.")
    if way == "apply" and step.reads is not None:
        raise ValueError(f"{name} reads the {step.reads} of the counts: use run, not apply.")
    if not arrays.makes:
        raise ValueError(f"{name} makes no row array, so that {way} has no effect: use run.")


def check_steps(steps: Sequence[Step], way: str = "run") -> None:
    """Refuse steps that cannot be run together: each as `check_step`, and arrays made twice."""
    for i, step in enumerate(steps):
        check_step(step, way)
        if i + 1 == len(steps):
            return
        later = {name for other in steps[i + 1 :] for name in other.arrays.makes}
        needed = {*step.arrays.makes, *(source for _, source in step.arrays.aliases)}
        if later & needed:
            raise ValueError(
                f"{type(step).__name__} needs its row array {min(later & needed)!r} to stay, but a "
                "later step of the same run makes it again: run the steps one after the other."
            )
