"""Types of arguments that many public functions take, and checks of options and numbers.

Objects of optional libraries are described by what is used of them, so that neither this package
nor a type checker needs the libraries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.random import Generator, RandomState, SeedSequence
from numpy.typing import ArrayLike

from .base import CountMatrix
from .names import shown


class SparseLike(Protocol):
    """Sparse matrix or array of SciPy, or of pydata."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of columns."""
        ...

    def tocsr(self) -> Any:
        """Return compressed sparse rows."""
        ...


class AnnDataLike(Protocol):
    """AnnData or MuData object."""

    @property
    def obs(self) -> Any:
        """Columns with a value for each observation."""
        ...

    @property
    def var(self) -> Any:
        """Columns with a value for each variable."""
        ...

    @property
    def n_obs(self) -> int:
        """Number of observations."""
        ...

    @property
    def var_names(self) -> Any:
        """Names of the variables."""
        ...


class Client(Protocol):
    """Client of a Dask cluster: `distributed.Client`."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Run a function on a worker."""
        ...

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        """Return results of workers."""
        ...

    def scheduler_info(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the scheduler knows of the workers."""
        ...


class EstimatorLike(Protocol):
    """Estimator of scikit-learn, such as a model of this package."""

    def get_params(self, deep: bool = True) -> Any:
        """Return parameters by name."""
        ...


class PipelineLike(EstimatorLike, Protocol):
    """Pipeline of scikit-learn."""

    steps: Any


class ResultLike(Protocol):
    """Result of a function of this package, such as a test: a table, and a file."""

    def to_frame(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result as a DataFrame."""
        ...

    def save(self, path: Any) -> None:
        """Write the result to a file."""
        ...


PathLike: TypeAlias = str | os.PathLike[str]
# A matrix of counts, in memory or in a file. DataFrames and dask arrays are array-like; the last
# kind is a corpus of gensim: for each document, pairs of the number of a word and its count.
CountTable: TypeAlias = (
    ArrayLike | SparseLike | AnnDataLike | CountMatrix | PathLike
    | Iterable[Sequence[tuple[int, float]]]
)  # fmt: skip
# Counts, or several tables to join: a list, or a dict by labels.
CountsLike: TypeAlias = CountTable | Sequence[CountTable] | Mapping[str, CountTable]
# Chosen samples or features: True and False, positions or names; by name; or the name of a column.
MaskLike: TypeAlias = ArrayLike | Mapping[Any, bool] | str
# Weights of single counts.
WeightsLike: TypeAlias = ArrayLike | SparseLike | Literal["nan"]
# Seeds of a fit, as in scikit-learn; seeds of a job with many numbered replicates.
RandomStateLike: TypeAlias = int | RandomState
SeedLike: TypeAlias = RandomStateLike | Generator | SeedSequence
FloatType: TypeAlias = Literal["float32", "float64"] | type[np.floating[Any]] | np.dtype[Any]
# One topic by its number or its name, or several of them.
Topic: TypeAlias = int | str
Topics: TypeAlias = Topic | Sequence[Topic]
# Weights of topics within groups, or of groups within topics.
WeightKind: TypeAlias = Literal["TwR", "RwT"]
# Called after each iteration with a record of the progress; a true value ends the fit.
Callback: TypeAlias = Callable[[dict[str, float]], Any]


def check_option(name: str, value: Any, options: Any) -> None:
    """Refuse a value that is none of the options, a Literal type."""
    if not isinstance(value, str) or value not in get_args(options):
        choices = ", ".join(map(repr, get_args(options)))
        raise ValueError(f"{name}={shown(value)} is not one of {choices}.")


def positive_number(name: str, value: Any, wanted: str = "a positive number") -> float:
    """Return a positive, finite number, or refuse the value."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if isinstance(value, bool) or not 0 < number < np.inf:
        raise ValueError(f"{name}={shown(value)}: {wanted} is needed.")
    return number
