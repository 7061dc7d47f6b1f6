"""The vectorizer of scikit-learn that says what words are: its checks, and its function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...counts.names import names_of, shown

Analyzer = Callable[[str | Sequence[str]], list[str]]


def checked_vectorizer(vectorizer: Any, vocabulary: Any) -> tuple[Any, list[str] | None]:
    """Return a copy of the options, and the words of a given vocabulary, or None."""
    from sklearn.base import clone
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    if not isinstance(vectorizer, CountVectorizer) or isinstance(vectorizer, TfidfVectorizer):
        raise TypeError(
            f"vectorizer is {shown(vectorizer)}: scikit-learn's CountVectorizer is needed, because "
            "models are fitted to counts of named words."
        )
    options = clone(vectorizer).set_params(input="content")
    options._validate_params()
    options._validate_ngram_range()
    words: list[str] | None = None
    if vocabulary is not None:
        names = vocabulary
        if hasattr(vocabulary, "shape") or hasattr(vocabulary, "get_params"):
            names = names_of(vocabulary, 1)
        if names is None or isinstance(names, str):
            raise ValueError(
                f"vocabulary is {shown(vocabulary)}, which has no names of features: a list of "
                "words, or a model that was fitted to counts with names, is needed."
            )
        words = [str(word) for word in names]
    elif hasattr(vectorizer, "vocabulary_") or vectorizer.vocabulary is not None:
        words = vectorizer.get_feature_names_out().tolist()
    if words is not None:
        _check_words(words, options)
    return options, words


def analyzer_of(options: Any) -> Analyzer:
    """Return the function that makes features of a text, or of the list of its words."""
    from sklearn.base import clone

    of_text = options.build_analyzer()
    if callable(options.analyzer):
        return of_text
    if options.analyzer != "word":
        return lambda text: of_text(text if isinstance(text, str) else " ".join(text))
    as_they_are: dict[str, Any] = dict.fromkeys(("preprocessor", "tokenizer"), _words)
    as_they_are |= {"lowercase": False, "strip_accents": None, "token_pattern": None}
    of_words = clone(options).set_params(**as_they_are).build_analyzer()
    return lambda text: (of_text if isinstance(text, str) else of_words)(text)


def words_in_order(vectorizer: Any) -> tuple[tuple[str, str], Analyzer]:
    """Return the encoding of texts, and the function that makes the single words of a text.

    Those of `vectorizer` or, if it is None, of ``CountVectorizer()``.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    options = checked_vectorizer(CountVectorizer() if vectorizer is None else vectorizer, None)[0]
    if options.analyzer != "word":
        raise ValueError(
            f"the vectorizer has analyzer={shown(options.analyzer)}: windows are of words, "
            "analyzer='word'."
        )
    decoding = options.encoding, options.decode_error
    return decoding, analyzer_of(options.set_params(ngram_range=(1, 1), vocabulary=None))


def _words(words: str | Sequence[str]) -> list[str]:
    """Return words as they are; scikit-learn also passes single stop words."""
    return [words] if isinstance(words, str) else list(words)


def _check_words(words: list[str], options: Any) -> None:
    """Refuse words that occur twice, or that the vectorizer cannot find in texts."""
    if not words or len(set(words)) < len(words):
        raise ValueError(f"vocabulary has {len(set(words))} different words of {len(words)}.")
    longest = max(words, key=lambda word: word.count(" "))
    n_tokens = longest.count(" ") + 1
    if options.analyzer == "word" and n_tokens > options.ngram_range[1]:
        raise ValueError(
            f"vocabulary has {longest!r}, of {n_tokens} tokens, and the vectorizer has "
            f"ngram_range={options.ngram_range}: give it the ngram_range of the fit."
        )
