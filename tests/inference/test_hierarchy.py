"""Topics of topics: families of a simulated truth, SciPy's cuts, names, merges and the drawing."""

import numpy as np
import pandas as pd
import pytest

import nmfscale
from nmfscale import topic_hierarchy

RNG = np.random.default_rng(0)
# Three families of topics: each topic has half of its family's words, and half of its own.
FAMILIES = np.repeat(RNG.dirichlet(np.full(60, 0.05), 3), [2, 3, 2], axis=0)
TOPICS = pd.DataFrame(0.6 * FAMILIES + 0.4 * RNG.dirichlet(np.full(60, 0.05), 7))
TOPICS.columns = [f"word {j}" for j in range(60)]
FAMILY = [[0, 1], [2, 3, 4], [5, 6]]


def test_families_of_a_simulated_truth():
    shares = RNG.dirichlet(np.full(7, 0.1), 400)
    X = pd.DataFrame(RNG.poisson(120 * shares @ TOPICS.to_numpy()), columns=TOPICS.columns)
    model = nmfscale.TopicModel(7, random_state=0).fit(X)
    match = nmfscale.match_topics(TOPICS, model)
    assert match.similarity.min() > 0.9
    tree = topic_hierarchy(model.reorder_topics(match.order))
    assert [*tree.cut(3).values()] == FAMILY
    merged = model.reorder_topics(match.order).merge_topics(tree.cut(3))
    assert merged.topic_names_.tolist() == [*tree.cut(3)]


def test_cuts_names_and_tables(tmp_path):
    tree = topic_hierarchy(TOPICS.rename(index="t{}".format))
    for n in range(1, 8):
        groups = tree.cut(n)
        members = {k: frozenset([k]) for k in range(7)}
        for new, (one, other, *_) in enumerate(tree.linkage[: 7 - n], start=7):
            members[new] = members.pop(int(one)) | members.pop(int(other))
        assert {frozenset(topics) for topics in groups.values()} == set(members.values())
    assert [*tree.cut(7)] == [f"t{k}" for k in range(7)]
    table = tree.to_frame()
    assert table["parent"].isna().tolist() == [False] * 12 + [True]
    root = table.iloc[-1]
    assert (root.n_topics, root.topics) == (7, "0 1 2 3 4 5 6")
    for node in table.itertuples():
        parts = table[table.parent == node.node]
        if len(parts):
            assert parts.n_topics.sum() == node.n_topics
            assert parts.similarity.min() >= node.similarity - 1e-12
    match = nmfscale.match_topics(TOPICS, TOPICS, metric="bhattacharyya")
    parts = [[*map(int, topics.split())] for topics in table[table.parent == 12].topics]
    assert root.similarity == pytest.approx(match.similarities[np.ix_(*parts)].mean())
    tree.save(tmp_path / "tree.h5")
    assert repr(nmfscale.load_result(tmp_path / "tree.h5")) == repr(tree)
    assert len(repr(tree).splitlines()) == 13
    unnamed = topic_hierarchy(TOPICS.to_numpy())
    assert [*unnamed.cut(3)] == ["group 0", "group 1", "group 2"]
    for wrong in (0, 8, "3"):
        with pytest.raises(ValueError, match="a number from 1 to 7 is needed"):
            tree.cut(wrong)
    with pytest.raises(ValueError, match="model has one topic"):
        topic_hierarchy([[1.0, 2.0]])


def test_what_is_drawn():
    pytest.importorskip("matplotlib")
    tree = topic_hierarchy(TOPICS)
    ax = nmfscale.pl.hierarchy_plot(tree, n_groups=3)
    assert len(ax.lines) == 7
    assert sorted(label.get_text() for label in ax.get_yticklabels()) == sorted(tree.labels)
    assert [text.get_text().strip() for text in ax.texts] == list(tree.words[7:])
    line = ax.lines[-1].get_xdata()[0]
    assert 1 - tree.linkage[-2, 2] < line < 1 - tree.linkage[-3, 2]
    with pytest.raises(ValueError, match="n_groups=9: a number from 2 to 7"):
        nmfscale.pl.hierarchy_plot(tree, 9)
    with pytest.raises(ValueError, match="the result of nmfscale.topic_hierarchy is needed"):
        nmfscale.pl.hierarchy_plot(TOPICS)


# Three super-topics, each of which consists of two or three of the topics.
COARSE = pd.DataFrame([TOPICS.iloc[family].mean() for family in FAMILY])


