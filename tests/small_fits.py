"""A small fit for tests: its counts, its bits, a stop in its middle; programs with a time limit."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import nmfscale
from nmfscale import kernels

rng = np.random.default_rng(0)
X = rng.poisson(rng.gamma(0.4, size=(90, 3)) @ rng.gamma(0.4, size=(3, 60)) * 3)
X[7, 5] = 700  # exceeds a byte
LONG_X = np.tile(X, (40, 1))
SMALL_BLOCK = 300


def model(n_components=3, **options):
    options = {"max_iter": 24, "tol": 0, "random_state": 0, "n_threads": 1} | options
    return nmfscale.PoissonNMF(n_components, **options)


def bits(fitted):
    """Return all numbers of a fit as bytes, except seconds and bytes read."""
    names = sorted(set(fitted.history_.dtype.names) - {"seconds", "bytes_read"})
    arrays = [fitted.components_, fitted.loadings_, *(fitted.history_[name] for name in names)]
    return b"".join(array.tobytes() for array in arrays)


class StopError(Exception):
    """Raised in the middle of a fit."""


def stop_at(iteration):
    """Return a callback that stops a fit."""

    def callback(record):
        if record["iteration"] == iteration:
            raise StopError

    return callback


@contextmanager
def at_level(level):
    """Run kernels with this instruction set."""
    before = kernels.level()
    kernels.use_level(level)
    try:
        yield
    finally:
        kernels.use_level(before)


def run(program, *words, limit=60, command=(), **environment):
    """Run a program that can import this module; return its output. None unsets a variable."""
    known = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | environment
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    known["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run(
        [*command, sys.executable, "-P", "-W", "ignore", "-c", program, *map(str, words)],
        env={name: value for name, value in known.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def open_files():
    """Return the open files of this process, without the listed folder itself."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sorted(found)
