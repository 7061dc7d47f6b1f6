"""Journals of changes in place: the old and the new bytes of the pages of a file that change.

While pages are written, the signature of HDF5 in the file is replaced by a marker, a random number
of the journal. No program opens such a file, so that none reads or changes one that is half
written; and a file with another signature is never restored, whatever happened since a crash.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import DamagedFileError, load_arrays
from .atomic import atomic_write, read_into, write_at
from .hdf5 import SIGNATURE, journal_of

Array = NDArray[Any]
PAGE = 4096
# States of a file beside a journal, and what was done about it.
UNCHANGED, RESTORED, COMPLETE, UNRELATED = "unchanged", "restored", "complete", "unrelated"


class JournalError(ValueError):
    """A journal is damaged, or does not belong to the file beside it."""

    __module__ = "nmfscale.errors"


@dataclass(frozen=True)
class Journal:
    """Changes of a file, of which everything but these pages has been written.

    `numbers` (n,) are those of pages of 4096 bytes, in order, with their bytes in `old` and `new`
    (n, 4096), zeros beyond `old_size`; `sizes` are the sizes of the file before and after the
    change, `place` is that of the signature, `appended` the digest of the bytes beyond the old
    size.
    """

    numbers: Array
    old: Array
    new: Array
    sizes: Array
    place: Array
    marker: Array
    appended: Array

    @classmethod
    def of(cls, file: int, old: dict[int, bytes], new: dict[int, bytes], old_size: int) -> Journal:
        """Return the journal of a file whose new bytes beyond its old size have been written."""
        size, place = os.fstat(file).st_size, _signature_in(file, old_size)
        numbers = sorted({*(number for number in new if new[number] != old[number]), place // PAGE})
        if place // PAGE not in old:
            old = old | {place // PAGE: page_of(file, place // PAGE, old_size)}
        return cls(
            numbers=np.array(numbers), old=_padded([old[number] for number in numbers]),
            new=_padded([new.get(number, old[number]) for number in numbers]),
            sizes=np.array([old_size, size]), place=np.array(place),
            marker=np.frombuffer(b"NMF" + secrets.token_bytes(5), np.uint8),
            appended=_digest(file, old_size, size),
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write the journal of the file at a path."""
        content = io.BytesIO()
        np.savez(content, **vars(self))
        with atomic_write(journal_of(path)) as part:
            file = os.open(part, os.O_WRONLY)
            try:
                write_at(file, content.getbuffer(), 0)
            finally:
                os.close(file)

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read the journal of the file at a path."""
        saved = load_arrays(str(journal_of(path)))
        if saved.keys() != {field.name for field in fields(cls)}:
            raise DamagedFileError(f"{journal_of(path)} is not a journal of this version.")
        return cls(**saved)

    def apply(self, file: int) -> None:
        """Write the new pages."""
        self._write(file, self.new)

    def undo(self, file: int) -> None:
        """Write the old pages, and remove what was appended."""
        self._write(file, self.old)
        os.ftruncate(file, self.sizes[0])
        os.fsync(file)

    def _write(self, file: int, pages: Array) -> None:
        place, signed = int(self.place), self._signed(pages, self.marker)
        write_at(file, self.marker.data, place)
        os.fsync(file)
        for number, page in zip(self.numbers.tolist(), signed, strict=True):
            write_at(file, page[: self.sizes[0] - number * PAGE].data, number * PAGE)
        os.fsync(file)
        write_at(file, memoryview(SIGNATURE), place)
        os.fsync(file)

    def _signed(self, pages: Array, signature: Array) -> Array:
        """Return pages with other bytes in the place of the signature."""
        pages, row = pages.copy(), int(np.searchsorted(self.numbers, self.place // PAGE))
        start = int(self.place % PAGE)
        pages[row, start : start + len(SIGNATURE)] = signature
        return pages

    def state_of(self, file: int) -> str:
        """Return the state of a file: all old, all new, in between, or another file.

        A file whose signature is the marker may have pages of which a part was written: each byte
        is then the old or the new one. Restoring may itself have been interrupted.
        """
        size, (old_size, new_size) = os.fstat(file).st_size, self.sizes.tolist()
        now = _padded([page_of(file, number, old_size) for number in self.numbers.tolist()])
        start = np.zeros(len(SIGNATURE), np.uint8)
        read_into(file, start.data, int(self.place))
        signature = np.frombuffer(SIGNATURE, np.uint8)
        now = self._signed(now, signature)
        is_whole = size == new_size and (_digest(file, old_size, size) == self.appended).all()
        is_old, is_new = now == self.old, now == self.new
        if (start != signature).any():
            is_ours = ((start == signature) | (start == self.marker)).all() and is_whole
            return RESTORED if is_ours and (is_old | is_new).all() else UNRELATED
        if is_new.all() and size == new_size:
            return COMPLETE
        return UNCHANGED if is_old.all() and (is_whole or size == old_size) else UNRELATED


def _padded(pages: list[bytes]) -> Array:
    """Return pages as an array, with zeros at the end of a shorter one."""
    return np.array([np.frombuffer(page.ljust(PAGE, b"\0"), np.uint8) for page in pages])


def page_of(file: int, number: int, size: int) -> bytes:
    """Return the bytes of a page of a file before byte `size`."""
    page = bytearray(max(0, min(PAGE, size - number * PAGE)))
    return bytes(page[: read_into(file, memoryview(page), number * PAGE)])


def _signature_in(file: int, size: int) -> int:
    """Return the place of the signature of HDF5: byte 0, 512, 1024, 2048, ..."""
    start, place = bytearray(len(SIGNATURE)), 0
    while place < size:
        read_into(file, memoryview(start), place)
        if start == SIGNATURE:
            return place
        place = max(512, 2 * place)
    raise ValueError("the file is not a file of HDF5.")


def _digest(file: int, start: int, end: int) -> Array:
    """Return the digest of a range of bytes in a file."""
    digest, buffer = hashlib.blake2b(digest_size=16), memoryview(bytearray(1 << 20))
    while start < end:
        n_read = read_into(file, buffer[: end - start], start)
        if not n_read:
            break
        digest.update(buffer[:n_read])
        start += n_read
    return np.frombuffer(digest.digest(), np.uint8)


def recover(file: int, path: Path) -> str | None:
    """Make a file the old one again if a crash has left it half written; remove its journal.

    Return what was done: RESTORED; UNCHANGED or COMPLETE if no change, or all of it, was written;
    None if there is no journal. A journal that belongs to other contents is moved aside, and a
    JournalError names both files; the file is then as it was.
    """
    if not journal_of(path).exists():
        return None
    try:
        journal = Journal.load(path)
        state = journal.state_of(file)
    except (ValueError, IndexError, TypeError) as error:
        raise JournalError(_moved_aside(path, f"cannot be used ({error})")) from error
    if state == UNRELATED:
        why = "belongs to other contents of the file, which was changed or replaced since"
        raise JournalError(_moved_aside(path, why))
    if state == RESTORED:
        journal.undo(file)
    elif state == UNCHANGED and os.fstat(file).st_size > journal.sizes[0]:
        os.ftruncate(file, journal.sizes[0])
        os.fsync(file)
    journal_of(path).unlink()
    return state


def _moved_aside(path: Path, why: str) -> str:
    """Rename a journal that cannot be used; return the message that says so."""
    journal, number = journal_of(path), 1
    while (aside := path.with_name(f"{path.name}.unrelated-journal-{number}.npz")).exists():
        number += 1
    os.rename(journal, aside)
    return (
        f"the journal {journal}, which an interrupted program left beside {path}, {why}. {path} "
        f"was not touched, and the journal is now {aside}: if {path} can be read and is as you "
        "want it, remove that journal and try again."
    )
