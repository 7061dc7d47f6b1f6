"""The commands `test` and `bootstrap`: differences between groups of a model's samples."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..storage.atomic import atomic_write
from ..terminal import table_lines, visible_name
from .cluster import cluster_client
from .commands import save_figure
from .files import (
    TEXT_TABLES,
    check_inputs,
    columns_of_topics,
    output,
    read_input,
    write_or_rescue,
    write_rows,
)
from .groups import label_files, labelled_model, with_origin
from .messages import log, say

ARRAYS, PICTURES = (".h5", ".hdf5"), (".png", ".pdf", ".svg")
Rows = list[list[Any]]


def test(arguments: argparse.Namespace) -> int:
    """Test whether groups differ in their topics."""
    with _job(arguments, arguments.model) as (model, labels, targets, how):
        from ..inference.groups.permutation import permutation_test

        found = permutation_test(
            labelled_topics(arguments, model, labels), **labels, scale=arguments.scale,
            statistic=arguments.statistic, scope=arguments.scope,
            n_permutations=arguments.permutations, **how,
        )  # fmt: skip
    _say_test(found)
    tests = (found.overall, *found.pairs)
    numbers = ("observed", "zscore", "pvalue", "fraction", "pvalue_maxt", "qvalue")
    names = [_named(each, found) for each in tests]
    columns: dict[str, Any] = {name: [getattr(each, name) for each in tests] for name in numbers}
    columns |= {
        "pvalue_lower": [each.interval[0] for each in tests],
        "pvalue_upper": [each.interval[1] for each in tests],
        "dispersion_pvalue": [each.dispersion_pvalue for each in tests],
        "smallest_pvalue": [each.smallest_pvalue for each in tests],
        "n_units": [sum(each.n_units) for each in tests],
        "exact": [each.exact for each in tests],
    }
    rows = [[name, *row] for name, row in zip(names, _in_rows(columns), strict=True)]

    def write(target: Path) -> None:
        if target.suffix.lower() in PICTURES:
            from ..pl import null_plot
            from ..pl.canvas import detached_axes
            from ..pl.inference import size_of_tests

            save_figure(null_plot(found, ax=detached_axes(*size_of_tests(found))[0]), target)
        elif target.suffix.lower() in ARRAYS:
            write_result(arguments, target, found, columns, {"groups": names})
        else:
            _write_text(target, ["groups", *columns], rows)

    write_all(targets, write)
    return end(arguments, found.overall.null.size, found.interrupted)


def bootstrap(arguments: argparse.Namespace) -> int:
    """Estimate weights or mean proportions of topics in groups, with intervals."""
    _check_kind(arguments)
    if arguments.replicates is None:
        arguments.replicates = 1000 if arguments.kind == "weights" else 200
    ask = _weights if arguments.kind == "weights" else _fits
    given = [arguments.model] if arguments.counts is None else [arguments.model, arguments.counts]
    with _job(arguments, *given) as (model, labels, targets, how):
        found, n_done, table = ask(arguments, model, labels, how)
    topics, groups, arrays, more = table
    (_say_weights if arguments.kind == "weights" else _say_means)(
        arguments, found, topics, groups, arrays
    )

    def write(target: Path) -> None:
        if target.suffix.lower() in PICTURES:
            save_figure(_draw(arguments, found, topics), target)
        elif target.suffix.lower() in ARRAYS:
            names = {"topics": topics, "groups": groups}
            write_result(arguments, target, found, arrays | more, names)
        else:
            pairs = [[topic, group] for topic in topics for group in groups]
            columns = {name: array.ravel().tolist() for name, array in arrays.items()}
            rows = [pair + row for pair, row in zip(pairs, _in_rows(columns), strict=True)]
            _write_text(target, ["topic", "group", *columns], rows)

    write_all(targets, write)
    return end(arguments, n_done, n_done < arguments.replicates)


def _weights(arguments: argparse.Namespace, model: Any, labels: Any, how: Any) -> Any:
    """Return balanced weights, the number of replicates done, and the contents of the outputs."""
    from ..inference.groups.bootstrap import bootstrap_weights

    arguments.scale, topics = arguments.scale or "proportions", names_of_topics(model)
    found = bootstrap_weights(
        labelled_topics(arguments, model, labels), **labels, scale=arguments.scale,
        equal_weights=arguments.equal_weights, within=arguments.within or "groups",
        zeros=arguments.zeros or "drop", n_replicates=arguments.replicates, level=arguments.level,
        interval=arguments.interval or "percentile", topic_names=topics, **how,
    )  # fmt: skip
    arrays = {
        "weight": found.weights, "lower": found.lower, "upper": found.upper,
        "std_error": found.std_error,
    }  # fmt: skip
    more = {"missing": found.missing}
    return found, found.n_replicates + found.n_failures, (topics, found.groups, arrays, more)


def _fits(arguments: argparse.Namespace, model: Any, labels: Any, how: Any) -> Any:
    """Bootstrap whole fits; return the result, the replicates done, and the outputs' contents."""
    from ..counts.names import name_array
    from ..inference.replicates.refit import bootstrap_fit

    del labels["kept"]  # all samples are kept
    arguments.input = arguments.counts
    counts = read_input(arguments)
    names = getattr(model, "sample_names_", None)
    if names is not None and counts.sample_names is not None:
        # matched by name: rows of the counts may be ordered differently than those of the fit
        labels = {
            which: dict(zip(name_array(names), of_samples, strict=True))
            for which, of_samples in labels.items()
        }
    found = bootstrap_fit(
        model, counts, **labels, equal_weights=arguments.equal_weights,
        n_replicates=arguments.replicates, level=arguments.level, **how,
    )  # fmt: skip
    means = found.group_means
    assert means is not None
    arrays = {
        "mean": means.estimate, "lower": means.lower, "upper": means.upper,
        "std_error": means.std_error,
    }  # fmt: skip
    return found, found.n_replicates, (names_of_topics(model), found.groups, arrays, {})


