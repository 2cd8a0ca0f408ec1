# SPDX-License-Identifier: Apache-2.0
"""The hosts and groups of an Ansible inventory, in YAML or INI, and the login of each host.

Only the connection variables are used: ansible_host, ansible_port, ansible_user and ansible_ssh_private_key_file, for
a host, a group or all. Nothing else of Ansible is supported: no templates, no group_vars directories, no scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.target import Target, find_invalid_part
from vgpuctl.value import EMPTY_MAPPING, Value

ALL, UNGROUPED = "all", "ungrouped"
MAX_HOSTS = 10_000
VARIABLE_FIELDS = {
    "ansible_host": "host",
    "ansible_ssh_host": "host",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_ssh_private_key_file": "key",
}
_RANGE = re.compile(r"\[([0-9]+|[a-zA-Z]):([0-9]+|[a-zA-Z])(?::([0-9]+))?\]", re.ASCII)

Vars = Mapping[str, str]


class InventoryGroup(Value):
    """A group as it is written: its hosts and child groups, in order, and its variables."""

    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    variables: Vars = EMPTY_MAPPING


class InventoryFile(Value):
    """The content of a file, before groups are resolved. `hosts` has each host's own variables."""

    hosts: Mapping[str, Vars]
    groups: Mapping[str, InventoryGroup]


class Inventory(Value):
    """Every host in the order of the file, and the host names of each group, including those of its children."""

    hosts: Mapping[str, Target]
    groups: Mapping[str, tuple[str, ...]]


def parse_inventory(text: str, name: str) -> Inventory:
    """Return the hosts of a file; `name` is the file's name, whose suffix marks YAML.

    Raises:
        InvalidInput: it cannot be parsed.
    """
    if name.endswith((".yml", ".yaml", ".json")) or _looks_like_yaml(text):
        from vgpuctl.remote import inventory_yaml

        parsed = inventory_yaml.read(text, name)
    else:
        from vgpuctl.remote import inventory_ini

        parsed = inventory_ini.read(text, name)
    return _resolve_groups(parsed, name)


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


def connection_variables(variables: Iterable[tuple[str, object]], where: str) -> dict[str, str]:
    """Return the connection variables, by the field names of `VARIABLE_FIELDS`.

    Raises:
        InvalidInput: one is a template, which vgpuctl does not render.
    """
    result: dict[str, str] = {}
    for key, value in variables:
        field = VARIABLE_FIELDS.get(key)
        if field is None or value is None:
            continue
        if "{{" in str(value):
            raise InvalidInput(f"{where}: {key} is a template: {value}", hint="write the value itself")
        result[field] = str(value)
    return result


def _looks_like_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
    return bool(lines) and (
        lines[0].startswith(("---", "{")) or re.fullmatch(r"[\w.-]+:\s*(#.*)?", lines[0]) is not None
    )


def _expand_range(match: re.Match[str], where: str) -> list[str]:
    begin, end, step = match[1], match[2], int(match[3] or 1)
    if begin.isdigit() != end.isdigit() or step == 0:
        raise InvalidInput(f"{where}: {match[0]} is no range", hint="say for example [01:10] or [a:f]")
    width = len(begin) if begin.isdigit() else 0
    first, last = (int(begin), int(end)) if width else (ord(begin), ord(end))
    if last < first or (last - first) // step >= MAX_HOSTS:
        raise InvalidInput(f"{where}: {match[0]} is no range of 1 to {MAX_HOSTS} hosts")
    return [f"{n:0{width}}" if width else chr(n) for n in range(first, last + 1, step)]


def _resolve_groups(parsed: InventoryFile, name: str) -> Inventory:
    groups = {UNGROUPED: InventoryGroup(), **parsed.groups}
    for group, definition in parsed.groups.items():
        for child in definition.children:
            if child not in groups:
                raise InvalidInput(f"{name}: group {group} has the child {child}, and there is no such group")
    hosts = tuple(parsed.hosts)
    members = {group: _members(groups, group, name, ()) for group in groups}
    members[ALL] = hosts
    grouped = {host for group, resolved in members.items() if group not in (ALL, UNGROUPED) for host in resolved}
    members[UNGROUPED] = tuple(host for host in hosts if host not in grouped)
    depths = {group: _depth(groups, group) for group in groups}
    order = sorted(groups, key=lambda group: (group != ALL, depths[group], group))
    resolved = {}
    for host in hosts:
        layers = [groups[group].variables for group in order if group == ALL or host in members[group]]
        resolved[host] = _target(host, _merge_variables([*layers, parsed.hosts[host]]), name)
    return Inventory(resolved, {group: tuple(h for h in hosts if h in set(members[group])) for group in members})


def _members(groups: Mapping[str, InventoryGroup], group: str, name: str, above: tuple[str, ...]) -> tuple[str, ...]:
    if group in above:
        raise InvalidInput(f"{name}: group {group} is its own child: {' > '.join((*above, group))}")
    below = (host for child in groups[group].children for host in _members(groups, child, name, (*above, group)))
    return tuple(dict.fromkeys((*groups[group].hosts, *below)))


def _depth(groups: Mapping[str, InventoryGroup], group: str) -> int:
    """Return the depth of a group below the top: a child's variables override its parents'."""
    parents = [name for name, definition in groups.items() if group in definition.children]
    return 1 + max((_depth(groups, parent) for parent in parents), default=0)


def _merge_variables(layers: Iterable[Vars]) -> dict[str, str]:
    return {field: value for variables in layers for field, value in variables.items()}


def _target(host: str, variables: Vars, name: str) -> Target:
    port = variables.get("port")
    if port is not None and not port.isdecimal():
        raise InvalidInput(f"{name}: {host}: '{port}' is no port")
    key = (variables["key"],) if "key" in variables else ()
    target = Target(host, variables.get("host", host), int(port) if port else None, variables.get("user"), key)
    problem = find_invalid_part(target)
    if problem:
        raise InvalidInput(f"{name}: {host}: {problem}")
    return target
