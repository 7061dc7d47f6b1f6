"""enrichment: gene sets that are enriched in the topics of a fit in an AnnData object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..annotated.keys import KEY
from ..annotated.places import symbols_of, writable
from ..annotated.scheme import keep_result, read_model, read_result
from ..counts.argument_types import AnnDataLike, PathLike
from ..inference.features.enrichment import enrichment as test_sets


def enrichment(
    adata: AnnDataLike,
    gene_sets: Mapping[str, Iterable[str]] | PathLike,
    *,
    gene_symbols: str | None = None,
    key: str = KEY,
    mod: str | None = None,
    copy: bool = False,
    **options: Any,
) -> Any:
    """Test which gene sets are enriched in each topic: :func:`nmfscale.enrichment`.

    Parameters
    ----------
    adata : AnnData or MuData
        Object with a fit by :func:`topics`.
    gene_sets : dict of str to list of str, str or path-like
        As in :func:`nmfscale.enrichment`.
    gene_symbols : str, optional
        Column of ``adata.var`` with the names of the genes in the sets; by default ``var_names``.
    key : str, default="topics"
        Key of the fit.
    mod, copy
        As in :func:`topics`.
    **options
        Further arguments of :func:`nmfscale.enrichment`, such as ``test="rank"``. The `score`
        "differential_features" ranks by the result of :func:`differential_features`.

    Returns
    -------
    AnnData, MuData or None
        None; with `copy`, the copy. ``adata.uns["topics"]["enrichment"]`` is set, which
        :func:`nmfscale.get.result` reads and :func:`nmfscale.pl.enrichment_plot` draws.

    Raises
    ------
    ValueError
        If there is no such fit, or as :func:`nmfscale.enrichment`.

    Examples
    --------
    >>> import anndata
    >>> import nmfscale
    >>> X, truth = nmfscale.datasets.simulate_topic_counts(100, 50, 3, random_state=0)
    >>> adata = anndata.AnnData(X.toarray())
    >>> adata.var_names = [f"gene {j}" for j in range(50)]
    >>> nmfscale.tl.topics(adata, 3, random_state=0)
    >>> sets = {"first": adata.var_names[:20], "last": adata.var_names[20:]}
    >>> nmfscale.tl.enrichment(adata, sets, n_top=10)
    >>> nmfscale.get.result(adata, "enrichment").to_frame().shape
    (6, 9)
    """
    adata, returned = writable(adata, mod, copy)
    model = read_model(adata, key, every=True)
    if isinstance(options.get("score"), str) and options["score"] == "differential_features":
        options["score"] = read_result(adata, key, "differential_features")
    if gene_symbols is not None:
        options["gene_symbols"] = symbols_of(adata, gene_symbols)
    keep_result(adata, key, test_sets(model, gene_sets, **options), "enrichment")
    return returned
