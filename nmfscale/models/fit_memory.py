"""Memory that a fit of two factors needs besides its counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..counts.base import CountMatrix
from ..engine.protocol import Needs
from ..methods.factors import Constraints
from ..methods.poisson.efficiencies import memory_of_batches
from ..methods.poisson.solvers import poisson_needs
from ..methods.starts.moves import BYTES_A_COUNT, BYTES_A_TOPIC, MOST_NONZEROS
from ..methods.weights.entries import memory_of_entries
from .fitted import OTHER_ENDS


def memory_of_fit(
    counts: CountMatrix, n_components: int, dtype: Any, solver: str, n_threads: int, *,
    constraints: Constraints, penalty: Any, entries: Any, batches: Any, n_starts: int, n_moves: int,
) -> Needs:  # fmt: skip
    """Return the memory of a fit with these constraints, weights of entries and batches."""
    is_penalised = not penalty.only_rescales
    needs = poisson_needs(
        counts, n_components, dtype, solver, n_threads,
        constraints.weights is not None or n_moves > 0,
        not constraints.all_observed or constraints.prior_loadings is not None or is_penalised,
        penalty.on == "components" and is_penalised,
    )  # fmt: skip
    if entries is not None:
        needs = needs._replace(shared=needs.shared + memory_of_entries(entries.less_one))
    if batches is not None:
        more = memory_of_batches(len(batches.labels), counts.shape[1])
        if entries is not None:  # sums of loadings of each batch for each feature
            more *= 1 + n_components
        needs = needs._replace(shared=needs.shared + more)
    if n_moves or n_starts > 1:
        n_others = OTHER_ENDS + 2 if n_moves else 1
        needs = _with_other_fits(needs, counts, n_components, dtype, n_others)
    if n_moves:  # their ranking
        ranking = min(counts.nnz, MOST_NONZEROS) * (BYTES_A_COUNT + BYTES_A_TOPIC * n_components)
        needs = needs._replace(start=max(needs.start, ranking))
    return needs


def _with_other_fits(
    needs: Needs, counts: CountMatrix, n_components: int, dtype: Any, n_others: int
) -> Needs:
    """Return the memory of a fit while the factors of `n_others` other fits are kept."""
    copies = n_others * n_components * np.dtype(dtype).itemsize
    return needs._replace(row=needs.row + copies, shared=needs.shared + counts.shape[1] * copies)
