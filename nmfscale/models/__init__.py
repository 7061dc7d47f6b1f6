"""Estimators in the shape of scikit-learn."""

from .poisson_nmf import PoissonNMF
from .topic_model import TopicModel

__all__ = ["PoissonNMF", "TopicModel"]
