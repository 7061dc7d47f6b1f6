"""A program is killed at any operation of `write_h5ad`: nothing of the user's is lost.

The file operations of a write are recorded once; the folder as a kill leaves it is then made from
them for every operation, and for its first half.
"""

import h5py
import numpy as np
import pytest
from disk_log import DiskLog, contents_of, fill
from night import at_night

import nmfscale
from nmfscale.storage.in_place import changed_hdf5
from nmfscale.storage.journal import JournalError

anndata = pytest.importorskip("anndata")
mudata = pytest.importorskip("mudata")

X, _ = nmfscale.datasets.simulate_topic_counts(30, 20, 2, random_state=0)
FIT = {"random_state": 0, "max_iter": 10, "tol": 1e-3}
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:From 0.4 .update:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*was left by a program that was killed"),
]


def cells(scale=1.0):
    names = [f"cell {i}" for i in range(30)], [f"gene {j}" for j in range(20)]
    adata = anndata.AnnData(X.toarray().astype(np.float32))
    adata.obs_names, adata.var_names = names
    adata.obsm["X_pca"] = scale * np.arange(60.0).reshape(30, 2)
    return adata


class Written:
    """A write of a fit to a file, recorded; the file is at `path`, perhaps through a link."""

    def __init__(self, folder, *, replaced=False, multimodal=False, link=False):
        self.folder, self.mod = folder / "data", "rna" if multimodal else None
        self.folder.mkdir()
        name = "cells.h5mu" if multimodal else "cells.h5ad"
        self.file = self.path = self.folder / name
        self.save(cells(), self.file)
        if link:
            (folder / "links").mkdir()
            self.path = folder / "links" / f"link-{name}"
            self.path.symlink_to(self.file)
        model = nmfscale.TopicModel(2, **FIT).fit(self.file, modality=self.mod)
        if replaced:
            nmfscale.tl.write_h5ad(model, self.path, mod=self.mod)
            model = nmfscale.TopicModel(3, **FIT).fit(self.file, modality=self.mod)
        self.model, self.old = model, self.file.read_bytes()
        self.log = DiskLog(self.folder)
        with self.log.recorded():
            nmfscale.tl.write_h5ad(model, self.path, mod=self.mod)
        self.new = self.file.read_bytes()
        assert list(contents_of(self.folder)) == [name]
        anew = folder / name
        self.save(cells(scale=7.0), anew)
        self.anew = anew.read_bytes()

    def save(self, adata, path):
        if self.mod is None:
            adata.write_h5ad(path)
        else:
            mudata.MuData({"rna": adata}).write_h5mu(path)

    def crashes(self, every=1):
        """Yield the files after each kill; before the journal, after each `every`-th operation."""
        first = self.log.first("fsync", "cells.")
        for number in range(len(self.log.operations)):
            if number >= first or number % every == 0:
                yield self.log.after(number)
                if self.log.operations[number][0] == "pwrite":
                    yield self.log.after(number, half=True)


def values_of(path):
    """Return the values of all datasets of a file but those of the test, or None."""
    found = {}

    def visit(name, node):
        if isinstance(node, h5py.Dataset) and not name.endswith("added"):
            found[name] = (
                np.asarray(node[()]).tobytes() if node.dtype.kind != "O" else [*node[...].flat]
            )

    if not h5py.is_hdf5(path):
        return None
    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def check_restored(written):
    """The file is readable, or named as half written; restoring gives the old or the new file."""
    path = written.path
    if h5py.is_hdf5(path):
        assert path.read_bytes()[: len(written.old)] in (
            written.old,
            written.new[: len(written.old)],
        )
    else:
        with pytest.raises(ValueError, match="is half written: .* 'nmfscale restore"):
            nmfscale.as_counts(path, modality=written.mod)
    had_journal = len([*written.folder.glob(".journal-*")])
    was_half_written = not h5py.is_hdf5(path)
    assert nmfscale.tl.restore_h5ad(path) == was_half_written
    found = path.read_bytes()
    if had_journal:
        assert found in (written.old, written.new)
    else:
        assert found == written.new or found[: len(written.old)] == written.old
    assert not [*written.folder.glob(".journal-*")]


