"""Noisy pairs that the noisy topic model finds: area under the curve (AUC), compared with ceilings.

Counts are simulated with K = 5 topics, 10,000 features and 1,000 counts per sample. Some pairs of a
feature and a topic are noisy, with variance 2 of u. Pairs are ranked by theta, and by
abs(n - m) / sqrt(m), which measures how far the counts n of a feature in a topic are from their
expected value m. Every pair has a theta of its own (`noise_prior="none"`); with `--priors`, this is
compared with a mixture prior of theta, the default of the model, for fewer features and samples.

- ceiling: the likelihood ratio of n, with known counts of each topic, loadings and means; no method
  can exceed it. Also theta estimated from these n, and the ceiling with infinitely many samples.
- fixed: a fit with the true loadings and means fixed.
- fit: everything is estimated, from the default start. Topics are matched by their loadings.
- from truth: everything is estimated, from the true loadings. The ELBOs of fit and from truth are
  relative to that of fixed.

    python benchmarks/noisy_topics.py                 all settings, a few minutes
    python benchmarks/noisy_topics.py --priors        both priors, 2,000 features, a few minutes
    python benchmarks/noisy_topics.py --smoke         a few seconds, writes nothing

Writes results/noisy_topics.csv, or noisy_topics_priors.csv, and the table in README.md. It measures
no times.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import report
from scipy.optimize import linear_sum_assignment
from scipy.stats import gamma, nbinom, poisson
from sklearn.metrics import roc_auc_score

MARKERS = ("<!-- noisy:start -->", "<!-- noisy:end -->")
MARKERS_OF_PRIORS = ("<!-- noisy_priors:start -->", "<!-- noisy_priors:end -->")
K, NOISY_VARIANCE = 5, 2.0
# Largest number of samples of the settings with which priors are compared.
MOST_SAMPLES = 1000


class Setting(NamedTuple):
    """Samples, share of noisy pairs, Dirichlet parameter of loadings, variance of the rest."""

    samples: int
    share: float
    concentration: float
    variance: float = 0.0


SETTINGS = [
    Setting(100, 0.1, 0.1), Setting(1000, 0.1, 0.1), Setting(5000, 0.1, 0.1),
    Setting(5000, 0.1, 0.3), Setting(100, 0.01, 1.0), Setting(1000, 0.01, 1.0),
    Setting(5000, 0.01, 1.0), Setting(100, 0.01, 1.0, 1.0), Setting(5000, 0.01, 1.0, 1.0),
]  # fmt: skip


def auc(noisy, scores) -> float:
    """Return the area under the curve; noisy pairs should have higher scores."""
    return float(roc_auc_score(noisy.ravel(), scores.ravel()))


def log_ratio(n, m, variance: float):
    """Return the log-likelihood ratio of noisy and ordinary pairs with counts n and means m."""

    def of_noise(variance: float):
        return nbinom.logpmf(n, 1 / variance, 1 / (1 + m * variance))

    ordinary = of_noise(variance) if variance > 0 else poisson.logpmf(n, m)
    return of_noise(NOISY_VARIANCE) - ordinary


def ceilings(truth, setting: Setting, rng) -> dict[str, float]:
    """Return the AUC with known counts of each topic, and with known u."""
    from nmfscale.methods.variational.gamma_noise import best_theta

    m = np.outer(truth.mu, truth.L.sum(axis=0))
    n = rng.poisson(m * truth.u)
    found = {
        "ceiling": auc(truth.noisy, log_ratio(n, m, setting.variance)),
        "ceiling_theta": auc(truth.noisy, -best_theta(n.astype(float), m, np.ones_like(m), 1)),
        "ceiling_samples": 1.0,
    }
    if setting.variance > 0:
        noisy, other = (gamma(1 / v, scale=v) for v in (NOISY_VARIANCE, setting.variance))
        ratio = noisy.logpdf(truth.u) - other.logpdf(truth.u)
        found["ceiling_samples"] = auc(truth.noisy, ratio)
    return found


def judged(model, truth, name: str) -> dict[str, float]:
    """Return the AUC of a fit by theta and by departure, and the correlation of its loadings."""
    near = np.nan_to_num(np.corrcoef(truth.L.T, model.loadings_.T)[:K, K:])
    _, topics = linear_sum_assignment(-near)
    n, m = (each[topics].T for each in (model.topic_counts_, model.expected_counts_))
    return {
        f"{name}_theta": auc(truth.noisy, -model.theta_[topics].T),
        f"{name}_departure": auc(truth.noisy, np.abs(n - m) / np.sqrt(np.maximum(m, 1e-30))),
        f"{name}_loadings": float(near[np.arange(K), topics].mean()),
    }


def measure(setting: Setting, prior: str, features: int, seed: int) -> dict[str, float]:
    """Simulate counts and fit them three times: fixed, fit, from truth."""
    import nmfscale

    X, truth = nmfscale.simulate_noisy_topics(
        setting.samples, features, K, noisy_share=setting.share, variance=setting.variance,
        noisy_variance=NOISY_VARIANCE, loadings_concentration=setting.concentration,
        random_state=seed,
    )  # fmt: skip
    known = {"L": truth.L, "mu": truth.mu}
    hold = {"fixed_samples": np.ones(setting.samples, bool),
            "fixed_features": np.ones(features, bool)}  # fmt: skip
    found, elbo = ceilings(truth, setting, np.random.default_rng(seed)), {}
    for name, given in (("held", known | hold), ("fit", {}), ("from_truth", known)):
        model = nmfscale.NoisyTopicModel(
            K, noise_prior=prior, random_state=seed, n_threads=1
        ).fit(X, **given)  # fmt: skip
        found |= judged(model, truth, name)
        elbo[name] = model.elbo_
    found |= {f"{name}_elbo": elbo[name] - elbo["held"] for name in ("fit", "from_truth")}
    return found


def markdown(rows: list[dict], seeds: int) -> str:
    """Return the table and the command."""
    heads = ("prior: samples, noisy pairs, Dirichlet parameter, variance in other pairs",
             "ceiling (theta; many samples)", "fixed", "fit", "correlation of loadings",
             "ELBO - fixed", "from truth", "ELBO - fixed")  # fmt: skip
    table: list[tuple[str, ...]] = [heads, ("---",) * len(heads)]
    for row in rows:
        theta = {
            name: f"{row[f'{name}_theta']:.3f} / {row[f'{name}_departure']:.3f}"
            for name in ("held", "fit", "from_truth")
        }
        what = "{prior}: {samples:,}, {share:.0%}, {concentration:g}, {variance:g}".format(**row)
        table.append((
            what,
            f"{row['ceiling']:.3f} ({row['ceiling_theta']:.3f}; {row['ceiling_samples']:.3f})",
            theta["held"], theta["fit"], f"{row['fit_loadings']:.2f}", f"{row['fit_elbo']:+,.0f}",
            theta["from_truth"], f"{row['from_truth_elbo']:+,.0f}",
        ))  # fmt: skip
    command = report.command()
    return "\n".join([
        *("| " + " | ".join(cells) + " |" for cells in table), "",
        f"AUC by theta / by departure, means of {seeds} seeds. `{command}`",
    ])  # fmt: skip


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--features", type=int, default=10_000)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--priors", action="store_true", help="compare the priors of theta")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    settings, priors, name, markers = SETTINGS, ("none",), "noisy_topics.csv", MARKERS
    if options.priors:
        settings = [each for each in SETTINGS if each.samples <= MOST_SAMPLES and each.share == 0.1]
        options.features, priors = 2000, ("mixture", "none")
        name, markers = "noisy_topics_priors.csv", MARKERS_OF_PRIORS
    if options.smoke:
        settings, options.seeds, options.features = [Setting(100, 0.1, 0.1)], 1, 100
    rows = []
    for setting, prior in product(settings, priors):
        runs = [measure(setting, prior, options.features, seed) for seed in range(options.seeds)]
        rows.append(setting._asdict() | {"prior": prior} | {
            name: float(np.mean([run[name] for run in runs])) for name in runs[0]
        })  # fmt: skip
        print({
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in rows[-1].items()
        }, flush=True)  # fmt: skip
    table = markdown(rows, options.seeds)
    print(table)
    if not options.smoke:
        report.write_csv(options.results / name, rows)
        if options.results == report.HERE / "results":
            report.write_readme(table, markers)


if __name__ == "__main__":
    main()
