"""The default method: Newton on L and on F, from afar after EM steps, with momentum on both.

One iteration visits the rows, then the columns, each once.  Momentum is k / (k + 3), from afar k /
(k + 0.45), and takes at most four fifths of a parameter; k falls back to one, without undoing
anything, when the log-likelihood fell or, once a fit is no longer far, rose much less than before;
the log-likelihood is a by-product of the next visit of the rows.  What changed between two points
is taken where both have the same scale: see `Halves.scale_of_before`.  Once a fit is no longer far,
curvature is computed every `FRESH_EVERY` iterations; its correlations are kept, and in between only
its diagonal is new, which costs little more than a gradient; late in a fit nothing is, but what was
kept is scaled by the numerators.  With many components all rows share their correlations, found on
a sample of them.  A fit in float64 begins in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import kernels
from ..counts.base import CountMatrix
from ..engine.checkpoint import Checkpoint
from ..engine.monitor import Monitor
from .factors import Array, Held, Report, aligned_copy
from .objective import Objective, beyond_float32
from .poisson import SHARED, Halves
from .steps import Momentum

# Far: in the first iterations, and as long as three of them gain more than this share of the
# log-likelihood.
FRESH_UNTIL, FRESH_ABOVE, FRESH_EVERY = 6, 3e-3, 6
# From so many components on, rows share the correlations of their curvature, found by a sample of
# them every `FRESH_EVERY` iterations: cost is then linear in K.
SHARED_FROM = 17
# A column of few counts is far from quadratic: where the columns are whole, those of at most so
# many nonzeros take an EM step before the Newton step, until it is late.
EM_LONGEST = 256
# Late: three iterations gain less than this share, and none has fallen for a while.  Curvature then
# changes so little that the numerators alone bring it up to date.
LATE_BELOW = 1e-4
# Momentum is k / (k + delay).  It is bold, until it has run away once, as long as three iterations
# gain more than this share of the log-likelihood: quicker there, and fits end higher.
MOMENTUM_DELAY, BOLD_DELAY, BOLD_ABOVE = 3.0, 0.45, 4e-4
# It leaves at least this share of a parameter: where only that one explains a count, taking it away
# costs more than all the rest of the step gains.  A Newton step may still go to zero.
MOMENTUM_LEAVES = 0.2
# Momentum pays as long as an iteration gains this share of what the one before gained.  Where it
# does not, it begins anew; from afar, where three iterations gain more than this share of the
# log-likelihood, it only stops growing: beginning anew there leads to lower ends.
PAYS, ANEW_BELOW = 0.4, 1e-3
# A fall by more than was gained over so many points goes back to the best, and lengthens the delay.
GAIN_OVER, SLOWER = 10, 1.4
# EM iterations, which never lower the likelihood, at the start and after going back (doubling each
# time).
CAREFUL_FIRST, CAREFUL_MOST = 1, 16
# ... and as long as an EM iteration gains more than this share of the log-likelihood.
CAREFUL_ABOVE = 1e-3
# The EM step before the Newton step on L matters from afar: not any more when three iterations gain
# less than this share.  Shared correlations know less of a row, and a second pass costs as much as
# the step: with them every other iteration has it to the end.
EM_ABOVE = 1e-3
# Float32 carries a fit to about this relative gain of three iterations; the rest is done in the
# type that was asked for.
FLOAT_UNTIL = 1e-7
# An iteration falls if it loses more than rounding does.
FELL = 1e-6
SEEN = ("loglik_start", "kkt_start")
_NUMBERS = (
    "logliks", "steady", "count", "gained", "delay", "careful", "patience", "kept_for", "returned",
    "lifts",
)  # fmt: skip


class _Path:
    """What a fit knows of the points before, besides where `Halves` stands; room for the next.

    Of L that is the plain point before, which changes places with the next one. Of F it is only how
    far it is ahead of its plain point, in 16 bits (bfloat16): that vanishes as the fit converges,
    so that its few digits are enough for momentum. The best point seen stays in the type in which
    the fit begins.
    """

    def __init__(self, halves: Halves, momentum: bool):
        self.before, self.next = halves.L.room(), halves.L.room()
        self.lag = np.zeros(halves.F.values.shape, np.uint16)
        self.best = {
            "L": halves.rows.cast(halves.L.values),
            "F": aligned_copy(halves.F.values),
        }
        self.improved = False
        self.logliks: list[float] = []
        self.steady = 0
        self.momentum, self.delay = momentum, BOLD_DELAY
        self.count, self.gained, self.returned = 0.0, 0.0, False
        self.careful, self.patience, self.kept_for = CAREFUL_FIRST, 1, FRESH_EVERY
        self.lifts = False  # whether a Newton step could have lifted zeros of the start
        self.columns_whole = halves.rows.one_block
        self.shared = halves.n_components >= SHARED_FROM

    def steps(self, iteration: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Say what the next visit of the rows does, and of the columns."""
        fresh = self.kept_for >= FRESH_EVERY - 1
        em: dict[str, Any] = {"em_steps": 1}
        renew = {"renew": True} if self.shared and fresh else {}
        if self.careful:
            return em | renew, em | renew
        self.lifts = True
        newton: dict[str, Any] = {"newton_steps": 1} | renew
        late = not self.shared and self.slow(LATE_BELOW)
        near = iteration >= FRESH_UNTIL - 1 and self.gain(3) < FRESH_ABOVE
        if self.shared or near:
            self.kept_for = 0 if fresh else self.kept_for + 1
            kept = kernels.SCALED if late else kernels.KEPT
            own = kernels.KEEP if fresh else kept
            newton["curvature"] = SHARED if self.shared else own
        else:
            self.kept_for = FRESH_EVERY
        far = self.gain(3) > EM_ABOVE
        before = em if far or (self.shared and iteration % 2 == 0) else {}
        short = em | {"em_longest": EM_LONGEST} if self.columns_whole and not late else {}
        return before | newton, short | newton

    def weigh(self, loglik: float) -> bool:
        """Note the log-likelihood where the fit stands; whether momentum ran away.

        A small fall only takes most of the momentum away. A fall by more than the last iterations
        gained calls for `go_back`.
        """
        if self.returned:  # to the best point as it was held, which may have lost some digits
            self.logliks[-1] = min(loglik, self.logliks[-1])
        best = self.logliks[-1] if self.logliks else loglik
        before, self.gained = self.gained, max(loglik - best, 0.0)
        self.improved, self.returned = loglik >= best, False
        self.steady = self.steady + 1 if best - loglik <= FELL * abs(best) else 0
        if self.improved and (self.count < 2 or self.gained >= PAYS * before):
            self.count += 1
        elif not self.improved or self.gain(3) < ANEW_BELOW:
            self.count = 1.0
        self.logliks.append(max(best, loglik))
        gained = self.logliks[-1] - self.logliks[max(-len(self.logliks), -GAIN_OVER)]
        return self.logliks[-1] - loglik > max(gained, 0.0)

    def advance(self, halves: Halves, report: Report, options: dict[str, Any]) -> Report:
        """Go on from where the rows have arrived; move the columns and go on with them, too."""
        scale = halves.scale_of_before()
        best = self.best if self.improved else {}
        momentum = Momentum(self.beta, scale, MOMENTUM_LEAVES)
        halves.extrapolate("L", self.next, self.before, momentum, report, best.get("L"))
        self.before, self.next = self.next, self.before
        momentum = momentum._replace(scale=1 / scale)
        return halves.move_columns(lag=self.lag, best=best.get("F"), momentum=momentum, **options)

    def go_back(self, halves: Halves) -> None:
        """Stand at the best point again, and go on more slowly from there."""
        if self.delay < MOMENTUM_DELAY:
            self.delay, self.careful = MOMENTUM_DELAY, CAREFUL_FIRST
        else:
            self.delay *= SLOWER
            self.careful = self.patience = min(2 * self.patience, CAREFUL_MOST)
        self.improved, self.returned = False, True
        for side in "LF":
            halves.put(side, getattr(halves, side).values, self.best[side])
        halves.put("L", self.before, self.best["L"])
        self.lag[:] = 0
        halves.sum_columns()

    def grow_bolder(self) -> None:
        """Count one careful iteration down; the last lasts as long as EM still climbs fast."""
        if self.careful:
            self.count = 0.0
        climbs = self.careful > 0 and self.gain(1) > CAREFUL_ABOVE
        self.careful = max(self.careful - 1, int(climbs))

    def gain(self, iterations: int) -> float:
        """Of so many iterations, relative to the log-likelihood; infinite before there were."""
        if len(self.logliks) <= iterations:
            return np.inf
        return (self.logliks[-1] - self.logliks[-1 - iterations]) / abs(self.logliks[-1])

    def slow(self, share: float) -> bool:
        """Whether three iterations gained less than this share; those that fell say nothing."""
        return self.steady > 3 and self.gain(3) < share

    @property
    def settled(self) -> bool:
        """Whether float32 has done what it can."""
        return self.slow(FLOAT_UNTIL)

    @property
    def beta(self) -> float:
        if not self.momentum or self.careful:
            return 0.0
        bold = self.gain(3) > BOLD_ABOVE
        delay = self.delay if bold else max(self.delay, MOMENTUM_DELAY)
        return self.count / (self.count + delay)

    def state(self, halves: Halves) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays from which `restore` makes the same path."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        points = {"before_L": self.before, "best_L": self.best["L"]}
        arrays = {name: halves.rows.array(point) for name, point in points.items()}
        return numbers, arrays | {"lag_F": self.lag, "best_F": self.best["F"]}

    def restore(self, halves: Halves, numbers: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Stand where the state was taken."""
        for name in _NUMBERS:
            setattr(self, name, numbers[name])
        halves.put("L", self.before, arrays["before_L"])
        self.lag[:] = arrays["lag_F"]
        for side in "LF":
            halves.put(side, self.best[side], arrays[f"best_{side}"])

    def turn_into(self, halves: Halves, dtype: Any) -> None:
        """Go on in another type, here and in `halves`."""
        del self.next  # makes room for what is larger
        halves.turn_into(dtype)
        self.before = halves.rows.cast(self.before)
        self.next = halves.L.room()


def first_type(
    dtype: Any, counts: CountMatrix, n_components: int, held: Held, max_iter: int, n_threads: int
) -> Any:
    """Type in which a fit begins: float32 where nothing is lost by it, unless the fit ends soon.

    It would disturb K = 1, which starts at its optimum, and what has to stay as it was given.
    """
    given = (held.topics, held.features, held.samples)
    if max_iter <= 4 or n_components == 1 or any(mask is not None for mask in given):
        return dtype
    if np.dtype(dtype) == np.float32 or beyond_float32(counts, n_threads):
        return dtype
    return np.float32


def fit_accelerated(
    halves: Halves,
    monitor: Monitor,
    *,
    exact_type: Any,
    momentum: bool = True,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Run until the monitor says stop, and end in `exact_type`."""
    exact_type = np.dtype(exact_type)
    objective = Objective(halves)
    path, pending, iteration = _begin(halves, monitor, momentum, checkpoint)
    while iteration < monitor.max_iter:
        if checkpoint is not None and (monitor.interrupted or checkpoint.due()):
            _save(checkpoint, halves, monitor, path, pending, iteration)
        rows, columns = path.steps(iteration)
        report = halves.move_rows("visit", path.next, report=SEEN, **rows)
        state = objective.at(halves, report)
        if iteration:
            # kkt_factors was seen in the columns' visit one half-step earlier
            monitor.record(**pending | state | {"kkt_loadings": report.kkt / objective.scale_L})
        # one that was interrupted is saved first, at the beginning of the next iteration
        unsaved = monitor.interrupted and checkpoint is not None and checkpoint.saved != iteration
        iteration += 1
        ending = (monitor.finished and not unsaved) or iteration == monitor.max_iter
        ran_away = path.weigh(state["loglik"])
        if ran_away or ending:
            if state["loglik"] < path.logliks[-1]:
                path.go_back(halves)
            if not ending:
                continue
            # The last iteration is one of EM: from the best point known it can only rise.
            path.careful, columns = 1, {"em_steps": 1}
            report = halves.move_rows("visit", path.next, em_steps=1, report=SEEN)
        moved = path.advance(halves, report, columns)
        pending = {
            "blind": not path.lifts,
            "kkt_factors": moved.kkt / objective.scale_F, "momentum": path.beta,
            "change_loadings": report.change, "change_factors": moved.change,
            "zeros_loadings": report.zeros, "zeros_factors": moved.zeros,
        }  # fmt: skip
        if ending:
            break
        path.grow_bolder()
        soon_over = iteration >= monitor.max_iter - 3
        if halves.dtype != exact_type and (path.settled or soon_over):
            path.turn_into(halves, exact_type)
    known = path.logliks[-1]
    del path  # its arrays are not needed for the rest
    if halves.dtype != exact_type:
        halves.turn_into(exact_type)
    record_end(halves, objective, monitor, pending, known)


def _begin(
    halves: Halves, monitor: Monitor, momentum: bool, checkpoint: Checkpoint | None
) -> tuple[_Path, dict[str, float], int]:
    """Stand at the start, or where the last checkpoint was taken."""
    found = None if checkpoint is None else checkpoint.load()
    if found is None:
        return _Path(halves, momentum), {}, 0
    numbers, arrays = found
    path = _Path(halves, momentum)
    if halves.dtype != np.dtype(numbers["dtype"]):
        path.turn_into(halves, np.dtype(numbers["dtype"]))
    halves.restore(arrays)
    path.restore(halves, numbers["path"], arrays)
    monitor.restore(numbers["monitor"])
    return path, numbers["pending"], numbers["iteration"]


def _save(
    checkpoint: Checkpoint, halves: Halves, monitor: Monitor, path: _Path,
    pending: dict[str, float], iteration: int,
) -> None:  # fmt: skip
    numbers, arrays = path.state(halves)
    everything = {
        "iteration": iteration, "dtype": str(halves.dtype), "pending": pending, "path": numbers,
        "monitor": monitor.state(),
    }  # fmt: skip
    checkpoint.save(iteration, everything, arrays | halves.state())


def record_end(
    halves: Halves, objective: Objective, monitor: Monitor, pending: dict[str, float], known: float
) -> None:
    """Restore exact zeros and complete the last record at the point that is handed back.

    `known` is the log-likelihood that was reached. Of a fit that was ended early, what is at the
    floor may be all that explains a count, or what a prior keeps from zero: there it stays.
    """
    halves.restore_zeros()
    report, state = _seen(halves, objective)
    if state["loglik"] < known - FELL * abs(known):
        halves.lift_zeros()
        report, state = _seen(halves, objective)
    kkt_factors = halves.move_columns(halves.F.room(), em_steps=1).kkt
    converged, interrupted = monitor.converged, monitor.interrupted
    kkt = {
        "kkt_loadings": report.kkt / objective.scale_L,
        "kkt_factors": kkt_factors / objective.scale_F,
    }
    monitor.record(**pending | state | kkt)
    monitor.converged, monitor.interrupted = converged or monitor.converged, interrupted


def _seen(halves: Halves, objective: Objective) -> tuple[Report, dict[str, float]]:
    report = halves.move_rows("visit", halves.L.room(), em_steps=1, report=SEEN)
    return report, objective.at(halves, report)
