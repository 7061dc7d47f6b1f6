"""Learning in batches: features matched by name, new ones among them; online EM of two factors."""

import warnings
from functools import partial

import internals
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import nmfscale
from nmfscale.methods.poisson.online_em import LEAST_SHARE, ROUNDS

N, M, K = 1200, 60, 3
X, TRUTH = nmfscale.datasets.simulate_topic_counts(N, M, K, random_state=0)
X = X.toarray() if sp.issparse(X) else np.asarray(X)
TOPICS = TRUTH.F.T / TRUTH.F.T.sum(axis=1, keepdims=True)
NAMES = np.array([f"word{j}" for j in range(M)])
LATE = 50  # words from here on are new in later batches
HELD_OUT, BATCHES = X[:200], np.array_split(np.arange(200, N), 20)
DECAY, OFFSET = 0.7, 10.0
MODELS = [nmfscale.TopicModel, nmfscale.PoissonNMF, partial(nmfscale.LDA, total_samples=1000.0)]
each_model = pytest.mark.parametrize("make", MODELS, ids=["topics", "poisson", "lda"])
each_of_em = pytest.mark.parametrize("make", MODELS[:2], ids=["topics", "poisson"])


def named(rows, columns=slice(None), shuffled=None):
    """Counts of some samples and words, the words perhaps in another order."""
    columns = np.arange(M)[columns]
    if shuffled is not None:
        columns = np.random.default_rng(shuffled).permutation(columns)
    return nmfscale.as_counts(sp.csr_matrix(X[rows][:, columns]), feature_names=NAMES[columns])


def weights(n_batches):
    """The weight of each batch after the first in the averages of all."""
    rho = (OFFSET + np.arange(2, n_batches + 1)) ** -DECAY
    return rho * np.append(np.cumprod((1 - rho)[::-1])[::-1][1:], 1)


def grown(make, missing, n_batches=20, late=10, **options):
    """A model whose later batches have new words, in another order each time."""
    model = make(K, random_state=0, **options)
    for t, rows in enumerate(BATCHES[:n_batches]):
        words = slice(LATE) if t < late else slice(None)
        model.partial_fit(named(rows, words, shuffled=t), new_features="add", missing=missing)
    return model


def expected_of_words(model):
    """The sum over topics of expected counts of each word, per sample, in the order of NAMES."""
    if hasattr(model, "mean_counts_"):
        of_words = model.mean_counts_.sum(axis=0)
    else:
        of_words = (model.topic_word_posterior_ - 1 / K).sum(axis=0) / model.total_samples
    return pd.Series(of_words, model.feature_names_in_)[NAMES].to_numpy()


# Online EM -----------------------------------------------------------------------------------


def em_step(counts, F, A, B, t, prior):
    """One batch in plain NumPy; `prior` is that of all samples, pseudo-counts and rate."""
    rho, n = (OFFSET + t) ** -DECAY, len(counts)
    frequency = (1 - rho) * A.sum(axis=1) + rho * counts.mean(axis=0)
    expected = (1 - rho) * (B * F.sum(axis=0)).sum(axis=1) + rho * counts.sum() / n
    frequency /= expected
    for _ in range(ROUNDS):
        G = np.maximum(F, LEAST_SHARE / t * frequency[:, None] * F.sum(axis=0))
        G *= F.sum(axis=0) / G.sum(axis=0)
        L = np.ones((n, K))
        for _ in range(3000):
            L *= (counts / np.maximum(L @ G.T, 1e-99)) @ G / G.sum(axis=0)
        a, b = G * ((counts / np.maximum(L @ G.T, 1e-99)).T @ L) / n, L.mean(axis=0)
        new_A, new_B = (1 - rho) * A + rho * a, (1 - rho) * B + rho * b
        F = (new_A + prior[0]) / (new_B + prior[1])
    return F, new_A, new_B


@pytest.mark.parametrize("alpha", [None, 3.0])
def test_a_batch_is_a_step_of_online_em(alpha):
    model = nmfscale.PoissonNMF(K, random_state=0, prior_factors=alpha)
    model.partial_fit(X[BATCHES[0]]).partial_fit(X[BATCHES[1]])
    F, A, B = model.components_.T, model.mean_counts_.T, model.mean_loadings_.T
    seen = sum(map(len, BATCHES[:3]))
    prior = (0, 0) if alpha is None else (2 / seen, 1 / seen)
    expected = em_step(X[BATCHES[2]], F, A, B, 3, prior)
    model.partial_fit(X[BATCHES[2]])
    found = model.components_.T, model.mean_counts_.T, model.mean_loadings_.T
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert (model.n_batch_iter_, model.n_samples_seen_) == (3, seen)


