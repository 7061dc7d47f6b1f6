"""Fits are added to .h5ad files; a crash leaves the old file, or a journal that restores it."""

import errno
import os
import signal
import subprocess
import sys
import warnings

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

import nmfscale
from nmfscale.cli import main
from nmfscale.storage.hdf5 import journal_of
from nmfscale.storage.in_place import Changes
from nmfscale.storage.locks import FileInUseError

anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")

X, _ = nmfscale.datasets.simulate_topic_counts(60, 40, 3, random_state=0)
FIT = {"random_state": 0, "max_iter": 20, "tol": 1e-3}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def path(tmp_path):
    obs = pd.DataFrame({"kept": np.arange(60) % 3 > 0}, [f"cell {i}" for i in range(60)])
    var = pd.DataFrame({"chosen": np.arange(40) % 4 > 0}, [f"gene {j}" for j in range(40)])
    adata = anndata.AnnData(sp.csr_matrix(X), obs=obs, var=var, uns={"hvg": {"flavor": "seurat"}})
    adata.layers["log"] = np.log1p(X.toarray())
    adata.obsm["X_pca"] = np.arange(120.0).reshape(60, 2)
    adata.write_h5ad(tmp_path / "cells.h5ad", compression="gzip")
    return tmp_path / "cells.h5ad"


def contents(path):
    """Return every dataset of a file except those of a fit with the key "topics"."""
    found = {}

    def visit(name, node):
        if isinstance(node, h5py.Dataset) and "topics" not in name:
            found[name] = (
                str(np.asarray(node[()]).tolist()),
                node.id.get_offset(),
                dict(node.attrs).keys(),
            )

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def test_a_fit_is_added_as_tl_topics_adds_it(path):
    before = contents(path)
    model = nmfscale.TopicModel(3, **FIT).fit(path)
    nmfscale.tl.write_h5ad(model, path)
    assert contents(path) == before  # also the places in the file
    expected = anndata.read_h5ad(path)
    for part in (expected.obs, expected.obsm, expected.varm, expected.uns):
        for name in [each for each in part if "topics" in each]:
            del part[name]
    nmfscale.tl.topics(expected, 3, **FIT)
    found = anndata.read_h5ad(path)
    assert (found.obsm["X_topics"] == expected.obsm["X_topics"]).all()
    assert (found.varm["topics"] == expected.varm["topics"]).all()
    assert found.obsm["topics_samples"].equals(expected.obsm["topics_samples"])
    assert found.uns["topics"].keys() == expected.uns["topics"].keys()
    assert (nmfscale.get.model(found).loadings_ == model.loadings_).all()
    other = nmfscale.TopicModel(2, **FIT).fit(path)  # replaces the first
    nmfscale.tl.write_h5ad(other, path)
    assert anndata.read_h5ad(path).obsm["X_topics"].shape == (60, 2)
    assert contents(path) == before


def test_loadings_outside_of_the_fit_are_estimated(path):
    masks = {"mask_obs": "kept", "mask_var": "chosen"}
    nmfscale.tl.write_h5ad(nmfscale.TopicModel(3, **FIT).fit(path, **masks), path, key_added="k3")
    found = anndata.read_h5ad(path)
    expected = anndata.read_h5ad(path)
    nmfscale.tl.topics(expected, 3, key_added="other", **masks, **FIT)
    assert (found.obsm["X_k3"] == expected.obsm["X_other"]).all()
    assert (found.varm["k3"] == expected.varm["other"]).all()
    assert found.obsm["k3_samples"].equals(expected.obsm["other_samples"])


def test_what_is_refused_leaves_the_file_as_it_was(path, tmp_path):
    model = nmfscale.TopicModel(2, **FIT).fit(path)
    before = path.read_bytes()
    backed = anndata.read_h5ad(path, backed="r")
    with pytest.raises(FileInUseError, match="has it open"):
        nmfscale.tl.write_h5ad(model, path)
    backed.file.close()
    part = tmp_path / "part.h5ad"
    anndata.read_h5ad(path)[:20].write_h5ad(part)
    with pytest.raises(ValueError, match="lacks 40 of the 60 samples"):
        nmfscale.tl.write_h5ad(model, part)
    genes = tmp_path / "genes.h5ad"
    anndata.AnnData(X.toarray(), obs=anndata.read_h5ad(path).obs).write_h5ad(genes)
    with pytest.raises(ValueError, match="none of the 40 features"):
        nmfscale.tl.write_h5ad(model, genes)
    (tmp_path / "text.h5ad").write_text("text")
    with pytest.raises(ValueError, match="is not an .h5ad file"):
        nmfscale.tl.write_h5ad(model, tmp_path / "text.h5ad")
    with pytest.raises(TypeError, match="fitted model is needed"):
        nmfscale.tl.write_h5ad(nmfscale.TopicModel(2), path)
    assert path.read_bytes() == before and not journal_of(path).exists()


