"""Anchors: the pivots of LAPACK's QR, topics that are optimal, truths that are found again."""

import tracemalloc
import warnings
from types import SimpleNamespace

import internals
import numpy as np
import oracle
import pandas as pd
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import lsq_linear
from shell import run
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize
from small_fits import StopError, X, stop_at

import nmfscale
from nmfscale.methods.anchors.pivots import Pivots
from nmfscale.methods.anchors.steps import sampled_transform

pytestmark = pytest.mark.filterwarnings("ignore:.* loadings that are all 0:UserWarning")
SEEDS = st.integers(0, 1 << 30)


def fit(counts=X, n_components=6, **options):
    return nmfscale.AnchorNMF(n_components, **{"n_threads": 1} | options).fit(counts)


def pivots_of_lapack(counts, n):
    R, order = scipy.linalg.qr(np.asarray(counts, float), mode="r", pivoting=True)
    return order[:n], abs(np.diag(R))[:n]


def counts_of(seed, n=25, m=18, rank=None):
    rng = np.random.default_rng(seed)
    if rank is not None:
        return rng.poisson(1.0, (n, rank)) @ rng.poisson(1.0, (rank, m))
    return rng.poisson(rng.gamma(0.5, size=(n, 4)) @ rng.gamma(0.5, 2.0, size=(4, m)))


def test_samples_without_anchors_are_counted():
    counts = np.zeros((20, 4), int)
    counts[:8, 0], counts[8:14, 1], counts[:18, 2] = 9, 8, 1
    message = r"4 of 20 samples \(20.0%\) have loadings that are all 0"
    with pytest.warns(UserWarning, match=message):  # the last two have no counts
        model = fit(counts, 2)
    with pytest.warns(UserWarning, match=message):
        model.transform(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(counts[:15], 2)  # one of 15


# Pivots ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_anchors_are_the_pivots_of_lapack(seed):
    counts = counts_of(seed)
    rank = np.linalg.matrix_rank(counts)
    assume(rank > 1)
    found = fit(counts, rank)
    order, diagonal = oracle.pivots(counts, rank)  # of ties, the first
    assert_array_equal(found.anchors_, order)
    assert_allclose(found.distances_, diagonal, rtol=1e-7)
    assert_allclose(found.distances_, pivots_of_lapack(counts, rank)[1], rtol=1e-7)


def read(data_dir, name):
    return sp.load_npz(data_dir / f"{name}.npz").tocsr()


@pytest.mark.parametrize(
    "name",
    ["congress109", pytest.param("beer_canada", marks=pytest.mark.nightly)],
)
def test_the_first_hundred_anchors_of_texts_are_those_of_lapack(data_dir, name):
    counts = read(data_dir, name)
    order, diagonal = pivots_of_lapack(counts.toarray(), 100)
    found = fit(counts, 100)
    assert_array_equal(found.anchors_, order)
    assert_allclose(found.distances_, diagonal, rtol=1e-10)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 7), st.sampled_from(["counts", "tf-idf", "documents"]))
def test_more_topics_keep_the_anchors(seed, T, weighting):
    counts = counts_of(seed)
    assume(np.linalg.matrix_rank(counts) > T)
    few, more = (fit(counts, k, weighting=weighting) for k in (T, T + 1))
    assert_array_equal(few.anchors_, more.anchors_[:T])
    assert_array_equal(few.distances_, more.distances_[:T])


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_diagonal_entry_is_as_large_as_what_is_left_of_later_columns(seed):
    counts = counts_of(seed).astype(float)
    gram = counts.T @ counts
    pivots = Pivots(np.diag(gram).copy(), len(gram), 1)
    while (p := pivots.farthest()) is not None:
        pivots.add(p, gram[:, p])
    R = pivots.triangle()
    for k in range(len(R)):
        left = (R[k:, k:] ** 2).sum(axis=0)
        assert (left <= R[k, k] ** 2 * (1 + 1e-9)).all()
    assert_allclose(R.T @ R, gram[np.ix_(pivots.chosen, pivots.chosen)], rtol=1e-9, atol=1e-9)


