"""The commands `test` and `bootstrap`: differences between groups of a model's samples."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..terminal import table_lines, visible_name
from .files import read_input
from .groups import (
    as_numbers,
    label_files,
    labelled_model,
    labelled_topics,
    names_of_topics,
    topic_of,
)
from .job import Job, Outcome, drawn

Rows = list[list[Any]]
# Options of weights, which a bootstrap of fits does not have.
_OF_WEIGHTS = "within", "interval", "scale", "zeros"


def test(arguments: argparse.Namespace) -> int:
    """Test whether groups differ in their topics."""
    with _of_groups(arguments, arguments.model) as (job, model, labels, how):
        from ..inference.regression.permutation import permutation_test

        if arguments.statistic == "trend":
            labels["groups"] = as_numbers(labels["groups"])
        result = permutation_test(
            labelled_topics(arguments, model, labels), **labels, scale=arguments.scale,
            statistic=arguments.statistic, scope=arguments.scope,
            topic_sums=_topic_sums(arguments, model), n_permutations=arguments.permutations, **how,
        )  # fmt: skip
    arrays = result.columns()
    del arrays["groups"]
    return job.end(Outcome(
        result, _text_of_tests(result), result.columns, lambda: _draw_tests(result), arrays=arrays,
        names={"groups": result.names}, done=_done(result.overall.null.size, result.interrupted),
    ))  # fmt: skip


def _topic_sums(arguments: argparse.Namespace, model: Any) -> dict[str, list[Any]] | None:
    """Return the sums of topics of --topic-sum, by name."""
    sums, names = {}, names_of_topics(model)
    for text in arguments.topic_sum or ():
        name, mark, topics = text.partition("=")
        if not (name and mark and topics):
            raise ValueError(
                f"--topic-sum {text}: NAME=TOPIC,TOPIC is needed, such as 'T cells=1,4'."
            )
        sums[name] = [topic_of(topic.strip(), names) for topic in topics.split(",")]
    return sums or None


def bootstrap(arguments: argparse.Namespace) -> int:
    """Estimate weights or mean proportions of topics in groups, with intervals."""
    _check_kind(arguments)
    of_weights = arguments.kind == "weights"
    if arguments.replicates is None:
        arguments.replicates = 1000 if of_weights else 200
    inputs = [arguments.model, *([] if of_weights else [arguments.counts])]
    with _of_groups(arguments, *inputs) as (job, model, labels, how):
        result = (_weights if of_weights else _fits)(arguments, model, labels, how)
    arrays: dict[str, Any] = {}
    if of_weights:
        text, columns = _text_of_weights(result, arguments.n_top), result.columns()
        topics, n_done = result.topics, result.n_replicates + result.n_failures
        arrays["missing"] = result.missing
    else:
        text, columns = _text_of_means(result), result.columns("group_means")
        topics, n_done = result.topic_names, result.n_replicates
        columns = {"mean" if name == "estimate" else name: columns[name] for name in columns}
    shape, labels = (len(topics), len(result.groups)), ("topic", "group")
    arrays |= {name: columns[name].reshape(shape) for name in columns if name not in labels}
    return job.end(Outcome(
        result, text, lambda: columns, lambda: _draw(arguments, result, topics), arrays=arrays,
        names={"topics": topics, "groups": result.groups},
        done=_done(n_done, n_done < arguments.replicates),
    ))  # fmt: skip


@contextmanager
def _of_groups(arguments: argparse.Namespace, *inputs: str) -> Iterator[Any]:
    """Yield a job, the model, labels of its samples, and options of the run."""
    job = Job(arguments, [*inputs, *label_files(arguments)])
    model, labels = labelled_model(arguments)
    with job.running() as how:
        yield job, model, labels, how


def _done(n: int, interrupted: bool) -> str | None:
    return f"results are those of the {n:,} that were done" if interrupted else None


def _weights(arguments: argparse.Namespace, model: Any, labels: Any, how: Any) -> Any:
    """Return balanced weights."""
    from ..inference.groups.bootstrap import bootstrap_weights

    arguments.scale = arguments.scale or "proportions"
    options = {name: getattr(arguments, name) for name in _OF_WEIGHTS}
    return bootstrap_weights(
        labelled_topics(arguments, model, labels), **labels, equal_weights=arguments.equal_weights,
        n_replicates=arguments.replicates, level=arguments.level,
        topic_names=names_of_topics(model), **how,
        **{name: value for name, value in options.items() if value is not None},
    )  # fmt: skip


def _fits(arguments: argparse.Namespace, model: Any, labels: Any, how: Any) -> Any:
    """Return a bootstrap of whole fits."""
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
    result = bootstrap_fit(
        model, counts, **labels, equal_weights=arguments.equal_weights,
        n_replicates=arguments.replicates, level=arguments.level, **how,
    )  # fmt: skip
    return replace(result, topic_names=tuple(names_of_topics(model)))


def _draw_tests(result: Any) -> Any:
    from ..pl import null_plot
    from ..pl.inference import size_of_tests

    return drawn(null_plot, result, size=size_of_tests(result))


def _draw(arguments: argparse.Namespace, result: Any, topics: Any) -> Any:
    """Draw intervals, or distributions of the replicates."""
    from ..pl import bootstrap_plot, forest_plot
    from ..pl.inference import size_of_intervals
    from ..pl.replicates import size_of_replicates

    kind, options = arguments.draw, {"topic_names": topics}
    if arguments.style == "intervals":
        return drawn(forest_plot, result, kind, size=size_of_intervals(result, kind), **options)
    options["style"] = arguments.style
    return drawn(bootstrap_plot, result, kind, size=size_of_replicates(result, kind), **options)


def _check_kind(arguments: argparse.Namespace) -> None:
    """Refuse options that belong to the other kind."""
    if arguments.kind == "fit":
        for name in _OF_WEIGHTS:
            if getattr(arguments, name) is not None:
                arguments.usage(f"--{name} is for --kind weights")
        if arguments.counts is None:
            arguments.usage("--kind fit needs --counts FILE, the counts that MODEL was fitted to")
    elif arguments.counts is not None:
        arguments.usage("--counts is for --kind fit")


# Results as text --------------------------------------------------------------------------------


def table_text(rows: Rows) -> str:
    """Return a table as text."""
    return "\n".join(table_lines(rows, least=14))


def _text_of_tests(result: Any) -> str:
    """Return a row for each test."""
    overall = result.overall
    header = ["groups", "units", "observed", "z", "p", "p of spread"]
    rows = [header + (["max-T p", "BH p"] if result.pairs else [])]
    for name, test in zip(result.names, result.tests, strict=True):
        row = [name, test.shown_units, f"{test.observed:.4g}", f"{test.zscore:.2f}"]
        row += [f"{test.pvalue:.2g}", f"{test.dispersion_pvalue:.2g}"]
        if result.pairs:
            adjusted = test.pvalue_maxt, test.qvalue
            row += [f"{p:.2g}" if test is not overall else "" for p in adjusted]
        rows.append(row)
    every = " (all there are)" if overall.exact else ""
    within = (
        f"units           {result.n_crossed:,} in several groups, which are compared within each\n"
    )
    return (
        f"{within if result.n_crossed else ''}"
        f"statistic       {result.statistic}{result.beside}, "
        f"{overall.null.size:,} labellings{every}\n\n"
        f"{table_text(rows)}\n"
    )


def _text_of_weights(result: Any, n_top: int) -> str:
    """Return topics ranked within each group."""
    from ..inference.design.equal_weights import counted_once

    groups, topics = result.groups, result.topics
    sizes = [
        f"{visible_name(group)} {n:,}" for group, n in zip(groups, result.n_units, strict=True)
    ]
    more = f" and {len(sizes) - 20:,} more groups" if len(sizes) > 20 else ""
    once = counted_once(result.equal_weights, result.units)
    lines = [f"{result.units:<15} {', '.join(sizes[:20])}{more}{once}"]
    if result.n_dropped:
        lines.append(f"lack topics     {result.n_dropped:,} of {result.n_replicates:,} replicates")
    lines.append(f"neutral weight  {result.neutral:.3f}; * where the interval is beside it\n")
    ranking = (-result.weights).argsort(axis=0, kind="stable")
    ranks = [r for r in range(len(topics)) if r < n_top or r >= len(topics) - n_top]
    beside = (result.lower > result.neutral) | (result.upper < result.neutral)
    rows = [["rank", *map(str, groups)]]
    for rank in ranks:
        row = [str(rank + 1)]
        for r, t in enumerate(ranking[rank].tolist()):
            row.append(f"{topics[t]} {result.weights[t, r]:.2f}{'*' if beside[t, r] else ' '}")
        rows.append(row)
    return "\n".join([*lines, table_text(rows), ""])


def _text_of_means(result: Any) -> str:
    """Return mean proportions of the groups with their intervals."""
    from ..inference.design.equal_weights import counted_once

    once, means = counted_once(result.equal_weights, result.units), result.group_means
    rows = [["topic", *map(str, result.groups)]]
    for topic, *numbers in zip(
        result.topic_names, means.estimate, means.lower, means.upper, strict=True
    ):
        cells = zip(*numbers, strict=True)
        rows.append([topic, *(f"{mean:.3f} [{low:.3f}, {up:.3f}]" for mean, low, up in cells)])
    return (
        f"replicates      {result.n_replicates:,}, {result.n_reordered} put in another order, "
        f"smallest cosine {result.cosines.min():.3f}\n"
        f"means           of proportions{once}, with {result.level:.0%} intervals\n\n"
        f"{table_text(rows)}\n"
    )
