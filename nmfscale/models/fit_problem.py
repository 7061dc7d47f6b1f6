"""What `CountFactorization` fits: counts, factors and constraints, checked before a fit begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from ..counts.base import CountMatrix
from ..counts.names import matched, names_of_topics, transposed, warn_of_surplus
from ..methods.factors import Constraints
from ..methods.starts.initialize import check_factors
from ..methods.weights.feature_weights import weighted_problem
from ..methods.weights.measured import Measured
from .arguments.batches import Batches, batches_of, groups_of
from .arguments.entry_weights import observed_counts
from .arguments.seeds import SeededTopics, seeds_of_fit
from .arguments.validation import check_topics_of_priors, constraints_of, sizes_of

if TYPE_CHECKING:
    from .factorization import CountFactorization

Array = NDArray[Any]


class FitProblem(NamedTuple):
    """What is fitted, and what it was made from.

    `observed` are the counts without missing entries, and `used` those that are fitted, with
    weights of single counts and of features. `F` are the given factors with weights of features,
    `given_F` without them.
    """

    observed: CountMatrix
    used: CountMatrix
    L: Array | None
    F: Array | None
    given_F: Array | None
    constraints: Constraints
    sizes: Array | None
    entries: Any
    seen: Measured | None
    batches: Batches | None
    seeded: SeededTopics | None
    feature_weights: Array | None


def problem_of_fit(
    model: CountFactorization, counts: CountMatrix, *, loadings: Any, components: Any,
    row_weights: Any, size_factors: Any, fixed_topics: Any, fixed_features: Any, fixed_samples: Any,
    measured: Any, panel: Any, batch: Any, data_weights: Any,
) -> FitProblem:  # fmt: skip
    """Return what the arguments of `fit` and the parameters of the model ask for, or refuse it."""
    L, F, fixed_topics = _factors(model, counts, loadings, components, fixed_topics)
    sizes, given_F = sizes_of(size_factors, counts), F
    constraints = constraints_of(
        counts, model.n_components, model.solver, L, F, sizes=sizes,
        row_weights=row_weights, topics=fixed_topics, features=fixed_features,
        samples=fixed_samples, prior_factors=model.prior_factors,
        prior_loadings=model.prior_loadings,
    )  # fmt: skip
    seeded = seeds_of_fit(model, counts)
    if seeded is not None:
        _check_seeds(model)
        constraints = replace(constraints, prior_factors=seeded.prior(constraints.prior_factors))
    seen = model._measured_of_fit(counts, measured, panel)
    observed, entries = observed_counts(counts, data_weights, seen)
    used, weights = observed, counts.feature_weights
    if entries is not None:
        _check_start(model, F, "data_weights")
        constraints = replace(
            constraints, entries=entries.less_one, entry_constants=entries.constants(observed)
        )
        used = entries.weighted(observed)
    if weights is not None:
        if entries is not None:
            raise ValueError(
                "data_weights cannot be combined with weights of features, such as those of "
                "modalities: set counts.feature_weights = None, and multiply data_weights."
            )
        used, F, constraints = weighted_problem(used, F, constraints, weights)
    if seen is not None:
        _check_start(model, F, "measured")
        seen.check(counts)
    batches = batches_of(counts, batch, model.batch_shape)
    if batches is not None:
        _check_batches(model)
    constraints = replace(constraints, **groups_of(seen, batches))
    _check_moves(model, constraints)
    return FitProblem(
        observed, used, L, F, given_F, constraints, sizes, entries, seen, batches, seeded, weights
    )


def _factors(
    model: CountFactorization, counts: CountMatrix, L: Any, components: Any, fixed_topics: Any
) -> tuple[Array | None, Array | None, Any]:
    """Return the given factors, and fixed topics in the order of these."""
    F = transposed(components)
    topics = names_of_topics(L, F)
    check_topics_of_priors(topics, model.prior_factors, model.prior_loadings)
    fixed_topics = matched(fixed_topics, topics, "fixed_topics", of="topics", subject="components")
    if fixed_topics is not None:
        warn_of_surplus(F, counts.feature_names, "components")
    return *check_factors(L, F, counts, model.n_components), fixed_topics


def _check_start(model: CountFactorization, F: Any, argument: str) -> None:
    """Refuse options that would treat unmeasured entries as 0."""
    if model.solver == "joint-em":
        raise ValueError(
            f"{argument} cannot be combined with solver='joint-em', whose factors sum to one "
            "over all features: use 'auto'."
        )
    computed = F is None and isinstance(model.init, str) and model.init not in ("auto", "random")
    if computed and model.n_components > 1:
        raise ValueError(
            f"{argument} cannot be combined with init={model.init!r}, which treats unmeasured "
            "entries as 0: use init='random', or give loadings and components."
        )


def _check_seeds(model: CountFactorization) -> None:
    """Refuse what seeds cannot be combined with."""
    if model.solver == "joint-em":
        raise ValueError(
            "seeds are a prior, and cannot be combined with solver='joint-em': use 'auto'."
        )
    if model.n_moves:
        raise ValueError(
            f"n_moves={model.n_moves} cannot be combined with seeds, as a move gives topics "
            "other places than those of their seeds: set n_moves=0, and use n_init for "
            "several starts."
        )


def _check_batches(model: CountFactorization) -> None:
    """Refuse what efficiencies of batches cannot be combined with."""
    if model.solver == "joint-em":
        raise ValueError(
            "batch cannot be combined with solver='joint-em', whose factors sum to one over "
            "all features, which have efficiencies: use 'auto'."
        )


def _check_moves(model: CountFactorization, constraints: Constraints) -> None:
    """Refuse moves of a fit in which something is fixed."""
    if model.n_moves and not constraints.movable:
        raise ValueError(
            f"n_moves={model.n_moves} cannot be combined with fixed_topics, fixed_features or "
            "fixed_samples, as a move changes all rows of the topics that it merges and "
            "splits: set n_moves=0, and use n_init for several starts."
        )
