"""Simulated counts with known parameters: Poisson NMF and topic model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from ..counts.names import same_topics, shown
from ..counts.structure import non_negative

Seed = int | np.random.Generator | np.random.RandomState | None
Floats = NDArray[np.float64]

# Sum of the counts that are drawn at a time: temporary arrays take about 100 MB.
_CHUNK_TOTAL = 2**21
_LARGEST = np.iinfo(np.int32).max


class PoissonTruth(NamedTuple):
    """Factors of simulated counts: X ~ Poisson(L F^T).

    Attributes
    ----------
    L : ndarray of shape (n_samples, n_components)
        Loadings.
    F : ndarray of shape (n_features, n_components)
        Factors.
    """

    L: Floats
    F: Floats


class TopicTruth(NamedTuple):
    """Parameters of simulated counts: row i of X ~ Multinomial(sizes[i], F L[i]).

    Attributes
    ----------
    L : ndarray of shape (n_samples, n_components)
        Topic proportions.
    F : ndarray of shape (n_features, n_components)
        Feature frequencies of the topics.
    sizes : ndarray of shape (n_samples,), int64
        Totals of the samples.
    """

    L: Floats
    F: Floats
    sizes: NDArray[np.int64]


def simulate_poisson_nmf(
    n_samples: int,
    n_features: int,
    n_components: int,
    *,
    size: float = 200.0,
    loadings_shape: float = 0.5,
    factors_shape: float = 0.2,
    random_state: Seed = None,
) -> tuple[sp.csr_array, PoissonTruth]:
    """Draw counts from a Poisson NMF whose factors are Gamma variables.

    Parameters
    ----------
    n_samples, n_features, n_components : int
        Shape of the counts and number of factors.
    size : float, default=200.0
        Mean expected total of a sample.
    loadings_shape, factors_shape : float, default=0.5, 0.2
        Shapes of the Gamma variables; small values make most entries nearly zero.
    random_state : int, Generator, RandomState or None, default=None
        Source of randomness; the same int gives the same counts.

    Returns
    -------
    counts : csr_array of shape (n_samples, n_features), int32
        The counts.
    truth : PoissonTruth
        ``L`` (n_samples, n_components) and ``F`` (n_features, n_components). All columns of both
        have the same mean.

    Raises
    ------
    ValueError
        If a size is not an integer of at least 1, if another number is not positive and finite, or
        if a count is too large for int32.

    Examples
    --------
    >>> from nmfscale.datasets import simulate_poisson_nmf
    >>> counts, truth = simulate_poisson_nmf(50, 30, 3, random_state=0)
    >>> counts.shape, truth.L.shape, truth.F.shape
    ((50, 30), (50, 3), (30, 3))
    """
    check_sizes(n_samples=n_samples, n_features=n_features, n_components=n_components)
    check_positive(size=size, loadings_shape=loadings_shape, factors_shape=factors_shape)
    rng = generator_of(random_state)
    L = rng.gamma(loadings_shape, size=(n_samples, n_components))
    F = rng.gamma(factors_shape, size=(n_features, n_components))
    tiny = np.finfo(np.float64).tiny
    L /= np.maximum(L.mean(axis=0), tiny)
    F /= np.maximum(F.mean(axis=0), tiny)
    scale = np.sqrt(size / (n_features * n_components))
    L *= scale
    F *= scale
    return simulate_from_factors(L, F, random_state=rng), PoissonTruth(L, F)


def simulate_topic_counts(
    n_samples: int,
    n_features: int,
    n_components: int,
    *,
    size: float = 200.0,
    size_spread: float = 0.2,
    loadings_concentration: float = 0.2,
    factors_concentration: float = 0.1,
    random_state: Seed = None,
) -> tuple[sp.csr_array, TopicTruth]:
    """Draw counts from a multinomial topic model.

    Parameters
    ----------
    n_samples, n_features, n_components : int
        Shape of the counts and number of topics.
    size : float, default=200.0
        Median total of a sample.
    size_spread : float, default=0.2
        Standard deviation of the decimal logarithm of the totals, which are rounded up.
    loadings_concentration, factors_concentration : float, default=0.2, 0.1
        Parameters of the symmetric Dirichlet distributions of the topic proportions and of the
        frequencies; small values make most entries nearly zero.
    random_state
        As in :func:`simulate_poisson_nmf`.

    Returns
    -------
    counts : csr_array of shape (n_samples, n_features), int32
        The counts; row i sums to ``sizes[i]``.
    truth : TopicTruth
        ``L`` (n_samples, n_components), whose rows sum to 1; ``F`` (n_features, n_components),
        whose columns sum to 1; ``sizes`` (n_samples,).

    Raises
    ------
    ValueError
        As in :func:`simulate_poisson_nmf`.

    Examples
    --------
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> counts, truth = simulate_topic_counts(50, 30, 3, random_state=0)
    >>> bool((counts.sum(axis=1) == truth.sizes).all())
    True
    """
    check_sizes(n_samples=n_samples, n_features=n_features, n_components=n_components)
    check_positive(
        size=size,
        loadings_concentration=loadings_concentration,
        factors_concentration=factors_concentration,
    )
    rng = generator_of(random_state)
    L = dirichlet_rows(rng, loadings_concentration, n_samples, n_components)
    F = dirichlet_rows(rng, factors_concentration, n_components, n_features).T.copy()
    sizes = np.ceil(size * 10 ** rng.normal(0, size_spread, n_samples)).astype(np.int64)
    by_topic = rng.multinomial(sizes, L)
    return _draw_features(rng, by_topic, F), TopicTruth(L, F, sizes)


def simulate_from_factors(
    L: ArrayLike, F: ArrayLike, *, random_state: Seed = None, chunk_rows: int | None = None
) -> sp.csr_array:
    """Draw X ~ Poisson(L F^T) without computing the expected counts.

    The total of each component in a sample is drawn from a Poisson distribution, and then
    distributed over the features by the component's frequencies. The cost grows with the counts,
    not with the shape of X.

    Parameters
    ----------
    L : array-like of shape (n_samples, n_components)
        Non-negative loadings.
    F : array-like of shape (n_features, n_components)
        Non-negative factors.
    random_state : int, Generator, RandomState or None, default=None
        Source of randomness; the same int and `chunk_rows` give the same counts.
    chunk_rows : int, optional
        Number of samples drawn at a time; by default, so many that the sum of their counts is about
        two million.

    Returns
    -------
    csr_array of shape (n_samples, n_features), int32
        The counts, with sorted column numbers.

    Raises
    ------
    ValueError
        If a factor is negative or not finite, if the numbers of components differ, or if a count
        is too large for int32.

    Examples
    --------
    >>> from nmfscale.datasets import simulate_from_factors
    >>> counts = simulate_from_factors([[3.0], [0.0]], [[100.0], [0.0]], random_state=0)
    >>> counts.shape, counts.nnz, bool(200 < counts[0, 0] < 400)
    ((2, 2), 1, True)
    """
    L, F = (
        non_negative(factor, name, (None, None)).astype(np.float64, copy=False)
        for name, factor in (("L", L), ("F", same_topics(L, F)))
    )
    if L.shape[1] != F.shape[1]:
        raise ValueError(f"L has {L.shape[1]} components, F has {F.shape[1]}; they must agree.")
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"chunk_rows={chunk_rows} must be at least 1.")
    rng = generator_of(random_state)
    expected = L * F.sum(axis=0)
    if expected.size and expected.max() > _LARGEST:
        raise too_large(f"A component gives a sample {expected.max():.3g} counts")
    return _draw_features(rng, rng.poisson(expected), F, chunk_rows)


def _draw_features(
    rng: np.random.Generator, by_component: NDArray[np.int64], F: Floats,
    chunk_rows: int | None = None,
) -> sp.csr_array:  # fmt: skip
    """Distribute `by_component` (n, K) counts over features with frequencies F / F.sum(0)."""
    n_rows, n_features = len(by_component), len(F)
    if chunk_rows is None:
        edges = np.searchsorted(
            np.cumsum(by_component.sum(axis=1)),
            np.arange(_CHUNK_TOTAL, by_component.sum(), _CHUNK_TOTAL),
        )
    else:
        edges = np.arange(chunk_rows, n_rows, chunk_rows)
    edges = np.unique(np.concatenate(([0], edges, [n_rows])))
    frequencies = F / np.maximum(F.sum(axis=0), np.finfo(np.float64).tiny)
    cumulated = np.cumsum(frequencies, axis=0).T.copy()
    pieces = (
        _draw_cells(rng, by_component[start:stop], frequencies, cumulated)
        for start, stop in zip(edges[:-1], edges[1:], strict=True)
    )
    return counts_of_cells(pieces, np.diff(edges), n_features)


def counts_of_cells(
    pieces: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], n_rows: NDArray[np.int64],
    n_features: int,
) -> sp.csr_array:  # fmt: skip
    """Return counts from sorted cells (row * n_features + feature) and counts of pieces of rows.

    `n_rows` holds the number of rows of each piece, whose rows are numbered from 0.
    """
    lengths, columns, values = [], [], []
    for size, (cells, times) in zip(n_rows, pieces, strict=True):
        lengths.append(np.bincount(cells // n_features, minlength=size))
        columns.append((cells % n_features).astype(np.int32))
        if times.size and times.max() > _LARGEST:
            row, column = divmod(int(cells[times.argmax()]), n_features)
            row += sum(map(len, lengths[:-1]))
            raise too_large(f"Row {row}, column {column} gets {times.max():,} counts")
        values.append(times.astype(np.int32))
    indptr = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    if indptr[-1] <= np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)
    indices = np.concatenate(columns)
    columns.clear()
    shape = int(np.sum(n_rows)), n_features
    return sp.csr_array((np.concatenate(values), indices, indptr), shape=shape)


def _draw_cells(
    rng: np.random.Generator, by_component: NDArray[np.int64], frequencies: Floats,
    cumulated: Floats,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Return the sorted cells (row * n_features + feature) drawn for some rows, and counts."""
    n_features = len(frequencies)
    rows = np.arange(len(by_component))
    cells, times = [], []
    for k, (totals, steps) in enumerate(zip(by_component.T, cumulated, strict=True)):
        # One draw for each count, unless one draw for each feature is cheaper.
        few = totals <= n_features
        owners = np.repeat(rows[few], totals[few])
        places = rng.random(owners.size) * steps[-1]
        drawn = np.searchsorted(steps, places, side="right")
        cells.append(owners * n_features + np.minimum(drawn, n_features - 1))
        times.append(np.ones(owners.size, dtype=np.int64))
        for row in rows[~few]:
            spread = rng.multinomial(totals[row], frequencies[:, k])
            columns = np.flatnonzero(spread)
            cells.append(row * n_features + columns)
            times.append(spread[columns])
    drawn, repeats = np.concatenate(cells), np.concatenate(times)
    order = np.argsort(drawn, kind="stable")
    drawn, repeats = drawn[order], repeats[order]
    first = np.flatnonzero(np.diff(drawn, prepend=-1))
    return drawn[first], np.add.reduceat(repeats, first) if first.size else repeats


def dirichlet_rows(rng: np.random.Generator, concentration: float, n: int, size: int) -> Floats:
    """Draw rows from a symmetric Dirichlet distribution."""
    rows = rng.gamma(concentration, size=(n, size))
    # With a tiny concentration, all variables of a row may underflow to 0: set one entry to 1.
    rows[np.flatnonzero(rows.sum(axis=1) == 0), 0] = 1.0
    return rows / rows.sum(axis=1, keepdims=True)


def generator_of(random_state: Seed) -> np.random.Generator:
    """Return a Generator; a RandomState provides its seed."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)


def too_large(what: str) -> ValueError:
    """Return the error for counts that int32 cannot hold."""
    return ValueError(f"{what}, but int32 holds up to {_LARGEST:,}: simulate smaller samples.")


def check_sizes(**sizes: int) -> None:
    """Refuse sizes that are not positive integers."""
    for name, value in sizes.items():
        if int(value) != value or value < 1:
            raise ValueError(f"{name}={shown(value)} must be an integer, at least 1.")


def check_positive(**values: Any) -> None:
    """Refuse numbers that are not positive and finite."""
    for name, value in values.items():
        if not 0 < value < np.inf:
            raise ValueError(f"{name}={shown(value)} must be positive and finite.")
