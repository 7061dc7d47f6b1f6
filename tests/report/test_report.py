"""write_report: what the page holds, and what it refuses; test_browser.py opens the page."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import nmfscale
from nmfscale.report.facts import topic_map


def named(matrix, feature_names, sample_names=None):
    counts = nmfscale.as_counts(matrix)
    counts.feature_names, counts.sample_names = np.array(feature_names, object), sample_names
    return counts


@pytest.fixture(scope="module")
def fit():
    counts, _ = nmfscale.datasets.simulate_topic_counts(120, 30, 3, random_state=0)
    counts = named(counts, [f"gene {j}" for j in range(30)], [f"cell {i}" for i in range(120)])
    return counts, nmfscale.TopicModel(3, random_state=0).fit(counts)


class Page(HTMLParser):
    """The text of each section, the data, and every address in the page."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.addresses, self.inside, self.tags = [], [], None, []
        self.text, self.values = text, []
        self.feed(text)
        self.data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', text, re.S)[1])

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src")]
        self.values += [dict(attrs).get("value") for _ in range(tag == "option")]

    def handle_data(self, data):
        if self.inside in ("h1", "h2") and data.strip():
            self.headings.append(data.strip())


def named_labels(labels, name):
    return pytest.importorskip("pandas").Series(labels, name=name)


def written(tmp_path, model, *args, **how):
    path = nmfscale.write_report(model, tmp_path / "report.html", *args, overwrite=True, **how)
    return Page(path.read_text(encoding="utf-8"))


def test_page_holds_the_fit_and_the_results(fit, tmp_path):
    counts, model = fit
    labels, few = np.repeat(["a", "b"], 60), {"random_state": 0, "n_permutations": 99}
    results = [
        nmfscale.select_k(nmfscale.TopicModel(), counts, [2, 3], n_splits=2, random_state=0),
        nmfscale.permutation_test(model, labels, **few),
        nmfscale.permutation_test(model, labels[::-1], **few),
        nmfscale.group_effects(model, named_labels(labels, "side"), **few),
        nmfscale.bootstrap_weights(
            model, labels, units=named_labels(range(120), "donor"), random_state=0, n_replicates=99
        ),
        nmfscale.differential_features(model, counts, split=None),
        nmfscale.cluster_samples(model, n_clusters=2, random_state=0),
    ]
    page = written(tmp_path, model, counts, groups={"side": labels}, other=model, results=results)
    assert page.headings == [
        "TopicModel, 3 topics", "Structure", "Topics", "Map", "Features", "Number of topics",
        "Permutation test", "Permutation test (2)", "Groups: side",
        "Weights in groups (units: donor)", "Sample clusters", "Quality", "Similarity",
        "Convergence", "How it was made",
    ]  # fmt: skip
    # all addresses are places of the page itself
    assert page.addresses and all(re.fullmatch(r"#[\w-]+", each) for each in page.addresses)
    best = nmfscale.get.top_features(model, n_top=20, score="lift", min_count=10)
    assert [[word for word, _ in of] for of in page.data["keywords"]["lift"]] == best
    found = results[5]
    z = [[found.z[k, j] for j in found.order(k)[:20]] for k in range(3)]
    assert [[value for _, value in of] for of in page.data["keywords"]["z"]] == z
    drawn = page.data["structure"]
    np.testing.assert_allclose(np.array(drawn["shares"]) / 1000, model.loadings_, atol=5e-4)
    side, none = drawn["orders"]
    assert (side["name"], none["name"]) == ("side", "no groups")
    order = [i for i in side["order"] if i >= 0]
    assert sorted(order) == list(range(120)) and max(order[:60]) == 59
    assert [name for name, _, _ in side["labels"]] == ["a", "b"]
    assert sorted(none["order"]) == list(range(120))
    # p is beside the topics: on a phone, what is to the right is off screen
    table = page.text[page.text.index("Groups: side</h2>") :]
    heads = re.findall(r"<button type='button'>([^<]*)", table)
    assert heads[:5] == ["topic", "p", "q", "mean in a", "mean in b"]