def _draw(arguments: argparse.Namespace, found: Any, topics: list[str]) -> Any:
    """Draw intervals, or distributions of the replicates."""
    from ..pl import bootstrap_plot, forest_plot
    from ..pl.canvas import detached_axes
    from ..pl.inference import size_of_intervals
    from ..pl.replicates import size_of_replicates

    kind, style = arguments.draw, arguments.style
    if style == "intervals":
        ax = detached_axes(*size_of_intervals(found, kind))[0]
        return forest_plot(found, kind, topic_names=topics, ax=ax)
    ax = detached_axes(*size_of_replicates(found, kind))[0]
    return bootstrap_plot(found, kind, style=style, topic_names=topics, ax=ax)


def labelled_topics(arguments: argparse.Namespace, model: Any, labels: dict[str, Any]) -> Any:
    """Return topics of the samples that have a label."""
    from ..inference.design.loadings import topics_of_samples

    found = topics_of_samples(model, arguments.scale, warn=False)
    return found.of(labels.pop("kept"))


def _check_kind(arguments: argparse.Namespace) -> None:
    """Refuse options that belong to the other kind."""
    if arguments.kind == "fit":
        for name in ("within", "interval", "scale", "zeros"):
            if getattr(arguments, name) is not None:
                arguments.usage(f"--{name} is for --kind weights")
        if arguments.counts is None:
            arguments.usage("--kind fit needs --counts FILE, the counts that MODEL was fitted to")
    elif arguments.counts is not None:
        arguments.usage("--counts is for --kind fit")


# Common parts of the commands -----------------------------------------------------------------


@contextmanager
def _job(arguments: argparse.Namespace, *inputs: str) -> Iterator[Any]:
    """Yield the model, labels of its samples, output files, and options of the run."""
    if arguments.resume and arguments.checkpoint is None:
        arguments.usage("--resume needs --checkpoint DIR, the folder to resume from")
    files = [*inputs, *label_files(arguments)]
    check_inputs(*files)
    from ..engine.checkpoint import checkpoints_in, recorded_seed

    goes_on = arguments.resume and bool(checkpoints_in(arguments.checkpoint))
    endings = (*TEXT_TABLES, *ARRAYS, *PICTURES)
    targets = targets_of(arguments, endings, files, replaces=goes_on)
    model, labels = labelled_model(arguments)
    names = ("checkpoint", "resume")
    how: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    drawn = arguments.seed is None
    # resumed replicates keep their seed
    how["random_state"] = arguments.seed
    if drawn:
        arguments.seed = (
            recorded_seed(arguments.checkpoint) if goes_on else secrets.randbelow(2**32)
        )
        how["random_state"] = None if goes_on else arguments.seed
    how |= {"n_threads": arguments.threads, "verbose": int(not arguments.quiet)}
    with cluster_client(arguments) as how["client"]:
        yield model, labels, targets, how
    if drawn:
        say(f"seed            {arguments.seed}")


def targets_of(
    arguments: argparse.Namespace, endings: Sequence[str], inputs: Sequence[str], *, replaces: bool
) -> list[Path]:
    """Return the output files, checked before any work; pictures need matplotlib."""
    targets = [
        output(arguments, endings, inputs, replaces=replaces, given=each)
        for each in arguments.output
    ]
    if any(target.suffix.lower() in PICTURES for target in targets):
        from ..pl.canvas import detached_axes

        detached_axes(1.0, 1.0)  # raises an error if matplotlib is missing
    return targets


def names_of_topics(model: Any) -> list[str]:
    """Return the names of topics: their own, their anchors, or those of other tables."""
    anchors = getattr(model, "anchor_names_", None)
    if anchors is None or hasattr(model, "topic_names_"):
        return columns_of_topics(model)
    return [*map(str, anchors)]


def end(arguments: argparse.Namespace, n_done: int, interrupted: bool) -> int:
    """Print the names of the outputs; return the exit code."""
    for given in arguments.output:
        say(f"written         {given}")
    if not interrupted:
        return 0
    folder = arguments.checkpoint
    more = "" if folder is None else f"; --resume continues from the checkpoint in {folder}"
    log(f"interrupted: results are those of the {n_done:,} that were done{more}")
    return 130


