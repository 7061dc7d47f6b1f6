"""The built-in corpus: the docstrings of the standard library and of installed packages."""

from __future__ import annotations

import ast
import functools
import gc
import importlib.util
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..counts.memory import Counts, checked_counts
from ..counts.warn import warn_caller

PACKAGES = ("stdlib", "numpy", "scipy", "dask", "sklearn")

# Tests, programs, vendored copies of other projects and build tools hold no documentation.
_NOT_DOCUMENTED = frozenset(
    "_build_utils _external _lib _pyinstaller _vendor ensurepip externals f2py idlelib lib2to3 "
    "pydoc_data site_packages test testing tests turtledemo".split()
)

# Doctest input, underlined headings, directives, roles and addresses are markup, not text.
_MARKUP = re.compile(
    r"^[ \t]*(?:>>>|\.\.\.).*$|^[ \t]*[A-Za-z ]+\n[ \t]*[-=~]{3,}[ \t]*$"
    r"|\.\.[ \t]+[\w:-]+::|:[\w:]+:(?=`)|https?://\S+",
    re.MULTILINE,
)
_WORD = re.compile("[a-z]{3,}")


class Document(NamedTuple):
    """Qualified name and words of a docstring."""

    name: str
    words: tuple[str, ...]


class Corpus(Counts):
    """Counts of words, which can be unpacked: ``counts, words, groups = corpus``.

    Pass a corpus to a model directly. For other code, :meth:`take_rows` returns a sparse matrix.
    """

    __contains__ = None  # iteration is for unpacking only

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Raise an error: NumPy and pandas would convert the three unpacked objects."""
        raise TypeError(
            f"{self!r} is not an array: pass the sparse matrix counts.take_rows() to other code."
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield the counts, the names of their features, and the groups of their samples."""
        return iter((self, self.feature_names, self.groups))


def docstrings(
    packages: str | Iterable[str] = PACKAGES, *, min_count: int = 5, min_words: int = 10
) -> Corpus:
    """Count the words of docstrings: a corpus of real text that needs no download.

    There is one document for each module, and for each class and function at the top level of a
    module, unless its name begins with an underscore. The source files are parsed in a fixed order
    and never imported, so the same versions of the packages give the same counts.

    Parameters
    ----------
    packages : str or iterable of str, default=("stdlib", "numpy", "scipy", "dask", "sklearn")
        Names of installed packages or single-file modules; ``"stdlib"`` is the standard library.
        Packages without source files on this machine are left out, with a warning.
    min_count : int, default=5
        Words that occur in fewer documents are left out.
    min_words : int, default=10
        Documents with fewer words, and repeated texts, are left out.

    Returns
    -------
    Corpus
        Documents x words, int32: :class:`nmfscale.results.Counts` that can also be unpacked. Words
        are lower-case runs of three or more letters, without scikit-learn's English stop words, in
        alphabetical order. ``feature_names`` are the words, ``sample_names`` the qualified names of
        the documents, and ``groups`` their packages.

    Raises
    ------
    ValueError
        If no document or no word remains.

    Examples
    --------
    >>> from nmfscale.datasets.corpora import docstrings
    >>> counts, words, packages = docstrings(["numpy"])
    >>> "matrix" in words, set(packages.tolist())
    (True, {'numpy'})

    A sparse matrix, for scikit-learn or pandas:

    >>> matrix = counts.take_rows()
    >>> matrix.format, matrix.shape == counts.shape
    ('csr', True)
    """
    packages = [packages] if isinstance(packages, str) else list(packages)
    documents, groups, seen = [], [], set()
    for package in packages:
        try:
            root = _root(package)
        except ImportError as error:
            warn_caller(f"{error}: left out.")
            continue
        for document in _documents(package, root):
            if len(document.words) >= min_words and document.words not in seen:
                seen.add(document.words)
                documents.append(document)
                groups.append(package)
    words, table = _word_counts(documents, min_count)
    filled = np.flatnonzero(np.diff(table.indptr))
    if not filled.size:
        raise ValueError(
            f"No docstring of {packages} has {min_words} words, or no word occurs in {min_count} "
            "documents: lower min_words or min_count, or name more packages."
        )
    corpus: Corpus = checked_counts(
        table[filled], subject="docstrings", kind=Corpus, feature_names=words,
        sample_names=[documents[at].name for at in filled], groups=[groups[at] for at in filled],
        of_text=True,
    )  # fmt: skip
    return corpus


