"""The result of compare_fits: a table of fits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...models.comparison import TopicMatch
from ...models.tables import Columns
from ...terminal import table_lines
from ..results.files import Result


@dataclass(frozen=True)
class FitSummary:
    """One fit in a table of fits; what a fit lacks is None.

    Attributes
    ----------
    name, model : str
        Name of the fit, and of its class.
    n_components : int
        Number of topics.
    objective : str or None
        The column of ``history_`` of the value: "loglik" (Poisson, ``loglik_`` of a
        :class:`nmfscale.PoissonNMF`), "loglik_multinomial" (``loglik_`` of a
        :class:`nmfscale.TopicModel`), "elbo", "minus_loss", ...
    value : float or None
        The objective at the end. Comparable only between fits of one class to the same counts.
    score : float or None
        Mean log-probability of a count of `X`, if `X` was given: comparable between all models of
        counts.
    held_out : float or None
        Mean log-probability of a held-out count of other samples, if these were given.
    residual : float or None
        The largest KKT residual at the end or, for models without one, the largest change.
    n_iter : int or None
        Number of iterations.
    seconds : float or None
        Time of the fit.
    stop_reason : str or None
        Why the fit ended.
    similarity, least_similarity : float
        Mean and smallest similarity of topics to their matches in the first fit.
    n_unmatched : int
        Number of topics without a match in the first fit.
    stability : float or None
        Mean similarity of the topics of fits from several starts, if it was given.
    npmi, exclusivity, diversity, deviance_explained : float or None
        Means over the topics, or numbers, of :func:`nmfscale.topic_quality`, if `X` was given.
    sparsity_components, sparsity_loadings : float or None
        Share of the entries that are almost zero: less than 1e-8 of the sum of their row.
    """

    name: str
    model: str
    n_components: int
    objective: str | None
    value: float | None
    score: float | None
    held_out: float | None
    residual: float | None
    n_iter: int | None
    seconds: float | None
    stop_reason: str | None
    similarity: float
    least_similarity: float
    n_unmatched: int
    stability: float | None
    npmi: float | None
    exclusivity: float | None
    diversity: float | None
    deviance_explained: float | None
    sparsity_components: float
    sparsity_loadings: float | None


@dataclass(frozen=True)
class FitComparison(Result):
    """A comparison of fits.

    Attributes
    ----------
    fits : tuple of FitSummary
        Summary of each fit.
    matches : dict of str to TopicMatch
        Match of the topics of the first fit (a) with those of each fit (b), by name of the fit.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each fit, and a column for each
    attribute of :class:`FitSummary`.
    """

    fits: tuple[FitSummary, ...]
    matches: dict[str, TopicMatch]

    def _columns(self) -> Columns:
        columns: Columns = {}
        for attribute in fields(FitSummary):
            values = [getattr(fit, attribute.name) for fit in self.fits]
            is_text = "str" in str(attribute.type)
            # None becomes NaN
            kind = object if is_text else float if None in values else None
            columns[attribute.name] = np.array(values, kind)
        return columns

    def __repr__(self) -> str:
        """Return the main columns as text; those that no fit has are left out."""
        columns = [
            ["", *(fit.name for fit in self.fits)],
            *(
                [title, *(_text(getattr(fit, name), form) for fit in self.fits)]
                for name, title, form in _SHOWN
                if any(getattr(fit, name) is not None for fit in self.fits)
            ),
        ]
        return "\n".join(table_lines(list(zip(*columns, strict=True))))


# Attributes that the text shows, their titles and formats.
_SHOWN = (
    ("n_components", "K", ""), ("objective", "objective", ""), ("value", "value", ",.2f"),
    ("score", "score", ".4f"), ("held_out", "held out", ".4f"), ("residual", "residual", ".1e"),
    ("n_iter", "iterations", ""), ("seconds", "seconds", ",.1f"),
    ("similarity", "similarity", ".3f"), ("stability", "stability", ".3f"),
    ("npmi", "NPMI", ".3f"), ("exclusivity", "FREX", ".3f"), ("diversity", "diversity", ".2f"),
    ("deviance_explained", "explained", ".1%"),
)  # fmt: skip


def _text(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
