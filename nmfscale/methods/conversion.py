"""Poisson NMF and the multinomial topic model: one model in two parametrisations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..counts.names import matched, names_of, same_topics
from ..counts.structure import non_negative

Floats = NDArray[np.floating[Any]]


class TopicParameters(NamedTuple):
    """Result of :func:`nmfscale.likelihood.poisson_to_multinomial`.

    Attributes
    ----------
    proportions : ndarray of shape (n_samples, n_components)
        Topic proportions of the samples.
    frequencies : ndarray of shape (n_features, n_components)
        Feature frequencies of the topics.
    size_factors : ndarray of shape (n_samples,)
        Expected totals of the samples.
    scales : ndarray of shape (n_components,)
        Sums of the factors.
    """

    proportions: Floats
    frequencies: Floats
    size_factors: Floats
    scales: Floats


def poisson_to_multinomial(L: ArrayLike, F: ArrayLike) -> TopicParameters:
    r"""Convert the factors of a Poisson NMF to the parameters of a multinomial topic model.

    With :math:`u_k = \sum_j f_{jk}` and :math:`s_i = \sum_k l_{ik} u_k`, the frequencies are
    :math:`f_{jk} / u_k` and the proportions :math:`l_{ik} u_k / s_i` (equation 4 of [1]_). At a
    maximum of the Poisson likelihood, :math:`s_i` is the total count of sample i.

    Parameters
    ----------
    L : array-like of shape (n_samples, n_components)
        Loadings, non-negative.
    F : array-like of shape (n_features, n_components)
        Factors, non-negative.

    Returns
    -------
    proportions : ndarray of shape (n_samples, n_components)
        Proportion of each topic in each sample. Rows sum to one; a sample of size zero
        has the same share of every topic.
    frequencies : ndarray of shape (n_features, n_components)
        Feature frequencies of each topic. Columns sum to one; a topic whose factors are all zero
        has the same frequency for every feature, and no share in any sample of nonzero size.
    size_factors : ndarray of shape (n_samples,)
        Expected total count :math:`s_i` of each sample.
    scales : ndarray of shape (n_components,)
        Column sums :math:`u_k` of F, which the inverse needs.

    All have the type of L and F: float32 if both are float32, otherwise float64.

    Raises
    ------
    ValueError
        If L and F are not matrices with the same number of columns, or hold a negative, infinite
        or missing number.

    See Also
    --------
    multinomial_to_poisson : The inverse.

    References
    ----------
    .. [1] Carbonetto, P., Sarkar, A., Wang, Z. and Stephens, M. (2021). Non-negative matrix
       factorization algorithms greatly improve topic model fits. arXiv:2105.13440.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.methods.conversion import poisson_to_multinomial
    >>> topics = poisson_to_multinomial(L=[[1, 1], [0, 2]], F=[[1, 2], [3, 2]])
    >>> topics.frequencies
    array([[0.25, 0.5 ],
           [0.75, 0.5 ]])
    >>> topics.proportions
    array([[0.5, 0.5],
           [0. , 1. ]])
    >>> topics.size_factors
    array([8., 8.])
    """
    L, F = _factor_pair(L, F)
    dtype = np.result_type(L, F)
    with np.errstate(over="ignore"):
        u = F.sum(axis=0, dtype=np.float64)
        weights = L * u
        s = weights.sum(axis=1)
    largest = np.finfo(dtype).max
    if not ((s <= largest).all() and (u <= largest).all()):
        raise ValueError(
            f"The products of L (up to {L.max():.3g}) and F (up to {F.max():.3g}) overflow "
            f"{dtype}; rescale them first."
        )
    return TopicParameters(
        _shares(weights, s[:, np.newaxis]).astype(dtype),
        _shares(F, u).astype(dtype),
        s.astype(dtype),
        u.astype(dtype),
    )


def multinomial_to_poisson(
    proportions: ArrayLike,
    frequencies: ArrayLike,
    size_factors: ArrayLike,
    scales: ArrayLike,
) -> tuple[Floats, Floats]:
    r"""Convert the parameters of a multinomial topic model to the factors of a Poisson NMF.

    The inverse of :func:`nmfscale.likelihood.poisson_to_multinomial`: with :math:`l^*` the
    proportions and :math:`f^*` the frequencies, :math:`f_{jk} = u_k f^*_{jk}` and
    :math:`l_{ik} = s_i l^*_{ik} / u_k` (equation 4 of [1]_, solved for L and F).

    Parameters
    ----------
    proportions : array-like of shape (n_samples, n_components)
        Topic proportions, non-negative.
    frequencies : array-like of shape (n_features, n_components)
        Feature frequencies, non-negative.
    size_factors : array-like of shape (n_samples,)
        Size :math:`s_i` of each sample.
    scales : array-like of shape (n_components,)
        Scale :math:`u_k` of each factor; any positive numbers give the same :math:`L F^T`.
        A topic of scale zero gets zeros in both L and F.

    Returns
    -------
    L : ndarray of shape (n_samples, n_components)
        Loadings; float32 if all four arguments are float32, otherwise float64.
    F : ndarray of shape (n_features, n_components)
        Factors, of the same type.

    Raises
    ------
    ValueError
        If the shapes do not agree, or a number is negative, infinite or missing.

    See Also
    --------
    poisson_to_multinomial : The inverse.

    References
    ----------
    .. [1] Carbonetto, P., Sarkar, A., Wang, Z. and Stephens, M. (2021). Non-negative matrix
       factorization algorithms greatly improve topic model fits. arXiv:2105.13440.

    Examples
    --------
    >>> import numpy as np
    >>> from nmfscale.methods.conversion import multinomial_to_poisson, poisson_to_multinomial
    >>> topics = poisson_to_multinomial(L=[[1, 1], [0, 2]], F=[[1, 2], [3, 2]])
    >>> L, F = multinomial_to_poisson(*topics)
    >>> L
    array([[1., 1.],
           [0., 2.]])
    >>> F
    array([[1., 2.],
           [3., 2.]])
    """
    samples, subject = names_of(proportions), "proportions"
    size_factors = matched(size_factors, samples, "size_factors", subject=subject)
    topics = names_of(proportions, 1)
    if topics is None:
        topics, subject = names_of(frequencies, 1), "frequencies"
    scales = matched(scales, topics, "scales", of="topics", subject=subject)
    proportions, frequencies = _factor_pair(
        proportions, frequencies, names=("proportions", "frequencies")
    )
    s = non_negative(size_factors, "size_factors", (proportions.shape[0],))
    u = non_negative(scales, "scales", (proportions.shape[1],))
    dtype = np.result_type(proportions, frequencies, s, u)
    L = proportions * s[:, np.newaxis].astype(np.float64)
    np.divide(L, u, out=L, where=u > 0.0)
    L[:, u == 0.0] = 0.0
    return L.astype(dtype), (frequencies * u.astype(np.float64)).astype(dtype)


def _shares(parts: Floats, whole: Floats) -> Floats:
    """Return `parts / whole`; where the whole is zero, equal shares along the summed axis."""
    axis = 0 if whole.ndim == 1 else 1
    equal = np.full(parts.shape, 1.0 / parts.shape[axis])
    return np.divide(parts, whole, out=equal, where=whole > 0.0)


def _factor_pair(
    first: ArrayLike, second: ArrayLike, names: tuple[str, str] = ("L", "F")
) -> tuple[Floats, Floats]:
    """Check two matrices with a column for each topic."""
    left = non_negative(first, names[0], (None, None))
    right = non_negative(same_topics(first, second), names[1], (None, None))
    if left.shape[1] != right.shape[1]:
        raise ValueError(
            f"{names[0]} has {left.shape[1]} columns and {names[1]} has {right.shape[1]}; "
            "both need one column per topic."
        )
    return left, right
