"""Seeds: topics that are to have certain features, in every model and solver."""

import warnings

import internals
import numpy as np
import pytest
from small_fits import StopError, stop_at

import nmfscale
from nmfscale import LDA, GammaPoisson, PoissonNMF, TopicModel
from nmfscale.datasets import simulate_topic_counts
from nmfscale.errors import LeftSeedsWarning
from nmfscale.likelihood import logposterior_poisson
from nmfscale.methods.starts.seeded import in_places_of_seeds

X, TRUTH = simulate_topic_counts(200, 80, 5, random_state=3)
TOPICS = np.asarray(TRUTH.F) / np.asarray(TRUTH.F).sum(axis=0)
WORDS = [f"w{j}" for j in range(X.shape[1])]
# in an order of their own, three words whose share in a topic is far above that in others
SEEDED = (4, 0, 2)
SEEDS = {
    f"t{k}": [WORDS[j] for j in np.argsort(-TOPICS[:, k] / TOPICS.mean(axis=1))[:3]] for k in SEEDED
}
HOW = {"feature_names": WORDS}
OCCURRENCES = np.asarray(X.sum(axis=0)).ravel()


def pseudo_counts(weight, n_topics=5):
    pseudo = np.zeros((len(WORDS), n_topics))
    for k, words in enumerate(SEEDS.values()):
        for word in words:
            pseudo[WORDS.index(word), k] = weight * OCCURRENCES[WORDS.index(word)]
    return pseudo


@pytest.mark.parametrize(
    "model",
    [
        TopicModel(5, random_state=1),
        PoissonNMF(5, random_state=1, solver="em", tol=1e-3),
        PoissonNMF(5, random_state=1, init="random"),
        LDA(5, random_state=1),
        LDA(5, random_state=1, init="random"),
        LDA(5, random_state=1, inference="collapsed"),
        GammaPoisson(5, random_state=1),
        GammaPoisson(5, random_state=1, init="random"),
        GammaPoisson(5, random_state=1, hierarchical=True),
    ],
    ids=lambda model: repr(model).replace(" ", "").replace("\n", ""),
)
def test_topics_have_their_seeds_and_names(model):
    order = np.random.default_rng(5).permutation(len(WORDS))
    model.set_params(seeds=SEEDS).fit(X[:, order], feature_names=np.array(WORDS)[order])
    assert model.topic_names_.tolist() == [*SEEDS, "topic 3", "topic 4"]
    shares = model.components_[:, np.argsort(order)]
    shares = shares / shares.sum(axis=1, keepdims=True)
    distances = np.abs(shares[:3] - TOPICS[:, SEEDED].T).sum(axis=1) / 2
    assert distances.max() < 0.12  # other topics have distances of 0.5 and more


@pytest.mark.parametrize("model", [TopicModel(5), LDA(5), GammaPoisson(5)], ids=repr)
def test_topics_change_places_if_others_have_the_seeds(model, monkeypatch):
    """The likelihood would not move them: the start is the truth, with topics in other places."""
    wrong = np.roll(TOPICS[:, [*SEEDED, 1, 3]], 2, axis=1)
    internals.seeded_start(monkeypatch, wrong)
    model.set_params(seeds=SEEDS, seed_weight=1e-3, random_state=0).fit(X, **HOW)
    shares = model.components_ / model.components_.sum(axis=1, keepdims=True)
    distances = np.abs(shares[:3] - TOPICS[:, SEEDED].T).sum(axis=1) / 2
    assert distances.max() < 0.12
    L, F = np.array([[1.0, 2.0, 3.0]]), np.array([[0.0, 0.2, 0.8], [0.5, 0.3, 0.2]])
    L, F = in_places_of_seeds(L, F, np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]))
    assert L.tolist() == [[1.0, 3.0, 2.0]] and F[0].tolist() == [0.0, 0.8, 0.2]


