"""Differences of features between topics: right tests, found truths, the same bits everywhere."""

import os
import signal
from functools import partial

import internals
import numpy as np
import pandas as pd
import pytest
from clusters import WALL, cluster_of, within
from numpy.testing import assert_allclose, assert_array_equal
from oracle import equal_to_mean, equal_topics, feature_regression
from scipy.special import chdtrc, ndtr
from scipy.stats import false_discovery_control
from small_fits import X as SMALL
from small_fits import at_level

from nmfscale import TopicModel, bootstrap_fit, differential_features, kernels, write_store
from nmfscale.inference.features.shrinkage import shrink
from nmfscale.inference.quantiles import normal_tail
from nmfscale.methods.topics.differential import PSEUDOCOUNT_OF_TESTS as OF_TESTS
from nmfscale.results import StoredCounts

K = 3
NUMBERS = "lfc", "std_error", "z", "pvalue", "qvalue", "lfsr", "dispersion", "frequencies"


@pytest.fixture(scope="module")
def loadings():
    return np.random.default_rng(1).dirichlet([0.4] * K, len(SMALL))


@pytest.fixture(scope="module")
def found(loadings):
    return differential_features(loadings, SMALL)


def design_of(loadings):
    return np.maximum(loadings, 1e-10) * SMALL.sum(axis=1, keepdims=True)


def bits(result):
    return [getattr(result, name).tobytes() for name in NUMBERS]


@pytest.mark.parametrize("pseudocount", [1.0, 0.2])
def test_every_number_is_that_of_the_oracle(loadings, pseudocount):
    found = differential_features(loadings, SMALL, pseudocount=pseudocount)
    A, n = design_of(loadings), int((SMALL.sum(axis=1) > 0).sum())
    for j in range(5, 60, 20):
        x = SMALL[:, j].astype(float)
        if not x.any():
            assert not found.lfc[:, j].any() and (found.pvalue[:, j] == 1).all()
            continue
        f, _ = feature_regression(x, A, pseudocount)
        value = feature_regression(x, A, OF_TESTS)[1]
        assert_allclose(found.frequencies[:, j], f, rtol=2e-5)
        logs, ratios = np.log2(f), np.full((K, K), np.inf)
        for k in range(K):
            for i in range(k):
                equal = feature_regression(x, A, OF_TESTS, equal_topics(K, k, i))[1]
                ratios[k, i] = ratios[i, k] = 2 * (equal - value)
        other = np.argmin(np.abs(logs[:, None] - logs) + 1e9 * np.eye(K), axis=1)
        assert_array_equal(found.least_extreme[:, j], other)
        assert_allclose(found.lfc[:, j], logs - logs[other], atol=1e-4)
        assert_allclose(found.z[:, j] ** 2, ratios[np.arange(K), other], rtol=1e-4, atol=1e-5)
        assert_allclose(found.pvalue[:, j], chdtrc(1, ratios.min(axis=1)), rtol=1e-4)
        mu = A @ f
        curvature = (A * f).T @ (A * f * (x / mu**2)[:, None]) + pseudocount * np.eye(K)
        V = np.linalg.inv(curvature)
        errors = np.sqrt(np.diag(V) + np.diag(V)[other] - 2 * V[np.arange(K), other]) / np.log(2)
        assert_allclose(found.std_error[:, j], errors, rtol=1e-4)
        dispersion = ((x - mu) ** 2).sum() / mu.sum() * n / (n - K)
        assert_allclose(found.dispersion[j], dispersion, rtol=1e-4)


def test_many_topics_and_every_instruction_set():
    rng = np.random.default_rng(0)
    L = rng.dirichlet([0.3] * 14, len(SMALL))
    found = {}
    for level in kernels.available_levels():
        with at_level(level):
            found[level] = differential_features(L, SMALL, n_threads=2)
    best = found[kernels.level()]
    for level, result in found.items():
        assert_allclose(result.z, best.z, atol=1e-5)
        assert level == "baseline" or bits(result) == bits(best)
    f, _ = feature_regression(SMALL[:, 5].astype(float), design_of(L))
    assert_allclose(best.frequencies[:, 5], f, rtol=1e-4)
    assert np.isfinite(best.std_error).all() and (best.lfsr <= 1).all()


