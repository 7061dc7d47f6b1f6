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

With `--rates`, pairs are ranked by `noisy_pairs`, and the error rates that it reports are compared
with the shares of pairs without noise among those that it finds.

    python benchmarks/noisy_topics.py                 all settings, a few minutes
    python benchmarks/noisy_topics.py --priors        both priors, 2,000 features, a few minutes
    python benchmarks/noisy_topics.py --rates         error rates, a quarter of an hour
    python benchmarks/noisy_topics.py --smoke         a few seconds, writes nothing

Writes results/noisy_topics.csv, noisy_topics_priors.csv or noisy_topics_rates.csv, and the table in
README.md, or in docs/noisy_topics.md for error rates. It measures no times.
"""

from __future__ import annotations

import argparse
import warnings
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import report
from scipy.optimize import linear_sum_assignment
from scipy.stats import gamma, nbinom, poisson
from sklearn.metrics import roc_auc_score
from sklearn.utils.parallel import Parallel, delayed

MARKERS = ("<!-- noisy:start -->", "<!-- noisy:end -->")
MARKERS_OF_PRIORS = ("<!-- noisy_priors:start -->", "<!-- noisy_priors:end -->")
MARKERS_OF_RATES = ("<!-- noisy_rates:start -->", "<!-- noisy_rates:end -->")
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


class RateSetting(NamedTuple):
    """Sizes, noisy pairs and loadings of a simulation, and how it departs from the model."""

    samples: int = 300
    features: int = 300
    topics: int = 5
    share: float = 0.2
    variance: float = 2.0
    size: float = 1000.0
    concentration: float = 0.1
    departs: str = "-"


RATE_SETTINGS = [
    RateSetting(), RateSetting(share=0.1), RateSetting(share=0.3), RateSetting(variance=0.5),
    RateSetting(size=200.0), RateSetting(concentration=1.0), RateSetting(topics=8),
    RateSetting(500, 600, 3), RateSetting(1000, 600, 3, 0.3, 1.0), RateSetting(1000, 600, 8, 0.1),
    RateSetting(departs="log-normal noise"), RateSetting(departs="unequal features"),
    RateSetting(departs="unequal samples"), RateSetting(departs="dispersion 0.1"),
    RateSetting(departs="dispersion 0.3"), RateSetting(departs="dispersion 0.3, thinned to 20%"),
    RateSetting(departs="little noise in other pairs"), RateSetting(share=0.05),
    RateSetting(share=0.02), RateSetting(500, 600, 3, 0.02),
    RateSetting(300, 300, 8, 0.05, 1.0, 500.0, 0.3),
]  # fmt: skip
LEVELS = (0.05, 0.1, 0.2)
# What departs from the model: the variance of noise in other pairs, the dispersion of counts, and
# the share of these that is kept.
LITTLE_NOISE = 0.02
DISPERSION = {
    "dispersion 0.1": (0.1, 1.0), "dispersion 0.3": (0.3, 1.0),
    "dispersion 0.3, thinned to 20%": (0.3, 0.2),
}  # fmt: skip


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
    topics, near = matched_topics(truth, model)
    n, m = (each[topics].T for each in (model.topic_counts_, model.expected_counts_))
    return {
        f"{name}_theta": auc(truth.noisy, -model.theta_[topics].T),
        f"{name}_departure": auc(truth.noisy, np.abs(n - m) / np.sqrt(np.maximum(m, 1e-30))),
        f"{name}_loadings": float(near.mean()),
    }


def measure(setting: Setting, prior: str, features: int, seed: int) -> dict[str, float]:
    """Simulate counts and fit them three times: fixed, fit, from truth."""
    import nmfscale

    X, truth = nmfscale.datasets.simulate_noisy_topics(
        setting.samples, features, K, noisy_share=setting.share, variance=setting.variance,
        noisy_variance=NOISY_VARIANCE, loadings_concentration=setting.concentration,
        random_state=seed,
    )  # fmt: skip
    known = {"loadings": truth.L, "mu": truth.mu}
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


def matched_topics(truth, model):
    """Return the topic of a fit that matches each true topic, by loadings, and correlations."""
    n_topics = truth.L.shape[1]
    near = np.nan_to_num(np.corrcoef(truth.L.T, model.loadings_.T)[:n_topics, n_topics:])
    _, topics = linear_sum_assignment(-near)
    return topics, near[np.arange(n_topics), topics]


def simulate_rates(setting: RateSetting, seed: int):
    """Return counts and their truth."""
    import nmfscale

    _, truth = nmfscale.datasets.simulate_noisy_topics(
        setting.samples, setting.features, setting.topics, size=setting.size,
        noisy_share=setting.share, noisy_variance=setting.variance,
        loadings_concentration=setting.concentration, random_state=seed,
    )  # fmt: skip
    L, mu, u, noisy = truth
    rng, departs = np.random.default_rng([seed, 1]), setting.departs
    if departs == "log-normal noise":
        width = np.log1p(setting.variance)
        u = np.where(noisy, np.exp(np.sqrt(width) * rng.normal(size=u.shape) - width / 2), 1.0)
    elif departs == "little noise in other pairs":
        other = rng.gamma(1 / LITTLE_NOISE, LITTLE_NOISE, u.shape)
        u = np.where(noisy, u, other)
    elif departs == "unequal features":
        mu = rng.lognormal(0, 2, mu.shape)
        mu /= mu.sum()
    elif departs == "unequal samples":
        L = L * rng.lognormal(-0.5, 1, (len(L), 1))
    rates = L @ (mu[:, None] * u).T
    share = 1.0
    if departs in DISPERSION:
        dispersion, share = DISPERSION[departs]
        rates *= rng.gamma(1 / dispersion, dispersion, rates.shape)
    return rng.poisson(share * rates), truth._replace(L=L, mu=mu, u=u)


def realised(local, noisy) -> dict[str, np.ndarray]:
    """Return numbers of pairs found and of wrong ones, where their mean error is at most a level.

    They are ranked by their local error rates.
    """
    order = np.argsort(local, axis=None, kind="stable")
    rates = local.ravel()[order].cumsum() / np.arange(1, local.size + 1)
    found = np.searchsorted(rates, LEVELS, side="right")
    wrong = np.concatenate([[0], (~noisy.ravel()[order]).cumsum()])
    return {"found": found, "wrong": wrong[found]}


def run_rates(setting: RateSetting, seed: int) -> dict[str, Any]:
    """Rank the pairs of one simulation; return what was found, by method."""
    import nmfscale

    X, truth = simulate_rates(setting, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nmfscale.NoisyTopicModel(setting.topics, random_state=seed, n_threads=1).fit(X)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        pairs = nmfscale.experimental.noisy_pairs(model, X, random_state=seed, n_threads=1)
    topics, correlations = matched_topics(truth, model)
    noisy = truth.noisy.T
    kind = "warned" if raised else "noisy_pairs"
    return {
        kind: realised(pairs.local_error_rates[topics], noisy),
        "local_fdr": realised(model.local_fdr_[topics], noisy),
        "noisy": int(noisy.sum()), "reproduced": pairs.reproduced, "loadings": correlations,
    }  # fmt: skip


def summed_rates(setting: RateSetting, runs: list[dict[str, Any]]) -> dict[str, float | str]:
    """Return error rates that are realised, of all runs of a setting together.

    Those of runs that raise a warning are apart: not all topics were found again, or counts vary
    more than the model says.
    """
    none = {"found": np.zeros(len(LEVELS)), "wrong": np.zeros(len(LEVELS))}
    right = {}
    row: dict[str, float | str] = {
        **setting._asdict(),
        "loadings": float(np.mean([run["loadings"] for run in runs])),
        "reproduced": float(np.mean([run["reproduced"] for run in runs])),
        "seeds": len(runs), "warned": sum("warned" in run for run in runs),
    }  # fmt: skip
    for name in ("noisy_pairs", "warned", "local_fdr"):
        found, wrong = (sum(run.get(name, none)[key] for run in runs) for key in none)
        rates = wrong / np.maximum(found, 1)
        row |= {f"{name}_{level:g}": float(x) for level, x in zip(LEVELS, rates, strict=True)}
        right[name] = found - wrong
    recall = (right["noisy_pairs"] + right["warned"]) / sum(run["noisy"] for run in runs)
    return row | {f"recall_{level:g}": float(x) for level, x in zip(LEVELS, recall, strict=True)}


def markdown_rates(rows: list[dict]) -> str:
    """Return the table of error rates and the command."""
    heads = ("samples, features, topics", "noisy pairs, variance", "counts per sample",
             "Dirichlet parameter", "departs from the model", "topics found again",
             "runs without a warning", "wrong at 5 / 10 / 20%", "wrong with a warning",
             "noisy pairs found", "wrong by `local_fdr_`")  # fmt: skip
    table = [heads, ("---",) * len(heads)]
    for row in rows:
        shares = {
            name: " / ".join(f"{100 * row[f'{name}_{level:g}']:.0f}" for level in LEVELS) + "%"
            for name in ("noisy_pairs", "warned", "recall", "local_fdr")
        }
        table.append((
            "{samples:,}, {features:,}, {topics}".format(**row),
            "{share:.0%}, {variance:g}".format(**row), f"{row['size']:,.0f}",
            f"{row['concentration']:g}", row["departs"], f"{row['reproduced']:.0%}",
            f"{row['seeds'] - row['warned']} of {row['seeds']}",
            shares["noisy_pairs"] if row["warned"] < row["seeds"] else "-",
            shares["warned"] if row["warned"] else "-", shares["recall"], shares["local_fdr"],
        ))  # fmt: skip
    return "\n".join([
        *("| " + " | ".join(cells) + " |" for cells in table), "",
        f"All pairs of the runs together. `{report.command()}`",
    ])  # fmt: skip


def write_rates(options: argparse.Namespace) -> None:
    """Measure error rates, and write them."""
    settings = [RateSetting(60, 40, 2)] if options.smoke else RATE_SETTINGS
    jobs = [delayed(run_rates)(each, seed) for each in settings for seed in range(options.seeds)]
    runs = Parallel(n_jobs=1 if options.smoke else -1, verbose=0 if options.smoke else 10)(jobs)
    n = options.seeds
    rows = [summed_rates(each, runs[i * n : (i + 1) * n]) for i, each in enumerate(settings)]
    table = markdown_rates(rows)
    print(table)
    if not options.smoke:
        report.write_csv(options.results / "noisy_topics_rates.csv", rows)
        if options.results == report.HERE / "results":
            page = report.DOCS / "noisy_topics.md"
            report.write_readme(table, MARKERS_OF_RATES, pages=(page,))


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
    parser.add_argument("--rates", action="store_true", help="error rates of noisy_pairs")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.seeds = 1
    if options.rates:
        write_rates(options)
        return
    settings, priors, name, markers = SETTINGS, ("none",), "noisy_topics.csv", MARKERS
    if options.priors:
        settings = [each for each in SETTINGS if each.samples <= MOST_SAMPLES and each.share == 0.1]
        options.features, priors = 2000, ("mixture", "none")
        name, markers = "noisy_topics_priors.csv", MARKERS_OF_PRIORS
    if options.smoke:
        settings, options.features = [Setting(100, 0.1, 0.1)], 100
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
