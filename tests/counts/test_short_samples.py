"""Samples with few counts: said once, with the model that fits them, and only where it helps."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from shell import run

import nmfscale
from nmfscale.cli.messages import COLLAPSED

few = r"the median sample of X has 4 counts. For samples of fewer than about 50, LDA\(inference='c"
OPTIONS = {"max_iter": 2, "tol": 0, "random_state": 0, "n_threads": 1}


def texts(n_words=4, n_samples=600):
    rng = np.random.default_rng(0)
    rows, words = np.repeat(np.arange(n_samples), n_words), rng.integers(0, 30, n_samples * n_words)
    ones = np.ones(len(rows), np.int32)
    return sp.csr_array(sp.coo_array((ones, (rows, words)), (n_samples, 30)))


@pytest.mark.filterwarnings("error")
def test_a_fit_to_short_samples_says_so_once():
    X = texts()
    for kind in (nmfscale.TopicModel, nmfscale.LDA, nmfscale.GammaPoisson, nmfscale.FrobeniusNMF):
        with pytest.warns(UserWarning, match=few) as caught:
            model = kind(3, **OPTIONS).fit(X)
        assert [warning.filename for warning in caught] == [__file__]
        assert len(model.warnings_) == 1
        model.transform(X)
    with pytest.warns(UserWarning, match=few) as caught:
        nmfscale.topic_quality(model, X)
    assert len(caught) == 1


@pytest.mark.filterwarnings("error")
def test_where_no_other_model_helps_nothing_is_said():
    X, y = texts(), np.resize(["a", "b"], 600)
    nmfscale.LDA(3, inference="collapsed", **OPTIONS).fit(X)
    nmfscale.SSNMF(3, **OPTIONS).fit(X, y)
    for counts in (texts(60), texts(n_samples=300), X * 0.5):
        nmfscale.PoissonNMF(3, integer="allow", **OPTIONS).fit(counts)


def test_nor_by_fits_that_repeat_one():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nmfscale.TopicModel(2, **OPTIONS).fit(texts())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nmfscale.bootstrap_fit(model, texts(), n_replicates=2, random_state=0)
        nmfscale.stability(nmfscale.TopicModel(2), texts(), n_starts=2, random_state=0)
        nmfscale.differential_features(model, texts(), split=0.5, random_state=0)
    assert not [each for each in caught if "median sample" in str(each.message)]


def test_the_shell_says_so_and_proposes_the_model(tmp_path, capsys):
    words = np.random.default_rng(0).integers(0, 30, (600, 4))
    lines = [" ".join(f"word{j}" for j in row) for row in words]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    store, model = tmp_path / "texts.nmf", tmp_path / "model.h5"
    run("text", tmp_path / "texts.txt", store, "-q")
    said = "median sample of X has 4 counts"
    out = capsys.readouterr().out
    assert out.count(said) == 1 and f"nmfscale fit {store} -k 10{COLLAPSED} -o model.h5" in out
    run("fit", store, "-k", 2, "--max-iter", 5, "-o", model)
    err = capsys.readouterr().err
    assert err.count(said) == 1 and f"next: the same command with{COLLAPSED}" in err
    for file in (store, model):
        run("info", file)
        assert capsys.readouterr().out.count(said) == 1
    collapsed = tmp_path / "collapsed.h5"
    run("fit", store, "-k", 2, "--max-iter", 5, "-o", collapsed, *COLLAPSED.split())
    assert said not in (printed := capsys.readouterr().err) and "next: nmfscale plot" in printed
