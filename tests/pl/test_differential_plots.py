"""Plots of differential features: what they draw, and labels that do not overlap."""

import sys
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from night import at_night

from nmfscale import differential_features, pl
from nmfscale.pl.canvas import detached_axes
from nmfscale.pl.differential import label_points

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    frequencies = np.full((3, 80), 4.0) * rng.gamma(2, 0.5, 80)
    for k in range(3):
        frequencies[k, 10 * k : 10 * k + 10] *= 9
    loadings = rng.dirichlet([0.3] * 3, 150)
    X = rng.poisson(loadings @ frequencies)
    X[:, 79] = 0
    return differential_features(loadings, X)


@pytest.mark.parametrize("draw", [pl.volcano_plot, *at_night(pl.ma_plot, pl.topic_scatter)])
def test_leading_features_are_named_without_overlaps(result, draw, tmp_path):
    ax = draw(result, 1, ax=detached_axes(4.6, 3.8)[0])
    ax.figure.savefig(tmp_path / "plot.png")
    labels = [text for text in ax.texts if text.get_text()]
    names = {text.get_text() for text in labels}
    assert len(names) >= 8 and names <= set(map(str, result.order(1)[:15]))
    boxes = [matplotlib.text.Text.get_window_extent(text) for text in labels]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    shown = [np.ma.filled(points.get_offsets(), np.nan) for points in ax.collections]
    known = np.isfinite(np.concatenate(shown)).all(axis=1)
    assert known.sum() == 80 - (draw is not pl.volcano_plot)  # one feature has no counts


def test_labels_are_clear_of_the_frame():
    ax = detached_axes(9, 3)[0]
    ax.set(xlim=(0, 1), ylim=(0, 1))
    x, y = np.linspace(0.05, 0.95, 24), np.linspace(0.8, 1, 24)  # most are below the upper edge
    label_points(ax, x, y, [f"f{i}" for i in range(24)])
    frame = ax.get_window_extent().padded(-1.9)  # two pixels, rounded
    boxes = [matplotlib.text.Text.get_window_extent(text) for text in ax.texts]
    assert len(boxes) > 20
    assert all(frame.contains(*corner) for box in boxes for corner in box.corners())


def test_what_is_drawn(result):
    volcano = pl.volcano_plot(result, 0, n_labels=0)
    shown = np.concatenate([points.get_offsets() for points in volcano.collections])
    expected = np.column_stack([result.lfc[0], np.abs(result.z[0])])
    np.testing.assert_allclose(np.sort(shown, axis=0), np.sort(expected, axis=0))
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("draw", [pl.volcano_plot, pl.ma_plot, pl.topic_scatter])
def test_interactive_plots_show_the_same_points(result, draw, tmp_path):
    chart = draw(result, 1, interactive=True, save=tmp_path / "plot.html")
    points = [each.data_source.data for each in chart.renderers if "lfc" in each.data_source.data]
    x, y, names, z = (np.concatenate([p[key] for p in points]) for key in ("x", "y", "name", "z"))
    ax = draw(result, 1, n_labels=0, ax=detached_axes(4.6, 3.8)[0])
    drawn = np.concatenate([np.ma.filled(each.get_offsets(), np.nan) for each in ax.collections])
    drawn = drawn[np.isfinite(drawn).all(axis=1)]
    np.testing.assert_allclose(np.column_stack([x, y]), drawn, rtol=1e-6)
    np.testing.assert_allclose(z, result.z[1, names.astype(int)], rtol=1e-6)
    page = (tmp_path / "plot.html").read_text()
    assert "<script src" not in page and "@lfc" in page


def test_without_bokeh(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(ImportError, match=r"pip install 'nmfscale\[interactive\]'"):
        pl.volcano_plot(result, 0, interactive=True)


def test_wrong_arguments_are_named(result):
    with pytest.raises(ValueError, match="ax is for plots by matplotlib"):
        pl.volcano_plot(result, 1, interactive=True, ax=detached_axes(1.0, 1.0)[0])
    with pytest.raises(ValueError, match="topic: 5 is not a topic; topics are 0, 1, 2"):
        pl.volcano_plot(result, 5)
    with pytest.raises(ValueError, match="pass the result of differential_features"):
        pl.ma_plot(np.ones(3), 0)
    with pytest.raises(ValueError, match="'n_labels' parameter of topic_scatter must be an int"):
        pl.topic_scatter(result, 0, n_labels=-1)
