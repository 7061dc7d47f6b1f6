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
]


@pytest.mark.parametrize("name", OF_MODELS)
def test_the_model_comes_first(name):
    function, model = FUNCTIONS[name], nmfscale.TopicModel(2)
    first, second, *_ = inspect.signature(function).parameters
    assert first in ("model", "models", "estimator")
    swapped = {first: X, second: model}
    if name == "write_report":
        swapped = {first: X, "path": "report.html", "X": model}
    message = "models is ndarray" if first == "models" else "swapped: the TopicModel comes first"
    with pytest.raises(ValueError, match=message):
        function(**swapped)
