"""Counts of the words of texts: those of scikit-learn, from any source, in bounded memory."""

import gzip
import json
import os
import warnings

import numpy as np
import pandas as pd
import pytest
from shell import run
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline

import nmfscale
from nmfscale.readers.texts.vocabulary import WordTotals

RNG = np.random.default_rng(0)
WORDS = np.array([f"w{j}" for j in range(300)] + ["naïve", "Élan", "cat's"])
TEXTS = [
    " ".join(RNG.choice(WORDS, size=RNG.integers(0, 60), p=None)) + " the The" for _ in range(200)
]
TEXTS[7] = ""
ANY = CountVectorizer()


class Corpus:
    """Texts that can be read again, as corpora of gensim."""

    def __init__(self, texts):
        self.texts = texts

    def __iter__(self):
        yield from self.texts


class Once:
    """Texts that look as if they could be read again."""

    def __init__(self, texts):
        self.rest = iter(texts)

    def __iter__(self):
        return self.rest


def same(counts, vectorizer, texts=TEXTS):
    expected = vectorizer.fit_transform(texts)
    assert counts.feature_names.tolist() == vectorizer.get_feature_names_out().tolist()
    assert (counts.take_rows() != expected).nnz == 0
    assert counts.of_text


@pytest.mark.parametrize(
    "options",
    [
        {}, {"min_df": 10, "max_df": 0.3}, {"min_df": 0.1, "max_df": 60, "ngram_range": (1, 2)},
        {"stop_words": ["w1", "the"], "lowercase": False, "binary": True},
        {"analyzer": "char", "ngram_range": (2, 2)},
        {"token_pattern": r"[^ ]+", "strip_accents": "unicode"},
    ],
    ids=str,
)  # fmt: skip
def test_counts_are_those_of_scikit_learn(options, tmp_path):
    same(
        nmfscale.text_counts(TEXTS, vectorizer=CountVectorizer(**options)),
        CountVectorizer(**options),
    )
    store = nmfscale.text_counts(
        TEXTS, tmp_path / "texts.nmf", vectorizer=CountVectorizer(**options), memory_limit=1
    )
    same(store, CountVectorizer(**options))


