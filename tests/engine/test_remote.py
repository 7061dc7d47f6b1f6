"""Fits on a Dask cluster: the same bits as in memory, and nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext

import cluster_tasks as tasks
import dask.array as da
import internals
import numpy as np
import pytest
import scipy.sparse as sp
from clusters import WALL, At, cluster_of, prefixes, processes, send, soon, tasks_known, within
from count_files import write_h5ad, write_tenx
from night import at_night
from small_fits import X, bits, model, run

import nmfscale
from nmfscale.cluster.pool import active_client
from nmfscale.engine.checkpoint import CheckpointError
from nmfscale.readers.open import as_counts
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_writer import pack

# Dask's own warnings about workers that we kill are not ours
pytestmark = pytest.mark.filterwarnings("ignore")

slow = pytest.mark.slow
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
BLOCK = 500


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    internals.small_blocks(monkeypatch, BLOCK)


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as client:
        yield client


@pytest.fixture(scope="module")
def clusters():
    """Clients by the number of their workers; no fit takes one by default."""
    with cluster_of(1, active=False) as one, cluster_of(3, active=False) as three:
        yield {1: one, 3: three}


@pytest.fixture
def store(tmp_path):
    pack(as_counts(X), tmp_path / "counts.nmf")
    assert len(StoredCounts(tmp_path / "counts.nmf").layout().blocks) == 6
    return tmp_path / "counts.nmf"


@pytest.fixture
def opened(monkeypatch):
    """The arguments of sessions of fits that took place on a cluster."""
    return internals.note_sessions(monkeypatch)


def fit(source, client=None, fitted=None, limit=WALL, **options):
    how = {"checkpoint", "checkpoint_every", "resume"} & set(options)
    how = {name: options.pop(name) for name in how}
    fitted = fitted or model(**{"max_iter": 3} | options)
    return within(limit, lambda: fitted.fit(source, client=client, **how))


# The same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=slow)])
def test_same_bits(client, store, dtype):
    # from its twelfth iteration on, the method keeps curvature
    options = {"dtype": dtype, "max_iter": 15}
    assert bits(fit(store, client, **options)) == bits(fit(X, **options))


@pytest.mark.parametrize(
    "seeded",
    [
        nmfscale.GammaPoisson(3),
        pytest.param(nmfscale.TopicModel(3), marks=slow),
        pytest.param(nmfscale.LDA(3), marks=slow),
        pytest.param(nmfscale.LDA(3, inference="collapsed"), marks=slow),
        pytest.param(nmfscale.GammaPoisson(3, hierarchical=True), marks=slow),
    ],
    ids=lambda model: repr(model).replace(" ", ""),
)
def test_same_bits_with_seeds(client, tmp_path, opened, seeded):
    """And other ones with another weight."""
    words = np.array([f"w{j}" for j in range(X.shape[1])])
    pack(as_counts(X, feature_names=words), tmp_path / "counts.nmf")
    seeds = {"one": ["w30", "w2"], "two": ["w7"]}
    options = {"seeds": seeds, "max_iter": 3, "tol": 0, "random_state": 0, "n_threads": 1}
    seeded.set_params(**options)
    here = bits(seeded.fit(X, feature_names=words))
    assert bits(fit(tmp_path / "counts.nmf", client, fitted=seeded)) == here
    assert len(opened) == 1 and seeded.topic_names_.tolist() == ["one", "two", "topic 2"]
    assert bits(seeded.set_params(seed_weight=0.5).fit(X, feature_names=words)) != here


@slow
@pytest.mark.parametrize("init", ["topic-score", *at_night("random", "nndsvd")])
def test_same_bits_from_several_starts(client, store, init):
    options = {"init": init, "n_init": 2, "max_iter": 3}
    one, other = fit(store, client, **options), fit(X, **options)
    assert bits(one) == bits(other)


@slow
@pytest.mark.parametrize(("n_workers", "n_threads"), [(3, 2), *at_night((1, 4))])
def test_same_bits_with_any_number_of_workers_and_threads(clusters, store, n_workers, n_threads):
    found = bits(fit(store, clusters[n_workers], n_threads=n_threads, max_iter=15))
    assert found == bits(fit(X, max_iter=15))


@slow
def test_transform_after_a_fit_on_a_cluster(client, store):
    one, other = fit(store, client), fit(X)
    assert one.transform(X[:7]).tobytes() == other.transform(X[:7]).tobytes()
    assert one.score(X) == other.score(X)


def real_text(folder):
    """Counts of words in every form that can be fitted."""
    counts = nmfscale.datasets.docstrings()
    matrix = sp.csr_matrix((counts.data, counts.indices, counts.indptr), shape=counts.shape)
    write_h5ad(folder / "counts.h5ad", matrix)
    write_tenx(folder / "counts.h5", sp.csr_array(matrix), 2)
    nmfscale.write_store(counts, folder / "counts.nmf")
    rows = da.from_array(np.arange(counts.shape[0]), chunks=1000)
    array = rows.map_blocks(
        tasks.take_rows, matrix, chunks=(rows.chunks[0], (counts.shape[1],)), new_axis=1,
        dtype=matrix.dtype, meta=np.zeros((0, 0), matrix.dtype),
    )  # fmt: skip
    return {name: folder / f"counts.{name}" for name in ("nmf", "h5ad", "h5")} | {
        "memory": matrix,
        "dask array": array,
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("n_components", "places"),
    [(10, ["nmf", "dask array"]), (20, ["h5", "memory"])],
)
def test_real_text_in_every_place(client, tmp_path, monkeypatch, n_components, places):
    internals.small_blocks(monkeypatch, 60_000)
    sources = real_text(tmp_path)
    options = {"n_components": n_components, "max_iter": 14, "dtype": "float32"}
    expected = bits(fit(sources["memory"], **options))
    for n_threads, place in enumerate(places, 1):
        assert bits(fit(sources[place], client, n_threads=n_threads, **options)) == expected


# Which client does what -----------------------------------------------------------------------


def test_counts_in_memory_are_packed_first(client, opened):
    assert bits(fit(X, client)) == bits(fit(X))
    assert len(opened) == 1 and isinstance(opened[0][1], StoredCounts)
    assert not opened[0][1].layout().path.exists()


@slow
@pytest.mark.parametrize("kind", ["store", pytest.param("h5ad", marks=slow), "dask array"])
def test_the_active_client_is_for_counts_in_files(client, tmp_path, store, opened, kind):
    source = str(store)
    if kind == "h5ad":
        source = str(write_h5ad(tmp_path / "counts.h5ad", sp.csr_array(X)))
    elif kind == "dask array":
        source = da.from_array(X, chunks=(20, -1))
    expected = bits(fit(X))
    assert not opened
    assert bits(fit(source)) == expected
    assert [args[0] for args in opened] == [client]


@slow
def test_not_inside_a_task(client, store):
    found = client.submit(tasks.bits_of_a_fit, str(store), BLOCK, 3, pure=False)
    assert found.result(timeout=WALL) == bits(fit(X))


@pytest.mark.parametrize("blocks", ["one", pytest.param("two", marks=slow)])
def test_fewer_blocks_than_workers(request, tmp_path, monkeypatch, opened, blocks):
    most = {"one": X.size, "two": 1700}[blocks]
    internals.small_blocks(monkeypatch, most)
    pack(as_counts(X), tmp_path / "counts.nmf")
    n_blocks = len(StoredCounts(tmp_path / "counts.nmf").layout().blocks)
    assert n_blocks == {"one": 1, "two": 2}[blocks]
    if blocks == "one":  # which no worker takes
        three = cluster_of(3, processes=False)
    else:
        three = nullcontext(request.getfixturevalue("clusters")[3])
    with three as other:
        assert bits(fit(tmp_path / "counts.nmf", other)) == bits(fit(X))
    assert len(opened) == n_blocks - 1


def test_clients_that_do_not_do(client, store):
    with pytest.raises(ValueError, match="client=5 is not a distributed.Client"):
        fit(store, 5)
    for other in (client.cluster, client.scheduler.address):
        with pytest.raises(
            ValueError, match=r"client=.* is not a distributed.Client: pass Client\("
        ):
            fit(store, other)


def test_a_client_that_is_closed(client, store, opened):
    from distributed import Client

    with Client(client.scheduler.address, set_as_default=False) as other:
        pass
    with pytest.raises(ValueError, match="client=.* is closed: pass a Client"):
        fit(store, other)
    with other.as_current():
        assert active_client() is None
    assert not opened


def test_a_client_that_is_asynchronous(client, store, opened):
    from distributed import Client

    async def use():
        async with Client(client.scheduler.address, asynchronous=True) as other:
            with pytest.raises(ValueError, match="is asynchronous: pass a synchronous Client"):
                model().fit(store, client=other)
            return bits(model(max_iter=3).fit(store))

    assert asyncio.run(use()) == bits(fit(X))
    assert not opened


@slow
def test_a_client_that_keeps_its_worker_from_other_tasks(client, store):
    found = client.submit(tasks.fit_with_get_client, str(store), pure=False)
    assert "with distributed.worker_client() as client" in found.result(timeout=WALL)


@slow
def test_a_fit_on_the_cluster_that_runs_its_task(client, store):
    found = client.submit(tasks.bits_with_worker_client, str(store), BLOCK, 3, pure=False)
    assert found.result(timeout=WALL) == bits(fit(X))


def test_tasks_have_names_to_read(client, store):
    fit(store, client, max_iter=1)
    steps = "UpdateRows-SampleTerms", "ExtrapolateRows-SumColumns", "ProjectRows"
    assert {f"nmfscale-{name}" for name in steps} <= prefixes(client)


# Checkpoints ----------------------------------------------------------------------------------


def checkpointed(source, client, folder, iteration):
    """Fit until an iteration, and save there."""
    stopped = model(max_iter=15, callback=At({iteration: lambda: 1 / 0}))
    with pytest.raises(ZeroDivisionError):
        fit(source, client, stopped, checkpoint=folder, checkpoint_every=0)


@pytest.mark.nightly
def test_resumed_with_another_number_of_workers(client, clusters, store, tmp_path):
    state = tmp_path / "state"
    checkpointed(store, client, state, 13)
    fitted = fit(store, clusters[1], max_iter=15, checkpoint=state, resume=True)
    assert bits(fitted) == bits(fit(X, max_iter=15))


def names_besides_checkpoints(folder):
    return {name for name in os.listdir(folder) if not name.startswith("checkpoint-")}


DRIVER = """
import os, signal, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from distributed import Client
import internals
from small_fits import bits, model
store, state, address = sys.argv[1:4]
presses, block = map(int, sys.argv[4:])
internals.small_blocks(internals.FOR_GOOD, block)
def look(record):
    Path(state, "iteration").write_text(str(record["iteration"]))
    if record["iteration"] == 4:
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
with Client(address) as client:
    fitted = model(max_iter=40, callback=look)
    Path(state).mkdir(exist_ok=True)
    try:
        fitted.fit(store, client=client, checkpoint=state, checkpoint_every=0)
        print(len(fitted.history_) < 9, bool((fitted.components_ >= 0).all()))
    except KeyboardInterrupt:
        print("stopped", hasattr(fitted, "components_"))
