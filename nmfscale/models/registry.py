"""Models by name: those of this package, and those of other packages.

A model of another package registers itself when its class is defined, by deriving from
`CountModel`. A package can name it for the shell, for `tl.topics`, and for files that are read
before the package is imported, by an entry point of the group ``nmfscale.models``.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .arguments.penalty import SparsityPenalty

GROUP = "nmfscale.models"
# Classes of parameters, by which files and AnnData objects name them.
PARAMETERS = {each.__name__: each for each in (SparsityPenalty,)}


def model_names() -> list[str]:
    """Return the names of all models, as in ``--model``: first those of this package."""
    from . import MODELS

    return list(
        dict.fromkeys([*MODELS, *sorted(point.name for point in entry_points(group=GROUP))])
    )


def model_named(name: str) -> Any:
    """Return the class of a model with one of `model_names`."""
    from . import MODELS

    if name in MODELS:
        return MODELS[name]
    for point in entry_points(group=GROUP, name=name):
        return _loaded(point)
    raise ValueError(f"model={name!r} is not one of {', '.join(map(repr, model_names()))}.")


def model_class(class_name: str) -> Any:
    """Return the model whose class has a name, None if neither it nor an entry point is known."""
    from . import MODELS, CountModel

    of_package = {model.__name__: model for model in MODELS.values()}
    model = of_package.get(class_name) or CountModel.of_others.get(class_name)
    if model is None:
        for point in entry_points(group=GROUP):
            if point.attr.rpartition(".")[2] == class_name:
                return _loaded(point)
    return model


def _loaded(point: EntryPoint) -> Any:
    """Import the model of an entry point."""
    from . import CountModel

    whose = "" if point.dist is None else f" of the package {point.dist.name}"
    try:
        model = point.load()
    except Exception as error:  # of any kind: it is the code of another package
        raise ValueError(
            f"the model {point.name!r}{whose} cannot be imported from {point.value} "
            f"({type(error).__name__}: {error}): update or uninstall that package."
        ) from error
    if not (isinstance(model, type) and issubclass(model, CountModel)):
        raise ValueError(
            f"the entry point {point.name!r}{whose} is {point.value}, and that is no class derived "
            "from nmfscale.models.CountModel: update or uninstall that package."
        )
    return model
