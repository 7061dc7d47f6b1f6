"""Plots of AnnData objects are those of the models and results that the objects hold."""

import sys
import types
import warnings

import numpy as np
import pytest

import nmfscale
from nmfscale import get, pl

anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(fewer than|units are so few|vary more in group)"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")


@pytest.fixture(scope="module")
def adata():
    X, _ = nmfscale.datasets.simulate_topic_counts(60, 40, 3, random_state=0)
    types = pd.Categorical(np.repeat(["b", "a"], 30), categories=["b", "a"])
    obs = pd.DataFrame({"type": types, "donor": np.arange(60) // 5})
    found = anndata.AnnData(X.toarray(), obs=obs.rename(index=str))
    found.var["symbol"] = [f"symbol {j}" for j in range(40)]
    found.obsm["X_umap"] = np.random.default_rng(0).normal(size=(60, 2))
    found.obsm["spatial"] = np.arange(120.0).reshape(60, 2)
    found.uns["type_colors"] = ["#112233", "#445566"]
    nmfscale.tl.topics(found, 3, random_state=0, max_iter=20)
    nmfscale.tl.topics(found, 2, random_state=0, max_iter=20, key_added="k2")
    nmfscale.tl.select_k(found, [2, 3], n_splits=2, random_state=0)
    nmfscale.tl.differential_features(found, split=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tool in (nmfscale.tl.permutation_test, nmfscale.tl.group_effects):
            tool(found, "type", units="donor", random_state=0, n_permutations=50)
        nmfscale.tl.bootstrap_weights(found, "type", units="donor", n_replicates=20, random_state=0)
        nmfscale.tl.correspondence_analysis(found, "type", units="donor")
    return found


def numbers(ax):
    """Return what a plot shows: texts and data of its Axes and panels."""
    shown = []
    for each in (ax, *ax.child_axes):
        shown += [text.get_text() for text in each.texts]
        shown += [each.get_title(), each.get_xlabel(), each.get_ylabel()]
        shown += [label.get_text() for label in each.get_xticklabels() + each.get_yticklabels()]
        shown += [line.get_xydata().tolist() for line in each.lines]
        shown += [np.asarray(part.get_offsets()).tolist() for part in each.collections]
        shown += [[path.vertices.tolist() for path in c.get_paths()] for c in each.collections]
        shown += [np.asarray(image.get_array()).tolist() for image in each.images]
    return repr(shown)  # as text, in which NaN equals NaN


def pairs(adata):
    """Yield each plot of the object, and the same plot of its model, arrays or result."""
    model, result = nmfscale.get.model(adata), nmfscale.get.result
    two = nmfscale.get.model(adata, "k2")
    changes = result(adata, "differential_features")
    types, names = adata.obs["type"], adata.var["symbol"].tolist()
    yield pl.structure_plot(adata, groupby="type"), pl.structure_plot(model, types)
    yield pl.structure_plot(adata, key="k2"), pl.structure_plot(two)
    yield (
        pl.top_features_plot(adata, gene_symbols="symbol", n_top=3),
        pl.top_features_plot(model, names, n_top=3),
    )
    yield pl.similarity_plot(adata, other_key="k2"), pl.similarity_plot(model, two)
    yield pl.similarity_plot(model, two), pl.similarity_plot(nmfscale.match_topics(model, two))
    for plot in (pl.volcano_plot, pl.ma_plot, pl.topic_scatter):
        yield plot(adata, 1), plot(changes, 1)
    test = result(adata, "permutation_test", "type")
    yield pl.null_plot(adata), pl.null_plot(test)
    yield pl.null_plot(adata, groupby="type"), pl.null_plot(test)
    yield pl.forest_plot(adata), pl.forest_plot(result(adata, "group_effects", "type"))
    weights = result(adata, "bootstrap_weights", "type")
    yield pl.forest_plot(adata, "TwR", tool="bootstrap_weights"), pl.forest_plot(weights, "TwR")
    yield pl.biplot(adata), pl.biplot(result(adata, "correspondence_analysis", "type"))
    yield pl.bootstrap_plot(adata), pl.bootstrap_plot(weights)
    yield pl.select_k_plot(adata), pl.select_k_plot(result(adata, "select_k"))
    yield pl.progress_plot(adata), pl.progress_plot(model)


@pytest.mark.nightly
def test_plots_of_an_object_are_those_of_its_results(adata):
    for found, expected in pairs(adata):
        assert numbers(found) == numbers(expected)
        sys.modules["matplotlib.pyplot"].close("all")
    assert get.top_features(adata, gene_symbols="symbol", n_top=2) == get.top_features(
        nmfscale.get.model(adata), adata.var["symbol"].tolist(), n_top=2
    )
    labels = pl.volcano_plot(adata, 0, gene_symbols="symbol").texts
    assert labels and all(label.get_text().startswith("symbol ") for label in labels)


def test_plots_show_new_names_of_topics(adata):
    from matplotlib.text import Text

    named = adata.copy()
    nmfscale.tl.rename_topics(named, {0: "stress"})
    for axes in (
        pl.structure_plot(named), pl.top_features_plot(named), pl.volcano_plot(named, "stress"),
        pl.forest_plot(named, groupby="type"), pl.biplot(named, groupby="type"),
        pl.similarity_plot(named, other_key="k2"),
    ):  # fmt: skip
        texts = [text.get_text() for text in axes.figure.findobj(Text)]
        assert any("stress" in text for text in texts), texts


def test_colours_are_those_of_the_object(adata):
    from matplotlib.colors import to_hex

    ax = pl.structure_plot(adata, groupby="type")
    assert [to_hex(strip.get_facecolor()) for strip in ax.patches] == ["#112233", "#445566"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["b", "a"]
    own = adata.copy()
    own.uns["topics_colors"] = ["#ff0000", "#00ff00", "#0000ff"]
    bars = pl.structure_plot(own).collections[-1]
    colors = dict.fromkeys(to_hex(each) for each in bars.get_facecolor())
    assert list(colors) == ["#0000ff", "#00ff00", "#ff0000"]


def test_loadings_of_joined_objects_are_drawn(adata):
    joined = anndata.concat([adata[:20], adata[20:]])
    assert "topics" not in joined.uns
    expected = pl.structure_plot(adata.obsm["X_topics"], joined.obs["type"])
    assert numbers(pl.structure_plot(joined, groupby="type")) == numbers(expected)


def test_figures_are_saved_shown_and_returned(adata, tmp_path, monkeypatch):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    shown = []
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(True))
    assert pl.structure_plot(adata, show=True, save=tmp_path / "structure.png") is None
    assert shown and (tmp_path / "structure.png").stat().st_size > 5000
    figure = pl.volcano_plot(adata, 0, return_fig=True)
    assert isinstance(figure, Figure) and shown == [True]
    ax = pyplot.subplots()[1]
    assert pl.progress_plot(adata, ax=ax) is ax


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda adata: pl.null_plot(adata, groupby="donor"), r"has no 'donor'; it has 'type'"),
        (lambda adata: pl.structure_plot(adata, groupby="typ"), "perhaps 'type'"),
        (lambda adata: pl.structure_plot(adata, key="k9"), "no fit 'k9'"),
        (lambda adata: pl.volcano_plot(adata, 0, key="k2"), "differential_features adds it"),
        (lambda adata: pl.structure_plot(np.eye(3), groupby="type"), "is no AnnData object"),
        (lambda adata: pl.select_k_plot(adata, key="k"), "has no 'k'"),
        (lambda adata: pl.forest_plot(adata, key="k2"), "nmfscale.tl.group_effects adds it"),
        (lambda adata: get.top_features(np.eye(3), gene_symbols="a"), "column of var"),
    ],
)
def test_what_is_missing_is_named(adata, draw, message):
    with pytest.raises(ValueError, match=message):
        draw(adata)


