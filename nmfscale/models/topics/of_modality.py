"""The part of a fit that belongs to one of several joined modalities."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ...counts.names import shown, such_as

# Attributes that a fit to several modalities has, and its part for one modality has not.
_OF_ALL = (
    "modalities_", "feature_weights_", "history_", "loglik_", "elbo_", "loss_", "batch_shape_",
)  # fmt: skip


class ModalityMixin:
    """A method that returns the part of a fit with the features of one modality."""

    def of_modality(self, modality: str) -> Self:
        """Return a copy of the fitted model with the features of one of several modalities.

        Tables and plots of topics, :func:`nmfscale.get.top_features` and
        :func:`nmfscale.enrichment`, then show this modality.

        Parameters
        ----------
        modality : str
            Name of a modality of the fit: see :func:`nmfscale.join_modalities`.

        Returns
        -------
        self : object
            A copy with ``components_`` of shape (n_components, n_features of the modality), which
            are still those of the joined counts: rows sum to the share of the modality. Features
            have the names that they have in the modality, without "rna:". Loadings, and totals of
            samples, are those of all modalities. It has no ``history_``, log-likelihood or weights.

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        ValueError
            If the model was not fitted to joined modalities, or has no such modality.

        Examples
        --------
        >>> import numpy as np
        >>> import nmfscale
        >>> rng = np.random.default_rng(0)
        >>> rna = nmfscale.as_counts(rng.poisson(5, (40, 3)), feature_names=["A", "B", "CD3"])
        >>> adt = nmfscale.as_counts(rng.poisson(9, (40, 2)), feature_names=["CD3", "CD8"])
        >>> counts = nmfscale.join_modalities({"rna": rna, "adt": adt}, modality_weights="counts")
        >>> model = nmfscale.TopicModel(2, random_state=0).fit(counts)
        >>> model.of_modality("adt").feature_names_in_.tolist()
        ['CD3', 'CD8']
        """
        check_is_fitted(self, "components_")
        model: Any = self
        modalities = getattr(model, "modalities_", None)
        if modalities is None:
            raise ValueError(
                f"modality={shown(modality)}: this {type(self).__name__} was not fitted to joined "
                "modalities."
            )
        if not isinstance(modality, str) or not (modalities == modality).any():
            labels = dict.fromkeys(modalities.tolist())
            raise ValueError(
                f"modality={shown(modality)} is not one of those of the fit: {such_as(labels)}."
            )
        part = model._taken("m", np.flatnonzero(modalities == modality))
        for name in vars(part).keys() & set(_OF_ALL):
            delattr(part, name)
        part.n_features_in_ = part.components_.shape[1]
        if hasattr(part, "feature_names_in_"):
            part.feature_names_in_ = np.array(
                [name.removeprefix(f"{modality}:") for name in part.feature_names_in_], object
            )
        if getattr(part, "measured_", None) is not None:
            # samples that lack the modality have loadings from the others
            there = part.measured_ | ~part.measured_.any(axis=1, keepdims=True)
            part.measured_ = None if there.all() else there
            part.panel_ = None if there.all() else part.panel_
        return part
