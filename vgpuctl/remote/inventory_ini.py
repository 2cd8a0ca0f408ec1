# SPDX-License-Identifier: Apache-2.0
"""An Ansible inventory as INI: a host and its variables in each line, in [group], [group:children], [group:vars]."""

from __future__ import annotations

import re
import shlex

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.inventory import InventoryFile, InventoryGroup, Vars, connection_variables, expand_pattern

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_WITH_PORT = re.compile(r"([^:\[\]]+(?:\[[^\]]*\][^:\[\]]*)*):([0-9]+)")


class _Reader:
    """Collects hosts and groups in one pass over the lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: dict[str, dict[str, str]] = {}
        self.members: dict[str, list[str]] = {}
        self.children: dict[str, list[str]] = {}
        self.variables: dict[str, dict[str, str]] = {}
        self.group, self.kind = "ungrouped", "hosts"

    def read_line(self, text: str, where: str) -> None:
        """Process one line that is neither empty nor a comment."""
        if text.startswith("["):
            self._section(text, where)
        elif self.kind == "vars":
            key, _, value = text.partition("=")
            self.variables[self.group].update(connection_variables([(key.strip(), _unquote(value.strip()))], where))
        elif self.kind == "children":
            self.children[self.group].append(text.split()[0])
        else:
            self._host(text, where)

    def result(self) -> InventoryFile:
        """Return the result; a group that is only named as a child has no hosts."""
        groups = {
            group: InventoryGroup(
                tuple(dict.fromkeys(hosts_of_group)), tuple(self.children[group]), self.variables[group]
            )
            for group, hosts_of_group in self.members.items()
        }
        hosts: dict[str, Vars] = dict(self.hosts)
        return InventoryFile(hosts, groups)

    def _section(self, text: str, where: str) -> None:
        match = _SECTION.fullmatch(text)
        kind = (match[2] or "hosts") if match else ""
        if match is None or kind not in ("hosts", "children", "vars"):
            raise InvalidInput(f"{where}: {text} is no group", hint="say [group], [group:children] or [group:vars]")
        self.group, self.kind = match[1], kind
        self.members.setdefault(self.group, [])
        self.children.setdefault(self.group, [])
        self.variables.setdefault(self.group, {})

    def _host(self, text: str, where: str) -> None:
        try:
            pattern, *pairs = shlex.split(text, comments=True)
        except ValueError as exc:
            raise InvalidInput(f"{where}: a quote is not closed: {text}") from exc
        wrong = next((pair for pair in pairs if "=" not in pair), None)
        if wrong is not None:
            raise InvalidInput(f"{where}: '{wrong}' is no variable", hint="say NAME=VALUE; one host a line")
        variables = connection_variables(
            ((key, value) for key, _, value in (pair.partition("=") for pair in pairs)), where
        )
        ported = _WITH_PORT.fullmatch(pattern)
        if ported:
            pattern = ported[1]
            variables = {"port": ported[2], **variables}
        for host in expand_pattern(pattern, where):
            self.hosts.setdefault(host, {}).update(variables)
            self.members.setdefault(self.group, []).append(host)
            self.children.setdefault(self.group, [])
            self.variables.setdefault(self.group, {})


def read(text: str, name: str) -> InventoryFile:
    """Return the content of an INI file.

    Raises:
        InvalidInput: a line cannot be parsed.
    """
    reader = _Reader(name)
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if content and not content.startswith(("#", ";")):
            reader.read_line(content, f"{name}:{number}")
    return reader.result()


def _unquote(value: str) -> str:
    """Return a group variable as Ansible reads it: a Python string, or the rest of the line without a comment."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.split(" #")[0].strip()
