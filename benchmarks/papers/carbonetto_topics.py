"""Carbonetto et al. (2021), section 5: what the topics are, by Structure plots and scatter plots.

Topic models are fitted by CD with extrapolation, after EM updates from a random start.  Figure 3:
samples by newsgroup or cell type, and in clusters by their topic proportions.  Figures A10 and A11:
the frequency of every feature in the most widespread topic against that in the other topics.

    python benchmarks/papers/carbonetto_topics.py             a minute
    python benchmarks/papers/carbonetto_topics.py --problems pbmc68k:7:4
    python benchmarks/papers/carbonetto_topics.py --smoke

A problem is COUNTS:TOPICS:CLUSTERS.  Writes results/carbonetto_topics.csv, and a picture
carbonetto_topics_NAME.png for each of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import experiment
import numpy as np

# A widespread topic is one with more than this share in most samples.
PRESENT = 0.1
# What the text and the captions of the paper say, for counts in its Table 1.
PAPER = {
    "newsgroups": "topic 1, in most documents; its words point to no newsgroup (A10)",
    "pbmc68k": "topic 6, in most cells; ribosomal genes (A11). Clusters: 3,733, 4,028, 163, 60,655",
}


@dataclass
class Found:
    """A fitted model, its counts, groups of samples, clusters, and the most widespread topic."""

    name: str
    counts: Any
    model: Any
    groups: list[str] | None
    clusters: Any
    widespread: int

    @property
    def present(self) -> np.ndarray:
        """Return the share of samples with more than `PRESENT` of each topic."""
        return (self.model.loadings_ > PRESENT).mean(axis=0)


def counts_of(name: str) -> tuple[Any, list[str] | None]:
    """Return named counts, and groups of the samples, if they are known."""
    from nmfscale import as_counts

    counts, known = experiment.counts_of(name), experiment.labels_of(name)
    if "features" in known:
        counts = as_counts(counts, feature_names=known["features"])
    return counts, known.get("groups")


def fit(name: str, K: int, n_clusters: int, n_start: int, options: Any) -> Found:
    """Fit a topic model by extrapolated CD after EM updates, and find clusters of samples."""
    import problems

    from nmfscale import TopicModel, cluster_samples

    counts, groups = counts_of(name)
    L, F = problems.em_start(counts, K, n_iter=n_start)
    model = TopicModel(
        K, solver="scd", max_iter=10 if options.smoke else 1_000, n_threads=options.threads
    ).fit(counts, loadings=L, components=F.T)
    model = model.rename_topics([f"topic {k + 1}" for k in range(K)])
    clusters = cluster_samples(model, n_clusters, random_state=1)
    widespread = int((model.loadings_ > PRESENT).mean(axis=0).argmax())
    return Found(name, counts, model, groups, clusters, widespread)


def row_of(found: Found) -> dict:
    """Return the line of the table."""
    from nmfscale import differential_features

    topic, scores = found.widespread, differential_features(found.model, found.counts)
    leading = scores.order(topic)[:10]
    names = found.counts.feature_names
    words = [str(j if names is None else names[j]) for j in leading]
    return {
        "counts, K": f"{found.name}, {found.model.n_components}",
        "paper": PAPER.get(found.name),
        "most widespread topic": f"{topic + 1}",
        f"samples with more than {PRESENT:.0%} of it": f"{found.present[topic]:.0%}",
        "the same, median of the other topics":
            f"{np.median(np.delete(found.present, topic)):.0%}",
        "leading features": ", ".join(words),
        "sizes of clusters": ", ".join(f"{size:,}" for size in found.clusters.sizes),
    }  # fmt: skip


def draw(found: Found) -> Any:
    """Draw Structure plots by group and by cluster, and the scatter plot."""
    from nmfscale import differential_features, pl

    with_groups = found.groups is not None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 10 if with_groups else 8), layout="constrained")
    grid = figure.add_gridspec(2 + with_groups, 2, height_ratios=[1.2] * with_groups + [1, 2.2])
    if with_groups:
        ax = figure.add_subplot(grid[0, :])
        pl.structure_plot(found.model, found.groups, ax=ax)
        ax.set_title(f"{found.name}, samples by group", fontsize=10)
    ax = figure.add_subplot(grid[-2, :])
    # Large clusters are subsampled, as in Figure 3, so that small ones can be seen.
    rng, labels = np.random.default_rng(0), found.clusters.labels
    kept = np.concatenate([
        rng.permutation(np.flatnonzero(labels == each))[:600] for each in np.unique(labels)
    ])  # fmt: skip
    names = [f"cluster {each + 1}" for each in labels[kept]]
    pl.structure_plot(
        found.model.loadings_[kept], names, topic_names=list(found.model.topic_names_), ax=ax
    )
    ax.set_title("clusters by proportions, at most 600 samples of each", fontsize=10)
    scores = differential_features(found.model, found.counts)
    others = [found.widespread, int(np.argsort(found.present)[0])]
    for column, topic in enumerate(others):
        ax = figure.add_subplot(grid[-1, column])
        pl.topic_scatter(scores, topic, ax=ax)
        ax.set_title(("most" if column == 0 else "least") + " widespread topic", fontsize=10)
    return figure


def main() -> None:
    """Fit every problem, draw it, and keep the table."""
    parser = experiment.parser(__doc__)
    parser.add_argument("--problems", nargs="+", metavar="COUNTS:TOPICS:CLUSTERS")
    options = parser.parse_args()
    real = ["newsgroups:10:6", "neurips:10:6", "pbmc_facs:6:4"]
    asked = options.problems or (["docstrings-small:4:3"] if options.smoke else real)
    n_start = 1_000 if options.full else 5 if options.smoke else 50
    warnings.simplefilter("ignore")  # a fit of few iterations does not converge
    rows, figures = [], {}
    for problem in asked:
        name, K, n_clusters = problem.split(":")
        if experiment.available([name]):
            found = fit(name, int(K), int(n_clusters), n_start, options)
            rows.append(row_of(found))
            print(rows[-1], flush=True)
            figures[f"carbonetto_topics_{name}"] = draw(found)
    if rows:
        experiment.keep("carbonetto_topics", rows, figures, options)


if __name__ == "__main__":
    main()
