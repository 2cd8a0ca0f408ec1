# SPDX-License-Identifier: Apache-2.0
"""Reads a controller's installation on this machine for its checks, `doctor`; changes nothing.

What cannot be read is a problem with its reason. A database of SQLite that does not exist is not made.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC
from pathlib import Path

from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.journal_rows import JournalGuard
from vgpuctl.controller.database.store import Store, open_store
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.main import database_url
from vgpuctl.controller.model import FleetHost, HostLease
from vgpuctl.controller.planning.phase import is_silent
from vgpuctl.controller.sign_in.checks import check_ldap, check_oidc
from vgpuctl.controller.sign_in.settings import read_settings, secret_files
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.controller_service import SOCKET_PATH, STATE_DIRECTORY, TOKEN_VARIABLE
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import EMPTY_MAPPING, Value

SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
KEY_MARK = b"PRIVATE KEY-----"
MAX_KEYS, MAX_KEY_BYTES = 100, 64 << 10
TRIES_AT_A_TIME = 16
CONNECT_SECONDS = 5.0
_PEER = struct.Struct("3i")
_OPEN_FILES = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)
_LOCK = re.compile(r"FLOCK\s+ADVISORY\s+WRITE\s+(-?\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)")


class Options(Value):
    """The options of `controller run` that say what is where."""

    database: str | None = None
    state: str | None = None
    socket: str | None = None
    certificate: str | None = None
    key: str | None = None
    sign_in: str | None = None


class DatabaseFacts(Value):
    """A database. `name`: its URL without a password; `version`: of its tables.

    `now`: its time; `late_seconds`: by how much it is behind this machine's. `problem`: why it cannot be used.
    `journal`: who could change the journal there; None: SQLite. `broken_triggers`: those that do not keep it.
    `endless_tokens`: the API tokens that never expire.
    """

    name: str
    is_sqlite: bool = True
    path: str | None = None
    version: str | None = None
    now: float = 0.0
    late_seconds: float = 0.0
    problem: str | None = None
    fix: str | None = None
    journal: JournalGuard | None = None
    broken_triggers: tuple[str, ...] = ()
    endless_tokens: tuple[str, ...] = ()


class SecretFile(Value):
    """A file or directory that others must not read. `mode` None: it cannot be looked at, for the reason in `problem`.

    `group_may_read`: for a group that its admin chose.
    """

    path: str
    what: str
    mode: int | None = None
    problem: str | None = None
    group_may_read: bool = False


class ProcessFacts(Value):
    """The controller that answers at a socket. `open_files`: how many it may have; None: not known."""

    socket: str
    pid: int | None = None
    open_files: int | None = None
    problem: str | None = None


class CertificateFacts(Value):
    """A certificate for TLS. `ends`: seconds since 1970."""

    path: str
    ends: float | None = None
    problem: str | None = None


class SignInFacts(Value):
    """The file that says how people sign in. `asked`: the servers that it names. `problems`: with what helps."""

    path: str
    asked: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    problems: tuple[tuple[str, str | None], ...] = ()


class Installation(Value):
    """What the checks look at. `machine_now`: this machine's time. `user`: who runs the controller, with his SSH keys.

    `lock_pid`: the process that has a database of SQLite for itself. `hosts`, `leases` (by the host's id): of the
    database. `tried`: for each silent host, why it cannot be reached from here, None: it can. `known_hosts`: paths and
    texts.
    """

    machine_now: float
    database: DatabaseFacts
    process: ProcessFacts
    state: str
    user: str
    free_bytes: int | None
    secrets: tuple[SecretFile, ...]
    known_hosts: tuple[tuple[str, str], ...]
    lock_pid: int | None = None
    hosts: tuple[FleetHost, ...] = ()
    leases: Mapping[str, HostLease] = EMPTY_MAPPING
    tried: Mapping[str, str | None] = EMPTY_MAPPING
    certificate: CertificateFacts | None = None
    sign_in: SignInFacts | None = None


def read_installation(options: Options) -> Installation:
    """Read everything that the checks look at."""
    state = options.state or STATE_DIRECTORY
    user = _owner(state)
    home = Path(user.pw_dir)
    database, hosts, leases = _read_database(options.database, state)
    sign_in = None if options.sign_in is None else _read_sign_in(options.sign_in)
    tried = _try_hosts([host for host in hosts if is_silent(host, database.now)])
    return Installation(
        machine_now=time.time(),
        database=database,
        process=_find_process(options.socket or SOCKET_PATH),
        state=state,
        user=user.pw_name,
        free_bytes=_free_bytes(state),
        secrets=tuple(_secrets(options, state, home, sign_in)),
        known_hosts=tuple(_known_hosts(home)),
        lock_pid=None if database.path is None else _lock_pid(f"{database.path}.lock"),
        hosts=hosts,
        leases=leases,
        tried=tried,
        certificate=None if options.certificate is None else _certificate(options.certificate),
        sign_in=sign_in,
    )


def _owner(state: str) -> pwd.struct_passwd:
    """Return the user whom the state directory belongs to; who asks, where there is none."""
    uid = os.geteuid()
    with suppress(OSError):
        uid = os.stat(state).st_uid
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return pwd.struct_passwd((str(uid), "", uid, 0, "", "/nonexistent", ""))


def _read_database(
    given: str | None, state: str
) -> tuple[DatabaseFacts, tuple[FleetHost, ...], Mapping[str, HostLease]]:
    name, path = given or state, None
    try:
        database = Database(database_url(given, Path(state)))
        name, is_sqlite = database.name, database.is_sqlite
        path = database.url.database if is_sqlite else None
        database.close()
        if path is not None and not os.path.exists(path):
            facts = DatabaseFacts(name, path=path, problem=f"there is no {path}: no controller has run with it")
            return facts, (), {}
        store = open_store(database_url(given, Path(state)))
    except VgpuctlError as error:
        is_file = path is not None or given is None
        return DatabaseFacts(name, is_file, path, problem=error.message, fix=error.hint), (), {}
    try:
        return _facts(store, path), store.hosts.list(), store.hosts.leases()
    except VgpuctlError as error:
        return DatabaseFacts(name, path is not None, path, problem=error.message, fix=error.hint), (), {}
    finally:
        store.close()


def _facts(store: Store, path: str | None) -> DatabaseFacts:
    before = time.time()
    now = store.now()
    late = (before + time.time()) / 2 - now
    name, journal, broken = store.database.name, store.journal.guard(), store.journal.broken_triggers()
    endless = tuple(one.name for one in store.tokens.list() if one.expires_at is None)
    return DatabaseFacts(
        name, path is not None, path, store.version, now, late,
        journal=journal, broken_triggers=broken, endless_tokens=endless,
    )  # fmt: skip


def _find_process(path: str) -> ProcessFacts:
    """Return the process that answers at a socket: the kernel says which it is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(CONNECT_SECONDS)
        try:
            connection.connect(path)
        except OSError as error:
            return ProcessFacts(path, problem=f"{path}: {error.strerror or error}")
        pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    limit = None
    with suppress(OSError):
        match = _OPEN_FILES.search(read_regular_file(f"/proc/{pid}/limits").decode())
        limit = int(match[1]) if match is not None and match[1].isdigit() else None
    return ProcessFacts(path, pid, limit)


def _lock_pid(path: str) -> int | None:
    """Return the process that has locked a file, by the kernel's list: a lock of one's own would be in its way."""
    try:
        inode = os.stat(path).st_ino
        locks = read_regular_file("/proc/locks").decode()
    except OSError:
        return None
    return next((int(match[1]) for match in _LOCK.finditer(locks) if int(match[2]) == inode), None)


def _free_bytes(state: str) -> int | None:
    try:
        return shutil.disk_usage(state).free
    except OSError:
        return None


def _read_sign_in(path: str) -> SignInFacts:
    """Read the file, and ask the servers that it names."""
    try:
        settings = read_settings(path)
    except VgpuctlError as error:
        return SignInFacts(path, problems=((error.message, error.hint),))
    asked = [settings.oidc.issuer] if settings.oidc is not None else []
    asked += [settings.ldap.url] if settings.ldap is not None else []
    problems = tuple((one.text, one.fix) for one in (*check_oidc(settings), *check_ldap(settings)))
    return SignInFacts(path, tuple(asked), secret_files(settings), problems)


def _secrets(options: Options, state: str, home: Path, sign_in: SignInFacts | None) -> Iterator[SecretFile]:
    yield _secret(state, "the state directory")
    if options.database is not None and options.database.startswith("@"):
        yield _secret(options.database.removeprefix("@"), "the database's URL", group_may_read=True)
    if options.key is not None:
        yield _secret(options.key, "the key for TLS", group_may_read=True)
    for path in () if sign_in is None else sign_in.secrets:
        yield _secret(path, "a secret of sign-in.yaml")
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        yield _secret(token, "an API token")
    for key in _ssh_keys(home / ".ssh"):
        yield _secret(str(key), "an SSH key")


def _ssh_keys(directory: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in sorted(directory.iterdir())[:MAX_KEYS]:
            with suppress(OSError):
                if KEY_MARK in read_regular_file(path, MAX_KEY_BYTES):
                    yield path


def _secret(path: str, what: str, *, group_may_read: bool = False) -> SecretFile:
    try:
        return SecretFile(path, what, stat.S_IMODE(os.stat(path).st_mode), None, group_may_read)
    except OSError as error:
        return SecretFile(path, what, None, f"{path}: {error.strerror}")


def _known_hosts(home: Path) -> Iterator[tuple[str, str]]:
    for path in (str(home / ".ssh/known_hosts"), SYSTEM_KNOWN_HOSTS):
        with suppress(OSError):
            yield path, read_regular_file(path).decode(errors="replace")


def _try_hosts(hosts: Iterable[FleetHost]) -> dict[str, str | None]:
    """Connect to the agents of hosts; return for each why that fails, None: it works."""

    def attempt(host: FleetHost) -> tuple[str, str | None]:
        link = HostLink(host.name, host.address, host.host_key)
        try:
            link.read_fleet()
        except VgpuctlError as error:
            return host.name, error.message
        finally:
            link.close()
        return host.name, None

    with ThreadPoolExecutor(TRIES_AT_A_TIME) as threads:
        return dict(threads.map(attempt, hosts))


def _certificate(path: str) -> CertificateFacts:
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(read_regular_file(path))
    except (OSError, ValueError) as error:
        return CertificateFacts(path, problem=f"{path}: {getattr(error, 'strerror', None) or 'it is no certificate'}")
    if hasattr(certificate, "not_valid_after_utc"):
        return CertificateFacts(path, certificate.not_valid_after_utc.timestamp())
    return CertificateFacts(path, certificate.not_valid_after.replace(tzinfo=UTC).timestamp())
