"""Separable NMF by anchors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar, Self, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions

from ..counts.argument_types import Client, CountsLike
from ..counts.base import CountMatrix
from ..counts.names import of_features, of_samples
from ..counts.warn import warn_caller
from ..engine.protocol import Executor
from ..methods.anchors.search import AnchorSearch, anchor_loadings, anchor_needs, loadings_needs
from ..methods.projection.transform import projection, projection_needs
from ..methods.rows_pass import Finish, RowsPass
from ..methods.weights.weighting import CountWeighting, Weights, weights_of
from .arguments.fit_options import FitKeywords, FitOptions, with_options
from .arguments.parameters import estimator
from .arguments.validation import checked_anchors, checked_array
from .base import CountModel
from .fitted import Fitted

Array = NDArray[Any]

# Share of samples without loadings from which to warn.
_MANY = 0.1


@estimator
class AnchorNMF(CountModel):
    """Non-negative matrix factorization with anchors: one pass for each topic, no iterations.

    Every topic has an anchor, a feature that occurs in this topic only. Anchors are chosen one
    after the other: each is the feature whose counts are farthest from all combinations of earlier
    anchors (successive projection, which is QR with column pivots [1]_). All other features are
    then written as non-negative combinations of the anchors by least squares, a convex problem for
    each feature [2]_. So the result is unique, and the first anchors are the same for any number of
    topics.

    Topics have unit norm. Loadings, also of new samples, are the scaled counts of the anchors: a
    sample without any anchor has loadings 0.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics K.
    anchors : sequence of str or int, default=None
        Features, by name or number, to use as the first anchors; the fit finds the others.
    weighting : {"counts", "tf-idf", "documents"} or callable, default="counts"
        Weighting of the counts for the choice of anchors; topics always describe the unweighted
        counts. "counts" [2]_: no weighting; the first anchor is the feature with the largest norm.
        "documents" scales all samples to norm 1; "tf-idf" first multiplies feature j by ``log((1 +
        n) / (1 + n_j)) + 1``, where n_j is the number of samples with the feature. It is
        recommended for text: it chooses rarer words, and the topics predict held-out words better.
        A function is called with the counts and returns weights of samples (n,) and of features
        (m,), each an array or None.
    projection : int, default=None
        Number of dimensions, a few times `n_components`, of a Gaussian projection of the samples in
        which anchors are chosen: files are then read twice in all, instead of once for each anchor.
        A few anchors may differ.
    sketch_size : int, default=None
        Number of rows, a few times `n_components` or more, of a randomized Hadamard transform of
        the samples in which features are written as combinations of the anchors [3]_. Topics are
        then estimates, and `reconstruction_err_` is the error of these topics; see Notes. By
        default the combinations are exact.
    integer, dtype, n_threads, memory_limit, verbose, callback
        As in :class:`PoissonNMF`.
    random_state : int, RandomState instance or None, default=None
        Seed of the random numbers of `projection` and `sketch_size`; otherwise it is not used.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Topics, each of norm 1. There are fewer than `n_components` if the counts have a lower rank
        or the fit was interrupted.
    loadings_ : ndarray of shape (n_samples, n_components)
        Counts of the anchors in the fitted samples, divided by `diffuseness_`.
    anchors_ : ndarray of shape (n_components,), int64
        Numbers of the anchors, in the order in which they were chosen.
    anchor_names_ : ndarray of shape (n_components,), or None
        Names of the anchors, if features have names.
    distances_ : ndarray of shape (n_components,), float64
        Distance of the (weighted) counts of each anchor from all combinations of earlier anchors:
        the diagonal of R. Once they stop falling steeply, more topics add little.
    diffuseness_ : ndarray of shape (n_components,), float64
        Weight lambda_k of the anchor in its topic [2]_: 1 if the topic consists of its anchor only;
        smaller values mean a more diffuse topic.
    reconstruction_err_ : float
        Frobenius norm of the counts minus ``loadings_ @ components_``.
    history_ : structured ndarray
        One record for each anchor: ``iteration``, ``seconds`` since the start of the fit,
        ``spanned``, the share of the sum of squares of the (weighted) counts that the anchors so
        far span, ``residual``, the largest distance of a feature from their span, divided by the
        largest norm, and ``bytes_read`` from files so far.
    converged_ : bool
        Whether the fit was completed.
    interrupted_, stop_reason_, n_iter_, n_features_in_, feature_names_in_, sample_names_, \
