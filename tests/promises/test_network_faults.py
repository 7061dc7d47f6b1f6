"""Fits on several hosts: links that break, stall and lose, and hosts that see other files."""

import os
import shutil
import signal
import time
from pathlib import Path

import internals
import pytest
from network import UNAWARE, Meanwhile, alone, network, soon
from small_fits import LONG_X, SMALL_BLOCK, bits, model

from nmfscale.engine import remote as remote
from nmfscale.readers.open import as_counts
from nmfscale.storage.store_writer import pack

pytestmark = pytest.mark.slow

WALL = 200
ITERATIONS = 12
# Seconds that an iteration may take in which a worker is lost: less than the 12 and 15 after which
# Dask gives up connections and workers; where it would do so only much later, the first and ten.
SOON, RECOVERED = 10, 12 + 10


def sent(client):
    """Return how many factors and loadings workers hold that were sent to them."""
    return sum(key.startswith("dict-") for key in client.who_has())


class Trial:
    """Counts in a store of many blocks, the bits of a fit in memory, and fits to compare."""

    def __init__(self, folder):
        self.folder = folder / "data"
        self.folder.mkdir()
        self.hide = f"mount -t tmpfs none {self.folder}"
        internals.small_blocks(internals.FOR_GOOD, 40 * SMALL_BLOCK)
        self.store = self.folder / "counts.nmf"
        pack(as_counts(LONG_X), self.store)
        self.calm = bits(model(max_iter=ITERATIONS).fit(str(self.store)))

    def fit(self, client, happen=lambda: None):
        """Fit while something happens; return the seconds of the longest iteration since."""
        meanwhile = Meanwhile(happen)
        fitted = model(max_iter=ITERATIONS, callback=meanwhile).fit(
            str(self.store), client=client, checkpoint=self.folder / "run", checkpoint_every=0
        )
        assert bits(fitted) == self.calm, "other bits"
        assert not list(self.folder.glob("run/.nmfscale-*")), "files were left behind"
        shutil.rmtree(self.folder / "run")
        print(f"longest iteration: {meanwhile.longest:.1f} s")
        return meanwhile.longest


@alone(WALL, **UNAWARE)
def test_a_worker_is_stopped_and_goes_on_later(tmp_path):
    trial = Trial(tmp_path)
    with network(tmp_path) as (hosts, client):

        def stop():
            hosts[1].signal(signal.SIGSTOP)
            time.sleep(2)
            hosts[1].signal(signal.SIGCONT)

        assert trial.fit(client, lambda: hosts[0].signal(signal.SIGSTOP)) < RECOVERED
        assert trial.fit(client, stop) < RECOVERED


@alone(WALL)
def test_a_link_is_down_for_a_while(tmp_path):
    trial = Trial(tmp_path)
    with network(tmp_path) as (hosts, client):
        first = hosts[1].pid

        def down():
            hosts[1].cut()
            hosts[1].mark("stale").touch()
            time.sleep(30)
            hosts[1].mark("stale").unlink()
            hosts[1].heal()

        assert trial.fit(client, down) < SOON
        soon(lambda: hosts[1].pid != first)
        client.wait_for_workers(3, timeout=60)


@alone(WALL, **UNAWARE)
def test_a_link_is_cut_for_good(tmp_path):
    trial = Trial(tmp_path)
    with network(tmp_path) as (hosts, client):
        assert trial.fit(client, hosts[1].cut) < RECOVERED
        trial.fit(client)


def fits_over(tmp_path, links):
    """Fit over links, by host: seconds of delay, share lost to and from it, bytes a second."""
    trial = Trial(tmp_path)
    with network(tmp_path, links=links) as (_, client):
        trial.fit(client)


@alone(WALL)
def test_a_link_that_delays_and_loses(tmp_path):
    fits_over(tmp_path, {2: (0.05, 0.05, 0.05, 1e7)})


