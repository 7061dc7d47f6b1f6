"""SSNMF: tables 2, 4 and 8 of Haddock et al., both solvers, and the authors' package.

    python benchmarks/ssnmf.py --news 20news_bydate.tar.xz     all tables
    python benchmarks/ssnmf.py --tables 2                      one table
    python benchmarks/ssnmf.py --tables solvers speed          times, to be run on a quiet machine
    python benchmarks/ssnmf.py --smoke                         a few seconds, writes nothing

The archive contains 20 Newsgroups sorted by date, one file per posting, in folders
``20news-bydate-train/<group>`` and ``20news-bydate-test/<group>``. Without --news, it is
20news_bydate.tar.xz in the folder NMFSCALE_DATA. Table 2 needs no data. The authors' package is
measured if it is installed (``pip install ssnmf torch``). Writes results/ssnmf_2.csv and so on, and
the tables in README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import newsgroups_text
import numpy as np
import report
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from nmfscale import SSNMF, as_counts, clustering_score
from nmfscale.methods.ssnmf.steps import representation

# Tolerance and weight of the labels, from table 6 of the paper.
CHOSEN = {"FF": (1e-4, 100), "FD": (1e-4, 10), "DF": (1e-3, 100), "DD": (1e-3, 1000)}
PAPER_4 = {
    "FF": 79.37, "FD": 79.51, "DF": 81.88, "DD": 81.50, "NMF + SVM": 70.99, "NB": 82.28,
    "SVM": 80.70,
}  # fmt: skip
PAPER_8 = {
    "FF": (0.3895, 0.3647), "FD": (0.3857, 0.3703), "DF": (0.3874, 0.3553),
    "DD": (0.3874, 0.3732), "NMF": (0.4348, 0.3080),
}  # fmt: skip
PAPER_2 = {
    1: (0.2917, 0.2927, 0.2930, 0.2922), 2: (0.0081, 0.0065, 0.0093, 0.0076),
    3: (0.0078, 0.0109, 0.0071, 0.0075), 4: (0.0204, 0.0199, 0.0210, 0.0172),
}  # fmt: skip
# Number of topics in tables 4 and 8.
K = 13
# Of table 2.
_STARTS = 5


def ssnmf(data, losses: str, seed: int, **options):
    """Fit with the parameters of the paper."""
    tol, supervision = CHOSEN[losses]
    options = {"tol": tol, "supervision": supervision} | options
    model = SSNMF(K, losses=losses, random_state=seed, **options)
    return model.fit(data.train, data.train_labels)


def nmf(data, seed: int):
    """Fit without labels."""
    return SSNMF(K, losses="FF", tol=1e-4, max_iter=500, random_state=seed).fit(data.train)


def svm(seed: int):
    """Return the linear SVM of the authors' program."""
    return make_pipeline(StandardScaler(), SGDClassifier(random_state=seed))


def nmf_accuracy(data, seed: int) -> float:
    """Return the accuracy of an SVM on the loadings of NMF."""
    model = nmf(data, seed)
    found = svm(seed).fit(model.loadings_, data.train_labels)
    return found.score(model.transform(data.test), data.test_labels)


def centroid_accuracy(data, loss: str) -> float:
    """Return the accuracy with the mean document of each class as A and the identity as B."""
    classes = sp.csr_array(np.eye(data.train_labels.max() + 1)[data.train_labels])
    A = np.asarray((data.train.T @ classes).todense()) / classes.sum(axis=0)
    test = as_counts(data.test, integer="allow")
    S = np.empty((test.shape[0], A.shape[1]))
    for rows, found in representation(test, A, loss, 20, 1).blocks():
        S[rows] = found
    return float((S.argmax(axis=1) == data.test_labels).mean())


