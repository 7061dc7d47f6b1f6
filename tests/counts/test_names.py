"""The rule by which arguments are matched with samples and features by name."""

import numpy as np
import pandas as pd
import pytest

import nmfscale
from nmfscale.counts.names import matched, names_of, shown

LABELS = ["a", "b", "c"]


@pytest.mark.parametrize(
    "names",
    [
        ["x", "y", "z"],
        [30, 10, 20],
        [b"x", b"y", b"z"],
        [("x", 1), ("x", 2), ("y", 1)],
        pd.to_datetime(["2020-01-03", "2020-01-01", "2020-01-02"]),
        [1.5, 0.5, 2.5],
    ],
)
def test_entries_are_taken_by_name_in_any_order(names):
    labels = pd.Series(LABELS, index=pd.Index(names))
    known, shuffled = names_of(labels), labels.iloc[[2, 0, 1]]
    assert matched(shuffled, known, "groups").tolist() == LABELS
    assert matched(shuffled.astype("category"), known, "groups").tolist() == LABELS
    assert matched(dict(zip(known, LABELS, strict=True)), known, "groups") == LABELS
    frame = shuffled.to_frame().assign(other=[1, 2, 3])
    assert matched(frame, known, "L").iloc[:, 0].tolist() == LABELS
    assert matched(frame.T, known, "components", axis=1).iloc[0].tolist() == LABELS
    assert matched(shuffled, known[[1, 2]], "groups").tolist() == ["b", "c"]  # one is not needed


def test_numbers_and_bytes_match_their_text():
    of_text = pd.Series(LABELS, index=["3", "1", "2"])
    assert matched(of_text, [1, 2, 3], "groups").tolist() == ["b", "c", "a"]
    of_bytes = pd.Series(LABELS, index=[b"x", b"y", b"z"])
    assert matched(of_bytes, ["z", "y", "x"], "groups").tolist() == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pd.Series(LABELS), ["z", "x", "y"]),
        (pd.Series(LABELS, index=["z", "y", "x"]), None),
        (LABELS, ["z", "x", "y"]),
        (np.array(LABELS), ["z", "x", "y"]),
        (pd.Series(LABELS, index=["x", "x", "y"]), ["x", "x", "y"]),
    ],
)
def test_without_names_on_both_sides_or_with_the_same_ones_nothing_moves(values, names):
    assert matched(values, names, "groups") is values


@pytest.mark.parametrize(
    ("index", "names", "match"),
    [
        (
            ["x", "y", "q"],
            ["x", "z", "y", "w"],
            r"groups has no entry for 2 of the 4 samples of X, such as 'z', 'w'; it has 'q', which "
            r"X does not have\. .*matched by name: add .*groups\.reset_index\(drop=True\)",
        ),
        ([3, 1, 2], [1, 2, np.int64(7)], "such as 7; it has 3"),
        (["x", "x", "y"], ["y", "x"], "^groups has several samples of the same name, such as 'x'"),
        (["x", "z", "y"], ["y", "x", "y"], "^X has several samples of the same name, such as 'y'"),
    ],
)
def test_missing_and_repeated_names_are_named(index, names, match):
    with pytest.raises(ValueError, match=match):
        matched(pd.Series(LABELS, index=index), names, "groups")


def test_a_dict_needs_names_to_look_up():
    with pytest.raises(ValueError, match="groups is a dict, but the samples of X have no names"):
        matched(dict.fromkeys("xyz", 1), None, "groups")


def test_names_that_are_set_are_checked():
    counts = nmfscale.as_counts([[1, 2, 0], [0, 1, 3]])
    counts.sample_names, counts.feature_names = ["a", "b"], pd.Index([7, 8, 9])
    model = nmfscale.TopicModel(1).fit(counts)
    assert model.feature_labels_.tolist() == [7, 8, 9]
    assert model.sample_names_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match=r"feature_names has shape \(2,\), but there are 3 column"):
        counts.feature_names = ["x", "y"]
    with pytest.raises(ValueError, match=r"sample_names has shape \(3,\), but there are 2 rows"):
        counts.sample_names = ["x", "y", "z"]


def test_names_are_those_of_counts_tables_and_models():
    frame = pd.DataFrame([[1, 2], [3, 4]], index=["x", "y"], columns=[7, 8])
    counts = nmfscale.as_counts(frame)
    model = nmfscale.PoissonNMF(1).fit(frame)
    for source in (frame, counts, model):
        assert names_of(source).tolist() == ["x", "y"]
        assert names_of(source, 1).tolist() == [7, 8]
    for source in (frame.to_numpy(), frame.reset_index(drop=True), [1, 2], "text", {1, 2}):
        assert names_of(source) is None


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda m, X: m.reorder_topics(np.array([0, 0])), "order is [0, 0]: each of the 2"),
        (lambda m, X: m.reorder_topics([np.str_("a"), 1]), "no topic is named 'a'"),
        (lambda m, X: m.reorder_topics([np.int64(7), 1]), "order: 7 is not a topic"),
        (lambda m, X: m.reorder_topics(None), "order is None: a list of topics is needed"),
        (lambda m, X: m.merge_topics(5), "groups is 5: a list of topics is needed"),
        (lambda m, X: m.rename_topics(None), "names is None: a list of topics is needed"),
        (lambda m, X: m.set_params(n_components=np.int64(0)).fit(X), "Got 0 instead"),
        (lambda m, X: m.score(X, completion=np.float64(2)), "completion=2.0: "),
        (
            lambda m, X: nmfscale.experimental.jackknife_fit(m, X, 5),
            "entries is 5: a list of pairs is needed",
        ),
        (
            lambda m, X: nmfscale.experimental.jackknife_fit(m, X, [(0, np.int64(9))]),
            "entries: 9 is not a feature",
        ),
        (
            lambda m, X: nmfscale.experimental.jackknife_fit(m, X, [(0, None)]),
            "entries: None is not a feature",
        ),
        (
            lambda m, X: nmfscale.permutation_test(
                m, ["b", "c"], units=[1, 1], strata=[np.int64(1), np.str_("a")]
            ),
            "unit 1 has samples in strata 1 and 'a'",
        ),
    ],
)
def test_no_message_shows_types_of_numpy(ask, said):
    X = np.array([[1, 2], [3, 1]])
    model = nmfscale.PoissonNMF(2, random_state=0, tol=0, max_iter=2).fit(X)
    with pytest.raises(ValueError) as found:
        ask(model, X)
    assert said in str(found.value)


def test_messages_show_plain_values():
    assert shown([np.int64(1), np.str_("a")]) == "[1, 'a']"
    assert shown((np.float64(0.5), ("b", np.bool_(True)))) == "(0.5, ('b', True))"
