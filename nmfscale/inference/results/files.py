"""Result files: one result of this folder in one HDF5 file, without pickle.

Format 3.  Root attributes: ``format`` = "nmfscale-result" and ``format_version`` = 3.  Dataset
``about``, one JSON object as bytes:

- ``result``: class of the result;
- ``fields``: its fields, in the form of `nmfscale.storage.plain`; ``{"model": field}`` is a group
  as in a model file;
- ``nmfscale_version`` and ``created`` (UTC, ISO 8601) of the writer;
- ``command`` and ``parameters``, if the shell wrote the file.

The name of an array is that of its field, such as ``z`` or ``components.lower``.  Checksums and
names are those of `nmfscale.storage.arrays`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from functools import wraps
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...markup import paragraph, table
from ...models.base import CountModel
from ...models.persistence import read_model, read_or_damaged, write_model
from ...models.tables import Tabular, first_rows
from ...storage.arrays import (
    damaged,
    put,
    put_json,
    put_names,
    read_attribute,
    read_checked,
    read_json,
    read_names,
)
from ...storage.atomic import atomic_hdf5, target_of
from ...storage.hdf5 import find, format_of
from ...storage.plain import decode, encode, is_text
from ...storage.version import package_version
from ...terminal import visible

Array = NDArray[Any]
FORMAT, FORMAT_VERSION = "nmfscale-result", 3
# The classes that a file may name: results, and what is inside of them, by module.
_CLASSES = {
    "inference.batches.effects_result": ("BatchEffects",),
    "inference.choice.coherence_result": ("TopicCoherence",),
    "inference.choice.modality_scores_result": ("ModalityScores",),
    "inference.choice.consensus": ("Consensus",),
    "inference.regression.least_squares": ("LeastSquares",),
    "inference.regression.moderation": ("Moderation",),
    "inference.regression.one_way": ("OneWay",),
    "inference.regression.robust": ("HC3", "CR3"),
    "inference.regression.within_blocks": ("WithinBlocks",),
    "inference.groups.bootstrap_result": ("BootstrapWeights",),
    "inference.samples.cluster_samples_result": ("SampleClusters",),
    "inference.samples.find_samples_result": ("LeadingSamples",),
    "inference.samples.ranked_samples_result": ("RankedSamples",),
    "inference.choice.compare_fits_result": ("FitComparison", "FitSummary"),
    "inference.groups.correspondence_result": ("CorrespondenceAnalysis",),
    "inference.features.conditions_result": ("ConditionFeatures",),
    "inference.features.differential_result": ("DifferentialFeatures",),
    "inference.features.enrichment_result": ("Enrichment",),
    "inference.features.features_by_group_result": ("FeaturesByGroup",),
    "inference.regression.effects_result": ("GroupDifferences", "GroupEffects"),
    "inference.replicates.jackknife_result": ("JackknifeEstimates", "JackknifeFit"),
    "inference.features.noisy_pairs_result": ("NoisyPairs",),
    "inference.features.pseudobulk_result": ("Pseudobulk",),
    "inference.results.origin": ("Origin",),
    "inference.groups.permutation_result": ("GroupTest", "PermutationTest"),
    "inference.replicates.refit_result": ("BootstrapFit", "Estimates"),
    "inference.regression.regression_result": ("ProportionRegression",),
    "inference.features.seed_shares_result": ("SeedShares",),
    "inference.choice.hierarchy_result": ("TopicHierarchy",),
    "inference.choice.select_k_result": ("SelectK",),
    "inference.choice.stability_result": ("Stability",),
    "inference.choice.topic_levels_result": ("TopicLevels",),
    "inference.choice.topic_quality_result": ("TopicQuality",),
    "inference.several_fits.cluster_topics_result": ("TopicClusters",),
    "models.comparison": ("TopicMatch",),
}

# Rows of a table in a notebook.
_MOST_ROWS = 20


class Result(Tabular):
    """A result that has tables, can be saved, and is shown in a notebook: a dataclass."""

    def __init_subclass__(cls) -> None:
        """Let the text of every result show control characters in names, and not obey them."""
        super().__init_subclass__()
        written = cls.__dict__.get("__repr__")
        if written is not None:
            cls.__repr__ = wraps(written)(lambda self: visible(written(self)))  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        """Return the text of the result as HTML, with a table if the text has none."""
        text = repr(self)
        if "\n" in text:
            return f"<pre>{escape(text)}</pre>"
        rows, more = first_rows(self, _MOST_ROWS)
        return paragraph(f"{text.strip('<>')} {more}".rstrip()) + table(rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to an HDF5 file, which :func:`nmfscale.load_result` reads.

        Parameters
        ----------
        path : str or path-like
            The file to write, such as ``"genes.h5"``. It appears complete or not at all.
        """
        save_result(self, path)


