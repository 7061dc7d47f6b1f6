"""One fit for each of several sources of counts, such as a file for each donor."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from ..job import RunOptions, run_options

# Seconds that a fit on a worker may take, as long as the worker lives.
_PATIENCE = 7 * 86_400.0
# Parameters with which a fit ends at the same bits.
_NOT_COMPARED = {"n_threads", "memory_limit", "verbose"}
Fits = dict[str, Any]


@run_options
def fit_each(
    estimator: CountModel | PipelineLike,
    sources: Mapping[str, CountsLike] | Sequence[CountsLike],
    *,
    folder: PathLike | None = None,
    resume: bool = False,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[RunOptions],
) -> dict[str, CountModel]:
    """Fit a model to each of several sources of counts, such as a file for each donor.

    One source is in memory at a time, or one for each task of a cluster. A source that cannot be
    fitted does not stop the others: a warning names it and its error.

    Parameters
    ----------
    estimator : model of counts
        Its copies are fitted; the estimator stays as it is. It may be the last step of a pipeline.
    sources : dict of str to counts, or sequence of paths or counts
        Counts as in :meth:`nmfscale.PoissonNMF.fit`, by name. Names of files in a sequence are
        those without folder and ending, if these differ; of other counts, their numbers.
    folder : str or path-like, default=None
        Folder for a model file of each source, written as soon as it is fitted; made if missing.
    resume : bool, default=False
        Whether model files that are in `folder` are read, and only other sources are fitted.
    client : distributed.Client, default=None
        Dask cluster whose workers fit one source each; they must be able to read its file. None
        fits one after the other in this process.
    verbose : int, default=0
        1 shows a progress bar of sources.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of AnnData objects or .h5ad files.

    Returns
    -------
    dict of str to fitted model
        In the order of the sources, without those that could not be fitted. They are the models
        of single fits to the bit.

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
        If some sources could not be fitted, or Ctrl-C ended the work early: the finished fits are
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
    """
    refuse_swapped(estimator, sources, "the sources")
    named = _named_sources(sources)
    parameters = estimator_and_input(estimator, None)[0].get_params(deep=False)
    client = None if job["client"] is None else resolve_client(job["client"])
    files = _files_of(folder, named, resume)
    fits: Fits = {}
    for name, file in files.items():
        if file.exists():
            fits[name] = _read_model(file, parameters)
    left = {name: source for name, source in named.items() if name not in fits}
    errors: dict[str, str] = {}

    def note(name: str, model: Any, error: str | None) -> None:
        if error is not None:
            errors[name] = error
            return
        if files:
            model.save(files[name])
        fits[name] = model

    run = _fit_here if client is None else _fit_on_cluster(client)
    with progress_bar(len(named), "fits", " fits", job["verbose"], initial=len(fits)) as advance:
        try:
            run(estimator, left, {"layer": layer, "raw": raw}, note, advance)
        except KeyboardInterrupt:
            if not fits:
                raise
            warn_caller(f"interrupted: {len(fits)} of {len(named)} fits are done.")
    _warn(fits, errors)
    return {name: fits[name] for name in named if name in fits}


def _named_sources(sources: Any) -> dict[str, Any]:
    """Return sources by name."""
    if isinstance(sources, Mapping):
        named = {str(name): source for name, source in sources.items()}
    elif isinstance(sources, list | tuple):
        paths = [source for source in sources if isinstance(source, str | os.PathLike)]
        stems = [Path(source).name.removesuffix(".gz") for source in paths]
        stems = [Path(stem).stem for stem in stems]
        use_stems = len(set(stems)) == len(stems)
        of_paths = iter(stems if use_stems else map(str, paths))
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


def _files_of(folder: Any, named: Mapping[str, Any], resume: bool) -> dict[str, Path]:
    """Return the model file of each source; none without a folder."""
    if folder is None:
        if resume:
            raise ValueError("resume=True needs folder=, which has the models.")
        return {}
    place = user_path(folder)
    files = {name: place / f"{name}.h5" for name in named}
    for name, file in files.items():
        if file.parent != place:
            raise ValueError(f"sources: the name {shown(name)} is no name of a file.")
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
    estimator: Any, source: Any, part: Mapping[str, Any], level: str | None, n_threads: int | None
) -> tuple[Any, str | None]:
    """Return the model of one source, or the text of its error; on a worker, with a level."""
    if level is not None:
        take_level(level)
    try:
        model, counts = estimator_and_input(clone(estimator), source)
        own = model.n_threads
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(n_threads=n_threads or own).fit(counts, **part)
        return model.set_params(n_threads=own), None
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        return None, f"{type(error).__name__}: {error}"


def _fit_here(
    estimator: Any, named: Mapping[str, Any], part: Mapping[str, Any],
    note: Callable[..., None], advance: Callable[[int], Any],
) -> None:  # fmt: skip
    for name, source in named.items():
        model, error = fit_source(estimator, source, part, None, None)
        if getattr(model, "stop_reason_", None) == "interrupted":
            raise KeyboardInterrupt
        note(name, model, error)
        advance(1)


def _fit_on_cluster(client: Any) -> Callable[..., None]:
    """Return the function that fits each source in a task of a cluster."""

    def run(
        estimator: Any, named: Mapping[str, Any], part: Mapping[str, Any],
        note: Callable[..., None], advance: Callable[[int], Any],
    ) -> None:  # fmt: skip
        retry = replace(RetryPolicy(), task=_PATIENCE, late=_PATIENCE)
        pool = WorkerPool(
            client, dict[str, Any]().__getitem__, retry, "With folder= and resume=True, go on."
        )
        names = list(named)

        def take(i: int, result: tuple[Any, str | None]) -> None:
            note(names[i], *result)
            advance(1)

        with pool.working():
            infos = preflight(pool)
            model = estimator_and_input(estimator, None)[0]
            how = common_level(infos), threads_of_task(pool, infos, model.n_threads)
            tasks = [
                Task(f"fit of {name}", (estimator, source, part, *how), i)
                for i, (name, source) in enumerate(named.items())
            ]
            with pool.batch("fits", _task_of_source, tasks) as batch:
                batch.send_all()
                batch.results(take)

    return run


def _task_of_source(*arguments: Any) -> tuple[Any, str | None]:
    """Run `fit_source` on a worker; data that are sent by name, none here, come last."""
    return fit_source(*arguments[:5])


def _warn(fits: Fits, errors: Mapping[str, str]) -> None:
    """Say which sources could not be fitted, and which fits have not converged."""
    text = "; ".join(f"{name}: {error}" for name, error in errors.items())
    if errors and not fits:
        raise ValueError(f"no source could be fitted: {text}")
    if errors:
        n_sources = len(fits) + len(errors)
        warn_caller(f"{len(errors)} of {n_sources} sources could not be fitted: {text}")
    open_ends = [name for name, model in fits.items() if not getattr(model, "converged_", True)]
    if open_ends:
        names = ", ".join(open_ends)
        warn_caller(
            f"{len(open_ends)} of {len(fits)} fits have not converged: {names}. Increase max_iter.",
            ConvergenceWarning,
        )
