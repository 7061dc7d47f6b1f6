"""The words that the commands understand."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import __version__
from ..cli import commands
from ..counts.sizes import parse_bytes
from .cluster import cluster
from .parameters import add_parameters

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
  nmfscale fit matrix.mtx.gz -k 20 --model poisson --dtype float32 --max-iter 200 --quiet
  nmfscale fit cells.nmf -k 20 --checkpoint state --resume
  nmfscale fit cells.nmf -k 20 --workers 4
  nmfscale fit cells.nmf -k 20 --scheduler tls://192.0.2.10:8786 --tls certificates""",
    "cluster": """examples:
  nmfscale cluster
  nmfscale cluster --workers 4 --memory-limit 8GB --local-directory /scratch
  nmfscale cluster --host 192.0.2.10 --tls certificates
  nmfscale fit cells.nmf -k 20 --scheduler tcp://127.0.0.1:8786""",
    "store": """examples:
  nmfscale store cells.h5ad cells.nmf
  nmfscale store matrix.mtx.gz cells.nmf --memory-limit 1GB
  nmfscale fit cells.nmf -k 20 --memory-limit 2GB --checkpoint state -o cells.h5""",
    "transform": """examples:
  nmfscale transform model.h5 new.npz -o loadings.npz
  nmfscale transform model.h5 new.h5ad -o loadings.csv.gz
  nmfscale transform model.h5 new.nmf -o loadings.npy --memory-limit 2GB""",
    "info": """examples:
  nmfscale info cells.h5ad
  nmfscale info model.h5
  nmfscale info --build""",
    "plot": """examples:
  nmfscale plot model.h5 -o structure.png --groups cell-types.txt
  nmfscale plot model.h5 -o genes.pdf --kind top --n-top 15
  nmfscale plot em.h5 default.h5 -o progress.png --kind progress""",
}

# Tens of thousands of threads end the process, without a word.
_MOST_THREADS = 4096


def _at_least(
    kind: Callable[[str], Any], least: float, most: float = math.inf
) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} is above {most}")
        return value

    number.__name__ = kind.__name__  # argparse writes "invalid int value" with it
    return number


def _size(text: str) -> str:
    """Check a number of bytes; a model keeps it as it was written."""
    try:
        parse_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; give bytes or a text such as 2GB or 500MB"
        ) from None
    return text


