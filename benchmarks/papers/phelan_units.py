"""What is permuted decides: tests by samples and by units; the numbers of docs/grouped_topics.md.

    python benchmarks/papers/phelan_units.py            under a minute
    python benchmarks/papers/phelan_units.py --smoke    a few seconds, writes nothing

Part 1, docstrings: subpackages of one package are divided into two halves that cannot differ, and
tested with docstrings and with subpackages as units. Part 2, real counts in the folder
NMFSCALE_DATA, see README.md: beers by region, blogs by rating, members of Congress by party. Part
3: packages, with subpackages as units. The default is as large as docs/grouped_topics.md says.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import experiment
import grouped_data
import numpy as np

import nmfscale

PAGE = experiment.PAGES.parent / "grouped_topics.md"
HALVED = ("scipy", "sklearn", "dask")
# The statistic and the loadings of the thesis.
THESIS = {"scale": "amounts", "statistic": "cosine"}


def halves(
    data: grouped_data.Grouped, model: Any, names: tuple[str, ...], options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return p-values of tests between halves of the subpackages of one package."""
    rows = []
    for package in names:
        inside = data.groups == package
        shares, units = model.loadings_[inside], data.units[inside]
        half = np.unique(units, return_inverse=True)[1] % 2
        rows.append({
            "package": package, "docstrings": len(units), "subpackages": len(set(units)),
            "p, docstrings": nmfscale.permutation_test(shares, half, **options).overall.pvalue,
            "p, subpackages": nmfscale.permutation_test(
                shares, half, units=units, **options
            ).overall.pvalue,
        })  # fmt: skip
    return rows


def row_of(name: str, by: str, unit: str, test: Any) -> dict[str, Any]:
    """Return one test as a row."""
    pairs = [pair.pvalue_maxt for pair in test.pairs]
    return {
        "data": name, "groups": by, "permuted": unit, "number": sum(test.overall.n_units),
        "statistic": test.statistic, "p": test.overall.pvalue,
        "smallest possible p": test.overall.smallest_pvalue,
        "pairs below 0.05 (max-T)": f"{sum(p < 0.05 for p in pairs)} of {len(pairs)}"
        if pairs else None,
    }  # fmt: skip


