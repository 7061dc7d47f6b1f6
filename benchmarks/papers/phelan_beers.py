"""Chapter 5 of Phelan's thesis on reviews of Canadian beers: tables and figures 5.1 to 5.3.

    python benchmarks/papers/phelan_beers.py              under a minute
    python benchmarks/papers/phelan_beers.py --data docstrings
    python benchmarks/papers/phelan_beers.py --smoke      a few seconds, writes nothing

The reviews of the thesis are not public. These are other reviews, of 1,329 beers instead of 6,427:
beer_canada.npz in the folder NMFSCALE_DATA, which beer_reviews.py makes. Tests take the anchors of
these reviews; tables 5.2 and 5.3 take those of the thesis, so that topics can be compared. Without
the reviews, or with --data docstrings, the docstrings of five packages take the place of beers,
their subpackages that of breweries; then nothing is compared with the thesis and nothing is
written. Permutations and replicates are as many as in the thesis; --full takes ten times as many.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from functools import partial
from typing import Any

import experiment
import grouped_data
import numpy as np
from scipy.optimize import linear_sum_assignment

import nmfscale

PRINTED = experiment.HERE / "printed"
# Topics of figures 5.2 and 5.3: the text of the thesis names yeast and stout.
DRAWN = ("yeast", "stout", "lager", "ipa", "honey", "maple", "corn", "wheat")
# Pairs in which the thesis finds no difference; p is at most 0.005 in all others.
NO_DIFFERENCE = {("Atlantic", "Quebec"), ("Atlantic", "Ontario")}


def printed(name: str) -> list[dict[str, str]]:
    """Return a table of the thesis."""
    with (PRINTED / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def sizes(data: grouped_data.Grouped, model: Any, words: np.ndarray) -> list[dict[str, Any]]:
    """Return sizes of the data, and how anchors compare with those of the thesis."""
    names, theirs = words[model.anchors_], {row["word"] for row in printed("phelan_anchors")}
    top = words[model.components_.argmax(axis=1)]
    totals = np.asarray(data.counts.sum(axis=0)).ravel()
    of_quebec = data.counts[data.groups == "Quebec"][:, np.flatnonzero(words == "unibroue")].sum()
    return [
        {"quantity": "beers", "thesis": 6_427, "here": data.counts.shape[0]},
        {"quantity": "words", "thesis": 9_567, "here": data.counts.shape[1]},
        {"quantity": "anchors", "thesis": 100, "here": len(names)},
        {
            "quantity": "anchors of the thesis that are words here", "thesis": 100,
            "here": len(theirs & set(words)),
        },
        {
            "quantity": "anchors of the thesis that are anchors here", "thesis": 100,
            "here": len(theirs & set(names)),
        },
        {
            "quantity": "topics whose anchor is their first word", "thesis": "almost all",
            "here": int((top == names).sum()),
        },
        {"quantity": "first anchor", "thesis": "coffee", "here": names[0]},
        {"quantity": "most frequent word", "thesis": None, "here": words[totals.argmax()]},
        {
            "quantity": "occurrences of unibroue, a brewery of Quebec; in Quebec", "thesis": None,
            "here": f"{totals[words == 'unibroue'][0]}; {of_quebec}",
        },
    ]  # fmt: skip


def anchors(names: np.ndarray) -> list[dict[str, Any]]:
    """Return table 5.1: anchors by rank, and the rank that the other has."""
    theirs = [row["word"] for row in printed("phelan_anchors")]
    ours = names.tolist()
    return [
        {
            "rank": rank + 1, "thesis": word, "its rank here": ours.index(word) + 1
            if word in ours else None,
            "here": ours[rank], "its rank in the thesis": theirs.index(ours[rank]) + 1
            if ours[rank] in theirs else None,
        }
        for rank, word in enumerate(theirs)
    ]  # fmt: skip


def topics(model: Any, words: np.ndarray) -> list[dict[str, Any]]:
    """Return table 5.2 for the topics of the thesis whose anchor is an anchor here."""
    leading = nmfscale.get.top_features(model.components_, words, n_top=10, score="probability")
    ours = dict(zip(words[model.anchors_], leading, strict=True))
    rows = []
    for row in printed("phelan_topics"):
        theirs = [row[str(i)] for i in range(1, 11)]
        if row["anchor"] in ours:
            here = [str(word) for word in ours[row["anchor"]]]
            rows.append({
                "anchor": row["anchor"], "thesis": " ".join(theirs), "here": " ".join(here),
                "in common": len(set(theirs) & set(here)),
            })  # fmt: skip
    return rows


def tests(loadings: np.ndarray, data: grouped_data.Grouped, n: int, threads: int) -> dict[str, Any]:
    """Return tests of regions by beers, as Algorithms 3 and 4, and by breweries."""
    how = {"scale": "amounts", "statistic": "cosine", "n_permutations": n}
    how |= {"n_threads": threads, "random_state": 0}
    return {
        "beers": nmfscale.permutation_test(loadings, data.groups, scope="all", **how),
        "breweries": nmfscale.permutation_test(loadings, data.groups, units=data.units, **how),
    }


def pvalues(found: dict[str, Any], given: dict[str, Any], matched: dict[str, str]) -> list[dict]:
    """Return figure 5.1 as a table; `given` has the tests with the anchors of the thesis.

    `matched` has the region here of each region of the thesis: see `agreement`.
    """
    renamed = {tuple(sorted(matched[each] for each in pair)) for pair in NO_DIFFERENCE}
    rows = []
    columns = [
        (test.overall, *test.pairs)
        for test in (found["beers"], found["breweries"], given["beers"], given["breweries"])
    ]
    for beers, breweries, beers_given, breweries_given in zip(*columns, strict=True):
        overall = len(beers.groups) > 2
        printed_so, renamed_so = (
            "p <= 0.005" if overall or tuple(sorted(beers.groups)) not in pairs
            else "not significant" for pairs in (NO_DIFFERENCE, renamed)
        )  # fmt: skip
        rows.append({
            "regions": "all" if overall else " - ".join(beers.groups),
            "thesis, as printed": printed_so, "thesis, renamed": renamed_so,
            "cosine": beers.observed, "mean of permutations": beers.null.mean(),
            "p, beers": beers.pvalue, "max-T, beers": beers.pvalue_maxt,
            "p, breweries": breweries.pvalue, "max-T, breweries": breweries.pvalue_maxt,
            "p, beers, anchors of the thesis": beers_given.pvalue,
            "p, breweries, anchors of the thesis": breweries_given.pvalue,
        })  # fmt: skip
    return rows


def nulls(found: dict[str, Any]) -> Any:
    """Draw figure 5.1, with beers and with breweries permuted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 8.4), layout="constrained")
    for part, (name, test) in zip(figure.subfigures(2, 1), found.items(), strict=True):
        part.suptitle(f"{name} permuted")
        nmfscale.pl.null_plot(test, which="pairs", ax=part.subplots(), show=False)
    return figure


