"""What every model promises; where its counts may be is the subject of test_contract_places.py.

The checks are those of `nmfscale.testing`, which models of other packages use, too.
"""

import numpy as np
import pytest
from contract import MODELS, every_model, one_of_each_family
from hypothesis import example, given, settings
from hypothesis import strategies as st
from night import at_night
from sklearn.utils.estimator_checks import parametrize_with_checks

import nmfscale
from nmfscale.methods.poisson.solvers import SOLVERS
from nmfscale.testing import checks
from nmfscale.testing.case import ModelCase, X
from nmfscale.testing.checks import OF_SKLEARN

# scikit-learn ---------------------------------------------------------------------------------


def is_checked(model):
    """Whether the checks are run for each commit: for a model without and one with targets."""
    return model.estimator in (nmfscale.PoissonNMF, nmfscale.SSNMF) and not model.variant


@parametrize_with_checks([model.make(**OF_SKLEARN) for model in MODELS if is_checked(model)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.nightly
@parametrize_with_checks(
    [
        *(model.make(**OF_SKLEARN) for model in MODELS if not is_checked(model)),
        nmfscale.PoissonNMF(2, solver="scd", init="random", n_threads=1, max_iter=20),
        nmfscale.TopicModel(3, solver="em", prior_factors=1.1, n_init=2, n_threads=1, max_iter=20),
    ]
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_with_other_options(estimator, check):
    check(estimator)


# One model, several ways to it ----------------------------------------------------------------


@one_of_each_family
def test_the_type_of_the_counts_changes_no_bit(model):
    checks.check_types_of_counts(model)


SIZES = (0, 0, 1, 2, 255, 65_536, 1e-3, 2.0**31, 2.0**52, 2.0**53)
ROWS = st.lists(st.tuples(*[st.sampled_from(SIZES)] * 3), min_size=1, max_size=5)
OF_SOLVERS = [
    ModelCase(nmfscale.PoissonNMF, None, variant={"solver": name}) for name in SOLVERS[1:]
]


@pytest.mark.parametrize(
    "model", MODELS + OF_SOLVERS, ids=lambda model: f"{model.name} {model.variant}"
)
@settings(max_examples=4, deadline=None, derandomize=True)
@example(rows=[(2.0**52, 2.0, 0.0)], extreme=1.0)  # whose log-likelihood is rounded to 0
@given(rows=ROWS, extreme=st.sampled_from([1e-12, 1e-6, 1.0, 1e12]))
@pytest.mark.filterwarnings("ignore")
def test_counts_of_all_sizes_give_finite_numbers(model, rows, extreme):
    of_fit = {}
    if model in OF_SOLVERS:
        of_fit["size_factors"] = np.where(np.arange(len(rows)) % 2, extreme, 1.0)
    checks.check_sizes_of_counts(model, rows, **of_fit)


@every_model
def test_a_saved_model_comes_back(model, tmp_path):
    checks.check_model_file(model, tmp_path)


@one_of_each_family
def test_the_plots_take_what_a_fit_leaves_behind(model):
    checks.check_plots(model)


@one_of_each_family
def test_a_layer_and_raw_of_anndata_through_one_door(model, tmp_path):
    checks.check_layer_and_raw(model, tmp_path)


# The objective --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_model
def test_the_objective_is_that_of_the_factors(model, dtype):
    checks.check_objective(model, dtype)


@pytest.mark.parametrize("seed", [0, *at_night(1, 2)])
@pytest.mark.parametrize(
    "model", [model for model in MODELS if model.rises], ids=lambda model: model.name
)
def test_the_objective_rises(model, seed):
    checks.check_objective_rises(model, seed)


@one_of_each_family
def test_a_seed_that_was_drawn_is_kept_and_gives_the_same_fit(model, tmp_path):
    checks.check_seed(model, tmp_path)


@pytest.mark.filterwarnings("ignore:.* have loadings that are all 0:UserWarning")
@every_model
def test_a_fit_has_converged_if_a_rule_of_convergence_ended_it(model):
    checks.check_end(model)


def test_a_fit_that_ends_on_a_plateau_has_converged():
    """As most fits to real counts do."""
    fitted = nmfscale.PoissonNMF(3, tol=1e-9, gain_tol=1e-4, random_state=0).fit(X)
    assert fitted.stop_reason_ == "plateau" and fitted.converged_
