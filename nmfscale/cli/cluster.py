"""The command `cluster`, and the Dask clients of other commands."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import logging
import shlex
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from .messages import log, say


def cluster(arguments: argparse.Namespace) -> int:
    """Run a cluster on this machine until Ctrl-C or SIGTERM."""
    from ..cluster.local import is_loopback, local_cluster, make_certificates, read_certificates
    from ..counts.sizes import parse_bytes
    from ..engine.threads import available_processors

    host, folder, security = _address_of(arguments.host), arguments.tls, None
    if folder is None and not is_loopback(host):
        arguments.usage(
            f"--host {arguments.host}: anyone who can connect could run code as you; add --tls DIR"
        )
    scratch = arguments.local_directory
    if scratch is not None and not Path(scratch).is_dir():
        raise FileNotFoundError(f"there is no folder {scratch} for --local-directory.")
    if folder is not None:
        make_certificates(folder)
        security = read_certificates(folder)
    limit = arguments.memory_limit
    _check_free(host, arguments.port)
    with (
        _signals_noted() as received,
        local_cluster(
            arguments.workers or max(1, available_processors() // 4),
            host=host,
            port=arguments.port,
            dashboard_port=arguments.dashboard_port,
            memory_limit=None if limit is None else parse_bytes(limit),
            local_directory=scratch,
            security=security,
        ) as running,
    ):
        _announce(running, folder)
        while not received and running.scheduler.status.name == "running":
            time.sleep(0.1)
    if not received:
        log("a client has shut the cluster down")
    return 0


def _address_of(host: str) -> str:
    """Resolve a host to a numeric address, so that the address checked is the address bound."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{host!r} is neither the name nor the address of a host.") from error


def _check_free(host: str, port: int) -> None:
    """Raise an error if the port cannot be used, which is clearer than that of Dask."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {host} is taken, perhaps by a running cluster: use that cluster, "
                "or choose another port (0 for any free one)."
            ) from error
        raise OSError(f"cannot listen on port {port} of {host}: {error.strerror}.") from error


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Record SIGINT and SIGTERM; the second signal of the same kind has its original effect."""
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(running: Any, folder: str | None) -> None:
    """Print commands that use the cluster, ready to be pasted."""
    from ..cluster.local import LOOPBACK

    address, tls = running.scheduler_address, ""
    client = f'from distributed import Client; client = Client("{address}")'
    if folder is not None:
        path = Path(folder).resolve()
        tls = f" --tls {shlex.quote(str(path))}"
        client = (
            f'from distributed import Client, Security; client = Client("{address}", '
            f"security=Security(require_encryption=True, tls_ca_file={str(path / 'ca.pem')!r}, "
            f"tls_client_cert={str(path / 'cert.pem')!r}, "
            f"tls_client_key={str(path / 'key.pem')!r}))"
        )
    say(f"address         {address}")
    say(f"dashboard       http://{LOOPBACK}:{running.scheduler.http_server.port}/status")
    say(f"shell           nmfscale fit counts.nmf -k 10 --scheduler {shlex.quote(address)}{tls}")
    say(f"python          {client}")
    if importlib.util.find_spec("bokeh") is None:
        log("the dashboard is empty: bokeh is not installed; pip install bokeh")
    log(f"workers: {len(running.workers)}; Ctrl-C stops them")


@contextmanager
def cluster_client(arguments: argparse.Namespace) -> Iterator[Any]:
    """Yield the Dask client for a job, or None for a job in this process."""
    before = logging.root.manager.disable
    if not arguments.debug:
        # Dask logs tracebacks of errors that the job handles, or reports in one line.
        logging.disable(logging.CRITICAL)
    try:
        with _client(arguments) as client:
            yield client
    finally:
        logging.disable(before)


def _client(arguments: argparse.Namespace) -> AbstractContextManager[Any]:
    address, folder = arguments.scheduler, arguments.tls
    if address is None and arguments.workers is None:
        if folder is not None:
            arguments.usage("--tls needs --scheduler or --workers")
        return nullcontext()
    if address is not None and "://" not in address:
        address = f"{'tcp' if folder is None else 'tls'}://{address}"
    if address is not None and folder is not None and not address.startswith("tls://"):
        arguments.usage(f"--tls: a scheduler at {address} does not speak TLS")
    from ..cluster.local import connected, local_client, make_certificates, read_certificates

    if folder is not None and address is None:
        make_certificates(folder)
    security = None if folder is None else read_certificates(folder)
    if address is None:
        return local_client(arguments.workers, security)
    return connected(address, security)
