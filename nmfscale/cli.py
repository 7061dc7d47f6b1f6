"""The command line: ``nmfscale demo | fit | transform | info | plot``.

Results go to standard output, progress and warnings to standard error.  Exit codes: 0 done,
1 failed (one line says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import os
import secrets
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# numpy, the estimators and matplotlib are imported by the commands, so that --help is quick.

_TABLES = (".npz", ".csv", ".tsv", ".csv.gz", ".tsv.gz")


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
    arguments = _parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for category in (UserWarning, RuntimeWarning):
                warnings.simplefilter("default", category)
            warnings.showwarning = _show_warning
            return arguments.run(arguments)
    except KeyboardInterrupt:
        _log("interrupted")
        return 130
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        _log(f"error: {_one_line(error)}")
        return 1


# --- Commands ---------------------------------------------------------------------------------


def _demo(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    names = ["model.h5", "structure.png", "progress.png", "top_words.png"]
    targets = [_output(folder / name, arguments.force) for name in names]

    from .data.corpora import docstrings
    from .models import TopicModel
    from .plots import top_features

    counts = docstrings()
    _say(f"Docstrings of the packages installed here, one document each\n{counts.report()}\n")
    model = TopicModel(
        n_components=10, random_state=1, n_threads=arguments.threads, verbose=not arguments.quiet
    )
    code = _fit_and_save(model, counts, targets[0])
    _say("\nMost distinctive words")
    for topic, words in enumerate(top_features(model.components_, counts.feature_names)):
        _say(f"topic {topic + 1:<3} {', '.join(words)}")
    if importlib.util.find_spec("matplotlib") is None:
        _log("no plots: matplotlib is not installed; pip install 'nmfscale[plot]'")
        names = names[:1]
    else:
        for kind, target in zip(("structure", "progress", "top"), targets[1:], strict=True):
            _save_figure(_draw(kind, {"TopicModel": model}, groups=counts.groups), target)
    _say(f"\nwritten to {folder}: {', '.join(names)}")
    return code


def _fit(arguments: argparse.Namespace) -> int:
    target = _output(arguments.output, arguments.force)
    counts = _read_counts(arguments)
    from . import models

    given = ("solver", "init", "max_iter", "tol", "dtype")
    options = {name: getattr(arguments, name) for name in given}
    model = {"topic": models.TopicModel, "poisson": models.PoissonNMF}[arguments.model](
        n_components=arguments.k,
        random_state=arguments.seed,
        n_threads=arguments.threads,
        verbose=not arguments.quiet,
        **{name: value for name, value in options.items() if value is not None},
    )
    if not arguments.quiet:
        _log(f"{arguments.input}\n{counts.report()}")
    code = _fit_and_save(model, counts, target)
    _say(f"model           {arguments.output}")
    return code


def _fit_and_save(model: Any, counts: Any, target: Path) -> int:
    """Fit, write the model, say how it went; 130 if the fit was interrupted."""
    model.fit(counts)
    model.save(target)
    _describe_fit(model)
    if model.interrupted_:
        _log(f"interrupted: {target} holds the best model so far")
        return 130
    return 0


def _describe_fit(model: Any) -> None:
    last = model.history_[-1]
    state = "converged" if model.converged_ else "not converged"
    _say(f"log-likelihood  {last['loglik']:,.2f} (multinomial {last['loglik_multinomial']:,.2f})")
    _say(f"KKT residual    {max(last['kkt_loadings'], last['kkt_factors']):.1e}")
    _say(f"iterations      {model.n_iter_} ({state}), {last['seconds']:.2f} s")


def _transform(arguments: argparse.Namespace) -> int:
    target = _output(arguments.output, arguments.force, _TABLES)
    from .models.file import load_model

    model = load_model(arguments.model)
    if arguments.threads is not None:
        model.set_params(n_threads=arguments.threads)
    counts = _read_counts(arguments)
    _check_features(model, counts, arguments)
    with warnings.catch_warnings():
        # The names have just been compared, or were found missing.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        loadings = model.transform(counts)
    with _replacing(target) as part:
        _write_table(part, loadings, counts.sample_names)
    n_samples, n_topics = loadings.shape
    _say(f"loadings        {n_samples:,} x {n_topics}, {arguments.output}")
    return 0


def _info(arguments: argparse.Namespace) -> int:
    if arguments.build == (arguments.input is not None):
        arguments.usage("give either INPUT or --build")
    if arguments.build:
        _describe_build()
        return 0
    from .models.file import is_model_file

    if is_model_file(arguments.input):
        _describe_model(arguments.input)
    else:
        _say(_read_counts(arguments).report())
    return 0


def _describe_build() -> None:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from .solve import build_info

    _say(f"{'python':<18}{platform.python_version()} on {platform.system()} {platform.machine()}")
    packages = "nmfscale", "numpy", "scipy", "scikit-learn", "h5py", "matplotlib", "anndata", "dask"
    for package in packages:
        try:
            _say(f"{package:<18}{version(package)}")
        except PackageNotFoundError:
            _say(f"{package:<18}not installed")
    for name, value in build_info().items():
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        _say(f"{name:<18}{shown}")


def _describe_model(path: str) -> None:
    from .models.file import load_model, read_header
    from .plots import top_features

    header, model = read_header(path), load_model(path)
    n_topics, n_features = model.components_.shape
    _say(f"model           {' '.join(repr(model).split())}")
    _say(f"written         {header['created']} by nmfscale {header['nmfscale_version']}")
    _say(f"factors         {n_topics} topics x {n_features:,} features")
    if getattr(model, "loadings_", None) is not None:
        _say(f"loadings        {len(model.loadings_):,} samples, {model.loadings_.dtype}")
    _describe_fit(model)
    for name, kind in header["left_out"].items():
        _say(f"not stored      {name} ({kind})")
    names = getattr(model, "feature_names_in_", None)
    for topic, features in enumerate(top_features(model.components_, names)):
        _say(f"topic {topic + 1:<9} {', '.join(features)}")


def _plot(arguments: argparse.Namespace) -> int:
    target = _output(arguments.output, arguments.force, (".png", ".pdf", ".svg"))
    if len(arguments.models) > 1 and arguments.kind != "progress":
        raise ValueError(f"--kind {arguments.kind} draws one model; got {len(arguments.models)}.")
    from .models.file import load_model

    models = {Path(path).stem: load_model(path) for path in arguments.models}
    if len(models) < len(arguments.models):
        raise ValueError("models of the same name cannot be told apart in one plot.")
    groups = None
    if arguments.groups is not None:
        model = next(iter(models.values()))
        groups = _read_groups(
            arguments.groups, len(model.loadings_), getattr(model, "sample_names_", None)
        )
    axes = _draw(arguments.kind, models, groups=groups, n_top=arguments.n_top, x=arguments.x)
    _save_figure(axes, target)
    _say(f"plot            {arguments.output}")
    return 0


# --- Plots ------------------------------------------------------------------------------------


def _draw(
    kind: str, models: dict[str, Any], *, groups: Any = None, n_top: int = 10, x: str = "seconds"
) -> Any:
    """Draw on a figure of its own, without pyplot: no display is needed."""
    from .plots import detached_axes, progress_plot, structure_plot, top_features_plot

    if kind == "progress":
        histories = {name: model.history_ for name, model in models.items()}
        left, right = detached_axes(10.0, 3.8, 2)
        progress_plot(histories, y="kkt", x=x, ax=right)
        return progress_plot(histories, x=x, ax=left)
    model = next(iter(models.values()))
    if kind == "structure":
        return structure_plot(model.loadings_, groups, ax=detached_axes(9.0, 3.6)[0])
    n_topics = len(model.components_)
    columns, rows = min(n_topics, 5), -(-n_topics // 5)
    axes = detached_axes(2.4 * columns, 0.4 + 0.165 * rows * (n_top + 2.2))[0]
    names = getattr(model, "feature_names_in_", None)
    return top_features_plot(model.components_, names, n_top=n_top, ax=axes)


def _save_figure(axes: Any, target: Path) -> None:
    with _replacing(target) as part:
        axes.figure.savefig(part, dpi=200)


# --- Files ------------------------------------------------------------------------------------


def _read_counts(arguments: argparse.Namespace) -> Any:
    from .data.stored import read_counts

    choices = {name: getattr(arguments, name) for name in ("layer", "genome", "transpose")}
    counts = read_counts(
        arguments.input, **{name: value for name, value in choices.items() if value is not None}
    )
    if arguments.feature_names is not None:
        counts.feature_names = _read_names(arguments.feature_names, counts.shape[1])
    return counts


def _read_names(path: str, n_features: int) -> Any:
    """Read one name per line, in the order of the features."""
    import numpy as np

    names = np.array(Path(path).read_text(encoding="utf-8").splitlines(), dtype=object)
    if len(names) != n_features:
        raise ValueError(f"{path} has {len(names):,} names for {n_features:,} features.")
    return names


def _check_features(model: Any, counts: Any, arguments: argparse.Namespace) -> None:
    """Refuse counts whose columns are not those of the model."""
    if counts.shape[1] != model.n_features_in_:
        raise ValueError(
            f"{arguments.input} has {counts.shape[1]:,} features, {arguments.model} was fitted "
            f"to {model.n_features_in_:,}: give the same features in the same order."
        )
    known, found = getattr(model, "feature_names_in_", None), counts.feature_names
    if known is None:
        return
    if found is None:
        _log(f"warning: {arguments.input} does not name its features: taken in the model's order")
        return
    for place, (ours, theirs) in enumerate(zip(known, found, strict=True)):
        if str(ours) != str(theirs):
            raise ValueError(
                f"feature {place} of {arguments.input} is {str(theirs)!r}, of {arguments.model} "
                f"{str(ours)!r}: give the same features in the same order."
            )


def _read_groups(path: str, n_samples: int, sample_names: Any) -> list[str]:
    """Read one label per line, in the order of the samples, or names and labels."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, delimiter="," if path.endswith(".csv") else "\t")]
    if {len(row) for row in rows} == {1}:
        if len(rows) != n_samples:
            raise ValueError(f"{path} has {len(rows):,} labels for {n_samples:,} samples.")
        return [row[0] for row in rows]
    if {len(row) for row in rows} != {2}:
        raise ValueError(f"{path} must hold a label, or a sample name and a label, on each line.")
    if sample_names is None:
        raise ValueError(f"{path} names samples, but the model has no names: give labels alone.")
    label_of = {name: label for name, label in rows}
    missing = [str(name) for name in sample_names if str(name) not in label_of]
    if missing:
        raise ValueError(
            f"{path} has no label for {len(missing):,} samples such as {missing[0]!r}."
        )
    return [label_of[str(name)] for name in sample_names]


