"""Poisson NMF and topic models for count matrices of any size."""

import os

# Idle OpenMP threads spin while they wait for work, with GCC for some milliseconds, which makes two
# fits on the same processors several times slower. This value makes them spin for about 0.02 ms,
# which does not slow down a single fit. OpenMP reads the variable when the first compiled module of
# this package loads it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _public_names() -> dict[str, tuple[str, str]]:
    """Return the module of each public name, and its name there, from the stub beside this file.

    Each line of the stub is one import: from .module import name as public_name.
    """
    with open(os.path.join(__path__[0], "__init__.pyi"), encoding="utf-8") as stub:
        imports = [line.split() for line in stub if line.startswith("from .")]
    return {public: (module, name) for _, module, _, name, _, public in imports}


# They are imported at the first use, so that the shell starts quickly.
_PLACES = _public_names()
__all__ = sorted(_PLACES)

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


def __getattr__(name: str) -> object:
    from importlib import import_module

    value: object
    if name == "__version__":
        value = import_module(".storage.version", __name__).package_version()
    elif name not in _PLACES:
        raise AttributeError(_unknown(name))
    else:
        module, name_there = _PLACES[name]
        if module == ".":
            value = import_module(f".{name}", __name__)
        else:
            value = getattr(import_module(module, __name__), name_there)
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
