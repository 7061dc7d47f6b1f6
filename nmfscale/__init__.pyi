"""The public names, and where they are: types for checkers, and what `__init__.py` loads late."""

from . import datasets as datasets
from . import errors as errors
from . import experimental as experimental
from . import get as get
from . import likelihood as likelihood
from . import pl as pl
from . import results as results
from . import tl as tl
from .inference.batches.effects import batch_effects as batch_effects
from .inference.choice.compare_fits import compare_fits as compare_fits
from .inference.choice.select_k import select_k as select_k
from .inference.choice.stability import stability as stability
from .inference.choice.topic_quality import topic_quality as topic_quality
from .inference.features.conditions import condition_features as condition_features
from .inference.features.differential import differential_features as differential_features
from .inference.features.pseudobulk import pseudobulk as pseudobulk
from .inference.groups.balance import balance as balance
from .inference.groups.bootstrap import bootstrap_weights as bootstrap_weights
from .inference.regression.effects import group_effects as group_effects
from .inference.regression.permutation import permutation_test as permutation_test
from .inference.regression.regression import regress_proportions as regress_proportions
from .inference.replicates.refit import bootstrap_fit as bootstrap_fit
from .inference.results.files import load_result as load_result
from .inference.samples.cluster_samples import cluster_samples as cluster_samples
from .inference.samples.find_samples import find_samples as find_samples
from .methods.topics.clustering import clustering_score as clustering_score
from .models.anchor_nmf import AnchorNMF as AnchorNMF
from .models.comparison import match_topics as match_topics
from .models.frobenius_nmf import FrobeniusNMF as FrobeniusNMF
from .models.gamma_poisson import GammaPoisson as GammaPoisson
from .models.lda import LDA as LDA
from .models.noisy_topic_model import NoisyTopicModel as NoisyTopicModel
from .models.persistence import load_model as load
from .models.poisson_nmf import PoissonNMF as PoissonNMF
from .models.ssnmf import SSNMF as SSNMF
from .models.topic_model import TopicModel as TopicModel
from .readers.concat import concat as concat
from .readers.convert import write_store as write_store
from .readers.gene_sets import read_gmt as read_gmt
from .readers.open import as_counts as as_counts
from .readers.open import read_counts as read_counts
from .readers.text_counts import text_counts as text_counts
from .readers.thin import thin as thin
from .report.page import write_report as write_report

__version__: str
