"""The command that writes a script by which a shell completes ``nmfscale``.

shtab makes the script from the parser, once: completion itself starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .messages import say
from .option_groups import PATH

SHELLS = "bash", "zsh", "tcsh"


def completion(arguments: argparse.Namespace) -> int:
    """Print the script for a shell."""
    try:
        import shtab
    except ImportError:
        raise ImportError(
            "completion needs shtab: pip install 'nmfscale[completion]'. It is needed only to "
            "write the script"
        ) from None
    from .arguments import make_parser

    parser = make_parser((), all_options=True)
    for action in _actions(parser):
        if action.type is PATH:
            kind = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
            action.complete = kind  # type: ignore[attr-defined]
    say(shtab.complete(parser, arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
