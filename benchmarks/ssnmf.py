"""SSNMF: seconds of both solvers, and of the authors' package.

    python benchmarks/ssnmf.py                     both tables, to be run on a quiet machine
    python benchmarks/ssnmf.py --tables speed
    python benchmarks/ssnmf.py --smoke             a few seconds, writes nothing

The data are those of table 4 of Haddock et al.; papers/haddock_news.py says where they are from,
and has the tables of the paper. The authors' package is measured if it is installed (``pip install
ssnmf torch``). Writes results/ssnmf_solvers.csv, results/ssnmf_speed.csv and the tables in
README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import warnings
from pathlib import Path

import newsgroups_text
import numpy as np
import report

from nmfscale import SSNMF, as_counts

sys.path.append(str(report.HERE / "papers"))
import haddock_fits  # noqa: E402
from haddock_fits import CHOSEN, K, ssnmf  # noqa: E402


class ReachedError(Exception):
    """Raised when a fit has reached the required loss."""


def progress(data, losses: str, seed: int, wanted: float = -np.inf, **options):
    """Return the CPU seconds since the start of a fit, and its loss, after each iteration.

    The fit ends when its loss is at most `wanted`.
    """
    begun, seen = time.process_time(), []

    def note(record):
        seen.append((time.process_time() - begun, record["loss"]))
        if record["loss"] <= wanted:
            raise ReachedError

    with contextlib.suppress(ReachedError):
        ssnmf(data, losses, seed, callback=note, tol=0, **options)
    return np.array(seen)


def table_solvers(data, starts: int) -> list[dict]:
    """Return CPU seconds to the loss of 300 multiplicative updates, for both solvers in turn."""
    rows, data = [], data._replace(train=as_counts(data.train, integer="allow"))
    for losses in CHOSEN:
        found = []
        for seed in range(starts):
            plain = progress(data, losses, seed, max_iter=300, n_threads=1)
            fast = progress(
                data, losses, seed, plain[-1, 1], solver="cd", max_iter=300, n_threads=1
            )
            assert fast[-1, 1] <= plain[-1, 1], "the loss was not reached"
            found.append((plain[-1, 0], fast[-1, 0], len(fast)))
        times = [plain / fast for plain, fast, _ in found]
        plain, fast, iterations = np.median(found, axis=0)
        rows.append({
            "model": losses, "mu, CPU s": plain, "cd, CPU s": fast, "cd, iterations": iterations,
            "ratio": np.median(times), "smallest ratio": min(times),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def peer(data, losses: str, iterations: int) -> tuple[float, float] | None:
    """Run the authors' package and this one from the same start; None if it is not installed.

    Return its CPU seconds per iteration, and the largest difference between the final parameters
    divided by the largest parameter.
    """
    paths = sys.path[:]
    # without the folder of this script, which has the same name as the package
    sys.path[:] = [path for path in paths if Path(path) != report.HERE]
    try:
        from ssnmf.ssnmf import SSNMF_N as Peer
    except ImportError as error:
        print(f"ssnmf is skipped: {error}")
        return None
    finally:
        sys.path[:] = paths
    X, Y, rng = data.train.T.toarray(), np.eye(5)[data.train_labels].T, np.random.default_rng(0)
    A, B, S = (rng.uniform(size=(n, K)) for n in (len(X), len(Y), X.shape[1]))
    model = Peer(
        X, K, Y=Y, A=A, B=B, S=S.T, lam=CHOSEN[losses][1], tol=-np.inf,
        modelNum=3 + list(CHOSEN).index(losses),
    )  # fmt: skip
    begun = time.process_time()
    model.mult(numiters=iterations, saveerrs=True, eps=1e-16)
    seconds = (time.process_time() - begun) / iterations
    own = SSNMF(
        K, losses=losses, supervision=CHOSEN[losses][1], tol=0, max_iter=iterations, n_threads=1
    ).fit(data.train, data.train_labels, loadings=S, components=A.T, target_components=B)
    found = own.components_, own.target_components_, own.loadings_
    pairs = zip((model.A.T, model.B, model.S.T), found, strict=True)
    return seconds, max(abs(one - other).max() / abs(one).max() for one, other in pairs)


def table_speed(data, iterations: int) -> list[dict]:
    """Return CPU seconds per iteration."""
    rows = []
    for losses in CHOSEN:
        theirs, difference = peer(data, losses, iterations) or (np.nan, np.nan)
        own = [progress(data, losses, seed, max_iter=20, n_threads=1) for seed in range(5)]
        each = float(np.median([(seen[-1, 0] - seen[0, 0]) / (len(seen) - 1) for seen in own]))
        rows.append({
            "model": losses, "CPU s / iteration": each, "ssnmf, CPU s / iteration": theirs,
            "ratio": theirs / each, "difference": difference,
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def markdown(rows: list[dict]) -> str:
    """Return a table in Markdown."""
    digits = {"ratio": ".1f", "smallest ratio": ".1f", "difference": ".0e",
              "cd, iterations": ".4g"}  # fmt: skip
    return report.table([
        {
            name: value if isinstance(value, str)
            else report.cell(value, digits.get(name, ".4f")) for name, value in row.items()
        }
        for row in rows
    ])  # fmt: skip


def write(name: str, rows: list[dict], results: Path) -> None:
    """Write a table to results/ and to README.md."""
    report.write_csv(results / f"ssnmf_{name}.csv", rows)
    text = f"{markdown(rows)}\n\n{report.processor()}. `{report.command()}`"
    markers = f"<!-- ssnmf {name}:start -->", f"<!-- ssnmf {name}:end -->"
    report.write_readme(text, markers)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", default=["solvers", "speed"])
    parser.add_argument("--starts", type=int, default=5, help="of the table of solvers")
    parser.add_argument("--peer-iterations", type=int, default=3)
    parser.add_argument("--results", type=Path, default=report.HERE / "results")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # max_iter reached; empty documents
    if options.smoke:
        options.starts, options.peer_iterations = 1, 1
        data = haddock_fits.simulated()
    elif (path := haddock_fits.archive()) is None:
        return
    else:
        data = newsgroups_text.split(newsgroups_text.texts(path))
    for name in options.tables:
        if name == "solvers":
            rows = table_solvers(data, options.starts)
        else:
            rows = table_speed(data, options.peer_iterations)
        print(markdown(rows))
        if not options.smoke:
            write(name, rows, options.results)


if __name__ == "__main__":
    main()
