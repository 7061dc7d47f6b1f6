"""Benchmark problems: counts, a number of topics, starting factors, the best known log-likelihood.

Real matrices are read from the folder in the environment variable ``NMFSCALE_DATA``. The built-in
corpus and the simulated counts are always available.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln

# name -> (K, reference of differences: the best known value, or each program's own limit)
REAL = {"neurips": (10, "best"), "pbmc_facs": (6, "best"), "newsgroups": (10, "own")}
# name -> (samples, features, K)
SIMULATED = {
    "simulated-small": (300, 200, 4),
    "simulated-medium": (3_000, 2_000, 10),
    "simulated-large": (30_000, 8_000, 20),
}
BUILT_IN = {"docstrings": 10, "docstrings-small": 4}
PAPER_SIMULATIONS = ("sim_ctm_a", "sim_ctm_b")
NAMES = (*REAL, *BUILT_IN, *SIMULATED)

# Nonzeros evaluated at a time, so that the evaluation of a fit needs little memory.
PIECE = 1 << 14


@dataclass
class Problem:
    """Counts X (n, m), start L (n, K) and F (m, K).

    ``goal`` is "best" if all programs end in the same optimum, "own" if they may not.
    """

    name: str
    X: sp.csr_matrix
    L: np.ndarray
    F: np.ndarray
    goal: str = "own"
    best: float = -np.inf

    @property
    def n_components(self) -> int:
        """Return the number of topics K."""
        return self.L.shape[1]

    @property
    def csr_bytes(self) -> int:
        """Return the size of the counts as compressed rows, in their original type."""
        return self.X.data.nbytes + self.X.indices.nbytes + self.X.indptr.nbytes

    def loglik(self, L, F) -> float:
        """Return the exact Poisson log-likelihood of given factors, in float64, by plain NumPy."""
        L, F = np.float64(L), np.float64(F)
        total = -float(L.sum(axis=0) @ F.sum(axis=0))
        starts = np.arange(0, self.X.nnz, PIECE)
        for start, stop in zip(starts, [*starts[1:], self.X.nnz], strict=True):
            x = self.X.data[start:stop].astype(np.float64)
            rows = np.searchsorted(self.X.indptr, np.arange(start, stop), side="right") - 1
            mu = np.einsum("ik,ik->i", L[rows], F[self.X.indices[start:stop]])
            total += float(x @ np.log(np.maximum(mu, 1e-300)) - gammaln(x + 1).sum())
        return total

    def store(self, folder: Path) -> None:
        """Write plain arrays, which are loaded without a second copy in memory."""
        arrays = {"data": self.X.data, "indices": self.X.indices, "indptr": self.X.indptr,
                  "shape": np.array(self.X.shape), "L": self.L, "F": self.F}  # fmt: skip
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)


def restore(folder: Path) -> Problem:
    """Read the files of ``Problem.store``."""
    data, indices, indptr, shape, L, F = (
        np.load(folder / f"{name}.npy") for name in ("data", "indices", "indptr", "shape", "L", "F")
    )
    X = sp.csr_matrix((data, indices, indptr), shape=tuple(shape), copy=False)
    return Problem(folder.name, X, L, F)


def reference_folder() -> Path:
    """Return the folder of the reference fits, a subfolder of the real data."""
    if "NMFSCALE_DATA" not in os.environ:
        raise LookupError("set NMFSCALE_DATA to the folder of the real count matrices")
    return Path(os.environ["NMFSCALE_DATA"]).parent / "reference"


def load_counts(name: str) -> sp.csr_matrix:
    """Return the counts of a problem."""
    if reason := available(name):
        raise LookupError(reason)
    if name in BUILT_IN:
        counts = built_in(name)
        return sp.csr_matrix((counts.data, counts.indices, counts.indptr), shape=counts.shape)
    if name in SIMULATED:
        from nmfscale.datasets.simulate import simulate_poisson_nmf

        return sp.csr_matrix(simulate_poisson_nmf(*SIMULATED[name], random_state=1)[0])
    return sp.load_npz(Path(os.environ["NMFSCALE_DATA"]) / f"{name}.npz").tocsr()


def built_in(name: str):
    """Return a built-in corpus with its words and groups."""
    from nmfscale.datasets.corpora import PACKAGES, docstrings

    return docstrings(["numpy"] if name == "docstrings-small" else PACKAGES)


def em_start(X, n_components: int, *, seed: int = 1, n_iter: int = 50):
    """Return random factors after some EM iterations, the start of the reference fits too."""
    from nmfscale import PoissonNMF

    model = PoissonNMF(n_components, solver="em", init="random", random_state=seed,
                       max_iter=n_iter, tol=0, extrapolate=False).fit(X)  # fmt: skip
    return model.loadings_, np.ascontiguousarray(model.components_.T)


def available(name: str) -> str:
    """Return the reason why a problem is not available, or an empty string."""
    if name not in (*NAMES, *PAPER_SIMULATIONS):
        return f"{name}: no such problem; there are {', '.join(NAMES)}"
    if name in (*REAL, *PAPER_SIMULATIONS) and "NMFSCALE_DATA" not in os.environ:
        return f"{name}: skipped, NMFSCALE_DATA is not set"
    return ""


def load(name: str) -> Problem:
    """Return a problem that is ready to fit."""
    X = load_counts(name)
    if name in REAL:
        k, goal = REAL[name]
        start = np.load(reference_folder() / f"state_em50_{name}_k{k}.npz")
        best = np.load(reference_folder() / f"best_{name}_k{k}.npz")
        problem = Problem(name, X, start["L"], start["F"], goal)
        problem.best = problem.loglik(best["L"], best["F"])
        return problem
    k = BUILT_IN[name] if name in BUILT_IN else SIMULATED[name][2]
    return Problem(name, X, *em_start(X, k))
