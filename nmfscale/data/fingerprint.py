"""A cheap fingerprint of a file, to notice that it was changed or replaced."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

_SAMPLES = 16
_SAMPLE_BYTES = 2**16


class Fingerprint(NamedTuple):
    """Size in bytes, time of the last change in nanoseconds, and a hash of samples."""

    size: int
    mtime_ns: int
    sha256: str


def fingerprint(path: str | os.PathLike[str]) -> Fingerprint:
    """Take the fingerprint of a file without reading much of it.

    Parameters
    ----------
    path : str or path
        A file.

    Returns
    -------
    Fingerprint
        Size, modification time, and the SHA-256 of 16 evenly spaced samples of 64 KiB with the
        file's two ends among them; of all bytes if there are no more than that. A change
        elsewhere that keeps size and time is not seen.

    Raises
    ------
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from nmfscale.data.fingerprint import fingerprint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "counts.txt")
    ...     _ = path.write_bytes(b"1 2 3")
    ...     seen = fingerprint(path)
    ...     seen.size, seen.sha256[:8], seen == fingerprint(path)
    (5, '7c8f5059', True)
    """
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(file.read())
        else:
            last = status.st_size - _SAMPLE_BYTES
            for at in range(_SAMPLES):
                file.seek(last * at // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return Fingerprint(status.st_size, status.st_mtime_ns, digest.hexdigest())
