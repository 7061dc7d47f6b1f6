"""One fit for each source: the models of single fits, whatever happens to other sources."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

import nmfscale

MODEL = nmfscale.TopicModel(2, random_state=0, tol=1e-2, n_threads=1)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("donors")
    paths = []
    for i in range(3):
        X, _ = nmfscale.datasets.simulate_topic_counts(40, 20, 2, random_state=i)
        paths.append(folder / f"donor{i}.npz")
        sp.save_npz(paths[-1], X)
    paths.insert(1, folder / "broken.npz")
    paths[1].write_text("no counts")
    return paths


def assert_single_fits(fits, paths):
    assert [*fits] == ["donor0", "donor1", "donor2"]
    for path in (paths[0], paths[2], paths[3]):
        single = nmfscale.TopicModel(2, random_state=0, tol=1e-2).fit(path)
        assert_array_equal(fits[path.stem].components_, single.components_)
        assert_array_equal(fits[path.stem].loadings_, single.loadings_)


def test_an_error_of_one_source_leaves_the_others(paths, tmp_path):
    with pytest.warns(UserWarning, match="1 of 4 fits failed: broken: .*broken.npz"):
        fits = nmfscale.fit_each(MODEL, paths, folder=tmp_path / "fits")
    assert_single_fits(fits, paths)
    assert not hasattr(MODEL, "components_")
    with pytest.raises(FileExistsError, match="donor0.h5 exists: pass resume=True"):
        nmfscale.fit_each(MODEL, paths, folder=tmp_path / "fits")
    (tmp_path / "fits" / "donor1.h5").unlink()
    good = [path for path in paths if path.stem != "broken"]
    written = (tmp_path / "fits" / "donor0.h5").stat().st_mtime_ns
    again = nmfscale.fit_each(MODEL, good, folder=tmp_path / "fits", resume=True)
    assert (tmp_path / "fits" / "donor0.h5").stat().st_mtime_ns == written
    for name, model in fits.items():
        assert_array_equal(again[name].components_, model.components_)
    other = nmfscale.TopicModel(3, random_state=0)
    with pytest.raises(ValueError, match="is a fit with n_components=2, and it is 3 now"):
        nmfscale.fit_each(other, good, folder=tmp_path / "fits", resume=True)


def test_several_numbers_of_topics(paths, tmp_path):
    """Each is the single fit; a later call adds numbers to those in the folder."""
    folder, sources = tmp_path / "fits", [paths[0], paths[1], paths[2]]
    expected = "1 of 3 fits failed: broken, 3 topics: "
    with pytest.warns(UserWarning, match=expected):
        fits = nmfscale.fit_each(MODEL, sources, n_components=[3], folder=folder)
    assert sorted(path.name for path in folder.iterdir()) == ["donor0-k3.h5", "donor1-k3.h5"]
    written = (folder / "donor0-k3.h5").stat().st_mtime_ns
    more = nmfscale.fit_each(
        MODEL, [paths[0], paths[2]], n_components=[2, 3], folder=folder, resume=True
    )
    assert (folder / "donor0-k3.h5").stat().st_mtime_ns == written
    assert {name: list(of) for name, of in more.items()} == {"donor0": [2, 3], "donor1": [2, 3]}
    single = nmfscale.TopicModel(2, random_state=0, tol=1e-2).fit(paths[2])
    assert_array_equal(more["donor1"][2].components_, single.components_)
    assert_array_equal(more["donor0"][3].components_, fits["donor0"][3].components_)
    assert more["donor0"][3].n_components == 3 and MODEL.n_components == 2


def test_files_of_the_same_name_in_different_folders(paths, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [f"donor{i}/outs/counts.npz" for i in (2, 0)]
    for file, path in zip(files, (paths[3], paths[0]), strict=True):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_bytes(path.read_bytes())
    fits = nmfscale.fit_each(MODEL, files, folder="fits")
    assert [*fits] == ["donor2", "donor0"] and nmfscale.load("fits/donor2.h5") is not None
    single = nmfscale.TopicModel(2, random_state=0, tol=1e-2).fit(paths[3])
    assert_array_equal(fits["donor2"].components_, single.components_)
    with pytest.raises(ValueError, match="the name 'donor2/outs/counts.npz' is no name of a file"):
        nmfscale.fit_each(MODEL, [*files, "donor0/outs/other.npz"], folder="others")


def test_what_cannot_be_fitted():
    for wrong in (3, [], [2, 0], "23"):
        with pytest.raises(ValueError, match="n_components has .*: positive integers are"):
            nmfscale.fit_each(MODEL, {"a": np.ones((3, 3))}, n_components=wrong)
    with pytest.raises(ValueError, match="no source could be fitted: 0: ValueError"):
        nmfscale.fit_each(MODEL, [-np.ones((3, 3))])
    with pytest.raises(ValueError, match="sources is ndarray: a dict of counts by name"):
        nmfscale.fit_each(MODEL, np.ones((3, 3)))
    with pytest.raises(ValueError, match="resume=True needs folder="):
        nmfscale.fit_each(MODEL, {"a": np.ones((3, 3))}, resume=True)


@pytest.mark.slow
def test_a_cluster_fits_the_same_models(client, paths):
    sources = {path.stem: path for path in paths if path.stem != "broken"}
    bad = {"broken": -np.ones((3, 3))}
    with pytest.warns(UserWarning, match="1 of 4 fits failed: broken: ValueError"):
        fits = nmfscale.fit_each(MODEL, sources | bad, client=client)
    assert [*fits] == [*sources]
    for name, model in nmfscale.fit_each(MODEL, sources).items():
        assert_array_equal(fits[name].components_, model.components_)
    several = nmfscale.fit_each(MODEL, sources, n_components=[3, 2], client=client)
    assert [*several] == [*sources] and [*several["donor0"]] == [3, 2]
    for name, model in fits.items():
        assert_array_equal(several[name][2].components_, model.components_)
