"""Geiger and Park (2024), section 6 and Appendix F: which penalties make a factor sparse.

Penalties lambda ||H||_q^q with columns of W of norm 1 in l_p; and the dual, penalties lambda
||W||_q^q with rows of H of norm 1 in l_p.  For p = q = 1, the penalty only rescales (Lemma 6.1).
For other p and q, it competes with the norm of the other factor (Theorem F.1), and parameters
become zero.  All fits start from the same factors.

    python benchmarks/papers/geiger_sparsity.py
    python benchmarks/papers/geiger_sparsity.py --smoke

Writes results/geiger_sparsity.csv and .png.
"""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import experiment
import numpy as np

from nmfscale.experimental import SparsityPenalty

# (p, q) -> colour
PENALTIES = {(1, 1.0): "0.4", (1, 0.5): "tab:blue", (2, 1.0): "tab:red", (2, 0.5): "tab:orange"}
PAPER = {(1, 1.0): "none by the penalty (Lemma 6.1)", (2, 1.0): "zeros (its reference 29)"}
FACTORS = {"H": "loadings", "W": "components"}
WEIGHTS = (0.1, 0.3, 1.0, 3.0, 10.0)


def fit(
    counts: Any, start: Any, factor: str, weight: float, norm: tuple[int, float], options: Any
) -> Any:  # fmt: skip
    """Fit with a penalty on a factor, from the same start."""
    from nmfscale import PoissonNMF

    L, F = start
    model = PoissonNMF(
        L.shape[1], solver="joint-em", n_threads=options.threads,
        penalty=SparsityPenalty(
            weight, exponent=norm[1], norm=f"l{norm[0]}", on=FACTORS[factor]
        ),
        max_iter=20 if options.smoke else 1_000,
    )  # fmt: skip
    return model.fit(counts, loadings=L, components=F.T)


def divergence_of(counts: Any, model: Any) -> float:
    """Return the divergence, after the totals of the samples were scaled to those of the counts."""
    from nmfscale.likelihood import deviance_poisson

    L, F = model.loadings_, model.components_.T
    expected = (L * F.sum(axis=0)).sum(axis=1)
    scale = counts.row_totals / np.maximum(expected, 1e-300)
    return float(deviance_poisson(counts, L * scale[:, None], F).sum()) / 2


def effective_number(parts: Any) -> float:
    """Return the mean exponential of the entropy of the rows, after they were made to sum to 1."""
    shares = parts / np.maximum(parts.sum(axis=1, keepdims=True), 1e-300)
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1)
    return float(np.exp(entropy).mean())


def row_of(
    counts: Any, model: Any, factor: str | None, weight: float, norm: tuple[int, float], plain: Any
) -> dict:  # fmt: skip
    """Return the line of a fit in the table."""
    more = divergence_of(counts, model) / divergence_of(counts, plain) - 1
    return {
        "penalty on": factor,
        "norm of the other, p": norm[0],
        "exponent q": norm[1],
        "lambda": weight,
        "zeros according to the paper": PAPER.get(norm) if factor == "H" else None,
        "zeros in H": f"{(model.loadings_ == 0).mean():.1%}",
        "zeros in W": f"{(model.components_ == 0).mean():.1%}",
        "topics per sample": effective_number(model.loadings_ * model.components_.sum(axis=1)),
        "features per topic": effective_number(model.components_),
        "divergence, relative": f"{more:+.2%}",
    }


def draw(rows: list[dict]) -> Any:
    """Plot zeros in the factor with the penalty against lambda, and divergence against zeros."""
    figure, axes = experiment.panels(4, 2, (4.6, 3.4))
    for factor, (left, right) in zip(FACTORS, (axes[:2], axes[2:]), strict=True):
        for (p, q), color in PENALTIES.items():
            keys = factor, p, q
            here = [row for row in rows if tuple(row.values())[:3] == keys]
            zeros = [float(row[f"zeros in {factor}"].rstrip("%")) for row in here]
            more = [float(row["divergence, relative"].rstrip("%")) for row in here]
            style = {"color": color, "marker": "o", "ms": 4, "label": f"p = {p}, q = {q:g}"}
            left.semilogx([row["lambda"] for row in here], zeros, **style)
            right.plot(zeros, more, **style)
        left.set(xlabel=f"lambda, penalty on {factor}", ylabel=f"zeros in {factor}, percent")
        right.set(
            xlabel=f"zeros in {factor}, percent", ylabel="increase of the divergence, percent"
        )
        left.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Fit with every penalty, print and keep the table."""
    import problems

    options = experiment.parse(__doc__)
    name = "docstrings" if options.full else "docstrings-small"
    counts = experiment.counts_of(name)
    start = problems.em_start(counts, 4 if options.smoke else 10)
    warnings.simplefilter("ignore")  # fits with --smoke do not converge
    plain = fit(counts, start, "H", 0.0, (1, 1.0), options)
    rows = [row_of(counts, plain, None, 0.0, (1, 1.0), plain)]
    weights = WEIGHTS[:1] if options.smoke else WEIGHTS
    for factor, norm, weight in product(FACTORS, PENALTIES, weights):
        model = fit(counts, start, factor, weight, norm, options)
        rows.append(row_of(counts, model, factor, weight, norm, plain))
    experiment.keep("geiger_sparsity", rows, draw(rows[1:]), options)


if __name__ == "__main__":
    main()
