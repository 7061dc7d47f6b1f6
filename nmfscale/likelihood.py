"""Likelihoods, posteriors and optimality of factors; maximum-likelihood weights; conversions.

The functions take counts and plain arrays, such as L (n_samples x n_components) and F
(n_features x n_components) of a Poisson NMF, and no models.
"""

from .methods.conversion import multinomial_to_poisson, poisson_to_multinomial
from .methods.poisson.mixture import mixture_proportions
from .methods.poisson.priors import (
    dirichlet_to_gamma,
    gamma_to_dirichlet,
    logposterior_multinomial,
    logposterior_poisson,
)
from .methods.poisson.regression import poisson_regression
from .methods.projection.likelihood import (
    deviance_poisson,
    kkt_residuals,
    loglik_multinomial,
    loglik_poisson,
)

__all__ = [
    "deviance_poisson", "dirichlet_to_gamma", "gamma_to_dirichlet", "kkt_residuals",
    "loglik_multinomial", "loglik_poisson", "logposterior_multinomial", "logposterior_poisson",
    "mixture_proportions", "multinomial_to_poisson", "poisson_regression",
    "poisson_to_multinomial",
]  # fmt: skip
