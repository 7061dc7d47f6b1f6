"""Choice of the number of topics: the truth is found, scores are those of an oracle, same bits."""

import os
import signal

import anndata
import internals
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from nmfscale import (
    LDA,
    SSNMF,
    FrobeniusNMF,
    TopicModel,
    as_counts,
    concat,
    match_topics,
    select_k,
    write_store,
)
from nmfscale.datasets import simulate_topic_counts
from nmfscale.inference.choice.select_k_result import recommendation
from nmfscale.readers.streams.thinning import PartOfCounts, Thinning, thinned_in_memory
from nmfscale.results import StoredCounts

N = 120
TOPICS = TopicModel(prior_factors=1.1, tol=1e-3)


@pytest.fixture(scope="module")
def X():
    return simulate_topic_counts(N, 60, 3, random_state=1)[0]


@pytest.fixture(scope="module")
def found(X):
    return select_k(TOPICS, X, range(2, 6), n_splits=2, random_state=0, n_threads=1)


def assert_same(found, expected):
    pd.testing.assert_frame_equal(found.to_frame(), expected.to_frame(), check_exact=True)
    assert found.reason == expected.reason
    assert found.excess_variance == expected.excess_variance


def test_the_true_number_of_topics(X, found):
    assert found.best == 3 and found.to_frame().best.tolist() == [False, True, False, False]
    assert found.least_stability[1] > 0.95 > 0.9 > found.least_stability[2:].max()
    assert np.all(np.diff(found.in_sample) > 0) and found.score_error[1] == 0
    dispersion, error = found.excess_variance
    assert abs(dispersion) < 4 * error < 0.1
    assert "its held-out score is the highest" in repr(found)
    by_units = select_k(
        TOPICS, X, range(2, 5), units=np.arange(N) // 4, n_folds=3, n_splits=1, random_state=0
    )
    assert by_units.best == 3 and by_units.held_out == "units"
    assert by_units.similarities[0].shape == (1, 3, 2)


def test_splits_are_summed_up(X, found):
    """The first split alone, and both: mean scores, spread, and what each would recommend."""
    one = select_k(TOPICS, X, range(2, 6), n_splits=1, random_state=0, n_threads=1)
    assert (one.fold_scores == found.fold_scores[:, :1]).all() and one.n_splits == 1
    assert all(
        (a == b[:1]).all() for a, b in zip(one.similarities, found.similarities, strict=True)
    )
    np.testing.assert_allclose(found.score, found.fold_scores.mean(axis=(1, 2)), rtol=1e-3)
    least = np.array([similarities.min(axis=(1, 2)) for similarities in found.similarities])
    table = found.to_frame()
    assert (table.least_stability == np.median(least, axis=1)).all()
    assert (table.least_stability_low == least.min(axis=1)).all()
    assert (table.least_stability_high == least.max(axis=1)).all()
    assert table.n_all_found.tolist() == (least >= 0.9).sum(axis=1).tolist()
    assert found.chosen.tolist() == [3, 3] and table.n_chosen.tolist() == [0, 2, 0, 0]
    assert repr(found).endswith("Single splits recommend 3 (2 of 2).")
    assert "Single splits" not in repr(one)


@pytest.mark.parametrize("numbers", [range(2, 5), [2]])
def test_no_number_where_nothing_is_found_again(numbers):
    """Poisson counts of one topic, whose score falls from the smallest number on."""
    X = simulate_topic_counts(100, 40, 1, random_state=0)[0]
    none = select_k(TOPICS, X, numbers, n_splits=1, random_state=0)
    assert none.best is None and none.held_out == "counts" and none.chosen.tolist() == [0]
    assert none.score.argmax() == 0 and not none.n_stable.any()
    assert "No number of topics is recommended" in repr(none)


