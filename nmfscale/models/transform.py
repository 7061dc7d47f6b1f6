"""What estimators do with rows of counts: loadings, and how well they fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_is_fitted,
    validate_data,
)

from ..counts.base import CountMatrix
from ..engine.memory import check_stream
from ..engine.protocol import Needs
from ..engine.threads import resolve_threads
from ..methods.transform import write_array
from ..readers.open import as_counts
from .validation import npy_target

Array = NDArray[Any]


class RowsTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Loadings of rows of counts with ``components_`` held, and what follows of them.

    A model says with `_blocks` how they are found, and with `_log_probability` what they are worth.
    """

    components_: Array
    feature_names_in_: Array
    integer: str
    memory_limit: float | str | None
    n_threads: int | None

    # scikit-learn would take the file for something that pipelines pass on.
    __metadata_request__transform = {"out": UNUSED}

    def transform(self, X: Any, out: str | os.PathLike[str] | None = None) -> Array:
        """Return the loadings of samples, old or new, with the topics held.

        The loadings of a sample do not depend on the other samples, but for rounding where some
        have counts above 65,535.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        out : str or path-like, default=None
            File ending in ``.npy`` to write the loadings to, a block of samples at a time: they
            are then never in memory as a whole. It appears whole or not at all; an existing file
            is replaced.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Loadings, of the type of ``components_``; with `out` a read-only memory map of the file.

        Raises
        ------
        ValueError
            If the counts are not valid, the features are not those of the model, or `out` is no
            name of such a file.
        MemoryLimitError
            If `memory_limit` is not enough, or for counts in a file the memory that is free.
        FileNotFoundError
            If the folder of `out` does not exist.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = TopicModel(n_components=2, random_state=0).fit(X)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = model.transform(X, out=Path(folder, "loadings.npy"))
        ...     bool((written == model.transform(X)).all())
        True
        """
        return self._transform(X, out)

    def _transform(self, X: Any, out: str | os.PathLike[str] | None, **given: Any) -> Array:
        check_is_fitted(self)
        target = None if out is None else npy_target(out)
        return self._loadings(self._counts(X, reset=False), target, **given)

    def _loadings(self, counts: CountMatrix, target: Path | None = None, **given: Any) -> Array:
        shape, dtype = (counts.shape[0], self.n_components_), self.components_.dtype
        blocks = self._blocks(counts, gathered=target is None, **given)
        if target is not None:
            write_array(target, shape, dtype, (of_block for _, of_block in blocks))
            return np.lib.format.open_memmap(target, mode="r")
        loadings = np.empty(shape, dtype)
        for rows, of_block in blocks:
            loadings[rows] = of_block
        return loadings

    def _blocks(
        self, counts: CountMatrix, *, gathered: bool, **given: Any
    ) -> Iterator[tuple[slice, Array]]:
        """Rows of one block after the other, and their loadings; `given`: options of transform."""
        raise NotImplementedError

    def _log_probability(self, counts: CountMatrix) -> float:
        """Return the log-probability of counts, loadings fitted to them."""
        raise NotImplementedError

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-probability of a count under the model, loadings fitted to `X`.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        y : None
            Ignored.

        Returns
        -------
        float
            ``sum_ij x_ij log p_ij / sum_ij x_ij`` with ``p_ij = mu_ij / sum_j mu_ij``: the
            multinomial log-likelihood without its combinatorial constant, per count. Where samples
            have posteriors it is their evidence lower bound, per count. Higher is better; 0 if
            there are no counts.

        Raises
        ------
        ValueError, MemoryLimitError
            As :meth:`transform`.

        Notes
        -----
        A feature of `X` that the fit never saw has next to no probability in any topic: a few such
        counts can outweigh all others. A prior such as ``prior_factors=1.01`` smooths the topics.

        Since loadings are fitted to `X`, the score mostly goes on rising with the number of
        components, also for samples that the fit did not see: enough are as many as raise it much.

        Examples
        --------
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = TopicModel(n_components=2, random_state=0).fit(X)
        >>> round(model.score(X), 2), round(model.perplexity(X), 2)
        (-0.88, 2.4)
        """
        check_is_fitted(self)
        counts = self._counts(X, reset=False)
        if counts.total == 0:
            return 0.0
        return self._log_probability(counts) / counts.total

    def perplexity(self, X: Any) -> float:
        """Return ``exp(-score(X))``, the perplexity of a count; lower is better: see :meth:`score`.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.

        Returns
        -------
        float
            At least 1.

        Raises
        ------
        ValueError, MemoryLimitError
            As :meth:`transform`.
        """
        return float(np.exp(-self.score(X)))

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Return what loadings stand for, ``X @ components_``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_components)
            Loadings.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Dense: expected counts for :class:`PoissonNMF`, expected frequencies, which sum to one,
            for topic models.

        Raises
        ------
        ValueError
            If `X` is no matrix with a column for each component.

        Examples
        --------
        >>> from nmfscale import PoissonNMF
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = PoissonNMF(n_components=2, random_state=0).fit(X)
        >>> model.inverse_transform(model.transform(X))[0].round(2) + 0
        array([4., 0., 2., 0.])
        """
        check_is_fitted(self)
        loadings: Any = X if sp.issparse(X) else np.asarray(X)
        if loadings.ndim != 2 or loadings.shape[1] != self.components_.shape[0]:
            raise ValueError(
                f"X has shape {loadings.shape}; "
                f"loadings need (n_samples, {self.components_.shape[0]})."
            )
        return loadings @ self.components_

    @property
    def n_components_(self) -> int:
        """Number of components."""
        return int(self.components_.shape[0])

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _counts(self, X: Any, *, reset: bool, in_memory: bool = True) -> CountMatrix:
        counts = as_counts(
            X,
            integer=cast(Any, self.integer),
            whom=type(self).__name__,
            in_memory=in_memory and self.memory_limit is None,
            memory_limit=self.memory_limit,
        )
        names = counts.feature_names
        if hasattr(X, "columns"):
            validate_data(self, X, reset=reset, skip_check_array=True)
        else:
            _check_n_features(self, counts, reset=reset)
            self._check_names(names, reset)
        if reset:
            self.sample_names_ = counts.sample_names
        return counts

    def _check_names(self, names: Any, reset: bool) -> None:
        """Keep names of counts that are no table, or compare them where both sides have them."""
        if reset:
            if hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
            if names is not None:
                self.feature_names_in_ = np.asarray(names, dtype=object)
        elif names is None:
            _check_feature_names(self, names, reset=False)  # warns if the model has names
        elif hasattr(self, "feature_names_in_"):
            differ = np.flatnonzero(np.asarray(names, dtype=object) != self.feature_names_in_)
            if differ.size:
                at = int(differ[0])
                raise ValueError(
                    f"feature {at} is named {names[at]!r}, but {self.feature_names_in_[at]!r} "
                    "where the model was fitted: bring the features into the order of the fit."
                )

    def _check_memory(self, counts: CountMatrix, needs: Needs, *, gathered: bool) -> None:
        """Refuse loadings for which memory is short."""
        if self.memory_limit is None and not counts.from_file:
            return
        n_bytes = counts.shape[0] * self.n_components_ * self.components_.dtype.itemsize
        check_stream(
            counts, needs, self.memory_limit, gathered=n_bytes if gathered else 0,
            n_threads=resolve_threads(self.n_threads),
        )  # fmt: skip
