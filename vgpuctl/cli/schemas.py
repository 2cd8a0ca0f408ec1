# SPDX-License-Identifier: Apache-2.0
"""The kinds of documents, the type of each one's result, and JSON Schemas made from these types.

The type is what the library's call of that name returns. Schemas and replies of other hosts need it; a local command
does not. One schema per kind describes whole documents: success with that kind's data, or failure. Unknown fields are
allowed, because fields are added without a new schema version.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from vgpuctl.cli import command_table
from vgpuctl.cli.command import find_command
from vgpuctl.cli.document import SCHEMA
from vgpuctl.cli.result_reader import is_record, typed_fields
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results import Absent, TargetsResult, WorkResult, gpus, host, moves, vms
from vgpuctl.model.results.host import CompletionResult, HostsResult, RebootedResult, ScenarioResult, SimResult
from vgpuctl.model.results.vms import ChangedVmResult, ManyVmsResult, PlannedVmResult, VmResult, XmlResult

HOSTS = "hosts"
"""The kind of what any command has on several other hosts."""

_OTHERS: dict[str, object] = {
    "create-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult] | QueryResult[XmlResult],
    "ensure-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult | TargetsResult[VmResult | PlannedVmResult]],
    "completion": QueryResult[CompletionResult],
    "sim-reboot": QueryResult[RebootedResult],
    "sim-reset": QueryResult[SimResult],
    "sim-list-scenarios": QueryResult[tuple[ScenarioResult, ...]],
    HOSTS: QueryResult[HostsResult],
}
"""The results of commands that make several calls, or none."""


def all_kinds() -> tuple[str, ...]:
    """Return every kind: each command, and `hosts`."""
    names = (name for name in command_table.COMMANDS if name != "sim")
    return (*names, *(f"sim-{name}" for name in command_table.SIM_COMMANDS), HOSTS)


@functools.cache
def result_type(kind: str) -> Any:
    """Return the type of a kind's result."""
    if kind in _OTHERS:
        return _OTHERS[kind]
    name = kind.replace("-", "_")
    call = getattr(GpuHost, name, None) or getattr(GpuHost, f"{name}_host")
    records = {name: value for module in (gpus, host, moves, vms) for name, value in vars(module).items()}
    returned = SimpleNamespace(__annotations__={"result": call.__annotations__["return"]})
    single = get_type_hints(returned, {**records, "Outcome": Outcome, "QueryResult": QueryResult})["result"]
    if not _takes_several(kind, call):
        return single
    record: Any = get_args(single)[0]
    several: Any = TargetsResult[record]
    return get_origin(single)[record | several]


def _takes_several(kind: str, call: Any) -> bool:
    """Say whether a command is for several VMs, vGPUs or GPUs, and calls the library for one after the other."""
    command = find_command(kind)
    has_all = command is not None and any(param.name == "everything" for param in command.params)
    first = [*inspect.signature(call).parameters.values()][1:2]
    return has_all and any(param.kind is param.POSITIONAL_OR_KEYWORD for param in first)


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

_ERROR: dict[str, Any] = {
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


def document_schema(kind: str) -> dict[str, Any]:
    """Return the schema of one kind's documents."""
    definitions: dict[str, Any] = {}
    data = schema_of(result_type(kind), definitions)
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
    """Return the data that a document has besides an error: of several hosts or VMs some may have failed."""
    return {"data": data} if kind == HOSTS or "TargetsResult" in str(result_type(kind)) else {}


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
    if origin is tuple:
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
