"""How many topics: scores of held-out counts, and topics that independent fits agree on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray

from ...counts.argument_types import CountsLike, PipelineLike, check_option
from ...counts.base import CountMatrix
from ...counts.logarithms import refuse_logarithms
from ...counts.names import shown
from ...counts.sizes import MemoryLimitError
from ...engine.checkpoint import checkpoints_in, recorded_seed
from ...engine.threads import resolve_threads, single_blas_thread
from ...engine.workers import resolve_client
from ...methods.topics.matching import lift_pairs
from ...models.base import CountModel
from ...models.pipelines import model_and_input
from ...storage.atomic import user_path
from ...terminal import progress_bar
from ..design.groups import checked_labels
from ..job import JobOptions, job_options, part_of_job
from ..replicates.excess_variance import excess_variance, varies_more
from ..replicates.folds import Folds
from ..replicates.replicates import check_positive, run_replicates
from ..replicates.seeds import child, seed_of
from ..replicates.selection_fits import SelectionTask, check_estimator, totals_of
from ..replicates.shared_fits import counts_of_job
from .select_k_result import SelectK

Array = NDArray[Any]
HeldOutPart: TypeAlias = Literal["auto", "counts", "samples"]


@job_options
def select_k(
    estimator: CountModel | PipelineLike,
    X: CountsLike,
    n_components: Iterable[int] = range(2, 21),
    *,
    units: ArrayLike | None = None,
    held_out: HeldOutPart = "auto",
    n_folds: int = 2,
    n_init: int = 1,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[JobOptions],
) -> SelectK:
    """Compare numbers of topics by scores of held-out counts and by the stability of topics.

    Every count is split at random in two halves (binomial thinning). For Poisson counts the halves
    are independent, so that topics and proportions that were fitted to one half are scored on the
    other one [1]_. If counts vary more than Poisson counts, the halves are not independent, and
    samples are held out instead: topics are fitted to the other samples, proportions to half of the
    counts of each held-out sample, and the other half is scored (document completion). The topics
    that were fitted to different halves, or samples, are matched as by :func:`match_topics`: topics
    that are not found again are not a property of the data.

    Parameters
    ----------
    estimator : estimator of counts
        Its parameters except `n_components` are used; it is not fitted. In a pipeline that ends
        with the estimator, the other steps are first fitted to all samples. Topics without a prior
        that smooths them predict held-out counts badly: their scores can fall from the smallest
        number of topics on. ``TopicModel(prior_factors=1.1, tol=1e-3)`` is a good choice.
    X : counts of shape (n_samples, n_features)
        Whole numbers, as in :meth:`nmfscale.PoissonNMF.fit`. If memory is too small for the parts
        of counts in a file, they are written to packed stores in the folder of `checkpoint`, or in
        the system's temporary folder, and read from there.
    n_components : iterable of int, default=range(2, 21)
        Numbers of topics to compare.
    units : array-like of shape (n_samples,), default=None
        Unit of each sample, such as a patient or an author, to hold out whole units. They are
        matched with the samples of `X` by name if both have names.
    held_out : {"auto", "counts", "samples"}, default="auto"
        What is held out without `units`: parts of all counts, or samples. "auto" fits both halves
        with the largest number of topics, and holds out samples if `excess_variance` of these fits
        exceeds three standard errors, and 0.02.
    n_folds : int, default=2
        Number of parts of the counts, or of groups of samples or units; each is held out once. With
        more than two, fits share most of their counts and stability is overstated; "auto" then
        holds out parts of counts.
    n_init : int, default=1
        Number of fits of each part with each number of topics; the one with the highest objective
        is used.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`bootstrap_fit`. Workers share the fits, and finished fits are saved; the seed
        is that of the splits and starts.

    Returns
    -------
    SelectK
        Scores and stability for each number of topics, and a recommendation with its reason.

    Raises
    ------
    ValueError
        If the counts are not whole numbers, or an argument is not valid.
    CheckpointError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.fit`.

    Notes
    -----
    The recommendation is the smallest number of topics whose held-out score is within one standard
    error of the best. The error is that of the difference between both, from the differences of the
    samples (or units). For over-dispersed counts the score has often no maximum, as more and more
    topics describe what single samples repeat. If it rises up to the largest number, or not all
    topics of the recommended number are found again, the recommendation is the largest number of
    topics that are all found again, with a similarity of at least 0.9 or, if there is no such
    number, of 0.8; and None without such a number.

    `excess_variance` compares deviations of the two halves from their fits with the most topics:
    they are uncorrelated for Poisson counts, and otherwise the estimate is a lower bound of the
    dispersion of a negative binomial distribution, variance = mean + dispersion * mean^2. Both
    halves of a count share its deviation, so that topics of deviations are found again in both
    halves. Deviations of different samples are independent.

    Ctrl-C ends the job after the current fits; the result has the numbers of topics that are done.

    References
    ----------
    .. [1] Neufeld, Dharamshi, Gao, Witten (2024). Data thinning for convolution-closed
       distributions. Journal of Machine Learning Research 25.

    Examples
    --------
    >>> from nmfscale import TopicModel, select_k
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, truth = simulate_topic_counts(200, 100, 4, random_state=0)
    >>> found = select_k(TopicModel(prior_factors=1.1, tol=1e-3), X, range(2, 7), random_state=0)
    >>> found.best
    4
    >>> found.to_frame().columns.tolist()[:3]
    ['n_components', 'score', 'score_error']
    """
    numbers = _checked_numbers(n_components)
    estimator, X = model_and_input(estimator, X)
    check_estimator(estimator)
    check_positive("n_init", n_init)
    if not isinstance(n_folds, Integral) or isinstance(n_folds, bool) or n_folds < 2:
        raise ValueError(f"n_folds is {shown(n_folds)}; an integer of at least 2 is needed.")
    _check_held_out(held_out, units)
    job["client"] = resolve_client(job["client"])
    counts = counts_of_job(X, estimator.memory_limit, job["client"], layer=layer, raw=raw)
    _check_counts(counts, numbers)
    unit = _checked_units(units, counts, int(n_folds))
    with ExitStack() as stack:
        stack.enter_context(single_blas_thread())
        folder, seed = _folder_and_seed(job)
        job["checkpoint"], job["random_state"] = folder, child(seed, 1)
        parts = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        threads = resolve_threads(job["n_threads"])

        def search(unit: Array | None) -> _Search:
            name = "counts" if unit is None else "samples"
            folds = Folds.of(
                counts, int(n_folds), child(seed, 0), unit, parts / name, estimator.memory_limit,
                threads,
            )  # fmt: skip
            task = SelectionTask(estimator, folds, (), int(n_init))
            return _Search(task, part_of_job(job, name))

        n_fits = int(n_folds) * int(n_init)
        advance = stack.enter_context(
            progress_bar(len(numbers) * n_fits, "fits", " fits", job["verbose"])
        )
        excess = None
        if unit is not None or held_out == "samples":
            search_of_k = search(np.arange(counts.shape[0]) if unit is None else unit)
            search_of_k.run(numbers, "fits", advance)
        else:
            search_of_k = search(None)
            search_of_k.run(numbers[-1:], "most", lambda _: None)
            excess = search_of_k.excess_variance()
            enough = numbers[-1] <= counts.shape[0] // 2
            if held_out == "auto" and enough and varies_more(excess):
                search_of_k, held_out = search(np.arange(counts.shape[0])), "samples"
                search_of_k.run(numbers, "fits", advance)
            else:
                advance(n_fits)
                search_of_k.run(numbers[:-1], "fits", advance)
        held_out = "units" if unit is not None else held_out.replace("auto", "counts")
        return search_of_k.result(seed, held_out, excess)


def _checked_numbers(n_components: Any) -> list[int]:
    try:
        numbers = [n_components] if isinstance(n_components, Integral) else list(n_components)
    except TypeError:
        numbers = []
    wrong = [k for k in numbers if not isinstance(k, Integral) or isinstance(k, bool) or k < 1]
    if wrong or not numbers:
        what = shown(wrong[0]) if wrong else shown(n_components)
        raise ValueError(
            f"n_components has {what}: positive integers are needed, such as range(2, 21)."
        )
    return sorted({int(k) for k in numbers})


def _check_held_out(held_out: Any, units: Any) -> None:
    check_option("held_out", held_out, HeldOutPart)
    if units is not None and held_out != "auto":
        raise ValueError(f"held_out is {held_out!r}: with units=, the samples of units are.")


def _check_counts(counts: CountMatrix, numbers: Sequence[int]) -> None:
    if not counts.is_integer:
        remedy = "Pass the raw counts (for AnnData: perhaps in a layer or raw)."
        refuse_logarithms(counts, "X", remedy, "Only whole numbers can be split in parts.")
        raise ValueError(
            "only whole counts can be split in parts, and X has fractional counts: "
            f"{counts.first_fraction}."
        )
    if numbers[-1] > min(counts.shape):
        raise ValueError(
            f"n_components has {numbers[-1]:,}, and X has shape {counts.shape}: leave out numbers "
            f"above {min(counts.shape):,}."
        )
    if counts.total < 2:
        raise ValueError("X has no counts to split.")


def _checked_units(units: Any, counts: CountMatrix, n_folds: int) -> Array | None:
    if units is None:
        return None
    labels = checked_labels(units, counts.shape[0], "units", counts.sample_names, "X")
    if len(labels.names) < n_folds:
        raise ValueError(
            f"units has {len(labels.names)} different labels, and n_folds is {n_folds}: each fold "
            "needs a unit to hold out."
        )
    return labels.codes


def checkpoints_of_selection(folder: Path) -> list[Path]:
    """Return the folders with checkpoints of `select_k`."""
    folders = (folder / part / name for part in ("counts", "samples") for name in ("most", "fits"))
    return [place for place in folders if checkpoints_in(place)]


def _folder_and_seed(job: JobOptions) -> tuple[Path | None, SeedSequence]:
    """Return the folder of the checkpoints, and the seed, which a resumed job continues with."""
    if job["checkpoint"] is None:
        return None, seed_of(job["random_state"])
    folder = user_path(job["checkpoint"])
    folder.mkdir(parents=True, exist_ok=True)
    if job["resume"] and job["random_state"] is None:
        for place in checkpoints_of_selection(folder):
            entropy = recorded_seed(place)
            if entropy is not None:
                return folder, SeedSequence(entropy)
    return folder, seed_of(job["random_state"])


class _Search:
    """Fits to some folds, with several numbers of topics."""

    def __init__(self, task: SelectionTask, job: JobOptions):
        self.task, self.job = task, job
        self.interrupted = False
        # of each number of topics that is done, the results of the best fit to each fold
        self.done: dict[int, dict[str, Array]] = {}

    def run(self, numbers: Sequence[int], name: str, advance: Callable[[int], Any]) -> None:
        """Fit with these numbers of topics, until all is done or Ctrl-C is pressed."""
        if not numbers or self.interrupted:
            return
        task = replace(self.task, numbers=tuple(numbers))
        try:
            fits = run_replicates(
                task, len(numbers) * task.n_fits, advance=advance,
                batch_size=task.smallest_batch(local=self.job["client"] is None),
                **part_of_job(self.job, name),
            )  # fmt: skip
        except KeyboardInterrupt:
            self.interrupted = True
            return
        self.interrupted = fits.interrupted
        done = fits.done.reshape(len(numbers), task.n_fits)
        for i, number in enumerate(numbers):
            if done[i].all():
                rows = slice(i * task.n_fits, (i + 1) * task.n_fits)
                best = self._best({name: values[rows] for name, values in fits.rows.items()})
                self.done[number] = best | {"topics": best["topics"][..., :number]}

    def _best(self, fits: dict[str, Array]) -> dict[str, Array]:
        """Return the results of the fit with the highest objective to each fold."""
        n = self.task.folds.n_folds
        start = fits["objective"].reshape(-1, n).argmax(axis=0)
        return {name: values[start * n + np.arange(n)] for name, values in fits.items()}

    def excess_variance(self) -> tuple[float, float] | None:
        """Return the dispersion around the fits with the most topics, and its standard error."""
        folds = self.task.folds
        if folds.unit is not None or folds.n_folds != 2 or self.interrupted:
            return None
        try:
            return excess_variance(
                folds.halves(), self.done[max(self.done)]["topics"], folds.sum_of_sample,
                self.job["n_threads"],
            )  # fmt: skip
        except KeyboardInterrupt:
            self.interrupted = True  # no further fits
        except MemoryLimitError:
            pass
        return None

    def result(
        self, seed: SeedSequence, held_out: str, excess: tuple[float, float] | None
    ) -> SelectK:
        """Return the result of what is done."""
        if not self.done:
            raise KeyboardInterrupt
        folds, kept = self.task.folds, sorted(self.done)
        done = [self.done[k] for k in kept]
        totals = [totals_of(folds.fold(f), folds.n_sums) for f in range(folds.n_folds)]
        pairs = list(combinations(range(folds.n_folds), 2))
        similarities = tuple(
            np.stack([lift_pairs(scores["topics"][a], scores["topics"][b])[2] for a, b in pairs])
            for scores in done
        )
        estimator = self.task.estimator
        return SelectK.of(
            np.array(kept), np.stack([scores["held_out"] for scores in done]),
            np.stack([scores["in_sample"] for scores in done]),
            np.stack([scores[0] for scores in totals]), np.stack([scores[1] for scores in totals]),
            similarities, excess,
            has_prior=getattr(estimator, "prior_factors", True) is not None,
            n_iter=np.stack([scores["n_iter"] for scores in done]),
            converged=np.stack([scores["converged"] for scores in done]),
            estimator=type(estimator).__name__, held_out=held_out,
            interrupted=self.interrupted, random_state=seed.entropy,
        )  # fmt: skip
