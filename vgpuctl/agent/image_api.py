# SPDX-License-Identifier: Apache-2.0
"""What the API takes and answers about images of controllers: `/v1/images`, and the parts of one.

A part's body is no JSON, and is written as it arrives; so the fence is in a header.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from vgpuctl.agent.fair_threads import FairThreads
from vgpuctl.agent.fleet_api import FleetApi, require_fleet_rights
from vgpuctl.agent.http_input import read_body
from vgpuctl.agent.image_copies import ImageCopies
from vgpuctl.agent.image_rights import check_image_path, check_image_request
from vgpuctl.errors import HostCannot, InvalidInput, VgpuctlError
from vgpuctl.library.audit import Call
from vgpuctl.model.caller import Caller
from vgpuctl.model.desktop import Fence, check_fence
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.image_copy import FENCE_HEADER, RANGE_BYTES, ImageRequest
from vgpuctl.model.outcome import Outcome, Subjects
from vgpuctl.model.result_reader import read_value
from vgpuctl.ports.host import Host

CHUNK_BYTES = 1 << 20
RANGE_SECONDS = 600.0
"""A part arrives within this time."""
MAX_FENCE_CHARACTERS = 1000


class ImagePolicy(Protocol):
    """Who may bring which images (`rights.HostRights`)."""

    def check_image(self, caller: Caller, request: ImageRequest) -> None:
        """Refuse an image that host.yaml does not allow to the caller.

        Raises:
            NotAllowed: it does not.
        """


class ImageApi:
    """What the API asks about the images of one host."""

    def __init__(self, host: Host, copies: ImageCopies, fleet: FleetApi, policy: ImagePolicy) -> None:
        self._host = host
        self._copies = copies
        self._fleet = fleet
        self._policy = policy

    def close(self) -> None:
        """End what fetches and checks images."""
        self._copies.close()

    async def answer(self, threads: FairThreads, request: HttpRequest, caller: Caller) -> Response:
        """Answer with the images; begin one, or delete one."""
        if request.method == "POST":
            wanted = _read_request(await read_body(request))
            return _json(await threads.run(caller, self._begin, caller, _fence_of(request), wanted))
        if request.method == "DELETE":
            path = _path_of(request)
            deleted = await threads.run(caller, self._delete, caller, _fence_of(request), path)
            return _json({"changed": deleted})
        return _json({"images": await threads.run(caller, self._list, caller)})

    async def append(self, threads: FairThreads, request: HttpRequest, caller: Caller) -> Response:
        """Take the next part of an image; what arrived of one that broke off counts, too.

        Raises:
            HTTPException: it is too large, or does not arrive.
        """
        path, have = _path_of(request), _offset_of(request)
        parts, waiting, refused = _parts(request), bytearray(), None
        try:
            await threads.run(caller, self._admit, caller, _fence_of(request), path)
            async for chunk in parts:
                waiting += chunk
                if len(waiting) >= CHUNK_BYTES:
                    have = await threads.run(caller, self._copies.append, path, have, bytes(waiting))
                    waiting.clear()
        except VgpuctlError as error:
            refused = error
            async for _ in parts:  # who still sends would not read the answer
                continue
        finally:
            if waiting and refused is None:
                have = await threads.run(caller, self._copies.append, path, have, bytes(waiting))
        if refused is not None:
            raise refused
        return _json({"have": have})

    def _list(self, caller: Caller) -> object:
        require_fleet_rights(caller)
        return self._copies.list()

    def _begin(self, caller: Caller, fence: Fence | None, request: ImageRequest) -> object:
        self._require(caller, fence)
        check_image_request(request)
        self._policy.check_image(caller, request)
        call = Call("begin-image", f"agent begin-image path={request.path} url={request.url}", Subjects(), caller)
        try:
            known = request.path in {one.path for one in self._copies.list()}
            copy = self._copies.begin(request)
        except VgpuctlError as error:
            call.failed(self._host, error, ())
            raise
        if not known and not request.shared:
            call.succeeded(self._host, Outcome(True, None))
        return copy

    def _require(self, caller: Caller, fence: Fence | None) -> None:
        self._fleet.require_fence(caller, fence)
        if self._host.read_only_reason is not None or self._host.image_folders is None:
            raise HostCannot(f"nothing can be changed here: {self._host.read_only_reason}", check="read-only")

    def _admit(self, caller: Caller, fence: Fence | None, path: str) -> None:
        self._require(caller, fence)
        self._policy.check_image(caller, ImageRequest(path))

    def _delete(self, caller: Caller, fence: Fence | None, path: str) -> bool:
        self._require(caller, fence)
        call = Call("delete-image", f"agent delete-image path={path}", Subjects(), caller)
        try:
            deleted = self._copies.delete(path)
        except VgpuctlError as error:
            call.failed(self._host, error, ())
            raise
        if deleted:
            call.succeeded(self._host, Outcome(True, None))
        return deleted


async def _parts(request: HttpRequest) -> AsyncIterator[bytes]:
    """Yield a body as it arrives.

    Raises:
        HTTPException: it is too large, or does not arrive.
    """
    size = 0
    try:
        async with asyncio.timeout(RANGE_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > RANGE_BYTES:
                    raise HTTPException(413, f"the part is larger than {RANGE_BYTES} bytes")
                yield chunk
    except ClientDisconnect:
        raise HTTPException(400, "the client went away before its request was complete") from None
    except TimeoutError:
        raise HTTPException(408, f"the part did not arrive within {RANGE_SECONDS:g} seconds") from None


def _read_request(given: Mapping[str, Any]) -> ImageRequest:
    unknown = sorted(given.keys() - {*ImageRequest._fields})
    if unknown:
        raise InvalidInput(
            f"{', '.join(unknown)}: not known; an image has {', '.join(ImageRequest._fields)}", fields=unknown
        )
    if "path" not in given:
        raise InvalidInput("path: missing", fields=["path"])
    try:
        request: ImageRequest = read_value(ImageRequest, {**to_json_value(ImageRequest("")), **given}, "image")
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return request


def _fence_of(request: HttpRequest) -> Fence | None:
    text = request.headers.get(FENCE_HEADER)
    if text is None:
        return None
    try:
        if len(text) > MAX_FENCE_CHARACTERS:
            raise ValueError(f"it is longer than {MAX_FENCE_CHARACTERS} characters")
        fence: Fence = read_value(Fence, json.loads(text), "fence")
        check_fence(fence)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{FENCE_HEADER}: {error}") from error
    return fence


def _path_of(request: HttpRequest) -> str:
    try:
        return check_image_path(request.query_params.get("path", ""))
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def _offset_of(request: HttpRequest) -> int:
    text = request.query_params.get("offset", "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInput(f"offset: {text[:30]!a} is not a number of bytes")
    return int(text)


def _json(value: object) -> Response:
    return JSONResponse(to_json_value(value))
