"""The version of the package, which files record."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def package_version() -> str:
    """Return the version of the installed package, or "unknown"."""
    try:
        return version("nmfscale")
    except PackageNotFoundError:
        return "unknown"
