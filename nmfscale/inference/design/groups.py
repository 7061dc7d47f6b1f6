"""Labels of samples: the groups that are compared, sampling units, and strata.

Documents are rarely the unit of a study. Beers of one brewery, posts of one blog or cells of one
patient resemble each other and lie in one group: the sampling units are breweries, blogs and
patients, and their labels are exchangeable. A test that permutes documents instead finds false
differences far more often than its level.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import is_missing, matched, plain, shown, such_as
from ...counts.warn import warn_caller

Array = NDArray[Any]
# Texts that pandas and NumPy write for a missing value.
_MISSING_TEXTS = frozenset({"nan", "NaN", "NaT", "<NA>"})
# More numbers than this are amounts, such as ages, unless they number clusters.
_FEW_NUMBERS = 5


@dataclass(frozen=True)
class Labels:
    """A label for each sample: `codes` number the labels in `names`, from 0.

    Names are sorted if possible; those of a pandas Categorical keep its order, and are `ordered` if
    it is.
    """

    codes: NDArray[np.int64]
    names: tuple[Any, ...]
    ordered: bool = False

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.codes.size

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of samples with each label."""
        return np.bincount(self.codes, minlength=len(self.names))

    def at(self, places: Array) -> Labels:
        """Return the labels of samples, with all names."""
        return Labels(self.codes[places], self.names, self.ordered)

    def labels(self) -> tuple[Any, ...]:
        """Return the label of each sample."""
        return tuple(self.names[code] for code in self.codes.tolist())

    def of(self, kept: Array) -> Labels:
        """Return the labels of some samples, without names that do not occur among them."""
        used, codes = np.unique(self.codes[kept], return_inverse=True)
        return Labels(codes.reshape(-1), tuple(self.names[i] for i in used), self.ordered)


def checked_labels(
    values: Any, n_samples: int, name: str = "groups", sample_names: Any = None,
    subject: str = "loadings",
) -> Labels:  # fmt: skip
    """Return labels of any type: a list, an array, a pandas Series or Categorical.

    A Series or a dict is matched by name with the samples of `subject` if these have names. Missing
    labels are refused, also those that were made texts on the way, such as "nan".
    """
    values = matched(values, sample_names, name, subject=subject)
    labels = _labels_of(values, n_samples, name)
    texts = [i for i, label in enumerate(labels.names) if str(label) in _MISSING_TEXTS]
    if texts:
        as_text = f"{name}, the text {shown(labels.names[texts[0]])},"
        _refuse_missing(np.isin(labels.codes, texts), as_text)
    return labels


def _labels_of(values: Any, n_samples: int, name: str) -> Labels:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise ValueError(
            f"{name}={reprlib.repr(values)}: one label for each of {n_samples:,} samples is "
            "needed, in a list, an array or a column of a table."
        )
    if np.ndim(values) != 1:
        columns = list(values.columns) if hasattr(values, "columns") else []
        such = f", such as {name}[{shown(columns[0])}]" if columns else ""
        raise ValueError(
            f"{name} has shape {np.shape(values)}; one label for each of {n_samples:,} samples is "
            f"needed: pass a single column{such}."
        )
    if len(values) != n_samples:
        raise ValueError(
            f"{name} has {len(values):,} labels, and there are {n_samples:,} samples: give one "
            "each."
        )
    if hasattr(getattr(values, "dtype", None), "categories"):
        categories = plain(list(values.dtype.categories))
        codes = np.asarray(getattr(values, "cat", values).codes, np.int64)
        _refuse_missing(codes < 0, name)
        labels = Labels(codes, tuple(categories), bool(values.dtype.ordered))
        return labels.of(np.arange(n_samples))
    # not np.asarray, which turns a missing label in a list of texts into text
    array = values if isinstance(values, np.ndarray) else np.array([*values, None], object)[:-1]
    if array.dtype.kind == "O":
        _refuse_missing(np.fromiter(map(is_missing, array), bool, array.size), name)
        return _of_objects(plain(array.tolist()))
    if array.dtype.kind in "fcmM":
        _refuse_missing(np.isnat(array) if array.dtype.kind in "mM" else array != array, name)
    names, codes = np.unique(array, return_inverse=True)
    return Labels(codes.reshape(-1).astype(np.int64), tuple(names.tolist()))


def known_scores(groups: Labels) -> tuple[float, ...]:
    """Return a number for each group: numbers themselves, or 0, 1, 2 ... of ordered categories.

    Empty if the order of groups is not known.
    """
    names = groups.names
    if all(isinstance(name, Real) and not isinstance(name, bool) for name in names):
        return tuple(map(float, names))
    return tuple(map(float, range(len(names)))) if groups.ordered else ()


def scores_of(groups: Labels, what: str = "statistic='trend'") -> Array:
    """Return the same (R,), and refuse groups whose order is not known."""
    scores = known_scores(groups)
    if scores:
        return np.array(scores)
    raise ValueError(
        f"{what}: the order of {', '.join(map(shown, groups.names[:3]))} is not known. Pass "
        "numbers, such as doses, or an ordered pandas Categorical: "
        "pd.Categorical(labels, categories=[...], ordered=True)."
    )


