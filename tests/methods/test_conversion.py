"""From Poisson NMF to the topic model and back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nmfscale.methods.conversion import multinomial_to_poisson, poisson_to_multinomial
from nmfscale.methods.factors import rescale


@pytest.fixture(scope="module")
def golden(reference_dir):
    text = (reference_dir / "fasttopics_small_goldens.json").read_text()
    return json.loads(text)["goldens"]["tiny"]


def _factors(n_samples=7, n_features=9, n_components=3, dtype=np.float64):
    rng = np.random.default_rng(1)
    return (
        rng.gamma(0.3, size=(n_samples, n_components)).astype(dtype),
        rng.gamma(0.3, size=(n_features, n_components)).astype(dtype),
    )


def test_agrees_with_fasttopics(golden):
    L, F = np.array(golden["L"]), np.array(golden["F"])
    topics = poisson_to_multinomial(L, F)
    expected = golden["poisson2multinom"]
    np.testing.assert_allclose(topics.proportions, expected["L"], rtol=1e-14)
    np.testing.assert_allclose(topics.frequencies, expected["F"], rtol=1e-14)
    np.testing.assert_allclose(topics.size_factors, expected["s"], rtol=1e-14)
    expected = golden["multinom2poisson_of_poisson2multinom"]
    for found, name in zip(rescale(*multinomial_to_poisson(*topics)), "LF", strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=1e-14)
    for found, name in zip(rescale(L, F), "LF", strict=True):
        np.testing.assert_allclose(found, golden["rescaled"][name], rtol=1e-14)


def test_size_factors_may_be_other_totals(golden):
    topics = poisson_to_multinomial(golden["L"], golden["F"])
    totals = np.sum(golden["X"], axis=1)
    back = multinomial_to_poisson(
        topics.proportions, topics.frequencies, totals, np.ones_like(topics.scales)
    )
    expected = golden["multinom2poisson_with_X"]
    for found, name in zip(rescale(*back), "LF", strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_trip_and_sums(dtype):
    L, F = _factors(dtype=dtype)
    tolerance = 8 * np.finfo(dtype).eps
    topics = poisson_to_multinomial(L, F)
    assert {part.dtype for part in topics} == {np.dtype(dtype)}
    np.testing.assert_allclose(topics.proportions.sum(axis=1), 1.0, rtol=tolerance)
    np.testing.assert_allclose(topics.frequencies.sum(axis=0), 1.0, rtol=tolerance)
    np.testing.assert_allclose(topics.size_factors, (L @ F.T).sum(axis=1), rtol=tolerance)
    back = multinomial_to_poisson(*topics)
    assert {factor.dtype for factor in back} == {np.dtype(dtype)}
    np.testing.assert_allclose(back[0], L, rtol=tolerance)
    np.testing.assert_allclose(back[1], F, rtol=tolerance)


def test_mixed_and_integer_types_become_float64():
    L, F = _factors(dtype=np.float32)
    topics = poisson_to_multinomial(L, F.astype(np.float64))
    assert topics.proportions.dtype == np.float64
    assert poisson_to_multinomial([[1, 2]], [[3, 4]]).scales.dtype == np.float64


def test_empty_topic_and_empty_sample():
    L, F = _factors()
    F[:, 1] = 0.0
    L[2] = 0.0
    topics = poisson_to_multinomial(L, F)
    np.testing.assert_array_equal(topics.frequencies[:, 1], 1.0 / len(F))
    np.testing.assert_array_equal(topics.proportions[2], 1.0 / 3)
    np.testing.assert_array_equal(np.delete(topics.proportions[:, 1], 2), 0.0)
    assert topics.scales[1] == 0.0
    assert topics.size_factors[2] == 0.0
    back_L, back_F = multinomial_to_poisson(*topics)
    np.testing.assert_array_equal(back_L[2], 0.0)
    np.testing.assert_array_equal(back_F[:, 1], 0.0)
    np.testing.assert_allclose(back_L @ back_F.T, L @ F.T, rtol=1e-14)


def test_a_topic_of_scale_zero_is_zero_in_both():
    L, F = multinomial_to_poisson([[0.25, 0.75]], [[0.5, 0.5], [0.5, 0.5]], [8.0], [4.0, 0.0])
    np.testing.assert_array_equal(L, [[0.5, 0.0]])
    np.testing.assert_array_equal(F, [[2.0, 0.0], [2.0, 0.0]])


def test_arguments_are_not_changed():
    L, F = _factors()
    kept = L.copy(), F.copy()
    rescale(L, F)
    multinomial_to_poisson(*poisson_to_multinomial(L, F))
    np.testing.assert_array_equal(L, kept[0])
    np.testing.assert_array_equal(F, kept[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rescale_equalises_column_means(dtype):
    L, F = _factors(dtype=dtype)
    L[:, 0] *= 1e6
    F[:, 2] = 0.0
    new_L, new_F = rescale(L, F)
    assert new_L.dtype == new_F.dtype == dtype
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(new_L[:, :2].mean(axis=0), new_F[:, :2].mean(axis=0), rtol=tolerance)
    np.testing.assert_array_equal(new_L[:, 2], L[:, 2])
    np.testing.assert_allclose(new_L @ new_F.T, L @ F.T, rtol=tolerance)


_NUMBERS = st.one_of(st.just(0.0), st.floats(1e-150, 1e150))


@given(arrays(np.float64, (4, 3), elements=_NUMBERS), arrays(np.float64, (5, 3), elements=_NUMBERS))
def test_results_are_always_finite(L, F):
    topics = poisson_to_multinomial(L, F)
    for part in (*topics, *multinomial_to_poisson(*topics), *rescale(L, F)):
        assert np.isfinite(part).all()
        assert (part >= 0.0).all()
    np.testing.assert_allclose(topics.proportions.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(topics.frequencies.sum(axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    ("L", "F", "message"),
    [
        ([1.0, 2.0], [[1.0]], r"L has shape \(2,\); it needs \(at least 1, at least 1\)"),
        ([[1.0]], np.ones((0, 1)), r"F has shape \(0, 1\)"),
        ([[1.0, 2.0]], [[1.0]], "L has 2 columns and F has 1"),
        ([[1.0], [-2.0]], [[1.0]], r"L\[1, 0\] is -2.0"),
        ([[1.0]], [[1.0], [np.nan]], r"F\[1, 0\] is nan"),
        ([[1.0]], [[np.inf]], r"F\[0, 0\] is inf"),
        ([[1j]], [[1.0]], "L has type complex128"),
        ([["a"]], [[1.0]], "L has type <U1"),
        ([[1e300]], [[1e300]], r"up to 1e\+300.*overflow.*rescale"),
        (np.float32([[1e20]]), np.float32([[1e20]]), "overflow float32; rescale"),
    ],
)
def test_bad_factors_are_named(L, F, message):
    with pytest.raises(ValueError, match=message):
        poisson_to_multinomial(L, F)


@pytest.mark.parametrize(
    ("changed", "value", "message"),
    [
        ("size_factors", np.ones(3), r"size_factors has shape \(3,\); it needs \(7,\)"),
        ("scales", np.ones((3, 1)), r"scales has shape \(3, 1\); it needs \(3,\)"),
        ("scales", [1.0, -1.0, 1.0], r"scales\[1\] is -1.0"),
        ("frequencies", np.ones((9, 2)), "proportions has 3 columns and frequencies has 2"),
        ("proportions", np.full((7, 3), np.nan), r"proportions\[0, 0\] is nan"),
    ],
)
def test_bad_topic_parameters_are_named(changed, value, message):
    topics = poisson_to_multinomial(*_factors())._replace(**{changed: value})
    with pytest.raises(ValueError, match=message):
        multinomial_to_poisson(*topics)
