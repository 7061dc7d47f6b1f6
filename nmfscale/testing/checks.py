"""What a model promises for counts in memory: types, files of models, objectives, ends of fits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from itertools import product
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions, make_constraint
from sklearn.utils.estimator_checks import check_estimator

from ..engine.checkpoint import CheckpointError
from ..get import top_features
from ..models.base import CountModel
from ..models.persistence import load_model
from .case import Array, ModelCase, X, numbers
from .places import StopError, stop_at

# Parameters for the checks of scikit-learn, whose tables are small.
OF_SKLEARN = {"n_components": 2, "max_iter": 40, "tol": 1e-3}
# Rows of three counts each, whose magnitudes differ.
ROWS = ((2.0**52, 2.0, 0.0), (0, 0, 0), (1e-3, 255, 1), (65_536, 0, 2.0**31), (0, 2.0**53, 1))


def check_scikit_learn(case: ModelCase) -> None:
    """Run scikit-learn's checks of estimators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(case.make(**OF_SKLEARN))


def check_types_of_counts(case: ModelCase) -> None:
    """Check that the type of the counts changes no bit."""
    # of counts that are not whole the type is kept as it was given
    for counts, types in ((X, ("int32", "float32", "float64")), (X / 4, ("float64", "float32"))):
        seen = []
        for dtype in types:
            typed = counts.astype(dtype)
            fitted = case.make(max_iter=8, integer="allow").fit(typed, **case.given)
            loadings = fitted.transform(typed)
            assert loadings.dtype == (np.float32 if dtype == "float32" else np.float64)
            score = fitted.score(typed, **case.given)
            seen.append((numbers(fitted), loadings.astype(np.float32).tobytes(), score))
        assert seen[1:] == seen[:1] * (len(types) - 1)


def check_sizes_of_counts(
    case: ModelCase, rows: Sequence[Sequence[float]] = ROWS, **fit_params: Any
) -> None:
    """Check that counts of all sizes give finite numbers; `fit_params` are arguments of `fit`."""
    counts = np.array(rows) * 1.0
    counts[0, 0] = max(counts[0, 0], 1)
    if "y" in case.given:
        fit_params["y"] = case.given["y"][: len(rows)]
    fitted = case.make(n_components=2, max_iter=5).fit(counts, **fit_params)
    results = [fitted.transform(counts), fitted.score(counts, fit_params.get("y"))]
    for values in (*vars(fitted).values(), *results):
        if isinstance(values, float | np.ndarray) and np.asarray(values).dtype.kind == "f":
            assert np.isfinite(values).all()


