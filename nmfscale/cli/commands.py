"""The commands; they import numpy, the estimators and matplotlib late, so that --help is quick."""

from __future__ import annotations

import argparse
import importlib.util
import math
from pathlib import Path
from typing import Any

from ..storage.atomic import atomic_write
from ..terminal import visible_name
from .cluster import cluster_client
from .files import (
    TABLES,
    check_inputs,
    input_files,
    output,
    read_input,
    weights_of,
    writable,
    write_or_rescue,
    write_table,
)
from .in_file import add_to_input, check_h5ad_input, check_h5ad_options
from .job import check_resume, draw_seed, drawn, is_resumed, save_figure, stopped
from .labels import batch_of, check_batch, file_and_column, labels_of, read_groups, warn_of_order
from .messages import COLLAPSED, in_shell_words, log, say
from .parameters import given_parameters
from .plan import check_plan, say_plan
from .symbols import shown_model


def demo(arguments: argparse.Namespace) -> int:
    """Fit the built-in corpus and draw the model."""
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    names = ["model.h5", "structure.png", "progress.png", "top_words.png"]
    targets = [writable(folder / name, arguments.force) for name in names]
    if importlib.util.find_spec("matplotlib") is None:
        log("there will be no plots: matplotlib is not installed; pip install 'nmfscale[plot]'")
        names, targets = names[:1], targets[:1]

    from ..datasets.corpora import docstrings
    from ..models import TopicModel

    counts = docstrings()
    say(f"Docstrings of the packages installed here, one document each\n{counts.report()}\n")
    model = TopicModel(
        n_components=10, random_state=1, n_threads=arguments.threads, verbose=not arguments.quiet
    )
    code = _fit_and_save(model, counts, targets[0], arguments.command_line)
    say("\nMost distinctive words")
    _say_topics(model, width=9)
    for kind, target in zip(("structure", "progress", "top"), targets[1:], strict=False):
        save_figure(_draw(kind, {"TopicModel": model}, groups=counts.groups), target)
    say(f"\nwritten to {folder}: {', '.join(names)}")
    return code


def fit(arguments: argparse.Namespace) -> int:
    """Fit a model and write it to a file."""
    from ..models.registry import model_named

    kind = model_named(arguments.model)
    _check_together(arguments, kind)
    check_inputs(*input_files(arguments))
    if arguments.write_h5ad is not None:
        check_h5ad_input(arguments)
    from ..counts.short_samples import are_short

    weights = weights_of(arguments, kind)
    if arguments.plan:
        return _plan(arguments, kind, weights)
    # a resumed fit replaces the model that the same command wrote when it was interrupted
    goes_on, has_no_seed = is_resumed(arguments), arguments.seed is None
    target = output(arguments, ("", ".h5", ".hdf5"), _inputs(arguments), replaces=goes_on)
    draw_seed(arguments, goes_on)
    model = kind(**given_parameters(arguments))
    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        if not arguments.quiet:
            log(f"{', '.join(input_files(arguments))}\n{in_shell_words(counts.report())}")
        names = ("checkpoint", "checkpoint_every", "resume")
        how = weights | {name: getattr(arguments, name) for name in names}
        if client is not None:
            how["client"] = client
        if arguments.labels is not None:
            how["y"] = labels_of(arguments.labels, counts)
        how |= batch_of(arguments, counts)
        code = _fit_and_save(model, counts, target, arguments.command_line, **how)
        short = not model.fits_short_samples and are_short(counts)
        del counts  # closes the file
    if arguments.write_h5ad is not None:
        add_to_input(model, arguments)
    if has_no_seed and arguments.seed is not None:
        say(f"seed            {arguments.seed}")
    say(f"model           {arguments.output}")
    if not arguments.quiet:
        plot = f"nmfscale plot {arguments.output} -o structure.png"
        log(f"next: {f'the same command with{COLLAPSED}' if short else plot}")
    return code


def _plan(arguments: argparse.Namespace, kind: Any, weights: dict[str, Any]) -> int:
    """Print what a fit would cost."""
    counts = read_input(arguments, streamed=arguments.workers is not None)
    how = weights | batch_of(arguments, counts)
    if arguments.labels is not None:
        how["y"] = labels_of(arguments.labels, counts)
    return say_plan(kind(**given_parameters(arguments)), counts, arguments, **how)