@pytest.mark.parametrize("reference", ["mean", 1, [0, 2]])
def test_other_references(loadings, reference):
    found = differential_features(loadings, SMALL, reference=reference)
    A, j = design_of(loadings), 5
    x, totals = SMALL[:, j].astype(float), design_of(loadings).sum(axis=0)
    f, _ = feature_regression(x, A)
    value = feature_regression(x, A, OF_TESTS)[1]
    for k in range(K):
        members = range(K) if reference == "mean" else np.atleast_1d(reference)
        rest = [each for each in members if each != k]
        if not rest:
            assert (found.z[k] == 0).all() and (found.pvalue[k] == 1).all()
            assert k not in set(found.to_frame().topic)
            continue
        weights = np.zeros(K)
        weights[rest] = totals[rest] / totals[rest].sum()
        equal = feature_regression(x, A, OF_TESTS, equal_to_mean(weights, k))[1]
        of_change = weights if reference != "mean" else totals / totals.sum()
        lfc = np.log2(f[k] / (of_change @ f))
        assert_allclose(found.lfc[k, j], lfc, atol=1e-4)
        assert_allclose(found.z[k, j], np.sign(lfc) * np.sqrt(2 * (equal - value)), rtol=1e-3)


def test_tables_have_what_enrichment_tools_read(found):
    frame = found.to_frame()
    assert len(frame) == K * 60 and not frame.isna().any(axis=None)
    assert (frame.groupby("topic").z.diff().dropna() <= 0).all()
    first = frame[frame.topic == 1].iloc[0]
    at = 1, int(first.feature)
    assert first.lfc == found.lfc[at] and first.pvalue == found.pvalue[at]
    known = found.std_error.any(axis=0)
    assert_array_equal(found.qvalue[1, known], false_discovery_control(found.pvalue[1, known]))
    table, ranks = found.rank_genes_groups_df(1), found.rank_genes_groups()
    assert list(table) == ["names", "scores", "logfoldchanges", "pvals", "pvals_adj"]
    assert (
        table.names.tolist()
        == ranks["names"]["1"].tolist()
        == [str(each) for each in frame[frame.topic == 1].feature]
    )
    assert_allclose(ranks["scores"]["1"], table.scores, rtol=1e-6)
    scanpy = pytest.importorskip("scanpy", reason="compares with scanpy's own table")
    import anndata

    adata = anndata.AnnData(np.zeros((1, 60)), uns={"rank_genes_groups": ranks})
    theirs = scanpy.get.rank_genes_groups_df(adata, "1")
    pd.testing.assert_frame_equal(theirs, table, check_dtype=False, rtol=1e-6)


def test_a_known_truth_is_found():
    """Features of one topic lead its table; the others are seldom called different."""
    rng = np.random.default_rng(0)
    frequencies = np.full((K, 200), 5.0) * rng.gamma(2, 0.5, 200)
    for k in range(K):
        frequencies[k, 10 * k : 10 * k + 10] *= 8
    L = rng.dirichlet([0.3] * K, 300)
    sizes = rng.gamma(4, 0.25, 300)
    X = rng.poisson(L @ frequencies * sizes[:, None])
    model = TopicModel(K, random_state=0).fit(X)
    found = differential_features(model, X)
    match = model.transform(X).T @ L
    for k in range(K):
        frame = found.to_frame(int(match[:, k].argmax()))
        assert set(frame.feature[:10]) == set(range(10 * k, 10 * k + 10))
        assert (frame.lfsr[:10] < 0.01).all() and (frame.lfc[:10] > 1.5).all()
    null = found.qvalue[:, 30:] <= 0.05
    assert null.mean() < 0.02
    held = differential_features(L, X, reference=0, size_factors=sizes)  # the truth: p are valid
    assert 0.02 < (held.pvalue[1:, 30:] <= 0.05).mean() < 0.08


