"""Non-negative matrix factorization with the squared Frobenius norm."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, ClassVar, Literal, Self, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from ..counts.argument_types import CountsLike
from ..counts.base import CountMatrix
from ..counts.integers import IntegerPolicy
from ..counts.names import of_features, of_samples
from ..counts.warn import warn_caller
from ..engine.protocol import Executor
from ..methods.frobenius.completion import squares_of_errors
from ..methods.frobenius.descent import (
    Hals,
    Penalties,
    Start,
    hals_needs,
    loadings_needs,
    loadings_pass,
)
from ..methods.frobenius.start import FrobeniusStart, needs_of_start, start_of
from ..methods.rows_pass import RowsPass
from ..methods.topics.merging import merged_factors
from ..methods.weights.weighting import (
    CountWeighting,
    Weights,
    are_unit,
    sum_of_squares,
    weights_of,
)
from ..readers.streams.columns import leave_out
from .arguments.fit_options import FitKeywords, FitOptions, ScoreOptions, with_options
from .arguments.parameters import estimator
from .arguments.validation import checked_array
from .base import CountModel
from .fitted import Fitted
from .from_components import FromComponents

Array = NDArray[Any]


@estimator
class FrobeniusNMF(FromComponents, CountModel):
    """Non-negative matrix factorization with the squared Frobenius norm, also of TF-IDF.

    The model of scikit-learn's ``NMF`` with its default loss: non-negative loadings W and topics H
    minimise ::

        |X - W H|^2 / 2 + alpha_W m (r |W|_1 + (1 - r) |W|^2 / 2)
                        + alpha_H n (r |H|_1 + (1 - r) |H|^2 / 2),

    with n samples, m features and r = `l1_ratio`. The norm gives errors of all entries the same
    weight, although large counts have larger errors: without `weighting`, topics describe the most
    frequent features. With TF-IDF this is a base model for texts, whose topics are often more
    coherent than others. Frequencies of words and log-likelihoods need a :class:`TopicModel`.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics K.
    weighting : {"counts", "tf-idf", "documents"}, default="counts"
        Weighting of the counts X. "counts": none; X may be numbers that were weighted before.
        "tf-idf": feature j is multiplied by ``log((1 + n) / (1 + n_j)) + 1``, where n_j is the
        number of samples with the feature, then samples are scaled to norm 1, as in scikit-learn's
        ``TfidfTransformer``. "documents" only scales samples to norm 1. Weighted counts are not
        stored: whole counts keep their small form. New samples have the weights of features of the
        fit.
    init : {"nndsvd", "random"}, default="nndsvd"
        Start. "nndsvd": the positive or negative parts of singular vectors [1]_, whichever are
        larger; they are those of a random subset of the samples if X has more than 4 million
        nonzero numbers, and otherwise the same for every `random_state`. "random": uniform numbers.
    max_iter : int, default=200
        Maximum number of iterations, each one pass over the rows and one over the columns.
    tol : float, default=1e-4
        The fit has converged when a rough estimate of the decrease of the loss that is left
        (``relative_gap`` of the history) is at most `tol` times the loss. With 0, exactly
        `max_iter` iterations are run.
    n_init : int, default=1
        Number of starts; the fit with the lowest loss is kept. Starts by "nndsvd" are equal unless
        a subset of the samples is drawn.
    alpha_W : float, default=0.0
        Weight of the penalties of loadings.
    alpha_H : float or "same", default="same"
        Weight of the penalties of topics; "same" means `alpha_W`. Both are 0 or both are positive.
    l1_ratio : float, default=0.0
        Share of the l1 norm in the penalties, from 0 to 1; the remainder is the squared l2 norm.
        Strong l1 penalties make all loadings and frequencies of a topic 0, or those of all topics.
    integer : {"allow", "warn", "require"}, default="allow"
        How to treat data that are not whole numbers.
    dtype
        As in :class:`PoissonNMF`. With "float32" a fit is up to twice as fast, and its loss is the
        same to about six digits.
    n_threads, memory_limit, random_state, verbose, callback
        As in :class:`PoissonNMF`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Topics H, those of the weighted counts. Without penalties each has norm 1.
    loadings_ : ndarray of shape (n_samples, n_components)
        Loadings W of the fitted samples, the optimum for these topics.
    idf_ : ndarray of shape (n_features,), float64, or None
        Weights of features with ``weighting="tf-idf"``.
    loss_ : float
        Final value of the objective above, at most that of all zeros, ``|X|^2 / 2``.
    reconstruction_err_ : float
        Frobenius norm of the weighted counts minus ``loadings_ @ components_``.
    history_ : structured ndarray
        One record for each iteration: ``iteration``, ``seconds`` since the start of the fit,
        ``minus_loss``, ``loss`` (the lowest so far), ``relative_gap`` (see `tol`), ``momentum``,
        and ``bytes_read`` from files so far. The loss of the last record is that after the loadings
        were moved to their optimum.
    converged_, interrupted_, stop_reason_, n_iter_, n_features_in_, feature_names_in_, \
