"""Multiplicative updates of SSNMF on dense data, compared with plain NumPy.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/ssnmf_dense.py
    python benchmarks/ssnmf_dense.py --smoke       a second, writes nothing

Data of the size of table 2 of Haddock et al., 500 x 500, with 500 targets or the labels of 5
classes. Both start at the same point and must end with the same loss. The loss is evaluated in
every iteration of the package, because it ends fits; NumPy is timed with and without it. Writes
results/ssnmf_dense.csv and a table in README.md.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import report

from nmfscale import SSNMF

R = 5
EPS = 1e-300


def left(X, A, S, loss: str):
    """Return A after its update, X ~ A S."""
    if loss == "F":
        return A * (X @ S.T) / (A @ (S @ S.T))
    return A / S.sum(axis=1) * ((X / (A @ S)) @ S.T)


def terms(X, A, S, loss: str):
    """Return numerator and denominator of the update of S."""
    if loss == "F":
        return 2 * (A.T @ X), 2 * (A.T @ A) @ S
    return A.T @ (X / (A @ S)), A.sum(axis=0)[:, None]


def objective(X, A, S, loss: str) -> float:
    """Return the loss of one part."""
    M = A @ S
    if loss == "F":
        return float(((X - M) ** 2).sum())
    return float((X * np.log(np.maximum(X, EPS) / M) - X + M).sum())


def plain(X, Y, start, losses: str, n_iter: int, evaluate: bool) -> float:
    """Run Algorithms 1 to 3 in NumPy; return the last loss that was evaluated."""
    A, B, S = (array.copy() for array in start)
    loss = np.nan
    for _ in range(n_iter):
        A, B = left(X, A, S, losses[0]), left(Y, B, S, losses[1])
        (up, down), (more, and_down) = terms(X, A, S, losses[0]), terms(Y, B, S, losses[1])
        S = S * (up + more) / (down + and_down)
        if evaluate:
            loss = objective(X, A, S, losses[0]) + objective(Y, B, S, losses[1])
    return loss


def cpu(function) -> float:
    """Return the processor time of a call."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


def measured(size: int, n_targets: int, losses: str, n_iter: int, repeats: int) -> dict:
    """Return milliseconds per iteration, medians of alternating runs."""
    rng = np.random.default_rng(0)
    A, B, S = (rng.uniform(0.1, 1, (n, R)) for n in (size, n_targets, size))
    X = np.abs(S @ A.T + rng.normal(0, 0.1, (size, size)))
    Y = np.abs(S @ B.T + rng.normal(0, 0.1, (size, n_targets)))
    labels = np.arange(size) % n_targets
    if n_targets < size:
        Y = np.eye(n_targets)[labels]
    columns = X.T.copy(), Y.T.copy()
    start = [rng.uniform(0.1, 1, (n, R)) for n in (size, n_targets, size)]

    def own(n):
        model = SSNMF(R, losses=losses, supervision=1.0, tol=0, max_iter=n, n_threads=1)
        return model.fit(
            X, Y if n_targets == size else labels, components=start[0].T,
            target_components=start[1], loadings=start[2],
        )  # fmt: skip

    begin = start[0], start[1], start[2].T.copy()
    found = plain(*columns, begin, losses, n_iter, True)
    assert abs(own(n_iter).loss_ - found) < 1e-8 * found, "the losses differ"
    times = np.array([
        (
            cpu(lambda: plain(*columns, begin, losses, n_iter, False)) / n_iter,
            cpu(lambda: plain(*columns, begin, losses, n_iter, True)) / n_iter,
            (cpu(lambda: own(2 * n_iter)) - cpu(lambda: own(n_iter))) / n_iter,
        )
        for _ in range(repeats)
    ])  # fmt: skip
    updates, with_loss, package = 1e3 * np.median(times, axis=0)
    return {
        "model": losses, "targets": n_targets, "NumPy, ms": updates,
        "NumPy with loss, ms": with_loss, "package, ms": package, "ratio": package / updates,
        "ratio with loss": package / with_loss,
    }  # fmt: skip


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true")
    smoke = parser.parse_args().smoke
    warnings.simplefilter("ignore")  # max_iter reached
    size, n_iter, repeats = (40, 3, 1) if smoke else (500, 40, 7)
    rows = [
        measured(size, n_targets, losses, n_iter, repeats)
        for n_targets in (size, 5)
        for losses in ("FF", "FD", "DF", "DD")
    ]
    text = report.table([
        {
            name: str(value) if isinstance(value, str | int) else report.cell(value, ".2f")
            for name, value in row.items()
        }
        for row in rows
    ])  # fmt: skip
    print(text)
    if not smoke:
        report.write_csv(report.HERE / "results" / "ssnmf_dense.csv", rows)
        text = f"{text}\n\n{report.processor()}. `{report.command()}`"
        report.write_readme(text, ("<!-- ssnmf dense:start -->", "<!-- ssnmf dense:end -->"))


if __name__ == "__main__":
    main()
