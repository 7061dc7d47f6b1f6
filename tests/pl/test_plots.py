"""Plots: what is drawn, and which arguments are refused."""

import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.pipeline import make_pipeline

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.colors import to_rgba  # noqa: E402

from nmfscale import (  # noqa: E402
    SSNMF,
    TopicModel,
    cluster_samples,
    differential_features,
    match_topics,
)
from nmfscale.datasets import simulate_topic_counts  # noqa: E402
from nmfscale.get import top_features  # noqa: E402
from nmfscale.pl import (  # noqa: E402
    class_heatmap,
    progress_plot,
    similarity_plot,
    structure_plot,
    top_features_plot,
    topic_colors,
)
from nmfscale.pl.canvas import detached_axes  # noqa: E402


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    plt.close("all")


def outlines(ax):
    """What is drawn, as numbers."""
    return [path.vertices.tolist() for path in ax.collections[-1].get_paths()]


def shares_of(n, k, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(k, 0.3), size=n)


def history_of(logliks, step=1.0):
    fields = ["iteration", "seconds", "loglik", "kkt_loadings", "kkt_factors"]
    history = np.zeros(len(logliks), dtype=[(name, np.float64) for name in fields])
    history["iteration"] = np.arange(len(logliks))
    history["seconds"] = step * np.arange(len(logliks))
    history["loglik"] = logliks
    history["kkt_loadings"] = 10.0 ** -np.arange(len(logliks))
    history["kkt_factors"] = 0.5
    return history


