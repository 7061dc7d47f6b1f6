"""Commands of the command line, run in this process."""

import pytest

from nmfscale.cli import main


def run(*words):
    """Run a command, and return its exit code."""
    return main([str(word) for word in words])


def failure(capsys, *words):
    """Return the single line that a failing command writes."""
    assert run(*words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nmfscale: error: ")
    assert err.count("\n") == 1
    return err


def misuse(capsys, *words):
    """Return the message of a command with wrong usage."""
    with pytest.raises(SystemExit) as caught:
        run(*words)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err
