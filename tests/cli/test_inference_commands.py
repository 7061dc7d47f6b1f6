"""Tests and bootstraps in the shell: the numbers of Python, where they go, and how they end."""

import csv
import json
import re
import signal

import h5py
import internals
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from shell import failure, misuse, run

import nmfscale

N = 60
GROUPS = [f"type {i % 3}" for i in range(N)]
PATIENTS = [f"patient {i % 15}" for i in range(N)]
SOME = ["", *GROUPS[1:]]
QUICK = ["--seed", 1, "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose samples have names, and their labels in another order."""
    folder = tmp_path_factory.mktemp("questions")
    counts, _ = nmfscale.datasets.simulate_topic_counts(N, 40, 3, random_state=0)
    names = [f"cell {i}" for i in range(N)]
    table = pd.DataFrame(counts.toarray(), index=names)
    model = nmfscale.TopicModel(3, random_state=0, max_iter=30).fit(table)
    model.save(folder / "model.h5")
    model.rename_topics(["red", "green", "blue"]).save(folder / "named.h5")
    nmfscale.AnchorNMF(3).fit(table.add_prefix("gene_")).save(folder / "anchors.h5")
    nmfscale.LDA(2, random_state=0).partial_fit(table).save(folder / "batches.h5")
    sp.save_npz(folder / "counts.npz", sp.csr_array(counts))
    columns = {"group": GROUPS, "patient": PATIENTS, "some": SOME}
    labels = pd.DataFrame(columns, index=pd.Index(names, name="cell"))
    labels.sample(frac=1, random_state=0).to_csv(folder / "cells.csv")
    return folder


@pytest.fixture
def model(folder):
    return nmfscale.load(folder / "model.h5")


def words(folder, command, column="group", model="model.h5"):
    return [command, folder / model, "--groups", f"{folder / 'cells.csv'}:{column}", *QUICK]


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="," if ".csv" in path.name else "\t"))


def about(path):
    with h5py.File(path) as file:
        assert bytes(file.attrs["format"]) == b"nmfscale-result"
        return json.loads(bytes(file["about"][...]))


def test_tests_are_those_of_python(folder, model, tmp_path, capsys):
    outputs = [tmp_path / name for name in ("tests.csv", "tests.h5", "tests.png")]
    given = [*words(folder, "test"), "--units", f"{folder / 'cells.csv'}:patient"]
    given += ["--permutations", 99, "--statistic", "cosine", "--scope", "all"]
    assert run(*given, *(word for path in outputs for word in ("-o", path))) == 0
    expected = nmfscale.permutation_test(
        model, GROUPS, units=PATIENTS, statistic="cosine", scope="all", n_permutations=99,
        random_state=1,
    )  # fmt: skip
    tests = [expected.overall, *expected.pairs]
    rows = rows_of(outputs[0])
    assert [row["groups"] for row in rows] == list(expected.to_frame().groups)
    for name in ("observed", "zscore", "pvalue", "fraction", "pvalue_maxt", "qvalue"):
        values = [getattr(test, name) for test in tests]
        assert [float(row[name]) for row in rows] == values
        with h5py.File(outputs[1]) as file:
            assert_array_equal(file[name][...], values)
    ends = [(float(row["pvalue_lower"]), float(row["pvalue_upper"])) for row in rows]
    assert ends == [test.interval for test in tests]
    with h5py.File(outputs[1]) as file:
        assert_array_equal(file["pairs.1.null"][...], tests[2].null)
    assert repr(nmfscale.load_result(outputs[1])) == repr(expected)
    found = about(outputs[1])
    assert found["command"] == "test" and found["nmfscale_version"] == nmfscale.__version__
    assert found["parameters"]["seed"] == 1 and found["parameters"]["scope"] == "all"
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("type 0 - type 2"))
    assert "5 + 5" in line and f"{tests[2].pvalue:.2g}" in line.split()
    assert [line for line in out.splitlines() if line.startswith("written")] == [
        f"written         {path}" for path in outputs
    ]
    assert run("info", outputs[1]) == 0
    assert capsys.readouterr().out == f"{expected!r}\n"


STYLES = {"model.h5": "intervals", "anchors.h5": "histogram", "named.h5": "density"}


