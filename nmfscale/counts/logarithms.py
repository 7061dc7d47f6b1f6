"""Log-normalised values where counts are expected: what tells them from other fractions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..kernels.functions import exp, log
from .base import CountMatrix
from .integers import IntegerPolicy, warn_fraction

_BASES = log([np.e, 2.0, 10.0])
# log1p of the largest 32-bit number is 22; rows that are looked at.
_MOST_LOG, _ROWS = 25, 100
# Values of a row whose multiples of the smallest one are whole numbers within this, up to the
# largest multiple that single precision resolves.
_NEAR, _MOST = 0.01, 1000
# Such values must be at least so many, and this share of the multiples.
_FEWEST, _SHARE = 10, 0.9


def looks_logarithmic(counts: CountMatrix) -> bool:
    """Whether values are log(1 + c s) of counts c and a size factor s of each sample.

    Then exp(value) - 1 of a sample are multiples of the smallest one, which mostly is of the count
    1; so they are after features were selected. TF-IDF, shares and counts corrected for ambient RNA
    are no such logarithms.
    """
    if counts.first_fraction is None or counts.largest >= _MOST_LOG:
        return False
    rows = next(iter(counts.chunks(0, min(_ROWS, counts.shape[0]))))
    parts = np.split(np.asarray(rows.data, np.float64), np.asarray(rows.indptr)[1:-1])
    samples = [part[part > 0] for part in parts if (part > 0).any()]
    if _whole_multiples(samples):
        return False
    return any(_whole_multiples([exp(base * row) - 1 for row in samples]) for base in _BASES)


def _whole_multiples(rows: Sequence[NDArray[np.float64]]) -> bool:
    """Whether most values of rows are whole multiples of the smallest value of their row."""
    multiples = np.concatenate([np.empty(0), *(row / row.min() for row in rows)])
    multiples = multiples[(multiples > 1.5) & (multiples < _MOST)]
    n_whole = np.count_nonzero(np.abs(multiples - np.rint(multiples)) < _NEAR)
    return bool(n_whole >= max(_FEWEST, _SHARE * multiples.size))


def check_fractions(
    counts: CountMatrix, integer: IntegerPolicy, holder: str, others: Sequence[str] = (),
    remedy: str | None = None,
) -> None:  # fmt: skip
    """Refuse log-normalised values, and warn of other fractions, unless they are allowed.

    `holder` is the object or file, `others` are further matrices in it, and `remedy` is a sentence
    about them in place of their names.
    """
    if integer == "warn":
        if remedy is None:
            remedy = "Pass the raw counts (for AnnData: perhaps in a layer or raw)."
            remedy += f" It also has {', '.join(others)}." if others else ""
        as_they_are = "To fit these values as they are, pass integer='allow', or use FrobeniusNMF."
        refuse_logarithms(counts, holder, remedy, as_they_are)
    warn_fraction(counts.first_fraction, integer, holder, others)


def refuse_logarithms(counts: CountMatrix, holder: str, remedy: str, as_they_are: str) -> None:
    """Refuse log-normalised values; the last sentences of the error say what to do."""
    if looks_logarithmic(counts):
        raise ValueError(
            f"{holder} looks log-normalised: its values are logarithms of counts, scaled for each "
            f"sample. Models of counts need the counts. {remedy} {as_they_are}"
        )
