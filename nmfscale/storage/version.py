"""The version of the package, for the record in files."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def package_version() -> str:
    """Return the version of the package, for the record in a file."""
    try:
        return version("nmfscale")
    except PackageNotFoundError:
        return "unknown"
