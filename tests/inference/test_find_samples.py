"""Leading samples of topics with their texts, and the arguments of pyLDAvis."""

import importlib.util

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

import nmfscale

TEXTS = ["cat", "cat cat dog", "", "gene cell", "gene", "cat dog gene cell cell"] * 3
TEXTS[-1] = "gene gene cell cell and a very long  text\nof genes " + "cell " * 100
NAMES = [f"text {i}" for i in range(len(TEXTS))]


@pytest.fixture(scope="module")
def pipeline():
    return make_pipeline(CountVectorizer(), nmfscale.TopicModel(2, random_state=0)).fit(TEXTS)


def test_leading_samples_equal_those_of_a_slow_search(pipeline):
    model = nmfscale.get.model(pipeline)
    counts = pipeline[0].transform(TEXTS).toarray()
    sizes, shares = counts.sum(axis=1), model.loadings_
    found = nmfscale.find_samples(pipeline, TEXTS, n_top=4)
    for topic in range(2):
        order = sorted(range(len(TEXTS)), key=lambda i: (-round(shares[i, topic], 3), -sizes[i]))
        order = [i for i in order if sizes[i] and shares[i, topic] > 0][:4]
        assert sizes[found.samples[topic]].tolist() == sizes[order].tolist()
        np.testing.assert_allclose(found.proportions[topic], shares[order, topic])
    table = found.to_frame()
    assert table.columns.tolist() == ["topic", "rank", "sample", "proportion", "total", "text"]
    assert table["text"].tolist() == [TEXTS[i] for i in table["sample"]]
    assert [line[:200] for line in repr(found).splitlines()][0] == "topic 0"
    assert "…" in repr(found) and "\nof genes" not in repr(found)


def test_the_same_samples_from_any_argument(pipeline):
    model = nmfscale.get.model(pipeline)
    expected = nmfscale.find_samples(pipeline, TEXTS).to_frame()
    counts = nmfscale.text_counts(TEXTS, vectorizer=pipeline[0])
    named = nmfscale.as_counts(counts, sample_names=NAMES)
    again = nmfscale.TopicModel(2, random_state=0).fit(named)
    texts = pd.Series(TEXTS, index=NAMES)[::-1]
    for found in (
        nmfscale.find_samples(pipeline, texts=TEXTS),
        nmfscale.find_samples(model, counts, texts=TEXTS),
        nmfscale.find_samples(again, texts=texts),
        nmfscale.find_samples(again, named, texts=dict(texts)),
    ):
        table = found.to_frame()
        assert table["text"].tolist() == expected["text"].tolist()
        assert table["total"].tolist() == expected["total"].tolist()
    assert table["sample"].tolist() == [NAMES[i] for i in expected["sample"]]


def test_new_samples_arrays_and_chosen_topics(pipeline):
    new = ["cell", "cell cell cell", "dog"]
    found = nmfscale.find_samples(pipeline, new, topics=1, n_top=1)
    assert found.topic_names == (1,)
    topic_of_cells = int(pipeline.transform(["cell"])[0].argmax())
    chosen = nmfscale.find_samples(pipeline, new, topics=[topic_of_cells], n_top=9)
    assert chosen.samples[0].tolist()[:2] == [1, 0]
    loadings = [[1, 0], [1, 0], [0, 0], [0.2, 0.8]]
    by_length = nmfscale.find_samples(loadings, texts=["a", "a longer one", "", "b"])
    assert [each.tolist() for each in by_length.samples] == [[1, 0, 3], [3]]
    named = nmfscale.get.model(pipeline).rename_topics(["one", "two"])
    assert nmfscale.find_samples(named, topics="two").topic_names == ("two",)
    assert nmfscale.find_samples(named).texts is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topics": 2}, "2 is not a topic"), ({"topics": ["cats"]}, "'cats' is not a topic"),
        ({"n_top": 0}, "n_top"), ({"texts": TEXTS[:3]}, "there are 3 texts for 18 samples"),
        ({"texts": "one text"}, "a text for each sample"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(pipeline, options, error):
    with pytest.raises(ValueError, match=error):
        nmfscale.find_samples(pipeline, TEXTS, **options)
    with pytest.raises(ValueError, match="X is not needed for loadings"):
        nmfscale.find_samples([[1, 0]], [[1, 2]])


def checked_as_pyldavis_does(arguments):
    """Return what pyLDAvis 3.4.1 complains about (pyLDAvis._prepare._input_check)."""
    topics, documents = arguments["topic_term_dists"], arguments["doc_topic_dists"]
    sizes = len(arguments["vocab"]), len(arguments["term_frequency"])
    return {
        "topics": topics.shape[0] == documents.shape[1], "words": sizes == (topics.shape[1],) * 2,
        "documents": len(arguments["doc_lengths"]) == len(documents),
        "sums": np.allclose(topics.sum(axis=1), 1) and np.allclose(documents.sum(axis=1), 1),
        "positive": min(arguments["term_frequency"]) > 0 and min(arguments["doc_lengths"]) > 0,
    }  # fmt: skip


def test_pyldavis_needs_two_topics():
    model = nmfscale.TopicModel(1, random_state=0).fit([[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="a single topic, and pyLDAvis draws distances"):
        nmfscale.experimental.to_pyldavis(model)


def test_arguments_of_pyldavis(pipeline):
    X, _ = nmfscale.datasets.simulate_topic_counts(60, 30, 3, random_state=0)
    X = X.tolil()
    X[5], X[:, 7] = 0, 0
    X = X.tocsr()
    found = []
    for model in (nmfscale.TopicModel(3, random_state=0), nmfscale.LDA(3, random_state=0)):
        found += [
            nmfscale.experimental.to_pyldavis(model.fit(X)),
            nmfscale.experimental.to_pyldavis(model, X[:20]),
        ]
    found += [
        nmfscale.experimental.to_pyldavis(pipeline),
        nmfscale.experimental.to_pyldavis(pipeline, TEXTS),
    ]
    for arguments in found:
        assert all(checked_as_pyldavis_does(arguments).values())
        if importlib.util.find_spec("pyLDAvis"):
            import pyLDAvis

            assert pyLDAvis.prepare(**arguments).topic_order
    assert found[0]["doc_topic_dists"].shape == (59, 3) and "feature 7" not in found[0]["vocab"]
    assert found[-1]["vocab"] == pipeline[0].get_feature_names_out().tolist()
    assert found[-1]["doc_lengths"].tolist() == found[-2]["doc_lengths"].tolist()
