"""Carbonetto et al. (2021), section 4: EM and CD on simulated data sets A and B, with new draws.

Each draw has 100 documents, 400 words and 6 topics, whose proportions are logistic normal. In B,
topics 5 and 6 are positively correlated; in A, they are not.  From 50 EM updates, EM and CD run for
750 iterations, with four steps on every row and with one step (EM).  From the end of EM, CD runs
for 200 iterations (Figure 1, panels A, A1 to A3, and B, B1 to B3).

    python benchmarks/papers/carbonetto_simulated.py            five minutes
    python benchmarks/papers/carbonetto_simulated.py --smoke

Writes results/carbonetto_simulated.csv, with a row for each draw, and carbonetto_simulated.png.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import carbonetto_fits
import experiment
import numpy as np
from carbonetto_fits import Curve

K = 6
ONE_STEP, AFTER = "EM, one step", "CD after EM"
COLOURS = {name: colour for name, (_, _, colour) in carbonetto_fits.METHODS.items()}
COLOURS |= {ONE_STEP: "tab:brown", AFTER: "black"}
# What the text of the paper says about single numbers, for A and for B.
PAPER = {
    "gain of the 50 EM updates": (None, "over 5,000"),
    "gain of the last EM iteration": (None, "about 0.1"),
}


@dataclass
class Draw:
    """Counts of one draw, the true proportions, the start after EM updates, and its fits."""

    X: Any
    truth: np.ndarray
    start: tuple[np.ndarray, np.ndarray]
    gain: float
    fits: dict[str, Curve]

    @property
    def best(self) -> float:
        """Return the best log-likelihood of all fits."""
        return max(float(curve.loglik.max()) for curve in self.fits.values())

    @property
    def off(self) -> float:
        """Return the largest difference between the proportions by EM and by CD."""
        em, cd = self.fits["EM"], self.fits["CD, extrapolated"]
        return float(np.abs(em.proportions - cd.proportions).max())


def counts_of(name: str, seed: int) -> tuple[Any, np.ndarray]:
    """Return counts of data set A or B, and the true proportions."""
    from nmfscale.datasets import simulate_correlated_topics

    covariance = 13.0 * np.eye(K) - 2.0
    if name == "B":
        covariance[4, 5] = covariance[5, 4] = 8.0
    X, truth = simulate_correlated_topics(100, 400, covariance, random_state=seed)
    return X[:, np.flatnonzero(X.sum(axis=0))].tocsr(), truth.L


def start_of(X: Any, n_iter: int = 50) -> tuple[np.ndarray, np.ndarray, float]:
    """Return factors after EM updates from a random start, and what the updates gained."""
    import problems

    from nmfscale.likelihood import loglik_multinomial

    first, last = problems.em_start(X, K, n_iter=1), problems.em_start(X, K, n_iter=n_iter)
    gain = loglik_multinomial(X, *last).sum() - loglik_multinomial(X, *first).sum()
    return *last, float(gain)


def draw_of(name: str, seed: int, n_iter: int, n_after: int) -> Draw:
    """Simulate counts and run all fits."""
    X, truth = counts_of(name, seed)
    L, F, gain = start_of(X)
    fits = {
        method: carbonetto_fits.fit(X, L, F, method, n_iter, 1)
        for method in carbonetto_fits.METHODS
    }
    fits[ONE_STEP] = carbonetto_fits.fit(X, L, F, "EM", n_iter, 1, inner_iter=1)
    em = fits["EM"]
    fits[AFTER] = carbonetto_fits.fit(X, em.L, em.F, "CD, extrapolated", n_after, 1)
    return Draw(X, truth, (L, F), gain, fits)


def row_of(name: str, seed: int, draw: Draw) -> dict:
    """Return the numbers of one draw."""
    em = draw.fits["EM"]
    row = {"data": name, "draw": seed, "gain of the 50 EM updates": draw.gain}
    row |= {f"{each} below the best": draw.best - fit.loglik[-1]
            for each, fit in draw.fits.items()}  # fmt: skip
    row["gain of the last EM iteration"] = float(em.loglik[-1] - em.loglik[-2])
    row["largest difference of a proportion, EM and CD"] = draw.off
    return row


def summary(rows: list[dict], paper: dict) -> list[dict]:
    """Return a line for each number, with the paper's beside the median and range of the draws."""
    lines = []
    for quantity in [each for each in rows[0] if each not in ("data", "draw")]:
        line = {"quantity": quantity}
        for place, name in enumerate("AB"):
            found = np.array([row[quantity] for row in rows if row["data"] == name])
            ends = [experiment.shown(float(each)) for each in (found.min(), found.max())]
            line[f"{name}: paper"] = paper.get(quantity, (None, None))[place]
            line[f"{name}: here, median"] = float(np.median(found))
            line[f"{name}: range"] = f"{ends[0]} to {ends[1]}"
        lines.append(line)
    return lines


