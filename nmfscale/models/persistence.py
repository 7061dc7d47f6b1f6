"""Model files: one fitted estimator in one HDF5 file, without pickle.

Format 2.  Root attributes: ``format`` = "nmfscale-model", ``format_version`` = 2, ``model`` (class
name), ``nmfscale_version`` and ``created`` (UTC, ISO 8601) of the writer.  Dataset ``about``, one
JSON object as bytes:

- ``parameters``: the constructor's arguments.  What JSON cannot hold is an object with one key:
  ``{"tuple": [...]}``, ``{"dict": {...}}``, ``{"dtype": "float32"}``,
  ``{"dataset": "parameters/init"}`` or, for text, ``{"names": ["parameters/init", "<U6"]}``, or
  ``{"record": ["SparsityPenalty", {...}]}``; a Series or DataFrame is
  ``{"labelled": [values, rows, columns]}``.
  Generators and functions become null;
- ``fitted``: each fitted attribute and its kind ("array", "text", a type of text such as "<U6",
  "scalar", "bool", "int", "float", "str", "table" or "none");
- ``left_out``: what was not stored and the type it had.

One dataset for each fitted attribute, named without the closing underscore: ``components``
(K, m), ``loadings`` (n, K), ``size_factors`` (n,), ``scales`` (K,), ``history`` (compound, one
record per iteration), ``loglik``, ``converged``, ``n_iter``, ``n_features_in`` and so on.
Attributes of kind "str" are arrays of bytes.  Text, such as ``feature_names`` (m,),
``sample_names`` (n,) and ``topic_names`` (K,), is a group, and so is the table ``obs`` (see
`nmfscale.storage.label_tables`).  Checksums and text are those of `nmfscale.storage.arrays`.

Format 1 can be read as well: its checksums do not include shapes, so a reshaped parameter is not
detected, and the type of text is in an attribute ``dtype``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ..counts.label_table import LabelTable
from ..storage.arrays import (
    damaged,
    put,
    put_json,
    put_names,
    put_text,
    read_attribute,
    read_checked,
    read_json,
    read_names,
    read_text,
)
from ..storage.atomic import atomic_hdf5, target_of, user_path
from ..storage.hdf5 import find, format_of, is_transient, read_file
from ..storage.label_tables import put_table, read_table
from ..storage.plain import NotPlainError, decode, encode, is_text, kind_of
from ..storage.version import package_version
from .registry import PARAMETERS, model_class
from .topics.topics import AXES

FORMAT = "nmfscale-model"
FORMAT_VERSION = 2

# Attributes that are a number, unless topics and features have numbers of their own.
_NUMBERS_OR_ARRAYS = {"topic_word_prior_", "shape_factors_"}
# Attributes with a value for each topic that are not numeric results of a fit.
_LABELS = {"topic_names_", "anchors_", "anchor_names_", "fixed_topics_"}
_WORDS = "model", "nmfscale_version", "created"
# Folder of the datasets of parameters.
_FOLDER = "parameters/"
_PLAIN = {"bool": bool, "int": int, "float": float, "str": str}
_TYPES = {"bool": ("bool",), "int": ("i", "u"), "float": ("float64",)}
# Errors that reading a damaged file may raise.
_DAMAGE = AttributeError, KeyError, OSError, RuntimeError, StopIteration, TypeError, UnicodeError


def save_model(estimator: BaseEstimator, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a model file, atomically.

    The file holds the constructor's parameters and every attribute that ends with one underscore
    and is a number, a string, a boolean, None or an array.
    """
    check_is_fitted(estimator, "components_")
    with atomic_hdf5(target_of(path)) as (file, _):
        write_model(file, estimator)


def load_model(
    path: str | os.PathLike[str], *, classes: Mapping[str, type[BaseEstimator]] | None = None
) -> BaseEstimator:
    """Read a fitted estimator from a model file.

    Parameters
    ----------
    path : str or path-like
        A file written by `save` of a model, such as :meth:`PoissonNMF.save`, or by the shell.
    classes : mapping of str to class, default=None
        Estimator classes by name; by default the models of this package, and those of other
        packages that this process has imported, or that have an entry point "nmfscale.models".

    Returns
    -------
    BaseEstimator
        Estimator of the saved class, with the same parameters and fitted attributes, bit for bit.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not a model file, is damaged or incomplete, or comes from a newer version.
    OSError
        If a writer locks the file, or the disk cannot be read, for half a minute.

    Examples
    --------
    See :meth:`nmfscale.PoissonNMF.save`.
    """
    model: BaseEstimator = read_or_damaged(path, partial(read_model, classes=classes))
    return model


