"""Coherence of lists of words: a slow oracle with gensim's formulas, and numbers of gensim."""

from itertools import combinations

import internals
import numpy as np
import pytest
from shell import run
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

import nmfscale
from nmfscale import coherence

RNG = np.random.default_rng(0)
WORDS = np.array("a b c d e f g h".split())
# Texts of several lengths with repeated words; one is empty, one has no word of the lists.
TEXTS = [RNG.choice(WORDS, n).tolist() for n in (9, 4, 30, 1, 17, 6, 25)] + [[], ["z", "y"]]
LISTS = {"one": ["a", "b", "c"], "two": ["d", "a", "e", "h"], "three": ["f"]}


def windows_of(words, size, as_gensim):
    """Return the set of words in each window; gensim's sets lose a word with its first place."""
    windows = [words[t : t + size] for t in range(max(len(words) - size + 1, 1))]
    sets = [set(window) for window in windows]
    for t in range(1, len(sets) if as_gensim else 0):
        sets[t] = sets[t - 1] - {windows[t - 1][0]} | {windows[t][-1]}
    return sets


def oracle(measure, words, windows):
    def p(*some):
        return np.mean([window.issuperset(some) for window in windows])

    def npmi(i, j):
        return np.log((p(i, j) + 1e-12) / (p(i) * p(j))) / -np.log(p(i, j) + 1e-12)

    if measure == "c_v":
        vectors = np.array([[npmi(i, j) for j in words] for i in words])
        total = vectors.sum(axis=0)
        cosines = vectors @ total / np.linalg.norm(vectors, axis=1) / np.linalg.norm(total)
        return cosines.mean(), cosines
    pair = {
        "c_npmi": npmi, "c_uci": lambda i, j: np.log((p(i, j) + 1e-12) / (p(i) * p(j))),
        "u_mass": lambda i, j: np.log((p(i, j) + 1e-12) / p(i)),
    }[measure]  # fmt: skip
    values = {(i, j): pair(i, j) for i, j in combinations(words, 2)}
    of_words = [
        np.mean([value for ij, value in values.items() if word in ij] or [0]) for word in words
    ]
    return np.mean([*values.values()] or [0]), of_words


@pytest.mark.parametrize("windows", ["exact", "gensim"])
@pytest.mark.parametrize("measure", ["c_v", "c_npmi", "c_uci", "u_mass"])
def test_windows_of_texts(measure, windows, monkeypatch):
    internals.few_windows(monkeypatch, 5)
    found = coherence(LISTS, texts=TEXTS, measure=measure, window_size=8, windows=windows)
    sets = [one for text in TEXTS for one in windows_of(text, 8, windows == "gensim")]
    assert found.n_windows == len(sets)
    for k, words in enumerate(LISTS.values()):
        expected, of_words = oracle(measure, words, sets)
        assert found.coherence[k] == pytest.approx(expected, rel=1e-9)
        np.testing.assert_allclose(found.of_words[k], of_words, rtol=1e-9)
    assert found.to_frame("words").groupby("topic", sort=False).size().tolist() == [3, 4, 1]


def test_numbers_of_gensim():
    """CoherenceModel(texts=, coherence="c_v", processes=1) of gensim 4.4.0, window_size 110."""
    texts = [
        RANDOM.choice(WORDS, n, p=P).tolist() for n, P in zip(LENGTHS, FREQUENCIES, strict=True)
    ]
    found = coherence([*LISTS.values()][:2], texts=texts, windows="gensim")
    np.testing.assert_allclose(found.coherence, OF_GENSIM, rtol=1e-12)
    assert not np.allclose(found.coherence, coherence(LISTS, texts=texts).coherence[:2], rtol=1e-3)


RANDOM = np.random.default_rng(1)
LENGTHS = RANDOM.integers(20, 400, 12)
FREQUENCIES = RANDOM.dirichlet(np.full(8, 0.2), 12)
OF_GENSIM = [0.511343546824597, 0.3887519785938719]


