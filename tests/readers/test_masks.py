"""Names for any matrix, and subsets of samples and features, from every kind of source."""

import sys

import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad, write_mtx, write_tenx

import nmfscale
from nmfscale import as_counts, read_counts

RNG = np.random.default_rng(4)
X = RNG.poisson(1.0, (30, 8)) * (RNG.random((30, 8)) < 0.7)
ROWS, COLUMNS = np.array([1, 2, 7, 8, 20, 29]), np.array([0, 3, 4, 7])
PART = X[ROWS][:, COLUMNS]


def dense(counts):
    return counts.take_rows().toarray()


def anndata_of(matrix):
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(matrix.astype(np.float32))
    adata.obs_names = [f"obs-{i}" for i in range(30)]
    adata.var_names = [f"var-{j}" for j in range(8)]
    adata.obs["kept"] = np.isin(np.arange(30), ROWS)
    adata.obs["patient"] = np.array(["a", "b", None])[np.arange(30) % 3]
    adata.var["kept"] = np.isin(np.arange(8), COLUMNS)
    adata.var["gene_ids"] = [f"ENSG{j}" for j in range(8)]
    return adata


def sources(tmp_path):
    """Yield the same counts, with and without names, in all kinds of places."""
    names = {"sample_names": [f"obs-{i}" for i in range(30)]}
    names["feature_names"] = [f"var-{j}" for j in range(8)]
    named = as_counts(X, **names)
    yield X, names
    yield sp.csc_array(X), names
    yield sp.coo_array(X), names
    yield X.tolist(), names
    yield named, {}
    yield nmfscale.write_store(named, tmp_path / "counts.nmf"), {}
    yield tmp_path / "counts.nmf", {}
    yield write_mtx(tmp_path / "counts.mtx", sp.csr_array(X)), names
    for form in (X, sp.csr_array(X), sp.csc_array(X)):
        yield write_h5ad(tmp_path / f"{getattr(form, 'format', 'dense')}.h5ad", form), {}
    yield write_tenx(tmp_path / "genes.h5", sp.csr_array(X), 2), {}
    if "anndata" in sys.modules:
        yield anndata_of(sp.csr_matrix(X)), {}
        yield anndata_of(X), {}


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_part_of_any_source_is_the_sliced_matrix(tmp_path, in_memory):
    pytest.importorskip("anndata")
    mask = np.isin(np.arange(30), ROWS)
    chosen_names = [f"var-{j}" for j in COLUMNS[::-1]]
    for source, names in sources(tmp_path):
        for rows, columns in ((mask, COLUMNS), (ROWS - 30, np.isin(range(8), COLUMNS))):
            found = as_counts(source, **names, mask_obs=rows, mask_var=columns, in_memory=in_memory)
            np.testing.assert_array_equal(dense(found), PART)
            assert found.sample_names.tolist() == [f"obs-{i}" for i in ROWS]
            assert found.feature_names.tolist() == [f"var-{j}" for j in COLUMNS]
            np.testing.assert_array_equal(found.column_totals, PART.sum(axis=0))
        found = as_counts(source, **names, mask_var=chosen_names, in_memory=in_memory)
        np.testing.assert_array_equal(dense(found), X[:, COLUMNS])


def test_columns_choose_a_part_and_come_along(tmp_path):
    adata = anndata_of(sp.csr_matrix(X))
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = pytest.importorskip("anndata").read_h5ad(tmp_path / "cells.h5ad", backed="r")
    backed.obs["late"] = np.arange(30)
    patients = np.array(["a", "b", None])[np.arange(30) % 3][ROWS].tolist()
    for source in (adata, adata[:, ::-1][:, ::-1], tmp_path / "cells.h5ad", backed):
        for in_memory in (True, False):
            found = as_counts(source, mask_obs="kept", mask_var="kept", in_memory=in_memory)
            np.testing.assert_array_equal(dense(found), PART)
            assert found.obs["patient"].tolist() == patients
            assert found.obs["kept"].all() and ("late" in found.obs) == (source is backed)
            ids = as_counts(source, names="gene_ids", mask_var=["ENSG7"], in_memory=in_memory)
            assert ids.feature_names.tolist() == ["ENSG7"]
    store = nmfscale.write_store(tmp_path / "cells.h5ad", tmp_path / "cells.nmf", mask_obs="kept")
    assert store.obs["patient"].tolist() == patients
    np.testing.assert_array_equal(dense(as_counts(store, mask_obs=[0])), X[ROWS[:1]])
    assert as_counts(store, mask_obs="kept").shape == (6, 8)
    model = nmfscale.TopicModel(2, max_iter=2, tol=0, random_state=0).fit(adata, mask_obs="kept")
    model.save(tmp_path / "model.h5")
    loaded = nmfscale.load(tmp_path / "model.h5")
    assert loaded.obs_["patient"].tolist() == patients and loaded.obs_["kept"].dtype == bool


def test_bits_of_a_fit_to_a_part(tmp_path):
    path = write_h5ad(tmp_path / "cells.h5ad", sp.csr_array(X))
    model = nmfscale.TopicModel(2, max_iter=4, tol=0, random_state=0)
    one = model.fit(PART).components_
    for source, limit in ((X, None), (path, None), (path, "1GB")):
        model.set_params(memory_limit=limit).fit(source, mask_obs=ROWS, mask_var=COLUMNS)
        np.testing.assert_array_equal(model.components_, one)


