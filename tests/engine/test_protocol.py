"""The rules of steps: the same results, and the same refusals, in this process and on a cluster."""

import internals
import numpy as np
import pytest
from clusters import WALL, cluster_of, within
from odd_steps import (
    Grows,
    Looks,
    MakesAndSums,
    MakesTwo,
    Odd,
    OfColumns,
    Puts,
    PutsAny,
    SaysSame,
    SharesWords,
)
from small_fits import X

import nmfscale
from nmfscale.engine.local import LocalExecutor
from nmfscale.engine.protocol import Needs
from nmfscale.engine.session import open_session
from nmfscale.readers.open import as_counts
from nmfscale.storage.store import StoredCounts

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def client():
    with cluster_of(2, active=False) as client:
        yield client


@pytest.fixture(params=[350, 10**6], ids=["several blocks", "one block"])
def executors(request, monkeypatch, tmp_path, client):
    """Executors of the same counts: in memory, from a file, on workers that see files or none."""
    internals.small_blocks(monkeypatch, request.param)
    nmfscale.write_store(X, tmp_path / "counts.nmf")
    stored, needs = StoredCounts(tmp_path / "counts.nmf"), Needs(row=0, shared=0, sums=0)
    assert (len(stored.layout().blocks) > 4) == (request.param == 350)
    with open_session(client, stored, needs, n_threads=1, save_every=10) as session:
        internals.workers_see(monkeypatch, False, False)
        with open_session(client, stored, needs, n_threads=1) as blind:
            assert session.config.folder and blind.config.folder is None is blind.config.store
            yield {
                "memory": LocalExecutor(as_counts(X).layout(1), 1),
                "store": LocalExecutor(stored.layout(), 2, str(tmp_path)),
                "cluster": session.executor(stored, 1),
                "cluster that sees no files": blind.executor(stored, 1),
            }


def bits(found):
    """Return all numbers in nested containers, with their types."""
    if isinstance(found, np.ndarray):
        return found.dtype.str, found.shape, found.tobytes()
    if isinstance(found, dict):
        return {name: bits(each) for name, each in found.items()}
    return (
        [bits(each) for each in found] if isinstance(found, list | tuple) else (found, type(found))
    )


def everywhere(executors, do):
    """Return what something done with an executor returns, or the error: the same everywhere."""

    def result(executor):
        try:
            return do(executor)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    found = {place: within(WALL, lambda e=e: result(e)) for place, e in executors.items()}
    first = found["memory"]
    assert {place: bits(each) for place, each in found.items()} == dict.fromkeys(found, bits(first))
    return first


def lanes_of(executor):
    return np.random.default_rng(0).normal(size=(len(executor.layout.row_order), 3))


def makes_and_sums(executor):
    """Use what a step made that also added to sums, when it is at hand and when it is not."""
    runs = []
    for _ in range(3):  # of which two are saved
        runs.append(executor.run(MakesAndSums(), Looks(("made",), name="made")))
        executor.put("given", lanes_of(executor)[:, 0].copy())
        executor.apply(Grows())  # made of it later
        runs.append(executor.run(Odd(n_sums=2), Looks()))
    return runs, executor.get("made"), executor.get("given")


def makes_two(executor):
    runs = executor.run(MakesAndSums(saves=("made",)), MakesTwo(saves=("twice",)))
    executor.drop("made")
    executor.apply(MakesTwo(("twice",), ("more", "even more"), (), (("even more", "more"),)))
    return runs, [executor.get(name) for name in ("twice", "again", "more", "even more")]


def says_same(executor):
    executor.put("given", lanes_of(executor))
    return executor.run(SaysSame()), executor.get("other")


def puts_any(executor):
    executor.run(PutsAny(), Odd(n_sums=1))
    return executor.get_blocks("any"), executor.get_blocks("nothing")


def of_blocks(executor):
    """Get in lane order what was put block by block."""
    parts = [lanes_of(executor)[b.first : b.last] for b in executor.layout.blocks]
    executor.put("given", parts)
    executor.copy("given", "same")
    executor.drop("given")
    return executor.get("same"), executor.get_blocks("given")


def of_columns(executor):
    """Use in columns what was put, and what a step made that is not saved."""
    step = OfColumns(1 + np.arange(float(len(executor.layout.column_order))))
    executor.put("given", lanes_of(executor)[:, 0].copy())
    found = [executor.run_columns(step)]
    executor.apply(Grows())
    return [*found, executor.run_columns(step)]


@pytest.mark.parametrize(
    "do", [makes_and_sums, makes_two, says_same, puts_any, of_blocks, of_columns]
)
def test_the_same_results_everywhere(executors, do):
    found = everywhere(executors, do)
    assert not isinstance(found, str), found
    if do is makes_and_sums:
        runs, (values, sums) = found[0], found[0][0][0]
        np.testing.assert_allclose(sums[0], X.sum() / np.arange(3, 6))
        np.testing.assert_allclose(values["total"], X.sum() / 7, rtol=1e-6)
        assert values["rows"] == len(X) and values["max_rows"] <= len(X)
        assert bits(runs[2]) == bits(runs[0])
    if do is says_same:
        assert (found[0][0].values["sum"] < 0) and (found[1] > 0).any()
    if do is of_blocks:
        assert found[1] is None
    if do is of_columns:
        assert (found[0]["names"] == 1).all()
        assert (found[1]["found"] != found[0]["found"]).any()


