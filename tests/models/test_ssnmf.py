"""The estimator of semi-supervised NMF: labels, targets, stopping, predictions, refusals."""

import internals
import numpy as np
import oracle_ssnmf as oracle
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from small_fits import StopError, stop_at

import nmfscale
from nmfscale import SSNMF

rng = np.random.default_rng(0)
TOPICS = rng.dirichlet(np.full(40, 0.1), 3)
LABELS = rng.integers(0, 3, 150)
X = np.array([rng.multinomial(60, 0.7 * TOPICS[label] + 0.3 / 40) for label in LABELS])
NAN = float("nan")


def model(**options):
    options = {"random_state": 0, "n_threads": 1, "max_iter": 200} | options
    return SSNMF(options.pop("n_components", 4), **options)


@pytest.mark.parametrize(
    ("y", "classes", "known"),
    [
        ([0, 1, -1, 1], [0, 1], [0, 1, 3]),
        ([0.0, 1.0, NAN, 1.0], [0, 1], [0, 1, 3]),
        (["b", "a", None, "a"], ["a", "b"], [0, 1, 3]),
        (["b", "a", NAN, "a"], ["a", "b"], [0, 1, 3]),
        (pd.Series(["b", "a", pd.NA, "a"], dtype="string"), ["a", "b"], [0, 1, 3]),
        (pd.Categorical(["b", "a", None, "a"]), ["a", "b"], [0, 1, 3]),
        (np.array(["b", "a", -1, "a"], dtype=object), ["a", "b"], [0, 1, 3]),
        ([False, True, False, True], [False, True], [0, 1, 2, 3]),
        ([-1, 1, 1, -1], [-1, 1], [0, 1, 2, 3]),
        ([-1, 2, 2, -1], [2], [1, 2]),
        ([-1, -1, -1, -1], [], []),
    ],
    ids=str,
)
def test_labels_of_any_type(y, classes, known):
    fitted = model(max_iter=3, tol=0).fit(np.eye(4) + 1, y)
    assert fitted.classes_.tolist() == classes
    assert fitted.target_components_.shape == (len(classes), 4)
    # a label that is unknown counts as much as one of weight 0
    codes = np.where(np.isin(np.arange(4), known), np.arange(4) % 2, 0)
    weights = np.isin(np.arange(4), known) * 1.0
    if len(known) > 2 and list(classes) in (["a", "b"], [0, 1]):
        swap = 1 - codes if classes == ["a", "b"] else codes
        other = model(max_iter=3, tol=0).fit(np.eye(4) + 1, swap, label_weights=weights)
        assert other.loadings_.tobytes() == fitted.loadings_.tobytes()


@pytest.mark.parametrize("losses", ["FF", "FD", "DF", "DD"])
def test_a_few_labels_are_enough(losses):
    y = np.where(np.arange(len(X)) < 15, LABELS, -1)
    fitted = model(losses=losses, n_init=3, supervision=10.0).fit(X[:100], y[:100])
    assert fitted.score(X[100:], LABELS[100:]) > 0.95
    assert_allclose(fitted.predict_proba(X[100:]).sum(axis=1), 1)
    assert fitted.score(X, y) > 0.9  # of those that have one


def test_targets_are_predicted():
    Y = np.column_stack([LABELS == 0, 3.0 * (LABELS == 1), NAN * np.ones(len(X))])
    Y[:5, 2] = 2
    fitted = model(losses="FF", supervision=10.0, tol=1e-5).fit(X[:100], Y[:100])
    assert not hasattr(fitted, "classes_") and fitted.predict(X).shape == Y.shape
    assert fitted.set_params(losses="FF").score(X[100:], np.nan_to_num(Y[100:])) < 1
    assert np.abs(fitted.predict(X[100:])[:, :2] - Y[100:, :2]).mean() < 0.2
    with pytest.raises(ValueError, match="fitted to targets"):
        fitted.predict_proba(X)
    # a fit to labels leaves nothing of it
    assert fitted.fit(X, LABELS).predict(X).shape == LABELS.shape


