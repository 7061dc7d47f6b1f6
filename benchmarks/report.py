"""Write the results of a benchmark run: tables, a picture, and a description of the machine."""

from __future__ import annotations

import csv
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import best_known
import numpy as np
import peers
import problems

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
GAPS = (100, 10, 1)
MARKERS = ("<!-- numbers:start -->", "<!-- numbers:end -->")
LANDING = "<!-- landing:start -->", "<!-- landing:end -->"


@dataclass
class Curve:
    """Median of several runs of one program on one problem.

    ``runs`` has the seconds of each run, of shape (repeats, points).
    """

    problem: str
    program: str
    seconds: np.ndarray
    loglik: np.ndarray
    final: float
    peak: float
    version: str
    runs: np.ndarray
    converges: bool
    iterations_per_point: int = 1

    def reach(self, target: float) -> tuple[float, int | None]:
        """Return the median seconds and the iteration until a log-likelihood is reached."""
        passed = self.loglik >= target
        if not passed.any():
            return float("nan"), None
        first = int(np.argmax(passed))
        return float(np.median(self.runs[:, first])), (first + 1) * self.iterations_per_point


def target_of(problem: problems.Problem, curve: Curve, curves: list[Curve]) -> float:
    """Return the log-likelihood that a program is compared with."""
    if problem.goal == "best":
        return problem.best
    # Where optima differ, a program that does not reach one is compared with the paper's.
    paper = [c for c in curves if c.program == "scd float64"] or [c for c in curves if c.converges]
    return max((curve if curve.converges or not paper else paper[0]).loglik)


def table_rows(problem: problems.Problem, curves: list[Curve]) -> list[dict]:
    """Return one row per program, for the summary and the README."""
    best = max([problem.best] + [curve.final for curve in curves])
    known = problem.best if np.isfinite(problem.best) else best
    peer_last = [c.loglik[-1] for c in curves if c.program == "scikit-learn"]
    rows = []
    for curve in curves:
        target = target_of(problem, curve, curves)
        reached = [curve.reach(target - gap) for gap in GAPS]
        row = {"problem": problem.name, "K": problem.n_components, "program": curve.program}
        row |= {f"seconds_to_{gap}": cell[0] for gap, cell in zip(GAPS, reached, strict=True)}
        row["iterations_to_10"] = reached[GAPS.index(10)][1]
        row["seconds_to_scikit_learn"] = curve.reach(peer_last[0])[0] if peer_last else float("nan")
        n_iter = len(curve.seconds) * curve.iterations_per_point
        row["seconds_per_iteration"] = curve.seconds[-1] / n_iter
        row["final_minus_best_known"] = curve.final - known
        row["history_error"] = abs(curve.final - max(curve.loglik))
        row["peak_mb"] = curve.peak / 1e6
        row["peak_over_csr"] = 1 + curve.peak / problem.csr_bytes
        row |= {"repeats": len(curve.runs), "version": curve.version}
        rows.append(row)
    return rows


def cell(value, form: str) -> str:
    """Format a number, or a dash where there is none."""
    return "-" if value is None or not np.isfinite(value) else format(value, form)


