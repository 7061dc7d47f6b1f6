"""A simulated schedule of a fit on a cluster, fed by measured costs: layouts that are not at hand.

`cluster_layouts.py` measures processor seconds of fits in this process, with one worker of two
threads, and with two and four workers of one thread. From these, this script estimates what a task,
a block and a sum cost workers and driver, compares the costs of its model with those that were
measured, and simulates iterations event by event: the driver makes tasks one after the other,
workers process their shares, which are whole blocks or parts of them, sums are sent, and added in
the tree. Its results for larger layouts are predictions, not measurements.

    python benchmarks/cluster_schedule.py              from results/cluster_layouts.csv
    python benchmarks/cluster_schedule.py --elapsed    compares elapsed seconds, too, if the layouts
                                                       were measured on a quiet machine
    python benchmarks/cluster_schedule.py --smoke      writes nothing

Writes results/cluster_schedule.csv.
"""

from __future__ import annotations

import argparse
import csv
import math
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import report

from nmfscale.engine.division import worth_reading
from nmfscale.engine.plan import ADDED_PER_SECOND, CROWDED
from nmfscale.engine.runner import FAN_IN
from nmfscale.engine.shares import LONGER, MOST_BLOCKS
from nmfscale.kernels import row_stride

# Bytes per second and seconds of a message within a machine, and between machines.
HERE, NETWORK = (2e9, 5e-4), (3e8, 1e-3)
# Features of the measured layouts, and nonzero counts of the blocks of real fits.
FEATURES, NONZEROS_OF_BLOCK = 16_791, 1 << 23
# Layouts with more workers take no part in the estimates: they are predicted, and compared.
MOST_WORKERS = 4
# Processors of the machine on which layouts were measured.
MEASURED_ON = 2
# Nonzero counts of a sample, in predictions.
NONZEROS_OF_SAMPLE = 645


class Costs(NamedTuple):
    """Processor seconds: of a count and component, and what workers and driver spend besides."""

    per_count: float
    worker: tuple[float, float, float]  # for each task, megabyte read or sent, visit of a block
    driver: tuple[float, float, float]  # in each iteration, for each task, megabyte of sums


class Pass(NamedTuple):
    """A pass over the blocks: what tasks do, and whether sums are added in a tree of tasks."""

    blocks: list[float]  # of each task; not whole numbers where blocks are divided
    visits: int  # blocks of which a task has a part, in all tasks
    read: float  # megabytes of loadings that a task reads
    sent: float  # megabytes of sums that a task sends
    tree: bool

    @property
    def nodes(self) -> list[int]:
        """Numbers of tasks in the levels of the tree."""
        sizes = [len(self.blocks)] if self.tree else []
        while sizes and sizes[-1] > 1:
            sizes.append(math.ceil(sizes[-1] / FAN_IN))
        return sizes[1:]

    @property
    def tasks(self) -> int:
        """Tasks of the pass and of its tree."""
        return len(self.blocks) + sum(self.nodes)

    @property
    def megabytes(self) -> float:
        """Megabytes that all tasks read and send."""
        return len(self.blocks) * (self.read + self.sent)


