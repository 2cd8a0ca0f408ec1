# SPDX-License-Identifier: Apache-2.0
"""What a change changed, for the journal: the fields that differ, before and after, as short texts.

No field that can hold a secret is among them, and of a link nothing after `?`, where signatures are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum

from vgpuctl.controller.model import FieldChange
from vgpuctl.model.documents import to_json_value
from vgpuctl.value import Value, field_names

MAX_FIELDS, MAX_CHARACTERS = 60, 300
"""So much of one entry: it has at most 40 KiB."""
_LINKS = frozenset({"url", "open"})
"""Fields with links."""
UNSHOWN = frozenset({
    "password", "secret", "digest", "vm.cloud_init", "vm.network_config", *(f"{name}.query" for name in _LINKS),
})  # fmt: skip
"""Fields that can hold secrets: that they changed is in the journal, and not what they are."""
_OWN = frozenset({"id", "generation", "image_id", "seen_at", "created_at", "signed_in_at", "set_by"})
"""Fields that nobody sets."""
_NESTED = frozenset({"vm", "labels"})
"""Mappings of which each key is a field of its own."""


def changed_fields(before: Value | None, after: Value | None) -> tuple[FieldChange, ...]:
    """Return the fields in which two values differ; None: there is none, before it is made or after it is deleted."""
    old, new = _texts(before), _texts(after)
    unset = {None, "false"} if before is None or after is None else {None}
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    names = [name for name in names if {old.get(name), new.get(name)} - unset]
    changes = (_change(name, old.get(name), new.get(name)) for name in names[:MAX_FIELDS])
    return tuple(changes)


def _change(name: str, old: str | None, new: str | None) -> FieldChange:
    if name in UNSHOWN:
        old, new = ("(not shown)" if one is not None else None for one in (old, new))
    return FieldChange(name[:MAX_CHARACTERS], _short(old), _short(new))


def _texts(value: Value | None) -> dict[str, str]:
    """Return the fields of a value that have one, as texts; of a value in a value each by itself."""
    texts: dict[str, str] = {}
    for name in () if value is None else field_names(value):
        one = getattr(value, name)
        if name in _NESTED and isinstance(one, Mapping):
            texts |= {f"{name}.{key}": _text(part) for key, part in one.items()}
        elif isinstance(one, Value) and name == "spec":
            texts |= _texts(one)
        elif name not in _OWN and one not in (None, (), ""):
            text, _, query = _text(one).partition("?") if name in _LINKS else (_text(one), "", "")
            texts |= {name: text, f"{name}.query": query} if query else {name: text}
    return texts


def _text(value: object) -> str:
    if isinstance(value, str) and not isinstance(value, Enum):
        return value
    plain = to_json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, sort_keys=True)


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