def save_result(
    result: Result, path: str | os.PathLike[str], *, arrays: Mapping[str, Any] | None = None,
    names: Mapping[str, Array] | None = None, about: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a result, and more arrays, names and facts, which are not read as the result."""
    header = {
        "result": type(result).__name__, "nmfscale_version": package_version(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    with atomic_hdf5(target_of(path)) as (file, _):
        values = {field.name: getattr(result, field.name) for field in fields(result) if field.init}  # type: ignore[arg-type]
        encoded = {name: _encoded(value, name, file) for name, value in values.items()}
        for name, array in (arrays or {}).items():
            if name not in file:
                put(file, name, array)
        for name, labels in (names or {}).items():
            if name not in file:
                put_names(file, name, labels)
        put_json(file, "about", header | {"fields": encoded} | dict(about or {}))
        file.attrs["format"], file.attrs["format_version"] = np.bytes_(FORMAT), FORMAT_VERSION


def load_result(path: str | os.PathLike[str]) -> Any:
    """Read a result of this package from a file.

    Parameters
    ----------
    path : str or path-like
        A file that the method ``save`` of a result has written, or a command of the shell with
        ``-o FILE.h5``.

    Returns
    -------
    result
        An object of the saved class, equal to the saved one.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not a result file, is damaged, or comes from a newer version.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import nmfscale
    >>> X, _ = nmfscale.datasets.simulate_topic_counts(60, 40, 3, random_state=0)
    >>> model = nmfscale.TopicModel(3, random_state=0).fit(X)
    >>> found = nmfscale.differential_features(model, X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found.save(Path(folder, "differential.h5"))
    ...     again = nmfscale.load_result(Path(folder, "differential.h5"))
    >>> bool((again.z == found.z).all())
    True
    """
    return read_or_damaged(path, _read)


def is_result_file(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is an HDF5 file that declares itself a result of nmfscale."""
    return format_of(Path(path)) == FORMAT


def result_classes() -> dict[str, Any]:
    """Return the classes of results, and of what is inside of them, by name."""
    return {
        name: getattr(import_module(f"nmfscale.{module}"), name)
        for module, names in _CLASSES.items()
        for name in names
    }


def _encoded(value: Any, name: str, file: Any) -> Any:
    """Return the JSON form of a field; arrays and models are written to the file."""
    if isinstance(value, CountModel):
        write_model(file.create_group(name), value)
        return {"model": name}

    def store(place: str, array: Array, kind: str) -> None:
        (put_names if is_text(kind) else put)(file, place, array)

    return encode(value, name, store, {}, records=True)


def _read(file: Any) -> Any:
    if "format" not in file.attrs or read_attribute(file, "format", "S") != FORMAT:
        raise ValueError(
            f"{file.filename} is an HDF5 file but not a result file (no attribute "
            f"format={FORMAT!r}); nmfscale.load reads models."
        )
    version, about = int(read_attribute(file, "format_version")), read_json(file, "about")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{file.filename} has result format {version}; this nmfscale reads format "
            f"{FORMAT_VERSION}. Upgrade nmfscale (the file was written by "
            f"{about.get('nmfscale_version')})."
        )
    if version < FORMAT_VERSION:
        raise damaged(file, f"it has format {version} and no result.")
    classes = result_classes()
    result = classes.get(about["result"])
    if result is None or not issubclass(result, Result):
        raise ValueError(
            f"{file.filename} holds a {about['result']}, which this nmfscale does not have."
        )

    def read(place: str, kind: str) -> Array:
        if kind == "array":
            return np.asarray(read_checked(file, place))
        return read_names(file, place).astype(object if kind == "text" else kind)

    values = {}
    for name, value in about["fields"].items():
        if isinstance(value, dict) and "model" in value:
            values[name] = read_model(find(file, value["model"]))
        else:
            values[name] = decode(value, read, classes)
    return result(**values)