def _check_together(arguments: argparse.Namespace, kind: Any) -> None:
    """Refuse options that cannot be combined."""
    check_resume(arguments)
    if arguments.labels is not None and not hasattr(kind, "predict"):
        arguments.usage(f"--labels is for --model ssnmf, not {arguments.model}")
    check_batch(arguments, kind)
    check_plan(arguments, kind)
    if arguments.write_h5ad is not None:
        check_h5ad_options(arguments)


def store(arguments: argparse.Namespace) -> int:
    """Write counts to a packed store, in bounded memory."""
    check_inputs(*input_files(arguments))
    target = output(arguments, ("", ".nmf"), _inputs(arguments))
    from ..counts.sizes import readable
    from ..engine.threads import resolve_threads
    from ..readers.convert import write_store

    counts = _thinned(arguments, read_input(arguments, streamed=True))
    stored = write_store(
        counts, target, n_threads=resolve_threads(arguments.threads),
        overwrite=arguments.force, verbose=not arguments.quiet,
    )  # fmt: skip
    size = target.stat().st_size
    say(f"packed          {stored.shape[0]:,} x {stored.shape[1]:,}, {stored.nnz:,} nonzero counts")
    say(f"store           {target}: {readable(size)}, {size / max(stored.nnz, 1):.2f} bytes each")
    if arguments.seed is not None:
        say(f"seed            {arguments.seed}")
    return 0


def _thinned(arguments: argparse.Namespace, counts: Any) -> Any:
    """Return the counts, thinned if the options say so."""
    total, fraction = arguments.thin_total, arguments.thin_fraction
    if total is None and fraction is None:
        if arguments.seed is not None:
            arguments.usage("--seed is for --thin-total and --thin-fraction")
        return counts
    from ..readers.thin import thin

    return thin(counts, total=total, fraction=fraction, random_state=draw_seed(arguments))


def _inputs(arguments: argparse.Namespace) -> list[str | None]:
    return [*input_files(arguments), arguments.feature_names, arguments.sample_names]


def _fit_and_save(model: Any, counts: Any, target: Path, command: str, **how: Any) -> int:
    """Fit, write and describe the model; return the exit code, 130 if the fit was interrupted."""
    model.fit(counts, **how)
    model.set_params(verbose=0)  # progress is an option of this command, not of the model
    model.command_ = command
    write_or_rescue(target, "the model", model.save)
    _describe_fit(model)
    if model.interrupted_:
        return stopped(f"{target} holds the best model so far", how.get("checkpoint"))
    return 0


def _modalities_of(model: Any) -> str:
    """Return the modalities of a fit, with their features and weights."""
    labels, weights = model.modalities_.tolist(), getattr(model, "feature_weights_", None)
    return ", ".join(
        f"{label} {labels.count(label):,} features"
        f"{'' if weights is None else f' (weight {weights[labels.index(label)]:g})'}"
        for label in dict.fromkeys(labels)
    )


def _describe_fit(model: Any) -> None:
    from ..engine.monitor import ENDS
    from ..pl.progress import ends_of_starts, final_objectives, label, objective, residuals

    history = getattr(model, "history_", None)
    if history is None:  # fitted in batches
        return
    last = history[-1]
    values = [f"{value:,.2f}{kind and f' ({kind})'}" for kind, value in final_objectives(history)]
    convergence = {True: "converged", False: "not converged"}[model.converged_]  # from older files
    state = ENDS.get(getattr(model, "stop_reason_", ""), convergence)
    say(f"{label(objective(history)):<15} {', '.join(values)}")
    if ends := ends_of_starts(model):
        say(f"starts          {ends}")
    if residuals(history):
        say(f"KKT residual    {max(last[name] for name in residuals(history)):.1e}")
    say(f"iterations      {model.n_iter_} ({state}), {last['seconds']:.2f} s")


def transform(arguments: argparse.Namespace) -> int:
    """Write the loadings of new samples."""
    check_inputs(arguments.model, *input_files(arguments))
    inputs = [arguments.model, *_inputs(arguments)]
    target = output(arguments, (".npy", *TABLES), inputs)
    as_it_goes = target.suffix.lower() == ".npy"
    from ..models.from_components import is_table, model_of_table
    from ..models.persistence import load_model
    from ..models.topic_model import TopicModel

    of_table = is_table(arguments.model)
    model: Any = TopicModel if of_table else load_model(arguments.model)
    where, weights = target if as_it_goes else None, weights_of(arguments, model)
    if arguments.batch_shape is not None and not of_table:
        arguments.usage("--batch-shape is for a table as MODEL; a fit has estimated it")
    with cluster_client(arguments) as client:
        counts = read_input(arguments, streamed=client is not None)
        if of_table:
            model = model_of_table(
                arguments.model, counts.feature_names, batch_shape=arguments.batch_shape
            )
        model.set_params(
            memory_limit=arguments.memory_limit, verbose=int(not arguments.quiet),
            n_threads=model.n_threads if arguments.threads is None else arguments.threads,
        )  # fmt: skip
        how = {"missing": arguments.missing, "client": client}
        how |= batch_of(arguments, counts)
        loadings = model.transform(counts, out=where, **how, **weights)
    if not as_it_goes:

        def write(path: Path) -> None:
            with atomic_write(path) as part:
                write_table(part, loadings, counts.sample_names, model)

        write_or_rescue(target, "the loadings", write)
    n_samples, n_topics = loadings.shape
    say(f"loadings        {n_samples:,} x {n_topics}, {arguments.output}")
    return 0


