"""LDA compared with scikit-learn and gensim: evidence lower bound (ELBO), and seconds to reach it.

All programs fit in batch mode, with alpha = eta = 1 / K. Their topics are evaluated by one
function: samples are inferred from gamma = 1 until convergence, and then the ELBO of all counts is
computed. The programs run in turn in this process, with the same number of threads (gensim has
one), each after a fit of a few rows; a time is the median over the repeats. Seconds of this package
include the fit that it starts from.

    python benchmarks/lda.py                          neurips and newsgroups
    python benchmarks/lda.py --problems neurips --peer-iterations 10 --peer-repeats 1
    python benchmarks/lda.py --smoke                  a few seconds, writes nothing

Writes results/lda.csv, results/lda.png and the table in README.md. Programs that are not installed
are skipped.
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

MARKERS = ("<!-- lda:start -->", "<!-- lda:end -->")


def elbo_of(X, topics, threads: int) -> float:
    """Return the ELBO at parameters lambda (K, m), with optimal gamma and phi."""
    from nmfscale.methods.variational.lda import dirichlet_inference
    from nmfscale.readers.open import as_counts

    K = len(topics)
    inference = dirichlet_inference(
        as_counts(X), np.float64(topics.T), np.full(K, 1 / K), 1 / K, n_steps=5000, tolerance=1e-6,
        n_threads=threads,
    )  # fmt: skip
    return inference.elbo() + inference.of_topics


def ours(X, K: int, n_iter: int, threads: int, seed: int):
    """Fit the LDA of this package; with 0 iterations, until convergence."""
    import nmfscale

    stop = {"max_iter": n_iter, "tol": 0} if n_iter else {}
    model = nmfscale.LDA(
        K, estimate_prior="none", n_threads=threads, random_state=seed, **stop
    ).fit(X)  # fmt: skip
    return model.topic_word_posterior_, model.n_iter_


def scikit_learn(X, K: int, n_iter: int, threads: int, seed: int):
    """Fit scikit-learn's LDA for a number of iterations."""
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(
        K, max_iter=n_iter, learning_method="batch", random_state=seed,
        n_jobs=threads if threads > 1 else None,
    ).fit(X)  # fmt: skip
    return model.components_, n_iter


def gensim(X, K: int, n_iter: int, threads: int, seed: int):
    """Fit gensim's LDA for a number of passes."""
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaModel

    corpus = Sparse2Corpus(X, documents_columns=False)
    model = LdaModel(
        corpus, K, id2word={j: str(j) for j in range(X.shape[1])}, update_every=0, passes=n_iter,
        alpha="symmetric", eta=1 / K, random_state=seed, eval_every=None,
    )  # fmt: skip
    return model.state.get_lambda(), n_iter


PROGRAMS = {"nmfscale": ours, "scikit-learn": scikit_learn, "gensim": gensim}
MODULES = {"scikit-learn": "sklearn"}


def measure(name: str, X, K: int, fits: list[tuple[str, int]], options) -> list[dict]:
    """Fit with every program in turn; return one row for each, with median seconds."""
    found: dict[tuple[str, int], list[tuple[float, float, int]]] = {each: [] for each in fits}
    for program in {program for program, _ in fits}:  # warm-up of imports and threads
        PROGRAMS[program](X[:50], K, 2, options.threads, options.seed)
    for turn in range(max(options.repeats, options.peer_repeats)):
        for program, n_iter in fits:
            own = program == "nmfscale"
            if turn >= (options.repeats if own else options.peer_repeats):
                continue
            begun = time.perf_counter()
            topics, done = PROGRAMS[program](X, K, n_iter, options.threads, options.seed)
            seconds = time.perf_counter() - begun
            found[program, n_iter].append((seconds, elbo_of(X, topics, options.threads), done))
            print(name, program, n_iter, f"{seconds:.2f} s", f"{found[program, n_iter][-1][1]:.1f}",
                  flush=True)  # fmt: skip
    return [
        {
            "problem": name, "K": K, "program": program, "iterations": int(runs[0][2]),
            "until_converged": program == "nmfscale" and n_iter == 0,
            "seconds": float(np.median([run[0] for run in runs])), "elbo": runs[0][1],
            "turns": len(runs), "threads": options.threads,
        }
        for (program, n_iter), runs in found.items()
    ]  # fmt: skip


