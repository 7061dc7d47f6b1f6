"""The multinomial topic model, fitted as a Poisson NMF."""

from __future__ import annotations

from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from ..methods.conversion import multinomial_to_poisson, poisson_to_multinomial
from ..methods.topics.merging import averaged, summed
from .arguments.parameters import estimator
from .fitted import Fitted
from .poisson_nmf import PoissonNMF


@estimator
class TopicModel(PoissonNMF):
    """Multinomial topic model (PLSA) by maximum likelihood.

    The counts of a sample are a multinomial draw with frequencies ``sum_k l_ik f_jk``: topic
    proportions l_i that sum to one and topics f_k that sum to one. It is fitted as a Poisson NMF,
    which has the same optima and is easier to optimise, and converted [1]_ (Definition 1, eq. 4).

    Parameters
    ----------
    n_components, solver, init, max_iter, tol, gain_tol, n_init, n_moves, seeds, seed_weight, \
inner_iter, extrapolate
        As in :class:`PoissonNMF`.
    prior_factors : float or array-like, default=None
        Dirichlet prior on the topics with parameter alpha of at least 1 (Corollary 2): a Gamma
        prior on the factors of the Poisson NMF.
    prior_loadings : float, array-like or tuple, default=None
        Gamma prior on the loadings of the Poisson NMF.
    penalty : SparsityPenalty, default=None
        As in :class:`PoissonNMF`. The penalty applies to the fit before it is converted, which
        keeps zeros. With an exponent of 1 and norm="l1", it changes only `size_factors_` and the
        deviance.
    batch_shape, learning_decay, learning_offset, integer, dtype, n_threads, memory_limit, \
random_state, verbose, callback
        As in :class:`PoissonNMF`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Topics; rows sum to one.
    loadings_ : ndarray of shape (n_samples, n_components)
        Topic proportions of the fitted samples; rows sum to one.
    size_factors_ : ndarray of shape (n_samples,)
        Expected total of each sample.
    scales_ : ndarray of shape (n_components,)
        Sum of each factor of the Poisson NMF: see :meth:`poisson_factors`.
    loglik_ : float
        Multinomial log-likelihood of the fit. An entry of weight 2 (`data_weights` of :meth:`fit`)
        counts like two features with equal counts.
    history_, converged_, interrupted_, stop_reason_, n_iter_, n_features_in_, \
feature_names_in_, sample_names_, obs_, sample_totals_, feature_totals_, unseen_features_, \
topic_names_, from_table_, seed_, warnings_, row_weights_, has_size_factors_, fixed_topics_, \
fixed_features_, fixed_samples_, measured_, panel_, batches_, batch_, batch_efficiencies_, \
batch_shape_, has_missing_entries_, starts_, moves_, n_batch_iter_, n_samples_seen_, \
mean_counts_, mean_loadings_
        As in :class:`PoissonNMF`.

    References
    ----------
    .. [1] Carbonetto, Sarkar, Wang, Stephens (2021). Non-negative matrix factorization algorithms
       greatly improve topic model fits. arXiv:2105.13440.

    Examples
    --------
    >>> from nmfscale import TopicModel
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
    >>> model = TopicModel(n_components=2, random_state=1).fit(X)
    >>> model.loadings_.round(2) + 0
    array([[0. , 1. ],
           [1. , 0. ],
           [0. , 1. ],
           [0.6, 0.4]])
    >>> model.components_.sum(axis=1).round(6)
    array([1., 1.])
    """

    loadings_are_proportions = True
    reported_objective = "loglik_multinomial"

    # in a restricted copy: sums of the topics over all features of the fit, (K, 1)
    _whole = cast("NDArray[Any] | None", None)  # not annotated: that would make it a parameter

    def _keep(self, fitted: Fitted, sizes: NDArray[Any] | None) -> None:
        super()._keep(fitted, sizes)
        L, F = fitted.arrays["L"], fitted.arrays["F"]
        proportions, frequencies, totals, scales = poisson_to_multinomial(L, F)
        self.loadings_ = np.ascontiguousarray(proportions)
        self.components_ = np.ascontiguousarray(frequencies.T)
        self.size_factors_ = totals if sizes is None else totals * sizes.astype(totals.dtype)
        self.scales_ = scales
        self.loglik_ = float(fitted.history["loglik_multinomial"][-1])

    def _take_components(self, values: NDArray[Any]) -> None:
        super()._take_components(values / values.sum(axis=1, keepdims=True))
        self.scales_ = np.ones(len(values), self.components_.dtype)

    def _factors(self) -> tuple[NDArray[Any], NDArray[Any]]:
        frequencies = self.components_.T
        return multinomial_to_poisson(self.loadings_, frequencies, self.size_factors_, self.scales_)

    def _multinomial(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.loadings_, self.components_.T

    def merged_arrays(self, parts: list[list[int]]) -> dict[str, NDArray[Any]]:
        self._check_samples()
        expected = (self.size_factors_.astype(np.float64)[:, None] * self.loadings_).sum(axis=0)
        # of the loadings of the Poisson NMF
        totals = np.divide(expected, self.scales_, out=expected * 0, where=self.scales_ > 0)
        return {
            "loadings_": summed(self.loadings_, parts),
            "components_": np.ascontiguousarray(averaged(self.components_.T, parts, expected).T),
            "scales_": averaged(self.scales_, parts, totals),
        }

    def _restricted(self, features: NDArray[Any]) -> Self:
        restricted = super()._restricted(features)
        # so that proportions refer to all features of the fit
        restricted._whole = self.components_.sum(axis=1, keepdims=True, dtype=np.float64)
        return restricted

    def _loadings_of(self, L: NDArray[Any]) -> NDArray[Any]:
        # a topic without factors has equal frequencies, but no share in any sample
        sums = self.components_ if self._whole is None else self._whole
        return poisson_to_multinomial(L * (self.scales_ > 0), sums.T).proportions

    def _held(self) -> tuple[NDArray[Any], NDArray[Any] | float]:
        alive = self.scales_ > 0
        if alive.all():
            return self.components_.T, self.scales_
        return self.components_.T * alive, np.where(alive, self.scales_, 1.0)
