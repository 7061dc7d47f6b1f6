"""Tools for AnnData objects, with the habits of scanpy.

Each function takes an AnnData object, writes its results to it and returns None, or a copy with the
results if ``copy=True``. Arguments with a value for each observation, such as `units`, may be names
of columns of ``obs``. See ``docs/anndata.md`` for where results are kept; ``nmfscale.get`` reads
them, and the functions of ``nmfscale.pl`` draw them.
"""

from typing import Any

from .batches import batch_effects
from .choice import select_k, topic_hierarchy, topic_quality
from .conditions import condition_features, features_by_group, pseudobulk
from .differential import differential_features
from .enrichment import enrichment
from .groups import (
    bootstrap_weights,
    correspondence_analysis,
    group_effects,
    permutation_test,
)
from .in_file import restore_h5ad, write_h5ad
from .modality_scores import score_modalities
from .rename import label_topics, rename_topics
from .topics import topics
from .transform import transform

__all__ = [
    "batch_effects", "bootstrap_weights", "condition_features", "correspondence_analysis",
    "differential_features", "enrichment", "features_by_group", "group_effects", "label_topics",
    "permutation_test", "pseudobulk", "rename_topics", "restore_h5ad", "score_modalities",
    "select_k", "topic_hierarchy", "topic_quality", "topics", "transform", "write_h5ad",
]  # fmt: skip

# Names that were here, and what to use now.
_MOVED = {"quality": "nmfscale.tl.topic_quality"}


def __getattr__(name: str) -> Any:
    place = f": use {_MOVED[name]}" if name in _MOVED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{place}")
