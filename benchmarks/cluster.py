"""Fits on a Dask cluster of this machine: two workers beside one, and what the cluster costs.

Counts are drawn from a real fit and packed (as in out_of_core.py).  Each worker process has one
kernel thread.  Measured are seconds an iteration with one worker and with two, alternating, and
beside them what the processors at hand allow: fits in one process and in two at the same time that
have nothing to do with each other; seconds an iteration of many small blocks, of which the work is
next to nothing; and the time to add up arrays in a tree.  From these, and a disk and a network that
are assumed, follows a model of fits of 1e11 nonzeros on many workers, which is arithmetic and no
measurement.

    python benchmarks/cluster.py                   2.6e8 nonzeros, 32 blocks
    python benchmarks/cluster.py --smoke           some seconds, writes nothing

Writes results/cluster.csv, results/cluster_model.csv and results/cluster.png.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import problems
import report
from out_of_core import pack_drawn

N_ITER = 8
# The model's problem: 1e8 cells of 1000 nonzeros each, and what is assumed of the machines.
SAMPLES, FEATURES, TOPICS, NONZEROS = 1e8, 3e4, 50, 1e11
BLOCK = 1 << 23
PROCESSORS = 16
FILE_BYTES_PER_SECOND, NETWORK_BYTES_PER_SECOND, SAVE_EVERY = 2e9, 3e8, 10
# How much slower a processor is when its neighbours work as well.
ALL_BUSY = 1.5


def start_of(counts, K: int, dtype: str):
    """Random factors of the right size."""
    n, m = counts.shape
    rng = np.random.default_rng(0)
    F = rng.uniform(0.1, 1, (m, K)).astype(dtype)
    L = (counts.row_totals[:, None] / F.sum() * rng.uniform(0.5, 1.5, (n, K))).astype(dtype)
    return L, F


def seconds_of(path: Path, K: int, client=None, n_iter: int = N_ITER, threads: int = 1) -> dict:
    """Fit from a store; the median of the seconds from one iteration to the next."""
    from nmfscale import PoissonNMF, StoredCounts

    counts = StoredCounts(path)
    L, F = start_of(counts, K, "float32")
    # a limit below the size of the counts, so that this process reads them from the file as well
    model = PoissonNMF(K, max_iter=n_iter, tol=0, dtype="float32", n_threads=threads)
    model.fit(counts, L=L, F=F, client=client)
    return {
        "seconds_per_iteration": float(np.median(np.diff(model.history_["seconds"]))),
        "nonzeros": counts.nnz, "blocks": len(counts.layout().blocks),
        "loglik": float(model.loglik_),
    }  # fmt: skip


def fit_at_once(problem: str, K: int, n_iter: int, together, found) -> None:
    """Fit in memory, at the same time as other processes; put the seconds of an iteration."""
    from nmfscale import PoissonNMF

    counts = problems.load_counts(problem)
    model = PoissonNMF(K, max_iter=n_iter, tol=0, dtype="float32", n_threads=1, random_state=0)
    together.wait()
    found.put(float(np.median(np.diff(model.fit(counts).history_["seconds"]))))


def unrelated(problem: str, K: int, n_processes: int, n_iter: int) -> float:
    """Iterations a second of all of several processes that know nothing of each other."""
    context = multiprocessing.get_context("spawn")
    together, found = context.Barrier(n_processes), context.Queue()
    arguments = problem, K, n_iter, together, found
    processes = [context.Process(target=fit_at_once, args=arguments) for _ in range(n_processes)]
    for process in processes:
        process.start()
    rate = sum(1 / found.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    return rate


def throughput(path: Path, problem: str, K: int, repeats: int, n_iter: int) -> list[dict]:
    """One worker and two, alternating; the same of processes without a cluster."""
    from distributed import Client, LocalCluster

    workers: dict[int, list[dict]] = {1: [], 2: []}
    bound: dict[int, list[float]] = {1: [], 2: []}
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    for _ in range(repeats):
        for n, turns in bound.items():
            turns.append(unrelated(problem, K, n, 60 * n_iter))
        for n, turns in workers.items():
            with LocalCluster(n_workers=n, **options) as cluster, Client(cluster) as client:
                turns.append(seconds_of(path, K, client, n_iter))
            print(n, "workers", turns[-1], "unrelated fits:", bound[n][-1], "a second", flush=True)
    rows = []
    for n, turns in workers.items():
        middle = float(np.median([turn["seconds_per_iteration"] for turn in turns]))
        rows.append({"what": f"{n} workers"} | turns[0] | {"seconds_per_iteration": middle})
    ratio = rows[0]["seconds_per_iteration"] / rows[1]["seconds_per_iteration"]
    allowed = float(np.median(bound[2]) / np.median(bound[1]))
    print(f"two workers: {ratio:.2f} times one; two fits without a cluster: {allowed:.2f} times")
    return [*rows, {"what": "two to one", "ratio": ratio, "ratio_of_unrelated_fits": allowed}]


def small_blocks(client, folder: Path, numbers: tuple[int, ...], n_iter: int) -> list[dict]:
    """Seconds an iteration of counts cut into many blocks; tasks of several blocks, and of one."""
    from nmfscale import as_counts, pack
    from nmfscale.data import layout
    from nmfscale.solve import cluster

    rng, before, rows = np.random.default_rng(0), (layout.BLOCK_NONZEROS, cluster.MOST_BLOCKS), []
    try:
        for number in numbers:
            counts = as_counts(rng.integers(1, 3, (number * 16, 64)))
            layout.BLOCK_NONZEROS = 16 * 64
            path = folder / f"small-{number}.nmf"
            pack(counts, path)
            for what, most in (("small blocks", before[1]), ("small tasks", 1)):
                cluster.MOST_BLOCKS = most
                rows.append({"what": what} | seconds_of(path, 4, client, n_iter))
                print(rows[-1], flush=True)
    finally:
        layout.BLOCK_NONZEROS, cluster.MOST_BLOCKS = before
    return rows


def zeros(n_bytes: int, given):
    """Return a branch of the sums, on a worker."""
    from nmfscale.solve.tasks import Summed

    return Summed([], [np.zeros(n_bytes // 8)])


def reductions(client, sizes: tuple[float, ...], n_leaves: int, repeats: int) -> list[dict]:
    """Seconds to add up arrays of several sizes in the tree."""
    from nmfscale.data.jobs import Job
    from nmfscale.data.workers import Crew
    from nmfscale.solve.tasks import add_branches
    from nmfscale.solve.visits import FAN_IN

    crew, rows = Crew(client, str), []
    for size in sizes:
        turns = []
        for _ in range(repeats):
            jobs = [Job("array", (int(size),), i) for i in range(n_leaves)]
            begun = time.perf_counter()
            crew.reduce("sums", zeros, jobs, add_branches, FAN_IN)
            turns.append(time.perf_counter() - begun)
        rows.append({"what": "tree", "bytes": size, "leaves": n_leaves,
                     "seconds": float(np.median(turns))})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Return constant and slope."""
    slope, constant = np.polyfit(x, y, 1)
    return float(constant), float(slope)


