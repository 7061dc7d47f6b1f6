"""Latent Dirichlet allocation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, TypeAlias, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from ..counts.argument_types import CountsLike
from ..counts.base import CountMatrix
from ..engine.protocol import Executor, Method, Needs
from ..methods.factors import Constraints
from ..methods.variational import collapsed, lda
from ..methods.variational.collapsed import CollapsedLDA
from ..methods.variational.held_out import HeldOut, ValidatedCollapsedLDA
from ..methods.variational.lda import VariationalLDA
from .arguments.fit_options import FitKeywords, FitOptions, with_options
from .arguments.held_out import HeldOutSamples, check_validation
from .arguments.parameters import estimator
from .arguments.seeds import OF_SEEDS, SeededTopics, Seeds, seeded_prior, seeds_of_fit
from .arguments.validation import (
    check_topic_prior,
    checked_posteriors,
    dirichlet_priors,
    prior_of_topics,
)
from .base import CountModel
from .fitted import Fitted
from .online_lda import OnlineLDA

Array = NDArray[Any]

_TOLERANCES = {"mean-field": 1e-5, "collapsed": 5e-3}

PriorEstimate: TypeAlias = Literal["none", "symmetric", "vector"]
Inference: TypeAlias = Literal["mean-field", "collapsed"]
LdaStart: TypeAlias = Literal["topic-model", "random"]


@estimator
class LDA(OnlineLDA):
    """Latent Dirichlet allocation by variational inference.

    The topic proportions of each sample are drawn from a Dirichlet distribution, and its counts are
    drawn from topics, which are drawn from a second Dirichlet distribution. The posterior is
    approximated by independent Dirichlet distributions of every sample and every topic, whose
    evidence lower bound (ELBO) is maximised [1]_: by the updates of [2]_ (Algorithm 5), with
    momentum, from the topics of a :class:`TopicModel`. The ELBO never falls. For short samples,
    such as titles and posts, use ``inference="collapsed"``.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics K.
    doc_topic_prior : float or array-like of shape (n_components,), default=None
        Parameters alpha of the Dirichlet prior of topic proportions. None estimates them from the
        counts, starting from 1 / K (`partial_fit` keeps 1 / K).
    topic_word_prior : float or array-like, default=None
        Parameter eta of the Dirichlet prior of topics; None means 1 / K, and with collapsed
        inference an estimate from 0.0001 to 0.1. With 0 (mean field only), topics are point
        estimates without a prior, as in [2]_; the ELBO of such a fit is not comparable with that of
        a fit with a prior. An array of shape (n_features,) or (n_components, n_features) has a
        positive number for each feature, or for each topic and feature, such as larger ones for
        words that a topic is to have. A Series or DataFrame is matched with the features by name
        if both have names.
    estimate_prior : {"none", "symmetric", "vector"}, default=None
        Whether alpha stays as given ("none"), or `fit` estimates it from there: one number for all
        topics ("symmetric"), or one for each ("vector") [4]_. The estimate costs almost no time.
        None means "vector" if `doc_topic_prior` is None, otherwise "none".
    inference : {"mean-field", "collapsed"}, default="mean-field"
        Approximation of the posterior. "collapsed": proportions and topics are integrated out, and
        each count is assigned given the other counts (CVB0 [5]_, with the estimate of alpha of
        [6]_). `fit` then records a log-probability, ``leave_one_out``, in place of the ELBO.
        See Notes for when to use which.
    init : {"topic-model", "random"}, default="topic-model"
        Start: a fit of a :class:`TopicModel`, or random topics, from which the ELBO ends far lower.
    seeds, seed_weight
        As in :class:`PoissonNMF`: pseudo-counts of the seeds of a topic add to its
        `topic_word_prior`, which must not be 0. `partial_fit` takes those of the first batch.
    max_iter : int, default=500
        Maximum number of iterations, each one pass over the counts; iterations of the start are not
        counted.
    tol : float, default=None
        The fit has converged if an iteration without momentum would change no topic by more than
        `tol` in total variation, the topics of at most a share `tol` of the counts, and the prior
        by at most a share `tol`. With 0, exactly `max_iter` iterations are run. None means 1e-5,
        and 0.005 with collapsed inference, whose predictions do not improve after that.
    gain_tol : float, default=None
        The fit also ends, on a plateau, if the last third of its iterations gained at most this
        share of the ELBO (with collapsed inference: of ``leave_one_out``, which may fall) and the
        expected remaining gain is no larger, or if thirty iterations did not increase
        it. None means `tol` / 100, and 0 with collapsed inference; with 0 only `tol` ends a fit.
    n_init : int, default=1
        Number of starts; the fit with the highest ELBO (or ``leave_one_out``) is kept.
    inner_iter : int, default=None
        Maximum number of updates of each sample in an iteration of `fit` (mean field only). None
        means 1, or 12 if topics take Newton steps (see `extrapolate`), which need posteriors of
        samples that are close to their optimum.
    max_doc_update_iter : int, default=500
        Maximum number of updates of each sample when proportions are inferred with fixed topics.
    mean_change_tol : float, default=1e-4
        Updates of a sample end when the parameters of its posterior change by less than this on
        average.
    extrapolate : bool, default=True
        Momentum; and Newton steps of topics, if they are point estimates (topic_word_prior=0) and
        there are up to 16 topics, or up to 32 and no more than 25e6 numbers of curvature,
        n_features K (K + 1) / 2.
    total_samples : float, default=1e6
        Total number of samples that `partial_fit` will see.
    learning_decay, learning_offset : float, default=0.7, 10.0
        Batch t of `partial_fit` has weight ``(learning_offset + t) ** -learning_decay`` [3]_.
    validation_fraction : float, default=None
        Share of the samples that are held out (collapsed inference only). Every five iterations
        their proportions are inferred from one half of their counts, and the other half is scored.
        The fit returns the topics with the best score; it ends by `tol`, or after
        `n_iter_no_change` iterations without an improvement. Held-out samples get the proportions
        that `transform` finds.
    n_iter_no_change : int, default=10
        Number of iterations without a better held-out score after which the fit ends.
    dtype
        As in :class:`PoissonNMF`. During a fit, parameters of topics are float64.
    integer, n_threads, memory_limit, random_state, verbose, callback
        As in :class:`PoissonNMF`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Expected topics; rows sum to one.
    topic_word_posterior_ : ndarray of shape (n_components, n_features), float64
        Parameters lambda of the posterior of the topics (what scikit-learn calls ``components_``);
        without a prior, the topics. With collapsed inference: expected counts plus eta.
    loadings_ : ndarray of shape (n_samples, n_components)
        Expected topic proportions of the fitted samples; rows sum to one.
    doc_topic_posterior_ : ndarray of shape (n_samples, n_components)
        Parameters gamma of the posterior of proportions. With collapsed inference: expected counts
        of topics plus alpha.
    doc_topic_prior_ : ndarray of shape (n_components,)
        alpha, as given or estimated.
    topic_word_prior_ : float, or ndarray of shape (n_components, n_features)
        eta, as given or estimated; an array if that is one.
    elbo_ : float
        Evidence lower bound of the log-probability of all counts as ordered draws, without the
        number of orders. `score` is the bound for samples alone, with fixed topics, per count.
        Not with collapsed inference, where `score` is the mean log-probability of each count given
        the other counts of its sample and fixed topics. The two scores are not comparable.
    history_ : structured ndarray
        One record for each iteration: ``iteration``, ``seconds`` since the start of the fit,
        ``elbo`` (the best so far), ``change_components``, ``change_loadings``, ``change_prior``
        (see `tol`), ``momentum``, and ``bytes_read`` from files so far. With collapsed inference,
        ``leave_one_out`` replaces ``elbo``: the sum of the log-probabilities of all counts, each
        given all others. It usually rises, may fall, and is far higher than for new samples.
    n_batch_iter_ : int
        Number of batches that `partial_fit` has seen.
    measured_share_ : ndarray of shape (n_features,), float64
        Share of the weight of all batches that measured a feature; it only exists if batches
        lacked features that were not measured.
    converged_, interrupted_, stop_reason_, n_iter_, n_features_in_, feature_names_in_, \
