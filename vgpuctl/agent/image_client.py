# SPDX-License-Identifier: Apache-2.0
"""The client of an agent's images, for a controller. Each request has a connection of its own."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlencode

from vgpuctl.agent.answers import read_answer
from vgpuctl.agent.connection import REMOTE_LIMITS, AgentConnection, Dial
from vgpuctl.agent.protocol import API_VERSION
from vgpuctl.agent.remote_errors import error_of
from vgpuctl.errors import Unreachable
from vgpuctl.model.desktop import Fence
from vgpuctl.model.documents import read_failure, to_json_value
from vgpuctl.model.image_copy import FENCE_HEADER, ImageCopy, ImageRequest


class ImageClient:
    """The images of one host. `fence`: of who asks for changes."""

    def __init__(self, dial: Dial, fence: Fence) -> None:
        self.fence = fence
        self._dial = dial
        self._headers = {FENCE_HEADER: json.dumps(to_json_value(fence)), "Connection": "close"}

    def list(self) -> tuple[ImageCopy, ...]:
        """Return the images that the agent knows."""
        copies: tuple[ImageCopy, ...] = read_answer(tuple[ImageCopy, ...], self._ask("GET", "images").get("images"))
        return copies

    def begin(self, request: ImageRequest) -> ImageCopy:
        """Begin to bring an image to the host, or go on with it.

        Raises:
            VgpuctlError: the agent's; Unreachable: it does not answer.
        """
        answer = self._ask("POST", "images", json.dumps(to_json_value(request)).encode())
        copy: ImageCopy = read_answer(ImageCopy, answer)
        return copy

    def send(self, path: str, offset: int, data: bytes) -> int:
        """Send the next part of an image; return how many bytes the host has then.

        Raises:
            VgpuctlError: the agent's; Unreachable: the connection broke, and the host may have some of it.
        """
        answer = self._ask("PUT", f"images/ranges?{urlencode({'path': path, 'offset': offset})}", data)
        return int(read_answer(int, answer.get("have")))

    def delete(self, path: str) -> bool:
        """Delete an image that was brought to the host; return whether there was one.

        Raises:
            VgpuctlError: the agent's; Unreachable: it does not answer.
        """
        return bool(read_answer(bool, self._ask("DELETE", f"images?{urlencode({'path': path})}").get("changed")))

    def _ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        connection = AgentConnection(self._dial)
        try:
            connection.request(method, f"/{API_VERSION}/{path}", body, self._headers)
            response = connection.getresponse()
            answer = REMOTE_LIMITS.parse(response.read(REMOTE_LIMITS.line_bytes))
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise Unreachable(
                f"the host agent's answer to {method} /{API_VERSION}/images did not arrive: {error}",
                hint="systemctl status vgpuctl-agent",
            ) from error
        finally:
            connection.close()
        if not isinstance(answer, dict):
            raise Unreachable(f"the host agent answered {method} /{API_VERSION}/images with something else")
        if response.status != 200:
            error_given = answer.get("error")
            raise error_of(read_failure(error_given if isinstance(error_given, dict) else {}))
        return answer
