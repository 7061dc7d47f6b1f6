"""Chapter 4 of Phelan's thesis: level of its permutation tests, and its propositions.

    python benchmarks/papers/phelan_level.py            about five minutes
    python benchmarks/papers/phelan_level.py --full     10,000 permutations of 2,000 sets: 45 min
    python benchmarks/papers/phelan_level.py --smoke    a few seconds, writes nothing

Level: the share of simulated sets in which tests at the 5 % level reject, although all regions have
the same mean mixture of topics. By Proposition 4.2.1 it is 5 % where documents are exchangeable;
the other sets are those in which they are not. The tests are Algorithm 3 (all regions) and
Algorithm 4 (one pair, by permuting the documents of all regions), the same pair by permuting its
own documents, and Welch's distance of proportions, the default of the package. The power of the
cosine and of the chi-square of section 4.4 is measured by benchmarks/permutation.py.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import experiment
import numpy as np
from scipy.linalg import qr

import nmfscale

LEVEL, TOPICS = 0.05, 20
MEANS = 0.8 ** np.arange(TOPICS)
THESIS = {"scale": "amounts", "statistic": "cosine"}


class Sample(NamedTuple):
    """Amounts of topics (n, T), a region and a brewery for each document."""

    amounts: np.ndarray
    regions: np.ndarray
    breweries: np.ndarray


# Sets without a difference ----------------------------------------------------------------------


def documents(
    rng: np.random.Generator, sizes: tuple[int, ...], *, concentration: Any = 20.0,
    lengths: Any = 150.0, a_brewery: int = 1, of_brewery: float = np.inf,
) -> Sample:  # fmt: skip
    """Draw documents: mixtures with the same mean in all regions, times lengths.

    `concentration` and `lengths` are numbers, or one for each region. Breweries have `a_brewery`
    documents each; their own mixtures have the concentration `of_brewery`.
    """
    regions = np.repeat(np.arange(len(sizes)), sizes)
    breweries = np.concatenate([
        1_000 * r + np.arange(size) // a_brewery for r, size in enumerate(sizes)
    ])  # fmt: skip
    means = np.tile(MEANS / MEANS.sum(), (len(regions), 1))
    if np.isfinite(of_brewery):
        _, number = np.unique(breweries, return_inverse=True)
        own = rng.dirichlet(of_brewery * means[0], number.max() + 1)
        means = np.maximum(own[number], 1e-6)
    how = np.broadcast_to(concentration, len(sizes))[regions]
    mixtures = np.array([rng.dirichlet(c * m) for c, m in zip(how, means, strict=True)])
    total = np.broadcast_to(lengths, len(sizes))[regions] * rng.lognormal(sigma=0.7, size=len(how))
    return Sample(mixtures * total[:, None], regions, breweries)


# Sizes are a fifth of those of the beers: Atlantic is small.
SIZES = (20, 68, 72, 31, 74)
SETS: dict[str, Callable[[np.random.Generator], Sample]] = {
    "documents are exchangeable": partial(documents, sizes=SIZES),
    "equal sizes": partial(documents, sizes=(50,) * 5),
    "reviews four times as long in one region": partial(
        documents, sizes=SIZES, lengths=np.array([600.0, 150, 150, 150, 150])
    ),
    "the first region varies more": partial(
        documents, sizes=SIZES, concentration=np.array([2.0, 20, 20, 20, 20])
    ),
    "the last region varies more": partial(
        documents, sizes=SIZES, concentration=np.array([20.0, 20, 20, 20, 2])
    ),
    "six beers of each brewery": partial(documents, sizes=SIZES, a_brewery=6, of_brewery=20.0),
}


def tests_of(sample: Sample, n: int, seed: int) -> dict[str, float]:
    """Return p-values of all tests: overall, and of the first two regions."""
    # with scope="all", labellings are the same for all regions and for pairs
    how = {"n_permutations": n, "n_threads": 1, "random_state": seed, "scope": "all"}
    run = partial(nmfscale.permutation_test, sample.amounts, sample.regions, **how)
    of_all, pair = run(**THESIS), sample.regions < 2
    alone = nmfscale.permutation_test(sample.amounts[pair], sample.regions[pair], **how, **THESIS)
    found = {
        "Algorithm 3": of_all.overall.pvalue, "Algorithm 4": of_all.pairs[0].pvalue,
        "pair alone": alone.overall.pvalue, "Welch": run().overall.pvalue,
    }  # fmt: skip
    if len(set(sample.breweries)) < len(sample.breweries):
        found["Algorithm 3, breweries"] = run(units=sample.breweries, **THESIS).overall.pvalue
        found["Welch, breweries"] = run(units=sample.breweries).overall.pvalue
    return found


def one_set(name: str, n: int, seed: int) -> dict[str, float]:
    """Draw one set and test it."""
    warnings.simplefilter("ignore")
    return tests_of(SETS[name](np.random.default_rng([seed, list(SETS).index(name)])), n, seed)


def all_sets(name: str, n_sets: int, n: int, processes: int) -> list[dict[str, float]]:
    """Draw and test all sets of one kind."""
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(partial(one_set, name, n), range(n_sets), chunksize=4))


def level(n_sets: int, n: int, options: argparse.Namespace) -> tuple[list[dict[str, Any]], Any]:
    """Return rejection rates, and a picture of the p-values."""
    rows = []
    figure, axes = experiment.panels(len(SETS), 3, (3.2, 2.7))
    for number, (ax, name) in enumerate(zip(axes, SETS, strict=True)):
        compute = partial(all_sets, name, n_sets, n, options.threads)
        found = experiment.part(options.parts, ("phelan_level", number, n_sets, n), compute)
        row: dict[str, Any] = {"set": name, "Proposition 4.2.1": LEVEL}
        for test in found[0]:
            p = np.array([each[test] for each in found])
            row[test] = float((p <= LEVEL).mean())
            ax.plot(np.sort(p), np.arange(1, n_sets + 1) / n_sets, label=test)
        ax.plot([0, 1], [0, 1], color="0.6", linestyle=":")
        ax.set(title=name, xlabel="p", xlim=(0, 1), ylim=(0, 1))
        ax.title.set_size(9)
        rows.append(row)
        print(row, flush=True)
    axes[0].set_ylabel("share of sets")
    axes[-1].legend(frameon=False, fontsize="x-small")
    return rows, figure


# Propositions -----------------------------------------------------------------------------------


def propositions(seed: int = 0) -> list[dict[str, Any]]:
    """Check inequalities of Proposition 3.3.1 and steps of the proof of Proposition 4.2.1."""
    rng = np.random.default_rng(seed)
    holds: dict[str, list[bool]] = {"first": [], "second": [], "norms": []}
    for _ in range(50):
        R = qr(rng.gamma(0.3, size=(30, 12)), mode="r", pivoting=True)[0][:12]
        for i, j in itertools.combinations(range(12), 2):
            holds["first"].append(abs(R[i, i]) >= abs(R[j, j]))
            holds["second"] += [abs(R[i, j]) >= abs(R[k, j]) for k in range(i + 1, j + 1)]
            holds["norms"].append(R[i, i] ** 2 >= (R[i : j + 1, j] ** 2).sum() * (1 - 1e-12))
    orders = set()
    for _ in range(20_000):
        z = rng.normal(size=4)
        sums = [z[a] + z[b] for a, b in itertools.combinations(range(4), 2)]
        orders.add(tuple(np.argsort(sums)))
    # b of s permutations have a statistic as small: b is uniform on 0, ..., s
    return [
        {"where": "Proposition 3.3.1, first inequality", "thesis": "always",
         "here": f"{np.mean(holds['first']):.0%} of pairs"},
        {"where": "Proposition 3.3.1, second inequality", "thesis": "always",
         "here": f"{np.mean(holds['second']):.0%} of triples"},
        {"where": "instead: R_ii^2 >= R_ij^2 + ... + R_jj^2", "thesis": None,
         "here": f"{np.mean(holds['norms']):.0%} of pairs"},
        {"where": "proof of 4.2.1: orders of the 6 statistics of 2 + 2 samples",
         "thesis": "all 720", "here": str(len(orders))},
        *(
            {"where": f"Algorithm 3, level of p = b / s < 0.05 with s = {s:,}",
             "thesis": "at most 0.05", "here": f"{int(np.ceil(LEVEL * s)) / (s + 1):.4f}"}
            for s in (21, 99, 10_000)
        ),
    ]  # fmt: skip


def main() -> None:
    """Run the script from the command line."""
    parser = experiment.parser(__doc__)
    experiment.add_parts(parser)
    options = parser.parse_args()
    n_sets, n = (2_000, 9_999) if options.full else (400, 199)
    if options.smoke:
        n_sets, n = 2, 19
    experiment.keep("phelan_propositions", propositions(), None, options)
    experiment.keep("phelan_level", *level(n_sets, n, options), options)


if __name__ == "__main__":
    main()