@pytest.mark.parametrize("options", [{}, {"units": np.repeat(range(4), N // 2)}])
def test_entries_that_were_not_measured(options):
    """Two panels, the second without 20 features: the score of the truth, and its number."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([0.3] * 3, 2 * N) @ rng.dirichlet([0.2] * 60, 3)
    counts = rng.poisson(400 * shares)
    names = np.array([f"gene {j}" for j in range(60)])
    panels = [
        as_counts(counts[:N], feature_names=names),
        as_counts(counts[N:, :40], feature_names=names[:40]),
    ]
    joined = concat(panels, join="outer")
    counts[N:, 40:], shares[N:, 40:] = 0, 0
    logs = np.log(np.where(shares > 0, shares, 1) / shares.sum(axis=1, keepdims=True))
    found = select_k(TOPICS, joined, range(2, 5), n_splits=1, random_state=0, **options)
    assert found.best == 3 and found.least_stability[1] > 0.95
    # a feature that no sample of a fold measured is not scored in the other one
    expected = (counts * logs).sum() / counts.sum()
    assert abs(found.score[1] - expected) < 0.02
    assert not options or found.held_out == "units"
    if not options:
        assert abs(found.excess_variance[0]) < 0.01


def test_panels_in_different_folds_are_compared_by_what_both_measured():
    """Each fold has another panel: its topics are found again, and the truth is named."""
    X, _ = simulate_topic_counts(2 * N, 60, 3, random_state=1)
    names = np.array([f"gene {j}" for j in range(60)])
    panels = [
        as_counts(X[:N], feature_names=names),
        as_counts(X[N:, :45].tocsr(), feature_names=names[:45]),
    ]
    joined = concat(panels, join="outer")
    found = select_k(TOPICS, joined, [2, 3, 4], units=np.repeat([0, 1], N), n_splits=1)
    assert found.best == 3 and found.least_stability[1] > 0.95


def test_scores_and_similarities_of_an_oracle(X):
    """With one number of topics, recomputed from the parts of the counts by plain NumPy."""
    X = X.toarray()
    X[:, 0] = 0
    X[0, 0] = 1  # in one half only
    estimator = TopicModel(prior_factors=1.5, tol=1e-6)
    found = select_k(estimator, X, [3], n_splits=1, random_state=5)
    halves, models, sizes = internals.halves_and_seeds(5), [], []
    parts = [part.take_rows().toarray() for part in thinned_in_memory(as_counts(X), halves[0])]
    assert (parts[0] + parts[1] == X).all()
    log, total, inside = 0.0, 0, 0.0
    for (train, held), seed in zip((parts, parts[::-1]), halves[1], strict=True):
        model = TopicModel(3, prior_factors=1.5, tol=1e-6, n_init=1, random_state=seed).fit(train)
        models.append(model)
        sizes.append(model.loadings_.T @ train.sum(axis=1))
        shares = model.loadings_ @ model.components_
        inside += (train * np.log(shares)).sum()
        known = train.any(axis=0)
        shares = shares[:, known] / shares[:, known].sum(axis=1, keepdims=True)
        log += (held[:, known] * np.log(shares)).sum()
        total += held[:, known].sum()
    np.testing.assert_allclose(found.score, log / total, rtol=1e-9)
    np.testing.assert_allclose(found.in_sample, inside / X.sum(), rtol=1e-9)
    # the cosine of deviations, whose squares are larger by the variance of Poisson counts
    one, other = (model.components_.T for model in models)
    mean = np.hstack([one, other]).mean(axis=1, keepdims=True)
    deviations = [(F - mean) / np.sqrt(mean) for F in (one, other)]
    squares = [
        (d**2).sum(axis=0) - (F / mean).sum(axis=0) / n
        for d, F, n in zip(deviations, (one, other), sizes, strict=True)
    ]
    expected = deviations[0].T @ deviations[1] / np.sqrt(np.outer(*squares))
    np.testing.assert_allclose(
        found.similarities[0][0, 0], np.minimum(expected.max(axis=1), 1), rtol=1e-9
    )
    assert (found.similarities[0][0, 0] > np.sort(match_topics(*models).similarity)).all()


@pytest.mark.nightly
def test_the_same_bits_from_any_place(X, tmp_path, small_blocks, monkeypatch):
    names = [f"cell {i}" for i in range(N)]
    table = pd.DataFrame(X.toarray(), names, [f"gene {j}" for j in range(60)])
    write_store(table, tmp_path / "counts.nmf")
    adata = anndata.AnnData(sp.csr_matrix(table.to_numpy().astype(np.float32)))
    # blocks differ from those of other tests, and so do steps of the solver
    options = {"n_splits": 2, "random_state": 0}
    expected = select_k(TOPICS, X, range(2, 5), n_threads=1, **options)
    for source in (tmp_path / "counts.nmf", adata):
        assert_same(select_k(TOPICS, source, range(2, 5), n_threads=2, **options), expected)
    internals.no_room_for_parts(monkeypatch)  # the parts are in stores
    counts, job = StoredCounts(tmp_path / "counts.nmf"), {"checkpoint": tmp_path / "job"}
    stores = set()

    def note(fit, *words, **options):
        stores.update((tmp_path / "job").rglob("part-*.nmf"))
        return fit(*words, **options)

    with pytest.MonkeyPatch.context() as patch:
        internals.around_fit_of_selection(patch, note)
        select_k(TOPICS, counts, range(2, 5), **options, **job)
    assert len(stores) == 4 and not any(store.exists() for store in stores)
    again = select_k(TOPICS, counts, range(2, 5), n_splits=2, resume=True, **job)
    assert again.random_state == 0
    assert_same(again, expected)
    # fits with all numbers of topics share the reads of the parts
    internals.read_anew(monkeypatch)
    internals.fits_together(monkeypatch, 2)
    assert_same(select_k(TOPICS, counts, range(2, 5), n_threads=2, **options), expected)


def test_one_read_of_a_file_serves_all_fits_to_a_split(X, tmp_path, monkeypatch):
    write_store(X, tmp_path / "counts.nmf")
    rows = internals.count_rows_read(monkeypatch)
    counts = StoredCounts(tmp_path / "counts.nmf")
    select_k(TOPICS, counts, [2, 3, 4], n_splits=2, n_init=2, random_state=0)
    assert sum(rows) == 2 * N


def test_ctrl_c_keeps_what_is_done(X, found, monkeypatch, tmp_path):
    def interrupt(fit, task, folds, number, *words, **options):
        result = fit(task, folds, number, *words, **options)
        if result["topics"].any(axis=0).sum() == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    options = {"n_splits": 2, "random_state": 0, "n_threads": 1, "checkpoint": tmp_path}
    with monkeypatch.context() as patch:
        internals.around_fit_of_selection(patch, interrupt)
        some = select_k(TOPICS, X, range(2, 6), **options)
    # the largest number is the first: it shows if counts vary like Poisson counts
    assert some.interrupted and some.n_components.tolist() == [2, 3, 5] and some.best == 3
    assert some.n_splits == 1
    assert_same(select_k(TOPICS, X, range(2, 6), resume=True, **options), found)


def test_ctrl_c_keeps_the_splits_that_are_done(X, monkeypatch):
    def interrupt(fit, task, folds, number, *words, **options):
        if folds.seed.spawn_key[0] == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return fit(task, folds, number, *words, **options)

    internals.around_fit_of_selection(monkeypatch, interrupt)
    options = {"held_out": "samples", "random_state": 0, "n_threads": 1}
    some = select_k(TOPICS, X, [2, 3], n_splits=3, **options)
    assert some.interrupted and some.n_splits == 1 and some.n_components.tolist() == [2, 3]
    first = select_k(TOPICS, X, [2, 3], n_splits=1, **options)
    assert not first.interrupted
    assert_same(some, first)


def test_ctrl_c_after_the_first_fits_ends_the_job(X, monkeypatch):
    internals.around_excess_variance(monkeypatch, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    some = select_k(TOPICS, X, [2, 5], n_splits=2, random_state=0, n_threads=1)
    assert some.interrupted and some.n_components.tolist() == [5]


@pytest.mark.nightly
def test_other_estimators_and_gaps(X, found):
    lda = select_k(LDA(tol=1e-3), X, [2, 3, 4], random_state=0)
    assert lda.best == 3 and lda.estimator == "LDA"
    gap = select_k(TOPICS, X, [2, 5], n_init=2, random_state=0)
    assert gap.n_components.tolist() == [2, 5] and gap.score[1] < found.score[1]
    maximum = select_k(TopicModel(), X, [3, 4, 5], n_splits=1, random_state=1)
    assert maximum.best == 3 and "there is no prior" in maximum.reason


@pytest.mark.nightly
def test_counts_that_vary_more_than_poisson_counts():
    rng = np.random.default_rng(0)
    rates = 400 * rng.dirichlet([0.2] * 3, 200) @ rng.dirichlet([0.2] * 60, 3)
    X = rng.poisson(rates * rng.gamma(2, 0.5, rates.shape))
    found = select_k(TOPICS, X, [2, 3, 4, 5], random_state=0)
    assert found.held_out == "samples" and found.best == 3 and "no maximum up to 5" in found.reason
    dispersion, error = found.excess_variance
    assert 0.3 < dispersion < 0.55 and dispersion > 10 * error
    assert f"dispersion {dispersion:.2f}" in found.reason
    assert found.n_stable[1] == 3 and found.n_stable[3] < 5
    samples = select_k(TOPICS, X, [2, 3, 4, 5], held_out="samples", random_state=0)
    assert (samples.score == found.score).all() and samples.excess_variance is None
    halves = select_k(TOPICS, X, [3, 4], held_out="counts", random_state=0)
    assert halves.held_out == "counts" and "hold out samples" in halves.reason


@pytest.mark.slow
def test_seeds_agree_on_real_cells(data_dir):
    """A fourth topic is found again in a few of the splits: single ones recommend 3, 4 or none."""
    X = sp.csr_array(sp.load_npz(data_dir / "pbmc_facs.npz"))
    X = X[np.sort(np.random.default_rng(0).choice(X.shape[0], 1000, replace=False))]
    X = X[:, np.bincount(X.indices, minlength=X.shape[1]) >= 20]
    for seed in (0, 2):
        of_seed = select_k(TOPICS, X, [2, 3, 4, 5], held_out="samples", random_state=seed)
        assert of_seed.best == 3 and set(of_seed.chosen.tolist()) <= {0, 3, 4}
        assert of_seed.n_all_found[1] >= 4 and of_seed.n_all_found[3] == 0


def test_recommendations():
    numbers, agree = np.array([2, 3, 4]), np.array([0.92, 0.95, 0.3])

    def ask(score, error=(1, 1, 0), least=agree, excess=(0.001, 0.01), prior=True):
        return recommendation(
            numbers, np.array(score), np.array(error), np.reshape(least, (3, -1)), excess=excess,
            has_prior=prior, held_out="samples",
        )  # fmt: skip

    # the score, if the topics of its number are found again
    assert ask([-9.0, -5.5, -6.0])[0] == 3
    assert ask([-6.0, -5.5, -7.0])[0] == 2 and "one standard error" in ask([-6, -5.5, -7])[1]
    assert ask([-5.0, -6.0, -7.0], prior=False)[0] == 2
    best, reason = ask([-9.0, -7.0, -5.0], least=(0.9, 0.9, 0.9))
    assert best == 4 and "compare larger numbers" in reason
    # stability, where there is no maximum or a topic is not found again: one threshold
    varies = {"excess": (0.4, 0.01)}
    for other in (varies, {"excess": None}, {}):
        assert ask([-9, -7, -5], **other)[0] == 3
        assert ask([-9, -7, -5], least=(0.99, 0.91, 0.3), **other)[0] == 3
        assert ask([-9, -7, -5], least=(0.91, 0.89, 0.3), **other)[0] == 2
        assert ask([-9, -5, -6], least=(0.9, 0.7, 0.9), **other)[0] == 2
        for score in ([-9, -7, -5], [-9, -5, -7], [-5, -7, -9]):
            best, reason = ask(score, least=np.full(3, 0.89), **other)
            assert best is None and "with no number are all topics found again" in reason
    # in two thirds of the splits
    of_splits = {3: [0.95] * 3 + [0.2] * 2, 4: [0.95] * 4 + [0.2]}
    for times, best in ((3, None), (4, 4)):
        least = np.stack([np.zeros(5), np.zeros(5), of_splits[times]])
        assert ask([-9, -7, -5], least=least, **varies)[0] == best
    assert "again in 4 of 5 splits" in ask([-9, -7, -5], least=least, **varies)[1]
    for other in (varies, {"excess": None}):
        assert "larger numbers" in ask([-9, -7, -5], least=np.full(3, 0.9), **other)[1]
    assert "(dispersion 0.40)" in ask([-9, -5, -6], **varies)[1]
    assert "dispersion" not in ask([-9, -5, -6], excess=(0.4, 0.3))[1]


def test_parts_of_counts(X, tmp_path, small_blocks):
    counts = as_counts(X)
    thinning = Thinning(7, 3)
    parts = [part.take_rows() for part in thinned_in_memory(counts, thinning)]
    assert (sum(part.toarray() for part in parts) == X.toarray()).all()
    # half the counts of a row of size s have variance s (1/3) (2/3)
    for part in parts:
        z = (part.sum() - X.sum() / 3) / np.sqrt(X.sum() * 2 / 9)
        assert abs(z) < 4
    streamed = PartOfCounts(counts, None, thinning, [0, 2])
    rest = (parts[0] + parts[2]).toarray()
    assert (streamed.in_memory().take_rows().toarray() == rest).all()
    assert (streamed.rows(70, 90).rows.matrix(60).toarray() == rest[70:90]).all()
    kept = np.flatnonzero(np.arange(N) % 7 == 3)
    some = PartOfCounts(counts, kept, thinning, [1]).in_store(tmp_path / "some.nmf", 1)
    assert (some.take_rows().toarray() == parts[1].toarray()[kept]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_components": [0, 2]}, "n_components has 0: positive integers"),
        ({"n_components": "many"}, "n_components has 'm'"),
        ({"n_components": [2, 500]}, r"n_components has 500, and X has shape \(120, 60\)"),
        ({"estimator": SSNMF(2)}, "estimator is 'SSNMF'"),
        ({"estimator": FrobeniusNMF(2)}, "'FrobeniusNMF', which has no likelihood"),
        ({"estimator": 3}, "estimator is 'int'"),
        ({"n_folds": 1}, "n_folds is 1"),
        ({"n_splits": 0}, "n_splits is 0"),
        ({"n_init": 0}, "n_init is 0"),
        ({"units": ["a"] * N}, "units has 1 different labels, and n_folds is 2"),
        ({"resume": True}, "resume=True needs checkpoint="),
        ({"held_out": "rows"}, "held_out='rows' is not one of"),
        ({"held_out": "counts", "units": range(N)}, "with units=, the samples of units are"),
    ],
)
def test_wrong_arguments(X, arguments, message):
    with pytest.raises(ValueError, match=message):
        select_k(**({"estimator": TOPICS, "X": X, "n_components": [2]} | arguments))


def test_fractions_are_refused(X):
    with pytest.raises(ValueError, match="only whole counts can be split"):
        select_k(TOPICS, X / 2, [2])


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_workers_share_the_fits(X, client, tmp_path):
    write_store(X, tmp_path / "counts.nmf")
    with pytest.MonkeyPatch.context() as patch:
        internals.no_active_client(patch)
        expected = select_k(TOPICS, X, [2, 3], random_state=0)
    for source in (X, tmp_path / "counts.nmf"):
        assert_same(select_k(TOPICS, source, [2, 3], random_state=0, client=client), expected)


@pytest.fixture(scope="module")
def of_batches():
    """Counts of three topics in two batches with other efficiencies, and the batches."""
    rng = np.random.default_rng(0)
    batch = np.repeat(["a", "b"], 60)
    shares, topics = rng.dirichlet(np.full(3, 0.3), 120), rng.dirichlet(np.full(60, 0.3), 3)
    effects = np.where(batch[:, None] == "b", np.exp(rng.normal(0, 0.8, 60)), 1)
    return rng.poisson(400 * effects * (shares @ topics)), batch


def test_batches_are_no_topics(of_batches):
    counts, batch = of_batches
    options = {"n_splits": 2, "random_state": 0, "n_threads": 1}
    found = select_k(TOPICS, counts, range(2, 6), batch=batch, **options)
    assert (found.best, found.held_out) == (3, "samples")
    # held-out counts, too, are explained by the efficiencies of their batches
    options["held_out"] = "samples"
    without = select_k(TOPICS, counts, range(2, 6), **options)
    assert found.score.max() > without.score.max() + 0.01
    of_column = anndata.AnnData(sp.csr_matrix(counts.astype(float)), obs={"donor": batch})
    again = select_k(TOPICS, of_column, range(2, 6), batch="donor", **options)
    assert_same(again, found)


def test_scores_of_counts_with_batches_are_those_of_the_fits(of_batches):
    counts, batch = of_batches
    options = {"held_out": "counts", "n_splits": 1, "random_state": 0, "n_threads": 1}
    found = select_k(TOPICS, counts, [3], batch=batch, **options)
    without = select_k(TOPICS, counts, [3], **options)
    assert found.score[0] > without.score[0] + 0.01
    with pytest.raises(TypeError, match="LDA takes no batch"):
        select_k(LDA(), counts, [3], batch=batch)
