"""join_modalities: counts of different features in the same samples, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..counts.argument_types import CountTable
from ..counts.base import CountMatrix
from ..counts.integers import IntegerPolicy
from ..counts.names import shown
from .open import counts_of_modalities, open_counts
from .options import TableOptions, check_source
from .streams.joined import Join
from .streams.modalities import ModalityWeighting


def join_modalities(
    sources: Mapping[str, CountTable],
    *,
    modality_weights: ModalityWeighting | Mapping[str, float] | Sequence[float] = "information",
    join: Join = "outer",
    in_memory: bool = True,
    memory_limit: int | float | str | None = None,
    integer: IntegerPolicy = "warn",
    layer: str | None = None,
    raw: bool = False,
    **source: Unpack[TableOptions],
) -> CountMatrix:
    """Join modalities of the same samples, such as genes and proteins, side by side.

    A fit to the joined counts has one matrix of loadings for all modalities, and components with
    the features of each. ``fit(mdata, modality=["rna", "adt"])`` joins modalities of a MuData
    object or ``.h5mu`` file in the same way, and ``fit("sample.h5", feature_type=["Gene
    Expression", "Antibody Capture"])`` those of a 10x file.

    Parameters
    ----------
    sources : dict
        Counts of each modality by its name: paths of files or packed stores, matrices, DataFrames,
        counts, and AnnData objects, such as ``mdata.mod``. Samples may be in any order.
    modality_weights : {"information", "counts"}, dict or sequence, default="information"
        Weight of each modality in the log-likelihood of a fit, ``sum_m w_m loglik_m``. A weight of
        2 has the effect of two equal measurements.  "information": the same information from each,
        see Notes.  "counts": 1 for all, so that every count has the same weight. Or numbers, by
        name of the modality or in their order.
    join : {"inner", "outer"}, default="outer"
        Which samples are kept, matched by name: those that all modalities have, or those that any
        has. A modality that a sample lacks was not measured in it. Without names, samples are
        matched by position.
    in_memory, **source
        As in :func:`concat`.
    memory_limit, integer, layer, raw
        As in :func:`as_counts`.

    Returns
    -------
    CountMatrix
        The joined counts. ``counts.modalities`` has the modality of each feature,
        ``counts.feature_weights`` its weight, and ``counts.measured`` says which samples lack a
        modality. A feature with the name of one in another modality is called "rna:CD3". A column
        of `obs` with the name of another one, and other values, is called "adt:n_counts".

    Raises
    ------
    ValueError
        If modalities have no sample in common, only some have names of samples, or samples of a
        modality have the same name; if weights are not positive, or not those of the modalities;
        and as in :func:`as_counts`.

    Warns
    -----
    UserWarning
        If a modality shows no more than noise and gets the weight "information"; or if a file that
        stays on disk has its samples in another order than the first modality.

    Notes
    -----
    The weights "information" are ``w_m = (I_1 / n_1) / (I_m / n_m)``, rounded to three digits: the
    first modality has weight 1. I_m is Pearson's chi-square for the independence of samples and
    features, less its expectation for Poisson counts, ``(n - 1) (m - 1) T / (T - 1)`` with T the
    sum of the counts. Its expectation is the information of the counts on how the profiles of
    samples differ, ``sum_ij (mu_ij - e_ij)^2 / e_ij``, where e is the product of the margins. The
    number of features and the depth therefore do not matter, but only what they show beyond noise.
    n_m is the number of samples with counts of the modality. A modality that shows no more than
    noise is taken to show three standard errors of it. The weights need one pass over the counts of
    each modality.

    If the ratio of the counts of a modality to those of all others varies between samples by a
    standard deviation of its logarithm of more than 0.5 beyond Poisson noise, ``counts.notes`` says
    so, and fits without `batch` of counts in memory warn
    (:class:`nmfscale.errors.ModalityDepthWarning`): topics follow depth that varies for technical
    reasons. :func:`modality_depth` makes batches that prevent it. The ratio also varies where kinds
    of samples differ tenfold in it, as in small panels whose features belong to few topics.

    Only :class:`PoissonNMF` and :class:`TopicModel` use weights; other models refuse them. With
    ``modality_weights="counts"`` every model can be fitted, with the same result as for a table
    whose columns are those of all modalities.

    Examples
    --------
    >>> import nmfscale
    >>> rna = nmfscale.as_counts([[1, 2], [0, 3]], sample_names=["a", "b"])
    >>> adt = nmfscale.as_counts([[40, 5, 0]], sample_names=["b"])
    >>> both = nmfscale.join_modalities({"rna": rna, "adt": adt}, modality_weights=[1, 0.1])
    >>> both.take_rows().toarray()
    array([[ 1,  2,  0,  0,  0],
           [ 0,  3, 40,  5,  0]])
    >>> both.modalities.tolist()
    ['rna', 'rna', 'adt', 'adt', 'adt']
    >>> both.notes
    ('1 samples lack adt: it was not measured in them', 'weights: rna 1, adt 0.1')
    """
    check_source(source, "join_modalities()")
    if not isinstance(sources, Mapping) or not sources:
        raise TypeError(
            f"sources is {shown(sources)}: a dict of counts by the name of their modality is "
            'needed, such as {"rna": "rna.h5ad", "adt": "adt.h5ad"} or mdata.mod.'
        )
    options: dict[str, Any] = {"integer": integer, "layer": layer, "raw": raw, **source}

    def opened(label: str, **choices: Any) -> CountMatrix:
        return open_counts(
            sources[label], subject=label, in_memory=in_memory, memory_limit=memory_limit, **choices
        )

    return counts_of_modalities(list(sources), opened, modality_weights, join, options, in_memory)
