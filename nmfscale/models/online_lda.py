"""Online variational LDA: topics that are updated with one batch of samples after the other."""

from __future__ import annotations

from typing import Any, Self, Unpack

from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from ..engine.local import LocalExecutor
from ..engine.threads import single_blas_thread
from ..kernels.functions import power
from ..methods.variational import lda
from ..methods.variational.lda import VariationalLDA
from ..methods.variational.mean_field import Start
from .arguments.fit_options import ReadingOptions, with_options
from .arguments.parameters import check_values
from .arguments.seeds import seeds_of_fit
from .arguments.validation import prior_of_topics
from .lda_topics import FixedTopicsLDA

Array = NDArray[Any]

# Attributes of a fit and its samples, which a batch of `partial_fit` deletes.
_OF_A_FIT = {
    "history_", "converged_", "interrupted_", "stop_reason_", "n_iter_", "elbo_",
    "loadings_", "doc_topic_posterior_", "sample_names_", "obs_", "sample_totals_",
    "feature_totals_",
}  # fmt: skip


def _takes_batches(model: Any) -> bool:
    """Refuse `partial_fit` with collapsed inference."""
    if model.inference == "collapsed":
        raise ValueError(
            "partial_fit is for inference='mean-field': collapsed inference needs all samples. Use "
            "fit, also for counts in a file larger than memory."
        )
    return True


class OnlineLDA(FixedTopicsLDA):
    """The method `partial_fit` of :class:`LDA`."""

    learning_decay: float
    learning_offset: float
    n_batch_iter_: int
    total_samples: float

    @available_if(_takes_batches)
    @with_options(ReadingOptions)
    def partial_fit(self, X: Any, y: Any = None, **options: Unpack[ReadingOptions]) -> Self:
        """Update the topics with one batch of new samples (online variational inference).

        A fit to all samples at once reaches a higher ELBO in less time, even from a file larger
        than memory.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`; `total_samples` is the total number of samples to come.
        y : None
            Ignored.
        layer, raw, **source
            As in :meth:`fit`.

        Returns
        -------
        self : object
            Estimator with updated topics; :meth:`transform` infers proportions. The first batch
            starts from random topics or from the topics of a previous fit, whose attributes of
            samples are deleted.

        Raises
        ------
        ValueError, OSError, MemoryLimitError
            As in :meth:`fit`.
        AttributeError
            With collapsed inference.

        Examples
        --------
        >>> from nmfscale import LDA
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = LDA(n_components=2, random_state=0, total_samples=4)
        >>> model.partial_fit(X[:2]).partial_fit(X[2:]).n_batch_iter_
        2
        """
        check_values(self)
        first = not hasattr(self, "components_")
        with self._all_or_nothing():
            counts = self._counts(X, options, reset=first)
            if first:
                (alpha, eta), dtype = self._priors(), self.fit_dtype()
                eta = prior_of_topics(eta, counts, len(alpha))
                self.seed_, self.n_batch_iter_ = self._drawn_seed(), 0
                rng = self._generator()
                seeded = seeds_of_fit(self, counts)
                seeds = None if seeded is None else seeded.pseudo
                shape = counts.shape[1], len(alpha)
                topics = lda.random_topics(rng, shape, eta, counts, seeds)
                if seeded is not None:  # occurrences in all samples that will come
                    eta = eta + seeded.pseudo * (self.total_samples / max(counts.shape[0], 1))
                    self.topic_names_ = seeded.names
            else:
                alpha, eta = self.doc_topic_prior_, self._eta
                dtype, topics = self.fit_dtype(), self.topic_word_posterior_.T
            n_threads = self.threads_for(counts)
            needs = lda.lda_needs(counts, len(alpha), dtype, n_threads)
            folder = self._plan(counts, needs, None, n_threads)
            with single_blas_thread():
                model = VariationalLDA(
                    counts, LocalExecutor(counts.layout(n_threads), n_threads, folder),
                    lambda: Start(topics), alpha, eta, dtype,
                    fresh_steps=self.max_doc_update_iter, tolerance=self.mean_change_tol,
                )  # fmt: skip
                moment = self.learning_offset + self.n_batch_iter_ + 1
                weight = float(power(moment, -self.learning_decay))
                moved = model.online(topics, weight, self.total_samples)
        unseen = self.find_unseen_features(counts, {})
        self.unseen_features_ = unseen & (first | getattr(self, "unseen_features_", False))
        for name in _OF_A_FIT & vars(self).keys():
            delattr(self, name)
        self.n_batch_iter_ += 1
        self._keep_topics(moved, alpha, eta, dtype)
        return self

    def _priors(self) -> tuple[Array, Any]:
        """Return alpha and eta of a fit, before they are estimated."""
        raise NotImplementedError

    def _keep_topics(self, topics: Array, alpha: Array, eta: Any, dtype: Any) -> None:
        """Set the attributes of topics, given by their posterior (m, K)."""
        raise NotImplementedError