def test_counts_are_windows_of_whole_samples(tmp_path, monkeypatch):
    counts = nmfscale.text_counts(TEXTS, vectorizer=CountVectorizer(token_pattern=r"\w"))
    for measure in ("c_v", "u_mass"):
        expected = coherence(LISTS, texts=TEXTS, measure=measure, window_size=99)
        found = coherence(LISTS, counts, measure=measure)
        np.testing.assert_allclose(found.coherence, expected.coherence, rtol=1e-12)
    stored = nmfscale.write_store(counts, tmp_path / "counts.nmf")
    internals.small_ranges(monkeypatch, 4)
    assert (coherence(LISTS, stored).coherence == coherence(LISTS, counts).coherence).all()
    npmi = nmfscale.topic_quality(
        nmfscale.TopicModel(2, random_state=0).fit(counts), counts, n_top=4
    )
    lists = [counts.feature_names[top].tolist() for top in npmi.top_features]
    assert (coherence(lists, counts, measure="c_npmi").coherence == npmi.npmi).all()


def test_models_and_their_vectorizers(tmp_path):
    texts = ["The Cat and the dog", "a dog, a cat", "Gene of a cell", "cell and gene"] * 3
    pipeline = make_pipeline(
        CountVectorizer(stop_words="english"), nmfscale.TopicModel(2, random_state=0)
    ).fit(texts)
    found = coherence(pipeline, texts=texts, n_top=2, measure="c_npmi")
    np.testing.assert_allclose(found.coherence, 1, atol=1e-9)
    assert set(found.words) == {
        ("cat", "dog"),
        ("dog", "cat"),
        ("gene", "cell"),
        ("cell", "gene"),
    } & set(found.words)
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    named = nmfscale.get.model(pipeline).rename_topics(["pets", "cells"])
    of_file = coherence(
        named,
        texts=path,
        n_top=2,
        measure="c_npmi",
        vectorizer=CountVectorizer(stop_words="english"),
    )
    assert of_file.topic_names == ("pets", "cells")
    assert (of_file.coherence == found.coherence).all()
    of_file.save(tmp_path / "coherence.h5")
    assert repr(nmfscale.load_result(tmp_path / "coherence.h5")) == repr(of_file)


def test_words_that_do_not_occur_contribute_0():
    with pytest.warns(UserWarning, match="1 words of topics are not in texts, such as 'zebra'"):
        found = coherence([["a", "b", "zebra"]], texts=TEXTS, measure="c_npmi")
    alone = coherence([["a", "b"]], texts=TEXTS, measure="c_npmi")
    assert found.coherence[0] == pytest.approx(alone.coherence[0] / 3)
    assert found.of_words[0][2] == 0
    counts = nmfscale.text_counts(TEXTS, vectorizer=CountVectorizer(token_pattern=r"\w"))
    with pytest.warns(UserWarning, match="not in X"):
        assert coherence([["a", "zebra"]], counts).of_words[0].tolist() == [1 / np.sqrt(1), 0]


def test_shell(tmp_path, capsys):
    lists, texts = tmp_path / "lists.txt", tmp_path / "texts.txt"
    lists.write_text("one: a b c\n\ntwo: d a e h\n", encoding="utf-8")
    texts.write_text("\n".join(map(" ".join, TEXTS)), encoding="utf-8")
    out = tmp_path / "coherence.csv"
    words = [lists, "--texts", texts, "--token-pattern", r"\w", "--window-size", 8, "-o", out]
    assert run("coherence", *words, "--measure", "c_npmi", "-q") == 0
    expected = coherence(LISTS, texts=TEXTS, measure="c_npmi", window_size=8)
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == ["one", f"{expected.coherence[0]:.3f}", "a", "b", "c"]
    assert out.read_text().splitlines()[2].startswith(f"two,{expected.coherence[1]}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": LISTS}, "pass either texts=, or counts as X"),
        ({"topics": ["a"], "texts": TEXTS}, "topic 0 is 'a': a list of words is needed"),
        ({"topics": [["a", "a"]], "texts": TEXTS}, "topic 0 has 'a' twice"),
        ({"topics": [["q"]], "texts": TEXTS}, "none of the words of topics, such as 'q'"),
        ({"topics": [[]], "texts": TEXTS}, "topic 0 has no words"),
        ({"topics": LISTS, "texts": []}, "has no texts"),
        ({"topics": LISTS, "X": [[1, 2]]}, "X has no names of features"),
        ({"topics": LISTS, "X": [[1, 2]], "window_size": 3}, "window_size and windows are for"),
        ({"topics": LISTS, "texts": TEXTS, "measure": "npmi"}, "measure='npmi' is not one of"),
        (
            {"topics": LISTS, "texts": TEXTS, "vectorizer": CountVectorizer(analyzer="char")},
            "windows are of words",
        ),
    ],
)
def test_wrong_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        coherence(**arguments)
