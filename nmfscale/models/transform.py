"""Loadings and scores of rows of counts."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from numbers import Real
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from ..counts.argument_types import Client, CountsLike
from ..counts.base import CountMatrix
from ..counts.foreign import imported_pandas
from ..counts.names import shown
from ..counts.short_samples import warn_of_empty_samples
from ..engine import progress
from ..engine.memory import check_stream
from ..engine.protocol import Needs
from ..engine.threads import resolve_threads
from ..kernels import dense
from ..kernels.functions import exp
from ..methods.projection.completion import log_shares, split_counts
from ..methods.projection.transform import write_array
from ..methods.weights.poisson_weights import Observed
from ..readers.open import as_counts
from .arguments.fit_options import SampleOptions, ScoreOptions, with_options
from .arguments.inputs import CountInputs, with_names
from .arguments.validation import npy_target
from .hooks import LoadingsHooks

Array = NDArray[Any]

# Rows of expected counts that are computed at a time.
_ROWS = 1 << 12


def check_completion(share: float | None) -> None:
    """Refuse a share of held-out counts that is not between 0 and 1, nor None."""
    if not (share is None or isinstance(share, Real) and 0 < share < 1):
        raise ValueError(
            f"completion={shown(share)}: the share of the counts that is held out is needed, a "
            "number between 0 and 1."
        )


class RowsTransformer(
    LoadingsHooks, CountInputs, ClassNamePrefixFeaturesOutMixin, TransformerMixin
):  # fmt: skip
    """Loadings of rows of counts with ``components_`` held fixed, and scores."""

    verbose: int

    # what is known of the entries of the counts that a copy is for
    _measured: Observed | None = None

    # scikit-learn would treat it as metadata that pipelines route.
    __metadata_request__transform = {"out": UNUSED}

    @with_options(SampleOptions)
    def transform(
        self,
        X: CountsLike,
        out: str | os.PathLike[str] | None = None,
        **options: Unpack[SampleOptions],
    ) -> Array:
        """Return the loadings of old or new samples, with the topics held fixed.

        The loadings of a sample do not depend on the other samples, except for rounding if some
        samples have counts above 65,535.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`; features are matched by name as in :meth:`PoissonNMF.transform`.
        out : str or path-like, default=None
            File for the loadings, as in :meth:`PoissonNMF.transform`.
        missing : {"error", "restrict", "zero"}, default=None
            How to treat features of the fit that `X` lacks, as in :meth:`PoissonNMF.transform`.
        client : distributed.Client, default=None
            Cluster that does the work, as in :meth:`PoissonNMF.transform`.
        layer, raw, **source
            As in :meth:`fit`.

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
        >>> from nmfscale import LDA
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> LDA(n_components=2, random_state=0).fit(X).transform(X).sum(axis=1).round(6)
        array([1., 1., 1., 1.])
        """
        return self._transform(X, out, options)

    def _transform(
        self, X: Any, out: str | os.PathLike[str] | None, options: Mapping[str, Any],
        **arguments: Any,
    ) -> Array:  # fmt: skip
        check_is_fitted(self)
        target = None if out is None else npy_target(out)
        model, counts, client = self._arranged(X, options)
        warn_of_empty_samples(counts, "loadings")
        with progress.shown(self.verbose, "transform", counts.shape[0]):
            loadings = model._loadings(counts, target, client=client, **arguments)
        return self._with_index(loadings, with_names(X, counts, options), counts)

    def _with_index(self, loadings: Array, X: Any, counts: CountMatrix) -> Any:
        """Return loadings with the index of X, in the container that scikit-learn was set to.

        scikit-learn uses the index of a DataFrame, but not names in AnnData and files.
        """
        asked = _get_output_config("transform", self)["dense"]
        if asked != "pandas" or hasattr(X, "iloc"):
            return loadings
        pd = imported_pandas("loadings as a DataFrame")

        return pd.DataFrame(loadings, index=counts.sample_names)

    def _loadings(
        self, counts: CountMatrix, target: Path | None = None, *, dtype: Any = None,
        client: Any = None, **arguments: Any,
    ) -> Array:  # fmt: skip
        shape = counts.shape[0], self.n_components_
        dtype = self._result_type(counts) if dtype is None else np.dtype(dtype)
        rows_pass = self.pass_of_loadings(counts, gathered=target is None, **arguments)
        with closing(rows_pass.blocks(**self.where_to_run(client))) as blocks:
            if target is not None:
                write_array(target, shape, dtype, (of_block for _, of_block in blocks))
                return np.lib.format.open_memmap(target, mode="r")
            loadings = np.empty(shape, dtype)
            for rows, of_block in blocks:
                loadings[rows] = of_block
        return loadings

    def where_to_run(self, client: Client) -> dict[str, Any]:
        """Return arguments of `blocks` and `gather` of a `RowsPass`: where the work is done."""
        return {"client": client, "n_threads": self.n_threads, "verbose": self.verbose}

    def _result_type(self, counts: CountMatrix) -> np.dtype[Any]:
        """Return the type of loadings: float32 if requested, or if counts are float32."""
        single = counts.dtype if self.dtype is None else self.dtype
        return np.dtype(np.float32 if np.dtype(single) == np.float32 else np.float64)

    def _weighted(self, counts: CountMatrix) -> CountMatrix:
        """Return counts times the weights of their entries, if they have any."""
        return counts if self._measured is None else self._measured.weighted(counts)

    def _log_weights(self, weighted: CountMatrix) -> Array | float:
        """Return sums of w x log w over each row of weighted counts, (n,), 0 without weights.

        Efficiencies count as weights.
        """
        return 0.0 if self._measured is None else self._measured.log_weights(weighted)

    def completion_loadings(self, counts: CountMatrix) -> Array:
        """Return the loadings, fitted to the seen counts, that score the held-out counts."""
        return self._loadings(counts, dtype=np.float64)

    @with_options(ScoreOptions)
    def score(
        self, X: CountsLike, y: ArrayLike | None = None, **options: Unpack[ScoreOptions]
    ) -> float:
        """Return the mean log-probability of a count under the model.

        Loadings are fitted to `X` itself. With `completion` they are fitted to a part of its
        counts, and the remaining counts are scored (document completion): this score shows how many
        components the counts support.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        y : None
            Ignored.
        completion : float, default=None
            Share of the counts that is held out and scored, between 0 and 1. Every count is split
            at random (binomial thinning), which requires whole counts. Samples without seen counts
            are left out.
        random_state : int, RandomState instance or None, default=None
            Determines how counts are split.
        missing : {"error", "restrict", "zero"}, default=None
            As in :meth:`transform`. With "restrict", probabilities of a count refer to the features
            that `X` has.
        client : distributed.Client, default=None
            Cluster that does the work, as in :meth:`PoissonNMF.transform`. With `completion` the
            work is done in this process: a single stream of random numbers splits the counts,
            sample after sample.
        layer, raw, **source
            As in :meth:`fit`.

        Returns
        -------
        float
            ``sum_ij x_ij log p_ij / sum_ij x_ij`` with ``p_ij = mu_ij / sum_j mu_ij``: the
            multinomial log-likelihood without its combinatorial constant, per count. For models
            with posteriors of samples it is their evidence lower bound per count, except with
            `completion`, which scores held-out counts by the former. Higher is better; 0 if there
            are no counts.

        Raises
        ------
        ValueError
            As in :meth:`transform`; also if `completion` is not between 0 and 1, or counts are not
            whole.
        MemoryLimitError, ClusterError
            As in :meth:`transform`.

        Notes
        -----
        Counts of features without counts in the fit are impossible in a model without a prior. They
        are left out of the loadings and of the score, and a warning gives their number: scores are
        comparable between models that were fitted to the same samples. A feature that occurs in few
        samples of the fit can have almost no probability in the other topics: a prior such as
        ``prior_factors=1.01`` smooths the topics.

        Without `completion` the score always increases with the number of components, even for new
        samples. Document completion is compared with other methods in [1]_.

        References
        ----------
        .. [1] Wallach, Murray, Salakhutdinov, Mimno (2009). Evaluation methods for topic models.
           International Conference on Machine Learning 26, section 4.

        Examples
        --------
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = TopicModel(n_components=2, random_state=0).fit(X)
        >>> round(model.score(X), 2), round(model.perplexity(X), 2)
        (-0.88, 2.4)
        >>> model.score(X, completion=0.5, random_state=0) < 0
        True
        """
        return self._score(X, options)

    def _score(self, X: Any, options: Mapping[str, Any]) -> float:
        others = dict(options)
        completion, random_state = others.pop("completion"), others.pop("random_state")
        check_is_fitted(self)
        check_completion(completion)
        model, counts, client = self._arranged(X, others)
        if completion is None and counts.total == 0:
            return 0.0
        with progress.shown(self.verbose, "score", counts.shape[0]):
            if completion is not None:
                return model._completion(counts, completion, check_random_state(random_state))
            return model._whole_score(counts, client)

    def _whole_score(self, counts: CountMatrix, client: Any) -> float:
        """Return the score of counts that are not all 0, with loadings fitted to them."""
        counts = self._weighted(counts)
        return self.log_probability(counts, client) / counts.total

    def _completion(self, counts: CountMatrix, share: float, rng: Any) -> float:
        logs: list[float] = []
        total, n_threads = 0.0, self.threads_for(counts)
        for model, L, held in self._halves(counts, share, rng):
            scored = model._weighted(as_counts(held))
            logs.extend(log_shares(scored, L, self.completion_factors, n_threads, model._measured))
            total += scored.total
        return math.fsum(logs) / total if total else 0.0

    def _halves(
        self, counts: CountMatrix, share: float, rng: Any
    ) -> Iterator[tuple[Any, Array, Any]]:
        """Yield this model, loadings fitted to seen counts, and held-out counts, for some rows.

        Rows without seen counts are left out; the model knows what these rows measured.
        """
        if not counts.is_integer:
            raise ValueError(
                f"completion={share}: only whole counts can be split, and X has fractional counts: "
                f"{counts.first_fraction}."
            )
        for rows in counts.chunks():
            seen, held = split_counts(rows, counts.shape[1], share, rng)
            filled = seen.sum(axis=1) > 0
            if not filled.any():
                continue
            model = self
            if self._measured is not None:
                model = copy.copy(self)
                model._measured = self._measured.rows(rows.first + np.flatnonzero(filled))
            yield model, model.completion_loadings(as_counts(seen[filled])), held[filled]

    @with_options(ScoreOptions)
    def perplexity(self, X: CountsLike, **options: Unpack[ScoreOptions]) -> float:
        """Return ``exp(-score(X))``, the perplexity of a count; lower is better: see :meth:`score`.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        completion, random_state, missing, client, layer, raw, **source
            As in :meth:`score`.

        Returns
        -------
        float
            At least 1.

        Raises
        ------
        ValueError, MemoryLimitError, ClusterError
            As in :meth:`transform`.
        """
        return float(exp(-self._score(X, options)))

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Return expected counts, ``X @ components_``, from loadings.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_components)
            Loadings.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Dense: expected counts for :class:`PoissonNMF` and :class:`NoisyTopicModel`, expected
            frequencies, which sum to one, for other topic models.

        Raises
        ------
        ValueError
            If `X` is not a matrix with a column for each component.

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
        times = dense.of_sparse if sp.issparse(X) else dense.product
        loadings = sp.csr_array(X) if sp.issparse(X) else loadings
        expected = np.empty(
            (loadings.shape[0], self.components_.shape[1]),
            np.result_type(loadings.dtype, self.components_.dtype, np.float32),
        )
        n_threads = resolve_threads(getattr(self, "n_threads", None))
        for first in range(0, len(expected), _ROWS):  # not all in float64 at once
            here = slice(first, first + _ROWS)
            expected[here] = times(loadings[here], self.components_, n_threads=n_threads)
        return expected

    @property
    def n_components_(self) -> int:
        """Number of components."""
        return int(self.components_.shape[0])

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def check_memory(self, counts: CountMatrix, needs: Needs, *, gathered: bool) -> None:
        """Raise an error if the loadings of counts do not fit in memory.

        `needs` is the memory of the pass; `gathered` says whether all loadings will be in memory.
        """
        if self.memory_limit is None and not counts.from_file:
            return
        n_bytes = counts.shape[0] * self.n_components_ * self._result_type(counts).itemsize
        check_stream(
            counts, needs, self.memory_limit, gathered=n_bytes if gathered else 0,
            n_threads=self.threads_for(counts),
        )  # fmt: skip