def changes_of(path, raw):
    """Add a dataset to a file, without committing."""
    changes = Changes(raw.fileno(), path)
    with h5py.File(changes, "r+") as file:
        file["uns"].create_dataset("new", data=np.arange(100_000))
        for number in range(300):
            file["obsm"].attrs[f"attribute {number}"] = "text " * 10
        del file["obsm/X_pca"]
    return changes


@pytest.fixture
def half_written(path, monkeypatch):
    """A file whose program was killed while pages were written, through a link to the file."""
    monkeypatch.chdir(path.parent)
    (path.parent / "link.h5ad").symlink_to(path)
    before = path.read_bytes()
    with open(path, "rb+", buffering=0) as raw:
        journal = changes_of(path, raw).save_journal()
        monkeypatch.setattr(os, "fsync", stop_after(2, os.fsync))
        with pytest.raises(Killed):
            journal.apply(raw.fileno())
    monkeypatch.undo()
    monkeypatch.chdir(path.parent)
    assert path.read_bytes()[:8] != before[:8]
    return before


class Killed(BaseException):
    """Ends a test where a kill would end the program."""


def stop_after(n_calls, call):
    """Return a function that does as `call` does, and stops the program at one of its calls."""
    calls = iter(range(1, n_calls))

    def run(*given):
        if next(calls, None) is None:
            raise Killed
        return call(*given)

    return run


def test_readers_name_the_journal(path, half_written):
    for read in (
        nmfscale.read_counts, nmfscale.as_counts, nmfscale.TopicModel(2, **FIT).fit,
        lambda name: nmfscale.tl.transform(anndata.AnnData(X.toarray()), name),
        lambda name: nmfscale.concat([name]),
    ):  # fmt: skip
        with pytest.raises(
            ValueError, match=r"half written: .*\.journal-cells.h5ad.npz.*restore_h5ad"
        ):
            read("link.h5ad")
    assert nmfscale.tl.restore_h5ad("link.h5ad") and path.read_bytes() == half_written
    assert not journal_of(path).exists() and not nmfscale.tl.restore_h5ad(path)


def test_a_journal_of_a_sound_file_is_named(path, capsys):
    before = path.read_bytes()
    with open(path, "rb+", buffering=0) as raw:
        changes_of(path, raw).save_journal()
    backed = anndata.read_h5ad(path, backed="r")
    for use in (
        lambda: nmfscale.read_counts(path), lambda: nmfscale.TopicModel(2, **FIT).fit(path),
        lambda: nmfscale.tl.topics(backed, 2, **FIT),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match=r"\.journal-cells.h5ad.npz was left .* can be read"):
            use()
    assert main(["info", str(path)]) == 0
    assert ".journal-cells.h5ad.npz was left by" in capsys.readouterr().err
    backed.file.close()
    assert not nmfscale.tl.restore_h5ad(path) and path.read_bytes() == before


def test_the_command_restores(path, half_written, capsys):
    assert main(["info", "link.h5ad"]) == 1
    assert "'nmfscale restore link.h5ad'" in capsys.readouterr().err
    assert main(["restore", "link.h5ad"]) == 0
    assert "is as it was before" in capsys.readouterr().out and path.read_bytes() == half_written
    assert main(["restore", "link.h5ad"]) == 0
    assert "nothing to restore" in capsys.readouterr().out


def test_a_damaged_journal_is_moved_aside(path, half_written, capsys):
    content = path.read_bytes()
    for number in (1, 2):
        journal_of(path).write_bytes(b"no journal")
        assert main(["restore", "cells.h5ad"]) == 1
        aside = f"cells.h5ad.unrelated-journal-{number}.npz"
        assert aside in capsys.readouterr().err and (path.parent / aside).exists()
    assert path.read_bytes() == content and not journal_of(path).exists()


def test_a_failing_disk_leaves_the_old_file(path, monkeypatch):
    """A write to existing bytes of the file fails half-way, once or until the disk is repaired."""
    model, before, write = nmfscale.TopicModel(3, **FIT).fit(path), path.read_bytes(), os.pwrite

    def failing(first, last):
        calls = iter(range(1, 10**6))

        def run(file, data, at):
            is_old = os.path.samestat(os.fstat(file), path.stat()) and at < len(before)
            if is_old and first <= next(calls) <= last:
                write(file, data[: len(data) // 2], at)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return write(file, data, at)

        return run

    for first, last in ((1, 1), (2, 2), (4, 4), (4, 10**6)):  # the marker, then pages
        monkeypatch.setattr(os, "pwrite", failing(first, last))
        remedy = "half written.*nmfscale restore" if last > first else "Input/output error"
        with pytest.raises(OSError, match=rf"{remedy}.*cells\.h5ad") as caught:
            nmfscale.tl.write_h5ad(model, path)
        assert caught.value.errno == errno.EIO
        monkeypatch.setattr(os, "pwrite", write)
        assert nmfscale.tl.restore_h5ad(path) == (last > first)
        assert path.read_bytes() == before and not journal_of(path).exists()
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:700], at))
    nmfscale.tl.write_h5ad(model, path)
    assert (nmfscale.get.model(anndata.read_h5ad(path)).loadings_ == model.loadings_).all()


