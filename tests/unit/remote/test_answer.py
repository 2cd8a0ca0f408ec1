# SPDX-License-Identifier: Apache-2.0
"""What is made of what came back from another host."""

from __future__ import annotations

import json

import pytest

from vgpuctl.errors import TooSlow
from vgpuctl.remote.answer import judge
from vgpuctl.remote.ran import Ran

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
def test_an_answer_after_the_deadline_is_too_late_whatever_is_beside_it(
    document: dict[str, object], undone: list[str], left: list[str], changes: bool
) -> None:
    out = json.dumps({"schema": "vgpuctl/1", **document})
    with pytest.raises(TooSlow) as late:
        judge(Ran(130, out, "", "", late=True), "gpu-01", changes=changes)
    assert (late.value.undone, late.value.left) == (undone, left)
