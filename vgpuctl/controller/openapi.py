# SPDX-License-Identifier: Apache-2.0
"""The controller's API for programs (OpenAPI 3.1), made from its calls and the types of their results."""

from __future__ import annotations

import functools
import json
from typing import Any

from vgpuctl.controller.routes import API, CALLS, DRY_RUN, FleetCall
from vgpuctl.model.json_schema import document_schema, schema_of
from vgpuctl.version import __version__


@functools.cache
def document() -> dict[str, Any]:
    """Return the whole description."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for call in CALLS.values():
        paths.setdefault(API + call.path, {})[call.method.lower()] = _operation(call, schemas)
    components = json.loads(json.dumps(dict(sorted(schemas.items()))).replace('"#/$defs/', '"#/components/schemas/'))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vgpuctl controller",
            "version": __version__,
            "description": "Pools of desktops on many hosts. Results and errors are those of `--json`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(call: FleetCall, schemas: dict[str, Any]) -> dict[str, Any]:
    schema = document_schema(call.name, call.result_type, f"the result of {call.name}")
    del schema["$schema"]
    schemas.update(schema.pop("$defs", {}))
    schemas[f"{call.name}-result"] = schema
    result = {"$ref": f"#/components/schemas/{call.name}-result"}
    others = {name: one for name, one in call.parameters.items() if name not in call.in_path}
    operation: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.summary,
        "description": f"Needs {call.access.words}.",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in call.in_path
        ],
        "responses": {
            "200": {"description": "done", "content": {"application/json": {"schema": result}}},
            "default": {"description": "a failure, as --json prints it", "content": {"application/json": {}}},
        },
    }
    if call.has_dry_run:
        words = "check and answer as if it were made, and do not make it"
        schema = {"type": "boolean", "default": False}
        operation["parameters"].append({"name": DRY_RUN, "in": "query", "description": words, "schema": schema})
    if call.method in ("GET", "DELETE"):
        operation["parameters"] += [
            {"name": name, "in": "query", "required": one.required, "schema": schema_of(one.type, {})}
            for name, one in others.items()
        ]
    elif others:
        body = {
            "type": "object",
            "additionalProperties": False,
            "required": [name for name, one in others.items() if one.required],
            "properties": {name: schema_of(one.type, {}) for name, one in others.items()},
        }
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation


def text() -> str:
    """Return the description as the text of a file."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"
