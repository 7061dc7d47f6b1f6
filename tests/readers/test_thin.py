"""thin: totals and bounds of the draws, their distribution, the same counts from everywhere."""

import warnings

import internals
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import hypergeom

import nmfscale
from nmfscale.cli import main

LABELS = {"sample_names": [f"s{i}" for i in range(150)], "feature_names": list("abcdefghij")}


@pytest.fixture(scope="module")
def X():
    counts = np.random.default_rng(0).poisson(0.6, (150, 10)) * np.arange(150)[:, None] // 4
    counts[0] = 0
    return sp.csr_array(counts)


def dense(counts):
    return counts.take_rows().toarray()


@pytest.mark.filterwarnings("ignore:.*samples have fewer than total")
def test_samples_keep_exactly_the_total(X):
    totals = X.sum(axis=1)
    for total in (1, 40, 10**10):
        kept = dense(nmfscale.thin(X, total=total, random_state=1))
        assert (kept >= 0).all() and (kept <= X.toarray()).all()
        np.testing.assert_array_equal(kept.sum(axis=1), np.minimum(totals, total))


def test_draws_are_hypergeometric_and_binomial():
    rows = np.tile([30, 0, 6, 4], (4000, 1))
    of_total = dense(nmfscale.thin(rows, total=10, random_state=0))
    of_share = dense(nmfscale.thin(rows, fraction=0.25, random_state=0))
    for j in (0, 2, 3):
        n = rows[0, j]
        exact = hypergeom.pmf(np.arange(n + 1), 40, n, 10)
        often = np.bincount(of_total[:, j], minlength=n + 1) / 4000
        assert np.abs(often - exact).max() < 4 * np.sqrt(0.25 / 4000)
        error = 4 * np.sqrt(n * 0.1875 / 4000)
        assert of_share[:, j].mean() == pytest.approx(n / 4, abs=error)
        assert of_share[:, j].var() == pytest.approx(n * 0.1875, rel=0.15)
    assert abs(np.cov(of_share[:, [0, 2]].T)[0, 1]) < 0.1


@pytest.mark.filterwarnings("ignore:.*samples have fewer than total")
@pytest.mark.parametrize("how", [{"total": 30}, {"fraction": 0.3}])
def test_the_same_counts_from_every_source(X, how, tmp_path, monkeypatch, capsys):
    anndata = pytest.importorskip("anndata")
    import pandas as pd

    obs = pd.DataFrame({"donor": np.repeat(["x", "y"], 75)}, index=LABELS["sample_names"])
    adata = anndata.AnnData(sp.csr_matrix(X), obs, pd.DataFrame(index=LABELS["feature_names"]))
    adata.write_h5ad(tmp_path / "X.h5ad")
    store = nmfscale.write_store(adata, tmp_path / "X.nmf")
    expected = nmfscale.thin(X, **how, random_state=5)
    internals.small_pieces(monkeypatch, 2000)
    for source in (X.toarray(), adata, tmp_path / "X.h5ad", store):
        for in_memory in (True, False):
            found = nmfscale.thin(source, **how, random_state=5, in_memory=in_memory)
            np.testing.assert_array_equal(dense(found), dense(expected))
            if not isinstance(source, np.ndarray):
                assert found.sample_names.tolist() == LABELS["sample_names"]
                assert found.obs["donor"].tolist() == obs["donor"].tolist()
    ((name, value),) = how.items()
    out = tmp_path / "thin.nmf"
    assert main(["store", str(tmp_path / "X.h5ad"), str(out), f"--thin-{name}", str(value),
                 "--seed", "5"]) == 0  # fmt: skip
    np.testing.assert_array_equal(dense(nmfscale.results.StoredCounts(out)), dense(expected))
    assert "seed            5" in capsys.readouterr().out


def test_invalid_arguments_and_shallow_samples(X):
    for how, message in [
        ({}, "give one of them"), ({"total": 3, "fraction": 0.5}, "give one of them"),
        ({"total": 0}, "positive integer"), ({"total": 2.0}, "positive integer"),
        ({"fraction": 1}, "between 0 and 1"), ({"total": 3, "random_state": -1}, "random_state=-1"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            nmfscale.thin(X, **how)
    with pytest.raises(ValueError, match="not whole numbers"):
        nmfscale.thin(X * 0.5, total=3)
    for total in (1, 2 * 10**9):
        counts = nmfscale.as_counts([[1], [3 * 10**9]], sample_names=["a", "b"])
        with pytest.raises(ValueError, match=r"sample 'b' has 3,000,000,000 counts"):
            nmfscale.thin(counts, total=total)
    with pytest.warns(UserWarning, match=r"samples have fewer than total=9 counts, the fewest 0"):
        nmfscale.thin(X, total=9)


@pytest.mark.filterwarnings("ignore:.*varies more in group")
def test_thinned_counts_have_no_difference_in_depth():
    rng, groups = np.random.default_rng(0), np.arange(160) % 2
    topics = 0.8 * rng.dirichlet(np.ones(40)) + 0.2 * rng.dirichlet(np.full(40, 0.1), 3)
    shares = rng.dirichlet(np.ones(3), 160) @ topics
    counts = rng.multinomial(np.where(groups == 0, 400, 20), shares)
    model = nmfscale.TopicModel(3, random_state=0).fit(counts)
    with pytest.warns(UserWarning, match=r"nmfscale.thin.* with total=(\d+)") as caught:
        nmfscale.group_effects(model, groups, n_permutations=9)
    advice = next(str(each.message) for each in caught if "thin" in str(each.message))
    total = int(advice.split("total=")[1].split(",")[0])
    assert total == 20
    thinned = nmfscale.thin(counts, total=total, random_state=0)
    again = nmfscale.TopicModel(3, random_state=0).fit(thinned)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*few counts")
        nmfscale.group_effects(again, groups, n_permutations=9)
