"""Fits in .h5ad and .h5mu files: the option --write-h5ad of `fit`, and the command `restore`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from .files import check_inputs, input_files
from .messages import log, one_line, say
from .option_groups import PATH


def check_h5ad_options(arguments: argparse.Namespace) -> None:
    """Refuse options of `fit` that do not agree with --write-h5ad."""
    path, *more = input_files(arguments)
    if more or not path.lower().endswith((".h5ad", ".h5mu")):
        files = ", ".join([path, *more])
        arguments.usage(
            f"--write-h5ad adds the fit to INPUT, and {files} is no .h5ad or .h5mu file"
        )
    for name in ("names", "feature_names", "sample_names"):
        if getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            arguments.usage(f"--write-h5ad needs the names of INPUT: leave {option} out")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        arguments.usage(f"--write-h5ad: {path} cannot be written")


def check_h5ad_input(arguments: argparse.Namespace) -> None:
    """Refuse, before the fit, a key or a file to which the fit cannot be added.

    A file that an earlier command has left half written is restored.
    """
    from ..storage.in_place import restore as restore_file
    from ..storage.journal import RESTORED
    from ..tl.in_file import check_h5ad

    (path,) = input_files(arguments)
    if restore_file(Path(path)) == RESTORED:
        log(f"{path} was half written by a program that was killed, and is restored")
    check_h5ad(Path(path), arguments.write_h5ad, arguments.modality, argument="--write-h5ad")


def add_to_input(model: Any, arguments: argparse.Namespace) -> None:
    """Add a fit to the file that it was fitted to."""
    from ..tl.in_file import write_h5ad

    key, choice = arguments.write_h5ad, {"layer": arguments.layer, "raw": arguments.raw}
    choice["mod"] = arguments.modality
    (path,) = input_files(arguments)
    try:
        write_h5ad(model, path, key_added=key, **choice)
    except (OSError, ValueError) as error:
        later = f"nmfscale.load({arguments.output!r}), {path!r}, key_added={key!r}"
        if options := {name: value for name, value in choice.items() if value}:
            later += f", **{options}"  # options of the shell would replace names before "="
        raise OSError(
            f"the model is in {arguments.output}, but could not be added to {path}: "
            f"{one_line(error)}. To add it later, in Python: nmfscale.tl.write_h5ad({later})."
        ) from error
    say(f"added           {path}: obsm['X_{key}'], varm['{key}'], uns['{key}']")


def add_restore_options(command: argparse.ArgumentParser) -> None:
    """Add the argument of the command `restore`."""
    what = "an .h5ad or .h5mu file beside which a program that was killed has left a journal"
    command.add_argument("file", type=PATH, metavar="FILE", help=what)


def restore(arguments: argparse.Namespace) -> int:
    """Restore a file whose program was killed while it added a fit."""
    check_inputs(arguments.file)
    from ..storage.in_place import restore as restore_file
    from ..storage.journal import COMPLETE, RESTORED, UNCHANGED

    done = {
        None: "there is no journal of an interrupted write, and nothing to restore",
        RESTORED: "was half written, and is as it was before",
        UNCHANGED: "was not changed; the journal of the interrupted write is removed",
        COMPLETE: "has the whole fit; the journal of the interrupted write is removed",
    }
    say(f"{arguments.file}: {done[restore_file(Path(arguments.file))]}")
    return 0
