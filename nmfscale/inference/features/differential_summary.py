"""Makes the result of differential_features from tests: p, q, intervals, shrunken changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from ...methods.topics.differential import Regressions
from ..design.loadings import SampleTopics
from .differential_result import DifferentialFeatures
from .differential_split import Tested
from .differential_tests import LEAST_EXTREME, Reference, Tests
from .shrinkage import shrink

Array = NDArray[Any]
# z below which a standard error of the log ratio is that of the curvature, not the one of z.
_SMALL_Z = 0.1
_LOG_2 = 0.6931471805599453


def differential_result(
    regressions: Regressions, tests: Tests, tested: Tested, compared: Reference,
    topics: SampleTopics, features: Array, names: Array | None, *, level: float, **facts: Any,
) -> DifferentialFeatures:  # fmt: skip
    """Return the result for the tests of `features`, with names of all features of the counts."""
    p = tests.pvalues
    q, lfsr, shrunken = _over_features(tests, p, compared)
    lower, upper = (end.T / _LOG_2 for end in tests.intervals(level))
    optional: dict[str, Any] = {
        "lower": lower, "upper": upper, "pvalue": p.T, "qvalue": q.T, "lfsr": lfsr.T
    }  # fmt: skip
    if tested.no_pvalues is not None:
        optional = dict.fromkeys(optional)
    least_extreme = compared.kind == LEAST_EXTREME
    return DifferentialFeatures(
        **optional, lfc=tests.log_ratios.T / _LOG_2, std_error=tests.errors.T / _LOG_2, z=tests.z.T,
        lfc_shrunken=shrunken.T, frequencies=regressions.frequencies.T,
        least_extreme=regressions.others.T if least_extreme else None,
        dispersion=regressions.dispersion, features=features,
        feature_names=None if names is None else names[features], topic_names=topics.topic_names,
        reference=compared.label, own_reference=compared.own, level=level, freedom=tests.freedom,
        n_features_in=tested.counts.shape[1], no_pvalues=tested.no_pvalues,
        split=None if tested.share is None else float(tested.share),
        random_state=None if tested.seed is None else tested.seed.entropy,
        **facts,
    )  # fmt: skip


def _over_features(tests: Tests, p: Array, compared: Reference) -> tuple[Array, Array, Array]:
    """Return q-values, local false sign rates and shrunken log2-fold changes, all (m, K)."""
    lfc, tested = tests.log_ratios / _LOG_2, tests.errors.any(axis=1)
    q, lfsr, shrunken = np.ones_like(p), np.ones_like(p), np.zeros_like(p)
    scores = tests.scores
    for k in range(p.shape[1]):
        if k in compared.own or not tested.any():
            continue
        q[tested, k] = false_discovery_control(p[tested, k])
        errors = np.where(
            scores[:, k] > _SMALL_Z, np.abs(lfc[:, k]) / np.maximum(scores[:, k], _SMALL_Z),
            tests.errors[:, k] / _LOG_2,
        )  # fmt: skip
        of_topic = shrink(lfc[tested, k], errors[tested])
        lfsr[tested, k], shrunken[tested, k] = of_topic.lfsr, of_topic.means
    return q, lfsr, shrunken
