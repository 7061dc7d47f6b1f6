"""The result of coherence: how well the words of each topic belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...models.tables import Columns, Tables
from ...terminal import table_lines
from ..results.files import Result

Array = NDArray[Any]
# Words of a topic, and topics, that the text shows.
_SHOWN, _MOST = 8, 30


@dataclass(frozen=True)
class TopicCoherence(Result):
    """Coherence of the words of topics, or of lists of words.

    Attributes
    ----------
    measure : str
        Which coherence: "c_v", "c_npmi", "c_uci" or "u_mass".
    coherence : ndarray of shape (K,), float64
        Coherence of each topic.
    words : tuple of tuple of str
        The words of each topic.
    of_words : tuple of ndarray of float64
        Coherence of each of these words with the others.
    topic_names : tuple of str
        Names of the topics.
    n_windows : int
        Number of windows, or of samples of counts.
    window_size : int or None
        Number of words in a window; None if windows are whole texts or samples.
    of_texts : bool
        Whether words were found in texts; otherwise in counts.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`:

    - "topics" (default), a row for each topic: ``topic``, ``coherence`` and ``words``, a text.
    - "words", a row for each word of a topic: ``topic``, ``rank`` (from 1), ``word`` and
      ``coherence``.
    """

    measure: str
    coherence: Array
    words: tuple[tuple[str, ...], ...]
    of_words: tuple[Array, ...]
    topic_names: tuple[str, ...]
    n_windows: int
    window_size: int | None
    of_texts: bool

    def _tables(self) -> Tables:
        return {"topics": self._of_topics, "words": self._of_words}

    def _of_topics(self) -> Columns:
        return {
            "topic": name_array(self.topic_names),
            "coherence": self.coherence,
            "words": name_array([" ".join(words) for words in self.words]),
        }

    def _of_words(self) -> Columns:
        sizes = [len(words) for words in self.words]
        return {
            "topic": np.repeat(name_array(self.topic_names), sizes),
            "rank": np.concatenate([np.arange(1, size + 1) for size in sizes]),
            "word": name_array([word for words in self.words for word in words]),
            "coherence": np.concatenate(self.of_words),
        }

    def __repr__(self) -> str:
        """Return the coherence of each topic, with its words, as text."""
        rows = [("", self.measure, "")]
        for name, value, words in list(
            zip(self.topic_names, self.coherence, self.words, strict=True)
        )[:_MOST]:
            rows.append((name, f"{value:.3f}", " ".join(words[:_SHOWN])))
        lines = table_lines(rows, leading=True)
        if len(self.words) > _MOST:
            lines.append(f"... and {len(self.words) - _MOST} more topics: see to_frame()")
        where = f"{self.n_windows:,} samples"
        if self.of_texts:
            size = "whole texts" if self.window_size is None else f"{self.window_size:,} words"
            where = f"{self.n_windows:,} windows of {size}"
        lines.append(f"mean {self.measure} {self.coherence.mean():.3f}, in {where}")
        return "\n".join(lines)