def _in_rows(columns: dict[str, list[Any]]) -> Rows:
    return [list(row) for row in zip(*columns.values(), strict=True)]


def write_all(targets: list[Path], write: Callable[[Path], None]) -> None:
    """Write every output, even if another cannot be written; raise the first error at the end."""
    failure: OSError | None = None
    for target in targets:
        try:
            write_or_rescue(target, "the result", write)
        except OSError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _write_text(target: Path, header: list[str], rows: Iterable[list[Any]]) -> None:
    with atomic_write(target) as part:
        write_rows(part, target.name, header, rows)


def write_columns(target: Path, columns: dict[str, Any]) -> None:
    """Write a text table whose columns are arrays."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    _write_text(target, list(columns), map(list, rows))


def write_result(
    arguments: argparse.Namespace, target: Path, found: Any, arrays: dict[str, Any] | None = None,
    names: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a result to HDF5, with more arrays and names, the command and its parameters."""
    import numpy as np

    from ..inference.results.files import save_result

    left_out = ("run", "usage", "command", "output", "force", "quiet", "debug", "input")
    parameters = {name: value for name, value in vars(arguments).items() if name not in left_out}
    text = {
        name: np.array([*map(str, each), None], object)[:-1] for name, each in (names or {}).items()
    }
    about = {"command": arguments.command, "parameters": parameters}
    found = with_origin(arguments, found)
    save_result(found, target, arrays=arrays, names=text, about=about)


# Printed results -------------------------------------------------------------------------------


def say_columns(rows: Rows) -> None:
    """Print a table."""
    say("\n".join(table_lines(rows, least=14)))


def _named(test: Any, found: Any) -> str:
    return "all" if test is found.overall else " - ".join(map(str, test.groups))


def _say_test(found: Any) -> None:
    """Print a row for each test."""
    tests = (found.overall, *found.pairs)
    say(
        f"statistic       {found.statistic}, {found.overall.null.size:,} labellings"
        f"{' (all there are)' if found.overall.exact else ''}\n"
    )
    header = ["groups", "units", "observed", "z", "p", "p of spread"]
    rows = [header + (["max-T p", "BH p"] if found.pairs else [])]
    for test in tests:
        row = [_named(test, found), test.shown_units]
        row += [f"{test.observed:.4g}", f"{test.zscore:.2f}", f"{test.pvalue:.2g}"]
        row.append(f"{test.dispersion_pvalue:.2g}")
        if found.pairs:
            adjusted = test.pvalue_maxt, test.qvalue
            row += [f"{p:.2g}" if test is not found.overall else "" for p in adjusted]
        rows.append(row)
    say_columns(rows)
    say("")


def _say_weights(
    arguments: argparse.Namespace, found: Any, topics: list[str], groups: Any, arrays: Any
) -> None:
    """Print topics ranked within each group."""
    from ..inference.design.equal_weights import counted_once

    sizes = [f"{visible_name(group)} {n:,}" for group, n in zip(groups, found.n_units, strict=True)]
    more = f" and {len(sizes) - 20:,} more groups" if len(sizes) > 20 else ""
    once = counted_once(found.equal_weights, found.units)
    say(f"{found.units:<15} {', '.join(sizes[:20])}{more}{once}")
    if found.n_dropped:
        say(f"lack topics     {found.n_dropped:,} of {found.n_replicates:,} replicates")
    say(f"neutral weight  {found.neutral:.3f}; * where the interval is beside it\n")
    ranking = (-found.weights).argsort(axis=0, kind="stable")
    most = arguments.n_top
    ranks = [r for r in range(len(topics)) if r < most or r >= len(topics) - most]
    beside = (found.lower > found.neutral) | (found.upper < found.neutral)
    rows = [["rank", *map(str, groups)]]
    for rank in ranks:
        row = [str(rank + 1)]
        for r, t in enumerate(ranking[rank].tolist()):
            row.append(f"{topics[t]} {found.weights[t, r]:.2f}{'*' if beside[t, r] else ' '}")
        rows.append(row)
    say_columns(rows)
    say("")


def _say_means(
    arguments: argparse.Namespace, found: Any, topics: list[str], groups: Any, arrays: Any
) -> None:
    """Print mean proportions of the groups with their intervals."""
    from ..inference.design.equal_weights import counted_once

    say(
        f"replicates      {found.n_replicates:,}, {found.n_reordered} put in another order, "
        f"smallest cosine {found.cosines.min():.3f}"
    )
    once = counted_once(found.equal_weights, found.units)
    say(f"means           of proportions{once}, with {found.level:.0%} intervals\n")
    rows = [["topic", *map(str, groups)]]
    for topic, *cells in zip(topics, arrays["mean"], arrays["lower"], arrays["upper"], strict=True):
        known = zip(*cells, strict=True)
        rows.append([topic, *(f"{mean:.3f} [{low:.3f}, {up:.3f}]" for mean, low, up in known)])
    say_columns(rows)
    say("")