def bars(ax):
    """Return (left edges, tops) of every topic's bars, topic 0 first, gaps dropped."""
    heights = {}
    for path, color in zip(
        ax.collections[-1].get_paths(), ax.collections[-1].get_facecolors(), strict=True
    ):
        x, y = path.vertices[1:-2].T  # the closing vertex repeats the first
        heights.setdefault(tuple(color), []).append(np.column_stack([x[::2], y[::2]]))
    return [np.concatenate(pieces) for pieces in reversed(heights.values())]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: structure_plot(shares_of(4, 2)),
        lambda: progress_plot({"default": history_of([-2.0, -1.0])}),
        lambda: top_features_plot(np.eye(2)),
        lambda: detached_axes(4.0, 3.0),
    ],
)
def test_without_matplotlib(draw, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'nmfscale\[plot\]'"):
        draw()
    assert top_features(np.eye(2)) == [["feature 0"], ["feature 1"]]


@pytest.mark.parametrize("where", ["new figure", "detached", "pyplot"])
@pytest.mark.parametrize("plot", [structure_plot, progress_plot, top_features_plot])
def test_every_plot_takes_and_returns_axes(plot, where):
    given = {
        "new figure": lambda: None,
        "detached": lambda: detached_axes(8, 4)[0],
        "pyplot": lambda: plt.subplots()[1],
    }[where]()
    ax = plot(history_of([-9, -5, -4]) if plot is progress_plot else shares_of(4, 9), ax=given)
    assert isinstance(ax, Axes)
    assert given is None or ax is given
    ax.figure.canvas.draw()


@pytest.mark.parametrize("plot", [structure_plot, progress_plot, top_features_plot])
@pytest.mark.parametrize("ax", [detached_axes(4, 3)[0].figure, np.array(detached_axes(4, 3, 2))])
def test_what_is_no_axes(plot, ax):
    with pytest.raises(
        ValueError, match="'ax' parameter of .*_plot must be an instance of .*Axes'"
    ):
        plot(history_of([-2, -1]) if plot is progress_plot else shares_of(4, 9), ax=ax)


def test_detached_axes_stay_away_from_pyplot():
    axes = detached_axes(6, 3, 2)
    assert len(axes) == 2
    assert plt.get_fignums() == []
    assert axes[0].figure.get_size_inches().tolist() == [6, 3]


@pytest.mark.parametrize("name", ["_left out", "$5 or $6", "a$x_$b"])
def test_names_are_drawn_as_they_are(name):
    by_group = structure_plot(shares_of(4, 2), [name, name, "b", "b"], topic_names=[name, "c"])
    by_topic = top_features_plot(shares_of(2, 2), [name, "b"], topic_names=[name, "c"])
    by_fit = progress_plot({name: history_of([-2, -1]), "b": history_of([-3, -1])})
    drawn = [*by_group.get_xticklabels(), *by_topic.texts]
    drawn += [*by_group.get_legend().get_texts(), *by_fit.get_legend().get_texts()]
    for ax in (by_group, by_topic, by_fit):
        ax.figure.canvas.draw()
    # a tick label, two features and a title, an entry in each of two legends
    named = [text for text in drawn if text.get_text() == name]
    assert len(named) == 6
    assert not any(text.get_parse_math() for text in named)


def test_colors_differ_and_are_stable():
    first = topic_colors(60)
    assert len(set(first)) == 60
    assert topic_colors(5) == first[:5]
    assert topic_colors(61)[60] == first[0]
    with pytest.raises(ValueError, match="n_components == -1, must be >= 0"):
        topic_colors(-1)


class TestStructurePlot:
    def test_bars_are_the_proportions(self):
        shares = shares_of(50, 3)
        ax = structure_plot(shares)
        cumulated = [tops[:, 1] for tops in bars(ax)]
        drawn = np.diff(cumulated, axis=0, prepend=0).T
        assert drawn.shape == shares.shape
        np.testing.assert_allclose(drawn[np.lexsort(drawn.T)], shares[np.lexsort(shares.T)])
        assert ax.get_xlim() == (0, 50)
        assert ax.get_xlabel() == "50 samples"

    def test_rows_are_divided_by_their_sums(self):
        loadings = np.array([[2.0, 6.0], [0.0, 0.0], [5.0, 0.0]])
        tops = bars(structure_plot(loadings))
        assert sorted(tops[0][:, 1]) == [0, 0.25, 1]
        assert sorted(tops[1][:, 1]) == [0, 1, 1]

    def test_groups_stand_apart_in_order(self):
        groups = ["b"] * 10 + ["a"] * 30 + ["c"] * 20
        ax = structure_plot(shares_of(60, 3), groups, gap=5)
        assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]
        assert ax.get_xticks().tolist() == [15, 40, 60]
        assert ax.get_xlim() == (0, 70)
        assert len(ax.collections) == 1

    def test_categories_keep_their_order_and_unused_ones_are_dropped(self):
        pandas = pytest.importorskip("pandas")
        groups = pandas.Categorical(["x", "a", None, "x"], categories=["x", "unused", "a"])
        for given in (groups, pandas.Series(groups)):
            ax = structure_plot(shares_of(4, 2), given)
            shown = [label.get_text() for label in ax.get_xticklabels()]
            assert shown == ["x", "a", "(no group)"]

    def test_groups_may_be_clusters(self):
        shares = np.vstack([shares_of(60, 3), np.zeros(3)])
        with pytest.warns(UserWarning, match="left out"):
            clusters = cluster_samples(shares, 3, random_state=0)
        ax = structure_plot(shares, clusters)
        shown = [label.get_text() for label in ax.get_xticklabels()]
        assert shown == ["0", "1", "2", "(no group)"]
        assert outlines(ax) == outlines(structure_plot(shares, clusters.groups))

    def test_labels_of_any_type(self):
        ax = structure_plot(shares_of(4, 2), [2, np.nan, 10, 1.5])
        shown = [label.get_text() for label in ax.get_xticklabels()]
        assert shown == ["1.5", "2", "10", "(no group)"]
        ax = structure_plot(shares_of(5, 2), ["T 2", "10", "nan", "9", "T 1"])
        shown = [label.get_text() for label in ax.get_xticklabels()]
        assert shown == ["9", "10", "T 1", "T 2", "nan"]

    def test_every_kind_of_missing_label(self):
        pandas = pytest.importorskip("pandas")
        ax = structure_plot(shares_of(5, 2), [None, np.nan, pandas.NA, pandas.NaT, "a"])
        assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "(no group)"]

    def test_long_labels_are_turned(self):
        shares = shares_of(40, 2)
        short = structure_plot(shares, np.repeat(list("abcd"), 10))
        assert {label.get_rotation() for label in short.get_xticklabels()} == {0}
        long = structure_plot(shares, np.repeat([c * 40 for c in "abcd"], 10))
        assert {label.get_rotation() for label in long.get_xticklabels()} == {40}

    @pytest.mark.parametrize(
        "n_groups", [100, *(pytest.param(n, marks=pytest.mark.nightly) for n in (3, 12, 40))]
    )
    @pytest.mark.parametrize("label", ["{}", "a cell type, number {}"])
    def test_many_groups(self, n_groups, label):
        groups = [label.format(place % n_groups) for place in range(300)]
        ax = structure_plot(shares_of(300, 6), groups)
        assert 300 < ax.get_xlim()[1] <= 375
        ax.figure.draw_without_rendering()
        texts = ax.get_xticklabels()
        extents = sorted((text.get_window_extent() for text in texts), key=lambda box: box.x0)
        if texts[0].get_rotation() != 40:
            assert all(one.x1 <= other.x0 for one, other in pairwise(extents))
        assert min(box.y0 for box in extents) >= 0
        assert ax.get_window_extent().height > 0.5 * ax.figure.bbox.height
        if n_groups == 100:
            assert 40 <= len(texts) < 100
            assert ax.get_xlabel() == f"{len(texts)} of 100 groups are named"
        else:
            assert len(texts) == n_groups and ax.get_xlabel() == ""

    def test_large_groups_are_named_first(self):
        sizes = np.where(np.arange(200) % 10 == 5, 20, 1)
        ax = structure_plot(shares_of(sizes.sum(), 3), np.repeat(np.arange(200), sizes))
        named = {int(text.get_text()) for text in ax.get_xticklabels()}
        assert set(range(5, 200, 10)) < named and len(named) < 100

    @pytest.mark.parametrize("names", [["a", "b", "c"], [30, 10, 20], range(20, -10, -10)])
    def test_groups_are_matched_by_name(self, names):
        pandas = pytest.importorskip("pandas")
        shares = pandas.DataFrame(shares_of(3, 2), index=names)
        groups = pandas.Series(["x", "y", "z"], index=names)
        expected = outlines(structure_plot(shares, ["x", "y", "z"]))
        more = pandas.concat([groups, pandas.Series(["v"], index=["other"])])
        category = groups[::-1].astype("category")
        by_name = dict(zip(names[::-1], "zyx", strict=True))
        for given in (
            groups,
            groups[::-1],
            more[::-1],
            category,
            groups.rename(str)[::-1],
            by_name,
        ):
            assert outlines(structure_plot(shares, given)) == expected
        turned = groups[::-1]
        by_position = outlines(structure_plot(shares, ["z", "y", "x"]))
        for given in (turned.to_numpy(), turned.reset_index(drop=True), list(turned)):
            assert outlines(structure_plot(shares, given)) == by_position
        assert outlines(structure_plot(shares.to_numpy(), turned)) == by_position
        with pytest.raises(ValueError, match=rf"no entry for 1 names in prop.* {names[1]!r}: add"):
            structure_plot(shares, groups.drop(names[1]))
        with pytest.raises(ValueError, match="groups is a dict, but proportions has no names"):
            structure_plot(shares.to_numpy(), by_name)
        with pytest.raises(ValueError, match=f"groups has a name twice, {names[0]!r}"):
            structure_plot(shares, pandas.concat([groups, groups[:1]]))

    def test_subset_is_drawn_by_group_and_is_stable(self):
        shares, groups = shares_of(5000, 4), np.repeat([0, 1, 2], [4490, 500, 10])
        first = structure_plot(shares, groups, max_samples=300, gap=0)
        again = structure_plot(shares, groups, max_samples=300, gap=0)
        other = structure_plot(shares, groups, max_samples=300, gap=0, random_state=1)
        assert "of 5,000 samples" in first.get_xlabel()
        drawn = len(bars(first)[0])
        assert 300 <= drawn <= 310
        assert first.get_xlim() == (0, drawn)
        # The group of ten is not lost among the others.
        assert first.get_xticks()[2] == drawn - 5
        np.testing.assert_array_equal(bars(first), bars(again))
        assert not np.array_equal(bars(first)[0], bars(other)[0])

    def test_order_ignores_the_order_of_the_input(self):
        shares = shares_of(200, 5)
        shuffled = shares[np.random.default_rng(1).permutation(200)]
        np.testing.assert_allclose(bars(structure_plot(shares)), bars(structure_plot(shuffled)))

    def test_neighbours_are_alike(self):
        shares = shares_of(400, 6)
        cumulated = [tops[:, 1] for tops in bars(structure_plot(shares))]
        drawn = np.diff(cumulated, axis=0, prepend=0).T
        step = np.abs(np.diff(drawn, axis=0)).sum(axis=1).mean()
        assert step < 0.6 * np.abs(np.diff(shares, axis=0)).sum(axis=1).mean()

    def test_legend_lists_topics_in_the_order_of_the_stack(self):
        legend = structure_plot(shares_of(9, 3), topic_names=["B", "T", "NK"]).get_legend()
        assert [text.get_text() for text in legend.get_texts()] == ["NK", "T", "B"]
        faces = [patch.get_facecolor() for patch in legend.get_patches()]
        assert faces == [to_rgba(color) for color in reversed(topic_colors(3))]

    @pytest.mark.parametrize("detached", [False, True])
    def test_legend_lists_as_many_topics_as_fit(self, detached):
        given = detached_axes(9, 3.6)[0] if detached else None
        ax = structure_plot(shares_of(30, 150), ax=given)
        ax.figure.draw_without_rendering()
        more, *named = [text.get_text() for text in ax.get_legend().get_texts()]
        assert named == [f"topic {k}" for k in reversed(range(len(named)))]
        assert len(named) > 40 and more == f"{150 - len(named)} more"
        extent, figure = ax.get_legend().get_window_extent(), ax.figure.bbox
        assert 0 <= extent.y0 and extent.y1 <= figure.y1 and extent.x1 <= figure.x1
        assert ax.get_window_extent().width > 0.4 * figure.width

    @pytest.mark.parametrize("name", ["topic {}", "a rather long name of a topic, its number {}"])
    def test_legend_of_many_topics_is_small(self, name):
        ax = structure_plot(shares_of(30, 40), topic_names=[name.format(k) for k in range(40)])
        ax.figure.draw_without_rendering()
        extent, figure = ax.get_legend().get_window_extent(), ax.figure.bbox
        assert len(ax.get_legend().get_texts()) == 40
        assert extent.width < (0.2 if name == "topic {}" else 0.5) * figure.width
        assert 0 <= extent.y0 and extent.y1 <= figure.y1 and extent.x1 <= figure.x1

    def test_one_sample(self):
        assert structure_plot([[1, 2]]).get_xlabel() == "1 sample"

    @pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 1), (3, 25)])
    def test_small_and_wide(self, shape):
        structure_plot(np.ones(shape), np.arange(shape[0])).figure.canvas.draw()

    def test_thousands_of_samples_are_few_artists(self):
        ax = structure_plot(shares_of(5000, 10), max_samples=5000)
        assert len(ax.collections) == 1
        assert len(ax.patches) == 0

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"proportions": [1, 2]}, r"proportions must be a non-empty matrix.*\(2,\)"),
            ({"proportions": np.ones((0, 3))}, r"non-empty matrix.*\(0, 3\)"),
            ({"proportions": [[1, -1]]}, r"row 0, column 1 holds -1"),
            ({"proportions": [[1, 1], [np.nan, 1]]}, r"row 1, column 0 holds nan"),
            ({"groups": ["a"]}, r"one label per sample, shape \(4,\); got \(1,\)"),
            ({"topic_names": ["a"]}, "topic_names has 1 entries for 2 topics"),
            ({"colors": ["red"]}, "colors has 1 entries for 2 topics"),
            ({"topic_names": "ab"}, "'topic_names' parameter .* must be an array-like"),
            ({"groups": "abcd"}, "'groups' parameter .* must be an array-like"),
            *[
                ({"max_samples": value}, rf"'max_samples' .* an int in .*1, inf.* Got {value!r} i")
                for value in (0, None, "a", 100.0)
            ],
            *[
                ({"gap": value}, rf"'gap' parameter .* a float in .*0.* Got {value!r} i")
                for value in (-1, "a", np.inf, np.nan)
            ],
            ({"random_state": "a"}, "'random_state' parameter of structure_plot must be"),
            (
                {"proportions": TopicModel(2)},
                "dense matrix .* got TopicModel: pass the loadings_ of",
            ),
            (
                {"proportions": "model.h5"},
                "dense matrix .* got str: pass the loadings_ of a fitted",
            ),
            (
                {"proportions": sp.csr_array(np.eye(4))},
                r"dense matrix .*_array: call its toarray\(\)",
            ),
        ],
    )
    def test_refusals(self, arguments, complaint):
        with pytest.raises(ValueError, match=complaint):
            structure_plot(**{"proportions": np.ones((4, 2)), **arguments})
        assert plt.get_fignums() == []


