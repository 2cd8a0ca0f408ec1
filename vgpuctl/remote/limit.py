# SPDX-License-Identifier: Apache-2.0
"""Selects hosts of an inventory by name, group or glob; ! excludes, & intersects."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.remote.inventory import Inventory
from vgpuctl.remote.target import Target


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