"""


@pytest.mark.nightly
def test_driver_killed(client, clusters, store, tmp_path):
    state = tmp_path / "state"
    known = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-P", "-c", DRIVER, store, state, client.scheduler.address, 0, BLOCK]
    expected = bits(fit(X, max_iter=40))
    with subprocess.Popen([str(word) for word in words], env=known) as driver:
        soon(lambda: len(list(state.glob("checkpoint-*"))) == 2, WALL)
        driver.kill()
    assert any(name.startswith(".nmfscale-") for name in names_besides_checkpoints(state))
    fitted = fit(store, clusters[1], max_iter=40, checkpoint=state, resume=True)
    assert bits(fitted) == expected
    soon(lambda: not tasks_known(client))
    assert names_besides_checkpoints(state) <= {"iteration"}


@pytest.mark.nightly
def test_a_folder_that_a_fit_on_a_cluster_uses(client, store, tmp_path):
    state, refused = tmp_path / "state", []

    def resume_elsewhere():
        with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()} on") as caught:
            model(max_iter=15).fit(X, checkpoint=state, resume=True)
        refused.append(caught)

    fitted = model(max_iter=15, callback=At({5: resume_elsewhere}))
    found = fit(store, client, fitted, checkpoint=state, checkpoint_every=0)
    assert bits(found) == bits(fit(X, max_iter=15)) and refused
    assert all(name.startswith("checkpoint-") for name in os.listdir(state))


# Nothing is left behind -----------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files of this process."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_workers_let_go_of_the_arrays_of_a_fit(client, store):
    client.run(tasks.forget_everything)  # of drivers that were killed
    seen, look = [], At({3: lambda: seen.extend(client.run(tasks.bytes_remembered).values())})
    fit(store, client, model(max_iter=4, callback=look))
    assert len(seen) == 2 and any(seen)
    soon(lambda: set(client.run(tasks.bytes_remembered).values()) == {0}, 10)


@pytest.mark.nightly
def test_a_worker_that_is_stopped_does_not_hold_up_the_end(store, monkeypatch):
    with cluster_of(2) as other:
        stopped = processes(other)[:1]

        def stop(forget_all, pool, but=None):
            if but is None:
                send(signal.SIGSTOP, stopped)
                seconds.append(time.monotonic())
            forget_all(pool, but)

        seconds = []
        internals.around_forget_all(monkeypatch, stop)
        try:
            fit(store, other)
            assert time.monotonic() - seconds[0] < 5
        finally:
            send(signal.SIGCONT, stopped)


TERMINATED = """
import os, signal, sys
from distributed import Client
import internals
from small_fits import X, model
internals.small_blocks(internals.FOR_GOOD, int(sys.argv[2]))
with Client(sys.argv[1]) as client:
    end = lambda record: os.kill(os.getpid(), signal.SIGTERM)
    model(max_iter=40, callback=end).fit(X, client=client)
