"""What the type checker knows of the compiled module."""

from typing import Any

from numpy.typing import NDArray

_Array = NDArray[Any]

def count_values(data: _Array, found: _Array) -> None: ...
def weigh(index: _Array, count: _Array, weight: _Array, out: _Array, n_threads: int) -> None: ...
def sum_rows(indptr: _Array, data: _Array, table: _Array, out: _Array) -> None: ...
def count_columns(
    indptr: _Array,
    indices: _Array,
    order: _Array,
    cuts: _Array,
    found: _Array,
    n_threads: int,
) -> None: ...
def place_rows(
    indptr: _Array,
    indices: _Array,
    data: _Array,
    order: _Array,
    column_position: _Array,
    offset: _Array,
    index: _Array,
    count: _Array,
    n_threads: int,
) -> None: ...
def place_columns(
    indptr: _Array,
    indices: _Array,
    data: _Array,
    order: _Array,
    cuts: _Array,
    place: _Array,
    index: _Array,
    count: _Array,
    n_threads: int,
) -> None: ...
