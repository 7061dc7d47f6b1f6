"""The note "Noisy topic models": its simulation, its fit of six features, and its formulas.

    python benchmarks/papers/noisy_note.py            under a minute; the counts of the note
    python benchmarks/papers/noisy_note.py --full     means of ten draws for the fits of all counts
    python benchmarks/papers/noisy_note.py --smoke    a few seconds, writes nothing

The note (Abhishek Sarkar, https://aksarkar.github.io/singlecell-ideas/noisy-topics.html) simulates
100 samples of 10,000 features, and starts a fit of the first six features, whose result it does not
show. The first draw here has the counts of the note, from the same seed. A fit of all counts shows
how many noisy pairs can be found in such counts.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import experiment
import noisy_topics  # benchmarks/noisy_topics.py
import numpy as np
from scipy.integrate import quad
from scipy.special import gammaln, psi
from scipy.stats import gamma
from sklearn.metrics import roc_curve

from nmfscale import NoisyTopicModel
from nmfscale.datasets.noisy import NoisyTruth
from nmfscale.methods.variational.gamma_noise import best_theta, posterior_of

K, SIZE, NOISY_SHARE = 5, 1e3, 0.01
# Shape and rate of q(u), and theta, at which formulas are compared.
POINTS = ((1.0, 3.0, 2.0), (0.5, 1.5, 2.5), (10.0, 12.0, 9.0))


class Draw(NamedTuple):
    """Counts (n, m), and the parameters from which they were drawn."""

    counts: np.ndarray
    truth: NoisyTruth


def simulate(n: int, m: int, seed: int) -> Draw:
    """Draw counts as the note does: the numbers of NumPy's old generator, in the same order."""
    rng = np.random.RandomState(seed)
    mu = rng.dirichlet(np.ones(m))
    noisy = rng.uniform(size=(m, K)) <= NOISY_SHARE
    variance = np.where(noisy, noisy_topics.NOISY_VARIANCE, 1.0)
    u = gamma(a=1 / variance, scale=variance).rvs(size=(m, K), random_state=rng)
    L = rng.dirichlet(np.ones(K), size=n)
    counts = rng.poisson(SIZE * (L @ (mu[:, None] * u).T))
    return Draw(counts, NoisyTruth(SIZE * L, mu, u, noisy))


def simulation(draw: Draw) -> list[dict[str, Any]]:
    """Return what the note prints about its counts."""
    x = draw.counts
    return [
        {"quantity": "nonzero counts", "note": 89_681, "here": int((x > 0).sum())},
        {"quantity": "share of nonzero counts", "note": 0.089681, "here": float((x > 0).mean())},
        {"quantity": "largest count", "note": 8, "here": int(x.max())},
    ]


class Fits(NamedTuple):
    """Fits of one draw: with loadings and means fixed at the truth, and of everything."""

    fixed: NoisyTopicModel
    free: NoisyTopicModel


def fit_both(draw: Draw, seed: int, threads: int) -> Fits:
    """Fit all counts twice."""
    n, m = draw.counts.shape
    known = {"loadings": draw.truth.L, "mu": draw.truth.mu, "fixed_samples": np.ones(n, bool),
             "fixed_features": np.ones(m, bool)}  # fmt: skip
    fixed, free = (
        NoisyTopicModel(K, noise_prior="none", random_state=seed, n_threads=threads).fit(
            draw.counts, **given
        )
        for given in (known, {})
    )
    return Fits(fixed, free)


def found_pairs(draws: list[Draw], fits: list[Fits]) -> list[dict[str, Any]]:
    """Return how well noisy pairs are ranked, compared with what is possible."""
    setting = noisy_topics.Setting(len(draws[0].counts), NOISY_SHARE, 1.0, 1.0)
    runs = []
    for number, (draw, both) in enumerate(zip(draws, fits, strict=True)):
        found = noisy_topics.ceilings(draw.truth, setting, np.random.default_rng(number))
        found |= noisy_topics.judged(both.fixed, draw.truth, "fixed")
        found |= noisy_topics.judged(both.free, draw.truth, "free")
        found["elbo"] = both.free.elbo_ - both.fixed.elbo_
        runs.append(found)
    mean = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    shown = {
        "AUC, u known (as with infinitely many samples)": "ceiling_samples",
        "AUC, counts of each topic known": "ceiling",
        "AUC by theta, loadings and means known": "fixed_theta",
        "AUC by theta, everything estimated": "free_theta",
        "AUC by departure, everything estimated": "free_departure",
        "correlation of loadings with the truth": "free_loadings",
        "ELBO, minus that with the true loadings and means": "elbo",
    }
    return [{"quantity": label, "note": None, "here": mean[name]} for label, name in shown.items()]


def first_six(draw: Draw, threads: int) -> tuple[list[dict[str, Any]], NoisyTopicModel]:
    """Fit the first six features, as the note begins to do."""
    y = draw.counts[:, :6]
    model = NoisyTopicModel(K, noise_prior="none", random_state=0, n_threads=threads).fit(y)
    n, m, theta = model.topic_counts_, model.expected_counts_, model.theta_
    rises = bool((np.diff(model.history_["elbo"]) >= 0).all())
    far = (n - m) ** 2 > n
    rows = [
        ("samples without counts", int((y.sum(axis=1) == 0).sum())),
        ("sum of counts", int(y.sum())),
        ("iterations", int(model.n_iter_)),
        ("ELBO never falls", rises),
        ("ELBO", float(model.elbo_)),
        ("pairs with theta at its upper bound, 1e4: no noise", int((theta > 9e3).sum())),
        ("these with (n - m)^2 > n", int(far[theta > 9e3].sum())),
        ("pairs with theta at its lower bound, 1e-4: feature absent", int((theta < 2e-4).sum())),
        ("pairs with theta between its bounds", int(((theta >= 2e-4) & (theta <= 9e3)).sum())),
    ]
    return [{"quantity": name, "note": None, "here": value} for name, value in rows], model