def distances(components):
    """Total variation of each topic from each true one."""
    found = components / components.sum(axis=1, keepdims=True)
    return abs(found[:, None] - TOPICS).sum(axis=2) / 2


@each_of_em
def test_twenty_batches_come_close_to_a_fit(make):
    model = make(K, random_state=0).partial_fit(X[BATCHES[0]])
    assert distances(model.components_).min(axis=1).mean() > 0.025
    whole = make(K, random_state=0).fit(X[200:])
    for rows in BATCHES[1:]:
        model.partial_fit(X[rows])
    assert whole.score(HELD_OUT) - model.score(HELD_OUT) < 0.0015
    of_truth = distances(model.components_)
    assert len({*of_truth.argmin(axis=1)}) == K and of_truth.min(axis=1).mean() < 0.009
    assert 0.005 < distances(whole.components_).min(axis=1).mean() < 0.007


def test_both_models_find_the_same_topics():
    one, other = (
        make(K, random_state=0).partial_fit(X[:100]).partial_fit(X[100:300]) for make in MODELS[:2]
    )
    scaled = other.components_ / other.components_.sum(axis=1, keepdims=True)
    assert_allclose(one.components_, scaled, rtol=1e-6, atol=1e-9)
    assert_allclose(one.components_.sum(axis=1), 1)


def test_one_batch_again_and_again_is_a_fit_of_it():
    batch = X[:150]
    model = nmfscale.TopicModel(K, random_state=0).fit(X[150:300])
    best = nmfscale.TopicModel(K, random_state=0).fit(batch).score(batch)
    gaps = [best - model.score(batch)]
    for _ in range(3):
        for _ in range(25):
            model.partial_fit(batch)
        gaps.append(best - model.score(batch))
    assert (np.diff(gaps) < 0).all() and -1e-9 < gaps[-1] < gaps[0] / 4


def test_batches_may_follow_a_fit_or_a_table():
    fit = nmfscale.TopicModel(K, random_state=0).fit(X[:100])
    assert not hasattr(fit, "n_batch_iter_")
    table = nmfscale.TopicModel.from_components(TOPICS * 0.9 + 0.1 / M)
    for model, n in ((fit, 100), (table, 0)):
        before = distances(model.components_).min(axis=1).mean()
        for rows in BATCHES[:10]:
            model.partial_fit(X[rows])
        assert distances(model.components_).min(axis=1).mean() < 0.7 * before
        assert model.n_batch_iter_ == 10
        assert model.n_samples_seen_ == n + sum(map(len, BATCHES[:10]))
    fit.fit(X[:100])
    assert not {"mean_counts_", "mean_loadings_", "n_samples_seen_", "n_batch_iter_"} & {*vars(fit)}


def test_a_small_batch_after_a_large_fit_changes_little():
    model = nmfscale.TopicModel(K, random_state=0).fit(X[:1000])
    average = X[:1000].mean(axis=0)
    model.partial_fit(X[1000:1010])
    rho = (OFFSET + 101) ** -DECAY
    expected = (1 - rho) * average + rho * X[1000:1010].mean(axis=0)
    assert_allclose(model.mean_counts_.sum(axis=0), expected, rtol=1e-2, atol=1e-3)


def test_seeds_and_priors_of_words_that_come_later():
    seeds = {"one": NAMES[[2, LATE]].tolist(), "two": [NAMES[3]]}
    with pytest.warns(UserWarning, match="X lacks 1 of the 3 seeds, such as 'word50'"):
        model = grown(nmfscale.TopicModel, "zero", seeds=seeds, seed_weight=20.0, init="random")
    of_seed = model.components_[:, model.feature_names_in_ == NAMES[LATE]][:, 0]
    assert of_seed.argmax() == 0 and of_seed[0] > 3 * of_seed[1:].max()
    assert list(model.topic_names_) == ["one", "two", "topic 2"]
    table = pd.DataFrame(np.full((M, K), 1.5), index=NAMES)
    one = grown(nmfscale.PoissonNMF, "zero", 12, prior_factors=table)
    other = grown(nmfscale.PoissonNMF, "zero", 12, prior_factors=1.5)
    assert_array_equal(one.components_, other.components_)
    of_words = pd.Series(np.full(M, 1 / K), NAMES)
    one = grown(MODELS[2], "zero", 12, topic_word_prior=of_words)
    assert_allclose(one.components_, grown(MODELS[2], "zero", 12).components_)
    with pytest.raises(ValueError, match=r"topic_word_prior has shape \(50,\)"):
        grown(MODELS[2], "zero", 12, topic_word_prior=of_words.to_numpy()[:LATE])