def too_few(executor):
    return OfColumns(np.ones(len(executor.layout.column_order)), n_less=1)


REFUSED = {
    "apply, sums": (
        lambda e: e.apply(MakesAndSums(reads=None)),
        "MakesAndSums adds to sums, which apply does not return: use run",
    ),
    "apply, counts": (
        lambda e: e.apply(MakesTwo(reads="columns")),
        "MakesTwo reads the columns of the counts: use run, not apply",
    ),
    "apply, nothing": (
        lambda e: e.apply(Looks()),
        "Looks makes no row array, so that apply has no effect: use run",
    ),
    "another order": (lambda e: e.run(Odd(reads="lanes")), "Odd reads 'lanes': a step reads"),
    "no array is shared": (
        lambda e: e.run(SharesWords()),
        "SharesWords shares 'words', which is a tuple: a cluster gets arrays once",
    ),
    "saves": (
        lambda e: e.run(MakesTwo(saves=("made",))),
        "MakesTwo saves 'made', which it does not make",
    ),
    "alias": (
        lambda e: e.run(MakesTwo(aliases=(("again", "new"),))),
        "MakesTwo has the alias 'again' of 'new': a step makes the alias, and makes or uses",
    ),
    "made twice": (
        lambda e: e.run(MakesAndSums(), Puts()),
        "MakesAndSums needs its row array 'made' to stay, but a later step of the same run makes",
    ),
    "no such array": (
        lambda e: e.run(Looks(("nothing",), name="nothing")),
        "Looks needs a row array 'nothing', and there is none",
    ),
    "not named in uses": (
        lambda e: (e.put("given", lanes_of(e)), e.run(Looks(()), Looks(("given",)))),
        "Looks looks at 'given', which its `uses` do not name",
    ),
    "not named in makes": (
        lambda e: e.run(Puts(name="more")),
        "Puts makes 'more', which its `makes` do not name",
    ),
    "not made": (
        lambda e: e.run(Puts(makes=("made", "more"))),
        "Puts did not make its row array 'more' in every block",
    ),
    "too long": (
        lambda e: e.run(Puts(n_entries=7)),
        "Puts makes 'made' with 7 entries, not one for each lane",
    ),
    "no number": (
        lambda e: e.run(Puts(value="much")),
        "Puts returns value='much': a step returns numbers and arrays",
    ),
    "columns, too few": (
        lambda e: (e.put("given", lanes_of(e)[:, 0]), e.run_columns(too_few(e))),
        "OfColumns returns 'found', which has no entry for each lane of its panel",
    ),
    "get, nothing": (lambda e: e.get("nothing"), "there is no row array 'nothing'"),
    "get, any": (
        lambda e: (e.run(PutsAny()), e.get("any")),
        "the arrays 'any' of the blocks have no entry for each lane",
    ),
    "put, lanes": (lambda e: e.put("given", np.ones(7)), "'given' has 7 entries for"),
    "put, blocks": (lambda e: e.put("given", [np.ones(7)] * 99), "'given' has 99 entries for"),
}


@pytest.mark.parametrize("executors", [350], indirect=True, ids=["several blocks"])
def test_the_same_refusals_everywhere(executors):
    for what, (do, message) in REFUSED.items():
        error = everywhere(executors, do)
        assert isinstance(error, str) and f"Error: {message}" in error, what


def stream(output, *steps):
    """Return what does steps with an executor and lists an array of all blocks."""

    def do(executor):
        parts = [lanes_of(executor)[b.first : b.last] for b in executor.layout.blocks]
        executor.put("given", parts)
        found = list(executor.stream(output, *steps))
        rows = [(block.start, block.stop) for block in executor.layout.blocks]
        assert [(place.start, place.stop) for place, _ in found] == rows
        assert executor.get_blocks("made") is None  # nothing is kept
        return [array for _, array in found]

    return do


def test_a_stream_gives_the_same_everywhere_and_follows_the_rules(executors, monkeypatch):
    internals.stream_together(monkeypatch, 1)
    assert len(everywhere(executors, stream("any", SaysSame(), PutsAny()))) > 0
    made = everywhere(executors, stream("again", Puts(), MakesTwo()))
    assert all((block == 2).all() for block in made)
    for step in (Odd(makes=("made",), n_sums=1), Odd(makes=("made",), reads="lanes"), Looks()):
        error = everywhere(executors, stream("made", step))
        assert "use run" in error or "reads 'lanes'" in error
    error = everywhere(executors, stream("made", Odd(makes=("made",))))
    assert "did not make its row array 'made'" in error
