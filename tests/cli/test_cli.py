"""The command line: what it writes, where it says so, and how it fails."""

import argparse
import gzip
import io
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from numbers import Real
from types import SimpleNamespace
from typing import get_args

import h5py
import internals
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad, write_tenx
from shell import failure, misuse, run
from sklearn.utils._param_validation import Interval, StrOptions

import nmfscale
from nmfscale import models
from nmfscale.cli import commands, main
from nmfscale.cli.labels import read_groups
from nmfscale.cli.messages import in_shell_words
from nmfscale.cli.parameters import add_parameters
from nmfscale.methods.poisson import solvers as fit
from nmfscale.methods.starts.initialize import PoissonStart

GAMMA = ["--model", "gamma-poisson", "--hierarchical", "--shape-factors", "0.5"]
FIT = ["--seed", "1", "--max-iter", "60", "--threads", "1"]
SHORT = ["--seed", "1", "--max-iter", "9", "--tol", "0"]


def simulated(n=60, m=40, seed=0):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(3, 0.2), size=n)
    frequencies = rng.dirichlet(np.full(m, 0.3), size=3)
    return rng.poisson(200 * shares @ frequencies).astype(np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Counts without names (.npz), with names (.h5ad), and a model of each."""
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("cli")
    counts = simulated()
    sp.save_npz(folder / "counts.npz", sp.csr_array(counts))
    sp.save_npz(folder / "turned.npz", sp.csr_array(counts.T))
    sp.save_npz(folder / "narrow.npz", sp.csr_array(counts[:, :30]))
    obs = pandas.DataFrame(index=[f"cell {i}" for i in range(60)])
    var = pandas.DataFrame(index=[f"gene {j}" for j in range(40)])
    adata = anndata.AnnData(X=sp.csr_matrix(counts), obs=obs, var=var)
    adata.layers["twice"] = adata.X * 2
    adata.write_h5ad(folder / "named.h5ad")
    adata[:, :30].write_h5ad(folder / "fewer.h5ad")
    adata[:, ::-1].write_h5ad(folder / "turned.h5ad")
    for source, model in (("counts.npz", "model.h5"), ("named.h5ad", "named.h5")):
        arguments = ["fit", folder / source, "-k", "3", "-o", folder / model, "--quiet"]
        assert main([*map(str, arguments), *FIT]) == 0
    return folder


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_names_are_split_at_ends_of_lines_alone(folder, tmp_path, mark, end):
    names = [f"word {j}" for j in range(39)] + [f"one{mark}name"]
    (tmp_path / "words.txt").write_bytes((end.join(names) + end).encode())
    words = ["fit", folder / "counts.npz", "-k", 2, "-o", tmp_path / "model.h5", "--max-iter", 2]
    assert run(*words, "--feature-names", tmp_path / "words.txt", "--quiet") == 0
    assert nmfscale.load(tmp_path / "model.h5").feature_names_in_.tolist() == names


def test_the_home_of_the_user_is_found(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "labels.txt").write_text("a\nb\n" * 30)
    assert run("store", folder / "counts.npz", "~/counts.nmf", "--quiet") == 0
    fit = ["fit", "~/counts.nmf", "-k", 2, "-o", "~/model.h5", "--max-iter", 2, "--quiet"]
    assert run(*fit, "--checkpoint=~/state", "--sample-names=~/labels.txt") == 0
    assert run("plot", "~/model.h5", "-o", "~/plot.png", "--groups", "~/labels.txt") == 0
    model = nmfscale.load("~/model.h5")
    model.transform("~/counts.nmf", out="~/loadings.npy")
    model.save("~/again.h5")
    nmfscale.write_store(simulated(), "~/other.nmf")
    model.set_params(tol=0).fit(nmfscale.results.StoredCounts("~/other.nmf"), checkpoint="~/other")
    assert {path.name for path in tmp_path.iterdir()} >= {
        "counts.nmf", "model.h5", "state", "plot.png", "loadings.npy", "again.h5", "other.nmf",
        "other", "labels.txt",
    }  # fmt: skip


class TestFit:
    def test_same_model_as_in_python(self, folder, tmp_path, capsys):
        target = tmp_path / "model.h5"
        assert run("fit", folder / "counts.npz", "-k", 3, "-o", target, *FIT) == 0
        out, err = capsys.readouterr()
        model = nmfscale.load(target)
        expected = nmfscale.TopicModel(3, random_state=1, max_iter=60).fit(simulated())
        np.testing.assert_array_equal(model.components_, expected.components_)
        np.testing.assert_array_equal(model.loadings_, expected.loadings_)
        assert model.verbose == expected.verbose
        assert f"{expected.loglik_:,.2f}" in out
        assert str(target) in out
        assert "60 x 40" in err

    def test_quiet_says_results_only(self, folder, tmp_path, capsys):
        target = tmp_path / "model.h5"
        words = ["fit", folder / "counts.npz", "-k", 2, "-o", target, "--quiet", "--tol", 0]
        assert run(*words, "--max-iter", 2, "--seed", 1) == 0
        out, err = capsys.readouterr()
        assert [line.split()[0] for line in out.splitlines()] == [
            "log-likelihood",
            "KKT",
            "iterations",
            "model",
        ]
        assert all(line.startswith("nmfscale: warning:") for line in err.splitlines())
        assert nmfscale.load(target).n_iter_ == 2

    def test_the_seed_is_recorded(self, folder, tmp_path, capsys):
        words = ["fit", folder / "counts.npz", "-k", 3, "--max-iter", 5, "--init", "random", "-q"]
        assert run(*words, "-o", tmp_path / "one.h5") == 0
        seed = re.search(r"^seed +(\d+)$", capsys.readouterr().out, re.M)[1]
        assert run(*words, "-o", tmp_path / "two.h5", "--seed", seed) == 0
        one, two = (nmfscale.load(tmp_path / name) for name in ("one.h5", "two.h5"))
        assert one.random_state == int(seed)
        assert one.components_.tobytes() == two.components_.tobytes()

    def test_labels_from_a_file_or_a_column(self, folder, tmp_path, capsys):
        anndata = pytest.importorskip("anndata")
        labels = [["", "b", "a"][i % 3] for i in range(60)]
        rows = [f"cell {i},{label}\n" for i, label in enumerate(labels)]
        (tmp_path / "by name.csv").write_text("".join(rows))
        (tmp_path / "labels.txt").write_text("\n".join(labels) + "\n")
        adata = anndata.read_h5ad(folder / "named.h5ad")
        adata.obs["class"] = pytest.importorskip("pandas").Categorical([x or None for x in labels])
        adata.write_h5ad(tmp_path / "counts.h5ad")
        known = np.array([label or None for label in labels], object)
        expected = nmfscale.SSNMF(3, random_state=1, max_iter=60).fit(simulated(), known)
        (tmp_path / "table.csv").write_text("".join(["name,class\n", *reversed(rows)]))
        columns = [f"{tmp_path / name}:class" for name in ("counts.h5ad", "table.csv")]
        for given in (tmp_path / "by name.csv", tmp_path / "labels.txt", "class", *columns):
            words = [tmp_path / "counts.h5ad", "-k", 3, "--model", "ssnmf", "--labels", given]
            assert run("fit", *words, "-o", tmp_path / "model.h5", "--force", "--quiet", *FIT) == 0
            model = nmfscale.load(tmp_path / "model.h5")
            assert model.classes_.tolist() == ["a", "b"]
            assert model.components_.tobytes() == expected.components_.tobytes()
        capsys.readouterr()
        words = ["fit", tmp_path / "counts.h5ad", "-k", 3, "--labels"]
        assert "--model ssnmf" in misuse(capsys, *words, "class")
        words += ["none", "--model", "ssnmf", "-o", tmp_path / "other.h5"]
        assert "no column 'none' in obs" in failure(capsys, *words)

    @pytest.mark.filterwarnings("ignore:TopicModel has not converged")
    def test_batches_from_a_file_or_a_column(self, folder, tmp_path, capsys):
        anndata = pytest.importorskip("anndata")
        batch = np.array(["a", "b", "c"])[np.arange(60) % 3]
        adata = anndata.read_h5ad(folder / "named.h5ad")
        adata.obs["donor"] = batch
        adata.write_h5ad(tmp_path / "counts.h5ad")
        (tmp_path / "table.csv").write_text(
            "".join(["name,donor\n", *(f"cell {i},{batch[i]}\n" for i in reversed(range(60)))])
        )
        expected = nmfscale.TopicModel(3, random_state=1, max_iter=60, batch_shape=2.0).fit(
            simulated(), batch=batch
        )
        counts, model_file, out = (tmp_path / name for name in ("counts.h5ad", "m.h5", "L.npz"))
        for place in ("donor", tmp_path / "table.csv:donor", f"{counts}:donor"):
            words = ["-k", 3, "--batch", place, "--batch-shape", 2, "-o", model_file, "--force"]
            assert run("fit", counts, *words, "--quiet", *FIT) == 0
            model = nmfscale.load(model_file)
            assert model.batches_.tolist() == ["a", "b", "c"]
            assert model.components_.tobytes() == expected.components_.tobytes()
        words = ["transform", model_file, counts, "-o", out, "--batch", "donor", "--quiet"]
        assert run(*words) == 0
        assert np.array_equal(
            np.load(out)["loadings"], expected.transform(simulated(), batch=batch)
        )
        table = tmp_path / "starts.csv"
        words = ["stability", counts, "-k", 2, "--starts", 2, "-o", table, "--seed", 0, "--quiet"]
        assert run(*words) == 0
        without = table.read_text()
        assert run(*words, "--batch", "donor", "--force") == 0
        assert table.read_text() != without
        words = ["select-k", counts, "-k", 2, "--splits", 1, "--seed", 0, "--quiet"]
        assert run(*words, "--batch", "donor") == 0
        capsys.readouterr()
        words = ["fit", counts, "-k", 3, "--batch"]
        wrong = misuse(capsys, *words, "donor", "--model", "lda")
        assert "--model topic, poisson and gamma" in wrong
        assert "neither a file nor a column of obs" in failure(capsys, *words, "none", "--quiet")

    @pytest.mark.parametrize("kind", ["array", "mask", "nan"])
    def test_weights_of_entries(self, folder, tmp_path, capsys, kind):
        counts, rng = simulated().astype(float), np.random.default_rng(0)
        lost = rng.random(counts.shape) < 0.2
        weights = np.where(lost, 0, rng.choice([0.5, 2], lost.shape)) if kind == "array" else ~lost
        np.save(tmp_path / "array.npy", weights)
        sp.save_npz(tmp_path / "mask.npz", sp.csr_array(lost))
        source, given = (
            folder / "counts.npz",
            tmp_path / {"array": "array.npy"}.get(kind, "mask.npz"),
        )
        if kind == "nan":
            source, given = tmp_path / "gaps.npz", "nan"
            sp.save_npz(source, sp.csr_array(np.where(lost, np.nan, counts)))
            words = ["fit", source, "-k", 3, "-o", tmp_path / "other.h5"]
            assert "it as missing by --data-weights nan of fit" in failure(capsys, *words)
        words = ["--data-weights", given, "--quiet"]
        assert run("fit", source, "-k", 3, "-o", tmp_path / "model.h5", *words, *SHORT) == 0
        model = nmfscale.load(tmp_path / "model.h5")
        expected = nmfscale.TopicModel(3, random_state=1, max_iter=9, tol=0)
        loadings = expected.fit_transform(counts, data_weights=weights)
        assert model.components_.tobytes() == expected.components_.tobytes()
        assert (
            run("transform", tmp_path / "model.h5", source, "-o", tmp_path / "L.npy", *words) == 0
        )
        assert np.load(tmp_path / "L.npy").tobytes() == loadings.tobytes()
        capsys.readouterr()
        words = ["fit", source, "-k", 3, "-o", tmp_path / "other.h5", "--data-weights"]
        assert "SSNMF, not LDA" in misuse(capsys, *words, given, "--model", "lda")
        assert "no weights of entries" in failure(capsys, *words, folder / "named.h5ad")

    def test_every_option_arrives(self, folder, tmp_path):
        target = tmp_path / "model.h5"
        words = ["fit", folder / "counts.npz", "-k", 4, "-o", target, "--model", "poisson"]
        words += ["--solver", "scd", "--init", "random", "--seed", 7, "--max-iter", 3]
        words += ["--tol", "0.5", "--threads", 2, "--dtype", "float32", "--quiet"]
        assert run(*words) == 0
        model = nmfscale.load(target)
        assert type(model) is nmfscale.PoissonNMF
        assert model.components_.dtype == np.float32
        parameters = model.get_params()
        expected = {
            "n_components": 4,
            "solver": "scd",
            "init": "random",
            "random_state": 7,
            "max_iter": 3,
            "tol": 0.5,
            "n_threads": 2,
        }
        assert {name: parameters[name] for name in expected} == expected

    def test_layer_and_transpose(self, folder, tmp_path):
        words = ["-k", 2, "--quiet", *FIT]
        layer, turned = tmp_path / "layer.h5", tmp_path / "turned.h5"
        assert run("fit", folder / "named.h5ad", "--layer", "twice", "-o", layer, *words) == 0
        assert run("fit", folder / "turned.npz", "--transpose", "-o", turned, *words) == 0
        model = nmfscale.load(layer)
        assert model.sample_names_[0] == "cell 0"
        assert model.feature_names_in_[39] == "gene 39"
        np.testing.assert_allclose(model.size_factors_, 2 * simulated().sum(axis=1), rtol=0.01)
        assert nmfscale.load(turned).components_.shape == (2, 40)

    def test_refusals(self, folder, tmp_path, capsys, monkeypatch):
        counts = folder / "counts.npz"
        target = tmp_path / "model.h5"
        target.write_text("precious")
        assert "exists; choose another name, or replace it with --force" in failure(
            capsys, "fit", counts, "-k", 2, "-o", target
        )
        assert target.read_text() == "precious"
        absent = tmp_path / "absent" / "model.h5"
        assert f"folder {absent.parent} does not exist" in failure(
            capsys, "fit", counts, "-k", 2, "-o", absent
        )
        assert "is a folder" in failure(capsys, "fit", counts, "-k", 2, "-o", tmp_path)
        assert "to write is empty" in failure(capsys, "fit", counts, "-k", 2, "-o", "")
        for words in (["fit", counts, "-k", 2, "-o", "x.png"], ["store", counts, "x.h5"]):
            assert f"{words[-1]} must end with one of ." in misuse(capsys, *words)
        new = tmp_path / "new.h5"
        assert "nowhere.npz" in failure(capsys, "fit", "nowhere.npz", "-k", 2, "-o", new)
        assert "--genome hg19 does not apply" in failure(
            capsys, "fit", counts, "-k", 2, "-o", new, "--genome", "hg19"
        )
        assert os.listdir(tmp_path) == ["model.h5"]

    def test_force_replaces(self, folder, tmp_path):
        target = tmp_path / "model.h5"
        target.write_text("not precious")
        words = ["-k", 2, "-o", target, "--quiet", "--force", *FIT]
        assert run("fit", folder / "counts.npz", *words) == 0
        assert nmfscale.load(target).components_.shape == (2, 40)

    @pytest.mark.parametrize("more", [[], ["--force"]])
    def test_what_is_no_file_is_not_replaced(self, folder, tmp_path, capsys, more):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        err = failure(capsys, "fit", folder / "counts.npz", "-k", 2, "-o", pipe, *more)
        assert "a device, a pipe or a socket" in err and "--force" not in err
        assert pipe.is_fifo()

    def test_interrupt(self, folder, tmp_path, capsys, monkeypatch):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(nmfscale.TopicModel, "fit", interrupted)
        words = ["-k", 2, "-o", tmp_path / "model.h5", "--quiet"]
        assert run("fit", folder / "counts.npz", *words) == 130
        assert capsys.readouterr().err == "nmfscale: interrupted\n"
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM", "SIGTERM where SIGINT is ignored"])
    def test_interrupted_fit_is_kept(self, folder, tmp_path, capsys, request, sent):
        if "ignored" in sent:
            interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
            request.addfinalizer(lambda: signal.signal(signal.SIGINT, interrupt))
        sent = getattr(signal, sent.split()[0])
        target = tmp_path / "model.h5"
        fit = nmfscale.TopicModel.fit

        def interrupted(model, *given, **options):
            # Ctrl-C in the third iteration, as a terminal sends it.
            return fit(model.set_params(callback=press), *given, **options)

        def press(record):
            if record["iteration"] == 3:
                os.kill(os.getpid(), sent)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nmfscale.TopicModel, "fit", interrupted)
            words = ["-k", 2, "-o", target, "--quiet", "--seed", 1]
            words += ["--checkpoint", tmp_path / "state"]
            before = signal.getsignal(signal.SIGTERM)
            assert run("fit", folder / "counts.npz", *words) == 130
            assert signal.getsignal(signal.SIGTERM) == before
        out, err = capsys.readouterr()
        assert "(interrupted)" in out
        assert f"interrupted: {target} holds the best model so far; --resume continues from" in err
        assert str(tmp_path / "state") in err
        model = nmfscale.load(target)
        assert model.interrupted_
        assert 3 <= model.n_iter_ <= 5

    def test_debug_shows_the_traceback(self, tmp_path, capsys):
        assert run("fit", "nowhere.npz", "-k", 2, "-o", tmp_path / "model.h5", "--debug") == 1
        assert "Traceback" in capsys.readouterr().err

    def test_feature_names_from_a_file(self, folder, tmp_path, capsys):
        names = [f"word {j}" for j in range(40)]
        # as Excel writes it
        (tmp_path / "words.txt").write_text("\n".join(names) + "\n", encoding="utf-8-sig")
        words = ["fit", folder / "counts.npz", "-k", 3, "-o", tmp_path / "model.h5", *FIT]
        assert run(*words, "--feature-names", tmp_path / "words.txt", "--quiet") == 0
        assert nmfscale.load(tmp_path / "model.h5").feature_names_in_.tolist() == names
        capsys.readouterr()
        (tmp_path / "words.txt").write_text("one\n")
        err = failure(capsys, *words, "--feature-names", tmp_path / "words.txt", "--force")
        assert "words.txt has 1 names for 40 features" in err
        (tmp_path / "words.txt").write_text("gr\xfcn\n", encoding="latin-1")
        err = failure(capsys, *words, "--feature-names", tmp_path / "words.txt", "--force")
        assert "words.txt is not UTF-8 (invalid start byte at byte 2): save it as UTF-8" in err


class TestFractions:
    @pytest.mark.parametrize(
        ("command", "suffix", "more"),
        [
            ("fit", "npz", []),
            ("fit", "npz", ["--memory-limit", "100GB"]),
            ("fit", "nmf", []),
            ("store", "npz", []),
        ],
    )
    def test_are_said_once(self, tmp_path, capsys, command, suffix, more):
        counts, source = sp.csr_array(simulated() / 2), tmp_path / f"halves.{suffix}"
        if suffix == "nmf":
            nmfscale.write_store(counts, source, integer="allow")
        else:
            sp.save_npz(source, counts)
        target = tmp_path / "target"
        words = ["-o", target, "-k", 2, *FIT] if command == "fit" else [target]
        assert run(command, source, *words, "--quiet", *more) == 0
        err = capsys.readouterr().err
        assert err.count(f"{source} holds counts that are not whole numbers: row 0, ") == 1
        assert "integer=" not in err

    def test_name_the_options_for_other_matrices_of_the_file(self, tmp_path, capsys):
        anndata = pytest.importorskip("anndata")
        adata = anndata.AnnData(simulated() / 2.0)
        adata.raw = adata
        adata.layers["counts"] = adata.layers["my logs"] = adata.X
        adata.write_h5ad(tmp_path / "cells.h5ad")
        for given, others in (
            ([], "--raw, --layer counts, --layer 'my logs'"),
            (["--layer", "my logs"], "--raw, --layer counts"),
            (["--raw"], "--layer counts, --layer 'my logs'"),
        ):
            store = tmp_path / f"{len(given)}{others[2]}.nmf"
            assert run("store", tmp_path / "cells.h5ad", store, "--quiet", *given) == 0
            said = capsys.readouterr().err
            assert f"better pass the raw counts; the file also has {others}." in said


class TestTransform:
    def test_every_format_holds_the_same_numbers(self, folder, tmp_path, capsys):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(simulated(), columns=[f"gene {j}" for j in range(40)])
        expected = nmfscale.load(folder / "named.h5").transform(frame)
        for name in ("out.npz", "OUT2.NPZ", "out.csv", "out.tsv", "out.csv.gz", "out.tsv.gz"):
            words = [folder / "named.h5", folder / "named.h5ad", "-o", tmp_path / name]
            assert run("transform", *words) == 0
            out, err = capsys.readouterr()
            assert f"60 x 3, {tmp_path / name}" in out
            assert err == ""
        assert len(os.listdir(tmp_path)) == 6
        for name in ("out.npz", "OUT2.NPZ"):
            with np.load(tmp_path / name) as arrays:
                np.testing.assert_array_equal(arrays["loadings"], expected)
                assert arrays["sample_names"][59] == "cell 59"
        plain = (tmp_path / "out.csv").read_bytes()
        assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == plain
        tabbed = (tmp_path / "out.tsv").read_bytes()
        assert tabbed == plain.replace(b",", b"\t")
        assert gzip.decompress((tmp_path / "out.tsv.gz").read_bytes()) == tabbed
        head, *lines = plain.decode().splitlines()
        assert head == "sample,topic_0,topic_1,topic_2"
        assert lines[3].split(",")[0] == "cell 3"
        read = np.array([line.split(",")[1:] for line in lines], dtype=np.float64)
        np.testing.assert_array_equal(read, expected)

    def test_npy_is_written_as_it_goes(self, folder, tmp_path, capsys, monkeypatch):
        internals.small_blocks(monkeypatch, 300)
        model, named = nmfscale.load(folder / "named.h5"), folder / "named.h5ad"
        # the limit of a fit is not that of this command
        model.set_params(memory_limit="1MB").save(tmp_path / "limited.h5")
        expected = model.set_params(memory_limit=None).transform(named)
        words = ["transform", tmp_path / "limited.h5", named, "-o"]
        for name, more in (("a.npy", []), ("b.npy", ["--memory-limit", "100GB"])):
            assert run(*words, tmp_path / name, *more) == 0
            assert f"60 x 3, {tmp_path / name}" in capsys.readouterr().out
            np.testing.assert_array_equal(np.load(tmp_path / name), expected)
        err = failure(capsys, *words, tmp_path / "c.npy", "--memory-limit", "1MB")
        assert "the loadings need" in err and "raise --memory-limit" in err
        assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npy", "limited.h5"]

    def test_samples_without_names_are_numbered(self, folder, tmp_path):
        words = [folder / "model.h5", folder / "counts.npz", "-o", tmp_path / "out.tsv"]
        assert run("transform", *words, "--threads", 1) == 0
        assert (tmp_path / "out.tsv").read_text().splitlines()[1].split("\t")[0] == "0"

    @pytest.mark.parametrize("more", [[], ["--memory-limit", "100GB"]])
    def test_features_are_matched_by_name(self, folder, tmp_path, capsys, more):
        for name in ("named", "turned"):
            words = [folder / "named.h5", folder / f"{name}.h5ad", "-o", tmp_path / f"{name}.csv"]
            assert run("transform", *words, *more) == 0
        assert capsys.readouterr().err == (
            "nmfscale: warning: INPUT has its features in another order than in the "
            "fit: they are matched by name.\n"
        )
        assert (tmp_path / "named.csv").read_bytes() == (tmp_path / "turned.csv").read_bytes()

    def test_features_without_names_are_taken_in_order(self, folder, tmp_path, capsys):
        words = [folder / "named.h5", folder / "counts.npz", "-o", tmp_path / "out.npz"]
        assert run("transform", *words) == 0
        err = capsys.readouterr().err
        assert err.startswith("nmfscale: warning: INPUT does not have valid feature names")
        assert err.count("\n") == 1

    def test_refusals(self, folder, tmp_path, capsys):
        out = tmp_path / "out.npz"
        named, counts = folder / "named.h5", folder / "counts.npz"
        assert "must end with one of .npy, .npz, .csv" in misuse(
            capsys, "transform", named, counts, "-o", tmp_path / "out.txt"
        )
        assert "INPUT has 30 features, but TopicModel is expecting 40" in failure(
            capsys, "transform", named, folder / "narrow.npz", "-o", out
        )
        assert "INPUT lacks 10 of the 40 features that TopicModel was fitted to" in failure(
            capsys, "transform", named, folder / "fewer.h5ad", "-o", out
        )
        assert "is not an HDF5 file" in failure(capsys, "transform", counts, counts, "-o", out)
        assert os.listdir(tmp_path) == []


class TestStore:
    @pytest.fixture
    def store(self, folder, tmp_path, capsys):
        words = [folder / "named.h5ad", tmp_path / "cells.nmf", "--memory-limit", "1GB"]
        assert run("store", *words, "--quiet") == 0
        out, err = capsys.readouterr()
        assert "60 x 40" in out
        assert "bytes each" in out
        assert err == ""
        return tmp_path / "cells.nmf"

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--layer", "twice"], lambda counts: 2 * counts),
            (["--raw"], lambda counts: counts),
            (["--feature-type", "all", "--genome", "hg"], lambda counts: counts[:, 1::2]),
            (["--feature-type", "Antibody Capture"], lambda counts: counts[:, 1::3]),
        ],
    )
    def test_a_part_of_a_file(self, tmp_path, words, expected):
        counts, target = simulated(), tmp_path / "part.nmf"
        source = tmp_path / "counts.h5"
        if "--feature-type" in words:
            write_tenx(source, sp.csr_matrix(counts), 3)
        else:
            at = "raw/X" if "--raw" in words else "layers/twice"
            matrix = counts if "--raw" in words else 2 * counts
            write_h5ad(source, sp.csr_matrix(matrix), at=at)
        assert run("store", source, target, "--quiet", *words) == 0
        rows = nmfscale.results.StoredCounts(target).take_rows().toarray()
        np.testing.assert_array_equal(rows, expected(counts))

    def test_the_same_model_as_of_the_file(self, folder, store, tmp_path):
        target = tmp_path / "model.h5"
        assert run("fit", store, "-k", 3, "-o", target, "--quiet", *FIT) == 0
        one, other = nmfscale.load(folder / "named.h5"), nmfscale.load(target)
        assert one.components_.tobytes() == other.components_.tobytes()
        assert one.feature_names_in_.tolist() == other.feature_names_in_.tolist()

    def test_fit_within_a_limit(self, folder, tmp_path, capsys):
        words = [folder / "named.h5ad", "-k", 3, "-o", tmp_path / "model.h5", *FIT]
        assert run("fit", *words, "--memory-limit", "100GB") == 0
        assert "predicted peak memory" in capsys.readouterr().err
        one, other = (
            nmfscale.load(f / n) for f, n in ((folder, "named.h5"), (tmp_path, "model.h5"))
        )
        assert one.components_.tobytes() == other.components_.tobytes()
        assert "needs" in failure(
            capsys, "fit", *words, "--force", "--quiet", "--memory-limit", "1MB"
        )

    @pytest.mark.parametrize(
        "options",
        [
            [],
            ["--solver", "scd"],
            GAMMA,
            *(["--model", name] for name in ("lda", "noisy", "ssnmf")),
        ],
    )
    def test_resume(self, folder, tmp_path, capsys, options):
        words = ["fit", folder / "counts.npz", "-k", 3, "--quiet", "--seed", 1, "--threads", 1]
        words += ["--tol", 0, "--checkpoint", tmp_path / "state", "-o", tmp_path / "model.h5"]
        words += options
        words += ["--checkpoint-every", 0]
        assert run(*words, "--max-iter", 5) == 0
        seconds = nmfscale.load(tmp_path / "model.h5").history_["seconds"]
        assert run(*words, "--max-iter", 9, "--resume") == 0  # though model.h5 exists
        resumed = nmfscale.load(tmp_path / "model.h5")
        assert resumed.n_iter_ == 9
        assert resumed.history_["seconds"][:3].tolist() == seconds[:3].tolist()

    @pytest.mark.parametrize("n_init", [1, 2])
    def test_resume_knows_the_seed_that_was_drawn(self, folder, tmp_path, capsys, n_init):
        words = ["fit", folder / "counts.npz", "-k", 3, "--quiet", "--init", "random", "--tol", 0]
        words += ["-o", tmp_path / "model.h5", "--n-init", n_init, "--solver", "scd"]
        state = ["--checkpoint", tmp_path / "state", "--checkpoint-every", 0]
        assert run(*words, *state, "--max-iter", 5) == 0
        seed = re.search(r"^seed +(\d+)$", capsys.readouterr().out, re.M)[1]
        assert run(*words, *state, "--max-iter", 9, "--resume") == 0
        assert f"seed            {seed}\n" in capsys.readouterr().out
        resumed = nmfscale.load(tmp_path / "model.h5")
        assert resumed.random_state == int(seed)
        assert run(*words, "--max-iter", 9, "--seed", seed, "--force") == 0
        whole = nmfscale.load(tmp_path / "model.h5")
        assert resumed.components_.tobytes() == whole.components_.tobytes()

    def test_resume_replaces_nothing_where_there_is_no_checkpoint(self, folder, tmp_path, capsys):
        target = tmp_path / "model.h5"
        target.write_text("precious")
        words = ["fit", folder / "counts.npz", "-k", 3, "--checkpoint", tmp_path / "state"]
        assert "exists" in failure(capsys, *words, "--resume", "-o", target)
        assert target.read_text() == "precious"

    def test_progress(self, folder, tmp_path, capsys):
        assert run("store", folder / "counts.npz", tmp_path / "counts.nmf") == 0
        assert "packing" in capsys.readouterr().err

    def test_info(self, store, capsys):
        assert run("info", store) == 0
        out = capsys.readouterr().out
        assert "60 x 40" in out
        assert "named.h5ad" in out
        assert "all checksums agree" in out
        content = bytearray(store.read_bytes())
        with h5py.File(store) as file:
            content[file["blocks/000000/rows_count"].id.get_offset()] ^= 1
        store.write_bytes(content)
        assert "rows_count is damaged" in failure(capsys, "info", store)

    def test_refusals(self, folder, store, tmp_path, capsys):
        assert "exists" in failure(capsys, "store", folder / "counts.npz", store)
        assert "already a packed store" in failure(capsys, "store", store, tmp_path / "two.nmf")
        words = ["fit", store, "-k", 2, "--layer", "twice", "-o", tmp_path / "model.h5"]
        error = failure(capsys, *words)
        assert f"--layer twice does not apply to {store}, a packed store" in error
        assert run("store", folder / "counts.npz", store, "--force", "--quiet") == 0


class TestInfo:
    def test_counts(self, folder, capsys):
        assert run("info", folder / "counts.npz") == 0
        out, err = capsys.readouterr()
        assert "60 x 40" in out
        assert err == ""

    def test_model(self, folder, capsys):
        assert run("info", folder / "named.h5") == 0
        out, err = capsys.readouterr()
        assert "TopicModel(" in out
        assert "3 topics x 40 features" in out
        assert "60 samples, float64" in out
        assert out.count("\ntopic ") == 3
        assert "gene" in out.splitlines()[-1]
        assert err == ""

    def test_build(self, capsys):
        assert run("info", "--build") == 0
        described = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
        assert {"numpy", "scikit-learn", "python", "level", "openmp", "threads"} <= set(described)
        assert described["numpy"] == np.__version__

    @pytest.mark.parametrize("words", [["info"], ["info", "--build", "counts.npz"]])
    def test_one_of_both(self, words, capsys):
        assert "pass either INPUT or --build" in misuse(capsys, *words)

    def test_foreign_and_damaged_files(self, folder, tmp_path, capsys):
        assert "readme.txt" in failure(capsys, "info", tmp_path / "readme.txt")
        content = (folder / "model.h5").read_bytes()
        (tmp_path / "model.h5").write_bytes(content[: len(content) // 2])
        assert "model.h5" in failure(capsys, "info", tmp_path / "model.h5")


class TestPlot:
    def plot(self, *words):
        pytest.importorskip("matplotlib")
        return run("plot", *words)

    @pytest.mark.parametrize(
        ("kind", "suffix", "start"),
        [
            ("structure", ".png", b"\x89PNG"),
            ("progress", ".pdf", b"%PDF"),
            ("top", ".svg", b"<?xml"),
        ],
    )
    def test_kinds_and_formats(self, folder, tmp_path, capsys, kind, suffix, start):
        target = tmp_path / f"plot{suffix}"
        assert self.plot(folder / "named.h5", "-o", target, "--kind", kind) == 0
        assert target.read_bytes().startswith(start)
        assert os.listdir(tmp_path) == [target.name]
        assert str(target) in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("name", "lines", "encoding"),
        [
            ("labels.txt", [f"type {i % 3}" for i in range(60)], "utf-8"),
            ("labels.tsv", [f"cell {i}\ttype, {i % 3}" for i in reversed(range(60))], "utf-8"),
            ("labels.csv", [f"cell {i},type {i % 3}" for i in range(70)], "utf-8"),
            ("LABELS.CSV", [f"cell {i},type {i % 3}" for i in range(60)], "utf-8"),
            ("excel.csv", [f"cell {i},type {i % 3}" for i in range(60)], "utf-8-sig"),
        ],
    )
    def test_groups(self, folder, tmp_path, name, lines, encoding):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding=encoding)
        words = [folder / "named.h5", "-o", tmp_path / "plot.svg", "--groups", tmp_path / name]
        assert self.plot(*words) == 0
        drawn = (tmp_path / "plot.svg").read_text()
        assert "type" in drawn and "cell" not in drawn

    @pytest.mark.parametrize(
        ("name", "lines"),
        [
            ("labels.txt", ["a"] * 20 + [""] * 20 + ['"b'] * 10 + ['"c"'] * 10),
            ("labels.txt", ["a"] * 20 + ['"b'] * 10 + ['"c"'] * 10 + [""] * 20),
            ("labels.txt", ["a"] * 20 + [""] * 20 + ['"b'] * 10 + ["c"] * 10 + ["", "", ""]),
            ("labels.csv", ["a"] * 20 + [""] * 20 + ['"""b"'] * 10 + ["c"] * 10 + [""]),
            ("labels.tsv", [f"cell {i}\t{'' if i < 20 else 'a'}" for i in range(60)] + ["", ""]),
        ],
    )
    def test_missing_labels_blank_lines_and_quotation_marks(self, folder, tmp_path, name, lines):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        labels = read_groups(str(tmp_path / name), 60, [f"cell {i}" for i in range(60)])
        expected = (
            {"a": 40, None: 20} if name[-3:] == "tsv" else {"a": 20, None: 20, '"b': 10, "c": 10}
        )
        assert Counter(labels) == expected
        words = [folder / "named.h5", "-o", tmp_path / "plot.svg", "--groups", tmp_path / name]
        assert self.plot(*words) == 0
        assert "(no group)" in (tmp_path / "plot.svg").read_text()

    @pytest.mark.parametrize("header", ["", "name\tkind\n"])
    def test_names_that_are_repeated(self, tmp_path, header):
        (tmp_path / "labels.tsv").write_text(f"{header}b\tx\na\ty\nb\tx\n")
        given = f"{tmp_path / 'labels.tsv'}{':kind' if header else ''}"
        assert read_groups(given, 2, ["a", "b"]) == ["y", "x"]
        with pytest.raises(ValueError, match="several samples of the model have the same name"):
            read_groups(given, 3, ["a", "b", "a"])
        (tmp_path / "labels.tsv").write_text(f"{header}b\tx\na\ty\nb\tNA\n")
        match = "names samples twice, such as 'b' with the labels 'x' and 'none'"
        with pytest.raises(ValueError, match=match):
            read_groups(given, 2, ["a", "b"])
        assert read_groups(given, 3, ["b", "a", "b"]) == ["x", "y", None]

    @pytest.mark.parametrize("names", [np.array([7, 30]), np.array([b"7", b"30"]), ["7", "30"]])
    def test_names_of_any_type_match_their_text(self, tmp_path, names):
        (tmp_path / "labels.csv").write_text("30,x\n7,y\n")
        assert read_groups(str(tmp_path / "labels.csv"), 2, names) == ["y", "x"]

    @pytest.mark.parametrize("cell", ["NA", "", "<NA>", "NaN"])
    def test_what_stands_for_no_label(self, tmp_path, cell):
        (tmp_path / "labels.csv").write_text(f"name,kind\na,{cell}\nb,x\n")
        assert read_groups(f"{tmp_path / 'labels.csv'}:kind", 2, ["b", "a"]) == ["x", None]
        (tmp_path / "labels.txt").write_text(f"x\n{cell}\n")
        assert read_groups(str(tmp_path / "labels.txt"), 2, None) == ["x", None]

    def test_missing_labels_of_an_h5ad_file(self, tmp_path):
        anndata, pandas = (pytest.importorskip(name) for name in ("anndata", "pandas"))
        obs = {
            "kind": pandas.Categorical(["x", None, "x", "missing"]),
            "of_text": pandas.Categorical(["x", "nan", "NA", "y"]),
            "number": [1.5, np.nan, 0.5, 0.5],
            "whole": pandas.array([1, None, 0, 0], dtype="Int64"),
            "a:b": ["p", "q", "p", "q"],
        }
        path = tmp_path / "cells.h5ad"
        anndata.AnnData(np.ones((4, 1)), obs=pandas.DataFrame(obs, index=[*"abcd"])).write_h5ad(
            path
        )
        found = {name: read_groups(f"{path}:{name}", 4, [*"abcd"]) for name in obs}
        assert found == {
            "kind": ["x", None, "x", "missing"], "of_text": ["x", None, None, "y"],
            "number": ["1.5", None, "0.5", "0.5"], "whole": ["1", None, "0", "0"],
            "a:b": [*"pqpq"],
        }  # fmt: skip
        counts = nmfscale.read_counts(path, groups="number")
        assert counts.groups.tolist() == [1.5, "missing", 0.5, 0.5]

    @pytest.mark.parametrize("given", ["no.csv", "no.csv:kind"])
    def test_a_file_that_is_not_there_is_refused_at_once(self, given):
        with pytest.raises(FileNotFoundError, match=r"^No such file: no\.csv$"):
            read_groups(given, 2, None)

    def test_a_column_that_occurs_twice_is_refused(self, tmp_path):
        (tmp_path / "labels.csv").write_text("name,kind,kind\na,x,y\nb,x,z\n")
        with pytest.raises(ValueError, match=r"labels\.csv has 2 columns 'kind': rename them"):
            read_groups(f"{tmp_path / 'labels.csv'}:kind", 2, ["a", "b"])

    @pytest.mark.parametrize(
        ("text", "model", "complaint"),
        [
            ("a\nb\n\n", "named.h5", "has 3 labels for 60 samples."),
            (
                "type\n" + "a\n" * 60,
                "named.h5",
                "60 samples: its first line, 'type', looks like a h",
            ),
            ('cell 0\t"a\ncell 1\ta\n', "named.h5", "groups.tsv, line 2: unexpected end of data; "),
            ("cell 0\ta\n", "named.h5", "no label for 59 of 60 samples, such as 'cell 1'."),
            ("cell 0\ta\n", "model.h5", "the model has no names: pass only labels"),
            ("a\tb\tc\n", "named.h5", "on each line; or add a column, as "),
            ("id;type\ncell 0;a\ncell 1;b\n", "named.h5", "separated by ';', as in 'cell 0;a'"),
            ("cell 0,a\ncell 1,b\n", "named.h5", "separated by ',', as in 'cell 1,b'"),
            ("old 0\ta\n", "named.h5", "60 of 60 samples, such as 'cell 0'; it has 'old 0'."),
            ("", "named.h5", "must hold a label"),
            ("gr\xfcn\n", "named.h5", "groups.tsv is not UTF-8"),
        ],
    )
    def test_groups_that_do_not_fit(self, folder, tmp_path, capsys, text, model, complaint):
        groups = tmp_path / "groups.tsv"
        groups.write_text(text, encoding="latin-1")
        words = ["plot", folder / model, "-o", tmp_path / "plot.png", "--groups", groups]
        assert complaint in failure(capsys, *words)

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("cells.h5ad", None),
            ("cells.csv", "name,depth,kind\n{}"),
            ("cells.tsv", "depth\tkind\n{}"),  # as R writes it
        ],
    )
    def test_groups_from_a_column(self, folder, tmp_path, capsys, name, text):
        kinds = [f"type {i % 3}" for i in range(60)]
        order = np.random.default_rng(0).permutation(60)
        path = tmp_path / name
        if text is None:
            anndata = pytest.importorskip("anndata")
            adata = anndata.AnnData(np.ones((60, 1)), obs={"depth": range(60), "kind": kinds})
            adata.obs_names = [f"cell {i}" for i in range(60)]
            adata[order].copy().write_h5ad(path)
        else:
            mark = "," if name.endswith("csv") else "\t"
            rows = (mark.join([f"cell {i}", str(i), kinds[i]]) for i in order)
            path.write_text(text.format("\n".join(rows)) + "\n")
        names = [f"cell {i}" for i in range(60)]
        assert read_groups(f"{path}:kind", 60, names) == kinds
        assert read_groups(f"{path}:kind", 60, None) == [kinds[i] for i in order]
        words = [folder / "named.h5", "-o", tmp_path / "plot.svg", "--groups"]
        assert self.plot(*words, f"{path}:kind") == 0
        capsys.readouterr()
        err = failure(capsys, "plot", *words, f"{path}:sex", "--force")
        assert "no column 'sex'" in err and "kind" in err
        with pytest.raises(ValueError, match="has no label for 1 of 61 samples, such as 'cell 60'"):
            read_groups(f"{path}:kind", 61, [*names, "cell 60"])
        with pytest.raises(ValueError, match="60 labels for 59 samples, and the model has no"):
            read_groups(f"{path}:kind", 59, None)
        if text is None:
            err = failure(capsys, "plot", *words, path, "--force")
            assert "cells.h5ad:COLUMN; columns: depth, kind." in err

    @pytest.mark.parametrize("kind", ["top", "progress"])
    def test_groups_are_of_one_kind(self, capsys, kind):
        words = ["plot", "model.h5", "-o", "plot.png", "--kind", kind, "--groups", "f"]
        assert f"--groups is for --kind structure, not {kind}" in misuse(capsys, *words)

    def test_several_models(self, folder, tmp_path, capsys):
        both = [folder / "named.h5", folder / "model.h5"]
        target = tmp_path / "plot.svg"
        assert self.plot(*both, "-o", target, "--kind", "progress", "--x", "iteration") == 0
        assert "iteration" in target.read_text()
        capsys.readouterr()
        new = tmp_path / "new.png"
        assert "draws one model; got 2" in misuse(capsys, "plot", *both, "-o", new)
        same = [both[0], both[0], "--kind", "progress"]
        assert "cannot be distinguished" in failure(capsys, "plot", *same, "-o", new)
        assert "must end with one of .png" in misuse(
            capsys, "plot", both[0], "-o", tmp_path / "plot.doc"
        )

    @pytest.mark.parametrize(
        ("kind", "lacks"), [("progress", "history"), ("structure", "loadings")]
    )
    def test_a_model_that_was_fitted_in_batches(self, folder, tmp_path, capsys, kind, lacks):
        model = nmfscale.load(folder / "model.h5")
        del model.history_, model.loadings_
        model.save(tmp_path / "batches.h5")
        words = "plot", tmp_path / "batches.h5", "-o", tmp_path / "new.png", "--kind", kind
        assert f"the model batches has no {lacks} to draw" in failure(capsys, *words)
        assert main(["info", str(tmp_path / "batches.h5")]) == 0
        assert "iterations" not in capsys.readouterr().out

    def test_distances_of_anchors(self, folder, tmp_path, capsys):
        nmfscale.AnchorNMF(2).fit([[4, 0, 2], [0, 3, 1], [2, 1, 5]]).save(tmp_path / "anchors.h5")
        target = tmp_path / "plot.png"
        assert self.plot(tmp_path / "anchors.h5", "-o", target, "--kind", "scree") == 0
        capsys.readouterr()
        words = "plot", folder / "model.h5", "-o", target, "--force", "--kind", "scree"
        assert "without distances_: pass a fitted AnchorNMF" in failure(capsys, *words)

    @pytest.mark.parametrize("n_topics", [1, 6])
    def test_figures_are_as_large_as_those_of_python(self, n_topics):
        plots = pytest.importorskip("matplotlib") and nmfscale.pl
        shares = np.random.default_rng(0).random((n_topics, 12))
        model = SimpleNamespace(components_=shares, loadings_=shares.T)
        python = {
            "top": plots.top_features_plot(shares, n_top=50),
            "structure": plots.structure_plot(shares.T),
        }
        for kind, ax in python.items():
            shell = commands._draw(kind, {"model": model}, n_top=50)
            assert shell.figure.get_size_inches().tolist() == ax.figure.get_size_inches().tolist()


