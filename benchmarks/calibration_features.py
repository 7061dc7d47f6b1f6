"""Differential features where counts vary more than Poisson counts, and between donors.

Features of simulated samples have the same frequency in both topics, or are twice as frequent in
one, half of them in each. Tests at the 5% level should reject 5% of the features without a
difference, 95% intervals should cover 95% of the true log-fold changes, and of the features with
q <= 5%, at most 5% should have no difference. Proportions are those of the truth, or of a
TopicModel that was fitted to the same counts.

    python benchmarks/calibration_features.py                       all sets, about half an hour
    python benchmarks/calibration_features.py --kinds "donors 8"    kinds that begin so
    python benchmarks/calibration_features.py --smoke               a few seconds, writes nothing

Writes results/calibration_features.csv, one line for each kind of set and method, and the table in
README.md. Lines of kinds that were not run are kept.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import report
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from nmfscale import TopicModel, as_counts, concat, differential_features

MARKERS = ("<!-- calibration features:start -->", "<!-- calibration features:end -->")
RESULTS = report.HERE / "results" / "calibration_features.csv"
LEVEL, N_DIFFERENT, N_FEATURES, MEAN = 0.05, 40, 300, 5.0
# Topics and features that are more frequent there: as many in each, so that totals are the same.
HALVES = np.repeat([1, 0], N_DIFFERENT // 2), np.arange(N_DIFFERENT)
COLUMNS = "size", "p <= 0.001", "coverage", "false discoveries", "power"


@dataclass
class Drawn:
    """Counts, true proportions and log2-fold changes of topic 1 against 0, and units or None.

    `with_zeros` are the counts with zeros for what was not measured, None if everything was.
    """

    X: Any
    L: np.ndarray
    change: np.ndarray
    units: np.ndarray | None = None
    with_zeros: np.ndarray | None = None


def samples(
    rng: np.random.Generator, dispersion: float, fold: float = 2.0, L: np.ndarray | None = None
) -> Drawn:
    """Draw negative binomial counts of 200 independent samples of two topics."""
    L = rng.dirichlet([0.3, 0.3], 200) if L is None else L
    frequencies = np.full((2, N_FEATURES), MEAN)
    frequencies[HALVES] *= fold
    means = L @ frequencies
    if dispersion:
        means = means * rng.gamma(1 / dispersion, dispersion, means.shape)
    return Drawn(rng.poisson(means), L, np.log2(frequencies[1] / frequencies[0]))


def panels(rng: np.random.Generator, dispersion: float) -> Drawn:
    """Draw counts of two panels of 100 samples, which differ in their topics.

    The second panel lacks every third feature.
    """
    L = np.concatenate([rng.dirichlet(of_topics, 100) for of_topics in ([0.6, 0.2], [0.2, 0.6])])
    drawn = samples(rng, dispersion, L=L)
    names = np.array([f"{j:03d}" for j in range(N_FEATURES)])
    lacking = np.arange(N_FEATURES) % 3 == 0
    joined = concat(
        [
            as_counts(drawn.X[:100], feature_names=names),
            as_counts(drawn.X[100:, ~lacking], feature_names=names[~lacking]),
        ],
        join="outer",
    )
    with_zeros = drawn.X.copy()
    with_zeros[100:, lacking] = 0
    return replace(drawn, X=joined, with_zeros=with_zeros)


def donors(rng: np.random.Generator, n: int, sd: float = 0.3, fold: float = 2.0) -> Drawn:
    """Draw counts of 40 cells of each donor, which have unequal shares of the topics.

    Frequencies of a donor deviate from those of all by a factor with this standard deviation of its
    logarithm, in each topic and feature.
    """
    units = np.repeat(np.arange(n), 40)
    shares = rng.dirichlet([2.0, 2.0], n)
    L = np.stack([rng.dirichlet(0.6 * share + 1e-3) for share in shares[units]])
    frequencies = MEAN * np.exp(rng.normal(0, sd, (n, 2, N_FEATURES)) - sd * sd / 2)
    frequencies[:, *HALVES] *= fold
    change = np.zeros(N_FEATURES)
    change[HALVES[1]] = np.where(HALVES[0], 1, -1) * np.log2(fold)
    return Drawn(rng.poisson(np.einsum("ik,ikj->ij", L, frequencies[units])), L, change, units)


def tested(drawn: Drawn, **options) -> dict:
    """Test with the true proportions."""
    found = differential_features(
        drawn.L, drawn.X, reference=0, size_factors=np.ones(len(drawn.L)), n_threads=1, **options
    )
    return {"p": found.pvalue[1], "lower": found.lower[1], "upper": found.upper[1]}


def by_units(drawn: Drawn) -> dict:
    """Test with the true proportions, and errors between donors."""
    return tested(drawn, units=drawn.units)


def with_zeros(drawn: Drawn) -> dict:
    """Test counts in which what was not measured is 0."""
    return tested(replace(drawn, X=drawn.with_zeros))


def least_squares(drawn: Drawn) -> dict:
    """Test by least squares on the proportions, with errors by donors of statsmodels."""
    import statsmodels.api as sm

    fits = [
        sm.OLS(x, drawn.L).fit(cov_type="cluster", cov_kwds={"groups": drawn.units})
        for x in drawn.X.T.astype(float)
    ]
    contrast = np.array([-1.0, 1.0])
    errors = [np.sqrt(contrast @ fit.cov_params() @ contrast) for fit in fits]
    t = np.array([fit.params @ contrast for fit in fits]) / errors
    return {"p": 2 * student.sf(np.abs(t), drawn.units.max())}


def fitted(drawn: Drawn, **options) -> dict:
    """Test with the topics of a fit to the same counts."""
    model = TopicModel(2, random_state=0, n_threads=1).fit(drawn.X)
    match = model.loadings_.T @ drawn.L
    first, second = (0, 1) if np.trace(match) >= np.trace(match[::-1]) else (1, 0)
    units = drawn.units if options.pop("units", False) else None
    found = differential_features(
        model, drawn.X, reference=first, units=units, random_state=0, n_threads=1, **options
    )
    return {"p": found.pvalue[second]}


KNOWN = {"poisson": partial(tested, family="poisson"), "default": tested}
OF_PANELS = {"declared missing": tested, "taken as zeros": with_zeros}
OF_DONORS = {"default": tested, "units": by_units, "statsmodels, OLS by donors": least_squares}
AFTER_FIT = {"same counts": partial(fitted, split=None), "default": fitted}
AFTER_FIT_OF_DONORS = {"default": fitted, "units": partial(fitted, units=True)}
KINDS = {
    **{f"dispersion {d:g}": (partial(samples, dispersion=d), KNOWN) for d in (0, 0.1, 0.5, 1)},
    **{
        f"joined panels, dispersion {d:g}": (partial(panels, dispersion=d), OF_PANELS)
        for d in (0, 0.5)
    },
    **{f"donors {n}": (partial(donors, n=n), OF_DONORS) for n in (4, 8, 20)},
    **{
        f"after a fit, dispersion {d:g}": (partial(samples, dispersion=d, fold=4), AFTER_FIT)
        for d in (0, 0.1, 0.5, 1)
    },
    **{
        f"after a fit to noise, dispersion {d:g}": (
            partial(samples, dispersion=d, fold=1), AFTER_FIT
        ) for d in (0, 0.1, 0.5, 1)
    },
    **{
        f"after a fit, donors {n}": (partial(donors, n=n, fold=4), AFTER_FIT_OF_DONORS)
        for n in (4, 8, 20)
    },
    "after a fit to noise, donors 8": (partial(donors, n=8, fold=1), AFTER_FIT_OF_DONORS),
}  # fmt: skip


def outcomes(drawn: Drawn, found: dict) -> dict[str, float]:
    """Return the shares of one set."""
    p, null = found["p"], drawn.change == 0
    different = ~null
    selected = false_discovery_control(p) <= LEVEL
    out = {"size": (p[null] <= LEVEL).mean(), "p <= 0.001": (p[null] <= 0.001).mean()}
    if "lower" in found:
        inside = (found["lower"] <= drawn.change) & (drawn.change <= found["upper"])
        out["coverage"] = inside.mean()
        outside = (found["lower"] > 0) | (found["upper"] < 0)
        if (outside != (p <= LEVEL)).any():
            raise ValueError("an interval contradicts its test")
    out["false discoveries"] = selected[null].sum() / max(selected.sum(), 1)
    if different.any():
        out["power"] = selected[different].mean()
    return out


def measure(kind: str, n_sets: int) -> list[dict]:
    """Return a row for each method: means over the sets, and the standard error of the size."""
    draw, methods = KINDS[kind]
    rows, begin = [], time.perf_counter()
    shares: dict[str, list[dict]] = {name: [] for name in methods}
    for number in range(n_sets):
        drawn = draw(np.random.default_rng([7, number]))
        for name, method in methods.items():
            shares[name].append(outcomes(drawn, method(drawn)))
    for name, of_sets in shares.items():
        means = {key: float(np.mean([each[key] for each in of_sets])) for key in of_sets[0]}
        error = np.std([each["size"] for each in of_sets], ddof=1) / np.sqrt(n_sets)
        rows.append({
            "kind": kind, "method": name, "sets": n_sets, "error": round(float(error), 4),
            **{key: round(means[key], 4) if key in means else "" for key in COLUMNS},
        })  # fmt: skip
        print(rows[-1], f"{time.perf_counter() - begin:.0f} s", flush=True)
    return rows


def table(rows: list[dict]) -> str:
    """Return the table in Markdown, shares in percent."""
    lines = [("set", "method", *COLUMNS), ("---",) * (2 + len(COLUMNS))]
    for row in rows:
        cells = [f"{100 * float(row[key]):.1f}" if row[key] != "" else "-" for key in COLUMNS]
        lines.append((row["kind"], row["method"], *cells))
    n = sorted({int(row["sets"]) for row in rows})
    counted = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"
    legend = f"Percent of {N_FEATURES} features in {counted} sets. " + (
        "Nominal: size 5, p <= 0.001 0.1, coverage 95, false discoveries at most 5. "
        "`python benchmarks/calibration_features.py`"
    )
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", legend])


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=40)
    parser.add_argument("--kinds", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kinds = [kind for kind in KINDS if kind.startswith(tuple(options.kinds))]
    if options.smoke:
        kinds, options.sets = (
            ["dispersion 0.5", "joined panels, dispersion 0", "donors 4", "after a fit, donors 4"],
            2,
        )
    kept = {}
    if RESULTS.exists() and not options.smoke:
        with RESULTS.open(newline="") as file:
            for row in csv.DictReader(file):
                kept.setdefault(row["kind"], []).append(row)
    for kind in kinds:
        kept[kind] = measure(kind, options.sets)
        rows = [row for name in KINDS for row in kept.get(name, [])]
        if not options.smoke:
            report.write_csv(RESULTS, rows)
    print(table(rows))
    if not options.smoke:
        report.write_readme(table(rows), MARKERS)


if __name__ == "__main__":
    main()
