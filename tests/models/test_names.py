"""Names of features: new counts are matched with those of the fit."""

import warnings

import internals
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from night import at_night
from numpy.testing import assert_array_equal

import nmfscale

N, M = 40, 12
X = np.random.default_rng(0).poisson(1.5, (N, M))
NAMES = np.array([f"gene{j}" for j in range(M)], object)
MODELS = [nmfscale.PoissonNMF, nmfscale.TopicModel, nmfscale.LDA]


def fitted(model=nmfscale.TopicModel, **options):
    counts = nmfscale.as_counts(pd.DataFrame(X, columns=NAMES))
    return model(3, max_iter=5, tol=0, random_state=0, **options).fit(counts)


def named(counts, names):
    return nmfscale.as_counts(pd.DataFrame(counts, columns=names), integer="allow")


def shuffled(counts, n_others, seed=1):
    """Other columns between those of the fit, all in another order."""
    rng = np.random.default_rng(seed)
    others = rng.poisson(1.0, (len(counts), n_others)).astype(counts.dtype)
    order = rng.permutation(M + n_others)
    names = np.array([*NAMES, *(f"other{j}" for j in range(n_others))], object)
    return np.hstack([counts, others])[:, order], names[order]


def in_place(place, counts, names, folder):
    """Counts with names, in memory or in a file."""
    if place == "counts":
        return named(counts, names)
    if place == "store":
        return nmfscale.write_store(named(counts, names), folder / "counts.nmf").path
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(sp.csr_matrix(counts), var=pd.DataFrame(index=names))
    if place == "anndata":
        return adata
    adata.write_h5ad(folder / "counts.h5ad")
    return folder / "counts.h5ad"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_others", [5, *at_night(0)])