def _write_table(path: Path, loadings: Any, sample_names: Any) -> None:
    """Write loadings as .npz, or as text with every digit that counts."""
    import numpy as np

    if path.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {"loadings": loadings}
        if sample_names is not None:
            arrays["sample_names"] = np.asarray(sample_names, dtype=str)
        np.savez_compressed(path, **arrays)
        return
    names = range(len(loadings)) if sample_names is None else sample_names
    opener: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        delimiter = "," if path.name.lower().endswith((".csv", ".csv.gz")) else "\t"
        table = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        table.writerow(["sample", *(f"topic_{k + 1}" for k in range(loadings.shape[1]))])
        table.writerows([name, *row.astype(str)] for name, row in zip(names, loadings, strict=True))


def _output(path: str | Path, force: bool, suffixes: Sequence[str] = ()) -> Path:
    """Check, before any work, that a file can be written to this path."""
    target = Path(path)
    if suffixes and not target.name.lower().endswith(tuple(suffixes)):
        raise ValueError(f"{path} must end with one of {', '.join(suffixes)}.")
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it.")
    if target.exists() and not force:
        raise FileExistsError(f"{path} exists; choose another name, or replace it with --force.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {target.parent}.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write {path}: the folder {target.parent} is read-only.")
    return target


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a path to write to, of the same suffixes, and move it to `target` at the end."""
    part = target.with_name(f".nmfscale-{secrets.token_hex(6)}{''.join(target.suffixes)}")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


# --- Messages ---------------------------------------------------------------------------------


def _say(text: str) -> None:
    """Print a result; a reader that stopped listening does not stop the work."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log(text: str) -> None:
    print(f"nmfscale: {text}", file=sys.stderr, flush=True)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _log(f"warning: {' '.join(str(message).split())}")


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


