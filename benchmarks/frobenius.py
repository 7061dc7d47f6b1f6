"""NMF with the squared Frobenius norm: FrobeniusNMF compared with scikit-learn's NMF(solver="cd").

    python benchmarks/frobenius.py                    newsgroups as TF-IDF, pbmc_facs log-normalised
    python benchmarks/frobenius.py --threads 2        elapsed seconds on two threads
    python benchmarks/frobenius.py --smoke            a few seconds, writes nothing

All programs start at the same random factors, and take turns; times are medians. scikit-learn has
no callback: its loop is repeated here, by its own function for half an iteration, and the loss is
evaluated off the clock. Writes results/frobenius.csv, results/frobenius.png and the table in
README.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path

import numpy as np
import problems
import report
import scipy.sparse as sp
from sklearn.decomposition import _nmf
from sklearn.feature_extraction.text import TfidfTransformer
from threadpoolctl import threadpool_limits

import nmfscale

MARKERS = ("<!-- frobenius:start -->", "<!-- frobenius:end -->")
WITHIN = (1e-2, 1e-3, 1e-4)
CASES = [("newsgroups", 20), ("newsgroups", 50), ("pbmc_facs", 10)]


def weighted(name: str) -> tuple[sp.csr_matrix, str, sp.csr_matrix]:
    """Return the input of FrobeniusNMF, its weighting, and the input of scikit-learn."""
    counts = sp.csr_matrix(problems.load_counts(name))
    if name != "pbmc_facs":
        return counts, "tf-idf", TfidfTransformer().fit_transform(counts.astype(float)).tocsr()
    sizes = np.asarray(counts.sum(axis=1))
    X = sp.csr_matrix(counts.multiply(1e4 / sizes))
    X.data = np.log1p(X.data)
    return X, "counts", X


def start(X, K: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the random start of scikit-learn."""
    return _nmf._initialize_nmf(X, K, init="random", random_state=seed)


def loss(X, square: float, W, H) -> float:
    """Return half the squared Frobenius norm of the errors."""
    return float(square - 2 * ((X @ H.T) * W).sum() + ((W.T @ W) * (H @ H.T)).sum()) / 2


def of_scikit_learn(X, square, W, H, most: float, clock) -> tuple[list, list]:
    """Return seconds and losses after every iteration of scikit-learn's coordinate descent."""
    W, Ht = W.copy(), np.ascontiguousarray(H.T)
    seconds, losses, taken = [], [], 0.0
    rng = np.random.RandomState(0)
    while taken < most:
        begun = clock()
        _nmf._update_coordinate_descent(X, W, Ht, 0.0, 0.0, False, rng)
        _nmf._update_coordinate_descent(X.T, Ht, W, 0.0, 0.0, False, rng)
        taken += clock() - begun
        seconds.append(taken)
        losses.append(loss(X, square, W, Ht.T))
    return seconds, losses


def of_nmfscale(X, weighting: str, W, H, most: float, clock, **how) -> tuple[list, list]:
    """Return seconds and losses after every iteration of FrobeniusNMF, from its call on."""
    seconds, losses, begun = [], [], clock()

    def note(record) -> bool:
        seconds.append(clock() - begun)
        losses.append(record["loss"])
        return seconds[-1] >= most

    model = nmfscale.FrobeniusNMF(
        len(H), weighting=weighting, max_iter=100_000, tol=0.0, callback=note, **how
    )
    begun = clock()
    model.fit(X, loadings=W, components=H)
    return seconds, losses


