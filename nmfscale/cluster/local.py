"""Dask clusters on this machine, TLS certificates for them, and clients of any cluster.

Anyone who can connect to a scheduler or worker can run code as the user who started it.  All
connections here therefore use the loopback address, or TLS with the cluster's own key.  Web pages
(dashboard, health, metrics) do not support TLS and always use the loopback address.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import shlex
import signal
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10.0
_LAST_HEARTBEAT_SECONDS = 5.0

# A lost worker is detected within a minute, and other workers take over its tasks.  By default,
# Dask waits five minutes or forever, and fails a task after three workers that died with it.  It
# also stops restarting a worker that is away again 15 s after it died.
_SETTINGS = {
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.no-workers-timeout": "120s",
    "distributed.scheduler.allowed-failures": 20,
    "distributed.comm.timeouts.connect": "30s",
    "distributed.comm.timeouts.tcp": "30s",
    "distributed.deploy.lost-worker-timeout": "1w",
    # by default, work for the dashboard takes 3 % of a processor in every process
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
_NAMES = ("ca.pem", "cert.pem", "key.pem")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a numeric address."""
    return ipaddress.ip_address(address).is_loopback


def make_certificates(folder: str | Path) -> None:
    """Write a key and certificates, valid for a year, to a private folder, unless it has some."""
    folder = Path(folder)
    if any((folder / name).exists() for name in _NAMES):
        return
    from distributed import Security

    try:
        made = Security.temporary()
    except ImportError as error:
        raise ImportError(
            "new certificates need the package cryptography: pip install 'nmfscale[cluster]', "
            "or pip install cryptography"
        ) from error
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(folder, "700")
    contents = made.tls_ca_file, made.tls_scheduler_cert, made.tls_scheduler_key
    for name, content in zip(_NAMES, contents, strict=True):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(folder / name, flags, 0o600), "w", encoding="ascii") as file:
            file.write(content)


def read_certificates(folder: str | Path) -> Any:
    """Return the `distributed.Security` for a folder of certificates, after checking them."""
    from distributed import Security

    folder = Path(folder).resolve()
    paths = [folder / name for name in _NAMES]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} has no {path.name}: pass the folder that `nmfscale cluster --tls` "
                "wrote, or a new one."
            )
    _check_private(paths[-1], "600")
    ca, certificate, key = map(str, paths)
    of_roles: dict[str, str] = {}
    for role in ("client", "scheduler", "worker"):
        of_roles |= {f"tls_{role}_cert": certificate, f"tls_{role}_key": key}
    security = Security(require_encryption=True, tls_ca_file=ca, **of_roles)
    try:
        _shake_hands(security)
    except ssl.SSLError as error:
        raise ValueError(
            f"the certificates in {folder} cannot be used ({error.reason or error}): remove the "
            "folder and start the cluster again."
        ) from error
    return security


def _check_private(path: Path, mode: str) -> None:
    if path.stat().st_mode & 0o077:
        raise PermissionError(
            f"other users can read {path}, and so control the cluster: chmod {mode} "
            f"{shlex.quote(str(path))}"
        )


