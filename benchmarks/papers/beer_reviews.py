"""Count the words of reviews of Canadian beers: beer_canada.npz for phelan_beers.py.

    git clone https://github.com/LwPol/ML-Project---wine-and-beer-reviews
    python benchmarks/papers/beer_reviews.py ML-Project---wine-and-beer-reviews FOLDER

Rows of the csv files in beer_reviews_folder are ``name;place;style;brewery;review``. A sample is a
beer, with all its reviews in English; the region and the brewery are its group and its unit. The
files are kept out of this repository, because the licence of the reviews is not clear. FOLDER gets
beer_canada.npz and beer_canada_meta.json.gz; it is the folder for NMFSCALE_DATA.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import html
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

REGIONS = {
    "Newfoundland": "Atlantic", "Nova Scotia": "Atlantic", "New Brunswick": "Atlantic",
    "Prince Edward Island": "Atlantic", "Quebec": "Quebec", "Ontario": "Ontario",
    "Manitoba": "Prairies", "Saskatchewan": "Prairies", "Alberta": "Prairies",
    "British Columbia": "BC",
}  # fmt: skip
CONTRACTIONS = frozenset(
    "ain aren couldn didn doesn don hadn haven isn ll re ve wasn won wouldn mr".split()
)
# Frequent words of other languages that reviews of American and English beers also have.
FOREIGN = frozenset(
    """
    de la le les et en un une du des est pas que qui dans sur avec pour au aux ce il der die das und
    ist mit von den dem ein eine nicht auf im zu el los las con una por del se es het van een met og
    av til som med det di da che per jest na si sa
""".split()
)
# A review is English if this share of its words is that frequent in American and English reviews.
SHARE, FREQUENT, LEAST = 0.6, 100, 10
UNREADABLE = "\N{REPLACEMENT CHARACTER}"
WORD = re.compile(r"(?<![a-z0-9])[a-z]{2,}(?![a-z0-9])")


class Beer(NamedTuple):
    """What identifies a beer."""

    name: str
    place: str
    style: str
    brewery: str


def reviews(folder: Path) -> Iterator[tuple[Beer, str]]:
    """Yield all reviews, each once."""
    csv.field_size_limit(1 << 24)
    seen = set()
    for path in sorted(folder.glob("beer_reviews*.csv")):
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.reader(file, delimiter=";"):
                found = tuple(" ".join(cell.split()) for cell in row[:5])
                if len(row) == 5 and found not in seen and re.search("[a-zA-Z]", found[4]):
                    seen.add(found)
                    yield Beer(*found[:4]), found[4]


def words_of(text: str) -> list[str]:
    """Return the words of a text: lower case, without accents."""
    plain = unicodedata.normalize("NFKD", html.unescape(text).lower())
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return WORD.findall(plain)


def mended(cells: set[str]) -> dict[str, str]:
    """Return the spelling of cells with unreadable letters: that of the only cell that fits."""
    found = {}
    for cell in cells:
        if UNREADABLE in cell:
            fits = re.compile(re.escape(cell).replace(UNREADABLE, "."))
            others = {each for each in cells if UNREADABLE not in each and fits.fullmatch(each)}
            found[cell] = others.pop() if len(others) == 1 else cell
    return found


def counted(folder: Path) -> dict[Beer, Counter]:
    """Return the words of the English reviews of each Canadian beer."""
    usual: Counter = Counter()
    canadian = []
    for beer, text in reviews(folder):
        country, words = beer.place.split(",")[-1].strip(), words_of(text)
        if country in ("United States", "England"):
            usual.update(words)
        elif country == "Canada":
            canadian.append((beer, words))
    english = {word for word, n in usual.items() if n >= FREQUENT} - FOREIGN
    spellings = [mended(set(cells)) for cells in zip(*(beer for beer, _ in canadian), strict=True)]
    found: dict[Beer, Counter] = {}
    for given, words in canadian:
        beer = Beer(*(known.get(cell, cell) for known, cell in zip(spellings, given, strict=True)))
        if words and sum(word in english for word in words) >= SHARE * len(words):
            found.setdefault(beer, Counter()).update(words)
    return found


def table(found: dict[Beer, Counter]) -> tuple[sp.csr_array, dict[str, list]]:
    """Return counts and labels; rare words, stop words, and beers without words are left out."""
    kept = [
        (REGIONS[province], beer, words)
        for beer, words in found.items()
        if len(places := beer.place.split(",")) > 1 and (province := places[-2].strip()) in REGIONS
    ]
    kept.sort(key=lambda each: (each[0], *each[1]))
    totals: Counter = Counter()
    for _, _, words in kept:
        totals.update(words)
    left_out = ENGLISH_STOP_WORDS | CONTRACTIONS
    cols = sorted(word for word, n in totals.items() if n >= LEAST and word not in left_out)
    number = {word: j for j, word in enumerate(cols)}
    rows = [{number[w]: n for w, n in words.items() if w in number} for _, _, words in kept]
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.array([j for row in rows for j in row], np.int32)
    data = np.array([n for row in rows for n in row.values()], np.int32)
    counts = sp.csr_array((data, indices, indptr), (len(rows), len(cols)))
    counts.sort_indices()
    full = np.flatnonzero(np.diff(indptr))
    beers = [kept[i] for i in full]
    labels = {
        "rows": [beer.name for _, beer, _ in beers],
        "row_label": [region for region, _, _ in beers],
        "row_brewery": [beer.brewery for _, beer, _ in beers],
        "cols": cols,
    }
    return counts[full], labels


def main() -> None:
    """Run the script from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="the cloned repository")
    parser.add_argument("folder", type=Path, help="where the files are written")
    options = parser.parse_args()
    csvs = options.source / "beer_reviews_folder"
    if not csvs.is_dir():
        sys.exit(f"{csvs} is not a folder: clone the repository that --help names")
    counts, labels = table(counted(csvs))
    options.folder.mkdir(parents=True, exist_ok=True)
    sp.save_npz(options.folder / "beer_canada.npz", counts)
    with gzip.open(options.folder / "beer_canada_meta.json.gz", "wt") as file:
        json.dump(labels, file)
    n, m = counts.shape
    print(f"{n:,} beers of {len(set(labels['row_brewery']))} breweries, {m:,} words, "
          f"{counts.sum():,} in all")  # fmt: skip


if __name__ == "__main__":
    main()
