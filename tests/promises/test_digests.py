"""The same bits on every processor: small fits of all kinds against stored digests."""

import digests
import pytest

from nmfscale import kernels


@pytest.mark.parametrize("level", [n for n in kernels.available_levels() if n != "baseline"])
def test_the_bits_are_those_of_every_processor(level):
    before = kernels.level()
    kernels.use_level(level)
    try:
        assert digests.differences(digests.make()) == []
    finally:
        kernels.use_level(before)
