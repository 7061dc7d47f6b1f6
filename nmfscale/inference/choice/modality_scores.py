"""score_modalities: how well topics predict held-out counts of each modality."""

from __future__ import annotations

import warnings
from typing import Any, Unpack

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ...counts.argument_types import CountsLike, RandomStateLike
from ...counts.base import CountMatrix
from ...engine.workers import resolve_client
from ...methods.projection.completion import log_shares
from ...methods.weights.feature_weights import FeatureWeights
from ...methods.weights.measured import Measured
from ...models.arguments.names import matched_counts
from ...models.pipelines import FittedModel, model_and_input
from ...readers.streams.columns import select_columns
from ...readers.streams.thinning import PartOfCounts, Thinning
from ...terminal import progress_bar
from ..job import RunOptions, run_options
from ..replicates.seeds import child, seed_of
from ..replicates.selection_fits import is_scored
from ..replicates.shared_fits import counts_of_job
from .modality_scores_result import ModalityScores

Array = NDArray[Any]


@run_options
def score_modalities(
    model: FittedModel,
    X: CountsLike,
    held_out: CountsLike | None = None,
    *,
    random_state: RandomStateLike | None = None,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[RunOptions],
) -> ModalityScores:
    r"""Score held-out counts of each modality, and compare the scores with those of a single topic.

    The scores show if the topics explain a modality at all: one that is noise, or that varies
    independently of the others, is predicted no better by the topics than by its overall
    frequencies.

    Parameters
    ----------
    model : fitted model or pipeline
        A fit to joined modalities, such as a :class:`TopicModel`: see :func:`join_modalities`.
    X : counts of shape (n_samples, n_features)
        Joined counts, from which the loadings are estimated.
    held_out : counts of shape (n_samples, n_features), default=None
        Counts to score, an independent part of the counts of the same samples in the same order. By
        default `X` is split: loadings are estimated from a random half of each count, and the other
        half is scored.
    random_state : int, RandomState instance or None, default=None
        Determines how counts are split.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`.
    client : distributed.Client, default=None
        Dask cluster whose workers estimate the loadings, with the same bits. This process holds the
        counts of a packed store that are split, or those of the other modalities, in memory.
    verbose : int, default=0
        Whether to show the progress (1) or not (0).

    Returns
    -------
    ModalityScores
        Scores of each modality; ``to_frame()`` returns the table.

    Raises
    ------
    TypeError
        If `model` has no likelihood of held-out counts.
    ValueError
        If the model was not fitted to several modalities, counts lack features of the fit,
        `held_out` has other samples than `X`, or counts to be split are not whole.

    Notes
    -----
    The score of a modality is the mean log-probability of one of its held-out counts,

    .. math::

        \frac{\sum_i \sum_{j \in m} x_{ij} \log p_{ij}}{\sum_i \sum_{j \in m} x_{ij}}, \qquad
        p_{ij} = \frac{\mu_{ij}}{\sum_{j' \in m} \mu_{ij'}},

    so that neither weights of modalities nor their depth in a sample matter. Features without
    counts in the seen part are left out. ``gain`` is the difference from the score of a single
    topic, the frequencies of the seen counts of the modality; its standard error is that of a ratio
    of sums over samples with held-out counts of the modality. ``gain_from_others`` is the gain if
    loadings are estimated from the counts of all other modalities: it is positive only for what the
    modalities share.

    If topics were fitted to the counts that are scored, scores are too high. Fit them to other
    samples, or to one part of the counts, as in the example.

    Examples
    --------
    Proteins are noise:

    >>> import numpy as np
    >>> import nmfscale
    >>> rng = np.random.default_rng(0)
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(200, 50, 3, random_state=0)
    >>> parts = {}
    >>> for part in ("fitted", "held out"):
    ...     counts = {"rna": rng.poisson(0.5 * X.toarray()), "adt": rng.poisson(9, (200, 10))}
    ...     parts[part] = nmfscale.join_modalities(counts, modality_weights="counts")
    >>> model = nmfscale.TopicModel(3, random_state=0, prior_factors=1.1).fit(parts["fitted"])
    >>> scores = nmfscale.score_modalities(model, parts["fitted"], parts["held out"])
    >>> (scores.gain > 2 * scores.gain_error).tolist()
    [True, False]
    """
    model, X = model_and_input(model, X)
    modalities = getattr(model, "modalities_", None)
    if not hasattr(model, "components_") or not is_scored(model):
        raise TypeError(
            f"model is a {type(model).__name__}: a fitted model with a likelihood of held-out "
            "counts is needed, such as TopicModel."
        )
    if modalities is None:
        raise ValueError(
            f"model is a {type(model).__name__} that was not fitted to joined modalities: fit it "
            "to counts of join_modalities, or by fit(mdata, modality=[...])."
        )
    client = None if job["client"] is None else resolve_client(job["client"])
    counts = _counts_of(model, X, client, layer=layer, raw=raw)
    if held_out is not None:
        seen, held = counts, _counts_of(model, held_out, client, layer=layer, raw=raw)
        _check_samples(seen, held)
    else:
        seen, held = _halves(counts, child(seed_of(random_state), 0))
    labels = list(dict.fromkeys(modalities.tolist()))
    rows = []
    with progress_bar(len(labels), "scores", " modalities", job["verbose"]) as advance:
        for label in labels:
            rows.append(_of_modality(model, seen, held, np.asarray(modalities == label), client))
            advance(1)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    weights = getattr(model, "feature_weights_", np.ones(len(modalities)))
    first = [modalities.tolist().index(label) for label in labels]
    return ModalityScores(tuple(map(str, labels)), weights[first], **columns)


