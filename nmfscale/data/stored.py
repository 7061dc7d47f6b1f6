"""Counts in files, read into memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from .counts import (
    Counts,
    Whole,
    annotated_counts,
    as_counts,
    check_whole,
    checked_counts,
    mind_fraction,
)
from .formats import ANNOTATED, check_choices, given_choices
from .store import StoredCounts, is_store
from .streams import CountStream, open_stream
from .table import CountTable


def read_counts(
    path_or_object: Any,
    *,
    layer: str | None = None,
    raw: bool = False,
    groups: str | None = None,
    genome: str | None = None,
    feature_type: str | None = None,
    transpose: bool | None = None,
    integer: Whole = "warn",
) -> Counts:
    """Read counts, samples x features, from a file or an object in memory.

    ===================  ====================================================================
    ``.nmf``             a packed store
    ``.npz``             ``scipy.sparse.save_npz``
    ``.mtx``, ``.gz``    Matrix Market; with the names of the 10x ``.tsv`` files beside it
    ``docword.*.txt``    UCI bag of words, also ``.gz``; with the words of ``vocab.*.txt`` beside it
    folder               one with a ``matrix.mtx`` (or ``.mtx.gz``) as 10x writes it
    ``.h5ad``            AnnData, also as written by versions 0.5 to 0.7
    ``.h5``              10x Cell Ranger 2 and 3
    ===================  ====================================================================

    Parameters
    ----------
    path_or_object : str, path or object
        A file of the formats above, or anything that :func:`as_counts` takes.
    layer : str, optional
        AnnData: the layer to read in place of ``X``.
    raw : bool, default=False
        AnnData: read ``raw.X`` in place of ``X``.
    groups : str, optional
        AnnData: the column of ``obs`` that holds a label for each sample.
    genome : str, optional
        10x: the genome to read; needed if a Cell Ranger 2 file holds several, or a folder has one
        folder for each.
    feature_type : str, optional
        10x: the type of features to keep, or ``"all"``. By default gene expression alone where
        several types are mixed.
    transpose : bool, optional
        ``.mtx`` and ``.npz``: whether the file holds features x samples. By default this is
        believed of a ``.mtx`` file with ``barcodes.tsv`` and ``features.tsv`` beside it only.
    integer : {"warn", "allow", "require"}, default="warn"
        What to do about counts that are not whole numbers.

    Returns
    -------
    Counts
        The counts in the type of the file or the next that holds them: see :attr:`Counts.dtype`.
        Names where they were found; gene symbols that stand for several genes are followed by the
        gene's identifier, where that is another.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    OSError
        If an HDF5 file is damaged, cut off, or compressed with a filter that is not installed.
    ValueError
        If the format is not known or the file is of another format than its name says, if a
        choice does not fit the format, or if the numbers are not counts.

    See Also
    --------
    nmfscale.data.streams.open_stream : The same files a range of rows at a time.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import scipy.sparse as sp
    >>> from nmfscale.data.stored import read_counts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "small.npz")
    ...     sp.save_npz(path, sp.csr_array([[0, 2], [1, 0]]))
    ...     read_counts(path)
    <Counts 2 x 2, 2 nonzero, int64>
    """
    check_whole(integer)
    choices: dict[str, Any] = {
        "layer": layer,
        "raw": raw,
        "groups": groups,
        "genome": genome,
        "feature_type": feature_type,
        "transpose": transpose,
    }
    if not isinstance(path_or_object, (str, os.PathLike)):
        found = object_counts(path_or_object, given_choices(**choices), integer)
        if not isinstance(found, Counts):
            raise ValueError(
                f"{type(path_or_object).__name__} is no object in memory; nmfscale.as_counts takes "
                "it as it is."
            )
        return found
    if Path(path_or_object).is_file() and is_store(path_or_object):
        check_choices(given_choices(**choices), (), str(path_or_object))
        counts, holder = StoredCounts(path_or_object).in_memory(), str(path_or_object)
    else:
        with open_stream(path_or_object, **choices, memory_limit=sys.maxsize) as stream:
            counts, holder = _stream_counts(stream), stream.whom
    mind_fraction(counts.first_fraction, integer, holder)
    return counts


def _stream_counts(stream: CountStream) -> Counts:
    return checked_counts(
        stream.whole(),
        whom=stream.whom,
        sample_names=stream.sample_names,
        feature_names=stream.feature_names,
        groups=stream.groups,
        notes=stream.notes,
    )


def object_counts(
    given_object: Any, given: dict[str, Any], integer: Whole, *, in_memory: bool = True
) -> CountTable:
    """Check the counts of anything that is no path, and choose the part of it that was given."""
    whom = type(given_object).__name__
    if hasattr(given_object, "obs_names"):
        check_choices(given, ANNOTATED, whom)
        annotated = annotated_counts(given_object, **given, whom=whom, in_memory=in_memory)
        mind_fraction(annotated.first_fraction, integer, f"the {whom} object")
        return annotated
    check_choices(given, (), whom)
    return as_counts(given_object, integer=integer, in_memory=in_memory)
