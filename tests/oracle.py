"""Reference implementations of quantities and updates in plain NumPy: slow, dense, simple.

Nothing here imports the package. `eps` is the guard of the reference program fastTopics, which
adds 1e-8 to expected counts inside logarithms and ratios; at its default of zero the formulas are
the exact ones. The algebra of one row is written once and serves both factors by transposition:

    y   (m,)    counts of the row          u   (K,)   column sums of the held factor
    A   (m, K)  the held factor            b   (K,)   the row of the factor that moves

so that y_j ~ Poisson((A b)_j), and minus the log-likelihood is u.b - sum_j y_j log (A b)_j + const.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, psi, xlogy

FASTTOPICS_EPS = 1e-8
MINVAL = 1e-10


# Likelihoods and conditions --------------------------------------------------------------------


def poisson_logpmf(t, s):
    """Return log Poisson(t; s), with 0 log 0 = 0."""
    return xlogy(t, s) - s - gammaln(t + 1.0)


def loss(X, L, F, eps=0.0):
    """Return sum_ij mu - x log(mu + eps), mu = L F^T: minus the log-likelihood less a constant."""
    mu = L @ F.T
    return np.sum(mu) - np.sum(xlogy(X, mu + eps))


def loglik_poisson(X, L, F, eps=0.0, weights=1.0):
    """Return one Poisson log-likelihood per row, with weights of the entries (n, m)."""
    mu = L @ F.T
    return np.sum(weights * (xlogy(X, mu + eps) - mu - gammaln(X + 1.0)), axis=1)


def loglik_multinomial(X, L, F, weights=1.0):
    """Return one multinomial log-likelihood per row; a row's probabilities are mu / sum(w mu)."""
    mu = L @ F.T
    t, s = (X * weights).sum(axis=1), (mu * weights).sum(axis=1)
    p = np.divide(mu, s[:, None], out=np.zeros_like(mu), where=s[:, None] > 0)
    return gammaln(t + 1.0) + np.sum(weights * (xlogy(X, p) - gammaln(X + 1.0)), axis=1)


def deviance_poisson(X, L, F, eps=0.0, weights=1.0):
    """Return one deviance per row: 2 sum_j w (x log(x / mu) - x + mu)."""
    mu = L @ F.T
    return 2.0 * np.sum(weights * (xlogy(X, X) - xlogy(X, mu + eps) - X + mu), axis=1)


def kkt_residuals(X, L, F, eps=0.0, weights=1.0):
    """Return L o (W (1 - U) F) and F o ((W (1 - U))^T L), U = X / mu (zero where X is zero)."""
    mu = L @ F.T
    U = np.divide(X, mu + eps, out=np.zeros_like(mu), where=X > 0)
    slopes = weights * (1 - U)
    return L * (slopes @ F), F * (slopes.T @ L)


# One row ---------------------------------------------------------------------------------------


def row_loss(y, A, u, b, eps=0.0):
    """Return u.b - sum_j y_j log((A b)_j + eps)."""
    return u @ b - np.sum(xlogy(y, A @ b + eps))


def with_prior(y, A, u, shape, rate):
    """Return the row problem with a Gamma(shape_k, rate_k) prior on b_k.

    The log density (shape_k - 1) log b_k - rate_k b_k equals that of shape_k - 1 additional counts
    of topic k alone, and of rate_k added to u_k: so every solver below finds the MAP estimate.
    """
    return (
        np.concatenate([y, np.asarray(shape, dtype=float) - 1.0]),
        np.vstack([A, np.eye(len(u))]),
        u + np.asarray(rate, dtype=float),
    )


def em(y, A, u, b, n_steps, eps=0.0):
    """Return b after steps b_k <- b_k (A^T (y / A b))_k / u_k; a topic with u_k = 0 stays zero.

    With fastTopics' eps, its guard of the mixture form is added: responsibilities are divided by
    their largest, raised by 1e-15 and normalised again.
    """
    y, A, b = y[y > 0], A[y > 0], np.array(b, dtype=float)
    for _ in range(n_steps):
        parts = A * b
        largest = parts.max(axis=1, keepdims=True)
        parts = np.divide(parts, largest, out=np.zeros_like(parts), where=largest > 0)
        if eps > 0:
            parts += 1e-15
        total = parts.sum(axis=1)
        share = np.divide(y, total, out=np.zeros_like(y, dtype=float), where=total > 0) @ parts
        b = np.divide(share, u, out=np.zeros_like(b), where=u > 0)
    return b


