"""partial_fit of Poisson NMF and the topic model: online EM, see `methods.poisson.online_em`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from numbers import Real
from typing import Any, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from ..counts.argument_types import CountsLike
from ..counts.names import names_of
from ..engine import progress
from ..engine.local import LocalExecutor
from ..engine.threads import single_blas_thread
from ..methods.poisson.online_em import (
    LEAST_SHARE,
    ROUNDS,
    averages,
    expected_counts,
    needs_of_batch,
    overall_frequency,
    raised,
    start_of_new,
)
from ..methods.poisson.priors import gamma_prior
from ..readers.streams.matching import Missing
from .arguments.fit_options import ReadingOptions, with_options
from .arguments.new_features import Batch, NewFeatures, with_new_rows
from .arguments.parameters import check_values, estimator
from .arguments.seeds import SeededTopics, pseudo_counts
from .factorization import CountFactorization
from .online import OnlineModel

Array = NDArray[Any]

# Attributes with an entry for each feature that a projection does not use.
_OF_FEATURES = {"mean_counts_", "mean_loadings_", "feature_totals_"}


@estimator
class OnlineFactorization(OnlineModel, CountFactorization):
    """The method `partial_fit` of :class:`PoissonNMF` and :class:`TopicModel`."""

    learning_decay: float = 0.7
    learning_offset: float = 10.0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CountFactorization._parameter_constraints,
        "learning_decay": [Interval(Real, 0, 1, closed="both")],
        "learning_offset": [Interval(Real, 0, None, closed="left")],
    }
    array_axes: ClassVar[dict[str, str]] = {"mean_counts_": "km", "mean_loadings_": "km"}
    not_in_batches: ClassVar[dict[str, str]] = {
        "batches_": "batch=", "measured_": "measured=", "has_missing_entries_": "data_weights=",
        "has_size_factors_": "size_factors=", "row_weights_": "row_weights=",
        "fixed_topics_": "fixed_topics=", "fixed_features_": "fixed_features=",
        "fixed_samples_": "fixed_samples=", "feature_weights_": "weights of features",
    }  # fmt: skip

    @with_options(ReadingOptions)
    def partial_fit(
        self,
        X: CountsLike,
        y: Any = None,
        *,
        new_features: NewFeatures = "error",
        missing: Missing | None = None,
        **options: Unpack[ReadingOptions],
    ) -> Self:
        """Update the components with one batch of new samples (online EM).

        The first batch is fitted as by :meth:`fit`. Later ones change the components by moving
        averages [1]_ [2]_. A fit to all samples at once reaches a higher likelihood, even from a
        file larger than memory; batches are for samples that arrive over time.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`. Features are matched with those of the model by name.
        y : None
            Ignored.
        new_features : {"error", "add", "ignore"}, default="error"
            How to treat features that the model does not have, such as words of new texts. "error"
            raises an error. "add" adds them to the model, behind its features. "ignore" leaves out
            their counts.
        missing : {"error", "restrict", "zero"}, default=None
            How to treat features of the model that `X` lacks, and those that are added, which
            earlier batches lacked. "zero" takes their counts as 0. "restrict" means that they were
            not measured: a batch does not change the features that it lacks, and an added feature
            has the frequency that it has in the batches that have it. None means "zero" for words,
            as in :meth:`transform`, and "error" otherwise.
        layer, raw, **source
            As in :meth:`fit`.

        Returns
        -------
        self : object
            Estimator with updated components; :meth:`transform` finds loadings. The first batch may
            follow a fit, or :meth:`from_components`. Attributes of samples are deleted.

        Raises
        ------
        ValueError, OSError, MemoryLimitError
            As in :meth:`fit`. ValueError also if features do not match; with `penalty`; or after a
            fit with `batch`, `measured`, weights, sizes or fixed parameters.
        KeyboardInterrupt
            If Ctrl-C is pressed: the model then is that of the batches before.

        Notes
        -----
        A batch of n samples, the last of s so far, has the weight ``(learning_offset + s / n) **
        -learning_decay``, and all before it the rest. If batches are of one size, s / n is the
        number of the batch; after a large fit, a small batch changes little.

        `prior_factors` and `seeds` are those of all samples so far. An array as `prior_factors`
        needs a row for each feature: a DataFrame with rows for words to come.

        References
        ----------
        .. [1] Cappe, Moulines (2009). On-line expectation-maximization algorithm for latent data
           models. Journal of the Royal Statistical Society B 71, 593-613.
        .. [2] Lefevre, Bach, Fevotte (2011). Online algorithms for nonnegative matrix factorization
           with the Itakura-Saito divergence. IEEE Workshop on Applications of Signal Processing to
           Audio and Acoustics.

        Examples
        --------
        >>> import nmfscale
        >>> first = nmfscale.as_counts([[3, 2, 0], [0, 0, 4]], feature_names=["ale", "hop", "oak"])
        >>> later = nmfscale.as_counts([[1, 3], [2, 2]], feature_names=["rye", "ale"])
        >>> model = nmfscale.TopicModel(2, random_state=0).partial_fit(first)
        >>> model = model.partial_fit(later, new_features="add", missing="zero")
        >>> model.feature_names_in_.tolist()
        ['ale', 'hop', 'oak', 'rye']
        """
        check_values(self)
        if self.penalty is not None:
            raise ValueError("partial_fit has no penalty: set penalty=None, or use fit.")
        with self._all_or_nothing():
            fitted = hasattr(self, "components_")
            batch = self._read_batch(X, options, new_features, missing)
            if fitted:
                self._follow(batch)
            else:
                self._begin(batch)
            self._end_batch(batch)
        return self

    def _begin(self, batch: Batch) -> None:
        """Fit the first batch."""
        self.fit(batch.counts)
        if self.interrupted_:
            raise KeyboardInterrupt
        self._take_means()
        self.n_batch_iter_ = 0

    def _take_means(self) -> None:
        """Set the averages A and B of a fit; those of a table of components come from a batch."""
        K, m = self.components_.shape
        self.n_samples_seen_, self.n_batch_iter_ = 0, 0
        self.mean_counts_ = self.mean_loadings_ = np.zeros((K, m))
        if not hasattr(self, "loadings_"):
            return
        L, F = self._factors()
        n, F = len(L), np.asarray(F, np.float64)
        pseudo, rate = self._prior_of_factors(F.shape, getattr(self, "feature_totals_", None))
        mean, u = L.mean(axis=0, dtype=np.float64), self.components_.sum(axis=1, dtype=np.float64)
        amounts = np.divide(mean * F.sum(axis=0), u, out=u * 0, where=u > 0)
        self.n_samples_seen_ = n
        self.mean_counts_ = np.maximum(F * (mean + rate / n) - pseudo / n, 0).T
        self.mean_loadings_ = np.repeat(amounts[:, None], m, axis=1)

    def _follow(self, batch: Batch) -> None:
        """Update the components with a batch; attributes are replaced, and not changed."""
        counts, n_new = batch.counts, len(batch.names)
        if not hasattr(self, "mean_counts_"):
            self._take_means()
        F, A, B = (
            with_new_rows(np.asarray(values.T, np.float64), n_new)
            for values in (self.components_, self.mean_counts_, self.mean_loadings_)
        )
        if n_new and not batch.restricted:
            B[-n_new:] = B.max(axis=0)  # measured in all samples
        seen = self.n_samples_seen_ + counts.shape[0]
        rho = self._weight_at(seen / counts.shape[0])  # of equal batches, the number of this one
        frequency = overall_frequency(A, B, F, counts, batch.features, rho)
        if n_new and batch.restricted:
            F[-n_new:] = start_of_new(frequency[-n_new:], F)
        least = LEAST_SHARE * counts.shape[0] / seen * frequency
        start, sums = F, self._sums_of_batch(batch, least)
        for _ in range(ROUNDS):
            after = averages(A, B, start, *sums(F), batch.features, rho)
            F = self._maximised(F, *after, seen)
        self._keep_factors(F, *after)
        self.n_samples_seen_ = seen

    def _sums_of_batch(self, batch: Batch, least: Array) -> Callable[[Array], tuple[Array, Array]]:
        """Return a function of factors (m, K) that returns a and b of a batch: see `online_em`."""
        counts, n_threads = batch.counts, self.threads_for(batch.counts)
        needs = needs_of_batch(counts, self.n_components_)
        folder = self._plan(counts, needs, None, n_threads)
        n = counts.shape[0]

        def sums(F: Array) -> tuple[Array, Array]:
            model = copy.copy(self)
            for name in _OF_FEATURES & vars(model).keys():  # without those that the batch adds
                delattr(model, name)
            model.components_ = raised(F, least).T
            if batch.there is not None:
                model = model._restricted(batch.there)
            executor = LocalExecutor(counts.layout(n_threads), n_threads, folder)
            with single_blas_thread(), progress.shown(self.verbose, "partial_fit", n):
                rows_pass = model._projection(counts, None, gathered=False)
                a, b = expected_counts(rows_pass, executor)
            return a / n, b / n

        return sums

    def _keep_factors(self, F: Array, A: Array, B: Array) -> None:
        """Set the components and the averages; topics sum to one."""
        if self.loadings_are_proportions:
            scales = F.sum(axis=0)
            scales[scales == 0] = 1
            F, B = F / scales, B * scales
        self.components_ = np.ascontiguousarray(F.T.astype(self.fit_dtype()))
        self.mean_counts_, self.mean_loadings_ = map(np.ascontiguousarray, (A.T, B.T))

    def _prior_of_factors(self, shape: tuple[int, int], totals: Any) -> tuple[Any, Any]:
        """Return pseudo-counts and rates for these totals (m,) of the features."""
        names = names_of(self, 1)
        prior = gamma_prior(self.prior_factors, shape, "prior_factors", names=names)
        if self.seeds is not None:
            assert names is not None  # seeds need them
            prior = SeededTopics(names, pseudo_counts(self, names, totals)).prior(prior)
        return (0.0, 0.0) if prior is None else prior

    def _maximised(self, F: Array, A: Array, B: Array, seen: int) -> Array:
        """Return the factors with the highest likelihood, or posterior, for averages A and B.

        Those of topics without loadings stay.
        """
        pseudo, rate = self._prior_of_factors(F.shape, seen * A.sum(axis=1))
        above, below = A + pseudo / seen, B + rate * self._held()[1] / seen
        best: Array = np.divide(above, below, out=F.copy(), where=below > 0)
        return best
