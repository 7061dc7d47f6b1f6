"""Statistics of differences between groups, for many labellings at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from types import CodeType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...kernels import dense
from ...kernels.functions import cbrt
from ...methods.factors import proportions
from ..design.units import within_strata
from .balance import BALANCED, LIMIT, balance_tables, report

Array = NDArray[Any]
Alternative: TypeAlias = Literal["greater", "less", "two-sided"]
StatisticName: TypeAlias = Literal["welch", "trend", "hellinger", "cosine", "balanced"]


@dataclass(frozen=True)
class Statistic:
    """A statistic of tables: sums of rows over groups, of shape (n_tables, n_groups, n_components).

    `rows` computes from the amounts of topics in units the rows that are summed. `values` takes
    tables of sums (with `of_products`, the products of their rows, (n_tables, n_groups, n_groups))
    and the number of units in each group. A `symmetric` statistic does not change when groups are
    exchanged.

    A table without a statistic has the value infinity, which counts as more extreme than all
    others; `check` raises an error if the table of the data, (n_groups, n_components), is such a
    table, with the groups' names. `most` is the largest possible value for a number of groups.
    `code` distinguishes functions of the same name.
    """

    name: str
    alternative: str
    rows: Callable[[Array], Array]
    values: Callable[..., Array]
    of_products: bool = False
    symmetric: bool = True
    check: Callable[[Array, Sequence[Any]], None] | None = None
    most: Callable[[int], float] | None = None
    code: str = ""

    def rows_of(self, amounts: Array, strata: Array, weights: Array | None = None) -> Array:
        """Return the rows that are summed over groups, from amounts of topics in units.

        `weights` (n,) are those of `Units.weights`.
        """
        return self.rows(amounts)

    def summary(self, tables: Array) -> Array:
        """Return the summary from which `of` computes values."""
        # one matrix product for each table, so that bits do not depend on the batch size
        if not self.of_products:
            return tables
        products: Array = dense.products(tables, tables.transpose(0, 2, 1))
        return products

    def of(self, summary: Array, sizes: Array, members: list[int]) -> Array:
        """Return the statistic of some of the groups, one for each table."""
        part = summary[:, members]
        part = part[:, :, members] if self.of_products else part
        return self.values(part, sizes[members])

    def finite(self, values: Array, n_groups: int) -> Array:
        """Replace infinite values by the largest possible value."""
        return values if self.most is None else np.minimum(values, self.most(n_groups))


def cosine(products: Array, sizes: Array) -> Array:
    """Mean over pairs of groups: s_g . s_h / (|s_g| |s_h|)."""
    norms = np.sqrt(np.einsum("ngg->ng", products))
    pairs = list(combinations(range(products.shape[1]), 2))
    out = np.zeros(len(products))
    for g, h in pairs:
        out += products[:, g, h] / (norms[:, g] * norms[:, h])
    return out / len(pairs)


def between(products: Array, sizes: Array) -> Array:
    """Sum of squares between groups: sum_g |s_g|^2 / n_g - |sum_g s_g|^2 / n."""
    out = np.zeros(len(products))
    whole = np.zeros(len(products))
    for g, size in enumerate(sizes.tolist()):
        out += products[:, g, g] / size
        for h in range(sizes.size):
            whole += products[:, g, h]
    out -= whole / sizes.sum()
    return out


def balanced(tables: Array, sizes: Array) -> Array:
    """Sum of squared deviations of balanced tables from 1/sqrt(T), which is neutral."""
    balance = balance_tables(tables.transpose(0, 2, 1))
    deviations = balance.tables - 1 / np.sqrt(tables.shape[2])
    out = (deviations * deviations).sum(axis=(1, 2))
    return np.where(balance.status <= LIMIT, out, np.inf)


def most_balanced(n_groups: int) -> float:
    """Return the upper bound of the statistic: its value for groups that share no topic.

    Squares add up to R, so that it is 2 (R - sum b / sqrt(T)), and entries of T rows of norm
    sqrt(R/T) to sqrt(T R) at least.
    """
    return float(2 * (n_groups - np.sqrt(n_groups)))


def check_balance(table: Array, groups: Sequence[Any]) -> None:
    """Refuse a table (n_groups, n_components) without a balance; warn if it has only a limit."""
    (status,) = balance_tables(table.T[None]).status
    if status != BALANCED:
        name = f"the table of topics by groups {' - '.join(map(str, groups))}"
        report(table.T, status, name, [None, groups])


def root_proportions(amounts: Array) -> Array:
    """Square roots of proportions minus their mean, scaled so that all squares sum to one."""
    rows = np.sqrt(proportions(amounts))
    rows -= rows.mean(axis=0)
    total = float(np.sum(rows * rows))
    # 0 for rows that are equal up to rounding
    return rows / np.sqrt(total) if total > 1e-24 * rows.shape[0] else np.zeros_like(rows)


def as_they_are(amounts: Array) -> Array:
    """Amounts themselves."""
    return amounts


class WelchDistance(Statistic):
    """Distance between group means, relative to the variances within the groups.

    With m_g the mean proportions of n_g units, n of all, v_g the trace of their covariance and m
    the mean of all it is ``sum_g n_g |m_g - m|^2 / sum_g (1 - n_g / n) v_g``, the pseudo-F of
    Anderson et al. (2017): for two groups ``|m_1 - m_2|^2 / (v_1 / n_1 + v_2 / n_2)``, Welch's
    distance (Alekseyenko 2016). The variance of few units is poorly known, and permutations of
    groups of unequal spread do not reproduce this. The value is therefore the normal score of that
    ratio as a quantile of an F distribution, with the degrees of freedom of Brown and Forsythe's
    test (Welch's for two groups; Mehrotra 1997) times the dimension of the units' covariance C,
    which is ``tr(C)^2 / tr(C^2)`` (Box 1954). The score is Paulson's (1942), by cube roots.

    Rows are proportions minus the mean of their stratum, with their squared norm in a last column.
    They are scaled so that the mean of the last column over units is d.
    """

    def rows_of(self, amounts: Array, strata: Array, weights: Array | None = None) -> Array:
        """Return scaled proportions and their squared norms."""
        rows = within_strata(proportions(amounts), strata)
        if weights is not None:
            rows *= weights[:, None]
        covariance = dense.cross(rows)
        total = float(np.trace(covariance))
        # units that are equal up to rounding
        if total <= 1e-24 * len(rows):
            return np.zeros((len(rows), rows.shape[1] + 1))
        dimension = total * total / float(np.sum(covariance**2))
        rows *= np.sqrt(dimension * len(rows) / total)
        return np.column_stack([rows, (rows**2).sum(axis=1)])

    def summary(self, tables: Array) -> Array:
        """Return products of the sums of groups, (n, R, R), and beside them sums of squares."""
        sums = np.ascontiguousarray(tables[:, :, :-1])
        return np.concatenate([super().summary(sums), tables[:, :, -1:]], axis=2)

    def of(self, summary: Array, sizes: Array, members: list[int]) -> Array:
        """Return the scores of some of the groups, one for each table."""
        dimension = summary[:, :, -1].sum(axis=1) / sizes.sum()
        part = summary[:, members][:, :, [*members, -1]]
        return welch_score(part[:, :, :-1], part[:, :, -1], sizes[members], dimension)


# Smallest variance of a group relative to all units: below it, rounding would decide.
_LEAST_VARIANCE = 1e-5


def welch_score(products: Array, squares: Array, sizes: Array, dimension: Array) -> Array:
    """Return the normal scores of Welch distances, from products of sums (n, R, R) and squares."""
    means, shares = products / (sizes[:, None] * sizes), sizes / sizes.sum()
    norms, variances, n_free = _variances(products, squares, sizes, dimension)
    # no matrix products: their last digits would depend on the number of tables
    mean = ((means * shares).sum(axis=2) * shares).sum(axis=1)
    between = np.maximum((sizes * norms).sum(axis=1) - sizes.sum() * mean, 0.0)
    parts = (1 - shares) * variances
    expected = parts.sum(axis=1)
    unlike = ((1 - 2 * shares) * variances**2).sum(axis=1) + (shares * variances).sum(axis=1) ** 2
    free = np.maximum(dimension, 1.0) * expected**2
    return _normal_score(
        between / expected, 2 / 9 * unlike / free, 2 / 9 * (parts**2 / n_free).sum(axis=1) / free
    )


def _variances(
    products: Array, squares: Array, sizes: Array, dimension: Array
) -> tuple[Array, Array, Array]:
    """Return squared norms of means and variances of groups (n, R), and degrees of freedom (R,)."""
    norms = np.einsum("ngg->ng", products) / (sizes * sizes)
    alone, n_free = sizes == 1, np.maximum(sizes - 1, 1) * 1.0
    within = np.where(alone, 0.0, np.maximum(squares - sizes * norms, 0.0))
    variances = within / n_free
    if alone.any():  # no variance can be estimated for these groups: use that of the other groups
        n_free[alone] = max(1.0, n_free[~alone].sum())
        variances[:, alone] = (within.sum(axis=1) / n_free[alone][0])[:, None]
    variances += _LEAST_VARIANCE * np.where(dimension > 0, dimension, 1.0)[:, None]
    return norms, variances, n_free


def _normal_score(ratio: Array, one: Array, other: Array) -> Array:
    """Return the normal scores of F-ratios (Paulson), given 2/9 over both degrees of freedom."""
    root = cbrt(ratio)
    score: Array = ((1 - other) * root - (1 - one)) / np.sqrt(one + other * root**2)
    return score


@dataclass(frozen=True)
class Trend(WelchDistance):
    """Trend over groups with scores, relative to the variances within the groups.

    With centred scores a_g it is ``|sum_g a_g n_g m_g|^2 / sum_g a_g^2 n_g v_g``, as a normal
    score; for two groups that is Welch's distance.
    """

    scores: tuple[float, ...] = ()

    @classmethod
    def of_groups(cls, scores: Array) -> Trend:
        """Return the statistic for the scores of all groups."""
        of = tuple(scores.tolist())
        return cls(
            "trend", "greater", proportions, welch_score, of_products=True,
            symmetric=len(of) == 2, code=repr(of), scores=of,
        )  # fmt: skip

    def of(self, summary: Array, sizes: Array, members: list[int]) -> Array:
        """Return the scores of some of the groups, one for each table."""
        dimension = summary[:, :, -1].sum(axis=1) / sizes.sum()
        part = summary[:, members][:, :, [*members, -1]]
        sizes, scores = sizes[members], np.array(self.scores)[members]
        scores = scores - (sizes * scores).sum() / sizes.sum()
        products = part[:, :, :-1]
        _, variances, n_free = _variances(products, part[:, :, -1], sizes, dimension)
        between = ((products * scores).sum(axis=2) * scores).sum(axis=1)
        parts = scores**2 * sizes * variances
        expected = parts.sum(axis=1)
        free = np.maximum(dimension, 1.0)
        other = 2 / 9 * (parts**2 / n_free).sum(axis=1) / (free * expected**2)
        return _normal_score(np.maximum(between, 0.0) / expected, 2 / 9 / free, other)


STATISTICS = {
    each.name: each
    for each in (
        WelchDistance("welch", "greater", proportions, welch_score, of_products=True),
        # without scores, which depend on the groups
        Trend("trend", "greater", proportions, welch_score, of_products=True),
        Statistic("hellinger", "greater", root_proportions, between, of_products=True),
        Statistic("cosine", "less", as_they_are, cosine, of_products=True),
        Statistic(
            "balanced", "greater", as_they_are, balanced, check=check_balance, most=most_balanced
        ),
    )
}


def checked_statistic(statistic: Any, alternative: str | None) -> Statistic:
    """Return the statistic with this name, or wrap the user's function."""
    if alternative is not None and alternative not in get_args(Alternative):
        allowed = ", ".join(get_args(Alternative))
        raise ValueError(f"alternative={alternative!r}: choose from {allowed}.")
    if isinstance(statistic, str) and statistic in STATISTICS:
        chosen = STATISTICS[statistic]
        if alternative not in (None, chosen.alternative):
            raise ValueError(
                f"alternative={alternative!r}: groups that differ make statistic={statistic!r} "
                f"{_DIRECTIONS[chosen.alternative]}, so leave it out or pass "
                f"{chosen.alternative!r}."
            )
        return chosen
    if not callable(statistic):
        raise ValueError(
            f"statistic={statistic!r}: choose from {', '.join(STATISTICS)}, or pass a function of "
            "tables of shape (n_tables, n_groups, n_components)."
        )
    name = getattr(statistic, "__qualname__", type(statistic).__qualname__)
    return Statistic(
        name, alternative or "greater", as_they_are, _OfTables(statistic), symmetric=False,
        code=_code_of(statistic),
    )  # fmt: skip


def _code_of(function: Any) -> str:
    """Return text that identifies the code of a function."""
    if isinstance(function, partial):
        return repr((_code_of(function.func), function.args, function.keywords))
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    plain = [repr(value) for value in held if isinstance(value, (int, float, str, tuple))]
    return repr((None if code is None else _parts_of(code), plain))


def _parts_of(code: CodeType) -> tuple[Any, ...]:
    constants = [
        _parts_of(constant) if isinstance(constant, CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return code.co_code.hex(), code.co_names, constants


_DIRECTIONS = {"greater": "larger", "less": "smaller"}


class _OfTables:
    """A user's function, whose results are checked."""

    def __init__(self, function: Callable[[Array], Any]):
        self.function = function

    def __call__(self, tables: Array, sizes: Array) -> Array:
        values = np.asarray(self.function(tables), np.float64)
        if values.shape != (len(tables),) or not np.isfinite(values).all():
            returned = (
                values.shape if values.shape != (len(tables),) else "numbers that are not finite"
            )
            raise ValueError(
                f"the statistic returned {returned} for tables of shape {tables.shape}: one finite "
                f"number for each table, ({len(tables)},), is needed."
            )
        return values
