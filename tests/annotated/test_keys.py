"""Keys of fits: refused before any work if no file can have them, or if anything would be lost."""

import numpy as np
import pytest
from night import at_night

import nmfscale
from nmfscale.cli import main

anndata = pytest.importorskip("anndata")
mudata = pytest.importorskip("mudata")

X, _ = nmfscale.datasets.simulate_topic_counts(30, 20, 2, random_state=0)
FIT = {"random_state": 0, "max_iter": 5, "tol": 1e-3}
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:From 0.4 .update:FutureWarning"),
]
# What a user has, and the key that would replace or delete it.
OTHERS = {
    "harmony": "obsm['X_harmony']",
    "k3": "obsm['k3_samples']",
    "lda": "obsm['lda_doc_topic_posterior']",
    "PCs": "varm['PCs']",
    "variance": "obs['variance_explained']",
    "mean": "var['mean_explained']",
    "regression": "uns['regression']",
}
BAD_KEYS = ["results/k3", "", "/new", "x/../..", "..", "a\nb", None]


def cells():
    adata = anndata.AnnData(X.toarray().astype(np.float32))
    adata.obs_names = [f"cell {i}" for i in range(30)]
    adata.var_names = [f"gene {j}" for j in range(20)]
    for name in ("X_harmony", "k3_samples", "lda_doc_topic_posterior"):
        adata.obsm[name] = np.ones((30, 2))
    adata.varm["PCs"] = np.ones((20, 2))
    adata.obs["variance_explained"], adata.var["mean_explained"] = 0.5, 0.25
    adata.uns["regression"] = {"model": "ridge", "topic_names": ["a"]}
    return adata


@pytest.fixture(scope="module")
def model():
    return nmfscale.TopicModel(2, **FIT).fit(cells())


class Place:
    """An object in memory, or in a file, to which fits are added."""

    def __init__(self, kind, folder, model):
        self.kind, self.model, self.mod = kind, model, "rna" if kind == "h5mu" else None
        self.path = folder / f"cells.{kind}"
        self.adata = cells()
        if kind == "h5mu":
            mudata.MuData({"rna": self.adata}).write_h5mu(self.path)
        elif kind == "h5ad":
            self.adata.write_h5ad(self.path)
        elif kind == "zarr":
            pytest.importorskip("zarr")
            self.adata = self.through_zarr()

    def through_zarr(self):
        self.adata.write_zarr(self.path)
        return anndata.read_zarr(self.path)

    def add(self, key):
        if self.kind in ("h5ad", "h5mu"):
            nmfscale.tl.write_h5ad(self.model, self.path, key_added=key, mod=self.mod)
        else:
            nmfscale.tl.topics(self.adata, 2, key_added=key, **FIT)
            self.adata = self.through_zarr() if self.kind == "zarr" else self.adata

    def read(self):
        if self.kind in ("h5ad", "h5mu"):
            found = (anndata.read_h5ad if self.mod is None else mudata.read_h5mu)(self.path)
            return found if self.mod is None else found["rna"]
        return self.adata


@pytest.mark.filterwarnings("ignore:Writing zarr v2:UserWarning")
@pytest.mark.parametrize("kind", ["memory", "h5ad", *at_night("zarr", "h5mu")])
def test_nothing_else_is_replaced_or_deleted(tmp_path, model, kind):
    place = Place(kind, tmp_path, model)
    before = place.path.read_bytes() if place.path.is_file() else None
    for key, what in OTHERS.items():
        with pytest.raises(ValueError) as caught:
            place.add(key)
        assert f"{what} is not part of a fit of nmfscale" in str(caught.value)
        assert "choose another key" in str(caught.value) and repr(key) in str(caught.value)
    for key in BAD_KEYS[:-1]:
        with pytest.raises(ValueError, match="must be text without '/'"):
            place.add(key)
    after = place.path.read_bytes() if place.path.is_file() else None
    assert after == before and "X_harmony" in place.read().obsm
    for _ in range(2):  # a fit may replace a fit
        place.add("topics")
    assert (nmfscale.get.model(place.read()).components_ == model.components_).all()


def test_only_what_belongs_to_a_fit_is_replaced():
    adata = cells()
    nmfscale.tl.topics(adata, 2, **FIT)
    adata.obs["topics_explained"] = "mine"  # tl.topic_quality has not been called
    for use in (nmfscale.tl.topic_quality, lambda adata: nmfscale.tl.topics(adata, 2, **FIT)):
        with pytest.raises(ValueError, match=r"adata.obs\['topics_explained'\]"):
            use(adata)
    assert (adata.obs["topics_explained"] == "mine").all()
    del adata.obs["topics_explained"]
    nmfscale.tl.topic_quality(adata)
    nmfscale.tl.topic_quality(adata)
    nmfscale.tl.topics(adata, 3, **FIT)  # removes what tl.topic_quality has written
    assert "topics_explained" not in adata.obs and "topics_explained" not in adata.var
    adata.obsm["X_topics"] = np.ones((30, 7))  # of the user
    with pytest.raises(ValueError, match=r"adata.obsm\['X_topics'\] is not part"):
        nmfscale.tl.topics(adata, 3, **FIT)


def test_keys_of_other_tools(model):
    adata = cells()
    nmfscale.tl.topics(adata, 2, **FIT)
    numbers = {"random_state": 0, "n_starts": 2}
    for key in BAD_KEYS:
        with pytest.raises(ValueError, match="must be text without '/'"):
            nmfscale.tl.select_k(adata, [2], key_added=key, **numbers)
        if key is not None:
            with pytest.raises(ValueError, match="must be text without '/'"):
                nmfscale.tl.transform(adata, model, key_added=key)
    with pytest.raises(ValueError, match="not a result of this function"):
        nmfscale.tl.select_k(adata, [2], key_added="topics", **numbers)
    with pytest.raises(ValueError, match=r"obsm\['X_harmony'\]"):
        nmfscale.tl.transform(adata, model, key_added="harmony")


def test_the_shell_checks_before_the_fit(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells().write_h5ad("cells.h5ad")
    (tmp_path / "text.h5ad").write_text("text")
    words = ["fit", "cells.h5ad", "-k", "2", "-o", "model.h5", "--write-h5ad"]
    for key in [*BAD_KEYS[:-1], "harmony", "PCs"]:
        assert main([*words, key]) == 1
        message = capsys.readouterr().err
        assert "--write-h5ad=" in message and "key" in message
    backed = anndata.read_h5ad("cells.h5ad", backed="r")
    assert main([*words, "topics"]) == 1 and "has it open" in capsys.readouterr().err
    backed.file.close()
    assert main(["fit", "text.h5ad", *words[2:], "topics"]) == 1
    assert "is not an .h5ad file" in capsys.readouterr().err
    assert not (tmp_path / "model.h5").exists()
