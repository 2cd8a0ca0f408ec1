# SPDX-License-Identifier: Apache-2.0
"""SSH through paramiko: the one place that imports it.

A host's key must stand in known_hosts: an unknown one and a changed one are refused, whatever StrictHostKeyChecking
says, and nothing is written there. Only keys are tried, those of the agent and of files; nobody is asked for a
password. paramiko 4 dropped DSA keys and paramiko 5 RSA signatures with SHA-1, so that servers before OpenSSH 7.2 may
be out of reach: that is told apart from a wrong key.

Size: all that knows paramiko's errors stands here.
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
from vgpuctl.remote import config_text, host_key
from vgpuctl.remote import login as logins
from vgpuctl.remote.channel import SshSession
from vgpuctl.remote.known_hosts import SSH_PORT, KnownKey, fingerprint, keys_for
from vgpuctl.remote.login import Login, as_typed
from vgpuctl.remote.proxy import Proxy
from vgpuctl.remote.target import Target
from vgpuctl.value import replace

_MOST_HOPS = 8
_RSA = ("rsa-sha2-512", "rsa-sha2-256")
_KINDS = {name: "ssh-rsa" for name in _RSA}
"""Algorithms that are the same kind of key in known_hosts."""


class SshHosts:
    """Logs in at hosts. ssh_config and key files are read once for all of them; threads may share it."""

    def __init__(self) -> None:
        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # what failed is told as an error, once
        self._lock = threading.Lock()
        self._keys: dict[str, Any] = {}
        self._texts: dict[str, str | None] = {}
        self._written = config_text.read(self._text_of)
        self._config = _parsed(self._written)

    def __call__(self, target: Target, until: float) -> SshSession:
        """Return a login, see `ran.Connect`."""
        opened: list[Any] = []
        try:
            found, transport = self._transport(target, until, opened, _MOST_HOPS)
        except BaseException:
            _close(opened)
            raise
        return SshSession(target.name, found.user, transport, until, lambda: _close(opened))

    def _transport(
        self, target: Target, until: float, opened: list[Any], hops: int, via: tuple[Target, ...] = ()
    ) -> tuple[Login, Any]:
        """Log in at a host, over the jump hosts that `via` names or else its own of ssh_config."""
        with self._lock:
            found = logins.login(target, self._lookup(target))
        if via:
            found = replace(found, jumps=via)
        if hops == 0:
            raise InvalidInput(f"{target.name}: ProxyJump of ssh_config goes in a circle")
        way = self._socket(target, found, until, opened, hops)
        transport = paramiko.Transport(way)
        opened.append(transport)
        files = self._known_files(found)
        known = keys_for(files, found.key_name, found.key_port)
        portless = () if known else keys_for(files, found.key_name, SSH_PORT)
        self._greet(target, found, transport, known or portless, _left(found, until))
        key = transport.get_remote_server_key()
        # As ssh: a host that is not known by its port is known when it has that very key without one.
        same = tuple(one for one in portless if one.blob == key.asbytes())
        host_key.check(target, found, key.get_name(), key.asbytes(), known or same)
        self._authenticate(target, found, transport, until)
        return found, transport

    def _lookup(self, target: Target) -> logins.Config:
        """Return what ssh_config says; what was typed stands in front of it, for ProxyCommand's %p and %r."""
        typed = [("Port", target.port), ("User", target.user)]
        lines = [f"{key} {value}\n" for key, value in typed if value is not None]
        config = _parsed("Host *\n" + "".join(lines) + self._written) if lines else self._config
        try:
            found: logins.Config = config.lookup(target.host)
            return found
        except Exception as exc:  # paramiko raises what it likes here: KeyError for a missing CanonicalDomains
            raise InvalidInput(f"{target.name}: ssh_config cannot be applied: {exc}", hint="see ~/.ssh/config") from exc

    def _socket(self, target: Target, found: Login, until: float, opened: list[Any], hops: int) -> Any:
        if found.proxy_command is not None and not found.jumps:
            try:
                proxy = Proxy(found.proxy_command)
            except (OSError, ValueError) as exc:
                raise Unreachable(f"{target.name}: ProxyCommand {found.proxy_command}: {exc}") from exc
            opened.append(proxy)
            return proxy.way
        if found.jumps:
            return self._through(target, found, until, opened, hops)
        try:
            way = socket.create_connection((found.host, found.port), timeout=_left(found, until))
            opened.append(way)
            # As ssh does: else a short message waits for the other side's delayed ACK, 40 ms each time.
            way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as exc:
            raise _no_answer(target, found, exc) from exc
        return way

    def _through(self, target: Target, found: Login, until: float, opened: list[Any], hops: int) -> Any:
        """Return a channel of the last jump host, at which one logs in over those before it."""
        *before, last = found.jumps
        _, transport = self._transport(last, until, opened, hops - 1, tuple(before))
        try:
            seconds = _left(found, until)
            return transport.open_channel("direct-tcpip", (found.host, found.port), ("127.0.0.1", 0), timeout=seconds)
        except (paramiko.SSHException, EOFError) as exc:
            raise Unreachable(
                f"{target.name}: {last.name} does not reach {found.host} port {found.port}: {exc}",
                hint=f"ssh {last.name} nc -vz {found.host} {found.port}",
            ) from exc

    def _greet(self, target: Target, found: Login, transport: Any, known: Sequence[KnownKey], seconds: float) -> None:
        """Agree on algorithms: the kinds of key that known_hosts has come first."""
        transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = seconds
        options = transport.get_security_options()
        kinds = {key.kind for key in known}
        options.key_types = sorted(options.key_types, key=lambda name: _KINDS.get(name, name) not in kinds)
        try:
            transport.start_client(timeout=seconds)  # returns as well when the time is over
            if not transport.initial_kex_done:
                raise EOFError(f"no answer to its greeting within {seconds:.0f} s")
        except paramiko.ssh_exception.IncompatiblePeer as exc:
            raise _too_old(target, transport, str(exc)) from exc
        except (paramiko.SSHException, EOFError, OSError) as exc:
            raise Unreachable(
                f"{target.name}: {found.host} port {found.port} does not speak SSH: {str(exc) or 'it hung up'}",
                hint=f"ssh -v {as_typed(found)}",
            ) from exc

    def _authenticate(self, target: Target, found: Login, transport: Any, until: float) -> None:
        tried: list[str] = []
        try:
            for name, key in self._candidates(found, tried):
                transport.auth_timeout = _left(found, until)
                try:
                    more = transport.auth_publickey(found.user, key)
                except paramiko.BadAuthenticationType as exc:
                    raise _not_let_in(target, found, [f"it takes {', '.join(exc.allowed_types)} alone"]) from exc
                except paramiko.AuthenticationException as exc:
                    if "agree on a pubkey algorithm" in str(exc):
                        raise _too_old(target, transport, f"no RSA signature with SHA-2 for {name}") from exc
                    tried.append(f"{name}: refused{_sha1_only(transport, key)}")
                    continue
                if not more:
                    return
                raise _not_let_in(target, found, [f"{name}: taken, and it asks for more: {', '.join(more)}"])
        except (paramiko.SSHException, EOFError, OSError) as exc:
            tried.append(f"then it hung up: {str(exc) or 'no reason given'}")
        raise _not_let_in(target, found, tried)

    def _candidates(self, found: Login, tried: list[str]) -> Iterator[tuple[str, Any]]:
        """Yield name and key: the agent's that a file names, the agent's others, then the files'."""
        files = [(path, key) for path in found.identity_files if (key := self._key(path)) is not None]
        named = {key.asbytes() for _, key in files if not isinstance(key, str)} | self._public(found.identity_files)
        agents = self._agent_keys() if found.agent else []
        of_agent = [key for key in agents if key.asbytes() in named]
        if not found.only_files:
            of_agent += [key for key in agents if key.asbytes() not in named]
        for key in of_agent:
            yield f"key of the agent {fingerprint(key.asbytes())}", key
        done = {key.asbytes() for key in of_agent}
        for path, key in files:
            if isinstance(key, str):
                tried.append(f"{path}: {key}")
            elif key.asbytes() not in done:
                yield path, key

    def _key(self, path: str) -> Any:
        """Return a file's key, why it cannot be used as text, or None when there is no such file."""
        with self._lock:
            if path not in self._keys:
                self._keys[path] = _load_key(path)
            return self._keys[path]

    def _agent_keys(self) -> list[Any]:
        with self._lock, contextlib.suppress(paramiko.SSHException, OSError):
            agent = paramiko.Agent()
            return list(agent.get_keys())
        return []

    def _public(self, paths: Sequence[str]) -> set[bytes]:
        """Return the public halves that stand beside key files: the agent may have the others."""
        found: set[bytes] = set()
        for path in paths:
            words = (self._text_of(path if path.endswith(".pub") else f"{path}.pub") or "").split()
            with contextlib.suppress(ValueError, IndexError):
                found.add(paramiko.pkey.PublicBlob.from_string(" ".join(words[:2])).key_blob)
        return found

    def _known_files(self, found: Login) -> list[tuple[str, str]]:
        return [(path, text) for path in found.known_hosts if (text := self._text_of(path)) is not None]

    def _text_of(self, path: str) -> str | None:
        """Return a file's text, None when there is none. Undecodable bytes are replaced: they are in comments.

        Raises:
            InvalidInput: it may not be read.
        """
        if path not in self._texts:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    self._texts[path] = file.read()
            except (FileNotFoundError, NotADirectoryError):
                self._texts[path] = None
            except OSError as exc:
                raise InvalidInput(f"{path} cannot be read: {exc.strerror}", hint=f"ls -ld {path}") from exc
        return self._texts[path]


