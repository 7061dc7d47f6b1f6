"""Results of groups know the columns of labels that they were made from."""

import h5py
import numpy as np
import pytest

import nmfscale
from nmfscale.inference.results.origin import Origin
from nmfscale.storage.arrays import put_json, read_json

FEW = {"random_state": 0, "n_permutations": 9}


@pytest.fixture(scope="module")
def shares():
    return np.random.default_rng(0).dirichlet([1, 1, 1], 40)


def columns():
    import pandas as pd

    names = np.arange(40)
    return {
        "groups": pd.Series(names % 2, name="cell_type"), "units": pd.Series(names, name="donor"),
        "strata": pd.Series(names // 20, name="batch"),
    }  # fmt: skip


def test_names_of_columns_and_of_lists(shares):
    pytest.importorskip("pandas")
    found = nmfscale.permutation_test(shares, **columns(), **FEW)
    assert found.origin == Origin("cell_type", "donor", "batch")
    assert str(found.origin) == "cell_type (units: donor, strata: batch)"
    listed = nmfscale.group_effects(shares, list(np.arange(40) % 2), units=range(40), **FEW)
    assert listed.differences().origin == listed.origin == Origin("", "")
    assert str(listed.origin) == ""


def test_objects_keep_the_names_of_their_columns(shares):
    anndata = pytest.importorskip("anndata")
    import pandas as pd

    labels = {name: each.astype(str) for name, each in columns().items()}
    obs = pd.DataFrame({each.name: each.to_numpy() for each in labels.values()})
    obs.index = [f"cell {i}" for i in range(40)]
    adata = anndata.AnnData(np.rint(20 * shares).astype(np.float32), obs=obs)
    nmfscale.tl.topics(adata, 2, random_state=0)
    for mask in None, np.arange(40) > 1:
        nmfscale.tl.permutation_test(
            adata, "cell_type", units="donor", strata="batch", mask_obs=mask, **FEW
        )
        found = nmfscale.get.result(adata, "permutation_test", groupby="cell_type")
        assert str(found.origin) == "cell_type (units: donor, strata: batch)"


def test_objects_have_covariates_in_columns_and_keep_the_order_of_categories(shares):
    anndata = pytest.importorskip("anndata")
    import pandas as pd

    obs = pd.DataFrame(index=[f"cell {i}" for i in range(40)])
    names = ["none", "low", "high"]
    obs["dose"] = pd.Categorical(np.array(names)[np.arange(40) % 3], names, ordered=True)
    obs["age"], obs["batch"] = np.arange(40) % 7, np.array(["x", "y"])[np.arange(40) // 20]
    adata = anndata.AnnData(np.rint(20 * shares).astype(np.float32), obs=obs)
    nmfscale.tl.topics(adata, 2, random_state=0)
    options = {"statistic": "trend", "n_permutations": 19, "random_state": 0}
    kept = np.arange(40) > 3
    nmfscale.tl.permutation_test(
        adata, "dose", covariates=["age", "batch"], mask_obs=kept, **options
    )
    result = nmfscale.get.result(adata, "permutation_test", groupby="dose")
    assert result.covariates == ("age", "batch")
    assert result.overall.groups == ("none", "low", "high")
    expected = nmfscale.permutation_test(
        nmfscale.get.model(adata).loadings_[kept], obs["dose"][kept],
        covariates=obs[kept][["age", "batch"]], **options,
    )  # fmt: skip
    assert expected.overall.n_units == result.overall.n_units


def test_files_without_an_origin_are_read(shares, tmp_path):
    found = nmfscale.permutation_test(shares, np.arange(40) % 2, **FEW)
    found.save(tmp_path / "test.h5")
    with h5py.File(tmp_path / "test.h5", "r+") as file:
        about = read_json(file, "about")
        del about["fields"]["origin"], file["about"]
        put_json(file, "about", about)
    assert nmfscale.load_result(tmp_path / "test.h5").origin == Origin()
