# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas of the files that people write, for editors and for other programs' checks.

They are made from the shapes that check the files, so they cannot drift. A schema says less than the rules (it
cannot judge fields together), so vgpuctl itself never uses it.
"""

from __future__ import annotations

from typing import Any

from vgpuctl.spec.host import HOST
from vgpuctl.spec.shape import Key, Shape
from vgpuctl.spec.vm import VM

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def vm_spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a VM spec."""
    return _published(VM, "vm-spec", "vgpuctl VM spec")


def host_schema() -> dict[str, Any]:
    """Return the JSON Schema of /etc/vgpuctl/host.yaml."""
    return _published(HOST, "host", "vgpuctl host file")


def _published(shape: Shape, name: str, title: str) -> dict[str, Any]:
    return {"$schema": DRAFT, "$id": f"urn:vgpuctl:schema:{name}", "title": title, **_mapping(shape)}


def _mapping(shape: Shape) -> dict[str, Any]:
    required = [key.name for key in shape.keys if key.required]
    return {
        "description": shape.help,
        "type": "object",
        "properties": {key.name: _value(key) for key in shape.keys},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _value(key: Key) -> dict[str, Any]:
    body = _mapping(key.shape) if key.shape is not None else dict(key.schema)
    if key.entries is not None:
        body = {"type": "object", "additionalProperties": {"anyOf": [_mapping(key.entries), {"type": "null"}]}}
    if not key.required:
        body = {"anyOf": [*body.get("anyOf", [body]), {"type": "null"}]}
    return {**body, "description": key.help}