def markdown(rows: list[dict], machine: dict) -> str:
    """Return the table for the README; the times of a second clock are a separate column."""
    head = (
        "problem, K", "program", "iterations to 10", "s to 100", "s to 10", "s to 1",
        "loop: s to 10", "s to scikit-learn's final log-likelihood", "final - best known",
        "memory / CSR",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    of_loop = {
        (row["problem"], row["program"].partition(",")[0]): row["seconds_to_10"]
        for row in rows
        if "," in row["program"]
    }
    for row in rows:
        if "," in row["program"]:
            continue
        cells = [f"{row['problem']}, {row['K']}", row["program"]]
        cells.append(cell(row["iterations_to_10"], "d"))
        cells += [cell(row[f"seconds_to_{gap}"], ".3f") for gap in GAPS]
        cells.append(cell(of_loop.get((row["problem"], row["program"])), ".3f"))
        cells.append(cell(row["seconds_to_scikit_learn"], ".3f"))
        cells.append(cell(row["final_minus_best_known"], "+,.1f"))
        cells.append(cell(row["peak_over_csr"], ".2f"))
        lines.append("| " + " | ".join(cells) + " |")
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    fewer = "".join(
        f" ({', '.join(names)}: {number})" for number, names in machine["fewer_turns"].items()
    )
    repeats = machine["repeats"]
    turns = "One repeat" if repeats == 1 else f"Medians of {repeats} repeats"
    lines += [
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; {versions}. "
        f"{turns}{fewer}; fits with a fixed number of iterations (tol=0). "
        f"`{machine['command']}`",
    ]
    return "\n".join(lines)


def landing_table(rows: list[dict], machine: dict) -> str:
    """Return the table of the README: seconds to 10, and memory, of the default and two peers."""
    programs = {
        "nmfscale": "auto float64",
        "fastTopics": "fastTopics",
        "scikit-learn": "scikit-learn",
    }
    lines = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        of_problem = [row for row in rows if row["problem"] == name and "," not in row["program"]]
        found = {
            ours: next((row for row in of_problem if row["program"].startswith(theirs)), None)
            for ours, theirs in programs.items()
        }
        memory = {ours: row and row["peak_over_csr"] for ours, row in found.items()}
        lines.append(
            {"counts, topics": f"{name}, {of_problem[0]['K']}"}
            | {f"{ours}, s": seconds_of(row) for ours, row in found.items()}
            | {f"{ours}, memory": cell(ratio, ".1f") for ours, ratio in memory.items()}
            | {"nmfscale, default fit": from_default_fit(name, int(of_problem[0]["K"]))}
        )
    where = f"{machine['cpu']}, {machine['cores']} cores. `{machine['command']}`"
    if any("scaled" in row["program"] for row in rows):
        where += "; seconds of fastTopics: from stored runs, scaled to this machine."
    return "\n".join([table(lines), "", where])


def from_default_fit(name: str, K: int) -> str:
    """Return how far default fits end below the best known, and their seconds."""
    path, best = HERE / "results" / "starts.csv", best_known.values().get((name, K))
    if best is None or not path.exists():
        return "-"
    with path.open(newline="") as file:
        fits = [
            (best - float(row["loglik"]), float(row["seconds"]))
            for row in csv.DictReader(file)
            if (row["counts"], row["K"], row["start"]) == (name, str(K), "default")
        ]
    if not fits:
        return "-"
    below, seconds = np.median(fits, axis=0)
    return f"{below:,.0f} below, {seconds:.1f} s"


def stored_rows(path: Path) -> list[dict]:
    """Return the rows of a summary, as `table_rows` made them; missing numbers are NaN."""
    texts = "problem", "K", "program", "version"
    with path.open(newline="") as file:
        return [
            {name: cell if name in texts else float(cell or "nan") for name, cell in row.items()}
            for row in csv.DictReader(file)
        ]


def seconds_of(row: dict | None) -> str:
    """Return the seconds to 10, or how far below it a program ended after how many seconds."""
    if row is None:
        return "-"
    if np.isfinite(row["seconds_to_10"]):
        return format(row["seconds_to_10"], ".2f")
    if not np.isfinite(row["seconds_to_scikit_learn"]):
        return "-"
    below = -row["final_minus_best_known"]
    return f"not reached in {row['seconds_to_scikit_learn']:.0f} s ({below:,.0f} below)"


def processor() -> str:
    """Return the name of the processor of this machine."""
    model = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return model[0] if model else platform.machine()


def processor_and_threads(threads: int) -> str:
    """Return the name of the processor and the number of threads."""
    return f"{processor()}, {threads} thread{'s' * (threads > 1)}"


def command() -> str:
    """Return the command of this run, with paths shortened to file names."""
    parts = [Path(part).name if os.sep in part else part for part in sys.argv[1:]]
    shown = [f'"{part}"' if " " in part else part for part in parts]
    script = Path(sys.argv[0]).resolve().relative_to(HERE.parent).as_posix()
    return " ".join(["python", script, *shown])


def describe(options, curves: list[Curve]) -> dict:
    """Return the machine, the versions and the command of this run."""
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}
    for curve in curves:
        if not curve.program.startswith("scikit-learn"):
            name = "fastTopics" if curve.program.startswith("fastTopics") else "nmfscale"
            versions[name] = curve.version
    fewer: dict[int, list[str]] = {}
    for curve in curves:
        turns, name = len(curve.runs), curve.program.split(",")[0]
        if turns < options.repeats and "(stored)" not in curve.version:
            if name not in fewer.setdefault(turns, []):
                fewer[turns].append(name)
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads,
        "repeats": options.repeats,
        "fewer_turns": fewer,
        "versions": versions,
        "command": command(),
    }


def draw(found: list[tuple[problems.Problem, list[Curve]]], path: Path) -> None:
    """Plot the difference from the target against seconds, one panel per problem."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(found), figsize=(5.2 * len(found) + 1.5, 4.4), squeeze=False, layout="constrained"
    )
    colors = {name: f"C{i}" for i, name in enumerate(peers.PEERS)}
    for ax, (problem, curves) in zip(axes[0], found, strict=True):
        for curve in curves:
            gap = np.maximum(target_of(problem, curve, curves) - curve.loglik, 0.1)
            name, _, second_clock = curve.program.partition(",")
            name, scaled, _ = name.partition(" (scaled")
            color = colors[name]
            style = "--" if second_clock else "-"
            label = None if second_clock else name + scaled + ")" * bool(scaled)
            ax.loglog(curve.seconds, gap, style, color=color, label=label)
        ax.set(title=f"{problem.name}, K = {problem.n_components}", xlabel="seconds")
        ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel("difference from the best log-likelihood (at least 0.1)")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), title="dashed: loop", fontsize=9, frameon=False,
        loc="outside right upper",
    )  # fmt: skip
    figure.savefig(path, dpi=130)
    plt.close(figure)


def points(found: list[tuple[problems.Problem, list[Curve]]]) -> list[dict]:
    """Return every point of every median curve."""
    return [
        {
            "problem": problem.name,
            "program": curve.program,
            "iteration": (number + 1) * curve.iterations_per_point,
            "seconds": f"{seconds:.6f}",
            "loglik": f"{loglik:.6f}",
        }
        for problem, curves in found
        for curve in curves
        for number, (seconds, loglik) in enumerate(zip(curve.seconds, curve.loglik, strict=True))
    ]


def table(rows: list[dict]) -> str:
    """Return rows as a table in Markdown; missing values are empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "|---" * len(names) + "|", *body])


def write_csv(path: Path, rows: list[dict]) -> None:
    """Write rows, and create the folder if necessary; missing values are empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_readme(
    text: str, markers: tuple[str, str] = MARKERS,
    pages: Sequence[Path] = (HERE / "README.md", HERE.parent / "README.md", DOCS / "speed.md"),
) -> None:  # fmt: skip
    """Write the table between the markers of every page that has them."""
    for path in pages:
        content = path.read_text() if path.exists() else ""
        if all(marker in content for marker in markers):
            before, rest = content.split(markers[0], 1)
            after = rest.split(markers[1], 1)[1]
            path.write_text(f"{before}{markers[0]}\n{text}\n{markers[1]}{after}")
