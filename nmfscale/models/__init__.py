"""Estimators in the shape of scikit-learn."""

from .base import CountModel
from .lda import LDA
from .noisy_topic_model import NoisyTopicModel
from .poisson_nmf import PoissonNMF
from .topic_model import TopicModel

__all__ = ["LDA", "MODELS", "NoisyTopicModel", "PoissonNMF", "TopicModel"]

# What `nmfscale fit --model` calls them; its options are the parameters of the class.
MODELS: dict[str, type[CountModel]] = {
    "topic": TopicModel,
    "poisson": PoissonNMF,
    "lda": LDA,
    "noisy": NoisyTopicModel,
}