@pytest.mark.filterwarnings("ignore:topics of 1 of 12 replicates were reordered")
def test_quasi_poisson_and_bootstrap_make_tests_of_varying_counts_larger(tmp_path):
    """Counts vary more than Poisson counts, and by unit: p of a Poisson model is too small."""
    rng = np.random.default_rng(2)
    units, L = np.arange(120) // 4, rng.dirichlet([0.5] * 2, 120)
    means = (L @ np.full((2, 40), 6.0)) * rng.gamma(3, 1 / 3, (30, 40))[units]
    X = rng.poisson(means)
    model = TopicModel(2, random_state=0).fit(X)
    plain = differential_features(L, X)
    quasi = differential_features(L, X, family="quasi-poisson")
    factor = np.maximum(plain.dispersion, 1)
    assert plain.dispersion.mean() > 1.5
    assert_allclose(quasi.z * np.sqrt(factor), plain.z, rtol=1e-12)
    assert (plain.pvalue < 0.05).mean() > 2 * (quasi.pvalue < 0.05).mean()
    by_units = bootstrap_fit(model, X, units=units, n_replicates=12, random_state=0)
    both = differential_features(model, X, bootstrap=by_units)
    alone = differential_features(model, X)
    assert_array_equal(both.z, alone.z)
    assert (both.pvalue >= alone.pvalue).all() and (both.pvalue > 1.5 * alone.pvalue).any()
    replicates = by_units.components.replicates
    common = (replicates.min(axis=(0, 1)) > 0) & (X.sum(axis=0) > 300)
    logs = np.log2(replicates[:, :, common])
    spread = np.full(40, np.nan)
    spread[common] = (logs[:, 0] - logs[:, 1]).std(axis=0, ddof=1)
    assert common.sum() > 20
    assert_allclose(both.std_error_bootstrap[0, common], spread[common], rtol=0.15)
    assert "bootstrap of units" in repr(both) and "std_error_bootstrap" in both.to_frame()
    with pytest.raises(ValueError, match="has 3 features, and X 40"):
        few = bootstrap_fit(model, X, features=[0, 1, 2], n_replicates=2, random_state=0)
        differential_features(model, X, bootstrap=few)


def test_a_split_gives_valid_tests(tmp_path):
    """Counts without any difference: tests of topics that were fitted to them reject far more."""
    rng = np.random.default_rng(3)
    X = rng.poisson(rng.gamma(3, 2, 60), (150, 60))
    model = TopicModel(2, random_state=0).fit(X)
    twice = differential_features(model, X)
    options = {"split": 0.5, "random_state": 1}
    once = differential_features(model, X, **options)
    assert (twice.pvalue < 0.05).mean() > 0.2
    assert (once.pvalue < 0.05).mean() < 0.1
    assert "fitted to 50% of the counts" in repr(once)
    write_store(X, tmp_path / "counts.nmf")
    again = differential_features(model, tmp_path / "counts.nmf", **options)
    assert bits(again) == bits(once)
    assert differential_features(model, X, split=0.8, random_state=1).base_mean.sum() < (
        0.3 * X.sum() / 150
    )


def test_tails_of_the_normal_distribution():
    x = np.concatenate([[0], np.linspace(1e-3, 37, 500)])
    assert_allclose(normal_tail(x), ndtr(-x), rtol=1e-11)


def test_shrinkage_finds_effects_and_their_signs():
    rng = np.random.default_rng(0)
    effects = np.where(rng.random(3000) < 0.7, 0, rng.normal(0, 2, 3000))
    errors = rng.gamma(2, 0.5, 3000) + 0.05
    seen = effects + errors * rng.normal(size=3000)
    found = shrink(seen, errors)
    raw, shrunken = ((each - effects) ** 2 for each in (seen, found.means))
    assert shrunken.mean() < 0.4 * raw.mean()
    called = found.lfsr < 0.05
    assert called.sum() > 150
    assert (np.sign(found.means[called]) != np.sign(effects[called])).mean() < 0.05


def test_the_same_bits_with_any_threads_from_files_and_resumed(
    loadings, small_blocks, monkeypatch, tmp_path
):
    found = differential_features(loadings, SMALL)
    internals.small_panels(monkeypatch, 600)
    write_store(SMALL, tmp_path / "counts.nmf")
    options = {"checkpoint": tmp_path / "job", "checkpoint_every": 0}
    n_panels, panels = [], []

    def press(original, step, panel, n_threads):
        panels.append(panel.lanes)
        if len(panels) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(step, panel, n_threads)

    with monkeypatch.context() as patch:
        internals.around_column_steps(patch, press)
        with pytest.warns(UserWarning, match=r"Ctrl-C ended the work: 32 of 60 features"):
            part = differential_features(loadings, SMALL, n_threads=2, **options)
        n_panels.append(len(panels))
        source = StoredCounts(tmp_path / "counts.nmf")
        again = differential_features(loadings, source, n_threads=1, resume=True, **options)
    assert n_panels == [2] and part.interrupted and "32 of 60 features" in repr(part)
    assert_array_equal(part.z, found.z[:, part.features])
    assert bits(again) == bits(found)
    with pytest.raises(ValueError, match="the inputs differ"):
        differential_features(loadings, SMALL, pseudocount=2, resume=True, **options)
    for X in (SMALL.astype(np.float32), tmp_path / "counts.nmf"):
        assert bits(differential_features(loadings, X, memory_limit="8GB")) == bits(found)


