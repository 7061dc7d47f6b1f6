"""Enrichment of gene sets in topics: the tests are those of SciPy, and true sets are found."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import nmfscale
from nmfscale.inference.features.set_tests import hypergeometric_tail

M, K = 300, 3
GENES = np.array([f"gene {j}" for j in range(M)], object)


@pytest.fixture(scope="module")
def sets():
    """One set for each topic, some of whose genes the model lacks; random ones; a small one."""
    rng = np.random.default_rng(0)
    own = {f"of topic {k}": [*GENES[30 * k : 30 * k + 30], "another"] for k in range(K)}
    random = {f"random {i}": [*rng.choice(GENES, 40, replace=False)] for i in range(8)}
    return own | random | {"small": [*GENES[:4]]}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(1)
    F = rng.gamma(0.5, size=(K, M))
    for k in range(K):
        F[k, 30 * k : 30 * k + 30] += 6
    means = 400 * rng.dirichlet(np.full(K, 0.3), 150) @ (F / F.sum(axis=1, keepdims=True))
    X = pd.DataFrame(rng.poisson(means), columns=GENES)
    return nmfscale.TopicModel(K, random_state=0).fit(X)


def test_true_sets_are_found(model, sets):
    for test in ("hypergeometric", "rank"):
        found = nmfscale.enrichment(model, sets, test=test, n_top=40)
        first = found.to_frame().groupby("topic", sort=False).head(1)
        assert {*first["gene_set"]} == {f"of topic {k}" for k in range(K)}
        assert first["qvalue"].max() < 1e-3 and first["auc"].min() > 0.7
        others = [s for s, name in enumerate(found.gene_sets) if name.startswith("random")]
        assert (found.qvalue[:, others] > 0.05).mean() > 0.9
        assert found.untested == ("small",)
        top = nmfscale.get.top_features(model, n_top=40, score="divergence")[1]
        row = found.to_frame("topic 1").iloc[0]
        assert row["features"] == ", ".join(g for g in top if g in sets[row["gene_set"]])
        assert (row["size"], row["overlap"]) == (30, len(row["features"].split(", ")))
        assert_allclose(row["fold"], row["overlap"] / (40 * 30 / M))


def test_hypergeometric_p_is_that_of_scipy(model, sets):
    found = nmfscale.enrichment(model, sets, n_top=40)
    expected = stats.hypergeom.sf(found.overlap - 1, M, found.sizes, 40)
    assert_allclose(found.pvalue, expected, rtol=1e-9)
    assert_allclose(found.qvalue, [stats.false_discovery_control(p) for p in expected], rtol=1e-9)
    # far tails, and sets of almost all features
    x, sizes = np.array([[0, 3, 400, 90, 1500]]), np.array([50, 50, 500, 19_990, 2000])
    drawn = np.array([[100], [1500]])
    x = np.minimum(x, np.minimum(drawn, sizes))
    x = np.maximum(x, drawn + sizes - 20_000)
    tails = hypergeometric_tail(x, drawn, sizes, 20_000)
    assert_allclose(tails, stats.hypergeom.sf(x - 1, 20_000, sizes, drawn), rtol=2e-9, atol=1e-300)


@pytest.mark.parametrize("score", ["relevance", "probability"])
def test_rank_test_is_that_of_mann_and_whitney(model, sets, score):
    """With ties: many features have frequency 0."""
    found = nmfscale.enrichment(model, sets, test="rank", score=score)
    frequencies = model.components_ / model.components_.sum(axis=1, keepdims=True)
    scores = frequencies
    if score == "relevance":
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = 0.6 * np.log(frequencies) + 0.4 * np.log(
                frequencies / frequencies.mean(axis=0)
            )
        scores = np.where(frequencies > 0, scores, -np.inf)
    for s, members in enumerate(found.members):
        inside = np.isin(np.arange(M), members)
        u, p = stats.mannwhitneyu(
            scores[:, inside], scores[:, ~inside], alternative="greater", method="asymptotic",
            axis=1,
        )  # fmt: skip
        assert_allclose(found.auc[:, s], u / (inside.sum() * (~inside).sum()))
        assert_allclose(found.pvalue[:, s], p, rtol=1e-9)


def test_scores_symbols_and_files(model, sets, tmp_path):
    symbols = {name: f"S{j}" for j, name in enumerate(GENES)}
    lines = [f"{name}\t-\t" + "\t".join(symbols.get(g, g) for g in of) for name, of in sets.items()]
    file = tmp_path / "sets.gmt"
    file.write_text("\n".join(lines))
    found = nmfscale.enrichment(model, file, gene_symbols=pd.Series(symbols))
    same = nmfscale.enrichment(model, sets)
    assert_array_equal(found.pvalue, same.pvalue)
    assert found.features_of(0, 0) == [symbols[gene] for gene in same.features_of(0, 0)]
    z = model.components_ - model.components_.mean(axis=0)
    ranked = nmfscale.enrichment(model, sets, score=z, test="rank")
    assert not np.array_equal(ranked.auc, same.auc)
    assert_array_equal(ranked.leading[0][:5], np.argsort(-z[0])[:5])


def test_rankings_of_a_table(model, sets):
    """Such as changes between conditions, upwards and downwards; features in any order."""
    rng = np.random.default_rng(2)
    change = pd.Series(rng.standard_normal(M), GENES)
    change[[*sets["of topic 1"][:30]]] += 2
    change[[*sets["of topic 2"][:30]]] -= 2
    table = pd.DataFrame({"up": change, "down": -change}).T
    for test in ("hypergeometric", "rank"):
        found = nmfscale.enrichment(None, sets, score=table, test=test, n_top=40)
        assert found.topic_names == ("up", "down")
        best = found.to_frame().groupby("topic", sort=False).head(1)
        assert best["gene_set"].tolist() == ["of topic 1", "of topic 2"]
        mixed = nmfscale.enrichment(
            None, sets, score=table.iloc[:, rng.permutation(M)], test=test, n_top=40
        )
        assert_allclose(mixed.pvalue, found.pvalue, rtol=1e-12)
    inside = np.isin(GENES, sets["of topic 1"])
    expected = stats.mannwhitneyu(
        change[inside], change[~inside], alternative="greater", method="asymptotic"
    )
    assert_allclose(found.pvalue[0, found.gene_sets.index("of topic 1")], expected.pvalue)
    assert found.features_of("up", 1)[0] == change[inside].idxmax()
    # only the features of the table are the universe
    half = nmfscale.enrichment(None, sets, score=table[GENES[:150]], n_top=40)
    assert half.sizes.max() <= 30 and len(half.feature_names) == 150
    for wrong, complaint in (
        (table.T, "largest number is 0.*score.T if features are in the rows"),
        (table.to_numpy(), "model is None: a DataFrame is needed"),
        ("divergence", "score is 'divergence', and model is None"),
        (table.replace(change.max(), np.nan), "missing or infinite entries.*dropna"),
        (table.astype(str) + "x", "entries that are not numbers"),
    ):
        with pytest.raises(ValueError, match=complaint):
            nmfscale.enrichment(None, sets, score=wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_other_packages_agree(sets, tmp_path, monkeypatch):
    """The code of the page runs, p-values are those of gseapy, and scores lead to the same sets."""
    gseapy = pytest.importorskip("gseapy", reason="compares with gseapy and decoupler")
    decoupler = pytest.importorskip("decoupler", reason="compares with gseapy and decoupler")
    monkeypatch.chdir(tmp_path)
    lines = ["\t".join([name, "-", *of]) for name, of in sets.items()]
    Path("hallmarks.gmt").write_text("\n".join(lines))
    counts, _ = nmfscale.datasets.simulate_topic_counts(200, M, K, random_state=0)
    counts = nmfscale.as_counts(counts, feature_names=GENES)
    model = nmfscale.TopicModel(K, random_state=0).fit(counts)
    page = Path(__file__).resolve().parents[2] / "docs" / "programs.md"
    code = page.read_text(encoding="utf-8").split("## Other packages")[1]
    code = re.search("```python\n(.*?)```", code, re.DOTALL)[1]
    names = {"nmfscale": nmfscale, "gseapy": gseapy, "decoupler": decoupler, "pd": pd,
             "model": model, "counts": counts}  # fmt: skip
    exec(code, names)
    found = nmfscale.enrichment(model, sets)
    ranked = nmfscale.enrichment(model, sets, test="rank", score=names["z"])
    scores, _ = decoupler.mt.ulm(names["scores"], names["net"])
    for k in range(K):
        theirs = gseapy.enrich(
            names["top"][k], gene_sets="hallmarks.gmt", background=list(GENES), outdir=None
        ).results.set_index("Term")["P-value"]
        common = [s for s, name in enumerate(found.gene_sets) if name in theirs]
        ours = found.pvalue[k, common]
        assert_allclose(ours, theirs[[found.gene_sets[s] for s in common]], rtol=1e-9)
        assert found.gene_sets[ranked.order(k)[0]] == scores.iloc[k].idxmax()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"gene_sets": {"a": ["ENSG1"] * 9}},
            "largest number is 0.*'gene 0'.*'ENSG1': pass gene_s",
        ),
        ({"gene_sets": {"a": "gene 1"}}, r"gene_sets\['a'\] is 'gene 1': a list of names"),
        ({"gene_sets": {}}, "gene_sets is empty"),
        ({"test": "t"}, "test='t' is not one of 'hypergeometric', 'rank'"),
        ({"max_size": 2}, "max_size is 2: an integer of at least min_size=5"),
    ],
)
def test_what_cannot_be_tested(model, sets, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        nmfscale.enrichment(model, **{"gene_sets": sets} | options)
    nameless = nmfscale.TopicModel(1).fit(np.ones((3, 6)))
    with pytest.raises(ValueError, match="model has no names of features, by which the sets"):
        nmfscale.enrichment(nameless, sets)


def test_plot_shows_enriched_sets_and_an_object_keeps_them(sets):
    anndata = pytest.importorskip("anndata")
    X, _ = nmfscale.datasets.simulate_topic_counts(60, M, K, random_state=0)
    adata = anndata.AnnData(
        X.toarray(), var=pd.DataFrame({"symbol": GENES}, index=map(str, range(M)))
    )
    nmfscale.tl.topics(adata, K, random_state=0)
    model = nmfscale.get.model(adata)
    strongest = np.argsort(model.components_[::2].max(axis=0) - model.components_[1])[:25]
    nmfscale.tl.enrichment(adata, {"own": GENES[strongest]} | sets, gene_symbols="symbol")
    nmfscale.tl.rename_topics(adata, {1: "mine"})
    found = nmfscale.get.result(adata, "enrichment")
    assert found.topic_names[1] == "mine" and found.to_frame("mine")["gene_set"].iloc[0] == "own"
    ax = nmfscale.pl.enrichment_plot(adata)
    shown = [label.get_text() for label in ax.get_yticklabels()]
    enriched = np.array(found.gene_sets)[(found.qvalue <= 0.05).any(axis=0)]
    assert "own" in shown and {*shown} <= {*enriched}
    assert len(ax.collections[0].get_offsets()) == K * len(shown)