def info(arguments: argparse.Namespace) -> int:
    """Describe a file of counts, a packed store, a model, a result or this installation."""
    if arguments.build == (arguments.input is not None):
        arguments.usage("pass either INPUT or --build")
    if arguments.build:
        _describe_build()
        return 0
    check_inputs(arguments.input)
    from ..counts.short_samples import advice, are_short
    from ..inference.results.files import is_result_file, load_result
    from ..models.persistence import is_model_file
    from ..storage.store import StoredCounts

    if is_model_file(arguments.input):
        _describe_model(arguments.input, arguments)
        return 0
    if is_result_file(arguments.input):
        say(repr(load_result(arguments.input)))
        return 0
    counts = read_input(arguments)
    if isinstance(counts, StoredCounts):
        counts.verify()
    say(in_shell_words(counts.report()))
    if are_short(counts):
        say(f"short samples       {in_shell_words(advice(counts))}")
    if isinstance(counts, StoredCounts):
        origins = [
            origin.get("path", "an object in memory")
            for origin in counts.source.get("files", [counts.source])
        ]
        say(f"packed from         {', '.join(origins)}")
        say(f"blocks              {len(counts.layout().blocks)}, all checksums agree")
    return 0


def _describe_build() -> None:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from ..engine.threads import build_info

    say(f"{'python':<18}{platform.python_version()} on {platform.system()} {platform.machine()}")
    packages = "nmfscale", "numpy", "scipy", "scikit-learn", "h5py", "matplotlib", "anndata", "dask"
    for package in packages:
        try:
            say(f"{package:<18}{version(package)}")
        except PackageNotFoundError:
            say(f"{package:<18}not installed")
    for name, value in build_info().items():
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        say(f"{name:<18}{shown}")


def _describe_model(path: str, arguments: argparse.Namespace) -> None:
    from ..models.persistence import load_model, read_header

    header, model = read_header(path), shown_model(arguments, load_model(path))
    n_topics, n_features = model.components_.shape
    say(f"model           {' '.join(repr(model).split())}")
    say(f"written         {header['created']} by nmfscale {header['nmfscale_version']}")
    say(f"factors         {n_topics} topics x {n_features:,} features")
    if getattr(model, "loadings_", None) is not None:
        say(f"loadings        {len(model.loadings_):,} samples, {model.loadings_.dtype}")
    if getattr(model, "modalities_", None) is not None:
        say(f"modalities      {_modalities_of(model)}")
    if hasattr(model, "source_name_"):
        say(f"source          {model.source_name_}")
    if hasattr(model, "from_table_"):
        say(f"components from {model.from_table_}")
    if getattr(model, "batches_", None) is not None and len(model.batches_):
        say(f"batches         {_batches_of(model)}")
    if getattr(model, "seeds", None) is not None:
        say(f"seeds           {_seeds_of(model)}")
    _describe_fit(model)
    if getattr(model, "seed_", None) is not None:
        say(f"random seed     {model.seed_}")
    if hasattr(model, "command_"):
        say(f"command         {model.command_}")
    if getattr(model, "anchor_names_", None) is not None:
        say(f"anchors         {', '.join(map(visible_name, model.anchor_names_))}")
    for name, kind in header["left_out"].items():
        say(f"not stored      {name} ({kind})")
    for message in getattr(model, "warnings_", ()):
        say(f"warning         {in_shell_words(str(message))}")
    _say_topics(model, width=15)