def table_4(data, others: list, starts: int) -> list[dict]:
    """Return accuracies on the authors' split, and on other splits with one start each."""
    programs = {
        losses: lambda d, seed, losses=losses: ssnmf(d, losses, seed).score(d.test, d.test_labels)
        for losses in CHOSEN
    }
    programs |= {
        "NMF + SVM": nmf_accuracy,
        "NB": lambda d, _: MultinomialNB().fit(d.train, d.train_labels).score(
            d.test, d.test_labels
        ),
        "SVM": lambda d, seed: svm(seed).fit(d.train.toarray(), d.train_labels).score(
            d.test.toarray(), d.test_labels
        ),
        "LinearSVC": lambda d, seed: LinearSVC(random_state=seed).fit(
            d.train, d.train_labels
        ).score(d.test, d.test_labels),
        "class means, norm": lambda d, _: centroid_accuracy(d, "frobenius"),
        "class means, divergence": lambda d, _: centroid_accuracy(d, "kl"),
    }  # fmt: skip
    rows = []
    for name, accuracy in programs.items():
        n = {"SVM": min(3, starts)}.get(name, starts if name in (*CHOSEN, "NMF + SVM") else 1)
        here = 100 * np.array([accuracy(data, seed) for seed in range(n)])
        there = 100 * np.array([accuracy(each, 0) for each in others]) if others else [np.nan]
        rows.append({
            "model": name, "paper": PAPER_4.get(name, np.nan), "accuracy": here.mean(),
            "sd": here.std(ddof=n > 1), "other splits": np.mean(there),
            "sd of these": np.std(there),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def random_topics(data, rng) -> np.ndarray:
    """Return one-topic loadings; the topic is drawn at random from those of the class."""
    labels = np.concatenate([data.train_labels, data.test_labels])
    sizes = [len(groups) for groups in newsgroups_text.CLASSES.values()]
    first = np.cumsum([0, *sizes[:-1]])
    topic = first[labels] + (rng.uniform(size=len(labels)) * np.array(sizes)[labels]).astype(int)
    return np.eye(K)[topic]


def table_8(data, starts: int) -> list[dict]:
    """Return the mean clustering score of topics for training and test documents."""
    rng, rows = np.random.default_rng(0), []
    for name in (*CHOSEN, "NMF", "random in the class"):
        scores = []
        for seed in range(starts):
            if name.startswith("random"):
                S = random_topics(data, rng)
            else:
                model = nmf(data, seed) if name == "NMF" else ssnmf(data, name, seed)
                S = np.vstack([model.loadings_, model.transform(data.test)])
            scores.append([clustering_score(S, data.groups, soft=s).mean for s in (False, True)])
        hard, soft = np.mean(scores, axis=0)
        paper = PAPER_8.get(name, (np.nan, np.nan))
        rows.append({
            "model": name, "hard": hard, "paper, hard": paper[0], "soft": soft,
            "paper, soft": paper[1], "sd of hard": np.std(scores, axis=0)[0],
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def divergence(X, M, loss: str) -> float:
    """Return |X - M|^2, or D(X || M)."""
    if loss == "F":
        return float(((X - M) ** 2).sum())
    where, M = X > 0, M + 1e-10  # as the authors do; M may have zeros where X has none
    return float((X[where] * np.log(X[where] / M[where])).sum() - X.sum() + M.sum())


def errors_of_draw(draw: int, starts: int, iterations: int) -> dict[tuple[int, str], list[float]]:
    """Return errors at the true means, relative to the start, by experiment and losses.

    Fits by coordinate descent end at a stationary point, like the 100,000 multiplicative updates in
    the paper. Only the first `starts` of five starts are fitted. Their errors are divided by the
    errors at all five starts, because these vary much more than the final errors.
    """
    warnings.simplefilter("ignore")
    # experiment: loss of the error, noise of X, noise of Y (a standard deviation, or None: Poisson)
    experiments = {1: ("FF", 1.0, 1.0), 2: ("FD", 0.1, None), 3: ("DF", None, 0.1),
                   4: ("DD", None, None)}  # fmt: skip
    ratios: dict[tuple[int, str], list[float]] = {}
    rng = np.random.default_rng(draw)
    A = rng.uniform(size=(500, 5))
    B, S = (
        sp.random_array((500, 5), density=0.5, rng=rng, data_sampler=rng.uniform).toarray()
        for _ in range(2)
    )
    X_mean, Y_mean = S @ A.T, S @ B.T

    def noisy(mean, sd):
        return rng.poisson(mean) if sd is None else abs(mean + sd * rng.normal(size=mean.shape))

    for number, (measured, sd_x, sd_y) in experiments.items():
        X, Y = noisy(X_mean, sd_x) * 1.0, noisy(Y_mean, sd_y) * 1.0

        def error(S, A, B, m=measured):
            return divergence(X_mean, S @ A.T, m[0]) + divergence(Y_mean, S @ B.T, m[1])

        firsts, lasts = [], {losses: [] for losses in CHOSEN}
        for start in range(_STARTS):
            at = [
                np.random.RandomState(start + shift).uniform(size=shape)
                for shift, shape in ((0, (500, 5)), (5, (500, 5)), (10, (5, 500)))
            ]
            firsts.append(error(at[2].T, at[0], at[1]))
            for losses in CHOSEN if start < starts else ():
                model = SSNMF(
                    5, losses=losses, supervision=1.0, solver="cd", tol=1e-6, max_iter=iterations,
                    n_threads=1,
                )  # fmt: skip
                model.fit(X, Y, loadings=at[2].T, components=at[0].T, target_components=at[1])
                lasts[losses].append(
                    error(model.loadings_, model.components_.T, model.target_components_)
                )
        for losses, found in lasts.items():
            ratios[number, losses] = list(np.resize(found, _STARTS) / firsts)
        print(draw, number, [np.mean(ratios[number, losses]) for losses in CHOSEN], flush=True)
    return ratios


def table_2(draws: int, starts: int, iterations: int, processes: int) -> list[dict]:
    """Return means over draws of the true factors and over starts."""
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(errors_of_draw, range(draws), [starts] * draws, [iterations] * draws))
    return [
        {"experiment": number}
        | {losses: np.mean([ratios[number, losses] for ratios in found]) for losses in CHOSEN}
        | {f"paper {losses}": value for losses, value in zip(CHOSEN, paper, strict=True)}
        for number, paper in PAPER_2.items()
    ]


class ReachedError(Exception):
    """Raised when a fit has reached the required loss."""


def progress(data, losses: str, seed: int, wanted: float = -np.inf, **options):
    """Return the CPU seconds since the start of a fit, and its loss, after each iteration.

    The fit ends when its loss is at most `wanted`.
    """
    begun, seen = time.process_time(), []

    def note(record):
        seen.append((time.process_time() - begun, record["loss"]))
        if record["loss"] <= wanted:
            raise ReachedError

    with contextlib.suppress(ReachedError):
        ssnmf(data, losses, seed, callback=note, tol=0, **options)
    return np.array(seen)


def table_solvers(data, starts: int) -> list[dict]:
    """Return CPU seconds to the loss of 300 multiplicative updates, for both solvers in turn."""
    rows, data = [], data._replace(train=as_counts(data.train, integer="allow"))
    for losses in CHOSEN:
        found = []
        for seed in range(starts):
            plain = progress(data, losses, seed, max_iter=300, n_threads=1)
            fast = progress(
                data, losses, seed, plain[-1, 1], solver="cd", max_iter=300, n_threads=1
            )
            assert fast[-1, 1] <= plain[-1, 1], "the loss was not reached"
            found.append((plain[-1, 0], fast[-1, 0], len(fast)))
        times = [plain / fast for plain, fast, _ in found]
        plain, fast, iterations = np.median(found, axis=0)
        rows.append({
            "model": losses, "mu, CPU s": plain, "cd, CPU s": fast, "cd, iterations": iterations,
            "ratio": np.median(times), "smallest ratio": min(times),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def peer(data, losses: str, iterations: int) -> tuple[float, float] | None:
    """Run the authors' package and this one from the same start; None if it is not installed.

    Return its CPU seconds per iteration, and the largest difference between the final parameters
    divided by the largest parameter.
    """
    here = sys.path.pop(0)  # the folder of this script, which has the same name as the package
    try:
        from ssnmf.ssnmf import SSNMF_N as Peer
    except ImportError as error:
        print(f"ssnmf is skipped: {error}")
        return None
    finally:
        sys.path.insert(0, here)
    X, Y, rng = data.train.T.toarray(), np.eye(5)[data.train_labels].T, np.random.default_rng(0)
    A, B, S = (rng.uniform(size=(n, K)) for n in (len(X), len(Y), X.shape[1]))
    model = Peer(
        X, K, Y=Y, A=A, B=B, S=S.T, lam=CHOSEN[losses][1], tol=-np.inf,
        modelNum=3 + list(CHOSEN).index(losses),
    )  # fmt: skip
    begun = time.process_time()
    model.mult(numiters=iterations, saveerrs=True, eps=1e-16)
    seconds = (time.process_time() - begun) / iterations
    own = SSNMF(
        K, losses=losses, supervision=CHOSEN[losses][1], tol=0, max_iter=iterations, n_threads=1
    ).fit(data.train, data.train_labels, loadings=S, components=A.T, target_components=B)
    found = own.components_, own.target_components_, own.loadings_
    pairs = zip((model.A.T, model.B, model.S.T), found, strict=True)
    return seconds, max(abs(one - other).max() / abs(one).max() for one, other in pairs)


def table_speed(data, iterations: int) -> list[dict]:
    """Return CPU seconds per iteration."""
    rows = []
    for losses in CHOSEN:
        theirs, difference = peer(data, losses, iterations) or (np.nan, np.nan)
        own = [progress(data, losses, seed, max_iter=20, n_threads=1) for seed in range(5)]
        each = float(np.median([(seen[-1, 0] - seen[0, 0]) / (len(seen) - 1) for seen in own]))
        rows.append({
            "model": losses, "CPU s / iteration": each, "ssnmf, CPU s / iteration": theirs,
            "ratio": theirs / each, "difference": difference,
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def markdown(rows: list[dict]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    for row in rows:
        digits = dict.fromkeys(("accuracy", "paper", "sd", "other splits", "sd of these"), ".2f")
        digits |= {
            "ratio": ".1f",
            "smallest ratio": ".1f",
            "difference": ".0e",
            "cd, iterations": ".4g",
        }
        cells = [
            str(value) if isinstance(value, str | int) else "-" if np.isnan(value)
            else f"{value:{digits.get(name, '.4f')}}" for name, value in row.items()
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(name: str, rows: list[dict], results: Path) -> None:
    """Write a table to results/ and to README.md."""
    with (results / f"ssnmf_{name}.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    readme = report.HERE / "README.md"
    before, rest = readme.read_text().split(f"<!-- ssnmf {name}:start -->\n", 1)
    after = rest.split(f"<!-- ssnmf {name}:end -->", 1)[1]
    command = report.command()
    said = f"\n\n{report.processor()}. `{command}`" if name in ("solvers", "speed") else ""
    first, last = (f"<!-- ssnmf {name}:{mark} -->" for mark in ("start", "end"))
    readme.write_text(f"{before}{first}\n{markdown(rows)}{said}\n{last}{after}")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", default=["4", "8", "2", "solvers", "speed"])
    folder = Path(os.environ.get("NMFSCALE_DATA", "."))
    parser.add_argument("--news", type=Path, default=folder / "20news_bydate.tar.xz")
    parser.add_argument("--starts", type=int, help="default: 11; 5 for tables 2 and solvers")
    parser.add_argument("--splits", type=int, default=10, help="besides the authors' split")
    parser.add_argument("--draws", type=int, default=4, help="of table 2")
    parser.add_argument("--iterations", type=int, default=200, help="maximum, for table 2")
    parser.add_argument("--peer-iterations", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="number of processes for table 2")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # max_iter reached; empty documents
    if options.smoke:
        print(markdown(table_2(1, 1, 3, 1)))
        return
    tables = list(options.tables)
    if {"4", "8", "solvers", "speed"} & set(tables) and not options.news.exists():
        print(f"all tables except 2 are skipped: file not found: {options.news}")
        tables = [name for name in tables if name == "2"]
    documents = newsgroups_text.texts(options.news) if tables != ["2"] and tables else {}
    data = newsgroups_text.split(documents) if documents else None
    for name in tables:
        if name == "2":
            rows = table_2(options.draws, options.starts or 5, options.iterations, options.threads)
        elif name == "4":
            others = [newsgroups_text.split(documents, 100 + i) for i in range(options.splits)]
            rows = table_4(data, others, options.starts or 11)
        elif name == "8":
            rows = table_8(data, options.starts or 11)
        elif name == "solvers":
            rows = table_solvers(data, options.starts or 5)
        else:
            rows = table_speed(data, options.peer_iterations)
        print(markdown(rows))
        write(name, rows, options.results)


if __name__ == "__main__":
    main()