def em_mixture(y, A, b, n_steps):
    """Return proportions b (K,) of a multinomial mixture after EM steps; columns of A sum to one.

    E step p_jk = a_jk b_k / sum_k a_jk b_k, M step b_k = sum_j y_j p_jk / t (equations 31 and 32 of
    Carbonetto et al.).
    """
    for _ in range(n_steps):
        p = A * b
        p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-300)
        b = y @ p / y.sum()
    return b


def _coordinate_derivatives(y, a, u_k, mu, eps):
    """Return u_k - a.(y / mu) and a^2.(y / mu^2), the two derivatives along one coordinate."""
    ratio = a / (mu + eps)
    return u_k - ratio @ y, (ratio * ratio) @ y


def scd(y, A, u, b, n_passes, eps=0.0):
    """Return b after b_k <- max(0, b_k - g_k / h_k) for k = 1..K in turn, as in fastTopics."""
    y, A, b = y[y > 0], A[y > 0], np.array(b, dtype=float)
    mu = A @ b
    for _ in range(n_passes):
        for k in range(len(b)):
            g, h = _coordinate_derivatives(y, A[:, k], u[k], mu, eps)
            new = max(0.0, (h * b[k] - g) / (h + eps)) if h + eps > 0 else 0.0
            mu = mu + (new - b[k]) * A[:, k]
            b[k] = new
    return b


def ccd(y, A, u, b, n_passes, eps=0.0):
    """Return b after b_k <- max(eps, b_k - g_k / h_k + eps) for k = 1..K in turn."""
    y, A, b = y[y > 0], A[y > 0], np.array(b, dtype=float)
    mu = A @ b
    for _ in range(n_passes):
        for k in range(len(b)):
            g, h = _coordinate_derivatives(y, A[:, k], u[k], mu, eps)
            new = max(eps, b[k] - g / h + eps) if h > 0 else eps
            mu = mu + (new - b[k]) * A[:, k]
            b[k] = new
    return b


def sn(y, A, u, b, n_passes):
    """Scalar Newton of Hien and Gillis (2021): coordinate descent that never raises the loss.

    Along coordinate k the loss has |third derivative| <= 2 c h^(3/2), c = 1 / sqrt(smallest
    positive count). With d = max(0, b_k - g / h) - b_k and lambda = c sqrt(h) |d|, the full step is
    safe if g <= 0 (the derivative is concave: no overshoot) or lambda <= 0.683802 (the root of
    lambda^2 + lambda + log(1 - lambda) = 0); otherwise d is divided by 1 + lambda.
    """
    y, A, b = y[y > 0], A[y > 0], np.array(b, dtype=float)
    mu = A @ b
    for _ in range(n_passes):
        for k in range(len(b)):
            g, h = _coordinate_derivatives(y, A[:, k], u[k], mu, 0.0)
            if h == 0.0:
                step = -b[k]
            else:
                step = max(0.0, b[k] - g / h) - b[k]
                decrement = np.sqrt(h / y.min()) * abs(step)
                if g > 0 and decrement > 0.683802:
                    step /= 1.0 + decrement
            b[k] += step
            mu = mu + step * A[:, k]
    return b


def row_derivatives(y, A, u, b):
    """Return g = u - A^T (y / mu) and H = A^T diag(y / mu^2) A."""
    y, A = y[y > 0], A[y > 0]
    mu = A @ b
    return u - A.T @ (y / mu), (A.T * (y / mu**2)) @ A


def minimise_quadratic(g, H, b, n_sweeps=100_000):
    """Return the d >= -b that minimises g.d + d.H.d / 2, by coordinate descent to rounding."""
    d = np.zeros_like(b)
    for _ in range(n_sweeps):
        before = d.copy()
        for k in range(len(d)):
            slope = g[k] + H[k] @ d
            d[k] = max(-b[k], d[k] - slope / H[k, k]) if H[k, k] > 0 else -b[k]
        if np.max(np.abs(d - before)) <= 1e-15 * np.max(np.abs(b)):
            break
    return d


def newton(y, A, u, b, n_steps):
    """Return b after b <- b + argmin over d >= -b of the second-order model; no line search."""
    b = np.array(b, dtype=float)
    for _ in range(n_steps):
        b = b + minimise_quadratic(*row_derivatives(y, A, u, b), b)
    return b