class TestDemo:
    @pytest.fixture(autouse=True)
    def small_corpus(self, monkeypatch):
        from nmfscale.datasets import corpora

        small = corpora.docstrings(["dask", "numpy"], min_count=20)
        internals.demo_corpus(monkeypatch, small)

    @pytest.mark.nightly
    def test_writes_a_model_and_plots(self, tmp_path, capsys):
        pytest.importorskip("matplotlib")
        target = tmp_path / "new" / "folder"
        assert run("demo", "-o", target, "--threads", 1) == 0
        out, err = capsys.readouterr()
        assert sorted(os.listdir(target)) == [
            "model.h5",
            "progress.png",
            "structure.png",
            "top_words.png",
        ]
        assert "samples x features" in out
        assert "topic 0 " in out and "topic 9 " in out and "topic 10" not in out
        assert str(target) in out
        assert err != ""
        assert "exists" in failure(capsys, "demo", "-o", target)

    def test_without_matplotlib(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        fit, said = nmfscale.TopicModel.fit, []

        def listening(model, *given, **options):
            said.append(capsys.readouterr().err)
            return fit(model, *given, **options)

        monkeypatch.setattr(nmfscale.TopicModel, "fit", listening)
        assert run("demo", "-o", tmp_path, "--quiet") == 0
        assert os.listdir(tmp_path) == ["model.h5"]
        assert "pip install 'nmfscale[plot]'" in said[0]  # before the work
        capsys.readouterr()
        plot = tmp_path / "structure.png"
        assert "pip install 'nmfscale[plot]'" in failure(
            capsys, "plot", tmp_path / "model.h5", "-o", plot
        )
        assert not plot.exists()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_tables_of_groups_are_plain_or_compressed(tmp_path, encoding, pack):
    for name in ("groups.csv", "groups.csv.gz"):
        path = tmp_path / name
        path.write_bytes(pack("cell,kind\r\nb,gr\xfcn\r\na,rot\r\n".encode(encoding)))
        found = read_groups(f"{path}:kind", 2, np.array(["a", "b"], object))
        assert found == ["rot", "gr\xfcn"]


def test_which_side_is_the_samples_is_asked_for(tmp_path, capsys):
    (tmp_path / "tenx").mkdir()
    (tmp_path / "tenx" / "matrix.mtx").write_text(
        "%%MatrixMarket matrix coordinate integer general\n3 2 3\n1 1 4\n2 2 1\n3 2 2\n"
    )
    words = "fit", tmp_path / "tenx", "-k", 1, "--quiet", "-o", tmp_path / "model.h5"
    said = failure(capsys, *words)
    assert "--transpose if its rows are features" in said and "--no-transpose if they are" in said
    for option, n_features in (("--transpose", 3), ("--no-transpose", 2)):
        assert run(*words, option, "--force") == 0
        assert nmfscale.load(tmp_path / "model.h5").n_features_in_ == n_features


@pytest.mark.parametrize("more", [[], ["--force"]])
@pytest.mark.parametrize(
    "words",
    [
        "fit counts.npz -k 2 -o counts.npz",
        "fit counts.npz -k 2 -o link.npz",
        "fit counts.npz -k 2 --feature-names names.txt -o names.txt",
        "fit tenx -k 2 -o tenx/matrix.mtx",
        "store counts.npz counts.npz",
        "store counts.npz names.txt --feature-names names.txt",
        "transform model.npz counts.npz -o counts.npz",
        "transform model.npz counts.npz -o model.npz",
        "transform model.npz counts.npz --feature-names names.tsv -o names.tsv",
        "plot model.png -o model.png",
        "plot model.npz -o groups.svg --groups groups.svg",
    ],
)
def test_input_is_not_replaced(folder, tmp_path, capsys, monkeypatch, words, more):
    for name in ("names.txt", "names.tsv", "groups.svg"):
        (tmp_path / name).write_text("".join(f"{i}\n" for i in range(60 - 20 * (name[0] == "n"))))
    for name in ("model.npz", "model.png"):
        (tmp_path / name).write_bytes((folder / "model.h5").read_bytes())
    (tmp_path / "counts.npz").write_bytes((folder / "counts.npz").read_bytes())
    (tmp_path / "link.npz").symlink_to("counts.npz")
    (tmp_path / "tenx").mkdir()
    (tmp_path / "tenx" / "matrix.mtx").write_text(
        "%%MatrixMarket matrix coordinate integer general\n3 3 3\n1 1 4\n2 2 1\n3 3 2\n"
    )
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert "would replace the input" in failure(capsys, *words.split(), *more)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["sing"],
        ["fit", "counts.npz"],
        ["fit", "counts.npz", "-k", "0"],
        ["fit", "counts.npz", "-k", "three"],
        ["fit", "counts.npz", "-k", "3", "--tol", "nan"],
        ["fit", "counts.npz", "-k", "3", "--checkpoint-every", "-1"],
        ["fit", "counts.npz", "-k", "3", "--model", "lda0"],
        ["fit", "counts.npz", "-k", "3", "--model"],
        ["fit", "counts.npz", "-k", "3", "--tol", "inf"],
        ["fit", "counts.npz", "-k", "3", "--threads", "100000"],
        ["fit", "counts.npz", "-k", "3", "--seed", "99999999999"],
        ["transform", "model.h5", "counts.npz"],
        ["transform", "model.h5", "counts.npz", "-o", "out.npy", "--memory-limit", "foo"],
        ["store", "counts.npz", "counts.nmf", "--memory-limit", "0"],
        ["cluster", "--memory-limit", "foo"],
        ["fit", "counts.npz", "-k", "3", "--memory-limit", "1e400GB"],
        ["plot", "-o", "plot.png"],
    ],
)
def test_wrong_usage(words, capsys):
    assert "usage: nmfscale" in misuse(capsys, *words)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--random-state 1", "--random-state: did you mean --seed?"),
        ("--n-components=3", "--n-components: did you mean -k?"),
        ("--max_iter 3", "--max_iter: did you mean --max-iter?"),
        ("--threds 3", "--threds: did you mean --threads?"),
        ("--model lda --solver em", "--solver: it belongs to --model topic, poisson, ssnmf."),
        ("--colour", "unknown option --colour."),
    ],
)
def test_unknown_options(words, hint, capsys):
    # before the missing -k
    assert hint in misuse(capsys, "fit", "counts.npz", *words.split())


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("quality", "'quality': did you mean topic-quality?"),
        ("permutation_test", "did you mean test?"),
        ("transfrom", "did you mean transform?"),
        ("exclusivity", "'exclusivity'; commands: demo, fit, "),
    ],
)
def test_unknown_commands(word, hint, capsys):
    assert hint in misuse(capsys, word, "counts.npz")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--solver", "foo"], r"--solver: invalid choice: 'foo' \(choose from .*joint-em"),
        (["--init", "foo"], r"--init: invalid choice: 'foo' \(choose from .*nndsvd"),
        (["--resume"], "--resume needs --checkpoint DIR"),
        (["--memory-limit", "foo"], "--memory-limit: 'foo' is not a size"),
        (
            ["--model", "frobenius", "--alpha-H", "samy"],
            "--alpha-H: samy is neither a number nor one of same",
        ),
    ],
)
def test_wrong_options_of_a_fit_are_found_before_it_reads(words, complaint, capsys):
    # there is no such file: nothing was read
    assert re.search(complaint, misuse(capsys, "fit", "counts.npz", "-k", 3, *words))


