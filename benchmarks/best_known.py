"""The highest log-likelihoods of a Poisson NMF that any run has found, in results/best_known.csv.

A row for each counts and K: the log-likelihood, how it was found, and the date. Factors are not
kept. Benchmarks compare their fits with these numbers, and replace those that they exceed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

PATH = Path(__file__).resolve().parent / "results" / "best_known.csv"
COLUMNS = "counts", "K", "loglik", "found_by", "date"
# Log-likelihoods that differ by less are the same optimum.
SAME = 1.0

Key = tuple[str, int]


def rows() -> dict[Key, dict]:
    """Return the row of each counts and K."""
    if not PATH.exists():
        return {}
    with PATH.open(newline="") as file:
        return {(row["counts"], int(row["K"])): row for row in csv.DictReader(file)}


def values() -> dict[Key, float]:
    """Return the log-likelihood of each counts and K."""
    return {key: float(row["loglik"]) for key, row in rows().items()}


def update(fits: Iterable[tuple[str, int, float, str]]) -> dict[Key, float]:
    """Replace numbers that fits (counts, K, log-likelihood, how found) exceed; return all."""
    best, today = rows(), datetime.now(UTC).date().isoformat()
    for name, K, loglik, found_by in fits:
        known = best.get((name, K))
        if known is None or loglik > float(known["loglik"]) + SAME:
            text = f"{loglik:.1f}"
            best[name, K] = dict(zip(COLUMNS, (name, K, text, found_by, today), strict=True))
    with PATH.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(best[key] for key in sorted(best))
    return values()
