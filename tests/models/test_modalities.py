"""Several modalities of the same samples: joined counts, their weights, and fits to them."""

import re

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from shell import run

import nmfscale
from nmfscale.datasets import simulate_topic_counts
from nmfscale.kernels.functions import log_gamma
from nmfscale.readers.streams.modalities import information

mudata = pytest.importorskip("mudata")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:mudata"),
    pytest.mark.filterwarnings("ignore:Cannot join columns with the same name"),
]

N, K, GENES, PROTEINS = 120, 4, 60, 12
RNG = np.random.default_rng(0)
SHARES = RNG.dirichlet(np.full(K, 0.3), N)
CELLS = np.array([f"cell{i:03}" for i in range(N)])
# genes cannot tell topics 2 and 3 apart, proteins not 0 and 1
OF_RNA, OF_ADT = RNG.dirichlet(np.full(GENES, 0.4), K), RNG.dirichlet(np.full(PROTEINS, 0.4), K)
OF_RNA[3], OF_ADT[1] = OF_RNA[2], OF_ADT[0]
RNA, ADT = RNG.poisson(400 * SHARES @ OF_RNA), RNG.poisson(2000 * SHARES @ OF_ADT)
ADT = RNG.poisson(ADT * RNG.gamma(5, 1 / 5, ADT.shape))
X = np.hstack([RNA, ADT])
LATE = slice(15, None)  # the samples with proteins in some tests
FIT = {"random_state": 0, "tol": 1e-5, "max_iter": 300}


def annotated(X, prefix, rows=slice(None)):
    names = [f"{prefix}{j}" for j in range(X.shape[1] - 1)] + ["CD3"]
    obs = pd.DataFrame({"depth": X.sum(axis=1), "donor": np.arange(N) % 3}, index=CELLS)
    return anndata.AnnData(sp.csr_matrix(X[rows]), obs.iloc[rows], pd.DataFrame(index=names))


def joined(rows=slice(None), **options):
    sources = {"rna": annotated(RNA, "g"), "adt": annotated(ADT, "p", rows)}
    return nmfscale.join_modalities(sources, **options)


def test_joined_counts_have_what_the_modalities_have():
    counts = joined(LATE)
    assert counts.take_rows().toarray()[LATE].tolist() == X[LATE].tolist()
    assert counts.sample_names.tolist() == CELLS.tolist()
    assert counts.feature_names[[GENES - 1, -1]].tolist() == ["rna:CD3", "adt:CD3"]
    assert counts.modalities.tolist() == ["rna"] * GENES + ["adt"] * PROTEINS
    features, panel = counts.measured
    assert not (features[panel] & (X > 0) != (counts.take_rows().toarray() > 0)).any()
    assert sorted(counts.obs) == ["adt:depth", "depth", "donor"]
    assert counts.obs["adt:depth"][LATE].tolist() == ADT.sum(axis=1)[LATE].tolist()
    assert joined(LATE, join="inner").sample_names.tolist() == CELLS[LATE].tolist()


def test_samples_are_matched_by_name():
    order = RNG.permutation(N)
    sources = {"rna": annotated(RNA, "g"), "adt": annotated(ADT, "p")[order].copy()}
    assert (nmfscale.join_modalities(sources).take_rows().toarray() == X).all()


def test_same_bits_from_objects_files_and_stores(tmp_path):
    both = mudata.MuData({"rna": annotated(RNA, "g"), "adt": annotated(ADT, "p", LATE)})
    both.write_h5mu(tmp_path / "both.h5mu")
    nmfscale.write_store(joined(LATE), tmp_path / "both.nmf")
    names = {"modality": ["rna", "adt"]}
    sources = {
        "object": (both, names), "file": (tmp_path / "both.h5mu", names),
        "store": (tmp_path / "both.nmf", {}),
        "in pieces": (nmfscale.as_counts(tmp_path / "both.h5mu", in_memory=False, **names), {}),
    }  # fmt: skip
    fit = nmfscale.TopicModel(K, **FIT | {"max_iter": 8, "tol": 0}).fit(joined(LATE))
    for name, (source, options) in sources.items():
        other = nmfscale.TopicModel(K, **FIT | {"max_iter": 8, "tol": 0}).fit(source, **options)
        for array in ("components_", "loadings_", "feature_weights_", "measured_", "modalities_"):
            assert (getattr(other, array) == getattr(fit, array)).all(), (name, array)


