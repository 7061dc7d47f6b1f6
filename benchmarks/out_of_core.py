"""Counts larger than memory: packing, and fits from the packed store compared with fits in memory.

Counts are simulated from the factors of a real fit of pbmc_facs, one block of rows at a time, and
packed without ever being in memory as a whole. Each fit runs in its own process, alternately, and
reports its seconds per iteration and its peak memory.

    python benchmarks/out_of_core.py                         1e8 nonzeros, in memory and from a file
    python benchmarks/out_of_core.py --nonzeros 1e8 1e9      and 1e9, only from the file
    python benchmarks/out_of_core.py --nonzeros 1e9 --memory-limit 2GB --layouts 1x2 2x1
                                                             and on clusters of this machine
    python benchmarks/out_of_core.py --nonzeros 1e6          a smoke run

Writes results/out_of_core.csv and results/out_of_core.png.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import problems
import report

from nmfscale.readers.streams.stream import RowStream

N_ITER = 10
# Above this number of nonzeros, counts are fitted only from the file.
MOST_IN_MEMORY = 3e8


class DrawnRows(RowStream):
    """Rows simulated from a fit, reproducible by position; used in place of a file reader."""

    def __init__(self, L, F, n_rows: int, groups: int):
        self.L, self.F, self.n_groups = L, np.ascontiguousarray(F), groups
        self.shape, self.dtype, self.subject = (n_rows, len(F)), np.dtype(np.int32), "drawn counts"
        self.about: dict[str, object] = {}  # neither names nor notes
        self._made: dict[int, object] = {}

    def _group(self, number: int):
        """Return 1,000 rows; after the first `groups` thousands, they repeat in a new order."""
        from nmfscale.datasets.simulate import simulate_from_factors

        source = number % self.n_groups
        if source not in self._made:
            rows = np.random.default_rng([1, source]).integers(len(self.L), size=1000)
            self._made[source] = simulate_from_factors(self.L[rows], self.F, random_state=source)
        order = np.random.default_rng([2, number]).permutation(1000)
        return self._made[source][order]

    def rows(self, start: int, stop: int):
        """Return rows start:stop in compressed form."""
        import scipy.sparse as sp

        from nmfscale.counts.row_ranges import RowRange
        from nmfscale.counts.validation import CompressedRows

        first, last = start // 1000, -(-stop // 1000)
        X = sp.vstack([self._group(g) for g in range(first, last)], format="csr")
        X = X[start - first * 1000 : stop - first * 1000]
        X.sort_indices()
        return CompressedRows(RowRange(start, X.indptr, X.indices, X.data), X.shape, True, None, [])

    def chunks(self, max_bytes: int):
        """Yield all rows, a few thousand at a time."""
        for start in range(0, self.shape[0], 5000):
            yield self.rows(start, min(start + 5000, self.shape[0]))


def pack_drawn(L, F, nonzeros: float, path: Path, threads: int) -> dict:
    """Simulate and pack counts; the seconds of packing exclude the simulation."""
    from nmfscale.datasets.simulate import simulate_from_factors
    from nmfscale.readers.streams.file_counts import FileCounts
    from nmfscale.storage.store_writer import pack

    sample = np.linspace(0, len(L) - 1, min(len(L), 500)).astype(int)
    per_row = simulate_from_factors(L[sample], F, random_state=0).nnz / len(sample)
    n_rows = max(1, round(nonzeros / per_row))
    drawn = DrawnRows(L, F, n_rows, groups=max(1, min(n_rows // 1000, 20)))
    begun = time.perf_counter()
    counts = FileCounts(drawn)
    looked = time.perf_counter()
    pack(counts, path, n_threads=threads)
    packed = time.perf_counter()
    for _ in drawn.chunks(0):
        pass
    drawing = time.perf_counter() - packed
    return {
        "rows": n_rows, "nonzeros": counts.nnz, "store_bytes": path.stat().st_size,
        "bytes_per_nonzero": path.stat().st_size / counts.nnz,
        "seconds_looking": looked - begun - drawing, "seconds_packing": packed - looked - drawing,
        "packing_bytes_per_second": path.stat().st_size / max(packed - looked - drawing, 1e-9),
        "packing_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


FIT = """
import json, sys, time
from contextlib import nullcontext
import numpy as np
from nmfscale import PoissonNMF
from nmfscale.results import StoredCounts
benchmarks, path, where, limit, dtype, n_iter, threads = sys.argv[1:]
sys.path.append(benchmarks)
from cluster_layouts import cluster_of
from peers import Memory