def test_of_ties_the_first_feature_is_chosen():
    assert_array_equal(fit(np.eye(5, dtype=int)[:, ::-1], 3).anchors_, [0, 1, 2])
    twice = np.hstack([counts_of(3), counts_of(3)])
    assert_array_equal(fit(twice, 8).anchors_, fit(counts_of(3), 8).anchors_)


def test_a_distance_that_is_mostly_rounding_is_computed_again():
    rng = np.random.default_rng(0)
    first = rng.integers(1 << 22, 1 << 23, 40)
    nearly = first + 40 * rng.integers(0, 2, 40)  # of its square 1e-11 is left
    counts = np.stack([first, nearly, *rng.poisson(3.0, (3, 40))], axis=1)
    for options in ({}, {"weighting": "documents"}):
        scaled = normalize(counts.astype(float)) if options else counts
        found = fit(counts, 5, **options)
        order, diagonal = pivots_of_lapack(scaled, 5)
        assert_array_equal(found.anchors_, order)
        assert_allclose(found.distances_, diagonal, rtol=1e-7)


@pytest.mark.parametrize("weighting", ["counts", "tf-idf"])
def test_there_are_no_more_anchors_than_the_rank(weighting):
    counts = counts_of(1, rank=4)
    counts[:, 3] = 0
    with pytest.warns(UserWarning, match="found 4 of 6 anchors: the others are combinations"):
        found = fit(counts, 6, weighting=weighting)
    assert found.components_.shape == (4, 18) and found.loadings_.shape == (25, 4)
    assert found.history_["residual"][-1] == 0 and found.n_iter_ == 4
    assert not found.components_[:, 3].any()
    assert found.transform(counts).tobytes() == found.loadings_.tobytes()


def test_counts_without_any_are_refused():
    with pytest.raises(ValueError, match="all 0: there are no anchors"):
        fit(np.zeros((4, 3), int), 2)


# Weights --------------------------------------------------------------------------------------


def test_weights_are_those_of_scikit_learn():
    counts = np.vstack([X, np.zeros((1, X.shape[1]), int)])
    counts[3, 4] = 70_000  # counts of one sample in several pieces
    weighted = {
        "counts": counts,
        "documents": normalize(counts),
        "tf-idf": TfidfTransformer().fit_transform(counts).toarray(),
    }
    for weighting, values in weighted.items():
        order, diagonal = pivots_of_lapack(values, 9)
        found = fit(counts, 9, weighting=weighting)
        assert_array_equal(found.anchors_, order)
        assert_allclose(found.distances_, diagonal, rtol=1e-10)
        assert_allclose(objective(found)[-1], oracle.share_spanned(values, order), rtol=1e-9)


def objective(found):
    return found.history_["spanned"]


def test_a_function_says_what_samples_and_features_are_multiplied_by():
    rng = np.random.default_rng(0)
    rows, columns = rng.gamma(1.0, size=len(X)), rng.gamma(1.0, size=X.shape[1])
    found = fit(weighting=lambda counts: (rows, columns))
    assert_array_equal(found.anchors_, pivots_of_lapack(rows[:, None] * X * columns, 6)[0])
    proportions = fit(weighting=lambda counts: (1 / counts.row_totals, None))
    assert_array_equal(
        proportions.anchors_, pivots_of_lapack(X / X.sum(axis=1, keepdims=True), 6)[0]
    )
    with pytest.raises(ValueError, match="a pair is needed"):
        fit(weighting=lambda counts: rows)
    with pytest.raises(ValueError, match="weighting: features has shape"):
        fit(weighting=lambda counts: (rows, rows))


@pytest.mark.parametrize("weighting", ["counts", "tf-idf"])
def test_a_projection_finds_nearly_the_same_anchors(weighting):
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.3, size=(300, 40)) @ rng.gamma(0.1, 3.0, size=(40, 200)))
    exact = set(fit(counts, 30, weighting=weighting).anchors_)
    found = fit(counts, 30, weighting=weighting, projection=250, random_state=0)
    assert len(exact & set(found.anchors_)) >= 25
    # topics are those of the counts themselves
    given = fit(counts, 30, anchors=found.anchors_)
    assert_array_equal(found.components_, given.components_)
    assert_array_equal(found.loadings_, given.loadings_)


