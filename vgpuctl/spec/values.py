# SPDX-License-Identifier: Apache-2.0
"""The keys that people may write for a VM: each field of the table with its rule and its JSON Schema."""

from __future__ import annotations

from typing import Any

from vgpuctl.spec import rules
from vgpuctl.spec.fields import FIELD, MODES, NAME_PATTERN, OS_KINDS, PLACEMENTS, RESERVES, SCHEDULERS
from vgpuctl.spec.shape import Key, Rule, one_or_more
from vgpuctl.spec.sizes import SIZE_PATTERN

Schema = dict[str, Any]


def key(field: str) -> Key:
    """Return the key of a field; its help is the table's, with the example."""
    if field == "name":
        return Key("name", rules.name, "the VM's name; without one vgpu-<8 digits of its uuid>", _pattern(NAME_PATTERN))
    entry = FIELD[field]
    rule, schema = _KINDS[field]
    return Key(field, rule, f"{entry.help}; for example {entry.example}" if entry.example else entry.help, schema)


def _pattern(pattern: str) -> Schema:
    return {"pattern": f"^{pattern}$", "type": "string"}


def _words(words: tuple[str, ...]) -> Schema:
    return {"enum": list(words), "type": "string"}


def _whole(least: int, most: int) -> Schema:
    return {"maximum": most, "minimum": least, "type": "integer"}


def _listed(item: Schema) -> Schema:
    return {"anyOf": [item, {"items": item, "type": "array"}]}


_SIZE: Schema = {"anyOf": [_pattern(SIZE_PATTERN), {"type": "integer"}]}
_DISK: Schema = {"anyOf": [_pattern(f"(/.*|{SIZE_PATTERN})"), {"minimum": 1, "type": "integer"}]}
_WINDOW: Schema = {"anyOf": [_pattern(f"([Aa]uto|[Nn]one|{SIZE_PATTERN})"), {"minimum": 1, "type": "integer"}]}
_PATH: Schema = {"pattern": "^/", "type": "string"}
_NAMED: Schema = {"pattern": "^[^/]+$", "type": "string"}
_PARAM: Schema = _pattern(rules.PARAM_PATTERN)
_PARAMS: Schema = {
    "anyOf": [
        {
            "additionalProperties": {"type": ["string", "integer"]},
            "propertyNames": {"pattern": "^[a-z_]+$"},
            "type": "object",
        },
        _PARAM,
        {"items": _PARAM, "type": "array"},
    ]
}

_KINDS: dict[str, tuple[Rule, Schema]] = {
    "profile": (one_or_more(rules.profile), _listed({"minLength": 1, "type": "string"})),
    "gpu": (one_or_more(rules.gpu), _listed({"type": "string"})),
    "not_gpu": (one_or_more(rules.gpu), _listed({"type": "string"})),
    "numa_node": (rules.numa_node, _whole(0, rules.MOST_NUMA_NODES - 1)),
    "spread_group": (rules.name, _pattern(NAME_PATTERN)),
    "scheduler": (rules.scheduler, _words(SCHEDULERS)),
    "placement": (rules.placement, _words(PLACEMENTS)),
    "mode": (rules.mode, _words(MODES)),
    "memory": (rules.memory, _SIZE),
    "vcpus": (rules.vcpus, _whole(1, rules.MOST_VCPUS)),
    "image": (rules.path, _PATH),
    "disk": (one_or_more(rules.disk), _listed(_DISK)),
    "cdrom": (rules.path, _PATH),
    "cloud_init": (rules.path, _PATH),
    "network": (rules.resource_name, _NAMED),
    "os": (rules.os_kind, _words(OS_KINDS)),
    "storage_pool": (rules.resource_name, _NAMED),
    "hotplug_slots": (rules.hotplug_slots, _whole(0, rules.MOST_HOTPLUG_SLOTS)),
    "pci_window": (rules.pci_window, _WINDOW),
    "vgpu_params": (rules.vgpu_params, _PARAMS),
    "template": (rules.template, _pattern(rules.TEMPLATE_PATTERN)),
    "reserve": (rules.reserve, _words(RESERVES)),
    "force_console": (rules.truth, {"type": "boolean"}),
}
