"""Names that users choose, of columns and of topics, in AnnData objects and their files."""

import re
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from night import at_night

import nmfscale
from nmfscale.annotated.scheme import keep_result

anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")

X, _ = nmfscale.datasets.simulate_topic_counts(60, 40, 3, random_state=0)
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


@pytest.mark.parametrize("kind", ["h5ad", *at_night("zarr")])
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


@pytest.fixture(scope="module")
def with_results(fitted):
    adata, groups = fitted.copy(), {"units": "donor", "random_state": 0}
    nmfscale.tl.differential_features(adata, reference=1, split=None)
    nmfscale.tl.group_effects(adata, "group", n_permutations=20, **groups)
    nmfscale.tl.bootstrap_weights(adata, "group", n_replicates=20, **groups)
    nmfscale.tl.correspondence_analysis(adata, "group", units="donor")
    nmfscale.tl.topic_quality(adata)
    return adata


def text_of(adata):
    """Return all that the package shows of a fit and of its results, as text."""
    found = [nmfscale.get.topics_df(adata), nmfscale.get.components_df(adata)]
    found += [nmfscale.get.differential_df(adata), adata.obs["topics_leading"]]
    names = "differential_features", "group_effects", "bootstrap_weights", "topic_quality"
    results = [nmfscale.get.result(adata, name) for name in (*names, "correspondence_analysis")]
    found += [repr(each) for each in results] + [each.to_frame() for each in results]
    text = "\n".join(each if isinstance(each, str) else each.to_csv() for each in found)
    return re.sub(" +", " ", text)  # columns may be wider


def test_new_names_are_shown_everywhere(with_results, tmp_path):
    adata, path = with_results.copy(), tmp_path / "cells.h5ad"
    adata.write_h5ad(path)
    expected = text_of(adata).replace("topic 0", "T cells").replace("topic 1", "stress/ER")
    expected = expected.replace("topic 2", "topic 0")
    names = {"topic 2": "topic 0", 0: "T cells", 1: "stress/ER"}
    nmfscale.tl.rename_topics(adata, names)
    assert text_of(adata) == expected and "topic 1" not in expected
    assert text_of(with_results) != expected  # a copy was renamed
    nmfscale.tl.rename_topics(path, names)
    again = anndata.read_h5ad(path)
    assert text_of(again) == expected
    model = nmfscale.get.model(again)
    assert model.topic_names_.tolist() == ["T cells", "stress/ER", "topic 0"]
    assert (model.components_ == nmfscale.get.model(with_results).components_).all()
    new = cells()
    nmfscale.tl.transform(new, again)
    assert nmfscale.get.topics_df(new).columns.tolist() == model.topic_names_.tolist()
    assert set(new.obs["topics_leading"].cat.categories) == set(model.topic_names_)
    back = nmfscale.tl.rename_topics(again, ["topic 0", "topic 1", "topic 2"], copy=True)
    assert text_of(back) == text_of(with_results)


def test_wrong_names_of_topics_change_nothing(fitted, tmp_path):
    path, before = tmp_path / "cells.h5ad", text_of_names(fitted)
    fitted.write_h5ad(path)
    bytes_before = path.read_bytes()
    for given, message in [
        (["a", "b"], "2 entries for 3 topics"),
        (["a", "b", "a"], "several topics would be 'a'"),
        ({"topic 9": "a"}, "no topic is named 'topic 9'"),
        ({3: "a"}, "topics are 0 to 2"),
        ({1: "topic 0"}, "several topics would be 'topic 0'"),
    ]:
        for target in (fitted, path):
            with pytest.raises(ValueError, match=message):
                nmfscale.tl.rename_topics(target, given)
    with pytest.raises(FileNotFoundError):
        nmfscale.tl.rename_topics(tmp_path / "nowhere.h5ad", ["a", "b", "c"])
    with pytest.raises(ValueError, match="has no modality 'rna'"):
        nmfscale.tl.rename_topics(path, ["a", "b", "c"], mod="rna")
    for target, where in ((fitted, r"^adata\."), (path, r"cells\.h5ad: ")):
        with pytest.raises(ValueError, match=rf"{where}uns has no fit 'k9': there are 'topics'"):
            nmfscale.tl.rename_topics(target, ["a", "b", "c"], key="k9")
    assert text_of_names(fitted) == before and path.read_bytes() == bytes_before


