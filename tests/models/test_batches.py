"""Fits with efficiencies of features in batches of samples."""

import anndata
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize
from scipy.special import gammaln, xlogy

import nmfscale
from nmfscale import PoissonNMF, TopicModel
from nmfscale.cli import main

N, M, K = 90, 40, 3
rng = np.random.default_rng(0)
BATCH = rng.integers(0, 3, N)
EFFECTS = np.exp(rng.normal(0, 0.6, (3, M)))
MU = rng.gamma(0.4, 10.0, (N, K)) @ rng.gamma(0.4, 1.0, (M, K)).T
X = rng.poisson(EFFECTS[BATCH] * MU)
PLAIN = rng.poisson(MU)
SOLVERS = ["auto", "em", "ccd", "scd", "sn", "newton"]
EXACT = {"random_state": 0, "tol": 1e-7, "gain_tol": 0}


def marginal(X, L, F, batch, a, w=1):
    """Return the log-likelihood of counts with efficiencies integrated out; without a prior, at
    their maximum; w are weights of entries."""
    mu = L @ F.T
    T, M = (
        np.array([A[batch == b].sum(axis=0) for b in np.unique(batch)]) for A in (w * X, w * mu)
    )
    fixed = (xlogy(w * X, mu) - w * gammaln(X + 1)).sum()
    if a == 0:
        return fixed + (xlogy(T, T / M) - T).sum()
    of_batches = gammaln(a + T) - gammaln(a) + a * np.log(a) - (a + T) * np.log(a + M)
    return fixed + of_batches.sum()


@pytest.mark.parametrize("shape", [0.0, 2.0])
def test_a_fit_is_at_the_maximum_that_scipy_finds(shape):
    counts, batch = X[:14, :6], np.arange(14) % 2

    def loss(logs):
        L, F = np.split(np.exp(logs), [14 * 2])
        return -marginal(counts, L.reshape(14, 2), F.reshape(6, 2), batch, shape)

    model = PoissonNMF(2, batch_shape=shape, **EXACT).fit(counts, batch=batch)
    assert_allclose(model.loglik_, marginal(counts, model.loadings_, model.components_.T, batch,
                                            shape), rtol=1e-9)  # fmt: skip
    near = np.maximum(np.concatenate([model.loadings_.ravel(), model.components_.T.ravel()]), 1e-4)
    start = np.log(near * np.random.default_rng(1).uniform(0.9, 1.1, near.size))
    best = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 2000, "maxfun": 10**6})
    assert model.loglik_ == pytest.approx(-best.fun, abs=0.02)


def test_the_shape_is_at_its_maximum():
    model = PoissonNMF(K, **EXACT).fit(X, batch=BATCH)
    found = marginal(X, model.loadings_, model.components_.T, BATCH, model.batch_shape_)
    assert found == pytest.approx(model.loglik_, rel=1e-9)
    for factor in (0.9, 1.1):
        other = model.batch_shape_ * factor
        assert marginal(X, model.loadings_, model.components_.T, BATCH, other) < found


def test_residuals_are_those_of_the_gradient():
    model = PoissonNMF(K, batch_shape=3.0, random_state=0, max_iter=4, tol=0).fit(X, batch=BATCH)
    L, F, last = model.loadings_, model.components_.T, model.history_[-1]
    for name, factor, of in (
        ("kkt_loadings", L, lambda b: marginal(X, b.reshape(L.shape), F, BATCH, 3.0)),
        ("kkt_factors", F, lambda b: marginal(X, L, b.reshape(F.shape), BATCH, 3.0)),
    ):
        slope = approx_fprime(factor.ravel(), of, 1e-7).reshape(factor.shape)
        assert_allclose(last[name], np.abs(factor * slope).max() / (X.sum() / len(factor)),
                        rtol=1e-3, atol=1e-6)  # fmt: skip


@pytest.mark.parametrize("solver", SOLVERS[1:])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_the_objective_never_falls(solver, data):
    """Without extrapolation: with weights, priors, unmeasured features, and any start."""
    choose = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    there = choose.random((2, M)) < 0.9
    panel = choose.integers(0, 2, N)
    model = PoissonNMF(
        K, solver=solver, extrapolate=False, max_iter=15, tol=0, init="random",
        random_state=int(choose.integers(9)), prior_factors=data.draw(st.sampled_from([None, 1.2])),
        prior_loadings=data.draw(st.sampled_from([None, (1.1, 0.5)])),
        batch_shape=data.draw(st.sampled_from(["auto", 0, 0.5, 1e5])),
    ).fit(
        np.where(there[panel], X, 0), batch=choose.integers(0, 4, N), measured=there, panel=panel,
        row_weights=choose.integers(0, 3, N),
    )  # fmt: skip
    loglik = model.history_["loglik"]
    assert (np.diff(loglik) >= -1e-9 * np.abs(loglik[1:])).all()


