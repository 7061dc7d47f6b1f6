"""What every estimator of factors shares: its parameters, and how it is fitted."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from inspect import signature
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions, validate_parameter_constraints

from ..counts.base import CountMatrix
from ..counts.warn import warn_caller
from ..engine.checkpoint import Checkpoint, checkpoints_for
from ..engine.memory import descent_bytes, plan_fit
from ..engine.monitor import Monitor
from ..engine.session import Site, client_of_fit, site_of_fit
from ..engine.threads import resolve_threads
from ..methods.conversion import balancing_scales
from ..methods.factors import MINVAL, Held
from ..methods.fit import SOLVERS, FitResult, fit_factors
from ..methods.initialize import STARTS, check_factors, initialize
from ..methods.transform import project_rows
from .transform import RowsTransformer
from .validation import checked_vector, what_is_held

Array = NDArray[Any]


class CountFactorization(RowsTransformer, BaseEstimator):
    """Base of the estimators that fit counts by a product of two non-negative factors."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "solver": [StrOptions(set(SOLVERS))],
        "init": [StrOptions(set(STARTS)), "array-like"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "inner_iter": [Interval(Integral, 1, None, closed="left"), None],
        "extrapolate": ["boolean"],
        "prior_factors": [Interval(Real, 1, None, closed="left"), "array-like", None],
        "prior_loadings": [Interval(Real, 1, None, closed="left"), "array-like", None],
        "integer": [StrOptions({"warn", "allow", "require"})],
        "dtype": [StrOptions({"float32", "float64"}), type, np.dtype, None],
        "n_threads": [Integral, None],
        "memory_limit": [Interval(Real, 0, None, closed="neither"), str, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "callback": [callable, None],
    }

    def __init__(
        self,
        n_components: int = 10,
        *,
        solver: str = "auto",
        init: Any = "auto",
        max_iter: int = 1000,
        tol: float = 1e-4,
        n_init: int = 1,
        inner_iter: int | None = None,
        extrapolate: bool = True,
        prior_factors: Any = None,
        prior_loadings: Any = None,
        integer: str = "warn",
        dtype: Any = None,
        n_threads: int | None = None,
        memory_limit: float | str | None = None,
        random_state: Any = None,
        verbose: int = 0,
        callback: Any = None,
    ):
        self.n_components = n_components
        self.solver = solver
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.inner_iter = inner_iter
        self.extrapolate = extrapolate
        self.prior_factors = prior_factors
        self.prior_loadings = prior_loadings
        self.integer = integer
        self.dtype = dtype
        self.n_threads = n_threads
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        L: ArrayLike | None = None,
        F: ArrayLike | None = None,
        row_weights: ArrayLike | None = None,
        size_factors: ArrayLike | None = None,
        fixed_topics: ArrayLike | None = None,
        fixed_features: ArrayLike | None = None,
        fixed_samples: ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        resume: bool = False,
        client: Any = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            Array, sparse matrix or array, DataFrame, AnnData, dask array of row chunks, path of
            a count file or packed store, or what :func:`as_counts` made of them.
        y : None
            Ignored.
        L : array-like of shape (n_samples, n_components), default=None
            Loadings to start from; `init` serves where they are not given. Zeros are raised to
            1e-10, which EM alone ("em", "joint-em") is slow to leave.
        F : array-like of shape (n_features, n_components), default=None
            Factors to start from, likewise.
        row_weights : array-like of shape (n_samples,), default=None
            Weight of each sample, non-negative: one of weight 2 counts as two alike.
        size_factors : array-like of shape (n_samples,), default=None
            Known positive sizes s_i: the expected counts are ``s_i (L F^T)_ij``.
        fixed_topics : array-like of bool of shape (n_components,), default=None
            Topics whose factors stay as given in `F`.
        fixed_features : array-like of bool of shape (n_features,), default=None
            Features whose rows of `F` stay as given.
        fixed_samples : array-like of bool of shape (n_samples,), default=None
            Samples whose rows of `L` stay as given.
        checkpoint : str or path-like, default=None
            Folder in which the state of the fit is saved while it runs (``solver="auto"``). With
            `n_init` > 1 each restart has a folder in it. It serves one fit at a time.
        checkpoint_every : float, default=60.0
            Seconds between checkpoints; 0 saves every iteration.
        resume : bool, default=False
            Go on from the newest checkpoint in the folder, if there is one. The fit ends with the
            same bits as one that was never stopped, wherever the counts are now.
        client : distributed.Client, default=None
            Dask cluster whose workers do the work (``solver="auto"``), with the same bits. By
            default that of the client that is active and not asynchronous, for counts in files and
            dask arrays, or this process. Workers that see the store and the folder of `checkpoint`
            (else the system's temporary folder) read and write there; to others everything is sent.
            Counts that are no packed store are packed first; those of a single block are fitted in
            this process.

        Returns
        -------
        self : object
            Fitted.

        Raises
        ------
        ValueError
            If the counts or a parameter are not valid, or something is to be held that was not
            given.
        OSError
            If a file is not there, cannot be read, or there is no room for what is written.
        MemoryLimitError
            If the fit needs more than `memory_limit`: a MemoryError.
        FloatingPointError
            If numbers overflow, which takes counts or a start many orders of magnitude from usual.
        CheckpointError
            If another fit uses the folder, or the checkpoints in it are of another, or damaged: a
            ValueError.
        ClusterError
            If the workers, or the scheduler, are gone for good, or a task fails again and again: a
            RuntimeError.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` iterations were not enough, or Ctrl-C ended the fit: the model is then
            the best so far. A second Ctrl-C raises KeyboardInterrupt at once.

        Examples
        --------
        Known factors stay, new ones are found beside them:

        >>> import numpy as np
        >>> from nmfscale import PoissonNMF
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> F = np.array([[2.0, 1.0], [0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
        >>> model = PoissonNMF(n_components=2, random_state=0)
        >>> model.fit(X, F=F, fixed_topics=[True, False]).components_[0]
        array([2., 0., 1., 0.])
        """
        self._fit(
            X, L=L, F=F, row_weights=row_weights, size_factors=size_factors,
            fixed_topics=fixed_topics, fixed_features=fixed_features,
            fixed_samples=fixed_samples, checkpoint=checkpoint,
            checkpoint_every=checkpoint_every, resume=resume, client=client,
        )  # fmt: skip
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Array:
        """Fit the model and return the loadings of `X`.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As in :meth:`fit`.
        y : None
            Ignored.
        **fit_params
            Passed to :meth:`fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            As :meth:`transform` gives them. ``loadings_`` holds those that the fit itself ended
            with, which agree to the tolerance of the fit where the loadings of a sample are unique
            and were not held.
        """
        given = signature(self.fit).bind(X, y, **fit_params)
        given.apply_defaults()
        counts = self._fit(X, **given.kwargs)  # checked and arranged once for both
        return self._loadings(counts, given.kwargs["size_factors"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to an HDF5 file, which :func:`nmfscale.load` reads.

        Parameters
        ----------
        path : str or path-like
            Where to write; an existing file is replaced.

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        TypeError
            If a parameter cannot be stored.
        OSError
            If the folder does not exist or cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> import nmfscale
        >>> model = nmfscale.PoissonNMF(n_components=1).fit([[1, 2], [2, 4]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(Path(folder, "model.h5"))
        ...     again = nmfscale.load(Path(folder, "model.h5"))
        >>> bool((again.components_ == model.components_).all())
        True
        """
        from .persistence import save_model

        save_model(self, path)

    def __sklearn_tags__(self) -> Any:
        """Say what scikit-learn may assume: sparse and non-negative input, its type kept."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"] if self.dtype is None else []
        return tags

    def _fit(
        self, X: Any, *, L: Any, F: Any, row_weights: Any, size_factors: Any, fixed_topics: Any,
        fixed_features: Any, fixed_samples: Any, checkpoint: Any, checkpoint_every: float,
        resume: bool, client: Any,
    ) -> CountMatrix:  # fmt: skip
        """Do as `fit` says, and return the counts."""
        self._check_parameters()
        before = self.__dict__.copy()
        try:
            given, client = client, client_of_fit(client, self.solver)
            counts = self._counts(X, reset=True, in_memory=client is None)
            if given is None and not counts.from_file:
                client = None
            dtype = self._dtype(counts)
            L, F = check_factors(L, F, counts, self.n_components)
            sizes = checked_vector(size_factors, counts.shape[0], "size_factors", positive=True)
            held = what_is_held(
                counts.shape, self.n_components, self.solver, L, F, sizes=sizes,
                row_weights=row_weights, topics=fixed_topics, features=fixed_features,
                samples=fixed_samples, prior_factors=self.prior_factors,
                prior_loadings=self.prior_loadings,
            )  # fmt: skip
            start = L
            if sizes is not None and L is not None:
                start = L * sizes[:, None].astype(dtype)
            how = {"every": checkpoint_every, "resume": resume}
            scales: Array = np.ones(self.n_components)
            if start is not None or F is not None:
                scales = balancing_scales(counts.total, counts.shape, start, F)
            start, F = (
                None if A is None else A * d.astype(A.dtype)
                for A, d in ((start, scales), (F, 1 / scales))
            )
            held = held.scaled(scales)
            best = self._fit_at_site(client, counts, start, F, dtype, held, checkpoint, how)
            best = best.scaled(scales, held)
            if sizes is not None:
                best = replace(best, L=best.L / sizes[:, None].astype(dtype))
            if held.samples is not None:  # to the bit: neither rounded nor raised to the floor
                best.L[held.samples] = L[held.samples]
            self._keep(best, sizes)
        except BaseException:
            # neither half fitted nor with names that are not those of the factors
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        self._warn_unless_converged(best)
        return counts

    def _keep(self, result: FitResult, sizes: Array | None) -> None:
        raise NotImplementedError

    def _check_parameters(self) -> None:
        validate_parameter_constraints(
            self._parameter_constraints,
            self.get_params(deep=False),
            caller_name=type(self).__name__,
        )
        # which Python, and so scikit-learn, take for numbers
        for name in ("n_components", "max_iter", "tol", "n_init", "inner_iter", "memory_limit"):
            if isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)}; a number is needed.")

    def _dtype(self, counts: CountMatrix) -> np.dtype[Any]:
        if self.dtype is None:
            return np.dtype(np.float32 if counts.dtype == np.float32 else np.float64)
        dtype = np.dtype(self.dtype)
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype={self.dtype!r}: the fit is done in float32 or float64.")
        return dtype

    def _plan(self, counts: CountMatrix, dtype: Any, site: Site | None) -> str | None:
        """Decide what stays in memory, and where loadings are kept if they do not."""
        n_threads = resolve_threads(self.n_threads)
        if counts.from_file:
            counts.layout(n_threads)  # the first to ask decides on the threads
        scratch = descent_bytes(counts, self.n_components, dtype, self.solver, n_threads)
        plan = plan_fit(
            counts, self.n_components, dtype, self.memory_limit, elsewhere=site is not None,
            scratch=scratch,
        )  # fmt: skip
        if counts.from_file and plan.keep:
            counts.layout().keep()
        if self.verbose and (self.memory_limit is not None or counts.from_file):
            print(plan, file=sys.stderr)
        return plan.folder

    def _fit_at_site(
        self, client: Any, counts: CountMatrix, L: Any, F: Any, dtype: Any, held: Held,
        checkpoint: Any, how: dict[str, Any],
    ) -> FitResult:  # fmt: skip
        """Fit `n_init` times where the work is done, and return the best."""
        rng = check_random_state(self.random_state)
        with site_of_fit(
            client, counts, self.n_components, n_threads=self.n_threads, verbose=self.verbose,
            checkpoint=checkpoint, resume=how["resume"],
        ) as (counts, site):  # fmt: skip
            folder = self._plan(counts, dtype, site)
            seed = self.random_state
            checkpoints = checkpoints_for(
                checkpoint, self.n_init, counts, self.n_components, dtype, held, (L, F, self.init),
                solver=self.solver, extrapolate=self.extrapolate,
                random_state=int(seed) if isinstance(seed, Integral) else None, **how,
            )  # fmt: skip
            best: FitResult | None = None
            for saved in checkpoints:
                result = self._fit_once(counts, L, F, rng, dtype, held, folder, saved, site)
                if best is None or result.loglik > best.loglik:
                    best = result
                if result.interrupted:
                    break
        assert best is not None
        return best

    def _fit_once(
        self, counts: CountMatrix, L: Any, F: Any, rng: Any, dtype: Any, held: Held,
        folder: str | None, checkpoint: Checkpoint | None, site: Site | None,
    ) -> FitResult:  # fmt: skip
        monitor = Monitor(self.max_iter, self.tol, verbose=self.verbose, callback=self.callback)
        n_threads = resolve_threads(self.n_threads)
        if L is None or F is None:
            start_L, start_F = self._start(counts, F, rng, dtype, n_threads, site)
            L, F = start_L if L is None else L, start_F if F is None else F
        return fit_factors(
            counts, L, F, monitor, solver=self.solver, inner_iter=self.inner_iter,
            extrapolate=self.extrapolate, dtype=dtype, n_threads=n_threads, held=held,
            folder=folder, checkpoint=checkpoint, site=site,
        )  # fmt: skip

    def _start(
        self, counts: CountMatrix, F: Any, rng: Any, dtype: Any, n_threads: int, site: Site | None
    ) -> tuple[Array, Array]:
        def fit_rows(factors: Array, loadings: Array) -> Array:
            how = {"L": loadings, "n_steps": 4, "dtype": dtype}
            if site is not None:
                return site.project_rows(counts, factors, **how)
            return project_rows(counts, factors, n_threads=n_threads, **how)

        if F is None:
            return initialize(
                counts,
                self.n_components,
                self.init,
                random_state=rng,
                dtype=dtype,
                fit_rows=fit_rows,
            )
        F = np.maximum(F, MINVAL)  # a component of zeros could not be lifted by EM
        equal = counts.row_totals[:, None] / (self.n_components * F.sum(axis=0))
        return np.maximum(fit_rows(F, equal.astype(dtype)), MINVAL), F

    def _warn_unless_converged(self, result: FitResult) -> None:
        if not result.interrupted and (result.converged or result.stopped or self.tol == 0):
            return
        what, remedy = "has not converged", "Increase max_iter, or start"
        if result.interrupted:
            what, remedy = "was interrupted", "Start"
        last = result.history[-1]
        warn_caller(
            f"{type(self).__name__} {what} after {len(result.history)} iterations: "
            "the relative KKT residual is "
            f"{max(last['kkt_loadings'], last['kkt_factors']):.2e}, tol={self.tol:g}. "
            f"{remedy} from the factors of this fit.",
            ConvergenceWarning,
        )
