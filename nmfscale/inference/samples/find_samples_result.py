"""The result of find_samples: leading samples of topics, and their texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...models.tables import Columns
from ...terminal import visible_name
from ..results.files import Result

Array = NDArray[Any]
# Letters of a text that are shown.
_SHOWN = 200


@dataclass(frozen=True, repr=False)
class LeadingSamples(Result):
    """The samples with the largest proportions of each topic, the first one first.

    Attributes
    ----------
    topic_names : tuple
        Names or numbers of the topics.
    samples : tuple of ndarray of int
        For each topic the numbers of its samples.
    proportions : tuple of ndarray of float64
        Their proportions of the topic.
    totals : tuple of ndarray of float64
        Their numbers of counts; lengths of texts, or sums of loadings, if counts are not known.
    sample_names : ndarray or None
        Names of all samples.
    texts : ndarray of shape (n_samples,), object, or None
        Texts of all samples.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic and sample:
    ``topic``, ``rank`` (from 0), ``sample``, ``proportion``, ``total`` and, if there are texts,
    ``text``.
    """

    topic_names: tuple[Any, ...]
    samples: tuple[Array, ...]
    proportions: tuple[Array, ...]
    totals: tuple[Array, ...]
    sample_names: Array | None
    texts: Array | None

    def _columns(self) -> Columns:
        values = {"proportion": self.proportions, "total": self.totals}
        of_topics = {"topic": self.topic_names}
        return ranked_columns(of_topics, self.samples, values, self.sample_names, self.texts)

    def __repr__(self) -> str:
        """Show the samples of each topic with the beginnings of their texts."""
        lines = []
        for topic, samples, shares in zip(
            self.topic_names, self.samples, self.proportions, strict=True
        ):
            lines.append(visible_name(topic) if isinstance(topic, str) else f"topic {topic}")
            for sample, share in zip(samples.tolist(), shares.tolist(), strict=True):
                name = (
                    f"sample {sample}" if self.sample_names is None else self.sample_names[sample]
                )
                text = beginning_of_text(self.texts, sample)
                lines.append(visible_name(f"  {share:4.0%}  {name}{text}"))
        return "\n".join(lines)


def beginning_of_text(texts: Array | None, sample: int) -> str:
    """Return the beginning of the text of a sample on one line, after a colon; "" without texts."""
    if texts is None:
        return ""
    words = " ".join(texts[sample][: 4 * _SHOWN].split())
    cut = len(words) > _SHOWN
    return f": {words[:_SHOWN]}{chr(0x2026) if cut else ''}"


def ranked_columns(
    groups: dict[str, tuple[Any, ...]], samples: tuple[Array, ...],
    values: dict[str, tuple[Array, ...]], sample_names: Array | None, texts: Array | None,
) -> Columns:  # fmt: skip
    """Return a table of the samples of each group, best first; `groups` names its first column."""
    (head, labels), at = next(iter(groups.items())), np.concatenate(samples)
    sizes = [len(of_group) for of_group in samples]
    columns: Columns = {
        head: np.repeat(name_array(labels), sizes),
        "rank": np.concatenate([np.arange(size) for size in sizes]),
        "sample": at if sample_names is None else np.asarray(sample_names)[at],
        **{name: np.concatenate(parts) for name, parts in values.items()},
    }
    return columns if texts is None else columns | {"text": texts[at]}
