"""Objects of other libraries: accepted, converted, or refused before NumPy iterates over them.

NumPy makes an array of any object with a length and items. If the items are computed on access,
that may never end. Types are recognised by the names of their packages, without importing these.
"""

from __future__ import annotations

import os
import reprlib
from collections import deque
from collections.abc import Iterator, Mapping, Set
from numbers import Number
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp

_KNOWN = (
    "Pass a NumPy array, a SciPy sparse matrix, a DataFrame, an AnnData object, a dask array, or "
    "the path of a file."
)
_TEXTS = (
    "Count the words of texts first: nmfscale.text_counts(X), or scikit-learn's CountVectorizer."
)
_TOKENS = (
    "Count words first: nmfscale.text_counts([' '.join(words) for words in X]), or with gensim "
    "[dictionary.doc2bow(words) for words in X]."
)
# Remedies by package and class, or by package.
_REMEDIES = {
    "anndata.AnnCollection": "Pass collection.to_adata(), which is in memory.",
    "anndata.AnnCollectionView": "Pass view.to_adata(), which is in memory.",
    "anndata.Raw": "Pass adata.raw.X or adata.raw.to_adata().",
    "anndata": "Pass the AnnData object, with layer= or raw= for a part of it.",
    "cupy": "Pass X.get().",
    "cupyx": "Pass X.get().",
    "dask.DataFrame": "Pass X.to_dask_array(lengths=True), or X.compute().",
    "dask": "Pass the result of its .compute(), which is in memory.",
    "distributed": "Pass its .result().",
    "gensim.Dictionary": "Pass the corpus, with feature_names=dictionary.",
    "mudata": "Pass one of its modalities, as mdata['rna'].",
    "polars.LazyFrame": "Pass X.collect().",
    "pyspark": "Pass X.toPandas().",
}
_REMEDIES_OF_LISTS = {
    "anndata.AnnData": "Join them: nmfscale.concat(X).",
    "mudata": "Pass a modality of one of them, as X[0]['rna'].",
    "pandas.DataFrame": "Join them: pandas.concat(X).",
    "polars.DataFrame": "Join them: polars.concat(X).",
    "scipy": "Join them: scipy.sparse.vstack(X, format='csr').",
    "sparse": "Join them: sparse.concatenate(X).",
    "dask": "Join them: dask.array.concatenate(X).",
}
_LISTS = list | tuple | deque
# Classes with one of these convert to an array at once, or raise an error that says why not.
_ARRAYS = "__array__", "__array_interface__", "__array_struct__"
_ITEMS = "__len__", "__getitem__", "__iter__"


class ObjectTypeError(TypeError, ValueError):
    """An object is not a matrix of counts (also a ValueError, like NumPy's own refusals)."""


