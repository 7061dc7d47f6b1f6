"""The built-in corpus of docstrings."""

import re
import sys

import numpy as np
import pytest

from nmfscale.datasets import corpora
from nmfscale.datasets.corpora import docstrings


@pytest.fixture(scope="module")
def corpus():
    return docstrings()


@pytest.mark.nightly
def test_there_are_thousands_of_documents_of_five_packages(corpus):
    names, sizes = np.unique(corpus.groups, return_counts=True)
    assert set(names) == {"stdlib", "numpy", "scipy", "dask", "sklearn"}
    assert sizes.min() > 200
    assert corpus.shape[0] > 4000 and corpus.shape[1] > 4000
    assert corpus.is_integer and corpus.dtype == np.int32
    assert corpus.n_empty_rows == corpus.n_empty_columns == 0


@pytest.mark.nightly
def test_words_are_words(corpus):
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    words = corpus.feature_names.tolist()
    assert words == sorted(set(words))
    assert all(re.fullmatch("[a-z]{3,}", word) for word in words)
    assert not ENGLISH_STOP_WORDS & set(words)
    assert {"matrix", "thread", "regression", "chunks", "socket"} <= set(words)
    assert corpus.column_nnz.min() >= 5


@pytest.mark.nightly
def test_documents_are_the_public_ones(corpus):
    names = corpus.sample_names.tolist()
    assert len(set(names)) == len(names)
    assert {"json", "random.Random", "scipy.sparse._csr.csr_array", "dask.delayed.delayed"} <= {
        *names
    }
    last = [name.rpartition(".")[2] for name in names]
    assert not [name for name in names if ".tests." in name or ".externals." in name]
    of_stdlib = np.asarray(names)[corpus.groups == "stdlib"]
    assert {name.partition(".")[0] for name in of_stdlib} <= sys.stdlib_module_names
    assert {"NMF", "dot", "svd", "mkdtemp"} <= set(last)
    assert not [word for word in last if word.startswith("_")]


@pytest.mark.nightly
def test_the_same_again(corpus):
    corpora._documents.cache_clear()
    again = docstrings()
    for part in ("indptr", "indices", "data", "feature_names", "sample_names", "groups"):
        np.testing.assert_array_equal(getattr(again, part), getattr(corpus, part))


def test_counts_are_those_of_the_text():
    counts = docstrings(["numpy"])
    row = [name.endswith("linalg.eigvals") for name in counts.sample_names].index(True)
    part = slice(counts.indptr[row], counts.indptr[row + 1])
    found = dict(zip(counts.feature_names[counts.indices[part]], counts.data[part], strict=True))
    text = corpora._MARKUP.sub(" ", np.linalg.eigvals.__doc__).lower()
    for word in ("eigenvalues", "matrix", "general"):
        assert found[word] == len(re.findall(rf"(?<![a-z]){word}(?![a-z])", text)) > 0


def test_choices():
    few = docstrings(["dask"], min_count=50, min_words=100)
    assert few.column_nnz.min() >= 50
    assert few.shape[0] < docstrings(["dask"]).shape[0]
    with pytest.raises(ValueError, match="lower min_words or min_count"):
        docstrings(["dask"], min_count=10**6)


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        ("no_such_package", "no_such_package is not installed: left out"),
        ("no_such_package.part", "no_such_package.part is not installed: left out"),
        ("sys", "no source files of sys were found: left out"),
    ],
)
def test_what_is_not_there_is_left_out(package, reason):
    for _ in range(2):
        with pytest.warns(UserWarning, match=reason):
            counts = docstrings(["dask", package])
        assert set(counts.groups) == {"dask"}
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="name more packages"):
        docstrings([package])


def test_a_module_of_a_single_file():
    counts = docstrings("threadpoolctl", min_count=1)  # a name is no list of letters
    assert {"threadpoolctl", "threadpoolctl.threadpool_limits"} <= set(counts.sample_names)
    assert set(counts.groups) == {"threadpoolctl"}


@pytest.fixture
def package(tmp_path):
    """Write a small package in which every kind of text occurs once."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("__init__.py", '"""Top alpha."""\n')
    write("broken.py", '"""Text."""\ndef (:\n')
    write("plain.py", "x = 1\n")
    write("inner/__init__.py", "")
    write(
        "inner/_private.py",
        '"""No."""\ndef _hidden():\n    """No."""\nasync def f():\n    """F\\d."""\n',
    )
    write(
        "inner/new.py",
        'add_newdoc("a.b", "g", """G.""")\nadd_newdoc("h", """H.""")\n'
        'add_newdoc("a.b", "g", ("method", """No."""))\nadd_newdoc("_p", """No.""")\n'
        'class C:\n    """C."""\n    def method(self):\n        """No."""\n',
    )
    write("tests/__init__.py", '"""No."""')
    write("conftest.py", '"""No."""')
    write("no_package/module.py", '"""No."""')
    return tmp_path


def test_every_public_text_of_a_package_is_found(package):
    found = {}
    for path in corpora._source_files(package):
        parts = path.relative_to(package).with_suffix("").parts
        module = ".".join(["top", *parts]).removesuffix(".__init__")
        with corpora._quick_parsing():
            found.update(corpora._texts(path, module))
    assert found == {
        "top": "Top alpha.",
        "top.inner._private.f": "F\\d.",
        "a.b.g": "G.",
        "top.inner.h": "H.",
        "top.inner.new.C": "C.",
    }


def test_markup_is_no_text():
    text = "Sum.\n\nParameters\n----------\nx : see :func:`dot`\n>>> import that\n.. note:: Kept\nhttps://x.org/y"
    words = corpora._WORD.findall(corpora._MARKUP.sub(" ", text).lower())
    assert words == ["sum", "see", "dot", "kept"]


@pytest.mark.nightly
def test_counts_unpack_into_what_belongs_to_them(corpus):
    counts, words, packages = corpus
    assert counts is corpus and words is corpus.feature_names and packages is corpus.groups


@pytest.mark.nightly
def test_counts_do_not_pass_for_a_sequence(corpus):
    for function in (np.asarray, lambda counts: "matrix" in counts):
        with pytest.raises(
            TypeError, match=r"not an array: .* counts\.take_rows\(\)|not a container"
        ):
            function(corpus)
    matrix = corpus.take_rows()
    assert (matrix.shape, matrix.nnz, matrix.sum()) == (corpus.shape, corpus.nnz, corpus.total)
