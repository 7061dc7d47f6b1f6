"""From ten to a thousand topics: seconds of the start, of the fit and of transform, and memory.

The counts have 100 topics. Each number of topics runs in its own process: `PoissonNMF` with one
start, until convergence or for a maximum number of iterations, then `transform` of all samples. The
time of the start is the time until the end of the first iteration minus the time of the second
iteration. Memory is the peak growth of the process.

    python benchmarks/many_topics.py
    python benchmarks/many_topics.py --topics 10 50 --iterations 20
    python benchmarks/many_topics.py --smoke                  a few seconds, writes nothing

Writes results/many_topics.csv, results/many_topics.png and the table in README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import peers
import report

MARKERS = ("<!-- many topics:start -->", "<!-- many topics:end -->")
TRUE_TOPICS, TOTAL = 100, 150


def simulated(n_samples: int, n_features: int):
    """Return samples of about 150 counts, each from a few of 100 topics."""
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(n_features, 0.05), size=TRUE_TOPICS)
    shares = rng.dirichlet(np.full(TRUE_TOPICS, 0.03), size=n_samples)
    return sp.csr_matrix(rng.poisson(shares @ topics * TOTAL))


def measure(K: int, options) -> dict:
    """Fit and transform with a number of topics, in this process."""
    from nmfscale import PoissonNMF, as_counts

    counts = as_counts(simulated(*options.shape))
    counts.layout()
    memory = peers.Memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged after the maximum number of iterations
        model = PoissonNMF(
            K, max_iter=options.iterations, n_init=1, random_state=0, n_threads=options.threads
        ).fit(counts)
    seconds = model.history_["seconds"]
    begun = time.perf_counter()
    loadings = model.transform(counts)
    return {
        "K": K, "rows": counts.shape[0], "columns": counts.shape[1], "nonzeros": counts.nnz,
        "start_seconds": max(0.0, float(2 * seconds[0] - seconds[1])),
        "fit_seconds": float(seconds[-1]), "iterations": model.n_iter_,
        "end": model.stop_reason_, "loglik": float(model.loglik_),
        "transform_seconds": time.perf_counter() - begun,
        "topics_a_sample": float((loadings > 0).sum(axis=1).mean()),
        "peak_growth_mb": memory.growth() / 1e6,
    }  # fmt: skip


def measured_alone(K: int, options) -> dict:
    """Call `measure` in a separate process."""
    command = [sys.executable, __file__, "--alone", "--topics", str(K)]
    for name in ("iterations", "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--shape", *map(str, options.shape)]
    found: dict = json.loads(subprocess.check_output(command))
    print(found, flush=True)
    return found


def draw(rows: list[dict], path: Path) -> None:
    """Plot seconds and memory against the number of topics."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    K = [row["K"] for row in rows]
    for name in ("start", "fit", "transform"):
        left.loglog(K, [row[f"{name}_seconds"] for row in rows], "o-", label=name)
    left.set(xlabel="topics", ylabel="seconds")
    left.legend(frameon=False)
    right.loglog(K, [row["peak_growth_mb"] for row in rows], "o-", color="C3")
    right.set(xlabel="topics", ylabel="peak memory without the counts, MB")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def markdown(rows: list[dict], options) -> str:
    """Return the picture and the table."""
    heads = ["topics", "start, s", "fit including start, s", "iterations", "transform, s",
             "topics per sample", "memory, MB"]  # fmt: skip
    table = [heads, ["---"] * len(heads)]
    for row in rows:
        table.append([
            f"{row['K']:,}", f"{row['start_seconds']:.2f}", f"{row['fit_seconds']:.1f}",
            f"{row['iterations']}{' (' + row['end'] + ')' if row['end'] != 'max_iter' else ''}",
            f"{row['transform_seconds']:.2f}", f"{row['topics_a_sample']:.1f}",
            f"{row['peak_growth_mb']:,.0f}",
        ])  # fmt: skip
    first = rows[0]
    return "\n".join([
        "![seconds and memory by the number of topics](results/many_topics.png)", "",
        *("| " + " | ".join(cells) + " |" for cells in table), "",
        f"{first['rows']:,} x {first['columns']:,}, {first['nonzeros']:,} nonzero counts. "
        f"{report.processor_and_threads(options.threads)}. `{report.command()}`",
    ])  # fmt: skip


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 20, 50, 100, 200, 500, 1000])
    parser.add_argument("--shape", type=int, nargs=2, default=[3000, 3000])
    parser.add_argument("--iterations", type=int, default=100, help="at most")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.topics, options.shape, options.iterations = [10, 40, 110], [340, 350], 4
    if options.alone:
        print(json.dumps(measure(options.topics[0], options)))
        return
    rows = [measured_alone(K, options) for K in options.topics]
    table = markdown(rows, options)
    print(table)
    if not options.smoke:
        report.write_csv(options.results / "many_topics.csv", rows)
        draw(rows, options.results / "many_topics.png")
        report.write_readme(table, MARKERS)


if __name__ == "__main__":
    main()
