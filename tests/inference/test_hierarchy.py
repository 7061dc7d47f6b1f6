"""Topics of topics: families of a simulated truth, SciPy's cuts, names, merges and the drawing."""

import numpy as np
import pandas as pd
import pytest
from scipy.cluster.hierarchy import fcluster

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
        labels = fcluster(tree.linkage, n, "maxclust")
        same = {frozenset(np.flatnonzero(labels == label)) for label in labels}
        assert {frozenset(topics) for topics in groups.values()} == same
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
