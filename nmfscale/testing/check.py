"""check_model: all checks of the contract, one after the other."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from ..models.base import CountModel
from . import checks, doors, places
from .case import Array, ModelCase

Check = Callable[[Path], None]


def check_model(
    estimator: CountModel,
    *,
    objective: Callable[[Any, Array], Any] | None = None,
    rises: bool = True,
    fit_params: Mapping[str, Any] | None = None,
    client: Any = None,
) -> list[str]:
    """Check that a model keeps the contract of all models of counts.

    It is fitted to small counts, and must give the same bits in memory, in files, with any number
    of threads, when it is resumed in another place, and for any type of the counts. Model files and
    AnnData objects must restore it; numbers must be finite; its objective must be that of its
    arrays and must not fall; functions that take any model must take it. scikit-learn's checks of
    estimators are among the checks.

    Parameters
    ----------
    estimator : CountModel
        The model, unfitted. Parameters other than `n_components`, `max_iter`, `tol`,
        `random_state`, `n_threads` and `callback` are those of all fits. With 3 components, the
        default, most checks take less than a second.
    objective : callable, default=None
        ``objective(fitted, X)`` returns the objective of the fitted arrays, computed in plain
        NumPy from the counts X (90, 60): the first column of ``history_`` after the iteration and
        the seconds. Without it, this check is left out.
    rises : bool, default=True
        Whether the objective rises in every iteration.
    fit_params : mapping, default=None
        Further arguments of `fit`, such as labels `y` of 90 samples.
    client : distributed.Client, default=None
        A cluster, on which fits and loadings are then checked, too. Its workers must be able to
        import the model.

    Returns
    -------
    list of str
        The checks that were skipped, and why.

    Raises
    ------
    AssertionError
        If the model does not keep a promise; other errors are those that it raises. A note names
        the check: ``model_checks(estimator)[name](folder)`` repeats it.

    Examples
    --------
    >>> from nmfscale import FrobeniusNMF
    >>> from nmfscale.testing import check_model, model_checks
    >>> skipped = check_model(FrobeniusNMF(3))  # doctest: +SKIP

    As a test of a package, one for each check:

    >>> import pytest
    >>> checks = model_checks(FrobeniusNMF(3))
    >>> @pytest.mark.parametrize("name", checks)
    ... def test_the_contract(name, tmp_path):
    ...     checks[name](tmp_path)
    >>> list(checks)[:3]
    ['scikit_learn', 'types_of_counts', 'sizes_of_counts']
    """
    skipped = list[str]()
    all_checks = model_checks(
        estimator, objective=objective, rises=rises, fit_params=fit_params, client=client
    )
    for name, check in all_checks.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Path(folder))
            except pytest.skip.Exception as reason:
                skipped.append(f"{name}: {reason}")
            except BaseException as error:
                error.add_note(f"in the check {name!r} of {type(estimator).__name__}")
                raise
    return skipped


def model_checks(
    estimator: CountModel,
    *,
    objective: Callable[[Any, Array], Any] | None = None,
    rises: bool = True,
    fit_params: Mapping[str, Any] | None = None,
    client: Any = None,
) -> dict[str, Check]:
    """Return the checks of :func:`check_model` by name, to run each as a test of its own.

    Parameters
    ----------
    estimator, objective, rises, fit_params, client
        As in :func:`check_model`.

    Returns
    -------
    dict of str to callable
        Each takes an empty folder, and raises an error unless the promise is kept. A check that
        does not apply to the model, or needs a package that is not installed, skips its test.

    Raises
    ------
    TypeError
        If `estimator` is not an object of a class derived from CountModel.

    Examples
    --------
    See :func:`check_model`.
    """
    if not isinstance(estimator, CountModel):
        raise TypeError(
            f"estimator is {estimator!r}: an unfitted model is needed, an object of a class "
            "derived from nmfscale.models.CountModel."
        )
    case = _case_of(estimator, objective, rises, fit_params)
    by_name: dict[str, Check] = {}
    functions: tuple[Callable[..., None], ...] = (
        checks.check_scikit_learn, checks.check_types_of_counts, checks.check_sizes_of_counts,
        checks.check_model_file, checks.check_plots, checks.check_layer_and_raw,
        *(partial(checks.check_objective, dtype=dtype) for dtype in ("float64", "float32")),
        *(partial(checks.check_objective_rises, seed=seed) for seed in range(3)),
        checks.check_seed, checks.check_end, checks.check_single_samples,
        checks.check_parameters_at_resume, doors.check_annotated, doors.check_inference,
        doors.check_bootstrap, doors.check_stability,
    )  # fmt: skip
    for function in functions:
        by_name[_name_of(function)] = partial(_in_folder, function, case)
    for place in "file", "store":
        by_name[f"place-{place}"] = partial(_in_places, places.check_place, case, None, place)
        by_name[f"new_samples-{place}"] = partial(
            _in_places, places.check_new_samples, case, None, place
        )
    order = ["memory", "store", "file", "memory"]
    by_name["resumed"] = partial(_in_places, places.check_resumed, case, None, order)
    if client is not None:
        order = ["memory", "cluster", "file", "cluster"]
        by_name["resumed-cluster"] = partial(_in_places, places.check_resumed, case, client, order)
        by_name["new_samples-cluster"] = partial(
            _in_places, places.check_new_samples_on_cluster, case, client
        )
    return by_name


def _case_of(
    estimator: CountModel, objective: Any, rises: bool, fit_params: Mapping[str, Any] | None
) -> ModelCase:
    """Return the case of an estimator, whose parameters are kept where they are not the default."""
    declared = signature(type(estimator)).parameters
    parameters = estimator.get_params(deep=False)
    variant = {
        name: value for name, value in parameters.items() if value is not declared[name].default
    }
    variant.pop("n_components", None)
    return ModelCase(
        type(estimator), objective, estimator.n_components, variant=variant,
        given=dict(fit_params or {}), rises=rises,
    )  # fmt: skip


def _name_of(function: Any) -> str:
    """Return the name of a check, with its options."""
    options = getattr(function, "keywords", {}).values()
    words = getattr(function, "func", function).__name__.removeprefix("check_"), *map(str, options)
    return "-".join(words)


def _in_folder(function: Callable[..., None], case: ModelCase, folder: Path) -> None:
    """Run a check of counts in memory."""
    takes_folder = "folder" in signature(function).parameters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(case, folder) if takes_folder else function(case)


def _in_places(function: Callable[..., None], case: ModelCase, client: Any, *how: Any) -> None:
    """Run a check of counts in several places, in small blocks; the folder is the last argument."""
    *options, folder = how
    with places.small_blocks(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(case, places.Places(folder, lambda: client), *options)
