"""Solvers that update whole columns: the same bits wherever the counts are, each read twice."""

from types import SimpleNamespace

import internals
import numpy as np
import pytest
import scipy.sparse as sp
from clusters import Killer, cluster_of, fit, soon, within
from count_files import write_h5ad
from night import at_night
from small_fits import X, bits, model

import nmfscale
from nmfscale.methods.factors import Constraints
from nmfscale.methods.poisson.alternating import Alternating
from nmfscale.readers.open import as_counts
from nmfscale.storage.store import StoredCounts
from nmfscale.storage.store_blocks import DamagedStoreError
from nmfscale.storage.store_writer import pack

# Dask's own warnings about workers that we kill are not ours
pytestmark = pytest.mark.filterwarnings("ignore")

slow, nightly = pytest.mark.slow, pytest.mark.nightly
ALL = [(s, inner) for s in ("em", "ccd", "scd", "sn", "newton") for inner in (1, 3)]
QUICK = [("em", 3), ("scd", 1), ("newton", 1)]
ON_CLUSTER = [("scd", 1), ("em", 1), ("ccd", 1), ("sn", 3), ("newton", 1)]
rng = np.random.default_rng(1)
N, M = X.shape
HELD = {
    "loadings": rng.uniform(0.1, 1, (N, 3)),
    "components": rng.uniform(0.1, 1, (3, M)),
    "row_weights": np.arange(N) % 3,
    "size_factors": rng.uniform(0.5, 2, N),
    "fixed_topics": np.arange(3) == 1,
    "fixed_features": np.arange(M) % 7 == 0,
    "fixed_samples": np.arange(N) % 5 == 0,
}
PANEL = np.arange(N) % 2
MEASURED = np.array([np.ones(M, bool), np.arange(M) > 8])
SEEN = np.where(MEASURED[PANEL], X, 0)
GIVEN = {
    "held": (X, HELD, {}),
    "weights that are whole": (X, {"row_weights": np.arange(N) % 3}, {}),
    "priors": (X, {}, {"prior_factors": 1.1, "prior_loadings": (1.2, 0.5)}),
    "measured": (SEEN, {"panel": PANEL, "measured": MEASURED}, {}),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    internals.small_blocks(monkeypatch, 500)


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as client:
        yield client


@pytest.fixture
def store(tmp_path):
    pack(as_counts(X), tmp_path / "counts.nmf")
    layout = StoredCounts(tmp_path / "counts.nmf").layout()
    assert min(len(layout.blocks), len(layout.panels)) >= 4
    return tmp_path / "counts.nmf"


def options_of(solver, inner_iter):
    return {"solver": solver, "inner_iter": inner_iter, "max_iter": 5, "init": "random"}


# Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "inner_iter"), [pytest.param(*e, marks=() if e in QUICK else nightly) for e in ALL]
)
def test_same_bits_from_files(store, tmp_path, monkeypatch, solver, inner_iter):
    options = options_of(solver, inner_iter)
    expected = bits(fit(X, **options))
    assert bits(fit(store, **options)) == expected
    internals.read_anew(monkeypatch)
    assert bits(fit(store, **options)) == expected
    h5ad = write_h5ad(tmp_path / "counts.h5ad", sp.csr_array(X))
    assert bits(fit(h5ad, memory_limit="1TB", **options)) == expected
    internals.read_anew(monkeypatch, str(tmp_path))
    assert bits(fit(store, n_threads=2, **options)) == expected


@nightly
@pytest.mark.parametrize(
    ("given", "solver"), [*((given, "scd") for given in GIVEN), ("held", "em"), ("measured", "em")]
)
def test_same_bits_with_all_that_is_given(client, tmp_path, monkeypatch, given, solver):
    counts, data, options = GIVEN[given]
    options = options_of(solver, None) | options
    pack(as_counts(counts), tmp_path / "counts.nmf")
    expected = bits(model(**options).fit(counts, **data))
    of_cluster = within(
        60, lambda: model(**options).fit(tmp_path / "counts.nmf", client=client, **data)
    )
    assert bits(of_cluster) == expected
    internals.read_anew(monkeypatch)
    assert bits(model(**options).fit(tmp_path / "counts.nmf", **data)) == expected


