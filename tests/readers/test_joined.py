"""Several files, counts and objects in one table."""

import internals
import numpy as np
import pytest
import scipy.sparse as sp
from clusters import cluster_of
from count_files import write_h5ad, write_mtx

import nmfscale
from nmfscale import as_counts, concat

RNG = np.random.default_rng(7)
NAMES = [f"gene {j}" for j in range(9)]
X = RNG.poisson(2.0, (40, 9)) * (RNG.random((40, 9)) < 0.8)
# the features of each part, in its order; all have features 1, 3, 4, 5, 7
COLUMNS = [[0, 1, 3, 4, 5, 7], [7, 5, 4, 8, 3, 1, 2], [1, 3, 4, 5, 6, 7]]
ROWS = [range(15), range(15, 22), range(22, 40)]
COMMON, ANY = [1, 3, 4, 5, 7], [0, 1, 3, 4, 5, 7, 8, 2, 6]
FIT = {"max_iter": 4, "tol": 0, "random_state": 0}


def parts(cells="cell {}"):
    """Return three counts with different features, in different orders."""
    return [
        as_counts(
            X[np.ix_(rows, columns)], feature_names=[NAMES[j] for j in columns],
            sample_names=[cells.format(i if "{}" in cells else 0) for i in rows],
        )
        for rows, columns in zip(ROWS, COLUMNS, strict=True)
    ]  # fmt: skip


def files(tmp_path):
    """Return three files of different formats with the same parts."""
    anndata = pytest.importorskip("anndata")
    one, two, three = parts()
    cells = anndata.AnnData(sp.csr_matrix(two.take_rows().astype(np.float32)))
    cells.obs_names, cells.var_names = list(two.sample_names), list(two.feature_names)
    cells.obs["patient"], cells.obs["age"] = ["a", "b", None, "a", "b", "b", "a"], np.arange(7)
    cells.write_h5ad(tmp_path / "two.h5ad")
    nmfscale.write_store(one, tmp_path / "one.nmf")
    (tmp_path / "three").mkdir()
    write_mtx(tmp_path / "three" / "matrix.mtx", sp.csr_array(three.take_rows().T))
    for name, names in (("features", three.feature_names), ("barcodes", three.sample_names)):
        (tmp_path / "three" / f"{name}.tsv").write_text("\n".join(names) + "\n")
    return [tmp_path / "one.nmf", str(tmp_path / "two.h5ad"), tmp_path / "three"]


def table(join):
    whole = np.zeros_like(X)
    for rows, columns in zip(ROWS, COLUMNS, strict=True):
        whole[np.ix_(rows, columns)] = X[np.ix_(rows, columns)]
    return whole[:, COMMON if join == "inner" else ANY]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("join", ["inner", "outer"])
def test_files_and_counts_are_joined_by_the_names_of_features(tmp_path, join, in_memory):
    one, two, three = parts()
    for sources, labels in (
        ([one, two, three], ["0", "1", "2"]),
        (files(tmp_path), ["one", "two", "three"]),
        ({"one": one, "b": two, "c": three}, ["one", "b", "c"]),
    ):
        found = concat(sources, join=join, in_memory=in_memory)
        np.testing.assert_array_equal(found.take_rows().toarray(), table(join))
        columns = COMMON if join == "inner" else ANY
        assert found.feature_names.tolist() == [NAMES[j] for j in columns]
        assert found.sample_names.tolist() == [f"cell {i}" for i in range(40)]
        assert found.obs["file"].tolist() == np.repeat(labels, [15, 7, 18]).tolist()
    assert (found.measured is None) == (join == "inner")


def test_columns_of_obs_of_all_files(tmp_path):
    given = files(tmp_path)
    found = concat(given, labels=list("xyz"))
    assert found.obs["file"].tolist() == ["x"] * 15 + ["y"] * 7 + ["z"] * 18
    assert found.obs["patient"].tolist()[14:23] == [None, "a", "b", None, "a", "b", "b", "a", None]
    np.testing.assert_array_equal(found.obs["age"][14:23], [np.nan, *range(7), np.nan])
    store = nmfscale.write_store(given, tmp_path / "all.nmf", labels=list("xyz"))
    assert store.obs == found.obs
    assert [each.get("path", "").split("/")[-1] for each in store.source["files"]] == [
        "one.nmf", "two.h5ad", "matrix.mtx",
    ]  # fmt: skip
    some = as_counts(given, mask_obs=[15, 39], mask_var=NAMES[3:5])
    np.testing.assert_array_equal(some.take_rows().toarray(), X[[15, 39], 3:5])
    assert some.obs["patient"].tolist() == ["a", None]
    assert as_counts(tmp_path / "all.nmf", groups="patient").groups[15] == "a"


