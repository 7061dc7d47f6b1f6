"""score_modalities: held-out scores of the modalities of a fit to a MuData object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..annotated.counts import of_fit, with_features_of
from ..annotated.keys import KEY
from ..annotated.modalities import chosen_counts
from ..annotated.places import writable
from ..annotated.scheme import entry_of, keep_result, read_model
from ..counts.argument_types import AnnDataLike
from ..inference.choice.modality_scores import score_modalities as score_counts


def score_modalities(
    adata: AnnDataLike,
    held_out: str | Mapping[str, str] | None = None,
    *,
    key: str = KEY,
    layer: str | Mapping[str, str] | None = None,
    raw: bool | Mapping[str, bool] | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Score held-out counts of each modality of a fit: :func:`nmfscale.score_modalities`.

    Parameters
    ----------
    adata : MuData
        Object with a fit of several modalities by :func:`topics`.
    held_out : str or dict, optional
        Layer of the modalities with the counts to score, or that of each modality by its name. By
        default the counts of the fit are split, and scores are too high.
    key : str, default="topics"
        Key of the fit.
    layer, raw
        Where the counts are from which loadings are estimated; by default as for the fit.
    copy
        As in :func:`topics`.
    **options
        Further arguments of :func:`nmfscale.score_modalities`, such as ``random_state=0``.

    Returns
    -------
    MuData or None
        None; with `copy`, the copy. ``mdata.uns["topics"]["score_modalities"]`` is set, which
        ``nmfscale.get.result(mdata, "score_modalities")`` reads.

    Raises
    ------
    ValueError
        If there is no such fit, or as :func:`nmfscale.score_modalities`.

    Examples
    --------
    A fit to half of the counts, in the layer "seen", is scored by the other half:

    >>> import anndata, mudata, warnings
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> parts = {}
    >>> for seed, label in enumerate(["rna", "adt"]):
    ...     parts[label] = anndata.AnnData(X.toarray())
    ...     half = nmfscale.thin(X, fraction=0.5, random_state=seed).take_rows()
    ...     parts[label].layers["seen"] = half.toarray()
    ...     parts[label].layers["held out"] = (X - half).toarray()
    >>> with warnings.catch_warnings(action="ignore"):
    ...     mdata = mudata.MuData(parts)
    >>> nmfscale.tl.topics(mdata, 3, mod=["rna", "adt"], layer="seen", random_state=0)
    >>> nmfscale.tl.score_modalities(mdata, "held out")
    >>> nmfscale.get.result(mdata, "score_modalities").modalities
    ('rna', 'adt')
    """
    adata, returned = writable(adata, None, copy)
    params, model = entry_of(adata, key)["params"], read_model(adata, key, every=True)

    def of_choice(chosen: dict[str, Any]) -> Any:
        return with_features_of(model, chosen_counts(adata, **chosen, integer="allow").counts)

    seen = of_choice(of_fit(params, layer, raw))
    scored = None if held_out is None else of_choice(of_fit(params, held_out, None))
    keep_result(adata, key, score_counts(model, seen, scored, **options), "score_modalities")
    return returned
