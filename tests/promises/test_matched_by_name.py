"""What belongs together by name is matched by name, whatever the order of an argument is."""

import numpy as np
import pandas as pd
import pytest

import nmfscale

N, M, K = 24, 10, 2
RNG = np.random.default_rng(0)
X = RNG.poisson(RNG.gamma(0.5, 4, (N, K)) @ RNG.gamma(0.5, 1, (K, M)) + 0.1)
SAMPLES = pd.Index([f"cell{i}" for i in range(N)])
FEATURES = pd.Index([f"gene{j}" for j in range(M)])
COUNTS = pd.DataFrame(X, index=SAMPLES, columns=FEATURES)
GROUPS = np.repeat(["a", "b"], N // 2)
UNITS = np.arange(N) // 2
STRATA = np.arange(N) // 2 % 2
LOADINGS = RNG.dirichlet([1] * K, N)


def of_samples(values, extra=False):
    """Values with the names of the samples, in another order; perhaps of other samples too."""
    values = np.asarray(values)
    table = pd.DataFrame(values.reshape(N, -1), index=SAMPLES)
    if extra:
        table = pd.concat([table, table.iloc[:3].set_axis(["x", "y", "z"])])
    table = table.sample(frac=1, random_state=1)
    return table.iloc[:, 0] if values.ndim == 1 else table


QUESTIONS = {
    "permutation_test": lambda loadings, of: nmfscale.permutation_test(
        loadings, of(GROUPS), units=of(UNITS), strata=of(STRATA), n_permutations=50, random_state=0
    ).to_frame(),
    "bootstrap_weights": lambda loadings, of: nmfscale.bootstrap_weights(
        loadings, of(GROUPS), units=of(UNITS), strata=of(STRATA), n_replicates=20, random_state=0
    ).to_frame(),
    "group_effects": lambda loadings, of: nmfscale.group_effects(
        loadings, of(GROUPS), units=of(UNITS), n_replicates=20, n_permutations=50, random_state=0
    ).to_frame(),
    "regress_proportions": lambda loadings, of: nmfscale.regress_proportions(
        loadings, {"group": of(GROUPS), "age": of(np.arange(N) % 7)}, strata=of(STRATA),
        n_replicates=20, n_permutations=50, random_state=0,
    ).to_frame(),
    "regress_proportions, table": lambda loadings, of: nmfscale.regress_proportions(
        loadings, of(np.stack([np.arange(N) % 7, np.arange(N) // 12], axis=1)), units=of(UNITS),
        n_replicates=20, n_permutations=0, random_state=0,
    ).to_frame().drop(columns="term"),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.filterwarnings("ignore")
def test_questions_about_loadings(question):
    ask = QUESTIONS[question]
    expected = ask(LOADINGS, lambda values: values).astype(str)
    named = pd.DataFrame(LOADINGS, index=SAMPLES)
    for extra in (False, True):
        found = ask(named, lambda values, extra=extra: of_samples(values, extra)).astype(str)
        pd.testing.assert_frame_equal(found, expected)
    with pytest.raises(ValueError, match="such as 'cell0', 'cell1', 'cell2'"):
        ask(named, lambda values: of_samples(values).rename("old_{}".format))
