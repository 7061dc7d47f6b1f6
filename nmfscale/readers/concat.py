"""concat: counts of several sources, one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from ..counts.argument_types import CountTable
from ..counts.base import CountMatrix
from ..counts.integers import IntegerPolicy
from ..counts.names import shown
from .open import open_counts
from .options import TableOptions, check_source
from .streams.joined import Join, sources_in


def concat(
    sources: Sequence[CountTable] | Mapping[str, CountTable],
    *,
    join: Join = "inner",
    labels: Sequence[str] | None = None,
    in_memory: bool = True,
    memory_limit: int | float | str | None = None,
    integer: IntegerPolicy = "warn",
    layer: str | None = None,
    raw: bool = False,
    **source: Unpack[TableOptions],
) -> CountMatrix:
    """Join counts of several sources, such as one file for each donor, one below the other.

    ``fit([...])`` and ``write_store([...], path)`` do the same, with the same options.

    Parameters
    ----------
    sources : list or dict
        Paths of files or packed stores, counts, and AnnData objects; the keys of a dict are labels.
    join : {"inner", "outer"}, default="inner"
        Which features are kept, matched by name: those that all sources have, or those that any
        source has. Without names, all sources must have the same number of features.
    labels : sequence of str, optional
        A label for each source; by default the name of its file without suffix, with the folder
        where names repeat, and the number of an object.
    in_memory : bool, default=True
        Whether to read files into memory. Otherwise, a block of rows is read each time it is
        needed, and the joined table is never in memory.
    memory_limit, integer, layer, raw
        As in :func:`as_counts`.
    **source
        Further options of :func:`as_counts`. Options of formats, and `names`, are for each source;
        masks, `feature_names` and `sample_names` are for the joined table.

    Returns
    -------
    CountMatrix
        The joined counts. Their `obs` has the columns of all sources, with missing values where a
        source lacks a column, and the column "file" with the labels. If a sample has the name of
        one in another source, all names begin with the label, as "donor1_AAAC-1".

    Raises
    ------
    ValueError
        If sources have no features in common, only some have names, or features of a source have
        the same name; and as in :func:`as_counts`.

    Warns
    -----
    UserWarning
        If an inner join leaves out more than half of the features of a source.

    Notes
    -----
    After an outer join, a feature that a source lacks has no counts there. In texts this is a count
    of 0. Otherwise the feature was not measured there: ``counts.measured`` says so, and
    `fit` of :class:`PoissonNMF` and :class:`TopicModel` leaves these entries out of the likelihood,
    and so do functions that take the counts after the fit. Other models and functions refuse the
    counts. To count these entries as 0, set ``counts.measured = None``.

    Examples
    --------
    >>> import nmfscale
    >>> one = nmfscale.as_counts([[1, 2], [0, 3]], feature_names=["CD4", "CD8A"])
    >>> other = nmfscale.as_counts([[4, 5]], feature_names=["CD8A", "NKG7"])
    >>> both = nmfscale.concat({"donor1": one, "donor2": other}, join="outer")
    >>> both.take_rows().toarray()
    array([[1, 2, 0],
           [0, 3, 0],
           [0, 4, 5]])
    >>> both.obs["file"].tolist()
    ['donor1', 'donor1', 'donor2']
    """
    check_source(source, "concat()")
    if sources_in(sources) is None:
        raise TypeError(
            f"sources is {shown(sources)}: a list or dict of paths of files that exist, counts and "
            "AnnData objects is needed. Pass matrices as as_counts(X, feature_names=...)."
        )
    return open_counts(
        sources, join=join, labels=labels, in_memory=in_memory, memory_limit=memory_limit,
        integer=integer, layer=layer, raw=raw, **source,
    )  # fmt: skip
