"""Local optima: a single fit, a fit with moves, and the best of ten random starts.

For each problem, ten fits start at random, and the best of them is the reference. Fits with default
settings, and the same with `n_moves`, are compared with it, for ten seeds. Seconds are processor
time, including the time to arrange the counts, on one thread by default. Peers run from ten seeds,
too: scikit-learn's NMF with the Kullback-Leibler loss, for 20 iterations by default, which take
about the time of a fit with moves or longer; for fastTopics, the best factors in `reference/` are
evaluated, if there are any.

    python benchmarks/optima.py
    python benchmarks/optima.py --problems neurips:10 --moves 8 --append
    python benchmarks/optima.py --methods moves scikit-learn --append
    python benchmarks/optima.py --smoke         a few seconds, writes nothing

Writes a row for each fit to results/optima.csv, a picture to results/optima.png, and the table in
README.md; best known log-likelihoods that were exceeded are replaced in results/best_known.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from pathlib import Path

import best_known
import convergence
import numpy as np
import problems
import report
from scipy.special import gammaln

PROBLEMS = (
    "bulk:8", "visium:10", "pbmc_facs:6", "pbmc_facs:10", "neurips:10", "newsgroups:10",
    "newsgroups:20",
)  # fmt: skip
# Arguments of the estimator for each method, besides the seed; None for scikit-learn.
METHODS: dict[str, dict | None] = {
    "random start": {"init": "random"}, "single fit": {"n_init": 1},
    "moves": {"n_init": 1}, "scikit-learn": None,
}  # fmt: skip
MARKERS = ("<!-- optima:start -->", "<!-- optima:end -->")
WITHIN = 10


def loglik(X, L: np.ndarray, F: np.ndarray) -> float:
    """Return the Poisson log-likelihood in float64, by plain NumPy."""
    total = -float(L.sum(axis=0, dtype=np.float64) @ F.sum(axis=0, dtype=np.float64))
    for first in range(0, X.shape[0], 256):
        rows = X[first : first + 256].tocoo()
        mu = np.einsum("ik,ik->i", np.float64(L)[first + rows.row], np.float64(F)[rows.col])
        x = rows.data.astype(np.float64)
        total += float(x @ np.log(np.maximum(mu, 1e-300)) - gammaln(x + 1).sum())
    return total


def fit(X, K: int, seed: int, n_threads: int, **how) -> dict:
    """Fit, and return a row of the table."""
    from nmfscale import PoissonNMF

    began = time.process_time()
    model = PoissonNMF(K, random_state=seed, n_threads=n_threads, **how).fit(X)
    seconds = time.process_time() - began
    return {
        "loglik": f"{model.loglik_:.2f}", "seconds": f"{seconds:.3f}", "iterations": model.n_iter_,
        "moves": len(model.moves_), "kept": int(model.moves_["kept"].sum()),
    }  # fmt: skip


def fit_sklearn(X, K: int, seed: int, n_iter: int) -> dict:
    """Fit by scikit-learn's multiplicative updates, from a random start."""
    from sklearn.decomposition import NMF

    began = time.process_time()
    model = NMF(
        K, init="random", solver="mu", beta_loss="kullback-leibler", max_iter=n_iter, tol=0,
        random_state=seed,
    )  # fmt: skip
    L = model.fit_transform(X.astype(np.float64))
    seconds = time.process_time() - began
    value = loglik(X, L, model.components_.T)
    return {"loglik": f"{value:.2f}", "seconds": f"{seconds:.3f}", "iterations": model.n_iter_}


def reference_of(name: str, K: int, X) -> list[dict]:
    """Return a row with the best factors of fastTopics, if there are any."""
    folder = Path(os.environ.get("NMFSCALE_DATA", "."))
    for place in (folder / "reference", folder.parent / "reference"):
        path = place / f"best_{name}_k{K}.npz"
        if path.exists():
            with np.load(path) as found:
                value = loglik(X, found["L"], found["F"])
            return [{"method": "fastTopics", "seed": "", "loglik": f"{value:.2f}"}]
    return []


def rows_of(problem: str, options) -> list[dict]:
    """Return the rows of all fits of a problem."""
    name, K = problem.split(":")[0], int(problem.split(":")[1])
    X = convergence.counts_of(name, options.smoke)
    rows = []
    for seed in range(options.seeds):
        for method in options.methods:
            how = METHODS[method]
            if how is None:
                row = fit_sklearn(X, K, seed, options.peer_iterations)
            else:
                how = how | ({"n_moves": options.moves} if method == "moves" else {})
                row = fit(X, K, seed, options.threads, **how)
            rows.append({"method": method, "seed": seed} | row)
            print(problem, rows[-1], flush=True)
    rows += reference_of(name, K, X)
    return [{"problem": name, "K": K} | row for row in rows]


