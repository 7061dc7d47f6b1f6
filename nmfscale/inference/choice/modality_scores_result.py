"""The result of score_modalities: scores of held-out counts of each modality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.tables import Columns
from ...terminal import table_lines
from ..results.files import Result

Array = NDArray[Any]


@dataclass(frozen=True)
class ModalityScores(Result):
    """Scores of held-out counts of each modality, (M,).

    Attributes
    ----------
    modalities : tuple of str
        Names of the modalities.
    weight : ndarray of float64
        Weights in the fit.
    n_features, n_samples : ndarray of int
        Number of features, and of samples with held-out counts.
    total : ndarray of float64
        Held-out counts.
    score, one_topic : ndarray of float64
        Mean log-probability of a held-out count under the model, and under a single topic.
    gain, gain_error : ndarray of float64
        Their difference, and its standard error: the modality is explained if it is positive.
    gain_from_others : ndarray of float64
        The same if loadings are estimated from all other modalities.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each modality, and these
    columns: ``modality``, and the attributes from ``weight`` on.
    """

    modalities: tuple[str, ...]
    weight: Array
    n_features: Array
    n_samples: Array
    total: Array
    score: Array
    one_topic: Array
    gain: Array
    gain_error: Array
    gain_from_others: Array

    def _columns(self) -> Columns:
        names = [name for name in self.__dataclass_fields__ if name != "modalities"]
        labels: Columns = {"modality": np.array(self.modalities, object)}
        return labels | {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        """Return the table as text."""
        rows = [
            ("modality", "weight", "features", "samples", "score", "one topic", "gain", "error",
             "from others")
        ]  # fmt: skip
        for m, label in enumerate(self.modalities):
            rows.append((
                label, f"{self.weight[m]:g}", f"{self.n_features[m]:,}", f"{self.n_samples[m]:,}",
                f"{self.score[m]:.4f}", f"{self.one_topic[m]:.4f}", f"{self.gain[m]:+.4f}",
                f"{self.gain_error[m]:.4f}", f"{self.gain_from_others[m]:+.4f}",
            ))  # fmt: skip
        return "\n".join(table_lines(rows, leading=True))