@pytest.mark.parametrize(("text", "value"), [("same", "same"), ("0.5", 0.5)])
def test_an_option_takes_a_word_or_a_number(text, value):
    command = argparse.ArgumentParser()
    words = ["--model", "frobenius", "--alpha-H", text]
    add_parameters(command, words)
    assert command.parse_args(words).alpha_H == value


class AnotherModel(nmfscale.PoissonNMF):
    """A model that the command line does not know.

    Parameters
    ----------
    alpha : float, default=0.5
        Share of 100% that is kept; the rest goes.
    """

    _parameter_constraints = {
        "n_components": nmfscale.PoissonNMF._parameter_constraints["n_components"],
        "solver": [StrOptions({"auto", "exact"})],
        "alpha": [Interval(Real, 0, 1, closed="neither"), None],
        "shuffle": ["boolean"],
        "start": ["array-like", None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components=10,
        *,
        solver="auto",
        alpha=0.5,
        shuffle=True,
        start=None,
        random_state=None,
    ):
        self.n_components, self.solver, self.alpha = n_components, solver, alpha
        self.shuffle, self.start, self.random_state = shuffle, start, random_state

    def fit(self, X, **_):
        fields = ["iteration", "seconds", "lower_bound"]
        self.history_ = np.array([(1, 0.5, -3.25)], [(name, float) for name in fields])
        self.converged_, self.interrupted_, self.n_iter_ = True, False, 1
        return self

    def set_params(self, **_):
        return self

    def save(self, path):
        path.write_text(repr(self))


class TestModels:
    """Options, ranges and results are those of the estimator, whichever it is."""

    @pytest.fixture(autouse=True)
    def another(self, monkeypatch):
        monkeypatch.setitem(models.MODELS, "another", AnotherModel)

    def help_of(self, capsys, *words):
        with pytest.raises(SystemExit):
            main(["fit", *words, "--help"])
        return " ".join(capsys.readouterr().out.split())

    @pytest.mark.parametrize("name", ["topic", "poisson"])
    def test_options_are_the_parameters(self, capsys, name):
        shown = self.help_of(capsys, "--model", name)
        assert f"--solver {{{','.join(sorted(fit.SOLVERS))}}}" in shown
        assert f"--init {{{','.join(sorted(get_args(PoissonStart)))}}}" in shown
        assert "--dtype {float32,float64}" in shown
        assert "--max-iter N Maximum number of iterations, " in shown and "(default: 1000)" in shown
        assert "--extrapolate, --no-extrapolate" in shown
        assert f"--model {{{','.join(models.MODELS)}}}" in shown

    def test_a_new_model_needs_no_change_here(self, folder, tmp_path, capsys):
        shown = self.help_of(capsys, "--model", "another").split("examples:")[0]
        assert "--alpha X Share of 100% that is kept (default: 0.5)" in shown
        assert "--solver {auto,exact}" in shown
        assert "--max-iter" not in shown and "--start" not in shown
        words = ["fit", folder / "counts.npz", "-k", 2, "--model=another", "-o", tmp_path / "m.h5"]
        assert run(*words, "-q", "--alpha", 0.25, "--no-shuffle", "--seed", 3) == 0
        expected = AnotherModel(2, alpha=0.25, shuffle=False, random_state=3)
        assert (tmp_path / "m.h5").read_text() == repr(expected)
        assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
            "lower bound", "iterations", "model",
        ]  # fmt: skip
        for value in ("0", "1", "nan", "inf"):
            err = misuse(capsys, *words, "--alpha", value)
            assert f"--alpha: {value} is not a float in the range (0.0, 1.0)" in err


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("layer='a b' and raw=True exclude", "--layer 'a b' and --raw exclude"),
        ("X lacks a. X has b: X is a; AnX has", "INPUT lacks a. INPUT has b: INPUT is a; AnX has"),
        ("choose genome= from a, b.", "choose --genome from a, b."),
        ("tol=0.001. Increase max_iter, or", "--tol 0.001. Increase --max-iter, or"),
        ("raise memory_limit, or dtype='float32'", "raise --memory-limit, or --dtype float32"),
        ("raw=True does not apply to a.npz; choices: layer, groups.",
         "--raw does not apply to a.npz; options: --layer."),
        ("init=random.h5, a/tol=0.5, max_iter.txt", "init=random.h5, a/tol=0.5, max_iter.txt"),
        ("Join files by join='inner'. To count them as 0 nevertheless, set counts.measured = None.",
         "Join files by --join inner."),
        ("fit it to these counts, or set counts.measured = None if they were counted as 0.",
         "fit it to these counts."),
    ],
)  # fmt: skip
def test_messages_in_the_words_of_the_shell(python, shell):
    assert in_shell_words(python) == shell