def ends(rows: list[dict], method: str, column: str = "loglik") -> np.ndarray:
    """Return a column of the fits by one method, in the order of the seeds."""
    return np.array([float(row[column]) for row in rows if row["method"] == method])


def summary(rows: list[dict]) -> dict[str, str]:
    """Return the line of a problem in the table."""

    def below(method: str) -> str:
        found = np.round(np.sort(best - ends(rows, method))) + 0.0  # no -0
        return " ".join(f"{each:,.0f}" for each in found) or "-"

    second, best = np.sort(ends(rows, "random start"))[-2:]
    both = ends(rows, "single fit"), ends(rows, "moves")
    ratios = ends(rows, "moves", "seconds") / ends(rows, "single fit", "seconds")
    all_starts = ends(rows, "random start", "seconds").sum()
    return {
        "counts": f"{rows[0]['problem']}, K = {rows[0]['K']}",
        "single fit": below("single fit"),
        "with moves": below("moves"),
        f"within {WITHIN}": " / ".join(str((best - found <= WITHIN).sum()) for found in both),
        "above 9": " / ".join(str((found >= second - 1).sum()) for found in both),
        "seconds": f"{np.median(ratios):.1f} ({ratios.min():.1f} to {ratios.max():.1f})",
        "ten starts": f"{all_starts / np.median(ends(rows, 'single fit', 'seconds')):.1f}",
        "scikit-learn": below("scikit-learn").split(" ")[0],
        "fastTopics": below("fastTopics"),
    }


def draw(groups: list[list[dict]], path: Path) -> None:
    """Plot how far the fits of each problem end below the best of ten random starts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(groups), figsize=(2.1 * len(groups), 3.6), layout="constrained", squeeze=False,
        sharey=True,
    )  # fmt: skip
    methods = ("random start", "single fit", "moves")
    for ax, rows in zip(axes[0], groups, strict=True):
        best = ends(rows, "random start").max()
        for place, method in enumerate(methods):
            found = ends(rows, method)
            at = place + np.linspace(-0.25, 0.25, len(found))
            ax.plot(at, np.sort(found - best), "o", ms=4, mfc="none")
        ax.axhline(0, color="0.7", lw=0.8, zorder=0)
        ax.set_yscale("symlog", linthresh=WITHIN)
        ax.set_xticks(range(len(methods)), methods, rotation=60)
        ax.set_title(f"{rows[0]['problem']}, K = {rows[0]['K']}", fontsize=9)
    axes[0, 0].set_ylabel("log-likelihood - best of the random starts")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def found_by(row: dict) -> str:
    """Return how a fit was found, as text."""
    moves = f", n_moves={row.get('moves')}"
    call = {"single fit": "", "random start": ", init='random'", "moves": moves}
    if row["method"] not in call:
        return row["method"]
    return f"PoissonNMF({row['K']}{call[row['method']]}, random_state={row['seed']})"


def write(rows: list[dict], folder: Path, *, append: bool) -> None:
    """Write the table, or replace fits by the same method in it; draw the picture."""
    path = folder / "optima.csv"
    if append and path.exists():
        new = {(row["problem"], str(row["K"]), row["method"]) for row in rows}
        with path.open(newline="") as file:
            known = list(csv.DictReader(file))
        rows = rows + [row for row in known if (row["problem"], row["K"], row["method"]) not in new]
    order = [tuple(problem.split(":")) for problem in PROBLEMS]
    keys = {(row["problem"], str(row["K"])) for row in rows}
    keys = sorted(keys, key=lambda key: order.index(key) if key in order else len(order))
    groups = [[row for row in rows if (row["problem"], str(row["K"])) == key] for key in keys]
    report.write_csv(path, [row for group in groups for row in group])
    draw(groups, folder / "optima.png")
    best_known.update(
        (row["problem"], int(row["K"]), float(row["loglik"]), found_by(row)) for row in rows
    )
    if folder == report.HERE / "results":
        report.write_readme(report.table([summary(rows) for rows in groups]), MARKERS)


def main() -> None:
    """Run every problem, and print its line of the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", metavar="COUNTS:K", default=PROBLEMS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--moves", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--peer-iterations", type=int, default=20)
    parser.add_argument("--append", action="store_true", help="replace these fits in the table")
    parser.add_argument("--smoke", action="store_true", help="a small run for tests")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    options = parser.parse_args()
    if options.smoke:
        options.problems, options.seeds = ("visium:3",), 2
    warnings.simplefilter("ignore")  # scikit-learn's fits do not converge
    rows = []
    for problem in options.problems:
        if problem.split(":")[0] in problems.REAL and (
            reason := problems.available(problem.split(":")[0])
        ):
            print(reason)
            continue
        rows += (found := rows_of(problem, options))
        if len(options.methods) == len(METHODS):
            print("  ".join(f"{name}: {text}" for name, text in summary(found).items()), flush=True)
    if rows and not options.smoke:
        write(rows, options.results, append=options.append)


if __name__ == "__main__":
    main()
