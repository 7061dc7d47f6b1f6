"""coherence: how well the words of topics, or of any lists, belong together in texts or counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.argument_types import CountsLike, PathLike, check_option
from ...counts.base import CountMatrix
from ...counts.names import names_of, repeated_names, shown, such_as
from ...counts.warn import warn_caller
from ...engine.workers import resolve_client
from ...methods.topics.coherence import (
    CoherenceMeasure,
    Cooccurrences,
    WindowCooccurrences,
    coherence_of,
)
from ...methods.topics.score_names import DEFAULT_SCORE, Score
from ...methods.weights.measured import Measured
from ...models.leading_features import leading_names
from ...models.pipelines import FittedModel, is_pipeline, model_and_input, model_of
from ...models.topics.topics import topic_names_of
from ...readers.texts.documents import Decoding, documents_of
from ...readers.texts.vectorizer import words_in_order
from ...terminal import progress_bar
from ..job import RunOptions, run_options
from ..replicates.replicates import ReplicateTask, check_positive, run_replicates
from ..replicates.shared_fits import counts_of_job, file_of
from .coherence_result import TopicCoherence

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import CountVectorizer

Array = NDArray[Any]
WordLists: TypeAlias = Mapping[str, Sequence[str]] | Sequence[Sequence[str]]
Windows: TypeAlias = Literal["exact", "gensim"]
# Sizes of windows in gensim; None is a whole text.
_SIZES: dict[CoherenceMeasure, int | None] = {
    "c_v": 110, "c_npmi": 10, "c_uci": 10, "u_mass": None,
}  # fmt: skip
# Rows of a range, at least, and ranges, at most: results of all ranges are in memory at a time.
_LEAST_ROWS, _MOST_RANGES = 4096, 32


@run_options
def coherence(
    topics: FittedModel | WordLists,
    X: CountsLike | None = None,
    *,
    texts: PathLike | Iterable[str | Sequence[str]] | None = None,
    measure: CoherenceMeasure = "c_v",
    n_top: int = 10,
    score: Score = DEFAULT_SCORE,
    window_size: int | None = None,
    windows: Windows = "exact",
    vectorizer: CountVectorizer | None = None,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[RunOptions],
) -> TopicCoherence:
    r"""Measure the coherence of topics, or of any lists of words, in texts or counts.

    Words belong together if they occur near each other. In texts, "near" means within a window of
    words; counts do not know the order of words, so that each sample is one window.

    Parameters
    ----------
    topics : fitted model, dict of str to list of str, or list of lists of str
        Lists of words, best first; or a model, or a pipeline that ends with one, whose leading
        features are measured.
    X : counts of shape (n_samples, n_features), default=None
        Counts in which words occur, as in :meth:`nmfscale.PoissonNMF.fit`, with names of features.
        They need not be those of a fit. Pass either `X` or `texts`.
    texts : str, path-like, or iterable of str or of lists of str, default=None
        Texts, as in :func:`text_counts`: they are read once, one after the other.
    measure : {"c_v", "c_npmi", "c_uci", "u_mass"}, default="c_v"
        Which coherence, by its name in gensim: see Notes.
    n_top : int, default=10
        Number of leading features of each topic of a model; lists are measured as they are.
    score : {"relevance", "probability", "divergence", "frex", "lift"}, default="relevance"
        What ranks the features of a model, as in :func:`nmfscale.get.top_features`. gensim measures
        the most frequent ones, "probability".
    window_size : int, default=None
        Number of words in a window. None means 110 for "c_v", 10 for "c_npmi" and "c_uci", and
        whole texts for "u_mass".
    windows : {"exact", "gensim"}, default="exact"
        Which windows have a word that occurs several times. "gensim": the numbers of gensim 4, in
        which a word leaves the window with its first occurrence, even if another one is still in
        it.
    vectorizer : CountVectorizer, default=None
        Says what the words of a text are, in their order: its preprocessing, tokens and stop words
        apply, other options do not. By default that of a pipeline, or ``CountVectorizer()``. Lists
        of words are taken as they are.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.
    client : distributed.Client, default=None
        Dask cluster whose workers read ranges of samples of `X`, as in :func:`topic_quality`. Texts
        are read by this process.
    verbose : int, default=0
        1 shows a progress bar.

    Returns
    -------
    TopicCoherence
        Coherence of each topic and of each of its words; ``to_frame()`` returns tables.

    Raises
    ------
    ValueError
        If neither or both of `X` and `texts` are given, a list has no words or one word twice, none
        of the words occurs, counts have no names of features, or an
        argument is not valid.
    FileNotFoundError
        If there is no such file.

    Warns
    -----
    UserWarning
        If some words do not occur: their pairs contribute 0.

    Notes
    -----
    With p_i the share of windows that have word i, p_ij that of windows that have both, and
    :math:`\epsilon = 10^{-12}`, the measures of a pair are [1]_

    .. math::

        \text{UCI} = \log \frac{p_{ij} + \epsilon}{p_i p_j}, \qquad
        \text{NPMI} = \frac{\text{UCI}}{-\log(p_{ij} + \epsilon)}, \qquad
        \text{UMass} = \log \frac{p_{ij} + \epsilon}{p_i} \text{ if i is before j},

    and the coherence of a topic is their mean. For "c_v", each word has a vector of its NPMI with
    all words of the list, including itself. The coherence of a word is the cosine of its vector and
    the sum of all vectors, and that of the topic the mean over its words. A text with fewer words
    than a window is one window. These are the definitions of gensim's CoherenceModel, and its
    numbers with ``windows="gensim"``; with "exact", c_v differs from them by about 0.01 on posts of
    newsgroups.

    The word of a topic with the lowest coherence is a candidate for an intruder: see the table
    "words". c_v is high for lists whose words are all equally unrelated, too: look at "c_npmi"
    beside it.

    References
    ----------
    .. [1] Roeder, Both, Hinneburg (2015). Exploring the space of topic coherence measures. Web
       Search and Data Mining 8.

    Examples
    --------
    >>> import nmfscale
    >>> texts = ["a cat and a dog", "the dog chased the cat", "a gene of a cell", "cell and gene"]
    >>> lists = {"pets": ["cat", "dog"], "mixed": ["cat", "gene"]}
    >>> found = nmfscale.coherence(lists, texts=texts, measure="c_npmi")
    >>> found.to_frame().round(1)
       topic  coherence     words
    0   pets        1.0   cat dog
    1  mixed       -0.9  cat gene
    """
    check_option("measure", measure, CoherenceMeasure)
    check_option("windows", windows, Windows)
    check_positive("n_top", n_top)
    if (X is None) == (texts is None):
        raise ValueError("pass either texts=, or counts as X.")
    names, lists = _checked_lists(topics, n_top, score)
    if texts is None:
        if window_size is not None or windows != "exact":
            raise ValueError(
                "window_size and windows are for texts=: in counts, the order of words is unknown, "
                "and each sample is one window."
            )
        return _in_counts(topics, X, measure, names, lists, job, layer=layer, raw=raw)
    if window_size is not None:
        check_positive("window_size", window_size)
    elif measure != "u_mass":
        window_size = _SIZES[measure]
    if vectorizer is None and is_pipeline(topics) and hasattr(topics[0], "build_analyzer"):  # type: ignore[index]
        vectorizer = topics[0]  # type: ignore[index]
    return _in_texts(
        texts, measure, names, lists, window_size, windows, vectorizer, job.get("verbose", 0)
    )


def _checked_lists(topics: Any, n_top: int, score: Any) -> tuple[list[str], list[list[str]]]:
    """Return the names of the topics, and their words."""
    if hasattr(topics, "get_params"):
        model = model_of(topics)
        if names_of(model, 1) is None:
            raise ValueError(
                f"topics is a {type(model).__name__} without names of features: fit it to counts "
                "with names, or pass lists of words."
            )
        lists = leading_names(model, None, n_top, score=score)
        return topic_names_of(model, len(lists)), lists
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise ValueError(f"topics is {shown(topics)}: a model, or lists of words, are needed.")
    if isinstance(topics, Mapping):
        names, lists = [str(name) for name in topics], [*topics.values()]
    else:
        lists = [*topics]
        names = [f"topic {k}" for k in range(len(lists))]
    if not lists:
        raise ValueError("topics is empty: lists of words are needed.")
    for name, words in zip(names, lists, strict=True):
        if isinstance(words, str) or not isinstance(words, Iterable):
            raise ValueError(f"topics: {name} is {shown(words)}: a list of words is needed.")
    lists = [[str(word) for word in words] for words in lists]
    for name, words in zip(names, lists, strict=True):
        if not words:
            raise ValueError(f"topics: {name} has no words.")
        if repeated := repeated_names(words):
            raise ValueError(f"topics: {name} has {such_as(repeated)} twice.")
    return names, lists


def _result(
    measure: CoherenceMeasure, names: list[str], lists: list[list[str]], together: Array,
    n_windows: Array, measured: list[Array], places: list[Array], window_size: int | None,
    of_texts: bool,
) -> TopicCoherence:  # fmt: skip
    """Return coherences; `together` are those of words that occur, at `places` in the lists."""
    values, of_words = np.zeros(len(lists)), [np.zeros(len(words)) for words in lists]
    for k, (words, at) in enumerate(zip(lists, places, strict=True)):
        of_topic = np.zeros((len(together), len(words), len(words)), np.int64)
        of_topic[:, at[:, None], at] = together[:, k, : len(at), : len(at)]
        measured_words = np.ones((len(together), len(words)), bool)
        measured_words[:, at] = measured[k]
        values[k], of_words[k] = coherence_of(measure, of_topic, n_windows, measured_words)
    return TopicCoherence(
        measure, values, tuple(map(tuple, lists)), tuple(of_words), tuple(names),
        int(n_windows.sum()), window_size, of_texts,
    )  # fmt: skip


# Counts ----------------------------------------------------------------------------------------


def _in_counts(
    topics: Any, X: Any, measure: CoherenceMeasure, names: list[str], lists: list[list[str]],
    job: RunOptions, **part: Any,
) -> TopicCoherence:  # fmt: skip
    """Return the coherences in samples of counts."""
    model, X = model_and_input(topics, X) if is_pipeline(topics) else (topics, X)
    if job["client"] is not None:
        job["client"] = resolve_client(job["client"])
    limit = getattr(model, "memory_limit", None)
    counts = counts_of_job(X, limit, job["client"], **part)
    if counts.feature_names is None:
        raise ValueError(
            "X has no names of features: pass a DataFrame, AnnData, or as_counts(X, "
            "feature_names=...)."
        )
    place = {str(name): j for j, name in enumerate(counts.feature_names)}
    leading, places = _known_words(lists, place, "X")
    measured = Measured.of(counts) or Measured.everything(counts.shape)
    n_rows = rows_of_range(counts.shape[0])
    task = CoherenceTask(counts, tuple(leading), n_rows, measured)
    together = arrays_of_ranges(task, -(-counts.shape[0] // n_rows), job)["together"].sum(axis=0)
    n_samples = np.bincount(measured.groups, minlength=len(measured.features))
    return _result(
        measure, names, lists, together, n_samples,
        [measured.features[:, top] for top in leading], places, None, False,
    )  # fmt: skip


def _known_words(
    lists: list[list[str]], place: Mapping[str, int], where: str
) -> tuple[list[Array], list[Array]]:
    """Return the numbers of the words that occur, and their places in the lists; warn of others."""
    places = [
        np.array([i for i, word in enumerate(words) if word in place], int) for words in lists
    ]
    missing = sorted({word for words in lists for word in words if word not in place})
    if not any(map(len, places)):
        raise ValueError(f"none of the words of topics, such as {lists[0][0]!r}, is in {where}.")
    if missing:
        warn_caller(
            f"{len(missing):,} words of topics are not in {where}, such as {such_as(missing)}: "
            "their pairs contribute 0."
        )
    leading = [
        np.array([place[words[i]] for i in there], int)
        for words, there in zip(lists, places, strict=True)
    ]
    return leading, places


@dataclass(frozen=True)
class CoherenceTask(ReplicateTask):
    """Numbers of samples with both of two leading features, in ranges of `n_rows` samples."""

    counts: CountMatrix
    leading: tuple[Array, ...]
    n_rows: int
    measured: Measured
    name = "coherence"

    def about(self) -> Iterable[Any]:
        """Return the inputs."""
        return self.counts.row_totals, self.counts.column_totals, *self.leading

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the packed store that workers read, if counts are in one."""
        return file_of(self.counts)

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return the numbers of each range."""
        return {"together": np.stack([self._of_range(number) for number in numbers])}

    def _of_range(self, number: int) -> Array:
        counts, n_features = self.counts, self.counts.shape[1]
        first = number * self.n_rows
        last = min(first + self.n_rows, counts.shape[0])
        groups = self.measured.groups
        together = [Cooccurrences(self.leading, n_features) for _ in self.measured.features]
        for piece in counts.chunks(first, last):
            matrix = piece.matrix(n_features)
            add_groups(together, matrix, groups[piece.first :][: matrix.shape[0]])
        return np.stack([of_group.of_topics for of_group in together])


def rows_of_range(n_samples: int) -> int:
    """Return the number of rows of each range."""
    return max(_LEAST_ROWS, -(-n_samples // _MOST_RANGES))


def add_groups(together: Sequence[Cooccurrences], matrix: Any, group: Array) -> None:
    """Count the samples (n, m) of each group; `group` (n,) is that of each sample."""
    for g, of_group in enumerate(together):
        of_group.add(matrix if (group == g).all() else matrix[group == g])


def arrays_of_ranges(task: ReplicateTask, n: int, job: RunOptions) -> dict[str, Array]:
    """Return the results of n ranges of samples, a row for each, by this process or a cluster."""
    seed = SeedSequence(0)
    if job["client"] is None:
        with progress_bar(n, task.name, " ranges of samples", job["verbose"]) as advance:
            parts = []
            for number in range(n):
                parts.append(task.run(range(number, number + 1), seed, 1))
                advance(1)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    of_ranges = run_replicates(task, n, random_state=seed, batch_size=1, **job)
    if of_ranges.interrupted and not of_ranges.done.all():
        raise KeyboardInterrupt
    return of_ranges.rows


# Texts -----------------------------------------------------------------------------------------


def _in_texts(
    texts: Any, measure: CoherenceMeasure, names: list[str], lists: list[list[str]],
    window_size: int | None, windows: str, vectorizer: Any, verbose: int,
) -> TopicCoherence:  # fmt: skip
    """Return the coherences in windows of texts."""
    decoding, analyze = words_in_order(vectorizer)
    documents = documents_of(texts, Decoding(*decoding))
    vocabulary = sorted({word for words in lists for word in words})
    place = {word: at for at, word in enumerate(vocabulary)}
    leading = [np.array([place[word] for word in words], int) for words in lists]
    size = np.iinfo(np.int64).max // 2 if window_size is None else int(window_size)
    together = WindowCooccurrences(leading, len(vocabulary), size, windows == "gensim")
    occurs = np.zeros(len(vocabulary), bool)
    unit = "B" if documents.unit == "bytes" else f" {documents.unit}"
    with progress_bar(documents.total, "coherence", unit, verbose, unit_scale=True) as advance:
        done = 0
        for document in documents:
            words = np.array([place.get(word, -1) for word in analyze(document.text)], int)
            occurs[words[words >= 0]] = True
            together.add_text(words)
            advance(document.done - done)
            done = document.done
    if not together.n_windows:
        raise ValueError(f"{documents.subject} has no texts.")
    _known_words(lists, {word: at for word, at in place.items() if occurs[at]}, documents.subject)
    return _result(
        measure, names, lists, together.of_topics[None], np.array([together.n_windows]),
        [np.ones((1, len(words)), bool) for words in lists],
        [np.arange(len(words)) for words in lists], window_size, True,
    )  # fmt: skip
