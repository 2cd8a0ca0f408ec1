# SPDX-License-Identifier: Apache-2.0
"""The hosts and groups of an Ansible inventory, in YAML or INI, and how one logs in at each.

Of the variables only those that say where a host is count: ansible_host, ansible_port, ansible_user and
ansible_ssh_private_key_file, for a host, a group or all. Nothing else of Ansible is known: no templates, no
group_vars directories, no scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.target import Target, wrong
from vgpuctl.value import NOTHING, Value

ALL, UNGROUPED = "all", "ungrouped"
MOST_HOSTS = 10_000
WORDS = {
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


class Group(Value):
    """A group as it is written: the hosts and groups that stand in it, in order, and its variables."""

    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    variables: Vars = NOTHING


class Written(Value):
    """What a file says, before groups are looked into. `hosts` has each host's own variables."""

    hosts: Mapping[str, Vars]
    groups: Mapping[str, Group]


class Inventory(Value):
    """Every host in the order of the file, and the names of each group's hosts, those of its children among them."""

    hosts: Mapping[str, Target]
    groups: Mapping[str, tuple[str, ...]]


def parse(text: str, name: str) -> Inventory:
    """Return the hosts of a file; `name` is the file's, and tells YAML by its ending.

    Raises:
        InvalidInput: it cannot be understood.
    """
    if name.endswith((".yml", ".yaml", ".json")) or _looks_like_yaml(text):
        from vgpuctl.remote import inventory_yaml

        written = inventory_yaml.read(text, name)
    else:
        from vgpuctl.remote import inventory_ini

        written = inventory_ini.read(text, name)
    return _resolved(written, name)


def expanded(pattern: str, where: str) -> tuple[str, ...]:
    """Return the hosts of a name with ranges: gpu[01:10], rack[a:c], node[0:8:2].

    Raises:
        InvalidInput: a range goes backwards, or has too many hosts.
    """
    names = [""]
    at = 0
    for found in _RANGE.finditer(pattern):
        parts = _range(found, where)
        if len(names) * len(parts) > MOST_HOSTS:
            raise InvalidInput(f"{where}: {pattern} is more than {MOST_HOSTS} hosts")
        names = [f"{name}{pattern[at : found.start()]}{part}" for name in names for part in parts]
        at = found.end()
    return tuple(f"{name}{pattern[at:]}" for name in names)


def kept(variables: Iterable[tuple[str, object]], where: str) -> dict[str, str]:
    """Return the variables that count, by the words of `WORDS`.

    Raises:
        InvalidInput: one is a template, which nobody fills in here.
    """
    found: dict[str, str] = {}
    for key, value in variables:
        word = WORDS.get(key)
        if word is None or value is None:
            continue
        if "{{" in str(value):
            raise InvalidInput(f"{where}: {key} is a template: {value}", hint="write the value itself")
        found[word] = str(value)
    return found


def _looks_like_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
    return bool(lines) and (
        lines[0].startswith(("---", "{")) or re.fullmatch(r"[\w.-]+:\s*(#.*)?", lines[0]) is not None
    )


def _range(found: re.Match[str], where: str) -> list[str]:
    begin, end, step = found[1], found[2], int(found[3] or 1)
    if begin.isdigit() != end.isdigit() or step == 0:
        raise InvalidInput(f"{where}: {found[0]} is no range", hint="say for example [01:10] or [a:f]")
    width = len(begin) if begin.isdigit() else 0
    first, last = (int(begin), int(end)) if width else (ord(begin), ord(end))
    if last < first or (last - first) // step >= MOST_HOSTS:
        raise InvalidInput(f"{where}: {found[0]} is no range of 1 to {MOST_HOSTS} hosts")
    return [f"{n:0{width}}" if width else chr(n) for n in range(first, last + 1, step)]


def _resolved(written: Written, name: str) -> Inventory:
    groups = {UNGROUPED: Group(), **written.groups}
    for group, one in written.groups.items():
        for child in one.children:
            if child not in groups:
                raise InvalidInput(f"{name}: group {group} has the child {child}, and there is no such group")
    hosts = tuple(written.hosts)
    members = {group: _members(groups, group, name, ()) for group in groups}
    members[ALL] = hosts
    in_some = {host for group, found in members.items() if group not in (ALL, UNGROUPED) for host in found}
    members[UNGROUPED] = tuple(host for host in hosts if host not in in_some)
    depths = {group: _depth(groups, group) for group in groups}
    order = sorted(groups, key=lambda group: (group != ALL, depths[group], group))
    found = {}
    for host in hosts:
        mine = [groups[group].variables for group in order if group == ALL or host in members[group]]
        found[host] = _target(host, _merged([*mine, written.hosts[host]]), name)
    return Inventory(found, {group: tuple(h for h in hosts if h in set(members[group])) for group in members})


def _members(groups: Mapping[str, Group], group: str, name: str, above: tuple[str, ...]) -> tuple[str, ...]:
    if group in above:
        raise InvalidInput(f"{name}: group {group} is its own child: {' > '.join((*above, group))}")
    below = (host for child in groups[group].children for host in _members(groups, child, name, (*above, group)))
    return tuple(dict.fromkeys((*groups[group].hosts, *below)))


def _depth(groups: Mapping[str, Group], group: str) -> int:
    """Return how far below the top a group is: a child's variables win over its parents'."""
    parents = [name for name, one in groups.items() if group in one.children]
    return 1 + max((_depth(groups, parent) for parent in parents), default=0)


def _merged(all_of_them: Iterable[Vars]) -> dict[str, str]:
    return {word: value for variables in all_of_them for word, value in variables.items()}


def _target(host: str, variables: Vars, name: str) -> Target:
    port = variables.get("port")
    if port is not None and not port.isdecimal():
        raise InvalidInput(f"{name}: {host}: '{port}' is no port")
    key = (variables["key"],) if "key" in variables else ()
    target = Target(host, variables.get("host", host), int(port) if port else None, variables.get("user"), key)
    problem = wrong(target)
    if problem:
        raise InvalidInput(f"{name}: {host}: {problem}")
    return target
