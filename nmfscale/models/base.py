"""Base of the estimators: parameters, and fits in memory, from files or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from inspect import signature
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from ..counts.argument_types import Callback, CountsLike, FloatType, RandomStateLike
from ..counts.base import CountMatrix
from ..counts.depth import warn_of_depth
from ..counts.integers import IntegerPolicy
from ..counts.short_samples import warn_of_short_samples
from ..counts.warn import collected_warnings, warn_caller, warn_outside
from ..engine import progress
from ..engine.checkpoint import checkpoints_for, described
from ..engine.local import LocalExecutor
from ..engine.memory import plan_fit
from ..engine.monitor import Monitor
from ..engine.plan import end_if_planned
from ..engine.protocol import Executor, Method, Needs
from ..engine.session import ClusterSession, session_of_fit
from ..methods.poisson.objective import beyond_float32
from ..readers.streams.file_counts import FileCounts
from ..terminal import print_message
from .arguments.fit_options import FitOptions
from .arguments.inputs import client_for, with_names
from .arguments.parameters import CheckedParameters, check_values, estimator
from .arguments.starts import StartsMixin
from .fitted import Fitted
from .hooks import FitHooks
from .seed_shares import warn_of_left_seeds
from .starts import Starts
from .topics.topics import TopicsMixin
from .transform import RowsTransformer

Array = NDArray[Any]


def is_of_package(model: type) -> bool:
    """Whether a class is one of this package."""
    return model.__module__.split(".")[0] == __name__.split(".")[0]


class _Iterated:
    """Types of attributes of all estimators that are parameters of some, and of `seed_`."""

    max_iter: int
    tol: float | None
    gain_tol: float | None = None
    n_init: int | Literal["auto"]
    n_moves: int = 0
    seed_: int | None


@estimator
class CountModel(
    FitHooks, TopicsMixin, StartsMixin, RowsTransformer, CheckedParameters, _Iterated,
    BaseEstimator,
):  # fmt: skip
    """Base of the estimators of counts; a `Method` defines the fit.

    Parameters are fields of a dataclass, which generates the `__init__` that scikit-learn inspects.
    The fields of this class are parameters of all models.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "integer": [StrOptions(set(get_args(IntegerPolicy)))],
        "dtype": [StrOptions({"float32", "float64"}), type, np.dtype, None],
        "n_threads": [Integral, None],
        "memory_limit": [Interval(Real, 0, None, closed="neither"), str, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "callback": [callable, None],
    }
    # Whether rows of `loadings_` sum to one, whatever the total of the sample.
    loadings_are_proportions: ClassVar[bool] = False
    # Whether the fit of the best of several starts is continued to its end: see `fit_blocks`.
    continues_starts: ClassVar[bool] = False
    # Models of other packages by name, which are read from files and AnnData objects.
    of_others: ClassVar[dict[str, type[CountModel]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a model that is not of this package, by its name."""
        super().__init_subclass__(**kwargs)
        if not is_of_package(cls):
            CountModel.of_others[cls.__name__] = cls
            warn_outside(cls)

    n_components: int = field(default=10, kw_only=False)
    integer: IntegerPolicy = "warn"
    dtype: FloatType | None = None
    n_threads: int | None = None
    memory_limit: float | str | None = None
    random_state: RandomStateLike | None = None
    verbose: int = 0
    callback: Callback | None = None

    def fit_transform(self, X: CountsLike, y: ArrayLike | None = None, **fit_params: Any) -> Array:
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
            Loadings as computed by :meth:`transform`. ``loadings_`` holds the loadings at the end
            of the fit; they agree up to the tolerance of the fit if the loadings of a sample are
            unique and were not fixed.
        """
        bound = signature(self.fit).bind(X, y, **fit_params)
        bound.apply_defaults()
        # checked and arranged once for fit and transform
        arguments = bound.kwargs
        options = FitOptions.pop(arguments)
        model, counts = self._knowing(self.run_fit(X, options, **arguments), arguments)
        counts = model._explained(counts)
        both = signature(self.pass_of_loadings).parameters.keys() & arguments.keys()
        with progress.shown(self.verbose, "transform", counts.shape[0]):
            loadings = model._loadings(
                counts, client=client_for(counts, options.client),
                **{name: arguments[name] for name in both},
            )  # fmt: skip
        return self._with_index(loadings, with_names(X, counts, options.reading), counts)

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

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Show the topics of a fitted model in a notebook, below scikit-learn's diagram."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle

    def _repr_html_inner(self) -> str:
        html: str = super()._repr_html_inner()
        if not hasattr(self, "components_"):
            return html
        from .topics.notebook import topics_html

        return html + topics_html(self)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that input may be sparse, is non-negative, and keeps its type."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"] if self.dtype is None else []
        return tags

    def run_fit(self, X: CountsLike, options: FitOptions, **arguments: Any) -> CountMatrix:
        """Fit by `fit_counts`, and return the counts; if that fails, the estimator is unchanged."""
        check_values(self)
        self._check_reading(options.source)
        with collected_warnings() as messages:
            with self._all_or_nothing():
                self.seed_ = self._drawn_seed()
                counts, fitted = self.fit_counts(X, options, **arguments)
            self.unseen_features_ = self.find_unseen_features(counts, arguments)
            self.history_ = fitted.history
            self.converged_ = fitted.converged
            self.stop_reason_ = fitted.reason
            self.interrupted_ = fitted.interrupted
            self.n_iter_ = len(fitted.history)
            self._warn_unless_converged(fitted)
            warn_of_left_seeds(self)
            if arguments.get("batch") is None:
                warn_of_depth(counts)
        self.warnings_ = np.array(messages, object)
        return counts

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the estimator if the code in this context fails."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            # so that the model is never half fitted, and its names match its factors
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def counts_of_fit(self, X: CountsLike, options: FitOptions) -> tuple[CountMatrix, FitOptions]:
        """Return the counts of a fit, and its options with the client to use, if any."""
        counts, client = self._read_for(X, options.client, options.reading)
        self._take_names(with_names(X, counts, options.reading), counts)
        self._warn_of_many_components(counts)
        self._check_unmeasured(counts)
        self._check_feature_weights(counts)
        if not self.fits_short_samples:
            warn_of_short_samples(counts)
        return counts, replace(options, client=client)

    def _warn_of_many_components(self, counts: CountMatrix) -> None:
        """Warn before any work if there are more components than samples or features."""
        least = min(counts.shape)
        if self.n_components <= max(least, 1):
            return
        side = "samples" if least == counts.shape[0] else "features"
        warn_caller(
            f"n_components={self.n_components:,} is more than the {least:,} {side} of X, "
            f"{counts.shape[0]:,} x {counts.shape[1]:,}: {least:,} components explain X as well, "
            f"and further ones have no meaning. Set n_components to a number far below {least:,}."
        )

    def _drawn_seed(self) -> int | None:
        """Return the seed of a fit: `random_state`, a new seed, or None for a generator."""
        if self.random_state is None:
            return int(check_random_state(None).randint(np.iinfo(np.int32).max))
        return int(self.random_state) if isinstance(self.random_state, Integral) else None

    def _generator(self) -> np.random.RandomState:
        return check_random_state(self.random_state if self.seed_ is None else self.seed_)

    def fit_dtype(self) -> np.dtype[Any]:
        """Return the floating-point type of a fit, whatever the type of the counts."""
        dtype = np.dtype(np.float64 if self.dtype is None else self.dtype)
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype={self.dtype!r}: the fit is done in float32 or float64.")
        return dtype

    def _plan(
        self, counts: CountMatrix, needs: Needs, session: ClusterSession | None, n_threads: int
    ) -> Any:
        """Decide what stays in memory, and where row arrays are kept otherwise."""
        plan = plan_fit(
            counts, needs, self.memory_limit, elsewhere=session is not None,
            in_float64=self.float32_needs_less and self.fit_dtype() == np.float64,
            n_threads=n_threads,
        )  # fmt: skip
        if counts.from_file and plan.keep:
            counts.layout(n_threads).keep()
        if self.verbose and (self.memory_limit is not None or counts.from_file):
            print_message(str(plan))
            if isinstance(counts, FileCounts) and not plan.keep:
                remedy = "a packed store is faster (nmfscale store, write_store)"
                print_message(f"the file is decoded in every iteration; {remedy}")
        return plan.folder

    def fit_blocks(
        self, counts: CountMatrix, needs: Needs, make: Callable[..., Method], options: FitOptions,
        *, parts: dict[str, Iterable[Any]], weights: Array | None = None,
        n_starts: int | None = None, **about: Any,
    ) -> Fitted:  # fmt: skip
        """Run all starts in this process or on the cluster, and return the best fit.

        Parameters
        ----------
        counts : CountMatrix
            Counts of the fit.
        needs : Needs
            Memory that a fit needs besides the counts.
        make : callable
            ``make(counts, executor, rng)`` makes the method, without finding its start. Of a model
            that continues starts, it also takes the `number` of a start, or `start`, a function
            that returns factors, and `weights` of samples in place of those of the fit.
        options : FitOptions
            Options that `counts_of_fit` returned.
        parts : dict of str to iterables of arrays
            Arrays that must be equal to resume the fit of a checkpoint, such as the start; an
            array may be None. Parameters that only a model of another package has are compared by
            themselves.
        weights : ndarray of shape (n_samples,), default=None
            Weights of the samples in the choice of moves.
        n_starts : int, default=None
            Number of starts; by default `n_init`.
        **about
            Numbers and text that must be equal to resume the fit of a checkpoint.

        Returns
        -------
        Fitted
            The best fit.
        """
        end_if_planned(counts, needs)
        seed, n_threads = self.random_state, self.threads_for(counts)
        n_starts = int(self.n_init if n_starts is None else n_starts)
        with session_of_fit(
            options.client, counts, needs, n_threads=self.n_threads, verbose=self.verbose,
            checkpoint=options.checkpoint, resume=options.resume,
        ) as (counts, session):  # fmt: skip
            folder = self._plan(counts, needs, session, n_threads)
            checkpoints = checkpoints_for(
                options.checkpoint, n_starts, counts, parts, every=options.checkpoint_every,
                n_moves=self.n_moves, continued=self.continues_starts, resume=options.resume,
                n_components=self.n_components, dtype=str(self.fit_dtype()),
                random_state=int(seed) if isinstance(seed, Integral) else None,
                **{f"parameter {name}": value for name, value in self._own_parameters().items()},
                **about,
            )  # fmt: skip
            starts = Starts(
                partial(make, counts), _executors(counts, session, n_threads, folder),
                self._monitors(counts, n_threads), checkpoints, self._generator(), self.seed_,
                n_starts=n_starts, n_moves=self.n_moves, verbose=self.verbose,
                continues=self.continues_starts and self.stopping_tolerance > 0,
            )  # fmt: skip
            fitted = starts.best(counts, weights)
        self.seed_ = starts.seed  # that of the resumed fit
        return fitted

    def _monitors(self, counts: CountMatrix, n_threads: int) -> Callable[..., Monitor]:
        """Return a function that returns the monitor of a fit."""
        return partial(
            Monitor, self.method_class, max_iter=self.max_iter, tol=self.stopping_tolerance,
            gain_tol=self.gain_tol, verbose=self.verbose, callback=self.callback,
            doubtful=self._doubtful_ends(counts, n_threads),
        )  # fmt: skip

    def _own_parameters(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the parameters that no model of this package has.

        Those of this package name what they compare in `fit_blocks`.
        """
        bases = [base for base in type(self).__mro__ if issubclass(base, CountModel)]
        of_package = {
            name for base in bases if is_of_package(base) for name in base._get_param_names()
        }
        of_all = of_package | _Iterated.__annotations__.keys() | {*self.parameters_free_to_change}
        values = self.get_params(deep=False)
        return {name: described(values[name]) for name in values.keys() - of_all}

    def _doubtful_ends(self, counts: CountMatrix, n_threads: int) -> tuple[str, ...]:
        """Return reasons to end that are unreliable in float32, whose rounding may hide a gain."""
        if self.fit_dtype() == np.float64:
            return ()
        return ("plateau", "converged") if beyond_float32(counts, n_threads) else ("plateau",)

    def _warn_unless_converged(self, fitted: Fitted) -> None:
        interrupted = fitted.reason == "interrupted"
        if not interrupted and (fitted.reason != "max_iter" or not self.stopping_tolerance):
            return
        what, remedy = "has not converged", "Increase max_iter, or start"
        if interrupted:
            what, remedy = "was interrupted", "Start"
        residual = max(fitted.history[name][-1] for name in self.method_class.residuals)
        warn_caller(
            f"{type(self).__name__} {what} after {len(fitted.history)} iterations: "
            f"the {self.method_class.residual_name} is {residual:.2e}, "
            f"tol={self.stopping_tolerance:g}. "
            f"{remedy} from the {self.method_class.result_name} of this fit.",
            ConvergenceWarning,
        )


def _executors(
    counts: CountMatrix, session: ClusterSession | None, n_threads: int, folder: Any
) -> Callable[[], Executor]:
    """Return a function that returns a new executor, of this process or of the cluster."""
    if session is not None:
        return partial(session.executor, cast(Any, counts), n_threads)
    return lambda: LocalExecutor(counts.layout(n_threads), n_threads, folder)
