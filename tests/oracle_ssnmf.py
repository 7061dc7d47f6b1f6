"""Semi-supervised NMF in plain NumPy: dense, in the notation of Haddock et al.

Samples are columns here, as in their paper: X (m, n) ~ A S, Y (k, n) ~ B S, W and L weights of the
shapes of X and Y. A weight multiplies the term of its entry.
"""

import numpy as np
from scipy.special import xlogy

FLOOR = 1e-16


def divergence(X, M, W, loss):
    """Return sum w (x - m)^2, or sum w (x log(x / m) - x + m), with 0 log 0 = 0."""
    if loss == "frobenius":
        return np.sum(W * (X - M) ** 2)
    return np.sum(W * (xlogy(X, X) - xlogy(X, M) - X + M))


def objective(X, Y, A, B, S, losses, lam, W=1.0, L=1.0):
    """Return the loss of the data and lam times that of the labels."""
    return divergence(X, A @ S, W, losses[0]) + lam * divergence(Y, B @ S, L, losses[1])


def up_down(X, M, W, loss):
    """Return numerator and denominator of an update: 2 W X and 2 W M, or W X / M and W."""
    W = np.broadcast_to(W, X.shape)
    return (2 * W * X, 2 * W * M) if loss == "frobenius" else (W * X / M, W)


def update(X, Y, A, B, S, losses, lam, W=1.0, L=1.0):
    """Return A, B, S after an iteration of the paper's multiplicative updates, in this order."""
    up, down = up_down(X, A @ S, W, losses[0])
    A = np.maximum(A * (up @ S.T) / (down @ S.T), FLOOR)
    up, down = up_down(Y, B @ S, L, losses[1])
    B = np.maximum(B * (up @ S.T) / (down @ S.T), FLOOR)
    up, down = up_down(X, A @ S, W, losses[0])
    up_labels, down_labels = up_down(Y, B @ S, L, losses[1])
    up = A.T @ up + lam * B.T @ up_labels
    down = A.T @ down + lam * B.T @ down_labels
    return A, B, np.maximum(S * up / down, FLOOR)


def descended(b, g, q, h):
    """Return the new value of a coordinate: upwards a Newton step, downwards a bound's minimum.

    With t = b_new / b the bound is g d + q d^2 / 2 + h b^2 (t - 1 - log t).
    """
    if g <= 0:
        return b - g / (q + h) if q + h > 0 else b
    return max(np.roots([q, g + (h - q) * b, -h * b * b]).real)


def descend_row(s, terms, n_sweeps, floor=FLOOR):
    """Return loadings s (K,) after sweeps over the loss of several terms.

    A term is (values, weights, rows, loss): values x (p,) are explained by rows (p, K) times s, by
    w (x - mu)^2 / 2 or by w (mu - x log mu).
    """
    s = s.copy()
    for _ in range(n_sweeps):
        for k in range(len(s)):
            g = q = h = 0.0
            for x, w, rows, loss in terms:
                a, mu = rows[:, k], rows @ s
                if loss == "frobenius":
                    g, q = g + np.sum(w * (mu - x) * a), q + np.sum(w * a * a)
                else:
                    g += np.sum(w * a * (1 - x / mu))
                    h += np.sum(w * x * (a / mu) ** 2)
            s[k] = max(descended(s[k], g, q, h), floor)
    return s
