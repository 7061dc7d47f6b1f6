"""What every model promises; where its counts may be is the subject of test_contract_places.py."""

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from contract import LABELS, MODELS, Model, every_model, numbers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks
from small_fits import X

import nmfscale
from nmfscale import pl
from nmfscale.methods.poisson.solvers import SOLVERS
from nmfscale.pl.canvas import detached_axes

# scikit-learn ---------------------------------------------------------------------------------


CHECKED = {"n_components": 2, "max_iter": 40, "tol": 1e-3}
# These share the code of PoissonNMF, or of the mean-field models.
AT_NIGHT = ("TopicModel", "NoisyTopicModel", "BackgroundNMF")


def is_nightly(model):
    return bool(model.variant) or model.name in AT_NIGHT


@parametrize_with_checks([model.make(**CHECKED) for model in MODELS if not is_nightly(model)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.nightly
@parametrize_with_checks(
    [
        *(model.make(**CHECKED) for model in MODELS if is_nightly(model)),
        nmfscale.PoissonNMF(2, solver="scd", init="random", n_threads=1, max_iter=20),
        nmfscale.TopicModel(3, solver="em", prior_factors=1.1, n_init=2, n_threads=1, max_iter=20),
    ]
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_with_other_options(estimator, check):
    check(estimator)


# One model, several ways to it ----------------------------------------------------------------


@every_model
def test_the_type_of_the_counts_changes_no_bit(model):
    # of counts that are not whole the type is kept as it was given
    for counts, types in ((X, ("int32", "float32", "float64")), (X / 4, ("float64", "float32"))):
        seen = []
        for dtype in types:
            given = counts.astype(dtype)
            fitted = model.make(max_iter=8, integer="allow").fit(given, **model.given)
            loadings = fitted.transform(given)
            assert loadings.dtype == (np.float32 if dtype == "float32" else np.float64)
            score = fitted.score(given, **model.given)
            seen.append((numbers(fitted), loadings.astype(np.float32).tobytes(), score))
        assert seen[1:] == seen[:1] * (len(types) - 1)


SIZES = (0, 0, 1, 2, 255, 65_536, 1e-3, 2.0**31, 2.0**52, 2.0**53)
ROWS = st.lists(st.tuples(*[st.sampled_from(SIZES)] * 3), min_size=1, max_size=5)
OF_SOLVERS = [Model(nmfscale.PoissonNMF, None, variant={"solver": name}) for name in SOLVERS[1:]]


@pytest.mark.parametrize(
    "model", MODELS + OF_SOLVERS, ids=lambda model: f"{model.name} {model.variant}"
)
@settings(max_examples=4, deadline=None, derandomize=True)
@example(rows=[(2.0**52, 2.0, 0.0)], extreme=1.0)  # whose log-likelihood is rounded to 0
@given(rows=ROWS, extreme=st.sampled_from([1e-12, 1e-6, 1.0, 1e12]))
@pytest.mark.filterwarnings("ignore")
def test_counts_of_all_sizes_give_finite_numbers(model, rows, extreme):
    counts = np.array(rows) * 1.0
    counts[0, 0] = max(counts[0, 0], 1)
    given_to_fit = {"y": LABELS[: len(rows)]} if "y" in model.given else {}
    if model in OF_SOLVERS:
        given_to_fit["size_factors"] = np.where(np.arange(len(rows)) % 2, extreme, 1.0)
    fitted = model.make(n_components=2, max_iter=5).fit(counts, **given_to_fit)
    found = [fitted.transform(counts), fitted.score(counts, given_to_fit.get("y"))]
    for values in (*vars(fitted).values(), *found):
        if isinstance(values, float | np.ndarray) and np.asarray(values).dtype.kind == "f":
            assert np.isfinite(values).all()


@every_model
def test_a_saved_model_comes_back(model, tmp_path):
    frame = pd.DataFrame(X).add_prefix("feature ")
    one = model.make().fit(frame, **model.given)
    one.save(tmp_path / "model.h5")
    other = nmfscale.load(tmp_path / "model.h5")
    assert type(other) is model.estimator and other.get_params() == one.get_params()
    assert numbers(other, but=()) == numbers(one, but=())
    assert list(other.feature_names_in_) == list(frame.columns)
    turned = other.reorder_topics(range(len(other.components_))[::-1])
    for each in one, other, turned:
        assert each.sample_totals_.dtype == float
        assert each.sample_totals_.tolist() == X.sum(axis=1).tolist()
    assert other.transform(frame).tobytes() == one.transform(frame).tobytes()


@every_model
def test_the_plots_take_what_a_fit_leaves_behind(model):
    pytest.importorskip("matplotlib")
    fitted = model.make().fit(X, **model.given)
    K, drawn = len(fitted.components_), detached_axes(9, 4, 3)
    structure = pl.structure_plot(fitted.loadings_, ax=drawn[0])
    features = pl.top_features_plot(fitted.components_, ax=drawn[1])
    progress = pl.progress_plot({model.name: fitted.history_}, ax=drawn[2])
    structure.figure.canvas.draw()
    assert len({tuple(color) for color in structure.collections[-1].get_facecolors()}) == K
    assert len(nmfscale.get.top_features(fitted.components_)) == K and features.texts
    name = fitted.history_.dtype.names[2]
    words = {"loglik": "log-likelihood", "elbo": "ELBO"}.get(name, name.replace("_", " "))
    assert progress.get_ylabel() == f"distance to best {words}"
    assert progress.lines[0].get_ydata().max() > 0.01 + progress.lines[0].get_ydata().min()


@every_model
def test_a_layer_and_raw_of_anndata_through_one_door(model, tmp_path):
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(sp.csr_matrix(X))
    adata.raw, adata.layers["counts"] = adata, adata.X
    adata.X = np.log1p(X)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    one = model.make(max_iter=3).fit(X, **model.given)
    for source, choice in product(
        (adata, tmp_path / "cells.h5ad"), ({"layer": "counts"}, {"raw": True})
    ):
        other = model.make(max_iter=3).fit(source, **model.given, **choice)
        assert numbers(other) == numbers(one)
        assert other.transform(source, **choice).tobytes() == one.transform(X).tobytes()
        assert other.score(source, **model.given, **choice) == one.score(X, **model.given)
        if hasattr(one, "perplexity"):
            assert other.perplexity(source, **choice) == one.perplexity(X)
        other = model.make(max_iter=3)
        assert (
            other.fit_transform(source, **model.given, **choice).tobytes()
            == one.transform(X).tobytes()
        )
        if hasattr(other, "partial_fit"):
            batch = model.make().partial_fit(source, **choice)
            assert numbers(batch) == numbers(model.make().partial_fit(X))
    for method in (one.fit, one.transform, partial(one.score, **model.given)):
        with pytest.raises(ValueError, match="layer='counts' does not apply to ndarray"):
            method(X, layer="counts")


# The objective --------------------------------------------------------------------------------


def objective(fitted):
    names = fitted.history_.dtype.names
    assert names[:2] == ("iteration", "seconds")
    return fitted.history_[names[2]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_model
def test_the_objective_is_that_of_the_factors(model, dtype):
    fitted = model.make(dtype=dtype).fit(X, **model.given)
    rtol = 1e-5 if dtype == "float32" else 1e-10
    assert_allclose(objective(fitted)[-1], model.objective(fitted, X), rtol=rtol)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "model", [model for model in MODELS if model.rises], ids=lambda model: model.name
)
def test_the_objective_rises(model, seed):
    # momentum may overshoot, and goes back
    plain = {"extrapolate": False} if "extrapolate" in model.make().get_params() else {}
    found = objective(model.made_at_random(random_state=seed, **plain).fit(X, **model.given))
    assert np.all(np.diff(found) >= -1e-9 * abs(found[-1]))
    overshooting = objective(model.made_at_random(random_state=seed).fit(X, **model.given))
    assert overshooting[-1] >= found[0]


@every_model
def test_a_seed_that_was_drawn_is_kept_and_gives_the_same_fit(model, tmp_path):
    one = model.made_at_random(random_state=None).fit(X, **model.given)
    one.save(tmp_path / "model.h5")
    seed = nmfscale.load(tmp_path / "model.h5").seed_
    assert seed == one.seed_ and isinstance(seed, int)
    again = model.made_at_random(random_state=seed).fit(X, **model.given)
    assert numbers(again) == numbers(one) and again.seed_ == seed


@pytest.mark.filterwarnings("ignore:.* have loadings that are all 0:UserWarning")
@every_model
def test_a_fit_has_converged_if_a_rule_of_convergence_ended_it(model):
    options = {} if model.estimator is nmfscale.AnchorNMF else {"tol": 1e-2, "max_iter": 1000}
    fitted = model.make(**options).fit(X, **model.given)
    assert fitted.converged_ and fitted.stop_reason_ in ("converged", "plateau")
    if options:
        with pytest.warns(ConvergenceWarning, match="has not converged after 1 iterations"):
            cut = model.make(tol=1e-12, max_iter=1).fit(X, **model.given)
        assert not cut.converged_ and cut.stop_reason_ == "max_iter"
    ended = model.make(callback=lambda record: True).fit(X, **model.given)
    assert not ended.converged_ and ended.stop_reason_ == "callback"


def test_a_fit_that_ends_on_a_plateau_has_converged():
    """As most fits to real counts do."""
    fitted = nmfscale.PoissonNMF(3, tol=1e-9, gain_tol=1e-4, random_state=0).fit(X)
    assert fitted.stop_reason_ == "plateau" and fitted.converged_