def note_bound(theta: float, shape: float, rate: float) -> float:
    """Return the terms of u in the ELBO as the note prints them."""
    log_u, u = psi(shape) - np.log(rate), shape / rate
    return float(
        (theta - shape) * log_u - (theta - rate) * u - theta * np.log(theta)
        + rate * np.log(shape) - gammaln(theta) + gammaln(shape)
    )  # fmt: skip


def bound(theta: float, shape: float, rate: float) -> float:
    """Return E[log p(u) - log q(u)] by numerical integration."""
    q, p = gamma(shape, scale=1 / rate), gamma(theta, scale=1 / theta)
    value, _ = quad(lambda u: q.pdf(u) * (p.logpdf(u) - q.logpdf(u)), 0, q.ppf(1 - 1e-13),
                    limit=400)  # fmt: skip
    return float(value)


def slope(theta: float, shape: float, rate: float) -> float:
    """Return the derivative of the ELBO in theta as the note prints it, without - E u."""
    return float(1 + np.log(theta) + psi(shape) - np.log(rate) - psi(theta))


def formulas() -> list[dict[str, Any]]:
    """Compare the note's formulas with numerical integrals and differences."""
    rows = []
    for theta, shape, rate in POINTS:
        at = f"theta {theta:g}, shape {shape:g}, rate {rate:g}"
        arrays = (np.array([theta]), np.array([shape - theta]), np.array([rate - theta]), 1)
        rows.append({
            "formula": f"terms of u in the ELBO: {at}", "note": note_bound(theta, shape, rate),
            "numerical": bound(theta, shape, rate), "here": posterior_of(*arrays).bound,
        })  # fmt: skip
        step = 1e-4 * theta
        rise = bound(theta + step, shape, rate) - bound(theta - step, shape, rate)
        rows.append({
            "formula": f"derivative in theta: {at}", "note": slope(theta, shape, rate),
            "numerical": rise / (2 * step), "here": slope(theta, shape, rate) - shape / rate,
        })  # fmt: skip
    n, m = 9.0, 3.0
    theta = best_theta(*(np.array([each]) for each in (n, m, 1.0)), 1)[0]
    at = theta, theta + n, theta + m
    rows.append({
        "formula": f"derivative at the theta of a fit: n = {n:g}, m = {m:g}, theta {theta:.3f}",
        "note": slope(*at), "numerical": 0.0, "here": slope(*at) - at[1] / at[2],
    })  # fmt: skip
    return rows


def draw_figure(draw: Draw, fits: Fits, of_six: NoisyTopicModel) -> Any:
    """Plot ELBOs, ROC curves, and the derivative in theta."""
    figure, (history, roc, derivative) = experiment.panels(3, 3, (3.4, 3.0))
    for model, name in ((fits.free, "all features"), (of_six, "first six features")):
        elbo = model.history_["elbo"]
        history.plot((elbo - elbo[0]) / (elbo[-1] - elbo[0]), label=name)
    history.set(xlabel="iteration", ylabel="ELBO, from start to end")
    for model, name in ((fits.fixed, "loadings and means known"), (fits.free, "all estimated")):
        wrong, right, _ = roc_curve(draw.truth.noisy.ravel(), -model.theta_.T.ravel())
        roc.plot(wrong, right, label=name)
    roc.plot([0, 1], [0, 1], color="0.6", linestyle=":")
    roc.set(xlabel="share of the other pairs", ylabel="share of noisy pairs found")
    grid, (n, m) = np.geomspace(0.05, 50, 200), (9.0, 3.0)
    theta = best_theta(*(np.array([each]) for each in (n, m, 1.0)), 1)[0]
    shape, rate = theta + n, theta + m
    note = np.array([slope(each, shape, rate) for each in grid])
    derivative.semilogx(grid, note, label="note")
    derivative.semilogx(grid, note - shape / rate, label="corrected")
    derivative.axhline(0, color="0.6", linestyle=":")
    derivative.axvline(theta, color="0.3", linestyle="--", linewidth=0.8)
    derivative.set(xlabel="theta; dashed: the fit, n = 9, m = 3", ylabel="derivative of the ELBO",
                   ylim=(-2, 4))  # fmt: skip
    for ax in (history, roc, derivative):
        ax.legend(frameon=False, fontsize="small")
    return figure


def main() -> None:
    """Run the script from the command line."""
    options = experiment.parse(__doc__)
    warnings.simplefilter("ignore")  # samples without counts
    n, m = (30, 300) if options.smoke else (100, 10_000)
    draws = [simulate(n, m, seed) for seed in range(10 if options.full else 1)]
    fits = [fit_both(draw, 0, options.threads) for draw in draws]
    rows, of_six = first_six(draws[0], options.threads)
    experiment.keep("noisy_note_simulation", simulation(draws[0]), None, options)
    figure = draw_figure(draws[0], fits[0], of_six)
    experiment.keep("noisy_note_pairs", found_pairs(draws, fits), figure, options)
    experiment.keep("noisy_note_six", rows, None, options)
    experiment.keep("noisy_note_formulas", formulas(), None, options)


if __name__ == "__main__":
    main()
