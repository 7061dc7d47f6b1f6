"""Jobs that answer a question: their inputs, outputs, seed and run, and what comes of them."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ..storage.atomic import atomic_hdf5, atomic_write
from .cluster import cluster_client
from .files import TEXT_TABLES, check_inputs, output, write_or_rescue, write_rows
from .groups import with_origin
from .messages import log, say

ARRAYS, PICTURES, PAGE = (".h5", ".hdf5"), (".png", ".pdf", ".svg"), ".html"
ANNDATA = ".h5ad"
Axes: TypeAlias = Any
Columns: TypeAlias = dict[str, Any]


@dataclass
class Outcome:
    """What a job has computed, and how it is printed and written.

    `columns` makes the text table, `picture` draws, `anndata` makes an AnnData object, and `page`
    and `save` write an .html and an .h5 file, the latter by default the result. `done` completes
    "interrupted: ", None if the job was not interrupted.
    """

    result: Any
    text: str
    columns: Callable[[], Columns]
    picture: Callable[[], Axes] | None = None
    page: Callable[[Path], Any] | None = None
    save: Callable[[Path], Any] | None = None
    anndata: Callable[[], Any] | None = None
    arrays: Columns = field(default_factory=dict)
    names: Columns = field(default_factory=dict)
    done: str | None = None


class Job:
    """A job, checked before any work.

    `checkpoints` returns the checkpoints in the folder of the option; `draws` says if the job needs
    a seed, which is drawn if the options have none.
    """

    def __init__(
        self, arguments: argparse.Namespace, inputs: Sequence[str],
        endings: Sequence[str] = (*TEXT_TABLES, *ARRAYS, *PICTURES), *,
        checkpoints: Callable[[Any], Any] | None = None, draws: bool = True,
    ) -> None:  # fmt: skip
        check_resume(arguments)
        check_inputs(*inputs)
        self.arguments = arguments
        goes_on = is_resumed(arguments, checkpoints)
        self.targets = [
            output(arguments, endings, inputs, replaces=goes_on, path=path)
            for path in arguments.output
        ]
        self._check_packages()
        self.drawn = draws and arguments.seed is None
        # a resumed job has the seed of its checkpoint
        self.random_state = draw_seed(arguments, goes_on) if draws else None

    def _check_packages(self) -> None:
        """Raise an error if a package is missing that draws."""
        if self.writes(*PICTURES):
            from ..pl.canvas import detached_axes

            detached_axes(1.0, 1.0)
        if self.writes(ANNDATA):
            import anndata  # noqa: F401
        if self.writes(PAGE):
            from ..pl.interactive import need_bokeh

            need_bokeh()

    def writes(self, *endings: str) -> bool:
        """Whether an output has one of these endings."""
        return any(target.suffix.lower() in endings for target in self.targets)

    def leave_out(self, *endings: str) -> None:
        """Do not write outputs with these endings."""
        self.targets = [path for path in self.targets if path.suffix.lower() not in endings]

    @contextmanager
    def running(self) -> Iterator[dict[str, Any]]:
        """Yield the options of the function that does the work."""
        arguments = self.arguments
        with cluster_client(arguments) as client:
            yield {
                "random_state": self.random_state, "n_threads": arguments.threads,
                "client": client, "checkpoint": arguments.checkpoint, "resume": arguments.resume,
                "verbose": int(not arguments.quiet),
            }  # fmt: skip

    def end(self, outcome: Outcome) -> int:
        """Print and write the outcome; return the exit code."""
        say(outcome.text)
        if self.drawn:
            if self.arguments.seed is None:  # that of the checkpoint
                self.arguments.seed = outcome.result.random_state
            say(f"seed            {self.arguments.seed}")
        failure: OSError | None = None
        for target in self.targets:
            try:
                write_or_rescue(target, "the result", lambda path: self._write(path, outcome))
            except OSError as error:  # other outputs are still written
                failure = failure or error
        if failure is not None:
            raise failure
        for path in self.arguments.output:
            say(f"written         {path}")
        if outcome.done is None:
            return 0
        return stopped(outcome.done, self.arguments.checkpoint)

    def _write(self, target: Path, outcome: Outcome) -> None:
        ending = target.suffix.lower()
        if ending in PICTURES and outcome.picture is not None:
            save_figure(outcome.picture(), target)
        elif ending == PAGE and outcome.page is not None:
            with atomic_write(target) as part:
                outcome.page(part)
        elif ending == ANNDATA and outcome.anndata is not None:
            from ..tl.in_file import element_io

            with atomic_hdf5(target) as (file, _):
                element_io().write_elem(file, "/", outcome.anndata())
        elif ending in ARRAYS:
            (outcome.save or (lambda path: self._save(path, outcome)))(target)
        else:
            columns = outcome.columns()
            rows = zip(*(column.tolist() for column in columns.values()), strict=True)
            with atomic_write(target) as part:
                write_rows(part, target.name, list(columns), map(list, rows))

    def _save(self, target: Path, outcome: Outcome) -> None:
        """Write a result to HDF5, with more arrays and names, the command and its parameters."""
        from ..counts.names import name_array
        from ..inference.results.files import save_result

        left_out = ("run", "usage", "command", "output", "force", "quiet", "debug", "input")
        options = vars(self.arguments).items()
        parameters = {name: value for name, value in options if name not in left_out}
        names = {name: name_array(map(str, texts)) for name, texts in outcome.names.items()}
        about = {"command": self.arguments.command, "parameters": parameters}
        result = with_origin(self.arguments, outcome.result)
        save_result(result, target, arrays=outcome.arrays, names=names, about=about)


def check_resume(arguments: argparse.Namespace) -> None:
    """Refuse --resume without a folder."""
    if getattr(arguments, "resume", False) and arguments.checkpoint is None:
        arguments.usage("--resume needs --checkpoint DIR, the folder to resume from")


def is_resumed(
    arguments: argparse.Namespace, checkpoints: Callable[[Any], Any] | None = None
) -> bool:
    """Whether there is a checkpoint to resume from, and the options say so."""
    if not getattr(arguments, "resume", False):
        return False
    from ..engine.checkpoint import checkpoints_in

    return bool((checkpoints or checkpoints_in)(arguments.checkpoint))


def draw_seed(arguments: argparse.Namespace, goes_on: bool = False) -> int | None:
    """Set the seed, if the options have none, to that of the checkpoint or a new one.

    Return what a function is given: None for the seed of the checkpoint.
    """
    if arguments.seed is not None:
        return int(arguments.seed)
    if not goes_on:
        arguments.seed = secrets.randbelow(2**32)
        return int(arguments.seed)
    from ..engine.checkpoint import recorded_seed

    arguments.seed = recorded_seed(arguments.checkpoint)
    return None


def stopped(done: str, folder: str | None) -> int:
    """Print that a job was interrupted, and what is done; return the exit code."""
    more = "" if folder is None else f"; --resume continues from the checkpoint in {folder}"
    log(f"interrupted: {done}{more}")
    return 130


def drawn(
    plot: Callable[..., Axes], *arguments: Any, size: tuple[float, float], **options: Any
) -> Axes:
    """Draw on a new figure of this size in inches, without pyplot: that needs a display."""
    from ..pl.canvas import detached_axes

    return plot(*arguments, ax=detached_axes(*size)[0], **options)


def save_figure(axes: Axes, target: Path) -> None:
    """Write the figure of some Axes, in the format of the file's suffix."""
    with atomic_write(target) as part:
        axes.figure.savefig(part, dpi=200)
