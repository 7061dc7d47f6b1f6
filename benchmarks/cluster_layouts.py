"""What an iteration on a Dask cluster costs, for each layout of workers: counters, not clocks.

Counts with the features of a real fit are simulated, packed in small blocks, and fitted in this
process and on clusters of this machine. For each layout (workers x threads) the script reports, per
iteration: processor seconds of this process (with Dask's scheduler) and of the workers, bytes of
files that workers read and write, bytes that workers send to each other and to this process (sizes
of results, which Dask adds up), the number of tasks, and the share of their time in which workers
have no task, from Dask's task stream.
Processor time and bytes are meaningful on a busy machine; idle time is not.

    python benchmarks/cluster_layouts.py                    5, 18 and 120 blocks, five layouts
    python benchmarks/cluster_layouts.py --smoke            a few seconds, writes nothing
    python benchmarks/cluster_layouts.py --profile          prints where workers and driver spend it

Writes results/cluster_layouts.csv.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import problems
import report
from cluster import start_of
from out_of_core import pack_drawn

# Iterations before the measurement, in which workers import modules, verify checksums, and read
# counts: those of columns again after EM steps, when sums become so large that columns are divided.
WARM_UP = 5
# Iterations after it, because the last ones of a fit have further passes.
END = 4
# (blocks, nonzeros of a block, topics)
SIZES = ((5, 1 << 21, 20), (18, 1 << 21, 20), (120, 1 << 18, 10))
# Functions of a profile that are printed.
PRINTED = 18


def counters(dask_worker) -> dict:
    """Return the counters of a worker so far."""
    import psutil

    process = psutil.Process()
    times, files = process.cpu_times(), process.io_counters()
    return {
        "processor": times.user + times.system, "read": files.read_chars,
        "written": files.write_chars, "sent": dask_worker.transfer_outgoing_bytes_total,
    }  # fmt: skip


def profile_of(start: bool, dask_worker) -> str:
    """Start or stop the profile of a worker's tasks; return the functions that took longest."""
    if start:
        from nmfscale.cluster import pool

        dask_worker.profiled = cProfile.Profile()
        perform, profiled = pool.perform, dask_worker.profiled

        def in_profile(function, args, data):
            profiled.enable()
            try:
                return perform(function, args, data)
            finally:
                profiled.disable()

        # tasks are sent by the name of the function
        pool.perform = in_profile
        return ""
    return printed(dask_worker.profiled)


def printed(profiled: cProfile.Profile) -> str:
    """Return the functions of a profile that took longest."""
    text = io.StringIO()
    pstats.Stats(profiled, stream=text).sort_stats("tottime").print_stats(PRINTED)
    return text.getvalue()


