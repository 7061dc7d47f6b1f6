"""Bootstrap of whole fits: the right weights, matched topics, the same bits everywhere."""

import os

import anndata
import internals
import numpy as np
import pandas as pd
import pytest
from clusters import WALL, within
from numpy.testing import assert_allclose, assert_array_equal
from oracle import draws_below
from sklearn.base import clone

from nmfscale import PoissonNMF, TopicModel, bootstrap_fit, load, write_store
from nmfscale.cluster.tasks import ClusterError
from nmfscale.datasets import simulate_topic_counts
from nmfscale.experimental import jackknife_fit
from nmfscale.inference.replicates.seeds import child
from nmfscale.methods.topics.matching import match_columns
from nmfscale.readers.open import as_counts
from nmfscale.results import StoredCounts


@pytest.fixture(scope="module")
def data():
    X, truth = simulate_topic_counts(90, 20, 3, random_state=0)
    return X, truth, TopicModel(3, random_state=0, n_threads=1).fit(X)


def test_a_replicate_is_a_fit_of_copied_samples(data):
    X, _, model = data
    units = np.arange(90) // 2
    found = bootstrap_fit(model, X, units=units, n_replicates=1, random_state=4, samples=[3])
    (drawn,) = draws_below(child(np.random.SeedSequence(4), 0).generate_state(4, np.uint64), [45])
    rows = np.concatenate([np.flatnonzero(units == u) for u in drawn])
    L, F = model.poisson_factors()
    copied = TopicModel(3, tol=1e-6).fit(X[rows], loadings=L[rows], components=F.T)
    np.testing.assert_allclose(found.components.replicates[0], copied.components_, atol=2e-3)
    assert found.n_reordered == 0 and found.proportions.estimate.shape == (1, 3)


def test_threads_batches_and_resuming_do_not_change_a_bit(data, tmp_path):
    X, _, model = data
    groups = np.arange(90) % 2
    options = {"groups": groups, "random_state": 1}
    expected = bootstrap_fit(model, X, n_replicates=6, n_threads=1, **options)
    for n in 2, 6:
        found = bootstrap_fit(
            model, X, n_replicates=n, n_threads=2, checkpoint=tmp_path / "job", resume=True,
            **options,
        )  # fmt: skip
    assert (found.components.replicates == expected.components.replicates).all()
    assert (found.group_means.lower == expected.group_means.lower).all()
    np.testing.assert_allclose(expected.group_means.estimate.sum(axis=0), 1)
    assert len(found.to_frame("group_means")) == 6


@pytest.fixture
def stored(data, small_blocks, tmp_path):
    """The counts in a packed store of several blocks."""
    write_store(data[0], tmp_path / "counts.nmf")
    return tmp_path / "counts.nmf"


@pytest.mark.nightly
def test_fits_to_a_store_share_its_reads(data, stored, tmp_path, monkeypatch):
    X, _, model = data
    options = {"groups": np.arange(90) % 2, "random_state": 1, "n_threads": 2}
    expected = bootstrap_fit(model, X, n_replicates=8, **options)
    internals.read_anew(monkeypatch)
    alone = []

    def note(fit, task, drawn, n_threads, counts, **how):
        before = counts.layout().bytes_read
        found = fit(task, drawn, n_threads, counts, **how)
        alone.append(counts.layout().bytes_read - before)
        return found

    n_read = {}
    for size in 1, 3, 8:
        internals.fits_together(monkeypatch, size)
        counts, job = StoredCounts(stored), {"checkpoint": tmp_path / f"{size}", "resume": True}
        with monkeypatch.context() as patch:
            if size == 1:
                internals.around_fit_of_replicate(patch, note)
            bootstrap_fit(model, counts, n_replicates=min(3, size), **options, **job)
            found = bootstrap_fit(model, counts, n_replicates=8, **options, **job)
        assert (found.components.replicates == expected.components.replicates).all()
        assert (found.group_means.replicates == expected.group_means.replicates).all()
        assert (found.n_iter == expected.n_iter).all()
        n_read[size] = counts.layout().bytes_read
    in_file = as_counts(write_matrix(tmp_path / "counts.h5ad", X), in_memory=False)
    found = bootstrap_fit(model, in_file, n_replicates=8, **options)
    assert (found.components.replicates == expected.components.replicates).all()
    counts = StoredCounts(stored)
    bootstrap_fit(model, counts, n_replicates=8, **options)
    assert counts.layout().bytes_read < 1.25 * max(alone) < n_read[3] < n_read[1]