def test_changes_within_topics_have_a_section(fit, tmp_path):
    counts, model = fit
    groups, units = np.arange(120) % 3, np.arange(120) % 15
    changes = nmfscale.condition_features(model, counts, groups, units=units, min_count=2)
    page = written(tmp_path, model, results=[changes])
    n_found = (changes.to_frame().qvalue <= 0.05).sum()
    part = page.text[page.text.index("Changes within topics</h2>") :]
    assert f"relative to 0: {n_found} of {changes.tested.sum()} tests have q" in part
    rows = changes.to_frame().groupby(["topic", "group"], sort=False).head(10)
    cells = re.findall(r"<td[^>]*>(gene \d+)</td>", part)
    assert cells[: len(rows)] == list(rows.feature)


def test_features_in_groups_and_trees_have_sections(fit, tmp_path):
    counts, model = fit
    found = nmfscale.features_by_group(model, counts, np.arange(120) % 2 + 2001, shape=1)
    trees = (
        nmfscale.topic_hierarchy(model),
        nmfscale.topic_hierarchy([model.components_[:2], model]),
    )
    page = written(tmp_path, model, results=[found, *trees])
    part = page.text[page.text.index("Features by group</h2>") :]
    n_rows = sum(len(found.leading(k, 10)) for k in range(3))
    assert n_rows > 0
    part = part[: part.index("Topics of topics</h2>")]
    assert len(re.findall(r"<td[^>]*>gene \d+</td>", part)) == n_rows
    assert "relative to 2001" in part and "% in 2002" in part
    tree = page.text[page.text.index("Topics of topics</h2>") :]
    assert f"<td>{1 - trees[0].linkage[-1, 2]:.2f}</td>" in re.sub(r"<td[^>]*>", "<td>", tree)
    levels = tree[tree.index("Topics of several fits</h2>") :]
    assert f"{trees[1].similarity[2]:.2f}" in levels
    assert page.text.count("tree chart") >= 2


def test_coherence_has_a_section(fit, tmp_path):
    counts, model = fit
    found = nmfscale.coherence(model, counts, n_top=5)
    lists = nmfscale.coherence({"mine": ["gene 1", "gene 2"]}, counts)
    page = written(tmp_path, model, results=[found, lists])
    parts = page.text.split("Coherence</h2>")[1], page.text.split("Coherence (2)</h2>")[1]
    for k in range(3):
        assert f">{found.coherence[k]:.3f}</td>" in parts[0]
        worst = found.of_words[k].argmin()
        assert f"{found.words[k][worst]} {found.of_words[k][worst]:.2f}" in parts[0]
    assert "mine" in parts[1] and f">{lists.coherence[0]:.3f}</td>" in parts[1]


def test_groups_are_matched_by_name(fit, tmp_path):
    import pandas as pd

    _, model = fit
    names = pd.Index([f"cell {i}" for i in range(120)])
    obs = pd.DataFrame({"side": np.repeat(["a", "b"], 60), "n": range(120)}, index=names)
    in_order = written(tmp_path, model, groups=obs).data["structure"]["orders"]
    assert written(tmp_path, model, groups=obs[::-1]).data["structure"]["orders"] == in_order
    assert [each["name"] for each in in_order] == ["side", "n", "no groups"]
    with pytest.raises(ValueError, match="groups\\['side'\\] has no entry for 1 names"):
        written(tmp_path, model, groups=obs[1:])


def test_names_cannot_change_the_page(tmp_path):
    counts, _ = nmfscale.datasets.simulate_topic_counts(120, 30, 3, random_state=0)
    names = [f"</script><img src=x onerror=alert({j})>" for j in range(30)]
    model = nmfscale.TopicModel(3, random_state=0).fit(named(counts, names))
    model.topic_names_ = np.array(["<b>one", "two & three", "'four\""], object)
    groups = {"<u>x": ["<u>x"] * 120, "trailing ": range(120), "trailing": ["$$a$$"] * 120}
    page = written(tmp_path, model, title="<i>title", groups=groups)
    # options have values: browsers drop spaces of their texts
    assert page.values[:4] == ["0", "1", "2", "3"]
    assert [each["name"] for each in page.data["structure"]["orders"]] == [*groups, "no groups"]
    assert page.headings[0] == "<i>title"
    assert not {"img", "b", "i", "u"}.intersection(page.tags)
    assert page.data["topics"] == list(model.topic_names_)
    assert all(re.fullmatch(r"#[\w-]+", each) for each in page.addresses)
    assert {word for of in page.data["keywords"]["probability"] for word, _ in of} <= set(names)


