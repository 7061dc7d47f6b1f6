"""Every kernel against plain NumPy, at every instruction set that the processor has."""

import os
import subprocess
import sys

import numpy as np
import oracle
import oracle_ssnmf
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special
from scipy.optimize import nnls
from small_fits import at_level

from nmfscale import kernels

LANES = 16
FLOOR = 1e-10
# Stored correlations in [0, 1] have so many steps, and are taken for a little smaller.
UNITS, SHRINK = 65535, 1 / 4096
# A second-order step whose quadratic programme ends after so many sweeps, as the oracle's does.
SIX_SWEEPS = {"newton_steps": 1, "qp_sweeps": 6, "qp_tolerance": 0.0}
LEVELS = kernels.available_levels()
COMPONENTS = [1, 2, 3, 5, 6, 10, 12, 13, 17, 33]
DTYPES = [np.float32, np.float64]
# Coordinate descent and second-order steps divide small differences: they lose more than EM.
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-10}
LOOSE = {np.float32: 2e-2, np.float64: 1e-8}


@pytest.fixture(params=LEVELS)
def level(request):
    with at_level(request.param):
        yield request.param


def aligned(values, dtype=None):
    """A copy that starts on a cache line."""
    values = np.asarray(values, dtype)
    raw = np.empty(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


def padded(factor, dtype, n_rows=None, empty=0.0):
    """Rows padded to the stride of the kernels, and with `empty` rows to n_rows."""
    n, K = factor.shape
    out = np.zeros((n_rows or n, kernels.row_stride(K)))
    out[:, :K] = empty
    out[:n, :K] = factor
    return aligned(out, dtype)


class Problem:
    """Dense counts X (n, m), rows b (n, K) that move, rows a (m, K) held; sliced by hand."""

    def __init__(self, K, dtype, n=21, m=40, seed=0, index=np.uint16, count=np.float64, largest=9):
        rng = np.random.default_rng(seed + 100 * K)
        self.K, self.dtype, self.n, self.m = K, dtype, n, m
        self.a = rng.gamma(1.0, size=(m, K)).astype(dtype) + dtype(1e-3)
        self.b = rng.gamma(1.0, size=(n, K)).astype(dtype) / dtype(K) + dtype(1e-3)
        self.X = rng.poisson(self.b @ self.a.T).astype(np.float64)
        self.X[:, 1] = 0
        self.X[0, 2] = largest
        if n > 3:
            self.X[3] = 0
        if np.issubdtype(count, np.floating):
            self.X *= rng.integers(1, 9, self.X.shape) / 4
        self.u = self.a.sum(axis=0, dtype=np.float64).astype(dtype)
        self.n_slices = -(-n // LANES)
        self.counts = self.sliced(self.X, index, count)

    def sliced(self, X, index, count, dense=None):
        rows = [np.flatnonzero(x) for x in X] + [[]] * (-len(X) % LANES)
        length = np.array([len(row) for row in rows]).reshape(-1, LANES).max(axis=1)
        offset = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        at, y = np.zeros(offset[-1] * LANES, index), np.zeros(offset[-1] * LANES, count)
        for i, row in enumerate(rows):
            steps = (offset[i // LANES] + np.arange(len(row))) * LANES + i % LANES
            at[steps] = row
            y[steps] = X[i, row] if len(row) else 0
        return kernels.SlicedCounts(at, y, offset, X.shape[1], dense=dense)

    def room_for_curvature(self):
        return np.zeros((self.n_slices, kernels.packed_size(self.K), LANES), np.uint16)

    def problem(self, **options):
        total = np.zeros(kernels.row_stride(self.K), self.dtype)
        total[: self.K] = self.u
        if options.get("moves") is not None:
            moves = np.asarray(options["moves"], self.dtype)
            options["moves"] = np.pad(moves, (0, len(total) - self.K))
        design = padded(self.a, self.dtype)
        return kernels.RowProblem(design, total, self.K, floor=FLOOR, **options)

    @property
    def start(self):
        return padded(self.b, self.dtype, self.n_slices * LANES, empty=FLOOR)

    def run(self, kernel, *, n_threads=2, rows=None, start=None, **options):
        """Where the rows arrive, in float64."""
        start = self.start if start is None else start
        end = aligned(np.full_like(start, 7))
        kernel(self.counts, self.problem(**options), start, end, n_threads=n_threads, **rows or {})
        assert np.all(end[:, self.K :] == 0)
        assert np.all(end[:, : self.K] > 0)
        return end[: self.n, : self.K].astype(np.float64)

    def expected(self, solver, prior=None):
        """solver(y, A, u, b) on every row in float64."""
        a, b, u = (x.astype(np.float64) for x in (self.a, self.b, self.u))
        out = np.empty_like(b)
        for i in range(self.n):
            problem = self.X[i], a, u
            if prior is not None:
                problem = oracle.with_prior(*problem, prior[0][i], prior[1][i])
            out[i] = np.maximum(solver(*problem, b[i]), FLOOR)
        return out

    def prior(self, seed=1):
        """Shapes and rates (n, K), as the oracle takes them, and the arrays of the kernels."""
        rng = np.random.default_rng(seed)
        shape = 1 + rng.integers(0, 3, (self.n, self.K)) / 2
        rate = rng.uniform(0, 2, (self.n, self.K)).astype(self.dtype).astype(np.float64)
        n_lanes = self.n_slices * LANES
        rows = {
            "pseudo": padded(shape - 1, self.dtype, n_lanes),
            "rate": padded(rate, self.dtype, n_lanes),
        }
        return (shape, rate), rows


def newton_once(y, A, u, b, n_sweeps, curvature=lambda H: H):
    """One second-order step with the kernels' number of sweeps over the quadratic."""
    g, H = oracle.row_derivatives(y, A, u, b)
    return b + oracle.minimise_quadratic(g, curvature(H), b, n_sweeps=n_sweeps)


def packed(H):
    """Lower triangle, row by row."""
    return H[np.tril_indices(len(H))]


# Row solvers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", COMPONENTS)
def test_update_rows_takes_em_steps(level, K, dtype):
    p = Problem(K, dtype)
    end = p.run(kernels.update_rows, em_steps=3)
    expected = p.expected(lambda y, A, u, b: oracle.em(y, A, u, b, 3))
    assert_allclose(end, expected, rtol=TOLERANCE[dtype], atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", COMPONENTS)
def test_update_rows_takes_a_newton_step(level, K, dtype):
    p = Problem(K, dtype)
    end = p.run(kernels.update_rows, **SIX_SWEEPS)
    expected = p.expected(lambda y, A, u, b: newton_once(y, A, u, b, 6))
    assert_allclose(end, expected, rtol=LOOSE[dtype], atol=LOOSE[dtype] * p.b.max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 6, 13])
def test_update_rows_takes_em_steps_before_newton_steps(level, K, dtype):
    p = Problem(K, dtype)

    def solver(y, A, u, b):
        b = np.maximum(oracle.em(y, A, u, b, 2), FLOOR)
        for _ in range(2):
            b = np.maximum(newton_once(y, A, u, b, 8), FLOOR)
        return b

    end = p.run(kernels.update_rows, em_steps=2, newton_steps=2, qp_sweeps=8, qp_tolerance=0.0)
    assert_allclose(end, p.expected(solver), rtol=LOOSE[dtype], atol=LOOSE[dtype])


def test_a_tolerance_ends_the_quadratic_row_by_row(level):
    """A row's numbers do not depend on its neighbours: alone, it arrives at the same bits."""
    p = Problem(6, np.float64, n=16)
    options = {"newton_steps": 1, "qp_sweeps": 50, "qp_tolerance": 1e-3}
    together = p.run(kernels.update_rows, **options)
    for i in (0, 5, 15):
        alone = Problem(6, np.float64, n=16)
        alone.X[np.arange(16) != i] = 0
        alone.counts = alone.sliced(alone.X, np.uint16, np.float64)
        assert_array_equal(alone.run(kernels.update_rows, **options)[i], together[i])
    exact = p.run(kernels.update_rows, newton_steps=1, qp_sweeps=500, qp_tolerance=0.0)
    assert 0 < np.abs(together - exact).max() < 0.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", COMPONENTS)
def test_descend_is_coordinate_descent(level, K, dtype):
    p = Problem(K, dtype)
    end = p.run(kernels.descend, em_steps=1, newton_steps=2)
    expected = p.expected(lambda y, A, u, b: oracle.scd(y, A, u, oracle.em(y, A, u, b, 1), 2))
    assert_allclose(end, expected, rtol=10 * LOOSE[dtype], atol=10 * LOOSE[dtype])
    assert_allclose(oracle_loss(p, end), oracle_loss(p, expected), rtol=LOOSE[dtype], atol=1e-6)


def oracle_loss(p, b):
    """Loss of every row."""
    return [oracle.row_loss(p.X[i], p.a.astype(float), p.u.astype(float), b[i]) for i in range(p.n)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 2, 6, 12, 13])
def test_guarded_descend_is_scalar_newton(level, K, dtype):
    p = Problem(K, dtype)
    p.b *= dtype(20)  # so far away that full steps would overshoot
    end = p.run(kernels.descend, newton_steps=2, guarded=True)
    expected = p.expected(lambda y, A, u, b: oracle.sn(y, A, u, b, 2))
    assert_allclose(end, expected, rtol=10 * LOOSE[dtype], atol=10 * LOOSE[dtype])
    # Rounding aside, no row's loss rises.
    before, after = np.array(oracle_loss(p, p.b.astype(float))), np.array(oracle_loss(p, end))
    assert np.all(after <= before + 100 * np.finfo(dtype).eps * np.abs(before))


@pytest.mark.parametrize("count", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("index", [np.uint16, np.int32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_types_of_indices_and_counts(level, dtype, index, count):
    largest = {np.uint8: 255, np.uint16: 65535}.get(count, 3.25)
    p = Problem(5, dtype, index=index, count=count, largest=largest)
    end = p.run(kernels.update_rows, em_steps=1)
    expected = p.expected(lambda y, A, u, b: oracle.em(y, A, u, b, 1))
    assert_allclose(end, expected, rtol=TOLERANCE[dtype], atol=1e-9)
    end = p.run(kernels.descend, em_steps=1)
    assert_allclose(end, expected, rtol=TOLERANCE[dtype], atol=1e-9)


def test_indices_beyond_two_bytes(level):
    p = Problem(2, np.float64, n=2, m=70_000, index=np.int32)
    end = p.run(kernels.update_rows, em_steps=1)
    expected = p.expected(lambda y, A, u, b: oracle.em(y, A, u, b, 1))
    assert_allclose(end, expected, rtol=1e-10)


@pytest.mark.parametrize("kernel", ["update_rows", "descend"])
@pytest.mark.parametrize("n", [1, 15, 16, 17])
def test_numbers_of_rows_around_a_slice(level, n, kernel):
    p = Problem(6, np.float64, n=n)
    end = p.run(getattr(kernels, kernel), em_steps=1)
    expected = p.expected(lambda y, A, u, b: oracle.em(y, A, u, b, 1))
    assert_allclose(end, expected, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(
    "options", [{"em_steps": 1}, {"newton_steps": 1}, {"em_steps": 1, "newton_steps": 1}]
)
@pytest.mark.parametrize("kernel", ["update_rows", "descend"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_rows_go_to_the_floor(level, dtype, kernel, options):
    p = Problem(5, dtype, n=17)
    p.X[:] = 0
    p.counts = p.sliced(p.X, np.uint16, np.uint8)
    end = p.run(getattr(kernels, kernel), **options)
    assert_allclose(end, FLOOR, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["update_rows", "descend"])
def test_nothing_is_written_beyond_the_rows(level, kernel):
    p = Problem(7, np.float64)
    room = aligned(np.full((p.n_slices + 2, LANES, 8), np.pi))
    reports = np.full((4, p.n_slices + 2, LANES), np.pi)
    names = (
        ["loglik_end"]
        if kernel == "descend"
        else ["loglik_start", "kkt_start", "loglik_end", "kkt_end"]
    )
    rows = {name: reports[i, 1:-1].reshape(-1) for i, name in enumerate(names)}
    end = room[1:-1].reshape(-1, 8)
    getattr(kernels, kernel)(
        p.counts, p.problem(em_steps=1, newton_steps=1), p.start, end, n_threads=2, **rows
    )
    assert not np.any(end == np.pi)
    assert np.all(room[[0, -1]] == np.pi)
    assert np.all(reports[:, [0, -1]] == np.pi)


# Priors, held coordinates ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 3, 6, 13])
def test_priors(level, K, dtype):
    p = Problem(K, dtype)
    prior, rows = p.prior()
    # From here on, no step overshoots to where a prior has no density.
    p.b = p.expected(lambda y, A, u, b: oracle.em(y, A, u, b, 20), prior).astype(dtype)
    end = p.run(kernels.update_rows, em_steps=2, rows=rows)
    expected = p.expected(lambda y, A, u, b: oracle.em(y, A, u, b, 2), prior)
    assert_allclose(end, expected, rtol=TOLERANCE[dtype], atol=1e-9)
    end = p.run(kernels.update_rows, **SIX_SWEEPS, rows=rows)
    expected = p.expected(lambda y, A, u, b: newton_once(y, A, u, b, 6), prior)
    assert_allclose(end, expected, rtol=LOOSE[dtype], atol=LOOSE[dtype])
    end = p.run(kernels.descend, em_steps=1, newton_steps=1, rows=rows)
    expected = p.expected(
        lambda y, A, u, b: oracle.scd(y, A, u, oracle.em(y, A, u, b, 1), 1), prior
    )
    assert_allclose(end, expected, rtol=10 * LOOSE[dtype], atol=10 * LOOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [2, 6, 13])
def test_held_coordinates_stay(level, K, dtype):
    p = Problem(K, dtype)
    moves = np.arange(K) % 2 == 0
    b = p.b.astype(np.float64)

    def newton(y, A, u, b):
        g, H = oracle.row_derivatives(y, A, u, b)
        d = np.zeros_like(b)
        d[moves] = oracle.minimise_quadratic(g[moves], H[np.ix_(moves, moves)], b[moves], 6)
        return b + d

    end = p.run(kernels.update_rows, em_steps=1, moves=moves)
    assert_array_equal(end[:, ~moves], b[:, ~moves])
    em = p.expected(lambda y, A, u, b: oracle.em(y, A, u, b, 1))
    assert_allclose(end[:, moves], em[:, moves], rtol=TOLERANCE[dtype], atol=1e-9)
    end = p.run(kernels.update_rows, **SIX_SWEEPS, moves=moves)
    assert_array_equal(end[:, ~moves], b[:, ~moves])
    assert_allclose(end, p.expected(newton), rtol=LOOSE[dtype], atol=LOOSE[dtype])
    end = p.run(kernels.descend, newton_steps=2, guarded=True, moves=moves)
    assert_array_equal(end[:, ~moves], b[:, ~moves])
    losses = [np.array(oracle_loss(p, x)) for x in (end, b)]
    assert np.all(losses[0] <= losses[1] + 100 * np.finfo(dtype).eps * np.abs(losses[1]))
    assert np.any(end[:, moves] != b[:, moves])


# Mean-field steps -------------------------------------------------------------------------------

TINY_TO_LARGE = np.concatenate([10.0 ** np.linspace(-10, 8, 301), [0.5, 1, 2, 3.999, 4, 7.999, 8]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_gamma_functions(level, dtype):
    x = TINY_TO_LARGE.astype(dtype)
    wide, eps = x.astype(float), np.finfo(dtype).eps
    found = {}
    for name in ("digamma", "exp_digamma", "log_gamma"):
        found[name] = np.full(len(x), np.nan, dtype)
        getattr(kernels, name)(x, found[name], n_threads=2)
        one = np.full(1, np.nan, dtype)
        for i in (0, 100, len(x) - 1):  # wherever a number is
            getattr(kernels, name)(x[i : i + 1], one, n_threads=1)
            assert one[0] == found[name][i]
    assert_allclose(found["digamma"], special.psi(wide), rtol=10 * eps, atol=10 * eps)
    assert_allclose(found["log_gamma"], special.gammaln(wide), rtol=10 * eps, atol=50 * eps)
    expected = np.exp(special.psi(wide))  # an absolute error of psi is a relative one here
    slack = 10 * eps * expected * (1 + np.abs(special.psi(wide))) + 100 * np.finfo(dtype).tiny
    assert np.all(np.abs(found["exp_digamma"] - expected) <= slack)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extrapolate_log(level, dtype):
    rng = np.random.default_rng(0)
    now, before = (rng.gamma(0.1, size=(37, 6)).astype(dtype) + dtype(1e-9) for _ in range(2))
    now[:, 5] = before[:, 5] = 0  # what fills up a row
    out = np.full_like(now, np.nan)
    kernels.extrapolate_log(now, before, out, 0.9, n_threads=2)
    expected = now * (np.maximum(now, 1e-30) / np.maximum(before, 1e-30)).astype(float) ** 0.9
    assert_allclose(out, expected, rtol=50 * np.finfo(dtype).eps)
    kernels.extrapolate_log(now, before, before, 0.9, n_threads=1)
    assert_array_equal(before, out)


def test_gamma_functions_of_a_wrong_type_are_refused():
    for x, out in (
        (np.ones(3, int), np.ones(3)), (np.ones(3), np.ones(4)), (np.ones(4)[::2], np.ones(2))
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            kernels.digamma(x, out, n_threads=1)


class Documents(Problem):
    """Rows that are shapes of posteriors over topics, whose columns sum to one."""

    def __init__(self, K, dtype, n=21, m=40, seed=0, step=kernels.DIRICHLET, **options):
        super().__init__(K, dtype, n, m, seed, **options)
        rng = np.random.default_rng(seed + 7 * K)
        self.a = (self.a / self.a.sum(axis=0)).astype(dtype)
        self.b = rng.gamma(1.0, size=(n, K)).astype(dtype) + dtype(0.1)
        self.alpha = rng.uniform(0.05, 0.5, K).astype(dtype)
        self.step, self.rate, self.filling = step, None, 0
        if step == kernels.GAMMA:
            self.u = rng.uniform(0.5, 2, K).astype(dtype)
            self.rate = rng.uniform(0, 2, (n, K)).astype(dtype)

    @property
    def start(self):
        start = padded(self.b, self.dtype, self.n_slices * LANES)
        start[:, self.K :] = self.filling
        return start

    def infer(self, n_threads=2, rows=(), **options):
        """Arrays of everything an update writes, in lanes."""
        alpha = np.pad(self.alpha, (0, kernels.row_stride(self.K) - self.K))
        problem = self.problem(step=self.step, alpha=alpha, **options)
        start = self.start
        out = {name: aligned(np.full_like(start, 7)) for name in ("end", "theta", "log_end")}
        for name in ("loglik_start", "loglik_end", "prior_end"):
            out[name] = np.full(len(start), np.nan)
        given = dict(out)
        if self.rate is not None:
            given["rate"] = padded(self.rate, self.dtype, len(start))
        kernels.update_rows(
            self.counts, problem, start, given.pop("end"), n_threads=n_threads, **given
        )
        assert_array_equal(out["log_end"][:, self.K :], 0)
        for name in ("end", "theta"):  # what fills up a row stays
            assert_array_equal(out[name][:, self.K :], start[:, self.K :])
        assert all(np.isfinite(array).all() for array in out.values())
        return out

    def expected_rows(self, n_steps, tolerance=0.0):
        """gamma, theta and sum y log mu of every row."""
        a, b, alpha = (x.astype(float) for x in (self.a, self.b, self.alpha))
        rates = [None] * self.n if self.rate is None else self.u.astype(float) + self.rate
        rows = [
            oracle.mean_field(self.X[i], a, alpha, b[i], n_steps, tolerance, rates[i])
            for i in range(self.n)
        ]
        return [np.array(x) for x in zip(*rows, strict=True)]


STEPS = [kernels.DIRICHLET, kernels.GAMMA]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("K", [1, 3, 10, 17])
def test_update_rows_takes_mean_field_steps(level, K, step, dtype):
    p = Documents(K, dtype, step=step)
    for n_steps in (1, 4):
        found = p.infer(inner_steps=n_steps)
        gamma, theta, loglik = p.expected_rows(n_steps)
        size = TOLERANCE[dtype] * p.X.sum(axis=1).max()
        assert_allclose(found["end"][: p.n, :K], gamma, rtol=TOLERANCE[dtype])
        assert_allclose(found["theta"][: p.n, :K], theta, rtol=TOLERANCE[dtype], atol=1e-29)
        assert_allclose(found["loglik_end"][: p.n], loglik, rtol=TOLERANCE[dtype], atol=size)
        first = p.expected_rows(1)[2]
        assert_allclose(found["loglik_start"][: p.n], first, rtol=TOLERANCE[dtype], atol=size)
        scale = special.psi(gamma.sum(axis=1, keepdims=True))
        if step == kernels.GAMMA:
            scale = np.log(p.u.astype(float) + p.rate)
        log_end = special.psi(gamma) - scale
        limit = TOLERANCE[dtype] * np.maximum(1, np.abs(log_end))
        assert np.all(np.abs(found["log_end"][: p.n, :K] - log_end) <= limit)
        # a row without counts goes to the prior, and so does a lane without a row
        empty = p.X.sum(axis=1) == 0
        assert empty.any()
        assert_array_equal(found["end"][: p.n, :K][empty], np.tile(p.alpha, (empty.sum(), 1)))
        assert_array_equal(found["end"][p.n :, :K], np.tile(p.alpha, (len(p.start) - p.n, 1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 3, 10, 17])
def test_mean_field_steps_end_row_by_row(level, K, dtype):
    """A row ends by its own change, so that its bits do not depend on its neighbours."""
    p = Documents(K, dtype, n=37)
    options = {"inner_steps": 100, "tolerance": 1e-2}
    together = p.infer(**options)
    if dtype == np.float64:
        for found, expected in zip(
            (together["end"][:, :K], together["theta"][:, :K], together["loglik_end"]),
            p.expected_rows(100, 1e-2), strict=True,
        ):  # fmt: skip
            assert_allclose(found[: p.n], expected, rtol=1e-9, atol=1e-9)
    order = np.random.default_rng(K).permutation(p.n)
    other = Documents(K, dtype, n=37)
    other.b, other.X = p.b[order], p.X[order]
    other.counts = other.sliced(other.X, np.uint16, np.float64)
    shuffled = other.infer(n_threads=1, **options)
    for name, array in together.items():
        assert_array_equal(array[: p.n][order], shuffled[name][: p.n])
    exact = p.infer(inner_steps=100)
    assert K == 1 or not np.array_equal(exact["end"], together["end"])


@pytest.mark.parametrize("K", [3, 10, 17])
def test_what_fills_up_the_shapes_makes_no_difference(level, K):
    p = Documents(K, np.float32)
    without = p.infer(inner_steps=3)
    p.filling = 0.5
    for name, array in p.infer(inner_steps=3).items():
        assert array[..., :K].tobytes() == without[name][..., :K].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 3, 10])
def test_the_bound_where_an_update_ends(level, K, dtype):
    p = Documents(K, dtype)
    found = p.infer(inner_steps=3)
    alpha, a = p.alpha.astype(float), p.a.astype(float)
    gamma, theta = (found[name][: p.n, :K].astype(float) for name in ("end", "theta"))
    constant = special.gammaln(alpha.sum()) - special.gammaln(alpha).sum()
    bound = found["loglik_end"][: p.n] + found["prior_end"][: p.n] + constant
    bound -= special.gammaln(gamma.sum(axis=1))
    for i in range(p.n):
        phi = theta[i] * a
        phi /= phi.sum(axis=1, keepdims=True)
        expected = oracle.lda_bound(p.X[i], a, alpha, gamma[i], phi)
        assert_allclose(bound[i], expected, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])
    # and the counts of the columns, shared out in the same way, are what the rows took
    columns = Problem(K, dtype, n=p.m, m=p.n)
    columns.a, columns.b, columns.X = found["theta"][: p.n, :K], p.a, p.X.T
    columns.counts = columns.sliced(columns.X, np.uint16, np.float64)
    sums = np.zeros((columns.n_slices, K, LANES))
    kernels.sums(
        columns.counts, columns.problem(), columns.start, sums, wanted=kernels.SUM_GRADIENT,
        first=0, last=columns.n_slices, n_threads=2,
    )  # fmt: skip
    shared = a * sums.transpose(0, 2, 1).reshape(-1, K)[: p.m]
    assert_allclose(shared.sum(axis=0), (gamma - alpha).sum(axis=0), rtol=10 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("size", [0.0, 1e-10, 1e-3, 1e8])
def test_mean_field_steps_from_far_away(level, size, step, dtype):
    p = Documents(5, dtype, step=step)
    p.b[:] = dtype(size)
    p.b[::2, 1] = 1
    p.a[7] = 0  # a word that no topic has
    found = p.infer(inner_steps=2)
    total = p.X.sum(axis=1) - p.X[:, 7]
    taken = found["end"][: p.n, :5].astype(float) - p.alpha
    assert_allclose(taken.sum(axis=1), total, rtol=1e-5, atol=1e-5)


def test_what_mean_field_steps_need_is_asked_for():
    p = Documents(3, np.float64)
    alpha, total = np.ones(4), np.ones(4)
    for step, options in (
        (kernels.DIRICHLET, {}),
        (kernels.DIRICHLET, {"alpha": alpha, "inner_steps": 0}),
        (kernels.GAMMA, {"alpha": alpha, "total": None}),
    ):
        options = {"total": total} | options
        with pytest.raises(ValueError, match="a mean-field step needs alpha"):
            kernels.RowProblem(
                padded(p.a, np.float64), options.pop("total"), 3, step=step, **options
            )
    inference = p.problem(step=kernels.DIRICHLET, alpha=alpha)
    with pytest.raises(ValueError, match="neither reads nor writes"):
        kernels.update_rows(p.counts, p.problem(), p.start, p.start, n_threads=1, theta=p.start)
    with pytest.raises(ValueError, match="pseudo needs rate"):
        kernels.update_rows(p.counts, p.problem(), p.start, p.start, n_threads=1, pseudo=p.start)
    for name in ("kkt_start", "rate", "pseudo", "curvature"):
        with pytest.raises(ValueError, match="neither reads nor writes"):
            kernels.update_rows(
                p.counts, inference, p.start, p.start, n_threads=1, **{name: p.start}
            )


# Rows of many components -----------------------------------------------------------------------


def solved(p, *, n_threads=2, rows=None, **options):
    """Where rows end that are moved until they rest."""
    end = aligned(np.full_like(p.start, 7))
    tolerance = {np.float32: 1e-5, np.float64: 1e-12}[p.dtype]
    how = {"em_steps": 2, "newton_steps": 100, "qp_sweeps": 50, "qp_tolerance": 1e-14}
    problem = p.problem(tolerance=tolerance, **how | options)
    kernels.solve_rows(p.counts, problem, p.start, end, n_threads=n_threads, **rows or {})
    assert np.all(end[:, p.K :] == 0) and np.all(end >= 0)
    return end[: p.n, : p.K].astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("K", [1, 19, 50])
def test_rows_are_solved(level, K, prior, dtype):
    p = Problem(K, dtype)
    prior, rows = p.prior() if prior else (None, None)
    end = solved(p, rows=rows)
    enough = {np.float32: 1e-4, np.float64: 1e-10}[dtype]
    for i in range(p.n):
        y, A, u = p.X[i], p.a.astype(np.float64), p.u.astype(np.float64)
        if prior is not None:
            y, A, u = oracle.with_prior(y, A, u, prior[0][i], prior[1][i])
        if y.any():  # the conditions of Karush, Kuhn and Tucker: the problem is convex
            g, _ = oracle.row_derivatives(y, A, u, end[i])
            assert np.abs(end[i] * g).max() <= enough * y.sum()
            assert (g >= -100 * enough * u).all()
        else:
            assert not end[i].any()
    assert prior is not None or (end == 0).sum() > p.n * (K - 10)


def test_rows_are_solved_without_what_is_held_at_zero(level):
    p, moves = Problem(40, np.float64), np.arange(40) % 3 > 0
    inside = Problem(40, np.float64)
    inside.K, inside.a, inside.u, inside.b = 26, p.a[:, moves], p.u[moves], p.b[:, moves]
    end = solved(p, moves=moves)
    assert not end[:, ~moves].any()
    assert_allclose(end[:, moves], solved(inside), atol=1e-7)


def test_solved_rows_report_nothing(level):
    p = Problem(3, np.float64)
    with pytest.raises(ValueError, match="takes pseudo and rate, not kkt_end"):
        solved(p, rows={"kkt_end": np.zeros(p.n_slices * LANES)})


# By-products -----------------------------------------------------------------------------------


def log_mu(p, b):
    mu = b @ p.a.T.astype(np.float64)
    return (p.X * np.log(mu)).sum(axis=1)


def kkt(p, b):
    a, u = p.a.astype(np.float64), p.u.astype(np.float64)
    return np.abs(b * (u - (p.X / (b @ a.T)) @ a)).max(axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "steps", [{"em_steps": 1}, {"newton_steps": 1}, {"em_steps": 2, "newton_steps": 1}]
)
@pytest.mark.parametrize("K", [1, 6, 17])
def test_log_likelihood_and_kkt_before_and_after_an_update(level, K, steps, dtype):
    p = Problem(K, dtype)
    names = ("loglik_start", "kkt_start", "loglik_end", "kkt_end")
    rows = {name: np.full(p.n_slices * LANES, np.nan) for name in names}
    end = p.run(kernels.update_rows, rows=rows, **steps)
    found = {name: rows[name][: p.n] for name in names}
    size = p.X.sum(axis=1).max()
    for when, b in (("start", p.b.astype(np.float64)), ("end", end)):
        assert_allclose(
            found[f"loglik_{when}"],
            log_mu(p, b),
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype] * size,
        )
        assert_allclose(
            found[f"kkt_{when}"], kkt(p, b), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * size
        )
    assert all(np.all(array[p.n :] < 1e-6) for array in rows.values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_likelihood_and_kkt_of_a_descent(level, dtype):
    p = Problem(6, dtype)
    rows = {name: np.full(p.n_slices * LANES, np.nan) for name in ("kkt_start", "loglik_end")}
    end = p.run(kernels.descend, rows=rows, em_steps=1, newton_steps=2)
    size = TOLERANCE[dtype] * p.X.sum(axis=1).max()
    assert_allclose(rows["kkt_start"][: p.n], kkt(p, p.b.astype(np.float64)), atol=size)
    assert_allclose(rows["loglik_end"][: p.n], log_mu(p, end), atol=10 * size)


def test_only_looking_changes_nothing(level):
    p = Problem(6, np.float64)
    start, loglik = p.start, np.zeros(p.n_slices * LANES)
    before = start.copy()
    kernels.update_rows(p.counts, p.problem(), start, None, loglik_end=loglik, n_threads=1)
    assert_array_equal(start, before)
    assert_allclose(loglik[: p.n], log_mu(p, p.b), rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 4, 6, 10, 17])
def test_gather_dot_sums_expected_counts(level, K, dtype):
    p = Problem(K, dtype)
    out = np.full(p.n_slices * LANES, np.nan)
    kernels.gather_dot(p.counts, p.problem(), p.start, out, n_threads=2)
    expected = ((p.b.astype(float) @ p.a.T.astype(float)) * (p.X > 0)).sum(axis=1)
    assert_allclose(out[: p.n], expected, rtol=TOLERANCE[dtype])
    assert_array_equal(out[p.n :], 0)


# Stored curvature, sums and steps ---------------------------------------------------------------


def mode_of(stored, mode):
    """The rows' options of curvature that is stored, or was."""
    return {"curvature": stored, "curvature_mode": mode}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 5, 10, 13, 33])
def test_curvature_is_stored_and_brought_up_to_date(level, K, dtype):
    p = Problem(K, dtype)
    stored = p.room_for_curvature()
    fresh = p.run(kernels.update_rows, **SIX_SWEEPS)
    end = p.run(kernels.update_rows, rows=mode_of(stored, kernels.STORE), **SIX_SWEEPS)
    assert_array_equal(end, fresh)
    first = {}
    for i in range(p.n):
        y, A, u, b = p.X[i], p.a.astype(float), p.u.astype(float), p.b[i].astype(float)
        first[i] = oracle.row_derivatives(y, A, u, b)[1]
        scale = 1 / np.sqrt(np.diag(first[i]) + 1e-30)
        correlation = (first[i] * np.outer(scale, scale))[np.tril_indices(K, -1)]
        of_row = stored[i // LANES, :, i % LANES]
        assert_allclose(of_row[:-K], correlation * UNITS, atol=1.01)
        assert_allclose(from_upper_halves(of_row[-K:]), np.sqrt(np.diag(first[i])), rtol=0.005)

    p.b = p.b * (1 + np.arange(K, dtype=dtype) % 3)
    number = iter(range(p.n))

    def solver(y, A, u, b):
        old = first[next(number)]

        def curvature(H):
            scale = np.sqrt(np.diag(H) / (np.diag(old) + 1e-30))
            apart = (1 - SHRINK) * (1 - np.eye(K))
            return old * np.outer(scale, scale) * apart + np.diag(1.2 * np.diag(H))

        return newton_once(y, A, u, b, 6, curvature)

    end = p.run(
        kernels.update_rows,
        rows=mode_of(stored, kernels.REUSE),
        margin=1.2,
        **SIX_SWEEPS,
    )
    # Stored in 16 bits, whatever the type of the arithmetic.
    assert_allclose(end, p.expected(solver), rtol=LOOSE[np.float32], atol=1e-3)


def rescaled_by_numerators(stored, num, b):
    """D H D for the H that is stored, D such that (D H D) b is near num; the first ratios."""
    K = len(b)
    H = np.eye(K)
    H[np.tril_indices(K, -1)] = stored[:-K] / UNITS * (1 - SHRINK)
    roots = from_upper_halves(stored[-K:]).astype(float)
    H = np.maximum(H, H.T) * np.outer(roots, roots)
    D, ratios = np.ones(K), []
    for _ in range(2):
        ratios.append(num / np.maximum(D * (H @ (D * b)), 1e-30))
        D *= np.sqrt(ratios[-1])
    return H * np.outer(D, D), ratios[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 5, 10, 13, 33])
def test_stored_curvature_is_rescaled_by_the_numerators(level, K, dtype):
    p = Problem(K, dtype)
    stored = p.room_for_curvature()
    p.run(kernels.update_rows, rows=mode_of(stored, kernels.STORE), **SIX_SWEEPS)
    # half of the rows hardly move, the others so far that what was stored is worth nothing
    moved = np.where(np.arange(p.n)[:, None] % 2, 0.03, 4.0) * (np.arange(K) % 3)
    p.b = (p.b * (1 + moved)).astype(dtype)
    number, n_far = iter(range(p.n)), []

    def solver(y, A, u, b):
        i = next(number)
        num = A.T @ (y / (A @ b))
        H, ratio = rescaled_by_numerators(stored[i // LANES, :, i % LANES], num, b)
        far = bool(((ratio >= 1.5) | (1 >= 1.5 * ratio)).any())
        n_far.append(far)
        if not far:
            assert_allclose(H @ b, num, rtol=0.02)
        return newton_once(y, A, u, b, 6, lambda _: np.diag(u / b) if far else H)

    end = p.run(kernels.update_rows, rows=mode_of(stored, kernels.RESCALE), **SIX_SWEEPS)
    assert_allclose(end, p.expected(solver), rtol=LOOSE[dtype], atol=LOOSE[dtype] * p.b.max())
    assert 0 < sum(n_far) < p.n or K == 1
    # totals of their own, which rows have as rates, are the same as a common total
    rate = padded(np.broadcast_to(p.u, p.b.shape), dtype, p.n_slices * LANES)
    own = {"pseudo": aligned(np.zeros_like(rate)), "rate": rate}
    p.u = np.zeros_like(p.u)
    again = p.run(kernels.update_rows, rows=mode_of(stored, kernels.RESCALE) | own, **SIX_SWEEPS)
    assert_allclose(again, end, rtol=LOOSE[dtype], atol=LOOSE[dtype] * p.b.max())


def shared_correlation(K, dtype):
    """A correlation matrix with a margin on its diagonal."""
    C = np.corrcoef(np.random.default_rng(K).normal(size=(K, 2 * K))) if K > 1 else np.eye(1)
    return (np.abs(C) + 0.2 * np.eye(K)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("K", [1, 5, 13, 33])
def test_rows_share_correlations(level, K, prior, dtype):
    p = Problem(K, dtype)
    C = shared_correlation(K, dtype)
    gamma, rows = p.prior() if prior else (None, {})

    def curvature(H):
        scale = np.sqrt(np.diag(H))
        return C * np.outer(scale, scale)

    end = p.run(kernels.update_rows, rows=rows, **SIX_SWEEPS, correlation=C)
    expected = p.expected(lambda y, A, u, b: newton_once(y, A, u, b, 6, curvature), gamma)
    assert_allclose(end, expected, rtol=LOOSE[dtype], atol=LOOSE[dtype] * p.b.max())


@pytest.mark.parametrize("mode", [kernels.REUSE, kernels.RESCALE])
@pytest.mark.parametrize(("K", "dtype"), [(2, np.float32), (5, np.float64), (13, np.float32)])
def test_curvature_of_rows_at_the_floor_stays_finite(level, K, mode, dtype):
    p = Problem(K, dtype)
    p.a[:] = p.b[:] = FLOOR  # y / mu^2 is then no number of float32
    stored = p.room_for_curvature()
    stored[:] = UNITS
    stored[:, -K:] = np.arange(p.n_slices * K * LANES).reshape(-1, K, LANES) % 3 * 0x3F80  # 0 or 1
    rows = mode_of(stored, mode)
    end = p.run(kernels.update_rows, rows=rows, newton_steps=1)
    assert np.isfinite(end).all()
    assert (end[p.X.sum(axis=1) > 0].max(axis=1) > 1.2 * FLOOR).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("K", [1, 6, 20])
def test_correlations(level, K, every, dtype):
    p = Problem(K, dtype, n=70)
    out = np.full((-(-p.n_slices // every), kernels.packed_size(K) + 1), np.nan)
    for rows in (slice(0, 1), slice(1, None)):  # in two pieces
        kernels.correlations(
            p.counts, p.problem(), p.start, out[rows], first=rows.start * every, every=every,
            n_threads=2,
        )  # fmt: skip
    expected = np.zeros_like(out)
    for i in range(p.n):
        if i // LANES % every:
            continue
        _, H = oracle.row_derivatives(
            p.X[i], p.a.astype(float), p.u.astype(float), p.b[i].astype(float)
        )
        scale = 1 / np.sqrt(np.diag(H) + 1e-30)
        row = expected[i // LANES // every]
        row[:-1] += p.X[i].sum() * packed(H * np.outer(scale, scale))
        row[-1] += p.X[i].sum()
    assert_allclose(out, expected, rtol=LOOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_some_slices_are_updated(level, dtype):
    p = Problem(5, dtype, n=70)
    whole, some = (aligned(np.full_like(p.start, 7)) for _ in range(2))
    options = {"n_threads": 2, "kkt_start": np.full(len(whole), -1.0)}
    kernels.update_rows(p.counts, p.problem(newton_steps=1), p.start, whole, **options)
    options["kkt_start"][:] = -1
    chosen = np.array([3, 0])
    kernels.update_rows(
        p.counts, p.problem(newton_steps=1), p.start, some, slices=chosen, **options
    )
    left = np.setdiff1d(np.arange(p.n_slices), chosen)
    of_slices = [x.reshape(p.n_slices, -1) for x in (some, whole, options["kkt_start"])]
    assert_array_equal(of_slices[0][chosen], of_slices[1][chosen])
    assert np.all(of_slices[0][left] == 7) and np.all(of_slices[2][left] == -1)
    assert np.all(of_slices[2][chosen] >= 0)
    for wrong in ([p.n_slices], [0, -1]):
        with pytest.raises(ValueError, match=f"slices must be from 0 to {p.n_slices - 1}"):
            kernels.update_rows(
                p.counts, p.problem(), p.start, some, slices=np.array(wrong), n_threads=1
            )


def test_slices_without_room_compute_their_curvature(level):
    p = Problem(3, np.float64, n=40)
    stored = p.room_for_curvature()[:1]
    for mode in (kernels.STORE, kernels.REUSE, kernels.RESCALE):
        end = p.run(kernels.update_rows, newton_steps=1, rows=mode_of(stored, mode))
    assert_array_equal(end[LANES:], p.run(kernels.update_rows, newton_steps=1)[LANES:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_short_slices_take_an_em_step(level, dtype):
    p = Problem(5, dtype, n=40)
    steps = np.array([(x > 0).sum() for x in p.X] + [0] * (-p.n % LANES))
    steps = steps.reshape(-1, LANES).max(axis=1)
    assert steps.min() < steps.max()
    both = p.run(kernels.update_rows, em_steps=1, newton_steps=1)
    newton = p.run(kernels.update_rows, newton_steps=1)
    found = p.run(kernels.update_rows, em_steps=1, newton_steps=1, em_longest=steps.max() - 1)
    short = np.repeat(steps < steps.max(), LANES)[: p.n, None]
    assert_array_equal(found, np.where(short, both, newton))
    assert not np.array_equal(both, newton)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", COMPONENTS)
def test_sums(level, K, dtype):
    p = Problem(K, dtype)
    derivatives = [
        oracle.row_derivatives(p.X[i], p.a.astype(float), p.u.astype(float), p.b[i].astype(float))
        for i in range(p.n)
    ]
    wanted = {
        kernels.SUM_GRADIENT: lambda num, H: num,
        kernels.SUM_FULL: lambda num, H: packed(H),
        kernels.SUM_DIAGONAL: lambda num, H: np.concatenate([num, np.diag(H)]),
    }
    for what, of in wanted.items():
        expected = np.array([of(p.u - g, H) for g, H in derivatives])
        out = np.ones((p.n_slices, expected.shape[1], LANES))
        kernels.sums(
            p.counts, p.problem(), p.start, out, wanted=what, first=0, last=p.n_slices, n_threads=2
        )
        found = (out - 1).transpose(0, 2, 1).reshape(-1, expected.shape[1])
        assert_allclose(
            found[: p.n],
            expected,
            rtol=10 * TOLERANCE[dtype],
            atol=10 * TOLERANCE[dtype] * p.X.max(),
        )
        assert_array_equal(found[p.n :], 0)


@pytest.mark.parametrize("count", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 5, 8, 13])
def test_dense_slices_have_the_bits_of_other_slices(level, K, dtype, count):
    p = Problem(K, dtype)
    X, gram = p.X + 1, (p.a.T @ p.a).astype(dtype)
    n_lanes, found = p.n_slices * LANES, []
    for dense in (None, np.ones(p.n_slices, np.uint8)):
        counts = p.sliced(X, np.uint16, count, dense)
        for options in ({}, {"step": kernels.SQUARES, "gram": gram}):
            out, loglik = np.zeros((p.n_slices, K, LANES)), np.zeros(n_lanes)
            kernels.sums(
                counts, p.problem(**options), p.start, out, wanted=kernels.SUM_GRADIENT, first=0,
                last=p.n_slices, n_threads=2, **({} if options else {"loglik": loglik}),
            )  # fmt: skip
            assert out[0].all()
            found.append((out, loglik))
    for sparse, dense in zip(found[:2], found[2:], strict=True):
        assert_array_equal(sparse[0], dense[0])
        assert_array_equal(sparse[1], dense[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 6, 13])
@pytest.mark.parametrize("prior", [False, True])
def test_sums_and_a_step_are_an_update_bit_for_bit(level, prior, K, dtype):
    p = Problem(K, dtype, n=40)
    rows = p.prior()[1] if prior else {}
    size = kernels.packed_size(K)
    stored = [p.room_for_curvature() for _ in range(2)]
    cases = [
        ({"em_steps": 1}, kernels.SUM_GRADIENT, K, None),
        ({"newton_steps": 1}, kernels.SUM_FULL, size, kernels.STORE),
        ({"newton_steps": 1}, kernels.SUM_DIAGONAL, 2 * K, kernels.REUSE),
        ({"newton_steps": 1}, kernels.SUM_GRADIENT, K, kernels.RESCALE),
        (
            {"newton_steps": 1, "correlation": shared_correlation(K, dtype)},
            kernels.SUM_DIAGONAL,
            2 * K,
            None,
        ),
    ]
    for steps, wanted, n_sums, mode in cases:
        curvature = {} if mode is None else mode_of(stored[0], mode)
        reports = [np.zeros(p.n_slices * LANES) for _ in range(2)]
        updated = p.run(
            kernels.update_rows, rows=rows | curvature | {"kkt_start": reports[0]}, **steps
        )
        end = aligned(np.zeros_like(p.start))
        for first, last in ((0, 1), (1, p.n_slices)):
            sums = np.zeros((last - first, n_sums, LANES))
            kernels.sums(
                p.counts,
                p.problem(**steps),
                p.start,
                sums,
                wanted=wanted,
                first=first,
                last=last,
                n_threads=1,
            )
            curvature = {} if mode is None else mode_of(stored[1], mode)
            kernels.step(
                p.problem(**steps), sums, p.start, end, wanted=wanted, first=first, n_threads=2,
                kkt_start=reports[1], **rows, **curvature,
            )  # fmt: skip
        assert_array_equal(end[: p.n, :K], updated)
        assert_array_equal(reports[0], reports[1])
        assert_array_equal(stored[0], stored[1])


def upper_halves(values):
    """float32 rounded to bfloat16, as uint16."""
    return ((values.astype(np.float32).view(np.uint32) + np.uint32(0x8000)) >> 16).astype(np.uint16)


def from_upper_halves(halves):
    return (halves.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 5, 12])
@pytest.mark.parametrize("leaves", [0, 0.25])
def test_extrapolate(level, K, dtype, leaves):
    rng = np.random.default_rng(K)
    n, n_slices, stride = 37, 3, kernels.row_stride(K)
    now, before = (
        padded(rng.gamma(1.0, size=(n, K)), dtype, n_slices * LANES, FLOOR) for _ in range(2)
    )
    now[5, 0] = FLOOR
    now[:n, K:] = 3.0  # what fills up a row stays
    ahead = aligned(np.full_like(now, 5.0))
    sums = np.full((n_slices, 2, stride), np.nan)
    scale = np.ones(stride, dtype)
    scale[:K] = rng.uniform(0.5, 2, size=K)
    change, zeros = np.zeros(n_slices), np.zeros(n_slices, np.int64)
    problem = kernels.RowProblem(now, np.zeros(stride, dtype), K, floor=FLOOR)
    go_on = kernels.Extrapolation(
        n, ahead, 0.5, scale, sums, change, zeros, before=before, leaves=leaves
    )
    kernels.extrapolate(problem, now, go_on, n_threads=2)
    moved = now - scale * before
    expected = np.maximum(now + dtype(0.5) * moved, np.maximum(dtype(leaves) * now, dtype(FLOOR)))
    assert (expected == dtype(leaves) * now)[:n, :K].any() == (leaves > 0)
    assert_allclose(ahead[:n, :K], expected[:n, :K], rtol=1e-5 if dtype == np.float32 else 1e-14)
    assert_array_equal(ahead[:n, K:], now[:n, K:])
    assert_array_equal(ahead[n:], 5.0)
    for found, point in zip(sums.sum(axis=0), (ahead, now), strict=True):
        assert_allclose(found[:K], point[:n, :K].sum(axis=0, dtype=float), rtol=1e-14)
    assert_array_equal(sums[..., K:], 0)
    assert change.max() == np.abs(moved[:n, :K]).max()
    assert zeros.sum() == 1
    lag = upper_halves(now - before)
    assert_allclose(from_upper_halves(lag), now - before, rtol=2.0**-8)
    for best_type in {np.float32, dtype}:
        start, best = aligned(before + from_upper_halves(lag)), np.zeros(now.shape, best_type)
        behind, point = lag.copy(), aligned(start)
        go_on = kernels.Extrapolation(
            n, point, 0.5, scale, sums, change, zeros, start=point, lag=behind, best=best,
            leaves=leaves,
        )  # fmt: skip
        kernels.extrapolate(problem, now, go_on, n_threads=2)
        expected = now + dtype(0.5) * (now - scale * (start - from_upper_halves(lag)))
        expected = np.maximum(expected, np.maximum(dtype(leaves) * now, dtype(FLOOR)))
        assert_array_equal(point[:n, :K], expected[:n, :K])
        assert_array_equal(point[n:], start[n:])
        assert_array_equal(behind[:n], upper_halves(point - now)[:n])
        assert_array_equal(best[:n], start[:n].astype(best_type))
    go_on = kernels.Extrapolation(
        n, before, 0.5, scale, sums, change, zeros, before=before, leaves=leaves
    )
    kernels.extrapolate(problem, now, go_on, n_threads=2)
    assert_array_equal(before[:n, :K], ahead[:n, :K])
    weight = rng.gamma(1.0, size=len(now))
    go_on = kernels.Extrapolation(
        n, ahead, 0.5, scale, sums, change, zeros, start=ahead, lag=lag, weight=weight
    )
    kernels.extrapolate(problem, now, go_on, n_threads=2)
    for found, point in zip(sums.sum(axis=0), (ahead, now), strict=True):
        assert_allclose(found[:K], weight[:n] @ point[:n, :K].astype(float), rtol=1e-14)
    for given in ({}, {"lag": lag}, {"before": before, "best": best}):
        with pytest.raises(ValueError, match="give before, or start and lag"):
            kernels.Extrapolation(n, ahead, 0.5, scale, sums, change, zeros, **given)


@pytest.mark.parametrize("width", [1, 7, 8, 16, 27])
def test_sums_over_slices_are_added_in_their_order(width):
    values = np.random.default_rng(width).normal(size=(53, width))
    out = np.full(width, 0.25)
    kernels.sum_slices(values, out)
    expected = np.full(width, 0.25)
    for of_slice in values:
        expected += of_slice
    assert_array_equal(out, expected)
    with pytest.raises(ValueError, match=f"out has {width + 1} entries, but values {width}"):
        kernels.sum_slices(values, np.zeros(width + 1))


# The same bits ---------------------------------------------------------------------------------


def everything(K, dtype, n_threads):
    """All that the kernels write, of 70 rows."""
    out = everything_of_factors(Problem(K, dtype, n=70), n_threads)
    for step in STEPS:
        documents = Documents(K, dtype, n=70, step=step)
        out += documents.infer(n_threads, inner_steps=9, tolerance=0.1).values()
    x = np.tile(TINY_TO_LARGE, 60).astype(dtype)
    for function in (kernels.digamma, kernels.exp_digamma, kernels.log_gamma):
        out.append(np.empty_like(x))
        function(x, out[-1], n_threads=n_threads)
    out.append(np.empty_like(x))
    kernels.extrapolate_log(x, x[::-1].copy(), out[-1], 0.9, n_threads=n_threads)
    return out


def everything_of_factors(p, n_threads):
    K, dtype, options = p.K, p.dtype, {"n_threads": n_threads}
    prior = p.prior()[1]
    stored = p.room_for_curvature()
    reports = {
        name: np.zeros(p.n_slices * LANES)
        for name in ("loglik_start", "kkt_start", "loglik_end", "kkt_end")
    }
    out = [
        p.run(kernels.update_rows, em_steps=2, newton_steps=1, rows=reports, **options),
        p.run(kernels.update_rows, newton_steps=1, rows=prior, **options),
        p.run(kernels.update_rows, newton_steps=1, **options,
              rows=mode_of(stored, kernels.STORE)),
        p.run(kernels.update_rows, newton_steps=1, **options,
              rows=mode_of(stored, kernels.REUSE)),
        p.run(kernels.update_rows, newton_steps=1, **options,
              rows=mode_of(stored, kernels.RESCALE)),
        p.run(kernels.update_rows, newton_steps=1, **options,
              correlation=shared_correlation(K, dtype)),
        p.run(kernels.descend, em_steps=1, newton_steps=2, **options,
              rows={"loglik_end": np.zeros(p.n_slices * LANES)}),
        p.run(kernels.descend, newton_steps=1, guarded=True, rows=prior, **options),
        solved(p, **options), solved(p, rows=prior, **options),
        stored, *reports.values(),
    ]  # fmt: skip
    sums = np.zeros((p.n_slices, kernels.packed_size(K), LANES))
    kernels.sums(
        p.counts, p.problem(), p.start, sums,
        wanted=kernels.SUM_FULL, first=0, last=p.n_slices, n_threads=n_threads,
    )  # fmt: skip
    end, dots = aligned(np.zeros_like(p.start)), np.zeros(p.n_slices * LANES)
    kernels.step(
        p.problem(newton_steps=1),
        sums,
        p.start,
        end,
        wanted=kernels.SUM_FULL,
        first=0,
        n_threads=n_threads,
    )
    kernels.gather_dot(p.counts, p.problem(), p.start, dots, n_threads=n_threads)
    shared = np.zeros((p.n_slices, kernels.packed_size(K) + 1))
    kernels.correlations(
        p.counts, p.problem(), p.start, shared, first=0, every=1, n_threads=n_threads
    )
    return [*out, sums, end, dots, shared]


@pytest.mark.parametrize(("K", "dtype"), [(3, np.float32), (10, np.float64), (17, np.float32)])
def test_the_same_bits_for_any_number_of_threads(level, K, dtype):
    alone = everything(K, dtype, 1)
    for n_threads in (2, 3, 4):
        for one, many in zip(alone, everything(K, dtype, n_threads), strict=True):
            assert one.tobytes() == many.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", COMPONENTS)
def test_levels_agree(K, dtype):
    found = {}
    for name in LEVELS:
        with at_level(name):
            found[name] = everything(K, dtype, 2)
    for name in LEVELS[1:]:
        for ours, theirs in zip(found[name], found[LEVELS[0]], strict=True):
            assert_allclose(
                ours,
                theirs,
                rtol=20 * LOOSE[dtype],
                atol=20 * LOOSE[dtype] * max(1, np.abs(theirs).max(initial=0)),
            )
    if {"avx2", "avx512"} <= set(LEVELS):
        for ours, theirs in zip(found["avx2"], found["avx512"], strict=True):
            assert ours.tobytes() == theirs.tobytes()


# Choice of the level --------------------------------------------------------------------------


def _run_with(level, *command):
    environment = {**os.environ, "NMFSCALE_LEVEL": level}
    return subprocess.run(
        [sys.executable, "-P", "-c", *command], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", LEVELS)
def test_the_environment_forces_a_level(name):
    done = _run_with(name, "from nmfscale import kernels; print(kernels.level())")
    assert (done.returncode, done.stdout.strip()) == (0, name), done.stderr


def test_the_default_is_the_highest_level():
    done = _run_with("", "from nmfscale import kernels; print(kernels.level())")
    assert done.stdout.strip() == LEVELS[-1]


def test_an_unknown_level_is_an_import_error():
    done = _run_with("sse9", "from nmfscale import kernels")
    assert done.returncode != 0
    assert "ImportError" in done.stderr and "'sse9'" in done.stderr and "baseline" in done.stderr


def test_a_level_that_the_processor_lacks_is_an_import_error():
    name = min({"avx2", "neon"} - set(LEVELS))
    done = _run_with(name, "from nmfscale import kernels")
    assert done.returncode != 0
    assert f"ImportError: this processor does not have '{name}'" in done.stderr
    assert f"choose from {', '.join(LEVELS)}" in done.stderr


def test_an_unknown_level_leaves_the_one_in_use():
    before = kernels.level()
    with pytest.raises(ImportError, match="'none'.*choose from baseline"):
        kernels.use_level("none")
    assert kernels.level() == before


# Least squares ---------------------------------------------------------------------------------


class Squares(Problem):
    """Rows b that move to X ~ b a', with the Gram matrix of a."""

    def __init__(self, K, dtype, **options):
        super().__init__(K, dtype, **options)
        self.gram = (self.a.T.astype(float) @ self.a).astype(dtype)

    def problem(self, **options):
        return super().problem(step=kernels.SQUARES, gram=self.gram, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", COMPONENTS)
def test_multiplicative_steps(level, K, dtype):
    p = Squares(K, dtype)
    (_, rate), rows = p.prior()
    for given in ({}, rows):
        b, G, num = p.b.astype(float), p.gram.astype(float), p.X @ p.a.astype(float)
        for _ in range(3):
            up, down = b * num, b @ G
            if given:
                up, down = up + given["pseudo"][: p.n, :K], down + rate
            b = np.maximum(up / down, 1e-10)
        found = p.run(kernels.update_rows, em_steps=3, rows=given)
        assert_allclose(found, b, rtol=20 * TOLERANCE[dtype], atol=1e-9)


@pytest.mark.parametrize("K", [k for k in COMPONENTS if k < 18])
def test_coordinate_descent_ends_at_the_optimum(level, K):
    p = Squares(K, np.float64)
    # min b'Gb / 2 - b'num as least squares of a triangular matrix
    R, num = np.linalg.cholesky(p.gram).T, p.X @ p.a - p.u
    expected = [nnls(R, np.linalg.solve(R.T, each))[0] for each in num]
    found = p.run(kernels.update_rows, newton_steps=1, qp_sweeps=5000, qp_tolerance=1e-22)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", COMPONENTS)
def test_sweeps_of_coordinate_descent(level, K, dtype):
    p, rng = Squares(K, dtype), np.random.default_rng(0)
    reports = {name: np.zeros(p.n_slices * LANES) for name in ("loglik_start", "loglik_end")}
    rows = {"scale": rng.uniform(0, 2, p.n_slices * LANES)} | reports
    how = {"newton_steps": 1, "qp_sweeps": 3, "qp_tolerance": 0.0}
    found = p.run(kernels.update_rows, rows=rows, **how)
    G, a, b = (x.astype(float) for x in (p.gram, p.a, p.b))
    num = rows["scale"][: p.n, None] * (p.X @ a) - p.u
    expected = oracle.descend_quadratic(G, num, b, 3, FLOOR)
    assert_allclose(found, expected, rtol=20 * LOOSE[dtype], atol=20 * LOOSE[dtype])
    for at, seen in ((b, rows["loglik_start"]), (expected, rows["loglik_end"])):
        squares = (at * (2 * num - at @ G)).sum(axis=1)
        assert_allclose(seen[: p.n], squares, rtol=50 * LOOSE[dtype], atol=50 * LOOSE[dtype])
    sums = np.zeros((p.n_slices, K, LANES))
    given = {"wanted": kernels.SUM_GRADIENT, "first": 0, "n_threads": 1}
    kernels.sums(p.counts, p.problem(), None, sums, last=p.n_slices, **given)
    end = aligned(np.zeros_like(p.start))
    kernels.step(p.problem(**how), sums, p.start, end, scale=rows["scale"], **given)
    assert_array_equal(end[: p.n, :K], found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", COMPONENTS)
def test_sums_are_a_product(level, K, dtype):
    p = Squares(K, dtype)
    out, where = np.ones((p.n_slices, K, LANES)), {"first": 0, "last": p.n_slices, "n_threads": 2}
    kernels.sums(p.counts, p.problem(), p.start, out, wanted=kernels.SUM_GRADIENT, **where)
    found = (out - 1).transpose(0, 2, 1).reshape(-1, K)
    expected = p.X @ p.a.astype(float)
    assert_allclose(found[: p.n], expected, rtol=10 * TOLERANCE[dtype], atol=1e-4)
    assert_array_equal(found[p.n :], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_report_log_likelihoods(level, dtype):
    p = Problem(5, dtype)
    out, where = np.zeros((p.n_slices, 5, LANES)), {"first": 0, "last": p.n_slices, "n_threads": 1}
    full = np.zeros((p.n_slices, kernels.packed_size(5), LANES))
    expected = (p.X * np.log(p.b.astype(float) @ p.a.T.astype(float))).sum(axis=1)
    for wanted, sums in ((kernels.SUM_GRADIENT, out), (kernels.SUM_FULL, full)):
        logs = np.full(p.n_slices * LANES, 7.0)
        kernels.sums(p.counts, p.problem(), p.start, sums, wanted=wanted, loglik=logs, **where)
        assert_allclose(logs[: p.n], expected, rtol=10 * TOLERANCE[dtype], atol=1e-4)
    with pytest.raises(ValueError, match="cannot be combined with wanted"):
        kernels.sums(
            p.counts, p.problem(), p.start, full, wanted=kernels.SUM_DIAGONAL, loglik=logs, **where
        )


@pytest.mark.parametrize("K", [3, 13])
def test_levels_and_threads_give_the_same_bits(K):
    found = {}
    for name in kernels.available_levels():
        with at_level(name):
            for n_threads in (1, 3):
                p = Squares(K, np.float64, n=200)
                moved = p.run(
                    kernels.update_rows,
                    em_steps=2,
                    newton_steps=1,
                    n_threads=n_threads,
                    rows=p.prior()[1],
                )
                found[name, n_threads] = moved.tobytes()
    for (name, _), bits in found.items():
        assert bits == found[name, 1]
    assert len({bits for (name, _), bits in found.items() if name != "baseline"}) <= 1


def test_what_least_squares_refuse():
    p, given = Squares(3, np.float64), {"first": 0, "n_threads": 1}
    sums = np.zeros((p.n_slices, 6, LANES))
    with pytest.raises(ValueError, match="least squares need SUM_GRADIENT"):
        kernels.step(p.problem(), sums, p.start, p.start, wanted=kernels.SUM_FULL, **given)
    with pytest.raises(ValueError, match="only sums of least squares"):
        other = Problem(3, np.float64)
        wanted = {"wanted": kernels.SUM_GRADIENT, "last": p.n_slices}
        kernels.sums(other.counts, other.problem(), None, sums, **wanted, **given)


def test_a_gram_matrix_goes_with_least_squares():
    design = padded(np.ones((4, 3)), np.float64)
    for options in ({"step": kernels.SQUARES}, {"gram": np.eye(3)}):
        with pytest.raises(ValueError, match="gram is needed by step SQUARES"):
            kernels.RowProblem(design, np.zeros(4), 3, **options)


# Counts and labels -----------------------------------------------------------------------------


class Joint(Problem):
    """Rows b that explain X by a, and labels Y by rows B, with terms of each row besides."""

    def __init__(self, K, dtype, data, labels, **options):
        super().__init__(K, dtype, **options)
        rng, self.losses = np.random.default_rng(K), (data, labels)
        self.b *= dtype(3)
        self.B = rng.uniform(0.1, 1, (3, K)).astype(dtype)
        self.Y, self.w = rng.poisson(2.0, (self.n, 3)), rng.choice([0.0, 0.5, 9.0], (self.n, 3))
        some = rng.uniform(size=(self.n, 2, K)) / 2
        self.more = np.einsum("itk,itl->ikl", some, some)
        self.rate = rng.uniform(0, 2, (self.n, K)).astype(dtype).astype(float)

    def problem(self, **options):
        if self.losses[0] == "frobenius":
            gram = (self.a.T.astype(float) @ self.a).astype(self.dtype)
            options |= {"step": kernels.SQUARES, "gram": gram}
        B = padded(self.B, self.dtype)
        squares = self.losses[1] == "frobenius"
        return super().problem(labels=B, label_squares=squares, **options)

    def in_slices(self, values):
        out = np.zeros((self.n_slices * LANES, values.shape[1]))
        out[: self.n] = values
        return aligned(out.reshape(-1, LANES, out.shape[1]).transpose(0, 2, 1), self.dtype)

    @property
    def rows(self):
        rows = {"up": self.in_slices(self.w * self.Y), "down": self.in_slices(self.w)}
        if self.losses[0] == "frobenius":
            gram = self.a.T.astype(float) @ self.a  # the matrix of a row takes its place
            rows["quadratic"] = self.in_slices(np.array([packed(gram + H) for H in self.more]))
        return rows | {"rate": padded(self.rate, self.dtype, self.n_slices * LANES)}

    def terms(self, i):
        one = np.ones(1)
        terms = [
            (self.X[i], np.ones(self.m), self.a.astype(float), self.losses[0]),
            (self.Y[i], self.w[i], self.B.astype(float), self.losses[1]),
            (0 * one, one, self.rate[i : i + 1], "kl"),
        ]
        if self.losses[0] == "frobenius":  # column sums are a linear term
            terms.append((0 * one, one, self.u[None].astype(float), "kl"))
            root = np.linalg.cholesky(self.more[i] + 1e-14 * np.eye(self.K)).T
            terms.append((np.zeros(self.K), np.ones(self.K), root, "frobenius"))
        return terms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 6, 13])
@pytest.mark.parametrize("labels", ["frobenius", "kl"])
@pytest.mark.parametrize("data", ["frobenius", "kl"])
def test_descend_jointly(level, data, labels, K, dtype):
    p = Joint(K, dtype, data, labels)
    found = p.run(kernels.descend_jointly, newton_steps=2, rows=p.rows)
    expected = [
        oracle_ssnmf.descend_row(b, p.terms(i), 2, FLOOR) for i, b in enumerate(p.b.astype(float))
    ]
    assert_allclose(found, expected, rtol=20 * LOOSE[dtype], atol=20 * LOOSE[dtype])
    alone = p.run(kernels.descend_jointly, newton_steps=2, rows=p.rows, n_threads=1)
    assert alone.tobytes() == found.tobytes()


def test_what_joint_descent_needs_is_asked_for():
    p = Joint(3, np.float64, "kl", "kl")
    with pytest.raises(ValueError, match="labels need up and down"):
        p.run(kernels.descend_jointly, newton_steps=1)
    quadratic = Joint(3, np.float64, "frobenius", "kl").rows["quadratic"]
    with pytest.raises(ValueError, match="for step SQUARES only"):
        p.run(kernels.descend_jointly, newton_steps=1, rows=p.rows | {"quadratic": quadratic})


# What is refused ------------------------------------------------------------------------------


def test_arrays_of_a_wrong_kind_are_refused():
    p = Problem(5, np.float64)
    good = {"n_threads": 1}
    with pytest.raises(ValueError, match="start: expected C-contiguous float64"):
        kernels.update_rows(p.counts, p.problem(), p.start.astype(np.float32), p.start, **good)
    with pytest.raises(ValueError, match="end: expected"):
        kernels.update_rows(p.counts, p.problem(), p.start, p.start[:16], **good)
    with pytest.raises(ValueError, match="pseudo: expected"):
        kernels.update_rows(
            p.counts, p.problem(), p.start, p.start, pseudo=p.start[:, ::-1], **good
        )
    shifted = np.empty(p.start.size + 9)
    shifted = shifted[(-shifted.ctypes.data // 8) % 8 + 1 :][: p.start.size].reshape(p.start.shape)
    with pytest.raises(ValueError, match="not aligned to 64 bytes"):
        kernels.update_rows(p.counts, p.problem(), shifted, p.start, **good)
    with pytest.raises(ValueError, match=r"held factor has 4 rows, the counts need 40"):
        short = kernels.RowProblem(padded(p.a[:4], np.float64), np.zeros(8), 5)
        kernels.update_rows(p.counts, short, p.start, p.start, **good)
    with pytest.raises(ValueError, match="loglik_end: expected"):
        kernels.update_rows(p.counts, p.problem(), p.start, p.start, loglik_end=np.zeros(4), **good)
    with pytest.raises(ValueError, match="curvature: expected"):
        kernels.update_rows(
            p.counts,
            p.problem(),
            p.start,
            p.start,
            curvature=np.zeros((2, 3, 16), np.float32),
            **good,
        )


def test_a_factor_beyond_the_kernels_places_is_refused():
    design = np.broadcast_to(np.zeros((1, 4)), (1 << 29, 4))
    with pytest.raises(ValueError, match="factor of 536,870,912 rows and 3 components"):
        kernels.RowProblem(design, np.zeros(4), 3)


def test_slices_and_sums_of_a_wrong_shape_are_refused():
    p = Problem(5, np.float64)
    with pytest.raises(ValueError, match="not a dtype of SELL-16 counts"):
        kernels.SlicedCounts(np.zeros(16, np.int64), np.zeros(16, np.uint8), np.array([0, 1]), 1)
    with pytest.raises(ValueError, match="index: expected"):
        kernels.SlicedCounts(np.zeros(15, np.int32), np.zeros(16, np.uint8), np.array([0, 1]), 1)
    with pytest.raises(ValueError, match="dense has 2 entries for 1 slices"):
        kernels.SlicedCounts(
            np.zeros(16, np.int32), np.zeros(16), np.array([0, 1]), 1, dense=np.ones(2, np.uint8)
        )
    common = {"wanted": kernels.SUM_FULL, "n_threads": 1}
    with pytest.raises(ValueError, match="out has shape"):
        kernels.sums(
            p.counts, p.problem(), p.start, np.zeros((2, 5, 16)), first=0, last=2, **common
        )
    with pytest.raises(ValueError, match="no slices 1:3 among 2"):
        kernels.sums(
            p.counts, p.problem(), p.start, np.zeros((2, 20, 16)), first=1, last=3, **common
        )
    with pytest.raises(ValueError, match="sums have shape"):
        kernels.step(p.problem(), np.zeros((2, 5, 16)), p.start, p.start, first=0, **common)
    for wanted, mode in (
        (kernels.SUM_DIAGONAL, kernels.REUSE), (kernels.SUM_GRADIENT, kernels.RESCALE)
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no stored curvature"):
            kernels.step(
                p.problem(), np.zeros((2, 20, 16)), p.start, p.start, first=0, wanted=wanted,
                n_threads=1, curvature_mode=mode,
            )  # fmt: skip
    with pytest.raises(ValueError, match="one entry for each lane"):
        kernels.gather_dot(p.counts, p.problem(), p.start, np.zeros(3), n_threads=1)
