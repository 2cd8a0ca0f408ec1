# SPDX-License-Identifier: Apache-2.0
"""How the output of another host is parsed."""

from __future__ import annotations

import json

import pytest

from vgpuctl.errors import DeadlineExceeded
from vgpuctl.remote.reply import parse
from vgpuctl.remote.session import RemoteOutput

UNDONE = {"code": "interrupted", "undone": ["start VM a"], "left": ["disk a"]}


@pytest.mark.parametrize(
    ("document", "undone", "left"),
    [
        ({"ok": True, "data": None, "error": [1]}, [], []),
        ({"ok": True, "data": None, "error": {"undone": 5, "left": {}}}, [], []),
        ({"ok": False, "error": UNDONE}, ["start VM a"], ["disk a"]),
    ],
)
@pytest.mark.parametrize("changes", [True, False])
def test_any_reply_after_the_deadline_is_too_late(
    document: dict[str, object], undone: list[str], left: list[str], changes: bool
) -> None:
    out = json.dumps({"schema": "vgpuctl/1", **document})
    with pytest.raises(DeadlineExceeded) as late:
        parse(RemoteOutput(130, out, "", "", is_late=True), "gpu-01", is_change=changes)
    assert (late.value.undone, late.value.left) == (undone, left)
