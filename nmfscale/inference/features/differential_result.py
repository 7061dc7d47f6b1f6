"""The result of differential_features: changes of features between topics, with tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counts.argument_types import Topic
from ...counts.names import name_array, shown
from ...models.tables import Columns, tidy_columns
from ...terminal import visible_name
from ..design.loadings import number_of_topic
from ..results.files import Result
from ..results.origin import Origin

Array = NDArray[Any]
_LEVEL = 0.05


@dataclass(frozen=True, repr=False)
class DifferentialFeatures(Result):
    """Differences of m features between K topics.

    Attributes
    ----------
    lfc : ndarray of shape (K, m)
        Log2-fold change of the frequency in a topic, relative to the reference.
    std_error : ndarray of shape (K, m)
        Its standard error by the curvature of the likelihood. For features that hardly occur in the
        reference it is too large: tests use z.
    z : ndarray of shape (K, m)
        Signed root of the likelihood ratio of equality with the reference.
    pvalue, qvalue : ndarray of shape (K, m)
        p-values, for "least-extreme" of the comparison with all other topics; and adjusted for all
        features of a topic by Benjamini and Hochberg.
    lfsr : ndarray of shape (K, m)
        Local false sign rate: posterior probability that the sign of a change is wrong.
    lfc_shrunken : ndarray of shape (K, m)
        Posterior mean of the log2-fold change.
    frequencies : ndarray of shape (K, m)
        Expected counts of a feature in a topic for a sample of size 1, with pseudo-counts.
    least_extreme : ndarray of shape (K, m), int, or None
        Number of the topic that a topic is compared with, -1 for features without counts; None for
        another reference.
    base_mean : ndarray of shape (m,)
        Mean count of the feature over all samples.
    dispersion : ndarray of shape (m,)
        Squared residuals relative to those of Poisson counts, which have 1.
    std_error_bootstrap : ndarray of shape (K, m), or None
        Standard deviation of the log2-fold change over bootstrap fits.
    features : ndarray of int
        Numbers of the features in the counts; all, unless Ctrl-C ended the work.
    feature_names : ndarray or None
        Names of the features.
    topic_names : tuple
        Names of the topics.
    reference : str
        What topics are compared with.
    own_reference : tuple of int
        The topic that is the reference itself: its changes are 0, and tables leave it out.
    pseudocount : float
        Counts that were added to each topic.
    family : str
        "poisson" or "quasi-poisson".
    n_features_in : int
        Number of features of the counts.
    bootstrap_units : str or None
        What the bootstrap resampled: "units" or "samples"; None without bootstrap.
    split : float or None
        Share of the counts that the topics were fitted to, if features were tested in the others.
    origin : Origin
        Its `topic_words` are leading features of the topics, from which plots make labels.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic and feature, leading
    features first: ``topic``, ``feature``, ``lfc``, ``std_error``, ``std_error_bootstrap`` (if
    there is one), ``z``, ``pvalue``, ``qvalue``, ``lfsr``, ``lfc_shrunken``, ``base_mean``,
    ``dispersion`` and ``least_extreme`` (if that is the reference), sorted by falling z in each
    topic. Given a topic, by name or number, they return its rows.
    """

    lfc: Array
    std_error: Array
    z: Array
    pvalue: Array
    qvalue: Array
    lfsr: Array
    lfc_shrunken: Array
    frequencies: Array
    least_extreme: Array | None
    base_mean: Array
    dispersion: Array
    std_error_bootstrap: Array | None
    features: Array
    feature_names: NDArray[Any] | None
    topic_names: tuple[Any, ...]
    reference: str
    own_reference: tuple[int, ...]
    pseudocount: float
    family: str
    n_features_in: int
    bootstrap_units: str | None = None
    split: float | None = None
    origin: Origin = Origin()

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the work before all features were done."""
        return len(self.features) < self.n_features_in

    @property
    def compared(self) -> list[int]:
        """Numbers of the topics with differences: all but a topic that is the reference itself."""
        return [k for k in range(len(self.topic_names)) if k not in self.own_reference]

    @property
    def feature_labels(self) -> Array:
        """Names of the features, or their numbers if they have no names."""
        return self.features if self.feature_names is None else np.asarray(self.feature_names)

    def topic_number(self, topic: Topic) -> int:
        """Return the number of a topic with differences, given by name or number."""
        k = number_of_topic(topic, self.topic_names, "topic")
        if k in self.own_reference:
            raise ValueError(f"topic: {shown(topic)} is the reference, without differences.")
        return k

    def _table(self, what: Any) -> Columns:
        """Return the rows of a topic, by default those of all topics."""
        compared = self.compared if what is None else [self.topic_number(what)]
        names = name_array(self.topic_names)
        values: dict[str, Array | None] = {
            "lfc": self.lfc, "std_error": self.std_error,
            "std_error_bootstrap": self.std_error_bootstrap, "z": self.z, "pvalue": self.pvalue,
            "qvalue": self.qvalue, "lfsr": self.lfsr, "lfc_shrunken": self.lfc_shrunken,
            "base_mean": np.broadcast_to(self.base_mean, self.z.shape),
            "dispersion": np.broadcast_to(self.dispersion, self.z.shape),
            "least_extreme": None if self.least_extreme is None else names[self.least_extreme],
        }  # fmt: skip
        order = [self.order(k) for k in compared]
        labels = self.feature_labels
        columns = tidy_columns(
            {"topic": [self.topic_names[k] for k in compared]}, {"feature": labels},
            {
                name: np.stack([array[k] for k in compared])
                for name, array in values.items() if array is not None
            },
        )  # fmt: skip
        places = np.concatenate([i * len(labels) + of_topic for i, of_topic in enumerate(order)])
        return {name: column[places] for name, column in columns.items()}

    def order(self, topic: int) -> Array:
        """Return the places of the features of a topic, by falling z, then by falling change."""
        return np.lexsort((-self.lfc[topic], -self.z[topic]))

    def rank_genes_groups_df(self, group: Topic | None = None) -> Any:
        """Return the table of ``scanpy.get.rank_genes_groups_df``, which enrichment tools read.

        Parameters
        ----------
        group : str or int, default=None
            A topic, by name or number; by default all, with a column ``group``.

        Returns
        -------
        pandas.DataFrame
            Columns ``group`` (if all topics are asked for), ``names``, ``scores`` (z),
            ``logfoldchanges``, ``pvals`` and ``pvals_adj``, sorted by falling score in each topic.
        """
        frame = self.to_frame(group).rename(
            columns={
                "topic": "group", "feature": "names", "z": "scores", "lfc": "logfoldchanges",
                "pvalue": "pvals", "qvalue": "pvals_adj",
            }
        )  # fmt: skip
        frame[["group", "names"]] = frame[["group", "names"]].astype(str)
        columns = ["names", "scores", "logfoldchanges", "pvals", "pvals_adj"]
        return frame[columns if group is not None else ["group", *columns]]

    def rank_genes_groups(self) -> dict[str, Any]:
        """Return what scanpy stores as ``adata.uns["rank_genes_groups"]``.

        Returns
        -------
        dict
            ``params``, and ``names``, ``scores``, ``logfoldchanges``, ``pvals`` and ``pvals_adj``:
            structured arrays with a field for each topic, sorted by falling score.
        """
        kept = self.compared
        order, labels = {k: self.order(k) for k in kept}, self.feature_labels.astype(str)
        columns: dict[str, tuple[Any, str]] = {
            "names": (np.broadcast_to(labels, self.z.shape), "O"), "scores": (self.z, "f4"),
            "logfoldchanges": (self.lfc, "f4"), "pvals": (self.pvalue, "f8"),
            "pvals_adj": (self.qvalue, "f8"),
        }  # fmt: skip
        out: dict[str, Any] = {
            "params": {
                "groupby": "topic", "reference": self.reference, "method": "likelihood ratio",
                "use_raw": False, "layer": None, "corr_method": "benjamini-hochberg",
            }
        }  # fmt: skip
        for name, (values, kind) in columns.items():
            table = np.empty(len(labels), [(str(self.topic_names[k]), kind) for k in kept])
            for k in kept:
                table[str(self.topic_names[k])] = values[k][order[k]]
            out[name] = table
        return out

    def __repr__(self) -> str:
        """Sizes, the reference, the number of features that stand out, and what p leaves out."""
        n_found = int((self.qvalue[self.compared] <= _LEVEL).sum())
        done = f"{len(self.features):,} features"
        if self.interrupted:
            done = f"{len(self.features):,} of {self.n_features_in:,} features, interrupted"
        errors = ""
        if self.bootstrap_units is not None:
            errors = f", standard errors by bootstrap of {self.bootstrap_units}"
        used = "topics fitted to the same counts make p too small"
        if self.split is not None:
            used = f"topics fitted to {self.split:.0%} of the counts, tested in the others"
        reference = visible_name(self.reference)
        family = "" if self.family == "poisson" else ", quasi-Poisson"
        return (
            f"<DifferentialFeatures: {done} x {len(self.topic_names)} topics, relative to "
            f"{reference}{family}{errors}, {n_found:,} with q <= {_LEVEL:g}; {used}>"
        )
