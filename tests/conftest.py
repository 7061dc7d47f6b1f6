"""Fixtures: folders of real data and reference results, small stores, worker processes."""

import importlib.util
import os
import signal
import sys
import tempfile
from pathlib import Path

# Imported here, because its plugin would import it at the end: in CPython 3.11, parsing fails if
# garbage of clusters is collected meanwhile (python/cpython issue 106905).
import hypothesis  # noqa: F401
import pytest


def pytest_configure():
    """Enable Ctrl-C, which is ignored if a shell runs the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header():
    """Print the path of the tested nmfscale: the installed one, or a folder of sources."""
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
        pytest.fail(f"NMFSCALE_DATA is {folder!r}, which is not a folder: correct it or unset it")
    return path


@pytest.fixture(scope="session")
def reference_dir(data_dir):
    """Folder of results of the reference programs, beside the data."""
    path = data_dir.resolve().parent / "reference"
    if not path.is_dir():
        pytest.skip(f"no reference results beside the data: {path} is missing")
    return path


@pytest.fixture
def small_blocks(monkeypatch):
    """Make blocks so small that the counts of small fits have several."""
    import internals
    from small_fits import SMALL_BLOCK

    internals.small_blocks(monkeypatch, SMALL_BLOCK)


@pytest.fixture
def scratch(tmp_path):
    """A separate folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture
def store(small_blocks, tmp_path):
    """The counts of small fits in a store of several blocks."""
    from small_fits import X

    from nmfscale.readers.open import as_counts
    from nmfscale.storage.store_writer import pack

    pack(as_counts(X), tmp_path / "counts.nmf")
    return tmp_path / "counts.nmf"


@pytest.fixture(scope="module")
def three_workers():
    """A client of three worker processes, which the tests of a module may kill."""
    from clusters import cluster_of

    with cluster_of(3) as client:
        yield client


@pytest.fixture
def client(three_workers):
    """The client of `three_workers`, after all workers are restored."""
    from clusters import restore_workers

    restore_workers(three_workers, 3)
    return three_workers


@pytest.fixture
def without_pandas(monkeypatch):
    """Let pandas be missing. None in `sys.modules` would make scikit-learn 1.6 fail."""

    class Missing:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "pandas":
                raise ModuleNotFoundError("No module named 'pandas'", name=name)

    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
