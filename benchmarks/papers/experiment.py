"""What the scripts of this folder share: options, counts by name, and how results are kept.

A script computes rows, which are dictionaries from columns to values, and draws a figure::

    options = experiment.parse(__doc__)
    rows = [{"quantity": "nonzeros", "paper": 89_681, "here": counts.nnz}]
    experiment.keep("phelan_counts", rows, figure, options)

``keep`` prints the rows as a table.  Unless ``--smoke`` is given, it also writes NAME.csv and
NAME.png, and replaces the table between ``<!-- NAME:start -->`` and ``<!-- NAME:end -->`` on the
pages of docs/papers that have these markers.  A column "paper" has the numbers that the paper
prints; it is empty (None) where the paper prints none.

Scripts whose ``--full`` takes hours compute their parts by ``part``, which keeps them in the folder
of ``--parts``; after an interruption, the same command continues with the part that was not done.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import problems  # noqa: E402
import report  # noqa: E402

RESULTS = HERE / "results"
PAGES = HERE.parents[1] / "docs" / "papers"
SUFFIXES = (".npz", ".h5ad", ".h5", ".mtx.gz", ".mtx")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all scripts."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = found.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="the size of the paper")
    size.add_argument("--smoke", action="store_true", help="a few seconds, writes nothing")
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--results", type=Path, default=RESULTS, help="folder of csv and png")
    return found


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the option of scripts that can be continued after an interruption."""
    what = "folder that keeps finished parts; the same command continues from them"
    parser.add_argument("--parts", type=Path, metavar="FOLDER", help=what)


def part(folder: Path | None, key: Sequence[Any], compute: Callable[[], Any]) -> Any:
    """Return the part with a key from the folder of --parts, or compute it and keep it there.

    The key names the script and all settings that the part depends on.
    """
    if folder is None:
        return compute()
    path = folder / "_".join(str(each).replace(" ", "-") for each in key)
    if path.exists():
        return pickle.loads(path.read_bytes())  # noqa: S301  the user's own file
    value = compute()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_bytes(pickle.dumps(value))
    unfinished.replace(path)  # so that an interruption leaves no half of a part
    return value


def parse(description: str | None) -> argparse.Namespace:
    """Parse the options of a script that has no others."""
    return parser(description).parse_args()


def available(names: Sequence[str]) -> list[str]:
    """Return the names whose counts are there, and print a line for each of the others."""
    found = []
    for name in names:
        known = name in problems.NAMES or name in problems.PAPER_SIMULATIONS
        reason = problems.available(name) if known else "" if file_of(name) else missing(name)
        if reason:
            print(reason, flush=True)
        else:
            found.append(name)
    return found


def file_of(name: str) -> Path | None:
    """Return the file of counts with this name in the folder NMFSCALE_DATA, if there is one."""
    if "NMFSCALE_DATA" not in os.environ:
        return None
    paths = [Path(os.environ["NMFSCALE_DATA"]) / f"{name}{suffix}" for suffix in SUFFIXES]
    return next((path for path in paths if path.exists()), None)


def missing(name: str) -> str:
    """Return the message for counts that are not there."""
    files = ", ".join(f"{name}{suffix}" for suffix in SUFFIXES)
    return f"{name}: skipped, the folder NMFSCALE_DATA has none of {files}"


def counts_of(name: str) -> Any:
    """Return counts by the name of a problem (problems.py), or of a file in NMFSCALE_DATA."""
    from nmfscale import as_counts, read_counts

    if name in problems.BUILT_IN:
        return problems.built_in(name)
    if name in problems.NAMES or name in problems.PAPER_SIMULATIONS:
        return as_counts(problems.load_counts(name))
    path = file_of(name)
    if path is None:
        raise LookupError(missing(name))
    return read_counts(path)


def labels_of(name: str) -> dict[str, list[str]]:
    """Return names and labels of counts from NAME_meta.json.gz in NMFSCALE_DATA, if it is there.

    Its lists "cols" or "col_symbol" name the features; "row_label" or "row_celltype" are groups of
    the samples.
    """
    path = Path(os.environ.get("NMFSCALE_DATA", ".")) / f"{name}_meta.json.gz"
    if not path.exists():
        return {}
    with gzip.open(path) as file:
        known = json.load(file)
    places = {"features": ("col_symbol", "cols"), "groups": ("row_celltype", "row_label")}
    return {
        what: known[found]
        for what, keys in places.items()
        if (found := next((key for key in keys if key in known), None))
    }


def panels(n: int, across: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """Return a figure and its first n Axes, each of a size in inches."""
    from matplotlib.figure import Figure

    down = -(-n // across)
    figure = Figure(figsize=(size[0] * min(n, across), size[1] * down), layout="constrained")
    axes = figure.subplots(down, min(n, across), squeeze=False).ravel()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[n:]:
        ax.set_axis_off()
    return figure, list(axes[:n])


def shown(value: Any) -> str:
    """Return a value as the tables show it: four digits, thousands separated."""
    if value is None or value == "":
        return ""
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    if isinstance(value, (float, np.floating)):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
    return str(value)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table in Markdown."""
    return report.table([{name: shown(value) for name, value in row.items()} for row in rows])


def keep(
    name: str, rows: list[dict[str, Any]], figures: Any, options: argparse.Namespace, *,
    summary: list[dict[str, Any]] | None = None,
) -> None:  # fmt: skip
    """Print a table, and write it with its figure (or None), or with several as a dict by name.

    The csv file has all `rows`; the table that is printed and put on a page is `summary`, if given.
    """
    text = table(rows if summary is None else summary)
    print(text, flush=True)
    if options.smoke:
        return
    report.write_csv(options.results / f"{name}.csv", rows)
    by_name = figures if isinstance(figures, dict) else {name: figures}
    for stem, figure in by_name.items() if figures is not None else ():
        figure.savefig(options.results / f"{stem}.png", dpi=110)
    if options.results == RESULTS:
        where = f"{report.processor_and_threads(options.threads)}. `{report.command()}`"
        markers = (f"<!-- {name}:start -->", f"<!-- {name}:end -->")
        report.write_readme(f"{text}\n\n{where}", markers, sorted(PAGES.glob("*.md")))
