"""Seconds, memory and final log-likelihood of programs that fit Poisson NMF, all in one run.

    python benchmarks/run.py                        all programs and problems that are available
    python benchmarks/run.py --problems neurips --peers "auto float64" fastTopics
    python benchmarks/run.py --table                the table of README.md from results/*.csv
    python benchmarks/run.py --smoke                a few seconds, writes nothing

Writes results/*.csv, a picture, and the table between the markers in the README files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers
import problems
import report
import stored
from report import Curve

SMOKE_PROBLEMS = ["simulated-small", "docstrings-small"]
SMOKE_PEERS = ["auto float32", "scd float64", "scikit-learn"]


def collect(problem: problems.Problem, runs: dict[str, list[peers.Run]]) -> list[Curve]:
    """Convert repeated runs into curves; a program with two clocks gives two curves."""
    curves = []
    for name, repeats in runs.items():
        clocks = {name: [[seconds for seconds, _ in run.points] for run in repeats]}
        first = repeats[0]
        if first.second_clock:
            clocks[f"{name}, {first.second_clock}"] = [run.second_seconds for run in repeats]
        for program, times in clocks.items():
            table = np.array(times)
            curves.append(
                Curve(
                    problem.name,
                    program,
                    np.median(table, axis=0),
                    np.array([loglik for _, loglik in first.points]),
                    first.final,
                    float(np.median([run.peak for run in repeats])),
                    first.version,
                    table,
                    peers.PEERS[name].converges,
                    first.iterations_per_point,
                )
            )
    return curves


def compare(problem: problems.Problem, names: list[str], options) -> list[Curve]:
    """Measure several programs on one problem, in turn."""
    runs: dict[str, list[peers.Run]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / problem.name
        folder.mkdir()
        problem.store(folder)
        for repeat in range(options.repeats):
            for name in names:
                if repeat >= peers.PEERS[name].turns:
                    continue
                n_iter = options.iterations or peers.PEERS[name].n_iter
                result = peers.measure(folder, name, n_iter, options.threads)
                runs[name].append(result)
                print(
                    f"{problem.name:16s} {name:14s} run {repeat + 1}: {len(result.points)} points,"
                    f" {result.points[-1][0]:.3f} s, log-likelihood {result.final:.3f}",
                    flush=True,
                )
    return collect(problem, runs)


def run_yardstick(script: str, names: list[str], results: Path) -> None:
    """Run an external script on the same problems and save its output."""
    arguments = [f"{name}:{problems.REAL[name][0]}" for name in names if name in problems.REAL]
    done = subprocess.run([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    (results / "yardstick.txt").write_text(done.stdout)


def parse(arguments=None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", default=[*problems.REAL, "docstrings"])
    parser.add_argument("--peers", nargs="+", default=list(peers.PEERS), choices=peers.PEERS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--iterations", type=int, help="number of iterations of every program")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--yardstick", metavar="SCRIPT", help="external script to run as well")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--smoke", action="store_true", help="smallest problems, writes nothing")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.problems, options.peers = SMOKE_PROBLEMS, SMOKE_PEERS
        options.repeats, options.iterations = 1, 20
    return options


def main() -> None:
    """Measure all available programs and write the results."""
    options = parse()
    if options.table:
        machine = json.loads((options.results / "machine.json").read_text())
        rows = report.stored_rows(options.results / "summary.csv")
        report.write_readme(report.landing_table(rows, machine), report.LANDING)
        return
    names = []
    for name in options.peers:
        reason = peers.PEERS[name].missing()
        print(f"{name}: skipped, {reason}") if reason else names.append(name)
    found, rows = [], []
    for name in options.problems:
        if reason := problems.available(name):
            print(reason)
            continue
        problem = problems.load(name)
        curves = compare(problem, names, options)
        if "fastTopics" in options.peers and "fastTopics" not in names:
            curves += stored.scaled(problem.name, curves)
        found.append((problem, curves))
        rows += report.table_rows(problem, curves)
    if not rows:
        sys.exit("nothing to measure")
    machine = report.describe(options, [curve for _, curves in found for curve in curves])
    table = report.markdown(rows, machine)
    print(table)
    if options.smoke:
        return
    results = options.results
    results.mkdir(parents=True, exist_ok=True)
    if options.yardstick:
        run_yardstick(options.yardstick, options.problems, results)
    report.write_csv(results / "summary.csv", rows)
    report.write_csv(results / "curves.csv", report.points(found))
    if "fastTopics" in names:
        curves = [curve for _, curves in found for curve in curves]
        stored.write(curves, results / stored.NAME)
    (results / "machine.json").write_text(json.dumps(machine, indent=2) + "\n")
    report.draw(found, results / "seconds.png")
    if results == report.HERE / "results":
        report.write_readme(table)
        report.write_readme(report.landing_table(rows, machine), report.LANDING)


if __name__ == "__main__":
    main()
