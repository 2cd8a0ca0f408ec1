# SPDX-License-Identifier: Apache-2.0
"""Which hosts of an inventory are meant: names, groups and globs; ! leaves out, & keeps only those there too."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.remote.inventory import Inventory
from vgpuctl.remote.target import Target


def limited(inventory: Inventory, patterns: Sequence[str]) -> list[Target]:
    """Return the hosts that are meant, in the order of the inventory; without patterns all of them.

    As in Ansible the order of patterns does not matter: all that are meant, of those what every & means, without
    what any ! means. Only exclusions mean all hosts but those.

    Raises:
        NotFound: a pattern means no host; a typing error must not leave a host out.
        InvalidInput: no host is left.
    """
    words = [word.strip() for pattern in patterns for word in pattern.split(",") if word.strip()]
    chosen = [word for word in words if word[0] not in "!&"]
    found = set().union(*(_meant(inventory, word) for word in chosen)) if chosen else set(inventory.hosts)
    for word in words:
        if word[0] == "&":
            found &= _meant(inventory, word[1:])
        elif word[0] == "!":
            found -= _meant(inventory, word[1:])
    if words and not found:
        raise InvalidInput(f"--limit {','.join(patterns)} leaves no host", hint="say fewer exclusions")
    return [target for name, target in inventory.hosts.items() if name in found]


def _meant(inventory: Inventory, word: str) -> set[str]:
    groups = [members for group, members in inventory.groups.items() if fnmatchcase(group, word)]
    hosts = {name for name in inventory.hosts if fnmatchcase(name, word)}
    if not groups and not hosts:
        near = get_close_matches(word, [*inventory.hosts, *inventory.groups], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "names, groups and globs of the inventory, like gpu-*"
        raise NotFound(f"--limit {word}: the inventory has no such host or group", hint=hint)
    return hosts.union(*groups)