"""


@pytest.mark.nightly
def test_what_a_process_left_that_was_ended(client, store, temporary):
    known = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    words = [sys.executable, "-P", "-c", TERMINATED, client.scheduler.address, str(BLOCK)]
    assert subprocess.run(words, env=known, timeout=WALL).returncode == -signal.SIGTERM
    (left,) = (path for path in temporary.glob(".nmfscale-*") if path.is_dir())
    seen = []

    def look():
        seen.extend(path for path in temporary.glob(".nmfscale-*") if path.is_dir())
        fit(store, client, max_iter=1)  # which leaves alone what is in use

    fit(store, client, model(max_iter=3, callback=At({1: look})))
    assert len(seen) == 1 and left not in seen
    assert not os.listdir(temporary)


def press():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "end",
    ["well", *(pytest.param(e, marks=slow) for e in ("ZeroDivisionError", "KeyboardInterrupt"))],
)
def test_nothing_is_left(client, tmp_path, temporary, end):
    actions = {"well": {}, "ZeroDivisionError": {2: lambda: 1 / 0}, "KeyboardInterrupt": {2: press}}
    fitted = model(max_iter=3, callback=At(actions[end]))
    before = dict(fitted.__dict__)
    how = {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    if end == "well":
        fit(X, client, fitted, **how)
    else:
        with pytest.raises((ZeroDivisionError, KeyboardInterrupt)) as caught:
            fit(X, client, fitted, **how)
        assert caught.type.__name__ == end and fitted.__dict__ == before
    assert not os.listdir(temporary)
    assert os.listdir(tmp_path / "state") and not names_besides_checkpoints(tmp_path / "state")
    soon(lambda: not tasks_known(client))


@slow
def test_nothing_is_left_in_the_temporary_folder(client, temporary):
    fit(X, client, max_iter=1)
    assert not os.listdir(temporary)


@slow
@pytest.mark.parametrize("presses", [2, *at_night(1)])
def test_control_c(client, store, tmp_path, presses):
    state = tmp_path / "state"
    printed = run(DRIVER, store, state, client.scheduler.address, presses, BLOCK, limit=WALL)
    assert printed == {1: "True True\n", 2: "stopped False\n"}[presses]
    assert names_besides_checkpoints(state) == {"iteration"}
    soon(lambda: not tasks_known(client))
    fitted = fit(store, client, max_iter=8, checkpoint=state, resume=True)
    assert bits(fitted) == bits(fit(X, max_iter=8))


PRESSED = """
import sys, warnings
warnings.simplefilter("ignore")
import internals
from nmfscale.cluster.local import local_client
from small_fits import model
if __name__ == "__main__":
    internals.small_blocks(internals.FOR_GOOD, int(sys.argv[2]))
    with local_client(2) as client:
        fitted = model(max_iter=400, callback=lambda record: print("on", flush=True))
        fitted.fit(sys.argv[1], client=client)
        print("end", len(fitted.history_) < 400, flush=True)
