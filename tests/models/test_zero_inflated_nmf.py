"""The worked example of CONTRIBUTING, which is a model of another package: all that it can do."""

from inspect import signature
from typing import Unpack

import numpy as np
import pytest
from clusters import WALL, within
from night import at_night
from scipy.special import gammaln
from shell import failure, run
from zero_inflated_nmf import ZeroInflatedNMF

import nmfscale
from nmfscale.errors import ConvergenceWarning, MemoryLimitError
from nmfscale.extensions import CountModel, FitKeywords, FitOptions, with_options
from nmfscale.testing import check_model, model_checks

NAME = "ZeroInflatedNMF"


def objective(fitted, X):
    mu, d = fitted.loadings_.astype(float) @ fitted.components_, fitted.dropout_
    some = np.log(1 - d) + X * np.log(np.maximum(mu, 1e-300)) - mu - gammaln(X + 1)
    return np.where(X > 0, some, np.log(d + (1 - d) * np.exp(-mu))).sum()


CHECKS = model_checks(ZeroInflatedNMF(3), objective=objective)
# Those take more than a second or two: see the test of check_model.
SLOW = "scikit_learn", "layer_and_raw", "types_of_counts", "new_samples-file", "bootstrap"


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in SLOW])
def test_the_contract(name, tmp_path):
    CHECKS[name](tmp_path)


