"""Fits on a Dask cluster of this machine: two workers compared with one, and the overhead.

Counts are simulated from a real fit and packed (as in out_of_core.py). The workers are those of
``nmfscale fit --workers``, each with one kernel thread. The script measures seconds per iteration
with one worker and with two, alternately; seconds per iteration for many small blocks, where the
computation itself takes almost no time; and the time to sum arrays in a tree. From these values,
and an assumed disk and network, it computes a model of fits of 1e11 nonzeros on many workers. The
model is arithmetic, not a measurement.

    python benchmarks/cluster.py                   6.7e7 and 1e9 nonzeros
    python benchmarks/cluster.py --smoke           a few seconds, writes nothing

Writes results/cluster.csv, results/cluster_model.csv and results/cluster.png.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import problems
import report
from out_of_core import pack_drawn

N_ITER = 10
# The problem of the model: 1e8 cells with 1000 nonzeros each; assumptions about the machines.
SAMPLES, FEATURES, TOPICS, NONZEROS = 1e8, 3e4, 50, 1e11
BLOCK = 1 << 23
PROCESSORS = 16
FILE_BYTES_PER_SECOND, NETWORK_BYTES_PER_SECOND, SAVE_EVERY = 2e9, 3e8, 10
# How much slower a processor is when all processors work.
ALL_BUSY = 1.5


def start_of(counts, K: int, dtype: str):
    """Return random factors of the right size."""
    n, m = counts.shape
    rng = np.random.default_rng(0)
    F = rng.uniform(0.1, 1, (m, K)).astype(dtype)
    L = (counts.row_totals[:, None] / F.sum() * rng.uniform(0.5, 1.5, (n, K))).astype(dtype)
    return L, F


def seconds_of(path: Path, K: int, client=None, n_iter: int = N_ITER, threads: int = 1) -> dict:
    """Fit from a store; return the seconds per iteration after the first."""
    from nmfscale import PoissonNMF
    from nmfscale.results import StoredCounts

    counts = StoredCounts(path)
    L, F = start_of(counts, K, "float32")
    model = PoissonNMF(K, max_iter=n_iter, tol=0, dtype="float32", n_threads=threads)
    model.fit(counts, loadings=L, components=F.T, client=client)
    seconds = model.history_["seconds"]
    return {
        "seconds_per_iteration": float(seconds[-1] - seconds[0]) / (len(seconds) - 1),
        "nonzeros": counts.nnz, "blocks": len(counts.layout().blocks),
        "loglik": float(model.loglik_),
    }  # fmt: skip


def throughput(path: Path, K: int, repeats: int, n_iter: int) -> list[dict]:
    """Measure fits with one worker and with two, alternately."""
    from nmfscale.cluster.local import local_client

    found: dict[int, list[dict]] = {1: [], 2: []}
    for _ in range(repeats):
        for n_workers, turns in found.items():
            with local_client(n_workers) as client:
                turns.append(seconds_of(path, K, client, n_iter))
            print(n_workers, "workers", turns[-1], flush=True)
    middle = {
        n_workers: float(np.median([turn["seconds_per_iteration"] for turn in turns]))
        for n_workers, turns in found.items()
    }
    rows = [
        {"what": f"{n_workers} workers"} | turns[0]
        | {"seconds_per_iteration": middle[n_workers], "times_one": middle[1] / middle[n_workers]}
        for n_workers, turns in found.items()
    ]  # fmt: skip
    print(rows[-1], flush=True)
    return rows


def small_blocks(client, folder: Path, numbers: tuple[int, ...], n_iter: int) -> list[dict]:
    """Measure an iteration of many blocks, with tasks of several blocks and of one."""
    from nmfscale import write_store
    from nmfscale.counts import blocks as layout
    from nmfscale.engine import shares

    rng, before, rows = np.random.default_rng(0), (layout.BLOCK_NONZEROS, shares.MOST_BLOCKS), []
    try:
        for number in numbers:
            counts = rng.integers(1, 3, (number * 16, 64))
            layout.BLOCK_NONZEROS = 16 * 64
            path = folder / f"small-{number}.nmf"
            write_store(counts, path)
            for what, most in (("small blocks", before[1]), ("small tasks", 1)):
                shares.MOST_BLOCKS = most
                rows.append({"what": what} | seconds_of(path, 4, client, n_iter))
                print(rows[-1], flush=True)
    finally:
        layout.BLOCK_NONZEROS, shares.MOST_BLOCKS = before
    return rows


def zeros(number: int, n_bytes: int, n_leaves: int, given):
    """Return one term of the sums, on a worker."""
    from nmfscale.engine.runner import Branch
    from nmfscale.engine.worker import Found

    term = Branch(number, number + 1, [np.zeros(n_bytes // 8)])
    return Found(n_leaves, [[{}]], [[term]], [{}])


def reductions(client, sizes: tuple[float, ...], n_leaves: int, repeats: int) -> list[dict]:
    """Measure the seconds to sum arrays of several sizes in the tree."""
    from nmfscale.cluster.pool import WorkerPool
    from nmfscale.cluster.tasks import Task
    from nmfscale.engine.runner import FAN_IN
    from nmfscale.engine.worker import join

    pool, rows = WorkerPool(client, {}.__getitem__), []
    for size in sizes:
        turns = []
        for _ in range(repeats):
            jobs = [Task("array", (i, int(size), n_leaves), i) for i in range(n_leaves)]
            begun = time.perf_counter()
            pool.reduce("sums", zeros, jobs, join, FAN_IN)
            turns.append(time.perf_counter() - begun)
        rows.append({"what": "tree", "bytes": size, "leaves": n_leaves,
                     "seconds": float(np.median(turns))})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Return the intercept and the slope of a line."""
    slope, constant = np.polyfit(x, y, 1)
    return float(constant), float(slope)


