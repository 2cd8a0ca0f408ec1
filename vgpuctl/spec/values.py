# SPDX-License-Identifier: Apache-2.0
"""The rules as pydantic types: each carries what JSON Schema tells an editor.

Every check is one rule of `rules`, run before pydantic looks: pydantic's own unions would report one mistake
once for each alternative.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, WithJsonSchema

from vgpuctl.spec import rules
from vgpuctl.spec.fields import FIELD, MODES, NAME_PATTERN, OS_KINDS
from vgpuctl.spec.sizes import SIZE_PATTERN

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)

_PROFILE: dict[str, Any] = {"type": "string", "minLength": 1}
_SIZE: dict[str, Any] = {"anyOf": [{"type": "string", "pattern": f"^{SIZE_PATTERN}$"}, {"type": "integer"}]}
_DISK: dict[str, Any] = {
    "anyOf": [{"type": "string", "pattern": f"^(/.*|{SIZE_PATTERN})$"}, {"type": "integer", "minimum": 1}]
}
_PARAM: dict[str, Any] = {"type": "string", "pattern": f"^{rules.PARAM_PATTERN}$"}
_PARAMS: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z_]+$"},
            "additionalProperties": {"type": ["string", "integer"]},
        },
        _PARAM,
        {"type": "array", "items": _PARAM},
    ]
}
_PATH: dict[str, Any] = {"type": "string", "pattern": "^/"}
_NAMED: dict[str, Any] = {"type": "string", "pattern": "^[^/]+$"}


def one_or_more(item: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a field that takes one value or a list of them."""
    return {"anyOf": [item, {"type": "array", "items": item}]}


def whole(least: int, most: int) -> dict[str, Any]:
    """Return the JSON Schema of a count."""
    return {"type": "integer", "minimum": least, "maximum": most}


def help_of(field: str) -> str:
    """Return a field's help from the table, with its example."""
    entry = FIELD[field]
    return f"{entry.help}; for example {entry.example}" if entry.example else entry.help


def _as_list(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _pattern(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}


def _words(words: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


Name = Annotated[str, BeforeValidator(rules.name), WithJsonSchema(_pattern(NAME_PATTERN))]
Profiles = Annotated[
    tuple[Annotated[str, BeforeValidator(rules.profile)], ...],
    BeforeValidator(_as_list),
    WithJsonSchema(one_or_more(_PROFILE)),
]
GpuText = Annotated[str, BeforeValidator(rules.gpu), WithJsonSchema({"type": "string"})]
ModeText = Annotated[str, BeforeValidator(rules.mode), WithJsonSchema(_words(MODES))]
Memory = Annotated[str, BeforeValidator(rules.memory), WithJsonSchema(_SIZE)]
Vcpus = Annotated[int, BeforeValidator(rules.vcpus), WithJsonSchema(whole(1, rules.MOST_VCPUS))]
FilePath = Annotated[str, BeforeValidator(rules.path), WithJsonSchema(_PATH)]
Disks = Annotated[
    tuple[Annotated[str, BeforeValidator(rules.disk)], ...],
    BeforeValidator(_as_list),
    WithJsonSchema(one_or_more(_DISK)),
]
ResourceName = Annotated[str, BeforeValidator(rules.resource_name), WithJsonSchema(_NAMED)]
OsKind = Annotated[str, BeforeValidator(rules.os_kind), WithJsonSchema(_words(OS_KINDS))]
HotplugSlots = Annotated[int, BeforeValidator(rules.hotplug_slots), WithJsonSchema(whole(0, rules.MOST_HOTPLUG_SLOTS))]
Params = Annotated[dict[str, str], BeforeValidator(rules.vgpu_params), WithJsonSchema(_PARAMS)]
TemplateName = Annotated[str, BeforeValidator(rules.template), WithJsonSchema(_pattern(rules.TEMPLATE_PATTERN))]
Truth = Annotated[bool, BeforeValidator(rules.truth), WithJsonSchema({"type": "boolean"})]