# A Hadamard transform of the samples ----------------------------------------------------------


def transform_of(found, n_lanes, seed=0):
    """Return the transform (d, lanes) that a fit with this many samples has drawn."""
    drawn = int(np.random.RandomState(seed).randint(1 << 31))
    blocks = [SimpleNamespace(first=0)]
    step = sampled_transform(np.arange(0), blocks, n_lanes, found.sketch_size, drawn)
    return step, np.vstack([part for _, part in step._directions(0, n_lanes // 16)]).T


@pytest.mark.parametrize("first", [0, 512 + 32])
def test_the_transform_is_that_of_hadamard_and_walsh(first):
    blocks = [SimpleNamespace(first=0), SimpleNamespace(first=first)]
    step = sampled_transform(np.arange(0), blocks, first + 512, 9, 3)
    N = 1 << (first + 511).bit_length()
    rows = np.vstack([part for _, part in step._directions(1, 32)]) * 3
    expected = scipy.linalg.hadamard(N)[step.sampled][:, first : first + 512].T
    signs = rows[:, :1] * expected[:, :1]
    assert_array_equal(rows, signs * expected)
    assert abs(signs.sum()) < 120 and len(set(step.sampled)) == 9


def test_a_whole_transform_changes_nothing():
    exact, found = fit(), fit(sketch_size=1 << 20, random_state=0)
    assert_allclose(found.components_, exact.components_, rtol=1e-9, atol=1e-12)
    assert_allclose(found.reconstruction_err_, exact.reconstruction_err_)


@pytest.mark.parametrize("n_sampled", [40, 120])
def test_residuals_in_a_sketch_are_within_its_distortion(n_sampled):
    """|A y - x| <= s_max / s_min of the least, for singular values s of the sketch of [A, x]."""
    counts = counts_of(0, 320, 60)
    exact = fit(counts, 5)
    found = fit(counts, 5, sketch_size=n_sampled, random_state=0)
    assert_array_equal(found.anchors_, exact.anchors_)
    order = nmfscale.as_counts(counts).layout(1).row_order
    S = transform_of(found, len(order))[1][:, order >= 0]
    here, A = counts[order[order >= 0]].astype(float), counts[:, found.anchors_].astype(float)
    left = [
        np.linalg.norm(A @ (model.components_ / model.diffuseness_[:, None]) - counts, axis=0)
        for model in (found, exact)
    ]
    for j in range(60):
        basis = scipy.linalg.orth(here[:, [*found.anchors_, j]])
        s = np.linalg.svd(S @ basis, compute_uv=False)
        assert left[0][j] <= (s[0] / s[-1] + 1e-9) * left[1][j] + 1e-9
    # far from the bound in practice, and better with more rows
    assert np.linalg.norm(left[0]) < (1 + 8 / n_sampled) * np.linalg.norm(left[1])


def test_the_error_with_a_sketch_is_that_of_its_topics():
    """Not that of the sketch, which is smaller: combinations are the best ones there."""
    counts = counts_of(0, 120, 60)
    least = fit(counts, 5).reconstruction_err_
    for seed in range(10):
        found = fit(counts, 5, sketch_size=20, random_state=seed)
        true = np.linalg.norm(found.loadings_ @ found.components_ - counts)
        assert_allclose(found.reconstruction_err_, true, rtol=1e-9)
        assert found.reconstruction_err_ >= least


def test_a_sketch_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="sketch_size=5 is less than n_components=6"):
        fit(sketch_size=5)


# Given anchors --------------------------------------------------------------------------------


def test_given_anchors_come_first():
    names = [f"word {j}" for j in range(X.shape[1])]
    frame, found = pd.DataFrame(X, columns=names), fit()
    given = [int(found.anchors_[4]), 17]
    one = fit(frame, anchors=[names[j] for j in given])
    other = fit(anchors=np.array(given))
    assert list(one.anchors_[:2]) == given
    assert list(one.anchor_names_) == [names[j] for j in one.anchors_]
    assert_array_equal(one.anchors_, other.anchors_)
    # what comes then is what is farthest from these
    left = X - oracle.spanned(X, one.anchors_[:2])
    assert one.anchors_[2] == np.argmax((left**2).sum(axis=0))


def test_anchors_that_were_found_can_be_given():
    found = fit()
    again = fit(anchors=found.anchors_)
    for name in ("components_", "loadings_", "distances_", "diffuseness_"):
        assert_array_equal(getattr(again, name), getattr(found, name))


@pytest.mark.parametrize(
    ("anchors", "message"),
    [
        (["beer"], "'beer' is a name, and the features have none"),
        ([60], "60 is neither a name nor a number from 0 to 59"),
        ([1.5], "1.5 is neither a name nor a number"),
        ([3, 3], "feature 3 comes more than once"),
        ([0, 1, 2, 3], "there are 4, and n_components=3"),
        ([0, 59], "feature 59 is a combination of those before it"),
    ],
)
def test_anchors_that_cannot_be_are_refused(anchors, message):
    counts = X.copy()
    counts[:, 59] = 2 * counts[:, 0]
    with pytest.raises(ValueError, match=message):
        fit(counts, 3, anchors=anchors)


def test_a_name_that_no_feature_has_is_refused():
    with pytest.raises(ValueError, match="no feature is named 'beer'"):
        fit(pd.DataFrame(X).add_prefix("word "), 3, anchors=["word 1", "beer"])


# Topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["counts", "documents"])
def test_topics_are_the_best_combinations_of_the_anchors(weighting):
    counts = X.copy()
    counts[:, 11] = 0
    found = fit(counts, weighting=weighting)
    A, weights = counts[:, found.anchors_].astype(float), found.diffuseness_
    solved = [
        lsq_linear(A, column, (0, np.inf), method="bvls") for column in counts.T.astype(float)
    ]
    Y = np.transpose([solution.x for solution in solved])
    Y[:, found.anchors_] = np.eye(6)
    assert_allclose(found.components_, Y * weights[:, None], atol=1e-12)
    assert_allclose((found.components_**2).sum(axis=1), 1)
    assert_allclose(weights, 1 / np.sqrt((Y**2).sum(axis=1)))
    assert_allclose(found.loadings_, A / weights)
    error = np.linalg.norm(counts - found.loadings_ @ found.components_)
    assert_allclose(found.reconstruction_err_, error)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_separable_truth_is_found_again(seed):
    rng = np.random.default_rng(seed)
    L, F = rng.poisson(2.0, (40, 5)), rng.integers(0, 3, (5, 30))
    F[:, 7:12] = 4 * np.eye(5, dtype=int)  # no other word has as large a share of one topic
    assume(np.linalg.matrix_rank(L) == 5)
    largest = (F * (F > 0)).sum(axis=0)
    F[:, largest > 3] //= 2
    F[:, 7:12] = 12 * np.eye(5, dtype=int)
    found = fit(L @ F, 5)
    assert sorted(found.anchors_) == [7, 8, 9, 10, 11]
    truth = (F / np.linalg.norm(F, axis=1, keepdims=True))[found.anchors_ - 7]
    assert_allclose(found.components_, truth, atol=1e-10)
    assert_allclose(found.inverse_transform(found.loadings_), L @ F, atol=1e-8)
    assert found.reconstruction_err_ < 1e-5 * np.linalg.norm(L @ F)


def test_a_separable_truth_is_found_from_counts():
    rng = np.random.default_rng(0)
    L, F = rng.gamma(0.3, size=(2000, 5)), rng.dirichlet(np.full(40, 0.2), 5)
    F[:, :5] = 0.4 * np.eye(5)
    counts = rng.poisson(L @ F * 300)
    found = fit(counts, 5)
    assert sorted(found.anchors_) == [0, 1, 2, 3, 4]
    truth = (F / np.linalg.norm(F, axis=1, keepdims=True))[found.anchors_]
    assert (np.einsum("kj,kj->k", truth, found.components_) > 0.995).all()


# What the estimator does ----------------------------------------------------------------------


def test_new_samples_have_the_counts_of_their_anchors():
    found = fit()
    new = np.random.default_rng(1).poisson(1.0, (5, X.shape[1]))
    new[2, found.anchors_] = 0
    loadings = found.transform(new)
    assert_allclose(loadings, new[:, found.anchors_] / found.diffuseness_)
    assert not loadings[2].any()
    # a score fits loadings to all features, so that it is finite
    assert -20 < found.score(new) < 0
    assert -20 < found.score(new, completion=0.5, random_state=0) < 0


@pytest.mark.parametrize(
    "options", [{"weighting": "tf-idf"}, {"projection": 40}, {"sketch_size": 50}]
)
def test_other_options_have_the_same_numbers_in_a_store(monkeypatch, tmp_path, options):
    internals.small_blocks(monkeypatch, 300)
    one = fit(random_state=0, **options)
    nmfscale.write_store(X, tmp_path / "counts.nmf")
    internals.read_anew(monkeypatch)
    found = {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    model = nmfscale.AnchorNMF(6, n_threads=2, memory_limit="1TB", random_state=0, **options)
    with pytest.raises(StopError):
        model.set_params(callback=stop_at(3)).fit(tmp_path / "counts.nmf", **found)
    model.set_params(callback=None).fit(tmp_path / "counts.nmf", resume=True, **found)
    for name in ("components_", "loadings_", "distances_", "anchors_", "reconstruction_err_"):
        assert_array_equal(getattr(model, name), getattr(one, name))


def test_a_projection_reads_a_file_twice(monkeypatch, tmp_path):
    internals.small_blocks(monkeypatch, 300)
    nmfscale.write_store(X, tmp_path / "counts.nmf")
    internals.read_anew(monkeypatch)
    read = {
        n: fit(tmp_path / "counts.nmf", 6, memory_limit="1TB", projection=n, random_state=0)
        .history_["bytes_read"][-1]
        for n in (40, None)
    }  # fmt: skip
    assert read[None] == 4 * read[40]  # squares, an anchor each, topics


def test_a_fit_that_is_stopped_has_the_topics_so_far():
    found = fit(callback=lambda record: record["iteration"] == 3)
    assert not found.converged_ and found.stop_reason_ == "callback"
    whole = fit(n_components=len(found.anchors_))
    assert whole.converged_ and whole.stop_reason_ == "converged"
    assert_array_equal(found.anchors_, whole.anchors_)
    assert len(found.anchors_) == 3 == len(found.components_)


def test_memory_is_that_of_topics_and_loadings():
    counts, _ = nmfscale.datasets.simulate_topic_counts(3000, 4000, 20, random_state=0)
    counts = nmfscale.as_counts(counts)
    for block in counts.layout().blocks:
        block.rows  # noqa: B018
    K = 60
    fit(counts, 2)
    tracemalloc.start()
    fit(counts, K)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= K * sum(counts.shape) * 8


def test_the_shell_fits_and_draws(tmp_path, capsys):
    sp.save_npz(tmp_path / "counts.npz", sp.csr_matrix(X))
    model = tmp_path / "model.h5"
    words = ["--model", "anchor", "--weighting", "tf-idf", "--projection", "50", "--seed", "1"]
    assert run("fit", tmp_path / "counts.npz", "-k", "5", "-o", model, *words) == 0
    assert run("info", model) == 0
    assert "spanned" in capsys.readouterr().out
    for kind in ("structure", "progress", "top"):
        assert run("plot", model, "--kind", kind, "-o", tmp_path / f"{kind}.png") == 0
    found = nmfscale.load(model)
    assert found.weighting == "tf-idf" and len(found.anchors_) == 5