def test_weights_multiply_the_log_likelihood_of_each_modality(tmp_path):
    weights = np.repeat([1, 0.3], [GENES, PROTEINS])
    model = nmfscale.PoissonNMF(K, **FIT).fit(joined(modality_weights={"adt": 0.3, "rna": 1}))
    mu = model.loadings_ @ model.components_
    terms = X * np.log(np.where(X > 0, mu, 1)) - mu - log_gamma(X + 1.0)
    assert model.history_["loglik"][-1] == pytest.approx((terms * weights).sum(), rel=1e-12)
    # optimality of the weighted problem
    ratio = weights * (1 - X / np.maximum(mu, 1e-300))
    for gradient, values in (
        (ratio @ model.components_.T / (weights @ model.components_.T), model.loadings_),
        (model.loadings_.T @ (ratio / weights) / model.loadings_.sum(axis=0)[:, None],
         model.components_),
    ):  # fmt: skip
        assert np.abs(np.minimum(gradient, values / values.mean())).max() < 1e-2
    model.save(tmp_path / "model.h5")
    again = nmfscale.load(tmp_path / "model.h5")
    assert (again.transform(joined()) == model.transform(joined())).all()
    assert model.transform(joined()) == pytest.approx(model.loadings_, rel=1e-2, abs=1e-2)


def test_equal_weights_are_a_table_of_all_features():
    counts = joined(modality_weights="counts")
    for model in (nmfscale.TopicModel(K, **FIT), nmfscale.LDA(K, random_state=0, tol=1e-2)):
        one, other = model.fit(counts).components_.copy(), model.fit(X).components_
        assert (one == other).all()
    assert counts.feature_weights is None
    with pytest.raises(ValueError, match="modality_weights='counts'"):
        nmfscale.LDA(K).fit(joined())


def test_a_modality_that_samples_lack_was_not_measured():
    counts, lacking = joined(LATE), np.arange(N) < LATE.start
    model = nmfscale.TopicModel(K, **FIT).fit(counts)
    measured = np.ones((2, GENES + PROTEINS), bool)
    measured[1, GENES:] = False
    table = X * measured[lacking.astype(int)]
    weighted = nmfscale.as_counts(table)
    weighted.feature_weights = counts.feature_weights
    told = nmfscale.TopicModel(K, **FIT).fit(weighted, measured=measured, panel=lacking)
    assert (told.components_ == model.components_).all()
    # the same as samples of genes only
    rna = nmfscale.join_modalities({"rna": annotated(RNA, "g", slice(LATE.start))})
    with pytest.warns(UserWarning, match="X lacks 12 of the 72 features"):
        of_genes = model.transform(rna, missing="restrict")
    assert of_genes == pytest.approx(model.transform(counts)[lacking], abs=1e-12)


def test_information_is_that_beyond_noise():
    mean = np.outer(RNG.uniform(50, 500, 200), RNG.dirichlet(np.full(40, 5)))
    noise = [information(nmfscale.as_counts(RNG.poisson(mean))) for _ in range(20)]
    assert max(noise) < 5 * np.sqrt(2 * 199 * 39)  # three standard deviations are the minimum
    counts, _ = simulate_topic_counts(200, 40, 3, random_state=0)
    signal = nmfscale.as_counts(counts)
    both = nmfscale.as_counts(np.hstack([counts.toarray(), counts.toarray()]))
    assert information(signal) > 100 * max(noise)
    assert information(both) == pytest.approx(2 * information(signal), rel=0.02)


def test_programs_that_only_few_proteins_show_are_found():
    rng = np.random.default_rng(1)
    noise = rng.gamma(2, 1 / 2, RNA.shape)  # more variance than Poisson counts, as genes have
    deep, shallow = rng.poisson(4000 * SHARES @ OF_RNA * noise), rng.poisson(60 * SHARES @ OF_ADT)
    sources = {"rna": nmfscale.as_counts(deep), "adt": nmfscale.as_counts(shallow)}

    def correlations(**options):
        counts = nmfscale.join_modalities(sources, **options)
        model = nmfscale.TopicModel(K, random_state=0, n_init=2, tol=1e-3).fit(counts)
        match = np.corrcoef(SHARES.T, model.loadings_.T)[:K, K:]
        return match.max(axis=1)[2:].min()  # those that genes do not tell apart

    assert correlations() > 0.9
    assert correlations(modality_weights="counts") < 0.6