def text_of_names(adata):
    return str(adata.uns["topics"]["topic_names"]) + adata.obs["topics_leading"].to_csv()


def test_the_leading_topic_of_each_observation():
    adata = cells()
    adata.X = sp.csr_matrix(X.toarray() * (np.arange(60) > 0)[:, None])
    nmfscale.tl.topics(adata, 3, model="poisson", **FIT)
    model, leading = nmfscale.get.model(adata), adata.obs["topics_leading"]
    amounts = model.loadings_ * model.components_.sum(axis=1)  # whatever the scale of components
    expected = [f"topic {topic}" for topic in amounts.argmax(axis=1)]
    assert leading[1:].tolist() == expected[1:] and leading.isna().tolist() == [True] + [False] * 59
    assert isinstance(leading.dtype, pd.CategoricalDtype)


def test_columns_of_obs_of_a_mudata_object(tmp_path):
    mudata = pytest.importorskip("mudata")
    adata, groups = cells(), {"units": "donor", "random_state": 0, "n_permutations": 20}
    adata.obs["kept"] = np.arange(60) % 4 > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mudata
        rna = anndata.AnnData(adata.X, obs=adata.obs[[]], var=adata.var)
        mdata = mudata.MuData({"rna": rna, "prot": cells()[::-1, :5].copy()})
        mdata.obs = mdata.obs.join(adata.obs[["group", "donor", "kept"]][::-1])
        mdata.write_h5mu(tmp_path / "cells.h5mu")
    nmfscale.tl.topics(adata, 3, mask_obs="kept", **FIT)
    nmfscale.tl.permutation_test(adata, "group", mask_obs="kept", **groups)
    nmfscale.tl.topics(mdata, 3, mod="rna", mask_obs="kept", **FIT)
    nmfscale.tl.permutation_test(mdata, "group", mod="rna", mask_obs="kept", **groups)
    results = [
        nmfscale.get.result(each, "permutation_test", "group", mod=mod)
        for each, mod in ((adata, None), (mdata, "rna"))
    ]
    assert repr(results[0]) == repr(results[1])
    assert (results[0].overall.null == results[1].overall.null).all()
    with pytest.raises(ValueError, match=r"groupby='donors'.*or of the MuData.*perhaps 'donor'"):
        nmfscale.tl.permutation_test(mdata, "donors", mod="rna")
    for call in (nmfscale.tl.topic_quality, nmfscale.get.topics_df):
        with pytest.raises(ValueError, match="mod is needed: .* 'rna', 'prot'"):
            call(mdata)
    for source in (mdata, tmp_path / "cells.h5mu"):
        counts = nmfscale.as_counts(source, modality="rna", groups="group", mask_obs="kept")
        kept = adata.obs[adata.obs["kept"]]
        assert counts.groups.tolist() == kept["group"].tolist()
        assert counts.obs["donor"].tolist() == kept["donor"].tolist()
        assert (counts.take_rows() != X[adata.obs["kept"].to_numpy()]).nnz == 0


def test_a_column_of_the_user_is_not_replaced_by_leading_topics(fitted, tmp_path):
    adata, path = cells(), tmp_path / "cells.h5ad"
    adata.obs["topics_leading"] = adata.obs["group"]
    adata.write_h5ad(path)
    with pytest.raises(ValueError, match=r"adata.obs\['topics_leading'\].*would be lost"):
        nmfscale.tl.topics(adata, 3, **FIT)
    with pytest.raises(ValueError, match=r"obs\['topics_leading'\].*would be lost"):
        nmfscale.tl.write_h5ad(nmfscale.get.model(fitted), path)
    again = fitted.copy()
    nmfscale.tl.rename_topics(again, {0: "stress"})
    again.write_h5ad(path)
    nmfscale.tl.topics(again, 2, **FIT)  # those of a fit are replaced
    nmfscale.tl.write_h5ad(nmfscale.get.model(again), path)
    for found in (again, anndata.read_h5ad(path)):
        assert set(found.obs["topics_leading"]) == {"topic 0", "topic 1"}
        assert list(found.obs.columns).count("topics_leading") == 1
