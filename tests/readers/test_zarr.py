"""AnnData objects in zarr stores."""

import shutil
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from night import at_night

import nmfscale
from nmfscale import as_counts, read_counts

anndata = pytest.importorskip("anndata")
zarr = pytest.importorskip("zarr")
FORMATS = (2, 3) if hasattr(anndata.settings, "zarr_write_format") else (2,)
X = np.random.default_rng(3).poisson(0.7, (50, 12)).astype(np.float32)
FORMS = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": np.asarray}


def write(path, form, version=2, **settings):
    adata = anndata.AnnData(np.log1p(X))
    adata.obs_names, adata.var_names = [f"cell {i}" for i in range(50)], list("abcdefghijkl")
    adata.obs["patient"] = np.array(["u", "v", None])[np.arange(50) % 3]
    adata.var["kept"] = np.arange(12) % 2 == 0
    adata.layers["counts"], adata.raw = FORMS[form](X), anndata.AnnData(FORMS[form](X))
    before = getattr(anndata.settings, "zarr_write_format", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if len(FORMATS) > 1:
            anndata.settings.zarr_write_format = version
        adata.write_zarr(path, **settings)
        if len(FORMATS) > 1:
            anndata.settings.zarr_write_format = before
    return path


@pytest.mark.parametrize(
    ("form", "version"), [("csr", 3), *at_night(("csr", 2), ("dense", 2), ("csc", 3))]
)
def test_stores_are_read_in_memory_and_by_rows(tmp_path, form, version):
    if version not in FORMATS:
        pytest.skip("this anndata does not write the format")
    path = write(tmp_path / "cells.zarr", form, version, chunks=(7, 5) if form == "dense" else None)
    for choice in ({"layer": "counts"}, {"raw": True}):
        for in_memory in (True, False):
            found = as_counts(path, **choice, in_memory=in_memory)
            np.testing.assert_array_equal(found.take_rows().toarray(), X)
            assert found.sample_names[3] == "cell 3" and found.obs["patient"][2] is None
    part = as_counts(path, layer="counts", in_memory=False, mask_obs=[3, 40, 41], mask_var="kept")
    np.testing.assert_array_equal(part.take_rows().toarray(), X[[3, 40, 41], ::2])
    assert read_counts(path, layer="counts", groups="patient").groups[2] == "missing"
    model = nmfscale.TopicModel(2, max_iter=3, tol=0, random_state=0)
    one = model.fit(X).components_
    model.set_params(memory_limit="1GB").fit(path, layer="counts")
    np.testing.assert_array_equal(model.components_, one)


def test_damage_and_other_stores_are_refused(tmp_path):
    path = write(tmp_path / "cells.zarr", "csr")
    for option, message in (
        ({"layer": "no"}, "has no layers/no; its matrices: X, raw/X, layers/counts"),
        ({"mask_var": "no"}, "has no column 'no' in var"),
        ({"genome": "hg"}, "genome='hg' does not apply"),
        ({"modality": "rna"}, "holds a single AnnData object"),
    ):
        with pytest.raises(ValueError, match=message):
            read_counts(path, **option)
    data = path / "layers" / "counts" / "data"
    chunk = next(each for each in data.iterdir() if not each.name.startswith("."))
    chunk.write_bytes(b"damaged")
    with pytest.raises((ValueError, OSError), match="cells.zarr is damaged"):
        read_counts(path, layer="counts")
    chunk.unlink()
    with pytest.raises(ValueError, match="1 chunks of data, or some of indptr, are missing"):
        read_counts(path, layer="counts")
    shutil.rmtree(path / "raw" / "X" / "indptr")
    with pytest.raises(ValueError, match="cells.zarr"):
        read_counts(path, raw=True)
    other = zarr.open_group(str(tmp_path / "other.zarr"), mode="w")
    other.create_group("something")
    with pytest.raises(ValueError, match=r"not an AnnData object .*; it holds: something"):
        read_counts(tmp_path / "other.zarr")
    zarr.open_group(str(tmp_path / "spatial.zarr"), mode="w").create_group("tables/cells")
    with pytest.raises(ValueError, match="SpatialData store; .*spatial.zarr/tables/cells"):
        read_counts(tmp_path / "spatial.zarr")