def _shake_hands(security: Any) -> None:
    """Perform a TLS handshake between a client and a scheduler in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = security.get_connection_args("client")["ssl_context"].wrap_bio(down, up)
    scheduler = security.get_listen_args("scheduler")["ssl_context"]
    for side in (client, scheduler.wrap_bio(up, down, server_side=True)) * 2:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()


@contextmanager
def local_cluster(
    n_workers: int, *, host: str = LOOPBACK, port: int = 0, dashboard_port: int | None = None,
    memory_limit: int | None = None, local_directory: str | Path | None = None,
    security: Any = None,
) -> Iterator[Any]:  # fmt: skip
    """Run a scheduler and worker processes on this machine for the duration of the context.

    Each worker runs one task at a time, and is restarted when it dies.  Ctrl-C reaches the calling
    process only, not the workers.  `host` is a numeric address; without `security` it must be a
    loopback address.  `port` 0 chooses a free port.  Without `dashboard_port` there is no
    dashboard.  `memory_limit` is that of one worker in bytes, by default an equal share of the
    machine's memory.  Workers write files to a new folder in `local_directory`, which is removed
    at the end.
    """
    if security is None and not is_loopback(host):
        raise ValueError(f"other machines can reach {host}: a cluster there needs certificates.")
    import dask
    from distributed import LocalCluster

    limits = {} if memory_limit is None else {"memory_limit": memory_limit}
    cluster = None
    with (
        tempfile.TemporaryDirectory(
            prefix="nmfscale-", dir=local_directory, ignore_cleanup_errors=True
        ) as scratch,
        dask.config.set({**_SETTINGS, "temporary-directory": scratch}),
    ):
        try:
            with _interrupts_blocked():
                cluster = LocalCluster(
                    n_workers=n_workers, threads_per_worker=1, processes=True,
                    host=f"[{host}]" if ":" in host else host, scheduler_port=port,
                    # Without an address, web pages would listen on port 8787 of `host`.
                    dashboard_address=f"{LOOPBACK}:{dashboard_port or 0}",
                    worker_dashboard_address=f"{LOOPBACK}:0",
                    scheduler_kwargs={"dashboard": dashboard_port is not None}, security=security,
                    **limits,
                )  # fmt: skip
            yield cluster
        finally:
            if cluster is not None:
                # A client may have shut down the scheduler: do not wait long for it.
                with dask.config.set({"distributed.comm.timeouts.connect": "5s"}):
                    if cluster.scheduler.status.name == "running":
                        cluster.sync(_stop_heartbeats, cluster.scheduler)
                    cluster.close()


async def _stop_heartbeats(scheduler: Any) -> None:
    """Stop the heartbeats of all workers that answer.

    A worker that closes while it waits for the answer to a heartbeat logs a traceback.
    """
    from distributed.protocol.pickle import dumps

    function = dumps(_stop_own_heartbeats)
    requests = [scheduler.rpc(address).run(function=function) for address in scheduler.workers]
    with suppress(asyncio.TimeoutError):
        answers = asyncio.gather(*requests, return_exceptions=True)
        await asyncio.wait_for(answers, _LAST_HEARTBEAT_SECONDS)


async def _stop_own_heartbeats(dask_worker: Any) -> None:
    """Stop the heartbeats of this worker, and wait for the answer to the last one."""
    dask_worker.periodic_callbacks["heartbeat"].stop()
    while dask_worker.rpc.occupied.get(dask_worker.scheduler.address):
        await asyncio.sleep(0.01)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C; threads started inside, and their processes, inherit that permanently.

    A terminal sends Ctrl-C to all processes at once, but an interrupted fit needs its workers until
    the iteration has ended.
    """
    # Started here, because the first of these threads would otherwise start it, and starting it
    # unblocks Ctrl-C in that thread.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def local_client(n_workers: int, security: Any = None) -> Iterator[Any]:
    """Yield a client of a new local cluster without a dashboard."""
    from distributed import Client

    with local_cluster(n_workers, security=security) as cluster, Client(cluster) as client:
        yield client


@contextmanager
def connected(
    address: str, security: Any = None, timeout: float = CONNECT_SECONDS
) -> Iterator[Any]:
    """Yield a client of a running cluster; it does not become Dask's default client.

    `timeout` is the number of seconds to wait for an answer of the scheduler.
    """
    from distributed import Client

    client, why = None, ""
    try:
        # A default client that fails to connect would remain in Dask's configuration.
        client = Client(address, security=security, timeout=timeout, set_as_default=False)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())
    if client is None:
        # A failed client is closed by garbage collection: if that happens while another client
        # starts, both wait forever for the same lock.
        gc.collect()
        raise ConnectionError(
            f"cannot use the scheduler at {address} ({why}): check that it runs there "
            "(`nmfscale cluster` starts one) and that both sides have the same certificates "
            "(tls://) or none (tcp://)."
        )
    with client:
        yield client
