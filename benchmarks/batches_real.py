"""Batches of real counts: two chemistries of blood cells, runs of sorted cells, blogs, regions.

- Blood cells of two public data sets: sorted cells (first chemistry of 10x Genomics, 3,774 cells),
  and 200 cells of the third chemistry, whose types are read from their antibodies. Types of the
  latter are predicted by a classifier that is trained on the former.
- Sorted cells by run. Each type was a run of its own, so that run and type are confounded.
- Blog posts by blog and reviews of beers by region: which words are words of a source, and how well
  the source is predicted from the topics.

    python benchmarks/batches_real.py               a few minutes; needs NMFSCALE_DATA
    python benchmarks/batches_real.py --smoke       a few seconds, simulated, writes nothing

Writes results/batches_real.csv and the tables in README.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import warnings
from pathlib import Path

import batch_methods
import batches
import h5py
import numpy as np
import problems
import report
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_predict
from threadpoolctl import threadpool_limits

from nmfscale import TopicModel

MARKERS = ("<!-- batches_real:start -->", "<!-- batches_real:end -->")
PROTEIN_FILE = "pbmc_5k_protein_v3_sample.h5ad"
# Types by antibodies, in this order; a cell has the first type whose antibody is high.
ANTIBODIES = {"CD14_TotalSeqB": "CD14+", "CD19_TotalSeqB": "B cell", "CD3_TotalSeqB": "T cell",
              "CD56_TotalSeqB": "NK cell"}  # fmt: skip
LEAST_COUNTS = 100
N_TOPICS = 20
N_TYPES = 6  # topics of cells
Array = np.ndarray


def folder() -> Path:
    """Return the folder of real counts."""
    return Path(os.environ["NMFSCALE_DATA"])


def names_of(problem: str) -> dict[str, Array]:
    """Return the labels of rows and columns of a count matrix."""
    with gzip.open(folder() / f"{problem}_meta.json.gz") as file:
        return {name: np.array(values) for name, values in json.load(file).items()}


def types_by_antibodies(antibodies: Array, names: list[str]) -> Array:
    """Return the type of each cell, "" where no antibody is high."""
    types = np.full(len(antibodies), "", dtype="<U8")
    for name, of_cells in reversed(ANTIBODIES.items()):
        logarithms = np.log1p(antibodies[:, [names.index(name)]])
        mixture = GaussianMixture(2, random_state=0).fit(logarithms)
        high = mixture.predict(logarithms) == mixture.means_[:, 0].argmax()
        types[high] = of_cells
    return types


def two_chemistries() -> tuple[sp.csr_matrix, Array, Array, Array]:
    """Return counts of the common genes, the data set of each cell, its type, and the genes."""
    of_facs = names_of("pbmc_facs")
    with h5py.File(folder() / PROTEIN_FILE) as file:
        X = sp.csr_matrix(file["X"][:].astype(np.int64))
        genes = np.array([name.decode() for name in file["var/index"][:]])
        antibodies = file["obsm/protein_expression"][:]
        names = [name.decode() for name in file["uns/protein_names"][:]]
    common, first, second = np.intersect1d(of_facs["col_symbol"], genes, return_indices=True)
    both = sp.vstack([problems.load_counts("pbmc_facs")[:, first], X[:, second]]).tocsr()
    frequent = both.sum(axis=0).A1 >= LEAST_COUNTS
    types = np.append(of_facs["row_subpop"], types_by_antibodies(antibodies, names))
    chemistry = np.repeat([0, 1], [len(of_facs["row_subpop"]), X.shape[0]])
    return both[:, frequent], chemistry, types, common[frequent]


def majority(clusters: Array, types: Array) -> dict[int, str]:
    """Return the most frequent type of each cluster."""
    names, codes = np.unique(types, return_inverse=True)
    return {
        cluster: str(names[np.bincount(codes[clusters == cluster]).argmax()])
        for cluster in np.unique(clusters).tolist()
    }


def transferred(X: sp.csr_matrix, batch: Array, types: Array, methods: list[str]) -> list[dict]:
    """Return a row for each method: types of the second batch predicted from the first."""
    first, second = batch == 0, (batch == 1) & (types != "")
    rows = []
    for method in methods:
        result = batch_methods.run(method, X, batch, 0)
        model = batches.linear().fit(result.embedding[first], types[first])
        predicted = model.predict(result.embedding[second])
        by_cluster = majority(result.clusters[first], types[first])
        of_clusters = np.array([by_cluster.get(c, "") for c in result.clusters[second].tolist()])
        auc = batches.auc_within(batches.linear(), result.embedding, batch, types)
        rows.append({
            "counts": "two chemistries", "method": method, "cells": int(second.sum()),
            "accuracy by logistic regression": f"{np.mean(predicted == types[second]):.3f}",
            "accuracy by leading topic or cluster": f"{np.mean(of_clusters == types[second]):.3f}",
            "AUC of the chemistry within types": f"{auc:.2f}",
            "shape of the prior": "" if result.shape is None else f"{result.shape:.3g}",
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def of_sources(
    name: str, X: sp.csr_matrix, sources: Array, words: Array, n_topics: int = N_TOPICS
) -> tuple[list[dict], list[dict]]:
    """Return how well topics predict the source, without and with batches, and its words."""
    rows = []
    for batch in (None, sources):
        model = TopicModel(n_topics, random_state=0, n_threads=1, max_iter=300).fit(X, batch=batch)
        logarithms = np.log(np.maximum(model.loadings_, batch_methods.LEAST_PROPORTION))
        classifier = LogisticRegression(max_iter=500)
        predicted = cross_val_predict(classifier, logarithms, sources, cv=3)
        shares = np.array([model.loadings_[sources == s].mean(axis=0) for s in np.unique(sources)])
        shares /= shares.sum(axis=0)
        rows.append({
            "counts": name, "method": "batch=" if batch is not None else "uncorrected",
            "predicts the source": f"{balanced_accuracy_score(sources, predicted):.3f}",
            "topics with 70% of their weight in one source": int((shares.max(axis=0) > 0.7).sum()),
            "shape of the prior": "" if batch is None else f"{model.batch_shape_:.3g}",
        })  # fmt: skip
        print(rows[-1], flush=True)
    of_words = []
    for source, efficiencies in zip(model.batches_, model.batch_efficiencies_, strict=True):
        order = np.argsort(-efficiencies, kind="stable")[:8]
        shown = ", ".join(f"{words[j]} ({efficiencies[j]:.1f})" for j in order)
        of_words.append({"counts": name, "source": str(source), "words (efficiency)": shown})
    return rows, of_words


def of_runs() -> list[dict]:
    """Return how well sorted types are found if their runs are passed as batches."""
    cells = batches.sorted_cells()
    runs = np.unique(cells.types, return_inverse=True)[1]
    rows = []
    for method in ("uncorrected", "batch="):
        result = batch_methods.run(method, cells.X, runs, 0)
        rows.append({
            "counts": "sorted cells by run", "method": method,
            "accuracy of types": f"{batches.accuracy(result.embedding, cells.types):.3f}",
            "shape of the prior": "" if result.shape is None else f"{result.shape:.3g}",
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def smoke() -> None:
    """Run all steps on simulated counts."""
    drawn = batches.artificial(
        batches.simulated_cells(np.random.default_rng(0), n=150), "balanced", 0.5, 0
    )
    X, types = drawn.cells.X, drawn.cells.types
    rows = transferred(X, drawn.batch, types, ["uncorrected", "batch="])
    names = np.array([f"word {j}" for j in range(X.shape[1])])
    of_topics, of_words = of_sources("simulated", X, drawn.batch.astype(str), names, n_topics=4)
    print(tables([rows, of_topics, of_words]))


def tables(groups: list[list[dict]]) -> str:
    """Return tables in Markdown, one below the other."""
    return "\n\n".join(report.table(rows) for rows in groups)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=batch_methods.METHODS)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        if options.smoke:
            smoke()
            return
        if reason := problems.available("pbmc_facs"):
            print(reason)
            return
        methods = batches.installed(options.methods or list(batch_methods.METHODS))
        X, chemistry, types, genes = two_chemistries()
        cells = transferred(X, chemistry, types, methods)
        runs = of_runs()
        names = np.array(["first chemistry", "third chemistry"])
        texts, words = of_sources("two chemistries", X, names[chemistry], genes, N_TYPES)
        for name, source in (("poliblog5k", "row_blog"), ("beer_canada", "row_label")):
            labels = names_of(name)
            X = sp.load_npz(folder() / f"{name}.npz").tocsr()
            rows, of_words = of_sources(name, X, labels[source], labels["cols"])
            texts, words = texts + rows, words + of_words
    where = f"{report.processor()}. `python benchmarks/batches_real.py`"
    text = "\n\n".join([tables([cells, runs, texts, words]), where])
    print(text)
    report.write_csv(report.HERE / "results" / "batches_real.csv", cells + runs + texts + words)
    report.write_readme(text, MARKERS)


if __name__ == "__main__":
    main()
