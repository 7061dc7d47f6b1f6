"""Estimators with the interface of scikit-learn."""

# first: raises a clear error if the kernels are not compiled
from .base import CountModel

# isort: split
from .anchor_nmf import AnchorNMF
from .frobenius_nmf import FrobeniusNMF
from .gamma_poisson import GammaPoisson
from .lda import LDA
from .noisy_topic_model import NoisyTopicModel
from .poisson_nmf import PoissonNMF
from .ssnmf import SSNMF
from .topic_model import TopicModel

__all__ = [
    "LDA", "MODELS", "SSNMF", "AnchorNMF", "FrobeniusNMF", "GammaPoisson", "NoisyTopicModel",
    "PoissonNMF", "TopicModel",
]  # fmt: skip

# Names for `nmfscale fit --model`, whose options are the parameters of the class.
MODELS: dict[str, type[CountModel]] = {
    "topic": TopicModel,
    "poisson": PoissonNMF,
    "lda": LDA,
    "gamma-poisson": GammaPoisson,
    "noisy": NoisyTopicModel,
    "anchor": AnchorNMF,
    "frobenius": FrobeniusNMF,
    "ssnmf": SSNMF,
}
