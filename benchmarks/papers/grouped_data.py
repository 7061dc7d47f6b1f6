"""Counts of samples in groups, with the units that were sampled, for the scripts on the thesis."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import nmfscale

# What each file NAME.npz is grouped by, and the units; labels are in NAME_meta.json.gz.
LABELS = {
    "beer_canada": ("row_label", "row_brewery"),
    "poliblog5k": ("row_rating", "row_blog"),
    "congress109": ("row_party", "row_state"),
}


class Grouped(NamedTuple):
    """Counts (n, m), a group and a unit for each of n samples, m features."""

    counts: Any
    groups: np.ndarray
    units: np.ndarray
    features: np.ndarray


def available(name: str) -> bool:
    """Return whether the counts are there; print what is missing if not."""
    folder = os.environ.get("NMFSCALE_DATA")
    files = [f"{name}.npz", f"{name}_meta.json.gz"]
    lacking = [] if folder is None else [each for each in files if not Path(folder, each).exists()]
    if folder is None or lacking:
        what = f"{', '.join(lacking)} not found in" if folder else "set"
        print(f"{name} is skipped: {what} NMFSCALE_DATA (see README.md)", flush=True)
    return not (folder is None or lacking)


def load(name: str) -> Grouped:
    """Return the counts of a file in the folder NMFSCALE_DATA."""
    folder = Path(os.environ["NMFSCALE_DATA"])
    with gzip.open(folder / f"{name}_meta.json.gz") as file:
        meta = json.load(file)
    groups, units = (np.array(meta[key]) for key in LABELS[name])
    return Grouped(sp.load_npz(folder / f"{name}.npz"), groups, units, np.array(meta["cols"]))


def docstrings(packages: tuple[str, ...] = nmfscale.datasets.corpora.PACKAGES) -> Grouped:
    """Return the built-in corpus: docstrings by package; units are subpackages or modules."""
    corpus = nmfscale.datasets.docstrings(packages)
    units = [
        ".".join(name.split(".")[: 1 if package == "stdlib" else 2])
        for name, package in zip(corpus.sample_names, corpus.groups, strict=True)
    ]
    return Grouped(corpus, corpus.groups, np.array(units), np.array(corpus.feature_names))
