"""Cases of a test that few changes break, and that are run at night."""

import pytest


def at_night(*cases):
    """Return these values of a parameter, marked `nightly`; a tuple is a case of several."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
        for case in cases
    ]