@pytest.mark.parametrize("which", STYLES)
def test_weights_are_those_of_python(folder, tmp_path, capsys, which):
    outputs = [tmp_path / name for name in ("weights.tsv", "weights.h5", "weights.svg")]
    given = [*words(folder, "bootstrap", model=which), "--within", "corpus"]
    given += ["--interval", "bca", "--level", 0.9, "--draw", "TwR", "--style", STYLES[which]]
    scale = "amounts" if which == "anchors.h5" else "proportions"
    given += ["--scale", scale, "--zeros", "omit"] if scale == "amounts" else []
    zeros = "omit" if scale == "amounts" else "drop"
    assert run(*given, *(word for path in outputs for word in ("-o", path))) == 0
    model = nmfscale.load(folder / which)
    topics = {
        "model.h5": [f"topic_{k}" for k in range(3)],
        "anchors.h5": getattr(model, "anchor_names_", None),
        "named.h5": getattr(model, "topic_names_", None),
    }[which]
    with pytest.warns(UserWarning, match="fewer than 50"):
        expected = nmfscale.bootstrap_weights(
            model, GROUPS, scale=scale, within="corpus", zeros=zeros, interval="bca",
            level=0.9, random_state=1, topic_names=topics,
        )  # fmt: skip
    frame, rows = expected.to_frame(), rows_of(outputs[0])
    for name in ("topic", "group", "weight", "lower", "upper", "std_error"):
        assert [type(frame[name][0])(row[name]) for row in rows] == frame[name].tolist()
    with h5py.File(outputs[1]) as file:
        assert_array_equal(file["replicates"][...], expected.replicates)
        assert bytes(file["topics/text"][...]).decode() == "".join(expected.topics)
    # the caption of distributions, which the picture also has as text
    drawn = outputs[2].read_text().count(f"{expected.n_replicates:,} replicates")
    assert drawn == (STYLES[which] != "intervals")
    out, err = capsys.readouterr()
    ranked = [line.split()[1::2] for line in out.splitlines() if line[:1] in set("123")]
    assert ranked == expected.ranking().to_numpy().tolist()
    assert err.count("\n") == 1 and "fewer than 50 samples" in err


def test_the_map_of_topics_and_groups_is_that_of_python(folder, tmp_path, capsys):
    outputs = [tmp_path / name for name in ("map.csv", "map.h5", "map.svg")]
    given = words(folder, "correspondence", "some", "named.h5")[: -len(QUICK)]
    given += ["--units", f"{folder / 'cells.csv'}:patient", "--equal-weights", "samples"]
    to = [word for path in outputs for word in ("-o", path)]
    assert run(*given, "--axes", "2,1", *to) == 0
    model = nmfscale.load(folder / "named.h5")
    expected = nmfscale.experimental.correspondence_analysis(
        model.loadings_[1:], GROUPS[1:], units=PATIENTS[1:], equal_weights="samples",
        topic_names=model.topic_names_,
    )  # fmt: skip
    pd.testing.assert_frame_equal(pd.read_csv(outputs[0]), expected.to_frame(), check_dtype=False)
    # sums over samples that a mask took depend on where they are in memory
    assert_allclose(
        nmfscale.load_result(outputs[1]).group_coordinates, expected.group_coordinates, rtol=1e-12
    )
    for name in ("axis 1 (", "axis 2 (", "red", "type 2"):
        assert f"<!-- {name}" in outputs[2].read_text()
    out, err = capsys.readouterr()
    line = next(line for line in out.splitlines() if line.startswith("red"))
    assert line.split()[-2:] == [f"{each:.3f}" for each in expected.topic_coordinates[0, ::-1]]
    assert "1 samples (the first is 'cell 0'): they are left out" in err
    assert "'1,1' is not two numbers" in misuse(capsys, *given, "--axes", "1,1")
    (tmp_path / "new").mkdir()
    given = [*words(folder, "correspondence")[: -len(QUICK)], "--axes", "1,3"]
    to = ["-o", tmp_path / "new/a.csv", "-o", tmp_path / "new/a.png"]
    assert "the result has axes 1 to 2" in failure(capsys, *given, *to)
    assert not list((tmp_path / "new").iterdir())


def test_fits_are_those_of_python(folder, model, tmp_path, capsys):
    given = [*words(folder, "bootstrap"), "--kind", "fit", "--counts", folder / "counts.npz"]
    assert run(*given, "--replicates", 4, "-o", tmp_path / "a.csv", "-o", tmp_path / "a.h5") == 0
    expected = nmfscale.bootstrap_fit(
        model, sp.load_npz(folder / "counts.npz"), groups=GROUPS, n_replicates=4, random_state=1
    )
    frame, rows = expected.to_frame("group_means"), rows_of(tmp_path / "a.csv")
    assert [float(row["mean"]) for row in rows] == frame["estimate"].tolist()
    assert [float(row["lower"]) for row in rows] == frame["lower"].tolist()
    with h5py.File(tmp_path / "a.h5") as file:
        assert_array_equal(file["components.upper"][...], expected.components.upper)
    mean, low = frame["estimate"][0], frame["lower"][0]
    assert f"topic_0         {mean:.3f} [{low:.3f}, " in capsys.readouterr().out


def test_labels_of_fits_belong_to_samples_by_name(folder, tmp_path):
    """The rows of the counts have another order than those of the model."""
    names = [f"cell {i}" for i in range(N)]
    order = [*range(1, N), 0]
    (tmp_path / "names.txt").write_text("\n".join(names[i] for i in order))
    sp.save_npz(tmp_path / "turned.npz", sp.load_npz(folder / "counts.npz")[order])
    means = []
    for counts, more in (
        (folder / "counts.npz", []),
        (tmp_path / "turned.npz", ["--sample-names", tmp_path / "names.txt"]),
    ):
        given = [*words(folder, "bootstrap"), "--kind", "fit", "--counts", counts, *more]
        assert run(*given, "--replicates", 4, "-o", tmp_path / "a.csv", "--force") == 0
        means.append([float(row["mean"]) for row in rows_of(tmp_path / "a.csv")])
    assert means[1] == pytest.approx(means[0], rel=1e-9)