def _counts_of(model: Any, X: Any, client: Any, **part: Any) -> CountMatrix:
    """Return counts with the features of a fit, in their order."""
    counts = counts_of_job(X, model.memory_limit, client, **part)
    return matched_counts(model, X, counts, "error", "join all modalities of the fit.")[0]


def _check_samples(seen: CountMatrix, held: CountMatrix) -> None:
    names, others = seen.sample_names, held.sample_names
    named = names is not None and others is not None
    if seen.shape != held.shape or (named and names.tolist() != others.tolist()):
        raise ValueError(
            f"held_out has {held.shape[0]:,} samples, and X has {seen.shape[0]:,}: the same "
            "samples in the same order are needed, such as two parts of their counts."
        )


def _halves(counts: CountMatrix, seed: SeedSequence) -> tuple[CountMatrix, CountMatrix]:
    """Return two random halves of counts."""
    if not counts.is_integer:
        raise ValueError(
            "X has fractional counts, which cannot be split: pass the counts to score as held_out."
        )
    thinning = Thinning.of(seed, 2)
    first, second = (PartOfCounts(counts, None, thinning, [part]).in_memory() for part in (0, 1))
    return first, second


def _of_modality(
    model: Any, seen: CountMatrix, held: CountMatrix, features: Array, client: Any
) -> dict[str, float]:
    """Return the scores of the modality with a mask of the features (m,)."""
    left_out = ~features | (seen.column_nnz == 0)
    totals = _totals(held, ~left_out)
    frequencies = np.where(left_out, 0.0, seen.column_totals)[:, None]
    one = log_shares(held, np.ones((len(totals), 1)), frequencies, 1, Measured.of(held), left_out)
    both = _logs(model, seen, held, left_out, client)
    others = _logs(model, seen, held, left_out, client, ~features)
    total = max(totals.sum(), 1.0)
    gain = float((both - one).sum() / total)
    rest, n = both - one - gain * totals, int((totals > 0).sum())
    return {
        "n_features": int(features.sum()), "n_samples": n,
        "total": float(totals.sum()), "score": float(both.sum() / total),
        "one_topic": float(one.sum() / total), "gain": gain,
        "gain_error": float(np.sqrt((rest**2).sum() * n / max(n - 1, 1)) / total),
        "gain_from_others": float((others - one).sum() / total),
    }  # fmt: skip


def _logs(
    model: Any, seen: CountMatrix, held: CountMatrix, left_out: Array, client: Any,
    used: Array | None = None,
) -> Array:  # fmt: skip
    """Return log-probabilities of held-out counts of each sample (n,); `used` features of `seen`.

    Samples without seen counts have the loadings of empty samples.
    """
    F = np.asarray(model.components_.T, np.float64)
    of_part, part = model, seen
    if used is not None:
        of_part, part = model._taken("m", np.flatnonzero(used)), _columns(seen, used, client)
        of_part.n_features_in_ = part.shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of samples without counts
        L = np.asarray(of_part.transform(part, client=client))
        observed = model._knowing(seen, {})[0]._measured
    if isinstance(observed, FeatureWeights):
        observed = observed.unweighted
    n_threads = model.threads_for(held)
    logs: Array = log_shares(held, np.maximum(L, 0), F, n_threads, observed, left_out)
    return logs


def _columns(counts: CountMatrix, used: Array, client: Any) -> CountMatrix:
    """Return the counts of some features; samples in which none was measured are empty.

    They are in memory for a cluster, whose workers read whole packed stores only.
    """
    part = select_columns(counts, np.flatnonzero(used))
    if client is not None and part.from_file:
        part = PartOfCounts(part).in_memory()
    if part.measured is not None:
        features, panel = part.measured
        part.measured = features | ~features.any(axis=1, keepdims=True), panel
    return part


def _totals(counts: CountMatrix, features: Array) -> Array:
    """Return the counts of some features in each sample (n,)."""
    totals = np.zeros(counts.shape[0])
    for piece in counts.chunks():
        matrix = piece.matrix(counts.shape[1])
        totals[piece.first : piece.first + matrix.shape[0]] = matrix @ features.astype(float)
    return totals