def model_rows(per_nonzero: float, rows: list[dict]) -> list[dict]:
    """What an iteration of 1e11 nonzeros takes, and of what."""
    small = [row for row in rows if row["what"] == "small tasks"]
    latency, per_task = line(
        [r["blocks"] for r in small], [r["seconds_per_iteration"] for r in small]
    )
    from nmfscale.solve.cluster import group_size

    sums, out = FEATURES * TOPICS * 8, []
    for workers in (50, 200, 1000):
        n_blocks = round(NONZEROS / BLOCK)
        tasks = int(np.ceil(n_blocks / group_size(n_blocks, workers)))
        rounds = np.ceil(tasks / workers) / (tasks / workers)
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
    """Throughput, cost of many blocks, and the model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.3, 1.6])
    workers = [row for row in rows if row["what"].endswith("workers")]
    rates = [row["nonzeros"] / row["seconds_per_iteration"] / 1e6 for row in workers]
    left.bar([row["what"] for row in workers], rates, color="C0")
    left.set_ylabel("million nonzeros a second")
    found = next(row for row in rows if row["what"] == "two to one")
    title = f"two: {found['ratio']:.2f} times (processors: {found['ratio_of_unrelated_fits']:.2f})"
    left.set_title(title, fontsize=10)
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
    """Run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", default="pbmc_facs", help="where the real fit comes from")
    parser.add_argument("--nonzeros", type=float, default=2.6e8)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="for the stores; a temporary one by default")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.problem, arguments.nonzeros, arguments.repeats = "docstrings", 2e5, 1
    run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Measure, and write what was found."""
    from distributed import Client, LocalCluster

    from nmfscale import PoissonNMF

    source = problems.load_counts(arguments.problem)
    drawn_from = PoissonNMF(arguments.topics, max_iter=30, tol=0, random_state=1).fit(source)
    n_iter = 3 if arguments.smoke else N_ITER
    numbers, sizes = (16, 64, 256), (1e5, 1.2e7, 4e7)
    if arguments.smoke:
        numbers, sizes = (4, 8), (1e5,)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder, "counts.nmf")
        pack_drawn(drawn_from.loadings_, drawn_from.components_.T, arguments.nonzeros, path, 2)
        rows = throughput(path, arguments.problem, arguments.topics, arguments.repeats, n_iter)
        here = seconds_of(path, TOPICS, None, 4)
        rows.append({"what": f"in this process, {TOPICS} topics"} | here)
        options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
        with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
            rows += small_blocks(client, Path(folder), numbers, n_iter)
            rows += reductions(client, sizes, 16, arguments.repeats)
    modelled = model_rows(here["seconds_per_iteration"] / here["nonzeros"], rows)
    if not arguments.smoke:
        report.write_csv(arguments.results / "cluster.csv", rows)
        report.write_csv(arguments.results / "cluster_model.csv", modelled)
        draw(rows, modelled, arguments.results / "cluster.png")


if __name__ == "__main__":
    main()
