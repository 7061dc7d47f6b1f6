"""Corpora of gensim: documents as pairs of a word's number and its count; dictionaries."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..counts.foreign import ObjectTypeError, packages_of
from ..counts.memory import Counts, checked_counts
from ..counts.names import shown

Array = NDArray[Any]
_LISTS = list | tuple


def is_corpus(X: Any) -> bool:
    """Whether an object is a corpus: of gensim, or a list of documents of pairs with a number.

    Only the first words of a list are examined.
    """
    if isinstance(X, _LISTS):
        documents = [document for document in islice(X, 1000) if isinstance(document, _LISTS)]
        pairs = [pair for document in documents for pair in islice(document, 1)]
        return bool(pairs) and all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], Integral)
            for pair in pairs
        )
    return "gensim" in packages_of(type(X)) and hasattr(X, "__iter__") and not is_dictionary(X)


def is_dictionary(names: Any) -> bool:
    """Whether an object is a Dictionary of gensim."""
    return hasattr(names, "token2id") and hasattr(names, "doc2bow")


def words_of(dictionary: Any) -> list[str]:
    """Return the words of a Dictionary of gensim in the order of their numbers."""
    numbers = sorted(dictionary.token2id.items(), key=lambda pair: pair[1])
    if [number for _, number in numbers] != list(range(len(numbers))):
        raise ValueError(
            f"the Dictionary has {len(numbers):,} words, and numbers up to {numbers[-1][1]:,}: "
            "call its compactify() before doc2bow makes the corpus."
        )
    return [str(word) for word, _ in numbers]


def corpus_counts(corpus: Iterable[Any], words: list[str] | None, subject: str) -> Counts:
    """Return a corpus as counts, documents x words; without `words` there are as many as occur."""
    numbers: list[Array] = []
    values: list[Array] = []
    ends = [0]
    for i, document in enumerate(corpus):
        try:
            pairs = np.array(document if len(document) else np.empty((0, 2)), np.float64)
            if pairs.ndim != 2 or pairs.shape[1] != 2:
                raise ValueError
        except (TypeError, ValueError):
            raise ObjectTypeError(
                f"{subject} is a corpus, and document {i} is {shown(document)}: pairs of a word's "
                "number and its count are needed, as dictionary.doc2bow makes them."
            ) from None
        numbers.append(pairs[:, 0])
        values.append(pairs[:, 1])
        ends.append(ends[-1] + len(pairs))
    if not numbers:
        raise ValueError(f"{subject} is a corpus without documents.")
    columns, data = np.concatenate(numbers), np.concatenate(values)
    size = int(columns.max(initial=-1)) + 1 if words is None else len(words)
    wrong = (columns < 0) | (columns >= size) | (columns != np.floor(columns))
    if wrong.any():
        raise ValueError(
            f"{subject} is a corpus with the word number {columns[wrong][0]:g}, and feature_names "
            f"has {size:,} words: pass the dictionary that made the corpus."
        )
    if (data == np.floor(data)).all() and np.abs(data).max(initial=0) < 2**31:
        data = data.astype(np.int32)
    matrix = sp.csr_array((data, columns.astype(np.int64), np.array(ends)), (len(numbers), size))
    counts: Counts = checked_counts(matrix, subject=subject, feature_names=words, of_text=True)
    return counts