def real_counts(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return tests of beers and blogs by samples and by units, and of Congress within states."""
    rows = []
    cases = (
        ("beer_canada", 100, "region", "beers", "breweries"),
        ("poliblog5k", 50, "rating", "posts", "blogs"),
    )
    for name, K, by, samples, units in cases:
        if not grouped_data.available(name):
            continue
        data = grouped_data.load(name)
        model = nmfscale.AnchorNMF(K).fit(data.counts)
        of_units = {"units": data.units}
        runs = ((samples, model.loadings_, THESIS), (units, model.loadings_, THESIS | of_units),
                (units, model, of_units))  # fmt: skip
        for unit, loadings, how in runs:
            test = nmfscale.permutation_test(loadings, data.groups, **how, **options)
            rows.append(row_of(name, by, unit, test))
    if grouped_data.available("congress109"):
        data = grouped_data.load("congress109")
        kept = data.groups != "I"  # two members without a party
        L = nmfscale.TopicModel(20, random_state=0).fit(data.counts).loadings_[kept]
        for unit, strata in (("members", None), ("members, within states", data.units[kept])):
            test = nmfscale.permutation_test(
                L, data.groups[kept], strata=strata, **THESIS, **options
            )
            rows.append(row_of("congress109", "party", unit, test))
    return rows


def packages(data: grouped_data.Grouped, model: Any, topics: list[str], n: int) -> dict[str, Any]:
    """Return the results of docs/grouped_topics.md: test, weights by units and by docstrings."""
    how = {"units": data.units, "random_state": 0}
    test = nmfscale.permutation_test(model, data.groups, **how)
    named = {"topic_names": topics, "n_replicates": n}
    weights = nmfscale.bootstrap_weights(model, data.groups, **how, **named)
    by_docstring = nmfscale.bootstrap_weights(model, data.groups, random_state=0, **named)
    effects = nmfscale.group_effects(model, data.groups, topic_names=topics, **how)
    return {"test": test, "units": weights, "docstrings": by_docstring, "effects": effects}


def numbers(data: grouped_data.Grouped, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the numbers in the text of docs/grouped_topics.md."""
    spread = {" - ".join(pair.groups): pair.dispersion_pvalue for pair in found["test"].pairs}
    units, samples = (found[name] for name in ("units", "docstrings"))
    width = (units.upper - units.lower) / (samples.upper - samples.lower)
    words = np.asarray(data.counts.row_totals)
    by_unit = {}
    for package in ("stdlib", "sklearn"):
        units_of = np.unique(data.units[data.groups == package])
        by_unit[package] = np.mean([words[data.units == unit].mean() for unit in units_of])
    beside = {
        name: int(((each.lower > each.neutral) | (each.upper < each.neutral)).sum())
        for name, each in (("subpackages", units), ("docstrings", samples))
    }
    rows: list[dict[str, Any]] = [
        {"quantity": "packages, p", "here": found["test"].overall.pvalue},
        {
            "quantity": "packages, largest max-T p of a pair",
            "here": max(pair.pvalue_maxt for pair in found["test"].pairs),
        },
        {"quantity": "spread of packages, p", "here": found["test"].overall.dispersion_pvalue},
        {"quantity": "spread of dask and numpy, p", "here": spread["dask - numpy"]},
        {"quantity": "spread of numpy and scipy, p", "here": spread["numpy - scipy"]},
    ]
    rows += [
        {"quantity": f"words of a docstring of {name}, mean of units", "here": float(mean)}
        for name, mean in by_unit.items()
    ]
    rows += [
        {"quantity": "width of intervals, units / docstrings", "here": float(np.median(width))},
        *({"quantity": f"intervals beside neutral, {name}", "here": n}
          for name, n in beside.items()),
        {
            "quantity": "topics with q < 0.05 (group_effects)",
            "here": int((found["effects"].qvalue < 0.05).sum()),
        },
    ]  # fmt: skip
    return rows


def effects_table(effects: Any) -> list[dict[str, Any]]:
    """Return mean proportions with intervals."""
    rows = []
    for t, topic in enumerate(effects.topic_names):
        cells = {
            str(group): f"{effects.means[t, r]:.2f} "
            f"[{effects.lower[t, r]:.2f}, {effects.upper[t, r]:.2f}]"
            for r, group in enumerate(effects.groups)
        }
        rows.append({"topic": topic} | cells | {"q": float(effects.qvalue[t])})
    return rows


def main() -> None:
    """Run the script from the command line."""
    options: argparse.Namespace = experiment.parse(__doc__)
    warnings.simplefilter("ignore")  # of samples as units, spread and few units, by design
    n = 99 if options.smoke else 9_999
    how = {"n_permutations": n, "n_threads": options.threads, "random_state": 0}
    if options.smoke:
        data = grouped_data.docstrings(("numpy", "scipy"))
        model = nmfscale.TopicModel(4, random_state=1, max_iter=5).fit(data.counts)
        experiment.keep(
            "phelan_halves", halves(data, model, ("numpy", "scipy"), how), None, options
        )
        return
    data = grouped_data.docstrings()
    model = nmfscale.TopicModel(10, random_state=1).fit(data.counts)
    leading = nmfscale.get.top_features(model.components_, data.features, n_top=2)
    topics = [" ".join(words) for words in leading]
    experiment.keep("phelan_halves", halves(data, model, HALVED, how), None, options)
    experiment.keep("phelan_units", real_counts(how), None, options)
    found = packages(data, model, topics, 1_000)
    experiment.keep("phelan_packages", numbers(data, found), None, options)
    experiment.keep("phelan_packages_effects", effects_table(found["effects"]), None, options)
    of_ranks = found["units"].ranking("TwR").reset_index().to_dict("records")
    experiment.keep("phelan_packages_ranking", of_ranks, None, options)


if __name__ == "__main__":
    main()
