"""Correspondence analysis of topics and groups.

The table N (T topics, R groups) has the sum n. With ``P = N / n``, its row sums r and its column
sums c, the matrix ``S_tr = (p_tr - r_t c_r) / sqrt(r_t c_r)`` has the singular value decomposition
``S = U D V'``. Topics have the principal coordinates ``F = diag(r)^-1/2 U D``, groups
``G = diag(c)^-1/2 V D``, and the squares of D are the inertias of the axes, whose sum is the
chi-square statistic of N divided by n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import check_option
from ...counts.names import shown
from ...kernels import decompositions, dense
from ...models.pipelines import FittedModel, refuse_swapped
from ..design.equal_weights import EqualWeights, sample_weights
from ..design.groups import checked_design, checked_labels
from ..design.loadings import Scale, topics_of_samples
from ..results.origin import Origin
from .bootstrap import Cells
from .correspondence_result import CorrespondenceAnalysis

Array = NDArray[Any]
# An axis with a smaller share of the total inertia, or of 1 if that is less, is rounding.
_LEAST_INERTIA = 1e-13


def correspondence_analysis(
    model: FittedModel | ArrayLike,
    groups: ArrayLike,
    *,
    units: ArrayLike | None = None,
    equal_weights: EqualWeights = "units",
    scale: Scale = "proportions",
    topic_names: ArrayLike | None = None,
) -> CorrespondenceAnalysis:
    """Place topics and groups in one space, in which near ones occur together.

    The table of topics by groups is that of :func:`nmfscale.bootstrap_weights`. Its rows are
    compared by their profiles, the shares of the groups in each topic, and its columns by the
    shares of the topics in each group; distances between profiles are chi-square distances, in
    which frequent topics and large groups do not dominate [1]_. The first axes show as much of them
    as possible: the inertia of an axis is the part of the chi-square statistic, divided by the sum
    of the table, that it explains. :func:`nmfscale.pl.biplot` draws two axes.

    It is a description without a test; :func:`nmfscale.permutation_test` tests whether groups
    differ.

    Parameters
    ----------
    model : fitted model, or array-like of shape (n_samples, T)
        Topics of the samples, as in :func:`nmfscale.permutation_test`.
    groups : array-like of shape (n_samples,)
        Group of each sample: two groups at least. Groups and units are matched with the samples by
        name if both have names.
    units : array-like of shape (n_samples,), default=None
        Unit of each sample, for `equal_weights`. By default samples are units.
    equal_weights : {"units", "samples"}, default="units"
        Whether each unit counts once, by the mean of its samples, or each sample.
    scale : {"proportions", "amounts"}, default="proportions"
        As in :func:`nmfscale.permutation_test`. With the amounts of a fitted model the sum of the
        table is the number of counts.
    topic_names : sequence of str, default=None
        Names of topics; by default those of a model, the columns of a DataFrame, or numbers.

    Returns
    -------
    CorrespondenceAnalysis
        Coordinates, masses and inertias; see there.

    Raises
    ------
    ValueError
        If loadings or labels are not valid, there is a single group or topic, or a group or topic
        has no weight.

    Warns
    -----
    UserWarning
        If samples without topics are left out.

    References
    ----------
    .. [1] Greenacre (2017). Correspondence analysis in practice. 3rd edition, CRC Press.
    .. [2] Phelan. New perspectives on non-negative matrix factorization for grouped topic models.
       Chapter 6 proposes the method.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.experimental import correspondence_analysis
    >>> shares = np.random.default_rng(0).dirichlet([1, 1, 1, 1], size=90)
    >>> shares[:30, 0] += 1
    >>> found = correspondence_analysis(shares, np.repeat(["a", "b", "c"], 30))
    >>> found
    <CorrespondenceAnalysis: 4 topics x 3 groups, inertia 0.166, of which axes explain 100%, 0%>
    >>> int(np.abs(found.topic_coordinates[:, 0]).argmax())
    0
    """
    check_option("equal_weights", equal_weights, EqualWeights)
    refuse_swapped(model, groups, "the groups")
    topics = topics_of_samples(model, scale, topic_names)
    names, kept = topics.topic_names, ~topics.empty
    labels = checked_labels(groups, len(topics), "groups", topics.sample_names)
    design = checked_design(labels, units, None, nested=False, sample_names=topics.sample_names)
    labels, design = labels.of(kept), design.of(kept)
    weights = sample_weights(equal_weights, design, None, np.ones(len(labels)))
    cells = Cells.of(topics.rows[kept] * weights[:, None], labels, design, "corpus")
    return of_table(
        cells.observed(), names, labels.names, units="samples" if units is None else "units",
        equal_weights=equal_weights, scale=scale,
        origin=Origin.of(topics.words, groups=groups, units=units),
    )  # fmt: skip


def of_table(
    table: Array, topics: tuple[Any, ...], groups: tuple[Any, ...], **how: Any
) -> CorrespondenceAnalysis:
    """Return the analysis of a table (T, R)."""
    for what, names, axis in (("topic", topics, 1), ("group", groups, 0)):
        if len(names) < 2:
            raise ValueError(f"there is a single {what}, {shown(names[0])}: two are needed.")
        empty = np.flatnonzero(table.sum(axis=axis) == 0)
        if empty.size:
            raise ValueError(
                f"{what} {shown(names[empty[0]])} has no weight: leave its "
                f"{'samples' if what == 'group' else 'column of the loadings'} out."
            )
    shares = table / table.sum()
    r, c = shares.sum(axis=1), shares.sum(axis=0)
    expected = np.outer(r, c)
    S = (shares - expected) / np.sqrt(expected)
    wide = len(topics) < len(groups)
    A, masses = (S.T, (c, r)) if wide else (S, (r, c))
    # of the shorter side, whose number of axes is smaller
    inertias, V = decompositions.eigh(dense.cross(A))
    inertias, V = inertias[::-1], np.ascontiguousarray(V[:, ::-1])
    n_axes = int((inertias > _LEAST_INERTIA * max(1.0, inertias[0])).sum())
    n_axes = min(n_axes, min(table.shape) - 1)
    inertias, V = np.ascontiguousarray(inertias[:n_axes]), np.ascontiguousarray(V[:, :n_axes])
    longer = dense.product(A, V) / np.sqrt(masses[0])[:, None]
    shorter = V * np.sqrt(inertias) / np.sqrt(masses[1])[:, None]
    coordinates = (shorter, longer) if wide else (longer, shorter)
    return CorrespondenceAnalysis(
        table, *coordinates, inertias, float((S * S).sum()), topics, groups, **how
    )
