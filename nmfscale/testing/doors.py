"""What functions that take any model do with this one: AnnData, tests, further fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ..inference.choice.stability import stability
from ..inference.choice.topic_quality import topic_quality
from ..inference.regression.permutation import permutation_test
from ..inference.replicates.refit import bootstrap_fit
from ..inference.results.files import load_result
from ..models.arguments.starts import has_random_starts, starts_at_fits
from .case import ModelCase, X, numbers

GROUPS = np.resize(["one", "two"], len(X))


def check_annotated(case: ModelCase, folder: Path) -> None:
    """Check that a fit of an AnnData object is read from it, also from a file, and is tested."""
    anndata = pytest.importorskip("anndata")
    from .. import get, tl

    adata = anndata.AnnData(X.astype(np.float32), obs={"group": GROUPS})
    options = case.make(max_iter=5).get_params() | case.given
    K = options.pop("n_components")
    tl.topics(adata, K, model=case.estimator, **options)
    tl.permutation_test(adata, "group", n_permutations=19, random_state=0)
    adata.write_h5ad(folder / "cells.h5ad")
    again = anndata.read_h5ad(folder / "cells.h5ad")
    model = get.model(again)
    assert type(model) is case.estimator
    assert (model.loadings_ == adata.obsm["X_topics"]).all()
    assert numbers(get.model(adata)) == numbers(model)
    one, other = (get.result(data, "permutation_test").overall for data in (adata, again))
    assert one.pvalue == other.pvalue > 0


def check_inference(case: ModelCase, folder: Path) -> None:
    """Check that tests and measures of topics take the fitted model."""
    fitted = case.fitted()
    test = permutation_test(fitted, GROUPS, n_permutations=19, random_state=0)
    assert 0 < test.overall.pvalue <= 1
    assert len(topic_quality(fitted, X, n_top=5).npmi) == len(fitted.components_)


def check_bootstrap(case: ModelCase, folder: Path) -> None:
    """Check the bootstrap of fits; skipped if `fit` takes no start."""
    if not starts_at_fits(case.make()):
        pytest.skip("fit takes no start: loadings= and components=, or those in start_arguments")
    fitted = case.fitted(tol=1e-3, max_iter=200)
    result = bootstrap_fit(fitted, X, n_replicates=2, groups=GROUPS, random_state=0)
    assert np.isfinite(result.components.std_error).all()
    result.save(folder / "result.h5")
    assert (load_result(folder / "result.h5").cosines == result.cosines).all()


def check_stability(case: ModelCase, folder: Path) -> None:
    """Check that fits from several starts differ; skipped if the model has no random starts."""
    if not has_random_starts(case.make()):
        pytest.skip("the model has no random starts: no parameter n_init, or labels")
    model = case.made_at_random(max_iter=5)
    result = stability(model, X, 3, random_state=0)
    assert len(set(result.objective)) == 3 and result.topics.shape[1:] == (
        case.n_components, X.shape[1],
    )  # fmt: skip
