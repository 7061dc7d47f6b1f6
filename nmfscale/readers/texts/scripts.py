"""Tokens that are not words: clauses of languages without spaces, words cut at vowel signs."""

from __future__ import annotations

import re
from collections import Counter
from unicodedata import category

# Chinese characters and Japanese kana.
_WITHOUT_SPACES = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]"
)
# Scripts of India, and Thai, Lao, Burmese and Khmer: vowel signs are marks, no letters.
_WITH_MARKS = re.compile("[\u0900-\u0eff\u1000-\u109f\u1780-\u17ff]")
# Smallest share of all tokens from which a script matters.
_SHARE = 0.1
# Characters of a word on average. Words of segmenters have 1.5 to 3, clauses 6 to 12.
_LONGEST = 4.5


class Scripts:
    """Tokens in scripts that need a tokenizer of their own, counted while texts are read."""

    def __init__(self) -> None:
        self.n_tokens = self._n_characters = self._n_clauses = self._n_marked = self._n_cut = 0

    def add(self, words: Counter[str]) -> None:
        """Add the tokens of a text; n-grams of several tokens have no part in it."""
        self.n_tokens += words.total()
        for word, n in words.items():
            if word.isascii() or " " in word:
                continue
            if _WITHOUT_SPACES.search(word):
                self._n_clauses += n
                self._n_characters += n * len(word)
            elif _WITH_MARKS.search(word):
                self._n_cut += n
                self._n_marked += n * any(category(letter)[0] == "M" for letter in word)

    def notes(self) -> list[str]:
        """Return a sentence for each kind of token that is not a word."""
        notes = []
        length = self._n_characters / max(1, self._n_clauses)
        if self._n_clauses >= _SHARE * self.n_tokens > 0 and length > _LONGEST:
            notes.append(
                f"{self._n_clauses:,} of {self.n_tokens:,} words are {length:.1f} Chinese or "
                "Japanese characters long on average, which is the length of clauses: these "
                "languages have no spaces between words. Separate the words first, such as by "
                "jieba or fugashi, and pass a list of words for each text, or texts with spaces "
                "between the words (page 'Languages' of the documentation)."
            )
        if self._n_cut >= _SHARE * self.n_tokens > 0 and not self._n_marked:
            notes.append(
                f"{self._n_cut:,} of {self.n_tokens:,} words are of a script whose vowel signs the "
                "vectorizer takes as the end of a word (Hindi, Thai and others): pass lists of "
                "words, or CountVectorizer(token_pattern=r'\\S+') for texts with spaces between "
                "the words (page 'Languages' of the documentation)."
            )
        return notes
