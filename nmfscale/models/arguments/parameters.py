"""Parameters of estimators: checked by name, with the names of other packages in the messages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import wraps
from inspect import cleandoc, signature
from itertools import pairwise
from typing import Any, Self, TypeVar, dataclass_transform

from sklearn.utils._param_validation import (
    InvalidParameterError,
    validate_parameter_constraints,
)

from ...counts.names import plain

Class = TypeVar("Class", bound=type)
# Parameters by their names in scikit-learn, gensim, tomotopy, fastTopics, Mallet and others, in
# lower case. Of several, a model has one at most.
OTHER_NAMES = {
    name: parameters.split()
    for parameters, names in {
        "n_components": "k n_topics num_topics n_topic topics components n_clusters nb_topics rank",
        "n_threads": "n_jobs num_threads threads workers num_workers n_workers cores n_cores nc",
        "random_state": "seed random_seed rng rng_seed randomstate",
        "max_iter": "n_iter iter iterations n_iterations num_iterations num_iter numiter passes "
        "max_iterations maxiter epochs n_epochs",
        "tol": "tolerance eps epsilon",
        "n_init": "n_starts n_restarts n_runs nrun nrep",
        "solver inference": "method algorithm",
        "doc_topic_prior": "alpha",
        "topic_word_prior": "eta beta",
        "memory_limit": "max_memory memory",
        "callback": "callbacks",
        "penalty": "l1_penalty penalty_exponent factor_norm penalty_on sparsity",
    }.items()
    for name in names.split()
}


def right_name(name: str, parameters: Collection[str]) -> str | None:
    """Return the parameter that is meant by an unknown name, or None."""
    likely = [other for other in OTHER_NAMES.get(name.lower(), ()) if other in parameters]
    likely = likely or get_close_matches(name, sorted(parameters), 1, 0.75)
    return likely[0] if likely else None


def unknown_parameter(model: str, name: str, parameters: Collection[str]) -> str:
    """Return the message about an unknown parameter of an estimator, with the one that is meant."""
    meant = right_name(name, parameters)
    if meant is not None:
        return f"{model} has no parameter {name!r}: use {meant}=."
    return f"{model} has no parameter {name!r}; parameters: {', '.join(sorted(parameters))}."


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def estimator(cls: Class) -> Class:
    """Make an estimator of a class: its fields are parameters, which `__init__` checks by name.

    The signature has them in the order of the docstring. A dataclass would show the parameters of
    its bases first, that is, the number of threads before the solver.
    """
    dataclass(kw_only=True, eq=False, repr=False)(cls)  # changes the class itself
    generated: Callable[..., None] = cls.__init__  # type: ignore[misc]
    of_fields = signature(generated)
    self_, *of_class = of_fields.parameters.values()
    names = [parameter.name for parameter in of_class]
    first = next(param.name for param in of_class if param.kind is param.POSITIONAL_OR_KEYWORD)
    documented = _documented(cls.__doc__ or "")
    # stable: fields without documentation keep their order, after the others
    of_class.sort(key=lambda param: (*documented, param.name).index(param.name))

    @wraps(generated)
    def __init__(self: Any, *args: Any, **parameters: Any) -> None:  # noqa: N807
        model = type(self).__name__
        if len(args) > 1:
            raise TypeError(
                f"{model} takes {first} without a name, and {len(args)} values have none: name "
                f"the others, as in {model}({args[0]!r}, {of_class[1].name}=...)."
            )
        for name in parameters:
            if name not in names:
                raise TypeError(unknown_parameter(model, name, names))
        generated(self, *args, **parameters)

    __init__.__signature__ = of_fields.replace(parameters=[self_, *of_class])  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[misc]
    return cls


def _documented(docstring: str) -> list[str]:
    """Return the names in the section "Parameters" of a docstring, in their order."""
    lines = iter(cleandoc(docstring).splitlines())
    names = list[str]()
    if "Parameters" in lines:  # the iterator is then behind the heading
        next(lines, "")
        for line, following in pairwise(lines):
            if set(following) == {"-"}:  # the heading of the next section
                break
            if line and not line.startswith(" "):
                names += line.partition(" :")[0].split(", ")
    return names


def check_values(estimator: Any) -> None:
    """Check the values of parameters, and of the parameters of objects among them."""
    values = estimator.get_params(deep=False)
    constraints = estimator._parameter_constraints
    for name, value in values.items():
        _check_part(type(estimator).__name__, name, value, constraints[name])
    validate_parameter_constraints(
        constraints,
        {name: plain(value) for name, value in values.items()},
        caller_name=type(estimator).__name__,
    )
    for name, value in values.items():
        # booleans, which Python and scikit-learn treat as numbers
        allowed = {"boolean", "verbose"} & set(map(str, constraints[name]))
        if isinstance(value, bool) and not allowed:
            raise ValueError(f"{name} is {value}; a number is needed.")
        if isinstance(value, CheckedParameters):
            check_values(value)


def _check_part(model: str, name: str, value: Any, constraints: Collection[Any]) -> None:
    """Refuse a value in place of an object with parameters, such as a number for a penalty.

    scikit-learn would name the class by its module, which is not public.
    """
    for kind in constraints:
        if hasattr(kind, "public_name") and not isinstance(value, kind | None):
            raise InvalidParameterError(
                f"{name}={value!r} of {model} is not valid: give {name}={kind.public_name}(...), "
                f"or {name}=None."
            )


class CheckedParameters:
    """Names of parameters are checked by `set_params`, too."""

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as in scikit-learn.

        Parameters
        ----------
        **params
            Parameters of the model by name.

        Returns
        -------
        model
            This object.

        Raises
        ------
        ValueError
            If the model has no such parameter, or it is not an object with parameters.
        """
        parameters = self.get_params(deep=False)  # type: ignore[attr-defined]
        for name in params:
            outer, nested, inner = name.partition("__")
            if outer not in parameters:
                raise ValueError(unknown_parameter(type(self).__name__, outer, parameters))
            value = params.get(outer, parameters[outer])
            if nested and not hasattr(value, "set_params"):
                raise ValueError(
                    f"{name}: {outer} is {value!r}, which has no parameter {inner!r}: set {outer} "
                    "first."
                )
        super().set_params(**params)  # type: ignore[misc]
        return self