# New and missing words ------------------------------------------------------------------------


@each_model
def test_a_new_word_has_the_frequency_of_all_batches(make):
    """Words that earlier batches lacked were not there: the average is over all batches."""
    model = grown(make, "zero")
    assert_array_equal(np.sort(model.feature_names_in_), np.sort(NAMES))
    means = np.array([X[rows].mean(axis=0) for rows in BATCHES])
    means[:10, LATE:] = 0
    if make is MODELS[2]:  # the first batch has a weight, too, and random topics the rest
        rho = (OFFSET + np.arange(1, 21)) ** -DECAY
        of_batches = rho * np.append(np.cumprod((1 - rho)[::-1])[::-1][1:], 1)
        found, expected = expected_of_words(model)[LATE:], of_batches @ means[:, LATE:]
    else:
        of_batches = np.append(1 - weights(20).sum(), weights(20))
        found, expected = expected_of_words(model), of_batches @ means
    assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@each_model
def test_a_feature_that_was_not_measured_has_the_frequency_of_later_batches(make):
    model = grown(make, "restrict", 14)
    late = np.array([X[rows][:, LATE:].mean(axis=0) for rows in BATCHES[10:14]])
    of_late = weights(14)[-4:] / weights(14)[-4:].sum()
    assert_allclose(expected_of_words(model)[LATE:] / _measured(model), of_late @ late, rtol=1e-6)
    if make is not MODELS[2]:
        table = pd.DataFrame(model.components_.T, model.feature_names_in_).loc[NAMES].T.to_numpy()
        table /= table.sum(axis=1, keepdims=True)
        of_truth = distances(table)
        assert of_truth.min(axis=1).max() < 0.06
        shares = table[:, LATE:].sum(axis=1)
        assert_allclose(shares, TOPICS[of_truth.argmin(axis=1), LATE:].sum(axis=1), rtol=0.2)


def _measured(model):
    """The share of the batches that measured late words, which their averages still have."""
    if hasattr(model, "measured_share_"):
        return 1
    return weights(14)[-4:].sum()


@each_model
def test_a_batch_does_not_change_what_it_did_not_measure(make):
    model = grown(make, "zero", 2, late=0)
    values = "topic_word_posterior_" if make is MODELS[2] else "mean_counts_"
    before = {name: getattr(model, name).copy() for name in (values, "components_")}
    model.partial_fit(named(BATCHES[2], slice(LATE)), missing="restrict", new_features="add")
    words = np.isin(model.feature_names_in_, NAMES[LATE:])
    if make is MODELS[2]:
        assert_array_equal(model.topic_word_posterior_[:, words], before[values][:, words])
    else:  # topics sum to one
        after, kept = model.components_[:, words], before["components_"][:, words]
        assert_allclose(after / after.sum(axis=1)[:, None], kept / kept.sum(axis=1)[:, None])
        assert_allclose(after, kept, rtol=0.1)
    assert (model.components_[:, ~words] != before["components_"][:, ~words]).mean() > 0.9


@each_model
def test_counts_of_words_that_are_ignored_make_no_difference(make):
    one, other = (make(K, random_state=0).partial_fit(named(BATCHES[0], slice(LATE))) for _ in "ab")
    with pytest.warns(UserWarning, match="X has 10 features that .* was not fitted to"):
        one.partial_fit(named(BATCHES[1]), new_features="ignore")
    other.partial_fit(named(BATCHES[1], slice(LATE)))
    assert_array_equal(one.components_, other.components_)


