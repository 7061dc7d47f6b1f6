"""The plan of memory of every method: at least the measured peak, and at most twice the peak.

What every plan has besides, for imports and threads, does not count for the latter.
"""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from nmfscale.engine.memory import _BESIDES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="resets the peak in /proc"),
]

# Measures a case for each line of its input, in a child that has all imports and the counts.
MEASURE = """
import ctypes
import json
import os
import sys
import traceback
import warnings
import numpy as np
import psutil
import scipy.sparse as sp
import internals
from nmfscale import *

warnings.simplefilter("ignore")
LIBC, K, known, found = ctypes.CDLL(None), 20, {}, []

def counts_of(n, m, each):
    # every sample and every feature has counts
    if (n, m, each) not in known:
        row = np.arange(max(n, m) * each) % n
        column = np.random.default_rng(0).integers(0, m, len(row))
        column[:m] = np.arange(m)
        X = sp.csr_array((np.ones(len(row), np.int32), (row, column)), (n, m))
        known[n, m, each] = as_counts(X), X
    return known[n, m, each]

def around(plan_of, *args, **options):
    LIBC.malloc_trim(0)  # memory that was freed before counts as free
    plan = plan_of(*args, **options)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is that of now
    found.append((getattr(plan, "peak", plan), psutil.Process().memory_info().rss))
    return plan

def measure(model, given, call, max_iter, n, m, each, block):
    how = {"max_iter": max_iter, "tol": 0, "random_state": 0, "n_threads": 1}
    internals.small_blocks(internals.FOR_GOOD, block)
    counts, X = counts_of(n, m, each)
    rng, y = np.random.default_rng(0), np.resize(["a", "b", "c"], n)
    names = {**globals(), **locals()}
    model, given = eval(model, names), eval(given, names)
    if call != "fit":
        few = {name: value if name == "measured" else value[:500] for name, value in given.items()}
        model.fit(X[:500], **few)
        model.memory_limit, given = "1 TB", {}
    internals.around_plan(internals.FOR_GOOD, around)
    internals.around_stream(internals.FOR_GOOD, around)
    getattr(model, call)(counts, **given)
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    planned, held = found[0]
    return planned - held, int(status["VmHWM"].split()[0]) * 1024 - held

SSNMF(2, n_threads=1, max_iter=2).fit(np.eye(5, 4), list("aabba"))
for model in (PoissonNMF(2), LDA(2), AnchorNMF(2)):
    model.set_params(n_threads=1).fit(np.eye(5, 4) + np.eye(5, 4, 1)).transform(np.eye(3, 4))
for line in sys.stdin:
    case = json.loads(line)
    counts_of(case["n"], case["m"], case["each"])
    if (child := os.fork()) == 0:
        try:
            answer = measure(**case)
        except BaseException:
            answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

LABELS = "{'y': y}"
# weights 2 of some entries that are 0
ENTRIES = "{'y': y, 'data_weights': np.where((X.toarray() == 0) & (np.arange(m) < 30), 2, 1)}"
MISSING = "{'data_weights': sp.csr_array((X.toarray() == 0) & (np.arange(m) < 30))}"
MEASURED = (
    "{'measured': np.arange(m) > [[-1], [0], [0]], "
    "'panel': np.where(X[:, [0]].toarray()[:, 0] > 0, 0, 1 + np.arange(n) % 2)}"
)
FITS = {
    "PoissonNMF": ("PoissonNMF(K, **how)", "{}"),
    "PoissonNMF float32": ("PoissonNMF(K, dtype='float32', **how)", "{}"),
    "PoissonNMF em": ("PoissonNMF(K, solver='em', inner_iter=1, **how)", "{}"),
    "PoissonNMF scd": ("PoissonNMF(K, solver='scd', **how)", "{}"),
    "PoissonNMF joint-em": ("PoissonNMF(K, solver='joint-em', **how)", "{}"),
    "PoissonNMF priors, weights": (
        "PoissonNMF(K, prior_factors=1.1, prior_loadings=1.2, **how)",
        "{'row_weights': rng.uniform(0.5, 1, n)}",
    ),
    "PoissonNMF measured": ("PoissonNMF(K, **how)", MEASURED),
    "PoissonNMF missing": ("PoissonNMF(K, **how)", MISSING),
    "PoissonNMF moves": ("PoissonNMF(K, n_moves=2, **how)", "{}"),
    "LDA": ("LDA(K, **how)", "{}"),
    "LDA collapsed": ("LDA(K, inference='collapsed', **how)", "{}"),
    "LDA validation": ("LDA(K, inference='collapsed', validation_fraction=0.2, **how)", "{}"),
    "GammaPoisson": ("GammaPoisson(K, **how)", "{}"),
    "GammaPoisson hierarchical": ("GammaPoisson(K, hierarchical=True, **how)", "{}"),
    "NoisyTopicModel": ("NoisyTopicModel(K, **how)", "{}"),
    "AnchorNMF": ("AnchorNMF(K, n_threads=1)", "{}"),
    "AnchorNMF tf-idf": ("AnchorNMF(K, weighting='tf-idf', n_threads=1)", "{}"),
    "AnchorNMF projection": ("AnchorNMF(K, projection=60, n_threads=1)", "{}"),
    "FrobeniusNMF": ("FrobeniusNMF(K, init='random', **how)", "{}"),
    "FrobeniusNMF tf-idf": ("FrobeniusNMF(K, weighting='tf-idf', **how)", "{}"),
    "SSNMF": ("SSNMF(K, **how)", LABELS),
    "SSNMF validation": ("SSNMF(K, validation_fraction=0.2, **how)", LABELS),
    "SSNMF targets": ("SSNMF(K, **how)", "{'y': rng.uniform(0, 1, (n, 2))}"),
    "SSNMF cd": ("SSNMF(K, solver='cd', **how)", LABELS),
    "SSNMF cd FF": ("SSNMF(K, solver='cd', losses='FF', **how)", LABELS),
    "SSNMF weights": ("SSNMF(K, **how)", ENTRIES),
    "SSNMF cd FF weights": ("SSNMF(K, solver='cd', losses='FF', **how)", ENTRIES),
}
ONE_BLOCK = 1 << 23
SHAPES = {
    "many samples": (50_000, 1000, 4, ONE_BLOCK),
    "many samples in blocks": (50_000, 1000, 4, 1 << 15),
    "many features": (1000, 20_000, 10, ONE_BLOCK),
    "many features in blocks": (1000, 20_000, 10, 1 << 14),
    "weights": (10_000, 200, 4, ONE_BLOCK),
}
WEIGHED = [name for name in FITS if "SSNMF" in name and name.endswith("weights")]
CASES = [
    *product([name for name in FITS if name not in WEIGHED], ["many samples"], ["fit"]),
    *product(WEIGHED, ["weights"], ["fit"]),
    *product(
        ["PoissonNMF", "PoissonNMF em", "AnchorNMF", "FrobeniusNMF tf-idf", "SSNMF", "SSNMF cd FF"],
        ["many samples in blocks"], ["fit"],
    ),
    *product(
        ["PoissonNMF", "PoissonNMF priors, weights", "PoissonNMF moves", "LDA",
         "GammaPoisson", "GammaPoisson hierarchical", "NoisyTopicModel", "AnchorNMF tf-idf",
         "AnchorNMF projection", "FrobeniusNMF", "FrobeniusNMF tf-idf", "SSNMF", "SSNMF cd"],
        ["many features"], ["fit"],
    ),
    *product(
        ["PoissonNMF", "PoissonNMF em", "PoissonNMF scd", "PoissonNMF joint-em",
         "PoissonNMF measured", "LDA", "AnchorNMF", "SSNMF cd"],
        ["many features in blocks"], ["fit"],
    ),
    *product(
        ["PoissonNMF", "PoissonNMF priors, weights", "LDA", "GammaPoisson hierarchical",
         "NoisyTopicModel", "AnchorNMF", "FrobeniusNMF tf-idf", "SSNMF"],
        ["many samples"], ["transform"],
    ),
    *product(["PoissonNMF", "LDA"], ["many samples in blocks"], ["transform"]),
    *product(["PoissonNMF", "LDA", "AnchorNMF"], ["many samples"], ["score"]),
    *product(["PoissonNMF", "LDA", "SSNMF"], ["many features"], ["transform"]),
]  # fmt: skip
# a fit of both main families of models: the others are measured at night
GATE = {"PoissonNMF", "LDA"}


def at_night(fit, shape, call):
    gate = fit in GATE and (shape, call) == ("many samples", "fit")
    return pytest.param(fit, shape, call, marks=() if gate else pytest.mark.nightly)


@pytest.fixture(scope="module")
def measuring():
    here = Path(__file__).parents[1]
    # an empty entry would be the current folder, whose kernels may not be built
    paths = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", MEASURE], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process


@pytest.mark.parametrize(("fit", "shape", "call"), [at_night(*case) for case in CASES])
def test_a_plan_is_at_least_the_peak_and_at_most_twice_it(measuring, fit, shape, call):
    n, m, each, block = SHAPES[shape]
    max_iter = 8 if call == "fit" else 2
    if shape == "many features in blocks" and fit in ("PoissonNMF", "PoissonNMF measured"):
        max_iter = 30  # until the full curvature of F is added up over blocks
    case = {"model": FITS[fit][0], "given": FITS[fit][1], "call": call, "max_iter": max_iter}
    case |= {"n": n, "m": m, "each": each, "block": block}
    measuring.stdin.write(json.dumps(case) + "\n")
    measuring.stdin.flush()
    answer = json.loads(measuring.stdout.readline())
    assert not isinstance(answer, str), answer
    planned, peak = answer
    found = f"plan {planned / 2**20:.0f} MB, peak {peak / 2**20:.0f} MB"
    # a small peak is partly memory that the process had before
    assert peak <= planned and planned - _BESIDES <= 2 * peak + (16 << 20), found
