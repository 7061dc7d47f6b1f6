"""Batches: a topic model with efficiencies of batches, compared with ways to correct counts.

Sorted blood cells are divided into two artificial batches. Each gene of a batch is thinned by an
efficiency, exp(sd z) with standard normal z, relative to the larger one. Batches have equal shares
of all types of cells ("balanced"), 80% of some types and 20% of others ("skewed"), or one lacks the
B cells ("absent"). A good method finds the sorted types as well as without effects, and does not
tell the batches apart within a type.

    python benchmarks/batches.py                        everything that is installed, an hour
    python benchmarks/batches.py --methods batch=       these methods only
    python benchmarks/batches.py --sd 0 0.5 --seeds 1   these effects
    python benchmarks/batches.py --iterations           seconds of an iteration with and without
    python benchmarks/batches.py --smoke                a few seconds, simulated, writes nothing

Results are kept in results/batches.csv. A run replaces the lines that it measured, and writes the
table in README.md and a picture.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import time
import warnings
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import batch_methods
import numpy as np
import problems
import report
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from nmfscale import PoissonNMF

SCENARIOS = ("balanced", "skewed", "absent")
EFFECTS = (0.0, 0.25, 0.5, 1.0)
# The topic model of the same counts, thinned alike in both batches: what a correction can reach.
BOUND = "no effects"
METHODS = (BOUND, *batch_methods.METHODS)
ABSENT = "CD19+ B"
LEAST_COUNTS = 400
# Cells of a type in each batch that are needed to compare batches within the type.
LEAST_CELLS = 20
LOOKS = dict(zip(METHODS, ("k--", "o-", "s-", "^-", "v:", "D-", "P-"), strict=True))
MARKERS = ("<!-- batches:start -->", "<!-- batches:end -->")
ITERATION_MARKERS = ("<!-- batches_iterations:start -->", "<!-- batches_iterations:end -->")
Array = np.ndarray


@dataclass(frozen=True)
class Cells:
    """Counts of sorted cells with their type and the class of types."""

    X: sp.csr_matrix
    types: Array
    classes: Array

    def part(self, rows: Array) -> Cells:
        """Return some of the cells."""
        return Cells(self.X[rows], self.types[rows], self.classes[rows])


@dataclass(frozen=True)
class Batches:
    """Cells in two batches: `log_ratio` (m,) is log e_1 / e_0; `even` is without effects."""

    cells: Cells
    batch: Array
    log_ratio: Array
    even: sp.csr_matrix


def sorted_cells() -> Cells:
    """Return the sorted blood cells, with the genes that are frequent enough."""
    X = problems.load_counts("pbmc_facs")
    X = X[:, X.sum(axis=0).A1 >= LEAST_COUNTS]
    path = Path(os.environ["NMFSCALE_DATA"]) / "pbmc_facs_meta.json.gz"
    with gzip.open(path) as file:
        names = json.load(file)
    return Cells(X, np.array(names["row_celltype"]), np.array(names["row_subpop"]))


def simulated_cells(rng: np.random.Generator, n: int = 300, m: int = 120) -> Cells:
    """Draw cells of four types, one of which is called like the type that is absent."""
    names = np.array(["T", "NK", "CD14+", ABSENT])
    frequencies = rng.gamma(0.5, 1.0, (4, m)) + 0.02
    codes = rng.integers(4, size=n)
    X = rng.poisson(400 * (frequencies / frequencies.sum(axis=1, keepdims=True))[codes])
    return Cells(sp.csr_matrix(X), names[codes], names[codes])


def thinned(rng: np.random.Generator, X: sp.csr_matrix, shares: Array) -> sp.csr_matrix:
    """Keep each count with a probability, given for each nonzero entry."""
    data = rng.binomial(X.data.astype(np.int64), shares)
    kept = sp.csr_matrix((data, X.indices.copy(), X.indptr.copy()), shape=X.shape)
    kept.eliminate_zeros()
    return kept


def artificial(cells: Cells, scenario: str, sd: float, seed: int) -> Batches:
    """Divide cells into two batches with effects of a standard deviation."""
    rng = np.random.default_rng([17, seed])
    first = np.full(len(cells.types), 0.5)
    if scenario == "skewed":
        names = rng.permutation(np.unique(cells.types))
        first = np.where(np.isin(cells.types, names[: len(names) // 2]), 0.8, 0.2)
    elif scenario == "absent":
        first = np.where(cells.types == ABSENT, 1.0, 0.5)
    batch = (rng.random(len(first)) >= first).astype(int)
    efficiencies = np.exp(sd * rng.normal(size=(2, cells.X.shape[1])))
    shares = efficiencies / efficiencies.max(axis=0)
    rows = np.repeat(np.arange(len(batch)), np.diff(cells.X.indptr))
    X = thinned(rng, cells.X, shares[batch[rows], cells.X.indices])
    even = thinned(rng, cells.X, shares.mean(axis=0)[cells.X.indices])
    log_ratio = np.log(efficiencies[1] / efficiencies[0])
    return Batches(Cells(X, cells.types, cells.classes), batch, log_ratio, even)


def linear():
    """Return a linear classifier of embeddings."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))