def test_fits_without_samples_names_or_distances(tmp_path):
    counts, _ = nmfscale.datasets.simulate_topic_counts(120, 30, 3, random_state=0)
    batches = nmfscale.LDA(3, random_state=0).partial_fit(counts)
    page = written(tmp_path, batches)
    assert "Structure" not in page.headings and "structure" not in page.data
    with pytest.raises(ValueError, match="fitted in batches"):
        written(tmp_path, batches, groups=["a"] * 120)
    for n_components in (1, 2):
        model = nmfscale.PoissonNMF(n_components, random_state=0).fit(counts)
        assert written(tmp_path, model).data["features"][0].startswith("feature ")


def test_samples_of_a_large_fit_are_a_subset(tmp_path):
    counts, _ = nmfscale.datasets.simulate_topic_counts(500, 20, 3, random_state=0)
    model = nmfscale.TopicModel(3, random_state=0).fit(counts)
    groups = ["small"] * 4 + ["large"] * 496
    drawn = written(tmp_path, model, groups=groups, max_samples=100).data["structure"]
    assert 95 <= len(drawn["names"]) <= 105
    assert {f"sample {i}" for i in range(4)} <= set(drawn["names"])


def test_map_keeps_distances():
    # two pairs of topics: pairs are far apart, members of a pair are close
    near = np.array([[8, 2, 0, 0], [7, 3, 0, 0], [0, 0, 8, 2], [0, 0, 7, 3]]) / 10
    places = topic_map(near)
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    assert distances[0, 1] < 0.2 * distances[0, 2]
    # disjoint topics are at the largest distance, the square root of log 2
    np.testing.assert_allclose(np.ptp(topic_map(np.eye(2))[:, 0]), np.sqrt(np.log(2)))


def test_refusals_come_before_any_work(fit, tmp_path, monkeypatch):
    counts, model = fit
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        nmfscale.write_report(model, path)
    with pytest.raises(ValueError, match="results has 3, a int"):
        nmfscale.write_report(model, path, overwrite=True, results=[3])
    with pytest.raises(NotFittedError):
        nmfscale.write_report(nmfscale.TopicModel(), path, overwrite=True)
    other = nmfscale.TopicModel(2, random_state=0).fit(counts)
    wrong = nmfscale.differential_features(other, counts, split=None)
    with pytest.raises(ValueError, match="of 2 topics do not belong to a model of 3"):
        nmfscale.write_report(model, path, overwrite=True, results=[wrong])
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(ImportError, match=r"pip install 'nmfscale\[report\]'"):
        nmfscale.write_report(model, path, overwrite=True)
    assert path.read_text() == "mine"


def test_package_has_the_files_of_the_page():
    folder = Path(nmfscale.__file__).parent / "report"
    assert {each.suffix for each in folder.glob("page.*")} >= {".html", ".css", ".js", ".py"}


def test_a_section_on_seeds(fit, tmp_path):
    counts, _ = fit
    seeds = {"<one>": ["gene 3", "gene 4"], "two": ["gene 8"]}
    model = nmfscale.TopicModel(3, seeds=seeds, random_state=0).fit(counts)
    page = written(tmp_path, model, results=[nmfscale.seed_shares(model)])
    assert "Seeds" in page.headings and "SeedShares" not in page.headings
    share = nmfscale.seed_shares(model).columns()["share"]
    assert f"gene 8 {share[2]:.0%}" in page.text and "<one>" not in page.text
    model.seeds = tmp_path / "gone.gmt"
    assert "Seeds" not in written(tmp_path, model).headings
