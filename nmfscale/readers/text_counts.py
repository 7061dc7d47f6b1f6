"""text_counts: counts of the words of texts, as a table in memory or a packed store."""

from __future__ import annotations

import os
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from ..counts.argument_types import EstimatorLike, PathLike
from ..counts.base import CountMatrix
from ..counts.label_table import LabelTable
from ..counts.memory import Counts, checked_counts
from ..counts.sizes import parse_bytes
from ..counts.structure import index_type
from ..counts.warn import warn_caller
from ..storage.store import StoredCounts
from ..storage.store_writer import check_target, pack
from ..terminal import progress_bar
from .streams.columns import SelectedColumns
from .streams.file_counts import FileCounts
from .streams.stream import MEMORY_LIMIT
from .texts.documents import Decoding, Documents, documents_of
from .texts.scripts import Scripts
from .texts.vectorizer import Analyzer, analyzer_of, checked_vectorizer
from .texts.vocabulary import WordTotals, most_frequent, select_words

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import CountVectorizer

Array = NDArray[Any]
# Entries of the table that are written to the temporary files at a time.
_ENTRIES = 1 << 20
# A column with longer text is no label of the texts: it is not kept.
_LONGEST = 200
_MISSING = {"", "NA", "NaN", "nan"}
# Not with leading zeros, which identifiers may have.
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)


