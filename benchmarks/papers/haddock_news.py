"""20 Newsgroups in Haddock et al.: tables 4 to 12 and figures 2 to 4.

    python benchmarks/papers/haddock_news.py             about five minutes
    python benchmarks/papers/haddock_news.py --tables 4 8
    python benchmarks/papers/haddock_news.py --full      also the accuracy on ten other splits
    python benchmarks/papers/haddock_news.py --smoke     a few seconds, writes nothing

The data are 20 Newsgroups sorted by date, one file per posting: 20news_bydate.tar.xz (or .tar.gz)
in the folder NMFSCALE_DATA, see README.md. The split is that of the authors' program. --smoke takes
simulated counts in their place.

Tables 4, 8: accuracy and clustering score, 11 starts. Table 6: lambda and tol by the accuracy on
the validation set. Tables 5, 7, 9 to 12: topics of the start of median accuracy, each beside the
topic of the paper with most keywords in common (matched one to one). Figures 2 to 4: weights of
topics in classes.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import experiment
import haddock_fits
import newsgroups_text  # benchmarks/newsgroups_text.py
import numpy as np
import scipy.sparse as sp
from haddock_fits import CHOSEN, CHOSEN_NMF, K, Trial, nmf_trial, ssnmf, supervised_trial, svm
from haddock_topics import draw_weights, topics_of
from newsgroups_text import Split
from sklearn.naive_bayes import MultinomialNB
from sklearn.svm import LinearSVC

from nmfscale import as_counts, clustering_score
from nmfscale.methods.ssnmf.steps import representation

STARTS = 11
PAPER_4 = {
    "FF": "79.37 (0.47)", "FD": "79.51 (0.38)", "DF": "81.88 (0.44)", "DD": "81.50 (0.47)",
    "NMF + SVM": "70.99 (2.71)", "SVM": "80.70 (0.27)", "NB": "82.28",
}  # fmt: skip
PAPER_8 = {
    "FF": (0.3895, 0.3647), "FD": (0.3857, 0.3703), "DF": (0.3874, 0.3553),
    "DD": (0.3874, 0.3732), "NMF": (0.4348, 0.3080),
}  # fmt: skip


# Table 4 ----------------------------------------------------------------------------------------


def centroid_accuracy(data: Split, loss: str) -> float:
    """Return the accuracy with the mean document of each class as A and the identity as B."""
    classes = sp.csr_array(np.eye(data.train_labels.max() + 1)[data.train_labels])
    A = np.asarray((data.train.T @ classes).todense()) / classes.sum(axis=0)
    test = as_counts(data.test, integer="allow")
    S = np.empty((test.shape[0], A.shape[1]))
    for rows, found in representation(test, A, loss, 20, 1).blocks():
        S[rows] = found
    return float((S.argmax(axis=1) == data.test_labels).mean())


def svm_accuracy(data: Split, seed: int) -> float:
    """Return the accuracy of the authors' SVM on TF-IDF, centred and thus dense."""
    found = svm(seed).fit(data.train.toarray(), data.train_labels)
    return float(found.score(data.test.toarray(), data.test_labels))


# Number of runs, and the accuracy of a run.
CLASSIFIERS: dict[str, tuple[int, Callable[[Split, int], float]]] = {
    "SVM": (1, svm_accuracy),
    "NB": (1, lambda d, _: MultinomialNB().fit(d.train, d.train_labels).score(
        d.test, d.test_labels
    )),
    "LinearSVC": (1, lambda d, seed: LinearSVC(random_state=seed).fit(
        d.train, d.train_labels
    ).score(d.test, d.test_labels)),
    "class means, norm": (1, lambda d, _: centroid_accuracy(d, "frobenius")),
    "class means, divergence": (1, lambda d, _: centroid_accuracy(d, "kl")),
}  # fmt: skip


def other_splits(splits: list[Split], name: str, threads: int) -> float | None:
    """Return the mean accuracy on other splits, one start each."""
    if not splits:
        return None
    if name == "NMF + SVM":
        found = [nmf_trial(data, 0, threads).accuracy for data in splits]
    elif name in CHOSEN:
        found = [supervised_trial(data, name, 0, threads).accuracy for data in splits]
    else:
        found = [CLASSIFIERS[name][1](data, 0) for data in splits]
    return 100 * float(np.mean(found))


def table_4(
    data: Split, trials: dict[str, list[Trial]], splits: list[Split], threads: int
) -> list[dict[str, Any]]:
    """Return accuracies on the authors' split, and on other splits."""
    accuracies = {
        "NMF + SVM" if name == "NMF" else name: [trial.accuracy for trial in each]
        for name, each in trials.items()
    }
    for name, (n, accuracy) in CLASSIFIERS.items():
        runs = 3 if splits and name == "SVM" else n
        accuracies[name] = [accuracy(data, seed) for seed in range(runs)]
    rows = []
    for name, found in accuracies.items():
        here = 100 * np.array(found)
        rows.append({
            "model": name, "paper": PAPER_4.get(name), "here": round(here.mean(), 2),
            "sd": round(here.std(ddof=1), 2) if len(here) > 1 else None, "runs": len(here),
            "median": round(float(np.median(here)), 2),
        })  # fmt: skip
        if splits:
            rows[-1]["other splits"] = other_splits(splits, name, threads)
    return rows


# Table 6 ----------------------------------------------------------------------------------------


