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
    import psutil
    from nmfscale.counts.free_memory import free_memory
    for kind, counted in {"RLIMIT_AS": "vms", "RLIMIT_DATA": "data"}.items():
        limit = getattr(psutil.Process().memory_info(), counted) + (1 << 30)
        number = getattr(resource, kind)
        resource.setrlimit(number, (limit, resource.RLIM_INFINITY))
        print(kind, 0.9 * 2**30 < free_memory() <= 2**30)
        resource.setrlimit(number, (resource.RLIM_INFINITY,) * 2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_limits_of_resources():
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(LIMITED)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == "RLIMIT_AS True\nRLIMIT_DATA True\n"


def test_the_least_of_all_counts(monkeypatch):
    """A fit asks the machine and its groups, and so do readers of tables."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**6))
    assert module.free_memory() <= 10**6
    with pytest.raises(MemoryLimitError, match="give this process more memory"):
        nmfscale.PoissonNMF(3).fit(np.ones((30, 40)))
