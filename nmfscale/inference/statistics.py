"""How much groups differ: statistics of sums over groups, of many labellings at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .balance import BALANCED, LIMIT, balance_tables, report
from .loadings import proportions

Array = NDArray[Any]
ALTERNATIVES = "greater", "less", "two-sided"


@dataclass(frozen=True)
class Statistic:
    """A statistic of tables: sums of rows over groups, of shape (n_tables, n_groups, n_topics).

    `rows` makes what is summed of the amounts of topics in units; `values` takes tables, or with
    `of_products` the products of their rows, (n_tables, n_groups, n_groups), and the units in each
    group. A `symmetric` one is the same when groups change places.

    The value of a table that has none is infinite, and counts as more extreme than all others;
    `check` refuses such a table of the data, (n_groups, n_topics), given the groups' names. `most`
    is the largest value of so many groups.
    """

    name: str
    alternative: str
    rows: Callable[[Array], Array]
    values: Callable[[Array, Array], Array]
    of_products: bool = False
    symmetric: bool = True
    check: Callable[[Array, Sequence[Any]], None] | None = None
    most: Callable[[int], float] | None = None

    def summary(self, tables: Array) -> Array:
        """Return what values are computed from."""
        # the same product of matrices for each table, however many there are
        return np.matmul(tables, tables.transpose(0, 2, 1)) if self.of_products else tables

    def of(self, summary: Array, sizes: Array, members: list[int]) -> Array:
        """Return the values of some of the groups, one for each table."""
        part = summary[:, members]
        part = part[:, :, members] if self.of_products else part
        return self.values(part, sizes[members])

    def finite(self, values: Array, n_groups: int) -> Array:
        """Return values with the largest that there is in place of infinite ones."""
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
    found = balance_tables(tables.transpose(0, 2, 1))
    deviations = found.tables - 1 / np.sqrt(tables.shape[2])
    out = np.einsum("ntr,ntr->n", deviations, deviations)
    return np.where(found.status <= LIMIT, out, np.inf)


def most_balanced(n_groups: int) -> float:
    """Return what no balanced table is above: the statistic of groups that share no topic.

    Squares add up to R, so that it is 2 (R - sum b / sqrt(T)), and entries of T rows of norm
    sqrt(R/T) to sqrt(T R) at least.
    """
    return float(2 * (n_groups - np.sqrt(n_groups)))


def check_balance(table: Array, groups: Sequence[Any]) -> None:
    """Refuse a table (n_groups, n_topics) without balance, and say why; warn of a limit."""
    (status,) = balance_tables(table.T[None]).status
    if status != BALANCED:
        name = f"the table of topics by groups {' - '.join(map(str, groups))}"
        report(table.T, status, name, [None, groups])


def root_proportions(amounts: Array) -> Array:
    """Square roots of proportions, less their mean, of which all squares add up to one."""
    rows = np.sqrt(proportions(amounts))
    rows -= rows.mean(axis=0)
    total = float(np.sum(rows * rows))
    # of rows that are equal but for rounding, 0
    return rows / np.sqrt(total) if total > 1e-24 * rows.shape[0] else np.zeros_like(rows)


def as_they_are(amounts: Array) -> Array:
    """Amounts themselves."""
    return amounts


STATISTICS = {
    each.name: each
    for each in (
        Statistic("hellinger", "greater", root_proportions, between, of_products=True),
        Statistic("cosine", "less", as_they_are, cosine, of_products=True),
        Statistic(
            "balanced", "greater", as_they_are, balanced, check=check_balance, most=most_balanced
        ),
    )
}


def checked_statistic(statistic: Any, alternative: str | None) -> Statistic:
    """Return a statistic by its name, or one that computes what the user's function does."""
    if alternative is not None and alternative not in ALTERNATIVES:
        raise ValueError(f"alternative={alternative!r}: choose from {', '.join(ALTERNATIVES)}.")
    if isinstance(statistic, str) and statistic in STATISTICS:
        found = STATISTICS[statistic]
        if alternative not in (None, found.alternative):
            raise ValueError(
                f"alternative={alternative!r}: groups that differ make statistic={statistic!r} "
                f"{_DIRECTIONS[found.alternative]}, so leave it out or pass "
                f"{found.alternative!r}."
            )
        return found
    if not callable(statistic):
        raise ValueError(
            f"statistic={statistic!r}: choose from {', '.join(STATISTICS)}, or pass a function of "
            "tables of shape (n_tables, n_groups, n_topics)."
        )
    name = getattr(statistic, "__qualname__", type(statistic).__qualname__)
    return Statistic(
        name, alternative or "greater", as_they_are, _OfTables(statistic), symmetric=False
    )


_DIRECTIONS = {"greater": "larger", "less": "smaller"}


class _OfTables:
    """A function of the user's, checked."""

    def __init__(self, function: Callable[[Array], Any]):
        self.function = function

    def __call__(self, tables: Array, sizes: Array) -> Array:
        values = np.asarray(self.function(tables), np.float64)
        if values.shape != (len(tables),) or not np.isfinite(values).all():
            found = (
                values.shape if values.shape != (len(tables),) else "numbers that are not finite"
            )
            raise ValueError(
                f"the statistic returned {found} for tables of shape {tables.shape}: one finite "
                f"number for each table, ({len(tables)},), is needed."
            )
        return values
