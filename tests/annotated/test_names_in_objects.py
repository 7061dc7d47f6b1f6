"""Names that users choose, of columns and of topics, in AnnData objects and their files."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import nmfscale
from nmfscale.annotated.scheme import keep_result

anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")

X, _ = nmfscale.simulate_topic_counts(60, 40, 3, random_state=0)
FIT = {"random_state": 0, "max_iter": 30, "tol": 1e-3}
COLUMNS = ["T/NK", "T", "CD4/CD8/γδ", ".", "..", "__type", "100 % T%2FNK", "leiden_0.5", ""]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(fewer than|units are so few|vary more in group)"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:Writing zarr v2 data"),
]


def cells():
    obs = pd.DataFrame(
        {
            "group": np.repeat(["treated", "control"], 30),
            "donor": np.repeat([f"donor {i}" for i in range(12)], 5),
        },
        index=[f"cell {i}" for i in range(60)],
    )  # fmt: skip
    adata = anndata.AnnData(sp.csr_matrix(X), obs=obs)
    adata.var_names = [f"gene {j}" for j in range(40)]
    return adata


@pytest.fixture(scope="module")
def fitted():
    adata = cells()
    nmfscale.tl.topics(adata, 3, **FIT)
    return adata


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_results_for_columns_of_any_name_are_read_from_files(fitted, kind, tmp_path):
    adata = fitted.copy()
    nmfscale.tl.permutation_test(adata, "group", units="donor", n_permutations=20, random_state=0)
    test = nmfscale.get.result(adata, "permutation_test", "group")
    for name in COLUMNS:
        keep_result(adata, "topics", test, "permutation_test", name)
    if kind == "zarr":
        pytest.importorskip("zarr", "3")
    getattr(adata, f"write_{kind}")(tmp_path / "cells")
    again = getattr(anndata, f"read_{kind}")(tmp_path / "cells")
    assert len(again.uns["topics"]["permutation_test"]) == 1 + len(COLUMNS)
    for name in COLUMNS:
        found = nmfscale.get.result(again, "permutation_test", name)
        assert repr(found) == repr(test) and (found.overall.null == test.overall.null).all()
    with pytest.raises(ValueError, match="has results for '.*', '"):
        nmfscale.get.result(again, "permutation_test")
    with pytest.raises(ValueError, match=r"has no 'CD3/CD4'"):
        nmfscale.get.result(again, "permutation_test", "CD3/CD4")


def test_columns_with_a_slash_are_read_from_files_without_anndata(tmp_path):
    adata = cells()
    adata.obs["T/NK"] = pd.Categorical(adata.obs["group"])
    adata.obs["dose/day"] = np.arange(60.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of anndata
        adata.write_h5ad(tmp_path / "cells.h5ad")
    counts = nmfscale.as_counts(tmp_path / "cells.h5ad", groups="T/NK")
    assert counts.groups.tolist() == adata.obs["group"].tolist()
    assert {*counts.obs} == {*adata.obs.columns}
    assert counts.obs["dose/day"].tolist() == adata.obs["dose/day"].tolist()
    with pytest.raises(ValueError, match=r"no column 'NK' in obs; its columns: .*T/NK"):
        nmfscale.as_counts(tmp_path / "cells.h5ad", groups="NK")
