# SPDX-License-Identifier: Apache-2.0
"""An Ansible inventory as YAML: groups with hosts, children and vars. Aliases and tags are refused, as everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vgpuctl.config import yaml_reader
from vgpuctl.errors import InvalidInput
from vgpuctl.remote.inventory import InventoryFile, InventoryGroup, Vars, connection_variables, expand_pattern

_GROUP_KEYS = ("hosts", "children", "vars")


def read(text: str, name: str) -> InventoryFile:
    """Return the content of a YAML file.

    Raises:
        InvalidInput: it is not YAML, or not an inventory.
    """
    value = yaml_reader.load_document(text, name).value
    hosts: dict[str, dict[str, str]] = {}
    groups: dict[str, InventoryGroup] = {}
    for group, body in _require_mapping(value, name).items():
        _add_group(str(group), body, f"{name}: {group}", hosts, groups)
    host_variables: dict[str, Vars] = dict(hosts)
    return InventoryFile(host_variables, groups)


def _add_group(
    group: str, body: object, where: str, hosts: dict[str, dict[str, str]], groups: dict[str, InventoryGroup]
) -> None:
    """Add a group and its children; a group that occurs in several places is one group."""
    mapping = _require_mapping(body, where)
    unknown = next((str(key) for key in mapping if key not in _GROUP_KEYS), None)
    if unknown is not None:
        raise InvalidInput(f"{where}: a group has no '{unknown}'", hint="it has hosts, children and vars")
    members = []
    for pattern, variables in _named_entries(mapping.get("hosts"), f"{where}: hosts"):
        own = connection_variables(_pairs(variables, f"{where}: {pattern}"), f"{where}: {pattern}")
        for host in expand_pattern(pattern, where):
            hosts.setdefault(host, {}).update(own)
            members.append(host)
    children = []
    for child, inner in _named_entries(mapping.get("children"), f"{where}: children"):
        _add_group(child, inner, f"{where}: {child}", hosts, groups)
        children.append(child)
    earlier = groups.get(group, InventoryGroup())
    groups[group] = InventoryGroup(
        tuple(dict.fromkeys((*earlier.hosts, *members))),
        tuple(dict.fromkeys((*earlier.children, *children))),
        {**earlier.variables, **connection_variables(_pairs(mapping.get("vars"), f"{where}: vars"), where)},
    )


def _named_entries(value: object, where: str) -> Iterator[tuple[str, object]]:
    yield from ((str(key), inner) for key, inner in _require_mapping(value, where).items())


def _pairs(value: object, where: str) -> Iterator[tuple[str, object]]:
    return _named_entries(value, where)


def _require_mapping(value: object, where: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where}: names with a colon are due here, and there is {type(value).__name__}")
    return value
