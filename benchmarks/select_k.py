"""Choice of the number of topics: simulated counts of known truth, and seconds of the search.

    python benchmarks/select_k.py            both parts; the second needs NMFSCALE_DATA
    python benchmarks/select_k.py --smoke    small problems, writes nothing

Part 1: the recommended number of topics for twelve sets of simulated counts, and for two sets that
vary much more than Poisson counts, with halves of counts and with samples held out. Part 2:
processor seconds and ends of fits with K = 2 to 12 to both halves of pbmc_facs, with starts of
their own, and continued from the fit with one topic less.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import report
import scipy.sparse as sp
from numpy.random import SeedSequence

from nmfscale import TopicModel, as_counts, select_k, simulate_topic_counts
from nmfscale.inference.folds import Folds
from nmfscale.inference.selection_fits import SelectionTask

STARTS = "own starts", "continued"


def overdispersed(dispersion: float, seed: int) -> sp.csr_array:
    """Return counts of five topics; rates vary by Gamma variables of mean 1."""
    rng = np.random.default_rng(seed)
    L = rng.dirichlet(np.full(5, 0.2), 300) * rng.lognormal(6.2, 0.4, (300, 1))
    rates = L @ rng.dirichlet(np.full(200, 0.1), 5)
    if dispersion:
        rates *= rng.gamma(1 / dispersion, dispersion, rates.shape)
    return sp.csr_array(rng.poisson(rates))


def sets(smoke: bool) -> list[tuple[str, int, object, dict]]:
    """Return name, true number of topics, counts and parameters of the estimator of each set."""
    simulated = [
        (f"simulate_topic_counts, seed {seed}", K, simulate_topic_counts(
            300, 200, K, size=500.0, random_state=seed
        )[0], {})
        for K in (4, 8) for seed in range(3)
    ]  # fmt: skip
    varying = [
        (f"dispersion {d:g}, seed {seed}", 5, overdispersed(d, seed), {})
        for d, seed in ((0, 0), (0.1, 0), (0.5, 0), (0.5, 1))
    ]
    varying += [(f"{name}, samples held out", *rest) for name, *rest in varying[2:]]
    if smoke:
        return simulated[:1]
    paper = []
    if folder := os.environ.get("NMFSCALE_DATA"):
        for name in ("sim_ctm_a", "sim_ctm_b"):
            X = sp.load_npz(Path(folder) / f"{name}.npz").tocsr()
            paper += [(name, 6, X, {}), (f"{name}, prior 1.01", 6, X, {"prior_factors": 1.01})]
    return paper + simulated + varying


def find_numbers(smoke: bool) -> list[dict]:
    """Return a row for each set of simulated counts."""
    rows = []
    for name, truth, X, options in sets(smoke):
        estimator = TopicModel(**{"prior_factors": 1.1, "tol": 1e-3} | options)
        numbers = range(2, 6 if smoke else 13)
        units = range(X.shape[0]) if "samples held out" in name else None
        found = select_k(
            X, numbers, estimator=estimator, units=units, random_state=0, n_threads=1
        )  # fmt: skip
        at = found.n_components.tolist().index(found.best)
        above = found.least_stability[min(at + 1, len(numbers) - 1)]
        rows.append({
            "counts": name, "truth": truth, "recommended": found.best,
            "highest score": int(found.n_components[found.score.argmax()]),
            "smallest similarity there": round(float(found.least_stability[at]), 2),
            "one above": round(float(above), 2),
            "dispersion": "" if units else round(found.excess_variance[0], 3),
        })  # fmt: skip
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def compare_starts(X: sp.csr_array, numbers: range) -> list[dict]:
    """Return a row for each number of topics: fits with own starts, and from the fit before.

    The fit to a half of the counts with one topic less is continued by a split of a topic.
    """
    folds = Folds(as_counts(X), 2, SeedSequence(0), None)
    estimator = TopicModel(prior_factors=1.1, tol=1e-3)
    names = [f"{what} of {how}" for how in STARTS for what in ("seconds", "iterations")]
    rows, before = [], None
    for K in numbers:
        row: dict = {"K": K} | dict.fromkeys(names, "")
        tasks = {STARTS[0]: SelectionTask(estimator, folds, (K,))}
        if before is not None:
            tasks[STARTS[1]] = SelectionTask(estimator, folds, K, before)
        ends = {}
        for name, task in tasks.items():
            begin = time.process_time()
            found = task.run(range(2), SeedSequence(1), 1)
            row[f"seconds of {name}"] = round(time.process_time() - begin, 2)
            row[f"iterations of {name}"] = int(found["n_iter"].sum())
            ends[name] = found["objective"]
            if name == list(tasks)[-1]:
                before = tuple(found["topics"])
        gain = ends[STARTS[1]] - ends[STARTS[0]] if len(ends) > 1 else np.zeros(2)
        row["continued - own starts"] = " ".join(f"{each:+,.0f}" for each in gain)
        rows.append(row)
        print(row, flush=True)
    return rows


def draw(rows: list[dict], path: Path) -> None:
    """Draw the seconds of the search and of fits with their own starts."""
    from matplotlib.figure import Figure

    ax = Figure(figsize=(5, 3.4), layout="constrained").subplots()
    for name in STARTS:
        found = [row for row in rows if row.get(f"seconds of {name}")]
        seconds = [float(row[f"seconds of {name}"]) for row in found]
        ax.plot([int(row["K"]) for row in found], seconds, "o-", label=name)
    ax.set(xlabel="number of topics", ylabel="processor seconds, both halves", ylim=(0, None))
    ax.legend(frameon=False)
    ax.figure.savefig(path, dpi=120)


def write(rows: list[dict], part: str, folder: Path) -> None:
    """Write the rows of a part to its table, and to README.md."""
    report.write_csv(folder / f"select_k_{part}.csv", rows)
    if folder == report.HERE / "results":
        markers = f"<!-- select_k {part}:start -->", f"<!-- select_k {part}:end -->"
        report.write_readme(report.table(rows), markers)


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="small problems, write nothing")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--part", choices=("truth", "speed"), help="default: both")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.part != "speed":
        rows = find_numbers(arguments.smoke)
        right = [row["recommended"] == row["truth"] for row in rows]
        print(f"right: {sum(right)} of {len(right)}")
        if not arguments.smoke:
            write(rows, "truth", arguments.results)
    folder = os.environ.get("NMFSCALE_DATA")
    if arguments.part == "truth" or not (folder or arguments.smoke):
        return
    if arguments.smoke:
        X = simulate_topic_counts(100, 60, 3, random_state=0)[0]
    else:
        X = sp.csr_array(sp.load_npz(Path(folder) / "pbmc_facs.npz"))
    rows = compare_starts(X, range(2, 5 if arguments.smoke else 13))
    sums = [
        sum(row[f"{what} of {name}"] for row in rows[1:])
        for what in ("seconds", "iterations") for name in reversed(STARTS)
    ]  # fmt: skip
    print(f"continued / own starts: seconds {sums[0] / max(sums[1], 1e-9):.2f}, "
          f"iterations {sums[2] / sums[3]:.2f}")  # fmt: skip
    if not arguments.smoke:
        write(rows, "speed", arguments.results)
        draw(rows, arguments.results / "select_k.png")


if __name__ == "__main__":
    main()
