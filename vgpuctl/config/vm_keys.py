# SPDX-License-Identifier: Apache-2.0
"""The keys that people may write for a VM: each field of the table with its rule and its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vgpuctl.config import device_rules, labels, rules
from vgpuctl.config.shape import Key, Rule, nonempty_list, single_or_list
from vgpuctl.config.size_text import SIZE_PATTERN
from vgpuctl.config.vm_fields import (
    CPU_PIN_AUTO,
    FIELD_BY_NAME,
    MAX_VGPUS_PER_VM,
    NAME_PATTERN,
    NETWORK_MODELS,
    NONE,
    OS_KINDS,
    PLACEMENT_POLICIES,
    RESERVE_MODES,
    SCHEDULER_POLICIES,
    VM_MODES,
)

JsonSchema = dict[str, Any]


def make_key(field: str) -> Key:
    """Return the key of a field; its help is the table's, with the example."""
    if field == "name":
        return Key(
            "name", rules.name, "the VM's name; without one vgpu-<8 digits of its uuid>", _pattern_schema(NAME_PATTERN)
        )
    entry = FIELD_BY_NAME[field]
    rule, schema = _FIELD_RULES[field]
    return Key(field, rule, f"{entry.help}; for example {entry.example}" if entry.example else entry.help, schema)


def _pattern_schema(pattern: str) -> JsonSchema:
    return {"pattern": f"^{pattern}$", "type": "string"}


def _enum_schema(words: tuple[str, ...]) -> JsonSchema:
    return {"enum": list(words), "type": "string"}


def _integer_schema(minimum: int, maximum: int) -> JsonSchema:
    return {"maximum": maximum, "minimum": minimum, "type": "integer"}


def _list_schema(item: JsonSchema) -> JsonSchema:
    return {"anyOf": [item, {"items": item, "type": "array"}]}


_SIZE_SCHEMA: JsonSchema = {"anyOf": [_pattern_schema(SIZE_PATTERN), {"type": "integer"}]}
_DISK_SCHEMA: JsonSchema = {"anyOf": [_pattern_schema(f"(/.*|{SIZE_PATTERN})"), {"minimum": 1, "type": "integer"}]}
_WINDOW_SCHEMA: JsonSchema = {
    "anyOf": [_pattern_schema(f"([Aa]uto|[Nn]one|{SIZE_PATTERN})"), {"minimum": 1, "type": "integer"}]
}
_PATH_SCHEMA: JsonSchema = {"pattern": "^/", "type": "string"}
_NAME_SCHEMA: JsonSchema = {"pattern": "^[^/]+$", "type": "string"}
_PARAM_SCHEMA: JsonSchema = _pattern_schema(rules.PARAM_PATTERN)
_PARAMS_SCHEMA: JsonSchema = {
    "anyOf": [
        {
            "additionalProperties": {"type": ["string", "integer"]},
            "propertyNames": {"pattern": "^[a-z_]+$"},
            "type": "object",
        },
        _PARAM_SCHEMA,
        {"items": _PARAM_SCHEMA, "type": "array"},
    ]
}

_NETWORK_SCHEMA: JsonSchema = {
    "anyOf": [
        {"minLength": 1, "pattern": "^[^/]+$", "type": "string"},
        {
            "additionalProperties": False,
            "oneOf": [{"required": ["network"]}, {"required": ["bridge"]}],
            "properties": {
                "network": _NAME_SCHEMA,
                "bridge": _pattern_schema(device_rules.BRIDGE_PATTERN),
                "vlan": _integer_schema(1, device_rules.MAX_VLAN),
                "model": _enum_schema(NETWORK_MODELS),
                "mac": {"type": "string"},
            },
            "type": "object",
        },
    ]
}

_LABEL_SCHEMA: JsonSchema = _pattern_schema(f"{labels.LABEL_PATTERN}=({labels.LABEL_PATTERN})?")
_LABELS_SCHEMA: JsonSchema = {
    "anyOf": [
        {
            "additionalProperties": {"type": "string"},
            "maxProperties": labels.MAX_LABELS,
            "propertyNames": _pattern_schema(labels.LABEL_PATTERN),
            "type": "object",
        },
        _LABEL_SCHEMA,
        {"items": _LABEL_SCHEMA, "type": "array"},
    ]
}

_NETWORK_CONFIG_SCHEMA: JsonSchema = {"anyOf": [_PATH_SCHEMA, {"type": "object"}]}


def _network_config(value: object) -> str:
    """Check the path of a network configuration; one that is in the spec itself becomes JSON, which is YAML too."""
    if not isinstance(value, Mapping):
        return rules.secret_path(value)
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError("it contains a value that JSON cannot hold, such as a date: put it in quotes") from error


_FIELD_RULES: dict[str, tuple[Rule, JsonSchema]] = {
    "profile": (single_or_list(rules.profile), _list_schema({"minLength": 1, "type": "string"})),
    "gpu": (single_or_list(rules.gpu), _list_schema({"type": "string"})),
    "gpus": (rules.gpus, _integer_schema(1, MAX_VGPUS_PER_VM)),
    "not_gpu": (single_or_list(rules.gpu), _list_schema({"type": "string"})),
    "numa_node": (rules.numa_node, _integer_schema(0, rules.MAX_NUMA_NODES - 1)),
    "spread_group": (rules.name, _pattern_schema(NAME_PATTERN)),
    "scheduler": (rules.scheduler, _enum_schema(SCHEDULER_POLICIES)),
    "placement": (rules.placement, _enum_schema(PLACEMENT_POLICIES)),
    "mode": (rules.mode, _enum_schema(VM_MODES)),
    "memory": (rules.memory, _SIZE_SCHEMA),
    "vcpus": (rules.vcpus, _integer_schema(1, rules.MAX_VCPUS)),
    "image": (rules.path, _PATH_SCHEMA),
    "disk": (single_or_list(rules.disk), _list_schema(_DISK_SCHEMA)),
    "cdrom": (rules.path, _PATH_SCHEMA),
    "cloud_init": (rules.secret_path, _PATH_SCHEMA),
    "network_config": (_network_config, _NETWORK_CONFIG_SCHEMA),
    "networks": (nonempty_list(device_rules.network), _list_schema(_NETWORK_SCHEMA)),
    "hugepages": (device_rules.hugepages, _pattern_schema(f"({NONE}|2M(iB)?|1G(iB)?)")),
    "cpu_pin": (
        device_rules.cpu_pin,
        {"anyOf": [_pattern_schema(f"({CPU_PIN_AUTO}|{NONE}|[0-9]+([-,][0-9]+)*)"), {"minimum": 0, "type": "integer"}]},
    ),
    "display": (rules.boolean, {"type": "boolean"}),
    "os": (rules.os_kind, _enum_schema(OS_KINDS)),
    "storage_pool": (rules.resource_name, _NAME_SCHEMA),
    "hotplug_slots": (rules.hotplug_slots, _integer_schema(0, rules.MAX_HOTPLUG_SLOTS)),
    "pci_window": (rules.pci_window, _WINDOW_SCHEMA),
    "labels": (labels.labels, _LABELS_SCHEMA),
    "owner": (labels.owner, {"maxLength": labels.MAX_OWNER_LENGTH, "minLength": 1, "type": "string"}),
    "vgpu_params": (rules.vgpu_params, _PARAMS_SCHEMA),
    "template": (rules.template, _pattern_schema(rules.TEMPLATE_PATTERN)),
    "reserve": (rules.reserve, _enum_schema(RESERVE_MODES)),
    "force_console": (rules.boolean, {"type": "boolean"}),
}
