# SPDX-License-Identifier: Apache-2.0
"""SSH through paramiko: the one place that imports it.

A host's key must be in known_hosts: unknown and changed keys are refused, whatever StrictHostKeyChecking says, and
vgpuctl never writes known_hosts. It tries only keys, from the agent and from files, and never asks for a password.
paramiko 4 dropped DSA keys and paramiko 5 RSA signatures with SHA-1, so servers before OpenSSH 7.2 may be out of reach:
the error distinguishes that from a wrong key.

Size: this module contains everything that depends on paramiko's errors.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import paramiko

from vgpuctl.errors import HostCannot, InvalidInput, Unreachable, VgpuctlError
from vgpuctl.remote import host_key, ssh_config
from vgpuctl.remote import login as logins
from vgpuctl.remote.known_hosts import SSH_PORT, KnownKey, fingerprint, keys_for
from vgpuctl.remote.login import Login, ssh_arguments
from vgpuctl.remote.proxy import ProxyProcess
from vgpuctl.remote.ssh_session import SshSession
from vgpuctl.remote.target import Target
from vgpuctl.value import replace

_MAX_HOPS = 8
_RSA_SHA2 = ("rsa-sha2-512", "rsa-sha2-256")
_KEY_TYPES = {name: "ssh-rsa" for name in _RSA_SHA2}
"""Algorithms that share one key type in known_hosts."""


class SshConnector:
    """Logs in at hosts. ssh_config and key files are read once for all of them; threads may share it."""

    def __init__(self) -> None:
        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # a failure is reported once, as an error
        self._lock = threading.Lock()
        self._keys: dict[str, Any] = {}
        self._file_texts: dict[str, str | None] = {}
        self._config_text = ssh_config.read_ssh_config(self._read_file)
        self._config = _parse_config(self._config_text)

    def __call__(self, target: Target, deadline: float) -> SshSession:
        """Return a login, see `session.Connect`."""
        opened: list[Any] = []
        try:
            login, transport = self._transport(target, deadline, opened, _MAX_HOPS)
        except BaseException:
            _close_all(opened)
            raise
        return SshSession(target.name, login.user, transport, deadline, lambda: _close_all(opened))

    def _transport(
        self, target: Target, deadline: float, opened: list[Any], hops: int, via: tuple[Target, ...] = ()
    ) -> tuple[Login, Any]:
        """Log in at a host, through the jump hosts in `via` or else those of ssh_config."""
        with self._lock:
            login = logins.resolve_login(target, self._lookup(target))
        if via:
            login = replace(login, proxy_jumps=via)
        if hops == 0:
            raise InvalidInput(f"{target.name}: ProxyJump of ssh_config goes in a circle")
        connection = self._socket(target, login, deadline, opened, hops)
        transport = paramiko.Transport(connection)
        opened.append(transport)
        files = self._read_known_hosts(login)
        known_keys = keys_for(files, login.known_hosts_name, login.known_hosts_port)
        portless = () if known_keys else keys_for(files, login.known_hosts_name, SSH_PORT)
        self._negotiate(target, login, transport, known_keys or portless, _remaining_seconds(login, deadline))
        key = transport.get_remote_server_key()
        # As ssh does: a host that is not known with its port is accepted if the same key is known without a port.
        matching = tuple(candidate for candidate in portless if candidate.blob == key.asbytes())
        host_key.check_host_key(target, login, key.get_name(), key.asbytes(), known_keys or matching)
        self._authenticate(target, login, transport, deadline)
        return login, transport

    def _lookup(self, target: Target) -> logins.SshOptions:
        """Return the options of ssh_config, after the explicit port and user, for ProxyCommand's %p and %r."""
        explicit = [("Port", target.port), ("User", target.user)]
        lines = [f"{key} {value}\n" for key, value in explicit if value is not None]
        config = _parse_config("Host *\n" + "".join(lines) + self._config_text) if lines else self._config
        try:
            options: logins.SshOptions = config.lookup(target.host)
            return options
        except Exception as exc:  # paramiko raises various errors here: KeyError for a missing CanonicalDomains
            raise InvalidInput(f"{target.name}: ssh_config cannot be applied: {exc}", hint="see ~/.ssh/config") from exc

    def _socket(self, target: Target, login: Login, deadline: float, opened: list[Any], hops: int) -> Any:
        if login.proxy_command is not None and not login.proxy_jumps:
            try:
                proxy = ProxyProcess(login.proxy_command)
            except (OSError, ValueError) as exc:
                raise Unreachable(f"{target.name}: ProxyCommand {login.proxy_command}: {exc}") from exc
            opened.append(proxy)
            return proxy.connection
        if login.proxy_jumps:
            return self._open_jump_channel(target, login, deadline, opened, hops)
        try:
            connection = socket.create_connection((login.host, login.port), timeout=_remaining_seconds(login, deadline))
            opened.append(connection)
            # As ssh does: otherwise a short message waits for the peer's delayed ACK, 40 ms each time.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as exc:
            raise _unreachable_error(target, login, exc) from exc
        return connection

    def _open_jump_channel(self, target: Target, login: Login, deadline: float, opened: list[Any], hops: int) -> Any:
        """Return a channel from the last jump host, with a login through the hosts before it."""
        *earlier_hops, last_hop = login.proxy_jumps
        _, transport = self._transport(last_hop, deadline, opened, hops - 1, tuple(earlier_hops))
        try:
            seconds = _remaining_seconds(login, deadline)
            return transport.open_channel("direct-tcpip", (login.host, login.port), ("127.0.0.1", 0), timeout=seconds)
        except (paramiko.SSHException, EOFError) as exc:
            raise Unreachable(
                f"{target.name}: {last_hop.name} does not reach {login.host} port {login.port}: {exc}",
                hint=f"ssh {last_hop.name} nc -vz {login.host} {login.port}",
            ) from exc

    def _negotiate(
        self, target: Target, login: Login, transport: Any, known: Sequence[KnownKey], seconds: float
    ) -> None:
        """Negotiate the algorithms: the key types in known_hosts come first."""
        transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = seconds
        options = transport.get_security_options()
        key_types = {key.key_type for key in known}
        options.key_types = sorted(options.key_types, key=lambda name: _KEY_TYPES.get(name, name) not in key_types)
        try:
            transport.start_client(timeout=seconds)  # also returns at the timeout
            if not transport.initial_kex_done:
                raise EOFError(f"no answer to its greeting within {seconds:.0f} s")
        except paramiko.ssh_exception.IncompatiblePeer as exc:
            raise _algorithm_error(target, transport, str(exc)) from exc
        except (paramiko.SSHException, EOFError, OSError) as exc:
            raise Unreachable(
                f"{target.name}: {login.host} port {login.port} does not speak SSH: {str(exc) or 'it hung up'}",
                hint=f"ssh -v {ssh_arguments(login)}",
            ) from exc

    def _authenticate(self, target: Target, login: Login, transport: Any, deadline: float) -> None:
        tried: list[str] = []
        try:
            for name, key in self._candidates(login, tried):
                transport.auth_timeout = _remaining_seconds(login, deadline)
                try:
                    further_methods = transport.auth_publickey(login.user, key)
                except paramiko.BadAuthenticationType as exc:
                    raise _login_refused_error(
                        target, login, [f"it takes {', '.join(exc.allowed_types)} alone"]
                    ) from exc
                except paramiko.AuthenticationException as exc:
                    if "agree on a pubkey algorithm" in str(exc):
                        raise _algorithm_error(target, transport, f"no RSA signature with SHA-2 for {name}") from exc
                    tried.append(f"{name}: refused{_sha1_note(transport, key)}")
                    continue
                if not further_methods:
                    return
                raise _login_refused_error(
                    target, login, [f"{name}: taken, and it asks for more: {', '.join(further_methods)}"]
                )
        except (paramiko.SSHException, EOFError, OSError) as exc:
            tried.append(f"then it hung up: {str(exc) or 'no reason given'}")
        raise _login_refused_error(target, login, tried)

    def _candidates(self, login: Login, tried: list[str]) -> Iterator[tuple[str, Any]]:
        """Yield name and key: the agent's keys that a file names, the agent's others, then the files' keys."""
        files = [(path, key) for path in login.identity_files if (key := self._key(path)) is not None]
        named_keys = {key.asbytes() for _, key in files if not isinstance(key, str)} | self._public_keys(
            login.identity_files
        )
        agents = self._agent_keys() if login.use_agent else []
        of_agent = [key for key in agents if key.asbytes() in named_keys]
        if not login.identities_only:
            of_agent += [key for key in agents if key.asbytes() not in named_keys]
        for key in of_agent:
            yield f"key of the agent {fingerprint(key.asbytes())}", key
        tried_keys = {key.asbytes() for key in of_agent}
        for path, key in files:
            if isinstance(key, str):
                tried.append(f"{path}: {key}")
            elif key.asbytes() not in tried_keys:
                yield path, key

    def _key(self, path: str) -> Any:
        """Return a file's key, the reason (text) why it cannot be used, or None if the file does not exist."""
        with self._lock:
            if path not in self._keys:
                self._keys[path] = _load_key(path)
            return self._keys[path]

    def _agent_keys(self) -> list[Any]:
        with self._lock, contextlib.suppress(paramiko.SSHException, OSError):
            agent = paramiko.Agent()
            return list(agent.get_keys())
        return []

    def _public_keys(self, paths: Sequence[str]) -> set[bytes]:
        """Return the public keys next to the key files (.pub): the agent may have the private keys."""
        blobs: set[bytes] = set()
        for path in paths:
            words = (self._read_file(path if path.endswith(".pub") else f"{path}.pub") or "").split()
            with contextlib.suppress(ValueError, IndexError):
                blobs.add(paramiko.pkey.PublicBlob.from_string(" ".join(words[:2])).key_blob)
        return blobs

    def _read_known_hosts(self, login: Login) -> list[tuple[str, str]]:
        return [(path, text) for path in login.known_hosts_files if (text := self._read_file(path)) is not None]

    def _read_file(self, path: str) -> str | None:
        """Return a file's text, None if it does not exist. Undecodable bytes are replaced: they are in comments.

        Raises:
            InvalidInput: it cannot be read.
        """
        if path not in self._file_texts:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    self._file_texts[path] = file.read()
            except (FileNotFoundError, NotADirectoryError):
                self._file_texts[path] = None
            except OSError as exc:
                raise InvalidInput(f"{path} cannot be read: {exc.strerror}", hint=f"ls -ld {path}") from exc
        return self._file_texts[path]


