"""Expected counts by unit and topic: those of the definition, the same bits everywhere."""

import internals
import numpy as np
import pytest
from clusters import cluster_of
from numpy.testing import assert_allclose, assert_array_equal
from small_fits import X as SMALL

import nmfscale
from nmfscale import (
    PoissonNMF,
    TopicModel,
    condition_features,
    features_by_group,
    pseudobulk,
    write_store,
)

N, M = SMALL.shape
K = 3
DONORS = np.array(["ann", "ben", "cat", "dan"])[np.arange(N) % 4]


@pytest.fixture(scope="module")
def model():
    return TopicModel(K, random_state=0).fit(SMALL)


@pytest.fixture(scope="module")
def result(model):
    return pseudobulk(model, SMALL, units=DONORS)


def test_counts_are_split_among_topics_by_their_responsibilities(model, result):
    """E[z_ijk] = x_ij l_ik f_jk / (L F')_ij, and nothing of the counts is lost."""
    L, F = model.loadings_.astype(float), model.components_
    parts = SMALL[:, None, :] * L[:, :, None] * F / np.maximum(L @ F, 1e-300)[:, None, :]
    for u, donor in enumerate(("ann", "ben", "cat", "dan")):
        assert_allclose(result.counts[u], parts[donor == DONORS].sum(axis=0), atol=1e-7)
        assert_allclose(result.counts[u].sum(axis=0), SMALL[donor == DONORS].sum(axis=0))
    assert_allclose(result.sizes[0].sum(axis=1), result.counts.sum(axis=(1, 2)))
    assert_allclose(result.proportions.sum(axis=1), result.n_samples)
    assert result.unit_names == ("ann", "ben", "cat", "dan") and result.efficiencies is None


def test_other_samples_have_the_loadings_of_transform(model, result):
    turned = pseudobulk(model, SMALL[::-1], units=DONORS[::-1])
    assert_allclose(turned.counts, result.counts, rtol=0.02, atol=0.5)
    assert_allclose(turned.sizes, result.sizes, rtol=0.02)


def test_every_model_and_sample_is_split_without_a_rest():
    """Also with zeros in the factors, and samples without counts."""
    X = SMALL.copy()
    X[4] = 0
    for fit in (
        PoissonNMF(2, random_state=0).fit(X), nmfscale.LDA(2, random_state=0).fit(X),
        nmfscale.FrobeniusNMF(2, random_state=0).fit(X),
    ):  # fmt: skip
        fit.components_[0, :30] = 0
        fit.components_[:, 40] = 0
        counts = pseudobulk(fit, X, units=DONORS).counts
        assert_allclose(counts.sum(axis=(0, 1)), X.sum(axis=0), rtol=1e-12)
        assert_allclose(counts[0].sum(axis=0), X[DONORS == "ann"].sum(axis=0), rtol=1e-12)


def test_units_within_groups_and_constant_columns_of_obs(model):
    pytest.importorskip("anndata")
    import anndata
    import pandas as pd

    condition = np.where(np.arange(N) < 40, "before", "after")
    obs = pd.DataFrame({
        "age": np.where(DONORS == "ann", np.nan, 30.0), "sex": np.where(DONORS == "ben", "m", "f"),
        "well": np.arange(N),
    })  # fmt: skip
    adata = anndata.AnnData(SMALL.astype(float), obs.set_index(obs.index.astype(str)))
    counts = pseudobulk(model, adata, units=DONORS, groups=condition)
    assert counts.unit_names[:2] == ("ann", "ann") and counts.groups[:2] == ("after", "before")
    assert set(counts.obs) == {"age", "sex"}
    bulk = counts.to_anndata(1, rounded=True)
    assert bulk.shape == (8, M) and bulk.obs_names[0] == "ann, after, 1"
    assert_array_equal(bulk.X, np.rint(counts.counts[:, 1]))
    assert list(bulk.obs) == ["unit", "group", "topic", "n_samples", "proportions", "age", "sex"]
    whole = pseudobulk(model, SMALL, units=DONORS).counts
    assert_allclose(counts.counts[0] + counts.counts[1], whole[0], rtol=1e-12)
    assert list(counts.to_frame("counts"))[:4] == ["unit", "group", "topic", "0"]