def test_words_of_texts_are_added_without_a_choice_of_missing():
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer()
    texts = [["red apple", "red cherry", "blue sky"], ["blue sea", "red apple"]]
    first, later = (nmfscale.text_counts(part, vectorizer=vectorizer) for part in texts)
    for make in MODELS:
        model = make(2, random_state=0).partial_fit(first, new_features="add")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.partial_fit(later, new_features="add")
        assert model.feature_names_in_.tolist()[-1] == "sea" and model.n_features_in_ == 6
        with pytest.warns(UserWarning, match="lacks 2 of the 6"):
            assert model.transform(later).shape == (2, 2)
        assert not model.unseen_features_.any()


@each_model
@pytest.mark.parametrize("kinds", [(str, int), (int, str), (int, int)])
def test_names_that_are_numbers_match_their_text(make, kinds):
    numbers, (first, later) = np.arange(M) + 100, kinds
    model = make(K, random_state=0)
    for t, kind, words in ((0, first, LATE), (1, later, M)):
        counts = sp.csr_matrix(X[BATCHES[t], :words])
        batch = nmfscale.as_counts(counts, feature_names=[kind(name) for name in numbers[:words]])
        model.partial_fit(batch, new_features="add", missing="zero")
    labels = "feature_labels_" if kinds == (int, int) else "feature_names_in_"
    assert getattr(model, labels).tolist() == [*map(later if first is int else str, numbers)]
    assert not {"feature_labels_", "feature_names_in_"} - {labels} & {*vars(model)}


# Where counts are -----------------------------------------------------------------------------


@each_model
def test_the_bits_are_those_of_any_source_and_order(make, tmp_path, monkeypatch):
    anndata = pytest.importorskip("anndata")
    internals.small_blocks(monkeypatch, 700)

    def after(change, **options):
        model = make(K, random_state=0, **options).partial_fit(named(BATCHES[0], slice(LATE)))
        for t in (1, 2):
            batch = change(named(BATCHES[t]), t)
            model.partial_fit(batch, new_features="add", missing="zero")
        return model.components_.tobytes()

    def stored(counts, t):
        path = tmp_path / f"{make}{t}.nmf".replace(" ", "").replace("<", "").replace(">", "")
        return nmfscale.write_store(counts, path, overwrite=True).path

    def shuffled(counts, t):
        return named(BATCHES[t], shuffled=t) if t == 2 else counts

    def as_anndata(counts, t):
        adata = anndata.AnnData(sp.csr_matrix(X[BATCHES[t]]))
        adata.var_names = NAMES
        return adata

    expected = after(lambda counts, t: counts)
    assert after(stored, memory_limit="100TB") == expected
    assert after(shuffled) == expected
    assert after(as_anndata, n_threads=2) == expected
    assert after(lambda counts, t: pd.DataFrame(X[BATCHES[t]], columns=NAMES)) == expected


@each_model
def test_saved_and_reordered_models_continue(make, tmp_path):
    one = grown(make, "restrict", 12)
    one.save(tmp_path / "model.h5")
    other = nmfscale.load(tmp_path / "model.h5")
    turned = one.reorder_topics([2, 0, 1])
    for model in (one, other, turned):
        model.partial_fit(named(BATCHES[12]), missing="restrict", new_features="add")
    assert_array_equal(one.components_, other.components_)
    assert_allclose(turned.components_, one.components_[[2, 0, 1]], rtol=1e-6, atol=1e-12)


# What is refused, and Ctrl-C ------------------------------------------------------------------


@each_model
@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        (named(BATCHES[1]), {}, "X has 10 features that .* not have, such as 'word50'.*='add'"),
        (named(BATCHES[1]), {"new_features": "add"}, "earlier batches lacked.*missing='zero'"),
        (named(BATCHES[1], slice(40)), {}, "X lacks 10 of the 50 .*in a batch, give missing="),
        (X[BATCHES[1]], {"new_features": "add"}, "by name, and X has no names"),
        (named(BATCHES[1]), {"new_features": "new"}, "new_features='new': 'error', 'add', 'ign"),
        (named(BATCHES[1]), {"missing": 0}, "missing=0: 'error'"),
        (named(BATCHES[1], slice(LATE, None)), {"new_features": "add"}, "X has none of the 50"),
        (pd.DataFrame(X, columns=NAMES), {}, "unseen at fit time(.|\n)*Give new_features='add'"),
        (pd.DataFrame(X[:, ::-1], columns=NAMES[::-1]).iloc[:, 10:], {}, "be in the same order"),
    ],
)
def test_what_is_refused(make, batch, options, message):
    model = make(K, random_state=0).partial_fit(named(BATCHES[0], slice(LATE)))
    before = dict(vars(model))
    with pytest.raises(ValueError, match=message):
        model.partial_fit(batch, **options)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())


