"""Permutation tests of groups: speed compared with plain NumPy, and the power of each statistic.

--speed: cosines of all pairs of five groups for 10,000 labellings of 6,427 samples. The loops in
NumPy process one labelling after the other: they assign new labels, sum the rows of each group and
compute the cosines. They run a tenth of the labellings, and their seconds are scaled up. The matrix
product processes 64 labellings at a time, in single precision. The programs run in turn. A time is
the median over the repeats, as elapsed time and as CPU time; memory is the peak growth of the
process.

--power: the share of simulations in which tests at the 5% level detect that one of four groups of
50 samples differs, in one frequent topic, in one rare topic, or slightly in all 20 topics. All
statistics use the same simulated samples.

    python benchmarks/permutation.py                 both, a few minutes
    python benchmarks/permutation.py --speed
    python benchmarks/permutation.py --smoke         a few seconds, writes nothing

Writes results/permutation_speed.csv, results/permutation_power.csv, a picture and the tables in
README.md.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import peers
import report
from threadpoolctl import threadpool_limits

from nmfscale import permutation_test

SPEED = ("<!-- permutation speed:start -->", "<!-- permutation speed:end -->")
POWER = ("<!-- permutation power:start -->", "<!-- permutation power:end -->")
N_GROUPS, AT_ONCE = 5, 64


# Seconds ----------------------------------------------------------------------------------------


def cosines(sums: np.ndarray) -> np.ndarray:
    """Return cosines of all pairs of groups, from sums of shape (..., groups, topics)."""
    unit = sums / np.linalg.norm(sums, axis=-1, keepdims=True)
    products = unit @ np.swapaxes(unit, -1, -2)
    return products[..., *np.triu_indices(sums.shape[-2], 1)]


def masks(rows: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Select the rows of each group and sum them."""
    shuffled = rng.permutation(labels)
    return np.stack([rows[shuffled == g].sum(axis=0) for g in range(N_GROUPS)])


