"""The command that counts the words of texts."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from .files import output
from .messages import COLLAPSED, in_shell_words, say
from .option_groups import COUNT, PATH, add_run_options, explain, size

TEXTS = "FOLDER|FILE[:COLUMN]"
WHAT_TEXTS = (
    "a folder of texts (if they are in subfolders, these are groups); a column of a table, "
    "FILE.csv:COLUMN or .tsv; a key of JSON lines, FILE.jsonl:KEY; or FILE.txt, a text on each "
    "line; all also with .gz"
)


def text(arguments: argparse.Namespace) -> int:
    """Count the words of texts, and write a packed store."""
    source = arguments.input
    # FILE:COLUMN is no path: the part before a colon may be the file to protect
    inputs = [source, source.rpartition(":")[0] or None, arguments.vocabulary]
    target = output(arguments, ("", ".nmf"), inputs)
    from ..counts.short_samples import advice, are_short
    from ..counts.sizes import readable
    from ..engine.threads import resolve_threads
    from ..readers.text_counts import text_counts

    vocabulary = None if arguments.vocabulary is None else _vocabulary(arguments.vocabulary)
    stored = text_counts(
        source, target, vectorizer=vectorizer_of(arguments), vocabulary=vocabulary,
        names=arguments.names, groups=arguments.groups, pattern=arguments.pattern,
        memory_limit=arguments.memory_limit, n_threads=resolve_threads(arguments.threads),
        overwrite=arguments.force, verbose=not arguments.quiet,
    )  # fmt: skip
    say(in_shell_words(stored.report()))
    say(f"store               {target}: {readable(target.stat().st_size)}")
    if vocabulary is None:
        how = ""
        if are_short(stored):
            say(f"short texts         {in_shell_words(advice(stored))}")
            how = COLLAPSED
        say(f"next                nmfscale fit {target} -k 10{how} -o model.h5")
    else:
        say(f"next                nmfscale transform MODEL.h5 {target} -o topics.csv")
    return 0


def vectorizer_of(arguments: argparse.Namespace) -> Any:
    """Return the CountVectorizer of the options."""
    from sklearn.feature_extraction.text import CountVectorizer

    options = {name: getattr(arguments, name, None) for name in _OPTIONS}
    parameters = {name: value for name, value in options.items() if value is not None}
    if arguments.stop_words is not None:
        parameters["stop_words"] = _stop_words(arguments.stop_words)
    return CountVectorizer(**parameters)


_OPTIONS = (
    "ngram_range", "min_df", "max_df", "max_features", "token_pattern", "lowercase", "encoding",
    "decode_error",
)  # fmt: skip


def add_text_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    explain(
        command,
        "Words are found and counted by scikit-learn's CountVectorizer, whose options have the\n"
        "same names here. Texts are read twice, one after the other: they may be larger than\n"
        "memory. For new texts, give the model as --vocabulary, and the other options of the fit.",
    )
    add = command.add_argument
    add("input", type=PATH, metavar=TEXTS, help=WHAT_TEXTS)
    add("output", type=PATH, metavar="OUT.nmf", help="the packed store to write")
    add("--names", metavar="COLUMN", help="column with names of the texts")
    add("--groups", metavar="COLUMN", help="column with groups of the texts, such as authors")
    what = "only files of the folder with such names, as '*.txt'"
    add("--pattern", metavar="PATTERN", help=what)
    what = "words in fewer texts are left out; a share of the texts if below 1 (default: 2)"
    add("--min-df", type=_limit, default=2, metavar="N|X", help=what)
    what = "words in more texts are left out; a share of the texts with a point (default: 0.5)"
    add("--max-df", type=_limit, default=0.5, metavar="N|X", help=what)
    what = "keep at most N words, the most frequent ones"
    add("--max-features", type=COUNT, metavar="N", help=what)
    what = "such as 1-2: single words and pairs of neighbours (default: 1)"
    add("--ngram-range", type=_ngrams, metavar="N[-N]", help=what)
    add_words(command)
    what = (
        "count the words of this model, of a packed store, or of a file with a word on each line; "
        "other words are reported"
    )
    add("--vocabulary", type=PATH, metavar="MODEL|FILE", help=what)
    what = "such as 2GB: words that need more than a quarter of it are sorted on disk"
    add("--memory-limit", type=size, metavar="SIZE", help=what)
    add_run_options(command)


def add_words(command: argparse.ArgumentParser) -> None:
    """Add the options that say what the words of texts are."""
    add = command.add_argument
    what = "'english', or a file with a word on each line: words to leave out (default: none)"
    add("--stop-words", type=PATH, metavar="WORDS", help=what)
    what = "regular expression of a word (default: two or more letters or digits)"
    add("--token-pattern", metavar="REGEX", help=what)
    add(
        "--lowercase", action=argparse.BooleanOptionalAction, default=True,
        help="whether words are converted to lower case (default: yes)",
    )  # fmt: skip
    add("--encoding", metavar="NAME", help="of the texts, such as latin-1 (default: utf-8)")
    what = "what to do about bytes that are not text in the encoding (default: strict, an error)"
    add("--decode-error", choices=("strict", "replace", "ignore"), help=what)


def _limit(argument: str) -> int | float:
    """Convert a number of texts, or a share of them, which has a decimal point."""
    try:
        limit: int | float = int(argument)
    except ValueError:
        limit = float(argument)
        if not 0 <= limit <= 1:
            raise argparse.ArgumentTypeError(
                f"{argument} is no share of the texts, 0 to 1"
            ) from None
    if limit < 0:
        raise argparse.ArgumentTypeError(f"{argument} is below 0")
    return limit


_limit.__name__ = "number"  # for argparse's message


def _ngrams(argument: str) -> tuple[int, int]:
    """Convert 1-2 or 2 to the lengths of the shortest and the longest n-gram."""
    try:
        low, high = (int(length) for length in (argument.split("-") * 2)[:2])
    except ValueError:
        low = high = 0
    if not 1 <= low <= high:
        raise argparse.ArgumentTypeError(f"{argument!r} is no range of lengths, such as 1-2")
    return low, high


def _stop_words(argument: str) -> str | list[str]:
    from ..readers.sources.name_files import lines_of

    return argument if argument == "english" else lines_of(Path(argument))


def _vocabulary(path: str) -> Any:
    """Return a model, a store, or a list of words."""
    from ..models.persistence import is_model_file, load_model
    from ..readers.sources.name_files import lines_of
    from ..storage.store import open_store

    if not os.path.exists(path):  # reading would retry for some time if the file is missing
        raise FileNotFoundError(f"--vocabulary: no such file: {path}")
    if is_model_file(path):
        return load_model(path)
    stored = open_store(path)
    return lines_of(Path(path)) if stored is None else stored
