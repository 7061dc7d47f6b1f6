"""Permutation tests in plain Python and NumPy: slow and simple."""

from itertools import combinations, permutations, product

import numpy as np
from oracle import alternate_normalisation, has_balance

_WORD = 2**64 - 1


def _rotate(x, k):
    return ((x << k) | (x >> (64 - k))) & _WORD


def random_words(state):
    """Yield the numbers of xoshiro256++ (Blackman and Vigna)."""
    s = [int(word) for word in state]
    while True:
        yield (_rotate((s[0] + s[3]) & _WORD, 23) + s[0]) & _WORD
        t = (s[1] << 17) & _WORD
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = _rotate(s[3], 45)


def random_below(words, n):
    """Return a number from 0 to n - 1, by multiplication and rejection (Lemire)."""
    while True:
        value = (next(words) >> 32) * n
        if value % 2**32 >= 2**32 % n:
            return value >> 32


def permuted_labels(state, sizes):
    """Return labels of units, ordered by strata and shuffled within each."""
    words, out = random_words(state), []
    for stratum in np.asarray(sizes):
        n = int(stratum.sum())
        order = list(range(n))
        for i in range(n - int(stratum[-1])):
            j = i + random_below(words, n - i)
            order[i], order[j] = order[j], order[i]
        labels = np.zeros(n, int)
        labels[order] = np.repeat(np.arange(stratum.size), stratum)
        out.append(labels)
    return np.concatenate(out)


def all_labellings(labels, strata):
    """Yield every way to give labels to other units of their strata, each once."""
    labels, strata = np.asarray(labels), np.asarray(strata)
    places = [np.flatnonzero(strata == each) for each in np.unique(strata)]
    ways = [sorted(set(permutations(labels[at].tolist()))) for at in places]
    for chosen in product(*ways):
        out = labels.copy()
        for at, part in zip(places, chosen, strict=True):
            out[at] = part
        yield out


def cosine(rows, labels):
    """Return the mean cosine of the sums of rows over groups; small if groups differ."""
    sums = [rows[labels == g].sum(axis=0) for g in np.unique(labels)]
    unit = [s / np.linalg.norm(s) for s in sums]
    return np.mean([a @ b for a, b in combinations(unit, 2)])


def hellinger(rows, labels):
    """Return the share of the sum of squares of root proportions that lies between groups."""
    roots = np.sqrt(rows / rows.sum(axis=1, keepdims=True))
    mean = roots.mean(axis=0)
    means = [(np.sum(labels == g), roots[labels == g].mean(axis=0)) for g in np.unique(labels)]
    return sum(n * np.sum((m - mean) ** 2) for n, m in means) / np.sum((roots - mean) ** 2)


def balanced(rows, labels):
    """Return the sum of squared deviations of the balanced table from 1/sqrt(T), or infinity."""
    table = np.stack([rows[labels == g].sum(axis=0) for g in np.unique(labels)], axis=1)
    if not has_balance(table > 0):
        return np.inf
    return np.sum((alternate_normalisation(table, sweeps=50) - 1 / np.sqrt(len(table))) ** 2)


def welch(rows, labels, strata=None):
    """Return the normal score of Welch's distance between the means of groups."""
    rows = rows / rows.sum(axis=1, keepdims=True)
    strata = np.zeros(len(rows), int) if strata is None else np.asarray(strata)
    rows = rows - np.array([rows[strata == each].mean(axis=0) for each in strata])
    covariance = rows.T @ rows / len(rows)
    d = np.trace(covariance) ** 2 / np.trace(covariance @ covariance)
    least = 1e-5 * np.trace(covariance)
    groups = [rows[labels == g] for g in np.unique(labels)]
    n = np.array([len(group) for group in groups])
    free = np.maximum(n - 1, 1)
    v = np.array([((group - group.mean(axis=0)) ** 2).sum() / (len(group) - 1 or 1)
                  for group in groups])  # fmt: skip
    if (n == 1).any():
        free[n == 1] = max(1, (n - 1).sum())
        v[n == 1] = (v * (n - 1)).sum() / free[n == 1][0]
    v = v + least
    means = np.array([group.mean(axis=0) for group in groups])
    share = n / n.sum()
    expected = sum((1 - share) * v)
    f = sum(n * ((means - share @ means) ** 2).sum(axis=1)) / expected
    within = d * expected**2 / sum(((1 - share) * v) ** 2 / free)
    between = d * expected**2 / (sum(v**2) + sum(share * v) ** 2 - 2 * sum(share * v**2))
    a, b = 2 / (9 * between), 2 / (9 * within)
    return ((1 - b) * f ** (1 / 3) - (1 - a)) / np.sqrt(a + b * f ** (2 / 3))
