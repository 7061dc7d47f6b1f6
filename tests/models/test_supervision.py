"""The weight of the labels of a semi-supervised NMF: by likelihood, and by validation."""

import numpy as np
import pytest
from night import at_night
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.model_selection import GridSearchCV

from nmfscale import SSNMF
from nmfscale.experimental import supervision_from_variances

N, M, T, R = 40, 25, 12, 3
# Variances of the r summands of an entry, sigma in the paper.
SIGMA = 0.03, 0.2


def drawn(losses, rng):
    """X and Y whose entries are sums of r random variables, Gaussian or Poisson: section 2.1."""
    S, A, B = (rng.gamma(1.0, 1.0, (size, R)) for size in (N, M, T))
    found = []
    for loss, sigma, other in zip(losses, SIGMA, (A, B), strict=True):
        means = S[:, None, :] * other[None, :, :]
        terms = rng.normal(means, np.sqrt(sigma)) if loss == "F" else rng.poisson(means)
        found.append(np.abs(terms.sum(axis=2)))
    return found


def log_likelihood(losses, X, Y, fitted):
    means = fitted.loadings_ @ fitted.components_, fitted.loadings_ @ fitted.target_components_.T
    total = 0.0
    for loss, sigma, values, mu in zip(losses, SIGMA, (X, Y), means, strict=True):
        if loss == "F":
            total += stats.norm.logpdf(values, mu, np.sqrt(R * sigma)).sum()
        else:
            total += stats.poisson.logpmf(values, np.maximum(mu, 1e-30)).sum()
    return total


def weight(losses):
    variances = (
        R * sigma if loss == "F" else None for loss, sigma in zip(losses, SIGMA, strict=True)
    )
    return supervision_from_variances(losses, **dict(zip(
        ("data_variance", "target_variance"), variances, strict=True
    )))  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ("FD", 2 * R * SIGMA[0]), ("DD", 1),
        *at_night(("FF", SIGMA[0] / SIGMA[1]), ("DF", 1 / (2 * R * SIGMA[1]))),
    ],
)  # fmt: skip
def test_the_loss_is_a_likelihood(losses, expected):
    """Maximum likelihood estimators 1 to 4 of section 2.1."""
    X, Y = drawn(losses, np.random.default_rng(0))
    lam = weight(losses)
    assert lam == pytest.approx(expected, rel=1e-14)
    how = {"losses": losses, "tol": 0, "random_state": 0, "n_threads": 1}
    points = [SSNMF(R, supervision=lam, max_iter=n, **how).fit(X, Y) for n in (2, 30)]
    loss, likelihood = (
        np.diff(each).item()
        for each in (
            [fit.loss_ for fit in points], [log_likelihood(losses, X, Y, fit) for fit in points]
        )
    )  # fmt: skip
    # the change of the loss between any two points is that of the likelihood, up to a factor
    factor = 2 * R * SIGMA[0] if losses[0] == "F" else 1.0
    assert loss < 0
    assert_allclose(-loss / factor, likelihood, rtol=1e-9)
    # fits with other weights end at less likely points
    how |= {"solver": "cd", "max_iter": 150}
    ends = [
        log_likelihood(losses, X, Y, SSNMF(R, supervision=lam * by, **how).fit(X, Y))
        for by in (1, 0.1, 10)
    ]
    assert ends[0] > max(ends[1:])


@pytest.mark.parametrize(
    ("losses", "given", "message"),
    [
        ("FD", {}, "losses='FD' and data_variance=None: a positive variance is needed"),
        ("DD", {"data_variance": 1.0}, "data_variance=1.0: .* none for a divergence"),
        ("DF", {"target_variance": 0.0}, "target_variance=0.0: a positive finite number"),
        ("KL", {}, "losses='KL': give"),
    ],
)
def test_variances_that_make_no_sense_are_refused(losses, given, message):
    with pytest.raises(ValueError, match=message):
        supervision_from_variances(losses, **given)


@pytest.mark.filterwarnings("ignore:SSNMF was fitted with data_weights=")  # scored without
def test_the_weight_is_found_by_validation():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 60)
    X = rng.poisson(5 * rng.random((60, 20)) * (1 + (np.arange(20) < 4) * labels[:, None]))
    y = np.where(rng.random(60) < 0.8, labels, -1)
    model = SSNMF(2, random_state=0, n_threads=1, max_iter=200)
    weights = (rng.random(X.shape) < 0.95) * 1.0
    search = GridSearchCV(model, {"supervision": [1e-6, 100.0]}, cv=3)
    search.fit(X, y, data_weights=weights)
    found = search.cv_results_["mean_test_score"]
    assert search.best_params_ == {"supervision": 100.0} and found[1] > max(0.7, found[0])
    expected = model.set_params(supervision=100.0).fit(X, y, data_weights=weights)
    assert expected.loadings_.tobytes() == search.best_estimator_.loadings_.tobytes()
