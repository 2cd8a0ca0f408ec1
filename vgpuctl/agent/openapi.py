# SPDX-License-Identifier: Apache-2.0
"""The API's description for programs (OpenAPI 3.1), made from the library's calls and the types of their results."""

from __future__ import annotations

import functools
import json
from typing import Any, get_type_hints

from vgpuctl.agent.operation_store import SECRET_FIELDS, StoredOperation
from vgpuctl.agent.protocol import API_CALLS, API_VERSION, REQUEST_KEY, RequestOptions
from vgpuctl.library.call_table import LibraryCall, Parameter
from vgpuctl.model.desktop import Fence, FleetStatus
from vgpuctl.model.host_room import HostRoom
from vgpuctl.model.image_copy import FENCE_HEADER, ImageCopy, ImageRequest
from vgpuctl.model.json_schema import document_schema, schema_of
from vgpuctl.model.result_reader import typed_fields
from vgpuctl.version import __version__


@functools.cache
def document() -> dict[str, Any]:
    """Return the whole description."""
    schemas: dict[str, Any] = {}
    paths = {f"/{API_VERSION}/{name}": _path(call, schemas) for name, call in sorted(API_CALLS.items())}
    schemas["Operation"] = _operation()
    options = {name: schema_of(hint, schemas) for _, name, hint, _ in typed_fields(RequestOptions)}
    schemas["RequestOptions"] = {"type": "object", "additionalProperties": False, "properties": options}
    paths |= _operation_paths() | _fleet_path(schemas) | _image_paths(schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vgpuctl host agent",
            "version": __version__,
            "description": "The calls of vgpuctl's library on one host. Results and errors are those of `--json`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": _referred_here(dict(sorted(schemas.items())))},
    }


def _operation() -> dict[str, Any]:
    """Return the schema of an operation as the API shows it."""
    definitions: dict[str, Any] = {}
    schema_of(StoredOperation, definitions)
    schema: dict[str, Any] = definitions[StoredOperation.__name__]
    schema["required"] = [name for name in schema["required"] if name not in SECRET_FIELDS]
    schema["properties"] = {name: one for name, one in schema["properties"].items() if name not in SECRET_FIELDS}
    return schema


def _operation_paths() -> dict[str, Any]:
    """Return the paths about operations."""
    operation = {"$ref": "#/components/schemas/Operation"}
    operation_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    wait = {
        "name": "wait",
        "in": "query",
        "schema": {"type": "number"},
        "description": "wait so many seconds for its end",
    }
    path = f"/{API_VERSION}/operations"
    paths: dict[str, Any] = {}
    paths[path] = {"get": {"summary": "List the operations, the newest first.", "responses": _responses({})}}
    paths[f"{path}/{{id}}"] = {
        "get": {
            "summary": "Show an operation; its document is its result.",
            "parameters": [operation_id, wait],
            "responses": _responses(operation),
        },
        "delete": {
            "summary": "Cancel an operation: it is undone; the second time its undo is stopped.",
            "parameters": [operation_id],
            "responses": _responses(operation, "202"),
        },
    }
    paths[f"{path}/{{id}}/events"] = {
        "get": {
            "summary": "Follow an operation: its plan, its steps, and at last the event `result` with its document.",
            "parameters": [operation_id],
            "responses": {"200": {"description": "server-sent events", "content": {"text/event-stream": {}}}},
        }
    }
    return paths


