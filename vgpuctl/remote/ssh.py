# SPDX-License-Identifier: Apache-2.0
"""Logs in at hosts with paramiko. Only functions of this module import it: loading it takes longer than most commands.

A host's key must be in known_hosts: unknown and changed keys are refused, whatever StrictHostKeyChecking says, and
vgpuctl never writes known_hosts. It tries only keys, from the agent and from files, and never asks for a password.
paramiko 4 dropped DSA keys and paramiko 5 RSA signatures with SHA-1, so servers before OpenSSH 7.2 may be out of reach:
the error distinguishes that from a wrong key.

`paramiko.SSHClient` does not suffice. It reports only the last of several refused keys, stops at a key file that does
not exist, and tries all keys of the agent despite IdentitiesOnly. It tries a host's next address only after
ECONNREFUSED and EHOSTUNREACH, so without IPv6 it does not reach a host that has both. Its host keys: see `known_hosts`.
An AuthStrategy, a MissingHostKeyPolicy and a transport factory could replace these parts. They are more code than a
login on a `paramiko.Transport`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import logging
import shlex
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import paramiko

from vgpuctl.errors import HostCannot, InvalidInput, Unreachable, VgpuctlError
from vgpuctl.model.host_key import fingerprint
from vgpuctl.remote import ssh_config
from vgpuctl.remote.known_hosts import check_host_key, check_pinned_key, keys_for
from vgpuctl.remote.session import Target
from vgpuctl.remote.ssh_config import SSH_PORT, Login, SshOptions, ssh_arguments
from vgpuctl.remote.ssh_session import SshSession
from vgpuctl.value import replace

_MAX_HOPS = 8
_RSA_SHA2 = ("rsa-sha2-512", "rsa-sha2-256")
_KEY_TYPES = {name: "ssh-rsa" for name in _RSA_SHA2}
"""Algorithms that share one key type in known_hosts."""
_PROXY_END_SECONDS = 1.0
_PEER_GONE_MS = 20_000
"""Data that a peer does not acknowledge for so long ends the connection (tcp(7), TCP_USER_TIMEOUT)."""


class SshConnector:
    """Logs in at hosts. ssh_config and key files are read once for all of them; threads may share it.

    `pinned_key`: the key of the host itself, see `known_hosts.check_pinned_key`; jump hosts' keys are in known_hosts.
    """

    def __init__(self, pinned_key: str | None = None) -> None:
        self._pinned_key = pinned_key
        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # a failure is reported once, as an error
        self._read_file = functools.cache(_read_file)
        self._load_key = functools.cache(load_key)
        self._parse_config = functools.cache(_parse_config)
        self._config_text = ssh_config.read_ssh_config(self._read_file)
        self._parse_config(self._config_text)  # raises its error once, and not for each host

    def __call__(self, target: Target, deadline: float) -> SshSession:
        """Return a login, see `session.Connect`."""
        with contextlib.ExitStack() as resources:
            login, transport = self._log_in(target, deadline, resources, _MAX_HOPS)
            key = transport.get_remote_server_key()
            host_key = f"{key.get_name()} {fingerprint(key.asbytes())}"
            return SshSession(target.name, login.user, transport, deadline, resources.pop_all().close, host_key)

    def _log_in(
        self, target: Target, deadline: float, resources: contextlib.ExitStack, hops: int, via: tuple[Target, ...] = ()
    ) -> tuple[Login, Any]:
        """Log in at a host, through the jump hosts in `via` or else those of ssh_config."""
        login = ssh_config.resolve_login(target, self._lookup(target))
        if via:
            login = replace(login, proxy_jumps=via)
        if hops == 0:
            raise InvalidInput(f"{target.name}: ProxyJump of ssh_config forms a loop")
        transport = paramiko.Transport(self._connect(target, login, deadline, resources, hops))
        resources.callback(_close, transport)
        files = [(path, text) for path in login.known_hosts_files if (text := self._read_file(path)) is not None]
        pinned = self._pinned_key if hops == _MAX_HOPS else None
        known_keys = keys_for(files, login.known_hosts_name, login.known_hosts_port)
        portless = () if known_keys else keys_for(files, login.known_hosts_name, SSH_PORT)
        key_types = {key.key_type for key in known_keys or portless} if pinned is None else {pinned.partition(" ")[0]}
        _negotiate(target, login, transport, key_types, _remaining(login, deadline))
        key = transport.get_remote_server_key()
        if pinned is not None:
            check_pinned_key(target, key.get_name(), key.asbytes(), pinned)
        else:  # as ssh does: a host that is not known with its port is accepted if the same key is known without one
            matching = tuple(candidate for candidate in portless if candidate.blob == key.asbytes())
            check_host_key(target, login, key.get_name(), key.asbytes(), known_keys or matching)
        self._authenticate(target, login, transport, deadline)
        return login, transport

    def _lookup(self, target: Target) -> SshOptions:
        """Return the options of ssh_config, after the explicit port and user, for ProxyCommand's %p and %r."""
        explicit = [("Port", target.port), ("User", target.user)]
        lines = [f"{key} {value}\n" for key, value in explicit if value is not None]
        config = self._parse_config("".join(lines) + self._config_text)
        try:
            options: SshOptions = config.lookup(target.host)
            return options
        except Exception as exc:  # paramiko raises various errors here: KeyError for a missing CanonicalDomains
            raise InvalidInput(
                f"{target.name}: ssh_config cannot be applied: {exc}", hint="check ~/.ssh/config"
            ) from exc

    def _connect(
        self, target: Target, login: Login, deadline: float, resources: contextlib.ExitStack, hops: int
    ) -> Any:
        """Return a connection to the SSH server: the last jump host's, that of ProxyCommand, or a socket."""
        if login.proxy_jumps:
            return self._open_jump_channel(target, login, deadline, resources, hops)
        if login.proxy_command is not None:
            try:
                proxy = ProxyProcess(login.proxy_command)
            except (OSError, ValueError) as exc:
                raise Unreachable(f"{target.name}: ProxyCommand {login.proxy_command}: {exc}") from exc
            resources.callback(_close, proxy)
            return proxy.connection
        connection = open_socket(target, login, _remaining(login, deadline))
        resources.callback(_close, connection)
        return connection

    def _open_jump_channel(
        self, target: Target, login: Login, deadline: float, resources: contextlib.ExitStack, hops: int
    ) -> Any:
        """Return a channel from the last jump host, with a login through the hosts before it."""
        *earlier_hops, last_hop = login.proxy_jumps
        _, transport = self._log_in(last_hop, deadline, resources, hops - 1, tuple(earlier_hops))
        try:
            seconds = _remaining(login, deadline)
            return transport.open_channel("direct-tcpip", (login.host, login.port), ("127.0.0.1", 0), timeout=seconds)
        except Exception as exc:  # any error of paramiko's thread is raised here
            raise Unreachable(
                f"{target.name}: {last_hop.name} does not reach {login.host} port {login.port}: {exc}",
                hint=f"ssh {last_hop.name} nc -vz {login.host} {login.port}",
            ) from exc

    def _authenticate(self, target: Target, login: Login, transport: Any, deadline: float) -> None:
        tried: list[str] = []
        for name, key in self._candidates(login, tried):
            transport.auth_timeout = _remaining(login, deadline)
            try:
                further_methods = transport.auth_publickey(login.user, key)
            except paramiko.BadAuthenticationType as exc:
                raise _login_refused_error(target, login, [f"it accepts only {', '.join(exc.allowed_types)}"]) from exc
            except paramiko.AuthenticationException as exc:
                if "agree on a pubkey algorithm" in str(exc):
                    raise _algorithm_error(target, transport, f"no RSA signature with SHA-2 for {name}") from exc
                tried.append(f"{name}: refused{_sha1_note(transport, key)}")
                continue
            except Exception as exc:  # noqa: BLE001 - any error of paramiko's thread is raised here
                tried.append(f"then it closed the connection: {str(exc) or 'no reason given'}")
                break
            if not further_methods:
                return
            raise _login_refused_error(
                target, login, [f"{name}: accepted, but it requires more: {', '.join(further_methods)}"]
            )
        raise _login_refused_error(target, login, tried)

    def _candidates(self, login: Login, tried: list[str]) -> Iterator[tuple[str, Any]]:
        """Yield name and key: the agent's keys that a file names, the agent's others, then the files' keys."""
        files = [(path, key) for path in login.identity_files if (key := self._load_key(path)) is not None]
        named_keys = {key.asbytes() for _, key in files if not isinstance(key, str)}
        named_keys |= {self._public_key(path) for path in login.identity_files}
        of_agent = sorted(_agent_keys() if login.use_agent else (), key=lambda key: key.asbytes() not in named_keys)
        if login.identities_only:
            of_agent = [key for key in of_agent if key.asbytes() in named_keys]
        for key in of_agent:
            yield f"key of the agent {fingerprint(key.asbytes())}", key
        tried_keys = {key.asbytes() for key in of_agent}
        for path, key in files:
            if isinstance(key, str):
                tried.append(f"{path}: {key}")
            elif key.asbytes() not in tried_keys:
                yield path, key

    def _public_key(self, path: str) -> bytes:
        """Return the public key next to a key file (.pub), or b"": the agent may have the private key."""
        words = (self._read_file(path if path.endswith(".pub") else f"{path}.pub") or "").split()
        with contextlib.suppress(ValueError, IndexError):
            return base64.b64decode(words[1])
        return b""


