"""What may happen to the process of a fit: killed, interrupted, told wrong numbers of threads."""

import ast
import hashlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import h5py
import internals
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad
from night import at_night
from small_fits import SMALL_BLOCK, X, bits, model, open_files, run

import nmfscale
from nmfscale import kernels
from nmfscale.cli import main
from nmfscale.readers.open import as_counts
from nmfscale.storage.store_blocks import DamagedStoreError
from nmfscale.storage.store_writer import pack

ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def read_anew(monkeypatch):
    """Counts are read from their file in every iteration."""
    internals.read_anew(monkeypatch)


# The process ends -----------------------------------------------------------------------------

# Trials are forked from a process that has imported everything and computed nothing.
KILLED = """
import hashlib, os, random, signal, sys, time
from pathlib import Path
import h5py, psutil, sklearn, nmfscale.models
import internals
from small_fits import SMALL_BLOCK, X, bits, model
internals.small_blocks(internals.FOR_GOOD, SMALL_BLOCK)

def begin(state, end, source, n_threads):
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        signal.alarm(60)
        saving = {"checkpoint": state, "checkpoint_every": 0, "resume": True}
        fitted = model(max_iter=16, n_threads=n_threads).fit(source, **saving)
        end.write_bytes(hashlib.sha256(bits(fitted)).digest())
        code = 0
    finally:
        os._exit(code)

def finish(state, end, *how):
    assert os.waitpid(begin(state, end, *how), 0)[1] == 0
    return end.read_bytes()

store, folder, trials = sys.argv[1], Path(sys.argv[2]), 25
begun = time.monotonic()
expected = finish(folder / "undisturbed", folder / "end", store, 1)
took = time.monotonic() - begun
chance, kills, saved = random.Random(trials), 0, 0
for trial in range(trials):
    state, in_memory = folder / str(trial), trial % 5 == 4
    how = (X, 2) if in_memory else (store, 1)
    for again in range(1 + in_memory):
        process = begin(state, folder / "end", *how)
        while trial % 3 == 0 and not list(state.glob("checkpoint-*")):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, took / (1 + again)) if trial else 0)
        os.kill(process, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(process, 0)[1])
        for path in state.glob("checkpoint-*"):
            with h5py.File(path) as file:
                assert file.attrs["complete"] == 1
                saved += 1
    assert finish(state, folder / "end", *how) == expected
    assert all(path.name.startswith("checkpoint-") for path in state.iterdir())
print(kills, saved)
"""


@pytest.mark.nightly
def test_driver_killed_at_random_points(tmp_path, store):
    kills, saved = map(int, run(KILLED, store, tmp_path, limit=300).split())
    assert kills >= 10 and saved


@linux
@pytest.mark.parametrize("where", ["iteration", "checkpoint"])
def test_keyboard_interrupt(tmp_path, store, monkeypatch, read_anew, where):
    expected = bits(model().fit(store))
    before, handler = open_files(), signal.getsignal(signal.SIGINT)
    synced, sync = [], os.fsync

    def press(record):
        if record["iteration"] == 6 and where == "iteration":
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    def press_and_sync(file):
        synced.append(file)
        if len(synced) == 12 and where == "checkpoint":
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        sync(file)

    fitted = model(callback=press)
    monkeypatch.setattr(os, "fsync", press_and_sync)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(store, checkpoint=tmp_path / "state", checkpoint_every=0)
    monkeypatch.undo()
    assert not hasattr(fitted, "components_")
    assert open_files() == before and signal.getsignal(signal.SIGINT) is handler
    left = os.listdir(tmp_path / "state")
    assert left and all(name.startswith("checkpoint-") for name in left)
    with h5py.File(store, "r+"):  # nobody holds it
        pass
    internals.small_blocks(monkeypatch, SMALL_BLOCK)
    assert bits(model().fit(X, checkpoint=tmp_path / "state", resume=True)) == expected


PRESSED = """
import os, signal, sys, threading, numpy as np
from pathlib import Path
from nmfscale.storage.atomic import atomic_hdf5
target, seen = Path(sys.argv[1]), 0
for trial in range(40):
    press = threading.Timer(0.001 * trial, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with atomic_hdf5(target) as (file, check):
            press.start()
            for at in range(10_000):
                file.create_dataset(str(at), data=np.ones(2000))
                check()
    except KeyboardInterrupt:
        seen += 1
    assert not target.exists() and not os.listdir(target.parent)
print(seen)
"""


def test_keyboard_interrupt_while_a_file_is_written(tmp_path):
    assert run(PRESSED, tmp_path / "file.h5") == "40\n"


