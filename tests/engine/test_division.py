"""Blocks that are divided among tasks: even parts, and the bits of whole blocks."""

from collections import defaultdict, deque

import internals
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nmfscale
from nmfscale import kernels
from nmfscale.engine.caches import forget_run
from nmfscale.engine.division import cut_evenly
from nmfscale.engine.local import LocalExecutor
from nmfscale.engine.loop import fit
from nmfscale.engine.monitor import Monitor
from nmfscale.engine.remote import DaskExecutor
from nmfscale.engine.worker import RunConfig
from nmfscale.methods.factors import Constraints
from nmfscale.methods.poisson.newton import Newton
from nmfscale.readers.open import as_counts
from nmfscale.storage.version import package_version


class PoolOfThisProcess:
    """Runs tasks here, one after the other, as if there were workers with a thread each."""

    def __init__(self, n_workers):
        self._n_workers, self.seconds = n_workers, defaultdict(deque)

    def ready(self):
        return {f"worker {number}": 1 for number in range(self._n_workers)}

    def run(self, name, function, tasks):
        return [function(*task.args, {}) for task in tasks]

    def reduce(self, name, function, tasks, combine, fan_in):
        return combine(*self.run(name, function, tasks))

    def forget(self, names):
        pass


def result_of(counts, executor):
    """Return all numbers of a fit by an executor: it keeps and uses curvature in its iterations."""
    rng = np.random.default_rng(1)
    L, F = (rng.gamma(1.0, size=(n, 3)) for n in counts.shape)
    method = Newton(counts, executor, lambda: (L, F), 3, np.float32, Constraints(), max_iter=14)
    method.start()
    monitor = Monitor(method, 14, 0.0)
    fit(method, monitor)
    arrays = [array.tobytes() for array in method.result().values()]
    return [*arrays, [record["loglik"] for record in monitor.records]]


@pytest.mark.parametrize(("n_workers", "loadings_bytes"), [(2, 0), (5, 0), (5, 10**9)])
def test_parts_of_blocks_give_the_bits_of_whole_blocks(
    tmp_path, monkeypatch, n_workers, loadings_bytes
):
    X, _ = nmfscale.datasets.simulate_topic_counts(160, 90, 3, size=300.0, random_state=0)
    internals.small_blocks(monkeypatch, 2000)
    counts, stored = as_counts(X), nmfscale.write_store(X, tmp_path / "counts.nmf")
    layout = stored.layout()
    assert len(layout.blocks) == 3
    divided = {order: internals.note_divisions(monkeypatch, order) for order in ("rows", "columns")}
    store = str(layout.path), str(layout.count_dtype), layout.file.mark
    config = RunConfig(
        "fit-1", package_version(), store, str(tmp_path), 1, kernels.level(), 1 << 20, 1 << 20
    )
    executor = DaskExecutor(
        stored, PoolOfThisProcess(n_workers), config, tmp_path, 1, loadings_bytes=loadings_bytes
    )
    found = result_of(stored, executor)
    forget_run("fit")
    assert found == result_of(counts, LocalExecutor(counts.layout(1), 1))
    for name, divides in ("rows", True), ("columns", not loadings_bytes):
        tasks = {len(result.works) for result in divided[name] if result is not None}
        assert bool(tasks) == divides and tasks <= {n_workers - 1, n_workers} - {1}


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=99), st.integers(1, 20))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_parts_have_about_equal_work(work, n_parts):
    parts = cut_evenly(np.array(work), n_parts)
    assert [i for part in parts for i in range(part.start, part.stop)] == [*range(len(work))]
    assert len(parts) <= n_parts and all(part.start < part.stop for part in parts)
    longest = max(sum(work[part]) for part in parts)
    assert longest <= sum(work) / n_parts + max(work)
