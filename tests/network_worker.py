"""What workers on hosts of a test load first: tasks that wait, and that go wrong, when told so."""

import os
import time
from dataclasses import replace
from pathlib import Path

import internals

HOST = Path(os.environ["NETWORK_HOST"])


def told(what):
    return HOST.joinpath(what).exists()


def dask_setup(worker):
    """Hold rows up from `hold` on, until `go`; use wrong counts, and say so, while `stale`."""

    def bent_slices(slices, here, which):
        if which == "rows" and told("hold"):
            HOST.joinpath("held").touch()
            while not told("go"):
                time.sleep(0.02)
        for each in slices(here, which):
            yield replace(each, count=each.count * 0 + 9) if told("stale") else each

    def bent_save(save_arrays, target, arrays):
        save_arrays(target, arrays)
        if told("stale"):
            HOST.joinpath("late").write_text(str(target))

    internals.around_slices(internals.FOR_GOOD, bent_slices)
    internals.around_save(internals.FOR_GOOD, bent_save)
    HOST.joinpath("pid").write_text(str(os.getpid()))