def test_scores_tell_a_modality_of_noise_from_others():
    rng = np.random.default_rng(0)
    means = {"rna": 300 * SHARES @ OF_RNA, "adt": 300 * SHARES @ OF_ADT}
    means["noise"] = np.tile(300 * rng.dirichlet(np.ones(20)), (N, 1))
    rows = {"rna": slice(None), "adt": LATE, "noise": slice(None)}

    def drawn():
        return {
            label: annotated(rng.poisson(mean), label, rows[label]) for label, mean in means.items()
        }

    with pytest.warns(UserWarning, match="the counts of noise show no more than noise"):
        nmfscale.join_modalities(drawn())
    weights = {"modality_weights": [1, 1, 1]}
    fitted, held = (nmfscale.join_modalities(drawn(), **weights) for _ in range(2))
    model = nmfscale.TopicModel(K, random_state=0, prior_factors=1.1).fit(fitted)
    scores = nmfscale.score_modalities(model, fitted, held)
    assert scores.to_frame()["modality"].tolist() == ["rna", "adt", "noise"]
    assert scores.n_samples.tolist() == [N, N - LATE.start, N]
    noisy = scores.gain < 2 * scores.gain_error
    assert noisy.tolist() == [False, False, True] and "noise" in repr(scores)
    assert (scores.gain_from_others[:2] > 0).all()
    # a fit of one topic to the modality alone
    noise = nmfscale.as_counts(fitted.take_rows()[:, -20:])
    one = nmfscale.TopicModel(1).fit(noise).components_[0]
    x = held.take_rows().toarray()[:, -20:]
    own = (x * np.log(one)).sum() / x.sum()
    assert scores.one_topic[2] == pytest.approx(own, abs=1e-9) and scores.score[2] < own
    # loadings of both, from the definition
    mu = (model.transform(fitted) @ model.components_)[:, :GENES]
    logs = np.log(mu / mu.sum(axis=1, keepdims=True))
    of_rna = held.take_rows().toarray()[:, :GENES]
    assert scores.score[0] == pytest.approx((of_rna * logs).sum() / of_rna.sum(), abs=1e-9)
    halves = nmfscale.score_modalities(model, fitted, random_state=0)
    assert halves.total.sum() == pytest.approx(fitted.total / 2, rel=0.02)


def test_the_part_of_a_fit_with_one_modality(tmp_path):
    counts = joined(LATE)
    model = nmfscale.TopicModel(K, random_state=0, tol=1e-2).fit(counts)
    adt = model.of_modality("adt")
    assert (adt.components_ == model.components_[:, GENES:]).all()
    assert adt.feature_names_in_.tolist() == [*(f"p{j}" for j in range(PROTEINS - 1)), "CD3"]
    assert not hasattr(adt, "feature_weights_") and adt.measured_ is None
    adt.save(tmp_path / "adt.h5")
    assert nmfscale.load(tmp_path / "adt.h5").n_features_in_ == PROTEINS
    sets = {"odd": [f"p{j}" for j in range(1, 12, 2)]}
    assert nmfscale.enrichment(adt, sets, n_top=3).sizes.tolist() == [5]
    quality = nmfscale.topic_quality(model, counts)
    table, features = (quality.to_frame(what) for what in ("modalities", "features"))
    sums = features.groupby(counts.modalities)[["total", "deviance", "null_deviance"]].sum()
    sums = sums.loc[table["modality"]]
    assert table["total"].to_numpy() == pytest.approx(sums["total"].to_numpy())
    explained = (1 - sums["deviance"] / sums["null_deviance"]).to_numpy()
    assert table["explained"].to_numpy() == pytest.approx(explained)
    for fit, message in ((model, "'atac' is not one of those"), (adt, "was not fitted to joined")):
        with pytest.raises(ValueError, match=message):
            fit.of_modality("atac")


