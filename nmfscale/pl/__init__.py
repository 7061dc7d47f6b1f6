"""Plots of fits and of results of inference.

Each function takes arrays, fitted models, results or AnnData objects, draws on the Axes `ax`, or by
default on a new pyplot figure, and returns the Axes.  No function calls ``pyplot.show()``, unless
``show=True``, or changes matplotlib's settings.  All except ``topic_colors`` need
matplotlib: ``pip install 'nmfscale[plot]'``; ``embedding`` also needs scanpy.

Names may have any characters. Where the font of ``matplotlib.rcParams["font.family"]`` lacks some,
such as those of Chinese or Japanese, an installed font that has them is used beside it. If there is
none, a warning names the characters; install a font such as Noto Sans CJK, and draw again.

Topics are labelled by their names. A topic without a name is labelled by its number and two leading
features, such as "0 file, files"; or by its number only, if features have no names.
"""

from typing import Any

from .batches import batch_plot
from .biplots import biplot
from .canvas import topic_colors
from .classes import class_heatmap
from .correlation import correlation_plot
from .differential import ma_plot, topic_scatter, volcano_plot
from .embedding import embedding
from .enrichment import enrichment_plot
from .features import top_features_plot
from .features_by_group import features_by_group_plot
from .hierarchy import hierarchy_plot
from .inference import forest_plot, null_plot
from .progress import progress_plot
from .replicates import bootstrap_plot
from .scree import scree_plot
from .selection import select_k_plot, stability_plot
from .similarity import similarity_plot
from .structure import structure_plot
from .trends import trend_plot

__all__ = [
    "batch_plot",
    "biplot",
    "bootstrap_plot",
    "class_heatmap",
    "correlation_plot",
    "embedding",
    "enrichment_plot",
    "features_by_group_plot",
    "forest_plot",
    "hierarchy_plot",
    "ma_plot",
    "null_plot",
    "progress_plot",
    "scree_plot",
    "select_k_plot",
    "similarity_plot",
    "stability_plot",
    "structure_plot",
    "top_features_plot",
    "topic_colors",
    "topic_scatter",
    "trend_plot",
    "volcano_plot",
]

# Names that were here, and what to use now.
_MOVED = {
    "detached_axes": "matplotlib.pyplot.subplots",
    "top_features": "nmfscale.get.top_features",
}


def __getattr__(name: str) -> Any:
    place = f": use {_MOVED[name]}" if name in _MOVED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{place}")