def test_clock_that_jumps(tmp_path, monkeypatch, store):
    expected = bits(model().fit(X))
    clock = iter(np.resize([4e9, 0.0, 1e9], 10**6))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    folder = tmp_path / "state"
    assert bits(model().fit(store, checkpoint=folder, checkpoint_every=3600)) == expected
    assert len(os.listdir(folder)) == 0


# Threads --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_number_of_threads_from_a_store(store, read_anew, dtype):
    found = {bits(model(n_threads=n, dtype=dtype).fit(store)) for n in (1, 2, 4, 8)}
    assert found == {bits(model(dtype=dtype).fit(X))}


THREADS = """
import os, sys
from small_fits import X, model
seen = []
count = lambda record: seen.append(len(os.listdir("/proc/self/task")))
count(None)
model(max_iter=5, n_threads=int(sys.argv[1]), callback=count).fit(X)
print(*[now - seen[0] for now in seen[1:]])
"""


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_openmp", "n_threads"),
    [(None, 1), ("64", 3), *at_night(("1", 1), ("1", 3), (None, 3), ("64", 1))],
)
def test_threads_are_those_asked_for(of_openmp, n_threads):
    if not kernels.build_flags()["openmp"]:
        pytest.skip("built without OpenMP")
    more = run(THREADS, n_threads, OMP_NUM_THREADS=of_openmp).split()
    assert set(more) == {str(n_threads - 1)}


# A long fit -----------------------------------------------------------------------------------

LONG = """
import json, os, sys, psutil
from small_fits import SMALL_BLOCK, X, model, open_files
import internals
internals.small_blocks(internals.FOR_GOOD, SMALL_BLOCK)
internals.read_anew(internals.FOR_GOOD, sys.argv[2])
process, seen = psutil.Process(), []
def look(record):
    files = sum(len(found) for _, _, found in os.walk(sys.argv[2]))
    seen.append((process.memory_info().rss, len(open_files()), files))
model(max_iter=400, callback=look).fit(
    sys.argv[1], checkpoint=sys.argv[2] + "/state", checkpoint_every=0
)
print(json.dumps(seen))
"""


@linux
@pytest.mark.nightly
def test_no_slow_leak(tmp_path, store):
    (tmp_path / "scratch").mkdir()
    seen = np.array(json.loads(run(LONG, store, tmp_path / "scratch", limit=300)))
    settled = seen[100:-10]
    grown = settled[-100:, 0].mean() - settled[:100, 0].mean()
    assert grown < 190 * 20_000
    assert np.ptp(settled[:, 1]) == 0
    assert settled[:, 2].max() <= 3  # two checkpoints, and the lock of the folder
    assert len(os.listdir(tmp_path / "scratch" / "state")) == 2


# Inputs that change, or are no counts -----------------------------------------------------------


def test_inputs_are_never_written_to(tmp_path, store):
    files = [store, write_h5ad(tmp_path / "a.h5ad", sp.csr_array(X))]
    sp.save_npz(tmp_path / "a.npz", sp.csr_array(X))
    files.append(tmp_path / "a.npz")
    negative = X.copy()
    negative[-1, -1] = -1
    files.append(write_h5ad(tmp_path / "bad.h5ad", sp.csr_array(negative)))
    fitted = model(max_iter=3).fit(X)
    fitted.save(tmp_path / "model.h5")
    files.append(tmp_path / "model.h5")

    def digests():
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]

    def stop(record):
        raise StopAsyncIteration

    def attempt(use):
        try:
            use()
        except (ValueError, OSError, StopAsyncIteration):
            return 1
        return 0

    before, refused = digests(), 0
    for path in files:
        uses = [
            lambda path=path: model(max_iter=3).fit(path),
            lambda path=path: model(max_iter=3, memory_limit="100GB").fit(path),
            lambda path=path: model(max_iter=3, memory_limit=1).fit(path),
            lambda path=path: model(callback=stop).fit(path),
            lambda path=path: fitted.transform(path),
            lambda path=path: fitted.score(path),
            lambda path=path: nmfscale.load(path),
            lambda path=path: pack(nmfscale.read_counts(path), tmp_path / "packed.nmf"),
            lambda path=path: pack(as_counts(X), path) if path is not store else None,
        ]
        refused += sum(attempt(use) for use in uses)
        out = ["-o", str(tmp_path / "out.npz"), "--force"]
        for words in (["info"], ["fit", "-k", "2", "-o", str(path)], ["transform", *out]):
            main([words[0], *[str(files[-1])] * (words[0] == "transform"), str(path), *words[1:]])
    assert digests() == before
    assert 10 < refused < 9 * len(files)


