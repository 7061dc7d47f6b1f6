"""Options that are parameters of an estimator or a function, derived from constraints and docs."""

from __future__ import annotations

import argparse
import inspect
import math
import os
import re
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from .messages import hint_for
from .option_groups import COUNT

# Parameters with other options (-k, --seed, --threads, --memory-limit, --quiet), or none.
_ELSEWHERE = ("n_components", "random_state", "n_threads", "memory_limit", "verbose", "integer")
_AS_IN = re.compile(r"As in :class:")
# Citations, and roles of Sphinx, whose backticks are removed.
_CITED = re.compile(r",? as in \[\d+\]_| \[\d+\]_|:\w+:")


def add_parameters(
    command: argparse.ArgumentParser, words: Sequence[str], *, every_model: bool = False
) -> None:
    """Add ``--model``, and an option for each parameter of the model that `words` selects.

    With `every_model`, options and choices are those of any model.
    """
    from ..models.registry import model_named, model_names

    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--model", nargs="?")  # a missing value is reported by the real parser
    named = first.parse_known_args(words)[0].model
    command.add_argument(
        "--model", choices=(names := model_names()), default="topic",
        help="default: %(default)s; the options below belong to the model",
    )  # fmt: skip
    chosen = names if every_model else [named if named in names else "topic"]
    actions = command._option_string_actions
    for estimator in map(model_named, chosen):
        for name, (owner, parameter) in _parameters(estimator).items():
            how = _how(owner._parameter_constraints[parameter])
            option = f"--{name.replace('_', '-')}"
            if how is None:
                continue
            if option in actions:  # of an earlier model
                choices = {*(actions[option].choices or ()), *how.get("choices", ())}
                actions[option].choices = sorted(choices) or None
                continue
            default = inspect.signature(owner).parameters[parameter].default
            shown = "" if default in (None, inspect.Parameter.empty) else f"(default: {default})"
            text = _described(owner, parameter)
            command.add_argument(
                option, default=argparse.SUPPRESS,
                help=" ".join([text, shown]).strip().replace("%", "%%"), **how,
            )  # fmt: skip


def add_parameter(
    command: argparse.ArgumentParser, function: Callable[..., Any], name: str,
    option: str | None = None, text: str | None = None, *, when: str = "", unset: bool = False,
    **how: Any,
) -> None:  # fmt: skip
    """Add an option for a parameter of a function, with its default, its choices and its docs.

    The help is `text`, by default the first sentence of the docs, after `when`, such as "for
    weights". With `unset` the value is None if the option is not given.
    """
    default = inspect.signature(function).parameters[name].default
    kind, described = _entry(inspect.getdoc(function) or "", name) or ("", "")
    if text is None:
        text = _CITED.sub("", re.split(r"(?<=[^.])\.(?:\s|$)", described)[0])
        text = text[:1].lower() + text[1:]
    if choices := re.findall(r'"([^"]+)"', kind.partition("}")[0]):
        how = {"choices": choices} | how
    elif isinstance(default, int | float):
        numbers = {"type": COUNT, "metavar": "N"}
        how = (numbers if isinstance(default, int) else {"type": float, "metavar": "X"}) | how
    shown = "" if default is None else f" (default: {default})"
    command.add_argument(
        option or f"--{name.replace('_', '-')}", default=None if unset else default,
        help=f"{when}{when and ': '}{text}{shown}".replace("%", "%%"), **how,
    )  # fmt: skip