def solve_row(y, A, u, n_steps=200):
    """Return the optimum of the row problem: scalar Newton first, then Newton with halving."""
    b = sn(y, A, u, np.full(len(u), y.sum() / max(u.sum(), 1e-300)), 20)
    for _ in range(n_steps):
        if not np.any(y > 0):
            break
        d = minimise_quadratic(*row_derivatives(y, A, u, b), b)
        now, size = row_loss(y, A, u, b), 1.0
        while row_loss(y, A, u, b + size * d) > now and size > 1e-12:
            size /= 2.0
        b = np.maximum(b + size * d, 0.0)
        if np.max(np.abs(d)) <= 1e-14 * np.max(b):
            break
    return b


def mean_field(y, A, alpha, gamma, n_steps, tolerance=0.0, rate=None):
    """Return gamma after at most n_steps, with theta and sum y log(A theta) of the last step.

    theta = exp(E log h) for q(h) = Dirichlet(gamma), or Gamma(gamma, rate) where rates are given;
    counts are divided by phi_jk = theta_k a_jk / mu_j, and gamma_k = alpha_k + sum_j y_j phi_jk.
    Ends once gamma changes by less than `tolerance` on average.
    """
    y, A = y[y > 0], A[y > 0]
    for _ in range(n_steps):
        scale = psi(gamma.sum()) if rate is None else np.log(rate)
        theta = np.exp(psi(gamma) - scale)
        mu = A @ theta
        before, gamma = gamma, alpha + theta * (A.T @ (y / mu))
        if np.mean(np.abs(gamma - before)) < tolerance:
            break
    return gamma, theta, np.sum(y * np.log(mu))


def lda_bound(y, A, alpha, gamma, phi):
    """Return a document's evidence lower bound by its definition, for topics A.

    E log p(h) + sum_jk y_j phi_jk (E log h_k + log a_jk - log phi_jk) - E log q(h).
    """
    log_h = psi(gamma) - psi(gamma.sum())
    log_p = gammaln(alpha.sum()) - gammaln(alpha).sum() + (alpha - 1) @ log_h
    log_q = gammaln(gamma.sum()) - gammaln(gamma).sum() + (gamma - 1) @ log_h
    words = phi * log_h + xlogy(phi, A) - xlogy(phi, phi)
    return log_p - log_q + y @ words.sum(axis=1)


# Both factors ----------------------------------------------------------------------------------


def update_rows(X, L, F, method, inner_iter, eps=0.0, rows=None):
    """Return L with all rows, or `rows`, updated; call with X.T, F, L for the other factor.

    Every method except em takes one EM step first, after which no line search is needed (sn never
    needs one).
    """
    u, moved = F.sum(axis=0), np.array(L, dtype=float)
    for i in range(len(X)) if rows is None else rows:
        y, b = X[i], moved[i]
        if method == "em":
            moved[i] = em(y, F, u, b, inner_iter, eps)
            continue
        b = em(y, F, u, b, 1, eps)
        if method in ("ccd", "scd"):
            moved[i] = {"ccd": ccd, "scd": scd}[method](y, F, u, b, inner_iter, eps)
        else:
            moved[i] = {"sn": sn, "newton": newton}[method](y, F, u, b, inner_iter)
    return moved


def rescale(L, F):
    """Return (L, F) with equal column means and the same product L F^T."""
    ratio = np.sqrt(F.mean(axis=0) / L.mean(axis=0))
    return L * ratio, F / ratio


class Pair(NamedTuple):
    """A pair of factors."""

    L: np.ndarray
    F: np.ndarray


