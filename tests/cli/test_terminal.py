"""What terminals and logs receive: no control characters of names, lines in place of bars."""

import os
import pty
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from shell import run

import nmfscale

HOSTILE = ["\x1b[31mred", "\x9b2Jclear", "del\x7f", "over\rwritten", "bell\x07", "lone\udcff"]
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
PROGRAM = [sys.executable, "-P", "-m", "nmfscale"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Counts whose samples, features and groups have such names, and a model of them."""
    monkeypatch.chdir(tmp_path)
    names = HOSTILE[:-1]
    X = np.random.default_rng(0).poisson(2, (20, 10))
    X[:10, :5] += 20  # words of these names lead
    sp.save_npz("counts.npz", sp.csr_array(X))
    for of, n in (("samples", 20), ("features", 10)):
        lines = names + [f"{of} {i}" for i in range(n - len(names))]
        (tmp_path / f"{of}.txt").write_text("\n".join(lines) + "\n", newline="")
    (tmp_path / "groups.txt").write_text("\x1b[31ma\n\x9bb\n" * 10, newline="")
    options = ["--feature-names", "features.txt", "--sample-names", "samples.txt"]
    assert run("fit", "counts.npz", "-k", 2, *options, "--seed", 0, "-o", "model.h5", "-q") == 0
    return tmp_path


def test_names_cannot_control_a_terminal(folder, capsys):
    for words in (
        "info model.h5",
        "test model.h5 --groups groups.txt --permutations 9",
        "bootstrap model.h5 --groups groups.txt --replicates 9",
        "topic-quality model.h5 counts.npz --feature-names features.txt",
        "differential model.h5 counts.npz --feature-names features.txt",
        "export model.h5 -o components.csv --table components",
    ):
        assert run(*words.split()) == 0
    assert run("info", "\x1b[2J.h5") == 1
    shown = "".join(capsys.readouterr())
    assert not CONTROLS.search(shown)
    assert r"\x1b[31mred" in shown and r"\x9bb" in shown and r"\x1b[2J.h5" in shown
    table = (folder / "components.csv").read_bytes().decode()
    assert "\x1b[31mred" in table and "\x9b2Jclear" in table  # files keep names


def test_names_with_line_ends_stay_on_their_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = [f"{i}\n\tx" for i in range(12)]
    counts, _ = nmfscale.datasets.simulate_topic_counts(12, 12, 2, random_state=0)
    X = pd.DataFrame(counts.toarray(), index=names, columns=names)
    model = nmfscale.TopicModel(2, random_state=0).fit(X).rename_topics(names[:2])
    for result, n_lines in (
        (nmfscale.topic_quality(model, X), 4),
        (nmfscale.find_samples(model, n_top=2), 6),
        (nmfscale.compare_fits({"one\nname": model, "two": model}), 3),
        (nmfscale.cluster_samples(model, 2, random_state=0), 2),
        (nmfscale.differential_features(model, X, reference=names[0], split=None), 1),
    ):
        assert len(repr(result).split("\n")) == n_lines and "\t" not in repr(result)
    model.save("model.h5")
    X.to_csv("counts.csv")
    pd.Series(["a\n\tb", "c", "d"] * 4, names, name="group").to_csv("groups.csv")
    for words in (
        "info model.h5",
        "test model.h5 --groups groups.csv:group --permutations 9",
        "bootstrap model.h5 --groups groups.csv:group --replicates 9",
        "correspondence model.h5 --groups groups.csv:group",
    ):
        assert run(*words.split()) == 0
        shown = capsys.readouterr().out
        assert r"\n\tx" in shown or r"a\n\tb" in shown
        assert "\t" not in shown and not re.search("^(x|b)", shown, re.MULTILINE)


def test_python_shows_them_too(recwarn):
    counts, _ = nmfscale.datasets.simulate_topic_counts(30, 12, 2, random_state=0)
    columns = HOSTILE + [f"w{i}" for i in range(6)]
    X = pd.DataFrame(counts.toarray(), columns=columns)
    model = nmfscale.TopicModel(2, random_state=0).fit(X).rename_topics(HOSTILE[:2])
    groups = np.array(HOSTILE[1:4] * 10)
    results = [
        nmfscale.permutation_test(model, groups, n_permutations=9, random_state=0),
        nmfscale.bootstrap_weights(model, groups, n_replicates=9, random_state=0),
        nmfscale.topic_quality(model, X, n_top=3),
        nmfscale.differential_features(model, X, split=None),
        nmfscale.find_samples(model, texts=[HOSTILE[0]] * 30),
    ]
    shown = "\n".join(map(repr, results)) + "\n".join(str(each.message) for each in recwarn)
    assert r"\x1b[31mred" in shown and not CONTROLS.search(shown)


@pytest.mark.nightly
def test_what_an_encoding_lacks_does_not_end_a_command(folder):
    (folder / "features.txt").write_text("\n".join(["été", "中"] * 5), encoding="utf-8")
    fit = "fit counts.npz -k 2 -o again.h5 --feature-names features.txt".split()
    for words in (fit, ["info", "again.h5"], ["info", b"\xff.h5"]):
        settings = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
        done = subprocess.run([*PROGRAM, *words], env=settings, capture_output=True, timeout=60)
        shown = (done.stdout + done.stderr).decode("ascii")
        assert done.returncode == (words[-1] == b"\xff.h5"), shown
    assert r"\udcff.h5" in shown and "codec" not in shown


def test_names_of_files_that_are_not_utf_8(tmp_path, monkeypatch):
    """Tables have their bytes, and pages show them."""
    pytest.importorskip("bokeh")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "text\udcffs"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("names of files are Unicode here")
    for name in ("a\udcff", "b", "c"):
        (folder / name).write_text("cats sat on mats")
    every = ["--min-df", 1, "--max-df", 1.0, "-q"]
    assert run("text", folder, "counts.nmf", *every) == 0
    assert run("fit", "counts.nmf", "-k", 2, "--max-iter", 5, "-o", "model.h5", "-q") == 0
    assert run("export", "model.h5", "-o", "loadings.csv") == 0
    assert b"\na\xff," in (tmp_path / "loadings.csv").read_bytes()
    assert run("report", "model.h5", "counts.nmf", "-o", "report.html") == 0
    assert r"\udcff" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_a_log_has_lines_and_a_terminal_a_bar(folder):
    command = [*PROGRAM, *"fit counts.npz -k 2 -o again.h5 --force --max-iter 300".split()]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert b"\r" not in done.stderr
    lines = [line for line in done.stderr.decode().splitlines() if "it/s" in line]
    assert len(lines) == 1 and "100%" in lines[0] and "log-likelihood" in lines[0]
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60)
    os.close(theirs)
    assert b"\r" in os.read(ours, 10**6)
    os.close(ours)