def test_one_target():
    y = X.sum(axis=1, keepdims=True) / 7.0
    assert model(max_iter=2, tol=0).fit(X, y).predict(X).shape == (len(X), 1)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        assert model(max_iter=2, tol=0).fit(X, LABELS[:, None]).predict(X).shape == (len(X),)


def test_multilabel_targets():
    data, Y = make_multilabel_classification(80, 30, n_classes=3, random_state=0)
    fitted = model(losses="DD", supervision=10.0).fit(data, Y)
    assert ((fitted.predict(data) > 0.5) == Y).mean() > 0.7


@pytest.mark.parametrize(
    ("losses", "tol"), [("FF", 1e-4), ("FD", 1e-4), ("DF", 1e-3), ("DD", 1e-3)]
)
def test_the_default_tolerance_is_that_of_the_paper(losses, tol):
    history = model(losses=losses).fit(X, LABELS).history_
    loss = history["loss"]
    decrease = (loss[:-1] - loss[1:]) / loss[0]
    assert_allclose(history["decrease"][1:], decrease, atol=1e-12)
    assert decrease[-1] <= tol and np.all(decrease[:-1] > tol)


@pytest.mark.parametrize("solver", ["mu", "cd"])
def test_a_fit_ends_by_its_relative_error(solver, tmp_path):
    """Equation 10 of the paper, with the data in place of the unknown truth."""
    rng = np.random.default_rng(0)
    A, B, S = (rng.uniform(0.1, 1, (size, 4)) for size in (40, 3, 150))
    start = {"components": A.T, "target_components": B, "loadings": S}
    first = oracle.objective(X.T, np.eye(3)[LABELS].T, A, B, S.T, ("kl", "frobenius"), 10.0)
    fitted = model(losses="DF", solver=solver, supervision=10.0, criterion="relative-error")
    ratios = fitted.set_params(tol=0, max_iter=8).fit(X, LABELS, **start).history_["relative_error"]
    assert_allclose(ratios, fitted.history_["loss"] / first, rtol=1e-10)
    fitted.set_params(tol=ratios[4], callback=stop_at(2))
    state = {"checkpoint": tmp_path, "checkpoint_every": 0}
    with pytest.raises(StopError):
        fitted.fit(X, LABELS, **start, **state)
    fitted.set_params(callback=None).fit(X, LABELS, **start, **state, resume=True)
    assert fitted.converged_ and fitted.n_iter_ == 5
    assert_array_equal(fitted.history_["relative_error"], ratios[:5])
    # without an improvement for held-out labels the fit ends as well
    early = fitted.set_params(tol=1e-9, max_iter=50, validation_fraction=0.3, n_iter_no_change=2)
    assert early.fit(X, LABELS).converged_ and early.n_iter_ < 50


def test_validation_ends_the_fit_at_its_best():
    fitted = model(validation_fraction=0.3, n_iter_no_change=4, tol=1e-12, supervision=1e3)
    fitted.fit(X, LABELS)
    right = fitted.history_["validation"]
    best = int(right.argmax())
    assert fitted.converged_ and fitted.n_iter_ <= best + 6
    assert right[-1] == right.max() > 0.2 * len(X)
    # the same point as that of a fit which ends there
    again = model(validation_fraction=0.3, tol=0, supervision=1e3, max_iter=best + 1)
    again.fit(X, LABELS)
    assert_allclose(again.components_, fitted.components_, rtol=1e-12, atol=1e-15)
    assert_allclose(fitted.class_prior_, np.bincount(LABELS) / len(LABELS))
    with pytest.raises(ValueError, match="none would be held out"):
        model(validation_fraction=0.1).fit(X[:4], LABELS[:4])


def test_too_few_iterations_are_said():
    with pytest.warns(ConvergenceWarning, match=r"of the loss is .*, tol=0.001\. Increase"):
        model(max_iter=2).fit(X, LABELS)