def neighbours():
    """Return a classifier that compares each cell with its neighbours."""
    return make_pipeline(StandardScaler(), KNeighborsClassifier(15))


def accuracy(embedding: Array, types: Array) -> float:
    """Return the share of cells whose type is predicted by three-fold logistic regression."""
    return float(np.mean(cross_val_predict(linear(), embedding, types, cv=3) == types))


def auc_within(classifier, embedding: Array, batch: Array, types: Array) -> float:
    """Return how well the batch is predicted within types, 0.5 where batches are mixed."""
    values, sizes = [], []
    for name in np.unique(types):
        here = types == name
        if min(np.bincount(batch[here], minlength=2)) < LEAST_CELLS:
            continue
        predicted = cross_val_predict(
            classifier, embedding[here], batch[here], cv=3, method="predict_proba"
        )
        values.append(roc_auc_score(batch[here], predicted[:, 1]))
        sizes.append(here.sum())
    return float(np.average(values, weights=sizes)) if values else float("nan")


def measures(result: batch_methods.Embedded, cells: Cells, batch: Array) -> dict[str, str]:
    """Return what the benchmark measures of the result of a method."""
    return {
        "ari": f"{adjusted_rand_score(cells.classes, result.clusters):.3f}",
        "accuracy": f"{accuracy(result.embedding, cells.types):.3f}",
        "auc": f"{auc_within(linear(), result.embedding, batch, cells.types):.3f}",
        "auc_neighbours": f"{auc_within(neighbours(), result.embedding, batch, cells.types):.3f}",
        "seconds": f"{result.seconds:.1f}",
        "shape": "" if result.shape is None else f"{result.shape:.3g}",
    }


def measure(cells: Cells, seed: int, scenario: str, sd: float, method: str) -> dict:
    """Return a row for a method on a division into batches."""
    drawn = artificial(cells, scenario, sd, seed)
    X = drawn.even if method == BOUND else drawn.cells.X
    name = "uncorrected" if method == BOUND else method
    result = batch_methods.run(name, X, drawn.batch, seed)
    row = {"seed": seed, "scenario": scenario, "sd": f"{sd:g}", "method": method}
    row |= measures(result, drawn.cells, drawn.batch)
    if result.log_ratio is not None and sd > 0:
        row["correlation"] = f"{np.corrcoef(result.log_ratio, drawn.log_ratio)[0, 1]:.3f}"
    print(row, flush=True)
    return row


def mean_of(rows: list[dict], column: str, **where: str) -> float:
    """Return the mean of a column over seeds, NaN where it was not measured."""
    values = [
        float(row[column]) for row in rows
        if row.get(column) and all(row[name] == value for name, value in where.items())
    ]  # fmt: skip
    return float(np.mean(values)) if values else float("nan")


def table(rows: list[dict]) -> str:
    """Return tables in Markdown: types, batches within types, and seconds of methods."""
    methods = [method for method in METHODS if any(row["method"] == method for row in rows)]
    settings = list(dict.fromkeys((row["scenario"], row["sd"]) for row in rows))
    settings.sort(key=lambda pair: (SCENARIOS.index(pair[0]), float(pair[1])))
    texts = []
    for title, column, digits in (
        ("Accuracy of the sorted types", "accuracy", 3),
        ("AUC of the batch within types by logistic regression (0.5: mixed)", "auc", 2),
        ("AUC of the batch within types by 15 neighbours (0.5: mixed)", "auc_neighbours", 2),
        ("ARI of leading topics or clusters with the classes", "ari", 2),
    ):
        lines = []
        for scenario, sd in settings:
            line = {"batches": scenario, "sd": sd}
            for method in methods:
                value = mean_of(rows, column, scenario=scenario, sd=sd, method=method)
                line[method] = report.cell(value, f".{digits}f")
            lines.append(line)
        texts.append(f"{title}:\n\n{report.table(lines)}")
    lines = []
    for method in methods:
        seconds = mean_of(rows, "seconds", method=method)
        line = {"method": method, "seconds": report.cell(seconds, ".1f")}
        for scenario in SCENARIOS:
            value = mean_of(rows, "correlation", method=method, scenario=scenario, sd="0.5")
            line[f"correlation, {scenario}, sd 0.5"] = report.cell(value, ".3f")
        lines.append(line)
    title = "Processor time on one thread, and correlation of log efficiencies with the truth"
    texts.append(f"{title}:\n\n{report.table(lines)}")
    seeds = len({row["seed"] for row in rows})
    texts.append(
        f"Means of up to {seeds} seeds. {report.processor()}. `python benchmarks/batches.py`"
    )
    return "\n\n".join(texts)


