"""The public names: which there are, that old ones lead to new ones, and that import is quick."""

import builtins
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nmfscale

# A change of this table is a decision: users' programs use these names.
NAMES = {
    "nmfscale": """
        AnchorNMF FrobeniusNMF GammaPoisson LDA NoisyTopicModel PoissonNMF SSNMF TopicModel
        as_counts concat join_modalities modality_depth read_counts read_gmt text_counts thin
        write_store
        load load_result match_topics write_report
        balance batch_effects bootstrap_fit bootstrap_weights cluster_samples cluster_topics
        clustering_score coherence compare_fits condition_features differential_features
        enrichment features_by_group find_samples fit_each group_effects label_topics
        nearest_samples permutation_test pseudobulk regress_proportions score_modalities
        search_samples seed_shares select_k stability topic_hierarchy topic_quality
        datasets errors experimental get likelihood pl results tl
    """,
    "nmfscale.likelihood": """
        deviance_poisson kkt_residuals loglik_multinomial loglik_poisson logposterior_multinomial
        logposterior_poisson mixture_proportions poisson_regression
        dirichlet_to_gamma gamma_to_dirichlet multinomial_to_poisson poisson_to_multinomial
    """,
    "nmfscale.datasets": """
        docstrings simulate_correlated_topics simulate_from_factors simulate_noisy_topics
        simulate_poisson_nmf simulate_topic_counts
    """,
    "nmfscale.errors": """
        BlockFailedError CheckpointError ClusterError ConvergenceWarning DamagedFileError
        DamagedStoreError FileInUseError JournalError LeftSeedsWarning MemoryLimitError
        ModalityDepthWarning NoWorkersError NotFittedError SchedulerLostError ShortSamplesWarning
    """,
    "nmfscale.results": """
        Corpus CountMatrix Counts StoredCounts
        BatchEffects BootstrapFit BootstrapWeights ClusteringScore ConditionFeatures Consensus
        CorrespondenceAnalysis DifferentialFeatures Enrichment Estimates FeaturesByGroup
        FitComparison FitSummary
        GroupDifferences GroupEffects GroupTest JackknifeEstimates JackknifeFit LeadingSamples
        ModalityScores
        NoisyPairs Origin PermutationTest
        ProportionRegression Pseudobulk RankedSamples SampleClusters SeedShares SelectK Stability
        TopicClusters
        TopicCoherence TopicDescription TopicHierarchy TopicLevels TopicMatch
        TopicQuality
        NoisyTruth PoissonTruth TopicParameters TopicTruth
    """,
    "nmfscale.experimental": """
        SparsityPenalty
        correspondence_analysis jackknife_fit noisy_pairs supervision_from_variances to_pyldavis
    """,
    "nmfscale.pl": """
        batch_plot biplot bootstrap_plot class_heatmap correlation_plot embedding enrichment_plot
        features_by_group_plot
        forest_plot hierarchy_plot ma_plot null_plot progress_plot scree_plot select_k_plot
        similarity_plot stability_plot structure_plot top_features_plot topic_colors topic_scatter
        trend_plot
        volcano_plot
    """,
    "nmfscale.tl": """
        batch_effects bootstrap_weights condition_features correspondence_analysis
        differential_features enrichment features_by_group group_effects label_topics
        permutation_test pseudobulk rename_topics restore_h5ad score_modalities select_k
        topic_hierarchy
        topic_quality topics transform write_h5ad
    """,
    "nmfscale.get": "components_df differential_df model result top_features topics_df",
    "nmfscale.testing": "check_model model_checks",  # needs pytest: not loaded by nmfscale
    "nmfscale.extensions": """
        LANES LEAST MINVAL SUM_GRADIENT Block ColumnStep CountMatrix CountModel DeclaredMethod
        Executor FitKeywords FitOptions Fitted LaneBlocks LocalExecutor LogMu LogShares Method Needs
        OverLanes Panel Part RowArrays RowProblem RowsPass SellBlock Step SumColumns Sums Values
        aligned_copy aligned_empty cached_property checked_array count_constants decompositions
        dense estimator from_lanes functions lanes_of merged_factors of_features of_samples per_lane
        projection projection_needs row_stride rows_of_sums sliced_counts solve_rows sum_lanes
        to_lanes update_rows with_options
    """,
}
# Modules for those who write a model, and modules with classes that users do not create.
FOR_AUTHORS = "nmfscale.testing", "nmfscale.extensions"
OF_CLASSES = "nmfscale.errors", "nmfscale.results"


