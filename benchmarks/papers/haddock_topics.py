"""Topics of Haddock et al. on 20 Newsgroups, beside those of fits here; for haddock_news.py."""

from __future__ import annotations

import csv
from typing import Any

import experiment
import numpy as np
from haddock_fits import K, Trial, median_trial
from newsgroups_text import Split
from scipy.optimize import linear_sum_assignment

from nmfscale import SSNMF, clustering_score
from nmfscale.pl import class_heatmap

# Table and figure of the topics of each model.
PLACES = {"FF": "7, 3a", "FD": "9, 3b", "DF": "5 and 10, 2", "DD": "11, 3c", "NMF": "12, 4"}
SHORT = {
    "comp.graphics": "graphics", "comp.sys.mac.hardware": "mac", "comp.windows.x": "windows",
    "sci.crypt": "crypt", "sci.electronics": "electronics", "sci.space": "space",
    "talk.politics.guns": "guns", "talk.politics.mideast": "mideast", "alt.atheism": "atheism",
    "soc.religion.christian": "christian", "rec.autos": "autos", "rec.sport.baseball": "baseball",
    "rec.sport.hockey": "hockey",
}  # fmt: skip


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
    figure, axes = experiment.panels(len(order), 2, (6.2, 2.7))
    numbers = [str(k + 1) for k in range(K)]
    for ax, name in zip(axes, order, strict=True):
        median = median_trial(trials[name])
        class_heatmap(
            median.weights, class_names=classes, topic_names=numbers, ax=ax, show=False
        )  # fmt: skip
        what = "coefficients of the SVM" if name == "NMF" else "B"
        ax.set_title(f"{name}: {what}, accuracy {100 * median.accuracy:.2f}", size=10)
    return figure
