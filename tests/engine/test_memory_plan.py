"""The plan of memory of every method: at least the measured peak, and at most twice the peak.

What every plan has besides, for imports and threads, does not count for the latter.
"""

import sys
from itertools import product

import pytest
from small_fits import run

from nmfscale.engine.memory import _BESIDES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="resets the peak in /proc"),
]

MEASURE = """
import ctypes
import sys
import numpy as np
import psutil
import scipy.sparse as sp
import internals
from nmfscale import *

model, given, n, m, each, block = *sys.argv[1:3], *map(int, sys.argv[3:])
internals.small_blocks(internals.FOR_GOOD, block)
rng, K = np.random.default_rng(0), 20
how = {"max_iter": 14, "tol": 0, "random_state": 0, "n_threads": 1}
# every sample and every feature has counts
row = np.arange(max(n, m) * each) % n
column = np.where(np.arange(len(row)) < m, np.arange(len(row)) % m, rng.integers(0, m, len(row)))
X = sp.csr_array((np.ones(len(row), np.int32), (row, column)), (n, m))
del row, column
given, found = eval(given), []

def plan(plan_fit, *args, **options):
    # memory that was freed before counts as free
    ctypes.CDLL(None).malloc_trim(0)
    found[:] = [plan_fit(*args, **options)]
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is that of now
    found.append(psutil.Process().memory_info().rss)
    return found[0]

internals.around_plan(internals.FOR_GOOD, plan)
eval(model).fit(X, **given)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
plan, held = found
print(plan.peak - held, int(status["VmHWM"].split()[0]) * 1024 - held)
"""

LABELS = "{'y': np.resize(['a', 'b', 'c'], n)}"
WEIGHTS = "{'row_weights': rng.uniform(0.5, 1, n)}"
FITS = {
    "PoissonNMF": ("PoissonNMF(K, **how)", "{}"),
    "PoissonNMF float32": ("PoissonNMF(K, dtype='float32', **how)", "{}"),
    "PoissonNMF em": ("PoissonNMF(K, solver='em', inner_iter=1, **how)", "{}"),
    "PoissonNMF scd": ("PoissonNMF(K, solver='scd', **how)", "{}"),
    "PoissonNMF joint-em": ("PoissonNMF(K, solver='joint-em', **how)", "{}"),
    "PoissonNMF priors, weights": (
        "PoissonNMF(K, prior_factors=1.1, prior_loadings=1.2, **how)", WEIGHTS
    ),
    "TopicModel": ("TopicModel(K, **how)", "{}"),
    "LDA": ("LDA(K, **how)", "{}"),
    "GammaPoisson": ("GammaPoisson(K, **how)", "{}"),
    "GammaPoisson hierarchical": ("GammaPoisson(K, hierarchical=True, **how)", "{}"),
    "NoisyTopicModel": ("NoisyTopicModel(K, **how)", "{}"),
    "AnchorNMF": ("AnchorNMF(K)", "{}"),
    "AnchorNMF tf-idf": ("AnchorNMF(K, weighting='tf-idf')", "{}"),
    "AnchorNMF projection": ("AnchorNMF(K, projection=60)", "{}"),
    "SSNMF": ("SSNMF(K, **how)", LABELS),
    "SSNMF cd": ("SSNMF(K, solver='cd', **how)", LABELS),
}  # fmt: skip
ONE_BLOCK = 1 << 23
SHAPES = {
    "many samples": (150_000, 1000, 4, ONE_BLOCK),
    "many features": (2000, 50_000, 10, ONE_BLOCK),
    "many features in blocks": (2000, 50_000, 10, 1 << 15),
}
CASES = [
    *product(FITS, ["many samples", "many features"]),
    *product(["LDA", "AnchorNMF"], ["many features in blocks"]),
]


@pytest.mark.parametrize(("fit", "shape"), CASES)
def test_a_plan_is_at_least_the_peak_and_at_most_twice_it(fit, shape):
    planned, peak = map(int, run(MEASURE, *FITS[fit], *SHAPES[shape], limit=120).split())
    found = f"plan {planned / 2**20:.0f} MB, peak {peak / 2**20:.0f} MB"
    assert peak <= planned and planned - _BESIDES <= 2 * peak, found
