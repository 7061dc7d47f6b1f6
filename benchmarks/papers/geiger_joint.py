"""Geiger and Park (2024), section 4: joint updates of both matrices beside alternating updates.

From the same normalised start, Algorithm 1 (EM, one matrix after the other; four matrix products
per iteration) and Algorithm 4 (both from the same expected counts; three products) run for a fixed
number of iterations.  Processor seconds are those of fits, run alternately on one thread, minus
those of fits with one iteration.

    python benchmarks/papers/geiger_joint.py
    python benchmarks/papers/geiger_joint.py --smoke

Writes results/geiger_joint.csv, with the curves, and geiger_joint.png.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from typing import Any

import experiment
import numpy as np

METHODS = {"EM": ("em", "tab:red"), "joint": ("joint-em", "tab:blue")}
# Products of matrices in an iteration, as counted by the paper.
PAPER = 3 / 4


@dataclass
class Pair:
    """Divergence by iteration of both methods, and seconds per iteration of each repeat."""

    divergence: dict[str, np.ndarray]
    seconds: dict[str, np.ndarray]

    def iterations_to(self, value: float, method: str) -> int | None:
        """Return the iterations until a divergence is reached."""
        reached = self.divergence[method] <= value
        return int(reached.argmax()) + 1 if reached.any() else None


def fit(counts: Any, start: tuple[np.ndarray, np.ndarray], method: str, n_iter: int) -> Any:
    """Run iterations of a method on one thread."""
    from nmfscale import PoissonNMF

    how = {} if method == "joint" else {"inner_iter": 1, "extrapolate": False}
    model = PoissonNMF(
        start[0].shape[1], solver=METHODS[method][0], max_iter=n_iter, tol=0, n_threads=1, **how
    )
    return model.fit(counts, loadings=start[0], components=start[1].T)


def seconds_of(counts: Any, start: Any, method: str, n_iter: int) -> float:
    """Return processor seconds per iteration, without those of the first."""
    spent = []
    for n in (1, n_iter + 1):
        began = time.process_time()
        fit(counts, start, method, n)
        spent.append(time.process_time() - began)
    return (spent[1] - spent[0]) / n_iter


def compare(counts: Any, K: int, n_iter: int, repeats: int) -> Pair:
    """Run both methods from the same random start."""
    rng, (n, m) = np.random.default_rng(1), counts.shape
    W = rng.dirichlet(np.ones(m), K).T
    totals = np.asarray(counts.row_totals, dtype=float)[:, None]
    start = np.maximum(totals, 1e-3) * rng.dirichlet(np.ones(K), n), W
    divergence = {
        method: fit(counts, start, method, n_iter).history_["deviance"] / 2 for method in METHODS
    }
    found = [
        {method: seconds_of(counts, start, method, n_iter) for method in METHODS}
        for _ in range(repeats)
    ]
    return Pair(divergence, {each: np.array([one[each] for one in found]) for each in METHODS})


def line_of(name: str, K: int, pair: Pair) -> dict:
    """Return the line of the table."""
    em, joint = pair.divergence["EM"], pair.divergence["joint"]
    ratio = np.median(pair.seconds["joint"] / pair.seconds["EM"])
    return {
        "counts, K": f"{name}, {K}",
        "iterations": len(em),
        "divergence: EM": float(em[-1]),
        "joint": float(joint[-1]),
        "joint - EM, relative": f"{(joint[-1] - em[-1]) / em[-1]:+.2%}",
        "EM iterations to the end of joint": pair.iterations_to(joint[-1], "EM"),
        "ms per iteration: EM": float(1e3 * np.median(pair.seconds["EM"])),
        "joint ": float(1e3 * np.median(pair.seconds["joint"])),
        "joint / EM: paper (products)": PAPER,
        "here (processor time)": f"{ratio:.2f}",
    }


def rows_of(name: str, K: int, pair: Pair) -> list[dict]:
    """Return points of the curves at about 20 iterations."""
    n_iter = len(pair.divergence["EM"])
    shown = np.unique(np.geomspace(1, n_iter, 20).astype(int))
    return [
        {"counts": name, "K": K, "method": method, "iteration": int(i),
         "divergence": f"{pair.divergence[method][i - 1]:.4f}",
         "milliseconds_per_iteration": f"{1e3 * np.median(pair.seconds[method]):.4f}"}
        for method in METHODS
        for i in shown
    ]  # fmt: skip


def draw(found: dict[tuple[str, int], Pair]) -> Any:
    """Plot divergence against iterations, and against processor seconds."""
    figure, axes = experiment.panels(2 * len(found), 2, (4.6, 2.9))
    for place, ((name, K), pair) in enumerate(found.items()):
        left, right = axes[2 * place : 2 * place + 2]
        least = min(curve.min() for curve in pair.divergence.values())
        for method, curve in pair.divergence.items():
            iteration, color = np.arange(1, len(curve) + 1), METHODS[method][1]
            above = np.maximum(curve - least, 1e-6 * least)
            left.semilogy(iteration, above, color=color, label=method)
            right.semilogy(iteration * np.median(pair.seconds[method]), above, color=color)
        left.set(title=f"{name}, K = {K}", xlabel="iteration")
        left.set_ylabel("divergence\nabove the least")
        right.set_xlabel("processor seconds")
    axes[0].legend(frameon=False)
    return figure


def main() -> None:
    """Compare both methods on every problem."""
    import problems

    parser = experiment.parser(__doc__)
    parser.add_argument("--problems", nargs="+")
    options: argparse.Namespace = parser.parse_args()
    options.threads = 1
    sizes = {"docstrings": 10, "neurips": 10, "pbmc_facs": 6}
    asked = options.problems or (["docstrings-small"] if options.smoke else list(sizes))
    n_iter, repeats = (10, 1) if options.smoke else (1_000, 5) if options.full else (200, 3)
    warnings.simplefilter("ignore")  # fits do not converge in a fixed number of iterations
    found = {}
    for name in experiment.available(asked):
        K = sizes.get(name) or problems.BUILT_IN.get(name, 10)
        counts = experiment.counts_of(name)
        counts.layout()
        found[name, K] = compare(counts, K, n_iter, repeats)
        print(line_of(name, K, found[name, K]), flush=True)
    rows = [row for (name, K), pair in found.items() for row in rows_of(name, K, pair)]
    lines = [line_of(name, K, pair) for (name, K), pair in found.items()]
    experiment.keep("geiger_joint", rows, draw(found), options, summary=lines)


if __name__ == "__main__":
    main()
