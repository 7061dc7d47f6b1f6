"""A simulated schedule of a fit on a cluster, fed by measured costs: layouts that are not at hand.

`cluster_layouts.py` measures processor seconds of fits in this process, with one worker of two
threads, and with two workers of one thread. From these, this script estimates what a task, a block
and a sum cost workers and driver, compares the costs of its model with those that were measured,
and simulates iterations event by event: the driver makes tasks one after the other, workers process
the blocks of their shares, sums are sent and added in the tree. Its results for larger layouts are
predictions, not measurements.

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

from nmfscale.engine.plan import ADDED_PER_SECOND, CROWDED
from nmfscale.engine.runner import FAN_IN
from nmfscale.engine.shares import MOST_BLOCKS

# Bytes per second and seconds of a message within a machine, and between machines.
HERE, NETWORK = (2e9, 5e-4), (3e8, 1e-3)
# Features of the measured layouts, and nonzero counts of the blocks of real fits.
FEATURES, NONZEROS_OF_BLOCK = 16_791, 1 << 23


class Costs(NamedTuple):
    """Processor seconds: of a count and component, and what workers and driver spend besides."""

    per_count: float
    worker: tuple[float, float, float]  # for each task, megabyte of sums, block
    driver: tuple[float, float, float]  # in each iteration, for each task, megabyte of sums


class Problem(NamedTuple):
    """Counts in blocks, and a layout of workers on some machines."""

    name: str
    n_blocks: int
    nonzeros: float
    K: int
    m: int
    workers: int
    threads: int
    machines: int = 1

    @property
    def megabytes(self) -> float:
        """Sums of the columns that a worker sends."""
        return self.m * self.K * (self.K + 3) / 2 * 8 / 1e6

    @property
    def shares(self) -> list[int]:
        """Number of blocks of each share; as many shares as workers, or a multiple."""
        n = self.workers * math.ceil(self.n_blocks / self.workers / MOST_BLOCKS)
        cuts = [self.n_blocks * i // n for i in range(n + 1)]
        return [last - first for first, last in pairwise(cuts)]

    @property
    def tasks(self) -> int:
        """Tasks of an iteration: of two passes over the shares, and of their trees."""
        sizes = [len(self.shares)]
        while sizes[-1] > 1:
            sizes.append(math.ceil(sizes[-1] / FAN_IN))
        return 2 * sum(sizes) + 1


def problem_of(row: dict) -> Problem:
    """Return the problem of a row of cluster_layouts.csv."""
    workers, threads = (0, 2) if row["layout"] == "process" else map(int, row["layout"].split("x"))
    sizes = int(row["blocks"]), float(row["nonzeros"]), int(row["topics"])
    return Problem(row["layout"], *sizes, FEATURES, workers, threads)


def terms_of_workers(problem: Problem) -> list[float]:
    """Return what the seconds of workers besides kernels are proportional to."""
    return [problem.tasks, problem.workers * problem.megabytes, problem.n_blocks]


def terms_of_driver(problem: Problem) -> list[float]:
    """Return what the seconds of the driver are proportional to."""
    return [1.0, problem.tasks, problem.workers * problem.megabytes]


def costs_of(rows: list[dict]) -> Costs:
    """Estimate costs that are not negative, by least squares relative to the measured seconds."""
    from scipy.optimize import nnls

    alone = {row["blocks"]: row for row in rows if row["layout"] == "process"}
    spread = [row for row in rows if row["layout"] != "process"]
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
    shares, sums = problem.shares, problem.megabytes * 1e6
    per_task, per_megabyte, per_block = costs.worker
    of_block = (work / problem.n_blocks * crowded + per_block) / problem.threads / 2
    bandwidth, latency = HERE if problem.machines == 1 else NETWORK
    once, of_task, _ = costs.driver
    now, busy = once, 0.0
    for sent in (0.0, sums):  # the pass over the rows, and that over the columns, with sums
        free, ready = [0.0] * problem.workers, []
        for i, share in enumerate(shares):
            now += of_task  # the driver makes one task after the other
            worker, took = i % problem.workers, share * of_block + per_task
            free[worker] = max(free[worker], now + latency) + took
            ready.append(free[worker])
            busy += took
        added = sent / bandwidth + sent / ADDED_PER_SECOND + per_megabyte * sent / 1e6
        while len(ready) > 1:  # a node of the tree begins when the last of its children is there
            nodes = [ready[i : i + FAN_IN] for i in range(0, len(ready), FAN_IN)]
            took = [(len(node) - 1) * added + per_task for node in nodes]
            now = max(now, min(map(max, nodes))) + of_task * len(nodes)
            ready = [max([*node, now]) + latency + of for node, of in zip(nodes, took, strict=True)]
            busy += sum(took)
        now = ready[0] + latency + sent / bandwidth
    of_workers, of_driver = processor_seconds(problem, costs, work)
    return {
        "simulated_seconds": now, "idle": max(0.0, 1 - busy / problem.workers / now),
        "rounds": max(shares) * len(shares) / problem.n_blocks, "tasks": problem.tasks,
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
        if elapsed:
            seconds = float(row["seconds"])
            out[-1] |= {"seconds": found["simulated_seconds"], "measured_seconds": seconds,
                        "ratio_of_seconds": found["simulated_seconds"] / seconds}  # fmt: skip
    return out


def predictions(costs: Costs) -> list[dict]:
    """Predict layouts of 16 processors, of 64 workers on four machines, and 1e11 nonzeros."""

    def of(name: str, nonzeros: float, K: int, m: int, *layout: int) -> Problem:
        return Problem(name, math.ceil(nonzeros / NONZEROS_OF_BLOCK), nonzeros, K, m, *layout)

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
    with (report.HERE / "results" / "cluster_layouts.csv").open() as file:
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