def test_a_fit_that_fails_ends_those_beside_it(data, stored, monkeypatch):
    def fail(fit, task, drawn, *words, **how):
        if drawn[0] == 3:
            raise ZeroDivisionError("a fault of one")
        return fit(task, drawn, *words, **how)

    internals.fits_together(monkeypatch, 40)
    internals.around_fit_of_replicate(monkeypatch, fail)
    run = bootstrap_fit, data[2], StoredCounts(stored)
    with pytest.raises(ZeroDivisionError, match="a fault of one"):
        within(WALL, lambda: run[0](*run[1:], n_replicates=40, random_state=0))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_workers_share_the_reads_of_a_store(data, stored, client, monkeypatch):
    X, _, model = data
    options = {"n_replicates": 6, "random_state": 1}
    with monkeypatch.context() as patch:
        internals.no_active_client(patch)
        expected = bootstrap_fit(model, X, **options)
    client.run(internals.fits_together, internals.FOR_GOOD, 2)
    options |= {"client": client}
    found = within(WALL, lambda: bootstrap_fit(model, stored, **options))
    assert (found.components.replicates == expected.components.replicates).all()
    counts = StoredCounts(stored)
    os.rename(stored, f"{stored}-elsewhere")
    with pytest.raises(ClusterError, match=r"3 of 3 workers, .* cannot read .*counts\.nmf"):
        bootstrap_fit(model, counts, **options)
    in_file = as_counts(write_matrix(stored.parent / "counts.h5ad", X), in_memory=False)
    with pytest.raises(ValueError, match="needs a packed store"):
        bootstrap_fit(model, in_file, **options)


def write_matrix(path, X):
    import anndata

    anndata.AnnData(X).write_h5ad(path)
    return path


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_the_stopping_rule_ends_near_enough_to_the_optimum():
    X, _ = simulate_topic_counts(600, 200, 5, size=60, random_state=3)
    model = TopicModel(5, random_state=0).fit(X)
    options = {"n_replicates": 8, "random_state": 0}
    found = bootstrap_fit(model, X, **options).components
    model.set_params(tol=0, max_iter=300)
    exact = bootstrap_fit(model, X, **options).components
    large = found.estimate > 2e-4
    ours, theirs = (
        np.log(np.maximum(each.replicates[:, large], 1e-12)) - np.log(each.estimate[large])
        for each in (found, exact)
    )
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.98
    assert ours.std() / theirs.std() == pytest.approx(1, abs=0.02)


def test_one_topic_has_the_frequencies_of_the_draw(data):
    X = data[0]
    found = bootstrap_fit(TopicModel(1), X, n_replicates=2, random_state=4, samples=[0])
    (drawn,) = draws_below(child(np.random.SeedSequence(4), 0).generate_state(4, np.uint64), [90])
    totals = np.asarray(X[drawn].sum(axis=0)).ravel()
    np.testing.assert_allclose(found.components.replicates[0, 0], totals / totals.sum(), rtol=1e-5)
    assert (found.proportions.replicates == 1).all() and found.n_reordered == 0


@pytest.mark.parametrize("equal_weights", ["units", "samples"])
def test_means_weigh_units_or_samples(data, equal_weights):
    X, _, model = data
    groups, units = np.arange(90) % 2, np.arange(90) // 8 * 2 + np.arange(90) % 2
    units[:40:2] = 0
    kept = ~np.isin(np.arange(90), [1, 3])  # documents without words tell nothing
    X = X.multiply(kept[:, None]).tocsr()
    row_weights = np.where(np.arange(90) % 3, 0.25, 0.5)
    model = TopicModel(3, random_state=0).fit(X, row_weights=row_weights)
    model = model.rename_topics(["a", "b", "c"])
    found = bootstrap_fit(
        model, X, groups=groups, units=units, equal_weights=equal_weights, n_replicates=2,
        random_state=0,
    )  # fmt: skip
    of_group = []
    weights = row_weights * (np.asarray(X.sum(axis=1)).ravel() > 0)
    for g in 0, 1:
        within = [(units == u) & (groups == g) for u in np.unique(units[groups == g])]
        means = [np.average(model.loadings_[i], axis=0, weights=weights[i]) for i in within]
        sizes = [weights[i].sum() if equal_weights == "samples" else 1 for i in within]
        of_group.append(np.average(means, axis=0, weights=sizes))
    np.testing.assert_allclose(found.group_means.estimate.T, of_group, rtol=1e-6)
    np.testing.assert_allclose(found.group_means.replicates.sum(axis=1), 1, rtol=1e-5)
    assert found.to_frame("group_means")["topic"].unique().tolist() == ["a", "b", "c"]
    assert f"each {equal_weights[:-1]} counts once" in repr(found)