def _parsed(text: str) -> Any:
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
    """Ask the reader of each kind of key: only they tell this apart from a damaged file."""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            kind.from_private_key_file(path)
        except paramiko.PasswordRequiredException:
            return True
        except Exception:  # noqa: BLE001, S112 - it is another kind's file
            continue
    return False


def _not_let_in(target: Target, found: Login, tried: Sequence[str]) -> VgpuctlError:
    reasons = list(tried) or ["no key to try: the agent has none, and none of the files is there"]
    return HostCannot(
        f"{target.name}: it does not let {found.user} in",
        hint=f"ssh -v {as_typed(found)}; vgpuctl tries keys alone, never a password",
        check="login",
        reasons=reasons,
        identity_files=list(found.identity_files),
    )


def _too_old(target: Target, transport: Any, what: str) -> VgpuctlError:
    said = getattr(transport, "remote_version", "") or "unknown"
    return HostCannot(
        f"{target.name}: its SSH server and paramiko {paramiko.__version__} have no algorithm in common: {what}",
        hint="its key is not the reason: renew the SSH server there, or its host keys: ssh-keygen -A; DSA and RSA"
        " with SHA-1 are no longer spoken",
        check="ssh-algorithms",
        server=said,
    )


def _sha1_only(transport: Any, key: Any) -> str:
    """Say of an RSA key what a server that tells no signature algorithms is likely to lack."""
    told = "server-sig-algs" in (getattr(transport, "server_extensions", None) or {})
    if told or key.get_name() != "ssh-rsa":
        return ""
    return f" ({transport.remote_version} may know RSA with SHA-1 alone: try an ed25519 key)"


def _no_answer(target: Target, found: Login, exc: OSError) -> VgpuctlError:
    why = "no answer" if isinstance(exc, TimeoutError) else exc.strerror or str(exc)
    return Unreachable(
        f"{target.name}: {found.host} port {found.port} cannot be reached: {why[:1].lower()}{why[1:]}",
        hint=f"is it on? ssh -v {as_typed(found)}",
        errno=exc.errno,
    )


def _left(found: Login, until: float) -> float:
    """Return how long to wait for one answer."""
    return max(0.1, min(found.connect_seconds, until - time.monotonic()))


def _close(opened: Sequence[Any]) -> None:
    for one in reversed(opened):
        with contextlib.suppress(Exception):
            one.close()
