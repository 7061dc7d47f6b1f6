"""Loadings of new rows and scores: the same bits in every place, in bounded memory, to a file."""

import os
import sys
import tracemalloc

import internals
import numpy as np
import oracle
import pytest
import scipy.sparse as sp
from clusters import cluster_of
from count_files import write_h5ad
from night import at_night
from numpy.testing import assert_array_equal
from small_fits import run

import nmfscale
from nmfscale.engine.memory import MemoryLimitError, check_stream
from nmfscale.methods.projection.transform import project_rows, projection_needs
from nmfscale.readers.open import as_counts
from nmfscale.readers.streams.file_counts import FileCounts
from nmfscale.readers.streams.stream import open_stream
from nmfscale.storage.store_writer import pack

MODELS = [nmfscale.PoissonNMF, nmfscale.TopicModel]
rng = np.random.default_rng(0)
X = rng.poisson(rng.gamma(0.4, size=(90, 3)) @ rng.gamma(0.4, size=(3, 60)) * 3)
X[7, 5] = 700
X[:, 8] = X[11] = 0


def fitted(model, **options):
    options = {"max_iter": 20, "tol": 0, "random_state": 0} | options
    return model(3, **options).fit(X)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """X in memory, in one block and in several, in a packed store and in a file."""
    whole = as_counts(X)
    whole.layout()
    internals.small_blocks(monkeypatch, 300)
    pack(as_counts(X), tmp_path / "counts.nmf")
    write_h5ad(tmp_path / "counts.h5ad", sp.csr_matrix(X))
    found = [whole, as_counts(X), tmp_path / "counts.nmf", tmp_path / "counts.h5ad"]
    assert [len(as_counts(place).layout().blocks) > 1 for place in found[:3]] == [False, True, True]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [{"prior_loadings": (1.1, 0.5)}, {}, {"dtype": "float32"}],
)
@pytest.mark.parametrize("model", MODELS)
def test_the_same_bits_wherever_the_counts_are(places, tmp_path, model, options):
    one = fitted(model, **options)
    expected, score = one.transform(X), one.score(X)
    completed = one.score(X, completion=0.4, random_state=3)
    for place in places:
        for n_threads in (1, 3):
            one.set_params(n_threads=n_threads, memory_limit="1TB")
            found = one.transform(place)
            assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())
            written = one.transform(place, out=tmp_path / "loadings.npy")
            assert written.tobytes() == expected.tobytes()
            assert np.load(tmp_path / "loadings.npy").tobytes() == expected.tobytes()
            assert one.score(place) == score
            assert one.perplexity(place) == pytest.approx(np.exp(-score), rel=1e-14)
            assert one.score(place, completion=0.4, random_state=3) == completed


@pytest.mark.parametrize("model", MODELS)
def test_a_score_is_the_mean_log_probability(model):
    one = fitted(model)
    for counts in (X, X[:, ::-1] * X.any(axis=0)):
        mu = one.transform(counts) @ one.components_
        mu[11] = 1
        logs = np.log(np.maximum(mu / mu.sum(axis=1, keepdims=True), 1e-30))
        expected = (counts * logs).sum() / counts.sum()
        np.testing.assert_allclose(one.score(counts), expected, rtol=1e-12)
    assert 1 <= one.perplexity(X) <= X.shape[1]


@pytest.mark.parametrize("model", [*MODELS, nmfscale.LDA, nmfscale.NoisyTopicModel])
def test_completion_scores_what_was_held_out(model):
    one = fitted(model)
    held, drawn = np.zeros_like(X), np.random.RandomState(5)
    held[X > 0] = drawn.binomial(X[X > 0], 0.3)
    seen = X - held
    known = seen.any(axis=1)
    mu = one.transform(seen[known]) @ one.components_
    logs = np.log(np.maximum(mu / mu.sum(axis=1, keepdims=True), 1e-30))
    expected = (held[known] * logs).sum() / held[known].sum()
    options = {"completion": 0.3, "random_state": 5}
    np.testing.assert_allclose(one.score(X, **options), expected, rtol=1e-10)
    expected = np.exp(-one.score(X, **options))
    assert one.perplexity(X, **options) == pytest.approx(expected, rel=1e-14)
    assert one.score(np.zeros_like(X), **options) == 0.0


@pytest.mark.filterwarnings("ignore:X has .* of which the fit had none")
def test_completion_is_highest_for_as_many_topics_as_there_are():
    counts, _ = nmfscale.datasets.simulate_topic_counts(300, 200, n_components=4, random_state=0)
    models = [
        nmfscale.TopicModel(K, prior_factors=1.1, random_state=1).fit(counts[:200])
        for K in (2, 4, 16)
    ]
    new, options = counts[200:], {"completion": 0.5, "random_state": 0}
    few, right, many = (model.score(new, **options) for model in models)
    assert max(few, many) < right
    assert models[2].score(new) > models[1].score(new)  # loadings fitted to what is scored


