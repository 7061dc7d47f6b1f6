"""Results in files: what is read is what was saved, and files that are no results are refused."""

import sys
import warnings
from dataclasses import fields, is_dataclass
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import h5py
import numpy as np
import pandas as pd
import pytest

import nmfscale
from nmfscale.inference.results.files import Result
from nmfscale.storage.arrays import put_json
from nmfscale.storage.atomic import atomic_hdf5

N = 40
UNITS = [f"patient {i % 10}" for i in range(N)]
# Names of numbers whose names here are pvalue, qvalue, std_error and lfc.
OTHER_NAMES = set(
    "p pval pvals pvalues p_value q qval qvalues pvals_adj pvalue_bh se stderr std_errors "
    "standard_error standard_errors logfoldchanges log2fc".split()
)
# What to ask for beside the tables by name.
ROWS_OF = {
    "ConditionFeatures": (None, "blue"), "DifferentialFeatures": (None, "red"),
    "Enrichment": (None, "red"), "FeaturesByGroup": (None, "red"),
    "NoisyPairs": (None, 1), "ProportionRegression": (None, "age", "covariates"),
}  # fmt: skip
GROUPS = pd.Series([f"type {i % 10 // 5}" for i in range(N)])
COVARIATES = pd.DataFrame({"age": np.arange(N) % 10 % 7.0, "dose": list("abcabcabca" * 4)})


