"""Sinkhorn-Knopp balance of tables of topics by groups, by Newton steps on many tables at once.

The squares ``a_tr`` of a table (T topics, R groups) are scaled to
``b_tr = a_tr exp(u_t + v_r)`` with row sums R/T and column sums 1.  Given v, row sums are right for
``exp(u_t) = (R/T) / sum_r a_tr exp(v_r)``; it remains to minimise the convex function

    f(v) = (R/T) sum_t log sum_r a_tr exp(v_r) - sum_r v_r,

whose gradient is c - 1, c the column sums of b, and whose Hessian is diag(c) - (T/R) b^T b.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import check_option
from ...counts.foreign import refuse_annotated
from ...counts.warn import warn_caller
from ...kernels.balance import newton_balance
from .feasible import inner_support, offending_set, zeros_to_spare

Array = NDArray[Any]

# Status of a table: balanced, balanced in a limit that no scaling reaches, or without a balance.
BALANCED, LIMIT, EMPTY, INFEASIBLE, UNFINISHED = range(5)
# Tolerance of the column sums of squares, which are to be 1.
TOLERANCE = 1e-12
# Newton steps: tables without zeros need 4 to 6, with entries from 1e-12 to 1e12 up to 20.
_MOST_STEPS = 60
# Number of table entries that are processed together.
_AT_ONCE = 1 << 20


class Balanced(NamedTuple):
    """Balanced tables (N, T, R), NaN where a table has no balance, and the status of each table."""

    tables: Array
    status: Array
    n_steps: Array


Zeros: TypeAlias = Literal["raise", "drop"]


def balance(table: ArrayLike, *, zeros: Zeros = "raise") -> Any:
    """Scale rows and columns of a table so that all rows, and all columns, have the same norm.

    Sums of topics over groups are large for large groups and for frequent topics. The balanced
    table is what they would be if all groups were of one size and all topics equally frequent [1]_
    (Algorithm 5): columns have l2 norm 1, rows sqrt(R/T), and an entry of 1/sqrt(T) is neutral.
    Read down a column it tells which topics are heavy within a group, along a row which groups are
    heavy within a topic. It is the limit of normalising rows and columns in turn, found by Newton
    steps to a relative accuracy of 1e-12.

    Parameters
    ----------
    table : array-like of shape (..., T, R)
        Non-negative weights, topics in rows and groups in columns; a stack of tables, or one, which
        may be a DataFrame.
    zeros : {"raise", "drop"}, default="raise"
        What to do with a row or column of zeros: refuse the table, or leave the row or column out,
        balance the rest (T and R are those of the rest), and put NaN in its place.

    Returns
    -------
    ndarray of shape (..., T, R), float64, or DataFrame
        The balanced table or tables.

    Raises
    ------
    ValueError
        If the table is not valid, has a row or column of zeros, or zeros in places for which no
        balance exists: of the topics, at most a share of n/R may occur in n groups only.
    RuntimeError
        If the iteration does not converge, for a table of extremely unequal entries.

    Warns
    -----
    UserWarning
        If zeros are in places for which a balance exists as a limit only: entries that vanish in
        this limit are zero in the result.

    References
    ----------
    .. [1] Phelan. New perspectives on non-negative matrix factorization for grouped topic models.
    .. [2] Knight (2008). The Sinkhorn-Knopp algorithm: convergence and applications. SIAM Journal
       on Matrix Analysis and Applications 30, 261-275.

    Examples
    --------
    >>> from nmfscale import balance
    >>> balance([[10, 200], [10, 300], [30, 300]]).round(3)
    array([[0.552, 0.602],
           [0.426, 0.697],
           [0.717, 0.391]])
    """
    check_option("zeros", zeros, Zeros)
    values = checked_tables(table)
    frame: Any = table if hasattr(table, "columns") else None
    names = [None, None] if frame is None else [frame.index, frame.columns]
    tables = values.reshape(-1, *values.shape[-2:])
    solution = balance_tables(tables, drop=zeros == "drop")
    worst = int(solution.status.argmax())
    if solution.status[worst] != BALANCED:
        place = ", ".join(map(str, np.unravel_index(worst, values.shape[:-2] or 1)))
        name = f"table[{place}]" if values.ndim > 2 else "table"
        report(tables[worst], solution.status[worst], name, names, ", or pass zeros='drop'")
    balanced = solution.tables.reshape(values.shape)
    return balanced if frame is None else type(frame)(balanced, *names)


def checked_tables(table: Any) -> Array:
    """Return tables (..., T, R) in float64."""
    refuse_annotated(table, "table")
    try:
        values = np.asarray(table, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"table: numbers in rows of one length are needed ({error}).") from None
    if values.ndim < 2 or not values.size:
        raise ValueError(f"table has shape {values.shape}; (topics, groups) are needed.")
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        where = tuple(map(int, np.argwhere(bad)[0]))
        raise ValueError(
            f"table[{', '.join(map(str, where))}] is {values[where]}; non-negative finite numbers "
            "are needed."
        )
    return values


def balance_tables(tables: Array, *, drop: bool = False, n_threads: int = 1) -> Balanced:
    """Balance each table of (N, T, R); with `drop`, empty rows and columns are left out."""
    N, T, R = tables.shape
    support: Array = tables > 0
    if support.all():
        return _newton(tables, np.full(N, BALANCED), n_threads)
    balanced = Balanced(np.full((N, T, R), np.nan), np.full(N, EMPTY), np.zeros(N, np.intc))
    lines = np.concatenate([np.logical_or.reduce(support, axis=axis) for axis in (2, 1)], axis=1)
    full = np.logical_and.reduce(lines, axis=1)
    patterns, step = [np.ones(T + R, bool)], max(1, _AT_ONCE // (T * R))
    if drop:
        patterns += list(np.unique(lines[~full & support.any(axis=(1, 2))], axis=0))
    for kept in patterns:
        alike = np.flatnonzero((lines == kept).all(axis=1))
        for first in range(0, alike.size, step):
            chosen = alike[first : first + step]
            place = np.ix_(chosen, np.flatnonzero(kept[:T]), np.flatnonzero(kept[T:]))
            part = _balance_full(tables[place], n_threads)
            balanced.tables[place] = part.tables
            balanced.status[chosen], balanced.n_steps[chosen] = part.status, part.n_steps
    return balanced


def _balance_full(tables: Array, n_threads: int) -> Balanced:
    """Balance tables without empty rows or columns in place."""
    status = np.full(len(tables), BALANCED)
    support: Array = tables > 0
    doubtful = np.flatnonzero(~zeros_to_spare(support))
    if doubtful.size:
        patterns, which = np.unique(support[doubtful], axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            alike, inner = doubtful[which.ravel() == number], inner_support(pattern)
            if inner is None:
                status[alike] = INFEASIBLE
            elif (inner != pattern).any():
                status[alike] = LIMIT
                tables[alike] *= inner
    return _newton(tables, status, n_threads)


def _newton(tables: Array, status: Array, n_threads: int) -> Balanced:
    """Balance tables that have a balance."""
    good = status != INFEASIBLE
    there = np.ascontiguousarray(tables if good.all() else tables[good], np.float64)
    balanced, steps = np.full(there.shape, np.nan), np.zeros(len(there), np.intc)
    newton_balance(
        there, balanced, steps, most_steps=_MOST_STEPS, tolerance=TOLERANCE, n_threads=n_threads
    )
    if (steps < 0).any():
        status[np.flatnonzero(good)[steps < 0]] = UNFINISHED
    if good.all():
        return Balanced(balanced, status, steps)
    result = Balanced(np.full(tables.shape, np.nan), status, np.zeros(len(tables), np.intc))
    result.tables[good], result.n_steps[good] = balanced, steps
    return result


def report(table: Array, status: int, name: str, names: Sequence[Any], remedy: str = "") -> None:
    """Raise an error or warn if a table has no balance; `names` are those of topics and groups."""
    rows, columns = (~np.logical_or.reduce(table > 0, axis=axis) for axis in (1, 0))
    table = table[~rows][:, ~columns]
    labels = [
        np.array([*(range(len(empty)) if names_of_axis is None else names_of_axis), None], object)[
            :-1
        ]
        for empty, names_of_axis in zip((rows, columns), names, strict=True)
    ]
    topics, groups = (
        labels_of_axis[~gone] for labels_of_axis, gone in zip(labels, (rows, columns), strict=True)
    )
    if status == EMPTY:
        what, empty = ("topic", rows) if rows.any() else ("group", columns)
        raise ValueError(
            f"{name} has no weight in {what} {_some(labels[int(what == 'group')][empty])}: "
            f"leave out what is empty{remedy}."
        )
    if status == UNFINISHED:
        raise RuntimeError(
            f"{name} has entries too unequal for a balance: the smallest is "
            f"{table[table > 0].min() / table.max():.1e} of the largest; set it to zero."
        )
    T, R = table.shape
    if status == INFEASIBLE:
        few_rows, few_columns = offending_set(table > 0)
        raise ValueError(
            f"{name} has no balance: {len(few_rows)} of {T} topics "
            f"({_some(topics[few_rows])}) have weight only in {len(few_columns)} of {R} groups "
            f"({_some(groups[few_columns])}), which have room for {len(few_columns) * T / R:.4g} "
            "topics; leave topics out, or join groups."
        )
    inner = inner_support(table > 0)
    t, r = np.argwhere((table > 0) & ~np.asarray(inner))[0]
    warn_caller(
        f"{name} has a balance in the limit only: zeros elsewhere take all weight from topic "
        f"{topics[t]} in group {groups[r]}."
    )


def _some(names: Array) -> str:
    """Return up to three names."""
    return ", ".join(map(str, names[:3])) + (", ..." if len(names) > 3 else "")
