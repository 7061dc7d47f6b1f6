"""Dask clusters on this machine, the certificates that protect them, clients of clusters anywhere.

Whoever reaches a scheduler or a worker can run code as the user who started it.  Everything here
therefore listens on the loopback address, or speaks TLS with those who hold the cluster's key.
Web pages (dashboard, health, metrics) know no TLS: they are on the loopback address always.
"""

from __future__ import annotations

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

# A worker that was lost is noticed within a minute and its work done by others: dask waits five
# minutes, or for ever, and gives a task up after three workers that died with it.  It also ends the
# watcher of a worker 15 s after that died, if it happens to be away again just then.
_SETTINGS = {
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.no-workers-timeout": "120s",
    "distributed.scheduler.allowed-failures": 20,
    "distributed.comm.timeouts.connect": "30s",
    "distributed.comm.timeouts.tcp": "30s",
    "distributed.deploy.lost-worker-timeout": "1w",
    # what every process does besides, for the dashboard, is 3 % of a processor by default
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
}
_NAMES = ("ca.pem", "cert.pem", "key.pem")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a numeric address."""
    return ipaddress.ip_address(address).is_loopback


def make_certificates(folder: str | Path) -> None:
    """Write a key and certificates, good for a year, to a private folder that has none yet."""
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
    """Return the `distributed.Security` of a folder of certificates, if they can be used."""
    from distributed import Security

    folder = Path(folder).resolve()
    paths = [folder / name for name in _NAMES]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} has no {path.name}: give the folder that `nmfscale cluster --tls` "
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
            f"the certificates in {folder} are of no use ({error.reason or error}): remove the "
            "folder and start the cluster again."
        ) from error
    return security


def _check_private(path: Path, mode: str) -> None:
    if path.stat().st_mode & 0o077:
        raise PermissionError(
            f"others may read {path}, and so use the cluster: chmod {mode} {shlex.quote(str(path))}"
        )


def _shake_hands(security: Any) -> None:
    """Let a client and a scheduler of these certificates meet in memory."""
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
    """Run a scheduler, and workers in processes of their own, as long as the context lasts.

    Every worker does one task at a time and is started again when it dies.  Ctrl-C reaches the
    calling process, not the workers.  `host` is a numeric address; without `security` others must
    not reach it.  `port` 0 is any that is free; without `dashboard_port` there is no dashboard.
    `memory_limit` is that of one worker, an equal share of the machine's by default.  What workers
    put on disk is in a new folder in `local_directory`, which is removed in the end.
    """
    if security is None and not is_loopback(host):
        raise ValueError(f"others can reach {host}: a cluster there needs certificates.")
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
            with _interrupts_held():
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
                # Not to be patient with a scheduler that a client has shut down.
                with dask.config.set({"distributed.comm.timeouts.connect": "5s"}):
                    cluster.close()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back; threads started meanwhile, and their processes, never get it.

    A terminal sends it to all processes at once, but a fit that is interrupted needs its workers
    until the iteration has ended.
    """
    # Otherwise started by the first of those threads, which it would leave open to Ctrl-C.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def local_client(n_workers: int, security: Any = None) -> Iterator[Any]:
    """Connect to a cluster that lasts as long as the context, without a dashboard."""
    from distributed import Client

    with local_cluster(n_workers, security=security) as cluster, Client(cluster) as client:
        yield client


@contextmanager
def connected(
    address: str, security: Any = None, timeout: float = CONNECT_SECONDS
) -> Iterator[Any]:
    """Connect to a cluster that runs already, not as the client that others find by default.

    `timeout`: seconds until a scheduler that does not answer is given up.
    """
    from distributed import Client

    client, why = None, ""
    try:
        # One that fails to connect as the default leaves dask's configuration pointing at it.
        client = Client(address, security=security, timeout=timeout, set_as_default=False)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())
    if client is None:
        # A client that failed is closed when it is collected: if that happens while another one
        # starts, both wait for ever for one lock.
        gc.collect()
        raise ConnectionError(
            f"cannot use the scheduler at {address} ({why}): check that it runs there "
            "(`nmfscale cluster` starts one) and that both sides have the same certificates "
            "(tls://) or none (tcp://)."
        )
    with client:
        yield client
