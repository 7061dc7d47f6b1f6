"""Differences of features between topics: seconds beside a fit and statsmodels, size, memory.

    python benchmarks/differential.py                all parts: pbmc_facs, 16,791 genes, 6 topics
    python benchmarks/differential.py --parts null   one part: speed, null, memory; others are kept
    python benchmarks/differential.py --smoke        a few seconds, writes nothing

speed: processor seconds of a TopicModel fit, of differential_features (log-fold changes, z, p of
all pairs of topics, shrinkage) and of Poisson regressions with identity link by statsmodels, one
thread each; the ranks of known marker genes. null: share of pairwise tests at 5% that reject, by
the total counts of the features: for features without differences, and for features that are three
times as frequent in one topic; also with the pseudo-counts of fastTopics, 0.01. memory: peak of a
process that tests 23,000 features of 100,000 samples in a packed store with memory_limit="2GB".

Writes results/differential.csv, results/differential.png and the table in README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

import numpy as np
import problems
import report
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nmfscale

MARKERS = ("<!-- differential:start -->", "<!-- differential:end -->")
PARTS = ["speed", "null", "memory"]
GENES = "CD3D", "CD79A", "NKG7", "LYZ", "S100A8"
LIMIT = "2GB"
CHILD = """
import json, resource, sys, time
import numpy as np, nmfscale
store, loadings, limit = sys.argv[1:]
start = time.perf_counter()
found = nmfscale.differential_features(np.load(loadings), store, memory_limit=limit)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([time.perf_counter() - start, peak, len(found.features)]))
"""


def cpu_seconds(function, *words, **options):
    """Return the processor seconds of a call, and its result."""
    start = time.process_time()
    found = function(*words, **options)
    return time.process_time() - start, found


def speed(smoke: bool, repeats: int) -> tuple[list[dict], object]:
    """Time a fit, the tests of all features, and statsmodels, in turn."""
    name = "simulated-small" if smoke else "pbmc_facs"
    X, K = problems.load_counts(name), 4 if smoke else 6
    counts, times = nmfscale.as_counts(X), {}
    for _ in range(repeats):
        taken, model = cpu_seconds(
            nmfscale.TopicModel(K, n_init=1, random_state=0, n_threads=1).fit, counts
        )
        times.setdefault("TopicModel fit", []).append(taken)
        taken, found = cpu_seconds(nmfscale.differential_features, model, counts, n_threads=1)
        times.setdefault("differential_features", []).append(taken)
    rows = [{"part": "speed", "what": f"{what}, seconds", "value": median(each)}
            for what, each in times.items()]  # fmt: skip
    ours = median(times["differential_features"])
    rows.append({"part": "speed", "what": "differential_features / fit",
                 "value": ours / median(times["TopicModel fit"])})  # fmt: skip
    theirs = statsmodels_seconds(X, model, 5 if smoke else 24)
    if theirs is not None:
        each = ours / X.shape[1]
        rows.append({"part": "speed", "what": "statsmodels, seconds a feature", "value": theirs})
        rows.append({"part": "speed", "what": "statsmodels / differential_features, a feature",
                     "value": theirs / each})  # fmt: skip
    return rows + ([] if smoke else ranks(found)), found


def statsmodels_seconds(X, model, n_features: int) -> float | None:
    """Return seconds of one regression by statsmodels, the mean over features of all sizes."""
    try:
        import statsmodels.api as sm
    except ImportError:
        print("statsmodels is not installed: no comparison")
        return None
    design = np.maximum(np.asarray(model.loadings_, float), 1e-10)
    design *= np.asarray(X.sum(axis=1)).reshape(-1, 1)
    totals = np.asarray(X.sum(axis=0)).ravel()
    known = np.flatnonzero(totals > 0)
    chosen = known[np.linspace(0, known.size - 1, n_features).astype(int)]
    family, columns = sm.families.Poisson(sm.families.links.Identity()), sp.csc_matrix(X)
    start = time.process_time()
    for j in chosen:
        x = columns[:, [j]].toarray().ravel().astype(float)
        mean = totals[j] / totals.sum()
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its parameters leave the domain
            try:
                sm.GLM(x, design, family=family).fit(start_params=np.full(design.shape[1], mean))
            except (ValueError, np.linalg.LinAlgError):
                continue  # it has no bounds and may leave the domain
    return (time.process_time() - start) / len(chosen)


def ranks(found) -> list[dict]:
    """Return the best rank by z of marker genes of blood cells."""
    import gzip

    with gzip.open(Path(os.environ["NMFSCALE_DATA"]) / "pbmc_facs_meta.json.gz") as file:
        names = json.load(file)["col_symbol"]
    names = list(names.values()) if isinstance(names, dict) else names
    rows = []
    for gene in GENES:
        j, K = names.index(gene), len(found.z)
        place = min(int(np.flatnonzero(found.order(k) == j)[0]) for k in range(K)) + 1
        rows.append({"part": "speed", "what": f"rank of {gene} in its topic", "value": place})
    return rows


def null(smoke: bool) -> list[dict]:
    """Return rejection rates of pairwise tests of features that do not differ, and that do."""
    rng = np.random.default_rng(0)
    n, m, K = (400, 300, 3) if smoke else (2000, 8000, 6)
    loadings = rng.dirichlet([0.3] * K, n)
    sizes, rows = rng.gamma(4, 500, n), []
    for what, fold in (("without differences", 1), ("three times as frequent", 3)):
        ratios = np.ones(K)
        ratios[1] = fold
        rates = sizes * (loadings * ratios).sum(axis=1)
        means = np.exp(rng.uniform(np.log(5), np.log(5000), m))
        X = sp.csr_matrix(
            np.concatenate([rng.poisson(rates[:, None] / rates.sum() * part)
                            for part in np.array_split(means, 20)], axis=1)
        )  # fmt: skip
        totals = np.asarray(X.sum(axis=0)).ravel()
        for pseudocount in (1.0, 0.01):
            found = nmfscale.differential_features(
                loadings, X, reference=0, size_factors=sizes, pseudocount=pseudocount
            )
            for low, high in ((5, 20), (20, 50), (50, 100), (100, 1000), (1000, 6000)):
                z = found.z[1 : 2 if fold > 1 else K, (totals >= low) & (totals < high)]
                name = f"{what}, {low} to {high} counts, pseudocount={pseudocount:g}: rejected"
                share = float((np.abs(z) > 1.959964).mean())
                rows.append({"part": "null", "what": name, "value": share})
    return rows


def memory(smoke: bool) -> list[dict]:
    """Return seconds and peak memory of a process that reads a packed store."""
    n, m, K, copies = (600, 300, 3, 2) if smoke else (5000, 23_000, 6, 20)
    X, truth = nmfscale.datasets.simulate_topic_counts(n, m, K, size=900, random_state=0)
    with tempfile.TemporaryDirectory() as folder:
        store, loadings = Path(folder, "counts.nmf"), Path(folder, "loadings.npy")
        nmfscale.write_store(sp.vstack([X] * copies, "csr"), store)
        np.save(loadings, np.tile(truth.L, (copies, 1)))
        words = [sys.executable, "-P", "-c", CHILD, str(store), str(loadings), LIMIT]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        seconds, peak, n_features = json.loads(said)
    size = f"{n_features:,} features x {n * copies:,} samples, {X.nnz * copies:,} nonzeros"
    return [
        {"part": "memory", "what": f"seconds, {size}", "value": seconds},
        {"part": "memory", "what": f"peak in GB, memory_limit={LIMIT!r}", "value": peak / 1e9},
    ]


def draw(found, target: Path) -> None:
    """Draw the picture of the leading features of two topics."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    nmfscale.pl.volcano_plot(found, 0, ax=axes[0])
    nmfscale.pl.ma_plot(found, 1, ax=axes[1])
    nmfscale.pl.topic_scatter(found, 2, ax=axes[2])
    figure.savefig(target, dpi=100)


