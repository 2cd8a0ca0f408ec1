# SPDX-License-Identifier: Apache-2.0
"""An Ansible inventory as INI: a host and its variables in each line, in [group], [group:children], [group:vars]."""

from __future__ import annotations

import re
import shlex

from vgpuctl.errors import InvalidInput
from vgpuctl.remote.inventory import Group, Vars, Written, expanded, kept

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_WITH_PORT = re.compile(r"([^:\[\]]+(?:\[[^\]]*\][^:\[\]]*)*):([0-9]+)")


class _Reader:
    """One pass over the lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: dict[str, dict[str, str]] = {}
        self.members: dict[str, list[str]] = {}
        self.children: dict[str, list[str]] = {}
        self.variables: dict[str, dict[str, str]] = {}
        self.group, self.kind = "ungrouped", "hosts"

    def line(self, text: str, where: str) -> None:
        """Take one line that says something."""
        if text.startswith("["):
            self._section(text, where)
        elif self.kind == "vars":
            key, _, value = text.partition("=")
            self.variables[self.group].update(kept([(key.strip(), _unquoted(value.strip()))], where))
        elif self.kind == "children":
            self.children[self.group].append(text.split()[0])
        else:
            self._host(text, where)

    def written(self) -> Written:
        """Return what was read; a group that is only named as a child has no hosts."""
        groups = {
            group: Group(tuple(dict.fromkeys(found)), tuple(self.children[group]), self.variables[group])
            for group, found in self.members.items()
        }
        hosts: dict[str, Vars] = dict(self.hosts)
        return Written(hosts, groups)

    def _section(self, text: str, where: str) -> None:
        found = _SECTION.fullmatch(text)
        kind = (found[2] or "hosts") if found else ""
        if found is None or kind not in ("hosts", "children", "vars"):
            raise InvalidInput(f"{where}: {text} is no group", hint="say [group], [group:children] or [group:vars]")
        self.group, self.kind = found[1], kind
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
        variables = kept(((key, value) for key, _, value in (pair.partition("=") for pair in pairs)), where)
        ported = _WITH_PORT.fullmatch(pattern)
        if ported:
            pattern = ported[1]
            variables = {"port": ported[2], **variables}
        for host in expanded(pattern, where):
            self.hosts.setdefault(host, {}).update(variables)
            self.members.setdefault(self.group, []).append(host)
            self.children.setdefault(self.group, [])
            self.variables.setdefault(self.group, {})


def read(text: str, name: str) -> Written:
    """Return what an INI file says.

    Raises:
        InvalidInput: a line cannot be understood.
    """
    reader = _Reader(name)
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if said and not said.startswith(("#", ";")):
            reader.line(said, f"{name}:{number}")
    return reader.written()


def _unquoted(value: str) -> str:
    """Return a variable of a group, as Ansible reads it: a Python text, or the line's rest without a comment."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.split(" #")[0].strip()
