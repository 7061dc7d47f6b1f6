"""Agreement of topics with known groups of samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...counts.names import is_missing, matched, names_of
from ...counts.structure import non_negative
from ..factors import Array


class ClusteringScore(NamedTuple):
    """Result of :func:`nmfscale.clustering_score`.

    Attributes
    ----------
    mean : float
        Mean score of all topics.
    of_topics : ndarray of shape (n_components,)
        Score of each topic.
    groups : ndarray of shape (n_components,)
        The group that agrees best with each topic.
    """

    mean: float
    of_topics: Array
    groups: Array


def clustering_score(
    loadings: ArrayLike, groups: ArrayLike, *, soft: bool = False
) -> ClusteringScore:
    """Score each topic by the group that agrees best with it.

    Parameters
    ----------
    loadings : fitted model, or array-like of shape (n_samples, n_components)
        A model, or non-negative loadings. Samples whose loadings are all zero have no topic.
    groups : array-like of shape (n_samples,)
        The group of each sample.
    soft : bool, default=False
        Assign each sample to its topics by their shares of its loadings, not only to the largest.

    Returns
    -------
    ClusteringScore
        For topic l the largest ``sum of s_il over the samples i of a group / size of the group``,
        where s_il is the part of sample i that is assigned to topic l [1]_.

    Raises
    ------
    ValueError
        If the shapes do not agree, loadings are negative or not finite, or a label is missing.

    Notes
    -----
    The score does not measure groups within classes that were used in the fit: topics drawn at
    random within the class of each sample score as well. As few topics as groups score higher than
    many topics.

    References
    ----------
    .. [1] Haddock et al. Semi-supervised NMF models for topic modeling in learning tasks, section
       "Clustering analysis".

    Examples
    --------
    >>> from nmfscale import clustering_score
    >>> loadings = [[3.0, 1.0], [0.0, 2.0], [0.0, 2.0], [1.0, 3.0]]
    >>> clustering_score(loadings, ["a", "b", "b", "b"]).of_topics.tolist()
    [1.0, 1.0]
    >>> clustering_score(loadings, ["a", "b", "b", "b"], soft=True).of_topics.round(2).tolist()
    [0.75, 0.92]
    """
    groups = matched(groups, names_of(loadings), "groups", subject="loadings")
    S = non_negative(getattr(loadings, "loadings_", loadings), "loadings", (None, None))
    S, of_samples = S.astype(np.float64, copy=False), np.asarray(groups)
    if S.ndim != 2 or of_samples.shape != S.shape[:1]:
        raise ValueError(
            f"loadings have shape {S.shape} and groups {of_samples.shape}: (n_samples, "
            "n_components) and (n_samples,) are needed."
        )
    missing = np.array([*map(is_missing, of_samples.tolist())])
    if missing.any():
        raise ValueError(
            f"groups has {missing.sum():,} missing labels, the first at sample {missing.argmax()}: "
            "leave these samples out, or give them a label of their own."
        )
    total = S.sum(axis=1)
    parts = np.zeros(S.shape)
    if soft:
        np.divide(S, total[:, None], out=parts, where=total[:, None] > 0)
    else:
        parts[np.arange(len(S)), S.argmax(axis=1)] = total > 0
    clusters, code = np.unique(of_samples, return_inverse=True)
    shares = np.zeros((len(clusters), S.shape[1]))
    np.add.at(shares, code, parts)
    shares /= np.bincount(code, minlength=len(clusters))[:, None]
    best = shares.argmax(axis=0)
    scores = shares[best, np.arange(S.shape[1])]
    return ClusteringScore(float(scores.mean()), scores, clusters[best])