def draw_panels(found: dict[str, list[Draw]]) -> Any:
    """Plot for A and B: true proportions, log-likelihoods, residuals, and proportions."""
    from nmfscale import pl

    figure, axes = experiment.panels(4 * len(found), 4, (3.7, 3.1))
    for (name, draws), place in zip(found.items(), range(0, len(axes), 4), strict=True):
        bars, missing, residual, scatter = axes[place : place + 4]
        farthest = max(draws, key=lambda draw: draw.off)
        topics = [f"topic {k + 1}" for k in range(K)]
        pl.structure_plot(farthest.truth, topic_names=topics, ax=bars)
        bars.set_title(f"{name}: true proportions", fontsize=9)
        for draw in draws:
            n_em = len(draw.fits["EM"].loglik)
            for method, curve in draw.fits.items():
                first = n_em if method == AFTER else 0
                iteration = first + np.arange(1, len(curve.loglik) + 1)
                style = {"color": COLOURS[method], "lw": 0.8, "alpha": 0.7}
                style |= {"label": method} if draw is draws[0] else {}
                missing.semilogy(iteration, np.maximum(draw.best - curve.loglik, 0.1), **style)
                residual.semilogy(first + curve.measured, curve.kkt, **style)
        missing.set(xlabel="iteration", ylabel="log-likelihood below the best")
        residual.set(xlabel="iteration", ylabel="largest KKT residual")
        cd, em = farthest.fits["CD, extrapolated"].proportions, farthest.fits["EM"].proportions
        for k in range(K):
            scatter.plot(cd[:, k], em[:, k], "o", ms=3, label=topics[k])
        scatter.axline((0, 0), slope=1, color="0.7", lw=0.8)
        scatter.set(xlabel="proportion by CD", ylabel="proportion by EM")
        scatter.set_title("the draw with the largest difference", fontsize=9)
    axes[1].legend(fontsize=7, frameon=False)
    axes[3].legend(fontsize=7, frameon=False, ncols=2)
    return figure


def main() -> None:
    """Run all draws of both data sets."""
    parser = experiment.parser(__doc__)
    experiment.add_parts(parser)
    parser.add_argument("--draws", type=int, help="of A and B")
    options = parser.parse_args()
    n_iter, n_after = (10, 5) if options.smoke else (750, 200)
    n_draws = options.draws or (2 if options.smoke else 50 if options.full else 8)
    warnings.simplefilter("ignore")  # fits do not converge in a fixed number of iterations
    found: dict[str, list[Draw]] = {"A": [], "B": []}
    for seed in range(1, n_draws + 1):
        for name, draws in found.items():
            key = ("carbonetto_simulated", name, seed, n_iter, n_after)
            compute = partial(draw_of, name, seed, n_iter, n_after)
            draws.append(experiment.part(options.parts, key, compute))
            print(row_of(name, seed, draws[-1]), flush=True)
    rows = [
        row_of(name, seed, draw)
        for name, draws in found.items()
        for seed, draw in enumerate(draws, start=1)
    ]
    shown = {name: draws[:8] for name, draws in found.items()}
    experiment.keep(
        "carbonetto_simulated", rows, draw_panels(shown), options, summary=summary(rows, PAPER)
    )


if __name__ == "__main__":
    main()