@pytest.mark.parametrize("completion", [0, 1, -0.5, "half", np.nan])
def test_completion_is_a_share(completion):
    with pytest.raises(ValueError, match="completion=.*between 0 and 1"):
        fitted(nmfscale.TopicModel).score(X, completion=completion)


@pytest.mark.filterwarnings("ignore:.*not whole numbers")
def test_completion_needs_whole_counts():
    with pytest.raises(ValueError, match="only whole counts can be split.*1.5"):
        fitted(nmfscale.TopicModel).score(X + 0.5 * (X > 0), completion=0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", [0, 3])
def test_rows_end_at_their_optimum_whatever_the_rank_and_the_scales(seed, dtype):
    # more topics than features, nearly dependent, of sizes 20 orders of magnitude apart
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.3, size=(8, 2)) @ rng.gamma(0.3, size=(2, 10)) * 1e5)
    F = (rng.gamma(0.2, size=(10, 14)) * 10.0 ** rng.integers(-10, 11, 14)).astype(dtype)
    F[:, 0] += F[:, 0].max() / 1e3
    loadings, sizes = project_rows(as_counts(counts), F, dtype=dtype), F.sum(axis=0, dtype=float)
    A, best = F / sizes, np.repeat(counts.sum(axis=1, keepdims=True) / 14, 14, axis=1)
    for _ in range(20_000):  # EM steps, of all rows
        best = best * ((counts / (best @ A.T)) @ A)
    losses = [
        np.array([oracle.row_loss(y, A, np.ones(14), b) for y, b in zip(counts, L, strict=True)])
        for L in (loadings * sizes, best)
    ]
    assert (losses[0] <= losses[1] + 1e-6).all()


# To a file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_what_is_written_is_a_read_only_map(places, tmp_path, model):
    target = tmp_path / "loadings.npy"
    target.write_text("something else")
    (tmp_path / "link.npy").symlink_to(target)
    found = fitted(model).transform(places[2], out=str(tmp_path / "link.npy"))
    assert isinstance(found, np.memmap) and not found.flags.writeable
    assert (tmp_path / "link.npy").is_symlink()
    assert_array_equal(np.load(target), fitted(model).transform(X))


def test_a_file_and_a_frame(tmp_path):
    pytest.importorskip("pandas")
    one = fitted(nmfscale.TopicModel).set_output(transform="pandas")
    frame = one.transform(X, out=tmp_path / "loadings.npy")
    assert list(frame.columns) == list(one.get_feature_names_out())
    assert_array_equal(frame.to_numpy(), np.load(tmp_path / "loadings.npy"))


@pytest.mark.parametrize("before", [None, "precious"])
def test_a_failure_leaves_the_files_as_they_were(places, tmp_path, monkeypatch, before):
    target = tmp_path / "loadings.npy"
    if before:
        target.write_text(before)
    there = sorted(os.listdir(tmp_path))

    def fail_late(blocks, work, **options):
        for i, block in enumerate(blocks(work, **options)):
            if i == 3:
                raise OSError("the disk is gone")
            yield block

    internals.around_blocks_of_rows(monkeypatch, fail_late)
    with pytest.raises(OSError, match="the disk is gone"):
        fitted(nmfscale.TopicModel).transform(places[3], out=target)
    assert sorted(os.listdir(tmp_path)) == there
    assert not before or target.read_text() == before


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("loadings.csv", ValueError, r"out='.*loadings\.csv': .* ends in \.npy"),
        ("folder.npy", ValueError, r"out='.*folder\.npy': the name of a file"),
        ("absent/loadings.npy", FileNotFoundError, "absent does not exist"),
    ],
)
def test_files_that_do_not_serve(tmp_path, monkeypatch, name, error, message):
    one = fitted(nmfscale.PoissonNMF)
    (tmp_path / "folder.npy").mkdir()
    internals.no_projection(monkeypatch)  # said before any work
    with pytest.raises(error, match=message):
        one.transform(X, out=tmp_path / name)


# Memory -----------------------------------------------------------------------------------------


def sparse_rows(n, m=40):
    """Three counts in each row."""
    columns = np.random.default_rng(1).integers(0, m, (n, 3))
    entries = np.ones(3 * n, np.int32), (np.repeat(np.arange(n), 3), columns.ravel())
    return sp.csr_array(sp.coo_array(entries, shape=(n, m)))