# --- Arguments --------------------------------------------------------------------------------

_EXAMPLES = {
    "": """examples:
  nmfscale demo                                a first fit, to real text on this machine
  nmfscale fit cells.h5ad -k 10 -o cells.h5    fit a topic model
  nmfscale plot cells.h5 -o structure.png      look at it
  nmfscale COMMAND --help                      more about a command""",
    "demo": """examples:
  nmfscale demo
  nmfscale demo -o first-look --force""",
    "fit": """examples:
  nmfscale fit counts.npz -k 10 --feature-names words.txt -o model.h5
  nmfscale fit cells.h5ad -k 6 --layer counts --seed 1 -o cells-k6.h5
  nmfscale fit matrix.mtx.gz -k 20 --model poisson --dtype float32 --max-iter 200 --quiet""",
    "transform": """examples:
  nmfscale transform model.h5 new.npz -o loadings.npz
  nmfscale transform model.h5 new.h5ad -o loadings.csv.gz""",
    "info": """examples:
  nmfscale info cells.h5ad
  nmfscale info model.h5
  nmfscale info --build""",
    "plot": """examples:
  nmfscale plot model.h5 -o structure.png --groups cell-types.txt
  nmfscale plot model.h5 -o genes.pdf --kind top --n-top 15
  nmfscale plot em.h5 default.h5 -o progress.png --kind progress""",
}


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from importlib.metadata import version

        print(f"nmfscale {version('nmfscale')}")
        parser.exit()


