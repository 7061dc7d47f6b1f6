"""What belongs together by name is matched by name, whatever the order of an argument is."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

import nmfscale

N, M, K = 24, 10, 2
RNG = np.random.default_rng(0)
X = RNG.poisson(RNG.gamma(0.5, 4, (N, K)) @ RNG.gamma(0.5, 1, (K, M)) + 0.1)
SAMPLES = pd.Index([f"cell{i}" for i in range(N)])
FEATURES = pd.Index([f"gene{j}" for j in range(M)])
COUNTS = pd.DataFrame(X, index=SAMPLES, columns=FEATURES)
GROUPS = np.repeat(["a", "b"], N // 2)
UNITS = np.arange(N) // 2
STRATA = np.arange(N) // 2 % 2
LOADINGS = RNG.dirichlet([1] * K, N)
ESTIMATOR = nmfscale.TopicModel(prior_factors=1.1, tol=1e-3)


def of_samples(values, extra=False):
    """Values with the names of the samples, in another order; perhaps of other samples too."""
    values = np.asarray(values)
    table = pd.DataFrame(values.reshape(N, -1), index=SAMPLES)
    if extra:
        table = pd.concat([table, table.iloc[:3].set_axis(["x", "y", "z"])])
    table = table.sample(frac=1, random_state=1)
    return table.iloc[:, 0] if values.ndim == 1 else table


QUESTIONS = {
    "permutation_test": lambda loadings, of: nmfscale.permutation_test(
        loadings, of(GROUPS), units=of(UNITS), strata=of(STRATA), n_permutations=50, random_state=0
    ).to_frame(),
    "bootstrap_weights": lambda loadings, of: nmfscale.bootstrap_weights(
        loadings, of(GROUPS), units=of(UNITS), strata=of(STRATA), n_replicates=20, random_state=0
    ).to_frame(),
    "group_effects": lambda loadings, of: nmfscale.group_effects(
        loadings, of(GROUPS), units=of(UNITS), n_replicates=20, n_permutations=50, random_state=0
    ).to_frame(),
    "regress_proportions": lambda loadings, of: nmfscale.regress_proportions(
        loadings, {"group": of(GROUPS), "age": of(np.arange(N) % 7)}, strata=of(STRATA),
        n_replicates=20, n_permutations=50, random_state=0,
    ).to_frame(),
    "regress_proportions, table": lambda loadings, of: nmfscale.regress_proportions(
        loadings, of(np.stack([np.arange(N) % 7, np.arange(N) // 12], axis=1)), units=of(UNITS),
        n_replicates=20, n_permutations=0, random_state=0,
    ).to_frame().drop(columns="term"),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.filterwarnings("ignore")
def test_questions_about_loadings(question):
    ask = QUESTIONS[question]
    expected = ask(LOADINGS, lambda values: values).astype(str)
    named = pd.DataFrame(LOADINGS, index=SAMPLES)
    for extra in (False, True):
        found = ask(named, lambda values, extra=extra: of_samples(values, extra)).astype(str)
        pd.testing.assert_frame_equal(found, expected)
    with pytest.raises(ValueError, match="such as 'cell0', 'cell1', 'cell2'"):
        ask(named, lambda values: of_samples(values).rename("old_{}".format))


def test_units_of_select_k():
    options = {"n_splits": 1, "n_folds": 3, "random_state": 0}
    expected = nmfscale.select_k(ESTIMATOR, X, [1, 2], units=UNITS, **options).to_frame()
    for extra in (False, True):
        found = nmfscale.select_k(
            ESTIMATOR, COUNTS, [1, 2], units=of_samples(UNITS, extra), **options
        )
        pd.testing.assert_frame_equal(found.to_frame(), expected)
    with pytest.raises(ValueError, match="units has no entry for .* such as 'cell0'"):
        nmfscale.select_k(ESTIMATOR, COUNTS, [2], units=of_samples(UNITS).rename("old_{}".format))


def shuffled(values, *names, axis=0):
    """A table of values with these names along one axis or two, in another order."""
    table = pd.DataFrame(np.asarray(values).reshape(len(values), -1))
    for at, index in enumerate(names, axis):
        order = np.random.default_rng(at).permutation(len(index))
        table = table.set_axis(index, axis=at).take(order, axis=at)
    return table.iloc[:, 0] if np.ndim(values) == 1 else table


L, F = RNG.gamma(1.0, size=(N, K)), RNG.gamma(1.0, size=(M, K))
SIZES = RNG.uniform(0.5, 2, N)
Y = np.where(np.arange(N) % 3, GROUPS, None)
WEIGHTS = RNG.uniform(0.5, 2, (N, M))
PRIOR = RNG.uniform(1, 2, (M, K))
TOPICS = pd.Index(["first", "second"])
FEW = dict(max_iter=4, tol=0, random_state=0)

# Estimators and arguments of their fit: values in order, and the axes that have names.
FITS = {
    "PoissonNMF": (
        nmfscale.PoissonNMF(K, prior_factors=shuffled(PRIOR, FEATURES), **FEW),
        nmfscale.PoissonNMF(K, prior_factors=PRIOR, **FEW),
        dict(loadings=(L, SAMPLES, TOPICS), components=(F.T, TOPICS, FEATURES),
             row_weights=(SIZES, SAMPLES),
             size_factors=(SIZES, SAMPLES), fixed_topics=(np.array([True, False]), TOPICS),
             fixed_features=(np.arange(M) < 3, FEATURES), fixed_samples=(UNITS < 4, SAMPLES)),
    ),
    "TopicModel": (
        nmfscale.TopicModel(2, init=of_samples(GROUPS), **FEW),
        nmfscale.TopicModel(2, init=GROUPS, **FEW),
        dict(row_weights=(SIZES, SAMPLES),
             data_weights=((WEIGHTS > 1) * 1.0, SAMPLES, FEATURES)),
    ),
    "LDA": (
        nmfscale.LDA(K, **FEW), nmfscale.LDA(K, **FEW),
        dict(components=(F.T, None, FEATURES), loadings=(L, SAMPLES)),
    ),
    "GammaPoisson": (
        nmfscale.GammaPoisson(K, **FEW), nmfscale.GammaPoisson(K, **FEW),
        dict(components=(F.T, None, FEATURES), loadings=(L, SAMPLES)),
    ),
    "NoisyTopicModel": (
        nmfscale.NoisyTopicModel(K, **FEW), nmfscale.NoisyTopicModel(K, **FEW),
        dict(loadings=(L, SAMPLES), mu=(F[:, 0], FEATURES), fixed_samples=(UNITS < 4, SAMPLES),
             fixed_features=(np.arange(M) < 3, FEATURES)),
    ),
    "SSNMF": (
        nmfscale.SSNMF(K, **FEW), nmfscale.SSNMF(K, **FEW),
        dict(y=(Y, SAMPLES), label_weights=(SIZES, SAMPLES),
             data_weights=(WEIGHTS, SAMPLES, FEATURES), loadings=(L, SAMPLES),
             components=(F.T, None, FEATURES)),
    ),
    "AnchorNMF": (
        nmfscale.AnchorNMF(K, weighting=lambda _: (of_samples(SIZES), shuffled(F[:, 0], FEATURES))),
        nmfscale.AnchorNMF(K, weighting=lambda _: (SIZES, F[:, 0])),
        {},
    ),
}  # fmt: skip


def given(arguments):
    """The arguments of a fit as arrays, and as tables with names in another order."""
    plain = {name: values for name, (values, *_) in arguments.items()}
    tables = {
        name: shuffled(values, *[each for each in names if each is not None], axis=names[0] is None)
        for name, (values, *names) in arguments.items()
    }
    return plain, tables


@pytest.mark.parametrize("model", FITS)
@pytest.mark.filterwarnings("ignore")
def test_arguments_of_fits(model):
    of_tables, of_arrays, arguments = FITS[model]
    plain, tables = given(arguments)
    expected, found = of_arrays.fit(X, **plain), of_tables.fit(COUNTS, **tables)
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.loadings_, expected.loadings_)
    for name, (values, *names) in arguments.items():
        axis = int(name == "components")  # that of samples or features
        old = shuffled(values, names[axis], axis=axis) if names[axis] is not None else None
        if old is not None:
            renamed = old.rename("old_{}".format, axis=axis)
            with pytest.raises(ValueError, match=f"{name} has no entry for .* such as '"):
                of_tables.fit(COUNTS, **tables | {name: renamed})


def test_topics_of_priors():
    """Topics of a prior are those of the factors by name; a fit refuses another order."""
    factors = pd.DataFrame(L, columns=TOPICS), pd.DataFrame(F, columns=TOPICS)
    of_topics, table = pd.Series([1.5, 3.0], TOPICS), pd.DataFrame(PRIOR, columns=TOPICS)
    turned = TOPICS[::-1]
    for ask in (
        nmfscale.likelihood.logposterior_poisson,
        nmfscale.likelihood.logposterior_multinomial,
    ):
        for prior in (of_topics, table):
            expected = ask(X, L, F, prior_factors=prior.to_numpy())
            assert ask(X, *factors, prior_factors=prior[turned]) == expected
            assert ask(X, factors[0], F, prior_factors=prior[turned]) == expected
            with pytest.raises(ValueError, match="prior_factors has the topics of load"):
                nmfscale.PoissonNMF(K, prior_factors=prior[turned]).fit(X, components=factors[1].T)


@pytest.mark.filterwarnings("ignore")
def test_arguments_of_transform_and_score():
    model = nmfscale.PoissonNMF(K, prior_loadings=shuffled(1 + L, SAMPLES), **FEW).fit(COUNTS)
    same = nmfscale.PoissonNMF(K, prior_loadings=1 + L, **FEW).fit(X)
    np.testing.assert_array_equal(
        model.transform(COUNTS, size_factors=of_samples(SIZES)),
        same.transform(X, size_factors=SIZES),
    )
    y, weights = shuffled(Y, SAMPLES), shuffled(WEIGHTS, SAMPLES, FEATURES)
    model = nmfscale.SSNMF(K, **FEW).fit(COUNTS, y)
    same = nmfscale.SSNMF(K, **FEW).fit(X, Y)
    assert model.score(COUNTS, of_samples(GROUPS), sample_weight=of_samples(SIZES)) == same.score(
        X, GROUPS, sample_weight=SIZES
    )
    expected = same.transform(X, data_weights=WEIGHTS)
    order = RNG.permutation(M)
    turned = nmfscale.as_counts(COUNTS.iloc[:, order])
    for counts, given_weights in (
        (COUNTS, weights), (turned, weights), (turned, WEIGHTS[:, order]), (COUNTS, WEIGHTS)
    ):  # fmt: skip
        found = model.transform(counts, data_weights=given_weights)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


FUNCTIONS = {
    "loglik_poisson": lambda X, L, F, start: nmfscale.likelihood.loglik_poisson(X, L, F),
    "loglik_multinomial": lambda X, L, F, start: nmfscale.likelihood.loglik_multinomial(X, L, F),
    "deviance_poisson": lambda X, L, F, start: nmfscale.likelihood.deviance_poisson(X, L, F),
    "kkt_residuals": lambda X, L, F, start: nmfscale.likelihood.kkt_residuals(X, L, F)[0],
    "logposterior_poisson": lambda X, L, F, start: nmfscale.likelihood.logposterior_poisson(
        X, L, F, prior_factors=F + 1, prior_loadings=L + 1
    ),
    "logposterior_multinomial": lambda X, L, F, start: nmfscale.likelihood.logposterior_multinomial(
        X, L, F, prior_factors=F + 1
    ),
    "mixture_proportions": lambda X, L, F, start: nmfscale.likelihood.mixture_proportions(
        X, F, start, n_iter=2
    ),
    "simulate_from_factors": lambda X, L, F, start: nmfscale.datasets.simulate_from_factors(
        L.loc[SAMPLES] if hasattr(L, "loc") else L,
        F.loc[FEATURES] if hasattr(F, "loc") else F, random_state=0,
    ).toarray(),
    "multinomial_to_poisson": lambda X, L, F, start: nmfscale.likelihood.multinomial_to_poisson(
        L.loc[SAMPLES] if hasattr(L, "loc") else L, F,
        shuffled(SIZES, SAMPLES) if hasattr(L, "loc") else SIZES,
        pd.Series([3.0, 2.0], TOPICS[::-1]) if hasattr(L, "loc") else [2.0, 3.0],
    )[0],
    "clustering_score": lambda X, L, F, start: nmfscale.clustering_score(
        L, shuffled(GROUPS, SAMPLES) if hasattr(L, "loc") else GROUPS
    ).mean,
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_of_functions(function):
    ask = FUNCTIONS[function]
    tables = shuffled(L, SAMPLES, TOPICS), shuffled(F, FEATURES, TOPICS)
    # results have the topics of L, but proportions those of the frequencies
    order = tables[function == "mixture_proportions"].columns.get_indexer(TOPICS)
    expected, found = ask(X, L, F, L), ask(COUNTS, *tables, tables[0])
    found = found[:, order] if np.shape(found) == (N, K) else found
    np.testing.assert_allclose(found, expected, rtol=1e-12)


SURPLUS = FUNCTIONS | {
    "fixed topics": lambda X, L, F, start: nmfscale.TopicModel(K, **FEW).fit(
        X, components=F.T, fixed_topics=[True] * K
    ),
    "poisson_regression": lambda X, L, F, start: nmfscale.likelihood.poisson_regression(F, X.T),
}
NO_COUNTS = "multinomial_to_poisson", "simulate_from_factors", "clustering_score"


@pytest.mark.parametrize("function", SURPLUS.keys() - NO_COUNTS)
def test_features_of_factors_that_counts_lack_are_named(function):
    """A number without these features is a number of other data: it is refused, or warned of."""
    tables = shuffled(L, SAMPLES, TOPICS), shuffled(F, FEATURES, TOPICS)
    lacking = r"(lacks 2 of the 10 features|has 2 (features|samples) that \w lacks).*'gene[89]'"
    with pytest.warns(UserWarning) as warned:  # noqa: PT030 of several kinds
        try:
            SURPLUS[function](COUNTS.iloc[:, :8], *tables, tables[0])
        except ValueError as error:
            warnings.warn(str(error), stacklevel=1)
    assert any(re.search(lacking, str(one.message)) for one in warned)


@pytest.mark.filterwarnings("ignore:X has its features in another order")
def test_counts_of_topic_quality():
    model = nmfscale.TopicModel(K, **FEW).fit(COUNTS)
    expected = nmfscale.topic_quality(model, COUNTS)
    turned = COUNTS.sample(frac=1, random_state=1)
    counts = nmfscale.as_counts(turned.sample(frac=1, random_state=2, axis=1))
    found = nmfscale.topic_quality(model, counts)
    assert found.of_fit
    for what, names in (("topics", ["topic 0", "topic 1"]), ("samples", SAMPLES)):
        table = found.to_frame(what).set_index(what[:-1]).loc[names]
        same = expected.to_frame(what).set_index(what[:-1])
        pd.testing.assert_frame_equal(table, same, check_names=False)
    pd.testing.assert_frame_equal(found.to_frame("features"), expected.to_frame("features"))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.filterwarnings("ignore:topics of .* replicates")
def test_features_have_the_names_of_the_fit_if_the_counts_have_none():
    model = nmfscale.TopicModel(K, random_state=0).fit(X, feature_names=FEATURES)
    found = (
        nmfscale.differential_features(model, X, random_state=0),
        nmfscale.topic_quality(model, X),
        nmfscale.bootstrap_fit(model, X, n_replicates=2, random_state=0),
        nmfscale.experimental.jackknife_fit(model, X, entries=[(0, "gene3")]),
    )
    for result in found:
        assert list(result.feature_names) == list(FEATURES)
    other = nmfscale.differential_features(
        model, nmfscale.as_counts(X, feature_names=range(M)), split=None
    )
    assert other.to_frame().feature.max() == M - 1
