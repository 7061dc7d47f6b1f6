"""Fits in which panels of samples have features of their own: the others are missing, not 0."""

import internals
import numpy as np
import oracle
import pandas as pd
import pytest
from night import at_night
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment

import nmfscale

N, M, K = 120, 60, 3
PANEL = np.repeat(["b", "a"], N // 2)
MEASURED = np.ones((2, M), bool)
MEASURED[0, :20] = False  # of "a", whose label comes first
MEASURED[1, 45:] = False
MASK = MEASURED[(PANEL == "b").astype(int)]
SOLVERS = ["auto", "em", "ccd", "scd", "sn", "newton"]


def simulated(n=N):
    rng = np.random.default_rng(0)
    topics, shares = rng.dirichlet(np.full(M, 0.1), K), rng.dirichlet(np.full(K, 0.4), n)
    return rng.poisson(400 * shares @ topics), shares


FULL, SHARES = simulated()
X = FULL * MASK
GIVEN = {"measured": MEASURED, "panel": PANEL}
SHORT = {"random_state": 0, "max_iter": 15, "tol": 0}


def error(proportions):
    """Mean error of proportions, topics matched with those of the truth."""
    errors = abs(SHARES[:, :, None] - proportions[:, None, :]).mean(axis=0)
    return errors[linear_sum_assignment(errors)].mean()


def factors(fitted):
    return fitted.loadings_, fitted.components_.T


def numbers(fitted):
    history = [fitted.history_[name] for name in ("loglik", "kkt_loadings", "kkt_factors")]
    return b"".join(a.tobytes() for a in (*factors(fitted), *history))


def test_the_truth_is_found_where_zeros_hide_it():
    how = {"random_state": 0, "n_init": 3}
    plain = nmfscale.TopicModel(K, **how).fit(X)
    full = nmfscale.TopicModel(K, **how).fit(FULL)
    masked = nmfscale.TopicModel(K, **how).fit(X, **GIVEN)
    assert error(plain.loadings_) > 0.1
    assert error(masked.loadings_) < 0.03 and error(full.loadings_) < 0.02
    # sizes are of all features, and comparable between the panels
    assert_allclose(masked.size_factors_, 400, rtol=0.5)
    assert masked.size_factors_.sum() > 1.1 * X.sum()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("prior", [None, *at_night(1.3)])
def test_the_objective_is_that_of_what_was_measured(solver, prior):
    how = {"prior_factors": prior, "prior_loadings": prior, "solver": solver}
    fitted = nmfscale.PoissonNMF(K, random_state=0, max_iter=400, tol=1e-5, **how).fit(X, **GIVEN)
    assert fitted.converged_
    L, F = factors(fitted)
    loglik = oracle.loglik_poisson(X, L, F, weights=MASK).sum()
    of_L, of_F = oracle.kkt_residuals(X, L, F, weights=MASK)
    if prior is None:
        assert fitted.loglik_ == pytest.approx(loglik, rel=1e-9)
        found = fitted.history_[-1]
        deviance = oracle.deviance_poisson(X, L, F, weights=MASK).sum()
        assert found["deviance"] == pytest.approx(deviance, rel=1e-6)
        multinomial = oracle.loglik_multinomial(X, L, F, weights=MASK).sum()
        assert found["loglik_multinomial"] == pytest.approx(multinomial, rel=1e-6)
    else:  # Corollary 2, rates 1
        of_L, of_F = of_L - (0.3 - L), of_F - (0.3 - F)
    assert abs(of_L).max() < 1e-3 * X.sum() / N
    assert abs(of_F).max() < 1e-3 * X.sum() / M


def test_shared_correlations_and_weights_of_samples():
    weights = np.random.default_rng(1).integers(1, 4, N)
    how = {"random_state": 0, "max_iter": 60, "tol": 0}
    one = nmfscale.PoissonNMF(34, **how).fit(X, row_weights=weights, **GIVEN)
    rows = np.repeat(np.arange(N), weights)
    loglik = oracle.loglik_poisson(X[rows], one.loadings_[rows], one.components_.T,
                                   weights=MASK[rows]).sum()  # fmt: skip
    assert one.loglik_ == pytest.approx(loglik, rel=1e-9)


def test_all_measured_is_a_plain_fit():
    plain = nmfscale.PoissonNMF(K, **SHORT).fit(X)
    for measured, panel in ((np.ones((2, M), bool), PANEL), (np.ones(M, bool), None)):
        one = nmfscale.PoissonNMF(K, **SHORT).fit(X, measured=measured, panel=panel)
        assert numbers(one) == numbers(plain)
        assert one.measured_ is None and one.panel_ is None


def test_one_panel_is_a_fit_of_its_features():
    features = MEASURED[0]
    L, F = (np.random.default_rng(0).random((size, K)) for size in (N, M))
    how = {"max_iter": 400, "tol": 1e-7}
    counts = FULL * features
    one = nmfscale.PoissonNMF(K, **how).fit(counts, loadings=L, components=F.T, measured=features)
    other = nmfscale.PoissonNMF(K, **how).fit(
        counts[:, features], loadings=L, components=F[features].T
    )
    assert one.loglik_ == pytest.approx(other.loglik_, rel=1e-9)
    assert_allclose(one.inverse_transform(one.loadings_)[:, features],
                    other.inverse_transform(other.loadings_), atol=1e-2)  # fmt: skip
    assert (one.components_[:, ~features] == 0).all()


def test_loadings_and_scores_of_samples():
    one = nmfscale.TopicModel(K, random_state=0, n_init=3, tol=1e-7, max_iter=2000)
    found = one.fit_transform(X, **GIVEN)
    assert_allclose(found, one.loadings_, atol=2e-3)
    assert found.tobytes() == one.transform(X, **GIVEN).tobytes()
    # a panel is what missing="restrict" makes of its columns
    names = [f"gene{j}" for j in range(M)]
    one.feature_names_in_ = np.array(names, object)
    for g, panel in enumerate(["a", "b"]):
        rows, features = panel == PANEL, np.flatnonzero(MEASURED[g])
        table = pd.DataFrame(X[rows][:, features], columns=np.array(names)[features])
        with pytest.warns(UserWarning, match="are left out"):
            restricted = one.transform(table, missing="restrict")
        assert_allclose(restricted, found[rows], atol=1e-6)
    own = pd.DataFrame(X[:, 5:], columns=np.array(names)[5:])
    with (
        pytest.warns(UserWarning, match="are left out"),
        pytest.warns(UserWarning, match="nothing says what was measured in X"),
    ):
        one.transform(own, missing="restrict")
    del one.feature_names_in_
    L, F = found * 400, one.components_.T
    shares = oracle.loglik_multinomial(X, L, F, weights=MASK).sum()
    constant = oracle.loglik_multinomial(X, X.astype(float), np.eye(M)).sum()
    entropy = np.sum(X * np.log(np.maximum(X, 1) / X.sum(axis=1, keepdims=True)))
    score = one.score(X, **GIVEN)
    assert score == pytest.approx((shares - constant + entropy) / X.sum(), rel=1e-6)
    assert one.perplexity(X, **GIVEN) == pytest.approx(np.exp(-score))
    held_out = {"completion": 0.5, "random_state": 0}
    # the fit knows what was measured in its own samples, and not in others
    masked = one.score(X, **held_out)
    assert masked == one.score(X, **held_out, **GIVEN)
    assert masked > one.score(X, **held_out, measured=[True] * M) + 0.01
    with pytest.warns(UserWarning, match="nothing says what was measured in X: all features are"):
        taken_as_zeros = one.score(X[1:], **held_out)
    assert one.score(X[1:], **held_out, measured=[True] * M) == taken_as_zeros


def test_topics_without_a_feature_in_a_panel():
    F = np.zeros((M, 2))
    F[:20, 0], F[20:45, 1] = 1, 1
    model = nmfscale.PoissonNMF(2, max_iter=3, tol=0)
    model.fit(X, components=F.T, fixed_topics=np.ones(2, bool), **GIVEN)
    unknown = PANEL == "a"
    assert (model.loadings_[unknown, 0] == 0).all() and (model.loadings_[~unknown, 0] > 0).any()
    with pytest.warns(UserWarning, match="left out"):
        loadings = model.transform(X, **GIVEN)
    assert (loadings[unknown, 0] == 0).all() and np.isfinite(loadings).all()


def interrupted(model, source, folder, iteration, **options):
    """Stop a fit that saves every iteration."""

    def stop(record):
        if record["iteration"] == iteration:
            raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        model.set_params(callback=stop).fit(
            source, checkpoint=folder, checkpoint_every=0, **GIVEN, **options
        )
    return model.set_params(callback=None)


@pytest.mark.parametrize("solver", ["auto", "em"])
def test_the_same_bits_everywhere(solver, tmp_path, monkeypatch):
    internals.small_blocks(monkeypatch, 400)
    how = SHORT | {"solver": solver, "inner_iter": 1}
    expected = nmfscale.PoissonNMF(K, **how, n_threads=1).fit(X, **GIVEN)
    store = nmfscale.write_store(X, tmp_path / "counts.nmf").path
    model = nmfscale.PoissonNMF(K, **how, n_threads=4)
    interrupted(model, X, tmp_path / "state", 6)
    model.set_params(memory_limit="1TB")
    resumed = model.fit(store, checkpoint=tmp_path / "state", resume=True, **GIVEN)
    assert numbers(resumed) == numbers(expected)
    expected.save(tmp_path / "model.h5")
    again = nmfscale.load(tmp_path / "model.h5")
    assert (again.measured_ == MEASURED).all() and (again.panel_ == (PANEL == "b")).all()
    found = resumed.transform(store, **GIVEN)
    assert found.tobytes() == expected.transform(X, **GIVEN).tobytes()
    with pytest.raises(ValueError, match="fixed parameters, measured features"):
        interrupted(model, X, tmp_path / "state", 9, resume=True)
        model.fit(X, measured=MEASURED[:, ::-1] | (X.sum(axis=0) > 0), panel=PANEL,
                  checkpoint=tmp_path / "state", resume=True)  # fmt: skip


def test_panels_and_features_are_matched_by_name():
    names = np.array([f"gene{j}" for j in range(M)])
    cells = np.array([f"cell{i}" for i in range(N)])
    counts = nmfscale.as_counts(pd.DataFrame(X, index=cells, columns=names))
    expected = nmfscale.PoissonNMF(K, **SHORT).fit(counts, **GIVEN)
    measured = pd.DataFrame(MEASURED, index=["a", "b"], columns=names).iloc[::-1, ::-1]
    panel = pd.Series(PANEL, index=cells).iloc[::-1]
    by_name = {"b": measured.loc["b"], "a": MEASURED[0]}
    for given in (measured, by_name):
        found = nmfscale.PoissonNMF(K, **SHORT).fit(counts, measured=given, panel=panel)
        assert numbers(found) == numbers(expected)
    with pytest.raises(ValueError, match="measured has no entry for 1 of the 2 panels .*'b'"):
        nmfscale.PoissonNMF(K).fit(counts, measured={"a": MEASURED[0]}, panel=panel)
    a = PANEL == "a"
    of_one = [
        nmfscale.PoissonNMF(K, **SHORT).fit(counts, measured=given)
        for given in (MEASURED[0], measured.loc["a"])
        for counts in [nmfscale.as_counts(pd.DataFrame(X[a], columns=names))]
    ]
    assert numbers(of_one[0]) == numbers(of_one[1])
    with pytest.raises(ValueError, match="measured is a dict by panel: give panel="):
        nmfscale.PoissonNMF(K).fit(counts, measured=by_name)


def test_bootstraps_know_what_was_measured():
    model = nmfscale.TopicModel(K, random_state=0, n_init=3).fit(X, **GIVEN)
    found = nmfscale.bootstrap_fit(model, X, groups=PANEL, n_replicates=8, random_state=0)
    means = np.array([model.loadings_[panel == PANEL].mean(axis=0) for panel in ("a", "b")])
    drawn = found.group_means.replicates.mean(axis=0)
    assert_allclose(drawn.T if drawn.shape != means.shape else drawn, means, atol=0.06)
    with pytest.raises(ValueError, match="fitted with measured=, .*: use bootstrap_fit"):
        nmfscale.experimental.jackknife_fit(model, X, [(0, 0)])


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"measured": MEASURED}, {}, r"measured is bool of shape \(2, 60\): .*\(1, 60\)"),
        ({"panel": PANEL}, {}, "needs measured, .* corrects no batch effects"),
        ({"measured": MEASURED * 1, "panel": PANEL}, {}, "measured is int64 .* booleans"),
        ({"measured": MEASURED, "panel": PANEL[1:]}, {}, r"panel has shape \(119,\)"),
        (
            {"measured": MEASURED & False, "panel": PANEL},
            {},
            "no feature was measured in panel a",
        ),
        ({"measured": MEASURED[::-1], "panel": PANEL}, {}, "count in sample 0 and feature 1,"),
        (GIVEN, {"solver": "joint-em"}, "measured cannot be combined with solver='joint-em'"),
        (GIVEN, {"init": "topic-score"}, "measured cannot be combined with init='topic-score'"),
    ],
)
def test_what_cannot_be_is_refused(given, options, message):
    with pytest.raises(ValueError, match=message):
        nmfscale.PoissonNMF(K, **SHORT, **options).fit(X, **given)
