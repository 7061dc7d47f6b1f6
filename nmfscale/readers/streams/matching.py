"""Counts whose features are matched by name with those of a fit, or of a table of frequencies.

A feature that the counts lack is refused, left out or taken as 0, as the caller says. Features that
only the counts have are left out. A warning says what was done.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ...counts.base import CountMatrix
from ...counts.names import repeated_names, such_as
from ...counts.warn import warn_caller
from .columns import select_columns

Array = NDArray[Any]

Missing: TypeAlias = Literal["error", "restrict", "zero"]
MISSING = get_args(Missing)
REMEDY = (
    "give missing='restrict' if they were not measured, as genes in another assay: they are then "
    "left out; or missing='zero' if their absence means counts of 0, as of words in texts with a "
    "vocabulary of their own."
)


class FeatureWording(NamedTuple):
    """How messages call the features that counts are matched with.

    `own` follows "features" for those features, `other` for all others; `order` follows "in another
    order than", and without it the order is not mentioned.
    """

    own: str
    other: str
    order: str | None = None


def check_missing(missing: Any) -> None:
    """Refuse an invalid `missing`, which says how to treat missing features."""
    if missing is not None and missing not in MISSING:
        raise ValueError(
            f"missing={missing!r}: {', '.join(map(repr, MISSING))} are the ways to treat features "
            "of the fit that X lacks."
        )


def lacking_names(names: Array, reference: Array) -> list[Any]:
    """Return the names of `reference` that are not in `names`."""
    there = set(names.tolist())
    return [name for name in reference.tolist() if name not in there]


def select_features(
    counts: CountMatrix, names: Array, reference: Array, wording: FeatureWording, missing: str,
    remedy: str = REMEDY, *, warns: bool = True,
) -> tuple[CountMatrix, Array | None]:  # fmt: skip
    """Return counts with features `names` arranged in the order of `reference`, another order.

    `missing` says how to treat features that the counts lack: raise an error; leave them out and
    also return a mask (m,) of the others ("restrict"); or set their counts to 0 ("zero"). `remedy`
    is the advice of the error.
    """
    lacking = lacking_names(names, reference)
    if lacking and (missing == "error" or len(lacking) == len(reference)):
        raise ValueError(_lacks(names, reference, lacking, wording, remedy))
    columns = _places(names, reference, wording)
    done = _done(counts, names, reference, columns, wording, missing) if warns else ""
    if done:
        warn_caller(done)
    there = columns >= 0
    if there.all():
        return select_columns(counts, columns), None
    if missing == "zero":
        return select_columns(counts, columns, reference), None
    return select_columns(counts, columns[there], reference[there]), there


def _lacks(
    names: Array, reference: Array, lacking: list[str], wording: FeatureWording, remedy: str
) -> str:
    """Return text on missing features, with new ones that may be the same under other names."""
    others = lacking_names(reference, names)
    if len(lacking) == len(reference):
        return (
            f"X has none of the {len(reference):,} features {wording.own}, such as "
            f"{such_as(lacking)}; "
            f"those of X are such as {such_as(others)}: give X names of the same kind. "
            "If X has other names in a column of var, such as identifiers beside symbols of genes, "
            "choose it by names= (in the shell --names), as in as_counts(X, names='gene_ids'); "
            "without names=, the index of var is used."
        )
    more = f"; those of X are such as {such_as(others)}" if others else ""
    return (
        f"X lacks {len(lacking):,} of the {len(reference):,} features {wording.own}, such as "
        f"{such_as(lacking)}{more}: {remedy}"
    )


def _places(names: Array, reference: Array, wording: FeatureWording) -> Array:
    """Return the position in `names` of each known name, -1 if it is missing."""
    wanted = set(reference.tolist())
    for labels, where in ((reference, wording.own), (names, "of X")):
        if repeated := repeated_names(labels.tolist(), wanted):
            raise ValueError(
                f"several features {where} have one name, such as {such_as(repeated)}, and cannot "
                "be matched by name. Make names unique before the fit and here, for AnnData by "
                "var_names_make_unique(), or give the features of the fit in its order."
            )
    place = {name: at for at, name in enumerate(names.tolist())}
    return np.array([place.get(name, -1) for name in reference.tolist()])


def _done(
    counts: CountMatrix,
    names: Array,
    reference: Array,
    columns: Array,
    wording: FeatureWording,
    missing: str,
) -> str:
    """Return text that says how features were matched."""
    others, said = lacking_names(reference, names), []
    if lacking := reference[columns < 0].tolist():
        what = "they are left out" if missing == "restrict" else "their counts are taken as 0"
        said.append(
            f"X lacks {len(lacking):,} of the {len(reference):,} features {wording.own}, such as "
            f"{such_as(lacking)}: {what} (missing={missing!r})."
        )
    if others:
        are = "feature" if len(others) == 1 else "features"
        left = counts.total - float(counts.column_totals[columns[columns >= 0]].sum())
        share = f"{left / counts.total:.1%} of its counts" if counts.total else "no counts"
        said.append(
            f"X has {len(others):,} {are} {wording.other}, such as {such_as(others)}: "
            f"{'it is' if len(others) == 1 else 'they are'} ignored, with {share}."
        )
    if wording.order and (np.diff(columns[columns >= 0]) < 0).any():
        what = "The other features are" if said else "X has its features"
        said.append(f"{what} in another order than {wording.order}: they are matched by name.")
    return " ".join(said)
