"""Small fits and resampling jobs whose bits are the same on every processor, and their digests.

    python tests/digests.py            compares all digests with those that are stored
    python tests/digests.py --write    stores the digests of this machine
    python tests/digests.py --only LDA compares the jobs with this text in their name

A digest is the first half of a SHA-256. Counts are made of integers from PCG64, whose raw stream
never changes: NumPy's Poisson and Gamma numbers use the logarithm of the machine's C library.
"""

import argparse
import hashlib
import json
import platform
import sys
import warnings
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
from sklearn.base import BaseEstimator

import nmfscale
from nmfscale import kernels
from nmfscale.experimental import SparsityPenalty

STORED = Path(__file__).parent / "promises" / "digests.json"
DTYPES = ("float64", "float32")
TIMED = ("seconds", "bytes_read")
GIVEN = ("seed_", "n_features_in_", "sample_totals_", "feature_totals_")


def _integers(seed, *shape):
    """Return integers from 0 to 2^16 - 1."""
    return (np.random.PCG64(seed).random_raw(int(np.prod(shape))) >> 48).astype(int).reshape(shape)


def _counts():
    """Return counts of 72 samples and 50 features with 4 topics; topic k has the features k::4."""
    samples, topics = _integers(1, 72, 4) >> 8, _integers(2, 4, 50) >> 8
    samples[np.arange(72), np.arange(72) // 18] += 700
    topics[np.arange(50) % 4, np.arange(50)] += 900
    noise = _integers(3, 72, 50) + _integers(4, 72, 50)
    counts = (samples @ topics >> 10) * noise >> 25
    counts[7, 5] = 700  # exceeds a byte
    return counts


X = _counts()
NEW = X[::3] + X[1::3]
GROUPS = np.array(["u", "v", "w"])[np.arange(72) % 3]
UNITS = np.arange(72) % 18
LABELS = np.array(["a", "b", None, "c"], dtype=object)[np.arange(72) // 18]
WEIGHTS = 0.25 * (1 + np.arange(72) % 7)
ENTRIES = {"data_weights": 0.25 * (_integers(7, 72, 50) % 6)}
TARGETS = 1.0 + _integers(8, 72, 20) / 2**13
START = {
    "loadings": 1.0 + _integers(5, 72, 4) / 2**12,
    "components": 1.0 + _integers(6, 50, 4).T / 2**12,
}
THREE = {"loadings": START["loadings"][:, :3], "components": START["components"][:3]}


def _attributes(estimator):
    """Return what a fit has found, by name."""
    numbers = vars(estimator).items()
    return {name: value for name, value in numbers if name.endswith("_") and name not in GIVEN}


def _digest(value):
    """Return the digest of all numbers in a value, None if it has none."""
    found = hashlib.sha256()

    def add(value):
        if isinstance(value, BaseEstimator):
            value = _attributes(value)
        elif is_dataclass(value):
            value = [getattr(value, each.name) for each in fields(value)]
        elif getattr(getattr(value, "dtype", None), "names", None):
            value = [value[name] for name in value.dtype.names if name not in TIMED]
        if isinstance(value, dict):
            value = [value[key] for key in sorted(value, key=str)]
        if isinstance(value, list | tuple):
            for each in value:
                add(each)
        elif getattr(value, "format", None) == "csr":
            add([value.data, value.indices, value.indptr])
        elif np.asarray(value).dtype.kind in "iuf":
            array = np.array(value)
            if array.dtype.kind == "f":
                array[np.isnan(array)] = np.nan  # the sign of NaN depends on the processor
            found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())

    empty = found.hexdigest()
    add(value)
    return None if found.hexdigest() == empty else found.hexdigest()[:16]


def _digests(values):
    """Return the digests of values by name, of those that have numbers."""
    found = {name: _digest(value) for name, value in values.items()}
    return {name: digest for name, digest in found.items() if digest is not None}


def _fitted(estimator, given):
    """Return the digests of a fit's attributes, and of the loadings and score of new counts."""
    estimator.fit(X, **given)
    values = _attributes(estimator)
    values["transform"] = estimator.transform(NEW)
    if "y" not in given:
        values["score"] = estimator.score(NEW)
    return _digests(values)


def _returned(function, arguments, options):
    """Return the digests of what a function returns; of each of its fields, if it has fields."""
    value = function(*arguments, **options)
    named = (
        {each.name: getattr(value, each.name) for each in fields(value)}
        if is_dataclass(value)
        else {}
    )
    return _digests(named or {"result": value})


FEW = {"max_iter": 5, "tol": 0, "random_state": 0, "n_threads": 1}


def _fits():
    """Return one line for each fit: its estimator, its options, and arguments of `fit`."""
    poisson, topics, lda = nmfscale.PoissonNMF, nmfscale.TopicModel, nmfscale.LDA
    start = FEW | {"init": "random"}
    for solver, dtype in product(("auto", "em", "joint-em", "ccd", "scd", "sn"), DTYPES):
        yield poisson, FEW | {"solver": solver, "dtype": dtype}, START
    for init, dtype in product(("topic-score", "nndsvd", "clusters", "random"), DTYPES):
        yield poisson, FEW | {"init": init, "dtype": dtype}, {}
    for dtype in DTYPES:
        yield poisson, {"random_state": 0, "dtype": dtype}, {}
        yield topics, {"random_state": 0, "dtype": dtype}, {}
        yield lda, FEW | {"dtype": dtype}, {}
        yield nmfscale.GammaPoisson, FEW | {"dtype": dtype}, {}
        yield nmfscale.NoisyTopicModel, FEW | {"dtype": dtype}, {}
        yield nmfscale.NoisyTopicModel, FEW | {"dtype": dtype, "noise_prior": "none"}, {}
        yield nmfscale.AnchorNMF, {"random_state": 0, "dtype": dtype}, {}
        yield nmfscale.FrobeniusNMF, {"random_state": 0, "dtype": dtype}, {}
        yield nmfscale.SSNMF, FEW | {"dtype": dtype}, {"y": LABELS}
    yield poisson, start | {"n_components": 20}, {}
    yield poisson, start | {"n_components": 35}, {}
    yield poisson, start | {"solver": "newton"}, {}
    yield poisson, start | {"solver": "scd", "inner_iter": 3, "extrapolate": False}, {}
    joint = start | {"solver": "joint-em"}
    yield poisson, joint | {"penalty": SparsityPenalty(0.5)}, {}
    for factor in ("loadings", "components"):
        sparse = SparsityPenalty(0.5, exponent=0.5, norm="l2", on=factor)
        yield poisson, joint | {"penalty": sparse}, {}
    yield poisson, start | {"n_init": 2}, {}
    yield poisson, {"n_init": 2, "n_moves": 4, "max_iter": 30, "random_state": 0}, {}
    for solver in ("auto", "em", "scd"):
        yield poisson, start | {"solver": solver}, {"row_weights": WEIGHTS}
        yield poisson, start | {"solver": solver, "prior_factors": 1.1, "prior_loadings": 1.2}, {}
    for solver in ("auto", "em"):
        yield topics, start | {"solver": solver}, ENTRIES
        yield poisson, start | {"solver": solver}, {"batch": UNITS % 3}
    yield topics, FEW | {"solver": "scd"}, {}
    yield topics, start | {"prior_factors": 1.1}, {}
    yield topics, start | {"solver": "em", "prior_loadings": 1.3}, {}
    for estimated in ("vector", "symmetric"):
        yield lda, FEW | {"estimate_prior": estimated}, {}
    for dtype in DTYPES:
        yield lda, FEW | {"inference": "collapsed", "dtype": dtype}, {}
    yield lda, start | {"doc_topic_prior": 0.2, "extrapolate": False}, {}
    yield nmfscale.GammaPoisson, start | {"hierarchical": True}, {}
    yield nmfscale.GammaPoisson, start, {"batch": UNITS % 3}
    yield nmfscale.NoisyTopicModel, start, {}
    yield nmfscale.AnchorNMF, {"weighting": "tf-idf", "random_state": 0}, {}
    yield nmfscale.AnchorNMF, {"projection": 20, "random_state": 0}, {}
    yield nmfscale.FrobeniusNMF, {"weighting": "tf-idf", "alpha_W": 1e-4, "l1_ratio": 0.5}, {}
    for losses in ("DF", "FD", "FF"):
        yield nmfscale.SSNMF, FEW | {"losses": losses}, {"y": LABELS}
        yield nmfscale.SSNMF, FEW | {"losses": losses, "max_iter": 4}, {"y": TARGETS}
    yield nmfscale.SSNMF, FEW | {"solver": "cd"}, {"y": LABELS}
    yield nmfscale.SSNMF, FEW | {"losses": "FF"}, {"y": LABELS} | ENTRIES


def _named(model):
    """Return the topics of a model, with names of features."""
    names = [f"x{j}" for j in range(50)]
    return nmfscale.TopicModel.from_components(model.components_, feature_names=names)


def _panels(one, other):
    """Return topics of three fits with different features, in different orders."""
    tables = [pd.DataFrame(each.components_).add_prefix("x") for each in (one, other)]
    return [tables[0].iloc[:, :40], tables[1].iloc[:, :4:-1], tables[0].iloc[:, 7:]]


def _results():
    """Return the jobs that begin with a fit or with given factors."""
    L, F = START["loadings"], START["components"].T
    drawn = {"random_state": 0, "n_threads": 1}
    model = nmfscale.TopicModel(4, **FEW).fit(X, **START)
    tested = drawn | {"n_permutations": 99}
    resampled = drawn | {"n_replicates": 30}
    pairs = {"groups": np.array(["u", "v"])[UNITS % 2], "units": UNITS}
    strata = UNITS // 6

    yield nmfscale.permutation_test, (model, GROUPS), tested
    yield nmfscale.permutation_test, (model, GROUPS), tested | {"statistic": "balanced"}
    yield nmfscale.permutation_test, (model,), tested | pairs | {"strata": strata}
    yield nmfscale.group_effects, (model, GROUPS), tested | resampled
    yield nmfscale.group_effects, (model,), tested | resampled | pairs | {"interval": "bca"}
    yield nmfscale.regress_proportions, (model, WEIGHTS), tested | resampled
    yield nmfscale.regress_proportions, (model, WEIGHTS), tested | {"strata": strata}
    yield nmfscale.bootstrap_weights, (model, GROUPS), resampled
    yield nmfscale.bootstrap_weights, (model,), resampled | pairs | {"scale": "amounts"}
    yield nmfscale.experimental.correspondence_analysis, (model, GROUPS), {}
    yield nmfscale.bootstrap_fit, (model, X), drawn | {"n_replicates": 2}
    drawn_samples = drawn | {"n_replicates": 2, "X": X}
    lda, anchors = nmfscale.LDA(3, **FEW), nmfscale.AnchorNMF(3, n_threads=1)
    yield nmfscale.bootstrap_fit, (), drawn_samples | {"estimator": lda, "groups": GROUPS}
    yield nmfscale.bootstrap_fit, (), drawn_samples | {"estimator": anchors, "units": UNITS}
    converged = nmfscale.TopicModel(3, tol=1e-7, gain_tol=0, n_threads=1).fit(X, **THREE)
    yield nmfscale.experimental.jackknife_fit, (converged, X), {"groups": GROUPS}
    yield nmfscale.topic_quality, (model, X), {}
    yield nmfscale.batch_effects, (model,), {"batch": GROUPS, "clusters": UNITS // 99}
    programs = _panels(model, nmfscale.TopicModel(5, **FEW).fit(X))
    for metric in ("lift", "bhattacharyya"):
        yield nmfscale.cluster_topics, (programs,), {"features": "pairwise", "metric": metric}
    yield nmfscale.cluster_topics, (programs,), {"features": "common"}
    sets = {f"set {k}": [f"x{j}" for j in range(k, 50, 4)] for k in range(4)}
    yield nmfscale.enrichment, (_named(model), sets), {"n_top": 10}
    yield nmfscale.enrichment, (_named(model), sets), {"test": "rank", "score": "relevance"}
    given = {"n_threads": 1}
    known = given | {"split": None}
    yield nmfscale.differential_features, (model, X), given | {"split": 0.5, "random_state": 0}
    yield nmfscale.differential_features, (model, X), known | {"reference": "mean"}
    yield nmfscale.differential_features, (model, X), known | {"family": "poisson"}
    yield nmfscale.differential_features, (model, X), known | {"units": UNITS}
    yield nmfscale.pseudobulk, (model, X), given | {"units": UNITS}
    within = given | {"units": UNITS % 9, "min_count": 1.0}
    yield nmfscale.condition_features, (model, X, GROUPS), within
    yield nmfscale.condition_features, (model, X, UNITS % 9 % 2), within | {"normalize": "total"}
    yield nmfscale.features_by_group, (model, X, GROUPS), given
    of_units = given | {"units": UNITS, "shape": "auto", "against": "others"}
    yield nmfscale.features_by_group, (model, X, GROUPS), of_units
    short = nmfscale.TopicModel(3, max_iter=3, n_threads=1)
    yield nmfscale.select_k, (short, X, range(2, 4)), drawn | {"n_splits": 2}
    noisy = nmfscale.NoisyTopicModel(3, **FEW).fit(X, loadings=THREE["loadings"])
    few_draws = drawn | {"n_chains": 2, "n_draws": 3, "n_warmup": 3}
    yield nmfscale.experimental.noisy_pairs, (noisy, X), few_draws
    yield nmfscale.stability, (short, X), drawn | {"n_starts": 3, "density_threshold": 2.0}

    yield nmfscale.likelihood.mixture_proportions, (X, F / F.sum(axis=0)), {"n_iter": 20}
    yield nmfscale.likelihood.mixture_proportions, (X, F / F.sum(axis=0)), {}
    for solver in ("auto", "em", "ccd", "sn"):
        yield nmfscale.likelihood.poisson_regression, (F, X.T), {"solver": solver, "max_iter": 5}
    yield nmfscale.balance, (L,), {}
    yield nmfscale.cluster_samples, (model,), {"random_state": 1}
    yield nmfscale.clustering_score, (model.loadings_, GROUPS), {"soft": True}
    for function in (
        nmfscale.likelihood.loglik_poisson,
        nmfscale.likelihood.deviance_poisson,
        nmfscale.likelihood.kkt_residuals,
    ):
        yield function, (X, L, F), {}
    yield nmfscale.likelihood.loglik_multinomial, (X, model.loadings_, model.components_.T), {}
    yield (
        nmfscale.likelihood.logposterior_poisson,
        (X, L, F),
        {"prior_loadings": 1.2, "prior_factors": 1.1},
    )
    yield nmfscale.likelihood.poisson_to_multinomial, (L, F), {}
    yield (
        nmfscale.datasets.simulate_correlated_topics,
        (20, 30, 13 * np.eye(6) - 2),
        {"random_state": 0},
    )


def jobs():
    """Return the functions that make the digests, by name."""
    found = {}
    for estimator, options, given in _fits():
        told = [f"{key}={value!r}" for key, value in options.items() if FEW.get(key) != value]
        name = f"{estimator.__name__}({', '.join(told)}){''.join(' ' + key for key in given)}"
        made = estimator(**{"n_components": 4} | options)
        found[name] = partial(_fitted, made, given)
    for function, arguments, options in _results():
        told = [
            f"{key}={value!r}" if isinstance(value, str | int) else key
            for key, value in options.items()
            if key not in FEW
        ]
        name = f"{function.__name__}({', '.join(told)})"
        found[name] = partial(_returned, function, arguments, options)
    return found


def make(text=""):
    """Return the digests of the jobs whose name contains `text`, by name and part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tiny counts, few iterations
        return {name: job() for name, job in jobs().items() if text in name}


def differences(found):
    """Return a line for each job that has other digests than those stored, with their names.

    Numbers that are not in the stored list are not compared.
    """
    stored = json.loads(STORED.read_text())
    lines = []
    for name, digests in found.items():
        if name not in stored:
            lines.append(f"{name}: not in the stored list")
            continue
        differ = [each for each, digest in stored[name].items() if digests.get(each) != digest]
        if differ:
            lines.append(f"{name}: {', '.join(differ)}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="store the digests of this machine")
    parser.add_argument("--only", default="", help="jobs with this text in their name")
    options = parser.parse_args()
    found = make(options.only)
    if options.write:
        stored = json.loads(STORED.read_text()) if options.only else {}
        lines = [
            f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in (stored | found).items()
        ]
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    differ = differences(found)
    print("\n".join(differ))
    versions = f"NumPy {np.__version__}, SciPy {scipy.__version__}"
    print(f"{platform.machine()}, {kernels.level()}, {versions}: ", end="")
    print(f"{len(found)} jobs, {len(differ)} not as expected")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
