"""Incomplete files that killed processes have left are removed; those of others are not."""

import os
import subprocess
import sys

import pytest

from nmfscale.storage.atomic import atomic_stream, atomic_write

WRITER = """
import sys
from pathlib import Path
from nmfscale.storage.atomic import atomic_write
with atomic_write(Path(sys.argv[1])) as part:
    part.write_text("half")
    print(part, flush=True)
    sys.stdin.readline()
"""


def writer(path):
    command = [sys.executable, "-P", "-c", WRITER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("write", [atomic_write, atomic_stream])
def test_leftovers_of_dead_processes_are_removed(tmp_path, write):
    process, part = writer(tmp_path / "a")
    others = [part.replace("-a", "-b"), str(tmp_path / ".part-0123456789ab-old.h5")]
    others[0] = others[0].replace(".part-", ".part-00")  # of another machine
    for name in others:
        open(name, "w").close()
    for alive in (True, False):
        with write(tmp_path / "c"):
            assert os.path.exists(part) == alive
        assert all(map(os.path.exists, others))
        if alive:
            process.kill()
            process.communicate()
    assert sorted(os.listdir(tmp_path)) == sorted(["c", *map(os.path.basename, others)])
