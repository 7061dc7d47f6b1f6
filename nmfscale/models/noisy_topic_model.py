"""The noisy topic model: topics share the means of features, multiplied by Gamma noise."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, ClassVar, Literal, Self, TypeAlias, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from ..counts.argument_types import Client, CountsLike
from ..counts.base import CountMatrix
from ..counts.names import of_features, of_samples
from ..engine.protocol import Executor
from ..kernels.functions import exp
from ..methods.projection.transform import projection, projection_needs
from ..methods.rows_pass import RowsPass
from ..methods.variational.gamma_noise import Posterior
from ..methods.variational.noisy_topics import (
    FixedParameters,
    NoisyTopics,
    find_start,
    noise_of,
    noisy_topic_needs,
)
from .arguments.fit_options import FitKeywords, FitOptions, with_options
from .arguments.parameters import estimator
from .arguments.validation import LEAST_PRIOR, checked_mask, checked_size, checked_start
from .base import CountModel
from .fitted import Fitted

Array = NDArray[Any]

NoisePrior: TypeAlias = Literal["none", "mixture"]
NoisyStart: TypeAlias = Literal["poisson-nmf", "random"]


@estimator
class NoisyTopicModel(CountModel):
    """Topic model whose topics are the means of the features times Gamma noise.

    Counts are ``x_ij ~ Poisson(sum_k l_ik mu_j u_jk)``, where ``u_jk ~ Gamma(theta_jk, theta_jk)``
    (shape, rate) has mean one and variance ``1 / theta_jk`` [1]_. For most pairs of a feature and a
    topic theta is large, and the feature has its mean frequency in the topic; a small theta marks a
    feature that departs from its mean in the topic. The posterior of u is approximated by
    independent Gamma distributions, and loadings l, means mu and theta maximise the evidence lower
    bound (ELBO), which never falls, by variational EM with momentum.

    Every theta is estimated from the counts of one feature in one topic. This needs many samples,
    topics that differ in many features, and samples with one dominant topic: see Notes.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics K.
    noise_prior : {"mixture", "none"}, default="mixture"
        Prior of theta. "mixture": a common distribution of all pairs over no noise and nine values
        from 16 to 1/16, whose shares maximise the ELBO (empirical Bayes). "none" [1]_: a theta of
        its own for each pair, which maximises the ELBO; it fits noise to all pairs and ranks pairs
        less well: see ``benchmarks/noisy_topics.py``.
    init : {"poisson-nmf", "random"}, default="poisson-nmf"
        Start: a fit of a :class:`PoissonNMF`, or random loadings with u = 1, from which the fit
        ends in far worse loadings.
    max_iter : int, default=500
        Maximum number of iterations, each one pass over the counts; iterations of the start are not
        counted.
    tol : float, default=1e-6
        The fit has converged if an iteration without momentum would change no expected topic by
        more than `tol` in total variation, and the topics of at most a share `tol` of the counts.
        With 0, exactly `max_iter` iterations are run.
    gain_tol : float, default=None
        The fit also ends, on a plateau, if the last third of its iterations gained at most this
        share of the ELBO and the expected remaining gain is no larger, or if thirty
        iterations did not increase it. None means `tol` / 10; with 0 only `tol` ends a fit.
    n_init : int, default=1
        Number of starts; the fit with the highest ELBO is kept.
    extrapolate : bool, default=True
        Momentum.
    dtype
        As in :class:`PoissonNMF`. During a fit, all parameters except loadings are float64.
    integer, n_threads, memory_limit, random_state, verbose, callback
        As in :class:`PoissonNMF`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Expected factors ``mu_j E u_jk``.
    loadings_ : ndarray of shape (n_samples, n_components)
        Loadings l of the fitted samples: approximately the counts from each topic.
    mu_ : ndarray of shape (n_features,), float64
        Means of the features; they sum to one unless something was fixed.
    theta_ : ndarray of shape (n_components, n_features), float64
        Inverse variances of u, between 1e-4 and 1e4; the latter means no noise. With a mixture
        prior, one over the posterior mean of the variance.
    noise_shares_ : ndarray of shape (10,), or None
        Shares of pairs without noise, and with theta from 16 to 1/16; None without a mixture.
    local_fdr_ : ndarray of shape (n_components, n_features), or None
        Posterior probability of no noise given loadings and means (local false discovery rate);
        None without a mixture. It is too small, because loadings and means are estimated, too: see
        Notes.
    topic_counts_, expected_counts_ : ndarray of shape (n_components, n_features), float64
        Expected counts n_jk of each topic in each feature, and ``m_jk = mu_j sum_i l_ik``, what
        they would be without noise: given theta, the posterior of u_jk is
        ``Gamma(theta_jk + n_jk, theta_jk + m_jk)``.
    elbo_ : float
        Evidence lower bound of the log-probability of all counts. `score` is the multinomial
        log-likelihood of samples alone, with the posterior of u fixed, per count.
    history_ : structured ndarray
        One record for each iteration: ``iteration``, ``seconds`` since the start of the fit,
        ``elbo`` (the best so far), ``change_components``, ``change_loadings`` (see `tol`),
        ``momentum``, and ``bytes_read`` from files so far.
    converged_, interrupted_, stop_reason_, n_iter_, n_features_in_, feature_names_in_, \