def compare(rows: list[dict]) -> list[dict]:
    """Add to every fit of a peer the seconds until this package had a higher ELBO."""
    for row in rows:
        above = [
            ours["seconds"]
            for ours in rows
            if ours["program"] == "nmfscale" and ours["elbo"] >= row["elbo"]
        ]
        others = row["program"] != "nmfscale"
        row["seconds_nmfscale"] = min(above, default=float("nan")) if others else float("nan")
        row["times_faster"] = row["seconds"] / row["seconds_nmfscale"]
    return rows


def draw(rows: list[dict], path: Path) -> None:
    """Plot the difference from the best ELBO against seconds, one panel per problem."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["problem"] for row in rows))
    figure = Figure(figsize=(4.6 * len(names), 3.6), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for ax, name in zip(axes, names, strict=True):
        here = [row for row in rows if row["problem"] == name]
        best = max(row["elbo"] for row in here)
        for program in dict.fromkeys(row["program"] for row in here):
            points = sorted(
                (r["seconds"], best - r["elbo"]) for r in here if r["program"] == program
            )
            seconds, missing = np.array(points).T
            ax.loglog(seconds, missing + 10, "o-", label=program)
        ax.set(title=f"{name}, K = {here[0]['K']}", xlabel="seconds, including the start")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("difference from the best ELBO + 10")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def markdown(rows: list[dict], picture: str) -> str:
    """Return the picture, the table and a description of the machine."""
    heads = ("problem, K", "program", "iterations", "s", "ELBO", "nmfscale is above after s",
             "times faster")  # fmt: skip
    table: list[tuple[str, ...]] = [heads, ("---",) * len(heads)]
    for row in rows:
        table.append((
            f"{row['problem']}, {row['K']}", row["program"],
            f"{row['iterations']}{' (converged)' if row['until_converged'] else ''}",
            f"{row['seconds']:.2f}", f"{row['elbo']:,.0f}",
            report.cell(row["seconds_nmfscale"], ".2f"), report.cell(row["times_faster"], ".0f"),
        ))  # fmt: skip
    programs = dict.fromkeys(row["program"] for row in rows)
    turns = ", ".join(f"{row['program']}: {row['turns']}" for row in {
        row["program"]: row for row in rows
    }.values())  # fmt: skip
    command = report.command()
    return "\n".join([
        f"![ELBO against seconds]({picture})", "",
        *("| " + " | ".join(cells) + " |" for cells in table), "",
        f"{report.processor_and_threads(rows[0]['threads'])}; "
        f"{', '.join(f'{name} {version(name)}' for name in programs)}. "
        f"Medians over repeats ({turns}). `{command}`",
    ])  # fmt: skip


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", default=["neurips", "newsgroups"])
    parser.add_argument("--iterations", type=int, nargs="+", default=[1, 10, 0], help="0: all")
    parser.add_argument("--peer-iterations", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.problems, options.peer_iterations = ["simulated-small"], [5]
        options.repeats = options.peer_repeats = 1
    fits = []
    for program in PROGRAMS:
        if importlib.util.find_spec(MODULES.get(program, program)) is None:
            print(f"{program}: skipped, it is not installed")
            continue
        own = options.iterations if program == "nmfscale" else options.peer_iterations
        fits += [(program, n_iter) for n_iter in own]
    rows = []
    for name in options.problems:
        if reason := problems.available(name):
            print(reason)
            continue
        X, K = problems.load_counts(name), problems.SIMULATED.get(name, (0, 0, 10))[2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows += compare(measure(name, X, K, fits, options))
    table = markdown(rows, "results/lda.png") if rows else ""
    print(table)
    if rows and not options.smoke:
        report.write_csv(options.results / "lda.csv", rows)
        draw(rows, options.results / "lda.png")
        if options.results == report.HERE / "results":
            report.write_readme(table, MARKERS)


if __name__ == "__main__":
    main()
