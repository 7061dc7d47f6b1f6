"""Names of parameters that a model does not have: the error names the model and the right one."""

import pytest

import nmfscale

MEANT = [
    ("TopicModel", "n_jobs", "n_threads"),
    ("TopicModel", "n_topics", "n_components"),
    ("PoissonNMF", "k", "n_components"),
    ("PoissonNMF", "l1_penalty", "penalty"),
    ("LDA", "random_seed", "random_state"),
    ("LDA", "alpha", "doc_topic_prior"),
    ("FrobeniusNMF", "n_iter", "max_iter"),
    ("SSNMF", "max_itr", "max_iter"),
    ("AnchorNMF", "n_iter", None),
]


@pytest.mark.parametrize(("model", "name", "meant"), MEANT)
def test_the_right_parameter_is_named(model, name, meant):
    end = r"; parameters: anchors, .*" if meant is None else f": use {meant}="
    match = rf"^{model} has no parameter '{name}'{end}"
    with pytest.raises(TypeError, match=match):
        getattr(nmfscale, model)(**{name: 2})
    with pytest.raises(ValueError, match=match):
        getattr(nmfscale, model)().set_params(**{name: 2})


def test_one_value_without_a_name():
    assert nmfscale.TopicModel(3).n_components == 3
    with pytest.raises(TypeError, match=r"^TopicModel takes n_components without a name, and 2"):
        nmfscale.TopicModel(3, 0)