@alone(WALL)
def test_links_that_lose_one_way(tmp_path):
    fits_over(tmp_path, {1: (0.0, 0.2, 0.0, 1e7), 2: (0.0, 0.0, 0.2, 1e7)})


@alone(WALL)
def test_a_link_ten_times_slower(tmp_path):
    fast, slowly = (0.0, 0.0, 0.0, 1e7), (0.0, 0.0, 0.0, 1e6)
    fits_over(tmp_path, {1: fast, 2: slowly, 3: fast})


@alone(WALL)
def test_a_task_ends_behind_a_cut(tmp_path):
    trial = Trial(tmp_path)
    with network(tmp_path) as (hosts, client):

        def cut_and_heal():
            hosts[1].mark("hold").touch()
            soon(hosts[1].mark("held").exists)
            hosts[1].cut()
            hosts[1].mark("stale").touch()
            hosts[1].mark("go").touch()
            soon(hosts[1].mark("late").exists)
            assert Path(hosts[1].mark("late").read_text()).exists()
            time.sleep(16)
            hosts[1].mark("stale").unlink()
            hosts[1].heal()

        assert trial.fit(client, cut_and_heal) < SOON


@alone(WALL, **UNAWARE)
def test_hosts_that_do_not_see_the_files(tmp_path):
    trial = Trial(tmp_path)
    with network(tmp_path, mounts={1: trial.hide, 2: trial.hide}) as (hosts, client):
        trial.fit(client)
        assert hosts[0].lists(trial.folder) == []
        assert trial.fit(client, hosts[0].kill) < RECOVERED


@alone(WALL)
def test_a_host_that_sees_another_file_of_the_same_name(tmp_path):
    trial = Trial(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    # as long and as old, with other counts
    pack(as_counts(LONG_X[::-1]), other / "counts.nmf")
    when = trial.store.stat().st_mtime_ns
    with (other / "counts.nmf").open("ab") as file:
        file.truncate(trial.store.stat().st_size)
    os.utime(other / "counts.nmf", ns=(when, when))
    with network(tmp_path, 2, mounts={2: f"mount --bind {other} {trial.folder}"}) as (
        hosts,
        client,
    ):
        assert hosts[1].lists(trial.folder) == ["counts.nmf"]
        trial.fit(client)


@alone(WALL, **UNAWARE)
def test_a_host_that_loses_sight_of_the_files(tmp_path):
    trial = Trial(tmp_path)
    with network(tmp_path) as (hosts, client):
        assert trial.fit(client, lambda: hosts[1].mount(trial.hide)) < RECOVERED
        assert hosts[1].lists(trial.folder) == []


@alone(WALL, **UNAWARE)
def test_few_saved_loadings_and_workers_that_are_killed(tmp_path):
    trial = Trial(tmp_path)
    internals.save_every(internals.FOR_GOOD, 4)
    with network(tmp_path, mounts={1: trial.hide}) as (hosts, client):

        def kill_both():
            hosts[0].kill()
            time.sleep(1)
            hosts[1].kill()

        assert trial.fit(client, kill_both) < RECOVERED


# Without a network of its own ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sees", "every"),
    [((False, False), 1), ((False, False), 4), ((True, False), 1), ((False, True), 4)],
    ids=["nothing", "nothing, few saved", "store", "folder"],
)
def test_what_workers_do_not_see_is_sent_and_forgotten(client, store, monkeypatch, sees, every):
    internals.workers_see(monkeypatch, *sees)
    internals.save_every(monkeypatch, every)
    internals.keep_recent_factors(monkeypatch, 2)
    held = []
    fitted = model(max_iter=16, callback=lambda _: held.append(sent(client)))
    fitted.fit(store, client=client)
    assert max(held[8:]) <= max(held[:8]) + 1
    soon(lambda: not client.who_has())
    assert bits(fitted) == bits(model(max_iter=16).fit(store))
