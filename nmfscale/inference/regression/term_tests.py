"""Tests of the terms of a regression: which terms can be tested, and the results."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from ..design.labellings import log10_labellings, n_labellings, smallest_pvalue, warn_few_labellings
from ..job import JobOptions
from ..replicates.replicates import run_replicates
from .coefficient_tests import FreedmanLane, SignFlips
from .covariates import INTERCEPT, DesignMatrix
from .least_squares import LeastSquares
from .regression_rows import Rows
from .robust import CR3, HC3

Array = NDArray[Any]


PVALUES = "pvalue_permutation", "pvalue_maxt"


class TermTests:
    """The tests of terms: checked first, run after the intervals."""

    def __init__(
        self, rows: Rows, errors: HC3 | CR3, matrix: DesignMatrix, n: int, level: float, drawn: str
    ):
        fit = errors.fit
        self.n, self.matrix, self.interrupted = n, matrix, False
        self.untested = {} if rows.within else _untested(rows, matrix.terms)
        singles = [j for j, name in enumerate(matrix.terms) if name not in self.untested]
        several = {
            name: columns
            for name, columns in matrix.several_terms().items()
            if set(columns) <= set(singles)
        }
        if not singles:
            raise ValueError(
                "no term can be tested, as none leaves a constant in the model: pass "
                "intercept=True, or n_permutations=0 for t-tests alone."
            )
        self.covariates = tuple(several)
        tested = (*((j,) for j in singles), *map(tuple, several.values()))
        self.singles = singles
        if rows.are_exchangeable:
            sizes, self.sizes, self.first = rows.kinds()
            self.task: FreedmanLane | SignFlips = FreedmanLane(fit, tested, np.diff(rows.strata))
            few = log10_labellings(sizes) < 15
            self.n_all = n_labellings(sizes) if few else None
            self.smallest = smallest_pvalue(sizes, symmetric=sizes.shape[1] == 2)
        else:
            factors = errors.factors if isinstance(errors, CR3) else np.ones(rows.n_units)
            self.task = SignFlips(fit, tested, rows.unit, factors)
            self.n_all = self.task.n_all()
            self.smallest = max(1 / self.n_all, 1e-300) if rows.n_units < 1000 else 1e-300
        self.exact = self.n_all is not None and self.n_all <= n
        warn_few_labellings([self.smallest], 1 - level, ["permutations of any term"], drawn)

    def run(self, **job: Unpack[JobOptions]) -> dict[str, Any]:
        """Run the permutations or sign flips; return fields of a ProportionRegression.

        p-values are unadjusted and adjusted by max-T, NaN where a term was not tested; for
        covariates also adjusted by Benjamini and Hochberg.
        """
        task = self.task
        if self.exact:
            self.n = int(self.n_all or 0)
            if isinstance(task, FreedmanLane):
                p = task.all_as_extreme(self.sizes, self.first) / self.n
            else:
                p = task.all_as_extreme() / self.n
        else:
            drawn = run_replicates(task, self.n, **job)
            self.n, self.interrupted = len(drawn), drawn.interrupted
            counts = np.stack([drawn[name].sum(axis=0) for name in ("as_extreme", "largest")])
            p = (counts + 1) / (self.n + 1)
        order = np.argsort(-task.observed, axis=1, kind="stable")
        rising = np.maximum.accumulate(np.take_along_axis(p[1], order, axis=1), axis=1)
        np.put_along_axis(p[1], order, rising, axis=1)
        pvalues = np.stack([p[0], np.maximum(p[1], p[0])]).transpose(0, 2, 1)
        adjusted = false_discovery_control(p[0], axis=1).T
        of_terms = np.full((2, pvalues.shape[1], len(self.matrix.terms)), np.nan)
        of_terms[:, :, self.singles] = pvalues[:, :, : len(self.singles)]
        of_covariates = pvalues[:, :, len(self.singles) :]
        smallest = self.smallest if self.exact else max(self.smallest, 1 / (self.n + 1))
        return {
            **dict(zip(PVALUES, of_terms, strict=True)),
            **{f"covariate_{name}": p for name, p in zip(PVALUES, of_covariates, strict=True)},
            "covariate_qvalue": adjusted[:, len(self.singles) :],
            "covariates": self.covariates, "untested": self.untested, "test": task.name,
            "n_labellings": self.n, "exact": self.exact, "smallest_pvalue": smallest,
            "interrupted": self.interrupted,
        }  # fmt: skip


_CONSTANT = "it is the constant of the model"
_NO_CONSTANT = "without it no constant is left in the model"


def _untested(rows: Rows, terms: tuple[Any, ...]) -> dict[Any, str]:
    """Return the terms that have no test, with the reasons.

    Residuals of a model without constant do not have mean zero, so permuting them is no valid test.
    """
    bare = LeastSquares.of(rows.X, np.zeros((len(rows.X), 1)))
    one = np.ones(len(rows.X)) / np.sqrt(len(rows.X))
    has_constant = np.linalg.norm(bare.basis.T @ one) > 1 - 1e-9
    away = np.abs(bare.dual.T @ one) / np.linalg.norm(bare.turn, axis=0)
    reasons: dict[Any, str] = {}
    # the dual of the intercept is nearly orthogonal to 1 beside a covariate with a large mean
    away[np.ptp(rows.X, axis=0) == 0] = 1.0
    for j, name in enumerate(terms):
        if not (has_constant and away[j] < 1e-7):
            reasons[name] = _CONSTANT if name == INTERCEPT else _NO_CONSTANT
    return reasons
