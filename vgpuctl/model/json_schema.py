# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas made from the types of results: what a reader of JSON may rely on.

Unknown fields are allowed, because fields are added without a new schema version.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

from vgpuctl.model.documents import SCHEMA
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.result_reader import is_record, typed_fields
from vgpuctl.model.results import Absent, WorkResult

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PRIMITIVES: dict[object, str] = {
    object: "",
    None: "null",
    type(None): "null",
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
}

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["code", "message", "hint", "facts", "exit_status", "undone", "left"],
    "properties": {
        "code": {"type": "string", "description": "what programs branch on"},
        "message": {"type": "string", "description": "what and where, for people"},
        "hint": {"type": ["string", "null"], "description": "a command or action that helps"},
        "facts": {"type": "object", "description": "the numbers and names seen"},
        "exit_status": {"enum": [1, 2, 3, 4, 5, 6, 7, 75, 130, 143]},
        "undone": {"type": "array", "items": {"type": "string"}, "description": "steps that were undone"},
        "left": {"type": "array", "items": {"type": "string"}, "description": "what remains on the host"},
    },
}


def document_schema(kind: str, result: Any, title: str) -> dict[str, Any]:
    """Return the schema of whole documents with a result of this type: success with its data, or failure."""
    definitions: dict[str, Any] = {}
    data = schema_of(result, definitions)
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
        "title": title,
        "type": "object",
        "oneOf": [
            {
                "required": ["schema", "kind", "ok", "changed", "data", "warnings"],
                "properties": {**shared, "ok": {"const": True}, "data": data},
            },
            {
                "required": ["schema", "kind", "ok", "changed", "error", "warnings"],
                "properties": {**shared, "ok": {"const": False}, "error": ERROR, **_failure_data(result, data)},
            },
        ],
        **({"$defs": dict(sorted(definitions.items()))} if definitions else {}),
    }


def _failure_data(result: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data that a document has besides an error: of several hosts or VMs some may have failed."""
    return {"data": data} if any(several in str(result) for several in ("TargetsResult", "HostsResult")) else {}


def schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; records go to `definitions` and are referenced."""
    if kind in _PRIMITIVES:
        return {"type": _PRIMITIVES[kind]} if kind is not object else {}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Outcome:
        return {"allOf": [schema_of(arguments[0], definitions), schema_of(WorkResult, definitions)]}
    if origin is QueryResult:
        return schema_of(arguments[0], definitions)
    if origin in (Literal, Annotated):
        return {"enum": [word for word in arguments if word is not str]}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": schema_of(arguments[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], definitions)}
    if origin in (types.UnionType, typing.Union):
        schemas = [schema_of(part, definitions) for part in arguments if part is not Absent]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return _class_schema(kind, definitions)


def _class_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if is_record(kind):
        return _reference(kind, definitions)
    if kind is Any:
        return {}
    raise TypeError(f"no schema for {kind!r}")


def _reference(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    record = get_origin(kind) or kind
    name = record.__name__.removesuffix("Result")
    if name not in definitions:
        definitions[name] = {}
        fields = typed_fields(kind)
        definitions[name] = {
            "description": inspect.cleandoc(record.__doc__ or ""),
            "type": "object",
            "required": [json_name for _, json_name, _, optional in fields if not optional],
            "properties": {json_name: schema_of(hint, definitions) for _, json_name, hint, _ in fields},
        }
    return {"$ref": f"#/$defs/{name}"}
