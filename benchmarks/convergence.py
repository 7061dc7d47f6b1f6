"""What fits would still gain when they end: default settings compared with ``tol=0``.

A fit with default settings is compared with a fit of 3,000 iterations from the same start: the gain
of the long fit, and the largest change of the proportions of a sample. Counts are real, or
simulated like bulk RNA sequencing (few samples, large counts) and like spots of Visium slides. They
are passed as float32, the usual type in AnnData objects.

    python benchmarks/convergence.py
    python benchmarks/convergence.py --problems bulk --topics 8 --dtype float32 --append
    python benchmarks/convergence.py --ends          iterations and seconds of several models
    python benchmarks/convergence.py --ends --problems neurips --append
    python benchmarks/convergence.py --smoke         a few seconds, writes nothing

Writes a row for each pair of fits to results/convergence.csv, and the table in README.md. With
``--ends``, models with default settings are compared instead: how many iterations a fit takes, how
many until its objective stays within 1 of its end, and the processor seconds, of which the start.
A fit ends after 15 processor minutes. Rows go to results/convergence_ends.csv.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np
import problems
import report
import scipy.sparse as sp

SIMULATED = ("bulk", "visium")
PROBLEMS = (*SIMULATED, *problems.REAL)
MARKERS = ("<!-- convergence:start -->", "<!-- convergence:end -->")
HEADS = {
    "problem": "counts", "model": "model", "dtype": "dtype", "K": "K", "seed": "seed",
    "stop_reason": "ends as", "iterations": "iterations", "left": "left",
    "proportions_change": "largest change of a proportion", "samples_moved": "samples > 0.05",
}  # fmt: skip
ENDS_MARKERS = ("<!-- convergence_ends:start -->", "<!-- convergence_ends:end -->")
ENDS_HEADS = {
    "problem": "counts", "K": "K", "model": "model", "stop_reason": "ends as",
    "iterations": "iterations", "within_1": "until within 1", "seconds": "CPU s",
    "start": "of which the start", "times_topic_model": "times TopicModel",
    "objective": "objective at the end",
}  # fmt: skip
ENDS_MODELS = {
    "TopicModel": ("TopicModel", {}),
    "GammaPoisson": ("GammaPoisson", {}),
    "GammaPoisson, hierarchical": ("GammaPoisson", {"hierarchical": True}),
    "LDA, mean field": ("LDA", {}),
    "LDA, collapsed": ("LDA", {"inference": "collapsed"}),
    "NoisyTopicModel": ("NoisyTopicModel", {}),
}
# name -> (K, number of the models, in their order)
ENDS_PROBLEMS = {
    "pbmc_facs": (6, 6), "docstrings": (10, 6), "neurips": (10, 2), "newsgroups": (20, 2),
}  # fmt: skip
MOST_SECONDS = 900


def bulk(n: int = 41, m: int = 16_773, total: float = 4e8, K: int = 12) -> sp.csr_matrix:
    """Return counts like those of bulk RNA: few samples, expression over orders of magnitude."""
    rng = np.random.default_rng(1)
    F = np.exp(rng.normal(0, 2.2, m))[:, None] * rng.gamma(1.5, size=(m, K))
    F *= np.exp(rng.normal(0, 1.0, (m, K)) * (rng.random((m, K)) < 0.2))
    L = rng.dirichlet(np.full(K, 0.3), n)
    sizes = total / n * np.exp(rng.normal(0, 0.3, n))
    mu = sizes[:, None] * (L @ (F / F.sum(axis=0)).T) * rng.gamma(30, 1 / 30, (n, m))
    return sp.csr_matrix(rng.poisson(mu))


def visium(n: int = 1_500, m: int = 6_000, K: int = 12) -> sp.csr_matrix:
    """Return counts like those of spots on a slide: localized topics, mixed everywhere."""
    rng = np.random.default_rng(3)
    side = int(np.sqrt(n)) + 1
    place = np.stack(np.divmod(np.arange(n), side)).T / side
    far = ((place[:, None, None] - rng.random((K, 2, 2))) ** 2).sum(axis=-1)
    L = np.exp(-far / 0.02).sum(axis=-1) + 0.03 * rng.random((n, K))
    change = rng.normal(0, 1.3, (m, K)) * (rng.random((m, K)) < 0.12)
    F = np.exp(rng.normal(0, 1.6, m))[:, None] * np.exp(change)
    sizes = 6_000 * np.exp(rng.normal(0, 0.4, n)) / L.sum(axis=1)
    mu = sizes[:, None] * (L @ (F / F.sum(axis=0)).T) * rng.gamma(8, 1 / 8, (n, m))
    return sp.csr_matrix(rng.poisson(mu))


def counts_of(name: str, smoke: bool) -> sp.csr_matrix:
    """Return the counts of a problem in float32, as AnnData objects hold them."""
    if name in SIMULATED:
        make = {"bulk": bulk, "visium": visium}[name]
        X = make(20, 300, K=4) if smoke else make()
    else:
        X = problems.load_counts(name)
    return X.astype(np.float32)


def proportions(model) -> np.ndarray:
    """Return the proportion of counts in each sample that each topic explains."""
    parts = model.loadings_ * model.components_.sum(axis=1)
    return parts / np.maximum(parts.sum(axis=1, keepdims=True), 1e-300)


def compare(name: str, X, make, long: int) -> dict:
    """Fit twice from the same start, and return how the results differ."""
    short = make().fit(X)
    limit = make(tol=0, max_iter=long).fit(X)
    moved = np.abs(proportions(limit) - proportions(short)).max(axis=1)
    objective = short.history_.dtype.names[2]
    at = [float(model.history_[objective][-1]) for model in (short, limit)]
    residual = max(short.history_[each][-1] for each in short.method_class.residuals)
    return {
        "problem": name, "model": type(short).__name__, "dtype": short.dtype or "default",
        "K": short.n_components, "seed": short.seed_, "stop_reason": short.stop_reason_,
        "iterations": short.n_iter_, "loglik": f"{at[0]:.2f}", "left": f"{at[1] - at[0]:.3f}",
        "kkt": f"{residual:.1e}",
        "proportions_change": f"{moved.max():.3f}", "samples_moved": int((moved > 0.05).sum()),
    }  # fmt: skip


def ends(name: str, X, K: int, seed: int, n_models: int) -> list[dict]:
    """Fit models with default settings; return a row for each, with processor seconds."""
    import nmfscale

    nmfscale.TopicModel(2, n_threads=1, max_iter=2).fit(X[:50])  # warm-up of imports
    rows: list[dict] = []
    of_topic_model = 1.0
    for label, (model_name, how) in list(ENDS_MODELS.items())[:n_models]:
        times = [time.process_time()]

        def watch(record, times=times) -> bool:
            times.append(time.process_time())
            return times[-1] - times[0] > MOST_SECONDS

        make = getattr(nmfscale, model_name)
        model = make(K, random_state=seed, n_init=1, callback=watch, n_threads=1, **how).fit(X)
        seconds = time.process_time() - times[0]
        if not rows:
            of_topic_model = seconds
        values = model.history_[model.history_.dtype.names[2]]
        away = np.flatnonzero(np.abs(values - values[-1]) > 1)
        # the first iteration has about the duration of the others
        start = times[1] - times[0] - (times[-1] - times[1]) / max(len(times) - 2, 1)
        rows.append({
            "problem": name, "K": K, "model": label, "stop_reason": model.stop_reason_,
            "iterations": model.n_iter_, "within_1": int(away.max(initial=-1)) + 2,
            "seconds": f"{seconds:.1f}", "start": f"{max(start, 0):.1f}",
            "times_topic_model": f"{seconds / of_topic_model:.1f}",
            "objective": f"{values[-1]:.1f}",
        })  # fmt: skip
        print("  ".join(map(str, rows[-1].values())), flush=True)
    return rows


def main() -> None:
    """Run every problem with every number of topics, and print a line for each."""
    import nmfscale

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = ("PoissonNMF", "TopicModel", "LDA", "GammaPoisson", "NoisyTopicModel")
    parser.add_argument("--problems", nargs="+", choices=(*PROBLEMS, *problems.BUILT_IN))
    parser.add_argument("--topics", nargs="+", type=int, default=[6, 10, 20])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--model", choices=models, default="PoissonNMF")
    parser.add_argument("--dtype", choices=("float32", "float64"), default=None)
    parser.add_argument("--max-iter", type=int, default=3_000, help="iterations of the long fit")
    parser.add_argument("--append", action="store_true", help="add rows to the table")
    parser.add_argument("--smoke", action="store_true", help="a small run for tests")
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--ends", action="store_true", help="iterations and seconds of models")
    options = parser.parse_args()
    if options.ends:
        run_ends(options)
        return
    options.problems = options.problems or PROBLEMS
    if options.smoke:
        options.problems, options.topics, options.max_iter = SIMULATED, [3], 60
    warnings.simplefilter("ignore")  # the table has a column for fits that have not converged
    rows = []
    for name in options.problems:
        X = counts_of(name, options.smoke)
        for K in options.topics:
            for seed in options.seeds:

                def make(K: int = K, seed: int = seed, **how):
                    chosen = {"dtype": options.dtype, "random_state": seed, "n_init": 1} | how
                    return getattr(nmfscale, options.model)(K, **chosen)

                rows.append(compare(name, X, make, options.max_iter))
                print("  ".join(map(str, rows[-1].values())), flush=True)
    if not options.smoke:
        write(rows, options.results / "convergence.csv", HEADS, MARKERS, append=options.append)


def run_ends(options) -> None:
    """Compare models on the problems of `ENDS_PROBLEMS`, or on some of them."""
    warnings.simplefilter("ignore")  # the table has a column for fits that have not converged
    cases = {"simulated-small": (4, 5)} if options.smoke else ENDS_PROBLEMS
    rows = []
    for name in options.problems or cases:
        if name not in cases:
            raise SystemExit(f"{name}: --ends compares models on {', '.join(cases)}")
        K, n_models = cases[name]
        rows += ends(name, counts_of(name, options.smoke), K, options.seeds[0], n_models)
    if not options.smoke:
        path = options.results / "convergence_ends.csv"
        write(rows, path, ENDS_HEADS, ENDS_MARKERS, append=options.append)


def write(
    rows: list[dict], path: Path, heads: dict[str, str], markers: tuple[str, str], *, append: bool
) -> None:
    """Write a table, or append rows to it; and the columns `heads` to README.md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if append else "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        if not append:
            table.writeheader()
        table.writerows(rows)
    if path.parent == report.HERE / "results":
        with path.open(newline="") as file:
            report.write_readme(markdown(list(csv.DictReader(file)), heads), markers)


def markdown(rows: list[dict], heads: dict[str, str]) -> str:
    """Return the table in Markdown, with the columns `heads`."""
    lines = [heads.values(), ("---",) * len(heads)]
    lines += [[row[name] for name in heads] for row in rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


if __name__ == "__main__":
    main()