@pytest.mark.filterwarnings(
    "ignore::nmfscale.errors.LeftSeedsWarning"
)  # from a start in other places
def test_the_prior_is_that_of_pseudo_counts():
    """Of a Poisson NMF, as given by `prior_factors`; other priors add to it."""
    pseudo, start = pseudo_counts(0.5), {"loadings": TRUTH.L + 0.1, "components": TRUTH.F.T + 0.1}
    rate = pseudo.any(axis=0).astype(float)
    seeded = PoissonNMF(5, seeds=SEEDS, seed_weight=0.5).fit(X, **HOW, **start)
    same = PoissonNMF(5, prior_factors=(1 + pseudo, rate)).fit(X, **HOW, **start)
    np.testing.assert_array_equal(seeded.components_, same.components_)
    L, F = seeded.poisson_factors()
    prior = logposterior_poisson(X, L, F, prior_factors=(1 + pseudo, rate))
    other = logposterior_poisson(X, L * 0.999, F / 0.999, prior_factors=(1 + pseudo, rate))
    assert other < prior
    both = PoissonNMF(5, seeds=SEEDS, prior_factors=1.5, max_iter=5, tol=0).fit(X, **HOW, **start)
    added = 1.5 + pseudo_counts(0.1)
    same = PoissonNMF(5, prior_factors=(added, 1.0), max_iter=5, tol=0).fit(X, **HOW, **start)
    np.testing.assert_array_equal(both.components_, same.components_)


@pytest.mark.parametrize("inference", ["mean-field", "collapsed"])
def test_the_prior_of_an_lda_is_that_of_an_array(inference):
    """Of words by name, in any order; for collapsed inference, too."""
    pd = pytest.importorskip("pandas")
    eta = pd.DataFrame(0.05 + pseudo_counts(0.1).T, columns=WORDS).iloc[:, ::-1]
    start = {"components": pseudo_counts(1).T + 1.0, **HOW}
    how = {"random_state": 0, "max_iter": 5, "tol": 0, "inference": inference}
    seeded = LDA(5, seeds=SEEDS, topic_word_prior=0.05, **how).fit(X, **start)
    same = LDA(5, topic_word_prior=eta, **how).fit(X, **start)
    np.testing.assert_allclose(seeded.components_, same.components_, rtol=1e-9)
    np.testing.assert_allclose(seeded.topic_word_prior_, eta[WORDS], rtol=1e-12)


def test_the_same_bits_from_a_file_and_after_a_stop(tmp_path):
    store = nmfscale.write_store(nmfscale.as_counts(X, **HOW), tmp_path / "x.nmf")
    for model in (TopicModel(5, random_state=0), LDA(5, random_state=0, inference="collapsed")):
        model.set_params(seeds=SEEDS, max_iter=6, tol=0)
        expected = model.fit(X, **HOW).components_
        np.testing.assert_array_equal(model.fit(store).components_, expected)
        folder = tmp_path / type(model).__name__
        model.set_params(callback=stop_at(3))
        with pytest.raises(StopError):
            model.fit(store, checkpoint=folder, checkpoint_every=0)
        model.set_params(callback=None).fit(store, checkpoint=folder, resume=True)
        np.testing.assert_array_equal(model.components_, expected)
        model.save(tmp_path / "model.h5")
        again = nmfscale.load(tmp_path / "model.h5")
        assert again.seeds == SEEDS and list(again.topic_names_)[:3] == list(SEEDS)


def test_batches_of_an_online_fit():
    model = LDA(5, random_state=0, seeds=SEEDS, total_samples=200)
    for first in (0, 100) * 4:
        model.partial_fit(X[first : first + 100], **HOW)
    shares = model.components_[:3] @ np.log(np.maximum(TOPICS, 1e-9))
    assert shares.argmax(axis=1).tolist() == list(SEEDED)


