"""Texts given where counts are expected: the error names what counts their words."""

import gzip
import re

import pytest
from shell import failure, run

import nmfscale

SOURCES = {
    "texts.csv": ("id,text\n1,the cat sat\n2,dogs and cats\n", ":text"),
    "many.tsv": ("year\tauthor\ttitle\tbody\n1990\tA B\tOn\tcats sat on mats\n", ":body"),
    "x.jsonl": ('{"id": "a", "body": "the cat sat"}\n', ":body"),
    "x.ndjson.gz": ('{"id": 7, "body": "the cat sat"}\n', ":body"),
    "lines.txt": ('the cat sat on it\ndogs ran\n"a" cat\n', ""),
    "folder/a.txt": ("the cat sat", ""),
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_error_names_what_counts_words(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, column = SOURCES[name]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    given = name.partition("/")[0]
    with pytest.raises(ValueError, match=re.escape(f"text_counts('{given}{column}')")) as caught:
        nmfscale.TopicModel(2).fit(given)
    source = re.search(r"text_counts\('(.*)'\)", str(caught.value))[1]
    store = given.split(".")[0] + ".nmf"
    assert f"nmfscale text {source} {store}, and" in failure(capsys, "fit", given, "-k", 2)
    if name.endswith(("csv", "tsv", "txt")) and "/" not in name:
        told = failure(capsys, "fit", given, "-k", 2, "--samples-in", "rows")
        assert "has texts" in told and f"{given}{column} {store}, and" in told
    assert run("text", source, store, "--min-df", 1, "--max-df", 1.0, "-q") == 0


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("genes.csv", "gene,description,s1,s2,s3\nA,alpha beta gamma,1,2,3\n", "not a number"),
        ("cells.csv", "cell,s1,s2\nfirst cell of it,1,2\nthe last one,2,x\n", "not a number"),
        ("names.csv", "gene\nA\nB\n", "line 2: a name without counts"),
        ("short.csv", "gene,a,b\nA,1,2,3,4\n", "line 2: 4 counts, but the header names 2"),
        ("empty.jsonl", "", "suffix"),
        ("numbers.jsonl", '{"a": 1}\n', "suffix"),
    ],
)
def test_other_files_have_their_own_errors(name, text, words, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    options = {} if name.endswith(".jsonl") else {"samples_in": "rows"}
    with pytest.raises(ValueError, match=words):
        nmfscale.as_counts(path, **options)