def test_bits_of_a_fit_are_those_of_the_joined_table(tmp_path):
    model, given = nmfscale.TopicModel(2, **FIT), files(tmp_path)
    one = model.fit(table("inner")).components_
    for limit in (None, "1GB"):
        model.set_params(memory_limit=limit).fit(given)
        np.testing.assert_array_equal(model.components_, one)
    assert model.obs_["patient"][15] == "a"
    measured = np.array([np.isin(ANY, columns) for columns in COLUMNS])
    panel = np.repeat([0, 1, 2], [15, 7, 18])
    one = model.set_params(memory_limit=None).fit(table("outer"), measured=measured, panel=panel)
    loadings, F = one.transform(table("outer"), measured=measured, panel=panel), one.components_
    store = nmfscale.write_store(given, tmp_path / "all.nmf", join="outer")
    for source in (given, store, as_counts(store, mask_obs=np.ones(40, bool))):
        how = {"join": "outer"} if source is given else {}
        np.testing.assert_array_equal(model.fit(source, **how).components_, F)
        np.testing.assert_array_equal(model.transform(source, **how), loadings)
    part = as_counts(store, mask_obs=range(22), mask_var=[NAMES[j] for j in (0, 1, 2)])
    np.testing.assert_array_equal(part.measured[0], [[True, True, False], [False, True, True]])
    assert as_counts(store, mask_var=NAMES[3:5]).measured is None
    with pytest.raises(ValueError, match="not measured, in 4 of its 9 features: LDA would take"):
        nmfscale.LDA(2, **FIT).fit(store)
    words = parts()
    for each in words:
        each.of_text = True  # a word that a text lacks occurs 0 times
    np.testing.assert_array_equal(
        model.fit(words, join="outer").components_, nmfscale.TopicModel(2, **FIT)
        .fit(table("outer")).components_,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("join", ["inner", "outer"])
def test_bits_on_a_cluster_are_those_in_memory(tmp_path, monkeypatch, join):
    internals.small_blocks(monkeypatch, 40)
    given, model = files(tmp_path), nmfscale.TopicModel(2, **FIT)
    expected = model.fit(given, join=join).components_
    with cluster_of(2, active=False) as client:
        for limit in (None, "1GB"):
            model.set_params(memory_limit=limit).fit(given, join=join, client=client)
            np.testing.assert_array_equal(model.components_, expected)
    assert len(as_counts(given, join=join).layout(1).blocks) > 2


def test_samples_of_the_same_name_are_told_apart(tmp_path):
    for i, each in enumerate(parts("cell")):
        nmfscale.write_store(each, tmp_path / f"donor{i}.nmf")
    found = concat([tmp_path / f"donor{i}.nmf" for i in range(3)])
    assert found.sample_names.tolist()[13:17] == ["donor0_cell"] * 2 + ["donor1_cell"] * 2
    assert "names begin with those of tables" in found.report()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        nmfscale.write_store(parts()[0], tmp_path / name / "counts.nmf")
    found = concat([tmp_path / name / "counts.nmf" for name in "ab"])
    assert found.sample_names[0] == "a/counts.nmf_cell 0"


def test_tables_without_names_are_joined_if_they_have_the_same_size(tmp_path):
    halves = [write_h5ad(tmp_path / f"{i}.h5ad", sp.csr_array(X[i::2])) for i in (0, 1)]
    np.testing.assert_array_equal(
        concat(halves).take_rows().toarray(), np.concatenate([X[::2], X[1::2]])
    )
    counts = [as_counts(X[:3]), as_counts(X[3:] / 2, integer="allow")]
    assert concat(counts, integer="allow").shape == (40, 9)
    with pytest.raises(
        ValueError, match="the joined table holds counts that are not whole numbers: row 3"
    ):
        concat(counts, integer="require")
    with pytest.raises(ValueError, match="1 of 2 tables have no names, such as '0': give feature"):
        concat([counts[0], parts()[0]])


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        (parts, {"join": "left"}, "join='left': 'inner' keeps the features that all"),
        (parts, {"labels": ["a", "a", "b"]}, "labels is .*: a different label for each of the 3"),
        (lambda: parts()[0], {"join": "outer"}, "join and labels are for a list of files"),
        (lambda: [parts()[0], "no.h5ad"], {}, "No such file or folder: no.h5ad"),
        (lambda: ["a text", "and another"], {}, "count the words of texts"),
        (parts, {"mask_var": "kept"}, "mask_var='kept' is the name of a column of var, but"),
    ],
)
def test_what_cannot_be_joined(sources, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        as_counts(sources(), **options)


def test_features_that_cannot_be_matched():
    one, two, _ = parts()
    two.feature_names = [*two.feature_names[:-1], two.feature_names[0]]
    with pytest.raises(ValueError, match="1 has several features of one name, such as 'gene 7'"):
        concat([one, two])
    two.feature_names = [f"word {j}" for j in range(7)]
    with pytest.raises(ValueError, match="no feature in common; 0 has 'gene 0'.*; 1 has 'word 0'"):
        concat([one, two])
    two.feature_names = ["gene 0", *two.feature_names[1:]]
    with pytest.warns(UserWarning, match="1 features in common, and 6 of the 7 features of 1 are"):
        concat([one, two])
    with pytest.raises(TypeError, match="sources is 'a.h5ad': a list or dict of paths"):
        concat("a.h5ad")
