"""Geiger and Park (2024): what equals what, in numbers.

The package runs the paper's algorithms on counts, and dense NumPy takes the steps as the paper
prints them (tests/oracle.py).  Each line of the table is a lemma, algorithm or equation, and the
largest difference between its two sides, relative to the largest value.

    python benchmarks/papers/geiger_equalities.py
    python benchmarks/papers/geiger_equalities.py --smoke

Writes results/geiger_equalities.csv and .png.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import experiment
import numpy as np
import scipy.stats
from scipy.special import gammaln

sys.path.append(str(experiment.HERE.parents[1] / "tests"))
import oracle  # noqa: E402
import oracle_gamma_poisson  # noqa: E402

from nmfscale.experimental import SparsityPenalty

ALPHA, RATE, PENALTY = 0.3, 0.5, 2.0
Factors = tuple[np.ndarray, np.ndarray]


@dataclass
class Side:
    """Counts X (n, m), a normalised start P (n, K) and W (m, K), and a number of iterations."""

    X: np.ndarray
    P: np.ndarray
    W: np.ndarray
    n_iter: int
    threads: int

    @property
    def totals(self) -> np.ndarray:
        """Return the totals of the samples, (n, 1)."""
        return self.X.sum(axis=1, keepdims=True)

    def model(self, make: Any, n_iter: int | None = None, start: dict | None = None, **how) -> Any:
        """Fit a model of the package from the start for a number of iterations."""
        how |= {"max_iter": n_iter or self.n_iter, "tol": 0, "n_threads": self.threads}
        start = {"loadings": self.P, "components": self.W.T} if start is None else start
        return make(self.P.shape[1], **how).fit(self.X, **start)

    def steps(self, step: Any, start: Factors) -> Factors:
        """Take steps of an algorithm as the paper prints it."""
        for _ in range(self.n_iter):
            start = step(*start)
        return start


def apart(a: Any, b: Any) -> float:
    """Return the largest difference, relative to the largest value."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return float(np.abs(a - b).max() / np.abs(b).max())


def factors_of(model: Any) -> Factors:
    """Return the loadings (n, K) and the factors (m, K)."""
    return model.loadings_, model.components_.T


def of_nmf(side: Side) -> list[tuple[str, str, float]]:
    """Compare NMF with one or both matrices normalised (sections 3, 4, 6)."""
    from nmfscale import PoissonNMF, TopicModel

    X, P, W, totals = side.X, side.P, side.W, side.totals
    plain = side.model(PoissonNMF, solver="em", inner_iter=1, extrapolate=False)
    L, F = P, W
    for _ in range(side.n_iter):
        L = oracle.update_rows(X, L, F, "em", 1)
        F = oracle.update_rows(X.T, F, L, "em", 1)
    joint = side.model(PoissonNMF, solver="joint-em")
    topics = side.model(TopicModel, solver="joint-em")
    lasso = side.model(PoissonNMF, solver="joint-em", penalty=SparsityPenalty(PENALTY))
    plsa = side.steps(lambda P, W: oracle.step_plsa(X, P, W), (P, W))
    both = side.steps(lambda L, F: oracle.step_joint(X, L, F), (P, W))
    shrunk = side.steps(lambda L, F: oracle.step_joint(X, L, F, PENALTY), (P, W))
    fit = side.model(PoissonNMF, 500)
    L_fit, F_fit = factors_of(fit)
    sums = F_fit.sum(axis=0)
    more = np.log1p(PENALTY) * X.sum()
    return [
        ("Algorithm 1", "PoissonNMF, solver 'em', and its updates, H before W",
         apart(plain.loadings_ @ plain.components_, L @ F.T)),
        ("Algorithm 4", "PoissonNMF, solver 'joint-em', and its updates",
         max(map(apart, factors_of(joint), both))),
        ("Algorithms 2 and 6", "TopicModel, solver 'joint-em', and PLSA",
         max(map(apart, factors_of(topics), plsa))),
        ("Lemma B.1", "W of Algorithm 4 and of PLSA", apart(joint.components_.T, plsa[1])),
        ("Lemma B.1", "H of Algorithm 4, and that of PLSA times the totals",
         apart(joint.loadings_, totals * plsa[0])),
        ("Equation 26", "totals of the samples in a solution, and in X",
         apart((L_fit * sums).sum(axis=1), totals[:, 0])),
        ("Lemma 4.1", "divergence of a solution, and with normalised W",
         apart(oracle.deviance_poisson(X, L_fit * sums, F_fit / sums).sum(),
               oracle.deviance_poisson(X, L_fit, F_fit).sum())),
        ("Lemma 4.2", "H of a solution divided by the totals, and a further step of PLSA",
         apart(L_fit * sums / totals,
               oracle.step_plsa(X, L_fit * sums / totals, F_fit / sums)[0])),
        ("Equation 25", "penalty of joint-em, and its updates",
         max(map(apart, factors_of(lasso), shrunk))),
        ("Lemma 6.1", "W with the l1 penalty, and without",
         apart(lasso.components_, joint.components_)),
        ("Lemma 6.1", "H with the penalty, and H without divided by 1 + lambda",
         apart(lasso.loadings_, joint.loadings_ / (1 + PENALTY))),
        ("Equation 35", "penalised divergence, and that without plus log(1 + lambda) sum x",
         apart(oracle.loss(X, *factors_of(lasso)) + PENALTY * lasso.loadings_.sum(),
               oracle.loss(X, *factors_of(joint)) + more)),
    ]  # fmt: skip


