"""The samples of a Structure plot: their groups, a subset of them, and their order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..counts.names import is_missing

_NO_GROUP = "(no group)"


def grouping(groups: Any, n_samples: int) -> tuple[list[str], np.ndarray]:
    """Return the labels in drawing order and, for each sample, the index of its label."""
    if groups is None:
        return [""], np.zeros(n_samples, dtype=np.intp)
    categorical = getattr(groups, "cat", groups)  # where a pandas Series has its categories
    values = np.asarray(groups, dtype=object)
    if values.shape != (n_samples,):
        raise ValueError(
            f"groups must hold one label per sample, shape ({n_samples},); got {values.shape}."
        )
    missing = [is_missing(value) for value in values]
    labels = np.where(missing, _NO_GROUP, values.astype(str)).tolist()
    order: list[str] = []
    if hasattr(categorical, "categories"):
        order = [str(label) for label in categorical.categories]
    present = set(labels)
    order = [label for label in order if label in present]
    order += sorted(present.difference(order), key=_rank)
    number = {label: place for place, label in enumerate(order)}
    return order, np.array([number[label] for label in labels], dtype=np.intp)


def _rank(label: str) -> tuple[bool, float, str]:
    """Return the sort key of a label: numbers by size, then text, then samples without a group."""
    try:
        size = float(label)
    except ValueError:
        size = math.inf
    return label == _NO_GROUP, size if math.isfinite(size) else math.inf, label


def thinned(members: list[np.ndarray], max_samples: int, rng: Any) -> list[np.ndarray]:
    """Select about `max_samples` of all members, by group size; keep small groups visible."""
    sizes = np.array([len(member) for member in members])
    if sizes.sum() <= max_samples:
        return members
    ends = np.rint(np.cumsum(sizes) * (max_samples / sizes.sum())).astype(int)
    least = max(1, max_samples // (10 * len(members)))
    quotas = np.minimum(sizes, np.maximum(least, np.diff(ends, prepend=0)))
    return [
        np.sort(rng.permutation(member)[:quota])
        for member, quota in zip(members, quotas, strict=True)
    ]


def _topic_chain(shares: np.ndarray, dominant: np.ndarray) -> list[int]:
    """Order the topics that dominate some sample, so that neighbouring topics share samples."""
    rest, sizes = np.unique(dominant, return_counts=True)
    overlap = shares.T @ shares
    norm = np.sqrt(overlap.diagonal())
    chain = [int(rest[sizes.argmax()])]
    left = [int(topic) for topic in rest if topic != chain[0]]
    while left:
        ends = [chain[0], chain[-1]]
        similarity = overlap[np.ix_(ends, left)] / (norm[ends][:, None] * norm[left])
        end, nearest = np.unravel_index(similarity.argmax(), similarity.shape)
        chain.insert(0 if end == 0 else len(chain), left.pop(int(nearest)))
    return chain


def order_within(shares: np.ndarray) -> np.ndarray:
    """Order a group's samples by dominant topic, with smooth transitions between topics."""
    dominant = shares.argmax(axis=1)
    chain = _topic_chain(shares, dominant)
    if len(chain) == 1:
        return np.argsort(-shares[:, chain[0]], kind="stable")
    blocks = []
    for place, topic in enumerate(chain):
        block = np.flatnonzero(dominant == topic)
        # At the ends of the chain, the topic itself replaces the missing neighbour.
        before = chain[place - 1] if place > 0 else topic
        after = chain[place + 1] if place + 1 < len(chain) else topic
        slide = shares[block, after] - shares[block, before]
        blocks.append(block[np.argsort(slide, kind="stable")])
    return np.concatenate(blocks)