def test_the_parents_of_topics_of_a_larger_fit_are_the_simulated_ones(tmp_path):
    """The larger fit has its features in another order, and one of them has names of its topics."""
    shares = RNG.dirichlet(np.full(7, 0.1), 500)
    shares[: 500 // 2] = 0.5 * shares[: 500 // 2] + 0.5 / 7
    X = pd.DataFrame(RNG.poisson(150 * shares @ TOPICS.to_numpy()), columns=TOPICS.columns)
    fine = nmfscale.TopicModel(7, random_state=0).fit(X.iloc[:, ::-1])
    fine = fine.reorder_topics(nmfscale.match_topics(TOPICS, fine).order)
    fine = fine.rename_topics([f"sub {k}" for k in range(7)])
    tree = topic_hierarchy({"coarse": COARSE, "fine": fine})
    assert [*tree.cut(3).values()] == FAMILY
    merged = fine.merge_topics(tree.cut(3))
    assert merged.topic_names_.tolist() == [*tree.cut(3)]
    table = tree.to_frame()
    assert table.parent.tolist()[3:] == [0, 0, 1, 1, 1, 2, 2] and table.parent[:3].isna().all()
    assert table.n_children.tolist()[:3] == [2, 3, 2] and table.n_children[3:].isna().all()
    match = nmfscale.match_topics(COARSE, fine, metric="bhattacharyya").similarities
    np.testing.assert_array_equal(table.similarity[3:], match.max(axis=0))
    np.testing.assert_array_equal(table.next_similarity[3:], np.sort(match, axis=0)[-2])
    amounts = fine.loadings_ * fine.sample_totals_[:, None]
    np.testing.assert_allclose(table.share[3:], amounts.sum(axis=0) / amounts.sum())
    np.testing.assert_allclose(table.share[:3], 1 / 3)
    tree.save(tmp_path / "tree.h5")
    assert repr(nmfscale.load_result(tmp_path / "tree.h5")) == repr(tree)
    assert "sub 4" in repr(tree).splitlines()[6]


def test_levels_without_descendants_and_wrong_orders():
    # the second topic of the first fit has no child, and its place in a drawing is its own
    fits = [
        np.eye(3)[:2],
        [[8, 1, 1], [5, 1, 3], [1, 0, 9]],
        [[9, 1, 1], [1, 0, 8], [1, 1, 7], [0, 0, 5]],
    ]
    tree = topic_hierarchy(fits)
    assert tree.parents.tolist() == [-1, -1, 0, 0, 0, 2, 4, 4, 4]
    assert tree.cut(2) == {"topic 0": [0, 1, 2, 3]}
    assert tree.cut(3) == {"topic 0": [0], "topic 2": [1, 2, 3]}
    assert tree.cut(4) == {f"topic {k}": [k] for k in range(4)}
    assert tree.heights.tolist() == [4 / 3, 5.0, 0.0, 1.0, 3.0, 0.0, 2.0, 3.0, 4.0]
    for wrong, complaint in (
        (fits[::-1], "fit 0 has 4 topics and fit 1 after it 3: pass fits in the order"),
        ([TOPICS], "model has 1 fits: a tree of fits needs two"),
        ([TOPICS, TOPICS], "which rise"),
        ([np.eye(2), np.eye(3)], "fit|features"),
    ):
        with pytest.raises(ValueError, match=complaint):
            topic_hierarchy(wrong)
    with pytest.raises(ValueError, match="a number of topics of the fits is needed, 2, 3, 4"):
        tree.cut(5)


def test_what_is_drawn_of_levels():
    pytest.importorskip("matplotlib")
    tree = topic_hierarchy([COARSE, TOPICS])
    ax = nmfscale.pl.hierarchy_plot(tree)
    assert [line.get_xdata().tolist() for line in ax.lines] == [[0, 1]] * 7
    heights = {line.get_ydata()[0] for line in ax.lines}
    assert heights == set(tree.heights[:3])
    assert [text.get_text() for text in ax.texts] == tree.labels
    assert [text.get_text() for text in ax.get_xticklabels()] == [
        "fit 0\n3 topics",
        "fit 1\n7 topics",
    ]
    with pytest.raises(ValueError, match="n_groups=3: it cuts trees of one fit only"):
        nmfscale.pl.hierarchy_plot(tree, 3)


def test_trees_of_objects():
    anndata = pytest.importorskip("anndata")
    shares = RNG.dirichlet(np.full(7, 0.1), 60)
    X = RNG.poisson(50 * shares @ TOPICS.to_numpy())
    adata = anndata.AnnData(X.astype(float), var=pd.DataFrame(index=TOPICS.columns))
    for key, K in (("few", 2), ("many", 4)):
        nmfscale.tl.topics(adata, K, key_added=key, random_state=0, tol=0.01)
    nmfscale.tl.topic_hierarchy(adata, key="many", metric="cosine")
    nmfscale.tl.topic_hierarchy(adata, key=["few", "many"])
    models = {key: nmfscale.get.model(adata, key) for key in ("few", "many")}
    one, several = (
        nmfscale.get.result(adata, "topic_hierarchy", key="many"),
        nmfscale.get.result(adata, "topic_levels"),
    )
    assert repr(one) == repr(topic_hierarchy(models["many"], metric="cosine"))
    assert repr(several) == repr(topic_hierarchy(models))
