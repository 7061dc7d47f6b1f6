"""Starts of topic models of texts: coherence of topics and log-likelihood at the end, and seconds.

    python benchmarks/text_starts.py                         newsgroups, neurips, poliblog5k
    python benchmarks/text_starts.py --topics 20 --seeds 5
    python benchmarks/text_starts.py --smoke                 a few seconds, writes nothing

Newsgroups are the training texts of short_topics.py. Coherence is the mean NPMI of the 10 leading
words of each topic in the documents of the fit. Writes results/text_starts.csv and the table in
README.md.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import problems
import report
import scipy.sparse as sp
import short_topics

MARKERS = ("<!-- text starts:start -->", "<!-- text starts:end -->")
STARTS = "topic-score", "nndsvd", "clusters", "random"


def documents(name: str) -> sp.csr_array:
    """Return the counts of a corpus, without empty documents."""
    if name == "newsgroups":
        found, *_ = short_topics.newsgroup_pieces(np.random.default_rng(1))
    elif name == "docstrings-small":
        found = problems.load_counts(name)
    else:
        found = sp.load_npz(Path(os.environ["NMFSCALE_DATA"], f"{name}.npz"))
    found = sp.csr_array(found)
    return found[found.sum(axis=1) > 0]


def measure(name: str, options) -> list[dict]:
    """Return a row for each number of topics, start and seed."""
    import nmfscale

    X, rows = documents(name), []
    for K in options.topics:
        for seed in range(options.seeds):
            for init in STARTS:
                model = nmfscale.TopicModel(
                    K, init=init, random_state=seed, n_threads=1, max_iter=options.max_iter
                )
                begun = time.process_time()
                model.fit(X)
                seconds = time.process_time() - begun
                npmi, distinct = short_topics.quality(model.components_, X)
                rows.append({
                    "corpus": name, "K": K, "init": init, "seed": seed, "loglik": model.loglik_,
                    "npmi": npmi, "distinct": distinct, "iterations": model.n_iter_,
                    "converged": model.converged_, "seconds": seconds,
                })  # fmt: skip
                print(*rows[-1].values(), flush=True)
    return rows


def markdown(rows: list[dict]) -> str:
    """Return the table of means over seeds, with standard deviations of NPMI, and the command."""
    table = []
    for corpus, K in dict.fromkeys((row["corpus"], row["K"]) for row in rows):
        here = [row for row in rows if (row["corpus"], row["K"]) == (corpus, K)]
        of = {
            (init, each): np.array([row[each] for row in here if row["init"] == init], float)
            for init in STARTS
            for each in ("loglik", "npmi", "distinct", "iterations", "seconds")
        }
        best = max(of[init, "loglik"].mean() for init in STARTS)
        for init in STARTS:
            npmi = of[init, "npmi"]
            loglik = of[init, "loglik"].mean() - best
            table.append({
                "corpus": corpus, "K": K, "start": init,
                "log-likelihood, difference to the best mean": f"{loglik:+,.0f}",
                "NPMI": f"{npmi.mean():.3f} ({npmi.std():.3f})",
                "distinct words": f"{of[init, 'distinct'].mean():.2f}",
                "iterations": f"{of[init, 'iterations'].mean():.0f}",
                "seconds": f"{of[init, 'seconds'].mean():.1f}",
            })  # fmt: skip
    n_seeds = len({row["seed"] for row in rows})
    said = f"Means of {n_seeds} seeds (standard deviation), 1 thread. `{report.command()}`"
    return "\n".join([report.table(table), "", said])


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", default=["newsgroups", "neurips", "poliblog5k"])
    parser.add_argument("--topics", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-iter", type=int, default=1000)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.problems, options.topics, options.seeds = ["docstrings-small"], [4], 1
        options.max_iter = 20
    elif "NMFSCALE_DATA" not in os.environ:
        print("skipped: NMFSCALE_DATA is not set")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [row for name in options.problems for row in measure(name, options)]
    table = markdown(rows)
    print(table)
    if not options.smoke:
        report.write_csv(options.results / "text_starts.csv", rows)
        if options.results == report.HERE / "results":
            report.write_readme(table, MARKERS)


if __name__ == "__main__":
    main()