def test_samples_without_a_label_are_left_out(folder, model, tmp_path, capsys):
    out = tmp_path / "tests.csv"
    assert run(*words(folder, "test", "some"), "--permutations", 99, "-o", out) == 0
    assert (
        "has no label for 1 samples (the first is 'cell 0'): they are left out"
        in capsys.readouterr().err
    )
    expected = nmfscale.permutation_test(
        model.loadings_[1:], GROUPS[1:], n_permutations=99, random_state=1
    )
    assert float(rows_of(out)[0]["observed"]) == pytest.approx(expected.overall.observed, rel=1e-12)
    assert rows_of(out)[0]["n_units"] == "59"
    given = [*words(folder, "bootstrap", "some"), "--kind", "fit"]
    said = failure(capsys, *given, "--counts", folder / "counts.npz")
    assert "has no label for 1 samples (the first is 'cell 0'): fits use all samples" in said


def test_samples_with_a_group_need_a_unit(folder, capsys):
    given = [*words(folder, "test"), "--units", f"{folder / 'cells.csv'}:some"]
    said = failure(capsys, *given)
    assert "cells.csv:some has no label for 1 samples (the first is 'cell 0') that have a" in said


def test_the_seed_that_is_drawn_is_said(folder, capsys):
    given = [word for word in words(folder, "test") if word not in ("--seed", 1)]
    assert run(*given, "--permutations", 9) == 0
    out = capsys.readouterr().out
    seed = next(line.split()[1] for line in out.splitlines() if line.startswith("seed"))
    assert run(*given, "--permutations", 9, "--seed", seed) == 0
    again = capsys.readouterr().out
    assert [*again.splitlines()] == [x for x in out.splitlines() if not x.startswith("seed")]


@pytest.mark.parametrize("command", ["test", "bootstrap"])
def test_interrupted_and_resumed(folder, tmp_path, capsys, monkeypatch, command):
    state = ["--checkpoint", tmp_path / "state", "-o", tmp_path / "some.h5"]
    many = ["--permutations" if command == "test" else "--replicates", 40]
    with monkeypatch.context() as patch:
        internals.small_batches_of_labellings(patch)
        internals.after_a_batch(patch, lambda: signal.raise_signal(signal.SIGINT))
        assert run(*words(folder, command), *many, *state) == 130
    assert "interrupted: results are those of the 1 that were done; --resume continues from" in (
        capsys.readouterr().err
    )
    given = [word for word in words(folder, command) if word not in ("--seed", 1)]
    assert run(*given, *many, *state, "--resume") == 0
    assert "seed            1\n" in capsys.readouterr().out
    assert run(*words(folder, command), *many, "-o", tmp_path / "whole.h5") == 0
    name = "overall.null" if command == "test" else "replicates"
    with h5py.File(tmp_path / "some.h5") as one, h5py.File(tmp_path / "whole.h5") as other:
        assert len(one[name]) == 40
        assert_array_equal(one[name][...], other[name][...])


