"""The scripts that complete commands in a shell, tried in bash."""

import shutil
import subprocess
import sys

import pytest

from nmfscale.cli import main

pytest.importorskip("shtab")

# What bash does at a tab: the words, the number of the last one, then the function it registered.
AT_A_TAB = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
registered=$(complete -p nmfscale)
eval "$(sed -E 's/.*-F ([^ ]+).*/\\1/' <<<"$registered")"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "nmfscale.bash"
    with path.open("w") as file:
        command = [sys.executable, "-P", "-m", "nmfscale", "completion", "bash"]
        subprocess.run(command, stdout=file, check=True, timeout=60)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("se", {"search", "select-k"}),
        ("fit --estim", {"--estimate-prior"}),  # of lda
        ("fit --validation", {"--validation-fraction"}),  # of ssnmf
        ("fit --model ga", {"gamma-poisson"}),
        ("fit --solver joint", {"joint-em"}),
        ("fit coun", {"counts.npz"}),
        ("fit-each --estim", {"--estimate-prior"}),
        ("fit counts.npz -o mod", {"model.h5"}),
        ("bootstrap model.h5 --draw R", {"RwT"}),
        ("completion z", {"zsh"}),
    ],
)
def test_bash_completes(script, tmp_path, words, offered):
    for name in ("counts.npz", "model.h5"):
        (tmp_path / name).touch()
    command = ["bash", "--norc", "-c", AT_A_TAB, "bash", script, "nmfscale", *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert set(done.stdout.split()) == offered, done.stderr


@pytest.mark.parametrize(("shell", "start"), [("zsh", "#compdef nmfscale"), ("tcsh", "#")])
def test_other_shells(capsys, shell, start):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert text.startswith(start) and "select-k" in text


def test_without_shtab(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'nmfscale[completion]'" in capsys.readouterr().err
