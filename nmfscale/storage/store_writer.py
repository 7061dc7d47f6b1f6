"""Writes packed stores; `nmfscale.storage.store` describes their format."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..counts.base import CountMatrix
from ..counts.blocks import ValueCounts
from .arrays import put, put_json, put_names
from .atomic import atomic_hdf5, target_of
from .label_tables import put_table
from .store import FORMAT, FORMAT_VERSION, MEASURED, NAMES, OBS, WEIGHTS, is_store
from .store_blocks import ORDERS, PARTS
from .stored_layout import VALUES
from .version import package_version


def check_target(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Return the resolved path of the file; refuse to replace anything but a packed store."""
    target = target_of(path)
    if target.exists() and not overwrite and not is_store(target):
        raise FileExistsError(f"{path} exists and is not a packed store; it was not changed.")
    return target


def pack(
    counts: CountMatrix, path: str | os.PathLike[str], *, n_threads: int = 1,
    source: dict[str, Any] | None = None, progress: Callable[[int], Any] | None = None,
    overwrite: bool = False,
) -> None:  # fmt: skip
    """Write counts to a packed store, block by block; the file appears complete or not at all.

    The store does not depend on `n_threads`. `source` is stored as a record of where the counts
    come from. `progress` is called with the number of nonzero counts written since its last call.
    An existing file that is not a packed store is replaced only with `overwrite`.
    """
    target = check_target(path, overwrite)
    with atomic_hdf5(target) as (file, check_disk):
        _write(file, counts, n_threads, source or {}, progress, check_disk)
        file.flush()
        file.attrs["complete"] = 1


def _write(
    file: Any, counts: CountMatrix, n_threads: int, source: dict[str, Any], progress: Any,
    check_disk: Callable[[], None],
) -> None:  # fmt: skip
    layout = counts.layout(n_threads)
    value_counts = ValueCounts(layout)
    for i, (block, *both) in enumerate(layout.visit_both()):
        group = file.create_group(f"blocks/{i:06d}")
        group.attrs["start"], group.attrs["stop"] = block.start, block.stop
        for order, slices in zip(ORDERS, both, strict=True):
            for part in PARTS:
                put(group, f"{order}_{part}", getattr(slices, part))
        value_counts.add(both[0])
        check_disk()
        if progress is not None:
            progress(int(counts.row_nnz[block.start : block.stop].sum()))
    for which in ORDERS:
        side = which[:-1]
        put(file, f"{which}/nnz", getattr(counts, f"{side}_nnz"))
        put(file, f"{which}/totals", getattr(counts, f"{side}_totals"))
    pairs, parts = {"large": layout.large}, []
    values = value_counts.result()
    if values is not None:
        pairs[VALUES] = values
        parts.append(VALUES)
    for name, pair in pairs.items():
        put(file, f"{name}/value", pair[0])
        put(file, f"{name}/times", pair[1])
    for part, name in NAMES.items():
        if getattr(counts, name) is not None:
            put_names(file, part, getattr(counts, name))
            parts.append(part)
    if counts.obs:
        put_table(file, OBS, counts.obs)
        parts.append(OBS)
    if counts.measured is not None:
        put(file, f"{MEASURED}/features", counts.measured[0].astype(np.uint8))
        put(file, f"{MEASURED}/panel", counts.measured[1].astype(np.int64))
        parts.append(MEASURED)
    if counts.feature_weights is not None:
        put(file, WEIGHTS, counts.feature_weights)
        parts.append(WEIGHTS)
    put_json(file, "about", {
        "shape": [int(size) for size in counts.shape], "nnz": int(counts.nnz),
        "dtype": str(counts.dtype), "slice_dtype": str(layout.count_dtype),
        "largest": float(counts.largest), "notes": counts.notes, "source": source,
        "first_fraction": counts.first_fraction, "parts": parts,
        **({"of_text": True} if counts.of_text else {}),
    })  # fmt: skip
    file.attrs.update({
        "format": np.bytes_(FORMAT), "format_version": FORMAT_VERSION,
        "nmfscale_version": np.bytes_(package_version()),
    })  # fmt: skip
