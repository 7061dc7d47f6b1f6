"""Nonzeros per second of the kernels, compared with two upper bounds.

Two lower bounds of the time are measured in the same run: the time to gather the rows of the fixed
factor and to compute the expected counts, and the time of the multiply-adds of a kernel if they run
as fast as in a matrix product. "Both sides" means that every row and every column of the matrix is
updated once: two updates per nonzero.

    python benchmarks/kernels.py --problem neurips --topics 6 10 20 50 100

Writes results/kernels.csv and results/kernels.png. With `--weights`, whole fits of the default
method are timed instead, alternately with and without sample weights, and the results are written
to results/weights.csv:

    python benchmarks/kernels.py --weights --problem pbmc_facs --topics 6 10 --threads 1
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import problems
import report

# name -> (kernel function, options of the row problem, whether it also returns the loss)
KERNELS = {
    "EM": ("update_rows", {"em_steps": 1}, False),
    "EM + loss": ("update_rows", {"em_steps": 1}, True),
    "Newton": ("update_rows", {"newton_steps": 1}, False),
    "EM + Newton": ("update_rows", {"em_steps": 1, "newton_steps": 1}, True),
    "SCD, 1 sweep": ("descend", {"newton_steps": 1}, False),
    "EM + 4 SCD": ("descend", {"em_steps": 1, "newton_steps": 4}, False),
}
BOUND = "gather and dot"
# Iterations of the fits with and without weights.
WEIGHTED_ITERATIONS = 30
# Size of the square matrices whose product measures the rate of multiply-adds.
_SIDE, _PRODUCTS = 1536, 7


def multiply_adds(name: str, K: int) -> float:
    """Return the necessary multiply-adds of a kernel per nonzero count, for one side.

    An expected count takes K. An EM step adds K for the numerators. A Newton step scales the row
    and adds it to the gradient and to the lower triangle of the curvature. In coordinate descent,
    each coordinate updates the expected count and adds to two derivatives.
    """
    _, steps, _ = KERNELS.get(name, ("", {}, False))
    em, newton = 2 * K, 3 * K + K * (K + 1) / 2
    if name == BOUND:
        return K
    if "SCD" in name:
        return em * steps.get("em_steps", 0) + K + 3 * K * steps["newton_steps"]
    return em * steps.get("em_steps", 0) + newton * steps.get("newton_steps", 0)


def multiply_add_rate(dtype, threads: int) -> float:
    """Return the multiply-adds per second of a matrix product, the median of several runs."""
    from threadpoolctl import threadpool_limits

    a, b = np.random.default_rng(0).random((2, _SIDE, _SIDE)).astype(dtype)
    out, seconds = np.empty_like(a), []
    with threadpool_limits(threads):
        for _ in range(_PRODUCTS):
            began = time.perf_counter()
            np.matmul(a, b, out=out)
            seconds.append(time.perf_counter() - began)
    return _SIDE**3 / float(np.median(seconds))


class Side:
    """Rows or columns of the counts in slices, the updated factor and the fixed factor."""

    def __init__(self, slices, order, own: np.ndarray, order_of_held, held: np.ndarray):
        from nmfscale import kernels
        from nmfscale.methods.factors import to_lanes

        self.counts = kernels.SlicedCounts(
            slices.index, slices.count, slices.offset, slices.n_others
        )
        self.n_components, stride = own.shape[1], kernels.row_stride(own.shape[1])
        self.start, self.end = (to_lanes(own, order, stride, own.dtype) for _ in range(2))
        self.held = to_lanes(held, order_of_held, stride, held.dtype)
        self.total = np.zeros(stride, held.dtype)
        self.total[: self.n_components] = held.sum(axis=0)
        self.values = np.empty(len(self.start))

    def problem(self, **settings):
        """Return the row problem of the kernels with given numbers of steps."""
        from nmfscale import kernels

        return kernels.RowProblem(self.held, self.total, self.n_components, **settings)


def both_sides(X, n_components: int, dtype) -> list[Side]:
    """Return rows and columns of the first block, with factors after a few EM iterations."""
    from nmfscale.readers.open import as_counts

    layout = as_counts(X).layout()
    block = layout.blocks[0]
    if len(layout.blocks) > 1:
        raise ValueError(f"{X.nnz} nonzeros need several blocks; this benchmark supports one")
    L, F = problems.em_start(X, n_components, n_iter=5)
    L, F = L.astype(dtype), F.astype(dtype)
    return [
        Side(block.rows, layout.row_order, L, layout.column_order, F),
        Side(block.columns, layout.column_order, F, layout.row_order, L),
    ]


def calls(sides: list[Side], threads: int) -> dict[str, Callable[[], None]]:
    """Return every kernel as a function that runs it on both sides."""
    from nmfscale import kernels

    def bound():
        for side in sides:
            kernels.gather_dot(
                side.counts, side.problem(), side.start, side.values, n_threads=threads
            )

    def of_kernel(name, settings, with_loss):
        def call():
            for side in sides:
                wanted = {"loglik_start": side.values} if with_loss else {}
                getattr(kernels, name)(
                    side.counts,
                    side.problem(**settings),
                    side.start,
                    side.end,
                    n_threads=threads,
                    **wanted,
                )

        return call

    return {BOUND: bound} | {label: of_kernel(*kernel) for label, kernel in KERNELS.items()}


def measure(X, n_components: int, dtype, threads: int, repeats: int) -> list[dict]:
    """Return the median time of every kernel; the kernels are run in turn."""
    todo = calls(both_sides(X, n_components, dtype), threads)
    seconds: dict[str, list[float]] = {name: [] for name in todo}
    for repeat in range(repeats + 1):
        for name, call in todo.items():
            began = time.perf_counter()
            call()
            if repeat:
                seconds[name].append(time.perf_counter() - began)
    least, rate = float(np.median(seconds[BOUND])), multiply_add_rate(dtype, threads)
    rows = []
    for name, times in seconds.items():
        middle = float(np.median(times))
        rows.append(
            {
                "K": n_components,
                "dtype": np.dtype(dtype).name,
                "kernel": name,
                "ms_both_sides": round(1e3 * middle, 4),
                "million_nonzeros_per_second": round(2 * X.nnz / middle / 1e6, 1),
                "share_of_bound": round(least / middle, 3),
                "share_of_arithmetic": round(
                    2 * X.nnz * multiply_adds(name, n_components) / rate / middle, 3
                ),
                "billion_multiply_adds_per_second": round(rate / 1e9, 1),
            }
        )
    return rows


def timed_fit(counts, start: dict, dtype, threads: int, weights) -> tuple[np.ndarray, float]:
    """Return the seconds of all iterations except the first and last, and of the rest of a fit."""
    from nmfscale import PoissonNMF

    n_components, began = start["loadings"].shape[1], time.perf_counter()
    model = PoissonNMF(
        n_components, max_iter=WEIGHTED_ITERATIONS, tol=0, dtype=dtype, n_threads=threads
    )
    at = model.fit(counts, **start, row_weights=weights).history_["seconds"]
    whole = time.perf_counter() - began
    return np.diff(at[:-1]), whole - (at[-2] - at[0])


def measure_weights(X, n_components: int, dtype, threads: int, repeats: int) -> list[dict]:
    """Return the minimum seconds of an iteration, and of the rest, for each kind of weights.

    With equal weights, the iterates are those of a fit without weights. Different weights give
    different iterates, whose steps may cost more or less. A bootstrap fits counts that are already
    arranged.
    """
    from nmfscale import as_counts

    rng, n = np.random.default_rng(0), X.shape[0]
    kinds = {
        "none": None,
        "equal": np.ones(n),
        "bootstrap": rng.multinomial(n, np.full(n, 1 / n)),
        "fractions": rng.dirichlet(np.ones(n)) * n,
    }
    loadings, factors = (rng.uniform(0.1, 1, (size, n_components)) for size in X.shape)
    start = {"loadings": loadings, "components": factors.T}
    rows = []
    for counts, state in ((X, "plain matrix"), (as_counts(X), "arranged before")):
        found = {kind: [] for kind in kinds}
        for _ in range(repeats + 1):
            for kind, weights in kinds.items():
                found[kind].append(timed_fit(counts, start, dtype, threads, weights))
        least = {}
        for kind, fits in found.items():
            iterations, fixed = zip(*fits[1:], strict=True)  # the first fit is the warm-up
            least[kind] = np.min(iterations, axis=0).mean(), min(fixed)
        for kind, (each, rest) in least.items():
            rows.append({
                "K": n_components, "dtype": np.dtype(dtype).name, "counts": state,
                "weights": kind, "ms_iteration": round(1e3 * each, 3),
                "ms_fixed": round(1e3 * rest, 2),
                "times_iteration": round(each / least["none"][0], 3),
                "times_fixed": round(rest / least["none"][1], 3),
            })  # fmt: skip
    return rows


def draw(rows: list[dict], path: Path) -> None:
    """Plot rates against K, one panel per type."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for ax, dtype in zip(axes, ("float64", "float32"), strict=True):
        for name in (BOUND, *KERNELS):
            mine = [row for row in rows if row["dtype"] == dtype and row["kernel"] == name]
            rates = [row["million_nonzeros_per_second"] for row in mine]
            style = "k--" if name == BOUND else "o-"
            line = ax.loglog([row["K"] for row in mine], rates, style, label=name)
            if name == "Newton":
                possible = [
                    row["million_nonzeros_per_second"] / row["share_of_arithmetic"] for row in mine
                ]
                label = f"{name}: multiply-adds alone"
                ax.loglog(
                    [row["K"] for row in mine], possible, ":", c=line[0].get_color(), label=label
                )
        ax.set(title=dtype, xlabel="K")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("million nonzeros per second")
    axes[1].legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Time every kernel for every K and type."""
    from nmfscale.kernels import level

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", help="problem to fit (default: neurips if available)")
    parser.add_argument("--topics", type=int, nargs="+", default=[6, 10, 20, 50, 100])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--weights", action="store_true", help="time fits with and without weights")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    options = parser.parse_args()
    name = options.problem or ("docstrings" if problems.available("neurips") else "neurips")
    X = problems.load_counts(name)
    rows = []
    for n_components in options.topics:
        for dtype in (np.float64, np.float32):
            found = (measure_weights if options.weights else measure)(
                X, n_components, dtype, options.threads, options.repeats
            )
            for row in found:
                print(*row.values(), sep="\t", flush=True)
            rows += found
    rows = [{"problem": name, "level": level(), **row} for row in rows]
    if options.weights:
        report.write_csv(options.results / "weights.csv", rows)
        return
    report.write_csv(options.results / "kernels.csv", rows)
    draw(rows, options.results / "kernels.png")


if __name__ == "__main__":
    main()