@pytest.mark.parametrize("command", ["test", "bootstrap"])
def test_interrupted_before_anything_is_done(folder, tmp_path, capsys, monkeypatch, command):
    internals.before_replicates(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    assert run(*words(folder, command), "-o", tmp_path / "some.h5") == 130
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("nmfscale: interrupted\n")
    assert not (tmp_path / "some.h5").exists()


@pytest.mark.nightly
def test_on_a_cluster(folder, tmp_path):
    given = [*words(folder, "bootstrap"), "--replicates", 20]
    for name, more in (("here.h5", []), ("there.h5", ["--workers", 1])):
        assert run(*given, *more, "-o", tmp_path / name) == 0
    with h5py.File(tmp_path / "here.h5") as one, h5py.File(tmp_path / "there.h5") as other:
        assert_array_equal(one["replicates"][...], other["replicates"][...])


def test_refusals_come_first(folder, tmp_path, capsys):
    boot, counts = words(folder, "bootstrap"), ["--counts", folder / "counts.npz"]
    fit = [*boot, "--kind", "fit"]
    for given, complaint in (
        ([*boot, "--resume"], "--resume needs --checkpoint DIR"),
        ([*boot, *counts], "--counts is for --kind fit"),
        (fit, "--kind fit needs --counts FILE"),
        ([*fit, *counts, "--within", "groups"], "--within is for --kind weights"),
        ([*boot, "-o", tmp_path / "a.npz"], "a.npz must end with one of .csv, .tsv"),
        ([*words(folder, "test"), "--statistic", "none"], "invalid choice: 'none'"),
    ):
        assert complaint in misuse(capsys, *given)
    (tmp_path / "a.csv").write_text("precious")
    test = words(folder, "test")
    for given, complaint in (
        ([*test, "-o", tmp_path / "b.csv", "-o", tmp_path / "a.csv"], "a.csv exists"),
        ([*test, "--force", "-o", folder / "cells.csv"], "would replace the input"),
        ([*test, "--force", "-o", folder / "model.h5"], "would replace the input"),
        (words(folder, "test", "none"), "cells.csv has no column 'none'"),
        (words(folder, "test", model="batches.h5"), "batches.h5 has no loadings"),
    ):
        assert complaint in failure(capsys, *given)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_samples_without_names_have_labels_in_their_order(folder, tmp_path, capsys):
    fit = ["fit", folder / "counts.npz", "-k", 3, "--seed", 0, "--quiet", "--max-iter", 5]
    (tmp_path / "samples.txt").write_text("".join(f"cell {i}\n" for i in range(N)))
    said = {}
    for name, more in (("plain", []), ("named", ["--sample-names", tmp_path / "samples.txt"])):
        assert run(*fit, "-o", tmp_path / f"{name}.h5", *more) == 0
        capsys.readouterr()
        assert run(*words(folder, "test", model=tmp_path / f"{name}.h5")) == 0
        said[name] = capsys.readouterr()
    assert "has no names of samples" in said["plain"].err
    assert "names of samples" not in said["named"].err
    assert said["plain"].out != said["named"].out


def test_covariates_trends_and_sums_of_topics(folder, model, tmp_path, capsys):
    doses, ages = [i % 3 for i in range(N)], [40.5 + i // 20 for i in range(N)]
    for name, values in ("dose", doses), ("age", ages):
        (tmp_path / f"{name}.txt").write_text("".join(f"{value}\n" for value in values))
    given = ["test", folder / "model.h5", *QUICK, "--permutations", 99, "--statistic", "trend"]
    given += ["--groups", tmp_path / "dose.txt", "--covariates", tmp_path / "age.txt"]
    assert run(*given, "--topic-sum", "two=0,2", "-o", tmp_path / "test.h5") == 0
    expected = nmfscale.permutation_test(
        model, doses, statistic="trend", covariates={"age": ages}, topic_sums={"two": [0, 2]},
        n_permutations=99, random_state=1,
    )  # fmt: skip
    result = nmfscale.load_result(tmp_path / "test.h5")
    assert_array_equal(result.overall.null, expected.overall.null)
    assert result.covariates == ("age",)
    assert "trend beside age, 99 labellings" in capsys.readouterr().out
    said = failure(capsys, *given, "--topic-sum", "two", "--force")
    assert "--topic-sum two: NAME=TOPIC,TOPIC is needed" in said


def test_a_missing_file_of_labels_is_an_error_without_a_warning_of_names(folder, tmp_path, capsys):
    fit = nmfscale.TopicModel(2, random_state=0)
    fit.fit(nmfscale.read_counts(folder / "counts.npz")).save(tmp_path / "unnamed.h5")
    given = ["test", tmp_path / "unnamed.h5", "--groups", tmp_path / "none.csv:group", "-q"]
    assert "No such file" in failure(capsys, *given)  # a single line


def test_ages_as_groups_are_warned_of(folder, tmp_path, capsys):
    for first, step, warned in [(20, 3, True), (0, 1, False)]:
        path = tmp_path / "ages.txt"
        path.write_text("".join(f"{first + step * (i % 7)}\n" for i in range(N)))
        for more in [], ["--statistic", "trend"]:
            run("test", folder / "model.h5", "--groups", path, "--permutations", 9, *QUICK, *more)
            text = capsys.readouterr().err
            assert ("7 different numbers, such as 20, 23" in text) == (warned and not more)


def test_labels_that_do_not_fit(folder, tmp_path, capsys):
    (tmp_path / "few.txt").write_text("a\n" * 59)
    test = ["test", folder / "model.h5", *QUICK, "--groups", tmp_path / "few.txt"]
    assert "few.txt has 59 labels for 60 samples" in failure(capsys, *test)
    for option, labels in ("units", "a\nb\n" * 30), ("strata", "s\n" * 30 + "t\n" * 30):
        (tmp_path / f"{option}.txt").write_text(labels)
    labels = "--units", tmp_path / "units.txt", "--strata", tmp_path / "strata.txt"
    said = failure(capsys, *words(folder, "test"), *labels)
    assert "unit 'a' has samples in strata 's' and 't'" in said


def test_columns_that_may_be_units_are_named(folder, model, tmp_path, capsys, monkeypatch):
    internals.few_samples_are_many(monkeypatch, 15)
    command = [*words(folder, "test"), "--permutations", 9, "--scale", "amounts"]
    assert run(*command, "-o", tmp_path / "tests.csv") == 0
    err = capsys.readouterr().err
    table = folder / "cells.csv"
    assert f"columns of {table} that may be units: patient; --units {table}:COLUMN" in err
    assert "each of 20 samples of group 'type 0' is a unit of its own" in err
    with pytest.warns(UserWarning, match="a unit of its own"):
        expected = nmfscale.permutation_test(
            model, GROUPS, scale="amounts", n_permutations=9, random_state=1
        )
    assert float(rows_of(tmp_path / "tests.csv")[0]["observed"]) == expected.overall.observed
    assert run(*command, "--units", f"{table}:patient", "-o", tmp_path / "units.csv") == 0
    assert "may be units" not in capsys.readouterr().err


def test_number_of_topics(folder, tmp_path, capsys):
    counts, table = folder / "counts.npz", tmp_path / "numbers.csv"
    units = f"{folder / 'cells.csv'}:patient"
    names = tmp_path / "names.txt"
    names.write_text("".join(f"cell {i}\n" for i in range(N)))
    words = ["select-k", counts, "-k", "2-3,5", "--units", units, "--sample-names", names]
    outputs = table, tmp_path / "numbers.png", tmp_path / "numbers.h5"
    words += ["--splits", 2, *QUICK]
    assert run(*words, *(word for path in outputs for word in ("-o", path))) == 0
    topics, X = nmfscale.TopicModel(prior_factors=1.1, tol=1e-3), sp.load_npz(counts)
    how = {"units": PATIENTS, "n_splits": 2, "random_state": 1}
    expected = nmfscale.select_k(topics, X, [2, 3, 5], **how)
    assert str(expected) in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_csv(table), expected.to_frame())
    assert (tmp_path / "numbers.png").stat().st_size > 0
    assert repr(nmfscale.load_result(tmp_path / "numbers.h5")) == repr(expected)
    assert "'5-2' are not numbers such as 2-12" in misuse(capsys, "select-k", counts, "-k", "5-2")
    assert "--resume needs --checkpoint" in misuse(capsys, "select-k", counts, "--resume")
    words = "select-k", counts, "--model", "lda", "--prior", 2
    assert "--prior is for --model topic and poisson" in misuse(capsys, *words)


def test_quality_of_topics(folder, tmp_path, capsys):
    counts, model, table = folder / "counts.npz", folder / "model.h5", tmp_path / "quality.csv"
    for what in ("topics", "top_features"):
        words = ["topic-quality", model, counts, "--n-top", 5, "--table", what, "--force", "-q"]
        assert run(*words, "-o", table) == 0
        expected = nmfscale.topic_quality(nmfscale.load(model), counts, n_top=5)
        assert str(expected) in capsys.readouterr().out
        frame = expected.to_frame(what)
        pd.testing.assert_frame_equal(pd.read_csv(table), frame, check_dtype=False)


def test_topics_of_many_starts(folder, tmp_path, capsys):
    counts, model, table = folder / "counts.npz", tmp_path / "consensus.h5", tmp_path / "topics.csv"
    words = ["stability", counts, "-k", 3, "--starts", 4, "--table", "topics", *QUICK]
    assert run(*words, "-o", table, "--consensus", model, "-o", tmp_path / "starts.png") == 0
    expected = nmfscale.stability(nmfscale.TopicModel(3), sp.load_npz(counts), 4, random_state=1)
    assert f"{expected.n_best} of 4 fits end within 1" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_csv(table), expected.to_frame("topics"))
    assert_array_equal(nmfscale.load(model).components_, expected.model.components_)
    assert (tmp_path / "starts.png").stat().st_size > 0
    words = ["stability", counts, "-k", 3, "--starts", 2, "--density-threshold", 1e-6, *QUICK]
    assert run(*words, "--consensus", tmp_path / "none.h5") == 0
    assert "no model is written" in capsys.readouterr().err
    assert "--resume needs --checkpoint" in misuse(capsys, "stability", counts, "-k", 3, "--resume")


