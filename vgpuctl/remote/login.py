# SPDX-License-Identifier: Apache-2.0
"""How one logs in at a host: what was typed, then what ssh_config says, then ssh's defaults."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping, Sequence

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.known_hosts import SSH_PORT
from vgpuctl.remote.target import Target, parse_url, wrong
from vgpuctl.value import Value

CONNECT_SECONDS = 10.0
"""How long a host has to answer when ssh_config has no ConnectTimeout: one that is off never does."""
DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_TIME = re.compile(r"([0-9]+)([smh]?)", re.ASCII)

Config = Mapping[str, str | Sequence[str] | None]
"""What ssh_config says for one host: keywords in small letters."""


class Login(Value):
    """All that a connection needs.

    `key_name` and `key_port` are those that known_hosts has for it: a HostKeyAlias has no port. `jumps` come one after
    the other. `proxy_command` is a command whose streams are the connection. `only_files`: keys of the agent that no
    file names are left alone (IdentitiesOnly).
    """

    host: str
    port: int
    user: str
    key_name: str
    key_port: int
    identity_files: tuple[str, ...]
    only_files: bool
    agent: bool
    known_hosts: tuple[str, ...]
    connect_seconds: float
    jumps: tuple[Target, ...] = ()
    proxy_command: str | None = None


def login(target: Target, config: Config) -> Login:
    """Return how to log in at a host.

    Raises:
        InvalidInput: ssh_config says something for it that cannot be understood.
    """
    port = target.port or _number(config, "port", target)
    host = _text(config, "hostname") or target.host
    files = [*target.identity_files, *_list(config, "identityfile")]
    own = tuple(path for path in files if path.lower() != "none")
    found = Login(
        host=host,
        port=port,
        user=target.user or _text(config, "user") or getpass.getuser(),
        key_name=_text(config, "hostkeyalias") or host,
        key_port=SSH_PORT if _text(config, "hostkeyalias") else port,
        identity_files=_expanded(own or (() if files else DEFAULT_IDENTITIES)),
        only_files=_text(config, "identitiesonly").lower() == "yes",
        agent=_text(config, "identityagent").lower() != "none",
        known_hosts=_known(config),
        connect_seconds=_seconds(config, target),
        jumps=_jumps(config, target),
        proxy_command=_text(config, "proxycommand") or None,
    )
    problem = wrong(Target(target.name, found.host, found.port, found.user))
    if problem:
        raise InvalidInput(f"{target.name}: ssh_config: {problem}")
    return found


def as_typed(found: Login) -> str:
    """Return what ssh is told to log in there, for hints."""
    port = "" if found.port == SSH_PORT else f"-p {found.port} "
    return f"{port}{found.user}@{found.host}"


def _known(config: Config) -> tuple[str, ...]:
    user = _text(config, "userknownhostsfile") or DEFAULT_KNOWN_HOSTS
    everybody = _text(config, "globalknownhostsfile") or GLOBAL_KNOWN_HOSTS
    return _expanded(tuple(path for path in f"{user} {everybody}".split() if path.lower() != "none"))


def _jumps(config: Config, target: Target) -> tuple[Target, ...]:
    """Return ProxyJump's hosts; with one, ProxyCommand is not used (ssh_config(5): the first of both is)."""
    said = _text(config, "proxyjump")
    if not said or said.lower() == "none":
        return ()
    try:
        return tuple(parse_url(f"ssh://{hop.strip().removeprefix('ssh://')}") for hop in said.split(","))
    except InvalidInput as exc:
        raise InvalidInput(f"{target.name}: ssh_config: ProxyJump {said} is no host", hint=exc.hint) from exc


def _seconds(config: Config, target: Target) -> float:
    said = _text(config, "connecttimeout")
    if not said or said.lower() == "none":
        return CONNECT_SECONDS
    found = _TIME.fullmatch(said.lower())
    if found is None or int(found[1]) == 0:
        raise InvalidInput(
            f"{target.name}: ssh_config: ConnectTimeout {said} is no time", hint="say a number of seconds"
        )
    return float(int(found[1]) * _UNITS[found[2]])


def _number(config: Config, key: str, target: Target) -> int:
    said = _text(config, key) or str(SSH_PORT)
    if not said.isdecimal():
        raise InvalidInput(f"{target.name}: ssh_config: {key} {said} is no number")
    return int(said)


def _expanded(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.expanduser(path) for path in paths))


def _text(config: Config, key: str) -> str:
    value = config.get(key)
    return value.strip() if isinstance(value, str) else ""


def _list(config: Config, key: str) -> list[str]:
    value = config.get(key)
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)
