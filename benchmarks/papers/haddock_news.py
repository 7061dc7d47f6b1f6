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
import csv
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import experiment
import newsgroups_text  # benchmarks/newsgroups_text.py
import numpy as np
import scipy.sparse as sp
from newsgroups_text import Split
from scipy.optimize import linear_sum_assignment
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from nmfscale import SSNMF, as_counts, clustering_score
from nmfscale.methods.ssnmf.steps import representation

K, STARTS = 13, 11
# Table 6: tol and lambda.
CHOSEN = {"FF": (1e-4, 100), "FD": (1e-4, 10), "DF": (1e-3, 100), "DD": (1e-3, 1000)}
CHOSEN_NMF = 1e-4
PAPER_4 = {
    "FF": "79.37 (0.47)", "FD": "79.51 (0.38)", "DF": "81.88 (0.44)", "DD": "81.50 (0.47)",
    "NMF + SVM": "70.99 (2.71)", "SVM": "80.70 (0.27)", "NB": "82.28",
}  # fmt: skip
PAPER_8 = {
    "FF": (0.3895, 0.3647), "FD": (0.3857, 0.3703), "DF": (0.3874, 0.3553),
    "DD": (0.3874, 0.3732), "NMF": (0.4348, 0.3080),
}  # fmt: skip
# Table and figure of the topics of each model.
PLACES = {"FF": "7, 3a", "FD": "9, 3b", "DF": "5 and 10, 2", "DD": "11, 3c", "NMF": "12, 4"}
SHORT = {
    "comp.graphics": "graphics", "comp.sys.mac.hardware": "mac", "comp.windows.x": "windows",
    "sci.crypt": "crypt", "sci.electronics": "electronics", "sci.space": "space",
    "talk.politics.guns": "guns", "talk.politics.mideast": "mideast", "alt.atheism": "atheism",
    "soc.religion.christian": "christian", "rec.autos": "autos", "rec.sport.baseball": "baseball",
    "rec.sport.hockey": "hockey",
}  # fmt: skip


# Fits -------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """A fit from one start: weights of topics in classes (C, K), accuracy, loadings of all."""

    model: SSNMF
    weights: np.ndarray
    accuracy: float
    loadings: np.ndarray


def ssnmf(data: Split, losses: str, seed: int, **options: Any) -> SSNMF:
    """Fit with the parameters of table 6."""
    tol, supervision = CHOSEN[losses]
    options = {"tol": tol, "supervision": supervision} | options
    model = SSNMF(K, losses=losses, random_state=seed, **options)
    return model.fit(data.train, data.train_labels)


def svm(seed: int) -> Any:
    """Return the linear SVM of the authors' program."""
    return make_pipeline(StandardScaler(), SGDClassifier(random_state=seed))


def supervised_trial(data: Split, losses: str, seed: int, threads: int) -> Trial:
    """Fit an SSNMF and classify the test documents by it."""
    model = ssnmf(data, losses, seed, n_threads=threads)
    accuracy = model.score(data.test, data.test_labels)
    S = np.vstack([model.loadings_, model.transform(data.test)])
    return Trial(model, model.target_components_, accuracy, S)


def nmf_trial(data: Split, seed: int, threads: int, tol: float = CHOSEN_NMF) -> Trial:
    """Fit without labels, and classify by an SVM on the loadings."""
    model = SSNMF(
        K, losses="FF", tol=tol, max_iter=400, random_state=seed, n_threads=threads
    ).fit(data.train)  # fmt: skip
    found, new = svm(seed).fit(model.loadings_, data.train_labels), model.transform(data.test)
    weights = np.maximum(found[-1].coef_, 0)
    accuracy = found.score(new, data.test_labels)
    return Trial(model, weights, accuracy, np.vstack([model.loadings_, new]))


def trials_of(data: Split, starts: int, threads: int) -> dict[str, list[Trial]]:
    """Fit all models from all starts."""
    found = {}
    for name in (*CHOSEN, "NMF"):
        found[name] = [
            nmf_trial(data, seed, threads) if name == "NMF"
            else supervised_trial(data, name, seed, threads) for seed in range(starts)
        ]  # fmt: skip
        print(f"{name}: {starts} starts done", flush=True)
    return found


