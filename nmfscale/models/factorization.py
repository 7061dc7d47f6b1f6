"""Estimators of two factors, loadings and components, fitted as a Poisson NMF."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from ..counts.argument_types import CountsLike, FloatType, WeightsLike
from ..counts.base import CountMatrix
from ..engine.protocol import Executor, Method, Needs
from ..methods.factors import Constraints
from ..methods.poisson.objective import FactorModel
from ..methods.poisson.priors import Prior
from ..methods.poisson.scaled_fit import ScaledFit
from ..methods.poisson.solvers import (
    SOLVERS,
    Solver,
    method_of,
    moved_start,
    poisson_needs,
    start_of_fit,
)
from ..methods.projection.penalty import Penalty
from ..methods.starts.initialize import PoissonStart
from ..methods.weights.feature_weights import unweighted_factors
from .arguments.entry_weights import is_nan
from .arguments.fit_options import FitKeywords, FitOptions, with_options
from .arguments.parameters import estimator
from .arguments.penalty import SparsityPenalty, check_solver, penalty_of
from .arguments.seeds import OF_SEEDS, Seeds
from .base import CountModel
from .fit_memory import memory_of_fit
from .fit_problem import FitProblem, problem_of_fit
from .fitted import Fitted
from .held_factors import HeldFactors
from .moves import COLUMNS
from .starts import number_of_starts

Array = NDArray[Any]


@estimator
class CountFactorization(HeldFactors):
    """Base of the estimators that fit counts by a product of two non-negative factors.

    A model defines by `_keep`, `_loadings_of` and `_held` how it represents a Poisson NMF.
    """

    solver: Solver = "auto"
    init: PoissonStart | ArrayLike = "auto"
    max_iter: int = 1000
    tol: float = 1e-4
    gain_tol: float | None = None
    n_init: int | Literal["auto"] = "auto"
    n_moves: int = 0
    seeds: Seeds | None = None
    seed_weight: float = 0.1
    inner_iter: int | None = None
    extrapolate: bool = True
    prior_factors: Prior | None = None
    prior_loadings: Prior | None = None
    penalty: SparsityPenalty | None = None
    batch_shape: float | Literal["auto"] = "auto"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CountModel._parameter_constraints,
        "gain_tol": [Interval(Real, 0, None, closed="left"), None],
        "n_init": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_moves": [Interval(Integral, 0, None, closed="left")],
        **OF_SEEDS,
        "solver": [StrOptions(set(SOLVERS))],
        "init": [StrOptions(set(get_args(PoissonStart))), "array-like"],
        "inner_iter": [Interval(Integral, 1, None, closed="left"), None],
        "extrapolate": ["boolean"],
        "prior_factors": [Interval(Real, 1, None, closed="left"), "array-like", None],
        "prior_loadings": [Interval(Real, 1, None, closed="left"), "array-like", None],
        "penalty": [SparsityPenalty, None],
        "batch_shape": [Interval(Real, 0, None, closed="both"), StrOptions({"auto"})],
    }
    method_class = FactorModel
    continues_starts = True
    weighs_features = True
    parameters_of_topics = "prior_factors", "prior_loadings"

    @with_options(FitKeywords)
    def fit(
        self,
        X: CountsLike,
        y: ArrayLike | None = None,
        *,
        loadings: ArrayLike | None = None,
        components: ArrayLike | None = None,
        row_weights: ArrayLike | None = None,
        size_factors: ArrayLike | None = None,
        fixed_topics: ArrayLike | None = None,
        fixed_features: ArrayLike | None = None,
        fixed_samples: ArrayLike | None = None,
        measured: ArrayLike | None = None,
        panel: ArrayLike | None = None,
        batch: ArrayLike | str | None = None,
        data_weights: WeightsLike | None = None,
        **options: Unpack[FitKeywords],
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            Array, sparse matrix or array, DataFrame, AnnData, dask array of row chunks, path of
            a count file or packed store, or what :func:`as_counts` made of them.
        y : None
            Ignored.
        loadings : array-like of shape (n_samples, n_components), default=None
            Loadings L to start from, such as `loadings_` of another fit; by default `init`
            determines them. Zeros are raised to 1e-10, a value that EM alone ("em", "joint-em") is
            slow to leave.
        components : array-like of shape (n_components, n_features), default=None
            Transpose of the factors F to start from, such as `components_`; the same holds for
            them. Expected counts are ``loadings @ components``, also for a :class:`TopicModel`: see
            :meth:`poisson_factors`.
        row_weights : array-like of shape (n_samples,), default=None
            Non-negative weight of each sample: a sample of weight 2 counts like two equal samples.
        size_factors : array-like of shape (n_samples,), default=None
            Known positive sizes s_i: the expected counts are ``s_i (L F^T)_ij``.
        fixed_topics : array-like of bool of shape (n_components,), default=None
            Topics that stay as given in `components`.
        fixed_features : array-like of bool of shape (n_features,), default=None
            Features whose columns of `components` stay as given.
        fixed_samples : array-like of bool of shape (n_samples,), default=None
            Samples whose rows of `loadings` stay as given.
        measured : array-like of bool of shape (n_panels, n_features), default=None
            Which features were measured in each panel of samples, for example if donors with
            different gene panels were combined by an outer join. Entries of unmeasured features are
            not part of the likelihood: they are missing, not 0. Rows are in the sorted order of the
            labels in `panel`, or are matched by the index of a DataFrame or the keys of a dict of
            rows. By default everything was measured, except what an outer join of files says (see
            :func:`concat`). Not available with solver="joint-em", nor with
            starts that use all entries, "topic-score" and "nndsvd"; "auto" then means the best of
            several random starts (`n_init`).
        panel : array-like of shape (n_samples,), default=None
            Label of the panel of each sample; None if `measured` has a single row for all samples.
        batch : array-like of shape (n_samples,) or str, default=None
            Label of the batch of each sample, such as its donor, chemistry or source; or the name
            of a column of ``obs``. Features then have an efficiency in each batch, see
            `batch_efficiencies_`. A sample needs a label. Not available with
            solver="joint-em".
        data_weights : array-like of shape (n_samples, n_features), sparse or "nan", default=None
            Non-negative weight of each entry in the log-likelihood, ``sum_ij w_ij log p(x_ij)``: an
            entry of weight 2 counts like two equal entries, and one of weight 0 is missing, so that
            its value in `X` does not matter. A sparse matrix of bool is true where an entry is
            missing; a sparse matrix of numbers holds the weights of its entries, and all others
            have weight 1. "nan" means that NaN in `X` are missing. Weights multiply those of
            `row_weights`. The same solvers and starts are available as with `measured`, which
            cannot be combined with it. Weights other than 1 are kept in memory; counts may be
            anywhere.
        checkpoint : str or path-like, default=None
            Folder in which the fit saves its state while it runs. With several starts (`n_init`)
            each has a subfolder. Only one fit at a time can use a folder.
        checkpoint_every : float, default=60.0
            Seconds between checkpoints; 0 saves every iteration.
        resume : bool, default=False
            Continue from the newest checkpoint in the folder, if there is one. The result is the
            same to the bit as without interruption, even if the counts are stored elsewhere now.
        client : distributed.Client, default=None
            Dask cluster whose workers run the fit, with the same bits. By default counts in files
            and dask arrays use the active client, if there is one and it is not asynchronous; all
            other fits run in this process. Workers that can access the store and the folder of
            `checkpoint` (or else the system's temporary folder) read and write there; data are sent
            to all other workers. Counts that are not in a packed store are packed first; counts of
            a single block are fitted in this process.
        layer : str, default=None
            Layer of an AnnData object, or .h5ad file, to fit in place of ``X``.
        raw : bool, default=False
            Whether to fit ``raw.X`` of an AnnData object, or .h5ad file, in place of ``X``.
        **source
            Further options of :func:`as_counts`, such as `names`, `feature_names`, `sample_names`,
            `mask_var` and `mask_obs`.

        Returns
        -------
        self : object
            Fitted.

        Raises
        ------
        ValueError
            If the counts or a parameter are not valid, or something is to be fixed that was not
            given.
        OSError
            If a file is missing or cannot be read, or a disk is full.
        MemoryLimitError
            If the fit needs more than `memory_limit`: a MemoryError.
        FloatingPointError
            If numbers overflow: only with counts or a start of extreme magnitudes.
        CheckpointError
            If another fit uses the folder, or its checkpoints belong to a different fit or are
            damaged: a ValueError.
        ClusterError
            If the workers or the scheduler are lost for good, or a task fails repeatedly: a
            RuntimeError.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` iterations were not enough, or Ctrl-C ended the fit; the model is the best
            so far. A second Ctrl-C raises KeyboardInterrupt at once.
        UserWarning
            If there are more components than samples or features; if topics are fixed, and
            `components` has features that `X` lacks, which are left out.

        Notes
        -----
        Arguments that have an entry, or a row, for each sample or feature are matched with those of
        `X` by name if both have names, such as the index of a Series or DataFrame: order does not
        matter, and a missing name is an error. Otherwise they are matched by position.

        Examples
        --------
        Known factors stay fixed while new ones are estimated:

        >>> import numpy as np
        >>> from nmfscale import PoissonNMF
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> H = np.array([[2.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
        >>> model = PoissonNMF(n_components=2, random_state=0)
        >>> model.fit(X, components=H, fixed_topics=[True, False]).components_[0]
        array([2., 0., 1., 0.])
        """
        self.run_fit(
            X, FitOptions.of(options), loadings=loadings, components=components,
            row_weights=row_weights, size_factors=size_factors, fixed_topics=fixed_topics,
            fixed_features=fixed_features, fixed_samples=fixed_samples, measured=measured,
            panel=panel, batch=batch, data_weights=data_weights,
        )  # fmt: skip
        return self

    def fit_counts(
        self,
        X: CountsLike,
        options: FitOptions,
        *,
        loadings: ArrayLike | None,
        components: ArrayLike | None,
        row_weights: ArrayLike | None,
        size_factors: ArrayLike | None,
        fixed_topics: ArrayLike | None,
        fixed_features: ArrayLike | None,
        fixed_samples: ArrayLike | None,
        measured: ArrayLike | None,
        panel: ArrayLike | None,
        batch: ArrayLike | str | None,
        data_weights: WeightsLike | None,
    ) -> tuple[CountMatrix, Fitted]:
        penalty = penalty_of(self.penalty)
        check_solver(self.penalty, self.solver)
        counts, options = self.counts_of_fit(X, options.with_nan(is_nan(data_weights)))
        problem = problem_of_fit(
            self, counts, loadings=loadings, components=components, row_weights=row_weights,
            size_factors=size_factors, fixed_topics=fixed_topics, fixed_features=fixed_features,
            fixed_samples=fixed_samples, measured=measured, panel=panel, batch=batch,
            data_weights=data_weights,
        )  # fmt: skip
        used, seeded, batches = problem.used, problem.seeded, problem.batches
        if problem.entries is not None:
            self._take_totals(problem.observed)
        scaled = ScaledFit(
            used, problem.L, problem.F, problem.constraints, problem.sizes, self.n_components,
            self.fit_dtype(),
        )  # fmt: skip
        constraints = scaled.constraints
        n_starts = number_of_starts(self, given=problem.L is not None or problem.F is not None)
        needs = memory_of_fit(
            used, self.n_components, self.fit_dtype(), self.solver, self.threads_for(used),
            constraints=constraints, penalty=penalty, entries=problem.entries, batches=batches,
            n_starts=n_starts, n_moves=self.n_moves,
        )  # fmt: skip
        fitted = self.fit_blocks(
            used, needs,
            partial(self._make, scaled=scaled, seeds=None if seeded is None else seeded.pseudo),
            options,
            parts={"constraints": constraints.parts(), "start": (scaled.L, scaled.F, self.init)},
            weights=constraints.weights, n_starts=n_starts, solver=self.solver,
            extrapolate=self.extrapolate, inner_iter=self.inner_iter,
            **({} if batches is None else batches.about),
            **({} if penalty.only_rescales else vars(penalty)),
        )  # fmt: skip
        scaled.finish(fitted.arrays, fitted.history, self.solver, penalty)
        if problem.feature_weights is not None:
            fitted.arrays["F"] = unweighted_factors(
                fitted.arrays["F"], problem.feature_weights, problem.given_F, constraints
            )
        self._keep(fitted, problem.sizes)
        self._keep_problem(problem, constraints, fitted)
        return counts, fitted

    def _keep_problem(self, problem: FitProblem, constraints: Constraints, fitted: Fitted) -> None:
        """Set the attributes of what was fitted, and how."""
        seen = problem.seen
        if problem.seeded is not None:
            self.topic_names_ = problem.seeded.names
        self.has_size_factors_ = problem.sizes is not None
        self.moves_ = np.zeros(0, COLUMNS) if fitted.moves is None else fitted.moves
        self.starts_ = fitted.starts
        self.has_missing_entries_ = problem.entries is not None
        self._keep_constraints(constraints)
        self.measured_ = None if seen is None else seen.features
        self.panel_ = None if seen is None else seen.groups
        self._keep_batches(problem.batches, fitted)

    def _keep_constraints(self, constraints: Constraints) -> None:
        """Set the attributes of what was fixed, weighted or measured."""
        self.row_weights_ = constraints.weights
        self.fixed_topics_ = constraints.topics
        self.fixed_features_ = constraints.features
        self.fixed_samples_ = constraints.samples

    def needs_of_fit(
        self, counts: CountMatrix, n_components: int, dtype: FloatType, n_threads: int, **needs: Any
    ) -> Needs:
        """Return the memory of a fit without constraints, of several that share reads of a file."""
        return poisson_needs(counts, n_components, dtype, self.solver, n_threads, **needs)

    def find_unseen_features(self, counts: CountMatrix, arguments: dict[str, Any]) -> Array:
        prior: Any = self.prior_factors
        of_features = np.ndim(prior[0] if isinstance(prior, tuple) else prior) == 2
        if of_features or arguments["fixed_topics"] is not None:
            return np.zeros(counts.shape[1], bool)
        # totals, and not the counts, leave out missing entries
        unseen, fixed = self.feature_totals_ == 0, self.fixed_features_
        return unseen if fixed is None else unseen & ~fixed

    def _make(
        self, counts: CountMatrix, executor: Executor, rng: Any, *, scaled: ScaledFit,
        seeds: Array | None = None, number: int = 0, start: Any = None,
        weights: Array | None = None,
    ) -> Method:  # fmt: skip
        """Return the method for start `number`, or one given as a function without arguments.

        `weights` (n,) replace those of the samples.
        """
        K, dtype = self.n_components, self.fit_dtype()
        constraints = scaled.constraints
        if weights is not None:
            constraints = replace(constraints, weights=weights)
        if start is None:
            start = start_of_fit(
                counts, executor, K, self.init, constraints, number=number, rng=rng, dtype=dtype,
                L=scaled.L, F=scaled.F, measured=scaled.measured, seeds=seeds,
            )  # fmt: skip
        elif seeds is not None:
            start = partial(moved_start, start, seeds)
        make = method_of(
            self.solver, max_iter=self.max_iter, inner_iter=self.inner_iter,
            extrapolate=self.extrapolate, penalty=penalty_of(self.penalty),
        )  # fmt: skip
        made: Method = make(counts, executor, start, K, dtype, constraints)
        return made

    def _penalty_of(self, unit: Array | float) -> Penalty | None:
        penalty = penalty_of(self.penalty)
        on_components = penalty.on == "components"
        return None if on_components or penalty.only_rescales else penalty.scaled(unit)

    def _keep(self, fitted: Fitted, sizes: Array | None) -> None:
        """Set the attributes of a fit."""
        raise NotImplementedError