@pytest.mark.parametrize("solver", ["auto", "scd"])
def test_efficiencies_are_recovered(solver):
    rng = np.random.default_rng(1)
    effects = np.exp(rng.normal(0, 0.5, (2, 80)))
    L, F = rng.gamma(0.3, 20, (600, K)), rng.gamma(0.2, 1, (80, K))
    counts = rng.poisson(effects[np.arange(600) % 2] * (L @ F.T))
    model = TopicModel(K, solver=solver, n_init=1, random_state=0)
    model.fit(counts, batch=np.arange(600) % 2)
    found = np.log(model.batch_efficiencies_[1] / model.batch_efficiencies_[0])
    assert np.corrcoef(found, np.log(effects[1] / effects[0]))[0, 1] > 0.93
    assert 5 < model.batch_shape_ < 15
    assert model.n_iter_ < 60  # without steps on the scales of batches about 100


@pytest.mark.parametrize("shares", [(0.25, 0.25, 0.25, 0.25), (0.1, 0.1, 0.4, 0.4)])
def test_topics_that_are_batches_at_first_do_not_stay(shares):
    """A fit with few topics for its types, of which the first ones are batches."""
    rng = np.random.default_rng(0)
    batch = np.repeat([0, 1], 150)
    types = [rng.choice(4, 150, p=p) for p in (shares, shares[::-1])]
    F = 0.7 * rng.dirichlet(np.ones(200)) + 0.3 * rng.dirichlet(np.ones(200), 4)
    L = rng.dirichlet(np.full(4, 0.2), 300) / 3 + np.eye(4)[np.concatenate(types)]
    effects = np.exp(rng.normal(0, 0.6, 200))
    counts = rng.poisson(np.where(batch[:, None] == 1, effects, 1) * (500 * L @ F))
    model = TopicModel(4, random_state=0).fit(counts, batch=batch)
    found = np.log(model.batch_efficiencies_[1] / model.batch_efficiencies_[0])
    assert np.corrcoef(found, np.log(effects))[0, 1] > 0.95


def test_batches_that_hardly_have_topics_in_common_are_warned_of():
    rng = np.random.default_rng(0)
    mu = 400 * rng.dirichlet(np.full(3, 0.4), 120) @ rng.dirichlet(np.full(60, 0.5), 3)
    batch = np.repeat(["a", "b"], 60)
    effects = np.exp(rng.normal(0, 3, (2, 60)))[(batch == "b").astype(int)]
    with pytest.warns(UserWarning, match="batches hardly have topics in common"):
        TopicModel(3, random_state=0).fit(rng.poisson(effects * mu), batch=batch)


def test_without_effects_nothing_changes():
    without = PoissonNMF(K, **EXACT).fit(PLAIN)
    for shape in ("auto", np.inf):
        model = PoissonNMF(K, batch_shape=shape, **EXACT).fit(PLAIN, batch=BATCH)
        assert model.batch_shape_ == np.inf and (model.batch_efficiencies_ == 1).all()
        assert model.loglik_ == pytest.approx(without.loglik_, abs=1e-3)
    assert model.components_.tobytes() == without.components_.tobytes()


def test_features_that_a_batch_lacks_need_no_mask_without_a_prior():
    """Without a prior the efficiency of such a feature is 0, as if it had not been measured."""
    there = np.ones((3, M), bool)
    there[1, :10] = there[2, 5:20] = False
    counts, how = np.where(there[BATCH], X, 0), EXACT | {"batch_shape": 0, "init": "random"}
    one = PoissonNMF(K, **how).fit(counts, batch=BATCH)
    other = PoissonNMF(K, **how).fit(counts, batch=BATCH, measured=there, panel=BATCH)
    assert (one.batch_efficiencies_ > 0).tolist() == there.tolist()
    assert one.loglik_ == pytest.approx(other.loglik_, abs=1e-3)
    # scales without which efficiencies would be arbitrary
    mu = one.loadings_ @ one.components_
    for b in range(3):
        seen = one.batch_efficiencies_[b] > 0
        assert mu[b == BATCH][:, seen].sum() == pytest.approx(
            X[b == BATCH][:, seen].sum(), rel=1e-6
        )
    found = other.batch_efficiencies_
    assert (found[~there] == 1).all()
    assert_allclose(one.batch_efficiencies_[there], found[there], rtol=0.02, atol=1e-3)
    known = PoissonNMF(K, **how).fit(counts, measured=there, panel=BATCH)
    assert known.batches_ is None and known.loglik_ < other.loglik_


