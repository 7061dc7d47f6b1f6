"""Fits with weights of single entries, 0 for missing ones: likelihood, predictions, refusals."""

import anndata
import internals
import numpy as np
import oracle
import pandas as pd
import pytest
import scipy.sparse as sp
from clusters import cluster_of
from count_files import write_h5ad
from night import at_night
from numpy.testing import assert_allclose, assert_array_equal
from scipy.io import mmwrite
from small_fits import StopError, stop_at

import nmfscale

N, M, K = 120, 60, 3
rng = np.random.default_rng(0)
TOPICS = rng.dirichlet(np.full(M, 0.1), K)
SHARES = rng.dirichlet(np.full(K, 0.4), N)
X = rng.poisson(400 * SHARES @ TOPICS)
SEEN = rng.random((N, M)) > 0.3
MISSING = {"data_weights": sp.csr_array(~SEEN)}
WEIGHTS = np.where(SEEN, rng.choice([0.3, 1, 2.5], (N, M)), 0)
WEIGHTED = {"data_weights": WEIGHTS}
SOLVERS = ["auto", "em", "ccd", "scd", "sn", "newton"]
ONE = {"random_state": 0, "n_threads": 1}
SHORT = ONE | {"max_iter": 15, "tol": 0}


def numbers(fitted):
    history = [fitted.history_[name] for name in ("loglik", "kkt_loadings", "kkt_factors")]
    arrays = fitted.loadings_, fitted.components_, *history
    return b"".join(a.tobytes() for a in arrays)


def test_missing_entries_are_predicted():
    model = nmfscale.TopicModel(K, **ONE, tol=1e-3).fit(X, **MISSING)
    sizes, held = model.size_factors_[:, None], ~SEEN
    found = (sizes * model.loadings_ @ model.components_)[held]
    truth = (400 * SHARES @ TOPICS)[held]
    zeros = nmfscale.TopicModel(K, **ONE, tol=1e-3).fit(X * SEEN)
    as_zeros = (zeros.size_factors_[:, None] * zeros.loadings_ @ zeros.components_)[held]
    error, error_of_zeros = (abs(each - truth).sum() / truth.sum() for each in (found, as_zeros))
    assert error < 0.1 and error_of_zeros > 0.3


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("prior", [None, *at_night(1.3)])
def test_the_objective_is_that_of_the_weighted_entries(solver, prior):
    weights = WEIGHTS.copy()
    weights[5], weights[:, 7] = 0, 0
    how = {"prior_factors": prior, "prior_loadings": prior, "solver": solver}
    fitted = nmfscale.PoissonNMF(K, **ONE, max_iter=400, tol=1e-5, **how)
    fitted.fit(X, data_weights=weights)
    assert fitted.converged_ and fitted.has_missing_entries_
    Z, L, F = X * (weights > 0), fitted.loadings_, fitted.components_.T
    of_L, of_F = oracle.kkt_residuals(Z, L, F, weights=weights)
    if prior is None:
        found, rows = fitted.history_[-1], np.arange(N) != 5
        for value, function in (
            (fitted.loglik_, oracle.loglik_poisson), (found["deviance"], oracle.deviance_poisson)
        ):  # fmt: skip
            assert value == pytest.approx(function(Z, L, F, weights=weights).sum(), rel=1e-9)
        shares = oracle.loglik_multinomial(Z[rows], L[rows], F, weights=weights[rows])
        assert found["loglik_multinomial"] == pytest.approx(shares.sum(), rel=1e-9)
        assert_array_equal(L[5], 0)
        assert_array_equal(F[7], 0)
        assert fitted.unseen_features_[7]
    else:  # Corollary 2, rates 1
        of_L, of_F = of_L - (0.3 - L), of_F - (0.3 - F)
    assert abs(of_L).max() < 1e-3 * X.sum() / N
    assert abs(of_F).max() < 1e-3 * X.sum() / M