def make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Describe the program and its commands; `fit` with its options if the words ask for it."""
    parser = argparse.ArgumentParser(
        prog="nmfscale",
        description="Poisson NMF and topic models for count matrices of any size.",
        epilog=_EXAMPLES[""],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"nmfscale {__version__}",
        help="print the version and exit",
    )  # fmt: skip
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_demo(subparsers)
    _add_fit(subparsers, words)
    _add_store(subparsers)
    _add_transform(subparsers)
    _add_info(subparsers)
    _add_plot(subparsers)
    _add_cluster(subparsers)
    return parser


def _add_demo(subparsers: Any) -> None:
    command = _command(
        subparsers, "demo", commands.demo, "fit the docstrings of the installed packages"
    )
    command.add_argument(
        "-o", "--output", metavar="DIR", default="nmfscale-demo",
        help="folder (default: %(default)s)",
    )  # fmt: skip
    _add_run_options(command)


def _add_fit(subparsers: Any, words: Sequence[str]) -> None:
    command = _command(subparsers, "fit", commands.fit, "fit a model and write it to a file")
    if words[:1] != ["fit"]:
        return  # its options take the estimators, which are slow to import
    _add_input(command)
    add = command.add_argument
    add("-k", type=_at_least(int, 1), required=True, help="number of topics")
    add("-o", "--output", metavar="MODEL.h5", default="model.h5", help="default: %(default)s")
    add("--seed", type=_at_least(int, 0, 2**32 - 1), metavar="N", help="default: another each time")
    add("--checkpoint", metavar="DIR", help="folder for the state of the fit")
    add(
        "--checkpoint-every", type=_at_least(float, 0), metavar="SECONDS", default=60.0,
        help="between two checkpoints; 0 saves every iteration (default: %(default)g)",
    )  # fmt: skip
    add("--resume", action="store_true", help="go on from the newest checkpoint")
    _add_memory_limit(command)
    _add_client_options(command)
    _add_run_options(command)
    add_parameters(command, words)


def _add_store(subparsers: Any) -> None:
    command = _command(
        subparsers, "store", commands.store, "pack counts for fits larger than memory"
    )
    _add_input(command, packed=False)
    command.add_argument("output", metavar="OUT.nmf", help="the packed store to write")
    _add_memory_limit(command, "such as 2GB: text is sorted on disk beyond a quarter of it")
    _add_run_options(command)


def _add_transform(subparsers: Any) -> None:
    command = _command(subparsers, "transform", commands.transform, "loadings of new samples")
    command.add_argument("model", metavar="MODEL", help="file written by fit")
    _add_input(command)
    command.add_argument(
        "-o", "--output", required=True, metavar="OUT",
        help=".npy, written as it goes; .npz; .csv or .tsv, also with .gz",
    )  # fmt: skip
    _add_memory_limit(command)
    _add_run_options(command)


def _add_info(subparsers: Any) -> None:
    command = _command(
        subparsers, "info", commands.info, "describe counts, a model file or this installation"
    )
    _add_input(command, nargs="?")
    command.add_argument("--build", action="store_true", help="versions, instruction sets, threads")
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _add_plot(subparsers: Any) -> None:
    command = _command(subparsers, "plot", commands.plot, "draw a model")
    command.add_argument(
        "models", metavar="MODEL", nargs="+",
        help="files written by fit; several for --kind progress",
    )  # fmt: skip
    command.add_argument("-o", "--output", required=True, metavar="OUT", help=".png, .pdf or .svg")
    command.add_argument(
        "--kind",
        choices=("structure", "progress", "top"),
        default="structure",
        help="topic proportions of the samples, how the fit went, or leading features "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--groups", metavar="FILE",
        help="for structure: on each line a label, or name TAB label (comma in a .csv)",
    )  # fmt: skip
    command.add_argument(
        "--n-top", type=_at_least(int, 1), default=10, metavar="N",
        help="for top: features of each topic (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--x", choices=("seconds", "iteration"), default="seconds",
        help="for progress (default: %(default)s)",
    )  # fmt: skip
    _add_last_options(command)


def _add_cluster(subparsers: Any) -> None:
    command = _command(
        subparsers, "cluster", cluster, "run a Dask cluster on this machine until Ctrl-C"
    )
    command.description = (
        f"{command.description}\n\n"
        "Whoever reaches a cluster can run code as you: without --tls that is every user of\n"
        "this machine, with it those who hold the key in the folder."
    )
    command.add_argument(
        "--workers", type=_at_least(int, 1), metavar="N",
        help="processes, one task at a time each (default: one for every 4 CPUs)",
    )  # fmt: skip
    command.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1",
        help="address to listen on; all but this machine's own need --tls (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--port", type=_at_least(int, 0, 65535), default=8786, metavar="N",
        help="0: any (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--dashboard-port", type=_at_least(int, 0, 65535), default=8787, metavar="N",
        help="always on 127.0.0.1; another one if it is taken (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--tls", metavar="DIR",
        help="encrypt, and admit only who has the certificates in this folder; made if missing",
    )  # fmt: skip
    command.add_argument(
        "--memory-limit", type=_size, metavar="SIZE",
        help="of each worker, such as 8GB (default: an equal share of the machine's)",
    )  # fmt: skip
    command.add_argument(
        "--local-directory", metavar="DIR",
        help="folder for temporary files of the workers (default: that of the system)",
    )  # fmt: skip
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")


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
    command.set_defaults(run=run, usage=command.error)
    return command


def _add_input(command: argparse.ArgumentParser, *, packed: bool = True, **options: Any) -> None:
    command.add_argument(
        "input",
        metavar="INPUT",
        help=f"counts, samples x features: {'a packed .nmf, ' if packed else ''}.npz, .mtx(.gz), "
        "docword.*.txt(.gz), .h5ad, 10x .h5 or a 10x folder",
        **options,
    )
    command.add_argument(
        "--feature-names", metavar="FILE", help="names of the features, one on each line",
    )  # fmt: skip
    command.add_argument("--layer", help=".h5ad: layer to read in place of X")
    command.add_argument("--raw", action="store_true", help=".h5ad: read raw.X in place of X")
    command.add_argument("--genome", help="10x: genome to read")
    command.add_argument(
        "--feature-type", metavar="TYPE",
        help="10x: such as 'Antibody Capture', or all (default: genes, where types are mixed)",
    )  # fmt: skip
    command.add_argument(
        "--transpose", action="store_true", default=None, help=".npz, .mtx: features x samples",
    )  # fmt: skip


def _add_memory_limit(
    command: argparse.ArgumentParser,
    what: str = "such as 2GB: read from the file what does not fit",
) -> None:
    command.add_argument("--memory-limit", type=_size, metavar="SIZE", help=what)


def _add_client_options(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--scheduler", metavar="ADDRESS", help="fit on this Dask cluster, such as tcp://host:8786",
    )  # fmt: skip
    where.add_argument(
        "--workers", type=_at_least(int, 1), metavar="N",
        help="fit on a Dask cluster of N processes here, started for this fit",
    )  # fmt: skip
    command.add_argument(
        "--tls", metavar="DIR", help="certificates of the cluster, see nmfscale cluster --help",
    )  # fmt: skip


def _add_run_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads", type=_at_least(int, 1, _MOST_THREADS), metavar="N",
        help="default: NMFSCALE_NUM_THREADS, or all CPUs",
    )  # fmt: skip
    command.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    _add_last_options(command)


def _add_last_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--force", action="store_true", help="replace existing files")
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