def check_options(command: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Refuse unknown options, with a hint; argparse would first ask for required ones."""
    options = [*command._option_string_actions]
    for word in words:
        if word == "--":
            return
        option = word.split("=")[0]
        if word.startswith("--") and not any(name.startswith(option) for name in options):
            is_fit = command.prog.endswith((" fit", " fit-each"))
            models = _models_with(option) if is_fit else []
            command.error(f"unknown option {option}{hint_for(option, options, models)}")


def _models_with(option: str) -> list[str]:
    """Return the models that have an option."""
    from ..models.registry import model_named, model_names

    name = option.removeprefix("--").replace("-", "_")
    return [
        model
        for model in model_names()
        if (place := _parameters(model_named(model)).get(name))
        and _how(place[0]._parameter_constraints[place[1]])
    ]


def given_parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of the model that are set by any option."""
    from ..models.registry import model_named

    estimator = model_named(arguments.model)
    common = {
        "n_components": arguments.k,
        "random_state": arguments.seed,
        "n_threads": arguments.threads,
        "memory_limit": arguments.memory_limit,
        "verbose": int(not arguments.quiet),
    }
    values = vars(arguments) | common
    parameters = {name: values[name] for name in estimator._parameter_constraints if name in values}
    for name, part in _parts(estimator).items():
        inner = part._parameter_constraints
        of_part = {
            inner_name: values[f"{name}_{inner_name}"]
            for inner_name in inner
            if f"{name}_{inner_name}" in values
        }
        if of_part:
            for needed in _without_default(part) - of_part.keys():
                option = f"--{name}-{next(iter(of_part))}"
                arguments.usage(f"{option} needs --{name}-{needed}")
            parameters[name] = part(**of_part)
    return parameters


def _parts(estimator: Any) -> dict[str, Any]:
    """Return the parameters that are objects with parameters themselves, and their classes."""
    return {
        name: constraint
        for name, constraints in estimator._parameter_constraints.items()
        for constraint in constraints
        if hasattr(constraint, "_parameter_constraints")
    }


def _parameters(estimator: Any) -> dict[str, tuple[Any, str]]:
    """Return the class and the name of each parameter by the name of its option.

    The options of ``penalty=SparsityPenalty(weight=...)`` are those of the penalty, such as
    ``--penalty-weight``.
    """
    parts, places = _parts(estimator), dict[str, tuple[Any, str]]()
    for name in estimator._parameter_constraints:
        if name in parts:
            part = parts[name]
            places |= {
                f"{name}_{inner_name}": (part, inner_name)
                for inner_name in part._parameter_constraints
            }
        elif name not in _ELSEWHERE:
            places[name] = estimator, name
    return places


def _without_default(part: Any) -> set[str]:
    """Return the parameters that an object of a class needs."""
    parameters = inspect.signature(part).parameters.values()
    return {parameter.name for parameter in parameters if parameter.default is parameter.empty}


def _how(constraints: Sequence[Any]) -> dict[str, Any] | None:
    """Return the options of argparse for a parameter; None if a shell cannot express it."""
    from sklearn.utils._param_validation import Interval, Options

    words, intervals = set[str](), list[Any]()
    for constraint in constraints:
        if isinstance(constraint, Options) and constraint.type is str:
            words |= constraint.options
        elif isinstance(constraint, Interval):
            intervals.append(constraint)
        elif isinstance(constraint, str) and constraint == "boolean":
            return {"action": argparse.BooleanOptionalAction}
    if os.PathLike in constraints:
        return {"metavar": "FILE"}
    if not intervals:
        return {"choices": sorted(words)} if words else None
    metavar = "N" if intervals[0].type is Integral else "X"
    if words:
        return {
            "type": _word_or_number(words, intervals[0]),
            "metavar": f"{{{','.join(sorted(words))},{metavar}}}",
        }
    return {"type": _number(intervals[0]), "metavar": metavar}


def _word_or_number(words: set[str], interval: Any) -> Any:
    """Return a function that reads one of some words, or a number in an interval."""
    number = _number(interval)

    def word_or_number(text: str) -> Any:
        if text in words:
            return text
        try:
            return number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text} is neither a number nor one of {', '.join(sorted(words))}"
            ) from None

    return word_or_number


def _number(interval: Any) -> Any:
    kind: Any = int if interval.type is Integral else float

    def number(text: str) -> Any:
        value = kind(text)
        if not math.isfinite(value) or value not in interval:
            raise argparse.ArgumentTypeError(f"{text} is not {interval}")
        return value

    number.__name__ = kind.__name__  # for argparse's message "invalid int value"
    return number


def _described(estimator: type, name: str) -> str:
    """Return the first sentence about a parameter in the docs of the estimator or its bases."""
    for place in estimator.__mro__:
        entry = _entry(inspect.cleandoc(place.__doc__ or ""), name)
        if entry is not None and not _AS_IN.match(entry[1]):
            plain = entry[1]
            return "" if plain.startswith("- ") else re.split(r"(?<=[^.])[.;:](?:\s|$)", plain)[0]
    return ""


def _entry(docs: str, name: str) -> tuple[str, str] | None:
    """Return the type and the plain text of the entry of a parameter in docs, if there is one."""
    entry = re.search(rf"^(?:\w+, )*{name}(?:, \w+)*(?: : (.*))?\n((?: +.*\n?)+)", docs, re.M)
    if entry is None:
        return None
    return entry[1] or "", re.sub(r",? see :\w+:`[^`]*`|`", "", " ".join(entry[2].split()))
