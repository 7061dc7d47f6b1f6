"""Results do not depend on where counts are, on their type, and on the order of what has names.

Each case draws a source of counts, names, a type, a question and the form of each argument, and is
compared with the plain call: arrays in the order of the samples and features.
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import nmfscale

pytest.importorskip("anndata")

N, M, K = 16, 7, 2
RNG = np.random.default_rng(3)
X = RNG.poisson(RNG.gamma(0.6, 5, (N, K)) @ RNG.gamma(0.6, 1, (K, M)) + 0.3) + np.eye(
    N, M, dtype=int
)
FEW = dict(max_iter=2, tol=0, random_state=0)
GROUPS, UNITS = np.repeat(["a", "b"], N // 2), np.arange(N) // 2
SIZES, MASK = RNG.uniform(0.5, 2, N), np.arange(N) % 3 == 0
L, F = RNG.gamma(1.0, size=(N, K)), RNG.gamma(1.0, size=(M, K))
NUMBERS = np.stack([np.arange(N) % 5, np.arange(N) // 9], axis=1)

NAMES = {
    "none": (None, None),
    "text": ([f"cell {i}" for i in range(N)], [f"gene {j}" for j in range(M)]),
    "numbers": ((RNG.permutation(N) + 100).tolist(), (RNG.permutation(M) * 7).tolist()),
    "tuples": ([("batch", i) for i in range(N)], [("RNA", j) for j in range(M)]),
}
SOURCES = {  # and the names that they can have
    "array": ["none"],
    "csr": ["none"],
    "csc": ["none"],
    "npz": ["none"],
    "frame": list(NAMES),
    "counts": list(NAMES),
    "store": list(NAMES),
    "anndata": ["text", "numbers"],
    "h5ad": ["text", "numbers"],
}
# Arguments: values, and which axes are samples (0) and features (1).
SAMPLES, FEATURES = (0,), (1,)
FITS = {
    nmfscale.PoissonNMF: dict(
        loadings=(L, SAMPLES), components=(F.T, (None, 1)), row_weights=(SIZES, SAMPLES),
        size_factors=(SIZES, SAMPLES),
    ),
    nmfscale.TopicModel: dict(
        components=(F.T, (None, 1)), fixed_features=(np.arange(M) < 2, FEATURES),
        row_weights=(SIZES, SAMPLES),
    ),
    nmfscale.LDA: dict(
        components=(F.T, (None, 1)), loadings=(L, SAMPLES)
    ),
    nmfscale.GammaPoisson: dict(components=(F.T, (None, 1)), loadings=(L, SAMPLES)),
    nmfscale.NoisyTopicModel: dict(
        loadings=(L, SAMPLES), mu=(F[:, 0], FEATURES), fixed_samples=(MASK, SAMPLES)
    ),
    nmfscale.SSNMF: dict(
        y=(GROUPS, SAMPLES), label_weights=(SIZES, SAMPLES), loadings=(L, SAMPLES),
        components=(F.T, (None, 1)),
    ),
}  # fmt: skip
NEEDS = {"fixed_features": "components", "fixed_samples": "loadings", "label_weights": "y"}
QUESTIONS = {
    nmfscale.permutation_test: (
        dict(groups=(GROUPS, SAMPLES), units=(UNITS, SAMPLES)), dict(n_permutations=20)
    ),
    nmfscale.bootstrap_weights: (
        dict(groups=(GROUPS, SAMPLES), units=(UNITS, SAMPLES)), dict(n_replicates=10)
    ),
    nmfscale.group_effects: (
        dict(groups=(GROUPS, SAMPLES), units=(UNITS, SAMPLES)),
        dict(n_replicates=10, n_permutations=20),
    ),
    nmfscale.regress_proportions: (
        dict(covariates=(NUMBERS, SAMPLES)), dict(n_replicates=10, n_permutations=20)
    ),
    nmfscale.cluster_samples: ({}, dict(n_clusters=2)),
}  # fmt: skip


def source_of(kind, names, dtype, folder, columns=None):
    """Counts in a source, perhaps with their columns in another order."""
    columns = np.arange(M) if columns is None else columns
    values = X[:, columns].astype(dtype)
    rows, features = NAMES[names]
    if kind in ("csr", "csc"):
        return getattr(sp, f"{kind}_array")(values)
    if kind == "npz":
        sp.save_npz(folder / "counts.npz", sp.csr_array(values))
        return folder / "counts.npz"
    if kind == "array":
        return values
    table = pd.DataFrame(values)
    if rows is not None:
        index = pd.Index(rows), pd.Index([features[j] for j in columns])
        table = table.set_axis(index[0]).set_axis(index[1], axis=1)
    if kind == "frame":
        return table
    if kind == "counts":
        return nmfscale.as_counts(table)
    if kind == "store":
        return nmfscale.write_store(table, folder / f"{len(list(folder.iterdir()))}.nmf").path
    import anndata

    adata = anndata.AnnData(sp.csr_matrix(values))
    adata.obs_names, adata.var_names = table.index.astype(str), table.columns.astype(str)
    if kind == "anndata":
        return adata
    path = folder / f"{len(list(folder.iterdir()))}.h5ad"
    adata.write_h5ad(path)
    return path


def form_of(draw, values, axes, names):
    """An argument in the form that is drawn: with names in any order, or without."""
    named = names != "none"
    forms = ["array", "list", *(["table"] if named else ["other names"])]
    forms += ["dict"] if named and axes == SAMPLES and values.ndim == 1 else []
    form = draw(st.sampled_from(forms))
    if form in ("array", "list"):
        return values if form == "array" else values.tolist()
    axis = int(axes[0] is None)
    table = pd.DataFrame(values) if values.ndim == 2 else pd.Series(values)
    size = values.shape[axis]
    if form == "other names":  # the counts have none: by position
        return table.set_axis(draw(st.permutations(range(size))), axis=axis)
    of = NAMES[names][axes[axis]]
    table = table.set_axis(pd.Index(of), axis=axis)
    if draw(st.booleans()):  # one that is not needed
        table = pd.concat([table, table.take([0], axis).set_axis(["other"], axis=axis)], axis=axis)
    table = table.take(draw(st.permutations(range(table.shape[axis]))), axis)
    return dict(zip(table.index, table, strict=True)) if form == "dict" else table


def arguments_of(draw, arguments, names, some):
    """Some of the arguments, plain and in a drawn form."""
    chosen = [name for name in arguments if not some or draw(st.booleans())]
    chosen += [NEEDS[name] for name in chosen if NEEDS.get(name) not in (None, *chosen)]
    plain = {name: arguments[name][0] for name in chosen}
    return plain, {name: form_of(draw, *arguments[name], names) for name in chosen}


def assert_same(found, expected, dtype):
    if found.dtype == np.float32:  # handed out in the type of the counts
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    else:
        np.testing.assert_array_equal(found, expected)


def check_a_case(draw):
    """Draw a case and compare it with the plain call."""
    kind = draw(st.sampled_from(sorted(SOURCES)))
    names = draw(st.sampled_from(SOURCES[kind]))
    dtype = draw(st.sampled_from(["int32", "uint16", "float32", "float64"]))
    event(f"{kind}, {names}")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder, make = Path(folder), draw(st.sampled_from(list(FITS)))
        plain, drawn = arguments_of(draw, FITS[make], names, some=True)
        expected = make(K, **FEW).fit(X, **plain)
        model = make(K, **FEW).fit(source_of(kind, names, dtype, folder), **drawn)
        assert_same(model.components_, expected.components_, dtype)
        assert_same(model.loadings_, expected.loadings_, dtype)
        if draw(st.booleans()):
            model.save(folder / "model.h5")
            model = nmfscale.load(folder / "model.h5")
        columns = None
        if names != "none" and (kind, names) != ("frame", "text"):  # which scikit-learn refuses
            columns = np.array(draw(st.permutations(range(M))))
        again = model.transform(source_of(kind, names, dtype, folder, columns))
        assert_same(again, expected.transform(X), dtype)
        of_topics, same = (
            nmfscale.topic_quality(fit, source, n_top=4).to_frame().drop(columns="topic")
            for fit, source in (
                (model, source_of(kind, names, dtype, folder, columns)), (expected, X)
            )
        )  # fmt: skip
        np.testing.assert_allclose(of_topics, same, rtol=1e-4)
        source = source_of(kind, names, dtype, folder, columns)
        of_features = nmfscale.differential_features(expected.loadings_, source)
        there = np.arange(M) if columns is None else np.argsort(columns)
        assert_same(
            of_features.z[:, there], nmfscale.differential_features(expected.loadings_, X).z, dtype
        )
        ask = draw(st.sampled_from(list(QUESTIONS)))
        arguments, options = QUESTIONS[ask]
        plain, drawn = arguments_of(draw, arguments, names, some=False)
        # loadings to the bit, whatever type they were handed out in
        model.loadings_ = expected.loadings_
        one, other = (
            ask(fit, **given_arguments, **options, random_state=0).to_frame()
            for fit, given_arguments in ((model, drawn), (expected, plain))
        )
        drop = {"term", "sample"} & set(one.columns)
        pd.testing.assert_frame_equal(
            one.drop(columns=drop).reset_index(drop=True),
            other.drop(columns=drop).reset_index(drop=True),
            rtol=1e-4,
        )


ALL_CHECKS = list(HealthCheck)


@settings(max_examples=8, deadline=None, suppress_health_check=ALL_CHECKS, derandomize=True)
@given(st.data())
def test_the_numbers_are_those_of_the_plain_call(data):
    check_a_case(data.draw)


@pytest.mark.nightly
@settings(max_examples=50, deadline=None, suppress_health_check=ALL_CHECKS)
@given(st.data())
def test_the_numbers_are_those_of_the_plain_call_in_many_cases(data):
    check_a_case(data.draw)
