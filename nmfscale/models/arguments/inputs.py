"""Counts that are given to an estimator: read, matched with the features of the fit, restricted."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...engine.threads import resolve_threads
from ...engine.workers import resolve_client
from ...readers.open import open_counts
from ...readers.options import check_source
from ...readers.sources.masks import MASKS, NAMES
from ...readers.streams.columns import leave_out
from ...readers.streams.matching import check_missing
from .batches import why_no_batches
from .entry_weights import given_weights, is_nan
from .measured_entries import refuse_unmeasured
from .names import default_missing, keep_names, matched_counts

Array = NDArray[Any]
# Arguments of `fit` that messages about unknown ones do not list.
_NOT_LISTED = ("layer", "raw", "source")
# Attributes of a different fit, or of batches, which a fit deletes.
_OF_ANOTHER = {
    "topic_names_", "from_table_", "n_batch_iter_", "n_samples_seen_", "mean_counts_",
    "mean_loadings_", "measured_share_",
}  # fmt: skip


class CountInputs:
    """What estimators do with counts before they use them."""

    components_: Array
    dtype: Any
    feature_names_in_: Array
    n_features_in_: int
    topic_names_: Array
    integer: str
    memory_limit: float | str | None
    n_components: int
    n_threads: int | None

    # arguments of methods for new samples on what was measured
    _of_entries: ClassVar[frozenset[str]] = frozenset()
    # whether a fit uses the weights of features that counts have
    weighs_features: ClassVar[bool] = False
    # mask of the features of the fit in a restricted copy
    _features: Array | None = None
    _taken: Any

    def _take_names(self, X: Any, counts: CountMatrix) -> None:
        """Keep the names and totals of the counts of a fit."""
        keep_names(self, X, counts)
        self.sample_names_, self.obs_ = counts.sample_names, counts.obs
        self._take_totals(counts)
        for name in _OF_ANOTHER & vars(self).keys():
            delattr(self, name)

    def _take_totals(self, counts: CountMatrix) -> None:
        """Keep the totals of the counts of a fit."""
        self.sample_totals_ = np.array(counts.row_totals, np.float64)
        self.feature_totals_ = np.array(counts.column_totals, np.float64)

    def _check_reading(self, reading: Mapping[str, Any]) -> None:
        """Refuse an unknown option of those that say what to read."""
        model: Any = self
        if "batch" in reading:  # of a model whose fit has no such argument
            raise TypeError(why_no_batches(type(self).__mro__))
        check_source(
            reading, type(self).__name__, model.get_params(deep=False),
            [name for name in signature(model.fit).parameters if name not in _NOT_LISTED],
        )  # fmt: skip

    def _read(self, X: Any, reading: Mapping[str, Any], in_memory: bool = True) -> CountMatrix:
        return open_counts(
            X, integer=cast(Any, self.integer), subject=type(self).__name__,
            in_memory=in_memory and self.memory_limit is None, memory_limit=self.memory_limit,
            **reading,
        )  # fmt: skip

    def _arranged(self, X: Any, options: Mapping[str, Any]) -> tuple[Self, CountMatrix, Any]:
        """Return counts of samples with the features of the model that is returned, and the client.

        The model is this one or, with ``missing="restrict"``, a copy with the features that `X`
        has. The copy keeps the options on what was measured.
        """
        reading = dict(options)
        missing, client = reading.pop("missing"), reading.pop("client")
        entry_options = {name: reading.pop(name) for name in self._of_entries}
        self._check_reading(reading)
        check_missing(missing)
        weights = entry_options.get("data_weights")
        counts, client = self._read_for(X, client, reading | {"nan": is_nan(weights)})
        weights = given_weights(counts, weights)
        missing = default_missing(self, counts) if missing is None else missing
        counts, there = matched_counts(self, with_names(X, counts, reading), counts, missing)
        model = self if there is None else self._restricted(there)
        counts = model._explained(counts)
        model, counts = model._knowing(
            counts, entry_options | {"data_weights": weights, "client": client}
        )
        return model, counts, client

    def _read_for(self, X: Any, client: Any, reading: dict[str, Any]) -> tuple[CountMatrix, Any]:
        """Return counts as they are given, and the client that works on them, or None."""
        in_memory = resolve_client(client) is None
        counts = self._read(X, reading, in_memory=in_memory)
        return counts, None if in_memory else client_for(counts, client)

    def _knowing(
        self, counts: CountMatrix, entry_options: dict[str, Any]
    ) -> tuple[Self, CountMatrix]:
        """Return the model, or a copy with what was measured in these counts, and the counts.

        Counts of missing entries are left out.
        """
        self._check_unmeasured(counts)
        return self, counts

    def _check_unmeasured(self, counts: CountMatrix) -> None:
        """Refuse counts with unmeasured entries, if this model would take them as 0."""
        refuse_unmeasured(
            counts, type(self).__name__,
            "Join files by join='inner', or fit a PoissonNMF, TopicModel or GammaPoisson, which "
            "leave out what was not measured.",
        )  # fmt: skip

    def _check_feature_weights(self, counts: CountMatrix) -> None:
        """Refuse weights of features, if a fit of this model would ignore them."""
        if counts.feature_weights is not None and not self.weighs_features:
            raise ValueError(
                f"X has weights of features, such as those of modalities, and a fit of "
                f"{type(self).__name__} has no such weights: fit a PoissonNMF or TopicModel, or "
                "give modality_weights='counts', so that all counts have the same weight."
            )

    def _restricted(self, features: Array) -> Self:
        """Return a copy restricted to a mask of features (m,); loadings keep their meaning."""
        restricted = self._taken("m", np.flatnonzero(features))
        restricted.n_features_in_ = int(features.sum())
        restricted._features = features
        return restricted

    def _explained(self, counts: CountMatrix) -> CountMatrix:
        """Return counts without the features that had no counts in the fit.

        Their factors are zero, or come from the prior alone: the effect of such counts on loadings
        would depend on a floor, or on the sizes of the topics.
        """
        unseen = ~self.components_.any(axis=0) | getattr(self, "unseen_features_", False)
        return leave_out(counts, unseen, "of which the fit had none")

    def threads_for(self, counts: CountMatrix) -> int:
        """Return the number of threads for these counts, by default fewer if they are small."""
        return resolve_threads(self.n_threads, counts.nnz * self.n_components)


def with_names(X: Any, counts: CountMatrix, reading: Mapping[str, Any]) -> Any:
    """Return X, or its counts if options have changed its names or chosen a part of it."""
    changed = (*NAMES, *MASKS)
    return counts if any(reading.get(name) is not None for name in changed) else X


def client_for(counts: CountMatrix, client: Any) -> Any:
    """Return the client that works on counts: the active one is for counts in files only."""
    return client if client is not None or not counts.from_file else resolve_client(None)
