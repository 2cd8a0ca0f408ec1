# SPDX-License-Identifier: Apache-2.0
"""An Ansible inventory as YAML: groups with hosts, children and vars. Aliases and tags are refused, as always."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.inventory import Group, Vars, Written, expanded, kept
from vgpuctl.spec import read as spec_read

_KNOWN = ("hosts", "children", "vars")


def read(text: str, name: str) -> Written:
    """Return what a YAML file says.

    Raises:
        InvalidInput: it is no YAML, or no inventory.
    """
    value = spec_read.load(text, name).value
    hosts: dict[str, dict[str, str]] = {}
    groups: dict[str, Group] = {}
    for group, body in _mapping(value, name).items():
        _group(str(group), body, f"{name}: {group}", hosts, groups)
    found: dict[str, Vars] = dict(hosts)
    return Written(found, groups)


def _group(group: str, body: object, where: str, hosts: dict[str, dict[str, str]], groups: dict[str, Group]) -> None:
    """Take a group and those in it; one that stands in several places is one group."""
    found = _mapping(body, where)
    unknown = next((str(key) for key in found if key not in _KNOWN), None)
    if unknown is not None:
        raise InvalidInput(f"{where}: a group has no '{unknown}'", hint="it has hosts, children and vars")
    members = []
    for pattern, variables in _named(found.get("hosts"), f"{where}: hosts"):
        own = kept(_pairs(variables, f"{where}: {pattern}"), f"{where}: {pattern}")
        for host in expanded(pattern, where):
            hosts.setdefault(host, {}).update(own)
            members.append(host)
    children = []
    for child, inner in _named(found.get("children"), f"{where}: children"):
        _group(child, inner, f"{where}: {child}", hosts, groups)
        children.append(child)
    before = groups.get(group, Group())
    groups[group] = Group(
        tuple(dict.fromkeys((*before.hosts, *members))),
        tuple(dict.fromkeys((*before.children, *children))),
        {**before.variables, **kept(_pairs(found.get("vars"), f"{where}: vars"), where)},
    )


def _named(value: object, where: str) -> Iterator[tuple[str, object]]:
    yield from ((str(key), inner) for key, inner in _mapping(value, where).items())


def _pairs(value: object, where: str) -> Iterator[tuple[str, object]]:
    return _named(value, where)


def _mapping(value: object, where: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where}: names with a colon are due here, and there is {type(value).__name__}")
    return value
