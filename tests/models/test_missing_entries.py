"""Fits to counts of which single entries are missing: their likelihood, predictions, refusals."""

import internals
import numpy as np
import oracle
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from small_fits import StopError, stop_at

import nmfscale

N, M, K = 120, 60, 3
rng = np.random.default_rng(0)
TOPICS = rng.dirichlet(np.full(M, 0.1), K)
SHARES = rng.dirichlet(np.full(K, 0.4), N)
X = rng.poisson(400 * SHARES @ TOPICS)
SEEN = rng.random((N, M)) > 0.3
MISSING = {"data_weights": sp.csr_array(~SEEN)}
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
@pytest.mark.parametrize("prior", [None, 1.3])
def test_the_objective_is_that_of_the_observed_entries(solver, prior):
    seen = SEEN.copy()
    seen[5], seen[:, 7] = False, False
    how = {"prior_factors": prior, "prior_loadings": prior, "solver": solver}
    fitted = nmfscale.PoissonNMF(K, **ONE, max_iter=400, tol=1e-5, **how)
    fitted.fit(X, data_weights=seen * 1.0)
    assert fitted.converged_ and fitted.has_missing_entries_
    L, F = fitted.loadings_, fitted.components_.T
    of_L, of_F = oracle.kkt_residuals(X * seen, L, F, measured=seen)
    if prior is None:
        found, rows = fitted.history_[-1], np.arange(N) != 5
        for value, function in (
            (fitted.loglik_, oracle.loglik_poisson), (found["deviance"], oracle.deviance_poisson)
        ):  # fmt: skip
            assert value == pytest.approx(function(X * seen, L, F, measured=seen).sum(), rel=1e-9)
        shares = oracle.loglik_multinomial((X * seen)[rows], L[rows], F, measured=seen[rows])
        assert found["loglik_multinomial"] == pytest.approx(shares.sum(), rel=1e-9)
        assert_array_equal(L[5], 0)
        assert_array_equal(F[7], 0)
        assert fitted.unseen_features_[7]
    else:  # Corollary 2, rates 1
        of_L, of_F = of_L - (0.3 - L), of_F - (0.3 - F)
    assert abs(of_L).max() < 1e-3 * X.sum() / N
    assert abs(of_F).max() < 1e-3 * X.sum() / M


def test_entries_and_batches_are_the_same_likelihood():
    batch = np.repeat([0, 1], N // 2)
    measured = np.arange(M) > np.array([[10], [-1]])
    seen, how = measured[batch], ONE | {"max_iter": 25, "tol": 0}
    weights = np.random.default_rng(1).integers(1, 4, N)
    for n_components in (K, 34):  # 34 topics share correlations
        one, other = (
            nmfscale.PoissonNMF(n_components, **how).fit(X * seen, row_weights=weights, **given)
            for given in ({"data_weights": seen}, {"measured": measured, "batch": batch})
        )
        assert_allclose(one.loglik_, other.loglik_, rtol=1e-6)
    rows = np.repeat(np.arange(N), weights)
    loglik = oracle.loglik_poisson(
        (X * seen)[rows], one.loadings_[rows], one.components_.T, measured=seen[rows]
    )
    assert one.loglik_ == pytest.approx(loglik.sum(), rel=1e-9)


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


def test_loadings_and_scores_of_samples():
    one = nmfscale.TopicModel(K, **ONE, tol=1e-6)
    found = one.fit_transform(X, **MISSING)
    assert_allclose(found, one.loadings_, atol=1e-2)
    shares = oracle.loglik_multinomial(X * SEEN, found * 400, one.components_.T, measured=SEEN)
    Z = X * SEEN
    constant = oracle.loglik_multinomial(Z, Z.astype(float), np.eye(M)).sum()
    entropy = np.sum(Z * np.log(np.maximum(Z, 1) / Z.sum(axis=1, keepdims=True)))
    score = one.score(X, **MISSING)
    assert score == pytest.approx((shares.sum() - constant + entropy) / Z.sum(), rel=1e-6)
    assert one.perplexity(X, **MISSING) == pytest.approx(np.exp(-score))
    with pytest.warns(UserWarning, match="nothing says what is missing in X"):
        as_zeros = one.score(Z)
    assert score > as_zeros + 0.1
    held_out = {"completion": 0.5, "random_state": 0}
    assert one.score(X, **held_out, **MISSING) > one.score(Z, **held_out, data_weights=X >= 0) + 0.1


def test_topics_without_an_observed_feature_in_a_sample():
    F, seen = np.zeros((M, 2)), np.ones((N, M), bool)
    F[:20, 0], F[20:45, 1], seen[:9, :20] = 1, 1, False
    model = nmfscale.PoissonNMF(2, max_iter=3, tol=0)
    model.fit(X, F=F, fixed_topics=np.ones(2, bool), data_weights=seen)
    assert_array_equal(model.loadings_[:9, 0], 0)
    assert (model.loadings_[9:, 0] > 0).any()
    with pytest.warns(UserWarning, match="left out"):
        loadings = model.transform(X, data_weights=seen)
    assert_array_equal(loadings[:9, 0], 0)
    assert np.isfinite(loadings).all()


def test_a_fit_is_resumed_from_a_file(tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, 400)
    expected = nmfscale.PoissonNMF(K, **SHORT).fit(X, **MISSING)
    store = nmfscale.write_store(X, tmp_path / "counts.nmf").path
    state = {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    model = nmfscale.PoissonNMF(K, **SHORT, callback=stop_at(6))
    with pytest.raises(StopError):
        model.fit(X, **state, **MISSING)
    model.set_params(memory_limit="1TB", n_threads=2, callback=None)
    with pytest.raises(ValueError, match="fixed parameters, measured features"):
        model.fit(store, **state, resume=True, data_weights=SEEN | (X > 9))
    assert numbers(model.fit(store, **state, resume=True, **MISSING)) == numbers(expected)
    found = model.transform(store, **MISSING)
    assert found.tobytes() == expected.transform(X, **MISSING).tobytes()
    expected.save(tmp_path / "model.h5")
    assert nmfscale.load(tmp_path / "model.h5").has_missing_entries_


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"data_weights": SEEN * 1.0 + (X > 30)}, {}, r"data_weights\[\d+, \d+\] is 2: give 1"),
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
    with pytest.raises(ValueError, match=r"fitted with data_weights=, .*: describe"):
        nmfscale.bootstrap_fit(model, X * SEEN, n_replicates=2)
    with pytest.raises(TypeError, match="'nan' is for arrays, .* DataFrames, and X is a Counts"):
        model.fit(nmfscale.as_counts(X), data_weights="nan")