def _at_least(kind: Callable[[str], Any], least: float) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return value

    number.__name__ = kind.__name__  # argparse writes "invalid int value" with it
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nmfscale",
        description="Poisson NMF and topic models for count matrices of any size.",
        epilog=_EXAMPLES[""],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo = _command(commands, "demo", _demo, "fit the docstrings of the installed packages")
    demo.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default="nmfscale-demo",
        help="folder (default: %(default)s)",
    )
    _add_run_options(demo)

    fit = _command(commands, "fit", _fit, "fit a model and write it to a file")
    _add_input(fit)
    fit.add_argument("-k", type=_at_least(int, 1), required=True, help="number of topics")
    fit.add_argument(
        "-o", "--output", metavar="MODEL.h5", default="model.h5", help="default: %(default)s"
    )
    fit.add_argument(
        "--model", choices=("topic", "poisson"), default="topic", help="default: %(default)s"
    )
    fit.add_argument("--solver", help="default: auto")
    fit.add_argument("--init", help="default: auto")
    fit.add_argument("--seed", type=_at_least(int, 0), metavar="N", help="makes the fit repeatable")
    fit.add_argument("--max-iter", type=_at_least(int, 1), metavar="N", help="outer iterations")
    fit.add_argument("--tol", type=_at_least(float, 0), metavar="T", help="0 runs all iterations")
    fit.add_argument("--dtype", choices=("float32", "float64"), help="of the factors")
    _add_run_options(fit)

    transform = _command(commands, "transform", _transform, "loadings of new samples")
    transform.add_argument("model", metavar="MODEL", help="file written by fit")
    _add_input(transform)
    transform.add_argument(
        "-o", "--output", required=True, metavar="OUT", help=".npz, .csv or .tsv, also with .gz"
    )
    _add_run_options(transform)

    info = _command(commands, "info", _info, "describe counts, a model file or this installation")
    _add_input(info, nargs="?")
    info.add_argument("--build", action="store_true", help="versions, instruction sets, threads")
    info.add_argument("--debug", action="store_true", help="show the traceback of an error")
    info.set_defaults(usage=info.error)

    plot = _command(commands, "plot", _plot, "draw a model")
    plot.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="files written by fit; several for --kind progress",
    )
    plot.add_argument("-o", "--output", required=True, metavar="OUT", help=".png, .pdf or .svg")
    plot.add_argument("--kind", choices=("structure", "progress", "top"), default="structure")
    plot.add_argument(
        "--groups",
        metavar="FILE",
        help="for structure: on each line a label, or name TAB label (comma in a .csv)",
    )
    plot.add_argument("--n-top", type=_at_least(int, 1), default=10, metavar="N", help="for top")
    plot.add_argument(
        "--x", choices=("seconds", "iteration"), default="seconds", help="for progress"
    )
    _add_last_options(plot)
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=_EXAMPLES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_input(command: argparse.ArgumentParser, **options: Any) -> None:
    command.add_argument(
        "input",
        metavar="INPUT",
        help="counts, samples x features: .npz, .mtx(.gz), docword.*.txt(.gz), .h5ad, 10x .h5 "
        "or a 10x folder",
        **options,
    )
    command.add_argument(
        "--feature-names", metavar="FILE", help="names of the features, one on each line"
    )
    command.add_argument("--layer", help=".h5ad: layer to read in place of X")
    command.add_argument("--genome", help="10x: genome to read")
    command.add_argument(
        "--transpose", action="store_true", default=None, help=".npz, .mtx: features x samples"
    )


def _add_run_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", type=_at_least(int, 1), metavar="N", help="default: all CPUs")
    command.add_argument("--quiet", action="store_true", help="no progress on standard error")
    _add_last_options(command)


def _add_last_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--force", action="store_true", help="replace existing files")
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
