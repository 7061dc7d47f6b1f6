"""The passes of features_by_group over the counts, and what they add up to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...engine.local import LocalExecutor
from ...engine.memory import check_columns
from ...engine.protocol import Executor
from ...engine.session import session_of_fit
from ...engine.threads import resolve_threads, single_blas_thread
from ...kernels import dense, row_stride
from ...kernels.functions import exp, log, log1p, log_gamma
from ...methods.factors import per_lane, proportions, to_lanes
from ...methods.topics.expected_counts import LEAST
from ...methods.topics.group_errors import GroupSums
from ...methods.topics.group_frequencies import FitGroups, group_needs
from ...methods.weights.measured import SampleGroups
from ...terminal import progress_bar
from ..design.groups import Design, Labels
from ..quantiles import t_quantile
from .features_by_group_result import FeaturesByGroup

Array = NDArray[Any]
_HINT = "It is a few passes over the counts: call the function again."
# Shape from which the estimate begins, and its bounds; steps of its search; counts from which
# features have a part in it; counts with a dispersion of 1 that each feature has in addition.
_SHAPE, _LEAST_SHAPE, _MOST_SHAPE, _STEPS = 10.0, 1.0, 1e4, 40
_LEAST_COUNTS, _PSEUDO = 1.0, 5.0
_LN_2 = float(log(2.0))


def fit_groups(
    counts: CountMatrix, amounts: Array, components: Array, labels: Labels, design: Design,
    among: SampleGroups | None, *, shape: float | None, rest: bool, level: float,
    memory_limit: Any, n_threads: int | None, client: Any, verbose: int,
) -> FeaturesByGroup:  # fmt: skip
    """Return the result, without names, for amounts (n, K) of topics and components (K, m)."""
    K, m = components.shape
    f = components / np.maximum(components.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    amounts = np.maximum(proportions(amounts), LEAST) * amounts.sum(axis=1, keepdims=True)
    batches, e = np.zeros(len(amounts), np.int64), np.ones((1, m))
    if among is not None:
        batches, e = among.groups.astype(np.int64), among.values.astype(np.float64)
    sums = _group_sums(amounts, labels, design, batches, len(e))
    threads = resolve_threads(n_threads, counts.nnz * K)
    needs = group_needs(counts, sums, K)
    check_columns(
        counts, needs, memory_limit, n_threads=threads,
        what=f"frequencies of {K} topics in {sums.n_groups} groups need",
        remedy="or pass fewer groups, or the counts of fewer features",
    )  # fmt: skip
    n_passes = 1 if shape is not None else 2
    with (
        single_blas_thread(),
        session_of_fit(client, counts, needs, n_threads=n_threads, verbose=verbose, hint=_HINT)
        as (of_job, session),
        progress_bar((n_passes + 1) * m, "features", " features", verbose) as advance,
    ):  # fmt: skip
        executor: Executor
        if session is None:
            executor = LocalExecutor(of_job.layout(threads), threads)
        else:
            executor = session.executor(of_job, threads)  # type: ignore[arg-type]
        numbers = {
            "groups": labels.codes, "batches": batches,
            "units": design.of_sample if sums.units is not None else np.zeros(len(amounts)),
        }  # fmt: skip
        passes = _Passes(executor, sums, amounts, f, e, numbers, advance, rest)
        found = passes.run(np.full(K, shape or _SHAPE), np.ones(m), errors=True)
        scores = found["scores"]
        phi = np.maximum((scores[:, 0] + _PSEUDO) / (scores[:, 1] + _PSEUDO), 1.0)
        shapes = np.full(K, shape or _SHAPE)
        if shape is None:
            found = passes.run(shapes, phi)
            shapes = _estimated(found, shapes, phi)
        found = passes.run(shapes, phi, errors=True)
    return _result(found, f, sums, labels, shapes, phi, rest, level)


class _Passes:
    """Runs the step with different priors, and returns results by feature."""

    def __init__(
        self, executor: Executor, sums: GroupSums, amounts: Array, f: Array, efficiencies: Array,
        numbers: dict[str, Array], advance: Any, rest: bool,
    ):  # fmt: skip
        self._executor, self._sums, self._advance, self._rest = executor, sums, advance, rest
        rows, self._order = executor.layout.row_order, executor.layout.column_order
        self._m, stride = f.shape[1], row_stride(f.shape[0])
        executor.put("design", to_lanes(amounts, rows, stride, np.float64))
        for name, values in numbers.items():
            executor.put(name, per_lane(values, rows))
        self._F = to_lanes(f.T, self._order, stride, np.float64, least=LEAST)
        self._e = np.ascontiguousarray(efficiencies[:, self._order].T)

    def run(self, shapes: Array, phi: Array, errors: bool = False) -> dict[str, Array]:
        """Return results (m, ...) with these shapes (K,) and dispersions (m,)."""
        dispersions = np.where(self._order >= 0, phi[self._order], 1.0)
        step = FitGroups(self._F, self._e, self._sums, shapes, dispersions, errors, self._rest)
        results = self._executor.run_columns(
            step, note=lambda lanes, _: self._advance(min(lanes.stop, self._m) - lanes.start)
        )
        there, out = self._order >= 0, {}
        for name, values in results.items():
            out[name] = np.zeros((self._m, *values.shape[1:]))
            out[name][self._order[there]] = values[there]
        return out


def _group_sums(
    amounts: Array, labels: Labels, design: Design, batches: Array, n_batches: int
) -> GroupSums:
    """Return the sums of amounts over the samples of groups and units."""
    K, G = amounts.shape[1], len(labels.names)
    cells = batches * G + labels.codes
    groups = _sums(amounts, cells, n_batches * G).reshape(n_batches, G, K)
    gram = np.zeros((n_batches * G, K, K))
    if design.unit_names is None:
        for cell in range(n_batches * G):
            gram[cell] = dense.cross(amounts[cells == cell])
        return GroupSums(groups, gram.reshape(n_batches, G, K, K), labels.sizes)
    assert design.groups is not None
    U = design.n_units
    units = _sums(amounts, batches * U + design.of_sample, n_batches * U)
    n_units = np.bincount(design.groups.codes, minlength=G)
    subjects = None if design.subjects is None else design.subjects.codes
    return GroupSums(
        groups, gram.reshape(n_batches, G, K, K), n_units, units.reshape(n_batches, U, K),
        design.groups.codes, subjects,
    )  # fmt: skip


def _sums(values: Array, labels: Array, n_labels: int) -> Array:
    """Return the sums (n_labels, K) of rows with equal labels."""
    out = np.zeros((n_labels, values.shape[1]))
    np.add.at(out, labels, values)
    return out


# The prior ------------------------------------------------------------------------------------


def _estimated(found: dict[str, Array], shapes: Array, phi: Array) -> Array:
    """Return shapes (K,) with the largest marginal likelihood, from a fit with other ones.

    An estimate with the variance v of its logarithm is worth ``1 / v - a`` counts.
    """
    a = shapes * phi[:, None, None]
    there = np.maximum(1 / found["variances"] - a, 0.0)
    expected = (a + there) / found["ratios"] - a
    there, expected = there / phi[:, None, None], expected / phi[:, None, None]
    out = shapes.copy()
    for k in range(len(shapes)):
        enough = expected[:, :, k] >= _LEAST_COUNTS
        if enough.any():
            out[k] = _best_shape(there[:, :, k][enough], expected[:, :, k][enough])
    return out


def _best_shape(y: Array, mean: Array) -> float:
    """Return the shape with which negative binomial counts have the largest likelihood."""

    def likelihood(log_shape: float) -> float:
        a = float(exp(log_shape))
        terms = log_gamma(a + y) - float(log_gamma(a)) - y * float(log(a))
        return float((terms - (a + y) * log1p(mean / a)).sum())

    low, high = float(log(_LEAST_SHAPE)), float(log(_MOST_SHAPE))
    share = (np.sqrt(5.0) - 1) / 2
    for _ in range(_STEPS):
        one, other = high - share * (high - low), low + share * (high - low)
        if likelihood(one) >= likelihood(other):
            high = other
        else:
            low = one
    return float(exp((low + high) / 2))


# The result -----------------------------------------------------------------------------------


def _result(
    found: dict[str, Array], f: Array, sums: GroupSums, labels: Labels, shapes: Array, phi: Array,
    rest: bool, level: float,
) -> FeaturesByGroup:  # fmt: skip
    ratios = found["ratios"].transpose(1, 2, 0)
    frequencies = ratios * np.maximum(f, LEAST)
    scale = frequencies.sum(axis=2, keepdims=True)
    frequencies, ratios = frequencies / scale, ratios / scale
    variances, changes = (found[name].transpose(1, 2, 0) for name in ("variances", "changes"))
    freedom = np.maximum(sums.n_units - 1, 1).astype(np.float64)
    error = np.sqrt(variances)
    far = exp(t_quantile(freedom, level)[:, None, None] * error)
    change = _changes(frequencies, sums.whole, rest)
    fewest = freedom if rest else np.minimum(freedom, freedom[0])
    error_of_change = np.sqrt(changes) / _LN_2
    margin = t_quantile(fewest, level)[:, None, None] * error_of_change
    return FeaturesByGroup(
        frequencies, frequencies / far, np.minimum(frequencies * far, 1.0), change,
        change - margin, change + margin, found["counts"].transpose(1, 2, 0).copy(), f, shapes, phi,
        labels.sizes, sums.n_units, labels.names, None if rest else labels.names[0], level, None,
        tuple(range(len(f))),
    )  # fmt: skip


def _changes(frequencies: Array, amounts: Array, rest: bool) -> Array:
    """Return log2 ratios (G, K, m) to the first group, or to all others."""
    logs = log(frequencies) / _LN_2
    if not rest:
        return logs - logs[:1]
    weights = frequencies * amounts[:, :, None]
    of_others = np.maximum(amounts.sum(axis=0) - amounts, np.finfo(float).tiny)
    others = (weights.sum(axis=0) - weights) / of_others[:, :, None]
    return logs - log(np.maximum(others, np.finfo(float).tiny)) / _LN_2
