"""The option --gene-symbols: models that show symbols of genes in place of identifiers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from .labels import file_and_column
from .messages import log


def symbols_of(
    arguments: argparse.Namespace, model: Any, counts: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Return symbols by the names of the features of a model; None without the option.

    The option may be the name of a column of the first of the files of `counts`.
    """
    from ..counts.names import names_of

    return symbols_by_features(arguments, names_of(model, 1), counts)


def symbols_by_features(
    arguments: argparse.Namespace, names: Any, counts: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Return the same for names of features."""
    spec = arguments.gene_symbols
    if spec is None:
        return None
    from ..readers.formats.gene_symbols import symbols_in_file

    if names is None:
        raise ValueError("--gene-symbols: the model has no names of features to be replaced.")
    path, column = file_and_column(spec)
    if not os.path.exists(path) and counts:  # the name of a column
        path, column = counts[0], spec
    symbols = symbols_in_file(path, column, names, getattr(arguments, "modality", None))
    if n_lacking := sum(str(name) not in symbols for name in names):
        log(
            f"warning: {path} has no symbol for {n_lacking:,} of the {len(names):,} features of "
            "the model, which keep their names"
        )
    return symbols


def shown_model(arguments: argparse.Namespace, model: Any) -> Any:
    """Return the model with symbols as names of features; the model itself without the option."""
    symbols = symbols_of(arguments, model)
    if symbols is None:
        return model
    from ..models.topics.symbols import with_symbols

    return with_symbols(model, symbols)