def test_entries_that_are_not_chosen_are_not_checked(tmp_path):
    wrong = X.astype(float)
    wrong[0, 0], wrong[3, 2], wrong[7, 1] = -1, np.nan, 0.5
    path = write_h5ad(tmp_path / "cells.h5ad", sp.csr_array(wrong))
    for source in (wrong, sp.csr_array(wrong), path):
        found = as_counts(source, mask_obs=ROWS, mask_var=COLUMNS, integer="require")
        np.testing.assert_array_equal(dense(found), PART)


def test_names_of_10x_files_and_scanpy_meet(tmp_path):
    path, adata = write_tenx(tmp_path / "genes.h5", sp.csr_array(X), 3), anndata_of(X)
    wanted = {"names": "id", "feature_type": "all"}
    model = nmfscale.TopicModel(2, max_iter=3, tol=0, random_state=0).fit(path, **wanted)
    assert model.feature_names_in_.tolist() == [f"var-{j}" for j in range(8)]
    adata.var["gene_ids"], adata.var_names = adata.var_names, [f"symbol {j}" for j in range(8)]
    with pytest.warns(UserWarning, match="features in another order than in the fit"):
        turned = model.transform(adata[:, ::-1].copy(), names="gene_ids", mask_obs=ROWS)
    np.testing.assert_allclose(turned, model.transform(path, **wanted)[ROWS], atol=1e-6)
    assert read_counts(path, names="gene_ids").feature_names.tolist()[0] == "var-0"


def test_names_given_to_an_estimator():
    pd = pytest.importorskip("pandas")
    words, names = [f"word {j}" for j in range(8)], [f"text {i}" for i in range(30)]
    model = nmfscale.TopicModel(2, max_iter=3, tol=0, random_state=0)
    counts = as_counts(X)
    for source in (sp.csr_array(X), pd.DataFrame(X), counts):
        model.fit(source, feature_names=words, sample_names=pd.Index(names))
        assert model.feature_names_in_.tolist() == words and model.sample_names_.tolist() == names
    assert counts.feature_names is None
    with pytest.warns(UserWarning, match="features in another order than in the fit"):
        turned = model.transform(sp.csr_array(X[:, ::-1]), feature_names=words[::-1])
    np.testing.assert_array_equal(turned, model.transform(X, feature_names=words))
    frame = model.set_output(transform="pandas").transform(
        pd.DataFrame(X), feature_names=words, mask_obs=ROWS, sample_names=names
    )
    assert frame.index.tolist() == [names[i] for i in ROWS]
    assert model.transform(pd.DataFrame(X), feature_names=words, mask_obs=ROWS).shape == (6, 2)
    labels = pd.Series(np.arange(30) % 2, index=names[::-1])
    labelled = nmfscale.SSNMF(2, max_iter=3, tol=0, random_state=0)
    part = {"sample_names": names, "mask_obs": pd.Series(labels == 1)}
    labelled.fit(X, labels, **part)
    assert labelled.loadings_.shape == (15, 2) and labelled.classes_.tolist() == [1]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"feature_names": ["a"]}, r"feature_names has shape \(1,\), but there are 8 columns"),
        ({"names": "id"}, "names='id' is the name of a column of var, but X has no var: pass"),
        ({"mask_obs": "kept"}, "mask_obs='kept' is the name of a column of obs, but X has no obs"),
        ({"mask_obs": [True] * 8}, "mask_obs has 8 entries, but X has 30 samples"),
        ({"mask_var": [8]}, "mask_var holds the position 8, but X has 8 features"),
        ({"mask_var": [1, 1]}, "mask_var holds the position 1 more than once"),
        ({"mask_var": [0.5]}, "mask_var holds fractions such as 0.5: a mask is"),
        ({"mask_var": ["a"]}, "mask_var holds names, but the features of X have none: pass fe"),
        ({"mask_var": []}, "mask_var holds names|mask_var selects none of the 8 features of X"),
        ({"mask_obs": np.zeros(30, bool)}, "mask_obs selects none of the 30 samples of X"),
        ({"mask_obs": np.ones((30, 1), bool)}, r"mask_obs has shape \(30, 1\): a mask \(30,\)"),
        ({"names": "id", "feature_names": ["a"]}, "names and feature_names exclude each other"),
    ],
)
def test_masks_and_names_that_do_not_fit(option, message):
    with pytest.raises(ValueError, match=message):
        as_counts(X, **option)


def test_names_and_columns_that_a_source_does_not_have(tmp_path):
    adata = anndata_of(X)
    adata.var["score"], adata.var["part"] = np.arange(8) / 2, ["a", None] * 4
    adata.write_h5ad(tmp_path / "cells.h5ad")
    for source in (adata, tmp_path / "cells.h5ad"):
        for option, message in (
            ({"mask_var": ["var-1", "ENSG1"]}, "1 of 2, such as 'ENSG1'; it has 'var-0'"),
            (
                {"mask_var": "hvg"},
                r"no column 'hvg' in var \(mask_var\); its columns: .*'gene_ids'",
            ),
            ({"mask_var": "score"}, "mask_var='score' is a column of float64: one of True"),
            ({"names": "part"}, "the column 'part' of var has no name for 4 of the 8 features"),
        ):
            with pytest.raises(ValueError, match=message):
                as_counts(source, **option)
    with pytest.raises(TypeError, match="TopicModel got an unexpected keyword argument 'sample_w"):
        nmfscale.TopicModel(2).fit(X, sample_weight=np.ones(30))
    message = r"solver is a parameter of the model: use TopicModel\(solver="
    with pytest.raises(TypeError, match=message):
        nmfscale.TopicModel(2).fit(X, solver="em")
