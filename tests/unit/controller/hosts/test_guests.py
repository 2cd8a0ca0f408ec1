# SPDX-License-Identifier: Apache-2.0
"""What is asked of a guest again: what it answered once holds for one boot."""

from __future__ import annotations

import pytest

from tests.unit.controller.planning.fleets import desktop_of, pool_of, ready_report
from vgpuctl.controller.hosts.guests import ask_guest
from vgpuctl.controller.model import ReadyWhen
from vgpuctl.controller.planning.host_look import HostVm
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.value import replace

READY = replace(ready_report(), running_since=1.0)
MARK = DesktopMark("id-1", "desk", "db-1", READY.generation)


@pytest.mark.parametrize(
    ("former", "mark", "image", "asks"),
    [
        ({}, {}, READY.image, False),
        ({}, {"generation": 9, "user": "ada", "dirty": True}, READY.image, False),
        ({"dirty": True, "user": "ada"}, {"generation": 9}, READY.image, True),
        ({"image": "/old.qcow2"}, {}, "/new.qcow2", True),
        ({"ready": False}, {}, READY.image, True),
        ({"running_since": None}, {}, READY.image, True),
    ],
    ids=["nothing changed", "given to a user", "refreshed after a user", "refreshed from an image", "not yet", "off"],
)
def test_a_refresh_that_no_look_saw_is_another_boot(former, mark, image, asks):
    pool = pool_of(ready_when=ReadyWhen.GUEST)
    vm = HostVm("d-001", "id-1", "running", 3, replace(MARK, **mark), image)
    question = ask_guest(desktop_of(report=replace(READY, **former)), pool, vm)
    assert (question.needs_guest, question.vm.guest_answers, question.vm.port_open) == (asks, not asks, not asks)
