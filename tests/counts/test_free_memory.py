"""What this process may still take of memory: machine, control groups, resource limits."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import nmfscale
from nmfscale.counts import free_memory as module
from nmfscale.counts.sizes import MemoryLimitError

NO_LIMIT = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "700\n", "memory.current": "200\n"}, 500),
        ("0::/\n", {"memory.max": "max\n", "memory.current": "200\n"}, np.inf),
        # cached files that the system would drop are not in the way
        (
            "0::/\n",
            {
                "memory.max": "700", "memory.current": "600",
                "memory.stat": "anon 90\ninactive_file 450\n",
            },
            550,
        ),
        ("0::/\n", {"memory.max": "700", "memory.high": "400", "memory.current": "100"}, 300),
        (
            "0::/slurm/job_7\n",
            {
                "slurm/memory.max": "900", "slurm/memory.current": "100",
                "slurm/job_7/memory.max": "max", "slurm/job_7/memory.current": "100",
            },
            800,
        ),
        ("0::/of/the/host\n", {"memory.max": "300", "memory.current": "100"}, 200),
        (
            "5:cpu:/x\n4:memory:/x\n0::/\n",
            {
                "memory/x/memory.limit_in_bytes": "700", "memory/x/memory.usage_in_bytes": "650",
                "memory/x/memory.stat": "cache 600\ntotal_inactive_file 100\n",
                "memory/memory.limit_in_bytes": NO_LIMIT, "memory/memory.usage_in_bytes": "900",
            },
            150,
        ),
        ("", {}, np.inf),
    ],
)  # fmt: skip
def test_control_groups(tmp_path, membership, files, expected):
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "membership").write_text(membership)
    assert module._left_in_groups(tmp_path / "groups", tmp_path / "membership") == expected


LIMITED = """
    import resource
    import numpy as np
    import psutil
    import nmfscale
    from nmfscale.counts.sizes import MemoryLimitError
    model = nmfscale.PoissonNMF(3, init="random", n_threads=1, max_iter=1, tol=0)
    model.fit(np.ones((6, 9)))  # libraries are imported before there is a limit
    for kind, counted in {"RLIMIT_AS": "vms", "RLIMIT_DATA": "data"}.items():
        limit = getattr(psutil.Process().memory_info(), counted) + (40 << 20)
        number = getattr(resource, kind)
        resource.setrlimit(number, (limit, resource.RLIM_INFINITY))
        try:
            model.fit(np.ones((60, 90), np.uint8))
        except MemoryLimitError as error:
            print(kind, error)
        resource.setrlimit(number, (resource.RLIM_INFINITY,) * 2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_fit_beyond_the_limits_of_resources_is_refused():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    refused = done.stdout.splitlines()
    assert [line.split(" ")[0] for line in refused] == ["RLIMIT_AS", "RLIMIT_DATA"]
    assert all("the fit needs" in line and "give this process more" in line for line in refused)


def test_the_least_of_all_counts(monkeypatch):
    """A fit asks the machine and its groups, and so do readers of tables."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**6))
    assert module.free_memory() <= 10**6
    with pytest.raises(MemoryLimitError, match="give this process more memory"):
        nmfscale.PoissonNMF(3).fit(np.ones((30, 40)))