@pytest.mark.nightly
def test_check_model_runs_all_checks_and_tells_which_it_left_out():
    skipped = check_model(ZeroInflatedNMF(3), rises=False)
    of_objective = [f"objective-{dtype}: no objective to com" for dtype in ("float64", "float32")]
    may_fall = [f"objective_rises-{seed}: the objective of this" for seed in range(3)]
    expected = [*of_objective, *may_fall]
    assert [text[: len(part)] for text, part in zip(skipped, expected, strict=True)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resumed-cluster", *at_night("new_samples-cluster")])
def test_the_contract_on_a_cluster(name, tmp_path, client):
    checks = model_checks(ZeroInflatedNMF(3), client=client)
    within(WALL, lambda: checks[name](tmp_path))


def test_fit_may_take_the_arguments_of_all_models_as_one(tmp_path):
    class Short(ZeroInflatedNMF):
        @with_options(FitKeywords)
        def fit(self, X, y=None, *, loadings=None, **options: Unpack[FitKeywords]):
            start = {"loadings": loadings, "components": None, "dropout": None}
            self.run_fit(X, FitOptions.of(options), **start)
            return self

    shown, whole = (signature(model.fit).parameters for model in (Short, ZeroInflatedNMF))
    names = [name for name in whole if name not in ("components", "dropout")]
    assert [*shown] == [*names, "source"]
    assert all(shown[name].default == whole[name].default for name in shown.keys() & whole.keys())
    X, model = np.eye(6, dtype=int) + 1, Short(2, max_iter=2, tol=0, random_state=0)
    model.fit(X, checkpoint=tmp_path, checkpoint_every=0, feature_names=list("abcdef"))
    assert [*model.feature_names_in_] == list("abcdef") and any(tmp_path.iterdir())
    with pytest.raises(TypeError, match="unexpected keyword argument 'mu'; arguments of fit are"):
        model.fit(X, mu=1)


# Faulty models ---------------------------------------------------------------------------------


class OfThreads(ZeroInflatedNMF):
    """Its topics depend on the number of threads."""

    def fit_counts(self, X, options, **given):
        counts, fitted = super().fit_counts(X, options, **given)
        self.components_ = self.components_ * (1 + 1e-12 * self.n_threads)
        return counts, fitted


class Forgetful(ZeroInflatedNMF):
    """It needs an attribute that no file has."""

    def fit_counts(self, X, options, **given):
        self._drops = True
        return super().fit_counts(X, options, **given)

    def pass_of_loadings(self, counts, **how):
        assert self._drops
        return super().pass_of_loadings(counts, **how)


class InFloat64(ZeroInflatedNMF):
    """A fit in float32 needs as much memory."""

    float32_needs_less = False


class Unfit(ZeroInflatedNMF):
    """It cannot be fitted."""

    def fit_counts(self, X, options, **given):
        raise ZeroDivisionError


class OfAllSamples(ZeroInflatedNMF):
    """Its loadings depend on the other samples."""

    def transform(self, X, **how):
        return super().transform(X, **how) * (1 + 1e-12 * len(X))


class Resumable(ZeroInflatedNMF):
    """A fit goes on from a checkpoint of a fit with another parameter."""

    parameters_free_to_change = ("dropout",)


FAULTS = {
    "place-store": OfThreads, "model_file": Forgetful, "single_samples": OfAllSamples,
    "parameters_at_resume": Resumable,
}  # fmt: skip


@pytest.mark.parametrize(("name", "model"), FAULTS.items())
def test_faults_are_found(name, model, tmp_path):
    with pytest.raises((AssertionError, AttributeError)):
        model_checks(model(3))[name](tmp_path)


def test_a_note_names_the_check_that_fails():
    with pytest.raises(ZeroDivisionError) as caught:
        check_model(Unfit(3))
    assert caught.value.__notes__ == ["in the check 'scikit_learn' of Unfit"]
    with pytest.raises(TypeError, match="estimator is 3: an unfitted model is needed"):
        check_model(3)


def test_warnings_and_errors_are_for_the_user_of_the_model():
    X = np.random.default_rng(0).poisson(3, (30, 20))
    with pytest.warns(ConvergenceWarning) as caught:
        ZeroInflatedNMF(2, max_iter=1, tol=1e-9).fit(X)
    assert caught[0].filename == __file__
    large = {"n_components": 2, "memory_limit": "1MB"}
    with pytest.raises(MemoryLimitError, match="or use dtype='float32'"):
        ZeroInflatedNMF(**large).fit(X)
    with pytest.raises(MemoryLimitError) as refusal:
        InFloat64(**large).fit(X)
    assert "float32" not in str(refusal.value)


# The model -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated():
    rng = np.random.default_rng(0)
    F, d = rng.dirichlet(np.full(60, 0.2), 3), rng.uniform(0, 0.7, 60)
    L = rng.dirichlet(np.full(3, 0.3), 300) * rng.gamma(20, 40, (300, 1))
    return rng.poisson(L @ F) * (rng.uniform(size=(300, 60)) > d), F, d


def similarity(model, F):
    """The cosine of each true topic and the topic that is most like it."""
    one, other = (each / np.linalg.norm(each, axis=1)[:, None] for each in (model.components_, F))
    return (one @ other.T).max(axis=0)


def test_topics_and_dropout_are_the_true_ones(simulated):
    X, F, d = simulated
    model = ZeroInflatedNMF(3, random_state=0, max_iter=200).fit(X)
    often = F.max(axis=0) > 0.01  # expected counts whose zeros tell of dropout
    assert similarity(model, F).min() > 0.99
    assert np.abs(model.dropout_ - d)[often].max() < 0.15
    without = nmfscale.TopicModel(3, random_state=0, n_init=3).fit(X)
    assert similarity(without, F).min() < similarity(model, F).min() - 0.02


@pytest.mark.filterwarnings("ignore:.* has not converged")
def test_without_dropout_it_is_a_poisson_nmf(simulated):
    X, F, d = simulated
    model = ZeroInflatedNMF(3, dropout=0.0, random_state=0, tol=0, max_iter=50).fit(X)
    assert not model.dropout_.any()
    same = nmfscale.PoissonNMF(3, solver="em", inner_iter=1, tol=0, max_iter=1, extrapolate=False)
    start = {"loadings": model.loadings_, "components": model.components_}
    gain = same.fit(X, **start).loglik_ - model.loglik_
    assert 0 <= gain < 1e-2 * abs(model.loglik_)


# The shell, and files in a new process ---------------------------------------------------------


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install entry points, and forget the class, as in a process that has not imported it."""

    def install(value="zero_inflated_nmf:ZeroInflatedNMF"):
        about = tmp_path / "site" / "zero_inflated-1.0.dist-info"
        about.mkdir(parents=True, exist_ok=True)
        (about / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: zero-inflated\nVersion: 1.0\n"
        )
        points = f"[nmfscale.models]\nzero-inflated = {value}\n"
        (about / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    del CountModel.of_others[NAME]
    yield install
    CountModel.of_others[NAME] = ZeroInflatedNMF


@pytest.mark.filterwarnings("ignore:.* has not converged")
def test_the_shell_knows_models_by_their_entry_points(installed, simulated, tmp_path, capsys):
    installed()
    counts, model, out = (tmp_path / name for name in ("counts.nmf", "model.h5", "out.csv"))
    nmfscale.write_store(simulated[0], counts)
    words = "--model", "zero-inflated", "--seed", 0, "-q"
    fit = "fit", counts, "-k", 3, "-o", model, "--dropout", 0.2, "--max-iter", 20
    assert run(*fit, *words) == 0
    assert run("info", model) == 0
    assert "ZeroInflatedNMF(dropout=0.2, max_iter=20" in capsys.readouterr().out
    assert run("transform", model, counts, "-o", out, "-q") == 0
    assert len(out.read_text().splitlines()) == 301
    assert run("plot", model, "-o", tmp_path / "structure.png") == 0
    found = nmfscale.load(model)
    assert type(found) is ZeroInflatedNMF and found.dropout_.shape == (60,)
    stability = "stability", counts, "-k", 2, "--starts", 2, "-o", tmp_path / "starts.csv"
    assert run(*stability, *words) == 0
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(simulated[0])
    nmfscale.tl.topics(adata, 2, model="zero-inflated", max_iter=2, random_state=0)
    assert nmfscale.get.model(adata).dropout == 0.1


def test_models_that_cannot_be_found_are_named(installed, simulated, tmp_path, capsys):
    model, counts = tmp_path / "model.h5", tmp_path / "counts.nmf"
    ZeroInflatedNMF(2, max_iter=2, tol=0, random_state=0).fit(simulated[0]).save(model)
    nmfscale.write_store(simulated[0], counts)
    assert "holds a ZeroInflatedNMF, a model that this nmf" in failure(capsys, "info", model)
    words = "fit", counts, "-k", 2, "--model", "zero-inflated", "-o", tmp_path / "other.h5"
    for value, why in (
        (
            "no_such_module:ZeroInflatedNMF",
            "cannot be imported from no_such_module:ZeroInflatedNMF",
        ),
        ("collections:ZeroInflatedNMF", "AttributeError"),
        ("zero_inflated_nmf:DenseRows", "is no class derived from nmfscale.models.CountModel"),
    ):
        installed(value)
        error = failure(capsys, *words)
        assert "'zero-inflated' of the package zero-inflated" in error and why in error
