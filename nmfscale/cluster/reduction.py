"""Answers of tasks on a cluster, combined in a fixed tree.

Tasks and tree go out as one graph, so that nothing waits for the driver between two levels.  As
soon as something is not as it should be, the tree is taken back and worked through level by level,
with all the care of a `Round`.
"""

from __future__ import annotations

import statistics
import time
from asyncio import CancelledError as LoopCancelledError
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from typing import Any

from .batch import Round
from .tasks import Answer, BlockFailedError, Job


class Tree:
    """Runs jobs and combines their answers, at most `fan_in` at a time, neighbours first.

    Parameters
    ----------
    crew : Crew
    name : str
        On the dashboard.
    function, combine : callable
        What jobs run, and what takes several of its answers and gives one of the kind; pure.
    fan_in : int
    """

    def __init__(
        self, crew: Any, name: str, function: Callable[..., Any], combine: Callable[..., Any],
        fan_in: int,
    ):  # fmt: skip
        self.crew, self.name = crew, name
        self.function, self.combine, self.fan_in = function, combine, fan_in

    def answer(self, jobs: list[Job]) -> Any:
        """Run jobs and return the one answer that theirs come to."""
        attempts = self.crew.patience.attempts
        for attempt in range(attempts):
            try:
                with self.crew.round(self.name, self.function, jobs, keep=True) as leaves:
                    answer = self._at_once(leaves)
                    return self._level_by_level(leaves) if answer is None else answer.value
            except BlockFailedError as error:
                # answers that the tree needs may have gone with their workers
                gone = isinstance(error.__cause__, (CancelledError, LoopCancelledError))
                if not (gone or error.answers_lost) or attempt == attempts - 1:
                    raise
        raise AssertionError("unreachable")

    def _above(self, level: list[Any], homes: list[int], keep: bool = True) -> Round:
        """Return the round that combines the answers of a level, each where its first is."""
        size = self.fan_in
        jobs = [
            Job(f"{self.name} {i}", tuple(level[i : i + size]), homes[i])
            for i in range(0, len(level), size)
        ]
        made: Round = self.crew.round(
            f"{self.name}-tree", self.combine, jobs, keep=keep, even=False
        )
        return made

    def _at_once(self, leaves: Round) -> Answer | None:
        """Send everything out; None as soon as it takes long or something fails."""
        crew, since, n_done = self.crew, time.monotonic(), 0
        level, homes = leaves.send_all(), [job.home for job in leaves.jobs]
        with ExitStack() as stack:
            rounds = [leaves]
            while len(rounds) == 1 or len(level) > 1:
                rounds.append(stack.enter_context(self._above(level, homes)))
                level, homes = rounds[-1].send_all(), homes[:: self.fan_in]
            known = crew.seconds[leaves.name]
            usual = statistics.median(known) if known else crew.patience.task / 2
            while not rounds[-1].landings():
                if leaves.landed.qsize() > n_done:
                    n_done, since = leaves.landed.qsize(), time.monotonic()
                late = time.monotonic() - since > max(crew.patience.late, 2 * usual)
                if late or crew.silent() or any(each.needs_care() for each in rounds):
                    return None
            answers = crew.fetch_together(level) if level[0].status == "finished" else None
            if answers is None:
                return None
            flights = leaves.flights.values()
            crew.seconds[leaves.name].extend(flight.ended - flight.since for flight in flights)
            found: Answer = answers[0]
            return found

    def _level_by_level(self, leaves: Round) -> Any:
        level, homes = leaves.answers(), [job.home for job in leaves.jobs]
        while True:
            last = len(level) <= self.fan_in
            with self._above(level, homes, keep=not last) as above:
                above.send_all()
                level, homes = above.answers(), homes[:: self.fan_in]
            if last:
                return level[0]
