# SPDX-License-Identifier: Apache-2.0
"""Reads what a request to the agent has, all of it untrusted: the JSON object in its body, arguments in its URL."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from vgpuctl.agent.protocol import (
    MAX_BODY_BYTES,
)
from vgpuctl.errors import InvalidInput
from vgpuctl.library.call_table import LibraryCall, Parameter
from vgpuctl.model.result_reader import Mismatch

BODY_SECONDS = 30.0
"""A body arrives within this time."""
MAX_ARGUMENT_CHARACTERS = 1 << 16


class NotAnObject(InvalidInput):
    """A request's body is not a JSON object."""


async def read_bytes(request: HttpRequest, most: int) -> bytes:
    """Return a request's body.

    Raises:
        HTTPException: it has more than `most` bytes, or does not arrive.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise HTTPException(413, f"the body is larger than {most} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the client went away before its request was complete") from None
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
    return bytes(body)


async def read_body(request: HttpRequest) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises:
        NotAnObject: it is something else.
        HTTPException: it is too large, or does not arrive.
    """
    try:
        body = json.loads(await read_bytes(request, MAX_BODY_BYTES) or b"{}")
    except (ValueError, RecursionError) as error:
        raise NotAnObject(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise NotAnObject("the body is not a JSON object with the call's arguments")
    return body


def refuse_long(arguments: Mapping[str, object]) -> None:
    """Refuse an argument that no call needs so long: what an operation names is kept with its result.

    Raises:
        InvalidInput: naming it.
    """
    for name, value in arguments.items():
        if len(json.dumps(value)) > MAX_ARGUMENT_CHARACTERS:
            raise InvalidInput(f"{name}: it is longer than {MAX_ARGUMENT_CHARACTERS} characters")


def read_query(call: LibraryCall, given: QueryParams) -> dict[str, Any]:
    """Return the arguments in a URL, each as the JSON value that its type takes. `fresh` belongs to the request."""
    arguments: dict[str, Any] = {}
    for name in dict.fromkeys(given.keys()):
        if name == "fresh":
            continue
        texts = given.getlist(name)
        parameter = call.parameters.get(name)
        arguments[name] = texts[0] if parameter is None else _value_of(parameter, texts)
    return arguments


def _value_of(parameter: Parameter, texts: list[str]) -> object:
    candidates: list[object] = [texts] if len(texts) > 1 or parameter.several else []
    with contextlib.suppress(ValueError, RecursionError):
        candidates.append(json.loads(texts[0]))
    for candidate in (*candidates, texts[0], texts):
        with contextlib.suppress(Mismatch):
            parameter.read(candidate)
            return candidate
    return texts[0]


def read_seconds(given: QueryParams, name: str) -> float:
    """Return a number of seconds in a URL, 0 without one.

    Raises:
        InvalidInput: it is no such number.
    """
    try:
        value = float(given.get(name, "0"))
    except ValueError:
        raise InvalidInput(f"{name}: {given[name]} is not a number of seconds") from None
    if not 0 <= value < float("inf"):
        raise InvalidInput(f"{name}: {given[name]} is not a number of seconds")
    return value