def rewrite(path, written):
    path.write_bytes(written.anew)


def write_another_kind(path, written):
    """Write a file whose signature is where the other one has different bytes."""
    with h5py.File(path, "w", userblock_size=0 if written.mod else 512) as file:
        file.create_group("mod/rna/uns" if written.mod else "uns")["mine"] = np.arange(9000)


def change_in_place(path, written):
    with h5py.File(path, "r+") as file:
        file["mod/rna/obsm/X_pca" if written.mod else "obsm/X_pca"][:5] = -1.0


def add_a_table(path, written):
    with h5py.File(path, "r+") as file:
        file["mod/rna/uns" if written.mod else "uns"].create_dataset("mine", data=np.arange(500))


def delete_the_fit(path, written):
    with h5py.File(path, "r+") as file:
        uns = file["mod/rna/uns" if written.mod else "uns"]
        if "topics" in uns:
            del uns["topics"]


USERS = [rewrite, change_in_place, write_another_kind, add_a_table, delete_the_fit]


def check_user(written, act):
    """The user changes the file after the kill: the next write adds to that, or changes nothing."""
    path = written.path
    if act not in (rewrite, write_another_kind) and not h5py.is_hdf5(path):
        return
    act(path, written)
    content, values = path.read_bytes(), values_of(path)
    try:
        add_again(path, written)
    except JournalError as error:
        assert path.read_bytes() == content
        assert all(each in str(error) for each in (str(written.file), ".journal-", "unrelated"))
        add_again(path, written)  # the journal is out of the way
    assert values_of(path) == values
    assert not [*written.folder.glob(".journal-*")]


def add_again(path, written):
    """Change the file as `write_h5ad` does."""
    with changed_hdf5(path) as file:
        file["mod/rna/uns" if written.mod else "uns"].create_dataset("added", data=1)


@pytest.mark.parametrize("place", [{}, {"replaced": True, "multimodal": True, "link": True}])
def test_some_kills(tmp_path, place):
    written = Written(tmp_path, **place)
    states = [*written.crashes(every=1000)][::9]
    for number, files in enumerate(states):
        fill(written.folder, files)
        check_restored(written)
        fill(written.folder, files)
        check_user(written, USERS[number % len(USERS)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        {"replaced": True, "multimodal": True},
        *at_night({"link": True}, {"replaced": True}, {"multimodal": True}),
    ],
)
def test_every_kill(tmp_path, place):
    written = Written(tmp_path, **place)
    for number, files in enumerate(written.crashes(every=25)):
        fill(written.folder, files)
        check_restored(written)
        for act in USERS[number % 2 :: 2]:
            fill(written.folder, files)
            check_user(written, act)


@pytest.mark.slow
def test_power_failures(tmp_path):
    """What was not flushed is lost in part, in any order."""
    written, rng = Written(tmp_path), np.random.default_rng(0)
    for number in range(written.log.first("fsync", "cells."), len(written.log.operations) + 1):
        for _ in range(3):
            fill(written.folder, written.log.after(number, lost=rng))
            check_restored(written)


@pytest.mark.slow
def test_kills_while_a_file_is_restored(tmp_path):
    written = Written(tmp_path, replaced=True)
    unlink, last = len(written.log.operations) - 1, None
    assert written.log.operations[unlink][:2] == ("unlink", ".journal-cells.h5ad.npz")
    for number in range(written.log.first("replace", ".part-"), unlink, 3):
        fill(written.folder, written.log.after(number, half=True))
        if h5py.is_hdf5(written.file):
            continue
        last = DiskLog(written.folder)
        with last.recorded():
            assert nmfscale.tl.restore_h5ad(written.path)
        assert written.file.read_bytes() == written.old
        for again in range(len(last.operations)):
            for half in (False, True):
                fill(written.folder, last.after(again, half=half))
                nmfscale.tl.restore_h5ad(written.path)
                assert contents_of(written.folder) == {"cells.h5ad": written.old}
    assert last is not None
