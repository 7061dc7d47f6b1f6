"""Tools for AnnData objects: what they write is what the functions of arrays return."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from zero_inflated_nmf import ZeroInflatedNMF

import nmfscale
from nmfscale.models import MODELS
from nmfscale.tl.topics import as_estimator

anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")

X, _ = nmfscale.datasets.simulate_topic_counts(60, 40, 3, random_state=0)
FIT = {"random_state": 0, "max_iter": 30, "tol": 1e-3}
RESULTS = [
    ("differential_features", None), ("permutation_test", "condition"),
    ("group_effects", "condition"), ("bootstrap_weights", "condition"), ("topic_quality", None),
    ("select_k", None), ("correspondence_analysis", "condition"), ("batch_effects", None),
]  # fmt: skip
# Small counts: few units, rare topics.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(fewer than|units are so few|vary more in group)"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


def cells(dense=False):
    """Counts as scanpy users have them: logarithms in X, counts in a layer."""
    obs = pd.DataFrame(
        {
            "condition": pd.Categorical(np.repeat(["treated", "control"], 30)),
            "donor": np.repeat([f"donor {i}" for i in range(12)], 5),
            "size": np.arange(60) + 10.0, "kept": np.arange(60) % 4 > 0,
        },
        index=[f"cell {i}" for i in range(60)],
    )  # fmt: skip
    var = pd.DataFrame({"highly_variable": np.arange(40) % 3 > 0, "symbol": list("ab" * 20)})
    var.index = [f"gene {j}" for j in range(40)]
    counts = X.toarray() if dense else sp.csr_matrix(X)
    adata = anndata.AnnData(np.log1p(counts), obs=obs, var=var, layers={"counts": counts.copy()})
    adata.uns["log1p"], adata.uns["condition_colors"] = {}, ["#ff0000", "#0000ff"]
    return adata


@pytest.fixture(scope="module")
def fitted():
    adata = cells()
    nmfscale.tl.topics(adata, 3, layer="counts", **FIT)
    nmfscale.tl.select_k(adata, [2, 3], layer="counts", units="donor", n_splits=2, random_state=0)
    nmfscale.tl.differential_features(adata, random_state=0)
    groups = {"units": "donor", "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nmfscale.tl.permutation_test(adata, "condition", n_permutations=99, **groups)
        nmfscale.tl.group_effects(adata, "condition", n_permutations=99, **groups)
        nmfscale.tl.bootstrap_weights(adata, "condition", n_replicates=20, **groups)
        nmfscale.tl.correspondence_analysis(adata, "condition", units="donor")
    nmfscale.tl.topic_quality(adata)
    nmfscale.tl.batch_effects(adata, "condition", conditions="donor")
    return adata


def same_models(one, other):
    assert type(one) is type(other)
    assert str(one.get_params()) == str(other.get_params())
    assert vars(one).keys() == vars(other).keys()
    for name, value in vars(one).items():
        if isinstance(value, np.ndarray):
            assert value.dtype == getattr(other, name).dtype, name
            assert value.tobytes() == getattr(other, name).tobytes() or value.dtype == object, name
            assert value.tolist() == getattr(other, name).tolist(), name
        elif name == "obs_":  # columns of obs
            assert str(value) == str(other.obs_)
        elif name.endswith("_"):
            assert type(value) is type(getattr(other, name)) and value == getattr(other, name), name


def plain(value):
    """Return a result as text with all its numbers."""
    return repr(vars(value)) if not hasattr(value, "to_frame") else value.to_frame().to_string()


def nightly_but_for(name, quick):
    return name if name in quick else pytest.param(name, marks=pytest.mark.nightly)


@pytest.mark.parametrize("name", [nightly_but_for(name, ("topic", "lda")) for name in MODELS])
def test_a_fit_of_any_model_is_read_back_to_the_bit(name, tmp_path):
    adata = cells()
    labels = {"y": "condition"} if name == "ssnmf" else {}
    options = {"random_state": 0} if name == "anchor" else {"random_state": 0, "max_iter": 5}
    options |= {"n_moves": 1} if name == "topic" else {}  # a table with a column of text
    nmfscale.tl.topics(adata, 3, model=name, layer="counts", **options, **labels)
    direct = MODELS[name](3, **options).fit(
        adata, **{key: adata.obs[value] for key, value in labels.items()}, layer="counts"
    )
    direct.__dict__.pop("empty_samples_", None)  # positions, which a subset would not have
    adata.write_h5ad(tmp_path / "cells.h5ad")
    for found in (adata, anndata.read_h5ad(tmp_path / "cells.h5ad")):
        again = nmfscale.get.model(found)
        again.history_["seconds"] = direct.history_["seconds"]
        same_models(again, direct)
        assert (found.varm["topics"] == direct.components_.T).all()
    assert adata.uns["topics"]["params"]["layer"] == "counts"
    assert adata.uns["topics"]["seed"] == 0
    assert adata.uns["topics"]["version"] == nmfscale.__version__


def test_results_are_those_of_the_functions_of_arrays(fitted):
    model, obs = nmfscale.get.model(fitted), fitted.obs
    groups, names = {"units": obs["donor"], "random_state": 0}, ["topic 0", "topic 1", "topic 2"]
    smoothed = nmfscale.TopicModel(prior_factors=1.1, tol=1e-3)
    expected = [
        nmfscale.differential_features(
            model, fitted, layer="counts", topic_names=names, random_state=0
        ),
        nmfscale.permutation_test(model, obs["condition"], n_permutations=99, **groups),
        nmfscale.group_effects(
            model, obs["condition"], n_permutations=99, topic_names=names, **groups
        ),
        nmfscale.bootstrap_weights(
            model, obs["condition"], n_replicates=20, topic_names=names, **groups
        ),
        nmfscale.topic_quality(model, fitted, layer="counts"),
        nmfscale.select_k(
            smoothed,
            fitted,
            [2, 3],
            layer="counts",
            units=obs["donor"],
            n_splits=2,
            random_state=0,
        ),
        nmfscale.experimental.correspondence_analysis(
            model, obs["condition"], units=obs["donor"], topic_names=names
        ),
        nmfscale.batch_effects(
            model, batch=obs["condition"], conditions=obs["donor"], topic_names=names
        ),
    ]
    for (name, groupby), result in zip(RESULTS, expected, strict=True):
        found = nmfscale.get.result(fitted, name, groupby)
        assert type(found) is type(result) and plain(found) == plain(result), name
    frame = nmfscale.get.topics_df(fitted)
    assert frame.index.equals(fitted.obs_names) and (frame == model.loadings_).all(axis=None)
    assert fitted.obs["topics_explained"].between(-1, 1).all()
    table = expected[0].to_frame(1)
    kept = (table["qvalue"] <= 0.5) & (table["lfc"] >= 0.2)
    found = nmfscale.get.differential_df(
        fitted, 1, qvalue_max=0.5, lfc_min=0.2, gene_symbols="symbol"
    )
    assert found["feature"].tolist() == table["feature"][kept].tolist() and len(found) > 0
    assert found["symbol"].tolist() == fitted.var["symbol"][found["feature"]].tolist()


def stored(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    return anndata.read_h5ad(tmp_path / "cells.h5ad")


def backed(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad", compression="gzip")
    return anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")


def joined(adata, tmp_path):
    parts = [adata[:25], adata[25:]]
    return anndata.concat(parts, merge="same", uns_merge="same")


@pytest.mark.parametrize("keep", [stored, backed, joined, lambda adata, _: adata.copy()])
def test_results_are_kept(fitted, keep, tmp_path):
    found = keep(fitted, tmp_path)
    same_models(nmfscale.get.model(found), nmfscale.get.model(fitted))
    for name, groupby in RESULTS:
        results = [nmfscale.get.result(each, name, groupby) for each in (found, fitted)]
        assert plain(results[0]) == plain(results[1])
        assert repr(results[0]) == repr(results[1])


def test_subsets_have_the_loadings_of_their_cells_and_all_features_of_the_fit(fitted):
    part = fitted[10:30, fitted.var["highly_variable"]]
    model, whole = nmfscale.get.model(part), nmfscale.get.model(fitted)
    assert (model.components_ == whole.components_).all()
    assert (model.loadings_ == whole.loadings_[10:30]).all()
    assert (model.sample_totals_ == whole.sample_totals_[10:30]).all()
    assert model.sample_names_.tolist() == fitted.obs_names[10:30].tolist()
    assert part.is_view  # reading does not copy


def test_what_joined_objects_lack_is_named(fitted):
    joined = anndata.concat([fitted[:25], fitted[25:]])
    assert (nmfscale.get.topics_df(joined) == fitted.obsm["X_topics"]).all(axis=None)
    with pytest.raises(ValueError, match=r"adata.uns has no fit 'topics'.*uns_merge='same'"):
        nmfscale.get.model(joined)
    other = fitted.copy()
    nmfscale.tl.topics(other, 2, layer="counts", **FIT)
    different = anndata.concat([fitted, other], uns_merge="same", index_unique="-")
    with pytest.raises(ValueError, match=r"different fits were joined|has no fit"):
        nmfscale.get.model(different)


def test_masks_and_columns_by_name():
    adata = cells()
    options = {"layer": "counts", "mask_var": "highly_variable", "mask_obs": "kept"}
    nmfscale.tl.topics(adata, 3, key_added="k3", size_factors="size", **options, **FIT)
    obs, var = adata.obs["kept"].to_numpy(), adata.var["highly_variable"].to_numpy()
    part = adata[obs, var]
    model = nmfscale.TopicModel(3, **FIT)
    model.fit(part, layer="counts", size_factors=part.obs["size"])
    assert (adata.obsm["X_k3"][obs] == model.loadings_).all()
    rest = adata[~obs, var]
    others = model.transform(rest, layer="counts", size_factors=rest.obs["size"])
    assert (adata.obsm["X_k3"][~obs] == others).all()
    assert (adata.varm["k3"][var] == model.components_.T).all() and not adata.varm["k3"][~var].any()
    assert nmfscale.get.model(adata, "k3").loadings_.shape == (45, 3)
    # features of the fit only; all features; all cells
    nmfscale.tl.topic_quality(adata, key="k3")
    assert not adata.var["k3_explained"][~var].any() and adata.var["k3_explained"][var].any()
    nmfscale.tl.differential_features(adata, key="k3", split=None)
    assert set(nmfscale.get.differential_df(adata, 0, key="k3")["feature"]) == set(adata.var_names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nmfscale.tl.group_effects(
            adata, "condition", units="donor", mask_obs="kept", key="k3", n_permutations=20
        )
        expected = nmfscale.group_effects(
            model, part.obs["condition"], units=part.obs["donor"], n_permutations=20
        )
    found = nmfscale.get.result(adata, "group_effects", "condition", "k3")
    assert (found.means == expected.means).all()
    # the only groups need no name
    assert repr(nmfscale.get.result(adata, "group_effects", key="k3")) == repr(found)
    with pytest.raises(
        ValueError, match=r"has no 'permutation_test': nmfscale.tl.permutation_test"
    ):
        nmfscale.get.result(adata, "permutation_test", key="k3")
    adata.uns["k3"]["group_effects"]["donor"] = adata.uns["k3"]["group_effects"]["condition"]
    with pytest.raises(ValueError, match="groupby is needed: group_effects has results for"):
        nmfscale.get.result(adata, "group_effects", key="k3")


@pytest.mark.parametrize("given", ["nan", "confidence", "sparse"])
def test_weights_of_entries(given):
    adata, rng = cells(), np.random.default_rng(0)
    lost = rng.random(adata.shape) < 0.2
    weights = np.where(lost, 0, 1.0 if given == "nan" else rng.choice([0.5, 2], adata.shape))
    adata.layers["confidence"] = weights
    adata.layers["nan"] = np.where(lost, np.nan, X.toarray())
    if given == "sparse":
        adata.layers["sparse"], weights = sp.csr_matrix(lost), 1.0 - lost
    layer = "nan" if given == "nan" else "counts"
    options = {"mask_var": "highly_variable", "mask_obs": "kept", "data_weights": given}
    nmfscale.tl.topics(adata, 3, layer=layer, **options, **FIT)
    obs, var = adata.obs["kept"].to_numpy(), adata.var["highly_variable"].to_numpy()
    model, counts = nmfscale.TopicModel(3, **FIT), X.toarray()[:, var]
    model.fit(counts[obs], data_weights=weights[np.ix_(obs, var)])
    assert (adata.obsm["X_topics"][obs] == model.loadings_).all()
    others = model.transform(counts[~obs], data_weights=weights[np.ix_(~obs, var)])
    assert (adata.obsm["X_topics"][~obs] == others).all()
    kept = nmfscale.get.model(adata)
    assert kept.has_missing_entries_
    assert (kept.sample_totals_ == model.sample_totals_).all()
    if given != "sparse":
        part = adata[:, var].copy()
        nmfscale.tl.transform(part, adata, layer=layer, data_weights=given, key_added="again")
        again = model.transform(counts, data_weights=weights[:, var])
        assert (part.obsm["X_again"] == again).all()


def test_transform_by_object_model_and_file(fitted, tmp_path):
    model = nmfscale.get.model(fitted)
    model.save(tmp_path / "model.h5")
    fitted.write_h5ad(tmp_path / "fit.h5ad")
    new = cells()[::-1, ::-1].copy()
    expected = model.transform(fitted, layer="counts")[::-1]
    for reference in (fitted, model, tmp_path / "model.h5", str(tmp_path / "fit.h5ad")):
        layer = None if reference is fitted or "ad" in str(reference)[-2:] else "counts"
        with pytest.warns(UserWarning, match="matched by name"):
            found = nmfscale.tl.transform(new, reference, layer=layer, copy=True)
        assert "X_topics" not in new.obsm
        assert (found.obsm["X_topics"] == expected).all()
        assert (found.varm["topics"] == fitted.varm["topics"][::-1]).all()
        again = nmfscale.get.model(found)
        assert (again.loadings_ == expected).all()
        assert (again.components_ == model.components_).all()


def test_observations_without_counts_of_the_fit_are_marked(fitted):
    new = cells(dense=True)[:3].copy()
    other = anndata.AnnData(np.array([[0], [9], [0]]), new.obs[["size"]])
    new.layers["counts"][1:] = 0
    other.layers["counts"], other.var_names = other.X, ["of no fit"]
    new = anndata.concat([new, other], axis=1)
    with pytest.warns(UserWarning, match="2 of 3 samples of X have no counts in .* 'cell 1', 'cel"):
        with pytest.warns(UserWarning, match="1 feature that TopicModel was not fitted to"):
            nmfscale.tl.transform(new, fitted)
    totals = new.obsm["topics_samples"]["sample_totals"]
    assert (totals.to_numpy() > 0).tolist() == [True, False, False]


@pytest.mark.parametrize("how", ["view", "dense", "backed", "dask", "raw", "mudata"])
def test_the_same_bits_from_every_kind_of_object(how, tmp_path, fitted):
    adata, given, result = cells(how == "dense"), {"layer": "counts"}, None
    if how == "view":
        whole = anndata.concat([adata, adata], merge="same", uns_merge="same", index_unique="-")
        adata = whole[:60]
    elif how == "backed":
        adata.write_h5ad(tmp_path / "cells.h5ad")
        adata = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    elif how == "dask":
        da = pytest.importorskip("dask.array")
        adata.layers["counts"] = da.from_array(X.toarray(), chunks=(7, 40))
    elif how == "raw":
        adata.X = adata.layers.pop("counts")
        adata.raw = adata
        adata, given = adata[:, :25].copy(), {"raw": True}
    elif how == "mudata":
        mudata = pytest.importorskip("mudata")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adata = mudata.MuData({"rna": adata, "atac": cells()[:, :5].copy()})
        given["mod"] = "rna"
        with pytest.raises(ValueError, match=r"mod is needed: .* 'rna', 'atac'"):
            nmfscale.tl.topics(adata, 3, **FIT)
    nmfscale.tl.topics(adata, 3, **given, **FIT)
    result = adata.mod["rna"] if how == "mudata" else adata
    assert (result.obsm["X_topics"] == fitted.obsm["X_topics"]).all()
    assert (result.varm["topics"] == fitted.varm["topics"][: result.n_vars]).all()


def test_logarithms_are_refused_and_the_counts_named():
    adata = cells()
    with pytest.raises(ValueError, match=r"adata.X looks log-norm.*layer='counts', which"):
        nmfscale.tl.topics(adata, 3)
    with pytest.raises(ValueError, match="layer='counts'"):
        nmfscale.tl.select_k(adata, [2, 3])
    adata.raw = anndata.AnnData(adata.layers.pop("counts"), var=adata.var)
    with pytest.raises(ValueError, match="Pass raw=True, which holds whole numbers"):
        nmfscale.tl.topics(adata, 3)
    del adata.raw
    with pytest.raises(ValueError, match=r"No layer and no raw .* adata.layers\['counts'\] ="):
        nmfscale.tl.topics(adata, 3)
    nmfscale.tl.topics(adata, 2, integer="allow", max_iter=2, random_state=0)
    corrected = anndata.AnnData(X.toarray() * 30.5)  # as after removal of ambient RNA
    with pytest.warns(UserWarning, match="not whole numbers"):
        nmfscale.tl.topics(corrected, 2, max_iter=2, random_state=0)


def test_select_k_takes_names_of_models():
    adata = anndata.AnnData(np.eye(4, dtype=int))
    with pytest.raises(ValueError, match="model='poison' is not one of 'topic', 'poisson'"):
        nmfscale.tl.select_k(adata, [2], model="poison")
    smoothed = as_estimator("poisson", prior_factors=1.1, tol=1e-3)
    assert type(smoothed) is nmfscale.PoissonNMF and smoothed.prior_factors == 1.1
    assert as_estimator("lda", prior_factors=1.1, tol=1e-3).tol == nmfscale.LDA().tol


def test_a_new_fit_removes_the_results_of_the_old_one(fitted):
    adata = fitted.copy()
    nmfscale.tl.topics(adata, 2, layer="counts", key_added="topics_2", model="lda", **FIT)
    nmfscale.tl.topics(adata, 3, layer="counts", random_state=1, max_iter=5)
    assert "differential_features" not in adata.uns["topics"]
    assert "topics_explained" not in adata.obs and "topics_explained" not in adata.var
    assert "select_k" in adata.uns  # belongs to no fit
    assert nmfscale.get.model(adata, "topics_2").doc_topic_posterior_.shape == (60, 2)
    with pytest.raises(ValueError, match="has no 'differential_features': nmfscale.tl.diff"):
        nmfscale.get.differential_df(adata)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "nmf"}, ValueError, "model='nmf' is not one of 'topic'"),
        ({"random_stat": 0}, TypeError, "no parameter 'random_stat': use random_state="),
        ({"mask_var": "highly_var"}, ValueError, "no column 'highly_var' in var"),
        ({"mask_var": "symbol"}, ValueError, "one of True and False is needed"),
        ({"mask_obs": np.ones(3, bool)}, ValueError, "mask_obs has 3 entries, but adata has 60"),
        ({"mask_obs": np.zeros(60, bool)}, ValueError, "mask_obs selects none of the 60"),
        ({"size_factors": "sizes"}, ValueError, r"size_factors='sizes'.*perhaps 'size'"),
        ({"key_added": "log1p"}, ValueError, "not part of a fit of nmfscale"),
        ({"key_added": "a/b"}, ValueError, "text without '/'"),
        ({"mod": "rna"}, ValueError, "for MuData objects"),
        ({"layer": "count"}, ValueError, "No layer 'count'"),
        ({"n_topics": 4}, TypeError, "TopicModel and its fit.*'n_topics': use n_components="),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments, error, message):
    adata = cells()
    with pytest.raises(error, match=message):
        nmfscale.tl.topics(adata, 3, **{"layer": "counts"} | arguments)
    assert not adata.obsm and "topics" not in adata.uns


def test_wrong_objects(fitted):
    with pytest.raises(TypeError, match="backed='r'"):
        nmfscale.tl.topics("cells.h5ad", 3)
    with pytest.raises(TypeError, match="ndarray"):
        nmfscale.get.topics_df(np.eye(3))
    with pytest.raises(ValueError, match=r"no fit 'k9': there are 'topics'"):
        nmfscale.get.model(fitted, "k9")
    with pytest.raises(ValueError, match=r"groupby='donors'.*perhaps 'donor'"):
        nmfscale.tl.permutation_test(fitted, "donors")


def test_panels_and_tables_of_priors_are_kept(tmp_path):
    adata = cells()
    adata.obs["panel"] = np.where(np.arange(60) % 2, "one", "two")
    counts = X.toarray()
    counts[1::2, :10] = 0
    adata.layers["counts"] = counts
    measured = pd.DataFrame(True, index=["one", "two"], columns=adata.var_names)
    measured.iloc[0, :10] = False
    prior = pd.DataFrame(np.full((40, 3), 1.1), index=adata.var_names)
    nmfscale.tl.topics(
        adata, 3, layer="counts", panel="panel", measured=measured, prior_factors=prior, **FIT
    )
    adata.write_h5ad(tmp_path / "cells.h5ad")
    model = nmfscale.get.model(anndata.read_h5ad(tmp_path / "cells.h5ad"))
    assert len(set(model.panel_[::2])) == len(set(model.panel_[1::2])) == 1
    assert model.measured_.sum() == 70
    assert (np.asarray(model.prior_factors) == 1.1).all() and model.prior_factors.shape == (40, 3)


def test_a_model_that_is_not_registered_is_refused():
    adata, fit = cells(), {"layer": "counts", "random_state": 0, "max_iter": 5}
    nmfscale.tl.topics(adata, 3, model=ZeroInflatedNMF, **fit)
    name = "ZeroInflatedNMF"
    del nmfscale.models.CountModel.of_others[name]  # as in a new process
    try:
        with pytest.raises(ValueError, match=f"holds a {name}.*import that first"):
            nmfscale.get.model(adata)
        with pytest.raises(
            TypeError, match=r"another model has this name.*if you defined it again"
        ):
            nmfscale.tl.topics(adata, 3, model=ZeroInflatedNMF, callback=pytest.fail, **fit)
    finally:
        nmfscale.models.CountModel.of_others[name] = ZeroInflatedNMF


def test_tables_are_matched_with_variables_and_topics_by_name(tmp_path):
    """Held and new programs, in another order than adata; a prior keeps its names."""
    adata, order = cells(), np.random.default_rng(0).permutation(40)
    topics = np.random.default_rng(1).gamma(1.0, size=(3, 40))
    topics /= topics.sum(axis=1, keepdims=True)
    table = pd.DataFrame(topics, ["B cells", "new", "T cells"], adata.var_names)
    held = pd.Series([False, True, True], ["new", "T cells", "B cells"])
    how = {"layer": "counts", "max_iter": 5, "random_state": 0}
    nmfscale.tl.topics(adata, 3, components=table.iloc[:, order], fixed_topics=held, **how)
    found = nmfscale.get.components_df(adata)
    assert np.abs(found.to_numpy() - topics).max(axis=1)[[0, 2]] == pytest.approx(0, abs=1e-12)
    assert np.abs(found.to_numpy() - topics)[1].max() > 1e-3
    prior = table.iloc[0, order] + 0.1
    nmfscale.tl.topics(adata, 3, model="lda", topic_word_prior=prior, **how)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    model = nmfscale.get.model(anndata.read_h5ad(tmp_path / "cells.h5ad"))
    assert model.topic_word_prior.equals(prior)
    assert model.topic_word_prior_[0] == pytest.approx(topics[0] + 0.1)
