"""Time and memory as functions of the number of nonzeros and of topics.

Counts are simulated from the factors of a real fit, with rows repeated to reach the required size.
Every point is measured in a fresh process: median seconds per iteration, and peak memory compared
with the CSR input.

    python benchmarks/scaling.py                  1e6 to 1e8 nonzeros at K = 10, K = 5 to 100
    python benchmarks/scaling.py --nonzeros 1e5 1e6 --topics 5 10

Writes results/scaling.csv and results/scaling.png.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import peers
import problems
import report

PROGRAMS = ("auto float64", "auto float32")
N_ITER = 12


def fitted(source: problems.Problem, n_components: int):
    """Return the factors of a real fit with a given number of topics."""
    from nmfscale import PoissonNMF

    model = PoissonNMF(n_components, max_iter=30, tol=0, random_state=1).fit(source.X)
    return model.loadings_, np.ascontiguousarray(model.components_.T)


def drawn(L, F, nonzeros: float) -> problems.Problem:
    """Return counts with about this many nonzeros: rows of the fit, drawn with replacement."""
    from nmfscale.datasets.simulate import simulate_from_factors

    # A sample of rows gives the number of nonzeros per row.
    sample = np.linspace(0, len(L) - 1, min(len(L), 500)).astype(int)
    per_row = simulate_from_factors(L[sample], F, random_state=0).nnz / len(sample)
    rows = np.random.default_rng(1).integers(len(L), size=max(1, round(nonzeros / per_row)))
    X = simulate_from_factors(L[rows], F, random_state=1)
    return problems.Problem("drawn", X, L[rows], F)


def measure(problem: problems.Problem, program: str, threads: int) -> dict:
    """Measure one program on one matrix."""
    with tempfile.TemporaryDirectory() as folder:
        problem.store(Path(folder))
        run = peers.measure(Path(folder), program, N_ITER, threads)
    seconds = np.array([second for second, _ in run.points])
    per_iteration = float(np.median(np.diff(seconds)))
    factors = (sum(problem.X.shape) * problem.n_components) * (8 if "64" in program else 4)
    return {
        "program": program,
        "rows": problem.X.shape[0],
        "columns": problem.X.shape[1],
        "nonzeros": problem.X.nnz,
        "K": problem.n_components,
        "seconds_per_iteration": per_iteration,
        "nanoseconds_per_nonzero": 1e9 * per_iteration / problem.X.nnz,
        "seconds_before_first_iteration_ends": float(seconds[0]),
        "csr_bytes": problem.csr_bytes,
        "factor_bytes": factors,
        "growth_bytes": run.peak,
        # Peak memory of the process, including the input but without one copy of the factors.
        "memory_over_csr": (problem.csr_bytes + run.peak - factors) / problem.csr_bytes,
    }


def draw(by_size: list[dict], by_topics: list[dict], path: Path) -> None:
    """Plot seconds against nonzeros and topics, each with a linear reference, and memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (size, topics, memory) = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for program in dict.fromkeys(row["program"] for row in by_size + by_topics):
        for ax, rows, key in ((size, by_size, "nonzeros"), (topics, by_topics, "K")):
            mine = [row for row in rows if row["program"] == program]
            x = np.array([row[key] for row in mine], dtype=float)
            y = np.array([row["seconds_per_iteration"] for row in mine])
            (line,) = ax.loglog(x, y, "o-", label=program)
            ax.loglog(x, y[0] * x / x[0], ":", color=line.get_color(), label="linear")
            ax.set(xlabel=key, ylabel="seconds per iteration")
        mine = [row for row in by_size if row["program"] == program]
        ratio = [row["memory_over_csr"] for row in mine]
        memory.semilogx([row["nonzeros"] for row in mine], ratio, "o-", label=program)
    memory.axhline(2.5, color="0.5", lw=0.8, ls="--", label="2.5")
    memory.set(xlabel="nonzeros", ylabel="peak memory / CSR input", ylim=(0, None))
    size.legend(fontsize=8)
    memory.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Measure both series."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", help="problem to simulate from")
    parser.add_argument("--nonzeros", type=float, nargs="+", default=[1e6, 3e6, 1e7, 3e7, 1e8])
    parser.add_argument("--topics", type=int, nargs="+", default=[5, 10, 20, 35, 50, 70, 100])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    options = parser.parse_args()
    name = options.problem or ("docstrings" if problems.available("pbmc_facs") else "pbmc_facs")
    source = problems.load(name)
    L, F = fitted(source, 10)
    by_size = []
    for nonzeros in options.nonzeros:
        problem = drawn(L, F, nonzeros)
        by_size += [measure(problem, program, options.threads) for program in PROGRAMS]
        print(by_size[-1], flush=True)
    by_topics = []
    for k in options.topics:
        problem = problems.Problem(name, source.X, *fitted(source, k))
        by_topics += [measure(problem, program, options.threads) for program in PROGRAMS]
        print(by_topics[-1], flush=True)
    series = [{"series": "nonzeros", **row} for row in by_size]
    series += [{"series": "K", **row} for row in by_topics]
    report.write_csv(options.results / "scaling.csv", series)
    draw(by_size, by_topics, options.results / "scaling.png")


if __name__ == "__main__":
    main()
