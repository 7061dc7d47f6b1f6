"""What a model implements of its fit; `docs/engine.md` describes all that other packages use."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from ..counts.argument_types import Client
from ..counts.base import CountMatrix
from ..engine.protocol import Method
from ..methods.rows_pass import RowsPass
from .fitted import Fitted

Array = NDArray[Any]

# Members of `CountModel` for those who write a model, which users of one do not need.
HOOKS = frozenset(
    # that a model overrides
    "array_axes completion_factors completion_loadings find_unseen_features fit_counts "
    "float32_needs_less "
    "fits_short_samples log_probability merged_arrays method_class needs_of_fit "
    "parameters_free_to_change parameters_of_refits parameters_of_topics pass_of_loadings "
    "reported_objective "
    "start_arguments stopping_tolerance why_not_merged "
    # that it calls
    "check_memory counts_of_fit fit_blocks fit_dtype run_fit threads_for where_to_run".split()
)


class FitHooks:
    """What a fit asks of a model; a model defines `method_class` and `fit_counts`.

    Attributes
    ----------
    method_class : type
        Class of the method, which names the columns of the history and the residuals.
    reported_objective : str or None
        Column of the history in a table of fits; None means the objective.
    parameters_free_to_change : tuple of str
        Parameters of a model of another package that do not change its fit, so that a fit can be
        resumed with other values.
    float32_needs_less : bool
        Whether a fit with ``dtype="float32"`` needs less memory.
    """

    method_class: ClassVar[type[Method]]
    parameters_free_to_change: ClassVar[tuple[str, ...]] = ()
    float32_needs_less: ClassVar[bool] = True
    reported_objective: ClassVar[str | None] = None
    tol: float | None

    def fit_counts(self, X: Any, *options: Any, **arguments: Any) -> tuple[CountMatrix, Fitted]:
        """Fit, and set all attributes except the history.

        Parameters
        ----------
        X : counts of shape (n_samples, n_features)
            As the user gave them.
        *options
            The `FitOptions`: arguments of `fit` that all models have.
        **arguments
            Other arguments of `fit`, unchecked.

        Returns
        -------
        counts : CountMatrix
            Counts of the fit.
        fitted : Fitted
            What `fit_blocks` returned.
        """
        raise NotImplementedError

    def find_unseen_features(self, counts: CountMatrix, arguments: dict[str, Any]) -> Array:
        """Return the features without counts in a fit, whose factors nothing else determines.

        Parameters
        ----------
        counts : CountMatrix
            Counts of the fit.
        arguments : dict
            Arguments of `fit_counts` by name; empty in `partial_fit`.

        Returns
        -------
        ndarray of shape (n_features,), bool
            By default the features whose counts are all 0.
        """
        unseen: Array = counts.column_nnz == 0
        return unseen

    @property
    def fits_short_samples(self) -> bool:
        """Whether the model suits samples with few counts, so that no other one is advised."""
        return False

    @property
    def stopping_tolerance(self) -> float:
        """Tolerance at which a fit ends: `tol`, unless None has a meaning in this model."""
        assert self.tol is not None
        return self.tol


class LoadingsHooks:
    """How a model finds loadings of new samples, `pass_of_loadings`, and scores samples."""

    components_: Array

    def pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, **arguments: Any
    ) -> RowsPass:
        """Return the pass that finds loadings; raise an error if memory is short of it.

        Parameters
        ----------
        counts : CountMatrix
            Samples whose loadings to find.
        gathered : bool
            Whether all loadings will be in memory, for `check_memory`.
        **arguments
            Arguments of `transform` that only this model has.

        Returns
        -------
        RowsPass
            The steps and their arrays.
        """
        raise NotImplementedError

    @property
    def completion_factors(self) -> Array:
        """Factors (n_features, n_components) that belong to the loadings of a completion."""
        return self.components_.T

    def log_probability(self, counts: CountMatrix, client: Client) -> float:
        """Return the log-probability of counts, with loadings fitted to them.

        Parameters
        ----------
        counts : CountMatrix
            Samples to score.
        client : distributed.Client or None
            Cluster that does the work.

        Returns
        -------
        float
            Sum over the samples; or a lower bound of it.
        """
        raise NotImplementedError