def test_groups_without_counts_have_no_mean(data):
    X, _, model = data
    X = X.multiply(np.arange(90)[:, None] > 1).tocsr()
    with pytest.raises(ValueError, match="no sample of group 'empty' has counts"):
        bootstrap_fit(TopicModel(2), X, groups=np.where(np.arange(90) < 2, "empty", "rest"))


def test_replicates_that_drew_nothing_of_a_group_are_left_out_of_its_intervals(data):
    X, _, model = data
    groups = np.where(np.arange(90) == 5, "one", "rest")
    options = {"n_replicates": 12, "random_state": 0, "groups": groups}
    with pytest.warns(UserWarning, match="no units of 1 groups: for 'one', "):
        means = bootstrap_fit(model, X, **options).group_means
    missing = np.isnan(means.replicates[:, 0, 0])
    assert 0 < missing.sum() < 12 and not np.isnan(means.replicates[:, :, 1]).any()
    drawn = means.replicates[~missing]
    for ends, share in ((means.lower, 0.025), (means.upper, 0.975)):
        np.testing.assert_allclose(ends[:, 0], np.quantile(drawn[:, :, 0], share, axis=0))
    np.testing.assert_allclose(means.std_error[:, 0], drawn[:, :, 0].std(axis=0, ddof=1))
    with pytest.warns(UserWarning, match="1 of 2 strata have a single unit, such as 'one'"):
        means = bootstrap_fit(model, X, strata=groups, **options).group_means
    assert not np.isnan(means.lower).any()


def named(X, rows=slice(None), columns=slice(None)):
    """Return counts whose samples and features have names, some of them, in an order."""
    samples = np.array([f"s{i}" for i in range(X.shape[0])])[rows]
    features = np.array([f"f{j}" for j in range(X.shape[1])])[columns]
    frame = pd.DataFrame(X.toarray()[rows][:, columns], samples, features)
    return anndata.AnnData(frame)


def test_counts_are_matched_with_those_of_the_fit_by_name(data):
    X, _, _ = data
    order = np.random.default_rng(0).permutation(90)
    model = TopicModel(3, random_state=0).fit(named(X))
    groups = np.where(np.arange(90) < 45, "a", "b")
    options = {"n_replicates": 4, "random_state": 0, "n_threads": 1}
    options |= {"features": ["f3", "f19"], "units": np.arange(90)}
    plain = bootstrap_fit(model, named(X), groups=groups, samples=["s7"], **options)
    with pytest.warns(UserWarning, match="order"):
        other = bootstrap_fit(
            model, named(X, order, slice(None, None, -1)), groups=groups[order], samples=["s7"],
            **options,
        )  # fmt: skip
        labels = pd.Series(groups, [f"s{i}" for i in range(90)]).sample(frac=1, random_state=1)
        by_name = bootstrap_fit(
            model, named(X, order, slice(None, None, -1)), groups=labels, samples=["s7"], **options
        )
    assert_array_equal(by_name.group_means.replicates, other.group_means.replicates)
    for name in "components", "group_means", "proportions":
        assert_allclose(getattr(other, name).estimate, getattr(plain, name).estimate, rtol=1e-10)
    assert list(other.to_frame().feature) == ["f3", "f19"] * 3
    spread = other.components.replicates - plain.components.estimate
    assert np.abs(spread).max() < 0.1
    adata = named(X, order)
    adata.layers["counts"], adata.X = adata.X, np.log1p(adata.X)
    for ask, more in ((bootstrap_fit, {"n_replicates": 2, "random_state": 0}), (jackknife_fit, {})):
        of_layer = ask(model, adata, groups=labels, layer="counts", **more).group_means
        of_counts = ask(model, named(X, order), groups=labels, **more).group_means
        assert_array_equal(of_layer.lower, of_counts.lower)
    with pytest.raises(ValueError, match="such as 'f19': pass the counts that it was fitted to"):
        bootstrap_fit(model, named(X)[:, :19])