class ProxyProcess:
    """The program of ssh_config's ProxyCommand: its standard streams are one end of a socket.

    `connection` is the other end, which closes when the program ends. This class replaces paramiko.ProxyCommand, which
    stays in the terminal's process group, so that Ctrl-C ends the connection before the remote command gets the stop;
    does not notice that its program ended; and never reads the program's stderr.
    """

    def __init__(self, line: str) -> None:
        """Start it, in a session of its own.

        Raises:
            OSError, ValueError: the program does not exist, or a quote in the line is not closed.
        """
        words = shlex.split(line)
        self.connection, child_end = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a list of words from the user's own ssh_config, no shell
                words,
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self.connection.close()
            raise
        finally:
            child_end.close()

    def close(self) -> None:
        """Close the connection and end the program."""
        self.connection.close()
        self._process.terminate()
        try:
            self._process.wait(_PROXY_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def open_socket(target: Target, login: Login, seconds: float) -> socket.socket:
    """Return a connection to the SSH server, without a proxy.

    Raises:
        Unreachable: the name is unknown, or the host does not answer or refuses.
    """
    try:
        connection = socket.create_connection((login.host, login.port), timeout=seconds)
        # As ssh does: otherwise a short message waits for the peer's delayed ACK, 40 ms each time.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that vanished is noticed: paramiko's own keepalive does not wait for answers.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _PEER_GONE_MS)
        return connection
    except UnicodeError as exc:  # from the encoding of the name for DNS
        raise _unreachable_error(target, login, "a part of its name is empty, or longer than 63 characters") from exc
    except OSError as exc:
        why = "no answer" if isinstance(exc, TimeoutError) else exc.strerror or str(exc)
        raise _unreachable_error(target, login, f"{why[:1].lower()}{why[1:]}", exc) from exc


def _negotiate(target: Target, login: Login, transport: Any, known_types: Collection[str], seconds: float) -> None:
    """Negotiate the algorithms: the key types in known_hosts come first."""
    transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = seconds
    options = transport.get_security_options()
    options.key_types = sorted(options.key_types, key=lambda name: _KEY_TYPES.get(name, name) not in known_types)
    try:
        transport.start_client(timeout=seconds)  # also returns at the timeout
        if not transport.initial_kex_done:
            raise EOFError(f"no SSH greeting within {seconds:.0f} s")
    except paramiko.ssh_exception.IncompatiblePeer as exc:
        raise _algorithm_error(target, transport, str(exc)) from exc
    except Exception as exc:  # any error of paramiko's thread is raised here: UnicodeDecodeError for a wrong KEXINIT
        raise Unreachable(
            f"{target.name}: {login.host} port {login.port} does not speak SSH: "
            f"{str(exc) or 'it closed the connection'}",
            hint=f"ssh -v {ssh_arguments(login)}",
        ) from exc


def _parse_config(text: str) -> Any:
    try:
        return paramiko.SSHConfig.from_text(text)
    except (paramiko.ConfigParseError, ValueError) as exc:  # ValueError: a quote of a Match line is not closed
        raise InvalidInput(f"ssh_config cannot be parsed: {exc}", hint="check ~/.ssh/config") from exc


_LONGEST_FIRST_LINE = 100
"""-----BEGIN ENCRYPTED PRIVATE KEY-----"""


def _agent_keys() -> Sequence[Any]:
    with contextlib.suppress(paramiko.SSHException, OSError):
        keys: Sequence[Any] = paramiko.Agent().get_keys()
        return keys
    return ()


def load_key(path: str) -> Any:
    """Return a file's key, the reason (text) why it cannot be used, or None if the file does not exist."""
    try:
        return None if path.endswith(".pub") else _read_key(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        return f"cannot be read: {exc.strerror}"
    except Exception as exc:  # noqa: BLE001 - paramiko and cryptography have many ways to refuse a file
        locked = (TypeError, paramiko.PasswordRequiredException)  # TypeError: a PEM file, with paramiko 3.2 and newer
        if isinstance(exc, locked) or _has_passphrase(path):
            return "has a passphrase: add it to the agent with ssh-add"
        return f"is not a key that paramiko can read: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}"


def _read_key(path: str) -> Any:
    """Return a file's key of any type. paramiko has `from_path` since 3.2; before, each class reads its own type."""
    if hasattr(paramiko.PKey, "from_path"):
        return paramiko.PKey.from_path(path)
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey):
        try:
            return kind.from_private_key_file(path)
        except paramiko.PasswordRequiredException:
            raise
        except paramiko.SSHException:  # another type of key
            continue
    return paramiko.RSAKey.from_private_key_file(path)


def _has_passphrase(path: str) -> bool:
    """Return whether a file has a passphrase: cryptography 43 calls it damaged in OpenSSH's format.

    Each of paramiko's key classes looks for a passphrase before it looks for its own type of key. paramiko 2.12 does
    not know PKCS8, whose first line says it.
    """
    try:
        with open(path, "rb") as file:
            if b"ENCRYPTED" in file.readline(_LONGEST_FIRST_LINE):
                return True
        paramiko.Ed25519Key.from_private_key_file(path)
    except Exception as exc:  # noqa: BLE001 - as above
        return isinstance(exc, paramiko.PasswordRequiredException)
    return False


def _read_file(path: str) -> str | None:
    """Return a file's text, None if it does not exist. Undecodable bytes are replaced: they are in comments.

    Raises:
        InvalidInput: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", hint=f"ls -ld {path}") from exc


def _unreachable_error(target: Target, login: Login, why: str, exc: OSError | None = None) -> VgpuctlError:
    is_name_unknown = exc is None or isinstance(exc, socket.gaierror)
    return Unreachable(
        f"{target.name}: {login.host} port {login.port} cannot be reached: {why}",
        hint=f"getent hosts {login.host}; check the name"
        if is_name_unknown
        else f"ssh -v {ssh_arguments(login)}; check that the host is on",
        errno=None if exc is None else exc.errno,
    )


def _login_refused_error(target: Target, login: Login, tried: Sequence[str]) -> VgpuctlError:
    reasons = list(tried) or ["no key to try: the agent has none, and no key file exists"]
    return HostCannot(
        f"{target.name}: it refuses the login of {login.user}",
        hint=f"ssh -v {ssh_arguments(login)}; vgpuctl uses only keys, never a password",
        check="login",
        reasons=reasons,
        identity_files=list(login.identity_files),
    )


def _algorithm_error(target: Target, transport: Any, what: str) -> VgpuctlError:
    server = getattr(transport, "remote_version", "") or "unknown"
    return HostCannot(
        f"{target.name}: its SSH server and paramiko {paramiko.__version__} have no algorithm in common: {what}",
        hint="ssh-keygen -A on that host creates new host keys; or update its SSH server: DSA and RSA"
        " with SHA-1 are no longer supported",
        check="ssh-algorithms",
        server=server,
    )


def _sha1_note(transport: Any, key: Any) -> str:
    """Return a note for an RSA key about what a server that lists no signature algorithms probably lacks."""
    lists_algorithms = "server-sig-algs" in (getattr(transport, "server_extensions", None) or {})
    if lists_algorithms or key.get_name() != "ssh-rsa":
        return ""
    return f" ({transport.remote_version} may support only RSA with SHA-1: try an ed25519 key)"


def _remaining(login: Login, deadline: float) -> float:
    """Return how many seconds to wait for one response."""
    return max(0.1, min(login.connect_timeout_seconds, deadline - time.monotonic()))


def _close(resource: Any) -> None:
    with contextlib.suppress(Exception):
        resource.close()
