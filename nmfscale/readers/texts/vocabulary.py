"""The words of texts, and which of them become features; in bounded memory."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from numbers import Integral
from operator import itemgetter
from typing import IO, Any, NamedTuple

# Bytes that a word takes in two dictionaries, about.
_WORD_BYTES = 400
# Words that are written and read at a time.
_TOGETHER = 4096


class WordTotal(NamedTuple):
    """A word, the number of documents that have it, and how often it occurs in all of them."""

    word: str
    n_documents: int
    total: int


class WordTotals:
    """Totals of words, added document by document; exact, in bounded memory.

    If there are too many words, they are written to a temporary file in alphabetical order, and
    counted anew; the files are merged when totals are read. The files have no names.
    """

    def __init__(self, n_bytes: int):
        self._most = max(1024, n_bytes // _WORD_BYTES)
        self._documents: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._runs: list[IO[bytes]] = []
        self.n_tokens = 0

    def add(self, words: Counter[str]) -> None:
        """Add the words of a document."""
        self._documents.update(words.keys())
        self._totals.update(words)
        self.n_tokens += words.total()
        if len(self._documents) > self._most:
            self._spill()

    def __iter__(self) -> Iterator[WordTotal]:
        """Return the totals of all words in alphabetical order."""
        runs = [*map(_read, self._runs), self._sorted()]
        before = None
        for entry in heapq.merge(*runs, key=itemgetter(0)) if self._runs else runs[0]:
            if before is not None and entry.word == before.word:
                n_documents = before.n_documents + entry.n_documents
                entry = WordTotal(entry.word, n_documents, before.total + entry.total)
            elif before is not None:
                yield before
            before = entry
        if before is not None:
            yield before

    def close(self) -> None:
        """Delete the temporary files."""
        for file in self._runs:
            file.close()
        self._runs = []

    def _sorted(self) -> Iterator[WordTotal]:
        for word in sorted(self._documents):
            yield WordTotal(word, self._documents[word], self._totals[word])

    def _spill(self) -> None:
        file = tempfile.TemporaryFile(prefix="nmfscale-")
        self._runs.append(file)
        words = self._sorted()
        while part := list(islice(words, _TOGETHER)):
            pickle.dump([tuple(entry) for entry in part], file)
        self._documents.clear()
        self._totals.clear()


def _read(file: IO[bytes]) -> Iterator[WordTotal]:
    """Read back the words of a temporary file, which only this process can have written."""
    file.seek(0)

    def parts() -> Iterator[list[tuple[str, int, int]]]:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return

    return (WordTotal(*entry) for entry in chain.from_iterable(parts()))


class Vocabulary(NamedTuple):
    """The words that become features, in alphabetical order, and how many were left out, and why.

    `left_out` are descriptions of what was left out, for the notes of the counts.
    """

    words: list[str]
    left_out: list[str]


def select_words(
    totals: Iterable[WordTotal], n_documents: int, *, min_df: int | float, max_df: int | float,
    max_features: int | None,
) -> Vocabulary:  # fmt: skip
    """Select words by the number of documents that have them, as scikit-learn does.

    Limits are numbers of documents, or shares of them if they are floats. Of the remaining words,
    the `max_features` with the largest totals are kept; ties are broken alphabetically.
    """
    least, most = (
        limit if isinstance(limit, Integral) else limit * n_documents for limit in (min_df, max_df)
    )
    if most < least:
        raise ValueError(
            f"max_df={max_df} of {n_documents:,} documents are fewer documents than "
            f"min_df={min_df}: no word can be in both limits."
        )
    n_rare = n_frequent = n_kept = 0

    def between() -> Iterator[WordTotal]:
        nonlocal n_rare, n_frequent, n_kept
        for entry in totals:
            if entry.n_documents < least:
                n_rare += 1
            elif entry.n_documents > most:
                n_frequent += 1
            else:
                n_kept += 1
                yield entry

    if max_features is None:
        words = [entry.word for entry in between()]
    else:
        largest = heapq.nsmallest(max_features, between(), lambda entry: (-entry.total, entry.word))
        words = sorted(entry.word for entry in largest)
    reasons = [
        (n_rare, f"in fewer documents than min_df={min_df}"),
        (n_frequent, f"in more documents than max_df={max_df}"),
        (n_kept - len(words), f"after the max_features={max_features} most frequent"),
    ]
    left_out = [f"words left out: {n:,} {why}" for n, why in reasons if n]
    if not words:
        raise ValueError(
            f"none of the words of {n_documents:,} documents remains; {'; '.join(left_out)}. "
            "Change these limits."
        )
    return Vocabulary(words, left_out)


def most_frequent(totals: Iterable[WordTotal], n: int) -> tuple[int, list[Any]]:
    """Return the number of words, and the n words with the largest totals."""
    size = 0

    def counted() -> Iterator[WordTotal]:
        nonlocal size
        for entry in totals:
            size += 1
            yield entry

    largest = heapq.nsmallest(n, counted(), lambda entry: (-entry.total, entry.word))
    return size, largest