"""


@pytest.mark.nightly
def test_control_c_of_the_driver_and_its_workers(store, tmp_path):
    # a terminal sends it to every process; workers are started again from a file
    (tmp_path / "driver.py").write_text(PRESSED)
    known = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-P", tmp_path / "driver.py", store, BLOCK]
    with subprocess.Popen(
        [str(word) for word in words], env=known, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as driver:  # fmt: skip
        try:
            assert within(WALL, driver.stdout.readline) == "on\n"
            os.killpg(driver.pid, signal.SIGINT)
            *_, last = within(WALL, driver.stdout.readlines)
        finally:
            driver.kill()
    assert last == "end True\n"


# Threads --------------------------------------------------------------------------------------


def threads_of_kernels(client):
    """Return how many threads every worker has that Python does not know."""
    return list(client.run(tasks.native_threads).values())


@pytest.mark.nightly
@linux
@pytest.mark.parametrize("of_openmp", ["1", "64"])
def test_threads_are_those_asked_for(tmp_path, store, of_openmp):
    with cluster_of(2, env={"OMP_NUM_THREADS": of_openmp}) as other:
        assert set(other.run(os.getenv, "OMP_NUM_THREADS").values()) == {of_openmp}
        fit(store, other, n_threads=1)
        before = threads_of_kernels(other)
        fit(store, other, n_threads=3)
        assert threads_of_kernels(other) == [n + 2 for n in before]
