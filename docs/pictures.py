"""Draw the measured pictures of the page "How it works" from results of benchmarks.

    python docs/pictures.py [FOLDER]        default: this folder

It reads solver_curves.csv and kernels.csv in benchmarks/results.
"""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from nmfscale.pl import topic_colors

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"
STYLE = {"font.size": 9}
LEAST_GAP = 1.0
# Lines and markers, which tell curves apart without their colours.
LOOKS = "o-", "s--", "^-.", "D:", "v-", "P--", "X-.", "*:"


def read(name: str) -> list[dict]:
    """Return the rows of a result file."""
    with (RESULTS / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def solver_curves(path: Path) -> None:
    """Draw how far each solver is below the highest log-likelihood, against seconds."""
    rows = read("solver_curves.csv")
    names = list(dict.fromkeys((row["problem"], row["K"]) for row in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(8.5, 3.8), sharey=True, squeeze=False, layout="constrained"
    )
    for ax, (problem, k) in zip(axes[0], names, strict=True):
        of_problem = [row for row in rows if row["problem"] == problem]
        best = max(float(row["loglik"]) for row in of_problem)
        solvers = dict.fromkeys(row["solver"] for row in of_problem)
        for solver, color, look in zip(solvers, topic_colors(len(solvers)), LOOKS, strict=False):
            points = [row for row in of_problem if row["solver"] == solver]
            gaps = [max(best - float(row["loglik"]), LEAST_GAP) for row in points]
            seconds = [float(row["seconds"]) for row in points]
            every = max(1, len(points) // 8)
            ax.loglog(
                seconds, gaps, look, label=solver, color=color, markersize=4, markevery=every
            )  # fmt: skip
        ax.set(title=f"{problem}, K = {k}", xlabel="seconds")
        ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel("below the highest (at least 1)")
    labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(*labels, loc="outside lower center", ncols=4, frameon=False)
    save(figure, path)


def kernel_rates(path: Path) -> None:
    """Draw nonzeros per second of the kernels and of the bounds, by the number of topics."""
    rows = [row for row in read("kernels.csv") if row["dtype"] == "float64"]
    figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
    colors = topic_colors(3)
    for kernel, style, color in (
        ("gather and dot", "--", "black"), ("EM", "o-", colors[0]), ("Newton", "s-", colors[1]),
        ("SCD, 1 sweep", "^-", colors[2]),
    ):  # fmt: skip
        points = [row for row in rows if row["kernel"] == kernel]
        topics = [int(row["K"]) for row in points]
        rates = [1e6 * float(row["million_nonzeros_per_second"]) for row in points]
        label = "bound: gather and dot products" if kernel == "gather and dot" else kernel
        ax.loglog(topics, rates, style, color=color, label=label, markersize=4)
    newton = [row for row in rows if row["kernel"] == "Newton"]
    bound = [
        1e6 * float(row["million_nonzeros_per_second"]) / float(row["share_of_arithmetic"])
        for row in newton
    ]
    ax.loglog(
        [int(row["K"]) for row in newton], bound, ":", color=colors[1],
        label="bound: multiply-adds of Newton",
    )  # fmt: skip
    ax.set(xlabel="topics", ylabel="nonzero counts per second")
    ticks = sorted({int(row["K"]) for row in rows})
    ax.set_xticks(ticks, ticks, minor=False)
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize=8)
    save(figure, path)


def save(figure, path: Path) -> None:
    """Write a picture that is the same in every run."""
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Draw all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    with plt.rc_context(STYLE):
        solver_curves(folder / "solver_curves.png")
        kernel_rates(folder / "kernel_rates.png")


if __name__ == "__main__":
    main()