def read_model(file: Any, classes: Mapping[str, type[BaseEstimator]] | None = None) -> Any:
    """Read the estimator that `write_model` has written to a file or group."""
    header, parameters, fitted, estimator_class = _contents(classes, file)
    parameter_names = estimator_class._get_param_names()
    unknown = sorted(set(parameters).difference(parameter_names))
    if unknown:
        raise ValueError(
            f"{file.file.filename} has parameters that {header['model']} of this version does not "
            f"know: {', '.join(unknown)}.  Read it with nmfscale {header['nmfscale_version']}."
        )
    estimator = estimator_class(**parameters)
    for name, value in fitted.items():
        setattr(estimator, name, value)
    return estimator


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the header of a model file, without its arrays."""
    return dict(read_or_damaged(path, _header))


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is an HDF5 file that declares itself a model of nmfscale."""
    return format_of(user_path(path)) == FORMAT


def _dataset_name(attribute: str) -> str:
    return "feature_names" if attribute == "feature_names_in_" else attribute[:-1]


def write_model(file: Any, estimator: BaseEstimator) -> None:
    """Write a fitted estimator to an HDF5 file, or to a group of one."""
    left_out: dict[str, str] = {}
    fitted = {}
    for name, value in vars(estimator).items():
        if not name.endswith("_") or name.endswith("__") or name.startswith("_"):
            continue
        if kind := "table" if isinstance(value, LabelTable) else kind_of(value):
            _store(file, _dataset_name(name), value, kind)
            fitted[name] = kind
        else:
            left_out[name] = type(value).__name__
    parameters = {
        name: _encoded(value, name, file, left_out)
        for name, value in estimator.get_params(deep=False).items()
    }
    put_json(file, "about", {"parameters": parameters, "fitted": fitted, "left_out": left_out})
    file.attrs["format_version"] = FORMAT_VERSION
    created = datetime.now(UTC).isoformat(timespec="seconds")
    words = FORMAT, type(estimator).__name__, package_version(), created
    for name, word in zip(("format", *_WORDS), words, strict=True):
        file.attrs[name] = np.bytes_(word)


def _encoded(value: Any, name: str, file: Any, left_out: dict[str, str]) -> Any:
    """Return the JSON form of a parameter; arrays are written to datasets of the file."""
    dropped: dict[str, str] = {}
    try:
        encoded = encode(
            value, f"{_FOLDER}{name}", partial(_store, file), dropped, keep_labels=True,
            classes=PARAMETERS,
        )  # fmt: skip
    except NotPlainError as error:
        raise TypeError(
            f"parameter {str(error).removeprefix(_FOLDER)}, which a model file cannot hold; set it "
            f"to None with set_params({error.name.removeprefix(_FOLDER)}=None) before saving."
        ) from None
    left_out |= {place.removeprefix(_FOLDER): kind for place, kind in dropped.items()}
    return encoded


def _store(file: Any, name: str, value: Any, kind: str) -> None:
    if is_text(kind):
        # names of other types, such as the numbers of a pandas index, are stored as text
        put_names(file, name, value)
    elif kind == "str":
        put_text(file, name, value)
    elif kind == "table":
        put_table(file, name, value)
    elif kind != "none":
        put(file, name, value)


def read_or_damaged(path: str | os.PathLike[str], read: Callable[[Any], Any]) -> Any:
    """Call `read` with the file; raise ValueError for damage of any kind."""
    path = user_path(path)
    with open(path, "rb"):  # missing file, folder, no permission: Python's own messages
        pass
    try:
        return read_file(path, read)
    except _DAMAGE as error:
        if is_transient(error):
            raise
        raise ValueError(f"{path} is damaged or was cut off: {error}") from error


def _contents(
    classes: Mapping[str, Any] | None, file: Any
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], type[BaseEstimator]]:
    """Read the header, parameters and fitted attributes, and find the class."""
    header = _header(file)
    estimator_class = _find_class(header["model"], classes, file.file.filename)
    for name in header["fitted"]:
        if not name.endswith("_") or name.startswith("_"):
            raise damaged(file, f"{name!r} is not a fitted attribute.")
    read = partial(_read_parameter, file)
    parameters = {
        name: decode(item, read, PARAMETERS) for name, item in header["parameters"].items()
    }
    fitted = {name: _read(file, name, kind) for name, kind in header["fitted"].items()}
    _check_shapes(file, fitted, AXES | getattr(estimator_class, "array_axes", {}))
    return header, parameters, fitted, estimator_class


