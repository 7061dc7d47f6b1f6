"""Functions that take counts: what a sample did not measure is left out, or refused, and never 0.

Two donors have the same topics in other proportions, and one of them lacks some genes. Every public
function that takes counts is asked about the complete counts, and about the counts without these
genes, which are declared as not measured.
"""

import inspect

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import nmfscale
from nmfscale import experimental, likelihood, tl
from nmfscale.models.hooks import HOOKS

N, M, K, LACKING = 160, 50, 3, 10
RNG = np.random.default_rng(0)
TOPICS = RNG.dirichlet(np.full(M, 0.3), K)
SHARES = np.concatenate([RNG.dirichlet(a, N // 2) for a in ([0.8, 0.4, 0.2], [0.2, 0.4, 0.8])])
FULL = RNG.poisson(500 * SHARES @ TOPICS)
DONOR = np.repeat(["one", "two"], N // 2)
MEASURED = np.ones((2, M), bool)
MEASURED[0, M - LACKING :] = False
MASK = MEASURED[(DONOR == "two").astype(int)]
UNITS, PATIENTS = np.arange(N) % 4, np.arange(N) % 8
CONDITION = PATIENTS % 2
GENES, CELLS = [f"g{j:02}" for j in range(M)], [f"cell{i:03}" for i in range(N)]
L, F = 500 * SHARES, TOPICS.T
START = {"loadings": L, "components": TOPICS}
MODEL = nmfscale.TopicModel(K, random_state=0, prior_factors=1.05)


def counts_of(X, rows=slice(None), columns=slice(None)):
    return nmfscale.as_counts(
        X[rows][:, columns], feature_names=GENES[columns], sample_names=CELLS[rows]
    )


COMPLETE, PLAIN = counts_of(FULL), counts_of(FULL * MASK)
JOINED = nmfscale.concat(
    [counts_of(FULL, slice(N // 2), slice(M - LACKING)), counts_of(FULL, slice(N // 2, N))],
    join="outer",
)


class Form:
    """A way to say what was not measured; `X` is what a user passes again after the fit."""

    def __init__(self, X, **options):
        self.X, self.options, self.model = X, options, clone(MODEL).fit(X, **START, **options)

    def annotated(self, tool, *arguments, **how):
        """Return an AnnData object with a fit that was told what was measured, and a result."""
        adata = anndata.AnnData(
            sp.csr_matrix(self.X.take_rows().astype(float)),
            pd.DataFrame({"donor": DONOR, "condition": CONDITION}, index=CELLS),
            pd.DataFrame(index=GENES),
        )  # fmt: skip
        options = self.options
        if "measured" in options:
            table = pd.DataFrame(MEASURED, index=["one", "two"], columns=GENES)
            options = {"panel": "donor", "measured": table}
        tl.topics(adata, K, model=clone(MODEL), **START, **options)
        tool(adata, *arguments, **how)
        return adata


@pytest.fixture(scope="module")
def forms():
    """The complete counts, and three ways in which the missing genes are declared."""
    return {
        "complete": Form(COMPLETE),
        "joined": Form(JOINED),
        "measured": Form(PLAIN, measured=MEASURED, panel=DONOR),
        "data_weights": Form(PLAIN, data_weights=MASK * 1.0),
    }


AGAINST_THE_MEAN = {"reference": "mean", "split": None}


def changes(table):
    """Log-fold changes of the features with many counts, within -3 to 3."""
    many = np.array(GENES)[FULL.mean(axis=0) > 5]
    table = table[table["feature"].isin(many)].sort_values(["topic", "feature"])
    return np.clip(table["lfc"].to_numpy(), -3, 3)


def measures(table):
    return table[["npmi", "exclusivity", "share"]]


def frequencies(result):
    """Counts of a pseudobulk, divided by the sizes of units and topics for each gene."""
    efficiencies = np.ones((1, M)) if result.efficiencies is None else result.efficiencies
    return result.counts / np.einsum("buk,bj->ukj", result.sizes, efficiencies)


def of_donors(function):
    """Sums or values of each donor's complete counts of the genes that it measured."""
    rows = slice(N // 2), slice(N // 2, N)
    columns = slice(M - LACKING), slice(M)
    return [function(counts_of(FULL, i, j), L[i], F[j]) for i, j in zip(rows, columns, strict=True)]


def residuals_of_donors():
    """KKT residuals of the donors; those of genes are sums over the donors that measured them."""
    (L_one, F_one), (L_two, F_two) = of_donors(likelihood.kkt_residuals)
    return np.concatenate([L_one, L_two, np.pad(F_one, ((0, LACKING), (0, 0))) + F_two])


MODEL_WITH_TRUTH = clone(MODEL).fit(COMPLETE, **START, fixed_topics=[True] * K)
ALL, JOINED_ONLY = ("joined", "measured", "data_weights"), ("joined",)
ANNOTATED = ALL[1:]  # AnnData objects do not say what was measured: the fit does
# Public name: forms, what is asked, and how far the numbers may be from those of the complete
# counts, or from other numbers that are right.
QUESTIONS = {
    "TopicModel.fit": (ALL, lambda form: form.model.components_, 0.02),
    "TopicModel.fit_transform": (
        ALL, lambda form: clone(MODEL).fit_transform(form.X, **START, **form.options), 0.15
    ),
    "TopicModel.transform": (ALL, lambda form: form.model.transform(form.X), 0.15),
    "TopicModel.score": (
        ALL, lambda form: form.model.score(form.X), 0.01, lambda full: full.model.score(JOINED)
    ),
    "TopicModel.perplexity": (
        ALL, lambda form: form.model.perplexity(form.X), 0.2,
        lambda full: full.model.perplexity(JOINED),
    ),
    "as_counts": (
        JOINED_ONLY, lambda form: clone(MODEL).fit(nmfscale.as_counts(form.X), **START).components_,
        0.02,
    ),
    "concat": (
        JOINED_ONLY,
        lambda form: clone(MODEL).fit(
            [nmfscale.as_counts(form.X, mask_obs=CELLS[i::2]) for i in (0, 1)], components=TOPICS
        ).components_,
        0.02,
    ),
    "thin": (
        JOINED_ONLY,
        lambda form: clone(MODEL).fit(
            nmfscale.thin(form.X, fraction=0.5, random_state=0), **START
        ).components_,
        0.03,
    ),
    "bootstrap_fit": (
        ALL,
        lambda form: nmfscale.bootstrap_fit(
            form.model, form.X, groups=DONOR, n_replicates=4, random_state=0
        ).group_means.replicates.mean(axis=0),
        0.04,
    ),
    "compare_fits": (
        ALL,
        lambda form: nmfscale.compare_fits({"fit": form.model}, form.X).to_frame()["score"], 0.01,
        lambda full: [full.model.score(JOINED)],
    ),
    "differential_features": (
        ALL,
        lambda form: changes(
            nmfscale.differential_features(form.model, form.X, **AGAINST_THE_MEAN).to_frame()
        ),
        1.0,
    ),
    "find_samples": (
        ALL,
        lambda form: nmfscale.find_samples(form.model, form.X, n_top=80).to_frame()
        .groupby("topic").mean(numeric_only=True)["proportion"],
        0.03,
    ),
    "find_samples, without counts": (
        ALL,
        lambda form: nmfscale.find_samples(form.model, n_top=80).to_frame()
        .groupby("topic")["total"].mean() / 500,
        0.1,
    ),
    "to_pyldavis, without counts": (
        ALL,
        lambda form: experimental.to_pyldavis(form.model)["term_frequency"] / FULL.sum(), 0.02,
    ),
    "condition_features": (
        ALL,
        lambda form: nmfscale.condition_features(form.model, form.X, CONDITION, units=PATIENTS).lfc,
        0.5,
    ),
    "features_by_group": (
        ALL,
        lambda form: nmfscale.features_by_group(form.model, form.X, CONDITION, units=PATIENTS).lfc,
        0.5,
    ),
    "pseudobulk": (
        ALL, lambda form: frequencies(nmfscale.pseudobulk(form.model, form.X, units=UNITS)), 0.04
    ),
    "select_k": (
        JOINED_ONLY,
        lambda form: nmfscale.select_k(
            clone(MODEL), form.X, [2, 3, 4], n_splits=1, random_state=0
        ).best,
        0,
    ),
    "stability": (
        JOINED_ONLY,
        lambda form: nmfscale.match_topics(
            MODEL_WITH_TRUTH, nmfscale.stability(clone(MODEL), form.X, 4, random_state=0).model
        ).similarity,
        0.05,
    ),
    "topic_quality": (
        ALL,
        lambda form: measures(nmfscale.topic_quality(form.model, form.X, n_top=6).to_frame()), 0.1,
    ),
    "coherence": (
        JOINED_ONLY,
        lambda form: nmfscale.coherence(
            [GENES[:6], GENES[3:9]], form.X, measure="c_npmi"
        ).coherence,
        0.1,
    ),
    "experimental.jackknife_fit": (
        ALL, lambda form: experimental.jackknife_fit(form.model, form.X, [(0, 0)]), 0
    ),
    "experimental.to_pyldavis": (
        ALL,
        lambda form: experimental.to_pyldavis(form.model, form.X)["doc_lengths"] / 500, 0.15,
    ),
    **{
        f"likelihood.{ask.__name__}": (
            JOINED_ONLY, lambda form, ask=ask: ask(form.X, L, F), 1e-9,
            lambda full, ask=ask: np.concatenate(of_donors(ask)),
        )
        for ask in (
            likelihood.deviance_poisson, likelihood.loglik_multinomial, likelihood.loglik_poisson
        )
    },
    "likelihood.kkt_residuals": (
        JOINED_ONLY, lambda form: np.concatenate(likelihood.kkt_residuals(form.X, L, F)), 1e-9,
        lambda full: residuals_of_donors(),
    ),
    **{
        f"likelihood.logposterior_{name}": (
            JOINED_ONLY,
            lambda form, name=name: getattr(likelihood, f"logposterior_{name}")(form.X, L, F), 1e-9,
            lambda full, name=name: np.concatenate(
                of_donors(getattr(likelihood, f"loglik_{name}"))
            ).sum(),
        )
        for name in ("multinomial", "poisson")
    },
    "likelihood.mixture_proportions": (
        JOINED_ONLY, lambda form: likelihood.mixture_proportions(form.X, F), 0.15
    ),
    "tl.topics": (
        ANNOTATED, lambda form: form.annotated(lambda adata: None).varm["topics"], 0.02
    ),
    "tl.transform": (
        ANNOTATED,
        lambda form: form.annotated(tl.transform, form.model, key_added="again").obsm["X_again"],
        0.15,
    ),
    "tl.differential_features": (
        ANNOTATED,
        lambda form: changes(
            nmfscale.get.differential_df(
                form.annotated(tl.differential_features, **AGAINST_THE_MEAN)
            )
        ),
        1.0,
    ),
    "tl.condition_features": (
        ANNOTATED,
        lambda form: nmfscale.get.result(
            form.annotated(tl.condition_features, "condition", units=PATIENTS), "condition_features"
        ).lfc,
        0.5,
    ),
    "tl.features_by_group": (
        ANNOTATED,
        lambda form: nmfscale.get.result(
            form.annotated(tl.features_by_group, "condition", units=PATIENTS), "features_by_group"
        ).lfc,
        0.5,
    ),
    "tl.pseudobulk": (
        ANNOTATED,
        lambda form: tl.pseudobulk(form.annotated(lambda adata: None), units=UNITS)
        .to_df()[GENES[:-LACKING]] / (500 * N / len(set(UNITS))),
        0.002,
    ),
    "tl.topic_quality": (
        ANNOTATED,
        lambda form: measures(
            nmfscale.get.result(form.annotated(tl.topic_quality, n_top=6), "topic_quality")
            .to_frame()
        ),
        0.1,
    ),
}  # fmt: skip
REFUSED = {
    *((name, "data_weights") for name in (
        "TopicModel.transform", "TopicModel.score", "TopicModel.perplexity", "bootstrap_fit",
        "compare_fits", "condition_features", "differential_features", "features_by_group",
        "find_samples",
        "pseudobulk", "topic_quality", "tl.condition_features", "tl.features_by_group",
        "experimental.to_pyldavis", "tl.transform", "tl.differential_features", "tl.pseudobulk",
        "tl.topic_quality",
    )),
    *(("experimental.jackknife_fit", form) for form in ALL),
}  # fmt: skip
MARKS = dict.fromkeys(("select_k", "stability", "bootstrap_fit"), pytest.mark.slow)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=MARKS.get(name, ()))
        for name, (of, *_) in QUESTIONS.items()
        for form in of
    ],
)
def test_the_answer_is_that_of_the_complete_counts_or_an_error(name, form, forms):
    _, ask, tolerance, *other = QUESTIONS[name]
    if (name, form) in REFUSED:
        with pytest.raises(ValueError, match="data_weights=.* nothing says which|with measured="):
            ask(forms[form])
        return
    right = other[0](forms["complete"]) if other else ask(forms["complete"])
    np.testing.assert_allclose(ask(forms[form]), right, rtol=1e-12, atol=tolerance)


def public_functions():
    """Yield names and functions that take counts: those of modules, and methods of estimators."""
    for module in (nmfscale, experimental, likelihood, tl):
        prefix = module.__name__.removeprefix("nmfscale").removeprefix(".")
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) and hasattr(thing, "fit"):
                methods = inspect.getmembers(thing, inspect.isfunction)
                for method, function in methods:
                    first = list(inspect.signature(function).parameters)[1:2]
                    if first == ["X"] and not method.startswith("_") and method not in HOOKS:
                        yield f"{name}.{method}", function
            elif inspect.isfunction(thing) and COUNTS & set(inspect.signature(thing).parameters):
                yield f"{prefix}.{name}".removeprefix("."), thing


COUNTS = {"X", "counts", "adata", "source", "sources", "path_or_object"}
# Models that need every entry: their methods refuse counts with unmeasured ones.
OTHERS = {
    nmfscale.AnchorNMF: {}, nmfscale.FrobeniusNMF: {}, nmfscale.LDA: {},
    nmfscale.NoisyTopicModel: {}, nmfscale.SSNMF: {"y": DONOR},
}  # fmt: skip
NOT_ASKED = {
    "text_counts": "the count of a word that a text lacks is 0",
    "read_counts": "tests/readers/test_joined.py: what was measured is kept",
    "write_store": "tests/readers/test_joined.py: what was measured is kept",
    "batch_effects": "tests/inference/test_batch_effects.py: features that were not measured",
    "tl.batch_effects": "batch_effects of an AnnData object",
    "label_topics": "find_samples",
    "fit_each": "the model's fit of each source",
    "join_modalities": "tests/models/test_modalities.py: a modality that samples lack",
    "modality_depth": "tests/models/test_modalities.py: samples that lack a modality",
    "tl.score_modalities": "score_modalities of a MuData object",
    "tl.enrichment": "no counts: topics of the fit",
    "nearest_samples": "proportions as in find_samples",
    "score_modalities": "tests/models/test_modalities.py: modalities that samples lack",
    "write_report": "topic_quality and proportions of the fit",
    "condition_features": "the counts of pseudobulk",
    "tl.condition_features": "the counts of pseudobulk",
    "tl.topic_hierarchy": "no counts: topics of the fit",
    "tl.select_k": "select_k of an AnnData object, which does not say what was measured",
    **{
        f"tl.{name}": "no counts: loadings of the fit"
        for name in (
            "bootstrap_weights", "correspondence_analysis", "group_effects", "permutation_test",
            "label_topics", "rename_topics",
        )
    },
    **{f"{model.__name__}.inverse_transform": "takes loadings" for model in (
        nmfscale.PoissonNMF, nmfscale.TopicModel, nmfscale.GammaPoisson, *OTHERS
    )},
    **{
        f"{model}.partial_fit": "tests/models/test_partial_fit.py: counts are refused"
        for model in ("PoissonNMF", "TopicModel")
    },
    **{
        f"GammaPoisson.{name}": "tests/methods/test_gamma_batches.py"
        for name in ("fit", "fit_transform", "transform", "score", "perplexity")
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", OTHERS, ids=lambda model: model.__name__)
def test_models_that_need_every_entry_refuse_the_counts(model):
    methods = {n.split(".")[1] for n, _ in public_functions() if n.startswith(model.__name__ + ".")}
    given = OTHERS[model]
    one = model(K, random_state=0, max_iter=3) if model is not nmfscale.AnchorNMF else model(K)
    one.fit(COMPLETE, **given)
    for method in methods - {"inverse_transform"}:
        more = given if method in ("fit", "fit_transform", "score") else {}
        with pytest.raises(ValueError, match=f"10 of its 50 features: {model.__name__} would take"):
            getattr(one, method)(JOINED, **more)


@pytest.mark.filterwarnings("ignore")
def test_missing_entries_of_a_semi_supervised_fit(forms):
    one = nmfscale.SSNMF(K, max_iter=3, random_state=0).fit(PLAIN, DONOR, data_weights=MASK * 1.0)
    for ask in (one.transform, one.predict, lambda X: nmfscale.topic_quality(one, X)):
        with pytest.raises(ValueError, match="nothing says which entries of X are missing"):
            ask(PLAIN)
    assert len(one.predict(PLAIN, data_weights=MASK * 1.0)) == N


def test_every_public_function_of_counts_is_asked():
    tested = set(QUESTIONS) | set(NOT_ASKED) | {"experimental.noisy_pairs"}
    same = {function for name, function in public_functions() if name in tested}
    of_others = tuple(f"{model.__name__}." for model in OTHERS)
    left = {
        name for name, function in public_functions()
        if name not in tested and function not in same and not name.startswith(of_others)
    }  # fmt: skip
    assert not left


def test_counts_take_what_was_measured_from_the_user():
    counts, panel = counts_of(FULL * MASK), (DONOR == "two").astype(int)
    counts.measured = MEASURED, panel
    np.testing.assert_array_equal(
        clone(MODEL).fit(counts, **START).components_, clone(MODEL).fit(JOINED, **START).components_
    )
    for wrong, message in (
        ((MEASURED * 1, panel), "the mask is int64 .*: booleans"),
        ((MEASURED[:, 1:], panel), r"the mask is bool of shape \(2, 49\): .* a row for each panel"),
        ((MEASURED, DONOR), "panels are <U3 .*: for each of the 160 samples, the number"),
        ((MEASURED[:1], panel), "the number of its row of the mask, 0 to 0, is needed"),
    ):
        with pytest.raises(ValueError, match=message):
            counts.measured = wrong


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return nmfscale.write_store(JOINED, tmp_path_factory.mktemp("unmeasured") / "joined.nmf").path


@pytest.mark.filterwarnings("ignore")
def test_files_say_what_was_measured(stored, forms):
    form = Form(stored)
    for name in ("TopicModel.transform", "find_samples", "pseudobulk", "topic_quality"):
        ask = QUESTIONS[name][1]
        np.testing.assert_array_equal(ask(form), ask(forms["joined"]), name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_know_what_was_measured(stored, forms, client):
    model = forms["joined"].model
    for ask in (
        lambda **how: model.transform(stored, **how),
        lambda **how: measures(nmfscale.topic_quality(model, stored, **how).to_frame()),
        lambda **how: frequencies(nmfscale.pseudobulk(model, stored, units=UNITS, **how)),
    ):
        np.testing.assert_array_equal(ask(client=client), ask())
