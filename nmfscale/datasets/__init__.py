"""Example data: real texts that need no download, and simulated counts with a known truth."""

from .corpora import docstrings
from .correlated import simulate_correlated_topics
from .noisy import simulate_noisy_topics
from .simulate import simulate_from_factors, simulate_poisson_nmf, simulate_topic_counts

__all__ = [
    "docstrings", "simulate_correlated_topics", "simulate_from_factors", "simulate_noisy_topics",
    "simulate_poisson_nmf", "simulate_topic_counts",
]  # fmt: skip