def draw(rows: list[dict], path: Path) -> None:
    """Draw accuracy and AUC against the size of the effects, a column for each scenario."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    methods = [method for method in METHODS if any(row["method"] == method for row in rows)]
    figure, axes = plt.subplots(
        2, len(SCENARIOS), figsize=(9, 5.5), sharex=True, sharey="row", layout="constrained"
    )
    for column, scenario in enumerate(SCENARIOS):
        for method in methods:
            for ax, name in zip(axes[:, column], ("accuracy", "auc"), strict=True):
                points = [
                    (sd, mean_of(rows, name, scenario=scenario, sd=f"{sd:g}", method=method))
                    for sd in EFFECTS
                ]
                ax.plot(*zip(*points, strict=True), LOOKS[method], label=method, markersize=4)
        axes[0, column].set_title(scenario)
        axes[1, column].set_xlabel("sd of log efficiencies")
    axes[0, 0].set_ylabel("accuracy of types")
    axes[1, 0].set_ylabel("AUC of batch within types")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(methods), frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def iteration_times(X: sp.csr_matrix, n_iter: int, repeats: int) -> list[dict]:
    """Return the processor seconds of an iteration without batches, with 2 and with 50.

    All fits have the same start, so that none makes one of its own.
    """
    L, F = problems.em_start(X, batch_methods.N_TOPICS, n_iter=20)
    rng = np.random.default_rng(0)
    labels = {n: rng.integers(n, size=X.shape[0]) if n else None for n in (0, 2, 50)}
    seconds: dict[tuple[str, int], list[float]] = {}
    for _, solver, n in product(range(repeats), ("auto", "em", "scd"), labels):
        spent = []
        for iterations in (5, 5 + n_iter):
            model = PoissonNMF(
                batch_methods.N_TOPICS, solver=solver, max_iter=iterations, tol=0, n_threads=1
            )  # fmt: skip
            began = time.process_time()
            model.fit(X, batch=labels[n], loadings=L, components=F.T)
            spent.append(time.process_time() - began)
        seconds.setdefault((solver, n), []).append((spent[1] - spent[0]) / n_iter)
    least = {key: min(values) for key, values in seconds.items()}
    return [
        {
            "solver": solver, "batches": n, "seconds": f"{value:.4f}",
            "ratio": f"{value / least[solver, 0]:.2f}",
        }
        for (solver, n), value in least.items()
    ]  # fmt: skip


def installed(names: list[str]) -> list[str]:
    """Return the methods that can run, and say why others cannot."""
    able = []
    for name in names:
        reason = "" if name == BOUND else batch_methods.METHODS[name].missing
        if reason:
            print(f"{name}: skipped, {reason}")
        else:
            able.append(name)
    return able


def smoke() -> None:
    """Run what is installed and quick on simulated cells, and print the tables."""
    cells = simulated_cells(np.random.default_rng(0))
    methods = [name for name in installed(list(METHODS)) if name != "scVI"]
    print(report.table(iteration_times(cells.X, 2, 1)))
    print(table([
        measure(cells, 0, scenario, sd, method)
        for scenario, sd in (("balanced", 0.0), ("skewed", 0.5), ("absent", 0.5))
        for method in methods
    ]))  # fmt: skip


def full(options: argparse.Namespace) -> None:
    """Measure the chosen methods on the sorted cells, and write the results."""
    if reason := problems.available("pbmc_facs"):
        print(reason)
        return
    cells = sorted_cells()
    if options.iterations:
        rows = iteration_times(cells.X, 40, 2)
        print(report.table(rows))
        report.write_csv(report.HERE / "results" / "batches_iterations.csv", rows)
        report.write_readme(report.table(rows), ITERATION_MARKERS)
        return
    path, rows = report.HERE / "results" / "batches.csv", []
    if path.exists():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    methods = installed(list(options.methods))
    for setting in product(options.seeds, options.scenarios, options.sd, methods):
        row = measure(cells, *setting)
        keys = {name: str(row[name]) for name in ("seed", "scenario", "sd", "method")}
        rows = [old for old in rows if any(old[name] != keys[name] for name in keys)]
        rows.append({name: str(value) for name, value in row.items()})
        report.write_csv(path, rows)
    print(table(rows))
    report.write_readme(table(rows), MARKERS)
    draw(rows, path.with_suffix(".png"))


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--sd", nargs="+", type=float, default=EFFECTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--iterations", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        if options.smoke:
            smoke()
        else:
            full(options)


if __name__ == "__main__":
    main()