@contextmanager
def cluster_of(n_workers: int, n_threads: int):
    """Yield a client of a new cluster of this machine."""
    import dask
    from distributed import Client, LocalCluster

    from nmfscale.cluster.local import _SETTINGS

    with (
        dask.config.set(_SETTINGS),
        LocalCluster(
            n_workers=n_workers, threads_per_worker=n_threads, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


class Measurement:
    """Callback of a fit: reads the counters after the warm-up, and at the end."""

    def __init__(self, client, n_iter: int, profile: bool):
        self.client, self.n_iter, self.profile, self.seen = client, n_iter, profile, 0
        self.begin: dict = {}
        self.row: dict = {}
        self.own = cProfile.Profile()

    def __call__(self, record) -> None:
        """Count iterations."""
        self.seen += 1
        if self.seen == WARM_UP:
            if self.profile and self.client is not None:
                self.client.run(profile_of, True)
            self.begin = self._now()
            if self.profile:
                self.own.enable()
        elif self.seen == WARM_UP + self.n_iter:
            if self.profile:
                self.own.disable()
            self._end()

    def _now(self) -> dict:
        now = {"driver": time.process_time(), "elapsed": time.monotonic(), "clock": time.time()}
        if self.client is None:
            return now
        of_workers = self.client.run(counters).values()
        names = ("processor", "read", "written", "sent")
        return now | {name: sum(worker[name] for worker in of_workers) for name in names}

    def _end(self) -> None:
        end = self._now()
        each = {name: (end[name] - self.begin[name]) / self.n_iter for name in self.begin}
        self.row = {"driver_seconds": each["driver"], "seconds": each["elapsed"]}
        if self.client is None:
            self.row["processor_seconds"] = each["driver"]
        else:
            self.row |= {
                "worker_seconds": each["processor"],
                "processor_seconds": each["driver"] + each["processor"],
                "megabytes_read": each["read"] / 1e6, "megabytes_written": each["written"] / 1e6,
                "megabytes_sent": each["sent"] / 1e6,
            } | self._of_stream(end)  # fmt: skip

    def _of_stream(self, end: dict) -> dict:
        """Return the number of tasks per iteration, and the share of time without a task."""
        first, last = self.begin["clock"], end["clock"]
        tasks = [
            task
            for task in self.client.get_task_stream(start=first, stop=last)
            if task["key"].startswith("nmfscale")
        ]
        busy: dict = {}
        for task in tasks:
            for part in task["startstops"]:
                if part["action"] == "compute":
                    busy.setdefault(task["worker"], []).append((part["start"], part["stop"]))
        n_workers = len(self.client.scheduler_info(-1)["workers"])
        idle = 1 - sum(map(covered, busy.values())) / (n_workers * (last - first))
        return {"tasks": len(tasks) / self.n_iter, "idle": idle}


def covered(intervals: list[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, until = 0.0, -np.inf
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return total


def measured(path: Path, K: int, n_iter: int, layout: str, profile: bool) -> dict:
    """Fit in one layout; return its counters per iteration."""
    if layout == "process":
        return fitted(path, K, n_iter, None, profile)
    with cluster_of(*map(int, layout.split("x"))) as client:
        client.get_task_stream()  # records from now on
        return fitted(path, K, n_iter, client, profile)


def fitted(path: Path, K: int, n_iter: int, client, profile: bool) -> dict:
    """Fit from a store, and measure."""
    from nmfscale import PoissonNMF
    from nmfscale.results import StoredCounts

    counts = StoredCounts(path)
    L, F = start_of(counts, K, "float32")
    measurement = Measurement(client, n_iter, profile)
    model = PoissonNMF(
        K, max_iter=WARM_UP + n_iter + END, tol=0, dtype="float32", callback=measurement,
        n_threads=None if client else 2,
    )  # fmt: skip
    model.fit(counts, loadings=L, components=F.T, client=client)
    if profile:
        print(printed(measurement.own))
        for text in client.run(profile_of, False).values() if client else ():
            print(text, flush=True)
    row = {
        "blocks": len(counts.layout().blocks),
        "samples": counts.shape[0],
        "nonzeros": counts.nnz,
    }
    row["topics"] = K
    return row | measurement.row | {"loglik": float(model.loglik_)}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", default="pbmc_facs", help="problem to simulate from")
    parser.add_argument("--layouts", nargs="+", default=["process", "1x2", "2x1", "4x1", "16x1"],
                        help="workers x threads, or this process")  # fmt: skip
    parser.add_argument("--blocks", type=int, nargs="+", help="only these numbers of blocks")
    parser.add_argument("--nonzeros", type=float, help="nonzeros of a block")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--folder", type=Path, help="folder for stores; default: temporary")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    sizes = [size for size in SIZES if arguments.blocks is None or size[0] in arguments.blocks]
    if arguments.smoke:
        arguments.problem, arguments.iterations, sizes = "docstrings", 3, [(6, 1 << 14, 4)]
    run(arguments, sizes)


def run(arguments: argparse.Namespace, sizes: list[tuple[int, int, int]]) -> None:
    """Measure, and write the results."""
    from nmfscale import PoissonNMF
    from nmfscale.counts import blocks as layout_of_blocks

    source = problems.load_counts(arguments.problem)
    drawn_from = PoissonNMF(10, max_iter=30, tol=0, random_state=1).fit(source)
    L, F, rows = drawn_from.loadings_, drawn_from.components_.T, []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for n_blocks, nonzeros, K in sizes:
            nonzeros = int(arguments.nonzeros or nonzeros)
            layout_of_blocks.BLOCK_NONZEROS = nonzeros
            # somewhat fewer, so that there are not more blocks
            path = Path(folder, "counts.nmf")
            pack_drawn(L, F, (n_blocks - 0.2) * nonzeros, path, 2)
            for layout in arguments.layouts:
                row = measured(path, K, arguments.iterations, layout, arguments.profile)
                rows.append({"layout": layout} | row)
                print(rows[-1], flush=True)
    if not arguments.smoke:
        report.write_csv(arguments.results / "cluster_layouts.csv", rows)


if __name__ == "__main__":
    main()