def _word_counts(documents: list[Document], min_count: int) -> tuple[list[str], sp.csr_array]:
    """Return the words that occur in at least `min_count` documents, sorted, and their counts."""
    number: dict[str, int] = {}
    entries = [
        number.setdefault(word, len(number))
        for word in chain.from_iterable(document.words for document in documents)
    ]
    rows = np.repeat(np.arange(len(documents)), [len(document.words) for document in documents])
    shape = (len(documents), len(number))
    table = sp.coo_array((np.ones(len(entries), dtype=np.int32), (rows, entries)), shape).tocsr()
    in_documents = np.bincount(table.indices, minlength=len(number))
    words = sorted(word for word, column in number.items() if in_documents[column] >= min_count)
    return words, table[:, [number[word] for word in words]]


@functools.cache
def _documents(package: str, root: Path) -> tuple[Document, ...]:
    """Return the documents of a package in the order of its files."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    prefix = [] if package == "stdlib" else [package]
    top = sys.stdlib_module_names if package == "stdlib" else None
    documents = []
    with _quick_parsing():
        for path in _source_files(root, top):
            parts = () if path == root else path.relative_to(root).with_suffix("").parts
            module = ".".join([*prefix, *parts]).removesuffix(".__init__")
            for name, text in _texts(path, module):
                tokens = _WORD.findall(_MARKUP.sub(" ", text).lower())
                words = tuple(word for word in tokens if word not in ENGLISH_STOP_WORDS)
                documents.append(Document(name, words))
    return tuple(documents)


def _root(package: str) -> Path:
    """Return the folder of a package, or the file of a single-file module."""
    if package == "stdlib":
        return Path(sysconfig.get_paths()["stdlib"])
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # a submodule of a missing package, or an empty name
        spec = None
    if spec is None:
        raise ModuleNotFoundError(f"{package} is not installed")
    places = list(spec.submodule_search_locations or [spec.origin or "built-in"])
    root = Path(places[0])
    if not (root.is_dir() or root.suffix == ".py"):
        raise ImportError(f"no source files of {package} were found")
    return root


@contextmanager
def _quick_parsing() -> Iterator[None]:
    """Disable garbage collection, which would take half the time of parsing, and warnings."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if was_enabled:
            gc.enable()


def _source_files(folder: Path, top: frozenset[str] | None = None) -> Iterator[Path]:
    """Yield the source files of a package in order; only public modules among `top`, if given."""
    if folder.is_file():
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if top is not None and (path.stem not in top or path.stem.startswith("_")):
            continue
        if path.suffix == ".py" and path.stem not in ("conftest", "setup"):
            yield path
        elif path.name.isidentifier() and path.name not in _NOT_DOCUMENTED:
            if (path / "__init__.py").is_file():
                yield from _source_files(path)


def _texts(path: Path, module: str) -> Iterator[tuple[str, str]]:
    """Yield the qualified names and docstrings in a source file."""
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    text = ast.get_docstring(tree, clean=False)
    if text and not module.rpartition(".")[2].startswith("_"):
        yield module, text
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = None if node.name.startswith("_") else ast.get_docstring(node, clean=False)
            if text:
                yield f"{module}.{node.name}", text
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _added_text(node.value, module.rpartition(".")[0])


def _added_text(call: ast.Call, package: str) -> Iterator[tuple[str, str]]:
    """Yield the docstring of a compiled function, from ``add_newdoc([module,] name, text)``."""
    if getattr(call.func, "id", None) != "add_newdoc":
        return
    texts = [node.value for node in call.args if isinstance(node, ast.Constant)]
    # Fewer constants than arguments: the docstring of a method, given as a tuple.
    if len(texts) == len(call.args) >= 2 and all(isinstance(text, str) for text in texts):
        *name, text = map(str, texts)
        if not name[-1].startswith("_"):
            yield ".".join(name if len(name) > 1 else [package, *name]), text
