"""One fit for each of several sources of counts, such as a file for each donor."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from ...cluster.pool import WorkerPool
from ...cluster.tasks import RetryPolicy, Task
from ...counts.argument_types import CountsLike, PathLike, PipelineLike
from ...counts.names import shown
from ...counts.warn import warn_caller
from ...engine.worker import take_level
from ...engine.workers import common_level, preflight, resolve_client, threads_of_task
from ...models.base import CountModel
from ...models.persistence import load_model
from ...models.pipelines import estimator_and_input, refuse_swapped
from ...storage.atomic import user_path
from ...terminal import progress_bar
from ..job import RunOptions, numbers_of_topics, run_options

# Seconds that a fit on a worker may take, as long as the worker lives.
_PATIENCE = 7 * 86_400.0
# Parameters with which a fit ends at the same bits.
_NOT_COMPARED = {"n_threads", "memory_limit", "verbose"}
Fits = dict[str, Any]


@dataclass(frozen=True)
class _Part:
    """A fit of the job: its source, and its number of topics, None for that of the estimator."""

    source: str
    n_components: int | None

    @property
    def name(self) -> str:
        """Name of the fit in messages."""
        k = self.n_components
        return self.source if k is None else f"{self.source}, {k} topics"

    @property
    def file(self) -> str:
        """Name of its model file."""
        k = self.n_components
        return f"{self.source}.h5" if k is None else f"{self.source}-k{k}.h5"


@dataclass
class Fitted:
    """The fits of a job, errors of the others by name, and whether Ctrl-C ended it early."""

    parts: Sequence[_Part]
    fits: dict[_Part, Any] = field(default_factory=dict)
    files: dict[_Part, Path] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def done(self) -> dict[str, Any]:
        """Models by the names of the fits, in the order of the sources."""
        return {part.name: self.fits[part] for part in self.parts if part in self.fits}


@run_options
def fit_each(
    estimator: CountModel | PipelineLike,
    sources: Mapping[str, CountsLike] | Sequence[CountsLike],
    *,
    n_components: Sequence[int] | None = None,
    folder: PathLike | None = None,
    resume: bool = False,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[RunOptions],
) -> dict[str, Any]:
    """Fit a model to each of several sources of counts, such as a file for each donor.

    One source is in memory at a time, or one for each task of a cluster. A source that cannot be
    fitted does not stop the others: a warning names it and its error.

    Parameters
    ----------
    estimator : model of counts
        Its copies are fitted; the estimator stays as it is. It may be the last step of a pipeline.
    sources : dict of str to counts, or sequence of paths or counts
        Counts as in :meth:`nmfscale.PoissonNMF.fit`, by name. Names of files in a sequence are
        those without folder and ending, if these differ, or those of their folders, such as
        ``donor1`` of ``donor1/outs/matrix.h5``; of other counts, their numbers.
    n_components : sequence of int, default=None
        Several numbers of topics, such as ``[5, 8, 10]``: each source is fitted with each of them.
        By default, it is fitted with that of the estimator.
    folder : str or path-like, default=None
        Folder for a model file of each fit, written as soon as it is done; made if missing. Its
        name is that of the source, followed by the number of topics if there are several, such as
        ``donor1.h5`` or ``donor1-k5.h5``.
    resume : bool, default=False
        Whether model files that are in `folder` are read, and only other fits are made.
    client : distributed.Client, default=None
        Dask cluster whose workers make one fit each; they must be able to read the files. None
        makes one after the other in this process.
    verbose : int, default=0
        1 shows a progress bar of fits.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of AnnData objects or .h5ad files.

    Returns
    -------
    dict of str to fitted model, or to dict of int to fitted model
        In the order of the sources, without those that could not be fitted. With `n_components`,
        the fits of a source are a dict by number of topics, such as ``fits["donor1"][8]``:
        :func:`cluster_topics` takes them as fits of one sample. They are the models of single fits
        to the bit; their ``source_name_`` is the name of the source.

    Raises
    ------
    ValueError
        If no source could be fitted, or an argument is not valid; if a model in `folder` has other
        parameters.
    FileExistsError
        If `folder` has a model of a source, and `resume` is false.
    ClusterError
        If the cluster is lost.

    Warns
    -----
    UserWarning
        If some fits failed, or Ctrl-C ended the work early: the finished fits are
        returned.
    ConvergenceWarning
        If some fits have not converged.

    Examples
    --------
    >>> import nmfscale
    >>> donors = {
    ...     f"donor {i}": nmfscale.datasets.simulate_topic_counts(60, 40, 3, random_state=i)[0]
    ...     for i in range(3)
    ... }
    >>> fits = nmfscale.fit_each(nmfscale.TopicModel(3, random_state=0), donors)
    >>> list(fits), fits["donor 0"].components_.shape
    (['donor 0', 'donor 1', 'donor 2'], (3, 40))
    >>> fits = nmfscale.fit_each(
    ...     nmfscale.TopicModel(random_state=0), donors, n_components=[2, 3]
    ... )
    >>> fits["donor 1"][2].components_.shape
    (2, 40)
    """
    fitted = fit_sources(
        estimator, sources, n_components, folder=folder, resume=resume,
        options={"layer": layer, "raw": raw}, job=job,
    )  # fmt: skip
    if fitted.interrupted:
        warn_caller(f"interrupted: {len(fitted.fits)} of {len(fitted.parts)} fits are done.")
    _warn(fitted.done, fitted.errors)
    return _by_source(fitted.fits, fitted.parts)


def fit_sources(
    estimator: Any, sources: Any, n_components: Sequence[int] | None, *, folder: PathLike | None,
    resume: bool, options: Mapping[str, Any], job: RunOptions,
) -> Fitted:  # fmt: skip
    """Make the fits of `fit_each`, whose arguments these are, and return what became of each.

    Raises KeyboardInterrupt if none was done.
    """
    refuse_swapped(estimator, sources, "the sources")
    named = _named_sources(sources)
    numbers: list[Any] = [None]
    if n_components is not None:
        numbers = numbers_of_topics(n_components, "such as [5, 8]; one belongs in the estimator")
    parts = [_Part(name, k) for name in named for k in numbers]
    parameters = estimator_and_input(estimator, None)[0].get_params(deep=False)
    client = None if job["client"] is None else resolve_client(job["client"])
    fitted = Fitted(parts, files=_files_of(folder, parts, resume))
    for part, file in fitted.files.items():
        if file.exists():
            fitted.fits[part] = _read_model(file, parameters | _number_of(part))
    left = {part: named[part.source] for part in parts if part not in fitted.fits}

    def note(part: _Part, model: Any, error: str | None) -> None:
        if error is not None:
            fitted.errors[part.name] = error
            return
        model.source_name_ = part.source
        if fitted.files:
            model.save(fitted.files[part])
        fitted.fits[part] = model

    run = _fit_here if client is None else _fit_on_cluster(client)
    done = len(fitted.fits)
    with progress_bar(len(parts), "fits", " fits", job["verbose"], initial=done) as advance:
        try:
            run(estimator, left, options, note, advance)
        except KeyboardInterrupt:
            if not fitted.fits:
                raise
            fitted.interrupted = True
    return fitted


def _by_source(fits: Mapping[_Part, Any], parts: Sequence[_Part]) -> Fits:
    """Return the fits by source, and by number of topics if there are several."""
    by_source: Fits = {}
    for part in parts:
        if part not in fits:
            continue
        if part.n_components is None:
            by_source[part.source] = fits[part]
        else:
            by_source.setdefault(part.source, {})[part.n_components] = fits[part]
    return by_source


def _number_of(part: _Part) -> dict[str, int]:
    """Return the parameters of the estimator that a fit changes."""
    return {} if part.n_components is None else {"n_components": part.n_components}


def _named_sources(sources: Any) -> dict[str, Any]:
    """Return sources by name."""
    if isinstance(sources, Mapping):
        named = {str(name): source for name, source in sources.items()}
    elif isinstance(sources, list | tuple):
        paths = [source for source in sources if isinstance(source, str | os.PathLike)]
        of_paths = iter(_names_of_files(paths))
        named = {
            next(of_paths) if isinstance(source, str | os.PathLike) else str(i): source
            for i, source in enumerate(sources)
        }
    else:
        raise ValueError(
            f"sources is {type(sources).__name__}: a dict of counts by name is needed, or a list "
            "of files or counts."
        )
    if not named or len(named) < len(sources):
        raise ValueError(f"sources has {len(sources)} entries with {len(named)} different names.")
    return named


def _names_of_files(paths: Sequence[PathLike]) -> Sequence[str]:
    """Return names that differ: those of the files, or of folders that they are in, or paths."""
    stems = [Path(Path(path).name.removesuffix(".gz")).stem for path in paths]
    # nearest folders first, as of donor1/outs/matrix.h5 and donor2/outs/matrix.h5
    folders = [user_path(path).absolute().parent.parts[::-1] for path in paths]
    for names in (stems, *zip(*folders, strict=False)):
        if len(set(names)) == len(names):
            return names
    return [*map(str, paths)]


def _files_of(folder: Any, parts: Sequence[_Part], resume: bool) -> dict[_Part, Path]:
    """Return the model file of each fit; none without a folder."""
    if folder is None:
        if resume:
            raise ValueError("resume=True needs folder=, which has the models.")
        return {}
    place = user_path(folder)
    files = {part: place / part.file for part in parts}
    for part, file in files.items():
        if file.parent != place:
            raise ValueError(
                f"sources: the name {shown(part.source)} is no name of a file: pass sources by "
                "name in a dict, or files whose names, or whose folders' names, differ."
            )
        if file.exists() and not resume:
            raise FileExistsError(
                f"{file} exists: pass resume=True to read the models that are in the folder, or "
                "another folder."
            )
    place.mkdir(parents=True, exist_ok=True)
    return files


def _read_model(file: Path, parameters: Mapping[str, Any]) -> Any:
    """Return a model of an earlier call; refuse one with other parameters."""
    model = load_model(file)
    theirs = model.get_params(deep=False)
    for name, value in parameters.items():
        if name not in _NOT_COMPARED and repr(theirs.get(name)) != repr(value):
            raise ValueError(
                f"{file} is a fit with {name}={shown(theirs.get(name))}, and it is {shown(value)} "
                "now: pass another folder."
            )
    return model


def fit_source(
    estimator: Any, source: Any, changed: Mapping[str, int], options: Mapping[str, Any],
    level: str | None, n_threads: int | None,
) -> tuple[Any, str | None]:  # fmt: skip
    """Return the model of one source, or the text of its error; on a worker, with a level.

    `changed` are parameters of the estimator, `options` arguments of its fit.
    """
    if level is not None:
        take_level(level)
    try:
        model, counts = estimator_and_input(clone(estimator), source)
        own = model.n_threads
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(n_threads=n_threads or own, **changed).fit(counts, **options)
        return model.set_params(n_threads=own), None
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        return None, f"{type(error).__name__}: {error}"


def _fit_here(
    estimator: Any, left: Mapping[_Part, Any], options: Mapping[str, Any],
    note: Callable[..., None], advance: Callable[[int], Any],
) -> None:  # fmt: skip
    for part, source in left.items():
        model, error = fit_source(estimator, source, _number_of(part), options, None, None)
        if getattr(model, "stop_reason_", None) == "interrupted":
            raise KeyboardInterrupt
        note(part, model, error)
        advance(1)


def _fit_on_cluster(client: Any) -> Callable[..., None]:
    """Return the function that makes each fit in a task of a cluster."""

    def run(
        estimator: Any, left: Mapping[_Part, Any], options: Mapping[str, Any],
        note: Callable[..., None], advance: Callable[[int], Any],
    ) -> None:  # fmt: skip
        retry = replace(RetryPolicy(), task=_PATIENCE, late=_PATIENCE)
        pool = WorkerPool(
            client, dict[str, Any]().__getitem__, retry, "With folder= and resume=True, go on."
        )
        parts = list(left)

        def take(i: int, result: tuple[Any, str | None]) -> None:
            note(parts[i], *result)
            advance(1)

        with pool.working():
            infos = preflight(pool)
            model = estimator_and_input(estimator, None)[0]
            how = common_level(infos), threads_of_task(pool, infos, model.n_threads)
            tasks = [
                Task(f"fit of {part.name}", (estimator, source, _number_of(part), options, *how), i)
                for i, (part, source) in enumerate(left.items())
            ]
            with pool.batch("fits", _task_of_source, tasks) as batch:
                batch.send_all()
                batch.results(take)

    return run


def _task_of_source(*arguments: Any) -> tuple[Any, str | None]:
    """Run `fit_source` on a worker; data that are sent by name, none here, come last."""
    return fit_source(*arguments[:6])


def _warn(fits: Fits, errors: Mapping[str, str]) -> None:
    """Say which fits failed, and which have not converged."""
    text = "; ".join(f"{name}: {error}" for name, error in errors.items())
    if errors and not fits:
        raise ValueError(f"no source could be fitted: {text}")
    if errors:
        warn_caller(f"{len(errors)} of {len(fits) + len(errors)} fits failed: {text}")
    open_ends = [name for name, model in fits.items() if not getattr(model, "converged_", True)]
    if open_ends:
        names = ", ".join(open_ends)
        warn_caller(
            f"{len(open_ends)} of {len(fits)} fits have not converged: {names}. Increase max_iter.",
            ConvergenceWarning,
        )
