"""Gamma-Poisson factorization, plain or hierarchical."""

from __future__ import annotations

from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, TypeAlias, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from ..counts.argument_types import CountsLike
from ..counts.base import CountMatrix
from ..engine.protocol import Executor
from ..methods.factors import Constraints
from ..methods.poisson.efficiencies import memory_of_batches
from ..methods.variational import lda
from ..methods.variational.gamma import GammaPrior
from ..methods.variational.gamma_batches import GroupedGammaPoisson
from ..methods.variational.gamma_poisson import (
    VariationalGammaPoisson,
    dispersion,
    drawn_priors,
)
from .arguments.batches import batches_of, groups_of
from .arguments.fit_options import FitKeywords, FitOptions, with_options
from .arguments.parameters import estimator
from .arguments.seeds import OF_SEEDS, SeededTopics, Seeds, seeds_of_fit
from .arguments.validation import (
    LEAST_PRIOR,
    MOST_PRIOR,
    SHAPE,
    checked_posteriors,
    checked_prior,
    checked_size,
    gamma_priors,
)
from .base import CountModel
from .fitted import Fitted
from .gamma_posteriors import GammaPosteriors

Array = NDArray[Any]

# Copies of the linear terms of factors in fits with groups of samples.
_COPIES = 8
GammaPoissonStart: TypeAlias = Literal["poisson", "random"]