def test_a_fit_is_compared_with_other_starts(folder, tmp_path, capsys):
    counts, fit, result = folder / "counts.npz", folder / "model.h5", tmp_path / "starts.h5"
    words = ["stability", counts, "--of", fit, "--starts", 3, *QUICK]
    assert run(*words, "-o", result) == 0
    text = capsys.readouterr().out
    expected = nmfscale.stability(nmfscale.load(fit), sp.load_npz(counts), 3, random_state=1)
    assert f"the fit         {expected.fit_summary}" in text
    assert run("info", result) == 0 and expected.fit_summary in capsys.readouterr().out
    assert run("report", fit, "--results", result, "-o", tmp_path / "report.html") == 0
    assert f"This fit {expected.fit_summary}" in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert "pass either -k or --of" in misuse(capsys, *words, "-k", 3)
    assert "--model is that of --of" in misuse(capsys, *words, "--model", "lda")


def test_features_that_make_topics(folder, tmp_path, capsys):
    counts, model = folder / "counts.npz", folder / "model.h5"
    table, arrays = tmp_path / "features.csv", tmp_path / "features.h5"
    units = tmp_path / "units.txt"
    units.write_text("".join(f"{i % 12}\n" for i in range(len(nmfscale.load(model).loadings_))))
    words = ["differential", model, counts, "--reference", "mean", "-q", "--topic", 1]
    words += ["--units", units, "--seed", 3]
    assert run(*words, "-o", table, "-o", arrays, "-o", tmp_path / "volcano.png") == 0
    out = capsys.readouterr().out
    options = {"units": units.read_text().split(), "reference": "mean", "random_state": 3}
    expected = nmfscale.differential_features(nmfscale.load(model), counts, **options)
    assert "relative to mean" in out and "between 12 units" in out
    assert f"({expected.z[0].max():.1f})" in out
    pd.testing.assert_frame_equal(pd.read_csv(table), expected.to_frame(), check_dtype=False)
    with h5py.File(arrays) as file:
        assert_array_equal(file["z"][()], expected.z)
        assert file.attrs["format"] == b"nmfscale-result"
    assert (tmp_path / "volcano.png").stat().st_size > 0
    state = ["--checkpoint", tmp_path / "state"]
    words = ["differential", model, counts, "-q", "--split", 0.5, *state]
    to = ["-o", tmp_path / "split.h5", "-o", tmp_path / "volcano.html"]
    assert run(*words, "--seed", 1, *to) == 0
    assert "fitted to 50% of the counts" in capsys.readouterr().out
    assert run(*words, "--resume", "--force", *to) == 0  # the seed is that of the checkpoint
    capsys.readouterr()
    split = nmfscale.differential_features(nmfscale.load(model), counts, split=0.5, random_state=1)
    assert_array_equal(nmfscale.load_result(tmp_path / "split.h5").z, split.z)
    assert "@lfc" in (tmp_path / "volcano.html").read_text()
    for more, complaint in (
        (["--resume"], "--resume needs --checkpoint"),
        (["--reference", 1, "--topic", 1], "--topic 1 is the reference"),
        (["--seed", 1, "--split", "none"], "--seed is for a split"),
    ):
        assert complaint in misuse(capsys, "differential", model, counts, *more)
    for more, complaint in (
        (["--topic", 3], "--topic: 3 is not a topic"),
        (["--reference", "a,1"], "reference: 'a' is not a topic"),
    ):
        assert complaint in failure(capsys, "differential", model, counts, *more)