def median_trial(trials: list[Trial]) -> Trial:
    """Return the trial of median accuracy."""
    return sorted(trials, key=lambda trial: trial.accuracy)[len(trials) // 2]


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
    "SVM": (3, svm_accuracy),
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
        accuracies[name] = [accuracy(data, seed) for seed in range(min(n, len(trials["FF"])))]
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


# Tables 5, 7, 9 to 12, figures 2 to 4 -----------------------------------------------------------


def keywords(model: SSNMF, words: np.ndarray) -> list[list[str]]:
    """Return the ten words of largest weight of each topic."""
    order = np.argsort(-model.components_, axis=1, kind="stable")[:, :10]
    return [[str(word) for word in words[each]] for each in order]


def in_common(ours: list[list[str]], theirs: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Match topics one to one; return which of ours, and how many words they share."""
    shared = np.array([[len(set(a) & set(b)) for b in ours] for a in theirs])
    rows, match = linear_sum_assignment(-shared)
    return match, shared[rows, match]


def printed_topics(model: str) -> list[dict[str, str]]:
    """Return the topics of a model as the paper prints them."""
    with (experiment.HERE / "printed" / "haddock_topics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["model"] == model]


def topics_of(
    data: Split, name: str, trials: list[Trial], classes: list[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the topics of the median trial beside those of the paper, and a summary."""
    median, theirs = median_trial(trials), printed_topics(name)
    ours = keywords(median.model, data.words)
    match, shared = in_common(ours, [row["keywords"].split() for row in theirs])
    scores = [clustering_score(median.loadings, data.groups, soft=s) for s in (False, True)]
    rows = []
    for row, k, common in zip(theirs, match.tolist(), shared.tolist(), strict=True):
        (hard, of_hard), (soft, of_soft) = (
            (float(each.of_topics[k]), SHORT[str(each.groups[k])]) for each in scores
        )
        rows.append({
            "model": name, "topic": int(row["topic"]), "keywords, paper": row["keywords"],
            "keywords": " ".join(ours[k]), "in common": common,
            "class": classes[int(median.weights[:, k].argmax())],
            "hard, paper": f"{row['hard group']} {row['hard score']}",
            "hard": f"{of_hard} {hard:.4f}",
            "soft, paper": f"{row['soft group']} {row['soft score']}",
            "soft": f"{of_soft} {soft:.4f}",
        })  # fmt: skip
    others = [
        in_common(keywords(trial.model, data.words), ours)[1].mean()
        for trial in trials if trial is not median
    ]  # fmt: skip
    same = sum(row["hard"].split()[0] == row["hard, paper"].split()[0] for row in rows)
    summary = {
        "model": name, "table, figure": PLACES[name],
        "median accuracy": 100 * median.accuracy,
        "keywords of 10 in common with the paper": float(shared.mean()),
        "with other starts here": float(np.mean(others)) if others else None,
        "groups (hard) of 13 as in the paper": same,
    }  # fmt: skip
    return rows, summary


def draw_weights(trials: dict[str, list[Trial]], classes: list[str]) -> Any:
    """Draw figures 2, 3 and 4: the distribution of each topic over classes."""
    order = [name for name in ("DF", "FF", "FD", "DD", "NMF") if name in trials]
    figure, axes = experiment.panels(len(order), 2, (5.4, 2.4))
    for ax, name in zip(axes, order, strict=True):
        median = median_trial(trials[name])
        B = median.weights / np.maximum(median.weights.sum(axis=0), 1e-300)
        B = B[:, np.lexsort((-B.max(axis=0), B.argmax(axis=0)))]
        image = ax.imshow(B, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        ax.set_yticks(range(len(classes)), classes)
        ax.set_xticks(range(K), range(1, K + 1))
        what = "coefficients of the SVM" if name == "NMF" else "B"
        ax.set_title(f"{name}: {what}, accuracy {100 * median.accuracy:.2f}", size=10)
    figure.colorbar(image, ax=axes, shrink=0.5, label="share of the topic")
    figure.supxlabel("topic, in the order of classes")
    return figure


# ------------------------------------------------------------------------------------------------


def archive() -> Path | None:
    """Return the archive in the folder NMFSCALE_DATA; print what is missing if it is not there."""
    folder = Path(os.environ.get("NMFSCALE_DATA", "."))
    found = sorted(folder.glob("20news*bydate.tar.*z"))
    if not found:
        print(f"skipped: no 20news_bydate.tar.xz in the folder NMFSCALE_DATA ({folder})")
    return found[0] if found else None


def simulated() -> Split:
    """Return simulated counts with a topic for each group, in place of TF-IDF of documents."""
    import nmfscale

    counts, truth = nmfscale.simulate_topic_counts(200, 120, K, random_state=0)
    topic = truth.L.argmax(axis=1)
    names = np.concatenate(list(newsgroups_text.CLASSES.values()))
    of_topic = np.repeat(np.arange(5), [len(each) for each in newsgroups_text.CLASSES.values()])
    X, y = sp.csr_matrix(counts.toarray() * 1.0), of_topic[topic]
    words = np.array([f"word{j}" for j in range(counts.shape[1])])
    return Split(X[:150], y[:150], X[150:], y[150:], names[topic], words)


def run(data: Split, tables: list[str], splits: list[Split], options: argparse.Namespace) -> None:
    """Make the tables that need fits with the parameters of table 6."""
    classes, starts = list(newsgroups_text.CLASSES), 2 if options.smoke else STARTS
    trials = trials_of(data, starts, options.threads)
    if "4" in tables:
        rows = table_4(data, trials, splits, options.threads)
        experiment.keep("haddock_4", rows, None, options)
    if "8" in tables:
        experiment.keep("haddock_8", table_8(data, trials), None, options)
    if "topics" in tables:
        found = [topics_of(data, name, each, classes) for name, each in trials.items()]
        figure, rows = draw_weights(trials, classes), sum((rows for rows, _ in found), [])
        summary = [each for _, each in found]
        experiment.keep("haddock_topics", rows, figure, options, summary=summary)
        shown = [row for row in rows if row["model"] == "DF"]
        experiment.keep("haddock_5", shown, None, options)


def main() -> None:
    """Run the script from the command line."""
    parser = experiment.parser(__doc__)
    parser.add_argument("--tables", nargs="+", default=["4", "6", "8", "topics"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # max_iter reached; empty documents
    path = None if options.smoke else archive()
    if options.smoke:
        data, splits, of_validation = simulated(), [], simulated()
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
