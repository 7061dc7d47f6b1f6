"""Distribution functions and quantiles, held to SciPy."""

import numpy as np
import pytest
from night import at_night
from scipy import special

from nmfscale.inference.quantiles import (
    beta_cdf,
    beta_quantile,
    normal_cdf,
    normal_quantile,
    t_quantile,
)


def test_normal_distribution():
    x = np.linspace(-12, 12, 481)
    np.testing.assert_allclose(normal_cdf(x), special.ndtr(x), atol=1e-15)
    p = np.concatenate([np.linspace(0.001, 0.999, 333), [1e-6, 0.5, 1 - 1e-6]])
    np.testing.assert_allclose(normal_quantile(p), special.ndtri(p), rtol=1e-9, atol=1e-15)
    assert normal_quantile(0.975) == pytest.approx(special.ndtri(0.975), rel=1e-14)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_t_distribution(level):
    freedom = np.array([0.5, 1, 1.7, 2, 5, 30.3, 1e3, 1e6])
    expected = special.stdtrit(np.maximum(freedom, 1), (1 + level) / 2)
    np.testing.assert_allclose(t_quantile(freedom, level), expected, rtol=1e-8)
    assert t_quantile(5.0, level) == t_quantile(freedom, level)[4]


@pytest.mark.parametrize(
    ("a", "b"), [(13, 87), (0.5, 3), *at_night((1, 9999), (9999, 1), (5000, 5000))]
)
def test_beta_distribution(a, b):
    p = np.array([0.025, 0.5])
    assert beta_quantile(p, [a, 2], b).tolist() == [
        beta_quantile(0.025, a, b),
        beta_quantile(0.5, 2, b),
    ]
    p, x = np.array([0.025, 0.5, 0.975]), np.array([0, 0.001, 0.3, 0.5, 0.9, 1])
    np.testing.assert_allclose(beta_quantile(p, a, b), special.betaincinv(a, b, p), rtol=1e-10)
    np.testing.assert_allclose(beta_cdf(x, a, b), special.betainc(a, b, x), rtol=1e-10, atol=1e-300)
