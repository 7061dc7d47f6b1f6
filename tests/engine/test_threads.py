"""How many threads are used: what is asked for, what the system allows."""

import os
import re
import subprocess
import sys
import threading

import internals
import numpy as np
import pytest
from night import at_night
from threadpoolctl import threadpool_info, threadpool_limits

from nmfscale import LDA, PoissonNMF, TopicModel, kernels
from nmfscale.engine import threads
from nmfscale.engine.threads import available_processors, resolve_threads, single_blas_thread


@pytest.fixture(autouse=True)
def _unset_variable(monkeypatch):
    monkeypatch.delenv("NMFSCALE_NUM_THREADS", raising=False)


def _set_processors(monkeypatch, count):
    internals.processors(monkeypatch, count)


def test_none_means_available_processors(monkeypatch):
    _set_processors(monkeypatch, 7)
    assert resolve_threads(None) == resolve_threads() == 7


def test_the_environment_of_openmp_has_no_say(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _set_processors(monkeypatch, 7)
    assert resolve_threads(None) == 7


@pytest.mark.parametrize(("text", "expected"), [("3", 3), (" 3 ", 3), ("-1", 7), ("", 7)])
def test_variable_replaces_none(monkeypatch, text, expected):
    monkeypatch.setenv("NMFSCALE_NUM_THREADS", text)
    _set_processors(monkeypatch, 7)
    assert resolve_threads(None) == expected
    assert resolve_threads(2) == 2


@pytest.mark.parametrize(
    ("asked", "expected"), [(1, 1), (100, 100), (-1, 7), (-2, 6), (-100, 1), (np.int64(5), 5)]
)
def test_numbers_count_as_in_scikit_learn(monkeypatch, asked, expected):
    _set_processors(monkeypatch, 7)
    assert resolve_threads(asked) == expected


@pytest.mark.parametrize("asked", [0, True, False, 2.0, "2", np.nan, 4097, 10**12])
def test_other_values_are_refused_by_name(asked):
    with pytest.raises(ValueError, match=f"n_threads is {asked!r}"):
        resolve_threads(asked)


@pytest.mark.parametrize("text", ["0", "many", "1.5"])
def test_bad_variable_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("NMFSCALE_NUM_THREADS", text)
    with pytest.raises(ValueError, match="NMFSCALE_NUM_THREADS is '?" + text):
        resolve_threads(None)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity here")
def test_affinity_is_respected():
    bound = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(bound)})
        assert available_processors() == 1
    finally:
        os.sched_setaffinity(0, bound)


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, np.inf),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2.0),
        ("0::/of/the/host\n", {"cpu.max": "300000 100000\n"}, 3.0),
        (
            "4:cpu,cpuacct:/x\n3:memory:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "1e5"},
            0.5,
        ),
        (
            "4:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            np.inf,
        ),
        ("", {}, np.inf),
    ],
)
def test_quota_of_control_groups(tmp_path, membership, files, expected):
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "membership").write_text(membership)
    assert threads._group_quota(tmp_path / "groups", tmp_path / "membership") == expected


@pytest.mark.parametrize(("quota", "expected"), [(0.2, 1), (1.5, 2), (np.inf, 4)])
def test_quota_is_rounded_up_to_whole_processors(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4), raising=False)
    internals.processor_quota(monkeypatch, quota)
    assert available_processors() == expected


def test_blas_has_one_thread_until_the_last_one_leaves():
    np.ones((2, 2)) @ np.ones((2, 2))
    numbers = lambda: [library["num_threads"] for library in threadpool_info()]  # noqa: E731
    with threadpool_limits(2):
        before = numbers()
        assert 2 in before
        fits = [single_blas_thread(), single_blas_thread()]
        for fit in fits:
            fit.__enter__()
            assert set(numbers()) == {1}
        fits[0].__exit__(None, None, None)
        assert set(numbers()) == {1}
        fits[1].__exit__(None, None, None)
        assert numbers() == before


FORKED = """
import multiprocessing, sys, threading, numpy as np
from nmfscale import TopicModel
from nmfscale.engine.threads import resolve_threads
X = np.random.default_rng(0).poisson(1.0, (300, 200))

def fit(n_threads):
    model = TopicModel(4, random_state=0, max_iter=20, tol=0, n_threads=n_threads).fit(X)
    return resolve_threads(n_threads), model.components_.tobytes()

context = multiprocessing.get_context("fork")
if sys.argv[1] == "before":
    with context.Pool(1) as pool:
        assert pool.map(fit, [3])[0][0] == 3
expected = fit(3)
assert expected[0] == 3
others = threading.Thread(target=fit, args=(2,))
others.start()
with context.Pool(2) as pool:
    found = pool.map(fit, [3, None])
others.join()
assert found == [(1, expected[1])] * 2, found
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("when", ["after", *at_night("before")])
def test_a_forked_process_fits_alone(when):
    words = [sys.executable, "-P", "-W", "ignore", "-c", FORKED, when]
    subprocess.run(words, check=True, timeout=60)


def threads_woken_by(work):
    """How many threads of the system a new thread of Python needs for `work`."""
    found = []

    def count():
        before = set(os.listdir("/proc/self/task"))
        work()
        found.append(len(set(os.listdir("/proc/self/task")) - before))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    return found[0]


counts_threads = pytest.mark.skipif(
    sys.platform != "linux" or not kernels.build_flags()["openmp"],
    reason="counts the threads of OpenMP in /proc",
)


@counts_threads
@pytest.mark.parametrize(("n_rows", "expected"), [(16, 0), (640, 2)])
def test_no_thread_is_woken_for_a_single_slice(n_rows, expected):
    X = np.random.default_rng(0).poisson(3.0, (n_rows, 12))
    model = PoissonNMF(2, n_threads=3, init="random", random_state=0, max_iter=5, tol=0)
    assert threads_woken_by(lambda: model.fit(X).transform(X)) == expected


@counts_threads
@pytest.mark.parametrize("model", [TopicModel, LDA])
@pytest.mark.parametrize(
    ("n_rows", "variable", "expected"), [(1600, "", 0), (1700, "", 2), (160, "3", 2)]
)
def test_small_work_is_done_by_one_thread(monkeypatch, model, n_rows, variable, expected):
    """A million counts times components is 1,667 rows here."""
    _set_processors(monkeypatch, 3)
    monkeypatch.setenv("NMFSCALE_NUM_THREADS", variable)
    X = np.ones((n_rows, 300), np.uint8)
    one = model(2, random_state=0, init="random", max_iter=1, tol=0)
    assert threads_woken_by(lambda: one.fit(X)) == expected
    assert threads_woken_by(lambda: one.transform(X)) == expected


@pytest.mark.skipif(
    sys.platform != "linux" or not kernels.build_flags()["openmp"],
    reason="knows the settings of GCC's OpenMP",
)
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1_000),
        ({"GOMP_SPINCOUNT": "777"}, 777),
        ({"OMP_WAIT_POLICY": "passive"}, 0),
    ],
)
def test_threads_wait_briefly_unless_told_otherwise(settings, expected):
    ours = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import nmfscale.kernels"],
        env=kept | {"OMP_DISPLAY_ENV": "verbose"} | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert set(map(int, found)) == {expected}
