"""batch_effects: planted truths, numbers of an oracle, and every kind of labels."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats.contingency import association
from shell import misuse, run
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import cross_val_score

import nmfscale
from nmfscale import TopicModel, batch_effects
from nmfscale.inference.design.confounding import cramers_v

N, M, K = 240, 60, 4
RNG = np.random.default_rng(0)
TOPICS = RNG.gamma(0.4, 1, (K, M)) + 0.01
TOPICS[:, :15], TOPICS[0] = 0, 0
TOPICS[0, :15] = RNG.gamma(1, 1, 15) + 0.1  # features that no other topic has
TOPICS /= TOPICS.sum(axis=1, keepdims=True)
SHARES = RNG.dirichlet([0.3] * K, N)
RUN = RNG.integers(0, 2, N)
NAMES = np.array(["first", "second"])
E = np.exp(0.5 * RNG.standard_normal((2, M)))
CELLS = [f"cell {i}" for i in range(N)]


def counts_of(shares, efficiencies=None):
    means = 800 * shares @ TOPICS
    X = np.random.default_rng(1).poisson(means if efficiencies is None else means * efficiencies)
    return pd.DataFrame(X, index=CELLS).rename("g{}".format, axis=1)


def without_topic_0(shares):
    one_run_only = np.where((RUN == 1)[:, None] & (np.arange(K) == 0), 0, shares)
    return one_run_only / one_run_only.sum(axis=1, keepdims=True)


def fitted(X, **batch):
    return TopicModel(K, random_state=0).fit(X, **batch)


@pytest.fixture(scope="module")
def corrected():
    """Counts with effects, and a fit with batches."""
    X = counts_of(SHARES, E[RUN])
    return X, fitted(X, batch=NAMES[RUN])


@pytest.fixture(scope="module")
def uncorrected(corrected):
    """A fit to the same counts with topics enough for each batch."""
    return TopicModel(2 * K, random_state=0).fit(corrected[0])


def test_planted_effects_are_shown(corrected):
    X, model = corrected
    effects = batch_effects(model, X)
    assert effects.warnings == ()
    assert effects.mean_auc < 0.65 < effects.mean_auc_before
    features = effects.to_frame("features")
    assert features["efficiency"].head(5).max() < 0.6
    planted = np.log(E / np.sqrt(E.prod(axis=0)))
    assert np.corrcoef(np.log(effects.efficiencies).ravel(), planted.ravel())[0, 1] > 0.95
    np.testing.assert_allclose(effects.spread, 0.4, atol=0.15)


@pytest.mark.parametrize("with_effects", [True, False])
def test_a_topic_of_one_batch_is_warned_of_if_there_are_effects(with_effects):
    X = counts_of(without_topic_0(SHARES), E[RUN] if with_effects else None)
    warnings = batch_effects(fitted(X, batch=NAMES[RUN])).warnings
    if with_effects:
        assert len(warnings) == 1
        assert (
            "of its weight in batch 'first': the frequencies of its features cannot" in warnings[0]
        )
    else:
        assert warnings == ()


def test_a_fit_without_batches(uncorrected):
    """Topics are batches; and batches in which nothing differs are mixed."""
    text = " ".join(batch_effects(uncorrected, batch=NAMES[RUN]).warnings)
    assert "of its weight in batch" in text
    assert "Fit with batch=" in text
    batch, one = np.random.default_rng(2).integers(0, 3, N), ["all"] * N
    mixed = batch_effects(uncorrected, batch=batch, clusters=one)
    assert (mixed.warnings, mixed.efficiencies, mixed.auc_before) == ((), None, None)
    assert 0.35 < mixed.mean_auc < 0.65


def test_efficiencies_have_the_errors_of_their_posterior(corrected):
    X, model = corrected
    effects = batch_effects(model)
    of_runs = [(RUN == b) for b in range(2)]
    T = np.array([X.to_numpy()[run].sum(axis=0) for run in of_runs])
    rate = (model.batch_shape_ + T) / effects.efficiencies
    table = effects.to_frame("features").set_index(["batch", "feature"])
    table = table.loc[[(name, f"g{j}") for name in NAMES for j in range(M)]]
    errors = np.sqrt(model.batch_shape_ + T) / rate
    np.testing.assert_array_equal(table["count"], T.ravel())
    np.testing.assert_allclose(table["std_error"], errors.ravel(), rtol=1e-6)
    changes = np.abs(np.log(effects.to_frame("features")["efficiency"].to_numpy()))
    assert changes[: M // 2].min() > changes[-M // 2 :].max()


def test_counts_of_features_with_weights_and_sizes_of_samples(corrected):
    X, rng = corrected[0].to_numpy(), np.random.default_rng(5)
    weights, sizes = rng.integers(1, 3, N), rng.uniform(0.5, 2, N)
    for kind, options, far in (
        (TopicModel, {"row_weights": weights, "size_factors": sizes}, 1e-6),
        (nmfscale.PoissonNMF, {"row_weights": weights, "size_factors": sizes}, 50.0),
        (nmfscale.GammaPoisson, {}, 1.0),
    ):  # fmt: skip
        model = kind(K, random_state=0).fit(X, batch=RUN, **options)
        counts = X * (weights[:, None] if options else 1)
        T = np.array([counts[run == RUN].sum(axis=0) for run in range(2)])
        table = batch_effects(model).to_frame("features").sort_values(["batch", "feature"])
        assert np.abs(table["count"].to_numpy() - T.ravel()).max() < far < T.max() / 20


def test_features_that_a_batch_did_not_measure_are_left_out(corrected):
    X, measured = corrected[0].to_numpy().copy(), np.ones((2, M), bool)
    measured[1, -5:] = False
    X[RUN == 1, -5:] = 0
    model = fitted(X, batch=RUN, measured=measured, panel=RUN)
    effects = batch_effects(model)
    assert (effects.efficiencies > 0).tolist() == measured.tolist()
    assert not effects.expected[1, -5:].any()
    assert len(effects.to_frame("features")) == measured.sum()


def test_areas_are_those_of_a_linear_discriminant(uncorrected):
    """Apart from ridge and folds, and only where a cluster has 20 samples on both sides."""
    batch = np.where(np.arange(N) < 12, "few", NAMES[RUN])
    table = batch_effects(uncorrected, batch=batch, clusters=["all"] * N).to_frame("clusters")
    assert table["batch"].tolist() == ["first", "second"]
    shares = uncorrected.loadings_
    roots = np.sqrt(shares / shares.sum(axis=1, keepdims=True))
    for name, area in zip(table["batch"], table["auc"], strict=True):
        scores = cross_val_score(
            LinearDiscriminantAnalysis(), roots, batch == name, scoring="roc_auc", cv=5
        )
        assert abs(scores.mean() - area) < 0.06


def test_order_and_names_of_batches_do_not_matter(corrected, uncorrected):
    labels = pd.Series(NAMES[RUN], index=CELLS, name="run")
    expected = batch_effects(uncorrected, batch=labels, conditions=labels)
    kinds = [
        NAMES[RUN].tolist(), labels.sample(frac=1, random_state=0), dict(labels),
        pd.Categorical(NAMES[RUN]),
    ]  # fmt: skip
    for batch in kinds:
        found = batch_effects(uncorrected, batch=batch, conditions=batch)
        assert repr(found) == repr(expected)
    turned = batch_effects(uncorrected, batch=1 - RUN)
    np.testing.assert_allclose(turned.shares, expected.shares[::-1])
    order = np.random.default_rng(3).permutation(N)
    moved = batch_effects(uncorrected.loadings_[order], batch=(1 - RUN)[order])
    np.testing.assert_allclose(moved.auc, turned.auc)
    assert batch_effects(corrected[1], batch=labels).efficiencies is not None
    assert batch_effects(corrected[1], batch=RUN).efficiencies is None


@pytest.mark.parametrize(
    ("batch", "condition", "apart"),
    [
        ("0123", "abab", True),  # donors
        ("0011", "abab", False),
        ("0011", "abbc", False),  # a and c meet by way of b
        ("0112", "aabb", False),
    ],
)
def test_conditions_without_a_batch_in_common(batch, condition, apart):
    batch, condition = (np.resize(list(text), N) for text in (batch, condition))
    shares = np.random.default_rng(0).dirichlet([1] * 3, N)
    effects = batch_effects(shares, batch=batch, conditions=condition)
    texts = ["conditions 'a' and 'b' have no batch in common"] * apart
    assert [text.partition(":")[0] for text in effects.warnings] == texts
    assert effects.cramers_v == pytest.approx(association(effects.condition_sizes, method="cramer"))


def test_conditions_that_nearly_coincide_with_batches():
    table = np.array([[100, 2], [3, 90]])
    assert cramers_v(table) == pytest.approx(association(table, method="cramer"))
    batch, condition = (np.repeat(labels, table.ravel()) for labels in ([0, 0, 1, 1], [0, 1, 0, 1]))
    shares = np.random.default_rng(0).dirichlet([1] * 3, table.sum())
    (text,) = batch_effects(shares, batch=batch, conditions=condition).warnings
    assert "nearly coincide (Cramér's V 0.95)" in text


def test_batches_with_few_counts_are_warned_of(corrected):
    X = corrected[0].to_numpy().copy()
    few = np.arange(N) < 6
    X[few] = np.random.default_rng(0).binomial(X[few], 0.03)
    model = fitted(X, batch=np.where(few, "few", NAMES[RUN]))
    (text,) = [text for text in batch_effects(model).warnings if "prior" in text]
    assert "'few'" in text


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "the fit has no batches: pass batch="),
        ({"batch": ["one"] * N}, "batch has only 'one'"),
        ({"batch": CELLS}, "a different label for each of 240 samples"),
        ({"batch": [None, *RUN[1:]]}, "batch has 1 missing labels"),
        ({"batch": RUN, "clusters": ["a"]}, "clusters has 1 labels"),
    ],
)
def test_wrong_arguments(uncorrected, how, message):
    with pytest.raises(ValueError, match=message):
        batch_effects(uncorrected, **how)


def test_other_counts_are_refused(corrected):
    X, model = corrected
    with pytest.raises(ValueError, match="X is not what the model was fitted to"):
        batch_effects(model, X + 1)


def test_files_plots_reports_and_the_shell(corrected, tmp_path, capsys):
    X, model = corrected
    effects = batch_effects(model, X)
    effects.save(tmp_path / "effects.h5")
    assert repr(nmfscale.load_result(tmp_path / "effects.h5")) == repr(effects)
    panels = nmfscale.pl.batch_plot(effects).child_axes
    titles = ["topics", "efficiencies", "separation", ""]
    assert [panel.get_title() for panel in panels] == titles
    widths = [bar.get_width() for bar in panels[0].patches]
    np.testing.assert_allclose(widths, effects.shares.T.ravel())
    page = nmfscale.write_report(model, tmp_path / "report.html", results=[effects]).read_text()
    assert "AUC without efficiencies" in page
    page = nmfscale.write_report(model, tmp_path / "again.html").read_text()
    assert "Mean proportions of topics in batches" in page
    model.save(tmp_path / "model.h5")
    X.to_csv(tmp_path / "counts.csv")
    words = [
        "batch-effects",
        tmp_path / "model.h5",
        tmp_path / "counts.csv",
        "--samples-in",
        "rows",
    ]
    table, picture = tmp_path / "genes.csv", tmp_path / "batches.png"
    assert run(*words, "--table", "features", "-o", table, "-o", picture) == 0
    assert str(effects).splitlines()[0] in capsys.readouterr().out
    frame = effects.to_frame("features")
    pd.testing.assert_frame_equal(pd.read_csv(table), frame, check_dtype=False)
    assert picture.stat().st_size > 0
    groups = tmp_path / "runs.csv"
    pd.DataFrame({"cell": CELLS, "run": NAMES[RUN]}).to_csv(groups, index=False)
    assert run("batch-effects", tmp_path / "model.h5", "--batch", f"{groups}:run") == 0
    capsys.readouterr()
    words = "batch-effects", tmp_path / "model.h5", "--table", "conditions"
    assert "--table conditions needs --conditions" in misuse(capsys, *words)
