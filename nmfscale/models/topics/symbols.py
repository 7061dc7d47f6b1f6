"""Symbols of genes in place of the names of features that a fit has, such as identifiers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...counts.names import as_text, is_missing, name_array, names_of, such_as
from ...readers.formats.tenx import distinct_names
from .topic_labels import topic_words


def symbols_by_name(symbols: Any, model: Any, argument: str = "gene_symbols") -> dict[str, Any]:
    """Return the symbol of each feature of a model by its name.

    A Series or a dict has symbols by name, anything else a symbol for each feature in order.
    """
    names = names_of(model, 1)
    if names is None:
        raise ValueError(f"{argument}: the model has no names of features to be replaced.")
    index = names_of(symbols) if hasattr(symbols, "iloc") else None
    if isinstance(symbols, Mapping):
        by_name = {str(name): symbols[name] for name in symbols}
    elif index is not None:
        by_name = dict(zip(as_text(index), symbols, strict=True))
    elif len(symbols) != len(names):
        raise ValueError(
            f"{argument} has {len(symbols):,} entries, and the model {len(names):,} features."
        )
    else:
        by_name = dict(zip(as_text(names), symbols, strict=True))
    if by_name.keys().isdisjoint(as_text(names)):
        raise ValueError(
            f"{argument} has no symbol for any feature of the model, such as {such_as(names)}; it "
            f"has those of {such_as(by_name)}."
        )
    return by_name


def with_symbols(fit: Any, symbols: Mapping[str, Any], model: Any = None) -> Any:
    """Return a copy of a model, or of a result, that has symbols as names of features.

    A feature without a symbol keeps its name; it is added to a symbol that several features have.
    `model`, with symbols, is that of a result, whose labels of topics have its leading features.
    """
    is_model = hasattr(fit, "components_")
    if getattr(getattr(fit, "origin", None), "topic_words", None) is not None:
        fit = replace(fit, origin=replace(fit.origin, topic_words=topic_words(model)))
    names = names_of(fit, 1) if is_model else getattr(fit, "feature_names", None)
    if names is None:
        return fit
    ids = as_text(name_array(names))
    labels = np.array([_text(symbols.get(name), name) for name in ids], object)
    labels = distinct_names(labels, ids)
    if not is_model:
        return replace(fit, feature_names=labels)
    model = copy.copy(fit)
    vars(model).pop("feature_labels_", None)
    model.feature_names_in_ = labels
    return model


def _text(symbol: Any, name: str) -> str:
    return name if is_missing(symbol) or not str(symbol) else str(symbol)
