"""Topics of short documents beside those of collapsed Gibbs sampling: see short_documents.py."""

from __future__ import annotations

import os
import tarfile
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import problems
import report
import scipy.sparse as sp

MARKERS = ("<!-- short topics:start -->", "<!-- short topics:end -->")
# Sweeps of the Gibbs sampler, after each of which its topics are compared.
SWEEPS = 500, 1000
# Leading words whose NPMI is computed, and those that should belong to one topic only.
N_LEADING, N_DISTINCT = 10, 25


def pieces_of(
    X: sp.csr_matrix, n_words: int, n_most: int, rng, *, join: bool = True
) -> sp.csr_array:
    """Cut documents into pieces of a given length; join shorter ones, or leave them out."""
    found, rest = [], np.zeros(0, int)
    for i in rng.permutation(X.shape[0]):
        row = slice(*X.indptr[i : i + 2])
        words = rng.permutation(np.repeat(X.indices[row], X.data[row].astype(int)))
        if len(words) < n_words and join:
            words = rest = np.concatenate([rest, words])
        whole = len(words) // n_words * n_words
        found += list(words[:whole].reshape(-1, n_words))
        if whole:
            rest = np.zeros(0, int)
    chosen = [found[i] for i in rng.permutation(len(found))[:n_most]]
    rows = np.repeat(np.arange(len(chosen)), n_words)
    ones = np.ones(len(rows), np.int32)
    return sp.coo_array((ones, (rows, np.concatenate(chosen))), (len(chosen), X.shape[1])).tocsr()


def halves(X: sp.csr_array, rng) -> tuple[sp.csr_array, sp.csr_array]:
    """Split counts at random into two parts of the same shape."""
    known = X.copy()
    known.data = rng.binomial(X.data, 0.5).astype(X.dtype)
    return known, X - known


def perplexity(proportions: np.ndarray, topics: np.ndarray, X: sp.csr_array) -> float:
    """Return the perplexity of counts under mixtures of topics (K, m)."""
    counts, total = X.tocoo(), 0.0
    for first in range(0, counts.nnz, problems.PIECE):
        here = slice(first, first + problems.PIECE)
        mu = np.einsum(
            "ek,ek->e", proportions[counts.row[here]], topics.T[counts.col[here]]
        )  # fmt: skip
        total += float((counts.data[here] * np.log(np.maximum(mu, 1e-12))).sum())
    return float(np.exp(-total / X.sum()))


def newsgroup_texts(archive: Path) -> list[list[str]]:
    """Return the bodies of the training documents and of the test documents."""
    from sklearn.datasets import load_files
    from sklearn.datasets._twenty_newsgroups import (
        strip_newsgroup_footer,
        strip_newsgroup_header,
        strip_newsgroup_quoting,
    )

    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        found = [load_files(f"{folder}/20news-bydate-{part}", encoding="latin1").data
                 for part in ("train", "test")]  # fmt: skip
    for strip in strip_newsgroup_header, strip_newsgroup_quoting, strip_newsgroup_footer:
        found = [[strip(text) for text in texts] for texts in found]
    return found


def newsgroup_pieces(rng) -> tuple[sp.csr_array, ...]:
    """Return whole training documents, pieces of 8 of their words, and pieces of test documents."""
    from sklearn.feature_extraction.text import CountVectorizer

    train, test = newsgroup_texts(Path(os.environ["NMFSCALE_DATA"], "20news_bydate.tar.xz"))
    words = CountVectorizer(stop_words="english", min_df=9, token_pattern="[a-zA-Z]{3,}")
    whole = words.fit_transform(train).tocsr()
    fitted = pieces_of(whole, 8, 30_000, rng, join=False)
    return whole, fitted, pieces_of(words.transform(test).tocsr(), 8, 8_000, rng, join=False)


def tomotopy_fits(X: sp.csr_array, K: int, seed: int, sweeps: tuple[int, ...]):
    """Yield a name, topics, alpha and seconds of the processor after some sweeps."""
    import tomotopy

    model, begun = tomotopy.LDAModel(k=K, seed=seed), time.process_time()
    for first, last in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        model.add_doc(np.repeat(X.indices[first:last], X.data[first:last]).astype(str).tolist())
    for n, done in zip(sweeps, (0, *sweeps), strict=False):
        model.train(n - done, workers=1)
        seconds, topics = time.process_time() - begun, np.zeros((K, X.shape[1]))
        used = [int(word) for word in model.used_vocabs]
        topics[:, used] = [model.get_topic_word_dist(k) for k in range(K)]
        topics = topics + 1e-9
        alpha = np.asarray(model.alpha, float)
        yield f"tomotopy, {n:,} sweeps", topics / topics.sum(axis=1)[:, None], alpha, seconds
        begun = time.process_time() - seconds


