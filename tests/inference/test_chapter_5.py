"""The application of Phelan's thesis (chapter 5), on real counts: beers, blogs and Congress.

The reviews of the thesis are not public. Other reviews of Canadian beers show the same picture
where it does not hang on single words.
"""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from nmfscale import AnchorNMF, TopicModel, bootstrap_weights, permutation_test

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore:groups differ in spread"),
    pytest.mark.filterwarnings("ignore:units= is not given"),
    pytest.mark.filterwarnings("ignore:4 of 1,327 samples are left out"),
]


def read(data_dir, name):
    counts = sp.load_npz(data_dir / f"{name}.npz")
    with gzip.open(data_dir / f"{name}_meta.json.gz") as file:
        labels = {key: np.array(each) for key, each in json.load(file).items() if key != "source"}
    return counts, labels


def cosine_test(model, groups, **options):
    options = {"scale": "amounts", "random_state": 0} | options
    return permutation_test(model, groups, statistic="cosine", **options)


@pytest.fixture(scope="module")
def beers(data_dir):
    """Beers by region, with the 100 anchors of the thesis; breweries are what was drawn."""
    counts, labels = read(data_dir, "beer_canada")
    model = AnchorNMF(100).fit(counts)
    return SimpleNamespace(
        loadings=model.loadings_, names=labels["cols"][model.anchors_], counts=counts,
        regions=labels["row_label"], breweries=labels["row_brewery"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def weights(beers):
    with pytest.warns(UserWarning, match="of 1000 replicates have nothing of some topics"):
        return bootstrap_weights(
            beers.loadings, beers.regions, topic_names=beers.names, scale="amounts",
            equal_weights="samples", random_state=0,
        )  # fmt: skip


def by_pvalue(test):
    """Pairs of groups, those that differ most first."""
    pairs = sorted(test.pairs, key=lambda pair: (pair.pvalue, -pair.zscore))
    return [pair.groups for pair in pairs]


class TestBeers:
    def test_anchors(self, beers):
        """Table 5.1: words that begin topics of beer reviews."""
        first = set(beers.names[:30])
        assert {"coffee", "beer", "dark", "apple", "honey", "caramel", "wheat", "light"} <= first

    def test_regions_by_beer(self, beers):
        """Figure 5.1: all regions differ, those hardly that are compared with Atlantic."""
        test = cosine_test(beers.loadings, beers.regions, scope="all")
        assert test.overall.pvalue == 1e-4 and test.overall.zscore > 5
        assert 0.975 < test.overall.observed < 0.99 < test.overall.null.mean()
        assert all(pair.pvalue < 0.005 for pair in test.pairs if "Atlantic" not in pair.groups)
        assert all("Atlantic" in groups for groups in by_pvalue(test)[-2:])

    def test_regions_by_brewery(self, beers):
        """What is left of it where breweries are permuted, each of which lies in one region."""
        test = cosine_test(beers.loadings, beers.regions, units=beers.breweries)
        assert 0.01 < test.overall.pvalue < 0.05
        left = {pair.groups for pair in test.pairs if pair.pvalue_maxt < 0.05}
        assert {("Ontario", "Quebec"), ("BC", "Quebec")} <= left and len(left) <= 4
        assert not any("Atlantic" in groups for groups in left)

    def test_another_fit_says_the_same(self, beers):
        model = TopicModel(20, random_state=0).fit(beers.counts)
        of_samples = {"scale": "proportions", "scope": "all"}
        by_beer = cosine_test(model, beers.regions, **of_samples)
        by_brewery = cosine_test(model, beers.regions, units=beers.breweries, **of_samples)
        assert by_beer.overall.pvalue == 1e-4 < by_brewery.overall.pvalue < 0.02
        for test in (by_beer, by_brewery):
            assert by_pvalue(test)[-1] == ("Atlantic", "Ontario")
            assert set(by_pvalue(test)[:2]) <= {
                ("BC", "Ontario"), ("BC", "Quebec"), ("Ontario", "Quebec"), ("Prairies", "Quebec"),
            }  # fmt: skip

    def test_ranking(self, weights):
        """Table 5.3: words at the same end of the same region."""
        ranking = weights.ranking("TwR", n=10)
        top, bottom = ranking.loc[:10], ranking.loc[91:]
        assert {"honey", "ipa", "maple"} <= set(top["Atlantic"])
        assert "lager" in set(top["Ontario"]) & set(bottom["Quebec"])
        assert "corn" in set(bottom["BC"])

    def test_weights(self, weights):
        """Figures 5.2 and 5.3: squares of a topic add up to 1/20; yeast divides, stout does not."""
        np.testing.assert_allclose((weights.weights**2).sum(axis=1), 0.05, rtol=1e-10)
        assert weights.neutral == 0.1
        yeast, stout = (weights.topics.index(name) for name in ("yeast", "stout"))
        widths = (weights.upper - weights.lower).mean(axis=1)
        assert widths[yeast] < 0.6 * widths[stout]
        assert weights.lower[yeast].max() > 0.1 > weights.upper[yeast].min()
        # the smallest region is known least
        spread = np.median(weights.std_error, axis=0)
        assert weights.groups[spread.argmax()] == "Atlantic"


def test_blogs(data_dir):
    """Thousands of posts, and six blogs: no test is possible, and a warning says so."""
    counts, labels = read(data_dir, "poliblog5k")
    loadings = AnchorNMF(50).fit(counts).loadings_
    by_post = cosine_test(loadings, labels["row_rating"])
    assert by_post.overall.pvalue == 1e-4
    assert by_post.overall.observed < 0.97 < 0.995 < by_post.overall.null.mean()
    with pytest.warns(UserWarning, match=r"no p-value below 0\.1 \("):
        by_blog = cosine_test(loadings, labels["row_rating"], units=labels["row_blog"])
    assert by_blog.overall.exact and by_blog.overall.null.size == 20
    assert by_blog.overall.pvalue >= 0.2


def test_congress(data_dir):
    """Parties differ, within states too; and chambers within parties."""
    counts, labels = read(data_dir, "congress109")
    kept = labels["row_party"] != "I"
    party, state = labels["row_party"][kept], labels["row_state"][kept]
    loadings = TopicModel(20, random_state=0).fit(counts).loadings_[kept]
    found = cosine_test(loadings, party).overall
    members = np.arange(len(party))
    within = cosine_test(loadings, party, units=members, strata=state).overall
    assert found.pvalue == within.pvalue == 1e-4
    assert within.observed == pytest.approx(found.observed, rel=1e-12) and found.observed < 0.7
    # what states have in common with parties is no evidence
    assert 0.9 < within.null.mean() < found.null.mean() and found.null.mean() > 0.97
    chambers = cosine_test(loadings, labels["row_chamber"][kept], units=members, strata=party)
    assert chambers.overall.pvalue == 1e-4
