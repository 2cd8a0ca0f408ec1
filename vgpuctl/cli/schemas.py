# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of the documents that `--json` prints, made from the types in `shapes`.

One schema per kind describes whole documents: success with that kind's data, or failure. Unknown fields are allowed,
because fields are added without a new schema version.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from typing import Any, Literal, NotRequired, get_args, get_origin

from vgpuctl.cli.document import SCHEMA
from vgpuctl.cli.shapes import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PRIMITIVES: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["code", "message", "hint", "facts", "exit_status", "undone", "left"],
    "properties": {
        "code": {"type": "string", "description": "what programs branch on"},
        "message": {"type": "string", "description": "what and where, for people"},
        "hint": {"type": ["string", "null"], "description": "a command or action that helps"},
        "facts": {"type": "object", "description": "the numbers and names seen"},
        "exit_status": {"enum": [1, 2, 3, 4, 5, 6, 7, 75, 130, 143]},
        "undone": {"type": "array", "items": {"type": "string"}, "description": "steps that were taken back"},
        "left": {"type": "array", "items": {"type": "string"}, "description": "what remains on the host"},
    },
}


def document_schema(kind: str) -> dict[str, Any]:
    """Return the schema of one kind's documents."""
    definitions: dict[str, Any] = {}
    data = schema_of(KINDS[kind], definitions)
    shared = {
        "schema": {"const": SCHEMA},
        "kind": {"const": kind},
        "changed": {
            "type": "boolean",
            "description": "whether the host is different now, or would be after a dry run",
        },
        "warnings": {"type": "array", "items": {"type": "string"}},
    }
    return {
        "$schema": DIALECT,
        "title": f"vgpuctl {kind.replace('sim-', 'sim ', 1)} --json",
        "type": "object",
        "oneOf": [
            {
                "required": ["schema", "kind", "ok", "changed", "data", "warnings"],
                "properties": {**shared, "ok": {"const": True}, "data": data},
            },
            {
                "required": ["schema", "kind", "ok", "changed", "error", "warnings"],
                "properties": {**shared, "ok": {"const": False}, "error": _ERROR, **_failure_data(kind, data)},
            },
        ],
        **({"$defs": dict(sorted(definitions.items()))} if definitions else {}),
    }


def _failure_data(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data that a document has besides an error: if one host fails, it still has the others' replies."""
    return {"data": data} if kind == "hosts" else {}


def schema_of(shape: object, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; TypedDicts go to `definitions` and are referenced."""
    if shape is object:
        return {}
    if shape is None or shape is type(None):
        return {"type": "null"}
    if shape in _PRIMITIVES:
        return {"type": _PRIMITIVES[shape]}
    origin, arguments = get_origin(shape), get_args(shape)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": schema_of(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], definitions)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema_of(part, definitions) for part in arguments]}
    if typing.is_typeddict(shape):
        return _reference(shape, definitions)
    raise TypeError(f"no schema for {shape!r}")


def _reference(shape: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = shape.__name__.removesuffix("Shape")
    if name not in definitions:
        definitions[name] = {}
        hints = typing.get_type_hints(shape, include_extras=True)
        properties: dict[str, Any] = {}
        required: list[str] = []
        for field, hint in hints.items():
            optional = get_origin(hint) is NotRequired
            properties[field] = schema_of(get_args(hint)[0] if optional else hint, definitions)
            if not optional:
                required.append(field)
        definitions[name] = {
            "description": inspect.cleandoc(shape.__doc__ or ""),
            "type": "object",
            "required": required,
            "properties": properties,
        }
    return {"$ref": f"#/$defs/{name}"}


def schema_files() -> dict[str, str]:
    """Return every schema file's name and text."""
    return {
        f"{kind}.schema.json": json.dumps(document_schema(kind), indent=2, ensure_ascii=False) + "\n" for kind in KINDS
    }
