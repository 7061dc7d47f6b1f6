"""One pass over the rows of counts that makes an array with a row for each of them.

Loadings of new samples, their posteriors and their log-probabilities are computed in this way: in
this process or on a Dask cluster, block by block, with the same bits. No array with a row for each
sample is in memory unless the caller makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import numpy as np

from ..counts.aligned import aligned_empty
from ..counts.base import CountMatrix
from ..engine.local import LocalExecutor
from ..engine.protocol import Executor, Needs, Step
from ..engine.session import session_of_fit
from .factors import Array, from_lanes, to_lanes

Finish = Callable[[slice, Array], Array]


@dataclass(frozen=True)
class RowsPass:
    """Steps to run on every block of the counts, one after the other, and their output.

    Attributes
    ----------
    counts : CountMatrix of shape (n, m)
    steps : tuple of Step
        Arrays that hold features are in the order of ``counts.layout().column_order``.
    output : str
        Name of the row array to return: (lanes, stride), or (lanes,).
    width : int
        Number of columns to return.
    inputs : mapping of str to ndarray or sequence of ndarray
        Row arrays that the steps use, as `Executor.put` takes them: see `LaneBlocks`.
    needs : Needs
        `row` is for each row of a block, `shared` for everything that does not depend on the number
        of rows.
    n_threads : int
        Number of threads of this process.
    finish : tuple of callable
        Functions ``finish(rows, values)`` that are applied one after the other to the output of
        each block.
    """

    counts: CountMatrix
    steps: tuple[Step, ...]
    output: str
    width: int = 1
    inputs: Mapping[str, Array | Sequence[Array]] = field(default_factory=dict)
    needs: Needs = Needs(0, 0, 0)
    n_threads: int = 1
    finish: tuple[Finish, ...] = ()

    def then(self, function: Finish) -> Self:
        """Return the same pass with one more function applied to the output of each block."""
        return replace(self, finish=(*self.finish, function))

    def in_lanes(self, client: Any = None, **options: Any) -> Iterator[tuple[Any, Array]]:
        """Yield the blocks of the layout and their output in lane order, one after the other.

        The work is done on the workers of `client`, or without one in this process; `options` are
        those of `session_of_fit`.
        """
        needs = self.needs._replace(task_row=self.needs.row, task_shared=self.needs.shared)
        with session_of_fit(client, self.counts, needs, hint="", **options) as (counts, session):
            executor: Executor
            if session is None:
                executor = LocalExecutor(counts.layout(self.n_threads), self.n_threads)
            else:
                executor = session.executor(cast(Any, counts), self.n_threads)
            yield from self._run(executor)

    def _run(self, executor: Executor) -> Iterator[tuple[Any, Array]]:
        for name, array in self.inputs.items():
            executor.put(name, array)
        yield from executor.stream(self.output, *self.steps)
        executor.drop(*self.inputs)

    def blocks(
        self, client: Any = None, **options: Any
    ) -> Generator[tuple[slice, Array], None, None]:
        """Yield the rows of one block after the other, and their output in the order of the rows.

        Parameters are those of `in_lanes`.
        """
        yield from self._in_order(self.in_lanes(client, **options))

    def _in_order(
        self, blocks: Iterator[tuple[Any, Array]]
    ) -> Generator[tuple[slice, Array], None, None]:
        layout = self.counts.layout(self.n_threads)
        for place, values in blocks:
            order = layout.row_order[place.first : place.last]
            order = np.where(order < 0, -1, order - place.start)
            n_rows = place.stop - place.start
            values_of_rows = from_lanes(values.reshape(len(values), -1), order, n_rows, self.width)
            values_of_rows = values_of_rows if values.ndim > 1 else values_of_rows[:, 0]
            rows = slice(place.start, place.stop)
            for function in self.finish:
                values_of_rows = function(rows, values_of_rows)
            yield rows, values_of_rows

    def gather(self, client: Any = None, **options: Any) -> Array:
        """Return the output of all rows; parameters are those of `in_lanes`."""
        return self._gathered(self.blocks(client, **options))

    def gather_on(self, executor: Executor) -> Array:
        """Return the output of all rows by an executor of the same counts, as in a fit.

        It is on disk where the row arrays of the executor are.
        """
        return self._gathered(self._in_order(self._run(executor)), executor.folder)

    def _gathered(self, blocks: Iterator[tuple[slice, Array]], folder: str | None = None) -> Array:
        rows, block = next(blocks)
        out = aligned_empty((self.counts.shape[0], *block.shape[1:]), block.dtype, folder)
        out[rows] = block
        for rows, block in blocks:
            out[rows] = block
        return out


class LaneBlocks(Sequence[Array]):
    """Rows (n, K) in lane order as a list of blocks, each computed on access.

    `options` are those of `to_lanes`.
    """

    def __init__(self, layout: Any, plain: Array, stride: int, dtype: Any, **options: Any):
        self._layout, self._plain = layout, plain
        self._stride, self._dtype, self._options = stride, dtype, options

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._layout.blocks)

    def __getitem__(self, number: Any) -> Any:
        """Return the rows of a block in lane order."""
        place = self._layout.blocks[number]
        order = self._layout.row_order[place.first : place.last]
        return to_lanes(self._plain, order, self._stride, self._dtype, **self._options)
