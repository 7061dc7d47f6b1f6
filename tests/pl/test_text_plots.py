"""Plots of correlations and trends of topics."""

import numpy as np
import pytest

import nmfscale
from nmfscale import get, pl
from nmfscale.pl.canvas import detached_axes

pytest.importorskip("matplotlib").use("Agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def shares_with_pairs(n=4000, n_topics=8):
    """Independent topics, except that topic 1 is where topic 0 is."""
    amounts = np.random.default_rng(0).gamma(0.3, size=(n, n_topics))
    amounts[:, 1] = 0.7 * amounts[:, 0] + 0.3 * amounts[:, 1]
    return amounts / amounts.sum(axis=1, keepdims=True)


def test_lines_join_topics_that_occur_together():
    shares = shares_with_pairs()
    ax = pl.correlation_plot(shares)
    (line,) = ax.patches
    dots = ax.collections[0]
    places = dots.get_offsets()
    np.testing.assert_allclose(line.get_path().vertices[[0, -1]], places[:2])
    np.testing.assert_allclose(np.hypot(*places.T), 1)
    assert np.hypot(*(places[0] - places[1])) == pytest.approx(2 * np.sin(np.pi / 8))  # neighbours
    np.testing.assert_allclose(
        dots.get_sizes() / dots.get_sizes()[0], shares.mean(axis=0) / shares.mean(axis=0)[0]
    )
    independent = np.random.default_rng(1).dirichlet(np.array([0.1, 0.4, 1, 3]), size=4000)
    assert not pl.correlation_plot(independent).patches
    assert "(none)" in ax.get_xlabel() or "up to 0." in ax.get_xlabel()


def test_labels_have_leading_words_and_models_their_names():
    X, _ = nmfscale.datasets.simulate_topic_counts(60, 30, 4, random_state=0)
    names = [f"word{j}" for j in range(30)]
    model = nmfscale.TopicModel(4, random_state=0).fit(X, feature_names=names)
    model = model.rename_topics({2: "$_two_$"})
    ax = pl.correlation_plot(model, n_words=2)
    words = get.top_features(model, n_top=2)
    assert sorted(text.get_text() for text in ax.texts) == sorted(
        f"{name}\n{', '.join(each)}"
        for name, each in zip(["topic 0", "topic 1", "$_two_$", "topic 3"], words, strict=True)
    )
    plain = pl.correlation_plot(
        model, n_words=0, topic_names=list("abcd"), ax=detached_axes(4, 4)[0]
    )
    assert sorted(text.get_text() for text in plain.texts) == list("abcd")


def test_many_topics_and_constant_topics_are_drawn():
    shares = shares_with_pairs(300, 60)
    shares[:, 7] = 0
    ax = pl.correlation_plot(shares)
    assert len(ax.texts) == 60
    ax.figure.canvas.draw()


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        ([[1, 0], [0, 1]], {}, "there are 2 topics"), (np.eye(3), {"threshold": 0}, "threshold"),
        (np.eye(3), {"n_words": -1}, "n_words"), ([[1, 2, -1]], {}, "finite and non-negative"),
        (np.eye(3), {"topic_names": ["a"]}, "1 entries for 3 topics"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_correlations_are_refused(given, options, error):
    with pytest.raises(ValueError, match=error):
        pl.correlation_plot(given, **options)


class Means:
    """A result of group_effects, or what is like it."""

    level = 0.9

    def __init__(self, groups, n_topics=3):
        self.groups = groups
        self.estimate = np.random.default_rng(0).random((n_topics, len(groups))) + 0.2
        self.lower, self.upper = self.estimate - 0.1, self.estimate + 0.1


@pytest.mark.parametrize(
    ("groups", "times"),
    [
        ((2003, 1999, 2001), [1999, 2001, 2003]), (("0.5", "2", "1"), [0.5, 1, 2]),
        (("2001-02", "2001-01", "2001-04"), [11323, 11354, 11413]),
        (("2001-01-03", "2001-01-01"), [11323, 11325]), (("early", "late"), [0, 1]),
    ],
)  # fmt: skip
def test_trends_are_drawn_in_the_order_of_time(groups, times):
    result = Means(groups)
    ax = pl.trend_plot(result, panels=["topic 2", "topic 0"])
    order = np.argsort(groups, kind="stable") if groups[0] != "early" else np.arange(2)
    assert [panel.get_title() for panel in ax.child_axes] == ["topic 2", "topic 0"]
    line = ax.child_axes[0].lines[0]
    assert line.get_xdata().tolist() == times
    np.testing.assert_array_equal(line.get_ydata(), result.estimate[2][order])
    band = ax.child_axes[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == result.upper[2].max()
    assert "90% intervals" in ax.get_xlabel()
    ax.figure.canvas.draw()


def test_trends_of_group_effects_and_their_errors():
    shares = shares_with_pairs(90)
    years = np.repeat([2001, 2002, 2003], 30)
    found = nmfscale.group_effects(shares, years, n_permutations=19, random_state=0)
    ax = pl.trend_plot(found, max_panels=2)
    assert len(ax.child_axes) == 2 and "2 of 8 topics" in ax.get_xlabel()
    with pytest.raises(ValueError, match="one group"):
        pl.trend_plot(Means(("2001",)))
    with pytest.raises(ValueError, match="panels has topic 9"):
        pl.trend_plot(found, panels=["topic 9"])
    with pytest.raises(ValueError, match="result is a ndarray"):
        pl.trend_plot(shares)


@pytest.mark.parametrize("n_topics", [6, 10])
def test_the_caption_of_correlations_is_below_all_labels(n_topics):
    names = [f"topic {k}\nfirst, second, third" for k in range(n_topics)]
    ax = pl.correlation_plot(shares_with_pairs(300, n_topics), topic_names=names)
    ax.figure.canvas.draw()
    lowest = min(text.get_window_extent().y0 for text in ax.texts)
    assert lowest > ax.xaxis.label.get_window_extent().y1
