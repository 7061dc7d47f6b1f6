"""Gamma priors of a Poisson NMF, Dirichlet priors of a topic model, and log posteriors."""

from __future__ import annotations

import math
import reprlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ...counts.argument_types import CountsLike
from ...counts.foreign import refuse_annotated
from ...counts.names import matched, names_of_topics, of_topics, shown
from ...counts.structure import non_negative
from ...kernels.functions import log_gamma, xlogy
from ..factors import Array
from ..projection.likelihood import checked_factors, loglik_multinomial, loglik_poisson

# A concentration or shape, for all or for each entry; or (shape, rate) of a Gamma prior.
Prior: TypeAlias = ArrayLike | tuple[ArrayLike, ArrayLike]
# Value of a zero parameter in a log prior.
_LEAST = 1e-300


def real_numbers(values: Any, name: str) -> Array:
    """Check real numbers; return them in float64."""
    refuse_annotated(values, name)
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{array.dtype} values")
    except ValueError as error:  # also where rows are of unlike length
        raise ValueError(
            f"{name} is {reprlib.repr(values)} ({type(values).__name__}): numbers are needed, in a "
            f"list or a NumPy array ({error})."
        ) from None
    # in C order: column sums in the own order of a table would have different bits
    return array.astype(np.float64, order="C")


def gamma_prior(
    prior: Any, shape: tuple[int, int], name: str, *, unit: Array | float = 1.0,
    names: Any = None, topics: Any = None,
) -> tuple[Array, Array] | None:  # fmt: skip
    """Return pseudo-counts alpha - 1 and rates of a Gamma prior, given alpha or (alpha, rate).

    They refer to the parameters times `unit`, which is broadcast. Rows of tables are matched with
    the `names` of samples or features, and columns with `topics`.
    """
    if prior is None:
        return None
    if isinstance(prior, tuple) and len(prior) != 2:
        raise ValueError(f"{name} is a tuple of {len(prior)}; pass alpha or (alpha, rate).")
    alpha, rate = prior if isinstance(prior, tuple) else (prior, None)
    alpha, rate = (of_topics(value, topics) for value in (alpha, rate))
    alpha, rate = (
        matched(value, names, f"{name}: {what}", of="rows", subject="the factor")
        if getattr(value, "ndim", 0) == 2
        else value
        for what, value in (("alpha", alpha), ("rate", rate))
    )
    if rate is None:  # alpha of 1 with a rate would shrink the scale of a factor without end
        rate = np.where(real_numbers(alpha, f"{name}: alpha") == 1, 0.0, 1.0)
    arrays = []
    for what, value, least in (("alpha", alpha, 1.0), ("rate", rate, 0.0)):
        array = real_numbers(value, f"{name}: {what}")
        if not np.isfinite(array).all() or (array < least).any():
            raise ValueError(
                f"{name}: {what} is {shown(value)}; numbers of at least {least:g} are needed."
            )
        try:
            np.broadcast_to(array, shape)
        except ValueError:
            raise ValueError(
                f"{name}: {what} has shape {array.shape}; a number, one for each of the {shape[1]} "
                f"components or an array of shape {shape} is needed."
            ) from None
        arrays.append(array)
    return np.broadcast_to(arrays[0] - 1, shape), np.broadcast_to(arrays[1] / unit, shape)


