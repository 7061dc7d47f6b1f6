"""Comparison with scikit-learn's MiniBatchNMF on the same file: seconds to equal log-likelihoods.

Counts are simulated from a real fit and packed (as in out_of_core.py). MiniBatchNMF gets batches of
rows from the store by `partial_fit`, pass after pass. After every pass, the clock is stopped to
compute the exact log-likelihood of its factors, with loadings fitted by this package. This package
fits from the same file, and its log-likelihood at an iteration is computed in the same way. Both
start from the same factors.

    python benchmarks/minibatch.py                 1.7e7 nonzeros
    python benchmarks/minibatch.py --smoke         a few seconds, writes nothing

Writes results/minibatch.csv and results/minibatch.png.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import problems
import report
from out_of_core import pack_drawn

BATCH = 1024


def loglik_of(counts, F, threads: int) -> float:
    """Return the Poisson log-likelihood at factors F (m, K) with optimal loadings."""
    from nmfscale import PoissonNMF

    model = PoissonNMF(F.shape[1], max_iter=1, tol=0, n_threads=threads, dtype="float64")
    fixed = np.ones(F.shape[1], bool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_params(max_iter=15).fit(
            counts, components=np.maximum(F, 1e-10).T, fixed_topics=fixed
        )
    return model.loglik_


def ours(path: Path, F, n_iter: tuple[int, ...], threads: int, limit: str) -> list[dict]:
    """Fit this package for several numbers of iterations."""
    from nmfscale import PoissonNMF
    from nmfscale.results import StoredCounts

    rows = []
    for n in n_iter:
        model = PoissonNMF(F.shape[1], max_iter=n, tol=0, n_threads=threads, dtype="float32",
                           memory_limit=limit)  # fmt: skip
        begun = time.perf_counter()
        model.fit(StoredCounts(path), components=F.T)
        seconds = time.perf_counter() - begun
        loglik = loglik_of(StoredCounts(path), model.components_.T, threads)
        rows.append({"program": "nmfscale", "passes": n, "seconds": seconds, "loglik": loglik})
        print(rows[-1], flush=True)
    return rows


def theirs(path: Path, F, passes: tuple[int, ...], threads: int) -> list[dict]:
    """Fit MiniBatchNMF by partial_fit."""
    import scipy.sparse as sp
    from sklearn.decomposition import MiniBatchNMF
    from threadpoolctl import threadpool_limits

    from nmfscale.results import StoredCounts

    counts, K = StoredCounts(path), F.shape[1]
    model = MiniBatchNMF(
        K, init="custom", beta_loss="kullback-leibler", batch_size=BATCH, forget_factor=0.7
    )
    rows, seconds, started = [], 0.0, False
    for n in range(1, max(passes) + 1):
        with threadpool_limits(threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begun = time.perf_counter()
            for _, indptr, indices, data in counts.chunks():
                X = sp.csr_matrix((data.astype(np.float32), indices, indptr),
                                  shape=(len(indptr) - 1, len(F)))  # fmt: skip
                for first in range(0, X.shape[0], BATCH):
                    batch = X[first : first + BATCH]
                    if started:
                        model.partial_fit(batch)
                        continue
                    W = np.full((batch.shape[0], K), batch.sum() / batch.shape[0] / K / F.sum())
                    model.partial_fit(batch, W=W.astype(np.float32), H=F.T.astype(np.float32))
                    started = True
            seconds += time.perf_counter() - begun
        if n in passes:
            loglik = loglik_of(counts, model.components_.T, threads)
            rows.append(
                {"program": "MiniBatchNMF", "passes": n, "seconds": seconds, "loglik": loglik}
            )
            print(rows[-1], flush=True)
    return rows


def compare(rows: list[dict]) -> list[dict]:
    """Return, for each point of MiniBatchNMF, when this package reaches its log-likelihood."""
    out = []
    for row in [row for row in rows if row["program"] == "MiniBatchNMF"]:
        reached = [
            r["seconds"]
            for r in rows
            if r["program"] == "nmfscale" and r["loglik"] >= row["loglik"]
        ]
        first = min(reached, default=float("nan"))
        out.append(row | {"seconds_nmfscale": first, "times_faster": row["seconds"] / first})
        print(out[-1], flush=True)
    return out


def draw(rows: list[dict], path: Path) -> None:
    """Plot the difference from the best log-likelihood against seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    best = max(row["loglik"] for row in rows)
    for program in ("MiniBatchNMF", "nmfscale"):
        points = [row for row in rows if row["program"] == program]
        missing = [best - row["loglik"] + 1 for row in points]
        axes.loglog([row["seconds"] for row in points], missing, "o-", label=program)
    axes.set(xlabel="seconds", ylabel="difference from the best log-likelihood + 1")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", default="pbmc_facs", help="problem to simulate from")
    parser.add_argument("--nonzeros", type=float, default=1.7e7)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-limit", default="900MB")
    parser.add_argument("--folder", type=Path, help="folder for the store; default: temporary")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    n_iter, passes = (2, 4, 8, 12, 16, 20, 30, 45, 60, 90), (1, 2, 4)
    if arguments.smoke:
        arguments.problem, arguments.nonzeros, n_iter, passes = "docstrings", 2e5, (2, 10), (1, 2)
    from nmfscale import PoissonNMF
    from nmfscale.results import StoredCounts

    source = problems.load_counts(arguments.problem)
    model = PoissonNMF(arguments.topics, max_iter=30, tol=0, random_state=1).fit(source)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder, "counts.nmf")
        pack_drawn(
            model.loadings_, model.components_.T, arguments.nonzeros, path, arguments.threads
        )
        start = PoissonNMF(arguments.topics, max_iter=2, tol=0, init="random", random_state=3)
        F = start.fit(StoredCounts(path)).components_.T
        rows = theirs(path, F, passes, arguments.threads)
        rows += ours(path, F, n_iter, arguments.threads, arguments.memory_limit)
    compared = compare(rows)
    if not arguments.smoke:
        report.write_csv(arguments.results / "minibatch.csv", compared + rows)
        draw(rows, arguments.results / "minibatch.png")


if __name__ == "__main__":
    main()
