"""Replicates for the workers of the tests, which import this module."""

import os
import signal
from pathlib import Path

import numpy as np

from nmfscale.inference.replicates.replicates import ReplicateTask
from nmfscale.inference.replicates.seeds import generator


class Draws(ReplicateTask):
    """Draws two numbers from each replicate's generator, and returns the replicate's number.

    With `folder`, every batch creates a file there. With `kill`, the worker of the first batch with
    that replicate dies.
    """

    name = "draws"

    def __init__(self, scale=1.0, folder=None, kill=None, action=None, smallest_batch=1):
        self.scale, self.folder, self.kill, self.action = scale, folder, kill, action
        self.least = smallest_batch

    def smallest_batch(self, local):
        return self.least

    def about(self):
        return (self.scale,)

    def run(self, numbers, seed, n_threads):
        if self.action is not None:
            self.action(numbers)
        if self.folder is not None:
            mark = Path(self.folder, f"{numbers.start}-{numbers.stop}")
            if self.kill in numbers and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            mark.touch()
        draws = [self.scale * generator(seed, r).random(2) for r in numbers]
        return {"draws": np.array(draws), "number": np.array(numbers)}