class Problem(NamedTuple):
    """Counts in blocks, and a layout of workers on some machines."""

    name: str
    n_blocks: int
    n: int
    nonzeros: float
    K: int
    m: int
    workers: int
    threads: int
    machines: int = 1

    @property
    def sums(self) -> float:
        """Megabytes of the sums of the columns."""
        return self.m * self.K * (self.K + 3) / 2 * 8 / 1e6

    @property
    def loadings(self) -> float:
        """Megabytes of the loadings, in float32."""
        return self.n * row_stride(self.K) * 4 / 1e6

    @property
    def passes(self) -> list[Pass]:
        """The passes over rows and columns, divided where `nmfscale.engine.division` does it."""
        n = self.workers * math.ceil(self.n_blocks / self.workers / MOST_BLOCKS)
        cuts = np.unique([self.n_blocks * i // n for i in range(n + 1)]).tolist()
        whole = [last - first for first, last in pairwise(cuts)]
        parts = [self.n_blocks / n] * n
        even = max(whole) <= LONGER * self.n_blocks / self.workers
        rows = Pass(whole if even else parts, self.n_blocks, 0, 0, False)
        longer = max(whole) * self.workers / self.n_blocks - 1
        counts_each = self.nonzeros / self.n / (self.workers * self.threads)
        if self.workers == 1 or not worth_reading(self.loadings / self.sums, longer, counts_each):
            return [rows, Pass(whole, self.n_blocks, 0, self.sums, len(whole) > 1)]
        columns = Pass(parts, n * self.n_blocks, self.loadings, self.sums / n, False)
        return [rows, columns]

    @property
    def tasks(self) -> int:
        """Tasks of an iteration."""
        return sum(of.tasks for of in self.passes)


def problem_of(row: dict) -> Problem:
    """Return the problem of a row of cluster_layouts.csv."""
    workers, threads = (1, 2) if row["layout"] == "process" else map(int, row["layout"].split("x"))
    sizes = int(row["blocks"]), int(row["samples"]), float(row["nonzeros"]), int(row["topics"])
    return Problem(row["layout"], *sizes, FEATURES, workers, threads)


def terms_of_workers(problem: Problem) -> list[float]:
    """Return what the seconds of workers besides kernels are proportional to.

    Threads that have nothing to do wait in a loop, so that a worker spends them once for each.
    """
    passes = problem.passes
    of_tasks = [problem.tasks, sum(of.megabytes for of in passes), sum(of.visits for of in passes)]
    return [float(problem.threads * number) for number in of_tasks]


def terms_of_driver(problem: Problem) -> list[float]:
    """Return what the seconds of the driver are proportional to."""
    return [1.0, problem.tasks, problem.sums]


def costs_of(rows: list[dict]) -> Costs:
    """Estimate costs that are not negative, by least squares relative to the measured seconds."""
    from scipy.optimize import nnls

    alone = {row["blocks"]: row for row in rows if row["layout"] == "process"}
    spread = [
        row
        for row in rows
        if row["layout"] != "process" and problem_of(row).workers <= MOST_WORKERS
    ]
    work = np.array([float(alone[row["blocks"]]["processor_seconds"]) for row in spread])
    of_workers = np.array([terms_of_workers(problem_of(row)) for row in spread])
    of_driver = np.array([terms_of_driver(problem_of(row)) for row in spread])
    worker_seconds, driver_seconds = (
        np.array([float(row[f"{who}_seconds"]) for row in spread]) for who in ("worker", "driver")
    )
    more = np.maximum(worker_seconds - work, 0)
    worker, _ = nnls(of_workers / worker_seconds[:, None], more / worker_seconds)
    driver, _ = nnls(of_driver / driver_seconds[:, None], np.ones(len(spread)))
    largest = max(alone.values(), key=lambda row: float(row["nonzeros"]))
    entries = float(largest["nonzeros"]) * int(largest["topics"])
    rate = float(largest["processor_seconds"]) / entries
    return Costs(rate, tuple(worker.tolist()), tuple(driver.tolist()))


def processor_seconds(problem: Problem, costs: Costs, work: float) -> tuple[float, float]:
    """Return the processor seconds of workers and of the driver in an iteration."""
    workers = work + float(np.dot(costs.worker, terms_of_workers(problem)))
    return workers, float(np.dot(costs.driver, terms_of_driver(problem)))


def simulated(problem: Problem, costs: Costs, work: float) -> dict:
    """Simulate an iteration, whose kernels take `work` processor seconds; return its seconds."""
    crowded = CROWDED if problem.workers * problem.threads > 2 else 1.0
    per_task, per_megabyte, per_visit = costs.worker
    of_block = work / problem.n_blocks * crowded / problem.threads / 2
    bandwidth, latency = HERE if problem.machines == 1 else NETWORK
    once, of_task, of_sums = costs.driver
    now, busy = once + of_sums * problem.sums, 0.0
    for of in problem.passes:
        free, ready = [0.0] * problem.workers, []
        besides = per_task + per_visit * of.visits / len(of.blocks)
        besides += of.read * 1e6 / bandwidth + per_megabyte * (of.read + of.sent)
        for i, share in enumerate(of.blocks):
            now += of_task  # the driver makes one task after the other
            worker, took = i % problem.workers, share * of_block + besides
            free[worker] = max(free[worker], now + latency) + took
            ready.append(free[worker])
            busy += took
        sent = of.sent * 1e6
        added = sent / bandwidth + sent / ADDED_PER_SECOND + per_megabyte * of.sent
        for _ in of.nodes:  # a node of the tree begins when the last of its children is there
            nodes = [ready[i : i + FAN_IN] for i in range(0, len(ready), FAN_IN)]
            took = [(len(node) - 1) * added + per_task for node in nodes]
            now = max(now, min(map(max, nodes))) + of_task * len(nodes)
            ready = [max([*node, now]) + latency + of for node, of in zip(nodes, took, strict=True)]
            busy += sum(took)
        now = max(now, *ready) + latency + len(ready) * sent / bandwidth
    of_workers, of_driver = processor_seconds(problem, costs, work)
    largest = [max(of.blocks) * problem.workers / problem.n_blocks for of in problem.passes]
    return {
        "simulated_seconds": now, "idle": max(0.0, 1 - busy / problem.workers / now),
        "rounds": max(largest), "tasks": problem.tasks,
        "worker_seconds": of_workers, "driver_seconds": of_driver,
    }  # fmt: skip


def compared(rows: list[dict], costs: Costs, elapsed: bool) -> list[dict]:
    """Compare the model with measured layouts: processor seconds, tasks and elapsed seconds."""
    alone = {row["blocks"]: row for row in rows if row["layout"] == "process"}
    out = []
    for row in rows:
        if row["layout"] == "process":
            continue
        problem, work = problem_of(row), float(alone[row["blocks"]]["processor_seconds"])
        found = simulated(problem, costs, work)
        total, measured = (
            sum(float(of[f"{who}_seconds"]) for who in ("worker", "driver")) for of in (found, row)
        )
        out.append({
            "what": "compared", "layout": row["layout"], "blocks": row["blocks"],
            "processor_seconds": total, "measured_processor_seconds": measured,
            "ratio": total / measured, "tasks": found["tasks"], "measured_tasks": row["tasks"],
        })  # fmt: skip
        if elapsed and problem.workers * problem.threads <= MEASURED_ON:
            seconds = float(row["seconds"])
            out[-1] |= {"seconds": found["simulated_seconds"], "measured_seconds": seconds,
                        "ratio_of_seconds": found["simulated_seconds"] / seconds}  # fmt: skip
    return out


def predictions(costs: Costs) -> list[dict]:
    """Predict layouts of 16 processors, of 64 workers on four machines, and 1e11 nonzeros."""

    def of(name: str, nonzeros: float, K: int, m: int, *layout: int) -> Problem:
        n_blocks, n = math.ceil(nonzeros / NONZEROS_OF_BLOCK), int(nonzeros / NONZEROS_OF_SAMPLE)
        return Problem(name, n_blocks, n, nonzeros, K, m, *layout)

    problems = [of("16 processors", 1.46e8, 20, FEATURES, *layout)
                for layout in ((1, 16), (4, 4), (16, 1))]  # fmt: skip
    problems += [of("four machines", 1e9, 20, FEATURES, *layout)
                 for layout in ((4, 16, 4), (64, 1, 4))]  # fmt: skip
    problems.append(of("1e11 nonzeros", 1e11, 50, 30_000, 100, 16, 100))
    out = []
    for problem in problems:
        work = costs.per_count * problem.nonzeros * problem.K
        processors = problem.workers * problem.threads
        ideal = work * CROWDED / processors
        found = simulated(problem, costs, work)
        out.append({
            "what": "predicted", "problem": problem.name, "blocks": problem.n_blocks,
            "layout": f"{problem.workers}x{problem.threads}", **found,
            "beside_ideal": found["simulated_seconds"] / ideal,
        })  # fmt: skip
    return out


def main() -> None:
    """Run the simulation from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--elapsed", action="store_true", help="compare elapsed seconds")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    with (arguments.results / "cluster_layouts.csv").open() as file:
        measured = list(csv.DictReader(file))
    costs = costs_of(measured)
    print(costs)
    rows = compared(measured, costs, arguments.elapsed) + predictions(costs)
    for row in rows:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    if not arguments.smoke:
        report.write_csv(arguments.results / "cluster_schedule.csv", rows)


if __name__ == "__main__":
    main()
