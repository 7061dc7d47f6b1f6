"""The command line ``nmfscale COMMAND``: fit models and use them.

Results go to standard output, progress and warnings to standard error.  Exit codes: 0 success,
1 failure (explained in one line), 2 wrong usage, 130 interrupted by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

# All other imports are in `main`, so that Ctrl-C during the imports causes no traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong usage raises ``SystemExit(2)``."""
    try:
        from .ending import terminated_as_interrupted

        with terminated_as_interrupted():
            return _run_and_report(argv)
    except KeyboardInterrupt:
        return 130


def _run_and_report(argv: Sequence[str] | None) -> int:
    """Run one command; an interruption is a message."""
    try:
        from .messages import log, unread_messages_dropped

        with unread_messages_dropped():
            try:
                return _run(argv)
            except KeyboardInterrupt:
                # If a KeyboardInterrupt has passed through an exec(), such as that of namedtuple,
                # CPython exits by a signal, whatever the exit code; another exec() resets this.
                exec("")
                log("interrupted")
                return 130
    except KeyboardInterrupt:
        return 130


def _run(argv: Sequence[str] | None) -> int:
    import shlex
    import sys
    import traceback
    import warnings

    from .arguments import make_parser
    from .messages import flush_results, log, one_line, show_warning

    words = [*(sys.argv[1:] if argv is None else argv)]
    try:
        arguments = make_parser(words).parse_args(words)
        arguments.command_line = shlex.join(["nmfscale", *words])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for category in (UserWarning, RuntimeWarning):
                warnings.simplefilter("default", category)
            warnings.showwarning = show_warning
            return arguments.run(arguments)
    except SystemExit:
        flush_results()
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # compiled modules turn Ctrl-C into an ImportError
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            cause = cause.__cause__ or cause.__context__
        if "--debug" in words:
            traceback.print_exc()
        log(f"error: {one_line(error)}")
        return 1
