"""How many topics: scores of held-out counts, and topics that independent fits agree on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
from ...engine.checkpoint import checkpoints_in, recorded_seed
from ...engine.threads import resolve_threads, single_blas_thread
from ...engine.workers import resolve_client
from ...models.arguments.batches import checked_batch
from ...models.base import CountModel
from ...models.pipelines import estimator_and_input
from ...storage.atomic import user_path
from ...terminal import progress_bar
from ..design.groups import checked_labels
from ..job import JobOptions, job_options, numbers_of_topics, part_of_job
from ..replicates.excess_variance import varies_more
from ..replicates.folds import Folds
from ..replicates.replicates import check_positive
from ..replicates.seeds import child, seed_of
from ..replicates.selection_fits import SelectionTask, check_estimator
from ..replicates.shared_fits import counts_of_job
from .select_k_result import SelectK
from .split_fits import SplitFits, SplitScores

Array = NDArray[Any]
HeldOutPart: TypeAlias = Literal["auto", "counts", "samples"]


@job_options
def select_k(
    estimator: CountModel | PipelineLike,
    X: CountsLike,
    n_components: Iterable[int] = range(2, 21),
    *,
    units: ArrayLike | None = None,
    batch: ArrayLike | str | None = None,
    held_out: HeldOutPart = "auto",
    n_splits: int = 5,
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
    that were fitted to different halves, or samples, are matched: topics that are not found again
    are not a property of the data. All this is done for several random splits.

    Parameters
    ----------
    estimator : estimator of counts
        Its parameters except `n_components` are used; it is not fitted. In a pipeline that ends
        with the estimator, the other steps are first fitted to all samples. Topics without a prior
        that smooths them predict held-out counts badly: their scores can fall from the smallest
        number of topics on. ``TopicModel(prior_factors=1.1, tol=1e-3)`` is a good choice.
    X : counts of shape (n_samples, n_features)
        Whole numbers, as in :meth:`nmfscale.PoissonNMF.fit`. Entries that were not measured, as
        after an outer join by :func:`concat`, are left out of fits, scores and dispersion. If
        memory is too small for the parts of counts in a file, they are written to packed stores in
        the folder of `checkpoint`, or in the system's temporary folder, and read from there.
    n_components : iterable of int, default=range(2, 21)
        Numbers of topics to compare.
    units : array-like of shape (n_samples,), default=None
        Unit of each sample, such as a patient or an author, to hold out whole units. They are
        matched with the samples of `X` by name if both have names.
    batch : array-like of shape (n_samples,) or str, default=None
        Label of the batch of each sample, or the name of a column of ``obs``, as in
        :meth:`nmfscale.PoissonNMF.fit`, for estimators that take batches.
    held_out : {"auto", "counts", "samples"}, default="auto"
        What is held out without `units`: parts of all counts, or samples. "auto" fits both halves
        with the largest number of topics, and holds out samples if `excess_variance` of these fits
        exceeds three standard errors, and 0.02. With `batch`, "auto" is "samples": excess variance
        is not estimated beside efficiencies.
    n_splits : int, default=5
        Number of random splits. With a single one, the recommendation may depend on the seed: the
        result shows how far splits differ, and what each of them would recommend. The time is in
        proportion to this number.
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
    The recommendation is the smallest number of topics whose held-out score, a mean over all
    splits, is within one standard error of the best. The error is that of the difference between
    both, from the differences of the samples (or units). For over-dispersed counts the score has
    often no maximum, as more and more topics describe what single samples repeat. If it rises up to
    the largest number, or not all topics of the recommended number are found again, the
    recommendation is the largest number of topics, up to that of the best score, that are all found
    again; and None without such a number.

    All topics are found again if in two thirds of the splits or more the smallest similarity of
    matched topics is at least 0.9. Similarities are those of :func:`match_topics` by lift,
    corrected for the noise of the counts of a topic [2]_, so that one threshold serves counts of
    any depth.

    `excess_variance` compares deviations of the two halves from their fits with the most topics:
    they are uncorrelated for Poisson counts, and otherwise the estimate is a lower bound of the
    dispersion of a negative binomial distribution, variance = mean + dispersion * mean^2. Both
    halves of a count share its deviation, so that topics of deviations are found again in both
    halves. Deviations of different samples are independent.

    Ctrl-C ends the job after the current fits; the result has the splits that are done or, of the
    first split, the numbers of topics that are done.

    References
    ----------
    .. [1] Neufeld, Dharamshi, Gao, Witten (2024). Data thinning for convolution-closed
       distributions. Journal of Machine Learning Research 25.
    .. [2] Spearman (1904). The proof and measurement of association between two things. American
       Journal of Psychology 15.

    Examples
    --------
    >>> from nmfscale import TopicModel, select_k
    >>> from nmfscale.datasets import simulate_topic_counts
    >>> X, truth = simulate_topic_counts(200, 100, 4, random_state=0)
    >>> found = select_k(TopicModel(prior_factors=1.1, tol=1e-3), X, range(2, 7), random_state=0)
    >>> found.best, found.n_chosen.tolist()  # by how many of five splits alone
    (4, [0, 0, 5, 0, 0])
    >>> found.to_frame().columns.tolist()[:3]
    ['n_components', 'score', 'score_error']
    """
    given = [n_components] if isinstance(n_components, Integral) else n_components
    numbers = sorted(numbers_of_topics(given, "such as range(2, 21)"))
    estimator, X = estimator_and_input(estimator, X)
    check_estimator(estimator)
    check_positive("n_splits", n_splits)
    check_positive("n_init", n_init)
    if not isinstance(n_folds, Integral) or isinstance(n_folds, bool) or n_folds < 2:
        raise ValueError(f"n_folds is {shown(n_folds)}; an integer of at least 2 is needed.")
    _check_held_out(held_out, units)
    job["client"] = resolve_client(job["client"])
    counts = counts_of_job(X, estimator.memory_limit, job["client"], layer=layer, raw=raw)
    _check_counts(counts, numbers)
    estimator._check_unmeasured(counts)
    unit = _checked_units(units, counts, int(n_folds))
    labels = None if batch is None else checked_batch(estimator, counts, batch)
    if labels is not None and held_out == "auto":
        held_out = "samples"
    with ExitStack() as stack:
        stack.enter_context(single_blas_thread())
        folder, seed = _folder_and_seed(job)
        splits = _Splits(
            estimator, counts, numbers, int(n_folds), int(n_init), seed,
            folder or Path(stack.enter_context(tempfile.TemporaryDirectory())),
            {**job, "checkpoint": folder}, labels,
        )  # fmt: skip
        n_fits = int(n_splits) * len(numbers) * splits.n_fits
        advance = stack.enter_context(progress_bar(n_fits, "fits", " fits", job["verbose"]))
        return splits.compared(int(n_splits), unit, held_out, advance)


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
    folders = [place for name in ("most", "fits") for place in folder.glob(f"split-*/*/{name}")]
    return [place for place in sorted(folders) if checkpoints_in(place)]


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


