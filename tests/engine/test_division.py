"""Blocks that are divided among tasks: even parts, and the bits of whole blocks."""

from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import internals
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from small_fits import bits

import nmfscale
from nmfscale import kernels
from nmfscale.engine.caches import forget_run
from nmfscale.engine.division import cut_evenly
from nmfscale.engine.local import LocalExecutor
from nmfscale.engine.loop import fit
from nmfscale.engine.monitor import Monitor
from nmfscale.engine.partition import TaskSizes
from nmfscale.engine.protocol import RowArrays, Step
from nmfscale.engine.remote import DaskExecutor
from nmfscale.engine.session import ClusterSession
from nmfscale.engine.worker import RunConfig, run_steps
from nmfscale.methods.factors import Constraints
from nmfscale.methods.poisson.newton import Newton
from nmfscale.readers.open import as_counts
from nmfscale.storage.version import package_version

N, M = 700, 320
MANY, _ = nmfscale.datasets.simulate_topic_counts(N, M, 3, size=40.0, random_state=0)
# what a fit asks of a client before it opens a session
NO_CLIENT = SimpleNamespace(submit=None, scheduler=None, status="running", asynchronous=False)
WEIGHTS = np.where(np.add.outer(np.arange(N), np.arange(M)) % 5 == 0, 2, 1)


class PoolOfThisProcess:
    """Runs tasks here, one after the other, as if there were workers with a thread each.

    `n_tasks` are the numbers of tasks in the runs of each name, 0 for tasks on whole blocks.
    """

    def __init__(self, n_workers):
        self._n_workers, self.seconds = n_workers, defaultdict(deque)
        self.n_tasks = defaultdict(set)

    def ready(self):
        return {f"worker {number}": 1 for number in range(self._n_workers)}

    def run(self, name, function, tasks):
        if function is run_steps:
            divided = all(work.slices is not None for task in tasks for work in task.args[2])
            self.n_tasks[name].add(len(tasks) if divided else 0)
        return [function(*task.args, {}) for task in tasks]

    def reduce(self, name, function, tasks, combine, fan_in):
        return combine(*self.run(name, function, tasks))

    @contextmanager
    def batch(self, name, function, tasks):
        found = [function(*task.args, {}) for task in tasks]
        note_all = partial(_note_all, found)
        yield SimpleNamespace(send_all=lambda: None, results=note_all)

    def wait_for_workers(self):
        return self.ready()

    def forget(self, names):
        pass

    def forget_all(self, but=None):
        pass


def _note_all(found, note):
    for number, result in enumerate(found):
        note(number, result)


def config_of(layout, folder):
    """Return the settings of a fit whose workers have the store and the folder."""
    store = str(layout.path), str(layout.count_dtype), layout.file.mark
    folder = str(folder)
    return RunConfig("fit-1", package_version(), store, folder, 1, kernels.level(), *[1 << 20] * 2)


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


# With loadings that are larger than the sums, columns are divided if the longest of 3 shares of
# whole blocks takes 67% longer than one of 5 equal shares, and samples have enough counts.
@pytest.mark.parametrize(
    ("n_workers", "loadings_bytes", "least", "divides_columns"),
    [(2, 0, 0, True), (5, 0, 0, True), (5, 10**9, 0, True), (5, 10**9, 100, False)],
)
def test_parts_of_blocks_give_the_bits_of_whole_blocks(
    tmp_path, monkeypatch, n_workers, loadings_bytes, least, divides_columns
):
    X, _ = nmfscale.datasets.simulate_topic_counts(160, 90, 3, size=300.0, random_state=0)
    internals.small_blocks(monkeypatch, 2000)
    internals.reading_costs(monkeypatch, least)
    counts, stored = as_counts(X), nmfscale.write_store(X, tmp_path / "counts.nmf")
    layout = stored.layout()
    assert len(layout.blocks) == 3
    divided = {order: internals.note_divisions(monkeypatch, order) for order in ("rows", "columns")}
    executor = DaskExecutor(
        stored, PoolOfThisProcess(n_workers), config_of(layout, tmp_path), tmp_path, 1,
        loadings_bytes=loadings_bytes,
    )  # fmt: skip
    found = result_of(stored, executor)
    forget_run("fit")
    assert found == result_of(counts, LocalExecutor(counts.layout(1), 1))
    for name, divides in ("rows", True), ("columns", divides_columns):
        tasks = {len(result.works) for result in divided[name]}
        assert bool(tasks) == divides and tasks <= {n_workers - 1, n_workers} - {1}