def test_modalities_from_the_shell_to_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    both = mudata.MuData({"rna": annotated(RNA, "g"), "adt": annotated(ADT, "p", LATE)})
    both.write_h5mu("both.h5mu")
    names = "--modality", "rna", "--modality", "adt"
    fit = "-k", 3, "--seed", 0, "-q", "--modality-weights", "1,0.5", "--write-h5ad", "topics"
    assert run("fit", "both.h5mu", *names, *fit, "-o", "model.h5") == 0
    capsys.readouterr()
    assert run("info", "model.h5") == 0
    said = "modalities      rna 60 features (weight 1), adt 12 features (weight 0.5)"
    assert said in capsys.readouterr().out
    scored = run(
        "score-modalities", "model.h5", "both.h5mu", *names, "--seed", 3, "-o", "scores.h5"
    )
    assert scored == 0
    whole, fitted = (
        nmfscale.as_counts("both.h5mu", modality=["rna", "adt"]),
        nmfscale.load("model.h5"),
    )
    expected = nmfscale.score_modalities(fitted, whole, random_state=3)
    assert repr(expected) in capsys.readouterr().out
    assert repr(nmfscale.load_result("scores.h5")) == repr(expected)
    other = "--held-out", "both.h5mu"
    assert run("score-modalities", "model.h5", "both.h5mu", *names, *other, "-q") == 0
    of_all = nmfscale.score_modalities(fitted, whole, whole)
    assert capsys.readouterr().out.strip() == repr(of_all).strip()
    read = mudata.read_h5mu("both.h5mu")
    shown = nmfscale.get.components_df(read, modality="adt")
    assert shown.columns[-1] == "CD3" and shown.shape == (3, PROTEINS)
    pytest.importorskip("bokeh")
    assert run("report", "model.h5", "both.h5mu", *names, "-o", "report.html") == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Modalities</h2>" in page and "adt: leading features" in page
    row = re.search(r"<td>adt</td>(.*?)</tr>", page.replace('<td class="number">', "<td>"), re.S)
    assert row is not None and "105" in row[1] and "0.5" in row[1] and "%" in row[1]


def test_inference_takes_joined_counts():
    counts, start = joined(LATE), {"random_state": 0, "tol": 1e-2}
    model = nmfscale.TopicModel(K, **start).fit(counts)
    found = nmfscale.stability(model, counts, n_starts=2, random_state=0)
    assert found.fit_objective >= found.objective.max() - 1
    groups, units = np.arange(N) % 2, np.arange(N) % 10
    drawn = nmfscale.bootstrap_fit(model, counts, groups=groups, n_replicates=2, random_state=0)
    assert np.isfinite(drawn.group_means.estimate).all()
    chosen = nmfscale.select_k(
        nmfscale.TopicModel(prior_factors=1.1), counts, [2, K], n_splits=1, random_state=0
    )
    assert chosen.score[1] > chosen.score[0]
    tested = nmfscale.condition_features(model, counts, np.where(units < 5, "a", "b"), units=units)
    assert len(tested.feature_names) == GENES + PROTEINS


def test_concat_keeps_modalities_and_equal_weights():
    parts = {
        name: joined(LATE, mask_obs=CELLS[rows].tolist(), modality_weights=[1, 2])
        for name, rows in (("one", slice(40)), ("two", slice(40, None)))
    }
    both = nmfscale.concat(parts)
    assert both.modalities.tolist() == parts["one"].modalities.tolist()
    assert both.feature_weights.tolist() == [1] * GENES + [2] * PROTEINS
    parts["two"] = joined(LATE, mask_obs=CELLS[40:].tolist(), modality_weights="counts")
    with pytest.raises(ValueError, match="two has other feature_weights than one"):
        nmfscale.concat(parts)


@pytest.mark.slow
def test_same_bits_on_a_cluster(tmp_path, client):
    store = nmfscale.write_store(joined(LATE), tmp_path / "both.nmf").path
    local, remote = (
        nmfscale.TopicModel(K, **FIT | {"max_iter": 8, "tol": 0}).fit(source, **how)
        for source, how in ((joined(LATE), {}), (store, {"client": client}))
    )
    assert (remote.components_ == local.components_).all()
    assert (remote.loadings_ == local.loadings_).all()
    for held in (None, store):
        here = nmfscale.score_modalities(local, joined(LATE), held, random_state=0)
        there = nmfscale.score_modalities(remote, store, held, random_state=0, client=client)
        pd.testing.assert_frame_equal(there.to_frame(), here.to_frame(), check_exact=True)


