"""Estimators in the shape of scikit-learn."""

from .base import CountModel
from .gamma_poisson import GammaPoisson
from .lda import LDA
from .poisson_nmf import PoissonNMF
from .topic_model import TopicModel

__all__ = ["LDA", "MODELS", "GammaPoisson", "PoissonNMF", "TopicModel"]

# What `nmfscale fit --model` calls them; its options are the parameters of the class.
MODELS: dict[str, type[CountModel]] = {
    "topic": TopicModel,
    "poisson": PoissonNMF,
    "lda": LDA,
    "gamma-poisson": GammaPoisson,
}
