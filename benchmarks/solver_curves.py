"""The log-likelihood of EM, coordinate descent and the default method from the same start.

Coordinate descent is that of the paper (`solver="scd"`), without and with extrapolation. All fits
of a problem begin at the same factors and run a fixed number of iterations.

    python benchmarks/solver_curves.py --problems docstrings neurips

Writes results/solver_curves.csv, which docs/pictures.py draws.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import problems
import report

# label -> (options of the fit, iterations)
SOLVERS = {
    "EM": ({"solver": "em", "inner_iter": 1, "extrapolate": False}, 600),
    "CD": ({"solver": "scd", "extrapolate": False}, 160),
    "CD, extrapolated": ({"solver": "scd"}, 120),
    "auto": ({"solver": "auto"}, 150),
}


def curve(problem, options: dict, n_iter: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds and the log-likelihood after every iteration of a fit."""
    from nmfscale import PoissonNMF

    model = PoissonNMF(
        problem.n_components, max_iter=n_iter, tol=0, n_threads=threads, **options
    ).fit(problem.X, loadings=problem.L, components=problem.F.T)
    return model.history_["seconds"], model.history_["loglik"]


def measure(name: str, options) -> list[dict]:
    """Return a row for each iteration of each solver; seconds are medians over the repeats."""
    problem = problems.load(name)
    found: dict[str, list] = {label: [] for label in SOLVERS}
    for _ in range(options.repeats):
        for label, (settings, n_iter) in SOLVERS.items():
            n_iter = min(n_iter, options.max_iter)
            found[label].append(curve(problem, settings, n_iter, options.threads))
    return [
        {
            "problem": name,
            "K": problem.n_components,
            "solver": label,
            "iteration": number + 1,
            "seconds": f"{second:.5f}",
            "loglik": f"{value:.2f}",
        }
        for label, runs in found.items()
        for number, (second, value) in enumerate(
            zip(np.median([seconds for seconds, _ in runs], axis=0), runs[0][1], strict=True)
        )
    ]


def main() -> None:
    """Measure the solvers on each problem."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", nargs="+", default=["docstrings", "neurips"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-iter", type=int, default=10**6, help="limit for every solver")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    options = parser.parse_args()
    rows = [row for name in options.problems for row in measure(name, options)]
    report.write_csv(options.results / "solver_curves.csv", rows)
    print(f"{report.processor_and_threads(options.threads)}. `{report.command()}`")


if __name__ == "__main__":
    main()