def test_iterables_and_lists_of_words_give_the_counts_of_texts(tmp_path):
    options = CountVectorizer(ngram_range=(1, 2), stop_words=["the"], min_df=2)
    names, tokenize = [f"t{i}" for i in range(len(TEXTS))], ANY.build_analyzer()
    words = [tokenize(text) for text in TEXTS]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for texts in (Corpus(TEXTS), words, Corpus(words)):
            counts = nmfscale.text_counts(texts, vectorizer=options, names=names)
            same(counts, clone(options))
            assert counts.sample_names.tolist() == names
            store = nmfscale.text_counts(texts, tmp_path / "t.nmf", vectorizer=options)
            same(store, clone(options))
    kept = nmfscale.text_counts([["Co-Op", "a"], ["a"]], vectorizer=ANY)
    assert kept.feature_names.tolist() == ["Co-Op", "a"]
    model = nmfscale.TopicModel(2, tol=1, random_state=0)
    pipeline = make_pipeline(clone(ANY), model).fit(TEXTS)
    found = [nmfscale.find_samples(pipeline, each).to_frame() for each in (TEXTS, Corpus(TEXTS))]
    assert found[0].equals(found[1])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["我们研究主题模型的快速算法，并且比较结果。"], "clauses"),
        (["トピックモデルの推定は速い。", "この文書は単語の間に空白がない。"], "clauses"),
        (["हिन्दी में शब्दों के बीच रिक्ति होती है", "यह भाषा है"], "vowel signs"),
        ([["主题", "模型", "的", "估计"], ["快速", "算法"]], None),
        (["한국어 문서는 띄어쓰기가 있다", "주제 모형 추정"], None),
        (["an English text on 主题模型的估计", *["with more words here"] * 4], None),
    ],
)  # fmt: skip
def test_words_that_are_no_words_are_noticed(texts, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nmfscale.text_counts(texts, vectorizer=CountVectorizer())
    assert len(caught) == (message is not None)
    assert message is None or message in str(caught[0].message)


def test_the_most_frequent_words_are_kept_with_ties_in_alphabetical_order():
    texts = ["b a c c d", "d b a"]
    options = CountVectorizer(max_features=3, token_pattern=r"\w")
    counts = nmfscale.text_counts(texts, vectorizer=options)
    assert counts.feature_names.tolist() == ["a", "b", "c"]
    assert counts.notes == ("words left out: 1 after the max_features=3 most frequent",)


def test_totals_of_words_do_not_depend_on_memory():
    one, many = WordTotals(1 << 30), WordTotals(1)
    many._most = 50
    for text in TEXTS:
        for totals in (one, many):
            totals.add(nmfscale.readers.text_counts.Counter(text.split()))
    assert len(many._runs) > 3
    assert list(one) == list(many)
    many.close()


def write_sources(folder):
    """Write the same texts in every format; return sources and how they are read."""
    table = pd.DataFrame({"id": [f"t{i}" for i in range(len(TEXTS))], "text": TEXTS})
    table["year"], table["title"] = range(len(TEXTS)), "long title " * 20
    table["author"] = np.resize(["ann", "bob"], len(TEXTS))
    table.to_csv(folder / "texts.csv", index=False)
    table.to_csv(folder / "texts.tsv.gz", index=False, sep="\t")
    table.to_csv(folder / "semicolon.csv", index=False, sep=";")
    lines = [json.dumps(row) for row in table.to_dict("records")]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    (folder / "lines.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    for i, text in enumerate(TEXTS):
        file = folder / "files" / table["author"][i] / f"t{i:03}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        if i % 2:
            file.write_text(text, encoding="utf-8")
        else:
            file.with_suffix(".txt.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "files" / ".hidden").write_text("hidden")
    return table


def test_every_source_gives_the_same_counts(tmp_path):
    table = write_sources(tmp_path)
    named = {"names": "id", "groups": "author"}
    for name in ("texts.csv:text", "texts.tsv.gz:text", "semicolon.csv:text", "texts.jsonl:text"):
        counts = nmfscale.text_counts(f"{tmp_path}/{name}", vectorizer=ANY, **named)
        same(counts, CountVectorizer())
        assert counts.sample_names.tolist() == table["id"].tolist()
        assert counts.groups.tolist() == table["author"].tolist()
        assert list(counts.obs) == ["year", "author"]
        assert counts.obs["author"].tolist() == table["author"].tolist()
        assert counts.obs["year"].tolist() == table["year"].tolist()
    same(nmfscale.text_counts(tmp_path / "lines.txt", vectorizer=ANY), CountVectorizer())
    folder = nmfscale.text_counts(tmp_path / "files", vectorizer=ANY)
    order = sorted(range(len(TEXTS)), key=lambda i: (i % 2, i))
    same(folder, CountVectorizer(), [TEXTS[i] for i in order])
    assert folder.sample_names[[0, 100]].tolist() == ["ann/t000.txt.gz", "bob/t001.txt"]
    assert folder.groups.tolist() == ["ann"] * 100 + ["bob"] * 100
    assert folder.obs["folder"].tolist() == folder.groups.tolist()
    some = nmfscale.text_counts(tmp_path / "files", vectorizer=ANY, pattern="*.gz")
    assert some.shape[0] == 100
    series = pd.Series(TEXTS, index=table["id"])
    assert nmfscale.text_counts(series).sample_names.tolist() == table["id"].tolist()


def test_other_columns_are_numbers_or_labels(tmp_path):
    rows = [
        {"text": "a b", "n": 1, "x": 0.5, "code": "007", "ok": True, "list": [1], "none": None},
        {"text": "a c", "n": 20, "x": None, "code": "12", "ok": False, "list": [], "none": None},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"vectorizer": CountVectorizer(token_pattern=r"\w")}
    found = nmfscale.text_counts(tmp_path / "t.jsonl:text", tmp_path / "t.nmf", **options).obs
    assert list(found) == ["n", "x", "code", "ok", "none"]
    assert found["n"].tolist() == [1, 20] and found["n"].dtype.kind == "i"
    assert found["x"][0] == 0.5 and np.isnan(found["x"][1])
    assert [found[name].tolist() for name in ("code", "ok", "none")] == [
        ["007", "12"], ["True", "False"], [None, None],
    ]  # fmt: skip


def test_texts_to_topics_in_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    given = "--names", "id", "--groups", "author", "--stop-words", "english", "--ngram-range", "1-2"
    assert not run("text", "texts.csv:text", "texts.nmf", *given, "--max-df", "0.4", "-q")
    assert "in fewer documents than --min-df 2" in capsys.readouterr().out
    options = CountVectorizer(min_df=2, max_df=0.4, stop_words="english", ngram_range=(1, 2))
    same(nmfscale.read_counts("texts.nmf"), options)
    assert nmfscale.results.StoredCounts("texts.nmf").obs["author"][:3].tolist() == [
        "ann",
        "bob",
        "ann",
    ]
    assert not run("fit", "texts.nmf", "-k", "2", "-o", "model.h5", "-q")
    new = "w0 w1 unheard unheard words", "", "w2 w3"
    (tmp_path / "new.txt").write_text("\n".join(new) + "\n")
    capsys.readouterr()
    assert run("text", "new.txt", "new.nmf", "--vocabulary", "model.h5")
    assert "give it the ngram_range of the fit" in capsys.readouterr().err
    assert run("text", "new.txt", "new.nmf", "--vocabulary", "mode.h5")
    assert "--vocabulary: no such file: mode.h5" in capsys.readouterr().err
    vocabulary = "--vocabulary", "model.h5", "--ngram-range", "1-2", "-q"
    assert not run("text", "new.txt", "new.nmf", *vocabulary)
    found = capsys.readouterr()
    n_tokens = CountVectorizer(ngram_range=(1, 2)).fit_transform(new).sum()
    unknown = n_tokens - nmfscale.results.StoredCounts("new.nmf").total
    assert f"{unknown:.0f} of {n_tokens} words of the texts" in found.err
    assert "most often 'unheard' (2)" in found.err
    assert "1 of 3 texts have none of the words" in found.out
    assert not run("transform", "model.h5", "new.nmf", "-o", "topics.csv")
    assert len((tmp_path / "topics.csv").read_text().splitlines()) == 4


def test_a_fitted_vectorizer_or_a_model_gives_the_words():
    pipeline = make_pipeline(CountVectorizer(min_df=20), nmfscale.TopicModel(2, random_state=0))
    pipeline.fit(TEXTS)
    new = ["w0 w1 unheard", "w2"]
    with pytest.warns(UserWarning, match=r"1 of 4 words of the texts \(25.0%\).*'unheard' \(1\)"):
        counts = nmfscale.text_counts(new, vectorizer=pipeline[0])
    found = nmfscale.get.model(pipeline).transform(counts)
    np.testing.assert_array_equal(found, pipeline.transform(new))
    words = nmfscale.get.model(pipeline).feature_names_in_
    for vocabulary in (nmfscale.get.model(pipeline), words.tolist()[::-1]):
        again = nmfscale.text_counts(["w0 w1", "w2"], vocabulary=vocabulary)
        order = [again.feature_names.tolist().index(word) for word in words]
        assert (again.take_rows()[:, order] != counts.take_rows()).nnz == 0


BAD = {
    "latin.csv": "id,text\na,caf\xe9\n".encode("latin-1"),
    "short.csv": b"id,text\na,one\nb\n",
    "quote.csv": b'id,text\na,"one" two\n',
    "twice.csv": b"text,text\na,b\n",
    "cut.csv.gz": gzip.compress(b"id,text\na,one\n" * 99)[:40],
    "empty.csv": b"",
    "header.csv": b"id,text\n",
    "list.jsonl": b'["a"]\n',
    "number.jsonl": b'{"text": "a b"}\n{"text": 3}\n',
    "empty.jsonl": b"\n",
    "other.jsonl": b'{"text": "a b"}\n{"body": "c"}\n',
    "odd.xlsx": b"PK",
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", '{"body": "one two", "by": "a"}\n{"body": null}\n{}\n{"body": NaN}\n'),
        ("t.csv", "body,by\none two,a\nNaN,\n,\nNA,\n"),
    ],
)
def test_missing_texts_are_empty(name, content, tmp_path):
    """By whatever a file says that they are missing; and so are missing groups."""
    (tmp_path / name).write_text(content)
    found = nmfscale.text_counts(tmp_path / f"{name}:body", vectorizer=ANY, groups="by")
    assert found.feature_names.tolist() == ["one", "two"]
    assert found.row_totals.tolist() == [2, 0, 0, 0]
    assert found.groups.tolist() == ["a", "", "", ""]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("no-such", "no such file or folder"),
        ("empty", "has no file: texts are files"),
        ("binary", "one.pdf is not a text: it has a byte of value 0.*pattern='"),
        ("latin.csv:text", r"latin.csv, line \d or later: 0xe9 is not UTF-8.*encoding='latin-1'"),
        ("header.csv", "say which column.*header.csv:COLUMN. Columns: 'id', 'text'"),
        ("header.csv:body", "no column 'body'.*columns: 'id', 'text'"),
        ("twice.csv:text", "2 columns 'text'"),
        ("short.csv:text", "line 3: the row.*1 cells, and the header has 2"),
        ("quote.csv:text", "quote.csv, line 2: .*Double a quotation mark"),
        ("cut.csv.gz:text", "gzip stream is damaged or was cut off"),
        ("empty.csv:text", "is empty"),
        ("header.csv:text", "has no texts"),
        ("list.jsonl:text", "line 1 is .*: an object is needed"),
        ("number.jsonl:text", "line 2: 'text' is 3, no text"),
        ("number.jsonl", "say which key.*Keys of the first line: 'text'"),
        ("empty.jsonl", "has no JSON lines: it is empty"),
        ("empty.jsonl:text", "has no JSON lines: it is empty"),
        ("other.jsonl:words", "none of the first 2 records has the key 'words'; keys.*: 'text'"),
        ("odd.xlsx:text", "does not end with .csv"),
    ],
)  # fmt: skip
def test_bad_sources_are_refused(source, error, tmp_path):
    for name, data in BAD.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "one.pdf").write_bytes(b"%PDF\0")
    with pytest.raises((ValueError, FileNotFoundError), match=error):
        nmfscale.text_counts(tmp_path / source, tmp_path / "out.nmf", vectorizer=ANY)
    assert not (tmp_path / "out.nmf").exists()
    if source.startswith("latin.csv:t"):
        options = CountVectorizer(encoding="latin-1")
        found = nmfscale.text_counts(tmp_path / source, vectorizer=options)
        assert found.feature_names.tolist() == ["café"]