def test_observations_and_variables_of_a_fit_in_an_object():
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(SMALL.astype(float))
    adata.obs["donor"], adata.obs["kept"] = DONORS, np.arange(N) < 50
    adata.var["kept"] = np.arange(M) < 40
    nmfscale.tl.topics(adata, 2, mask_obs="kept", mask_var="kept", random_state=0)
    bulk = nmfscale.tl.pseudobulk(adata, units="donor")
    part = SMALL[:50, :40][DONORS[:50] == "ben"]
    assert bulk.shape == (8, 40) and bulk.obs.topic.iloc[1] == "topic 1"
    assert_allclose(bulk[bulk.obs.unit == "ben"].X.sum(axis=0), part.sum(axis=0))


def test_features_that_a_panel_lacks_are_left_out():
    panel, measured = np.arange(N) % 2, np.ones((2, M), bool)
    measured[1, :20] = False
    X = np.where(measured[panel], SMALL, 0)
    fit = PoissonNMF(K, random_state=0).fit(X, measured=measured, panel=panel)
    counts = pseudobulk(fit, X, units=np.arange(N) // 30)
    assert_array_equal(counts.measured_everywhere, measured[1])
    amounts = fit.loadings_ * fit.components_.sum(axis=1)
    assert_allclose(counts.sizes[1, 0], amounts[:30][panel[:30] == 1].sum(axis=0))
    assert "20 not measured in all samples" in repr(counts)
    pytest.importorskip("anndata")
    assert counts.to_anndata().shape == (9, M - 20)


def test_the_same_bits_with_any_threads_and_from_files(model, small_blocks, monkeypatch, tmp_path):
    result = pseudobulk(model, SMALL, units=DONORS)
    internals.small_panels(monkeypatch, 600)
    write_store(SMALL, tmp_path / "counts.nmf")
    for X, options in (
        (SMALL.astype(np.float32), {"n_threads": 2}), (tmp_path / "counts.nmf", {"n_threads": 1}),
        (tmp_path / "counts.nmf", {"memory_limit": "8GB"}),
    ):  # fmt: skip
        again = pseudobulk(model, X, units=DONORS, **options)
        assert again.counts.tobytes() == result.counts.tobytes()
        assert again.confusion.tobytes() == result.confusion.tobytes()


@pytest.mark.slow
def test_a_cluster_gives_the_same_bits(model, small_blocks, monkeypatch):
    result = pseudobulk(model, SMALL, units=DONORS)
    periods = np.arange(SMALL.shape[0]) % 3
    wells = [f"{donor} {i % 5}" for i, donor in enumerate(DONORS)]
    of_periods = [features_by_group(model, SMALL, periods, units=u) for u in (None, wells)]
    internals.small_panels(monkeypatch, 600)
    with cluster_of(2) as client:
        again = pseudobulk(model, SMALL, units=DONORS, client=client)
        on_cluster = [
            features_by_group(model, SMALL, periods, units=u, client=client) for u in (None, wells)
        ]
    assert again.counts.tobytes() == result.counts.tobytes()
    assert again.confusion.tobytes() == result.confusion.tobytes()
    for one, other in zip(of_periods, on_cluster, strict=True):
        assert one.lower.tobytes() == other.lower.tobytes()
        assert one.lfc_upper.tobytes() == other.lfc_upper.tobytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"units": DONORS[:5]}, "units has 5 labels, and there are 90 samples"),
        ({"X": SMALL[:, 1:]}, "features"),
        ({"memory_limit": "1MB"}, "expected counts of 4 units and 3 topics need .* fewer units"),
    ],
)
def test_refusals(model, arguments, message):
    X, units = arguments.pop("X", SMALL), arguments.pop("units", DONORS)
    with pytest.raises((ValueError, nmfscale.errors.MemoryLimitError), match=message):
        pseudobulk(model, X, units=units, **arguments)