@pytest.fixture(scope="module")
def results():
    """A result of every class, some of them with names of other types than text."""
    counts, _ = nmfscale.datasets.simulate_topic_counts(N, 20, 2, random_state=0)
    X = pd.DataFrame(counts.toarray(), columns=[("gene", j) for j in range(20)])
    model = nmfscale.TopicModel(2, random_state=0).fit(X)
    named = nmfscale.TopicModel(2, random_state=1).fit(X).rename_topics(["red", "blue"])
    seeds = {"red": [str(("gene", 3))], "blue": [str(("gene", 5))]}
    noisy = nmfscale.NoisyTopicModel(2, random_state=0).fit(X)
    joined = nmfscale.join_modalities({"a": X.to_numpy(), "b": X.to_numpy()[:, :10]})
    both = nmfscale.TopicModel(2, random_state=0).fit(joined)
    warnings.simplefilter("ignore")  # of few units; pytest restores the filters
    seeded = nmfscale.TopicModel(2, random_state=0, seeds=seeds).fit(X)
    many = {"random_state": 0, "units": UNITS}
    effects = nmfscale.group_effects(
        model, GROUPS, n_permutations=19, n_replicates=19, interval="percentile", **many
    )
    return [
        nmfscale.permutation_test(model, GROUPS, n_permutations=19, **many),
        effects,
        effects.differences(),
        nmfscale.group_effects(model, GROUPS, n_permutations=19, random_state=0),
        nmfscale.group_effects(model, np.arange(N) // 10 % 2, n_permutations=19, **many),
        nmfscale.bootstrap_weights(named, GROUPS, n_replicates=19, **many),
        nmfscale.regress_proportions(model, COVARIATES, n_permutations=19, **many),
        nmfscale.bootstrap_fit(model, X, groups=GROUPS, n_replicates=2, random_state=0),
        nmfscale.experimental.correspondence_analysis(model, GROUPS),
        nmfscale.experimental.jackknife_fit(model, X, entries=[(0, 1)], groups=GROUPS),
        nmfscale.select_k(nmfscale.TopicModel(), X, [2, 3], n_splits=2, random_state=0),
        nmfscale.stability(nmfscale.TopicModel(2), X, n_starts=3, random_state=0),
        nmfscale.experimental.noisy_pairs(
            noisy, X, n_chains=2, n_draws=5, n_warmup=5, random_state=0
        ),
        nmfscale.topic_quality(model, X, n_top=3),
        nmfscale.batch_effects(model, batch=GROUPS, clusters=["all"] * N),
        nmfscale.cluster_samples(model),
        nmfscale.cluster_topics({"a": model, "b": named}),
        nmfscale.find_samples(model, n_top=2),
        nmfscale.compare_fits({"a": model, "b": named}, X),
        nmfscale.score_modalities(both, joined, random_state=0),
        nmfscale.pseudobulk(named, X, units=UNITS, groups=GROUPS),
        nmfscale.condition_features(named, X, GROUPS, units=UNITS),
        nmfscale.enrichment(named, {"odd": [str(("gene", j)) for j in range(1, 20, 2)]}, n_top=5),
        nmfscale.coherence(named, X, measure="u_mass", n_top=3),
        nmfscale.features_by_group(named, X, GROUPS, units=UNITS),
        nmfscale.topic_hierarchy(named),
        nmfscale.topic_hierarchy([named.merge_topics([[0, 1]]), named]),
        nmfscale.seed_shares(seeded),
        nmfscale.nearest_samples(named, samples=[0, 1], n_neighbors=3),
        nmfscale.differential_features(named, X, reference="blue", split=None),
    ]


def assert_same(one, other):
    assert type(one) is type(other) or isinstance(one, np.generic)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif is_dataclass(one) and not hasattr(one, "get_params"):
        for each in fields(one):
            assert_same(getattr(one, each.name), getattr(other, each.name))
    elif hasattr(one, "get_params"):
        assert one.get_params() == other.get_params()
        np.testing.assert_array_equal(one.loadings_, other.loadings_)
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for parts in zip(one, other, strict=True):
            assert_same(*parts)
    elif isinstance(one, dict):
        assert_same(list(one.items()), list(other.items()))
    else:
        assert one == other or (one != one and other != other)


def test_what_is_read_is_what_was_saved(results, tmp_path):
    assert {type(each) for each in results} == set(Result.__subclasses__())
    for result in results:
        path = tmp_path / "result.h5"
        result.save(path)
        again = nmfscale.load_result(path)
        assert_same(result, again)
        assert repr(again) == repr(result)


def tables(result):
    """Return what names the tables of a result."""
    return ROWS_OF.get(type(result).__name__) or (None, *result._tables())


def test_tables_and_attributes_have_one_name_for_each_number(results):
    for result in results:
        frames = [result.to_frame(what) for what in tables(result)]
        frames += [result.summary()] if hasattr(result, "summary") else []
        for frame in frames:
            assert type(frame.index) is pd.RangeIndex, type(result)
            assert not OTHER_NAMES & set(frame.columns), type(result)
        assert not OTHER_NAMES & set(dir(result)), type(result)


def test_columns_are_those_of_the_frame_without_pandas(results, monkeypatch):
    frames = [[result.to_frame(what) for what in tables(result)] for result in results]
    monkeypatch.setitem(sys.modules, "pandas", None)
    columns = [[result.columns(what) for what in tables(result)] for result in results]
    monkeypatch.undo()
    for result, of_result, expected in zip(results, columns, frames, strict=True):
        for table, frame in zip(of_result, expected, strict=True):
            assert [*table] == [*frame.columns] and len(frame), type(result)
            for name, column in table.items():
                assert isinstance(column, np.ndarray), (type(result), name)
                missing = pd.isna(pd.Series(column))
                assert frame[name].isna().tolist() == missing.tolist(), (type(result), name)
                assert frame[name][~missing].tolist() == column[~missing].tolist()
        with pytest.raises(ValueError, match="'no such table'"):
            result.columns("no such table")


def test_a_notebook_shows_every_result(results, monkeypatch):
    for result in results:
        html = result._repr_html_()
        ElementTree.fromstring(f"<div>{html}</div>")  # every tag is closed
        assert "<table>" in html or "<pre>" in html
    monkeypatch.setitem(sys.modules, "pandas", None)
    for result in results:
        assert escape(repr(result).splitlines()[0].strip("<>")) in result._repr_html_()


def test_a_report_shows_every_result(results, tmp_path):
    model = nmfscale.TopicModel(2, random_state=0).fit(np.eye(20) + 1)
    page = nmfscale.write_report(model, tmp_path / "report.html", results=results).read_text()
    assert page.count('<section id="') == 6 + len(results) - 1  # not of features


@pytest.mark.parametrize("name", ["SeedSequence", "Result", "combinations", "DesignMatrix"])
@pytest.mark.parametrize("place", ["result", "part"])
def test_no_other_class_is_called(name, place, tmp_path):
    """Not even one that a module of results imports."""
    path = tmp_path / "forged.h5"
    part = {"record": [name, {}]}
    about = {"result": name if place == "result" else "SelectK", "fields": {"best": part}}
    with atomic_hdf5(path) as (file, _):
        put_json(file, "about", about)
        file.attrs["format"], file.attrs["format_version"] = np.bytes_("nmfscale-result"), 3
    with pytest.raises(ValueError, match=f"forged.h5.*{name}"):
        nmfscale.load_result(path)


def test_other_files_are_refused(results, tmp_path):
    path = tmp_path / "result.h5"
    results[-1].save(path)
    whole = path.read_bytes()

    def refusal(change=None):
        path.write_bytes(whole)
        if change is not None:
            with h5py.File(path, "r+") as file:
                change(file)
        with pytest.raises(ValueError) as caught:
            nmfscale.load_result(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    def set_value(file):
        file["z"][0, 0] += 1

    assert "the checksum of z differs" in refusal(set_value)
    assert "no 'lfc'" in refusal(lambda file: file.__delitem__("lfc"))
    assert "has result format 9" in refusal(lambda f: f.attrs.__setitem__("format_version", 9))
    whole = whole[:3000]
    assert "cut off" in refusal()
    model = nmfscale.TopicModel(2, random_state=0).fit(np.arange(40).reshape(8, 5))
    model.save(path)
    whole = path.read_bytes()
    assert "not a result file" in refusal() and "nmfscale.load reads models" in refusal()
    with pytest.raises(FileNotFoundError):
        nmfscale.load_result(tmp_path / "none.h5")


def test_tables_without_pandas_name_the_remedy(monkeypatch):
    rows = np.random.default_rng(0).dirichlet([1, 1], 60)
    tests = nmfscale.permutation_test(rows, [0, 1] * 30, n_permutations=9)
    effects = nmfscale.group_effects(rows, [0, 1] * 30, n_permutations=9)
    matched = nmfscale.match_topics(rows.T, rows.T)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for function in (tests.to_frame, effects.to_frame, effects.summary, matched.to_frame):
        with pytest.raises(ImportError, match="need the package pandas: pip install pandas"):
            function()
    # every table is made with the pandas of that function
    for path in Path(nmfscale.__file__).parent.glob("inference/**/*.py"):
        assert "import pandas" not in path.read_text(), path