class Fit:
    """The alternating loop of fastTopics; `history` holds a dict for each iteration.

    best (L, F), plain (Ln, Fn) and extrapolated (Ly, Fy) are three separate pairs, and progress is
    reported for the best pair, so a rejected step repeats the values before it.
    """

    RESET, INCREASE, REDUCE, CAP_INCREASE, CAP = 20, 1.1, 0.75, 1.05, 0.99

    def __init__(
        self,
        X,
        L,
        F,
        method,
        inner_iter,
        *,
        extrapolate=False,
        eps=FASTTOPICS_EPS,
        rows=None,
        columns=None,
    ):
        self.X = np.asarray(X, dtype=float)
        self.method, self.inner_iter, self.eps = method, inner_iter, eps
        self.extrapolate, self.rows, self.columns = extrapolate, rows, columns
        self.best = self.plain = self.ahead = self._floor(Pair(*rescale(L, F)))
        self.beta = self.beta_last = 0.5
        self.beta_cap = self.CAP
        self.loss = self.loss_compare = loss(self.X, *self.best, self.eps)
        self.history = []

    def run(self, n_iter):
        """Run n_iter outer iterations."""
        for _ in range(n_iter):
            i = len(self.history) + 1
            if self.extrapolate and i % self.RESET != 0:
                self._extrapolated_step()
            else:
                self._plain_step()
            self._record()
        return self

    def _floor(self, pair):
        return Pair(np.maximum(pair.L, MINVAL), np.maximum(pair.F, MINVAL))

    def _move_L(self, pair):
        moved = update_rows(
            self.X, pair.L, pair.F, self.method, self.inner_iter, self.eps, self.rows
        )
        return np.maximum(moved, MINVAL)

    def _move_F(self, pair):
        moved = update_rows(
            self.X.T, pair.F, pair.L, self.method, self.inner_iter, self.eps, self.columns
        )
        return np.maximum(moved, MINVAL)

    def _plain_step(self):
        L = self._move_L(self.best)
        F = self._move_F(Pair(L, self.best.F))
        self.best = self.plain = self.ahead = Pair(*rescale(L, F))
        self.loss = self.loss_compare = loss(self.X, *self.best, self.eps)

    def _extrapolated_step(self):
        Ln, (Ly, Fy) = self.plain.L, self.ahead
        L = self._move_L(self.ahead)
        Ly = np.maximum(L + self.beta * (L - Ln), MINVAL)
        F = self._move_F(Pair(Ly, Fy))
        Fy = np.maximum(F + self.beta * (F - self.plain.F), MINVAL)
        new_loss = loss(self.X, Ly, F, self.eps)
        if new_loss >= self.loss_compare:
            self.ahead = self.plain
            self.beta_cap = self.beta_last
            self.beta *= self.REDUCE
        else:
            self.plain, self.ahead = Pair(L, F), Pair(Ly, Fy)
            self.beta = min(self.beta_cap, self.INCREASE * self.beta)
            self.beta_last = self.beta
            self.beta_cap = min(self.CAP, self.CAP_INCREASE * self.beta_cap)
        self.loss_compare = new_loss
        if new_loss < self.loss:
            self.best, self.loss = Pair(Ly, F), new_loss
        self.best = Pair(*rescale(*self.best))
        self.plain = Pair(*rescale(*self.plain))
        self.ahead = Pair(*rescale(*self.ahead))

    def _record(self):
        L, F = self.best
        loglik = loglik_poisson(self.X, L, F, self.eps).sum()
        t, s = self.X.sum(axis=1), L @ F.sum(axis=0)
        of_L, of_F = kkt_residuals(self.X, L, F, self.eps)
        self.history.append(
            {
                "loglik": loglik,
                "loglik_multinomial": loglik - poisson_logpmf(t, s).sum(),
                "deviance": deviance_poisson(self.X, L, F, self.eps).sum(),
                "kkt": max(np.abs(of_L).max(), np.abs(of_F).max()),
                "beta": self.beta,
                "beta_cap": self.beta_cap,
            }
        )


# Both factors at once --------------------------------------------------------------------------


def step_plsa(X, P, W, alpha=1.0):
    """Return P (n, K) and W (m, K) after an EM step of PLSA, with shares phi from (P, W).

    Geiger and Park, Algorithms 2 and 6; the columns of W have a Dirichlet(alpha) prior.
    """
    phi = P[:, None, :] * W[None, :, :]
    phi /= np.maximum(phi.sum(axis=2, keepdims=True), 1e-300)  # rows without counts
    expected = X[:, :, None] * phi
    of_rows, of_columns = expected.sum(axis=1), expected.sum(axis=0) + alpha - 1.0
    return of_rows / of_rows.sum(axis=1, keepdims=True), of_columns / of_columns.sum(axis=0)


