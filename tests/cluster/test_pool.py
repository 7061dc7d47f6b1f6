"""Tasks on a cluster whose workers die, stall, or cannot do what they should."""

import os
import signal
import threading
import time
from itertools import count
from types import SimpleNamespace
from unittest.mock import MagicMock

import cluster_tasks as tasks
import internals
import numpy as np
import pytest
from clusters import UNNOTICED, WALL, cluster_of, meanwhile, scheduler_to_kill, within

from nmfscale.cluster.batch import Attempt, TaskBatch
from nmfscale.cluster.pool import WorkerPool
from nmfscale.cluster.tasks import (
    BlockFailedError,
    NoWorkersError,
    RetryPolicy,
    SchedulerLostError,
    Task,
)

# Dask's own warnings about workers that we kill are not ours
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SENT = {"ones": np.ones(3), "twos": np.full(4, 2.0)}


def kill(mark):
    """Kill the process whose number is in a file."""
    os.kill(int(mark.read_text()), signal.SIGKILL)


def pool(client, **retry):
    return WorkerPool(client, SENT.__getitem__, RetryPolicy(**retry), "Resume from the checkpoint.")


def make_tasks(*args_of_each, sends=()):
    return [
        Task(f"rows {i}", args if isinstance(args, tuple) else (args,), i, sends)
        for i, args in enumerate(args_of_each)
    ]


def run(pool, function, all_tasks, seconds=WALL, **options):
    return within(seconds, lambda: pool.run("test", function, all_tasks, **options))


def test_answers_come_in_order(client):
    numbers = list(range(20))
    assert run(pool(client), tasks.twice, make_tasks(*numbers)) == [2 * n for n in numbers]


def test_what_is_sent_arrives(client):
    assert run(pool(client), tasks.twice, make_tasks(0, 1, sends=("ones", "twos"))) == [11.0, 13.0]


def test_what_a_task_misses_is_sent_after_all(client):
    assert run(pool(client), tasks.needs, make_tasks("ones", "twos")) == [3.0, 8.0]


def test_an_answer_is_lost_before_it_is_fetched_and_its_task_misses_something(
    client, tmp_path, monkeypatch
):
    mark = tmp_path / "mark"

    def kill_and_take(take, batch, attempt):
        monkeypatch.undo()
        assert attempt.future.status == "finished"
        kill(mark)
        take(batch, attempt)

    internals.around_take(monkeypatch, kill_and_take)
    assert run(pool(client), tasks.remembers, make_tasks((mark, "ones"))) == [3.0]


@pytest.mark.parametrize("n_tasks", [1, 3, 4, 5, 16, 18])
def test_a_tree_adds_everything(client, n_tasks):
    mine = pool(client)
    found = within(
        WALL, lambda: mine.reduce("sums", tasks.twice, make_tasks(*range(n_tasks)), tasks.add, 4)
    )
    assert found == n_tasks * (n_tasks - 1)


@pytest.mark.parametrize("kind", ["os", "kill"])
def test_a_tree_with_tasks_that_fail_once(client, tmp_path, kind):
    mine, all_tasks = pool(client), make_tasks(*((n, str(tmp_path), kind) for n in range(6)))
    found = within(WALL, lambda: mine.reduce("sums", tasks.fail_once, all_tasks, tasks.add, 4))
    assert found == 15


def test_a_tree_that_cannot_be_made_says_why(client):
    all_tasks = [Task("rows 1", ("value", n), n) for n in range(6)]
    with pytest.raises(ValueError, match="number"):
        within(WALL, lambda: pool(client).reduce("sums", tasks.always, all_tasks, tasks.add, 4))


def test_workers_that_the_client_cannot_reach(client, monkeypatch):
    gather, mine = client.gather, pool(client)

    def by_the_scheduler(futures, direct=None, **options):
        if direct:
            raise OSError("no route to host")
        return gather(futures, **options)

    monkeypatch.setattr(client, "gather", by_the_scheduler)
    for _ in range(2):
        assert run(mine, tasks.twice, make_tasks(*range(9))) == [2 * n for n in range(9)]


def test_tasks_stay_on_their_workers(client):
    mine = pool(client)
    numbers = range(9)
    run(mine, tasks.twice, make_tasks(*numbers))
    first = mine.placement(numbers)
    run(mine, tasks.twice, make_tasks(*numbers))
    kept = sum(mine.placement(numbers)[n] == first[n] for n in numbers)
    assert kept >= 6
    assert sorted(list(first.values()).count(w) for w in set(first.values())) == [3, 3, 3]


def test_what_failed_once_is_tried_again(client, tmp_path):
    numbers = range(6)
    found = run(
        pool(client), tasks.fail_once, make_tasks(*((n, str(tmp_path), "os") for n in numbers))
    )
    assert found == list(numbers)


def test_a_task_that_kills_its_worker_is_named_and_others_are_not(client, monkeypatch):
    # users' clusters try 20 times before they say so
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 2)
    with pytest.raises(
        BlockFailedError, match="rows 2 failed 3 times.*(Killed|WorkerDied).*checkpoint"
    ):
        run(pool(client), tasks.abort_at, make_tasks(*((n, 2) for n in range(6))))