@pytest.mark.parametrize(
    "change", [lambda X: X[::-1], lambda X: X[:, ::-1], lambda X: X + np.eye(*X.shape, dtype=int)]
)
@pytest.mark.parametrize("ask", [bootstrap_fit, jackknife_fit])
def test_counts_of_another_fit_or_order_are_refused(data, change, ask):
    X, _, model = data
    more = {"groups": np.arange(90) % 2} if ask is jackknife_fit else {}
    with pytest.raises(ValueError, match="X is not what the model was fitted to: totals of"):
        ask(model, change(X.toarray()), **more)


def test_replicates_keep_weights_and_what_the_fit_held(data, tmp_path):
    """Without, half of the estimates would lie outside of their own intervals."""
    X, _, plain = data
    F = plain.poisson_factors()[1]
    weights = np.where(np.arange(90) < 45, 0.1, 3.0)
    held = {"components": F.T, "fixed_topics": [False, True, False], "row_weights": weights}
    TopicModel(3, random_state=0).fit(X, **held).save(tmp_path / "model.h5")
    model = load(tmp_path / "model.h5")
    found = bootstrap_fit(model, X, n_replicates=40, random_state=0, groups=np.zeros(90)).components
    assert_allclose(found.replicates[:, 1], np.broadcast_to(plain.components_[1], (40, 20)), 1e-5)
    free = [0, 2]
    inside = (found.lower <= found.estimate) & (found.estimate <= found.upper)
    assert inside[free].mean() > 0.95
    turned = model.reorder_topics([1, 0, 2])
    again = bootstrap_fit(turned, X, n_replicates=2, random_state=0).components
    assert_allclose(again.replicates[:, 0], again.estimate[[0, 0]], 1e-5)
    with pytest.raises(ValueError, match="fitted with row_weights, which the jackknife does not"):
        jackknife_fit(model, X, [(0, 0)])


@pytest.mark.parametrize("ask", [bootstrap_fit, jackknife_fit])
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"units": ["one"] * 90}, "there is only one unit, 'one': every replicate would be the"),
        ({"strata": np.arange(90)}, "each of the 90 strata has a single unit"),
    ],
)
def test_draws_that_are_all_the_same_are_refused(data, ask, labels, said):
    X, _, model = data
    with pytest.raises(ValueError, match=said):
        ask(model, X, groups=np.arange(90) % 2, **labels)


def test_topics_are_matched_whatever_their_order():
    F = np.random.default_rng(0).random((9, 4))
    order = np.array([2, 0, 3, 1])
    match, cosines = match_columns(F, F[:, order] * 3)
    np.testing.assert_array_equal(order[match], np.arange(4))
    np.testing.assert_allclose(cosines, 1)


def test_an_estimator_is_fitted_first_and_not_changed(data):
    estimator = PoissonNMF(2, random_state=0)
    found = bootstrap_fit(estimator, data[0], n_replicates=2, random_state=0)
    assert not hasattr(estimator, "components_")
    np.testing.assert_allclose(found.components.estimate.sum(axis=1), 1)


@pytest.mark.filterwarnings("error")
def test_fits_that_ran_out_of_iterations_are_warned_of_and_no_others(data):
    X, _, model = data
    on_plateau = clone(model).set_params(tol=1e-9, gain_tol=1e-4).fit(X)
    found = bootstrap_fit(on_plateau, X, n_replicates=3, random_state=0)
    assert found.converged.all() and (found.n_iter < model.max_iter).all()
    with pytest.warns(UserWarning, match="3 of 3 replicates ran out of iterations: increase max_"):
        bootstrap_fit(model.set_params(max_iter=2), X, n_replicates=3, random_state=0)
    model.set_params(max_iter=1000)


def test_what_cannot_be_done_is_refused(data):
    X, _, model = data
    with pytest.raises(ValueError, match="was fitted to counts of shape"):
        bootstrap_fit(model, X[:50])
    with pytest.raises(ValueError, match="features must be whole numbers from 0 to 19"):
        bootstrap_fit(model, X, features=[20])
    found = bootstrap_fit(model, X, n_replicates=2, features=[1])
    with pytest.raises(ValueError, match="need groups="):
        found.to_frame("group_means")
