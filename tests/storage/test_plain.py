"""Text of users as names of entries of files: reversible, and never two entries in one place."""

import re

import h5py
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmfscale.counts.label_table import LabelTable
from nmfscale.storage.label_tables import put_table, read_table
from nmfscale.storage.plain import escaped, from_plain, to_plain, unescaped

KEYS = ["T/NK", "T%2FNK", "T", "", "%-", ".", "..", "a.b", "__x", "a\nb\x00", "100 %", "ß"]


@given(st.text())
@example("%-")
@example("a%2Fb")
def test_an_escaped_name_is_one_entry_and_reversible(name):
    found = escaped(name)
    assert unescaped(found) == name
    assert re.fullmatch(r"(?!\.|__)[^/\x00-\x1f\x7f]+", found)
    assert found == name or re.search(r"[/\x00-\x1f\x7f%]|^\.|^__|^$", name)  # others are unchanged


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(), st.none(), max_size=5))
@example(dict.fromkeys(KEYS))
def test_arrays_in_a_dict_with_keys_of_any_text_have_places_of_their_own(keys):
    value = {key: np.array([i]) for i, key in enumerate(keys)}
    value |= {f"inner {i}": {key: np.array([-i])} for i, key in enumerate(keys)}
    found = from_plain(to_plain({"a": value, "a.b": np.array([9])}), {})
    assert str(found) == str({"a": value, "a.b": np.array([9])})


def test_tables_of_labels_have_columns_of_any_name(tmp_path):
    table = LabelTable({name: np.array([i, i]) for i, name in enumerate(KEYS)})
    with h5py.File(tmp_path / "file.h5", "w") as file:
        put_table(file, "obs", table)
        assert read_table(file, "obs") == table
