"""Starts of a Poisson NMF: how far fits end below the best known log-likelihood, and at what cost.

Counts of several kinds (cells, spots, bulk RNA, long and short texts, reviews, phrases), K from 5
to 100, each start with several seeds. Seconds are processor time on one thread by default,
including the time to arrange the counts.

    python benchmarks/starts.py
    python benchmarks/starts.py --counts newsgroups:20 --starts default random --seeds 3 --append
    python benchmarks/starts.py --table              the tables and the picture again, from the CSV
    python benchmarks/starts.py --smoke              a few seconds, writes nothing

Real counts need NMFSCALE_DATA. Writes a row for each fit to results/starts.csv, a picture to
results/starts.png, and the tables in README.md and docs/local_optima.md; best known log-likelihoods
that were exceeded are replaced in results/best_known.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from pathlib import Path

import best_known
import convergence
import numpy as np
import problems
import report

COUNTS = (
    "sim_ctm_a:6", "10x_v3_sample:8", "pbmc_5k_protein_v3_sample:5", "pbmc_facs:6", "pbmc_facs:20",
    "visium:10", "bulk:8", "congress109:20", "docstrings:10", "docstrings:50", "beer_canada:10",
    "beer_canada:50", "poliblog5k:20", "poliblog5k:100", "neurips:10", "neurips:20",
    "newsgroups:10", "newsgroups:20",
)  # fmt: skip
# Arguments of PoissonNMF, besides the seed.
STARTS: dict[str, dict] = {
    "default": {}, "n_init=1": {"n_init": 1}, "clusters": {"init": "clusters"},
    "random": {"init": "random"}, "n_init=1, n_moves=5": {"n_init": 1, "n_moves": 5},
    "ten random starts": {"init": "random", "n_init": 10},
}  # fmt: skip
# Seconds of the other starts are divided by those of this one.
REFERENCE = "n_init=1"
# A fit is near the best known one if it ends at most this far below it, and at most this share of
# the deviance that the best known fit explains.
NEAR, SHARE = 1_000.0, 1e-3
MARKERS = ("<!-- starts:start -->", "<!-- starts:end -->")
PAGES = (report.HERE / "README.md", report.DOCS / "local_optima.md")


def counts_of(name: str, smoke: bool):
    """Return counts by name: simulated or built in, or those of a file in NMFSCALE_DATA."""
    import nmfscale

    if name in (*convergence.SIMULATED, *problems.BUILT_IN):
        return nmfscale.as_counts(convergence.counts_of(name, smoke))
    folder = Path(os.environ["NMFSCALE_DATA"])
    paths = [folder / f"{name}.{ending}" for ending in ("npz", "h5", "h5ad")]
    return nmfscale.as_counts(next(path for path in paths if path.exists()))


def is_available(name: str) -> bool:
    """Whether counts are built in or simulated, or their files are there."""
    built_in = name in (*convergence.SIMULATED, *problems.BUILT_IN)
    return built_in or "NMFSCALE_DATA" in os.environ


def loglik_of_one_topic(counts) -> float:
    """Return the log-likelihood of a single topic, which its totals determine."""
    from nmfscale import PoissonNMF

    return float(PoissonNMF(1).fit(counts).loglik_)


def measure(name: str, K: int, options) -> list[dict]:
    """Return a row for each start and seed."""
    from nmfscale import PoissonNMF

    counts = counts_of(name, options.smoke)
    rows, least = [], loglik_of_one_topic(counts)
    for seed in range(options.seeds):
        for start in options.starts:
            how = STARTS[start]
            began = time.process_time()
            model = PoissonNMF(K, random_state=seed, n_threads=options.threads, **how).fit(counts)
            seconds = time.process_time() - began
            rows.append({
                "counts": name, "K": K, "start": start, "seed": seed,
                "loglik": f"{model.loglik_:.1f}", "one_topic": f"{least:.1f}",
                "seconds": f"{seconds:.2f}", "iterations": model.n_iter_,
            })  # fmt: skip
            print(*rows[-1].values(), flush=True)
    return rows


def found_by(row: dict) -> str:
    """Return the call of a fit as text."""
    how = STARTS[row["start"]] | {"random_state": int(row["seed"])}
    arguments = ", ".join(f"{name}={value!r}" for name, value in how.items())
    return f"PoissonNMF({row['K']}, {arguments})"


def grouped(rows: list[dict]) -> dict[tuple[str, int], list[dict]]:
    """Return the rows of each counts and K, in the order of `COUNTS`."""
    groups: dict[tuple[str, int], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["counts"], int(row["K"])), []).append(row)
    order = [f"{name}:{K}" for name, K in groups]
    ranks = {key: COUNTS.index(text) if text in COUNTS else len(COUNTS)
             for key, text in zip(groups, order, strict=True)}  # fmt: skip
    return {key: groups[key] for key in sorted(groups, key=lambda key: ranks[key])}


def column(rows: list[dict], start: str, name: str) -> np.ndarray:
    """Return a column of the fits from a start."""
    return np.array([float(row[name]) for row in rows if row["start"] == start])


def near(rows: list[dict], best: float) -> float:
    """Return how far below the best known log-likelihood a fit is near it."""
    explained = 2 * (best - float(rows[0]["one_topic"]))
    return min(NEAR, SHARE * explained)


def tables(rows: list[dict], best: dict[tuple[str, int], float]) -> str:
    """Return the table of counts by starts, and that of starts."""
    groups = grouped(rows)
    starts = [start for start in STARTS if any(row["start"] == start for row in rows)]
    of_counts, of_starts = [], {start: [] for start in starts}
    for key, group in groups.items():
        limit = near(group, best[key])
        line = {
            "counts, K": f"{key[0]}, {key[1]}", "best known": f"{best[key]:,.0f}",
            "near": f"{limit:,.0f}",
        }  # fmt: skip
        for start in starts:
            below = np.maximum(best[key] - column(group, start, "loglik"), 0.0)
            if not below.size:
                line[start] = "-"
                continue
            is_near = below <= limit
            line[start] = f"{np.median(below):,.0f} ({is_near.sum()} of {below.size})"
            seconds = [np.median(column(group, each, "seconds")) for each in (start, REFERENCE)]
            iterations = np.median(column(group, start, "iterations"))
            ratio = seconds[0] / max(seconds[1], 0.01)
            of_starts[start].append((np.median(below) / limit, is_near.mean(), ratio, iterations))
        of_counts.append(line)
    summary = []
    for start, measures in of_starts.items():
        far, share, ratio, iterations = np.array(measures).T
        summary.append({
            "start": start, "counts": len(measures),
            "median distance, as a multiple of near": f"{np.median(far):.2f}",
            "largest": f"{far.max():.1f}", "fits near the best known": f"{share.mean():.0%}",
            f"seconds / {REFERENCE}": f"{np.median(ratio):.1f} (up to {ratio.max():.1f})",
            "iterations": f"{np.median(iterations):.0f}",
        })  # fmt: skip
    return f"{report.table(of_counts)}\n\n{report.table(summary)}"


def draw(rows: list[dict], best: dict[tuple[str, int], float], path: Path) -> None:
    """Plot how far each fit ends below the best known log-likelihood, a panel for each counts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups = grouped(rows)
    starts = [start for start in STARTS if any(row["start"] == start for row in rows)]
    n_columns = min(6, len(groups))
    n_lines = -(-len(groups) // n_columns)
    figure, axes = plt.subplots(
        n_lines, n_columns, figsize=(2.0 * n_columns, 2.2 * n_lines + 0.8), layout="constrained",
        squeeze=False, sharex=True,
    )  # fmt: skip
    for ax in axes.flat[len(groups) :]:
        ax.set_visible(False)
    for ax in axes.flat[max(0, len(groups) - n_columns) : len(groups)]:
        ax.tick_params(labelbottom=True)  # no panel is below
    for ax, (key, group) in zip(axes.flat, groups.items(), strict=False):
        limit = near(group, best[key])
        ax.axhspan(0, limit, color="0.9", zorder=0)
        for place, start in enumerate(starts):
            below = np.sort(np.maximum(best[key] - column(group, start, "loglik"), 0.0))
            at = place + np.linspace(-0.25, 0.25, len(below))
            ax.plot(at, below, "o", ms=3.5, mfc="none")
        ax.set_yscale("symlog", linthresh=limit)
        ax.set_ylim(bottom=-0.15 * limit)
        ax.set_xticks(range(len(starts)), starts, rotation=90)
        ax.set_title(f"{key[0]}, K = {key[1]}", fontsize=8)
        ax.tick_params(labelsize=7)
    figure.supylabel("below the best known log-likelihood (grey: near it)", fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def with_former(rows: list[dict], path: Path) -> list[dict]:
    """Return rows, and those of the table that are of other counts or starts."""
    if not path.exists():
        return rows
    new = {(row["counts"], str(row["K"]), row["start"]) for row in rows}
    with path.open(newline="") as file:
        former = list(csv.DictReader(file))
    return [row for row in former if (row["counts"], row["K"], row["start"]) not in new] + rows


def main() -> None:
    """Run all fits, or the fits of some counts and starts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", nargs="+", metavar="COUNTS:K", default=COUNTS)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--append", action="store_true", help="replace these fits in the table")
    parser.add_argument("--table", action="store_true", help="run no fits")
    parser.add_argument("--smoke", action="store_true", help="a small run for tests")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    options = parser.parse_args()
    path = options.results / "starts.csv"
    if options.smoke:
        options.counts, options.seeds, options.starts = ("visium:3",), 2, ["default", "n_init=1"]
    warnings.simplefilter("ignore")  # fits of short samples, and those that do not converge
    rows = []
    for name, K in [text.split(":") for text in ([] if options.table else options.counts)]:
        if is_available(name):
            rows += measure(name, int(K), options)
        else:
            print(f"{name}: skipped, NMFSCALE_DATA is not set")
    if options.smoke:
        logliks = {key: max(column(group, start, "loglik").max() for start in options.starts)
                   for key, group in grouped(rows).items()}  # fmt: skip
        print(tables(rows, logliks))
        return
    rows = with_former(rows, path) if options.append or options.table else rows
    best = best_known.update(
        (row["counts"], int(row["K"]), float(row["loglik"]), found_by(row)) for row in rows
    )
    rows = [row for group in grouped(rows).values() for row in group]
    report.write_csv(path, rows)
    draw(rows, best, options.results / "starts.png")
    text = tables(rows, best)
    print(text)
    if options.results == report.HERE / "results":
        report.write_readme(text, MARKERS, PAGES)


if __name__ == "__main__":
    main()