def ranking(weights: Any) -> list[dict[str, Any]]:
    """Return table 5.3 beside the ranks here."""
    ours, rows = weights.ranking("TwR", n=10), []
    for row in printed("phelan_ranking"):
        rank = int(row["rank"])
        cells: dict[str, Any] = {"rank": rank}
        for region in ours:
            cells[f"{region}, thesis"], cells[region] = row[region], ours.loc[rank, region]
        rows.append(cells)
    return rows


def agreement(weights: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Compare each column of table 5.3 with each region here.

    Return the share of the topics of a column, of those that are topics here, that are in the same
    half of the ranks in a region; and the one-to-one match of columns and regions with the largest
    sum.
    """
    rank = weights.to_frame("TwR").set_index(["group", "topic"])["rank"]
    regions, rows = [str(each) for each in weights.groups], printed("phelan_ranking")
    same, known = np.zeros((2, len(regions), len(regions)))
    for i, column in enumerate(regions):
        for place, row in enumerate(rows):
            for j, region in enumerate(regions if row[column] in weights.topics else ()):
                upper = rank[region, row[column]] <= len(weights.topics) / 2
                same[i, j] += upper == (place < len(rows) / 2)
                known[i, j] += 1
    _, match = linear_sum_assignment(-same)
    matched = {column: regions[j] for column, j in zip(regions, match, strict=True)}
    found: list[dict[str, Any]] = []
    for i, column in enumerate(regions):
        shares = dict(zip(regions, (same[i] / known[i]).tolist(), strict=True))
        found.append({"column of the thesis": column, "topics": int(known[i, 0])} | shares
                     | {"matched with": matched[column]})  # fmt: skip
    total = f"{int(known[:, 0].sum())} topics"
    found += [
        {"column of the thesis": f"all, as printed: {int(np.trace(same))} of {total}"},
        {"column of the thesis": f"all, matched: {int(same[range(5), match].sum())} of {total}"},
    ]
    return found, matched


def spread(weights: Any) -> list[dict[str, Any]]:
    """Return what the thesis says about the uncertainty of weights."""
    errors = weights.std_error
    rows: list[dict[str, Any]] = [
        {"quantity": "sum of squares within a topic, R / T", "thesis": 0.05,
         "here": float((weights.weights**2).sum(axis=1).mean())},
        {"quantity": "neutral weight", "thesis": 0.1, "here": weights.neutral},
    ]  # fmt: skip
    for topic, said in (("yeast", "little"), ("stout", "much")):
        mean = float(errors[weights.topics.index(topic)].mean())
        rows.append({"quantity": f"mean standard error of {topic}", "thesis": said, "here": mean})
    middle = np.median(errors, axis=0)
    for r, region in enumerate(weights.groups):
        rows.append({
            "quantity": f"median standard error, {region} ({weights.n_units[r]} beers)",
            "thesis": "largest" if region == "Atlantic" else None, "here": float(middle[r]),
        })  # fmt: skip
    return rows


def densities(weights: Any, chosen: list[str]) -> tuple[Any, list[dict[str, Any]]]:
    """Return figures 5.2 and 5.3: bootstrap densities of RwT weights, and a table of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.9, 1.9 * -(-len(chosen) // 4) + 0.7), layout="constrained")
    nmfscale.pl.bootstrap_plot(weights, panels=chosen, ax=figure.subplots(), show=False)
    rows = [
        {
            "topic": topic, "region": region, "weight": weights.weights[t, r],
            "lower": weights.lower[t, r], "upper": weights.upper[t, r],
            "standard error": weights.std_error[t, r],
        }
        for topic in chosen
        for t in [weights.topics.index(topic)]
        for r, region in enumerate(weights.groups)
    ]  # fmt: skip
    return figure, rows


def weights_of(
    loadings: np.ndarray, groups: np.ndarray, names: np.ndarray, options: argparse.Namespace
) -> Any:
    """Return balanced weights, by Algorithm 6."""
    return nmfscale.bootstrap_weights(
        loadings, groups, topic_names=names, scale="amounts", equal_weights="samples",
        n_replicates=options.replicates, random_state=0, n_threads=options.threads,
    )  # fmt: skip


def chapter(data: grouped_data.Grouped, options: argparse.Namespace) -> None:
    """Run the four steps of the chapter on the beers."""
    fit = partial(nmfscale.AnchorNMF, 100, n_threads=options.threads)
    model, words = fit().fit(data.counts), data.features.tolist()
    experiment.keep("phelan_sizes", sizes(data, model, data.features), None, options)
    rows = anchors(data.features[model.anchors_])
    experiment.keep("phelan_anchors", rows, None, options, summary=rows[:20])
    theirs = [row["word"] for row in printed("phelan_anchors") if row["word"] in words]
    given = fit(anchors=[words.index(word) for word in theirs]).fit(data.counts)
    experiment.keep("phelan_topics", topics(given, data.features), None, options)
    names = data.features[given.anchors_]
    weights = weights_of(given.loadings_, data.groups, names, options)
    rows, matched = agreement(weights)
    experiment.keep("phelan_ranking", ranking(weights), None, options)
    experiment.keep("phelan_agreement", rows, None, options)
    found, of_given = (
        tests(each.loadings_, data, options.permutations, options.threads)
        for each in (model, given)
    )
    rows = pvalues(found, of_given, matched)
    experiment.keep("phelan_tests", rows, nulls(found), options)
    experiment.keep("phelan_spread", spread(weights), None, options)
    figure, rows = densities(weights, list(DRAWN))
    experiment.keep("phelan_weights", rows, figure, options, summary=rows[:10])


def without_beers(data: grouped_data.Grouped, K: int, options: argparse.Namespace) -> None:
    """Run the steps on docstrings, and print the results."""
    model = nmfscale.AnchorNMF(K, n_threads=options.threads).fit(data.counts)
    names = data.features[model.anchors_]
    print(", ".join(names))
    print(tests(model.loadings_, data, options.permutations, options.threads))
    weights = weights_of(model.loadings_, data.groups, names, options)
    print(weights.ranking("TwR", n=5))
    densities(weights, list(names[:4]))


def main() -> None:
    """Run the script from the command line."""
    parser = experiment.parser(__doc__)
    parser.add_argument("--data", choices=("beer_canada", "docstrings"), default="beer_canada")
    options = parser.parse_args()
    many = 10 if options.full else 1
    options.permutations, options.replicates = 10_000 * many, 1_000 * many
    warnings.simplefilter("ignore")  # beers as units, and differences of spread, by design
    if options.smoke:
        options.permutations, options.replicates = 99, 50
        without_beers(grouped_data.docstrings(("numpy", "dask")), 8, options)
    elif options.data == "docstrings" or not grouped_data.available("beer_canada"):
        without_beers(grouped_data.docstrings(), 30, options)
    else:
        chapter(grouped_data.load("beer_canada"), options)


if __name__ == "__main__":
    main()