class TestProgressPlot:
    def test_distance_to_the_best_of_all(self):
        fits = {"slow": history_of([-900, -110]), "fast": history_of([-500, -100, -100.001])}
        ax = progress_plot(fits)
        slow, fast = (line.get_ydata() for line in ax.lines)
        np.testing.assert_allclose(slow, [800, 10])
        np.testing.assert_allclose(fast, [400, 0.01, 0.01])
        assert ax.get_yscale() == "log"
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["slow", "fast"]

    def test_kkt_is_the_larger_side(self):
        ax = progress_plot({"fit": history_of([-3, -2, -1])}, y="kkt", x="iteration")
        np.testing.assert_allclose(ax.lines[0].get_ydata(), [1, 0.5, 0.5])
        assert ax.get_xlabel() == "iteration"
        assert "KKT" in ax.get_ylabel()

    def test_a_model_without_kkt_residuals(self):
        history = np.zeros(2, dtype=[(name, float) for name in ("seconds", "elbo")])
        with pytest.raises(ValueError, match="'fit' has no KKT residuals: draw y='loglik'"):
            progress_plot(history, y="kkt")

    def test_seconds_or_iterations(self):
        history = history_of([-3, -2, -1], step=0.25)
        for x in ("seconds", "iteration"):
            line = progress_plot(history, x=x).lines[0]
            np.testing.assert_array_equal(line.get_xdata(), history[x])

    def test_unknown_and_zero_values_are_left_out(self):
        history = history_of([-np.inf, -5, np.nan, -1])
        assert progress_plot(history).lines[0].get_xdata().tolist() == [1, 3]
        history["kkt_loadings"] = [np.nan, 1, 0, 0]
        history["kkt_factors"] = [1, 1, 0, 1]
        assert progress_plot(history, y="kkt").lines[0].get_xdata().tolist() == [1, 3]

    def test_data_frame(self):
        pandas = pytest.importorskip("pandas")
        history = history_of([-3, -2, -1])
        frame = pandas.DataFrame(history)
        np.testing.assert_array_equal(
            progress_plot(frame).lines[0].get_xydata(),
            progress_plot(history).lines[0].get_xydata(),
        )

    @pytest.mark.parametrize(
        ("histories", "options", "error", "complaint"),
        [
            (history_of([-1]), {"y": "loss"}, ValueError, "'y' .* among .*'kkt'.*Got 'loss'"),
            (history_of([-1]), {"x": "time"}, ValueError, "'x' .* among .*Got 'time'"),
            ({}, {}, ValueError, "histories is empty"),
            ({"a": history_of([])}, {}, ValueError, "'a' has no record"),
            ({"a": [-3, -2]}, {}, TypeError, "'a' must be a structured array.*list"),
            ({"a": history_of([-1])[["loglik"]]}, {}, ValueError, "'a' has no field 'seconds'"),
            ({"a": history_of([np.nan])}, {}, ValueError, "no finite log-likelihood"),
        ],
    )
    def test_refusals(self, histories, options, error, complaint):
        with pytest.raises(error, match=complaint):
            progress_plot(histories, **options)
        assert plt.get_fignums() == []


