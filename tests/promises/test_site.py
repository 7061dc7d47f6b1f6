"""The site documents parameters in full, and the check of the built site finds what it is for."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nmfscale
from nmfscale.models.hooks import HOOKS

DOCSTRINGS = Path(__file__).resolve().parents[2] / "docs" / "docstrings.py"
SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "check_site.py"
GOOD = """<head><link rel="stylesheet" href="a.css"><link rel="canonical" href="https://a.b/"></head>
<a href="other.html#here">x</a> <a href="https://a.b/">y</a> <img src="a.svg">
<a href="#top">z</a>"""
WRONG = {
    '<script src="https://a.b/c.js"></script>': "index.html loads https://a.b/c.js",
    '<link rel="preconnect" href="//a.b">': "index.html loads //a.b",
    "<style>@import 'https://a.b/c.css';</style>": "index.html loads https://a.b/c.css",
    '<a href="gone.html">x</a>': "index.html refers to gone.html, which does not exist",
    '<a href="other.html#gone">x</a>': "other.html#gone, but the page has no such anchor",
    "<dd><p>As in <a href='other.html'>PoissonNMF</a>.": "documents 1 entries by 'As in ...' alone",
    '<img src="gone.png">': "index.html refers to gone.png, which does not exist",
}


def check(folder, text):
    (folder / "index.html").write_text(text)
    (folder / "other.html").write_text('<h2 id="here">x</h2>')
    for name in ("a.css", "a.svg"):
        (folder / name).touch()
    command = [sys.executable, SCRIPT, folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_good_site(tmp_path):
    assert check(tmp_path, GOOD).returncode == 0


def test_what_is_wrong_is_named(tmp_path):
    done = check(tmp_path, GOOD + "".join(WRONG))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == len(WRONG)
    assert all(any(text in line for line in lines) for text in WRONG.values()), lines


# --- Docstrings in full ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def docstrings():
    spec = importlib.util.spec_from_file_location("docstrings", DOCSTRINGS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public_names():
    rooms = {name for name in nmfscale.__all__ if inspect.ismodule(getattr(nmfscale, name))}
    for room in ("", *(f".{name}" for name in rooms)):
        module = getattr(nmfscale, room[1:]) if room else nmfscale
        for name in set(module.__all__) - rooms:
            full, thing = f"nmfscale{room}.{name}", getattr(module, name)
            yield full
            for method, function in inspect.getmembers(thing, inspect.isfunction):
                if inspect.isclass(thing) and function.__module__.startswith("nmfscale"):
                    if not method.startswith("_") and method not in HOOKS:
                        yield f"{full}.{method}"


def test_nothing_is_documented_by_reference_alone(docstrings):
    """And a reference of the literature that a text cites is on the same page."""
    for name in public_names():
        text = "\n".join(docstrings.in_full(name))
        assert "As in :" not in text, name
        numbers = re.findall(r"^\.\. \[(\d+)\] ", text, re.MULTILINE)
        assert len(numbers) == len(set(numbers)), name
        assert set(re.findall(r"\[(\d+)\]_", text)) <= set(numbers), name


def test_links_of_docstrings_have_a_target(docstrings):
    """As Sphinx looks for it: in the class, in the module, or by the full name."""
    link = re.compile(r":(?:class|func|meth|attr|mod):`~?([\w.]+)`")
    for name in public_names():
        thing = docstrings.thing_at(name)
        if not getattr(thing, "__module__", "nmfscale").startswith("nmfscale"):
            continue
        for target in link.findall(inspect.getdoc(thing)):
            scopes, owner = ["", f"{name}."], name
            while not inspect.ismodule(docstrings.thing_at(owner)):
                owner = owner.rpartition(".")[0]
                scopes.append(f"{owner}.")
            assert any(exists(docstrings, scope + target) for scope in scopes), f"{name}: {target}"


def exists(docstrings, name):
    try:
        return name.startswith("nmfscale") and docstrings.thing_at(name) is not None
    except AttributeError:
        return False


def test_a_docstring_in_full(docstrings):
    """Types, remarks and references of the parameters are there, also of inherited methods."""
    text = "\n".join(docstrings.in_full("nmfscale.SSNMF.predict_proba"))
    fit = inspect.getdoc(nmfscale.PoissonNMF.fit)
    layer = re.search(r"^layer : .*\n(?: +.*\n)+", fit, re.MULTILINE)[0]
    assert layer in text
    text = "\n".join(docstrings.in_full("nmfscale.LDA"))
    assert "During a fit, parameters of topics are float64." in text
    text = "\n".join(docstrings.in_full("nmfscale.TopicModel"))
    signature = inspect.signature(nmfscale.TopicModel)
    heads = [line.partition(" : ") for line in text.splitlines() if re.match(r"\w+.* : ", line)]
    names = {name for head, _, kind in heads if kind for name in head.split(", ")}
    assert set(signature.parameters) <= names
    cited = re.search(r"split or added \[(\d+)\]_", text)[1]
    assert f".. [{cited}] Ueda, Nakano, Ghahramani, Hinton (2000)." in text