def _parse_config(text: str) -> Any:
    try:
        return paramiko.SSHConfig.from_text(text)
    except paramiko.ConfigParseError as exc:
        raise InvalidInput(f"ssh_config cannot be understood: {exc}", hint="see ~/.ssh/config") from exc


def _load_key(path: str) -> Any:
    try:
        if path.endswith(".pub"):
            return None
        return paramiko.PKey.from_path(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        return f"cannot be read: {exc.strerror}"
    except Exception as exc:  # noqa: BLE001 - paramiko and cryptography have many ways to refuse a file
        if _has_passphrase(path):
            return "has a passphrase: give it to the agent with ssh-add"
        return f"is no key that paramiko reads: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}"


def _has_passphrase(path: str) -> bool:
    """Try the reader of each key type: only these distinguish a passphrase from a damaged file."""
    for key_class in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            key_class.from_private_key_file(path)
        except paramiko.PasswordRequiredException:
            return True
        except Exception:  # noqa: BLE001, S112 - it is another type's file
            continue
    return False


def _login_refused_error(target: Target, login: Login, tried: Sequence[str]) -> VgpuctlError:
    reasons = list(tried) or ["no key to try: the agent has none, and none of the files is there"]
    return HostCannot(
        f"{target.name}: it does not let {login.user} in",
        hint=f"ssh -v {ssh_arguments(login)}; vgpuctl tries keys alone, never a password",
        check="login",
        reasons=reasons,
        identity_files=list(login.identity_files),
    )


def _algorithm_error(target: Target, transport: Any, what: str) -> VgpuctlError:
    server = getattr(transport, "remote_version", "") or "unknown"
    return HostCannot(
        f"{target.name}: its SSH server and paramiko {paramiko.__version__} have no algorithm in common: {what}",
        hint="its key is not the reason: renew the SSH server there, or its host keys: ssh-keygen -A; DSA and RSA"
        " with SHA-1 are no longer spoken",
        check="ssh-algorithms",
        server=server,
    )


def _sha1_note(transport: Any, key: Any) -> str:
    """Return a note for an RSA key about what a server that lists no signature algorithms probably lacks."""
    lists_algorithms = "server-sig-algs" in (getattr(transport, "server_extensions", None) or {})
    if lists_algorithms or key.get_name() != "ssh-rsa":
        return ""
    return f" ({transport.remote_version} may know RSA with SHA-1 alone: try an ed25519 key)"


def _unreachable_error(target: Target, login: Login, exc: OSError) -> VgpuctlError:
    why = "no answer" if isinstance(exc, TimeoutError) else exc.strerror or str(exc)
    return Unreachable(
        f"{target.name}: {login.host} port {login.port} cannot be reached: {why[:1].lower()}{why[1:]}",
        hint=f"is it on? ssh -v {ssh_arguments(login)}",
        errno=exc.errno,
    )


def _remaining_seconds(login: Login, deadline: float) -> float:
    """Return how long to wait for one response."""
    return max(0.1, min(login.connect_timeout_seconds, deadline - time.monotonic()))


def _close_all(opened: Sequence[Any]) -> None:
    for resource in reversed(opened):
        with contextlib.suppress(Exception):
            resource.close()
