"""Every model with its objective in plain NumPy, for the tests of what all models promise.

A new model is one line of `MODELS`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import oracle
import oracle_noisy
import oracle_ssnmf
import pytest
from background_nmf import BackgroundNMF
from oracle_gamma_poisson import elbo_of as of_gamma_poisson
from small_fits import X

import nmfscale
from nmfscale.methods.variational.mixture_noise import GRID


@dataclass(frozen=True)
class Model:
    """An estimator, and the objective of its factors in plain NumPy: the same but for rounding.

    The objective is the first column of `history_` after the iteration and the seconds. Fits take
    18 iterations.
    """

    estimator: type
    objective: Callable
    n_components: int = 3
    options: dict = field(default_factory=lambda: {"max_iter": 18, "tol": 0})
    variant: dict = field(default_factory=dict)
    given: dict = field(default_factory=dict)  # to fit, besides the counts
    rises: bool = True  # whether the objective rises in every iteration

    def make(self, **options):
        given = self.options | self.variant | {"random_state": 0, "n_threads": 1} | options
        known = inspect.signature(self.estimator).parameters
        given = {name: value for name, value in given.items() if name in known}
        return self.estimator(**{"n_components": self.n_components} | given)

    @property
    def name(self):
        return "-".join([self.estimator.__name__, *self.variant])

    def made_at_random(self, **options):
        """As `make`, with another start than the default where that is not random."""
        known = inspect.signature(self.estimator).parameters
        return self.make(**({"init": "random"} if "init" in known else {}) | options)

    def can(self, argument):
        """Whether `fit` takes an argument: client, checkpoint."""
        return argument in inspect.signature(self.estimator.fit).parameters


def of_poisson_nmf(fitted, counts):
    return oracle.loglik_poisson(counts, fitted.loadings_, fitted.components_.T).sum()


def of_topic_model(fitted, counts):
    topics = fitted.loadings_, fitted.components_.T, fitted.size_factors_, fitted.scales_
    return oracle.loglik_poisson(counts, *oracle.multinomial_to_poisson(*topics)).sum()


def of_lda(fitted, counts):
    return oracle.elbo_lda(
        counts, fitted.doc_topic_posterior_, fitted.topic_word_posterior_,
        fitted.doc_topic_prior_, fitted.topic_word_prior_,
    )  # fmt: skip


def of_collapsed_lda(fitted, counts):
    return oracle.leave_one_out(
        counts, fitted.doc_topic_posterior_, fitted.topic_word_posterior_,
        fitted.doc_topic_prior_, fitted.topic_word_prior_,
    )  # fmt: skip


def of_noisy_topics(fitted, counts):
    pairs = fitted.topic_counts_.T, fitted.expected_counts_.T
    prior = GRID, fitted.noise_shares_
    return oracle_noisy.mixture_elbo(counts, fitted.loadings_, fitted.mu_, *prior, *pairs)


def of_anchors(fitted, counts):
    return oracle.share_spanned(counts, fitted.anchors_)


def of_frobenius(fitted, counts):
    alpha = fitted.alpha_W
    return -oracle.frobenius_loss(
        oracle.weighted_counts(counts, fitted.weighting), fitted.loadings_, fitted.components_,
        alpha, alpha if fitted.alpha_H == "same" else fitted.alpha_H, fitted.l1_ratio,
    )  # fmt: skip


LABELS = np.resize(["b", "a", "", "a"], len(X)).astype(object)
LABELS[LABELS == ""] = None


def of_ssnmf(fitted, counts):
    Y = (LABELS[None] == fitted.classes_[:, None]).astype(float)
    known = np.array([label is not None for label in LABELS]) * 1.0
    factors = fitted.components_.T, fitted.target_components_, fitted.loadings_.T
    kinds = ("kl", "kl")
    return -oracle_ssnmf.objective(counts.T, Y, *factors, kinds, fitted.supervision, L=known)


def of_background_nmf(fitted, counts):
    L = np.column_stack([fitted.loadings_, fitted.background_counts_])
    F = np.column_stack([fitted.components_.T, fitted.background_])
    return oracle.loglik_poisson(counts, L, F).sum()


MODELS = [
    Model(nmfscale.PoissonNMF, of_poisson_nmf),
    Model(nmfscale.TopicModel, of_topic_model),
    Model(nmfscale.LDA, of_lda),
    Model(nmfscale.LDA, of_collapsed_lda, variant={"inference": "collapsed"}, rises=False),
    Model(nmfscale.GammaPoisson, of_gamma_poisson),
    Model(nmfscale.GammaPoisson, of_gamma_poisson, variant={"hierarchical": True}),
    Model(nmfscale.NoisyTopicModel, of_noisy_topics),
    Model(nmfscale.AnchorNMF, of_anchors, 18, options={}),
    Model(nmfscale.FrobeniusNMF, of_frobenius),
    Model(nmfscale.FrobeniusNMF, of_frobenius, variant={"weighting": "tf-idf"}),
    Model(nmfscale.SSNMF, of_ssnmf, given={"y": LABELS}),
    Model(nmfscale.SSNMF, of_ssnmf, variant={"solver": "cd"}, given={"y": LABELS}),
    Model(BackgroundNMF, of_background_nmf),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


def numbers(fitted, but=("seconds", "bytes_read")):
    """All numbers and arrays of numbers that a fit sets, as bytes."""
    arrays = {
        name: np.asarray(value)
        for name, value in vars(fitted).items()
        if name.endswith("_") and not name.startswith("_")
    }
    history = arrays.pop("history_", np.empty(0, []))
    arrays |= {name: history[name] for name in history.dtype.names if name not in but}
    return {
        name: (array.dtype.str, array.shape, array.tobytes())
        for name, array in arrays.items()
        if array.dtype.kind in "biuf"
    }