class TestTopFeatures:
    names = ("the", "gene", "of", "word", "cell")
    components = np.array([[50, 4, 10, 0, 2], [50, 0, 10, 4, 1]])

    def test_by_frequency(self):
        by_frequency = top_features(self.components, self.names, n_top=3, score="probability")
        assert by_frequency == [["the", "of", "gene"], ["the", "of", "word"]]

    def test_distinctive_prefers_what_others_lack(self):
        found = top_features(self.components, self.names, score="divergence")
        assert [row[0] for row in found] == ["gene", "word"]
        # Equal counts of fewer in all are a larger share: "the" and "of" follow in topic 1.
        assert found[0][1] == "cell"

    def test_scores_of_an_oracle(self):
        rng = np.random.default_rng(0)
        components, totals = rng.gamma(0.3, size=(3, 40)), rng.poisson(20, 40)
        f = components / components.sum(axis=1, keepdims=True)
        p = totals / totals.sum()
        ranks = [pd.DataFrame(each).rank(axis=1).to_numpy() / 40 for each in (f / f.sum(axis=0), f)]
        oracle = {
            ("lift", None): f / p,
            ("frex", 0.3): 1 / (0.3 / ranks[0] + 0.7 / ranks[1]),
            ("relevance", 0.2): 0.2 * np.log(f) + 0.8 * np.log(f / p),
        }
        oracle["relevance", None] = 0.6 * np.log(f) + 0.4 * np.log(f / p)
        for (score, weight), scores in oracle.items():
            for min_count in (0, 20):
                allowed = np.where(totals >= min_count, scores, -np.inf)
                expected = np.argsort(-allowed, axis=1)[:, :5]
                options = {"n_top": 5, "feature_totals": totals, "min_count": min_count}
                found = top_features(components, score=score, weight=weight, **options)
                assert found == [[f"feature {j}" for j in row] for row in expected]
                assert top_features(components, score=scores, **options) == found
        names = pd.Index([f"feature {j}" for j in range(40)])
        order = rng.permutation(40)
        by_name = top_features(
            pd.DataFrame(components, columns=names), score="lift", n_top=5,
            feature_totals=pd.Series(totals, names).iloc[order],
        )  # fmt: skip
        plain = top_features(components, score="lift", n_top=5, feature_totals=totals)
        assert by_name == plain != top_features(components, score="lift", n_top=5)
        z = pd.DataFrame(oracle["lift", None], columns=names).iloc[:, order]
        assert top_features(pd.DataFrame(components, columns=names), score=z, n_top=5) == plain

    def test_of_a_model(self):
        counts = pd.DataFrame(
            np.random.default_rng(0).poisson(3, (20, 6)), columns=list("abcdef")
        ).astype(int)
        model = TopicModel(2, random_state=0, max_iter=5, tol=0).fit(counts)
        least = counts.sum().median()
        found = top_features(model, score="lift", n_top=3, min_count=least)
        options = {"score": "lift", "n_top": 3, "min_count": least, "feature_totals": counts.sum()}
        by_totals = top_features(model.components_, list("abcdef"), **options)
        assert sorted(found[0]) == sorted(by_totals[0])
        turned = options | {"feature_totals": counts.sum().iloc[::-1]}
        assert top_features(model, **turned) == by_totals
        # the same words with and without the model
        assert top_features(model) == top_features(model.components_, list("abcdef"))
        named = model.rename_topics(["one", "two"])
        texts = {text.get_text() for text in top_features_plot(named, score="frex").texts}
        assert {"one", "two"} < texts and len(texts & set("abcdef")) == 6

    def test_absent_features_are_not_named(self):
        assert [len(row) for row in top_features(self.components, self.names)] == [4, 4]
        assert top_features([[0, 0], [1, 0]], ["a", "b"]) == [[], ["a"]]

    def test_scale_of_a_topic_does_not_matter(self):
        scaled = self.components * np.array([[1e-3], [1e5]])
        assert top_features(scaled, self.names) == top_features(self.components, self.names)

    def test_one_topic_and_no_names(self):
        assert top_features([[1, 3, 2]], n_top=2) == [["feature 1", "feature 2"]]

    @pytest.mark.parametrize("score", ["divergence", "probability"])
    def test_only_the_leading_features_are_sorted(self, monkeypatch, score):
        components = np.random.default_rng(0).random((3, 1000))
        sort, lengths = np.lexsort, []
        monkeypatch.setattr(np, "lexsort", lambda keys: lengths.append(len(keys[0])) or sort(keys))
        by_topic = top_features(components, n_top=4, score=score)
        assert [len(topic) for topic in by_topic] == [4] * 3
        assert lengths == [4] * 3

    def test_z_of_differential_features(self):
        X = pd.DataFrame(simulate_topic_counts(60, 30, 3, random_state=0)[0].toarray())
        X = X.rename("gene {}".format, axis=1)
        model = TopicModel(3, random_state=0).fit(X)
        found = differential_features(model, X, split=None)
        names = model.feature_names_in_
        expected = [names[j].tolist() for j in np.argsort(-found.z, axis=1, kind="stable")[:, :4]]
        assert top_features(model, n_top=4, score=found) == expected
        turned = replace(found, z=found.z[:, ::-1], feature_names=found.feature_names[::-1])
        assert top_features(model, n_top=4, score=turned) == expected
        with pytest.raises(ValueError, match="score has no z of 1 features of the model"):
            some = replace(found, z=found.z[:, 1:], feature_names=found.feature_names[1:])
            top_features(model, score=some)

    @pytest.mark.parametrize("n_top", [1, 3, 5, 8, 9])
    def test_ties_keep_the_order_of_the_features(self, n_top):
        frequent = [1, 2, 0, 2, 1, 3, 2, 1]
        names = [f"feature {j}" for j in (5, 1, 3, 6, 0, 4, 7)]
        assert top_features([frequent], n_top=n_top) == [names[:n_top]]

    def test_equal_topics_fall_back_on_frequency(self):
        assert top_features([[1, 3, 2], [1, 3, 2]], list("abc"), n_top=2) == [["b", "c"]] * 2

    @pytest.mark.parametrize("function", [top_features, top_features_plot])
    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"components": [1.0]}, "components must be a non-empty matrix"),
            ({"components": [[1, np.inf]]}, "row 0, column 1 holds inf"),
            (
                {"feature_names": ["a"]},
                r"has 1 entries, and components, of shape \(\d, 3\), have 3 feat",
            ),
            (
                {"components": sp.csr_array(np.eye(3))},
                r"dense matrix .*_array: call its toarray\(\)",
            ),
            ({"components": TopicModel(2)}, "dense matrix .* got TopicModel: pass the components_"),
            ({"feature_names": "abc"}, "'feature_names' parameter .* must be an array-like"),
            ({"score": "log"}, "'score' parameter .* must be a str among .* an array-like"),
            ({"score": np.ones((3, 2))}, r"score has shape \(3, 2\): .* of shape \(2, 3\)"),
            ({"weight": 2}, "'weight' parameter .* must be a float in the range"),
            ({"min_count": 5}, "min_count=5 needs the total count of each feature"),
            ({"feature_totals": [1]}, "feature_totals has 1 entries, and components have 3"),
            *[
                ({"n_top": value}, rf"'n_top' .* an int in .*1, inf.* Got {value!r} i")
                for value in (0, "a", 1.5, None)
            ],
        ],
    )
    def test_refusals(self, function, arguments, complaint):
        with pytest.raises(ValueError, match=complaint):
            function(**{"components": np.ones((2, 3)), **arguments})
        assert plt.get_fignums() == []

    @pytest.mark.parametrize("n_topics", [1, 6, 23])
    def test_panels(self, n_topics):
        components = np.random.default_rng(0).random((n_topics, 12))
        names = [f"a rather long feature name {j}" for j in range(12)]
        ax = top_features_plot(components, names, n_top=4)
        ax.figure.canvas.draw()
        assert len(ax.patches) == 4 * n_topics
        titles = [text.get_text() for text in ax.texts if text.get_text().startswith("topic ")]
        assert titles == [f"topic {k}" for k in range(n_topics)]
        assert all(len(text.get_text()) <= 20 for text in ax.texts)

    def test_names_with_a_common_start_stay_apart(self):
        names = [f"a rather long feature name {j}" for j in range(12)]
        texts = [text.get_text() for text in top_features_plot(np.ones((1, 12)), names).texts]
        shown = {text for text in texts if text.startswith("a rather")}
        assert len(shown) == 10
        assert all(len(text) <= 18 and text[-1].isdigit() for text in shown)

    @pytest.mark.parametrize("n_topics", [2, 7])
    @pytest.mark.parametrize("name", ["NK {}", "NAIVE CD4 T CELLS OF THE KIND {}"])
    def test_titles_do_not_overlap(self, n_topics, name):
        titles = [name.format(k) for k in range(n_topics)]
        ax = top_features_plot(shares_of(n_topics, 12), topic_names=titles)
        ax.figure.draw_without_rendering()
        drawn = [text for text in ax.texts if text.get_weight() == "bold"]
        assert len({text.get_text() for text in drawn}) == n_topics
        extents = [text.get_window_extent() for text in drawn]
        assert all(one.x1 < two.x0 for one, two in pairwise(extents) if one.y0 == two.y0)
        assert extents[0].x0 >= 0 and max(box.x1 for box in extents) <= ax.figure.bbox.x1

    def test_names_of_columns(self):
        pandas = pytest.importorskip("pandas")
        table = pandas.DataFrame(self.components, columns=self.names)
        assert top_features(table) == top_features(self.components, self.names)
        assert top_features(table, list("abcde")) == top_features(self.components, list("abcde"))
        symbols = pandas.Series(self.names, self.names).map(str.upper)[::-1]
        assert top_features(table, symbols) == top_features(table, symbols[::-1].tolist())
        unnamed = pandas.DataFrame(self.components)
        assert top_features(unnamed) == top_features(self.components)
        drawn = {text.get_text() for text in top_features_plot(table).texts}
        assert set(self.names) <= drawn

    @pytest.mark.parametrize(("n_topics", "width"), [(1, 2.4), (2, 4.8), (2, 2.6), (6, 7.2)])
    def test_caption_stays_in_the_figure(self, n_topics, width):
        ax = top_features_plot(shares_of(n_topics, 12), ax=detached_axes(width, 2.6)[0])
        ax.figure.draw_without_rendering()
        extent = ax.xaxis.label.get_window_extent()
        assert 0 <= extent.x0 and extent.x1 <= ax.figure.bbox.x1
        assert ("another topic" in ax.get_xlabel()) == (n_topics > 1)

    def test_no_room_for_more_features_than_there_are(self):
        sizes = [
            top_features_plot(self.components, n_top=n_top).figure.get_size_inches().tolist()
            for n_top in (5, 500)
        ]
        assert sizes[0] == sizes[1]

    def test_bars_fall_and_match_the_top_features(self):
        ax = top_features_plot(self.components, self.names, n_top=2)
        widths = [bar.get_width() for bar in ax.patches]
        assert widths[0] >= widths[1]
        shown = [text.get_text() for text in ax.texts if text.get_text() in self.names]
        expected = top_features(self.components, self.names, n_top=2)
        assert [set(shown[:2]), set(shown[2:])] == [set(row) for row in expected]

    def test_empty_topic_leaves_an_empty_panel(self):
        ax = top_features_plot([[0, 0], [1, 3]], ["a", "b"])
        ax.figure.canvas.draw()
        assert len(ax.patches) == 2