def markdown(rows: list[dict]) -> str:
    """Return the table and a description of the machine."""
    table = report.table([row | {"value": f"{row['value']:.4g}"} for row in rows])
    return "\n".join([table, "", f"{report.processor()}. `python benchmarks/differential.py`"])


def with_other_parts(rows: list[dict], parts: list[str]) -> list[dict]:
    """Return the rows, and those that earlier runs have written of other parts."""
    path = report.HERE / "results" / "differential.csv"
    with path.open(newline="") as file:
        earlier = [row | {"value": float(row["value"])} for row in csv.DictReader(file)]
    rows = rows + [row for row in earlier if row["part"] not in parts]
    return sorted(rows, key=lambda row: PARTS.index(row["part"]))


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    rows, found = [], None
    with threadpool_limits(1):
        if "speed" in options.parts:
            speed(True, 1)  # warm-up
            more, found = speed(options.smoke, 1 if options.smoke else options.repeats)
            rows += more
        rows += null(options.smoke) if "null" in options.parts else []
    rows += memory(options.smoke) if "memory" in options.parts else []
    if not options.smoke:
        rows = with_other_parts(rows, options.parts)
    text = markdown(rows)
    print(text)
    if not options.smoke:
        report.write_csv(report.HERE / "results" / "differential.csv", rows)
        report.write_readme(text, MARKERS)
        if found is not None:
            draw(found, report.HERE / "results" / "differential.png")


if __name__ == "__main__":
    main()