def test_samples_without_anything_to_predict_from_are_named():
    new = X[:9].copy()
    new[[2, 5]] = 0
    y = np.array(["many", "few"])[(LABELS == 0) * 1]
    fitted = model().fit(np.vstack([X, np.zeros((1, 40))]), [*y, None])
    assert fitted.empty_samples_.tolist() == [150]
    with pytest.warns(match=r"2 of 9 samples .*: 2, 5\. .*most frequent class, .*many"):
        found = fitted.predict(new)
    assert list(found[[2, 5]]) == ["many"] * 2
    with pytest.warns(match="cell 2, cell 5"):
        proba = fitted.predict_proba(pd.DataFrame(new, index=[f"cell {i}" for i in range(9)]))
    assert_array_equal(proba[2], fitted.class_prior_)


@pytest.mark.parametrize(
    ("options", "fit_options", "message"),
    [
        ({"losses": ("kl", "l1")}, {}, "losses="),
        ({"losses": "KL"}, {}, "losses"),
        ({}, {"y": LABELS[:-1]}, "y has shape"),
        ({}, {"y": LABELS + 0.5}, "continuous"),
        ({}, {"y": np.array([1, "a"] * 75, dtype=object)}, "types int, str have no order"),
        ({}, {"y": -np.ones((150, 2))}, r"y\[0, 0\] is -1"),
        ({}, {"y": np.full((150, 2), "a")}, "targets of several columns"),
        ({}, {"y": None, "label_weights": np.ones(150)}, "no labels y"),
        ({}, {"label_weights": -np.ones(150)}, "label_weights"),
        ({}, {"label_weights": np.zeros(150)}, "label_weights are 0 for all 150 labels.*y=None"),
        ({}, {"y": np.c_[np.ones(150), np.full(150, NAN)]}, r"y\[:, 1\] has no target"),
        ({}, {"data_weights": np.ones((2, 2))}, "data_weights has shape"),
        ({}, {"components": np.ones((4, 2))}, "components has shape"),
    ],
)
def test_what_is_not_valid_is_refused(options, fit_options, message):
    with pytest.raises(ValueError, match=message):
        model(**options).fit(X, **{"y": LABELS} | fit_options)


@pytest.mark.parametrize("solver", ["mu", "cd"])
@pytest.mark.parametrize("losses", ["FF", "FD", "DF", "DD"])
def test_a_class_without_weight_is_never_predicted(losses, solver):
    weights = (LABELS != 1) * 1.0
    fitted = model(losses=losses, solver=solver, max_iter=20, tol=0)
    proba = fitted.fit(X, LABELS, label_weights=weights).predict_proba(X)
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert_array_equal(fitted.target_components_[1], 0)
    assert_array_equal(proba[:, 1], 0)
    assert_allclose(proba.sum(axis=1), 1)


def test_without_labels_nothing_is_predicted():
    fitted = model(max_iter=2, tol=0).fit(X)
    assert fitted.transform(X).shape == (150, 4)
    with pytest.raises(ValueError, match="without labels"):
        fitted.predict(X)
    assert not hasattr(fitted, "perplexity")


def test_loadings_of_the_fit_and_of_the_data_alone():
    fitted = model(tol=0, max_iter=5)
    found = fitted.fit_transform(X, LABELS)
    assert found.tobytes() == fitted.transform(X).tobytes()
    assert np.abs(found - fitted.loadings_).max() > 1e-3
    assert nmfscale.clustering_score(found, LABELS).mean > 0.3


def test_resumed_with_validation(tmp_path):
    options = {"validation_fraction": 0.3, "tol": 0, "max_iter": 12, "supervision": 1e3}
    state = {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    with pytest.raises(StopError):
        model(**options, callback=stop_at(6)).fit(X, LABELS, **state)
    with pytest.MonkeyPatch.context() as patch:
        internals.no_start(patch)
        resumed = model(**options).fit(X, LABELS, **state, resume=True)
    plain = model(**options).fit(X, LABELS)
    assert resumed.components_.tobytes() == plain.components_.tobytes()
    assert resumed.loadings_.tobytes() == plain.loadings_.tobytes()
