"""Classes of what the public functions return: for annotations, ``isinstance`` and documentation.

The functions create them, so none needs to be called. Counts are a :class:`CountMatrix`. Each other
class documents its attributes; most have ``to_frame()``, which returns a table, and ``save(path)``,
which writes a file that :func:`nmfscale.load_result` reads.
"""

from .counts.base import CountMatrix
from .counts.memory import Counts
from .datasets.corpora import Corpus
from .datasets.noisy import NoisyTruth
from .datasets.simulate import PoissonTruth, TopicTruth
from .inference.consensus import Consensus
from .inference.results.bootstrap import BootstrapWeights
from .inference.results.cluster_samples import SampleClusters
from .inference.results.compare_fits import FitComparison, FitSummary
from .inference.results.correspondence import CorrespondenceAnalysis
from .inference.results.differential import DifferentialFeatures
from .inference.results.effects import GroupDifferences, GroupEffects
from .inference.results.find_samples import LeadingSamples
from .inference.results.jackknife import JackknifeEstimates, JackknifeFit
from .inference.results.noisy_pairs import NoisyPairs
from .inference.results.origin import Origin
from .inference.results.permutation import GroupTest, PermutationTest
from .inference.results.refit import BootstrapFit, Estimates
from .inference.results.regression import ProportionRegression
from .inference.results.select_k import SelectK
from .inference.results.stability import Stability
from .inference.results.topic_quality import TopicQuality
from .methods.clustering import ClusteringScore
from .methods.conversion import TopicParameters
from .models.comparison import TopicMatch
from .storage.store import StoredCounts

__all__ = [
    "BootstrapFit", "BootstrapWeights", "ClusteringScore", "Consensus", "Corpus",
    "CorrespondenceAnalysis", "CountMatrix", "Counts", "DifferentialFeatures", "Estimates",
    "FitComparison", "FitSummary",
    "GroupDifferences", "GroupEffects", "GroupTest", "JackknifeEstimates", "JackknifeFit",
    "LeadingSamples", "NoisyPairs", "NoisyTruth", "Origin", "PermutationTest", "PoissonTruth",
    "ProportionRegression", "SampleClusters", "SelectK", "Stability", "StoredCounts", "TopicMatch",
    "TopicParameters", "TopicQuality", "TopicTruth",
]  # fmt: skip
