"""Means, coefficients and weights of groups, and their intervals, for calibration.py.

Each function takes a set, a seed and a number of permutations. It returns outcomes by name: the
number of topics in which something happened, and how often it should happen.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from calibration_sets import Drawn
from scipy.optimize import linear_sum_assignment

from nmfscale import bootstrap_fit, bootstrap_weights, group_effects, regress_proportions
from nmfscale.experimental import jackknife_fit

LEVEL, REPLICATES = 0.05, 200


class Outcome(NamedTuple):
    """How often something happened in one set, and its nominal share: e.g. 1 of 1, 0.05.

    The nominal share is NaN if there is none.
    """

    found: float
    of: int
    nominal: float


def rejected(p: float | np.ndarray) -> Outcome:
    """Return how many tests reject at the 5% level."""
    return Outcome(float(np.sum(p <= LEVEL)), np.size(p), LEVEL)


def held(lower: np.ndarray, upper: np.ndarray, truth: np.ndarray | float) -> Outcome:
    """Return how many 95% intervals cover the truth."""
    inside = (lower <= truth) & (truth <= upper)
    return Outcome(float(inside.sum()), inside.size, 1 - LEVEL)


def effects(drawn: Drawn, seed: int, n: int) -> dict[str, Outcome]:
    """Return tests of single topics and of any topic (max-T), and both kinds of intervals."""
    options = {"n_permutations": n, "n_replicates": REPLICATES, "random_state": seed}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, *drawn_again = (
            group_effects(
                drawn.model, drawn.groups, **drawn.labels, **options, interval=interval, n_threads=1
            )
            for interval in (("t", "percentile") if drawn.strata is None else ("t",))
        )
    outcomes = {
        "a topic": rejected(found.pvalue),
        "the first topic": rejected(found.pvalue[0]),
        "any topic, max-T": rejected(found.pvalue_maxt.min()),
    }
    if hasattr(drawn.model, "loadings_"):
        warned = any("few counts are biased" in str(warning.message) for warning in caught)
        outcomes["warned of depth"] = Outcome(warned, 1, np.nan)
    if drawn.strata is None:  # if strata are confounded, the means differ
        for name, result in zip(("t", "percentile"), (found, *drawn_again), strict=True):
            of = result.differences()
            outcomes[f"differences, {name}"] = held(of.lower, of.upper, 0.0)
            if drawn.mean is not None and drawn.topics is None:
                truth = drawn.mean[:, None]
                outcomes[f"means, {name}"] = held(result.lower, result.upper, truth)
    return outcomes


def regression(drawn: Drawn, seed: int, n: int) -> dict[str, Outcome]:
    """Return tests and intervals of the second group relative to the first, and of a covariate.

    The covariate has no effect. It varies between units, or within units that have several
    samples.
    """
    groups = np.array([f"group {g}" for g in drawn.groups])
    x = np.random.default_rng([12, seed]).normal(size=len(groups))
    options = {"n_permutations": n, "random_state": seed, "n_threads": 1}
    found = regress_proportions(drawn.model, {"g": groups, "x": x}, **drawn.labels, **options)
    name = "flips" if found.test == "sign flips" else "permuted"
    last = found.terms.index("x")
    outcomes = {f"x, {name}": rejected(found.pvalue_permutation[:, last])}
    outcomes["x, t"] = rejected(found.pvalue[:, last])
    if drawn.strata is None:
        outcomes[f"second group, {name}"] = rejected(found.pvalue_permutation[:, 1])
        outcomes["second group, t"] = rejected(found.pvalue[:, 1])
        outcomes["coefficients"] = held(found.lower[:, 1:], found.upper[:, 1:], 0.0)
    return outcomes


def weights(drawn: Drawn, seed: int, n: int) -> dict[str, Outcome]:
    """Return intervals of weights, whose true values are neutral."""
    if drawn.strata is not None:
        return {}
    found = bootstrap_weights(
        drawn.model, drawn.groups, **drawn.labels, n_replicates=REPLICATES, random_state=seed,
        n_threads=1,
    )  # fmt: skip
    return {"weights": held(found.lower, found.upper, found.neutral)}


def fits(drawn: Drawn, seed: int, n: int) -> dict[str, Outcome]:
    """Return intervals of means and of frequencies above 0.01, with known topics."""
    if drawn.topics is None:
        return {}
    model, n_topics = drawn.model, len(drawn.topics)
    order = linear_sum_assignment(-np.sqrt(drawn.topics) @ np.sqrt(model.components_).T)[1]
    model = model.reorder_topics(order)
    mean = drawn.mean[:, None]
    again = bootstrap_fit(
        model, drawn.counts, groups=drawn.groups, strata=drawn.groups, n_replicates=60,
        random_state=seed, n_threads=1,
    )  # fmt: skip
    often = [(k, int(drawn.topics[k].argmax())) for k in range(n_topics)]
    once = jackknife_fit(model, drawn.counts, often, groups=drawn.groups, strata=drawn.groups)
    frequent = drawn.topics > 0.01
    truth = np.array([drawn.topics[entry] for entry in often])
    return {
        "bootstrap_fit, means": held(again.group_means.lower, again.group_means.upper, mean),
        "bootstrap_fit, frequencies": held(
            again.components.lower[frequent], again.components.upper[frequent],
            drawn.topics[frequent],
        ),
        "jackknife_fit, means": held(once.group_means.lower, once.group_means.upper, mean),
        "jackknife_fit, frequencies": held(once.components.lower, once.components.upper, truth),
    }  # fmt: skip