def _seeds_of(model: Any) -> str:
    """Return the topics with seeds, how many, and what topics explain of their counts."""
    from ..inference.features.seed_shares import seed_shares

    try:
        topics = seed_shares(model).columns("topics")
    except FileNotFoundError:
        return f"in {visible_name(model.seeds)}, which does not exist any more"
    listed = [
        f"{visible_name(name)} {n} ({share:.0%} of their counts)"
        for name, n, share in zip(topics["topic"], topics["n_seeds"], topics["share"], strict=True)
    ]
    return f"weight {model.seed_weight:g}; {', '.join(listed)}"


def _batches_of(model: Any) -> str:
    """Return the number of batches of a fit, the first ones, and how unlike they are."""
    shape, labels = model.batch_shape_, [*map(visible_name, model.batches_[:4].tolist())]
    more = ", ..." if len(model.batches_) > len(labels) else ""
    if math.isinf(shape):
        unlike = "no differences in efficiencies"
    elif shape == 0:
        unlike = "efficiencies without a prior"
    else:
        unlike = f"efficiencies differ by about {100 / math.sqrt(shape):.0f} %"
    return f"{len(model.batches_)} ({', '.join(labels)}{more}); {unlike}"


def _say_topics(model: Any, width: int) -> None:
    from ..counts.names import names_of
    from ..models.leading_features import leading_names
    from ..models.topics.topics import topic_names_of

    leading = leading_names(model.components_, names_of(model, 1))
    for name, features in zip(topic_names_of(model, len(leading)), leading, strict=True):
        say(f"{visible_name(name):<{width}} {', '.join(map(visible_name, features))}")


def plot(arguments: argparse.Namespace) -> int:
    """Draw models."""
    if len(arguments.models) > 1 and arguments.kind != "progress":
        arguments.usage(f"--kind {arguments.kind} draws one model; got {len(arguments.models)}")
    if arguments.groups is not None and arguments.kind != "structure":
        arguments.usage(f"--groups is for --kind structure, not {arguments.kind}")
    check_inputs(*arguments.models)
    groups_file = None if arguments.groups is None else file_and_column(arguments.groups)[0]
    inputs = [*arguments.models, groups_file]
    target = output(arguments, (".png", ".pdf", ".svg"), inputs)
    from ..models.from_components import why_no_loadings
    from ..models.persistence import load_model

    models = {
        Path(path).stem: shown_model(arguments, load_model(path)) for path in arguments.models
    }
    if len(models) < len(arguments.models):
        raise ValueError("models with the same file name cannot be distinguished in one plot.")
    drawn = {"progress": "history_", "structure": "loadings_"}.get(arguments.kind, "components_")
    for name, model in models.items():
        if not hasattr(model, drawn):
            raise ValueError(
                f"the model {name} has no {drawn.strip('_')} to draw: {why_no_loadings(model)}."
            )
    groups = None
    if arguments.groups is not None:
        model = next(iter(models.values()))
        names = getattr(model, "sample_names_", None)
        obs = getattr(model, "obs_", None)
        groups = read_groups(arguments.groups, len(model.loadings_), names, obs)
        warn_of_order([arguments.groups], names)
    how = {"n_top": arguments.n_top, "score": arguments.score, "x": arguments.x}
    axes = _draw(arguments.kind, models, groups=groups, **how)
    save_figure(axes, target)
    say(f"plot            {arguments.output}")
    return 0


def _draw(
    kind: str, models: dict[str, Any], *, groups: Any = None, x: Any = "seconds", n_top: int = 10,
    **features: Any,
) -> Any:  # fmt: skip
    """Draw on a new figure without pyplot, which needs no display.

    `features` are options of `top_features_plot`.
    """
    from ..counts.names import names_of
    from ..pl import progress_plot, scree_plot, structure_plot, top_features_plot
    from ..pl.canvas import detached_axes
    from ..pl.features import size_of_panels
    from ..pl.progress import residuals
    from ..pl.structure import SIZE

    if kind == "progress":
        histories = {name: model.history_ for name, model in models.items()}
        if not all(map(residuals, histories.values())):
            return drawn(progress_plot, histories, size=(5.0, 3.8), x=x)
        left, right = detached_axes(10.0, 3.8, 2)
        progress_plot(histories, y="kkt", x=x, ax=right)
        return progress_plot(histories, x=x, ax=left)
    model = next(iter(models.values()))
    topics = getattr(model, "topic_names_", None)
    if kind == "scree":
        return drawn(scree_plot, model, size=(6.0, 3.2))
    if kind == "structure":
        return drawn(structure_plot, model, groups, size=SIZE)
    return drawn(
        top_features_plot, model.components_, names_of(model, 1), n_top=n_top, topic_names=topics,
        size=size_of_panels(model.components_, n_top), **features,
    )  # fmt: skip
