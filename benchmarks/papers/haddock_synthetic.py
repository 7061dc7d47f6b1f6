"""Table 2 of Haddock et al.: SSNMF on synthetic data of four kinds of noise.

    python benchmarks/papers/haddock_synthetic.py            about three minutes
    python benchmarks/papers/haddock_synthetic.py --full     100,000 multiplicative updates: 17 h
    python benchmarks/papers/haddock_synthetic.py --smoke    a few seconds, writes nothing

Errors are those of equation (10): the loss F of the experiment at the true means after the fit,
divided by its value at the start; means over five starts, and over draws of the true factors, which
the paper does not publish. By default, fits by coordinate descent end at a stationary point, as the
100,000 updates of the paper do. Where the paper leaves details open: the noise has a standard
deviation of 1/(2r) = 0.1 (1 in experiment 1), the noises of X and of Y are independent, and
negative values are replaced by their absolute values.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import experiment
import numpy as np
import scipy.sparse as sp

from nmfscale import SSNMF

MODELS = ("FF", "FD", "DF", "DD")
PAPER = {
    1: (0.2917, 0.2927, 0.2930, 0.2922), 2: (0.0081, 0.0065, 0.0093, 0.0076),
    3: (0.0078, 0.0109, 0.0071, 0.0075), 4: (0.0204, 0.0199, 0.0210, 0.0172),
}  # fmt: skip
RANK, STARTS = 5, 5


class Experiment(NamedTuple):
    """The model that is the maximum likelihood, and standard deviations (None: Poisson).

    `supervision` is its lambda by section 2.1, with sigma the variance of one of r terms.
    """

    losses: str
    x_noise: float | None
    y_noise: float | None
    supervision: float

    def error(self, means: tuple[np.ndarray, np.ndarray], S: np.ndarray, A: Any, B: Any) -> float:
        """Return F of the factors at the true means, with lambda = 1."""
        X, Y = means
        return divergence(X, S @ A.T, self.losses[0]) + divergence(Y, S @ B.T, self.losses[1])


EXPERIMENTS = {
    1: Experiment("FF", 1.0, 1.0, 1.0), 2: Experiment("FD", 0.1, None, 2 * 0.1**2),
    3: Experiment("DF", None, 0.1, 1 / (2 * 0.1**2)), 4: Experiment("DD", None, None, 1.0),
}  # fmt: skip


def divergence(X: np.ndarray, M: np.ndarray, loss: str) -> float:
    """Return |X - M|^2, or D(X || M)."""
    if loss == "F":
        return float(((X - M) ** 2).sum())
    where, M = X > 0, M + 1e-10  # as the authors do; M may have zeros where X has none
    return float((X[where] * np.log(X[where] / M[where])).sum() - X.sum() + M.sum())


def noisy(mean: np.ndarray, deviation: float | None, rng: np.random.Generator) -> np.ndarray:
    """Return Poisson counts, or means with normal noise, whose sign is dropped."""
    if deviation is None:
        return rng.poisson(mean) * 1.0
    return np.abs(mean + deviation * rng.normal(size=mean.shape))


def true_factors(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    """Return A (n, r), uniform, and B and S (n, r) with half of their entries zero."""
    A = rng.uniform(size=(n, RANK))
    sparse = [
        sp.random_array((n, RANK), density=0.5, rng=rng, data_sampler=rng.uniform).toarray()
        for _ in range(2)
    ]
    return [A, *sparse]


def start_of(number: int, n: int) -> list[np.ndarray]:
    """Return the start A, B (n, r) and S (r, n) of a number; all models have the same."""
    return [
        np.random.RandomState(number + shift).uniform(size=shape)
        for shift, shape in ((0, (n, RANK)), (5, (n, RANK)), (10, (RANK, n)))
    ]


def error_of_fit(of: Experiment, data: Any, means: Any, begin: Any, how: dict[str, Any]) -> float:
    """Fit from a start, and return F."""
    A, B, S = begin
    model = SSNMF(RANK, n_threads=1, **how).fit(
        *data, loadings=S.T, components=A.T, target_components=B
    )
    return of.error(means, model.loadings_, model.components_.T, model.target_components_)


def errors_of_draw(
    draw: int, n: int, starts: int, options: dict[str, Any], parts: Path | None
) -> dict[Any, float]:
    """Return mean errors for one draw of the true factors, by experiment and model.

    Only the first `starts` of five starts are fitted. Their errors are divided by those at all five
    starts, because these vary much more than the final errors.
    """
    warnings.simplefilter("ignore")  # fits end at max_iter
    rng = np.random.default_rng(draw)
    A, B, S = true_factors(rng, n)
    means, found = (S @ A.T, S @ B.T), {}
    for number, of in EXPERIMENTS.items():
        X, Y = noisy(means[0], of.x_noise, rng), noisy(means[1], of.y_noise, rng)
        begins = [start_of(start, n) for start in range(STARTS)]
        firsts = [of.error(means, S.T, A, B) for A, B, S in begins]
        fits = [(losses, losses, 1.0) for losses in MODELS]
        fits += [("lambda", of.losses, of.supervision)] if of.supervision != 1 else []
        for name, losses, supervision in fits:
            lasts = []
            for start, begin in enumerate(begins[:starts]):
                key = ("haddock_synthetic", n, draw, number, name, start, *options.values())
                how = {"losses": losses, "supervision": supervision} | options
                lasts.append(experiment.part(parts, key, partial(
                    error_of_fit, of, (X, Y), means, begin, how
                )))  # fmt: skip
            found[number, name] = float(np.mean(np.resize(lasts, STARTS) / firsts))
        print(f"draw {draw}, experiment {number} done", flush=True)
    return found


def table(draws: list[dict[Any, float]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return one row for each cell of the table, and the table with a row for each experiment."""
    rows, summary = [], []
    for number, of in EXPERIMENTS.items():
        line: dict[str, Any] = {"experiment": number}
        for losses, paper in zip(MODELS, PAPER[number], strict=True):
            values = [found[number, losses] for found in draws]
            here = float(np.mean(values))
            line[f"{losses}, paper"], line[losses] = paper, here
            rows.append({
                "experiment": number, "model": losses, "paper": paper, "here": here,
                "difference": here - paper, "least draw": min(values), "largest draw": max(values),
            })  # fmt: skip
        line["lowest, paper"] = min(MODELS, key=lambda losses: line[f"{losses}, paper"])
        line["lowest"] = min(MODELS, key=lambda losses: line[losses])
        own = [found[number, "lambda"] for found in draws if (number, "lambda") in found]
        line["maximum likelihood, its lambda"] = float(np.mean(own)) if own else None
        summary.append(line)
        if own:
            rows.append({"experiment": number, "model": f"{of.losses}, lambda {of.supervision:g}",
                         "paper": None, "here": float(np.mean(own))})  # fmt: skip
    return rows, summary


