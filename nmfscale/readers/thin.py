"""thin: a random part of the counts of every sample."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Unpack

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..counts.argument_types import CountsLike, RandomStateLike
from ..counts.base import CountMatrix
from ..counts.names import shown
from ..counts.warn import warn_caller
from .open import open_counts
from .options import SourceOptions, check_source
from .streams.file_counts import FileCounts
from .streams.thinning import PartOfCounts, groups_of_rows

Array = NDArray[Any]
# NumPy draws without replacement from fewer counts than this.
_MOST = 10**9


def thin(
    counts: CountsLike,
    *,
    total: int | None = None,
    fraction: float | None = None,
    random_state: RandomStateLike | None = None,
    in_memory: bool = True,
    memory_limit: int | float | str | None = None,
    layer: str | None = None,
    raw: bool = False,
    **source: Unpack[SourceOptions],
) -> CountMatrix:
    """Keep a random part of the counts of every sample, such as the same number of each.

    Proportions that are fitted to few counts are biased, so that groups of different depth seem to
    differ. After thinning to a common total, samples have the same depth, and a fit to the thinned
    counts has the same bias in all groups.

    Parameters
    ----------
    counts : str, path or object
        Any source of counts that :func:`as_counts` accepts. The counts are whole numbers.
    total : int, optional
        Number of counts that each sample keeps. They are drawn without replacement: the counts of
        a sample are multivariate hypergeometric, as by ``scanpy.pp.downsample_counts``. A sample
        with fewer counts keeps all of them.
    fraction : float, optional
        Probability with which each single count is kept, in place of `total`: counts are binomial,
        and thinned Poisson counts are again Poisson.
    random_state : int, Generator or None, default=None
        Seed of the draws. The same seed gives the same counts, in memory and in files.
    in_memory : bool, default=True
        Whether to read files into memory. Otherwise, and always for a packed store, counts are
        thinned anew each time that they are read: for a fit, write them with :func:`write_store`.
    memory_limit, layer, raw
        As in :func:`as_counts`.
    **source
        Further arguments of :func:`as_counts`: `names`, `feature_names`, `sample_names`,
        `mask_var`, `mask_obs`, `groups`, `genome`, `feature_type`, `transpose`.

    Returns
    -------
    CountMatrix
        The thinned counts, with the names, the groups and `obs` of all samples.

    Raises
    ------
    ValueError
        If not exactly one of `total` and `fraction` is given, one of them is not valid, counts are
        not whole numbers, or a sample has a billion counts or more and `total` is given.

    Warns
    -----
    UserWarning
        If samples have fewer counts than `total`.

    See Also
    --------
    permutation_test, group_effects : Tests that warn if groups differ in depth.

    Examples
    --------
    >>> import nmfscale
    >>> X, _ = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> depth = int(X.sum(axis=1).min())
    >>> thinned = nmfscale.thin(X, total=depth, random_state=0)
    >>> bool((thinned.row_totals == depth).all())
    True
    >>> model = nmfscale.TopicModel(3, random_state=0).fit(thinned)

    A layer of an AnnData object: ``adata.layers["thinned"] = nmfscale.thin(adata,
    total=500).take_rows()``.
    """
    check_source(source, "thin()")
    part = _checked(total, fraction, random_state)
    whole = open_counts(
        counts, in_memory=in_memory, memory_limit=memory_limit, integer="allow", layer=layer,
        raw=raw, **source,
    )  # fmt: skip
    if not whole.is_integer:
        raise ValueError(
            "counts are not whole numbers, and only whole numbers can be thinned: pass the "
            "unnormalised counts, such as layer='counts' or raw=True."
        )
    if part.total is not None:
        _check_totals(whole, part.total)
    rows = PartOfCounts(whole, thinning=part, parts=(0,))
    return FileCounts(rows) if whole.from_file else rows.in_memory()


@dataclass(frozen=True)
class PartOfSamples:
    """A draw of `total` counts of each row, or of each count with probability `fraction`.

    `key` is a seed of 128 bits.
    """

    key: int
    total: int | None
    fraction: float | None

    def draw(self, matrix: sp.csr_array, first: int) -> list[Array]:
        """Return the counts that are kept, at the entries of sorted rows: see `Thinning.draw`."""
        kept = matrix.data.astype(np.int64)
        for here, rng, ends in groups_of_rows(self.key, matrix, first):
            if self.fraction is not None:
                kept[here] = rng.binomial(kept[here], self.fraction)
                continue
            for row in map(slice, ends[:-1].tolist(), ends[1:].tolist()):
                if self.total is not None and kept[row].sum() > self.total:
                    kept[row] = rng.multivariate_hypergeometric(kept[row], self.total)
        return [kept]


def _checked(total: Any, fraction: Any, random_state: Any) -> PartOfSamples:
    """Return the draw that the arguments describe."""
    if (total is None) == (fraction is None):
        raise ValueError(
            f"total={shown(total)}, fraction={shown(fraction)}: give one of them, the number of "
            "counts that each sample keeps, or the probability with which a count is kept."
        )
    if total is not None:
        if not isinstance(total, Integral) or isinstance(total, bool) or total < 1:
            raise ValueError(f"total={shown(total)}: a positive integer is needed.")
        total = int(total)
    elif not isinstance(fraction, Real) or not 0 < float(fraction) < 1:
        raise ValueError(f"fraction={shown(fraction)}: a number between 0 and 1 is needed.")
    try:
        low, high = np.random.default_rng(random_state).integers(2**64, size=2, dtype=np.uint64)
    except (TypeError, ValueError):
        raise ValueError(
            f"random_state={shown(random_state)}: a non-negative integer, a numpy Generator or "
            "None is needed."
        ) from None
    return PartOfSamples(
        int(low) | int(high) << 64, total, None if fraction is None else float(fraction)
    )


def _check_totals(counts: CountMatrix, total: int) -> None:
    """Refuse samples with too many counts for a draw; warn of those with fewer than `total`."""
    totals = np.asarray(counts.row_totals)
    most = int(totals.argmax()) if totals.size else 0
    if totals.size and totals[most] >= _MOST and totals[most] > total:
        name = most if counts.sample_names is None else counts.sample_names[most]
        raise ValueError(
            f"sample {shown(name)} has {totals[most]:,.0f} counts, and total= can draw from fewer "
            f"than {_MOST:,}: thin the counts by fraction= first."
        )
    few = totals < total
    if few.any():
        warn_caller(
            f"{int(few.sum()):,} of {len(totals):,} samples have fewer than total={total:,} "
            f"counts, the fewest {totals.min():,.0f}: they keep all of them. With a total that all "
            "samples have, all have the same depth; mask_obs= leaves samples out."
        )