def gamma_to_dirichlet(alpha: ArrayLike, rate: ArrayLike) -> tuple[Array, Array]:
    r"""Convert a Gamma prior of factors of a Poisson NMF to a Dirichlet prior of its topics.

    With :math:`f_{jk} \sim` Gamma(:math:`\alpha_{jk}`, rate :math:`\beta_k`), maximum a posteriori
    (MAP) estimates of the Poisson NMF are, by :func:`poisson_to_multinomial`, those of the topic
    model whose topics have a Dirichlet(:math:`\alpha_{1k}, \ldots, \alpha_{mk}`) prior (Corollary 2
    of [1]_). The inverse uses the totals of samples as sizes, and the scales returned here::

        multinomial_to_poisson(proportions, frequencies, totals, scales)

    Parameters
    ----------
    alpha : array-like of shape (n_features, n_components)
        Shapes, at least 1, with some above 1 in each component.
    rate : float or array-like of shape (n_components,)
        Rates, positive.

    Returns
    -------
    alpha : ndarray of shape (n_features, n_components), float64
        Parameters of the Dirichlet prior of each topic, a column: the shapes.
    scales : ndarray of shape (n_components,), float64
        Column sums :math:`u_k = \sum_j (\alpha_{jk} - 1) / \beta_k` of F at the MAP estimate.

    Raises
    ------
    ValueError
        If a number is out of its range, or shapes do not agree.

    See Also
    --------
    dirichlet_to_gamma : The inverse.
    logposterior_poisson, logposterior_multinomial : What the estimates maximise.

    References
    ----------
    .. [1] Carbonetto, P., Sarkar, A., Wang, Z. and Stephens, M. (2021). Non-negative matrix
       factorization algorithms greatly improve topic model fits. arXiv:2105.13440.

    Examples
    --------
    >>> from nmfscale.likelihood import gamma_to_dirichlet
    >>> alpha, scales = gamma_to_dirichlet([[1.5, 2.0], [1.5, 4.0]], rate=[0.5, 2.0])
    >>> scales
    array([2., 2.])
    """
    alpha, counts = _checked_alpha(alpha)
    return alpha, counts / _positive(rate, "rate", len(counts))


def dirichlet_to_gamma(alpha: ArrayLike, scales: ArrayLike) -> tuple[Array, Array]:
    r"""Convert a Dirichlet prior of topics to a Gamma prior of factors of a Poisson NMF.

    The inverse of :func:`gamma_to_dirichlet`. Any scales are valid: they only select which of the
    Poisson NMFs that are equivalent to a topic model has the highest posterior.

    Parameters
    ----------
    alpha : array-like of shape (n_features, n_components)
        Parameters of the Dirichlet prior of each topic, at least 1, with some above 1 in each
        topic.
    scales : float or array-like of shape (n_components,)
        Positive column sums of F at the MAP estimate.

    Returns
    -------
    alpha : ndarray of shape (n_features, n_components), float64
        Shapes of the Gamma prior: the same array.
    rate : ndarray of shape (n_components,), float64
        Its rates :math:`\beta_k = \sum_j (\alpha_{jk} - 1) / u_k`. With these, ``(alpha, rate)`` is
        the parameter `prior_factors` of :class:`nmfscale.PoissonNMF`.

    Raises
    ------
    ValueError
        As in :func:`gamma_to_dirichlet`.

    Examples
    --------
    >>> from nmfscale.likelihood import dirichlet_to_gamma
    >>> alpha, rate = dirichlet_to_gamma([[1.5, 2.0], [1.5, 4.0]], scales=2.0)
    >>> rate
    array([0.5, 2. ])
    """
    alpha, counts = _checked_alpha(alpha)
    return alpha, counts / _positive(scales, "scales", len(counts))


def logposterior_poisson(
    X: CountsLike, L: ArrayLike, F: ArrayLike, *, prior_factors: Prior | None = None,
    prior_loadings: Prior | None = None, n_threads: int | None = None,
) -> float:  # fmt: skip
    """Log posterior density of a Poisson NMF, up to the log evidence of the counts.

    Parameters
    ----------
    X, L, F, n_threads
        As in :func:`loglik_poisson`.
    prior_factors, prior_loadings : float, array-like or tuple, default=None
        Gamma priors, as in :class:`nmfscale.PoissonNMF`.

    Returns
    -------
    float
        Sum of :func:`loglik_poisson` and the log densities of the priors. A rate of 0 gives an
        improper prior, ``(alpha - 1) log f``. A factor of zero counts as 1e-300 in it, so that the
        result is finite.

    Raises
    ------
    ValueError
        As in :func:`loglik_poisson`; or if a prior is not valid.

    Notes
    -----
    With a prior on F only, whose rates are one for each component, and u_k, s_i of
    :func:`poisson_to_multinomial`, this is :func:`logposterior_multinomial` plus
    ``sum_i log Poisson(t_i; s_i) + sum_k [log Gamma(u_k; sum_j alpha_jk, rate_k) - (m - 1) log
    u_k]``. These terms are maximal at ``s_i = t_i`` and the u_k of :func:`gamma_to_dirichlet`, for
    any topics and proportions.

    Examples
    --------
    >>> from nmfscale.likelihood import logposterior_poisson
    >>> L, F = [[1.0], [2.0]], [[1.0], [1.0]]
    >>> round(logposterior_poisson([[2, 0], [1, 3]], L, F, prior_factors=(2.0, 1.0)), 4)
    -7.7123
    """
    topics = names_of_topics(L, F)
    counts, L, F = checked_factors(X, L, F)
    priors = [
        (values, gamma_prior(argument, values.shape, name, names=names, topics=topics))
        for name, values, argument, names in (
            ("prior_factors", F, prior_factors, counts.feature_names),
            ("prior_loadings", L, prior_loadings, counts.sample_names),
        )
    ]
    total = math.fsum(loglik_poisson(counts, L, F, n_threads=n_threads))
    for values, prior in priors:
        if prior is not None:
            pseudo, rate = prior
            total += math.fsum((xlogy(pseudo, np.maximum(values, _LEAST)) - rate * values).ravel())
            constant = xlogy(pseudo + 1, rate) - log_gamma(pseudo + 1)
            total += math.fsum(constant[rate > 0])
    return total