def imported_pandas(what: str = "tables of results") -> Any:
    """Return the module pandas; if it is not installed, the error says that `what` needs it."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(f"{what} need the package pandas: pip install pandas") from error
    return pandas


def known_matrix(X: Any, subject: str = "X") -> Any:
    """Return an object that NumPy or SciPy can convert to a matrix at once; refuse any other.

    Arrays of pydata's ``sparse`` become SciPy matrices, Arrow tables become DataFrames.
    """
    kind = type(X)
    packages = packages_of(kind)
    if X is None or isinstance(X, np.ndarray | Number) or sp.issparse(X):
        return X
    if isinstance(X, _LISTS):
        _check_list(X, subject)
        return X
    if "sparse" in packages:
        return _of_sparse(X, subject)
    if "pyarrow" in packages and hasattr(kind, "to_pandas") and hasattr(kind, "column_names"):
        return X.to_pandas()
    if "dask" in packages and hasattr(kind, "numblocks"):
        return X
    if "anndata" in packages and hasattr(kind, "format"):  # a part of an AnnData object in a file
        return X
    remedy = _remedy(kind, _REMEDIES)
    if remedy is None and (_has(kind, _ARRAYS) or _is_buffer(X)):
        return X
    _refuse(X, subject, remedy or _remedy_of_collection(kind))


_REMEDY_OF_ANNOTATED = "pass an array, such as one of its obsm or varm, or a column of its obs."


def refuse_annotated(values: Any, argument: str, remedy: str = _REMEDY_OF_ANNOTATED) -> None:
    """Refuse an AnnData or MuData object as an argument other than counts.

    NumPy would make an object of each row, and of each of its rows again.
    """
    if hasattr(type(values), "obs_names"):
        raise ObjectTypeError(f"{argument} is {_type_name(type(values))} object: {remedy}")


def _refuse(X: Any, subject: str, remedy: str) -> NoReturn:
    what = f"{subject} is {_type_name(type(X))}, which is not a supported matrix of counts"
    raise ObjectTypeError(f"{what}. {remedy}")


def _type_name(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOaeiou' else 'a'} {kind.__name__}"


def packages_of(kind: type) -> list[str]:
    """Return the names of the packages of a class and of its base classes."""
    return [str(base.__module__).partition(".")[0] for base in kind.__mro__]


def _remedy(kind: type, remedies: dict[str, str]) -> str | None:
    packages = packages_of(kind)
    names = [*(f"{package}.{kind.__name__}" for package in packages), *packages]
    return next((remedies[name] for name in names if name in remedies), None)


def _remedy_of_collection(kind: type) -> str:
    if issubclass(kind, Iterator):
        return f"It can be read only once: pass numpy.array(list(X)) of rows of numbers. {_TEXTS}"
    if issubclass(kind, Mapping):
        return "Pass pandas.DataFrame(X), samples x features."
    if issubclass(kind, Set):
        return f"Its items have no order. {_KNOWN}"
    return _KNOWN


def _has(kind: type, names: tuple[str, ...]) -> bool:
    return any(hasattr(kind, name) for name in names)


def _is_buffer(X: Any) -> bool:
    if isinstance(X, range):
        return True
    try:
        memoryview(X)
    except TypeError:
        return False
    return not isinstance(X, bytes | bytearray)


def _of_sparse(X: Any, subject: str) -> Any:
    """Convert an array of pydata's sparse to a SciPy matrix."""
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead. Reshape your data.")
    if X.fill_value != 0:
        what = f"a {type(X).__name__} with fill_value={X.fill_value}"
        raise ValueError(f"{subject} is {what}: entries that are not stored must be 0.")
    # DOK arrays lack to_scipy_sparse
    return (X if hasattr(X, "to_scipy_sparse") else X.to_coo()).to_scipy_sparse()


# Lists ----------------------------------------------------------------------------------------


def _check_list(X: Any, subject: str) -> None:
    """Refuse a list of anything but numbers or rows of numbers; look only at the items' types."""
    _check_items(X, subject, "a list")
    rows = [row for row in X if isinstance(row, _LISTS)]
    if any(_has_lists(row) for row in rows):
        raise ObjectTypeError(
            f"{subject} is a list of lists of lists, not of rows of numbers. {_KNOWN} A corpus of "
            "gensim has pairs (number of a word, count)."
        )
    words = [row for row in rows if any(isinstance(item, str) for item in row)]
    if words and set(map(len, rows)) != {1}:
        example = reprlib.repr(words[0])
        raise ObjectTypeError(f"{subject} has rows of words, such as {example}. {_TOKENS}")
    for row in rows:
        _check_items(row, subject, "a list of lists")
    lengths = list(map(len, rows))
    if len(rows) == len(X) and len(set(lengths)) > 1:
        odd = next(i for i, length in enumerate(lengths) if length != lengths[0])
        remedy = "Complete the short rows, or leave them out."
        raise ValueError(
            f"{subject} is a list of rows of different lengths: row 0 has {lengths[0]} entries, "
            f"row {odd} has {lengths[odd]}. {remedy}"
        )


def _has_lists(row: Any) -> bool:
    return any(issubclass(kind, _LISTS) for kind in set(map(type, row)))


def _check_items(X: Any, subject: str, what: str) -> None:
    for kind in set(map(type, X)):
        remedy = None if issubclass(kind, _LISTS | Number | bytes) else _remedy_of_item(X, kind)
        if remedy is not None:
            at = next(i for i, item in enumerate(X) if type(item) is kind)
            message = f"{subject} is {what}, and item {at} is {_type_name(kind)}"
            raise ObjectTypeError(f"{message}, not {_NUMBERS[what]}. {remedy}")


_NUMBERS = {"a list": "a row of numbers", "a list of lists": "a number"}


def _remedy_of_item(X: Any, kind: type) -> str | None:
    """Return what to pass in place of a list of such items; None if NumPy can convert it."""
    if issubclass(kind, os.PathLike):
        return "nmfscale.concat takes lists of files, counts and AnnData objects."
    remedy = _remedy(kind, _REMEDIES_OF_LISTS) or _remedy(kind, _REMEDIES)
    if remedy is not None:
        return remedy
    if issubclass(kind, Mapping):
        return "Pass sklearn.feature_extraction.DictVectorizer().fit_transform(X)."
    if issubclass(kind, str) or _has(kind, _ARRAYS) or not _has(kind, _ITEMS):
        return None
    return _remedy_of_collection(kind)
