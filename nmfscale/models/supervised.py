"""Predictions of a model of data and labels: loadings, labels, targets, scores."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeAlias, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_is_fitted

from ..counts.argument_types import CountsLike
from ..counts.base import CountMatrix
from ..counts.names import of_samples, shown
from ..counts.warn import warn_caller
from ..methods.rows_pass import RowsPass
from ..methods.ssnmf.labels import predicted
from ..methods.ssnmf.steps import Losses, representation, representation_needs
from .arguments.entry_weights import weighted_entries
from .arguments.fit_options import WeightedSampleOptions, with_options
from .arguments.measured_entries import check_missing_entries
from .arguments.targets import unlabelled
from .base import CountModel

Array = NDArray[Any]

Loss: TypeAlias = Literal["frobenius", "kl"]
LossNames: TypeAlias = Literal["FF", "FD", "DF", "DD"]
LOSSES: dict[LossNames, Losses] = {
    "FF": Losses("frobenius", "frobenius"),
    "FD": Losses("frobenius", "kl"),
    "DF": Losses("kl", "frobenius"),
    "DD": Losses("kl", "kl"),
}
# Number of samples that a warning names.
_NAMED = 5


def supervision_from_variances(
    losses: LossNames | tuple[Loss, Loss],
    *,
    data_variance: float | None = None,
    target_variance: float | None = None,
) -> float:
    """Return the `supervision` with which an :class:`nmfscale.SSNMF` maximises a likelihood [1]_.

    The entries of X and Y are independent with means ``S A^T`` and ``S B^T``. Those whose loss is a
    norm are Gaussian with a known variance, those whose loss is a divergence are Poisson. Then the
    loss is minus the log-likelihood, up to a factor and a constant, if lambda is

        FF   data_variance / target_variance
        FD   2 data_variance
        DF   1 / (2 target_variance)
        DD   1

    Parameters
    ----------
    losses : {"FF", "FD", "DF", "DD"} or tuple of two of {"frobenius", "kl"}
        As in :class:`nmfscale.SSNMF`.
    data_variance : float, default=None
        Variance of an entry of X around its mean, if the loss of the data is a norm.
    target_variance : float, default=None
        Variance of an entry of Y around its mean, if the loss of the labels is a norm.

    Returns
    -------
    float
        The weight of the labels, lambda in the paper.

    Raises
    ------
    ValueError
        If a variance is missing, not positive, or given for a divergence.

    Notes
    -----
    In the paper an entry is a sum of one variable for each of the r topics, with variance sigma:
    the variances here are ``r sigma``, those of entries. They are known from repeated measurements,
    or from the residuals of a fit. For labels of classes, whose entries are 0 or 1, no such model
    holds, and lambda is best chosen by validation.

    References
    ----------
    .. [1] Haddock et al. Semi-supervised NMF models for topic modeling in learning tasks, section
       2.1 and appendix A.

    Examples
    --------
    >>> from nmfscale import SSNMF
    >>> from nmfscale.experimental import supervision_from_variances
    >>> supervision = supervision_from_variances("FD", data_variance=0.25)
    >>> supervision
    0.5
    >>> X, Y = [[4.1, 0.2], [0.3, 2.8], [7.9, 0.1]], [[2, 0], [0, 5], [3, 0]]
    >>> SSNMF(2, losses="FD", supervision=supervision, random_state=0).fit(X, Y).loss_ < 10
    True
    """
    pair, scales = _pair_of(losses), []
    variances = {"data_variance": data_variance, "target_variance": target_variance}
    for loss, (name, variance) in zip(pair, variances.items(), strict=True):
        gaussian = loss == "frobenius"
        if gaussian != (variance is not None):
            raise ValueError(
                f"losses={shown(losses)} and {name}={variance}: a positive variance is needed for "
                "a Frobenius norm, whose entries are Gaussian, and none for a divergence, whose "
                "entries are Poisson."
            )
        if variance is not None and not (variance > 0 and np.isfinite(variance)):
            raise ValueError(f"{name}={variance}: a positive finite number is needed.")
        # of a squared error in minus the log-likelihood; that of a divergence is 1
        scales.append(1.0 if variance is None else 1 / (2 * variance))
    return scales[1] / scales[0]


def _pair_of(losses: Any) -> Losses:
    pair = LOSSES[losses] if isinstance(losses, str) and losses in LOSSES else losses
    if pair not in LOSSES.values():
        raise ValueError(
            f"losses={shown(losses)}: give the loss of the data and that of the labels, "
            "each 'frobenius' or 'kl', or one of 'FF', 'FD', 'DF', 'DD'."
        )
    return Losses(*pair)


class SupervisedModel(ClassifierMixin, CountModel):
    """Base of a model whose loadings S explain data, ``S A^T``, and labels, ``S B^T``."""

    target_components_: Array
    classes_: Array
    class_prior_: Array
    losses: LossNames | tuple[Loss, Loss]
    transform_iter: int

    _of_entries = frozenset({"data_weights"})
    # weights of the entries of the counts that a copy is for
    _data_weights: Any = None

    @property
    def _pair(self) -> Losses:
        return _pair_of(self.losses)

    @with_options(WeightedSampleOptions)
    def transform(
        self,
        X: CountsLike,
        out: str | os.PathLike[str] | None = None,
        **options: Unpack[WeightedSampleOptions],
    ) -> Array:
        """Return the loadings of old or new samples, from their data alone.

        With the Frobenius norm, loadings solve a non-negative least squares problem; with the
        divergence, they are the result of `transform_iter` multiplicative steps from constant
        loadings, as in the paper. The loadings of a sample do not depend on the other samples.

        Parameters
        ----------
        X : non-negative data of shape (n_samples, n_features)
            As in :meth:`fit`.
        out : str or path-like, default=None
            File for the loadings, as in :meth:`PoissonNMF.transform`.
        missing : {"error", "restrict", "zero"}, default=None
            How to treat features of the fit that `X` lacks, as in :meth:`PoissonNMF.transform`.
        client : distributed.Client, default=None
            Cluster that does the work, as in :meth:`PoissonNMF.transform`.
        layer, raw, **source
            As in :meth:`fit`.
        data_weights : array-like of shape (n_samples, n_features), sparse or "nan", default=None
            As in :meth:`fit`, with a column for each feature of `X`.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Loadings, of the type of ``components_``; with `out` a read-only memory map of the file.

        Raises
        ------
        ValueError, MemoryLimitError, FileNotFoundError, ClusterError
            As in :meth:`PoissonNMF.transform`.
        """
        return self._transform(X, out, options)

    def _knowing(
        self, counts: CountMatrix, entry_options: dict[str, Any]
    ) -> tuple[Self, CountMatrix]:
        self._check_unmeasured(counts)
        if entry_options.get("data_weights") is None:
            check_missing_entries(self, counts)
        model = copy.copy(self)
        model._data_weights = entry_options.get("data_weights")
        return model, counts

    def pass_of_loadings(
        self, counts: CountMatrix, *, gathered: bool, **arguments: Any
    ) -> RowsPass:
        weighted = self._data_weights is not None
        self.check_memory(
            counts, representation_needs(counts, self.n_components_, weighted), gathered=gathered
        )
        loss, less_one = self._pair.data, None
        if weighted:
            counts, entries = weighted_entries(counts, self._data_weights, loss)
            less_one = entries.less_one
        return representation(
            counts,
            self.components_.T,
            loss,
            self.transform_iter,
            self.threads_for(counts),
            less_one,
        )

    @with_options(WeightedSampleOptions)
    def predict(self, X: CountsLike, **options: Unpack[WeightedSampleOptions]) -> Array:
        """Predict labels, or targets, of samples.

        Parameters
        ----------
        X, missing, client, layer, raw, data_weights, **source
            As in :meth:`transform`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets)
            The class with the largest entry of ``S B^T``, or S B^T itself after a fit to targets.

        Raises
        ------
        ValueError, ClusterError
            As in :meth:`transform`; also if the fit had no labels.

        Warns
        -----
        UserWarning
            If samples have loadings that are all zero, such as those without counts: they get the
            most frequent class, and the warning names them.
        """
        model, counts, client = self._to_predict(X, options)
        return model._labels_of(counts, client)

    @with_options(WeightedSampleOptions)
    def predict_proba(self, X: CountsLike, **options: Unpack[WeightedSampleOptions]) -> Array:
        """Return the share of each class in the predicted labels ``S B^T`` of samples.

        Parameters
        ----------
        X, missing, client, layer, raw, data_weights, **source
            As in :meth:`transform`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Shares of classes; rows sum to one. They are not calibrated probabilities.

        Raises
        ------
        ValueError, ClusterError
            As in :meth:`predict`; also if the model was fitted to targets.

        Warns
        -----
        UserWarning
            As in :meth:`predict`; these samples get ``class_prior_``.
        """
        check_is_fitted(self)
        if not hasattr(self, "classes_"):
            raise ValueError("this SSNMF was fitted to targets, which have no probabilities.")
        model, counts, client = self._to_predict(X, options)
        return model._predicted(counts, client)

    def _to_predict(self, X: Any, options: Mapping[str, Any]) -> tuple[Self, CountMatrix, Any]:
        """Return the result of `_arranged`, if the model can predict."""
        check_is_fitted(self)
        if not len(self.target_components_):
            raise ValueError(
                "this SSNMF was fitted without labels, so that it cannot predict any: give y to "
                "fit, with a label for some samples at least."
            )
        return self._arranged(X, options)

    def _labels_of(self, counts: CountMatrix, client: Any) -> Array:
        """Predict labels, or targets, of new counts."""
        predictions = self._predicted(counts, client)
        return (
            self.classes_[predictions.argmax(axis=1)] if hasattr(self, "classes_") else predictions
        )

    def _predicted(self, counts: CountMatrix, client: Any) -> Array:
        """Return S B^T; with classes, rows are normalised to sum to one."""
        S = self._loadings(counts, dtype=np.float64, client=client)
        predictions = predicted(S, self.target_components_.astype(np.float64))
        if not hasattr(self, "classes_"):
            return predictions
        total = predictions.sum(axis=1)
        nothing = np.flatnonzero(~(total > 0))
        predictions[nothing], total[nothing] = self.class_prior_, 1
        if nothing.size:
            names = nothing if counts.sample_names is None else counts.sample_names[nothing]
            some = ", ".join(map(str, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
            warn_caller(
                f"{len(nothing):,} of {len(predictions):,} samples have nothing to predict a "
                "label from, "
                f"such as any feature of a topic: {some}. They get the most frequent class, "
                f"{shown(self.classes_[self.class_prior_.argmax()])}."
            )
        return np.asarray(predictions / total[:, None])

    @with_options(WeightedSampleOptions)
    def score(  # type: ignore[override]
        self,
        X: CountsLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        **options: Unpack[WeightedSampleOptions],
    ) -> float:
        """Return the accuracy of predicted labels, or R^2 of predicted targets.

        Parameters
        ----------
        X, missing, client, layer, raw, data_weights, **source
            As in :meth:`transform`.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Labels (unlabelled samples are left out), or targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples in the mean.

        Returns
        -------
        float
            Higher is better, at most 1.

        Raises
        ------
        ValueError, ClusterError
            As in :meth:`predict`.
        """
        model, counts, client = self._to_predict(X, options)
        y = of_samples(y, counts, "y")
        sample_weight = of_samples(sample_weight, counts, "sample_weight")
        predictions = model._labels_of(counts, client)
        if not hasattr(self, "classes_"):
            return float(r2_score(y, predictions, sample_weight=sample_weight))
        labels = np.asarray(y)
        labelled = ~unlabelled(labels)
        weights = None if sample_weight is None else np.asarray(sample_weight)[labelled]
        return float(accuracy_score(labels[labelled], predictions[labelled], sample_weight=weights))

    @property
    def perplexity(self) -> Any:
        """Not available: the losses are not likelihoods of counts."""
        raise AttributeError("SSNMF has no perplexity: use score, or loss_ after a fit.")

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that y may be missing, in addition to the tags of the base class."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        # classes are distinguished by the direction of samples from zero, as in naive Bayes
        tags.classifier_tags.poor_score = True
        return tags
