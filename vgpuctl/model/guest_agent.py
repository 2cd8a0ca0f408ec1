# SPDX-License-Identifier: Apache-2.0
"""The protocol of the QEMU guest agent (qemu-ga): requests and answers as JSON (docs/interop/qemu-ga-ref in QEMU).

What it answers comes from the guest, which may send whatever it likes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from vgpuctl.model.json_yaml import parse_json

CHANNEL = "org.qemu.guest_agent.0"
"""The name of its virtio port; also in templates/vm.xml.j2."""
MAX_ANSWER_CHARACTERS = 1 << 20


def format_request(name: str, arguments: Mapping[str, object]) -> str:
    """Return a request: one line of JSON in ASCII."""
    return json.dumps({"execute": name, "arguments": dict(arguments)})


def parse_answer(text: str) -> object:
    """Return what a command returned; None for an answer that is too long or no answer."""
    answer = parse_json(text) if len(text) <= MAX_ANSWER_CHARACTERS else None
    return answer.get("return") if isinstance(answer, dict) else None
