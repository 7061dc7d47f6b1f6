"""Starting points: their formulas, and that none ever fails or holds a zero or a NaN."""

import json
import warnings

import internals
import numpy as np
import oracle
import pytest
import scipy.sparse as sp
from scipy.linalg import block_diag
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from nmfscale import PoissonNMF, clustering_score
from nmfscale.engine.local import LocalExecutor
from nmfscale.methods.conversion import poisson_to_multinomial
from nmfscale.methods.factors import MINVAL, Constraints
from nmfscale.methods.poisson.joint_em import JointEM
from nmfscale.methods.starts import topic_score
from nmfscale.methods.starts.initialize import check_factors, initialize
from nmfscale.methods.starts.singular_vectors import singular_vectors
from nmfscale.methods.starts.topic_score import NoSimplexError, hunt_vertices, mixture_weights
from nmfscale.readers.open import as_counts

STARTS = ["auto", "topic-score", "clusters", "random", "nndsvd"]


def _fitter(X, n_steps=3):
    """Return the EM update of loadings, F held, as a callable."""
    X = sp.csr_array(X, dtype=np.float64)
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))

    def fit_rows(F, L):
        for _ in range(n_steps):
            expected = np.einsum("ek,ek->e", L[rows], F[X.indices])
            ratio = sp.csr_array((X.data / expected, X.indices, X.indptr), shape=X.shape)
            L = np.maximum(L * (ratio @ F) / F.sum(axis=0), MINVAL)
        return L.astype(F.dtype)

    return fit_rows


def _start(X, n_components, init, **options):
    options = {"random_state": 0} | options
    counts = as_counts(X, integer="allow")
    return initialize(counts, n_components, init, fit_rows=_fitter(X), **options)


def _counts(n_samples=40, n_features=30, n_components=3, mean=2.0):
    rng = np.random.default_rng(7)
    L = rng.dirichlet(np.full(n_components, 0.3), n_samples)
    F = rng.dirichlet(np.full(n_features, 0.3), n_components)
    return rng.poisson(mean * n_features * L @ F)


def _loglik(X, L, F):
    return oracle.loglik_poisson(X, L, F).sum()


def _assert_start(L, F, shape, n_components, dtype=np.float64):
    for factor, length in ((L, shape[0]), (F, shape[1])):
        assert factor.shape == (length, n_components)
        assert factor.dtype == dtype
        assert factor.flags.c_contiguous
        assert np.isfinite(factor).all()
        assert factor.min() >= np.asarray(MINVAL, dtype=dtype)


# Every start ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("init", STARTS)
def test_starts_are_positive_and_balanced(init, dtype):
    X = _counts()
    L, F = _start(X, 3, init, dtype=dtype)
    _assert_start(L, F, X.shape, 3, dtype)
    np.testing.assert_allclose(L.mean(axis=0), F.mean(axis=0), rtol=1e-5)
    assert (L @ F.T).sum() == pytest.approx(X.sum(), rel=0.05)


@pytest.mark.parametrize("init", STARTS)
def test_same_seed_same_start_for_any_number_of_threads(init):
    X = _counts(n_samples=300, n_features=200, n_components=4)
    with threadpool_limits(2):
        first = _start(X, 4, init)
    with threadpool_limits(1):
        second = _start(X, 4, init)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n_components", [1, 2, 5, 9])
@pytest.mark.parametrize(
    "X",
    [
        np.ones((6, 7), dtype=int),
        np.eye(8, dtype=int),
        np.kron(np.eye(3, dtype=int), np.full((2, 3), 4)),
        np.outer(np.arange(9), np.arange(5)),
        np.zeros((4, 5), dtype=int),
        np.array([[3]]),
        np.array([[0, 0, 9, 0, 1]]),
        np.vstack([_counts(12, 20), np.zeros((3, 20), dtype=int)]),
        np.hstack([_counts(20, 12), np.zeros((20, 3), dtype=int)]),
        _counts(15, 15).astype(np.uint8),
        _counts(15, 15) + 0.25,
    ],
    ids=(
        "constant diagonal blocks rank-one zero scalar row empty-rows empty-columns uint8 float"
    ).split(),
)
@pytest.mark.parametrize("init", STARTS)
def test_no_start_fails(init, X, n_components):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Topic-SCORE found no")
        L, F = _start(X, n_components, init)
    _assert_start(L, F, X.shape, n_components)


