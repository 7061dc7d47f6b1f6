"""Methods for counts with batches: one function each, with the same arguments and result.

Peers run with their default settings, or those of their tutorials. Each works on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from nmfscale import TopicModel

Array = np.ndarray
N_TOPICS = 6
N_PCS = 30
# Its default for so few cells is 400, which takes a quarter of an hour on one thread.
N_EPOCHS = 100
# Proportions below this are as good as 0: logarithms of smaller ones would dominate distances.
LEAST_PROPORTION = 1e-3


@dataclass
class Embedded:
    """What a method makes of the samples.

    `embedding` (n, d) and `clusters` (n,) describe the samples. `log_ratio` (m,) is the estimated
    logarithm of e_1 / e_0 of the features, None if the method has none, and `shape` the estimated
    shape of their prior.
    """

    embedding: Array
    clusters: Array
    log_ratio: Array | None = None
    shape: float | None = None
    seconds: float = float("nan")


def embedded_topics(model: TopicModel) -> Embedded:
    """Return logarithms of proportions, and leading topics as clusters."""
    proportions = model.loadings_
    logarithms = np.log(np.maximum(proportions, LEAST_PROPORTION))
    return Embedded(logarithms, proportions.argmax(axis=1))


def by_kmeans(embedding: Array, seed: int) -> Embedded:
    """Return an embedding with as many clusters as the topic models have topics."""
    kmeans = KMeans(N_TOPICS, n_init=10, random_state=seed)
    return Embedded(embedding, kmeans.fit_predict(embedding))


def uncorrected(X: sp.csr_matrix, batch: Array, seed: int, n_topics: int = N_TOPICS) -> Embedded:
    """Fit a topic model that knows nothing of batches."""
    return embedded_topics(TopicModel(n_topics, random_state=seed, n_threads=1).fit(X))


def with_batches(X: sp.csr_matrix, batch: Array, seed: int, n_topics: int = N_TOPICS) -> Embedded:
    """Fit a topic model with efficiencies of batches."""
    model = TopicModel(n_topics, random_state=seed, n_threads=1).fit(X, batch=batch)
    result = embedded_topics(model)
    efficiencies = np.maximum(model.batch_efficiencies_, 1e-10)
    result.log_ratio = np.log(efficiencies[1] / efficiencies[0])
    result.shape = model.batch_shape_
    return result


def divided(X: sp.csr_matrix, batch: Array, seed: int) -> Embedded:
    """Divide counts by the ratios of the frequencies of features, then fit a topic model."""
    of_batch = np.array([X[batch == b].sum(axis=0).A1 for b in np.unique(batch)]) + 0.5
    ratios = of_batch / of_batch.sum(axis=1, keepdims=True)
    ratios /= np.exp(np.log(ratios).mean(axis=0))
    codes = np.unique(batch, return_inverse=True)[1]
    corrected = sp.csr_matrix(X, dtype=float, copy=True)
    corrected.data /= ratios[np.repeat(codes, np.diff(X.indptr)), X.indices]
    result = uncorrected(corrected, batch, seed)
    result.log_ratio = np.log(ratios[1] / ratios[0])
    return result


def principal_components(X: sp.csr_matrix, seed: int) -> Array:
    """Return principal components of log-normalised, standardised features."""
    logarithms = np.log1p(X.toarray() / X.sum(axis=1).A1[:, None] * 1e4)
    logarithms -= logarithms.mean(axis=0)
    logarithms /= np.maximum(logarithms.std(axis=0), 1e-12)
    pca = PCA(min(N_PCS, *X.shape), random_state=seed)
    return pca.fit_transform(np.clip(logarithms, -10, 10))


def pca(X: sp.csr_matrix, batch: Array, seed: int) -> Embedded:
    """Cluster principal components, without a correction."""
    return by_kmeans(principal_components(X, seed), seed)


def harmony(X: sp.csr_matrix, batch: Array, seed: int) -> Embedded:
    """Correct principal components by Harmony, with as many iterations as it needs.

    With its default `epsilon_harmony` it ends after two iterations, and batches stay apart.
    """
    import harmonypy
    import pandas as pd

    table = pd.DataFrame({"batch": batch.astype(str)})
    fitted = harmonypy.run_harmony(
        principal_components(X, seed), table, "batch", max_iter_harmony=30, epsilon_harmony=1e-5,
        random_state=seed, verbose=False, ncores=1,
    )  # fmt: skip
    corrected = np.asarray(fitted.Z_corr)
    return by_kmeans(corrected if len(corrected) == len(batch) else corrected.T, seed)


def scvi(X: sp.csr_matrix, batch: Array, seed: int) -> Embedded:
    """Fit the variational autoencoder of scvi-tools, without a GPU."""
    import anndata
    import scvi as tools
    import torch

    torch.set_num_threads(1)
    tools.settings.seed = seed
    tools.settings.verbosity = 40
    adata = anndata.AnnData(X.astype(np.float32), obs={"batch": batch.astype(str)})
    tools.model.SCVI.setup_anndata(adata, batch_key="batch")
    model = tools.model.SCVI(adata)
    model.train(
        max_epochs=N_EPOCHS, accelerator="cpu", enable_progress_bar=False, logger=False
    )  # fmt: skip
    return by_kmeans(model.get_latent_representation(), seed)


@dataclass(frozen=True)
class Method:
    """A method, and the package that it needs."""

    fit: Callable[..., Embedded]
    package: str = "nmfscale"

    @property
    def missing(self) -> str:
        """Return the reason why the method cannot run, or an empty string."""
        try:
            version(self.package)
        except PackageNotFoundError:
            return f"{self.package} is not installed"
        return ""


METHODS = {
    "uncorrected": Method(uncorrected),
    "divided": Method(divided),
    "batch=": Method(with_batches),
    "PCA": Method(pca, "scikit-learn"),
    "Harmony": Method(harmony, "harmonypy"),
    "scVI": Method(scvi, "scvi-tools"),
}


def run(name: str, X: sp.csr_matrix, batch: Array, seed: int) -> Embedded:
    """Return the result of a method, with the seconds of processor time that it took."""
    began = time.process_time()
    result = METHODS[name].fit(X, batch, seed)
    result.seconds = time.process_time() - began
    return result
