"""to_pyldavis: the arguments of pyLDAvis.prepare for a fitted model."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ...counts.argument_types import CountsLike
from ...counts.names import names_of
from ...methods.factors import proportions
from ...methods.weights.measured import Measured
from ...models.arguments.measured_entries import measured_of_fit
from ...models.pipelines import FittedModel, model_and_input
from ..design.fit_counts import counts_and_topics
from ..design.loadings import topics_of_samples


def to_pyldavis(
    model: FittedModel, X: CountsLike | None = None, *, layer: str | None = None, raw: bool = False
) -> dict[str, Any]:
    """Return the arguments of ``pyLDAvis.prepare``, which draws a map of topics and their words.

    Parameters
    ----------
    model : fitted model
        Any model of counts, or a pipeline that ends with one: see :func:`nmfscale.get.model`.
    X : counts of shape (n_samples, n_features), default=None
        Samples whose topics and words are shown, as in :meth:`nmfscale.PoissonNMF.fit`. None means
        those of the fit.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.

    Returns
    -------
    dict
        ``topic_term_dists`` (K, m) and ``doc_topic_dists`` (n, K), rows of which sum to one,
        ``doc_lengths`` (n,), ``vocab`` (m,) and ``term_frequency`` (m,). Samples and features
        without counts are left out, because pyLDAvis divides by them. ``sort_topics`` and
        ``start_index`` let topics keep their order, and their numbers from 0.

    Raises
    ------
    ValueError
        If the model has a single topic, nothing is left, or counts do not match the model.

    Examples
    --------
    >>> import nmfscale
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [0, 0, 0, 0]]
    >>> model = nmfscale.TopicModel(n_components=2, random_state=0).fit(X)
    >>> arguments = nmfscale.experimental.to_pyldavis(model)
    >>> arguments["doc_topic_dists"].shape, arguments["vocab"]
    ((3, 2), ['feature 0', 'feature 1', 'feature 2', 'feature 3'])

    With pyLDAvis: ``pyLDAvis.save_html(pyLDAvis.prepare(**arguments), "topics.html")``.
    """
    model, counts_of_samples = model_and_input(model, X)
    check_is_fitted(model, "components_")
    if len(model.components_) < 2:
        raise ValueError(
            "the model has a single topic, and pyLDAvis draws distances between topics: fit two or "
            "more, or look at the words of the topic by nmfscale.get.top_features(model)."
        )
    if counts_of_samples is None:
        of_samples = topics_of_samples(model, warn=False)
        frequency, measured = model.feature_totals_, measured_of_fit(model)
    else:
        counts, of_samples = counts_and_topics(model, counts_of_samples, layer=layer, raw=raw)
        frequency, measured = counts.column_totals, Measured.of(counts)
    lengths, shares = np.asarray(of_samples.whole_totals), of_samples.rows
    topics = np.asarray(model.components_, np.float64)
    if measured is not None:
        amounts = shares * lengths[:, None]
        frequency = measured.whole_feature_totals(frequency, amounts, proportions(topics).T)
    elif counts_of_samples is None and getattr(model, "has_missing_entries_", False):
        expected = (shares * lengths[:, None]).sum(axis=0)
        frequency = (expected[:, None] * proportions(topics)).sum(axis=0)
    documents = (lengths > 0) & shares.any(axis=1)
    words = (frequency > 0) & topics.any(axis=0)
    if not documents.any() or not words.any():
        raise ValueError("no samples with counts and topics, or no features, are left to draw.")
    names = names_of(model, 1)
    if names is None:
        names = np.array([f"feature {j}" for j in range(len(words))], object)
    return {
        "topic_term_dists": proportions(topics[:, words]),
        "doc_topic_dists": proportions(shares[documents]),
        "doc_lengths": np.asarray(lengths)[documents],
        "vocab": [str(name) for name in names[words]],
        "term_frequency": np.asarray(frequency)[words],
        "sort_topics": False,
        "start_index": 0,
    }