def test_counts_of_units_and_what_changes_in_them(folder, tmp_path, capsys):
    """From counts and from the file of `pseudobulk`, the numbers of Python."""
    anndata = pytest.importorskip("anndata")
    model, counts, labels = folder / "model.h5", folder / "counts.npz", tmp_path / "cells.csv"
    table = pd.read_csv(folder / "cells.csv").set_index("cell").loc[[f"cell {i}" for i in range(N)]]
    table["dose"], table["age"] = (
        [f"dose {i % 3}" for i in range(N)],
        [30 + i % 15 for i in range(N)],
    )
    table.to_csv(labels)
    words, of_units = [model, counts, "-q"], ["--units", f"{labels}:patient"]
    of_units += ["--groups", f"{labels}:dose"]
    outputs = [tmp_path / f"donors.{ending}" for ending in ("h5", "csv", "h5ad")]
    to = [word for path in outputs for word in ("-o", path)]
    assert run("pseudobulk", *words, *of_units, "--topic", 1, "--rounded", *to) == 0
    fit, groups = nmfscale.load(model), table.dose.to_numpy()
    bulk = nmfscale.pseudobulk(fit, counts, units=PATIENTS, groups=groups)
    written = nmfscale.load_result(outputs[0])
    assert_array_equal(written.counts, bulk.counts)
    assert (written.origin.units, written.origin.groups) == ("patient", "dose")
    frame = bulk.to_frame("counts")
    assert len(rows_of(outputs[1])) == 15
    pd.testing.assert_frame_equal(
        pd.read_csv(outputs[1]), frame[frame.topic == 1].reset_index(drop=True), check_dtype=False
    )
    assert_array_equal(anndata.read_h5ad(outputs[2]).X, bulk.to_anndata(1, rounded=True).X)
    capsys.readouterr()
    options = {"units": PATIENTS, "covariates": {"age": table.age.to_numpy()}, "min_count": 2.0}
    expected = nmfscale.condition_features(fit, counts, groups, reference="dose 2", **options)
    more = ["--reference", "dose 2", "--min-count", 2, "--group", "dose 1", "--topic", 1]
    for i, source in enumerate((["--covariates", f"{labels}:age"], ["--covariates", "age"])):
        if i:  # the file of the units, which have ages by a table of their own
            words[1], of_units = outputs[0], []
            ages = tmp_path / "age.csv"
            ages.write_text("".join(f"{name},{30 + int(name[8:])}\n" for name in bulk.unit_names))
            source = ["--covariates", ages]
        to = [tmp_path / f"changes{i}.{ending}" for ending in ("csv", "h5", "png", "html")]
        given = [word for path in to for word in ("-o", path)]
        assert run("conditions", *words, *of_units, *source, *more, *given) == 0
        out = capsys.readouterr().out
        assert "dose 0 5, dose 1 5, dose 2 5" in out and "relative to dose 2" in out
        assert "topic 1" in out and "dose 1, 0 of " in out
        changes = nmfscale.load_result(to[1])
        assert_allclose(changes.lfc, expected.lfc, rtol=1e-6, atol=1e-9)
        assert changes.origin.groups == "dose"
        assert len(rows_of(to[0])) == expected.tested.sum()
        assert all(path.stat().st_size > 0 for path in to)
    assert "required: --groups" in misuse(capsys, "conditions", model, counts)
    for arguments, complaint in (
        (["pseudobulk", model, counts, "--topic", 3], "--topic: 3 is not a topic"),
        (["conditions", model, tmp_path / "changes0.h5"], "or one file that nmfscale pseudobulk"),
        (["conditions", *words, "--group", "dose 0"], "--group dose 0 is the reference"),
        (["conditions", *words, "--group", "none"], "groups are dose 0, dose 1, dose 2"),
        (["pseudobulk", model, counts, "--groups", f"{folder / 'cells.csv'}:some"], "by --samples"),
    ):
        assert complaint in failure(capsys, *arguments)


