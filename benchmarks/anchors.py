"""Anchor selection compared with LAPACK's pivoted QR, and combinations with SciPy's nnls.

The programs are run in turn on one thread. A time is the median over the repeats, in CPU seconds,
because other programs on the machine affect these less than elapsed time. SciPy's `nnls` is timed
on some of the columns and scaled up: once on the counts, and once on the Cholesky factor.

A second table has combinations by a randomized Hadamard transform of the samples (`sketch_size`):
the seconds after the choice of the anchors, and residuals of the features compared with the least.

    python benchmarks/anchors.py                 6,427 documents, 9,567 words, 100 anchors
    python benchmarks/anchors.py --smoke         a few seconds, writes nothing

Writes results/anchors.csv and the table in README.md.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
import report
import scipy.linalg
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

import nmfscale
from nmfscale.methods.anchors.search import combinations

MARKERS = ("<!-- anchors:start -->", "<!-- anchors:end -->")


def seconds(function, *words) -> tuple[float, object]:
    """Return the CPU seconds of a call, and its result."""
    start = time.process_time()
    found = function(*words)
    return time.process_time() - start, found


def turn(counts, dense, K: int, n_columns: int) -> dict[str, float]:
    """Run every program once."""
    found, clock = {}, [time.process_time()]
    model = nmfscale.AnchorNMF(K, n_threads=1, callback=lambda _: clock.append(time.process_time()))
    found["AnchorNMF, all of it"], _ = seconds(model.fit, counts)
    found["anchors"] = clock[-2] - clock[0]  # the last record includes the topics
    found["LAPACK's QR"], (_, order) = seconds(
        lambda: scipy.linalg.qr(dense, mode="r", pivoting=True)
    )
    print(f"{(order[:K] == model.anchors_).sum()} of {K} anchors agree with LAPACK")
    A = dense[:, model.anchors_]
    products = A.T @ dense
    R = np.linalg.cholesky(A.T @ A).T
    short = scipy.linalg.solve_triangular(R, products, trans="T")
    scale = dense.shape[1] / n_columns
    columns = range(0, dense.shape[1], dense.shape[1] // n_columns)[:n_columns]
    found["combinations"], _ = seconds(combinations, products, model.anchors_, 1)
    for name, design, sides in (("counts", A, dense), ("factor", R, short)):
        taken, _ = seconds(lambda d=design, b=sides: [nnls(d, b[:, j]) for j in columns])
        found[f"SciPy's nnls, {name}"] = taken * scale
    return found


def problem(n: int, m: int, K: int):
    """Return simulated counts, sparse and dense."""
    X, _ = nmfscale.datasets.simulate_topic_counts(n, m, K, size=300, random_state=1)
    return nmfscale.as_counts(X), np.asarray(X.toarray(), float)


def sketches(counts, K: int) -> list[dict[str, float]]:
    """Return seconds and residuals of exact combinations, and of sketches of several sizes."""
    dense, rows = counts.take_rows().toarray().astype(np.float32), []
    for size in (None, 2 * K, 4 * K, 10 * K):
        clock: list[float] = []
        model = nmfscale.AnchorNMF(
            K, sketch_size=size, n_threads=1, random_state=0,
            callback=lambda _, clock=clock: clock.append(time.process_time()),
        ).fit(counts)  # fmt: skip
        taken = time.process_time() - clock[-2]
        topics = (model.components_ / model.diffuseness_[:, None]).astype(np.float32)
        left = np.sqrt(((dense - dense[:, model.anchors_] @ topics) ** 2).sum(axis=0))
        if size is None:
            exact, some = left, left > 1e-3 * left.max()
        ratio = left[some] / exact[some]
        rows.append({
            "samples": counts.shape[0], "features": counts.shape[1], "K": K, "sketch_size": size,
            "nonzero": counts.nnz / counts.shape[0] / counts.shape[1], "seconds": taken,
            "mean_ratio": float(ratio.mean()), "largest_ratio": float(ratio.max()),
        })  # fmt: skip
    return rows


def table_of_sketches(rows: list[dict[str, float]]) -> str:
    """Return the table of sketches."""
    lines = [
        "| samples x features, K | nonzero | sketch_size | s | residual / least: mean | largest |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['samples']:,} x {row['features']:,}, {row['K']} | {row['nonzero']:.0%} "
        f"| {row['sketch_size'] or 'none: exact'} | {row['seconds']:.2f} "
        f"| {row['mean_ratio']:.3f} | {row['largest_ratio']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def markdown(table: dict[str, float], repeats: int) -> str:
    """Return the table and a description of the machine."""
    ours = {"LAPACK's QR": "anchors"}
    ours |= dict.fromkeys(("SciPy's nnls, counts", "SciPy's nnls, factor"), "combinations")
    rows = ["| program | s | times as long as this package |", "|---|---|---|"]
    for name, taken in table.items():
        times = f"{taken / table[ours[name]]:.0f}" if name in ours else ""
        rows.append(f"| {name} | {taken:.3f} | {times} |")
    command = report.command()
    turns = f"{repeats} turn{'s' * (repeats > 1)}, 1 thread"
    rows += ["", f"{report.processor()}, {turns}; scipy {scipy.__version__}. `{command}`"]
    return "\n".join(rows)


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--columns", type=int, default=500)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    n, m, K = (200, 300, 10) if options.smoke else (6427, 9567, 100)
    with threadpool_limits(1):
        turn(*problem(200, 300, 10), 10, 100)  # warm-up
        counts, dense = problem(n, m, K)
        turns = [turn(counts, dense, K, min(m, options.columns)) for _ in range(options.repeats)]
    table = {name: median(each[name] for each in turns) for name in turns[0]}
    dense_one = (400, 60, 5) if options.smoke else (20_000, 300, 20)
    others, _ = nmfscale.datasets.simulate_topic_counts(*dense_one, size=3000, random_state=1)
    rows_of_sketches = sketches(counts, K) + sketches(nmfscale.as_counts(others), dense_one[2])
    text = f"{markdown(table, options.repeats)}\n\n{table_of_sketches(rows_of_sketches)}"
    print(text)
    if not options.smoke:
        rows = [{"program": name, "seconds": taken} for name, taken in table.items()]
        report.write_csv(report.HERE / "results" / "anchors.csv", rows)
        report.write_csv(report.HERE / "results" / "anchors_sketches.csv", rows_of_sketches)
        report.write_readme(text, MARKERS)


if __name__ == "__main__":
    main()
