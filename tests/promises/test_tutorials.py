"""Tutorials: code and commands run in the order of the page, and print and draw what it shows."""

import doctest
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MATCHES = doctest.OutputChecker().check_output


def shell(command):
    """Run a command of this package in a process of its own, and print what it prints."""
    program, *words = shlex.split(command)
    assert program == "nmfscale"
    run = [sys.executable, "-P", "-m", "nmfscale", *words]
    ended = subprocess.run(run, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    print(ended.stdout, end="")


def session(text):
    """Return the Python and the commands of a page, in their order, as one doctest."""
    parts = re.findall(r"^ *```(?:python|console)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    joined = re.sub(r" *\\\n *", " ", "\n".join(parts))  # commands of several lines
    source = re.sub(
        r"^( *)\$ (.*)$", lambda line: f"{line[1]}>>> shell({line[2]!r})", joined, flags=re.M
    )
    return doctest.DocTestParser().get_doctest(source, {"shell": shell}, "page", None, 0)


def run(text):
    """Run a page; return what failed, and the categories and texts of the warnings."""
    report = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(
            session(text), out=report.append
        )
    return "".join(report), [f"{one.category.__name__}: {one.message}" for one in caught]


def shown_warnings(text):
    """Return the warnings that a page shows, in blocks that have no language."""
    shown = re.findall(r"^ *```\n *(\w*Warning: .*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [warning for block in shown for warning in re.split(r"\n *(?=\w*Warning: )", block)]


def check(path, monkeypatch, folder):
    """Run a page in a folder, and compare its output, warnings and pictures with the page."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    text = path.read_text(encoding="utf-8")
    report, raised = run(text)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    assert report == ""
    shown = shown_warnings(text)
    unseen = [one for one in shown if not any(MATCHES(one, other, FLAGS) for other in raised)]
    unsaid = [one for one in raised if not any(MATCHES(other, one, FLAGS) for other in shown)]
    assert (unseen, unsaid) == ([], [])
    for picture in re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE):
        assert 0 < (folder / picture).stat().st_size < 80_000, picture
        assert (path.parent / picture).exists(), picture


PAGES = sorted((DOCS / "tutorials").glob("*.md"))


@pytest.mark.nightly
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tutorial(path, tmp_path, monkeypatch):
    """Copy the pictures from here to docs/tutorials/ when they have changed."""
    if path.stem == "single_cells":
        pytest.importorskip("anndata")
    check(path, monkeypatch, tmp_path)


def test_tutorials_end_with_what_can_go_wrong():
    for path in PAGES:
        *_, wrong, more = path.read_text(encoding="utf-8").split("\n## ")
        assert wrong.startswith("What can go wrong\n") and more.startswith("See also\n"), path
        assert "](../" in more and "Reference: " in more, path
