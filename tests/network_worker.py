"""Preloaded by workers on simulated hosts: marker files make tasks wait, or use wrong counts."""

import os
import time
from dataclasses import replace
from pathlib import Path

import internals

HOST = Path(os.environ["NETWORK_HOST"])


def marked(name):
    return HOST.joinpath(name).exists()


def dask_setup(worker):
    """With a file `hold`, tasks of rows wait for a file `go`; with `stale`, counts are wrong."""

    def wrong_slices(slices, context, order):
        if order == "rows" and marked("hold"):
            HOST.joinpath("held").touch()
            while not marked("go"):
                time.sleep(0.02)
        for each in slices(context, order):
            yield replace(each, count=each.count * 0 + 9) if marked("stale") else each

    def noted_save(save_arrays, target, arrays):
        save_arrays(target, arrays)
        if marked("stale"):
            HOST.joinpath("late").write_text(str(target))

    internals.around_slices(internals.FOR_GOOD, wrong_slices)
    internals.around_save(internals.FOR_GOOD, noted_save)
    HOST.joinpath("pid").write_text(str(os.getpid()))