def resource_of_worker():
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

counts = StoredCounts(path)
if where == "memory":
    counts = counts.in_memory()
n, m = counts.shape
rng = np.random.default_rng(0)
F = rng.uniform(0.1, 1, (m, {K})).astype(dtype)
L = (counts.row_totals[:, None] / F.sum() * rng.uniform(0.5, 1.5, (n, {K}))).astype(dtype)
memory, of_workers = Memory(), []
layout = where.split("x")  # workers x threads, or a place of this process
with cluster_of(*map(int, layout)) if len(layout) == 2 else nullcontext() as client:
    begun = time.perf_counter()
    model = PoissonNMF({K}, max_iter=int(n_iter), tol=0, dtype=dtype,
                       n_threads=None if client else int(threads),
                       memory_limit=limit if where == "file" else None).fit(
        counts, loadings=L, components=F.T, client=client)
    seconds = time.perf_counter() - begun
    if client:
        of_workers = client.run(resource_of_worker).values()
history = model.history_
print(json.dumps({{
    "seconds": seconds, "seconds_per_iteration": float(np.median(np.diff(history["seconds"]))),
    "loglik": float(model.loglik_), "bytes_read": int(history["bytes_read"][-1]),
    "peak_bytes": memory.read("VmHWM"), "worker_peak_bytes": max(of_workers, default=0),
    "csr_bytes": int(counts.nnz * 8 + 8 * n),
    "digest": __import__("hashlib").sha256(model.components_.tobytes()).hexdigest()[:16],
}}))
"""


def fit(path: Path, where: str, limit: str, dtype: str, K: int, threads: int) -> dict:
    """Fit in a separate process."""
    words = [sys.executable, "-P", "-c", FIT.format(K=K)]
    words += [str(report.HERE), str(path), where, limit, dtype, str(N_ITER), str(threads)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def draw(rows: list[dict], path: Path) -> None:
    """Plot seconds per iteration and nonzero, and memory, in memory and from a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    labels = [f"{row['where']}\n{row['nonzeros'] / 1e6:,.0f} million" for row in rows]
    per_nonzero = [1e9 * row["seconds_per_iteration"] / row["nonzeros"] for row in rows]
    left.bar(labels, per_nonzero, color="C0")
    left.set_ylabel("ns per iteration and nonzero")
    right.bar(labels, [row["peak_bytes"] / 1e9 for row in rows], color="C1", label="peak memory")
    right.plot(labels, [row["csr_bytes"] / 1e9 for row in rows], "k_", ms=30, label="counts as CSR")
    right.set_ylabel("GB")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", default="pbmc_facs", help="problem to simulate from")
    parser.add_argument("--nonzeros", type=float, nargs="+", default=[1e8])
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--layouts", nargs="+", default=[], metavar="WORKERSxTHREADS",
                        help="clusters of this machine that fit the same store")  # fmt: skip
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--memory-limit", nargs="+", default=["900MB", "2GB"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="folder for stores; default: temporary")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    from nmfscale import PoissonNMF

    source = problems.load_counts(arguments.problem)
    model = PoissonNMF(arguments.topics, max_iter=30, tol=0, random_state=1).fit(source)
    L, F = model.loadings_, model.components_.T
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for nonzeros, limit in zip(arguments.nonzeros, arguments.memory_limit, strict=False):
            path = Path(folder, "counts.nmf")
            packed = pack_drawn(L, F, nonzeros, path, arguments.threads)
            print(packed, flush=True)
            places = ["memory", "file"] if nonzeros <= MOST_IN_MEMORY else ["file"]
            places += arguments.layouts
            found: dict[str, list[dict]] = {where: [] for where in places}
            for _ in range(arguments.repeats if nonzeros <= MOST_IN_MEMORY else 1):
                for where in places:
                    found[where].append(
                        fit(path, where, limit, arguments.dtype, arguments.topics,
                            arguments.threads)
                    )  # fmt: skip
                    print(where, found[where][-1], flush=True)
            digests = {turn["digest"] for turns in found.values() for turn in turns}
            if len(digests) > 1:
                raise AssertionError(f"the bits of the fits differ: {found}")
            for where, turns in found.items():
                middle = {
                    name: float(np.median([turn[name] for turn in turns]))
                    for name in ("seconds", "seconds_per_iteration")
                }
                rows.append(packed | {"where": where, "limit": limit} | turns[-1] | middle)
    report.write_csv(arguments.results / "out_of_core.csv", rows)
    draw(rows, arguments.results / "out_of_core.png")


if __name__ == "__main__":
    main()