def _fleet_path(schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the paths about the controller that the host obeys, and what it asks."""
    status, fence = schema_of(FleetStatus, schemas), schema_of(Fence, schemas)
    body = {
        "type": "object",
        "additionalProperties": False,
        "required": ["fence"],
        "properties": {"fence": fence, "adopt": {"type": "boolean"}},
    }
    announce = {
        "summary": "Announce the holder of this host's lease, before its first change.",
        "requestBody": {"content": {"application/json": {"schema": body}}},
        "responses": _responses(status),
    }
    read = {"summary": "Show which controller the host obeys.", "responses": _responses(status)}
    room = {"summary": "Show what the host has room for.", "responses": _responses(schema_of(HostRoom, schemas))}
    return {f"/{API_VERSION}/fleet": {"get": read, "post": announce}, f"/{API_VERSION}/fleet/room": {"get": room}}


def _image_paths(schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the paths about images that a controller brings to the host."""
    copy = schema_of(ImageCopy, schemas)
    fields = {
        name: schema_of(kind, schemas)
        for name, kind in get_type_hints(ImageRequest).items()
        if name in ImageRequest._fields
    }
    wanted = {"type": "object", "additionalProperties": False, "required": ["path"], "properties": fields}
    fence = {"name": FENCE_HEADER, "in": "header", "required": False, "schema": {"type": "string"}}
    path = {"name": "path", "in": "query", "required": True, "schema": {"type": "string"}}
    offset = {"name": "offset", "in": "query", "required": True, "schema": {"type": "integer", "minimum": 0}}
    images = {"type": "object", "properties": {"images": {"type": "array", "items": copy}}}
    changed = {"type": "object", "properties": {"changed": {"type": "boolean"}}}
    have = {"type": "object", "properties": {"have": {"type": "integer"}}}
    begin = {
        "summary": "Begin to bring an image to this host, or go on with it.",
        "parameters": [fence],
        "requestBody": {"content": {"application/json": {"schema": wanted}}},
        "responses": _responses(copy),
    }
    send = {
        "summary": "Send the next part of an image.",
        "parameters": [path, offset, fence],
        "requestBody": {"content": {"application/octet-stream": {}}},
        "responses": _responses(have),
    }
    delete = {
        "summary": "Delete an image that was brought to this host.",
        "parameters": [path, fence],
        "responses": _responses(changed),
    }
    read = {"summary": "List the images that were brought to this host.", "responses": _responses(images)}
    return {
        f"/{API_VERSION}/images": {"get": read, "post": begin, "delete": delete},
        f"/{API_VERSION}/images/ranges": {"put": send},
    }


def _referred_here(schemas: dict[str, Any]) -> Any:
    """Return schemas whose references lead to the components of this document."""
    return json.loads(json.dumps(schemas).replace('"#/$defs/', '"#/components/schemas/'))


def _path(call: LibraryCall, schemas: dict[str, Any]) -> dict[str, Any]:
    name = f"{call.name}-result"
    schema = document_schema(call.name, call.result_type, f"the result of {call.name}")
    del schema["$schema"]
    schemas.update(schema.pop("$defs", {}))  # a record has one schema, whatever result it is part of
    schemas[name] = schema
    result = {"$ref": f"#/components/schemas/{name}"}
    post = {
        "summary": call.summary,
        "operationId": call.name,
        "requestBody": {"content": {"application/json": {"schema": _arguments(call)}}},
        "responses": _responses({"$ref": "#/components/schemas/Operation"}, "202")
        if call.changes
        else _responses(result),
    }
    if call.changes:
        return {"post": post}
    parameters = [_query_parameter(one) for one in call.parameters.values()]
    return {
        "get": {"summary": call.summary, "parameters": parameters, "responses": _responses(result)},
        "post": post,
    }


def _arguments(call: LibraryCall) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, one in call.parameters.items() if one.required],
        "properties": {
            **{name: _schema(one) for name, one in call.parameters.items()},
            REQUEST_KEY: {"$ref": "#/components/schemas/RequestOptions"},
        },
    }


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    return {"name": parameter.name, "in": "query", "required": parameter.required, "schema": _schema(parameter)}


def _schema(parameter: Parameter) -> dict[str, Any]:
    schema = schema_of(parameter.type, {})
    return {"type": "array", "items": schema} if parameter.several else schema


def _responses(schema: dict[str, Any], status: str = "200") -> dict[str, Any]:
    return {
        status: {
            "description": "done" if status == "200" else "begun",
            "content": {"application/json": {"schema": schema}},
        },
        "default": {"description": "a failure, as --json prints it", "content": {"application/json": {}}},
    }


def text() -> str:
    """Return the description as the text of a file."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"
