"""Bootstrap of whole fits: each refit weights samples by how often they were drawn.

A replicate starts from the factors of the fit and ends by the same rule. This is faster than a
random start and stays at one optimum: variance between random starts is not sampling variance.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from ..counts.base import CountMatrix
from ..counts.names import shown
from ..counts.warn import warn_caller
from ..engine.workers import resolve_client
from ..kernels.resample import draw_counts
from ..methods.matching import match_columns
from ..models.pipelines import model_and_input
from .fit_counts import counts_of_fit
from .groups import check_resampled, checked_design, checked_labels
from .intervals import check_interval
from .replicates import ReplicateTask, run_replicates
from .results.refit import BootstrapFit, Estimates, numbers_or_names
from .seeds import child_states
from .shared_fits import (
    check_estimator,
    counts_of_job,
    file_of,
    fit_together,
    n_together,
    n_together_elsewhere,
)
from .weighting import check_groups, check_weighting, sample_weights

Array = NDArray[Any]


def bootstrap_fit(
    estimator: Any,
    X: Any,
    *,
    units: Any = None,
    weighting: str = "units",
    strata: Any = None,
    groups: Any = None,
    features: Any = None,
    samples: Any = None,
    n_replicates: int = 200,
    level: float = 0.95,
    random_state: Any = None,
    n_threads: int | None = None,
    client: Any = None,
    checkpoint: Any = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    verbose: int = 0,
    layer: str | None = None,
    raw: bool = False,
) -> BootstrapFit:
    """Bootstrap whole fits: the uncertainty of topics, mean proportions and proportions.

    Resample the units that the study sampled. If samples come in units, such as cells of a patient
    or posts of a blog, pass these as `units`: samples of a unit resemble each other, and intervals
    that resample single samples are far too narrow.

    Each replicate weights the samples by how often they were drawn, starts from the factors of the
    fit, and ends by the rule of `estimator`. Its topics are matched to those of the fit as by
    :func:`match_topics`; the result has the cosines between matched topics.

    Parameters
    ----------
    estimator : PoissonNMF or TopicModel
        Fitted to `X`, or unfitted; an unfitted one is copied and fitted first. Replicates use the
        `row_weights` and the fixed topics, features and samples of its fit.
    X : counts of shape (n_samples, n_features)
        The counts of the fit, as in :meth:`nmfscale.PoissonNMF.fit`. Features and samples are
        matched with those of the fit by name, where both have names. If memory is too small for the
        counts, a packed store (or any file, if the estimator has a `memory_limit`) is read in
        chunks: up to 16 replicates, as many as memory has room for, share each read.
    units : array-like of shape (n_samples,), default=None
        Unit of each sample: all samples of a unit are drawn together. By default samples are units.
    weighting : {"units", "samples"}, default="units"
        Whether each unit counts once in the mean of a group, by the mean of its samples there, or
        each sample counts once. Samples have their `row_weights`; samples without counts have
        weight 0.
    strata : array-like of shape (n_samples,), default=None
        Strata of the study, such as groups whose sizes were chosen: from each stratum as many units
        are drawn as it has.
    groups : array-like of shape (n_samples,), default=None
        Groups whose mean proportions to report. Groups, units and strata are matched with the
        samples of `X` by name if both have names. Replicates without any unit of a group are left
        out of its intervals.
    features : array-like of int or str, default=None
        Features whose frequencies to report, by number or name; by default all.
    samples : array-like of int or str, default=None
        Samples whose proportions to report, by number in `X` or name; by default none.
    n_replicates : int, default=200
        Number of replicates. Memory is 4 bytes for each replicate and reported number.
    level : float, default=0.95
        Nominal coverage of the intervals, of percentiles.
    random_state : int, numpy.random.Generator, RandomState, SeedSequence or None, default=None
        Seed. Replicate r draws from child r of it.
    n_threads : int, default=None
        Threads of a fit; by default one for each processor that this process may use.
    client : distributed.Client, default=None
        Dask cluster whose workers share the replicates. Each worker needs all counts: counts in
        memory are sent to it, a packed store is read by it under the same path. By default the
        active client, or else this process.
    checkpoint, checkpoint_every, resume
        As in :meth:`nmfscale.PoissonNMF.fit`: finished replicates are saved, and a resumed job ends
        with the same bits.
    verbose : int, default=0
        1 shows a progress bar.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.

    Returns
    -------
    BootstrapFit
        Frequencies of features in topics, mean proportions and proportions, with intervals.

    Raises
    ------
    ValueError
        If the counts or labels are not valid, or the estimator is of another class or was fitted to
        different counts; or if a cluster is to read a file that is not a packed store.
    CheckpointError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.fit`.

    Warns
    -----
    UserWarning
        If topics of some replicates had to be reordered, replicates have not converged, or
        replicates have no unit of a group.

    Notes
    -----
    Coverage of percentile intervals is below their nominal level. In 300 simulated sets of 60 + 60
    samples with 200 counts (``benchmarks/calibration.py``, 60 replicates), 95% intervals covered
    the true mean proportions of groups in 91% and the true frequencies in 89%.

    References
    ----------
    .. [1] Davison, Hinkley (1997). Bootstrap methods and their application. Cambridge.

    Examples
    --------
    >>> from nmfscale import TopicModel, bootstrap_fit, simulate_topic_counts
    >>> X, *_ = simulate_topic_counts(100, 30, 3, random_state=0)
    >>> model = TopicModel(n_components=3, random_state=0).fit(X)
    >>> found = bootstrap_fit(model, X, n_replicates=20, random_state=0)
    >>> found.components.lower.shape, found.n_reordered
    ((3, 30), 0)
    """
    check_interval(level, "percentile")
    check_weighting(weighting)
    estimator, X = model_and_input(estimator, X)
    check_estimator(estimator)
    client = resolve_client(client)
    counts = counts_of_job(X, estimator.memory_limit, client, layer=layer, raw=raw)
    fitted = _fitted(estimator, counts, n_threads)
    counts, given = counts_of_fit(fitted, X, counts)
    n, m = counts.shape
    design = checked_design(
        checked_labels(np.zeros(n, int), n, "X"), units, strata, nested=False,
        sample_names=given.sample_names, subject="X",
    )  # fmt: skip
    check_resampled(design)
    labels = None
    if groups is not None:
        labels = checked_labels(groups, n, "groups", given.sample_names, "X")
    chosen = [
        _checked_indices(wanted, size, name, names)
        for wanted, size, name, names in (
            (features, m, "features", counts.feature_names),
            (samples, n, "samples", counts.sample_names),
        )
    ]
    order = np.argsort(design.strata.codes, kind="stable")
    place = np.empty(design.n_units, np.int64)
    place[order] = np.arange(design.n_units)
    starts = np.concatenate([[0], np.cumsum(design.strata.sizes)])
    in_means = sample_weights(weighting, design, labels, given.weights * (counts.row_totals > 0))
    if labels is not None:
        check_groups(labels, in_means)
    L, F = fitted.poisson_factors()
    task = RefitTask(
        clone(fitted).set_params(
            n_init=1, n_moves=0, verbose=0, callback=None, random_state=0
        ), counts,
        np.ascontiguousarray(L[given.rows]), F, given.weights, given.fixed,
        place[design.of_sample], starts, None if labels is None else labels.codes,
        features=chosen[0], samples=chosen[1], in_means=in_means,
    )  # fmt: skip
    job = run_replicates(
        task, n_replicates, random_state=random_state, n_threads=n_threads, client=client,
        checkpoint=checkpoint, checkpoint_every=checkpoint_every, resume=resume, verbose=verbose,
    )  # fmt: skip
    _warn(job["match"], ~job["converged"] & (job["n_iter"] >= fitted.max_iter))
    proportions, frequencies = fitted._multinomial()
    known = task.numbers_of(proportions[given.rows], frequencies, np.ones(n))
    estimates = {name: Estimates.of(known[name], job[name], level) for name in known}
    if labels is not None:
        _warn_of_missing(job["group_means"], labels.names)
    return BootstrapFit(
        estimates["components"], estimates.get("group_means"), estimates.get("proportions"),
        cosines=job["cosine"], matches=job["match"], n_iter=job["n_iter"],
        converged=job["converged"], features=chosen[0], samples=chosen[1],
        feature_names=counts.feature_names, groups=None if labels is None else labels.names,
        level=level, random_state=job.seed.entropy, topic_names=numbers_or_names(fitted),
        units="samples" if units is None else "units", weighting=weighting,
    )  # fmt: skip


def _fitted(estimator: Any, counts: CountMatrix, n_threads: int | None) -> Any:
    """Return the estimator, and fit it first if it is not fitted."""
    if hasattr(estimator, "components_"):
        return estimator
    fresh = clone(estimator)
    if n_threads is not None:
        fresh.set_params(n_threads=n_threads)
    return fresh.fit(counts)


def _checked_indices(given: Any, size: int, name: str, names: Any) -> Array:
    """Return positions of features or samples that are given by position or name."""
    if given is None:
        return np.arange(size if name == "features" else 0)
    found = np.atleast_1d(np.asarray(given))
    if found.ndim == 1 and found.dtype.kind in "iu" and np.isin(found, np.arange(size)).all():
        return found.astype(np.int64)
    if found.ndim == 1 and found.dtype.kind in "OUT" and names is not None:
        place = {str(each): i for i, each in reversed(list(enumerate(names)))}
        unknown = [str(each) for each in found if str(each) not in place]
        if unknown:
            raise ValueError(f"{name}: none is named {shown(unknown[0])}.")
        return np.array([place[str(each)] for each in found])
    remedy = "" if names is None else ", or names"
    raise ValueError(f"{name} must be whole numbers from 0 to {size - 1}{remedy}.")


@dataclass(frozen=True)
class RefitTask(ReplicateTask):
    """Fits to samples that are weighted by the draws of their units.

    `weights` (n,) are the weights of the samples in the fit; `fixed` holds the arguments of `fit`
    that fix topics, features or samples. `unit` (n,) is the number of each sample's unit; units are
    numbered stratum by stratum, and `strata` is the first number of each. `in_means` (n,) are
    weights of samples in means.
    """

    estimator: Any
    counts: CountMatrix
    L: Array
    F: Array
    weights: Array
    fixed: dict[str, Array]
    unit: Array
    strata: Array
    groups: Array | None
    features: Array
    samples: Array
    in_means: Array
    name = "bootstrap fits"
    patience = 600.0

    def about(self) -> Iterable[Any]:
        """Return the inputs of the replicates, from which a checkpoint is recognised."""
        counts, groups = self.counts, np.zeros(0) if self.groups is None else self.groups
        yield from (counts.row_totals, counts.column_totals, self.L, self.F, self.unit, self.strata)
        yield from (groups, self.features, self.samples, repr(self._of_result()))
        yield from (self.weights, self.in_means, *self.fixed.keys(), *self.fixed.values())

    def _of_result(self) -> dict[str, Any]:
        given: dict[str, Any] = self.estimator.get_params(deep=False)
        return {name: given[name] for name in given if name not in ("n_threads", "memory_limit")}

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the packed store that workers read, if counts are in one."""
        return file_of(self.counts)

    def together(self, here: bool) -> int:
        """Return the number of fits that share each read of counts in a file."""
        return self._n_together(1) if here else n_together_elsewhere(self.counts)

    def _n_together(self, n_threads: int) -> int:
        """Return that number on the machine that does the fits, as its memory allows."""
        return n_together(
            self.counts, self.estimator, self.F.shape[1], self.F.dtype, n_threads, weighted=True
        )

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return the estimates of each fit, and how its topics were matched."""
        states, found = child_states(seed, numbers), list[dict[str, Array]]()
        self.counts.layout(n_threads)  # arranged once for all fits
        size = self._n_together(n_threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for first in range(0, len(states), size):
                found += self._fits(states[first : first + size], n_threads)
        return {name: np.stack([each[name] for each in found]) for name in found[0]}

    def _fits(self, states: Array, n_threads: int) -> list[dict[str, Array]]:
        """Fit some replicates; several of them share each read of the counts."""
        drawn = np.empty((len(states), self.strata[-1]))
        draw_counts(states, self.strata, drawn, n_threads=1)
        return fit_together(self.counts, [partial(self._fit, each) for each in drawn], n_threads)

    def _fit(
        self, drawn: Array, n_threads: int, counts: CountMatrix, **options: Any
    ) -> dict[str, Array]:
        times = drawn[self.unit]
        model = clone(self.estimator).set_params(n_threads=n_threads, **options)
        model.fit(counts, L=self.L, F=self.F, row_weights=self.weights * times, **self.fixed)
        proportions, frequencies = model._multinomial()
        match, cosine = match_columns(self.F, model._held()[0])
        found = self.numbers_of(proportions[:, match], frequencies[:, match], times)
        return {name: values.astype(np.float32) for name, values in found.items()} | {
            "match": match, "cosine": cosine, "n_iter": np.asarray(model.n_iter_),
            "converged": np.asarray(model.converged_),
        }  # fmt: skip

    def numbers_of(self, proportions: Array, frequencies: Array, times: Array) -> dict[str, Array]:
        """Return the estimates of one refit, given how often each sample was drawn."""
        found = {"components": frequencies.T[:, self.features]}
        if self.groups is not None:
            R, weights = int(self.groups.max()) + 1, self.in_means * times
            sums = np.stack([
                np.bincount(self.groups, weights * each, minlength=R) for each in proportions.T
            ])  # fmt: skip
            size = np.bincount(self.groups, weights, minlength=R)
            # a group without drawn units has no mean
            found["group_means"] = np.where(size > 0, sums / np.where(size > 0, size, 1.0), np.nan)
        if self.samples.size:
            found["proportions"] = proportions[self.samples]
        return found


def _warn_of_missing(means: Array, names: tuple[Any, ...]) -> None:
    missing = np.isnan(means[:, 0]).sum(axis=0)
    if missing.any():
        r = int(missing.argmax())
        warn_caller(
            f"some replicates drew no units of {np.count_nonzero(missing)} groups: for "
            f"{shown(names[r])}, {missing[r]} of {len(means)} replicates are left out of its "
            "intervals. To draw as many units of each group as it has, pass groups as strata, too."
        )


def _warn(matches: Array, ran_out: Array) -> None:
    moved = int((matches != np.arange(matches.shape[1])).any(axis=1).sum())
    if moved:
        warn_caller(
            f"topics of {moved} of {len(matches)} replicates were reordered to match "
            "those of the fit: see `cosines` for how well they do."
        )
    if ran_out.any():
        warn_caller(
            f"{int(ran_out.sum())} of {len(ran_out)} replicates ran out of iterations: increase "
            "max_iter of the estimator."
        )
