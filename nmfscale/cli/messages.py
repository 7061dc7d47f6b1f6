"""Messages: results to standard output, warnings, errors and progress to standard error."""

from __future__ import annotations

import os
import re
import shlex
import sys
from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

from ..terminal import encodable, print_message, visible

# Arguments that the library's messages name, and the options of the shell.
_OPTIONS = {
    "n_components": "-k", "n_threads": "--threads", "random_state": "--seed", "out": "-o",
    "memory_limit": "--memory-limit", "max_iter": "--max-iter", "feature_type": "--feature-type",
    "layer": "--layer", "raw": "--raw", "genome": "--genome", "transpose": "--transpose",
    "solver": "--solver", "init": "--init", "tol": "--tol", "dtype": "--dtype",
    "checkpoint": "--checkpoint", "resume": "--resume", "within": "--within",
    "missing": "--missing", "names": "--names", "mask_var": "--features", "mask_obs": "--samples",
    "join": "--join", "feature_names": "--feature-names", "sample_names": "--sample-names",
    "split": "--split", "modality": "--modality",
    "modality_weights": "--modality-weights", "mod": "--modality",
    "samples_in": "--samples-in", "data_weights": "--data-weights",
    "min_df": "--min-df", "max_df": "--max-df", "pattern": "--pattern",
    "total": "--thin-total", "fraction": "--thin-fraction",
    "gene_sets": "--gene-sets", "gene_symbols": "--gene-symbols",
    "max_features": "--max-features", "encoding": "--encoding", "decode_error": "--decode-error",
}  # fmt: skip
# Options of `fit` for samples with few counts.
COLLAPSED = " --model lda --inference collapsed"
# As written in Python, so that paths such as init=random.h5 stay as they are.
_GIVEN = re.compile(
    rf"(?<![\w./-])({'|'.join(_OPTIONS)})=(?:True|'([^']*)'|([\d.e+-]*\d)|)(?![\w'/-]|\.\w)"
)
# Remedies in Python that the shell does not have, where another one is named beside them.
_OF_PYTHON = re.compile(
    r" To count them as 0 nevertheless, set counts\.measured = None\.|"
    r",? or set counts\.measured = None if they were counted as 0|"
    r" and leave out measured \(counts\.measured = None\)"
)
_PROGRESS = re.compile(r"(\r|\A(?:\x1b\[A)+\Z)")
_OF_TEXTS = re.compile(r"nmfscale\.text_counts\((.*?)\), and pass the result(?=\.)")
_NAMED = re.compile(
    r"(?<![\w./'-])(memory_limit|max_iter|n_components|mask_var|mask_obs)(?![\w'/-]|\.\w)"
)


def say(text: str) -> None:
    """Print a result; a closed pipe does not stop the work."""
    with _results_dropped():
        print(encodable(visible(text), sys.stdout), flush=True)


def flush_results() -> None:
    """Flush standard output; a closed pipe is not an error."""
    with _results_dropped():
        print(end="", flush=True)


@contextmanager
def _results_dropped() -> Iterator[None]:
    """Ignore results if the pipe is closed; raise other errors of standard output."""
    try:
        yield
    except OSError as error:
        # Buffered output must not fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OSError(f"cannot write to standard output: {error.strerror}.") from error


@contextmanager
def unread_messages_dropped() -> Iterator[None]:
    """Ignore messages and progress that cannot be written: the work continues."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        stream: Any = nowhere if sys.stderr is None else _StandardError(sys.stderr, nowhere)
        with redirect_stderr(stream):
            yield


class _StandardError:
    """Standard error with visible control characters; the null device after a failed write.

    What reaches it without passing through `log`: tracebacks, usage, progress, other packages.
    """

    def __init__(self, stream: Any, nowhere: Any) -> None:
        self._stream, self._nowhere = stream, nowhere

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        # carriage returns and moves of the cursor are those of progress bars
        kept = _PROGRESS.split(text)
        shown = "".join(part if i % 2 else visible(part) for i, part in enumerate(kept))
        self._attempt(self._stream.write, encodable(shown, self._stream))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, act: Any, *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except OSError:
            # Buffered output must not fail again when the interpreter exits.
            os.dup2(self._nowhere.fileno(), self._stream.fileno())


def log(text: str) -> None:
    """Print a message to standard error."""
    print_message(f"nmfscale: {text}")


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on one line, without its position in the source."""
    log(f"warning: {' '.join(in_shell_words(str(message)).split())}")


def one_line(error: Exception) -> str:
    """Format an error as one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(in_shell_words(str(error)).split()) or type(error).__name__


def hint_for(option: str, options: Sequence[str], models: Sequence[str]) -> str:
    """Return the end of the message about an unknown option: a similar one, or models that have it.

    `models` are the models that have the option.
    """
    from ..models.arguments.parameters import OTHER_NAMES

    name = option.lstrip("-").replace("-", "_")
    parameters = [name, *OTHER_NAMES.get(name.lower(), ())]
    same = [_OPTIONS.get(candidate, "--" + candidate.replace("_", "-")) for candidate in parameters]
    likely = [candidate for candidate in same if candidate is not None and candidate in options]
    if models and not likely:
        return f": it belongs to --model {', '.join(models)}."
    likely = likely or get_close_matches(option, options, 1, 0.7)
    return f": did you mean {likely[0]}?" if likely else "."


def unknown_command(word: str, commands: Sequence[str]) -> str:
    """Return the message about an unknown command, with commands of similar names or with all.

    Of "quality" and "topic-quality", or "permutation-test" and "test", one has the words of the
    other.
    """
    name = word.lower().replace("_", "-")
    parts = set(name.split("-"))
    likely = [
        command for command in commands
        if (words := set(command.split("-"))) <= parts or parts <= words
    ]  # fmt: skip
    likely = likely or get_close_matches(name, commands, 1, 0.75)
    if likely:
        return f"unknown command {word!r}: did you mean {' or '.join(likely)}?"
    return f"unknown command {word!r}; commands: {', '.join(commands)}."


def in_shell_words(text: str) -> str:
    """Replace names of Python arguments in a message of the library by options of the shell."""

    def option_and_value(match: re.Match[str]) -> str:
        value = match[2] or match[3] or ""
        return f"{_OPTIONS[match[1]]} {shlex.quote(value) if value else ''}".rstrip()

    def counted(match: re.Match[str]) -> str:
        source = literal_eval(match[1])
        stem = PurePath(source.rpartition(":")[0] or source).name.removesuffix(".gz")
        store = f"{PurePath(stem).stem}.nmf"
        return f"nmfscale text {shlex.quote(source)} {shlex.quote(store)}, and pass {store}"

    def fitting(match: re.Match[str]) -> str:
        options = [_OPTIONS[name] for name in match[1].split(", ") if name in _OPTIONS]
        return f"; options: {', '.join(options) or 'none'}."

    text = _OF_TEXTS.sub(counted, _OF_PYTHON.sub("", text))
    text = re.sub(r"(?:^|(?<=[.:;] ))X(?= (?:has|does|is|lacks) )", "INPUT", text)
    text = text.replace("transpose=False", "--no-transpose")
    text = text.replace("LDA(inference='collapsed')", f"nmfscale fit{COLLAPSED}")
    text = re.sub(r"; choices: ([\w, ]+)\.$", fitting, text)
    return _NAMED.sub(lambda match: _OPTIONS[match[1]], _GIVEN.sub(option_and_value, text))
