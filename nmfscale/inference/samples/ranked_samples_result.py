"""The result of nearest_samples and search_samples: samples in the order of a distance or score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...models.tables import Columns
from ...terminal import visible_name
from ..results.files import Result
from .find_samples_result import beginning_of_text, ranked_columns

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class RankedSamples(Result):
    """Samples in the order of their distance from a query, or of their score, the best one first.

    Attributes
    ----------
    queries : tuple
        Names or numbers of the samples for which others were sought, or the words of a search.
    samples : tuple of ndarray of int
        For each query the numbers of the samples.
    values : tuple of ndarray of float64
        Their distances, which rise, or scores, which fall.
    measure : str
        "distance" or "score".
    sample_names : ndarray or None
        Names of all samples.
    texts : ndarray of shape (n_samples,), object, or None
        Texts of all samples.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each query and sample:
    ``query``, ``rank`` (from 0), ``sample``, ``distance`` or ``score`` and, if there are texts,
    ``text``.
    """

    queries: tuple[Any, ...]
    samples: tuple[Array, ...]
    values: tuple[Array, ...]
    measure: str
    sample_names: Array | None
    texts: Array | None

    def _columns(self) -> Columns:
        values = {self.measure: self.values}
        of_queries = {"query": self.queries}
        return ranked_columns(of_queries, self.samples, values, self.sample_names, self.texts)

    def __repr__(self) -> str:
        """Show the samples of each query with the beginnings of their texts."""
        lines = []
        for query, samples, values in zip(self.queries, self.samples, self.values, strict=True):
            lines.append(visible_name(query if isinstance(query, str) else f"sample {query}"))
            for sample, value in zip(samples.tolist(), values.tolist(), strict=True):
                named = self.sample_names is not None
                name = self.sample_names[sample] if named else f"sample {sample}"  # type: ignore[index]
                text = beginning_of_text(self.texts, sample)
                lines.append(visible_name(f"  {value:6.3f}  {name}{text}"))
        return "\n".join(lines)
