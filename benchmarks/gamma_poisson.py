"""Gamma-Poisson compared with hpfrec: held-out log-likelihood, and seconds to reach it.

Every count is split at random: four fifths of it are fitted, and one fifth is held out. The
held-out counts are scored over all pairs of sample and feature, not only the nonzero ones, by one
function: ``sum x log mu - mu - log x!``, with expected counts mu scaled to the held-out share. The
programs run in turn in this process, each after a fit of a few rows; a time is the median over the
repeats. Seconds of this package include the fit that it starts from. Both programs use the default
priors of hpfrec. Poisson NMF is included with its expected counts raised to a floor. Without a
floor, an expected count of zero where a count was held out makes the log-likelihood infinite.

    python benchmarks/gamma_poisson.py                 pbmc_facs
    python benchmarks/gamma_poisson.py --smoke         a few seconds, writes nothing

Writes results/gamma_poisson.csv, results/gamma_poisson.png and the table in README.md. hpfrec is
skipped if it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import problems
import report
import scipy.sparse as sp
from scipy.special import gammaln

MARKERS = ("<!-- gamma-poisson:start -->", "<!-- gamma-poisson:end -->")
HELD = 0.2
FLOORS = (1e-12, 1e-6, 1e-4)
# Priors of hpfrec: shapes of loadings, factors and rates, and mean of the rates.
PRIORS = {"shape_loadings": 0.3, "shape_factors": 0.3, "shape_rates": 0.3, "mean_rates": 1.0}


def split(X, seed: int):
    """Return counts to fit and counts to hold out."""
    data = X.data.astype(np.int64)
    held = np.random.default_rng(seed).binomial(data, HELD)
    parts = []
    for values in (data - held, held):
        part = sp.csr_matrix((values, X.indices.copy(), X.indptr.copy()), shape=X.shape)
        part.eliminate_zeros()
        parts.append(part)
    return parts


def held_out(X, L, F, floor: float = 0.0) -> float:
    """Return the log-likelihood per held-out count, given L and F of the fitted counts."""
    L, F, total, expected = np.float64(L), np.float64(F) * HELD / (1 - HELD), 0.0, 0.0
    for first in range(0, X.shape[0], 256):
        mu = np.maximum(L[first : first + 256] @ F.T, floor)
        part = X[first : first + 256].tocoo()
        at = np.maximum(mu[part.row, part.col], 1e-300)
        total += float(part.data @ np.log(at) - gammaln(part.data + 1.0).sum())
        expected += float(mu.sum())
    return (total - expected) / X.sum()


def ours(X, K: int, n_iter: int, threads: int, seed: int):
    """Fit the hierarchical model of this package; with 0 iterations, until convergence."""
    import nmfscale

    stop = {"max_iter": n_iter, "tol": 0} if n_iter else {}
    model = nmfscale.GammaPoisson(
        K, hierarchical=True, **PRIORS, n_threads=threads, random_state=seed, **stop
    ).fit(X)
    return model.loadings_, model.components_.T


def poisson(X, K: int, n_iter: int, threads: int, seed: int):
    """Fit a Poisson NMF until convergence."""
    import nmfscale

    model = nmfscale.PoissonNMF(K, n_threads=threads, random_state=seed).fit(X)
    return model.loadings_, model.components_.T


def hpfrec(X, K: int, n_iter: int, threads: int, seed: int):
    """Fit hpfrec for a number of iterations."""
    from hpfrec import HPF

    model = HPF(
        K, ncores=threads, stop_crit="maxiter", maxiter=n_iter, check_every=n_iter, reindex=False,
        verbose=False, random_seed=seed, keep_all_objs=False, produce_dicts=False,
    )  # fmt: skip
    model.fit(X.tocoo())
    L, F = np.zeros((X.shape[0], K)), np.zeros((X.shape[1], K))
    L[: len(model.Theta)], F[: len(model.Beta)] = model.Theta, model.Beta
    return L, F


PROGRAMS = {"nmfscale": ours, "Poisson NMF": poisson, "hpfrec": hpfrec}


def measure(name: str, X, K: int, fits: list[tuple[str, int]], options) -> list[dict]:
    """Fit with every program in turn; return one row for each, or for each floor."""
    seen, held = split(X, options.seed)
    found: dict[tuple[str, int, float], list[tuple[float, float]]] = {}
    few = seen[:50][:, : max(50, int(seen[:50].indices.max()) + 1)]
    for program in {program for program, _ in fits}:  # warm-up of imports and threads
        PROGRAMS[program](few, 2, 2, options.threads, options.seed)
    for turn in range(max(options.repeats, options.peer_repeats)):
        for program, n_iter in fits:
            if turn >= (options.peer_repeats if program == "hpfrec" else options.repeats):
                continue
            begun = time.perf_counter()
            L, F = PROGRAMS[program](seen, K, n_iter, options.threads, options.seed)
            seconds = time.perf_counter() - begun
            for floor in FLOORS if program == "Poisson NMF" else (0.0,):
                value = held_out(held, L, F, floor)
                found.setdefault((program, n_iter, floor), []).append((seconds, value))
                print(name, program, n_iter, floor, f"{seconds:.2f} s {value:.5f}", flush=True)
    return [
        {
            "problem": name, "K": K, "program": program, "iterations": n_iter or "converged",
            "floor": floor or "", "seconds": float(np.median([run[0] for run in runs])),
            "held_out": runs[0][1], "turns": len(runs), "threads": options.threads,
        }
        for (program, n_iter, floor), runs in found.items()
    ]  # fmt: skip


def compare(rows: list[dict]) -> list[dict]:
    """Add to every fit of hpfrec the seconds until this package exceeded it."""
    for row in rows:
        above = [
            ours["seconds"]
            for ours in rows
            if ours["program"] == "nmfscale" and ours["held_out"] >= row["held_out"]
        ]
        peer = row["program"] == "hpfrec"
        row["seconds_nmfscale"] = min(above, default=float("nan")) if peer else float("nan")
        row["times_faster"] = row["seconds"] / row["seconds_nmfscale"]
    return rows


def draw(rows: list[dict], path: Path) -> None:
    """Plot the held-out log-likelihood against seconds, one panel per problem."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["problem"] for row in rows))
    figure = Figure(figsize=(4.6 * len(names), 3.6), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for ax, name in zip(axes, names, strict=True):
        here = [row for row in rows if row["problem"] == name]
        labels = {}
        for row in here:
            label = row["program"] + (f", floor {row['floor']:g}" if row["floor"] else "")
            labels.setdefault(label, []).append((row["seconds"], row["held_out"]))
        for label, points in labels.items():
            ax.semilogx(*np.array(sorted(points)).T, "o-", label=label)
        ax.set(title=f"{name}, K = {here[0]['K']}", xlabel="seconds, including the start")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("held-out log-likelihood per count")
    axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


def markdown(rows: list[dict], picture: str) -> str:
    """Return the picture, the table and a description of the machine."""
    heads = ("problem, K", "program", "iterations", "floor", "s", "held-out, per count",
             "nmfscale is above after s", "times faster")  # fmt: skip
    table: list[tuple[str, ...]] = [heads, ("---",) * len(heads)]
    for row in rows:
        table.append((
            f"{row['problem']}, {row['K']}", row["program"], str(row["iterations"]),
            f"{row['floor']:g}" if row["floor"] else "", f"{row['seconds']:.2f}",
            f"{row['held_out']:.5f}", report.cell(row["seconds_nmfscale"], ".2f"),
            report.cell(row["times_faster"], ".0f"),
        ))  # fmt: skip
    installed = [n for n in ("nmfscale", "hpfrec") if n in {row["program"] for row in rows}]
    command = report.command()
    return "\n".join([
        f"![held-out log-likelihood against seconds]({picture})", "",
        *("| " + " | ".join(cells) + " |" for cells in table), "",
        f"{report.processor_and_threads(rows[0]['threads'])}; "
        f"{', '.join(f'{name} {version(name)}' for name in installed)}. `{command}`",
    ])  # fmt: skip


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", default=["pbmc_facs"])
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--iterations", type=int, nargs="+", default=[1, 10, 50], help="0: all")
    parser.add_argument("--peer-iterations", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.problems, options.k, options.peer_iterations = ["simulated-small"], 4, [5]
        options.repeats = options.peer_repeats = 1
    fits = [("nmfscale", n_iter) for n_iter in options.iterations] + [("Poisson NMF", 0)]
    if importlib.util.find_spec("hpfrec") is None:
        print("hpfrec: skipped, it is not installed")
    else:
        fits += [("hpfrec", n_iter) for n_iter in options.peer_iterations]
    rows = []
    for name in options.problems:
        if reason := problems.available(name):
            print(reason)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows += compare(measure(name, problems.load_counts(name), options.k, fits, options))
    table = markdown(rows, "results/gamma_poisson.png") if rows else ""
    print(table)
    if rows and not options.smoke:
        report.write_csv(options.results / "gamma_poisson.csv", rows)
        draw(rows, options.results / "gamma_poisson.png")
        if options.results == report.HERE / "results":
            report.write_readme(table, MARKERS)


if __name__ == "__main__":
    main()