def logposterior_multinomial(
    X: CountsLike,
    L: ArrayLike,
    F: ArrayLike,
    *,
    prior_factors: ArrayLike | None = None,
    n_threads: int | None = None,
) -> float:
    """Log posterior density of a topic model, up to the log evidence of the counts.

    Parameters
    ----------
    X, L, F, n_threads
        As in :func:`loglik_multinomial`: L and F may be scaled in any way.
    prior_factors : float or array-like, default=None
        Parameters of the Dirichlet prior of the topics, at least 1: a number, one for each
        component, or an array of the shape of F. The rate of a Gamma prior, given as (alpha, rate),
        makes no difference. The prior of the proportions is uniform.

    Returns
    -------
    float
        Sum of :func:`loglik_multinomial` and the log Dirichlet densities of the topics. A frequency
        of zero counts as 1e-300 in these, so that the result is finite.

    Raises
    ------
    ValueError
        As in :func:`loglik_multinomial`; or if the prior is not valid, or a column of F is zero and
        topics have a prior.

    Examples
    --------
    >>> from nmfscale.likelihood import logposterior_multinomial
    >>> L, F = [[1.0], [2.0]], [[1.0], [1.0]]
    >>> round(logposterior_multinomial([[2, 0], [1, 3]], L, F, prior_factors=2.0), 4)
    -2.3671
    """
    topics = names_of_topics(L, F)
    counts, L, F = checked_factors(X, L, F)
    prior = gamma_prior(
        prior_factors, F.shape, "prior_factors", names=counts.feature_names, topics=topics
    )
    sums = F.sum(axis=0)
    if prior is not None and not sums.all():
        raise ValueError(
            f"F: column {int(sums.argmin())} is zero, and a topic without factors has no density; "
            "leave it out."
        )
    total = math.fsum(loglik_multinomial(counts, L, F, n_threads=n_threads))
    if prior is not None:
        pseudo, alpha = prior[0], prior[0] + 1
        total += math.fsum(xlogy(pseudo, np.maximum(F / sums, _LEAST)).ravel())
        total += math.fsum(log_gamma(alpha.sum(axis=0)) - log_gamma(alpha).sum(axis=0))
    return total


def _checked_alpha(values: ArrayLike) -> tuple[Array, Array]:
    """Return alpha (m, K) in float64, and the positive pseudo-counts of each component."""
    alpha = non_negative(values, "alpha", (None, None)).astype(np.float64)
    counts = (alpha - 1).sum(axis=0)
    if (alpha < 1).any() or not counts.all():
        where = "a number" if (alpha < 1).any() else f"all of column {int(counts.argmin())}"
        raise ValueError(
            f"alpha: {where} is {alpha.min():g}; at least 1 is needed, and above 1 somewhere in "
            "each component: else there is no maximum of the posterior."
        )
    return alpha, counts


def _positive(parameter: ArrayLike, name: str, n_components: int) -> Array:
    """Check and return one positive number for each component."""
    values = non_negative(
        np.atleast_1d(parameter), name, (1 if np.ndim(parameter) == 0 else n_components,)
    )
    if not values.all():
        raise ValueError(f"{name} is {shown(parameter)}; positive numbers are needed.")
    return np.broadcast_to(values.astype(np.float64), (n_components,))
