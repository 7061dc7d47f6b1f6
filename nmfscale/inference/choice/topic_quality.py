"""How good are the topics of a fit: coherence, exclusivity, sizes, and residual deviance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Unpack

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from ...counts.argument_types import CountsLike
from ...counts.base import CountMatrix
from ...counts.names import shown
from ...counts.row_ranges import RowRange
from ...counts.short_samples import warn_of_short_samples
from ...engine.threads import single_blas_thread
from ...engine.workers import resolve_client
from ...kernels.functions import exp, log
from ...methods.factors import proportions
from ...methods.topics.coherence import Cooccurrences, coherences
from ...methods.topics.feature_scores import frex_of, ranked_features
from ...methods.topics.residual_deviance import ResidualDeviance
from ...methods.topics.score_names import DEFAULT_SCORE, SCORES, Score
from ...methods.weights.measured import Measured, SampleGroups
from ...models.arguments.batches import values_in
from ...models.arguments.measured_entries import measured_counts, rows_of_fit
from ...models.arguments.names import default_missing, feature_names_of, matched_counts
from ...models.base import CountModel
from ...models.pipelines import FittedModel, model_and_input
from ...models.topics.topics import topic_names_of
from ...storage.store import StoredCounts
from ..design.fit_counts import loadings_of_counts
from ..design.loadings import leading_samples, shares_of_topics
from ..job import RunOptions, run_options
from ..replicates.replicates import ReplicateTask, check_positive
from ..replicates.shared_fits import counts_of_job, file_of
from .coherence import add_groups, arrays_of_ranges, rows_of_range
from .topic_quality_result import TopicQuality

Array = NDArray[Any]


@run_options
def topic_quality(
    model: FittedModel,
    X: CountsLike,
    *,
    n_top: int = 10,
    score: Score = DEFAULT_SCORE,
    frex_weight: float = 0.7,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[RunOptions],
) -> TopicQuality:
    r"""Measure the coherence, exclusivity and size of topics, and what the fit does not explain.

    Parameters
    ----------
    model : fitted model
        Any model of counts, or a pipeline that ends with one: see :func:`nmfscale.get.model`.
    X : counts of shape (n_samples, n_features)
        The counts of the fit or other samples, as in :meth:`nmfscale.PoissonNMF.fit`. Features, and
        the samples of the fit, are matched by name if both have names. Files are read block by
        block, once, and before that to find the loadings of other samples.
    n_top : int, default=10
        Number of leading features that measure a topic, and of its leading samples.
    score : {"relevance", "probability", "divergence", "frex", "lift"}, default="relevance"
        What ranks features, as in :func:`nmfscale.get.top_features`: by default the measured
        features are those that the shell, plots and reports show. "probability" measures the most
        frequent ones, as gensim does.
    frex_weight : float, default=0.7
        Weight of exclusivity in FREX, between 0 and 1.
    client : distributed.Client, default=None
        Dask cluster whose workers read ranges of samples, with the same bits as in this process.
        None means the active client for a packed store.
    verbose : int, default=0
        1 shows a progress bar.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.

    Returns
    -------
    TopicQuality
        Measures of topics, samples and features; ``to_frame()`` returns tables.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    ValueError
        If `X` lacks features of the fit, or an argument is not valid; or if a cluster is to read a
        file that is not a packed store.
    MemoryLimitError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.transform`.

    Warns
    -----
    UserWarning
        If the median sample has so few counts that another model fits them better.

    Notes
    -----
    With p_i the share of samples that have feature i, p_ij that of samples that have both, and
    :math:`\epsilon = 10^{-12}`, coherences are means over pairs of leading features [1]_:

    .. math::

        \text{NPMI} = \frac{\log \frac{p_{ij} + \epsilon}{p_i p_j}}{-\log(p_{ij} + \epsilon)},
        \qquad
        \text{UMass} = \log \frac{p_{ij} + \epsilon}{p_i} \text{ if i is before j}.

    With ``score="probability"``, these are the numbers of gensim's CoherenceModel with "c_npmi", if
    a window is a whole document, and with "u_mass". Mimno et al. [2]_ add 1 to the number of common
    samples instead of the epsilon, and sum over the pairs. Pairs with a feature that occurs in no
    sample of `X`, and pairs of features that both occur in all, contribute 0.

    Exclusivity is the mean FREX [3]_ of the leading features: the weighted harmonic mean of the
    ranks of a feature's frequency in the topic and of that frequency's share in the sum over all
    topics, both divided by the number of features. It is the exclusivity of the R package stm
    divided by `n_top`. `diversity` is the number of different leading features divided by their
    number [4]_. Samples lead by proportion of the topic, to three decimals, and then by number of
    counts, as many proportions are 0 or 1 if samples have few counts.

    The deviance of a count x with expectation mu is ``2 (x log(x / mu) - x + mu)``, where the
    expectations of a sample are scaled to its total. The deviance of a rare feature or of a small
    sample is smaller even if it is explained badly: compare it with the deviance of a single topic,
    as the column ``explained`` does.

    For the counts of the fit, topics and loadings have used the same counts: coherence is then
    somewhat higher, and deviance lower, than for other samples. Coherence compares topics by a few
    features. For single cells it can be close to 0 in every topic, because most genes that
    lead topics occur in most cells.

    References
    ----------
    .. [1] Roeder, Both, Hinneburg (2015). Exploring the space of topic coherence measures. Web
       Search and Data Mining 8.
    .. [2] Mimno, Wallach, Talley, Leenders, McCallum (2011). Optimizing semantic coherence in topic
       models. Empirical Methods in Natural Language Processing.
    .. [3] Bischof, Airoldi (2012). Summarizing topical content with word frequency and exclusivity.
       International Conference on Machine Learning 29.
    .. [4] Dieng, Ruiz, Blei (2020). Topic modeling in embedding spaces. Transactions of the
       Association for Computational Linguistics 8.

    Examples
    --------
    >>> from nmfscale import TopicModel, topic_quality
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, *_ = simulate_topic_counts(100, 30, 3, random_state=0)
    >>> found = topic_quality(TopicModel(3, random_state=0).fit(X), X, n_top=5)
    >>> found.to_frame().columns.tolist()[:4]
    ['topic', 'share', 'npmi', 'umass']
    >>> worst = found.to_frame("features").sort_values("explained")["feature"].iloc[0]
    """
    model, X = model_and_input(model, X)
    if not isinstance(model, CountModel):
        raise ValueError(
            f"model is a {type(model).__name__}: a fitted model of counts is needed, such as "
            "TopicModel."
        )
    check_is_fitted(model, "components_")
    check_positive("n_top", n_top)
    if not isinstance(score, str) or score not in SCORES:
        raise ValueError(f"score is {shown(score)}; choices: {', '.join(SCORES)}.")
    if not isinstance(frex_weight, Real) or not 0 <= frex_weight <= 1:
        raise ValueError(f"frex_weight is {shown(frex_weight)}; a number from 0 to 1 is needed.")
    if job["client"] is not None:
        job["client"] = resolve_client(job["client"])
    counts = counts_of_job(X, model.memory_limit, job["client"], layer=layer, raw=raw)
    if isinstance(counts, StoredCounts) and job["client"] is None:
        job["client"] = resolve_client(None)
    missing = default_missing(model, counts)
    counts = matched_counts(model, X, counts, missing, "add columns of 0 for them.")[0]
    counts = measured_counts(model, counts)
    rows = rows_of_fit(model, counts)
    if not model.fits_short_samples:
        warn_of_short_samples(counts)
    with single_blas_thread():
        _, leading = ranked_features(model.components_, int(n_top), score)
        return _measured(model, counts, rows, leading, int(n_top), frex_weight, job)


def _measured(
    model: Any, counts: CountMatrix, rows: Array | None, leading: list[Array], n_top: int,
    frex_weight: float, job: RunOptions,
) -> TopicQuality:  # fmt: skip
    """Return all measures; `rows` are the positions of the samples in the fit."""
    L = loadings_of_counts(model, counts, rows, job["client"])
    F = np.ascontiguousarray(model.components_.T, np.float64)
    frequencies = proportions(F.T)
    shares = proportions(L * F.sum(axis=0))
    measured, sizes, overall = Measured.of(counts), counts.row_totals, counts.column_totals
    values = values_in(model, counts, rows)
    if values is not None:
        sizes = values.whole_totals(sizes, shares, F)
    if measured is None:
        measured = Measured.everything(counts.shape)
    else:
        own = measured.totals(sizes[:, None])[:, 0]
        overall = np.divide(overall, own, out=np.zeros(len(own)), where=own > 0)
    n_rows = rows_of_range(len(L))
    task = QualityTask(counts, L, F, tuple(leading), n_rows, overall, measured, values)
    sums = _sums_of(task, job)
    amounts = shares * sizes[:, None]
    n_samples = np.bincount(measured.groups, minlength=len(measured.features))
    frex = frex_of(frequencies, float(frex_weight))
    n_topics = np.bincount(np.concatenate(leading), minlength=len(F))
    npmi, umass = coherences(sums["together"], leading, n_samples, measured.features)
    return TopicQuality(
        npmi, umass,
        np.array([_mean(scores[top]) for scores, top in zip(frex, leading, strict=True)]),
        np.array([_mean(1 / n_topics[top]) for top in leading]),
        _effective_number(frequencies), _effective_number(amounts.T),
        shares_of_topics(amounts),
        tuple(leading), tuple(leading_samples(shares, amounts, n_top)),
        sums["samples"], sums["features"], sums["null_samples"], sums["null_features"],
        np.asarray(counts.row_totals, np.float64), np.asarray(counts.column_totals, np.float64),
        tuple(topic_names_of(model, len(leading))), counts.sample_names,
        feature_names_of(model, counts), n_top, rows is not None,
        getattr(model, "modalities_", None),
    )  # fmt: skip


@dataclass(frozen=True)
class QualityTask(ReplicateTask):
    """Sums over ranges of `n_rows`: deviance of the fit and of a single topic, co-occurrences.

    `overall` (m,) are the frequencies of the single topic. Results of the last range are padded
    with zeros.
    """

    counts: CountMatrix
    L: Array
    F: Array
    leading: tuple[Array, ...]
    n_rows: int
    overall: Array
    measured: Measured
    values: SampleGroups | None
    name = "topic quality"

    def about(self) -> Iterable[Any]:
        """Return the inputs."""
        return self.counts.row_totals, self.counts.column_totals, self.L, self.F, *self.leading

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the packed store that workers read, if counts are in one."""
        return file_of(self.counts)

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return the sums of each range."""
        parts = [self._of_range(number) for number in numbers]
        return {name: np.stack([part[name] for part in parts]) for name in parts[0]}

    def _of_range(self, number: int) -> dict[str, Array]:
        """Read the rows of a range once."""
        counts, n_features = self.counts, len(self.F)
        rows = slice(number * self.n_rows, min((number + 1) * self.n_rows, counts.shape[0]))
        totals = counts.row_totals[rows]
        measured = self.measured.rows(rows)
        values = None if self.values is None else self.values.rows(rows)
        deviance = ResidualDeviance(self.L[rows], self.F, totals, rows.start, values)
        ones = np.ones((len(totals), 1))
        null = ResidualDeviance(ones, self.overall[:, None], totals, rows.start, measured)
        together = [Cooccurrences(self.leading, n_features) for _ in measured.features]
        for piece in counts.chunks(rows.start, rows.stop):
            matrix = piece.matrix(n_features)
            if not matrix.has_sorted_indices:
                matrix = matrix.sorted_indices()
            piece = RowRange(piece.first, matrix.indptr, matrix.indices, matrix.data)
            deviance.add(piece)
            null.add(piece)
            group = measured.groups[piece.first - rows.start :][: matrix.shape[0]]
            add_groups(together, matrix, group)
        more = (0, self.n_rows - len(totals))
        return {
            "samples": np.pad(deviance.of_samples, more), "features": deviance.of_features,
            "null_samples": np.pad(null.of_samples, more), "null_features": null.of_features,
            "together": np.stack([of_group.of_topics for of_group in together]),
        }  # fmt: skip


def _sums_of(task: QualityTask, job: RunOptions) -> dict[str, Array]:
    """Return the deviances of all samples and features, and numbers of samples of pairs."""
    n = -(-task.counts.shape[0] // task.n_rows)
    arrays = arrays_of_ranges(task, n, job)
    sums = {"together": arrays["together"].sum(axis=0)}
    for kind in ("samples", "null_samples"):
        sums[kind] = np.maximum(2 * arrays[kind].ravel()[: task.counts.shape[0]], 0)
    for kind in ("features", "null_features"):
        # one range after the other, whoever worked on it
        halves = arrays[kind].cumsum(axis=0)[-1] - task.counts.column_totals
        sums[kind] = np.maximum(2 * halves, 0)
    return sums


def _effective_number(rows: Array) -> Array:
    """Return the exponential of the entropy of the shares in each row; 0 for a row of zeros."""
    shares = proportions(rows)
    logs = log(np.where(shares > 0, shares, 1))
    return np.where(rows.any(axis=1), exp(-(shares * logs).sum(axis=1)), 0.0)


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else 0.0
