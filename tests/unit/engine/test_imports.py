# SPDX-License-Identifier: Apache-2.0
"""What import prints is a host.yaml that apply takes, and what mdevctl defines is there then."""

from __future__ import annotations

import json

import pytest

from tests.unit.engine.test_apply import run
from tests.vgpus import found
from tests.worlds import open_host, picture
from vgpuctl.engine.imports import import_host
from vgpuctl.spec.foreign import read_foreign

UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
OTHER = f"{UUID[:-1]}2"


def dump(parent: str, type_id: str) -> str:
    """Return what `mdevctl list -d --dumpjson` prints of two mdevs."""
    attrs = [{"nvidia/vgpu_params": "frame_rate_limiter=0"}, {"assign": "5"}]
    first = {UUID: {"mdev_type": type_id, "start": "auto", "attrs": attrs}}
    return json.dumps([{parent: [first, {OTHER: {"mdev_type": type_id, "start": "auto"}}]}])


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("scenario", "parent", "type_id"), [("t4", "0000:3b:00.0", "nvidia-231"), ("a16", "0000:3b:00.4", "nvidia-712")]
)
def test_what_mdevctl_dumps_is_made_or_taken_over_by_apply(tmp_path, scenario, parent, type_id, started):
    host = open_host(tmp_path, scenario)
    path = f"/sys/bus/pci/devices/{parent}/mdev_supported_types/{type_id}/create"
    if started:
        host.world.sysfs.write(path, UUID)
    read = import_host(host.world, read_foreign(dump(parent, type_id), "dump", None))
    assert read.data["left_out"] == ["dump:1: the attribute assign is not set by vgpuctl"]
    assert run(host.world, file=read.data["text"]).changed
    seen = picture(host)
    assert set(seen.mdevs) == {UUID, OTHER} == set(seen.claims)
    assert (seen.params.get(UUID) or seen.mdevs[UUID][2]) == ("" if started else "frame_rate_limiter=0")
    assert (found(host.again()), run(host.world).changed) == ([], False)
    host.sim.reboot()
    host = host.again()
    assert run(host.world).changed
    assert set(picture(host).mdevs) == {UUID, OTHER}