def test_changes_are_those_of_hdf5_itself(path, tmp_path):
    with open(path, "rb+", buffering=0) as raw:
        changes_of(path, raw).commit()
    with h5py.File(path) as file:
        assert (file["uns/new"][:] == np.arange(100_000)).all()
        assert len(file["obsm"].attrs) >= 300 and "X_pca" not in file["obsm"]
    assert (nmfscale.read_counts(path).take_rows() != sp.csr_array(X)).nnz == 0


def test_the_command(path, tmp_path, capsys):
    command = ["fit", str(path), "-k", "3", "--seed", "0", "-o", str(tmp_path / "model.h5")]
    command += ["--memory-limit", "1GB", "--samples", "kept", "--write-h5ad", "topics", "--quiet"]
    assert main(command) == 0
    assert "obsm['X_topics']" in capsys.readouterr().out
    found = nmfscale.get.model(anndata.read_h5ad(path))
    assert (found.loadings_ == nmfscale.load(tmp_path / "model.h5").loadings_).all()
    for files in (["counts.npz"], [str(path), str(path)]):
        with pytest.raises(SystemExit):
            main(["fit", *files, "-k", "3", "--write-h5ad", "topics"])
        assert "is no .h5ad or .h5mu file" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_killed_program_leaves_a_file_that_can_be_read(path, tmp_path):
    """Kill it at many moments of the writing; the file has the old contents or the new ones."""
    model = nmfscale.TopicModel(3, **FIT).fit(path)
    model.save(tmp_path / "model.h5")
    code = (
        "import sys, nmfscale, anndata, nmfscale.storage.in_place as p; "
        "model = nmfscale.load(sys.argv[1]); print('ready', flush=True); sys.stdin.readline()\n"
        "while True: nmfscale.tl.write_h5ad(model, sys.argv[2])"
    )
    before = contents(path)
    for delay in np.linspace(0.05, 0.5, 12):
        program = subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(tmp_path / "model.h5"), str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert program.stdout.readline() == "ready\n"
        program.stdin.write("\n")
        program.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(delay)
        os.kill(program.pid, signal.SIGKILL)
        program.communicate()
        nmfscale.tl.restore_h5ad(path)
        assert contents(path) == before
        assert anndata.read_h5ad(path).n_obs == 60


@pytest.fixture
def both(path, tmp_path):
    """A MuData file with the cells as modality "rna"."""
    mudata = pytest.importorskip("mudata")
    rna = anndata.read_h5ad(path)
    other = rna[:, :5].copy()
    other.var_names = [f"protein {j}" for j in range(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        mudata.MuData({"rna": rna, "prot": other}).write_h5mu(tmp_path / "both.h5mu")
    return tmp_path / "both.h5mu"


@pytest.mark.filterwarnings("ignore:From 0.4 .update:FutureWarning")
def test_a_modality_of_mudata(path, both):
    mudata, rna = pytest.importorskip("mudata"), anndata.read_h5ad(path)
    model = nmfscale.TopicModel(3, **FIT).fit(both, modality="rna")
    with pytest.raises(ValueError, match="has no modality 'adt'"):
        nmfscale.tl.write_h5ad(model, both, mod="adt")
    with pytest.raises(ValueError, match="has several modalities; choose mod= from prot, rna"):
        nmfscale.tl.write_h5ad(model, both)
    nmfscale.tl.write_h5ad(model, both, mod="rna")
    found = mudata.read_h5mu(both)
    nmfscale.tl.topics(rna, 3, **FIT)
    assert (found["rna"].obsm["X_topics"] == rna.obsm["X_topics"]).all()
    assert (found["rna"].varm["topics"] == rna.varm["topics"]).all()
    assert (nmfscale.get.model(found, mod="rna").components_ == model.components_).all()
    assert "X_topics" not in found["prot"].obsm and found["prot"].shape == (60, 5)


@pytest.mark.filterwarnings("ignore:From 0.4 .update:FutureWarning")
def test_the_command_adds_to_a_modality(path, both, tmp_path, capsys):
    """Also the loadings of samples that were not fitted."""
    command = ["fit", str(both), "-k", "3", "--seed", "0", "-o", str(tmp_path / "model.h5")]
    command += ["--max-iter", "20", "--tol", "1e-3", "--samples", "kept", "--quiet"]
    command += ["--write-h5ad", "topics"]
    assert main(command) == 1
    assert "several modalities; choose --modality from prot, rna" in capsys.readouterr().err
    assert not (tmp_path / "model.h5").exists()
    assert main([*command, "--modality", "rna"]) == 0
    found, rna = pytest.importorskip("mudata").read_h5mu(both)["rna"], anndata.read_h5ad(path)
    nmfscale.tl.topics(rna, 3, mask_obs="kept", **FIT)
    assert (found.obsm["X_topics"] == rna.obsm["X_topics"]).all()
    assert found.obsm["topics_samples"].equals(rna.obsm["topics_samples"])
