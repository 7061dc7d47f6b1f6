"""Alternating Poisson regression (Algorithm 1 of the paper), and extrapolated (Algorithm 3).

With Ly, Fy the extrapolated factors and Ln, Fn the plain ones, one iteration is:

1. ``Ln`` = rows of Ly updated with Fy held, some steps on each;
   ``Ly = max(Ln + beta (Ln - L'), 0)`` with L' the plain loadings before.
2. ``Fn`` = rows of Fy updated with Ly held; the loss at (Ly, Fn) is a by-product.
3. If this loss fell: ``Fy = max(Fn + beta (Fn - F'), 0)``, and beta grows by `INCREASE` up to a
   limit. Otherwise (Ly, Fy) = (L', F'), and beta shrinks by `REDUCE`.

Every `PLAIN_EVERY` iterations both half-steps are taken from the best point, with beta = 0. All
pairs are scaled after each iteration so that the column means of L and F agree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ... import kernels
from ...engine.protocol import Executor, Values
from ..factors import MINVAL, Array, Factor, aligned_copy
from .efficiencies import ADAPT_EVERY, BatchEfficiencies
from .extrapolation import ExtrapolateRows, Momentum
from .objective import FactorModel
from .row_update import EM, RowUpdate
from .scales import scale_batches, scale_features
from .steps import ColumnSums, Convert, convert

PLAIN_EVERY = 20
# Maximum number of entries of a fixed factor: kernels index them with int32.
MOST_NUMBERS = 1 << 31
# What an update of columns reports.
_ENDS = "kkt_start", "loglik_end"
BETA, BETA_MAX, INCREASE, REDUCE, INCREASE_MAX = 0.5, 0.99, 1.1, 0.75, 1.05


# The update of each solver; `inner_iter` replaces the number of steps of its last kind.
UPDATES = {
    "em": RowUpdate(em_steps=4),
    "ccd": RowUpdate(1, 1, "descend"),
    "scd": RowUpdate(1, 4, "descend"),
    "sn": RowUpdate(1, 4, "descend", guarded=True),
    "newton": RowUpdate(1, 1),
}


def update_of(solver: str, inner_iter: int | None) -> RowUpdate:
    """Return the update of a solver; with None it has its default number of inner iterations."""
    update = UPDATES[solver]
    if inner_iter is None:
        return update
    if update.newton_steps:
        return replace(update, newton_steps=inner_iter)
    return replace(update, em_steps=inner_iter)


def check_whole_columns(executor: Executor, n_components: int, who: str, remedy: str) -> None:
    """Refuse steps on whole columns beside too many loadings."""
    n_lanes = len(executor.layout.row_order)
    if n_lanes * kernels.row_stride(n_components) >= MOST_NUMBERS:
        raise ValueError(
            f"{who} on whole columns, beside all loadings of about {n_lanes:,} samples and "
            f"{n_components:,} components: these are more than 2**31 numbers. Use {remedy}, or fit "
            "fewer components."
        )


class Alternating(FactorModel):
    """Alternating updates; keeps the best pair, and with extrapolation the plain and extrapolated.

    Row arrays are named after their pair; each pair is scaled separately.
    """

    numbers = ("beta", "beta_accepted", "beta_max", "at", "last_loglik", "accepted", "pending")
    keeps_state = False

    def __init__(
        self, *arguments: Any, solver: str, inner_iter: int | None = None, extrapolate: bool = True,
        **options: Any,
    ):  # fmt: skip
        super().__init__(*arguments, **options)
        self.how = update_of(solver, inner_iter)
        self.pairs = ("best", "plain", "ahead") if extrapolate else ("best",)
        self.extrapolating, self.rescaling = extrapolate, self.constraints.free
        check_whole_columns(
            self.executor, self.n_components, f"solver={solver!r} takes steps", "solver='auto'"
        )

    def start(self) -> None:
        """Move to the start."""
        self.state = state = self.make_state(self.dtype)
        # the accumulated scaling of the best L, which also moved its floor
        self.scale = np.ones(self.n_components)
        self.F: dict[str, Array] = {"best": state.F.values}
        self.executor.copy("L", "best")
        self._rescale("best", least=MINVAL)
        for name in self.pairs[1:]:
            self._set(name, "best")
        self.beta = self.beta_accepted = BETA
        self.beta_max = BETA_MAX
        self._stand_at("best")
        if isinstance(state.efficiencies, BatchEfficiencies):
            state.efficiencies.estimate(state.F)
        seen, terms = state.update_rows(EM, None, reports=("loglik_start",))
        self.at = self.objective.at(state, seen, terms)
        self.last_loglik, self.accepted = self.at["loglik"], True
        self.pending = {}

    def observe(self, iteration: int) -> dict[str, Any] | None:
        """Return the record of the previous step."""
        if not iteration:
            return None
        # a rejected step does not count, even if it ends as high as the best
        return {
            "reached": self.last_loglik if self.accepted else -np.inf,
            **self.at,
            **self.pending,
        }

    def update(self, iteration: int, ending: bool) -> None:
        """Take one step."""
        if self.extrapolating and iteration % PLAIN_EVERY:
            self._extrapolated_step()
        else:
            self._plain_step()
        if self.constraints.batches is not None and iteration % ADAPT_EVERY == 0:
            self._adapt()

    def _adapt(self, n_steps: int = 2) -> None:
        """Scale batches, and estimate the shape of the prior of efficiencies, at the best point."""
        state, efficiencies = self.state, self.state.efficiencies
        if isinstance(efficiencies, BatchEfficiencies):
            self._stand_at("best")
            before = efficiencies.terms(state.F)[1]
            gain = scale_batches(state, *self.pairs)
            gain += efficiencies.terms(state.F)[1] - before
            gain += efficiencies.estimate(state.F, n_steps)
            self.at = self.at | {"loglik": self.at["loglik"] + gain}

    def _plain_step(self) -> None:
        """Take both half-steps from the best point, without extrapolation."""
        Fn, self.at = self._step("best", "best", 0.0)
        self.executor.copy("next", "best")
        np.copyto(self.F["best"], Fn)
        self.scale = np.ones_like(self.scale) * self._rescale("best")
        for name in self.pairs[1:]:
            self._set(name, "best")
        self.last_loglik, self.accepted = self.at["loglik"], True

    def _extrapolated_step(self) -> None:
        Fn, at = self._step("ahead", "plain", self.beta)
        if at["loglik"] > self.at["loglik"]:
            self.executor.copy("ahead", "best")
            np.copyto(self.F["best"], Fn)
            self.at, self.scale = at, np.ones_like(self.scale)
        self.accepted = at["loglik"] > self.last_loglik
        if not self.accepted:
            self._set("ahead", "plain")
            self.beta_max = self.beta_accepted
            self.beta *= REDUCE
        else:
            self.state.extrapolate_factor(Fn, self.F["plain"], Momentum(self.beta), self.F["ahead"])
            self.executor.copy("next", "plain")
            self.F["plain"] = Fn
            self.beta = min(self.beta_max, INCREASE * self.beta)
            self.beta_accepted = self.beta
            self.beta_max = min(BETA_MAX, INCREASE_MAX * self.beta_max)
        self.last_loglik = at["loglik"]
        self.scale = self.scale * self._rescale("best")
        for name in ("plain", "ahead"):
            self._rescale(name)

    def _step(self, start: str, plain: str, beta: float) -> tuple[Array, dict[str, Any]]:
        """Move L from `start`, extrapolate it away from `plain`, then move F.

        Return Fn and the objective at (Ly, Fn), which becomes the pair `start`; Ln is ``next``.
        """
        state = self.state
        self._stand_at(start)
        rows, _ = state.update_rows(self.how, reports=("kkt_start",))
        step = ExtrapolateRows(self.n_components, Momentum(beta), before=plain, target=start)
        Fn = aligned_copy(state.F.values)
        ((sums, _),) = self.executor.run(step)
        changes = state.note_rows(sums)
        self.executor.copy(start, "L")
        columns = state.update_columns(self.how, Fn, reports=_ENDS)
        state.set_factor(Fn)
        columns = columns._replace(log_mu=columns.log_mu + scale_features(state))
        changes |= state.extrapolate_factor(Fn, self.F[plain], Momentum(), self.F[start])
        ((terms, _),) = self.executor.run(state.sample_terms())
        self.pending = {
            "kkt_loadings": rows.kkt / self.objective.scale_L,
            "kkt_factors": columns.kkt / self.objective.scale_F, "momentum": beta, **changes,
        }  # fmt: skip
        return Fn, self.objective.at(state, columns, terms)

    def _stand_at(self, name: str) -> None:
        """Set L and F to those of a pair."""
        self.executor.copy(name, "L")
        self.state.set_factor(self.F[name])
        self.state.sum_columns()

    def _set(self, name: str, source: str) -> None:
        """Make a pair refer to the arrays of another pair."""
        self.executor.copy(source, name)
        if name in self.F:
            np.copyto(self.F[name], self.F[source])
        else:
            self.F[name] = aligned_copy(self.F[source])

    def _rescale(self, name: str, least: float | None = None) -> Any:
        """Scale the columns of a pair to equal means; the mean of L is weighted by samples.

        Return the multipliers of the columns of L. Columns may be scaled only if nothing is fixed
        and no prior determines the scale.
        """
        state, K = self.state, self.n_components
        ratio: Any = 1.0
        F = Factor(self.F[name], state.F.n_rows, K)
        if self.rescaling:
            ((sums, _),) = self.executor.run(ColumnSums(K, name))
            weights = state.weights
            n = state.n_rows if weights is None else weights.sum()
            ratio = np.sqrt((F.column_sums()[:K] / F.n_rows) / (sums["sums"][:K] / n))
            F.values[:, :K] /= ratio.astype(F.values.dtype)
        if least is not None:
            convert(F, least=least)
        if self.rescaling or least is not None:
            scale = ratio if self.rescaling else None
            self.executor.apply(Convert(name, name, K, scale=scale, least=least))
        return ratio

    def residuals_here(self) -> dict[str, Any]:
        """Return the residuals of the best pair."""
        self._stand_at("best")
        return super().residuals_here()

    def finish(self, settled: bool) -> Values:
        """End at the best pair; in a settled fit, restore floors that scaling moved."""
        if settled:
            # extrapolation may have doubled it
            least = 2 * MINVAL * self.scale
            self.executor.apply(Convert("best", "best", self.n_components, least=least))
            F = Factor(self.F["best"], self.state.F.n_rows, self.n_components)
            convert(F, least=2 * MINVAL * (1 / self.scale))
        self._stand_at("best")
        self.executor.drop("next", "best", "plain", "ahead")
        self.F = {}  # the other pairs are no longer needed
        return self.record_end(self.pending, self.at["loglik"])

    def row_arrays(self) -> dict[str, str]:
        """Return the loadings of each pair."""
        return {f"{pair}_L": pair for pair in self.pairs}

    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the factors of each pair, and of the scale."""
        return {f"{pair}_F": self.shape_of_F for pair in self.pairs} | {
            "scale": (self.n_components,)
        }

    def shared_arrays(self) -> dict[str, Array]:
        """Return the factors of each pair, and the scale."""
        return {f"{pair}_F": F for pair, F in self.F.items()} | {"scale": self.scale}

    def set_shared(self, arrays: dict[str, Array]) -> None:
        """Set the factors of each pair, and the scale."""
        self.F = {pair: aligned_copy(arrays[f"{pair}_F"]) for pair in self.pairs}
        self.scale = arrays["scale"]