def test_a_sample_of_weight_two_is_two_samples():
    twice, how = np.arange(N) % 3 == 0, EXACT | {"init": "random", "batch_shape": "auto"}
    start = {"loadings": rng.random((N, K)), "components": rng.random((K, M))}
    one = PoissonNMF(K, **how).fit(X, batch=BATCH, row_weights=1.0 + twice, **start)
    rows = np.concatenate([np.arange(N), np.flatnonzero(twice)])
    start["loadings"] = start["loadings"][rows]
    two = PoissonNMF(K, **how).fit(X[rows], batch=BATCH[rows], **start)
    assert one.loglik_ == pytest.approx(two.loglik_, rel=1e-9)
    assert_allclose(one.batch_efficiencies_, two.batch_efficiencies_, rtol=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_data_weights_of_samples_are_repeated_samples(solver):
    """With 0, a sample might as well not exist."""
    counts, batch, times = X[:40, :15], BATCH[:40], np.arange(40) % 3
    rows = np.repeat(np.arange(40), times)
    L, F = rng.uniform(0.5, 1, (40, K)), rng.uniform(0.5, 1, (K, 15))
    model = PoissonNMF(K, solver=solver, extrapolate=False, max_iter=9, tol=0)
    weights = np.broadcast_to(times[:, None], counts.shape)
    one = model.fit(counts, batch=batch, data_weights=weights, loadings=L, components=F)
    found, efficiencies, shape = one.loglik_, one.batch_efficiencies_, one.batch_shape_
    two = model.fit(counts[rows], batch=batch[rows], loadings=L[rows], components=F)
    # the scale of the start may differ, which solvers other than EM notice
    assert two.loglik_ == pytest.approx(found, rel=1e-9 if solver == "em" else 1e-4)
    assert_allclose(two.batch_efficiencies_, efficiencies, rtol=0.03)
    assert two.batch_shape_ == pytest.approx(shape, rel=0.03)


def test_data_weights_of_entries_in_batches():
    """Features without weight in a batch, or in all; and new samples have them, too."""
    weights = np.random.default_rng(3).integers(0, 3, X.shape)
    weights[:, 3], weights[BATCH == 1, 4] = 0, 0
    told = {"batch": BATCH, "data_weights": weights}
    model = PoissonNMF(K, random_state=0, init="random", tol=1e-6).fit(X, **told)
    e, a, mu = model.batch_efficiencies_, model.batch_shape_, model.loadings_ @ model.components_
    found = marginal(X, model.loadings_, model.components_.T, BATCH, a, weights)
    assert model.loglik_ == pytest.approx(found, rel=1e-9)
    T, M = (np.array([A[BATCH == b].sum(axis=0) for b in range(3)])
            for A in (weights * X, weights * mu))  # fmt: skip
    assert_allclose(e, (a + T) / (a + M), rtol=1e-9)
    assert e[1, 4] == 1 and not model.components_[:, 3].any()
    counts = X.copy()
    counts[:, 3] = 0  # of which the fit had none
    assert_allclose(model.transform(counts, **told), model.loadings_, rtol=1e-2, atol=1e-2)
    shares = weights * mu * e[BATCH]
    shares /= shares.sum(axis=1, keepdims=True)
    expected = xlogy(weights * counts, shares).sum() / (weights * counts).sum()
    assert model.score(counts, **told) == pytest.approx(expected, abs=1e-6)
    # of a new batch: weights that are almost equal
    old, new = BATCH < 2, {"batch": ["new"] * int(sum(BATCH == 2))}
    model = PoissonNMF(K, random_state=0).fit(X[old], batch=BATCH[old])
    twice = np.full(X[~old].shape, 2.0)
    twice[0, 0] = 1
    many = model.transform(np.repeat(X[~old], 2, axis=0), batch=new["batch"] * 2)[::2]
    assert_allclose(model.transform(X[~old], **new, data_weights=twice), many, rtol=0.03, atol=0.1)


def test_labels_of_any_type():
    names, cells = np.array(["b", "a", "c"]), [f"cell{i}" for i in range(N)]
    frame = pd.DataFrame(X, index=cells)
    one = TopicModel(K, random_state=0, max_iter=20, tol=0).fit(frame, batch=names[BATCH])
    assert one.batches_.tolist() == ["a", "b", "c"]
    assert (one.batches_[one.batch_] == names[BATCH]).all()
    series = pd.Series(names[BATCH], cells).sample(frac=1, random_state=0)
    ordered = pd.Series(pd.Categorical(names[BATCH], ["c", "x", "b", "a"]), cells)
    adata = anndata.AnnData(X.astype(float), obs=pd.DataFrame({"donor": names[BATCH]}, cells))
    for source, batch in (
        (frame, series), (X, BATCH), (frame, ordered), (adata, "donor"), (X, BATCH.astype(object)),
    ):  # fmt: skip
        two = TopicModel(K, random_state=0, max_iter=20, tol=0).fit(source, batch=batch)
        assert len(two.batches_) == 3
        if batch is ordered:
            assert two.batches_.tolist() == ["c", "b", "a"]
        assert_allclose(two.components_, one.components_, rtol=1e-6, atol=1e-9)


def test_a_model_file_holds_the_batches(tmp_path, capsys):
    for shape in (np.inf, "auto"):
        model = PoissonNMF(K, random_state=0, batch_shape=shape).fit(X, batch=BATCH.astype(str))
        model.save(tmp_path / "model.h5")
        again = nmfscale.load(tmp_path / "model.h5")
        assert again.batch_shape == shape and again.batch_shape_ == model.batch_shape_
        assert again.batches_.tolist() == ["0", "1", "2"]
        assert (again.batch_ == model.batch_).all()
        assert main(["info", str(tmp_path / "model.h5")]) == 0
        assert "batches         3 (0, 1, 2); " in capsys.readouterr().out
        assert again.batch_efficiencies_.tobytes() == model.batch_efficiencies_.tobytes()


@pytest.mark.parametrize(
    ("arguments", "parameters", "message"),
    [
        ({"batch": BATCH[1:]}, {}, r"batch has shape \(89,\)"),
        ({"batch": np.where(BATCH == 1, None, "a")}, {}, r"batch\[\d+\] is missing"),
        ({"batch": np.where(BATCH == 1, "nan", "a")}, {}, r"is missing .* needs a label"),
        ({"batch": "donor"}, {}, "'donor' is not a column of obs: X has no columns"),
        ({"batch": BATCH}, {"solver": "joint-em"}, "batch cannot be combined with solver"),
        ({"batch": BATCH}, {"batch_shape": -1}, "batch_shape"),
    ],
)
def test_what_cannot_be_fitted_is_refused(arguments, parameters, message):
    with pytest.raises(ValueError, match=message):
        PoissonNMF(K, **parameters).fit(X, **arguments)


@pytest.mark.parametrize("solver", ["auto", "scd"])
def test_a_resumed_fit_has_the_same_bits(tmp_path, solver):
    how = {"solver": solver, "random_state": 0, "max_iter": 30, "tol": 0}
    one = PoissonNMF(K, **how).fit(X, batch=BATCH)

    def stop(record):
        if record["iteration"] == 17:
            raise InterruptedError

    job = {"batch": BATCH, "checkpoint": tmp_path / "job", "checkpoint_every": 0}
    with pytest.raises(InterruptedError):
        PoissonNMF(K, callback=stop, **how).fit(X, **job)
    with pytest.raises(ValueError, match="batch_shape"):
        PoissonNMF(K, batch_shape=2.0, **how).fit(X, **job, resume=True)
    again = PoissonNMF(K, **how).fit(X, **job, resume=True)
    assert again.components_.tobytes() == one.components_.tobytes()
    assert again.batch_efficiencies_.tobytes() == one.batch_efficiencies_.tobytes()
    with pytest.raises(ValueError, match="batches, weights or priors differ"):
        PoissonNMF(K, **how).fit(X, **job | {"batch": BATCH // 2}, resume=True)


@pytest.mark.parametrize(
    ("name", "why"),
    [("LDA", "conjugate"), ("FrobeniusNMF", "squared"), ("SSNMF", "labels"), ("AnchorNMF", "anch"),
     ("NoisyTopicModel", "noise")],
)  # fmt: skip
def test_other_models_say_why_they_take_no_batch(name, why):
    labels = {"y": BATCH} if name == "SSNMF" else {}
    with pytest.raises(TypeError, match=f"{name} takes no batch: only PoissonNMF.*{why}"):
        getattr(nmfscale, name)(K).fit(X, batch=BATCH, **labels)


FIRST = {"loadings": rng.random((N, K)), "components": rng.random((K, M))}


@pytest.mark.parametrize("solver", ["auto", "em"])
@pytest.mark.parametrize("held", ["fixed_topics", "fixed_features", "fixed_samples"])
def test_fixed_factors_and_sizes_beside_batches(held, solver):
    mask = np.arange({"fixed_topics": K, "fixed_features": M, "fixed_samples": N}[held]) % 3 == 0
    sizes = np.random.default_rng(0).uniform(0.5, 2, N)
    how = {"solver": solver, "random_state": 0, "max_iter": 12, "tol": 0, "batch_shape": 3.0}
    for size_factors in (None, sizes):
        model = PoissonNMF(K, **how).fit(
            X, batch=BATCH, size_factors=size_factors, **FIRST, **{held: mask}
        )
        L = model.loadings_ * (1 if size_factors is None else sizes[:, None])
        value = marginal(X, L, model.components_.T, BATCH, 3.0)
        assert model.loglik_ == pytest.approx(value, rel=1e-9)
        if held == "fixed_samples":
            assert_allclose(model.loadings_[mask], FIRST["loadings"][mask], rtol=1e-6)
        else:
            at = mask if held == "fixed_topics" else (slice(None), mask)
            assert_allclose(model.components_[at], FIRST["components"][at], rtol=1e-6)


def test_one_batch_a_file_and_columns_of_files(tmp_path, capsys):
    """In memory, in files and a store, in Python and the shell: the same bits."""
    how, names = {"random_state": 0, "max_iter": 10, "tol": 0}, np.array(["a", "b", "c"])
    order = np.argsort(BATCH, kind="stable")
    obs = pd.DataFrame({"donor": names[BATCH[order]]}, [f"cell{i}" for i in range(N)])
    adata = anndata.AnnData(X[order].astype(np.float32), obs)
    files = [tmp_path / f"{name}.h5ad" for name in names]
    for name, path in zip(names, files, strict=True):
        adata[adata.obs.donor == name].copy().write_h5ad(path)
    nmfscale.write_store(files, tmp_path / "all.nmf")
    one = TopicModel(K, **how).fit(X[order], batch=names[BATCH[order]])
    words = ["-k", str(K), "--seed", "0", "--max-iter", "10", "--tol", "0", "--batch", "file"]
    path = tmp_path / "model.h5"
    assert main(["fit", *map(str, files), *words, "-o", str(path)]) == 0
    fits = [
        nmfscale.load(path),
        *(
            TopicModel(K, memory_limit=limit, **how).fit(source, batch=batch)
            for source, batch, limit in (
                (files, "file", None), (files, "donor", "8GB"), (tmp_path / "all.nmf", "file", None)
            )
        ),
    ]  # fmt: skip
    for model in fits:
        assert model.components_.tobytes() == one.components_.tobytes()
        assert model.batch_efficiencies_.tobytes() == one.batch_efficiencies_.tobytes()
    # a new file, of which the column says the name
    capsys.readouterr()
    words = [
        "transform",
        str(path),
        str(files[1]),
        "--batch",
        "file",
        "-o",
        str(tmp_path / "L.npy"),
    ]
    assert main(words) == 0
    L = np.load(tmp_path / "L.npy")
    assert_allclose(L, one.transform([files[1]], batch="file"))
    assert_allclose(L, one.loadings_[BATCH[order] == 1], atol=0.01)


def test_moves_and_starts_keep_the_batches():
    how = {"random_state": 0, "max_iter": 300, "tol": 1e-3}
    one = PoissonNMF(K, **how).fit(X, batch=BATCH)
    best = PoissonNMF(K, n_init=2, n_moves=3, **how).fit(X, batch=BATCH)
    assert best.loglik_ >= one.loglik_ - 1
    value = marginal(X, best.loadings_, best.components_.T, BATCH, best.batch_shape_)
    assert best.loglik_ == pytest.approx(value, rel=1e-9)
