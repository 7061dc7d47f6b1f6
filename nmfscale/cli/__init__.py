"""The command line: ``nmfscale demo | fit | store | transform | info | plot | cluster``.

Results go to standard output, progress and warnings to standard error.  Exit codes: 0 done,
1 failed (one line says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence

from .messages import log, one_line, show_warning, unread_messages_dropped


@unread_messages_dropped()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, default=None
        The words after the program's name; those of the process by default.

    Returns
    -------
    int
        Exit code.  Wrong usage raises ``SystemExit(2)``, as argparse does.
    """
    try:
        return _run(argv)
    except KeyboardInterrupt:
        log("interrupted")
        return 130


def _run(argv: Sequence[str] | None) -> int:
    from .arguments import make_parser

    arguments = make_parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for category in (UserWarning, RuntimeWarning):
                warnings.simplefilter("default", category)
            warnings.showwarning = show_warning
            return arguments.run(arguments)
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        log(f"error: {one_line(error)}")
        return 1