@dataclass
class _Splits:
    """Fits to several splits of the counts, one after the other.

    Split s has child s of the seed. `folder` is for the parts of counts that memory cannot hold.
    """

    estimator: Any
    counts: CountMatrix
    numbers: list[int]
    n_folds: int
    n_init: int
    seed: SeedSequence
    folder: Path
    job: JobOptions
    batch: Array | None

    @property
    def n_fits(self) -> int:
        """Number of fits with each number of topics to each split."""
        return self.n_folds * self.n_init

    def fits(self, split: int, unit: Array | None) -> SplitFits:
        """Return the fits to a split, of which none is done."""
        seed = child(self.seed, split)
        name = f"split-{split}/{'counts' if unit is None else 'samples'}"
        folds = Folds.of(
            self.counts, self.n_folds, child(seed, 0), unit, self.folder / name,
            self.estimator.memory_limit, resolve_threads(self.job["n_threads"]),
        )  # fmt: skip
        task = SelectionTask(self.estimator, folds, (), self.n_init, self.batch)
        return SplitFits(task, {**part_of_job(self.job, name), "random_state": child(seed, 1)})

    def compared(
        self, n_splits: int, unit: Array | None, held_out: str, advance: Callable[[int], Any]
    ) -> SelectK:
        """Return the comparison; after Ctrl-C that of the splits, or numbers, that are done."""
        scores: list[SplitScores] = []
        samples, excess = np.arange(self.counts.shape[0]), None
        what = "units" if unit is not None else held_out.replace("auto", "counts")
        unit = samples if held_out == "samples" else unit
        numbers, kept = self.numbers, self.numbers
        fits = self.fits(0, unit)
        if unit is None and self.batch is None:
            # a split in halves shows if counts vary like Poisson counts
            fits.run(numbers[-1:], "most", lambda _: None)
            excess = fits.excess_variance()
            enough = numbers[-1] <= len(samples) // 2
            if held_out == "auto" and enough and varies_more(excess):
                what, unit = "samples", samples
                fits.end()
                fits = self.fits(0, unit)
            else:
                advance(self.n_fits)
        for split in range(n_splits):
            fits = self.fits(split, unit) if split else fits
            fits.run([number for number in numbers if number not in fits.done], "fits", advance)
            if fits.interrupted and scores:
                break
            kept = sorted(fits.done)
            if not kept:
                raise KeyboardInterrupt
            scores.append(fits.scores(kept))
            fits.end()
            if fits.interrupted:
                break
        return SelectK.of(
            np.array(kept), scores, excess,
            has_prior=getattr(self.estimator, "prior_factors", True) is not None,
            estimator=type(self.estimator).__name__, held_out=what,
            interrupted=len(scores) < n_splits or len(kept) < len(numbers),
            random_state=self.seed.entropy,
        )  # fmt: skip
