"""The commands `topic-quality` and `stability`: measures of topics, and fits from many starts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .cluster import cluster_client
from .files import TEXT_TABLES, input_files, output, read_input, write_or_rescue
from .job import ARRAYS, Job, Outcome, drawn
from .labels import batch_of, check_batch
from .messages import log, say
from .option_groups import (
    READ_FROM_FILE,
    RESULT,
    TABLE,
    add_cluster_options,
    add_features,
    add_input,
    add_model,
    add_outputs,
    add_run_options,
    explain,
    size,
)


def add_quality_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `topic-quality`."""
    explain(
        command,
        "Coherence (NPMI, UMass): leading features occur in the same samples. FREX and unique:\n"
        "they belong to this topic only. features, samples: effective numbers of a topic.\n"
        "INPUT has the samples of the fit or other ones, whose loadings are then estimated.",
    )
    add = command.add_argument
    add_model(command)
    add_input(command, several=True)
    add_outputs(command, f"{TABLE}; {RESULT}")
    what = (
        "table to write: measures of topics, deviance of samples or features, or leading features "
        "or samples of topics (default: %(default)s)"
    )
    tables = "topics", "samples", "features", "top_features", "top_samples"
    add("--table", choices=tables, default="topics", help=what)
    add_features(command, "number of leading features that measure a topic")
    add("--memory-limit", type=size, metavar="SIZE", help=READ_FROM_FILE)
    add_cluster_options(command, "the work")
    add_run_options(command)


def topic_quality(arguments: argparse.Namespace) -> int:
    """Measure the quality of topics."""
    endings = (*TEXT_TABLES, *ARRAYS)
    job = Job(arguments, [arguments.model, *input_files(arguments)], endings, draws=False)
    from ..inference.choice import topic_quality as quality
    from ..models.persistence import load_model

    model = load_model(arguments.model)
    if arguments.memory_limit is not None:
        model.set_params(memory_limit=arguments.memory_limit)
    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        result = quality.topic_quality(
            model, counts, n_top=arguments.n_top, score=arguments.score, client=client,
            verbose=int(not arguments.quiet),
        )  # fmt: skip
    return job.end(Outcome(result, str(result), lambda: result.columns(arguments.table)))


def stability(arguments: argparse.Namespace) -> int:
    """Fit from many starts."""
    files = input_files(arguments)
    if (arguments.of is None) == (arguments.k is None):
        arguments.usage("pass either -k or --of, a model whose number of topics is used")
    if arguments.of is not None and arguments.model is not None:
        arguments.usage("--model is that of --of")
    if arguments.of is not None:
        files = [arguments.of, *files]
    else:
        arguments.model = arguments.model or "topic"
    job = Job(arguments, files)
    consensus = None
    if arguments.consensus is not None:
        consensus = output(arguments, ARRAYS, files, path=arguments.consensus)
    from ..inference.choice.stability import stability as fit_from_starts

    estimator = _estimator(arguments)
    with job.running() as how:
        counts = read_input(arguments, streamed=how["client"] is not None)
        result = fit_from_starts(
            estimator, counts, arguments.starts,
            density_threshold=arguments.density_threshold, **batch_of(arguments, counts), **how,
        )  # fmt: skip
    done = f"results are those of the {len(result.objective):,} that were done"
    code = job.end(Outcome(
        result, _text_of_stability(result), lambda: result.columns(arguments.table),
        lambda: _draw(result), done=done if result.interrupted else None,
    ))  # fmt: skip
    if consensus is not None:
        _write_consensus(result, consensus)
    return code


def _estimator(arguments: argparse.Namespace) -> Any:
    """Return the model to fit: that of --of, or a new one."""
    from ..models.persistence import load_model
    from ..models.registry import model_named

    if arguments.of is not None:
        model = load_model(arguments.of)
        check_batch(arguments, type(model))
        return model.set_params(memory_limit=arguments.memory_limit)
    kind = model_named(arguments.model)
    check_batch(arguments, kind)
    return kind(arguments.k, memory_limit=arguments.memory_limit, integer="allow")


def _write_consensus(result: Any, path: Path) -> None:
    if result.model is None:
        why = "there is no consensus" if result.consensus is None else "this model holds no topics"
        log(f"{why}, and no model is written")
        return
    write_or_rescue(path, "the consensus", result.model.save)
    say(f"consensus       {path}")


def _draw(result: Any) -> Any:
    from ..pl import stability_plot
    from ..pl.selection import size_of_panels

    return drawn(stability_plot, result, size=size_of_panels(3))


def models_of_stability() -> list[str]:
    """Return the models that `stability` can fit, and all models of other packages."""
    from ..models import MODELS
    from ..models.arguments.starts import has_random_starts
    from ..models.registry import model_names

    names = model_names()
    return [name for name in names if name not in MODELS or has_random_starts(MODELS[name]())]


def _text_of_stability(result: Any) -> str:
    """Return the spread of the optima, and the similarity of each topic."""
    n, K = result.similarities.shape
    columns = result.columns("fit" if result.fit_summary else "topics")
    best = result.best
    lines = [
        f"optima          {result.n_best} of {n} fits end within 1 of the best objective, "
        f"{result.objective[best]:,.1f}",
        f"largest gap     {result.gaps.max():,.1f}",
        f"best start      seed {result.seeds[best]}",
        *([f"the fit         {result.fit_summary}"] if result.fit_summary else []),
        "\ntopic  similarity  smallest",
    ]
    for topic, similarity, least in zip(*columns.values(), strict=True):
        lines.append(f"{topic:>5}  {similarity:>10.2f}  {least:>8.2f}")
    if result.consensus is not None:
        shares = " ".join(f"{share:.0%}" for share in result.consensus.shares)
        lines += [
            f"\nconsensus       {result.consensus.n_left_out} of {n * K} topics are left out; "
            f"silhouette {result.consensus.silhouette:.2f}",
            f"found by        {shares} of the fits",
        ]
    return "\n".join([*lines, ""])