def model_rows(per_nonzero: float, rows: list[dict]) -> list[dict]:
    """Return the seconds of an iteration of 1e11 nonzeros in the model, by cause."""
    small = [row for row in rows if row["what"] == "small tasks"]
    latency, per_task = line(
        [r["blocks"] for r in small], [r["seconds_per_iteration"] for r in small]
    )
    from nmfscale.engine.partition import partition_size
    from nmfscale.engine.shares import shares_of

    sums, out = FEATURES * TOPICS * 8, []
    for workers in (50, 200, 1000):
        n_blocks = round(NONZEROS / BLOCK)
        size = partition_size(n_blocks, workers)
        n_partitions = -(-n_blocks // size)
        shares = shares_of(n_partitions, size, dict.fromkeys(map(str, range(workers)), 1)).ranges
        tasks = len(shares)
        rounds = max(map(len, shares)) * workers / n_partitions
        levels = np.ceil(np.log(tasks) / np.log(4))
        parts = {
            "compute": NONZEROS * per_nonzero * ALL_BUSY / (workers * PROCESSORS),
            "uneven shares": 0.0,
            "scheduler": max(latency, 0.0) + tasks * per_task,
            "sums": levels * 3 * 2 * sums / NETWORK_BYTES_PER_SECOND,
            "factors": 2 * FEATURES * TOPICS * 4 * workers / FILE_BYTES_PER_SECOND,
            "loadings": SAMPLES * TOPICS * 4 / FILE_BYTES_PER_SECOND / SAVE_EVERY,
        }
        parts["uneven shares"] = parts["compute"] * (rounds - 1)
        total = sum(parts.values())
        out.append({
            "workers": workers, "processors": workers * PROCESSORS, "tasks": tasks,
            "seconds_per_iteration": total, "bottleneck": max(parts, key=parts.__getitem__),
            "next": sorted(parts, key=parts.__getitem__)[-2],
            "efficiency": parts["compute"] / total, **parts,
        })  # fmt: skip
        print(out[-1], flush=True)
    return out


def draw(rows: list[dict], modelled: list[dict], path: Path) -> None:
    """Plot the throughput, the cost of many blocks, and the model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.3, 1.6])
    for what, color in (("1 workers", "C7"), ("2 workers", "C0")):
        of_what = sorted((r for r in rows if r["what"] == what), key=lambda row: row["nonzeros"])
        rates = [row["nonzeros"] / row["seconds_per_iteration"] / 1e6 for row in of_what]
        where = np.arange(len(rates)) + (0.2 if color == "C0" else -0.2)
        bars = left.bar(where, rates, 0.4, color=color, label=what.replace("1 workers", "1 worker"))
        if color == "C0":
            left.bar_label(bars, [f"× {row['times_one']:.2f}" for row in of_what])
            sizes = [f"{row['nonzeros'] / 1e6:.0f} million" for row in of_what]
            left.set_xticks(range(len(sizes)), sizes)
    left.set(xlabel="nonzeros", ylabel="million nonzeros per second")
    left.set_ylim(0, 1.2 * left.get_ylim()[1])
    left.legend(frameon=False, loc="upper left", ncols=2)
    for what, label in (("small tasks", "one a task"), ("small blocks", "several a task")):
        small = [row for row in rows if row["what"] == what]
        seconds = [row["seconds_per_iteration"] for row in small]
        middle.plot([row["blocks"] for row in small], seconds, "o-", label=label)
    middle.set(xlabel="blocks", ylabel="seconds an iteration", title="small blocks", xlim=(0, None))
    middle.set_ylim(0, None)
    middle.legend(frameon=False)
    names = ["compute", "uneven shares", "scheduler", "sums", "factors", "loadings"]
    bottom = np.zeros(len(modelled))
    for name in names:
        heights = np.array([row[name] for row in modelled])
        right.bar([str(row["workers"]) for row in modelled], heights, bottom=bottom, label=name)
        bottom += heights
    right.set(xlabel=f"workers of {PROCESSORS} processors", ylabel="seconds an iteration",
              title="model: 1e11 nonzeros, 50 topics")  # fmt: skip
    right.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", default="pbmc_facs", help="problem to simulate from")
    parser.add_argument("--nonzeros", type=float, nargs="+", default=[6.7e7, 1e9])
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for stores; default: temporary")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.problem, arguments.nonzeros, arguments.repeats = "docstrings", [2e5], 1
    run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Measure, and write the results."""
    from nmfscale import PoissonNMF
    from nmfscale.cluster.local import local_client

    source = problems.load_counts(arguments.problem)
    drawn_from = PoissonNMF(arguments.topics, max_iter=30, tol=0, random_state=1).fit(source)
    n_iter = 3 if arguments.smoke else N_ITER
    numbers, sizes = (16, 64, 256), (1e5, 1.2e7, 4e7)
    if arguments.smoke:
        numbers, sizes = (4, 8), (1e5,)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path, rows = Path(folder, "counts.nmf"), []
        L, F = drawn_from.loadings_, drawn_from.components_.T
        for nonzeros in sorted(arguments.nonzeros, reverse=True):
            pack_drawn(L, F, nonzeros, path, 2)
            rows += throughput(path, arguments.topics, arguments.repeats, n_iter)
        here = seconds_of(path, TOPICS, None, 4)
        rows.append({"what": f"in this process, {TOPICS} topics"} | here)
        with local_client(2) as client:
            rows += small_blocks(client, Path(folder), numbers, n_iter)
            rows += reductions(client, sizes, 16, arguments.repeats)
    modelled = model_rows(here["seconds_per_iteration"] / here["nonzeros"], rows)
    if not arguments.smoke:
        report.write_csv(arguments.results / "cluster.csv", rows)
        report.write_csv(arguments.results / "cluster_model.csv", modelled)
        draw(rows, modelled, arguments.results / "cluster.png")


if __name__ == "__main__":
    main()
