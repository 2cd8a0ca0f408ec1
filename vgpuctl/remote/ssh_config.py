# SPDX-License-Identifier: Apache-2.0
"""Reads ssh_config and resolves the login at a host: explicit options first, then ssh_config, then ssh's defaults.

`paramiko.SSHConfig` finds the options of a host in the text of the user's file and the system's. It does not support
Include, and Debian's /etc/ssh/ssh_config begins with one: the text here has the included files in place of these lines.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.session import Target, find_invalid_part, parse_url
from vgpuctl.value import Value

SSH_PORT = 22
USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
MAX_INCLUDE_DEPTH = 16
"""ssh's own limit for includes within includes (READCONF_MAX_DEPTH of its readconf.c)."""
_KEYWORD = re.compile(r"\s*(\w+)\s*(?:=\s*|\s+)(.*\S)\s*", re.ASCII)
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


def read_ssh_config(read_file: Callable[[str], str | None]) -> str:
    """Return the text of both files; `read_file` returns a file's text, None if it does not exist.

    Raises:
        InvalidInput: they include one another in a loop.
    """
    lines: list[str] = []
    for path in (USER_CONFIG, SYSTEM_CONFIG):
        lines += ["Host *", *_lines(os.path.expanduser(path), read_file, 0)]
    return "\n".join(lines) + "\n"


def resolve_login(target: Target, config: SshOptions) -> Login:
    """Return how to log in at a host.

    Raises:
        InvalidInput: ssh_config has an invalid value for it.
    """
    configured_port = _text(config, "port") or str(SSH_PORT)
    if not configured_port.isdecimal():
        raise InvalidInput(f"{target.name}: ssh_config: port {configured_port} is not a number")
    port = target.port or int(configured_port)
    host = _text(config, "hostname") or target.host
    login = Login(
        host=host,
        port=port,
        user=target.user or _text(config, "user") or getpass.getuser(),
        known_hosts_name=_text(config, "hostkeyalias") or host,
        known_hosts_port=SSH_PORT if _text(config, "hostkeyalias") else port,
        identity_files=_expand_paths(config.get("identityfile") or DEFAULT_IDENTITIES),
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


def _lines(path: str, read_file: Callable[[str], str | None], depth: int) -> Iterator[str]:
    if depth > MAX_INCLUDE_DEPTH:
        raise InvalidInput(f"{path}: ssh_config files include one another more than {MAX_INCLUDE_DEPTH} deep")
    block = "Host *"
    for line in (read_file(path) or "").splitlines():
        match = _KEYWORD.fullmatch(line)
        keyword = match[1].lower() if match else ""
        if match and keyword == "include":
            for pattern in match[2].split():
                for included in sorted(glob.glob(_include_path(pattern.strip('"'), path))):
                    yield from _lines(included, read_file, depth + 1)
            yield block  # a Host block of an included file ends with that file
            continue
        if keyword in ("host", "match"):
            block = line
        yield line


def _include_path(pattern: str, path: str) -> str:
    """Return the path of an included file: relative to /etc/ssh or to the user's ~/.ssh (ssh_config(5))."""
    base = "/etc/ssh" if path.startswith("/etc/ssh/") else os.path.expanduser("~/.ssh")
    return os.path.join(base, os.path.expanduser(pattern))


def _known_hosts_files(config: SshOptions) -> tuple[str, ...]:
    user = _text(config, "userknownhostsfile") or DEFAULT_KNOWN_HOSTS
    system = _text(config, "globalknownhostsfile") or GLOBAL_KNOWN_HOSTS
    return _expand_paths(f"{user} {system}".split())


def _jumps(config: SshOptions, target: Target) -> tuple[Target, ...]:
    """Return ProxyJump's hosts; with one, ProxyCommand is not used (ssh_config(5): the first of the two applies)."""
    configured = _text(config, "proxyjump")
    if not configured or configured.lower() == "none":
        return ()
    try:
        return tuple(parse_url(f"ssh://{hop.strip().removeprefix('ssh://')}") for hop in configured.split(","))
    except InvalidInput as exc:
        raise InvalidInput(f"{target.name}: ssh_config: ProxyJump {configured} is not a host", hint=exc.hint) from exc


def _connect_timeout(config: SshOptions, target: Target) -> float:
    configured = _text(config, "connecttimeout")
    if not configured or configured.lower() == "none":
        return CONNECT_SECONDS
    match = _TIME.fullmatch(configured.lower())
    if match is None or int(match[1]) == 0:
        raise InvalidInput(
            f"{target.name}: ssh_config: ConnectTimeout {configured} is not a time", hint="specify a number of seconds"
        )
    return float(int(match[1]) * _UNITS[match[2]])


def _expand_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Return each path once; `none` in ssh_config stands for no file."""
    return tuple(dict.fromkeys(os.path.expanduser(path) for path in paths if path.lower() != "none"))


def _text(config: SshOptions, key: str) -> str:
    value = config.get(key)
    return value.strip() if isinstance(value, str) else ""
