"""The noisy topic model in plain NumPy: its bound and a step. Arrays are (m, K), L is (n, K)."""

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, psi, xlogy


def noise_value(theta, n, m):
    """Return the negative binomial log-likelihood of a count n of mean m, in theta."""
    return (
        theta * np.log(theta) - gammaln(theta) + gammaln(theta + n)
        - (theta + n) * np.log(theta + m)
    )  # fmt: skip


def expectations(theta, n, m):
    """Return E u and E log u under Gamma(theta + n, theta + m)."""
    return (theta + n) / (theta + m), psi(theta + n) - np.log(theta + m)


def shares(L, log_u):
    """Return the best shares pi (n, m, K)."""
    pi = L[:, None, :] * np.exp(log_u - log_u.max(axis=1, keepdims=True))
    total = pi.sum(axis=2, keepdims=True)  # 0 for rows without counts
    return np.divide(pi, total, where=total > 0, out=np.full_like(pi, 1 / L.shape[1]))


def of_counts(X, L, mu, mean, logs, pi=None):
    """Return the terms of the bound without those of u; by default with the best shares."""
    pi = shares(L, logs) if pi is None else pi
    with np.errstate(divide="ignore"):
        scores = np.log(L)[:, None, :] + np.log(mu)[None, :, None] + logs
    used = X[:, :, None] * pi > 0
    scores = np.where(used, scores, 0)
    found = np.sum(X[:, :, None] * (pi * scores - xlogy(pi, pi)), where=used)
    return found - np.sum(mu[:, None] * L.sum(axis=0) * mean) - gammaln(X + 1).sum()


def of_noise(theta, n, m, mean, logs):
    """Return E[log p(u) - log q(u)] of each pair for given expectations."""
    shape, rate = theta + n, theta + m
    return (
        theta * np.log(theta) - gammaln(theta) + (theta - 1) * logs - theta * mean
        - (shape * np.log(rate) - gammaln(shape) + (shape - 1) * logs - rate * mean)
    )  # fmt: skip


def elbo(X, L, mu, theta, n, m, pi=None):
    """Return the evidence lower bound; by default with the best shares."""
    mean, logs = expectations(theta, n, m)
    return of_counts(X, L, mu, mean, logs, pi) + of_noise(theta, n, m, mean, logs).sum()


def mixture(grid, prior, n, m):
    """Return weights (G, m, K), E u and E log u for a mixture prior of theta."""
    evidence = np.array([noise_value(theta, n, m) for theta in grid])
    logs = evidence + np.log(prior)[:, None, None]
    weights = np.exp(logs - logsumexp(logs, axis=0))
    each = [expectations(theta, n, m) for theta in grid]
    mean, log = (sum(w * e[i] for w, e in zip(weights, each, strict=True)) for i in (0, 1))
    return weights, mean, log


def mixture_elbo(X, L, mu, grid, prior, n, m):
    """Return the bound of a mixture prior: q of each pair has a theta, and u given it."""
    weights, mean, logs = mixture(grid, prior, n, m)
    found = of_counts(X, L, mu, mean, logs)
    for theta, share, w in zip(grid, prior, weights, strict=True):
        given = of_noise(theta, n, m, *expectations(theta, n, m))
        found += np.sum(w * (given + np.log(share)) - xlogy(w, w))
    return found


def best_theta(n, m, least=1e-4, most=1e4):
    """Return the theta at which 1 + log theta - psi(theta) + E log u - E u = 0, pair by pair."""

    def slope(theta, n, m):
        mean, log = expectations(theta, n, m)
        return 1 + np.log(theta) - psi(theta) + log - mean

    found = np.empty(n.shape)
    for at, _ in np.ndenumerate(n):
        pair = n[at], m[at]
        if slope(most, *pair) >= 0:
            found[at] = most
        elif slope(least, *pair) <= 0:
            found[at] = least
        else:
            found[at] = brentq(slope, least, most, pair, xtol=1e-14, rtol=1e-14)
    return found


def step(X, L, mu, theta, n, totals, fixed_samples=False, fixed_features=False):
    """Return loadings, means, theta, counts and totals after a plain step."""
    mean, logs = expectations(theta, n, np.outer(mu, totals))
    expected = X[:, :, None] * shares(L, logs)
    moved = expected.sum(axis=1) / (mu[:, None] * mean).sum(axis=0)
    L = np.where(np.broadcast_to(fixed_samples, len(L))[:, None], L, moved)
    totals, n = L.sum(axis=0), expected.sum(axis=0)
    mu = np.where(fixed_features, mu, X.sum(axis=0) / (mean * totals).sum(axis=1))
    return L, mu, best_theta(n, np.outer(mu, totals)), n, totals