def public_things():
    """Return the public functions and classes by dotted name, except errors and results."""
    found = {}
    for name in NAMES.keys() - {*OF_CLASSES, "nmfscale.extensions"}:
        module = importlib.import_module(name)
        found |= {f"{name}.{each}": getattr(module, each) for each in module.__all__}
    return {name: thing for name, thing in found.items() if not inspect.ismodule(thing)}


@pytest.mark.parametrize("name", NAMES)
def test_public_names(name):
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(NAMES[name].split())
    assert all(hasattr(module, each) for each in module.__all__)


def test_a_model_of_another_package_imports_public_modules_only():
    tests = Path(__file__).resolve().parents[1]
    page = (tests.parent / "docs" / "engine.md").read_text(encoding="utf-8")
    imports = re.compile(r"^(?:>>> )?from (nmfscale[.\w]*) import", re.M)
    example = imports.findall((tests / "zero_inflated_nmf.py").read_text(encoding="utf-8"))
    assert example == ["nmfscale.extensions"]
    assert {*imports.findall(page)} <= NAMES.keys()
    rest = {name for name in importlib.import_module(example[0]).__all__ if f"`{name}" not in page}
    assert rest == set(), "docs/engine.md names them"


def test_modules_are_public_names():
    modules = {name for name in nmfscale.__all__ if inspect.ismodule(getattr(nmfscale, name))}
    assert {f"nmfscale.{name}" for name in modules} == NAMES.keys() - {"nmfscale", *FOR_AUTHORS}


def test_dir_shows_public_names_only():
    assert dir(nmfscale) == sorted(["__version__", *nmfscale.__all__])


def test_old_names_lead_to_the_new_ones():
    old = {nmfscale: "loglik_poisson Counts corpora jackknife_fit simulate_topic_counts model_of"}
    old |= {nmfscale.pl: "top_features detached_axes", nmfscale.tl: "quality"}
    for module, names in old.items():
        for name in names.split():
            with pytest.raises(AttributeError, match=rf"no attribute '{name}': use ") as refusal:
                getattr(module, name)
            place, _, new = str(refusal.value).rpartition(" ")[2].rpartition(".")
            assert hasattr(importlib.import_module(place), new)
        with pytest.raises(AttributeError, match="has no attribute 'loglik'$"):
            module.loglik  # noqa: B018


def test_import_loads_no_other_module():
    code = (
        "import sys; before = set(sys.modules); import nmfscale; "
        "print(*sorted(set(sys.modules) - before - {'nmfscale'}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def types_in(docstring, title):
    """Yield the types of the entries of a numpydoc section."""
    section = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n---|\Z)", docstring, re.M | re.S)
    for head in re.findall(r"^\S.*$", section[1] if section else "", re.M):
        yield head.rpartition(" : ")[2]


def test_classes_that_docstrings_name_are_public():
    """Those of returned values, and of attributes of results."""
    of_package = {
        name
        for path in [path for path in sys.modules if path.startswith("nmfscale.")]
        for name, thing in vars(sys.modules[path]).items()
        if inspect.isclass(thing) and thing.__module__.startswith("nmfscale.")
    }
    things = [(thing, "Returns") for thing in public_things().values()]
    results = nmfscale.results
    for name in set(results.__all__) - {"Corpus"}:  # which has the attributes of Counts
        docstring = inspect.getdoc(getattr(results, name))
        assert re.search("^(Attributes|Parameters)$", docstring, re.M), name
    things += [(getattr(results, name), "Attributes") for name in results.__all__]
    types = [text for thing, title in things for text in types_in(inspect.getdoc(thing), title)]
    named = set(re.findall(r"\w+", " ".join(types))) & of_package
    assert len(named) > 20
    assert named <= {*results.__all__, *nmfscale.__all__}


def test_errors_that_docstrings_name_are_public():
    named = set()
    for thing in public_things().values():
        methods = inspect.getmembers(thing, inspect.isfunction) if inspect.isclass(thing) else []
        for each in [thing, *(function for name, function in methods if name[0] != "_")]:
            named |= set(re.findall(r"\b[A-Z]\w+(?:Error|Warning)\b", inspect.getdoc(each) or ""))
    assert len(named) > 8
    assert named - set(nmfscale.errors.__all__) <= set(dir(builtins))


def test_tracebacks_show_the_public_names_of_errors():
    for name in nmfscale.errors.__all__:
        error = getattr(nmfscale.errors, name)
        assert error.__module__ in ("nmfscale.errors", "sklearn.exceptions")
        assert type(pickle.loads(pickle.dumps(error("message")))) is error
