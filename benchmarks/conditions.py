"""Conditions within topics: condition_features beside pydeseq2 on the same pseudobulk counts.

    python benchmarks/conditions.py            minutes, most of them pydeseq2 in two studies
    python benchmarks/conditions.py --smoke    a few seconds, writes nothing

Cells of three types have negative binomial counts (dispersion 0.5). Genes vary between donors on
the log scale (sd 0.3), within pairs less (0.1). A tenth of the genes doubles under treatment in one
type. Cells have one type almost alone, except for "mixed", where they have all types in random
proportions. A TopicModel is fitted to all counts. pydeseq2 tests the sums of nmfscale.pseudobulk,
condition_features the same sums, corrected for what is split to the wrong topic.

null, 0.001: share of the genes that do not differ with p <= 0.05 and p <= 0.001. false: false
discoveries among those at q = 5 %; power: share of the genes that differ with q <= 5 %; covers:
share of the 95 % intervals of these genes with the true change; other topics: share of the tests in
other topics of the genes that differ in one, with p <= 0.05. Programs are told which topics are
tested, and adjust within each.

Writes results/conditions.csv and the table in README.md.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import report
from scipy.optimize import linear_sum_assignment
from scipy.stats import false_discovery_control
from threadpoolctl import threadpool_limits

import nmfscale

MARKERS = ("<!-- conditions:start -->", "<!-- conditions:end -->")
TYPES, SPREAD, WITHIN, DISPERSION, FOLD = 3, 0.3, 0.1, 0.5, 2.0
# Donors of each condition, whether each has both conditions, and the Dirichlet parameter of cells.
SETTINGS = {
    "4 + 4 donors": (4, False, 0.02), "8 + 8 donors": (8, False, 0.02),
    "20 + 20 donors": (20, False, 0.02), "8 pairs": (8, True, 0.02),
    "8 + 8 donors, mixed": (8, False, 1.0),
}  # fmt: skip


def study(rng, n_donors, paired, alpha, n_genes, n_cells):
    """Return counts, donors, conditions, frequencies of types, and a mask of genes that differ."""
    n = 2 * n_donors
    donors = np.arange(n) % n_donors if paired else np.arange(n)
    treated = np.repeat([False, True], n_donors)
    F = rng.gamma(0.5, 4, (1, n_genes)) * rng.lognormal(0, 0.7, (TYPES, n_genes)) + 0.02
    differs = np.arange(n_genes) % 10 == 0
    effects = rng.normal(0, SPREAD, (n, n_genes))[donors]
    effects += paired * rng.normal(0, WITHIN, (n, n_genes))
    rates = F * np.exp(effects)[:, None]
    rates[np.ix_(treated, [0], differs)] *= FOLD
    sample = np.repeat(np.arange(n), n_cells)
    shares = rng.dirichlet([alpha] * TYPES, len(sample))
    means = np.einsum("nk,nkm->nm", shares, rates[sample])
    X = rng.poisson(means * rng.gamma(1 / DISPERSION, DISPERSION, means.shape))
    return X, donors[sample], treated[sample], F, differs


def by_pydeseq2(bulk, kept, paired):
    """Return changes, ends of their intervals and p-values of genes (4, m)."""
    from pydeseq2.dds import DeseqDataSet
    from pydeseq2.default_inference import DefaultInference
    from pydeseq2.ds import DeseqStats

    counts = bulk[:, kept].copy()
    counts.obs["unit"] = "donor" + counts.obs["unit"].astype(str)
    counts.obs["group"] = np.where(counts.obs["group"].astype(bool), "treated", "control")
    design = "~unit + group" if paired else "~group"
    options = {"quiet": True, "inference": DefaultInference(n_cpus=1)}
    data = DeseqDataSet(adata=counts, design=design, refit_cooks=True, **options)
    data.deseq2()
    stats = DeseqStats(data, contrast=["group", "treated", "control"], **options)
    stats.summary()
    table = stats.results_df
    margin = 1.959964 * table.lfcSE.to_numpy()
    change = table.log2FoldChange.to_numpy()
    p = np.nan_to_num(table.pvalue.to_numpy(), nan=1.0)
    return np.array([change, change - margin, change + margin, p])


def measures(results, tested, differs):
    """Return the measures of one study; `results` (4, K, m), the first topic is that of changes."""
    change, lower, upper, p = results
    q = np.ones_like(p)
    for k in range(len(p)):
        q[k, tested[k]] = false_discovery_control(p[k, tested[k]])
    null, own = tested & ~differs, tested[0] & differs
    found = (q <= 0.05) & tested
    truth, wrong = np.log2(FOLD), found[:, ~differs].sum()
    return {
        "null": (p[null] <= 0.05).mean(), "0.001": (p[null] <= 0.001).mean(),
        "false": wrong / max(wrong + found[0, differs].sum(), 1), "power": found[0, own].mean(),
        "covers": ((lower <= truth) & (truth <= upper))[0, own].mean(),
        "other topics": (p[1:][tested[1:] & differs] <= 0.05).mean(),
    }  # fmt: skip


def compared(rng, setting, n_genes, n_cells, with_pydeseq2):
    """Return the measures and seconds of each program in one study."""
    n_donors, paired, alpha = setting
    X, donors, treated, F, differs = study(rng, n_donors, paired, alpha, n_genes, n_cells)
    model = nmfscale.TopicModel(TYPES, random_state=0, n_threads=1).fit(X)
    cosines = F / np.linalg.norm(F, axis=1)[:, None] @ (model.components_ / F.sum(axis=0)).T
    topics = linear_sum_assignment(-cosines)[1]
    start = time.process_time()
    found = nmfscale.condition_features(model, X, treated, units=donors, n_threads=1)
    rows = {"condition_features": {"seconds": time.process_time() - start}}
    arrays = [
        np.array(getattr(found, name)[0, topics]) for name in ("lfc", "lower", "upper", "pvalue")
    ]
    tested = found.tested[0, topics]
    rows["condition_features"] |= measures(arrays, tested, differs)
    if with_pydeseq2:
        bulk = nmfscale.pseudobulk(model, X, units=donors, groups=treated)
        results = np.ones((4, TYPES, n_genes))
        start = time.process_time()
        for k, topic in enumerate(topics):
            part = bulk.to_anndata(int(topic), rounded=True)
            results[:, k, tested[k]] = by_pydeseq2(part, tested[k], paired)
        rows["pydeseq2"] = {"seconds": time.process_time() - start}
        rows["pydeseq2"] |= measures(results, tested, differs)
    return rows


def summary(name, studies):
    """Return a row of the table for each program, from the measures of the studies."""
    rows = []
    for program in studies[0]:
        of_program = [study[program] for study in studies if program in study]
        means = {what: np.mean([study[what] for study in of_program]) for what in of_program[0]}
        seconds = means.pop("seconds")
        row = {"design": name, "program": program, "studies": len(of_program)}
        row |= {what: f"{100 * value:.1f}" for what, value in means.items()}
        rows.append(row | {"seconds": f"{seconds:.2g}"})
    return rows


def main() -> None:
    """Compare, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--peer-studies", type=int, default=2, help="those for pydeseq2, too")
    parser.add_argument("--genes", type=int, default=400)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    n_studies, n_genes, n_cells = options.studies, options.genes, 40
    settings = SETTINGS
    if options.smoke:
        n_studies, n_genes, n_cells = 1, 60, 15
        settings = {name: SETTINGS[name] for name in ("4 + 4 donors", "8 pairs")}
    try:
        import pydeseq2  # noqa: F401
    except ImportError:
        print("pydeseq2 is not installed: no comparison")
        with_pydeseq2 = False
    else:
        with_pydeseq2 = True
    rows = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, setting in settings.items():
            rng = np.random.default_rng(0)
            studies = [
                compared(rng, setting, n_genes, n_cells, with_pydeseq2 and i < options.peer_studies)
                for i in range(n_studies)
            ]
            rows += summary(name, studies)
            print(*rows[-2:], sep="\n", flush=True)
    text = "\n".join([
        report.table(rows), "", f"{report.processor()}. `python benchmarks/conditions.py`"
    ])  # fmt: skip
    print(text)
    if not options.smoke:
        report.write_csv(report.HERE / "results" / "conditions.csv", rows)
        report.write_readme(text, MARKERS)


if __name__ == "__main__":
    main()