def test_what_a_batch_cannot_continue():
    batch = np.resize(["a", "b"], 100)
    for options, word in (({"batch": batch}, "batch="), ({"row_weights": np.ones(100)}, "row_w")):
        model = nmfscale.TopicModel(K, random_state=0, max_iter=2, tol=0).fit(X[:100], **options)
        with pytest.raises(ValueError, match=f"was fitted with {word}"):
            model.partial_fit(X[100:200])
    model = nmfscale.LDA(K, random_state=0).partial_fit(X[:100]).set_params(n_components=5)
    with pytest.raises(ValueError, match="n_components=5, and the model has 3 comp"):
        model.partial_fit(X[100:200])
    penalty = nmfscale.experimental.SparsityPenalty(1.0)
    with pytest.raises(ValueError, match="partial_fit has no penalty"):
        nmfscale.TopicModel(K, solver="joint-em", penalty=penalty).partial_fit(X)
    points = nmfscale.LDA(K, random_state=0, topic_word_prior=0).partial_fit(
        named(BATCHES[0], slice(9))
    )
    with pytest.raises(ValueError, match="topic_word_prior=0 means topics without a prior"):
        points.partial_fit(named(BATCHES[1]), new_features="add", missing="zero")
    with pytest.raises(ValueError, match="and the first batch had no names"):
        nmfscale.TopicModel(K).partial_fit(X[:99]).partial_fit(
            named(BATCHES[1]), new_features="add"
        )
    with pytest.raises(ValueError, match="by name, and X has no names"):
        nmfscale.TopicModel(K).partial_fit(X, new_features="add")
    weighted = nmfscale.as_counts(X)
    weighted.feature_weights = np.linspace(1, 2, M)
    with pytest.raises(ValueError, match="weights of features"):
        nmfscale.TopicModel(K).partial_fit(weighted)


@each_model
def test_counts_that_were_not_measured_are_refused(make):
    counts = named(BATCHES[0])
    counts.measured = np.array([np.arange(M) < LATE]), np.zeros(len(BATCHES[0]), int)
    with pytest.raises(ValueError, match="500 entries that were not measured.*missing='restrict'"):
        make(K).partial_fit(counts)


@each_of_em
def test_memory_is_asked_for_first(make):
    model = make(K, random_state=0).partial_fit(X[:100]).set_params(memory_limit=1000)
    with pytest.raises(MemoryError, match="raise memory_limit"):
        model.partial_fit(X[100:200])


@each_of_em
def test_batches_in_float32(make):
    one, other = (make(K, random_state=0, dtype=dtype) for dtype in ("float32", "float64"))
    for rows in BATCHES[:3]:
        one.partial_fit(X[rows])
        other.partial_fit(X[rows])
    assert one.components_.dtype == np.float32 and one.mean_counts_.dtype == np.float64
    assert abs(one.score(HELD_OUT) - other.score(HELD_OUT)) < 1e-3


@each_model
def test_ctrl_c_keeps_the_batches_before(make, monkeypatch):
    model = make(K, random_state=0).partial_fit(named(BATCHES[0], slice(LATE)))
    before = {name: np.copy(value) for name, value in vars(model).items()}

    calls = []

    def interrupted(run, executor, *steps):
        calls.append(steps)
        if len(calls) == (1 if make is MODELS[2] else 2):  # the second of three rounds
            raise KeyboardInterrupt
        return run(executor, *steps)

    internals.around_local_steps(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(named(BATCHES[1]), new_features="add", missing="zero")
    assert vars(model).keys() == before.keys()
    for name, value in before.items():
        assert_array_equal(getattr(model, name), value)


def test_ctrl_c_in_the_first_batch(monkeypatch):
    def interrupt(record):
        raise KeyboardInterrupt

    model = nmfscale.TopicModel(K, random_state=0, callback=interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X[:100])
    assert not hasattr(model, "components_") and not hasattr(model, "n_features_in_")
