"""Operations of a program on the files of a folder, and the folder after a crash at any of them."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

_CALLS = "open", "pwrite", "ftruncate", "fsync", "replace", "rename", "unlink"


class DiskLog:
    """Records the operations on the files of a folder, and what a crash would leave of them.

    `operations` are tuples: name of the call, file, and its other arguments.
    """

    def __init__(self, folder):
        self.folder = Path(os.path.realpath(folder))
        self.before = contents_of(folder)
        self.operations = []

    @contextmanager
    def recorded(self):
        """Record all calls of os in the block that change a file of the folder."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS:
                patch.setattr(os, name, self._recorder(name, getattr(os, name)))
            yield self

    def _recorder(self, name, call):
        def run(first, *rest, **more):
            result = call(first, *rest, **more)
            if name in ("replace", "rename"):
                self._add(name, first, os.path.basename(rest[0]))
            elif name == "unlink":
                self._add(name, first)
            elif name != "open" or rest[0] & os.O_CREAT:
                path = os.readlink(f"/proc/self/fd/{result if name == 'open' else first}")
                self._add(name, path, *([bytes(rest[0]), rest[1]] if name == "pwrite" else rest))
            return result

        return run

    def _add(self, name, path, *rest):
        if os.path.dirname(path) == str(self.folder):
            self.operations.append((name, os.path.basename(path), *rest))

    def after(self, n_operations, half=False, lost=None):
        """Return the files after some operations, and perhaps half of the bytes of the next one.

        `lost` is a random generator: a power failure then loses, in any order, some of what was
        written to a file since its last `fsync`.
        """
        files = {name: bytearray(content) for name, content in self.before.items()}
        done = self.operations[:n_operations]
        for number, operation in enumerate(done):
            if lost is None or self._is_safe(number, done) or lost.random() < 0.5:
                _apply(files, *operation)
        if half and self.operations[n_operations][0] == "pwrite":
            name, file, data, at = self.operations[n_operations]
            _apply(files, name, file, data[: len(data) // 2], at)
        return files

    def _is_safe(self, number, done):
        name, file, *_ = done[number]
        later = [each[:2] for each in done[number + 1 :]]
        return name not in ("pwrite", "ftruncate") or ("fsync", file) in later

    def first(self, name, file):
        """Return the number of the first operation of a kind on files with a part of a name."""
        names = [operation[:2] for operation in self.operations]
        return next(i for i, each in enumerate(names) if each[0] == name and file in each[1])


def _apply(files, name, file, *rest):
    if name == "open":
        files.setdefault(file, bytearray())
    elif name == "pwrite":
        data, at = rest
        files[file].extend(bytes(max(0, at + len(data) - len(files[file]))))
        files[file][at : at + len(data)] = data
    elif name == "ftruncate":
        (size,) = rest
        files[file].extend(bytes(max(0, size - len(files[file]))))
        del files[file][size:]
    elif name in ("replace", "rename"):
        files[rest[0]] = files.pop(file)
    elif name == "unlink":
        files.pop(file, None)


def contents_of(folder):
    """Return the bytes of the files of a folder, by name."""
    return {each.name: each.read_bytes() for each in Path(folder).iterdir() if each.is_file()}


def fill(folder, files):
    """Make a folder have these files and no others; links stay."""
    for each in Path(folder).iterdir():
        if not each.is_symlink() and each.name not in files:
            each.unlink()
    for name, content in files.items():
        Path(folder, name).write_bytes(content)
