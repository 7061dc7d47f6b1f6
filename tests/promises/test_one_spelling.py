"""One order of arguments, and one name for each thing, in all functions and tables."""

import inspect

import numpy as np
import pytest

import nmfscale

X = np.random.default_rng(0).poisson(2.0, (30, 12))
FUNCTIONS = {
    name: thing
    for name, thing in ((name, getattr(nmfscale, name)) for name in nmfscale.__all__)
    if inspect.isfunction(thing)
}
OF_MODELS = [
    name
    for name, function in FUNCTIONS.items()
    if inspect.signature(function).parameters.keys() & {"model", "models", "estimator"}
    and name != "seed_shares"  # which has no other argument
]


# The attributes in whose shape and meaning a fit takes its start.
STARTS = {
    "PoissonNMF": ("loadings_", "components_"), "TopicModel": ("loadings_", "components_"),
    "LDA": ("doc_topic_posterior_", "topic_word_posterior_"), "SSNMF": ("loadings_", "components_"),
    "GammaPoisson": ("loadings_shape_", "components_shape_"),
    "FrobeniusNMF": ("loadings_", "components_"), "NoisyTopicModel": ("loadings_", None),
    "AnchorNMF": (None, None),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STARTS)
def test_a_fit_starts_at_loadings_and_components(name):
    how = {} if name == "AnchorNMF" else {"max_iter": 2, "tol": 0}
    model = getattr(nmfscale, name)(2, random_state=0, **how)
    labels = {"y": np.arange(30) % 2} if name == "SSNMF" else {}
    model.fit(X, **labels)
    arguments = dict(zip(("loadings", "components"), STARTS[name], strict=True))
    start = {each: getattr(model, kept) for each, kept in arguments.items() if kept}
    taken = inspect.signature(model.fit).parameters.keys()
    assert taken & arguments.keys() == start.keys()
    assert not taken & {"L", "F", "W", "H", *STARTS["LDA"], *STARTS["GammaPoisson"]}
    model.fit(X, **labels, **start)


@pytest.mark.parametrize("name", OF_MODELS)
def test_the_model_comes_first(name):
    function, model = FUNCTIONS[name], nmfscale.TopicModel(2)
    first, second, *_ = inspect.signature(function).parameters
    assert first in ("model", "models", "estimator")
    adata = pytest.importorskip("anndata").AnnData(np.asarray(X, float))
    for counts in (X, adata):
        swapped = {first: counts, second: model}
        if name == "write_report":
            swapped = {first: counts, "path": "report.html", "X": model}
        if name in ("condition_features", "features_by_group"):
            swapped["groups"] = np.arange(len(X)) % 2
        kind = "models is (ndarray|AnnData|an AnnData)"
        message = kind if first == "models" else "swapped: the TopicModel comes first"
        with pytest.raises(ValueError, match=message):
            function(**swapped)


WITH_CHECKPOINTS = [
    name
    for name, function in FUNCTIONS.items()
    if "checkpoint" in inspect.signature(function).parameters
]


@pytest.mark.parametrize("name", WITH_CHECKPOINTS)
def test_a_job_with_checkpoints_takes_all_options_of_one(name):
    """They are refused before any work: the model is of no type that a job could use."""
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    assert parameters.keys() >= {"checkpoint", "checkpoint_every", "resume", "client", "n_threads"}
    if name in ("permutation_test", "group_effects", "regress_proportions"):
        with pytest.raises(ValueError, match="checkpoint_every=-1: seconds, at least 0"):
            function(object(), object(), checkpoint="folder", checkpoint_every=-1)
        with pytest.raises(ValueError, match="resume=True needs checkpoint="):
            function(object(), object(), resume=True)
