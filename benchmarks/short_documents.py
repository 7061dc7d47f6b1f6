"""Short documents: how well models predict new samples, compared with one topic and scikit-learn.

The words of each document are put in random order and cut into pieces of 8, 30, 100 or 1,000 words;
shorter documents are joined. Four fifths of the pieces are fitted, with the words that occur in at
least five of them. Half of each remaining piece is known, and the perplexity is that of the other
half (document completion). All perplexities are divided by that of LDA with one topic.

Then topics of pieces of 8 words of the texts of 20 newsgroups are compared with those of collapsed
Gibbs sampling (tomotopy): mean NPMI of their 10 leading words in the whole training documents, the
perplexity of pieces of the test documents, and seconds of the processor.

    python benchmarks/short_documents.py                     docstrings, newsgroups, neurips
    python benchmarks/short_documents.py --problems docstrings --lengths 8
    python benchmarks/short_documents.py --lengths           only the topics of pieces of 8 words
    python benchmarks/short_documents.py --smoke             a few seconds, writes nothing

Writes results/short_documents.csv, results/short_topics.csv and the tables in README.md.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import numpy as np
import problems
import report
import short_topics

MARKERS = ("<!-- short documents:start -->", "<!-- short documents:end -->")


def models(K: int, seed: int) -> dict[str, object]:
    """Return the models to fit; the first has one topic."""
    from sklearn.decomposition import LatentDirichletAllocation

    import nmfscale

    options = {"random_state": seed, "n_threads": 1}
    return {
        "one topic": nmfscale.LDA(1, **options),
        "LDA": nmfscale.LDA(K, **options),
        "LDA, collapsed": nmfscale.LDA(K, inference="collapsed", **options),
        "LDA, alpha = 1 / K": nmfscale.LDA(K, estimate_prior="none", **options),
        "TopicModel, priors of 1.1": nmfscale.TopicModel(
            K, prior_factors=1.1, prior_loadings=1.1, **options
        ),
        "GammaPoisson": nmfscale.GammaPoisson(K, **options),
        "scikit-learn LDA": LatentDirichletAllocation(K, random_state=seed),
    }  # fmt: skip


def measure(name: str, n_words: int, options) -> list[dict]:
    """Fit every model to pieces of one length; return one row for each."""
    rng = np.random.default_rng(options.seed)
    X = short_topics.pieces_of(problems.load_counts(name), n_words, options.words // n_words, rng)
    n_fitted = 4 * X.shape[0] // 5
    there = np.bincount(X[:n_fitted].indices, minlength=X.shape[1]) >= 5
    fitted, new = X[:n_fitted][:, there], X[n_fitted:][:, there]
    known, other = short_topics.halves(new, rng)
    rows: list[dict] = []
    for model_name, model in models(options.topics, options.seed).items():
        proportions = np.float64(model.fit(fitted).transform(known))
        topics = np.float64(model.components_)
        proportions *= topics.sum(axis=1)
        proportions /= np.maximum(proportions.sum(axis=1, keepdims=True), 1e-300)
        found = short_topics.perplexity(
            proportions, topics / topics.sum(axis=1, keepdims=True), other
        )
        rows.append({
            "problem": name, "words": n_words, "samples": n_fitted, "K": options.topics,
            "model": model_name, "perplexity": found,
            "to_one_topic": found / (rows[0]["perplexity"] if rows else found),
        })  # fmt: skip
        print(name, n_words, model_name, f"{found:.1f}", f"{rows[-1]['to_one_topic']:.3f}",
              flush=True)  # fmt: skip
    return rows


def markdown(rows: list[dict]) -> str:
    """Return the table and the command."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    table: list[tuple[str, ...]] = [
        ("corpus", "words a piece", "pieces", "perplexity of one topic", *names[1:]),
        ("---",) * (len(names) + 3),
    ]  # fmt: skip
    for first in range(0, len(rows), len(names)):
        here = rows[first : first + len(names)]
        table.append((
            here[0]["problem"], f"{here[0]['words']:,}", f"{here[0]['samples']:,}",
            f"{here[0]['perplexity']:,.0f}", *(f"{row['to_one_topic']:.2f}" for row in here[1:]),
        ))  # fmt: skip
    return "\n".join([
        *("| " + " | ".join(cells) + " |" for cells in table), "",
        f"K = {rows[0]['K']}; perplexities of models divided by the perplexity of one topic. "
        f"`{report.command()}`",
    ])  # fmt: skip


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", default=["docstrings", "newsgroups", "neurips"])
    parser.add_argument("--lengths", type=int, nargs="*", default=[8, 30, 100, 1000])
    parser.add_argument("--words", type=int, default=160_000, help="number of words in all pieces")
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.problems, options.lengths = ["docstrings-small"], [8]
        options.words, options.topics = 4000, 4
    rows = []
    for name in options.problems:
        if reason := problems.available(name):
            print(reason)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for n_words in options.lengths:
                rows += measure(name, n_words, options)
    table = markdown(rows) if rows else ""
    print(table)
    if rows and not options.smoke:
        report.write_csv(options.results / "short_documents.csv", rows)
        if options.results == report.HERE / "results":
            report.write_readme(table, MARKERS)
    if options.smoke or "NMFSCALE_DATA" in os.environ:
        short_topics.compare(options)


if __name__ == "__main__":
    main()
