"""Names of topics from a function: what it gets, what its answers become, what errors lose."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

import nmfscale

TEXTS = [
    "cat dog cat",
    "dog cat",
    "gene cell gene gene",
    "cell gene",
    "beer foam",
    "foam beer beer",
]


@pytest.fixture(scope="module")
def pipeline():
    return make_pipeline(CountVectorizer(), nmfscale.TopicModel(3, random_state=0)).fit(TEXTS)


def test_words_and_texts_become_names(pipeline, tmp_path):
    asked = []

    def first_word(topic):
        asked.append(topic)
        return f" {topic.words[0]}\n"

    model = nmfscale.label_topics(pipeline, first_word, TEXTS, n_top=2, n_samples=2)
    for k, topic in enumerate(asked):
        assert (topic.number, topic.name) == (k, f"topic {k}")
        assert all(set(text.split()) == set(topic.words) for text in topic.texts)
        np.testing.assert_allclose(topic.proportions, 1, atol=1e-3)
        assert len(topic.texts[0]) >= len(topic.texts[1])
        assert [TEXTS[i] for i in topic.samples] == list(topic.texts)
        assert str(topic).splitlines()[1] == f"Text (100% of this topic): {topic.texts[0]}"
    assert model.topic_names_.tolist() == [topic.words[0] for topic in asked]
    model.save(tmp_path / "named.h5")
    assert nmfscale.load(tmp_path / "named.h5").topic_names_.tolist() == model.topic_names_.tolist()
    assert not hasattr(pipeline[-1], "topic_names_")
    # one topic, by its name, without samples
    once = nmfscale.label_topics(model, lambda topic: "new", topics=model.topic_names_[1])
    assert once.topic_names_.tolist() == [model.topic_names_[0], "new", model.topic_names_[2]]
    online = nmfscale.LDA(2, random_state=0).partial_fit(nmfscale.text_counts(TEXTS))
    assert nmfscale.label_topics(online, lambda t: f"{t.number}{t.texts}").topic_names_[0] == "0()"


def test_other_answers_are_kept_if_the_function_fails(pipeline):
    def fails(topic):
        if topic.number == 1:
            raise ConnectionError("no network")
        return {0: "pets", 2: 7}[topic.number]

    told = r"2 topics have no answer .*: topic 1 \(ConnectionError: no network\); topic 2 \(the an"
    with pytest.warns(UserWarning, match=rf"{told}swer is 7, no name\). Ask again .*\[1, 2\]"):
        model = nmfscale.label_topics(pipeline, fails)
    assert model.topic_names_.tolist() == ["pets", "topic 1", "topic 2"]
    with pytest.raises(RuntimeError, match="failed for all topics; for topic 0: division by zero"):
        nmfscale.label_topics(pipeline, lambda topic: 1 / 0)

    def interrupted(topic):
        if topic.number:
            raise KeyboardInterrupt
        return "pets"

    with pytest.warns(UserWarning, match="interrupted at topic 1"):
        assert nmfscale.label_topics(pipeline, interrupted).topic_names_[0] == "pets"
    with pytest.raises(TypeError, match="function is 'name'"):
        nmfscale.label_topics(pipeline, "name")


def test_names_are_distinct(pipeline):
    with pytest.warns(UserWarning, match="several topics would be 'animals'"):
        model = nmfscale.label_topics(pipeline, lambda topic: "animals")
    assert model.topic_names_.tolist() == ["animals", "animals (2)", "animals (3)"]
    kept = nmfscale.label_topics(model, lambda topic: None)
    assert kept.topic_names_.tolist() == model.topic_names_.tolist()


def test_names_in_an_object():
    anndata = pytest.importorskip("anndata")
    X, _ = nmfscale.datasets.simulate_topic_counts(30, 20, 2, random_state=0)
    adata = anndata.AnnData(X.toarray().astype(float))
    adata.obs["note"] = [f"note {i}" for i in range(30)]
    nmfscale.tl.topics(adata, 2, random_state=0, integer="allow")
    nmfscale.tl.label_topics(adata, lambda topic: topic.texts[0], texts="note")
    first = nmfscale.find_samples(nmfscale.get.model(adata), n_top=1)
    names = [f"note {samples[0]}" for samples in first.samples]
    assert nmfscale.get.topics_df(adata).columns.tolist() == names
