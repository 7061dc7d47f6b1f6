"""noisy_pairs: features that depart from their mean in a topic, ranked, with error rates."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from ...counts.argument_types import CountsLike
from ...counts.base import CountMatrix
from ...counts.warn import warn_caller
from ...engine.workers import resolve_client
from ...kernels import dense
from ...methods.factors import proportions
from ...methods.topics.matching import best_pairs
from ...methods.variational.noise_chain import NoiseChain
from ...models.arguments.names import feature_names_of
from ...models.noisy_topic_model import NoisyTopicModel
from ...models.pipelines import FittedModel, model_and_input
from ...readers.streams.thinning import Thinning
from ..design.fit_counts import counts_of_fit
from ..job import JobOptions, job_options
from ..replicates.excess_variance import excess_variance, inflation_of, varies_more
from ..replicates.folds import MOST_SUMS
from ..replicates.replicates import ReplicateTask, check_positive, run_replicates
from ..replicates.seeds import child, generator, state_of_fit
from ..replicates.shared_fits import counts_of_job, file_of
from .differential_split import thinned_part
from .noisy_pairs_result import NoisyPairs, ranking

Array = NDArray[Any]
# Least correlation of proportions in the fit and in a chain: they then have the same topic.
_SAME_TOPIC = 0.9
# Least number of starts of a fit to a half of the counts. With one, all halves often lead to the
# local optimum of the fit to all counts, so that its topics seem to be those of the counts.
_STARTS = 4
# Variance of counts, relative to that of Poisson counts, above which error rates are far too small;
# and what thinning reduces the excess over 1 to.
_MOST_INFLATION, _THINNED = 2.0, 0.5


@job_options
def noisy_pairs(
    model: FittedModel,
    X: CountsLike,
    *,
    n_chains: int = 4,
    n_draws: int = 200,
    n_warmup: int = 200,
    layer: str | None = None,
    raw: bool = False,
    **job: Unpack[JobOptions],
) -> NoisyPairs:
    """Rank pairs of a feature and a topic by evidence of noise, with error rates by simulation.

    A pair is noisy if the feature is more or less frequent in the topic than on average. All
    parameters of a :class:`nmfscale.NoisyTopicModel` are simulated given the counts, by Markov
    chains (Gibbs sampling). The mean over all draws of the probability that a pair has no noise is
    its local error rate. Unlike ``local_fdr_`` of the fit, it includes the uncertainty of loadings,
    means and noise shares.

    Each chain starts from the best of four fits of a random half of the counts, and then uses all
    counts. If the counts determine the topics, every chain finds them again. A topic of the fit
    that a chain does not find has error rates of 1, and a warning is raised.

    Parameters
    ----------
    model : NoisyTopicModel
        Fitted to `X`. Its `noise_prior` does not matter: chains have a mixture. They estimate the
        parameters that were fixed in the fit, too. Fits of halves have the other parameters of the
        model, and at least four starts (`n_init`).
    X : counts of shape (n_samples, n_features)
        The counts of the fit, whole numbers, as in :meth:`nmfscale.PoissonNMF.fit`. Features and
        samples are matched with those of the fit by name, where both have names. Counts in a file
        that do not fit into memory are read in every draw.
    n_chains : int, default=4
        Number of chains. With one, it is hardly noticed if a topic is not in the counts.
    n_draws : int, default=200
        Number of draws of each chain that are used.
    n_warmup : int, default=200
        Number of draws before these, which are not used. A draw takes time in proportion to the sum
        of the counts and the number of topics.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.
    random_state, n_threads, client, checkpoint, checkpoint_every, resume, verbose
        As in :func:`nmfscale.bootstrap_fit`. Workers share the chains, and finished chains are
        saved.

    Returns
    -------
    NoisyPairs
        Error rates of all pairs; ``to_frame()`` returns the ranked table. After Ctrl-C, it is that
        of the finished chains.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    ValueError
        If the model is of another class or was fitted to different counts, if counts are not whole
        numbers, or an argument is not valid; or if a cluster is to read a file that is not a packed
        store.
    CheckpointError, ClusterError
        As in :meth:`nmfscale.PoissonNMF.fit`.

    Warns
    -----
    UserWarning
        If topics of the fit are not found again by every chain. The error rates of the other topics
        are then too small, too. If counts vary so much more than Poisson counts that their variance
        is more than twice their mean (``inflation``): deviations of single counts then look like
        noise of pairs.

    Notes
    -----
    The dispersion of the counts, ``excess_variance``, is estimated as by
    :func:`nmfscale.select_k`, from the two halves with which each chain begins. See
    ``docs/noisy_topics.md`` for the error rates that were realised in simulations.

    References
    ----------
    .. [1] Efron (2008). Microarrays, empirical Bayes and the two-groups model. Statistical Science
       23.
    .. [2] Sarkar. Noisy topic models. https://aksarkar.github.io/singlecell-ideas/noisy-topics.html

    Examples
    --------
    >>> from nmfscale import NoisyTopicModel
    >>> from nmfscale.datasets import simulate_noisy_topics
    >>> from nmfscale.experimental import noisy_pairs
    >>> X, truth = simulate_noisy_topics(200, 40, 2, noisy_share=0.1, random_state=0)
    >>> model = NoisyTopicModel(n_components=2, random_state=0).fit(X)
    >>> found = noisy_pairs(model, X, n_chains=2, n_draws=20, n_warmup=20, random_state=0)
    >>> found.to_frame().columns.tolist()
    ['topic', 'feature', 'factor', 'counts', 'expected', 'local_error_rate', 'error_rate']
    """
    for name, value in (("n_chains", n_chains), ("n_draws", n_draws), ("n_warmup", n_warmup)):
        check_positive(name, value)
    model, X = model_and_input(model, X)
    if not isinstance(model, NoisyTopicModel):
        raise ValueError(
            f"model is a {type(model).__name__}: a fitted NoisyTopicModel is needed. For features "
            "that differ between the topics of other models, see differential_features."
        )
    check_is_fitted(model, "components_")
    job["client"] = resolve_client(job["client"])
    counts = counts_of_job(X, model.memory_limit, job["client"], layer=layer, raw=raw)
    counts, fit_samples = counts_of_fit(model, X, counts)
    if not counts.is_integer:
        raise ValueError(
            "X has counts that are not whole numbers: pass counts before normalisation or weights, "
            "because every single count is assigned to a topic."
        )
    start = clone(model).set_params(
        noise_prior="mixture", n_components=len(model.components_), verbose=0, callback=None,
        random_state=None, n_init=max(model.n_init, _STARTS),
    )  # fmt: skip
    fitted = proportions(np.asarray(model.loadings_, np.float64)[fit_samples.rows])
    task = ChainTask(start, counts, fitted, int(n_warmup), int(n_draws))
    replicates = run_replicates(task, n_chains, **job)
    names = tuple(getattr(model, "topic_names_", range(fitted.shape[1])))
    agreement = replicates["agreement"]
    reproduced: Array = np.logical_and.reduce(agreement >= _SAME_TOPIC)
    local, factors = replicates["no_noise"].mean(axis=0), replicates["factors"].mean(axis=0)
    local[~reproduced] = 1.0
    dispersion, error = replicates["excess_variance"].mean(axis=0).tolist()
    inflation = inflation_of(dispersion, model.loadings_, model.components_.T)
    _warn(reproduced, agreement, names)
    _warn_of_dispersion(dispersion, error, inflation)
    return NoisyPairs(
        error_rates_of(local, factors), local, factors, model.topic_counts_,
        model.expected_counts_, agreement, replicates["noise_share"], reproduced,
        (dispersion, error), inflation, feature_names_of(model, counts), names,
        replicates.interrupted, replicates.seed.entropy,
    )  # fmt: skip


def error_rates_of(local: Array, factors: Array) -> Array:
    """Return the mean of the local error rates of all pairs up to each pair in the ranking."""
    order = ranking(local, factors)
    rates = np.empty(local.size)
    rates[order] = local.ravel()[order].cumsum() / np.arange(1, local.size + 1)
    return rates.reshape(local.shape)


def _warn(reproduced: Array, agreement: Array, names: tuple[Any, ...]) -> None:
    if reproduced.all():
        return
    k = int(np.flatnonzero(~reproduced)[0])
    warn_caller(
        f"{int((~reproduced).sum())} of {len(names)} topics are not found again in chains from "
        f"other starts, the first is {names[k]}, with a correlation of "
        f"{agreement[:, k].min():.2f}: their pairs have an error rate of 1, and error rates of "
        "other topics are too small. Either the fit or a chain is at a local optimum, which a "
        "larger n_init of the model may prevent, or these counts do not determine so many topics."
    )


def _warn_of_dispersion(dispersion: float, error: float, inflation: float) -> None:
    if inflation <= _MOST_INFLATION or not varies_more((dispersion, error)):
        return
    share = _THINNED / (inflation - 1)
    warn_caller(
        f"counts vary more than Poisson counts: their dispersion is {dispersion:.2f} (standard "
        f"error {error:.2f}), so that the variance of a count is {inflation:.1f} times its mean. "
        "The model takes deviations of single counts for noise of pairs, and error rates are far "
        "too small. They are less so for fewer counts, in which the dispersion matters less: fit "
        f"and rank nmfscale.thin(X, fraction={share:.2g})."
    )


@dataclass(frozen=True)
class ChainTask(ReplicateTask):
    """Chains: chain r has child r of the seed.

    `estimator` fits halves of the counts; `fitted` (n, K) are the proportions in the fit.
    """

    estimator: NoisyTopicModel
    counts: CountMatrix
    fitted: Array
    n_warmup: int
    n_draws: int
    name = "chains"
    patience = 3600.0

    def about(self) -> Iterable[Any]:
        """Return the inputs of the chains, from which a checkpoint is recognised."""
        yield from (self.counts.row_totals, self.counts.column_totals, self.fitted)
        parameters: dict[str, Any] = self.estimator.get_params(deep=False)
        names = [name for name in parameters if name not in ("n_threads", "memory_limit")]
        yield repr(
            {name: parameters[name] for name in names} | {"draws": (self.n_warmup, self.n_draws)}
        )

    def file(self) -> tuple[str, tuple[int, ...]]:
        """Return the path and identity of the packed store that workers read."""
        return file_of(self.counts)

    def run(self, numbers: range, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        """Return the probabilities of each chain, with topics in the order of the fit."""
        chains = [self._chain(r, seed, n_threads) for r in numbers]
        return {name: np.stack([chain[name] for chain in chains]) for name in chains[0]}

    def _chain(self, r: int, seed: SeedSequence, n_threads: int) -> dict[str, Array]:
        chain, excess = self._started(r, seed, n_threads)
        for _ in range(self.n_warmup):
            chain.sweep(adapt=True)
        no_noise, factors = np.zeros(chain.u.shape), np.zeros(chain.u.shape)
        rows, share = np.zeros(chain.L.shape), 0.0
        for _ in range(self.n_draws):
            chain.sweep()
            no_noise += chain.no_noise
            factors += chain.mean
            rows += proportions(chain.L)
            share += 1 - float(chain.shares[0])
        similarities = _correlations(self.fitted, rows)
        here, match = best_pairs(similarities)
        return {
            "no_noise": no_noise.T[match] / self.n_draws,
            "factors": factors.T[match] / self.n_draws,
            "agreement": similarities[here, match], "noise_share": np.asarray(share / self.n_draws),
            "excess_variance": np.array(excess),
        }  # fmt: skip

    def _started(
        self, r: int, seed: SeedSequence, n_threads: int
    ) -> tuple[NoiseChain, tuple[float, float]]:
        """Return a chain that starts from a fit of a random half, and the dispersion around it."""
        thinning = Thinning.of(child(child(seed, r), 0), 2)
        half, other = (
            thinned_part(self.counts, thinning, range(part, part + 1)) for part in range(2)
        )
        model = clone(self.estimator)
        model.set_params(random_state=state_of_fit(seed, r), n_threads=n_threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a start need not have converged
            model.fit(half)
        noise: Any = model._posterior(n_threads)
        topics = np.stack([model.components_.T] * 2)
        sums = np.arange(self.counts.shape[0]) % MOST_SUMS
        return NoiseChain(
            self.counts, 2.0 * model.loadings_, model.mu_, noise.mean.T, model.noise_shares_,
            generator(seed, r), n_threads,
        ), excess_variance((half, other), topics, sums, n_threads)  # fmt: skip


def _correlations(one: Array, other: Array) -> Array:
    """Return the correlations (K, K) between columns; 0 for columns without variance."""
    centred = [values - values.mean(axis=0) for values in (one, other)]
    norms = [np.sqrt((values * values).sum(axis=0)) for values in centred]
    products = np.outer(*norms)
    correlations: Array = np.divide(
        dense.cross(*centred), products, out=np.zeros_like(products), where=products > 0
    )
    return correlations
