"""The command `select-k`: how many topics."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import Any

from .cluster import cluster_client
from .commands import save_figure
from .files import TEXT_TABLES, check_inputs, input_files, read_input
from .inference import ARRAYS, PICTURES, targets_of, write_all, write_columns, write_result
from .labels import file_and_column, read_groups
from .messages import log, say


def select_k(arguments: argparse.Namespace) -> int:
    """Compare numbers of topics."""
    if arguments.resume and arguments.checkpoint is None:
        arguments.usage("--resume needs --checkpoint DIR, the folder to resume from")
    from ..models.registry import model_named

    kind = model_named(arguments.model)
    if arguments.prior is not None and "prior_factors" not in kind._parameter_constraints:
        arguments.usage("--prior is for --model topic and poisson")
    files = input_files(arguments)
    if arguments.units is not None:
        files.append(file_and_column(arguments.units)[0])
    check_inputs(*files)
    kinds = (*TEXT_TABLES, *ARRAYS, *PICTURES)
    targets = targets_of(arguments, kinds, files, replaces=arguments.resume)
    from ..inference.choice.select_k import checkpoints_of_selection
    from ..inference.choice.select_k import select_k as search

    seed = arguments.seed
    folder = arguments.checkpoint
    goes_on = arguments.resume and bool(checkpoints_of_selection(Path(folder)))
    if seed is None and not goes_on:
        seed = secrets.randbelow(2**32)

    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        found = search(
            _estimator(arguments, kind), counts, arguments.k,
            units=_units(arguments, counts), held_out=arguments.held_out, n_folds=arguments.folds,
            n_init=arguments.starts, random_state=seed, n_threads=arguments.threads, client=client,
            checkpoint=arguments.checkpoint, resume=arguments.resume,
            verbose=int(not arguments.quiet),
        )  # fmt: skip
    say(str(found))
    if found.excess_variance is not None:
        say("dispersion      {:.3f}, standard error {:.3f}".format(*found.excess_variance))
    if arguments.seed is None:
        say(f"seed            {found.random_state}")

    def write(target: Path) -> None:
        if target.suffix.lower() in PICTURES:
            from ..pl import select_k_plot
            from ..pl.canvas import detached_axes
            from ..pl.selection import size_of_selection

            axes = detached_axes(*size_of_selection())[0]
            save_figure(select_k_plot(found, ax=axes), target)
        elif target.suffix.lower() in ARRAYS:
            write_result(arguments, target, found)
        else:
            write_columns(target, found.columns())

    write_all(targets, write)
    for given in arguments.output:
        say(f"written         {given}")
    if not found.interrupted:
        return 0
    done = ", ".join(map(str, found.n_components))
    more = "" if folder is None else f"; --resume continues from the checkpoints in {folder}"
    log(f"interrupted: the result is that of K = {done}{more}")
    return 130


def _estimator(arguments: argparse.Namespace, kind: Any) -> Any:
    options: dict[str, Any] = {"memory_limit": arguments.memory_limit, "integer": "allow"}
    if "prior_factors" in kind._parameter_constraints:
        options |= {"prior_factors": arguments.prior or 1.1, "tol": 1e-3}
    return kind(**options)


def models_to_select() -> list[str]:
    """Return the models that `select_k` can score, and all models of other packages."""
    from ..inference.replicates.selection_fits import is_scored
    from ..models import MODELS
    from ..models.registry import model_names

    return [name for name in model_names() if name not in MODELS or is_scored(MODELS[name]())]


def _units(arguments: argparse.Namespace, counts: Any) -> list[str] | None:
    """Return the unit of each sample; every sample needs one."""
    if arguments.units is None:
        return None
    found = read_groups(arguments.units, counts.shape[0], counts.sample_names, counts.obs)
    missing = [i for i, unit in enumerate(found) if unit is None]
    if missing:
        raise ValueError(
            f"--units {arguments.units} has no label for {len(missing):,} samples (the first is "
            f"{missing[0]}): add the labels, such as names of their own."
        )
    return [str(unit) for unit in found]


def numbers(text: str) -> list[int]:
    """Return the numbers in a text such as 2-12 or 5,10,20."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            low, high = int(first), int(last or first)
        except ValueError:
            low, high = 0, 0
        if not 1 <= low <= high:
            raise argparse.ArgumentTypeError(f"{text!r} are not numbers such as 2-12 or 5,10,20")
        found |= set(range(low, high + 1))
    return sorted(found)
