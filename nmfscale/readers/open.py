"""as_counts and read_counts: counts from any object or file, in memory or left in their file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from ..counts.argument_types import CountsLike, MaskLike
from ..counts.base import CountMatrix, check_totals
from ..counts.integers import IntegerPolicy, check_integer
from ..counts.logarithms import check_fractions
from ..counts.memory import Counts
from ..counts.names import shown
from ..counts.sizes import check_table_size, parse_bytes
from ..storage.atomic import user_path
from ..storage.store import StoredCounts, open_store
from .corpora import corpus_counts, is_corpus, is_dictionary, words_of
from .formats.formats import check_choices, given_choices
from .formats.text_tables import SamplesIn
from .objects import (
    holder_of,
    is_annotated,
    known_object,
    object_counts,
    other_matrices,
    part_of_annotated,
    part_of_counts,
    table_of_samples,
    whole_matrices,
    with_groups,
)
from .options import SourceOptions, check_source
from .sources.masks import MASKS, NAMES
from .streams.file_counts import FileCounts
from .streams.joined import Join, JoinedRows, check_join, labelled, sources_in
from .streams.modalities import JoinedModalities, ModalityWeighting, weights_of_modalities
from .streams.stream import MEMORY_LIMIT, RowStream, open_stream
from .streams.thinning import PartOfCounts


def as_counts(
    X: CountsLike,
    *,
    layer: str | None = None,
    raw: bool = False,
    names: str | None = None,
    feature_names: ArrayLike | Mapping[int, str] | None = None,
    sample_names: ArrayLike | None = None,
    mask_var: MaskLike | None = None,
    mask_obs: MaskLike | None = None,
    groups: str | None = None,
    genome: str | None = None,
    feature_type: str | Sequence[str] | None = None,
    transpose: bool | None = None,
    modality: str | Sequence[str] | None = None,
    modality_weights: ModalityWeighting | Mapping[str, float] | Sequence[float] | None = None,
    samples_in: SamplesIn | None = None,
    join: Join = "inner",
    labels: Sequence[str] | None = None,
    integer: IntegerPolicy = "warn",
    subject: str = "X",
    in_memory: bool = True,
    memory_limit: int | float | str | None = None,
) -> CountMatrix:
    """Check counts of any source, name their samples and features, and choose a part of them.

    Parameters
    ----------
    X : array-like, sparse matrix or array, AnnData, DataFrame, dask array, path or CountMatrix
        Counts, samples x features (n_samples, n_features). Polars DataFrames, Arrow tables, sparse
        arrays of pydata, MuData objects with one modality and corpora of gensim (lists of documents
        of pairs: number of a word, count) are accepted, too. `X` is never changed. Arrays that are
        compressed sparse rows without duplicates and explicit zeros are used without a copy. The
        path of a packed store is opened; other files are read as by :func:`read_counts`.
        A list of files, counts or AnnData objects is joined: see :func:`concat`.
    layer : str, optional
        Layer of an AnnData object (or .h5ad file) to use in place of ``X``.
    raw : bool, default=False
        Whether to use ``raw.X`` of an AnnData object (or .h5ad file) in place of ``X``.
    names : str, optional
        Column of ``var`` that names the features, in place of its index. Features of 10x files have
        the columns "id" (also "gene_ids", as scanpy calls it) and "name"; their names are by
        default the symbols, made unique by the identifiers.
    feature_names, sample_names : array-like of shape (n_features,) or (n_samples,), optional
        Names, in place of those of `X`. `feature_names` may be a Dictionary of gensim.
    mask_var, mask_obs : array-like, dict or str, optional
        The features and samples to use: a mask of True and False, positions, names, or the name of
        a column of ``var`` or ``obs`` with True and False. Order and repeats do not matter: the
        chosen ones keep the order of `X`. A Series or dict of True and False is matched by name.
        The other entries are not checked, and a file is not copied. Arguments of a fit with an
        entry for each sample or feature are those of the chosen ones.
    groups : str, optional
        Column of ``obs`` that holds a label for each sample, which become ``counts.groups``.
    genome : str, optional
        10x: the genome to read; needed if a Cell Ranger 2 file holds several genomes, or a folder
        has a subfolder for each.
    feature_type : str or list of str, optional
        10x: the type of features to keep, or ``"all"``. By default, only gene expression is kept
        if there are several types. Several types are joined as modalities.
    transpose : bool, optional
        ``.mtx`` and ``.npz``: whether the file holds features x samples. By default, an ``.npz``
        file holds samples x features, and the orientation of a ``.mtx`` file is inferred from the
        files of names beside it: see :func:`read_counts`.
    modality : str or list of str, optional
        .h5mu and MuData objects: the modality to read; needed if there are several. A list of
        modalities is joined side by side: see :func:`join_modalities`.
    modality_weights : {"information", "counts"}, dict or sequence, optional
        Weights of joined modalities in a fit, by default "information": see
        :func:`join_modalities`.
    samples_in : {"rows", "columns"}, optional
        Tables of text: whether a line is a sample, or a feature. It must be given.
    join, labels
        For a list: see :func:`concat`.
    integer : {"warn", "allow", "require"}, default="warn"
        What to do about counts that are not whole numbers: warn once (and refuse log-normalised
        values, as in :class:`PoissonNMF`), accept them silently, or raise an error.
    subject : str, default="X"
        Name of the calling estimator or of the file, used in messages.
    in_memory : bool, default=True
        Whether to read a file into memory. Otherwise, a block of rows is read each time it is
        needed. This applies to AnnData objects opened with ``backed`` and to dask arrays, too;
        packed stores are never read into memory.
    memory_limit : int, float or str, default=None
        Bytes, or text such as "2GB". A table that needs more memory for its rows and columns
        alone, without its counts, is refused; with None, a table that needs more than the free
        memory. With ``in_memory=False``, a quarter of the limit, 1 GiB by default, is used to
        sort the entries of text files and compressed columns by rows.

    Returns
    -------
    CountMatrix
        The counts in their own dtype, with the names found in a DataFrame, AnnData object or file,
        and the columns of ``obs``: :class:`nmfscale.results.Counts` in memory, or
        :class:`nmfscale.results.StoredCounts` for a packed store.

    Raises
    ------
    TypeError
        If `X` is neither a matrix nor an object that holds one: a list of AnnData objects, a
        generator.
    ValueError
        If an option does not apply to `X`, if a mask or a column of names does not fit it, if a
        count is negative, infinite, missing, complex or above 2**53, if the counts of a row add up
        to a positive number below 1e-9, if there are no rows or no columns, if the input is not
        two-dimensional, or if a sparse structure is corrupt.
    MemoryLimitError
        If the table does not fit in memory; it is both a MemoryError and a ValueError.

    Examples
    --------
    >>> import nmfscale
    >>> words = ["poisson", "gamma", "topic"]
    >>> counts = nmfscale.as_counts([[0, 2, 1], [3, 0, 0]], feature_names=words)
    >>> counts
    <Counts 2 x 3, 3 nonzero, int64>
    >>> counts.column_totals
    array([3., 2., 1.])
    >>> nmfscale.as_counts(counts, mask_var=["gamma", "topic"]).take_rows().toarray()
    array([[2, 1],
           [0, 0]])
    """
    return open_counts(
        X, layer=layer, raw=raw, names=names, feature_names=feature_names,
        sample_names=sample_names, mask_var=mask_var, mask_obs=mask_obs, groups=groups,
        genome=genome, feature_type=feature_type, transpose=transpose, modality=modality,
        modality_weights=modality_weights, samples_in=samples_in, join=join, labels=labels,
        integer=integer, subject=subject, in_memory=in_memory, memory_limit=memory_limit,
    )  # fmt: skip


def open_counts(
    source: Any, *, integer: IntegerPolicy = "warn", subject: str = "X", in_memory: bool = True,
    memory_limit: int | float | str | None = None, **choices: Any,
) -> CountMatrix:  # fmt: skip
    """Open any source of counts; only this function distinguishes files, stores and objects.

    `in_memory` and `memory_limit` are as in `as_counts`, as are `choices`. With ``nan=True`` among
    these, NaN are missing entries: the counts have a mask of them, `nan_entries`.
    """
    check_integer(integer)
    if (several := _several(choices)) is not None:
        option, labels = several
        weights = choices.pop("modality_weights", None)
        of_each = {**choices, "integer": integer}
        del of_each[option]

        def opened(label: str, **options: Any) -> CountMatrix:
            return open_counts(
                source, subject=subject, in_memory=in_memory, memory_limit=memory_limit,
                **(options | {option: label}),
            )  # fmt: skip

        weights = "information" if weights is None else weights
        return counts_of_modalities(labels, opened, weights, "outer", of_each, in_memory)
    if choices.pop("modality_weights", None) is not None:
        raise ValueError(
            "modality_weights are for several modalities: give their names by modality=[...], or "
            "join them by join_modalities."
        )
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    join, labels = choices.pop("join", "inner"), choices.pop("labels", None)
    check_join(join)
    sources = sources_in(source)
    if sources is not None:
        sources = labelled(sources, labels)
        return _joined_counts(sources, join, integer, limit, given_choices(**choices), in_memory)
    if labels is not None or join != "inner":
        raise ValueError(
            "join and labels are for a list of files, of counts or of AnnData objects."
        )
    options = given_choices(**choices)
    part = {name: options.pop(name) for name in (*NAMES, *MASKS) if name in options}
    holder, others = holder_of(subject), []
    if is_dictionary(part.get("feature_names")):
        part["feature_names"] = words_of(part["feature_names"])
    if is_corpus(source):
        source = corpus_counts(source, part.pop("feature_names", None), holder)
    if not isinstance(source, (str, os.PathLike, CountMatrix)):
        source = known_object(source, holder, options.pop("modality", None))
    if isinstance(source, (str, os.PathLike)):
        counts, holder = _file_counts(user_path(source), options, part, in_memory, limit)
    elif is_annotated(source) and source.isbacked and not in_memory and not source.is_view:
        # names and columns of the object may have been changed after it was opened
        subset = part_of_annotated(source, part, "raw" in options, holder)
        part = {
            "sample_names": subset.sample_names, "feature_names": subset.feature_names,
            "mask_obs": subset.rows, "mask_var": subset.columns,
        }  # fmt: skip
        path = Path(source.filename)
        counts, holder = _file_counts(path, options, given_choices(**part), in_memory, limit)
        counts.obs = table_of_samples(source, subset.rows)
    else:
        shape = () if isinstance(source, CountMatrix) else getattr(source, "shape", ())
        if len(shape) == 2 and np.isfinite(shape).all():  # dask arrays may have unknown sizes
            check_table_size(shape, holder, limit)
        counts = object_counts(source, options, subject, in_memory, part)
        if is_annotated(source) and counts.first_fraction is not None:
            whole, others = whole_matrices(source, **options), other_matrices(source, **options)
            others = [f"{other} (whole numbers)" if other in whole else other for other in others]
    if not isinstance(source, CountMatrix) or integer == "require":
        check_fractions(counts, integer, holder, others)
    if counts is not source:
        check_totals(counts, holder)
    return counts


def _several(choices: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """Return the option that names several modalities, and their names; None if none does."""
    for option in ("modality", "feature_type"):
        value = choices.get(option)
        if isinstance(value, list | tuple):
            labels = [str(label) for label in value]
            if not labels or len(set(labels)) < len(labels):
                raise ValueError(f"{option}={shown(value)}: different names are needed.")
            return option, labels
    return None


def counts_of_modalities(
    labels: Sequence[str], opened: Callable[..., CountMatrix], weights: Any, join: Join,
    options: dict[str, Any], in_memory: bool, samples: Any = None,
) -> CountMatrix:  # fmt: skip
    """Return the counts of modalities side by side; ``opened(label, **options)`` opens one.

    `options` are those of `open_counts`, of which names and masks are for the joined table.
    `samples` are as in `JoinedModalities`.
    """
    check_join(join)
    of_all = (*MASKS, "feature_names", "sample_names")
    options = given_choices(**options)
    part = {name: options.pop(name) for name in of_all if name in options}
    parts = {label: opened(label, **options) for label in labels}
    rows = JoinedModalities(parts, join, samples)
    of_modalities = weights_of_modalities(parts, weights)
    rows.about["feature_weights"] = np.repeat(
        list(of_modalities.values()), [counts.shape[1] for counts in parts.values()]
    )
    if len(labels) > 1:
        amounts = ", ".join(f"{label} {weight:g}" for label, weight in of_modalities.items())
        rows.about["notes"] = [*rows.about["notes"], f"weights: {amounts}"]
    joined: CountMatrix = rows.in_memory() if in_memory else FileCounts(rows)
    check_totals(joined, rows.subject)
    return part_of_counts(joined, part)


def _joined_counts(
    sources: dict[str, Any], join: Join, integer: IntegerPolicy, limit: int | None,
    options: dict[str, Any], in_memory: bool,
) -> CountMatrix:  # fmt: skip
    """Return the counts of several sources, by label, one below the other."""
    of_all = (*MASKS, "feature_names", "sample_names")
    part = {name: options.pop(name) for name in of_all if name in options}
    pieces = MEMORY_LIMIT if limit is None else limit // 4
    pieces = sys.maxsize if in_memory else max(1 << 20, pieces // len(sources))
    with ExitStack() as opened:
        parts: list[RowStream] = []
        for source in sources.values():
            if isinstance(source, str | os.PathLike) and open_store(user_path(source)) is None:
                stream = open_stream(source, **options, memory_limit=pieces, table_limit=limit)
                parts.append(opened.enter_context(stream))
            else:
                counts = open_counts(source, integer="allow", in_memory=in_memory, **options)
                parts.append(PartOfCounts(counts))
        rows = JoinedRows(parts, list(sources), join)
        check_table_size(rows.shape, rows.subject, limit)
        if in_memory:
            joined: CountMatrix = rows.in_memory()
        else:
            joined = FileCounts(rows)
            opened.pop_all()
    check_fractions(joined, integer, rows.subject)
    check_totals(joined, rows.subject)
    return part_of_counts(joined, part)


def _file_counts(
    path: Path, options: dict[str, Any], part: dict[str, Any], in_memory: bool, limit: int | None
) -> tuple[CountMatrix, str]:
    """Open a file; return its counts and their name in messages."""
    stored = open_store(path)
    if stored is not None:
        check_choices(options, ("groups",), f"{path}, a packed store")
        return part_of_counts(with_groups(stored, options.get("groups")), part), str(path)
    pieces = MEMORY_LIMIT if limit is None else max(1 << 20, limit // 4)
    pieces = sys.maxsize if in_memory else pieces
    stream = open_stream(path, **options, **part, memory_limit=pieces, table_limit=limit)
    with ExitStack() as failed:
        failed.callback(stream.close)
        if in_memory:
            return stream.in_memory(), stream.subject
        counts = FileCounts(stream)
        failed.pop_all()
    return counts, stream.subject


def read_counts(
    path_or_object: CountsLike,
    *,
    layer: str | None = None,
    raw: bool = False,
    integer: IntegerPolicy = "warn",
    **source: Unpack[SourceOptions],
) -> Counts:
    """Read counts, samples x features, from a file or an object in memory.

    ===================  ====================================================================
    ``.nmf``             a packed store
    ``.npz``             ``scipy.sparse.save_npz``
    ``.mtx``, ``.gz``    Matrix Market; with names from the files beside it
    ``docword.*.txt``    UCI bag of words, also ``.gz``; with the words of ``vocab.*.txt`` beside it
    folder               with a ``.mtx`` (or ``.mtx.gz``) file and files of names
    ``.h5ad``            AnnData, also as written by versions 0.5 to 0.7
    ``.h5mu``            MuData: one modality
    ``.zarr``            AnnData in a zarr store of format 2 or 3
    ``.loom``            Loom: ``matrix`` or a layer, features x samples
    ``.csv``, ``.tsv``   tables of text, also ``.txt`` and ``.gz``, with names: see Notes
    ``.h5``              10x Cell Ranger 2 and 3
    ===================  ====================================================================

    Parameters
    ----------
    path_or_object : str, path or object
        A file in one of the formats above, or any object that :func:`as_counts` accepts.
    layer, raw, integer
        As in :func:`as_counts`.
    **source
        Further arguments of :func:`as_counts`: `names`, `feature_names`, `sample_names`,
        `mask_var`, `mask_obs`, `groups`, `genome`, `feature_type`, `transpose`.

    Returns
    -------
    Counts
        The counts in the dtype of the file, or the next one that holds them (see
        :attr:`nmfscale.results.Counts.dtype`), with names if the file has some. A gene symbol
        shared by several genes is followed by the identifier of the gene, if that differs.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    OSError
        If an HDF5 file is damaged, cut off, or compressed with a filter that is not installed.
    MemoryLimitError
        If the table does not fit in memory; it is both a MemoryError and a ValueError.
    ValueError
        If the format is unknown or does not agree with the file's name, if an option does not
        apply to the format, if the orientation of a ``.mtx`` file cannot be inferred, if files of
        names do not match the matrix or are not UTF-8, or if the values are not counts.

    Notes
    -----
    The files of names beside a ``.mtx`` file are recognised by the names that these programs use:
    10x Genomics and STARsolo (``barcodes.tsv``, ``features.tsv``, ``genes.tsv``, ``peaks.bed``),
    kallisto|bustools (``cells_x_genes.barcodes.txt``, ``.genes.txt``, ``.genes.names.txt``),
    alevin-fry (``quants_mat_rows.txt``, ``quants_mat_cols.txt``) and Parse Biosciences
    (``cell_metadata.csv``, ``all_genes.csv``). They may be ``.csv`` or ``.gz`` files, and may have
    longer names, as in GEO: ``GSM1_a_barcodes.tsv.gz`` belongs to ``GSM1_a_matrix.mtx.gz``.

    The orientation of a ``.mtx`` file follows from the numbers of names; one file of names
    suffices. If the numbers do not decide, files of 10x Genomics and STARsolo are features x
    samples, and those of the other three programs samples x features. A folder, or a
    ``matrix.mtx``, without files of names is refused; a file with any other name is then read as
    samples x features.

    A table of text needs `samples_in`. Fields are separated by a tab, comma, semicolon or space.
    The first line is a header if it has a field that is not a number, or is one field shorter. The
    first field of each line is a name if it is not a number, if there is no header above it, or if
    the header calls it an identifier, such as "gene_id".

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import scipy.sparse as sp
    >>> from nmfscale.readers.open import read_counts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "small.npz")
    ...     sp.save_npz(path, sp.csr_array([[0, 2], [1, 0]]))
    ...     read_counts(path)
    <Counts 2 x 2, 2 nonzero, int64>
    """
    check_source(source, "read_counts()")
    counts = open_counts(path_or_object, integer=integer, layer=layer, raw=raw, **source)
    if isinstance(counts, StoredCounts) and counts is not path_or_object:
        counts = counts.in_memory()
    if not isinstance(counts, Counts):
        raise ValueError(
            f"{type(path_or_object).__name__} is not in memory, and read_counts does not read it: "
            "pass it to nmfscale.as_counts."
        )
    return counts
