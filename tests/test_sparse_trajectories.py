"""Ten iterations on real counts: the package without fastTopics' guards, fastTopics with them.

fastTopics adds 1e-8 to expected counts in ratios and logarithms and to curvatures, 1e-15 to
responsibilities, and raises factors to the floor of 1e-10 when a half-step ends, not in every step.
From a random start this is amplified: test_golden.py states how far the two programs come apart.
Here a third one stands between. With these conventions it is fastTopics, without them the package.
"""

import json

import numpy as np
import oracle
import pytest
from numpy.testing import assert_allclose
from oracle import FASTTOPICS_EPS, MINVAL
from scipy.sparse import csr_array, load_npz
from scipy.special import gammaln

import nmfscale

DATA = {"neurips": 10, "pbmc_facs": 6}
SOLVERS = {"em": 4, "scd": 4, "ccd": 1}


class Nonzeros:
    """Counts (n, m) as their nonzeros y at (row, column), row by row."""

    def __init__(self, X):
        self.n, self.y, self.column = X.shape[0], X.data, X.indices
        self.row = np.repeat(np.arange(self.n), np.diff(X.indptr))

    def expected(self, L, F):
        """mu at the nonzeros."""
        return np.sum(L[self.row] * F[self.column], axis=1)

    def sums(self, values):
        """Sum over the nonzeros of each row."""
        return np.bincount(self.row, values, minlength=self.n)

    def move(self, L, F, method, inner_iter, eps):
        """Return `oracle.update_rows` for em, scd and ccd, all rows side by side.

        fastTopics raises what lies below the floor after a half-step, the package in every step.
        """
        least = 0.0 if eps > 0 else MINVAL
        u, A = F.sum(axis=0), F[self.column]
        B = np.array(L, dtype=float)
        for _ in range(inner_iter if method == "em" else 1):
            parts = A * B[self.row]
            if eps > 0:
                parts = parts / parts.max(axis=1, keepdims=True) + 1e-15
            parts *= (self.y / parts.sum(axis=1))[:, None]
            B = np.maximum(np.column_stack([self.sums(part) for part in parts.T]) / u, least)
        if method == "em":
            return B
        mu = np.sum(A * B[self.row], axis=1)
        for _ in range(inner_iter):
            for k in range(len(u)):
                ratio = A[:, k] / (mu + eps)
                g, h = u[k] - self.sums(ratio * self.y), self.sums(ratio * ratio * self.y)
                with np.errstate(divide="ignore", invalid="ignore"):
                    if method == "scd":
                        new = (h * B[:, k] - g) / (h + eps)
                    else:
                        new = B[:, k] - g / h + eps
                smallest = max(least, eps if method == "ccd" else 0.0)
                new = np.where(h > 0, np.maximum(new, smallest), smallest)
                mu += (new - B[:, k])[self.row] * A[:, k]
                B[:, k] = new
        return B


class SparseFit(oracle.Fit):
    """`oracle.Fit` of a sparse matrix; `history` holds log-likelihood and momentum."""

    def _take(self, X):
        X = csr_array(X, dtype=float)
        self.of_rows, self.of_columns = Nonzeros(X), Nonzeros(csr_array(X.T))
        self.constant = gammaln(X.data + 1.0).sum()

    def _loss(self, L, F):
        log_mu = np.log(self.of_rows.expected(L, F) + self.eps)
        return L.sum(axis=0) @ F.sum(axis=0) - self.of_rows.y @ log_mu

    def _move_L(self, pair):
        moved = self.of_rows.move(*pair, self.method, self.inner_iter, self.eps)
        return np.maximum(moved, MINVAL)

    def _move_F(self, pair):
        moved = self.of_columns.move(pair.F, pair.L, self.method, self.inner_iter, self.eps)
        return np.maximum(moved, MINVAL)

    def _record(self):
        loglik = -self._loss(*self.best) - self.constant
        self.history.append({"loglik": loglik, "beta": self.beta})


@pytest.fixture(scope="module")
def check(data_dir, reference_dir):
    """Compare both programs with the third over the first iterations from the stored start."""
    stored = json.loads((reference_dir / "fasttopics_trajectories.json").read_text())["datasets"]

    def check(name, solver, extrapolate, n_iter):
        X = load_npz(data_dir / f"{name}.npz")
        with np.load(reference_dir / f"init_{name}_k{DATA[name]}.npz") as start:
            L, F = start["L"], start["F"]
        inner_iter = SOLVERS[solver]

        def third(eps):
            loop = SparseFit(X, L, F, solver, inner_iter, extrapolate=extrapolate, eps=eps)
            history = loop.run(n_iter).history
            return [[record[key] for record in history] for key in ("loglik", "beta")]

        run = f"{solver}_extrapolate" if extrapolate else solver
        theirs = stored[name]["runs"][run]["progress"]
        loglik, beta = third(FASTTOPICS_EPS)
        assert_allclose(loglik, theirs["loglik"][:n_iter], rtol=1e-8)
        # The last record of a fit is that of the factors handed out, exact zeros put back.
        model = nmfscale.PoissonNMF(
            DATA[name],
            solver=solver,
            inner_iter=inner_iter,
            extrapolate=extrapolate,
            max_iter=n_iter + 1,
            tol=0,
        ).fit(X, L=L, F=F)
        ours = model.history_[:n_iter]
        exact_loglik, exact_beta = third(0.0)
        assert_allclose(ours["loglik"], exact_loglik, rtol=1e-8)
        if extrapolate:
            assert_allclose(beta, theirs["beta"][:n_iter], rtol=1e-12)
            # Ours is what an iteration used, the others keep what the next one will use.
            assert_allclose(ours["momentum"], [0.5, *exact_beta[:-1]], rtol=1e-12)

    return check


def test_first_iterations(check):
    check("neurips", "ccd", True, 2)


@pytest.mark.slow
@pytest.mark.parametrize("extrapolate", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", DATA)
def test_ten_iterations(check, name, solver, extrapolate):
    check(name, solver, extrapolate, 10)