def test_features_by_group_and_trees_of_topics(folder, tmp_path, capsys):
    model, counts, labels = folder / "model.h5", folder / "counts.npz", tmp_path / "cells.csv"
    years, labs = 2001 + np.arange(N) % 3, [f"lab {i % 30:02}" for i in range(N)]
    table = {"cell": [f"cell {i}" for i in range(N)], "year": years, "lab": labs}
    pd.DataFrame(table).to_csv(labels, index=False)
    outputs = [tmp_path / f"words.{ending}" for ending in ("csv", "h5", "png")]
    to = [word for path in outputs for word in ("-o", path)]
    of = ["--groups", f"{labels}:year", "--units", f"{labels}:lab", "--shape", 3, "--topic", 1]
    assert run("features-by-group", model, counts, "-q", *of, *to) == 0
    out = capsys.readouterr().out
    assert "2001 10, 2002 10, 2003 10" in out and "relative to 2001" in out
    fit = nmfscale.load(model)
    expected = nmfscale.features_by_group(fit, counts, years, units=labs, shape=3)
    result = nmfscale.load_result(outputs[1])
    assert result.groups == (2001, 2002, 2003)
    assert_array_equal(result.lfc_upper, expected.lfc_upper)
    assert len(rows_of(outputs[0])) == expected.frequencies.size
    assert run("features-by-group", model, counts, "-q", *of[:2], "--against", "others") == 0
    assert "relative to all others" in capsys.readouterr().out
    small = tmp_path / "small.h5"
    fit.merge_topics([[0, 1]]).save(small)
    for models, tree in (
        ([model], nmfscale.topic_hierarchy(fit)),
        ([small, model], nmfscale.topic_hierarchy({"small": nmfscale.load(small), "model": fit})),
    ):
        outputs = [tmp_path / f"tree{len(models)}.{ending}" for ending in ("csv", "h5", "png")]
        to = [word for path in outputs for word in ("-o", path)]
        assert run("hierarchy", *models, "--n-groups", 2, *to) == 0
        out = capsys.readouterr().out
        assert repr(tree) in out
        name, topics = next(iter(tree.cut(2).items()))
        assert f"{name}: {' '.join(map(str, topics))}" in out
        assert repr(nmfscale.load_result(outputs[1])) == repr(tree)
        assert all(path.stat().st_size > 0 for path in outputs)
    assert "which rise" in failure(capsys, "hierarchy", model, small)


@pytest.mark.usefixtures("without_pandas")
def test_no_command_needs_pandas(folder, tmp_path):
    model, counts, units = folder / "model.h5", folder / "counts.npz", tmp_path / "units.txt"
    units.write_text("".join(f"{i % 2}\n" for i in range(N)))
    for i, given in enumerate((
        ["differential", model, counts, "--reference", 1],
        ["pseudobulk", model, counts, "--units", units],
        ["conditions", model, counts, "--groups", units, "--min-count", 1],
        ["select-k", counts, "-k", "2-3", "--splits", 2],
        ["topic-quality", model, counts, "--table", "samples"],
        [*words(folder, "test"), "--permutations", 9],
        [*words(folder, "bootstrap"), "--replicates", 9],
        words(folder, "correspondence")[:-len(QUICK)],
        [*words(folder, "bootstrap"), "--kind", "fit", "--counts", counts, "--replicates", 2],
        ["transform", model, counts],
        ["export", model],
    )):  # fmt: skip
        assert run(*given, "-o", tmp_path / f"{i}.csv") == 0
        assert len(rows_of(tmp_path / f"{i}.csv")) > 1


