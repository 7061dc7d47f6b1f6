"""Labels of topics: the same function in every plot; fonts that have the characters of names."""

import string
import warnings
from functools import partial

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.text import Text

import nmfscale
from nmfscale import get, pl
from nmfscale.models.topics.topic_labels import all_shortened, topic_labels

matplotlib.use("Agg")
GROUPS = np.repeat(["a", "b"], 30)
# A code point without a character, which no font has.
UNASSIGNED = chr(0x3FFFD)


@pytest.fixture(autouse=True)
def closed():
    yield
    matplotlib.pyplot.close("all")


@pytest.fixture(scope="module")
def fit():
    X, _ = nmfscale.datasets.simulate_topic_counts(60, 26, 3, random_state=0)
    model = nmfscale.TopicModel(3, random_state=0)
    return X, model.fit(X, feature_names=list(string.ascii_lowercase)).rename_topics({1: "mine"})


def texts(ax):
    return {text.get_text() for text in ax.figure.findobj(Text)}


@pytest.mark.filterwarnings("ignore:.* groups have fewer than")
def test_every_plot_shows_names_or_numbers_with_words(fit):
    X, model = fit
    words = get.top_features(model, n_top=2)
    labels = {f"0 {', '.join(words[0])}", "mine", f"2 {', '.join(words[2])}"}
    few = {"random_state": 0, "n_permutations": 9}
    effects = nmfscale.group_effects(model, GROUPS, **few)
    weights = nmfscale.bootstrap_weights(model, GROUPS, n_replicates=9, random_state=0)
    times = nmfscale.group_effects(model, np.repeat([2001, 2002], 30), **few)
    table = nmfscale.experimental.correspondence_analysis(model, np.repeat(["a", "b", "c"], 20))
    match = nmfscale.match_topics(model, model)
    for draw in (
        partial(pl.structure_plot, model), partial(pl.forest_plot, effects),
        partial(pl.forest_plot, effects.differences(), "TwR"), partial(pl.trend_plot, times),
        partial(pl.bootstrap_plot, weights), partial(pl.bootstrap_plot, weights, "TwR"),
        partial(pl.biplot, table), partial(pl.similarity_plot, match),
    ):  # fmt: skip
        assert labels <= texts(draw())
    found = nmfscale.differential_features(model, X, split=None)
    assert f"0 {', '.join(words[0])}" in texts(pl.volcano_plot(found, 0))
    # panels have their names and numbers all the same
    assert [p.get_title() for p in pl.forest_plot(effects, panels=["topic 0"]).child_axes] == [
        f"0 {', '.join(words[0])}"
    ]


def test_labels_of_names_and_numbers():
    words = ["file, files", "a, b", "", "c, d"]
    names = ["topic 0", "mine", "topic 2", "topic_3"]
    assert topic_labels(names, words) == ["0 file, files", "mine", "topic 2", "3 c, d"]
    assert topic_labels(range(2), None) == ["topic 0", "topic 1"]


def test_a_font_with_the_characters_is_used():
    paths = map(font_manager.findfont, ("DejaVu Sans", "STIXGeneral"))
    usual, other = map(font_manager.get_font, paths)
    lacking = set(other.get_charmap()) - set(usual.get_charmap())
    name = chr(min(code for code in lacking if chr(code).isprintable()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax = pl.structure_plot(np.eye(2), topic_names=[name, "b"], groups=[name, "b"])
        ax.figure.canvas.draw()
    assert name in texts(ax)


def test_characters_that_no_font_has_give_one_warning():
    names = [f"a{UNASSIGNED}{chr(0x3FFFC)}", "b"]
    with pytest.warns(UserWarning, match="no installed font has 2 characters") as w:
        ax = pl.structure_plot(np.eye(2), topic_names=names, groups=names)
        ax.figure.canvas.draw()
    assert len(w) == 1 and w[0].filename == __file__
    assert "a□□" in texts(ax) and not any(UNASSIGNED in text for text in texts(ax))


def test_short_names_stay_distinct():
    names = ["comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware", "rec.sport.baseball", "a", 1, "1"]
    short = all_shortened(names, 14)
    assert short[names[2]] == "rec.spo\N{HORIZONTAL ELLIPSIS}seball" and short["a"] == "a"
    assert short[names[0]] != short[names[1]] and max(map(len, short.values())) <= 24
