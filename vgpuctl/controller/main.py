# SPDX-License-Identifier: Apache-2.0
"""Runs the controller: the engine, and its API on a Unix socket and, where that is asked for, on a port with TLS.

An ordinary user runs it. The socket has mode 0600 and is in a directory of its own: who can connect is an admin.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from vgpuctl.agent import systemd
from vgpuctl.agent.http_server import StreamProtocol, make_server
from vgpuctl.controller.api import ControllerApi
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.engine import Engine, connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import JournalLimits
from vgpuctl.controller.proxies import parse_proxies, through_proxies
from vgpuctl.controller.rdp_signing import RdpSigner
from vgpuctl.controller.sign_in.settings import read_settings
from vgpuctl.controller.sign_in.ways import SignInWays, open_ways
from vgpuctl.errors import FileFailed, InvalidInput, Refused
from vgpuctl.model.controller_service import DATABASE_FILE, SOCKET_PATH, STATE_DIRECTORY
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value

log = logging.getLogger("vgpuctl.controller")

BACKLOG = 128
DRAIN_SECONDS = 5.0
MAX_URL_BYTES = 4096


class Listen(Value):
    """A port: an address, and the files of its certificate and key; without them only a loopback address is served.

    `proxies`: where proxies are that are believed where a request comes from.
    """

    address: str
    port: int
    certificate: str | None = None
    key: str | None = None
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()


def database_url(given: str | None, state: Path) -> str:
    """Return the URL of the database: given itself, in a file (`@/PATH`), or SQLite in the state directory.

    Raises:
        FileFailed: the file cannot be read, or others may read it.
    """
    if given is None:
        return f"sqlite:///{state / DATABASE_FILE}"
    if not given.startswith("@"):
        return given
    path = given.removeprefix("@")
    try:
        if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
            raise Refused(f"{path} has a password for others to read", hint=f"chmod 600 {path}", path=path)
        return read_regular_file(path, MAX_URL_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        raise FileFailed(f"{path} cannot be read: {error}", path=path) from error


def parse_listen(text: str, certificate: str | None, key: str | None, proxies: Sequence[str] = ()) -> Listen:
    """Return where `ADDRESS:PORT` is. `proxies`: addresses and networks of proxies that are trusted.

    Raises:
        InvalidInput: it is none, or needs a certificate.
    """
    address, _, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not address or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise InvalidInput(f"--listen {text}: write ADDRESS:PORT, such as 127.0.0.1:8443")
    if (certificate is None) is not (key is None):
        raise InvalidInput("--tls-certificate and --tls-key belong together")
    if certificate is None and address not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidInput(
            f"--listen {text}: tokens would cross the network in the clear",
            hint="add --tls-certificate FILE --tls-key FILE, or listen on 127.0.0.1",
        )
    return Listen(address, int(port), certificate, key, parse_proxies(proxies))


def run(
    *,
    database: str | None,
    state: str | None,
    path: str | None,
    listen: Listen | None,
    limits: JournalLimits = JournalLimits(),  # noqa: B008 - values do not change
    sign_in: str | None = None,
    signer: RdpSigner | None = None,
) -> str:
    """Run until SIGTERM or SIGINT; return the socket's path. `sign_in`: the file that says how people sign in, too.

    `signer`: signs the RDP files of desktops.

    Raises:
        VgpuctlError: it cannot begin: the database, the socket or the port cannot be used.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    for noisy in ("alembic", "uvicorn", "paramiko"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    directory = Path(state or os.environ.get("STATE_DIRECTORY") or STATE_DIRECTORY)
    url = database_url(database, directory)
    if database is None:
        with contextlib.suppress(FileExistsError):
            make_directory(directory)
        upgrade(url)  # a database of one's own needs no command to begin
    if signer is not None:
        signer.check()
    ways = None if sign_in is None else open_ways(read_settings(sign_in))
    store = open_store(url, alone=True)
    try:
        if broken := store.journal.broken_triggers():
            log.warning("the journal can be changed: vgpuctl controller doctor journal: %s", ", ".join(broken))
        with bind(path or SOCKET_PATH) as listening:
            socket_path = str(listening.getsockname())
            asyncio.run(_serve(store, FleetService(store, connect_host, signer), listening, listen, limits, ways))
        return socket_path
    finally:
        store.close()


@contextlib.contextmanager
def bind(path: str) -> Iterator[socket.socket]:
    """Yield the listening socket at a path; only its owner and root may connect.

    Raises:
        Refused: something else is at the path. FileFailed: it cannot be made.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    old_mask = os.umask(0o177)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise Refused(f"{path} is not a socket", hint=f"ls -l {path}; then remove it", path=path)
            os.unlink(path)
        make_directory(Path(path).parent)
        listening.bind(path)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        reason = "it is too long" if error.errno is None else error.strerror
        raise FileFailed(f"the socket {path} cannot be made: {reason}", path=path, errno=error.errno) from error
    finally:
        os.umask(old_mask)
    try:
        yield listening
    finally:
        listening.close()
        with contextlib.suppress(OSError):
            os.unlink(path)


def make_directory(directory: Path) -> None:
    """Make a directory for this user alone, if there is none.

    Raises:
        FileFailed: it cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FileFailed(
            f"{directory} cannot be made: {error.strerror}", hint=f"ls -ld {directory.parent}", path=str(directory)
        ) from error


class _OwnProtocol(StreamProtocol):
    """HTTP on the Unix socket, which only its owner and root can use."""

    def find_peer(self, transport: Any) -> None:
        """Return None: its owner has no limit."""


async def _serve(
    store: Store,
    fleet: FleetService,
    listening: socket.socket,
    listen: Listen | None,
    limits: JournalLimits,
    ways: SignInWays | None,
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = Engine(store, on_failure=lambda: loop.call_soon_threadsafe(stop.set), limits=limits)
    api = ControllerApi(store, fleet, engine, ways)
    servers = [make_server(_through_socket(api.app), _OwnProtocol)]
    sockets = [listening]
    if listen is not None:
        tls = {} if listen.certificate is None else {"ssl_certfile": listen.certificate, "ssl_keyfile": listen.key}
        servers.append(make_server(through_proxies(api.app, listen.proxies), StreamProtocol, **tls))
        sockets.append(_bind_port(listen))
    engine.start()
    serving = [asyncio.create_task(s.serve(sockets=[one])) for s, one in zip(servers, sockets, strict=True)]
    systemd.notify("READY=1")
    log.info("the controller %s runs on %s", store.holder, listening.getsockname())
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait((waiting, *serving), return_when=asyncio.FIRST_COMPLETED)
    systemd.notify("STOPPING=1")
    log.info("the controller stops")
    api.web.close()
    api.streams.stop()
    for server in servers:
        server.should_exit = True
    await asyncio.wait(serving, timeout=DRAIN_SECONDS)
    for server in servers:
        server.force_exit = True
    await asyncio.to_thread(engine.stop)
    api.close()
    await asyncio.gather(*serving)
    if engine.failure is not None:
        raise engine.failure


def _through_socket(app: Any) -> Any:
    """Return the application for requests through the socket."""

    async def marked(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, "vgpuctl_socket": True}, receive, send)

    return marked


def _bind_port(listen: Listen) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in listen.address else socket.AF_INET
        return socket.create_server((listen.address, listen.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise FileFailed(
            f"{listen.address}:{listen.port} cannot be used: {error.strerror or error}",
            hint=f"ss -ltnp 'sport = :{listen.port}'",
        ) from error
