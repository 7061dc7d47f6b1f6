"""Levels and power of tests for the designs of studies: donors, pairs, time points, strata.

Cells of donors are simulated with a spread between donors, a response of each donor to the
condition, and a spread between cells. Without an effect, tests at the 5% level should reject in 5%
of the sets and 95% intervals of differences should cover 0 in 95%; with an effect, the more
rejections the better. Competitors use the mean proportions of donors: Welch's t or the paired t of
SciPy, and, for the first topic, a mixed model of statsmodels (REML, donors as random intercepts)
fitted to all cells, with one random effect of the condition for each donor. That model takes
seconds, so that it is fitted to the first sets only.

    python benchmarks/designs.py                          everything, half an hour
    python benchmarks/designs.py --designs "6 donors"     names with this prefix
    python benchmarks/designs.py --smoke                  a few seconds, writes nothing

Results are kept in results/designs.csv. A run replaces the lines that it measured, and writes the
table in README.md.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import report
from calibration_sets import dirichlet, means_of
from scipy.stats import ttest_ind, ttest_rel

from nmfscale import group_effects, permutation_test, regress_proportions

MARKERS = ("<!-- designs:start -->", "<!-- designs:end -->")
Array = np.ndarray
LEVEL = 0.05
N_TOPICS = 6
TESTS = ("permutation_test", "group_effects", "its permutations", "regress_proportions")
COMPETITORS = ("t of donors", "mixed model")


@dataclass(frozen=True)
class Cells:
    """Proportions of topics (n, T) of cells, with a condition, a donor and a stratum each.

    `differs` (T,) marks topics whose mean differs between conditions.
    """

    rows: Array
    conditions: Array
    donors: Array
    differs: Array
    strata: Array | None = None
    named: bool = True

    @property
    def labels(self) -> dict[str, Array | None]:
        """Return units and strata as keyword arguments."""
        return {"units": self.donors if self.named else None, "strata": self.strata}


def draw_cells(
    rng: np.random.Generator, shift: float, present: Array, between: float = 8.0,
    response: float = 30.0, n_cells: int = 40,
) -> Cells:  # fmt: skip
    """Draw cells of donors in the conditions where they are `present`, (n_donors, n_conditions).

    `shift` is the factor by which the last condition changes the odds of the first topic.
    """
    rows, conditions, donors = [], [], []
    means = dirichlet(rng, between * means_of(N_TOPICS), len(present))
    for donor, condition in np.argwhere(present).tolist():
        mean = means[donor].copy()
        if condition == present.shape[1] - 1:
            mean[0] *= shift
            mean /= mean.sum()
        own = dirichlet(rng, response * mean, 1)[0]
        rows.append(dirichlet(rng, 10 * own, n_cells))
        conditions += [f"c{condition}"] * n_cells
        donors += [f"d{donor}"] * n_cells
    differs = np.full(N_TOPICS, shift != 1)
    return Cells(np.concatenate(rows), np.array(conditions), np.array(donors), differs)


def nested(rng: np.random.Generator, shift: float, n: int, n_conditions: int = 2) -> Cells:
    """Draw donors that have one condition each, the same number for each condition."""
    return draw_cells(rng, shift, np.eye(n_conditions, dtype=bool)[np.arange(n) % n_conditions])


def crossed(rng: np.random.Generator, shift: float, n: int, n_conditions: int = 2) -> Cells:
    """Draw donors that have all conditions."""
    return draw_cells(rng, shift, np.ones((n, n_conditions), bool))


def incomplete(rng: np.random.Generator, shift: float, n: int) -> Cells:
    """Draw donors, a third of which lack one of two conditions."""
    present = np.ones((n, 2), bool)
    lacking = np.arange(n // 3)
    present[lacking, lacking % 2] = False
    return draw_cells(rng, shift, present)


def confounded(rng: np.random.Generator, shift: float, sizes: list[list[int]]) -> Cells:
    """Draw samples, each its own unit, of strata with other means and other shares of groups."""
    rows, conditions, strata = [], [], []
    for stratum, of_groups in enumerate(sizes):
        mean = dirichlet(rng, 5 * means_of(N_TOPICS), 1)[0]
        for group, size in enumerate(of_groups):
            shifted = mean * np.where(np.arange(N_TOPICS) == 0, shift if group else 1.0, 1.0)
            rows.append(dirichlet(rng, 10 * shifted / shifted.sum(), size))
            conditions += [f"c{group}"] * size
        strata += [stratum] * sum(of_groups)
    n = len(conditions)
    return Cells(
        np.concatenate(rows), np.array(conditions), np.arange(n), np.full(N_TOPICS, shift != 1),
        np.array(strata), named=False,
    )  # fmt: skip


def sparse(rng: np.random.Generator, shift: float, sizes: tuple[int, int]) -> Cells:
    """Draw units of which 4% have much of the first topic in one group, and 24% some in another."""
    has = [rng.random(size) < share for size, share in zip(sizes, (0.04, 0.24), strict=True)]
    amounts = [
        np.where(h, amount, 0.0) for h, amount in zip(has, (0.45 * shift, 0.075), strict=True)
    ]
    first = np.concatenate(amounts)[:, None]
    rest = dirichlet(rng, np.full(N_TOPICS - 1, 2.0), len(first))
    rows = np.hstack([first, (1 - first) * rest])
    conditions = np.repeat(["c0", "c1"], sizes)
    return Cells(rows, conditions, np.arange(len(rows)), np.full(N_TOPICS, shift != 1), named=False)


DESIGNS: dict[str, Callable[[np.random.Generator, float], Cells]] = {
    **{f"{n} donors, half with each condition": partial(nested, n=n) for n in (4, 8, 20)},
    **{
        f"{n} donors, a third with each condition": partial(nested, n=n, n_conditions=3)
        for n in (15, 30)
    },
    **{f"{n} donors with both conditions": partial(crossed, n=n) for n in (6, 10, 20)},
    **{f"{n} donors, a third lacks a condition": partial(incomplete, n=n) for n in (6, 10, 20)},
    "8 donors at three times": partial(crossed, n=8, n_conditions=3),
    "three confounded strata": partial(confounded, sizes=[[12, 3], [3, 12], [8, 8]]),
    "12 pairs as strata": partial(confounded, sizes=[[1, 1]] * 12),
    "a topic of few units, 40 + 40": partial(sparse, sizes=(40, 40)),
    "a topic of few units, 15 + 60": partial(sparse, sizes=(15, 60)),
}
# Factor of the odds of the first topic in sets with an effect.
SHIFT = 2.0


def outcomes_of(cells: Cells, seed: int, n_permutations: int, mixed: bool) -> dict[str, Array]:
    """Return p-values by test, for each topic or a single one, and what intervals say.

    `mixed`: whether to fit the mixed model.
    """
    options = {"n_permutations": n_permutations, "random_state": seed, "n_threads": 1}
    overall = permutation_test(cells.rows, cells.conditions, **cells.labels, **options).overall
    effects = group_effects(cells.rows, cells.conditions, **cells.labels, **options)
    differences = effects.differences()
    excluded = (differences.lower > 0) | (differences.upper < 0)
    slopes = regress_proportions(
        cells.rows, {"condition": cells.conditions}, n_permutations=0, **cells.labels
    )
    outcomes = {
        "permutation_test": np.array([overall.pvalue]),
        "group_effects": effects.pvalue,
        "its permutations": effects.pvalue_permutation,
        "regress_proportions": slopes.pvalue[:, -1],
        "covered": ~excluded,
        "agree": excluded == (differences.pvalue <= LEVEL),
    }
    outcomes["t of donors"] = t_of_donors(cells)
    if mixed and cells.named:
        outcomes["mixed model"] = mixed_model(cells)
    return outcomes


def t_of_donors(cells: Cells) -> Array:
    """Return p-values of topics by the paired t of complete pairs, or by Welch's t."""
    first, last = np.unique(cells.conditions)[[0, -1]]
    means: dict[str, dict] = {first: {}, last: {}}
    subjects = cells.donors if cells.named or cells.strata is None else cells.strata
    for condition, of_donor in means.items():
        for donor in np.unique(subjects[cells.conditions == condition]).tolist():
            here = (cells.conditions == condition) & (subjects == donor)
            of_donor[donor] = cells.rows[here].mean(axis=0)
    both = [donor for donor in means[first] if donor in means[last]]
    if len(both) > 2:
        one, other = (np.array([means[c][donor] for donor in both]) for c in (first, last))
        return np.asarray(ttest_rel(one, other).pvalue)
    one, other = (np.array(list(means[c].values())) for c in (first, last))
    return np.asarray(ttest_ind(one, other, equal_var=False).pvalue)


