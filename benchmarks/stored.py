"""fastTopics without R: its stored curves, scaled by this package's coordinate descent.

Both programs run the same algorithm from the same start, so they take the same iterations. If this
package takes longer (or less long) in this run than in the run of the stored curves, this is
attributed to the machine. This requires the same instruction set in both runs, because fastTopics
does not benefit from wider vectors.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import report
from report import Curve

NAME = "fasttopics.csv"
PEER, YARD = "fastTopics", "scd float64, loop only"


def write(curves: list[Curve], path: Path) -> None:
    """Store the curves of a run that includes fastTopics."""
    rows = [
        {
            "problem": curve.problem, "program": curve.program, "version": curve.version,
            "peak": curve.peak, "final": curve.final, "seconds": f"{seconds:.6f}",
            "loglik": f"{loglik:.6f}",
        }
        for curve in curves
        if curve.program.startswith(PEER) or curve.program == YARD
        for seconds, loglik in zip(curve.seconds, curve.loglik, strict=True)
    ]  # fmt: skip
    report.write_csv(path, rows)


def read(problem: str, path: Path) -> dict[str, Curve]:
    """Return the stored curves of a problem, by program."""
    points: dict[str, list[dict]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["problem"] == problem:
                points.setdefault(row["program"], []).append(row)
    curves = {}
    for program, rows in points.items():
        seconds, loglik = (np.array([float(row[n]) for row in rows]) for n in ("seconds", "loglik"))
        first = rows[0]
        curves[program] = Curve(
            problem, program, seconds, loglik, float(first["final"]), float(first["peak"]),
            first["version"], seconds[None], True,
        )  # fmt: skip
    return curves


def level(curve: Curve) -> str:
    """Return the instruction set with which a curve of this package was measured."""
    return curve.version.partition(" ")[2]


def scaled(problem: str, curves: list[Curve]) -> list[Curve]:
    """Return the stored curves of fastTopics, scaled to the machine of this run."""
    now = [curve for curve in curves if curve.program == YARD]
    files = (read(problem, path) for path in sorted((report.HERE / "results").rglob(NAME)))
    stored = next((c for c in files if now and YARD in c and level(c[YARD]) == level(now[0])), None)
    if stored is None:
        return []
    within_10 = stored[YARD].loglik.max() - 10
    factor = now[0].reach(within_10)[0] / stored[YARD].reach(within_10)[0]
    found = []
    for program, curve in stored.items():
        if program.startswith(PEER):
            name, comma, clock = program.partition(",")
            scaled_name = f"{name} (scaled {factor:.2f} times){comma}{clock}"
            seconds, version = factor * curve.seconds, f"{curve.version} (stored)"
            found.append(
                replace(
                    curve, program=scaled_name, seconds=seconds, runs=seconds[None], version=version
                )
            )
    return found