def _of_objects(values: list[Any]) -> Labels:
    try:
        numbers: dict[Any, int] = dict.fromkeys(values, 0)
    except TypeError as error:
        raise ValueError(f"labels must be texts, numbers or the like ({error}).") from None
    names = list(numbers)
    try:
        names.sort()
    except TypeError:  # labels of several types: in order of first appearance
        pass
    numbers = {value: i for i, value in enumerate(names)}
    return Labels(np.array([numbers[value] for value in values], np.int64), tuple(names))


def groups_of_samples(values: Any, n_samples: int, sample_names: Any = None) -> Labels:
    """Return the labels of groups; numbers that are rather amounts, such as ages, are refused.

    Numbers of clusters, which are consecutive from 0 or 1, are groups, and so are categories.
    """
    labels = checked_labels(values, n_samples, "groups", sample_names)
    if not hasattr(getattr(values, "dtype", None), "categories"):
        _refuse_amounts(labels)
    return labels


def numbers_that_are_amounts(names: Sequence[Any]) -> str:
    """Return a text on labels that are rather amounts, such as ages; "" if they are not."""
    numbers = [label for label in names if isinstance(label, (int, float))]
    if len(numbers) <= _FEW_NUMBERS or len(numbers) < len(names):
        return ""
    if min(numbers) in (0, 1) and max(numbers) - min(numbers) == len(numbers) - 1:
        return ""
    return f"{len(numbers):,} different numbers, such as {such_as(sorted(numbers))}"


def _refuse_amounts(labels: Labels) -> None:
    amounts = numbers_that_are_amounts(labels.names)
    if not amounts:
        return
    raise ValueError(
        f"groups has {amounts}: test how proportions change with a number by regress_proportions, "
        "or bin the numbers. If each number is a group of its own, pass them as texts or as a "
        "Categorical."
    )


def _refuse_missing(missing: Array, name: str) -> None:
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise ValueError(
            f"{name} has {int(missing.sum()):,} missing labels, the first at sample {first}: leave "
            "these samples out, or give them a label of their own."
        )


