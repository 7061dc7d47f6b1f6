"""The check of the built site finds what it is for."""

import subprocess
import sys
from pathlib import Path

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
