"""Plots of tests and of intervals: what is drawn, and which arguments are refused."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402

from nmfscale import (  # noqa: E402
    bootstrap_weights,
    group_effects,
    permutation_test,
    regress_proportions,
)
from nmfscale.inference.replicates.refit_result import Estimates  # noqa: E402
from nmfscale.pl import forest_plot, null_plot  # noqa: E402
from nmfscale.pl.canvas import detached_axes  # noqa: E402


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    plt.close("all")


def shares(n, k):
    return np.random.default_rng(0).dirichlet(np.ones(k), size=n)


@pytest.fixture(scope="module")
def of_four():
    groups = np.arange(120) % 4
    amounts = shares(120, 5)
    amounts[:, 0] += 0.1 * groups
    return permutation_test(amounts, groups, n_permutations=99, random_state=0)


@pytest.fixture(scope="module")
def weights():
    groups = np.repeat(["east", "west", "$no_th"], 60)
    return bootstrap_weights(
        shares(180, 30), groups, n_replicates=50, random_state=0,
        topic_names=[f"word {t}" for t in range(30)],
    )  # fmt: skip


class TestNullPlot:
    def test_a_panel_for_each_test(self, of_four):
        tests = [of_four.overall, *of_four.pairs]
        assert any(test.pvalue < test.pvalue_maxt < 0.99 for test in of_four.pairs)
        panels = null_plot(of_four).child_axes
        assert len(panels) == 7
        for panel, test in zip(panels, tests, strict=True):
            assert sum(bar.get_height() for bar in panel.patches) == test.null.size == 99
            assert set(panel.lines[0].get_xdata()) == {test.observed}
            names, pvalues = panel.get_title().split("\n")
            assert pvalues.startswith(f"p = {test.pvalue:.2g}")
            if test is of_four.overall:
                assert names == "all 4 groups" and "max-T" not in pvalues
            else:
                assert names == " - ".join(map(str, test.groups))
                if test.pvalue < test.pvalue_maxt < 0.99:
                    assert pvalues.endswith(f", max-T {test.pvalue_maxt:.2g}")

    def test_which_tests(self, of_four):
        assert len(null_plot(of_four, which="overall").child_axes) == 1
        assert len(null_plot(of_four, which="pairs").child_axes) == 6
        assert len(null_plot(of_four.pairs[0]).child_axes) == 1
        two = permutation_test(shares(8, 3), np.arange(8) % 2, alpha=0.5)
        assert null_plot(two).child_axes[0].get_title().endswith(" of 70 labellings")
        with pytest.raises(ValueError, match="test has no pairs.*use which='overall'"):
            null_plot(two, which="pairs")

    def test_of_many_pairs_the_farthest_are_drawn(self, of_four):
        ax = null_plot(of_four, which="pairs", max_pairs=2)
        far = sorted(of_four.pairs, key=lambda test: -test.zscore)[:2]
        drawn = {panel.get_title().split("\n")[0] for panel in ax.child_axes}
        assert drawn == {" - ".join(map(str, test.groups)) for test in far}
        assert "4 pairs nearer to their null" in " ".join(ax.get_xlabel().split())

    def test_statistics_that_are_all_the_same(self):
        test = permutation_test(np.ones((40, 2)), np.arange(40) % 2, n_permutations=9)
        null_plot(test).figure.canvas.draw()


class TestForestPlot:
    @pytest.mark.parametrize("kind", ["RwT", "TwR"])
    def test_intervals_are_those_of_the_result(self, weights, kind):
        ax = forest_plot(weights, kind, panels=["word 3", "word 7"] if kind == "RwT" else None)
        labels = weights.groups
        if kind == "TwR":  # twenty of thirty: those farthest from the mean of a group
            away = np.abs(weights.weights - weights.weights.mean(axis=0)).max(axis=1)
            labels = [weights.topics[t] for t in np.sort(np.argsort(-away)[:20])]
            assert "20 of 30 rows" in " ".join(ax.get_xlabel().split())
        for panel in ax.child_axes:
            names = [text.get_text() for text in panel.get_yticklabels()]
            title, points = panel.get_title(), panel.collections[1].get_offsets()
            lines = panel.collections[0].get_segments()
            assert names == list(labels) and (np.diff(points[:, 1]) > 0).all()
            for name, (x, _), line in zip(names, points, lines, strict=True):
                topic, group = (title, name) if kind == "RwT" else (name, title)
                at = weights.topics.index(topic), weights.groups.index(group)
                assert x == weights.weights[at]
                assert line[:, 0].tolist() == [weights.lower[at], weights.upper[at]]
            assert set(panel.lines[0].get_xdata()) == {weights.neutral}

    def test_colors_tell_which_are_beside_the_neutral_weight(self):
        result = SimpleNamespace(
            weights=np.array([[0.9, 0.5, 0.1]]), lower=np.array([[0.8, 0.3, 0.0]]),
            upper=np.array([[1.0, 0.7, 0.2]]), topics=["a"], groups=("x", "y", "z"), neutral=0.5,
        )  # fmt: skip
        bars = forest_plot(result).child_axes[0].collections[0]
        assert [to_hex(color) for color in bars.get_colors()] == ["#0072b2", "#8c8c8c", "#d55e00"]

    def test_panels_in_which_intervals_are_farthest_apart(self):
        middle = np.array([[0, 9, 0], [4, 4, 4], [0, 3, 5]], float)
        width = np.array([[1], [0.1], [1]])
        result = SimpleNamespace(means=middle, lower=middle - width, upper=middle + width)
        ax = forest_plot(result, max_panels=2)
        assert [panel.get_title() for panel in ax.child_axes] == ["topic 0", "topic 2"]
        assert ax.get_xlabel() == "mean proportion; intervals; 2 of 3 panels"
        assert len({panel.get_xlim() for panel in ax.child_axes}) == 1

    def test_results_of_other_kinds(self):
        means = Estimates(np.eye(2), np.zeros((1, 2, 2)), np.eye(2) - 0.1, np.eye(2) + 0.1)
        fit = SimpleNamespace(group_means=means, groups=("a", "b"), level=0.9)
        shares = np.repeat([[0.8, 0.2], [0.1, 0.9]], 60, axis=0)
        effects = group_effects(
            shares, np.repeat(["a", "b"], 60), n_replicates=9, n_permutations=9, level=0.9
        )
        for result in (fit, effects):
            ax = forest_plot(result, "TwR")
            assert [panel.get_title() for panel in ax.child_axes] == ["a", "b"]
            names = [text.get_text() for text in ax.child_axes[1].get_yticklabels()]
            assert names == ["topic 0", "topic 1"]
            assert ax.get_xlabel().startswith("mean proportion; 90% intervals")
        ax = forest_plot(effects.differences("b"), "TwR")
        assert [panel.get_title() for panel in ax.child_axes] == ["a - b"]
        assert ax.get_xlabel().startswith("difference of mean proportions; 90%")
        regression = regress_proportions(
            shares + 0.1 * np.eye(2)[np.arange(120) % 2], {"g": np.repeat(["a", "b"], 60)},
            n_permutations=0,
        )  # fmt: skip
        ax = forest_plot(regression, "TwR")
        assert [panel.get_title() for panel in ax.child_axes] == ["g[T.b]"]
        assert ax.get_xlabel().startswith("coefficient; 95% intervals; line:")
        named = forest_plot(means, topic_names=["t", "u"], group_names=["g", "h"], panels=["u"])
        assert named.child_axes[0].get_title() == "u"
        assert forest_plot(fit, panels=[1]).child_axes[0].get_title() == "topic 1"

    @pytest.mark.nightly
    @pytest.mark.parametrize(
        "name", ["a rather long name, its number {}", pytest.param("g{}", marks=pytest.mark.slow)]
    )
    def test_labels_do_not_overlap(self, name):
        middle = np.random.default_rng(0).random((5, 30))
        result = Estimates(middle, middle[None], middle - 0.1, middle + 0.1)
        ax = forest_plot(result, group_names=[name.format(r) for r in range(30)])
        ax.figure.draw_without_rendering()
        boxes = [
            text.get_window_extent()
            for panel in ax.child_axes
            for text in (*panel.get_yticklabels(), *panel.texts, panel.title)
            if text.get_text()
        ]
        for one, other in combinations(boxes, 2):
            assert not one.overlaps(other)
        assert all(0 <= box.x0 and box.x1 <= ax.figure.bbox.x1 for box in boxes)

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"lower": np.eye(3)}, r"shapes \(2, 2\), \(3, 3\), \(2, 2\); all need the shape"),
            ({"upper": np.full((2, 2), np.nan)}, "must be finite"),
            ({"topics": ["a"]}, "topic_names has 1 entries for 2 topics"),
        ],
    )
    def test_arrays_that_do_not_fit(self, change, complaint):
        arrays = dict.fromkeys(("estimate", "lower", "upper"), np.eye(2))
        with pytest.raises(ValueError, match=complaint):
            forest_plot(SimpleNamespace(**{**arrays, **change}))


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (lambda: null_plot(np.eye(2)), "test is a ndarray: pass the result of permutation_test"),
        (
            lambda: forest_plot(np.eye(2)),
            "result is a ndarray: pass the result of bootstrap_weights",
        ),
        (lambda: forest_plot(SimpleNamespace(group_means=None)), "pass groups= to bootstrap_fit"),
        (lambda: null_plot(None, which="one"), "'which' parameter of null_plot must be a str"),
        (lambda: forest_plot(None, "both"), "'kind' parameter of forest_plot must be a str"),
        (lambda: null_plot(None, ax=plt.figure()), "'ax' parameter of null_plot"),
    ],
)
def test_refusals(draw, complaint):
    with pytest.raises(ValueError, match=complaint):
        draw()


def test_panels_of_no_such_name(weights):
    with pytest.raises(
        ValueError, match=r"panels has x, y: choose from word 0, .*word 5, \.\.\.\."
    ):
        forest_plot(weights, panels=["x", "word 1", "y"])


@pytest.mark.parametrize("given", [lambda: detached_axes(2, 2)[0], lambda: plt.subplots()[1]])
def test_axes_are_those_given(of_four, weights, given):
    ax = given()
    assert null_plot(of_four, which="overall", ax=ax) is ax
    ax = given()
    assert forest_plot(weights, max_panels=2, ax=ax) is ax
    ax.figure.canvas.draw()
