"""Rejection rates of tests, and coverage of intervals, where groups have equal means.

Sets of samples are simulated (calibration_sets.py) whose groups have the same mean proportions, but
different sizes, spreads, numbers of samples per unit, or numbers of counts per sample. Tests at the
5% level should reject in 5% of the sets, and 95% intervals should cover the truth in 95%. A share
is printed in bold if it deviates by more than three standard errors.

    python benchmarks/calibration.py                          everything, one hour
    python benchmarks/calibration.py --methods welch --scenarios "8 wide"   names with this prefix
    python benchmarks/calibration.py --smoke                  a few seconds, writes nothing

The results of each method are kept in results/calibration_*.csv, with one line for each kind of
set. A run replaces the lines that it measured, and writes the tables in README.md from all lines.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import report
from calibration_means import Outcome, effects, fits, regression, rejected, weights
from calibration_sets import FITS, SETS, Drawn

from nmfscale import permutation_test

GROUPS = ("<!-- calibration:start -->", "<!-- calibration:end -->")
MEANS = ("<!-- calibration means:start -->", "<!-- calibration means:end -->")
FITTED = ("<!-- calibration fits:start -->", "<!-- calibration fits:end -->")


# Methods: each takes a set, a seed and a number of permutations, and returns outcomes by name -----


def of_statistic(statistic: str) -> Callable[[Drawn, int, int], dict[str, Outcome]]:
    """Return the tests of a statistic: of all groups, of the first pair, of any pair (max-T)."""

    def test(drawn: Drawn, seed: int, n: int) -> dict[str, Outcome]:
        options = {"statistic": statistic, "n_permutations": n, "random_state": seed}
        found, of_pairs = (
            permutation_test(
                drawn.model, drawn.groups, **drawn.labels, scope=scope, n_threads=1, **options
            )
            for scope in ("all", "pair")
        )
        outcomes = {statistic: rejected(found.overall.pvalue)}
        if statistic == "welch":
            outcomes["spread"] = rejected(found.overall.dispersion_pvalue)
        if found.pairs:
            outcomes[f"{statistic}, a pair, scope all"] = rejected(found.pairs[0].pvalue)
            least = min(pair.pvalue_maxt for pair in of_pairs.pairs)
            outcomes[f"{statistic}, any pair, max-T"] = rejected(least)
        return outcomes

    return test


UPDATES: dict[str, Callable[[Drawn, int, int], dict[str, Outcome]]] = {
    name: of_statistic(name) for name in ("welch", "hellinger", "cosine", "balanced")
}
UPDATES |= {"effects": effects, "regression": regression, "weights": weights, "fits": fits}
TABLES = {
    GROUPS: ("welch", "hellinger", "cosine", "balanced"),
    MEANS: ("effects", "regression", "weights"),
    FITTED: ("fits",),
}


# Running ----------------------------------------------------------------------------------------


def measure(
    name: str, draw: Callable[[np.random.Generator], Drawn], methods: Iterable[str], n_sets: int,
    n_permutations: int,
) -> list[dict]:  # fmt: skip
    """Return a row for each outcome: its share of the sets, and the nominal share."""
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    begin = time.perf_counter()
    for number in range(n_sets):
        drawn = draw(np.random.default_rng([11, number]))
        for method in methods:
            try:
                found = UPDATES[method](drawn, number, n_permutations)
            except ValueError as error:
                if "balance" not in str(error) and "no weight" not in str(error):
                    raise
                continue  # "balanced" with a table that cannot be balanced
            for outcome, value in found.items():
                outcomes.setdefault((method, outcome), []).append(value)
    rows = []
    for (method, outcome), values in outcomes.items():
        shares = np.array([each.found / each.of for each in values])
        nominal = values[0].nominal
        # intervals of one set are not independent, so the error comes from the spread over sets
        error = shares.std(ddof=1) if values[0].of > 1 else np.sqrt(nominal * (1 - nominal))
        rows.append({
            "set": name, "method": method, "outcome": outcome, "nominal": nominal,
            "share": round(float(shares.mean()), 4), "sets": len(values),
            "error": round(float(error / np.sqrt(len(values))), 4),
        })  # fmt: skip
    shown = ", ".join(f"{row['outcome']} {row['share']:.3f}" for row in rows)
    print(f"{name} ({time.perf_counter() - begin:.0f} s): {shown}", flush=True)
    return rows


def kept(folder: Path, method: str) -> list[dict]:
    """Return the stored rows of a method, in the order of the sets."""
    path, sets = folder / f"calibration_{method}.csv", [*SETS, *FITS]
    if not path.exists():
        return []
    with path.open(newline="") as file:
        known = [row for row in csv.DictReader(file) if row["set"] in sets]
    return sorted(known, key=lambda row: sets.index(row["set"]))


def keep(folder: Path, rows: list[dict]) -> None:
    """Replace the stored rows of one kind of set."""
    for method in {row["method"] for row in rows}:
        new = [row for row in rows if row["method"] == method]
        old = [row for row in kept(folder, method) if row["set"] != new[0]["set"]]
        report.write_csv(folder / f"calibration_{method}.csv", old + new)


def table(rows: list[dict]) -> str:
    """Return the table in Markdown: sets in rows, outcomes in columns, shares in percent."""
    by_set = {(row["set"], row["outcome"]): row for row in rows}
    outcomes = list(dict.fromkeys(row["outcome"] for row in rows))
    sets = [name for name in (*SETS, *FITS) if any(row["set"] == name for row in rows)]
    lines = [("set", *outcomes), ("---",) * (1 + len(outcomes))]
    for name in sets:
        lines.append((name, *(_cell(by_set.get((name, outcome))) for outcome in outcomes)))
    n = sorted({int(row["sets"]) for row in rows})
    counted = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"
    legend = (
        f"Percent of {counted} sets. Nominal values: 5 for tests, 95 for intervals. Bold: deviates "
        "by more than three standard errors. `python benchmarks/calibration.py`"
    )
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", legend])


def _cell(row: dict | None) -> str:
    if row is None:
        return "-"
    share, nominal, error = (float(row[key]) for key in ("share", "nominal", "error"))
    text = f"{100 * share:.0f}" if nominal > 0.5 else f"{100 * share:.1f}"
    return f"**{text}**" if abs(share - nominal) > 3 * error else text


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=400)
    parser.add_argument("--permutations", type=int, default=199)
    parser.add_argument("--methods", nargs="+", choices=tuple(UPDATES), default=list(UPDATES))
    parser.add_argument("--scenarios", nargs="+", default=[""], help="prefixes of names")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.sets, options.permutations = 2, 19
    warnings.simplefilter("ignore")
    measured = []
    for name, draw in {**SETS, **FITS}.items():
        if not name.startswith(tuple(options.scenarios)):
            continue
        rows = measure(name, draw, options.methods, options.sets, options.permutations)
        measured += rows
        if not options.smoke:
            keep(options.results, rows)
    print(table(measured))
    if not options.smoke and options.results == report.HERE / "results":
        for markers, methods in TABLES.items():
            known = [row for method in methods for row in kept(options.results, method)]
            if known:
                report.write_readme(table(known), markers)


if __name__ == "__main__":
    main()
