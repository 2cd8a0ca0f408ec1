# SPDX-License-Identifier: Apache-2.0
"""The login at a host: explicit options first, then ssh_config, then ssh's defaults."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping, Sequence

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.known_hosts import SSH_PORT
from vgpuctl.remote.target import Target, find_invalid_part, parse_url
from vgpuctl.value import Value

CONNECT_SECONDS = 10.0
"""How long a host may take to answer if ssh_config has no ConnectTimeout: a host that is off never answers."""
DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_TIME = re.compile(r"([0-9]+)([smh]?)", re.ASCII)

SshOptions = Mapping[str, str | Sequence[str] | None]
"""The ssh_config options of one host: keywords in lower case."""


class Login(Value):
    """All that a connection needs.

    `known_hosts_name` and `known_hosts_port` identify it in known_hosts: a HostKeyAlias has no port. `proxy_jumps` are
    used in order. `proxy_command` is a command whose streams are the connection. `identities_only`: agent keys that no
    file names are not tried (IdentitiesOnly).
    """

    host: str
    port: int
    user: str
    known_hosts_name: str
    known_hosts_port: int
    identity_files: tuple[str, ...]
    identities_only: bool
    use_agent: bool
    known_hosts_files: tuple[str, ...]
    connect_timeout_seconds: float
    proxy_jumps: tuple[Target, ...] = ()
    proxy_command: str | None = None


def resolve_login(target: Target, config: SshOptions) -> Login:
    """Return how to log in at a host.

    Raises:
        InvalidInput: ssh_config has an invalid value for it.
    """
    port = target.port or _number(config, "port", target)
    host = _text(config, "hostname") or target.host
    files = [*target.identity_files, *_list(config, "identityfile")]
    identity_paths = tuple(path for path in files if path.lower() != "none")
    login = Login(
        host=host,
        port=port,
        user=target.user or _text(config, "user") or getpass.getuser(),
        known_hosts_name=_text(config, "hostkeyalias") or host,
        known_hosts_port=SSH_PORT if _text(config, "hostkeyalias") else port,
        identity_files=_expand_paths(identity_paths or (() if files else DEFAULT_IDENTITIES)),
        identities_only=_text(config, "identitiesonly").lower() == "yes",
        use_agent=_text(config, "identityagent").lower() != "none",
        known_hosts_files=_known_hosts_files(config),
        connect_timeout_seconds=_connect_timeout(config, target),
        proxy_jumps=_jumps(config, target),
        proxy_command=_text(config, "proxycommand") or None,
    )
    problem = find_invalid_part(Target(target.name, login.host, login.port, login.user))
    if problem:
        raise InvalidInput(f"{target.name}: ssh_config: {problem}")
    return login


def ssh_arguments(login: Login) -> str:
    """Return the arguments for ssh to log in there, for hints."""
    port = "" if login.port == SSH_PORT else f"-p {login.port} "
    return f"{port}{login.user}@{login.host}"


def _known_hosts_files(config: SshOptions) -> tuple[str, ...]:
    user = _text(config, "userknownhostsfile") or DEFAULT_KNOWN_HOSTS
    system = _text(config, "globalknownhostsfile") or GLOBAL_KNOWN_HOSTS
    return _expand_paths(tuple(path for path in f"{user} {system}".split() if path.lower() != "none"))


def _jumps(config: SshOptions, target: Target) -> tuple[Target, ...]:
    """Return ProxyJump's hosts; with one, ProxyCommand is not used (ssh_config(5): the first of the two applies)."""
    configured = _text(config, "proxyjump")
    if not configured or configured.lower() == "none":
        return ()
    try:
        return tuple(parse_url(f"ssh://{hop.strip().removeprefix('ssh://')}") for hop in configured.split(","))
    except InvalidInput as exc:
        raise InvalidInput(f"{target.name}: ssh_config: ProxyJump {configured} is no host", hint=exc.hint) from exc


def _connect_timeout(config: SshOptions, target: Target) -> float:
    configured = _text(config, "connecttimeout")
    if not configured or configured.lower() == "none":
        return CONNECT_SECONDS
    match = _TIME.fullmatch(configured.lower())
    if match is None or int(match[1]) == 0:
        raise InvalidInput(
            f"{target.name}: ssh_config: ConnectTimeout {configured} is no time", hint="say a number of seconds"
        )
    return float(int(match[1]) * _UNITS[match[2]])


def _number(config: SshOptions, key: str, target: Target) -> int:
    configured = _text(config, key) or str(SSH_PORT)
    if not configured.isdecimal():
        raise InvalidInput(f"{target.name}: ssh_config: {key} {configured} is no number")
    return int(configured)


def _expand_paths(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.expanduser(path) for path in paths))


def _text(config: SshOptions, key: str) -> str:
    value = config.get(key)
    return value.strip() if isinstance(value, str) else ""


def _list(config: SshOptions, key: str) -> list[str]:
    value = config.get(key)
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)
