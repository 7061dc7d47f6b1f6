"""Classes of what the public functions return: for annotations, ``isinstance`` and documentation.

The functions create them, so none needs to be called. Counts are a :class:`CountMatrix`. Each other
class documents its attributes. What functions compute has tables, which ``to_frame()`` returns as
DataFrames and ``columns()`` as arrays, and ``save(path)``, which writes a file that
:func:`nmfscale.load_result` reads.
"""

from .counts.base import CountMatrix
from .counts.memory import Counts
from .datasets.corpora import Corpus
from .datasets.noisy import NoisyTruth
from .datasets.simulate import PoissonTruth, TopicTruth
from .inference.batches.effects_result import BatchEffects
from .inference.choice.coherence_result import TopicCoherence
from .inference.choice.compare_fits_result import FitComparison, FitSummary
from .inference.choice.consensus import Consensus
from .inference.choice.hierarchy_result import TopicHierarchy
from .inference.choice.modality_scores_result import ModalityScores
from .inference.choice.select_k_result import SelectK
from .inference.choice.stability_result import Stability
from .inference.choice.topic_levels_result import TopicLevels
from .inference.choice.topic_quality_result import TopicQuality
from .inference.features.conditions_result import ConditionFeatures
from .inference.features.differential_result import DifferentialFeatures
from .inference.features.enrichment_result import Enrichment
from .inference.features.features_by_group_result import FeaturesByGroup
from .inference.features.noisy_pairs_result import NoisyPairs
from .inference.features.pseudobulk_result import Pseudobulk
from .inference.features.seed_shares_result import SeedShares
from .inference.groups.bootstrap_result import BootstrapWeights
from .inference.groups.correspondence_result import CorrespondenceAnalysis
from .inference.groups.permutation_result import GroupTest, PermutationTest
from .inference.regression.effects_result import GroupDifferences, GroupEffects
from .inference.regression.regression_result import ProportionRegression
from .inference.replicates.jackknife_result import JackknifeEstimates, JackknifeFit
from .inference.replicates.refit_result import BootstrapFit, Estimates
from .inference.results.origin import Origin
from .inference.samples.cluster_samples_result import SampleClusters
from .inference.samples.find_samples_result import LeadingSamples
from .inference.samples.label_topics import TopicDescription
from .inference.samples.ranked_samples_result import RankedSamples
from .inference.several_fits.cluster_topics_result import TopicClusters
from .methods.conversion import TopicParameters
from .methods.topics.clustering import ClusteringScore
from .models.comparison import TopicMatch
from .storage.store import StoredCounts

__all__ = [
    "BatchEffects", "BootstrapFit", "BootstrapWeights", "ClusteringScore", "ConditionFeatures",
    "Consensus", "Corpus", "CorrespondenceAnalysis", "CountMatrix", "Counts",
    "DifferentialFeatures", "Enrichment", "Estimates", "FeaturesByGroup", "FitComparison",
    "FitSummary", "GroupDifferences", "GroupEffects", "GroupTest", "JackknifeEstimates",
    "JackknifeFit", "LeadingSamples", "ModalityScores", "NoisyPairs", "NoisyTruth", "Origin",
    "PermutationTest", "PoissonTruth", "ProportionRegression", "Pseudobulk", "RankedSamples",
    "SampleClusters", "SeedShares", "SelectK", "Stability", "StoredCounts", "TopicClusters",
    "TopicCoherence", "TopicDescription", "TopicHierarchy", "TopicLevels", "TopicMatch",
    "TopicParameters", "TopicQuality", "TopicTruth",
]  # fmt: skip
