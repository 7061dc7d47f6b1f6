"""What an LDA does with the topics of a fit: proportions of new samples, choices and merging."""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from ..counts.argument_types import Client
from ..counts.base import CountMatrix
from ..methods.rows_pass import RowsPass
from ..methods.topics.merging import merged_dirichlet, summed
from ..methods.variational import collapsed, lda
from ..methods.variational.posteriors import Inference, inference_needs
from .base import CountModel

Array = NDArray[Any]

# Smaller entries of a topic are the floor of points that are zero.
_LEAST_SHARE = 1e-12


class FixedTopicsLDA(CountModel):
    """The methods of :class:`LDA` that need a fit."""

    doc_topic_prior_: Array
    inference: str
    max_doc_update_iter: int
    mean_change_tol: float
    seeds: Any
    topic_word_posterior_: Array
    topic_word_prior: Any
    topic_word_prior_: Any
    array_axes: ClassVar[dict[str, str]] = {
        "topic_word_posterior_": "km",
        "doc_topic_posterior_": "nk",
        "doc_topic_prior_": "k",
        "topic_word_prior_": "km",
        "measured_share_": "m",
    }

    # in a restricted copy: the share of each topic in its features, (K,)
    _shares = cast("Array | None", None)

    @property
    def _collapsed(self) -> bool:
        return self.inference == "collapsed"

    @property
    def _eta(self) -> Any:
        """Return eta of the fit: a number, or (m, K)."""
        eta = self.topic_word_prior_
        return np.ascontiguousarray(eta.T) if isinstance(eta, np.ndarray) else eta

    def _taken(self, axis: str, numbers: Any) -> Self:
        model = super()._taken(axis, numbers)
        if axis == "k" and np.ndim(self.topic_word_prior) == 2:
            prior = self.topic_word_prior
            rows = prior.iloc[numbers] if hasattr(prior, "iloc") else np.asarray(prior)[numbers]
            model.topic_word_prior = rows
        return model

    def merged_arrays(self, parts: list[list[int]]) -> dict[str, Array]:
        eta, alpha = self._eta, self.doc_topic_prior_
        if np.ndim(self.topic_word_prior) == 2 or self.seeds is not None:
            name = "topic_word_prior has" if self.seeds is None else "seeds give"
            raise ValueError(
                f"{name} numbers of its own for each topic, which a merged topic does not have: "
                "fit with a number for each feature."
            )
        rows = "loadings_", "doc_topic_posterior_", "doc_topic_prior_"
        arrays = {name: summed(getattr(self, name), parts) for name in rows if hasattr(self, name)}
        if np.ndim(eta):  # the same in every topic
            arrays["topic_word_prior_"] = self.topic_word_prior_[: len(parts)]
            eta = eta[:, :1]
        elif eta == 0 and "doc_topic_posterior_" not in arrays:
            raise ValueError("topics that are points need loadings to be merged: call fit.")
        expected = (getattr(self, "doc_topic_posterior_", alpha) - alpha).sum(axis=0)
        topics = merged_dirichlet(self.topic_word_posterior_.T, parts, eta, expected).T
        shares = (topics / topics.sum(axis=1, keepdims=True)).astype(self.components_.dtype)
        posterior = np.ascontiguousarray(topics)
        return arrays | {"topic_word_posterior_": posterior, "components_": shares}

    def _restricted(self, features: Array) -> Self:
        restricted = super()._restricted(features)
        sums = (model.topic_word_posterior_.sum(axis=1) for model in (restricted, self))
        restricted._shares = np.divide(*sums)
        restricted._shares[restricted._shares < _LEAST_SHARE] = 0
        if not lda.has_prior(self.topic_word_prior_):  # point estimates must sum to one
            scale = np.where(restricted._shares > 0, restricted._shares, 1)
            restricted.topic_word_posterior_ = restricted.topic_word_posterior_ / scale[:, None]
        return restricted

    def _inference(self, counts: CountMatrix, *, gathered: bool) -> Inference:
        """Return how posteriors of new samples are found, unless memory is short of them."""
        self.check_memory(counts, inference_needs(counts, self.n_components_), gathered=gathered)
        if self._collapsed:
            posterior = self.topic_word_posterior_.T
            return collapsed.collapsed_inference(
                counts, posterior / posterior.sum(axis=0), self.doc_topic_prior_,
                n_steps=self.max_doc_update_iter, tolerance=self.mean_change_tol,
                n_threads=self.threads_for(counts),
            )  # fmt: skip
        return lda.dirichlet_inference(
            counts, self.topic_word_posterior_.T, self.doc_topic_prior_, self._eta,
            n_steps=self.max_doc_update_iter, tolerance=self.mean_change_tol,
            n_threads=self.threads_for(counts),
        )  # fmt: skip

    def pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, **arguments: Any
    ) -> RowsPass:
        loadings = self._inference(counts, gathered=gathered).loadings
        return loadings.then(lambda rows, gamma: self._proportions(gamma))

    def _proportions(self, gamma: Array) -> Array:
        if self._shares is not None:
            gamma = lda.of_all_features(gamma, self.doc_topic_prior_, self._shares)
        return lda.proportions(gamma)

    def log_probability(self, counts: CountMatrix, client: Client) -> float:
        return self._inference(counts, gathered=False).elbo(**self.where_to_run(client))
