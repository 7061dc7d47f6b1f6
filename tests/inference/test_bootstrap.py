"""Bootstrap of balanced weights: draws, intervals, the same bits everywhere, coverage."""

import numpy as np
import pytest
import scipy.stats
from clusters import WALL, within
from nmfscale.kernels.resample import draw_counts
from oracle import alternate_normalisation, draws_below, table_of

from nmfscale import TopicModel, balance, bootstrap_weights
from nmfscale.inference.replicates.seeds import child

T, R, SIZES = 4, 3, (60, 70, 80)
SUMS = {"scale": "amounts", "equal_weights": "samples"}  # of loadings as they are
few = pytest.mark.filterwarnings("ignore:.*fewer than 50")


@pytest.fixture(scope="module")
def data():
    """Loadings, groups and units of three or four samples."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(R), SIZES)
    units = np.concatenate([[100 * r + i // 3 for i in range(n)] for r, n in enumerate(SIZES)])
    order = rng.permutation(groups.size)
    return rng.gamma(0.7, size=(groups.size, T))[order], groups[order], units[order]


def test_draws_are_those_of_the_oracle():
    sizes = [1, 5, 1000, 17]
    states = np.random.default_rng(1).integers(2**64, size=(3, 4), dtype=np.uint64)
    counts = np.full((3, sum(sizes)), np.nan)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    draw_counts(states, starts, counts, n_threads=2)
    for state, found in zip(states, counts, strict=True):
        drawn = draws_below(state, sizes)
        expected = [np.bincount(d, minlength=n) for d, n in zip(drawn, sizes, strict=True)]
        np.testing.assert_array_equal(found, np.concatenate(expected))


def test_draws_are_uniform():
    n, N = 6, 20_000
    states = np.random.default_rng(2).integers(2**64, size=(N, 4), dtype=np.uint64)
    counts = np.empty((N, n))
    draw_counts(states, np.array([0, n]), counts, n_threads=1)
    assert scipy.stats.chisquare(counts.sum(axis=0)).pvalue > 1e-3
    times = np.bincount(counts.astype(int).ravel(), minlength=n + 1)
    expected = counts.size * scipy.stats.binom.pmf(np.arange(n + 1), n, 1 / n)
    np.testing.assert_allclose(times[:4], expected[:4], rtol=0.03)


@few
@pytest.mark.parametrize("within_", ["groups", "corpus"])
@pytest.mark.parametrize("by_units", [False, True])
def test_replicates_are_tables_of_copied_samples(data, within_, by_units):
    loadings, groups, units = data
    if not by_units:
        units = np.arange(groups.size)
    found = bootstrap_weights(
        loadings, groups, units=units if by_units else None, within=within_, n_replicates=3,
        random_state=5, **SUMS,
    )  # fmt: skip
    np.testing.assert_allclose(found.weights, balance(table_of(loadings, groups, R)), rtol=1e-10)
    # units in the order of groups, in each as their labels are sorted
    first = np.unique(units, return_index=True)[1]
    order = first[np.lexsort((units[first], groups[first]))]
    sizes = np.bincount(groups[order]) if within_ == "groups" else [order.size]
    seed = np.random.SeedSequence(5)
    for r, replicate in enumerate(found.replicates):
        state = child(seed, r).generate_state(4, np.uint64)
        draws = list(draws_below(state, sizes))
        starts = np.cumsum([0, *sizes])
        drawn = [s + np.array(d) for s, d in zip(starts[:-1], draws, strict=True)]
        copies = [np.flatnonzero(units == units[order[i]]) for i in np.concatenate(drawn)]
        copied = np.concatenate(copies)
        expected = alternate_normalisation(table_of(loadings[copied], groups[copied], R))
        np.testing.assert_allclose(replicate, expected, rtol=1e-9)


@few
def test_units_in_several_groups_are_drawn_whole(data):
    loadings, groups, _ = data
    authors = np.arange(groups.size) % 30
    found, of_corpus = (
        bootstrap_weights(
            loadings, groups, units=authors, within=within_, n_replicates=5, random_state=0
        )
        for within_ in ("groups", "corpus")
    )
    # all authors have samples in several groups, so that there is one set to draw from
    np.testing.assert_array_equal(found.replicates, of_corpus.replicates)
    # each author counts once in each group
    shares = loadings / loadings.sum(axis=1, keepdims=True)
    cells = [
        shares[(authors == a) & (groups == g)].mean(axis=0)
        for g in range(R) for a in np.unique(authors[groups == g])
    ]  # fmt: skip
    np.testing.assert_array_equal(
        found.n_units, [len(np.unique(authors[groups == g])) for g in range(R)]
    )
    table = table_of(np.array(cells), np.repeat(np.arange(R), found.n_units), R)
    np.testing.assert_allclose(found.weights, balance(table), rtol=1e-9)


def test_strata_keep_their_numbers(data):
    loadings, groups, _ = data
    strata = np.where(np.arange(groups.size) < 5, "few", "many")
    loadings = loadings.copy()
    loadings[:5, 0] += 1e6  # all weight of a topic
    found = bootstrap_weights(
        loadings, groups, strata=strata, within="corpus", n_replicates=200, random_state=0, **SUMS
    )
    assert found.n_failures == 0 and found.n_replicates == 200


@pytest.mark.parametrize("interval", ["percentile", "bca"])
def test_intervals_are_those_of_scipy(data, interval):
    loadings, groups, _ = data
    found = bootstrap_weights(
        loadings, groups, within="corpus", interval=interval, n_replicates=400, level=0.9,
        random_state=1, **SUMS,
    )  # fmt: skip
    t, r = 2, 1

    def weight(index):
        return balance(table_of(loadings[index], groups[index], R))[t, r]

    replicates = found.replicates[:, t, r]
    given = scipy.stats.bootstrap(
        (np.arange(groups.size),), weight, n_resamples=0, vectorized=False, confidence_level=0.9,
        method="BCa" if interval == "bca" else "percentile",
        bootstrap_result=scipy.stats._resampling.BootstrapResult(None, replicates, None),
    )  # fmt: skip
    expected = tuple(given.confidence_interval)
    np.testing.assert_allclose((found.lower[t, r], found.upper[t, r]), expected, rtol=1e-6)
    np.testing.assert_allclose(found.std_error[t, r], replicates.std(ddof=1))


@few
@pytest.mark.parametrize("n_threads", [1, 4])
def test_threads_and_resuming_do_not_change_a_bit(data, tmp_path, n_threads):
    loadings, groups, units = data
    options = {"units": units, "random_state": 3, "n_threads": n_threads}
    expected = bootstrap_weights(loadings, groups, **options | {"n_threads": 2}, n_replicates=150)
    options |= {"checkpoint": tmp_path / "job", "resume": True}
    for n in 70, 150:
        found = bootstrap_weights(loadings, groups, n_replicates=n, **options)
    assert (found.replicates == expected.replicates).all()
    assert (found.lower == expected.lower).all() and (found.upper == expected.upper).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_same_bits(client, data):
    loadings, groups, units = data
    options = {"units": units, "random_state": 3, "n_replicates": 150}
    expected = bootstrap_weights(loadings, groups, **options)
    found = within(WALL, lambda: bootstrap_weights(loadings, groups, **options, client=client))
    assert (found.replicates == expected.replicates).all()


@pytest.mark.filterwarnings("ignore:few samples have some topics")
def test_topics_that_a_replicate_lacks(data):
    loadings, groups, _ = data
    loadings = loadings.copy()
    loadings[:, 3] = 0
    loadings[:2, 3] = 1  # drawn by none with a probability of exp(-2)
    options = {"n_replicates": 300, "random_state": 0, **SUMS}
    with pytest.warns(UserWarning, match="of 300 replicates had no balance"):
        found = bootstrap_weights(loadings, groups, zeros="omit", **options)
    with pytest.warns(UserWarning, match="of 300 replicates have nothing of some topics, as 3 in "):
        dropped = bootstrap_weights(loadings, groups, **options)
    lost = np.isnan(dropped.replicates).any(axis=(1, 2))
    assert dropped.n_failures == 0 and lost.sum() == dropped.n_dropped == found.n_failures
    np.testing.assert_array_equal(dropped.missing, [0, 0, 0, lost.mean()])
    np.testing.assert_array_equal(dropped.replicates[~lost], found.replicates)
    np.testing.assert_array_equal(dropped.upper[3], found.upper[3])
    # 1/sqrt(4) is neutral in those without the topic, too
    norms = np.linalg.norm(dropped.replicates[lost][:, :3], axis=1)
    np.testing.assert_allclose(norms, np.sqrt(3 / 4))
    ends = np.quantile(dropped.replicates[:, :3], [0.025, 0.975], axis=0)
    np.testing.assert_allclose(ends, [dropped.lower[:3], dropped.upper[:3]])
    assert f"{lost.sum()} lack topics" in repr(dropped) and np.isfinite(dropped.std_error).all()
    assert 20 < found.n_failures < 70 and found.n_replicates == 300 - found.n_failures
    assert np.isfinite(found.replicates).all() and np.isfinite(found.lower).all()
    loadings[:, 3] = 0
    bca = bootstrap_weights(loadings + 1e-3, groups, interval="bca", n_replicates=99, **SUMS)
    assert np.isfinite(bca.lower).all()
    with pytest.raises(ValueError, match="no weight in topic 3"):
        bootstrap_weights(loadings, groups)


@few
def test_units_count_once_or_by_their_samples(data):
    loadings, groups, _ = data
    units = np.minimum(np.arange(groups.size) % 70, 40) + 100 * groups  # one has more samples
    shares = loadings / loadings.sum(axis=1, keepdims=True)
    names = np.unique(units)
    means = np.array([shares[units == u].mean(axis=0) for u in names])
    once = bootstrap_weights(loadings, groups, units=units, n_replicates=3)
    np.testing.assert_allclose(once.weights, balance(table_of(means, names // 100, R)), rtol=1e-9)
    each = bootstrap_weights(loadings, groups, units=units, equal_weights="samples", n_replicates=3)
    np.testing.assert_allclose(each.weights, balance(table_of(shares, groups, R)), rtol=1e-9)
    assert "each unit counts once" in repr(once) and "each sample counts" in repr(each)


@few
def test_empty_samples_are_left_out(data):
    loadings, groups, units = data
    empty = np.arange(groups.size) % 5 == 0
    options = {"units": units, "n_replicates": 5, "random_state": 0}
    with pytest.warns(UserWarning, match="42 of 210 samples are left out"):
        found = bootstrap_weights(loadings * ~empty[:, None], groups, **options)
    kept = options | {"units": units[~empty]}
    expected = bootstrap_weights(loadings[~empty], groups[~empty], **kept)
    np.testing.assert_array_equal(found.replicates, expected.replicates)


def test_few_units_are_warned_of(data):
    loadings, groups, units = data
    with pytest.warns(UserWarning, match="3 of 3 groups have fewer than 50 units, the fewest 0"):
        bootstrap_weights(loadings, groups, units=units, n_replicates=20)


def test_names_and_tables(data):
    pd = pytest.importorskip("pandas")
    loadings, groups, _ = data
    frame = pd.DataFrame(loadings, columns=list("abcd"))
    regions = pd.Series(groups).map({0: "x", 1: "y", 2: "z"})
    found = bootstrap_weights(frame, regions, n_replicates=50, random_state=0)
    assert found.topics == tuple("abcd") and found.groups == tuple("xyz")
    table = found.to_frame().pivot(index="topic", columns="group", values="weight")
    np.testing.assert_array_equal(table, found.weights)
    within_groups = found.to_frame("TwR")
    assert within_groups["rank"].tolist() == [1, 2, 3, 4] * 3
    assert within_groups.groupby("group")["weight"].is_monotonic_decreasing.all()
    assert found.to_frame("RwT").groupby("topic")["rank"].apply(list).iloc[0] == [1, 2, 3]
    ranking = found.ranking(n=1)
    heaviest = found.weights.argmax(axis=0)
    assert ranking.index.tolist() == [1, 4]
    assert ranking.loc[1].tolist() == [found.topics[t] for t in heaviest]
    assert found.ranking("RwT").shape == (3, 4)
    assert "50 replicates" in repr(found) and found.neutral == 0.5


def test_a_model_has_loadings(data):
    X = np.random.default_rng(0).poisson(2, (150, 6))
    groups = np.arange(150) % 2
    with pytest.raises(ValueError, match="fit it first"):
        bootstrap_weights(TopicModel(2), groups)
    model = TopicModel(2, random_state=0, max_iter=20, tol=0).fit(X)
    of_model = bootstrap_weights(model, groups, n_replicates=20, random_state=0)
    of_array = bootstrap_weights(model.loadings_, groups, n_replicates=20, random_state=0)
    np.testing.assert_allclose(of_model.replicates, of_array.replicates, rtol=1e-12)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"level": 95}, "level=95"),
        ({"interval": "basic"}, "interval='basic'"),
        ({"within": "units"}, "within='units'"),
        ({"zeros": "raise"}, "zeros='raise' is not one of 'drop', 'omit'"),
        ({"equal_weights": 1}, "equal_weights=1 is not one of 'units', 'samples'"),
        ({"topic_names": ["a"]}, "topic_names has 1 different names; 4 are needed"),
        ({"model": [[1, np.nan]]}, r"loadings\[0, 1\] is nan"),
        ({"model": [1, 2]}, r"loadings has shape \(2,\)"),
        ({"n_replicates": 0}, "number of replicates"),
        ({"groups": ["a"]}, "groups has 1 labels"),
    ],
)
def test_bad_arguments_are_refused(data, changed, message):
    given = {"model": data[0], "groups": data[1]} | changed
    with pytest.raises(ValueError, match=message):
        bootstrap_weights(**given)


@pytest.mark.nightly
def test_intervals_cover_the_truth():
    """As often as the docs say: 0.93 at 100 units a group and more."""
    rng = np.random.default_rng(0)
    means = rng.gamma(2.0, size=(10, 3))
    sizes, covered = (100, 150, 250), []
    groups = np.repeat(np.arange(3), sizes)
    truth = balance(means)
    for seed in range(40):
        noise = rng.gamma(1.0, size=(groups.size, 10)) * rng.lognormal(0, 0.5, (groups.size, 1))
        found = bootstrap_weights(means.T[groups] * noise, groups, random_state=seed, **SUMS)
        covered.append(((found.lower <= truth) & (truth <= found.upper)).mean())
    error = np.std(covered) / np.sqrt(len(covered))
    assert abs(np.mean(covered) - 0.93) < 3 * error + 0.01
