# SPDX-License-Identifier: Apache-2.0
"""The hosts and groups of an Ansible inventory, the login of each host, and which of them --limit selects.

Only the connection variables are used: ansible_host, ansible_port, ansible_user and ansible_ssh_private_key_file, for
a host, a group or all. Nothing else of Ansible is supported: no templates, no group_vars directories, no scripts.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.remote.inventory_file import UNGROUPED, InventoryFile, InventoryGroup, read_inventory_file
from vgpuctl.remote.target import Target, find_invalid_part
from vgpuctl.value import Value

ALL = "all"


class Inventory(Value):
    """Every host in the order of the file, and the host names of each group, including those of its children."""

    hosts: Mapping[str, Target]
    groups: Mapping[str, tuple[str, ...]]


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
        InvalidInput: no host is left.
    """
    words = [word.strip() for pattern in patterns for word in pattern.split(",") if word.strip()]
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
        raise InvalidInput(f"--limit {','.join(patterns)} leaves no host", hint="say fewer exclusions")
    return [target for name, target in inventory.hosts.items() if name in selected]


def _match_hosts(inventory: Inventory, word: str) -> set[str]:
    groups = [members for group, members in inventory.groups.items() if fnmatchcase(group, word)]
    hosts = {name for name in inventory.hosts if fnmatchcase(name, word)}
    if not groups and not hosts:
        suggestions = get_close_matches(word, [*inventory.hosts, *inventory.groups], n=3)
        hint = (
            f"did you mean {', '.join(suggestions)}?"
            if suggestions
            else "names, groups and globs of the inventory, like gpu-*"
        )
        raise NotFound(f"--limit {word}: the inventory has no such host or group", hint=hint)
    return hosts.union(*groups)


def _resolve_groups(parsed: InventoryFile, name: str) -> Inventory:
    groups = {UNGROUPED: InventoryGroup(), **parsed.groups}
    for group, definition in parsed.groups.items():
        for child in definition.children:
            if child not in groups:
                raise InvalidInput(f"{name}: group {group} has the child {child}, and there is no such group")
    hosts = tuple(parsed.hosts)
    members = {group: _members(groups, group, name, ()) for group in groups}
    members[ALL] = set(hosts)
    grouped = set().union(*(resolved for group, resolved in members.items() if group not in (ALL, UNGROUPED)))
    members[UNGROUPED] = members[ALL] - grouped
    depths = {group: _depth(groups, group) for group in groups}
    order = sorted(groups, key=lambda group: (group != ALL, depths[group], group))
    resolved = {}
    for host in hosts:
        layers = [groups[group].variables for group in order if host in members[group]]
        resolved[host] = _target(host, ChainMap(parsed.hosts[host], *reversed(layers)), name)
    return Inventory(resolved, {group: tuple(h for h in hosts if h in members[group]) for group in members})


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
        raise InvalidInput(f"{name}: {host}: '{port}' is no port")
    key = (variables["key"],) if "key" in variables else ()
    target = Target(host, variables.get("host", host), int(port) if port else None, variables.get("user"), key)
    problem = find_invalid_part(target)
    if problem:
        raise InvalidInput(f"{name}: {host}: {problem}")
    return target