LABELS = np.arange(N) % 3
# without a start these models take dozens of steps before the first iteration
START = {"loadings": 1.0 + np.eye(3)[LABELS], "components": 1.0 + np.eye(3)[:, np.arange(M) % 3]}
# models, arguments of fit, the first step that reads rows, and the steps that sum over columns
MODELS = {
    "auto": (nmfscale.PoissonNMF(3), {}, "UpdateRows", "SumColumns"),
    "em": (nmfscale.PoissonNMF(3, solver="em"), {}, "UpdateRows", ""),
    "joint-em": (nmfscale.PoissonNMF(3, solver="joint-em"), {}, "UpdateRows", "SumColumns"),
    "entries": (nmfscale.PoissonNMF(3), {"data_weights": WEIGHTS}, "UpdateRows", "SumColumns"),
    "batches": (
        nmfscale.PoissonNMF(3, batch_shape=10.0), START | {"batch": np.arange(N) // 3 % 2},
        "UpdateRows", "SumColumns",
    ),
    "lda": (nmfscale.LDA(3), START, "InferDirichlet", "SumTerms-SumColumns"),
    "collapsed": (
        nmfscale.LDA(3, inference="collapsed"), {}, "ShareRows", "SumChanges-ShareColumns",
    ),
    "gamma": (
        nmfscale.GammaPoisson(3, hierarchical=True), START, "InferGamma", "SumTerms-SumColumns",
    ),
    "noisy": (nmfscale.NoisyTopicModel(3), {}, "UpdateRows", "Movement-SumColumns"),
    "frobenius": (
        nmfscale.FrobeniusNMF(3, weighting="tf-idf"), {}, "DescendRows", "SumRows-SumColumns",
    ),
    "ssnmf": (
        nmfscale.SSNMF(3, losses="FF", solver="cd"), {"y": LABELS}, "DescendRows",
        "SumSamples-SumColumns",
    ),
    "ssnmf-mu": (
        nmfscale.SSNMF(3, losses="DD", solver="mu"), {"y": LABELS}, "MoveRows",
        "SumSamples-SumColumns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("n_blocks", "n_workers"), [(5, 13), pytest.param(18, 16, marks=pytest.mark.slow)]
)
def test_every_model_keeps_all_workers_busy(tmp_path, monkeypatch, name, n_blocks, n_workers):
    model, data, rows, columns = MODELS[name]
    internals.small_blocks(monkeypatch, -(-MANY.nnz // n_blocks) + 40)
    pool = PoolOfThisProcess(n_workers)

    @contextmanager
    def session(client, counts, needs, **options):
        assert len(counts.layout().blocks) == n_blocks
        config = config_of(counts.layout(), tmp_path)
        yield ClusterSession(pool, config, tmp_path, TaskSizes(1, 1, 1 << 20), 1, 0)
        forget_run("fit")

    internals.open_session_by(monkeypatch, session)
    store = tmp_path / "counts.nmf"
    nmfscale.write_store(MANY, store)
    known = model.get_params()
    options = {"max_iter": 3, "tol": 0, "random_state": 0, "init": "random"}
    model = clone(model).set_params(**{k: v for k, v in options.items() if k in known})
    spread = clone(model).fit(store, client=NO_CLIENT, **data)
    assert bits(spread) == bits(model.fit(MANY, **data))
    # few features of very different lengths make fewer tasks
    for steps, least in (rows, n_workers), (columns, n_workers // 2 + 1):
        n_tasks = [n for name, n in pool.n_tasks.items() if name.startswith(steps)]
        if steps:
            assert n_tasks and set().union(*n_tasks) <= {*range(least, n_workers + 1)}


@dataclass(frozen=True)
class CountRows(Step):
    """Returns the number of lanes of a block, which is not that of the rows of a part."""

    reads = "rows"
    divides = True
    arrays = RowArrays()

    def run(self, block, sums, n_threads):
        return {"lanes": 16 * (len(block.counts.offset) - 1)}


def test_a_value_of_a_part_alone_is_refused(tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, MANY.nnz // 2)
    stored = nmfscale.write_store(MANY, tmp_path / "counts.nmf")
    pool, config = PoolOfThisProcess(8), config_of(stored.layout(), tmp_path)
    executor = DaskExecutor(stored, pool, config, tmp_path, 1)
    with pytest.raises(TypeError, match="CountRows returns 'lanes' of a part of a block"):
        executor.run(CountRows())
    forget_run("fit")


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=99), st.integers(1, 20))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_parts_have_about_equal_work(work, n_parts):
    parts = cut_evenly(np.array(work), n_parts)
    assert [i for part in parts for i in range(part.start, part.stop)] == [*range(len(work))]
    assert len(parts) <= n_parts and all(part.start < part.stop for part in parts)
    longest = max(sum(work[part]) for part in parts)
    assert longest <= sum(work) / n_parts + max(work)