def table_6(data: Split, starts: int, threads: int) -> tuple[list[dict[str, Any]], list[dict]]:
    """Return the validation accuracy for all parameters, and the best beside those of the paper."""
    cells, summary = [], []
    for losses, (paper_tol, paper_lambda) in CHOSEN.items():
        for tol in (1e-4, 1e-3, 1e-2):
            for supervision in (10, 100, 1000):
                found = [
                    ssnmf(
                        data, losses, seed, tol=tol, supervision=supervision, n_threads=threads
                    ).score(data.test, data.test_labels)
                    for seed in range(starts)
                ]  # fmt: skip
                cells.append({"model": losses, "tol": tol, "lambda": supervision,
                              "validation accuracy": 100 * float(np.mean(found)),
                              "sd": 100 * float(np.std(found, ddof=len(found) > 1))})  # fmt: skip
        here = [cell for cell in cells if cell["model"] == losses]
        summary.append(chosen_of(losses, here, (paper_tol, paper_lambda)))
        print(summary[-1], flush=True)
    for tol in (1e-5, 1e-4, 1e-3, 1e-2):
        found = [nmf_trial(data, seed, threads, tol).accuracy for seed in range(starts)]
        cells.append({"model": "NMF", "tol": tol, "lambda": None,
                      "validation accuracy": 100 * float(np.mean(found)),
                      "sd": 100 * float(np.std(found, ddof=len(found) > 1))})  # fmt: skip
    summary.append(chosen_of("NMF", cells[-4:], (CHOSEN_NMF, None)))
    return cells, summary


def chosen_of(model: str, cells: list[dict[str, Any]], paper: tuple) -> dict[str, Any]:
    """Return the best parameters of a model, and the range of the accuracy."""
    best = max(cells, key=lambda cell: cell["validation accuracy"])
    of_paper = next(cell for cell in cells if (cell["tol"], cell["lambda"]) == paper)
    return {
        "model": model, "tol, paper": paper[0], "tol": best["tol"], "lambda, paper": paper[1],
        "lambda": best["lambda"], "accuracy": best["validation accuracy"],
        "with the paper's": of_paper["validation accuracy"], "sd of a start": of_paper["sd"],
        "worst of the grid": min(cell["validation accuracy"] for cell in cells),
    }  # fmt: skip


# Table 8 ----------------------------------------------------------------------------------------


def random_topics(data: Split, rng: np.random.Generator) -> np.ndarray:
    """Return one-topic loadings; the topic is drawn at random from those of the class."""
    labels = np.concatenate([data.train_labels, data.test_labels])
    sizes = [len(groups) for groups in newsgroups_text.CLASSES.values()]
    first = np.cumsum([0, *sizes[:-1]])
    topic = first[labels] + (rng.uniform(size=len(labels)) * np.array(sizes)[labels]).astype(int)
    return np.eye(K)[topic]


def table_8(data: Split, trials: dict[str, list[Trial]]) -> list[dict[str, Any]]:
    """Return the mean clustering score of topics for training and test documents."""
    rng, rows = np.random.default_rng(0), []
    every = {name: [trial.loadings for trial in each] for name, each in trials.items()}
    every["random in the class"] = [random_topics(data, rng) for _ in trials["FF"]]
    for name, loadings in every.items():
        scores = np.array([
            [clustering_score(S, data.groups, soft=soft).mean for soft in (False, True)]
            for S in loadings
        ])  # fmt: skip
        paper: tuple[float | None, float | None] = PAPER_8.get(name, (None, None))
        (hard, soft), sd = scores.mean(axis=0), scores.std(axis=0, ddof=len(scores) > 1)
        rows.append({
            "model": name, "hard, paper": paper[0], "hard": hard, "sd of hard": sd[0],
            "soft, paper": paper[1], "soft": soft, "sd of soft": sd[1],
        })  # fmt: skip
    return rows


# ------------------------------------------------------------------------------------------------


def run(data: Split, tables: list[str], splits: list[Split], options: argparse.Namespace) -> None:
    """Make the tables that need fits with the parameters of table 6."""
    classes, starts = list(newsgroups_text.CLASSES), 2 if options.smoke else STARTS
    trials = haddock_fits.trials_of(data, starts, options.threads)
    if "8" in tables:
        experiment.keep("haddock_8", table_8(data, trials), None, options)
    if "topics" in tables:
        found = [topics_of(data, name, each, classes) for name, each in trials.items()]
        figure, rows = draw_weights(trials, classes), sum((rows for rows, _ in found), [])
        summary = [each for _, each in found]
        experiment.keep("haddock_topics", rows, figure, options, summary=summary)
        shown = [row for row in rows if row["model"] == "DF"]
        experiment.keep("haddock_5", shown, None, options)
    if "4" in tables:
        rows = table_4(data, trials, splits, options.threads)
        experiment.keep("haddock_4", rows, None, options)


def main() -> None:
    """Run the script from the command line."""
    parser = experiment.parser(__doc__)
    parser.add_argument("--tables", nargs="+", default=["8", "topics", "4", "6"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # max_iter reached; empty documents
    path = None if options.smoke else haddock_fits.archive()
    if options.smoke:
        data, splits = haddock_fits.simulated(), []
        of_validation = data
    elif path is None:
        return
    else:
        documents = newsgroups_text.texts(path)
        data = newsgroups_text.split(documents)
        seeds = range(100, 110) if options.full else ()
        splits = [newsgroups_text.split(documents, seed) for seed in seeds]
        of_validation = newsgroups_text.split(documents, validation=True)
    if {"4", "8", "topics"} & set(options.tables):
        run(data, options.tables, splits, options)
    if "6" in options.tables:
        cells, best = table_6(of_validation, 1 if options.smoke else 10, options.threads)
        experiment.keep("haddock_6", cells, None, options, summary=best)


if __name__ == "__main__":
    main()
