"""Several tables one below the other: features matched by name, one table read at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.label_table import Coded, LabelTable, joined
from ...counts.names import as_text, repeated_names, shown, such_as
from ...counts.row_ranges import RowRange
from ...counts.structure import index_type
from ...counts.validation import CompressedRows, compressed_rows
from ...counts.warn import warn_caller
from .stream import RowStream

Array = NDArray[Any]
Join: TypeAlias = Literal["inner", "outer"]
# The column of obs with the label of each sample's table.
FILE = "file"
# A warning is given if an inner join leaves out more than this share of the features of a table.
_MANY = 0.5


class JoinedFeatures(NamedTuple):
    """Features of joined tables.

    `names` (m,) or None. `places` holds for each table the joined feature of each of its features,
    -1 if that is left out, or None if they are the same. `n_left_out` counts features that an inner
    join leaves out.
    """

    names: Array | None
    places: list[Array | None]
    n_left_out: int = 0


class JoinedRows(RowStream):
    """The rows of several tables, one table after the other."""

    def __init__(
        self, parts: Sequence[RowStream], labels: Sequence[str], join: str = "inner"
    ) -> None:
        self._parts, self.subject = list(parts), "the joined table"
        sizes = [part.shape[0] for part in parts]
        self._ends = np.cumsum([0, *sizes])
        features = joined_features(parts, labels, join)
        self._places = features.places
        m = parts[0].shape[1] if features.names is None else len(features.names)
        self.shape = int(self._ends[-1]), m
        groups: list[Any] = [part.about.get("groups") for part in parts]
        notes = [
            f"{label}: {note}"
            for part, label in zip(parts, labels, strict=True)
            for note in part.about.get("notes", ())
        ]
        if features.n_left_out:
            notes.append(f"{features.n_left_out:,} features that some tables lack were left out")
        of_text = all(part.about.get("of_text", False) for part in parts)
        tables = [part.about.get("obs") for part in parts]
        names, prefixed = joined_sample_names(parts, labels)
        if prefixed:
            notes.append("tables have samples of the same name: names begin with those of tables")
        self.about = {
            "sample_names": names, "feature_names": features.names, "notes": notes,
            "groups": None if any(codes is None for codes in groups) else np.concatenate(groups),
            "obs": partial(_joined_tables, tables, sizes, list(labels)), "of_text": of_text,
            "measured": None if of_text else self._measured(),
            **{name: self._of_features(name, labels) for name in ("modalities", "feature_weights")},
        }  # fmt: skip
        measured: Any = self.about["measured"]
        if measured is not None:
            n_absent = int(np.count_nonzero(~measured[0].all(axis=0)))
            notes.append(f"{n_absent:,} features are absent from some tables: not measured there")
        self.source = {"files": [_origin(part) for part in parts]}

    def _of_features(self, name: str, labels: Sequence[str]) -> Array | None:
        """Return the modality or weight of each feature, if tables have them; they must agree."""
        values: list[Any] = [part.about.get(name) for part in self._parts]
        if all(of_part is None for of_part in values):
            return None
        of_all: dict[int, Any] = {}
        for of_part, places, label in zip(values, self._places, labels, strict=True):
            columns = np.arange(self.shape[1]) if places is None else np.asarray(places)
            own = [None] * len(columns) if of_part is None else np.asarray(of_part).tolist()
            for column, value in zip(columns.tolist(), own, strict=True):
                if column >= 0 and of_all.setdefault(column, value) != value:
                    raise ValueError(
                        f"{label} has other {name} than {labels[0]}: join the tables of each "
                        "modality by concat, and the modalities by join_modalities."
                    )
        return np.array([of_all[column] for column in range(self.shape[1])])

    def _measured(self) -> tuple[Array, Array] | None:
        """Return which features each table has and measured, and the panel of each row."""
        masks, panels, n_panels = [], [], 0
        for part, places in zip(self._parts, self._places, strict=True):
            n, m = part.shape
            features, panel = part.about.get("measured") or (
                np.ones((1, m), bool),
                np.zeros(n, int),
            )
            columns = np.arange(m) if places is None else np.asarray(places)
            mask = np.zeros((len(features), self.shape[1]), bool)
            mask[:, columns[columns >= 0]] = features[:, columns >= 0]
            masks.append(mask)
            panels.append(panel + n_panels)
            n_panels += len(features)
        there = np.concatenate(masks)
        if there.all():
            return None
        same: dict[bytes, int] = {}  # panels with the same features, in the order of the tables
        new = np.array([same.setdefault(mask.tobytes(), len(same)) for mask in there])
        firsts = [new.tolist().index(panel) for panel in range(len(same))]
        return there[firsts], new[np.concatenate(panels)]

    def nan_entries(self) -> Any:
        """Return a mask (n, m) of NaN, once all rows were read; None if they are refused."""
        masks = [part.nan_entries() for part in self._parts]
        if all(part_mask is None for part_mask in masks):
            return None
        matrices = []
        for part, mask, places in zip(self._parts, masks, self._places, strict=True):
            mask = sp.csr_array(part.shape, dtype=bool) if mask is None else mask
            row, column = mask.nonzero()
            column = column if places is None else places[column]
            there = column >= 0
            place = row[there], column[there]
            shape = mask.shape[0], self.shape[1]
            matrices.append(sp.csr_array((np.ones(len(place[0]), bool), place), shape))
        return sp.csr_array(sp.vstack(matrices, "csr"))

    def rows(self, start: int, stop: int) -> CompressedRows:  # noqa: D102
        matrices, fraction = [], None
        for number, low, high in self._ranges(start, stop):
            part = self._of_joined(number, self._parts[number].rows(low, high))
            fraction = fraction or part.first_fraction
            matrices.append(part.rows.matrix(self.shape[1]))
        matrix = sp.csr_array((0, self.shape[1]), dtype=np.uint8)  # for an empty range
        if matrices:
            matrix = matrices[0] if len(matrices) == 1 else sp.csr_array(sp.vstack(matrices, "csr"))
        rows = RowRange(start, matrix.indptr, matrix.indices, matrix.data)
        return CompressedRows(rows, (stop - start, self.shape[1]), True, fraction, [])

    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield rows start:stop in the pieces that the tables yield."""
        for number, low, high in self._ranges(start, self.shape[0] if stop is None else stop):
            for chunk in self._parts[number].chunks(max_bytes, low, high):
                yield self._of_joined(number, chunk)

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the tables that have some of rows start:stop, and these rows in each table."""
        for number, (first, end) in enumerate(pairwise(self._ends.tolist())):
            if max(first, start) < min(end, stop):
                yield number, max(start, first) - first, min(stop, end) - first

    def _of_joined(self, number: int, chunk: CompressedRows) -> CompressedRows:
        """Return rows of a table with their numbers and features in the joined table."""
        first, places = int(self._ends[number]) + chunk.rows.first, self._places[number]
        if places is None and chunk.first_fraction is None:
            return chunk._replace(rows=chunk.rows._replace(first=first))
        shape = chunk.shape[0], self.shape[1]
        columns = chunk.rows.indices if places is None else places[chunk.rows.indices]
        matrix = sp.csr_array((chunk.rows.data, columns, chunk.rows.indptr), shape)
        if places is not None and (places < 0).any():
            keep = columns >= 0
            indptr = np.concatenate(([0], np.cumsum(keep)))[chunk.rows.indptr]
            matrix = sp.csr_array((chunk.rows.data[keep], columns[keep], indptr), shape)
        matrix.sort_indices()
        return compressed_rows(matrix, self.entry_names(), first=first, sort=True)


def _origin(part: RowStream) -> dict[str, Any]:
    """Return where a table comes from: a file, or an object."""
    kind = "path" if os.path.isabs(part.subject) else "object"  # packed stores have such names
    return getattr(part, "source", {kind: part.subject})


def joined_features(parts: Sequence[RowStream], labels: Sequence[str], join: str) -> JoinedFeatures:
    """Match the features of tables by name: those of all tables, or of any (join="outer")."""
    names = [part.about["feature_names"] for part in parts]
    without = [label for label, array in zip(labels, names, strict=True) if array is None]
    if without:
        sizes = {part.shape[1] for part in parts}
        if len(without) == len(parts) and len(sizes) == 1:
            return JoinedFeatures(None, [None] * len(parts))
        raise ValueError(
            f"features are matched by name, and {len(without):,} of {len(parts):,} tables have no "
            f"names, such as {shown(without[0])}: give feature_names to as_counts for each of them."
        )
    texts = [as_text(array).tolist() for array in names]
    if all(text == texts[0] for text in texts[1:]):
        return JoinedFeatures(names[0], [None] * len(parts))
    features = dict.fromkeys(name for text in texts for name in text)
    if join == "inner":
        common = set(texts[0]).intersection(*texts[1:])
        features = dict.fromkeys(name for name in features if name in common)
    for label, text in zip(labels, texts, strict=True):
        if repeated := repeated_names(text, features):
            raise ValueError(
                f"{label} has several features of one name, such as {such_as(repeated)}, so that "
                "features cannot be matched by name: choose a column of identifiers by names=, or "
                "make names unique."
            )
    if not features:
        shows = (f"{label} has {such_as(text)}" for label, text in zip(labels, texts, strict=True))
        raise ValueError(
            f"the tables have no feature in common; {'; '.join([*shows][:2])}: give them names of "
            "the same kind, for example by names=."
        )
    place = {name: at for at, name in enumerate(features)}
    kind = index_type(len(features))
    places = [np.array([place.get(name, -1) for name in text], kind) for text in texts]
    left_out = [int(np.count_nonzero(columns < 0)) for columns in places]
    worst = int(np.argmax([n / len(text) for n, text in zip(left_out, texts, strict=True)]))
    if left_out[worst] > _MANY * len(texts[worst]):
        warn_caller(
            f"the tables have {len(features):,} features in common, and {left_out[worst]:,} of the "
            f"{len(texts[worst]):,} features of {labels[worst]} are left out (join='inner'). "
            "join='outer' keeps the features of all tables."
        )
    whole = range(len(features))
    same = [len(columns) == len(features) and columns.tolist() == list(whole) for columns in places]
    return JoinedFeatures(
        np.array(list(features), object),
        [None if is_same else columns for is_same, columns in zip(same, places, strict=True)],
        len(dict.fromkeys(name for text in texts for name in text)) - len(features),
    )


def joined_sample_names(
    parts: Sequence[RowStream], labels: Sequence[str]
) -> tuple[Array | None, bool]:
    """Return the names of all samples, and whether labels of tables precede them.

    They do if a name occurs in several tables: "donor 1_AAAC-1", as Seurat's merge names cells.
    """
    names = [part.about["sample_names"] for part in parts]
    if all(table_names is None for table_names in names):
        return None, False
    texts = [
        [str(i) for i in range(part.shape[0])]
        if table_names is None
        else as_text(table_names).tolist()
        for part, table_names in zip(parts, names, strict=True)
    ]
    n_distinct = len({name for table_names in texts for name in table_names})
    prefixed = n_distinct < sum(len(set(table_names)) for table_names in texts)
    if prefixed:
        pairs = zip(labels, texts, strict=True)
        texts = [[f"{label}_{name}" for name in table_names] for label, table_names in pairs]
    return np.array([name for table_names in texts for name in table_names], object), prefixed


def _joined_tables(tables: Sequence[Any], sizes: Sequence[int], labels: list[str]) -> LabelTable:
    """Return the columns of all tables, and one that says the table of each sample."""
    read = [table() if callable(table) else table for table in tables]
    merged = joined([LabelTable({}) if table is None else table for table in read], sizes)
    name = FILE
    while name in merged:
        name += "_"
    narrow = np.min_scalar_type(-max(1, len(labels)))
    codes = np.repeat(np.arange(len(labels)).astype(narrow), sizes)
    return LabelTable({**merged.columns, name: Coded(codes, np.array(labels, object))})


# Sources and their labels ----------------------------------------------------------------------


def sources_in(X: Any) -> dict[str, Any] | None:
    """Return the sources in a list or dict of files, counts or AnnData objects, by label.

    None if `X` is anything else: a list of numbers, rows or texts.
    """
    if isinstance(X, Mapping):
        sources = list(X.values())
    elif isinstance(X, list | tuple):
        sources = list(X)
    else:
        return None
    if not sources or not all(_is_source(source) for source in sources):
        return None
    texts = [source for source in sources if isinstance(source, str)]
    if len(texts) == len(sources) and not any(map(_is_file, texts)):
        return None  # texts, not names of files
    keys = map(str, X) if isinstance(X, Mapping) else labels_of_files(sources)
    return dict(zip(keys, sources, strict=True))


def labelled(sources: dict[str, Any], labels: Any) -> dict[str, Any]:
    """Return sources with the labels that the caller gives, if there are any."""
    if labels is None:
        return sources
    names = [str(label) for label in labels] if not isinstance(labels, str) else [labels]
    if len(names) != len(sources) or len(set(names)) < len(names):
        raise ValueError(
            f"labels is {shown(labels)}: a different label for each of the {len(sources):,} tables "
            "is needed."
        )
    return dict(zip(names, sources.values(), strict=True))


def check_join(join: Any) -> None:
    """Refuse an unknown way to join features."""
    if join not in get_args(Join):
        raise ValueError(
            f"join={shown(join)}: 'inner' keeps the features that all tables have, 'outer' those "
            "that any table has."
        )


def _is_source(X: Any) -> bool:
    return isinstance(X, str | os.PathLike | CountMatrix) or (
        hasattr(type(X), "obs_names") and hasattr(type(X), "var_names")
    )


def _is_file(text: str) -> bool:
    return len(text) < 4096 and "\n" not in text and os.path.exists(os.path.expanduser(text))


def labels_of_files(sources: Sequence[Any]) -> list[str]:
    """Return names of files without folder and suffix if these differ, else with the folder."""
    paths = [Path(source) if isinstance(source, str | os.PathLike) else None for source in sources]
    ways = (lambda path: path.name.split(".")[0], lambda path: f"{path.parent.name}/{path.name}")
    for way in (*ways, str):
        labels = [str(i) if path is None else way(path) for i, path in enumerate(paths)]
        if len(set(labels)) == len(labels):
            return labels
    raise ValueError(f"a file is given twice: {repeated_names(labels)[0]}.")
