"""rename_topics, label_topics: names of the topics of a fit in an AnnData object."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from numpy.typing import ArrayLike

from ..annotated.keys import KEY, leading_place
from ..annotated.places import column, writable
from ..annotated.renaming import new_names, renamed_column, renamed_entries
from ..annotated.scheme import entry_of, read_model
from ..counts.argument_types import AnnDataLike
from ..inference.samples.label_topics import LabelFunction
from ..inference.samples.label_topics import label_topics as name_topics
from ..models.topics.topics import topic_names_of
from ..storage.atomic import user_path
from ..storage.in_place import changed_hdf5
from .in_file import check_h5ad, element_io, root_of


def rename_topics(
    adata: AnnDataLike,
    names: Sequence[str] | Mapping[Any, str],
    *,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
) -> Any:
    """Give names to the topics of a fit.

    All tables, plots and reports then show the names, and so do results that tools have written
    before.

    Parameters
    ----------
    adata : AnnData, MuData, str or path-like
        Object with a fit by :func:`topics` or loadings by :func:`transform`; or the path of an
        .h5ad file, or of an .h5mu file, which is changed as by :func:`write_h5ad`.
    names : sequence of str, or dict of int or str to str
        A name for each topic; or a dict of new names by number or current name, in which case
        other topics keep theirs. Names must be distinct.
    key : str, default="topics"
        Key of the fit.
    mod, copy
        As in :func:`topics`; `copy` is for objects only.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["topic_names"]`` has the new names, and
        so have the results in ``adata.uns["topics"]`` and the column
        ``adata.obs["topics_leading"]``.

    Raises
    ------
    ValueError
        If there is no such fit, a topic does not exist, the number of names is not that of topics,
        or two topics would have the same name.
    FileInUseError
        If a program has the file open.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> nmfscale.tl.rename_topics(adata, {0: "stress", "topic 2": "cell cycle"})
    >>> nmfscale.get.topics_df(adata).columns.tolist()
    ['stress', 'topic 1', 'cell cycle']
    """
    if isinstance(adata, str | os.PathLike):
        if copy:
            raise ValueError("copy=True is for objects; the names are written to the file itself.")
        return _rename_in_file(user_path(adata), names, key, mod)
    adata, returned = writable(adata, mod, copy)
    entry, place = entry_of(adata, key), leading_place(key)
    new = new_names(entry, names)
    if place in adata.obs:
        adata.obs[place] = renamed_column(adata.obs[place], entry, new)
    for (*parts, name), value in renamed_entries(entry, new).items():
        holder = entry
        for part in parts:
            holder = holder[part]
        holder[name] = value
    return returned


def label_topics(
    adata: AnnDataLike,
    function: LabelFunction,
    *,
    texts: ArrayLike | str | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Name topics by a function of their leading variables: :func:`nmfscale.label_topics`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics` or loadings by :func:`transform`.
    function : callable
        As in :func:`nmfscale.label_topics`.
    texts : str or array-like of shape (n_obs,), optional
        Text of each observation, or the column of ``adata.obs`` that has them.
    key, mod, copy
        As in :func:`rename_topics`.
    **options
        Further arguments of :func:`nmfscale.label_topics`, such as ``n_top=20``.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy, with names as by :func:`rename_topics`.

    Raises
    ------
    ValueError, RuntimeError
        If there is no such fit, or as :func:`nmfscale.label_topics`.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> nmfscale.tl.label_topics(adata, lambda topic: f"gene {topic.words[0]}")
    >>> nmfscale.get.topics_df(adata).columns[0].startswith("gene ")
    True
    """
    whole, (adata, returned) = adata, writable(adata, mod, copy)
    words = column(adata, texts, "texts", whole=whole)
    model = read_model(adata, key, every=True)
    named = name_topics(model, function, texts=words, **options)
    rename_topics(adata, topic_names_of(named, len(named.components_)), key=key)
    return returned


def _rename_in_file(path: Path, names: Any, key: str, mod: str | None) -> None:
    """Write new names of topics to a file, whose counts are neither read nor written."""
    mod = check_h5ad(path, key, mod, "key", of_fit=True)
    elements, place = element_io(), leading_place(key)
    with changed_hdf5(path) as file:
        root = root_of(file, mod)
        holder = SimpleNamespace(uns=root.get("uns", {}), obsm=root.get("obsm", {}))
        entry = elements.read_elem(entry_of(holder, key, path))
        new = new_names(entry, names)
        changed = {
            ("uns", key, *parts): value for parts, value in renamed_entries(entry, new).items()
        }
        if place in root["obs"]:
            changed["obs", place] = renamed_column(
                elements.read_elem(root["obs"][place]), entry, new
            )
        for parts, value in changed.items():
            del root["/".join(parts)]
            elements.write_elem(root["/".join(parts[:-1])], parts[-1], value)
