"""How many topics: scores of held-out counts, and topics that independent fits agree on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import combinations
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.names import shown
from ..counts.sizes import MemoryLimitError
from ..engine.checkpoint import recorded_seed
from ..engine.threads import resolve_threads, single_blas_thread
from ..engine.workers import resolve_client
from ..methods.matching import lift_pairs
from ..models.pipelines import model_and_input
from ..models.topic_model import TopicModel
from ..storage.atomic import user_path
from .excess_variance import excess_variance
from .folds import Folds
from .groups import checked_labels
from .replicates import (
    Replicates,
    check_every,
    check_positive,
    progress_bar,
    run_replicates,
)
from .results.select_k import SelectK
from .seeds import child, seed_of
from .selection_fits import MOST_ADDED, SelectionTask, check_estimator, goes_on, totals_of
from .shared_fits import counts_of_job

Array = NDArray[Any]


def select_k(
    X: Any,
    n_components: Any = range(2, 21),
    *,
    estimator: Any = None,
    units: Any = None,
    n_folds: int = 2,
    n_init: int = 1,
    random_state: Any = None,
    n_threads: int | None = None,
    client: Any = None,
    checkpoint: Any = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    verbose: int = 0,
    layer: str | None = None,
    raw: bool = False,
) -> SelectK:
    """Compare numbers of topics by scores of held-out counts and by the stability of topics.

    Every count is split at random in two halves (binomial thinning). For Poisson counts the halves
    are independent, so that topics and proportions that were fitted to one half are scored on the
    other one [1]_. With `units`, the samples of some units are held out instead: topics are fitted
    to the other units, proportions to half of the counts of each held-out sample, and the other
    half is scored (document completion). The topics that were fitted to different halves, or units,
    are matched as by :func:`match_topics`: topics that are not found again are not a property of
    the data.

    Parameters
    ----------
    X : counts of shape (n_samples, n_features)
        Whole numbers, as in :meth:`nmfscale.PoissonNMF.fit`. If memory is too small for the parts
        of counts in a file, they are written to packed stores in the folder of `checkpoint`, or in
        the system's temporary folder, and read from there.
    n_components : iterable of int, default=range(2, 21)
        Numbers of topics to compare.
    estimator : estimator of counts, default=None
        Its parameters except `n_components` are used; it is not fitted. In a pipeline that ends
        with the estimator, the other steps are first fitted to all samples. None means
        ``TopicModel(prior_factors=1.1, tol=1e-3)``: held-out scores of maximum likelihood without a
        prior can fall from the smallest number of topics on.
    units : array-like of shape (n_samples,), default=None
        Unit of each sample, such as a patient or an author, to hold out whole units. They are
        matched with the samples of `X` by name if both have names.
    n_folds : int, default=2
        Number of parts of the counts, or of groups of units; each is held out once. With more than
        two, fits share most of their counts and stability is overstated.
    n_init : int, default=1
        Number of fits of each part with each number of topics; the one with the highest objective
        is used.
    random_state : int, numpy.random.Generator, RandomState, SeedSequence or None, default=None
        Seed of the splits and starts.
    n_threads : int, default=None
        Threads of a fit; by default one for each processor that this process may use.
    client : distributed.Client, default=None
        Dask cluster whose workers share the fits, as in :func:`bootstrap_fit`.
    checkpoint, checkpoint_every, resume
        As in :meth:`nmfscale.PoissonNMF.fit`: finished fits are saved, and a resumed job ends with
        the same bits.
    verbose : int, default=0
        1 shows a progress bar.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.

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
    If the held-out score does not rise, a second fit of a :class:`PoissonNMF` or
    :class:`TopicModel` starts from the topics of the fit before, of which the topic is split whose
    samples are explained worst, and the fit with the higher objective is used. If up to three
    numbers of topics are left out, topics are split one after the other, with a few iterations in
    between.

    The recommendation is the smallest number of topics whose held-out score is within one standard
    error of the best. The error is that of the difference between both, from the differences of the
    samples (or units). If the score rises up to the largest number of topics, it does not say how
    many there are: counts vary more than Poisson counts, so that the halves share deviations that
    more and more topics explain, or there are more topics. In this case the recommendation is the
    largest number of topics of which all are found in both halves (similarity at least 0.8).

    `excess_variance` compares deviations of the two halves from their fits with the most topics:
    they are uncorrelated for Poisson counts, and otherwise the estimate is a lower bound of the
    dispersion of a negative binomial distribution, variance = mean + dispersion * mean^2. Both
    halves of a count share its deviation, so that topics of deviations are found again in both
    halves. Deviations of different samples are independent: hold out samples
    (``units=range(n_samples)``) to see which topics are stable.

    Ctrl-C ends the job after the current fits; the result has the numbers of topics that are done.

    References
    ----------
    .. [1] Neufeld, Dharamshi, Gao, Witten (2024). Data thinning for convolution-closed
       distributions. Journal of Machine Learning Research 25.

    Examples
    --------
    >>> from nmfscale import select_k, simulate_topic_counts
    >>> X, truth = simulate_topic_counts(200, 100, 4, random_state=0)
    >>> found = select_k(X, range(2, 7), random_state=0)
    >>> found.best
    4
    >>> found.to_frame().columns.tolist()[:3]
    ['n_components', 'score', 'score_error']
    """
    numbers = _checked_numbers(n_components)
    estimator = TopicModel(prior_factors=1.1, tol=1e-3) if estimator is None else estimator
    estimator, X = model_and_input(estimator, X)
    check_estimator(estimator)
    check_positive("n_init", n_init)
    check_every(checkpoint, checkpoint_every, resume)
    if not isinstance(n_folds, Integral) or isinstance(n_folds, bool) or n_folds < 2:
        raise ValueError(f"n_folds is {shown(n_folds)}; an integer of at least 2 is needed.")
    client = resolve_client(client)
    counts = counts_of_job(X, estimator.memory_limit, client, layer=layer, raw=raw)
    _check_counts(counts, numbers)
    unit = _checked_units(units, counts, int(n_folds))
    how = {
        "n_threads": n_threads, "client": client, "checkpoint_every": checkpoint_every,
        "resume": resume,
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(single_blas_thread())
        folder, seed = _folder_and_seed(checkpoint, resume, random_state, numbers[0])
        parts = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folds = Folds.of(
            counts, int(n_folds), child(seed, 0), unit, parts, estimator.memory_limit,
            resolve_threads(n_threads),
        )  # fmt: skip
        n_fits = len(numbers) * folds.n_folds * int(n_init)
        advance = stack.enter_context(progress_bar("fits", n_fits, 0, verbose))
        search = _Search(estimator, folds, int(n_init), child(seed, 1), folder, how, advance)
        search.run(numbers)
        return search.result(numbers, seed, "units" if units is not None else "counts")


def _checked_numbers(given: Any) -> list[int]:
    try:
        numbers = [given] if isinstance(given, Integral) else list(given)
    except TypeError:
        numbers = []
    wrong = [k for k in numbers if not isinstance(k, Integral) or isinstance(k, bool) or k < 1]
    if wrong or not numbers:
        what = shown(wrong[0]) if wrong else shown(given)
        raise ValueError(
            f"n_components has {what}: positive integers are needed, such as range(2, 21)."
        )
    return sorted({int(k) for k in numbers})


def _check_counts(counts: CountMatrix, numbers: Sequence[int]) -> None:
    if not counts.is_integer:
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


def _folder_and_seed(
    checkpoint: Any, resume: bool, random_state: Any, least: int
) -> tuple[Path | None, SeedSequence]:
    """Return the folder of the checkpoints, and the seed, which a resumed job continues with."""
    if checkpoint is None:
        return None, seed_of(random_state)
    folder = user_path(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    if resume and random_state is None:
        entropy = recorded_seed(folder / f"topics-{least:05d}")
        if entropy is not None:
            return folder, SeedSequence(entropy)
    return folder, seed_of(random_state)


class _Search:
    """Fits with one number of topics after another."""

    def __init__(
        self, estimator: Any, folds: Folds, n_init: int, seed: SeedSequence, folder: Path | None,
        how: dict[str, Any], advance: Callable[[int], Any],
    ):  # fmt: skip
        self.estimator, self.folds, self.n_init, self.seed = estimator, folds, n_init, seed
        self.folder, self.how, self.advance = folder, how, advance
        self.interrupted = False
        # of each number of topics that is done, the results of the best fit to each fold
        self.done: dict[int, dict[str, Array]] = {}

    def run(self, numbers: Sequence[int]) -> None:
        """Fit, until all is done or Ctrl-C is pressed."""
        before: int | None = None
        try:
            for n_topics in numbers:
                if not self._add(n_topics, before):
                    self.interrupted = True
                    break
                before = n_topics
        except KeyboardInterrupt:
            self.interrupted = True
        if not self.done:
            raise KeyboardInterrupt

    def _add(self, n_topics: int, before: int | None) -> bool:
        """Fit with one number of topics; return False if Ctrl-C was pressed before the end."""
        n = self.folds.n_folds
        task = SelectionTask(self.estimator, self.folds, n_topics)
        job = self._run(task, n * self.n_init, "", self.advance)
        if not job.done.all():
            return False
        found = dict(job.rows)
        best = self._best(found)
        if self._continues(n_topics, before, best) and not job.interrupted:
            assert before is not None
            topics = tuple(self.done[before]["topics"])
            task = SelectionTask(self.estimator, self.folds, n_topics, topics, n * self.n_init)
            job = self._run(task, n, "-split", lambda _: None)
            if not job.done.all():
                return False
            best = self._best({
                name: np.concatenate([found[name], job.rows[name]]) for name in found
            })  # fmt: skip
        self.done[n_topics] = best
        return not job.interrupted

    def _continues(self, n_topics: int, before: int | None, best: dict[str, Array]) -> bool:
        """Whether to fit again from the topics before: the held-out score has not risen."""
        if before is None or n_topics - before > MOST_ADDED or not goes_on(self.estimator):
            return False
        return bool(best["held_out"].sum() <= self.done[before]["held_out"].sum())

    def _run(self, task: SelectionTask, n: int, suffix: str, advance: Any) -> Replicates:
        name = f"topics-{task.n_components:05d}{suffix}"
        folder = None if self.folder is None else self.folder / name
        return run_replicates(
            task, n, random_state=self.seed, batch_size=1, checkpoint=folder, advance=advance,
            **self.how,
        )  # fmt: skip

    def _best(self, found: dict[str, Array]) -> dict[str, Array]:
        """Return the results of the fit with the highest objective to each fold."""
        n = self.folds.n_folds
        start = found["objective"].reshape(-1, n).argmax(axis=0)
        return {name: each[start * n + np.arange(n)] for name, each in found.items()}

    def result(self, numbers: Sequence[int], seed: SeedSequence, held_out: str) -> SelectK:
        """Return the result of what is done."""
        folds, done = self.folds, [self.done[k] for k in numbers if k in self.done]
        kept = [k for k in numbers if k in self.done]
        totals = [totals_of(folds.fold(f), folds.n_sums) for f in range(folds.n_folds)]
        pairs = list(combinations(range(folds.n_folds), 2))
        similarities = tuple(
            np.stack([lift_pairs(each["topics"][a], each["topics"][b])[2] for a, b in pairs])
            for each in done
        )
        excess = None
        if held_out == "counts" and folds.n_folds == 2 and not self.interrupted:
            excess = self._excess_variance(done[-1]["topics"])
        return SelectK.of(
            np.array(kept), np.stack([each["held_out"] for each in done]),
            np.stack([each["in_sample"] for each in done]),
            np.stack([each[0] for each in totals]), np.stack([each[1] for each in totals]),
            similarities, excess,
            has_prior=getattr(self.estimator, "prior_factors", True) is not None,
            n_iter=np.stack([each["n_iter"] for each in done]),
            converged=np.stack([each["converged"] for each in done]),
            estimator=type(self.estimator).__name__, held_out=held_out,
            interrupted=self.interrupted, random_state=seed.entropy,
        )  # fmt: skip

    def _excess_variance(self, topics: Array) -> tuple[float, float] | None:
        try:
            return excess_variance(
                self.folds.halves(), topics, self.folds.sum_of_sample, self.how["n_threads"]
            )
        except (KeyboardInterrupt, MemoryLimitError):
            return None
