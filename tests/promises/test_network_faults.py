"""Fits on several hosts: links that break, stall and lose, and hosts that see other files."""

import os
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import internals
import pytest
from network import UNAWARE, Meanwhile, alone, network, soon
from small_fits import LONG_X, SMALL_BLOCK, bits, model

from nmfscale.engine import remote as remote
from nmfscale.readers.open import as_counts
from nmfscale.storage.store_writer import pack

pytestmark = pytest.mark.nightly

WALL = 300
ITERATIONS = 12
# Seconds that an iteration may take in which a worker is lost: less than the 12 and 15 after which
# Dask gives up connections and workers; where it would do so only much later, the first and ten.
SOON, RECOVERED = 10, 12 + 10
# Seconds after which Dask has given up a worker that is cut off: it looks every 15 s.
GIVEN_UP = 32


def sent(client):
    """Return how many factors and loadings workers hold that were sent to them."""
    return sum(key.startswith("dict-") for key in client.who_has())


class Trial:
    """Counts in a store of many blocks, the bits of a fit in memory, and fits to compare."""

    def __init__(self, folder):
        self.folder = folder / "data"
        self.folder.mkdir()
        self.hide, self.show = f"mount -t tmpfs none {self.folder}", f"umount -l {self.folder}"
        internals.small_blocks(internals.FOR_GOOD, 40 * SMALL_BLOCK)
        self.store = self.folder / "counts.nmf"
        pack(as_counts(LONG_X), self.store)
        self.expected = bits(model(max_iter=ITERATIONS).fit(str(self.store)))

    def fit(self, client, happen=lambda: None):
        """Fit while something happens; return the seconds of the longest iteration since."""
        meanwhile = Meanwhile(happen)
        fitted = model(max_iter=ITERATIONS, callback=meanwhile).fit(
            str(self.store), client=client, checkpoint=self.folder / "run", checkpoint_every=0
        )
        assert bits(fitted) == self.expected, "other bits"
        assert not list(self.folder.glob("run/.nmfscale-*")), "files were left behind"
        shutil.rmtree(self.folder / "run")
        print(f"longest iteration: {meanwhile.longest:.1f} s")
        return meanwhile.longest

    def recovered(self, hosts, client):
        """Wait until every host has a worker that takes part."""

        def all_here():
            pids = client.run(os.getpid, on_error="ignore").values()
            return set(pids) == {host.pid for host in hosts}

        soon(all_here)


@contextmanager
def hidden(trial, *hosts):
    """Keep hosts from seeing the store and the folder of the fit."""
    for host in hosts:
        host.mount(trial.hide)
    yield
    for host in hosts:
        assert host.lists(trial.folder) == []
        host.mount(trial.show)


@alone(WALL, **UNAWARE)
def test_workers_that_are_stopped_or_cut_off(tmp_path):
    """No iteration takes as long as Dask needs to notice."""
    trial = Trial(tmp_path)
    with network(tmp_path) as (hosts, client):
        # for two seconds, and until the end of the fit
        for seconds, host in ((2, hosts[1]), (None, hosts[0])):

            def stop(host=host, seconds=seconds):
                host.signal(signal.SIGSTOP)
                if seconds:
                    time.sleep(seconds)
                    host.signal(signal.SIGCONT)

            assert trial.fit(client, stop) < RECOVERED
        hosts[0].signal(signal.SIGCONT)
        assert trial.fit(client, hosts[1].cut) < RECOVERED
        # with a host that is gone from the beginning
        trial.fit(client)


@alone(WALL, **UNAWARE)
def test_hosts_that_do_not_see_the_files(tmp_path):
    trial = Trial(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    # as long and as old, with other counts
    pack(as_counts(LONG_X[::-1]), other / "counts.nmf")
    when = trial.store.stat().st_mtime_ns
    with (other / "counts.nmf").open("ab") as file:
        file.truncate(trial.store.stat().st_size)
    os.utime(other / "counts.nmf", ns=(when, when))
    with network(tmp_path) as (hosts, client):
        # another file of the same name
        hosts[1].mount(f"mount --bind {other} {trial.folder}")
        assert hosts[1].lists(trial.folder) == ["counts.nmf"]
        trial.fit(client)
        hosts[1].mount(trial.show)
        # no files
        with hidden(trial, hosts[0], hosts[1]):
            trial.fit(client)
            assert trial.fit(client, hosts[0].kill) < RECOVERED
        trial.recovered(hosts, client)
        # few loadings are saved, and workers are killed
        with pytest.MonkeyPatch.context() as patch, hidden(trial, hosts[0]):
            internals.save_every(patch, 4)

            def kill_both():
                hosts[0].kill()
                time.sleep(1)
                hosts[1].kill()

            assert trial.fit(client, kill_both) < RECOVERED
        trial.recovered(hosts, client)
        # no files from the middle of a fit on
        assert trial.fit(client, lambda: hosts[1].mount(trial.hide)) < RECOVERED
        assert hosts[1].lists(trial.folder) == []


@alone(WALL)
def test_links_that_are_slow_lose_or_break(tmp_path):
    trial = Trial(tmp_path)
    with network(tmp_path, relayed=True) as (hosts, client):
        for links in (
            {1: {"delay": 0.05, "lost_to": 0.05, "lost_from": 0.05}},
            {0: {"lost_to": 0.2}, 1: {"lost_from": 0.2}},
            {1: {"rate": 1e6}},  # a tenth
        ):
            for number, options in links.items():
                hosts[number].link(**options)
            trial.fit(client)
            for number in links:
                hosts[number].link()
        trial.recovered(hosts, client)
        first = hosts[1].pid

        def cut_and_heal():
            """Let a task end behind a link that is down until Dask has given up the worker."""
            hosts[1].mark("hold").touch()
            soon(hosts[1].mark("held").exists)
            hosts[1].cut()
            hosts[1].mark("stale").touch()
            hosts[1].mark("go").touch()
            soon(hosts[1].mark("late").exists)
            assert Path(hosts[1].mark("late").read_text()).exists()
            time.sleep(GIVEN_UP)
            hosts[1].mark("stale").unlink()
            hosts[1].heal()

        assert trial.fit(client, cut_and_heal) < SOON
        # and takes part again
        soon(lambda: hosts[1].pid != first)
        trial.recovered(hosts, client)


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
