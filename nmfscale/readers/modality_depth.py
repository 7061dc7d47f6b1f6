"""modality_depth: batches of samples with a similar ratio of modalities."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ..counts.argument_types import CountsLike
from ..counts.depth import most_varying, totals_of_modalities
from ..counts.names import as_text, shown
from .objects import is_mudata
from .open import open_counts
from .options import SourceOptions, check_source

Array = NDArray[Any]


def modality_depth(
    counts: CountsLike,
    *,
    n_bins: int = 8,
    in_memory: bool = True,
    memory_limit: int | float | str | None = None,
    layer: str | None = None,
    raw: bool = False,
    **source: Unpack[SourceOptions],
) -> Array:
    """Return batches of samples in which a modality has a similar depth, for ``fit(batch=...)``.

    Where the depth of proteins or of peaks varies from cell to cell for technical reasons, topics
    follow it. Batches have efficiencies of their own for the features of each modality, so that
    topics follow what differs within batches.

    Parameters
    ----------
    counts : str, path or object
        Joined counts of several modalities: see :func:`join_modalities`. A MuData object or
        ``.h5mu`` file needs ``modality=["rna", "adt"]``.
    n_bins : int, default=8
        Number of batches of about the same size.
    in_memory, memory_limit, layer, raw
        As in :func:`as_counts`.
    **source
        Further arguments of :func:`as_counts`.

    Returns
    -------
    ndarray of str, of shape (n_samples,)
        Labels such as "adt 3", from the lowest ratio of the counts of a modality to those of all
        others, "adt 1", to the highest; "none" in samples without counts of this modality, or of
        the others. Samples are in the order of the counts; of a MuData object, in that of its
        ``obs``. The modality is the second of two; of more, the one whose ratio varies most.

    Raises
    ------
    ValueError
        If counts do not have several modalities, or `n_bins` is not an integer of at least 2.

    See Also
    --------
    join_modalities : Notes of the joined counts say how much the ratio varies.

    Notes
    -----
    The ratio varies most if the standard deviation of its logarithm is largest beyond that of
    Poisson counts, the mean over samples of ``1 / a + 1 / b`` with counts a of the modality and b
    of the others. Samples with the same ratio are in the same batch.

    Examples
    --------
    >>> import numpy as np
    >>> import nmfscale
    >>> rng = np.random.default_rng(0)
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(200, 50, 3, random_state=0)
    >>> depth = np.exp(0.6 * rng.standard_normal((200, 1)))
    >>> parts = {"rna": X, "adt": rng.poisson(5 * depth * X.toarray())}
    >>> counts = nmfscale.join_modalities(parts)
    >>> batch = nmfscale.modality_depth(counts)
    >>> np.unique(batch, return_counts=True)[1].tolist()
    [25, 25, 25, 25, 25, 25, 25, 25]
    >>> model = nmfscale.TopicModel(3, random_state=0).fit(counts, batch=batch)
    """
    check_source(source, "modality_depth()")
    if not isinstance(n_bins, Integral) or isinstance(n_bins, bool) or n_bins < 2:
        raise ValueError(f"n_bins is {shown(n_bins)}; an integer of at least 2 is needed.")
    joined = open_counts(
        counts, in_memory=in_memory, memory_limit=memory_limit, integer="allow", layer=layer,
        raw=raw, **source,
    )  # fmt: skip
    depth = None if joined.modalities is None else most_varying(totals_of_modalities(joined))
    if depth is None:
        raise ValueError(
            "counts do not have several modalities: join them by join_modalities, or give their "
            'names, such as modality=["rna", "adt"].'
        )
    labels = _labels(depth.label, depth.ratio, int(n_bins))
    if not is_mudata(counts):
        return labels
    of_sample = dict(zip(as_text(joined.sample_names).tolist(), labels.tolist(), strict=True))
    names = as_text(np.asarray(counts.obs_names, object)).tolist()
    return np.array([of_sample.get(name, "none") for name in names], object)


def _labels(modality: str, ratio: Array, n_bins: int) -> Array:
    """Return the label of each sample; ratios that are NaN have "none"."""
    labels, there = np.full(len(ratio), "none", object), ~np.isnan(ratio)
    values = ratio[there]
    # the number of lower ratios, so that equal ones have the same bin
    lower = np.searchsorted(np.sort(values), values, "left")
    bins = lower * n_bins // max(1, len(values))
    labels[there] = [f"{modality} {number + 1}" for number in bins]
    return labels