@pytest.mark.parametrize(
    ("texts", "options", "error"),
    [
        (["one", None], {}, r"texts\[1\] is None, a NoneType"),
        ([["one", 2]], {}, r"texts\[0\] is 2 in a list of 2, a int: text, or a list of words"),
        (iter(["one"]), {}, "which can be iterated once: texts are read more than once"),
        (Corpus(["one"]), {"names": ["a", "b"]}, "names has 2 names, and there are 1 texts"),
        (["one", "two"], {"names": ["a"]}, "names has 1 names, and there are 2 texts"),
        (Corpus(["one", "two"]), {"names": ["a"]}, "names has 1 names, and there are more texts"),
        (Once(["one"]), {}, "1 texts when it is iterated for the first time, and 0 the next"),
        (pd.DataFrame({"text": ["one"]}), {}, "pass one of its columns"),
        ([], {}, "texts has no texts"),
        (["", "."], {}, "have no words"),
        (["one", "two"], {"vectorizer": CountVectorizer(min_df=2)}, "left out: 2 in fewer"),
        (["one", "two"], {"vectorizer": CountVectorizer(min_df=2, max_df=0.5)}, "fewer documents"),
        (["one"], {"vectorizer": TfidfVectorizer()}, "CountVectorizer is needed"),
        (["one"], {"vectorizer": HashingVectorizer()}, "CountVectorizer is needed"),
        (["one"], {"vectorizer": CountVectorizer(min_df=-1)}, "'min_df' parameter"),
        (["one"], {"vocabulary": ["a", "a"]}, "1 different words of 2"),
        (["one"], {"vocabulary": np.eye(2)}, "no names of features"),
        (["one"], {"names": "id"}, "names='id' names a column of a table, and does not apply"),
        (["one"], {"memory_limit": "much"}, "much"),
    ],
)  # fmt: skip
def test_bad_texts_and_options_are_refused(texts, options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        nmfscale.text_counts(texts, **{"vectorizer": ANY, **options})


def test_an_existing_file_is_not_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        nmfscale.text_counts(TEXTS, tmp_path / "notes.txt")
    os.symlink("nowhere", tmp_path / "broken")
    with pytest.raises(ValueError, match="broken link"):
        nmfscale.text_counts(tmp_path, pattern="broken")
