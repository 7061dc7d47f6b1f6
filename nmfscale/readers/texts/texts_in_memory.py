"""Sources of texts: their base class, and texts in memory or from an iterable object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...counts.names import names_of, shown


class Document(NamedTuple):
    """A text, or its words; `done` is how much of the source was read, in the unit of its total.

    `values` belong to the columns of the source.
    """

    text: str | Sequence[str]
    done: int
    name: str | None = None
    label: str | None = None
    values: tuple[Any, ...] = ()


class Documents(ABC):
    """A source of texts that can be read several times.

    `total` is the size of the source in `unit`, "documents" or "bytes", None if unknown;
    `has_names` and `has_labels` say what its documents have, and `columns` name their other values.
    """

    subject: str
    total: int | None
    unit = "bytes"
    has_names = has_labels = False
    columns: tuple[str, ...] = ()

    @abstractmethod
    def __iter__(self) -> Iterator[Document]:
        """Read all texts in their order."""


def texts_in_memory(texts: Any, names: Any = None) -> Documents:
    """Return texts of a sequence, or of an object that can be iterated several times."""
    what = type(texts).__name__
    if isinstance(names, str):
        raise ValueError(
            f"names={names!r} names a column of a table, and does not apply to a list of texts: "
            "pass a list of names."
        )
    if hasattr(texts, "columns"):
        raise TypeError(f"texts is a {what}: pass one of its columns, such as X['text'].")
    if not hasattr(texts, "__iter__"):
        raise TypeError(
            f"texts is a {what}: a list, a Series, an object that can be iterated, or the path of "
            "a folder or file is needed."
        )
    if hasattr(texts, "__next__"):
        raise TypeError(
            f"texts is a {what}, which can be iterated once: texts are read more than once. Pass "
            "a list, or an object whose method __iter__ begins anew each time (class Corpus: def "
            "__iter__(self): yield ...)."
        )
    if names is None and hasattr(texts, "iloc"):
        names = names_of(texts)
    return (ListOfTexts if hasattr(texts, "__len__") else IterableOfTexts)(texts, names)


class IterableOfTexts(Documents):
    """Texts, or lists of words, from an object that can be iterated again and again."""

    unit = "documents"
    subject = "texts"
    total: int | None = None

    def __init__(self, texts: Any, names: Any):
        self._texts = texts
        self._names = None if names is None else [*map(str, names)]
        self.has_names = names is not None

    def __iter__(self) -> Iterator[Document]:  # noqa: D105
        n, names = 0, self._names
        for n, text in enumerate(self._texts, 1):
            if names is not None and n > len(names):
                break
            _check_text(text, n - 1)
            yield Document(text, n, None if names is None else names[n - 1])
        if names is not None and n != len(names):
            more = "more" if n > len(names) else f"{n:,}"
            raise ValueError(f"names has {len(names):,} names, and there are {more} texts.")
        if self.total not in (None, n):
            raise ValueError(
                f"texts has {self.total:,} texts when it is iterated for the first time, and {n:,} "
                "the next time: its method __iter__ must begin anew each time."
            )
        self.total = n


class ListOfTexts(IterableOfTexts):
    """Texts, or lists of words, in memory; all are checked first."""

    def __init__(self, texts: Any, names: Any):
        super().__init__(list(texts), names)
        self.total = len(self._texts)
        if self._names is not None and len(self._names) != self.total:
            raise ValueError(
                f"names has {len(self._names):,} names, and there are {self.total:,} texts."
            )
        for i, text in enumerate(self._texts):
            _check_text(text, i)


def _check_text(text: Any, i: int) -> None:
    """Refuse what is neither text nor a list of words."""
    words = text if isinstance(text, list | tuple) else [text]
    for word in words:
        if not isinstance(word, str):
            inside = "" if words is not text else f" in a list of {len(text):,}"
            raise TypeError(
                f"texts[{i}] is {shown(word)}{inside}, a {type(word).__name__}: text, or a list of "
                "words, is needed; replace missing texts by ''."
            )
