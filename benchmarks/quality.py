"""Quality of topics: coherence beside gensim's; topics of many starts beside a consensus by hand.

    python benchmarks/quality.py            needs NMFSCALE_DATA, and gensim for the first part
    python benchmarks/quality.py --smoke    small problems, writes nothing

Part "coherence": NPMI and UMass of the topics of a fit, by `topic_quality` and by gensim's
CoherenceModel with whole documents; largest difference, and processor seconds. `topic_quality` also
computes exclusivity, sizes and deviances in the same pass. Part "stability": processor seconds of
`stability` with ten starts, of ten single fits, and of ten fits by scikit-learn's NMF whose topics
are clustered as by cNMF; and the share of the consensus topics that each finds in nine of ten fits.
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
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF

from nmfscale import TopicModel, as_counts, stability, topic_quality
from nmfscale.datasets import simulate_topic_counts

# Kotliar et al. (2019): the threshold of the mean distance from the nearest neighbours.
THRESHOLD = 0.5


def counts_of(name: str, n_samples: int | None = None) -> sp.csr_array:
    """Return counts, of random samples if there are too many, without the rarest features."""
    if name == "simulated":
        return sp.csr_array(simulate_topic_counts(200, 100, 4, random_state=0)[0])
    X = sp.csr_array(sp.load_npz(Path(os.environ["NMFSCALE_DATA"]) / f"{name}.npz"))
    if n_samples is not None:
        X = X[np.sort(np.random.default_rng(0).permutation(X.shape[0])[:n_samples])]
    if name == "newsgroups" or n_samples is not None:
        X = sp.csr_array(X[:, np.bincount(X.indices, minlength=X.shape[1]) >= 5])
    return X


def compare_coherence(names: list[tuple[str, int]]) -> list[dict]:
    """Return a row for each corpus and program."""
    rows = []
    for name, K in names:
        X = counts_of(name)
        model = TopicModel(K, random_state=0, tol=1e-3, n_threads=1).fit(X)
        counts = as_counts(X)
        begin = time.process_time()
        found = topic_quality(model, counts, score="probability")
        rows.append({
            "counts": name, "K": K, "program": "nmfscale, all measures",
            "seconds": round(time.process_time() - begin, 2),
            "NPMI": f"{found.npmi.mean():.4f}", "UMass": f"{found.umass.mean():.4f}",
            "largest difference": "",
        })  # fmt: skip
        try:
            rows.append(by_gensim(name, X, found))
        except ImportError:
            print("gensim: skipped, it is not installed")
        print(*rows[-2:], sep="\n", flush=True)
    return rows


def by_gensim(name: str, X: sp.csr_array, found: object) -> dict:
    """Return the row of gensim; its texts are documents with each word once."""
    from gensim.corpora import Dictionary
    from gensim.models.coherencemodel import CoherenceModel

    words = [str(j) for j in range(X.shape[1])]
    texts = [
        [words[j] for j in X.indices[first:last]]
        for first, last in zip(X.indptr[:-1], X.indptr[1:], strict=True)
    ]
    dictionary = Dictionary([words])
    corpus = [[(dictionary.token2id[word], 1) for word in text] for text in texts]
    topics = [[words[j] for j in top] for top in found.top_features]
    window = max(map(len, texts)) + 1
    options = {"topics": topics, "dictionary": dictionary, "topn": found.n_top, "processes": 1}
    begin = time.process_time()
    npmi = CoherenceModel(texts=texts, coherence="c_npmi", window_size=window, **options)
    umass = CoherenceModel(corpus=corpus, coherence="u_mass", **options)
    values = np.array([each.get_coherence_per_topic() for each in (npmi, umass)])
    seconds = time.process_time() - begin
    return {
        "counts": name, "K": len(topics), "program": "gensim, both coherences",
        "seconds": round(seconds, 2),
        "NPMI": f"{values[0].mean():.4f}", "UMass": f"{values[1].mean():.4f}",
        "largest difference": f"{np.abs(values - [found.npmi, found.umass]).max():.1e}",
    }  # fmt: skip


def compare_stability(
    names: list[tuple[str, int]], n_starts: int, n_samples: int | None = None
) -> list[dict]:
    """Return a row for each set of counts and way to a consensus."""
    rows = []
    for name, K in names:
        X = counts_of(name, n_samples)
        begin = time.process_time()
        found = stability(TopicModel(K), X, n_starts, random_state=0, n_threads=1)
        seconds = time.process_time() - begin
        shares = found.consensus.shares if found.consensus is not None else np.zeros(K)
        begin = time.process_time()
        for seed in found.seeds:
            TopicModel(K, init="random", random_state=int(seed), n_threads=1).fit(X)
        single = time.process_time() - begin
        begin = time.process_time()
        peer = consensus_of_nmf(X, K, n_starts)
        for program, spent, of_fits in (
            ("stability", seconds, shares), (f"{n_starts} single fits", single, None),
            ("scikit-learn's NMF, topics clustered as by cNMF", time.process_time() - begin, peer),
        ):  # fmt: skip
            rows.append({
                "counts": name, "K": K, "program": program, "seconds": round(spent, 1),
                "topics in 9 of 10 fits": "" if of_fits is None else int((of_fits >= 0.9).sum()),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def consensus_of_nmf(X: sp.csr_array, K: int, n_starts: int) -> np.ndarray:
    """Return the share of the fits that have each consensus topic.

    As cNMF: least squares on features that are scaled to unit variance, topics of unit length,
    without those whose mean distance from the nearest neighbours is above the threshold.
    """
    mean = np.asarray(X.mean(axis=0)).ravel()
    variance = np.asarray(X.multiply(X).mean(axis=0)).ravel() - mean**2
    scaled = X.astype(float) @ sp.diags_array(1 / np.sqrt(np.maximum(variance, 1e-12)))
    topics = np.concatenate([
        NMF(K, init="random", random_state=seed, max_iter=1000, tol=1e-4).fit(scaled).components_
        for seed in range(n_starts)
    ])  # fmt: skip
    topics /= np.maximum(np.linalg.norm(topics, axis=1, keepdims=True), 1e-12)
    distances = np.sqrt(np.maximum(2 - 2 * topics @ topics.T, 0))
    nearest = np.sort(distances, axis=1)[:, 1 : 1 + max(1, round(0.3 * n_starts))]
    kept = np.flatnonzero(nearest.mean(axis=1) <= THRESHOLD)
    if len(kept) < K:
        return np.zeros(K)
    clusters = KMeans(K, n_init=10, random_state=1).fit_predict(topics[kept])
    fits = kept // K
    return np.array([len(set(fits[clusters == k])) / n_starts for k in range(K)])


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="small problems, write nothing")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--part", choices=("coherence", "stability"), help="default: both")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.smoke:
        compare_coherence([("simulated", 4)])
        compare_stability([("simulated", 4)], 3)
        return
    tables = {}
    if arguments.part != "stability":
        tables["coherence"] = compare_coherence([("neurips", 10), ("newsgroups", 20)])
    if arguments.part != "coherence":
        tables["stability"] = compare_stability([("pbmc_facs", 6)], 10, 1000)
    for part, rows in tables.items():
        report.write_csv(arguments.results / f"quality_{part}.csv", rows)
        if arguments.results == report.HERE / "results":
            markers = f"<!-- quality {part}:start -->", f"<!-- quality {part}:end -->"
            report.write_readme(report.table(rows), markers)


if __name__ == "__main__":
    main()
