"""The command `report`."""

import scipy.sparse as sp
from shell import failure, run

import nmfscale


def test_report_shows_results_and_how_the_fit_was_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    counts, _ = nmfscale.datasets.simulate_topic_counts(120, 30, 3, random_state=0)
    sp.save_npz("counts.npz", counts)
    (tmp_path / "groups.txt").write_text("a\nb\n" * 60)
    assert run("fit", "counts.npz", "-k", 3, "--seed", 1, "-q", "-o", "my model.h5") == 0
    given = "test", "my model.h5", "--groups", "groups.txt", "--permutations", 99, "--seed", 1
    assert run(*given, "-q", "-o", "tests.h5") == 0
    words = "my model.h5", "--groups", "groups.txt", "--results", "tests.h5", "-o", "report.html"
    assert run("report", *words) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "nmfscale fit counts.npz -k 3 --seed 1 -q -o &#39;my model.h5&#39;" in page
    assert f"by nmfscale {nmfscale.__version__}" in page
    assert ">Permutation test: groups.txt</h2>" in page and '<option value="0">groups.txt' in page
    assert "Quality" not in page
    capsys.readouterr()
    assert "--force" in failure(capsys, "report", *words)
    assert run("report", "my model.h5", "counts.npz", "-o", "report.html", "--force") == 0
    assert "Quality" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert run("info", "my model.h5") == 0
    assert "command         nmfscale fit counts.npz -k 3" in capsys.readouterr().out


def test_report_refuses_what_belongs_to_another_fit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    counts, _ = nmfscale.datasets.simulate_topic_counts(60, 30, 3, random_state=0)
    model = nmfscale.TopicModel(3, random_state=0).fit(counts)
    model.save("model.h5")
    other = nmfscale.TopicModel(2, random_state=0).fit(counts)
    nmfscale.differential_features(other, counts, split=None).save("genes.h5")
    (tmp_path / "few.txt").write_text("a\nb\n")
    words = "report", "model.h5", "-o", "report.html"
    assert "of 2 topics" in failure(capsys, *words, "--results", "genes.h5")
    assert "not a result" in failure(capsys, *words, "--results", "model.h5")
    assert "2 labels for 60 samples" in failure(capsys, *words, "--groups", "few.txt")
    assert not (tmp_path / "report.html").exists()
