"""Simulated samples whose groups have the same mean proportions, for calibration.py.

Each function draws one set. Groups differ only in what a test of means should ignore: the number
of units, the samples per unit, the counts per sample, or the spread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nmfscale import LDA, TopicModel

Array = np.ndarray
Generator = np.random.Generator


@dataclass(frozen=True)
class Drawn:
    """A set: a fitted model or proportions (n, T), group labels, the mean of groups (T,).

    `mean` is None where it is not known: for documents with fitted topics, unless the counts (n, m)
    and the true frequencies `topics` (T, m) are given.
    """

    model: Any
    groups: Array
    units: Array | None = None
    strata: Array | None = None
    mean: Array | None = None
    counts: Array | None = None
    topics: Array | None = None

    @property
    def labels(self) -> dict[str, Array | None]:
        """Return units and strata as keyword arguments."""
        return {"units": self.units, "strata": self.strata}


def means_of(n_topics: int) -> Array:
    """Return mean proportions that decrease by a quarter from topic to topic."""
    frequent = 0.75 ** np.arange(n_topics)
    return frequent / frequent.sum()


def dirichlet(rng: Generator, parameters: Array, size: int) -> Array:
    """Draw proportions; if all parameters are tiny, a single topic gets everything."""
    found = rng.dirichlet(np.maximum(parameters, 1e-6), size)
    lost = ~np.isfinite(found).all(axis=1) | (found.sum(axis=1) == 0)
    p = parameters / parameters.sum()
    found[lost] = np.eye(p.size)[rng.choice(p.size, lost.sum(), p=p)]
    return found


def of_samples(rng: Generator, sizes: list[int], spread: list[float], n_topics: int = 6) -> Drawn:
    """Draw Dirichlet samples, each its own unit, with a size and a concentration per group."""
    mean = means_of(n_topics)
    rows = [dirichlet(rng, c * mean, n) for n, c in zip(sizes, spread, strict=True)]
    return Drawn(np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes), mean=mean)


def of_units(
    rng: Generator, sizes: list[int], samples: list[int], between: list[float], n_topics: int = 6,
    within: float = 4.0,
) -> Drawn:  # fmt: skip
    """Draw units around the mean with concentration `between`, and samples around units."""
    mean, rows, groups, units = means_of(n_topics), [], [], []
    for g, (n, m, spread) in enumerate(zip(sizes, samples, between, strict=True)):
        for of_unit in dirichlet(rng, spread * mean, n):
            rows.append(dirichlet(rng, within * of_unit, m))
            groups += [g] * m
            units += [len(rows)] * m
    return Drawn(np.concatenate(rows), np.array(groups), np.array(units), mean=mean)


def of_strata(rng: Generator, sizes: list[list[int]], spread: float, n_topics: int = 6) -> Drawn:
    """Draw strata with different means and given numbers of units per group."""
    rows, groups, strata = [], [], []
    for s, of_groups in enumerate(sizes):
        mean = dirichlet(rng, 5 * means_of(n_topics), 1)[0]
        rows.append(dirichlet(rng, spread * mean, sum(of_groups)))
        groups += np.repeat(np.arange(len(of_groups)), of_groups).tolist()
        strata += [s] * sum(of_groups)
    return Drawn(np.concatenate(rows), np.array(groups), strata=np.array(strata))


def of_documents(
    rng: Generator, sizes: list[int], words: list[int], model: type, n_empty: int = 0,
    n_topics: int = 5, n_features: int = 200, overlap: float = 0.5, thinned: bool = False,
) -> Drawn:  # fmt: skip
    """Draw documents with a given length per group from overlapping topics, and fit a model.

    The first `n_empty` documents of the last group are empty. With `thinned`, all documents are
    thinned to the length of the first group before the fit.
    """
    common = rng.dirichlet(np.full(n_features, 0.3))
    topics = rng.dirichlet(np.full(n_features, 0.1), n_topics)
    frequencies = dirichlet(rng, 3 * means_of(n_topics), sum(sizes)) @ (
        overlap * common + (1 - overlap) * topics
    )
    groups = np.repeat(np.arange(len(sizes)), sizes)
    n_words = np.array(words)[groups]
    n_words[np.flatnonzero(groups == len(sizes) - 1)[:n_empty]] = 0
    counts = rng.multinomial(n_words, frequencies / frequencies.sum(axis=1, keepdims=True))
    if thinned:
        draw = partial(rng.multivariate_hypergeometric, nsample=words[0])
        counts = np.array([draw(row) for row in counts])
    fitted = model(n_topics, random_state=int(rng.integers(2**31)), n_threads=1).fit(counts)
    return Drawn(fitted, groups)


def of_known_topics(
    rng: Generator, sizes: list[int], words: int, n_topics: int = 4, n_features: int = 120
) -> Drawn:
    """Draw documents from topics with little overlap, and fit a TopicModel."""
    topics = rng.dirichlet(np.full(n_features, 0.05), n_topics)
    mean = means_of(n_topics)
    shares = dirichlet(rng, 2 * mean, sum(sizes))
    counts = rng.multinomial(words, shares @ topics / (shares @ topics).sum(1, keepdims=True))
    model = TopicModel(
        n_topics, random_state=int(rng.integers(2**31)), n_threads=1, tol=1e-6, gain_tol=0
    )
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return Drawn(model.fit(counts), groups, mean=mean, counts=counts, topics=topics)


# Sets by name. A hundred sets of FITS take seconds, those of SETS less.
SETS: dict[str, Callable[[Generator], Drawn]] = {
    "equal spread, 30 + 30": partial(of_samples, sizes=[30, 30], spread=[10, 10]),
    "equal spread, 5 + 25": partial(of_samples, sizes=[5, 25], spread=[10, 10]),
    "four groups, 3 + 3 + 3 + 3": partial(of_samples, sizes=[3] * 4, spread=[10] * 4),
    "20 topics, some rare, 30 + 30": partial(
        of_samples, sizes=[30, 30], spread=[10, 10], n_topics=20
    ),
    "8 wide + 40 narrow": partial(of_samples, sizes=[8, 40], spread=[2, 30]),
    "8 narrow + 40 wide": partial(of_samples, sizes=[8, 40], spread=[30, 2]),
    "8 wide + 40 narrow, 20 topics": partial(
        of_samples, sizes=[8, 40], spread=[4, 60], n_topics=20
    ),
    "30 wide + 30 narrow": partial(of_samples, sizes=[30, 30], spread=[2, 30]),
    "8 + 8 wide + 40 + 40 narrow": partial(of_samples, sizes=[8, 8, 40, 40], spread=[2, 2, 30, 30]),
    "units of 3 + of 30 samples, 30 + 30": partial(
        of_units, sizes=[30, 30], samples=[3, 30], between=[8, 8]
    ),
    "units of 1 + of 30 samples, 60 + 60": partial(
        of_units, sizes=[60, 60], samples=[1, 30], between=[1e6, 1e6]
    ),
    "8 units of 3 + 40 of 30 samples": partial(
        of_units, sizes=[8, 40], samples=[3, 30], between=[8, 8]
    ),
    "units of 2 + of 40 samples, 20 + 20": partial(
        of_units, sizes=[20, 20], samples=[2, 40], between=[8, 8]
    ),
    "4 + 4": partial(of_samples, sizes=[4, 4], spread=[10, 10]),
    "10 + 10": partial(of_samples, sizes=[10, 10], spread=[10, 10]),
    "15 wide + 60 narrow": partial(of_samples, sizes=[15, 60], spread=[2, 30]),
    "12 + 12 wide + 100 narrow": partial(of_samples, sizes=[12, 12, 100], spread=[3, 3, 100]),
    "12 + 12 narrow + 100 wide": partial(of_samples, sizes=[12, 12, 100], spread=[100, 100, 3]),
    "three confounded strata": partial(of_strata, sizes=[[12, 3], [3, 12], [8, 8]], spread=10),
}
FITS: dict[str, Callable[[Generator], Drawn]] = {
    "TopicModel, 100 of 20 + 100 of 200 words": partial(
        of_documents, sizes=[100, 100], words=[20, 200], model=TopicModel
    ),
    "LDA, 100 of 20 + 100 of 200 words": partial(
        of_documents, sizes=[100, 100], words=[20, 200], model=LDA
    ),
    "TopicModel, 100 of 8 + 100 of 200 words": partial(
        of_documents, sizes=[100, 100], words=[8, 200], model=TopicModel
    ),
    "topics that share 80%, 100 of 50 + 100 of 200 words": partial(
        of_documents, sizes=[100, 100], words=[50, 200], model=TopicModel, overlap=0.8
    ),
    "topics that share 80%, 100 of 20 + 100 of 200 words": partial(
        of_documents, sizes=[100, 100], words=[20, 200], model=TopicModel, overlap=0.8
    ),
    "topics that share 80%, 100 of 8 + 100 of 200 words": partial(
        of_documents, sizes=[100, 100], words=[8, 200], model=TopicModel, overlap=0.8
    ),
    "the same, thinned to 8 words before the fit": partial(
        of_documents, sizes=[100, 100], words=[8, 200], model=TopicModel, overlap=0.8, thinned=True
    ),
    "known topics, 60 + 60 of 200 words": partial(of_known_topics, sizes=[60, 60], words=200),
    "TopicModel, 40 empty of 100 + 100": partial(
        of_documents, sizes=[100, 100], words=[100, 100], model=TopicModel, n_empty=40
    ),
}