def reduceat(rows: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Permute the rows, then sum contiguous groups."""
    sizes = np.bincount(labels, minlength=N_GROUPS)
    return np.add.reduceat(rows[rng.permutation(len(rows))], np.cumsum(sizes) - sizes, axis=0)


def one_hot(rows: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Multiply the rows by indicators of the groups."""
    return (rng.permutation(labels) == np.arange(N_GROUPS)[:, None]).astype(float) @ rows


LOOPS = {"loop, masks": masks, "loop, reduceat": reduceat, "loop, one-hot product": one_hot}


def loop(add_up: Callable, rows: np.ndarray, labels: np.ndarray, n: int) -> np.ndarray:
    """Return the cosines of n labellings, one by one."""
    rng = np.random.default_rng(0)
    return np.stack([cosines(add_up(rows, labels, rng)) for _ in range(n)])


def together(rows: np.ndarray, labels: np.ndarray, n: int) -> np.ndarray:
    """Return the cosines of n labellings, 64 in each matrix product."""
    rng, rows, found = np.random.default_rng(0), rows.astype(np.float32), []
    for first in range(0, n, AT_ONCE):
        size = min(AT_ONCE, n - first)
        shuffled = rng.permuted(np.tile(labels, (size, 1)), axis=1)
        picked = (shuffled[:, None] == np.arange(N_GROUPS)[:, None]).astype(np.float32)
        sums = picked.reshape(-1, len(rows)) @ rows
        found.append(cosines(sums.reshape(size, N_GROUPS, -1)))
    return np.concatenate(found)


def ours(rows: np.ndarray, labels: np.ndarray, n: int, threads: int):
    """Run the test of this package: the same cosines, with p-values and adjustments."""
    return permutation_test(
        rows, labels, statistic="cosine", scope="all", n_permutations=n, n_threads=threads,
        random_state=0,
    )  # fmt: skip


def seconds(function: Callable) -> np.ndarray:
    """Return the elapsed seconds and the CPU seconds of a call."""
    begin = np.array([time.perf_counter(), time.process_time()])
    function()
    return np.array([time.perf_counter(), time.process_time()]) - begin


def measure_speed(samples: int, topics: int, n: int, repeats: int) -> list[dict]:
    """Run all programs in turn."""
    rng = np.random.default_rng(1)
    rows, labels = rng.dirichlet(np.full(topics, 0.1), samples), rng.integers(0, N_GROUPS, samples)
    part = max(1, n // 10)
    programs = {("nmfscale", t): (1.0, lambda t=t: ours(rows, labels, n, t)) for t in (1, 2)}
    for name, add_up in LOOPS.items():
        programs[name, 1] = (n / part, lambda add_up=add_up: loop(add_up, rows, labels, part))
    programs["product of matrices", 1] = (n / part, lambda: together(rows, labels, part))
    ours(rows, labels, 100, 2)  # warm-up
    turns: dict[tuple[str, int], list[np.ndarray]] = {key: [] for key in programs}
    for _ in range(repeats):
        for key, (scale, run) in programs.items():
            with threadpool_limits(key[1]):
                turns[key].append(scale * seconds(run))
    taken = {key: np.median(each, axis=0) for key, each in turns.items()}
    best = np.min([taken[name, 1] for name in LOOPS], axis=0)
    found = []
    for (name, threads), each in taken.items():
        (wall, processor), each = (best / each).tolist(), each.tolist()
        row = {"topics": topics, "program": name, "threads": threads, "permutations": n,
               "seconds": each[0], "processor_seconds": each[1], "times_faster": wall,
               "times_less_processor": processor}  # fmt: skip
        if name == "nmfscale":
            memory = peers.Memory()
            ours(rows, labels, n, threads)
            row["peak_mb"] = memory.growth() / 1e6
            memory = peers.Memory()
            result = ours(rows, labels, 10 * n, threads)
            row["peak_mb_10"] = memory.growth() / 1e6
            tests = (result.overall, *result.pairs)
            row["results_mb_10"] = sum(test.null.nbytes for test in tests) / 1e6
        found.append(row)
        print(row, flush=True)
    return found


# Power ------------------------------------------------------------------------------------------


def pearson(tables: np.ndarray) -> np.ndarray:
    """Return the chi-square of sums and those expected from the margins, over the total."""
    tables = tables / tables.sum(axis=(1, 2), keepdims=True)
    expected = tables.sum(axis=2, keepdims=True) * tables.sum(axis=1, keepdims=True)
    return ((tables - expected) ** 2 / expected).sum(axis=(1, 2))


STATISTICS = {"welch": "welch", "hellinger": "hellinger", "cosine": "cosine",
              "balanced": "balanced", "Pearson chi-square": pearson}  # fmt: skip
# In the first group, the weight of topics is multiplied by exp(effect).
EFFECTS = {
    "one frequent topic": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "one rare topic": (0.0, 0.5, 1.0, 1.5, 2.0, 2.5),
    "all topics slightly": (0.0, 0.08, 0.16, 0.24, 0.32, 0.4),
}
SAMPLES, TOPICS, CONCENTRATION, LEVEL = 200, 20, 20.0, 0.05


def simulate(kind: str, effect: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw groups and topic proportions; the means are 20% (first topic) to 0.3% (last)."""
    labels = np.arange(SAMPLES) % 4
    shift = np.zeros(TOPICS)
    if kind == "all topics slightly":
        shift = effect * rng.normal(size=TOPICS)
    else:
        shift[0 if kind == "one frequent topic" else -1] = effect
    frequent = 0.8 ** np.arange(TOPICS)
    means = frequent * np.exp(shift * (labels == 0)[:, None])
    alpha = CONCENTRATION * means / means.sum(axis=1, keepdims=True)
    return np.array([rng.dirichlet(each) for each in alpha]), labels


def measure_power(n_sets: int, n_permutations: int) -> list[dict]:
    """Test the same simulated samples with all statistics."""
    rows = []
    for kind, effects in EFFECTS.items():
        for effect in effects:
            rng, p = np.random.default_rng(2), []
            for number in range(n_sets):
                samples, labels = simulate(kind, effect, rng)
                p.append([
                    permutation_test(
                        samples, labels, statistic=statistic, scope="all", n_threads=1,
                        n_permutations=n_permutations, random_state=number,
                    ).overall.pvalue
                    for statistic in STATISTICS.values()
                ])  # fmt: skip
            shares = np.mean(np.array(p) <= LEVEL, axis=0).tolist()
            found = dict(zip(STATISTICS, shares, strict=True))
            rows.append({"kind": kind, "effect": effect, "sets": n_sets} | found)
            print(rows[-1], flush=True)
    return rows


def draw(rows: list[dict], path: Path) -> None:
    """Plot the rejection rate against the effect, one panel per kind of difference."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, len(EFFECTS), sharey=True)
    for ax, kind in zip(axes, EFFECTS, strict=True):
        here = [row for row in rows if row["kind"] == kind]
        for name in STATISTICS:
            ax.plot([r["effect"] for r in here], [r[name] for r in here], "o-", ms=4, label=name)
        ax.axhline(LEVEL, color="0.6", linestyle=":", zorder=0)
        ax.set(title=kind, xlabel="effect (log ratio of weights)", ylim=(0, 1.02))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"share of sets with p <= {LEVEL}")
    axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


# Tables -----------------------------------------------------------------------------------------


def table(heads: tuple[str, ...], cells: list[tuple[str, ...]], last: str) -> str:
    """Return a table in Markdown, followed by a note and the command."""
    lines = [heads, ("---",) * len(heads), *cells]
    command = report.command()
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "",
                      f"{last} `{command}`"])  # fmt: skip


