"""seed_shares: how much of the counts of their seeds the topics of a fit explain."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ...counts.names import as_text, names_of
from ...models.pipelines import FittedModel, model_of
from ...models.seed_shares import explained_seeds
from ...models.topics.topics import topic_names_of
from .seed_shares_result import SeedShares


def seed_shares(model: FittedModel) -> SeedShares:
    """Return the seeds of the topics of a fit, and what their topics explain of them.

    A topic can leave its seeds: then it has their name, but other leading features.

    Parameters
    ----------
    model : fitted model
        A :class:`PoissonNMF`, :class:`TopicModel`, :class:`LDA` or :class:`GammaPoisson` with
        `seeds`, or a pipeline that ends with one. Of an AnnData object, ``nmfscale.get.model``
        returns it.

    Returns
    -------
    SeedShares
        For each seed, the share of each topic in its expected counts.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    ValueError
        If the model has no seeds.
    FileNotFoundError
        If the seeds are those of a GMT file that does not exist any more.

    See Also
    --------
    topic_quality : Coherence and exclusivity of topics, with or without seeds.

    Notes
    -----
    With the expected counts E_jk of topic k in feature j, summed over all samples, the share of
    topic k in seed j is ``E_jk / sum_l E_jl``. A fit warns of topics whose mean share over their
    seeds is below one half: other topics then explain most of the counts of their seeds. With a
    large `seed_weight` shares are near 1 by the prior, whatever the other features of the topic.

    Examples
    --------
    >>> import nmfscale
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
    >>> seeds = {"tools": ["saw"], "food": ["egg"]}
    >>> model = nmfscale.TopicModel(2, seeds=seeds, random_state=0)
    >>> model = model.fit(X, feature_names=["saw", "egg", "axe", "ham"])
    >>> found = nmfscale.seed_shares(model)
    >>> found
    <SeedShares: 2 seeds of 2 of 2 topics, seed_weight 0.1, mean shares 1.00 to 1.00>
    >>> found.to_frame()[["topic", "feature", "share"]].round(2)
       topic feature  share
    0  tools     saw    1.0
    1   food     egg    1.0
    """
    fitted: Any = model_of(model)
    if getattr(fitted, "seeds", None) is None:
        raise ValueError(
            f"model is a {type(fitted).__name__} without seeds: fit a model with "
            "seeds={'name of a topic': ['feature', ...]}, such as TopicModel."
        )
    check_is_fitted(fitted, "components_")
    explained = explained_seeds(fitted)
    totals, names = getattr(fitted, "feature_totals_", None), names_of(fitted, 1)
    assert names is not None  # which seeds need
    return SeedShares(
        explained.shares, explained.topics, np.array(as_text(names), object)[explained.features],
        None if totals is None else np.asarray(totals, np.float64)[explained.features],
        tuple(topic_names_of(fitted, len(fitted.components_))), float(fitted.seed_weight),
    )  # fmt: skip