def check_model_file(case: ModelCase, folder: Path) -> None:
    """Check that a saved model comes back with all of its numbers, without `classes`."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X).add_prefix("feature ")
    one = case.make().fit(frame, **case.given)
    one.save(folder / "model.h5")
    other: Any = load_model(folder / "model.h5")
    assert type(other) is case.estimator and other.get_params() == one.get_params()
    assert numbers(other, but=()) == numbers(one, but=())
    assert list(other.feature_names_in_) == list(frame.columns)
    turned = other.reorder_topics(range(len(other.components_))[::-1])
    for model in one, other, turned:
        assert model.sample_totals_.dtype == float
        assert model.sample_totals_.tolist() == X.sum(axis=1).tolist()
    assert other.transform(frame).tobytes() == one.transform(frame).tobytes()


def check_single_samples(case: ModelCase) -> None:
    """Check that the loadings of a sample have the same bits whatever the other samples are."""
    fitted = case.fitted(max_iter=5)
    together = fitted.transform(X)
    for row in 0, 7, len(X) - 1:
        alone = fitted.transform(X[row : row + 1])
        assert alone.tobytes() == together[row : row + 1].tobytes(), (
            f"the loadings of sample {row} depend on the other samples"
        )


def check_parameters_at_resume(case: ModelCase, folder: Path) -> None:
    """Check that no fit is resumed with another value of a parameter that changes the fit.

    One other value of each parameter is tried, except of those that all models have.
    """
    values = case.make().get_params(deep=False)
    constraints = case.estimator._parameter_constraints
    others = {
        name: other_value(constraints[name], values[name])
        for name in values.keys() - {*CountModel._parameter_constraints, "gain_tol", "n_moves"}
    }
    others = {name: value for name, value in others.items() if value is not None}
    if not case.can("checkpoint") or not others:
        pytest.skip("this model has no checkpoints, or no parameters of its own")
    fit_arguments = case.given | {"checkpoint": folder / "state", "checkpoint_every": 0}
    with pytest.raises(StopError):
        case.make(callback=stop_at(2)).fit(X, **fit_arguments)
    expected = numbers(case.fitted())
    for name, value in others.items():
        try:
            case.make(callback=stop_at(3), **{name: value}).fit(X, **fit_arguments, resume=True)
        except CheckpointError:
            continue
        except StopError:
            assert numbers(case.fitted(**{name: value})) == expected, (
                f"a fit is resumed with {name}={value!r}, which changes it"
            )


def other_value(constraints: Sequence[Any], value: Any) -> Any:
    """Return a value of a parameter that differs from this one; None if none is known."""
    number = value if isinstance(value, Real) and not isinstance(value, bool) else 1
    for constraint in map(make_constraint, constraints):
        if isinstance(constraint, StrOptions):
            likely = sorted(constraint.options)
        elif isinstance(constraint, Interval):
            likely = [number, 2 * number, number / 2, number + 1, number - 1, 1]
        else:
            likely = [True, False] if isinstance(value, bool) else []
        for candidate in likely:
            if candidate != value and constraint.is_satisfied_by(candidate):
                return candidate
    return None


def check_plots(case: ModelCase) -> None:
    """Check that the plots take what a fit leaves behind."""
    pytest.importorskip("matplotlib")
    from .. import pl
    from ..pl.canvas import detached_axes

    fitted = case.fitted()
    K, drawn = len(fitted.components_), detached_axes(9, 4, 3)
    structure = pl.structure_plot(fitted.loadings_, ax=drawn[0])
    features = pl.top_features_plot(fitted.components_, ax=drawn[1])
    progress = pl.progress_plot({case.name: fitted.history_}, ax=drawn[2])
    structure.figure.canvas.draw()
    assert len({tuple(color) for color in structure.collections[-1].get_facecolors()}) == K
    assert len(top_features(fitted.components_)) == K and features.texts
    name = fitted.history_.dtype.names[2]
    words = {"loglik": "log-likelihood", "elbo": "ELBO"}.get(name, name.replace("_", " "))
    assert progress.get_ylabel() == f"distance to best {words}"
    assert progress.lines[0].get_ydata().max() > 0.01 + progress.lines[0].get_ydata().min()


def check_layer_and_raw(case: ModelCase, folder: Path) -> None:
    """Check that layers and raw counts of AnnData, also in a file, give the same numbers."""
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(sp.csr_matrix(X))
    adata.raw, adata.layers["counts"] = adata, adata.X
    adata.X = np.log1p(X)
    adata.write_h5ad(folder / "cells.h5ad")
    one = case.fitted(max_iter=3)
    choices: tuple[dict[str, Any], ...] = {"layer": "counts"}, {"raw": True}
    for source, choice in product((adata, folder / "cells.h5ad"), choices):
        other = case.make(max_iter=3).fit(source, **case.given, **choice)
        assert numbers(other) == numbers(one)
        assert other.transform(source, **choice).tobytes() == one.transform(X).tobytes()
        assert other.score(source, **case.given, **choice) == one.score(X, **case.given)
        if hasattr(one, "perplexity"):
            assert other.perplexity(source, **choice) == one.perplexity(X)
        other = case.make(max_iter=3)
        assert (
            other.fit_transform(source, **case.given, **choice).tobytes()
            == one.transform(X).tobytes()
        )
        if hasattr(other, "partial_fit"):
            batch = case.make().partial_fit(source, **choice)
            assert numbers(batch) == numbers(case.make().partial_fit(X))
    for method in (one.fit, one.transform, partial(one.score, **case.given)):
        with pytest.raises(ValueError, match="layer='counts' does not apply to ndarray"):
            method(X, layer="counts")


def objective(fitted: Any) -> Array:
    """Return the objective of each iteration."""
    names = fitted.history_.dtype.names
    assert names[:2] == ("iteration", "seconds")
    values: Array = fitted.history_[names[2]]
    return values


def check_objective(case: ModelCase, dtype: str = "float64") -> None:
    """Compare the objective in the history with that of the fitted arrays in plain NumPy."""
    if case.objective is None:
        pytest.skip("no objective to compare with")
    fitted = case.fitted(dtype=dtype)
    rtol = 1e-5 if dtype == "float32" else 1e-10
    assert_allclose(objective(fitted)[-1], case.objective(fitted, X), rtol=rtol)


def check_objective_rises(case: ModelCase, seed: int = 0) -> None:
    """Check that no iteration lowers the objective; with momentum, the end is above the start."""
    if not case.rises:
        pytest.skip("the objective of this model may fall")
    # momentum may overshoot, and goes back
    plain = {"extrapolate": False} if "extrapolate" in case.make().get_params() else {}
    values = objective(case.made_at_random(random_state=seed, **plain).fit(X, **case.given))
    assert np.all(np.diff(values) >= -1e-9 * abs(values[-1]))
    overshooting = objective(case.made_at_random(random_state=seed).fit(X, **case.given))
    assert overshooting[-1] >= values[0]


def check_seed(case: ModelCase, folder: Path) -> None:
    """Check that a seed that was drawn is kept, also in a file, and gives the same fit."""
    one = case.made_at_random(random_state=None).fit(X, **case.given)
    one.save(folder / "model.h5")
    loaded: Any = load_model(folder / "model.h5")
    assert loaded.seed_ == one.seed_ and isinstance(loaded.seed_, int)
    again = case.made_at_random(random_state=loaded.seed_).fit(X, **case.given)
    assert numbers(again) == numbers(one) and again.seed_ == loaded.seed_


def check_end(case: ModelCase) -> None:
    """Check that a fit has converged if a rule of convergence ended it, and otherwise warns."""
    options = {"tol": 1e-2, "max_iter": 1000} if "tol" in case.make().get_params() else {}
    fitted = case.fitted(**options)
    assert fitted.converged_ and fitted.stop_reason_ in ("converged", "plateau")
    if options:
        with pytest.warns(ConvergenceWarning, match="has not converged after 1 iterations"):
            cut = case.fitted(tol=1e-12, max_iter=1)
        assert not cut.converged_ and cut.stop_reason_ == "max_iter"
    ended = case.fitted(callback=lambda record: True)
    assert not ended.converged_ and ended.stop_reason_ == "callback"