def test_a_death_counts_while_a_copy_of_the_task_runs():
    """Else a task that kills its workers is copied and tried again for ever."""
    futures = [SimpleNamespace(key=f"key {n}", status="pending") for n in range(2)]
    here = SimpleNamespace(
        retry=RetryPolicy(), hint="", run_name="run", batch_numbers=count(1),
        workers=lambda: {"alive": 1}, busy=lambda: {}, holders=lambda keys: {},
        client=MagicMock(),
    )  # fmt: skip
    batch = TaskBatch(here, "name", None, make_tasks((0, 0)), keep=False, even=True)
    for future, worker in zip(futures, ("dead", "alive"), strict=True):
        batch.running[future.key] = Attempt(0, future, [worker])
    batch.resubmit_lost()
    assert batch.failures == {0: 1} and list(batch.running) == ["key 1"]


@pytest.mark.parametrize("error", ["os", "memory"])
def test_an_error_that_stays_is_named(client, error):
    with pytest.raises(BlockFailedError, match=r"rows 1 failed 3 times.*number 1"):
        run(pool(client), tasks.always, [Task("rows 1", (error, 1), 0)])


def test_errors_of_the_data_are_raised_at_once(client):
    with pytest.raises(ValueError, match="number 0"):
        run(pool(client), tasks.always, [Task("rows 0", ("value", 0), 0)])


@pytest.mark.nightly
def test_a_worker_ten_times_slower_makes_a_batch_less_than_three_times_slower(client, tmp_path):
    mine, seconds = pool(client), []
    for numbers in (range(1, 13), range(12)):  # the worker that takes 0 is slow
        begin = time.monotonic()
        args = ((tmp_path, number, 0.5, 5) for number in numbers)
        assert run(mine, tasks.slow_at, make_tasks(*args)) == list(numbers)
        seconds.append(time.monotonic() - begin)
    assert seconds[1] < 3 * seconds[0]
    kill(tmp_path / "slow")


def test_a_task_of_a_stopped_worker_is_done_elsewhere(client, tmp_path):
    mine = pool(client, late=0.3)
    run(mine, tasks.twice, make_tasks(*range(6)))
    mine.seconds["nmfscale-test"].extend([0.05] * 20)
    begin = time.monotonic()
    assert run(mine, tasks.fail_once, make_tasks((0, str(tmp_path), "stop"))) == [0]
    assert time.monotonic() - begin < UNNOTICED
    kill(tmp_path / "stop-0")


def test_without_any_answer_tasks_are_given_up(client):
    mine = pool(client, task=0.5, attempts=2)
    with pytest.raises(BlockFailedError, match="TimeoutError: no answer"):
        run(mine, tasks.sleep, make_tasks(3.0))


def test_workers_that_cannot_take_part_are_excluded(client, tmp_path):
    mine = pool(client)
    found = run(mine, tasks.unfit_at, make_tasks(*((str(tmp_path), n) for n in range(6))))
    assert found == list(range(6)) and len(mine.excluded) == 1 and len(mine.workers()) == 2


def test_every_worker_is_asked(client):
    mine = pool(client)
    bad = next(iter(mine.workers()))
    found = within(WALL, lambda: mine.each(tasks.fail_at_worker, bad))
    assert isinstance(found.pop(bad), ImportError)
    assert found == {worker: worker for worker in found} and len(found) == 2


def test_data_that_are_lost_again_and_again_are_no_failures_of_tasks(client):
    """As when workers are killed more often than tasks may fail."""
    mine, n_lost = pool(client), 0

    def lose():
        nonlocal n_lost
        if n_lost < 4:
            n_lost += 1
            client.cancel([mine.sent("ones", [])], force=True)

    all_tasks = make_tasks(*(0.5 for _ in range(6)), sends=("ones",))
    with meanwhile(lose, 0.3):
        assert run(mine, tasks.sleep, all_tasks) == [0.5] * 6
    assert n_lost >= 3


def test_lost_data_are_sent_again(client):
    mine = pool(client)
    run(mine, tasks.twice, make_tasks(0, sends=("ones",)))
    client.cancel([mine.sent("ones", [])], force=True)
    assert run(mine, tasks.twice, make_tasks(1, 2, sends=("ones",))) == [5.0, 7.0]


def test_no_worker_comes():
    with cluster_of(0) as client:
        with pytest.raises(NoWorkersError, match="no worker for 0.6 s. Resume from the checkpoint"):
            run(pool(client, workers=0.6), tasks.twice, make_tasks(0))


def test_workers_may_come_late():
    with cluster_of(0) as client:
        thread = threading.Timer(1.0, lambda: client.cluster.scale(1))
        thread.start()
        assert run(pool(client), tasks.twice, make_tasks(1, 2)) == [2, 4]
        thread.join()


def test_the_scheduler_dies():
    with scheduler_to_kill() as (process, client):
        threading.Timer(1.0, process.kill).start()
        with pytest.raises(SchedulerLostError, match="Resume from the checkpoint"):
            run(pool(client), tasks.sleep, make_tasks(*[0.5] * 20))