def drawn_with_depth(spread, of_topics=(1, 1, 1, 1)):
    """Return modalities of which proteins vary in depth, or differ between topics."""
    rng = np.random.default_rng(2)
    depth = np.exp(spread * rng.standard_normal((N, 1)))
    proteins = rng.poisson(500 * depth * ((SHARES * of_topics) @ OF_ADT))
    return {"rna": annotated(RNA, "g"), "adt": annotated(proteins, "p")[LATE].copy()}


@pytest.mark.parametrize("of_topics", [(1, 1, 1, 1), (1, 3, 1, 3)])
def test_no_warning_where_topics_explain_the_depth_of_a_modality(of_topics, recwarn):
    counts = nmfscale.join_modalities(drawn_with_depth(0, of_topics))
    assert not any("vary" in note for note in counts.notes)
    nmfscale.TopicModel(K, **FIT | {"tol": 1e-2}).fit(counts)
    assert not [w for w in recwarn if w.category is nmfscale.errors.ModalityDepthWarning]


def test_depth_of_a_modality_that_varies_is_told_and_batches_are_the_remedy(tmp_path):
    sources = drawn_with_depth(0.8)
    counts = nmfscale.join_modalities(sources)
    said = "counts of adt relative to the others vary .* ratio 0.8[0-9] beyond noise"
    assert re.search(said, " ".join(counts.notes))
    nmfscale.write_store(counts, tmp_path / "both.nmf")
    assert nmfscale.as_counts(tmp_path / "both.nmf").notes == counts.notes
    with pytest.warns(nmfscale.errors.ModalityDepthWarning, match=f"{said}.*batch="):
        fit = nmfscale.TopicModel(K, **FIT | {"tol": 1e-2}).fit(counts)
    assert re.search(said, fit.warnings_[0])
    batch = nmfscale.modality_depth(counts, n_bins=4)
    of = pd.Series(sources["adt"].X.sum(axis=1).A1 / RNA[LATE].sum(axis=1))
    expected = [f"adt {number + 1}" for number in pd.qcut(of, 4, labels=False)]
    assert batch.tolist() == ["none"] * LATE.start + expected
    assert not fit.fit(counts, batch=batch).warnings_.size
    # of a MuData object in the order of its obs, whichever that of its modalities
    sources["rna"] = sources["rna"][::-1].copy()
    mdata = mudata.MuData({"adt": sources["adt"], "rna": sources["rna"]})
    of_object = nmfscale.modality_depth(mdata, modality=["rna", "adt"], n_bins=4)
    assert pd.Series(of_object, mdata.obs_names)[CELLS].tolist() == batch.tolist()


def test_depth_needs_modalities():
    with pytest.raises(ValueError, match="counts do not have several modalities"):
        nmfscale.modality_depth(RNA)
    with pytest.raises(ValueError, match="n_bins is 1"):
        nmfscale.modality_depth(joined(), n_bins=1)


def test_scores_refuse_what_has_no_modalities():
    model = nmfscale.TopicModel(2, random_state=0, max_iter=2, tol=0).fit(RNA)
    with pytest.raises(ValueError, match="was not fitted to joined modalities"):
        nmfscale.score_modalities(model, RNA)
    model.fit(joined())
    with pytest.raises(ValueError, match="held_out has 105 samples, and X has 120"):
        nmfscale.score_modalities(model, joined(), joined(LATE, join="inner"))
    with pytest.raises(TypeError, match="a fitted model with a likelihood"):
        nmfscale.score_modalities(nmfscale.FrobeniusNMF(2), joined())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modality_weights": "equal"}, "modality_weights='equal'"),
        ({"modality_weights": {"rna": 1}}, "a weight for each of them is needed"),
        ({"modality_weights": [1, 0]}, "weights are positive"),
        ({"modality": "rna"}, "is for MuData objects"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        joined(**options)


def test_samples_without_a_common_name():
    other = annotated(ADT, "p")
    other.obs_names = [f"{name}-1" for name in other.obs_names]
    with pytest.raises(ValueError, match="no sample in common; rna has 'cell000'"):
        nmfscale.join_modalities({"rna": annotated(RNA, "g"), "adt": other})
    with pytest.raises(ValueError, match=r"give their names by modality=\[...\]"):
        nmfscale.as_counts(X, modality_weights="counts")