@pytest.mark.parametrize("n_components", [12, 15, 25])
def test_more_topics_than_the_reference_program_can_start(n_components):
    X = _counts(n_samples=200, n_features=150, n_components=n_components)
    L, F = _start(X, n_components, "topic-score")
    _assert_start(L, F, X.shape, n_components)
    assert _loglik(X, L, F) > _loglik(X, *_start(X, n_components, "random"))


def test_one_component_is_solved():
    X = _counts()
    for init in (*STARTS, np.zeros(len(X))):
        L, F = _start(X, 1, init)
        np.testing.assert_allclose(
            L @ F.T, np.outer(X.sum(axis=1), X.sum(axis=0)) / X.sum(), rtol=1e-9, atol=1e-9
        )


def test_input_is_not_written_to():
    X = sp.csr_array(_counts())
    kept = X.copy()
    for init in STARTS:
        _start(X, 3, init)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(X, name), getattr(kept, name))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_storage_does_not_matter(index):
    X = sp.csr_array(_counts())
    plain = _start(X, 3, "topic-score")
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(np.int64)
    for one, other in zip(plain, _start(X.astype(np.float32), 3, "topic-score"), strict=True):
        np.testing.assert_array_equal(one, other)


# Random, singular vectors, clusters -------------------------------------------------------------


def test_random_rows_have_their_totals():
    X = _counts()
    L, F = _start(X, 4, "random")
    np.testing.assert_allclose((L @ F.T).sum(axis=1), X.sum(axis=1), rtol=1e-10)
    shape_of_F = np.random.RandomState(0).uniform(size=(X.shape[1], 4))
    np.testing.assert_allclose(F / F.sum(axis=0), shape_of_F / shape_of_F.sum(axis=0))
    assert not np.allclose(F, _start(X, 4, "random", random_state=1)[1])


def test_singular_vectors_of_separate_blocks():
    X = np.kron(np.diag([1, 2]), np.full((3, 4), 10))
    L, F = _start(X, 2, "nndsvd")
    np.testing.assert_allclose((L @ F.T).sum(), X.sum(), rtol=1e-12)
    np.testing.assert_allclose(L @ F.T, X, rtol=0.1, atol=0.1 * X.max())


def test_clusters_give_the_frequencies_of_fasttopics(reference_dir):
    text = (reference_dir / "fasttopics_small_goldens.json").read_text()
    goldens = json.loads(text)["goldens"]
    model, expected = goldens["fit_multinom_model"], goldens["init_poisson_nmf_from_clustering"]
    X = np.array(model["X"])
    topics = poisson_to_multinomial(*_start(X, 3, model["cluster"]))
    theirs = poisson_to_multinomial(np.array(expected["L"]), np.array(expected["F"]))
    np.testing.assert_allclose(theirs.frequencies, model["F"], rtol=1e-8)
    # a tenth is smoothed here
    overall = X.sum(axis=0) / X.sum()
    np.testing.assert_allclose(
        topics.frequencies, 0.9 * theirs.frequencies + 0.1 * overall[:, np.newaxis], rtol=1e-8
    )
    np.testing.assert_allclose(
        topics.proportions, 0.9 * theirs.proportions + 0.1 / 3, rtol=1e-8, atol=1e-12
    )
    np.testing.assert_allclose(topics.size_factors, X.sum(axis=1), rtol=1e-8)


@pytest.mark.parametrize(
    "labels", [[2, 0, 1, 1], list("cabb"), np.array(["c", "a", "b", "b"], dtype=object)]
)
def test_clusters_in_the_order_of_their_labels(labels):
    X = np.array([[5, 0, 1], [0, 2, 0], [1, 1, 1], [0, 0, 0]])
    L, _ = _start(X, 3, labels)
    np.testing.assert_array_equal(np.argmax(L[:3], axis=1), [2, 0, 1])
    np.testing.assert_allclose(L[3], MINVAL)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (
            "novel",
            "init='novel' is not one of 'auto', 'topic-score', 'clusters', 'random', 'nndsvd'",
        ),
        ([0, 1], r"array of shape \(2,\); cluster labels need shape \(n_samples,\) = \(4,\)"),
        (
            (np.ones((4, 3)), np.ones((5, 3))),
            r"pair of matrices.* fit\(X, loadings=L, components=F.T\)",
        ),
        (np.ones((4, 3)), "Give factors to start from as L and F"),
        ([0, 1, 1, 0], "2 different cluster labels, but n_components is 3"),
        ([0, 1, np.nan, 2], r"init\[2\] is missing"),
        (["a", None, "b", "c"], r"init\[1\] is missing"),
    ],
)
def test_bad_init_is_named(init, message):
    with pytest.raises(ValueError, match=message):
        _start(_counts(4, 5), 3, init)


