"""Objects of pandas, and dicts, whose entries are matched with names."""

from __future__ import annotations

from typing import Any

from .foreign import imported_pandas


def holds_names(index: Any) -> bool:
    """Return whether an index of pandas holds names: consecutive numbers, its default, are none."""
    # pandas 3 makes a RangeIndex of rows or columns selected in steps, such as in reverse order
    return hasattr(index, "isin") and (type(index).__name__ != "RangeIndex" or index.step != 1)


def index_of(names: Any) -> Any:
    """Return names of a model as an index of pandas; None stays None."""
    if names is None:
        return None
    pd = imported_pandas("names of samples in plots")

    return pd.Index(names, tupleize_cols=False)


def matched_by_name(values: Any, names: Any, argument: str, subject: str) -> Any:
    """Return a pandas object or dict with its entries in the order of an index.

    This is the rule of `names.matched`, implemented with pandas. Entries stay as they are
    if one side has no names (see `holds_names`).
    """
    if isinstance(values, dict):
        if not holds_names(names):
            raise ValueError(
                f"{argument} is a dict, but {subject} has no names to look up in it: pass a "
                f"DataFrame with names, or {argument} as a list."
            )
        pandas = imported_pandas("labels by name")
        values = pandas.Series(list(values.values()), pandas.Index(list(values)), dtype=object)
    own: Any = getattr(values, "index", None) if hasattr(values, "iloc") else None
    if not holds_names(own) or not holds_names(names):
        return values
    if "string" in (own.inferred_type, names.inferred_type):  # numbers match their text
        own, names = own.map(str), names.map(str)
    if own.equals(names):
        return values
    lacking = names[~names.isin(own)].tolist()
    if lacking:
        raise ValueError(
            f"{argument} has no entry for {len(lacking):,} names in {subject}, such as "
            f"{', '.join(map(repr, lacking[:3]))}: add them, or pass "
            f"{argument}.reset_index(drop=True) to match entries by position."
        )
    for index, whose in ((names, subject), (own[own.isin(names)], argument)):
        repeated = index[index.duplicated()].tolist()
        if repeated:
            raise ValueError(
                f"{whose} has a name twice, {repeated[0]!r}, so {argument} cannot be matched by "
                "name: make names unique."
            )
    return values.iloc[own.get_indexer_for(names)]