sample_names_, obs_, sample_totals_, feature_totals_, unseen_features_, from_table_, seed_, \
warnings_
        As in :class:`PoissonNMF`.

    Notes
    -----
    The algorithm is coordinate descent (HALS), as in scikit-learn, with four sweeps over the
    loadings of a sample, or the topics of a feature, for each product with the counts [2]_, and
    with extrapolation [3]_, which is undone when the loss rises: the loss never does. Time and
    memory of an iteration are proportional to the nonzero counts, and the result has the same bits
    for any number of threads, from files, and on a cluster.

    References
    ----------
    .. [1] Boutsidis, Gallopoulos (2008). SVD based initialization: A head start for nonnegative
       matrix factorization. Pattern Recognition 41, 1350-1362.
    .. [2] Gillis, Glineur (2012). Accelerated multiplicative updates and hierarchical ALS
       algorithms for nonnegative matrix factorization. Neural Computation 24, 1085-1105.
    .. [3] Ang, Gillis (2019). Accelerating nonnegative matrix factorization algorithms using
       extrapolation. Neural Computation 31, 417-439.

    Examples
    --------
    >>> from nmfscale import FrobeniusNMF
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
    >>> model = FrobeniusNMF(n_components=2).fit(X)
    >>> (model.loadings_ @ model.components_).round(2) + 0
    array([[4., 0., 2., 0.],
           [0., 3., 0., 6.],
           [8., 0., 4., 0.],
           [4., 3., 2., 6.]])

    Topics of texts by TF-IDF:

    >>> from nmfscale import get
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from sklearn.pipeline import make_pipeline
    >>> texts = ["apples and pears", "pears, apples, plums", "hammer and nails", "nails, hammer"]
    >>> model = FrobeniusNMF(n_components=2, weighting="tf-idf")
    >>> pipeline = make_pipeline(CountVectorizer(min_df=2, stop_words=["and"]), model).fit(texts)
    >>> sorted(sorted(words) for words in get.top_features(pipeline, n_top=2))
    [['apples', 'pears'], ['hammer', 'nails']]
    """

    weighting: CountWeighting = "counts"
    init: FrobeniusStart = "nndsvd"
    max_iter: int = 200
    tol: float = 1e-4
    n_init: int = 1
    alpha_W: float = 0.0
    alpha_H: float | Literal["same"] = "same"
    l1_ratio: float = 0.0
    integer: IntegerPolicy = "allow"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CountModel._parameter_constraints,
        "weighting": [StrOptions(set(get_args(CountWeighting)))],
        "init": [StrOptions(set(get_args(FrobeniusStart)))],
        "alpha_W": [Interval(Real, 0, None, closed="left")],
        "alpha_H": [Interval(Real, 0, None, closed="left"), StrOptions({"same"})],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
    }
    method_class: ClassVar[type[Hals]] = Hals
    array_axes: ClassVar[dict[str, str]] = {"idf_": "m"}
    gain_tol = 0.0  # `tol` is the only tolerance

    @with_options(FitKeywords)
    def fit(
        self,
        X: CountsLike,
        y: ArrayLike | None = None,
        *,
        loadings: ArrayLike | None = None,
        components: ArrayLike | None = None,
        **options: Unpack[FitKeywords],
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : non-negative data of shape (n_samples, n_features)
            Counts, or other non-negative numbers, in all the forms of :meth:`PoissonNMF.fit`.
        y : None
            Ignored.
        loadings : array-like of shape (n_samples, n_components), default=None
            W to start from, by default 0. The first iteration moves it towards its optimum for the
            topics.
        components : array-like of shape (n_components, n_features), default=None
            H to start from; by default `init` determines it.
        checkpoint, checkpoint_every, resume, client, layer, raw, **source
            As in :meth:`PoissonNMF.fit`.

        Returns
        -------
        self : object
            Fitted.

        Raises
        ------
        ValueError, OSError, MemoryLimitError, FloatingPointError, CheckpointError, ClusterError
            As in :meth:`PoissonNMF.fit`; a ValueError also if only one of `alpha_W` and `alpha_H`
            is 0.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` iterations were not enough, or Ctrl-C ended the fit.
        UserWarning
            If there are more components than samples or features; if counts were weighted by TF-IDF
            before, and `weighting` does it again; if the penalties leave no topics.

        Examples
        --------
        A fit that continues another one:

        >>> from nmfscale import FrobeniusNMF
        >>> from nmfscale.datasets import simulate_topic_counts
        >>> X, _ = simulate_topic_counts(100, 50, 3, random_state=0)
        >>> model = FrobeniusNMF(3, max_iter=5, tol=0).fit(X)
        >>> further = FrobeniusNMF(3, tol=1e-6)
        >>> further.fit(X, components=model.components_).loss_ < model.loss_
        True
        """
        self.run_fit(X, FitOptions.of(options), loadings=loadings, components=components)
        return self

    def fit_counts(
        self,
        X: CountsLike,
        options: FitOptions,
        *,
        loadings: ArrayLike | None,
        components: ArrayLike | None,
    ) -> tuple[CountMatrix, Fitted]:
        counts, options = self.counts_of_fit(X, options)
        (n, m), K, dtype = counts.shape, self.n_components, self.fit_dtype()
        loadings = of_samples(loadings, counts, "loadings")
        components = of_features(components, counts, "components", axis=1)
        L = F = None
        if loadings is not None:
            L = checked_array(loadings, (n, K), "loadings", positive=False)
        if components is not None:
            F = checked_array(components, (K, m), "components", positive=False).T
        weights, penalties = weights_of(counts, self.weighting), self._penalties(n, m)
        square = sum_of_squares(counts, self.weighting)
        if self.weighting == "tf-idf" and are_unit(counts):
            warn_caller(
                "all samples of X have norm 1, as after TF-IDF, and weighting='tf-idf' weights "
                "them again: pass the counts, or set weighting='counts'."
            )

        def make(counts: CountMatrix, executor: Executor, rng: Any) -> Hals:
            def begin() -> Start:
                if F is not None:
                    return Start(L, F)
                factor = start_of(counts, K, self.init, weights, square, rng, executor.n_threads)
                return Start(L, factor)

            return Hals(counts, executor, begin, K, weights, square, penalties, dtype)

        start = 0 if F is not None or self.init == "random" else needs_of_start(counts, K)
        fitted = self.fit_blocks(
            counts, hals_needs(counts, K, dtype, start), make, options,
            parts={"start": (L, F)}, weighting=self.weighting, init=self.init,
            penalties=list(penalties),
        )  # fmt: skip
        self.components_ = np.ascontiguousarray(fitted.arrays["F"].T)
        self.loadings_, self.idf_ = fitted.arrays["L"], weights.features
        self.loss_ = -fitted.objective
        self.reconstruction_err_ = float(fitted.arrays["error"])
        if not any(penalties):
            self._normalise()
        elif square and not self.components_.any():
            warn_caller(
                f"alpha_W={self.alpha_W:g} and alpha_H={self.alpha_H}: with these penalties, "
                "the fit found no topics whose loss is below that of all zeros. Use smaller ones."
            )
        return counts, fitted

    def _normalise(self) -> None:
        """Scale topics to norm 1, and loadings so that their product stays the same."""
        squares = [(row * row).sum(dtype=np.float64) for row in self.components_]
        norms = np.sqrt(np.where(np.array(squares) > 0, squares, 1)).astype(self.components_.dtype)
        self.components_ /= norms[:, None]
        self.loadings_ *= norms

    def _penalties(self, n: int, m: int) -> Penalties:
        """Return the factors of the norms in the objective, for data (n, m)."""
        alpha_H = self.alpha_W if self.alpha_H == "same" else float(self.alpha_H)
        if (alpha_H > 0) != (self.alpha_W > 0):
            raise ValueError(
                f"alpha_W={self.alpha_W:g} and alpha_H={alpha_H:g}: a penalty of one factor alone "
                "has no effect, because this factor can be divided by any number by which the "
                "other one is multiplied. Give both a positive value, or both 0."
            )
        l1, l2 = self.l1_ratio, 1 - self.l1_ratio
        of_L, of_F = self.alpha_W * m, alpha_H * n
        return Penalties(of_L * l1, of_L * l2, of_F * l1, of_F * l2)

    def _take_components(self, values: Array) -> None:
        if self.weighting == "tf-idf":
            raise ValueError(
                "weighting='tf-idf' weighs features by the samples of a fit, and a table has none: "
                "set weighting='counts', or 'documents' for samples of norm 1."
            )
        super()._take_components(values)
        self.idf_ = None

    def merged_arrays(self, parts: list[list[int]]) -> dict[str, Array]:
        self._check_samples()
        L, F = merged_factors(self.loadings_, self.components_.T, parts)
        return {"loadings_": L, "components_": np.ascontiguousarray(F.T)}

    def _explained(self, counts: CountMatrix) -> CountMatrix:
        """Return counts without the features that had no counts in the fit.

        A feature that is in no topic stays: its counts are part of the norm of a sample.
        """
        return leave_out(counts, self.unseen_features_, "of which the fit had none")

    def _pass(self, counts: CountMatrix, *, gathered: bool, explained: bool = False) -> RowsPass:
        """Return the pass that finds loadings, or the squares that they explain."""
        self.check_memory(counts, loadings_needs(counts, self.n_components_), gathered=gathered)
        L, F = getattr(self, "loadings_", None), self.components_.T
        weights = Weights(None, self.idf_, self.weighting != "counts")
        # those of loadings do not depend on the number of samples
        penalties = self._penalties(1 if L is None else len(L), self.n_features_in_)
        return loadings_pass(
            counts, L, F, weights, penalties, self.threads_for(counts), explained=explained
        )

    def pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, **arguments: Any
    ) -> RowsPass:
        return self._pass(counts, gathered=gathered)

    @with_options(ScoreOptions)
    def score(
        self, X: CountsLike, y: ArrayLike | None = None, **options: Unpack[ScoreOptions]
    ) -> float:
        """Return the share of the sum of squares of the weighted counts that is explained.

        Parameters
        ----------
        X, missing, layer, raw, **source
            As in :meth:`transform`.
        y : None
            Ignored.
        completion, random_state, client
            As in :meth:`PoissonNMF.score`. Choose penalties and the number of topics with
            `completion`.

        Returns
        -------
        float
            ``1 - |X' - W H|^2 / |X'|^2`` with X' the weighted counts and W their loadings, which
            :meth:`transform` finds; at most 1, and 0 if there are no counts. It rises with the
            number of topics, and falls with the penalties, because W is fitted to X' itself. With
            `completion`, X' are the weighted held-out counts, and W the loadings of the seen
            counts, times the ratio of held-out to seen counts unless samples are scaled to norm 1;
            the share is negative where zeros would predict better.

        Raises
        ------
        ValueError, MemoryLimitError, ClusterError
            As in :meth:`PoissonNMF.score`.

        Examples
        --------
        >>> from nmfscale import FrobeniusNMF
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> round(FrobeniusNMF(n_components=1).fit(X).score(X), 2)
        0.66

        Held-out counts choose the penalties:

        >>> from nmfscale.datasets import simulate_topic_counts
        >>> from sklearn.model_selection import GridSearchCV
        >>> def held_out(model, X, y=None):
        ...     return model.score(X, completion=0.5, random_state=0)
        >>> X, _ = simulate_topic_counts(300, 100, 3, random_state=0)
        >>> search = GridSearchCV(FrobeniusNMF(3), {"alpha_W": [0, 0.01]}, scoring=held_out, cv=2)
        >>> search.fit(X).best_params_
        {'alpha_W': 0.01}
        """
        return self._score(X, options)

    def _whole_score(self, counts: CountMatrix, client: Any) -> float:
        square = sum_of_squares(counts, self.weighting)
        explained = self._pass(counts, gathered=False, explained=True)
        return math.fsum(explained.gather(**self.where_to_run(client))) / square if square else 0.0

    def _completion(self, counts: CountMatrix, share: float, rng: Any) -> float:
        weights = Weights(None, self.idf_, self.weighting != "counts")
        ratio = 1.0 if weights.unit else share / (1 - share)
        errors, squares = [], []
        for _, L, held in self._halves(counts, share, rng):
            error, square = squares_of_errors(held, ratio * L, self.completion_factors, weights)
            errors.append(error)
            squares.append(square)
        total = math.fsum(squares)
        return 1 - math.fsum(errors) / total if total else 0.0

    @property
    def perplexity(self) -> Any:
        """Not available: the loss is not a likelihood of counts."""
        raise AttributeError("FrobeniusNMF has no perplexity: use score, or loss_ after a fit.")
