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
            if not isinstance(value, np.ndarray):
                return value
            out[f"value_{len(out)}"] = value
            return {"array": f"value_{len(out) - 1}"}

        about = {
            "values": [
                [{name: plain(value) for name, value in of_block.items()} for of_block in of_step]
                for of_step in self.values
            ],
            "n_sums": [len(sums) for sums in self.sums],
            "saved": [
                {name: [ref.name, ref.path] for name, ref in found.items() if isinstance(ref, Ref)}
                for found in self.saved
            ],
        }
        for i, sums in enumerate(self.sums):
            out |= {f"sums_{i}_{j}": array for j, array in enumerate(sums)}
        out["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        return out

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Found:
        """Undo `to_arrays`."""
        about = json.loads(arrays["about"].tobytes())

        def value_of(plain: Any) -> Any:
            return arrays[plain["array"]] if isinstance(plain, dict) else plain

        return cls(
            [
                [{name: value_of(value) for name, value in of_block.items()} for of_block in each]
                for each in about["values"]
            ],
            [[arrays[f"sums_{i}_{j}"] for j in range(n)] for i, n in enumerate(about["n_sums"])],
            [{name: Ref(*ref) for name, ref in found.items()} for found in about["saved"]],
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
