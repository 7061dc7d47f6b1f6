"""Programs that fit Poisson NMF: one function each, with the same signature and result.

As a script, it performs one measurement in a fresh process:
``python peers.py FOLDER PEER ITERATIONS THREADS`` reads a stored problem and prints JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from problems import Problem, restore


@dataclass
class Run:
    """Result of a fit: (seconds, log-likelihood) points in order, memory in bytes.

    ``final`` is the log-likelihood of the returned factors, computed by ``Problem.loglik``.
    """

    points: list[tuple[float, float]]
    version: str
    factors: tuple[np.ndarray, np.ndarray] | None
    final: float = float("nan")
    iterations_per_point: int = 1
    peak: float = float("nan")
    # Seconds of a second clock that excludes part of the work, and the name of this clock.
    second_clock: str = ""
    second_seconds: list[float] = field(default_factory=list)


class Memory:
    """Growth of the resident memory of this process since the object was created.

    It uses the peak that the operating system records, after resetting it. ``ru_maxrss`` would
    include the peak of the parent process, because it survives exec.
    """

    def __init__(self):
        Path("/proc/self/clear_refs").write_text("5")
        self.before = self.read("VmRSS")

    @staticmethod
    def read(name: str) -> int:
        """Return one field of /proc/self/status, in bytes."""
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

    def growth(self) -> int:
        """Return the peak minus the value at the start."""
        return self.read("VmHWM") - self.before


def fit_nmfscale(problem: Problem, n_iter: int, n_threads: int, *, dtype, **settings) -> Run:
    """Run this package for a fixed number of iterations, with all diagnostics.

    The first clock includes arranging the counts for the kernels. The second excludes it.
    """
    import nmfscale
    from nmfscale.kernels import level
    from nmfscale.readers.open import as_counts

    counts = as_counts(problem.X)
    began = time.perf_counter()
    for _ in counts.layout(n_threads).visit_both():
        pass
    arranging = time.perf_counter() - began
    model = nmfscale.PoissonNMF(
        problem.n_components, max_iter=n_iter, tol=0, n_threads=n_threads, dtype=dtype, **settings
    ).fit(counts, loadings=problem.L, components=problem.F.T)
    seconds, loglik = model.history_["seconds"], model.history_["loglik"].tolist()
    points = list(zip((seconds + arranging).tolist(), loglik, strict=True))
    version = f"{nmfscale.__version__} ({level()})"
    factors = model.loadings_, model.components_.T
    return Run(points, version, factors, second_clock="loop only", second_seconds=seconds.tolist())


def fit_sklearn(problem: Problem, n_iter: int, n_threads: int, *, block: int = 10) -> Run:
    """Run multiplicative updates; the clock is stopped between blocks for the exact value.

    Each block evaluates the divergence once, as often as ``NMF.fit`` does.
    """
    import sklearn
    from sklearn.decomposition import non_negative_factorization

    X = problem.X.astype(np.float64)
    W, H = problem.L.astype(np.float64), np.array(problem.F.T, dtype=np.float64, order="C")
    points, seconds = [], 0.0
    for done in range(0, n_iter, block):
        began = time.perf_counter()
        W, H, _ = non_negative_factorization(
            X, W, H, problem.n_components, init="custom", solver="mu",
            beta_loss="kullback-leibler", tol=0, max_iter=min(block, n_iter - done),
        )  # fmt: skip
        seconds += time.perf_counter() - began
        points.append((seconds, problem.loglik(W, H.T)))
    return Run(points, sklearn.__version__, (W, H.T), iterations_per_point=block)


def fit_fasttopics(problem: Problem, n_iter: int, n_threads: int) -> Run:
    """Run fastTopics by Rscript: extrapolated SCD, four inner iterations, with its report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        X = sp.csc_matrix(problem.X)
        X.sort_indices()
        for array, dtype, file in (
            (X.indptr, "<i4", "p"),
            (X.indices, "<i4", "i"),
            (X.data, "<f8", "x"),
            (problem.L, "<f8", "L"),
            (problem.F, "<f8", "F"),
        ):
            np.ascontiguousarray(array, dtype=dtype).tofile(folder / f"{file}.bin")
        script = Path(__file__).with_name("fasttopics.R")
        numbers = (*X.shape, problem.n_components, n_iter, n_threads)
        # It uses its own threads; additional BLAS threads would slow it down.
        process = subprocess.Popen(
            [rscript(), str(script), str(folder), *map(str, numbers)],
            stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        began, seconds, told = 0.0, [], {}
        for line in process.stdout:
            now = time.perf_counter()
            if line.startswith("start"):
                began = now
            elif re.match(r"\s*\d+ [-+]\d", line):
                seconds.append(now - began)
            elif line.startswith(("version ", "peak ")):
                key, value = line.split()
                told[key] = value
        if process.wait() != 0:
            raise RuntimeError(f"fastTopics failed on {problem.name}; its message is above")
        loglik, timing, L, F = (
            np.fromfile(folder / f"{file}.bin") for file in ("loglik", "timing", "L_end", "F_end")
        )
    factors = L.reshape(problem.L.shape), F.reshape(problem.F.shape)
    # It adds 1e-8 inside the logarithm; the difference is computed exactly at the end.
    exact = loglik + (problem.loglik(*factors) - loglik[-1])
    points = list(zip(seconds, exact.tolist(), strict=True))
    result = Run(points, told["version"], factors, peak=float(told["peak"]))
    result.second_clock, result.second_seconds = "updates only", np.cumsum(timing).tolist()
    return result


def rscript() -> str | None:
    """Return the path of Rscript: that of NMFSCALE_RSCRIPT, or the one on the search path."""
    return os.environ.get("NMFSCALE_RSCRIPT") or shutil.which("Rscript")


def fasttopics_missing() -> str:
    """Return the reason why fastTopics cannot be run, or an empty string."""
    program = rscript()
    if program is None:
        return "no Rscript found (set NMFSCALE_RSCRIPT to name one)"
    found = subprocess.run(
        [program, "-e", 'cat(requireNamespace("fastTopics", quietly = TRUE))'],
        capture_output=True,
        text=True,
    )
    if found.stdout.strip() != "TRUE":
        return "Rscript does not find the package fastTopics (R_LIBS names its library)"
    return ""


@dataclass(frozen=True)
class Peer:
    """A program, its iterations, whether they reach its limit, and its maximum repeats."""

    fit: Callable[..., Run]
    n_iter: int
    converges: bool = True
    missing: Callable[[], str] = lambda: ""
    turns: int = 100


def _ours(dtype, n_iter: int, converges: bool = True, turns: int = 100, **settings) -> Peer:
    return Peer(
        partial(fit_nmfscale, dtype=dtype, **settings), n_iter, converges=converges, turns=turns
    )


PAPER = {"solver": "scd", "inner_iter": 4, "extrapolate": True}
PLAIN_EM = {"solver": "em", "inner_iter": 4, "extrapolate": False}
PEERS = {
    "auto float64": _ours(np.float64, 200, solver="auto"),
    "auto float32": _ours(np.float32, 200, solver="auto"),
    "scd float64": _ours(np.float64, 120, **PAPER),
    "scd float32": _ours(np.float32, 120, **PAPER),
    "em float64": _ours(np.float64, 1000, False, 3, **PLAIN_EM),
    "em float32": _ours(np.float32, 1000, False, 3, **PLAIN_EM),
    "scikit-learn": Peer(fit_sklearn, 200, converges=False, turns=2),
    "fastTopics": Peer(fit_fasttopics, 70, missing=fasttopics_missing, turns=3),
}


def run(problem: Problem, peer: str, n_iter: int, n_threads: int) -> Run:
    """Warm up, then measure memory from a fit of two iterations on, and time in the next fit."""
    fit = PEERS[peer].fit
    if fit is fit_fasttopics:
        result = fit(problem, n_iter, n_threads)
    else:
        # First fit a few rows, so that imports and thread pools do not count as memory.
        rows = np.argsort(-np.diff(problem.X.indptr))[:50]
        few = problem.X[rows]
        used = np.asarray(few.sum(axis=0)).ravel() > 0
        fit(Problem("few", few[:, used].tocsr(), problem.L[rows], problem.F[used]), 2, n_threads)
        memory = Memory()
        fit(problem, 2, n_threads)
        result = fit(problem, n_iter, n_threads)
        result.peak = memory.growth()
    result.final = problem.loglik(*result.factors)
    result.factors = None
    return result


def measure(folder: Path, peer: str, n_iter: int, n_threads: int) -> Run:
    """Measure a stored problem in a fresh process."""
    command = [sys.executable, __file__, str(folder), peer, str(n_iter), str(n_threads)]
    threads = {"OMP_NUM_THREADS": str(n_threads), "OPENBLAS_NUM_THREADS": str(n_threads)}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **threads}
    )
    return Run(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    folder, name, iterations, threads = sys.argv[1:]
    print(json.dumps(asdict(run(restore(Path(folder)), name, int(iterations), int(threads)))))