def _header(file: Any) -> dict[str, Any]:
    if "format" not in file.attrs or read_attribute(file, "format", "S") != FORMAT:
        raise ValueError(
            f"{file.file.filename} is an HDF5 file but not a model file (no attribute "
            f"format={FORMAT!r})."
        )
    header: dict[str, Any] = {"format_version": int(read_attribute(file, "format_version"))}
    version = header["format_version"]
    if version < 1:
        raise damaged(file, f"format_version is {version}.")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{file.file.filename} has model format {version}; this nmfscale reads up to "
            f"{FORMAT_VERSION}.  Upgrade nmfscale (the file was written by "
            f"{read_attribute(file, 'nmfscale_version', 'S')})."
        )
    header |= {name: read_attribute(file, name, "S") for name in _WORDS}
    about = read_json(file, "about")
    for name in ("parameters", "fitted", "left_out"):
        if not isinstance(about.get(name), dict):
            raise damaged(file, f"about has no JSON object {name!r}.")
        header[name] = about[name]
    return header


def _find_class(name: str, classes: Mapping[str, Any] | None, path: Any) -> type[BaseEstimator]:
    estimator_class = model_class(name) if classes is None else classes.get(name)
    if not (isinstance(estimator_class, type) and issubclass(estimator_class, BaseEstimator)):
        raise ValueError(
            f"{path} holds a {name}, a model that this nmfscale does not have: if another package "
            "defines it, install or import that first."
        )
    return estimator_class


def _read(file: Any, attribute: str, kind: str) -> Any:
    """Read one fitted attribute."""
    name = _dataset_name(attribute)
    if kind == "none":
        return None
    if is_text(kind):
        return _read_text(file, name, kind)
    if kind == "str":
        return read_text(file, name)
    if kind == "table":
        return read_table(file, name)
    if kind == "array":
        return np.asarray(read_checked(file, name))
    value = read_checked(file, name, (), _TYPES.get(kind, ()))
    return _PLAIN[kind](value) if kind in _PLAIN else value


def _read_text(file: Any, name: str, kind: str) -> np.ndarray:
    node = find(file, name)
    if node is not None and "dtype" in node.attrs:  # format 1
        kind = read_attribute(node, "dtype", "S")
    return read_names(file, name).astype(object if kind in ("text", "object") else kind)


def _read_parameter(file: Any, place: str, kind: str) -> Any:
    """Read an array that is, or is part of, a parameter."""
    if kind != "array":
        return _read_text(file, place, kind)
    node = find(file, place)
    if node is not None and "dtype" in node.attrs:  # text in format 1
        return _read_text(file, place, "text")
    return read_checked(file, place)


def _check_shapes(file: Any, fitted: dict[str, Any], all_axes: dict[str, str]) -> None:
    """Refuse arrays of inconsistent shapes, and numbers that no fit produces."""
    if "components_" not in fitted:
        raise damaged(file, "the dataset 'components' is missing.")
    sizes = {"m": fitted["n_features_in_"]} if "n_features_in_" in fitted else {}
    for table in fitted.values():
        if isinstance(table, LabelTable) and table.size is not None:
            sizes.setdefault("n", table.size)
    for name, axes in all_axes.items():
        if fitted.get(name) is None:
            continue
        value = np.asarray(fitted[name])
        if name in _NUMBERS_OR_ARRAYS and value.ndim == 0:  # one number for all
            continue
        for axis, size in zip(axes, value.shape, strict=False):
            sizes.setdefault(axis, size)
        expected = tuple(sizes.get(axis) for axis in axes)
        if value.shape != expected:
            raise damaged(
                file, f"the dataset {_dataset_name(name)!r} has shape {value.shape} where "
                f"{expected} was expected."
            )  # fmt: skip
        if "k" in axes and value.dtype.kind != "f" and name not in _LABELS:
            raise damaged(file, f"{_dataset_name(name)!r} is of type {value.dtype}.")
        if name == "unseen_features_" and value.dtype.kind != "b":
            raise damaged(file, f"{_dataset_name(name)!r} is of type {value.dtype}.")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise damaged(file, f"{_dataset_name(name)!r} holds NaN or infinity.")
