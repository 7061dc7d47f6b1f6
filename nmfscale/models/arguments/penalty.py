"""SparsityPenalty: the parameter `penalty` of the models that can make a factor sparse."""

from __future__ import annotations

from dataclasses import field
from numbers import Real
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from ...methods.projection.penalty import Penalty
from .parameters import CheckedParameters, estimator

PenaltyNorm: TypeAlias = Literal["l1", "l2"]
PenalisedFactor: TypeAlias = Literal["loadings", "components"]


@estimator
class SparsityPenalty(CheckedParameters, BaseEstimator):
    """Penalty that makes the loadings or the components of a fit sparse.

    It is the parameter `penalty` of :class:`~nmfscale.PoissonNMF` and
    :class:`~nmfscale.TopicModel` with solver="joint-em". The penalty ``weight * sum_ik l_ik **
    exponent`` on the loadings (times known sizes) is subtracted from the log-likelihood, with the
    norms of the columns of F held at one [1]_ (equation 36). The share of zeros grows with the
    weight, except for the first of these penalties:

    - exponent 1, "l1": loadings are divided by ``1 + weight``. Components and shares do not change,
      and no loading becomes zero (Lemma 6.1). `callback` and progress show the fit without the
      penalty.
    - exponent 1, "l2": loadings become sparse, and components spread over more features, which
      explain more counts at the same Euclidean norm.
    - exponent below 1, "l1": small loadings become zero, where the penalty is steepest.
    - exponent below 1, "l2": both.

    With on="components" the four do the same with loadings and components exchanged, as in a fit of
    the transposed counts.

    Parameters
    ----------
    weight : float
        Weight of the penalty, not negative. 0 means no penalty.
    exponent : float, default=1.0
        Exponent of the penalty, above 0 and at most 1. Below 1, it is not convex: a fit that starts
        from the factors of a fit without a penalty (`loadings` and `components` of ``fit``) often
        ends higher. At the end of a fit and in ``transform``, each sample (or feature) then
        searches which of its parameters are zero: no parameter that becomes zero, or positive, by
        itself improves the optimum. With few components this is the best of all subsets in tests
        with up to 5; with many, a better one may exist. The search takes about `n_components` times
        as long.
    norm : {"l1", "l2"}, default="l1"
        Norm, held at one, of the columns of the factor without the penalty: their sum, or their
        Euclidean norm. Without norms, the same optimum has the penalty ``weight * sum_k ||f_k|| **
        q * sum_i l_ik ** q`` with q the exponent (equation 37 and Theorem F.1).
    on : {"loadings", "components"}, default="loadings"
        Factor that the penalty makes sparse. With "components", columns of the loadings (times
        known sizes) have norm one over the samples, where a sample of weight 2 counts like two
        samples; ``transform`` finds loadings of new samples without a penalty.

    Raises
    ------
    TypeError
        If there is no such parameter. A fit raises a ValueError if a value is not valid, or if the
        solver is another one.

    References
    ----------
    .. [1] Geiger, Park. On the connection between NMF and LDA.

    Examples
    --------
    >>> import nmfscale
    >>> from nmfscale.experimental import SparsityPenalty
    >>> counts, truth = nmfscale.datasets.simulate_poisson_nmf(200, 100, 3, random_state=0)
    >>> penalty = SparsityPenalty(10.0, exponent=0.5, on="components")
    >>> model = nmfscale.PoissonNMF(3, solver="joint-em", penalty=penalty, random_state=1)
    >>> sparse = model.fit(counts)
    >>> dense = nmfscale.PoissonNMF(3, random_state=1).fit(counts)
    >>> bool((sparse.components_ == 0).mean() > (dense.components_ == 0).mean() + 0.2)
    True

    It is set in a search like the parameters of a step of a pipeline:

    >>> model.set_params(penalty__weight=1.0).penalty
    SparsityPenalty(exponent=0.5, on='components', weight=1.0)
    """

    weight: float = field(kw_only=False)
    exponent: float = 1.0
    norm: PenaltyNorm = "l1"
    on: PenalisedFactor = "loadings"

    public_name: ClassVar[str] = "nmfscale.experimental.SparsityPenalty"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "weight": [Interval(Real, 0, None, closed="left")],
        "exponent": [Interval(Real, 0, 1, closed="right")],
        "norm": [StrOptions(set(get_args(PenaltyNorm)))],
        "on": [StrOptions(set(get_args(PenalisedFactor)))],
    }


def penalty_of(parameter: SparsityPenalty | None) -> Penalty:
    """Return the penalty of a fit, whose weight is 0 if there is none."""
    if parameter is None or not parameter.weight:
        return Penalty(0.0)
    return Penalty(float(parameter.weight), float(parameter.exponent), parameter.norm, parameter.on)


def check_solver(parameter: SparsityPenalty | None, solver: str) -> None:
    """Refuse a penalty if no factor is normalised: it would shrink one and grow the other."""
    if penalty_of(parameter).weight and solver != "joint-em":
        raise ValueError(
            f"penalty={parameter} cannot be combined with solver={solver!r}, which does not "
            "normalise a factor; use solver='joint-em', or prior_loadings and prior_factors."
        )
