# SPDX-License-Identifier: Apache-2.0
"""The client of an agent's images, for a controller."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from vgpuctl.agent.answers import read_answer
from vgpuctl.agent.channel import AgentChannel
from vgpuctl.agent.protocol import API_VERSION
from vgpuctl.library.remote_errors import error_of
from vgpuctl.model.desktop import Fence
from vgpuctl.model.documents import read_failure, to_json_value
from vgpuctl.model.image_copy import FENCE_HEADER, ImageCopy, ImageRequest


class ImageClient:
    """The images of one host. `fence`: of who asks for changes."""

    def __init__(self, channel: AgentChannel, fence: Fence) -> None:
        self.fence = fence
        self._channel = channel
        self._headers = {FENCE_HEADER: json.dumps(to_json_value(fence))}

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
        status, answer = self._channel.ask(method, f"/{API_VERSION}/{path}", body, self._headers)
        if status != 200:
            error_given = answer.get("error")
            raise error_of(read_failure(error_given if isinstance(error_given, dict) else {}))
        return answer