def step_joint(X, L, F, penalty=0.0):
    """Return L and F, whose columns sum to one, after a joint update with an l1 penalty on L.

    Geiger and Park, Algorithm 4 and equation 25.
    """
    ratio = X / np.maximum(L @ F.T, 1e-300)
    moved = F * (ratio.T @ L)
    return L * (ratio @ F) / (1.0 + penalty), moved / moved.sum(axis=0)


def penalised_loglik(X, L, F, weight, q, p):
    """Return the log-likelihood minus ``weight sum_k ||f_k||_p^q sum_i l_ik^q``.

    Geiger and Park, equation 37 and its example.
    """
    norms = np.linalg.norm(F, p, axis=0)
    return loglik_poisson(X, L, F).sum() - weight * (norms**q * (L**q).sum(axis=0)).sum()


def least_penalised(X, F, weight, q, n_steps=600):
    """Return the least loss of each row with ``weight sum_k b_k^q``, q < 1: over all supports.

    On each support, a third of the steps have no penalty, and the others minimise its tangents.
    """
    least = np.where(X.any(axis=1), np.inf, 0)
    for chosen in range(1, 1 << F.shape[1]):
        here = [k for k in range(F.shape[1]) if chosen >> k & 1]
        A, total = F[:, here], F[:, here].sum(axis=0)
        B = X.sum(axis=1, keepdims=True) / total / len(here)
        for step in range(n_steps):
            slope = weight * q * np.maximum(B, 1e-10) ** (q - 1) * (step >= n_steps // 3)
            B = B * ((X / np.maximum(B @ A.T, 1e-30)) @ A) / (total + slope)
        B[B <= 1e-8] = 0
        loss = B @ total - xlogy(X, np.maximum(B @ A.T, 1e-30)).sum(axis=1)
        least = np.minimum(least, loss + weight * (B**q).sum(axis=1))
    return least


def step_penalised(X, L, F, weight, q, p):
    """Return L and F, with ``||f_k||_p = 1``, after a joint update with this penalty."""
    ratio = X / np.maximum(L @ F.T, 1e-300)
    numerators = F * (ratio.T @ L)
    slope = weight * q * np.maximum(L, 1e-10) ** (q - 1.0)
    L = L * (ratio @ F) / (F.sum(axis=0) + slope)
    if p == 1:
        return L, numerators / numerators.sum(axis=0)
    s, a = L.sum(axis=0), weight * q * (L**q).sum(axis=0)
    moved = (np.sqrt(s * s + 4.0 * a * numerators) - s) / (2.0 * a)
    norms = np.linalg.norm(moved, axis=0)
    return L * norms, moved / norms


# Conversion ------------------------------------------------------------------------------------


def poisson_to_multinomial(L, F):
    """Return L* = L u / s, F* = F / u, s_i = sum_k l_ik u_k and u_k = sum_j f_jk."""
    u = F.sum(axis=0)
    s = L @ u
    return L * u / s[:, None], F / u, s, u


def multinomial_to_poisson(proportions, frequencies, s, u):
    """Return L = s L* / u and F = u F*."""
    return s[:, None] * proportions / u, frequencies * u


def from_clusters(X, labels):
    """Return one-hot loadings times row totals, and clusters' shares of the columns, floored."""
    members = (labels[:, None] == np.unique(labels)).astype(float)
    t = X.sum(axis=1)
    F = X.T @ members / (t @ members)
    return np.maximum(members * t[:, None], MINVAL), np.maximum(F, MINVAL)


# Latent Dirichlet allocation -------------------------------------------------------------------


def expected_log_dirichlet(parameters):
    """Return psi(a_k) - psi(sum a) for each row of parameters."""
    return psi(parameters) - psi(parameters.sum(axis=1, keepdims=True))


def minus_divergence_dirichlet(q, prior):
    """Return E_q[log p - log q] of each row, Dirichlet distributions with these parameters."""
    prior = np.broadcast_to(prior, q.shape)
    return (
        gammaln(prior.sum(axis=1)) - gammaln(q.sum(axis=1))
        + np.sum(gammaln(q) - gammaln(prior) + (prior - q) * expected_log_dirichlet(q), axis=1)
    )  # fmt: skip


def phi_lda(gamma, topics, eta):
    """Return the best shares phi (n, m, K); topics (K, m) are points where eta is 0."""
    prior = np.min(eta) > 0
    logs = expected_log_dirichlet(topics) if prior else np.log(np.maximum(topics, 1e-300))
    scores = expected_log_dirichlet(gamma)[:, None, :] + logs.T[None, :, :]
    phi = np.exp(scores - scores.max(axis=2, keepdims=True))
    return phi / phi.sum(axis=2, keepdims=True)


def share_out(X, N, W, alpha, eta):
    """CVB0: the shares gamma (n, m, K) of every count, and the sums (n, m) of their terms.

    N (n, K) and W (m, K) are the expected counts of topics.
    """
    scale = 1 / (W.sum(axis=0) + len(W) * eta)
    g = (N + alpha)[:, None] * (W + eta) * scale
    g *= (np.minimum(X, 1) / g.sum(axis=2))[..., None]
    rows, columns = np.maximum(N[:, None] - g, 0) + alpha, np.maximum(W - g, 0) + eta
    terms = rows * columns * scale * (1 + g * scale)
    total = terms.sum(axis=2)
    return terms / total[..., None], total


def leave_one_out(X, gamma, topics, alpha, eta):
    """Log-probability of every count given all others, of posteriors (n, K) and (K, m)."""
    _, total = share_out(X, gamma - alpha, topics.T - eta, alpha, eta)
    sizes = X.sum(axis=1)
    others = np.maximum(sizes - 1, 0) + alpha.sum()
    return (X * np.log(total)).sum() - (sizes * np.log(others)).sum()


def elbo_lda(X, gamma, topics, alpha, eta, phi=None):
    """Return the evidence lower bound; by default with the best phi."""
    phi = phi_lda(gamma, topics, eta) if phi is None else phi
    prior = np.min(eta) > 0
    logs = expected_log_dirichlet(topics) if prior else np.log(np.maximum(topics, 1e-300))
    scores = expected_log_dirichlet(gamma)[:, None, :] + logs.T[None, :, :]
    of_counts = np.sum(X[:, :, None] * (phi * scores - xlogy(phi, phi)))
    of_topics = minus_divergence_dirichlet(topics, eta).sum() if prior else 0.0
    return of_counts + minus_divergence_dirichlet(gamma, alpha).sum() + of_topics


def step_lda(X, gamma, topics, alpha, eta):
    """Return gamma and topics after one step, both from the same phi."""
    expected = X[:, :, None] * phi_lda(gamma, topics, eta)
    topics = eta + expected.sum(axis=0).T
    return alpha + expected.sum(axis=1), topics if eta > 0 else topics / topics.sum(axis=1)[:, None]


# Topic-SCORE -----------------------------------------------------------------------------------


def simplex_distance(x, V):
    """Return the distance from x to the convex hull of the rows of V, trying every face.

    The nearest point lies inside some face, where it is the projection onto that face's affine
    hull; projections outside their face are not candidates.
    """
    best = np.inf
    for size in range(1, len(V) + 1):
        for face in combinations(range(len(V)), size):
            origin, edges = V[face[0]], V[list(face[1:])] - V[face[0]]
            weights = np.linalg.lstsq(edges.T, x - origin, rcond=None)[0]
            if np.all(weights >= -1e-12) and weights.sum() <= 1.0 + 1e-12:
                best = min(best, np.linalg.norm(x - origin - weights @ edges))
    return best


def hunt_vertices(centers, k):
    """Return the k of the centres whose simplex lies nearest to the candidates.

    Candidates: the two centres farthest apart, then one by one the centre with the largest mean
    squared distance to those already chosen, k0 = ceil(1.5 k) in all (k + 2 from k = 10 on). Of all
    subsets of k candidates the one with the smallest largest distance to any candidate wins.
    """
    k0 = int(np.ceil(1.5 * k)) if k < 10 else k + 2
    squared = ((centers[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
    chosen = list(np.unravel_index(np.argmax(squared), squared.shape))
    while len(chosen) < k0:
        mean = squared[chosen].mean(axis=0)
        mean[chosen] = -np.inf
        chosen.append(int(np.argmax(mean)))
    candidates = centers[chosen]
    return min(
        (candidates[list(subset)] for subset in combinations(range(k0), k)),
        key=lambda V: max(simplex_distance(x, V) for x in candidates),
    )


def factors_from_vertices(singular_vectors, vertices):
    """Return F (columns sum to one) from the right singular vectors and the simplex corners.

    Each row of V[:, 1:] / |V[:, 0]| is written as a mixture of the vertices; negative weights are
    cut, weights normalised, and the first singular vector gives every row its size.
    """
    size = np.abs(singular_vectors[:, 0])
    points = singular_vectors[:, 1:] / size[:, None]
    corners = np.column_stack([vertices, np.ones(len(vertices))])
    weights = np.column_stack([points, np.ones(len(points))]) @ np.linalg.inv(corners)
    weights = np.maximum(weights, 0.0)
    F = size[:, None] * weights / weights.sum(axis=1, keepdims=True)
    return F / F.sum(axis=0)


# NMF with the squared Frobenius norm -------------------------------------------------------------


def descend_quadratic(G, num, b, n_sweeps, least):
    """Return rows b after sweeps over the coordinates of ``b'Gb / 2 - b'num``."""
    b = b.copy()
    for _ in range(n_sweeps):
        for k in range(len(G)):
            b[:, k] = np.maximum(b[:, k] - (b @ G[k] - num[:, k]) / G[k, k], least)
    return b


def weighted_counts(X, weighting):
    """Return counts as scikit-learn's TfidfTransformer weights them, or only normalises them."""
    X = np.asarray(X, float)
    if weighting == "counts":
        return X
    if weighting == "tf-idf":
        X = X * (np.log((1 + len(X)) / (1 + (X > 0).sum(axis=0))) + 1)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(norms > 0, norms, 1)


def frobenius_loss(X, W, H, alpha_W=0.0, alpha_H=0.0, l1_ratio=0.0):
    """Return the objective of scikit-learn's NMF for weighted counts X."""
    loss = ((X - W @ H) ** 2).sum() / 2
    for A, alpha in ((W, alpha_W * X.shape[1]), (H, alpha_H * X.shape[0])):
        loss += alpha * (l1_ratio * A.sum() + (1 - l1_ratio) / 2 * (A**2).sum())
    return loss


# Anchors ----------------------------------------------------------------------------------------


def spanned(X, anchors):
    """Return X projected on the span of some of its columns."""
    Q = np.linalg.qr(np.asarray(X, float)[:, anchors])[0]
    return Q @ (Q.T @ X)


def share_spanned(X, anchors):
    """Return the share of the sum of squares of X in the span of some columns."""
    return (spanned(X, anchors) ** 2).sum() / (np.asarray(X, float) ** 2).sum()


def pivots(X, n):
    """Return the columns farthest from the span of earlier ones (first of ties), and distances."""
    found, distances = [], []
    for _ in range(n):
        left = np.linalg.norm(X - spanned(X, found), axis=0)
        found.append(int(np.flatnonzero(left >= left.max() * (1 - 1e-9))[0]))
        distances.append(left[found[-1]])
    return found, distances


# Groups -----------------------------------------------------------------------------------------


def alternate_normalisation(table, sweeps=500):
    """Normalise the rows and the columns of a table in turn (Sinkhorn-Knopp)."""
    table = np.array(table, float)
    for _ in range(sweeps):
        table /= np.sqrt((table**2).sum(axis=1, keepdims=True))
        table /= np.sqrt((table**2).sum(axis=0, keepdims=True))
    return table


def has_balance(support):
    """Whether the topics that occur only in a set of groups never exceed the set's share."""
    T, R = support.shape
    if not (support.any(axis=0).all() and support.any(axis=1).all()):
        return False
    sets = [list(s) for n in range(1, R + 1) for s in combinations(range(R), n)]
    within = [(~np.delete(support, s, axis=1).any(axis=1)).sum() for s in sets]
    return all(n * R <= len(s) * T for n, s in zip(within, sets, strict=True))


def draws_below(state, sizes):
    """Yield, for each size n, n random numbers below n (xoshiro256++, Lemire)."""
    words = [int(word) for word in state]
    mask = 2**64 - 1

    def turned(x, n):
        return (x << n | x >> 64 - n) & mask

    def word():
        a, b, c, d = words
        found = (turned((a + d) & mask, 23) + a) & mask
        c, d = c ^ a, d ^ b
        words[:] = a ^ d, b ^ c, c ^ (b << 17 & mask), turned(d, 45)
        return found >> 32

    def below(n):
        product = word() * n
        while product % 2**32 < 2**32 % n:
            product = word() * n
        return product >> 32

    for size in sizes:
        yield [below(size) for _ in range(size)]


def table_of(loadings, groups, n_groups):
    """Sum the loadings of each group's samples: (T, R)."""
    return np.stack([loadings[groups == r].sum(axis=0) for r in range(n_groups)], axis=1)


def hc3(X, y):
    """Return the covariance of MacKinnon and White: (X'X)^-1 X' diag(e/(1-h))^2 X (X'X)^-1."""
    inverse = np.linalg.inv(X.T @ X)
    e = y - X @ (inverse @ (X.T @ y))
    h = ((X @ inverse) * X).sum(axis=1)
    return inverse @ (X.T * (e / (1 - h)) ** 2 @ X) @ inverse


def cluster_jackknife(X, y, clusters, weights=None, factors=1.0):
    """Return the jackknife covariance of coefficients: squared changes without each cluster.

    `factors` multiply the changes.
    """
    w = np.sqrt(np.ones(len(y)) if weights is None else weights)

    def fitted(rows):
        return np.linalg.lstsq(X[rows] * w[rows, None], y[rows] * w[rows], rcond=None)[0]

    whole = fitted(np.arange(len(y)))
    moves = np.array([fitted(np.flatnonzero(clusters != u)) - whole for u in np.unique(clusters)])
    moves = moves * np.reshape(factors, (-1, 1))
    return moves.T @ moves


def spread_of_levels(X, Y, levels):
    """Return variances of rows of each level (n,), pooled over columns of Y, relative to all."""
    projection = X @ np.linalg.pinv(X)
    squares, rest = ((Y - projection @ Y) ** 2).sum(axis=1), 1 - np.diag(projection)
    here = levels[:, None] == levels
    return (here @ squares) / (here @ rest) * rest.sum() / squares.sum()


def satterthwaite(X, a, clusters, weights=None, factors=1.0):
    """Return the degrees of freedom of the jackknife variance of a'b; var y = 1 / weights."""
    weights, out = np.ones(len(X)) if weights is None else weights, []

    def row(rows):
        root = np.sqrt(weights * rows)
        return a @ np.linalg.pinv(X * root[:, None]) * root

    whole = row(np.ones(len(X)))
    for u in np.unique(clusters):
        out.append(row((clusters != u).astype(float)) - whole)
    out = np.array(out) * np.reshape(factors, (-1, 1))
    values = np.linalg.eigvalsh(out / weights @ out.T)
    return values.sum() ** 2 / (values**2).sum()


def brown_forsythe(y, labels):
    """Return the sum of squares between groups over its expectation for equal means (jackknife)."""
    groups, between, expected = np.unique(labels), 0.0, 0.0
    for g in groups:
        here = y[labels == g]
        n = len(here)
        between += n * (here.mean() - y.mean()) ** 2
        variance = ((here - here.mean()) ** 2).sum() / (n - 1) * n / (n - 1)
        expected += (1 - n / len(y)) * variance
    return between / expected


# Differences of features between topics ----------------------------------------------------------


def feature_regression(x, A, a=1.0, restriction=None):
    """Return the coefficients f (K,) of x ~ Poisson(A f) with a prior, and minus its log.

    The prior adds `a` counts to each coefficient, at the mean rate of x. `restriction` (K, r) maps
    free parameters to the coefficients, which are then equal in some linear sense.
    """
    M = np.eye(A.shape[1]) if restriction is None else restriction
    exposure = a * A.sum() / x.sum()

    def value(t):
        f = M @ np.exp(t)
        mu = A @ f
        gradient = A.sum(axis=0) + exposure - A.T @ (x / mu) - a / f
        h = mu.sum() - x @ np.log(mu) + (exposure * f - a * np.log(f)).sum()
        return h, np.exp(t) * (M.T @ gradient)

    start = np.full(M.shape[1], np.log(x.sum() / A.sum()))
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10000, "maxls": 50}
    found = minimize(value, start, jac=True, method="L-BFGS-B", options=options)
    return M @ np.exp(found.x), found.fun


def equal_topics(K, k, other):
    """Return the restriction of coefficients k and l to be equal."""
    M = np.delete(np.eye(K), other, axis=1)
    M[other] = M[k]
    return M


def equal_to_mean(weights, k):
    """Return the restriction of coefficient k to the weighted mean of others."""
    M = np.delete(np.eye(len(weights)), k, axis=1)
    M[k] = np.delete(weights, k)
    return M
