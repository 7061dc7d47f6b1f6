"""Fits on workers that are not alike: other versions of the package, other processors."""

import cluster_tasks as tasks
import internals
import pytest
from clusters import fit
from small_fits import X, bits

from nmfscale import kernels
from nmfscale.cluster.tasks import NoWorkersError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def change(client):
    """Change something in worker processes, until the test is over."""

    def on(addresses, change, *args):
        client.run(tasks.change, change, *args, workers=addresses)

    yield on
    client.run(tasks.undo_changes)


def addresses(client):
    return list(client.scheduler_info(-1)["workers"])


def test_a_worker_has_another_version(client, store, change):
    old = addresses(client)[:1]
    change(old, internals.package_version, "0.0.1")
    with pytest.warns(UserWarning, match=f"a worker is left out: {old[0]}.*has nmfscale 0.0.1"):
        fitted = fit(store, client, max_iter=4)
    assert bits(fitted) == bits(fit(X, max_iter=4))


def test_workers_are_asked_again_when_those_that_answer_cannot_take_part(
    client, store, change, monkeypatch
):
    asked = []

    def others_late(each, pool, *args, **options):
        asked.append(each(pool, *args, **options))
        late = {worker: TimeoutError("no answer") for worker in asked[0] if worker != old[0]}
        return asked[-1] | (late if len(asked) == 1 else {})

    old = addresses(client)[:1]
    change(old, internals.package_version, "0.0.1")
    internals.around_each(monkeypatch, others_late)
    with pytest.warns(UserWarning, match=f"a worker is left out: {old[0]}.*has nmfscale 0.0.1"):
        fitted = fit(store, client, max_iter=4)
    assert bits(fitted) == bits(fit(X, max_iter=4)) and len(asked) > 1


@pytest.mark.nightly
def test_a_worker_has_another_version_later(client, store, change):
    old = addresses(client)[:1]
    actions = {2: lambda: change(old, internals.package_version, "0.0.1", ["worker"])}
    with pytest.warns(UserWarning, match=f"worker {old[0]} is left out: nmfscale 0.0.1 here"):
        fitted = fit(store, client, actions, max_iter=5)
    assert bits(fitted) == bits(fit(X, max_iter=5))


def test_all_workers_have_another_version(client, store, change):
    change(addresses(client), internals.package_version, "0.0.1", ["workers"])
    with pytest.raises(NoWorkersError, match=r"has nmfscale 0\.0\.1, and this is"):
        fit(store, client)


def test_a_worker_is_another_machine(client, store, change):
    other = addresses(client)[:1]
    change(other, tasks.machine, "vax")
    with pytest.warns(UserWarning, match=f"a worker is left out: {other[0]}.*of type vax"):
        fitted = fit(store, client, max_iter=4)
    assert bits(fitted) == bits(fit(X, max_iter=4))


@pytest.mark.nightly
def test_a_worker_is_another_machine_later(client, store, change):
    other = addresses(client)[:1]
    actions = {2: lambda: change(other, tasks.machine, "vax")}
    with pytest.warns(UserWarning, match=f"worker {other[0]} is left out: a machine of type vax"):
        fitted = fit(store, client, actions, max_iter=5)
    assert bits(fitted) == bits(fit(X, max_iter=5))


def test_all_workers_are_other_machines(client, store, change):
    change(addresses(client), tasks.machine, "vax")
    with pytest.raises(NoWorkersError, match=r"of type vax, and this of \w+"):
        fit(store, client)


@pytest.fixture
def at_baseline():
    if len(kernels.available_levels()) == 1:
        pytest.skip("this processor has one level only")
    before = kernels.level()
    kernels.use_level("baseline")
    yield lambda: kernels.use_level(before)
    kernels.use_level(before)


@pytest.mark.nightly
def test_a_worker_has_fewer_instructions(client, store, change, tmp_path, at_baseline):
    expected = bits(fit(X))
    at_baseline()
    assert bits(fit(X)) != expected
    change(addresses(client)[:1], internals.available_levels, ["baseline"])
    state, levels = tmp_path / "state", []

    def look():
        levels.extend(client.run(tasks.level).values())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(store, client, {5: look}, checkpoint=state, checkpoint_every=0)
    assert levels == ["baseline"] * 3
    assert kernels.level() != "baseline"
    assert bits(fit(X, checkpoint=state, resume=True)) == expected
    assert bits(fit(store, client)) == expected


@pytest.mark.nightly
def test_what_a_worker_was_told_of_instructions_is_not_what_it_has(client, store):
    client.run(kernels.use_level, "baseline", workers=addresses(client)[:1])
    seen = []
    fitted = fit(store, client, {2: lambda: seen.extend(client.run(tasks.level).values())},
                 max_iter=3)  # fmt: skip
    assert bits(fitted) == bits(fit(X, max_iter=3))
    assert {level == "baseline" for level in seen} == {kernels.level() == "baseline"}
