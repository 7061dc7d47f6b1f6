"""Fits are added to .h5ad files; a crash leaves the old file, or a journal that restores it."""

import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

import nmfscale
from nmfscale.cli import main
from nmfscale.storage.atomic import FileInUseError
from nmfscale.storage.in_place import Changes, changed_hdf5, journal_of, restore

anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")

X, _ = nmfscale.simulate_topic_counts(60, 40, 3, random_state=0)
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
    for part in (expected.obsm, expected.varm, expected.uns):
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
    with pytest.raises(ValueError, match="something else with this name"):
        nmfscale.tl.write_h5ad(model, path, key_added="hvg")
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


def test_a_crash_at_any_time_leaves_the_old_file_or_a_journal(path):
    before = path.read_bytes()
    with open(path, "rb+", buffering=0) as raw:
        changes = changes_of(path, raw)
        assert path.read_bytes()[: len(before)] == before  # only appended so far
        n_pages = len(changes._pages)
        assert n_pages >= 2 and anndata.read_h5ad(path).n_obs == 60
        changes.save_journal()
        for done in range(1, n_pages + 1):
            changes.apply(done)
        assert path.read_bytes()[: len(before)] != before
    assert restore(path) and path.read_bytes() == before
    assert not restore(path)
    with open(path, "rb+", buffering=0) as raw:
        changes_of(path, raw).save_journal()
    with changed_hdf5(path) as file:  # restores first
        file["uns"].create_dataset("newer", data=1)
    assert not journal_of(path).exists()
    with h5py.File(path) as file:
        assert "newer" in file["uns"] and "new" not in file["uns"] and "X_pca" in file["obsm"]


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
        assert "is no .h5ad file" in capsys.readouterr().err


@pytest.mark.slow
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
    for delay in (0.1, 0.35):
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
        restore(path)
        assert contents(path) == before
        assert anndata.read_h5ad(path).n_obs == 60


@pytest.mark.filterwarnings("ignore:From 0.4 .update:FutureWarning")
def test_a_modality_of_mudata(path, tmp_path):
    mudata = pytest.importorskip("mudata")
    rna = anndata.read_h5ad(path)
    other = rna[:, :5].copy()
    other.var_names = [f"protein {j}" for j in range(5)]
    both = tmp_path / "both.h5mu"
    mudata.MuData({"rna": rna, "prot": other}).write_h5mu(both)
    model = nmfscale.TopicModel(3, **FIT).fit(both, modality="rna")
    with pytest.raises(ValueError, match="has no modality 'adt'"):
        nmfscale.tl.write_h5ad(model, both, mod="adt")
    with pytest.raises(ValueError, match="mod is needed: .*; choose prot, rna"):
        nmfscale.tl.write_h5ad(model, both)
    nmfscale.tl.write_h5ad(model, both, mod="rna")
    found = mudata.read_h5mu(both)
    nmfscale.tl.topics(rna, 3, **FIT)
    assert (found["rna"].obsm["X_topics"] == rna.obsm["X_topics"]).all()
    assert (found["rna"].varm["topics"] == rna.varm["topics"]).all()
    assert (nmfscale.get.model(found, mod="rna").components_ == model.components_).all()
    assert "X_topics" not in found["prot"].obsm and found["prot"].shape == (60, 5)
