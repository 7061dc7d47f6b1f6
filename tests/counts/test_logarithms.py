"""Log-normalised values are refused at every door; other fractions are not."""

import numpy as np
import pytest
import scipy.sparse as sp
from shell import failure, run

import nmfscale
from nmfscale.counts.logarithms import looks_logarithmic

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(RNG.gamma(0.4, 2.0, (60, 80)))
TOTALS = COUNTS.sum(axis=1, keepdims=True)
NORMALISED = 1e4 * COUNTS / TOTALS
OTHERS = {
    "shares": COUNTS / TOTALS,
    "normalised": NORMALISED,
    "ambient RNA": np.maximum(COUNTS - 0.13 * COUNTS.mean(axis=0), 0),
    "TF-IDF": COUNTS / TOTALS * np.log(60 / (COUNTS > 0).sum(axis=0)),
    "halves": COUNTS / 2,
    "uniform": RNG.random((60, 80)),
    "square roots": np.sqrt(COUNTS),
    "small shares": COUNTS / TOTALS / 1000,
}
LOGARITHMS = {
    "scanpy": np.log1p(NORMALISED).astype(np.float32),
    "selected": np.log1p(NORMALISED)[:, 50:],
    "of counts": np.log1p(COUNTS),
    "base 2": np.log2(1 + 1e6 * COUNTS / TOTALS),
}


@pytest.mark.parametrize("name", [*OTHERS, *LOGARITHMS])
def test_logarithms_are_told_from_other_fractions(name):
    values = (OTHERS | LOGARITHMS)[name]
    counts = nmfscale.as_counts(sp.csr_array(values), integer="allow")
    assert looks_logarithmic(counts) == (name in LOGARITHMS)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_door_refuses_them(tmp_path, capsys):
    anndata = pytest.importorskip("anndata")
    X, few = sp.csr_array(LOGARITHMS["scanpy"]), {"max_iter": 2, "random_state": 0}
    for name in ("logs.npz", "more.npz"):
        sp.save_npz(tmp_path / name, X)
    adata = anndata.AnnData(sp.csr_matrix(X))
    for use in (
        lambda: nmfscale.TopicModel(2).fit(X),
        lambda: nmfscale.LDA(2).fit(tmp_path / "logs.npz"),
        lambda: nmfscale.as_counts(X),
        lambda: nmfscale.tl.topics(adata, 2),
        lambda: nmfscale.tl.select_k(adata, [2]),
        lambda: nmfscale.concat([tmp_path / "logs.npz", tmp_path / "more.npz"]),
        lambda: nmfscale.select_k(nmfscale.TopicModel(), X, [2], held_out="samples"),
        lambda: nmfscale.stability(nmfscale.TopicModel(2), X, n_starts=2),
    ):
        with pytest.raises(ValueError, match="looks log-normalised: .*(Pass the raw|No layer)"):
            use()
    out = tmp_path / "model.h5"
    words = ["fit", tmp_path / "logs.npz", "-k", 2, "-o", out, "--max-iter", 2, "-q"]
    assert "logs.npz looks log-normalised" in failure(capsys, *words)
    assert run(*words, "--model", "frobenius") == 0
    nmfscale.TopicModel(2, integer="allow", **few).fit(X)
    with pytest.warns(UserWarning, match="not whole numbers"):
        nmfscale.TopicModel(2, **few).fit(OTHERS["ambient RNA"])
        nmfscale.tl.topics(anndata.AnnData(OTHERS["TF-IDF"]), 2, **few)