def text_counts(
    source: PathLike | Iterable[str | Sequence[str]],
    path: str | os.PathLike[str] | None = None,
    *,
    vectorizer: CountVectorizer | None = None,
    vocabulary: EstimatorLike | CountMatrix | ArrayLike | None = None,
    names: ArrayLike | None = None,
    groups: str | None = None,
    pattern: str | None = None,
    memory_limit: int | float | str | None = None,
    n_threads: int = 1,
    overwrite: bool = False,
    verbose: int = 0,
) -> CountMatrix:
    """Count the words of texts, which may be larger than memory.

    Texts are read twice: to choose the words that become features, and to count them. The counts
    are those of scikit-learn's ``CountVectorizer``, whose options apply, in a packed store, which
    fits read block by block, or in memory.

    Parameters
    ----------
    source : str, path-like, or iterable of str or of lists of str
        Texts. A folder: its files and those of subfolders are texts, plain or gzip, and the paths
        are their names; if all are in subfolders, the first folder is the group of a text.
        ``FILE.csv:COLUMN`` (or .tsv): a column of a table with a header. ``FILE.jsonl:KEY``: a key
        of JSON objects, one on each line. ``FILE.txt``: a text on each line. All files may end
        with ``.gz``. A sequence: texts in memory; the index of a Series has their names. An object
        whose method ``__iter__`` begins anew each time, as for gensim: its texts are never in
        memory together. Each text is a str, or a list of its words: see Notes.
    path : str or path-like, default=None
        The packed store to write. None means counts in memory.
    vectorizer : CountVectorizer, default=None
        Options of scikit-learn: ``ngram_range``, ``stop_words``, ``min_df``, ``max_df``,
        ``max_features``, ``token_pattern``, ``analyzer``, ``binary``, ``encoding``,
        ``decode_error`` and so on; it is not changed. If it is fitted, or has a vocabulary, these
        are the words. None means ``CountVectorizer(min_df=2, max_df=0.5)``: words in at least two
        texts, and in at most half of them.
    vocabulary : fitted model, counts, or sequence of str, default=None
        The words to count, in place of those of `vectorizer`; a model or counts have names of
        features. Use it for new texts. Words that are not in the vocabulary are counted for the
        warning and for the notes of the result. If words have several tokens, `vectorizer` needs
        the ``ngram_range`` of the fit.
    names, groups : str, default=None
        Column (or key) with names of the texts, and with their groups. For a sequence or iterable,
        `names` are the names themselves, one for each text.
    pattern : str, default=None
        Which files of a folder are texts, by name, such as ``"*.txt"``; by default all files whose
        names do not begin with a dot.
    memory_limit : int, float or str, default=None
        Bytes, or text such as "2GB". A quarter of it (by default of 4 GiB) holds words while they
        are counted; more are written to temporary files. The chosen words must fit in memory.
    n_threads : int, default=1
        Number of threads that arrange counts for the store.
    overwrite : bool, default=False
        Whether a file that is not a packed store may be replaced.
    verbose : int, default=0
        1 shows progress bars.

    Returns
    -------
    Counts or StoredCounts
        Texts x words, int32 in memory. ``feature_names`` are the words in alphabetical order (those
        of a vocabulary in its order), ``sample_names`` and ``groups`` those of the texts.
        ``obs`` has the other columns, except those with long texts, or ``folder``.
        ``report()`` describes what was left out. Texts without any of the words are empty samples.

    Raises
    ------
    TypeError
        If texts in memory are neither text nor lists of words, an iterable can be iterated only
        once, such as a generator, or `vectorizer` is no CountVectorizer.
    FileNotFoundError
        If there is no such file or folder.
    ValueError
        If a folder has no files, a table lacks the column, a file is damaged or not text in the
        encoding of `vectorizer`, or no word is within the limits.
    FileExistsError
        If `path` exists and is not a packed store.
    OSError
        If the disk is full, or `path` cannot be written.

    Warns
    -----
    UserWarning
        If texts have words that are not in a given vocabulary, words look like clauses of Chinese
        or Japanese, or the tokens of the vectorizer cut words at vowel signs, as of Hindi or Thai.

    Notes
    -----
    Lists of words are counted as they are: the preprocessing and the tokens of `vectorizer` do not
    apply (``lowercase``, ``strip_accents``, ``token_pattern``, ``tokenizer``), its other options
    do. Texts in languages that are written without spaces need them, from a segmenter.

    See Also
    --------
    nmfscale.get.model : The model of a pipeline, for texts and pipelines in memory.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> import nmfscale
    >>> texts = ["The cat sat.", "A cat and a cat", "The gene of a cell"]
    >>> counts = nmfscale.text_counts(texts, vectorizer=CountVectorizer(stop_words="english"))
    >>> counts.feature_names.tolist()
    ['cat', 'cell', 'gene', 'sat']
    >>> counts.take_rows().toarray().tolist()
    [[1, 0, 0, 1], [2, 0, 0, 0], [0, 1, 1, 0]]

    New texts have the words of a fit:

    >>> model = nmfscale.TopicModel(2, random_state=0).fit(counts)
    >>> new = nmfscale.text_counts(["A cat sat.", "gene"], vocabulary=model)
    >>> model.transform(new).shape
    (2, 2)
    """
    from sklearn.feature_extraction.text import CountVectorizer

    if vectorizer is None:
        vectorizer = CountVectorizer(min_df=2, max_df=0.5)
    options, fixed = checked_vectorizer(vectorizer, vocabulary)
    limit = 4 * MEMORY_LIMIT if memory_limit is None else parse_bytes(memory_limit)
    target = None if path is None else check_target(path, overwrite)
    decoding = Decoding(options.encoding, options.decode_error)
    documents = documents_of(source, decoding, names=names, labels=groups, pattern=pattern)
    analyze = analyzer_of(options)
    notes: list[str] = []
    with ExitStack() as closing:
        if fixed is None:
            words, notes = _chosen_words(documents, analyze, options, limit // 4, verbose)
            unknown = None
        else:
            words = fixed
            unknown = closing.enter_context(_totals(limit // 4))
        table = closing.enter_context(_Table(words, options.binary, unknown))
        table.count(documents, analyze, verbose)
        notes = [*notes, *_notes_of(table, unknown)]
        counts = table.counts(documents, notes, in_memory=target is None)
        if target is None:
            return counts
        columns = SelectedColumns(counts, np.arange(counts.shape[1]))
        origin = {"path": documents.subject, "vectorizer": repr(options)}
        with progress_bar(counts.nnz, "packing", " counts", verbose, unit_scale=True) as advance:
            pack(
                FileCounts(columns), target, n_threads=n_threads, source=origin, progress=advance,
                overwrite=overwrite,
            )  # fmt: skip
    return StoredCounts(target)


def _chosen_words(
    documents: Documents, analyze: Analyzer, options: Any, n_bytes: int,
    verbose: int,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Read all texts, and return the words that become features, and notes on the rest."""
    n_documents, scripts = 0, Scripts()
    with _totals(n_bytes) as totals:
        for text in _read(documents, "finding words", verbose):
            words = Counter(analyze(text))
            totals.add(words)
            if options.analyzer == "word":
                scripts.add(words)
            n_documents += 1
        if not n_documents:
            raise ValueError(f"{documents.subject} has no texts.")
        if not totals.n_tokens:
            raise ValueError(
                f"the {n_documents:,} texts of {documents.subject} have no words: they are empty, "
                "or the vectorizer's token_pattern and stop_words leave nothing."
            )
        for note in scripts.notes():
            warn_caller(f"{documents.subject}: {note}")
        selection = select_words(
            totals, n_documents, min_df=options.min_df, max_df=options.max_df,
            max_features=options.max_features,
        )  # fmt: skip
    return selection.words, selection.left_out


@contextmanager
def _totals(n_bytes: int) -> Iterator[WordTotals]:
    totals = WordTotals(n_bytes)
    try:
        yield totals
    finally:
        totals.close()


class _Table:
    """Counts of given words in documents, row by row in temporary files without names.

    Words that are not among them are added to `unknown`, if it is given.
    """

    def __init__(self, words: list[str], binary: bool, unknown: WordTotals | None):
        self._words, self._binary, self._unknown = words, binary, unknown
        self._place = {word: at for at, word in enumerate(words)}
        self._ends, self.n_tokens = array("q", [0]), 0
        self._names: list[Any] = []
        self._labels: list[Any] = []
        self._columns: dict[str, list[Any]] = {}
        self._files = [tempfile.TemporaryFile(prefix="nmfscale-") for _ in range(2)]
        self._waiting = array("i"), array("i")

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self._files:
            file.close()

    def count(self, documents: Documents, analyze: Analyzer, verbose: int) -> None:
        """Add a row for each document."""
        indices, values = self._waiting
        self._columns = {name: [] for name in documents.columns}
        with _bar_of(documents, "counting", verbose) as advance:
            done = 0
            for document in documents:
                frequencies = Counter(analyze(document.text))
                self.n_tokens += frequencies.total()
                entries = sorted(
                    (self._place[word], n) for word, n in frequencies.items() if word in self._place
                )
                if self._unknown is not None and len(entries) < len(frequencies):
                    new = {word: n for word, n in frequencies.items() if word not in self._place}
                    self._unknown.add(Counter(new))
                indices.extend(at for at, _ in entries)
                values.extend(1 if self._binary else n for _, n in entries)
                self._ends.append(self._ends[-1] + len(entries))
                if documents.has_names:
                    self._names.append(document.name)
                if documents.has_labels:
                    self._labels.append(document.label)
                self._keep(dict(zip(documents.columns, document.values, strict=True)))
                if len(indices) > _ENTRIES:
                    self._flush()
                advance(document.done - done)
                done = document.done
        self._flush()
        if not self.n_documents:
            raise ValueError(f"{documents.subject} has no texts.")

    def _keep(self, values: dict[str, Any]) -> None:
        """Add the values of the other columns; columns with long texts are left out."""
        for name, value in values.items():
            if isinstance(value, list | dict) or len(str(value)) > _LONGEST:
                self._columns.pop(name, None)
            elif name in self._columns:
                self._columns[name].append(value)

    def _flush(self) -> None:
        for file, waiting in zip(self._files, self._waiting, strict=True):
            file.write(waiting.tobytes())
            del waiting[:]

    @property
    def n_empty(self) -> int:
        """Number of documents without any of the words."""
        return int(np.count_nonzero(np.diff(self._ends) == 0))

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return len(self._ends) - 1

    def counts(self, documents: Documents, notes: list[str], *, in_memory: bool) -> Counts:
        """Return the counts; unless they are in memory, they end with the table."""
        indices, values = (self._entries(file, in_memory) for file in self._files)
        about: dict[str, Any] = {
            "sample_names": self._names if documents.has_names else None,
            "groups": self._labels if documents.has_labels else None,
            "feature_names": self._words, "notes": notes, "of_text": True,
            "obs": LabelTable({
                name: _numbers_or_labels(values) for name, values in self._columns.items()
            }),
        }  # fmt: skip
        shape = self.n_documents, len(self._words)
        indptr = np.array(self._ends, index_type(self._ends[-1]))
        if in_memory:
            matrix = sp.csr_array((values, indices, indptr), shape=shape)
            counts: Counts = checked_counts(matrix, subject=documents.subject, **about)
            return counts
        return Counts(indptr, indices, values, shape, has_sorted_indices=True, **about)

    def _entries(self, file: Any, in_memory: bool) -> Array:
        file.flush()
        if in_memory or not self._ends[-1]:
            file.seek(0)
            return np.fromfile(file, np.int32)
        return np.memmap(file, np.int32, mode="r")


def _numbers_or_labels(values: list[Any]) -> Array:
    """Return a column as numbers, if all values are; otherwise as labels, None where missing."""
    labels = [None if value is None or value in _MISSING else str(value) for value in values]
    there = [label for label in labels if label is not None]
    if not there or not all(map(_NUMBER.fullmatch, there)):
        return np.array([*labels, None], object)[:-1]
    numbers = np.array([np.nan if label is None else float(label) for label in labels])
    whole = np.abs(numbers) < 2**53  # False for missing numbers
    if (whole & (numbers == np.floor(numbers))).all():
        return numbers.astype(np.int64)
    return numbers


def _notes_of(table: _Table, unknown: WordTotals | None) -> list[str]:
    """Return notes on documents without words and on words outside a vocabulary, and warn."""
    notes = []
    if unknown is not None and unknown.n_tokens:
        n_words, most = most_frequent(unknown, 3)
        some = ", ".join(f"{entry.word!r} ({entry.total:,})" for entry in most)
        share = unknown.n_tokens / table.n_tokens
        note = (
            f"{unknown.n_tokens:,} of {table.n_tokens:,} words of the texts ({share:.1%}) are not "
            f"in the vocabulary: {n_words:,} different ones, most often {some}"
        )
        warn_caller(f"{note}. They are left out.")
        notes.append(note)
    if table.n_empty:
        notes.append(f"{table.n_empty:,} of {table.n_documents:,} texts have none of the words")
    return notes


def _read(documents: Documents, what: str, verbose: int) -> Iterator[str | Sequence[str]]:
    """Read all texts, with a progress bar."""
    done = 0
    with _bar_of(documents, what, verbose) as advance:
        for document in documents:
            yield document.text
            advance(document.done - done)
            done = document.done


def _bar_of(documents: Documents, what: str, verbose: int) -> AbstractContextManager[Any]:
    unit = "B" if documents.unit == "bytes" else f" {documents.unit}"
    return progress_bar(documents.total, what, unit, verbose, unit_scale=True)
