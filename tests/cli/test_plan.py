"""What a fit would cost: the option --plan, and the numbers of its table."""

import numpy as np
import pytest
import scipy.sparse as sp
from shell import misuse, run

import nmfscale
from nmfscale.counts.sizes import MemoryLimitError
from nmfscale.engine import plan
from nmfscale.engine.partition import task_sizes_within
from nmfscale.engine.session import REMEMBERED
from nmfscale.engine.worker import RunConfig


@pytest.fixture(scope="module")
def counts():
    return nmfscale.as_counts(np.random.default_rng(0).poisson(2.0, (120, 60)))


@pytest.fixture(scope="module")
def billions(counts):
    """150 million nonzero counts, and what a fit of them needs."""
    model = nmfscale.TopicModel(20, random_state=0)
    repeated = plan.RepeatedCounts(counts, 1.5e8)
    return plan.needs_of(lambda: model.fit(repeated))


def test_a_plan_is_printed_and_nothing_is_fitted(counts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sp.save_npz("counts.npz", counts.take_rows())
    words = "fit --plan counts.npz -k 3 --workers 8 --threads 2 --plan-nonzeros 1e8".split()
    assert run(*words) == 0
    out = capsys.readouterr().out
    names = [f"{n} x {16 // n} thread" for n in (1, 2, 4, 8, 16)]
    assert all(f"\n{name}" in out for name in ["here, 16 threads", *names, "advised"])
    assert "100,00" in out.split("\n")[0] and "a prediction" in out
    assert [path.name for path in tmp_path.iterdir()] == ["counts.npz"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--plan-nonzeros 1e9", "--plan-nonzeros is for --plan"),
        ("--plan --scheduler tcp://a:1", "takes no --scheduler; for N workers: --workers N"),
        ("--plan --checkpoint folder", "takes no --checkpoint"),
        ("--plan --model anchor", "for models that iterate, not anchor"),
    ],
)
def test_options_that_contradict_a_plan(words, why, capsys):
    assert why in misuse(capsys, "fit", "counts.npz", "-k", 3, *words.split())


def test_a_fit_that_is_planned_is_as_it_was(counts):
    model = nmfscale.PoissonNMF(3)
    known, needs = plan.needs_of(lambda: model.fit(counts))
    assert known is counts and needs.row > 0
    assert not hasattr(model, "components_")
    assert hasattr(nmfscale.PoissonNMF(3, max_iter=1, tol=0).fit(counts), "components_")


@pytest.mark.parametrize("layout", [(1, 16), (4, 4), (16, 1)])
def test_workers_with_the_planned_memory_can_do_the_work(billions, layout):
    used, needs = billions
    (row,) = plan.plan_layouts(used, needs, plan.Rates(1e-8, 1e-3), [layout])
    slots = {str(i): 1 for i in range(layout[0])}

    def sizes(n_bytes):
        config = RunConfig("", "", ("", "", ()), "", layout[1], "", int(REMEMBERED * n_bytes))
        limits = dict.fromkeys(slots, n_bytes)
        return task_sizes_within(limits, slots, config, plan.PlannedLayout(used), needs)

    with pytest.raises(MemoryLimitError):
        sizes(0.98 * row.least_bytes)
    assert sizes(row.least_bytes + 9).counts_memory >= 0
    share = plan.SLICE_BYTES * used.nnz * row.n_blocks / len(plan.PlannedLayout(used).blocks)
    assert sizes(row.kept_bytes + 9).counts_memory >= share


def test_seconds_follow_the_largest_share_and_the_sums(billions):
    used, needs = billions
    layouts = [(0, 16), (1, 16), (4, 4), (16, 1)]
    here, one, four, many = plan.plan_layouts(used, needs, plan.Rates(1e-6, 0.0), layouts)
    work = 1e-6 * used.nnz * plan.CROWDED
    assert here.seconds == pytest.approx(work / 16)
    assert one.n_blocks == here.n_blocks == 18 and many.n_blocks == 2
    # rows of blocks are divided among 16 workers, columns only if sums are large beside loadings
    assert work * 2 / 18 > many.seconds > work * (1 / 16 + 2 / 18) / 2 > four.seconds
    assert four.seconds > one.seconds > here.seconds
    large = needs._replace(sums=needs.saved_row * used.shape[0])
    (divided,) = plan.plan_layouts(used, large, plan.Rates(1e-6, 0.0), layouts[3:])
    assert work / 16 < divided.seconds < many.seconds
