"""What a model knows of the entries of samples: what was measured, weights, efficiencies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.label_totals import totals_of_labels
from ..counts.warn import warn_caller
from ..kernels import dense
from ..methods.poisson.objective import BATCH_SHAPE
from ..methods.projection.new_batches import new_efficiencies
from ..methods.weights.feature_weights import FeatureWeights
from ..methods.weights.measured import Measured, SampleEfficiencies
from ..methods.weights.poisson_weights import Observed, PoissonWeights
from .arguments.batches import (
    Batches,
    Pairs,
    codes_beside,
    has_efficiencies,
    refuse_batches,
    warn_of_batches,
    warn_of_small_shape,
)
from .arguments.entry_weights import observed_counts
from .arguments.measured_entries import (
    check_missing_entries,
    has_samples_of_fit,
    measured_counts,
    rows_of_fit,
)
from .arguments.validation import measured_features
from .fitted import Fitted
from .transform import RowsTransformer

Array = NDArray[Any]


class KnownEntries(RowsTransformer):
    """Models that know which features were measured in samples, and their efficiencies there."""

    batches_: Any
    batch_: Any
    batch_efficiencies_: Any
    batch_shape_: Any

    def _check_unmeasured(self, counts: CountMatrix) -> None:
        """Accept them: entries that were not measured are left out of the likelihood."""

    def _measured_of_fit(self, counts: CountMatrix, measured: Any, panel: Any) -> Measured | None:
        """Return what was measured in the counts of a fit, None if that is everything."""
        if measured is None and panel is None and counts.measured is not None:
            measured, panel = counts.measured  # of an outer join
        return measured_features(counts, measured, panel)

    def _knowing(
        self, counts: CountMatrix, entry_options: dict[str, Any]
    ) -> tuple[Self, CountMatrix]:
        measured, panel = entry_options.get("measured"), entry_options.get("panel")
        of_fit = getattr(self, "measured_", None)
        data_weights = entry_options.get("data_weights")
        if measured is None and panel is None and data_weights is None:
            measured, panel = measured_counts(self, counts).measured or (None, None)
        elif measured is None and panel is None and counts.measured is not None:
            measured, panel = counts.measured
        seen = measured_features(counts, measured, panel)
        counts, entries = observed_counts(counts, data_weights, seen)
        if entries is not None:
            of_batches = self._efficiencies_in(counts, entries, entry_options)
            return self._with_observed(replace(entries, efficiencies=of_batches)), counts
        if data_weights is None:
            check_missing_entries(self, counts)
        # joined modalities say which of them a sample lacks
        is_silent = counts.modalities is None and (
            self._features is None or has_samples_of_fit(self, counts)
        )
        if measured is None and of_fit is not None and is_silent:
            warn_caller(
                f"{type(self).__name__} was fitted with measured=, and nothing says what was "
                "measured in X: all features are taken as measured in all samples. Pass measured= "
                "and panel= as to fit, or measured=[True, True, ...] if that is so."
            )
        if seen is not None and self._features is not None:
            raise ValueError(
                "measured says which features X lacks: give missing='zero' for those of which it "
                "has no column."
            )
        if seen is not None:
            seen.check(counts)
        efficiencies = self._efficiencies_in(counts, seen, entry_options)
        observed = seen if efficiencies is None else efficiencies
        if observed is None and self._feature_weights is not None:
            observed = Measured.everything(counts.shape)
        return self if observed is None else self._with_observed(observed), counts

    @property
    def _feature_weights(self) -> Array | None:
        """Weights of the features of the fit (m,), None if all are 1."""
        return getattr(self, "feature_weights_", None)

    def _with_observed(self, observed: Observed) -> Self:
        model, weights = copy.copy(self), self._feature_weights
        if weights is not None:
            if isinstance(observed, PoissonWeights):
                raise ValueError(
                    "data_weights cannot be combined with the weights of features that "
                    f"{type(self).__name__} was fitted with, such as those of modalities."
                )
            observed = FeatureWeights(observed, weights)
        model._measured = observed
        return model

    def _efficiencies_in(
        self, counts: CountMatrix, seen: Measured | PoissonWeights | None,
        entry_options: dict[str, Any],
    ) -> SampleEfficiencies | None:  # fmt: skip
        """Return the efficiencies of samples, None if they are 1 for all measured features.

        Those of batches that the fit did not have are estimated.
        """
        batch = entry_options.get("batch")
        if not has_efficiencies(self):
            refuse_batches(self, batch)
            return None
        labels = self.batches_
        if batch is None and not len(labels):  # a prior for new batches alone
            return None
        if batch is None:
            rows = rows_of_fit(self, counts)
            if rows is None:
                warn_of_batches(self)
                return None
            codes, n_new = self.batch_[rows], 0
        else:
            codes, n_new = codes_beside(labels, counts, batch)
        if (codes < 0).all():
            return None
        n_batches = len(labels) + n_new
        measured, entries = (None, seen) if isinstance(seen, PoissonWeights) else (seen, None)
        pairs = Pairs.of(np.where(codes < 0, n_batches, codes), measured, n_batches + 1)
        # the last row is that of samples without a label
        of_batches = np.ones((n_batches + 1, counts.shape[1]))
        of_batches[: len(labels)] = self.batch_efficiencies_
        if n_new:
            new = slice(len(labels), n_batches)
            of_batches[new] = self._new_efficiencies(
                counts, codes, pairs, of_batches, new, entries, entry_options.get("client")
            )
        return pairs.efficiencies(of_batches)

    def _new_efficiencies(
        self, counts: CountMatrix, codes: Array, pairs: Pairs, of_batches: Array, new: slice,
        entries: PoissonWeights | None, client: Any,
    ) -> Array:  # fmt: skip
        """Estimate the efficiencies of new batches, some rows of those of all batches, in place."""
        of_groups = np.arange(new.start, new.stop)[:, None] == pairs.batches
        loadings, F = self._loadings_in_turn(counts, client), self._expected_factors()

        def expected(efficiencies: Array) -> Array:
            of_batches[new] = efficiencies
            of_samples, n_groups = pairs.efficiencies(of_batches), len(pairs.batches)
            observed: Observed = of_samples
            if entries is not None:
                observed = replace(entries, efficiencies=of_samples)
            L = np.asarray(loadings(self._with_observed(observed)), np.float64)
            M = dense.product(dense.sums_of_groups(L, pairs.groups, n_groups), F.T)
            if isinstance(observed, PoissonWeights):
                M += observed.expected(L, F, n_groups)
            return dense.product(of_groups, M if pairs.features is None else M * pairs.features)

        counts = counts if entries is None else entries.weighted(counts)
        T = totals_of_labels(counts, codes - new.start, new.stop - new.start)
        return new_efficiencies(np.ascontiguousarray(T.T), self.batch_shape_, expected)

    def _expected_factors(self) -> Array:
        """Return factors (m, K) whose products with loadings are expected counts."""
        return np.asarray(self.components_.T, np.float64)

    def _loadings_in_turn(self, counts: CountMatrix, client: Any) -> Callable[[Any], Array]:
        """Return a function of a model with other efficiencies that returns its loadings (n, K)."""

        def loadings(model: Any) -> Array:
            rows_pass = model.pass_of_loadings(counts, gathered=True)
            L: Array = rows_pass.gather(**self.where_to_run(client))
            return L

        return loadings

    def _keep_batches(self, batches: Batches | None, fitted: Fitted) -> None:
        """Set the attributes of batches."""
        self.batches_ = self.batch_ = self.batch_efficiencies_ = self.batch_shape_ = None
        if batches is None:
            return
        self.batches_, self.batch_ = batches.labels, batches.codes
        ones = np.ones((len(batches.labels), self.components_.shape[1]))
        self.batch_efficiencies_ = fitted.arrays.get("efficiencies", ones)
        self.batch_shape_ = float(fitted.arrays.get(BATCH_SHAPE, [np.inf])[0])
        if batches.shape is None:
            warn_of_small_shape(self.batch_shape_)

    def _keep_no_batch(self, shape: float | str) -> None:
        """Set the attributes of a model without batches, in which new ones have this prior."""
        self.batches_ = self.batch_ = self.batch_efficiencies_ = self.batch_shape_ = None
        if not isinstance(shape, str):
            self.batches_, self.batch_ = np.zeros(0, str), np.zeros(0, np.int64)
            self.batch_efficiencies_ = np.ones((0, self.components_.shape[1]))
            self.batch_shape_ = float(shape)
