"""Semi-supervised non-negative matrix factorization."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, TypeAlias, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from ..counts.argument_types import CountsLike, WeightsLike
from ..counts.base import CountMatrix
from ..counts.integers import IntegerPolicy
from ..counts.names import of_features, of_samples
from ..engine.protocol import Executor
from ..methods.ssnmf import descent, multiplicative
from ..methods.ssnmf.descent import CoordinateDescent, DescentToRelativeError
from ..methods.ssnmf.labels import Supervision
from ..methods.ssnmf.multiplicative import RelativeError, SemiSupervised, Start
from ..methods.topics.merging import averaged, merged_factors
from ..methods.weights.entries import constant_of
from ..readers.options import SOURCE
from .arguments.entry_weights import is_nan, weighted_entries
from .arguments.fit_options import FitKeywords, FitOptions, with_options
from .arguments.parameters import estimator
from .arguments.targets import hold_out, supervision_of
from .arguments.validation import checked_array
from .base import CountModel
from .fitted import Fitted
from .supervised import Loss, LossNames, SupervisedModel

Array = NDArray[Any]

# The tolerances of the paper, by the loss of the data.
_TOLERANCES = {"frobenius": 1e-4, "kl": 1e-3}
# Methods by solver, then by criterion.
SupervisedSolver: TypeAlias = Literal["mu", "cd"]
Criterion: TypeAlias = Literal["decrease", "relative-error"]
_METHODS: dict[SupervisedSolver, dict[Criterion, type[SemiSupervised]]] = {
    "mu": {"decrease": SemiSupervised, "relative-error": RelativeError},
    "cd": {"decrease": CoordinateDescent, "relative-error": DescentToRelativeError},
}
# Options that transform shares with fit.
_OF_BOTH = "client", "layer", "raw", "data_weights", *SOURCE


@estimator
class SSNMF(SupervisedModel):
    """Semi-supervised non-negative matrix factorization: topics that also predict labels.

    Loadings S explain the data, ``X ~ S A^T``, and labels or other targets, ``Y ~ S B^T`` [1]_:

        min over S, A, B >= 0 of  R(X, S A^T) + supervision * Q(Y, S B^T),

    with R and Q squared Frobenius norms ``sum (x - mu)^2``, or divergences
    ``sum x log(x / mu) - x + mu``. Samples are rows here; in the paper they are columns. Samples
    without a label count in R only. The loadings of new samples minimise R, and their labels are
    predicted by ``S B^T``.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics K.
    losses : {"FF", "FD", "DF", "DD"} or tuple of two of {"frobenius", "kl"}, default="DD"
        Loss of the data, then of the labels: F for the Frobenius norm, D for the divergence.
    supervision : float, default=100.0
        Weight of the labels in the loss, lambda in the paper. Its best value depends on the scale
        of the data: for TF-IDF rows of norm one the paper uses 100 (FF, DF), 10 (FD) and 1000 (DD).
        Choose it by validation, as by scikit-learn's GridSearchCV, or for known variances by
        :func:`nmfscale.experimental.supervision_from_variances`.
    solver : {"mu", "cd"}, default="mu"
        Algorithm. "mu": multiplicative updates, as in the paper. "cd": coordinate descent on the
        joint loss of data and labels, which is HALS if both losses are norms; it reaches a lower
        loss in less time, which does not mean a better classifier (see Notes).
    max_iter : int, default=50
        Iterations at most.
    tol : float, default=None
        The fit has converged if an iteration lowers the loss by less than `tol` times the loss
        after the first iteration (with ``solver="cd"``: times the previous loss). None means the
        value of the paper, 1e-3 if the loss of the data is the divergence, otherwise 1e-4. A
        suitable value depends on the start and on `supervision`. With 0, exactly `max_iter`
        iterations are run.
    criterion : {"decrease", "relative-error"}, default="decrease"
        What is compared with `tol`. "decrease": the decrease of the loss in an iteration, as above,
        which is the rule of the program of the authors. "relative-error": the loss divided by that
        of the start, equation 10 of the paper, which its text names. This ratio depends on the
        scale of the start, cannot fall below that of the best fit, and does not show whether the
        fit has converged; it serves to compare fits of one relative error.
    validation_fraction : float, default=None
        Share of the labels of each class that are held out. The fit returns the iteration that
        predicts them best; it ends by `tol`, or after `n_iter_no_change` iterations without an
        improvement.
    n_iter_no_change : int, default=10
        Number of iterations without a better validation after which the fit ends.
    transform_iter : int, default=20
        Number of multiplicative steps on new samples if the loss of the data is the divergence.
    n_init : int, default=1
        Number of random starts; the fit with the lowest loss is kept.
    integer : {"allow", "warn", "require"}, default="allow"
        How to treat data that are not whole numbers.
    dtype, n_threads, memory_limit, random_state, verbose, callback
        As in :class:`PoissonNMF`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        A^T, the topics, without normalisation.
    target_components_ : ndarray of shape (n_targets, n_components)
        B: the weight of each topic in each class or target.
    loadings_ : ndarray of shape (n_samples, n_components)
        S of the fitted samples, to which their labels contributed.
    classes_ : ndarray of shape (n_targets,)
        The sorted labels; missing after a fit to targets.
    class_prior_ : ndarray of shape (n_targets,)
        Weighted share of each class in the labels; missing after a fit to targets.
    empty_samples_ : ndarray of int
        Samples of the fit without counts, or without counts of positive weight.
    loss_ : float
        Final loss.
    has_missing_entries_ : bool
        As in :class:`PoissonNMF`.
    history_ : structured ndarray
        One record for each iteration: ``iteration``, ``seconds`` since the start of the fit,
        ``minus_loss``, ``loss``, ``loss_data`` and ``loss_labels`` (without their weight
        `supervision`), ``decrease`` (see `tol`), ``validation``: the number of correct held-out
        labels, or minus the squared error of targets; ``bytes_read`` from files so far; and with
        ``criterion="relative-error"``, ``relative_error``.
    converged_, interrupted_, stop_reason_, n_iter_, n_features_in_, feature_names_in_, \