@dataclass(frozen=True)
class Design:
    """Sampling units of one or more samples, with a group and a stratum each.

    `of_sample` is the number of each sample's unit. Without `units=` samples are units; without
    `strata=` there is one stratum. `groups` and `strata` are labels of units; `groups` is None if
    units may have samples in several groups.

    If units that the caller passed have samples in several groups (repeated measures), they are
    the `subjects`, and a unit is what a subject has in one group: see `blocks_of`. `subjects` are
    then labels of units, else None.
    """

    of_sample: NDArray[np.int64]
    n_units: int
    groups: Labels | None
    strata: Labels
    unit_names: tuple[Any, ...] | None = None
    subjects: Labels | None = None

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of units in each stratum and group, (n_strata, n_groups)."""
        assert self.groups is not None
        return table_of(self.strata.codes, self.groups.codes)

    def of(self, kept: Array) -> Design:
        """Return the design of some samples, without units that have no samples left."""
        left, of_sample = np.unique(self.of_sample[kept], return_inverse=True)
        names = self.unit_names
        groups, subjects = (
            None if labels is None else labels.of(left) for labels in (self.groups, self.subjects)
        )
        return Design(
            of_sample.reshape(-1), left.size, groups, self.strata.of(left),
            None if names is None else tuple(names[u] for u in left), subjects,
        )  # fmt: skip

    def sum_over_units(self, rows: Array) -> Array:
        """Sum the rows of the samples of each unit."""
        if self.unit_names is None:
            return rows
        out = np.zeros((self.n_units, *rows.shape[1:]), rows.dtype)
        np.add.at(out, self.of_sample, rows)
        return out


def table_of(strata: Array, groups: Array) -> NDArray[np.int64]:
    """Return how often each group (columns) occurs in each stratum (rows), numbered from 0."""
    out = np.zeros((int(strata.max()) + 1, int(groups.max()) + 1), np.int64)
    np.add.at(out, (strata, groups), 1)
    return out


def blocks_of(strata: Array, subjects: Array | None) -> NDArray[np.int64]:
    """Return the block of each unit: labels are exchangeable within blocks, numbered from 0.

    Without subjects these are the strata. A subject with units in several groups is a block of its
    own, as in a randomized block design, so that its groups are compared within it. The subjects
    of a stratum that are in one group only form a block together: their units are independent.
    """
    key = np.asarray(strata, np.int64)
    if subjects is not None:
        several = np.bincount(subjects)[subjects] > 1
        key = np.where(several, key.max() + 1 + subjects, key)
    return np.unique(key, return_inverse=True)[1].reshape(-1).astype(np.int64)


def checked_design(
    groups: Labels, units: Any = None, strata: Any = None, *, nested: bool = True,
    sample_names: Any = None, subject: str = "loadings",
) -> Design:  # fmt: skip
    """Check groups, units and strata of samples, and return the design.

    Units and strata are matched with `sample_names` as by `checked_labels`. Every unit must lie in
    one stratum. `nested`: a unit has samples of one group, as permutations of labels require; if
    some of those that are passed have several, a unit is what one of them has in one group.
    """
    n = len(groups)
    one = Labels(np.zeros(n, np.int64), (None,))
    named = (sample_names, subject)
    strata = one if strata is None else checked_labels(strata, n, "strata", *named)
    if units is None:
        return Design(np.arange(n), n, groups, strata)
    of = checked_labels(units, n, "units", *named)
    _refuse_split(of, strata)
    cells, first, cell = np.unique(
        of.codes * len(groups.names) + groups.codes, return_index=True, return_inverse=True
    )
    if not nested or cells.size == len(of.names):
        first = _first(of)
        return Design(
            of.codes, len(of.names), groups.at(first) if nested else None, strata.at(first),
            of.names,
        )  # fmt: skip
    subjects = of.at(first)
    names = tuple(
        (of.names[u], groups.names[g])
        for u, g in zip(subjects.codes.tolist(), groups.codes[first].tolist(), strict=True)
    )
    return Design(cell.reshape(-1), cells.size, groups.at(first), strata.at(first), names, subjects)


def check_resampled(design: Design) -> None:
    """Refuse a design in which every replicate is the same; warn of strata with a single unit.

    Every replicate contains the unit of a stratum with a single unit, so intervals ignore how much
    units of that stratum vary.
    """
    single = np.flatnonzero(design.strata.sizes == 1)
    n_strata = len(design.strata.names)
    if single.size < n_strata:
        if single.size:
            warn_caller(
                f"{single.size:,} of {n_strata:,} strata have a single unit, such as "
                f"{design.strata.names[single[0]]!r}: nothing varies there, and intervals are too "
                "narrow. Merge strata, or pass finer units."
            )
        return
    if n_strata == 1:
        unit = f", {design.unit_names[0]!r}" if design.unit_names else ""
        raise ValueError(
            f"there is only one unit{unit}: every replicate would be the same. Intervals need "
            "several units; pass finer units, or leave units out if samples were drawn one by one."
        )
    raise ValueError(
        f"each of the {n_strata:,} strata has a single unit: every replicate would be the same. "
        "Pass coarser strata, or none."
    )


def _first(labels: Labels) -> Array:
    """Return the first sample with each label."""
    first = np.zeros(len(labels.names), np.int64)
    first[labels.codes[::-1]] = np.arange(len(labels))[::-1]
    return first


def _refuse_split(units: Labels, strata: Labels) -> None:
    """Refuse a unit that has samples in several strata."""
    first = _first(units)
    other = np.flatnonzero(strata.codes != strata.codes[first[units.codes]])
    if other.size:
        at = int(other[0])
        unit = units.codes[at]
        one, another = (shown(strata.names[strata.codes[i]]) for i in (first[unit], at))
        raise ValueError(
            f"unit {shown(units.names[unit])} has samples in strata {one} and {another}: units "
            "must lie in one stratum each, so give all samples of a unit the same label in strata, "
            "or pass finer units; what differs within units can be a covariate of "
            "regress_proportions."
        )


# More samples than this in a group are rarely sampling units: they are cells of some donors, posts
# of some blogs. Studies have dozens of units in a group, at most hundreds.
MANY_SAMPLES = 1000
# Samples that a group has in three of four strata or more, from which strata may be the units.
_SEVERAL = 2


def warn_of_samples_as_units(design: Design, groups: Labels | None = None) -> None:
    """Warn if samples serve as units but are too many to be sampling units.

    Samples of a group are counted in each stratum. `groups` are labels of samples for a design
    without groups.
    """
    if design.unit_names is not None:
        return
    groups = design.groups if groups is None else groups
    sizes, names = (
        (design.strata.sizes[:, None], ("all samples",))
        if groups is None
        else (
            table_of(design.strata.codes, groups.codes),
            [f"group {name!r}" for name in groups.names],
        )
    )
    most = int(sizes.max())
    if most > MANY_SAMPLES:
        where = names[int(sizes.max(axis=0).argmax())]
        warn_caller(
            f"units= is not given, so that each of {most:,} samples of {where} is a unit of its "
            "own. Where samples come from fewer donors, patients, batches or authors, those of one "
            "resemble each other: p-values are then far too small, and intervals too narrow. Pass "
            "units=, the donor (or the like) of each sample."
        )
    elif groups is not None and len(sizes) > 1:
        compared = sizes[(sizes > 0).sum(axis=1) > 1]
        _warn_of_strata_as_units(compared[compared > 0])


def _warn_of_strata_as_units(sizes: Array) -> None:
    """Warn if strata may be donors, given the numbers of samples of a group in a stratum."""
    if sizes.size and np.quantile(sizes, 0.25) >= _SEVERAL:
        warn_caller(
            f"strata= is given without units=, and a group has {sizes.mean():.3g} samples in a "
            "stratum on average, each of which is a unit of its own. If each stratum is one donor "
            "(patient, author), these resemble each other, and p-values are far too small: pass "
            "units=donor alone, which compares groups within donors. If samples are independent, "
            "pass units=, a different label for each sample."
        )
