"""from_components: models whose components are a table, and not the result of a fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import NotFittedError

from ..counts.argument_types import PathLike
from ..readers.formats.text_tables import is_text_table
from .arguments.component_tables import ComponentTable, FeaturesIn
from .arguments.parameters import check_values
from .topics.topics import new_topic_names

Array = NDArray[Any]


def why_no_loadings(model: Any) -> str:
    """Return why a model with components has no loadings of samples, for messages."""
    if hasattr(model, "from_table_"):
        return f"its components come from a table ({model.from_table_})"
    return "it was fitted in batches"


def is_table(source: Any) -> bool:
    """Whether an argument that may be a model is a table of components: a DataFrame or a path."""
    if isinstance(source, str | os.PathLike):
        return is_text_table(Path(source))
    return hasattr(source, "iloc")


def model_of_table(components: Any, of_counts: Any, batch_shape: float | None = None) -> Any:
    """Return the topic model of a table, whose features are among those of counts.

    `of_counts` are their names, or None; without a shape there can be no batches.
    """
    from .topic_model import TopicModel  # which derives from the class below

    table = ComponentTable.of(components, of_counts=of_counts)
    return TopicModel._from_table(
        table, **{} if batch_shape is None else {"batch_shape": batch_shape}
    )


class FromComponents:
    """Models that a table of components makes usable without a fit."""

    @classmethod
    def from_components(
        cls,
        components: ArrayLike | PathLike,
        *,
        feature_names: ArrayLike | None = None,
        features_in: FeaturesIn | None = None,
        **parameters: Any,
    ) -> Self:
        """Return a model with the components of a table, such as programs of another data set.

        The model has everything that needs no samples of a fit: :meth:`transform`, :meth:`score`,
        :meth:`save`, names of topics, :func:`nmfscale.get.top_features` and
        :func:`nmfscale.write_report`. It can also be fitted, which replaces its components.

        Parameters
        ----------
        components : DataFrame, array-like or path
            Non-negative weights of features in components: frequencies, mean counts or spectra at
            any scale, or 0 and 1 for markers. A path is that of a table of text (.csv, .tsv or
            .txt, also with .gz) with names of rows and columns, such as ``gene_spectra_tpm`` of
            cNMF, a reference of starCAT, or what ``nmfscale export`` writes. In a
            :class:`TopicModel`, each component is divided by its sum.
        feature_names : array-like of str, default=None
            Names of the features of an array.
        features_in : {"rows", "columns"}, default=None
            Which axis has the features. None: that whose labels are text, if those of the other one
            are numbers; otherwise the longer one, if it is at least twice as long. Without names,
            columns, as in ``components_``.
        **parameters
            Parameters of the model. `n_components` is the number of components of the table. For
            `batch` in :meth:`transform`, give the shape of the prior of efficiencies, such as
            ``batch_shape=10``, which no fit has estimated.

        Returns
        -------
        model
            With the attributes ``components_``, ``feature_names_in_`` and ``topic_names_``, if the
            table has these names, and ``from_table_``, the name of the file or the type of the
            table. It has no ``loadings_``, ``history_`` or other results of a fit.

        Raises
        ------
        ValueError
            If a weight is negative or missing, all weights of a component are 0, names occur twice,
            or it is not clear which axis has the features.
        FileNotFoundError
            If there is no such file.

        Examples
        --------
        >>> import pandas as pd
        >>> from nmfscale import TopicModel
        >>> programs = pd.DataFrame(
        ...     {"B cells": [9, 1, 0], "T cells": [0, 2, 8]}, index=["MS4A1", "CD79A", "CD3D"]
        ... )
        >>> model = TopicModel.from_components(programs, features_in="rows")
        >>> cells = pd.DataFrame([[0, 2, 8], [9, 1, 0]], columns=programs.index)
        >>> model.transform(cells).round(2)
        array([[0., 1.],
               [1., 0.]])
        """
        table = ComponentTable.of(components, feature_names=feature_names, features_in=features_in)
        return cls._from_table(table, **parameters)

    @classmethod
    def _from_table(cls, table: ComponentTable, **parameters: Any) -> Self:
        """Return a model with the components of a checked table."""
        model: Any = cls(**parameters | {"n_components": len(table.values)})
        check_values(model)
        model.seed_, model.sample_names_, model.obs_ = None, None, None
        model.n_features_in_ = table.values.shape[1]
        if table.feature_names is not None:
            model.feature_names_in_ = table.feature_names
        model.unseen_features_ = ~table.values.any(axis=0)
        model._take_components(table.values)
        model.from_table_ = table.source
        if table.topic_names is not None:
            model.topic_names_ = new_topic_names(model, table.topic_names.tolist())
        made: Self = model
        return made

    def _take_components(self, values: Array) -> None:
        """Set the attributes of components (K, m)."""
        model: Any = self
        model.components_ = np.array(values, model.fit_dtype())

    def _check_samples(self) -> None:
        """Refuse what needs the samples of a fit."""
        if not hasattr(self, "loadings_"):
            raise NotFittedError(
                f"this {type(self).__name__} has no loadings_, as {why_no_loadings(self)}: fit it, "
                "or use what transform returns."
            )
