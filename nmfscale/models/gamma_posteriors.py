"""Gamma posteriors of a fit: their attributes, loadings and scores of samples."""

from __future__ import annotations

import os
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..counts.argument_types import Client, CountsLike
from ..counts.base import CountMatrix
from ..kernels.functions import exp
from ..methods.factors import LEAST
from ..methods.rows_pass import RowsPass
from ..methods.variational.gamma import GammaPrior
from ..methods.variational.gamma_poisson import drawn_priors, gamma_inference
from ..methods.variational.posteriors import Inference, inference_needs
from ..methods.weights.measured import SampleGroups
from .arguments.fit_options import (
    GroupOptions,
    GroupSampleOptions,
    GroupScoreOptions,
    with_options,
)
from .base import CountModel
from .fitted import Fitted
from .known_entries import KnownEntries

Array = NDArray[Any]


class GammaPosteriors(KnownEntries, CountModel):
    """Base of :class:`GammaPoisson`: its posterior after a fit, and new samples."""

    max_sample_update_iter: int
    mean_change_tol: float

    _of_entries = frozenset(GroupOptions.__annotations__)

    @with_options(GroupSampleOptions)
    def transform(
        self,
        X: CountsLike,
        out: str | os.PathLike[str] | None = None,
        **options: Unpack[GroupSampleOptions],
    ) -> Array:
        """Return the expected loadings of old or new samples, with the factors held fixed.

        The loadings of a sample do not depend on the other samples, except for samples of new
        batches, and for rounding if some samples have counts above 65,535.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`; features are matched by name as in :meth:`PoissonNMF.transform`.
        out, measured, panel, batch, missing, client, layer, raw, **source
            As in :meth:`PoissonNMF.transform`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Loadings, of the type that :meth:`PoissonNMF.transform` returns. With `out`, a
            read-only memory map of the file.

        Raises
        ------
        ValueError, MemoryLimitError, FileNotFoundError, ClusterError
            As in :meth:`PoissonNMF.transform`, which also lists the warnings.

        Examples
        --------
        >>> from nmfscale import GammaPoisson
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> GammaPoisson(n_components=2, random_state=0).fit(X).transform(X).shape
        (4, 2)
        """
        return self._transform(X, out, options)

    @with_options(GroupScoreOptions)
    def score(
        self, X: CountsLike, y: ArrayLike | None = None, **options: Unpack[GroupScoreOptions]
    ) -> float:
        """Return the evidence lower bound of samples per count: see :meth:`LDA.score`.

        Parameters
        ----------
        X, y, completion, random_state, missing, client, layer, raw, **source
            As in :meth:`LDA.score`.
        measured, panel, batch
            As in :meth:`PoissonNMF.score`. Efficiencies of batches are held.

        Returns
        -------
        float
            As in :meth:`LDA.score`.

        Raises
        ------
        ValueError, MemoryLimitError, ClusterError
            Those of :meth:`transform` and :meth:`LDA.score`.

        Examples
        --------
        >>> from nmfscale import GammaPoisson
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> GammaPoisson(n_components=2, random_state=0).fit(X).score(X) < 0
        True
        """
        return self._score(X, options)

    @with_options(GroupScoreOptions)
    def perplexity(self, X: CountsLike, **options: Unpack[GroupScoreOptions]) -> float:
        """Return ``exp(-score(X))``, the perplexity of a count; lower is better: see :meth:`score`.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        completion, random_state, measured, panel, batch, missing, client, layer, raw, **source
            As in :meth:`score`.

        Returns
        -------
        float
            At least 1.

        Raises
        ------
        ValueError, MemoryLimitError, ClusterError
            As in :meth:`score`.
        """
        return float(exp(-self._score(X, options)))

    def _keep(
        self, fitted: Fitted, of_rows: GammaPrior, of_columns: GammaPrior | None, dtype: Any
    ) -> None:
        arrays = fitted.arrays
        self.loadings_shape_, self.loadings_ = arrays["gamma"], arrays["theta"]
        self.components_shape_ = np.ascontiguousarray(arrays["lambda"].T)
        self.components_ = np.ascontiguousarray(
            arrays.get("beta", arrays["lambda"]).T.astype(dtype)
        )
        self.shape_loadings_, self.rate_loadings_ = np.array(of_rows.shape), of_rows.rate
        # None if not hierarchical
        self.shape_factors_: float | Array | None = None
        self.shape_rates_: Any = None
        self.mean_rates_: Any = None
        self.sample_rates_: Any = None
        self.feature_rates_: Any = None
        self.loadings_totals_: Any = None
        self.components_rates_: Any = None
        if of_rows.drawn is not None and of_columns is not None and of_columns.drawn is not None:
            self.sample_rates_, self.feature_rates_ = arrays["xi"], arrays["eta"][:, 0]
            c, totals = of_columns.shape, arrays["totals"]
            self.shape_factors_ = float(c[0]) if c.ndim == 1 else np.ascontiguousarray(c.T)
            if totals.ndim == 2:
                self.components_rates_ = np.ascontiguousarray(totals.T)
                totals = self.loadings_.sum(axis=0, dtype=np.float64)
            self.loadings_totals_ = totals
            shapes, rates = np.array([of_rows.drawn, of_columns.drawn]).T
            self.shape_rates_, self.mean_rates_ = shapes.copy(), shapes / rates
        self.elbo_ = fitted.objective

    def _restricted(self, features: Array) -> Self:
        restricted = super()._restricted(features)
        if self.shape_factors_ is None:  # otherwise their sums follow from the posterior
            restricted.loadings_totals_ = restricted.components_.sum(axis=1, dtype=np.float64)
        return restricted

    def _inference(self, counts: CountMatrix, *, gathered: bool) -> Inference:
        """Return how posteriors of new samples are found, unless memory is short of them."""
        self.check_memory(counts, inference_needs(counts, self.n_components_), gathered=gathered)
        priors: Any = GammaPrior(self.shape_loadings_, self.rate_loadings_), None
        if self.shape_factors_ is not None:
            of_factors: Any = self.shape_factors_
            if isinstance(of_factors, np.ndarray):
                of_factors = of_factors.T
            priors = drawn_priors(
                self.shape_loadings_, of_factors, self.shape_rates_, self.mean_rates_
            )
        observed: Any = self._measured
        groups: dict[str, Any] = {}
        if isinstance(observed, SampleGroups):
            of_groups = np.maximum(observed.group_sums(self._expected_factors()), LEAST)
            groups = {"groups": observed.groups, "of_groups": of_groups}
        totals = self.loadings_totals_
        if self.components_rates_ is not None:
            totals = self.components_rates_.T
        return gamma_inference(
            counts, self.components_shape_.T, totals, *priors,
            n_steps=self.max_sample_update_iter, tolerance=self.mean_change_tol,
            n_threads=self.threads_for(counts), **groups,
        )  # fmt: skip

    def pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, **arguments: Any
    ) -> RowsPass:
        return self._inference(counts, gathered=gathered).loadings

    def log_probability(self, counts: CountMatrix, client: Client) -> float:
        elbo = self._inference(counts, gathered=False).elbo(**self.where_to_run(client))
        return elbo + float(np.sum(self._log_weights(counts)))
