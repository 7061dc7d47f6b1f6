"""Loadings and scores of rows of counts, with the factors of a Poisson NMF held fixed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..counts.argument_types import Client, CountsLike
from ..counts.base import CountMatrix
from ..counts.warn import warn_caller
from ..kernels.functions import exp
from ..methods.poisson.priors import gamma_prior
from ..methods.projection.penalty import Penalty
from ..methods.projection.transform import projection, projection_needs
from ..methods.rows_pass import RowsPass
from .arguments.fit_options import (
    EntryOptions,
    EntrySampleOptions,
    EntryScoreOptions,
    with_options,
)
from .arguments.validation import sizes_of
from .base import CountModel
from .known_entries import KnownEntries

Array = NDArray[Any]


class HeldFactors(KnownEntries, CountModel):
    """Base of models whose loadings are those of a Poisson NMF with fixed factors."""

    prior_loadings: Any

    _of_entries = frozenset(EntryOptions.__annotations__)

    @with_options(EntrySampleOptions)
    def transform(
        self,
        X: CountsLike,
        out: str | os.PathLike[str] | None = None,
        *,
        size_factors: ArrayLike | None = None,
        **options: Unpack[EntrySampleOptions],
    ) -> Array:
        """Return the loadings of old or new samples, with the factors held fixed.

        Every sample is a separate convex problem, which is solved to high accuracy: its loadings do
        not depend on the other samples, except for samples of new batches (`batch`), and for
        rounding if some samples have counts above 65,535.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        out : str or path-like, default=None
            File ending in ``.npy`` to which the loadings are written, a block of samples at a time,
            so that they are never in memory as a whole. It is written atomically; an existing file
            is replaced.
        size_factors : array-like of shape (n_samples,), default=None
            Known sizes of samples, as in :meth:`fit`. By default samples have size 1, with a
            warning if the fit had sizes: loadings are then those of ``loadings_`` times the sizes.
        measured, panel
            Which features of the fit were measured in which samples of `X`, as in :meth:`fit`.
        batch : array-like of shape (n_samples,) or str, default=None
            Label of the batch of each sample, or the name of a column of ``obs``, as in
            :meth:`fit`. Features have the efficiencies ``batch_efficiencies_`` in the batches of
            the fit. In a batch that the fit did not have, they are estimated together with the
            loadings of all its samples, with the same prior: pass all samples of a new batch in one
            call. They are 1 in samples without a label (None or NaN), and if `batch` is None,
            unless `X` is the counts of the fit.
        data_weights : array-like of shape (n_samples, n_features), sparse or "nan", default=None
            Weights of the entries of `X`, as in :meth:`fit`, with a column for each of its
            features.
        missing : {"error", "restrict", "zero"}, default=None
            How to treat features of the fit that `X` lacks. "error" raises an error. "restrict" is
            for features that were not measured, such as genes missing in a different assay: they
            are left out, and loadings are those that best explain the remaining features. "zero" is
            for features whose absence means a count of 0, such as words of texts with a different
            vocabulary. None means "zero" if the model was fitted to words, or `X` holds words
            (``counts.of_text``), and "error" otherwise.
        client : distributed.Client, default=None
            Cluster that does the work, as in :meth:`fit`, with the same bits as in this process.
            None means the active client for counts in files. Loadings are returned block by block.
        layer, raw, **source
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Loadings: float32 for counts in float32 unless `dtype` is set, otherwise float64.
            With `out`, a read-only memory map of the file.

        Raises
        ------
        ValueError
            If the counts or sizes are not valid, features of the model are missing, or `out` does
            not end in ``.npy``.
        MemoryLimitError
            If `memory_limit` or, for counts in a file, the free memory is too small.
        FileNotFoundError
            If the folder of `out` does not exist.
        ClusterError
            If the cluster cannot do the work, as in :meth:`fit`.

        Warns
        -----
        UserWarning
            If features had to be matched by name, or only the fit or `X` has names; if there are
            counts of features that had none in the fit (``unseen_features_``), which are left out;
            if the fit had `size_factors`, none are given, and the loadings depend on them; if
            the fit had batches, and nothing says from which ones other samples are; if
            samples have no counts in features of the topics, such as texts without a known word:
            their loadings, 0 or those of the prior (1 / K in a TopicModel), say nothing about them.

        Notes
        -----
        If the fit and `X` both have names of features, the features of `X` are arranged in the
        order of the fit, and features that the fit does not have are left out. The result is the
        same to the bit as for counts in this order. A DataFrame may have more columns; one with the
        columns of the fit in a different order is refused, as scikit-learn requires of every
        estimator: pass ``X[model.feature_names_in_]``. Without names, features must be in the order
        of the fit.

        With ``missing="restrict"`` only the features that `X` has are fitted. Loadings keep their
        meaning: amounts of whole topics (for a :class:`TopicModel` their shares) in the counts that
        all features of the fit would have. The loadings of a topic with few counts among the
        available features are less certain; those of a topic with none are 0.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from nmfscale import PoissonNMF
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = PoissonNMF(n_components=2, random_state=0).fit(X)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = model.transform(X, out=Path(folder, "loadings.npy"))
        ...     bool((written == model.transform(X)).all())
        True
        """
        if size_factors is None and not self.loadings_are_proportions:
            self._warn_of_sizes("loadings are amounts of the counts and not those of loadings_")
        elif size_factors is None and self.prior_loadings is not None:
            self._warn_of_sizes("the prior has a different weight in the proportions")
        return self._transform(X, out, options, size_factors=size_factors)

    @with_options(EntryScoreOptions)
    def score(
        self, X: CountsLike, y: ArrayLike | None = None, **options: Unpack[EntryScoreOptions]
    ) -> float:
        """Return the mean log-probability of a count under the model: see :meth:`LDA.score`.

        Parameters
        ----------
        X, y, completion, random_state, missing, client, layer, raw, **source
            As in :meth:`LDA.score`.
        measured, panel, batch, data_weights
            As in :meth:`transform`. Probabilities of a count refer to the features that were
            measured in its sample, with the efficiencies of its batch. Those of a new batch are
            estimated from all of its counts, with `completion` from held-out ones, too. With
            weights of entries, the mean is over the counts times their weights, and ``p_ij = w_ij
            mu_ij / sum_j w_ij mu_ij``.

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
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = TopicModel(n_components=2, random_state=0).fit(X)
        >>> round(model.score(X), 2), round(model.perplexity(X), 2)
        (-0.88, 2.4)
        """
        return self._score(X, options)

    @with_options(EntryScoreOptions)
    def perplexity(self, X: CountsLike, **options: Unpack[EntryScoreOptions]) -> float:
        """Return ``exp(-score(X))``, the perplexity of a count; lower is better: see :meth:`score`.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        completion, random_state, measured, panel, batch, data_weights, missing, client, layer, raw
            As in :meth:`score`.
        **source
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

    def _score(self, X: Any, options: Mapping[str, Any]) -> float:
        self._warn_of_score()
        return super()._score(X, options)

    def _warn_of_sizes(self, effect: str) -> None:
        """Warn if the fit had sizes of samples, and new samples have none."""
        if getattr(self, "has_size_factors_", False):
            warn_caller(
                f"{type(self).__name__} was fitted with size_factors=, and samples of X have size "
                f"1: {effect}. Pass size_factors= to transform in Python, as to fit, or "
                "np.ones(n_samples) if all sizes are 1."
            )

    def _warn_of_score(self) -> None:
        """Warn where sizes of samples would change a score: only with a prior of the loadings."""
        if self.prior_loadings is not None and getattr(self, "has_size_factors_", False):
            warn_caller(
                f"{type(self).__name__} was fitted with size_factors= and prior_loadings=, and "
                "scores have no sizes: samples of X have size 1, for which the prior has a "
                "different weight. Compare scores of models without prior_loadings."
            )

    def pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, size_factors: ArrayLike | None = None,
        **arguments: Any,
    ) -> RowsPass:  # fmt: skip
        sizes = sizes_of(size_factors, counts)
        counts = self._weighted(counts)

        def loadings(rows: slice, L: Array) -> Array:
            if sizes is not None:
                L /= sizes[rows, None].astype(L.dtype)
            return self._loadings_of(L)

        return self._projection(counts, sizes, gathered=gathered).then(loadings)

    def log_probability(self, counts: CountMatrix, client: Client) -> float:
        rows_pass = self._projection(counts, None, gathered=False, scored=True)
        return math.fsum(rows_pass.gather(**self.where_to_run(client)) + self._log_weights(counts))

    def _expected_factors(self) -> Array:
        return np.asarray(self._held()[0], np.float64)

    def _loadings_in_turn(self, counts: CountMatrix, client: Any) -> Callable[[Any], Array]:
        L: Array | None = None

        def loadings(model: Any) -> Array:
            nonlocal L  # each time from the last ones
            weighted = model._weighted(counts)
            rows_pass = model._projection(weighted, None, gathered=True, start=L)
            L = rows_pass.gather(**self.where_to_run(client))
            return L

        return loadings

    def _projection(
        self, counts: CountMatrix, sizes: Array | None, *, gathered: bool, scored: bool = False,
        start: Array | None = None,
    ) -> RowsPass:  # fmt: skip
        """Return the projection of counts onto the factors, after a check of its memory."""
        n_threads = self.threads_for(counts)
        needs = projection_needs(counts, self.n_components_)
        self.check_memory(counts, needs, gathered=gathered)
        shape = counts.shape[0], self.n_components_
        F, unit = self._held()
        penalty = self._penalty_of(unit)
        if sizes is not None:
            unit = unit * sizes[:, None]
        prior = gamma_prior(
            self.prior_loadings, shape, "prior_loadings", unit=unit, names=counts.sample_names
        )
        return projection(
            counts, F, L=start, n_threads=n_threads, prior=prior, measured=self._measured,
            scored=scored, penalty=penalty,
        )  # fmt: skip

    def _penalty_of(self, unit: Array | float) -> Penalty | None:
        """Return the penalty on loadings that are divided by `unit`."""
        return None

    def _loadings_of(self, L: Array) -> Array:
        """Convert the loadings of a Poisson NMF into those of this model."""
        raise NotImplementedError

    def _held(self) -> tuple[Array, Array | float]:
        """Return F as `transform` uses it, and by which factor this scales the loadings.

        The prior is that of the loadings of the fit.
        """
        raise NotImplementedError