def test_reordered_and_merged_topics_keep_their_seeds():
    model = TopicModel(5, random_state=0, seeds=SEEDS, max_iter=3, tol=0).fit(X, **HOW)
    moved = model.reorder_topics([3, 2, 0, 1, 4])
    one, two, three = SEEDS
    assert moved.seeds == {"topic 3": [], three: SEEDS[three], one: SEEDS[one], two: SEEDS[two]}
    merged = model.merge_topics({"both": [one, two]})
    assert merged.seeds == {"both": SEEDS[one] + SEEDS[two], three: SEEDS[three]}


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"seeds": {"a": ["zzz"]}}, "X has none of 'zzz'"),
        ({"seeds": {"a": "w1"}}, r"seeds\['a'\] is 'w1': a list"),
        ({"seeds": {1: ["w1"]}}, "1 is no name of a topic"),
        ({"seeds": {"topic 3": ["w4"]}}, "name of a topic without seeds"),
        ({"seeds": {f"t{k}": [] for k in range(6)}}, "6 topics, and n_components=5"),
        ({"seeds": SEEDS, "seed_weight": 1e7}, "'seed_weight' parameter .* must be a float in"),
        ({"seeds": SEEDS, "n_moves": 2}, "n_moves=2 cannot"),
        ({"seeds": SEEDS, "solver": "joint-em"}, "solver='joint-em'"),
    ],
)
def test_seeds_that_are_refused(parameters, match):
    with pytest.raises(ValueError, match=match):
        TopicModel(5, **parameters).fit(X, **HOW)


def test_unknown_seeds_are_named_and_gene_sets_read(tmp_path, capsys):
    """By a warning, as files of gene sets have genes that counts lack; in the shell, too."""
    from nmfscale.cli import main

    (tmp_path / "sets.gmt").write_text("one\td\tw4\tzzz\ntwo\td\tw1\tw5\n")
    model = TopicModel(5, random_state=0, seeds=tmp_path / "sets.gmt", max_iter=2, tol=0)
    with pytest.warns(UserWarning, match="X lacks 1 of the 4 seeds, such as 'zzz'"):
        model.fit(X, **HOW)
    assert model.topic_names_[:2].tolist() == ["one", "two"]
    nmfscale.write_store(nmfscale.as_counts(X, **HOW), tmp_path / "x.nmf")
    words = ["-k", "5", "--seed", "0", "--max-iter", "2", "--tol", "0", "-q"]
    files = [str(tmp_path / name) for name in ("x.nmf", "sets.gmt", "m.h5")]
    assert main(["fit", files[0], *words, "--seeds", files[1], "-o", files[2]]) == 0
    loaded = nmfscale.load(files[2])
    np.testing.assert_array_equal(loaded.components_, model.components_)
    capsys.readouterr()
    assert main(["info", files[2]]) == 0
    shares = nmfscale.seed_shares(model).columns("topics")["share"]
    one, two = (f"{share:.0%} of their counts" for share in shares)
    assert f"seeds           weight 0.1; one 1 ({one}), two 1 ({two})" in capsys.readouterr().out
    (tmp_path / "sets.gmt").unlink()
    assert main(["info", files[2]]) == 0
    assert "sets.gmt, which does not exist any more" in capsys.readouterr().out


def test_shares_of_seeds_and_a_warning_if_a_topic_has_left_them(tmp_path):
    """By hand, in any order of the features, and from a file; the remedy helps."""
    words = {"kept": SEEDS["t4"], "left": [SEEDS["t0"][0], SEEDS["t2"][0]]}
    start = {"components": TOPICS[:, [4, 1, 0, 2, 3]].T + 1e-3, "loadings": np.ones((200, 5))}
    model = TopicModel(5, random_state=0, seeds=words, seed_weight=1e-4)
    with pytest.warns(
        UserWarning, match=r"1 of 2 topics explain less .* 'left' \d+% \('topic [23]'"
    ):
        model.fit(X, **HOW, **start)
    assert "seed_weight above 0.0001, such as to 1," in model.warnings_[0]
    found = nmfscale.seed_shares(model)
    L, F = model.poisson_factors()
    numbers = [WORDS.index(word) for of_topic in words.values() for word in of_topic]
    expected = (L.sum(axis=0) * F)[numbers]
    shares = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.shares, shares, atol=1e-6)  # sizes of samples are estimates
    table, topics = found.columns(), found.columns("topics")
    assert table["topic"].tolist() == ["kept"] * 3 + ["left"] * 2
    assert table["feature"].tolist() == sum(words.values(), [])
    np.testing.assert_array_equal(table["total"], OCCURRENCES[numbers])
    np.testing.assert_allclose(
        topics["share"], [shares[:3, 0].mean(), shares[3:, 1].mean()], atol=1e-6
    )
    assert topics["left"].tolist() == [False, True] and topics["n_seeds"].tolist() == [3, 2]
    assert set(table["largest"][3:]) == {"topic 2", "topic 3"}
    moved = model.reorder_topics([3, 2, 1, 4, 0])
    again = nmfscale.seed_shares(moved).columns()
    np.testing.assert_allclose(np.sort(again["share"]), np.sort(table["share"]), rtol=1e-12)
    model.save(tmp_path / "model.h5")
    assert repr(nmfscale.seed_shares(nmfscale.load(tmp_path / "model.h5"))) == repr(found)
    with pytest.warns(UserWarning, match="less than half"):
        model.fit(X, **HOW, **start)
    model.set_params(seed_weight=1).fit(X, **HOW, **start)
    assert (
        not len(model.warnings_) and not nmfscale.seed_shares(model).columns("topics")["left"].any()
    )
    with pytest.raises(ValueError, match="without seeds"):
        nmfscale.seed_shares(TopicModel(2, random_state=0).fit(X))