def of_speed(rows: list[dict], repeats: int) -> str:
    """Return the table of seconds."""
    heads = ("topics", "program", "threads", "s", "CPU s", "times faster than the best loop",
             "times less CPU time", "peak memory, MB", "ten times as many labellings, MB",
             "of which statistics, MB")  # fmt: skip
    cells = [
        (
            str(row["topics"]), row["program"], str(row["threads"]), f"{row['seconds']:.2f}",
            f"{row['processor_seconds']:.2f}", f"{row['times_faster']:.1f}",
            f"{row['times_less_processor']:.1f}",
            *(report.cell(row.get(name, np.nan), ".0f")
              for name in ("peak_mb", "peak_mb_10", "results_mb_10")),
        )
        for row in rows
    ]  # fmt: skip
    last = f"{report.processor()}; NumPy {np.__version__}. Medians of {repeats} repeats."
    return table(heads, cells, last)


def of_power(rows: list[dict]) -> str:
    """Return the picture and the table of power."""
    cells = [
        (row["kind"], f"{row['effect']:g}", *(f"{row[name]:.2f}" for name in STATISTICS))
        for row in rows
    ]
    last = f"Rejection rates in {rows[0]['sets']} simulations."
    return "![power against effects](results/permutation_power.png)\n\n" + table(
        ("what differs", "effect", *STATISTICS), cells, last
    )


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--samples", type=int, default=6427)
    parser.add_argument("--permutations", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sets", type=int, default=400)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    n_permutations = 199
    if options.smoke:
        options.topics, options.samples, options.permutations = [10], 200, 50
        options.repeats, options.sets, n_permutations = 1, 2, 19
    warnings.simplefilter("ignore")  # warnings about spread, by design
    both, here = options.speed == options.power, options.results == report.HERE / "results"
    if both or options.speed:
        rows = [
            row
            for T in options.topics
            for row in measure_speed(options.samples, T, options.permutations, options.repeats)
        ]
        text = of_speed(rows, options.repeats)
        print(text)
        if not options.smoke:
            report.write_csv(options.results / "permutation_speed.csv", rows)
            if here:
                report.write_readme(text, SPEED)
    if both or options.power:
        rows = measure_power(options.sets, n_permutations)
        text = of_power(rows)
        print(text)
        if not options.smoke:
            report.write_csv(options.results / "permutation_power.csv", rows)
            draw(rows, options.results / "permutation_power.png")
            if here:
                report.write_readme(text, POWER)


if __name__ == "__main__":
    main()
