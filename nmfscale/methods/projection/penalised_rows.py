"""Rows with fixed factors and a penalty on their loadings.

A penalty with an exponent below 1 is concave: tangents of it, minimised one after the other, end at
a local optimum, which depends on the loadings that are zero. The search for a better one exchanges
one loading of a row at a time: a loading that is zero is freed, or another one held at zero, and
the tangents start anew from the optimum without a penalty of the loadings that are not held. A row
ends where no exchange lowers its loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import kernels
from ...counts.aligned import aligned_zeros
from ...kernels.functions import log, power
from ..factors import MINVAL, Array, aligned_copy
from .penalty import Penalty
from .projector import Projector

# Convex problems that are solved in turn.
_TANGENTS = 10
# Slope that holds a loading at zero, relative to the counts of its row.
_HELD = 1e12
# An exchange lowers the loss by at least this share of the counts of its row.
_LEAST_GAIN = 1e-9


@dataclass(frozen=True)
class PenalisedRows:
    """Rows of a block that a projector moves, their totals and prior, and a penalty."""

    projector: Projector
    penalty: Penalty
    sliced: Any
    totals: Array
    prior: dict[str, Array]

    def move(self, values: Array, new: bool) -> None:
        """Move loadings (lanes, stride) to an optimum, in place; rows start anew if `new`."""
        nothing = np.zeros((1, values.shape[1]))
        if self.penalty.exponent == 1:
            self._to_tangents(values, nothing, 1)
            return
        before = aligned_copy(values)
        loss = self._to_optimum(values, nothing, np.ones(len(values), bool))
        if not new:  # for some rows the fit itself had better starts
            self._to_tangents(before, nothing, _TANGENTS)
            self._keep_better(values, loss, before, self._loss(before))
        self._search(values, loss)

    def _search(self, values: Array, loss: Array) -> None:
        """Exchange loadings until no exchange of a single one lowers the loss of a row."""
        K = self.projector.n_components
        n_failed = np.zeros(len(values), np.int64)  # exchanges since the loss was last lowered
        while (n_failed < K).any():
            for k in range(K):
                searched = n_failed < K
                if not searched.any():
                    return
                support = values[:, :K] > 0
                support[:, k] = ~support[:, k]
                held = aligned_zeros(values.shape, values.dtype)
                held[:, :K] = np.where(support, 0, _HELD * (1 + self.totals[:, None]))
                trial = aligned_copy(values)
                trial[:, k] = np.where(support[:, k], self._equal_share(k), 0)
                better = self._keep_better(
                    values, loss, trial, self._to_optimum(trial, held, searched)
                )
                n_failed = np.where(better, 0, n_failed + 1)

    def _equal_share(self, k: int) -> Array:
        """Return the loading k that explains the K-th part of the counts of each row."""
        size = self.projector.total[k] + self._rate[..., k]
        return self.totals / np.maximum(size, MINVAL) / self.projector.n_components

    def _keep_better(self, values: Array, loss: Array, trial: Array, of_trial: Array) -> Array:
        """Replace rows, and their losses, where those of a trial are better; return which."""
        better: Array = of_trial < loss - _LEAST_GAIN * (1 + self.totals)
        values[better], loss[better] = trial[better], of_trial[better]
        return better

    def _to_optimum(self, values: Array, held: Array, searched: Array) -> Array:
        """Move some rows to the optimum of loadings that are not held; return all losses.

        `held` are slopes (lanes, stride) or (1, stride).
        """
        rows = self if searched.all() else self._only(searched)
        rows._move(values, self._rate + held)
        rows._to_tangents(values, held, _TANGENTS)
        loss: Array = np.where(searched, self._loss(values), np.inf)
        return loss

    def _only(self, searched: Array) -> PenalisedRows:
        """Return the same problem, in which other rows have no counts, and take no steps."""
        prior = dict(self.prior)
        if prior:
            prior["pseudo"] = aligned_copy(prior["pseudo"] * searched[:, None])
        return PenalisedRows(
            self.projector, self.penalty, self.sliced, self.totals * searched, prior
        )

    def _to_tangents(self, values: Array, held: Array, n: int) -> None:
        """Minimise the tangents of the penalty, each at the minimum before."""
        for _ in range(n):
            slope = self.penalty.slope.at(values, self.projector.n_components)
            self._move(values, slope + self._rate + held)

    def _move(self, values: Array, rate: Array) -> None:
        pseudo = self.prior.get("pseudo")
        if pseudo is None:
            pseudo = aligned_zeros(values.shape, values.dtype)
        rates = aligned_copy(np.broadcast_to(rate, values.shape))
        of_rows = values[:, : self.projector.n_components]
        np.maximum(of_rows, MINVAL, out=of_rows)
        both = {"pseudo": pseudo, "rate": rates}
        self.projector.move(self.sliced, values, self.totals, both, steep=True)

    @property
    def _rate(self) -> Array:
        return self.prior.get("rate", np.zeros((1, len(self.projector.total))))

    def _loss(self, values: Array) -> Array:
        """Return the penalised loss of each row (lanes,), whose zeros count as `MINVAL`."""
        K, loglik = self.projector.n_components, np.zeros(len(values))
        kernels.update_rows(
            self.sliced, self.projector.plain, values, None, loglik_end=loglik,
            n_threads=self.projector.n_threads,
        )  # fmt: skip
        b = values[:, :K]
        loss = b * (self.projector.total + self._rate)[..., :K]
        loss += self.penalty.weight * np.where(b > 0, power(b, self.penalty.exponent), 0)
        if self.prior:
            loss -= self.prior["pseudo"][:, :K] * log(np.maximum(b, MINVAL))
        return loss.sum(axis=1) - loglik
