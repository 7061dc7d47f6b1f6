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
        Its standard error: by the curvature of the likelihood, times the square root of the
        dispersion if `family` is "quasi-poisson" and this is above 1; or between units.
    lower, upper : ndarray of shape (K, m), or None
        Ends of intervals of `lfc` at `level`, which include 0 if the p-value is above 1 - `level`.
        None without p-values.
    z : ndarray of shape (K, m)
        The test statistic, with the sign of `lfc`. Without units it is the signed root of the
        likelihood ratio of equality with the reference, divided by that of the dispersion; with
        units, a t statistic. For "least-extreme" it is the least of the comparisons with all other
        topics.
    pvalue, qvalue : ndarray of shape (K, m), or None
        Two-sided p-values of z, and the same adjusted for all features of a topic by Benjamini and
        Hochberg. None if the topics were fitted to the counts that were tested; `no_pvalues` says
        why.
    lfsr : ndarray of shape (K, m), or None
        Local false sign rate: posterior probability that the sign of a change is wrong. None
        without p-values.
    lfc_shrunken : ndarray of shape (K, m)
        Posterior mean of the log2-fold change.
    frequencies : ndarray of shape (K, m)
        Expected counts of a feature in a topic for a sample of size 1, with pseudo-counts.
    least_extreme : ndarray of shape (K, m), int, or None
        Number of the topic whose frequency is closest, with which `lfc` compares; -1 for features
        without counts; None for another reference.
    base_mean : ndarray of shape (m,)
        Mean count of the feature over the samples in which it was measured.
    dispersion : ndarray of shape (m,)
        Squared residuals relative to those of Poisson counts, which have 1.
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
        "quasi-poisson" or "poisson".
    n_features_in : int
        Number of features of the counts.
    level : float
        Level of the intervals.
    freedom : float or None
        Degrees of freedom of z; None if it is normal, or almost.
    n_units : int or None
        Number of sampling units, None if samples are units.
    split : float or None
        Share of the counts that the topics were fitted to, if features were tested in the others.
    random_state : int, sequence of int or None
        Entropy of the seed of the split: passed as `random_state` it gives the same split again.
    no_pvalues : str or None
        Why there are no p-values, or None.
    origin : Origin
        Its `topic_words` are leading features of the topics, from which plots make labels.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic and feature, leading
    features first: ``topic``, ``feature``, ``lfc``, ``std_error``, ``lower``, ``upper``, ``z``,
    ``pvalue``, ``qvalue``, ``lfsr``, ``lfc_shrunken``, ``base_mean``, ``dispersion`` and
    ``least_extreme`` (if that is the reference), sorted by falling z in each topic. Columns that
    are None are left out. Given a topic, by name or number, they return its rows.
    """

    lfc: Array
    std_error: Array
    lower: Array | None
    upper: Array | None
    z: Array
    pvalue: Array | None
    qvalue: Array | None
    lfsr: Array | None
    lfc_shrunken: Array
    frequencies: Array
    least_extreme: Array | None
    base_mean: Array
    dispersion: Array
    features: Array
    feature_names: NDArray[Any] | None
    topic_names: tuple[Any, ...]
    reference: str
    own_reference: tuple[int, ...]
    pseudocount: float
    family: str
    n_features_in: int
    level: float = 0.95
    freedom: float | None = None
    n_units: int | None = None
    split: float | None = None
    random_state: Any = None
    no_pvalues: str | None = None
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
            "lfc": self.lfc, "std_error": self.std_error, "lower": self.lower,
            "upper": self.upper, "z": self.z, "pvalue": self.pvalue, "qvalue": self.qvalue,
            "lfsr": self.lfsr, "lfc_shrunken": self.lfc_shrunken,
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

    def significant(self, topic: int, level: float) -> Array:
        """Return the mask (m,) of features with q-values of at most `level`: none without p."""
        if self.qvalue is None:
            return np.zeros(len(self.features), bool)
        significant: Array = self.qvalue[topic] <= level
        return significant

    @property
    def statistic(self) -> str:
        """What z is, in words."""
        return "root of the likelihood ratio" if self.n_units is None else "t between units"

    @property
    def tested_in(self) -> str:
        """What features were tested in, or why they have no p-values, in words."""
        if self.no_pvalues is not None:
            return f"no p-values: {self.no_pvalues}"
        if self.split is None:
            return "p-values take the topics as known, not as fitted to these counts"
        return f"topics fitted to {self.split:.0%} of the counts, tested in the others"

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
            ``logfoldchanges``, and with p-values ``pvals`` and ``pvals_adj``, sorted by falling
            score in each topic.
        """
        frame = self.to_frame(group).rename(
            columns={
                "topic": "group", "feature": "names", "z": "scores", "lfc": "logfoldchanges",
                "pvalue": "pvals", "qvalue": "pvals_adj",
            }
        )  # fmt: skip
        frame[["group", "names"]] = frame[["group", "names"]].astype(str)
        columns = ["names", "scores", "logfoldchanges", "pvals", "pvals_adj"]
        if group is None:
            columns = ["group", *columns]
        return frame[[name for name in columns if name in frame]]

    def rank_genes_groups(self) -> dict[str, Any]:
        """Return what scanpy stores as ``adata.uns["rank_genes_groups"]``.

        Returns
        -------
        dict
            ``params``, and ``names``, ``scores``, ``logfoldchanges``, and with p-values ``pvals``
            and ``pvals_adj``: structured arrays with a field for each topic, sorted by falling
            score.
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
                "groupby": "topic", "reference": self.reference, "method": self.statistic,
                "use_raw": False, "layer": None, "corr_method": "benjamini-hochberg",
            }
        }  # fmt: skip
        for name, (values, kind) in columns.items():
            if values is None:
                continue
            table = np.empty(len(labels), [(str(self.topic_names[k]), kind) for k in kept])
            for k in kept:
                table[str(self.topic_names[k])] = values[k][order[k]]
            out[name] = table
        return out

    def __repr__(self) -> str:
        """Sizes, the reference, the number of features that stand out, and what p leaves out."""
        done = f"{len(self.features):,} features"
        if self.interrupted:
            done = f"{len(self.features):,} of {self.n_features_in:,} features, interrupted"
        family = "Poisson" if self.family == "poisson" else "quasi-Poisson"
        errors = family if self.n_units is None else f"errors between {self.n_units:,} units"
        n_found = sum(int(self.significant(k, _LEVEL).sum()) for k in self.compared)
        found = "" if self.qvalue is None else f", {n_found:,} with q <= {_LEVEL:g}"
        return (
            f"<DifferentialFeatures: {done} x {len(self.topic_names)} topics, relative to "
            f"{visible_name(self.reference)}, {errors}{found}; {self.tested_in}>"
        )
