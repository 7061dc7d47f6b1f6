"""Several modalities side by side: counts of different features in the same samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.depth import depth_note
from ...counts.label_table import LabelTable, joined
from ...counts.names import as_text, is_missing, repeated_names, shown, such_as
from ...counts.validation import CompressedRows, compressed_rows
from ...counts.warn import warn_caller
from .stream import RowStream, subject_of

Array = NDArray[Any]
ModalityWeighting: TypeAlias = Literal["information", "counts"]
# Bytes for each entry while rows are read.
_ENTRY_BYTES = 16
# Significant digits of a weight that is computed: it can be typed in again, and does not depend on
# the order in which counts are added up.
_DIGITS = 3
# Chi-square beyond its expectation, in standard deviations, below which it may be noise.
_LEAST = 3.0


class JoinedModalities(RowStream):
    """Rows whose columns are those of several tables; samples are matched by name.

    `parts` are the tables by modality. With `join` "outer", samples of any table are kept, and what
    a sample lacks was not measured in it; with "inner", samples that all tables have. `samples` are
    the names of the samples to keep, in their order, instead of those that `join` keeps.
    """

    def __init__(
        self, parts: Mapping[str, CountMatrix], join: str = "outer", samples: Any = None
    ) -> None:  # fmt: skip
        self._parts, labels = list(parts.values()), list(parts)
        self.subject = "the joined modalities"
        names, self._places = matched_samples(self._parts, labels, join, samples)
        sizes = [part.shape[1] for part in self._parts]
        self.shape = len(self._places[0]), sum(sizes)
        for label, part, places in zip(labels, self._parts, self._places, strict=True):
            if part.from_file and (np.diff(places[places >= 0]) < 0).any():
                warn_caller(
                    f"samples of {label} are in another order than those of {labels[0]}: its file "
                    "is read several times for each pass. Write the joined counts to a packed "
                    "store by write_store, which has them in one order."
                )
        notes = [
            f"{label}: {note}"
            for label, part in zip(labels, self._parts, strict=True)
            for note in part.notes
        ]
        for label, places in zip(labels, self._places, strict=True):
            if n_lacking := int(np.count_nonzero(places < 0)):
                notes.append(f"{n_lacking:,} samples lack {label}: it was not measured in them")
        totals = {
            label: np.append(part.row_totals, 0.0)[places]  # place -1 is a sample without counts
            for label, part, places in zip(labels, self._parts, self._places, strict=True)
        }
        if (varies := depth_note(totals)) is not None:
            notes.append(varies)
        self.about = {
            "sample_names": names, "feature_names": _feature_names(self._parts, labels),
            "groups": next((part.groups[places] for part, places in self._whole()
                            if part.groups is not None), None),
            "obs": partial(_obs_of, self._parts, self._places, labels), "notes": notes,
            "measured": self._measured(), "of_text": all(part.of_text for part in self._parts),
            "modalities": np.repeat(np.array(labels, object), sizes),
        }  # fmt: skip

    def _whole(self) -> Iterator[tuple[CountMatrix, Array]]:
        """Yield the tables that have all samples, with the row of each."""
        for part, places in zip(self._parts, self._places, strict=True):
            if (places >= 0).all():
                yield part, places

    def _measured(self) -> tuple[Array, Array] | None:
        """Return which features were measured in the samples of each panel."""
        masks = []
        for part in self._parts:
            features, panel = part.measured or (
                np.ones((1, part.shape[1]), bool),
                np.zeros(part.shape[0], int),
            )
            nothing = np.zeros((1, part.shape[1]), bool)
            masks.append((np.append(features, nothing, axis=0), np.append(panel, len(features))))
        of_parts = np.stack(
            [panel[places] for (_, panel), places in zip(masks, self._places, strict=True)], axis=1
        )
        kinds, panel = np.unique(of_parts, axis=0, return_inverse=True)
        there = np.array([
            np.concatenate([mask[number] for (mask, _), number in zip(masks, kind, strict=True)])
            for kind in kinds
        ])  # fmt: skip
        there[~there.any(axis=1)] = True  # samples without any modality are empty, as others are
        return None if there.all() else (there, panel.reshape(-1))

    def rows(self, start: int, stop: int) -> CompressedRows:  # noqa: D102
        matrices = [
            _rows_at(part, places[start:stop])
            for part, places in zip(self._parts, self._places, strict=True)
        ]
        matrix = sp.csr_array(sp.hstack(matrices, "csr"))
        return compressed_rows(matrix, self.entry_names(), first=start, sort=True)

    def chunks(
        self, max_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[CompressedRows]:
        """Yield rows start:stop in pieces of at most `max_bytes`, or one row."""
        stop = self.shape[0] if stop is None else stop
        n_entries = np.zeros(stop - start, np.int64)
        for part, places in zip(self._parts, self._places, strict=True):
            n_entries += np.append(part.row_nnz, 0)[places[start:stop]]
        ends, most, begin = np.cumsum(n_entries), max(1, max_bytes // _ENTRY_BYTES), 0
        while begin < stop - start:
            before = ends[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + most, "right")))
            yield self.rows(start + begin, start + end)
            begin = end

    def nan_entries(self) -> Any:
        """Return a mask (n, m) of NaN, if those of the tables are known."""
        masks = [part.nan_entries for part in self._parts]
        if all(mask is None for mask in masks):
            return None
        of_parts = []
        for part, mask, places in zip(self._parts, masks, self._places, strict=True):
            missing = sp.csr_array(part.shape, dtype=bool) if mask is None else sp.csr_array(mask)
            lacking = sp.csr_array((1, part.shape[1]), dtype=bool)  # place -1
            of_parts.append(sp.csr_array(sp.vstack([missing, lacking], "csr"))[places])
        return sp.csr_array(sp.hstack(of_parts, "csr"))

    @property
    def source(self) -> dict[str, Any]:
        """Where the tables come from."""
        return {
            "modalities": [
                getattr(part, "source", {"object": subject_of(part)}) for part in self._parts
            ]
        }


def _rows_at(counts: CountMatrix, places: Array) -> sp.csr_array:
    """Return the rows at some places; -1 is a row without counts."""
    there = np.flatnonzero(places >= 0)
    empty = sp.csr_array((0, counts.shape[1]), dtype=counts.dtype)
    if there.size:
        first, last = int(places[there].min()), int(places[there].max()) + 1
        pieces = [piece.matrix(counts.shape[1]) for piece in counts.chunks(first, last)]
        matrix = pieces[0] if len(pieces) == 1 else sp.csr_array(sp.vstack(pieces, "csr"))
        if not np.array_equal(places[there] - first, np.arange(matrix.shape[0])):
            matrix = matrix[places[there] - first]
        empty = sp.csr_array(matrix, copy=True)
        empty.sort_indices()
    lengths = np.zeros(len(places), empty.indptr.dtype)
    lengths[there] = np.diff(empty.indptr)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    return sp.csr_array((empty.data, empty.indices, indptr), (len(places), counts.shape[1]))


def matched_samples(
    parts: Sequence[CountMatrix], labels: Sequence[str], join: str, given: Any = None
) -> tuple[Array | None, list[Array]]:
    """Return the names of the joined samples, and the row of each in every table, or -1.

    The joined samples are those `given`, or those that `join` keeps.
    """
    names = [part.sample_names for part in parts]
    sizes = {label: part.shape[0] for label, part in zip(labels, parts, strict=True)}
    without = [label for label, array in zip(labels, names, strict=True) if array is None]
    if without:
        if len(without) == len(parts) and len(set(sizes.values())) == 1:
            return None, [np.arange(parts[0].shape[0])] * len(parts)
        raise ValueError(
            f"samples are matched by name, and {shown(without[0])} has no names of samples (the "
            f"modalities have {such_as(sizes.values())} samples): give sample_names to as_counts "
            "for each of them."
        )
    texts = [as_text(array).tolist() for array in names]
    for label, text in zip(labels, texts, strict=True):
        if repeated := repeated_names(text):
            raise ValueError(
                f"{label} has several samples of one name, such as {such_as(repeated)}, so that "
                "samples cannot be matched by name: make names unique."
            )
    samples = dict.fromkeys(name for text in texts for name in text)
    common = set(texts[0]).intersection(*texts[1:])
    if join == "inner":
        samples = dict.fromkeys(name for name in samples if name in common)
    if not common:
        shows = [f"{label} has {such_as(t)}" for label, t in zip(labels, texts, strict=True)]
        raise ValueError(
            f"the modalities have no sample in common; {'; '.join(shows[:2])}: give them the same "
            "names of samples."
        )
    if given is not None:
        samples = dict.fromkeys(as_text(np.asarray(given, object)).tolist())
    rows = [{name: at for at, name in enumerate(text)} for text in texts]
    places = [np.array([place.get(name, -1) for name in samples], np.intp) for place in rows]
    return np.array(list(samples), object), places


def _feature_names(parts: Sequence[CountMatrix], labels: Sequence[str]) -> Array | None:
    """Return names of all features; one that several modalities have begins with its modality."""
    if all(part.feature_names is None for part in parts):
        return None
    texts = [
        [str(j) for j in range(part.shape[1])]
        if part.feature_names is None
        else as_text(part.feature_names).tolist()
        for part in parts
    ]
    several = set(repeated_names(name for text in texts for name in dict.fromkeys(text)))
    return np.array(
        [
            f"{label}:{name}" if name in several else name
            for label, text in zip(labels, texts, strict=True)
            for name in text
        ],
        object,
    )


def _obs_of(
    parts: Sequence[CountMatrix], places: Sequence[Array], labels: Sequence[str]
) -> LabelTable:
    """Return the columns of all modalities.

    A column of several modalities is kept once if their values agree; otherwise the names of the
    later ones begin with the modality.
    """
    columns: dict[str, Any] = {}
    for part, rows, label in zip(parts, places, labels, strict=True):
        if part.obs is None:
            continue
        table = part.obs
        if (rows < 0).any():
            n = part.shape[0]
            table = joined([table, LabelTable({})], [n, 1])
        table = table.take(rows)
        for name in table:
            if name in columns and not _agree(LabelTable({name: columns[name]})[name], table[name]):
                columns[f"{label}:{name}"] = table.columns[name]
            else:
                columns.setdefault(name, table.columns[name])
    return LabelTable(columns)


def _agree(one: Array, other: Array) -> bool:
    """Whether columns have the same values where neither is missing."""
    if one.dtype.kind in "biuf" and other.dtype.kind in "biuf":
        return bool(((one == other) | np.isnan(one) | np.isnan(other)).all())
    pairs = zip(one.tolist(), other.tolist(), strict=True)
    return all(a == b or is_missing(a) or is_missing(b) for a, b in pairs)


# Weights ---------------------------------------------------------------------------------------


def information(counts: CountMatrix) -> float:
    """Return what counts show beyond noise of the differences between profiles of samples.

    It is Pearson's chi-square of independence of samples and features, less its expectation for
    Poisson counts of independent samples and features: an estimate without bias of
    ``sum_ij (m_ij - e_ij)^2 / e_ij``, with m the true means and e those of independence. Counts
    that show nothing beyond noise have the amount that noise may have.
    """
    return _information(counts)[0]


def _information(counts: CountMatrix) -> tuple[float, bool]:
    """Return the information, and whether it is what noise may have."""
    r, c, total = counts.row_totals, counts.column_totals, counts.total
    n, m = int(np.count_nonzero(r)), int(np.count_nonzero(c))
    if total <= 1 or n < 2 or m < 2:
        return 0.0, False
    inverse = np.divide(1.0, c, out=np.zeros(len(c)), where=c > 0)
    sums = []
    for first, indptr, indices, data in counts.chunks():
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        x = data.astype(np.float64)
        of_rows = np.bincount(rows, x * x * inverse[indices], len(indptr) - 1)
        totals = r[first : first + len(of_rows)]
        sums.append(np.divide(of_rows, totals, out=np.zeros(len(of_rows)), where=totals > 0))
    degrees = float(n - 1) * (m - 1)
    excess = total * (math.fsum(np.concatenate(sums)) - 1) - degrees * total / (total - 1)
    least = _LEAST * math.sqrt(2 * degrees)
    return max(excess, least), excess < least


def weights_of_modalities(parts: Mapping[str, CountMatrix], weights: Any) -> dict[str, float]:
    """Return the weight of each modality, as given or computed."""
    labels = list(parts)
    if isinstance(weights, str) or weights is None:
        if weights not in get_args(ModalityWeighting):
            raise ValueError(
                f"modality_weights={shown(weights)}: 'information' (equal information), 'counts' "
                "(weight 1), or a weight for each modality is needed, such as "
                f"{ {label: 1.0 for label in labels} }."
            )
        if weights == "counts":
            return dict.fromkeys(labels, 1.0)
        amounts = []
        for label, part in parts.items():
            amount, is_noise = _information(part)
            amounts.append(amount / max(1, int((part.row_nnz > 0).sum())))
            if is_noise:
                warn_caller(
                    f"the counts of {label} show no more than noise, and its weight makes much of "
                    "it: leave it out, or give modality_weights, such as 'counts'."
                )
        none = [label for label, amount in zip(labels, amounts, strict=True) if not amount]
        if none:
            raise ValueError(
                f"{none[0]} has too few counts for a weight: give modality_weights, or leave it "
                "out."
            )
        return {
            label: _rounded(amounts[0] / amount)
            for label, amount in zip(labels, amounts, strict=True)
        }
    if not isinstance(weights, Mapping):
        weights = dict(enumerate(weights)) if np.ndim(weights) else {0: weights}
        if len(weights) == len(labels):
            weights = dict(zip(labels, weights.values(), strict=True))
    if weights.keys() != set(labels):
        raise ValueError(
            f"modality_weights has weights of {such_as(weights)}, and the modalities are "
            f"{such_as(labels)}: a weight for each of them is needed."
        )
    values = {label: float(weights[label]) for label in labels}
    wrong = [label for label, value in values.items() if not 0 < value < math.inf]
    if wrong:
        raise ValueError(
            f"modality_weights[{wrong[0]!r}]={values[wrong[0]]:g}: weights are positive, finite "
            "numbers; leave a modality out to give it no weight."
        )
    return values


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