def test_programs_of_samples_and_groups(folder, tmp_path, capsys):
    """The table names models, in another order, and their donors and conditions."""
    table = "model,donor,ill\nother,b,no\nnamed,a,yes\nmodel,a,yes\n"
    (tmp_path / "fits.csv").write_text(table)
    models = [folder / "model.h5", folder / "named.h5", tmp_path / "other.h5"]
    nmfscale.load(folder / "model.h5").save(models[-1])
    ill = "--groups", f"{tmp_path / 'fits.csv'}:ill"
    donors = "--samples", f"{tmp_path / 'fits.csv'}:donor"
    assert run("cluster-topics", *models, *donors, *ill, "-o", tmp_path / "programs.csv") == 0
    assert "fits  samples  no (1)  yes (1)" in capsys.readouterr().out
    rows = rows_of(tmp_path / "programs.csv")
    assert [
        (row["n_fits"], row["n_samples"], row["n_samples_no"], row["n_samples_yes"]) for row in rows
    ] == [("3", "2", "1", "1")] * 3
    (tmp_path / "fits.csv").write_text(table.replace("named", "name"))
    complaint = failure(capsys, "cluster-topics", *models, *ill)
    assert "has no label for 1 of 3 samples, such as 'named'" in complaint


def test_each_file_is_fitted_apart(tmp_path, capsys):
    """Models are those of single fits; a bad file does not stop them; topics count files once."""
    folder = tmp_path / "fits"
    for i in range(3):
        counts, _ = nmfscale.datasets.simulate_topic_counts(40, 30, 2, random_state=i)
        sp.save_npz(tmp_path / f"donor{i}.npz", counts)
    (tmp_path / "broken.npz").write_text("no counts")
    donors = [tmp_path / f"donor{i}.npz" for i in range(2)]
    how = ["-o", folder, "--model", "poisson", "--tol", 0.01, "--threads", 1, "--quiet"]
    words = ["fit-each", donors[0], tmp_path / "broken.npz", donors[1], *how, "-k", "3,2"]
    assert run(*words) == 1
    out, err = capsys.readouterr()
    assert f"model           {folder / 'donor0-k2.h5'}\n" in out and "fits            4 of 6" in out
    assert err.startswith("nmfscale: error: broken, 2 topics: ") and err.count("\n") == 2
    complaint = failure(capsys, "fit-each", *donors, *how, "-k", 2, 3)
    assert "donor0-k2.h5 exists: pass --resume" in complaint
    # the new fits have the seed of those in the folder
    (folder / "donor0-k3.h5").unlink()
    assert run("fit-each", *donors, *how, "-k", 2, 3, "--resume") == 0
    for path in donors:
        for k in (2, 3):
            model = nmfscale.load(folder / f"{path.stem}-k{k}.h5")
            seed = int(re.search(r"seed +(\d+)", out)[1])
            single = nmfscale.PoissonNMF(k, random_state=seed, tol=0.01).fit(path)
            assert_array_equal(model.components_, single.components_)
    assert run("info", folder / "donor1-k2.h5") == 0
    assert "source          donor1" in capsys.readouterr().out
    found = tmp_path / "found.h5"
    assert run("cluster-topics", *sorted(folder.glob("*.h5")), "-o", found) == 0
    assert nmfscale.load_result(found).samples == ("donor0", "donor0", "donor1", "donor1")
    capsys.readouterr()
    complaint = failure(capsys, "fit-each", *donors, *how, "-k", 2, 3, "--resume", "--seed", 1)
    assert f"donor0-k2.h5 is a fit with --seed {seed}, and it is 1 now" in complaint
    # files of the same name in other folders are other samples
    other = nmfscale.fit_each(nmfscale.PoissonNMF(2), donors[:1], folder=tmp_path / "others")
    assert other["donor0"].source_name_ == "donor0"
    models = [folder / "donor0-k2.h5", folder / "donor0-k3.h5", tmp_path / "others" / "donor0.h5"]
    assert run("cluster-topics", *models, "-o", found, "--force") == 0
    assert len(set(nmfscale.load_result(found).samples)) == 2


def test_an_interrupted_fit_of_each_file(folder, tmp_path, capsys, monkeypatch):
    fit = nmfscale.TopicModel.fit

    def interrupted(model, counts, **options):
        if "new" in str(counts):
            raise KeyboardInterrupt
        return fit(model, counts, **options)

    monkeypatch.setattr(nmfscale.TopicModel, "fit", interrupted)
    sp.save_npz(tmp_path / "new.npz", sp.load_npz(folder / "counts.npz"))
    words = ["fit-each", folder / "counts.npz", tmp_path / "new.npz", "-k", 2, "-o"]
    assert run(*words, tmp_path / "fits", *QUICK) == 130
    out, err = capsys.readouterr()
    assert "fits            1 of 2" in out
    assert "interrupted: --resume makes the fits that are left" in err
    assert [path.name for path in (tmp_path / "fits").iterdir()] == ["counts.h5"]
