"""The same bits on every processor: small fits of all kinds against stored digests."""

import digests
import pytest
from small_fits import at_level

from nmfscale import kernels


@pytest.mark.parametrize("level", [n for n in kernels.available_levels() if n != "baseline"])
def test_the_bits_are_those_of_every_processor(level):
    with at_level(level):
        assert digests.differences(digests.make()) == []
