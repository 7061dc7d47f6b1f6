"""find_samples: the samples that show best what a topic is about, with their texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import CountsLike, Topics
from ...counts.names import matched, shown
from ...models.pipelines import FittedModel, model_and_input
from ..design.fit_counts import counts_and_topics
from ..design.loadings import leading_samples, number_of_topic, topics_of_samples
from ..replicates.replicates import check_positive
from .find_samples_result import LeadingSamples

Array = NDArray[Any]


def find_samples(
    model: FittedModel | ArrayLike,
    X: CountsLike | None = None,
    *,
    topics: Topics | None = None,
    n_top: int = 5,
    texts: ArrayLike | None = None,
    layer: str | None = None,
    raw: bool = False,
) -> LeadingSamples:
    """Find the samples with the largest proportions of each topic, with their texts.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, K)
        A model, a pipeline that ends with one (see :func:`nmfscale.get.model`), or loadings.
    X : counts of shape (n_samples, n_features), default=None
        The samples, as in :meth:`nmfscale.PoissonNMF.fit`; for a pipeline its input, such as texts.
        None means the samples of the fit.
    topics : int, str, or sequence of these, default=None
        Numbers or names of topics; by default all.
    n_top : int, default=5
        Number of samples of each topic.
    texts : array-like of shape (n_samples,), default=None
        Texts of the samples. A Series or a dict is matched by name with samples that have names. By
        default `X`, if the model is a pipeline that begins with a vectorizer of texts.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.

    Returns
    -------
    LeadingSamples
        Prints samples and the beginnings of their texts; ``to_frame()`` returns a table.

    Raises
    ------
    ValueError
        If a topic does not exist, if the number of texts is not that of samples, or if counts do
        not match the model.

    Notes
    -----
    In many fits, most of the leading samples of a topic have a proportion of 1: short texts with
    few words. Samples are therefore ordered by proportion to three decimals, then by number of
    counts: among equal proportions, longer texts come first. If `model` is an array of loadings,
    the lengths of texts take the place of counts, or without texts the sums of the loadings.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from sklearn.pipeline import make_pipeline
    >>> import nmfscale
    >>> texts = ["the cat", "the cat sat, the cat", "a gene", "a gene of a cell"]
    >>> topics = nmfscale.TopicModel(2, random_state=0)
    >>> pipeline = make_pipeline(CountVectorizer(), topics).fit(texts)
    >>> nmfscale.find_samples(pipeline, texts, n_top=1)
    topic 0
      100%  sample 1: the cat sat, the cat
    topic 1
      100%  sample 3: a gene of a cell
    """
    check_positive("n_top", n_top)
    first = model.steps[0][1] if hasattr(model, "steps") else None
    words: Any = texts
    if texts is None and hasattr(first, "build_analyzer"):
        words = X
    model, counts_of_samples = model_and_input(model, X)
    if counts_of_samples is None:
        of_model = topics_of_samples(model, warn=False)
    elif hasattr(model, "components_"):
        of_model = counts_and_topics(model, counts_of_samples, layer=layer, raw=raw)[1]
    else:
        raise ValueError("X is given, and model is no fitted model: X is not needed for loadings.")
    rows, totals, names = of_model.rows, of_model.whole_totals, of_model.sample_names
    labels = of_model.topic_names
    of_samples = checked_texts(words, names, len(rows))
    if totals is None and of_samples is not None:
        totals = np.array([len(text) for text in of_samples])
    elif totals is None:
        totals = np.asarray(getattr(model, "loadings_", model), np.float64).sum(axis=1)
    chosen = checked_topics(topics, labels)
    leading = leading_samples(rows[:, chosen], rows[:, chosen] * totals[:, None], int(n_top))
    return LeadingSamples(
        tuple(labels[k] for k in chosen), tuple(leading),
        tuple(rows[samples, k] for samples, k in zip(leading, chosen, strict=True)),
        tuple(totals[samples] for samples in leading), names, of_samples,
    )  # fmt: skip


def checked_topics(topics: Any, names: tuple[Any, ...]) -> list[int]:
    """Return the numbers of the topics."""
    if topics is None:
        return list(range(len(names)))
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        topics = [topics]
    return [number_of_topic(topic, names, "topics") for topic in topics]


def checked_texts(texts: Any, names: Any, n_samples: int) -> Array | None:
    """Return the texts in the order of the samples."""
    if texts is None:
        return None
    if isinstance(texts, str):
        raise ValueError(f"texts is {shown(texts)}: a text for each sample is needed.")
    if hasattr(texts, "__iter__") and not hasattr(texts, "__len__"):
        texts = list(texts)
    checked = matched(texts, names, "texts", subject="the model")
    checked = np.array([*checked, None], object)[:-1]
    if len(checked) != n_samples:
        raise ValueError(f"there are {len(checked):,} texts for {n_samples:,} samples.")
    return np.array(["" if text is None else str(text) for text in checked], object)
