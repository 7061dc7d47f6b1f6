"""Where the real data and the reference results are found."""

import importlib.util
import os
from pathlib import Path

# Here, not at the end by its plugin: garbage of clusters collected while CPython 3.11 parses
# makes that fail (python/cpython issue 106905).
import hypothesis  # noqa: F401
import pytest


def pytest_report_header():
    """Say which nmfscale is tested: the installed one, or one that happens to lie around."""
    spec = importlib.util.find_spec("nmfscale")
    return f"nmfscale: {Path(spec.origin).parent if spec and spec.origin else 'not installed'}"


@pytest.fixture(scope="session")
def data_dir():
    """Folder of real count matrices."""
    folder = os.environ.get("NMFSCALE_DATA")
    if not folder:
        pytest.skip("set NMFSCALE_DATA to the folder of real count matrices")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"NMFSCALE_DATA is {folder!r}, which is no folder: correct it or unset it")
    return path


@pytest.fixture(scope="session")
def reference_dir(data_dir):
    """Folder of results of the reference programs, beside the data."""
    path = data_dir.resolve().parent / "reference"
    if not path.is_dir():
        pytest.skip(f"no reference results beside the data: {path} is missing")
    return path