def test_missing_labels_of_pandas_are_refused():
    pd = pytest.importorskip("pandas")
    X, labels = _counts(4, 5), pd.Series(["a", "b", pd.NA, "c"], dtype="string")
    for call, message in [
        (lambda: PoissonNMF(3, init=labels).fit(X), r"init\[2\] is missing"),
        (lambda: PoissonNMF(3).fit(X, measured=np.ones((3, 5), bool), panel=labels),
         r"panel\[2\] is missing"),
        (lambda: clustering_score(np.ones((4, 2)), labels), "missing labels.* at sample 2"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()


# Topic-SCORE ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(reference_dir):
    with np.load(reference_dir / "fasttopics_topicscore_neurips_k5.npz") as arrays:
        return dict(arrays)


def _sorted_rows(points):
    return points[np.lexsort(points.T)]


def _matched_correlation(found, expected):
    """Return the correlations of the columns of two matrices, matched."""
    K = found.shape[1]
    correlation = np.corrcoef(found.T, expected.T)[:K, K:]
    return correlation[linear_sum_assignment(-correlation)]


def test_factors_of_fasttopics_from_its_vectors(reference):
    size = np.abs(reference["V"][:, :1])
    F = size * mixture_weights(reference["V"][:, 1:] / size, reference["vertices"])
    np.testing.assert_allclose(F / F.sum(axis=0), reference["F"], atol=1e-14)


def test_singular_vectors_of_fasttopics(reference, data_dir):
    _, _, vectors = singular_vectors(as_counts(sp.load_npz(data_dir / "neurips.npz")), 5)
    overlap = np.abs(np.sum(vectors * reference["V"], axis=0))
    np.testing.assert_allclose(overlap, 1.0, atol=1e-3)


@pytest.mark.parametrize("n_components", [2, 3, 4])
def test_vertices_are_those_of_the_plain_search(n_components):
    rng = np.random.default_rng(n_components)
    for _ in range(5):
        centers = rng.normal(size=(3 * n_components, n_components - 1))
        found = hunt_vertices(centers, n_components)
        expected = oracle.hunt_vertices(centers, n_components)
        np.testing.assert_array_equal(_sorted_rows(found), _sorted_rows(expected))


@pytest.mark.parametrize("n_components", [2, 5, 10, 11, 20])
def test_corners_of_a_simplex_are_found(n_components):
    rng = np.random.default_rng(0)
    corners = rng.normal(size=(n_components, n_components - 1))
    inside = rng.dirichlet(np.ones(n_components), 2 * n_components) @ corners
    found = hunt_vertices(np.vstack([inside, corners, corners]), n_components)
    np.testing.assert_array_equal(_sorted_rows(found), _sorted_rows(corners))


def test_points_in_too_few_places_are_refused():
    line = np.linspace(0.0, 1.0, 9)[:, np.newaxis] * np.array([1.0, 2.0])
    with pytest.raises(NoSimplexError, match="too few dimensions"):
        hunt_vertices(line, 3)
    with pytest.raises(NoSimplexError, match="only 2 distinct places"):
        hunt_vertices(np.repeat(line[:2], 5, axis=0), 3)


def test_topics_are_recovered():
    counts, truth = _simulated()
    for seed in (0, 1):
        F = topic_score.topic_score(counts, 4, np.random.RandomState(seed))
        assert _matched_correlation(F, truth).min() > 0.9


def test_topics_are_recovered_from_samples_of_very_different_totals():
    counts, truth = _simulated(totals=np.r_[np.full(3, 40_000), np.full(297, 150)])
    F = topic_score.topic_score(counts, 4, np.random.RandomState(0))
    assert _matched_correlation(F, truth).min() > 0.9


def test_part_of_the_rows_is_enough(monkeypatch):
    counts, truth = _simulated()
    internals.draw_rows_of(monkeypatch, counts.nnz // 3)
    F = topic_score.topic_score(counts, 4, np.random.RandomState(0))
    assert F.shape == truth.shape
    assert _matched_correlation(F, truth).min() > 0.9


def test_features_outside_the_drawn_rows_get_their_share(monkeypatch):
    X = _counts(n_samples=60)
    X[:, 5] = 0
    X[20, 5] = 6
    internals.draw_rows_of(monkeypatch, np.count_nonzero(X) // 6)
    for seed in range(4):
        F = topic_score.topic_score(as_counts(X), 3, np.random.RandomState(seed))
        assert np.isfinite(F).all()
        assert F[5].max() > 0.0


def test_samples_that_share_no_feature_make_topics_of_their_own():
    X = block_diag(_counts(20, 9, 1), _counts(30, 12, 1), _counts(25, 10, 1))
    F = topic_score.topic_score(as_counts(X), 3, np.random.RandomState(0))
    blocks = np.repeat([0, 1, 2], [9, 12, 10])
    shares = np.array([[F[blocks == block, k].sum() for k in range(3)] for block in range(3)])
    assert shares.max(axis=1).min() > 0.95
    assert len(set(shares.argmax(axis=1))) == 3


def test_fallback_warns_only_if_topic_score_was_asked_for():
    X = np.outer(np.arange(1, 13), np.arange(1, 11))
    with pytest.warns(UserWarning, match="found no 2 topics: .*Starting at random"):
        asked = _start(X, 2, "topic-score")
    for one, other in zip(asked, _start(X, 2, "auto"), strict=True):
        np.testing.assert_array_equal(one, other)


def _simulated(totals=(400,) * 300):
    rng = np.random.default_rng(3)
    F = rng.dirichlet(np.full(120, 0.1), 4).T
    F[:12] = 0.0
    F[np.arange(12), np.arange(12) % 4] = 0.05
    F /= F.sum(axis=0)
    P = rng.dirichlet(np.full(4, 0.4), 300)
    return as_counts(rng.poisson(np.reshape(totals, (-1, 1)) * P @ F.T)), F


# Given factors ----------------------------------------------------------------------------------


def test_given_factors_are_read_once_and_floored_by_the_fit():
    counts = as_counts(_counts(4, 5))
    L, F = np.asfortranarray(np.ones((4, 2), np.float32)), [[0, 1]] * 5
    checked_L, checked_F = check_factors(L, F, counts, 2)
    assert checked_L is L
    np.testing.assert_array_equal(checked_F, F)
    blocks = LocalExecutor(counts.layout(), 1)
    model = JointEM(counts, blocks, lambda: (checked_L, checked_F), 2, np.float32, Constraints())
    model.state = model.make_state(np.float32)
    started = model.result()
    _assert_start(started["L"], started["F"], counts.shape, 2, np.float32)
    np.testing.assert_array_equal(started["F"][:, 0], np.float32(MINVAL))
    assert check_factors(None, F, counts, 2)[0] is None
    assert check_factors(L, None, counts, 2)[1] is None


@pytest.mark.parametrize(
    ("L", "F", "message"),
    [
        (
            np.ones((4, 3)),
            None,
            r"loadings has shape \(4, 3\).*\(n_samples, n_components\) = \(4, 2\)",
        ),
        (None, np.ones((4, 2)), r"components has .* \(n_components, n_features\) = \(2, 5\)"),
        ([[1, 1], [1, -3], [1, 1], [1, 1]], None, r"loadings\[1, 1\] is -3"),
        (None, np.full((5, 2), np.nan), r"components\[0, 0\] is nan"),
        (np.full((4, 2), 1e300), None, r"loadings\[0, 0\] is 1e\+300.*below 1e\+15"),
        (np.full((4, 2), 1j), None, "loadings has type complex128"),
    ],
)
def test_bad_given_factors_are_named(L, F, message):
    with pytest.raises(ValueError, match=message):
        check_factors(L, F, as_counts(_counts(4, 5)), 2)
