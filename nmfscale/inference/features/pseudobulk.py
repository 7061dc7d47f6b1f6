"""Pseudobulk counts: the counts of each unit, such as a donor, split among the topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ...counts.argument_types import CountsLike
from ...counts.base import CountMatrix
from ...counts.names import name_array
from ...engine.local import LocalExecutor
from ...engine.memory import check_columns
from ...engine.protocol import Executor
from ...engine.session import session_of_fit
from ...engine.threads import resolve_threads, single_blas_thread
from ...engine.workers import resolve_client
from ...kernels import row_stride
from ...methods.factors import per_lane, proportions, to_lanes
from ...methods.topics.expected_counts import LEAST, SumUnits, expected_needs
from ...methods.weights.measured import Measured, SampleGroups
from ...models.arguments.batches import Pairs, has_efficiencies
from ...models.arguments.measured_entries import (
    check_totals_of_fit,
    measured_counts,
    measured_of_fit,
    rows_by_name,
    rows_of_fit,
)
from ...models.arguments.names import default_missing, feature_names_of, matched_counts
from ...models.pipelines import FittedModel, model_and_input, model_of, refuse_swapped
from ...terminal import progress_bar
from ..design.fit_counts import loadings_of_counts
from ..design.groups import Design, Labels, checked_design, checked_labels
from ..design.loadings import SampleTopics, checked_names, topics_of_samples
from ..job import RunOptions, run_options
from ..replicates.shared_fits import counts_of_job
from ..results.origin import Origin
from .pseudobulk_result import Pseudobulk

Array = NDArray[Any]
_HINT = "It is one pass over the counts: call the function again."


@run_options
def pseudobulk(
    model: FittedModel,
    X: CountsLike,
    *,
    units: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    topic_names: ArrayLike | None = None,
    memory_limit: int | float | str | None = None,
    n_threads: int | None = None,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[RunOptions],
) -> Pseudobulk:
    """Sum the counts of each unit, such as a donor, topic by topic.

    Each count is split among the topics by the probability that it comes from them, and the parts
    are added up over the samples of a unit. So there is a table of counts of units and features for
    each topic, as pseudobulk counts of a cell type: samples need not belong to one topic each.
    Programs for bulk counts, such as edgeR, DESeq2 and pydeseq2, take these tables. So does
    :func:`condition_features`, in place of the counts of samples.

    Parameters
    ----------
    model : fitted model
        Any model with loadings, or a pipeline that ends with one.
    X : counts of shape (n_samples, n_features)
        Counts with the features of the fit, as in :meth:`nmfscale.PoissonNMF.fit`. Samples and
        features are matched by name if both sides have names. If they are not the samples of the
        fit, their loadings are those of :meth:`nmfscale.PoissonNMF.transform`.
    units : array-like of shape (n_samples,), optional
        Label of the unit of each sample, such as its donor; by default samples are units.
    groups : array-like of shape (n_samples,), optional
        Label of the group of each sample, such as its condition. A unit with samples in several
        groups is then one unit in each of them.
    topic_names : sequence of str, optional
        Names of topics; by default those of the model, or numbers.
    memory_limit : int, float or str, optional
        As in :class:`nmfscale.PoissonNMF`. With a limit, files are read in pieces.
    n_threads
        As in :class:`nmfscale.PoissonNMF`.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`.
    client
        As in :meth:`nmfscale.PoissonNMF.fit`. Panels of features are the tasks of a cluster.
        Results are the same to the bit everywhere.
    verbose : int, default=0
        1 shows a progress bar.

    Returns
    -------
    Pseudobulk
        Expected counts (n_units, n_components, n_features); an AnnData object by ``to_anndata()``.

    Raises
    ------
    ValueError
        If an argument is not valid, or `X` lacks features of the fit.
    MemoryLimitError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.fit`.

    Notes
    -----
    With ``x_ij ~ Poisson(sum_k l_ik f_jk)`` the part of topic k in a count has the expectation
    ``x_ij l_ik f_jk / sum_k l_ik f_jk`` [1]_, the responsibility of the topic in an EM step. These
    parts add up to the counts, whatever the fit. Efficiencies of batches do not change the split:
    counts are those of the batches, and `sizes` and `efficiencies` of the result say how many are
    expected. The product ``x_ij l_ik`` with proportions l does
    so, too, but gives each topic of a sample the features of all others.

    The frequencies f are those of all samples. If a feature differs between conditions in one
    topic, a part of the difference appears in the other topics of the same samples: 0 where a
    sample has a single topic, more the more topics it has. The result has the expected parts as
    `confusion`, from which :func:`condition_features` corrects the counts. Other programs do not.

    References
    ----------
    .. [1] Lee, Seung (1999). Learning the parts of objects by non-negative matrix factorization.
       Nature.

    Examples
    --------
    >>> import numpy as np
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(120, 50, 3, random_state=0)
    >>> model = nmfscale.TopicModel(3, random_state=0).fit(X)
    >>> donors = np.repeat(["ann", "ben", "cat", "dan"], 30)
    >>> counts = nmfscale.pseudobulk(model, X, units=donors)
    >>> counts.counts.shape
    (4, 3, 50)
    >>> bool(np.allclose(counts.counts[0].sum(axis=0), X[:30].sum(axis=0)))
    True
    >>> counts.to_frame().head(3).round(1)
      unit  topic  n_samples  proportions   count
    0  ann      0         30          7.7  2070.7
    1  ann      1         30         11.5  3591.8
    2  ann      2         30         10.8  3235.5
    """
    result, _, _ = counts_of_units(
        model, X, units, groups, None, topic_names, job, memory_limit=memory_limit,
        n_threads=n_threads, layer=layer, raw=raw,
    )  # fmt: skip
    return result


def counts_of_units(
    model: Any, X: Any, units: Any, groups: Any, strata: Any, topic_names: Any, job: RunOptions,
    *, memory_limit: Any, n_threads: int | None, layer: str | None, raw: bool,
) -> tuple[Pseudobulk, Design, Array | None]:  # fmt: skip
    """Return the pseudobulk counts, the design of their units, and the names of the samples."""
    refuse_swapped(model, X, "the counts")
    client = resolve_client(job["client"])
    model, X = model_and_input(model, X)
    check_is_fitted(model, "components_")
    counts = counts_of_job(X, memory_limit, client, layer=layer, raw=raw)
    counts, topics, among, batches = topics_of_counts(model, X, counts, topic_names, client)
    n, names = counts.shape[0], topics.sample_names
    labels = Labels(np.zeros(n, np.int64), (None,))
    if groups is not None:
        labels = checked_labels(groups, n, "groups", names, "X")
    design = checked_design(labels, units, strata, sample_names=names, subject="X")
    shares = proportions(topics.rows)
    F = np.asarray(model.components_, np.float64)
    F = (F / np.maximum(F.sum(axis=1, keepdims=True), np.finfo(float).tiny)).T
    totals = topics.rows.sum(axis=1)
    values, confusion = _expected(
        counts, shares, totals, F, design, among, memory_limit=memory_limit,
        n_threads=n_threads, client=client, verbose=job["verbose"],
    )  # fmt: skip
    sizes, efficiencies = _sizes(topics, design, among)
    result = Pseudobulk(
        values, sizes, efficiencies, F.T, confusion, _sums(design, shares),
        np.bincount(design.of_sample), _unit_names(design, names), batches=batches,
        obs=_constant(design, counts.obs),
        topic_names=topics.topic_names, feature_names=feature_names_of(model, counts),
        origin=Origin.of(topics.words, units=units, groups=groups, strata=strata),
        **_groups_of(design, groups),
    )  # fmt: skip
    return result, design, names


def units_of_pseudobulk(
    model: Any, bulk: Pseudobulk, units: Any, groups: Any, strata: Any, topic_names: Any
) -> tuple[Pseudobulk, Design, Array | None]:
    """Return what `counts_of_units` returns, for counts that are those of units already.

    These units have the labels that samples have otherwise. Those that have the same unit and group
    are added up.
    """
    shape = bulk.counts.shape[1:]
    if np.shape(model_of(model).components_) != shape:
        raise ValueError(
            f"X is a Pseudobulk of {shape[0]:,} topics and {shape[1]:,} features, and the model "
            f"has other ones: it was made with another model."
        )
    if groups is None and bulk.groups is None:
        raise ValueError(
            "X is a Pseudobulk without groups: pass groups, a label for each of its units, or make "
            "it by pseudobulk(..., groups=...)."
        )
    labels = Origin.of(None, units=units, groups=groups, strata=strata)
    n, names = len(bulk.counts), unique_names(bulk.unit_names)
    if groups is None:
        assert bulk.groups is not None and bulk.group_names is not None
        codes = [bulk.group_names.index(group) for group in bulk.groups]
        of_units = Labels(np.array(codes, np.int64), bulk.group_names)
    else:
        of_units = checked_labels(groups, n, "groups", names, "X")
    if units is None and bulk.origin.units is not None:
        units = bulk.unit_names
    design = checked_design(of_units, units, strata, sample_names=names, subject="X")
    of_names = {name: value for name, value in vars(labels).items() if value is not None}
    topics = bulk.topic_names
    if topic_names is not None:
        topics = checked_names(topic_names, len(topics), "topic_names")
    sums = design.sum_over_units
    result = replace(
        bulk, counts=sums(bulk.counts), sizes=np.stack([sums(of_batch) for of_batch in bulk.sizes]),
        proportions=sums(bulk.proportions), n_samples=sums(bulk.n_samples),
        unit_names=_unit_names(design, names), obs=_constant(design, bulk.obs), topic_names=topics,
        origin=replace(bulk.origin, **of_names), **_groups_of(design, of_units),
    )  # fmt: skip
    return result, design, names


def topics_of_counts(
    model: Any, X: Any, counts: CountMatrix, topic_names: Any, client: Any
) -> tuple[CountMatrix, SampleTopics, SampleGroups | None, tuple[Any, ...] | None]:
    """Return counts with the features of the fit, and the amounts of topics in its samples.

    Also return the efficiencies of groups of samples, and the labels of the batches of the groups.
    Samples that are not those of the fit get loadings by `transform`.
    """
    counts = matched_counts(model, X, counts, default_missing(model, counts))[0]
    counts = measured_counts(model, counts)
    topics = topics_of_samples(model, "amounts", topic_names, warn=False)
    measured, rows = Measured.of(counts), _rows_of(model, counts)
    if rows is not None:
        of_fit = measured_of_fit(model)
        if measured is None and of_fit is not None:
            measured = of_fit.rows(rows)
        if not has_efficiencies(model):
            return counts, topics.of(rows), measured, None
        pairs = Pairs.of(model.batch_[rows], measured, len(model.batches_))
        labels = tuple(model.batches_[pairs.batches].tolist())
        return counts, topics.of(rows), pairs.efficiencies(model.batch_efficiencies_), labels
    F = np.asarray(model.components_.T, np.float64)
    shares = proportions(loadings_of_counts(model, counts, None, client) * F.sum(axis=0))
    totals = np.asarray(counts.row_totals, np.float64)
    whole = totals if measured is None else measured.whole_totals(totals, shares, F)
    names = counts.sample_names
    amounts = shares * whole[:, None]
    topics = replace(topics, rows=amounts, totals=totals, sample_names=names)
    return counts, topics, measured, None


def _rows_of(model: Any, counts: CountMatrix) -> Array | None:
    """Return the position of each sample in the fit, None if some samples are not of the fit.

    Some of the samples of the fit are found by their names.
    """
    rows, names = rows_of_fit(model, counts), getattr(model, "sample_names_", None)
    totals = getattr(model, "sample_totals_", None)
    if rows is not None or names is None or counts.sample_names is None or totals is None:
        return rows
    try:
        rows = rows_by_name(model, counts)
        check_totals_of_fit(counts.row_totals, totals[rows], "sample")
    except ValueError:
        return None
    return rows


def _unit_names(design: Design, sample_names: Any) -> tuple[Any, ...]:
    """Return the names of the units, without those of their groups."""
    if design.subjects is not None:
        return design.subjects.labels()
    if design.unit_names is not None:
        return design.unit_names
    return tuple(range(design.n_units) if sample_names is None else name_array(sample_names))


def unique_names(names: tuple[Any, ...]) -> Array | None:
    """Return the names of units as those of samples, None if several have the same."""
    return name_array(names) if len(set(names)) == len(names) else None


def _groups_of(design: Design, groups: Any) -> dict[str, Any]:
    """Return the group of each unit and the order of groups, as fields of the result."""
    of_units = None if groups is None else design.groups
    if of_units is None:
        return {"groups": None, "group_names": None}
    return {"groups": of_units.labels(), "group_names": of_units.names}


def _sums(design: Design, rows: Array) -> Array:
    """Sum the rows (n, K) of the samples of each unit."""
    out = np.zeros((design.n_units, rows.shape[1]))
    np.add.at(out, design.of_sample, rows)
    return out


def _constant(design: Design, obs: Any) -> dict[str, Array]:
    """Return the columns of a table of samples that have one value in each unit, by unit."""
    _, first = np.unique(design.of_sample, return_index=True)
    columns = {} if obs is None else {name: np.asarray(obs[name]) for name in obs}
    of_units = {name: column[first] for name, column in columns.items()}
    return {
        name: values for name, values in of_units.items()
        if _equal(values[design.of_sample], columns[name])
    }  # fmt: skip


def _equal(one: Array, other: Array) -> bool:
    """Whether arrays are equal; missing numbers are equal to each other."""
    same = one == other
    if one.dtype.kind == "f":
        same |= np.isnan(one) & np.isnan(other)
    return bool(np.all(same))


def _sizes(
    topics: SampleTopics, design: Design, among: SampleGroups | None
) -> tuple[Array, Array | None]:
    """Return the expected counts (G, n_units, K) of topics in groups of samples with one pattern.

    Also return the efficiencies (G, m) of these groups. Without efficiencies there is one group.
    """
    if among is None:
        return _sums(design, topics.rows)[None], None
    sizes = [
        _sums(design, np.where((among.groups == g)[:, None], topics.rows, 0.0))
        for g in range(len(among.values))
    ]
    return np.stack(sizes), among.values.astype(np.float64)


def _expected(
    counts: CountMatrix, shares: Array, totals: Array, F: Array, design: Design,
    among: SampleGroups | None, *, memory_limit: Any, n_threads: int | None, client: Any,
    verbose: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the expected counts (n_units, K, m), and the confusion (m, K (K + 1) / 2) of topics.

    `totals` (n,) are the expected counts of all features in the samples, with efficiencies of 1.
    """
    K = shares.shape[1]
    threads = resolve_threads(n_threads, counts.nnz * K)
    needs = expected_needs(counts, K, design.n_units)
    what = f"expected counts of {design.n_units:,} units and {K} topics need"
    check_columns(
        counts, needs, memory_limit, n_threads=threads, what=what,
        remedy="or pass fewer units, or the counts of fewer features",
    )  # fmt: skip
    options: Any = {"n_threads": n_threads, "verbose": verbose, "hint": _HINT}
    with (
        single_blas_thread(),
        session_of_fit(client, counts, needs, **options) as (of_job, session),
        _progress(counts.shape[1], verbose) as note,
    ):
        executor: Executor
        if session is None:
            executor = LocalExecutor(of_job.layout(threads), threads)
        else:
            executor = session.executor(of_job, threads)  # type: ignore[arg-type]
        layout, stride = executor.layout, row_stride(K)
        lanes = to_lanes(shares, layout.row_order, stride, np.float64, least=LEAST)
        executor.put("proportions", lanes)
        groups = np.zeros(len(totals)) if among is None else among.groups
        numbers = {"units": design.of_sample, "totals": totals, "groups": groups}
        for name, values in numbers.items():
            executor.put(name, per_lane(values, layout.row_order))
        order = layout.column_order
        step = SumUnits(
            to_lanes(F, order, stride, np.float64, least=LEAST), K, design.n_units,
            None if among is None else among.values.astype(np.float64)[:, order],
        )  # fmt: skip
        results = executor.run_columns(step, note=note)
    there = order >= 0
    out = np.empty((design.n_units, K, counts.shape[1]))
    out[:, :, order[there]] = results["expected"][there].transpose(1, 2, 0)
    confusion = np.empty((counts.shape[1], K * (K + 1) // 2))
    confusion[order[there]] = results["confusion"][there]
    return out, confusion


@contextmanager
def _progress(n_features: int, verbose: int) -> Iterator[Any]:
    """Yield the function that shows the progress of the panels."""
    with progress_bar(n_features, "features", " features", verbose) as advance:
        yield lambda lanes, arrays: advance(min(lanes.stop, n_features) - lanes.start)