def mixed_model(cells: Cells) -> Array:
    """Return the p-value of the last condition for the first topic."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    names = np.unique(cells.conditions)
    X = np.column_stack([np.ones(len(cells.rows)), *(cells.conditions == c for c in names[1:])])
    crossed_donors = len(np.unique(cells.donors)) < len(
        np.unique(np.char.add(cells.donors, cells.conditions))
    )
    random_effects = X if crossed_donors else X[:, :1]
    with warnings.catch_warnings():  # statsmodels shows its own warnings whatever the filter is
        warnings.simplefilter("ignore")
        fitted = MixedLM(cells.rows[:, 0], X, cells.donors, exog_re=random_effects).fit()
    return np.array([fitted.pvalues[len(names) - 1]])


def measure(name: str, n_sets: int, n_mixed: int, n_permutations: int) -> list[dict]:
    """Return a row for each outcome of a design; the mixed model is fitted to `n_mixed` sets."""
    rows, begin = [], time.perf_counter()
    for shift in (1.0, SHIFT):
        values: dict[str, list[float]] = {}
        for number in range(n_sets):
            cells = DESIGNS[name](np.random.default_rng([13, number]), shift)
            outcomes = outcomes_of(cells, number, n_permutations, number < n_mixed)
            for outcome, of_topics in outcomes.items():
                is_test = of_topics.dtype.kind == "f"
                if is_test and shift != 1:
                    of_topics = of_topics.reshape(-1)[:1]  # the topic that differs most
                hits = of_topics <= LEVEL if is_test else of_topics
                values.setdefault(outcome, []).append(float(np.mean(hits)))
        for outcome, shares in values.items():
            if shift != 1 and outcome == "covered":
                continue
            n = len(shares)
            error = max(np.std(shares, ddof=1), 0.5 / n) / np.sqrt(n)
            rows.append({
                "design": name, "effect": shift, "outcome": outcome, "sets": n,
                "share": round(float(np.mean(shares)), 4), "error": round(float(error), 4),
            })  # fmt: skip
    shown = ", ".join(f"{row['outcome']} {row['effect']:g} {row['share']:.3f}" for row in rows)
    print(f"{name} ({time.perf_counter() - begin:.0f} s): {shown}", flush=True)
    return rows


def table(rows: list[dict]) -> str:
    """Return the table in Markdown: designs in rows, percent of the sets in cells."""
    by = {(row["design"], float(row["effect"]), row["outcome"]): row for row in rows}
    tests = (*TESTS, *COMPETITORS)
    header = (
        "design",
        *tests,
        "intervals cover",
        "p and interval agree",
        *(f"power: {t}" for t in tests),
    )
    lines = [header, ("---",) * len(header)]
    for name in DESIGNS:
        if any(row["design"] == name for row in rows):
            lines.append((
                name, *(_cell(by.get((name, 1.0, test)), LEVEL) for test in tests),
                _cell(by.get((name, 1.0, "covered")), 1 - LEVEL),
                _cell(by.get((name, 1.0, "agree")), None),
                *(_cell(by.get((name, SHIFT, test)), None) for test in tests),
            ))  # fmt: skip
    of_tests, of_mixed = (
        " or ".join(map(str, sorted({int(row["sets"]) for row in chosen})))
        for chosen in (
            [row for row in rows if row["outcome"] != "mixed model"],
            [row for row in rows if row["outcome"] == "mixed model"],
        )
    )
    legend = (
        f"Percent of {of_tests} sets with and without an effect on the first topic, of {of_mixed} "
        "sets for the mixed model. Nominal values: 5 for tests without an effect, 95 for "
        "intervals. Bold: deviates by more than three standard errors. "
        "`python benchmarks/designs.py`"
    )
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", legend])


def _cell(row: dict | None, nominal: float | None) -> str:
    if row is None:
        return "-"
    share, error = float(row["share"]), float(row["error"])
    text = f"{100 * share:.0f}" if nominal is None or nominal > 0.5 else f"{100 * share:.1f}"
    off = nominal is not None and abs(share - nominal) > 3 * error
    return f"**{text}**" if off else text


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--mixed", type=int, default=50, help="sets to fit the mixed model to")
    parser.add_argument("--permutations", type=int, default=199)
    parser.add_argument("--designs", nargs="+", default=[""], help="prefixes of names")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.sets, options.permutations = 2, 19
    warnings.simplefilter("ignore")
    names = [name for name in DESIGNS if name.startswith(tuple(options.designs))]
    path, rows = report.HERE / "results" / "designs.csv", []
    if path.exists() and not options.smoke:
        with Path(path).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["design"] not in names]
    for name in names:
        rows += measure(name, options.sets, options.mixed, options.permutations)
        if not options.smoke:
            report.write_csv(path, rows)
    print(table(rows))
    if not options.smoke:
        report.write_readme(table(rows), MARKERS)


if __name__ == "__main__":
    main()