def of_posteriors(side: Side) -> list[tuple[str, str, float]]:
    """Compare LDA and Gamma-Poisson, from the same posterior (section 5, Appendices C and E)."""
    from nmfscale import LDA, GammaPoisson

    X, K = side.X, side.P.shape[1]
    alpha, rate = np.full(K, ALPHA), np.full(K, RATE)
    beta = ALPHA + side.totals * side.P
    how = {"extrapolate": False}
    lda = side.model(
        LDA, start={"components": side.W.T, "loadings": beta},
        doc_topic_prior=ALPHA, topic_word_prior=0.0, **how,
    )  # fmt: skip
    gap = side.model(
        GammaPoisson, start={"components": side.W.T, "loadings": beta},
        shape_loadings=ALPHA, rate_loadings=RATE, **how,
    )  # fmt: skip
    by_5 = side.steps(
        lambda beta, W: (lambda g, t: (g, t.T))(*oracle.step_lda(X, beta, W.T, alpha, 0.0)),
        (beta, side.W),
    )
    by_7 = side.steps(
        lambda beta, W: oracle_gamma_poisson.step_plain(X, beta, W, alpha, rate), (beta, side.W)
    )
    of_lda = lda.doc_topic_posterior_, lda.components_.T
    of_gap = gap.loadings_shape_, gap.components_.T
    bounds = (
        oracle.elbo_lda(X, of_lda[0], of_lda[1].T, alpha, 0.0),
        oracle_gamma_poisson.elbo_plain(X, *of_gap, alpha, rate),
    )
    totals = side.totals[:, 0]
    constant = scipy.stats.nbinom(alpha.sum(), RATE / (1 + RATE)).logpmf(totals).sum()
    constant += gammaln(totals + 1).sum() - gammaln(X + 1).sum()
    return [
        ("Algorithm 5", "LDA, topic_word_prior=0, and its updates", max(map(apart, of_lda, by_5))),
        ("Equation 17", "elbo_ of LDA, and the bound with explicit phi",
         apart(lda.elbo_, bounds[0])),
        ("Algorithm 7", "GammaPoisson, and its updates", max(map(apart, of_gap, by_7))),
        ("Appendix E", "elbo_ of GammaPoisson, and the bound with explicit phi",
         apart(gap.elbo_, bounds[1])),
        ("Lemma E.3", "W of Gamma-Poisson and of LDA", apart(of_gap[1], of_lda[1])),
        ("Lemma E.3", "beta of Gamma-Poisson and of LDA", apart(of_gap[0], of_lda[0])),
        ("Lemma E.3", "sum of beta, and the total plus the sum of alpha",
         apart(of_gap[0].sum(axis=1), totals + alpha.sum())),
        ("Lemma E.1", "difference of the bounds, and log p(N) under Poisson-Gamma",
         apart(gap.elbo_ - lda.elbo_, constant)),
    ]  # fmt: skip


def of_penalties(side: Side) -> list[tuple[str, str, float]]:
    """Evaluate both problems of Theorem F.1 at any W, with penalty ||H||_q^q and ||w_k||_p = 1."""
    rows = []
    H, W = side.totals * side.P, side.W * np.arange(1, side.W.shape[1] + 1)
    for p, q in ((1, 1), (2, 1), (2, 0.5), (1, 2)):
        norms = (W**p).sum(axis=0) ** (1 / p)
        free = (norms**q * (H**q).sum(axis=0)).sum() + oracle.loss(side.X, H, W)
        held = ((H * norms) ** q).sum() + oracle.loss(side.X, H * norms, W / norms)
        rows.append(("Theorem F.1", f"objectives 36 and 37, p = {p}, q = {q}", apart(free, held)))
    return rows


def draw(rows: list[dict]) -> Any:
    """Plot the differences."""
    figure, (ax,) = experiment.panels(1, 1, (8.5, 5.2))
    place = np.arange(len(rows))[::-1]
    ax.semilogx([max(row["difference"], 1e-17) for row in rows], place, "o", color="tab:blue")
    ax.set_yticks(place, [f"{row['statement']}: {row['compared']}" for row in rows], fontsize=7)
    ax.set(xlabel="largest relative difference of the two sides (line: rounding)", xlim=(5e-18, 1))
    ax.axvline(np.finfo(float).eps, color="0.7", lw=0.8, zorder=0)
    return figure


def main() -> None:
    """Compare all pairs, print and keep the table."""
    import problems

    options = experiment.parse(__doc__)
    name = "docstrings" if options.full else "docstrings-small"
    X = problems.load_counts(name)
    X = X[np.asarray(X.sum(axis=1)).ravel() > 0].astype(float)
    if options.smoke:
        X = X[::5]
    X = X[:, np.asarray(X.sum(axis=0)).ravel() > 0]
    rng, K = np.random.default_rng(1), problems.BUILT_IN[name]
    P, W = rng.dirichlet(np.ones(K), X.shape[0]), rng.dirichlet(np.ones(X.shape[1]), K).T
    side = Side(X.toarray(), P, W, 3 if options.smoke else 10, options.threads)
    found = of_nmf(side) + of_posteriors(side) + of_penalties(side)
    rows = [dict(zip(("statement", "compared", "difference"), row, strict=True)) for row in found]
    experiment.keep("geiger_equalities", rows, draw(rows), options)


if __name__ == "__main__":
    main()
