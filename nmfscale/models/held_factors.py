"""Loadings and scores of rows of counts, with the factors of a Poisson NMF held fixed."""

from __future__ import annotations

import copy
import math
import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..counts.base import CountMatrix
from ..counts.warn import warn_caller
from ..methods.poisson.priors import gamma_prior
from ..methods.rows_pass import RowsPass
from ..methods.transform import projection, projection_needs
from .base import CountModel
from .validation import measured_features, sizes_of

Array = NDArray[Any]


class HeldFactors(CountModel):
    """Base of models whose loadings are those of a Poisson NMF with fixed factors."""

    prior_loadings: Any

    def transform(
        self,
        X: Any,
        out: str | os.PathLike[str] | None = None,
        *,
        size_factors: ArrayLike | None = None,
        measured: ArrayLike | None = None,
        batch: ArrayLike | None = None,
        missing: str = "error",
        client: Any = None,
        layer: str | None = None,
        raw: bool = False,
    ) -> Array:
        """Return the loadings of old or new samples, with the factors held fixed.

        Every sample is a convex problem of its own and is solved to high accuracy: its loadings do
        not depend on the other samples, but for rounding where some have counts above 65,535.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        out : str or path-like, default=None
            File ending in ``.npy`` to write the loadings to, a block of samples at a time: they
            are then never in memory as a whole. It appears whole or not at all; an existing file
            is replaced.
        size_factors : array-like of shape (n_samples,), default=None
            Known sizes, as in :meth:`fit`.
        measured, batch
            Which features of the fit were measured in which samples of `X`, as in :meth:`fit`.
        missing : {"error", "restrict", "zero"}, default="error"
            What becomes of features of the fit that `X` lacks. "error" refuses them. "restrict" is
            for features that were not measured, such as genes of another assay: they take no part,
            and loadings are those with which the others are explained best. "zero" is for features
            whose absence means a count of 0, such as words of texts with a vocabulary of their own.
        client : distributed.Client, default=None
            Cluster that does the work, as in :meth:`fit`, with the bits of this process. None takes
            the active client for counts in files. The loadings come back a block at a time.
        layer, raw
            As in :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Loadings: float32 for counts in float32 unless `dtype` says otherwise, else float64.
            With `out`, a read-only memory map of the file.

        Raises
        ------
        ValueError
            If the counts or sizes are not valid, features of the model are missing, or `out` is no
            name of such a file.
        MemoryLimitError
            If `memory_limit` is not enough, or for counts in a file the memory that is free.
        FileNotFoundError
            If the folder of `out` does not exist.
        ClusterError
            If the cluster cannot do the work, as in :meth:`fit`.

        Warns
        -----
        UserWarning
            If features had to be matched by name, or one side has no names; if there are counts of
            features that had none in the fit (``unseen_features_``): they are left out.

        Notes
        -----
        Where the fit and `X` both have names of features, those of `X` are brought into the order
        of the fit and others are left out, with the bits of counts that had them so. A DataFrame
        may have more columns; one that has the columns of the fit in another order is refused, as
        scikit-learn demands of every estimator: give ``X[model.feature_names_in_]``. Without names,
        features are taken in the order of the fit.

        With ``missing="restrict"`` the expected count of a sample is that of the features that `X`
        has. Loadings mean what they mean elsewhere: amounts of whole topics, and for a
        :class:`TopicModel` their shares, of the counts that all features of the fit would have. A
        topic with few counts among the features that are there has less certain loadings, and one
        with none has loadings of 0.

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
        known = {"measured": measured, "batch": batch}
        return self._transform(
            X, out, missing, client, layer, raw, known, size_factors=size_factors
        )

    def score(
        self,
        X: Any,
        y: Any = None,
        *,
        completion: float | None = None,
        random_state: Any = None,
        measured: ArrayLike | None = None,
        batch: ArrayLike | None = None,
        missing: str = "error",
        client: Any = None,
        layer: str | None = None,
        raw: bool = False,
    ) -> float:
        """Return the mean log-probability of a count under the model: see :meth:`LDA.score`.

        Parameters
        ----------
        X, y, completion, random_state, missing, client, layer, raw
            As in :meth:`LDA.score`.
        measured, batch
            As in :meth:`transform`. Probabilities are those of a count among the features that were
            measured in a sample.

        Returns
        -------
        float
            As :meth:`LDA.score` without posteriors.

        Raises
        ------
        ValueError, MemoryLimitError, ClusterError
            As :meth:`transform` and :meth:`LDA.score`.

        Examples
        --------
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = TopicModel(n_components=2, random_state=0).fit(X)
        >>> round(model.score(X), 2), round(model.perplexity(X), 2)
        (-0.88, 2.4)
        """
        known = {"measured": measured, "batch": batch}
        return self._score(X, completion, random_state, missing, client, layer, raw, known)

    def perplexity(
        self,
        X: Any,
        *,
        completion: float | None = None,
        random_state: Any = None,
        measured: ArrayLike | None = None,
        batch: ArrayLike | None = None,
        missing: str = "error",
        client: Any = None,
        layer: str | None = None,
        raw: bool = False,
    ) -> float:
        """Return ``exp(-score(X))``, the perplexity of a count; lower is better: see :meth:`score`.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        completion, random_state, measured, batch, missing, client, layer, raw
            As in :meth:`score`.

        Returns
        -------
        float
            At least 1.

        Raises
        ------
        ValueError, MemoryLimitError, ClusterError
            As :meth:`score`.
        """
        known = {"measured": measured, "batch": batch}
        score = self._score(X, completion, random_state, missing, client, layer, raw, known)
        return float(np.exp(-score))

    def _knowing(self, counts: CountMatrix, known: dict[str, Any]) -> Self:
        measured, batch = known.get("measured"), known.get("batch")
        of_fit = getattr(self, "measured_", None)
        if measured is None and of_fit is not None and self._features is None:
            warn_caller(
                f"{type(self).__name__} was fitted with measured=, and nothing says what was "
                "measured in X: all features are taken as measured in all samples. Pass measured= "
                "and batch= as to fit, or measured=[True, True, ...] if that is so."
            )
        found = measured_features(counts, measured, batch)
        if found is None:
            return self
        if self._features is not None:
            raise ValueError(
                "measured says which features X lacks: give missing='zero' for those of which it "
                "has no column."
            )
        found.check(counts)
        model = copy.copy(self)
        model._measured = found
        return model

    def _pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, size_factors: ArrayLike | None = None,
        **given: Any,
    ) -> RowsPass:  # fmt: skip
        sizes = sizes_of(size_factors, counts)

        def loadings(rows: slice, L: Array) -> Array:
            if sizes is not None:
                L /= sizes[rows, None].astype(L.dtype)
            return self._loadings_of(L)

        return self._projection(counts, sizes, gathered=gathered).then(loadings)

    def _log_probability(self, counts: CountMatrix, client: Any) -> float:
        found = self._projection(counts, None, gathered=False, scored=True)
        return math.fsum(found.gather(**self._where(client)))

    def _projection(
        self, counts: CountMatrix, sizes: Array | None, *, gathered: bool, scored: bool = False
    ) -> RowsPass:
        """Return the projection of counts onto the factors, after a check of its memory."""
        n_threads = self._threads(counts)
        needs = projection_needs(counts, self.n_components_)
        self._check_memory(counts, needs, gathered=gathered)
        shape = counts.shape[0], self.n_components_
        F, unit = self._held()
        if sizes is not None:
            unit = unit * sizes[:, None]
        prior = gamma_prior(
            self.prior_loadings, shape, "prior_loadings", unit=unit, names=counts.sample_names
        )
        return projection(
            counts, F, n_threads=n_threads, prior=prior, measured=self._measured, scored=scored
        )

    def _loadings_of(self, L: Array) -> Array:
        """Convert the loadings of a Poisson NMF into those of this model."""
        raise NotImplementedError

    def _held(self) -> tuple[Array, Array | float]:
        """Return F as `transform` uses it, and by which factor this scales the loadings.

        The prior is that of the loadings of the fit.
        """
        raise NotImplementedError
