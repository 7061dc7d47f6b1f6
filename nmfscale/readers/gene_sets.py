"""read_gmt: gene sets of a GMT file."""

from __future__ import annotations

import os

from ..storage.atomic import user_path
from .sources.name_files import lines_of
from .sources.sources import NamedFileError


def read_gmt(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    r"""Read the gene sets of a GMT file, such as those of MSigDB and Enrichr.

    Each line is one set: its name, a description, and its genes, separated by tabs. A gene may have
    a weight after a comma, as in files of Enrichr, which is left out.

    Parameters
    ----------
    path : str or path-like
        The file, plain or gzip.

    Returns
    -------
    dict of str to list of str
        Genes of each set, in the order of the file, each gene once.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line is no gene set, or two sets have the same name.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import nmfscale
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "markers.gmt")
    ...     size = path.write_text("B cells\tmarkers\tMS4A1\tCD79A\nT cells\tmarkers\tCD3D\n")
    ...     nmfscale.read_gmt(path)
    {'B cells': ['MS4A1', 'CD79A'], 'T cells': ['CD3D']}
    """
    file = user_path(path)
    sets: dict[str, list[str]] = {}
    for number, line in enumerate(lines_of(file), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, *fields = (field.strip() for field in line.split("\t"))
        genes = [field.split(",")[0] for field in fields[1:] if field]
        if not name or not genes:
            raise NamedFileError(
                f"{file}, line {number}: {line[:60]!r} is no gene set: its name, a description and "
                "at least one gene, separated by tabs, are needed."
            )
        if name in sets:
            raise NamedFileError(
                f"{file}, line {number}: there is a gene set {name!r} above: rename one of the two."
            )
        sets[name] = list(dict.fromkeys(genes))
    if not sets:
        raise NamedFileError(f"{file} has no gene sets: it is empty.")
    return sets
