"""Poisson NMF and topic models for count matrices of any size."""

from importlib.metadata import PackageNotFoundError, version

from . import plots as pl
from .data import corpora
from .data.counts import Counts, as_counts
from .data.simulate import simulate_from_factors, simulate_poisson_nmf, simulate_topic_counts
from .data.stored import read_counts
from .models import PoissonNMF, TopicModel
from .models.file import load_model as load
from .solve.conversion import multinomial_to_poisson, poisson_to_multinomial
from .solve.likelihood import deviance_poisson, kkt_residuals, loglik_multinomial, loglik_poisson

try:
    __version__ = version("nmfscale")
except PackageNotFoundError:
    __version__ = "unknown"

__all__ = [
    "Counts",
    "PoissonNMF",
    "TopicModel",
    "as_counts",
    "corpora",
    "deviance_poisson",
    "kkt_residuals",
    "load",
    "loglik_multinomial",
    "loglik_poisson",
    "multinomial_to_poisson",
    "pl",
    "poisson_to_multinomial",
    "read_counts",
    "simulate_from_factors",
    "simulate_poisson_nmf",
    "simulate_topic_counts",
]