obs_, sample_totals_, feature_totals_, unseen_features_, seed_, warnings_
        As in :class:`PoissonNMF`.

    Notes
    -----
    `sketch_size` is the method that [2]_ takes from [3]_: with high probability the residual of
    every feature is at most ``1 + e`` times the least one, where e falls with the square root of
    `sketch_size` over `n_components`. It does not save time here: the true error is computed from
    the same sums as exact combinations. In ``benchmarks/anchors.py``, with 3% of nonzero counts,
    sketches of 2, 4 and 10 rows for each of 100 anchors had residuals 5.6%, 3.2% and 1.4% above the
    least.

    References
    ----------
    .. [1] Gillis (2014). The why and how of nonnegative matrix factorization. In: Regularization,
       Optimization, Kernels, and Support Vector Machines.
    .. [2] Phelan. New perspectives on non-negative matrix factorization for grouped topic models.
    .. [3] Boutsidis, Drineas (2009). Random projections for the nonnegative least-squares problem.
       Linear Algebra and its Applications 431, 760-771.

    Examples
    --------
    >>> from nmfscale import AnchorNMF
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
    >>> model = AnchorNMF(n_components=2).fit(X)
    >>> model.anchors_
    array([0, 3])
    >>> model.inverse_transform(model.loadings_).round(6) + 0
    array([[4., 0., 2., 0.],
           [0., 3., 0., 6.],
           [8., 0., 4., 0.],
           [4., 3., 2., 6.]])
    """

    anchors: Sequence[int | str] | None = None
    weighting: CountWeighting | Callable[..., Any] = "counts"
    projection: int | None = None
    sketch_size: int | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": CountModel._parameter_constraints["n_components"],
        "anchors": ["array-like", None],
        "weighting": [StrOptions(set(get_args(CountWeighting))), callable],
        "projection": [Interval(Integral, 1, None, closed="left"), None],
        "sketch_size": [Interval(Integral, 1, None, closed="left"), None],
        **{
            name: CountModel._parameter_constraints[name]
            for name in ("integer", "dtype", "n_threads", "memory_limit", "random_state",
                         "verbose", "callback")
        },
    }  # fmt: skip
    method_class: ClassVar[type[AnchorSearch]] = AnchorSearch
    array_axes: ClassVar[dict[str, str]] = {
        "anchors_": "k",
        "anchor_names_": "k",
        "distances_": "k",
        "diffuseness_": "k",
    }
    why_not_merged = "each has one anchor"

    # Each anchor is an iteration; the fit ends early when all features have distance 0.
    n_init = 1
    tol, gain_tol = float(np.finfo(np.float64).tiny), 0.0

    @property
    def max_iter(self) -> int:  # type: ignore[override]
        """Maximum number of iterations: one for each anchor."""
        return self.n_components

    @with_options(FitKeywords)
    def fit(
        self, X: CountsLike, y: ArrayLike | None = None, **options: Unpack[FitKeywords]
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`PoissonNMF.fit`.
        y : None
            Ignored.
        checkpoint, checkpoint_every, resume, client, layer, raw, **source
            As in :meth:`PoissonNMF.fit`.

        Returns
        -------
        self : object
            Fitted.

        Raises
        ------
        ValueError
            If the counts or a parameter are not valid, all counts are 0, or given anchors are
            combinations of each other.
        OSError, MemoryLimitError, FloatingPointError, CheckpointError, ClusterError
            As in :meth:`PoissonNMF.fit`.

        Warns
        -----
        ConvergenceWarning
            If there are fewer anchors than requested because the counts have a lower rank, or
            Ctrl-C ended the fit. A second Ctrl-C raises KeyboardInterrupt at once.
        UserWarning
            If more than a tenth of the samples have counts but no anchor, so that all their
            loadings are 0; :meth:`transform` warns likewise.

        Examples
        --------
        A given anchor comes first:

        >>> from nmfscale import AnchorNMF
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> AnchorNMF(n_components=2, anchors=[1]).fit(X).anchors_
        array([1, 0])
        """
        self.run_fit(X, FitOptions.of(options))
        return self

    def fit_counts(self, X: CountsLike, options: FitOptions) -> tuple[CountMatrix, Fitted]:
        counts, options = self.counts_of_fit(X, options)
        dtype, K = self.fit_dtype(), self.n_components
        anchors = checked_anchors(self.anchors, counts.feature_names, counts.shape[1], K)
        weights = self._weights(counts)
        if self.sketch_size is not None and self.sketch_size < K:
            raise ValueError(
                f"sketch_size={self.sketch_size} is less than n_components={K}: combinations of "
                "the anchors are not determined. Use a few times n_components."
            )

        def make(counts: CountMatrix, executor: Executor, rng: Any) -> AnchorSearch:
            return AnchorSearch(
                counts, executor, K, anchors, weights, self.projection, self.sketch_size, rng, dtype
            )

        needs = anchor_needs(counts, K, dtype, len(anchors), self.projection, self.sketch_size)
        fitted = self.fit_blocks(
            counts, needs, make, options,
            parts={"constraints": (np.array(anchors, np.int64), *weights[:2])},
            unit=weights.unit, projection=self.projection, sketch_size=self.sketch_size,
        )  # fmt: skip
        arrays = fitted.arrays
        self.components_, self.loadings_ = arrays["components"], arrays["loadings"]
        self.anchors_, self.distances_ = arrays["anchors"], arrays["diagonal"]
        self._counting_zeros(counts)(slice(0, counts.shape[0]), self.loadings_)
        names = counts.feature_names
        self.anchor_names_ = None if names is None else np.asarray(names)[self.anchors_]
        self.diffuseness_ = arrays["diffuseness"]
        self.reconstruction_err_ = float(arrays["error"])
        reason = fitted.reason if fitted.reason in ("interrupted", "callback") else "converged"
        return counts, replace(fitted, reason=reason)

    def _weights(self, counts: CountMatrix) -> Weights:
        """Return the checked weights by which counts are multiplied in the choice of anchors."""
        if not callable(self.weighting):
            return weights_of(counts, self.weighting)
        pair = self.weighting(counts)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(
                f"weighting returned a {type(pair).__name__}: a pair is needed, numbers for the "
                "samples and for the features; None stands for 1."
            )
        names = "weighting: samples", "weighting: features"
        pair = of_samples(pair[0], counts, names[0]), of_features(pair[1], counts, names[1])
        samples, features = (
            None if numbers is None else checked_array(numbers, (size,), name, positive=False)
            for numbers, size, name in zip(pair, counts.shape, names, strict=True)
        )
        return Weights(samples, features)

    def _warn_unless_converged(self, fitted: Fitted) -> None:
        n_anchors = len(fitted.arrays["anchors"])
        if n_anchors == self.n_components or fitted.reason == "callback":
            return
        why = "the others are combinations of these"
        if fitted.reason == "interrupted":
            why = "it was interrupted"
        warn_caller(
            f"AnchorNMF has found {n_anchors} of {self.n_components} anchors: {why}.",
            ConvergenceWarning,
        )

    def _restricted(self, features: Array) -> Self:
        lacking = np.flatnonzero(~features[self.anchors_])
        if lacking.size:
            names = self.anchors_ if self.anchor_names_ is None else self.anchor_names_
            raise ValueError(
                f"X lacks anchors, such as {str(names[lacking[0]])!r} of topic {lacking[0]}, whose "
                "counts are the loadings: without them there are none."
            )
        restricted = super()._restricted(features)
        restricted.anchors_ = (np.cumsum(features) - 1)[self.anchors_]
        return restricted

    def pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, **arguments: Any
    ) -> RowsPass:
        self.check_memory(counts, loadings_needs(counts, self.n_components_), gathered=gathered)
        loadings = anchor_loadings(
            counts, self.anchors_, self.diffuseness_, self.threads_for(counts)
        )
        return loadings.then(self._counting_zeros(counts))

    def _counting_zeros(self, counts: CountMatrix) -> Finish:
        """Return a function of rows and loadings; after the last it warns if many are all zero.

        Samples without counts are left out.
        """
        n, n_zero = counts.shape[0], 0

        def unchanged(rows: slice, loadings: Array) -> Array:
            nonlocal n_zero
            none = ~loadings.any(axis=1) & (counts.row_totals[rows] > 0)
            n_zero += int(np.count_nonzero(none))
            if rows.stop == n and n_zero > _MANY * n:
                warn_caller(
                    f"{n_zero:,} of {n:,} samples ({n_zero / n:.1%}) have loadings that are all 0: "
                    "none of the anchors, or too little of them, was counted there. More "
                    "components, or anchors that are more frequent, leave fewer of them."
                )
            return loadings

        return unchanged

    def _projection(self, counts: CountMatrix, **options: Any) -> RowsPass:
        """Return maximum likelihood loadings given the topics, which scores use."""
        self.check_memory(counts, projection_needs(counts, self.n_components_), gathered=False)
        return projection(counts, self.components_.T, n_threads=self.threads_for(counts), **options)

    def log_probability(self, counts: CountMatrix, client: Client) -> float:
        rows_pass = self._projection(counts, scored=True)
        return float(rows_pass.gather(**self.where_to_run(client)).sum())

    def completion_loadings(self, counts: CountMatrix) -> Array:
        return self._projection(counts).gather()
