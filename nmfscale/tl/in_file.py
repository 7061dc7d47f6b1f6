"""write_h5ad: a fit is added to an .h5ad file, whose counts are neither read nor written.

restore_h5ad: a file that was half written when its program was killed is restored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..annotated.keys import KEY, check_key, check_replaced, explained_place, places_of
from ..annotated.modalities import check_topics_of_each, modalities_of_entry, topics_of_each
from ..annotated.scheme import check_readable, parts_of_fit, topics_at
from ..counts.names import names_of, such_as
from ..models import CountModel
from ..models.pipelines import FittedModel
from ..readers.formats.h5ad import chosen_modality, modalities, read_names
from ..readers.open import as_counts
from ..storage.atomic import user_path
from ..storage.hdf5 import find, guarded_hdf5, is_group, need
from ..storage.in_place import changed_hdf5, check_changeable, restore
from ..storage.journal import RESTORED
from .topics import places_by_name

Array = NDArray[Any]


def write_h5ad(
    model: FittedModel,
    path: str | os.PathLike[str],
    *,
    key_added: str | None = None,
    layer: str | None = None,
    raw: bool = False,
    mod: str | Sequence[str] | None = None,
) -> None:
    """Add a fitted model to an existing .h5ad file, as :func:`topics` adds it to an AnnData object.

    Only entries of ``obs``, ``obsm``, ``varm`` and ``uns`` are written: counts, and whatever else
    the file holds, are neither read nor written. A fit with the same key is replaced. The file is
    either changed completely or stays as it was (Notes).

    Parameters
    ----------
    model : fitted model
        A model of this package, fitted to the file or to a part of it.
    path : str or path-like
        An .h5ad file, or an .h5mu file with `mod`.
    key_added : str, optional
        Key of the fit; "topics" by default.
    layer, raw
        As in :func:`topics`. They are used only if the fit had a part of the observations: the
        loadings of the others are then estimated, for which their counts are read.
    mod : str or list of str, optional
        Modality of an .h5mu file; needed if there are several. A fit of several modalities is by
        default added to the file itself and to these modalities, as by :func:`topics`; it must be a
        fit to all observations that have one of them.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    FileInUseError
        If a program has the file open, such as this one by ``backed="r"``. The error comes at
        once: a lock of this program would never end.
    OSError
        If the disk fails or is full; the file is then as it was.
    ValueError
        If the file is no .h5ad file, or lacks observations of the fit; if `key_added` is empty,
        "." or "..", or has "/" or control characters; if an entry with the name of one of the fit
        is not part of a fit of this package with this key, such as ``obsm["X_pca"]`` for "pca"; or
        if a journal beside the file belongs to other contents (see :func:`restore_h5ad`).

    Notes
    -----
    New data are appended to the file. Its tables of contents are changed at the end, after their
    old and new bytes were saved in a journal beside the file (``.journal-NAME.npz``; for a link,
    beside the file that it leads to). If the program is killed before that, the file is as it was.
    If it is killed while the tables are changed, which takes milliseconds, no program can open the
    file, until the next call or :func:`restore_h5ad` restores the old file from the journal.

    HDF5 does not reuse the space of a fit that is replaced; ``h5repack`` does.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "cells.h5ad")
    ...     anndata.AnnData(X.toarray()).write_h5ad(path)
    ...     model = nmfscale.TopicModel(3, random_state=0).fit(path)
    ...     nmfscale.tl.write_h5ad(model, path)
    ...     nmfscale.get.topics_df(anndata.read_h5ad(path)).shape
    (100, 3)
    """
    if not isinstance(model, CountModel) or not hasattr(model, "loadings_"):
        raise TypeError(f"model is a {type(model).__name__}: a fitted model is needed.")
    check_readable(model)
    path, key = user_path(path), KEY if key_added is None else key_added
    if mod is None and len(of_fit := set(getattr(model, "modalities_", ()))) > 1:
        mod = sorted(of_fit, key=model.modalities_.tolist().index)
    mod = check_h5ad(path, key, mod)
    if isinstance(mod, list):
        _write_several(model, path, key, mod, {"layer": layer, "raw": raw})
        return
    obs_names, var_names = read_names(path, "" if mod is None else f"mod/{mod}")
    rows, columns = _rows_of(model, obs_names, path), _columns_of(model, var_names, path)
    choice = {"layer": layer, "raw": raw, "modality": mod}
    loadings, totals = _loadings_of(model, rows, path, choice)
    fitted = rows >= 0
    params = {
        "layer": layer, "raw": raw, "model": type(model).__name__,
        "n_components": len(model.components_),
    }  # fmt: skip
    parts = parts_of_fit(
        model._taken("n", rows[fitted]), loadings, fitted, totals, obs_names, params
    )
    parts["varm"] = {"{}": topics_at(model, columns)}
    _write(path, mod, key, parts)


def _write_several(
    model: Any, path: Path, key: str, mod: list[str], choice: dict[str, Any]
) -> None:
    """Add a fit of several modalities to an .h5mu file."""
    obs_names, names = read_names(path)[0], {m: read_names(path, f"mod/{m}") for m in mod}
    rows = _rows_of(model, obs_names, path)
    fitted, n_topics = rows >= 0, len(model.components_)
    there = np.isin(obs_names, np.concatenate([of_obs for of_obs, _ in names.values()]))
    if n_others := np.count_nonzero(there & ~fitted):
        raise ValueError(
            f"the model was not fitted to {n_others:,} observations of {path} with one of the "
            f"modalities {such_as(mod)}: fit it by fit(path, modality={mod}), or read the file and "
            "add loadings by nmfscale.tl.transform."
        )
    loadings, totals = _placed(model, rows)
    if model.loadings_are_proportions:
        loadings[~fitted] = 1 / n_topics  # of empty samples
    model = model._taken("n", rows[fitted])
    params = choice | {
        "model": type(model).__name__, "n_components": n_topics, "mod": np.array(mod, object)
    }  # fmt: skip
    panel = None
    if model.measured_ is not None:
        panel = np.full(len(rows), len(model.measured_))
        panel[fitted] = model.panel_
        model.measured_ = np.append(model.measured_, np.ones_like(model.measured_[:1]), axis=0)
    parts = parts_of_fit(model, loadings, fitted, totals, obs_names, params)
    if panel is not None:
        parts["obsm"]["{}_samples"]["panel"] = panel
    topics = topics_of_each(model, {m: of_var for m, (_, of_var) in names.items()})
    _write(path, mod, key, parts, topics)


def _rows_of(model: Any, obs_names: Array, path: Path) -> Array:
    """Return the sample of the fit of each observation, -1 where there is none."""
    names, n = names_of(model), len(model.loadings_)
    if names is None or names.tolist() == obs_names.tolist():
        if n != len(obs_names):
            raise ValueError(
                f"the model has {n:,} samples without names, and {path} has {len(obs_names):,} "
                "observations: fit the model to this file."
            )
        return np.arange(n)
    place = {name: at for at, name in enumerate(obs_names.tolist())}
    lacking = [name for name in names.tolist() if name not in place]
    if lacking or len(place) < len(obs_names) or len(set(names.tolist())) < n:
        if lacking:
            raise ValueError(
                f"{path} lacks {len(lacking):,} of the {n:,} samples that the model was fitted to, "
                f"such as {such_as(lacking)}: fit the model to this file, or add loadings by "
                "nmfscale.tl.transform."
            )
        raise ValueError(f"{path} has several observations of one name: make names unique.")
    rows = np.full(len(obs_names), -1)
    rows[[place[name] for name in names.tolist()]] = np.arange(n)
    return rows


def _columns_of(model: Any, var_names: Array, path: Path) -> Array:
    """Return the feature of each variable, -1 where there is none."""
    names, m = names_of(model, 1), model.components_.shape[1]
    if names is None and m == len(var_names):
        return np.arange(m)
    columns = np.full(1, -1) if names is None else places_by_name(var_names, names)
    if columns.max() < 0:
        raise ValueError(
            f"{path} has none of the {m:,} features of the model, but variables such as "
            f"{such_as(var_names)}: fit the model to this file."
        )
    return columns


def _placed(model: Any, rows: Array) -> tuple[Array, Array]:
    """Return loadings and total counts of all observations, 0 for those outside of the fit."""
    fitted = rows >= 0
    loadings = np.zeros((len(rows), model.loadings_.shape[1]), model.loadings_.dtype)
    totals = np.zeros(len(rows))
    loadings[fitted] = model.loadings_[rows[fitted]]
    totals[fitted] = model.sample_totals_[rows[fitted]]
    return loadings, totals


def _loadings_of(
    model: Any, rows: Array, path: Path, choice: dict[str, Any]
) -> tuple[Array, Array]:
    """Return loadings and total counts of all observations; estimate those outside of the fit."""
    fitted = rows >= 0
    loadings, totals = _placed(model, rows)
    if not fitted.all():
        names = names_of(model, 1)
        others = as_counts(
            path, **choice, integer="allow", subject=str(path), in_memory=False,
            mask_obs=~fitted, mask_var=None if names is None else names.tolist(),
        )  # fmt: skip
        loadings[~fitted], totals[~fitted] = model.transform(others), others.row_totals
    return loadings, totals


def restore_h5ad(path: str | os.PathLike[str]) -> bool:
    """Restore a file whose program was killed while :func:`write_h5ad` changed it.

    :func:`write_h5ad` restores a file before it adds a fit, so that this function is needed only to
    use the file without a new fit. In the shell: ``nmfscale restore FILE``.

    Parameters
    ----------
    path : str or path-like
        An .h5ad or .h5mu file.

    Returns
    -------
    bool
        True if the file was half written; it now has its old contents. False if it could be read
        all the time, because it has no journal, or because no change, or all of it, had been
        written; a journal is removed.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    FileInUseError
        If a program has the file open.
    ValueError
        If the journal is damaged, or belongs to other contents, because the file was changed or
        replaced since. The file is not touched, and the journal gets a different name.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "cells.h5ad")
    ...     anndata.AnnData(X.toarray()).write_h5ad(path)
    ...     nmfscale.tl.restore_h5ad(path)  # it has no journal
    False
    """
    return restore(user_path(path)) == RESTORED


def check_h5ad(
    path: Path, key: str, mod: Any = None, argument: str = "key_added", of_fit: bool = False
) -> Any:
    """Refuse, before any work, a key or a file to which no fit with this key can be added.

    A file that is half written is restored. Return the modality of the fit, by default the only one
    of a MuData file; or those of a fit of several, which with `of_fit` the file has already.
    """
    check_key(key, argument)
    restore(path)
    check_changeable(path)
    import h5py

    if not h5py.is_hdf5(path):  # .h5mu files begin with text of MuData
        raise ValueError(f"{path} is not an .h5ad file: it is not a file of HDF5.")
    names = modalities(path)
    if of_fit and mod is None and names:
        with guarded_hdf5(path) as file:
            mod = modalities_of_entry((find(file, "uns") or {}).get(key)) or None
    if isinstance(mod, list | tuple):
        mod = [chosen_modality(str(path), names, label, "mod") for label in mod]
    elif names or mod is not None:
        mod = chosen_modality(str(path), names, mod, "mod")
    with guarded_hdf5(path) as file:
        _check_parts(file, path, key, mod, argument)
    return mod


def root_of(file: Any, mod: Any) -> Any:
    """Return the group of an object in a file: a modality of MuData, or the file itself."""
    return need(file, f"mod/{mod}") if isinstance(mod, str) else file


def _check_parts(file: Any, path: Path, key: str, mod: Any, argument: str) -> None:
    """Refuse a file in which a fit with this key would replace what is not part of one."""
    root = root_of(file, mod)
    parts = {part: find(root, part) for part in ("obs", "var", "obsm", "varm", "uns")}
    if any(part is not None and not is_group(part) for part in parts.values()):
        raise ValueError(
            f"{path} was written by anndata before 0.7: read it and write it anew first."
        )
    where = f"{path}:{mod}" if isinstance(mod, str) else str(path)
    check_replaced(lambda part: parts[part] or {}, key, where, argument)
    if isinstance(mod, list):
        varm = {label: find(file, f"mod/{label}/varm") or {} for label in mod}
        check_topics_of_each(varm, (parts["uns"] or {}).get(key), key, argument)


def _write(
    path: Path, mod: Any, key: str, parts: Mapping[str, Mapping[str, Any]],
    topics: Mapping[str, Array] | None = None,
) -> None:  # fmt: skip
    """Replace the fit with a key in a file; `topics` are those in ``varm`` of modalities."""
    write_elem = element_io().write_elem
    with changed_hdf5(path) as file:
        _check_parts(file, path, key, mod, "key_added")
        root = root_of(file, mod)
        earlier = modalities_of_entry(root.get("uns", {}).get(key)) if topics else []
        for part in ("obsm", "varm", "uns"):
            if part not in root:
                write_elem(root, part, {})
        for part, name in places_of(key):
            _delete(root, part, name)
        for part, values in parts.items():
            for pattern, value in values.items():
                name = pattern.format(key)
                write_elem(root[part], name, value)
                if part == "obs":
                    root[part].attrs["column-order"] = [*root[part].attrs["column-order"], name]
        for label in earlier:
            _delete(root_of(file, label), "varm", key)
            _delete(root_of(file, label), "var", explained_place(key))
        for label, of_modality in (topics or {}).items():
            write_elem(root_of(file, label)["varm"], key, of_modality)


def _delete(root: Any, part: str, name: str) -> None:
    """Delete an entry or column of a part of an object in a file, if it is there."""
    if name not in root.get(part, ()):
        return
    del root[part][name]
    if part in ("obs", "var"):
        order = root[part].attrs["column-order"]
        root[part].attrs["column-order"] = [other for other in order if other != name]


def element_io() -> Any:
    """Return the module of anndata whose functions read and write single values of a file."""
    try:
        from anndata import io
    except ImportError:  # anndata 0.10
        from anndata import experimental as io
    return io
