"""Gamma-Poisson factorization in plain NumPy, with all parameters of every distribution."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, psi, xlogy


def log_gamma_density(x, log_x, shape, rate, log_rate=None):
    """Return the expected log density of Gamma(shape, rate) from E x, E log x, E (log) rate."""
    log_rate = np.log(rate) if log_rate is None else log_rate
    return shape * log_rate - gammaln(shape) + (shape - 1) * log_x - rate * x


def moments(shape, rate):
    """Return E x and E log x of Gamma(shape, rate)."""
    return shape / rate, psi(shape) - np.log(rate)


def minus_divergence(shape, rate, prior_shape, prior_rate, prior_log_rate=None):
    """Return E_q[log p - log q] for q = Gamma(shape, rate)."""
    x, log_x = moments(shape, rate)
    prior = log_gamma_density(x, log_x, prior_shape, prior_rate, prior_log_rate)
    return prior - log_gamma_density(x, log_x, shape, rate)


def shares(log_theta, log_beta):
    """Return the best phi (n, m, K)."""
    scores = log_theta[:, None, :] + log_beta[None, :, :]
    phi = np.exp(scores - scores.max(axis=2, keepdims=True))
    return phi / phi.sum(axis=2, keepdims=True)


def of_counts(X, theta, log_theta, beta, log_beta, phi=None):
    """Return E_q[log p(x, z) - log q(z)]: z_ijk are Poisson; multinomial (x_ij, phi_ij) in q."""
    phi = shares(log_theta, log_beta) if phi is None else phi
    scores = log_theta[:, None, :] + log_beta[None, :, :]
    words = np.sum(X[:, :, None] * (phi * scores - xlogy(phi, phi)))
    return words - theta.sum(axis=0) @ beta.sum(axis=0) - gammaln(X + 1).sum()


def elbo_plain(X, gamma, W, shape, rate, of_q=None, phi=None):
    """Return the bound for point estimates W (m, K); q has rates 1 + rate by default."""
    of_q = np.broadcast_to(1 + rate if of_q is None else of_q, gamma.shape)
    theta, log_theta = moments(gamma, of_q)
    log_W = np.log(np.maximum(W, 1e-300))
    found = of_counts(X, theta, log_theta, W, log_W, phi)
    return found + minus_divergence(gamma, of_q, shape, rate).sum()


def elbo_deep(X, q_theta, q_beta, q_xi, q_eta, a, c, of_xi, of_eta):
    """Return the bound of the hierarchical model; every q is a pair (shapes, rates)."""
    found = of_counts(X, *moments(*q_theta), *moments(*q_beta))
    for q, q_rate, shape, prior in ((q_theta, q_xi, a, of_xi), (q_beta, q_eta, c, of_eta)):
        mean, log_mean = (each[:, None] for each in moments(*q_rate))
        found += minus_divergence(*q, shape, mean, log_mean).sum()
        found += minus_divergence(*q_rate, *prior).sum()
    return found


def expected_rate(values, sums, goal, rate):
    """Return the root u of rate u + sum_k values_k u / (u + sums_k) = goal."""

    def excess(u):
        return rate * u + np.sum(values * u / (u + sums)) - goal

    return brentq(excess, 0, 2 * goal / rate, xtol=1e-300, rtol=1e-15)


def posterior_of(values, sums, shape, prior):
    """Return rates of q(theta) and (shape, rates) of q(xi), both at their optimum."""
    s, t = prior
    goals = s + np.broadcast_to(shape, values.shape).sum(axis=1)
    u = np.array(
        [expected_rate(row, sums, goal, t) for row, goal in zip(values, goals, strict=True)]
    )
    return u[:, None] + sums, (goals, goals / u)


def step_plain(X, gamma, W, shape, rate, pseudo=0.0):
    """Return gamma and W after a step, both from the same phi; W has pseudo-counts."""
    log_theta = psi(gamma) - np.log(1 + rate)
    expected = X[:, :, None] * shares(log_theta, np.log(np.maximum(W, 1e-300)))
    W = expected.sum(axis=0) + pseudo
    return shape + expected.sum(axis=1), W / W.sum(axis=0)


def step_deep(X, gamma, values, totals, a, c, of_xi, of_eta):
    """Return gamma, shapes and totals after a step, rates at their optimum."""
    rates, _ = posterior_of(values, totals, c, of_eta)
    beta, log_beta = moments(values, rates)
    rates, _ = posterior_of(gamma, beta.sum(axis=0), a, of_xi)
    expected = X[:, :, None] * shares(moments(gamma, rates)[1], log_beta)
    gamma = a + expected.sum(axis=1)
    rates, _ = posterior_of(gamma, beta.sum(axis=0), a, of_xi)
    return gamma, c + expected.sum(axis=0), (gamma / rates).sum(axis=0)


def priors_of(model):
    """Return a, c, which may be (m, K), and the priors of xi and eta of a hierarchical fit."""
    rates = model.shape_rates_ / model.mean_rates_
    return (
        model.shape_loadings_,
        np.transpose(model.shape_factors_),
        *zip(model.shape_rates_, rates, strict=True),
    )


def elbo_of(model, counts):
    """Return the bound of a fit; rates that are not attributes are computed by their formulas."""
    gamma, shapes = model.loadings_shape_, model.components_shape_.T
    if not model.hierarchical:
        return elbo_plain(counts, gamma, shapes, model.shape_loadings_, model.rate_loadings_)
    a, c, of_xi, of_eta = priors_of(model)
    rates = model.sample_rates_[:, None] + model.components_.sum(axis=1)
    rates_beta = model.feature_rates_[:, None] + model.loadings_totals_
    q_xi, q_eta = (
        (goals, goals / means)
        for means, goals in (
            (model.sample_rates_, of_xi[0] + np.broadcast_to(a, gamma.shape).sum(axis=1)),
            (model.feature_rates_, of_eta[0] + np.broadcast_to(c, shapes.shape).sum(axis=1)),
        )
    )  # fmt: skip
    return elbo_deep(counts, (gamma, rates), (shapes, rates_beta), q_xi, q_eta, a, c, of_xi, of_eta)