sample_names_, obs_, sample_totals_, feature_totals_, unseen_features_, seed_, warnings_, \
topic_names_
        As in :class:`PoissonNMF`.

    Notes
    -----
    Mean field treats the proportions of a sample and the topics of its counts as independent. With
    eight words a sample, that is a poor approximation: topics have almost no words in common, and
    their leading words do not belong together. Collapsed inference does not have this fault, and
    predicts new short samples better. From about 100 counts a sample on, both predict equally well;
    mean field then has a bound that never falls, and `partial_fit`. Both work with samples of any
    size. ``benchmarks/short_documents.py`` measures this.

    With mean field and alpha fixed at 1 / K, fits to short samples are far worse than a single
    topic in document completion, because each sample is assigned to one topic. An estimated alpha
    grows if samples are short. Perplexities of document completion (one half of new samples given
    the other) with K = 20 and pieces of 8 words, divided by those of a single topic: docstrings
    0.90 (fixed alpha: 1.44), newsgroups 1.01 (2.17), articles of NeurIPS 1.00 (1.92). From 100
    words on, both are similar, 0.54 to 0.96.

    References
    ----------
    .. [1] Blei, Ng, Jordan (2003). Latent Dirichlet allocation. Journal of Machine Learning
       Research 3, 993-1022.
    .. [2] Geiger, Park. On the connection between non-negative matrix factorization and latent
       Dirichlet allocation.
    .. [3] Hoffman, Blei, Bach (2010). Online learning for latent Dirichlet allocation. Advances in
       Neural Information Processing Systems 23.
    .. [4] Wallach, Mimno, McCallum (2009). Rethinking LDA: why priors matter. Advances in Neural
       Information Processing Systems 22.
    .. [5] Asuncion, Welling, Smyth, Teh (2009). On smoothing and inference for topic models.
       Uncertainty in Artificial Intelligence 25.
    .. [6] Teh, Newman, Welling (2007). A collapsed variational Bayesian inference algorithm for
       latent Dirichlet allocation. Advances in Neural Information Processing Systems 19.

    Examples
    --------
    >>> from nmfscale import LDA
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
    >>> model = LDA(n_components=2, doc_topic_prior=0.1, random_state=1).fit(X)
    >>> model.loadings_.round(1)
    array([[1. , 0. ],
           [0. , 1. ],
           [1. , 0. ],
           [0.4, 0.6]])
    >>> model.components_.sum(axis=1).round(6)
    array([1., 1.])
    """

    doc_topic_prior: ArrayLike | None = None
    topic_word_prior: ArrayLike | None = None
    estimate_prior: PriorEstimate | None = None
    inference: Inference = "mean-field"
    init: LdaStart = "topic-model"
    seeds: Seeds | None = None
    seed_weight: float = 0.1
    max_iter: int = 500
    tol: float | None = None
    gain_tol: float | None = None
    n_init: int = 1
    inner_iter: int | None = None
    max_doc_update_iter: int = 500
    mean_change_tol: float = 1e-4
    extrapolate: bool = True
    total_samples: float = 1e6
    learning_decay: float = 0.7
    learning_offset: float = 10.0
    validation_fraction: float | None = None
    n_iter_no_change: int = 10

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CountModel._parameter_constraints,
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "gain_tol": [Interval(Real, 0, None, closed="left"), None],
        "doc_topic_prior": [Interval(Real, 0, None, closed="neither"), "array-like", None],
        "topic_word_prior": [Interval(Real, 0, None, closed="left"), "array-like", None],
        **OF_SEEDS,
        "estimate_prior": [StrOptions(set(get_args(PriorEstimate))), None],
        "inference": [StrOptions(set(get_args(Inference)))],
        "init": [StrOptions(set(get_args(LdaStart)))],
        "inner_iter": [Interval(Integral, 1, None, closed="left"), None],
        "max_doc_update_iter": [Interval(Integral, 1, None, closed="left")],
        "mean_change_tol": [Interval(Real, 0, None, closed="left")],
        "extrapolate": ["boolean"],
        "total_samples": [Interval(Real, 0, None, closed="neither")],
        "learning_decay": [Interval(Real, 0, 1, closed="both")],
        "learning_offset": [Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
    }
    loadings_are_proportions = True
    parameters_of_topics = ("doc_topic_prior",)
    start_arguments: ClassVar[dict[str, str]] = {
        "loadings": "doc_topic_posterior_",
        "components": "topic_word_posterior_",
    }

    _mean_field: ClassVar[type[VariationalLDA]] = VariationalLDA

    @property
    def method_class(self) -> type[VariationalLDA | CollapsedLDA]:  # type: ignore[override]
        if self.validation_fraction is not None:
            return ValidatedCollapsedLDA
        return CollapsedLDA if self._collapsed else self._mean_field

    @with_options(FitKeywords)
    def fit(
        self,
        X: CountsLike,
        y: ArrayLike | None = None,
        *,
        loadings: ArrayLike | None = None,
        components: ArrayLike | None = None,
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
            Positive parameters gamma of the posterior of proportions to start from, such as
            `doc_topic_posterior_`; by default they are inferred if `components` is given.
        components : array-like of shape (n_components, n_features), default=None
            Positive parameters lambda of the posterior of topics to start from, such as
            `topic_word_posterior_` (topics if there is no prior); by default `init` determines the
            start.
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

        >>> from nmfscale import LDA
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> one = LDA(n_components=2, doc_topic_prior=0.1, tol=0, max_iter=5).fit(X)
        >>> posterior = one.topic_word_posterior_
        >>> other = LDA(n_components=2, doc_topic_prior=0.1, tol=0, max_iter=5)
        >>> other = other.fit(X, components=posterior)
        >>> bool(other.elbo_ > one.elbo_)
        True
        """
        self.run_fit(X, FitOptions.of(options), loadings=loadings, components=components)
        return self

    def _priors(self) -> tuple[Array, Any]:
        alpha: Any = self.doc_topic_prior
        eta: Any = self.topic_word_prior
        check_topic_prior(eta, self._collapsed, self.seeds)
        return dirichlet_priors(self.n_components, alpha, eta, self._estimated)

    @property
    def stopping_tolerance(self) -> float:
        if self.tol is None:
            return _TOLERANCES[self.inference]
        return self.tol

    @property
    def fits_short_samples(self) -> bool:
        return self._collapsed

    @property
    def _estimated(self) -> str:
        """Return how alpha is estimated."""
        if self.estimate_prior is None:
            return "vector" if self.doc_topic_prior is None else "none"
        return self.estimate_prior

    def parameters_of_refits(self) -> dict[str, Any]:
        return {"doc_topic_prior": self.doc_topic_prior_, "estimate_prior": self._estimated}

    def fit_counts(
        self,
        X: CountsLike,
        options: FitOptions,
        *,
        loadings: ArrayLike | None,
        components: ArrayLike | None,
    ) -> tuple[CountMatrix, Fitted]:
        alpha, eta = self._priors()
        check_validation(self.validation_fraction, self._collapsed)
        counts, options = self.counts_of_fit(X, options)
        eta, seeded = prior_of_topics(eta, counts, len(alpha)), seeds_of_fit(self, counts)
        start = checked_posteriors(
            counts, self.n_components, lda.has_prior(eta), loadings, components
        )
        if self.validation_fraction is None:
            fitted = self._fit_samples(counts, options, alpha, eta, start, seeded)
            self._keep_samples(fitted.arrays["gamma"], fitted.arrays["proportions"])
            return counts, fitted
        held = HeldOutSamples.drawn(counts, self.validation_fraction, self.random_state)
        halves, (topics, gamma) = held.halves(), start
        with held.fitted(self.memory_limit, self.threads_for(counts)) as others:
            start = topics, None if gamma is None else gamma[held.others]
            fitted = self._fit_samples(others, options, alpha, eta, start, seeded, halves)
        N = self._inference(held.whole(), gathered=False).loadings.gather()
        gamma = held.joined(fitted.arrays["gamma"], N)
        self._keep_samples(gamma, lda.proportions(gamma))
        return counts, fitted

    def _fit_samples(
        self, counts: CountMatrix, options: FitOptions, alpha: Array, eta: Any,
        start: tuple[Array | None, Array | None], seeded: SeededTopics | None,
        held_out: HeldOut | None = None,
    ) -> Fitted:  # fmt: skip
        """Fit topics and priors to samples, and keep them."""
        dtype, (topics, gamma) = self.fit_dtype(), start
        learns_eta = self._collapsed and self.topic_word_prior is None
        eta = collapsed.START_ETA if learns_eta else eta
        constraints = None if seeded is None else Constraints(prior_factors=seeded.prior())
        eta, base, more = seeded_prior(eta, seeded, self._collapsed)

        def make(counts: CountMatrix, executor: Executor, rng: Any) -> Method:
            find = partial(
                lda.find_start, counts, executor, self.init, alpha, eta, rng, dtype, topics, gamma,
                constraints=constraints,
            )  # fmt: skip
            if not self._collapsed:
                return self._mean_field(
                    counts, executor, find, alpha, eta, dtype, n_steps=self.inner_iter,
                    tolerance=self.mean_change_tol, estimate=self._estimated,
                    momentum=self.extrapolate,
                )  # fmt: skip
            method: Callable[..., Method] = CollapsedLDA
            if held_out is not None:
                method = partial(
                    ValidatedCollapsedLDA, held_out=held_out, patience=self.n_iter_no_change
                )
            return method(
                counts, executor, partial(find, max_iter=collapsed.START_ITERATIONS), alpha,
                None if learns_eta else base, dtype, estimate=self._estimated,
                momentum=self.extrapolate, more=more,
            )  # fmt: skip

        fitted = self.fit_blocks(
            counts, self._needs(counts, eta), make, options,
            parts={"constraints": (alpha, eta), "start": (topics, gamma, self.init)},
            extrapolate=self.extrapolate, inner_iter=self.inner_iter,
            estimate_prior=self._estimated, mean_change_tol=self.mean_change_tol,
            inference=self.inference, validation_fraction=self.validation_fraction,
        )  # fmt: skip
        if self._collapsed:
            eta = float(fitted.arrays["eta"][0]) + (0 if more is None else more)
        self._keep_topics(fitted.arrays["lambda"], fitted.arrays["alpha"], eta, dtype)
        if seeded is not None:
            self.topic_names_ = seeded.names
        if not self._collapsed:
            self.elbo_ = fitted.objective
        return fitted

    def _keep_samples(self, gamma: Array, proportions: Array) -> None:
        self.doc_topic_posterior_, self.loadings_ = gamma, proportions
        self.n_batch_iter_ = 0

    def _needs(self, counts: CountMatrix, eta: Any) -> Needs:
        needs = lda.lda_needs(
            counts, self.n_components, self.fit_dtype(), self.threads_for(counts),
            points=not self._collapsed and not lda.has_prior(eta),
        )  # fmt: skip
        own = 4 * np.asarray(eta).nbytes if np.ndim(eta) else 0  # in the orders of counts, of lanes
        return needs._replace(shared=needs.shared + own)

    def _keep_topics(self, topics: Array, alpha: Array, eta: Any, dtype: Any) -> None:
        self.topic_word_posterior_ = np.ascontiguousarray(topics.T)
        shares = self.topic_word_posterior_ / topics.sum(axis=0)[:, None]
        self.components_ = shares.astype(dtype)
        self.doc_topic_prior_ = np.array(alpha)
        self.topic_word_prior_ = np.ascontiguousarray(eta.T) if np.ndim(eta) else eta