def fits(X: sp.csr_array, known: sp.csr_array, K: int, seed: int, sweeps: tuple[int, ...]):
    """Yield a name, topics, proportions of new pieces, and seconds of the processor."""
    from sklearn.decomposition import LatentDirichletAllocation

    import nmfscale

    how = {"random_state": seed, "n_threads": 1}
    collapsed = nmfscale.LDA(K, inference="collapsed", **how)
    models = {
        "LDA, collapsed": collapsed, "LDA": nmfscale.LDA(K, **how),
        "TopicModel": nmfscale.TopicModel(K, **how),
        "scikit-learn LDA": LatentDirichletAllocation(K, random_state=seed),
    }  # fmt: skip
    for name, model in models.items():
        begun = time.process_time()
        model.fit(X)
        seconds, topics = time.process_time() - begun, np.float64(model.components_)
        proportions = np.float64(model.transform(known))
        yield name, topics / topics.sum(axis=1)[:, None], proportions, seconds
    for name, topics, alpha, seconds in tomotopy_fits(X, K, seed + 1, sweeps):
        # proportions by the inference of this package, which predicts better than its own
        collapsed.topic_word_posterior_, collapsed.doc_topic_prior_ = topics, alpha
        yield name, topics, collapsed.transform(known), seconds


def quality(topics: np.ndarray, whole: sp.csr_array) -> tuple[float, float]:
    """Return the mean NPMI of leading words, and the share of distinct leading words."""
    from nmfscale.methods.topics.coherence import Cooccurrences, coherences

    order = np.argsort(-topics, axis=1)
    leading = list(order[:, :N_LEADING])
    pairs = Cooccurrences(leading, whole.shape[1])
    pairs.add(whole)
    npmi, _ = coherences(pairs.of_topics, leading, whole.shape[0])
    longer = order[:, :N_DISTINCT]
    return float(npmi.mean()), len(np.unique(longer)) / longer.size


def measure(options) -> list[dict]:
    """Return a row for each model and seed: coherence, predictions, seconds."""
    rng, K, seeds, sweeps = np.random.default_rng(options.seed), options.topics, range(2), SWEEPS
    if options.smoke:
        whole = problems.load_counts("docstrings-small")
        fitted, new = (pieces_of(whole, 8, 200, rng) for _ in range(2))
        seeds, sweeps = range(1), (2, 4)
    else:
        whole, fitted, new = newsgroup_pieces(rng)
    known, other = halves(new, rng)
    rows: list[dict] = []
    for seed in seeds:
        for name, topics, proportions, seconds in fits(fitted, known, K, seed, sweeps):
            npmi, distinct = quality(topics, whole)
            rows.append({
                "model": name, "seed": seed, "K": K, "npmi": npmi, "distinct": distinct,
                "perplexity": perplexity(proportions, topics, other), "seconds": seconds,
            })  # fmt: skip
            print(*rows[-1].values(), flush=True)
    return rows


def markdown(rows: list[dict]) -> str:
    """Return the table of medians over seeds, and the command."""
    table = []
    for name in dict.fromkeys(row["model"] for row in rows):
        npmi, distinct, found, seconds = (
            np.median([row[each] for row in rows if row["model"] == name])
            for each in ("npmi", "distinct", "perplexity", "seconds")
        )
        table.append({
            "model": name, "NPMI": f"{npmi:.3f}", "distinct words": f"{distinct:.2f}",
            "perplexity": f"{found:,.0f}", "seconds": f"{seconds:.1f}",
        })  # fmt: skip
    n_seeds = len({row["seed"] for row in rows})
    said = f"K = {rows[0]['K']}; medians of {n_seeds} seeds, 1 thread. `{report.command()}`"
    return "\n".join([report.table(table), "", said])


def compare(options) -> None:
    """Compare the topics of pieces of 8 words; write the table."""
    try:
        import tomotopy  # noqa: F401
    except ImportError:
        print("topics of pieces of 8 words: skipped, tomotopy is not installed")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = measure(options)
    table = markdown(rows)
    print(table)
    if not options.smoke:
        report.write_csv(options.results / "short_topics.csv", rows)
        if options.results == report.HERE / "results":
            report.write_readme(table, MARKERS)