@pytest.mark.nightly
def test_a_cluster_gives_the_same_bits(loadings, store):
    found = differential_features(loadings, SMALL)
    with cluster_of(2) as client:
        options = {"client": client, "n_threads": 1}
        for source in (store, SMALL):
            ask = partial(differential_features, loadings, source, **options)
            assert bits(within(WALL, ask)) == bits(found)


def test_samples_are_matched_by_name(loadings, found):
    names = [f"s{i}" for i in range(len(SMALL))]
    table = pd.DataFrame(loadings, index=names).sample(frac=1, random_state=0)
    counts = pd.DataFrame(SMALL, index=names)
    assert bits(differential_features(table, counts)) == bits(found)
    model = TopicModel(K, random_state=0).fit(counts)
    turned = differential_features(model, counts[::-1])
    assert_allclose(turned.z, differential_features(model, counts).z, atol=1e-6)
    some = differential_features(model, counts.iloc[:, ::3])  # other features than the fit
    assert some.z.shape == (K, 20)
    with pytest.raises(ValueError, match="totals of .* samples differ, the first that of sample"):
        differential_features(model, SMALL[::-1])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"reference": "most"}, "reference='most' is not 'least-extreme', 'mean' or a topic"),
        ({"reference": 7}, "reference: 7 is not a topic; topics are 0, 1, 2"),
        ({"reference": [0, 1, 2]}, "at least one topic must be left"),
        ({"pseudocount": 0}, "pseudocount=0: a positive number"),
        ({"family": "gamma"}, "family='gamma' is not one of"),
        ({"split": 1.5}, "split=1.5: a share of the counts"),
        ({"split": 0.5}, "split=0.5 fits the topics again: a fitted model whose fit can"),
        ({"bootstrap": 3}, "bootstrap is a int: what bootstrap_fit returns"),
        ({"resume": True}, "resume=True needs checkpoint="),
        ({"topic_names": ["a"]}, "topic_names has 1 different names; 3 are needed"),
        ({"memory_limit": "1MB"}, "the regressions of the features need"),
    ],
)
def test_wrong_arguments_are_named(loadings, options, match):
    with pytest.raises((ValueError, MemoryError), match=match):
        differential_features(loadings, SMALL, **options)


def test_wrong_samples_are_named(loadings):
    with pytest.raises(ValueError, match="X has 90 samples and the model 80"):
        differential_features(loadings[:80], SMALL)
    with pytest.raises(ValueError, match="there is 1 topic"):
        differential_features(loadings[:, :1], SMALL)
    empty = loadings.copy()
    empty[3] = 0
    with pytest.warns(UserWarning, match="1 samples of X have counts but no topics, the first is"):
        found = differential_features(empty, SMALL)
    assert np.isfinite(found.z).all()


@pytest.mark.nightly
def test_leading_genes_of_blood_cells(data_dir, reference_dir):
    """Known markers lead the topics of a real fit of sorted blood cells."""
    from gzip import open as gzip_open
    from json import load as json_load

    with gzip_open(data_dir / "pbmc_facs_meta.json.gz") as file:
        names = json_load(file)["col_symbol"]
    names = list(names.values()) if isinstance(names, dict) else names
    reference = np.load(reference_dir / "best_pbmc_facs_k6.npz")
    loadings = reference["L"] * reference["F"].sum(axis=0)
    found = differential_features(loadings, data_dir / "pbmc_facs.npz")
    for gene in ("CD3D", "CD79A", "NKG7", "LYZ", "S100A8"):
        j = names.index(gene)
        ranks = [(found.order(k) == j).argmax() for k in range(6)]
        assert min(ranks) < 10, gene
