"""What the commands read: names, parts of files, several files."""

import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_tenx
from shell import failure, run

import nmfscale

X = np.random.default_rng(2).poisson(2.0, (20, 6))


@pytest.mark.filterwarnings("ignore:.*has not converged")
def test_names_and_parts_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_tenx(tmp_path / "genes.h5", sp.csr_array(X), 2)
    (tmp_path / "some.txt").write_text("var-4\nvar-1\n\n")
    (tmp_path / "cells.txt").write_text("".join(f"cell {i}\n" for i in range(20)))
    (tmp_path / "few.txt").write_text("cell 3\ncell 8\ncell 9\n")
    fit = ["fit", "genes.h5", "-k", 2, "--max-iter", 3, "-q", "--names", "id", "--features"]
    named = ["--sample-names", "cells.txt", "--samples", "few.txt"]
    assert run(*fit, "some.txt", *named, "--seed", 1, "-o", "model.h5") == 0
    model = nmfscale.load(tmp_path / "model.h5")
    assert model.feature_names_in_.tolist() == ["var-1", "var-4"]
    assert model.sample_names_.tolist() == ["cell 3", "cell 8", "cell 9"]
    capsys.readouterr()
    message = failure(capsys, *fit, "chosen", "-o", "other.h5")
    assert "no column 'chosen' in var (--features); its columns: 'id', 'name'" in message


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*has not converged", "ignore:.*units")
def test_several_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [f"word {j}" for j in range(6)]
    for i, name in enumerate("ab"):
        half = nmfscale.as_counts(X[i * 10 : i * 10 + 10], feature_names=words)
        nmfscale.write_store(half, tmp_path / f"{name}.nmf")
    assert run("store", "a.nmf", "b.nmf", "both.nmf", "-q") == 0
    store = nmfscale.results.StoredCounts("both.nmf")
    np.testing.assert_array_equal(store.take_rows().toarray(), X)
    fit = ["-k", 2, "--max-iter", 3, "-q", "--seed", 1, "--join", "outer"]
    assert run("fit", "a.nmf", "b.nmf", *fit, "-o", "model.h5") == 0
    assert run("test", "model.h5", "--groups", "file", "--permutations", 9, "-q") == 0
    assert "10 + 10" in capsys.readouterr().out
    assert "donor is neither a file nor a column of obs; columns: 'file'" in failure(
        capsys, "test", "model.h5", "--groups", "donor"
    )
    for command in ("differential", "topic-quality", "stability"):
        words = [command, "model.h5"] if command != "stability" else [command, "-k", 2]
        more = {"differential": ["--split", "none"], "stability": ["--starts", 3, "--seed", 1]}
        for inputs, name in ((["a.nmf", "b.nmf"], "one"), (["both.nmf"], "two")):
            assert (
                run(*words, *inputs, *more.get(command, []), "-q", "-o", f"{command}-{name}.csv")
                == 0
            )
        one, two = ((tmp_path / f"{command}-{name}.csv").read_text() for name in ("one", "two"))
        assert one == two
    assert run("report", "model.h5", "a.nmf", "b.nmf", "--groups", "file", "-o", "page.html") == 0
    capsys.readouterr()

    # labels in a store or in a model
    for source in ("both.nmf", "model.h5"):
        words = ["test", "model.h5", "--groups", f"{source}:file", "--permutations", 9, "-q"]
        assert run(*words) == 0
        assert "10 + 10" in capsys.readouterr().out
        words[3] = f"{source}:donor"
        assert run(*words) == 1
        message = capsys.readouterr().err
        assert (
            f"there is no column 'donor', as {source}:COLUMN; columns of samples: file" in message
        )