def measure(name: str, K: int, options) -> list[dict]:
    """Return a row for each program, with the medians of its turns."""
    counts, weighting, X = weighted(name)
    square, ready = float(X.multiply(X).sum()), nmfscale.as_counts(counts, integer="allow")
    ready.layout(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    runs: dict[str, list] = {}
    most = options.seconds * K / 20
    for seed in range(options.repeats):
        W, H = start(X, K, seed)
        for dtype in ("float64", "float32"):
            runs.setdefault(f"FrobeniusNMF {dtype}", []).append(
                of_nmfscale(
                    ready,
                    weighting,
                    W,
                    H,
                    most,
                    clock,
                    dtype=dtype,
                    n_threads=options.threads,
                )  # fmt: skip
            )
        with threadpool_limits(options.threads):
            runs.setdefault("scikit-learn", []).append(
                of_scikit_learn(X, square, W, H, most * options.longer, clock)
            )
    best = [min(min(turn[i][1]) for turn in runs.values()) for i in range(options.repeats)]
    rows = []
    for program, turns in runs.items():
        row = {"data": name, "K": K, "threads": options.threads, "program": program}
        row["seconds_per_iteration"] = np.median([turn[0][-1] / len(turn[0]) for turn in turns])
        for least in WITHIN:
            reached = [
                first_at(turn, target * (1 + least))
                for turn, target in zip(turns, best, strict=True)
            ]
            row[f"seconds_to_{least:g}"] = float(np.median([seconds for seconds, _ in reached]))
            row[f"iterations_to_{least:g}"] = float(np.median([number for _, number in reached]))
        own = [first_at(turn, min(turn[1]) * (1 + WITHIN[-1])) for turn in turns]
        row["seconds_to_own_end"] = float(np.median([seconds for seconds, _ in own]))
        ends = [min(turn[1]) / target - 1 for turn, target in zip(turns, best, strict=True)]
        row["end_above_best"] = float(np.median(ends))
        rows.append(row)
        print(*row.values(), flush=True)
    options.curves.append((name, K, runs, best))
    return rows


def first_at(turn, target: float) -> tuple[float, float]:
    """Return the seconds and the iteration at which a loss is reached; infinity if it is not."""
    seconds, losses = turn
    passed = np.flatnonzero(np.array(losses) <= target)
    return (seconds[passed[0]], passed[0] + 1.0) if len(passed) else (np.inf, np.inf)


def markdown(rows: list[dict]) -> str:
    """Return the table, and how it was made."""
    table = []
    for row in rows:
        peer = next(
            each for each in rows
            if each["program"] == "scikit-learn"
            and all(each[name] == row[name] for name in ("data", "K", "threads"))
        )  # fmt: skip
        cells = {name: row[name] for name in ("data", "K", "threads", "program")}
        cells["ms per iteration"] = f"{1e3 * row['seconds_per_iteration']:.0f}"
        for least in WITHIN:
            found = row[f"seconds_to_{least:g}"]
            times = peer[f"seconds_to_{least:g}"] / found
            shown = f"{found:.2f}" if np.isfinite(found) else "not reached"
            if row is not peer and np.isfinite(found) and np.isfinite(times):
                shown += f" ({times:.1f}x)"
            cells[f"s to {least:g}"] = shown
        cells["s to 1e-4 of own end"] = f"{row['seconds_to_own_end']:.2f}"
        cells["own end above best"] = f"{row['end_above_best']:.1e}"
        table.append(cells)
    return "\n".join([report.table(table), "", f"{report.processor()}. `{report.command()}`"])


def with_earlier(path: Path, rows: list[dict]) -> list[dict]:
    """Return rows, and those of earlier runs with other data or numbers of topics or threads."""
    if not path.exists():
        return rows
    known: list[dict] = []
    new = {(row["data"], row["K"], row["threads"]) for row in rows}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found = {
                name: value if name in ("data", "program") else float(value)
                for name, value in row.items()
            }
            found |= {name: int(found[name]) for name in ("K", "threads")}
            if (found["data"], found["K"], found["threads"]) not in new:
                known.append(found)
    return sorted(known + rows, key=lambda row: row["threads"])


def draw(curves: list, path: Path) -> None:
    """Draw the distance to the best loss over time, the first turn of each program."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.4), squeeze=False)
    for ax, (name, K, runs, best) in zip(axes[0], curves, strict=True):
        for program, turns in runs.items():
            seconds, losses = turns[0]
            above = np.minimum.accumulate(losses) / best[0] - 1
            ax.plot(seconds, np.maximum(above, 1e-6), label=program)
        ax.set(xscale="log", yscale="log", title=f"{name}, K = {K}", xlabel="seconds")
    axes[0, 0].set_ylabel("loss above the best, relative")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=[f"{name}:{K}" for name, K in CASES])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, for 20 topics")
    parser.add_argument("--longer", type=float, default=4.0, help="turns of scikit-learn, times")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    options.curves = []
    if options.smoke:
        options.cases, options.repeats, options.seconds = ["docstrings-small:4"], 1, 0.2
    elif "NMFSCALE_DATA" not in os.environ:
        print("skipped: NMFSCALE_DATA is not set")
        return
    rows = []
    for case in options.cases:
        name, K = case.split(":")
        rows += measure(name, int(K), options)
    path = options.results / "frobenius.csv"
    if not options.smoke:
        rows = with_earlier(path, rows)
    table = markdown(rows)
    print(table)
    if not options.smoke:
        report.write_csv(path, rows)
        if options.threads == 1:
            draw(options.curves, options.results / "frobenius.png")
        if options.results == report.HERE / "results":
            report.write_readme(table, MARKERS)


if __name__ == "__main__":
    main()