@pytest.mark.parametrize("change", ["replaced", "appended to", "rewritten"])
@pytest.mark.parametrize("kind", ["store", "h5ad"])
def test_input_that_changes_during_a_fit(tmp_path, store, read_anew, kind, change):
    path = store
    if kind == "h5ad":
        path = write_h5ad(tmp_path / "counts.h5ad", sp.csr_array(X))
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / path.name
    if kind == "store":
        pack(as_counts(X[::-1]), other)
    else:
        write_h5ad(other, sp.csr_array(X[::-1]))
    seen = []

    def meddle(record):
        seen.append(record)
        if len(seen) == 3 and change == "replaced":
            os.replace(other, path)
        elif len(seen) == 3:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= change == "rewritten"
            path.write_bytes(content + b"x" * (change != "rewritten"))

    with pytest.raises((DamagedStoreError, ValueError), match=f"{path.name} was changed"):
        model(callback=meddle, memory_limit="100GB").fit(path)
    assert len(seen) == 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("place", ["memory", "h5ad", "streamed", "npz"])
def test_no_iteration_begins_with_what_is_no_count(tmp_path, place, value):
    matrix = sp.csr_array(X.astype(float))
    matrix.data[-1] = value
    row, column = 89, matrix.indices[-1]
    source, options = matrix, {}
    if place == "npz":
        source = tmp_path / "a.npz"
        sp.save_npz(source, matrix)
    elif place != "memory":
        source = write_h5ad(tmp_path / "a.h5ad", matrix)
        options = {"memory_limit": "100GB"} if place == "streamed" else {}
    seen = []
    with pytest.raises(
        ValueError, match=rf"row {row}\b.*column {column}\b.*holds {value}"
    ) as caught:
        model(callback=seen.append, **options).fit(source)
    assert not seen
    assert place == "memory" or source.name in str(caught.value)


@pytest.mark.parametrize(
    "largest", [2**53, *(pytest.param(n, marks=pytest.mark.slow) for n in (2**24 + 1, 2**31))]
)
def test_huge_counts_are_exact_everywhere(tmp_path, read_anew, largest):
    counts = X.copy()
    counts[3] = counts[:, 4] = 0
    counts[3, 4] = largest
    pack(as_counts(counts), tmp_path / "counts.nmf")
    write_h5ad(tmp_path / "counts.h5ad", sp.csr_array(counts))
    expected = model().fit(counts)
    assert np.isfinite(expected.components_).all() and np.isfinite(expected.loglik_)
    for name in ("counts.nmf", "counts.h5ad"):
        table = as_counts(tmp_path / name, in_memory=False)
        assert table.row_totals[3] == table.column_totals[4] == table.largest == largest
        assert bits(model(memory_limit="100GB").fit(tmp_path / name)) == bits(expected)


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (4, 50), (40, 3)])
@pytest.mark.parametrize("most", [0, 3])
def test_extreme_shapes_from_a_store(tmp_path, read_anew, shape, most):
    counts = np.random.default_rng(0).integers(0, most + 1, shape)
    pack(as_counts(counts), tmp_path / "counts.nmf")
    for n_components in (1, 5):
        one, other = (model(n_components).fit(c) for c in (counts, tmp_path / "counts.nmf"))
        assert bits(one) == bits(other)
        assert np.isfinite(one.components_).all() and np.isfinite(one.loadings_).all()
        assert not one.loadings_[counts.sum(axis=1) == 0].any()
        assert not one.components_[:, counts.sum(axis=0) == 0].any()


# What is known to be promised -------------------------------------------------------------------


def lanes(node):
    """Return the marks "slow" and "nightly" of a test, or of the file it is in, as a whole."""
    marks = getattr(node, "decorator_list", [])
    if isinstance(node, ast.Module):
        lines = [each for each in node.body if isinstance(each, ast.Assign)]
        values = [line.value for line in lines if ast.unparse(line.targets[0]) == "pytestmark"]
        marks = [mark for value in values for mark in getattr(value, "elts", [value])]
    return {ast.unparse(mark).removeprefix("pytest.mark.") for mark in marks} & {"slow", "nightly"}


def test_every_promise_names_a_test():
    text = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
    named = re.findall(r"(?:\*(slow|nightly)\* )?`(tests/[\w/]+\.py)::(\w+)(?:::(\w+))?`", text)
    assert len(named) > 20
    rows = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert rows == [str(number) for number in range(1, len(rows) + 1)]
    files = {file for _, file, *_ in named}
    trees = {file: ast.parse((ROOT / file).read_text(encoding="utf-8")) for file in files}
    for said, file, *names in named:
        tree = trees[file]
        marks = lanes(tree)
        for name in filter(None, names):
            found = [node for node in tree.body if getattr(node, "name", None) == name]
            assert found, f"{file} has no {name}"
            tree = found[0]
            marks |= lanes(tree)
        lane = "nightly" if "nightly" in marks else "slow" if marks else ""
        assert lane == said, f"{file}::{names[0]} is {lane or 'quick'}"
