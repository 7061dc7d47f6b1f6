"""Plots of a fit and of what was asked of it: arrays in, Axes out.

Each function draws on the Axes it is given, or on a new pyplot figure when given none, and
returns the Axes.  Nothing here calls ``show`` or changes matplotlib's settings.  All but
``top_features`` and ``topic_colors`` need matplotlib: ``pip install 'nmfscale[plot]'``.
"""

from .canvas import detached_axes, topic_colors
from .features import top_features, top_features_plot
from .inference import forest_plot, null_plot
from .progress import progress_plot
from .similarity import similarity_plot
from .structure import structure_plot

__all__ = [
    "detached_axes",
    "forest_plot",
    "null_plot",
    "progress_plot",
    "similarity_plot",
    "structure_plot",
    "top_features",
    "top_features_plot",
    "topic_colors",
]
