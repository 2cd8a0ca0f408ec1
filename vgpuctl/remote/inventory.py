# SPDX-License-Identifier: Apache-2.0
"""The hosts and groups of an Ansible inventory, the login of each host, and which of them --limit selects.

Only the connection variables are used: ansible_host, ansible_port, ansible_user and ansible_ssh_private_key_file, for
a host, a group or all. A selected host whose ansible_connection is not ssh is refused. Nothing else of Ansible is
supported: no templates, no group_vars directories, no scripts.

INI has a host and its variables in each line, in [group], [group:children] and [group:vars]. YAML has groups with
hosts, children and vars; aliases and tags are refused, as everywhere.
"""

from __future__ import annotations

import re
import shlex
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Any

from vgpuctl.config import yaml_reader
from vgpuctl.config.name_patterns import expand_braces, matches_glob, split_list
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.remote.target import Target, find_invalid_part
from vgpuctl.value import Value

ALL = "all"


class Inventory(Value):
    """Every host in the order of the file, and the host names of each group, including those of its children.

    `other_connections`: the ansible_connection of each host that Ansible reaches by something else than ssh.
    """

    hosts: Mapping[str, Target]
    groups: Mapping[str, tuple[str, ...]]
    other_connections: Mapping[str, str]


def parse_inventory(text: str, name: str) -> Inventory:
    """Return the hosts of a file; `name` is the file's name, whose suffix marks YAML.

    Raises:
        InvalidInput: it cannot be parsed.
    """
    return _resolve_groups(read_inventory_file(text, name), name)


def apply_limit(inventory: Inventory, patterns: Sequence[str]) -> list[Target]:
    """Return the selected hosts in the order of the inventory; without patterns all of them.

    As in Ansible the order of patterns does not matter: the union of all inclusions, intersected with every &, minus
    every !. Exclusions alone start from all hosts.

    Raises:
        NotFound: a pattern matches no host; a typing error must not omit a host silently.
        InvalidInput: a pattern has a range in brackets, no host is left, or Ansible reaches one of them by something
            else than ssh.
    """
    words = [word for pattern in patterns for word in split_list(pattern)]
    inclusions = [word for word in words if word[0] not in "!&"]
    selected = (
        set().union(*(_match_hosts(inventory, word) for word in inclusions)) if inclusions else set(inventory.hosts)
    )
    for word in words:
        if word[0] == "&":
            selected &= _match_hosts(inventory, word[1:])
        elif word[0] == "!":
            selected -= _match_hosts(inventory, word[1:])
    if words and not selected:
        raise InvalidInput(f"--limit {','.join(patterns)} matches no host", hint="use fewer exclusions")
    _refuse_other_connections(inventory, selected)
    return [target for name, target in inventory.hosts.items() if name in selected]


def _refuse_other_connections(inventory: Inventory, selected: Set[str]) -> None:
    others = {host: connection for host, connection in inventory.other_connections.items() if host in selected}
    if others:
        listed = ", ".join(f"{host} (ansible_connection={connection})" for host, connection in others.items())
        raise InvalidInput(
            f"vgpuctl reaches hosts by ssh only, and the inventory names another connection for {len(others)} of"
            f" {len(selected)}: {listed}",
            hint=f"--limit 'all,!{',!'.join(others)}' excludes them"
            if len(others) < len(selected)
            else "use --host local for this machine, --host sim:NAME for a simulated host",
            hosts=list(others),
        )


def _match_hosts(inventory: Inventory, pattern: str) -> set[str]:
    return set().union(*(_match_word(inventory, word) for word in expand_braces(pattern)))


def _match_word(inventory: Inventory, word: str) -> set[str]:
    groups = [members for group, members in inventory.groups.items() if matches_glob(group, word)]
    hosts = {name for name in inventory.hosts if matches_glob(name, word)}
    if not groups and not hosts:
        suggestions = get_close_matches(word, [*inventory.hosts, *inventory.groups], n=3)
        hint = (
            f"did you mean {', '.join(suggestions)}?"
            if suggestions
            else "use names, groups and globs of the inventory, like gpu-*"
        )
        raise NotFound(f"--limit {word}: the inventory has no such host or group", hint=hint)
    return hosts.union(*groups)


