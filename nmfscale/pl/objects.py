"""AnnData objects as arguments of plots: the models, results and colours in them."""

from __future__ import annotations

from typing import Any

from ..annotated.places import column, is_object, only_modality
from ..annotated.scheme import (
    OF_GROUPS,
    model_in,
    names_of_groups,
    read_result,
    read_table,
)
from ..models.topics.topic_labels import topic_labels, topic_words


def result_in(source: Any, key: str, *place: str | None) -> Any:
    """Return the result of a tool in an AnnData object; other arguments unchanged.

    `place` is empty for a result that belongs to no fit, whose key is then `key`. If the last item
    is None, the object must have the result for one column of groups only.
    """
    if not is_object(source):
        refuse_groupby(place[-1] if len(place) > 1 else None)
        return source
    adata = only_modality(source)
    if place and place[0] in OF_GROUPS and place[-1] is None:
        place = place[0], names_of_groups(adata, key, str(place[0]))
    return read_result(adata, key, *map(str, place))


def refuse_groupby(groupby: Any) -> None:
    """Refuse the name of a column where there is no AnnData object."""
    if groupby is not None:
        raise ValueError(
            f"groupby={groupby!r} is the name of a column of obs, and the first argument is no "
            "AnnData object."
        )


def groups_of(source: Any, groups: Any, groupby: str | None) -> tuple[Any, Any]:
    """Return labels of observations, and the colours of their groups as scanpy keeps them."""
    if not is_object(source):
        refuse_groupby(groupby)
        return groups, None
    adata = only_modality(source)
    if groupby is None and isinstance(groups, str):
        groupby = groups
    if groupby is None:
        return groups, None
    labels = column(adata, groupby, "groupby", whole=source)
    colors = adata.uns.get(f"{groupby}_colors")
    if colors is None or not hasattr(labels, "cat") or len(colors) < len(labels.cat.categories):
        return labels, None
    return labels, dict(zip(map(str, labels.cat.categories), map(str, colors), strict=False))


def colors_of(source: Any, key: str, colors: Any) -> Any:
    """Return colours of topics: as given, or those in ``uns["<key>_colors"]``."""
    if colors is not None or not is_object(source):
        return colors
    colors_in_uns = only_modality(source).uns.get(f"{key}_colors")
    return None if colors_in_uns is None else list(map(str, colors_in_uns))


def observations_with_topics(source: Any, basis: str, key: str) -> tuple[Any, dict[str, str]]:
    """Return an AnnData object whose obs has a column for each topic, and their names and labels.

    It shares the counts, the embedding and the colours of the given object.
    """
    import anndata

    adata = only_modality(source)
    table = read_table(adata, key)
    place = next((name for name in (basis, f"X_{basis}") if name in adata.obsm), None)
    if place is None:
        embeddings = ", ".join(map(repr, adata.obsm)) or "none"
        raise ValueError(
            f"basis={basis!r} is not an embedding in adata.obsm, which has: {embeddings}."
        )
    obs = adata.obs.drop(columns=table.columns.intersection(adata.obs.columns)).join(table)
    observations = anndata.AnnData(
        None if adata.isbacked else adata.X, obs=obs, var=adata.var, uns=dict(adata.uns),
        obsm={place: adata.obsm[place]},
    )  # fmt: skip
    labels = topic_labels(list(table.columns), topic_words(model_in(source, key)))
    return observations, dict(zip(table.columns, labels, strict=True))