@pytest.mark.parametrize(
    "command", ["", "demo", "fit", "store", "transform", "info", "plot", "export", "cluster"]
)
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"examples:\n  nmfscale {command}" in out
    if command in ("fit", "transform", "info"):
        assert "packed .nmf" in " ".join(out.split("examples:")[0].split())
    if command == "fit":
        flags = "-k -o --model --solver --seed --max-iter --tol --threads"
        assert all(f"{flag} " in out for flag in flags.split())


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_stops_does_not_stop_the_work(folder, tmp_path, monkeypatch, stream):
    reading, writing = os.pipe()
    os.close(reading)
    target = tmp_path / "model.h5"
    with io.TextIOWrapper(os.fdopen(writing, "wb")) as closed:
        monkeypatch.setattr(sys, stream, closed)
        assert run("fit", folder / "counts.npz", "-k", 2, "-o", target, *FIT) == 0
        monkeypatch.undo()
    assert target.exists()


def test_messages_without_a_standard_error_are_dropped(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    target = tmp_path / "model.h5"
    assert run("fit", folder / "counts.npz", "-k", 2, "-o", target, *FIT) == 0
    assert target.exists()
    assert capsys.readouterr().out.startswith("log-likelihood")
    assert run("info", "absent.npz") == 1
    assert capsys.readouterr().out == ""


WITHOUT_METADATA = """
import importlib.metadata

def version(name):
    raise importlib.metadata.PackageNotFoundError(name)

importlib.metadata.version = version
from nmfscale.cli import main
main(["--version"])
"""


def test_version_without_metadata():
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_METADATA], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "nmfscale unknown\n"), done.stderr


@pytest.mark.nightly
def test_as_a_program(folder, tmp_path):
    def program(*words):
        command = [sys.executable, "-m", "nmfscale", *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    described = program("info", folder / "model.h5")
    assert (described.returncode, described.stderr) == (0, "")
    assert "TopicModel(" in described.stdout
    failed = program("info", "absent.npz")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "nmfscale: error: No such file or folder: absent.npz\n"


@pytest.mark.parametrize("words", ["--help", "--version", "store --help", "completion --help"])
def test_help_imports_nothing_heavy(words):
    check = (
        "import sys\n"
        "from nmfscale import cli\n"
        f"try:\n    cli.main({words.split()})\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'scipy', 'sklearn', 'h5py', 'matplotlib', 'dask', 'distributed'}\n"
        "heavy = (heavy | {'shtab'}) & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    command = [sys.executable, "-P", "-c", check]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
