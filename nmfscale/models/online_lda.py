"""Online variational LDA: topics that are updated with one batch of samples after the other."""

from __future__ import annotations

from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from ..counts.base import CountMatrix
from ..engine.local import LocalExecutor
from ..engine.threads import single_blas_thread
from ..methods.variational import lda
from ..methods.variational.lda import VariationalLDA
from ..methods.variational.mean_field import Start
from ..readers.streams.matching import Missing
from .arguments.fit_options import ReadingOptions, with_options
from .arguments.new_features import Batch, NewFeatures, with_new_rows
from .arguments.parameters import check_values
from .arguments.seeds import pseudo_counts, seeds_of_fit
from .arguments.validation import prior_of_topics
from .lda_topics import FixedTopicsLDA
from .online import OnlineModel

Array = NDArray[Any]


def _takes_batches(model: Any) -> bool:
    """Refuse `partial_fit` with collapsed inference."""
    if model.inference == "collapsed":
        raise ValueError(
            "partial_fit is for inference='mean-field': collapsed inference needs all samples. Use "
            "fit, also for counts in a file larger than memory."
        )
    return True


class OnlineLDA(FixedTopicsLDA, OnlineModel):
    """The method `partial_fit` of :class:`LDA`."""

    total_samples: float

    @available_if(_takes_batches)
    @with_options(ReadingOptions)
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        new_features: NewFeatures = "error",
        missing: Missing | None = None,
        **options: Unpack[ReadingOptions],
    ) -> Self:
        """Update the topics with one batch of new samples (online variational inference).

        A fit to all samples at once reaches a higher ELBO in less time, even from a file larger
        than memory.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`; `total_samples` is the total number of samples to come. Features are
            matched with those of the model by name.
        y : None
            Ignored.
        new_features, missing
            As in :meth:`PoissonNMF.partial_fit`. An added feature starts from its prior
            `topic_word_prior`.
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
            As in :meth:`fit`. ValueError also if features do not match; or with
            ``topic_word_prior=0``, if features are added or were not measured.
        AttributeError
            With collapsed inference.

        Notes
        -----
        An array as `topic_word_prior` needs a number for each feature: for words to come, pass a
        Series or DataFrame that has them. Seeds of added features count in the batch that adds
        them.

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
            batch = self._read_batch(X, options, new_features, missing)
            alpha, eta, topics = self._first_topics(batch) if first else self._topics_for(batch)
            here, moved = batch.features, topics.copy()
            moved[here] = self._moved(batch, topics[here], alpha, _rows(eta, here))
            self._keep_topics(moved, alpha, eta, self.fit_dtype())
            self._end_batch(batch)
        return self

    def _first_topics(self, batch: Batch) -> tuple[Array, Any, Array]:
        """Return alpha, eta and random topics (m, K), from which the first batch starts."""
        counts, (alpha, eta) = batch.counts, self._priors()
        eta = prior_of_topics(eta, counts, len(alpha))
        self.seed_, self.n_batch_iter_ = self._drawn_seed(), 0
        self.unseen_features_ = np.ones(counts.shape[1], bool)
        seeded = seeds_of_fit(self, counts)
        seeds = None if seeded is None else seeded.pseudo
        shape = counts.shape[1], len(alpha)
        topics = lda.random_topics(self._generator(), shape, eta, counts, seeds)
        if seeded is not None:
            eta = eta + seeded.pseudo * self._samples_to_come(counts)
            self.topic_names_ = seeded.names
        return alpha, eta, topics

    def _samples_to_come(self, counts: CountMatrix) -> float:
        """Return how many times as many samples will come as a batch has."""
        return self.total_samples / max(counts.shape[0], 1)

    def _topics_for(self, batch: Batch) -> tuple[Array, Any, Array]:
        """Return alpha, and eta and topics with rows for the features that a batch adds."""
        alpha, eta, topics, n_new = (
            self.doc_topic_prior_, self._eta, self.topic_word_posterior_.T, len(batch.names)
        )  # fmt: skip
        if (n_new or batch.there is not None) and not lda.has_prior(eta):
            raise ValueError(
                "topic_word_prior=0 means topics without a prior, in which the share of a feature "
                "that batches lack is unknown: give a positive number, or None."
            )
        if not n_new:
            return alpha, eta, topics
        of_new = self._prior_of_new(batch, eta)
        if np.ndim(eta) or np.ndim(of_new):
            whole = np.broadcast_to(eta, topics.shape)
            eta = with_new_rows(np.ascontiguousarray(whole), n_new, of_new)
        return alpha, eta, with_new_rows(topics, n_new, of_new)

    def _prior_of_new(self, batch: Batch, eta: Any) -> Any:
        """Return the prior of the features that a batch adds: a number, or (n_new, K)."""
        counts, new = batch.counts, slice(-len(batch.names), None)
        _, base = self._priors()
        of_new = _rows(prior_of_topics(base, counts, self.n_components), new)
        if self.seeds is None:
            return of_new
        pseudo = pseudo_counts(self, counts.feature_names, counts.column_totals)[new]
        return of_new + pseudo * self._samples_to_come(counts)

    def _moved(self, batch: Batch, topics: Array, alpha: Array, eta: Any) -> Array:
        """Return the topics (m, K) of the features of a batch after an online step."""
        counts, dtype = batch.counts, self.fit_dtype()
        n_threads = self.threads_for(counts)
        needs = lda.lda_needs(counts, len(alpha), dtype, n_threads)
        folder = self._plan(counts, needs, None, n_threads)
        with single_blas_thread():
            model = VariationalLDA(
                counts, LocalExecutor(counts.layout(n_threads), n_threads, folder),
                lambda: Start(topics), alpha, eta, dtype,
                fresh_steps=self.max_doc_update_iter, tolerance=self.mean_change_tol,
            )  # fmt: skip
            return model.online(topics, self._weight_of_features(batch), self.total_samples)

    def _weight_of_features(self, batch: Batch) -> Any:
        """Return the weight of a batch: a number, or (m, 1) if features were not always measured.

        The weight of all batches that measured a feature is one. Its topics are thus averages over
        these batches alone, and follow the first of them at once.
        """
        weight, n_new = self._weight_at(self.n_batch_iter_ + 1), len(batch.names)
        share = getattr(self, "measured_share_", None)
        if share is None and not batch.restricted:
            return weight
        m = self.n_features_in_
        share = np.ones(m - n_new) if share is None else share
        share = (1 - weight) * with_new_rows(share, n_new, float(not batch.restricted))
        share[batch.features] += weight
        self.measured_share_ = share
        return weight / share[batch.features, None]

    def _priors(self) -> tuple[Array, Any]:
        """Return alpha and eta of a fit, before they are estimated."""
        raise NotImplementedError

    def _keep_topics(self, topics: Array, alpha: Array, eta: Any, dtype: Any) -> None:
        """Set the attributes of topics, given by their posterior (m, K)."""
        raise NotImplementedError


def _rows(eta: Any, rows: Any) -> Any:
    """Return rows of a prior of topics, which may be a number for all."""
    return eta[rows] if isinstance(eta, np.ndarray) else eta
