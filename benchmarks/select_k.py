"""Choice of the number of topics: simulated counts of known truth, real counts, and seconds.

    python benchmarks/select_k.py            all parts; the last three need NMFSCALE_DATA
    python benchmarks/select_k.py --smoke    small problems, writes nothing

Part "truth": the recommended number of topics for twelve sets of simulated counts, and for sets
that vary more than Poisson counts, by five splits and by each of them alone, from one below the
truth to two above; and the number from 2 to 12 with the lowest perplexity of scikit-learn's LDA for
held-out documents, for counts with a dispersion below 0.1. Part "real": the recommendation for
cells and texts. Part "seeds": those of several seeds for all cells of pbmc_facs, and for 1,000 of
them. Part "speed": processor seconds and iterations of the fits with K = 2 to 12 to both halves of
pbmc_facs, and the iterations after which the objective is near its end: a start so close saves no
more than these.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import report
import scipy.sparse as sp
from numpy.random import SeedSequence
from quality import counts_of
from sklearn.decomposition import LatentDirichletAllocation

from nmfscale import TopicModel, as_counts, select_k
from nmfscale.datasets import simulate_topic_counts
from nmfscale.inference.replicates.folds import Folds

# Distances from the end of a fit.
NEAR = 500, 20


def overdispersed(dispersion: float, seed: int, K: int = 5, size: float = 6.2) -> sp.csr_array:
    """Return counts of K topics; rates vary by Gamma variables of mean 1."""
    rng = np.random.default_rng(seed)
    L = rng.dirichlet(np.full(K, 0.2), 300) * rng.lognormal(size, 0.4, (300, 1))
    rates = L @ rng.dirichlet(np.full(200, 0.1), K)
    if dispersion:
        rates *= rng.gamma(1 / dispersion, dispersion, rates.shape)
    return sp.csr_array(rng.poisson(rates))


def sets(smoke: bool) -> list[tuple[str, int, object, dict]]:
    """Return name, true number of topics, counts and parameters of the estimator of each set."""
    simulated = [
        (f"simulate_topic_counts, seed {seed}", K, simulate_topic_counts(
            300, 200, K, size=500.0, random_state=seed
        )[0], {})
        for K in (4, 8) for seed in range(3)
    ]  # fmt: skip
    varying = [
        (f"dispersion {d:g}, seed {seed}", 5, overdispersed(d, seed), {}) for d, seed in
        ((0, 0), (0.1, 0), (0.2, 0), (0.5, 0), (0.5, 1), (0.5, 2), (1, 0))
    ]  # fmt: skip
    varying += [
        (f"dispersion 0.3, seed {seed}", 8, overdispersed(0.3, seed, 8), {}) for seed in range(2)
    ]
    varying += [
        (f"dispersion {d:g}, sixfold counts", 5, overdispersed(d, 0, size=8), {})
        for d in (0.1, 0.5)
    ]
    if smoke:
        return simulated[:1]
    paper = []
    if folder := os.environ.get("NMFSCALE_DATA"):
        for name in ("sim_ctm_a", "sim_ctm_b"):
            X = sp.load_npz(Path(folder) / f"{name}.npz").tocsr()
            paper += [(name, 6, X, {}), (f"{name}, prior 1.01", 6, X, {"prior_factors": 1.01})]
    return paper + simulated + varying


def find_numbers(smoke: bool) -> list[dict]:
    """Return a row for each set of simulated counts."""
    rows = []
    for name, truth, X, options in sets(smoke):
        estimator = TopicModel(**{"prior_factors": 1.1, "tol": 1e-3} | options)
        numbers = range(truth - 1, truth + 3)
        how = {"random_state": 0, "n_threads": 1}
        begin = time.process_time()
        found = select_k(estimator, X, numbers, **how)
        seconds = time.process_time() - begin
        begin = time.process_time()
        peer = lowest_perplexity(X, range(2, 6 if smoke else 13)) if is_poisson(found) else ""
        rows.append({
            "counts": name, "truth": truth, "dispersion": round(found.excess_variance[0], 3),
            "held out": found.held_out, "recommended": found.best,
            "highest score": int(found.n_components[found.score.argmax()]),
            "similarity there": similarity_at(found, found.best),
            "one above": similarity_at(found, (found.best or 0) + 1),
            "single splits": choices_of(found), "seconds": round(seconds, 1),
            "LDA of scikit-learn": peer,
            "its seconds": "" if peer == "" else round(time.process_time() - begin, 1),
        })  # fmt: skip
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def is_poisson(found: object) -> bool:
    """Whether counts vary little more than Poisson counts, for which LDA is made."""
    return abs(found.excess_variance[0]) < 0.1


def choices_of(found: object) -> str:
    """Return the numbers that single splits recommend, and by how many of them."""
    numbers, times = np.unique(found.chosen, return_counts=True)
    return ", ".join(
        f"{number or 'none'} ({n})"
        for number, n in sorted(zip(numbers, times, strict=True), key=lambda pair: -pair[1])
    )


def similarity_at(found: object, number: int | None) -> str:
    """Return the smallest similarity of matched topics."""
    least = dict(zip(found.n_components.tolist(), found.least_stability, strict=True))
    return f"{least[number]:.2f}" if number in least else ""


def lowest_perplexity(X: sp.csr_array, numbers: range) -> int:
    """Return the number of topics with the lowest perplexity of held-out documents."""
    half = np.random.default_rng(0).permutation(X.shape[0])
    train, test = X[half[::2]], X[half[1::2]]
    scores = [
        LatentDirichletAllocation(k, random_state=0).fit(train).perplexity(test) for k in numbers
    ]
    return int(numbers[int(np.argmin(scores))])


def real_numbers() -> list[dict]:
    """Return a row for each real set of counts; texts are represented by random documents."""
    rows = []
    for name, n_rows in (("pbmc_facs", None), ("neurips", 700), ("newsgroups", 2500)):
        X = counts_of(name, n_rows)
        begin = time.process_time()
        estimator = TopicModel(prior_factors=1.1, tol=1e-3)
        found = select_k(estimator, X, range(2, 13), random_state=0, n_threads=1)
        rows.append({
            "counts": name, "samples": f"{X.shape[0]:,}", "features": f"{X.shape[1]:,}",
            "dispersion": round(found.excess_variance[0], 2), "held out": found.held_out,
            "recommended": "none" if found.best is None else found.best,
            "highest score": int(found.n_components[found.score.argmax()]),
            "similarity there": similarity_at(found, found.best),
            "found again of 12": int(found.n_stable[-1]),
            "seconds": round(time.process_time() - begin, 1),
        })  # fmt: skip
        print(found, flush=True)
    return rows


def cells_of(n_samples: int | None) -> sp.csr_array:
    """Return all cells of pbmc_facs, or some of them with the genes that occur in 20 or more."""
    X = sp.csr_array(counts_of("pbmc_facs", None))
    if n_samples is not None:
        chosen = np.random.default_rng(0).choice(X.shape[0], n_samples, replace=False)
        X = X[np.sort(chosen)]
        X = X[:, np.bincount(X.indices, minlength=X.shape[1]) >= 20]
    return X


def numbers_of_seeds(n_samples: int | None, seeds: range) -> list[dict]:
    """Return a row for each seed: the recommendation, and what single splits recommend."""
    rows = []
    X, estimator = cells_of(n_samples), TopicModel(prior_factors=1.1, tol=1e-3)
    for seed in seeds:
        begin = time.process_time()
        numbers = range(3, 9) if n_samples is None else range(2, 8)
        found = select_k(estimator, X, numbers, held_out="samples", random_state=seed, n_threads=1)
        rows.append({
            "cells": f"{X.shape[0]:,}", "genes": f"{X.shape[1]:,}", "seed": seed,
            "recommended": "none" if found.best is None else found.best,
            "single splits": choices_of(found),
            "similarity there": similarity_at(found, found.best),
            "one above": similarity_at(found, (found.best or 0) + 1),
            "seconds": round(time.process_time() - begin, 1),
        })  # fmt: skip
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def time_fits(X: sp.csr_array, numbers: range) -> list[dict]:
    """Return a row for each number of topics: fits to both halves of the counts."""
    folds = Folds(as_counts(X), 2, SeedSequence(0), None)
    rows = []
    for K in numbers:
        seconds, iterations = 0.0, np.zeros(1 + len(NEAR), int)
        for half in range(2):
            model = TopicModel(K, prior_factors=1.1, tol=1e-3, random_state=0, n_threads=1)
            begin = time.process_time()
            model.fit(folds.fold(half).train)
            seconds += time.process_time() - begin
            values = model.history_[model.history_.dtype.names[2]]
            near = [int(np.argmax(values >= values[-1] - gap)) for gap in NEAR]
            iterations += [model.n_iter_, *(model.n_iter_ - each for each in near)]
        rows.append({"K": K, "seconds": round(seconds, 2), "iterations": int(iterations[0])} | {
            f"from {gap} below the end": int(n)
            for gap, n in zip(NEAR, iterations[1:], strict=True)
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def write(rows: list[dict], part: str, folder: Path) -> None:
    """Write the rows of a part to its table, and those of two parts to README.md."""
    report.write_csv(folder / f"select_k_{part}.csv", rows)
    if folder == report.HERE / "results" and part != "real":
        markers = f"<!-- select_k {part}:start -->", f"<!-- select_k {part}:end -->"
        report.write_readme(report.table(rows), markers)


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="small problems, write nothing")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parts = "truth", "real", "seeds", "speed"
    parser.add_argument("--part", choices=parts, action="append", help="default: all")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen, folder = arguments.part or parts, os.environ.get("NMFSCALE_DATA")
    tables = {}
    if "truth" in chosen:
        tables["truth"] = rows = find_numbers(arguments.smoke)
        right = [row["recommended"] == row["truth"] for row in rows]
        print(f"right: {sum(right)} of {len(right)}")
    if "real" in chosen and folder and not arguments.smoke:
        tables["real"] = real_numbers()
    if "seeds" in chosen and folder and not arguments.smoke:
        tables["seeds"] = numbers_of_seeds(1000, range(6)) + numbers_of_seeds(None, range(3))
    if "speed" in chosen and arguments.smoke:
        time_fits(simulate_topic_counts(100, 60, 3, random_state=0)[0], range(2, 4))
    elif "speed" in chosen and folder:
        X = sp.csr_array(sp.load_npz(Path(folder) / "pbmc_facs.npz"))
        tables["speed"] = time_fits(X, range(2, 13))
    if not arguments.smoke:
        for part, rows in tables.items():
            write(rows, part, arguments.results)


if __name__ == "__main__":
    main()
