"""Carbonetto et al. (2021), section 5: EM and CD, with and without extrapolation, K = 2 to 12.

Every comparison begins with EM updates from a random start, which are not shown (50 by default,
1,000 in the paper).  From there, EM and CD (sequential coordinate descent), each with four steps on
every row, run with and without extrapolation.  Figure 2, panels A1 to F1, and Figures A2 to A5:
topic model log-likelihoods below the best.  Figures A6 to A9: the largest KKT residual.  Figure 2,
panels A2 to F2: topic proportions by EM against those by CD with extrapolation.

    python benchmarks/papers/carbonetto_fits.py             50 iterations each: ten minutes
    python benchmarks/papers/carbonetto_fits.py --problems pbmc68k --topics 7 --full
    python benchmarks/papers/carbonetto_fits.py --smoke

Counts are named as in problems.py, or by a file in the folder NMFSCALE_DATA.  For each of them,
results/carbonetto_NAME.csv has the points of the curves, carbonetto_NAME.png the curves, and
carbonetto_NAME_proportions.png the proportions.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import experiment
import numpy as np

# name -> (solver, extrapolated, colour)
METHODS = {
    "EM": ("em", False, "tab:red"),
    "EM, extrapolated": ("em", True, "tab:orange"),
    "CD": ("scd", False, "tab:blue"),
    "CD, extrapolated": ("scd", True, "tab:cyan"),
}
# name -> rows, columns and share of nonzeros in Table 1 of the paper
TABLE_1 = {
    "neurips": (2_483, 14_036, 0.037),
    "newsgroups": (18_774, 55_911, 0.002),
    "trachea": (7_193, 18_388, 0.093),
    "pbmc68k": (68_579, 20_387, 0.027),
}
# Smaller differences are drawn as this, and proportions that differ by more than CHANGED count.
LEAST, CHANGED = 0.01, 0.1


@dataclass
class Curve:
    """One fit: log-likelihoods, residuals at iterations `measured`, and the factors at the end."""

    loglik: np.ndarray
    measured: np.ndarray
    kkt: np.ndarray
    L: np.ndarray
    F: np.ndarray

    @property
    def proportions(self) -> np.ndarray:
        """Return the topic proportions, (n, K)."""
        from nmfscale.likelihood import poisson_to_multinomial

        return poisson_to_multinomial(self.L, self.F)[0]


def fit(
    counts: Any, L: np.ndarray, F: np.ndarray, method: str, n_iter: int, threads: int,
    inner_iter: int = 4,
) -> Curve:  # fmt: skip
    """Run one of the four algorithms for a number of iterations.

    `history_` estimates residuals between measurements, so the fit is interrupted to measure them.
    """
    from nmfscale import PoissonNMF

    solver, extrapolate, _ = METHODS[method]
    measured, kkt = measured_iterations(n_iter), []
    with TemporaryDirectory() as folder:
        for end in measured.tolist():
            model = PoissonNMF(
                L.shape[1], solver=solver, inner_iter=inner_iter, extrapolate=extrapolate,
                max_iter=end, tol=0, n_threads=threads,
            ).fit(counts, loadings=L, components=F.T, checkpoint=folder, resume=True)  # fmt: skip
            kkt.append(max(model.history_[["kkt_loadings", "kkt_factors"]][-1].tolist()))
    F = np.ascontiguousarray(model.components_.T)
    loglik = model.history_["loglik_multinomial"]
    return Curve(loglik, measured, np.array(kkt), model.loadings_, F)


def measured_iterations(n_iter: int) -> np.ndarray:
    """Return the first iteration, and six at equal distances that end with the last one."""
    return np.unique(np.linspace(0, n_iter, 7).astype(int).clip(1))


def compare(
    counts: Any, K: int, n_start: int, n_iter: int, threads: int
) -> tuple[float, dict[str, Curve]]:
    """Run the four algorithms from the same EM updates; return the start's log-likelihood too."""
    import problems

    from nmfscale.likelihood import loglik_multinomial

    L, F = problems.em_start(counts, K, n_iter=n_start)
    start = float(loglik_multinomial(counts, L, F, n_threads=threads).sum())
    return start, {name: fit(counts, L, F, name, n_iter, threads) for name in METHODS}


def rows_of(name: str, found: dict[int, tuple[float, dict[str, Curve]]]) -> list[dict]:
    """Return the points of all curves."""
    rows = []
    for K, (_, curves) in found.items():
        best = best_of(curves)
        for method, curve in curves.items():
            for i, kkt in zip(curve.measured.tolist(), curve.kkt, strict=True):
                rows.append({
                    "counts": name, "K": K, "method": method, "iteration": i,
                    "below_best": f"{best - curve.loglik[i - 1]:.4f}", "kkt": f"{kkt:.3e}",
                })  # fmt: skip
    return rows


def best_of(curves: dict[str, Curve]) -> float:
    """Return the best log-likelihood of the four algorithms."""
    return max(float(curve.loglik.max()) for curve in curves.values())


