"""Similar samples and search by words: all distances at once, SciPy's numbers, known truths."""

import internals
import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from shell import run
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

import nmfscale
from nmfscale import nearest_samples, search_samples

RNG = np.random.default_rng(0)
P = RNG.dirichlet([0.5, 0.5, 0.5], 40)
P[7] = 0  # a sample without topics
P[20] = P[3]
TEXTS = ["cat dog cat", "dog cat", "gene cell gene", "cell gene cell gene", "beer foam"]


def hellinger(p, q):
    return np.sqrt(1 - min(np.sqrt(p * q).sum(), 1))


@pytest.mark.parametrize(
    ("metric", "distance"), [("hellinger", hellinger), ("jensen-shannon", jensenshannon)]
)
def test_nearest_of_all_distances(metric, distance, monkeypatch):
    internals.small_blocks_of_samples(monkeypatch, 6, 2)
    asked = [3, 0, 31]
    found = nearest_samples(P, samples=asked, n_neighbors=5, metric=metric)
    others = np.delete(np.arange(40), 7)
    for query, near, distances in zip(asked, found.samples, found.values, strict=True):
        exact = {i: distance(P[query], P[i]) for i in others if i != query}
        assert near.tolist() == sorted(exact, key=exact.get)[:5]
        np.testing.assert_allclose(distances, [exact[i] for i in near], atol=2e-8)
    assert found.samples[0][0] == 20
    everything = nearest_samples(P, samples=0, n_neighbors=99)
    assert len(everything.samples[0]) == 38
    with pytest.raises(ValueError, match="samples: 7 has no counts"):
        nearest_samples(P, samples=[0, 7])


@pytest.fixture(scope="module")
def pipeline():
    return make_pipeline(CountVectorizer(), nmfscale.TopicModel(3, random_state=0)).fit(TEXTS)


def test_new_samples_and_texts(pipeline, tmp_path):
    with pytest.warns(UserWarning, match="1 of 3 samples have no counts"):
        found = nearest_samples(
            pipeline, ["gene", "unknown", "foam beer"], n_neighbors=2, texts=TEXTS
        )
    table = found.to_frame()
    assert table["query"].tolist() == [0, 0, 2, 2]
    assert set(table["text"][:2]) == set(TEXTS[2:4])
    assert table["text"][2] == "beer foam"
    np.testing.assert_allclose(table["distance"][:3], 0, atol=1e-6)
    found.save(tmp_path / "near.h5")
    assert repr(nmfscale.load_result(tmp_path / "near.h5")) == repr(found)


def test_search_by_words(pipeline):
    found = search_samples(pipeline, "cell", texts=TEXTS, n_top=5)
    assert found.samples[0][:2].tolist() == [3, 2]  # the longer one first
    model = nmfscale.get.model(pipeline)
    shares = model.loadings_ @ model.components_
    j = model.feature_names_in_.tolist().index("cell")
    overall = (model.sample_totals_ @ shares)[j] / model.sample_totals_.sum()
    expected = np.log2(0.99 * shares[found.samples[0], j] / overall + 0.01)
    np.testing.assert_allclose(found.values[0], expected, rtol=1e-9)
    both = search_samples(pipeline, ["cell", "foam"])
    foam, cell = (search_samples(pipeline, word) for word in ("foam", "cell"))
    of_3 = [one.values[0][one.samples[0].tolist().index(3)] for one in (foam, cell)]
    assert both.values[0][both.samples[0].tolist().index(3)] == pytest.approx(np.mean(of_3))
    with pytest.warns(UserWarning, match="left out of the search: 'zebra'"):
        assert search_samples(pipeline, "cell zebra").samples[0][0] == 3


def test_simulated_neighbours_have_the_true_topics():
    X, truth = nmfscale.datasets.simulate_topic_counts(150, 60, 3, random_state=0)
    model = nmfscale.TopicModel(3, random_state=0).fit(X)
    shares = truth.L / truth.L.sum(axis=1, keepdims=True)
    found = nearest_samples(model, samples=range(150), n_neighbors=3)
    near = np.mean([hellinger(shares[i], shares[j]) for i in range(150) for j in found.samples[i]])
    any_two = np.mean([hellinger(shares[i], shares[j]) for i in range(150) for j in range(i)])
    assert near < 0.25 * any_two


def test_shell(pipeline, tmp_path, capsys):
    path, out = tmp_path / "model.h5", tmp_path / "out.csv"
    counts = nmfscale.text_counts(
        TEXTS, names=[f"text {i}" for i in range(5)], vectorizer=CountVectorizer()
    )
    nmfscale.TopicModel(3, random_state=0).fit(counts).save(path)
    assert run("search", path, "cell", "gene", "--n-top", 1) == 0
    assert capsys.readouterr().out.split()[:2] == ["cell", "gene"]
    assert run("nearest", path, "text 2", 4, "--n-neighbors", 1, "-o", out) == 0
    assert out.read_text().splitlines()[1].startswith("text 2,0,text 3,")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda model: nearest_samples(model), "pass either samples of the fit"),
        (lambda model: nearest_samples(model, samples=5), "no sample 5; .* from 0 to 4"),
        (lambda model: nearest_samples(model, samples="a"), "there is no sample 'a'"),
        (lambda model: nearest_samples(model, samples=[]), "samples is empty"),
        (lambda model: nearest_samples(P, [[1, 2]]), "model is no fitted model"),
        (lambda model: nearest_samples(model, samples=0, metric="l1"), "metric='l1' is not one of"),
        (lambda model: search_samples(model, "zebra"), "none of the words, such as 'zebra'"),
        (lambda model: search_samples(P, "cat"), "a fitted model of counts is needed"),
        (
            lambda model: search_samples(nmfscale.LDA(2).partial_fit(TABLE), "cat"),
            "has no samples, as after partial_fit",
        ),
    ],
)
def test_wrong_input(pipeline, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(pipeline)


TABLE = nmfscale.text_counts(TEXTS, vectorizer=CountVectorizer())
