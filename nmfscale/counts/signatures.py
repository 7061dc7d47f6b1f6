"""Functions that take options as ``**name: Unpack[Options]``, and show them in their signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import BoundArguments, Parameter, signature
from typing import Any, TypeAlias, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
# Calls a function with its bound arguments and with options, whose defaults are filled in.
Call: TypeAlias = Callable[[Callable[..., Any], BoundArguments, Any], Any]


def passed_on(function: Callable[..., Any], bound: BoundArguments, options: Any) -> Any:
    """Call a function with its arguments and options."""
    return function(*bound.args, **bound.kwargs, **options)


def takes_options(
    options: type, defaults: Mapping[str, Any], call: Call = passed_on,
    rest: Parameter | None = None,
) -> Callable[[Function], Function]:  # fmt: skip
    """Return a decorator of functions with ``**name: Unpack[options]``; `options` is a TypedDict.

    In `inspect.signature`, and so in ``help()`` and the docs, the options are parameters with these
    defaults, after the parameters of the function. An unknown keyword argument raises a TypeError
    that names the function.

    `rest` is the parameter for options without a default value, such as ``**source``: the function
    gets them, and all unknown keyword arguments, as they are passed.
    """
    types = options.__annotations__
    added = [
        Parameter(
            name, Parameter.KEYWORD_ONLY, default=default,
            annotation=getattr(types[name], "__forward_arg__", types[name]),
        )
        for name, default in defaults.items()
    ]  # fmt: skip

    def decorated(function: Function) -> Function:
        whole = signature(function)
        own = [
            parameter
            for parameter in whole.parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
            or options.__name__ not in str(parameter.annotation)
        ]
        own += [] if rest is None else [rest]
        further = [parameter for parameter in own if parameter.kind is Parameter.VAR_KEYWORD]
        named = [parameter for parameter in own if parameter not in further]
        bare = whole.replace(parameters=own)

        @wraps(function)
        def called(*positional: Any, **arguments: Any) -> Any:
            chosen = {name: arguments.pop(name, default) for name, default in defaults.items()}
            try:
                bound = bare.bind(*positional, **arguments)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            return call(function, bound, chosen)

        changed: Any = called
        changed.__signature__ = whole.replace(parameters=[*named, *added, *further])
        return cast(Function, changed)

    return decorated
