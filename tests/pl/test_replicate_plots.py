"""bootstrap_plot, scree_plot and biplot draw what is in results and models."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import gaussian_kde

pytest.importorskip("matplotlib").use("Agg")

from nmfscale import AnchorNMF, PoissonNMF, bootstrap_weights, group_effects  # noqa: E402
from nmfscale.experimental import correspondence_analysis  # noqa: E402
from nmfscale.pl import biplot, bootstrap_plot, scree_plot  # noqa: E402
from nmfscale.pl.canvas import detached_axes  # noqa: E402

SHARES = np.random.default_rng(0).dirichlet([1, 2, 3, 4], size=150)
GROUPS = np.repeat(["a", "b", "c"], 50)


@pytest.fixture(scope="module")
def weights():
    return bootstrap_weights(SHARES, GROUPS, n_replicates=60, random_state=0)


@pytest.fixture(autouse=True)
def closed():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.mark.parametrize("kind", ["RwT", "TwR"])
def test_curves_are_densities_of_the_replicates(weights, kind):
    ax = bootstrap_plot(weights, kind)
    panels = [panel.get_title() for panel in ax.child_axes]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    topics = [f"topic {t}" for t in range(4)]
    assert (panels, names) == ((topics, list("abc")) if kind == "RwT" else (list("abc"), topics))
    for i, panel in enumerate(ax.child_axes):
        *curves, neutral = panel.lines
        assert set(neutral.get_xdata()) == {weights.neutral} and len(curves) == len(names)
        for j, curve in enumerate(curves):
            at = (i, j) if kind == "RwT" else (j, i)
            x, y = curve.get_data()
            assert_allclose(y, gaussian_kde(weights.replicates[:, *at])(x))
    assert len({panel.get_xlim() for panel in ax.child_axes}) == 1
    assert ax.get_xlabel() == "balanced weight; 60 replicates; dashed: neutral, 0.5"


def test_histograms_have_the_area_of_densities(weights):
    ax = bootstrap_plot(weights, style="histogram", bins=9, panels=[2], curves=["c", "a"])
    (panel,) = ax.child_axes
    bars = np.array([[bar.get_height(), bar.get_width()] for bar in panel.patches])
    assert_allclose(bars.prod(axis=1).reshape(2, 9).sum(axis=1), 1)
    edges = np.linspace(*panel.get_xlim(), 10)
    expected = np.histogram(weights.replicates[:, 2, 2], edges, density=True)[0]
    assert_allclose(bars[:9, 0], expected)
    assert "1 of 4 panels; 2 of 3 curves" in " ".join(ax.get_xlabel().split())


def test_missing_and_constant_replicates_and_other_results(weights):
    values = np.random.default_rng(1).random((30, 2, 2))
    values[:, 0, 0], values[::2, 1, 1] = 0.25, np.nan
    middle = np.nanmean(values, axis=0)
    means = SimpleNamespace(
        estimate=middle, lower=middle - 0.1, upper=middle + 0.1, replicates=values
    )
    ax = bootstrap_plot(SimpleNamespace(group_means=means, groups=("g", "h")))
    one, other = ax.child_axes
    assert set(one.lines[0].get_xdata()) == {0.25}
    x, y = other.lines[1].get_data()
    assert_allclose(y, gaussian_kde(values[1::2, 1, 1])(x))
    assert ax.get_xlabel() == "mean proportion; 30 replicates"
    how = {"n_replicates": 20, "n_permutations": 9, "random_state": 0}
    effects = group_effects(SHARES, GROUPS, interval="percentile", **how)
    assert len(bootstrap_plot(effects, max_panels=2, max_curves=1).child_axes) == 2
    with pytest.raises(ValueError, match=r"without replicates: .* interval='percentile'"):
        bootstrap_plot(group_effects(SHARES, GROUPS, **how))
    with pytest.raises(ValueError, match="curves has d: choose from a, b, c"):
        bootstrap_plot(weights, curves=["d"])
    with pytest.raises(ValueError, match="'style' parameter of bootstrap_plot must be a str"):
        bootstrap_plot(weights, style="bars")


def test_scree_plot_draws_the_distances_of_the_anchors():
    X = np.random.default_rng(0).poisson(SHARES @ np.random.default_rng(1).random((4, 12)) * 9)
    model = AnchorNMF(6).fit(X)
    ax = scree_plot(model, ax=detached_axes(4, 3)[0])
    assert_allclose(ax.lines[0].get_xydata(), np.c_[1:7, model.distances_])
    assert ax.get_ylim()[0] == 0 and scree_plot(model, log=True).get_yscale() == "log"
    model.anchor_names_ = np.array(list("abcdef"))
    assert [text.get_text() for text in scree_plot(model).get_xticklabels()] == list("abcdef")
    with pytest.raises(ValueError, match="model is a PoissonNMF without distances_"):
        scree_plot(PoissonNMF(2).fit(X))


@pytest.mark.parametrize("scaling", ["symmetric", "topics", "groups"])
def test_biplot_draws_coordinates(scaling):
    found = correspondence_analysis(SHARES, GROUPS, topic_names=list("wxyz"))
    ax = biplot(found, scaling=scaling, axes=(2, 1), n_labels=2)
    standard = {"topics": "groups", "groups": "topics"}.get(scaling)
    for of, points in zip(("topics", "groups"), ax.collections, strict=True):
        expected = found.masses_and_coordinates(of)[1][:, ::-1]
        scale = np.sqrt(found.inertias[::-1]) if of == standard else 1
        assert_allclose(points.get_offsets(), expected / scale)
    names = [label.get_text() for label in ax.texts]
    assert names[:3] == list("abc") and len(names) <= 5
    assert ax.get_ylabel() == f"axis 1 ({found.explained[0]:.0%} of the inertia)"


def test_biplot_names_some_of_many_groups():
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 35)
    rows[4] = 0.02, 0.02, 0.96  # far from the others
    found = correspondence_analysis(np.repeat(rows, 2, axis=0), np.repeat(range(35), 2))
    ax = biplot(found, n_labels=0)
    names = {text.get_text() for text in ax.texts}
    assert len(names) == 30 and "4" in names
    assert "groups, 30 of 35 are named" in [t.get_text() for t in ax.get_legend().get_texts()]


def test_biplot_of_one_axis_and_of_none():
    found = correspondence_analysis(SHARES[:100], GROUPS[:100])
    ax = biplot(found)
    assert_allclose(ax.collections[0].get_offsets()[:, 1], 0)
    assert {label.get_text() for label in ax.texts} <= {"a", "b", *(f"topic {t}" for t in range(4))}
    with pytest.raises(ValueError, match=r"axes=\[1, 3\]: the result has axes 1 to 1"):
        biplot(found, axes=(1, 3))
    with pytest.raises(ValueError, match=r"axes=\[1, 1\]: two different whole numbers"):
        biplot(found, axes=(1, 1))
    alike = correspondence_analysis(np.tile(SHARES[:2], (9, 1)), np.repeat(["a", "b"], 9).tolist())
    with pytest.raises(ValueError, match="result has no axes|the result has axes"):
        biplot(alike, axes=(1, 3))
    with pytest.raises(ValueError, match="result is a dict: pass what correspondence_analysis"):
        biplot({})
