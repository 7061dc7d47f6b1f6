"""Geiger and Park (2024), sections 3 to 5: NMF, PLSA, LDA and Gamma-Poisson on the same counts.

All models start from the same factors, after EM updates from a random start, and run until they
have converged, at most 5,000 iterations.  NMF and PLSA have the same topics (Lemma 4.2), and so
have LDA and Gamma-Poisson with one rate (Lemma E.3).  The priors separate the two pairs.

    python benchmarks/papers/geiger_models.py
    python benchmarks/papers/geiger_models.py --counts newsgroups --topics 20
    python benchmarks/papers/geiger_models.py --smoke

Writes results/geiger_models.csv, and Structure plots of all models to geiger_models.png.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import experiment
import numpy as np

ALPHA, RATE = 0.1, 0.01
# Shares of the counts of each sample from which proportions are inferred, and that are predicted.
COMPLETION = 0.5


def fitted(counts: Any, start: tuple[np.ndarray, np.ndarray], options: Any) -> dict[str, Any]:
    """Fit the four models; return them, and their processor seconds, by name."""
    from nmfscale import LDA, GammaPoisson, PoissonNMF, TopicModel
    from nmfscale.likelihood import poisson_to_multinomial

    L, F = start
    P, W, *_ = poisson_to_multinomial(L, F)
    beta = ALPHA + counts.row_totals[:, None] * P
    how = {"max_iter": 20 if options.smoke else 5_000, "n_threads": options.threads}
    joint = {"solver": "joint-em", "tol": 1e-5, "gain_tol": 0.0} | how
    of_posteriors = {"components": W.T, "loadings": beta}
    K, made = P.shape[1], {}
    for name, model, begin in (
        ("NMF", PoissonNMF(K, **joint), {"loadings": L, "components": F.T}),
        ("PLSA", TopicModel(K, **joint), {"loadings": L, "components": F.T}),
        ("LDA", LDA(K, doc_topic_prior=ALPHA, topic_word_prior=0.0, **how), of_posteriors),
        ("Gamma-Poisson",
         GammaPoisson(K, shape_loadings=ALPHA, rate_loadings=RATE, **how), of_posteriors),
    ):  # fmt: skip
        began = time.process_time()
        model.fit(counts, **begin)
        made[name] = (model, time.process_time() - began)
    return made


def proportions(model: Any) -> np.ndarray:
    """Return topic proportions of the samples, (n, K)."""
    parts = model.loadings_ * model.components_.sum(axis=1)
    return parts / np.maximum(parts.sum(axis=1, keepdims=True), 1e-300)


def line_of(name: str, model: Any, seconds: float, counts: Any, first: Any) -> dict:
    """Return the line of a model in the table; `first` is the NMF."""
    from nmfscale.likelihood import loglik_multinomial

    shares = proportions(model)
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    of_first = first.components_ / first.components_.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1)
    return {
        "model": name,
        "iterations": model.n_iter_,
        "seconds": seconds,
        "multinomial log-likelihood": float(loglik_multinomial(counts, shares, topics.T).sum()),
        "ELBO": float(model.elbo_) if hasattr(model, "elbo_") else None,
        "log-probability of a count by completion": model.score(counts, completion=COMPLETION),
        "zero proportions": f"{(shares < 1e-6).mean():.0%}",
        "topics per sample": float(np.exp(entropy).mean()),
        "largest difference of a topic from NMF (total variation)":
            float(np.abs(topics - of_first).sum(axis=1).max() / 2),
        "largest difference of a proportion": float(np.abs(shares - proportions(first)).max()),
    }  # fmt: skip


def draw(models: dict[str, Any], groups: Any) -> Any:
    """Draw a Structure plot of each model."""
    from nmfscale import pl

    figure, axes = experiment.panels(len(models), 1, (11, 2.2))
    for ax, (name, (model, _)) in zip(axes, models.items(), strict=True):
        pl.structure_plot(proportions(model), groups, ax=ax)
        ax.set_title(name, fontsize=10)
    return figure


def main() -> None:
    """Fit all models, print and keep the table."""
    import problems

    parser = experiment.parser(__doc__)
    parser.add_argument("--counts", help="docstrings, a name in problems.py, or a file's")
    parser.add_argument("--topics", type=int, default=10)
    options = parser.parse_args()
    name = options.counts or ("docstrings-small" if options.smoke else "docstrings")
    if not experiment.available([name]):
        return
    counts = experiment.counts_of(name)
    groups = experiment.labels_of(name).get("groups", counts.groups)
    warnings.simplefilter("ignore")  # short fits of --smoke do not converge
    start = problems.em_start(counts, 4 if options.smoke else options.topics)
    models = fitted(counts, start, options)
    first = models["NMF"][0]
    rows = [line_of(each, *found, counts, first) for each, found in models.items()]
    experiment.keep("geiger_models", rows, draw(models, groups), options)


if __name__ == "__main__":
    main()
