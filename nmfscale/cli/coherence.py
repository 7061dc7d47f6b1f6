"""The command `coherence`: how well the words of topics, or of lists, belong together."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from .files import TEXT_TABLES, input_files, read_input
from .job import ARRAYS, Job, Outcome
from .option_groups import (
    COUNT,
    PATH,
    RESULT,
    TABLE,
    add_features,
    add_input,
    add_outputs,
    add_run_options,
    explain,
)
from .text import TEXTS, WHAT_TEXTS, add_words, vectorizer_of


def add_coherence_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    explain(
        command,
        "Words belong together if they are near each other in texts: within a window of words.\n"
        "In counts, which do not know the order of words, each sample is one window.",
    )
    add = command.add_argument
    what = "a model; or a text file, on each line the words of a topic, or NAME: and its words"
    add("topics", type=PATH, metavar="MODEL|LISTS.txt", help=what)
    add("--texts", type=PATH, metavar=TEXTS, help=WHAT_TEXTS)
    add_input(command, option="--counts")
    add_outputs(command, f"{TABLE}; {RESULT}")
    what = "table to write: a row for each topic, or for each word (default: %(default)s)"
    add("--table", choices=("topics", "words"), default="topics", help=what)
    what = "which coherence, by its name in gensim (default: %(default)s)"
    add("--measure", choices=("c_v", "c_npmi", "c_uci", "u_mass"), default="c_v", help=what)
    add_features(command, "number of leading features of each topic of a model")
    what = "words in a window of texts (default: 110, 10, 10, whole texts)"
    add("--window-size", type=COUNT, metavar="N", help=what)
    what = (
        "windows that have a word that occurs several times: all, or those of gensim 4, in which "
        "it leaves the window with its first occurrence (default: %(default)s)"
    )
    add("--windows", choices=("exact", "gensim"), default="exact", help=what)
    add_words(command)
    add_run_options(command)


def coherence(arguments: argparse.Namespace) -> int:
    """Measure the coherence of topics or lists of words."""
    if (arguments.texts is None) == (arguments.counts is None):
        arguments.usage("pass either --texts or --counts")
    arguments.input = arguments.counts
    files = [] if arguments.counts is None else input_files(arguments)
    job = Job(arguments, [arguments.topics, *files], (*TEXT_TABLES, *ARRAYS), draws=False)
    from ..inference.choice import coherence as of_words

    of_texts = arguments.texts is not None
    options: dict[str, Any] = {"window_size": arguments.window_size, "windows": arguments.windows}
    result = of_words.coherence(
        _topics(arguments.topics), None if of_texts else read_input(arguments),
        texts=arguments.texts, measure=arguments.measure, n_top=arguments.n_top,
        score=arguments.score, vectorizer=vectorizer_of(arguments) if of_texts else None,
        verbose=int(not arguments.quiet), **options,
    )  # fmt: skip
    return job.end(Outcome(result, str(result), lambda: result.columns(arguments.table)))


def _topics(path: str) -> Any:
    """Return a model, or lists of words by name."""
    from ..models.persistence import is_model_file, load_model
    from ..readers.sources.name_files import lines_of

    if not os.path.exists(path):  # reading would retry for some time if the file is missing
        raise FileNotFoundError(f"No such file: {path}")
    if is_model_file(path):
        return load_model(path)
    lists = {}
    for number, line in enumerate(filter(str.strip, lines_of(Path(path)))):
        name, mark, words = line.rpartition(":")
        lists[name.strip() if mark else f"topic {number}"] = words.split()
    return lists
