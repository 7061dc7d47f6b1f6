"""Carbonetto et al. (2021), section 4: LDA from the estimates after EM and after CD updates.

After 50 EM updates from a random start, EM or CD (with extrapolation) continues for some
iterations.  Variational EM for LDA then starts from these estimates, with point estimates of the
topics and a uniform prior of the proportions, as in Figure 1, panels A4 and B4.  A and B are the
simulated data sets of carbonetto_simulated.py; real counts are compared in the same way.

    python benchmarks/papers/carbonetto_lda.py             three minutes
    python benchmarks/papers/carbonetto_lda.py --problems A B --draws 50
    python benchmarks/papers/carbonetto_lda.py --smoke

Writes results/carbonetto_lda.csv, with a row for each fit, and carbonetto_lda.png, with curves of
the draw in which the starts differ most.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from typing import Any

import carbonetto_fits
import carbonetto_simulated
import experiment
import numpy as np

# label -> (method, iterations after the 50 EM updates, colour)
STARTS = {
    "50 EM": ("EM", 0, "tab:red"),
    "100 EM": ("EM", 50, "tab:orange"),
    "800 EM": ("EM", 750, "tab:brown"),
    "50 EM, 50 CD": ("CD, extrapolated", 50, "tab:cyan"),
    "50 EM, 200 CD": ("CD, extrapolated", 200, "tab:blue"),
}
# Starts for real counts, whose iterations take longer.
OF_REAL = ("50 EM", "100 EM", "50 EM, 50 CD")
REFERENCE = "50 EM, 50 CD"
# The paper's text on ELBO by CD minus ELBO by EM.
PAPER = {"A": "over 0", "B": "over 1,000"}
LEAST = 0.1


def lda_from(counts: Any, L: np.ndarray, F: np.ndarray, n_iter: int, threads: int) -> np.ndarray:
    """Run LDA from factors of Poisson NMF, without momentum; return its ELBO by iteration."""
    from nmfscale import LDA
    from nmfscale.likelihood import poisson_to_multinomial

    proportions, topics, *_ = poisson_to_multinomial(L, F)
    totals = np.asarray(counts.sum(axis=1)).reshape(-1, 1)
    lda = LDA(
        L.shape[1], doc_topic_prior=1.0, topic_word_prior=0.0, extrapolate=False, max_iter=n_iter,
        tol=0, n_threads=threads,
    )  # fmt: skip
    lda.fit(counts, components=topics.T, loadings=1 + totals * proportions)
    return lda.history_["elbo"]


def curves_of(
    X: Any, start: tuple[np.ndarray, np.ndarray], labels: Any, n_lda: int, options: Any
) -> dict[str, np.ndarray]:
    """Run LDA from each of the estimates; return the ELBO curves by label."""
    curves = {}
    for label in labels:
        method, n_iter, _ = STARTS[label]
        L, F = start
        if n_iter:
            n_iter = 5 if options.smoke else n_iter
            fit = carbonetto_fits.fit(X, L, F, method, n_iter, options.threads)
            L, F = fit.L, fit.F
        curves[label] = lda_from(X, L, F, n_lda, options.threads)
    return curves


def measure(name: str, options: argparse.Namespace) -> list[dict[str, np.ndarray]]:
    """Return the curves of every draw of a problem; real counts have one."""
    simulated = name in "AB"
    n_lda = 10 if options.smoke else 200 if simulated or options.full else 50

    def run(seed: int) -> dict[str, np.ndarray]:
        import problems

        if simulated:
            X = carbonetto_simulated.counts_of(name, seed)[0]
            start = carbonetto_simulated.start_of(X)[:2]
            return curves_of(X, start, STARTS, n_lda, options)
        X, K = problems.load_counts(name), problems.REAL[name][0]
        return curves_of(X, problems.em_start(X, K), OF_REAL, n_lda, options)

    return [
        experiment.part(options.parts, ("carbonetto_lda", name, seed, n_lda), partial(run, seed))
        for seed in range(1, (options.draws if simulated else 1) + 1)
    ]


def rows_of(name: str, draws: list[dict[str, np.ndarray]]) -> list[dict]:
    """Return the final ELBO of every fit, and how far it is below LDA from CD."""
    return [
        {
            "problem": name, "draw": seed, "start": label, "LDA iterations": len(elbo),
            "elbo": f"{elbo[-1]:.3f}", "below_cd": f"{curves[REFERENCE][-1] - elbo[-1]:.3f}",
        }
        for seed, curves in enumerate(draws, start=1)
        for label, elbo in curves.items()
    ]  # fmt: skip


def summary(rows: list[dict]) -> list[dict]:
    """Return a line for each problem: ELBO by 50 CD iterations minus ELBO from other starts."""
    lines = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        here = [row for row in rows if row["problem"] == name]
        draws = len({row["draw"] for row in here})
        line = {"problem": name, "draws": draws, "paper": PAPER.get(name)}
        for label in STARTS:
            if label == REFERENCE:
                continue
            ahead = np.array([float(row["below_cd"]) for row in here if row["start"] == label])
            text = f"{np.median(ahead):,.1f}" if len(ahead) else ""
            if len(ahead) > 1:
                text += f" ({ahead.min():,.1f} to {ahead.max():,.1f})"
            line[f"ELBO by CD minus that from {label}"] = text
        lines.append(line)
    return lines


def draw(found: dict[str, list[dict[str, np.ndarray]]]) -> Any:
    """Plot ELBO below the best, for the draw of each problem in which the starts differ most."""
    figure, axes = experiment.panels(len(found), 3, (3.9, 3.0))
    for ax, (name, draws) in zip(axes, found.items(), strict=True):
        curves = max(draws, key=lambda curves: np.ptp([elbo[-1] for elbo in curves.values()]))
        best = max(elbo.max() for elbo in curves.values())
        for label, elbo in curves.items():
            iteration = np.arange(1, len(elbo) + 1)
            ax.semilogy(
                iteration, np.maximum(best - elbo, LEAST), color=STARTS[label][2], label=label
            )
        ax.set(title=name, xlabel="iteration of LDA", ylabel="ELBO below the best")
    axes[0].legend(fontsize=7, frameon=False, title="LDA from", title_fontsize=7)
    return figure


def main() -> None:
    """Run LDA from all starts of all problems."""
    import problems

    parser = experiment.parser(__doc__)
    experiment.add_parts(parser)
    parser.add_argument("--problems", nargs="+", choices=("A", "B", *problems.REAL))
    parser.add_argument("--draws", type=int, help="of A and B")
    options = parser.parse_args()
    names = options.problems or ["A", "B", *([] if options.smoke else problems.REAL)]
    options.draws = options.draws or (1 if options.smoke else 50 if options.full else 8)
    names = [name for name in names if name in "AB" or experiment.available([name])]
    warnings.simplefilter("ignore")  # fits do not converge in a fixed number of iterations
    found = {}
    for name in names:
        found[name] = measure(name, options)
        print(summary(rows_of(name, found[name]))[0], flush=True)
    rows = [row for name, draws in found.items() for row in rows_of(name, draws)]
    experiment.keep("carbonetto_lda", rows, draw(found), options, summary=summary(rows))


if __name__ == "__main__":
    main()