sample_names_, obs_, sample_totals_, feature_totals_, unseen_features_, seed_, warnings_
        As in :class:`PoissonNMF`.

    Notes
    -----
    The updates of ``solver="mu"`` are the multiplicative ones of the paper, for which the loss
    never rises; if the losses of data and labels differ, steps that might raise it are shortened.

    With ``solver="cd"`` it never rises either. A and B are updated by sweeps of coordinate descent
    if their loss is a norm (HALS), otherwise by a Newton step, which is undone if it raised the
    loss; S is updated by coordinate descent on both terms, whose downward steps minimise an upper
    bound. If a loss is the divergence, the fit begins with multiplicative updates, as long as each
    reduces the loss by a tenth. Memory grows with ``n_components ** 2 * n_features``.

    A lower loss is not a better classifier. With the `supervision` of the paper, the accuracy for
    new samples is highest after about ten iterations and then falls with the loss, by one to four
    points until iteration 1000: hence the defaults of `max_iter` and `tol`, which suit these
    updates and their start. Topics of labelled samples follow the classes and show almost nothing
    of groups within a class.

    References
    ----------
    .. [1] Haddock, Kassab, Li, Kryshchenko, Grotheer, Sizikova, Wang, Merkh, Madushani, Ahn,
       Needell, Leonard. Semi-supervised NMF models for topic modeling in learning tasks.

    Examples
    --------
    >>> from nmfscale import SSNMF
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [0, 1, 0, 2]]
    >>> y = ["fruit", "tools", None, None]
    >>> model = SSNMF(n_components=2, random_state=0).fit(X, y)
    >>> model.predict(X).tolist()
    ['fruit', 'tools', 'fruit', 'tools']
    >>> model.predict_proba(X).shape, model.transform(X).shape
    ((4, 2), (4, 2))
    """

    losses: LossNames | tuple[Loss, Loss] = "DD"
    supervision: float = 100.0
    solver: SupervisedSolver = "mu"
    max_iter: int = 50
    tol: float | None = None
    criterion: Criterion = "decrease"
    validation_fraction: float | None = None
    n_iter_no_change: int = 10
    transform_iter: int = 20
    n_init: int = 1
    integer: IntegerPolicy = "allow"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CountModel._parameter_constraints,
        "losses": [StrOptions(set(get_args(LossNames))), tuple],
        "solver": [StrOptions(set(get_args(SupervisedSolver)))],
        "criterion": [StrOptions(set(get_args(Criterion)))],
        "supervision": [Interval(Real, 0, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "transform_iter": [Interval(Integral, 1, None, closed="left")],
    }
    gain_tol = 0.0  # only the tolerance of the paper
    array_axes: ClassVar[dict[str, str]] = {
        "target_components_": "ck",
        "classes_": "c",
        "class_prior_": "c",
    }

    @with_options(FitKeywords)
    def fit(
        self,
        X: CountsLike,
        y: ArrayLike | None = None,
        *,
        label_weights: ArrayLike | None = None,
        data_weights: WeightsLike | None = None,
        loadings: ArrayLike | None = None,
        components: ArrayLike | None = None,
        target_components: ArrayLike | None = None,
        **options: Unpack[FitKeywords],
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : non-negative data of shape (n_samples, n_features)
            Counts, or numbers such as TF-IDF, in all the forms of :meth:`PoissonNMF.fit`.
        y : array-like of shape (n_samples,) or (n_samples, n_targets), default=None
            Labels; -1, NaN and None mean "unlabelled" (but -1 and 1 together are two classes). Or a
            matrix of non-negative targets (regression), with NaN for unknown ones; a column
            (n_samples, 1) of fractional numbers is a matrix of one target. Without labels this is
            NMF.
        label_weights : array-like of shape (n_samples,) or that of targets, default=None
            Non-negative weights of labels, or of single targets, in the loss. A class whose labels
            all have weight 0 is never predicted; at least one label, or one target of each column,
            must have a positive weight.
        data_weights : array-like of shape (n_samples, n_features), sparse or "nan", default=None
            Non-negative weights that multiply the terms of entries in the loss, in the forms of
            :meth:`PoissonNMF.fit`. A feature of weight 0 in all samples is in no topic, and the
            loadings of a sample without positive weights depend on its label only.
        loadings : array-like of shape (n_samples, n_components), default=None
            S to start from; by default random numbers between 0 and 1.
        components : array-like of shape (n_components, n_features), default=None
            A^T to start from, random by default.
        target_components : array-like of shape (n_targets, n_components), default=None
            B to start from, random by default. Multiplicative updates keep zeros.
        checkpoint, checkpoint_every, resume, client, layer, raw, **source
            As in :meth:`PoissonNMF.fit`.

        Returns
        -------
        self : object
            Fitted.

        Raises
        ------
        ValueError, OSError, MemoryLimitError, FloatingPointError, CheckpointError, ClusterError
            As in :meth:`PoissonNMF.fit`; a ValueError also for fractional labels.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` iterations were not enough, or Ctrl-C ended the fit.

        Examples
        --------
        Two targets instead of labels, one of them unknown:

        >>> from nmfscale import SSNMF
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [0, 1, 0, 2]]
        >>> Y = [[1.0, 0.0], [0.0, 3.0], [2.0, 0.0], [0.0, float("nan")]]
        >>> model = SSNMF(2, losses="FF", supervision=1.0, random_state=0, tol=1e-9, max_iter=500)
        >>> model.fit(X, Y).predict([[0, 2, 0, 4]]).round(1).tolist()
        [[0.0, 2.0]]
        """
        self.run_fit(
            X, FitOptions.of(options), y=y, label_weights=label_weights, data_weights=data_weights,
            start=(loadings, components, target_components),
        )  # fmt: skip
        return self

    def fit_transform(self, X: CountsLike, y: ArrayLike | None = None, **fit_params: Any) -> Array:
        """Fit the model and return the loadings of `X`, as `transform` does.

        Parameters
        ----------
        X, y
            As in :meth:`fit`.
        **fit_params
            Passed to :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Loadings that do not use labels; ``loadings_`` are those of the fit.
        """
        both = {name: fit_params[name] for name in _OF_BOTH if name in fit_params}
        return self.fit(X, y, **fit_params).transform(X, **both)

    @property
    def method_class(self) -> type[SemiSupervised]:  # type: ignore[override]
        return _METHODS[self.solver][self.criterion]

    @property
    def stopping_tolerance(self) -> float:
        return _TOLERANCES[self._pair.data] if self.tol is None else self.tol

    def _start(
        self, start: tuple[Any, Any, Any], counts: CountMatrix, n_targets: int
    ) -> dict[str, Array]:
        """Return the given parts of a start, by the names of `Start`."""
        (n, m), K = counts.shape, self.n_components
        loadings, components, targets = start
        loadings = of_samples(loadings, counts, "loadings")
        components = of_features(components, counts, "components", axis=1)
        start = loadings, components, targets
        expected = {"S": (n, K), "A": (K, m), "B": (n_targets, K)}
        said = "loadings", "components", "target_components"
        parts = {
            name: checked_array(array, expected[name], word, positive=False)
            for name, word, array in zip(expected, said, start, strict=True)
            if array is not None
        }
        return parts | ({"A": parts["A"].T} if "A" in parts else {})

    @property
    def fits_short_samples(self) -> bool:
        return True  # no other model takes labels

    def fit_counts(
        self,
        X: CountsLike,
        options: FitOptions,
        *,
        y: ArrayLike | None,
        label_weights: ArrayLike | None,
        data_weights: WeightsLike | None,
        start: Any,
    ) -> tuple[CountMatrix, Fitted]:
        losses, K, entries = self._pair, self.n_components, None
        counts, options = self.counts_of_fit(X, options.with_nan(is_nan(data_weights)))
        supervision, classes = supervision_of(y, label_weights, counts)
        rng = self._generator() if self.validation_fraction else check_random_state(0)
        supervision = hold_out(supervision, self.validation_fraction, rng, classes is not None)
        used, dtype = counts, self.fit_dtype()
        if data_weights is not None:
            used, entries = weighted_entries(counts, data_weights, losses.data)
            if not entries.less_one.nnz:  # all weights are 1
                entries = None
        start_parts = self._start(start, counts, supervision.n_targets)
        if entries is None:
            constant = float(counts.row_sums(lambda x: constant_of(x, 1.0, losses.data)).sum())
        else:
            constant = entries.constant

        def make(counts: CountMatrix, executor: Executor, rng: Any) -> SemiSupervised:
            def begin() -> Start:
                factors = multiplicative.random_start(rng, counts.shape, supervision.n_targets, K)
                return factors._replace(**start_parts)

            return self.method_class(
                counts, executor, begin, K, losses, float(self.supervision), supervision, dtype,
                weights=entries, constant=constant, patience=self.n_iter_no_change,
            )  # fmt: skip

        weighed = [] if entries is None else entries.parts()
        needs = multiplicative.multiplicative_needs(used, K, supervision, dtype, entries)
        if self.solver == "cd":
            needs = descent.descent_needs(
                used,
                K,
                supervision,
                dtype,
                losses,
                self.threads_for(used),
                needs,
                weighted=entries is not None,
            )
        fitted = self.fit_blocks(
            used, needs, make, options,
            parts={
                "constraints": (supervision.targets, supervision.weights, supervision.held_out,
                *weighed),
                "start": tuple(start_parts.get(name) for name in Start._fields),
            },
            losses=list(losses), supervision=float(self.supervision),
            n_iter_no_change=self.n_iter_no_change, solver=self.solver,
        )  # fmt: skip
        self._keep(used, supervision, classes, fitted.arrays, dtype)
        self.loss_ = -fitted.objective
        self.has_missing_entries_ = entries is not None
        return counts, fitted

    def merged_arrays(self, parts: list[list[int]]) -> dict[str, Array]:
        L, F = merged_factors(self.loadings_, self.components_.T, parts)
        totals = self.loadings_.sum(axis=0, dtype=np.float64)
        return {
            "loadings_": L,
            "components_": np.ascontiguousarray(F.T),
            "target_components_": averaged(self.target_components_, parts, totals),
        }

    def _keep(
        self, counts: CountMatrix, supervision: Supervision, classes: Array | None,
        arrays: dict[str, Array], dtype: Any,
    ) -> None:  # fmt: skip
        self.components_ = np.ascontiguousarray(arrays["A"].T, dtype)
        self.target_components_, self.loadings_ = arrays["B"].astype(dtype), arrays["S"]
        self.empty_samples_ = np.flatnonzero(counts.row_nnz == 0)
        for name in {"classes_", "class_prior_"} & vars(self).keys():
            delattr(self, name)
        if classes is None:
            return
        weights = (
            supervision.weights
            if supervision.held_out is None
            else supervision.weights + supervision.held_out
        )
        sizes = np.bincount(supervision.targets.astype(np.intp), weights, len(classes))
        self.classes_, self.target_components_ = classes, self.target_components_[: len(classes)]
        self.class_prior_ = sizes[: len(classes)] / (sizes.sum() or 1.0)
