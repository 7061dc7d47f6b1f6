"""The command `fit-each`: one fit for each of several files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .cluster import cluster_client
from .files import check_inputs
from .job import draw_seed, stopped
from .messages import in_shell_words, log, say
from .option_groups import (
    PATH,
    READ_FROM_FILE,
    add_cluster_options,
    add_run_options,
    add_seed,
    explain,
    size,
)
from .parameters import given_parameters
from .selection import numbers


def add_fit_each_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `fit-each`."""
    explain(
        command,
        "A model file of each fit is written to a folder as soon as it is done: donor1.h5, or\n"
        "donor1-k5.h5 with several numbers of topics. A file that cannot be fitted does not stop\n"
        "the others; the exit code is then 1. Files whose format needs other options are packed\n"
        "by nmfscale store first.",
    )
    add = command.add_argument
    what = "files of counts, samples x features, in the formats of fit; one fit for each"
    add("input", type=PATH, metavar="INPUT", nargs="+", help=what)
    what = "number of topics; several, such as 5 8 10 or 5-10: fits with each of them"
    add("-k", type=numbers, nargs="+", required=True, metavar="NUMBERS", help=what)
    what = "folder for the model files, made if missing (default: %(default)s)"
    add("-o", "--output", type=PATH, metavar="DIR", default="fits", help=what)
    what = "keep the models that are in the folder, and make only other fits"
    add("--resume", action="store_true", help=what)
    add_seed(command, "of each fit (default: a new seed; with --resume, that of the models)")
    add("--layer", help=".h5ad: layer to read in place of X")
    add("--raw", action="store_true", help=".h5ad: read raw.X in place of X")
    add("--memory-limit", type=size, metavar="SIZE", help=READ_FROM_FILE)
    add_cluster_options(command, "the fits, one task each")
    add_run_options(command, force=False)


def fit_each(arguments: argparse.Namespace) -> int:
    """Fit a model to each of several files."""
    check_inputs(*arguments.input)
    from ..inference.several_fits.fit_each import fit_sources
    from ..models.registry import model_named

    wanted = sorted({k for given in arguments.k for k in given})
    several = wanted if len(wanted) > 1 else None
    arguments.k, has_no_seed = wanted[0], arguments.seed is None
    if arguments.resume and has_no_seed:
        arguments.seed = _seed_in(Path(arguments.output))
    draw_seed(arguments)
    model = model_named(arguments.model)(**given_parameters(arguments)).set_params(verbose=0)
    with cluster_client(arguments) as client:
        fitted = fit_sources(
            model, arguments.input, several, folder=arguments.output, resume=arguments.resume,
            options={"layer": arguments.layer, "raw": arguments.raw},
            job={"client": client, "verbose": int(not arguments.quiet)},
        )  # fmt: skip
    for name, error in fitted.errors.items():
        log(f"error: {name}: {in_shell_words(error)}")
    for name, one in fitted.done.items():
        if not getattr(one, "converged_", True):
            log(f"warning: {name} has not converged; increase --max-iter")
    _say_fits(fitted)
    if has_no_seed:
        say(f"seed            {arguments.seed}")
    if fitted.interrupted:
        return stopped("--resume makes the fits that are left", None)
    if fitted.errors:
        return 1
    if not arguments.quiet and len(fitted.fits) > 1:
        log(f"next: nmfscale cluster-topics {Path(arguments.output) / '*.h5'}")
    return 0


def _say_fits(fitted: Any) -> None:
    """Print the file of each fit, and how many there are."""
    for part in fitted.parts:
        if part in fitted.fits:
            say(f"model           {fitted.files[part]}")
    say(f"fits            {len(fitted.fits)} of {len(fitted.parts)}")


def _seed_in(folder: Path) -> int | None:
    """Return the seed of the models in a folder, None if there are none."""
    from ..models.persistence import is_model_file, load_model

    for path in sorted(folder.glob("*.h5")):
        if is_model_file(path):
            return getattr(load_model(path), "random_state", None)
    return None