# --- class_heatmap ----------------------------------------------------------------------------


def test_shares_of_classes_in_topics():
    weights = np.array([[1.0, 0.0, 3.0, 0.0], [3.0, 0.0, 1.0, 2.0]])
    names = ["a", "_b", "$c", "d"]
    ax = class_heatmap(weights, class_names=["no", "yes"], topic_names=names)
    drawn = np.asarray(ax.images[-1].get_array())
    # topics of one class are neighbours, that with the largest share first; empty ones stay empty
    assert drawn.tolist() == [[0.75, 0.0, 0.0, 0.25], [0.25, 0.0, 1.0, 0.75]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["$c", "_b", "d", "a"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["no", "yes"]
    ax.figure.canvas.draw()
    ax = class_heatmap(weights, sort=False, ax=detached_axes(4, 4)[0])
    assert np.asarray(ax.images[-1].get_array())[0].tolist() == [0.25, 0, 0.75, 0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["class 0", "class 1"]


def test_classes_of_a_fit():
    X = np.random.default_rng(0).poisson(2.0, (12, 8))
    fitted = SSNMF(3, random_state=0, tol=0, max_iter=4).fit(X, ["x", "y"] * 6)
    ax = class_heatmap(make_pipeline(fitted.rename_topics(["one", "two", "three"])), sort=False)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["one", "two", "three"]
    B = fitted.target_components_
    np.testing.assert_allclose(np.asarray(ax.images[-1].get_array()), B / B.sum(axis=0))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x", "y"]
    with pytest.raises(ValueError, match="fitted without labels"):
        class_heatmap(fitted.fit(X))
    for wrong, message in (
        ({"class_names": ["x"]}, "class_names has 1 entries for 2 classes"),
        ({"topic_names": ["x"]}, "topic_names has 1 entries for 3 topics"),
    ):
        with pytest.raises(ValueError, match=message):
            class_heatmap(B, **wrong)


# --- similarity_plot --------------------------------------------------------------------------


def test_partners_are_on_the_diagonal():
    topics = np.random.default_rng(0).dirichlet(np.full(40, 0.1), size=5)
    match = match_topics(topics[[4, 1, 2, 0, 3]], topics[[2, 3, 4, 0]])
    ax = similarity_plot(match, names_a=["e", "$b", "c", "_a", "d"], names_b=["c", "d", "e", "_a"])
    drawn = np.asarray(ax.images[-1].get_array())
    assert drawn.shape == (5, 4) and np.allclose(np.diag(drawn), 1) and drawn[4].max() < 0.9
    assert [label.get_text() for label in ax.get_yticklabels()] == ["e", "c", "_a", "d", "$b"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["e", "c", "_a", "d"]
    assert len(ax.patches) == 4
    ax.figure.canvas.draw()


def test_similarities_are_drawn_as_given():
    values = np.array([[0.1, 0.9], [1.0, 0.0], [0.2, 0.3]])
    ax = similarity_plot(values, ax=detached_axes(4, 4)[0])
    assert (np.asarray(ax.images[-1].get_array()) == values).all() and not ax.patches
    assert [text.get_text() for text in ax.texts] == [f"{value:.2f}" for value in values.ravel()]
    with pytest.raises(ValueError, match="at most 1; the largest is 2"):
        similarity_plot(2 * values)
    with pytest.raises(ValueError, match="names_b has 1 entries for 2 topics"):
        similarity_plot(values, names_b=["a"])
