"""Poisson NMF and topic models for count matrices of any size."""

import os

# Not imported from `typing`: that import would take longer than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import datasets as datasets
    from . import errors as errors
    from . import experimental as experimental
    from . import get as get
    from . import likelihood as likelihood
    from . import pl as pl
    from . import results as results
    from . import tl as tl
    from .inference.choice.compare_fits import compare_fits as compare_fits
    from .inference.choice.select_k import select_k as select_k
    from .inference.choice.stability import stability as stability
    from .inference.choice.topic_quality import topic_quality as topic_quality
    from .inference.features.differential import differential_features as differential_features
    from .inference.groups.balance import balance as balance
    from .inference.groups.bootstrap import bootstrap_weights as bootstrap_weights
    from .inference.groups.permutation import permutation_test as permutation_test
    from .inference.regression.effects import group_effects as group_effects
    from .inference.regression.regression import regress_proportions as regress_proportions
    from .inference.replicates.refit import bootstrap_fit as bootstrap_fit
    from .inference.results.files import load_result as load_result
    from .inference.samples.cluster_samples import cluster_samples as cluster_samples
    from .inference.samples.find_samples import find_samples as find_samples
    from .methods.topics.clustering import clustering_score as clustering_score
    from .models.anchor_nmf import AnchorNMF as AnchorNMF
    from .models.comparison import match_topics as match_topics
    from .models.frobenius_nmf import FrobeniusNMF as FrobeniusNMF
    from .models.gamma_poisson import GammaPoisson as GammaPoisson
    from .models.lda import LDA as LDA
    from .models.noisy_topic_model import NoisyTopicModel as NoisyTopicModel
    from .models.persistence import load_model as load  # noqa: F401
    from .models.poisson_nmf import PoissonNMF as PoissonNMF
    from .models.ssnmf import SSNMF as SSNMF
    from .models.topic_model import TopicModel as TopicModel
    from .readers.concat import concat as concat
    from .readers.convert import write_store as write_store
    from .readers.open import as_counts as as_counts
    from .readers.open import read_counts as read_counts
    from .readers.text_counts import text_counts as text_counts
    from .readers.thin import thin as thin
    from .report.page import write_report as write_report

    __version__: str

# Idle OpenMP threads spin while they wait for work, with GCC for some milliseconds, which makes two
# fits on the same processors several times slower. This value makes them spin for about 0.02 ms,
# which does not slow down a single fit. OpenMP reads the variable when the first compiled module of
# this package loads it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Modules of the public names. They are imported at the first use, so that the shell starts quickly.
_PLACES = {
    "inference.choice.compare_fits": "compare_fits",
    "inference.choice.select_k": "select_k",
    "inference.choice.stability": "stability",
    "inference.choice.topic_quality": "topic_quality",
    "inference.features.differential": "differential_features",
    "inference.groups.balance": "balance",
    "inference.groups.bootstrap": "bootstrap_weights",
    "inference.groups.permutation": "permutation_test",
    "inference.regression.effects": "group_effects",
    "inference.regression.regression": "regress_proportions",
    "inference.replicates.refit": "bootstrap_fit",
    "inference.results.files": "load_result",
    "inference.samples.cluster_samples": "cluster_samples",
    "inference.samples.find_samples": "find_samples",
    "methods.topics.clustering": "clustering_score",
    "models.anchor_nmf": "AnchorNMF",
    "models.comparison": "match_topics",
    "models.frobenius_nmf": "FrobeniusNMF",
    "models.gamma_poisson": "GammaPoisson",
    "models.lda": "LDA",
    "models.noisy_topic_model": "NoisyTopicModel",
    "models.persistence": "load",
    "models.poisson_nmf": "PoissonNMF",
    "models.ssnmf": "SSNMF",
    "models.topic_model": "TopicModel",
    "readers.concat": "concat",
    "readers.convert": "write_store",
    "readers.open": "as_counts read_counts",
    "readers.text_counts": "text_counts",
    "readers.thin": "thin",
    "report.page": "write_report",
}
_MODULES = "datasets", "errors", "experimental", "get", "likelihood", "pl", "results", "tl"
__all__ = sorted([*_MODULES, *" ".join(_PLACES.values()).split()])

# Names that were public at the top, by the module that has them now.
_MOVED = {
    "datasets": "simulate_correlated_topics simulate_from_factors simulate_noisy_topics "
    "simulate_poisson_nmf simulate_topic_counts",
    "experimental": "correspondence_analysis jackknife_fit noisy_pairs supervision_from_variances "
    "to_pyldavis",
    "likelihood": "deviance_poisson dirichlet_to_gamma gamma_to_dirichlet kkt_residuals "
    "loglik_multinomial loglik_poisson logposterior_multinomial logposterior_poisson "
    "mixture_proportions multinomial_to_poisson poisson_regression poisson_to_multinomial",
    "results": "Counts StoredCounts",
}
_RENAMED = {"corpora": "datasets", "model_of": "get.model"}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    value: Any
    if name == "__version__":
        value = import_module(".storage.version", __name__).package_version()
    elif name in _MODULES:
        value = import_module(f".{name}", __name__)
    else:
        place = next((place for place, names in _PLACES.items() if name in names.split()), None)
        if place is None:
            raise AttributeError(_unknown(name))
        module = import_module(f".{place}", __name__)
        value = getattr(module, "load_model" if name == "load" else name)
    globals()[name] = value
    return value


def _unknown(name: str) -> str:
    """Return the message for a name that does not exist, or exists elsewhere."""
    places = {old: f"{room}.{old}" for room, names in _MOVED.items() for old in names.split()}
    place = (places | _RENAMED).get(name)
    to_use = f": use {__name__}.{place}" if place else ""
    return f"module {__name__!r} has no attribute {name!r}{to_use}"


def __dir__() -> list[str]:
    return ["__version__", *__all__]
