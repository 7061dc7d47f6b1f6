"""Corpora and dictionaries of gensim, which is not imported, and lists of words."""

import numpy as np
import pytest
import scipy.sparse as sp

import nmfscale

CORPUS = [[(0, 2), (3, 1)], [], [(2, 4), (1, 1)], [(1, 3)]]
COUNTS = [[2, 0, 0, 1, 0], [0] * 5, [0, 1, 4, 0, 0], [0, 3, 0, 0, 0]]
WORDS = ["cat", "dog", "cell", "gene", "rare"]


class Dictionary:
    """What this package uses of gensim's Dictionary."""

    def __init__(self, words):
        self.token2id = {word: number for number, word in reversed(list(enumerate(words)))}

    def doc2bow(self, words):
        raise NotImplementedError

    def __len__(self):
        return len(self.token2id)


class MmCorpus:
    """A corpus of gensim that is read from a file whenever it is iterated over."""

    __module__ = "gensim.corpora.mmcorpus"

    def __iter__(self):
        return iter([list(map(list, document)) for document in CORPUS])


@pytest.mark.parametrize(
    "corpus", [CORPUS, MmCorpus(), tuple(CORPUS)], ids=["list", "file", "tuple"]
)
def test_corpus_and_dictionary(corpus):
    counts = nmfscale.as_counts(corpus, feature_names=Dictionary(WORDS))
    np.testing.assert_array_equal(counts.take_rows().toarray(), COUNTS)
    assert counts.dtype.kind == "i" and counts.of_text
    assert counts.feature_names.tolist() == WORDS
    plain = nmfscale.as_counts(corpus)
    assert plain.shape == (4, 4) and plain.feature_names is None
    model = nmfscale.TopicModel(2, random_state=0).fit(corpus, feature_names=WORDS)
    assert model.feature_names_in_.tolist() == WORDS
    turned = [[(3 - number, count) for number, count in each] for each in CORPUS]
    with pytest.warns(UserWarning, match="X lacks 1 of the 5 .* taken as 0.*another order"):
        found = model.transform(turned, feature_names=WORDS[3::-1])
    np.testing.assert_array_equal(found, model.transform(corpus, feature_names=Dictionary(WORDS)))


def test_weights_of_a_corpus_are_fractions():
    corpus = [[(0, 0.5)], [(1, 1)]]
    assert nmfscale.as_counts(corpus, integer="allow").take_rows()[0, 0] == 0.5


def test_a_matrix_of_words_by_documents_is_refused():
    csc = sp.csc_matrix(COUNTS).T
    with pytest.raises(
        ValueError, match="5 entries, and X .* 5 rows and 4 columns: pass its trans"
    ):
        nmfscale.TopicModel(2).fit(csc, feature_names=Dictionary(WORDS))


@pytest.mark.parametrize(
    ("corpus", "names", "error"),
    [
        (CORPUS, WORDS[:3], "word number 3, and feature_names has 3 words"),
        ([[(-1, 2)]], None, "word number -1"),
        ([[(0, 2)], [(1, 1), (1, 2, 3)]], None, "document 1 is .*: pairs"),
        ([[(0, 2)], [(1, 1), "word"]], None, "document 1 is .*'word'.*: pairs"),
        ([[(0, -2)]], None, "Negative values"),
        ([["a", "b"], ["c", "d"]], None, r"rows of words.*text_counts\(\[' '.join\(words\)"),
        ([["a", "b"], []], None, r"rows of words.*dictionary\.doc2bow"),
        (Dictionary(WORDS), None, "Pass the corpus, with feature_names=dictionary"),
        (CORPUS, {"token2id": 3}, "feature_names"),
    ],
)  # fmt: skip
def test_wrong_corpora_are_refused(corpus, names, error):
    if isinstance(corpus, Dictionary):
        corpus = type("Dictionary", (Dictionary,), {"__module__": "gensim.corpora"})(WORDS)
    with pytest.raises(ValueError, match=error):
        nmfscale.as_counts(corpus, feature_names=names)


def test_a_dictionary_with_gaps_is_refused():
    dictionary = Dictionary(WORDS)
    del dictionary.token2id["dog"]
    with pytest.raises(ValueError, match=r"4 words, and numbers up to 4: call its compactify\(\)"):
        nmfscale.as_counts(CORPUS, feature_names=dictionary)