def recorded(calls):
    """A scanpy that records its calls."""

    def embedding(adata, basis, **options):
        calls.append((adata, basis, options))
        from matplotlib.figure import Figure

        figure = Figure()
        return [figure.add_subplot(), figure.add_subplot()]

    scanpy = types.ModuleType("scanpy")
    scanpy.pl = types.SimpleNamespace(embedding=embedding)
    return scanpy


def test_embeddings_are_handed_to_scanpy(adata, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "scanpy", recorded(calls))
    before = list(adata.obs.columns)
    axes = pl.embedding(adata, "umap", ncols=2)
    assert len(axes) == 2
    given, basis, options = calls[0]
    names = ["topic 0", "topic 1", "topic 2"]
    assert basis == "umap"
    expected = {"color": names, "title": names, "ax": None, "show": False, "vmin": 0, "ncols": 2}
    assert options == expected
    assert (given.obs[names].to_numpy() == adata.obsm["X_topics"]).all()
    assert given.uns["type_colors"] == adata.uns["type_colors"] and "type" in given.obs
    assert list(adata.obs.columns) == before  # the object itself is not changed
    pl.embedding(adata, "spatial", color="topic 1", vmin=-1)
    assert calls[1][1] == "spatial" and calls[1][2]["color"] == ["topic 1"]
    assert calls[1][2]["vmin"] == -1
    with pytest.raises(ValueError, match=r"basis='tsne' is not an embedding .*'X_umap'"):
        pl.embedding(adata, "tsne")
    monkeypatch.setitem(sys.modules, "scanpy", None)
    with pytest.raises(ImportError, match=r"nmfscale\[scanpy\]"):
        pl.embedding(adata, "umap")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scanpy_draws_topics_and_uses_loadings(adata, tmp_path):
    scanpy = pytest.importorskip("scanpy", reason="scanpy is not installed: nmfscale[scanpy]")
    axes = pl.embedding(adata, "umap", save=tmp_path / "umap.png")
    assert [ax.get_title() for ax in axes] == ["topic 0", "topic 1", "topic 2"]
    ax = pl.embedding(adata, "spatial", color="topic 1")
    drawn = ax.collections[0]
    assert np.allclose(np.sort(drawn.get_array()), np.sort(adata.obsm["X_topics"][:, 1]))
    cells = adata.copy()
    cells.obs = cells.obs.join(nmfscale.get.topics_df(cells))
    scanpy.pl.violin(cells, "topic 0", groupby="type", show=False)
    # leading topics are groups, and topics are rows of a dot plot of groups
    genes = [*cells.var_names[:3]]
    dots = scanpy.pl.dotplot(cells, genes, groupby="topics_leading", return_fig=True)
    assert {*dots.dot_color_df.index} == {*cells.obs["topics_leading"]}
    dots = scanpy.pl.dotplot(cells, ["topic 0", "topic 1"], groupby="type", return_fig=True)
    means = cells.obs.groupby("type", observed=True)[["topic 0", "topic 1"]].mean()
    assert np.allclose(dots.dot_color_df, means)
    result = nmfscale.get.result(cells, "differential_features")
    cells.uns["rank_genes_groups"] = result.rank_genes_groups()
    ours = nmfscale.get.differential_df(cells, "topic 1", qvalue_max=0.5, lfc_min=0)
    theirs = scanpy.get.rank_genes_groups_df(cells, "topic 1", pval_cutoff=0.5, log2fc_min=0)
    assert ours["feature"].tolist() == theirs["names"].tolist() and len(ours) > 0
    assert np.allclose(ours["lfc"], theirs["logfoldchanges"], rtol=1e-5)
