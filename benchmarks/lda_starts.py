"""LDA from a fitted topic model compared with LDA from EM of the same duration: ELBO over time.

As in section 4 of Carbonetto et al., every run begins with a random start and 50 EM iterations,
which are not counted. Then the topic model is fitted by the default method until convergence, or EM
runs for the same number of seconds. From the result of each, variational EM is run with point
estimates of the topics and a uniform prior of the proportions, without momentum as in the paper,
and with it. Counts are arranged beforehand, and seconds include the fit or EM.

    python benchmarks/lda_starts.py                          the paper's A and B, three real ones
    python benchmarks/lda_starts.py --problems neurips --starts 1
    python benchmarks/lda_starts.py --smoke                  a few seconds, writes nothing

Writes results/lda_starts.csv, results/lda_starts.png and the table in README.md.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import problems
import report

MARKERS = ("<!-- lda starts:start -->", "<!-- lda starts:end -->")
COLOURS = {"topic model": "tab:blue", "EM": "tab:red"}
SHOWN = (1, 10, 100)  # iterations of LDA in the table


def timed_fit(counts, L, F, **options) -> tuple[float, object]:
    """Fit a topic model from given factors; return the seconds and the model."""
    import nmfscale

    begun = time.perf_counter()
    model = nmfscale.TopicModel(L.shape[1], **options).fit(counts, L=L, F=F)
    return time.perf_counter() - begun, model


def topic_models(counts, L, F, threads: int) -> dict[str, tuple[float, object]]:
    """Fit by the default method, then by EM for the same time; return seconds and models."""
    fitted = timed_fit(counts, L, F, n_threads=threads)
    begun = time.perf_counter()
    em = timed_fit(
        counts, L, F, n_threads=threads, solver="em", extrapolate=False, tol=0, max_iter=1_000_000,
        callback=lambda record: time.perf_counter() - begun >= fitted[0],
    )  # fmt: skip
    return {"topic model": fitted, "EM": em}


def lda_from(model, counts, momentum: bool, n_iter: int, threads: int) -> np.ndarray:
    """Run LDA from a topic model; return its history."""
    import nmfscale

    gamma = 1 + model.loadings_ * counts.row_totals[:, None]
    lda = nmfscale.LDA(
        model.n_components, doc_topic_prior=1.0, topic_word_prior=0.0, extrapolate=momentum,
        max_iter=n_iter, tol=0, n_threads=threads,
    )  # fmt: skip
    lda.fit(counts, topic_word_posterior=model.components_, doc_topic_posterior=gamma)
    return lda.history_


def measure(name: str, K: int, options) -> list[dict]:
    """Run LDA from both models of every start, with and without momentum; return the curves."""
    from nmfscale import as_counts

    X, curves = problems.load_counts(name), []
    counts = as_counts(X)
    counts.layout()
    for seed in range(1, options.starts + 1):
        L, F = problems.em_start(counts, K, seed=seed)
        fits = topic_models(counts, L, F, options.threads)
        for momentum in (False, True):
            for start, (seconds, model) in fits.items():
                history = lda_from(model, counts, momentum, options.iterations, options.threads)
                curves.append({
                    "problem": name, "K": K, "seed": seed, "start": start, "momentum": momentum,
                    "start_seconds": seconds, "start_iterations": model.n_iter_,
                    "start_loglik": model.loglik_, "seconds": seconds + history["seconds"],
                    "elbo": history["elbo"],
                })  # fmt: skip
                print(name, seed, start, "with" if momentum else "without", "momentum",
                      f"{seconds:.2f} s", f"{history['elbo'][-1]:.1f}", flush=True)  # fmt: skip
    return curves


def table_rows(curves: list[dict]) -> list[dict]:
    """Return the points of the curves that are written to the file."""
    rows = []
    for curve in curves:
        known = {name: value for name, value in curve.items() if name not in ("seconds", "elbo")}
        for i in SHOWN:
            if i <= len(curve["elbo"]):
                point = {"iteration": i, "seconds": float(curve["seconds"][i - 1])}
                rows.append(known | point | {"elbo": float(curve["elbo"][i - 1])})
    return rows


def draw(curves: list[dict], path: Path) -> None:
    """Plot the difference from the best ELBO of the same start, one panel per problem."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(curve["problem"] for curve in curves))
    n_rows = -(-(len(names) + 1) // 3)  # the legend has its own panel
    figure = Figure(figsize=(11, 3.3 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, 3, squeeze=False).ravel()
    for ax, name in zip(axes, names, strict=False):
        here = [curve for curve in curves if curve["problem"] == name]
        for curve in here:
            best = max(c["elbo"].max() for c in here if c["seed"] == curve["seed"])
            ax.semilogy(
                curve["seconds"], np.maximum(best - curve["elbo"], 0.1),
                color=COLOURS[curve["start"]], linestyle="-" if curve["momentum"] else "--",
                linewidth=1.2,
            )  # fmt: skip
        ax.set(title=f"{name}, K = {here[0]['K']}", xlabel="seconds, including the fit or EM")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[::3]:
        ax.set_ylabel("difference from the best ELBO\nfrom the same start")
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    for start, colour in COLOURS.items():
        label = f"LDA from {'a fitted ' if start != 'EM' else 'the same seconds of '}{start}"
        axes[len(names)].plot([], [], color=colour, label=label)
    for line, label in (("--", "without momentum"), ("-", "with momentum")):
        axes[len(names)].plot([], [], color="grey", linestyle=line, label=label)
    axes[len(names)].legend(frameon=False, loc="center")
    figure.savefig(path, dpi=110)


def markdown(curves: list[dict], options) -> str:
    """Return the picture, and the ELBO of LDA from the fit minus that from EM, by iteration."""
    shown = [i for i in SHOWN if i <= options.iterations]
    heads = ["problem, K", "start", "s of fit and of EM", "iterations", "log-likelihood",
             *(f"ELBO, {i}" for i in shown), "with momentum"]  # fmt: skip
    table = [heads, ["---"] * len(heads)]
    by = {(c["problem"], c["seed"], c["start"], c["momentum"]): c for c in curves}
    for (name, seed, start, momentum), fit in by.items():
        if start == "EM" or momentum:
            continue
        em = by[name, seed, "EM", False]
        ahead = [by[name, seed, start, True]["elbo"][-1] for start in COLOURS]
        table.append([
            f"{name}, {fit['K']}", str(seed), f"{fit['start_seconds']:.2f}, "
            f"{em['start_seconds']:.2f}", f"{fit['start_iterations']}, {em['start_iterations']}",
            f"{fit['start_loglik'] - em['start_loglik']:+,.1f}",
            *(f"{fit['elbo'][i - 1] - em['elbo'][i - 1]:+,.1f}" for i in shown),
            f"{ahead[0] - ahead[1]:+,.1f}",
        ])  # fmt: skip
    command = report.command()
    return "\n".join([
        "![LDA from a fit and from EM](results/lda_starts.png)", "",
        *("| " + " | ".join(cells) + " |" for cells in table), "",
        f"LDA from the fit minus LDA from EM, by iterations of LDA; the last column is after "
        f"{options.iterations}. "
        f"{report.processor_and_threads(options.threads)}. `{command}`",
    ])  # fmt: skip


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {"sim_ctm_a": 6, "sim_ctm_b": 6} | {name: k for name, (k, _) in problems.REAL.items()}
    parser.add_argument("--problems", nargs="+", default=list(known))
    parser.add_argument("--starts", type=int, default=3, help="random starts")
    parser.add_argument("--iterations", type=int, default=100, help="of LDA")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.problems, options.starts, options.iterations = ["simulated-small"], 1, 10
    curves: list[dict] = []
    for name in options.problems:
        if reason := problems.available(name):
            print(reason)
            continue
        K = known.get(name) or problems.SIMULATED.get(name, (0, 0, 10))[2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            curves += measure(name, K, options)
    if not curves:
        return
    table = markdown(curves, options)
    print(table)
    if not options.smoke:
        report.write_csv(options.results / "lda_starts.csv", table_rows(curves))
        draw(curves, options.results / "lda_starts.png")
        if options.results == report.HERE / "results":
            report.write_readme(table, MARKERS)


if __name__ == "__main__":
    main()