@pytest.mark.parametrize(("solver", "inner_iter"), [("em", 1), ("scd", 4)])
def test_each_count_is_read_twice_an_iteration(store, tmp_path, monkeypatch, solver, inner_iter):
    internals.read_anew(monkeypatch)
    layout = StoredCounts(store).layout()
    # of each stretch where it begins and where it ends
    ends = 8 * len(layout.blocks) * len(layout.panels)
    options = options_of(solver, inner_iter)
    read = np.diff(fit(store, **options).history_["bytes_read"][:-1])
    assert (read > layout.nbytes // 2).all()
    assert (read <= layout.nbytes + ends).all()
    h5ad = write_h5ad(tmp_path / "counts.h5ad", sp.csr_array(X))
    read = np.diff(fit(h5ad, memory_limit="1TB", **options).history_["bytes_read"][:-1])
    assert (read > 0).all()
    assert (read <= 2 * h5ad.stat().st_size).all()


def test_bootstrap_fits_share_reads_of_columns(store, monkeypatch):
    internals.read_anew(monkeypatch)
    how = {"n_replicates": 3, "random_state": 0, "n_threads": 2}
    fitted = fit(X, **options_of("scd", 1))
    expected = nmfscale.bootstrap_fit(fitted, X, **how)
    internals.fits_together(monkeypatch, 3)
    counts = StoredCounts(store)
    found = nmfscale.bootstrap_fit(fitted, counts, **how)
    assert found.to_frame().equals(expected.to_frame())
    # three fits that read alone would read three times as much
    assert counts.layout().bytes_read < 3 * 5 * counts.layout().nbytes


def test_columns_that_are_damaged(store, monkeypatch):
    internals.read_anew(monkeypatch)
    block = StoredCounts(store).layout().blocks[2]
    at = block.column_place.at_count + 3
    content = bytearray(store.read_bytes())
    content[at] ^= 1
    store.write_bytes(content)
    with pytest.raises(DamagedStoreError, match="blocks/000002/columns_count is damaged"):
        fit(store, **options_of("scd", 1))


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    internals.read_anew(monkeypatch)
    h5ad = write_h5ad(tmp_path / "counts.h5ad", sp.csr_array(X))
    files = internals.no_room_for_columns(monkeypatch)
    with pytest.raises(OSError, match="cannot keep the columns of the counts in .*set TMPDIR"):
        fit(h5ad, memory_limit="1TB", **options_of("scd", 1))
    assert [file.closed for file in files] == [True]  # else its finalizer would fail


def test_the_plan_has_panels_and_workers_hold_all_loadings(store):
    from nmfscale.engine.memory import plan_fit
    from nmfscale.methods.poisson.solvers import poisson_needs

    counts = StoredCounts(store)
    auto, scd = (poisson_needs(counts, 3, np.float64, s, 1) for s in ("auto", "scd"))
    plans = [plan_fit(counts, needs._replace(scratch=0, sums=0), 1 << 40) for needs in (auto, scd)]
    assert plans[1].peak >= plans[0].peak + counts.layout().panel_bytes() > plans[0].peak
    assert auto.whole_row == 0
    assert scd.whole_row >= 3 * 8
    assert scd.task_thread > auto.task_thread == 0


def test_loadings_that_are_too_many_for_whole_columns():
    layout = SimpleNamespace(row_order=np.broadcast_to(0, 1 << 28))
    counts = SimpleNamespace(shape=(1 << 28, 50))
    given = counts, SimpleNamespace(layout=layout), None, 9, np.float64, Constraints()
    with pytest.raises(ValueError, match="solver='em' .* 268,435,456 samples and 9 comp.*'auto'"):
        Alternating(*given, solver="em")


# Clusters -------------------------------------------------------------------------------------


@slow
@pytest.mark.parametrize(("solver", "inner_iter"), [ON_CLUSTER[0], *at_night(*ON_CLUSTER[1:])])
def test_same_bits_on_a_cluster(client, store, solver, inner_iter):
    options = options_of(solver, inner_iter)
    assert bits(fit(store, client, **options)) == bits(fit(X, **options))


@slow
@pytest.mark.parametrize(
    "sees", [(False, False), *at_night(((True, False),), ((False, True),))], ids=str
)
def test_workers_that_do_not_see_files(client, store, monkeypatch, sees):
    internals.workers_see(monkeypatch, *sees)
    options = options_of("scd", 3)
    assert bits(fit(store, client, **options)) == bits(fit(X, **options))
    soon(lambda: not client.who_has())


@slow
@pytest.mark.parametrize("sees", [(True, True), *at_night(((False, False),))], ids=str)
def test_a_worker_is_killed_while_it_has_panels(client, store, monkeypatch, sees):
    internals.workers_see(monkeypatch, *sees)
    options = options_of("scd", 1) | {"max_iter": 10}
    actions = {3: Killer(client), 6: Killer(client, 1)}
    assert bits(fit(store, client, actions, **options)) == bits(fit(X, **options))


@slow
def test_columns_that_are_damaged_are_found_on_a_cluster(client, store, monkeypatch):
    place = StoredCounts(store).layout().blocks[2].column_place
    content = bytearray(store.read_bytes())
    content[place.at_count + 3] ^= 1
    store.write_bytes(content)
    with pytest.raises(DamagedStoreError, match="blocks/000002/columns_count is damaged"):
        fit(store, client, **options_of("scd", 1))


@pytest.mark.nightly
def test_a_fit_is_resumed_in_another_place(client, store, tmp_path, monkeypatch):
    options = options_of("sn", None) | {"max_iter": 9}
    expected = bits(fit(X, **options))
    how = {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    fit(X, **options | {"max_iter": 3}, **how)
    fit(store, client, **options | {"max_iter": 6}, resume=True, **how)
    internals.read_anew(monkeypatch)
    assert bits(fit(store, **options, resume=True, **how)) == expected


@pytest.mark.nightly
def test_bytes_read_on_a_cluster(client, store):
    layout = StoredCounts(store).layout()
    read = np.diff(fit(store, client, **options_of("scd", 3)).history_["bytes_read"][:-1])
    assert (read == layout.nbytes).all()