def test_categories_keep_their_order_for_a_fit_to_some_observations():
    """The reference of condition_features is the first category, not the first in the alphabet."""
    anndata, pd = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    X, _ = nmfscale.datasets.simulate_topic_counts(160, 50, 2, random_state=0)
    adata = anndata.AnnData(X.toarray())
    adata.obs["donor"] = np.repeat([f"donor {i}" for i in range(16)], 10)
    of_donors = np.repeat(["untreated", "drug"], 80)
    adata.obs["condition"] = pd.Categorical(of_donors, ["untreated", "drug"])
    adata.obs["kept"] = np.arange(160) % 5 > 0
    nmfscale.tl.topics(adata, 2, mask_obs="kept", random_state=0)
    nmfscale.tl.condition_features(adata, "condition", units="donor")
    changes = nmfscale.get.result(adata, "condition_features")
    assert changes.reference == "untreated" and changes.origin.groups == "condition"


def test_condition_features_takes_a_saved_pseudobulk_in_place_of_counts(model, tmp_path):
    """Crossed donors, wells added up to donors, and the order of the groups."""
    pd = pytest.importorskip("pandas")
    condition = pd.Categorical(np.where(np.arange(N) % 8 < 4, "none", "drug"), ["none", "drug"])
    wells = np.arange(N) % 16
    whole = condition_features(model, SMALL, condition, units=DONORS, min_count=1)
    pseudobulk(model, SMALL, units=DONORS, groups=condition).save(tmp_path / "donors.h5")
    loaded = nmfscale.load_result(tmp_path / "donors.h5")
    of_wells = pseudobulk(model, SMALL, units=wells, groups=condition)
    donors = DONORS[:16][list(of_wells.unit_names)]
    assert whole.reference == "none" and whole.paired and whole.tested.any()
    for again in (
        condition_features(model, loaded, min_count=1),
        condition_features(model, loaded, loaded.groups, reference="none", min_count=1),
        condition_features(model, of_wells, units=donors, min_count=1),
    ):
        assert (again.compared, again.paired, again.units) == (("drug",), True, "units")
        assert_allclose(again.lfc, whole.lfc, rtol=1e-9, atol=1e-12)
    single = pseudobulk(model, SMALL, units=wells)
    with pytest.raises(ValueError, match="a Pseudobulk without groups: pass groups"):
        condition_features(model, single)
    with pytest.raises(ValueError, match="it was made with another model"):
        condition_features(TopicModel(2, random_state=0).fit(SMALL), loaded)
    dose, age = np.arange(16) % 2, 30.0 + np.arange(16) ** 2
    one, other = (
        condition_features(
            model, X, dose[at], strata=at % 4 > 1, covariates={"age": age[at]}, **how
        )
        for X, at, how in ((SMALL, wells, {"units": wells}), (single, np.arange(16), {}))
    )
    assert_allclose(one.lfc, other.lfc, rtol=1e-6, atol=1e-9)


def test_covariates_are_columns_of_an_object_and_results_are_those_of_arrays(model):
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(SMALL.astype(float))
    wells = np.arange(N) % 16
    adata.obs["well"], adata.obs["dose"], adata.obs["age"] = wells.astype(str), wells % 2, wells**2
    nmfscale.tl.topics(adata, 2, random_state=0)
    nmfscale.tl.condition_features(adata, "dose", units="well", covariates=["age"])
    kept = nmfscale.get.result(adata, "condition_features")
    of_arrays = condition_features(
        nmfscale.get.model(adata), adata, wells % 2, units=wells, covariates={"age": wells**2}
    )
    assert_allclose(kept.lfc, of_arrays.lfc, rtol=1e-7, atol=1e-9)
