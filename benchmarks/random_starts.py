"""Final log-likelihoods of the default method and of the paper's, from the same random starts.

A faster method must not end in systematically worse optima. Every start consists of random factors
and a few EM iterations, and is used by all methods. Each fit runs until its KKT residual is small.
The paper's method with three inner iterations instead of four shows how much results differ by
chance.

    python benchmarks/random_starts.py --problems neurips pbmc_facs newsgroups

Writes results/random_starts.csv and results/random_starts.png.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import peers
import problems
import report

UPDATES = {
    "auto": {"solver": "auto"},
    "paper": peers.PAPER,
    "paper, 3 sweeps": peers.PAPER | {"inner_iter": 3},
}


def fit_all(problem: problems.Problem, seed: int, options) -> list[dict]:
    """Fit from one random start with every method."""
    from sklearn.exceptions import ConvergenceWarning

    from nmfscale import PoissonNMF

    k = problem.n_components
    L, F = problems.em_start(problem.X, k, seed=seed, n_iter=options.em)
    rows = []
    for method, settings in UPDATES.items():
        model = PoissonNMF(
            k, max_iter=options.max_iter, tol=options.tol, dtype=options.dtype, **settings
        )
        with warnings.catch_warnings():
            # The table has a column for fits that have not converged.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(problem.X, loadings=L, components=F.T)
        rows.append(
            {
                "problem": problem.name,
                "K": k,
                "seed": seed,
                "method": method,
                "loglik": problem.loglik(model.loadings_, model.components_.T),
                "iterations": model.n_iter_,
                "converged": model.converged_,
            }
        )
    return rows


def summary(rows: list[dict], method: str) -> str:
    """Return how often and by how much a method ended above the paper's, and the p-value."""
    from scipy.stats import wilcoxon

    ends = {m: np.array([r["loglik"] for r in rows if r["method"] == m]) for m in UPDATES}
    gain = ends[method] - ends["paper"]
    won, lost = int((gain > 1).sum()), int((gain < -1).sum())
    chance = wilcoxon(gain).pvalue if len(gain) > 1 and gain.any() else 1.0
    return (
        f"{rows[0]['problem']}, K={rows[0]['K']}: {method} better by more than 1 from {won} "
        f"starts, worse from {lost}, equal from {len(gain) - won - lost}; minus the paper's: "
        f"median {np.median(gain):+.1f}, mean {gain.mean():+.1f}, Wilcoxon p = {chance:.2f}; "
        f"best of all: {ends[method].max():.1f}, paper {ends['paper'].max():.1f}"
    )


def draw(rows: list[dict], path: Path) -> None:
    """Plot the final values of every start in the order of the paper's, one panel per problem."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(4.2 * len(names), 3.8), squeeze=False, layout="constrained"
    )
    for ax, name in zip(axes[0], names, strict=True):
        ends = {
            method: np.array(
                [r["loglik"] for r in rows if r["problem"] == name and r["method"] == method]
            )
            for method in UPDATES
        }
        best = max(values.max() for values in ends.values())
        order = np.argsort(ends["paper"])
        for method, marker in zip(UPDATES, "o+x", strict=True):
            ax.plot(best - ends[method][order], marker, ms=8, mfc="none", label=method)
        ax.set_yscale("symlog", linthresh=10)
        ax.set(title=name, xlabel="random start, worst to best")
    axes[0, 0].set_ylabel("difference from the best log-likelihood")
    axes[0, 0].legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Run every problem and start, print a sentence for each problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", default=[*problems.REAL, "docstrings"])
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--em", type=int, default=10, help="EM iterations of each start")
    parser.add_argument("--max-iter", type=int, default=500)
    parser.add_argument("--tol", type=float, default=1e-5)
    parser.add_argument("--dtype", type=np.dtype, default=np.dtype("float64"))
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    options = parser.parse_args()
    rows = []
    for name in options.problems:
        if reason := problems.available(name):
            print(reason)
            continue
        problem = problems.load(name)
        of_problem = [
            row for seed in range(options.starts) for row in fit_all(problem, seed, options)
        ]
        for method in UPDATES.keys() - {"paper"}:
            print(summary(of_problem, method), flush=True)
        rows += of_problem
    report.write_csv(options.results / "random_starts.csv", rows)
    draw(rows, options.results / "random_starts.png")


if __name__ == "__main__":
    main()
