"""Types of public signatures: they say what an argument may be, so that editors can help."""

import ast
import functools
import inspect
import re
import sys
import types
import typing

import pytest

import nmfscale

pytest.importorskip("matplotlib")


def public_callables():
    """Yield (name, thing, function) of public functions, and of methods of public classes, once."""
    modules = [nmfscale, *(getattr(nmfscale, name) for name in nmfscale.__all__)]
    done = set()
    for module in filter(inspect.ismodule, modules):
        for name in module.__all__:
            thing = getattr(module, name)
            names = ["__init__", *(name for name in dir(thing) if name[0] != "_")]
            methods = [inspect.getattr_static(thing, name) for name in names]
            for part in methods if inspect.isclass(thing) else [thing]:
                function = getattr(part, "__func__", part)
                ours = inspect.isfunction(function) and function.__module__.startswith("nmfscale.")
                if ours and function not in done:
                    done.add(function)
                    yield f"{module.__name__}.{name}.{function.__name__}", thing, function


CALLABLES = list(public_callables())


@functools.cache
def names_in(module):
    """Return what the annotations of a module can name, with imports for type checkers only."""
    names = dict(vars(sys.modules[module]))
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(ast.unparse(node.body), names)
    return names


def types_of(thing, function):
    """Return the type of each parameter of a function, or of a method of a class, by name.

    Options of ``**name: Unpack[...]`` are parameters like others.
    """
    function = inspect.unwrap(function)
    annotations = {}
    for name, parameter in [*inspect.signature(function).parameters.items()]:
        annotation, module = parameter.annotation, function.__module__
        if function.__name__ == "__init__":  # a field of a dataclass, perhaps of a base class
            bases = [
                base for base in thing.__mro__ if name in vars(base).get("__annotations__", ())
            ]
            module = bases[0].__module__ if bases else module
        if isinstance(annotation, str):
            annotation = eval(annotation, names_in(module))
        if typing.get_origin(annotation) is typing.Unpack:
            annotations |= typing.get_type_hints(*typing.get_args(annotation))
        elif name not in ("self", "cls"):
            annotations[name] = annotation
    return annotations


def members(annotation):
    """Yield the types of a union, also of unions in it."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from members(member)
    else:
        yield annotation


def test_few_parameters_have_any_type():
    parameters = [
        (f"{name}({parameter})", set(members(annotation)))
        for name, thing, function in CALLABLES
        for parameter, annotation in types_of(thing, function).items()
    ]
    assert len(parameters) > 1000
    nothing_said = {typing.Any, object, inspect.Parameter.empty}
    untyped = [name for name, kinds in parameters if kinds & nothing_said]
    assert len(untyped) < 0.03 * len(parameters), untyped


def test_functions_show_the_options_that_they_take():
    """And refuse others before any work, in the name of the function."""
    n_functions = 0
    for name, thing, function in CALLABLES:
        shown = inspect.signature(function).parameters
        if function is not thing or inspect.unwrap(function) is function or "options" in shown:
            continue
        assert shown.keys() == types_of(thing, function).keys(), name
        needed = [None for parameter in shown.values() if parameter.default is parameter.empty]
        unknown = rf"{function.__name__}\(\): got an unexpected keyword argument 'n_jobs'"
        with pytest.raises(TypeError, match=unknown):
            function(*needed, n_jobs=2)
        n_functions += 1
    assert n_functions > 25


def test_documented_options_are_literals():
    """A parameter whose documentation lists texts has these texts as its Literal type."""
    listed = re.compile(r'^([\w, ]+) : (.*\{"(?:.|\n +)*?"\}.*)$', re.M)
    n_options = 0
    for name, thing, function in CALLABLES:
        if name.startswith("nmfscale.results.") and name.endswith("__init__"):
            continue  # users do not create results
        docstring = inspect.getdoc(thing if name.endswith("__init__") else function) or ""
        kinds = types_of(thing, function)
        for parameters, text in listed.findall(docstring):
            options = set(re.findall(r'"([^"]+)"', " ".join(re.findall(r"\{.*?\}", text, re.S))))
            for parameter in set(parameters.split(", ")) & kinds.keys():
                assert options == texts_in(kinds[parameter]), f"{name}({parameter})"
                n_options += 1
    assert n_options > 60


def texts_in(annotation):
    """Return the texts of all Literal types in a type."""
    if typing.get_origin(annotation) is typing.Literal:
        return set(typing.get_args(annotation))
    return set().union(*map(texts_in, typing.get_args(annotation)))
