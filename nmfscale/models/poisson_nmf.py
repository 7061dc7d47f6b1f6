"""Poisson non-negative matrix factorization."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from ..methods.merging import merged_factors
from .base import Fitted
from .factorization import CountFactorization


class PoissonNMF(CountFactorization):
    """Poisson non-negative matrix factorization by maximum likelihood.

    The counts are modelled as ``x_ij ~ Poisson((L F^T)_ij)`` with non-negative loadings L and
    factors F. The maximum of the likelihood is also the maximum of the multinomial topic model and
    of the Kullback-Leibler divergence.

    Parameters
    ----------
    n_components : int, default=10
        Number of components (topics) K. More than there are samples or features are warned of.
    solver : {"auto", "em", "joint-em", "ccd", "scd", "sn", "newton"}, default="auto"
        - "auto": a Newton step on each row of L (far from the optimum after an EM step) and one on
          each row of F (after an EM step where a feature has few counts and all counts make one
          block), with momentum; begins in float32 where that loses nothing, and ends in `dtype`.
          The fastest.
        - "em", "ccd", "scd": alternating Poisson regression by EM, cyclic and sequential coordinate
          descent, the methods of [1]_; "sn" is coordinate descent with the step size of scalar
          Newton [2]_, which never raises the loss of a row; "newton" an EM and a Newton step on
          both sides.
        - "joint-em": both factors from the same expected counts (PLSA) [3]_; takes neither priors
          nor anything that is to stay fixed.
    init : {"auto", "topic-score", "clusters", "random", "nndsvd"} or array-like, default="auto"
        Where to start, see :func:`nmfscale.methods.poisson.initialize.initialize`; an array of
        shape (n_samples,) holds cluster labels.
    max_iter : int, default=1000
        Iterations at most, one pass over the rows and one over the columns each.
    tol : float, default=1e-4
        The fit has converged when the largest KKT residual, relative to the mean total of a sample
        (for L) and of a feature (for F), is at most `tol`, and no more than 0.5 (or 5,000 times
        `tol`) of the log-likelihood is expected to be left. With 0 exactly `max_iter` iterations
        are run.
    gain_tol : float, default=None
        The fit also ends, on a plateau, when the last third of its iterations gained no more than
        this share of the log-likelihood and no more is expected (see `gap_`), or when thirty
        iterations did not raise it. None takes `tol` / 1000; with 0 only `tol` ends a fit.
    n_init : int, default=1
        Number of starts; the fit with the highest likelihood is kept. `converged_` says that a fit
        is at a maximum, not that it is a good one.
    inner_iter : int, default=None
        Steps on each row in an iteration; None takes 4 for "em", "scd" and "sn", 1 for "ccd" and
        "newton". Not used by "auto" and "joint-em".
    extrapolate : bool, default=True
        Momentum for "auto", the extrapolation of Ang and Gillis for the others. Not used by
        "joint-em".
    prior_factors, prior_loadings : float, array-like or tuple, default=None
        Gamma prior, given as shape alpha or (alpha, rate): the fit is the maximum of the posterior.
        alpha is at least 1: a number, one for each component, or an array of the shape of F
        (n_features, n_components) or L; the rate is 1 unless given, but 0 for an alpha of 1, which
        is no prior.
    l1_penalty : float, default=0.0
        Penalty on the sum of the loadings (times the sizes, where these are known), with
        solver="joint-em", which keeps the sums of components at one. It divides the loadings by
        ``1 + l1_penalty`` and changes nothing else: no component, no share, and no loading becomes
        zero for it (Lemma 6.1 of [3]_). `callback` and progress see the fit without it.
    integer : {"warn", "allow", "require"}, default="warn"
        What to do about counts that are not whole numbers.
    dtype : {"float32", "float64"}, default=None
        Type of the factors and of the arithmetic in which a fit ends. None takes float64, whatever
        the type of the counts: the same counts give the same bits in any type. With None,
        ``transform`` returns float32 for counts in float32, as scikit-learn expects. "float32"
        takes half the memory for the factors, but its rounding can hide what is left to be gained.
        Sums over samples are float64 always.
    n_threads : int, default=None
        Threads, at most 4,096; -1 takes all processors this process may use, and so does None for
        work of a million nonzero counts times components or more. Less gains next to nothing from a
        second thread, and None takes one. A number in the environment variable
        ``NMFSCALE_NUM_THREADS`` stands for None whatever the work. One in a process that was forked
        from one that has used several. The result does not depend on it.
    memory_limit : float or str, default=None
        Bytes that the process may hold, such as ``"2GB"``. Counts in a file then stay there: what
        does not fit is read in every iteration, and loadings that do not fit are kept on disk.
        What cannot fit is refused, by ``transform`` and ``score`` as well. None stands for the
        memory that is free.
    random_state : int, RandomState instance or None, default=None
        Seed of the start. None draws one, see `seed_`. The likelihood has many local maxima:
        fits that have converged from different seeds can differ by thousands, and `n_init` keeps
        the best of several.
    verbose : int, default=0
        1 shows a progress bar on standard error, 2 prints every iteration; both also show the
        stages of the start, and how far :meth:`transform` and :meth:`score` are.
    callback : callable, default=None
        Called with a dict after every iteration; a true answer ends the fit.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Factors, the transpose of F.
    loadings_ : ndarray of shape (n_samples, n_components)
        Loadings L of the samples that were fitted.
    history_ : structured ndarray
        One record an iteration: ``iteration``, ``seconds`` since the start of the fit, ``loglik``,
        ``loglik_multinomial``, ``deviance``, ``kkt_loadings``, ``kkt_factors`` (relative, as for
        `tol`), ``change_loadings`` and ``change_factors`` (largest change relative to the mean),
        ``zeros_loadings`` and ``zeros_factors`` (shares), ``momentum``, and ``bytes_read`` from
        files so far. The residuals are measured at iterations 20, 40, 80, ..., at the last one and
        wherever they may be near `tol`. Between, they are seen nearby, where the next update of a
        factor starts, and multiplied by the ratio of the two when they were measured last.
        ``pandas.DataFrame(model.history_)`` makes a table.
    loglik_ : float
        Poisson log-likelihood of the fit; with priors, plus the log prior without its constant;
        less the l1 penalty.
    converged_, interrupted_ : bool
        Whether the KKT residual is at most `tol`, and whether the fit was ended by Ctrl-C.
    stop_reason_ : {"converged", "plateau", "precision", "max_iter", "callback", "interrupted"}
        Why the fit ended: see `tol` and `gain_tol`; "precision" where rounding in float32 hides
        whether anything is left to be gained.
    gap_ : float or None
        About how much the log-likelihood (of other models what they maximize) would still rise from
        this start, as far as the last iterations tell: their gains shrink by a ratio that is taken
        to last. None where rounding hides it.
    seed_ : int or None
        The seed of the start: `random_state`, or the one that was drawn for None, with which a fit
        has the same bits. None if `random_state` is a RandomState.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of features.
    unseen_features_ : ndarray of shape (n_features,), bool
        Features without any count in the fit, of which nothing was given either, neither factors
        that are held nor priors of their own. Their counts in new samples are left out.
    feature_names_in_, sample_names_ : ndarray of str
        Names, where the input has them. Without, `sample_names_` is None, the other is not there.
        Names of samples may also be numbers, bytes, or tuples of them.
    feature_labels_ : ndarray of shape (n_features,), object
        Names of features that are not all text: numbers, bytes, or tuples of a MultiIndex. Only
        then is it there, in place of `feature_names_in_`, which scikit-learn keeps for text.
        Features of new counts are matched with those of the fit by name, see :meth:`transform`.
    sample_totals_ : ndarray of shape (n_samples,), float64
        Sum of the counts of each sample that was fitted. Samples with a total of 0 say nothing of
        topics: :func:`permutation_test` and its like leave them out.
    feature_totals_ : ndarray of shape (n_features,), float64
        Sum of the counts of each feature that was fitted.
    row_weights_ : ndarray of shape (n_samples,), float64, or None
    fixed_topics_, fixed_features_, fixed_samples_ : ndarray of bool, or None
        What :meth:`fit` was given. :func:`bootstrap_fit` fits again with the same.
    measured_ : ndarray of shape (n_batches, n_features), bool, or None
    batch_ : ndarray of shape (n_samples,), int, or None
        Features of each batch, and the number of the batch of each sample, where `measured` was
        given to :meth:`fit` and is not true throughout.
    topic_names_ : ndarray of shape (n_components,), object
        Names of topics, where :meth:`rename_topics` has given them.

    References
    ----------
    .. [1] Carbonetto, Sarkar, Wang, Stephens (2021). Non-negative matrix factorization algorithms
       greatly improve topic model fits. arXiv:2105.13440.
    .. [2] Hien, Gillis (2021). Algorithms for nonnegative matrix factorization with the
       Kullback-Leibler divergence.
    .. [3] Geiger, Park. On the connection between NMF and LDA.

    Examples
    --------
    >>> from nmfscale import PoissonNMF
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
    >>> model = PoissonNMF(n_components=2, random_state=0).fit(X)
    >>> model.inverse_transform(model.loadings_).round(2) + 0
    array([[4., 0., 2., 0.],
           [0., 3., 0., 6.],
           [8., 0., 4., 0.],
           [4., 3., 2., 6.]])
    >>> model.converged_
    True
    """

    def poisson_factors(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the loadings and factors of the fitted Poisson NMF.

        A further fit of either model can start from them: ``model.fit(X, L=L, F=F)``.

        Returns
        -------
        L : ndarray of shape (n_samples, n_components)
            Loadings. Those of a :class:`TopicModel` include the size factors of the samples, so
            that its expected counts are ``L @ F.T``.
        F : ndarray of shape (n_features, n_components)
            Factors, of the same dtype.

        Raises
        ------
        NotFittedError
            If the model is not fitted.

        Examples
        --------
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> L, F = TopicModel(n_components=2, random_state=1).fit(X).poisson_factors()
        >>> (L @ F.T).round(2) + 0
        array([[4., 0., 2., 0.],
               [0., 3., 0., 6.],
               [8., 0., 4., 0.],
               [4., 3., 2., 6.]])
        """
        check_is_fitted(self, "components_")
        L, F = self._factors()
        return np.ascontiguousarray(L), np.ascontiguousarray(F)

    def _factors(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return L and F: the inverse of `_keep`."""
        return self.loadings_, self.components_.T

    def _keep(self, fitted: Fitted, sizes: NDArray[Any] | None) -> None:
        self.components_ = np.ascontiguousarray(fitted.arrays["F"].T)
        self.loadings_ = fitted.arrays["L"]
        self.loglik_ = fitted.objective

    def _merged(self, parts: list[list[int]]) -> dict[str, NDArray[Any]]:
        L, F = merged_factors(self.loadings_, self.components_.T, parts)
        return {"loadings_": L, "components_": np.ascontiguousarray(F.T)}

    def _loadings_of(self, L: NDArray[Any]) -> NDArray[Any]:
        return L / (1 + self.l1_penalty) if self.l1_penalty else L

    def _held(self) -> tuple[NDArray[Any], NDArray[Any] | float]:
        return self.components_.T, 1.0
