"""The result of topic_quality: coherence, exclusivity and sizes of topics; residual deviance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.names import name_array
from ...models.tables import Columns, Tables
from ...terminal import table_lines
from ..results.files import Result

Array = NDArray[Any]
# Number of leading features, and of topics, that the text shows.
_SHOWN, _MOST = 5, 30


@dataclass(frozen=True)
class TopicQuality(Result):
    """Quality of the topics of a fit, and how well the fit explains samples and features.

    Attributes
    ----------
    npmi, umass : ndarray of shape (K,), float64
        Coherence of the leading features; 0 for a topic with fewer than two.
    exclusivity : ndarray of shape (K,), float64
        Mean FREX of the leading features, between 0 and 1.
    uniqueness : ndarray of shape (K,), float64
        Mean of ``1 / number of topics that share a leading feature``, between 1 / K and 1.
    effective_features, effective_samples : ndarray of shape (K,), float64
        Exponential of the entropy of the frequencies of a topic, and of the shares of the samples
        in the counts of a topic: n equal shares have n. 0 for an empty topic.
    share : ndarray of shape (K,), float64
        Share of each topic in all counts.
    top_features, top_samples : tuple of ndarray of int
        Columns and rows of `X` that lead each topic, best first.
    sample_deviance, feature_deviance : ndarray of shape (n_samples,) and (n_features,), float64
        Residual Poisson deviance, whatever the likelihood of the model is.
    sample_null_deviance, feature_null_deviance : ndarray, float64
        The same for a single topic: the overall frequencies of `X`.
    sample_totals, feature_totals : ndarray, float64
        Sums of the counts.
    topic_names : tuple of str
        Names of the topics.
    sample_names, feature_names : ndarray or None
        Names.
    n_top : int
        Number of leading features that measure a topic.
    of_fit : bool
        Whether `X` are the counts of the fit.
    modalities : ndarray of shape (n_features,) or None
        Modality of each feature, if several were joined.

    Notes
    -----
    Tables of :meth:`columns` and :meth:`to_frame`, whose samples and features have names, or
    numbers:

    - "topics" (default), a row for each topic: ``topic``, ``share``, ``npmi``, ``umass``,
      ``exclusivity``, ``uniqueness``, ``effective_features`` and ``effective_samples``.
    - "samples" and "features", a row for each sample or feature of `X`: ``sample`` or ``feature``,
      ``total``, ``deviance``, ``null_deviance`` and ``explained``, the share of the null deviance
      that the fit removes.
    - "modalities", a row for each of several joined modalities: ``modality``, ``n_features``,
      ``total``, ``deviance``, ``null_deviance`` and ``explained``.
    - "top_features" and "top_samples", leading features or samples of each topic: ``topic``,
      ``rank`` (from 1), and ``feature`` or ``sample``.
    """

    npmi: Array
    umass: Array
    exclusivity: Array
    uniqueness: Array
    effective_features: Array
    effective_samples: Array
    share: Array
    top_features: tuple[Array, ...]
    top_samples: tuple[Array, ...]
    sample_deviance: Array
    feature_deviance: Array
    sample_null_deviance: Array
    feature_null_deviance: Array
    sample_totals: Array
    feature_totals: Array
    topic_names: tuple[str, ...]
    sample_names: Array | None
    feature_names: Array | None
    n_top: int
    of_fit: bool
    modalities: Array | None = None

    @property
    def diversity(self) -> float:
        """Number of different leading features divided by their number: mean uniqueness."""
        n_leading = [len(features) for features in self.top_features]
        n_different = len(set(np.concatenate(self.top_features).tolist()))
        return n_different / sum(n_leading) if sum(n_leading) else 0.0

    @property
    def deviance_explained(self) -> float:
        """Share of the Poisson deviance of a single topic that the fit removes; 0 if that is 0.

        It may be negative for a model with another likelihood, which does not minimise it.
        """
        null = float(self.sample_null_deviance.sum())
        return 1 - float(self.sample_deviance.sum()) / null if null else 0.0

    def _tables(self) -> Tables:
        return {
            "topics": self._of_topics,
            "samples": partial(self._of_axis, "sample"),
            "features": partial(self._of_axis, "feature"),
            **({} if self.modalities is None else {"modalities": self._of_modalities}),
            "top_features": partial(self._leading, "feature"),
            "top_samples": partial(self._leading, "sample"),
        }

    def _of_topics(self) -> Columns:
        labels = {"topic": np.array(self.topic_names, object)}
        return labels | {name: getattr(self, name) for name in _OF_TOPICS}

    def _of_axis(self, kind: str) -> Columns:
        """Return totals and deviances of all samples or features."""
        deviance, null = (
            getattr(self, f"{kind}_{which}") for which in ("deviance", "null_deviance")
        )
        return {
            kind: self._labels(kind, np.arange(len(null))),
            "total": getattr(self, f"{kind}_totals"), "deviance": deviance,
            "null_deviance": null,
            "explained": 1 - np.divide(deviance, null, out=np.ones(len(null)), where=null > 0),
        }  # fmt: skip

    def _of_modalities(self) -> Columns:
        """Return sums over the features of each modality."""
        labels, codes = np.unique(name_array(self.modalities), return_inverse=True)
        first = np.argsort([int(np.argmax(codes == m)) for m in range(len(labels))])
        of_features = self._of_axis("feature")
        sums = {
            name: np.bincount(codes, of_features[name])[first]
            for name in ("total", "deviance", "null_deviance")
        }
        null = sums["null_deviance"]
        share = np.divide(sums["deviance"], null, out=np.ones(len(null)), where=null > 0)
        columns = {"modality": labels[first], "n_features": np.bincount(codes)[first], **sums}
        return columns | {"explained": 1 - share}

    def _leading(self, kind: str) -> Columns:
        """Return the leading samples or features of each topic."""
        leading = getattr(self, f"top_{kind}s")
        sizes = [len(numbers) for numbers in leading]
        return {
            "topic": np.repeat(np.array(self.topic_names, object), sizes),
            "rank": np.concatenate([np.arange(1, size + 1) for size in sizes]),
            kind: self._labels(kind, np.concatenate(leading)),
        }

    def _labels(self, kind: str, numbers: Array) -> Array:
        """Return names of samples or features, or their numbers if they have none."""
        names = getattr(self, f"{kind}_names")
        return numbers if names is None else name_array(names)[numbers]

    def __repr__(self) -> str:
        """Return the measures of the topics, and the deviance explained, as text."""
        rows = [("", "share", "NPMI", "UMass", "FREX", "unique", "features", "samples", "")]
        for k, name in enumerate(self.topic_names[:_MOST]):
            leading = map(str, self._labels("feature", self.top_features[k][:_SHOWN]))
            rows.append((
                name, f"{self.share[k]:.1%}", f"{self.npmi[k]:.3f}", f"{self.umass[k]:.2f}",
                f"{self.exclusivity[k]:.3f}", f"{self.uniqueness[k]:.2f}",
                f"{self.effective_features[k]:,.0f}", f"{self.effective_samples[k]:,.0f}",
                " ".join(leading),
            ))  # fmt: skip
        lines = table_lines(rows, leading=True)
        if len(self.topic_names) > _MOST:
            lines.append(f"... and {len(self.topic_names) - _MOST} more topics: see to_frame()")
        of = "the fit" if self.of_fit else "other samples, with loadings by transform"
        lines.append(
            f"mean NPMI {self.npmi.mean():.3f}, diversity {self.diversity:.2f}, "
            f"{self.deviance_explained:.1%} of the Poisson deviance explained; "
            f"{self.n_top} leading features; {len(self.sample_totals):,} samples of {of}"
        )
        return "\n".join(lines)


_OF_TOPICS = (
    "share", "npmi", "umass", "exclusivity", "uniqueness", "effective_features",
    "effective_samples",
)  # fmt: skip