def _resolve_groups(parsed: InventoryFile, name: str) -> Inventory:
    groups = {UNGROUPED: InventoryGroup(), **parsed.groups}
    for group, definition in parsed.groups.items():
        for child in definition.children:
            if child not in groups:
                raise InvalidInput(f"{name}: group {group} has the child {child}, which does not exist")
    hosts = tuple(parsed.hosts)
    members = {group: _members(groups, group, name, ()) for group in groups}
    members[ALL] = set(hosts)
    grouped = set().union(*(resolved for group, resolved in members.items() if group not in (ALL, UNGROUPED)))
    members[UNGROUPED] = members[ALL] - grouped
    depths = {group: _depth(groups, group) for group in groups}
    order = sorted(groups, key=lambda group: (group != ALL, depths[group], group))
    resolved, other_connections = {}, {}
    for host in hosts:
        layers = [groups[group].variables for group in order if host in members[group]]
        variables = ChainMap(parsed.hosts[host], *reversed(layers))
        resolved[host] = _target(host, variables, name)
        if variables.get("connection", "ssh").removeprefix("ansible.builtin.") not in SSH_CONNECTIONS:
            other_connections[host] = variables["connection"]
    in_order = {group: tuple(h for h in hosts if h in members[group]) for group in members}
    return Inventory(resolved, in_order, other_connections)


def _members(groups: Mapping[str, InventoryGroup], group: str, name: str, above: tuple[str, ...]) -> set[str]:
    if group in above:
        raise InvalidInput(f"{name}: group {group} is its own child: {' > '.join((*above, group))}")
    below = (host for child in groups[group].children for host in _members(groups, child, name, (*above, group)))
    return {*groups[group].hosts, *below}


def _depth(groups: Mapping[str, InventoryGroup], group: str) -> int:
    """Return the depth of a group below the top: a child's variables override its parents'."""
    parents = [name for name, definition in groups.items() if group in definition.children]
    return 1 + max((_depth(groups, parent) for parent in parents), default=0)


def _target(host: str, variables: Mapping[str, str], name: str) -> Target:
    port = variables.get("port")
    if port is not None and not port.isdecimal():
        raise InvalidInput(f"{name}: {host}: '{port}' is not a port")
    key = (variables["key"],) if "key" in variables else ()
    target = Target(host, variables.get("host", host), int(port) if port else None, variables.get("user"), key)
    problem = find_invalid_part(target)
    if problem:
        raise InvalidInput(f"{name}: {host}: {problem}")
    return target


UNGROUPED = "ungrouped"
MAX_HOSTS = 10_000
VARIABLE_FIELDS = {
    "ansible_host": "host",
    "ansible_ssh_host": "host",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_ssh_private_key_file": "key",
    "ansible_connection": "connection",
}
SSH_CONNECTIONS = ("ssh", "smart", "paramiko", "paramiko_ssh")
"""Ansible's connections by ssh; `smart` was its default, and is ssh or paramiko."""
_RANGE = re.compile(r"\[([0-9]+|[a-zA-Z]):([0-9]+|[a-zA-Z])(?::([0-9]+))?\]", re.ASCII)
_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_WITH_PORT = re.compile(r"([^:\[\]]+(?:\[[^\]]*\][^:\[\]]*)*):([0-9]+)")
_GROUP_KEYS = ("hosts", "children", "vars")


class InventoryGroup:
    """A group as it is written: its hosts and child groups, in order, and its variables."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.children: list[str] = []
        self.variables: dict[str, str] = {}


class InventoryFile:
    """The content of a file: each host's own variables, and the groups. Readers add to it in the order of the file."""

    def __init__(self) -> None:
        self.hosts: dict[str, dict[str, str]] = {}
        self.groups: dict[str, InventoryGroup] = {}

    def group(self, name: str) -> InventoryGroup:
        """Return a group, which is added if it is new; one that occurs in several places is one group."""
        return self.groups.setdefault(name, InventoryGroup())

    def add_hosts(self, group: InventoryGroup, pattern: str, variables: Mapping[str, str], where: str) -> None:
        """Add the hosts of a name with ranges to a group."""
        for host in expand_pattern(pattern, where):
            self.hosts.setdefault(host, {}).update(variables)
            group.hosts.append(host)


def read_inventory_file(text: str, name: str) -> InventoryFile:
    """Return the content of a file; `name` is the file's name, whose suffix marks YAML.

    Raises:
        InvalidInput: it cannot be parsed, or is not an inventory.
    """
    content = InventoryFile()
    if name.endswith((".yml", ".yaml", ".json")) or _looks_like_yaml(text):
        for group, body in _require_mapping(yaml_reader.load_document(text, name).value, name).items():
            _read_yaml_group(content, str(group), body, f"{name}: {group}")
    else:
        _read_ini(content, text, name)
    return content


def expand_pattern(pattern: str, where: str) -> tuple[str, ...]:
    """Return the hosts of a name with ranges: gpu[01:10], rack[a:c], node[0:8:2].

    Raises:
        InvalidInput: a range goes backwards, or has too many hosts.
    """
    names = [""]
    position = 0
    for match in _RANGE.finditer(pattern):
        parts = _expand_range(match, where)
        if len(names) * len(parts) > MAX_HOSTS:
            raise InvalidInput(f"{where}: {pattern} is more than {MAX_HOSTS} hosts")
        names = [f"{name}{pattern[position : match.start()]}{part}" for name in names for part in parts]
        position = match.end()
    return tuple(f"{name}{pattern[position:]}" for name in names)


