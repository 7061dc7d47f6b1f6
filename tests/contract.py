"""Every model with its objective in plain NumPy, for the tests of what all models promise.

A new model is one line of `MODELS`.
"""

import numpy as np
import oracle
import oracle_noisy
import oracle_ssnmf
import pytest
from oracle_gamma_poisson import elbo_of as of_gamma_poisson

import nmfscale
from nmfscale.methods.variational.mixture_noise import GRID
from nmfscale.testing.case import ModelCase, X


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


MODELS = [
    ModelCase(nmfscale.PoissonNMF, of_poisson_nmf),
    ModelCase(nmfscale.TopicModel, of_topic_model),
    ModelCase(nmfscale.LDA, of_lda),
    ModelCase(nmfscale.LDA, of_collapsed_lda, variant={"inference": "collapsed"}, rises=False),
    ModelCase(nmfscale.GammaPoisson, of_gamma_poisson),
    ModelCase(nmfscale.GammaPoisson, of_gamma_poisson, variant={"hierarchical": True}),
    ModelCase(nmfscale.NoisyTopicModel, of_noisy_topics),
    ModelCase(nmfscale.AnchorNMF, of_anchors, 18, options={}),
    ModelCase(nmfscale.FrobeniusNMF, of_frobenius),
    ModelCase(nmfscale.FrobeniusNMF, of_frobenius, variant={"weighting": "tf-idf"}),
    ModelCase(nmfscale.SSNMF, of_ssnmf, given={"y": LABELS}),
    ModelCase(nmfscale.SSNMF, of_ssnmf, variant={"solver": "cd"}, given={"y": LABELS}),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
# These share the code of PoissonNMF, or of the mean-field models.
RELATED = (nmfscale.TopicModel, nmfscale.GammaPoisson, nmfscale.NoisyTopicModel)


def is_related(model):
    """Whether a model shares most of its code with another one, or is one with other options."""
    return bool(model.variant) or model.estimator in RELATED


one_of_each_family = pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=model.name, marks=pytest.mark.nightly if is_related(model) else ())
        for model in MODELS
    ],
)
