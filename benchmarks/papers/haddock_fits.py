"""Fits of 20 Newsgroups with the parameters of Haddock et al., for haddock_news.py and ssnmf.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import newsgroups_text  # benchmarks/newsgroups_text.py
import numpy as np
import scipy.sparse as sp
from newsgroups_text import Split
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nmfscale
from nmfscale import SSNMF

# Topics in all tables. Table 6: tol and lambda.
K = 13
CHOSEN = {"FF": (1e-4, 100), "FD": (1e-4, 10), "DF": (1e-3, 100), "DD": (1e-3, 1000)}
CHOSEN_NMF = 1e-4


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


def archive() -> Path | None:
    """Return the archive in the folder NMFSCALE_DATA; print what is missing if it is not there."""
    folder = Path(os.environ.get("NMFSCALE_DATA", "."))
    found = sorted(folder.glob("20news*bydate.tar.*z"))
    if not found:
        print(f"skipped: no 20news_bydate.tar.xz in the folder NMFSCALE_DATA ({folder})")
    return found[0] if found else None


def simulated() -> Split:
    """Return simulated counts with a topic for each group, in place of TF-IDF of documents."""
    counts, truth = nmfscale.datasets.simulate_topic_counts(200, 120, K, random_state=0)
    topic = truth.L.argmax(axis=1)
    names = np.concatenate(list(newsgroups_text.CLASSES.values()))
    of_topic = np.repeat(np.arange(5), [len(each) for each in newsgroups_text.CLASSES.values()])
    X, y = sp.csr_matrix(counts.toarray() * 1.0), of_topic[topic]
    words = np.array([f"word{j}" for j in range(counts.shape[1])])
    return Split(X[:150], y[:150], X[150:], y[150:], names[topic], words)
