"""Estimators in the shape of scikit-learn."""

from .base import CountModel
from .lda import LDA
from .poisson_nmf import PoissonNMF
from .ssnmf import SSNMF
from .topic_model import TopicModel

__all__ = ["LDA", "MODELS", "PoissonNMF", "SSNMF", "TopicModel"]

# What `nmfscale fit --model` calls them; its options are the parameters of the class.
MODELS: dict[str, type[CountModel]] = {
    "topic": TopicModel,
    "poisson": PoissonNMF,
    "lda": LDA,
    "ssnmf": SSNMF,
}
