"""What a worker does for a fit: it runs steps on a partition, or saves one of its row arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..storage.arrays import Arrays
from .lineage import ArrayRef, Partition, Ref, StepRun, numbered
from .protocol import Sums, Values, fold
from .worker import RunConfig, context_of

# In the place of an array, in text: what it is called.
_NAMED = "array named"


@dataclass
class Found:
    """What steps found on neighbouring partitions.

    `values` has a list for each step with an entry for each block, `sums` a branch of the tree for
    each step, `saved` a dict for each partition: where each saved row array is, or itself.
    """

    values: list[list[Values]]
    sums: list[Sums]
    saved: list[dict[str, Ref | Arrays]]

    def to_arrays(self) -> Arrays:
        """Return the same as named arrays; row arrays have to be in files."""
        out: Arrays = {}

        def plain(value: Any) -> Any:
            if isinstance(value, Ref):
                return [value.name, value.path]
            out[f"array_{len(out)}"] = value
            return {_NAMED: f"array_{len(out) - 1}"}

        text = json.dumps([self.values, self.sums, self.saved], default=plain)
        return out | {"about": np.frombuffer(text.encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Found:
        """Undo `to_arrays`."""
        values, sums, saved = json.loads(
            arrays["about"].tobytes(),
            object_hook=lambda found: arrays[found[_NAMED]] if _NAMED in found else found,
        )
        return cls(
            values, sums, [{name: Ref(*ref) for name, ref in each.items()} for each in saved]
        )


def run_steps(
    config: RunConfig, partition: Partition, runs: tuple[StepRun, ...],
    saves: dict[str, StepRun], name: str | None, given: Mapping[str, Any],
) -> Found:  # fmt: skip
    """Run steps on a partition, and save the row arrays `saves` that they make.

    With a name the result is saved, too: it need not be found again if this worker dies.
    """
    with context_of(config, partition, given) as context:

        def find() -> Found:
            values, sums = zip(*(context.run(each) for each in runs), strict=True)
            saved = {
                array: context.save(each.name, numbered(context.outputs(each)[array]))
                for array, each in saves.items()
            }
            return Found(list(values), list(sums), [saved])

        if name is None or config.folder is None:
            return find()
        return Found.from_arrays(context.once(name, lambda: find().to_arrays()))


def join(*found: Found) -> Found:
    """Add neighbouring branches of the sums; other results follow each other."""
    values = [
        [block for each in step for block in each]
        for step in zip(*(f.values for f in found), strict=True)
    ]
    sums = [
        fold([[array.copy() for array in first], *others])
        for first, *others in zip(*(each.sums for each in found), strict=True)
    ]
    return Found(values, sums, [saved for each in found for saved in each.saved])


def save_array(
    config: RunConfig, partition: Partition, name: str, array: ArrayRef, given: Mapping[str, Any]
) -> Ref | Arrays:
    """Save a row array of a partition."""
    with context_of(config, partition, given) as context:
        return context.save(name, numbered(context.resolve(array)))
