"""Poisson NMF and topic models for count matrices of any size."""

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import plots as pl
    from .data import corpora
    from .data.counts import Counts, as_counts
    from .data.packing import write_store
    from .data.simulate import simulate_from_factors, simulate_poisson_nmf, simulate_topic_counts
    from .data.store import StoredCounts
    from .data.stored import read_counts
    from .models.file import load_model as load
    from .models.poisson_nmf import PoissonNMF
    from .models.topic_model import TopicModel
    from .solve.conversion import multinomial_to_poisson, poisson_to_multinomial
    from .solve.likelihood import (
        deviance_poisson,
        kkt_residuals,
        loglik_multinomial,
        loglik_poisson,
    )

# OpenMP's threads wait for more work in a loop, GCC's for some milliseconds: two fits on the same
# processors are several times slower for it. This is about 0.2 ms, more than lies between two loops
# of a fit. The library reads it when it is loaded, by the first of our compiled modules.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

try:
    __version__ = version("nmfscale")
except PackageNotFoundError:
    __version__ = "unknown"

__all__ = [
    "Counts",
    "PoissonNMF",
    "StoredCounts",
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
    "write_store",
]

# Where the names are: they are imported when first asked for, so that the shell answers at once.
_PLACES = {
    "data.counts": "Counts as_counts",
    "data.simulate": "simulate_from_factors simulate_poisson_nmf simulate_topic_counts",
    "data.packing": "write_store",
    "data.store": "StoredCounts",
    "data.stored": "read_counts",
    "models.file": "load",
    "models.poisson_nmf": "PoissonNMF",
    "models.topic_model": "TopicModel",
    "solve.conversion": "multinomial_to_poisson poisson_to_multinomial",
    "solve.likelihood": "deviance_poisson kkt_residuals loglik_multinomial loglik_poisson",
}
_MODULES = {"pl": "plots", "corpora": "data.corpora"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(f".{_MODULES[name]}", __name__)
    else:
        place = next((place for place, names in _PLACES.items() if name in names.split()), None)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f".{place}", __name__)
        value = getattr(module, "load_model" if name == "load" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
