"""Gene sets of GMT files."""

import gzip

import pytest

import nmfscale

LINES = b"B cells\thttps://a.b\tMS4A1\tCD79A\tMS4A1\t\r\nT cells\t\tCD3D,1.0\r\n"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_sets_of_a_file(pack, tmp_path):
    """Each gene once, without weights and empty fields, plain or gzip."""
    path = tmp_path / "markers.gmt"
    path.write_bytes(pack(LINES))
    assert nmfscale.read_gmt(path) == {"B cells": ["MS4A1", "CD79A"], "T cells": ["CD3D"]}


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (b"A\td\tX\nA\td\tY\n", r"markers.gmt, line 2: there is a gene set 'A' above"),
        (b"A\td\tX\nCD3D CD3E\n", r"line 2: 'CD3D CD3E' is no gene set"),
        (b"\n", "has no gene sets"),
    ],
)
def test_files_that_are_none(lines, match, tmp_path):
    path = tmp_path / "markers.gmt"
    path.write_bytes(lines)
    with pytest.raises(ValueError, match=match):
        nmfscale.read_gmt(path)
