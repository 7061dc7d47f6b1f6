"""Anchors beside LAPACK's pivoted QR, and combinations of them beside SciPy's nnls.

Programs take turns on one thread; a time is the median over the turns. `nnls` of SciPy is timed on
some of the columns and scaled up: on the counts themselves, and on the Cholesky factor.

    python benchmarks/anchors.py                 6,427 documents, 9,567 words, 100 anchors
    python benchmarks/anchors.py --smoke         some seconds, writes nothing

Writes results/anchors.csv.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np
import scipy.linalg
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

import nmfscale
from nmfscale.methods.anchors import combinations


def seconds(function, *words) -> tuple[float, object]:
    """Return how long a call takes, and what it returns."""
    start = time.perf_counter()
    found = function(*words)
    return time.perf_counter() - start, found


def turn(counts, dense, K: int, n_columns: int) -> dict[str, float]:
    """Let everybody work once."""
    found = {}
    found["AnchorNMF, all of it"], model = seconds(nmfscale.AnchorNMF(K, n_threads=1).fit, counts)
    found["anchors"] = float(model.history_["seconds"][-2])  # the last record has the topics, too
    found["LAPACK's QR"], (_, order) = seconds(
        lambda: scipy.linalg.qr(dense, mode="r", pivoting=True)
    )
    print(f"{(order[:K] == model.anchors_).sum()} of {K} anchors are those of LAPACK")
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


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--columns", type=int, default=500)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    n, m, K = (200, 300, 10) if options.smoke else (6427, 9567, 100)
    X, _ = nmfscale.simulate_topic_counts(n, m, K, size=300, random_state=1)
    counts, dense = nmfscale.as_counts(X), np.asarray(X.toarray(), float)
    with threadpool_limits(1):
        turn(counts, dense, K, min(100, options.columns))  # to warm up
        turns = [turn(counts, dense, K, min(m, options.columns)) for _ in range(options.repeats)]
    table = {name: median(each[name] for each in turns) for name in turns[0]}
    for name, taken in table.items():
        print(f"{name:<24}{taken:10.3f} s")
    for ours, peer in (("anchors", "LAPACK's QR"), ("combinations", "SciPy's nnls, counts"),
                       ("combinations", "SciPy's nnls, factor")):  # fmt: skip
        print(f"{ours} beside {peer}: {table[peer] / table[ours]:.1f} times as fast")
    if not options.smoke:
        rows = "".join(f'"{name}",{taken:.6g}\n' for name, taken in table.items())
        path = Path(__file__).parent / "results" / "anchors.csv"
        path.write_text(f"program,seconds\n{rows}")


if __name__ == "__main__":
    main()
