"""Bootstraps: their speed, the coverage of their intervals, and the bytes they read.

- weights: `bootstrap_weights` on one thread compared with a loop in NumPy that copies the columns
  of the resampled samples and balances each table by sweeps.
- refit: a replicate of `bootstrap_fit` compared with the fit from a random start.
- coverage: simulated loadings of T = 10 topics in R = 5 groups. A sample is the product of a
  lognormal length (sd 0.5 of its logarithm), rates of its group (lognormal, sd 0.5), rates of its
  unit (lognormal, sd given by the setting), and gamma noise with mean 1 and the shape of the
  setting. The truth is the balanced table of the rates of the groups.
- reads: bytes that `bootstrap_fit` reads from a packed store, with replicates run one by one or
  together.
- jackknife: deviations of frequencies under bootstrap weights, as predicted from the influences of
  `jackknife_fit`, compared with fits with these weights that start from the factors of the fit.

    python benchmarks/bootstrap.py                          all parts, almost an hour
    python benchmarks/bootstrap.py --parts coverage         a few minutes
    python benchmarks/bootstrap.py --smoke                  a few seconds, writes nothing

Writes results/bootstrap_PART.csv and the tables in README.md. Measure seconds on a quiet machine;
coverage and bytes do not depend on it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import problems
import report
from threadpoolctl import threadpool_limits

import nmfscale


def seconds(function, *words, **options) -> tuple[float, object]:
    """Return the seconds of a call, and its result."""
    begun = time.perf_counter()
    found = function(*words, **options)
    return time.perf_counter() - begun, found


# Weights: compared with a loop --------------------------------------------------------------------


def by_loop(loadings, groups, n: int, seed: int):
    """Draw, copy, sum and balance the tables one by one."""
    rng, R = np.random.default_rng(seed), int(groups.max()) + 1
    columns, members = (
        np.ascontiguousarray(loadings.T),
        [np.flatnonzero(groups == r) for r in range(R)],
    )
    found = []
    for _ in range(n):
        drawn = [columns[:, rng.choice(here, here.size)] for here in members]
        found.append(swept(np.stack([each.sum(axis=1) for each in drawn], axis=1)))
    return np.array(found)


def swept(table, tol: float = 1e-12, most: int = 10_000):
    """Balance by sweeps: rows have norm sqrt(R / T), then columns have norm 1."""
    share = np.sqrt(table.shape[1] / table.shape[0])
    for _ in range(most):
        table = table * (share / np.linalg.norm(table, axis=1, keepdims=True))
        norms = np.linalg.norm(table, axis=0)
        table = table / norms
        if np.abs(norms - 1).max() < tol:
            break
    return table


def weights_part(options) -> list[dict]:
    """Measure replicates per second of both, in turn."""
    n, T, R = (300, 10, 3) if options.smoke else (6427, 100, 5)
    ours, theirs = (20, 5) if options.smoke else (20_000, 500)
    rng = np.random.default_rng(0)
    groups, loadings = rng.integers(R, size=n), rng.gamma(0.3, size=(n, T))
    table = np.stack([loadings[groups == r].sum(axis=0) for r in range(R)], axis=1)
    np.testing.assert_allclose(nmfscale.balance(table), swept(table), atol=1e-10)
    rates: dict[str, list[float]] = {"bootstrap_weights": [], "loop": []}
    for turn in range(options.repeats):
        with threadpool_limits(1):
            taken, _ = seconds(nmfscale.bootstrap_weights, loadings, groups, n_replicates=ours,
                               n_threads=1, random_state=turn)  # fmt: skip
            rates["bootstrap_weights"].append(ours / taken)
            taken, _ = seconds(by_loop, loadings, groups, theirs, turn)
            rates["loop"].append(theirs / taken)
    per_second = {name: median(each) for name, each in rates.items()}
    return [
        {"program": name, "replicates_per_second": rate, "times": rate / per_second["loop"]}
        for name, rate in per_second.items()
    ]


# Refit: compared with the fit from a random start -------------------------------------------------


def refit_part(options) -> list[dict]:
    """Time fits from random starts, and the replicates of a bootstrap of the last fit."""
    rows = []
    names = ["simulated-small"] if options.smoke else options.problems
    for name in names:
        if reason := problems.available(name):
            print(reason)
            continue
        counts = nmfscale.as_counts(problems.load_counts(name))
        K = problems.REAL[name][0] if name in problems.REAL else problems.SIMULATED[name][2]
        how = {"init": "random", "n_threads": options.threads}
        nmfscale.TopicModel(K, random_state=0, **how).fit(counts)  # arranges the counts
        runs = [
            seconds(nmfscale.TopicModel(K, random_state=seed, **how).fit, counts)
            for seed in range(options.repeats)
        ]
        alone, model = median(taken for taken, _ in runs), runs[-1][1]
        taken, found = seconds(
            nmfscale.bootstrap_fit, model, counts, n_replicates=options.replicates, random_state=0,
            n_threads=options.threads,
        )  # fmt: skip
        each = taken / options.replicates
        rows.append({
            "problem": name, "K": K, "seconds_of_fit": alone, "seconds_of_replicate": each,
            "ratio": each / alone, "iterations_of_fit": median(each.n_iter_ for _, each in runs),
            "iterations_of_replicate": float(np.median(found.n_iter)),
            "in_order": found.n_replicates - found.n_reordered, "replicates": found.n_replicates,
            "smallest_cosine": float(found.cosines.min()),
        })  # fmt: skip
    return rows


# Coverage -------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """Units per group, shape of the noise, samples and sd of a unit, and what is resampled."""

    units: tuple[int, ...]
    shape: float
    samples: int = 1
    sd: float = 0.0
    drawn: str = "samples"


# beers in five regions of Canada, and breweries with six beers each
LARGE, CLUSTERS = (99, 156, 340, 361, 371), (17, 26, 57, 60, 62)
SMALL = 20, 25, 30, 35, 40
SETTINGS = [
    Setting(LARGE, 0.5), Setting(LARGE, 0.1), Setting(SMALL, 0.5), Setting(SMALL, 0.1),
    Setting(SMALL, 0.03), Setting(CLUSTERS, 2, 6, 0.4), Setting(CLUSTERS, 2, 6, 0.4, "units"),
]  # fmt: skip
T = 10


def simulated(setting: Setting, rng):
    """Return loadings, groups, units, and the true balanced table."""
    R = len(setting.units)
    rates = rng.lognormal(0, 0.5, size=(R, T))
    group_of_unit = np.repeat(np.arange(R), setting.units)
    effects = rng.lognormal(0, setting.sd, size=(len(group_of_unit), T))
    n_samples = 1 + rng.poisson(setting.samples - 1, size=len(group_of_unit))
    units = np.repeat(np.arange(len(group_of_unit)), n_samples)
    groups = group_of_unit[units]
    length = rng.lognormal(0, 0.5, size=(len(units), 1))
    noise = rng.gamma(setting.shape, 1 / setting.shape, size=(len(units), T))
    loadings = length * rates[groups] * effects[units] * noise
    return loadings, groups, units, nmfscale.balance(rates.T)


def coverage_part(options) -> list[dict]:
    """Count how often nominal 95 % intervals cover the truth, over all entries of the table."""
    settings = [s._replace(units=s.units[:2]) for s in SETTINGS] if options.smoke else SETTINGS
    times, n = (2, 50) if options.smoke else (options.simulations, 2000)
    rows = []
    for setting in settings:
        held = {"percentile": [], "bca": []}
        above, below = [], []
        for seed in range(times):
            loadings, groups, units, truth = simulated(setting, np.random.default_rng(seed))
            for interval, shares in held.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # warnings about few units
                    found = nmfscale.bootstrap_weights(
                        loadings, groups, units=units if setting.drawn == "units" else None,
                        n_replicates=n, interval=interval, random_state=seed,
                        n_threads=options.threads,
                    )  # fmt: skip
                inside = (found.lower <= truth) & (truth <= found.upper)
                shares.append(inside.mean())
                if interval == "percentile":
                    above.append((truth > found.upper).mean())
                    below.append((truth < found.lower).mean())
        rows.append({
            "units_per_group": f"{min(setting.units)} to {max(setting.units)}",
            "samples_of_unit": setting.samples, "shape": setting.shape, "sd_of_units": setting.sd,
            "drawn": setting.drawn, "percentile": float(np.mean(held["percentile"])),
            "bca": float(np.mean(held["bca"])), "above": float(np.mean(above)),
            "below": float(np.mean(below)),
            "std_error": float(np.std(held["percentile"]) / np.sqrt(times)),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


# Reads ----------------------------------------------------------------------------------------


def reads_part(options) -> list[dict]:
    """Count the bytes that replicates read from a packed store, one by one and together."""
    import psutil
    from out_of_core import pack_drawn

    name = "simulated-small" if options.smoke else options.problems[0]
    if reason := problems.available(name):
        print(reason)
        return []
    n, nonzeros = (2, 2e4) if options.smoke else (8, options.nonzeros)
    X = problems.load_counts(name)
    K = problems.REAL[name][0] if name in problems.REAL else problems.SIMULATED[name][2]
    drawn_from = nmfscale.PoissonNMF(K, random_state=0, n_threads=options.threads).fit(X)
    L, F = drawn_from.loadings_, drawn_from.components_.T
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "counts.nmf")
        # in its own process, so that its memory does not count
        packing = multiprocessing.get_context("spawn").Process(
            target=pack_drawn, args=(L, F, nonzeros, path, options.threads)
        )
        packing.start()
        packing.join()
        counts = nmfscale.results.StoredCounts(path)
        held = psutil.Process().memory_info
        model = nmfscale.PoissonNMF(
            K, dtype="float32", random_state=0, n_threads=options.threads,
            memory_limit=held().rss + max(7 * counts.nnz, 10**9 * options.smoke),
        ).fit(counts, components=F.T)  # fmt: skip
        # enough for several fits that share reads, but not for the counts
        model.set_params(memory_limit=held().rss + max(10 * counts.nnz, 10**9 * options.smoke))
        how = {"random_state": 0, "n_threads": options.threads, "resume": True}
        rows = []
        for batches in (range(1, n + 1), (n,)):
            job, counts = Path(folder, f"job-{len(batches)}"), nmfscale.results.StoredCounts(path)
            for done in batches:
                before = counts.layout().bytes_read
                found = nmfscale.bootstrap_fit(
                    model, counts, n_replicates=done, checkpoint=job, **how
                )
                rows.append({
                    "together": n // len(batches), "up_to_replicate": done - 1,
                    "iterations": int(found.n_iter[-1] if len(batches) > 1 else found.n_iter.max()),
                    "bytes_read": counts.layout().bytes_read - before, "nonzeros": counts.nnz,
                    "blocks": len(counts.layout().blocks), "store_bytes": path.stat().st_size,
                })  # fmt: skip
                print(rows[-1], flush=True)
    return rows


# Jackknife ------------------------------------------------------------------------------------


RULES = {"default": {}, "tol 1e-6": {"tol": 1e-6, "gain_tol": 0, "max_iter": 3000}}


def jackknife_part(options) -> list[dict]:
    """Compare deviations of frequencies above 0.001, in standard errors, and time both methods."""
    name = "simulated-small" if options.smoke else options.problems[0]
    if reason := problems.available(name):
        print(reason)
        return []
    n_entries, n_replicates = (4, 2) if options.smoke else (100, 6)
    rng, counts = np.random.default_rng(0), nmfscale.as_counts(problems.load_counts(name))
    K = problems.REAL[name][0] if name in problems.REAL else problems.SIMULATED[name][2]
    how = {"random_state": 0, "n_threads": options.threads}
    model = nmfscale.PoissonNMF(K, **how, **RULES["tol 1e-6"]).fit(counts)
    often = np.argwhere(frequencies_of(model) > 1e-3)
    entries = rng.choice(often, min(n_entries, len(often)), replace=False)
    begun = time.process_time()
    found = nmfscale.experimental.jackknife_fit(model, counts, entries)
    of_number = (time.process_time() - begun) / len(entries)
    n = counts.shape[0]
    weights = rng.multinomial(n, np.full(n, 1 / n), n_replicates).astype(float)
    known, at = found.components, tuple(found.entries.T)
    expected = (weights - 1) @ known.influences / known.std_error
    rows = []
    for rule, stop in RULES.items():
        begun, seen = time.process_time(), []
        for drawn in weights:
            again = nmfscale.PoissonNMF(K, **how, **stop).fit(
                counts, loadings=model.loadings_, components=model.components_, row_weights=drawn
            )
            seen.append((frequencies_of(again)[at] - known.estimate) / known.std_error)
        of_replicate = (time.process_time() - begun) / n_replicates
        error = np.sqrt(((expected - seen) ** 2).mean() / np.square(seen).mean())
        rows.append({
            "problem": name, "K": K, "rule": rule, "frequencies": len(entries),
            "replicates": n_replicates,
            "slope": float(np.vdot(expected, seen) / np.vdot(expected, expected)),
            "correlation": float(np.corrcoef(expected.ravel(), np.ravel(seen))[0, 1]),
            "relative_error": float(error), "products_of_number": found.n_products / len(entries),
            "cpu_of_number": of_number, "cpu_of_replicate": of_replicate,
            "least_counts": found.least_counts, "largest_residual": float(found.residuals.max()),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def frequencies_of(model):
    """Return frequencies of features in the topics of a Poisson NMF (K, m)."""
    return model.components_ / model.components_.sum(axis=1, keepdims=True)


# Tables ---------------------------------------------------------------------------------------


def table(heads: str, rows: list[str], note: str) -> str:
    """Return a table of formatted rows, followed by a note."""
    n = heads.count("|") + 1
    return "\n".join([f"| {heads} |", "|---" * n + "|", *(f"| {row} |" for row in rows), "", note])


def weights_table(rows: list[dict]) -> str:
    """Return the table of replicates per second."""
    lines = ["{program} | {replicates_per_second:,.0f} | {times:.1f}".format(**row) for row in rows]
    return table("program | replicates per second | ratio to the loop", lines,
                 "6,427 samples, 100 topics, 5 groups; one thread.")  # fmt: skip


def refit_table(rows: list[dict]) -> str:
    """Return the table of seconds and iterations."""
    form = (
        "{problem}, {K} | {seconds_of_fit:.3f} | {seconds_of_replicate:.3f} | {ratio:.2f} | "
        "{iterations_of_fit:.0f} | {iterations_of_replicate:.0f} | {in_order} of {replicates} | "
        "{smallest_cosine:.3f}"
    )
    heads = ("problem, K | s, random start | s, replicate | ratio | iterations, random start | "
             "iterations, replicate | topics in order | smallest cosine")  # fmt: skip
    return table(heads, [form.format(**row) for row in rows], "Medians; for replicates, the means.")


def coverage_table(rows: list[dict]) -> str:
    """Return the table of coverage."""
    form = (
        "{units_per_group} of {samples_of_unit} | {shape:g} | {sd_of_units:g} | {drawn} | "
        "{percentile:.3f} ({std_error:.3f}) | {bca:.3f} | {above:.3f} | {below:.3f}"
    )
    heads = ("units per group, of samples | shape of noise | sd of units | resampled | "
             "percentile (se) | BCa | truth above | below")  # fmt: skip
    note = "Truth above and below: percentile intervals."
    return table(heads, [form.format(**row) for row in rows], note)


def reads_table(rows: list[dict]) -> str:
    """Return the table of bytes read by replicates that do or do not share reads."""
    alone = [row["bytes_read"] for row in rows if row["together"] == 1]
    shared = next(row for row in rows if row["together"] > 1)
    most = max(*alone, 1)  # one block stays in memory
    lines = [
        f"{len(alone)}, one by one | {sum(alone) / 1e9:.2f} | {sum(alone) / most:.2f}",
        f"the one of these that read most | {most / 1e9:.2f} | 1.00",
        f"{shared['together']}, together | {shared['bytes_read'] / 1e9:.2f} | "
        f"{shared['bytes_read'] / most:.2f}",
    ]
    return table("replicates | GB read | relative", lines,
                 "{nonzeros:,} nonzeros in {blocks} blocks.".format(**shared))  # fmt: skip


def jackknife_table(rows: list[dict]) -> str:
    """Return the table that compares influences with fits, by stopping rule of the fits."""
    form = (
        "{rule} | {correlation:.3f} | {slope:.2f} | {relative_error:.0%} | {cpu_of_number:.1f} | "
        "{cpu_of_replicate:.1f}"
    )
    heads = ("stopping rule of fits | correlation | slope | error | CPU s per number | "
             "CPU s per replicate")  # fmt: skip
    note = (
        "{problem}, K = {K}: {frequencies} frequencies above 0.001, {replicates} replicates, in "
        "standard errors; {products_of_number:.0f} Hessian products per number. "
        "The machine was busy."
    )
    return table(heads, [form.format(**row) for row in rows], note.format(**rows[0]))


PARTS = {
    "weights": (weights_part, weights_table), "refit": (refit_part, refit_table),
    "coverage": (coverage_part, coverage_table), "reads": (reads_part, reads_table),
    "jackknife": (jackknife_part, jackknife_table),
}  # fmt: skip


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--problems", nargs="+", default=["pbmc_facs", "neurips"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=120)
    parser.add_argument("--nonzeros", type=float, default=1e8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.repeats, options.replicates = 1, 2
    for part in options.parts:
        run, written = PARTS[part]
        rows = run(options)
        if not rows:
            continue
        command = report.command()
        text = f"{written(rows)} `{command}`"
        print(text, flush=True)
        if not options.smoke:
            report.write_csv(options.results / f"bootstrap_{part}.csv", rows)
            if options.results == report.HERE / "results":
                markers = f"<!-- bootstrap {part}:start -->", f"<!-- bootstrap {part}:end -->"
                report.write_readme(text, markers)


if __name__ == "__main__":
    main()
