"""Fits to several modalities of a MuData object, which then holds their results."""

import anndata
import numpy as np
import pandas as pd
import pytest

import nmfscale

mudata = pytest.importorskip("mudata")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:mudata"),
    pytest.mark.filterwarnings("ignore:Cannot join columns with the same name"),
    pytest.mark.filterwarnings("ignore:var_names are not unique"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

N, K, GENES, PROTEINS, LATE = 90, 3, 30, 7, 60
RNG = np.random.default_rng(0)
SHARES = RNG.dirichlet(np.full(K, 0.3), N)
CELLS = np.array([f"cell{i:02}" for i in range(N)])
RNA = RNG.poisson(300 * SHARES @ RNG.dirichlet(np.full(GENES, 0.4), K))
ADT = RNG.poisson(200 * SHARES @ RNG.dirichlet(np.full(PROTEINS, 0.4), K))
BOTH = ["rna", "adt"]
FIT = {"random_state": 0, "max_iter": 30, "tol": 1e-3}


def annotated(X, prefix, cells):
    names = [*(f"{prefix}{j}" for j in range(X.shape[1] - 1)), "CD3"]
    var = pd.DataFrame({"symbol": [f"{prefix}-{name}" for name in names]}, index=names)
    return anndata.AnnData(X.astype(float), pd.DataFrame(index=cells), var)


def cells():
    """Return proteins of the last 60 cells in another order, and peaks of other cells."""
    late = RNG.permutation(np.arange(N - LATE, N))
    others = annotated(RNG.poisson(5, (3, 4)), "peak", ["cell00", "other1", "other2"])
    adt = annotated(ADT[late], "p", CELLS[late])
    mdata = mudata.MuData({"rna": annotated(RNA, "g", CELLS), "adt": adt, "atac": others})
    place = pd.Series(np.arange(mdata.n_obs), mdata.obs_names)
    mdata.obs["donor"] = "d" + (place % 10).astype(str)
    mdata.obs["group"] = np.where(place % 10 < 5, "a", "b")
    return mdata


@pytest.fixture
def fitted():
    mdata = cells()
    nmfscale.tl.topics(mdata, K, mod=BOTH, **FIT)
    return mdata


def by_name(mdata, key="topics"):
    return nmfscale.get.topics_df(mdata, key).loc[CELLS].to_numpy()


def test_a_fit_is_that_of_joined_counts(fitted):
    model = nmfscale.TopicModel(K, **FIT).fit(fitted, modality=BOTH)
    order = [model.sample_names_.tolist().index(name) for name in CELLS]
    assert by_name(fitted) == pytest.approx(model.loadings_[order], abs=1e-6)
    read = nmfscale.get.model(fitted)
    assert read.components_ == pytest.approx(model.components_, abs=1e-6)
    assert (read.feature_weights_ == model.feature_weights_).all()
    for label, columns in (("rna", slice(GENES)), ("adt", slice(GENES, None))):
        assert (fitted[label].varm["topics"] == read.components_[:, columns].T).all()
    table = fitted.obsm["topics_samples"]
    others = ["other1", "other2"]
    assert not table.loc[others, "fitted"].any() and table.loc[CELLS, "fitted"].all()
    assert fitted.obs.loc[others, "topics_leading"].isna().all()


def test_tools_take_the_object_of_a_fit(fitted, tmp_path):
    tl, get = nmfscale.tl, nmfscale.get
    tl.topic_quality(fitted)
    counts = nmfscale.as_counts(fitted, modality=BOTH, mask_obs=CELLS.tolist())
    quality = nmfscale.topic_quality(get.model(fitted), counts)
    table = quality.to_frame("features").set_index("feature")["explained"]
    explained = pd.concat([fitted[label].var["topics_explained"] for label in BOTH])
    assert explained.to_numpy() == pytest.approx(table.to_numpy(), abs=1e-6)
    assert fitted["adt"].var["topics_explained"]["CD3"] == pytest.approx(table["adt:CD3"], abs=1e-6)
    tl.differential_features(fitted, mask_var={"rna": ["g0", "CD3"]}, random_state=0)
    symbols = get.differential_df(fitted, 0, gene_symbols="symbol").set_index("feature")["symbol"]
    assert symbols["rna:CD3"] == "g-CD3" and symbols["adt:CD3"] == "p-CD3"
    assert len(symbols) == 2 + PROTEINS
    with pytest.warns(UserWarning, match="2 of 92 samples are left out"):
        tl.permutation_test(fitted, "group", units="donor", random_state=0, n_permutations=20)
    tl.condition_features(fitted, "group", units="donor")
    assert len(tl.pseudobulk(fitted, units="donor").var_names) == GENES  # all cells have them
    tl.select_k(fitted, [2, 3], mod=BOTH, random_state=0, n_splits=1)
    tl.rename_topics(fitted, ["A", "B", "C"])
    fitted.write_h5mu(tmp_path / "cells.h5mu")
    read = mudata.read_h5mu(tmp_path / "cells.h5mu")
    assert repr(get.result(read, "permutation_test")) == repr(
        get.result(fitted, "permutation_test")
    )
    assert get.result(read, "select_k").n_components.tolist() == [2, 3]
    assert get.components_df(read).index.tolist() == ["A", "B", "C"]


def test_transform_takes_the_modalities_of_the_fit(fitted):
    new = cells()
    nmfscale.tl.transform(new, fitted)
    assert by_name(new) == pytest.approx(by_name(fitted), abs=0.02)
    assert (new["adt"].varm["topics"] == fitted["adt"].varm["topics"]).all()
    nmfscale.tl.topic_quality(new)
    genes = mudata.MuData({"rna": cells()["rna"]})
    with pytest.warns(UserWarning, match="lacks 7 of the 37 features"):
        nmfscale.tl.transform(genes, fitted, mod=["rna"], missing="restrict")
    early = slice(N - LATE)  # without proteins
    assert by_name(genes)[early] == pytest.approx(by_name(new)[early], abs=1e-6)


def test_a_part_of_each_modality():
    mdata = cells()
    chosen = {"rna": np.arange(GENES) < 20}
    kept = mdata.obs_names.isin(CELLS[::2])
    nmfscale.tl.topics(
        mdata, 2, mod=BOTH, mask_var=chosen, mask_obs=kept, modality_weights="counts", **FIT
    )
    assert [(mdata[label].varm["topics"] > 0).any(axis=1).sum() for label in BOTH] == [20, 7]
    assert mdata.obsm["topics_samples"]["fitted"].sum() == len(CELLS[::2])
    assert getattr(nmfscale.get.model(mdata), "feature_weights_", None) is None
    nmfscale.tl.topic_quality(mdata)
    nmfscale.tl.differential_features(mdata, random_state=0)
    nmfscale.tl.topics(mdata, 2, mod=["rna", "atac"], modality_weights="counts", **FIT)
    assert "topics" not in mdata["adt"].varm


def test_batches_of_cells_with_a_similar_ratio_of_modalities():
    mdata = cells()
    totals = [pd.Series(mdata[m].X.sum(axis=1), mdata[m].obs_names) for m in BOTH]
    ratio = (totals[1] / totals[0].loc[totals[1].index]).reindex(mdata.obs_names)
    mdata.obs["depth"] = np.where(ratio.isna(), "none", np.where(ratio > ratio.median(), "b", "a"))
    nmfscale.tl.topics(mdata, 2, mod=BOTH, batch="depth", **FIT)
    nmfscale.tl.topic_quality(mdata)
    with pytest.warns(UserWarning, match="2 of 92 samples are left out"):
        nmfscale.tl.batch_effects(mdata)
    table = nmfscale.get.result(mdata, "batch_effects").to_frame("batches")
    assert table.set_index("batch")["n_samples"].to_dict() == {"a": 30, "b": 30, "none": 30}


def test_scores_of_modalities_of_an_object(tmp_path):
    mdata = cells()
    for label in BOTH:
        counts = mdata[label].X
        mdata[label].layers["seen"] = half = RNG.binomial(counts.astype(int), 0.5).astype(float)
        mdata[label].layers["held out"] = counts - half
    nmfscale.tl.topics(mdata, K, mod=BOTH, layer="seen", **FIT)
    nmfscale.tl.score_modalities(mdata, "held out")
    found = nmfscale.get.result(mdata, "score_modalities")
    parts = [
        nmfscale.join_modalities({label: mdata[label] for label in BOTH}, layer=layer)
        for layer in ("seen", "held out")
    ]
    expected = nmfscale.score_modalities(nmfscale.get.model(mdata), *parts)
    pd.testing.assert_frame_equal(found.to_frame(), expected.to_frame(), rtol=1e-9)
    path = nmfscale.write_report(nmfscale.get.model(mdata), tmp_path / "r.html", results=[found])
    page = path.read_text(encoding="utf-8")
    assert "Held-out scores of modalities" in page and f"{found.gain[1]:+.4f}" in page
    nmfscale.tl.topics(mdata, 2, mod="rna", key_added="one", **FIT)
    with pytest.raises(ValueError, match="was not fitted to joined modalities"):
        nmfscale.tl.score_modalities(mdata["rna"], key="one")


def test_a_fit_is_added_to_a_file_as_to_an_object(tmp_path):
    path, mdata = tmp_path / "cells.h5mu", cells()
    mdata.write_h5mu(path)
    model = nmfscale.TopicModel(K, **FIT).fit(path, modality=BOTH)
    for _ in range(2):
        nmfscale.tl.write_h5ad(model, path)
    nmfscale.tl.rename_topics(path, {0: "first"})
    read = mudata.read_h5mu(path)
    nmfscale.tl.topics(mdata, K, mod=BOTH, **FIT)
    assert by_name(read) == pytest.approx(by_name(mdata), abs=1e-6)
    assert read.obsm["topics_samples"]["panel"].equals(mdata.obsm["topics_samples"]["panel"])
    assert nmfscale.get.topics_df(read).columns[0] == "first"
    nmfscale.tl.differential_features(read, random_state=0)
    part = nmfscale.TopicModel(2, **FIT).fit(path, modality=BOTH, mask_obs=CELLS[:50].tolist())
    with pytest.raises(ValueError, match="was not fitted to 40 observations"):
        nmfscale.tl.write_h5ad(part, path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "mod is needed: the MuData object has"),
        ({"mod": ["rna", "adr"]}, "'adr' is not one of them.*perhaps 'adt'"),
        ({"mod": ["rna", "rna"]}, "'rna' is given twice"),
        ({"mod": "rna", "modality_weights": "counts"}, "are for several modalities"),
        ({"mod": BOTH, "layer": {"x": "counts"}}, "layer has the modality 'x'"),
        ({"mod": BOTH, "data_weights": "nan"}, "data_weights are for the counts of one modality"),
        ({"mod": BOTH, "key_added": "own"}, r"varm\['own'\] of 'adt' is not part of a fit"),
    ],
)
def test_what_is_refused_changes_nothing(options, message):
    mdata = cells()
    mdata["adt"].varm["own"] = np.ones((PROTEINS, 2))
    with pytest.raises(ValueError, match=message):
        nmfscale.tl.topics(mdata, 2, **options)
    assert not set(mdata.uns) and not set(mdata["rna"].uns)


def test_a_modality_that_was_removed_after_the_fit_is_named(fitted):
    before = set(fitted.uns["topics"])
    del fitted.mod["adt"]
    with pytest.raises(ValueError, match=r"no modality 'adt', which is part of the fit.*'rna'"):
        nmfscale.tl.score_modalities(fitted)
    assert set(fitted.uns["topics"]) == before