@pytest.mark.parametrize(
    "place", ["counts", "anndata", "file in blocks", "store", *at_night("file")]
)
def test_the_bits_are_those_of_the_features_in_order(tmp_path, monkeypatch, place, n_others, model):
    internals.small_blocks(monkeypatch, 400)
    one = fitted(model, memory_limit="1TB" if "blocks" in place else None)
    source = in_place(place.split()[0], *shuffled(X, n_others), tmp_path)
    said = (
        "5 features that .* was not .* ignored"
        if n_others
        else "X has its features in another order"
    )
    with pytest.warns(UserWarning, match=said) as caught:
        assert one.transform(source).tobytes() == one.transform(named(X, NAMES)).tobytes()
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="matched by name"):
        assert one.score(source) == one.score(named(X, NAMES))


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(M + 2)), st.integers(0, 2))
def test_fractions_have_the_same_bits_too(order, n_left_out):
    counts, names = shuffled(X / 3, 2)
    left_out = ["other0", "other1"][:n_left_out]
    keep = [j for j in order if names[j] not in left_out]
    one = fitted(integer="allow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = one.transform(named(counts[:, keep], names[keep]))
    assert found.tobytes() == one.transform(named(X / 3, NAMES)).tobytes()


def test_batches_are_matched():
    one, other = (nmfscale.LDA(3, random_state=0).partial_fit(named(X, NAMES)) for _ in range(2))
    one.partial_fit(named(X, NAMES))
    with pytest.warns(UserWarning, match="counts. The other features are in another order"):
        other.partial_fit(named(*shuffled(X, 2)), new_features="ignore")
    assert one.components_.tobytes() == other.components_.tobytes()
    assert_array_equal(other.feature_names_in_, NAMES)
    with pytest.raises(ValueError, match="'gene11': in a batch, give missing='zero'"):
        one.partial_fit(named(X[:, :11], NAMES[:11]))


def test_names_of_samples_and_order_stay():
    pytest.importorskip("anndata")
    one = fitted()
    adata = in_place("anndata", *shuffled(X, 1), None)
    adata.obs_names = [f"cell{i}" for i in range(N)]
    with pytest.warns(UserWarning, match="1 feature that TopicModel .* 'other0': it is ignored"):
        frame = one.set_output(transform="pandas").transform(adata)
    assert list(frame.index) == list(adata.obs_names)
    with warnings.catch_warnings():  # the features of the fit, one more at the end
        warnings.filterwarnings("error", message=".*another order")
        warnings.filterwarnings("ignore", message="X has 1 feature")
        one.transform(named(np.hstack([X, X[:, :1]]), [*NAMES, "other"]))


def test_a_table_with_more_columns_is_matched_and_one_in_another_order_refused():
    one, table = fitted(), pd.DataFrame(X, columns=NAMES)
    with pytest.warns(UserWarning, match="X has 3 features that TopicModel was not fitted to"):
        found = one.transform(pd.DataFrame(*shuffled(X, 3)[:1], columns=shuffled(X, 3)[1]))
    assert found.tobytes() == one.transform(table).tobytes()
    with pytest.raises(ValueError, match=r"same order .*\n.*Give X\[model.feature_names_in_\]"):
        one.transform(table[NAMES[::-1]])
    with pytest.raises(ValueError, match="now missing:\n- gene0\n- gene1\nGive missing="):
        one.transform(table[NAMES[2:]])


def test_features_that_are_missing_are_named():
    counts, names = shuffled(X, 1)
    names[names == "gene7"] = "GENE7"
    told = (
        "X lacks 1 of the 12 features that TopicModel was fitted to, such as 'gene7'; those of X "
        "are such as .*'GENE7'.*: give missing='restrict' if they were not measured"
    )
    with pytest.raises(ValueError, match=told):
        fitted().transform(named(counts, names))
    with pytest.raises(ValueError, match="lacks 2 of the 12 .*'gene10', 'gene11': give missing="):
        fitted().score(named(X[:, :10], NAMES[:10]))


@pytest.mark.parametrize("names", [[*"abca"], [7, 8, 9, 7]])
def test_a_table_may_have_several_columns_of_one_name(names):
    table = pd.DataFrame([[1, 2, 3, 4], [4, 0, 2, 1], [0, 3, 1, 2]], columns=names)
    model = nmfscale.TopicModel(2, max_iter=2, tol=0, random_state=0)
    plain = model.fit_transform(table.to_numpy())
    np.testing.assert_array_equal(model.fit(table).transform(table), plain)
    with pytest.raises(ValueError, match=f"have one name, such as {names[0]!r}, and cannot"):
        model.transform(table.iloc[:, [1, 2, 0, 3]])


def test_names_of_several_features_are_refused():
    counts, names = shuffled(X, 2)
    twice = np.where(names == "other1", "gene3", names)
    with pytest.raises(ValueError, match="several features of X have one name, such as 'gene3'"):
        fitted().transform(named(counts, twice))
    others = np.where(names == "other1", "other0", names)  # of which nobody asks
    with pytest.warns(UserWarning, match="matched by name"):
        fitted().transform(named(counts, others))
    twice = np.where(NAMES == "gene1", "gene2", NAMES)
    one = nmfscale.PoissonNMF(2, max_iter=3, tol=0).fit(named(X, twice))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.transform(named(X, twice))  # the very features of the fit
    with pytest.raises(ValueError, match="that PoissonNMF was fitted to have one .*'gene2'"):
        one.transform(named(X, twice[::-1]))


@pytest.mark.parametrize(
    "names",
    [
        np.arange(M) * 7 + 3,
        [f"gene{j}".encode() for j in range(M)],
        pd.MultiIndex.from_product([["RNA", "protein"], range(M // 2)]),
        pd.date_range("2020-01-01", periods=M),
    ],
    ids=["numbers", "bytes", "tuples", "dates"],
)
@pytest.mark.parametrize("saved", [False, True])
def test_names_that_are_no_text_are_matched_too(tmp_path, names, saved):
    table = pd.DataFrame(X, index=np.arange(N) + 100, columns=names)
    model = nmfscale.TopicModel(3, max_iter=5, tol=0, random_state=0).fit(table)
    assert not hasattr(model, "feature_names_in_")
    assert model.feature_labels_.tolist() == table.columns.tolist()
    if saved:
        model.save(tmp_path / "model.h5")
        model = nmfscale.load(tmp_path / "model.h5")
    assert model.sample_names_.tolist() == table.index.tolist()
    order = np.random.default_rng(0).permutation(M)
    with pytest.warns(UserWarning, match="another order than in the fit: they are matched by name"):
        assert_array_equal(model.transform(table.iloc[:, order]), model.transform(table))
    with pytest.raises(ValueError, match="X lacks 1 of the 12 features"):
        model.transform(table.iloc[:, 1:])
    with pytest.warns(UserWarning, match="X has no names of features"):
        model.transform(X)


def test_numbers_match_the_text_that_anndata_makes_of_them():
    table = pd.DataFrame(X, columns=np.arange(M) + 100)
    model = nmfscale.TopicModel(3, max_iter=5, tol=0, random_state=0).fit(table)
    with pytest.warns(UserWarning, match="matched by name"):
        found = model.transform(named(X[:, ::-1], table.columns[::-1].astype(str)))
    assert_array_equal(found, model.transform(table))


def test_numbers_of_another_order_are_warned_of_where_the_fit_had_no_names():
    model = nmfscale.TopicModel(3, max_iter=5, tol=0, random_state=0).fit(pd.DataFrame(X))
    with pytest.warns(UserWarning, match="taken by position, not by these numbers"):
        model.transform(pd.DataFrame(X)[[*range(M)][::-1]])
