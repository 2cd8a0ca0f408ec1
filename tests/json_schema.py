# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas of the files that people write, for editors and for checks by other programs.

A `Shape` declares the keys of a file. vgpuctl checks the files with it and makes these schemas from it, so both always
match. A schema cannot express rules that involve several fields, so vgpuctl itself never uses one.
"""

from __future__ import annotations

from typing import Any

from vgpuctl.config.host_spec import HOST_SHAPE
from vgpuctl.config.shape import Key, Shape
from vgpuctl.config.vm_spec import VM_SHAPE
from vgpuctl.controller.fleet_file import FLEET_SHAPE
from vgpuctl.controller.planning.pool_spec import POOL_SHAPE
from vgpuctl.host.usage.programs import MAX_ROWS
from vgpuctl.model.json_schema import schema_of
from vgpuctl.model.usage import GpuUse, VgpuUse

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def vm_spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a VM spec."""
    return _make_schema(VM_SHAPE, "vm-spec", "vgpuctl VM spec")


def host_schema() -> dict[str, Any]:
    """Return the JSON Schema of /etc/vgpuctl/host.yaml."""
    return _make_schema(HOST_SHAPE, "host", "vgpuctl host file")


def pool_spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a pool's spec."""
    return _make_schema(POOL_SHAPE, "pool-spec", "vgpuctl pool spec")


def fleet_file_schema() -> dict[str, Any]:
    """Return the JSON Schema of a fleet's file."""
    return _make_schema(FLEET_SHAPE, "fleet-file", "vgpuctl fleet file")


def reader_schema() -> dict[str, Any]:
    """Return the JSON Schema of what a program of host.yaml's `agent: readers:` prints."""
    definitions: dict[str, Any] = {}
    properties = {
        name: {"description": text, "type": "array", "items": schema_of(kind, definitions), "maxItems": MAX_ROWS}
        for name, kind, text in (
            ("gpus", GpuUse, "the use of each GPU; what a program leaves out is unknown"),
            ("vgpus", VgpuUse, "the use of each vGPU"),
        )
    }
    definitions["GpuUse"]["properties"].pop("source")
    definitions["EngineUse"]["properties"] = {
        name: {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}]}
        for name in definitions["EngineUse"]["properties"]
    }
    required = {"GpuUse": ["address"], "VgpuUse": ["gpu"]}
    definitions = {
        name: {**definition, "required": required.get(name, []), "additionalProperties": False}
        for name, definition in sorted(definitions.items())
    }
    return {
        "$schema": DRAFT, "$id": "urn:vgpuctl:schema:reader", "title": "what a reader of vgpuctl's agent prints",
        "type": "object", "properties": properties, "additionalProperties": False, "$defs": definitions,
    }  # fmt: skip


def _make_schema(shape: Shape, name: str, title: str) -> dict[str, Any]:
    return {"$schema": DRAFT, "$id": f"urn:vgpuctl:schema:{name}", "title": title, **_mapping_schema(shape)}


def _mapping_schema(shape: Shape) -> dict[str, Any]:
    required = [key.name for key in shape.keys if key.required]
    return {
        "description": shape.help,
        "type": "object",
        "properties": {key.name: _value_schema(key) for key in shape.keys},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _value_schema(key: Key) -> dict[str, Any]:
    body = _mapping_schema(key.nested_shape) if key.nested_shape is not None else dict(key.json_schema)
    if key.map_value_shape is not None:  # a mapping from free names to values of one shape
        body = {
            "type": "object",
            "additionalProperties": {"anyOf": [_mapping_schema(key.map_value_shape), {"type": "null"}]},
        }
    if not key.required:  # it may be null; an existing anyOf is extended, not nested
        body = {"anyOf": [*body.get("anyOf", [body]), {"type": "null"}]}
    return {**body, "description": key.help}