def summary(found: dict[int, tuple[float, dict[str, Curve]]]) -> list[dict]:
    """Return a line for each K: where the algorithms end, and how far EM's proportions are off."""
    lines = []
    for K, (start, curves) in found.items():
        best = best_of(curves)
        off = np.abs(curves["EM"].proportions - curves["CD, extrapolated"].proportions)
        lines.append({
            "K": K, "below the best: start": f"{best - start:,.1f}",
            **{name: f"{best - curve.loglik[-1]:,.1f}" for name, curve in curves.items()},
            "KKT: EM": f"{curves['EM'].kkt[-1]:.0e}",
            "CD, extrapolated ": f"{curves['CD, extrapolated'].kkt[-1]:.0e}",
            f"samples with a proportion off by {CHANGED}":
                f"{(off.max(axis=1) > CHANGED).mean():.1%}",
        })  # fmt: skip
    return lines


def draw_curves(found: dict[int, tuple[float, dict[str, Curve]]]) -> Any:
    """Plot log-likelihoods above, residuals below, one panel for each K."""
    across = min(len(found), 6)
    down = -(-len(found) // across)
    figure, axes = experiment.panels(2 * down * across, across, (2.6, 2.1))
    for place, (K, (_, curves)) in enumerate(found.items()):
        above, below = axes[place], axes[down * across + place]
        best = best_of(curves)
        for method, curve in curves.items():
            iteration = np.arange(1, len(curve.loglik) + 1)
            color = METHODS[method][2]
            above.semilogy(
                iteration, np.maximum(best - curve.loglik, LEAST), color=color, label=method
            )
            below.semilogy(curve.measured, curve.kkt, ".-", ms=3, color=color)
        above.set_title(f"K = {K}", fontsize=9)
        below.set_title(f"K = {K}", fontsize=9)
    for half, label in ((0, "log-likelihood\nbelow the best"), (down, "largest KKT residual")):
        for row in range(half, half + down):
            axes[row * across].set_ylabel(label, fontsize=8)
    for ax in axes:
        ax.tick_params(labelsize=7)
        if not ax.lines:
            ax.set_axis_off()
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    for ax in axes[-across:]:
        ax.set_xlabel("iteration after the start", fontsize=8)
    return figure


def draw_proportions(found: dict[int, tuple[float, dict[str, Curve]]]) -> Any:
    """Plot proportions by EM against those by CD with extrapolation, coloured by topic."""
    figure, axes = experiment.panels(len(found), 6, (2.2, 2.3))
    for ax, (K, (_, curves)) in zip(axes, found.items(), strict=True):
        em, cd = curves["EM"].proportions, curves["CD, extrapolated"].proportions
        some = np.random.default_rng(0).permutation(len(cd))[:2_000]
        for k in range(K):
            ax.plot(cd[some, k], em[some, k], ".", ms=2, color=f"C{k % 10}", rasterized=True)
        ax.axline((0, 0), slope=1, color="0.5", lw=0.6)
        ax.set_title(f"K = {K}", fontsize=9)
        ax.tick_params(labelsize=7)
    figure.supxlabel("proportion by CD with extrapolation", fontsize=9)
    figure.supylabel("proportion by EM", fontsize=9)
    return figure


def table_1(others: list[str]) -> list[dict]:
    """Return the sizes of the counts of Table 1, as far as they are there, and of others."""
    rows = []
    for name in dict.fromkeys([*filter(experiment.file_of, TABLE_1), *others]):
        counts = experiment.counts_of(name)
        n, m = counts.shape
        here = f"{n:,} x {m:,}, {counts.nnz / n / m:.1%} nonzero"
        known = TABLE_1.get(name)
        paper = f"{known[0]:,} x {known[1]:,}, {known[2]:.1%} nonzero" if known else None
        rows.append({"counts": name, "paper": paper, "here": here})
    return rows


def options_of() -> argparse.Namespace:
    """Read the options of this script, with defaults by the size of the run."""
    parser = experiment.parser(__doc__)
    experiment.add_parts(parser)
    parser.add_argument("--problems", nargs="+")
    parser.add_argument("--topics", nargs="+", type=int)
    parser.add_argument("--updates", nargs=2, type=int, metavar=("EM", "AFTER"),
                        help="EM updates of the start, and iterations afterwards")  # fmt: skip
    options = parser.parse_args()
    names = ["docstrings-small"] if options.smoke else ["neurips", "newsgroups", "pbmc_facs"]
    options.problems = options.problems or names
    options.topics = options.topics or ([2, 4] if options.smoke else list(range(2, 13)))
    options.updates = options.updates or (
        (1_000, 1_000) if options.full else (5, 10) if options.smoke else (50, 50)
    )
    return options


def main() -> None:
    """Run every data set with every number of topics."""
    options = options_of()
    names = experiment.available(options.problems)
    if not names:
        return
    experiment.keep("carbonetto_counts", table_1(names), {}, options)
    warnings.simplefilter("ignore")  # fits do not converge in a fixed number of iterations
    for name in names:
        counts = experiment.counts_of(name)
        found = {}
        for K in options.topics:
            key = ("carbonetto_fits", name, K, *options.updates)
            found[K] = experiment.part(
                options.parts, key, partial(compare, counts, K, *options.updates, options.threads)
            )
            print(name, summary({K: found[K]})[0], flush=True)
        stem = f"carbonetto_{name}"
        figures = {stem: draw_curves(found), f"{stem}_proportions": draw_proportions(found)}
        experiment.keep(stem, rows_of(name, found), figures, options, summary=summary(found))


if __name__ == "__main__":
    main()
