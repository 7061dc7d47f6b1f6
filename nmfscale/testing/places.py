"""What a model promises for counts in memory, in files and on a cluster: the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp

from ..engine.memory import Plan
from ..readers.convert import write_store
from .case import ModelCase, X, numbers

# Nonzeros of a block: the counts of the checks have several.
BLOCK = 900


@contextmanager
def small_blocks(n_nonzeros: int = BLOCK) -> Iterator[None]:
    """Cut counts into blocks of at most this many nonzeros."""
    with patch("nmfscale.counts.blocks.BLOCK_NONZEROS", n_nonzeros):
        yield


@contextmanager
def read_anew() -> Iterator[None]:
    """Read counts from their file in every iteration, whatever memory is free."""
    with patch("nmfscale.models.base.plan_fit", lambda *_, **__: Plan(0, False, None)):
        yield


def write_h5ad(path: Path) -> None:
    """Write the counts of the checks to a file of another program."""
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(sp.csr_matrix(X)).write_h5ad(path)


@dataclass(frozen=True)
class Places:
    """Fits a model to the counts in a place: "memory", "file", "store" or "cluster".

    Files are in `folder`, and are read in every iteration. `client` returns the client of a
    cluster. `limited` calls a function, and may give it a time limit.
    """

    folder: Path
    client: Callable[[], Any] = lambda: None
    limited: Callable[[Callable[[], Any]], Any] = field(default=lambda function: function())

    def source(self, place: str) -> Any:
        """Return the counts in a place, which is made when it is first needed."""
        if place == "memory":
            return X
        path = self.folder / ("counts.h5ad" if place == "file" else "counts.nmf")
        if not path.exists():
            write_h5ad(path) if place == "file" else write_store(X, path)
        return path

    def fit(
        self, place: str, case: ModelCase, fit_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Return a fit with these arguments and parameters."""
        fit_params = case.given | dict(fit_options or {})
        if place == "cluster":
            fit_params["client"] = self.client()
        if place == "memory":
            return case.make(**options).fit(X, **fit_params)
        source = self.source(place)
        model = case.make(**{"memory_limit": "1TB"} | options)  # else files are read as a whole
        with read_anew():
            return self.limited(lambda: model.fit(source, **fit_params))


class StopError(Exception):
    """Raised in the middle of a fit."""


def stop_at(iteration: int) -> Callable[[Mapping[str, Any]], None]:
    """Return a callback that stops a fit."""

    def callback(record: Mapping[str, Any]) -> None:
        if record["iteration"] == iteration:
            raise StopError

    return callback


def check_place(case: ModelCase, places: Places, place: str, n_threads: int = 2) -> None:
    """Check that a fit has the same bits as in memory, with any number of threads."""
    one, other = places.fit("memory", case), places.fit(place, case, n_threads=n_threads)
    assert numbers(other) == numbers(one)
    assert (other.history_["bytes_read"][-1] > 0) == (place != "memory")


def check_resumed(case: ModelCase, places: Places, order: Sequence[str]) -> None:
    """Check that a fit that is stopped and resumed in other places has the same numbers."""
    if not case.can("checkpoint") or ("cluster" in order and not case.can("client")):
        pytest.skip("this model has no checkpoints, or does not fit on a cluster")
    state: dict[str, Any] = {"checkpoint": places.folder / "state", "checkpoint_every": 0}
    method = type(case.make()).method_class
    kind = case.make().method_class if isinstance(method, property) else method
    for n_threads, (place, iteration) in enumerate(zip(order, (5, 9, 14), strict=False), 1):
        with pytest.raises(StopError):
            places.fit(place, case, state, callback=stop_at(iteration), n_threads=n_threads)
        state["resume"] = True
    with patch.object(kind, "start", side_effect=AssertionError("a resumed fit starts anew")):
        resumed = places.fit(order[-1], case, state)
    assert numbers(resumed) == numbers(places.fit("memory", case))
    # the clock goes on, too
    assert np.all(np.diff(resumed.history_["seconds"]) >= 0)


def of_new_samples(
    case: ModelCase, fitted: Any, source: Any, out: Path | None = None, **how: Any
) -> list[bytes]:
    """Return what a fitted model tells of samples, as bytes."""
    results = [fitted.transform(source, out=out, **how), fitted.score(source, **case.given, **how)]
    if hasattr(fitted, "perplexity"):
        results.append(fitted.perplexity(source, **how))
        results.append(fitted.score(source, completion=0.4, random_state=0, **how))
    if hasattr(fitted, "predict_proba"):
        results += [fitted.predict(source, **how) == "a", fitted.predict_proba(source, **how)]
    return [np.asarray(values).tobytes() for values in results]


def check_new_samples(case: ModelCase, places: Places, place: str) -> None:
    """Check that loadings and scores of samples in a file are those of samples in memory."""
    fitted, source = places.fit("memory", case), places.source(place)
    fitted.set_params(memory_limit="1TB", n_threads=3)  # else files are read as a whole
    there = of_new_samples(case, fitted, source, places.folder / "loadings.npy")
    fitted.set_params(memory_limit=None, n_threads=1)
    assert there == of_new_samples(case, fitted, X)


def check_new_samples_on_cluster(case: ModelCase, places: Places) -> None:
    """Check that loadings and scores on a cluster are those in this process."""
    fitted, store = places.fit("memory", case), places.source("store")
    out, client = places.folder / "loadings.npy", places.client()
    results = places.limited(lambda: of_new_samples(case, fitted, store, out, client=client))
    assert results == of_new_samples(case, fitted, X)