@pytest.mark.parametrize(
    "model",
    [PoissonNMF(5), LDA(5), LDA(5, inference="collapsed"), GammaPoisson(5, hierarchical=True)],
    ids=repr,
)
def test_shares_of_seeds_of_other_models(model):
    """Of seeds that occur in one topic only, shares are near one; and after batches."""
    shares = TOPICS / TOPICS.sum(axis=1, keepdims=True)
    words = {
        f"t{k}": [WORDS[j] for j in np.flatnonzero((shares[:, k] > 0.95) & (OCCURRENCES > 20))[:3]]
        for k in SEEDED
    }
    assert all(words.values())
    model.set_params(random_state=0, seeds=words).fit(X, **HOW)
    assert nmfscale.seed_shares(model).columns()["share"].min() > 0.8
    if getattr(model, "inference", "") != "collapsed" and hasattr(model, "partial_fit"):
        model.partial_fit(X, **HOW)
        found = nmfscale.seed_shares(model)
        assert found.columns()["share"].min() > 0.8 and np.isnan(found.columns()["total"]).all()


def test_annotated_data_keep_the_shares_of_seeds(tmp_path):
    """In the object and in its file; with new names of topics, too."""
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(X.toarray().astype(np.float32))
    adata.var_names = WORDS
    nmfscale.tl.topics(adata, 5, seeds=SEEDS, random_state=0)
    model = TopicModel(5, seeds=SEEDS, random_state=0).fit(X, **HOW)
    shares = nmfscale.seed_shares(model)
    kept = nmfscale.get.result(adata, "seed_shares")
    np.testing.assert_array_equal(kept.shares, shares.shares)
    nmfscale.tl.rename_topics(adata, {"t4": "cooking"})
    adata.write_h5ad(tmp_path / "x.h5ad")
    read = nmfscale.get.result(anndata.read_h5ad(tmp_path / "x.h5ad"), "seed_shares")
    assert read.columns()["topic"][:4].tolist() == ["cooking"] * 3 + ["t0"]
    assert read.topic_numbers.tolist() == shares.topic_numbers.tolist()
    nmfscale.tl.topics(adata, 5, random_state=0)
    with pytest.raises(ValueError, match="seed_shares"):
        nmfscale.get.result(adata, "seed_shares")


def test_fits_of_replicates_do_not_repeat_the_warning():
    """That of the fit says it once."""
    words = {"left": [SEEDS["t0"][0], SEEDS["t2"][0], SEEDS["t4"][0]]}
    model = TopicModel(5, random_state=0, seeds=words)
    counts = nmfscale.as_counts(X, **HOW)
    with pytest.warns(LeftSeedsWarning, match="'left'"):
        model.fit(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftSeedsWarning)
        nmfscale.bootstrap_fit(model, counts, n_replicates=2, random_state=0)
