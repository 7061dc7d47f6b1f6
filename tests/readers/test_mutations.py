"""Small files with one thing changed give sound counts, or an error that names the file."""

import io
import os
import random
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad, write_tenx

from nmfscale.readers.open import as_counts, read_counts

TABLE = np.arange(1, 41, dtype=np.int64).reshape(10, 4) % 7
READS = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import test_mutations
for path in sys.argv[1:]:
    print(test_mutations.outcome(path), path, flush=True)
"""


def outcome(path):
    """What reading a file in both ways comes to; anything but these words is a fault."""
    found = []
    choices = {"groups": "kind"} if path.endswith("d") else {}
    for read, options in (
        (read_counts, choices),
        (as_counts, {"in_memory": False, "memory_limit": "8MB"}),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found.append(read(path, integer="allow", **options).take_rows().toarray())
            except (OSError, ValueError) as error:
                if path.rpartition("/")[-1] not in str(error):
                    return f"nameless {error!r}"
                found.append(None)
            except Exception as error:
                return f"other {error!r}"
    if found[0] is None or found[1] is None:
        return "refused"  # by both, or by the one that looks at the part that is wrong
    if not np.array_equal(*found):
        return "different"
    return "same" if np.array_equal(found[0], TABLE) else "read"


def h5ad(path, draw):
    write_h5ad(path, sp.csr_array(TABLE).asformat(draw.choice(["csr", "csc"])))
    with h5py.File(path, "r+") as file:
        file["obs/kind/codes"] = np.arange(10, dtype=np.int8) % 2
        file["obs/kind/categories"] = ["a", "b"]


def tenx(path, draw):
    write_tenx(path, sp.csr_array(TABLE), draw.choice([2, 3]))
    with h5py.File(path, "r+") as file:
        if "matrix" in file:
            file["matrix/features/feature_type"][:] = b"Gene Expression"


def npz(path, draw):
    form = draw.choice([sp.csr_array, sp.csc_array, sp.coo_array, sp.bsr_array])
    sp.save_npz(path, form(TABLE), compressed=draw.random() < 0.5)


def other_values(values, draw):
    values = np.asarray(values)
    if values.dtype.kind in "OS":
        values = values.astype("S")
    return draw.choice([
        lambda: values[:0], lambda: values[:-1], lambda: np.append(values, values[:1]),
        lambda: values[None], lambda: values.ravel()[0], lambda: values.astype("S"),
        lambda: np.zeros(values.shape, "c8"), lambda: np.full(values.shape, 1.5),
        lambda: np.zeros(values.shape, [("a", "i4"), ("b", "S3")]),
        lambda: np.full(values.shape, 3),
        lambda: np.full(values.shape, 2**63 - 1), lambda: h5py.Empty("f8"),
        lambda: np.full(values.shape, -2), lambda: np.zeros(values.shape, "O").astype("S"),
    ])()  # fmt: skip


def change_hdf5(path, draw):
    with h5py.File(path, "r+") as file:
        names = ["/"]
        file.visit(names.append)
        name = draw.choice(names[1:])
        node, kind = file[name], draw.choice(["delete", "rename", "attribute", "values", "values"])
        new = [3, -1.5, b"x", "X", [1, 2, 3], [2**62, 4], np.zeros((2, 2)), h5py.Empty("i4")]
        if kind == "delete":
            del file[name]
        elif kind == "rename":
            file.move(name, name + "s")
        elif kind == "attribute" and len(node.attrs):
            node.attrs[draw.choice(list(node.attrs))] = draw.choice(new)
        elif isinstance(node, h5py.Dataset):
            values = other_values(node[()], draw)
            del file[name]
            file[name] = values
        else:
            del file[name]
            file[name] = np.arange(3)


def change_npz(path, draw):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(sorted(members))
    kind = draw.choice(["delete", "rename", "values", "header", "pickle"])
    if kind == "header":
        at = draw.randrange(6, 100)
        byte = draw.choice([b"(", b"'", b"\\", b"9", b"\0"])
        members[name] = members[name][:at] + byte + members[name][at + 1 :]
    elif kind in ("values", "pickle"):
        values = np.atleast_1d(np.load(io.BytesIO(members[name])))
        values = np.array([{}, 1]) if kind == "pickle" else other_values(values, draw)
        if not isinstance(values, h5py.Empty):
            written = io.BytesIO()
            np.save(written, values)
            members[name] = written.getvalue()
    else:
        content = members.pop(name)
        if kind == "rename":
            members["s" + name] = content
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def change_bytes(path, draw):
    content = bytearray(path.read_bytes())
    kind = draw.choice(["cut", "flip", "flip", "zero", "swap"])
    at = draw.randrange(len(content))
    if kind == "cut":
        del content[at:]
    elif kind == "flip":
        content[at] ^= 1 << draw.randrange(8)
    elif kind == "zero":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    else:
        content[at : at + 64] = content[at : at + 64][::-1]
    path.write_bytes(content)


KINDS = {"h5ad": (h5ad, change_hdf5), "h5": (tenx, change_hdf5), "npz": (npz, change_npz)}


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 80), marks=pytest.mark.nightly)], ids=str
)
@pytest.mark.parametrize("kind", KINDS)
def test_any_change_gives_counts_or_an_error_that_names_the_file(tmp_path, kind, seeds):
    write, change = KINDS[kind]
    paths = []
    for seed in seeds:
        draw = random.Random(seed)
        paths.append(tmp_path / f"seed{seed}.{kind}")
        write(paths[-1], draw)
        assert outcome(str(paths[-1])) == "same"
        (change if seed % 2 else change_bytes)(paths[-1], draw)
    # in another process, which can be ended should HDF5 not come back
    words = [sys.executable, "-P", "-c", READS, *paths]
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, timeout=100, capture_output=True, text=True, env=there)
    found = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert len(found) == len(paths), done.stderr
    assert [each for each in found if each[0] not in ("same", "read", "refused")] == []
    assert sum(each[0] == "refused" for each in found) > len(seeds) / 4