@pytest.fixture
def few_steps(monkeypatch):
    internals.few_projection_steps(monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_only_the_loadings_of_a_block_are_in_memory(tmp_path, monkeypatch, few_steps, model):
    internals.small_blocks(monkeypatch, 3000)
    n, K = 30_000, 32
    counts = sparse_rows(n)
    pack(as_counts(counts), tmp_path / "counts.nmf")
    one = model(K, max_iter=2, tol=0, init="random", random_state=0, n_threads=1).fit(counts[:300])
    whole, block = n * K * 8, 1000 * K * 8
    for call in (
        lambda: one.transform(tmp_path / "counts.nmf", out=tmp_path / "loadings.npy"),
        lambda: one.score(tmp_path / "counts.nmf"),
    ):
        tracemalloc.start()
        try:
            call()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 10 * block + n * 100 < whole


@pytest.mark.nightly
@pytest.mark.parametrize("sees", [True, False])
def test_loadings_from_a_cluster_come_a_few_blocks_at_a_time(
    tmp_path, monkeypatch, few_steps, sees
):
    internals.small_blocks(monkeypatch, 6000)
    internals.workers_see(monkeypatch, sees, sees)
    internals.stream_together(monkeypatch, 1)
    n, K = 60_000, 64
    counts = sparse_rows(n)
    pack(as_counts(counts), tmp_path / "counts.nmf")
    one = nmfscale.PoissonNMF(K, max_iter=2, tol=0, init="random", random_state=0, n_threads=1)
    one.fit(counts[:300])
    with cluster_of(2, active=False) as client:
        one.transform(counts[:6000], client=client)  # what is imported late
        tracemalloc.start()
        try:
            out = tmp_path / "loadings.npy"
            found = one.transform(tmp_path / "counts.nmf", out=out, client=client)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < n * K * 8 / 2
    assert_array_equal(found[:500], one.transform(counts[:500]))


@pytest.mark.slow
@pytest.mark.parametrize("model", [MODELS[0], *at_night(*MODELS[1:])])
def test_what_does_not_fit_is_refused_or_written(tmp_path, monkeypatch, few_steps, model):
    internals.small_blocks(monkeypatch, 3000)
    internals.limit_is_all_memory(monkeypatch)
    n, K = 30_000, 32
    counts = sparse_rows(n)
    write_h5ad(tmp_path / "counts.h5ad", sp.csr_matrix(counts))
    one = model(K, max_iter=2, tol=0, init="random", random_state=0).fit(counts[:300])
    expected = one.transform(counts)
    in_file = FileCounts(open_stream(tmp_path / "counts.h5ad"))
    least = check_stream(in_file, projection_needs(in_file, K), 1 << 40)
    one.set_params(memory_limit=least)
    wanted = f"{least + n * K * 8:,} bytes"
    with pytest.raises(MemoryLimitError, match=rf"loadings need .*{wanted}.*out='NAME\.npy'"):
        one.transform(tmp_path / "counts.h5ad")
    written = one.transform(tmp_path / "counts.h5ad", out=tmp_path / "loadings.npy")
    assert_array_equal(written, expected)
    assert one.score(tmp_path / "counts.h5ad") == one.set_params(memory_limit=None).score(counts)
    one.set_params(memory_limit=least - 1)
    for call in (one.score, lambda path: one.transform(path, out=tmp_path / "more.npy")):
        with pytest.raises(MemoryLimitError, match=rf"\({least:,} bytes\).*: raise memory_limit\."):
            call(tmp_path / "counts.h5ad")
    assert not (tmp_path / "more.npy").exists()


HIGHEST = """
import sys, numpy as np, nmfscale
import internals
from pathlib import Path
from nmfscale.storage.store import StoredCounts
from nmfscale.engine.memory import check_stream
from nmfscale.methods.projection.transform import project_rows, projection_needs
internals.few_projection_steps(internals.FOR_GOOD)
internals.small_blocks(internals.FOR_GOOD, 60_000)


def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


folder, gathered = Path(sys.argv[1]), sys.argv[2] == "gathered"
rng = np.random.default_rng(0)
model = nmfscale.TopicModel(12, max_iter=1, tol=0, init="random", random_state=0, n_threads=1)
model.fit(rng.integers(1, 3, (60, 40)))
counts = StoredCounts(folder / "counts.nmf")
n_bytes = counts.shape[0] * 12 * 8 if gathered else 0
needs = projection_needs(counts, 12)
predicted = check_stream(counts, needs, "1TB", gathered=n_bytes)
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
model.transform(counts, out=None if gathered else folder / "loadings.npy")
print(predicted, before, memory("VmHWM"))
"""


@pytest.mark.nightly
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("how", ["gathered", "written"])
def test_the_predicted_memory_is_enough_and_not_far_off(tmp_path, monkeypatch, how):
    internals.small_blocks(monkeypatch, 60_000)
    n = 600_000
    pack(as_counts(sparse_rows(n)), tmp_path / "counts.nmf")
    predicted, before, highest = map(int, run(HIGHEST, tmp_path, how).split())
    assert highest < predicted < highest + (100 << 20)
    assert (highest - before > n * 12 * 8) == (how == "gathered")
