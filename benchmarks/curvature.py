"""Which curvature to sum for the factors: full, shared correlations, or EM numerators only.

Runs the default method from the same start with each of them and compares them by iteration. A
partial sum has m K (K + 1) / 2, 2 m K or m K numbers, which are transferred from a file or a
cluster.

    python benchmarks/curvature.py                           neurips K = 10, 30; newsgroups K = 20
    python benchmarks/curvature.py --problems docstrings:10 --max-iter 20

Writes results/curvature.csv and results/curvature.png.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import problems
import report

MARKS = (10, 20, 40, 60, 100)


def em_columns(steps):
    """Make the factors take EM steps, whatever the steps of the loadings."""
    from nmfscale.methods.poisson.row_update import EM

    def changed(path, iteration):
        rows, _ = steps(path, iteration)
        return rows, EM

    return changed


def run(X, L, F, what: str, max_iter: int) -> np.ndarray:
    """Return the history of one fit."""
    from nmfscale import PoissonNMF
    from nmfscale.methods.poisson import newton as accelerated

    schedule = accelerated.MomentumSchedule
    patches = {
        "full curvature": mock.patch.object(
            accelerated, "shares_correlations", lambda *shape: False
        ),
        "shared correlations": mock.patch.object(
            accelerated, "shares_correlations", lambda *shape: True
        ),
        "EM numerators": mock.patch.object(schedule, "updates", em_columns(schedule.updates)),
    }
    with patches[what]:
        model = PoissonNMF(L.shape[1], max_iter=max_iter, tol=0, dtype="float32")
        return model.fit(X, loadings=L, components=F.T).history_


def draw(found: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    """Plot the difference from the best log-likelihood of each problem, by iteration."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(found), 3.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(found), sharey=True))
    for axes, (name, histories) in zip(panels, found.items(), strict=True):
        best = max(history["loglik"].max() for history in histories.values())
        for what, history in histories.items():
            missing = best - np.maximum.accumulate(history["loglik"])
            axes.semilogy(history["iteration"], np.maximum(missing, 0.1), label=what)
        axes.set_title(name)
        axes.set_xlabel("iteration")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("difference from the best log-likelihood")
    panels[-1].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ["neurips:10", "neurips:30", "newsgroups:20"]
    parser.add_argument("--problems", nargs="+", default=default, metavar="NAME:K")
    parser.add_argument("--max-iter", type=int, default=100)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    arguments = parser.parse_args()
    found: dict[str, dict[str, np.ndarray]] = {}
    rows = []
    for asked in arguments.problems:
        name, _, K = asked.partition(":")
        try:
            X = problems.load_counts(name)
        except LookupError as reason:
            print(reason, file=sys.stderr)
            continue
        L, F = problems.em_start(X, int(K), seed=1, n_iter=10)
        title = f"{name}, K = {K}"
        found[title] = {
            what: run(X, L, F, what, arguments.max_iter)
            for what in ("full curvature", "shared correlations", "EM numerators")
        }
        best = max(history["loglik"].max() for history in found[title].values())
        for what, history in found[title].items():
            missing = best - np.maximum.accumulate(history["loglik"])
            marks = [mark for mark in MARKS if mark <= len(missing)]
            at = {f"missing_at_{mark}": round(float(missing[mark - 1]), 1) for mark in marks}
            rows.append({"problem": name, "K": int(K), "summed": what} | at)
            print(rows[-1], flush=True)
    if found:
        report.write_csv(arguments.results / "curvature.csv", rows)
        draw(found, arguments.results / "curvature.png")


if __name__ == "__main__":
    main()
