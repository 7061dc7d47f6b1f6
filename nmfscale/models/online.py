"""What models share that learn from one batch of samples after the other (`partial_fit`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray

from ..kernels.functions import power
from .arguments.inputs import with_names
from .arguments.measured_entries import refuse_unmeasured
from .arguments.new_features import (
    Batch,
    NewFeatures,
    add_features,
    check_new_features,
    first_batch,
    matched_batch,
)
from .base import CountModel

Array = NDArray[Any]

# Attributes of a fit and its samples, which a batch of `partial_fit` deletes.
_OF_A_FIT = {
    "history_", "converged_", "interrupted_", "stop_reason_", "n_iter_", "warnings_", "starts_",
    "moves_", "loglik_", "elbo_", "loadings_", "doc_topic_posterior_", "size_factors_",
    "sample_names_", "obs_", "sample_totals_", "feature_totals_",
}  # fmt: skip


class OnlineModel(CountModel):
    """Reading, counting and weighting of batches."""

    learning_decay: float
    learning_offset: float
    n_batch_iter_: int
    # what `partial_fit` cannot continue: attributes of a fit, and what they come from
    not_in_batches: ClassVar[dict[str, str]] = {}

    def _read_batch(
        self, X: Any, reading: Mapping[str, Any], new_features: NewFeatures, missing: Any
    ) -> Batch:
        """Return the counts of a batch; those of the first one give the model its features.

        Names of new features are added to the model, and attributes of a fit deleted.
        """
        check_new_features(new_features, missing)
        self._check_reading(reading)
        counts = self._read(X, reading)
        X = with_names(X, counts, reading)
        refuse_unmeasured(
            counts, type(self).__name__,
            "Give the samples of each panel in batches of their own, with missing='restrict', or "
            "join files by join='inner'.",
        )  # fmt: skip
        self._check_feature_weights(counts)
        if counts.feature_weights is not None:
            raise ValueError(
                "X has weights of features, such as those of modalities, and partial_fit has none: "
                "set counts.feature_weights = None, or use fit."
            )
        if not hasattr(self, "components_"):
            self._take_names(X, counts)
            return first_batch(counts, new_features)
        if self.n_components != self.n_components_:
            raise ValueError(
                f"n_components={self.n_components}, and the model has {self.n_components_} "
                "components, whose number partial_fit does not change: call fit."
            )
        for name, what in self.not_in_batches.items():
            value = getattr(self, name, None)
            if value is not None and value is not False:
                raise ValueError(
                    f"this {type(self).__name__} was fitted with {what}, and batches of "
                    f"partial_fit have none: fit it without {what}, or all samples by fit."
                )
        batch = matched_batch(self, X, counts, new_features, missing)
        add_features(self, batch.names)
        return batch

    def _weight_at(self, moment: float) -> float:
        """Return the weight of a batch relative to all before it, given its number or a like."""
        return float(power(self.learning_offset + moment, -self.learning_decay))

    def _end_batch(self, batch: Batch) -> None:
        """Count a batch, mark its features as seen, and delete attributes of samples."""
        unseen = self.unseen_features_.copy()
        unseen[batch.features] &= batch.counts.column_nnz == 0
        self.unseen_features_ = unseen
        for name in _OF_A_FIT & vars(self).keys():
            delattr(self, name)
        self.n_batch_iter_ += 1