def draw_figure(rows: list[dict[str, Any]]) -> Any:
    """Plot the errors of the paper, and means and ranges over draws here."""
    figure, axes = experiment.panels(len(EXPERIMENTS), 4, (2.5, 2.7))
    for ax, number in zip(axes, EXPERIMENTS, strict=True):
        here = [row for row in rows if row["experiment"] == number and row["paper"] is not None]
        at = np.arange(len(here))
        ranges = [[row["here"] - row["least draw"] for row in here],
                  [row["largest draw"] - row["here"] for row in here]]  # fmt: skip
        ax.errorbar(at, [r["here"] for r in here], ranges, fmt="o", label="here, range of draws")
        ax.plot(at, [r["paper"] for r in here], "x", color="C3", label="paper")
        ax.set(title=f"experiment {number}", xlim=(-0.5, 3.5))
        ax.set_xticks(at, [row["model"] for row in here])
    axes[0].set_ylabel("relative error")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    """Run the script from the command line."""
    parser = experiment.parser(__doc__)
    experiment.add_parts(parser)
    parser.add_argument("--draws", type=int, help="of the true factors; default: 4")
    options = parser.parse_args()
    n, draws, starts = 500, options.draws or 4, STARTS
    fit: dict[str, Any] = {"solver": "cd", "tol": 1e-6, "max_iter": 200}
    if options.full:
        fit = {"solver": "mu", "tol": 0, "max_iter": 100_000}
    if options.smoke:
        n, draws, starts, fit["max_iter"] = 60, 1, 1, 3
    with ProcessPoolExecutor(options.threads) as pool:
        run = partial(errors_of_draw, n=n, starts=starts, options=fit, parts=options.parts)
        found = list(pool.map(run, range(draws)))
    rows, summary = table(found)
    experiment.keep("haddock_2", rows, draw_figure(rows), options, summary=summary)


if __name__ == "__main__":
    main()