def _looks_like_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
    return bool(lines) and (
        lines[0].startswith(("---", "{")) or re.fullmatch(r"[\w.-]+:\s*(#.*)?", lines[0]) is not None
    )


def _read_ini(content: InventoryFile, text: str, name: str) -> None:
    group, kind = UNGROUPED, "hosts"
    for number, raw_line in enumerate(text.splitlines(), 1):
        line, where = raw_line.strip(), f"{name}:{number}"
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            group, kind = _parse_section(line, where)
            content.group(group)
        elif kind == "vars":
            key, _, value = line.partition("=")
            variables = _connection_variables([(key.strip(), _unquote(value.strip()))], where)
            content.group(group).variables.update(variables)
        elif kind == "children":
            content.group(group).children.append(line.split()[0])
        else:
            _read_ini_host(content, content.group(group), line, where)


def _parse_section(line: str, where: str) -> tuple[str, str]:
    """Return the group of a section, and whether its hosts, children or vars follow."""
    match = _SECTION.fullmatch(line)
    kind = (match[2] or "hosts") if match else ""
    if match is None or kind not in _GROUP_KEYS:
        raise InvalidInput(f"{where}: {line} is not a group", hint="use [group], [group:children] or [group:vars]")
    return match[1], kind


def _read_ini_host(content: InventoryFile, group: InventoryGroup, line: str, where: str) -> None:
    try:
        pattern, *pairs = shlex.split(line, comments=True)
    except ValueError as exc:
        raise InvalidInput(f"{where}: a quote is not closed: {line}") from exc
    wrong = next((pair for pair in pairs if "=" not in pair), None)
    if wrong is not None:
        raise InvalidInput(f"{where}: '{wrong}' is not a variable", hint="use NAME=VALUE; one host per line")
    variables = _connection_variables((pair.split("=", 1) for pair in pairs), where)
    ported = _WITH_PORT.fullmatch(pattern)
    if ported:
        pattern = ported[1]
        variables = {"port": ported[2], **variables}
    content.add_hosts(group, pattern, variables, where)


def _unquote(value: str) -> str:
    """Return a group variable as Ansible reads it: a Python string, or the rest of the line without a comment."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.split(" #")[0].strip()


def _read_yaml_group(content: InventoryFile, name: str, body: object, where: str) -> None:
    """Add a group and its children."""
    mapping = _require_mapping(body, where)
    unknown = next((str(key) for key in mapping if key not in _GROUP_KEYS), None)
    if unknown is not None:
        raise InvalidInput(f"{where}: unknown key '{unknown}' in a group", hint="a group has hosts, children and vars")
    group = content.group(name)
    for pattern, variables in _require_mapping(mapping.get("hosts"), f"{where}: hosts").items():
        host_where = f"{where}: {pattern}"
        own = _connection_variables(_require_mapping(variables, host_where).items(), host_where)
        content.add_hosts(group, str(pattern), own, where)
    for child, inner in _require_mapping(mapping.get("children"), f"{where}: children").items():
        _read_yaml_group(content, str(child), inner, f"{where}: {child}")
        group.children.append(str(child))
    variables = _require_mapping(mapping.get("vars"), f"{where}: vars")
    group.variables.update(_connection_variables(variables.items(), where))


def _require_mapping(value: object, where: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where}: expected a mapping (name: value), not {type(value).__name__}")
    return value


def _connection_variables(variables: Iterable[Sequence[Any]], where: str) -> dict[str, str]:
    """Return the connection variables, by the field names of `VARIABLE_FIELDS`.

    Raises:
        InvalidInput: one is a template, which vgpuctl does not render.
    """
    result: dict[str, str] = {}
    for key, value in variables:
        field = VARIABLE_FIELDS.get(str(key))
        if field is None or value is None:
            continue
        if "{{" in str(value):
            raise InvalidInput(f"{where}: {key} is a template: {value}", hint="write the value itself")
        result[field] = str(value)
    return result


def _expand_range(match: re.Match[str], where: str) -> list[str]:
    begin, end, step = match[1], match[2], int(match[3] or 1)
    if begin.isdigit() != end.isdigit() or step == 0:
        raise InvalidInput(f"{where}: {match[0]} is not a range", hint="use for example [01:10] or [a:f]")
    width = len(begin) if begin.isdigit() else 0
    first, last = (int(begin), int(end)) if width else (ord(begin), ord(end))
    if last < first or (last - first) // step >= MAX_HOSTS:
        raise InvalidInput(f"{where}: {match[0]} is not a range of 1 to {MAX_HOSTS} hosts")
    return [f"{n:0{width}}" if width else chr(n) for n in range(first, last + 1, step)]