sample_names_, obs_, sample_totals_, feature_totals_, unseen_features_, seed_, warnings_
        As in :class:`PoissonNMF`.

    Notes
    -----
    If few pairs are noisy, topics hardly differ and their loadings cannot be estimated: the ELBO is
    then higher for wrong loadings and does not show which of several starts is better.

    With ``noise_prior="none"``, and if most pairs have no noise, ``abs(n - m) / sqrt(m)`` ranks
    pairs as well as theta, or better. Nothing is informative if m is small.

    In simulations with 300 samples, 300 features, five topics and a fifth of noisy pairs, 24% of
    the pairs with a `local_fdr_` of at most 5% had no noise. It ranks pairs, and is no error rate:
    :func:`nmfscale.experimental.noisy_pairs` estimates error rates by simulation.

    Loadings have no prior: a sample with fewer than about 100 counts gets a single topic, which
    predicts other counts of the sample poorly. Use :class:`LDA` for such samples.

    References
    ----------
    .. [1] Noisy topic models: a variation by Stephens and Wang on Cemgil (2009), Bayesian inference
       for nonnegative matrix factorisation models. Computational Intelligence and Neuroscience.

    Examples
    --------
    >>> from nmfscale import NoisyTopicModel
    >>> from nmfscale.datasets import simulate_noisy_topics
    >>> counts, truth = simulate_noisy_topics(400, 60, 2, noisy_share=0.2, random_state=0)
    >>> model = NoisyTopicModel(n_components=2, random_state=0).fit(counts)
    >>> model.theta_.shape, bool(abs(model.mu_.sum() - 1) < 1e-9)
    ((2, 60), True)
    >>> bool((model.history_["elbo"][1:] >= model.history_["elbo"][:-1]).all())
    True
    """

    noise_prior: NoisePrior = "mixture"
    init: NoisyStart = "poisson-nmf"
    max_iter: int = 500
    tol: float = 1e-6
    gain_tol: float | None = None
    n_init: int = 1
    extrapolate: bool = True

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CountModel._parameter_constraints,
        "gain_tol": [Interval(Real, 0, None, closed="left"), None],
        "noise_prior": [StrOptions(set(get_args(NoisePrior)))],
        "init": [StrOptions(set(get_args(NoisyStart)))],
        "extrapolate": ["boolean"],
    }
    method_class: ClassVar[type[NoisyTopics]] = NoisyTopics
    array_axes: ClassVar[dict[str, str]] = {
        "mu_": "m",
        "theta_": "km",
        "topic_counts_": "km",
        "expected_counts_": "km",
        "local_fdr_": "km",
    }
    why_not_merged = "the noise of a mean of several topics is not Gamma"

    @with_options(FitKeywords)
    def fit(
        self,
        X: CountsLike,
        y: ArrayLike | None = None,
        *,
        loadings: ArrayLike | None = None,
        mu: ArrayLike | None = None,
        fixed_samples: ArrayLike | None = None,
        fixed_features: ArrayLike | None = None,
        **options: Unpack[FitKeywords],
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`PoissonNMF.fit`.
        y : None
            Ignored.
        loadings : array-like of shape (n_samples, n_components), default=None
            Loadings to start from, with u = 1; by default `init` determines the start.
        mu : array-like of shape (n_features,), default=None
            Means of the features to start from; by default the shares of features in the counts.
        fixed_samples : array-like of bool of shape (n_samples,), default=None
            Samples whose rows of `loadings` stay as given.
        fixed_features : array-like of bool of shape (n_features,), default=None
            Features whose `mu` stays as given.
        checkpoint, checkpoint_every, resume
            As in :meth:`PoissonNMF.fit`. Checkpoints are written once the start is found, and a
            resumed fit does not search for it again.
        client, layer, raw, **source
            As in :meth:`PoissonNMF.fit`.

        Returns
        -------
        self : object
            Fitted.

        Raises
        ------
        ValueError, OSError, MemoryLimitError, FloatingPointError, CheckpointError, ClusterError
            As in :meth:`PoissonNMF.fit`.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` iterations were not enough, or Ctrl-C ended the fit; the model is the best
            so far.

        Examples
        --------
        With known loadings and means, only the noise is estimated:

        >>> import numpy as np
        >>> from nmfscale import NoisyTopicModel
        >>> from nmfscale.datasets import simulate_noisy_topics
        >>> counts, truth = simulate_noisy_topics(400, 60, 2, noisy_share=0.2, random_state=0)
        >>> model = NoisyTopicModel(n_components=2).fit(
        ...     counts, loadings=truth.L, mu=truth.mu, fixed_samples=np.ones(400, bool),
        ...     fixed_features=np.ones(60, bool))
        >>> bool((model.loadings_ == truth.L).all())
        True
        """
        self.run_fit(
            X, FitOptions.of(options), loadings=loadings, mu=mu, fixed_samples=fixed_samples,
            fixed_features=fixed_features,
        )  # fmt: skip
        return self

    def fit_counts(
        self,
        X: CountsLike,
        options: FitOptions,
        *,
        loadings: ArrayLike | None,
        mu: ArrayLike | None,
        fixed_samples: ArrayLike | None,
        fixed_features: ArrayLike | None,
    ) -> tuple[CountMatrix, Fitted]:
        counts, options = self.counts_of_fit(X, options)
        dtype, K = self.fit_dtype(), self.n_components
        L, means, fixed = self._given(counts, loadings, mu, fixed_samples, fixed_features)
        unscaled, scale = L, 1.0
        if means is not None and means.any():
            # a power of two, which keeps all digits: floors assume means that sum to about one
            share, exponent = np.frexp(means.sum())
            scale = np.ldexp(1.0, exponent - (share < np.sqrt(0.5)))  # 2^round(log2(sum))
            L, means = None if L is None else L * scale, means / scale

        def make(counts: CountMatrix, executor: Executor, rng: Any) -> NoisyTopics:
            return self.method_class(
                counts, executor,
                lambda: find_start(counts, executor, K, self.init, rng, dtype, L=L, mu=means),
                K, dtype, fixed, mixture=self._mixture, momentum=self.extrapolate,
            )  # fmt: skip

        fitted = self.fit_blocks(
            counts, noisy_topic_needs(counts, K, dtype, self.threads_for(counts)), make, options,
            parts={"constraints": fixed, "start": (L, means, self.init)},
            extrapolate=self.extrapolate, noise_prior=self.noise_prior,
        )  # fmt: skip
        arrays = fitted.arrays
        if not fixed.free:
            arrays["L"] /= np.asarray(scale, dtype)
            arrays["means"] *= scale
        if fixed.samples is not None and unscaled is not None:
            # exactly as given: not raised to the floor
            arrays["L"][fixed.samples] = unscaled[fixed.samples]
        self.loadings_, self.mu_ = arrays["L"], arrays["means"]
        self.theta_, self.topic_counts_, self.expected_counts_ = (
            np.ascontiguousarray(arrays[name].T) for name in ("theta", "counts", "expected")
        )
        self.noise_shares_, self.local_fdr_ = None, None
        if self._mixture:
            self.noise_shares_ = arrays["noise"]
            self.local_fdr_ = np.ascontiguousarray(arrays["no_noise"].T)
        self.components_ = (self.mu_ * self._posterior().mean).astype(dtype)
        self.elbo_ = fitted.objective
        return counts, fitted

    def find_unseen_features(self, counts: CountMatrix, arguments: dict[str, Any]) -> Array:
        unseen, fixed = super().find_unseen_features(counts, arguments), arguments["fixed_features"]
        fixed = of_features(fixed, counts, "fixed_features")
        return unseen if fixed is None else unseen & ~np.asarray(fixed, bool)

    def _given(
        self, counts: CountMatrix, L: Any, mu: Any, fixed_samples: Any, fixed_features: Any
    ) -> tuple[Array | None, Array | None, FixedParameters]:
        """Check given loadings and means; return them and which of them are fixed."""
        n, m = counts.shape
        fixed_samples = of_samples(fixed_samples, counts, "fixed_samples")
        fixed_features = of_features(fixed_features, counts, "fixed_features")
        fixed = FixedParameters(
            checked_mask(fixed_samples, n, "fixed_samples"),
            checked_mask(fixed_features, m, "fixed_features"),
        )
        L, mu = of_samples(L, counts, "loadings"), of_features(mu, counts, "mu")
        for name, mask, values, what in (
            ("fixed_samples", fixed.samples, L, "loadings"),
            ("fixed_features", fixed.features, mu, "mu"),
        ):  # fmt: skip
            if mask is not None and values is None:
                raise ValueError(f"{name} holds entries of {what}: pass {what}= to fit.")
        if L is not None:
            L = checked_start(L, (n, self.n_components), "loadings", positive=False)
            if not L.any():
                raise ValueError("loadings: all are 0; without loadings= a start is found by init.")
            checked_size(L.sum(), "the sum of loadings", LEAST_PRIOR, np.inf)
        if mu is not None:
            mu = checked_start(mu, (m,), "mu", positive=False)
            impossible = np.flatnonzero((mu == 0) & (counts.column_totals > 0))
            if impossible.size:
                j = int(impossible[0])
                raise ValueError(f"mu[{j}] is 0, but feature {j} has counts: a positive one fits.")
        elif L is not None:
            mu = counts.column_totals / L.sum()
        return L, mu, fixed

    @property
    def _mixture(self) -> bool:
        return self.noise_prior == "mixture"

    def _posterior(self, n_threads: int = 1) -> Posterior:
        """Return the posterior of u, arrays (K, m)."""
        # a merged file of an earlier version has no shares
        shares = getattr(self, "noise_shares_", None)
        noise = noise_of(shares is not None, n_threads)
        parameters = self.theta_ if shares is None else shares
        return noise.posterior(parameters, self.topic_counts_, self.expected_counts_)

    def _projection(self, counts: CountMatrix, *, gathered: bool, scored: bool = False) -> RowsPass:
        """Return the projection of counts, with the posterior of u held fixed."""
        self.check_memory(counts, projection_needs(counts, self.n_components_), gathered=gathered)
        n_threads = self.threads_for(counts)
        noise = self._posterior(n_threads)
        sizes = np.array([math.fsum(row) for row in self.mu_ * noise.mean])
        return projection(
            counts, (self.mu_ * exp(noise.log)).T, n_threads=n_threads, total=sizes,
            scored=scored,
        )  # fmt: skip

    def pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, **arguments: Any
    ) -> RowsPass:
        return self._projection(counts, gathered=gathered)

    def log_probability(self, counts: CountMatrix, client: Client) -> float:
        rows_pass = self._projection(counts, gathered=False, scored=True)
        return math.fsum(rows_pass.gather(**self.where_to_run(client)))
