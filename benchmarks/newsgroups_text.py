"""20 Newsgroups as prepared by Haddock et al.: five classes of thirteen groups, TF-IDF.

Their split: from each class, as many documents as the smallest class has are drawn by
``random.sample`` after ``random.seed(1)``. A fifth of these is the test set. A quarter of the rest
is the validation set, which joins the training set once parameters are chosen.
"""

from __future__ import annotations

import codecs
import pickle
import random
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import fetch_20newsgroups, load_files
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.utils import Bunch

CLASSES = {
    "computers": ["comp.graphics", "comp.sys.mac.hardware", "comp.windows.x"],
    "sciences": ["sci.crypt", "sci.electronics", "sci.space"],
    "politics": ["talk.politics.guns", "talk.politics.mideast"],
    "religion": ["alt.atheism", "soc.religion.christian"],
    "recreation": ["rec.autos", "rec.sport.baseball", "rec.sport.hockey"],
}
# English stop words of NLTK 3.5.
STOP_WORDS = """
i me my myself we our ours ourselves you you're you've you'll you'd your yours yourself yourselves
he him his himself she she's her hers herself it it's its itself they them their theirs themselves
what which who whom this that that'll these those am is are was were be been being have has had
having do does did doing a an the and but if or because as until while of at by for with about
against between into through during before after above below to from up down in out on off over
under again further then once here there when where why how all any both each few more most other
some such no nor not only own same so than too very s t can will just don don't should should've now
d ll m o re ve y ain aren aren't couldn couldn't didn didn't doesn doesn't hadn hadn't hasn hasn't
haven haven't isn isn't ma mightn mightn't mustn mustn't needn needn't shan shan't shouldn shouldn't
wasn wasn't weren weren't won won't wouldn wouldn't
""".split()
assert len(STOP_WORDS) == 179


class Split(NamedTuple):
    """TF-IDF of training and test documents, their classes, groups of all documents, and words."""

    train: object
    train_labels: np.ndarray
    test: object
    test_labels: np.ndarray
    groups: np.ndarray
    words: np.ndarray


def texts(archive: Path) -> dict[str, tuple[list[str], np.ndarray]]:
    """Return documents and groups of each class, in the order of scikit-learn."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        parts = {
            part: load_files(f"{folder}/20news-bydate-{part}", encoding="latin1")
            for part in ("train", "test")
        }
        found = {}
        for name, groups in CLASSES.items():
            # scikit-learn's own cache, so that it downloads nothing; it strips all that is in it
            of_class = {part: of_groups(each, groups) for part, each in parts.items()}
            cached = codecs.encode(pickle.dumps(of_class), "zlib_codec")
            Path(folder, "20news-bydate_py3.pkz").write_bytes(cached)
            data = fetch_20newsgroups(
                data_home=folder, subset="all", categories=groups, shuffle=True, random_state=1,
                remove=("headers", "footers", "quotes"), download_if_missing=False,
            )  # fmt: skip
            found[name] = data.data, np.array(data.target_names)[data.target]
    return found


def of_groups(data: Bunch, groups: list[str]) -> Bunch:
    """Return the documents of some groups, in their order."""
    numbers = [data.target_names.index(name) for name in groups]
    kept = np.flatnonzero(np.isin(data.target, numbers))
    return Bunch(
        data=[data.data[i] for i in kept], target=data.target[kept], DESCR="",
        filenames=data.filenames[kept], target_names=data.target_names,
    )  # fmt: skip


def split(
    documents: dict[str, tuple[list[str], np.ndarray]], seed: int | None = None, *,
    validation: bool = False,
) -> Split:  # fmt: skip
    """Return the authors' split, or a different split for each seed.

    With `validation`, the validation set takes the place of the test set, and is not in the
    training set.
    """
    draw, cut = random.Random(1 if seed is None else seed), 42 if seed is None else seed
    size = min(len(texts) for texts, _ in documents.values())
    parts: dict[str, list] = {name: [] for name in ("train", "test", "val")}
    for label, (found, groups) in enumerate(documents.values()):
        rows = draw.sample(list(zip(found, groups, [label] * len(found), strict=True)), size)
        rest, test = train_test_split(rows, test_size=0.2, random_state=cut)
        train, val = train_test_split(rest, test_size=0.25, random_state=cut)
        for part, more in (("train", train), ("test", test), ("val", val)):
            parts[part] += more
    train, test = parts["train"] + parts["val"], parts["test"]
    if validation:
        train, test = parts["train"], parts["val"]
    vectorizer = TfidfVectorizer(
        max_features=5000, min_df=5, max_df=0.7, token_pattern="[a-zA-Z]+", stop_words=STOP_WORDS
    )
    X = vectorizer.fit_transform([text for text, *_ in train])
    labels = [np.array([row[2] for row in rows]) for rows in (train, test)]
    groups = np.array([row[1] for row in train + test])
    new = vectorizer.transform([text for text, *_ in test])
    return Split(X, labels[0], new, labels[1], groups, vectorizer.get_feature_names_out())
