# SPDX-License-Identifier: Apache-2.0
"""What import prints is a host.yaml that apply takes."""

from __future__ import annotations

from tests.worlds import Silent, open_host, picture
from vgpuctl.engine.apply import apply_host
from vgpuctl.engine.host_plan import How
from vgpuctl.engine.host_wish import File, ask
from vgpuctl.engine.imports import import_host
from vgpuctl.engine.restore import restore_host
from vgpuctl.spec.foreign import Definition, Foreign

UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


def test_an_imported_mdev_is_made_at_the_next_boot(tmp_path):
    host = open_host(tmp_path, "t4")
    (gpu,) = [g for g in ("0000:3b:00.0",) if g]
    one = Definition(UUID, gpu, "nvidia-230", True, "", ("assign",), "f:1")
    found = import_host(host.world, Foreign("mdevctl", (one,)))
    assert found.data["left_out"] == ["f:1: the attribute assign is not set by vgpuctl"]
    asked = ask(host.world, File(found.data["text"], "FILE"), ())
    assert apply_host(host.world, asked, How(), dry_run=False, progress=Silent()).changed
    restore_host(host.world, asked.spec, dry_run=False, wait_seconds=1, progress=Silent())
    assert UUID in picture(host).mdevs