@estimator
class GammaPoisson(GammaPosteriors):
    """Gamma-Poisson factorization by variational inference.

    The counts are modelled as ``x_ij ~ Poisson(sum_k theta_ik beta_jk)`` with loadings ``theta_ik ~
    Gamma(a_k, r_k)`` (shape, rate). Factors beta are point estimates whose columns sum to one [1]_,
    [2]_ (Algorithm 7): with one rate for all components this is :class:`LDA` with point estimates
    of topics, plus a model of the totals (Lemma E.3). The hierarchical model [3]_, [4]_ has
    ``beta_jk ~ Gamma(c, eta_j)`` and ``theta_ik ~ Gamma(a, xi_i)`` with Gamma priors on the rates
    xi_i of samples and eta_j of features, so that sequencing depth and abundance do not become
    topics.

    The posterior is approximated by independent Gamma distributions, whose evidence lower bound
    (ELBO) is maximised with momentum, and with Newton steps of factors that are point estimates,
    from a fit of a :class:`PoissonNMF`. The ELBO never falls.

    Parameters
    ----------
    n_components : int, default=10
        Number of components K.
    hierarchical : bool, default=False
        Whether factors have a prior, and rates have Gamma priors.
    shape_loadings : float or array-like of shape (n_components,), default=None
        Shapes a of the prior of loadings; None means 1 / K, or 0.3 if hierarchical.
    rate_loadings : float or array-like of shape (n_components,), default=None
        Rates r of the prior of loadings, if not hierarchical; None means the rate at which the
        expected total of a sample equals the mean total.
    shape_factors : float, default=0.3
        Shape c of the prior of factors, if hierarchical.
    shape_rates : float or array-like of shape (2,), default=1.0
        Shapes of the priors of xi_i and of eta_j, if hierarchical.
    mean_rates : float or array-like of shape (2,), default=None
        Means of the priors of xi_i and of eta_j, if hierarchical; None means, as in [4]_, the
        variance of the totals (of samples and of features) divided by their mean, at least 1.
    seeds, seed_weight
        As in :class:`PoissonNMF`: pseudo-counts of the seeds of a component add to the shapes of
        the prior of its factors; if not hierarchical, they are a Dirichlet prior of the factors.
    init : {"poisson", "random"}, default="poisson"
        Start: a fit of a :class:`PoissonNMF`, or random factors, from which the ELBO ends lower.
    max_iter : int, default=2000
        Maximum number of iterations, each one pass over the counts; iterations of the start are not
        counted.
    tol, gain_tol : float, default=1e-5, None
        Tolerances of convergence, as in :class:`LDA`, with totals of loadings in place of the
        prior.
    n_init : int, default=1
        Number of starts; the fit with the highest ELBO is kept.
    inner_iter : int, default=None
        Maximum number of updates of each sample in an iteration of `fit`. None means 12 if factors
        take Newton steps (see `extrapolate`), which need posteriors of samples that are close to
        their optimum, otherwise 1.
    max_sample_update_iter : int, default=500
        Maximum number of updates of each sample when loadings are inferred with fixed factors.
    mean_change_tol : float, default=1e-4
        Updates of a sample end when the shapes of its posterior change by less than this on
        average.
    extrapolate : bool, default=True
        Momentum; and Newton steps of factors, if the model is not hierarchical and there are up to
        16 components, or up to 32 and no more than 25e6 numbers of curvature,
        n_features K (K + 1) / 2. A step that lowers the ELBO is undone.
    batch_shape : float or "auto", default="auto"
        Shape of the prior of the efficiencies of features in batches (`batch` of :meth:`fit`), as
        in :class:`PoissonNMF`, but positive.
    dtype
        As in :class:`PoissonNMF`. During a fit, parameters of factors are float64.
    integer, n_threads, memory_limit, random_state, verbose, callback
        As in :class:`PoissonNMF`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Expected factors, the transpose of beta; rows sum to one if not hierarchical.
    components_shape_ : ndarray of shape (n_components, n_features), float64
        Shapes of the posterior of factors; the factors themselves if not hierarchical.
    loadings_ : ndarray of shape (n_samples, n_components)
        Expected loadings of the fitted samples.
    loadings_shape_ : ndarray of shape (n_samples, n_components)
        Shapes of the posterior of loadings. Its rates are ``1 + rate_loadings_`` or, if
        hierarchical, ``sample_rates_[:, None] + components_.sum(axis=1)``. With batches or panels,
        factors are multiplied by their efficiencies, and by 0 if they were not measured, in the
        sums ``components_.sum(axis=1)``, which are 1 otherwise.
    shape_loadings_, rate_loadings_ : ndarray of shape (n_components,)
        a and r; r is None if hierarchical.
    sample_rates_, feature_rates_ : ndarray of shape (n_samples,) and (n_features,), float64
        Expected rates xi and eta if hierarchical, otherwise None.
    loadings_totals_ : ndarray of shape (n_components,), float64
        Sums of the expected loadings if hierarchical, otherwise None. The posterior rates of
        factors are ``feature_rates_[:, None] + loadings_totals_``.
    components_rates_ : ndarray of shape (n_components, n_features), float64, or None
        With batches or panels, if hierarchical: the same sums for each feature, of loadings times
        its efficiencies.
    shape_factors_ : float, or ndarray of shape (n_components, n_features), or None
        c if hierarchical, an array with seeds.
    shape_rates_, mean_rates_ : ndarray of shape (2,), or None
        Shapes and means of the priors of xi and eta, if hierarchical.
    measured_, panel_, batches_, batch_, batch_efficiencies_, batch_shape_
        As in :class:`PoissonNMF`.
    elbo_ : float
        Evidence lower bound of the log-probability of all counts. `score` is the bound for samples
        alone, with fixed factors, per count. With seeds, if not hierarchical, it has the log prior
        of factors in addition, without its constant.
    history_ : structured ndarray
        One record for each iteration: ``iteration``, ``seconds`` since the start of the fit,
        ``elbo`` (the best so far), ``change_components``, ``change_loadings``, ``change_totals``
        (see `tol`), ``momentum``, and ``bytes_read`` from files so far.
    converged_, interrupted_, stop_reason_, n_iter_, n_features_in_, feature_names_in_, \
sample_names_, obs_, sample_totals_, feature_totals_, unseen_features_, seed_, warnings_, \
topic_names_
        As in :class:`PoissonNMF`.

    Notes
    -----
    The ELBO is that of Poisson counts, with their factorials: it is comparable with that of any
    other :class:`GammaPoisson`, but with that of :class:`LDA` only up to the log-probability of the
    totals and the number of orders.

    Held-out counts have a high probability because no expected count is zero: a :class:`PoissonNMF`
    with expected counts raised to, say, 1e-4 scores about as high.

    With `batch`, features have efficiencies in batches as in :class:`PoissonNMF`, with Gamma
    posteriors. The ELBO is then that of the counts for any efficiencies under their prior, also
    maximised in the shape of this prior.

    Shapes of the prior are fixed. Samples with fewer than about 100 counts may therefore each be
    assigned to a single component, which explains new samples worse than a single component for
    all: compare ``score(completion=0.5)`` with that of a model with one component, or fit
    :class:`LDA`, which estimates its prior.

    References
    ----------
    .. [1] Canny (2004). GaP: a factor model for discrete data. ACM SIGIR Conference on Research and
       Development in Information Retrieval 27, 122-129.
    .. [2] Geiger, Park. On the connection between non-negative matrix factorization and latent
       Dirichlet allocation.
    .. [3] Gopalan, Hofman, Blei (2015). Scalable recommendation with hierarchical Poisson
       factorization. Conference on Uncertainty in Artificial Intelligence 31.
    .. [4] Levitin, Yuan, Cheng, Ruiz, Bush, Bruce, Canoll, Iavarone, Lasorella, Blei, Sims (2019).
       De novo gene signature identification from single-cell RNA-seq with hierarchical Poisson
       factorization. Molecular Systems Biology 15, e8557.

    Examples
    --------
    >>> from nmfscale import GammaPoisson
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
    >>> model = GammaPoisson(n_components=2, random_state=1).fit(X)
    >>> model.components_.sum(axis=1).round(6)
    array([1., 1.])
    >>> deeper = GammaPoisson(n_components=2, hierarchical=True, random_state=1).fit(X)
    >>> bool(deeper.elbo_ > deeper.history_["elbo"][0])
    True
    """

    hierarchical: bool = False
    shape_loadings: ArrayLike | None = None
    rate_loadings: ArrayLike | None = None
    shape_factors: float = SHAPE
    shape_rates: ArrayLike = 1.0
    mean_rates: ArrayLike | None = None
    seeds: Seeds | None = None
    seed_weight: float = 0.1
    init: GammaPoissonStart = "poisson"
    max_iter: int = 2000
    tol: float = 1e-5
    gain_tol: float | None = None
    n_init: int = 1
    inner_iter: int | None = None
    max_sample_update_iter: int = 500
    mean_change_tol: float = 1e-4
    extrapolate: bool = True
    batch_shape: float | Literal["auto"] = "auto"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CountModel._parameter_constraints,
        "gain_tol": [Interval(Real, 0, None, closed="left"), None],
        "hierarchical": ["boolean"],
        "shape_loadings": [Interval(Real, 0, None, closed="neither"), "array-like", None],
        "rate_loadings": [Interval(Real, 0, None, closed="neither"), "array-like", None],
        "shape_factors": [Interval(Real, 0, None, closed="neither")],
        "shape_rates": [Interval(Real, 0, None, closed="neither"), "array-like"],
        "mean_rates": [Interval(Real, 0, None, closed="neither"), "array-like", None],
        **OF_SEEDS,
        "init": [StrOptions(set(get_args(GammaPoissonStart)))],
        "inner_iter": [Interval(Integral, 1, None, closed="left"), None],
        "max_sample_update_iter": [Interval(Integral, 1, None, closed="left")],
        "mean_change_tol": [Interval(Real, 0, None, closed="left")],
        "extrapolate": ["boolean"],
        "batch_shape": [Interval(Real, 0, None, closed="right"), StrOptions({"auto"})],
    }
    method_class: ClassVar[type[VariationalGammaPoisson]] = VariationalGammaPoisson
    array_axes: ClassVar[dict[str, str]] = {
        "components_shape_": "km",
        "loadings_shape_": "nk",
        "shape_loadings_": "k",
        "rate_loadings_": "k",
        "loadings_totals_": "k",
        "shape_factors_": "km",
        "components_rates_": "km",
        "sample_rates_": "n",
        "feature_rates_": "m",
    }
    parameters_of_topics = "shape_loadings", "rate_loadings"
    start_arguments: ClassVar[dict[str, str]] = {
        "loadings": "loadings_shape_",
        "components": "components_shape_",
    }
    why_not_merged = "the posterior of a sum of loadings with rates of their own is no Gamma"

    @with_options(FitKeywords)
    def fit(
        self,
        X: CountsLike,
        y: ArrayLike | None = None,
        *,
        loadings: ArrayLike | None = None,
        components: ArrayLike | None = None,
        measured: ArrayLike | None = None,
        panel: ArrayLike | None = None,
        batch: ArrayLike | str | None = None,
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
            Positive shapes of the posterior of loadings to start from, such as `loadings_shape_`;
            by default they are inferred if `components` is given.
        components : array-like of shape (n_components, n_features), default=None
            Positive shapes of the posterior of factors to start from, such as `components_shape_`
            (the factors themselves if not hierarchical); by default `init` determines the start.
        measured, panel, batch
            What was measured in the samples, and their batches, as in :meth:`PoissonNMF.fit`. The
            :class:`PoissonNMF` of the start has them, too.
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
            As in :meth:`PoissonNMF.fit`, which also lists the warnings.

        Examples
        --------
        A fit continues from the end of another one:

        >>> from nmfscale import GammaPoisson
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> one = GammaPoisson(2, init="random", random_state=1, tol=0, max_iter=3).fit(X)
        >>> before = one.elbo_
        >>> one.fit(X, components=one.components_shape_).elbo_ > before
        True
        """
        self.run_fit(
            X, FitOptions.of(options), loadings=loadings, components=components, measured=measured,
            panel=panel, batch=batch,
        )  # fmt: skip
        return self

    def _check_priors(self) -> tuple[Array, Array | None]:
        """Check the priors; return shapes of loadings, and rates if they are given."""
        priors = self.shape_loadings, self.rate_loadings
        return gamma_priors(self.n_components, *priors, self.hierarchical)

    def _priors(
        self, counts: CountMatrix, seeded: SeededTopics | None
    ) -> tuple[GammaPrior, GammaPrior | None]:
        """Return the priors of loadings and of factors."""
        shape, rate = self._check_priors()
        if not self.hierarchical:
            if rate is None:
                mean = counts.total / counts.shape[0]
                rate = np.full(len(shape), shape.sum() / mean if mean > 0 else 1.0)
            return GammaPrior(shape, rate), None
        checked_size(self.shape_factors, "shape_factors", LEAST_PRIOR, MOST_PRIOR)
        shapes = checked_prior(self.shape_rates, (2,), "shape_rates")
        if self.mean_rates is None:
            means = np.array([dispersion(counts.row_totals), dispersion(counts.column_totals)])
        else:
            means = checked_prior(self.mean_rates, (2,), "mean_rates")
        of_factors: float | Array = float(self.shape_factors)
        of_factors = of_factors if seeded is None else of_factors + seeded.pseudo
        return drawn_priors(shape, of_factors, shapes, means)

    def fit_counts(
        self,
        X: CountsLike,
        options: FitOptions,
        *,
        loadings: ArrayLike | None,
        components: ArrayLike | None,
        measured: ArrayLike | None,
        panel: ArrayLike | None,
        batch: ArrayLike | str | None,
    ) -> tuple[CountMatrix, Fitted]:
        self._check_priors()
        counts, options = self.counts_of_fit(X, options)
        dtype, K, deep = self.fit_dtype(), self.n_components, self.hierarchical
        seen = self._measured_of_fit(counts, measured, panel)
        if seen is not None:
            seen.check(counts)
        batches = batches_of(counts, batch, self.batch_shape)
        seeded = seeds_of_fit(self, counts)
        constraints = Constraints(
            prior_factors=None if seeded is None else seeded.prior(), **groups_of(seen, batches)
        )
        of_rows, of_columns = self._priors(counts, seeded)
        pseudo = None if seeded is None or deep else seeded.pseudo
        factors, gamma = checked_posteriors(counts, K, deep, loadings, components)
        eta = 0.0 if of_columns is None else of_columns.shape

        def make(counts: CountMatrix, executor: Executor, rng: Any) -> VariationalGammaPoisson:
            start = partial(
                lda.find_start, counts, executor, self.init, of_rows.shape, eta, rng, dtype,
                factors, gamma, constraints=constraints,
            )  # fmt: skip
            made: Any = self.method_class
            if constraints.groups is not None:
                made = partial(GroupedGammaPoisson, constraints=constraints)
            method: VariationalGammaPoisson = made(
                counts, executor, start, of_rows, of_columns, dtype, pseudo=pseudo,
                n_steps=self.inner_iter, tolerance=self.mean_change_tol, momentum=self.extrapolate,
            )  # fmt: skip
            return method

        needs = lda.lda_needs(counts, K, dtype, self.threads_for(counts), points=not deep)
        if constraints.groups is not None:
            more = memory_of_batches(int(constraints.groups.max()) + 1, counts.shape[1])
            needs = needs._replace(shared=needs.shared + more + counts.shape[1] * K * _COPIES * 8)
        if seeded is not None:  # in the orders of counts, of lanes, and of the start
            needs = needs._replace(shared=needs.shared + 4 * seeded.pseudo.nbytes)
        priors = [p for p in (of_rows, of_columns) if p is not None]
        about: dict[str, Any] = {} if batches is None else batches.about
        fitted = self.fit_blocks(
            counts, needs, make, options,
            parts={
                "constraints": [
                    *(part for p in priors for part in (p.shape, p.rate, p.drawn)),
                    *(constraints.parts() if constraints.groups is not None else ()),
                    *(() if pseudo is None else (pseudo,)),
                ],
                "start": (factors, gamma, self.init),
            },
            extrapolate=self.extrapolate, inner_iter=self.inner_iter,
            mean_change_tol=self.mean_change_tol, **about,
        )  # fmt: skip
        self._keep(fitted, of_rows, of_columns, dtype)
        if seeded is not None:
            self.topic_names_ = seeded.names
        self.measured_ = None if seen is None else seen.features
        self.panel_ = None if seen is None else seen.groups
        self._keep_batches(batches, fitted)
        return counts, fitted