def test_entries_and_panels_are_the_same_likelihood():
    panel = np.repeat([0, 1], N // 2)
    measured = np.arange(M) > np.array([[10], [-1]])
    seen, how = measured[panel], ONE | {"max_iter": 25, "tol": 0}
    weights = np.random.default_rng(1).integers(1, 4, N)
    for n_components in (K, 34):  # 34 topics share correlations
        one, other = (
            nmfscale.PoissonNMF(n_components, **how).fit(X * seen, row_weights=weights, **given)
            for given in ({"data_weights": seen}, {"measured": measured, "panel": panel})
        )
        assert_allclose(one.loglik_, other.loglik_, rtol=1e-6)
    rows = np.repeat(np.arange(N), weights)
    loglik = oracle.loglik_poisson(
        (X * seen)[rows], one.loadings_[rows], one.components_.T, weights=seen[rows]
    )
    assert one.loglik_ == pytest.approx(loglik.sum(), rel=1e-9)


def test_weights_of_whole_samples_and_features():
    rows, columns = rng.choice([0.5, 1, 2], N), rng.choice([0.25, 3.0], M)
    how = ONE | {"max_iter": 400, "tol": 1e-6}
    start = {"loadings": rng.uniform(1, 2, (N, K)), "components": rng.uniform(1, 2, (K, M))}
    plain = nmfscale.PoissonNMF(K, **how).fit(X, **start)
    of_columns = {"data_weights": np.tile(columns, (N, 1))}
    for given, other, factor in (
        (np.tile(rows[:, None], M), {"row_weights": rows}, 1),
        (rows[:, None] * columns, of_columns | {"row_weights": rows}, 1),
        (np.full((N, M), 2), {}, 2),
    ):
        one = nmfscale.PoissonNMF(K, **how).fit(X, data_weights=given, **start)
        expected = nmfscale.PoissonNMF(K, **how).fit(X, **other, **start) if other else plain
        assert one.loglik_ == pytest.approx(factor * expected.loglik_, rel=1e-9)
        mu, of_other = (each.loadings_ @ each.components_ for each in (one, expected))
        assert_allclose(mu, of_other, atol=1e-3 * X.max())
    with pytest.raises(ValueError, match="fitted with data_weights="):
        nmfscale.bootstrap_fit(one, X, n_replicates=2)


def test_sparse_weights_are_those_of_their_entries():
    marked = sp.coo_array((WEIGHTS[WEIGHTS != 1], np.nonzero(WEIGHTS != 1)), X.shape)
    expected, found = (
        nmfscale.PoissonNMF(K, **SHORT).fit(X, data_weights=each) for each in (WEIGHTS, marked)
    )
    assert numbers(found) == numbers(expected)
    assert_array_equal(expected.sample_totals_, (X * SEEN).sum(axis=1))
    logs = nmfscale.PoissonNMF(K, **SHORT, solver="em", extrapolate=False).fit(X, **WEIGHTED)
    assert (np.diff(logs.history_["loglik"]) > 0).all()


def test_values_of_missing_entries_do_not_matter():
    plain = nmfscale.PoissonNMF(K, **SHORT).fit(X)
    for ones in (np.ones(X.shape), sp.csr_array(X.shape), "nan"):
        same = nmfscale.PoissonNMF(K, **SHORT).fit(X, data_weights=ones)
        assert numbers(same) == numbers(plain) and not same.has_missing_entries_
    expected = nmfscale.PoissonNMF(K, **SHORT).fit(X, **MISSING)
    nan = np.where(SEEN, X, np.nan)
    stored = sp.csr_array(np.where(SEEN, X, 1.0))
    stored.data[~SEEN[stored.nonzero()]] = np.nan
    for given in (nan, nan.tolist(), pd.DataFrame(nan), stored, sp.csc_matrix(stored)):
        found = nmfscale.PoissonNMF(K, **SHORT)
        loadings = found.fit_transform(given, data_weights="nan")
        assert numbers(found) == numbers(expected)
        assert loadings.tobytes() == expected.transform(X, **MISSING).tobytes()
    assert np.isnan(stored.data).any()  # the data of the caller are not changed
    with pytest.raises(ValueError, match="NaN"):
        nmfscale.PoissonNMF(K).fit(nan)


def written(path):
    """A file with NaN at missing entries, and the options with which it is read."""
    nan = np.where(SEEN, X, np.nan)
    kind = path.name.split(".", 1)[1]
    if kind == "npz":
        sp.save_npz(path, sp.coo_array(nan))
    elif kind == "mtx":
        mmwrite(path, sp.coo_array(nan))
    elif kind == "csv":  # NaN as empty fields
        genes, cells = map("gene {}".format, range(M)), map("cell {}".format, range(N))
        pd.DataFrame(nan.T, genes, cells).to_csv(path)
        return {"samples_in": "columns"}
    else:
        write_h5ad(path, nan if kind == "dense.h5ad" else sp.csc_array(nan))
    return {}


@pytest.mark.parametrize("name", ["X.npz", "X.mtx", "X.csv", "X.dense.h5ad", "X.h5ad"])
def test_nan_in_files(tmp_path, name):
    expected = nmfscale.PoissonNMF(K, **SHORT).fit(X, **MISSING)
    loadings, path = expected.transform(X, **MISSING), tmp_path / name
    how = written(path)
    with pytest.raises(ValueError, match="(NaN.*cell 0|NaN.* row 0|is empty).*data_weights='nan'"):
        nmfscale.PoissonNMF(K).fit(path, **how)
    how |= {"data_weights": "nan"}
    for limit in (None, "1TB"):
        found = nmfscale.PoissonNMF(K, **SHORT, memory_limit=limit).fit(path, **how)
        assert numbers(found) == numbers(expected)
        assert found.transform(path, **how).tobytes() == loadings.tobytes()


def test_nan_in_parts_of_files(tmp_path):
    nan = np.where(SEEN, X, np.nan)
    path = write_h5ad(tmp_path / "one.h5ad", nan)
    turned = pd.DataFrame(index=[f"var-{j}" for j in reversed(range(M))])
    sources = [path, anndata.AnnData(nan[:, ::-1], var=turned)]
    rows, columns = np.arange(N) % 3 == 0, np.arange(M) > 9
    part = {"data_weights": sp.csr_array(~SEEN[np.ix_(rows, columns)])}
    expected = nmfscale.PoissonNMF(K, **SHORT).fit(X[np.ix_(rows, columns)], **part)
    both = {"data_weights": sp.csr_array(np.vstack([~SEEN, ~SEEN]))}
    joined = nmfscale.PoissonNMF(K, **SHORT).fit(np.vstack([X, X]), **both)
    for limit in (None, "1TB"):
        model = nmfscale.PoissonNMF(K, **SHORT, memory_limit=limit)
        model.fit(path, data_weights="nan", mask_obs=rows, mask_var=columns)
        assert numbers(model) == numbers(expected)
        assert numbers(model.fit(sources, data_weights="nan")) == numbers(joined)


@pytest.mark.nightly
def test_nan_in_a_file_on_a_cluster(tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, 400)
    expected = nmfscale.PoissonNMF(K, **SHORT).fit(X, **MISSING)
    path = write_h5ad(tmp_path / "one.h5ad", np.where(SEEN, X, np.nan))
    with cluster_of(2, active=False) as client:
        how = {"data_weights": "nan", "client": client}
        found = nmfscale.PoissonNMF(K, **SHORT).fit(path, **how)
        assert numbers(found) == numbers(expected)
        loadings = found.transform(path, **how)
    assert loadings.tobytes() == expected.transform(X, **MISSING).tobytes()


@pytest.mark.parametrize("weights", [SEEN * 1.0, WEIGHTS], ids=["missing", "weighted"])
def test_loadings_and_scores_of_samples(weights):
    given, one = (
        {"data_weights": weights},
        nmfscale.TopicModel(K, **ONE, tol=1e-6, prior_factors=1.1),
    )
    found, F = one.fit_transform(X, **given), one.components_.T
    assert_allclose(found, one.loadings_, atol=1e-2)
    L = nmfscale.PoissonNMF(K).fit(X, components=F.T, fixed_topics=[True] * K).transform(X, **given)
    slopes = (weights * (1 - X / np.maximum(L @ F.T, 1e-300))) @ F  # of a convex problem
    assert abs(L * slopes).max() < 1e-6 * X.sum() / N and slopes.min() > -2e-6
    assert_allclose(L / L.sum(axis=1, keepdims=True), found, atol=1e-6)
    score = one.score(X, **given)
    assert score == pytest.approx(mean_log_share(X, L, F, weights), rel=1e-9)
    assert one.score(X, data_weights=3 * weights) == pytest.approx(score, rel=1e-9)
    assert one.perplexity(X, **given) == pytest.approx(np.exp(-score))
    # its own samples have missing entries, which the model does not keep; others may have none
    with pytest.raises(ValueError, match="nothing says which entries of X are missing: pass"):
        one.score(X * SEEN)
    assert score > one.score(X * SEEN, data_weights=np.ones_like(SEEN)) + 0.1
    with pytest.warns(UserWarning, match="nothing says what is missing in X"):
        one.score(X[1:])
    # document completion
    Z = X * SEEN
    held, rng = np.zeros_like(Z), np.random.RandomState(0)
    held[Z > 0] = rng.binomial(Z[Z > 0], 0.5)
    L = one.transform(Z - held, **given)
    found = one.score(X, **given, completion=0.5, random_state=0)
    assert found == pytest.approx(mean_log_share(held, L, F, weights), rel=1e-9)


def mean_log_share(X, L, F, weights):
    """The mean of log p over weighted counts, with p = w mu / sum(w mu)."""
    mu = weights * (L @ F.T)
    shares = mu / mu.sum(axis=1, keepdims=True)
    some = (X > 0) & (weights > 0)
    return ((weights * X)[some] * np.log(shares[some])).sum() / (weights * X).sum()


def test_topics_without_an_observed_feature_in_a_sample():
    F, seen = np.zeros((M, 2)), np.ones((N, M), bool)
    F[:20, 0], F[20:45, 1], seen[:9, :20] = 1, 1, False
    model = nmfscale.PoissonNMF(2, max_iter=3, tol=0)
    model.fit(X, components=F.T, fixed_topics=np.ones(2, bool), data_weights=seen)
    assert_array_equal(model.loadings_[:9, 0], 0)
    assert (model.loadings_[9:, 0] > 0).any()
    with pytest.warns(UserWarning, match="left out"):
        loadings = model.transform(X, data_weights=seen)
    assert_array_equal(loadings[:9, 0], 0)
    assert np.isfinite(loadings).all()


def test_a_fit_is_resumed_from_a_file(tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, 400)
    expected = nmfscale.PoissonNMF(K, **SHORT).fit(X, **WEIGHTED)
    store = nmfscale.write_store(X, tmp_path / "counts.nmf").path
    state = {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    model = nmfscale.PoissonNMF(K, **SHORT, callback=stop_at(6))
    with pytest.raises(StopError):
        model.fit(X, **state, **WEIGHTED)
    model.set_params(memory_limit="1TB", n_threads=2, callback=None)
    with pytest.raises(ValueError, match="fixed parameters, measured features"):
        model.fit(store, **state, resume=True, data_weights=2 * WEIGHTS)
    assert numbers(model.fit(store, **state, resume=True, **WEIGHTED)) == numbers(expected)
    found = model.transform(store, **WEIGHTED)
    assert found.tobytes() == expected.transform(X, **WEIGHTED).tobytes()
    expected.save(tmp_path / "model.h5")
    assert nmfscale.load(tmp_path / "model.h5").has_missing_entries_


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"data_weights": 0.5 - SEEN}, {}, r"data_weights\[\d+, \d+\] is -0.5; non-negative"),
        ({"data_weights": sp.csr_array(0.5 - SEEN)}, {}, r"data_weights\[\d+, \d+\] is -0.5; non"),
        ({"data_weights": sp.csr_array(1 - SEEN)}, {}, r"all its entries are 1, .*astype\(bool\)"),
        ({"data_weights": SEEN[:, 1:]}, {}, r"data_weights has shape \(120, 59\)"),
        ({"data_weights": "NaN"}, {}, "data_weights='NaN': give weights"),
        (MISSING | {"measured": np.arange(M) > 0}, {}, "cannot be combined with measured"),
        (MISSING, {"solver": "joint-em"}, "data_weights cannot be combined with solver='joint-em'"),
        (MISSING, {"init": "nndsvd"}, "data_weights cannot be combined with init='nndsvd'"),
    ],
)
def test_what_cannot_be_is_refused(given, options, message):
    with pytest.raises(ValueError, match=message):
        nmfscale.PoissonNMF(K, **SHORT, **options).fit(X, **given)


def test_tests_that_pass_the_counts_again_are_refused():
    model = nmfscale.TopicModel(K, **SHORT).fit(X, **MISSING)
    with pytest.raises(ValueError, match=r"fitted with data_weights=, .* describe"):
        nmfscale.bootstrap_fit(model, X * SEEN, n_replicates=2)
    with pytest.raises(TypeError, match="'nan' is for files and objects with NaN, .* a Counts"):
        model.fit(nmfscale.as_counts(X), data_weights="nan")
