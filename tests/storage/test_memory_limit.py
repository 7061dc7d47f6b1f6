"""What fits and scores of a packed store take of memory, beside `memory_limit`."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import nmfscale
from nmfscale.counts.sizes import parse_bytes

CODE = """
import sys, warnings
import numpy as np
from nmfscale import SSNMF, PoissonNMF, bootstrap_fit

warnings.simplefilter("ignore")
path, what, limit = sys.argv[1:]
options = {{"max_iter": 2, "tol": 0, "memory_limit": limit, "random_state": 0, "n_threads": 1}}
if what == "ssnmf":
    SSNMF(4, **options).fit(path, np.arange({n_samples}) % 3)
else:
    model = PoissonNMF(4, init="random", **options).fit(path)
    if what == "completion":
        model.score(path, completion=0.5, random_state=0)
    else:
        bootstrap_fit(model, path, n_replicates=2, random_state=0)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) * 1024)
"""
N_SAMPLES, N_FEATURES, N_EACH = 60_000, 4_000, 250


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("store") / "counts.nmf"
    shape = N_SAMPLES, N_EACH
    columns = rng.integers(0, N_FEATURES // N_EACH, shape, np.int32)
    columns += np.arange(N_EACH, dtype=np.int32) * (N_FEATURES // N_EACH)
    counts = rng.integers(1, 5, columns.size, np.int32)
    pointers = np.arange(N_SAMPLES + 1) * N_EACH
    X = sp.csr_array((counts, columns.ravel(), pointers), (N_SAMPLES, N_FEATURES))
    nmfscale.write_store(X, path)
    return path


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize(
    ("what", "limit"), [("ssnmf", "450MB"), ("completion", "520MB"), ("bootstrap", "640MB")]
)
def test_the_limit_is_kept(store, what, limit):
    code = CODE.format(n_samples=N_SAMPLES)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, store, what, limit], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < parse_bytes(limit)
