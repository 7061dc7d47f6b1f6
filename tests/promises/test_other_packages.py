"""What the page for users of other packages says to call here can be called."""

import ast
import copy
import inspect
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

import nmfscale
from nmfscale.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other_packages.md"
WORDS = [f"word {j}" for j in range(12)]


def cells():
    """Yield the code of the last column of each row, by table."""
    title = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        title = line.removeprefix("## ") if line.startswith("## ") else title
        if line.startswith("| "):
            yield title, re.findall("`(.*?)`", re.split(r"(?<!\\)\|", line)[-2])


def parameters():
    """Return the names of the parameters of everything public."""
    rooms = (nmfscale, nmfscale.pl, nmfscale.tl, nmfscale.get)
    things = [getattr(room, name) for room in rooms for name in room.__all__]
    methods = [
        function
        for thing in things
        if inspect.isclass(thing)
        for _, function in inspect.getmembers(thing, inspect.isfunction)
    ]
    callables = [thing for thing in [*things, *methods] if callable(thing)]
    return {name for thing in callables for name in inspect.signature(thing).parameters}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The names that the page uses: counts, a model, texts, groups."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    counts, _ = nmfscale.datasets.simulate_topic_counts(40, 12, 3, random_state=0)
    sp.save_npz("counts.npz", counts)
    X = nmfscale.as_counts(counts, feature_names=WORDS)
    model = nmfscale.TopicModel(3, random_state=0).fit(X)
    L, F = model.poisson_factors()
    texts = ["good beer good foam", "bad beer", "good service", "bad service bad food"] * 10
    for number, text in enumerate(texts):
        Path("texts").mkdir(exist_ok=True)
        Path("texts", f"{number}.txt").write_text(text)
    more = nmfscale.as_counts(counts[:20], feature_names=[*WORDS[:-1], "new word"])
    return {name: getattr(nmfscale, name) for name in nmfscale.__all__} | {
        "X": X, "more": more, "model": model, "other": model, "L": L, "F": F, "W": L, "H": F.T,
        "k": 3, "K": 3, "m": 12, "rate": 1.0, "groups": np.arange(40) % 2,
        "clusters": np.arange(40) % 3, "source": np.arange(40) % 2,
        "classes": np.arange(40) % 2,
        "periods": 2000 + np.arange(40) % 4, "covariates": {"age": np.arange(40.0)},
        "texts": texts, "corpus": [[(0, 2), (1, 1)], [(1, 3), (2, 1)]] * 10,
        "dictionary": {0: "good", 1: "bad", 2: "beer"}, "np": np, "PCA": PCA,
        "lists": [["good", "beer"], ["bad", "food"]], "function": lambda topic: topic.words[0],
        "words": WORDS[:2],
        "CountVectorizer": CountVectorizer, "make_pipeline": make_pipeline,
    }  # fmt: skip


def fitted(value, names):
    """Fit what is a model without a fit, so that its parameters are checked."""
    if isinstance(value, BaseEstimator):
        try:
            check_is_fitted(value)
        except NotFittedError:
            value.fit(names["X"])


def run(code, names, known, capsys):
    """Run one piece of code of the page."""
    if code.startswith("nmfscale "):
        assert main(shlex.split(code)[1:]) == 0
        return
    if code.startswith("--"):
        with pytest.raises(SystemExit):
            main(["fit", "--help"])
        assert f" {code} " in capsys.readouterr().out
        return
    if code.isidentifier() and code not in names:
        assert code in known | set(dir(names["model"])) | {"lfsr", "lfc_shrunken", "npmi", "umass"}
        return
    if keyword := re.match(r"(\w+)=(.*)$", code):
        assert keyword[1] in known
        for model in (nmfscale.TopicModel, nmfscale.LDA, nmfscale.FrobeniusNMF):
            if keyword[2] and keyword[1] in inspect.signature(model).parameters:
                value = eval(keyword[2], names)
                model(**{"n_components": 3, keyword[1]: value}).fit(names["X"])
                break
        return
    try:
        ast.parse(code, mode="eval")
    except SyntaxError:  # an assignment
        exec(code, names)
        return
    fitted(eval(code, names), names)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", sorted({title for title, _ in cells()}))
def test_code_of_the_tables_runs(table, names, capsys):
    known, model = parameters(), names["model"]
    n_run = 0
    for title, codes in cells():
        for code in codes if title == table else ():
            names["model"] = copy.copy(model)  # which `partial_fit` changes
            try:
                run(code, names, known, capsys)
            except Exception as error:
                raise AssertionError(f"{code}: {type(error).__name__}: {error}") from error
            n_run += 1
    assert n_run > 4
